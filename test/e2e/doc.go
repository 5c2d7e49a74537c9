// Package e2e has the tests on a real cluster: kubelets, kube-proxy, Services, the scheduler,
// and belay installed by its manifests. "make e2e" makes the cluster and runs them; with
// BELAY_E2E_KUBECONFIG they run on one that is there, of hack/kind, since some of them stop
// nodes. They are one process, and each has its own namespaces.
//
// What goes wrong leaves logs, events and descriptions in bin/e2e/<test>.
package e2e
