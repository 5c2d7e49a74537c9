package named

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/felis"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// situation is what a restore of archive "monday" meets.
type situation struct {
	// setUp makes the Job that has the name, and brings it into its state; old leaves
	// out the annotation, as old releases do. nil: nothing has the name.
	setUp func(ctx context.Context, t *testing.T, s *stack.Stack, ns string, old bool) *batchv1.Job
	// created says that a new Job must come to exist; else the one that is there stays.
	created bool
	// new and old are what the two algorithms must report otherwise; nil is success.
	new, old func(error) bool
}

func is(want error) func(error) bool { return func(err error) bool { return errors.Is(err, want) } }

// nothing is what the old algorithm reports for AlreadyExists.
func nothing(err error) bool { return err == nil }

// restore is a Job of Felis for an archive that nobody runs, so that a test can say
// how far it is. It is created through belay, like Felis' own.
func restore(archive string, change ...func(*batchv1.Job)) func(context.Context, *testing.T, *stack.Stack, string, bool) *batchv1.Job {
	return func(ctx context.Context, t *testing.T, s *stack.Stack, ns string, old bool) *batchv1.Job {
		t.Helper()
		j := felis.Job(ns, "survival", archive)
		nobody := "example.com/nobody"
		j.Spec.ManagedBy = &nobody
		if old {
			delete(j.Annotations, felis.RefAnnotation)
		}
		for _, c := range change {
			c(j)
		}
		return create(ctx, t, s.Client, j)
	}
}

func situations() map[string]situation {
	in := func(archive string, conditions ...batchv1.JobConditionType) func(context.Context, *testing.T, *stack.Stack, string, bool) *batchv1.Job {
		return func(ctx context.Context, t *testing.T, s *stack.Stack, ns string, old bool) *batchv1.Job {
			j := restore(archive)(ctx, t, s, ns, old)
			setOn(ctx, t, s, j, conditions...)
			return j
		}
	}
	deleted := func(finalizer string, propagation metav1.DeletionPropagation) func(context.Context, *testing.T, *stack.Stack, string, bool) *batchv1.Job {
		return func(ctx context.Context, t *testing.T, s *stack.Stack, ns string, old bool) *batchv1.Job {
			j := restore("monday", func(j *batchv1.Job) {
				if finalizer != "" {
					j.Finalizers = []string{finalizer}
				}
			})(ctx, t, s, ns, old)
			setOn(ctx, t, s, j, batchv1.JobFailureTarget, batchv1.JobFailed)
			if err := s.Client.Delete(ctx, j, client.PropagationPolicy(propagation)); err != nil {
				t.Fatal(err)
			}
			return j
		}
	}
	waits := apierrors.IsTooManyRequests
	return map[string]situation{
		"nothing has the name":     {created: true},
		"running the same archive": {setUp: in("monday"), new: is(felis.ErrAlreadyRestoring), old: nothing},
		"running another archive":  {setUp: in("sunday"), new: is(felis.ErrOtherRestoreRunning), old: apierrors.IsConflict},
		"created and not started":  {setUp: restore("monday"), new: is(felis.ErrAlreadyRestoring), old: nothing},
		"N15: suspended, the same archive": {setUp: restore("monday", func(j *batchv1.Job) { j.Spec.Suspend = new(true) }),
			new: is(felis.ErrAlreadyRestoring), old: nothing},
		"N15: suspended, another archive": {setUp: restore("sunday", func(j *batchv1.Job) { j.Spec.Suspend = new(true) }),
			new: is(felis.ErrOtherRestoreRunning), old: apierrors.IsConflict},
		"Complete, another archive":                  {setUp: in("sunday", batchv1.JobSuccessCriteriaMet, batchv1.JobComplete), created: true},
		"Complete a moment ago, the same archive":    {setUp: in("monday", batchv1.JobSuccessCriteriaMet, batchv1.JobComplete), new: felisComparesFinished, old: nothing},
		"Failed, the same archive":                   {setUp: in("monday", batchv1.JobFailureTarget, batchv1.JobFailed), created: true},
		"Failed, another archive":                    {setUp: in("sunday", batchv1.JobFailureTarget, batchv1.JobFailed), created: true},
		"SuccessCriteriaMet, another archive":        {setUp: in("sunday", batchv1.JobSuccessCriteriaMet), created: true},
		"N14: FailureTarget with an active pod":      {setUp: failing, created: true},
		"terminating under orphan":                   {setUp: deleted("example.com/slow", metav1.DeletePropagationOrphan), new: waits, old: waits},
		"terminating under foreground":               {setUp: deleted("example.com/slow", metav1.DeletePropagationForeground), new: waits, old: waits},
		"N32: terminating under a foreign finalizer": {setUp: deleted("example.com/slow", metav1.DeletePropagationBackground), new: waits, old: waits},
	}
}

