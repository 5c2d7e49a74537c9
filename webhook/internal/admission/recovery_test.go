package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/metrics"
	"github.com/belay-dev/belay/webhook/internal/recovery"
)

// guardStage is the guard over a cluster that the test describes: Box "a" in namespace
// "lab" is guarded by policy "boxes". Its Pods are what found gives.
type guardStage struct {
	t *testing.T

	policies map[string]*facts.RecoveryPolicy
	standing facts.Standing // of policies that are not in the map
	mode     string
	modeOf   func(context.Context) (string, error) // instead of mode
	found    func(ctx context.Context, live bool) recovery.PodsFact
	log      logr.Logger

	mu sync.Mutex
	// looks are the looks at Pods: "cached", "live". about are the objects that they were for.
	looks []string
	about []*unstructured.Unstructured
}

// knownPods are Pods that the caches and the API server agree on.
func knownPods(pods ...recovery.Pod) func(context.Context, bool) recovery.PodsFact {
	return func(_ context.Context, live bool) recovery.PodsFact {
		return recovery.PodsFact{State: fact.Known, Live: live, Pods: pods}
	}
}

func setGuard(t *testing.T, changes ...func(*guardStage)) *guardStage {
	t.Helper()
	s := &guardStage{
		t: t, policies: map[string]*facts.RecoveryPolicy{"boxes": boxPolicy(t, nil)}, standing: facts.StandingAbsent,
		mode: v1alpha1.ModeEnforce, found: knownPods(), log: logr.Discard(),
	}
	for _, change := range changes {
		change(s)
	}
	return s
}

// boxPolicy is a policy in force, as the store gives it; change may be nil.
func boxPolicy(t testing.TB, change func(*v1alpha1.AcceptedRecoveryPolicy)) *facts.RecoveryPolicy {
	t.Helper()
	in := v1alpha1.AcceptedRecoveryPolicy{
		Generation: 1,
		Resource:   v1alpha1.ResolvedResource{Group: "example.com", Version: "v1", Kind: "Box", Resource: "boxes", Namespaced: true},
		Record:     v1alpha1.RecordSchema{Cleared: v1alpha1.ClearRemove},
		Spec: builders.MakeRecoveryPolicy("boxes").Spec(func(s *v1alpha1.RecoveryPolicySpec) {
			s.Resource = v1alpha1.Kind{APIVersion: "example.com/v1", Kind: "Box"}
			s.Phases.Recovered = []v1alpha1.Phase{"Running", "Pending"}
			s.ResumeInFlight = `object.metadata.?generation.orValue(0) > object.?status.?observed.orValue(0)`
		}).Obj().Spec,
	}
	if change != nil {
		change(&in)
	}
	p, err := facts.CompileRecoveryPolicy(&v1alpha1.RecoveryPolicy{ObjectMeta: metav1.ObjectMeta{Name: "boxes"}, Status: v1alpha1.RecoveryPolicyStatus{InForce: &in}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// guarded has another policy in force.
func guarded(change func(*v1alpha1.AcceptedRecoveryPolicy)) func(*guardStage) {
	return func(s *guardStage) { s.policies["boxes"] = boxPolicy(s.t, change) }
}

func ignoring(in *v1alpha1.AcceptedRecoveryPolicy) { in.Spec.FailurePolicy = v1alpha1.FailureIgnore }

func havingPods(pods ...recovery.Pod) func(*guardStage) {
	return func(s *guardStage) { s.found = knownPods(pods...) }
}

func unknownPods(f recovery.PodsFact) func(*guardStage) {
	return func(s *guardStage) { s.found = func(context.Context, bool) recovery.PodsFact { return f } }
}

func warning(s *guardStage) { s.mode = v1alpha1.ModeWarn }

func (s *guardStage) Get(_ context.Context, name string) (*facts.RecoveryPolicy, facts.Standing, error) {
	if p, ok := s.policies[name]; ok {
		return p, facts.StandingInForce, nil
	}
	switch s.standing {
	case panicking:
		panic("boom")
	case facts.StandingUnknown:
		return nil, s.standing, fmt.Errorf("reading policy %q: no connection", name)
	}
	return nil, s.standing, nil
}

func (s *guardStage) Mode(ctx context.Context, _ string) (string, error) {
	if s.modeOf != nil {
		return s.modeOf(ctx)
	}
	return s.mode, nil
}

func (s *guardStage) Of(ctx context.Context, _ *facts.RecoveryPolicy, object *unstructured.Unstructured, live bool) recovery.PodsFact {
	s.mu.Lock()
	word := "cached"
	if live {
		word = "live"
	}
	s.looks, s.about = append(s.looks, word), append(s.about, object.DeepCopy())
	many := len(s.looks) > 100
	s.mu.Unlock()
	if many {
		panic("asked a hundred times")
	}
	return s.found(ctx, live)
}

func (s *guardStage) handler() *Recovery {
	return &Recovery{Policies: s, Modes: s, Pods: s, Log: s.log, OwnNamespace: "belay-system"}
}

// server serves the stage over HTTP, on the paths that the app registers.
func (s *guardStage) server() *httptest.Server {
	s.t.Helper()
	h := s.handler()
	mux := http.NewServeMux()
	mux.Handle(MutateRecoveryPath+"/", h.Mutate())
	mux.Handle(ValidateRecoveryPath+"/", h.Validate())
	srv := httptest.NewServer(mux)
	s.t.Cleanup(srv.Close)
	return srv
}

func (s *guardStage) review(path string, req *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	s.t.Helper()
	return review(s.t, s.server(), path, req)
}

// decided answers a request without HTTP between.
func (s *guardStage) decided(phase string, req *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	s.t.Helper()
	o, err := s.handler().review(s.t.Context(), asked{phase: phase, policyName: "boxes", req: req})
	if err != nil {
		s.t.Fatal(err)
	}
	return respond(req, o)
}

const (
	guardMutating   = "/mutate/recovery/boxes"
	guardValidating = "/validate/recovery/boxes"
)

// box is Box "a" with a status, as JSON; changes are applied to its text.
func box(status string, changes ...string) string {
	out := `{"apiVersion":"example.com/v1","kind":"Box","metadata":{"name":"a","namespace":"lab","uid":"box-uid"},"spec":{"size":1},"status":` + status + `}`
	return strings.NewReplacer(changes...).Replace(out)
}

// updating is the write of a status.
func updating(old, object string, changes ...func(*admissionv1.AdmissionRequest)) *admissionv1.AdmissionRequest {
	req := &admissionv1.AdmissionRequest{
		UID:       "review-uid",
		Kind:      metav1.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Box"},
		Resource:  metav1.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "boxes"},
		Operation: admissionv1.Update, SubResource: "status", Namespace: "lab", Name: "a",
		OldObject: runtime.RawExtension{Raw: []byte(old)}, Object: runtime.RawExtension{Raw: []byte(object)},
	}
	for _, change := range changes {
		change(req)
	}
	return req
}

// healthy is a Pod that is ready; crashing is one whose container waits for its next try.
func healthy(uid string) recovery.Pod { return podLike(uid, true, "") }

func crashing(uid string) recovery.Pod { return podLike(uid, false, "CrashLoopBackOff") }

func podLike(uid string, ready bool, waiting string) recovery.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod-" + uid, UID: types.UID(uid)},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}},
		Status: corev1.PodStatus{
			Phase:             corev1.PodRunning,
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "main", Ready: ready, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
		},
	}
	if ready {
		p.Status.Conditions[0].Status = corev1.ConditionTrue
	}
	if waiting != "" {
		p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: waiting}}
	}
	return recovery.PodOf(p)
}

