package named

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// held creates a Job that a foreign finalizer holds, and lets it go with the test.
func held(ctx context.Context, t *testing.T, ns, name, work string, labels map[string]string) *batchv1.Job {
	t.Helper()
	j := job(ns, name, work, labels)
	j.Finalizers = []string{"example.com/slow"}
	create(ctx, t, shared.Client, j)
	cleanup(t, func(ctx context.Context) { letGo(ctx, j) })
	return j
}

func letGo(ctx context.Context, o client.Object) {
	_ = shared.Client.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
}

// N08, N22, N23, N25: the answers on the wire. Code and reason go together, every
// denial is one, only what a wait can change carries Retry-After, and the header says
// what the details say.
func TestN22AnswersOnTheWire(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	labels := policy(ctx, t, shared, "n22", nil)
	rejecting := policy(ctx, t, shared, "n22-reject", func(s *v1alpha1.NamePolicySpec) { s.WhenFinished = v1alpha1.FinishedReject })
	strange := policy(ctx, t, shared, "n22-answers", func(s *v1alpha1.NamePolicySpec) {
		s.Answers = v1alpha1.NameAnswers{
			SameWork: v1alpha1.AnswerForbidden, OtherWork: v1alpha1.AnswerInvalid,
			Finished: v1alpha1.AnswerInvalid, Terminating: v1alpha1.AnswerServiceUnavailable,
		}
		s.WhenFinished = v1alpha1.FinishedReject
	})
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	running := create(ctx, t, shared.Client, job(ns, "running", "one", labels))
	done := create(ctx, t, shared.Client, job(ns, "done", "one", rejecting))
	complete(ctx, t, done)
	going := held(ctx, t, ns, "going", "one", labels)
	if err := shared.Client.Delete(ctx, going); err != nil {
		t.Fatal(err)
	}
	strangeRunning := create(ctx, t, shared.Client, job(ns, "strange", "one", strange))
	strangeDone := create(ctx, t, shared.Client, job(ns, "strange-done", "one", strange))
	complete(ctx, t, strangeDone)
	strangeGoing := held(ctx, t, ns, "strange-going", "one", strange)
	if err := shared.Client.Delete(ctx, strangeGoing); err != nil {
		t.Fatal(err)
	}

	for name, c := range map[string]struct {
		post   *batchv1.Job
		code   int32
		reason metav1.StatusReason
		cause  string
		uid    types.UID
		says   []string
	}{
		"same work":              {job(ns, "running", "one", labels), 409, "AlreadyExists", v1alpha1.CauseSameWork, running.UID, []string{`job "running" is running this work`}},
		"other work":             {job(ns, "running", "two", labels), 409, "Conflict", v1alpha1.CauseOtherWork, running.UID, []string{`job "running" is running other work`, "wait for it or use another name"}},
		"rejected":               {job(ns, "done", "one", rejecting), 409, "Conflict", v1alpha1.CauseFinished, done.UID, []string{`job "done" is finished (Complete)`, "rejects"}},
		"terminating":            {job(ns, "going", "one", labels), 429, "TooManyRequests", v1alpha1.CauseTerminating, going.UID, []string{`job "going" is being deleted since`, `held by finalizer "example.com/slow"`}},
		"same work, by choice":   {job(ns, "strange", "one", strange), 403, "Forbidden", v1alpha1.CauseSameWork, strangeRunning.UID, nil},
		"other work, by choice":  {job(ns, "strange", "two", strange), 422, "Invalid", v1alpha1.CauseOtherWork, strangeRunning.UID, nil},
		"finished, by choice":    {job(ns, "strange-done", "one", strange), 422, "Invalid", v1alpha1.CauseFinished, strangeDone.UID, nil},
		"terminating, by choice": {job(ns, "strange-going", "one", strange), 503, "ServiceUnavailable", v1alpha1.CauseTerminating, strangeGoing.UID, nil},
	} {
		t.Run(name, func(t *testing.T) {
			a := post(ctx, t, shared.Plane.Config(), c.post)
			s := a.status
			answerIs(t, s, c.code, c.reason, c.cause)
			if int32(a.code) != s.Code || s.Status != metav1.StatusFailure {
				t.Errorf("HTTP %d with status %+v", a.code, s)
			}
			d := s.Details
			if d == nil || d.Name != c.post.Name || d.Group != "batch" || d.Kind != "jobs" || d.UID != c.uid {
				t.Fatalf("details %+v", d)
			}
			// N31: the work of the request is echoed, so that a client can match its own.
			if len(d.Causes) != 2 || string(d.Causes[1].Type) != v1alpha1.CauseWork || len(d.Causes[1].Message) != 32 {
				t.Errorf("causes %+v", d.Causes)
			}
			want := ""
			if d.RetryAfterSeconds > 0 {
				want = fmt.Sprint(d.RetryAfterSeconds)
			}
			if got := a.header.Get("Retry-After"); got != want {
				t.Errorf("Retry-After is %q, retryAfterSeconds %d", got, d.RetryAfterSeconds)
			}
			says(t, s.Message, c.says...)
		})
	}
}

