package main

import (
	"strings"
	"testing"
)

func TestResolveVersion(t *testing.T) {
	t.Parallel()
	available := []string{"v1.37.2", "v1.37.0", "v1.34.0"}
	for name, tc := range map[string]struct{ in, want string }{
		"nothing is the newest":                       {"", "v1.37.2"},
		"the full version":                            {"v1.34.0", "v1.34.0"},
		"without v":                                   {"1.37.0", "v1.37.0"},
		"major and minor find the newest patch":       {"1.37", "v1.37.2"},
		"major and minor with v":                      {"v1.34", "v1.34.0"},
		"an unknown patch is not another patch":       {"1.37.1", ""},
		"an unknown minor":                            {"1.33", ""},
		"a prefix of a version is not that version":   {"1.3", ""},
		"the major version alone is not precise":      {"1", ""},
		"something that is no version at all":         {"latest", ""},
		"a path does not end up in a file name":       {"../v1.37.2", ""},
		"a version with text after it is not trimmed": {"v1.37.2-rc.0", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := resolveVersion(tc.in, available)
			if got != tc.want || (err == nil) != (tc.want != "") {
				t.Fatalf("resolveVersion(%q) = %q, %v; want %q", tc.in, got, err, tc.want)
			}
			if err != nil && !strings.Contains(err.Error(), strings.Join(available, ", ")) {
				t.Errorf("the error does not say what there is: %v", err)
			}
		})
	}
}

func TestCompareVersionsIsNumeric(t *testing.T) {
	t.Parallel()
	if compareVersions("v1.9.0", "v1.10.0") >= 0 {
		t.Error("v1.9.0 is older than v1.10.0")
	}
}

// Every pin is complete and requires the version that its folder is named
// after; a copied folder whose go.mod was forgotten would build the old one.
func TestPinsRequireWhatTheyAreNamedAfter(t *testing.T) {
	t.Parallel()
	targets, err := pinnedTargets()
	if err != nil {
		t.Fatal(err)
	}
	if len(targets) < 2 {
		t.Fatalf("found %d targets, want etcd and at least one Kubernetes", len(targets))
	}
	for _, target := range targets {
		files, err := pinFiles(target)
		if err != nil {
			t.Fatal(err)
		}
		kind, version, _ := strings.Cut(target.pin, "-")
		module := map[string]string{"kube": "k8s.io/kubernetes", "kubectl": "k8s.io/kubernetes", "etcd": "go.etcd.io/etcd/server/v3"}[kind]
		if want := module + " " + version + "\n"; !strings.Contains(string(files["go.mod"]), want) {
			t.Errorf("pins/%s/mod.txt does not require %q", target.pin, want)
		}
		if want := module + " " + version + " h1:"; !strings.Contains(string(files["go.sum"]), want) {
			t.Errorf("pins/%s/sum.txt has no hash of %s", target.pin, module)
		}
	}
}