// The statuses that these tests write.
const (
	running      = `{"phase":"Running"}`
	failedBare   = `{"phase":"Failed"}`
	failedU1     = `{"phase":"Failed","failedPodUIDs":["u1"]}`
	runningU1    = `{"phase":"Running","failedPodUIDs":["u1"]}`
	resumeFailed = `{"phase":"Failed","conditions":[{"type":"ResumeFailed","status":"True"}]}`
)

func TestWhatIsNoReviewOfAGuardIsRefused(t *testing.T) {
	t.Parallel()
	fine := string(reviewOf(t, updating(box(failedU1), box(running))))
	for name, c := range map[string]struct {
		method, path, contentType, body string
		standing                        facts.Standing
		code                            int
		message                         string
	}{
		"no JSON":                          {path: guardMutating, body: "junk", code: 400, message: "not an AdmissionReview"},
		"nothing":                          {path: guardValidating, body: "", code: 400, message: "the body is empty"},
		"a review without a request":       {path: guardMutating, body: `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, code: 400, message: "has no request"},
		"an object where a list should be": {path: guardMutating, body: strings.Replace(fine, `"uid":"review-uid"`, `"uid":["review-uid"]`, 1), code: 400, message: "not an AdmissionReview"},
		"a v1beta1 review":                 {path: guardMutating, body: strings.Replace(fine, "admission.k8s.io/v1", "admission.k8s.io/v1beta1", 1), code: 400, message: "apiVersion and kind must be"},
		"another type of content":          {path: guardValidating, body: fine, contentType: "application/yaml", code: 400, message: "content type"},
		"a GET":                            {method: http.MethodGet, path: guardMutating, code: 405, message: "POST"},
		"P11: a body without end":          {path: guardMutating, body: strings.Replace(fine, `"size":1`, `"size":"`+strings.Repeat("x", maxBody)+`"`, 1), code: 413, message: "a review may have"},
		"a path without a policy":          {path: MutateRecoveryPath + "/", body: fine, code: 404, message: "the path names no policy"},
		"a policy that does not exist":     {path: ValidateRecoveryPath + "/nope", body: fine, standing: facts.StandingAbsent, code: 404, message: `there is no RecoveryPolicy "nope"`},
		"a policy that cannot be read":     {path: MutateRecoveryPath + "/nope", body: fine, standing: facts.StandingUnknown, code: 500, message: `RecoveryPolicy "nope" could not be read in time`},
		"a store that panics":              {path: ValidateRecoveryPath + "/nope", body: fine, standing: panicking, code: 500, message: "belay had an internal error"},
		"a path that goes on":              {path: guardMutating + "/more", body: fine, standing: facts.StandingAbsent, code: 404, message: `there is no RecoveryPolicy "boxes/more"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setGuard(t, func(s *guardStage) { s.standing = c.standing })
			srv := s.server()
			if c.method == "" {
				c.method = http.MethodPost
			}
			if c.contentType == "" {
				c.contentType = "application/json"
			}
			req, err := http.NewRequestWithContext(t.Context(), c.method, srv.URL+c.path, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", c.contentType)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			body, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != c.code || !strings.Contains(string(body), c.message) {
				t.Errorf("%d %s %v", resp.StatusCode, body, err)
			}
			if len(s.looks) > 0 {
				t.Errorf("looks %v", s.looks)
			}
			// The process goes on.
			if again := review(t, srv, guardMutating, updating(box(running), box(running))); !again.Allowed {
				t.Errorf("%+v", again)
			}
		})
	}
}

// TestReviewsThatTheGuardHasNothingToSayAbout: admitted, untouched, and no Pod looked at.
func TestReviewsThatTheGuardHasNothingToSayAbout(t *testing.T) {
	t.Parallel()
	type changes = []func(*admissionv1.AdmissionRequest)
	sub := func(s string) func(*admissionv1.AdmissionRequest) {
		return func(r *admissionv1.AdmissionRequest) { r.SubResource = s }
	}
	operation := func(o admissionv1.Operation) func(*admissionv1.AdmissionRequest) {
		return func(r *admissionv1.AdmissionRequest) { r.Operation = o }
	}
	object := func(raw string) func(*admissionv1.AdmissionRequest) {
		return func(r *admissionv1.AdmissionRequest) { r.Object.Raw = []byte(raw) }
	}
	old := func(raw string) func(*admissionv1.AdmissionRequest) {
		return func(r *admissionv1.AdmissionRequest) { r.OldObject.Raw = []byte(raw) }
	}
	in := func(namespace string) func(*admissionv1.AdmissionRequest) {
		return func(r *admissionv1.AdmissionRequest) { r.Namespace = namespace }
	}
	noPolicy := func(standing facts.Standing) func(*guardStage) {
		return func(s *guardStage) { s.policies, s.standing = nil, standing }
	}
	for name, c := range map[string]struct {
		stage    func(*guardStage)
		change   changes
		reason   string
		warnings []string
	}{
		"the main resource, whose status is not stored": {change: changes{sub("")}, reason: "Untouched"},
		"another subresource":                           {change: changes{sub("scale")}, reason: "Untouched"},
		"one that is called alike":                      {change: changes{sub("Status")}, reason: "Untouched"},
		"a create":                                      {change: changes{operation(admissionv1.Create), old("null")}, reason: "Untouched"},
		"a delete":                                      {change: changes{operation(admissionv1.Delete), object("null")}, reason: "Untouched"},
		"a connect":                                     {change: changes{operation(admissionv1.Connect)}, reason: "Untouched"},
		"an object that is null":                        {change: changes{object("null")}, reason: "ObjectUnreadable", warnings: []string{"belay: the objects in the review cannot be read, so that nothing is guarded"}},
		"no object":                                     {change: changes{object("")}, reason: "ObjectUnreadable", warnings: []string{"belay: the objects in the review cannot be read, so that nothing is guarded"}},
		"an old object that is null":                    {change: changes{old("null")}, reason: "ObjectUnreadable", warnings: []string{"belay: the objects in the review cannot be read, so that nothing is guarded"}},
		"no old object":                                 {change: changes{old("")}, reason: "ObjectUnreadable", warnings: []string{"belay: the objects in the review cannot be read, so that nothing is guarded"}},
		"an object that is a list":                      {change: changes{object(`[{}]`)}, reason: "ObjectUnreadable", warnings: []string{"belay: the objects in the review cannot be read, so that nothing is guarded"}},
		"an old object that is a number":                {change: changes{old("7")}, reason: "ObjectUnreadable", warnings: []string{"belay: the objects in the review cannot be read, so that nothing is guarded"}},
		"an old object without metadata":                {change: changes{old(`{"status":` + failedU1 + `}`)}, reason: "ObjectUnreadable", warnings: []string{"belay: the objects in the review cannot be read, so that nothing is guarded"}},
		"an old object whose metadata is a text":        {change: changes{old(`{"metadata":"a"}`)}, reason: "ObjectUnreadable", warnings: []string{"belay: the objects in the review cannot be read, so that nothing is guarded"}},
		"a namespace without the label":                 {stage: func(s *guardStage) { s.mode = "" }, reason: "NamespaceNotOptedIn"},
		"a namespace with another mode":                 {stage: func(s *guardStage) { s.mode = "audit" }, reason: "NamespaceNotOptedIn"},
		"a namespace of the system":                     {change: changes{in("kube-lab")}, reason: "NamespaceExcluded"},
		"belay's own namespace":                         {change: changes{in("belay-system")}, reason: "NamespaceExcluded"},
		"a policy that was deleted a moment ago":        {stage: noPolicy(facts.StandingDeleted), reason: "PolicyDeleted"},
		"a policy that was never accepted": {
			stage: noPolicy(facts.StandingNotInForce), reason: "PolicyNotInForce",
			warnings: []string{`belay: RecoveryPolicy "boxes" has never been accepted; see its conditions`},
		},
	} {
		for _, phase := range []string{phaseMutate, phaseValidate} {
			t.Run(name+", "+phase, func(t *testing.T) {
				t.Parallel()
				s := setGuard(t)
				if c.stage != nil {
					c.stage(s)
				}
				// A write that would be denied, were it looked at.
				resp := s.decided(phase, updating(box(failedU1), box(running), c.change...))
				if !resp.Allowed || resp.Patch != nil || len(s.looks) > 0 || reasonOf(resp) != c.reason {
					t.Errorf("%+v, looks %v", resp, s.looks)
				}
				if diff := cmp.Diff(c.warnings, resp.Warnings); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
			})
		}
	}
}

