package witnessed

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// target is a main container that a sidecar probes.
type target struct {
	*stack.MainContainer
}

// newTarget starts one that is ready, or not.
func newTarget(t testing.TB, ready bool) *target {
	t.Helper()
	g := &target{&stack.MainContainer{}}
	g.Ready.Store(ready)
	g.start(t)
	t.Cleanup(g.Stop)
	return g
}

// start starts it, anew on the same port.
func (g *target) start(t testing.TB) {
	t.Helper()
	must(t, g.Start())
}

// pod is a Pod that asks for a sidecar, whose main container is probed at a port each second.
func pod(namespace, name string, port int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{v1alpha1.SidecarAnnotation: v1alpha1.SidecarInject}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Image: "registry.example/app:1",
			ReadinessProbe: &corev1.Probe{
				PeriodSeconds: 1, FailureThreshold: 1,
				ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt(port)}},
			},
		}}},
	}
}

// running has the main container of a Pod run, in its n-th run, which began some seconds ago.
func running(ctx context.Context, s *stack.Stack, p *corev1.Pod, n int, since time.Duration) error {
	return s.MainRuns(ctx, p, n, true, since)
}

// condition is what the sidecar's condition says; nil for none.
func condition(p *corev1.Pod) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == v1alpha1.MainReadyCondition {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// becomes waits until the condition has a status and a message that begins with the ID of the
// n-th run.
func becomes(ctx context.Context, t testing.TB, s *stack.Stack, p *corev1.Pod, want corev1.ConditionStatus, n int) *corev1.PodCondition {
	t.Helper()
	var c *corev1.PodCondition
	stack.Eventually(ctx, t, fmt.Sprintf("condition %s of run %d", want, n), func() error {
		var now corev1.Pod
		if err := s.Client.Get(ctx, client.ObjectKeyFromObject(p), &now); err != nil {
			return err
		}
		if c = condition(&now); c == nil {
			return fmt.Errorf("there is none among %+v", now.Status.Conditions)
		}
		if c.Status != want || !strings.HasPrefix(c.Message, stack.ContainerID(p, n)+": ") {
			return fmt.Errorf("%+v", *c)
		}
		return nil
	})
	return c
}

// sidecar runs the sidecar of a Pod, which ends with the test.
func sidecar(ctx context.Context, t testing.TB, s *stack.Stack, p *corev1.Pod, extra ...string) *stack.Sidecar {
	t.Helper()
	// The CA comes a moment after the namespace.
	stack.Eventually(ctx, t, "ConfigMap with the CA", func() error {
		_, err := s.Kube.CoreV1().ConfigMaps(p.Namespace).Get(ctx, v1alpha1.CABundleName, metav1.GetOptions{})
		return err
	})
	c, err := s.StartSidecar(ctx, p, extra...)
	must(t, err)
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("%s:\n%s", c.Name, c.Tail(40))
		}
	})
	return c
}
