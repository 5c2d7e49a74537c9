package owner

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"sort"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// hashChars is the length of the hash in an Anchor's name: 16 base32 characters
// are 80 bits, so that two owners of one namespace never share a name. What is
// found under a name is compared all the same.
const hashChars = 16

// prefixChars bounds the readable part, so that names stay within 63 characters.
const prefixChars = 63 - hashChars - 1

var encoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// AnchorName is the name of the Anchor that waits for an owner. It depends on
// group, kind and name (or labels) alone, so that every replica comes to the same
// one. When the Anchor of that name cannot be shared any more (it is bound,
// released, nearly over, or being deleted), the next one is named after its UID
// as well: predecessor, which is empty for the first.
func AnchorName(o v1alpha1.AnchorOwner, predecessor types.UID) string {
	h := sha256.New()
	for _, part := range []string{groupOf(o.APIVersion), strings.ToLower(o.Kind), o.Name, formatLabels(o.MatchLabels), string(predecessor)} {
		// Length-prefixed, so that no two lists of parts are the same bytes.
		_, _ = fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	sum := encoding.EncodeToString(h.Sum(nil))[:hashChars]
	return readable(strings.ToLower(o.Kind)+"-"+o.Name) + "-" + sum
}

// readable keeps what a DNS label may hold of a text, for people.
func readable(s string) string {
	b := make([]byte, 0, prefixChars)
	for i := 0; i < len(s) && len(b) < prefixChars; i++ {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
			b = append(b, c)
		case c >= 'A' && c <= 'Z':
			b = append(b, c+'a'-'A')
		case len(b) > 0 && b[len(b)-1] != '-':
			b = append(b, '-')
		}
	}
	out := strings.TrimRight(string(b), "-")
	if out == "" || out[0] < 'a' {
		out = "x" + out // a label may begin with a digit, but not every tool agrees
	}
	if len(out) > prefixChars {
		out = strings.TrimRight(out[:prefixChars], "-")
	}
	return out
}

// Shareable says whether a further dependent may be put behind an existing
// Anchor: it waits for the same owner, for long enough, and is not on its way out.
func Shareable(a *v1alpha1.Anchor, o v1alpha1.AnchorOwner, now time.Time, margin time.Duration) bool {
	return a.DeletionTimestamp == nil &&
		a.Spec.BoundUID == "" &&
		// One that somebody else made, or restored, could go with something of theirs.
		len(a.OwnerReferences) == 0 && len(a.Finalizers) == 0 &&
		SameOwner(a.Spec.Owner, o) &&
		a.Spec.ExpiresAt.Sub(now) >= margin
}

// Expiry is when an Anchor is given up: at the time that the webhook set by its own
// clock, but not before it waited as long by the API server's.
func Expiry(a *v1alpha1.Anchor) time.Time {
	at := a.Spec.ExpiresAt.Time
	if least := a.CreationTimestamp.Add(a.Spec.Deadline.Duration); least.After(at) {
		return least
	}
	return at
}

// SameOwner compares two awaited owners by group, kind and name or labels; the
// version does not count, since one object is served in all of them.
func SameOwner(a, b v1alpha1.AnchorOwner) bool {
	return groupOf(a.APIVersion) == groupOf(b.APIVersion) && strings.EqualFold(a.Kind, b.Kind) &&
		a.Name == b.Name && formatLabels(a.MatchLabels) == formatLabels(b.MatchLabels)
}

func formatLabels(m map[string]string) string {
	if len(m) == 0 {
		return ""
	}
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for i, k := range keys {
		keys[i] = k + "=" + m[k]
	}
	return strings.Join(keys, ",")
}