// TestAStatusOfTheWrongShapeIsAdmittedUntouched: with a warning and in the metric, and
// never with a panic. It is no way out of a failure, which the last phase sees to.
func TestAStatusOfTheWrongShapeIsAdmittedUntouched(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ status, problem string }{
		"a phase that is a number":          {`{"phase":7}`, ".status.phase is a number, and should be a string"},
		"a phase that is a fraction":        {`{"phase":7.5}`, ".status.phase is a number, and should be a string"},
		"a phase that is a list":            {`{"phase":["Failed"]}`, ".status.phase is a list, and should be a string"},
		"a phase that is an object":         {`{"phase":{"a":1}}`, ".status.phase is an object, and should be a string"},
		"a phase that is true":              {`{"phase":true}`, ".status.phase is true or false, and should be a string"},
		"a status that is a text":           {`"Failed"`, ".status is a string, and should be an object"},
		"a status that is a list":           {`[{"phase":"Failed"}]`, ".status is a list, and should be an object"},
		"a status that is a number":         {`0`, ".status is a number, and should be an object"},
		"conditions that are a map":         {`{"phase":"Failed","conditions":{"Ready":"True"}}`, ".status.conditions is an object, and should be a list of conditions"},
		"a condition that is a text":        {`{"phase":"Failed","conditions":["Ready"]}`, ".status.conditions is a list, and should be a list of conditions"},
		"a condition that is null":          {`{"phase":"Failed","conditions":[null]}`, ".status.conditions is a list, and should be a list of conditions"},
		"a record that is a text":           {`{"phase":"Failed","failedPodUIDs":"u1"}`, ".status.failedPodUIDs is a string, and should be a list of strings"},
		"a record that is a map":            {`{"phase":"Failed","failedPodUIDs":{"u1":true}}`, ".status.failedPodUIDs is an object, and should be a list of strings"},
		"a record that has a number":        {`{"phase":"Failed","failedPodUIDs":["u1",2]}`, ".status.failedPodUIDs is a list, and should be a list of strings"},
		"a record that has null":            {`{"phase":"Failed","failedPodUIDs":[null]}`, ".status.failedPodUIDs is a list, and should be a list of strings"},
		"a record of lists, and very deep":  {`{"phase":"Failed","failedPodUIDs":[` + strings.Repeat("[", 500) + strings.Repeat("]", 500) + `]}`, ".status.failedPodUIDs is a list, and should be a list of strings"},
		"a record that is very long a text": {`{"phase":"Failed","failedPodUIDs":"` + strings.Repeat("u", 100_000) + `"}`, ".status.failedPodUIDs is a string, and should be a list of strings"},
	} {
		warnings := []string{`belay: box "a" is not guarded, since its status cannot be read: ` + c.problem}
		unreadable := `belay: box "a" has failed (phase "Failed"), and what it would become cannot be read: ` + c.problem
		noRecord := `belay: box "a" cannot go from "Failed" to "Running": it failed without a record of its pods, `
		// An object that is known to have failed, and to be unreadable, proves nothing.
		old, both := "", ""
		if strings.HasPrefix(c.status, `{"phase":"Failed"`) {
			old, both = noRecord, unreadable
		}
		for which, w := range map[string]struct {
			old, object string
			path        string
			denied      string
		}{
			"new, of a healthy one, mutating":   {running, c.status, guardMutating, ""},
			"new, of a healthy one, validating": {running, c.status, guardValidating, ""},
			"new, of a failed one, mutating":    {failedU1, c.status, guardMutating, ""},
			"new, of a failed one, validating":  {failedU1, c.status, guardValidating, unreadable},
			"old, mutating":                     {c.status, running, guardMutating, old},
			"old, validating":                   {c.status, running, guardValidating, old},
			"both, mutating":                    {c.status, c.status, guardMutating, ""},
			"both, validating":                  {c.status, c.status, guardValidating, both},
		} {
			t.Run(name+", "+which, func(t *testing.T) {
				t.Parallel()
				s := setGuard(t)
				reason := "StatusUnreadable"
				if w.denied == noRecord {
					reason = "NoRecord"
				}
				before := count(t, metrics.Decisions, "recovery", reason)
				resp := s.review(w.path, updating(box(w.old), box(w.object)))
				if count(t, metrics.Decisions, "recovery", reason) <= before {
					t.Error("not counted")
				}
				if resp.Allowed != (w.denied == "") || resp.Patch != nil || len(s.looks) > 0 || reasonOf(resp) != reason {
					t.Errorf("%+v", resp)
				}
				if w.denied == "" {
					if diff := cmp.Diff(warnings, resp.Warnings); diff != "" {
						t.Errorf("(-want +got)\n%s", diff)
					}
					return
				}
				if resp.Result.Code != 403 || !strings.HasPrefix(resp.Result.Message, w.denied) || resp.Result.Details.RetryAfterSeconds != 0 {
					t.Errorf("%+v", resp.Result)
				}
			})
		}
	}
}

