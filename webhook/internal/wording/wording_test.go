package wording

import (
	"testing"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/net"
)

func TestClipCutsBetweenRunes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in   string
		most int
		want string
	}{
		"short enough":                    {"abc", 3, "abc"},
		"cut":                             {"abcd", 3, "abc…"},
		"not through a rune of two":       {"aéb", 2, "a…"},
		"not through a rune of four":      {"a😀b", 4, "a…"},
		"behind a rune":                   {"aéb", 3, "aé…"},
		"nothing but one rune":            {"😀", 2, "…"},
		"continuation bytes alone: empty": {"\x80\x80\x80", 2, "…"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := Clip(c.in, c.most); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	for most := range 12 {
		if got := Clip("aé€😀é", most); !utf8.ValidString(got) {
			t.Errorf("clip at %d: %q is no UTF-8", most, got)
		}
	}
}

func TestOneLine(t *testing.T) {
	t.Parallel()
	if got := OneLine("a\nb\tc\x7fd\u0085e é"); got != "a b c d e é" {
		t.Errorf("got %q", got)
	}
	for r := range rune(0x100) {
		if _, err := net.NewWarningHeader(299, "-", OneLine(string(r))); err != nil {
			t.Errorf("the API server drops a warning with %q: %v", r, err)
		}
	}
}
