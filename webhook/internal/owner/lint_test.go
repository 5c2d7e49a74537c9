package owner

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
)

func TestComplaints(t *testing.T) {
	t.Parallel()
	site := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "site", UID: "u"}
	const said = `owner reference configmap "site" (uid u): `
	for name, c := range map[string]struct {
		namespace string
		ref       metav1.OwnerReference
		fact      ReferenceFact
		want      string
	}{
		"it is right":                                     {"lab", site, ReferenceFact{Scope: ScopeNamespaced, Fact: known(Object{UID: "u"})}, ""},
		"it is right, and on its way out":                 {"lab", site, ReferenceFact{Scope: ScopeNamespaced, Fact: known(Object{UID: "u", Terminating: true})}, ""},
		"nothing is known":                                {"lab", site, ReferenceFact{}, ""},
		"the API server did not answer":                   {"lab", site, ReferenceFact{Fact: unknown(fact.CauseTimeout)}, ""},
		"there is no such kind":                           {"lab", site, ReferenceFact{Fact: unknown(fact.CauseNoKind)}, said + `the API server serves no such kind in "v1"; correct or remove it`},
		"there is no such object in the namespace":        {"lab", site, ReferenceFact{Scope: ScopeNamespaced, Fact: absent()}, said + `no such object in namespace "lab"; an object is deleted when all its owners are absent: remove it`},
		"there is no such object in the cluster":          {"lab", site, ReferenceFact{Scope: ScopeCluster, Fact: absent()}, said + `no such object; an object is deleted when all its owners are absent: remove it`},
		"known, with no object: none":                     {"lab", site, ReferenceFact{Scope: ScopeCluster, Fact: known()}, said + `no such object; an object is deleted when all its owners are absent: remove it`},
		"O01: the object has another UID":                 {"lab", site, ReferenceFact{Scope: ScopeNamespaced, Fact: known(Object{UID: "v"})}, said + `the object of that name in namespace "lab" has uid v; an object is deleted when all its owners are absent: correct it`},
		"O04: a namespaced owner of a cluster-wide one":   {"", site, ReferenceFact{Scope: ScopeNamespaced, Fact: absent()}, said + `a cluster-scoped object cannot have a namespaced owner; remove it`},
		"O04: a cluster-scoped owner of a namespaced one": {"lab", site, ReferenceFact{Scope: ScopeCluster, Fact: known(Object{UID: "u"})}, ""},
		"what is too long is cut": {
			"lab", metav1.OwnerReference{APIVersion: strings.Repeat("v", 500), Kind: strings.Repeat("K", 500), Name: strings.Repeat("n", 500), UID: "u"}, ReferenceFact{Fact: unknown(fact.CauseNoKind)},
			"owner reference " + strings.Repeat("k", 63) + `… "` + strings.Repeat("n", 63) + `…" (uid u): the API server serves no such kind in "` + strings.Repeat("v", 63) + `…"; correct or remove it`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, _ := lint(Request{Namespace: c.namespace, References: []metav1.OwnerReference{c.ref}}, Policy{}, []ReferenceFact{c.fact}, nil)
			var want []string
			if c.want != "" {
				want = []string{c.want}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestAStaleReferenceThatIsReplacedIsNotComplainedAbout: belay puts it right, so the
// client need not.
func TestAStaleReferenceThatIsReplacedIsNotComplainedAbout(t *testing.T) {
	t.Parallel()
	stale := ref(job)
	stale.UID = "old-uid"
	in := input(func(in *Input) {
		in.Policy.ClientReferences = v1alpha1.LintDeny
		in.Request.References = []metav1.OwnerReference{stale}
		in.Facts.References = []ReferenceFact{{Scope: ScopeNamespaced, Fact: known(job)}}
	})
	if d := Decide(in); !d.Allowed || d.Reason != ReasonCorrected || len(d.Warnings) > 0 {
		t.Errorf("%+v", d)
	}
}

func TestComplaintsAreFew(t *testing.T) {
	t.Parallel()
	var r Request
	var found []ReferenceFact
	for i := range 50 {
		r.References = append(r.References, metav1.OwnerReference{Name: fmt.Sprint(i)})
		found = append(found, ReferenceFact{Index: i, Fact: unknown(fact.CauseNoKind)})
	}
	if got, _ := lint(r, Policy{}, found, nil); len(got) != maxComplaints {
		t.Errorf("%d complaints", len(got))
	}
}

func TestAFactAboutNoReferenceIsNoPanic(t *testing.T) {
	t.Parallel()
	found := []ReferenceFact{{Index: -1, Fact: absent()}, {Index: 1, Fact: absent()}}
	if got, bad := lint(Request{References: []metav1.OwnerReference{{}}}, Policy{}, found, nil); len(got) > 0 || bad != nil {
		t.Errorf("%q %+v", got, bad)
	}
}
