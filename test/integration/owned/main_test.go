package owned

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/belay-dev/belay/test/integration/plane"
	"github.com/belay-dev/belay/test/integration/stack"
)

// shared is the stack of the tests that disturb nobody. Tests that stop processes
// or restart servers start their own.
var shared *stack.Stack

func TestMain(m *testing.M) {
	if socket := os.Getenv(inIPv6OnlyEnv); socket != "" {
		if err := inIPv6Only(socket); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(stack.Main(m, &shared, 6, stack.Options{Plane: plane.Options{Audit: true}, Presets: []string{"otf"}}, func(ctx context.Context, s *stack.Stack) error {
		return s.WaitPolicy(ctx, "otf")
	}))
}
