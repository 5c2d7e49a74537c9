package collector

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/fake"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	clienttesting "k8s.io/client-go/testing"

	"github.com/belay-dev/belay/sidecar/wire"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/recovery"
)

// The inputs of this package's tests: Pod box-0 of namespace lab, whose container main was
// started a minute ago, and whose sidecar has been reporting since.

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

var me = Caller{Namespace: "lab", Pod: "box-0", UID: "u1"}

// report is what the sidecar says: main is ready.
func report(changes ...func(*wire.Report)) wire.Report { return reportAt(now, changes...) }

func reportAt(at time.Time, changes ...func(*wire.Report)) wire.Report {
	r := wire.Report{
		Namespace: me.Namespace, Pod: me.Pod, UID: string(me.UID), Container: "main", State: wire.StateReady, Reason: "ProbeSucceeded",
		Reporter: "r2", ReporterSinceUnixMillis: at.Add(-time.Minute).UnixMilli(), Sequence: 5, ObservedUnixMillis: at.Add(-time.Second).UnixMilli(),
	}
	for _, change := range changes {
		change(&r)
	}
	return r
}

func notReady(r *wire.Report) { r.State, r.Reason = wire.StateNotReady, "ProbeFailed" }
func unknown(reason string) func(*wire.Report) {
	return func(r *wire.Report) { r.State, r.Reason = wire.StateUnknown, reason }
}
func sequence(n uint64) func(*wire.Report) { return func(r *wire.Report) { r.Sequence = n } }
func observed(at time.Time) func(*wire.Report) {
	return func(r *wire.Report) { r.ObservedUnixMillis = at.UnixMilli() }
}
func byRun(name string, since time.Time) func(*wire.Report) {
	return func(r *wire.Report) { r.Reporter, r.ReporterSinceUnixMillis = name, since.UnixMilli() }
}

// pod is the Pod as the API server has it.
func pod(changes ...func(*corev1.Pod)) *corev1.Pod { return podAt(now, changes...) }

func podAt(at time.Time, changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: me.Namespace, Name: me.Pod, UID: me.UID, ResourceVersion: "7"},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "belay", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}},
			Containers:     []corev1.Container{{Name: "main"}, {Name: "proxy"}},
		},
		Status: corev1.PodStatus{
			Phase:      corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			InitContainerStatuses: []corev1.ContainerStatus{
				{Name: "belay", ContainerID: "containerd://b1", State: runningSince(at.Add(-time.Minute))},
			},
			ContainerStatuses: []corev1.ContainerStatus{
				{Name: "proxy", ContainerID: "containerd://p1", State: runningSince(at.Add(-time.Minute))},
				{Name: "main", ContainerID: "containerd://m1", Ready: true, State: runningSince(at.Add(-time.Minute))},
			},
		},
	}
	for _, change := range changes {
		change(p)
	}
	return p
}

func runningSince(at time.Time) corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(at)}}
}

// mainIs changes the status of the container main.
func mainIs(change func(*corev1.ContainerStatus)) func(*corev1.Pod) {
	return func(p *corev1.Pod) { change(&p.Status.ContainerStatuses[1]) }
}

func waiting(p *corev1.Pod) {
	mainIs(func(s *corev1.ContainerStatus) {
		s.Ready, s.State = false, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	})(p)
}

func withoutID(p *corev1.Pod) { mainIs(func(s *corev1.ContainerStatus) { s.ContainerID = "" })(p) }

func deleting(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }

func inPhase(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

// said is the condition that such a report left behind, about this container, so long ago.
func said(status corev1.ConditionStatus, reason, container string, o recovery.Order, ago time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
			Type: v1alpha1.MainReadyCondition, Status: status, Reason: reason, Message: recovery.ReportMessage(container, "it is so", o),
			LastProbeTime: metav1.NewTime(now.Add(-ago)), LastTransitionTime: metav1.NewTime(now.Add(-ago)),
		})
	}
}

// orderOf is the order of a report.
func orderOf(r wire.Report) recovery.Order {
	return recovery.Order{Reporter: r.Reporter, Sequence: r.Sequence, Since: r.ReporterSinceUnixMillis}
}

