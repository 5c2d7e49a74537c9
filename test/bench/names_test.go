package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/test/fixtures/otf"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// BenchmarkNames compares creates of Jobs that nobody runs, under names that are free:
// in a namespace that did not opt in; marked and looked up (one GET); with the look for
// Pods of an earlier run (two LISTs more); and with simultaneous creates serialized
// (one write of a Lease more).
func BenchmarkNames(b *testing.B) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	s, err := stack.Start(ctx, stack.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := s.Stop(); err != nil {
			b.Error(err)
		}
	}()
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "belay-bench", Labels: map[string]string{"rbac.belay.dev/aggregate-to-replacer": "true"}},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, Verbs: []string{"get", "delete"}},
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}},
		},
	}
	if err := s.Client.Create(ctx, role); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		compare(ctx, b, named(ctx, b, s))
	}
}

func named(ctx context.Context, b *testing.B, s *stack.Stack) []*variant {
	b.Helper()
	var vs []*variant
	for _, c := range []struct {
		name   string
		change func(*v1alpha1.NamePolicySpec)
	}{
		{"none", nil},
		{"named", func(s *v1alpha1.NamePolicySpec) { s.WaitForPods = new(false) }},
		{"named-pods", func(*v1alpha1.NamePolicySpec) {}},
		{"named-serialize", func(s *v1alpha1.NamePolicySpec) {
			s.WaitForPods, s.Racing = new(false), v1alpha1.RacingSerialize
		}},
	} {
		mode := v1alpha1.ModeEnforce
		if c.change == nil {
			mode = ""
		}
		ns, err := s.NewNamespace(ctx, c.name, mode)
		if err != nil {
			b.Fatal(err)
		}
		labels := map[string]string{"bench": ns}
		if c.change != nil {
			p := builders.MakeNamePolicy(ns).Spec(func(s *v1alpha1.NamePolicySpec) {
				s.Selector = &metav1.LabelSelector{MatchLabels: labels}
				c.change(s)
			}).Obj()
			p.UID, p.Generation = "", 0
			if err := s.Client.Create(ctx, p); err != nil {
				b.Fatal(err)
			}
			if err := s.WaitNamePolicy(ctx, ns); err != nil {
				b.Fatal(err)
			}
		}
		nobody := "example.com/nobody"
		vs = append(vs, &variant{name: c.name, namespace: ns, create: func(ctx context.Context, i int) error {
			j := otf.Job(ns, fmt.Sprintf("run-%05d", i), "job-1")
			j.Labels, j.Annotations, j.Spec.ManagedBy = labels, map[string]string{"work": "one"}, &nobody
			return s.Client.Create(ctx, j)
		}})
	}
	return vs
}
