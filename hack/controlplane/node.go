package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// nodeTarget is what a node runs beside the servers. It has their pins, so that both compile
// the same packages once.
func nodeTarget(version string) (target, error) {
	t, err := kubeTarget(version)
	if err != nil {
		return target{}, err
	}
	t.name = "node-" + version
	t.what = "kubelet, kubeadm, kube-proxy and kube-scheduler " + version
	t.usual = "about 6 minutes once on two cores, one after the servers"
	t.packages = []string{
		"k8s.io/kubernetes/cmd/kubelet",
		"k8s.io/kubernetes/cmd/kubeadm",
		"k8s.io/kubernetes/cmd/kube-proxy",
		"k8s.io/kubernetes/cmd/kube-scheduler",
	}
	return t, nil
}

// nodeVersions are the versions whose pins have the commands of a node: the newest.
func nodeVersions() []string { return pinnedVersions("kube")[:1] }

// node returns the paths of all that Kubernetes itself has on a node, the control plane's
// included. KUBEBUILDER_ASSETS is not asked: what is there is of no known build.
func (b *builder) node(ctx context.Context, want string) ([]string, error) {
	version, err := resolveVersion(want, nodeVersions())
	if err != nil {
		return nil, err
	}
	servers, err := kubeTarget(version)
	if err != nil {
		return nil, err
	}
	node, err := nodeTarget(version)
	if err != nil {
		return nil, err
	}
	kubectl, err := kubectlTarget(version)
	if err != nil {
		return nil, err
	}
	dirs, err := b.ensure(ctx, etcdTarget(), servers, node, kubectl)
	if err != nil {
		return nil, err
	}
	var out []string
	for i, names := range [][]string{
		{"etcd"},
		{"kube-apiserver", "kube-controller-manager"},
		{"kubelet", "kubeadm", "kube-proxy", "kube-scheduler"},
		{"kubectl"},
	} {
		for _, name := range names {
			out = append(out, filepath.Join(dirs[i], "bin", name))
		}
	}
	return out, nil
}

func runNode(ctx context.Context, args []string) error {
	fs := newFlags("node", `
Builds all that Kubernetes itself has on a node (the servers, kubelet, kubeadm,
kube-proxy, kube-scheduler, kubectl, and etcd) into the cache, unless it is there,
and prints the paths, one a line. hack/kind makes its node image of them.`)
	version := versionFlag(fs)
	if err := parse(fs, args); err != nil {
		return err
	}
	b, err := newBuilder(os.Stderr)
	if err != nil {
		return err
	}
	files, err := b.node(ctx, *version)
	if err != nil {
		return err
	}
	for _, file := range files {
		fmt.Println(file)
	}
	return nil
}
