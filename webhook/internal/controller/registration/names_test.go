package registration

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/facts"
)

// trains are a custom resource.
func trains() v1alpha1.ResolvedResource {
	return v1alpha1.ResolvedResource{Group: "example.com", Version: "v1", Kind: "Train", Resource: "trains", Namespaced: true}
}

// fineNames is what is observed of a policy about Jobs when nothing is wrong.
func fineNames() observedNames {
	return observedNames{
		kinds: []kindFact{{resource: builders.Jobs()}},
		rights: []rightFact{
			{account: webhookAccount, verb: "get", resource: "jobs.batch", allowed: true},
			{account: webhookAccount, verb: "delete", resource: "jobs.batch", allowed: true},
			{account: webhookAccount, verb: "list", resource: "pods", allowed: true},
		},
	}
}

// TestAcceptName has a row for every reason, and for every field that holds an expression.
func TestAcceptName(t *testing.T) {
	t.Parallel()
	resource := func(group, name string) func(*observedNames) {
		return func(o *observedNames) {
			o.kinds[0].resource = v1alpha1.ResolvedResource{Group: group, Version: "v1", Kind: "Kind", Resource: name}
		}
	}
	custom := func(o *observedNames) { o.kinds[0].resource = trains() }
	for name, c := range map[string]struct {
		spec     func(*v1alpha1.NamePolicySpec)
		observed func(*observedNames)
		reason   string
		message  string
		again    bool
	}{
		"nothing is wrong": {reason: v1alpha1.ReasonAccepted, message: "the policy is valid and belay has the rights that it needs"},
		"identity that is no expression": {
			spec: func(s *v1alpha1.NamePolicySpec) { s.Identity = []string{"object", "object."} }, reason: v1alpha1.ReasonInvalidExpression,
			message: "spec.identity[1]: line 1, column 8: Syntax error",
		},
		"identity that is empty": {
			spec: func(s *v1alpha1.NamePolicySpec) { s.Identity = []string{""} }, reason: v1alpha1.ReasonInvalidExpression,
			message: "spec.identity[0]: the expression is empty",
		},
		"a prefix that gives a number": {
			spec: func(s *v1alpha1.NamePolicySpec) {
				s.Generate = &v1alpha1.NameGeneration{Prefix: "1", Key: []string{"1"}}
			},
			reason: v1alpha1.ReasonInvalidExpression, message: "spec.generate.prefix: line 1, column 1: gives int, but must give a string",
		},
		"a key that is no expression": {
			spec: func(s *v1alpha1.NamePolicySpec) {
				s.Generate = &v1alpha1.NameGeneration{Prefix: `"a"`, Key: []string{"1", "nope"}}
			},
			reason: v1alpha1.ReasonInvalidExpression, message: "spec.generate.key[1]: line 1, column 1: undeclared reference to 'nope'",
		},
		"verify on its second line": {
			spec: func(s *v1alpha1.NamePolicySpec) { s.Verify = "object.metadata.name +\n  nope" }, reason: v1alpha1.ReasonInvalidExpression,
			message: "spec.verify: line 2, column 3: undeclared reference to 'nope'",
		},
		"verify of a name that is not generated": {
			spec: func(s *v1alpha1.NamePolicySpec) { s.Verify = "generated" }, reason: v1alpha1.ReasonInvalidExpression,
			message: "spec.verify: line 1, column 1: undeclared reference to 'generated'",
		},
		"verify of a name that is generated": {
			spec: func(s *v1alpha1.NamePolicySpec) {
				s.Generate, s.Verify = &v1alpha1.NameGeneration{Prefix: `"a"`, Key: []string{"1"}}, "generated"
			},
			reason: v1alpha1.ReasonAccepted,
		},
		"finished that sees the new object": {
			spec: func(s *v1alpha1.NamePolicySpec) { s.Finished = "object.done" }, reason: v1alpha1.ReasonInvalidExpression,
			message: "spec.finished: line 1, column 1: undeclared reference to 'object'",
		},
		"succeeded that gives a string": {
			spec: func(s *v1alpha1.NamePolicySpec) { s.Succeeded = `"yes"` }, reason: v1alpha1.ReasonInvalidExpression,
			message: "spec.succeeded: line 1, column 1: gives string, but must give true or false",
		},
		"hold that is no expression": {
			spec: func(s *v1alpha1.NamePolicySpec) { s.Hold = "existing." }, reason: v1alpha1.ReasonInvalidExpression,
			message: "spec.hold: line 1, column 10: Syntax error",
		},
		"P19: identity that uses namespaceObject": {
			spec: func(s *v1alpha1.NamePolicySpec) { s.Identity = []string{"namespaceObject.metadata.name"} }, reason: v1alpha1.ReasonInvalidExpression,
			message: "spec.identity[0]: line 1, column 1: undeclared reference to 'namespaceObject'",
		},
		"a condition that is no expression": {
			spec: func(s *v1alpha1.NamePolicySpec) {
				s.MatchConditions = []v1alpha1.MatchCondition{{Name: "a", Expression: "true"}, {Name: "b", Expression: "nope"}}
			},
			reason: v1alpha1.ReasonInvalidExpression, message: "spec.matchConditions[1].expression: line 1, column 1: undeclared reference to 'nope'",
		},
		"a condition that the API server refuses": {
			spec: func(s *v1alpha1.NamePolicySpec) {
				s.MatchConditions = []v1alpha1.MatchCondition{{Name: "a", Expression: "request.dryrun"}}
			},
			reason: v1alpha1.ReasonInvalidExpression, message: "spec.matchConditions[0].expression: ",
		},
		"a selector that is malformed": {
			spec: func(s *v1alpha1.NamePolicySpec) {
				s.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}
			},
			reason: v1alpha1.ReasonInvalidSelector, message: `spec.selector.matchExpressions[0].operator: Invalid value: "Like"`,
		},
		"a namespaceSelector that is malformed": {
			spec: func(s *v1alpha1.NamePolicySpec) {
				s.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a b": "c"}}
			},
			reason: v1alpha1.ReasonInvalidSelector, message: `spec.namespaceSelector.matchLabels: Invalid value: "a b"`,
		},
		"a selector that is too long": {
			spec: func(s *v1alpha1.NamePolicySpec) {
				s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": strings.Repeat("x", 5000)}}
			},
			reason: v1alpha1.ReasonInvalidSelector, message: "spec.selector: has more than 4096 bytes",
		},
		"a kind that is not served": {
			observed: func(o *observedNames) { o.kinds[0] = kindFact{err: facts.ErrNoKind} }, reason: v1alpha1.ReasonUnknownKind, again: true,
			message: `spec.kinds[0]: the API server serves no kind "Job" in "batch/v1"; check apiVersion and kind, or install its CRD`,
		},
		"discovery that fails": {
			observed: func(o *observedNames) { o.kinds[0] = kindFact{err: errors.New("connection refused")} }, reason: v1alpha1.ReasonCheckFailed, again: true,
			message: `spec.kinds[0]: could not find out whether the API server serves "Job" in "batch/v1": connection refused`,
		},
		"belay's own kind":  {observed: resource("belay.dev", "anchors"), reason: v1alpha1.ReasonForbiddenKind, message: "spec.kinds[0]: Job is belay's own"},
		"leases":            {observed: resource("coordination.k8s.io", "leases"), reason: v1alpha1.ReasonForbiddenKind, message: "must never wait for a webhook"},
		"events":            {observed: resource("", "events"), reason: v1alpha1.ReasonForbiddenKind, message: "must never wait for a webhook"},
		"namespaces":        {observed: resource("", "namespaces"), reason: v1alpha1.ReasonForbiddenKind, message: "must never wait for a webhook"},
		"reviews":           {observed: resource("authorization.k8s.io", "subjectaccessreviews"), reason: v1alpha1.ReasonForbiddenKind, message: "is never stored"},
		"signing requests":  {observed: resource("certificates.k8s.io", "certificatesigningrequests"), reason: v1alpha1.ReasonForbiddenKind, message: "must never wait for a webhook"},
		"webhook entries":   {observed: resource("admissionregistration.k8s.io", "mutatingwebhookconfigurations"), reason: v1alpha1.ReasonForbiddenKind, message: "is never sent to webhooks"},
		"a custom resource": {observed: custom, spec: func(s *v1alpha1.NamePolicySpec) { s.Finished = "existing.done" }, reason: v1alpha1.ReasonAccepted},
		"Replace, and a custom resource that never ends": {
			observed: custom, reason: v1alpha1.ReasonInvalidSpec,
			message: "spec.finished: must say when a Job is finished, since spec.whenFinished is Replace; only Jobs and Pods say so themselves",
		},
		"Coalesce, and a custom resource that never ends": {
			observed: custom, spec: func(s *v1alpha1.NamePolicySpec) { s.WhenFinished = v1alpha1.FinishedCoalesce }, reason: v1alpha1.ReasonAccepted,
		},
		"Replace, and a Job of another group": {
			observed: func(o *observedNames) { o.kinds[0].resource.Group = "example.com" }, reason: v1alpha1.ReasonInvalidSpec, message: "spec.finished: must say when a Job is finished",
		},
		"rights that are missing are all named": {
			observed: func(o *observedNames) { o.rights[1].allowed, o.rights[2].allowed = false, false }, reason: v1alpha1.ReasonMissingPermission, again: true,
			message: `serviceaccount belay-system/belay-webhook may not delete jobs.batch; serviceaccount belay-system/belay-webhook may not list pods; add a ClusterRole labelled rbac.belay.dev/aggregate-to-replacer: "true" with these rights, as the presets do`,
		},
		"rights that could not be found out": {
			observed: func(o *observedNames) { o.rights[0].err = errors.New("connection refused") }, reason: v1alpha1.ReasonCheckFailed, again: true,
			message: "could not find out whether serviceaccount belay-system/belay-webhook may get jobs.batch: connection refused",
		},
		"of two faults the first is told": {
			spec: func(s *v1alpha1.NamePolicySpec) { s.Hold = "nope" }, observed: func(o *observedNames) { o.kinds[0].err = facts.ErrNoKind },
			reason: v1alpha1.ReasonInvalidExpression, message: "spec.hold: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := builders.MakeNamePolicy("restore").Generation(7)
			if c.spec != nil {
				p.Spec(c.spec)
			}
			o := fineNames()
			if c.observed != nil {
				c.observed(&o)
			}
			got := acceptName(p.Obj(), o)
			if got.reason != c.reason || got.again != c.again || !strings.Contains(got.message, c.message) {
				t.Errorf("got %s, again %t: %s", got.reason, got.again, got.message)
			}
			if accepted := c.reason == v1alpha1.ReasonAccepted; got.ok != accepted || (got.nameInForce != nil) != accepted || got.inForce != nil {
				t.Errorf("ok %t, in force %+v", got.ok, got.nameInForce)
			}
			if len(got.message) > 1100 {
				t.Errorf("a message of %d bytes", len(got.message))
			}
		})
	}
}

