package owned

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

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
	if err := stack.SideBySide(6); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(runAll(m))
}

func runAll(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	defer cancel()
	var err error
	shared, err = stack.Start(ctx, stack.Options{Plane: plane.Options{Audit: true}, Presets: []string{"otf"}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := shared.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	if err := shared.WaitPolicy(ctx, "otf"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		for _, p := range append(shared.Controllers(), shared.Webhooks()...) {
			fmt.Fprintln(os.Stderr, p.Name, p.Tail(30))
		}
		return 1
	}
	return m.Run()
}
