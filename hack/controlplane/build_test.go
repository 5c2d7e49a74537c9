package main

import (
	"io"
	"os"
	"path/filepath"
	"slices"
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

func TestTargetsOfKubernetesStampTheVersion(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]func(string) (target, error){"servers": kubeTarget, "kubectl": kubectlTarget, "node": nodeTarget} {
		target, err := of("v1.37.2")
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			"-X k8s.io/component-base/version.gitVersion=v1.37.2",
			"-X k8s.io/component-base/version.gitMajor=1",
			"-X k8s.io/client-go/pkg/version.gitMinor=37",
		} {
			if !strings.Contains(target.ldflags, want+" ") {
				t.Errorf("%s: ldflags lack %q", name, want)
			}
		}
		if _, err := of("v1.37"); err == nil {
			t.Errorf("%s: no error for a version without patch", name)
		}
	}
}

// Whoever has the servers must not build them again for a change that concerns
// kubectl alone. What a node runs has the servers' pins on purpose.
func TestTargetsShareNoPins(t *testing.T) {
	t.Parallel()
	targets, err := pinnedTargets()
	if err != nil {
		t.Fatal(err)
	}
	names, pins := map[string]bool{}, map[string]bool{}
	for _, target := range targets {
		node := strings.HasPrefix(target.name, "node-")
		if names[target.name] || pins[target.pin] != node {
			t.Errorf("%s shares its folder or its pins, or has not the servers'", target.what)
		}
		names[target.name], pins[target.pin] = true, true
	}
	for _, version := range pinnedVersions("kube") {
		if !names["kubectl-"+version] {
			t.Errorf("there are servers %s and no kubectl", version)
		}
	}
}

func TestKubectlComesOutOfTheAssets(t *testing.T) {
	assets := t.TempDir()
	t.Setenv("KUBEBUILDER_ASSETS", assets)
	file := filepath.Join(assets, "kubectl")
	const script = "#!/bin/sh\n" + `[ "$*" = "version --client --output=json" ] && echo '{"clientVersion":{"gitVersion":"v1.37.1"}}'` + "\n"
	if err := os.WriteFile(file, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	b := &builder{cache: t.TempDir(), log: io.Discard} // nothing is built there
	for want, fails := range map[string]bool{"": false, "1.37": false, "v1.37.1": false, "v1.37.2": true} {
		got, err := b.kubectl(t.Context(), want)
		if (err != nil) != fails || got != file {
			t.Errorf("kubectl(%q) = %q, %v; want %q", want, got, err, file)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if got, err := b.kubectl(t.Context(), "v1.0.0"); err == nil || !strings.Contains(err.Error(), "v1.37.2") {
		t.Errorf("kubectl = %q, %v; want an error that says what there is", got, err)
	}
}

func TestKubectlIsOfTheCache(t *testing.T) {
	t.Setenv("KUBEBUILDER_ASSETS", "")
	b := &builder{cache: t.TempDir(), log: io.Discard}
	target, err := kubectlTarget("v1.37.2")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := b.dir(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil { // as if it was built
		t.Fatal(err)
	}
	got, err := b.kubectl(t.Context(), "1.37")
	if want := filepath.Join(dir, "bin", "kubectl"); err != nil || got != want {
		t.Errorf("kubectl = %q, %v; want %q", got, err, want)
	}
}

func TestCleanRemovesWhatNoPinUses(t *testing.T) {
	t.Parallel()
	b := &builder{cache: t.TempDir(), log: io.Discard}
	targets, err := pinnedTargets()
	if err != nil {
		t.Fatal(err)
	}
	var used []string
	for _, target := range targets {
		dir, err := b.dir(t.Context(), target)
		if err != nil {
			t.Fatal(err)
		}
		used = append(used, dir)
	}
	stale := []string{"etcd-v3.7.3-0", "v1.37.2-0", "kubectl-v1.37.2-0", "node-v1.37.2-0"}
	for i, name := range stale {
		stale[i] = filepath.Join(b.cache, name)
	}
	run := filepath.Join(b.cache, "run")
	for _, dir := range slices.Concat(used, stale, []string{run}) {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	check := func(dirs []string, want bool) {
		t.Helper()
		for _, dir := range dirs {
			if got := exists(dir); got != want {
				t.Errorf("%s is there: %t, want %t", filepath.Base(dir), got, want)
			}
		}
	}
	if err := b.clean(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	check(stale, false)
	check(used, true)
	if err := b.clean(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	check(used, false)
	check([]string{run}, true)
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