// N20: of the three answers, only the 429 is tried again by client-go.
func TestN20OnlyTheWaitIsRetried(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	labels := policy(ctx, t, shared, "n20", nil)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	create(ctx, t, shared.Client, job(ns, "a", "one", labels))
	going := held(ctx, t, ns, "b", "one", labels)
	if err := shared.Client.Delete(ctx, going); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		job  *batchv1.Job
		want func(error) bool
		sent int32
	}{
		"same work":   {job(ns, "a", "one", labels), apierrors.IsAlreadyExists, 1},
		"other work":  {job(ns, "a", "two", labels), apierrors.IsConflict, 1},
		"terminating": {job(ns, "b", "one", labels), apierrors.IsTooManyRequests, 11},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var sent atomic.Int32
			cfg := rest.CopyConfig(shared.Plane.Config())
			cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return roundTripper(func(r *http.Request) (*http.Response, error) {
					if r.Method == http.MethodPost {
						sent.Add(1)
					}
					return next.RoundTrip(r)
				})
			})
			_, err := kubeOf(t, cfg).BatchV1().Jobs(ns).Create(ctx, c.job, metav1.CreateOptions{})
			if !c.want(err) || sent.Load() != c.sent {
				t.Errorf("%v after %d requests, want %d", err, sent.Load(), c.sent)
			}
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// N10: a finished Job's name is not free while one of its Pods still ends, whether the
// Job is there or already gone.
func TestN10PodsOfTheLastRun(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	labels := policy(ctx, t, shared, "n10", nil)
	careless := policy(ctx, t, shared, "n10-careless", func(s *v1alpha1.NamePolicySpec) { s.WaitForPods = new(false) })
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	for name, l := range map[string]map[string]string{"careful": labels, "careless": careless} {
		j := create(ctx, t, shared.Client, job(ns, name, "one", l))
		pod := create(ctx, t, shared.Client, podOf(j))
		fail(ctx, t, j)
		s := raw(ctx, t, shared, job(ns, name, "one", l))
		if name == "careless" {
			if s.Code != 0 || liveUID(ctx, t, ns, name) == j.UID {
				t.Errorf("careless: answered %d, not replaced: %s", s.Code, s.Message)
			}
			continue
		}
		answerIs(t, s, 429, "TooManyRequests", v1alpha1.CauseTerminating)
		says(t, s.Message, fmt.Sprintf("(%q)", pod.Name), "still running", "nothing is deleted")
		eventuallyDeletes(ctx, t, ns, name, 0)

		// The Job goes, in the background: its name is free, its Pod runs on.
		orphan := metav1.DeletePropagationOrphan
		if err := shared.Client.Delete(ctx, j, &client.DeleteOptions{PropagationPolicy: &orphan}); err != nil {
			t.Fatal(err)
		}
		eventually(ctx, t, "the Job is gone", func() error { return mustBeNotFound(shared.Client.Get(ctx, client.ObjectKeyFromObject(j), j)) })
		answerIs(t, raw(ctx, t, shared, job(ns, name, "one", l)), 429, "TooManyRequests", v1alpha1.CauseTerminating)
		if err := shared.Client.Delete(ctx, pod, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
		create(ctx, t, shared.Client, job(ns, name, "one", l))
	}
}

// podOf is a running Pod of a Job that nobody manages.
func podOf(j *batchv1.Job) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: j.Namespace, Name: j.Name + "-x7k2p",
			Labels:          map[string]string{"batch.kubernetes.io/job-name": j.Name, "batch.kubernetes.io/controller-uid": string(j.UID)},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(j, batchv1.SchemeGroupVersion.WithKind("Job"))},
		},
		Spec: j.Spec.Template.Spec,
	}
}

