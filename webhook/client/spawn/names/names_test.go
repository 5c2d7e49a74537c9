package names

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "add names to testdata/names.txt; never change those that are there")

// label is RFC 1035, the strictest rule that any kind has.
var label = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)

// TestNamesNeverChange: after an upgrade the same work has the same name, or every
// unit of work would be started a second time.
func TestNamesNeverChange(t *testing.T) {
	var b strings.Builder
	for _, c := range []struct {
		prefix string
		most   int
		keys   []any
	}{
		{"restore", 63, []any{"survival"}},
		{"restore", 63, []any{"survival", "2026-01-02"}},
		{"", 63, []any{"survival"}},
		{"9lives", 63, []any{"a"}},
		{"Ünïcode Ärger", 63, []any{"日本"}},
		{strings.Repeat("a", 29), 40, []any{"x"}},
		{strings.Repeat("a", 253), 63, []any{"x"}},
		{strings.Repeat("a", 51) + "-x", 63, []any{"x"}},
		{strings.Repeat("a", 51) + ".x", 63, []any{"x"}},
		{"---", 63, []any{"x"}},
		{"n", 63, []any{nil, true, false, 1.5, int64(3), []any{"a", "b"}, map[string]any{"b": "1", "a": nil}}},
	} {
		fmt.Fprintf(&b, "%s\n", Of(c.prefix, c.most, c.keys...))
	}
	fmt.Fprintf(&b, "%s\n%s\n", Digest("survival", "backup-1"), Digest(map[string]any{"image": "a", "args": []any{"x"}}))
	const file = "testdata/names.txt"
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("names have changed (-before +now):\n%s", diff)
	}
}

func TestDistinctInputsHaveDistinctNames(t *testing.T) {
	long := strings.Repeat("n", 200)
	names := map[string]string{}
	for what, name := range map[string]string{
		"last character a":      Of(long+"a", 63, "k"),
		"last character b":      Of(long+"b", 63, "k"),
		"key in two":            Of("p", 63, "ab", "c"),
		"key in two, elsewhere": Of("p", 63, "a", "bc"),
		"upper case":            Of("P", 63, "ab", "c"),
		"one key":               Of("p", 63, "abc"),
		"a list":                Of("p", 63, []any{"abc"}),
		"number":                Of("p", 63, int64(1)),
		"string of it":          Of("p", 63, "1"),
		"true":                  Of("p", 63, true),
		"nil":                   Of("p", 63, nil),
		"a large integer":       Of("p", 63, int64(1541815603606036480)),
		"the one after it":      Of("p", 63, int64(1541815603606036481)),
		"a larger one":          Of("p", 63, uint64(18446744073709551614)),
		"and after that":        Of("p", 63, uint64(18446744073709551615)),
		"just too large":        Of("p", 63, int64(1<<53+1)),
		"just not":              Of("p", 63, int64(1<<53)),
		"no key":                Of("p", 63),
		"long key a":            Of("p", 63, long+"a"),
		"long key b":            Of("p", 63, long+"b"),
	} {
		if other, ok := names[name]; ok {
			t.Errorf("%s and %s are both %q", what, other, name)
		}
		names[name] = what
	}
	if Of("p", 63, int64(1)) != Of("p", 63, 1.0) || Digest(0.0) != Digest(negativeZero()) {
		t.Error("equal numbers give different names")
	}
	if Digest(map[string]any{"a": "1", "b": "2"}) != Digest(map[string]any{"b": "2", "a": "1"}) {
		t.Error("the order of a map changes the digest")
	}
}

func negativeZero() float64 { z := 0.0; return -z }

func TestAnIdentityDoesNotBeginWithTheNamesDigest(t *testing.T) {
	name := Of("p", 63, "k")
	if strings.HasPrefix(Digest("p", "k"), name[len(name)-digits:]) {
		t.Error("they share their digits")
	}
}

func FuzzOf(f *testing.F) {
	for _, prefix := range []string{"", "a", "-", "A.B", "日本", strings.Repeat("a-", 100), "\xff\x00", "1"} {
		for _, most := range []int{-1, 0, 12, 13, 29, 30, 52, 63, 64, 253} {
			f.Add(prefix, most, "key")
		}
	}
	f.Fuzz(func(t *testing.T, prefix string, most int, key string) {
		name := Of(prefix, most, key)
		if !label.MatchString(name) {
			t.Errorf("Of(%q, %d, %q) = %q is no DNS label", prefix, most, key, name)
		}
		if len(name) > max(most, shortest) {
			t.Errorf("Of(%q, %d, %q) = %q has %d bytes", prefix, most, key, name, len(name))
		}
		if len(name) > MaxLabel {
			t.Errorf("Of(%q, %d, %q) = %q has %d bytes", prefix, most, key, name, len(name))
		}
		if name != Of(prefix, most, key) {
			t.Errorf("Of(%q, %d, %q) gives two names", prefix, most, key)
		}
		if name == Of(prefix, most, key+"x") || name == Of(prefix+"x", most, key) {
			t.Errorf("Of(%q, %d, %q) has the name of another work", prefix, most, key)
		}
	})
}
