package registration

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/entries"
	"github.com/belay-dev/belay/webhook/internal/facts"
)

// fineRecovery is what is observed of a policy when nothing is wrong.
func fineRecovery() observedRecovery {
	right := func(account, verb, resource string) rightFact {
		return rightFact{account: account, verb: verb, resource: resource, allowed: true}
	}
	return observedRecovery{
		kind: kindFact{resource: sandboxes()}, crd: crdOf(versionOf("v1alpha1")),
		readers: []rightFact{right(webhookAccount, "get", "pods"), right(controllerAccount, "watch", "pods")},
		drivers: []rightFact{right(controllerAccount, "list", "batchsandboxes.sandbox.opensandbox.io"), right(controllerAccount, "patch", "batchsandboxes.sandbox.opensandbox.io/status")},
	}
}

// TestAcceptRecovery has a row for every reason, and for every field that holds an
// expression or a selector.
func TestAcceptRecovery(t *testing.T) {
	t.Parallel()
	resource := func(group, name string) func(*observedRecovery) {
		return func(o *observedRecovery) {
			o.kind.resource = v1alpha1.ResolvedResource{Group: group, Version: "v1", Kind: "Kind", Resource: name, Namespaced: true}
		}
	}
	like := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}
	condition := func(expression string) func(*v1alpha1.RecoveryPolicySpec) {
		return func(s *v1alpha1.RecoveryPolicySpec) {
			s.MatchConditions = []v1alpha1.MatchCondition{{Name: "a", Expression: "true"}, {Name: "b", Expression: expression}}
		}
	}
	long := errors.New(strings.Repeat("x", 5000))
	for name, c := range map[string]struct {
		spec            func(*v1alpha1.RecoveryPolicySpec)
		observed        func(*observedRecovery)
		reason, message string
		again           bool
	}{
		"nothing is wrong": {reason: v1alpha1.ReasonAccepted, message: "the policy is valid and belay has the rights that it needs"},
		"resumeInFlight that is no expression": {
			spec: func(s *v1alpha1.RecoveryPolicySpec) { s.ResumeInFlight = "object." }, reason: v1alpha1.ReasonInvalidExpression,
			message: "spec.resumeInFlight: line 1, column 8: Syntax error",
		},
		"when that sees the request": {
			spec: func(s *v1alpha1.RecoveryPolicySpec) { s.Pods[0].When = "request.dryRun" }, reason: v1alpha1.ReasonInvalidExpression,
			message: "spec.pods[0].when: line 1, column 1: undeclared reference to 'request'",
		},
		"labels that are a text": {
			spec: func(s *v1alpha1.RecoveryPolicySpec) { s.Pods[0].Owner.Labels = `"a"` }, reason: v1alpha1.ReasonInvalidExpression,
			message: "spec.pods[0].owner.labels: line 1, column 1: gives string, but must give a map of strings",
		},
		"a condition that is no expression": {spec: condition("nope"), reason: v1alpha1.ReasonInvalidExpression, message: "spec.matchConditions[1].expression: line 1, column 1: undeclared reference to 'nope'"},
		"a condition that the API server refuses": {
			spec: condition("request.dryrun"), reason: v1alpha1.ReasonInvalidExpression, message: "spec.matchConditions[1].expression: ",
		},
		"a selector of Pods that is malformed": {
			spec: func(s *v1alpha1.RecoveryPolicySpec) {
				s.Pods = append(s.Pods, v1alpha1.PodSource{Selector: like, Owner: &v1alpha1.PodsByOwner{}})
			},
			reason: v1alpha1.ReasonInvalidSelector, message: `spec.pods[1].selector.matchExpressions[0].operator: Invalid value: "Like"`,
		},
		"a selector of Pods with a label that is none": {
			spec: func(s *v1alpha1.RecoveryPolicySpec) {
				s.Pods[0].Selector = metav1.LabelSelector{MatchLabels: map[string]string{"a b": "c"}}
			},
			reason: v1alpha1.ReasonInvalidSelector, message: `spec.pods[0].selector.matchLabels: Invalid value: "a b"`,
		},
		"a selector that is malformed": {spec: func(s *v1alpha1.RecoveryPolicySpec) { s.Selector = &like }, reason: v1alpha1.ReasonInvalidSelector, message: `spec.selector.matchExpressions[0].operator: Invalid value: "Like"`},
		"a namespaceSelector that is malformed": {
			spec: func(s *v1alpha1.RecoveryPolicySpec) { s.NamespaceSelector = &like }, reason: v1alpha1.ReasonInvalidSelector,
			message: `spec.namespaceSelector.matchExpressions[0].operator: Invalid value: "Like"`,
		},
		"a selector that is too long": {
			spec: func(s *v1alpha1.RecoveryPolicySpec) {
				s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": strings.Repeat("x", 5000)}}
			},
			reason: v1alpha1.ReasonInvalidSelector, message: "spec.selector: has more than 4096 bytes",
		},
		"a kind that is not served": {
			observed: func(o *observedRecovery) { o.kind = kindFact{err: facts.ErrNoKind} }, reason: v1alpha1.ReasonUnknownKind, again: true,
			message: `spec.resource: the API server serves no kind "BatchSandbox" in "sandbox.opensandbox.io/v1alpha1"; check apiVersion and kind, or install its CRD`,
		},
		"discovery that fails": {
			observed: func(o *observedRecovery) { o.kind = kindFact{err: errors.New("connection refused")} }, reason: v1alpha1.ReasonCheckFailed, again: true,
			message: `spec.resource: could not find out whether the API server serves "BatchSandbox" in "sandbox.opensandbox.io/v1alpha1": connection refused`,
		},
		"belay's own kind": {observed: resource("belay.dev", "anchors"), reason: v1alpha1.ReasonForbiddenKind, message: "spec.resource: BatchSandbox is belay's own"},
		"leases":           {observed: resource("coordination.k8s.io", "leases"), reason: v1alpha1.ReasonForbiddenKind, message: "must never wait for a webhook"},
		"a kind that is no custom resource": {
			observed: func(o *observedRecovery) { o.kind.resource, o.crd = builders.Jobs(), nil }, reason: v1alpha1.ReasonUnknownKind, again: true,
			message: "spec.resource: there is no CRD jobs.batch; install it, or name a custom resource",
		},
		"a CRD that cannot be read": {
			observed: func(o *observedRecovery) { o.crd, o.crdErr = nil, errors.New("forbidden") }, reason: v1alpha1.ReasonCheckFailed, again: true,
			message: "spec.resource: could not read the CRD: forbidden",
		},
		"a CRD that cannot be read, at length": {observed: func(o *observedRecovery) { o.crd, o.crdErr = nil, long }, reason: v1alpha1.ReasonCheckFailed, again: true, message: "xxx…"},
		"a resource that is cluster-scoped": {
			observed: func(o *observedRecovery) { o.kind.resource.Namespaced = false }, reason: v1alpha1.ReasonScopeMismatch,
			message: "spec.resource: BatchSandbox is cluster-scoped, and has no Pods of its own",
		},
		"a CRD that lacks the record": {
			observed: func(o *observedRecovery) { o.crd = crdOf(versionOf("v1alpha1", without("failedPodUIDs"))) }, reason: v1alpha1.ReasonProvenanceFieldMissing, again: true,
			message: "version v1alpha1: spec.recordPath: the schema has no field .status.failedPodUIDs",
		},
		"S06: a CRD without the status subresource": {
			observed: func(o *observedRecovery) { o.crd = crdOf(noStatus(versionOf("v1alpha1"))) }, reason: v1alpha1.ReasonStatusSubresourceMissing, again: true,
			message: "has no status subresource",
		},
		"another policy guards it": {
			observed: func(o *observedRecovery) { o.other = "older" }, reason: v1alpha1.ReasonOverlap, again: true,
			message: `spec.resource: RecoveryPolicy "older" guards batchsandboxes already, and an object has one record; change that policy, or delete it`,
		},
		"whether another one does is not found out": {
			observed: func(o *observedRecovery) { o.otherErr = errors.New("connection refused") }, reason: v1alpha1.ReasonCheckFailed, again: true,
			message: "could not find out which other policies there are: connection refused",
		},
		"belay may not read Pods": {
			observed: func(o *observedRecovery) { o.readers[0].allowed, o.readers[1].allowed = false, false }, reason: v1alpha1.ReasonMissingPermission, again: true,
			message: `serviceaccount belay-system/belay-webhook may not get pods; serviceaccount belay-system/belay-controller may not watch pods; add a ClusterRole labelled rbac.belay.dev/aggregate-to-recovery-reader: "true" with these rights, as the presets do`,
		},
		"belay may not write the status": {
			observed: func(o *observedRecovery) { o.drivers[1].allowed = false }, reason: v1alpha1.ReasonMissingPermission, again: true,
			message: `serviceaccount belay-system/belay-controller may not patch batchsandboxes.sandbox.opensandbox.io/status; add a ClusterRole labelled rbac.belay.dev/aggregate-to-recovery-driver: "true" with these rights, as the presets do`,
		},
		"what belay may is not found out": {
			observed: func(o *observedRecovery) { o.drivers[0].err = errors.New("connection refused") }, reason: v1alpha1.ReasonCheckFailed, again: true,
			message: "could not find out whether serviceaccount belay-system/belay-controller may list batchsandboxes.sandbox.opensandbox.io: connection refused",
		},
		"of two faults the first is told": {
			spec: func(s *v1alpha1.RecoveryPolicySpec) { s.Pods[0].When = "nope" }, observed: func(o *observedRecovery) { o.kind.err = facts.ErrNoKind },
			reason: v1alpha1.ReasonInvalidExpression, message: "spec.pods[0].when: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := builders.MakeRecoveryPolicy("opensandbox")
			if c.spec != nil {
				p.Spec(c.spec)
			}
			o := fineRecovery()
			if c.observed != nil {
				c.observed(&o)
			}
			got := acceptRecovery(p.Obj(), o)
			if got.reason != c.reason || got.again != c.again || !strings.Contains(got.message, c.message) || got.revised {
				t.Errorf("got %s, again %t, revised %t: %s", got.reason, got.again, got.revised, got.message)
			}
			if ok := c.reason == v1alpha1.ReasonAccepted; got.ok != ok || (got.recoveryInForce != nil) != ok || got.inForce != nil || got.nameInForce != nil {
				t.Errorf("ok %t, in force %+v", got.ok, got.recoveryInForce)
			}
			if len(got.message) > 1100 {
				t.Errorf("a message of %d bytes", len(got.message))
			}
		})
	}
}

