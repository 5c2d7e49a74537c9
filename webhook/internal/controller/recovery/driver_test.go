package recovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/facts"
	rules "github.com/belay-dev/belay/webhook/internal/recovery"
)

// scene is a driver over a cluster that the test describes: BatchSandbox lab/a, its Pods as
// the informers and as the API server know them, and its namespace.
type scene struct {
	t *testing.T
	d *driver

	// client is the API server, with the object as it is stored, and the driver's way to it.
	base, client client.WithWatch
	kube         *kubefake.Clientset

	mu sync.Mutex
	// cached are the Pods that the informers know; nil: they are not synced.
	cached []rules.Pod
	synced bool
	// labels are those of the namespaces that exist; gone ones are being deleted.
	labels map[string]map[string]string
	gone   map[string]bool
	nsErr  error
	// onGet, onPatch and onStatus fail calls; nil lets them through.
	onGet, onPatch, onStatus func() error
	gets                     int
	// patches are what was sent: "status" or "main", a blank, and the patch.
	patches []string
	// told are events: type, reason, action, what it is about, what it relates to, note.
	told []event
}

type event struct{ Kind, Reason, Action, About, Related, Note string }

var key = types.NamespacedName{Namespace: "lab", Name: "a"}

func set(t *testing.T, policy *facts.RecoveryPolicy, stored *unstructured.Unstructured, changes ...func(*scene)) *scene {
	t.Helper()
	s := &scene{t: t, synced: true, labels: map[string]map[string]string{"lab": {v1alpha1.ModeLabel: v1alpha1.ModeEnforce}}, gone: map[string]bool{}}
	for _, change := range changes {
		change(s)
	}
	s.kube = kubefake.NewClientset()
	objects := []client.Object{}
	if stored != nil {
		objects = append(objects, stored)
	}
	s.base = fake.NewClientBuilder().WithScheme(runtime.NewScheme()).WithObjects(objects...).WithStatusSubresource(sandbox(t, "")).Build()
	s.client = interceptor.NewClient(s.base, s.funcs())
	s.d = &driver{
		policy: policy, log: logr.Discard(), pods: s, live: facts.NewPods(s.kube, s), namespaces: s, client: s.client, events: s, own: "belay-system",
		objects: watchObjects(t.Context(), dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), listKinds), policy),
		queue:   workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](firstRetry, lastRetry)),
		told:    map[types.NamespacedName]string{}, since: map[types.NamespacedName]seen{}, recent: map[types.NamespacedName]recovery{},
		often: map[types.NamespacedName]frequency{}, slow: map[types.NamespacedName]slowed{},
	}
	t.Cleanup(s.d.queue.ShutDown)
	if stored != nil {
		s.informed(s.stored())
	}
	return s
}

func (s *scene) funcs() interceptor.Funcs {
	ask := func(f func() error) error {
		if f == nil {
			return nil
		}
		return f()
	}
	return interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, k client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			s.mu.Lock()
			s.gets++
			s.mu.Unlock()
			if err := ask(s.onGet); err != nil {
				return err
			}
			return c.Get(ctx, k, obj, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, p client.Patch, opts ...client.PatchOption) error {
			s.note("main", obj, p)
			if err := ask(s.onPatch); err != nil {
				return err
			}
			return c.Patch(ctx, obj, p, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			s.note(sub, obj, p)
			if err := ask(s.onStatus); err != nil {
				return err
			}
			return c.SubResource(sub).Patch(ctx, obj, p, opts...)
		},
	}
}

func (s *scene) note(where string, obj client.Object, p client.Patch) {
	data, err := p.Data(obj)
	if err != nil || p.Type() != types.MergePatchType {
		s.t.Errorf("%v %s", err, p.Type())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.patches = append(s.patches, where+" "+string(data))
}

// informed has the informer know an object.
func (s *scene) informed(u *unstructured.Unstructured) {
	s.t.Helper()
	if err := s.d.objects.GetIndexer().Add(strip(s.t.Context(), s.d.policy, u)); err != nil {
		s.t.Fatal(err)
	}
}

// stored is the object as the API server has it; nil where there is none.
func (s *scene) stored() *unstructured.Unstructured {
	s.t.Helper()
	u := sandbox(s.t, "")
	err := s.base.Get(s.t.Context(), key, u)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return u
}

// statusOf is the status of the stored object, as JSON without the times of its conditions.
func (s *scene) statusOf() string {
	s.t.Helper()
	u := s.stored()
	if u == nil {
		return ""
	}
	status, _, _ := unstructured.NestedMap(u.Object, "status")
	if list, ok := status["conditions"].([]any); ok {
		for _, c := range list {
			if m, ok := c.(map[string]any); ok {
				delete(m, "lastTransitionTime")
			}
		}
	}
	out, err := json.Marshal(status)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(out)
}

// Pods are those that the informers know.
func (s *scene) Pods(facts.PodQuery) ([]rules.Pod, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cached, s.synced
}

// Get reads a namespace.
func (s *scene) Get(_ context.Context, k client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ns, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok || ns.Kind != "Namespace" {
		return fmt.Errorf("not a namespace: %T", obj)
	}
	if s.nsErr != nil {
		return s.nsErr
	}
	labels, ok := s.labels[k.Name]
	if !ok {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, k.Name)
	}
	ns.Name, ns.Labels = k.Name, labels
	if s.gone[k.Name] {
		now := metav1.Now()
		ns.DeletionTimestamp = &now
	}
	return nil
}

func (s *scene) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("not expected")
}

func (s *scene) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	e := event{Kind: kind, Reason: reason, Action: action, Note: fmt.Sprintf(note, args...)}
	if r, ok := regarding.(*corev1.ObjectReference); ok {
		e.About = fmt.Sprintf("%s %s %s/%s %s", r.APIVersion, r.Kind, r.Namespace, r.Name, r.UID)
	}
	if r, ok := related.(*corev1.ObjectReference); ok {
		e.Related = fmt.Sprintf("%s %s/%s %s", r.Kind, r.Namespace, r.Name, r.UID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, e)
}

// sent are the patches so far, said the events, and reads how often the object was read; for
// tests in which the driver runs at the same time.
func (s *scene) sent() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.patches)
}

func (s *scene) said() []event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.told)
}

func (s *scene) reads() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gets
}

// tries are attempts to write a status. They fail with err, where there is one.
type tries struct {
	mu  sync.Mutex
	at  []time.Time
	err error
}

func (a *tries) try() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at = append(a.at, time.Now())
	return a.err
}

// then has later ones fail with err, or not, and gives the times of those so far.
func (a *tries) then(err error) []time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := a.at
	a.at, a.err = nil, err
	return at
}

// due has what is to be done been to be done for long enough.
func (s *scene) due(reason rules.Reason) {
	s.d.since[key] = seen{reason: reason, at: time.Now().Add(-grace)}
}

// podOf is a Pod of the object as the API server has it; without a reason to wait it is
// ready.
func podOf(uid, waits string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "lab", Name: "pod-" + uid, UID: types.UID(uid), Labels: map[string]string{"app": "box"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "sandbox.opensandbox.io/v1alpha1", Kind: "BatchSandbox", Name: "a", UID: "box-uid", Controller: new(true)}},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "main", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
		},
	}
	if waits != "" {
		p.Status.Conditions[0].Status = corev1.ConditionFalse
		p.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "main", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: waits}}}
	}
	return p
}

const (
	crash    = "CrashLoopBackOff"
	notReady = "ContainerCreating"
)

// known has the informers and the API server know these Pods, and no others.
func (s *scene) known(pods ...*corev1.Pod) *scene { return s.cachedPods(pods...).livePods(pods...) }

func (s *scene) cachedPods(pods ...*corev1.Pod) *scene {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cached = nil
	for _, p := range pods {
		s.cached = append(s.cached, rules.PodOf(p))
	}
	return s
}

