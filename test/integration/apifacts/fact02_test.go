package apifacts

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Fact 2: a mutating webhook can fill an empty name of a POST with generateName.
// Without generateName in the same patch, a collision is an ordinary one; with it,
// it says "not able to generate a unique name".
func TestFact02_WebhookFillsTheNameOfGenerateName(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		patch   []operation
		message string // of the collision
		reason  metav1.StatusReason
	}{
		"generateName is removed": {
			patch:   []operation{{"add", "/metadata/name", "chosen"}, {"remove", "/metadata/generateName", nil}},
			message: `configmaps "chosen" already exists`,
			reason:  metav1.StatusReasonAlreadyExists,
		},
		"generateName is left": {
			patch:   []operation{{"add", "/metadata/name", "chosen"}},
			message: "not able to generate a unique name",
			reason:  metav1.StatusReasonAlreadyExists,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t, usual)
			mutating := f.mutating(t, hookSpec{on: onConfigMaps(create), answer: func(*request) *response { return patch(tc.patch...) }})

			if got := f.createConfigMap(t, metav1.ObjectMeta{GenerateName: "prefix-"}).Name; got != "chosen" {
				t.Errorf("the name is %q; want %q", got, "chosen")
			}
			for _, r := range mutating.requests() {
				if got := decode[metav1.PartialObjectMetadata](t, r.Object.Raw).Name; got != "" || r.Name != "" {
					t.Errorf("the webhook was shown the names %q and %q; want none", got, r.Name)
				}
			}
			_, err := f.configMaps().Create(t.Context(), configMap(metav1.ObjectMeta{GenerateName: "prefix-"}), metav1.CreateOptions{})
			if code(err) != http.StatusConflict || apierrors.ReasonForError(err) != tc.reason || !strings.Contains(err.Error(), tc.message) {
				t.Errorf("the collision says %d %s %v; want %d %s %q", code(err), apierrors.ReasonForError(err), err, http.StatusConflict, tc.reason, tc.message)
			}
		})
	}
}

// Fact 2: an AlreadyExists of the validating phase is retried by the server, eight
// times in all, while the name is the server's to generate. It is not when a
// webhook has filled the name, be generateName left or removed.
func TestFact02_AlreadyExistsOfTheValidatingPhaseIsRetried(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		patch     []operation
		mutations int // calls of the mutating webhook
		calls     int // of the validating webhook
		names     int // different ones that it was shown
	}{
		"the server generates the name": {patch: nil, mutations: 1, calls: 8, names: 8},
		"the webhook fills the name and leaves generateName": {
			patch: []operation{{"add", "/metadata/name", "chosen"}}, mutations: 1, calls: 1, names: 1,
		},
		"the webhook fills the name and removes generateName": {
			patch: []operation{{"add", "/metadata/name", "chosen"}, {"remove", "/metadata/generateName", nil}}, mutations: 1, calls: 1, names: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t, usual)
			mutating := f.mutating(t, hookSpec{on: onConfigMaps(create), answer: func(*request) *response {
				return patch(tc.patch...)
			}})
			validating := f.validating(t, hookSpec{on: onConfigMaps(create), answer: func(*request) *response {
				return &response{Result: &metav1.Status{Code: http.StatusConflict, Reason: metav1.StatusReasonAlreadyExists, Message: "no"}}
			}})

			_, err := f.configMaps().Create(t.Context(), configMap(metav1.ObjectMeta{GenerateName: "prefix-"}), metav1.CreateOptions{})
			if !apierrors.IsAlreadyExists(err) {
				t.Errorf("the create ended with %v; want AlreadyExists", err)
			}
			names := map[string]bool{}
			for _, r := range validating.requests() {
				names[decode[metav1.PartialObjectMetadata](t, r.Object.Raw).Name] = true
			}
			got := []int{len(mutating.requests()), len(validating.requests()), len(names)}
			if diff := cmp.Diff([]int{tc.mutations, tc.calls, tc.names}, got); diff != "" {
				t.Errorf("mutating calls, validating calls and names (-want +got):\n%s", diff)
			}
		})
	}
}

// Fact 2: after an apply-create whose name a webhook has changed, the object is
// stored under one name and says another, and cannot be deleted by the one that it
// says, nor as one of a collection, which is how namespaces are emptied. It can by
// the name that the request carried, which nobody can read from it.
func TestFact02_ApplyCreateWithChangedNameIsStoredUnderAnother(t *testing.T) {
	f := setUp(t, usual)
	f.mutating(t, hookSpec{on: onConfigMaps(create), answer: func(*request) *response {
		return patch(operation{"replace", "/metadata/name", "says"})
	}})

	applied, err := f.configMaps().Patch(t.Context(), "asked", types.ApplyPatchType,
		[]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"asked"}}`), metav1.PatchOptions{FieldManager: "test"})
	if err != nil {
		t.Fatal(err)
	}
	// Otherwise the namespace could never end.
	f.cleanup(t, func(ctx context.Context) error { return f.configMaps().Delete(ctx, "asked", metav1.DeleteOptions{}) })
	if applied.Name != "says" {
		t.Errorf("the answer has the name %q; want %q", applied.Name, "says")
	}

	stored := func() {
		t.Helper()
		got, err := f.configMaps().Get(t.Context(), "asked", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got.Name != "says" || got.UID != applied.UID {
			t.Errorf("stored is %q (%s); want %q (%s)", got.Name, got.UID, "says", applied.UID)
		}
		if _, err := f.configMaps().Get(t.Context(), "says", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("reading it by the name that it says ended with %v; want NotFound", err)
		}
	}
	stored()
	if err := f.configMaps().Delete(t.Context(), "says", metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("deleting it by the name that it says ended with %v; want NotFound", err)
	}
	if err := f.configMaps().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Errorf("deleting all: %v", err)
	}
	stored()
	if err := f.configMaps().Delete(t.Context(), "asked", metav1.DeleteOptions{}); err != nil {
		t.Errorf("deleting it by the name that was asked for: %v", err)
	}
	if _, err := f.configMaps().Get(t.Context(), "asked", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("reading it then ended with %v; want NotFound", err)
	}
}

// Fact 2: never change a name that the request carries. A plain create is stored
// under the changed name; an update is refused.
func TestFact02_ChangedNameOfCreateAndUpdate(t *testing.T) {
	f := setUp(t, usual)
	f.mutating(t, hookSpec{on: onConfigMaps(create, update), answer: func(r *request) *response {
		if r.Operation == "UPDATE" {
			return patch(operation{"replace", "/metadata/name", "third"})
		}
		return patch(operation{"replace", "/metadata/name", "says"})
	}})
	made := f.createConfigMap(t, metav1.ObjectMeta{Name: "asked"})
	if made.Name != "says" {
		t.Errorf("the answer has the name %q; want %q", made.Name, "says")
	}
	if _, err := f.configMaps().Get(t.Context(), "asked", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("reading it by the name that was asked for ended with %v; want NotFound", err)
	}
	if _, err := f.configMaps().Update(t.Context(), made, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("updating it ended with %v; want Invalid", err)
	}
	if err := f.configMaps().Delete(t.Context(), "says", metav1.DeleteOptions{}); err != nil {
		t.Errorf("deleting it by the name that it says: %v", err)
	}
}
