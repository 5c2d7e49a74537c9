package main

import (
	"fmt"
	"slices"
	"strings"
)

// mergeFlags returns defaults with extra after them, without those defaults
// that extra sets as well. A flag given twice in extra stays there twice, as
// some flags of the components add up.
func mergeFlags(defaults, extra []string) ([]string, error) {
	replaced := map[string]bool{}
	for _, f := range extra {
		name, err := flagName(f)
		if err != nil {
			return nil, err
		}
		replaced[name] = true
	}
	merged := slices.DeleteFunc(slices.Clone(defaults), func(f string) bool {
		name, err := flagName(f)
		return err == nil && replaced[name]
	})
	return append(merged, extra...), nil
}

// flagName returns x for --x and --x=y.
func flagName(f string) (string, error) {
	name, _, _ := strings.Cut(strings.TrimPrefix(f, "--"), "=")
	if !strings.HasPrefix(f, "--") || name == "" || strings.HasPrefix(name, "-") {
		return "", fmt.Errorf("flag %q is not of the form --name=value", f)
	}
	return name, nil
}

// hasFlag tells whether flags set name to exactly value; the last one counts.
func hasFlag(flags []string, name, value string) bool {
	for _, f := range slices.Backward(flags) {
		if n, err := flagName(f); err == nil && n == name {
			return f == "--"+name+"="+value
		}
	}
	return false
}