func (s *scene) livePods(pods ...*corev1.Pod) *scene {
	s.t.Helper()
	list, err := s.kube.CoreV1().Pods("lab").List(s.t.Context(), metav1.ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, p := range list.Items {
		if err := s.kube.CoreV1().Pods("lab").Delete(s.t.Context(), p.Name, metav1.DeleteOptions{}); err != nil {
			s.t.Fatal(err)
		}
	}
	for _, p := range pods {
		if _, err := s.kube.CoreV1().Pods("lab").Create(s.t.Context(), p.DeepCopy(), metav1.CreateOptions{}); err != nil {
			s.t.Fatal(err)
		}
	}
	return s
}

func (s *scene) look() error {
	s.t.Helper()
	return s.d.look(s.t.Context(), key)
}

const (
	failedU1    = `{"phase":"Failed","failedPodUIDs":["u1"],"conditions":[{"type":"PodFailed","status":"True"}]}`
	failedBare  = `{"phase":"Failed"}`
	succeed     = `{"phase":"Succeed"}`
	readyStatus = `{"conditions":[{"message":"Sandbox is running","reason":"PodsReady","status":"True","type":"Ready"}],"phase":"Succeed"}`
	aboutA      = "sandbox.opensandbox.io/v1alpha1 BatchSandbox lab/a box-uid"
)

func inMode(mode string) func(*scene) {
	return func(s *scene) { s.labels["lab"] = map[string]string{v1alpha1.ModeLabel: mode} }
}

func recoverNever(in *v1alpha1.AcceptedRecoveryPolicy) { in.Spec.Recover = v1alpha1.RecoverNever }

// wanted is what a row expects: the zero value is that nothing is written, told or waited for.
type wanted struct {
	status  string // after the look; empty: as before
	patches []string
	told    []event
	since   rules.Reason // what is waited for
	err     string
}

// TestLook has a row for every branch of a look.
func TestLook(t *testing.T) {
	t.Parallel()
	ready := []*corev1.Pod{podOf("u1", "")}
	type policies = []func(*v1alpha1.AcceptedRecoveryPolicy)
	recoveredU1 := event{
		Kind: "Normal", Reason: "Recovered", Action: "Recovered", About: aboutA, Related: "Pod lab/pod-u1 u1",
		Note: `Recovered: brought back from Failed to Succeed: pod "pod-u1" (uid u1) is ready again`,
	}
	body := `{"metadata":{"resourceVersion":"10"},"status":{"conditions":[READY],"failedPodUIDs":null,"phase":"Succeed"}}`
	disallowed := event{Kind: "Normal", Reason: "RecoveryAllowed", Action: "Disallowed", About: aboutA, Note: "Disallowed: it is not failed (phase Succeed): annotation belay.dev/allow-recovery, which lets an object recover once without evidence, is taken off"}
	allow := annotated(map[string]string{"belay.dev/allow-recovery": "true"})
	type change = func(*unstructured.Unstructured)
	for name, c := range map[string]struct {
		policy  policies
		status  string
		object  []change
		scene   []func(*scene)
		pods    []*corev1.Pod
		due     rules.Reason // has been to be done for long enough
		missing bool         // the informer does not know the object
		want    wanted
	}{
		"the evidence holds, and has for long enough": {status: failedU1, pods: ready, due: rules.ReasonRecovered, want: wanted{status: readyStatus, patches: []string{"status " + body}, told: []event{recoveredU1}, since: rules.ReasonRecovered}},
		"the evidence holds since now":                {status: failedU1, pods: ready, want: wanted{since: rules.ReasonRecovered}},
		"the evidence holds, and something else had":  {status: failedU1, pods: ready, due: rules.ReasonPodGone, want: wanted{since: rules.ReasonRecovered}},
		"a Pod is not ready":                          {status: failedU1, pods: []*corev1.Pod{podOf("u1", crash)}, due: rules.ReasonRecovered},
		"another Pod fails":                           {status: failedU1, pods: []*corev1.Pod{podOf("u1", ""), podOf("u2", crash)}, due: rules.ReasonRecovered},
		"a Pod is gone since now":                     {status: failedU1, want: wanted{since: rules.ReasonPodGone}},
		"a Pod is gone": {status: failedU1, due: rules.ReasonPodGone, want: wanted{since: rules.ReasonPodGone, told: []event{{
			Kind: "Warning", Reason: "NotRecoverable", Action: "PodGone", About: aboutA,
			Note: `uid "u1": PodGone: the object has no such pod; no evidence can come any more`,
		}}}},
		"a Pod is replaced": {status: failedU1, pods: []*corev1.Pod{podOf("u2", "")}, due: rules.ReasonPodReplaced, want: wanted{since: rules.ReasonPodReplaced, told: []event{{
			Kind: "Warning", Reason: "NotRecoverable", Action: "PodReplaced", About: aboutA,
			Note: `uid "u1": PodReplaced: that pod is gone; pod "pod-u2" (uid u2) is another one; no evidence can come any more`,
		}}}},
		"it failed without a record": {status: failedBare, pods: ready, due: rules.ReasonNoRecord, want: wanted{since: rules.ReasonNoRecord, told: []event{{
			Kind: "Warning", Reason: "NotRecoverable", Action: "NoRecord", About: aboutA,
			Note: `NoRecord: batchsandbox "a" cannot go from "Failed" to "Succeed": it failed without a record of its pods, so that nothing proves its recovery; annotate it with belay.dev/allow-recovery=true to let it recover once`,
		}}}},
		"it failed without a record, where nothing is recorded": {status: failedBare, pods: ready, due: rules.ReasonNoRecord, scene: []func(*scene){inMode("warn")}},
		"its failure is terminal": {status: `{"phase":"Failed","conditions":[{"type":"ResumeFailed","status":"True"}]}`, pods: ready, due: rules.ReasonTerminal, want: wanted{since: rules.ReasonTerminal, told: []event{{
			Kind: "Warning", Reason: "NotRecoverable", Action: "Terminal", About: aboutA,
			Note: `Terminal: batchsandbox "a" cannot go from "Failed" to "Succeed": its failure is terminal; resume it, or create it anew`,
		}}}},
		"more Pods failed than are recorded": {status: `{"phase":"Failed","failedPodUIDs":["u1","00000000-0000-0000-0000-000000000000"]}`, pods: ready, due: rules.ReasonOverflow, want: wanted{since: rules.ReasonOverflow, told: []event{{
			Kind: "Warning", Reason: "NotRecoverable", Action: "Overflow", About: aboutA,
			Note: `Overflow: batchsandbox "a" cannot go from "Failed" to "Succeed": more pods failed than its record has room for; create it anew`,
		}}}},
		"which Pods it has cannot be told": {status: failedU1, object: []change{func(u *unstructured.Unstructured) {
			u.Object["spec"] = map[string]any{"poolRef": "p"}
			u.SetAnnotations(map[string]string{"pods": "x"})
		}}, want: wanted{told: []event{{
			Kind: "Warning", Reason: "NotRecoverable", Action: "ExpressionFailed", About: aboutA, Note: "ExpressionFailed: the annotation pods holds no list of names",
		}}}},
		"the policy only guards": {policy: policies{recoverNever}, status: failedU1, pods: ready, due: rules.ReasonRecovered},
		"the policy only guards, and a Pod is gone": {policy: policies{recoverNever}, status: failedU1, due: rules.ReasonPodGone, want: wanted{since: rules.ReasonPodGone, told: []event{{
			Kind: "Warning", Reason: "NotRecoverable", Action: "PodGone", About: aboutA,
			Note: `uid "u1": PodGone: the object has no such pod; no evidence can come any more`,
		}}}},
		"the policy only guards, and says nothing of recovery": {policy: policies{recoverNever, func(in *v1alpha1.AcceptedRecoveryPolicy) { in.Spec.Recovered = nil }}, status: failedU1, pods: ready, due: rules.ReasonRecovered},
		"mode warn: it is told what enforce would do": {status: failedU1, pods: ready, due: rules.ReasonRecovered, scene: []func(*scene){inMode("warn")}, want: wanted{since: rules.ReasonRecovered, told: []event{{
			Kind: "Normal", Reason: "Recovered", Action: "Recovered", About: aboutA, Related: "Pod lab/pod-u1 u1",
			Note: `Recovered: mode warn: enforce would bring it back to Succeed: pod "pod-u1" (uid u1) is ready again`,
		}}}},
		"the informers of Pods are not synced": {status: failedU1, scene: []func(*scene){func(s *scene) { s.synced = false }}, due: rules.ReasonRecovered, want: wanted{since: rules.ReasonRecovered, err: "the informers are not synced yet"}},
		"no mode":                              {status: failedU1, pods: ready, due: rules.ReasonRecovered, scene: []func(*scene){inMode("")}, want: wanted{since: rules.ReasonRecovered}},
		"the namespace is gone":                {status: failedU1, pods: ready, due: rules.ReasonRecovered, scene: []func(*scene){func(s *scene) { delete(s.labels, "lab") }}, want: wanted{since: rules.ReasonRecovered}},
		"the namespace is on its way out":      {status: failedU1, pods: ready, due: rules.ReasonRecovered, scene: []func(*scene){func(s *scene) { s.gone["lab"] = true }}, want: wanted{since: rules.ReasonRecovered}},
		"the namespace cannot be read":         {status: failedU1, pods: ready, due: rules.ReasonRecovered, scene: []func(*scene){func(s *scene) { s.nsErr = errors.New("no cache") }}, want: wanted{since: rules.ReasonRecovered, err: "no cache"}},
		"it is not failed":                     {status: succeed, pods: ready, due: rules.ReasonRecovered},
		"it has no status":                     {pods: ready, due: rules.ReasonRecovered},
		"its status has another shape":         {status: `{"phase":7}`, pods: ready, due: rules.ReasonRecovered},
		"it is on its way to something":        {status: `{"phase":"Pausing","failedPodUIDs":["u1"]}`, pods: ready, due: rules.ReasonRecovered},
		"it is being deleted": {status: failedU1, pods: ready, due: rules.ReasonRecovered, object: []change{func(u *unstructured.Unstructured) {
			now := metav1.Now()
			u.SetDeletionTimestamp(&now)
			u.SetFinalizers([]string{"example.com/x"})
		}}},
		"the informer does not know it": {status: failedU1, pods: ready, due: rules.ReasonRecovered, missing: true},
		"allowed by its annotation": {status: failedBare, object: []change{allow}, due: rules.ReasonAllowed, want: wanted{status: readyStatus, patches: []string{"status " + body}, since: rules.ReasonAllowed, told: []event{{
			Kind: "Normal", Reason: "RecoveryAllowed", Action: "AllowedByAnnotation", About: aboutA, Note: "AllowedByAnnotation: brought back from Failed to Succeed: annotation belay.dev/allow-recovery allows it",
		}}}},
		"allowed by its annotation, where nothing is enforced": {status: failedBare, object: []change{allow}, due: rules.ReasonAllowed, scene: []func(*scene){inMode("warn")}, want: wanted{since: rules.ReasonAllowed, told: []event{{
			Kind: "Normal", Reason: "Recovered", Action: "AllowedByAnnotation", About: aboutA, Note: "AllowedByAnnotation: mode warn: enforce would bring it back to Succeed: annotation belay.dev/allow-recovery allows it",
		}}}},
		"it was allowed, and is recovered":           {status: succeed, object: []change{allow}, due: rules.ReasonAllowed, want: wanted{patches: []string{`main {"metadata":{"resourceVersion":"10","annotations":{"belay.dev/allow-recovery":null}}}`}, told: []event{disallowed}}},
		"it was allowed, and the policy only guards": {policy: policies{recoverNever}, status: succeed, object: []change{allow}, want: wanted{patches: []string{`main {"metadata":{"resourceVersion":"10","annotations":{"belay.dev/allow-recovery":null}}}`}, told: []event{disallowed}}},
		"it was allowed, and is being deleted": {status: succeed, object: []change{allow, func(u *unstructured.Unstructured) {
			now := metav1.Now()
			u.SetDeletionTimestamp(&now)
			u.SetFinalizers([]string{"example.com/x"})
		}}},
		"it was allowed, and nothing is enforced":   {status: succeed, object: []change{allow}, scene: []func(*scene){inMode("warn")}},
		"it was allowed, and its record is carried": {status: `{"phase":"Paused","failedPodUIDs":["00000000-0000-0000-0000-000000000000"]}`, object: []change{allow}},
		"it was allowed, and it cannot be read":     {status: `{"phase":7}`, object: []change{allow}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := sandbox(t, c.status, c.object...)
			s := set(t, compiledPolicy(t, c.policy...), u, c.scene...).known(c.pods...)
			if c.missing {
				if err := s.d.objects.GetIndexer().Replace(nil, "1"); err != nil {
					t.Fatal(err)
				}
			}
			if c.due != "" {
				s.due(c.due)
			}
			before := s.statusOf()
			err := s.look()
			if (err != nil) != (c.want.err != "") || err != nil && err.Error() != c.want.err {
				t.Errorf("%v", err)
			}
			if c.want.status == "" {
				c.want.status = before
			}
			if got := s.statusOf(); got != c.want.status {
				t.Errorf("its status: %s", got)
			}
			if diff := cmp.Diff(c.want.told, s.told); diff != "" {
				t.Errorf("events (-want +got)\n%s", diff)
			}
			if len(c.want.patches) != len(s.patches) {
				t.Fatalf("%q", s.patches)
			}
			for i, want := range c.want.patches {
				kind, patch, _ := strings.Cut(s.patches[i], " ")
				wantKind, wantPatch, _ := strings.Cut(want, " ")
				if kind != wantKind {
					t.Errorf("%s", s.patches[i])
				}
				sameJSON(t, strings.ReplaceAll(wantPatch, "READY", readyCondition(t, patch)), patch)
			}
			if got := s.d.since[key].reason; got != c.want.since {
				t.Errorf("waits for %q", got)
			}
		})
	}
}