// cachedOf is a Pod as informers keep it: of the IDs only that which the report is about.
func cachedOf(p *corev1.Pod) recovery.Pod {
	out := recovery.PodOf(p)
	for i := range out.Containers {
		if out.Containers[i].ID != out.Report.Container {
			out.Containers[i].ID = ""
		}
	}
	return out
}

// written is a Pod after a decision's condition was written to it.
func written(p *corev1.Pod, c Condition, at time.Time) *corev1.Pod {
	out := p.DeepCopy()
	next := corev1.PodCondition{Type: v1alpha1.MainReadyCondition, Status: c.Status, Reason: c.Reason, Message: c.Message, LastProbeTime: metav1.NewTime(at.Truncate(time.Second))}
	for i := range out.Status.Conditions {
		if out.Status.Conditions[i].Type == v1alpha1.MainReadyCondition {
			out.Status.Conditions[i] = next
			return out
		}
	}
	out.Status.Conditions = append(out.Status.Conditions, next)
	return out
}

// payload are the claims of a Pod's token.
type payload map[string]any

// claimsOf are those of the token of a Pod, as the kubelet asks for it.
func claimsOf(c Caller, expires time.Time) payload {
	return payload{
		"aud": []string{v1alpha1.WitnessAudience}, "exp": expires.Unix(), "iss": "https://kubernetes.default.svc", "sub": "system:serviceaccount:" + c.Namespace + ":default",
		"kubernetes.io": map[string]any{
			"namespace": c.Namespace, "pod": map[string]any{"name": c.Pod, "uid": string(c.UID)},
			"serviceaccount": map[string]any{"name": "default", "uid": "sa-uid"},
		},
	}
}

// with are the claims with one of them changed.
func (p payload) with(key string, value any) payload {
	out := maps.Clone(p)
	out[key] = value
	return out
}

// token is a JSON Web Token of the claims; signature tells one from another.
func (p payload) token(signature string) string {
	body, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	enc := base64.RawURLEncoding.EncodeToString
	return enc([]byte(`{"alg":"RS256","kid":"k"}`)) + "." + enc(body) + "." + enc([]byte(signature))
}

// reviewer answers TokenReviews. A call is under way while answer runs.
type reviewer struct {
	authenticationclient.TokenReviewInterface
	answer func(ctx context.Context, r *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error)

	mu         sync.Mutex
	asked      int
	underWay   int
	mostAtOnce int
	last       *authenticationv1.TokenReview
}

func (v *reviewer) Create(ctx context.Context, r *authenticationv1.TokenReview, _ metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	v.mu.Lock()
	v.asked++
	v.underWay++
	v.mostAtOnce = max(v.mostAtOnce, v.underWay)
	v.last = r.DeepCopy()
	v.mu.Unlock()
	defer func() {
		v.mu.Lock()
		v.underWay--
		v.mu.Unlock()
	}()
	return v.answer(ctx, r)
}

func (v *reviewer) count() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.asked
}

// accepts is the answer of the API server to a token of a Pod that is there.
func accepts(c Caller, changes ...func(*authenticationv1.TokenReviewStatus)) *authenticationv1.TokenReview {
	r := &authenticationv1.TokenReview{Status: authenticationv1.TokenReviewStatus{
		Authenticated: true, Audiences: []string{v1alpha1.WitnessAudience},
		User: authenticationv1.UserInfo{
			Username: "system:serviceaccount:" + c.Namespace + ":default", UID: "sa-uid",
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + c.Namespace, "system:authenticated"},
			Extra: map[string]authenticationv1.ExtraValue{
				"authentication.kubernetes.io/pod-name": {c.Pod}, "authentication.kubernetes.io/pod-uid": {string(c.UID)},
				"authentication.kubernetes.io/node-name": {"node-1"},
			},
		},
	}}
	for _, change := range changes {
		change(&r.Status)
	}
	return r
}

// always answers each review alike.
func always(r *authenticationv1.TokenReview, err error) *reviewer {
	return &reviewer{answer: func(context.Context, *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
		if err != nil {
			return nil, err
		}
		return r.DeepCopy(), nil
	}}
}

