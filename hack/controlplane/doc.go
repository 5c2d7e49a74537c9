// Command controlplane builds and runs a real Kubernetes control plane (etcd,
// kube-apiserver, kube-controller-manager) with nothing but Go, and builds
// kubectl. It stands in for the archive of binaries that envtest downloads, and
// adds the controller manager, without which nothing is garbage collected and
// no Job runs.
//
// # Building
//
// The folder pins holds one go.mod and go.sum for each version that can be
// built. They are called mod.txt and sum.txt, so that they can be embedded
// here and no tool takes them for modules of this repository. The commands are
// built out of the module cache into the user's cache directory:
//
//	belay/controlplane/
//	  etcd-v3.7.3-<hash>/bin/etcd
//	  v1.37.2-<hash>/bin/{kube-apiserver,kube-controller-manager}
//	  kubectl-v1.37.2-<hash>/bin/kubectl
//	  node-v1.37.2-<hash>/bin/{kubelet,kubeadm,kube-proxy,kube-scheduler}
//	  run/<random>/      one running control plane
//
// The hash covers the pins, the Go version, the platform and the flags of the
// build, so a changed pin is never served by an old binary.
//
// To add a version: copy a folder of pins to kube-<version>, change the version
// of k8s.io/kubernetes and, in the replace block, of its staging modules
// (v1.38.0 has v0.38.0), copy both files as go.mod and go.sum beside a Go file
// that imports the two commands, run go mod tidy and copy them back. Then the
// same from the new folder to kubectl-<version>, importing kubectl alone.
//
// When KUBEBUILDER_ASSETS is set, the binaries come from there and only a
// missing kube-controller-manager or kubectl is built.
//
// # Running
//
// Everything listens on 127.0.0.1, on ports outside of the range the kernel
// gives to outgoing connections, so that a component that is stopped for a
// while finds its port free again. There is no kubelet and no scheduler: Pods
// stay Pending unless a test writes their status. A Pod whose spec.nodeName is
// of no Node object is removed by the pod garbage collector, as in a cluster.
//
// There can be several kube-apiservers on one etcd. The launcher itself is the
// front that spreads connections over them, so that goes away with it. All of
// them sign and trust by the same keys; a token of one counts for each.
//
// # Leaving nothing behind
//
// The launcher starts a janitor in a session of its own that waits for the end
// of a pipe. The kernel closes the pipe however the launcher ends, so the
// janitor kills the components and removes the run directory after a SIGKILL as
// well. A component writes its pid into the run directory before it becomes
// the component, and gives up when the launcher is gone by then; so there is
// no moment in which it runs unrecorded. As a last resort (a power cut, a
// killed janitor) up sweeps run directories whose lock nobody holds.
//
// It works on Linux; the code has fall-backs for macOS, which nobody has tried.
package main
