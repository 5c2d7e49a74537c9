package spawn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/belay-dev/belay/webhook/client/spawn/names"
)

var (
	errEtcd      = apierrors.NewInternalError(errors.New("etcdserver: request timed out"))
	errForbidden = apierrors.NewForbidden(schema.GroupResource{Resource: "jobs"}, "a", errors.New("rbac"))
)

var _ Client = client.Client(nil)

// api is a server of the fake client that writes down its calls and fails some.
type api struct {
	client.WithWatch
	calls []string
	// before and after are asked at each call, which is named by verb and kind:
	// "create Job". An error of before keeps the call from the server, one of after
	// is a lost answer.
	before, after func(call string) error
	sent          []client.Object // copies of what was created
	uids          int
}

func newAPI(t *testing.T, objects ...client.Object) *api {
	t.Helper()
	a := &api{before: func(string) error { return nil }, after: func(string) error { return nil }}
	inner := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(objects...).
		WithIndex(&batchv1.Job{}, "metadata.name", func(o client.Object) []string { return []string{o.GetName()} }).Build()
	around := func(verb string, obj any, do func() error) error {
		call := strings.TrimSpace(verb + " " + strings.TrimPrefix(fmt.Sprintf("%T", obj), "*v1."))
		if u, ok := obj.(interface{ GetKind() string }); ok {
			call = verb + " " + u.GetKind()
		}
		a.calls = append(a.calls, call)
		if err := a.before(call); err != nil {
			return err
		}
		if err := do(); err != nil {
			return err
		}
		return a.after(call)
	}
	a.WithWatch = interceptor.NewClient(inner, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			copied, _ := obj.DeepCopyObject().(client.Object)
			a.sent = append(a.sent, copied)
			return around("create", obj, func() error {
				a.uids++
				obj.SetUID(types.UID(fmt.Sprintf("uid-%d", a.uids))) // the fake client makes none
				return c.Create(ctx, obj, opts...)
			})
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			return around("get", obj, func() error { return c.Get(ctx, key, obj, opts...) })
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			return around("list", list, func() error { return c.List(ctx, list, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
			return around("update", obj, func() error { return c.Update(ctx, obj, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			return around("patch", obj, func() error { return c.Patch(ctx, obj, patch, opts...) })
		},
	})
	return a
}

// times fails the named call that often, with the error.
func times(n int, name string, err error) func(string) error {
	return func(call string) error {
		if call == name && n > 0 {
			n--
			return err
		}
		return nil
	}
}

func always(name string, err error) func(string) error { return times(1<<30, name, err) }

func wantCalls(t *testing.T, a *api, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, a.calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// hand is a clock that takes no time, and options that use it.
type hand struct {
	Options
	at     time.Time
	slept  []time.Duration
	failed []error
	alive  bool // the context of the failed hook
	onWait func()
}

func newHand() *hand {
	h := &hand{at: time.Unix(0, 0)}
	h.clock = clock{
		now: func() time.Time { return h.at },
		sleep: func(ctx context.Context, d time.Duration) error {
			h.at = h.at.Add(d)
			h.slept = append(h.slept, d)
			if h.onWait != nil {
				h.onWait()
			}
			return context.Cause(ctx)
		},
	}
	h.Failed = func(ctx context.Context, err error) {
		h.failed = append(h.failed, err)
		_, bounded := ctx.Deadline()
		h.alive = bounded && ctx.Err() == nil
	}
	return h
}

func secret() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}, StringData: map[string]string{"token": "t"}}
}

func job() *batchv1.Job {
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", Labels: map[string]string{"run": "1"}},
		Spec:       batchv1.JobSpec{BackoffLimit: new(int32(0))},
	}
}

// own patches the Job's UID into the Secret as its owner.
func own(secret *corev1.Secret, job *batchv1.Job) Step {
	return Patch(func() (client.Object, client.Patch, error) {
		if job.UID == "" {
			return nil, nil, errors.New("the job's uid is not known")
		}
		owned := secret.DeepCopy()
		owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: job.UID}}
		return owned, client.MergeFrom(secret), nil
	})
}

func stored[T client.Object](t *testing.T, a *api, into T) T {
	t.Helper()
	into.SetNamespace("ns")
	into.SetName("a")
	key := client.ObjectKeyFromObject(into)
	calls := a.calls
	before := a.before
	a.before = func(string) error { return nil }
	err := a.Get(t.Context(), key, into)
	a.before, a.calls = before, calls
	if err != nil {
		t.Fatal(err)
	}
	return into
}

func mustDo(t *testing.T, h *hand, a *api, steps ...Step) Result {
	t.Helper()
	result, err := h.Do(t.Context(), a, steps...)
	if err != nil {
		t.Fatal(err)
	}
	if len(h.failed) > 0 {
		t.Errorf("the failed hook was called: %v", h.failed)
	}
	return result
}

func TestNothingGoesWrong(t *testing.T) {
	t.Parallel()
	a, h := newAPI(t), newHand()
	s, j := secret(), job()
	result := mustDo(t, h, a, Create(s), Create(j).PointOfNoReturn(), own(s, j))
	wantCalls(t, a, "create Secret", "create Job", "patch Secret")
	if diff := cmp.Diff(Result{Tries: 3}, result); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	if j.UID == "" || j.ResourceVersion == "" {
		t.Errorf("the caller's job does not know what was stored: uid %q", j.UID)
	}
	if refs := stored(t, a, &corev1.Secret{}).OwnerReferences; len(refs) != 1 || refs[0].UID != j.UID {
		t.Errorf("owner references %v, want the job's", refs)
	}
	if len(h.slept) != 0 {
		t.Errorf("waited %v", h.slept)
	}
}

