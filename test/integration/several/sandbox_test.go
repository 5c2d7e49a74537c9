package several

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// sandbox is a BatchSandbox with one Pod, as an administrator sees it through A and B.
type sandbox struct {
	t   *testing.T
	key types.NamespacedName
	via [2]client.Client
	pod *corev1.Pod
}

// newSandbox makes a BatchSandbox without a Pod, through A.
func newSandbox(ctx context.Context, t *testing.T, ns, name string) *sandbox {
	t.Helper()
	b := &sandbox{t: t, key: types.NamespacedName{Namespace: ns, Name: name}}
	for i := range b.via {
		cfg := shared.Plane.ConfigOf(i)
		// The very answer: client-go repeats what is put off, ten times.
		cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { return once{rt} })
		c, err := opensandbox.NewClient(cfg, opensandbox.New, opensandbox.Names{}.GVK(opensandbox.Version))
		must(t, err)
		b.via[i] = c
	}
	must(t, b.via[serverA].Create(ctx, opensandbox.Sandbox(ns, name, 1)))
	return b
}

// once takes off answers what makes a client repeat a request.
type once struct{ http.RoundTripper }

func (o once) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := o.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Header.Del("Retry-After")
	}
	return resp, err
}

// newPod makes its Pod through a server.
func (b *sandbox) newPod(ctx context.Context, server int) {
	b.t.Helper()
	owner := &opensandbox.BatchSandbox{}
	must(b.t, b.via[serverA].Get(ctx, b.key, owner))
	pod, err := opensandbox.NewPod(owner, 0)
	must(b.t, err)
	must(b.t, b.via[server].Create(ctx, pod))
	b.pod = pod
}

// wholeStatus has all that the schema demands; the record is belay's business.
const wholeStatus = `{"status":{"phase":%q,"replicas":1,"allocated":1,"ready":0,"taskFailed":0,"taskPending":0,"taskRunning":0,"taskSucceed":0,"taskUnknown":0}}`

// phase writes a phase through a server, and returns the Status of a refusal.
func (b *sandbox) phase(ctx context.Context, server int, phase string, options ...client.SubResourcePatchOption) (*metav1.Status, error) {
	s := &opensandbox.BatchSandbox{}
	s.Namespace, s.Name = b.key.Namespace, b.key.Name
	err := b.via[server].Status().Patch(ctx, s, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, wholeStatus, phase)), options...)
	var refusal apierrors.APIStatus
	if errors.As(err, &refusal) {
		status := refusal.Status()
		return &status, nil
	}
	return nil, err
}

// fails has the Pod crash and the object fail, through A; the Pod is in the record.
func (b *sandbox) fails(ctx context.Context) {
	b.t.Helper()
	must(b.t, opensandbox.Crash(ctx, b.via[serverA], b.pod, "CrashLoopBackOff"))
	stack.Eventually(ctx, b.t, "the failure is recorded", func() error {
		if refused, err := b.phase(ctx, serverA, opensandbox.PhaseFailed); refused != nil || err != nil {
			return fmt.Errorf("%+v, %w", refused, err)
		}
		if s := b.status(ctx); s.Phase != opensandbox.PhaseFailed || !slices.Equal(s.FailedPodUIDs, []string{string(b.pod.UID)}) {
			return fmt.Errorf("status %+v", s)
		}
		return nil
	})
}

func (b *sandbox) status(ctx context.Context) opensandbox.Status {
	b.t.Helper()
	s := &opensandbox.BatchSandbox{}
	must(b.t, b.via[serverA].Get(ctx, b.key, s))
	return s.Status
}

// witnessed writes, through A, what the collector would of a Pod whose main container is
// ready.
func (b *sandbox) witnessed(ctx context.Context) {
	b.t.Helper()
	must(b.t, b.via[serverA].Get(ctx, client.ObjectKeyFromObject(b.pod), b.pod))
	before := b.pod.DeepCopy()
	b.pod.Status.Conditions = slices.DeleteFunc(b.pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == v1alpha1.MainReadyCondition })
	i := slices.IndexFunc(b.pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.Name == b.pod.Spec.Containers[0].Name })
	b.pod.Status.Conditions = append(b.pod.Status.Conditions, corev1.PodCondition{
		Type: v1alpha1.MainReadyCondition, Status: corev1.ConditionTrue, LastProbeTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		Message: b.pod.Status.ContainerStatuses[i].ContainerID + ": ready",
	})
	must(b.t, b.via[serverA].Status().Patch(ctx, b.pod, client.StrategicMergeFrom(before)))
}

// causesOf are the reasons of a refusal.
func causesOf(s *metav1.Status) string {
	var out []string
	if s != nil && s.Details != nil {
		for _, c := range s.Details.Causes {
			out = append(out, strings.TrimPrefix(string(c.Type), "belay.dev/"))
		}
	}
	return strings.Join(out, " ")
}
