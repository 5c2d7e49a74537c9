package owner

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/wording"
)

// maxComplaints bounds the warnings of one request: the API server cuts them at
// 4 KiB in all.
const maxComplaints = 5

// lint checks the references that the client brought. References to the wanted
// owner itself are left out: place puts those right.
func lint(r Request, p Policy, found []ReferenceFact, want *Wanted) ([]string, *Decision) {
	if p.ClientReferences == v1alpha1.LintIgnore {
		return nil, nil
	}
	var complaints []string
	for _, f := range found {
		if f.Index < 0 || f.Index >= len(r.References) {
			continue
		}
		ref := r.References[f.Index]
		if want != nil && sameCoordinates(ref, want.Group(), want.Kind, want.Name) {
			continue
		}
		if c := complain(r, ref, f); c != "" {
			complaints = append(complaints, c)
		}
		if len(complaints) == maxComplaints {
			break
		}
	}
	if len(complaints) > 0 && p.ClientReferences == v1alpha1.LintDeny {
		d := deny(ReasonBadReference, fmt.Sprintf("policy %q: %s", p.Name, strings.Join(complaints, "; ")))
		return nil, &d
	}
	return complaints, nil
}

// complain says what is wrong with one reference, or nothing.
func complain(r Request, ref metav1.OwnerReference, f ReferenceFact) string {
	said := fmt.Sprintf("owner reference %s %q (uid %s)", wording.OneLine(wording.Clip(strings.ToLower(ref.Kind), 63)), wording.Clip(ref.Name, 63), wording.OneLine(wording.Clip(string(ref.UID), 40)))
	if f.Fact.State == fact.Unknown {
		if f.Fact.Cause == fact.CauseNoKind {
			return fmt.Sprintf("%s: the API server serves no such kind in %q; correct or remove it", said, wording.Clip(ref.APIVersion, 63))
		}
		return "" // could not be read: nothing is claimed about it
	}
	if f.Scope == ScopeNamespaced && r.Namespace == "" {
		return said + ": a cluster-scoped object cannot have a namespaced owner; remove it"
	}
	where := ""
	if f.Scope == ScopeNamespaced {
		where = fmt.Sprintf(" in namespace %q", r.Namespace)
	}
	if f.Fact.State == fact.Absent || len(f.Fact.Objects) == 0 {
		return fmt.Sprintf("%s: no such object%s; an object is deleted when all its owners are absent: remove it", said, where)
	}
	if live := f.Fact.Objects[0]; live.UID != ref.UID {
		return fmt.Sprintf("%s: the object of that name%s has uid %s; an object is deleted when all its owners are absent: correct it", said, where, live.UID)
	}
	return ""
}
