package apifacts

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Fact 5: on /status the webhook sees the merged object and the old one: not the
// patch, not the verb, not a client's null.
func TestFact05_StatusWebhookSeesMergedAndOldObjectOnly(t *testing.T) {
	t.Parallel()
	// All of these remove .status.phase and set .status.count to 2.
	for name, tc := range map[string]struct {
		method, contentType string
		body                func(*fixture, *testing.T) any
	}{
		"a merge patch with null": {http.MethodPatch, string(types.MergePatchType), func(*fixture, *testing.T) any {
			return object{"status": object{"phase": nil, "count": 2}}
		}},
		"a JSON patch": {http.MethodPatch, string(types.JSONPatchType), func(*fixture, *testing.T) any {
			return []operation{{"remove", "/status/phase", nil}, {"replace", "/status/count", 2}}
		}},
		"a replacement": {http.MethodPut, "application/json", func(f *fixture, t *testing.T) any {
			body := f.widget(t, "one").Object
			body["status"] = object{"count": 2}
			return body
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t, usual)
			f.createWidget(t, "one", object{"phase": "Old", "count": int64(1)})
			mutating := f.mutating(t, hookSpec{on: onWidgetStatus(update)})
			validating := f.validating(t, hookSpec{on: onWidgetStatus(update)})

			answer, body := f.send(t, tc.method, f.widgetPath("one")+"/status", tc.contentType, tc.body(f, t))
			if answer.StatusCode != http.StatusOK {
				t.Fatalf("the answer is %d: %s", answer.StatusCode, body)
			}
			for phase, h := range map[string]*hook{"mutating": mutating, "validating": validating} {
				asked := h.requests()
				if len(asked) != 1 {
					t.Fatalf("the %s webhook was called %d times; want once", phase, len(asked))
				}
				type view struct {
					Operation, SubResource, Options string
					Object, OldObject               object // their status
					Spec                            object
				}
				merged, old := decode[object](t, asked[0].Object.Raw), decode[object](t, asked[0].OldObject.Raw)
				got := view{
					Operation:   string(asked[0].Operation),
					SubResource: asked[0].SubResource,
					Options:     decode[metav1.TypeMeta](t, asked[0].Options.Raw).Kind,
					Object:      merged["status"].(object),
					OldObject:   old["status"].(object),
					Spec:        merged["spec"].(object),
				}
				want := view{
					Operation:   "UPDATE",
					SubResource: "status",
					Options:     "UpdateOptions",
					Object:      object{"count": 2.0},
					OldObject:   object{"phase": "Old", "count": 1.0},
					Spec:        object{"size": 1.0},
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("what the %s webhook was shown (-want +got):\n%s", phase, diff)
				}
			}
		})
	}
}

// Fact 5: a client's null is shown where it stays in the object, and only there: on
// nullable fields that are not merge-patched. Elsewhere the field is just absent, but
// for server-side apply, whose null is shown and then refused.
func TestFact05_WhatIsShownOfClientsNull(t *testing.T) {
	t.Parallel()
	put := func(field string) func(*fixture, *testing.T) (*http.Response, []byte) {
		return func(f *fixture, t *testing.T) (*http.Response, []byte) {
			body := f.widget(t, "one").Object
			body["status"].(object)[field] = nil
			return f.send(t, http.MethodPut, f.widgetPath("one")+"/status", "application/json", body)
		}
	}
	with := func(contentType types.PatchType, body any) func(*fixture, *testing.T) (*http.Response, []byte) {
		return func(f *fixture, t *testing.T) (*http.Response, []byte) {
			return f.send(t, http.MethodPatch, f.widgetPath("one")+"/status?fieldManager=test"+force(contentType), string(contentType), body)
		}
	}
	applied := func(field string) object {
		return object{"apiVersion": widgetResource.GroupVersion().String(), "kind": "Widget", "metadata": object{"name": "one"}, "status": object{field: nil}}
	}
	absent := "absent"
	for name, tc := range map[string]struct {
		field string
		send  func(*fixture, *testing.T) (*http.Response, []byte)
		code  int
		shown any // the value of the field; absent when it is not there
	}{
		"a merge patch of a field that is not nullable": {"phase", with(types.MergePatchType, object{"status": object{"phase": nil}}), http.StatusOK, absent},
		"a merge patch of a nullable field":             {"message", with(types.MergePatchType, object{"status": object{"message": nil}}), http.StatusOK, absent},
		"a JSON patch of a field that is not nullable":  {"phase", with(types.JSONPatchType, []operation{{"add", "/status/phase", nil}}), http.StatusOK, absent},
		"a JSON patch of a nullable field":              {"message", with(types.JSONPatchType, []operation{{"add", "/status/message", nil}}), http.StatusOK, nil},
		"a replacement of a field that is not nullable": {"phase", put("phase"), http.StatusOK, absent},
		"a replacement of a nullable field":             {"message", put("message"), http.StatusOK, nil},
		"an apply of a field that is not nullable":      {"phase", with(types.ApplyPatchType, applied("phase")), http.StatusUnprocessableEntity, nil},
		"an apply of a nullable field":                  {"message", with(types.ApplyPatchType, applied("message")), http.StatusOK, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t, usual)
			f.createWidget(t, "one", object{"phase": "Old", "message": "old", "count": int64(1)})
			mutating := f.mutating(t, hookSpec{on: onWidgetStatus(update)})
			answer, body := tc.send(f, t)
			if answer.StatusCode != tc.code {
				t.Errorf("the answer is %d; want %d: %s", answer.StatusCode, tc.code, body)
			}
			asked := mutating.requests()
			if len(asked) != 1 {
				t.Fatalf("the webhook was called %d times; want once", len(asked))
			}
			got, ok := decode[object](t, asked[0].Object.Raw)["status"].(object)[tc.field]
			if !ok {
				got = absent
			}
			if got != tc.shown {
				t.Errorf("the webhook was shown %v; want %v", got, tc.shown)
			}
		})
	}
}

