// Command kind runs a Kubernetes cluster of one control plane and two workers, with real
// kubelets, in the containers of a container engine; by kind, sigs.k8s.io/kind.
//
// # The engine
//
// The one that the docker client reaches is used. Where none answers and this runs as root,
// dockerd is started, after it was installed with apt-get if need be: with its data below the
// cache, a socket, a bridge and an address pool of its own, and without a rule in the host's
// iptables. "down" stops it again.
//
// docker asks for all capabilities for privileged containers. Where the machine does not have
// CAP_SYS_RESOURCE, the engine is started with a runtime that asks for all but that one.
//
// # The node image
//
// kind's own is used where the engine has it or can pull it. Otherwise one is built: Debian by
// debootstrap, Kubernetes by hack/controlplane, containerd, runc, crictl, the CNI plug-ins and
// kind itself with "go install", CoreDNS and pause from the folders here. kind's files for nodes
// come out of its module. It is called kindest/node:<version>-belay-<hash>; the hash covers all
// that it depends on, and the engine keeps it.
//
// What is different from kind's own image: the network of pods is a shell script and enforces no
// NetworkPolicy; volumes are folders of one node; pause is written in Go; CoreDNS has the plug-ins
// that kubeadm configures, and no others.
//
// # Images in the nodes
//
// "load" takes archives. "pull" takes names: what the engine does not have it pulls, for a minute
// at most, and says by an exit code of its own (4) that it cannot, so that whoever asked may build
// something instead; package choice does that. Nodes import what is of their platform.
//
// # What is kept, and what is not
//
// The cache (belay/kind in the user's cache directory) has binaries, the root file system, and
// the data of an engine that was started here, hence the node image. "down" removes the cluster,
// that engine's process, bridge and mounts, and puts back what kubelets set for the whole
// machine (sysctl). "clean" removes the cache.
package main
