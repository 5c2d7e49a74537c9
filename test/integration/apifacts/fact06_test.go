package apifacts

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Fact 6: a JSON-patch null on a non-nullable field of a custom resource fails the
// whole write with 422; remove of an absent path, or add below an absent parent,
// gives 500, with failurePolicy Ignore, too.
func TestFact06_JSONPatchOfStatusThatDoesNotFit(t *testing.T) {
	t.Parallel()
	old := object{"phase": "Old"}
	for name, tc := range map[string]struct {
		patch operation
		code  int
		want  object // the stored status
	}{
		"null on a field that is not nullable":     {operation{"add", "/status/phase", nil}, http.StatusUnprocessableEntity, old},
		"null on a nullable field":                 {operation{"add", "/status/message", nil}, http.StatusOK, object{"phase": "Old", "count": int64(2), "message": nil}},
		"remove of an absent path":                 {operation{"remove", "/status/message", nil}, http.StatusInternalServerError, old},
		"remove of a path that is there":           {operation{"remove", "/status/phase", nil}, http.StatusOK, object{"count": int64(2)}},
		"replace of an absent path, which adds it": {operation{"replace", "/status/message", "new"}, http.StatusOK, object{"phase": "Old", "count": int64(2), "message": "new"}},
		"replace below an absent parent":           {operation{"replace", "/status/last/result", "new"}, http.StatusInternalServerError, old},
		"add below an absent parent":               {operation{"add", "/status/last/result", "new"}, http.StatusInternalServerError, old},
		"add of the parent":                        {operation{"add", "/status/last", object{"result": "new"}}, http.StatusOK, object{"phase": "Old", "count": int64(2), "last": object{"result": "new"}}},
		"a test that fails":                        {operation{"test", "/status/phase", "Other"}, http.StatusInternalServerError, old},
		"add of a value of the wrong type":         {operation{"add", "/status/phase", 7}, http.StatusUnprocessableEntity, old},
		"add of the path of a field that is there": {operation{"add", "/status/phase", "New"}, http.StatusOK, object{"phase": "New", "count": int64(2)}},
	} {
		for policy, ignore := range map[string]bool{"Fail": false, "Ignore": true} {
			t.Run(name+", failurePolicy "+policy, func(t *testing.T) {
				f := setUp(t, usual)
				f.createWidget(t, "one", old)
				f.mutating(t, hookSpec{on: onWidgetStatus(update), ignore: ignore, answer: func(*request) *response { return patch(tc.patch) }})

				answer, body := f.send(t, http.MethodPatch, f.widgetPath("one")+"/status", string(types.MergePatchType), object{"status": object{"count": 2}})
				if answer.StatusCode != tc.code {
					t.Errorf("the answer is %d; want %d: %s", answer.StatusCode, tc.code, body)
				}
				if diff := cmp.Diff(tc.want, f.widget(t, "one").Object["status"]); diff != "" {
					t.Errorf("stored status (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// Fact 6: emit remove and add only for what is there. Metadata without annotations
// has no parent for one, in a kind of Kubernetes itself, too.
func TestFact06_AnnotationBelowAbsentAnnotations(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		meta  metav1.ObjectMeta
		patch operation
		code  int
	}{
		"an annotation where there are none":   {metav1.ObjectMeta{Name: "one"}, operation{"add", "/metadata/annotations/new", "yes"}, http.StatusInternalServerError},
		"an annotation where there are some":   {metav1.ObjectMeta{Name: "one", Annotations: map[string]string{"old": "yes"}}, operation{"add", "/metadata/annotations/new", "yes"}, http.StatusOK},
		"annotations where there are none":     {metav1.ObjectMeta{Name: "one"}, operation{"add", "/metadata/annotations", object{"new": "yes"}}, http.StatusOK},
		"an owner where there are none":        {metav1.ObjectMeta{Name: "one"}, operation{"add", "/metadata/ownerReferences/-", object{}}, http.StatusInternalServerError},
		"removing annotations that are absent": {metav1.ObjectMeta{Name: "one"}, operation{"remove", "/metadata/annotations", nil}, http.StatusInternalServerError},
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t, usual)
			f.mutating(t, hookSpec{on: onConfigMaps(create), answer: func(*request) *response { return patch(tc.patch) }})
			_, err := f.configMaps().Create(t.Context(), configMap(tc.meta), metav1.CreateOptions{})
			if code(err) != int32(tc.code) {
				t.Errorf("the create ended with %v; want %d", err, tc.code)
			}
		})
	}
}