// force is what server-side apply needs to take a field from its manager.
func force(contentType types.PatchType) string {
	if contentType == types.ApplyPatchType {
		return "&force=true"
	}
	return ""
}

// Fact 5: metadata or spec changes of a webhook on /status are dropped silently.
func TestFact05_OtherChangesOnStatusAreDroppedSilently(t *testing.T) {
	f := setUp(t, usual)
	f.createWidget(t, "one", object{"phase": "Old"})
	f.mutating(t, hookSpec{on: onWidgetStatus(update), answer: func(*request) *response {
		return patch(
			operation{"add", "/metadata/labels", object{"added": "yes"}},
			operation{"add", "/metadata/annotations", object{"added": "yes"}},
			operation{"add", "/metadata/finalizers", []string{hold}},
			operation{"replace", "/spec/size", 99},
			operation{"add", "/status/message", "added"},
		)
	}})

	answer, body := f.send(t, http.MethodPatch, f.widgetPath("one")+"/status", string(types.MergePatchType), object{"status": object{"phase": "New"}})
	if answer.StatusCode != http.StatusOK || len(answer.Header.Values("Warning")) != 0 {
		t.Fatalf("the answer is %d with warnings %q: %s", answer.StatusCode, answer.Header.Values("Warning"), body)
	}
	stored := f.widget(t, "one")
	if stored.GetLabels() != nil || stored.GetAnnotations() != nil || stored.GetFinalizers() != nil {
		t.Errorf("stored are labels %v, annotations %v, finalizers %v; want none", stored.GetLabels(), stored.GetAnnotations(), stored.GetFinalizers())
	}
	if diff := cmp.Diff(object{"size": int64(1)}, stored.Object["spec"]); diff != "" {
		t.Errorf("stored spec (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(object{"phase": "New", "message": "added"}, stored.Object["status"]); diff != "" {
		t.Errorf("stored status (-want +got):\n%s", diff)
	}
}

// Beside fact 5: kinds of Kubernetes itself differ: the spec of a Job is safe from
// its /status, its metadata is not.
func TestFact05_JobKeepsMetadataOfItsStatus(t *testing.T) {
	f := setUp(t, usual)
	f.createJob(t, metav1.ObjectMeta{Name: "one"})
	f.mutating(t, hookSpec{on: on("batch", "v1", "jobs/status", update), answer: func(*request) *response {
		return patch(operation{"add", "/metadata/annotations", object{"added": "yes"}}, operation{"replace", "/spec/suspend", false})
	}})
	got, err := f.jobs().Patch(t.Context(), "one", types.MergePatchType, []byte(`{"status":{"ready":0}}`), metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
	if got.Annotations["added"] != "yes" || !*got.Spec.Suspend {
		t.Errorf("stored are annotations %v, suspend %v; want the annotation, and suspended", got.Annotations, *got.Spec.Suspend)
	}
}