// inForceOf is what acceptance puts in force of a policy.
func inForceOf(p *v1alpha1.RecoveryPolicy, schema v1alpha1.RecordSchema) *v1alpha1.AcceptedRecoveryPolicy {
	return &v1alpha1.AcceptedRecoveryPolicy{Generation: p.Generation, Spec: *p.Spec.DeepCopy(), Resource: sandboxes(), Record: schema}
}

func TestARecoveryPolicyThatIsAcceptedIsPutInForceWithItsSchema(t *testing.T) {
	t.Parallel()
	p := builders.MakeRecoveryPolicy("opensandbox").Obj()
	p.Generation = 7
	o := fineRecovery()
	o.crd = crdOf(versionOf("v1alpha1", record(func(p *props) { p.Nullable, p.MaxItems = true, new(int64(5)) })))
	got := acceptRecovery(p, o).recoveryInForce
	if diff := cmp.Diff(inForceOf(p, v1alpha1.RecordSchema{Cleared: v1alpha1.ClearNull, MaxItems: 5}), got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	p.Spec.Phases.Failed[0] = "changed later"
	if got.Spec.Phases.Failed[0] != "Failed" {
		t.Error("the spec in force is not a copy")
	}
}

// TestWhatIsInForceWhenANewSpecIsRefused: the last one that was accepted, as long as what it
// stands on is there; then nothing. How its record is cleared follows the CRD.
func TestWhatIsInForceWhenANewSpecIsRefused(t *testing.T) {
	t.Parallel()
	fineCRD := crdOf(versionOf("v1alpha1"))
	lost := crdOf(versionOf("v1alpha1", without("failedPodUIDs")))
	nullable := crdOf(versionOf("v1alpha1", record(func(p *props) { p.Nullable = true })))
	badExpression := func(s *v1alpha1.RecoveryPolicySpec) { s.ResumeInFlight = "object." }
	typingError := func(s *v1alpha1.RecoveryPolicySpec) { s.Phases.Failed = []v1alpha1.Phase{"Faild"} }
	wrongPath := func(s *v1alpha1.RecoveryPolicySpec) { s.RecordPath = ".status.nope" }
	remove, null := v1alpha1.RecordSchema{Cleared: v1alpha1.ClearRemove}, v1alpha1.RecordSchema{Cleared: v1alpha1.ClearNull}
	keep := func(o *observedRecovery) {}
	for name, c := range map[string]struct {
		spec     func(*v1alpha1.RecoveryPolicySpec)
		observed func(*observedRecovery)
		held     *apiextensionsv1.CustomResourceDefinition
		heldErr  error
		revised  bool
		want     *v1alpha1.RecordSchema // what is in force afterwards, if it is revised
	}{
		"a typing error":                                   {typingError, keep, fineCRD, nil, false, nil},
		"a wrong path":                                     {wrongPath, keep, fineCRD, nil, false, nil},
		"no expression":                                    {badExpression, keep, fineCRD, nil, false, nil},
		"another kind that is not there":                   {nil, func(o *observedRecovery) { o.kind = kindFact{err: facts.ErrNoKind}; o.crd = nil }, fineCRD, nil, false, nil},
		"another kind without a CRD":                       {nil, func(o *observedRecovery) { o.crd = nil }, fineCRD, nil, false, nil},
		"a right that is missing":                          {nil, func(o *observedRecovery) { o.readers[0].allowed = false }, fineCRD, nil, false, nil},
		"the CRD lost the field":                           {nil, func(o *observedRecovery) { o.crd = lost }, lost, nil, true, nil},
		"the CRD lost the field, and a typing error":       {typingError, func(o *observedRecovery) { o.crd = lost }, lost, nil, true, nil},
		"the CRD lost the field, and no expression":        {badExpression, keep, lost, nil, true, nil},
		"the CRD lost its status subresource":              {badExpression, keep, crdOf(noStatus(versionOf("v1alpha1"))), nil, true, nil},
		"the CRD lost the version":                         {badExpression, keep, crdOf(versionOf("v1")), nil, true, nil},
		"the CRD is gone":                                  {nil, func(o *observedRecovery) { o.kind = kindFact{err: facts.ErrNoKind}; o.crd = nil }, nil, nil, true, nil},
		"whether the CRD is there is not found out":        {nil, func(o *observedRecovery) { o.crd, o.crdErr = nil, errors.New("no") }, nil, errors.New("connection refused"), false, nil},
		"the field is nullable now, and no expression":     {badExpression, keep, nullable, nil, true, &null},
		"the field is nullable now, and a missing right":   {nil, func(o *observedRecovery) { o.crd = nullable; o.drivers[0].allowed = false }, nullable, nil, true, &null},
		"the field is nullable now, and all else is right": {nil, func(o *observedRecovery) { o.crd = nullable }, nullable, nil, false, &null},
		"all is right":                                     {nil, keep, fineCRD, nil, false, &remove},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := builders.MakeRecoveryPolicy("opensandbox").Obj()
			p.Generation = 1
			p.Status.InForce = inForceOf(p, remove)
			before := p.Status.InForce.DeepCopy()
			p.Generation = 2
			if c.spec != nil {
				c.spec(&p.Spec)
			}
			o := fineRecovery()
			o.held, o.heldErr = c.held, c.heldErr
			c.observed(&o)
			got := acceptRecovery(p, o)
			if got.revised != c.revised || (got.recoveryInForce != nil) != (c.want != nil) {
				t.Fatalf("revised %t, in force %+v: %s", got.revised, got.recoveryInForce, got.message)
			}
			if diff := cmp.Diff(before, p.Status.InForce); diff != "" {
				t.Errorf("the policy was changed\n%s", diff)
			}
			if c.want == nil {
				return
			}
			want := before
			want.Record = *c.want
			if got.ok {
				want.Generation = 2
			}
			if diff := cmp.Diff(want, got.recoveryInForce); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// served tells kinds, RecoveryPolicies' too.
type served struct{ kinds }

func (s served) Resolve(apiVersion, kind string) (v1alpha1.ResolvedResource, error) {
	if kind == "BatchSandbox" {
		return sandboxes(), nil
	}
	return s.kinds.Resolve(apiVersion, kind)
}

// setRecovery is a bench that knows CRDs and RecoveryPolicies.
func setRecovery(t *testing.T, objects ...client.Object) *bench {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme, apiextensionsv1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	b := &bench{t: t, allowed: true}
	own := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "belay-system", UID: "ns-uid"}}
	b.client = fake.NewClientBuilder().WithScheme(s).WithObjects(append(objects, own, caSecret(t))...).
		WithStatusSubresource(&v1alpha1.OwnerPolicy{}, &v1alpha1.NamePolicy{}, &v1alpha1.RecoveryPolicy{}).
		WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
				if review, ok := obj.(*authorizationv1.SubjectAccessReview); ok {
					review.Status.Allowed = b.allowed
					return nil
				}
				if err := b.count(obj); err != nil {
					return err
				}
				return c.Create(ctx, obj, opts...)
			},
			Update: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
				if err := b.count(obj); err != nil {
					return err
				}
				return c.Update(ctx, obj, opts...)
			},
		}).Build()
	b.r = &Reconciler{
		client: b.client, live: b.client, resolver: served{}, dampers: map[string]*damper{},
		o: Options{Endpoint: service, OwnNamespace: "belay-system", WebhookAccount: "belay-webhook", ControllerAccount: "belay-controller", CASecret: "belay-ca"},
	}
	return b
}

