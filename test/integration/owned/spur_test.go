package owned

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/spur"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// Spur's Pods and Service belong to the SpurJob that carries their job id. With two
// such SpurJobs belay does not guess: it warns, and leaves an event.
func TestSpur(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	objects, err := stack.ReadManifests(ctx, filepath.Join(stack.Root(), "manifests", "presets", "spur"))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		// The part about names is another test's, and its rights are more than owners need.
		if o.GetKind() == "NamePolicy" || strings.HasSuffix(o.GetName(), "-names") {
			continue
		}
		if err := shared.Apply(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	waitCondition(t, shared, "spur", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonUnknownKind, "SpurJob")

	// The CRD comes later, as when Spur is installed after belay.
	if err := shared.ApplyCRD(ctx, spur.CRD()); err != nil {
		t.Fatal(err)
	}
	if err := shared.WaitPolicy(ctx, "spur"); err != nil {
		t.Fatal(err)
	}
	// The node is there, or the pod garbage collector would take the pods.
	if _, err := shared.Kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = shared.Kube.CoreV1().Nodes().Delete(testContext(t), "node-a", metav1.DeleteOptions{}) })

	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	waitForCollector(ctx, t, ns)
	kube, w := warned(t, shared)
	sj := spur.Job(ns, "train", "7")
	if err := shared.Client.Create(ctx, sj); err != nil {
		t.Fatal(err)
	}
	svc, err := kube.CoreV1().Services(ns).Create(ctx, spur.Service(ns, "7"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod, err := kube.CoreV1().Pods(ns).Create(ctx, spur.Pod(ns, "7", "node-a"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	yes := true
	want := metav1.OwnerReference{APIVersion: "spur.amd.com/v1alpha1", Kind: "SpurJob", Name: "train", UID: sj.GetUID(), Controller: &yes}
	for _, o := range []metav1.Object{svc, pod} {
		refs := o.GetOwnerReferences()
		if len(refs) != 1 || refs[0].UID != want.UID || refs[0].Kind != want.Kind || refs[0].Name != want.Name || refs[0].Controller == nil || !*refs[0].Controller || refs[0].BlockOwnerDeletion != nil {
			t.Errorf("%s is owned by %+v, want %+v", o.GetName(), refs, want)
		}
	}
	if all := w.take(); len(all) > 0 {
		t.Errorf("warnings %q", all)
	}

	// Another SpurJob with the same id: a controller that lost its state.
	other := spur.Job(ns, "a-second", "7")
	if err := shared.Client.Create(ctx, other); err != nil {
		t.Fatal(err)
	}
	if err := kube.CoreV1().Services(ns).Delete(ctx, svc.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	svc, err = kube.CoreV1().Services(ns).Create(ctx, spur.Service(ns, "7"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(svc.OwnerReferences) > 0 {
		t.Errorf("belay guessed: %+v", svc.OwnerReferences)
	}
	w.must(t, "belay: ", "does not guess", `"a-second"`, `"train"`)
	waitEvent(ctx, t, shared, ns, other.GetUID(), v1alpha1.ReasonAmbiguous)

	// A Pod that comes before its SpurJob has the label waits behind an Anchor, and
	// is owned when the label comes.
	early, err := kube.CoreV1().Pods(ns).Create(ctx, spur.Pod(ns, "8", "node-a"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a := anchorOf(ctx, t, shared, early)
	if a.Spec.Owner.MatchLabels[spur.JobIDLabel] != "8" || !strings.HasPrefix(a.Name, "spurjob-") {
		t.Errorf("anchor %s waits for %+v", a.Name, a.Spec.Owner)
	}
	late := spur.Job(ns, "late", "")
	if err := shared.Client.Create(ctx, late); err != nil {
		t.Fatal(err)
	}
	late.SetLabels(map[string]string{spur.JobIDLabel: "8"})
	if err := shared.Client.Update(ctx, late); err != nil {
		t.Fatal(err)
	}
	waitBound(ctx, t, shared, a, late.GetUID())

	// The SpurJob goes, and all that is its goes with it, though the operator's own
	// deletes were swallowed.
	if err := shared.Client.Delete(ctx, late); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the pod is on its way out", func() error {
		p, err := kube.CoreV1().Pods(ns).Get(ctx, early.Name, metav1.GetOptions{})
		if err == nil && p.DeletionTimestamp != nil {
			return nil // no kubelet confirms it here
		}
		if err = mustBeNotFound(err); err == nil {
			return nil
		}
		// What the garbage collector has to go by.
		left, late := &v1alpha1.Anchor{}, spur.Job(ns, "late", "")
		return errors.Join(fmt.Errorf("%w, owned by %+v", err, p.OwnerReferences),
			shared.Client.Get(ctx, types.NamespacedName{Namespace: ns, Name: a.Name}, left), fmt.Errorf("its anchor: %+v", left.ObjectMeta),
			shared.Client.Get(ctx, types.NamespacedName{Namespace: ns, Name: late.GetName()}, late))
	})
}

// waitForCollector waits until the garbage collector watches SpurJobs. It looks for new kinds every 30
// seconds, and its mapper does every 30 seconds on its own: it can collect what SpurJobs owned before
// it watches them. What comes and goes in between it has to ask about again (attemptToDeleteWorker in
// its source: "requeue if item hasn't been observed"), later and later, and not before its turn: ten a
// second for all objects together, after the first hundred. Pods of such SpurJobs have stayed for two
// minutes. A SpurJob that owns nothing, and is deleted in the foreground, goes when the collector has
// seen that, which it does by watching alone.
func waitForCollector(ctx context.Context, t *testing.T, ns string) {
	t.Helper()
	job := spur.Job(ns, "watched", "")
	if err := shared.Client.Create(ctx, job); err != nil {
		t.Fatal(err)
	}
	if err := shared.Client.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the garbage collector watches SpurJobs", func() error {
		return mustBeNotFound(shared.Client.Get(ctx, client.ObjectKeyFromObject(job), job))
	})
}