// Every call of the spawn fails in turn, before and after it is carried out. The
// spawn goes on from there, one call a retry, and ends with the same three objects.
func TestResumes(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		lost, unsent string
		want         []string
		recovered    []string
	}{
		"the secret is not stored": {unsent: "create Secret", want: []string{"create Secret", "create Secret", "create Job", "patch Secret"}},
		"the job is not stored":    {unsent: "create Job", want: []string{"create Secret", "create Job", "create Job", "patch Secret"}},
		"the patch is not made":    {unsent: "patch Secret", want: []string{"create Secret", "create Job", "patch Secret", "patch Secret"}},
		"the secret's answer is lost": {
			lost:      "create Secret",
			want:      []string{"create Secret", "create Secret", "get Secret", "create Job", "patch Secret"},
			recovered: []string{"create secret ns/a"},
		},
		"the job's answer is lost": {
			lost:      "create Job",
			want:      []string{"create Secret", "create Job", "create Job", "get Job", "patch Secret"},
			recovered: []string{"create job ns/a"},
		},
		"the patch's answer is lost": {lost: "patch Secret", want: []string{"create Secret", "create Job", "patch Secret", "patch Secret"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, h := newAPI(t), newHand()
			a.before, a.after = times(1, tc.unsent, errEtcd), times(1, tc.lost, io.EOF)
			s, j := secret(), job()
			result := mustDo(t, h, a, Create(s), Create(j).PointOfNoReturn(), own(s, j))
			wantCalls(t, a, tc.want...)
			if diff := cmp.Diff(Result{Tries: len(tc.want), Recovered: tc.recovered}, result); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
			theJob := stored(t, a, &batchv1.Job{})
			if j.UID == "" || j.UID != theJob.UID || j.ResourceVersion != theJob.ResourceVersion {
				t.Errorf("the caller's job has uid %q, the stored one %q", j.UID, theJob.UID)
			}
			if refs := stored(t, a, &corev1.Secret{}).OwnerReferences; len(refs) != 1 || refs[0].UID != j.UID {
				t.Errorf("owner references %v, want the job's", refs)
			}
			if len(h.slept) != 1 {
				t.Errorf("waited %v, want once: a look at what is in the way does not wait", h.slept)
			}
		})
	}
}

// A second spawn of the same work, by another process, say, finds all of it done.
func TestSameWorkTwice(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	s, j := secret(), job()
	mustDo(t, newHand(), a, Create(s), Create(j).PointOfNoReturn(), own(s, j))
	first := stored(t, a, &batchv1.Job{})
	s, j = secret(), job()
	result := mustDo(t, newHand(), a, Create(s), Create(j).PointOfNoReturn(), own(s, j))
	if diff := cmp.Diff([]string{"create secret ns/a", "create job ns/a"}, result.Recovered); diff != "" {
		t.Errorf("recovered (-want +got):\n%s", diff)
	}
	if j.UID != first.UID {
		t.Errorf("uid %q, want that of the first job, %q", j.UID, first.UID)
	}
}

func TestWhoseIsIt(t *testing.T) {
	t.Parallel()
	digest := func(values ...any) map[string]string {
		return map[string]string{AnnotationSpawn: names.Digest(values...)}
	}
	work := func(digest string) map[string]string { return map[string]string{AnnotationWork: digest} }
	both := func(spawn, work map[string]string) map[string]string {
		return map[string]string{AnnotationSpawn: spawn[AnnotationSpawn], AnnotationWork: work[AnnotationWork]}
	}
	tests := map[string]struct {
		there  map[string]string // annotations of the job that is there
		wanted map[string]string // of the one to create
		change func(Step) Step
		want   error
	}{
		"no annotation is other work":                {want: ErrOtherWork},
		"another digest is other work":               {there: digest("x"), want: ErrOtherWork},
		"a stated identity that is equal":            {there: digest("run", "1"), change: func(s Step) Step { return s.Identity("run", "1") }},
		"a stated identity that is not":              {there: digest("run", "1"), change: func(s Step) Step { return s.Identity("run", "2") }, want: ErrOtherWork},
		"a stated identity of a named type":          {there: digest("u-1"), change: func(s Step) Step { return s.Identity(types.UID("u-1")) }},
		"a stated identity of a struct":              {there: digest(map[string]any{"name": "b"}), change: func(s Step) Step { return s.Identity(&metav1.ObjectMeta{Name: "b"}) }},
		"belay's annotation on one says nothing":     {there: both(digest("run"), work("w1")), change: func(s Step) Step { return s.Identity("run") }},
		"belay's annotation on both, equal":          {there: both(digest("x"), work("w1")), wanted: work("w1")},
		"belay's annotation on both, not equal":      {there: both(digest("run"), work("w2")), wanted: work("w1"), change: func(s Step) Step { return s.Identity("run") }, want: ErrOtherWork},
		"the caller's own comparison says yes":       {change: func(s Step) Step { return s.Same(func(o client.Object) bool { return o.GetLabels()["is"] == "there" }) }},
		"the caller's own comparison overrides both": {there: both(digest("run"), work("w1")), wanted: work("w1"), change: func(s Step) Step { return s.Identity("run").Same(func(client.Object) bool { return false }) }, want: ErrOtherWork},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			there := job()
			there.UID, there.Labels, there.Annotations = "uid-there", map[string]string{"is": "there"}, tc.there
			a, h := newAPI(t, there), newHand()
			j := job()
			j.Annotations = tc.wanted
			step := Create(j)
			if tc.change != nil {
				step = tc.change(step)
			}
			_, err := h.Do(t.Context(), a, step)
			wantCalls(t, a, "create Job", "get Job")
			if !errors.Is(err, tc.want) {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			if tc.want == nil {
				if err != nil || j.UID != "uid-there" || j.Labels["is"] != "there" {
					t.Errorf("the caller's job has uid %q and labels %v, want those of the one that is there (%v)", j.UID, j.Labels, err)
				}
				return
			}
			var taken *WorkError
			if !errors.As(err, &taken) {
				t.Fatalf("%v does not say what is there", err)
			}
			taken.Answer = nil
			if diff := cmp.Diff(WorkError{Kind: "Job", Namespace: "ns", Name: "a", UID: "uid-there", Err: ErrOtherWork}, *taken, cmpopts.EquateErrors()); diff != "" {
				t.Errorf("work error (-want +got):\n%s", diff)
			}
			if j.UID != "" {
				t.Error("the UID of other work is in the caller's job")
			}
			if len(h.failed) != 1 {
				t.Errorf("the failed hook was called %d times", len(h.failed))
			}
		})
	}
}

