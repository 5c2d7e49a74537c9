package stack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// MainContainer is what a sidecar probes: an HTTP server on the loopback interface.
type MainContainer struct {
	// Port is that of its first run, and of all others.
	Port int
	// Ready: it answers 200, and 503 otherwise.
	Ready  atomic.Bool
	server *http.Server
}

// Start starts a run of it.
func (m *MainContainer) Start() error {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", m.Port))
	if err != nil {
		return err
	}
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return errors.Join(fmt.Errorf("unexpected address %v", l.Addr()), l.Close())
	}
	m.Port = addr.Port
	srv := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !m.Ready.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})}
	m.server = srv
	go func() { _ = srv.Serve(l) }()
	return nil
}

// Stop ends its run, if there is one.
func (m *MainContainer) Stop() {
	if m.server != nil {
		_ = m.server.Close()
	}
}

// ContainerID is the ID of a run of a Pod's container main.
func ContainerID(p *corev1.Pod, run int) string { return fmt.Sprintf("containerd://%s-%d", p.UID, run) }

// MainRuns writes to a Pod's status what a kubelet would: its container main is in some run,
// which began a while ago, and is ready or not.
func (s *Stack) MainRuns(ctx context.Context, p *corev1.Pod, run int, ready bool, since time.Duration) error {
	condition := corev1.ConditionFalse
	if ready {
		condition = corev1.ConditionTrue
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{
		"phase": corev1.PodRunning, "conditions": []corev1.PodCondition{{Type: corev1.PodReady, Status: condition}},
		"containerStatuses": []corev1.ContainerStatus{{
			Name: "main", ContainerID: ContainerID(p, run), Image: "registry.example/app:1", ImageID: "x", Ready: ready, RestartCount: int32(run - 1),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(time.Now().Add(-since))}},
		}},
	}})
	if err != nil {
		return err
	}
	_, err = s.Kube.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
