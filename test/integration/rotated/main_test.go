package rotated

import (
	"context"
	"os"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/test/integration/plane"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// shared is the stack of the tests that leave its CA and its processes as they are, or take
// turns. Others start their own.
var shared *stack.Stack

func TestMain(m *testing.M) {
	os.Exit(stack.Main(m, &shared, 3, stack.Options{
		Plane: plane.Options{Audit: true}, Presets: []string{"otf"},
		// With HTTP/2 the API server would ask one replica only.
		Webhooks: 2, WebhookFlags: []string{"--http2=false", "--certificate-life=2m"},
		ControllerFlags: []string{"--ca-settle=5s"},
	}, func(ctx context.Context, s *stack.Stack) error { return install(ctx, s, true) }))
}

// guarded is the policy of the objects that are created all the time.
const guarded = "guarded"

// install installs the policy, and says where the replicas are.
func install(ctx context.Context, s *stack.Stack, wait bool) error {
	p := builders.MakeOwnerPolicy(guarded).Spec(func(s *v1alpha1.OwnerPolicySpec) {
		s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"test": guarded}}
		s.Owner.Name = `"owner"`
		s.FailurePolicy = v1alpha1.FailureFail
	}).Obj()
	p.UID, p.Generation = "", 0
	if err := s.Client.Create(ctx, p); err != nil {
		return err
	}
	if !wait {
		return nil
	}
	return s.WaitPolicy(ctx, guarded)
}