// The default identity is the object as given: what the server adds, and how it is
// written down, does not count; anything else does.
func TestDefaultIdentity(t *testing.T) {
	t.Parallel()
	digest := func(obj client.Object) string {
		t.Helper()
		stamped, err := stamp(obj, nil)
		if err != nil {
			t.Fatal(err)
		}
		return stamped.GetAnnotations()[AnnotationSpawn]
	}
	want := digest(job())
	alike := map[string]func(*batchv1.Job){
		"nothing changed":  func(*batchv1.Job) {},
		"its kind is said": func(j *batchv1.Job) { j.TypeMeta = metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"} },
		"it has a status":  func(j *batchv1.Job) { j.Status.Active = 1 },
		"it was stored": func(j *batchv1.Job) {
			j.UID, j.ResourceVersion, j.Generation, j.CreationTimestamp = "u", "1", 1, metav1.Now()
		},
		"it has managed fields": func(j *batchv1.Job) { j.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}} },
		"it was stamped before": func(j *batchv1.Job) { j.Annotations = map[string]string{AnnotationSpawn: "x"} },
	}
	for name, change := range alike {
		j := job()
		change(j)
		if got := digest(j); got != want {
			t.Errorf("%s: another digest", name)
		}
	}
	different := map[string]func(*batchv1.Job){
		"another spec":       func(j *batchv1.Job) { j.Spec.BackoffLimit = new(int32(1)) },
		"another label":      func(j *batchv1.Job) { j.Labels["run"] = "2" },
		"another annotation": func(j *batchv1.Job) { j.Annotations = map[string]string{"a": "b"} },
		"another owner":      func(j *batchv1.Job) { j.OwnerReferences = []metav1.OwnerReference{{UID: "u"}} },
	}
	for name, change := range different {
		j := job()
		change(j)
		if digest(j) == want {
			t.Errorf("%s: the same digest", name)
		}
	}
	// Typed objects write down some fields that they do not have: containers here.
	untyped := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "batch/v1", "kind": "Job",
		"metadata": map[string]any{"namespace": "ns", "name": "a", "labels": map[string]any{"run": "1"}},
		"spec":     map[string]any{"backoffLimit": int64(0), "parallelism": nil, "selector": map[string]any{"matchExpressions": []any{}}},
	}}
	if digest(untyped) != want {
		t.Error("the same object, untyped: another digest")
	}
}

