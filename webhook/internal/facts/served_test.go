package facts

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/restmapper"

	"github.com/belay-dev/belay/test/builders"
)

// The resource of a policy in force may change under the same generation: the CRD was
// installed anew with another plural or scope, and the controller writes inForce again.
func TestANewResourceUnderTheSameGenerationIsActedOn(t *testing.T) {
	o := with(builders.MakeOwnerPolicy("otf").InForce(builders.Jobs()).Obj())
	s := NewOwnerPolicies(o, o)
	if _, _, err := s.Get(t.Context(), "otf"); err != nil {
		t.Fatal(err)
	}
	moved := builders.Jobs()
	moved.Namespaced = false
	o.policies["otf"] = builders.MakeOwnerPolicy("otf").InForce(moved).Obj()
	if p, _, _ := s.Get(t.Context(), "otf"); p.Resource.Namespaced {
		t.Errorf("%+v", p.Resource)
	}
}

// The mapper that app builds resolves kinds in lower case, too; what is injected must have
// the coordinates that the API server uses.
func TestO02_AKindInLowerCaseIsResolvedToItsOwnName(t *testing.T) {
	m := restmapper.NewDiscoveryRESTMapper([]*restmapper.APIGroupResources{{
		Group:              metav1.APIGroup{Name: "batch", Versions: []metav1.GroupVersionForDiscovery{{GroupVersion: "batch/v1", Version: "v1"}}},
		VersionedResources: map[string][]metav1.APIResource{"v1": {{Name: "jobs", Kind: "Job", Namespaced: true}}},
	}})
	got, err := NewReader(nil, m).Resolve("batch/v1", "job")
	if err != nil || got.Kind != "Job" {
		t.Errorf("%+v %v", got, err)
	}
}