// readyCondition is the condition Ready as it must be, with the time that a patch gives it,
// which is about now.
func readyCondition(t *testing.T, patch string) string {
	t.Helper()
	var p struct {
		Status struct{ Conditions []metav1.Condition }
	}
	if err := json.Unmarshal([]byte(patch), &p); err != nil {
		t.Fatal(err)
	}
	if len(p.Status.Conditions) == 0 {
		return ""
	}
	since := p.Status.Conditions[0].LastTransitionTime
	if ago := time.Since(since.Time); ago < 0 || ago > time.Minute {
		t.Errorf("the condition is from %s", since)
	}
	return fmt.Sprintf(`{"type":"Ready","status":"True","reason":"PodsReady","message":"Sandbox is running","lastTransitionTime":%q}`, since.UTC().Format(time.RFC3339))
}

// TestRecover has a row for everything that may have changed since the informers heard of an
// object whose evidence holds, and for every answer to the write.
func TestRecover(t *testing.T) {
	t.Parallel()
	kind := schema.GroupKind{Group: "sandbox.opensandbox.io", Kind: "BatchSandbox"}
	fails := func(err error) func(*scene) {
		return func(s *scene) { s.onStatus = func() error { return err } }
	}
	refused := func(err error) []event {
		return []event{{Kind: "Warning", Reason: "RecoveryFailed", Action: "WriteRefused", About: aboutA, Note: "WriteRefused: its pods are ready again, but the API server refuses the change: patching the status of batchsandbox lab/a: " + err.Error()}}
	}
	invalid := apierrors.NewInvalid(kind, "a", field.ErrorList{field.Invalid(field.NewPath("status", "conditions"), "x", "no")})
	forbidden := apierrors.NewForbidden(resource.GroupResource(), "a", errors.New("no right"))
	terminating := apierrors.NewForbidden(resource.GroupResource(), "a", errors.New("terminating"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	conflict := apierrors.NewConflict(resource.GroupResource(), "a", errors.New("changed"))
	internal := apierrors.NewInternalError(errors.New("etcd"))
	type update = func(*unstructured.Unstructured)
	status := func(raw string) update {
		return func(u *unstructured.Unstructured) { u.Object["status"] = sandbox(t, raw).Object["status"] }
	}
	for name, c := range map[string]struct {
		scene []func(*scene)
		// since are changes of the stored object that the informer has not heard of.
		since []update
		gone  bool
		live  []*corev1.Pod // nil: as in the cache
		onPod error
		wrote bool
		told  []event
		err   string
	}{
		"nothing has":                          {wrote: true, told: []event{{Kind: "Normal", Reason: "Recovered", Action: "Recovered", About: aboutA, Related: "Pod lab/pod-u1 u1", Note: `Recovered: brought back from Failed to Succeed: pod "pod-u1" (uid u1) is ready again`}}},
		"it is gone":                           {gone: true},
		"it cannot be read":                    {scene: []func(*scene){func(s *scene) { s.onGet = func() error { return internal } }}, err: internal.Error()},
		"somebody else was faster":             {since: []update{status(succeed)}},
		"it was paused":                        {since: []update{status(`{"phase":"Pausing","failedPodUIDs":["u1"]}`)}},
		"its status has another shape":         {since: []update{status(`{"phase":"Failed","failedPodUIDs":"u1"}`)}},
		"it is terminal now":                   {since: []update{status(`{"phase":"Failed","failedPodUIDs":["u1"],"conditions":[{"type":"ResumeFailed","status":"True"}]}`)}},
		"its record is longer":                 {since: []update{status(`{"phase":"Failed","failedPodUIDs":["u1","u2"]}`)}},
		"its record is gone":                   {since: []update{status(failedBare)}},
		"it is being deleted":                  {since: []update{func(u *unstructured.Unstructured) { u.SetFinalizers([]string{"example.com/x"}) }}, scene: []func(*scene){func(s *scene) { s.gone["a"] = true }}},
		"its Pod is failing again":             {live: []*corev1.Pod{podOf("u1", crash)}},
		"its Pod is another one":               {live: []*corev1.Pod{podOf("u2", "")}},
		"it has no Pods any more":              {live: []*corev1.Pod{}},
		"its Pods cannot be read":              {onPod: internal, err: `batchsandbox "a" cannot go from "Failed" to "Succeed" yet: the state of its pods could not be found out: the API server had an error; try again`},
		"its Pods may not be read":             {onPod: apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", nil), err: `batchsandbox "a" cannot go from "Failed" to "Succeed" yet: the state of its pods could not be found out: belay has no right to read it; try again`},
		"it was changed between":               {scene: []func(*scene){fails(conflict)}, err: "patching the status of batchsandbox lab/a: " + conflict.Error()},
		"it was deleted between":               {scene: []func(*scene){fails(apierrors.NewNotFound(resource.GroupResource(), "a"))}},
		"its namespace is going":               {scene: []func(*scene){fails(terminating)}},
		"the API server refuses it":            {scene: []func(*scene){fails(invalid)}, told: refused(invalid), err: "patching the status of batchsandbox lab/a: " + invalid.Error()},
		"the API server forbids it":            {scene: []func(*scene){fails(forbidden)}, told: refused(forbidden), err: "patching the status of batchsandbox lab/a: " + forbidden.Error()},
		"the API server does not understand":   {scene: []func(*scene){fails(apierrors.NewBadRequest("what"))}, told: refused(apierrors.NewBadRequest("what")), err: "patching the status of batchsandbox lab/a: what"},
		"the API server has trouble":           {scene: []func(*scene){fails(internal)}, err: "patching the status of batchsandbox lab/a: " + internal.Error()},
		"it changed, but not what counts":      {since: []update{status(`{"phase":"Failed","failedPodUIDs":["u1"],"ready":7}`)}, wrote: true, told: []event{{Kind: "Normal", Reason: "Recovered", Action: "Recovered", About: aboutA, Related: "Pod lab/pod-u1 u1", Note: `Recovered: brought back from Failed to Succeed: pod "pod-u1" (uid u1) is ready again`}}},
		"its conditions have another shape":    {since: []update{status(`{"phase":"Failed","failedPodUIDs":["u1"],"conditions":{}}`)}},
		"which Pods it has cannot be told now": {since: []update{func(u *unstructured.Unstructured) { u.Object["spec"] = map[string]any{"poolRef": int64(7)} }}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := set(t, compiledPolicy(t), sandbox(t, failedU1), c.scene...).known(podOf("u1", ""))
			s.due(rules.ReasonRecovered)
			if c.live != nil {
				s.livePods(c.live...)
			}
			if c.onPod != nil {
				s.kube.PrependReactor("*", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, &corev1.PodList{}, c.onPod })
			}
			for _, change := range c.since {
				u := s.stored()
				change(u)
				if err := s.base.Update(t.Context(), u); err != nil {
					t.Fatal(err)
				}
				status := s.stored()
				status.Object["status"] = u.Object["status"]
				change(status)
				if err := s.base.Status().Update(t.Context(), status); err != nil {
					t.Fatal(err)
				}
			}
			if c.gone || s.gone["a"] {
				if err := s.base.Delete(t.Context(), s.stored()); err != nil {
					t.Fatal(err)
				}
			}
			before := s.statusOf()
			err := s.look()
			if (err != nil) != (c.err != "") || err != nil && err.Error() != c.err {
				t.Errorf("%v", err)
			}
			if diff := cmp.Diff(c.told, s.told); diff != "" {
				t.Errorf("events (-want +got)\n%s", diff)
			}
			after := s.statusOf()
			if (after != before) != c.wrote || c.wrote && !strings.Contains(after, `"phase":"Succeed"`) || strings.Contains(after, "u1") && c.wrote {
				t.Errorf("from %s to %s", before, after)
			}
			if _, remembered := s.d.recent[key]; remembered != c.wrote {
				t.Errorf("remembered %t", remembered)
			}
		})
	}
}

// TestDisallow: the allowance is for once, and taking it off is no hurry.
func TestDisallow(t *testing.T) {
	t.Parallel()
	internal := apierrors.NewInternalError(errors.New("etcd"))
	for name, c := range map[string]struct {
		fails error
		told  int
		err   string
	}{
		"taken off":           {nil, 1, ""},
		"gone":                {apierrors.NewNotFound(resource.GroupResource(), "a"), 0, ""},
		"changed":             {apierrors.NewConflict(resource.GroupResource(), "a", errors.New("changed")), 0, ""},
		"forbidden":           {apierrors.NewForbidden(resource.GroupResource(), "a", nil), 0, `taking annotation belay.dev/allow-recovery off: batchsandboxes.sandbox.opensandbox.io "a" is forbidden`},
		"a server in trouble": {internal, 0, "taking annotation belay.dev/allow-recovery off: " + internal.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := set(t, compiledPolicy(t), sandbox(t, succeed, annotated(map[string]string{"belay.dev/allow-recovery": "true", "other": "x"})))
			if c.fails != nil {
				s.onPatch = func() error { return c.fails }
			}
			err := s.look()
			if (err != nil) != (c.err != "") || err != nil && !strings.HasPrefix(err.Error(), c.err) {
				t.Errorf("%v", err)
			}
			want := map[string]string{"belay.dev/allow-recovery": "true", "other": "x"}
			if c.fails == nil {
				delete(want, "belay.dev/allow-recovery")
			}
			if diff := cmp.Diff(want, s.stored().GetAnnotations()); diff != "" || len(s.told) != c.told {
				t.Errorf("%+v (-want +got)\n%s", s.told, diff)
			}
		})
	}
}