func TestBelayAnswers(t *testing.T) {
	t.Parallel()
	uidInCause := statusError(409, metav1.StatusReasonAlreadyExists, "taken", CauseSameWork)
	uidInCause.ErrStatus.Details.Causes[0].Field, uidInCause.ErrStatus.Details.Causes[0].Message = "metadata.uid", "uid-there"
	otherUID := statusError(422, metav1.StatusReasonInvalid, `job "a" is running other work`, CauseOtherWork)
	otherUID.ErrStatus.Details.UID = "uid-other"
	tests := map[string]struct {
		answer    error
		there     bool
		get       error
		wantCalls []string
		want      error
		wantUID   types.UID // of the caller's job
		whole     bool
		warnings  int
	}{
		"same work, and the object can be read":         {answer: said(CauseSameWork, "uid-there"), there: true, wantCalls: []string{"create Job", "get Job"}, wantUID: "uid-there", whole: true},
		"same work, and the object must not be read":    {answer: said(CauseSameWork, "uid-there"), there: true, get: errForbidden, wantCalls: []string{"create Job", "get Job"}, wantUID: "uid-there"},
		"same work, and reading it fails in passing":    {answer: said(CauseSameWork, "uid-there"), there: true, get: errEtcd, wantCalls: []string{"create Job", "get Job"}, wantUID: "uid-there"},
		"same work, with the UID in the cause":          {answer: uidInCause, there: true, get: errForbidden, wantCalls: []string{"create Job", "get Job"}, wantUID: "uid-there"},
		"same work, without a UID that could be had":    {answer: said(CauseSameWork, ""), there: true, get: errForbidden, wantCalls: []string{"create Job", "get Job", "list JobList"}, warnings: 1},
		"same work, which went meanwhile":               {answer: said(CauseSameWork, "uid-gone"), wantCalls: []string{"create Job", "get Job", "create Job"}, wantUID: "uid-1"},
		"other work, whatever the code":                 {answer: otherUID, there: true, wantCalls: []string{"create Job"}, want: ErrOtherWork},
		"other work, answered with AlreadyExists":       {answer: said(CauseOtherWork, "uid-other"), there: true, wantCalls: []string{"create Job"}, want: ErrOtherWork},
		"the name is free in a second: wait and create": {answer: apierrors.NewTooManyRequests("terminating", 1), wantCalls: []string{"create Job", "create Job"}, wantUID: "uid-1"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, h := newAPI(t), newHand()
			if tc.there {
				there := job()
				there.UID = "uid-there" // and no annotation: belay's word counts
				a = newAPI(t, there)
			}
			create, get := times(1, "create Job", tc.answer), always("get Job", tc.get)
			list := always("list JobList", errForbidden)
			a.before = func(call string) error {
				return errors.Join(create(call), get(call), list(call))
			}
			j := job()
			result, err := h.Do(t.Context(), a, Create(j))
			wantCalls(t, a, tc.wantCalls...)
			if !errors.Is(err, tc.want) || tc.want == nil && err != nil {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			if j.UID != tc.wantUID {
				t.Errorf("uid %q, want %q", j.UID, tc.wantUID)
			}
			if whole := j.ResourceVersion != "" && tc.there; whole != tc.whole {
				t.Errorf("the whole object is there: %t, want %t", whole, tc.whole)
			}
			if len(result.Warnings) != tc.warnings {
				t.Errorf("warnings %v, want %d", result.Warnings, tc.warnings)
			}
			var taken *WorkError
			if tc.want != nil && (!errors.As(err, &taken) || taken.UID != "uid-other" || taken.Name != "a") {
				t.Errorf("%v does not tell the UID of the other", err)
			}
		})
	}
}

func TestDeletedBetween(t *testing.T) {
	t.Parallel()
	a, h := newAPI(t), newHand()
	a.before = times(1, "create Job", apierrors.NewAlreadyExists(jobs, "a"))
	mustDo(t, h, a, Create(job()))
	wantCalls(t, a, "create Job", "get Job", "create Job")
	if len(h.slept) != 1 {
		t.Errorf("waited %v, want once before the second create", h.slept)
	}
}

