// Package stack runs belay on a real control plane, as it runs in a cluster: its
// processes are the real binaries, each under its own service account with the
// shipped RBAC, and what they act on are the shipped manifests. Only the Deployments
// are left out, since there is no kubelet: their processes are started here.
//
// Integration tests, the demo and the benchmarks use it alike.
package stack