func (b *bench) recovery(name string) *v1alpha1.RecoveryPolicy {
	b.t.Helper()
	var p v1alpha1.RecoveryPolicy
	if err := b.client.Get(b.t.Context(), client.ObjectKey{Name: name}, &p); err != nil {
		b.t.Fatal(err)
	}
	return &p
}

// stands checks a policy's conditions, its generation in force, 0 for none, and whether it
// is registered in both phases.
func (b *bench) stands(name, accepted, registered string, generation int64) {
	b.t.Helper()
	p := b.recovery(name)
	got := map[string]string{}
	for _, c := range p.Status.Conditions {
		got[c.Type] = string(c.Status) + " " + c.Reason
	}
	if diff := cmp.Diff(map[string]string{"Accepted": accepted, "Registered": registered}, got); diff != "" {
		b.t.Errorf("%s: conditions (-want +got)\n%s", name, diff)
	}
	if now := (recoverySubject{p}).inForce(); now != generation {
		b.t.Errorf("%s: generation %d in force", name, now)
	}
	entry := name + ".recovery.belay.dev"
	if m, v := slices.Contains(b.mutatingNames(), entry), slices.Contains(b.validating(), entry); m != (generation > 0) || v != (generation > 0) {
		b.t.Errorf("%s: registered %t %t", name, m, v)
	}
}

