package main

import (
	"slices"
	"testing"
)

func TestMergeFlags(t *testing.T) {
	t.Parallel()
	defaults := []string{"--a=1", "--bind-address=127.0.0.1", "--c"}
	for name, tc := range map[string]struct {
		extra, want []string
		fails       bool
	}{
		"nothing extra keeps the defaults":   {nil, defaults, false},
		"a new flag goes to the end":         {[]string{"--v=4"}, []string{"--a=1", "--bind-address=127.0.0.1", "--c", "--v=4"}, false},
		"the same flag is replaced":          {[]string{"--a=2"}, []string{"--bind-address=127.0.0.1", "--c", "--a=2"}, false},
		"a switch is replaced by its value":  {[]string{"--c=false"}, []string{"--a=1", "--bind-address=127.0.0.1", "--c=false"}, false},
		"a longer name is another flag":      {[]string{"--aa=2"}, []string{"--a=1", "--bind-address=127.0.0.1", "--c", "--aa=2"}, false},
		"a repeated extra flag stays twice":  {[]string{"--a=2", "--a=3"}, []string{"--bind-address=127.0.0.1", "--c", "--a=2", "--a=3"}, false},
		"a value may hold an equals sign":    {[]string{"--a=x=y"}, []string{"--bind-address=127.0.0.1", "--c", "--a=x=y"}, false},
		"a word is no flag":                  {[]string{"verbose"}, nil, true},
		"one dash is no flag":                {[]string{"-v=4"}, nil, true},
		"three dashes are no flag":           {[]string{"---v=4"}, nil, true},
		"two dashes alone are no flag":       {[]string{"--"}, nil, true},
		"a value without a name is no flag":  {[]string{"--=4"}, nil, true},
		"an empty argument is reported also": {[]string{""}, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := mergeFlags(defaults, tc.extra)
			if (err != nil) != tc.fails || !slices.Equal(got, tc.want) {
				t.Errorf("mergeFlags(%q) = %q, %v; want %q", tc.extra, got, err, tc.want)
			}
		})
	}
}

func TestHasFlagHeedsTheLastOne(t *testing.T) {
	t.Parallel()
	flags := []string{"--x=false", "--y", "--x=true"}
	if hasFlag(flags, "x", "false") || !hasFlag(flags, "x", "true") || hasFlag(flags, "z", "true") {
		t.Errorf("hasFlag misreads %q", flags)
	}
}
