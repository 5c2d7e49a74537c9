package spawn_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/belay-dev/belay/webhook/client/spawn"
)

func newJob(name string) *batchv1.Job {
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "runs", Name: name},
		Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers:    []corev1.Container{{Name: "main", Image: "example.com/restore:1"}},
		}}},
	}
}

// server stands for an API server whose answer to the first create of a Job is lost
// after it was stored.
func server() client.Client {
	lost := false
	return interceptor.NewClient(fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).Build(), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			if obj.SetUID("3f0c"); obj.GetName() == "" {
				return errors.New("no name")
			}
			if err := c.Create(ctx, obj, opts...); err != nil {
				return err
			}
			if _, isJob := obj.(*batchv1.Job); isJob && !lost {
				lost = true
				return io.ErrUnexpectedEOF
			}
			return nil
		},
	})
}

// fast keeps the examples from waiting.
var fast = wait.Backoff{Duration: time.Millisecond}

// One object, whose create is repeated until it is known to be there. The same work
// has the same name, so a second process that does the same finds it.
func Example() {
	job := newJob(spawn.Name("restore", "backup-7"))
	result, err := spawn.Options{Backoff: fast}.Do(context.Background(), server(), spawn.Create(job))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("the job's uid is", job.UID)
	fmt.Println("recovered:", result.Recovered)
	// Output:
	// the job's uid is 3f0c
	// recovered: [create job runs/restore-6x66yz4gvs]
}

// What OTF's Kubernetes executor does for each run, in three calls none of which is
// retried there: create a Secret with the run's token, create the Job, and replace
// the Secret by one that the Job owns. The Job is the point of no return: once it
// exists the run is on its way, so a lost owner reference must not fail it; before
// it, a failure must reach the run, for nobody starts it again.
//
// It needs no more rights than OTF's chart gives: jobs create and list, secrets
// create and update.
func Example_otf() {
	const runID, token = "run-8AbC", "only-once"
	name := spawn.Name("otf", runID)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "runs", Name: name},
		Immutable:  new(true),
		StringData: map[string]string{"jobToken": token},
	}
	job := newJob(name)

	options := spawn.Options{
		Backoff: fast,
		Failed: func(_ context.Context, err error) {
			fmt.Println("mark the run as errored:", err) // OTF: JobErrored
		},
	}
	result, err := options.Do(context.Background(), server(),
		spawn.Create(secret).Identity(runID, token), // another token needs another Secret
		spawn.Create(job).Identity(runID).PointOfNoReturn(),
		spawn.Update(func() (client.Object, error) {
			if job.UID == "" {
				return nil, errors.New("the job's uid is not known")
			}
			secret.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: job.UID}}
			return secret, nil
		}).Named("make the job the secret's owner"),
	)
	fmt.Println("error:", err)
	fmt.Println("API calls:", result.Tries) // secret, job (lost), job (there already), look, update
	fmt.Println("recovered:", len(result.Recovered), "warnings:", len(result.Warnings))
	// Output:
	// error: <nil>
	// API calls: 5
	// recovered: 1 warnings: 0
}

// The name is taken by something else: the spawn fails, says by what, and calls the
// hook, which can still write although the caller's context has ended.
func ExampleOptions_Do() {
	there := newJob("nightly")
	there.UID = "77aa"
	c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(there).Build()

	options := spawn.Options{Failed: func(_ context.Context, err error) {
		var taken *spawn.WorkError
		if errors.As(err, &taken) && errors.Is(err, spawn.ErrOtherWork) {
			fmt.Println("in the way:", taken.Kind, taken.Name, taken.UID)
		}
	}}
	_, err := options.Do(context.Background(), c, spawn.Create(newJob("nightly")))
	fmt.Println(err)
	// Output:
	// in the way: Job nightly 77aa
	// create job runs/nightly (2 tries): job "runs/nightly" (uid 77aa): the object that is there is of other work: jobs.batch "nightly" already exists
}

func ExampleName() {
	fmt.Println(spawn.Name("restore", "backup-7"))
	fmt.Println(spawn.Name("Restore of the customer database, in full and from the start", "backup-7"))
	// Output:
	// restore-6x66yz4gvs
	// restore-of-the-customer-database-in-full-and-from-th-4z33pz5q7d
}

func ExampleClassify() {
	jobs := schema.GroupResource{Group: "batch", Resource: "jobs"}
	for _, err := range []error{
		apierrors.NewInternalError(errors.New("etcdserver: request timed out")),
		apierrors.NewAlreadyExists(jobs, "a"),
		apierrors.NewForbidden(jobs, "a", errors.New("exceeded quota")),
	} {
		fmt.Println(spawn.Classify(err))
	}
	// Output:
	// Retryable
	// AlreadyExists
	// Refused
}
