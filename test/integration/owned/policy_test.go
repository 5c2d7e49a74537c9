package owned

import (
	"fmt"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// What is wrong with a policy stands in its status, with the place.
func TestAPolicySaysWhatIsWrongWithIt(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1alpha1.OwnerPolicySpec)
		reason string
		parts  []string
	}{
		"an expression that does not compile": {
			func(s *v1alpha1.OwnerPolicySpec) { s.Owner.Name = "object.metadata.name +\n  nope" },
			v1alpha1.ReasonInvalidExpression, []string{"spec.owner.name: line 2, column 3", "nope"},
		},
		"an expression of the wrong type": {
			func(s *v1alpha1.OwnerPolicySpec) { s.Owner.Name = "1 + 1" },
			v1alpha1.ReasonInvalidExpression, []string{"spec.owner.name: line 1, column 1", "gives int, but must give a string"},
		},
		"P19 a condition that uses namespaceObject": {
			func(s *v1alpha1.OwnerPolicySpec) {
				s.MatchConditions = []v1alpha1.MatchCondition{{Name: "x", Expression: "namespaceObject.metadata.name == 'a'"}}
			},
			v1alpha1.ReasonInvalidExpression, []string{"spec.matchConditions[0].expression: line 1, column 1", "namespaceObject"},
		},
		"a condition with a field that requests do not have": {
			func(s *v1alpha1.OwnerPolicySpec) {
				s.MatchConditions = []v1alpha1.MatchCondition{{Name: "x", Expression: `request.nonsense == "x"`}}
			},
			v1alpha1.ReasonInvalidExpression, []string{"spec.matchConditions[0].expression", "undefined field 'nonsense'"},
		},
		"an owner of an unknown kind": {
			func(s *v1alpha1.OwnerPolicySpec) { s.Owner.Kind, s.Owner.APIVersion = "Jobb", "batch/v1" },
			v1alpha1.ReasonUnknownKind, []string{`spec.owner: the API server serves no kind "Jobb" in "batch/v1"`},
		},
		"a dependent of an unknown kind": {
			func(s *v1alpha1.OwnerPolicySpec) {
				s.Dependents = append(s.Dependents, v1alpha1.Kind{APIVersion: "example.com/v1", Kind: "Thing"})
			},
			v1alpha1.ReasonUnknownKind, []string{`spec.dependents[1]`, `"Thing"`},
		},
		"a cluster-scoped dependent of a namespaced owner": {
			func(s *v1alpha1.OwnerPolicySpec) {
				s.Dependents = []v1alpha1.Kind{{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole"}}
			},
			v1alpha1.ReasonScopeMismatch, []string{"spec.dependents[0]"},
		},
		"P07 leases": {
			func(s *v1alpha1.OwnerPolicySpec) {
				s.Dependents = []v1alpha1.Kind{{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}}
			},
			v1alpha1.ReasonForbiddenKind, []string{"spec.dependents[0]"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			p := newPolicy("wrong-"+fmt.Sprintf("%x", len(name))+strings.ToLower(c.reason), c.change)
			if err := shared.Client.Create(ctx, p); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = shared.Client.Delete(testContext(t), p) })
			waitCondition(t, shared, p.Name, v1alpha1.ConditionAccepted, metav1.ConditionFalse, c.reason, c.parts...)
			waitCondition(t, shared, p.Name, v1alpha1.ConditionRegistered, metav1.ConditionFalse, v1alpha1.ReasonNotAccepted)
			var live admissionregistrationv1.MutatingWebhookConfiguration
			if err := shared.Client.Get(ctx, client.ObjectKey{Name: "belay"}, &live); err != nil {
				t.Fatal(err)
			}
			for _, w := range live.Webhooks {
				if strings.HasPrefix(w.Name, p.Name+".") {
					t.Error("it is registered all the same")
				}
			}
		})
	}
}

