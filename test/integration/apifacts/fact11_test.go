package apifacts

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// withDependent creates a suspended Job and a ConfigMap that it owns.
func (f *fixture) withDependent(t *testing.T, meta metav1.ObjectMeta) *batchv1.Job {
	t.Helper()
	job := f.createJob(t, meta)
	f.createConfigMap(t, metav1.ObjectMeta{Name: "dependent", OwnerReferences: []metav1.OwnerReference{ownedBy("batch/v1", "Job", job.Name, job.UID)}})
	return job
}

// job reads a Job; it is nil when there is none.
func (f *fixture) job(t *testing.T, name string) *batchv1.Job {
	t.Helper()
	job, err := f.jobs().Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return job
}

// release removes all finalizers of a Job.
func (f *fixture) release(t *testing.T, name string) {
	t.Helper()
	if _, err := f.jobs().Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// collectorIsUpToDate waits until the garbage collector has seen all ConfigMaps that there are. It
// lets go those dependents that it knows: one that it has not seen keeps its reference.
func (f *fixture) collectorIsUpToDate(t *testing.T) {
	t.Helper()
	nobody := ownedBy("batch/v1", "Job", "nobody", "00000000-0000-0000-0000-000000000000")
	f.createConfigMap(t, metav1.ObjectMeta{Name: "last", OwnerReferences: []metav1.OwnerReference{nobody}})
	eventually(t, "it is collected", not(f.configMapExists("last")))
}

// Fact 11: a Job deleted with default options is orphan-deleted and keeps its name,
// until the garbage collector has let its dependents go.
func TestFact11_DefaultDeletionOfJobOrphansAndKeepsTheName(t *testing.T) {
	f := setUp(t, strict)
	job := f.withDependent(t, metav1.ObjectMeta{Name: "one"})
	f.collectorIsUpToDate(t)
	resume := strict.pauseControllers(t)
	if err := f.jobs().Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}

	got := f.job(t, "one")
	if got == nil || got.UID != job.UID || got.DeletionTimestamp == nil {
		t.Fatalf("the Job is %+v; want the same, terminating", got)
	}
	if diff := cmp.Diff([]string{metav1.FinalizerOrphanDependents}, got.Finalizers); diff != "" {
		t.Errorf("finalizers (-want +got):\n%s", diff)
	}
	_, err := f.jobs().Create(t.Context(), suspendedJob(metav1.ObjectMeta{Name: "one"}), metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) || !strings.Contains(err.Error(), "object is being deleted") {
		t.Errorf("creating the next one ended with %v; want AlreadyExists that says that it is being deleted", err)
	}

	resume()
	eventually(t, "the name is free", func(ctx context.Context) (bool, error) {
		_, err := f.jobs().Create(ctx, suspendedJob(metav1.ObjectMeta{Name: "one"}), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return false, nil
		}
		return err == nil, err
	})
	// The reference is removed before the finalizer, so this has happened.
	dependent, err := f.configMaps().Get(t.Context(), "dependent", metav1.GetOptions{})
	if err != nil || dependent.DeletionTimestamp != nil || dependent.OwnerReferences != nil {
		t.Errorf("the dependent is %+v, %v; want it without owners", dependent.ObjectMeta, err)
	}
}

// Fact 11: with Background the name is free at once, unless finalizers remain. The
// garbage collector has no part in that: it is paused.
func TestFact11_BackgroundDeletionFreesTheNameUnlessFinalizersRemain(t *testing.T) {
	f := setUp(t, strict)
	f.withDependent(t, metav1.ObjectMeta{Name: "free"})
	held := f.createJob(t, metav1.ObjectMeta{Name: "held", Finalizers: []string{hold}})
	resume := strict.pauseControllers(t)
	background := metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}
	for _, name := range []string{"free", "held"} {
		if err := f.jobs().Delete(t.Context(), name, background); err != nil {
			t.Fatal(err)
		}
	}

	f.createJob(t, metav1.ObjectMeta{Name: "free"})
	if _, err := f.jobs().Create(t.Context(), suspendedJob(metav1.ObjectMeta{Name: "held"}), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("creating the next one of the Job with a finalizer ended with %v; want AlreadyExists", err)
	}
	got := f.job(t, "held")
	if got == nil || got.UID != held.UID || got.DeletionTimestamp == nil {
		t.Fatalf("the Job with a finalizer is %+v; want the same, terminating", got)
	}
	if diff := cmp.Diff([]string{hold}, got.Finalizers); diff != "" {
		t.Errorf("finalizers (-want +got):\n%s", diff)
	}
	f.release(t, "held")
	f.createJob(t, metav1.ObjectMeta{Name: "held"})

	resume()
	eventually(t, "the dependent goes after its owner", not(f.configMapExists("dependent")))
}