// edit changes a policy's spec, as a client does.
func (b *bench) edit(name string, generation int64, change func(*v1alpha1.RecoveryPolicySpec)) {
	b.t.Helper()
	p := b.recovery(name)
	p.Generation = generation
	change(&p.Spec)
	if err := b.client.Update(b.t.Context(), p); err != nil {
		b.t.Fatal(err)
	}
}

// define puts the CRD there, anew.
func (b *bench) define(versions ...crdVersion) {
	b.t.Helper()
	crd := crdOf(versions...)
	if err := b.client.Delete(b.t.Context(), crd.DeepCopy()); client.IgnoreNotFound(err) != nil {
		b.t.Fatal(err)
	}
	if len(versions) == 0 {
		return
	}
	if err := b.client.Create(b.t.Context(), crd); err != nil {
		b.t.Fatal(err)
	}
}

func firstRecovery(name string) *v1alpha1.RecoveryPolicy {
	p := builders.MakeRecoveryPolicy(name).Obj()
	p.Generation = 1
	return p
}

func TestARecoveryPolicyIsAcceptedAndRegistered(t *testing.T) {
	t.Parallel()
	b := setRecovery(t, firstRecovery("opensandbox"), crdOf(versionOf("v1alpha1")))
	b.reconcile()
	b.stands("opensandbox", "True Accepted", "True Registered", 1)
	if diff := cmp.Diff(inForceOf(firstRecovery("opensandbox"), v1alpha1.RecordSchema{Cleared: v1alpha1.ClearRemove}), b.recovery("opensandbox").Status.InForce); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	writes, version := b.writes, b.recovery("opensandbox").ResourceVersion
	if b.reconcile(); b.writes != writes || b.recovery("opensandbox").ResourceVersion != version {
		t.Errorf("%d writes for nothing", b.writes-writes)
	}
}

// TestATypingErrorInANewSpecLeavesTheOldOneInForce: the guard does not go for it.
func TestATypingErrorInANewSpecLeavesTheOldOneInForce(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*v1alpha1.RecoveryPolicySpec){
		"UnknownPhase":           func(s *v1alpha1.RecoveryPolicySpec) { s.Phases.Failed[0] = "Faild" },
		"UnsuitableField":        func(s *v1alpha1.RecoveryPolicySpec) { s.PhasePath = ".status.nope" },
		"ProvenanceFieldMissing": func(s *v1alpha1.RecoveryPolicySpec) { s.RecordPath = ".status.nope" },
		"InvalidExpression":      func(s *v1alpha1.RecoveryPolicySpec) { s.Pods[0].When = "object." },
		"InvalidSelector": func(s *v1alpha1.RecoveryPolicySpec) {
			s.Pods[0].Selector = metav1.LabelSelector{MatchLabels: map[string]string{"a b": ""}}
		},
		"UnknownKind": func(s *v1alpha1.RecoveryPolicySpec) { s.Resource.Kind = "BatchSandbux" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setRecovery(t, firstRecovery("opensandbox"), crdOf(versionOf("v1alpha1")))
			b.reconcile()
			b.edit("opensandbox", 2, change)
			b.reconcile()
			b.stands("opensandbox", "False "+name, "True RegisteredPrevious", 1)
			if got := b.recovery("opensandbox").Status.InForce; cmp.Diff(firstRecovery("opensandbox").Spec, got.Spec) != "" {
				t.Errorf("%+v", got)
			}
			// And once more, when the CRD loses what the old one stands on.
			b.define(versionOf("v1alpha1", without("failedPodUIDs")))
			b.reconcile()
			if p := b.recovery("opensandbox"); p.Status.InForce != nil || len(b.mutatingNames())+len(b.validating()) > 0 {
				t.Errorf("half a guard: %+v", p.Status.InForce)
			}
		})
	}
}