// What the schema can refuse, it refuses at once.
func TestTheSchemaRefuses(t *testing.T) {
	ctx := testContext(t)
	for name, c := range map[string]struct {
		change func(*v1alpha1.OwnerPolicySpec)
		part   string
	}{
		"neither name nor selector": {func(s *v1alpha1.OwnerPolicySpec) { s.Owner.Name = "" }, "exactly one of name and selector"},
		"both name and selector":    {func(s *v1alpha1.OwnerPolicySpec) { s.Owner.Selector = "{}" }, "exactly one of name and selector"},
		"no dependents":             {func(s *v1alpha1.OwnerPolicySpec) { s.Dependents = []v1alpha1.Kind{} }, "spec.dependents"},
		"belay's own kinds": {func(s *v1alpha1.OwnerPolicySpec) {
			s.Dependents = []v1alpha1.Kind{{APIVersion: "belay.dev/v1alpha1", Kind: "Anchor"}}
		}, "belay's own kinds"},
		"too short a deadline": {deadline(1e9), "between 5s and 720h"},
		"too long a time-out":  {func(s *v1alpha1.OwnerPolicySpec) { s.TimeoutSeconds = 30 }, "spec.timeoutSeconds"},
		"an unknown action":    {func(s *v1alpha1.OwnerPolicySpec) { s.WhenUnresolved = "Maybe" }, "spec.whenUnresolved"},
	} {
		t.Run(name, func(t *testing.T) {
			err := shared.Client.Create(ctx, newPolicy("refused", c.change))
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), c.part) {
				t.Errorf("got %v, want an error about %q", err, c.part)
			}
		})
	}
	p := newPolicy("a.dot", nil)
	if err := shared.Client.Create(ctx, p); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "DNS label") {
		t.Errorf("a name with a dot: %v", err)
	}
}

// A policy that is broken by a change goes on with its last good version, through a
// restart of everything, and says so.
func TestTheLastGoodVersionKeepsWorking(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	labels := policy(ctx, t, shared, "last-good", nil)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	var p v1alpha1.OwnerPolicy
	eventually(ctx, t, "the policy is broken", func() error {
		if err := shared.Client.Get(ctx, client.ObjectKey{Name: "last-good"}, &p); err != nil {
			return err
		}
		p.Spec.Owner.Name = "object.metadata."
		return shared.Client.Update(ctx, &p)
	})
	waitCondition(t, shared, p.Name, v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalidExpression, "spec.owner.name: line 1, column 17")
	waitCondition(t, shared, p.Name, v1alpha1.ConditionRegistered, metav1.ConditionTrue, v1alpha1.ReasonRegisteredPrevious, "generation 1 goes on working")
	s := create(ctx, t, shared.Kube, secret(ns, "still", labels))
	anchorOf(ctx, t, shared, s)

	eventually(ctx, t, "the policy is mended", func() error {
		if err := shared.Client.Get(ctx, client.ObjectKey{Name: "last-good"}, &p); err != nil {
			return err
		}
		p.Spec.Owner.Name = `""`
		return shared.Client.Update(ctx, &p)
	})
	if err := shared.WaitPolicy(ctx, "last-good"); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the new version asks for no owner", func() error {
		s, err := shared.Kube.CoreV1().Secrets(ns).Create(ctx, unnamed(ns, labels), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if len(s.OwnerReferences) > 0 {
			return fmt.Errorf("owned by %+v", s.OwnerReferences)
		}
		return nil
	})
}

// A policy that is deleted takes its registration with it, and creates that fall
// in between are admitted.
func TestADeletedPolicyIsNotInTheWay(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	labels := policy(ctx, t, shared, "deleted", func(s *v1alpha1.OwnerPolicySpec) { s.FailurePolicy = v1alpha1.FailureFail })
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	if err := shared.Client.Delete(ctx, newPolicy("deleted", nil)); err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		if _, err := shared.Kube.CoreV1().Secrets(ns).Create(ctx, secret(ns, fmt.Sprintf("s-%d", i), labels), metav1.CreateOptions{}); err != nil {
			t.Fatalf("create %d: %v", i, err)
		}
	}
	eventually(ctx, t, "the entry is gone", func() error {
		var live admissionregistrationv1.MutatingWebhookConfiguration
		if err := shared.Client.Get(ctx, client.ObjectKey{Name: "belay"}, &live); err != nil {
			return err
		}
		for _, w := range live.Webhooks {
			if w.Name == "deleted.owner.belay.dev" {
				return fmt.Errorf("it is still there")
			}
		}
		return nil
	})
}