func TestTerminatingIsWaitedFor(t *testing.T) {
	t.Parallel()
	there := job()
	there.Finalizers = []string{"example.com/hold"}
	a, h := newAPI(t, there), newHand()
	if err := a.Delete(t.Context(), there.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	h.onWait = func() {
		if len(h.slept) < 3 {
			return
		}
		calls := a.calls
		going := stored(t, a, &batchv1.Job{})
		going.Finalizers = nil
		if err := a.Update(t.Context(), going); err != nil {
			t.Error(err)
		}
		a.calls, h.onWait = calls, nil
	}
	j := job()
	mustDo(t, h, a, Create(j))
	wantCalls(t, a, "create Job", "get Job", "create Job", "get Job", "create Job", "get Job", "create Job")
	if j.UID != "uid-4" {
		t.Errorf("uid %q, want that of the fourth create", j.UID)
	}
}

// What an earlier look found is not what is there now.
func TestEarlierLookIsForgotten(t *testing.T) {
	t.Parallel()
	there := job()
	there.UID, there.Finalizers = "uid-old", []string{"example.com/hold"}
	a, h := newAPI(t, there), newHand()
	if err := a.Delete(t.Context(), there.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	h.onWait = func() { // somebody else has made it anew, and reading is not allowed any more
		a.before = func(call string) error {
			if call == "create Job" {
				return said(CauseSameWork, "uid-new")
			}
			return errForbidden
		}
	}
	j := job()
	mustDo(t, h, a, Create(j))
	wantCalls(t, a, "create Job", "get Job", "create Job", "get Job")
	if j.UID != "uid-new" || j.Finalizers != nil {
		t.Errorf("uid %q and finalizers %v, want what belay said", j.UID, j.Finalizers)
	}
}

func TestForbiddenGet(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		lost     bool // the answer of a create of this spawn
		list     error
		want     error
		warned   bool
		wantUID  types.UID
		wantCall []string
	}{
		"the list tells":                     {wantUID: "uid-1", wantCall: []string{"create Job", "get Job", "list JobList"}},
		"the list tells after a lost answer": {lost: true, wantUID: "uid-1", wantCall: []string{"create Job", "create Job", "get Job", "list JobList"}},
		"nothing tells":                      {list: errForbidden, want: ErrUnknownWork, wantCall: []string{"create Job", "get Job", "list JobList"}},
		"nothing tells after a lost answer":  {lost: true, list: errForbidden, warned: true, wantCall: []string{"create Job", "create Job", "get Job", "list JobList"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, h := newAPI(t), newHand()
			if tc.lost {
				a.after = times(1, "create Job", io.EOF)
			} else {
				mustDo(t, newHand(), a, Create(job()))
				a.calls = nil
			}
			get, list := always("get Job", errForbidden), always("list JobList", tc.list)
			a.before = func(call string) error { return errors.Join(get(call), list(call)) }
			j := job()
			result, err := h.Do(t.Context(), a, Create(j))
			wantCalls(t, a, tc.wantCall...)
			if !errors.Is(err, tc.want) || tc.want == nil && err != nil {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			if j.UID != tc.wantUID {
				t.Errorf("uid %q, want %q", j.UID, tc.wantUID)
			}
			if err == nil && j.Annotations[AnnotationSpawn] == "" {
				t.Error("the mark is not in the caller's job, whose update would take it from the stored one")
			}
			if warned := len(result.Warnings) == 1 && result.Warnings[0].Done && errors.Is(result.Warnings[0], ErrUnknownWork); warned != tc.warned {
				t.Errorf("warnings %v", result.Warnings)
			}
		})
	}
}

// A client that cannot list, or does not know what kind an object has, is asked for
// no list.
func TestForbiddenGetWithoutList(t *testing.T) {
	t.Parallel()
	for name, without := range map[string]func(*api) Client{
		"it cannot list": func(a *api) Client { return struct{ Client }{a} },
		"it does not know the kind": func(a *api) Client {
			return struct {
				Client
				lister
			}{a, a}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, h := newAPI(t), newHand()
			mustDo(t, newHand(), a, Create(job()))
			a.calls, a.before = nil, always("get Job", errForbidden)
			_, err := h.Do(t.Context(), without(a), Create(job()))
			wantCalls(t, a, "create Job", "get Job")
			if !errors.Is(err, ErrUnknownWork) || !apierrors.IsForbidden(err) {
				t.Errorf("got %v, want ErrUnknownWork and why", err)
			}
		})
	}
}

// The first create is stored and its answer is lost; the second is refused by the
// quota that the first one used up.
func TestRefusedForItsOwnObject(t *testing.T) {
	t.Parallel()
	a, h := newAPI(t), newHand()
	a.after = times(1, "create Job", io.EOF)
	creates := 0
	a.before = func(call string) error {
		if call == "create Job" {
			if creates++; creates > 1 {
				return apierrors.NewForbidden(jobs, "a", errors.New("exceeded quota"))
			}
		}
		return nil
	}
	j := job()
	mustDo(t, h, a, Create(j))
	wantCalls(t, a, "create Job", "create Job", "get Job")
	if j.UID != "uid-1" {
		t.Errorf("uid %q, want that of the first create", j.UID)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	a, h := newAPI(t), newHand()
	invalid := apierrors.NewInvalid(schema.GroupKind{Group: "batch", Kind: "Job"}, "a", nil)
	a.before = always("create Job", invalid)
	s, j := secret(), job()
	result, err := h.Do(t.Context(), a, Create(s), Create(j).PointOfNoReturn(), own(s, j))
	wantCalls(t, a, "create Secret", "create Job")
	var failed *Error
	if !errors.As(err, &failed) || !apierrors.IsInvalid(err) {
		t.Fatalf("got %v, want an *Error that is invalid", err)
	}
	if diff := cmp.Diff(Error{Step: "create job ns/a", Tries: 1, Err: invalid}, *failed, cmpopts.EquateErrors()); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
	if len(h.failed) != 1 || !errors.Is(h.failed[0], err) || !h.alive {
		t.Errorf("the failed hook was called with %v, alive %t; want once with the error", h.failed, h.alive)
	}
	if result.Tries != 2 {
		t.Errorf("%d tries, want 2", result.Tries)
	}
}

func TestBudgetIsSpent(t *testing.T) {
	t.Parallel()
	a, h := newAPI(t), newHand()
	a.before = always("create Job", errEtcd)
	_, err := h.Do(t.Context(), a, Create(secret()), Create(job()).PointOfNoReturn())
	var failed *Error
	if !errors.As(err, &failed) || !errors.Is(err, ErrBudgetSpent) || !errors.Is(err, errEtcd) {
		t.Fatalf("got %v, want ErrBudgetSpent and what was wrong last", err)
	}
	if !failed.Ambiguous || failed.Step != "create job ns/a" || failed.Tries != len(h.slept)+1 {
		t.Errorf("got %+v after %d waits", failed, len(h.slept))
	}
	if len(h.failed) != 1 || !h.alive {
		t.Errorf("the failed hook was called %d times, alive %t", len(h.failed), h.alive)
	}
	spent := h.at.Sub(time.Unix(0, 0))
	if spent > budget || spent < budget-2*5*time.Second {
		t.Errorf("gave up after %v of %v", spent, budget)
	}
	if want := fmt.Sprintf("create job ns/a (%d tries, may have been carried out): the budget is spent: Internal error occurred: etcdserver: request timed out", failed.Tries); err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
	// Doubled from 200 ms to 5 s, each lengthened by up to half.
	base := 200 * time.Millisecond
	for i, d := range h.slept {
		if d < base || d > base+base/2 {
			t.Errorf("wait %d is %v, want from %v to half more", i, d, base)
		}
		base = min(2*base, 5*time.Second)
	}
}

// A hook that is nil is not called, and a failure is returned all the same.
func TestNoHook(t *testing.T) {
	t.Parallel()
	a, h := newAPI(t), newHand()
	h.Failed = nil
	a.before = always("create Job", errForbidden)
	if _, err := h.Do(t.Context(), a, Create(job())); !apierrors.IsForbidden(err) {
		t.Errorf("got %v", err)
	}
}

func TestBackoffBeginsAnewWithEachStep(t *testing.T) {
	t.Parallel()
	a, h := newAPI(t), newHand()
	h.Backoff = wait.Backoff{Duration: time.Second, Factor: 2, Steps: 10}
	s, j := times(3, "create Secret", errEtcd), times(2, "create Job", errEtcd)
	a.before = func(call string) error { return errors.Join(s(call), j(call)) }
	mustDo(t, h, a, Create(secret()), Create(job()))
	want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, time.Second, 2 * time.Second}
	if diff := cmp.Diff(want, h.slept); diff != "" {
		t.Errorf("waits (-want +got):\n%s", diff)
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	t.Parallel()
	a, h := newAPI(t), newHand()
	a.before = times(2, "create Job", apierrors.NewTooManyRequests("later", 17))
	mustDo(t, h, a, Create(job()))
	if diff := cmp.Diff([]time.Duration{17 * time.Second, 17 * time.Second}, h.slept); diff != "" {
		t.Errorf("waits (-want +got):\n%s", diff)
	}
}

// A wait that the budget does not cover is not begun.
func TestRetryAfterBeyondTheBudget(t *testing.T) {
	t.Parallel()
	a, h := newAPI(t), newHand()
	a.before = times(1, "create Job", apierrors.NewTooManyRequests("later", 3600))
	_, err := h.Do(t.Context(), a, Create(job()))
	var failed *Error
	if !errors.Is(err, ErrBudgetSpent) || !errors.As(err, &failed) || failed.Ambiguous || len(h.slept) != 0 {
		t.Errorf("got %v after %v, want the budget to be spent at once, and nothing in doubt", err, h.slept)
	}
}

func TestAfterThePointOfNoReturn(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		err       error
		wantTries int // at least
		exhausted bool
	}{
		"exhausted": {err: errEtcd, wantTries: 5, exhausted: true},
		"refused":   {err: errForbidden, wantTries: 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, h := newAPI(t), newHand()
			a.before = always("patch Secret", tc.err)
			var lines []string
			ctx := logr.NewContext(t.Context(), funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{}))
			s, j := secret(), job()
			told := false
			result, err := h.Do(ctx, a, Create(s), Create(j).PointOfNoReturn(),
				Call("between", func(context.Context, Client) error { return nil }),
				own(s, j),
				Call("tell", func(context.Context, Client) error { told = true; return nil }))
			if err != nil || len(h.failed) != 0 {
				t.Fatalf("got %v, hook %v: the job runs", err, h.failed)
			}
			if len(result.Warnings) != 1 {
				t.Fatalf("warnings %v, want one", result.Warnings)
			}
			w := result.Warnings[0]
			if w.Step != "patch secret ns/a" || w.Done || w.Tries < tc.wantTries || !errors.Is(w, tc.err) || errors.Is(w, ErrBudgetSpent) != tc.exhausted {
				t.Errorf("warning %+v", w)
			}
			if !told {
				t.Error("the step after the one that was given up had no try")
			}
			if len(lines) != 1 || !strings.Contains(lines[0], "patch secret ns/a") {
				t.Errorf("logged %q, want the warning once", lines)
			}
		})
	}
}