// TestAPanicNeverEndsTheProcessNorAFailure: it is a bug of belay, answered with 503, so that
// the write is tried again; where nothing is enforced it is admitted.
func TestAPanicNeverEndsTheProcessNorAFailure(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stage   func(*guardStage)
		path    string
		req     *admissionv1.AdmissionRequest
		allowed bool
	}{
		"in a look at Pods for evidence":    {func(s *guardStage) { s.found = nil }, guardValidating, updating(box(failedU1), box(running)), false},
		"in a look at Pods that fail":       {func(s *guardStage) { s.found = nil }, guardMutating, updating(box(running), box(failedBare)), false},
		"in the look at the namespace":      {func(s *guardStage) { s.modeOf = func(context.Context) (string, error) { panic("boom") } }, guardValidating, updating(box(failedU1), box(running)), false},
		"where nothing is enforced":         {func(s *guardStage) { s.found = nil; warning(s) }, guardValidating, updating(box(failedU1), box(running)), true},
		"where nothing is enforced, a fail": {func(s *guardStage) { s.found = nil; warning(s) }, guardValidating, updating(box(running), box(failedBare)), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var logged []string
			var mu sync.Mutex
			s := setGuard(t, c.stage)
			s.log = funcr.New(func(_, args string) {
				mu.Lock()
				defer mu.Unlock()
				logged = append(logged, args)
			}, funcr.Options{})
			before := count(t, metrics.Panics, "recovery")
			srv := s.server()
			resp := review(t, srv, c.path, c.req)
			if resp.Allowed != c.allowed || resp.Patch != nil || reasonOf(resp) != "InternalError" {
				t.Errorf("%+v", resp)
			}
			if c.allowed {
				if diff := cmp.Diff([]string{"belay: mode warn: would be denied with 503: belay had an internal error; see its log"}, resp.Warnings); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
			} else if r := resp.Result; r.Code != 503 || r.Reason != metav1.StatusReasonServiceUnavailable || r.Details.RetryAfterSeconds != 1 || r.Message != "belay: belay had an internal error; see its log" {
				t.Errorf("%+v", resp.Result)
			}
			if count(t, metrics.Panics, "recovery") <= before {
				t.Error("not counted")
			}
			mu.Lock()
			if len(logged) != 1 || !strings.Contains(logged[0], "panic while deciding") || !strings.Contains(logged[0], `"stack"`) || !strings.Contains(logged[0], "recovery.go") {
				t.Errorf("%q", logged)
			}
			mu.Unlock()
			// Other writes go on being answered.
			if again := review(t, srv, guardMutating, updating(box(`{"phase":"Paused"}`), box(`{"phase":"Paused"}`))); s.modeOf == nil && !again.Allowed {
				t.Errorf("%+v", again)
			}
		})
	}
}

// TestAFinderThatDoesNotDoAsItIsToldKeepsNobodyWaiting: the guard ends by itself.
func TestAFinderThatDoesNotDoAsItIsToldKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]recovery.PodsFact{
		"it finds nothing out, and does not say why": {},
		"it never asks the API server":               {State: fact.Known},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for path, req := range map[string]*admissionv1.AdmissionRequest{
				guardMutating: updating(box(running), box(failedBare)), guardValidating: updating(box(failedU1), box(running)),
			} {
				s := setGuard(t, unknownPods(f))
				resp := s.review(path, req)
				if len(s.looks) > 8 {
					t.Errorf("%s: %d looks", path, len(s.looks))
				}
				if resp.Allowed || resp.Result.Code != 503 || resp.Result.Details.RetryAfterSeconds != 1 {
					t.Errorf("%s: %+v", path, resp.Result)
				}
			}
		})
	}
}

// answerOf is what an answer says, in one value that can be compared.
type answerOf struct {
	Allowed  bool
	Code     int32
	Reason   metav1.StatusReason
	Retry    int32
	Message  string
	Causes   []metav1.StatusCause
	Warnings []string
	Audit    string
	Patch    string
	Details  string
}

func said(r *admissionv1.AdmissionResponse) answerOf {
	a := answerOf{Allowed: r.Allowed, Warnings: r.Warnings, Audit: r.AuditAnnotations["decision"] + " " + reasonOf(r), Patch: string(r.Patch)}
	if m, ok := r.AuditAnnotations["mutation"]; ok && len(r.AuditAnnotations) == 1 {
		a.Audit = "mutation " + m
	}
	if r.Result != nil {
		a.Code, a.Reason, a.Message = r.Result.Code, r.Result.Reason, r.Result.Message
		if d := r.Result.Details; d != nil {
			a.Retry, a.Causes, a.Details = d.RetryAfterSeconds, d.Causes, fmt.Sprintf("%s.%s %s", d.Kind, d.Group, d.Name)
		}
	}
	return a
}

