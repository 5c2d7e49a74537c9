package owned

import (
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/otf"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// A Secret that comes before its Job is owned in the very answer to its create, and
// goes when the Job goes, in whichever way that is deleted.
func TestSecretBeforeJobIsCollectedWithTheJob(t *testing.T) {
	for name, remove := range map[string]func(*testing.T, *batchv1.Job){
		"deleted in the background": func(t *testing.T, j *batchv1.Job) { deleteJob(t, j, metav1.DeletePropagationBackground) },
		"deleted in the foreground": func(t *testing.T, j *batchv1.Job) { deleteJob(t, j, metav1.DeletePropagationForeground) },
		"deleted by its TTL":        finishJob,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
			s := create(ctx, t, shared.Kube, otf.Secret(ns, "run-1", "job-1", "s3cret"))
			a := anchorOf(ctx, t, shared, s)
			if a.Labels[v1alpha1.PolicyLabel] != "otf" || a.Spec.Owner.Name != "run-1" || a.Spec.Owner.Kind != "Job" {
				t.Errorf("anchor %+v", a)
			}
			j := otf.Job(ns, "run-1", "job-1")
			ttl, by := int32(0), "example.com/by-hand"
			j.Spec.TTLSecondsAfterFinished, j.Spec.ManagedBy = &ttl, &by // so that the test can finish it
			j, err := shared.Kube.BatchV1().Jobs(ns).Create(ctx, j, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			waitBound(ctx, t, shared, a, j.UID)
			still, err := shared.Kube.CoreV1().Secrets(ns).Get(ctx, "run-1", metav1.GetOptions{})
			if err != nil || still.ResourceVersion != s.ResourceVersion {
				t.Errorf("the secret was touched: %v", err)
			}
			remove(t, j)
			waitGone(ctx, t, shared, s, a)
		})
	}
}

func deleteJob(t *testing.T, j *batchv1.Job, p metav1.DeletionPropagation) {
	t.Helper()
	if err := shared.Kube.BatchV1().Jobs(j.Namespace).Delete(testContext(t), j.Name, metav1.DeleteOptions{PropagationPolicy: &p}); err != nil {
		t.Fatal(err)
	}
}