// TestTheSpecInForceEndsWithItsFieldWhateverTheNewestSays: half a guard is none, and says so;
// and it is back when the field is.
func TestTheSpecInForceEndsWithItsFieldWhateverTheNewestSays(t *testing.T) {
	t.Parallel()
	full := versionOf("v1alpha1")
	for name, c := range map[string]struct {
		versions []crdVersion
		reason   string
	}{
		"the field is gone":         {[]crdVersion{versionOf("v1alpha1", without("failedPodUIDs"))}, "ProvenanceFieldMissing"},
		"the subresource is gone":   {[]crdVersion{noStatus(full)}, "StatusSubresourceMissing"},
		"the field is another":      {[]crdVersion{versionOf("v1alpha1", func(s map[string]props) { s["failedPodUIDs"] = textOf() })}, "UnsuitableField"},
		"a phase is gone":           {[]crdVersion{versionOf("v1alpha1", func(s map[string]props) { s["phase"] = textOf("Succeed") })}, "UnknownPhase"},
		"the version is not served": {[]crdVersion{versionOf("v1")}, "UnknownKind"},
		"the CRD is gone":           {nil, "UnknownKind"},
		"a new version lacks it":    {[]crdVersion{full, onlyServed(versionOf("v1", without("failedPodUIDs")))}, "ProvenanceFieldMissing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setRecovery(t, firstRecovery("opensandbox"), crdOf(full))
			b.reconcile()
			b.stands("opensandbox", "True Accepted", "True Registered", 1)
			b.define(c.versions...)
			if result := b.reconcile(); result.RequeueAfter != recheckSoon {
				t.Errorf("looked at again in %s", result.RequeueAfter)
			}
			b.stands("opensandbox", "False "+c.reason, "False NotAccepted", 0)
			b.define(versionOf("v1alpha1", record(func(p *props) { p.Nullable = true })))
			b.reconcile()
			b.stands("opensandbox", "True Accepted", "True Registered", 1)
			if got := b.recovery("opensandbox").Status.InForce.Record.Cleared; got != v1alpha1.ClearNull {
				t.Errorf("cleared by %s", got)
			}
		})
	}
}

// TestACRDThatCannotBeReadEndsNothing: an error is no absence.
func TestACRDThatCannotBeReadEndsNothing(t *testing.T) {
	t.Parallel()
	b := setRecovery(t, firstRecovery("opensandbox"), crdOf(versionOf("v1alpha1")))
	b.reconcile()
	b.r.live = unreadable{Reader: b.client, what: "crd"}
	b.reconcile()
	b.stands("opensandbox", "False CheckFailed", "True RegisteredPrevious", 1)
	b.r.live = b.client
	b.reconcile()
	b.stands("opensandbox", "True Accepted", "True Registered", 1)
}

// unreadable fails reads of one kind.
type unreadable struct {
	client.Reader
	what string
}

func (u unreadable) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if _, ok := obj.(*apiextensionsv1.CustomResourceDefinition); ok && u.what == "crd" {
		return apierrors.NewTimeoutError("slow", 1)
	}
	return u.Reader.Get(ctx, key, obj, opts...)
}

func (u unreadable) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, ok := list.(*v1alpha1.RecoveryPolicyList); ok && u.what == "policies" {
		return apierrors.NewTimeoutError("slow", 1)
	}
	return u.Reader.List(ctx, list, opts...)
}

