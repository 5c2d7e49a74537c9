package owner

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
)

// The inputs of this package's tests: Secret "token" in namespace "lab" is created
// and wants to be owned by job "run".

var job = Object{APIVersion: "batch/v1", Kind: "Job", Name: "run", UID: "job-uid"}

var anchor = Object{APIVersion: "belay.dev/v1alpha1", Kind: "Anchor", Name: "job-run-abc", UID: "anchor-uid"}

func wantJob() *Wanted {
	return &Wanted{APIVersion: "batch/v1", Kind: "Job", Name: "run", Scope: ScopeNamespaced}
}

func wantSpurJob() *Wanted {
	return &Wanted{APIVersion: "spur.dev/v1", Kind: "SpurJob", Labels: map[string]string{"spur.dev/id": "7"}, Scope: ScopeNamespaced}
}

func known(objects ...Object) Fact { return Fact{State: fact.Known, Objects: objects} }

func absent() Fact { return Fact{State: fact.Absent} }

func unknown(c fact.Cause) Fact { return Fact{Cause: c} }

func heldAnchor() AnchorFact {
	return AnchorFact{State: fact.Known, Name: anchor.Name, UID: anchor.UID}
}

func terminating(o Object) Object {
	o.Terminating = true
	return o
}

// input is a create whose owner exists.
func input(changes ...func(*Input)) Input {
	in := Input{
		Request: Request{Operation: "CREATE", Namespace: "lab", Kind: "Secret", Name: "token", Size: 500},
		Policy:  Policy{Name: "otf", WhenUnresolved: v1alpha1.UnresolvedAdmit, ClientReferences: v1alpha1.LintWarn},
		Target:  Target{Owner: wantJob()},
		Facts:   Facts{Owner: known(job)},
	}
	for _, change := range changes {
		change(&in)
	}
	return in
}

func denying(in *Input) { in.Policy.WhenUnresolved = v1alpha1.UnresolvedDeny }
func preview(in *Input) { in.Request.Preview = true }

func ref(o Object) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: o.APIVersion, Kind: o.Kind, Name: o.Name, UID: o.UID}
}

func controllerRef(o Object) metav1.OwnerReference {
	r := ref(o)
	r.Controller = new(true)
	return r
}

func appended(r metav1.OwnerReference) []Edit { return []Edit{{Op: EditAppend, Reference: r}} }

// applied is what the edits make of a list of references.
func applied(refs []metav1.OwnerReference, edits []Edit) []metav1.OwnerReference {
	out := slices.Clone(refs)
	for _, e := range edits {
		switch e.Op {
		case EditAppend:
			out = append(out, e.Reference)
		case EditReplace:
			out[e.Index] = e.Reference
		case EditRemove:
			out = slices.Delete(out, e.Index, e.Index+1)
		}
	}
	return out
}

func uidsOf(refs []metav1.OwnerReference) []types.UID {
	var out []types.UID
	for _, r := range refs {
		out = append(out, r.UID)
	}
	return out
}
