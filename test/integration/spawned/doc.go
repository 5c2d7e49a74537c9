// Package spawned tests the client library on a real control plane whose kube-apiserver
// loses its connection to etcd at the worst moments: after the commit, before the answer.
package spawned
