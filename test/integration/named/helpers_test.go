package named

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

func testContext(t *testing.T) context.Context { t.Helper(); return stack.TestContext(t) }

func cleanup(t *testing.T, f func(context.Context)) { t.Helper(); stack.Cleanup(t, f) }

func eventually(ctx context.Context, t *testing.T, what string, check func() error) {
	t.Helper()
	stack.Eventually(ctx, t, what, check)
}

func namespace(ctx context.Context, t *testing.T, s *stack.Stack, mode string) string {
	t.Helper()
	return s.TestNamespace(ctx, t, "named", mode)
}

// policy registers a NamePolicy that is the test's own: it acts on objects with the
// label test=NAME only, which it returns. Their work is the annotation "work".
func policy(ctx context.Context, t *testing.T, s *stack.Stack, name string, change func(*v1alpha1.NamePolicySpec)) map[string]string {
	t.Helper()
	return s.TestNamePolicy(ctx, t, name, change)
}

// once is an administrator's client that never tries again by itself, so that a test
// sees the very answer.
func once(t *testing.T, cfg *rest.Config) client.Client {
	t.Helper()
	cfg = rest.CopyConfig(cfg)
	c, err := client.New(cfg, client.Options{Scheme: shared.Client.Scheme(), Mapper: shared.Client.RESTMapper()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// raw posts an object and returns the Status of the answer, whatever its code: past
// the retries of client-go. A created object is decoded into it.
func raw(ctx context.Context, t *testing.T, s *stack.Stack, obj client.Object, query ...string) *metav1.Status {
	t.Helper()
	a := post(ctx, t, s.Plane.Config(), obj, query...)
	return a.status
}

// job is a Job with a label, and with the annotation that says its work. Nothing runs
// it, so that a test can say how far it is.
func job(ns, name, work string, labels map[string]string) *batchv1.Job {
	nobody := "example.com/nobody"
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: labels, Annotations: map[string]string{"work": work}},
		Spec: batchv1.JobSpec{
			ManagedBy: &nobody,
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever,
				Containers:    []corev1.Container{{Name: "main", Image: "example.com/image", Args: []string{work}}},
			}},
		},
	}
}

// pods makes a Job one that the Job controller runs.
func run(j *batchv1.Job) *batchv1.Job {
	j.Spec.ManagedBy = nil
	return j
}

// create creates, and fails the test where that is refused.
func create[O client.Object](ctx context.Context, t *testing.T, c client.Client, obj O) O {
	t.Helper()
	if err := c.Create(ctx, obj); err != nil {
		t.Fatalf("creating %T %s: %v", obj, obj.GetName(), err)
	}
	return obj
}

// set writes the status of a Job that nobody manages.
func set(ctx context.Context, t *testing.T, j *batchv1.Job, conditions ...batchv1.JobConditionType) {
	t.Helper()
	setOn(ctx, t, shared, j, conditions...)
}

// setOn is set on a stack.
func setOn(ctx context.Context, t *testing.T, s *stack.Stack, j *batchv1.Job, conditions ...batchv1.JobConditionType) {
	t.Helper()
	now := metav1.Now()
	j.Status.StartTime = &now
	for _, c := range conditions {
		j.Status.Conditions = append(j.Status.Conditions, batchv1.JobCondition{Type: c, Status: corev1.ConditionTrue, LastTransitionTime: now, Reason: "Test"})
		if c == batchv1.JobComplete {
			j.Status.CompletionTime = &now
		}
	}
	if err := s.Client.Status().Update(ctx, j); err != nil {
		t.Fatalf("setting the status of job %s to %v: %v", j.Name, conditions, err)
	}
}

// complete and fail are all that the Job controller writes when a Job ends.
func complete(ctx context.Context, t *testing.T, j *batchv1.Job) {
	t.Helper()
	set(ctx, t, j, batchv1.JobSuccessCriteriaMet, batchv1.JobComplete)
}

func fail(ctx context.Context, t *testing.T, j *batchv1.Job) {
	t.Helper()
	set(ctx, t, j, batchv1.JobFailureTarget, batchv1.JobFailed)
}

// answerIs compares an answer: code, reason and the first cause.
func answerIs(t *testing.T, s *metav1.Status, code int32, reason metav1.StatusReason, cause string) {
	t.Helper()
	got := ""
	if s.Details != nil && len(s.Details.Causes) > 0 {
		got = string(s.Details.Causes[0].Type)
	}
	if s.Code != code || s.Reason != reason || got != cause {
		t.Errorf("answered %d %s %q, want %d %s %q: %s", s.Code, s.Reason, got, code, reason, cause, s.Message)
	}
	if retry := s.Details != nil && s.Details.RetryAfterSeconds > 0; retry != (code == 429 || code == 503) {
		t.Errorf("%d has retryAfterSeconds %v", code, retry)
	}
}

// liveUID is the UID of the Job that has a name.
func liveUID(ctx context.Context, t *testing.T, ns, name string) types.UID {
	t.Helper()
	j, err := shared.Kube.BatchV1().Jobs(ns).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return j.UID
}

// as is a client under a service account of a namespace.
func as(ctx context.Context, t *testing.T, s *stack.Stack, ns, account string) client.Client {
	t.Helper()
	cfg, err := s.Config(ctx, ns, account)
	if err != nil {
		t.Fatal(err)
	}
	return once(t, cfg)
}

func kubeOf(t *testing.T, cfg *rest.Config) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// statusOf is the Status in an error of a client.
func statusOf(t *testing.T, err error) *metav1.Status {
	t.Helper()
	var s apierrors.APIStatus
	if !errors.As(err, &s) {
		t.Fatalf("%v has no status", err)
	}
	status := s.Status()
	return &status
}

func says(t *testing.T, message string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(message, p) {
			t.Errorf("%q does not say %q", message, p)
		}
	}
}

func mustBeNotFound(err error) error { return stack.MustBeNotFound(err) }

// optIn sets a namespace's mode, and waits until the API server and belay act on it.
func optIn(ctx context.Context, t *testing.T, ns, mode string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, v1alpha1.ModeLabel, mode)
	if _, err := shared.Kube.CoreV1().Namespaces().Patch(ctx, ns, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	labels := policy(ctx, t, shared, "probe-"+ns, nil) // waits until it is registered
	probe := 0
	eventually(ctx, t, "the namespace is opted in", func() error {
		probe++
		j := job(ns, fmt.Sprintf("optin-%d", probe), "probe", labels)
		if err := shared.Client.Create(ctx, j); err != nil {
			return err
		}
		if j.Annotations[v1alpha1.WorkAnnotation] == "" {
			return fmt.Errorf("not yet")
		}
		return nil
	})
}