// felisComparesFinished: belay says AlreadyExists for a restore that has just
// succeeded. New releases look at the Job, find it finished, delete it themselves and
// run the restore again, which is their own choice: what belay answered did not run
// anything twice.
func felisComparesFinished(err error) bool { return err == nil }

// failing is a Job whose Pod is still active, but whose failure is decided.
func failing(ctx context.Context, t *testing.T, s *stack.Stack, ns string, old bool) *batchv1.Job {
	t.Helper()
	j := restore("monday")(ctx, t, s, ns, old)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ns, Name: "survival-pod", Labels: map[string]string{"batch.kubernetes.io/job-name": j.Name, "batch.kubernetes.io/controller-uid": string(j.UID)},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(j, batchv1.SchemeGroupVersion.WithKind("Job"))},
		},
		Spec: j.Spec.Template.Spec,
	}
	create(ctx, t, s.Client, pod)
	j.Status.Active = 1
	setOn(ctx, t, s, j, batchv1.JobFailureTarget)
	return j
}

// Felis' own algorithm, under its own rights, call by call.
func TestFelis(t *testing.T) {
	t.Parallel()
	for name, c := range situations() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.play(t, shared, false)
		})
	}
}

// The plain old algorithm, on the preset for it.
func TestOldFelis(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s := start(ctx, t, stack.Options{Webhooks: 1, Presets: []string{"felis-restore-old"}})
	if err := s.WaitNamePolicy(ctx, "felis-restore"); err != nil {
		t.Fatal(err)
	}
	for name, c := range situations() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.play(t, s, true)
		})
	}
}