func TestOptionalBeforeThePointOfNoReturn(t *testing.T) {
	t.Parallel()
	a, h := newAPI(t), newHand()
	a.before = always("create Secret", errForbidden)
	result := mustDo(t, h, a, Create(secret()).Optional().PointOfNoReturn(), Create(job()))
	wantCalls(t, a, "create Secret", "create Job")
	if len(result.Warnings) != 1 || !errors.Is(result.Warnings[0], errForbidden) {
		t.Errorf("warnings %v", result.Warnings)
	}
	// A point of no return that was not reached is none.
	a.before = func(string) error { return errForbidden }
	if _, err := newHand().Do(t.Context(), a, Create(secret()).Optional().PointOfNoReturn(), Create(job())); err == nil {
		t.Error("a failure was taken for a warning")
	}
}

func TestCancelled(t *testing.T) {
	t.Parallel()
	t.Run("before the point of no return it fails, and the hook can still work", func(t *testing.T) {
		t.Parallel()
		a, h := newAPI(t), newHand()
		a.before = always("create Job", errEtcd)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		h.onWait = func() {
			if len(h.slept) == 2 {
				cancel()
			}
		}
		_, err := h.Do(ctx, a, Create(job()).PointOfNoReturn())
		wantCalls(t, a, "create Job", "create Job")
		if !errors.Is(err, context.Canceled) || !errors.Is(err, errEtcd) {
			t.Errorf("got %v, want what ended it and what was wrong", err)
		}
		if len(h.failed) != 1 || !h.alive {
			t.Errorf("the failed hook was called %d times, alive %t", len(h.failed), h.alive)
		}
	})
	t.Run("before the first call nothing is called", func(t *testing.T) {
		t.Parallel()
		a, h := newAPI(t), newHand()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := h.Do(ctx, a, Create(job())); !errors.Is(err, context.Canceled) || len(a.calls) != 0 || len(h.failed) != 1 {
			t.Errorf("got %v after %v", err, a.calls)
		}
	})
	t.Run("after the point of no return it is a warning", func(t *testing.T) {
		t.Parallel()
		a, h := newAPI(t), newHand()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		a.after = func(call string) error {
			if call == "create Job" {
				cancel()
			}
			return nil
		}
		s, j := secret(), job()
		result, err := h.Do(ctx, a, Create(s), Create(j).PointOfNoReturn(), own(s, j))
		wantCalls(t, a, "create Secret", "create Job")
		if err != nil || len(h.failed) != 0 || len(result.Warnings) != 1 || !errors.Is(result.Warnings[0], context.Canceled) {
			t.Errorf("got %v and %v", err, result.Warnings)
		}
	})
}

