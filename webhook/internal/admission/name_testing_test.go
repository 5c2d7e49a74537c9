package admission

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/client/spawn/names"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/naming"
	"github.com/belay-dev/belay/webhook/internal/replace"
)

// nameStage is the name handler over a cluster that the test describes: Job "a" is
// created in namespace "lab" for the work "monday", under policy "restore", which
// replaces finished Jobs. Nothing has the name, no Pods run, and the requester may delete.
type nameStage struct {
	t *testing.T

	overlaps overlapping
	policies map[string]*facts.NamePolicy
	standing facts.Standing // of policies that are not in the map
	mode     string
	modeErr  error
	// there is what has the name; nil for nothing. unknown is why that is not known.
	there   *unstructured.Unstructured
	unknown fact.Cause
	// onLook happens before each look, counted from 1.
	onLook func(look int)
	pods   naming.PodsFact
	right  naming.RightFact
	// onReplace is what a replacement does; nil: it takes the object away.
	onReplace func(replace.Target) (naming.Replacement, fact.Cause)
	onTurn    func(replace.Turn) (bool, string, error)
	version   string // of the turn
	// block makes every look and question wait for the end of its time.
	block bool
	log   logr.Logger

	mu       sync.Mutex
	calls    []string
	replaced []replace.Target
	turns    []replace.Turn
	users    []authenticationv1.UserInfo
	stuck    []naming.Stuck
	// asked are the UIDs for whose Pods was asked, and versions the resources that were read.
	asked    []string
	versions []string
}

func setNames(t *testing.T, change func(*v1alpha1.NamePolicySpec)) *nameStage {
	t.Helper()
	return &nameStage{
		t: t, policies: map[string]*facts.NamePolicy{"restore": namePolicy(t, change)},
		standing: facts.StandingAbsent, mode: v1alpha1.ModeEnforce,
		pods: naming.PodsFact{State: fact.Absent}, right: naming.RightFact{State: fact.Known},
		log: logr.Discard(),
	}
}

// onePolicy is a reader of one NamePolicy.
type onePolicy struct{ p *v1alpha1.NamePolicy }

func (o onePolicy) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	out, ok := obj.(*v1alpha1.NamePolicy)
	if !ok {
		return errors.New("another kind")
	}
	o.p.DeepCopyInto(out)
	return nil
}

func (onePolicy) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("not expected")
}

// namePolicy is a policy in force, as the store gives it; change may be nil.
func namePolicy(t testing.TB, change func(*v1alpha1.NamePolicySpec), more ...v1alpha1.ResolvedResource) *facts.NamePolicy {
	t.Helper()
	b := builders.MakeNamePolicy("restore")
	if change != nil {
		b.Spec(change)
	}
	kinds := append([]v1alpha1.ResolvedResource{builders.Jobs(), builders.Pods(), builders.Secrets(), builders.ClusterRoles()}, more...)
	reader := onePolicy{b.InForce(kinds...).Obj()}
	p, standing, err := facts.NewNamePolicies(reader, reader).Get(context.Background(), "restore")
	if err != nil || standing != facts.StandingInForce {
		t.Fatalf("%v %v", standing, err)
	}
	return p
}

func (s *nameStage) with(change func(*nameStage)) *nameStage {
	if change != nil {
		change(s)
	}
	return s
}

func (s *nameStage) policy() *facts.NamePolicy { return s.policies["restore"] }

func (s *nameStage) note(call string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, call)
}

// sideEffects are the calls that change something.
func (s *nameStage) sideEffects() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, c := range s.calls {
		if c == "replace" || c == "turn" || c == "stuck" {
			out = append(out, c)
		}
	}
	return out
}

