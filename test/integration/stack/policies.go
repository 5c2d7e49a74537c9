package stack

import (
	"context"
	"fmt"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// TestNamePolicy registers a NamePolicy that is the test's own, and goes with it: it acts on
// objects with the label test=NAME only, which it returns. Their work is the annotation "work".
// change may be nil.
func (s *Stack) TestNamePolicy(ctx context.Context, t testing.TB, name string, change func(*v1alpha1.NamePolicySpec)) map[string]string {
	t.Helper()
	labels := map[string]string{"test": name}
	p := builders.MakeNamePolicy(name).Spec(func(s *v1alpha1.NamePolicySpec) {
		s.Selector = &metav1.LabelSelector{MatchLabels: labels}
		if change != nil {
			change(s)
		}
	}).Obj()
	p.UID, p.Generation = "", 0
	if err := s.Client.Create(ctx, p); err != nil {
		t.Fatal(err)
	}
	Cleanup(t, func(ctx context.Context) { _ = s.Client.Delete(ctx, p) })
	wait, cancel := context.WithTimeout(ctx, Bound)
	defer cancel()
	if err := s.WaitNamePolicy(wait, name); err != nil {
		t.Fatal(err)
	}
	return labels
}

// GuardJobsAndSandboxes grants what NamePolicies about Jobs need, and installs BatchSandbox with
// the preset whose Pods have sidecars. It waits for that and for the preset otf, which the stack
// has.
func GuardJobsAndSandboxes(ctx context.Context, s *Stack) error {
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "belay-test-jobs", Labels: map[string]string{"rbac.belay.dev/aggregate-to-replacer": "true"}},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, Verbs: []string{"get", "delete"}},
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list"}},
		},
	}
	if _, err := s.Kube.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating ClusterRole %s: %w", role.Name, err)
	}
	if err := s.ApplyCRD(ctx, opensandbox.CRD(opensandbox.CRDOptions{Record: &opensandbox.Record{}})); err != nil {
		return err
	}
	if err := s.ApplyPreset(ctx, "opensandbox-witnessed"); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, Bound)
	defer cancel()
	if err := s.WaitPolicy(wait, "otf"); err != nil {
		return err
	}
	return s.WaitRecoveryPolicy(wait, "opensandbox")
}
