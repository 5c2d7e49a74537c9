package named

import (
	"context"
	"os"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/test/integration/plane"
	"github.com/belay-dev/belay/test/integration/stack"
)

// shared is the stack of the tests that disturb nobody: two replicas of the webhook,
// as in production. Tests that need other servers start their own.
var shared *stack.Stack

func TestMain(m *testing.M) {
	os.Exit(stack.Main(m, &shared, 6, stack.Options{
		Plane: plane.Options{Audit: true}, Presets: []string{"felis-restore", "otf"},
		// With HTTP/2 the API server would ask one replica only.
		Webhooks: 2, WebhookFlags: []string{"--http2=false"},
	}, install))
}

// install grants what the policies of these tests need, and waits for those of the presets.
func install(ctx context.Context, s *stack.Stack) error {
	if _, err := s.Kube.RbacV1().ClusterRoles().Create(ctx, rights(), metav1.CreateOptions{}); err != nil {
		return err
	}
	for _, name := range []string{"felis-restore", "otf"} {
		if err := s.WaitNamePolicy(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// rights is what belay needs for the policies of these tests, beside what the presets
// grant.
func rights() *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "belay-test-names", Labels: map[string]string{"rbac.belay.dev/aggregate-to-replacer": "true"}},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"batch"}, Resources: []string{"jobs", "cronjobs"}, Verbs: []string{"get", "delete"}},
			{APIGroups: []string{"apps"}, Resources: []string{"statefulsets"}, Verbs: []string{"get"}},
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "delete"}},
			{APIGroups: []string{""}, Resources: []string{"services", "configmaps"}, Verbs: []string{"get"}},
			{APIGroups: []string{"example.com"}, Resources: []string{"trains"}, Verbs: []string{"get", "delete"}},
		},
	}
}
