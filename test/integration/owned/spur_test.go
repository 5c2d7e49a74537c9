package owned

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	corev1 "k8s.io/api/core/v1"

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
// it watches them. What comes and goes in between it has to ask about again (processAttemptToDelete in
// its source: "requeue if item hasn't been observed"), after 5 ms and each time after twice as long,
// and not before its turn: ten a second for all objects together, after the first hundred. Pods of
// such SpurJobs have stayed for two minutes. So each try is with a SpurJob that has been there for a
// while, at whose end the next question is far, and that is seen to go at once.
func waitForCollector(ctx context.Context, t *testing.T, ns string) {
	t.Helper()
	configMaps := shared.Kube.CoreV1().ConfigMaps(ns)
	// It is asked about after 1.3, 2.6 and 5.1 s.
	ages := []time.Duration{1400 * time.Millisecond, 2800 * time.Millisecond}
	start, seen := time.Now(), 0
	var collects time.Duration
	for i := range 40 {
		name := fmt.Sprintf("collected-%d", i)
		job := spur.Job(ns, name, "")
		if err := shared.Client.Create(ctx, job); err != nil {
			t.Fatal(err)
		}
		held := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: job.GetAPIVersion(), Kind: job.GetKind(), Name: name, UID: job.GetUID(),
		}}}}
		if _, err := configMaps.Create(ctx, held, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		case <-time.After(ages[seen]):
		}
		if err := shared.Client.Delete(ctx, job); err != nil {
			t.Fatal(err)
		}
		gone := func(within time.Duration) bool {
			try, cancel := context.WithTimeout(ctx, within)
			defer cancel()
			for {
				if _, err := configMaps.Get(ctx, name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
					return true
				}
				select {
				case <-try.Done():
					return false
				case <-time.After(50 * time.Millisecond):
				}
			}
		}
		switch {
		case gone(time.Second):
			if seen++; seen == len(ages) {
				t.Logf("the garbage collector watches SpurJobs after %s; it has collected what they owned after %s", time.Since(start).Round(time.Second), collects.Round(time.Second))
				return
			}
		default:
			seen = 0
			if collects == 0 && gone(2*time.Second) {
				collects = time.Since(start)
			}
		}
	}
	t.Fatal("the garbage collector does not watch SpurJobs")
}