// TestAnObjectThatCannotRecoverIsToldOfOnce: whatever its other Pods do; and once more when it
// is another object, or when something else is the matter.
func TestAnObjectThatCannotRecoverIsToldOfOnce(t *testing.T) {
	t.Parallel()
	s := set(t, compiledPolicy(t), sandbox(t, `{"phase":"Failed","failedPodUIDs":["u1","u2"]}`))
	ended := podOf("u2", crash)
	ended.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}
	starting := podOf("u2", "")
	starting.Status.Conditions[0].Status, starting.Status.ContainerStatuses[0].Ready = corev1.ConditionFalse, false
	tell := func(want int, pods ...*corev1.Pod) {
		t.Helper()
		s.known(pods...)
		s.due(rules.ReasonPodGone)
		if err := s.look(); err != nil {
			t.Fatal(err)
		}
		if len(s.told) != want {
			t.Errorf("told %d times: %+v", len(s.told), s.told)
		}
	}
	tell(1, podOf("u2", ""))
	tell(1, podOf("u2", ""))
	tell(1, podOf("u2", crash))
	tell(1, ended)
	tell(1, starting)
	tell(1, podOf("u2", ""))
	if !strings.Contains(s.told[0].Note, `uid "u1": PodGone`) {
		t.Errorf("%+v", s.told)
	}
	// Created anew, it is another object.
	s.informed(sandbox(t, `{"phase":"Failed","failedPodUIDs":["u1","u2"]}`, func(u *unstructured.Unstructured) { u.SetUID("anew") }))
	tell(2, podOf("u2", ""))
	// It recovers, and fails again as it had.
	s.informed(sandbox(t, succeed))
	if err := s.look(); err != nil {
		t.Fatal(err)
	}
	s.informed(sandbox(t, `{"phase":"Failed","failedPodUIDs":["u1","u2"]}`))
	tell(3, podOf("u2", ""))
	// It is gone, and nothing is kept of it.
	s.d.leave(key, true)
	if err := s.d.objects.GetIndexer().Replace(nil, "1"); err != nil {
		t.Fatal(err)
	}
	if err := s.look(); err != nil || len(s.d.told)+len(s.d.since)+len(s.d.slow) > 0 {
		t.Errorf("%v %v %v %v", err, s.d.told, s.d.since, s.d.slow)
	}
}

