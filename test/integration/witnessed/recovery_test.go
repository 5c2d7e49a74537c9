package witnessed

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// box is a BatchSandbox with one Pod, its controller and its Pod's sidecar.
type box struct {
	*opensandbox.Controller
	t     *testing.T
	admin client.Client
	main  *target
	pod   *corev1.Pod
}

const boxName = "box"

// newBox makes a sandbox that runs, under a controller of a generation.
func newBox(ctx context.Context, t *testing.T, g opensandbox.Generation, annotations map[string]string) *box {
	t.Helper()
	ns := shared.TestNamespace(ctx, t, "box", v1alpha1.ModeEnforce)
	for _, o := range opensandbox.Grant(ns, opensandbox.Names{}) {
		if err := shared.Client.Create(ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	cfg, err := shared.Config(ctx, ns, opensandbox.Account)
	must(t, err)
	gvk := opensandbox.Names{}.GVK(opensandbox.Version)
	c, err := opensandbox.NewClient(cfg, g, gvk)
	must(t, err)
	admin, err := opensandbox.NewClient(shared.Plane.Config(), opensandbox.New, gvk)
	must(t, err)
	b := &box{Controller: &opensandbox.Controller{Client: c, Namespace: ns, Generation: g}, t: t, admin: admin, main: newTarget(t, true)}
	if annotations == nil {
		annotations = map[string]string{v1alpha1.ProbeAnnotation: fmt.Sprintf("http://:%d/", b.main.Port)}
	}
	sandbox := opensandbox.Sandbox(ns, boxName, 1)
	var template corev1.PodTemplateSpec
	must(t, json.Unmarshal(opensandbox.Template(corev1.RestartPolicyAlways, opensandbox.MainContainer).Raw, &template))
	template.Annotations = annotations
	// A readinessProbe has the thresholds.
	template.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
	raw, err := json.Marshal(template)
	must(t, err)
	sandbox.Spec.Template = &runtime.RawExtension{Raw: raw}
	must(t, admin.Create(ctx, sandbox))
	must(t, b.Scale(ctx, boxName))
	b.pod = b.thePod(ctx)
	must(t, opensandbox.Ready(ctx, admin, b.pod))
	must(t, b.Reconcile(ctx, boxName))
	return b
}

func (b *box) thePod(ctx context.Context) *corev1.Pod {
	b.t.Helper()
	var p corev1.Pod
	must(b.t, b.admin.Get(ctx, client.ObjectKey{Namespace: b.Namespace, Name: boxName + "-0"}, &p))
	return &p
}

func (b *box) status(ctx context.Context) opensandbox.Status {
	b.t.Helper()
	var s opensandbox.BatchSandbox
	must(b.t, b.admin.Get(ctx, client.ObjectKey{Namespace: b.Namespace, Name: boxName}, &s))
	return s.Status
}

// fails has the main container crash, and the controller see it.
func (b *box) fails(ctx context.Context) {
	b.t.Helper()
	must(b.t, opensandbox.Crash(ctx, b.admin, b.pod, "CrashLoopBackOff"))
	must(b.t, b.Reconcile(ctx, boxName))
	if s := b.status(ctx); s.Phase != opensandbox.PhaseFailed || len(s.FailedPodUIDs) != 1 || s.FailedPodUIDs[0] != string(b.pod.UID) {
		b.t.Fatalf("status %+v", s)
	}
}

// recover is an administrator's attempt, and the reasons that the denial gives.
func (b *box) recover(ctx context.Context) (reasons []string) {
	b.t.Helper()
	s := &opensandbox.BatchSandbox{}
	s.Namespace, s.Name = b.Namespace, boxName
	err := b.admin.Status().Patch(ctx, s, client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Succeed"}}`)), client.DryRunAll)
	if err == nil {
		return nil
	}
	status, ok := err.(apierrors.APIStatus)
	if !ok || status.Status().Details == nil {
		b.t.Fatal(err)
	}
	for _, c := range status.Status().Details.Causes {
		reasons = append(reasons, strings.TrimPrefix(string(c.Type), "belay.dev/"))
	}
	return reasons
}

// refusedFor waits until a recovery is refused for a reason.
func (b *box) refusedFor(ctx context.Context, reason string) {
	b.t.Helper()
	stack.Eventually(ctx, b.t, "refused for "+reason, func() error {
		if got := b.recover(ctx); len(got) != 1 || got[0] != reason {
			return fmt.Errorf("refused for %q", got)
		}
		return nil
	})
}

func (b *box) recovers(ctx context.Context) {
	b.t.Helper()
	stack.Eventually(ctx, b.t, "it recovers", func() error {
		if s := b.status(ctx); s.Phase != opensandbox.PhaseSucceed || len(s.FailedPodUIDs) > 0 {
			return fmt.Errorf("%+v; refused for %q", s, b.recover(ctx))
		}
		return nil
	})
}

// Under evidence: Both a sandbox that failed comes back when the kubelet and the sidecar say
// that the same Pod is ready, and for nobody's word alone.
func TestRecoveryWantsTheWitness(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	b := newBox(ctx, t, opensandbox.Old, nil)
	if stack.SidecarOf(b.pod) == nil || b.pod.Labels[v1alpha1.SidecarLabel] != v1alpha1.SidecarByPolicy {
		t.Fatalf("the policy's Pod has no sidecar: %+v", b.pod.ObjectMeta)
	}
	b.fails(ctx)
	b.main.Ready.Store(false)
	must(t, opensandbox.Ready(ctx, b.admin, b.pod)) // so says the kubelet
	b.refusedFor(ctx, "ReportMissing")
	c := sidecar(ctx, t, shared, b.pod)
	b.refusedFor(ctx, "ReportNotReady")
	b.main.Ready.Store(true)
	b.recovers(ctx)
	stack.Eventually(ctx, t, "event that names the witness's Pod", func() error {
		var list eventsv1.EventList
		if err := b.admin.List(ctx, &list, client.InNamespace(b.Namespace)); err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Reason == v1alpha1.ReasonRecovered && strings.Contains(e.Note, string(b.pod.UID)) {
				return nil
			}
		}
		return fmt.Errorf("none among %d events", len(list.Items))
	})

	// It fails again, and the witness is gone: what it said last ages, and does not count any
	// more. The kubelet alone is not enough.
	must(t, c.Stop())
	b.fails(ctx)
	must(t, opensandbox.Ready(ctx, b.admin, b.pod)) // in another run of the container
	b.refusedFor(ctx, "ReportStale")
	sidecar(ctx, t, shared, b.pod)
	b.recovers(ctx)
}

// A Pod that a failed object waits for is asked for reports often, and its condition is kept
// fresh; when the object is well again it is left alone.
func TestReportsAreFreshWhileAnObjectWaits(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	b := newBox(ctx, t, opensandbox.New, nil)
	c := sidecar(ctx, t, shared, b.pod)
	report := func(want string) {
		t.Helper()
		stack.Eventually(ctx, t, "the next report is asked for in "+want, func() error {
			if log := c.Tail(40); !strings.Contains(log[max(0, strings.LastIndex(log, `"msg":"reported"`)):], `"next":"`+want+`"`) {
				return fmt.Errorf("%s", log[max(0, len(log)-300):])
			}
			return nil
		})
	}
	report("1m0s")
	b.main.Ready.Store(false)
	report("10s") // it may be about to fail its object
	b.fails(ctx)
	// It runs again, and is not ready by the kubelet's word.
	p := b.thePod(ctx)
	opensandbox.SetReady(p)
	p.Status.ContainerStatuses[0].Ready = false
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodReady {
			c.Status = corev1.ConditionFalse
		}
	}
	must(t, opensandbox.SetStatus(ctx, b.admin, p))
	b.main.Ready.Store(true)
	stack.Eventually(ctx, t, "the sidecar says that it is ready", func() error {
		if c := condition(b.thePod(ctx)); c == nil || c.Status != corev1.ConditionTrue {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	report("10s") // a third of witnessFreshFor
	first := condition(b.thePod(ctx))
	stack.Eventually(ctx, t, "the condition is renewed", func() error {
		if now := condition(b.thePod(ctx)); now == nil || !now.LastProbeTime.After(first.LastProbeTime.Time) {
			return fmt.Errorf("%+v", now)
		}
		return nil
	})
	if now := condition(b.thePod(ctx)); !now.LastTransitionTime.Equal(&first.LastTransitionTime) && now.Status == first.Status {
		t.Errorf("%+v, before %+v", now, first)
	}
	b.refusedFor(ctx, "PodNotReady")
	p = b.thePod(ctx)
	p.Status.ContainerStatuses[0].Ready = true
	must(t, opensandbox.SetStatus(ctx, b.admin, p))
	must(t, opensandbox.Ready(ctx, b.admin, b.pod))
	stack.Eventually(ctx, t, "the controller lets it recover", func() error { return b.Reconcile(ctx, boxName) })
	b.recovers(ctx)
	report("1m0s")
}

// A sidecar that has no probe to run leaves the verdict to the kubelet.
func TestWithoutAProbeTheKubeletDecides(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	b := newBox(ctx, t, opensandbox.Old, map[string]string{"example.com/note": "none"})
	b.fails(ctx)
	sidecar(ctx, t, shared, b.pod)
	stack.Eventually(ctx, t, "it says that it has none", func() error {
		if c := condition(b.thePod(ctx)); c == nil || c.Status != corev1.ConditionUnknown || c.Reason != "ExecProbe" {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	b.refusedFor(ctx, "MainNotRunning")
	<-time.After(time.Second) // the container's start is told in seconds
	must(t, opensandbox.Ready(ctx, b.admin, b.pod))
	b.recovers(ctx)
}

// The same name is not the same Pod: a successor's sidecar is a witness of its own Pod only.
func TestASuccessorIsNoWitness(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	b := newBox(ctx, t, opensandbox.Old, nil)
	first := sidecar(ctx, t, shared, b.pod)
	b.fails(ctx)
	must(t, b.admin.Delete(ctx, b.pod.DeepCopy(), client.GracePeriodSeconds(0)))
	must(t, b.Scale(ctx, boxName))
	old := b.pod
	b.pod = b.thePod(ctx)
	must(t, opensandbox.Ready(ctx, b.admin, b.pod))
	sidecar(ctx, t, shared, b.pod)
	stack.Eventually(ctx, t, "the successor is witnessed", func() error {
		if c := condition(b.thePod(ctx)); c == nil || c.Status != corev1.ConditionTrue {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	b.refusedFor(ctx, "PodReplaced")
	// The old one's sidecar, were it still there, speaks for nobody.
	b.main.Ready.Store(false)
	stack.Eventually(ctx, t, "the old sidecar is refused", func() error {
		if log := first.Tail(60); !strings.Contains(log, "PodReplaced") && !strings.Contains(log, "TokenInvalid") {
			return fmt.Errorf("%s", log[max(0, len(log)-300):])
		}
		return nil
	})
	if s := b.status(ctx); s.FailedPodUIDs[0] != string(old.UID) {
		t.Errorf("%+v", s)
	}
}