// TestOneResourceHasOneGuard: the first that is in force, in whichever order they are looked
// at; the other follows when it goes.
func TestOneResourceHasOneGuard(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]string{"the first by name is first": "a", "the last by name is first": "b"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			second := map[string]string{"a": "b", "b": "a"}[first]
			b := setRecovery(t, firstRecovery(first), crdOf(versionOf("v1alpha1")))
			b.reconcile()
			if err := b.client.Create(t.Context(), firstRecovery(second)); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				b.reconcile()
				b.stands(first, "True Accepted", "True Registered", 1)
				b.stands(second, "False Overlap", "False NotAccepted", 0)
			}
			if m := meta.FindStatusCondition(b.recovery(second).Status.Conditions, "Accepted"); !strings.Contains(m.Message, `"`+first+`"`) {
				t.Errorf("%s", m.Message)
			}
			// A change of the first does not hand it over.
			b.edit(first, 2, func(s *v1alpha1.RecoveryPolicySpec) { s.TimeoutSeconds = 5 })
			b.reconcile()
			b.stands(first, "True Accepted", "True Registered", 2)
			b.stands(second, "False Overlap", "False NotAccepted", 0)
			if err := b.client.Delete(t.Context(), b.recovery(first)); err != nil {
				t.Fatal(err)
			}
			b.reconcile()
			b.stands(second, "True Accepted", "True Registered", 1)
			if diff := cmp.Diff([]string{second + ".recovery.belay.dev"}, b.mutatingNames()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
	t.Run("both at once", func(t *testing.T) {
		t.Parallel()
		b := setRecovery(t, firstRecovery("b"), firstRecovery("a"), crdOf(versionOf("v1alpha1")))
		b.reconcile()
		b.stands("a", "True Accepted", "True Registered", 1)
		b.stands("b", "False Overlap", "False NotAccepted", 0)
	})
	t.Run("it is not found out", func(t *testing.T) {
		t.Parallel()
		b := setRecovery(t, firstRecovery("a"), crdOf(versionOf("v1alpha1")))
		b.r.live = unreadable{Reader: b.client, what: "policies"}
		b.reconcile()
		b.stands("a", "False CheckFailed", "False NotAccepted", 0)
	})
	t.Run("the other is being deleted", func(t *testing.T) {
		t.Parallel()
		b := setRecovery(t, firstRecovery("a"), crdOf(versionOf("v1alpha1")))
		b.reconcile()
		p := b.recovery("a")
		p.Finalizers = []string{"example.com/wait"}
		if err := b.client.Update(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if err := b.client.Delete(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if err := b.client.Create(t.Context(), firstRecovery("b")); err != nil {
			t.Fatal(err)
		}
		b.reconcile()
		b.stands("b", "True Accepted", "True Registered", 1)
		if diff := cmp.Diff([]string{"b.recovery.belay.dev"}, b.mutatingNames()); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	})
	t.Run("another resource of that name", func(t *testing.T) {
		t.Parallel()
		b := setRecovery(t)
		other := firstRecovery("other")
		other.Status.InForce = inForceOf(other, v1alpha1.RecordSchema{Cleared: v1alpha1.ClearRemove})
		other.Status.InForce.Resource.Group = "example.com"
		if err := b.client.Create(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		if err := b.client.Status().Update(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		if name, err := b.r.otherGuard(t.Context(), firstRecovery("a"), sandboxes()); name != "" || err != nil {
			t.Errorf("%q %v", name, err)
		}
		// One that guards it already is not asked about others.
		if name, err := b.r.otherGuard(t.Context(), other, other.Status.InForce.Resource); name != "" || err != nil {
			t.Errorf("%q %v", name, err)
		}
		twin := other.DeepCopy()
		twin.Name = "twin"
		if name, err := b.r.otherGuard(t.Context(), twin, other.Status.InForce.Resource); name != "" || err != nil {
			t.Errorf("%q %v", name, err)
		}
		same := sandboxes()
		same.Group, same.Version = "example.com", "v9"
		if name, err := b.r.otherGuard(t.Context(), firstRecovery("a"), same); name != "other" || err != nil {
			t.Errorf("%q %v", name, err)
		}
	})
}

// TestObserveRecoveryAsksForTheRightsThatThePolicyUses: no less, or it fails at work; no more,
// or a policy is refused for what it does not need.
func TestObserveRecoveryAsksForTheRightsThatThePolicyUses(t *testing.T) {
	t.Parallel()
	readers := []string{
		"belay-webhook get pods", "belay-webhook list pods", "belay-webhook watch pods",
		"belay-controller get pods", "belay-controller list pods", "belay-controller watch pods",
	}
	const of = "batchsandboxes.sandbox.opensandbox.io"
	drivers := []string{"belay-controller get " + of, "belay-controller list " + of, "belay-controller watch " + of, "belay-controller patch " + of}
	for name, c := range map[string]struct {
		spec            func(*v1alpha1.RecoveryPolicySpec)
		readers, driver []string
	}{
		"it guards":           {func(s *v1alpha1.RecoveryPolicySpec) { s.Recover = v1alpha1.RecoverNever }, readers, drivers},
		"it brings back":      {func(s *v1alpha1.RecoveryPolicySpec) { s.Recover = v1alpha1.RecoverAuto }, readers, append(slices.Clone(drivers), "belay-controller patch "+of+"/status")},
		"a kind not served":   {func(s *v1alpha1.RecoveryPolicySpec) { s.Resource.Kind = "Nope" }, nil, nil},
		"what is not Auto":    {func(s *v1alpha1.RecoveryPolicySpec) { s.Recover = "" }, readers, drivers},
		"Pods named, not own": {func(s *v1alpha1.RecoveryPolicySpec) { s.Pods[0].Owner = nil; s.Pods[0].Names = &v1alpha1.PodsByName{} }, readers, drivers},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setRecovery(t, crdOf(versionOf("v1alpha1")))
			recorder := &recording{Client: b.client}
			b.r.client = recorder
			o := b.r.observeRecovery(t.Context(), builders.MakeRecoveryPolicy("opensandbox").Spec(c.spec).Obj())
			if (o.crd != nil) != (c.readers != nil) || o.crdErr != nil || o.held != nil {
				t.Errorf("%+v", o)
			}
			said := func(rights []rightFact) []string {
				var out []string
				for _, r := range rights {
					if !r.allowed || r.err != nil {
						t.Errorf("%+v", r)
					}
					out = append(out, strings.TrimPrefix(r.account, "serviceaccount belay-system/")+" "+r.verb+" "+r.resource)
				}
				return out
			}
			if diff := cmp.Diff(c.readers, said(o.readers)) + cmp.Diff(c.driver, said(o.drivers)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if len(recorder.reviews) != len(c.readers)+len(c.driver) {
				t.Errorf("%d reviews", len(recorder.reviews))
			}
			for _, r := range recorder.reviews {
				a := r.ResourceAttributes
				if a.Namespace != "" || a.Name != "" || r.NonResourceAttributes != nil || strings.Contains(a.Resource, "/") {
					t.Errorf("%+v", r)
				}
			}
			if name == "it brings back" {
				want := &authorizationv1.ResourceAttributes{Verb: "patch", Group: "sandbox.opensandbox.io", Version: "v1alpha1", Resource: "batchsandboxes", Subresource: "status"}
				if diff := cmp.Diff(want, recorder.reviews[len(recorder.reviews)-1].ResourceAttributes); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
			}
		})
	}
}

func TestAMissingRightKeepsAGuardFromBeingAccepted(t *testing.T) {
	t.Parallel()
	b := setRecovery(t, firstRecovery("opensandbox"), crdOf(versionOf("v1alpha1")))
	b.allowed = false
	b.reconcile()
	b.stands("opensandbox", "False MissingPermission", "False NotAccepted", 0)
	b.allowed = true
	b.reconcile()
	b.stands("opensandbox", "True Accepted", "True Registered", 1)
	b.allowed = false // taken away later: the guard goes on, and says what it lacks
	b.reconcile()
	b.stands("opensandbox", "False MissingPermission", "True RegisteredPrevious", 1)
}

// goldenEntries are the entries of a RecoveryPolicy that says everything.
const goldenEntries = `mutating:
- admissionReviewVersions:
  - v1
  clientConfig:
    service:
      name: belay-webhook
      namespace: belay-system
      path: /mutate/recovery/full
      port: 443
  failurePolicy: Ignore
  matchConditions:
  - expression: '!has(request.namespace) || !request.namespace.startsWith("kube-")'
    name: belay.not-kube
  - expression: request.userInfo.username != "alice"
    name: policy.not-alice
  - expression: request.userInfo.username != "system:serviceaccount:belay-system:belay-controller"
    name: belay.not-controller
  - expression: CONCERNED
    name: belay.concerned
  matchPolicy: Equivalent
  name: full.recovery.belay.dev
  namespaceSelector:
    matchExpressions:
    - key: belay.dev/mode
      operator: In
      values:
      - enforce
      - warn
    - key: kubernetes.io/metadata.name
      operator: NotIn
      values:
      - belay-system
      - kube-system
      - kube-public
      - kube-node-lease
    matchLabels:
      team: a
  objectSelector:
    matchLabels:
      app: box
  reinvocationPolicy: IfNeeded
  rules:
  - apiGroups:
    - sandbox.opensandbox.io
    apiVersions:
    - v1alpha1
    operations:
    - UPDATE
    resources:
    - batchsandboxes/status
    scope: Namespaced
  sideEffects: NoneOnDryRun
  timeoutSeconds: 5
validating:
- admissionReviewVersions:
  - v1
  clientConfig:
    service:
      name: belay-webhook
      namespace: belay-system
      path: /validate/recovery/full
      port: 443
  failurePolicy: Ignore
  matchConditions:
  - expression: '!has(request.namespace) || !request.namespace.startsWith("kube-")'
    name: belay.not-kube
  - expression: request.userInfo.username != "alice"
    name: policy.not-alice
  - expression: request.userInfo.username != "system:serviceaccount:belay-system:belay-controller"
    name: belay.not-controller
  - expression: CONCERNED
    name: belay.concerned
  matchPolicy: Equivalent
  name: full.recovery.belay.dev
  namespaceSelector:
    matchExpressions:
    - key: belay.dev/mode
      operator: In
      values:
      - enforce
      - warn
    - key: kubernetes.io/metadata.name
      operator: NotIn
      values:
      - belay-system
      - kube-system
      - kube-public
      - kube-node-lease
    matchLabels:
      team: a
  objectSelector:
    matchLabels:
      app: box
  rules:
  - apiGroups:
    - sandbox.opensandbox.io
    apiVersions:
    - v1alpha1
    operations:
    - UPDATE
    resources:
    - batchsandboxes/status
    scope: Namespaced
  sideEffects: NoneOnDryRun
  timeoutSeconds: 5
`

// fullRecovery is a policy in force that says everything, whose newest spec says something
// else.
func fullRecovery() *v1alpha1.RecoveryPolicy {
	p := builders.MakeRecoveryPolicy("full").Spec(func(s *v1alpha1.RecoveryPolicySpec) {
		s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "box"}}
		s.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}
		s.MatchConditions = []v1alpha1.MatchCondition{{Name: "not-alice", Expression: `request.userInfo.username != "alice"`}}
		s.FailurePolicy, s.TimeoutSeconds = v1alpha1.FailureIgnore, 5
	}).Obj()
	p.Status.InForce = inForceOf(p, v1alpha1.RecordSchema{Cleared: v1alpha1.ClearRemove})
	p.Spec.Selector, p.Spec.NamespaceSelector, p.Spec.MatchConditions, p.Spec.FailurePolicy, p.Spec.TimeoutSeconds = nil, nil, nil, v1alpha1.FailureFail, 1
	return p
}