// TestEventsFitTheAPI: the note of an event has a limit.
func TestEventsFitTheAPI(t *testing.T) {
	t.Parallel()
	s := set(t, compiledPolicy(t), sandbox(t, failedU1))
	s.d.event(sandbox(t, ""), note{kind: "Normal", reason: "R", why: "W", message: strings.Repeat("é", 2000)})
	if n := len(s.told[0].Note); n > 1024 || n < 1000 || !strings.HasPrefix(s.told[0].Note, "W: éé") {
		t.Errorf("%d bytes: %.20s", n, s.told[0].Note)
	}
	// What looks like a verb is none.
	s.d.event(sandbox(t, ""), note{kind: "Normal", reason: "R", why: "W", message: "100%d %s"})
	if s.told[1].Note != "W: 100%d %s" || s.told[1].Related != "" {
		t.Errorf("%+v", s.told[1])
	}
}

func TestBecause(t *testing.T) {
	t.Parallel()
	ok := func(pod, uid string) rules.Verdict { return rules.Verdict{Pod: pod, UID: types.UID(uid)} }
	var many []rules.Verdict
	for i := range 100 {
		many = append(many, ok(fmt.Sprintf("p%d", i), fmt.Sprint(i)))
	}
	for name, c := range map[string]struct {
		verdict rules.Decision
		want    string
		related string
	}{
		"one Pod":    {rules.Decision{Evidence: []rules.Verdict{ok("p", "u")}}, `pod "p" (uid u) is ready again`, "p u"},
		"two Pods":   {rules.Decision{Evidence: []rules.Verdict{ok("p", "u"), ok("q", "v")}}, `pod "p" (uid u) is ready again; pod "q" (uid v) is ready again`, "p u"},
		"allowed":    {rules.Decision{Reason: rules.ReasonAllowed}, "annotation belay.dev/allow-recovery allows it", ""},
		"nothing":    {rules.Decision{}, "nothing was recorded", ""},
		"a hundred":  {rules.Decision{Evidence: many}, `pod "p0" (uid 0) is ready again; pod "p1"`, "p0 0"},
		"the action": {rules.Decision{Reason: rules.ReasonRecovered, Evidence: []rules.Verdict{ok("p", "u")}}, `pod "p" (uid u) is ready again`, "p u"},
	} {
		got := because(c.verdict)
		if !strings.HasPrefix(got, c.want) || len(got) > 520 || len(c.verdict.Evidence) < 3 && got != c.want {
			t.Errorf("%s: %s", name, got)
		}
		r := related("lab", c.verdict)
		if (r != nil) != (c.related != "") || r != nil && (r.Name+" "+string(r.UID) != c.related || r.Kind != "Pod" || r.Namespace != "lab" || r.APIVersion != "v1") {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// TestOnlyWhatMayRecoverIsLookedAt when a Pod or a namespace changes: the others would cost a
// look each.
func TestOnlyWhatMayRecoverIsLookedAt(t *testing.T) {
	t.Parallel()
	s := set(t, compiledPolicy(t), nil)
	object := func(name, uid, status string, changes ...func(*unstructured.Unstructured)) {
		s.informed(sandbox(t, status, append(changes, func(u *unstructured.Unstructured) {
			u.SetName(name)
			u.SetUID(types.UID(uid))
		})...))
	}
	pooled := func(pods string) func(*unstructured.Unstructured) {
		return func(u *unstructured.Unstructured) {
			u.Object["spec"] = map[string]any{"poolRef": "p"}
			u.SetAnnotations(map[string]string{"pods": pods})
		}
	}
	object("failed", "1", failedU1)
	object("running", "2", succeed)
	object("allowed", "3", succeed, annotated(map[string]string{"belay.dev/allow-recovery": "true"}))
	object("pooled", "4", failedBare, pooled(`["p","q"]`))
	object("pooled-too", "5", failedBare, pooled(`["q"]`))
	object("pooled-running", "6", succeed, pooled(`["q"]`))
	object("elsewhere", "7", failedU1, func(u *unstructured.Unstructured) { u.SetNamespace("other") })
	for name, c := range map[string]struct {
		change func()
		want   []string
	}{
		"a Pod of a failed one":              {func() { s.d.podChanged(facts.PodChange{Namespace: "lab", Name: "x", Controller: "1"}) }, []string{"lab/failed"}},
		"a Pod of a running one":             {func() { s.d.podChanged(facts.PodChange{Namespace: "lab", Name: "x", Controller: "2"}) }, nil},
		"a Pod of one that is allowed":       {func() { s.d.podChanged(facts.PodChange{Namespace: "lab", Name: "x", Controller: "3"}) }, []string{"lab/allowed"}},
		"a Pod of nobody":                    {func() { s.d.podChanged(facts.PodChange{Namespace: "lab", Name: "x"}) }, nil},
		"a Pod that two name":                {func() { s.d.podChanged(facts.PodChange{Namespace: "lab", Name: "q", Controller: "pool"}) }, []string{"lab/pooled", "lab/pooled-too"}},
		"one of that name in another place":  {func() { s.d.podChanged(facts.PodChange{Namespace: "other", Name: "q"}) }, nil},
		"the namespace":                      {func() { s.d.namespaceChanged("lab") }, []string{"lab/allowed", "lab/failed", "lab/pooled", "lab/pooled-too"}},
		"another namespace":                  {func() { s.d.namespaceChanged("other") }, []string{"other/elsewhere"}},
		"a namespace without objects":        {func() { s.d.namespaceChanged("none") }, nil},
		"an index that is not there":         {func() { s.d.enqueue("nope", "x") }, nil},
		"a Pod that is one's and is another": {func() { s.d.podChanged(facts.PodChange{Namespace: "lab", Name: "p", Controller: "1"}) }, []string{"lab/failed", "lab/pooled"}},
	} {
		c.change()
		var got []string
		for s.d.queue.Len() > 0 {
			k, _ := s.d.queue.Get()
			got = append(got, k.String())
			s.d.queue.Done(k)
		}
		slices.Sort(got)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}

// TestWhatIsRememberedOfARecovery: for how long, of which object, and what ends it.
func TestWhatIsRememberedOfARecovery(t *testing.T) {
	t.Parallel()
	plain := recovery{uid: "box-uid", generation: 1, version: "20", pods: []string{"u1", "u2", "u3"}, ready: []string{"u1", "u2"}}
	for name, c := range map[string]struct {
		ago    time.Duration
		change func(*recovery)
		object []func(*unstructured.Unstructured)
		was    string
		want   []string
	}{
		"a moment ago":                     {ago: time.Second, was: failedBare, want: []string{"u1", "u2"}},
		"just inside of the time":          {ago: remembered - time.Second, was: failedBare, want: []string{"u1", "u2"}},
		"longer ago":                       {ago: remembered + time.Second, was: failedBare},
		"of another object of that name":   {ago: time.Second, was: failedBare, object: []func(*unstructured.Unstructured){func(u *unstructured.Unstructured) { u.SetUID("anew") }}},
		"somebody asked for something new": {ago: time.Second, was: failedBare, object: []func(*unstructured.Unstructured){func(u *unstructured.Unstructured) { u.SetGeneration(2) }}},
		"it has a record of its own":       {ago: time.Second, was: failedU1, want: []string{"u1"}},
		"its failure is terminal":          {ago: time.Second, was: `{"phase":"Failed","conditions":[{"type":"ResumeFailed","status":"True"}]}`},
		"none of its Pods was ready":       {ago: time.Second, change: func(r *recovery) { r.ready = nil }, was: failedBare},
		"as often as may be":               {ago: time.Second, change: func(r *recovery) { r.again = maxAgain - 1 }, was: failedBare, want: []string{"u1", "u2"}},
		"too often":                        {ago: time.Second, change: func(r *recovery) { r.again = maxAgain }, was: failedBare},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := set(t, compiledPolicy(t), nil)
			u := sandbox(t, c.was, c.object...)
			r := plain
			r.at = time.Now().Add(-c.ago)
			if c.change != nil {
				c.change(&r)
			}
			s.d.recent[key] = r
			was := s.d.policy.Layout.Read(u.Object)
			got, yes := s.d.stale(key, u, was)
			if diff := cmp.Diff(c.want, got.Record.UIDs); diff != "" || yes != (len(c.want) == 2) {
				t.Errorf("%t (-want +got)\n%s", yes, diff)
			}
			other := key
			other.Name = "b"
			if got, yes := s.d.stale(other, u, was); yes || len(got.Record.UIDs) != len(was.Record.UIDs) {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestWhatIsPassedEndsTheMemory(t *testing.T) {
	t.Parallel()
	versioned := func(v string) func(*unstructured.Unstructured) {
		return func(u *unstructured.Unstructured) { u.SetResourceVersion(v) }
	}
	for name, c := range map[string]struct {
		status string
		object []func(*unstructured.Unstructured)
		kept   bool
	}{
		"what belay wrote":               {succeed, []func(*unstructured.Unstructured){versioned("20")}, true},
		"what was before":                {`{"phase":"Paused"}`, []func(*unstructured.Unstructured){versioned("19")}, true},
		"recovered still":                {succeed, []func(*unstructured.Unstructured){versioned("21")}, true},
		"recovered in another phase":     {`{"phase":"Pending"}`, []func(*unstructured.Unstructured){versioned("21")}, true},
		"failed again, without a record": {failedBare, []func(*unstructured.Unstructured){versioned("100")}, true},
		"failed again, with a record":    {failedU1, []func(*unstructured.Unstructured){versioned("21")}, false},
		"paused":                         {`{"phase":"Pausing"}`, []func(*unstructured.Unstructured){versioned("21")}, false},
		"resumed":                        {`{"phase":"Resuming"}`, []func(*unstructured.Unstructured){versioned("21")}, false},
		"in an unknown phase":            {`{"phase":"Melting"}`, []func(*unstructured.Unstructured){versioned("21")}, false},
		"without a phase":                {`{}`, []func(*unstructured.Unstructured){versioned("21")}, false},
		"without a status":               {``, []func(*unstructured.Unstructured){versioned("21")}, false},
		"what it has recovered from":     {failedU1, []func(*unstructured.Unstructured){versioned("20")}, true},
		"recovered, of another shape":    {`{"phase":"Succeed","conditions":{}}`, []func(*unstructured.Unstructured){versioned("21")}, false},
		"of another shape":               {`{"phase":7}`, []func(*unstructured.Unstructured){versioned("21")}, false},
		"failed for good":                {`{"phase":"Failed","conditions":[{"type":"ResumeFailed","status":"True"}]}`, []func(*unstructured.Unstructured){versioned("21")}, false},
		"about to be resumed":            {succeed, []func(*unstructured.Unstructured){versioned("21"), func(u *unstructured.Unstructured) { u.Object["spec"] = map[string]any{"pause": false} }}, false},
		"a version that is no number":    {`{"phase":"Paused"}`, []func(*unstructured.Unstructured){versioned("x")}, false},
		"another object of that name":    {`{"phase":"Paused"}`, []func(*unstructured.Unstructured){versioned("21"), func(u *unstructured.Unstructured) { u.SetUID("anew") }}, true},
		"an object of another name":      {`{"phase":"Paused"}`, []func(*unstructured.Unstructured){versioned("21"), func(u *unstructured.Unstructured) { u.SetName("b") }}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := set(t, compiledPolicy(t), nil)
			s.d.recent[key] = recovery{uid: "box-uid", generation: 1, version: "20", pods: []string{"u1"}, ready: []string{"u1"}, at: time.Now()}
			s.d.passed(strip(t.Context(), s.d.policy, sandbox(t, c.status, c.object...)))
			if _, kept := s.d.recent[key]; kept != c.kept {
				t.Errorf("kept %t", kept)
			}
			s.d.passed("something else")
		})
	}
}

// TestTheMemoryOfRecoveriesIsBounded: those that are over go with the next one; and how often
// it was done again counts within one minute.
func TestTheMemoryOfRecoveriesIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := set(t, compiledPolicy(t), nil)
		written := func(name string, version int) *unstructured.Unstructured {
			return sandbox(t, succeed, func(u *unstructured.Unstructured) {
				u.SetName(name)
				u.SetResourceVersion(fmt.Sprint(version))
				u.SetGeneration(3)
			})
		}
		deleting := podOf("u9", "")
		deleting.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		pods := []rules.Pod{rules.PodOf(podOf("u1", "")), rules.PodOf(deleting), rules.PodOf(podOf("u2", notReady))}
		begin := time.Now()
		looked := func(name string) *object {
			return &object{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: name}}
		}
		s.d.remember(looked("a"), written("a", 20), pods, true)
		want := recovery{uid: "box-uid", generation: 3, version: "20", pods: []string{"u1", "u2"}, ready: []string{"u1"}, at: begin}
		if diff := cmp.Diff(want, s.d.recent[key], cmp.AllowUnexported(recovery{})); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		<-time.After(10 * time.Second)
		s.d.remember(looked("a"), written("a", 21), pods, false)
		want.version, want.again, want.ready = "21", 1, []string{"u1", "u2"}
		if diff := cmp.Diff(want, s.d.recent[key], cmp.AllowUnexported(recovery{})); diff != "" {
			t.Errorf("again (-want +got)\n%s", diff)
		}
		for i := range 1000 {
			s.d.remember(looked(fmt.Sprint(i)), written(fmt.Sprint(i), 1), pods, true)
		}
		<-time.After(remembered + time.Second)
		s.d.remember(looked("a"), written("a", 30), pods, false)
		want.version, want.again, want.at = "30", 0, time.Now()
		if diff := cmp.Diff(want, s.d.recent[key], cmp.AllowUnexported(recovery{})); diff != "" || len(s.d.recent) != 1 {
			t.Errorf("%d remembered (-want +got)\n%s", len(s.d.recent), diff)
		}
		anew := written("a", 31)
		anew.SetUID("anew")
		s.d.remember(looked("a"), anew, pods, true)
		if r := s.d.recent[key]; r.uid != "anew" || r.again != 0 {
			t.Errorf("%+v", r)
		}
	})
}

// play runs a driver whole, in a bubble whose clock goes on when nothing else does: the
// informer of its objects and its writes are of one API server in memory.
type play struct {
	*scene
	dyn  *dynamicfake.FakeDynamicClient
	stop func()
}

func run(t *testing.T, policy *facts.RecoveryPolicy, stored *unstructured.Unstructured, changes ...func(*scene)) *play {
	t.Helper()
	s := set(t, policy, nil, changes...)
	p := &play{scene: s, dyn: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), listKinds)}
	s.base = fake.NewClientBuilder().WithScheme(runtime.NewScheme()).WithObjects(stored).WithStatusSubresource(sandbox(t, "")).Build()
	s.client = interceptor.NewClient(s.base, p.mirrored())
	if err := p.dyn.Tracker().Create(resource, s.stored(), "lab"); err != nil {
		t.Fatal(err)
	}
	p.begin()
	return p
}

