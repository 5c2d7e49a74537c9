package owner

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
)

// A client's reference whose kind or UID holds a line break must not give a warning of two lines.
func TestLintMessagesOfHostileReferencesAreOneLine(t *testing.T) {
	for _, r := range []metav1.OwnerReference{{APIVersion: "v1", Kind: "Config\nMap", Name: "x", UID: "u"}, {APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "u\nv"}} {
		in := input(func(in *Input) {
			in.Request.References = []metav1.OwnerReference{r}
			in.Facts.References = []ReferenceFact{{Scope: ScopeNamespaced, Fact: absent()}}
		})
		for _, w := range Decide(in).Warnings {
			if strings.ContainsAny(w, "\n") {
				t.Errorf("%q", w)
			}
		}
	}
}

func TestExpressionProblemsAreOneLine(t *testing.T) {
	in := input(func(in *Input) { in.Target = Target{Reason: ReasonExpressionFailed, Problem: "no such key: a\nb"} })
	for _, w := range Decide(in).Warnings {
		if strings.ContainsAny(w, "\n") {
			t.Errorf("%q", w)
		}
	}
}

// An object that cannot get a reference needs no Anchor.
func TestP12_ATooLargeObjectAsksForNoAnchor(t *testing.T) {
	in := input(func(in *Input) { in.Facts.Owner, in.Request.Size = absent(), MaxObjectBytes+1 })
	if d := Decide(in); d.Anchor != nil {
		t.Errorf("an Anchor is made that nothing will ever reference: %+v", d)
	}
}

func TestP12_APreviewOfATooLargeObjectSaysWhatEnforceWould(t *testing.T) {
	in := input(preview, func(in *Input) { in.Facts.Owner, in.Request.Size = absent(), MaxObjectBytes+1 })
	if d := Decide(in); d.Reason != ReasonTooLarge {
		t.Errorf("%+v", d)
	}
}

// A stale reference to the owner that is wanted by labels is put right by place, as one
// by name is; LintDeny must not refuse it.
func TestO01_AStaleReferenceToAnOwnerByLabelsIsNotLinted(t *testing.T) {
	in := input(func(in *Input) {
		in.Target.Owner = &Wanted{APIVersion: "batch/v1", Kind: "Job", Labels: map[string]string{"a": "b"}, Scope: ScopeNamespaced}
		stale := ref(job)
		stale.UID = "old-uid"
		in.Request.References = []metav1.OwnerReference{stale}
		in.Facts.References = []ReferenceFact{{Scope: ScopeNamespaced, Fact: known(job)}}
		in.Policy.ClientReferences = v1alpha1.LintDeny
	})
	if d := Decide(in); !d.Allowed || d.Reason != ReasonCorrected {
		t.Errorf("%+v", d)
	}
}

// An Anchor does not become a controller when it replaces a stale controller reference.
func TestAnAnchorIsNeverAController(t *testing.T) {
	in := input(func(in *Input) {
		stale := controllerRef(job)
		stale.UID = "old-uid"
		in.Request.References = []metav1.OwnerReference{stale}
		in.Facts.Owner, in.Facts.Anchor = absent(), heldAnchor()
	})
	if d := Decide(in); len(d.Edits) != 1 || d.Edits[0].Reference.Controller != nil {
		t.Errorf("%+v", d)
	}
}

// The object is too large to add to, but a stale reference is replaced, not added.
func TestP12_AStaleReferenceOfALargeObjectIsStillReplaced(t *testing.T) {
	in := input(func(in *Input) {
		stale := ref(job)
		stale.UID = "old-uid"
		in.Request.References, in.Request.Size = []metav1.OwnerReference{stale}, MaxObjectBytes+1
	})
	if d := Decide(in); d.Reason != ReasonCorrected {
		t.Errorf("the collector will delete it: %+v", d)
	}
}

// The mutating call may have been missed: Verify denies an object whose owner could not be told.
func TestVerifyDeniesWhatDecideWouldHaveDenied(t *testing.T) {
	in := input(denying, func(in *Input) { in.Target = Target{Reason: ReasonExpressionFailed, Problem: "f: no"} })
	if d := Verify(in); d.Allowed {
		t.Errorf("Decide: %+v\nVerify: %+v", Decide(in), d)
	}
}

// A stale reference to the wanted owner that has to stay, since there is no Anchor, is told.
func TestAStaleReferenceThatStaysIsWarnedAbout(t *testing.T) {
	in := input(func(in *Input) {
		stale := ref(job)
		stale.UID = "old-uid"
		in.Request.References = []metav1.OwnerReference{stale}
		in.Facts.References = []ReferenceFact{{Scope: ScopeNamespaced, Fact: known(job)}}
		in.Facts.Owner, in.Facts.Anchor = absent(), AnchorFact{Cause: fact.CauseTimeout}
	})
	d := Decide(in)
	if !strings.Contains(strings.Join(d.Warnings, " "), "old-uid") {
		t.Errorf("%+v", d)
	}
}