// A server that never answers costs one bound a try.
func TestTryIsBounded(t *testing.T) {
	t.Parallel()
	a, h := newAPI(t), newHand()
	h.TryTimeout = 20 * time.Millisecond
	hung := 0
	step := Call("hang", func(ctx context.Context, _ Client) error {
		if hung++; hung == 1 {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	if result := mustDo(t, h, a, step); result.Tries != 2 {
		t.Errorf("%d tries, want 2", result.Tries)
	}
}

// A failed try may have written into what it was given: half an answer, say.
func TestFailedTryLeavesTheCallersObjectAlone(t *testing.T) {
	t.Parallel()
	a, h := newAPI(t), newHand()
	j := job()
	spoil := &spoiler{api: a, left: 2}
	mustDo2(t, h, spoil, Create(j))
	if diff := cmp.Diff([]string{"", "", ""}, spoil.seen); diff != "" {
		t.Errorf("resource versions that were sent (-want +got):\n%s", diff)
	}
	a.before = always("create Job", errForbidden)
	j = job()
	j.Name = "b"
	want := j.DeepCopy()
	if _, err := newHand().Do(t.Context(), &spoiler{api: a, left: 9}, Create(j)); err == nil {
		t.Fatal("a forbidden create succeeded")
	}
	if diff := cmp.Diff(want, j); diff != "" {
		t.Errorf("the caller's object changed (-want +got):\n%s", diff)
	}
}

type spoiler struct {
	*api
	left int
	seen []string
}

func (s *spoiler) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	s.seen = append(s.seen, obj.GetResourceVersion()+string(obj.GetUID()))
	if s.left > 0 {
		s.left--
		obj.SetResourceVersion("7")
		obj.SetUID("half")
		obj.GetLabels()["spoilt"] = "yes"
		if s.left == 0 && len(s.seen) > 3 {
			return errForbidden
		}
		return io.ErrUnexpectedEOF
	}
	return s.api.Create(ctx, obj, opts...)
}

func mustDo2(t *testing.T, h *hand, c Client, steps ...Step) {
	t.Helper()
	if _, err := h.Do(t.Context(), c, steps...); err != nil {
		t.Fatal(err)
	}
}

func TestUpdateIsRebuiltAfterAConflict(t *testing.T) {
	t.Parallel()
	s := secret()
	a, h := newAPI(t, s), newHand()
	mine := stored(t, a, &corev1.Secret{})
	theirs := mine.DeepCopy()
	theirs.Labels = map[string]string{"theirs": "yes"}
	if err := a.Update(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	a.calls = nil
	mustDo(t, h, a, Update(func() (client.Object, error) {
		if mine.Labels == nil {
			mine.Labels = map[string]string{}
		}
		mine.Labels["mine"] = "yes"
		return mine, nil
	}))
	wantCalls(t, a, "update Secret", "get Secret", "update Secret")
	if diff := cmp.Diff(map[string]string{"mine": "yes", "theirs": "yes"}, stored(t, a, &corev1.Secret{}).Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if mine.ResourceVersion != stored(t, a, &corev1.Secret{}).ResourceVersion {
		t.Error("the caller's object is not the answer")
	}
}

// OTF's third call is a PUT of the local struct without a resourceVersion.
func TestUnconditionalUpdate(t *testing.T) {
	t.Parallel()
	a, h := newAPI(t), newHand()
	s, j := secret(), job()
	a.after = times(1, "update Secret", io.EOF)
	mustDo(t, h, a, Create(s), Create(j).PointOfNoReturn(), Update(func() (client.Object, error) {
		local := secret()
		local.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "job", Name: j.Name, UID: j.UID}}
		return local, nil
	}))
	wantCalls(t, a, "create Secret", "create Job", "update Secret", "update Secret")
}

func TestCall(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		err  error
		want int // calls
	}{
		"retried": {err: errEtcd, want: 2},
		"final":   {err: Final(errEtcd), want: 1},
		"refused": {err: errForbidden, want: 1},
		"whose the object is, only the call can know":    {err: apierrors.NewAlreadyExists(jobs, "a"), want: 1},
		"a conflict, for which there is nothing to read": {err: apierrors.NewConflict(jobs, "a", io.EOF), want: 2},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, h := newAPI(t), newHand()
			calls := 0
			_, err := h.Do(t.Context(), a, Call("tell", func(_ context.Context, c Client) error {
				if c != Client(a) {
					t.Error("the call has another client")
				}
				if calls++; calls == 1 {
					return tc.err
				}
				return nil
			}))
			if calls != tc.want || (err != nil) != (tc.want == 1) {
				t.Errorf("%d calls and %v, want %d", calls, err, tc.want)
			}
			if err != nil && !strings.HasPrefix(err.Error(), "tell (1 try): ") {
				t.Errorf("error %q does not begin with the step", err)
			}
		})
	}
}