// TestAnswers has a row for every kind of answer.
func TestAnswers(t *testing.T) {
	t.Parallel()
	const field = "status.failedPodUIDs"
	const boxA = "boxes.example.com a"
	cause := func(kind, message string) metav1.StatusCause {
		return metav1.StatusCause{Type: metav1.CauseType("belay.dev/" + kind), Message: message, Field: field}
	}
	const (
		cannot = `box "a" cannot go from "Failed" to "Running"`
		gone   = `uid "u2": PodGone: the object has no such pod`
		ready  = `pod "pod-u1" (uid u1): PodNotReady: container "main" is not ready`
	)
	notReady := podLike("u1", false, "")
	tooSlow := `box "a" fails, and which of its pods could not be found out: the API server did not answer in time`
	for name, c := range map[string]struct {
		stage []func(*guardStage)
		path  string
		req   *admissionv1.AdmissionRequest
		want  answerOf
		looks []string
	}{
		"an ordinary write costs nothing": {
			path: guardValidating, req: updating(box(running), box(`{"phase":"Pending"}`)),
			want: answerOf{Allowed: true, Audit: "allowed Untouched"},
		},
		"recovered, in the first phase: the record goes": {
			path: guardMutating, req: updating(box(failedU1), box(runningU1)),
			want: answerOf{Allowed: true, Audit: "mutation EvidencePending: clears the record of failed pods", Patch: `[{"op":"remove","path":"/status/failedPodUIDs"}]`},
		},
		"recovered, in the last phase: the evidence holds": {
			stage: []func(*guardStage){havingPods(healthy("u1"))}, path: guardValidating, req: updating(box(failedU1), box(running)),
			want: answerOf{Allowed: true, Audit: "allowed Recovered"}, looks: []string{"live"},
		},
		"denied: one cause for every UID": {
			stage: []func(*guardStage){havingPods(notReady, healthy("u3"))}, path: guardValidating,
			req: updating(box(`{"phase":"Failed","failedPodUIDs":["u1","u2","u3"]}`), box(running)),
			want: answerOf{
				Code: 403, Reason: metav1.StatusReasonForbidden, Message: "belay: " + cannot + ": " + ready + "; " + gone + "; no evidence can come any more: resume it, or create it anew",
				Causes: []metav1.StatusCause{cause("PodNotReady", ready), cause("PodGone", gone)}, Audit: "denied PodNotReady", Details: boxA,
			}, looks: []string{"live"},
		},
		"denied: another Pod fails": {
			stage: []func(*guardStage){havingPods(healthy("u1"), crashing("u9"))}, path: guardValidating, req: updating(box(failedU1), box(running)),
			want: answerOf{
				Code: 403, Reason: metav1.StatusReasonForbidden, Audit: "denied OtherPodFailing", Details: boxA,
				Message: "belay: " + cannot + `: pod "pod-u9" (uid u9): OtherPodFailing: it was not recorded, and is failing: container "main" waits: CrashLoopBackOff`,
				Causes:  []metav1.StatusCause{cause("OtherPodFailing", `pod "pod-u9" (uid u9): OtherPodFailing: it was not recorded, and is failing: container "main" waits: CrashLoopBackOff`)},
			}, looks: []string{"live"},
		},
		"denied: without a record, at once": {
			path: guardMutating, req: updating(box(failedBare), box(running)),
			want: answerOf{
				Code: 403, Reason: metav1.StatusReasonForbidden, Audit: "denied NoRecord", Details: boxA,
				Message: "belay: " + cannot + ": it failed without a record of its pods, so that nothing proves its recovery; annotate it with belay.dev/allow-recovery=true to let it recover once",
				Causes:  []metav1.StatusCause{cause("NoRecord", cannot+": it failed without a record of its pods, so that nothing proves its recovery; annotate it with belay.dev/allow-recovery=true to let it recover once")},
			},
		},
		"denied: the failure is terminal": {
			path: guardMutating, req: updating(box(resumeFailed), box(running)),
			want: answerOf{
				Code: 403, Reason: metav1.StatusReasonForbidden, Audit: "denied Terminal", Details: boxA,
				Message: "belay: " + cannot + ": its failure is terminal; resume it, or create it anew",
				Causes:  []metav1.StatusCause{cause("Terminal", cannot+": its failure is terminal; resume it, or create it anew")},
			},
		},
		"denied: the status is removed": {
			path: guardMutating, req: updating(box(failedU1), strings.Replace(box("null"), `,"status":null`, "", 1)),
			want: answerOf{
				Code: 403, Reason: metav1.StatusReasonForbidden, Audit: "denied StatusRemoved", Details: boxA,
				Message: `belay: box "a" has failed (phase "Failed"), and its status must not be removed; write the phase and the rest of it`,
				Causes:  []metav1.StatusCause{cause("StatusRemoved", `box "a" has failed (phase "Failed"), and its status must not be removed; write the phase and the rest of it`)},
			},
		},
		"to be tried again: the evidence cannot be found out": {
			stage: []func(*guardStage){unknownPods(recovery.PodsFact{Live: true, Cause: fact.CauseServer})}, path: guardValidating, req: updating(box(failedU1), box(running)),
			want: answerOf{
				Code: 503, Reason: metav1.StatusReasonServiceUnavailable, Retry: 1, Audit: "denied LookupFailed", Details: boxA,
				Message: "belay: " + cannot + " yet: the state of its pods could not be found out: the API server had an error; try again",
				Causes:  []metav1.StatusCause{cause("LookupFailed", cannot+" yet: the state of its pods could not be found out: the API server had an error; try again")},
			}, looks: []string{"live"},
		},
		"to be tried again, even where failures are let in: the evidence cannot be found out": {
			stage: []func(*guardStage){guarded(ignoring), unknownPods(recovery.PodsFact{Cause: fact.CauseForbidden})}, path: guardValidating, req: updating(box(failedU1), box(running)),
			want: answerOf{
				Code: 503, Reason: metav1.StatusReasonServiceUnavailable, Retry: 1, Audit: "denied LookupFailed", Details: boxA,
				Message: "belay: " + cannot + " yet: the state of its pods could not be found out: belay has no right to read it; try again",
				Causes:  []metav1.StatusCause{cause("LookupFailed", cannot+" yet: the state of its pods could not be found out: belay has no right to read it; try again")},
			}, looks: []string{"live"},
		},
		"to be tried again: who fails cannot be found out": {
			stage: []func(*guardStage){unknownPods(recovery.PodsFact{Cause: fact.CauseTimeout})}, path: guardMutating, req: updating(box(running), box(failedBare)),
			want: answerOf{
				Code: 503, Reason: metav1.StatusReasonServiceUnavailable, Retry: 1, Audit: "denied LookupFailed", Details: boxA,
				Message: "belay: " + tooSlow + "; try again", Causes: []metav1.StatusCause{cause("LookupFailed", tooSlow+"; try again")},
			}, looks: []string{"cached"},
		},
		"let in: who fails cannot be found out, and the policy ignores that": {
			stage: []func(*guardStage){guarded(ignoring), unknownPods(recovery.PodsFact{Cause: fact.CauseTimeout})}, path: guardMutating, req: updating(box(running), box(failedBare)),
			want:  answerOf{Allowed: true, Audit: "mutation LookupFailed", Warnings: []string{"belay: " + tooSlow + "; nothing is recorded, so that it cannot recover by evidence"}},
			looks: []string{"cached"},
		},
		"let in: the policy's expressions fail": {
			stage: []func(*guardStage){unknownPods(recovery.PodsFact{Problem: "spec.pods[0].when: no such key: pool"})}, path: guardMutating, req: updating(box(running), box(failedBare)),
			want:  answerOf{Allowed: true, Audit: "mutation ExpressionFailed", Warnings: []string{`belay: box "a": its pods cannot be told, so that nothing is recorded: spec.pods[0].when: no such key: pool`}},
			looks: []string{"cached"},
		},
		"denied: the policy's expressions fail": {
			stage: []func(*guardStage){unknownPods(recovery.PodsFact{Problem: "spec.pods[0].when: no such key: pool"})}, path: guardValidating, req: updating(box(failedU1), box(running)),
			want: answerOf{
				Code: 403, Reason: metav1.StatusReasonForbidden, Audit: "denied ExpressionFailed", Details: boxA,
				Message: "belay: " + cannot + ": its pods cannot be told: spec.pods[0].when: no such key: pool",
				Causes:  []metav1.StatusCause{cause("ExpressionFailed", cannot+": its pods cannot be told: spec.pods[0].when: no such key: pool")},
			}, looks: []string{"live"},
		},
		"failed: the Pods that fail are recorded": {
			stage: []func(*guardStage){havingPods(healthy("u0"), crashing("u1"), crashing("u2"))}, path: guardMutating, req: updating(box(running), box(failedBare)),
			want: answerOf{Allowed: true, Audit: "mutation Recorded: sets the record of failed pods to u1, u2", Patch: `[{"op":"add","path":"/status/failedPodUIDs","value":["u1","u2"]}]`}, looks: []string{"cached"},
		},
		"failed: the caches know of no failure, and the API server does": {
			stage: []func(*guardStage){func(s *guardStage) {
				s.found = func(_ context.Context, live bool) recovery.PodsFact {
					if live {
						return recovery.PodsFact{State: fact.Known, Live: true, Pods: []recovery.Pod{crashing("u1")}}
					}
					return recovery.PodsFact{State: fact.Known, Pods: []recovery.Pod{healthy("u1")}}
				}
			}}, path: guardMutating, req: updating(box(running), box(failedBare)),
			want: answerOf{Allowed: true, Audit: "mutation Recorded: sets the record of failed pods to u1", Patch: `[{"op":"add","path":"/status/failedPodUIDs","value":["u1"]}]`}, looks: []string{"cached", "live"},
		},
		"failed: no Pod fails": {
			path: guardMutating, req: updating(box(running), box(failedBare)), looks: []string{"cached", "live"},
			want: answerOf{Allowed: true, Audit: "mutation NothingToRecord", Warnings: []string{`belay: box "a" fails, and none of its pods is failing: nothing is recorded, so that it cannot recover by evidence; list the UIDs of the pods that failed in the same write`}},
		},
		"failed: what the client recorded stays": {
			path: guardMutating, req: updating(box(running), box(failedU1)),
			want: answerOf{Allowed: true, Audit: "mutation Recorded"},
		},
		"failed: from a resume in flight": {
			path: guardMutating, req: updating(box(running, `"uid"`, `"generation":2,"uid"`), box(failedU1)),
			want: answerOf{Allowed: true, Audit: "mutation Sealed: clears the record of failed pods", Patch: `[{"op":"remove","path":"/status/failedPodUIDs"}]`},
		},
		"still failed: what was dropped is put back": {
			path: guardMutating, req: updating(box(failedU1), box(failedBare)),
			want: answerOf{Allowed: true, Audit: "mutation Kept: sets the record of failed pods to u1", Patch: `[{"op":"add","path":"/status/failedPodUIDs","value":["u1"]}]`},
		},
		"still failed: what was dropped since is not let in": {
			path: guardValidating, req: updating(box(failedU1), box(failedBare)),
			want: answerOf{
				Code: 503, Reason: metav1.StatusReasonServiceUnavailable, Retry: 1, Audit: "denied RecordChanged", Details: boxA,
				Message: `belay: the record of box "a" is not what it must be: another webhook changed it, or belay did not see the write when it came in; try again`,
				Causes:  []metav1.StatusCause{cause("RecordChanged", `the record of box "a" is not what it must be: another webhook changed it, or belay did not see the write when it came in; try again`)},
			},
		},
		"allowed once by its annotation": {
			path: guardValidating, req: updating(box(failedBare, `"uid"`, `"annotations":{"belay.dev/allow-recovery":"true"},"uid"`), box(running)),
			want: answerOf{Allowed: true, Audit: "allowed AllowedByAnnotation", Warnings: []string{`belay: box "a" recovers without evidence, as its annotation belay.dev/allow-recovery allows`}},
		},
		"S29: being deleted": {
			path: guardValidating, req: updating(box(failedU1, `"uid"`, `"deletionTimestamp":"2026-01-01T00:00:00Z","uid"`), box(running)),
			want: answerOf{Allowed: true, Audit: "allowed ObjectDeleting"},
		},
		"mode warn: the first phase says nothing": {
			stage: []func(*guardStage){warning}, path: guardMutating, req: updating(box(running), box(failedBare)),
			want: answerOf{Allowed: true, Audit: "mutation Untouched"},
		},
		"mode warn: what would be recorded": {
			stage: []func(*guardStage){warning, havingPods(crashing("u1"))}, path: guardValidating, req: updating(box(running), box(failedBare)), looks: []string{"cached"},
			want: answerOf{Allowed: true, Audit: "allowed Recorded", Warnings: []string{"belay: mode warn: enforce sets the record of failed pods to u1"}},
		},
		"mode warn: what would be put back": {
			stage: []func(*guardStage){warning}, path: guardValidating, req: updating(box(failedU1), box(failedBare)),
			want: answerOf{Allowed: true, Audit: "allowed Kept", Warnings: []string{"belay: mode warn: enforce sets the record of failed pods to u1"}},
		},
		"mode warn: what would be cleared": {
			stage: []func(*guardStage){warning, havingPods(healthy("u1"))}, path: guardValidating, req: updating(box(failedU1), box(runningU1)), looks: []string{"live"},
			want: answerOf{Allowed: true, Audit: "allowed Recovered", Warnings: []string{"belay: mode warn: enforce clears the record of failed pods, since they are ready again"}},
		},
		"mode warn: what would be denied": {
			stage: []func(*guardStage){warning}, path: guardValidating, req: updating(box(failedU1), box(running)), looks: []string{"live"},
			want: answerOf{Allowed: true, Audit: "allowed PodGone", Warnings: []string{"belay: mode warn: would be denied with 403: " + cannot + `: uid "u1": PodGone: the object has no such pod; no evidence can come any more: resume it, or create it anew`}},
		},
		"mode warn: what would have to be tried again": {
			stage: []func(*guardStage){warning, unknownPods(recovery.PodsFact{Cause: fact.CauseTimeout})}, path: guardValidating, req: updating(box(failedU1), box(running)), looks: []string{"live"},
			want: answerOf{Allowed: true, Audit: "allowed LookupFailed", Warnings: []string{"belay: mode warn: would be denied with 503: " + cannot + " yet: the state of its pods could not be found out: the API server did not answer in time; try again"}},
		},
		"a mode that cannot be found out counts as enforce": {
			stage: []func(*guardStage){func(s *guardStage) {
				s.modeOf = func(context.Context) (string, error) { return "", errors.New("no connection") }
			}}, path: guardMutating, req: updating(box(failedU1), box(failedBare)),
			want: answerOf{Allowed: true, Audit: "mutation Kept: sets the record of failed pods to u1", Patch: `[{"op":"add","path":"/status/failedPodUIDs","value":["u1"]}]`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for what, change := range map[string]func(*admissionv1.AdmissionRequest){"in earnest": func(*admissionv1.AdmissionRequest) {}, "dry run": dryRun} {
				s := setGuard(t, c.stage...)
				req := c.req.DeepCopy()
				change(req)
				resp := s.review(c.path, req)
				if diff := cmp.Diff(c.want, said(resp)); diff != "" {
					t.Errorf("%s (-want +got)\n%s", what, diff)
				}
				if diff := cmp.Diff(c.looks, s.looks); diff != "" {
					t.Errorf("%s: looks (-want +got)\n%s", what, diff)
				}
				if resp.Result != nil && (resp.Result.Code == http.StatusConflict || resp.Result.Status != metav1.StatusFailure) {
					t.Errorf("%s: %+v", what, resp.Result)
				}
			}
		})
	}
}