func (s *nameStage) Get(_ context.Context, name string) (*facts.NamePolicy, facts.Standing, error) {
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

func (s *nameStage) Mode(context.Context, string) (string, error) { return s.mode, s.modeErr }

func (s *nameStage) Existing(ctx context.Context, res v1alpha1.ResolvedResource, namespace, name string) (*unstructured.Unstructured, fact.State, fact.Cause) {
	s.note("look")
	if s.block {
		<-ctx.Done()
		return nil, fact.Unknown, fact.CauseTimeout
	}
	s.mu.Lock()
	s.versions = append(s.versions, fmt.Sprintf("%s/%s/%s %s/%s", res.Group, res.Version, res.Resource, namespace, name))
	look := len(s.versions)
	s.mu.Unlock()
	if s.onLook != nil {
		s.onLook(look)
	}
	switch {
	case s.unknown != "":
		return nil, fact.Unknown, s.unknown
	case s.there == nil:
		return nil, fact.Absent, ""
	default:
		return s.there.DeepCopy(), fact.Known, ""
	}
}

func (s *nameStage) PodsOf(ctx context.Context, _, _, uid string) naming.PodsFact {
	s.note("pods")
	if s.block {
		<-ctx.Done()
		return naming.PodsFact{Cause: fact.CauseTimeout}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, uid)
	return s.pods
}

func (s *nameStage) MayDelete(ctx context.Context, user authenticationv1.UserInfo, _ v1alpha1.ResolvedResource, _, _ string) naming.RightFact {
	s.note("right")
	if s.block {
		<-ctx.Done()
		return naming.RightFact{Cause: fact.CauseTimeout}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users = append(s.users, user)
	return s.right
}

func (s *nameStage) Replace(_ context.Context, t replace.Target) (naming.Replacement, fact.Cause) {
	s.note("replace")
	s.mu.Lock()
	s.replaced = append(s.replaced, t)
	s.mu.Unlock()
	if s.onReplace != nil {
		return s.onReplace(t)
	}
	s.there = nil
	return naming.ReplacementDone, ""
}

func (s *nameStage) Take(_ context.Context, t replace.Turn) (bool, string, error) {
	s.note("turn")
	s.mu.Lock()
	s.turns = append(s.turns, t)
	s.mu.Unlock()
	if s.onTurn != nil {
		return s.onTurn(t)
	}
	return true, "", nil
}

func (s *nameStage) Version(context.Context, replace.Turn) (string, error) {
	s.note("version")
	return s.version, nil
}

// overlapping is the policy that is about the object as well.
type overlapping struct {
	policy string
	err    error
}

func (o overlapping) Find(context.Context, string, v1alpha1.ResolvedResource, string, labels.Set) (string, error) {
	return o.policy, o.err
}

func (s *nameStage) Stuck(k naming.Stuck, _ string) {
	s.note("stuck")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stuck = append(s.stuck, k)
}

func (s *nameStage) handler() *Name {
	return &Name{Policies: s, Modes: s, Objects: s, Replacer: s, Turns: s, Events: s, Overlaps: s.overlaps, Log: s.log, OwnNamespace: "belay-system"}
}

// server serves the stage over HTTP, on the paths that the app registers.
func (s *nameStage) server() *httptest.Server {
	s.t.Helper()
	h := s.handler()
	mux := http.NewServeMux()
	mux.Handle(MutateNamePath+"/", h.Mutate())
	mux.Handle(ValidateNamePath+"/", h.Validate())
	srv := httptest.NewServer(mux)
	s.t.Cleanup(srv.Close)
	return srv
}

// post sends a body and returns status and answer.
func (s *nameStage) post(path string, body []byte) (int, string) {
	s.t.Helper()
	return post(s.t, s.server(), path, body)
}

// review sends a request and returns the answer to it.
func (s *nameStage) review(path string, req *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	s.t.Helper()
	return review(s.t, s.server(), path, req)
}

const (
	mutating   = "/mutate/name/restore"
	validating = "/validate/name/restore"
)

// monday and sunday are the digests of the works of these names.
var monday, sunday = names.Digest("monday"), names.Digest("sunday")

const plainJob = `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"a","namespace":"lab","annotations":{"work":"monday"}}}`

// markedJob is plainJob as it comes to the validating phase.
var markedJob = `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"a","namespace":"lab","annotations":{"work":"monday","belay.dev/work":"` + monday + `"}}}`

// creatingJob is the request for a Job with this JSON.
func creatingJob(object string, changes ...func(*admissionv1.AdmissionRequest)) *admissionv1.AdmissionRequest {
	req := &admissionv1.AdmissionRequest{
		UID:       "review-uid",
		Kind:      metav1.GroupVersionKind{Group: "batch", Version: "v1", Kind: "Job"},
		Resource:  metav1.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"},
		Operation: admissionv1.Create, Namespace: "lab", Name: "a",
		UserInfo: authenticationv1.UserInfo{Username: "alice", UID: "7", Groups: []string{"g"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}}},
		Object:   runtime.RawExtension{Raw: []byte(object)},
	}
	for _, change := range changes {
		change(req)
	}
	return req
}

// nameless is a request that names nothing.
func nameless(req *admissionv1.AdmissionRequest) { req.Name = "" }

// objectless is a request without an object.
func objectless(req *admissionv1.AdmissionRequest) { req.Object = runtime.RawExtension{} }

// job is a Job that is there, of this work, which is running.
func job(changes ...func(*unstructured.Unstructured)) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "batch/v1", "kind": "Job"}}
	u.SetName("a")
	u.SetNamespace("lab")
	u.SetUID("job-uid")
	u.SetResourceVersion("7")
	u.SetCreationTimestamp(metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second)))
	u.SetAnnotations(map[string]string{"work": "monday", v1alpha1.WorkAnnotation: monday})
	for _, change := range changes {
		change(u)
	}
	return u
}

func ofSunday(u *unstructured.Unstructured) {
	u.SetAnnotations(map[string]string{"work": "sunday", v1alpha1.WorkAnnotation: sunday})
}

func foreign(u *unstructured.Unstructured) { u.SetAnnotations(map[string]string{"work": "monday"}) }

func withUID(uid types.UID) func(*unstructured.Unstructured) {
	return func(u *unstructured.Unstructured) { u.SetUID(uid) }
}

// in has the Job in these conditions.
func in(conditions ...string) func(*unstructured.Unstructured) {
	return func(u *unstructured.Unstructured) {
		var list []any
		for _, c := range conditions {
			list = append(list, map[string]any{"type": c, "status": "True"})
		}
		u.Object["status"] = map[string]any{"conditions": list}
	}
}

// deletedAt has the Job on its way out since then.
func deletedAt(at time.Time, finalizers ...string) func(*unstructured.Unstructured) {
	return func(u *unstructured.Unstructured) {
		t := metav1.NewTime(at)
		u.SetDeletionTimestamp(&t)
		u.SetFinalizers(finalizers)
	}
}

func inWarnMode(s *nameStage) { s.mode = v1alpha1.ModeWarn }