// cluster is an API server with one Pod, as far as a collector asks it: it looks at the
// preconditions of a patch as the real one does.
type cluster struct {
	t *testing.T
	*fake.Clientset

	mu      sync.Mutex
	pod     *corev1.Pod // nil for none
	version int
	gets    int
	patches []string
	// before is called before each write, and may change the Pod; failing is what Gets and
	// Patches fail with.
	before              func(*cluster)
	failingGet, failing error
}

var podsResource = schema.GroupResource{Resource: "pods"}

func clusterOf(t *testing.T, p *corev1.Pod) *cluster {
	t.Helper()
	c := &cluster{t: t, Clientset: fake.NewClientset(), pod: p, version: 7}
	c.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		t.Errorf("not expected: %s %s", a.GetVerb(), a.GetResource())
		return true, nil, errors.New("not expected")
	})
	c.PrependReactor("get", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.gets++
		name := a.(clienttesting.GetAction).GetName()
		switch {
		case c.failingGet != nil:
			return true, nil, c.failingGet
		case c.pod == nil || c.pod.Name != name || c.pod.Namespace != a.GetNamespace():
			return true, nil, apierrors.NewNotFound(podsResource, name)
		}
		return true, c.stored(), nil
	})
	c.PrependReactor("patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		patch := a.(clienttesting.PatchAction)
		c.patches = append(c.patches, string(patch.GetPatch()))
		if patch.GetPatchType() != types.StrategicMergePatchType || a.GetSubresource() != "status" || a.GetNamespace() != me.Namespace {
			t.Errorf("%s of %s/%s", patch.GetPatchType(), a.GetNamespace(), a.GetSubresource())
		}
		if c.before != nil {
			c.before(c)
		}
		switch {
		case c.failing != nil:
			return true, nil, c.failing
		case c.pod == nil || c.pod.Name != patch.GetName():
			return true, nil, apierrors.NewNotFound(podsResource, patch.GetName())
		}
		var given struct {
			Metadata struct{ UID, ResourceVersion string }
		}
		if err := json.Unmarshal(patch.GetPatch(), &given); err != nil {
			return true, nil, apierrors.NewBadRequest(err.Error())
		}
		if given.Metadata.ResourceVersion != fmt.Sprint(c.version) || given.Metadata.UID != string(c.pod.UID) {
			return true, nil, apierrors.NewConflict(podsResource, patch.GetName(), errors.New("the object has been modified"))
		}
		was, err := json.Marshal(c.pod)
		if err != nil {
			return true, nil, err
		}
		is, err := strategicpatch.StrategicMergePatch(was, patch.GetPatch(), corev1.Pod{})
		if err != nil {
			return true, nil, apierrors.NewBadRequest(err.Error())
		}
		next := &corev1.Pod{}
		if err := json.Unmarshal(is, next); err != nil {
			return true, nil, err
		}
		c.pod = next
		c.version++
		return true, c.stored(), nil
	})
	return c
}

func (c *cluster) stored() *corev1.Pod {
	out := c.pod.DeepCopy()
	out.ResourceVersion = fmt.Sprint(c.version)
	return out
}

// change changes the Pod as somebody else does.
func (c *cluster) change(changes ...func(*corev1.Pod)) {
	for _, change := range changes {
		change(c.pod)
	}
	c.version++
}

// mainReady is the Pod's condition; nil for none.
func (c *cluster) mainReady() *corev1.PodCondition {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.pod.Status.Conditions {
		if c.pod.Status.Conditions[i].Type == v1alpha1.MainReadyCondition {
			return c.pod.Status.Conditions[i].DeepCopy()
		}
	}
	return nil
}

func (c *cluster) asked() (gets, patches int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gets, len(c.patches)
}

// noCache knows no Pod.
type noCache struct{}

func (noCache) Pod(string, string) (recovery.Pod, bool) { return recovery.Pod{}, false }

// cache knows a Pod.
type cache struct{ pod recovery.Pod }

func (c cache) Pod(namespace, name string) (recovery.Pod, bool) {
	return c.pod, namespace == me.Namespace && name == me.Pod
}

func encoded(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