// TestADenialNamesEveryUIDInItsCauses: the message only the first few.
func TestADenialNamesEveryUIDInItsCauses(t *testing.T) {
	t.Parallel()
	var uids []string
	for i := range 100 {
		uids = append(uids, fmt.Sprintf(`"u%d"`, i))
	}
	resp := setGuard(t).review(guardValidating, updating(box(`{"phase":"Failed","failedPodUIDs":[`+strings.Join(uids, ",")+`]}`), box(running)))
	if resp.Allowed || len(resp.Result.Details.Causes) != 100 || len(resp.Result.Message) > 2048 || !strings.Contains(resp.Result.Message, "; and 95 more") {
		t.Errorf("%+v", resp.Result)
	}
	seen := map[string]bool{}
	for _, c := range resp.Result.Details.Causes {
		seen[c.Message] = true
	}
	if len(seen) != 100 {
		t.Errorf("%d different causes", len(seen))
	}
}

// TestWhatAClientMakesUpBesideTheStatusCountsForNothing: the API server drops it, but shows
// it here.
func TestWhatAClientMakesUpBesideTheStatusCountsForNothing(t *testing.T) {
	t.Parallel()
	forged := map[string]string{
		"the allowance":              strings.Replace(box(running), `"uid":"box-uid"`, `"uid":"box-uid","annotations":{"belay.dev/allow-recovery":"true"}`, 1),
		"a deletion":                 strings.Replace(box(running), `"uid":"box-uid"`, `"uid":"box-uid","deletionTimestamp":"2026-01-01T00:00:00Z"`, 1),
		"other Pods":                 strings.Replace(box(running), `"uid":"box-uid"`, `"uid":"box-uid","annotations":{"example.com/pods":"{\"pods\":[\"x\"]}"}`, 1),
		"an owner":                   strings.Replace(box(running), `"uid":"box-uid"`, `"uid":"box-uid","ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"x"}]`, 1),
		"another UID":                strings.Replace(box(running), "box-uid", "other-uid", 1),
		"another name and namespace": strings.NewReplacer(`"name":"a"`, `"name":"b"`, `"namespace":"lab"`, `"namespace":"kube-system"`).Replace(box(running)),
		"a generation":               strings.Replace(box(running), `"uid":"box-uid"`, `"uid":"box-uid","generation":99`, 1),
		"a spec":                     strings.Replace(box(running), `"size":1`, `"pool":"x","size":1`, 1),
		"no spec":                    strings.Replace(box(running), `"spec":{"size":1},`, "", 1),
		"metadata that is a list":    strings.Replace(box(running), `{"name":"a","namespace":"lab","uid":"box-uid"}`, "[]", 1),
		"no metadata":                `{"status":` + running + `}`,
		"a field Status":             strings.Replace(box(running), `"spec"`, `"Status":{"phase":"Paused","failedPodUIDs":["u1"]},"spec"`, 1),
	}
	for name, old := range map[string]string{"with a record": box(failedU1), "without": box(failedBare), "terminal": box(resumeFailed), "healthy": box(running)} {
		for what, object := range forged {
			t.Run(name+", "+what, func(t *testing.T) {
				t.Parallel()
				for _, status := range []string{running, failedBare, failedU1, `{"phase":"Paused"}`} {
					for _, path := range []string{guardMutating, guardValidating} {
						honest, liar := setGuard(t, havingPods(crashing("u2"))), setGuard(t, havingPods(crashing("u2")))
						want := said(honest.decided(strings.Split(path, "/")[1], updating(old, box(status))))
						got := said(liar.decided(strings.Split(path, "/")[1], updating(old, strings.Replace(object, running, status, 1))))
						if diff := cmp.Diff(want, got); diff != "" {
							t.Errorf("%s %s (-want +got)\n%s", path, status, diff)
						}
						if diff := cmp.Diff(honest.looks, liar.looks); diff != "" {
							t.Errorf("%s %s: %s", path, status, diff)
						}
						for _, u := range liar.about {
							var stored map[string]any
							if err := json.Unmarshal([]byte(old), &stored); err != nil {
								t.Fatal(err)
							}
							if u.GetUID() != "box-uid" || u.GetName() != "a" || len(u.GetAnnotations()) > 0 || cmp.Diff(fmt.Sprint(stored["spec"]), fmt.Sprint(u.Object["spec"])) != "" {
								t.Errorf("the Pods of another object are looked at: %v", u.Object)
							}
						}
					}
				}
			})
		}
	}
}

