package hostile

import (
	"os"
	"testing"

	"github.com/belay-dev/belay/test/integration/plane"
	"github.com/belay-dev/belay/test/integration/stack"
)

// shared is the stack of these tests: one webhook, whose memory is looked at.
var shared *stack.Stack

func TestMain(m *testing.M) {
	os.Exit(stack.Main(m, &shared, 1, stack.Options{Plane: plane.Options{}, Presets: []string{"otf"}, FaultyWebhook: true}, stack.GuardJobsAndSandboxes))
}