func TestANamePolicyThatIsAcceptedIsPutInForceWithItsResources(t *testing.T) {
	t.Parallel()
	two := func(s *v1alpha1.NamePolicySpec) {
		s.Kinds = append(s.Kinds, v1alpha1.Kind{APIVersion: "v1", Kind: "Pod"})
	}
	p := builders.MakeNamePolicy("restore").Generation(7).Spec(two).Obj()
	want := builders.MakeNamePolicy("restore").Generation(7).Spec(two).InForce(builders.Jobs(), builders.Pods()).Obj().Status.InForce
	o := fineNames()
	o.kinds = append(o.kinds, kindFact{resource: builders.Pods()})
	got := acceptName(p, o).nameInForce
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	p.Spec.Kinds[0].Kind = "changed later"
	if got.Spec.Kinds[0].Kind != "Job" {
		t.Error("the spec in force is not a copy")
	}
}

// namePolicy reads a NamePolicy back.
func (b *bench) namePolicy(name string) *v1alpha1.NamePolicy {
	b.t.Helper()
	var p v1alpha1.NamePolicy
	if err := b.client.Get(b.t.Context(), client.ObjectKey{Name: name}, &p); err != nil {
		b.t.Fatal(err)
	}
	return &p
}

// nameConditions are its conditions as type: status reason.
func (b *bench) nameConditions(name string) map[string]string {
	b.t.Helper()
	out := map[string]string{}
	for _, c := range b.namePolicy(name).Status.Conditions {
		out[c.Type] = string(c.Status) + " " + c.Reason
	}
	return out
}