// N17: a Pod that has ended, is being deleted and hangs on a finalizer: it is named,
// and nothing is deleted. That belay says how to propagate is seen in the audit log of
// every deletion; the event after minutes is a unit test's, with a clock.
func TestN17AStuckPodIsNamed(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	labels := policy(ctx, t, shared, "n17", nil)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	j := create(ctx, t, shared.Client, job(ns, "a", "one", labels))
	pod := podOf(j)
	pod.Finalizers = []string{"example.com/tracking"} // the Job controller takes its own off again
	create(ctx, t, shared.Client, pod)
	cleanup(t, func(ctx context.Context) { letGo(ctx, pod) })
	pod.Status.Phase = corev1.PodFailed
	if err := shared.Client.Status().Update(ctx, pod); err != nil {
		t.Fatal(err)
	}
	fail(ctx, t, j)
	if err := shared.Client.Delete(ctx, pod); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s := raw(ctx, t, shared, job(ns, "a", "one", labels))
		answerIs(t, s, 429, "TooManyRequests", v1alpha1.CauseTerminating)
		says(t, s.Message, fmt.Sprintf("%q", pod.Name), "still being deleted")
	}
	eventuallyDeletes(ctx, t, ns, "a", 0)
	letGo(ctx, pod)
	eventually(ctx, t, "the name is given", func() error { return shared.Client.Create(ctx, job(ns, "a", "one", labels)) })
}

