package owner

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
)

func TestAsWarning(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ in, want Decision }{
		"a denial becomes a warning that quotes it": {
			Decision{Code: 403, Reason: ReasonOtherNamespace, Message: "no"},
			Decision{Allowed: true, Reason: ReasonOtherNamespace, Message: "mode warn: would be denied with 403: no", Warnings: []string{"mode warn: would be denied with 403: no"}},
		},
		"a change becomes a warning, after those that are there": {
			Decision{Allowed: true, Reason: ReasonOwned, Message: `owned by job "run"`, Warnings: []string{"mind the gap"}, Edits: appended(ref(job))},
			Decision{Allowed: true, Reason: ReasonOwned, Message: `mode warn: would be owned by job "run"`, Warnings: []string{"mind the gap", `mode warn: would be owned by job "run"`}},
		},
		"what changes nothing stays silent": {
			Decision{Allowed: true, Reason: ReasonAlreadyOwned, Message: "owned"},
			Decision{Allowed: true, Reason: ReasonAlreadyOwned, Message: "owned"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, c.in.AsWarning()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// generated are creates of many kinds, as enforce would see them.
func generated() map[string]Input {
	out := map[string]Input{}
	owners := map[string]Fact{
		"exists": known(job), "absent": absent(), "terminating": known(terminating(job)), "two": known(job, Object{Name: "b", UID: "b"}),
		"timeout": unknown(fact.CauseTimeout), "forbidden": unknown(fact.CauseForbidden), "no kind": unknown(fact.CauseNoKind), "truncated": {State: fact.Known, Truncated: true},
	}
	targets := map[string]Target{
		"none": {}, "job": {Owner: wantJob()}, "labels": {Owner: wantSpurJob()}, "cluster": {Owner: &Wanted{APIVersion: "g/v1", Kind: "Site", Name: "s", Scope: ScopeCluster}},
		"elsewhere": {Owner: &Wanted{APIVersion: "batch/v1", Kind: "Job", Name: "run", Namespace: "other", Scope: ScopeNamespaced}}, "nonsense": FromAnnotation("nonsense"),
		"failed": {Reason: ReasonExpressionFailed, Problem: "spec.owner.name: no such key: labels"},
	}
	stale := ref(job)
	stale.UID = "old-uid"
	refs := map[string][]metav1.OwnerReference{"no": nil, "right": {ref(job)}, "stale": {stale}, "stranger's": {{APIVersion: "v1", Kind: "ConfigMap", Name: "site", UID: "x"}}}
	for factName, fact := range owners {
		for targetName, target := range targets {
			for refsName, list := range refs {
				for _, stance := range []v1alpha1.UnresolvedAction{v1alpha1.UnresolvedAdmit, v1alpha1.UnresolvedDeny} {
					for _, linted := range []v1alpha1.ReferenceLint{v1alpha1.LintWarn, v1alpha1.LintDeny, v1alpha1.LintIgnore} {
						for _, namespace := range []string{"lab", ""} {
							name := fmt.Sprintf("owner %s, target %s, %s reference, %s, lint %s, namespace %q", factName, targetName, refsName, stance, linted, namespace)
							in := input(func(in *Input) {
								in.Request.Namespace, in.Request.References = namespace, list
								in.Policy.WhenUnresolved, in.Policy.ClientReferences = stance, linted
								in.Target, in.Facts.Owner, in.Facts.Anchor = target, fact, heldAnchor()
								for i := range list {
									in.Facts.References = append(in.Facts.References, ReferenceFact{Index: i, Scope: ScopeNamespaced, Fact: absent()})
								}
							})
							out[name] = in
						}
					}
				}
			}
		}
	}
	return out
}

// TestWarnModeSaysWhatEnforceWouldDo: everything is admitted unchanged, and a
// warning is there if, and only if, enforce would change, deny or warn.
func TestWarnModeSaysWhatEnforceWouldDo(t *testing.T) {
	t.Parallel()
	spoke := map[Reason]bool{}
	for name, in := range generated() {
		enforced := Decide(in)
		in.Request.Preview, in.Facts.Anchor = true, AnchorFact{}
		warned := Decide(in).AsWarning()
		if !warned.Allowed || warned.Code != 0 || len(warned.Edits) > 0 || warned.Anchor != nil {
			t.Errorf("%s: warn mode acts: %+v", name, warned)
		}
		acts := !enforced.Allowed || len(enforced.Edits) > 0
		if speaks := len(warned.Warnings) > 0; speaks != (acts || len(enforced.Warnings) > 0) {
			t.Errorf("%s: warn mode says %q, enforce would: %+v", name, warned.Warnings, enforced)
			continue
		}
		said := strings.Join(warned.Warnings, "\n")
		for _, w := range enforced.Warnings {
			if !strings.Contains(said, w) {
				t.Errorf("%s: the warning %q is not in %q", name, w, said)
			}
		}
		switch {
		case !enforced.Allowed && !strings.Contains(said, fmt.Sprintf("would be denied with %d: %s", enforced.Code, enforced.Message)):
			t.Errorf("%s: a denial is not foretold: %q", name, said)
		case enforced.Reason == ReasonAnchored && !strings.Contains(said, "would be owned by an Anchor"):
			t.Errorf("%s: an Anchor is not foretold: %q", name, said)
		case enforced.Reason == ReasonOwned && !strings.Contains(said, "would be "+enforced.Message):
			t.Errorf("%s: a reference is not foretold: %q", name, said)
		}
		spoke[enforced.Reason] = true
	}
	for _, r := range []Reason{ReasonOwned, ReasonAlreadyOwned, ReasonCorrected, ReasonAnchored, ReasonAmbiguous, ReasonLookupFailed, ReasonKindUnknown, ReasonOtherNamespace, ReasonScopeMismatch, ReasonAnnotationInvalid, ReasonExpressionFailed, ReasonBadReference, ReasonNoOwner, ReasonNoAnchor} {
		if !spoke[r] {
			t.Errorf("no generated input ended as %s", r)
		}
	}
}

// TestMessagesAreOneLine: a line break in a name would end an HTTP Warning header,
// and with it the warning.
func TestMessagesAreOneLine(t *testing.T) {
	t.Parallel()
	const hostile = "a\nb\r\x00\u2028é"
	n := 0
	for name, in := range generated() {
		in.Request.Name, in.Policy.Name = hostile, hostile
		if in.Request.Namespace != "" {
			in.Request.Namespace = hostile
		}
		if w := in.Target.Owner; w != nil && w.Name != "" {
			in.Target.Owner = &Wanted{APIVersion: w.APIVersion, Kind: w.Kind, Namespace: w.Namespace, Name: hostile, Scope: w.Scope}
		}
		var refs []metav1.OwnerReference
		for _, r := range in.Request.References {
			r.Name, r.APIVersion = hostile, hostile
			refs = append(refs, r)
		}
		in.Request.References = refs
		for i := range in.Facts.References {
			in.Facts.References[i].Fact = unknown(fact.CauseNoKind)
		}
		for i, o := range in.Facts.Owner.Objects {
			o.Name, o.UID = hostile, types.UID(fmt.Sprint("uid", i))
			in.Facts.Owner.Objects = append(append([]Object{}, in.Facts.Owner.Objects[:i]...), append([]Object{o}, in.Facts.Owner.Objects[i+1:]...)...)
		}
		for _, d := range []Decision{Decide(in), Verify(in), Decide(in).AsWarning()} {
			for _, text := range append([]string{d.Message}, d.Warnings...) {
				n++
				if strings.ContainsAny(text, "\n\r\x00\u2028") {
					t.Fatalf("%s: %q", name, text)
				}
			}
		}
	}
	if n == 0 {
		t.Error("no messages")
	}
}
