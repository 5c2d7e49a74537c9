package witnessed

import (
	"context"
	"os"
	"testing"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/plane"
	"github.com/belay-dev/belay/test/integration/stack"
)

// shared is the stack of the tests that disturb nobody: two replicas of the webhook, as in
// production.
var shared *stack.Stack

func TestMain(m *testing.M) {
	os.Exit(stack.Main(m, &shared, 8, stack.Options{
		Plane: plane.Options{Audit: true},
		// With HTTP/2 the API server would ask one replica only.
		Webhooks: 2, WebhookFlags: []string{"--http2=false"},
	}, install))
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