// TestPodsAreLookedForWhereTheAPIServerHasTheObject: whoever makes a review up must not get
// to see those of another namespace.
func TestPodsAreLookedForWhereTheAPIServerHasTheObject(t *testing.T) {
	t.Parallel()
	s := setGuard(t)
	s.decided(phaseValidate, updating(box(failedU1, `"namespace":"lab"`, `"namespace":"secrets"`, `"name":"a"`, `"name":"b"`), box(running)))
	if len(s.about) != 1 || s.about[0].GetNamespace() != "lab" || s.about[0].GetName() != "a" || s.about[0].GetUID() != "box-uid" {
		t.Errorf("%v", s.about)
	}
}

// TestTheFinderGetsTheTimeThatIsLeft: the API server waits for no longer.
func TestTheFinderGetsTheTimeThatIsLeft(t *testing.T) {
	t.Parallel()
	var left time.Duration
	s := setGuard(t, func(s *guardStage) {
		s.found = func(ctx context.Context, _ bool) recovery.PodsFact {
			if at, ok := ctx.Deadline(); ok {
				left = time.Until(at)
			}
			<-ctx.Done()
			return recovery.PodsFact{Cause: fact.CauseTimeout}
		}
	})
	resp := s.review(guardValidating+"?timeout=200ms", updating(box(failedU1), box(running)))
	if left <= 0 || left > 160*time.Millisecond {
		t.Errorf("%s left of 200 ms", left)
	}
	if resp.Allowed || resp.Result.Code != 503 {
		t.Errorf("%+v", resp)
	}
}

// TestAnExpressionThatIsCutShortCostsNoRecord: nothing is taken for a resume in flight only
// since the time ran out.
func TestAnExpressionThatIsCutShortCostsNoRecord(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := setGuard(t)
	for _, phase := range []string{phaseMutate, phaseValidate} {
		for _, w := range []*admissionv1.AdmissionRequest{updating(box(running), box(failedU1)), updating(box(running), box(failedBare))} {
			o, err := s.handler().review(ctx, asked{phase: phase, policyName: "boxes", req: w})
			if err != nil || o.allowed || o.code != 503 || o.retryAfter != 1 || o.reason != "LookupFailed" || o.patch != nil {
				t.Errorf("%s: %+v %v", phase, o, err)
			}
		}
		// The ordinary write of a healthy object has none.
		if o, err := s.handler().review(ctx, asked{phase: phase, policyName: "boxes", req: updating(box(running), box(running))}); err != nil || !o.allowed {
			t.Errorf("%s: %+v %v", phase, o, err)
		}
	}
	if len(s.looks) > 0 {
		t.Errorf("looks %v", s.looks)
	}
}

// TestAPatchThatDoesNotApplyIsNeverSent: the API server would answer with 500, whatever the
// failure policy says. The path is one that no policy can have.
func TestAPatchThatDoesNotApplyIsNeverSent(t *testing.T) {
	t.Parallel()
	s := setGuard(t, guarded(func(in *v1alpha1.AcceptedRecoveryPolicy) { in.Spec.RecordPath = ".status.a~1b" }))
	resp := s.review(guardMutating, updating(box(`{"phase":"Failed","a~1b":["u1"]}`), box(`{"phase":"Running","a~1b":["u1"]}`)))
	if resp.Allowed || resp.Result.Code != 503 || resp.Result.Details.RetryAfterSeconds != 1 || reasonOf(resp) != "InternalError" || resp.Patch != nil {
		t.Errorf("%+v", resp)
	}
}

// TestReviewsOfFullSizeAreAnswered: object and old object of what etcd takes.
func TestReviewsOfFullSizeAreAnswered(t *testing.T) {
	t.Parallel()
	long := `"` + strings.Repeat("x", 1_400_000) + `"`
	s := setGuard(t)
	resp := s.review(guardMutating, updating(box(failedU1, `"size":1`, `"size":`+long), box(`{"phase":"Failed","note":`+long+`}`)))
	if !resp.Allowed || string(resp.Patch) != `[{"op":"add","path":"/status/failedPodUIDs","value":["u1"]}]` {
		t.Errorf("%s %q", resp.AuditAnnotations, resp.Patch)
	}
}

