package stack

import (
	"k8s.io/client-go/rest"
)

// Connect is a Stack on a cluster that runs already, with belay in it: it has the clients, and
// what applies and waits, and no processes.
func Connect(cluster *rest.Config) (*Stack, error) {
	s := &Stack{cluster: rest.CopyConfig(cluster)}
	s.cluster.QPS = -1
	return s, s.clients()
}

// admin is the administrator's configuration.
func (s *Stack) admin() *rest.Config {
	if s.cluster != nil {
		return rest.CopyConfig(s.cluster)
	}
	return s.Plane.Config()
}
