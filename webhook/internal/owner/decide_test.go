package owner

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
)

// TestDecide has a row for each rule of the design's section 4. Messages are
// compared where they are what a person acts on.
func TestDecide(t *testing.T) {
	t.Parallel()
	stranger := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "site", UID: "old-uid"}
	brought := func(f Fact) func(*Input) {
		return func(in *Input) {
			in.Request.References = []metav1.OwnerReference{stranger}
			in.Facts.References = []ReferenceFact{{Scope: ScopeNamespaced, Fact: f}}
		}
	}
	for name, c := range map[string]struct {
		in   Input
		want Decision
	}{
		"an owner that exists is appended": {
			input(),
			Decision{Allowed: true, Reason: ReasonOwned, Message: `owned by job "run" (uid job-uid)`, Edits: appended(ref(job))},
		},
		"an owner found by labels is appended under its own name": {
			input(func(in *Input) {
				in.Target.Owner = &Wanted{APIVersion: "batch/v1", Kind: "Job", Labels: map[string]string{"a": "b"}}
			}),
			Decision{Allowed: true, Reason: ReasonOwned, Message: `owned by job "run" (uid job-uid)`, Edits: appended(ref(job))},
		},
		"a controller reference is set where the policy asks for it": {
			input(func(in *Input) { in.Policy.Controller = true }),
			Decision{Allowed: true, Reason: ReasonOwned, Edits: appended(controllerRef(job))},
		},
		"an Anchor is never a controller": {
			input(func(in *Input) {
				in.Policy.Controller, in.Facts.Owner, in.Facts.Anchor = true, absent(), heldAnchor()
			}),
			Decision{Allowed: true, Reason: ReasonAnchored, Edits: appended(ref(anchor))},
		},
		"O06: an object that has the reference stays as it is": {
			input(func(in *Input) { in.Request.References = []metav1.OwnerReference{ref(job)} }),
			Decision{Allowed: true, Reason: ReasonAlreadyOwned, Message: `owned by job "run" (uid job-uid)`},
		},
		"O01: a stale reference to the owner is replaced": {
			input(func(in *Input) {
				stale := ref(job)
				stale.UID = "old-uid"
				in.Request.References = []metav1.OwnerReference{stale}
			}),
			Decision{Allowed: true, Reason: ReasonCorrected, Edits: []Edit{{Op: EditReplace, Was: "old-uid", Reference: ref(job)}}},
		},
		"O01: a stale reference to an owner found by labels is replaced": {
			input(func(in *Input) {
				in.Target.Owner = &Wanted{APIVersion: "batch/v1", Kind: "Job", Labels: map[string]string{"a": "b"}}
				stale := ref(job)
				stale.UID = "old-uid"
				in.Request.References = []metav1.OwnerReference{stale}
			}),
			Decision{Allowed: true, Reason: ReasonCorrected, Edits: []Edit{{Op: EditReplace, Was: "old-uid", Reference: ref(job)}}},
		},
		"O02: an owner that does not exist under the asked kind needs an Anchor, not a guess": {
			input(func(in *Input) { in.Facts.Owner = absent() }),
			Decision{Allowed: true, Reason: ReasonAnchorNeeded, Anchor: &AnchorWanted{Owner: v1alpha1.AnchorOwner{APIVersion: "batch/v1", Kind: "Job", Name: "run"}}},
		},
		"O12: without an owner the Anchor is referenced, by a UID that exists": {
			input(func(in *Input) { in.Facts.Owner, in.Facts.Anchor = absent(), heldAnchor() }),
			Decision{Allowed: true, Reason: ReasonAnchored, Message: `owned by anchor "job-run-abc" (uid anchor-uid) until job "run" exists`, Edits: appended(ref(anchor))},
		},
		"O09: an owner on its way out counts as absent": {
			input(func(in *Input) { in.Facts.Owner = known(terminating(job)) }),
			Decision{Allowed: true, Reason: ReasonAnchorNeeded, Anchor: &AnchorWanted{Owner: v1alpha1.AnchorOwner{APIVersion: "batch/v1", Kind: "Job", Name: "run"}}},
		},
		"of two with the labels, the one that stays is taken": {
			input(func(in *Input) {
				in.Target.Owner = wantSpurJob()
				in.Facts.Owner = known(terminating(Object{APIVersion: "spur.dev/v1", Kind: "SpurJob", Name: "a", UID: "a"}), Object{APIVersion: "spur.dev/v1", Kind: "SpurJob", Name: "b", UID: "b"})
			}),
			Decision{Allowed: true, Reason: ReasonOwned, Edits: appended(metav1.OwnerReference{APIVersion: "spur.dev/v1", Kind: "SpurJob", Name: "b", UID: "b"})},
		},
		"two owners with the labels: no guess": {
			input(func(in *Input) {
				in.Target.Owner = wantSpurJob()
				in.Facts.Owner = known(Object{Name: "a", UID: "a"}, Object{Name: "b", UID: "b"})
			}),
			Decision{
				Allowed: true, Reason: ReasonAmbiguous,
				Warnings:  []string{`secret "token" is created without an owner reference: several objects match spurjob with labels spur.dev/id=7 ("a", "b"); belay does not guess: make the labels unique`},
				Ambiguous: []Object{{Name: "a", UID: "a"}, {Name: "b", UID: "b"}},
			},
		},
		"two owners with the labels are denied for good: a retry would find them again": {
			input(denying, func(in *Input) {
				in.Target.Owner = wantSpurJob()
				in.Facts.Owner = known(Object{Name: "a", UID: "a"}, Object{Name: "b", UID: "b"})
			}),
			Decision{
				Code: 403, Reason: ReasonAmbiguous,
				Message:   `policy "otf": secret "token" cannot be given its owner: several objects match spurjob with labels spur.dev/id=7 ("a", "b"); belay does not guess: make the labels unique`,
				Ambiguous: []Object{{Name: "a", UID: "a"}, {Name: "b", UID: "b"}},
			},
		},
		"more owners than were read: no guess either": {
			input(func(in *Input) {
				in.Target.Owner = wantSpurJob()
				in.Facts.Owner = Fact{State: fact.Known, Objects: []Object{{Name: "a", UID: "a"}}, Truncated: true}
			}),
			Decision{
				Allowed: true, Reason: ReasonAmbiguous,
				Warnings:  []string{`secret "token" is created without an owner reference: several objects match spurjob with labels spur.dev/id=7 ("a", …); belay does not guess: make the labels unique`},
				Ambiguous: []Object{{Name: "a", UID: "a"}},
			},
		},
		"the Anchor could not be had: admitted with a warning": {
			input(func(in *Input) { in.Facts.Owner, in.Facts.Anchor = absent(), AnchorFact{Cause: fact.CauseTimeout} }),
			Decision{Allowed: true, Reason: ReasonAnchorFailed, Warnings: []string{`secret "token" is created without an owner reference: job "run" does not exist yet, and no Anchor could be made to wait for it (the API server did not answer in time)`}},
		},
		"the Anchor could not be had: denied with a retry": {
			input(denying, func(in *Input) { in.Facts.Owner, in.Facts.Anchor = absent(), AnchorFact{Cause: fact.CauseServer} }),
			Decision{Code: 503, RetryAfterSeconds: 1, Reason: ReasonAnchorFailed, Message: `policy "otf": secret "token" cannot be given its owner: job "run" does not exist yet, and no Anchor could be made to wait for it (the API server had an error)`},
		},
		"a dry run makes no Anchor and says what would happen": {
			input(preview, func(in *Input) { in.Facts.Owner = absent() }),
			Decision{Allowed: true, Reason: ReasonAnchorNeeded, Message: `would be owned by a new Anchor until job "run" exists`, Warnings: []string{`job "run" does not exist yet: secret "token" would be owned by an Anchor that waits for it`}},
		},
		"a dry run with an owner gets its reference": {
			input(preview),
			Decision{Allowed: true, Reason: ReasonOwned, Edits: appended(ref(job))},
		},
		"O03: an owner in another namespace is denied, whatever the stance": {
			input(func(in *Input) { in.Target.Owner.Namespace = "other" }),
			Decision{Code: 403, Reason: ReasonOtherNamespace, Message: `secret "token" is in namespace "lab" and cannot be owned by job "run" in namespace "other": the garbage collector would delete it; create both in one namespace`},
		},
		"O03: the own namespace may be named": {
			input(func(in *Input) { in.Target.Owner.Namespace = "lab" }),
			Decision{Allowed: true, Reason: ReasonOwned, Edits: appended(ref(job))},
		},
		"a namespace before the name of a cluster-scoped owner does not count": {
			input(func(in *Input) { in.Target.Owner.Scope, in.Target.Owner.Namespace = ScopeCluster, "other" }),
			Decision{Allowed: true, Reason: ReasonOwned, Edits: appended(ref(job))},
		},
		"O04: a cluster-scoped dependent of a namespaced owner is denied": {
			input(func(in *Input) { in.Request.Namespace, in.Request.Kind, in.Request.Name = "", "ClusterRole", "reader" }),
			Decision{Code: 403, Reason: ReasonScopeMismatch, Message: `clusterrole "reader" is cluster-scoped and cannot be owned by the namespaced job "run": the garbage collector would never find the owner; use a cluster-scoped owner`},
		},
		"O04: a namespaced dependent of a cluster-scoped owner stays allowed": {
			input(func(in *Input) { in.Target.Owner.Scope = ScopeCluster }),
			Decision{Allowed: true, Reason: ReasonOwned, Edits: appended(ref(job))},
		},
		"an Anchor cannot wait for a cluster-scoped dependent's owner": {
			input(func(in *Input) {
				in.Request.Namespace, in.Target.Owner.Scope, in.Facts.Owner = "", ScopeCluster, absent()
			}),
			Decision{Allowed: true, Reason: ReasonNoAnchor, Warnings: []string{`secret "token" is created without an owner reference: job "run" does not exist, and an Anchor cannot hold its place for a cluster-scoped object; create the owner first`}},
		},
		"a look-up that timed out admits with a warning": {
			input(func(in *Input) { in.Facts.Owner = unknown(fact.CauseTimeout) }),
			Decision{Allowed: true, Reason: ReasonLookupFailed, Warnings: []string{`secret "token" is created without an owner reference: could not find out whether job "run" exists (the API server did not answer in time); the create may be repeated`}},
		},
		"a look-up that failed denies with a retry, by policy": {
			input(denying, func(in *Input) { in.Facts.Owner = unknown(fact.CauseServer) }),
			Decision{Code: 503, RetryAfterSeconds: 1, Reason: ReasonLookupFailed, Message: `policy "otf": secret "token" cannot be given its owner: could not find out whether job "run" exists (the API server had an error); the create may be repeated`},
		},
		"a look-up without the right says which right to give": {
			input(func(in *Input) { in.Facts.Owner = unknown(fact.CauseForbidden) }),
			Decision{Allowed: true, Reason: ReasonLookupFailed, Warnings: []string{`secret "token" is created without an owner reference: could not find out whether job "run" exists (belay has no right to read it); give belay get, list and watch on the kind, with a ClusterRole labelled rbac.belay.dev/aggregate-to-owner-reader: "true"`}},
		},
		"a kind that is not served has a reason of its own": {
			input(func(in *Input) { in.Facts.Owner = unknown(fact.CauseNoKind) }),
			Decision{Allowed: true, Reason: ReasonKindUnknown, Warnings: []string{`secret "token" is created without an owner reference: the API server serves no kind "Job" in "batch/v1"; check apiVersion and kind, or install its CRD`}},
		},
		"a kind that is not served is denied for good": {
			input(denying, func(in *Input) { in.Facts.Owner = unknown(fact.CauseNoKind) }),
			Decision{Code: 403, Reason: ReasonKindUnknown, Message: `policy "otf": secret "token" cannot be given its owner: the API server serves no kind "Job" in "batch/v1"; check apiVersion and kind, or install its CRD`},
		},
		"O08: an update is never looked at, so a removed reference is never set again": {
			input(func(in *Input) { in.Request.Operation = "UPDATE" }),
			Decision{Allowed: true, Reason: ReasonNotCreate},
		},
		"an object that asks for no owner passes": {
			input(func(in *Input) { in.Target = Target{} }),
			Decision{Allowed: true, Reason: ReasonNoOwner},
		},
		"an annotation that cannot be read is denied": {
			input(func(in *Input) { in.Target = FromAnnotation("run") }),
			Decision{Code: 403, Reason: ReasonAnnotationInvalid, Message: `annotation belay.dev/owner: "run" has the wrong number of parts; write [GROUP/]VERSION/KIND/NAME, such as "batch/v1/Job/build-7"`},
		},
		"an expression that failed admits with a warning": {
			input(func(in *Input) {
				in.Target = Target{Reason: ReasonExpressionFailed, Problem: "spec.owner.name: no such key: labels"}
			}),
			Decision{Allowed: true, Reason: ReasonExpressionFailed, Warnings: []string{`secret "token" is created without an owner reference: spec.owner.name: no such key: labels`}},
		},
		"an expression that failed denies for good: a retry would fail as well": {
			input(denying, func(in *Input) {
				in.Target = Target{Reason: ReasonExpressionFailed, Problem: "spec.owner.name: no such key: labels"}
			}),
			Decision{Code: 403, Reason: ReasonExpressionFailed, Message: `policy "otf": secret "token" cannot be given its owner: spec.owner.name: no such key: labels`},
		},
		"O01: a client's reference to another UID is left alone and warned about": {
			input(brought(known(Object{Name: "site", UID: "new-uid"}))),
			Decision{
				Allowed: true, Reason: ReasonOwned, Edits: appended(ref(job)),
				Warnings: []string{`owner reference configmap "site" (uid old-uid): the object of that name in namespace "lab" has uid new-uid; an object is deleted when all its owners are absent: correct it`},
			},
		},
		"O03: a copied object's reference into another namespace is warned about": {
			input(brought(absent())),
			Decision{
				Allowed: true, Reason: ReasonOwned, Edits: appended(ref(job)),
				Warnings: []string{`owner reference configmap "site" (uid old-uid): no such object in namespace "lab"; an object is deleted when all its owners are absent: remove it`},
			},
		},
		"O03: a copied object's reference is denied, by policy": {
			input(brought(absent()), func(in *Input) { in.Policy.ClientReferences = v1alpha1.LintDeny }),
			Decision{Code: 403, Reason: ReasonBadReference, Message: `policy "otf": owner reference configmap "site" (uid old-uid): no such object in namespace "lab"; an object is deleted when all its owners are absent: remove it`},
		},
		"references are linted where no owner is asked for, too": {
			input(brought(unknown(fact.CauseNoKind)), func(in *Input) { in.Target = Target{} }),
			Decision{Allowed: true, Reason: ReasonNoOwner, Warnings: []string{`owner reference configmap "site" (uid old-uid): the API server serves no such kind in "v1"; correct or remove it`}},
		},
		"wrong references are not looked at, by policy": {
			input(brought(absent()), func(in *Input) { in.Policy.ClientReferences = v1alpha1.LintIgnore }),
			Decision{Allowed: true, Reason: ReasonOwned, Edits: appended(ref(job))},
		},
		"nothing is claimed about a reference that could not be read": {
			input(brought(unknown(fact.CauseForbidden)), func(in *Input) { in.Policy.ClientReferences = v1alpha1.LintDeny }),
			Decision{Allowed: true, Reason: ReasonOwned, Edits: appended(ref(job))},
		},
		"a right reference is not complained about": {
			input(brought(known(Object{Name: "site", UID: "old-uid"})), func(in *Input) { in.Policy.ClientReferences = v1alpha1.LintDeny }),
			Decision{Allowed: true, Reason: ReasonOwned, Edits: appended(ref(job))},
		},
		"P12: an object near the storage limit is admitted as it is": {
			input(denying, func(in *Input) { in.Request.Size = MaxObjectBytes + 1 }),
			Decision{Allowed: true, Reason: ReasonTooLarge, Warnings: []string{`secret "token" is 1556481 bytes and too near the storage limit of 1556480 to add an owner reference: it is not owned by job "run"`}},
		},
		"P12: an object below the limit gets its reference": {
			input(func(in *Input) { in.Request.Size = MaxObjectBytes }),
			Decision{Allowed: true, Reason: ReasonOwned, Edits: appended(ref(job))},
		},
		"an object without a name is spoken of as new": {
			input(func(in *Input) { in.Request.Name, in.Facts.Owner = "", unknown(fact.CauseTimeout) }),
			Decision{Allowed: true, Reason: ReasonLookupFailed, Warnings: []string{`a new secret is created without an owner reference: could not find out whether job "run" exists (the API server did not answer in time); the create may be repeated`}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := Decide(c.in)
			opts := cmp.Options{}
			if c.want.Message == "" {
				opts = append(opts, cmpopts.IgnoreFields(Decision{}, "Message"))
			}
			if diff := cmp.Diff(c.want, got, opts); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestUnknownFactsHaveADocumentedStance runs both decisions with nothing known, for
// every stance, target, operation and preview: never a panic, never an edit.
func TestUnknownFactsHaveADocumentedStance(t *testing.T) {
	t.Parallel()
	targets := map[string]Target{
		"none": {}, "name": {Owner: wantJob()}, "labels": {Owner: wantSpurJob()}, "scope unknown": {Owner: &Wanted{APIVersion: "batch/v1", Kind: "Job", Name: "run"}},
		"other namespace":  {Owner: &Wanted{APIVersion: "batch/v1", Kind: "Job", Name: "run", Namespace: "other"}},
		"annotation wrong": FromAnnotation("nonsense"), "expression failed": {Reason: ReasonExpressionFailed, Problem: "f: no"},
	}
	n := 0
	for _, stance := range []v1alpha1.UnresolvedAction{"", v1alpha1.UnresolvedAdmit, v1alpha1.UnresolvedDeny} {
		for _, linted := range []v1alpha1.ReferenceLint{"", v1alpha1.LintWarn, v1alpha1.LintDeny, v1alpha1.LintIgnore} {
			for targetName, target := range targets {
				for _, operation := range []string{"CREATE", "UPDATE", "DELETE", "CONNECT", "OTHER", ""} {
					for _, isPreview := range []bool{false, true} {
						for _, namespace := range []string{"lab", ""} {
							for _, refs := range [][]metav1.OwnerReference{nil, {ref(job)}, {{}}} {
								in := Input{
									Request: Request{Operation: operation, Namespace: namespace, Preview: isPreview, References: refs},
									Policy:  Policy{WhenUnresolved: stance, ClientReferences: linted},
									Target:  target,
									Facts:   Facts{References: make([]ReferenceFact, len(refs))},
								}
								name := fmt.Sprintf("%q %q %s %q preview=%t ns=%q refs=%d", stance, linted, targetName, operation, isPreview, namespace, len(refs))
								checkStance(t, name+" Decide", in, Decide(in))
								checkStance(t, name+" Verify", in, Verify(in))
								n++
							}
						}
					}
				}
			}
		}
	}
	if n < 1000 {
		t.Errorf("only %d combinations", n)
	}
}

func checkStance(t *testing.T, name string, in Input, d Decision) {
	t.Helper()
	if len(d.Edits) > 0 || d.Anchor != nil {
		t.Errorf("%s: acts on nothing: %+v", name, d)
	}
	if d.Reason == "" || d.Message == "" {
		t.Errorf("%s: no reason or message: %+v", name, d)
	}
	questionIsWrong := d.Reason == ReasonOtherNamespace || d.Reason == ReasonScopeMismatch || d.Reason == ReasonAnnotationInvalid ||
		(d.Reason == ReasonExpressionFailed && in.Policy.WhenUnresolved == v1alpha1.UnresolvedDeny)
	switch {
	case in.Request.Operation != "CREATE":
		if !d.Allowed || d.Reason != ReasonNotCreate {
			t.Errorf("%s: %+v", name, d)
		}
	case !d.Allowed && d.Code == 403:
		if !questionIsWrong {
			t.Errorf("%s: denied for good by what is not known: %+v", name, d)
		}
	case !d.Allowed:
		if in.Policy.WhenUnresolved != v1alpha1.UnresolvedDeny || d.Code != 503 || d.RetryAfterSeconds < 1 {
			t.Errorf("%s: %+v", name, d)
		}
	case strings.HasSuffix(name, "Decide") && d.Reason != ReasonNoOwner:
		// Admitted although an owner is wanted: only by the stance, and aloud.
		if in.Policy.WhenUnresolved == v1alpha1.UnresolvedDeny || len(d.Warnings) == 0 {
			t.Errorf("%s: silent or against the stance: %+v", name, d)
		}
	}
}

func TestVerify(t *testing.T) {
	t.Parallel()
	refs := func(refs ...metav1.OwnerReference) func(*Input) {
		return func(in *Input) { in.Request.References = refs }
	}
	missing := Decision{Code: 503, RetryAfterSeconds: 1, Reason: ReasonNoReference, Message: `policy "otf": secret "token" ended without a reference to job "run"; another webhook removed it, or belay was away for a moment: repeat the create`}
	ok := Decision{Allowed: true, Reason: ReasonAlreadyOwned}
	for name, c := range map[string]struct {
		in   Input
		want Decision
	}{
		"a policy that admits demands nothing":                {input(), ok},
		"a policy that denies demands a reference":            {input(denying), missing},
		"a reference to another kind does not do":             {input(denying, refs(metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", UID: "x"})), missing},
		"a reference to the same kind of another group":       {input(denying, refs(metav1.OwnerReference{APIVersion: "other/v1", Kind: "Job", UID: "x"})), missing},
		"a reference to the owner does":                       {input(denying, refs(ref(job))), ok},
		"a reference to the owner in another version does":    {input(denying, refs(metav1.OwnerReference{APIVersion: "batch/v2", Kind: "job", UID: "x"})), ok},
		"a reference to an Anchor does":                       {input(denying, refs(ref(anchor))), ok},
		"a dry run made no Anchor and is let through":         {input(denying, preview), ok},
		"an object too large for a reference is let through":  {input(denying, func(in *Input) { in.Request.Size = MaxObjectBytes + 1 }), ok},
		"an object that asks for no owner needs no reference": {input(denying, func(in *Input) { in.Target = Target{} }), Decision{Allowed: true, Reason: ReasonNoOwner}},
		"an update is not looked at":                          {input(denying, func(in *Input) { in.Request.Operation = "UPDATE" }), Decision{Allowed: true, Reason: ReasonNotCreate}},
		"a wrong reference that another webhook brought is denied": {
			input(refs(metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "site", UID: "x"}), func(in *Input) {
				in.Policy.ClientReferences = v1alpha1.LintDeny
				in.Facts.References = []ReferenceFact{{Scope: ScopeNamespaced, Fact: absent()}}
			}),
			Decision{Code: 403, Reason: ReasonBadReference, Message: `policy "otf": owner reference configmap "site" (uid x): no such object in namespace "lab"; an object is deleted when all its owners are absent: remove it`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := cmp.Options{}
			if c.want.Message == "" {
				opts = append(opts, cmpopts.IgnoreFields(Decision{}, "Message"))
			}
			if diff := cmp.Diff(c.want, Verify(c.in), opts); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
