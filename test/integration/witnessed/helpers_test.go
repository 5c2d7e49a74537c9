package witnessed

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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

// target is what a sidecar probes: a main container's HTTP server.
type target struct {
	port  int
	ready atomic.Bool
	mu    sync.Mutex
	srv   *http.Server
}

// newTarget starts a server that is ready, or not.
func newTarget(t testing.TB, ready bool) *target {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	g := &target{port: l.Addr().(*net.TCPAddr).Port}
	g.ready.Store(ready)
	g.serve(l)
	t.Cleanup(g.stop)
	return g
}

func (g *target) serve(l net.Listener) {
	srv := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !g.ready.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})}
	g.mu.Lock()
	g.srv = srv
	g.mu.Unlock()
	go func() { _ = srv.Serve(l) }()
}

// stop ends the server: the main container has ended.
func (g *target) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = g.srv.Close()
}

// start starts it anew on the same port.
func (g *target) start(t testing.TB) {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", g.port))
	must(t, err)
	g.serve(l)
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

// running writes to a Pod's status what a kubelet would: its main container runs, in its n-th
// run, which began some seconds ago.
func running(ctx context.Context, s *stack.Stack, p *corev1.Pod, n int, since time.Duration) error {
	return status(ctx, s, p, corev1.ContainerStatus{
		Name: "main", ContainerID: containerID(p, n), Image: "registry.example/app:1", ImageID: "x", Ready: true, RestartCount: int32(n - 1),
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(time.Now().Add(-since))}},
	}, true)
}

func containerID(p *corev1.Pod, n int) string { return fmt.Sprintf("containerd://%s-%d", p.UID, n) }

// status writes the status of a Pod's main container.
func status(ctx context.Context, s *stack.Stack, p *corev1.Pod, c corev1.ContainerStatus, ready bool) error {
	condition := corev1.ConditionFalse
	if ready {
		condition = corev1.ConditionTrue
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{
		"phase": corev1.PodRunning, "containerStatuses": []corev1.ContainerStatus{c},
		"conditions": []corev1.PodCondition{{Type: corev1.PodReady, Status: condition}},
	}})
	if err != nil {
		return err
	}
	_, err = s.Kube.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
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
		if c.Status != want || !strings.HasPrefix(c.Message, containerID(p, n)+": ") {
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