// mirrored has what is written here be heard of by the informer.
func (p *play) mirrored() interceptor.Funcs {
	f := p.funcs()
	main, status := f.Patch, f.SubResourcePatch
	f.Patch = func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
		if err := main(ctx, c, obj, patch, opts...); err != nil {
			return err
		}
		return p.hear(obj)
	}
	f.SubResourcePatch = func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
		if err := status(ctx, c, sub, obj, patch, opts...); err != nil {
			return err
		}
		return p.hear(obj)
	}
	return f
}

func (p *play) hear(obj runtime.Object) error {
	return p.dyn.Tracker().Update(resource, obj.DeepCopyObject(), "lab")
}

// begin starts a driver, as a process does that has just begun to lead.
func (p *play) begin() {
	p.d = &driver{
		policy: p.d.policy, log: p.d.log, pods: p.scene, live: p.d.live, namespaces: p.scene, client: p.client, events: p.scene, own: "belay-system",
		objects: watchObjects(p.t.Context(), p.dyn, p.d.policy),
	}
	p.d.start(p.t.Context())
	p.stop = sync.OnceFunc(p.d.end)
	p.t.Cleanup(func() { p.stop() })
	synctest.Wait()
}

// writes has somebody else write the object's status.
func (p *play) writes(status string) {
	p.t.Helper()
	u := p.stored()
	u.Object["status"] = sandbox(p.t, status).Object["status"]
	if err := p.base.Status().Update(p.t.Context(), u); err != nil {
		p.t.Fatal(err)
	}
	if err := p.hear(p.stored()); err != nil {
		p.t.Fatal(err)
	}
	synctest.Wait()
}

