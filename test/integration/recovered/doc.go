// Package recovered tests RecoveryPolicies on a real control plane: the guard of statuses,
// the evidence, the driver and the client library, with the shipped manifests and RBAC on.
// There is no kubelet, so that a test says how its Pods are.
package recovered