func TestTheEntriesOfARecoveryPolicyAreAsTheGolden(t *testing.T) {
	t.Parallel()
	p := fullRecovery()
	before := p.DeepCopy()
	got, err := yaml.Marshal(render(inForce{recoveries: []*v1alpha1.RecoveryPolicy{p}}, settings{endpoint: service, ownNamespace: "belay-system", controllerAccount: "belay-controller"}))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := yaml.Marshal(map[string]string{"expression": concerned(p.Status.InForce.Spec).Expression})
	if err != nil {
		t.Fatal(err)
	}
	// Its text is TestConcerned's business.
	expression := strings.TrimSuffix(strings.TrimPrefix(string(raw), "expression: "), "\n")
	want := strings.ReplaceAll(goldenEntries, "CONCERNED", strings.ReplaceAll(expression, "\n", "\n    "))
	var wanted, have any
	if err := yaml.Unmarshal([]byte(want), &wanted); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(got, &have); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wanted, have); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(before, p); diff != "" {
		t.Errorf("the policy was changed\n%s", diff)
	}
}

// TestEveryRecoveryEntryKeepsTheRules: what must hold for each, whatever the policy says.
func TestEveryRecoveryEntryKeepsTheRules(t *testing.T) {
	t.Parallel()
	plain := firstRecovery("plain")
	plain.Status.InForce = inForceOf(plain, v1alpha1.RecordSchema{})
	r := render(inForce{recoveries: []*v1alpha1.RecoveryPolicy{plain, fullRecovery()}}, settings{endpoint: service, ownNamespace: "belay-system", controllerAccount: "belay-controller"})
	all := slices.Clone(r.Mutating)
	for _, v := range r.Validating {
		all = append(all, asMutating(v))
	}
	if len(all) != 4 {
		t.Fatalf("%d entries", len(all))
	}
	for _, w := range all {
		rule := w.Rules[0]
		if len(w.Rules) != 1 || !slices.Equal(rule.Operations, []admissionregistrationv1.OperationType{admissionregistrationv1.Update}) || !slices.Equal(rule.Resources, []string{"batchsandboxes/status"}) || *rule.Scope != admissionregistrationv1.NamespacedScope {
			t.Errorf("S33: %s: %+v", w.Name, w.Rules)
		}
		for _, n := range []string{"belay-system", "kube-system", "kube-public", "kube-node-lease"} {
			if !excludes(w.NamespaceSelector, n) {
				t.Errorf("%s is called for %s", w.Name, n)
			}
		}
		if *w.MatchPolicy != admissionregistrationv1.Equivalent {
			t.Errorf("S30: %s: %s", w.Name, *w.MatchPolicy)
		}
		if w.ObjectSelector == nil || *w.SideEffects != admissionregistrationv1.SideEffectClassNoneOnDryRun || *w.TimeoutSeconds > 5 {
			t.Errorf("%s: %+v", w.Name, w)
		}
		names := map[string]bool{}
		for _, c := range w.MatchConditions {
			if names[c.Name] {
				t.Errorf("%s: two conditions %s", w.Name, c.Name)
			}
			names[c.Name] = true
			if err := checkCondition(c.Name, c.Expression); err != nil {
				t.Errorf("%s: %v", w.Name, err)
			}
		}
		if !names["belay.not-kube"] || !names["belay.not-controller"] || !names["belay.concerned"] {
			t.Errorf("%s: %v", w.Name, names)
		}
		if !entries.Ours(w.Name) {
			t.Errorf("%s is not taken for belay's own", w.Name)
		}
	}
}