// turn has the Pods be like this, and tells.
func (p *play) turn(pods ...*corev1.Pod) {
	p.t.Helper()
	p.known(pods...)
	p.d.podChanged(facts.PodChange{Namespace: "lab", Name: "pod-u1", Controller: "box-uid"})
	synctest.Wait()
}

func (p *play) phase() string {
	p.t.Helper()
	phase, _, _ := unstructured.NestedString(p.stored().Object, "status", "phase")
	return phase
}

func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// TestAnObjectIsBroughtBackWhenItsPodsAreReadyAgain: not before the evidence has held for a
// moment, and once; afterwards nothing is asked.
func TestAnObjectIsBroughtBackWhenItsPodsAreReadyAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := run(t, compiledPolicy(t), sandbox(t, failedU1))
		p.turn(podOf("u1", crash))
		pass(time.Hour)
		if len(p.sent())+len(p.said())+p.reads() > 0 {
			t.Errorf("%q %+v, %d reads", p.sent(), p.said(), p.reads())
		}
		p.turn(podOf("u1", ""))
		pass(grace / 2)
		p.turn(podOf("u1", crash)) // it was too early
		pass(grace)
		p.turn(podOf("u1", ""))
		pass(grace - time.Millisecond)
		if p.phase() != "Failed" || len(p.sent()) > 0 {
			t.Errorf("%s", p.phase())
		}
		pass(time.Millisecond)
		if got := p.statusOf(); got != readyStatus || len(p.sent()) != 1 || len(p.said()) != 1 || p.said()[0].Reason != "Recovered" {
			t.Errorf("%s %q %+v", got, p.sent(), p.said())
		}
		reads := p.reads()
		p.kube.ClearActions()
		pass(24 * time.Hour)
		if p.reads() > reads || len(p.kube.Actions()) > 0 || len(p.sent()) != 1 || len(p.said()) != 1 {
			t.Errorf("it is not quiet: %d reads, %v, %q, %+v", p.reads()-reads, p.kube.Actions(), p.sent(), p.said())
		}
	})
}

// TestNothingIsKeptThatARestartLoses: a driver that starts finds what there is to do.
func TestNothingIsKeptThatARestartLoses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := run(t, compiledPolicy(t), sandbox(t, failedU1))
		p.known(podOf("u1", crash))
		p.stop()
		p.known(podOf("u1", "")) // while nobody looks
		p.begin()
		pass(2 * grace)
		if p.phase() != "Succeed" {
			t.Errorf("%s", p.statusOf())
		}
	})
}

// TestAWriteThatWasUnderWayIsUndone: a controller that had begun to write before puts the old
// phase back. Belay brings the object back again, but does not fight for ever; and a failure
// of its own is one.
func TestAWriteThatWasUnderWayIsUndone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := run(t, compiledPolicy(t), sandbox(t, failedU1))
		p.turn(podOf("u1", ""))
		pass(2 * grace)
		for i := range maxAgain {
			if p.phase() != "Succeed" {
				t.Fatalf("after %d: %s", i, p.statusOf())
			}
			p.writes(failedBare)
			pass(2 * time.Second)
		}
		if p.phase() != "Succeed" {
			t.Errorf("%s", p.statusOf())
		}
		p.writes(failedBare)
		pass(time.Hour)
		if p.phase() != "Failed" || len(p.sent()) != maxAgain+1 {
			t.Errorf("%s, %d writes", p.statusOf(), len(p.sent()))
		}
	})
	// A Pod that only is not ready was no obstacle the first time.
	synctest.Test(t, func(t *testing.T) {
		p := run(t, compiledPolicy(t), sandbox(t, failedU1))
		p.turn(podOf("u1", ""), podOf("u2", notReady))
		pass(2 * grace)
		p.writes(failedBare)
		pass(2 * grace)
		if p.phase() != "Succeed" || len(p.sent()) != 2 {
			t.Errorf("%s, %d writes", p.statusOf(), len(p.sent()))
		}
		p.turn(podOf("u1", ""), podOf("u2", crash))
		p.writes(failedBare)
		p.turn(podOf("u1", ""), podOf("u2", ""))
		pass(time.Hour)
		if p.phase() != "Failed" || len(p.sent()) != 2 {
			t.Errorf("%s, %d writes", p.statusOf(), len(p.sent()))
		}
	})
	for name, between := range map[string]func(*play){
		"its Pod fails":                func(p *play) { p.turn(podOf("u1", crash)) },
		"its Pod is another":           func(p *play) { p.turn(podOf("u2", "")) },
		"another Pod fails":            func(p *play) { p.turn(podOf("u1", ""), podOf("u2", crash)) },
		"it was paused between":        func(p *play) { p.writes(`{"phase":"Paused"}`) },
		"it was resumed between":       func(p *play) { p.writes(`{"phase":"Resuming"}`) },
		"it had been terminal between": func(p *play) { p.writes(`{"phase":"Failed","conditions":[{"type":"ResumeFailed","status":"True"}]}`) },
		"its time has passed":          func(*play) { pass(remembered + time.Second) },
	} {
		synctest.Test(t, func(t *testing.T) {
			p := run(t, compiledPolicy(t), sandbox(t, failedU1))
			p.turn(podOf("u1", ""))
			pass(2 * grace)
			between(p)
			p.writes(failedBare)
			pass(time.Hour)
			if p.phase() != "Failed" || len(p.sent()) != 1 {
				t.Errorf("%s: %s, %d writes", name, p.statusOf(), len(p.sent()))
			}
		})
	}
}

// TestAnObjectThatIsFoughtAboutIsSlowedDown: somebody has another idea of failure, and writes
// it again and again. Belay says so, and waits longer each time.
func TestAnObjectThatIsFoughtAboutIsSlowedDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var a tries
		p := run(t, compiledPolicy(t), sandbox(t, failedU1), func(s *scene) { s.onStatus = a.try })
		pass(time.Second) // its informer is synced by now
		p.turn(podOf("u1", ""))
		fight := func(d time.Duration) (waits []time.Duration) {
			last := time.Now()
			for range d / time.Second {
				pass(time.Second)
				if p.phase() == "Succeed" {
					at := a.then(nil)
					waits = append(waits, at[len(at)-1].Sub(last))
					p.writes(failedU1)
					last = time.Now()
				}
			}
			return waits
		}
		want := []time.Duration{1, 1, 1, 1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300}
		for i := range want {
			want[i] *= time.Second
		}
		if diff := cmp.Diff(want, fight(19*time.Minute)); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		contestedEvents := 0
		for _, e := range p.said() {
			if e.Reason == v1alpha1.ReasonRecoveryContested {
				contestedEvents++
				if e.Kind != "Warning" || e.Action != "Contested" || e.About != aboutA || !strings.Contains(e.Note, "times, each soon after the last: its pods keep failing and coming back, or somebody keeps writing Failed by another idea of failure") {
					t.Errorf("%+v", e)
				}
			}
		}
		if contestedEvents != len(want)-contested+1 {
			t.Errorf("told %d times", contestedEvents)
		}
		// After a while it is as if nothing had been.
		pass(lastRetry + time.Second)
		p.writes(succeed)
		pass(3*lastRetry + time.Second)
		p.writes(failedU1)
		pass(grace)
		if p.phase() != "Succeed" {
			t.Error("it is slow still")
		}
		if p.said()[len(p.said())-1].Reason != "Recovered" {
			t.Errorf("%+v", p.said()[len(p.said())-1])
		}
	})
	t.Run("another object of that name is not slowed", func(t *testing.T) {
		t.Parallel()
		s := set(t, compiledPolicy(t), sandbox(t, failedU1)).known(podOf("u1", ""))
		for range 8 {
			s.d.count(key, "the one before")
		}
		s.due(rules.ReasonRecovered)
		if err := s.look(); err != nil || len(s.patches) != 1 {
			t.Errorf("%v %q", err, s.patches)
		}
		if n := s.d.count(key, "box-uid"); n != 2 {
			t.Errorf("counted %d", n)
		}
	})
	t.Run("what is counted is bounded", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := set(t, compiledPolicy(t), nil)
			for i := range 1000 {
				s.d.count(types.NamespacedName{Name: fmt.Sprint(i)}, "x")
			}
			<-time.After(contestedFor + time.Second)
			if n := s.d.count(key, "x"); n != 1 || len(s.d.often) != 1 {
				t.Errorf("%d, %d counted", n, len(s.d.often))
			}
		})
	})
}

