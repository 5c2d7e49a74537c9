package hostile

import (
	"context"
	"os"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/plane"
	"github.com/belay-dev/belay/test/integration/stack"
)

// shared is the stack of these tests: one webhook, whose memory is looked at.
var shared *stack.Stack

func TestMain(m *testing.M) {
	os.Exit(stack.Main(m, &shared, 1, stack.Options{Plane: plane.Options{}, Presets: []string{"otf"}, FaultyWebhook: true}, install))
}

func install(ctx context.Context, s *stack.Stack) error {
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "belay-test-hostile", Labels: map[string]string{"rbac.belay.dev/aggregate-to-replacer": "true"}},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, Verbs: []string{"get", "delete"}},
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list"}},
		},
	}
	if _, err := s.Kube.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := s.ApplyCRD(ctx, opensandbox.CRD(opensandbox.CRDOptions{Record: &opensandbox.Record{}})); err != nil {
		return err
	}
	if err := s.ApplyPreset(ctx, "opensandbox-witnessed"); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, stack.Bound)
	defer cancel()
	if err := s.WaitPolicy(wait, "otf"); err != nil {
		return err
	}
	return s.WaitRecoveryPolicy(wait, "opensandbox")
}