// TestRecoveriesComeLast: after owners and names, by name.
func TestRecoveriesComeLast(t *testing.T) {
	t.Parallel()
	a, z := fullRecovery(), fullRecovery()
	a.Name, z.Name = "a", "z"
	p := inForce{recoveries: []*v1alpha1.RecoveryPolicy{z, a}, names: []*v1alpha1.NamePolicy{named("n")}, owners: []*v1alpha1.OwnerPolicy{plain("o")}}
	r := render(p, settings{endpoint: service, ownNamespace: "belay-system", annotation: true})
	var mutating, validating []string
	for _, w := range r.Mutating {
		mutating = append(mutating, w.Name)
	}
	for _, w := range r.Validating {
		validating = append(validating, w.Name)
	}
	if diff := cmp.Diff([]string{"o.owner.belay.dev", "annotation.belay.dev", "n.name.belay.dev", "a.recovery.belay.dev", "z.recovery.belay.dev"}, mutating); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{"n.name.belay.dev", "a.recovery.belay.dev", "z.recovery.belay.dev"}, validating); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestWhichCRDsConcernAPolicy: those of its group, and all of them where that is not known.
func TestWhichCRDsConcernAPolicy(t *testing.T) {
	t.Parallel()
	b := setRecovery(t, firstRecovery("opensandbox"))
	for name, want := range map[string]bool{
		"batchsandboxes.sandbox.opensandbox.io": true, "pools.sandbox.opensandbox.io": true, "boxes.example.com": false, "sandbox.opensandbox.io": false, "x.notsandbox.opensandbox.io": false,
	} {
		if got := b.r.guarded(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}}); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if (&Reconciler{client: setRecovery(t).client}).guarded(crdOf()) {
		t.Error("no policy, and a CRD concerns it")
	}
	b.r.client = &failingLists{Client: b.client}
	if !b.r.guarded(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "boxes.example.com"}}) {
		t.Error("what is not known is not looked at")
	}
}

// failingLists fails lists of RecoveryPolicies.
type failingLists struct{ client.Client }

func (f *failingLists) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, ok := list.(*v1alpha1.RecoveryPolicyList); ok {
		return apierrors.NewForbidden(schema.GroupResource{Group: "belay.dev", Resource: "recoverypolicies"}, "", nil)
	}
	return f.Client.List(ctx, list, opts...)
}

// TestAFailureToListRecoveryPoliciesIsNoEmptyList: their entries stay.
func TestAFailureToListRecoveryPoliciesIsNoEmptyList(t *testing.T) {
	t.Parallel()
	b := setRecovery(t, firstRecovery("opensandbox"), crdOf(versionOf("v1alpha1")))
	b.reconcile()
	writes := b.writes
	b.r.client = &failingLists{Client: b.client}
	if _, err := b.r.Reconcile(t.Context(), reconcile.Request{}); err == nil || !strings.Contains(err.Error(), "listing recovery policies") {
		t.Errorf("%v", err)
	}
	if b.writes != writes || len(b.mutatingNames()) != 1 {
		t.Errorf("%d writes, %v", b.writes-writes, b.mutatingNames())
	}
}

// TestPoliciesOfAllKindsMayShareAName: their entries and their paths differ.
func TestPoliciesOfAllKindsMayShareAName(t *testing.T) {
	t.Parallel()
	b := setRecovery(t, firstRecovery("x"), builders.MakeNamePolicy("x").Obj(), builders.MakeOwnerPolicy("x").Obj(), crdOf(versionOf("v1alpha1")))
	b.reconcile()
	if diff := cmp.Diff([]string{"x.owner.belay.dev", "x.name.belay.dev", "x.recovery.belay.dev"}, b.mutatingNames()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	b.stands("x", "True Accepted", "True Registered", 1)
	if err := b.client.Delete(t.Context(), b.recovery("x")); err != nil {
		t.Fatal(err)
	}
	b.reconcile()
	if diff := cmp.Diff([]string{"x.owner.belay.dev", "x.name.belay.dev"}, b.mutatingNames()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
