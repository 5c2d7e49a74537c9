package admission

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/inject"
	"github.com/belay-dev/belay/webhook/internal/metrics"
)

// sidecarStage is the injection over a cluster that the test describes: Pod "worker-0" is
// created in namespace "lab", and policy "boxes" wants it witnessed.
type sidecarStage struct {
	t        *testing.T
	policies map[string]*facts.RecoveryPolicy
	standing facts.Standing // of policies that are not in the map
	mode     string
	modeErr  error
	ca       func() inject.CASource
	log      logr.Logger
}

func setSidecar(t *testing.T, changes ...func(*sidecarStage)) *sidecarStage {
	t.Helper()
	s := &sidecarStage{
		t: t, policies: map[string]*facts.RecoveryPolicy{"boxes": boxPolicy(t, nil)}, standing: facts.StandingAbsent,
		mode: v1alpha1.ModeEnforce, log: logr.Discard(), ca: func() inject.CASource { return inject.CAConfigMap },
	}
	for _, change := range changes {
		change(s)
	}
	return s
}

func (s *sidecarStage) Get(_ context.Context, name string) (*facts.RecoveryPolicy, facts.Standing, error) {
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

func (s *sidecarStage) Mode(context.Context, string) (string, error) { return s.mode, s.modeErr }

// server serves the stage over HTTP, on the paths that the app registers.
func (s *sidecarStage) server() *httptest.Server {
	s.t.Helper()
	h := &Sidecar{Policies: s, Modes: s, CA: s.ca, Log: s.log, OwnNamespace: "belay-system", Config: inject.Config{
		Image: "ghcr.io/belay-dev/belay-sidecar:v1", Collector: "belay-webhook.belay-system.svc:9444", ServerName: "belay-webhook.belay-system.svc",
		CPU: "20m", Memory: "32Mi", EphemeralStorage: "16Mi",
	}}
	mux := http.NewServeMux()
	for _, end := range []string{"", "/"} {
		mux.Handle(MutateSidecarPath+end, h.Mutate())
		mux.Handle(ValidateSidecarPath+end, h.Validate())
	}
	srv := httptest.NewServer(mux)
	s.t.Cleanup(srv.Close)
	return srv
}

func (s *sidecarStage) review(path string, req *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	s.t.Helper()
	return review(s.t, s.server(), path, req)
}

const plainPod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"worker-0","namespace":"lab","fieldOfTomorrow":1},"spec":{"containers":[{"name":"main","image":"a"}]}}`

// creatingPod is the request for a Pod with this JSON.
func creatingPod(object string, changes ...func(*admissionv1.AdmissionRequest)) *admissionv1.AdmissionRequest {
	req := &admissionv1.AdmissionRequest{
		UID: "review-uid", Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}, Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
		Operation: admissionv1.Create, Namespace: "lab", Name: "worker-0", Object: runtime.RawExtension{Raw: []byte(object)},
	}
	for _, change := range changes {
		change(req)
	}
	return req
}

// injected is a Pod as the mutating phase leaves it.
func injected(t *testing.T, path, object string) map[string]any {
	t.Helper()
	resp := setSidecar(t).review(path, creatingPod(object))
	patch, err := jsonpatch.DecodePatch(resp.Patch)
	if err != nil {
		t.Fatalf("%v: %+v", err, resp)
	}
	out, err := patch.Apply([]byte(object))
	if err != nil {
		t.Fatal(err)
	}
	var pod map[string]any
	if err := utiljson.Unmarshal(out, &pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

const (
	sidecarMutating    = "/mutate/sidecar/boxes"
	sidecarValidating  = "/validate/sidecar/boxes"
	annotationMutating = "/mutate/sidecar"
)

func TestAPodGetsItsSidecar(t *testing.T) {
	t.Parallel()
	for path, by := range map[string]string{sidecarMutating: "policy", annotationMutating: "annotation", annotationMutating + "/": "annotation"} {
		pod := injected(t, path, plainPod)
		spec := pod["spec"].(map[string]any)
		sidecar := spec["initContainers"].([]any)[0].(map[string]any)
		if sidecar["name"] != "belay-sidecar" || sidecar["restartPolicy"] != "Always" {
			t.Errorf("%s: %v", path, sidecar)
		}
		metadata := pod["metadata"].(map[string]any)
		if diff := cmp.Diff(map[string]any{"belay.dev/sidecar": by}, metadata["labels"]); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", path, diff)
		}
		if metadata["fieldOfTomorrow"] != int64(1) {
			t.Errorf("%s: a field was lost: %v", path, metadata)
		}
	}
}

func TestAPolicySaysWhichContainerIsMain(t *testing.T) {
	t.Parallel()
	s := setSidecar(t, func(s *sidecarStage) {
		s.policies["boxes"] = boxPolicy(t, func(in *v1alpha1.AcceptedRecoveryPolicy) { in.Spec.MainContainer = "app" })
	})
	two := strings.Replace(plainPod, `{"name":"main","image":"a"}`, `{"name":"proxy","image":"p"},{"name":"app","image":"a"}`, 1)
	for path, want := range map[string]string{sidecarMutating: `container "app"`, annotationMutating: `container "proxy"`} {
		if got := s.review(path, creatingPod(two)).AuditAnnotations["mutation"]; !strings.Contains(got, want) {
			t.Errorf("%s: %s", path, got)
		}
	}
	resp := s.review(sidecarMutating, creatingPod(plainPod))
	if resp.Patch != nil || !resp.Allowed || reasonOf(resp) != "NoMainContainer" {
		t.Errorf("%+v", resp)
	}
}

// TestSidecarAnswers are the answers in both phases.
func TestSidecarAnswers(t *testing.T) {
	t.Parallel()
	final := injected(t, sidecarMutating, plainPod)
	with := func(change func(map[string]any)) string {
		pod := runtime.DeepCopyJSON(final)
		change(pod["spec"].(map[string]any)["initContainers"].([]any)[0].(map[string]any))
		return string(mustJSON(t, pod))
	}
	inPlace, stripped := with(func(map[string]any) {}), with(func(c map[string]any) { delete(c, "restartPolicy") })
	broken := with(func(c map[string]any) { c["readinessProbe"] = map[string]any{} })
	skipping := strings.Replace(plainPod, `"name":"worker-0"`, `"name":"worker-0","annotations":{"belay.dev/sidecar":"skip"}`, 1)
	windows := strings.Replace(plainPod, `"containers"`, `"os":{"name":"windows"},"containers"`, 1)
	warn := func(s *sidecarStage) { s.mode = v1alpha1.ModeWarn }
	absent := func(standing facts.Standing) func(*sidecarStage) {
		return func(s *sidecarStage) { s.policies, s.standing = nil, standing }
	}
	as := func(op admissionv1.Operation, resource, sub string) func(*admissionv1.AdmissionRequest) {
		return func(r *admissionv1.AdmissionRequest) {
			r.Operation, r.Resource.Resource, r.SubResource = op, resource, sub
			r.OldObject = r.Object
		}
	}
	in := func(ns string) func(*admissionv1.AdmissionRequest) {
		return func(r *admissionv1.AdmissionRequest) { r.Namespace = ns }
	}
	for name, c := range map[string]struct {
		path, object string
		stage        func(*sidecarStage)
		request      func(*admissionv1.AdmissionRequest)
		patched      bool
		denied       bool
		reason       string
		// told is a part of the only warning; empty: there is none.
		told string
	}{
		"enforce":                            {path: sidecarMutating, object: plainPod, patched: true, reason: "SidecarInjected"},
		"enforce, on a dry run":              {path: sidecarMutating, object: plainPod, request: dryRun, patched: true, reason: "SidecarInjected"},
		"enforce, seen again":                {path: sidecarMutating, object: inPlace, reason: "SidecarInPlace"},
		"enforce, by annotation":             {path: annotationMutating, object: plainPod, patched: true, reason: "SidecarInjected"},
		"enforce, at last":                   {path: sidecarValidating, object: inPlace, reason: "SidecarInPlace"},
		"enforce, at last there is none":     {path: sidecarValidating, object: plainPod, reason: "SidecarMissing", told: "belay: the pod gets no sidecar, and so has no witness"},
		"C02: enforce, at last it blocks":    {path: sidecarValidating, object: stripped, denied: true, reason: "SidecarBlocking"},
		"enforce, at last it is broken":      {path: sidecarValidating, object: broken, reason: "SidecarDamaged", told: "it has got a readinessProbe"},
		"C02: enforce, it is mended":         {path: sidecarMutating, object: stripped, patched: true, reason: "SidecarRebuilt"},
		"warn":                               {path: sidecarMutating, object: plainPod, stage: warn, reason: "SidecarInjected", told: `belay: mode warn: enforce would change it: a sidecar reports on container "main", probe "none"`},
		"warn, with one in place":            {path: sidecarMutating, object: inPlace, stage: warn, reason: "SidecarInPlace"},
		"warn, and a Pod for Windows":        {path: sidecarMutating, object: windows, stage: warn, reason: "WindowsPod", told: "it is for Windows"},
		"warn, at last":                      {path: sidecarValidating, object: plainPod, stage: warn, reason: "SidecarMissing"},
		"warn, at last it is an old one":     {path: sidecarValidating, object: broken, stage: warn, reason: "SidecarDamaged"},
		"warn, at last it blocks":            {path: sidecarValidating, object: stripped, stage: warn, reason: "SidecarBlocking", told: "belay: mode warn: enforce would deny it: init container"},
		"declined":                           {path: sidecarMutating, object: skipping, reason: "SidecarSkipped"},
		"declined, at last":                  {path: sidecarValidating, object: skipping, reason: "SidecarSkipped"},
		"C13: a Pod for Windows":             {path: sidecarMutating, object: windows, reason: "WindowsPod", told: "it is for Windows"},
		"C13: a Pod for Windows, at last":    {path: sidecarValidating, object: windows, reason: "WindowsPod"},
		"C14: an update":                     {path: sidecarMutating, object: plainPod, request: as(admissionv1.Update, "pods", ""), reason: "UnsuitablePod"},
		"C14: an update, at last":            {path: sidecarValidating, object: plainPod, request: as(admissionv1.Update, "pods", ""), reason: "UnsuitablePod"},
		"C15: ephemeral containers":          {path: sidecarMutating, object: plainPod, request: as(admissionv1.Update, "pods", "ephemeralcontainers"), reason: "UnsuitablePod"},
		"C15: a subresource that is created": {path: sidecarMutating, object: plainPod, request: as(admissionv1.Create, "pods", "binding"), reason: "UnsuitablePod"},
		"another resource":                   {path: sidecarMutating, object: plainPod, request: as(admissionv1.Create, "podtemplates", ""), reason: "UnsuitablePod"},
		"another group": {path: sidecarMutating, object: plainPod, reason: "UnsuitablePod", request: func(r *admissionv1.AdmissionRequest) {
			r.Resource.Group = "metrics.k8s.io"
		}},
		"P01: belay's own namespace":      {path: sidecarMutating, object: plainPod, request: in("belay-system"), reason: "NamespaceExcluded"},
		"P01: a namespace of the system":  {path: sidecarMutating, object: plainPod, request: in("kube-system"), reason: "NamespaceExcluded"},
		"P01: the same, at last":          {path: sidecarValidating, object: stripped, request: in("kube-public"), reason: "NamespaceExcluded"},
		"a namespace that has opted out":  {path: sidecarMutating, object: plainPod, stage: func(s *sidecarStage) { s.mode = "" }, reason: "NamespaceNotOptedIn"},
		"the mode cannot be read":         {path: sidecarMutating, object: plainPod, stage: func(s *sidecarStage) { s.mode, s.modeErr = "", errors.New("no") }, patched: true, reason: "SidecarInjected"},
		"the policy was deleted":          {path: sidecarMutating, object: plainPod, stage: absent(facts.StandingDeleted), reason: "PolicyDeleted"},
		"the policy was deleted, at last": {path: sidecarValidating, object: stripped, stage: absent(facts.StandingDeleted), reason: "PolicyDeleted"},
		"the policy is not in force":      {path: sidecarMutating, object: plainPod, stage: absent(facts.StandingNotInForce), reason: "PolicyNotInForce", told: "has never been accepted"},
		"P22: an object that is null":     {path: sidecarMutating, object: `null`, reason: "ObjectUnreadable", told: "cannot be read"},
		"P22: an object that is a list":   {path: sidecarMutating, object: `[]`, reason: "ObjectUnreadable", told: "cannot be read"},
		"P22: metadata that is null":      {path: sidecarMutating, object: `{"metadata":null,"spec":{"containers":[{"name":"a"}]}}`, reason: "UnsuitablePod"},
		"P22: containers that are a text": {path: sidecarMutating, object: `{"metadata":{},"spec":{"containers":"a"}}`, reason: "UnsuitablePod"},
		"P22: a container that is null":   {path: sidecarMutating, object: `{"metadata":{},"spec":{"containers":[null]}}`, reason: "NoMainContainer", told: "it has no container"},
		"P22: null, at last":              {path: sidecarValidating, object: `null`, reason: "ObjectUnreadable", told: "cannot be read"},
		"P22: a bug":                      {path: sidecarMutating, object: plainPod, stage: func(s *sidecarStage) { s.ca = func() inject.CASource { panic("boom") } }, reason: "InternalError", told: "belay had an internal error, so that the pod gets no sidecar"},
		"P22: a bug, at last":             {path: sidecarValidating, object: inPlace, stage: func(s *sidecarStage) { s.ca = func() inject.CASource { panic("boom") } }, reason: "InternalError", told: "belay had an internal error"},
		"P12: a Pod near the storage limit": {path: sidecarMutating, reason: "PodTooLarge", told: "might keep it from being stored",
			object: strings.Replace(plainPod, `"name":"worker-0"`, `"name":"worker-0","annotations":{"x":"`+strings.Repeat("x", 1_560_000)+`"}`, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setSidecar(t)
			if c.stage != nil {
				c.stage(s)
			}
			req := creatingPod(c.object)
			if c.request != nil {
				c.request(req)
			}
			resp := s.review(c.path, req)
			if resp.Allowed == c.denied || reasonOf(resp) != c.reason || (resp.Patch != nil) != c.patched {
				t.Errorf("allowed %t, patched %t, %v", resp.Allowed, resp.Patch != nil, resp.AuditAnnotations)
			}
			if got := strings.Join(resp.Warnings, "\n"); (c.told == "") != (got == "") || !strings.Contains(got, c.told) || len(resp.Warnings) > 1 {
				t.Errorf("warnings %q", resp.Warnings)
			}
		})
	}
}

// TestC02_TheDenialOfASidecarThatBlocks is for people and for programs.
func TestC02_TheDenialOfASidecarThatBlocks(t *testing.T) {
	t.Parallel()
	pod := injected(t, sidecarMutating, plainPod)
	delete(pod["spec"].(map[string]any)["initContainers"].([]any)[0].(map[string]any), "restartPolicy")
	resp := setSidecar(t).review(sidecarValidating, creatingPod(string(mustJSON(t, pod))))
	const message = `init container "belay-sidecar" has lost restartPolicy: Always, so that the pod would wait for it for ever; find the webhook that drops fields it does not know, or set annotation belay.dev/sidecar: skip on the pod`
	want := &metav1.Status{Status: metav1.StatusFailure, Code: 403, Reason: metav1.StatusReasonForbidden, Message: "belay: " + message, Details: &metav1.StatusDetails{
		Name: "worker-0", Kind: "pods", Causes: []metav1.StatusCause{{Type: "belay.dev/SidecarBlocking", Message: message, Field: "spec.initContainers"}},
	}}
	if diff := cmp.Diff(want, resp.Result); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"reason": "SidecarBlocking", "message": message, "decision": "denied"}, resp.AuditAnnotations); diff != "" {
		t.Errorf("audit annotations (-want +got)\n%s", diff)
	}
}

// TestSidecarAuditAnnotations: both phases have a word each.
func TestSidecarAuditAnnotations(t *testing.T) {
	t.Parallel()
	s := setSidecar(t)
	first := s.review(sidecarMutating, creatingPod(plainPod)).AuditAnnotations
	if diff := cmp.Diff(map[string]string{"mutation": `SidecarInjected: a sidecar reports on container "main", probe "none"`}, first); diff != "" {
		t.Errorf("mutating (-want +got)\n%s", diff)
	}
	last := s.review(sidecarValidating, creatingPod(string(mustJSON(t, injected(t, sidecarMutating, plainPod))))).AuditAnnotations
	if diff := cmp.Diff(map[string]string{"reason": "SidecarInPlace", "message": "", "decision": "allowed"}, last); diff != "" {
		t.Errorf("validating (-want +got)\n%s", diff)
	}
	unreadable := s.review(sidecarMutating, creatingPod(`[]`)).AuditAnnotations
	if diff := cmp.Diff(map[string]string{"mutation": "ObjectUnreadable"}, unreadable); diff != "" {
		t.Errorf("unreadable (-want +got)\n%s", diff)
	}
}

// TestSidecarCallsThatFail: below the level of reviews, so that the registration's Ignore
// admits the Pod.
func TestSidecarCallsThatFail(t *testing.T) {
	t.Parallel()
	body := reviewOf(t, creatingPod(plainPod))
	for name, c := range map[string]struct {
		standing facts.Standing
		path     string
		code     int
		said     string
	}{
		"a policy that cannot be read":  {facts.StandingUnknown, sidecarMutating, 500, `RecoveryPolicy "boxes" could not be read in time; the create may be repeated`},
		"a policy that is not there":    {facts.StandingAbsent, sidecarMutating, 404, `there is no RecoveryPolicy "boxes"`},
		"the same, at last":             {facts.StandingUnknown, sidecarValidating, 500, "could not be read in time"},
		"a bug before it is decided on": {panicking, sidecarMutating, 500, "belay had an internal error"},
	} {
		s := setSidecar(t, func(s *sidecarStage) { s.policies, s.standing = nil, c.standing })
		if code, said := post(t, s.server(), c.path, body); code != c.code || !strings.Contains(said, c.said) {
			t.Errorf("%s: %d %s", name, code, said)
		}
	}
}

// TestASidecarsPodIsNotLogged: whatever happens, no part of it is in the log, and a panic is
// counted.
func TestASidecarsPodIsNotLogged(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var log strings.Builder
	s := setSidecar(t, func(s *sidecarStage) {
		s.log = funcr.New(func(_, args string) { mu.Lock(); defer mu.Unlock(); log.WriteString(args + "\n") }, funcr.Options{Verbosity: 10})
		s.ca = func() inject.CASource { panic("boom") }
	})
	before := count(t, metrics.Panics, "sidecar")
	secret := strings.Replace(plainPod, `"image":"a"`, `"image":"a","env":[{"name":"TOKEN","value":"s3cr3t"}]`, 1)
	s.review(sidecarMutating, creatingPod(secret))
	s.ca = func() inject.CASource { return inject.CAConfigMap }
	s.review(sidecarMutating, creatingPod(secret))
	mu.Lock()
	defer mu.Unlock()
	if strings.Contains(log.String(), "s3cr3t") || !strings.Contains(log.String(), `"reason"="SidecarInjected"`) {
		t.Errorf("%s", log.String())
	}
	if after := count(t, metrics.Panics, "sidecar"); after <= before {
		t.Errorf("panics: %v, then %v", before, after)
	}
}

// TestSidecarDecisionsAreCounted by phase, mode and reason.
func TestSidecarDecisionsAreCounted(t *testing.T) {
	t.Parallel()
	labels := []string{"sidecar", "validate", "warn", "denied"}
	if n := count(t, metrics.Decisions, labels...); n != 0 {
		t.Errorf("warn has denied %v times", n)
	}
	before := count(t, metrics.Decisions, "sidecar", "mutate", "enforce", "allowed", "SidecarInjected")
	setSidecar(t).review(sidecarMutating, creatingPod(plainPod))
	if after := count(t, metrics.Decisions, "sidecar", "mutate", "enforce", "allowed", "SidecarInjected"); after <= before {
		t.Errorf("%v, then %v", before, after)
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	out, err := utiljson.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestASidecarDecodesAsAPod: the patched object is one that the API server's types take,
// without a field that they do not know.
func TestASidecarDecodesAsAPod(t *testing.T) {
	t.Parallel()
	pod := injected(t, sidecarMutating, strings.Replace(plainPod, `,"fieldOfTomorrow":1`, "", 1))
	var typed corev1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(pod, &typed, true); err != nil {
		t.Error(err)
	}
}
