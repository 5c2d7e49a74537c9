package registration

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/facts"
)

const webhookAccount, controllerAccount = "serviceaccount belay-system/belay-webhook", "serviceaccount belay-system/belay-controller"

// fine is what is observed when nothing is wrong.
func fine() observedPolicy {
	return observedPolicy{
		dependents: []kindFact{{resource: builders.Secrets()}},
		owner:      kindFact{resource: builders.Jobs()},
		rights: []rightFact{
			{account: webhookAccount, verb: "get", resource: "jobs.batch", allowed: true},
			{account: controllerAccount, verb: "watch", resource: "jobs.batch", allowed: true},
		},
	}
}

// TestAccept has a row for every reason. again says that the policy may become right
// without being changed.
func TestAccept(t *testing.T) {
	t.Parallel()
	resource := func(group, name string, namespaced bool) func(*observedPolicy) {
		return func(o *observedPolicy) {
			o.dependents[0].resource = v1alpha1.ResolvedResource{Group: group, Version: "v1", Kind: "Kind", Resource: name, Namespaced: namespaced}
		}
	}
	for name, c := range map[string]struct {
		spec     func(*v1alpha1.OwnerPolicySpec)
		observed func(*observedPolicy)
		reason   string
		message  string
		again    bool
	}{
		"nothing is wrong": {reason: v1alpha1.ReasonAccepted, message: "the policy is valid and belay has the rights that it needs"},
		"a name that is no expression": {
			spec: func(s *v1alpha1.OwnerPolicySpec) { s.Owner.Name = "object.metadata." }, reason: v1alpha1.ReasonInvalidExpression,
			message: "spec.owner.name: line 1, column 17: Syntax error",
		},
		"a name that gives a number": {
			spec: func(s *v1alpha1.OwnerPolicySpec) { s.Owner.Name = "1 + 2" }, reason: v1alpha1.ReasonInvalidExpression,
			message: "spec.owner.name: line 1, column 1: gives int, but must give a string",
		},
		"a selector that gives a string": {
			spec: func(s *v1alpha1.OwnerPolicySpec) { s.Owner.Name, s.Owner.Selector = "", `"x"` }, reason: v1alpha1.ReasonInvalidExpression,
			message: "spec.owner.selector: line 1, column 1: gives string, but must give a map of strings",
		},
		"a condition on its second line": {
			spec: func(s *v1alpha1.OwnerPolicySpec) {
				s.MatchConditions = []v1alpha1.MatchCondition{{Name: "a", Expression: "true"}, {Name: "b", Expression: "true &&\n  nope"}}
			},
			reason:  v1alpha1.ReasonInvalidExpression,
			message: "spec.matchConditions[1].expression: line 2, column 3: undeclared reference to 'nope'",
		},
		"P19: a condition that uses namespaceObject": {
			spec: func(s *v1alpha1.OwnerPolicySpec) {
				s.MatchConditions = []v1alpha1.MatchCondition{{Name: "a", Expression: "namespaceObject.metadata.labels.team == 'x'"}}
			},
			reason:  v1alpha1.ReasonInvalidExpression,
			message: "spec.matchConditions[0].expression: line 1, column 1: undeclared reference to 'namespaceObject'",
		},
		"P19: an owner's name that uses namespaceObject": {
			spec: func(s *v1alpha1.OwnerPolicySpec) { s.Owner.Name = "namespaceObject.metadata.name" }, reason: v1alpha1.ReasonInvalidExpression,
			message: "spec.owner.name: line 1, column 1: undeclared reference to 'namespaceObject'",
		},
		"a selector that is malformed": {
			spec: func(s *v1alpha1.OwnerPolicySpec) {
				s.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}
			},
			reason: v1alpha1.ReasonInvalidSelector, message: `spec.selector.matchExpressions[0].operator: Invalid value: "Like"`,
		},
		"a namespaceSelector that is malformed": {
			spec: func(s *v1alpha1.OwnerPolicySpec) {
				s.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a b": "c"}}
			},
			reason: v1alpha1.ReasonInvalidSelector, message: `spec.namespaceSelector.matchLabels: Invalid value: "a b"`,
		},
		"a dependent that is not served": {
			observed: func(o *observedPolicy) { o.dependents[0] = kindFact{err: facts.ErrNoKind} }, reason: v1alpha1.ReasonUnknownKind, again: true,
			message: `spec.dependents[0]: the API server serves no kind "Secret" in "v1"; check apiVersion and kind, or install its CRD`,
		},
		"an owner that is not served": {
			observed: func(o *observedPolicy) { o.owner = kindFact{err: facts.ErrNoKind} }, reason: v1alpha1.ReasonUnknownKind, again: true,
			message: `spec.owner: the API server serves no kind "Job" in "batch/v1"; check apiVersion and kind, or install its CRD`,
		},
		"discovery that fails": {
			observed: func(o *observedPolicy) { o.owner = kindFact{err: errors.New("connection refused")} }, reason: v1alpha1.ReasonCheckFailed, again: true,
			message: `spec.owner: could not find out whether the API server serves "Job" in "batch/v1": connection refused`,
		},
		"belay's own kind as a dependent": {
			observed: resource("belay.dev", "anchors", true), reason: v1alpha1.ReasonForbiddenKind, message: "spec.dependents[0]: Secret is belay's own",
		},
		"leases as dependents": {
			observed: resource("coordination.k8s.io", "leases", true), reason: v1alpha1.ReasonForbiddenKind,
			message: "spec.dependents[0]: Secret must never wait for a webhook: leader elections and events depend on it",
		},
		"events as dependents":            {observed: resource("events.k8s.io", "events", true), reason: v1alpha1.ReasonForbiddenKind, message: "must never wait for a webhook"},
		"core events as dependents":       {observed: resource("", "events", true), reason: v1alpha1.ReasonForbiddenKind, message: "must never wait for a webhook"},
		"namespaces as dependents":        {observed: resource("", "namespaces", false), reason: v1alpha1.ReasonForbiddenKind, message: "must never wait for a webhook"},
		"reviews as dependents":           {observed: resource("authorization.k8s.io", "subjectaccessreviews", false), reason: v1alpha1.ReasonForbiddenKind, message: "is never stored"},
		"webhook entries as dependents":   {observed: resource("admissionregistration.k8s.io", "mutatingwebhookconfigurations", false), reason: v1alpha1.ReasonForbiddenKind, message: "is never sent to webhooks"},
		"O04: cluster-scoped, namespaced": {observed: resource("g", "kinds", false), reason: v1alpha1.ReasonScopeMismatch, message: "spec.dependents[0]: Kind is cluster-scoped and cannot be owned by the namespaced Job"},
		"O04: both cluster-scoped": {
			observed: func(o *observedPolicy) { resource("g", "kinds", false)(o); o.owner.resource = builders.ClusterRoles() }, reason: v1alpha1.ReasonAccepted,
			message: "the policy is valid",
		},
		"rights that are missing are all named": {
			observed: func(o *observedPolicy) { o.rights[0].allowed, o.rights[1].allowed = false, false }, reason: v1alpha1.ReasonMissingPermission, again: true,
			message: `serviceaccount belay-system/belay-webhook may not get jobs.batch; serviceaccount belay-system/belay-controller may not watch jobs.batch; add a ClusterRole labelled rbac.belay.dev/aggregate-to-owner-reader: "true" with these rights, as the presets do`,
		},
		"rights that could not be found out": {
			observed: func(o *observedPolicy) { o.rights[0].err = errors.New("connection refused") }, reason: v1alpha1.ReasonCheckFailed, again: true,
			message: "could not find out whether serviceaccount belay-system/belay-webhook may get jobs.batch: connection refused",
		},
		"of two faults the first is told": {
			spec: func(s *v1alpha1.OwnerPolicySpec) { s.Owner.Name = "" }, observed: func(o *observedPolicy) { o.owner.err = facts.ErrNoKind },
			reason: v1alpha1.ReasonInvalidExpression, message: "spec.owner.selector: the expression is empty",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := builders.MakeOwnerPolicy("otf").Generation(7)
			if c.spec != nil {
				p.Spec(c.spec)
			}
			o := fine()
			if c.observed != nil {
				c.observed(&o)
			}
			got := accept(p.Obj(), o)
			if got.reason != c.reason || got.again != c.again || !strings.Contains(got.message, c.message) {
				t.Errorf("got %s, again %t: %s", got.reason, got.again, got.message)
			}
			if accepted := c.reason == v1alpha1.ReasonAccepted; got.ok != accepted || (got.inForce != nil) != accepted {
				t.Errorf("ok %t, in force %+v", got.ok, got.inForce)
			}
		})
	}
}

func TestWhatIsAcceptedIsPutInForceWithItsResources(t *testing.T) {
	t.Parallel()
	p := builders.MakeOwnerPolicy("otf").Generation(7).Obj()
	want := builders.MakeOwnerPolicy("otf").Generation(7).InForce(builders.Jobs(), builders.Secrets()).Obj().Status.InForce
	got := accept(p, fine()).inForce
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	p.Spec.Dependents[0].Kind = "changed later"
	if got.Spec.Dependents[0].Kind != "Secret" {
		t.Error("the spec in force is not a copy")
	}
}

func TestMessagesFitIntoACondition(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "x"} { // so that one of them is cut within a rune
		o := fine()
		o.owner = kindFact{err: errors.New(prefix + strings.Repeat("é", 40_000))}
		got := accept(builders.MakeOwnerPolicy("otf").Obj(), o).message
		if len(got) > 1100 || !utf8.ValidString(got) || !strings.HasSuffix(got, "…") {
			t.Errorf("%d bytes, valid %t", len(got), utf8.ValidString(got))
		}
	}
}
