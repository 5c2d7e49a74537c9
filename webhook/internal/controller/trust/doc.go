// Package trust brings the CA of belay's collector to the sidecars: by a ConfigMap in each
// namespace that has opted in, and, where the API server serves them, by a
// ClusterTrustBundle as well. Pods that were made before the server served them, and kubelets
// that do not know them, go on with the ConfigMap.
//
// The CA is what the live webhook registration says: it is what the API server trusts,
// whoever wrote it there, and during a rotation it has the old CA beside the new one. The
// kubelet brings a new one to the files of Pods that run within a minute or two, and a
// sidecar reads its file for every connection.
package trust
