package main

import (
	"strings"
	"testing"
)

func TestCacheKey(t *testing.T) {
	t.Parallel()
	base, err := kubeTarget("v1.37.2")
	if err != nil {
		t.Fatal(err)
	}
	key := func(t *testing.T, target target, goVersion string) string {
		k, err := cacheKey(target, goVersion)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	want := key(t, base, "go1.26.8")
	if len(want) != 12 {
		t.Errorf("the key %q is not 12 characters long", want)
	}
	if got := key(t, base, "go1.26.8"); got != want {
		t.Errorf("the same input gives %q and %q", want, got)
	}

	otherPin, otherFlags, otherPackages := base, base, base
	otherPin.pin = "kube-v1.34.0"
	otherFlags.ldflags += " -X a.b=c"
	otherPackages.packages = base.packages[:1]
	for name, got := range map[string]string{
		"the Go version": key(t, base, "go1.27.0"),
		"the pins":       key(t, otherPin, "go1.26.8"),
		"the flags":      key(t, otherFlags, "go1.26.8"),
		"the packages":   key(t, otherPackages, "go1.26.8"),
	} {
		if got == want {
			t.Errorf("the key does not depend on %s", name)
		}
	}

	base.pin = "kube-v0.0.0"
	if _, err := cacheKey(base, "go1.26.8"); err == nil {
		t.Error("no error for pins that do not exist")
	}
}

func TestKubeTargetStampsTheVersion(t *testing.T) {
	t.Parallel()
	target, err := kubeTarget("v1.37.2")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"-X k8s.io/component-base/version.gitVersion=v1.37.2",
		"-X k8s.io/component-base/version.gitMajor=1",
		"-X k8s.io/client-go/pkg/version.gitMinor=37",
	} {
		if !strings.Contains(target.ldflags, want+" ") {
			t.Errorf("ldflags lack %q", want)
		}
	}
	if _, err := kubeTarget("v1.37"); err == nil {
		t.Error("no error for a version without patch")
	}
}

func TestBuildOutputCountsAndKeepsErrors(t *testing.T) {
	t.Parallel()
	out := &buildOutput{}
	for _, chunk := range []string{
		"go: downloading k8s.io/a", "pi v1\ninternal/abi\n",
		"k8s.io/api/core/v1\n# k8s.io/broken\n", "x.go:1:2: undefined: y\nlast, without newline",
	} {
		if _, err := out.Write([]byte(chunk)); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := out.summary(), "1 modules downloaded, 2 packages compiled"; got != want {
		t.Errorf("summary is %q, want %q", got, want)
	}
	if got, want := out.tail(), "# k8s.io/broken\nx.go:1:2: undefined: y\nlast, without newline"; got != want {
		t.Errorf("tail is %q, want %q", got, want)
	}
}
