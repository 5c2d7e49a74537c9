package named

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/belay-dev/belay/test/fixtures/otf"
	"github.com/belay-dev/belay/test/fixtures/spur"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// launcher is Spur's operator in a namespace of its own, under its own rights, with one
// SpurJob.
func launcher(ctx context.Context, t *testing.T, jobID string) (spur.Agent, string, *unstructured.Unstructured) {
	t.Helper()
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	if err := spur.Grant(ctx, shared.Kube, ns); err != nil {
		t.Fatal(err)
	}
	cfg, err := shared.Config(ctx, ns, spur.Account)
	if err != nil {
		t.Fatal(err)
	}
	d, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return spur.Agent{Client: kubeOf(t, cfg), Dynamic: d}, ns, create(ctx, t, shared.Client, spur.Job(ns, "train", jobID))
}

// TestSpur: every launch as Spur does it; what it takes for success has happened.
func TestSpur(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	if err := shared.ApplyCRD(ctx, spur.CRD()); err != nil {
		t.Fatal(err)
	}
	if err := shared.ApplyPreset(ctx, "spur"); err != nil {
		t.Fatal(err)
	}
	for _, wait := range []func(context.Context, string) error{shared.WaitPolicy, shared.WaitNamePolicy} {
		if err := wait(ctx, "spur"); err != nil {
			t.Fatal(err)
		}
	}
	// The nodes are there, or the pod garbage collector would take the Pods.
	for _, n := range []string{"node-a", "node.a"} {
		if _, err := shared.Kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		cleanup(t, func(ctx context.Context) { _ = shared.Kube.CoreV1().Nodes().Delete(ctx, n, metav1.DeleteOptions{}) })
	}
	pod := func(t *testing.T, ns, id string) *corev1.Pod {
		t.Helper()
		p, err := shared.Kube.CoreV1().Pods(ns).Get(ctx, spur.PodName(id, "node-a"), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	phase := func(t *testing.T, p *corev1.Pod, to corev1.PodPhase) {
		t.Helper()
		p.Status.Phase = to
		if err := shared.Client.Status().Update(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
	launch := func(t *testing.T, a spur.Agent, id, node string) {
		t.Helper()
		if l := a.Launch(ctx, id, node, 2); !l.Success {
			t.Fatal(l.Err)
		}
	}

	// One after the other, with ids of their own: the agent looks in all namespaces.
	t.Run("the same launch, repeated while the Pod runs", func(t *testing.T) {
		a, ns, sj := launcher(ctx, t, "101")
		launch(t, a, "101", "node-a")
		first := pod(t, ns, "101")
		if refs := first.OwnerReferences; len(refs) != 1 || refs[0].UID != sj.GetUID() {
			t.Errorf("owned by %+v", refs)
		}
		phase(t, first, corev1.PodRunning)
		launch(t, a, "101", "node-a")
		if pod(t, ns, "101").UID != first.UID {
			t.Error("the running Pod was replaced")
		}
	})
	t.Run("node.a and node-a come to one name", func(t *testing.T) {
		a, ns, _ := launcher(ctx, t, "102")
		launch(t, a, "102", "node-a")
		phase(t, pod(t, ns, "102"), corev1.PodRunning)
		l := a.Launch(ctx, "102", "node.a", 2)
		if l.Success || !apierrors.IsInvalid(l.Err) || !strings.Contains(l.Err.Error(), "is running other work") {
			t.Errorf("other work was answered %+v", l)
		}
	})
	t.Run("a Pod that failed is launched again under its name", func(t *testing.T) {
		a, ns, _ := launcher(ctx, t, "103")
		launch(t, a, "103", "node-a")
		first := pod(t, ns, "103")
		phase(t, first, corev1.PodFailed)
		launch(t, a, "103", "node-a")
		if pod(t, ns, "103").UID == first.UID {
			t.Error("success was reported, and nothing runs")
		}
	})
	t.Run("a launch that is repeated when its Pod has just succeeded", func(t *testing.T) {
		a, ns, _ := launcher(ctx, t, "104")
		launch(t, a, "104", "node-a")
		first := pod(t, ns, "104")
		phase(t, first, corev1.PodSucceeded)
		launch(t, a, "104", "node-a")
		if pod(t, ns, "104").UID != first.UID {
			t.Error("finished work was run again")
		}
	})
	t.Run("the Pod of a SpurJob that is gone, and another one with its id", func(t *testing.T) {
		a, ns, sj := launcher(ctx, t, "105")
		launch(t, a, "105", "node-a")
		first := pod(t, ns, "105")
		phase(t, first, corev1.PodSucceeded)
		orphan := metav1.DeletePropagationOrphan
		if err := a.Dynamic.Resource(spurJobs).Namespace(ns).Delete(ctx, sj.GetName(), metav1.DeleteOptions{PropagationPolicy: &orphan}); err != nil {
			t.Fatal(err)
		}
		eventually(ctx, t, "the SpurJob is gone", func() error {
			_, err := a.Dynamic.Resource(spurJobs).Namespace(ns).Get(ctx, sj.GetName(), metav1.GetOptions{})
			return mustBeNotFound(err)
		})
		second := create(ctx, t, shared.Client, spur.Job(ns, "again", "105"))
		launch(t, a, "105", "node-a")
		p := pod(t, ns, "105")
		if p.UID == first.UID || len(p.OwnerReferences) != 1 || p.OwnerReferences[0].UID != second.GetUID() {
			t.Errorf("the stale Pod is there, or %+v owns the new one", p.OwnerReferences)
		}
	})
}

var spurJobs = spur.Resource

// TestOTF: a Job that OTF creates a second time is answered with the UID of the first,
// and a finished run is never repeated, under OTF's own rights.
func TestOTF(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	if err := otf.Grant(ctx, shared.Kube, ns); err != nil {
		t.Fatal(err)
	}
	cfg, err := shared.Config(ctx, ns, otf.Account)
	if err != nil {
		t.Fatal(err)
	}
	jobs := kubeOf(t, cfg).BatchV1().Jobs(ns)
	j := otf.Job(ns, "run-1", "job-Kx3")
	nobody := "example.com/nobody"
	j.Spec.ManagedBy = &nobody
	first, err := jobs.Create(ctx, j, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	again := func(state, jobID string, reason metav1.StatusReason, cause string) {
		t.Helper()
		_, err := jobs.Create(ctx, otf.Job(ns, "run-1", jobID), metav1.CreateOptions{})
		s := statusOf(t, err)
		answerIs(t, s, 409, reason, cause)
		if s.Details.UID != first.UID || liveUID(ctx, t, ns, "run-1") != first.UID {
			t.Errorf("%s: answered with uid %q, first %q", state, s.Details.UID, first.UID)
		}
	}
	again("running", "job-Kx3", "AlreadyExists", v1alpha1.CauseSameWork)
	again("running", "job-kx3", "Conflict", v1alpha1.CauseOtherWork) // ids differ by case only
	fail(ctx, t, first)
	again("failed", "job-Kx3", "AlreadyExists", v1alpha1.CauseSameWork)
	again("failed", "job-kx3", "Conflict", v1alpha1.CauseOtherWork)
}
