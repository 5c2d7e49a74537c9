package several

import (
	"fmt"
	"os"
	"testing"

	"github.com/belay-dev/belay/test/integration/plane"
	"github.com/belay-dev/belay/test/integration/stack"
)

// The API servers, as indexes.
const (
	serverA = iota
	serverB
)

// shared is the stack of these tests. The first replica of the webhook talks to A, the second
// one to B, those that a test starts to the front of both; which replica an API server asks
// is chance. The controller that leads at first talks to B, so that it is as far behind as B
// is where a test holds that back; the other talks to A.
var shared *stack.Stack

// etcdOf are the proxies between the API servers and etcd.
var etcdOf [2]*stack.Cutter

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	for i := range etcdOf {
		c, err := stack.NewCutter()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer c.Close()
		etcdOf[i] = c
	}
	return stack.Main(m, &shared, 1, stack.Options{
		Plane:    plane.Options{Audit: true, APIServers: 2, EtcdProxies: []plane.EtcdProxy{etcdOf[serverA], etcdOf[serverB]}},
		Presets:  []string{"otf"},
		Webhooks: 2, WebhookServers: []int{1, 2, 0, 0},
		Controllers: 2, ControllerServers: []int{2, 1},
		// With HTTP/2 an API server would ask one replica only.
		WebhookFlags: []string{"--http2=false"},
	}, stack.GuardJobsAndSandboxes)
}