// N19: a custom resource is finished, its child still runs. With propagation
// Foreground its name is not free until the child is gone.
func TestN19DependentsOfACustomResource(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	trains(ctx, t)
	labels := policy(ctx, t, shared, "n19", func(s *v1alpha1.NamePolicySpec) {
		s.Kinds = []v1alpha1.Kind{{APIVersion: "example.com/v1", Kind: "Train"}}
		s.Finished = `has(existing.status) && existing.status.?phase.orValue("") in ["Done", "Failed"]`
		s.Hold = `existing.metadata.?labels["then"].orValue("") == "pending"`
		s.Propagation = v1alpha1.PropagationForeground
		s.NameWait = metav1.Duration{}
	})
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	first := create(ctx, t, shared.Client, train(ns, "a", "one", labels))
	answerIs(t, raw(ctx, t, shared, train(ns, "a", "one", labels)), 409, "AlreadyExists", v1alpha1.CauseSameWork)
	child := job(ns, "child", "x", nil)
	child.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(first, first.GroupVersionKind())}
	child.Finalizers = []string{"example.com/slow"}
	create(ctx, t, shared.Client, child)
	cleanup(t, func(ctx context.Context) { letGo(ctx, child) })
	patch := []byte(`{"metadata":{"labels":{"then":"pending"}},"status":{"phase":"Done"}}`)
	if err := shared.Client.Patch(ctx, first, client.RawPatch(types.MergePatchType, patch)); err != nil {
		t.Fatal(err)
	}
	// Finished, but somebody still needs it.
	s := raw(ctx, t, shared, train(ns, "a", "one", labels))
	answerIs(t, s, 409, "Conflict", v1alpha1.CauseFinished)
	says(t, s.Message, "spec.hold of policy", "keeps it")
	if err := shared.Client.Patch(ctx, first, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"then":null}}}`))); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		answerIs(t, raw(ctx, t, shared, train(ns, "a", "one", labels)), 429, "TooManyRequests", v1alpha1.CauseTerminating)
	}
	eventuallyDeletes(ctx, t, ns, "a", 1)
	letGo(ctx, child)
	eventually(ctx, t, "the name is free", func() error {
		if s := raw(ctx, t, shared, train(ns, "a", "one", labels)); s.Code != 0 {
			return fmt.Errorf("answered %d: %s", s.Code, s.Message)
		}
		return nil
	})
}

var trainKind = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Train"}

// trains serves a custom resource without a schema.
func trains(ctx context.Context, t *testing.T) {
	t.Helper()
	anything := true
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "trains.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "trains", Singular: "train", Kind: "Train", ListKind: "TrainList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &anything}},
			}},
		},
	}
	if err := shared.ApplyCRD(ctx, crd); err != nil {
		t.Fatal(err)
	}
}

func train(ns, name, work string, labels map[string]string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(trainKind)
	u.SetNamespace(ns)
	u.SetName(name)
	u.SetLabels(labels)
	u.SetAnnotations(map[string]string{"work": work})
	return u
}

// N31, and the lost answer: the create is stored, its answer is lost, the client sends
// it again. The work is not run twice, not even when it is over by then, and the answer
// has the UID.
func TestN31ALostAnswer(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	labels := policy(ctx, t, shared, "n31", func(s *v1alpha1.NamePolicySpec) { s.Settle = metav1.Duration{Duration: time.Hour} })
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	cfg := account(ctx, t, shared, ns, "runner", "create", "get", "delete")
	net, err := stack.NewFaults(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer net.Close()
	lost := once(t, net.Config(cfg.BearerToken))
	for name, end := range map[string]func(*batchv1.Job){
		"still-running": nil,
		"succeeded":     func(j *batchv1.Job) { complete(ctx, t, j) },
		"failed":        func(j *batchv1.Job) { fail(ctx, t, j) },
	} {
		net.Set(func(r *http.Request) *stack.Fault {
			if r.Method == http.MethodPost {
				return &stack.Fault{Drop: true}
			}
			return nil
		})
		if err := lost.Create(ctx, job(ns, name, "one", labels)); err == nil || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
			t.Fatalf("%s: the answer was not lost: %v", name, err)
		}
		net.Set(nil)
		stored, err := shared.Kube.BatchV1().Jobs(ns).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if end != nil {
			end(stored)
		}
		err = lost.Create(ctx, job(ns, name, "one", labels))
		live := liveUID(ctx, t, ns, name)
		if name == "failed" {
			// The retry after a failure is never swallowed.
			if err != nil || live == stored.UID {
				t.Errorf("failed: %v, live %s, stored %s", err, live, stored.UID)
			}
			continue
		}
		s := statusOf(t, err)
		answerIs(t, s, 409, "AlreadyExists", v1alpha1.CauseSameWork)
		if s.Details.UID != stored.UID || live != stored.UID {
			t.Errorf("%s: answered with uid %s, live %s, stored %s", name, s.Details.UID, live, stored.UID)
		}
	}
}

// N32: a finished Job that another controller's finalizer holds: the same 429 each
// time, and one DELETE in all.
func TestN32OneDelete(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	labels := policy(ctx, t, shared, "n32", func(s *v1alpha1.NamePolicySpec) { s.NameWait = metav1.Duration{} })
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	j := held(ctx, t, ns, "a", "one", labels)
	complete(ctx, t, j)
	for range 10 {
		s := raw(ctx, t, shared, job(ns, "a", "two", labels))
		answerIs(t, s, 429, "TooManyRequests", v1alpha1.CauseTerminating)
		if s.Details.RetryAfterSeconds != 1 {
			t.Errorf("retryAfterSeconds %d", s.Details.RetryAfterSeconds)
		}
	}
	eventuallyDeletes(ctx, t, ns, "a", 1)
	letGo(ctx, j)
	eventually(ctx, t, "the name is free", func() error { return shared.Client.Create(ctx, job(ns, "a", "two", labels)) })
	eventuallyDeletes(ctx, t, ns, "a", 1)
}

// belay deletes for those who may delete, and for nobody else.
func TestTheRequestersOwnRight(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	labels := policy(ctx, t, shared, "rights", nil)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	cfg := account(ctx, t, shared, ns, "creator", "create")
	j := create(ctx, t, shared.Client, job(ns, "a", "one", labels))
	fail(ctx, t, j)
	a := post(ctx, t, cfg, job(ns, "a", "one", labels))
	answerIs(t, a.status, 403, "Forbidden", v1alpha1.CauseDeleteForbidden)
	says(t, a.status.Message, "must have the right to delete it")
	if liveUID(ctx, t, ns, "a") != j.UID {
		t.Fatal("it was deleted for somebody who may not")
	}
	if err := shared.Client.Create(ctx, deleter(ns)); err != nil {
		t.Fatal(err)
	}
	grant(ctx, t, shared, ns, "deleters", "delete")
	patch := fmt.Sprintf(`{"subjects":[{"kind":"ServiceAccount","namespace":%q,"name":"creator"}]}`, ns)
	if _, err := shared.Kube.RbacV1().RoleBindings(ns).Patch(ctx, "deleters", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	// What was remembered of the right is forgotten within seconds.
	eventually(ctx, t, "the right counts", func() error {
		if a := post(ctx, t, cfg, job(ns, "a", "one", labels)); a.code != 201 {
			return fmt.Errorf("answered %d: %s", a.code, a.status.Message)
		}
		return nil
	})
}

func deleter(ns string) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "deleters"}}
}

// Two policies about one object: the API server asks for both at once, and one could
// delete what the other one holds. Both deny.
func TestPoliciesThatOverlap(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	labels := policy(ctx, t, shared, "overlap", nil)
	j := create(ctx, t, shared.Client, job(ns, "a", "one", labels))
	fail(ctx, t, j)
	policy(ctx, t, shared, "overlap-hold", func(s *v1alpha1.NamePolicySpec) {
		s.Selector.MatchLabels = labels
		s.Hold = "true"
	})
	for range 3 {
		s := raw(ctx, t, shared, job(ns, "a", "one", labels))
		answerIs(t, s, 403, "Forbidden", "belay.dev/PoliciesOverlap")
		says(t, s.Message, `"overlap"`, `"overlap-hold"`, "selectors that exclude each other")
	}
	if liveUID(ctx, t, ns, "a") != j.UID {
		t.Error("one policy deleted what the other one holds")
	}
}

// Warn mode admits and tells, and neither marks, names nor deletes.
func TestWarnMode(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	labels := policy(ctx, t, shared, "warned", func(s *v1alpha1.NamePolicySpec) { generating(s); s.AdoptUnmarked = true })
	ns := namespace(ctx, t, shared, v1alpha1.ModeWarn)
	expect := func(a answered, parts ...string) {
		t.Helper()
		says(t, strings.Join(a.warnings, "\n"), parts...)
	}
	j := unnamed(ns, "train-", "one", labels)
	a := post(ctx, t, shared.Plane.Config(), j)
	expect(a, "belay: mode warn: would be named", `"job-`)
	if a.code != 201 || !strings.HasPrefix(j.Name, "train-") || j.Annotations[v1alpha1.WorkAnnotation] != "" {
		t.Errorf("changed: %d %s %v", a.code, j.Name, j.Annotations)
	}
	first := create(ctx, t, shared.Client, job(ns, "a", "one", labels))
	a = post(ctx, t, shared.Plane.Config(), job(ns, "a", "one", labels))
	expect(a, "mode warn: would be denied with AlreadyExists", "running this work")
	if a.code != 409 || len(a.status.Details.Causes) > 0 {
		t.Errorf("denied by belay: %+v", a.status) // it is the storage's own answer
	}
	complete(ctx, t, first)
	a = post(ctx, t, shared.Plane.Config(), job(ns, "a", "two", labels))
	expect(a, "mode warn:", "carries no mark")
	if liveUID(ctx, t, ns, "a") != first.UID {
		t.Error("deleted in warn mode")
	}
	eventuallyDeletes(ctx, t, ns, "a", 0)
}

