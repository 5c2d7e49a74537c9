package admission

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/owner"
)

// stage is a handler over a cluster that the test describes: Secret "run" is
// created in namespace "lab", and policy "otf" wants it owned by the Job of its
// name, which exists.
type stage struct {
	t *testing.T

	policies map[string]*facts.OwnerPolicy
	standing facts.Standing // of policies that are not in the map
	mode     string
	modeErr  error
	found    func(context.Context, facts.Query) owner.Fact
	resolve  func(apiVersion, kind string) (v1alpha1.ResolvedResource, error)
	linted   func(context.Context, []metav1.OwnerReference) []owner.ReferenceFact
	create   func(context.Context, *v1alpha1.Anchor) error
	log      logr.Logger

	mu        sync.Mutex
	anchors   []*v1alpha1.Anchor
	queries   []facts.Query
	ambiguous []string
}

func set(t *testing.T) *stage {
	t.Helper()
	return &stage{
		t:        t,
		policies: map[string]*facts.OwnerPolicy{"otf": policy(t, v1alpha1.OwnerTarget{Name: "object.metadata.name"})},
		standing: facts.StandingAbsent, mode: v1alpha1.ModeEnforce,
		found: func(context.Context, facts.Query) owner.Fact {
			return owner.Fact{State: fact.Known, Objects: []owner.Object{{APIVersion: "batch/v1", Kind: "Job", Name: "run", UID: "job-uid"}}}
		},
		resolve: func(string, string) (v1alpha1.ResolvedResource, error) { return builders.Jobs(), nil },
		linted:  func(context.Context, []metav1.OwnerReference) []owner.ReferenceFact { return nil },
		create: func(_ context.Context, a *v1alpha1.Anchor) error {
			a.UID = "anchor-uid"
			return nil
		},
		log: logr.Discard(),
	}
}

func policy(t *testing.T, target v1alpha1.OwnerTarget) *facts.OwnerPolicy {
	t.Helper()
	e, err := facts.CompileOwner(target)
	if err != nil {
		t.Fatal(err)
	}
	return &facts.OwnerPolicy{
		Policy:   owner.Policy{Name: "otf", WhenUnresolved: v1alpha1.UnresolvedAdmit, ClientReferences: v1alpha1.LintWarn},
		Deadline: 10 * time.Minute, Resource: builders.Jobs(), Expression: e,
	}
}

func (s *stage) denying() *stage {
	s.policies["otf"].WhenUnresolved = v1alpha1.UnresolvedDeny
	return s
}

func (s *stage) with(change func(*stage)) *stage {
	change(s)
	return s
}

// panicking is a standing that no store gives.
const panicking facts.Standing = -1

func (s *stage) Get(_ context.Context, name string) (*facts.OwnerPolicy, facts.Standing, error) {
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

func (s *stage) Mode(context.Context, string) (string, error) { return s.mode, s.modeErr }

func (s *stage) Find(ctx context.Context, q facts.Query) owner.Fact {
	s.mu.Lock()
	s.queries = append(s.queries, q)
	s.mu.Unlock()
	return s.found(ctx, q)
}

func (s *stage) Resolve(apiVersion, kind string) (v1alpha1.ResolvedResource, error) {
	return s.resolve(apiVersion, kind)
}

func (s *stage) References(ctx context.Context, _ string, refs []metav1.OwnerReference) []owner.ReferenceFact {
	return s.linted(ctx, refs)
}

func (s *stage) Ambiguous(_ string, _ []owner.Object, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ambiguous = append(s.ambiguous, message)
}

// anchorStore is the stage as the client of Anchors.
type anchorStore struct{ *stage }

func (s anchorStore) Create(ctx context.Context, obj client.Object, _ ...client.CreateOption) error {
	a, ok := obj.(*v1alpha1.Anchor)
	if !ok {
		return fmt.Errorf("not an Anchor: %T", obj)
	}
	if err := s.create(ctx, a); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.anchors = append(s.anchors, a.DeepCopy())
	return nil
}

func (s anchorStore) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return fmt.Errorf("not expected")
}

// server serves the stage over HTTP, on the paths that the app registers.
func (s *stage) server() *httptest.Server {
	s.t.Helper()
	h := &Owner{Policies: s, Modes: s, Facts: s, Anchors: anchorStore{s}, Events: s, Log: s.log, OwnNamespace: "belay-system"}
	mux := http.NewServeMux()
	mux.Handle(MutateOwnerPath, h.Mutate())
	mux.Handle(MutateOwnerPath+"/", h.Mutate())
	mux.Handle(ValidateOwnerPath+"/", h.Validate())
	srv := httptest.NewServer(mux)
	s.t.Cleanup(srv.Close)
	return srv
}

// post sends a body and returns status and answer.
func (s *stage) post(path string, body []byte) (int, string) {
	s.t.Helper()
	return post(s.t, s.server(), path, body)
}

// review sends a request and returns the answer to it.
func (s *stage) review(path string, req *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	s.t.Helper()
	return review(s.t, s.server(), path, req)
}

func post(t *testing.T, srv *httptest.Server, path string, body []byte) (int, string) {
	t.Helper()
	resp, err := http.Post(srv.URL+path, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Header.Get("Retry-After") != "" {
		t.Error("N24: Retry-After on the HTTP level: the API server would wait by itself")
	}
	return resp.StatusCode, string(out)
}

func review(t *testing.T, srv *httptest.Server, path string, req *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	t.Helper()
	code, body := post(t, srv, path, reviewOf(t, req))
	if code != http.StatusOK {
		t.Fatalf("HTTP %d: %s", code, body)
	}
	var out admissionv1.AdmissionReview
	if err := json.Unmarshal([]byte(body), &out); err != nil || out.Response == nil {
		t.Fatalf("%v: %s", err, body)
	}
	return out.Response
}

func reviewOf(t *testing.T, req *admissionv1.AdmissionRequest) []byte {
	t.Helper()
	out, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: req,
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

const plainSecret = `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"run","namespace":"lab"},"data":{"token":"c2VjcmV0"}}`

// creating is the request for a Secret with this JSON.
func creating(object string, changes ...func(*admissionv1.AdmissionRequest)) *admissionv1.AdmissionRequest {
	req := &admissionv1.AdmissionRequest{
		UID:       "review-uid",
		Kind:      metav1.GroupVersionKind{Version: "v1", Kind: "Secret"},
		Resource:  metav1.GroupVersionResource{Version: "v1", Resource: "secrets"},
		Operation: admissionv1.Create, Namespace: "lab", Name: "run",
		Object: runtime.RawExtension{Raw: []byte(object)},
	}
	for _, change := range changes {
		change(req)
	}
	return req
}

func dryRun(req *admissionv1.AdmissionRequest) { req.DryRun = new(true) }

// count sums the series of a counter that have all of these label values.
func count(t *testing.T, c prometheus.Collector, values ...string) float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var have []string
			for _, l := range m.GetLabel() {
				have = append(have, l.GetValue())
			}
			all := true
			for _, v := range values {
				all = all && strings.Contains("|"+strings.Join(have, "|")+"|", "|"+v+"|")
			}
			if all {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// reasonOf is the reason of an answer, in whichever audit annotation it is.
func reasonOf(resp *admissionv1.AdmissionResponse) string {
	if reason, ok := resp.AuditAnnotations["reason"]; ok {
		return reason
	}
	reason, _, _ := strings.Cut(resp.AuditAnnotations["mutation"], ": ")
	return reason
}