// validating are the names of the validating entries, and mutatingNames of the mutating ones.
func (b *bench) validating() []string {
	b.t.Helper()
	var c admissionregistrationv1.ValidatingWebhookConfiguration
	if err := b.client.Get(b.t.Context(), client.ObjectKey{Name: ConfigurationName}, &c); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		b.t.Fatal(err)
	}
	var out []string
	for _, w := range c.Webhooks {
		out = append(out, w.Name)
	}
	return out
}

func (b *bench) mutatingNames() []string {
	b.t.Helper()
	m := b.mutating()
	if m == nil {
		return nil
	}
	var out []string
	for _, w := range m.Webhooks {
		out = append(out, w.Name)
	}
	return out
}

func TestANamePolicyIsAcceptedAndRegistered(t *testing.T) {
	t.Parallel()
	b := set(t, caSecret(t), builders.MakeNamePolicy("restore").Obj())
	b.reconcile()
	if diff := cmp.Diff(map[string]string{"Accepted": "True Accepted", "Registered": "True Registered"}, b.nameConditions("restore")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	in := b.namePolicy("restore").Status.InForce
	if in == nil || in.Generation != 1 || cmp.Diff([]v1alpha1.ResolvedResource{builders.Jobs()}, in.Kinds) != "" {
		t.Errorf("in force: %+v", in)
	}
	want := []string{"restore.name.belay.dev"}
	if diff := cmp.Diff(want, b.mutatingNames()) + cmp.Diff(want, b.validating()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	writes := b.writes
	if b.reconcile(); b.writes != writes {
		t.Errorf("%d writes for nothing", b.writes-writes)
	}
}

// TestPoliciesOfBothKindsMayShareAName: their entries and their paths differ.
func TestPoliciesOfBothKindsMayShareAName(t *testing.T) {
	t.Parallel()
	b := set(t, caSecret(t), builders.MakeNamePolicy("otf").Obj(), builders.MakeOwnerPolicy("otf").Obj())
	b.reconcile()
	if diff := cmp.Diff([]string{"otf.owner.belay.dev", "otf.name.belay.dev"}, b.mutatingNames()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	paths := []string{*b.mutating().Webhooks[0].ClientConfig.Service.Path, *b.mutating().Webhooks[1].ClientConfig.Service.Path}
	if diff := cmp.Diff([]string{"/mutate/owner/otf", "/mutate/name/otf"}, paths); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for _, c := range []map[string]string{b.conditions("otf"), b.nameConditions("otf")} {
		if diff := cmp.Diff(map[string]string{"Accepted": "True Accepted", "Registered": "True Registered"}, c); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
}

func TestTheLastGoodNameSpecKeepsWorking(t *testing.T) {
	t.Parallel()
	b := set(t, caSecret(t), builders.MakeNamePolicy("restore").Obj())
	b.reconcile()
	p := b.namePolicy("restore")
	p.Spec.Hold, p.Generation = "existing.", 2
	if err := b.client.Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	b.reconcile()
	if diff := cmp.Diff(map[string]string{"Accepted": "False InvalidExpression", "Registered": "True RegisteredPrevious"}, b.nameConditions("restore")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if in := b.namePolicy("restore").Status.InForce; in == nil || in.Generation != 1 || in.Spec.Hold != "" || len(b.mutatingNames()) != 1 {
		t.Errorf("in force: %+v", in)
	}
}

func TestANamePolicyThatWasNeverAcceptedIsNotRegistered(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec    func(*v1alpha1.NamePolicySpec)
		allowed bool
		reason  string
		soon    bool
	}{
		"without the rights":    {func(*v1alpha1.NamePolicySpec) {}, false, "MissingPermission", true},
		"without its CRD":       {func(s *v1alpha1.NamePolicySpec) { s.Kinds[0].Kind = "SpurJob" }, true, "UnknownKind", true},
		"with a bad expression": {func(s *v1alpha1.NamePolicySpec) { s.Identity = []string{"nope"} }, true, "InvalidExpression", false},
		"without spec.finished": {func(s *v1alpha1.NamePolicySpec) { s.Kinds[0].Kind = "Secret" }, true, "InvalidSpec", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := set(t, caSecret(t), builders.MakeNamePolicy("restore").Spec(c.spec).Obj())
			b.allowed = c.allowed
			result := b.reconcile()
			if diff := cmp.Diff(map[string]string{"Accepted": "False " + c.reason, "Registered": "False NotAccepted"}, b.nameConditions("restore")); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if b.mutating() != nil || (result.RequeueAfter <= recheckSoon) != c.soon {
				t.Errorf("next look in %s, %+v", result.RequeueAfter, b.mutating())
			}
		})
	}
}

// TestABadNamePolicyConcernsItselfAlone: neither the other kind's policies nor its own's.
func TestABadNamePolicyConcernsItselfAlone(t *testing.T) {
	t.Parallel()
	const refused = `object.metadata.name == "refused"`
	bad := builders.MakeNamePolicy("bad").Spec(func(s *v1alpha1.NamePolicySpec) {
		s.MatchConditions = []v1alpha1.MatchCondition{{Name: "x", Expression: refused}}
	})
	unaccepted := builders.MakeNamePolicy("unaccepted").Spec(func(s *v1alpha1.NamePolicySpec) { s.Hold = "nope" })
	b := set(t, caSecret(t), builders.MakeOwnerPolicy("otf").Obj(), builders.MakeNamePolicy("restore").Obj(), bad.Obj(), unaccepted.Obj())
	b.refuse = refusing(refused)
	b.reconcile()
	fine := map[string]string{"Accepted": "True Accepted", "Registered": "True Registered"}
	for name, c := range map[string]struct{ got, want map[string]string }{
		"otf":        {b.conditions("otf"), fine},
		"restore":    {b.nameConditions("restore"), fine},
		"bad":        {b.nameConditions("bad"), map[string]string{"Accepted": "True Accepted", "Registered": "False WriteFailed"}},
		"unaccepted": {b.nameConditions("unaccepted"), map[string]string{"Accepted": "False InvalidExpression", "Registered": "False NotAccepted"}},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
	if diff := cmp.Diff([]string{"otf.owner.belay.dev", "restore.name.belay.dev"}, b.mutatingNames()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestANamePolicyThatGoesTakesItsEntriesAlong: both of them.
func TestANamePolicyThatGoesTakesItsEntriesAlong(t *testing.T) {
	t.Parallel()
	b := set(t, caSecret(t), builders.MakeNamePolicy("restore").Obj(), builders.MakeNamePolicy("spur").Obj())
	b.reconcile()
	if err := b.client.Delete(t.Context(), b.namePolicy("restore")); err != nil {
		t.Fatal(err)
	}
	b.reconcile()
	want := []string{"spur.name.belay.dev"}
	if diff := cmp.Diff(want, b.mutatingNames()) + cmp.Diff(want, b.validating()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestAPolicyThatChangedMeanwhileIsNoFailure: a newer one is on its way.
func TestAPolicyThatChangedMeanwhileIsNoFailure(t *testing.T) {
	t.Parallel()
	b := set(t, caSecret(t), builders.MakeNamePolicy("restore").Obj(), builders.MakeNamePolicy("spur").Obj())
	stale := b.namePolicy("restore")
	changed := stale.DeepCopy()
	changed.Spec.Hold = "false"
	if err := b.client.Update(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	if _, err := b.r.accept(t.Context(), nameSubject{stale}); err != nil {
		t.Errorf("%v", err)
	}
	if err := b.client.Delete(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	if _, err := b.r.accept(t.Context(), nameSubject{stale}); err != nil {
		t.Errorf("%v", err)
	}
}

// TestObserveNameAsksForTheRightsThatThePolicyUses: no less, or it fails at work; no more,
// or a policy is refused for what it does not need.
func TestObserveNameAsksForTheRightsThatThePolicyUses(t *testing.T) {
	t.Parallel()
	const get, del, list = "get jobs.batch", "delete jobs.batch", "list pods"
	for name, c := range map[string]struct {
		spec func(*v1alpha1.NamePolicySpec)
		want []string
	}{
		"Jobs that are replaced":                     {func(*v1alpha1.NamePolicySpec) {}, []string{get, del, list}},
		"Jobs that are replaced, whatever Pods do":   {func(s *v1alpha1.NamePolicySpec) { s.WaitForPods = new(false) }, []string{get, del}},
		"waitForPods that was not defaulted is true": {func(s *v1alpha1.NamePolicySpec) { s.WaitForPods = nil }, []string{get, del, list}},
		"Jobs that are coalesced":                    {func(s *v1alpha1.NamePolicySpec) { s.WhenFinished = v1alpha1.FinishedCoalesce }, []string{get, list}},
		"Jobs that are rejected, whatever Pods do":   {func(s *v1alpha1.NamePolicySpec) { s.WhenFinished, s.WaitForPods = v1alpha1.FinishedReject, new(false) }, []string{get}},
		"Pods have no Pods":                          {func(s *v1alpha1.NamePolicySpec) { s.Kinds = []v1alpha1.Kind{{APIVersion: "v1", Kind: "Pod"}} }, []string{"get pods", "delete pods"}},
		"two kinds": {func(s *v1alpha1.NamePolicySpec) {
			s.Kinds = append(s.Kinds, v1alpha1.Kind{APIVersion: "v1", Kind: "Secret"})
		}, []string{get, del, "get secrets", "delete secrets", list}},
		"a kind that is not served is not asked for": {func(s *v1alpha1.NamePolicySpec) {
			s.Kinds = append([]v1alpha1.Kind{{APIVersion: "v1", Kind: "Nope"}}, s.Kinds...)
		}, []string{get, del, list}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := set(t)
			p := builders.MakeNamePolicy("restore").Spec(c.spec).Obj()
			o := b.r.observeName(t.Context(), p)
			var got []string
			for _, r := range o.rights {
				if r.account != webhookAccount || !r.allowed || r.err != nil {
					t.Errorf("%+v", r)
				}
				got = append(got, r.verb+" "+r.resource)
			}
			if diff := cmp.Diff(c.want, got); diff != "" || len(o.kinds) != len(p.Spec.Kinds) {
				t.Errorf("(-want +got)\n%s%+v", diff, o.kinds)
			}
		})
	}
}

// TestTheReviewsOfARightAreComplete: the account's groups count, and a right in all
// namespaces is asked for.
func TestTheReviewsOfARightAreComplete(t *testing.T) {
	t.Parallel()
	b := set(t)
	recorder := &recording{Client: b.client}
	b.r.client = recorder
	b.r.observeName(t.Context(), builders.MakeNamePolicy("restore").Obj())
	want := authorizationv1.SubjectAccessReviewSpec{
		User: "system:serviceaccount:belay-system:belay-webhook", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:belay-system", "system:authenticated"},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Version: "v1", Resource: "pods"},
	}
	if len(recorder.reviews) != 3 {
		t.Fatalf("%d reviews", len(recorder.reviews))
	}
	if diff := cmp.Diff(want, recorder.reviews[2]); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// namesAmong are the entries of NamePolicies and of an OwnerPolicy, as the reconciler
// makes them.
func namesAmong(names ...string) []admissionregistrationv1.MutatingWebhook {
	p := inForce{owners: []*v1alpha1.OwnerPolicy{plain("otf")}}
	for _, n := range names {
		p.names = append(p.names, named(n))
	}
	return render(p, settings{endpoint: service, ownNamespace: "belay-system", annotation: true}).Mutating
}

// TestOrder: the API server calls entries in their order, and others' keep their places.
func TestOrder(t *testing.T) {
	t.Parallel()
	const otf, annotation, a, b = "otf.owner.belay.dev", "annotation.belay.dev", "a.name.belay.dev", "b.name.belay.dev"
	const x, y = "x.example.com", "y.example.com"
	want := namesAmong("b", "a")
	for name, c := range map[string]struct{ live, merged []string }{
		"nothing is there":                      {nil, []string{otf, annotation, a, b}},
		"as it is wanted":                       {[]string{otf, annotation, a, b}, []string{otf, annotation, a, b}},
		"the other way round":                   {[]string{b, a, annotation, otf}, []string{otf, annotation, a, b}},
		"another's keeps its place in front":    {[]string{x, b, otf, a, annotation}, []string{x, otf, annotation, a, b}},
		"another's keeps its place in between":  {[]string{b, x, otf, y, a, annotation}, []string{otf, x, annotation, y, a, b}},
		"another's keeps its place at the end":  {[]string{b, otf, x}, []string{otf, annotation, x, a, b}},
		"two of another's keep their order":     {[]string{y, x, b}, []string{y, x, otf, annotation, a, b}},
		"one that goes leaves its place":        {[]string{"gone.name.belay.dev", x, b, a}, []string{x, otf, annotation, a, b}},
		"an owner that comes moves up to front": {[]string{annotation, a, b}, []string{otf, annotation, a, b}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var live config
			for _, n := range c.live {
				e := admissionregistrationv1.MutatingWebhook{Name: n}
				if i := slices.IndexFunc(want, func(w admissionregistrationv1.MutatingWebhook) bool { return w.Name == n }); i >= 0 {
					e = want[i]
				}
				live.entries = append(live.entries, e)
			}
			got, changed := plan(live, want, roots{}, now)
			if diff := cmp.Diff(c.merged, entryNames(got)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if again, twice := plan(got, want, roots{}, now); twice || cmp.Diff(entryNames(got), entryNames(again)) != "" {
				t.Errorf("it does not settle: %v", entryNames(again))
			}
			if !changed && !slices.Equal(c.live, c.merged) {
				t.Error("an order that differs is a reason to write")
			}
		})
	}
}

// TestNamesComeAfterOwners: the work of an object may be told by who owns it.
func TestNamesComeAfterOwners(t *testing.T) {
	t.Parallel()
	p := inForce{names: []*v1alpha1.NamePolicy{named("z"), named("a")}, owners: []*v1alpha1.OwnerPolicy{plain("y"), full()}}
	r := render(p, settings{endpoint: service, ownNamespace: "belay-system", annotation: true})
	var mutating, validating []string
	for _, w := range r.Mutating {
		mutating = append(mutating, w.Name)
	}
	for _, w := range r.Validating {
		validating = append(validating, w.Name)
	}
	if diff := cmp.Diff([]string{"full.owner.belay.dev", "y.owner.belay.dev", "annotation.belay.dev", "a.name.belay.dev", "z.name.belay.dev"}, mutating); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{"full.owner.belay.dev", "a.name.belay.dev", "z.name.belay.dev"}, validating); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestTheEntriesOfANamePolicyAreAsItsSpec: what the spec in force says, and not the newest.
func TestTheEntriesOfANamePolicyAreAsItsSpec(t *testing.T) {
	t.Parallel()
	p := builders.MakeNamePolicy("restore").Spec(func(s *v1alpha1.NamePolicySpec) {
		s.FailurePolicy, s.TimeoutSeconds = v1alpha1.FailureIgnore, 3
	}).InForce(builders.Jobs(), builders.ClusterRoles()).Obj()
	p.Spec.FailurePolicy, p.Spec.TimeoutSeconds = v1alpha1.FailureFail, 5
	before := p.Status.InForce.DeepCopy()
	r := render(inForce{names: []*v1alpha1.NamePolicy{p}}, settings{endpoint: service, ownNamespace: "belay-system"})
	m, v := r.Mutating[0], r.Validating[0]
	if *m.FailurePolicy != admissionregistrationv1.Ignore || *v.FailurePolicy != admissionregistrationv1.Ignore || *m.TimeoutSeconds != 3 || *v.TimeoutSeconds != 3 {
		t.Errorf("%+v %+v", m, v)
	}
	if *m.ReinvocationPolicy != admissionregistrationv1.NeverReinvocationPolicy {
		t.Errorf("the work would be taken from what other webhooks made of the object: %s", *m.ReinvocationPolicy)
	}
	if *v.SideEffects != admissionregistrationv1.SideEffectClassNoneOnDryRun {
		t.Errorf("N27: %s", *v.SideEffects)
	}
	scopes := []admissionregistrationv1.ScopeType{*m.Rules[0].Scope, *m.Rules[1].Scope}
	if diff := cmp.Diff([]admissionregistrationv1.ScopeType{admissionregistrationv1.NamespacedScope, admissionregistrationv1.ClusterScope}, scopes); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if *m.ClientConfig.Service.Path != "/mutate/name/restore" || *v.ClientConfig.Service.Path != "/validate/name/restore" {
		t.Errorf("%s %s", *m.ClientConfig.Service.Path, *v.ClientConfig.Service.Path)
	}
	plan(config{}, r.Mutating, roots{}, time.Time{})
	if diff := cmp.Diff(before, p.Status.InForce); diff != "" {
		t.Errorf("the policy was changed\n%s", diff)
	}
}

// TestAFailureToListNamePoliciesIsNoEmptyList: their entries stay.
func TestAFailureToListNamePoliciesIsNoEmptyList(t *testing.T) {
	t.Parallel()
	b := set(t, caSecret(t), builders.MakeNamePolicy("restore").Obj())
	b.reconcile()
	writes := b.writes
	b.r.client = &recording{Client: b.client, listErr: apierrors.NewForbidden(schema.GroupResource{Group: "belay.dev", Resource: "namepolicies"}, "", nil)}
	if _, err := b.r.Reconcile(t.Context(), reconcile.Request{}); err == nil || !strings.Contains(err.Error(), "listing name policies") {
		t.Errorf("%v", err)
	}
	if b.writes != writes || len(b.mutatingNames()) != 1 {
		t.Errorf("%d writes, %v", b.writes-writes, b.mutatingNames())
	}
}

// recording notes reviews, and fails lists of NamePolicies.
type recording struct {
	client.Client
	reviews []authorizationv1.SubjectAccessReviewSpec
	listErr error
}

func (r *recording) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	if review, ok := obj.(*authorizationv1.SubjectAccessReview); ok {
		r.reviews = append(r.reviews, review.Spec)
	}
	return r.Client.Create(ctx, obj, opts...)
}

func (r *recording) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, ok := list.(*v1alpha1.NamePolicyList); ok && r.listErr != nil {
		return r.listErr
	}
	return r.Client.List(ctx, list, opts...)
}