// Fact 11: the TTL controller deletes in the foreground: the Job stays, terminating,
// as long as a dependent that blocks does.
func TestFact11_TTLControllerDeletesInTheForeground(t *testing.T) {
	f := setUp(t, usual)
	deletes := f.validating(t, hookSpec{on: on("batch", "v1", "jobs", remove)})
	// The Job controller leaves alone what somebody else manages.
	job := suspendedJob(metav1.ObjectMeta{Name: "one"})
	job.Spec.ManagedBy = new("apifacts.belay.dev/test")
	job.Spec.TTLSecondsAfterFinished = new(int32(0))
	job, err := f.jobs().Create(t.Context(), job, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owner := ownedBy("batch/v1", "Job", job.Name, job.UID)
	owner.BlockOwnerDeletion = new(true)
	f.createConfigMap(t, metav1.ObjectMeta{Name: "dependent", OwnerReferences: []metav1.OwnerReference{owner}, Finalizers: []string{hold}})
	f.cleanup(t, func(ctx context.Context) error {
		_, err := f.configMaps().Patch(ctx, "dependent", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		return err
	})

	now := metav1.NewTime(time.Now())
	job.Status.StartTime, job.Status.CompletionTime = &now, &now
	for _, condition := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobComplete} {
		job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{Type: condition, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	if _, err := f.jobs().UpdateStatus(t.Context(), job, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}

	eventually(t, "the dependent is terminating", func(ctx context.Context) (bool, error) {
		dependent, err := f.configMaps().Get(ctx, "dependent", metav1.GetOptions{})
		return err == nil && dependent.DeletionTimestamp != nil, err
	})
	got := f.job(t, "one")
	if got == nil || got.DeletionTimestamp == nil {
		t.Fatalf("the Job is %+v; want it terminating", got)
	}
	if diff := cmp.Diff([]string{metav1.FinalizerDeleteDependents}, got.Finalizers); diff != "" {
		t.Errorf("finalizers (-want +got):\n%s", diff)
	}
	asked := deletes.requests()
	if len(asked) == 0 {
		t.Fatal("the webhook has seen no DELETE")
	}
	type deletion struct {
		User   string
		Policy metav1.DeletionPropagation
	}
	options := decode[metav1.DeleteOptions](t, asked[0].Options.Raw)
	if options.PropagationPolicy == nil {
		t.Fatalf("the DELETE has no propagation policy: %s", asked[0].Options.Raw)
	}
	want := deletion{"system:serviceaccount:kube-system:ttl-after-finished-controller", metav1.DeletePropagationForeground}
	if diff := cmp.Diff(want, deletion{asked[0].UserInfo.Username, *options.PropagationPolicy}); diff != "" {
		t.Errorf("the DELETE (-want +got):\n%s", diff)
	}
}

// Fact 11: a second DELETE on a terminating object can change its finalizers: never
// send one.
func TestFact11_SecondDeleteCanChangeFinalizers(t *testing.T) {
	t.Parallel()
	policy := func(p metav1.DeletionPropagation) metav1.DeleteOptions {
		return metav1.DeleteOptions{PropagationPolicy: &p}
	}
	const (
		orphan     = metav1.FinalizerOrphanDependents
		foreground = metav1.FinalizerDeleteDependents
	)
	none := metav1.DeleteOptions{}
	for name, tc := range map[string]struct {
		first, second metav1.DeleteOptions
		was, becomes  []string // finalizers
	}{
		"default, then default":       {none, none, []string{hold, orphan}, []string{hold, orphan}},
		"default, then Foreground":    {none, policy(metav1.DeletePropagationForeground), []string{hold, orphan}, []string{hold, foreground}},
		"default, then Background":    {none, policy(metav1.DeletePropagationBackground), []string{hold, orphan}, []string{hold}},
		"Foreground, then default":    {policy(metav1.DeletePropagationForeground), none, []string{hold, foreground}, []string{hold, foreground}},
		"Foreground, then Orphan":     {policy(metav1.DeletePropagationForeground), policy(metav1.DeletePropagationOrphan), []string{hold, foreground}, []string{hold, orphan}},
		"Foreground, then Background": {policy(metav1.DeletePropagationForeground), policy(metav1.DeletePropagationBackground), []string{hold, foreground}, []string{hold}},
		"Background, then default":    {policy(metav1.DeletePropagationBackground), none, []string{hold}, []string{hold, orphan}},
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t, strict)
			f.createJob(t, metav1.ObjectMeta{Name: "one", Finalizers: []string{hold}})
			resume := strict.pauseControllers(t)
			for _, step := range []struct {
				options metav1.DeleteOptions
				want    []string
			}{{tc.first, tc.was}, {tc.second, tc.becomes}} {
				if err := f.jobs().Delete(t.Context(), "one", step.options); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(step.want, f.job(t, "one").Finalizers); diff != "" {
					t.Errorf("finalizers (-want +got):\n%s", diff)
				}
			}
			f.release(t, "one")
			resume()
		})
	}
}

// Fact 11: what a second DELETE can do: dependents that were to live are collected.
// The garbage collector must not see what the first one has done, or it may still
// let them go: it is not just paused.
func TestFact11_SecondDeleteCanLoseDependents(t *testing.T) {
	f := setUp(t, strict)
	f.withDependent(t, metav1.ObjectMeta{Name: "one"})
	start := strict.stopControllers(t)
	if err := f.jobs().Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := f.jobs().Delete(t.Context(), "one", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}); err != nil {
		t.Fatal(err)
	}
	if got := f.job(t, "one"); got != nil {
		t.Errorf("the Job is there: %+v", got)
	}
	start()
	eventually(t, "the dependent is collected", not(f.configMapExists("dependent")))
}
