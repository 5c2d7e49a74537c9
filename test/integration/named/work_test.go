package named

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// meddler registers a second mutating webhook for Jobs with these labels. Its name is
// behind belay's, so it is called later, and reinvoked.
func meddler(t *testing.T, labels map[string]string, patch func(*batchv1.Job) []map[string]any) *atomic.Int32 {
	t.Helper()
	ctx := testContext(t)
	var calls atomic.Int32
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		var review admissionv1.AdmissionReview
		var j batchv1.Job
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || json.Unmarshal(review.Request.Object.Raw, &j) != nil {
			http.Error(w, "no review", http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		if ops := patch(&j); len(ops) > 0 {
			review.Response.Patch, _ = json.Marshal(ops)
			kind := admissionv1.PatchTypeJSONPatch
			review.Response.PatchType = &kind
		}
		review.Request = nil
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(server.Close)
	fail, again, none := admissionregistrationv1.Fail, admissionregistrationv1.IfNeededReinvocationPolicy, admissionregistrationv1.SideEffectClassNone
	c := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "zz-" + labels["test"]},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "meddler.example.com",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: &server.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{"batch"}, APIVersions: []string{"v1"}, Resources: []string{"jobs"}},
			}},
			ObjectSelector: &metav1.LabelSelector{MatchLabels: labels},
			FailurePolicy:  &fail, SideEffects: &none, ReinvocationPolicy: &again, AdmissionReviewVersions: []string{"v1"},
		}},
	}
	if err := shared.Client.Create(ctx, c); err != nil {
		t.Fatal(err)
	}
	cleanup(t, func(ctx context.Context) { _ = shared.Client.Delete(ctx, c) })
	return &calls
}

// The same work posted again is the same, although what is stored is not what was
// posted: the API server's defaults, a second webhook that adds a random variable, a
// digest to the image and a native sidecar in belay's own name. The identity here is
// as wide as it can be: the whole list of containers.
func TestTheSameWorkAlthoughOthersChangedIt(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	labels := policy(ctx, t, shared, "meddled", func(s *v1alpha1.NamePolicySpec) {
		s.Identity = []string{"object.spec.template.spec.containers"}
	})
	calls := meddler(t, labels, func(j *batchv1.Job) []map[string]any {
		main := j.Spec.Template.Spec.Containers[0]
		if len(main.Env) > 0 {
			return nil
		}
		sidecar := map[string]any{"name": "belay-sidecar", "image": "ghcr.io/belay-dev/belay-sidecar:latest", "restartPolicy": "Always"}
		return []map[string]any{
			{"op": "add", "path": "/spec/template/spec/containers/0/env", "value": []any{map[string]any{"name": "TRACE_ID", "value": rand.Text()}}},
			{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": fmt.Sprintf("%s@sha256:%064x", main.Image, 1)},
			{"op": "add", "path": "/spec/template/spec/initContainers", "value": []any{sidecar}},
		}
	})
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	probe := 0
	eventually(ctx, t, "the second webhook is called", func() error {
		probe++
		j := job(ns, fmt.Sprintf("probe-%d", probe), "w", labels)
		if err := shared.Client.Create(ctx, j); err != nil {
			return err
		}
		if len(j.Spec.Template.Spec.Containers[0].Env) == 0 {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	before := calls.Load()
	first := create(ctx, t, shared.Client, job(ns, "a", "one", labels))
	if c := first.Spec.Template.Spec.Containers[0]; len(c.Env) != 1 || c.TerminationMessagePath == "" || len(first.Spec.Template.Spec.InitContainers) != 1 {
		t.Fatalf("nothing was changed: %+v", first.Spec.Template.Spec)
	}
	s := raw(ctx, t, shared, job(ns, "a", "one", labels))
	answerIs(t, s, 409, "AlreadyExists", v1alpha1.CauseSameWork)
	if s.Details.UID != first.UID {
		t.Errorf("details.uid is %q", s.Details.UID)
	}
	answerIs(t, raw(ctx, t, shared, job(ns, "a", "two", labels)), 409, "Conflict", v1alpha1.CauseOtherWork)
	if calls.Load() == before {
		t.Error("the second webhook was not called")
	}
}

// A client cannot bring the mark of other work, not even by copying a live object.
func TestAMarkIsNeverTakenFromTheClient(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	labels := policy(ctx, t, shared, "forged", nil)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	first := create(ctx, t, shared.Client, job(ns, "a", "one", labels))
	forged := job(ns, "a", "two", labels)
	forged.Annotations[v1alpha1.WorkAnnotation] = first.Annotations[v1alpha1.WorkAnnotation]
	answerIs(t, raw(ctx, t, shared, forged), 409, "Conflict", v1alpha1.CauseOtherWork)
	other := job(ns, "b", "one", labels)
	other.Annotations[v1alpha1.WorkAnnotation] = "anything"
	if got := create(ctx, t, shared.Client, other).Annotations[v1alpha1.WorkAnnotation]; got != first.Annotations[v1alpha1.WorkAnnotation] {
		t.Errorf("marked %q", got)
	}
}

// Defaults alone change nothing either, and an unmarked object is adopted where the
// policy says so: its work is computed from what is stored.
func TestAdoptUnmarked(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	labels := policy(ctx, t, shared, "adopting", func(s *v1alpha1.NamePolicySpec) { s.AdoptUnmarked = true })
	strict := policy(ctx, t, shared, "not-adopting", nil)
	ns := namespace(ctx, t, shared, "") // not opted in yet: nothing is marked
	for name, l := range map[string]map[string]string{"a": labels, "b": strict} {
		if j := create(ctx, t, shared.Client, job(ns, name, "one", l)); j.Annotations[v1alpha1.WorkAnnotation] != "" {
			t.Fatal("marked in a namespace that did not opt in")
		}
	}
	optIn(ctx, t, ns, v1alpha1.ModeEnforce)
	answerIs(t, raw(ctx, t, shared, job(ns, "a", "one", labels)), 409, "AlreadyExists", v1alpha1.CauseSameWork)
	answerIs(t, raw(ctx, t, shared, job(ns, "a", "two", labels)), 409, "Conflict", v1alpha1.CauseOtherWork)
	answerIs(t, raw(ctx, t, shared, job(ns, "b", "one", strict)), 409, "Conflict", v1alpha1.CauseOtherWork)

	// Adopted or not, what carries no mark is never deleted (N30).
	for _, name := range []string{"a", "b"} {
		j, err := shared.Kube.BatchV1().Jobs(ns).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		complete(ctx, t, j)
		l := labels
		if name == "b" {
			l = strict
		}
		s := raw(ctx, t, shared, job(ns, name, "one", l))
		answerIs(t, s, 409, "Conflict", v1alpha1.CauseOtherWork)
		says(t, s.Message, "carries no mark of belay")
		if liveUID(ctx, t, ns, name) != j.UID {
			t.Errorf("%s was deleted", name)
		}
	}
}
