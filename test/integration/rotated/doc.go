// Package rotated tests that certificates come and go, and replicas with them, without a lost
// call: on a real kube-apiserver with belay's real processes, while objects are created that
// the API server refuses when it cannot call belay. What a Service and its EndpointSlices do in
// a cluster is done by the tests, since there are no Pods.
package rotated