// TestDecisionsAreRightFor24AtOnce is for the race detector: they share a policy.
func TestDecisionsAreRightFor24AtOnce(t *testing.T) {
	t.Parallel()
	s := setGuard(t, havingPods(crashing("u1")))
	h := s.handler()
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			req, want := updating(box(running), box(failedBare)), `[{"op":"add","path":"/status/failedPodUIDs","value":["u1"]}]`
			if i%2 == 0 {
				req, want = updating(box(failedU1), box(runningU1)), `[{"op":"remove","path":"/status/failedPodUIDs"}]`
			}
			o, err := h.review(t.Context(), asked{phase: phaseMutate, policyName: "boxes", req: req})
			if err != nil || string(o.patch) != want {
				t.Errorf("%s %v", o.patch, err)
			}
		})
	}
	wg.Wait()
}

// TestEveryWriteKeepsTheRules goes through all writes from one status to another, under
// every kind of schema: the patch applies and changes nothing but the record; what is
// patched is decided the same once more, and stands in the last phase; nothing that leaves a
// failure does so without evidence; and no answer is a conflict.
func TestEveryWriteKeepsTheRules(t *testing.T) {
	t.Parallel()
	records := []string{``, `,"failedPodUIDs":null`, `,"failedPodUIDs":[]`, `,"failedPodUIDs":["u1"]`, `,"failedPodUIDs":["u2","u1"]`, `,"failedPodUIDs":["00000000-0000-0000-0000-000000000000"]`}
	var statuses []string
	for _, phase := range []string{`"x":1`, `"phase":""`, `"phase":"Running"`, `"phase":"Failed"`, `"phase":"Pausing"`, `"phase":"Resuming"`} {
		for _, record := range records {
			statuses = append(statuses, "{"+phase+record+"}")
		}
	}
	for _, record := range records[2:4] {
		statuses = append(statuses, `{"phase":"Failed","conditions":[{"type":"ResumeFailed","status":"True"}]`+record+`}`)
	}
	for name, schema := range map[string]v1alpha1.RecordSchema{
		"nullable and required": {Cleared: v1alpha1.ClearNull, Required: true}, "optional": {Cleared: v1alpha1.ClearRemove},
		"required": {Cleared: v1alpha1.ClearEmpty, Required: true}, "with room for one": {Cleared: v1alpha1.ClearRemove, MaxItems: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setGuard(t, guarded(func(in *v1alpha1.AcceptedRecoveryPolicy) { in.Record = schema }), havingPods(crashing("u1"), healthy("u2")))
			layout := s.policies["boxes"].Layout
			for _, old := range statuses {
				for _, object := range statuses {
					req := updating(box(old), box(object))
					what := old + " -> " + object
					first := s.decided(phaseMutate, req)
					s.looks, s.about = nil, nil
					if first.Result != nil && first.Result.Code != 403 && first.Result.Code != 503 {
						t.Errorf("%s: %+v", what, first.Result)
					}
					if !first.Allowed {
						if first.Patch != nil {
							t.Errorf("%s: denied, and patched", what)
						}
						continue
					}
					patched := []byte(box(object))
					if first.Patch != nil {
						p, err := jsonpatch.DecodePatch(first.Patch)
						if err != nil {
							t.Fatal(err)
						}
						if patched, err = p.Apply(patched); err != nil {
							t.Fatalf("%s: %v", what, err)
						}
						if a, b := withoutRecord(t, []byte(box(object))), withoutRecord(t, patched); a != b {
							t.Errorf("%s: %s was changed to %s", what, a, b)
						}
					}
					again := s.decided(phaseMutate, updating(box(old), string(patched)))
					s.looks, s.about = nil, nil
					if !again.Allowed || again.Patch != nil {
						t.Errorf("%s: once more: %s %s", what, again.AuditAnnotations, again.Patch)
					}
					last := s.decided(phaseValidate, updating(box(old), string(patched)))
					s.looks, s.about = nil, nil
					if reasonOf(last) == string(recovery.ReasonRecordChanged) || last.Patch != nil || last.Result != nil && last.Result.Code != 403 {
						t.Errorf("%s: at last: %+v", what, last)
					}
					was, is := readOf(t, layout, box(old)), readOf(t, layout, string(patched))
					if last.Allowed && was.Phase == "Failed" && is.Phase == "Running" {
						t.Errorf("%s: recovered while u1 fails", what)
					}
					if is.Phase == "Running" && len(is.Record.UIDs) > 0 {
						t.Errorf("%s: recovered with a record: %v", what, is.Record)
					}
				}
			}
		})
	}
}

// withoutRecord is an object as JSON, less its record.
func withoutRecord(t *testing.T, raw []byte) string {
	t.Helper()
	var o map[string]any
	if err := json.Unmarshal(raw, &o); err != nil {
		t.Fatal(err)
	}
	if status, ok := o["status"].(map[string]any); ok {
		delete(status, "failedPodUIDs")
	}
	out, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func readOf(t *testing.T, l recovery.Layout, raw string) recovery.Status {
	t.Helper()
	var o map[string]any
	if err := json.Unmarshal([]byte(raw), &o); err != nil {
		t.Fatal(err)
	}
	return l.Read(o)
}

// FuzzGuard has objects of any shape meet the guard: an answer, and never a panic, and
// every patch applies.
func FuzzGuard(f *testing.F) {
	for _, s := range []string{box(running), box(failedBare), box(failedU1), box(resumeFailed), box("null"), box("[]"), "null", "{}", "[]", "7", `{"metadata":{}}`, `{"metadata":{"annotations":7},"status":{"phase":"Failed"}}`} {
		f.Add([]byte(box(failedU1)), []byte(s))
		f.Add([]byte(s), []byte(box(failedBare)))
	}
	policies := []*facts.RecoveryPolicy{boxPolicy(f, nil), boxPolicy(f, func(in *v1alpha1.AcceptedRecoveryPolicy) {
		in.Spec.RecordPath, in.Record = ".status.a.b", v1alpha1.RecordSchema{Cleared: v1alpha1.ClearNull, Required: true}
	})}
	f.Fuzz(func(t *testing.T, old, object []byte) {
		if !json.Valid(old) || !json.Valid(object) {
			return
		}
		for _, p := range policies {
			for _, phase := range []string{phaseMutate, phaseValidate} {
				s := &guardStage{t: t, policies: map[string]*facts.RecoveryPolicy{"boxes": p}, mode: v1alpha1.ModeEnforce, found: knownPods(crashing("u1")), log: logr.Discard()}
				resp := s.decided(phase, updating(string(old), string(object)))
				if reasonOf(resp) == string(recovery.ReasonInternal) {
					t.Fatalf("%s: %s", phase, resp.AuditAnnotations)
				}
				if resp.Patch == nil {
					continue
				}
				if phase == phaseValidate || !resp.Allowed {
					t.Errorf("%s, allowed %t: a patch", phase, resp.Allowed)
				}
				if err := checkPatch(object, resp.Patch); err != nil {
					t.Error(err)
				}
			}
		}
	})
}