// finishJob makes a Job that no controller works on complete, as its own would.
func finishJob(t *testing.T, j *batchv1.Job) {
	t.Helper()
	now := metav1.Now()
	j.Status = batchv1.JobStatus{
		StartTime: &now, CompletionTime: &now, Succeeded: 1,
		UncountedTerminatedPods: &batchv1.UncountedTerminatedPods{}, Ready: new(int32), Terminating: new(int32),
		Conditions: []batchv1.JobCondition{
			{Type: batchv1.JobSuccessCriteriaMet, Status: corev1.ConditionTrue, LastTransitionTime: now},
			{Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: now},
		},
	}
	if _, err := shared.Kube.BatchV1().Jobs(j.Namespace).UpdateStatus(testContext(t), j, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A Job that never comes: the Secret goes after the deadline, with an event before
// and one at the end.
func TestSecretGoesAfterTheDeadlineWhenTheJobNeverComes(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	labels := policy(ctx, t, shared, "never-comes", deadline(6*time.Second))
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	start := time.Now()
	s := create(ctx, t, shared.Kube, secret(ns, "lost", labels))
	a := anchorOf(ctx, t, shared, s)
	waitEvent(ctx, t, shared, ns, a.UID, v1alpha1.ReasonOverdue)
	if _, err := shared.Kube.CoreV1().Secrets(ns).Get(ctx, "lost", metav1.GetOptions{}); err != nil {
		t.Errorf("at half of the time: %v", err)
	}
	waitGone(ctx, t, shared, s, a)
	if d := time.Since(start); d < 6*time.Second {
		t.Errorf("gone after %s, before the deadline", d)
	}
	waitEvent(ctx, t, shared, ns, a.UID, v1alpha1.ReasonExpired)
}

// kubectl delete job --cascade=orphan: the Secret stays, and is never owned again,
// not even when a Job of the same name comes. That Job's own Secret belongs to it.
func TestO08_OrphanedSecretStaysAndIsNeverOwnedAgain(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	labels := policy(ctx, t, shared, "recreated", ownerByLabel)
	labels["owner"] = "run-1"
	first := create(ctx, t, shared.Kube, secret(ns, "first", labels))
	a := anchorOf(ctx, t, shared, first)
	j1 := job(ctx, t, shared.Kube, ns, "run-1")
	waitBound(ctx, t, shared, a, j1.UID)
	deleteJob(t, j1, metav1.DeletePropagationOrphan)
	eventually(ctx, t, "the anchor is released", func() error {
		if err := shared.Client.Get(ctx, client.ObjectKeyFromObject(a), a); err != nil {
			return err
		}
		if len(a.OwnerReferences) > 0 || !condition(a, metav1.ConditionFalse, v1alpha1.ReasonReleased) {
			return fmt.Errorf("owned by %+v, conditions %+v", a.OwnerReferences, a.Status.Conditions)
		}
		return nil
	})
	waitEvent(ctx, t, shared, ns, a.UID, v1alpha1.ReasonReleased)

	// The name is free again. A Secret that comes before the new Job gets an Anchor
	// of its own; one that comes after it belongs to it directly.
	early := create(ctx, t, shared.Kube, secret(ns, "early", labels))
	fresh := anchorOf(ctx, t, shared, early)
	if fresh.UID == a.UID {
		t.Fatal("the released anchor was shared")
	}
	j2 := job(ctx, t, shared.Kube, ns, "run-1")
	waitBound(ctx, t, shared, fresh, j2.UID)
	late := create(ctx, t, shared.Kube, secret(ns, "late", labels))
	if len(late.OwnerReferences) != 1 || late.OwnerReferences[0].UID != j2.UID {
		t.Errorf("the late secret is owned by %+v, want %s", late.OwnerReferences, j2.UID)
	}

	// An update of the old one moves nothing, and nothing has moved meanwhile: the
	// fresh Anchor, which came later, has long been bound.
	first, err := shared.Kube.CoreV1().Secrets(ns).Patch(ctx, "first", types.MergePatchType, []byte(`{"metadata":{"labels":{"touched":"yes"}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(first.OwnerReferences) != 1 || first.OwnerReferences[0].UID != a.UID {
		t.Errorf("the old secret is owned by %+v", first.OwnerReferences)
	}
	if err := shared.Client.Get(ctx, client.ObjectKeyFromObject(a), a); err != nil {
		t.Fatal(err)
	}
	if len(a.OwnerReferences) > 0 || a.Spec.BoundUID != string(j1.UID) {
		t.Errorf("the released anchor moved: owned by %+v, bound to %s", a.OwnerReferences, a.Spec.BoundUID)
	}
	deleteJob(t, j2, metav1.DeletePropagationBackground)
	waitGone(ctx, t, shared, early, fresh)
	if _, err := shared.Kube.CoreV1().Secrets(ns).Get(ctx, "first", metav1.GetOptions{}); err != nil {
		t.Errorf("the orphaned secret went with a job that it never belonged to: %v", err)
	}
}

// ownerByLabel lets the dependent's label name its owner.
func ownerByLabel(s *v1alpha1.OwnerPolicySpec) { s.Owner.Name = `object.metadata.labels["owner"]` }

// While the old owner still goes away, a new dependent waits for the new owner: it
// must not go down with the old one.
func TestO09_ATerminatingOwnerCountsAsAbsent(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	labels := policy(ctx, t, shared, "terminating", ownerByLabel)
	labels["owner"] = "run-1"
	a1 := create(ctx, t, shared.Kube, secret(ns, "before", labels))
	anchor1 := anchorOf(ctx, t, shared, a1)
	j := otf.Job(ns, "run-1", "job-1")
	j.Finalizers = []string{"example.com/hold"}
	j, err := shared.Kube.BatchV1().Jobs(ns).Create(ctx, j, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	waitBound(ctx, t, shared, anchor1, j.UID)
	deleteJob(t, j, metav1.DeletePropagationForeground)

	a2 := create(ctx, t, shared.Kube, secret(ns, "during", labels))
	anchor2 := anchorOf(ctx, t, shared, a2)
	if anchor2.UID == anchor1.UID {
		t.Fatal("the new secret hangs on the anchor of the owner that goes away")
	}
	if _, err := shared.Kube.BatchV1().Jobs(ns).Patch(ctx, "run-1", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	waitGone(ctx, t, shared, a1, anchor1)
	j2 := job(ctx, t, shared.Kube, ns, "run-1")
	waitBound(ctx, t, shared, anchor2, j2.UID)
	if _, err := shared.Kube.CoreV1().Secrets(ns).Get(ctx, "during", metav1.GetOptions{}); err != nil {
		t.Errorf("the new secret: %v", err)
	}
}

// OTF's three calls, whole: the PUT replaces what belay set, and is never denied.
func TestOTFsOwnCallsAreNeverDenied(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	e := executor(ctx, t, shared, ns)
	r, err := e.Spawn(ctx, "job-2eXaMpLe", "s3cret")
	if err != nil {
		t.Fatal(err)
	}
	anchor := anchorOf(ctx, t, shared, r.Secret)
	if len(r.Updated.OwnerReferences) != 1 || r.Updated.OwnerReferences[0].Kind != "job" || r.Updated.OwnerReferences[0].UID != r.Job.UID {
		t.Errorf("after the PUT: %+v", r.Updated.OwnerReferences)
	}
	if r.Updated.Immutable == nil || !*r.Updated.Immutable {
		t.Error("the secret is not immutable any more")
	}
	waitBound(ctx, t, shared, anchor, r.Job.UID)

	// The same PUT again, as a retry does; and with another token, which the API
	// server refuses, not belay.
	again := otf.Secret(ns, r.Name, "job-2eXaMpLe", "s3cret")
	again.OwnerReferences = r.Updated.OwnerReferences
	if _, err := e.Client.CoreV1().Secrets(ns).Update(ctx, again, metav1.UpdateOptions{}); err != nil {
		t.Errorf("the PUT repeated: %v", err)
	}
	again.StringData["jobToken"] = "other"
	if _, err := e.Client.CoreV1().Secrets(ns).Update(ctx, again, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "immutable") {
		t.Errorf("another token: %v", err)
	}
	deleteJob(t, r.Job, metav1.DeletePropagationBackground)
	waitGone(ctx, t, shared, r.Secret, anchor)
}