// TestPodsThatChangeAllTheTimeCostLittle: the API server is asked no more than once a second,
// and a write that is refused is tried less and less.
func TestPodsThatChangeAllTheTimeCostLittle(t *testing.T) {
	t.Parallel()
	busy := func(p *play, d time.Duration) {
		for range d / (100 * time.Millisecond) {
			p.d.podChanged(facts.PodChange{Namespace: "lab", Name: "pod-u1", Controller: "box-uid"})
			pass(100 * time.Millisecond)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		p := run(t, compiledPolicy(t), sandbox(t, failedU1))
		p.cachedPods(podOf("u1", "")).livePods(podOf("u1", crash)) // the informers are behind
		before := p.reads()
		busy(p, time.Minute)
		if n := p.reads() - before; n > 61 || n < 30 || len(p.sent()) > 0 {
			t.Errorf("%d reads, %q", n, p.sent())
		}
	})
	synctest.Test(t, func(t *testing.T) {
		a := tries{err: apierrors.NewForbidden(resource.GroupResource(), "a", errors.New("no right"))}
		p := run(t, compiledPolicy(t), sandbox(t, failedU1), func(s *scene) { s.onStatus = a.try })
		p.known(podOf("u1", ""))
		busy(p, time.Minute)
		if n := len(a.then(nil)); n > 7 || n < 5 {
			t.Errorf("%d tries", n)
		}
	})
	// An API server in trouble is not asked more often than one that is well.
	for name, err := range map[string]error{"in trouble": apierrors.NewInternalError(errors.New("etcd")), "fast": apierrors.NewConflict(resource.GroupResource(), "a", errors.New("changed"))} {
		synctest.Test(t, func(t *testing.T) {
			a := tries{err: err}
			p := run(t, compiledPolicy(t), sandbox(t, failedU1), func(s *scene) { s.onStatus = a.try })
			p.known(podOf("u1", ""))
			busy(p, time.Minute)
			if n := len(a.then(nil)); n > 61 {
				t.Errorf("%s: %d tries", name, n)
			}
		})
	}
}

// TestTroubleIsWaitedOut: longer and longer, but for no longer than five minutes; and what
// changes comes before that.
func TestTroubleIsWaitedOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := tries{err: apierrors.NewInternalError(errors.New("etcd"))}
		p := run(t, compiledPolicy(t), sandbox(t, failedU1), func(s *scene) { s.onStatus = a.try })
		p.turn(podOf("u1", ""))
		pass(30 * time.Minute)
		at := a.then(nil)
		var waits []time.Duration
		for i := 1; i < len(at); i++ {
			waits = append(waits, at[i].Sub(at[i-1]))
		}
		want := []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300, 300}
		for i := range want {
			want[i] *= time.Second
		}
		if diff := cmp.Diff(want, waits); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		p.turn(podOf("u1", ""))
		pass(settled)
		if said := p.said(); p.phase() != "Succeed" || len(said) != len(at)-patience+1 || said[0].Reason != "RecoveryFailed" || said[len(said)-1].Reason != "Recovered" {
			t.Errorf("%s %+v", p.statusOf(), said)
		}
		// And trouble that comes later begins at a second again.
		p.writes(failedU1)
		a.then(apierrors.NewInternalError(errors.New("etcd")))
		pass(grace + 1500*time.Millisecond)
		if at := a.then(nil); len(at) != 2 || at[1].Sub(at[0]) != time.Second {
			t.Errorf("%v", at)
		}
	})
}

// TestInformersThatAreNotSyncedAreWaitedFor: at an even pace.
func TestInformersThatAreNotSyncedAreWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := run(t, compiledPolicy(t), sandbox(t, failedU1), func(s *scene) { s.synced = false })
		p.known(podOf("u1", ""))
		pass(10 * time.Second)
		if p.phase() != "Failed" {
			t.Errorf("%s", p.statusOf())
		}
		p.mu.Lock()
		p.synced = true
		p.mu.Unlock()
		pass(syncRetry + grace)
		if p.phase() != "Succeed" {
			t.Errorf("%s", p.statusOf())
		}
	})
}

// TestADriverEndsAtOnce, also before its informer is synced and while a look is under way.
func TestADriverEndsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		blocked := make(chan struct{})
		s := set(t, compiledPolicy(t), nil)
		dyn := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), listKinds)
		dyn.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{}, "", nil)
		})
		s.d.objects = watchObjects(t.Context(), dyn, s.d.policy)
		s.d.start(t.Context())
		pass(time.Minute)
		begin := time.Now()
		s.d.end()
		close(blocked)
		if time.Since(begin) > 0 {
			t.Errorf("it took %s", time.Since(begin))
		}
		s.d.podChanged(facts.PodChange{Controller: "x"}) // nobody is there any more
	})
	synctest.Test(t, func(t *testing.T) {
		p := run(t, compiledPolicy(t), sandbox(t, failedU1))
		p.d.live = facts.NewPods(p.kube, p.scene)
		p.turn(podOf("u1", ""))
		begin := time.Now()
		p.stop()
		if time.Since(begin) > 0 || p.phase() != "Failed" {
			t.Errorf("it took %s: %s", time.Since(begin), p.phase())
		}
	})
}

// TestADriverIsToldOfManyThingsAtOnce is for the race detector.
func TestADriverIsToldOfManyThingsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := run(t, compiledPolicy(t), sandbox(t, failedU1))
		p.known(podOf("u1", ""))
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for range 50 {
					switch i % 4 {
					case 0:
						p.d.podChanged(facts.PodChange{Namespace: "lab", Name: "p", Controller: "box-uid"})
					case 1:
						p.d.namespaceChanged("lab")
					case 2:
						_ = p.d.look(t.Context(), key)
					default:
						p.d.passed(strip(t.Context(), p.d.policy, sandbox(t, succeed)))
					}
				}
			})
		}
		wg.Wait()
		pass(2 * grace)
		if p.phase() != "Succeed" || len(p.sent()) != 1 {
			t.Errorf("%s %q", p.phase(), p.sent())
		}
	})
}

// TestAConflictDoesNotEndTheMemory: whoever puts the old phase back may well write once more
// while belay does.
func TestAConflictDoesNotEndTheMemory(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{"a conflict": apierrors.NewConflict(resource.GroupResource(), "a", errors.New("changed")), "trouble": apierrors.NewInternalError(errors.New("etcd"))} {
		synctest.Test(t, func(t *testing.T) {
			var a tries
			p := run(t, compiledPolicy(t), sandbox(t, failedU1), func(s *scene) { s.onStatus = a.try })
			p.turn(podOf("u1", ""))
			pass(2 * grace)
			a.then(err)
			p.writes(failedBare)
			pass(grace + 500*time.Millisecond)
			if n := len(a.then(nil)); n == 0 {
				t.Fatalf("%s: not tried", name)
			}
			pass(3 * grace)
			if p.phase() != "Succeed" {
				t.Errorf("%s: %s", name, p.statusOf())
			}
		})
	}
}
