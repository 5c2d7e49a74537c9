package witnessed

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/plane"
	"github.com/belay-dev/belay/test/integration/stack"
)

// shared is the stack of the tests that disturb nobody: two replicas of the webhook, as in
// production.
var shared *stack.Stack

func TestMain(m *testing.M) {
	if err := stack.SideBySide(8); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(runAll(m))
}

func runAll(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	defer cancel()
	var err error
	shared, err = stack.Start(ctx, stack.Options{
		Plane: plane.Options{Audit: true},
		// With HTTP/2 the API server would ask one replica only.
		Webhooks: 2, WebhookFlags: []string{"--http2=false"},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := shared.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	if err := install(ctx, shared); err != nil {
		fmt.Fprintln(os.Stderr, err)
		for _, p := range append(shared.Controllers(), shared.Webhooks()...) {
			fmt.Fprintln(os.Stderr, p.Name, p.Tail(30))
		}
		return 1
	}
	return m.Run()
}

// install installs BatchSandbox, and the preset whose Pods have sidecars.
func install(ctx context.Context, s *stack.Stack) error {
	if err := s.ApplyCRD(ctx, opensandbox.CRD(opensandbox.CRDOptions{Record: &opensandbox.Record{}})); err != nil {
		return err
	}
	if err := s.ApplyPreset(ctx, "opensandbox-witnessed"); err != nil {
		return err
	}
	return s.WaitRecoveryPolicy(ctx, "opensandbox")
}
