package names

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash"
	"math"
	"slices"
	"strconv"
	"strings"
)

// MaxLabel is the longest DNS label, and the longest value of a label: a Job's name
// ends up as one on its Pods.
const MaxLabel = 63

const (
	// digits of a name's digest: 50 bits. Two of a million names in one namespace
	// are alike with a chance of one in two thousand, and what a collision of works
	// means is answered when it comes.
	digits = 10
	// workDigits of an identity: 160 bits, which nobody finds a second work for.
	workDigits = 32
	// shortest is the least that a name may be limited to: room for a letter, a dash
	// and the digits.
	shortest = digits + 2
	// letter begins names whose prefix does not begin with one. A Service's name must
	// (RFC 1035), so all do.
	letter = "x"
)

// lower is base32 of RFC 4648 in lower case: letters and digits only, as names need.
var lower = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Of is the name of a piece of work: the readable part of the prefix, a dash, and ten
// characters of a digest over the prefix and the keys as they are. It is a DNS label
// of at most most bytes that begins with a letter (most counts as 12 where it is less,
// and as 63 where it is more), whatever prefix and keys are. Only the readable part is ever cut, so inputs that differ
// anywhere give names that differ.
//
// A key is a string, a bool, a number, nil, or a list or map of such.
func Of(prefix string, most int, keys ...any) string {
	most = min(max(most, shortest), MaxLabel)
	readable := clean(prefix)
	if readable == "" || readable[0] < 'a' || readable[0] > 'z' {
		readable = strings.TrimSuffix(letter+"-"+readable, "-")
	}
	if room := most - digits - 1; len(readable) > room {
		readable = strings.TrimRight(readable[:room], "-")
	}
	return readable + "-" + sum("name", digits, append([]any{prefix}, keys...))
}

// Digest is the identity of a piece of work: 32 characters over the values. Equal
// values give equal digests, whatever order a map was built in.
func Digest(values ...any) string { return sum("work", workDigits, values) }

// clean turns a prefix into what a DNS label may hold: lower case, and one dash for
// each run of anything else.
func clean(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r >= 'A' && r <= 'Z':
			b.WriteRune(r - 'A' + 'a')
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
		if b.Len() > MaxLabel {
			break
		}
	}
	return strings.TrimRight(b.String(), "-")
}

// sum hashes values. The purpose keeps a name's digest from being a prefix of the
// identity of the same values.
func sum(purpose string, length int, values []any) string {
	h := sha256.New()
	write(h, purpose)
	write(h, values)
	return lower.EncodeToString(h.Sum(nil))[:length]
}

// write feeds a value to the hash so that no two different values feed the same
// bytes: a tag, the length, the content.
func write(h hash.Hash, v any) {
	switch v := v.(type) {
	case nil:
		tag(h, 'z', 0)
	case string:
		tag(h, 's', len(v))
		_, _ = h.Write([]byte(v))
	case bool:
		if v {
			tag(h, 't', 0)
		} else {
			tag(h, 'f', 0)
		}
	case float64:
		number(h, v)
	case int:
		integer(h, int64(v))
	case int64:
		integer(h, v)
	case uint64:
		if v > exact {
			write(h, strconv.FormatUint(v, 10))
			return
		}
		number(h, float64(v))
	case json.Number:
		if i, err := v.Int64(); err == nil {
			integer(h, i)
			return
		}
		f, err := v.Float64()
		if err != nil {
			write(h, v.String())
			return
		}
		number(h, f)
	case []any:
		tag(h, 'l', len(v))
		for _, e := range v {
			write(h, e)
		}
	case map[string]any:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		tag(h, 'm', len(keys))
		for _, k := range keys {
			write(h, k)
			write(h, v[k])
		}
	default:
		text := fmt.Sprintf("%T %v", v, v)
		tag(h, '?', len(text))
		_, _ = h.Write([]byte(text))
	}
}

func tag(h hash.Hash, kind byte, n int) {
	_, _ = h.Write(binary.BigEndian.AppendUint64([]byte{kind}, uint64(n)))
}

// exact is the largest integer up to which all have a float64 of their own.
const exact = 1 << 53

// integer takes an integer that a float64 cannot hold for the text of its digits, as CEL
// does when it makes JSON: two ids that differ in the last digit are two.
func integer(h hash.Hash, i int64) {
	if i > exact || i < -exact {
		write(h, strconv.FormatInt(i, 10))
		return
	}
	number(h, float64(i))
}

// number takes 1 and 1.0 for the same, as JSON does.
func number(h hash.Hash, f float64) {
	_, _ = h.Write(binary.BigEndian.AppendUint64([]byte{'n'}, math.Float64bits(f+0))) // +0: -0 is 0
}
