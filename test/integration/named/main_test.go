package named

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/test/integration/plane"
	"github.com/belay-dev/belay/test/integration/stack"
)

// shared is the stack of the tests that disturb nobody: two replicas of the webhook,
// as in production. Tests that need other servers start their own.
var shared *stack.Stack

func TestMain(m *testing.M) {
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
	shared, err = stack.Start(ctx, stack.Options{
		Plane: plane.Options{Audit: true}, Presets: []string{"felis-restore", "otf"},
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
	if _, err := shared.Kube.RbacV1().ClusterRoles().Create(ctx, rights(), metav1.CreateOptions{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for _, name := range []string{"felis-restore", "otf"} {
		if err := shared.WaitNamePolicy(ctx, name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			for _, p := range append(shared.Controllers(), shared.Webhooks()...) {
				fmt.Fprintln(os.Stderr, p.Name, p.Tail(30))
			}
			return 1
		}
	}
	return m.Run()
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