// What a later object needs of an earlier one is there when it is built, once.
func TestCreateFrom(t *testing.T) {
	t.Parallel()
	a, h := newAPI(t), newHand()
	j, s := job(), secret()
	a.before = times(2, "create Secret", errEtcd)
	built := 0
	mustDo(t, h, a, Create(j), CreateFrom(func() (client.Object, error) {
		built++
		s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: j.Name, UID: j.UID}}
		return s, nil
	}))
	if built != 1 {
		t.Errorf("built %d times, want once", built)
	}
	if refs := stored(t, a, &corev1.Secret{}).OwnerReferences; len(refs) != 1 || refs[0].UID != j.UID || j.UID == "" {
		t.Errorf("owner references %v", refs)
	}
}

func TestWhatCannotBegin(t *testing.T) {
	t.Parallel()
	var nothing *batchv1.Job
	used, nameless := job(), job()
	used.ResourceVersion = "7"
	nameless.Name, nameless.GenerateName = "", "a-"
	for name, step := range map[string]Step{
		"an object without a name":           Create(nameless),
		"an object that was created before":  Create(used),
		"no object":                          Create(nothing),
		"not even the type of one":           Create(nil),
		"an empty step":                      {},
		"a builder that fails":               CreateFrom(func() (client.Object, error) { return nil, io.EOF }),
		"an update of nothing":               Update(func() (client.Object, error) { return nil, nil }),
		"a patch whose builder fails":        Patch(func() (client.Object, client.Patch, error) { return nil, nil, io.EOF }),
		"an identity that cannot be written": Create(job()).Identity(func() {}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, h := newAPI(t), newHand()
			_, err := h.Do(t.Context(), a, step)
			if err == nil || len(a.calls) != 0 || len(h.failed) != 1 || len(h.slept) != 0 {
				t.Errorf("got %v after %v and waits %v, hook %d times", err, a.calls, h.slept, len(h.failed))
			}
		})
	}
	if result, err := Do(t.Context(), newAPI(t)); err != nil || result.Tries != 0 {
		t.Errorf("no steps: %v", err)
	}
}

func TestUnstructured(t *testing.T) {
	t.Parallel()
	a, h := newAPI(t), newHand()
	object := func() *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "batch/v1", "kind": "Job",
			"metadata": map[string]any{"namespace": "ns", "name": "a"},
			"spec":     map[string]any{"backoffLimit": int64(0)},
		}}
	}
	a.after = times(1, "create Job", io.EOF)
	u := object()
	mustDo(t, h, a, Create(u))
	wantCalls(t, a, "create Job", "create Job", "get Job")
	if u.GetUID() != "uid-1" || u.GetKind() != "Job" {
		t.Errorf("got %v", u)
	}
	a.calls, a.before = nil, always("get Job", errForbidden)
	u = object()
	mustDo(t, newHand(), a, Create(u))
	wantCalls(t, a, "create Job", "get Job", "list JobList")
	if u.GetUID() != "uid-1" {
		t.Errorf("got %v", u)
	}
}

func TestKindIsKept(t *testing.T) {
	t.Parallel()
	to, from := job(), job()
	to.TypeMeta = metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"}
	assign(to, from)
	if to.Kind != "Job" {
		t.Error("the answer took the kind away")
	}
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	o := Options{}.withDefaults()
	if o.Budget != 2*time.Minute || o.TryTimeout != 30*time.Second || o.Backoff.Duration != 200*time.Millisecond {
		t.Errorf("got %+v", o)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := sleep(ctx, time.Nanosecond); err != nil {
		t.Errorf("slept with %v", err)
	}
	cancel()
	if err := sleep(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the end of the context", err)
	}
}

// Name is what the webhook generates for the same prefix and keys.
func TestName(t *testing.T) {
	t.Parallel()
	if got, want := Name("restore", "survival", "1"), names.Of("restore", 63, "survival", "1"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if Name("restore", "a") == Name("restore", "b") || Name("restore") != names.Of("restore", 63) {
		t.Error("the key does not tell names apart")
	}
}

// Sent objects carry the annotation, the caller's other annotations stay, and the
// caller's own map is not written to.
func TestStamp(t *testing.T) {
	t.Parallel()
	a, h := newAPI(t), newHand()
	j := job()
	annotations := map[string]string{"keep": "me"}
	j.Annotations = annotations
	mustDo(t, h, a, Create(j))
	sent := a.sent[0].GetAnnotations()
	if sent["keep"] != "me" || len(sent[AnnotationSpawn]) != 32 {
		t.Errorf("sent %v", sent)
	}
	if len(annotations) != 1 {
		t.Errorf("the caller's map became %v", annotations)
	}
}
