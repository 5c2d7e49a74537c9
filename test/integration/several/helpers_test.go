package several

import (
	"context"
	"errors"
	"net/http"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// both are an administrator's clients, of A and of B.
func both(t testing.TB) (kubes [2]kubernetes.Interface, clients [2]client.WithWatch) {
	t.Helper()
	for i := range kubes {
		var err error
		kubes[i], err = kubernetes.NewForConfig(shared.Plane.ConfigOf(i))
		must(t, err)
		clients[i], err = shared.ClientOf(i)
		must(t, err)
	}
	return kubes, clients
}

// job is a Job that nobody runs, for a work.
func job(ns, name, work string, labels map[string]string) *batchv1.Job {
	nobody := "example.com/nobody"
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: labels, Annotations: map[string]string{"work": work}},
		Spec: batchv1.JobSpec{
			ManagedBy: &nobody,
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever,
				Containers:    []corev1.Container{{Name: "main", Image: "registry.example/app:1", Args: []string{work}}},
			}},
		},
	}
}

// answer is what one POST was answered, past the retries of client-go.
type answer struct {
	code   int32
	reason metav1.StatusReason
	cause  string
	text   string
	made   *batchv1.Job
}

func post(ctx context.Context, kube kubernetes.Interface, j *batchv1.Job) answer {
	made := &batchv1.Job{}
	err := kube.BatchV1().RESTClient().Post().Namespace(j.Namespace).Resource("jobs").MaxRetries(0).Body(j).Do(ctx).Into(made)
	if err == nil {
		return answer{code: http.StatusCreated, made: made}
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return answer{text: err.Error()}
	}
	s := status.Status()
	a := answer{code: s.Code, reason: s.Reason, text: s.Message}
	if s.Details != nil && len(s.Details.Causes) > 0 {
		a.cause = string(s.Details.Causes[0].Type)
	}
	return a
}

// finish ends a Job that nobody runs, as the Job controller does for one that failed.
func finish(ctx context.Context, t testing.TB, c client.Client, j *batchv1.Job) {
	t.Helper()
	now := metav1.Now()
	j.Status.StartTime = &now
	for _, kind := range []batchv1.JobConditionType{batchv1.JobFailureTarget, batchv1.JobFailed} {
		j.Status.Conditions = append(j.Status.Conditions, batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now, Reason: "Test"})
	}
	must(t, c.Status().Update(ctx, j))
}

// holdB keeps B's caches as they are until the function that it returns is called, or the
// test ends.
func holdB(t testing.TB) (release func()) {
	t.Helper()
	etcdOf[serverB].HoldWatches(true)
	release = func() { etcdOf[serverB].HoldWatches(false) }
	t.Cleanup(release)
	return release
}