// start runs a stack of the test's own.
func start(ctx context.Context, t *testing.T, o stack.Options) *stack.Stack {
	t.Helper()
	s, err := stack.Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, p := range append(s.Controllers(), s.Webhooks()...) {
				t.Logf("%s: %s", p.Name, p.Tail(15))
			}
		}
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// play lets an algorithm meet a situation.
func (c situation) play(t *testing.T, s *stack.Stack, old bool) {
	ctx := testContext(t)
	ns := namespace(ctx, t, s, v1alpha1.ModeEnforce)
	if err := felis.Grant(ctx, s.Kube, ns); err != nil {
		t.Fatal(err)
	}
	var before types.UID
	if c.setUp != nil {
		j := c.setUp(ctx, t, s, ns, old)
		before = j.UID
		cleanup(t, func(ctx context.Context) {
			_ = s.Client.Patch(ctx, j, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
		})
	}
	f := &felis.Felis{Client: as(ctx, t, s, ns, felis.Account), Namespace: ns}
	act, want := f.Restore, c.new
	if old {
		act, want = f.RestorePlainly, c.old
	}
	created, err := act(ctx, "survival", "monday")
	live, lerr := s.Kube.BatchV1().Jobs(ns).Get(ctx, "restore-survival", metav1.GetOptions{})
	if lerr != nil {
		t.Fatal(lerr)
	}
	if c.created {
		if err != nil || created == nil || live.UID != created.UID || live.UID == before {
			t.Fatalf("no new restore: %v, live %s, before %s, created %v", err, live.UID, before, created)
		}
		if f.Creates != 1 || f.Deletes != 0 {
			t.Errorf("Felis sent %d creates and %d deletes; its first create should have been all", f.Creates, f.Deletes)
		}
		return
	}
	if !want(err) {
		t.Errorf("Felis saw %v", err)
	}
	if created == nil && live.UID != before {
		t.Errorf("the restore that was there, %s, was replaced by %s", before, live.UID)
	}
}

// TestBetweenLookAndDelete: what happens between belay's look and its DELETE.
func TestBetweenLookAndDelete(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s := start(ctx, t, stack.Options{Webhooks: 1, FaultyWebhook: true, Presets: []string{"felis-restore-old"}})
	if err := s.WaitNamePolicy(ctx, "felis-restore"); err != nil {
		t.Fatal(err)
	}
	remove := func(ctx context.Context, t *testing.T, ns string) {
		background := metav1.DeletePropagationBackground
		if err := s.Kube.BatchV1().Jobs(ns).Delete(ctx, "restore-survival", metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
			t.Error(err)
		}
	}
	for name, c := range map[string]struct {
		// old is the archive of the finished restore: the one that comes between, so that
		// its turn to be created is not the point.
		old     string
		between func(ctx context.Context, t *testing.T, ns string)
		check   func(t *testing.T, created *batchv1.Job, err error, live *batchv1.Job)
	}{
		"N12: it was deleted": {
			old: "monday", between: remove,
			check: func(t *testing.T, created *batchv1.Job, err error, live *batchv1.Job) {
				if err != nil || created == nil || live.UID != created.UID {
					t.Errorf("created %v, %v", created, err)
				}
			},
		},
		"N11: it was deleted and made anew, for another archive": {
			old: "sunday",
			between: func(ctx context.Context, t *testing.T, ns string) {
				remove(ctx, t, ns)
				restore("sunday")(ctx, t, s, ns, true)
			},
			check: func(t *testing.T, _ *batchv1.Job, err error, live *batchv1.Job) {
				// belay's own 409 is not what the client sees: it is answered for the new Job.
				if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "other work") {
					t.Errorf("answered %v", err)
				}
				if live.Spec.Template.Spec.Containers[0].Args[3] != "sunday" || live.DeletionTimestamp != nil {
					t.Error("the new run was killed")
				}
			},
		},
		"it was deleted and made anew, for this archive": {
			old: "monday",
			between: func(ctx context.Context, t *testing.T, ns string) {
				remove(ctx, t, ns)
				restore("monday")(ctx, t, s, ns, true)
			},
			check: func(t *testing.T, created *batchv1.Job, err error, live *batchv1.Job) {
				if err != nil || created != nil || live.DeletionTimestamp != nil {
					t.Errorf("created %v, %v", created, err) // AlreadyExists, which old Felis takes for success
				}
			},
		},
		"it was written to": {
			old: "monday",
			between: func(ctx context.Context, t *testing.T, ns string) {
				j, err := s.Kube.BatchV1().Jobs(ns).Get(ctx, "restore-survival", metav1.GetOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				j.Labels["touched"] = "yes"
				if _, err := s.Kube.BatchV1().Jobs(ns).Update(ctx, j, metav1.UpdateOptions{}); err != nil {
					t.Error(err)
				}
			},
			check: func(t *testing.T, created *batchv1.Job, err error, live *batchv1.Job) {
				// Refused by the resourceVersion, then asked again by client-go, and replaced.
				if err != nil || created == nil || live.UID != created.UID {
					t.Errorf("created %v, %v", created, err)
				}
			},
		},
	} {
		// One after the other: the proxy between belay and the API server is one.
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			ns := namespace(ctx, t, s, v1alpha1.ModeEnforce)
			if err := felis.Grant(ctx, s.Kube, ns); err != nil {
				t.Fatal(err)
			}
			old := restore(c.old)(ctx, t, s, ns, true)
			setOn(ctx, t, s, old, batchv1.JobFailureTarget, batchv1.JobFailed)
			var times atomic.Int32
			s.WebhookFaults.Set(func(r *http.Request) *stack.Fault {
				if r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/namespaces/"+ns+"/jobs/") && times.Add(1) == 1 {
					return &stack.Fault{Before: func() { c.between(ctx, t, ns) }}
				}
				return nil
			})
			defer s.WebhookFaults.Set(nil)
			f := &felis.Felis{Client: as(ctx, t, s, ns, felis.Account), Namespace: ns}
			created, err := f.RestorePlainly(ctx, "survival", "monday")
			if times.Load() == 0 {
				t.Error("nothing was to be deleted")
			}
			live, lerr := s.Kube.BatchV1().Jobs(ns).Get(ctx, "restore-survival", metav1.GetOptions{})
			if lerr != nil {
				t.Fatal(lerr)
			}
			c.check(t, created, err, live)
		})
	}
}
