package apifacts

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

// Fact 7: a status field that the schema lacks is pruned after admission, with 200
// and no warning.
func TestFact07_UnknownStatusFieldOfWebhookIsPrunedAfterAdmission(t *testing.T) {
	f := setUp(t, usual)
	f.createWidget(t, "one", object{"phase": "Old", "last": object{"result": "Old"}})
	f.mutating(t, hookSpec{on: onWidgetStatus(update), answer: func(*request) *response {
		return patch(operation{"add", "/status/unknown", "added"}, operation{"add", "/status/last/unknown", "added"})
	}})
	validating := f.validating(t, hookSpec{on: onWidgetStatus(update)})

	answer, body := f.send(t, http.MethodPatch, f.widgetPath("one")+"/status?fieldValidation=Strict", string(types.MergePatchType), object{"status": object{"phase": "New"}})
	if answer.StatusCode != http.StatusOK || len(answer.Header.Values("Warning")) != 0 {
		t.Errorf("the answer is %d with warnings %q: %s", answer.StatusCode, answer.Header.Values("Warning"), body)
	}
	asked := validating.requests()
	if len(asked) != 1 {
		t.Fatalf("the validating webhook was called %d times; want once", len(asked))
	}
	shown := object{"phase": "New", "unknown": "added", "last": object{"result": "Old", "unknown": "added"}}
	if diff := cmp.Diff(any(shown), decode[object](t, asked[0].Object.Raw)["status"]); diff != "" {
		t.Errorf("status at validating admission (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(object{"phase": "New", "last": object{"result": "Old"}}, f.widget(t, "one").Object["status"]); diff != "" {
		t.Errorf("stored status (-want +got):\n%s", diff)
	}
}

// Beside fact 7: an unknown field of the client is pruned before admission, and the
// client is warned unless it asks for something else.
func TestFact07_UnknownStatusFieldOfClientIsPrunedBeforeAdmission(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		query    string
		warnings []string
		refused  bool
	}{
		"by default":                  {"", []string{`299 - "unknown field \"status.unknown\""`}, false},
		"with fieldValidation Ignore": {"?fieldValidation=Ignore", nil, false},
		"with fieldValidation Strict": {"?fieldValidation=Strict", nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t, usual)
			f.createWidget(t, "one", object{"phase": "Old"})
			mutating := f.mutating(t, hookSpec{on: onWidgetStatus(update)})
			body := f.widget(t, "one").Object
			body["status"] = object{"phase": "New", "unknown": "added"}

			answer, content := f.send(t, http.MethodPut, f.widgetPath("one")+"/status"+tc.query, "application/json", body)
			if refused := answer.StatusCode == http.StatusBadRequest; refused != tc.refused || !refused && answer.StatusCode != http.StatusOK {
				t.Errorf("the answer is %d: %s", answer.StatusCode, content)
			}
			if diff := cmp.Diff(tc.warnings, answer.Header.Values("Warning")); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			var shown, want []any
			for _, r := range mutating.requests() {
				shown = append(shown, decode[object](t, r.Object.Raw)["status"])
			}
			if !tc.refused {
				want = []any{object{"phase": "New"}}
			}
			if diff := cmp.Diff(want, shown); diff != "" {
				t.Errorf("statuses that the webhook was shown (-want +got):\n%s", diff)
			}
		})
	}
}
