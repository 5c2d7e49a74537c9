package apifacts

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Fact 1: metadata.uid is empty at mutating CREATE and set at validating CREATE.
func TestFact01_UIDIsEmptyAtMutatingAndSetAtValidatingCreate(t *testing.T) {
	f := setUp(t, usual)
	mutating := f.mutating(t, hookSpec{on: onConfigMaps(create)})
	validating := f.validating(t, hookSpec{on: onConfigMaps(create)})

	posted := f.createConfigMap(t, metav1.ObjectMeta{Name: "posted"})
	generated := f.createConfigMap(t, metav1.ObjectMeta{GenerateName: "generated-"})
	applied, err := f.configMaps().Patch(t.Context(), "applied", types.ApplyPatchType,
		[]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"applied"}}`), metav1.PatchOptions{FieldManager: "test"})
	if err != nil {
		t.Fatal(err)
	}

	if diff := cmp.Diff([]types.UID{"", "", ""}, uids(t, mutating.requests())); diff != "" {
		t.Errorf("UIDs at mutating CREATE (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]types.UID{posted.UID, generated.UID, applied.UID}, uids(t, validating.requests())); diff != "" {
		t.Errorf("UIDs at validating CREATE (-want +got):\n%s", diff)
	}
}

// Fact 1: the UID of a validating CREATE may never come to exist, as the create
// can still lose with 409.
func TestFact01_UIDAtValidatingCreateMayNeverExist(t *testing.T) {
	f := setUp(t, usual)
	winner := f.createConfigMap(t, metav1.ObjectMeta{Name: "one"})
	validating := f.validating(t, hookSpec{on: onConfigMaps(create)})

	_, err := f.configMaps().Create(t.Context(), configMap(metav1.ObjectMeta{Name: "one"}), metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		t.Fatalf("the second create ended with %v; want AlreadyExists", err)
	}
	shown := uids(t, validating.requests())
	if len(shown) != 1 || shown[0] == "" || shown[0] == winner.UID {
		t.Errorf("the webhook was shown the UIDs %q; want one that is not the winner's %q", shown, winner.UID)
	}
	all, err := f.configMaps().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all.Items {
		if len(shown) == 1 && c.UID == shown[0] {
			t.Errorf("ConfigMap %q has the UID of the create that lost", c.Name)
		}
	}
}

// Fact 1: a webhook cannot choose a UID.
func TestFact01_WebhookCannotChooseUID(t *testing.T) {
	f := setUp(t, usual)
	const chosen = "11111111-2222-3333-4444-555555555555"
	f.mutating(t, hookSpec{on: onConfigMaps(create), answer: func(*request) *response {
		return patch(operation{"add", "/metadata/uid", chosen}, operation{"add", "/data", object{"patched": "yes"}})
	}})

	posted := f.createConfigMap(t, metav1.ObjectMeta{Name: "posted"})
	applied, err := f.configMaps().Patch(t.Context(), "applied", types.ApplyPatchType,
		[]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"applied"}}`), metav1.PatchOptions{FieldManager: "test"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*corev1.ConfigMap{posted, applied} {
		if c.Data["patched"] != "yes" {
			t.Errorf("%s: the patch was not applied", c.Name)
		}
		if c.UID == chosen || c.UID == "" {
			t.Errorf("%s has the UID %q", c.Name, c.UID)
		}
	}
}