// A policy says what is missing: belay's rights, and what it cannot know.
func TestWhatAPolicyLacks(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	for name, c := range map[string]struct {
		change  func(*v1alpha1.NamePolicySpec)
		reason  string
		message []string
	}{
		"lacks-rights": {
			func(s *v1alpha1.NamePolicySpec) {
				s.Kinds = []v1alpha1.Kind{{APIVersion: "apps/v1", Kind: "Deployment"}}
				s.Finished = "false"
			},
			v1alpha1.ReasonMissingPermission,
			[]string{"belay-system/belay-webhook may not get deployments.apps", "may not delete deployments.apps", `rbac.belay.dev/aggregate-to-replacer: "true"`},
		},
		"lacks-finished": {
			func(s *v1alpha1.NamePolicySpec) {
				s.Kinds = []v1alpha1.Kind{{APIVersion: "apps/v1", Kind: "Deployment"}}
			},
			v1alpha1.ReasonInvalidSpec, []string{"spec.finished: must say when a Deployment is finished"},
		},
		"lacks-sense": {
			func(s *v1alpha1.NamePolicySpec) { s.Identity = []string{"'a'", "object.metadata.name +"} },
			v1alpha1.ReasonInvalidExpression, []string{"spec.identity[1]: line 1, column"},
		},
		"lacks-leave": {
			func(s *v1alpha1.NamePolicySpec) {
				s.Kinds = []v1alpha1.Kind{{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}}
			},
			v1alpha1.ReasonForbiddenKind, []string{"spec.kinds[0]: Lease must never wait for a webhook"},
		},
	} {
		p := builders.MakeNamePolicy(name).Spec(c.change).Obj()
		p.UID, p.Generation = "", 0
		if err := shared.Client.Create(ctx, p); err != nil {
			t.Fatal(err)
		}
		cleanup(t, func(ctx context.Context) { _ = shared.Client.Delete(ctx, p) })
		eventually(ctx, t, "the condition of "+name, func() error {
			if err := shared.Client.Get(ctx, client.ObjectKeyFromObject(p), p); err != nil {
				return err
			}
			got := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionAccepted)
			if got == nil || got.Status != metav1.ConditionFalse || got.Reason != c.reason {
				return fmt.Errorf("conditions %+v", p.Status.Conditions)
			}
			says(t, got.Message, c.message...)
			return nil
		})
	}
	// What the API itself refuses.
	for what, change := range map[string]func(*v1alpha1.NamePolicySpec){
		"nameWait must leave two seconds": func(s *v1alpha1.NamePolicySpec) { s.TimeoutSeconds = 2 },
		"must be between 0s and 3s":       func(s *v1alpha1.NamePolicySpec) { s.NameWait = metav1.Duration{Duration: 4 * time.Second} },
		"belay's own kinds": func(s *v1alpha1.NamePolicySpec) {
			s.Kinds = []v1alpha1.Kind{{APIVersion: "belay.dev/v1alpha1", Kind: "Anchor"}}
		},
		"spec.identity":                          func(s *v1alpha1.NamePolicySpec) { s.Identity = nil },
		"Unsupported value: \"TooManyRequests\"": func(s *v1alpha1.NamePolicySpec) { s.Answers.SameWork = v1alpha1.AnswerTooManyRequests },
	} {
		p := builders.MakeNamePolicy("refused").Spec(change).Obj()
		p.UID, p.Generation = "", 0
		if err := shared.Client.Create(ctx, p); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
