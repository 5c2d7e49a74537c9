package main

import (
	"cmp"
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

//go:embed pins
var pins embed.FS

// A target is what one go build makes out of one folder of pins.
type target struct {
	name     string   // the folder in the cache, without the hash
	pin      string   // the folder in pins
	what     string   // for people
	usual    string   // how long a first build takes, for people
	packages []string // the main packages
	output   string   // -o, below bin; a trailing slash lets go name the files
	ldflags  string
}

// pinnedVersions returns the versions there are pins for, newest first. The
// kind is "kube", "kubectl" or "etcd".
func pinnedVersions(kind string) []string {
	entries, err := fs.ReadDir(pins, "pins")
	if err != nil {
		panic(err) // the folder is embedded
	}
	var found []string
	for _, e := range entries {
		if v, ok := strings.CutPrefix(e.Name(), kind+"-"); ok {
			found = append(found, v)
		}
	}
	slices.SortFunc(found, func(a, b string) int { return compareVersions(b, a) })
	return found
}

// pinnedTargets returns everything that can be built.
func pinnedTargets() ([]target, error) {
	targets := []target{etcdTarget()}
	for _, v := range pinnedVersions("kube") {
		t, err := kubeTarget(v)
		if err != nil {
			return nil, err
		}
		targets = append(targets, t)
	}
	for _, v := range nodeVersions() {
		t, err := nodeTarget(v)
		if err != nil {
			return nil, err
		}
		targets = append(targets, t)
	}
	for _, v := range pinnedVersions("kubectl") {
		t, err := kubectlTarget(v)
		if err != nil {
			return nil, err
		}
		targets = append(targets, t)
	}
	return targets, nil
}

func etcdTarget() target {
	version := pinnedVersions("etcd")[0]
	return target{
		name:     "etcd-" + version,
		pin:      "etcd-" + version,
		what:     "etcd " + version,
		usual:    "about 1 minute once on two cores",
		packages: []string{"go.etcd.io/etcd/server/v3"},
		output:   "etcd",
		ldflags:  "-s -w",
	}
}

func kubeTarget(version string) (target, error) {
	ldflags, err := stamped(version)
	if err != nil {
		return target{}, err
	}
	return target{
		name:  version,
		pin:   "kube-" + version,
		what:  "kube-apiserver and kube-controller-manager " + version,
		usual: "about 6 minutes once on two cores",
		packages: []string{
			"k8s.io/kubernetes/cmd/kube-apiserver",
			"k8s.io/kubernetes/cmd/kube-controller-manager",
		},
		output:  "/",
		ldflags: ldflags,
	}, nil
}

// kubectlTarget has pins of its own: kubectl needs modules that the servers do
// without, and more of them in kubeTarget's pins would have the servers rebuilt.
func kubectlTarget(version string) (target, error) {
	ldflags, err := stamped(version)
	if err != nil {
		return target{}, err
	}
	return target{
		name:     "kubectl-" + version,
		pin:      "kubectl-" + version,
		what:     "kubectl " + version,
		usual:    "about 2 minutes once on two cores, half a minute after the servers",
		packages: []string{"k8s.io/kubernetes/cmd/kubectl"},
		output:   "kubectl",
		ldflags:  ldflags,
	}, nil
}

// stamped returns ldflags that put the version into binaries, as the Kubernetes
// release build does; without it they call themselves v0.0.0 and clients take
// them for an ancient server.
func stamped(version string) (string, error) {
	n, err := versionNumbers(version)
	if err != nil {
		return "", err
	}
	var ld strings.Builder
	ld.WriteString("-s -w")
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, kv := range []string{
			"gitVersion=" + version,
			"gitMajor=" + strconv.Itoa(n[0]),
			"gitMinor=" + strconv.Itoa(n[1]),
			"gitTreeState=clean",
			"gitCommit=" + strings.Repeat("0", 40),
			"buildDate=1970-01-01T00:00:00Z",
		} {
			fmt.Fprintf(&ld, " -X %s.%s", pkg, kv)
		}
	}
	return ld.String(), nil
}

// resolveVersion finds the version meant by s among those available, newest
// first: v1.37.2, 1.37.2, v1.37 and 1.37 are the same, "" is the newest.
func resolveVersion(s string, available []string) (string, error) {
	if s == "" {
		return available[0], nil
	}
	want := "v" + strings.TrimPrefix(s, "v")
	for _, v := range available {
		if v == want || minor(v) == want {
			return v, nil
		}
	}
	return "", fmt.Errorf("no Kubernetes version %q; there are %s (short forms such as %s work)",
		s, strings.Join(available, ", "), strings.TrimPrefix(minor(available[0]), "v"))
}

// minor returns v1.37 for v1.37.2.
func minor(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

func versionNumbers(version string) ([3]int, error) {
	var n [3]int
	parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
	if len(parts) != len(n) {
		return n, fmt.Errorf("version %q is not of the form v1.37.2", version)
	}
	for i, p := range parts {
		var err error
		if n[i], err = strconv.Atoi(p); err != nil {
			return n, fmt.Errorf("version %q is not of the form v1.37.2", version)
		}
	}
	return n, nil
}

// compareVersions orders versions; those it can not read come first.
func compareVersions(a, b string) int {
	na, _ := versionNumbers(a)
	nb, _ := versionNumbers(b)
	return cmp.Or(slices.Compare(na[:], nb[:]), cmp.Compare(a, b))
}
