// Package apifacts holds what belay relies on in kube-apiserver, the controllers
// of kube-controller-manager and client-go, as tests on real ones: the numbered
// facts of belay's design. It has no code of its own and does not need belay.
//
// Each test registers its own admission webhooks, limited to its own namespace.
// Run it on the oldest and on the newest supported version, so that one that
// changes a fact is noticed:
//
//	BELAY_K8S_VERSION=v1.34.0 go test ./test/integration/apifacts/
//	go test ./test/integration/apifacts/
package apifacts
