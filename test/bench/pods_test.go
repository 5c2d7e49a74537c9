package bench

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/belay-dev/belay/sidecar/wire"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

const (
	// crowd is how many Pods with a sidecar BenchmarkStart has, beside those that report.
	crowd = 100_000
	// reporters report ten at a time, ten times a second: each every other second, which is as
	// often as a collector takes it.
	reporters = 200
)

// BenchmarkStart starts a belay-webhook in a cluster of 100,000 Pods that have a sidecar (P06),
// and again without them. From the first moment on, sidecars report to it, whose answers need
// Pods: until its caches are synced it reads them live. It tells how long it took until it was
// ready, what reports met until then, and how much memory it holds.
func BenchmarkStart(b *testing.B) {
	ctx, cancel := context.WithTimeout(b.Context(), 30*time.Minute)
	defer cancel()
	s, f := reporting(ctx, b, reporters)
	for b.Loop() {
		few := begins(ctx, b, s, f, fmt.Sprintf("%d Pods", reporters))
		began := time.Now()
		if err := gather(ctx, s, crowd); err != nil {
			b.Fatal(err)
		}
		b.Logf("%d Pods made in %s", crowd, time.Since(began).Round(time.Second))
		many := begins(ctx, b, s, f, fmt.Sprintf("%d Pods", crowd+reporters))
		b.ReportMetric(float64(many-few)/crowd, "B/Pod")
	}
}

// begins starts a webhook, has the fleet report to it until some time after it is ready, stops
// it, and returns the memory that it held then.
func begins(ctx context.Context, b *testing.B, s *stack.Stack, f *stack.Fleet, name string) int64 {
	b.Helper()
	w, err := s.LaunchWebhook(ctx)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = w.Stop() }()
	f.Collector = fmt.Sprintf("127.0.0.1:%d", w.CollectorPort)
	f.Figures()
	var ready time.Duration
	var early, refused int
	began := time.Now()
	next := 0
	for ready == 0 || time.Since(began) < ready+10*time.Second {
		if ready == 0 {
			resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/readyz", w.ProbePort))
			if err == nil {
				_ = resp.Body.Close()
				if resp.StatusCode == http.StatusOK {
					ready = time.Since(began)
				}
			}
		}
		for range 10 {
			state := wire.StateReady
			if next/reporters%2 == 1 {
				state = wire.StateNotReady
			}
			switch err := f.Report(ctx, next%reporters, state); {
			case ready != 0 && err != nil:
				b.Errorf("%s, ready: %v", name, err)
			case ready == 0 && err != nil:
				refused++
			case ready == 0:
				early++
			}
			next++
		}
		select {
		case <-ctx.Done():
			b.Fatal(ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
	g, held := f.Figures(), resident(b, w.Pid())
	b.Logf("%-12s ready after %s; reports until then: %d taken, %d put off or not heard; all reports: answer p50 %s p99 %s, conditions seen %d; %d MiB resident, %s of processor time",
		name, ready.Round(10*time.Millisecond), early, refused, g.AnswerP50.Round(100*time.Microsecond), g.AnswerP99.Round(100*time.Microsecond), g.Conditions, held>>20, processorTime(b, w.Pid()))
	return held
}

// gather makes so many Pods that run, each with a sidecar, as they are stored in a namespace
// that has opted in.
func gather(ctx context.Context, s *stack.Stack, n int) error {
	config := s.Plane.Config()
	config.ContentType = runtime.ContentTypeProtobuf
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	// No namespace of these asks belay while they are made: that is not what is measured.
	ns, err := kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "crowd-"}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	running := metav1.NewTime(time.Now().Add(-time.Minute))
	always := corev1.ContainerRestartPolicyAlways
	pods := kube.CoreV1().Pods(ns.Name)
	g, one := errgroup.WithContext(ctx)
	g.SetLimit(32)
	for i := range n {
		g.Go(func() error {
			p, err := pods.Create(one, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%06d", i), Labels: map[string]string{v1alpha1.SidecarLabel: v1alpha1.SidecarByAnnotation, "app": "worker", "run": fmt.Sprintf("run-%d", i/100)}},
				Spec: corev1.PodSpec{
					Containers:     []corev1.Container{{Name: "main", Image: "registry.example/app:1"}},
					InitContainers: []corev1.Container{{Name: "belay-sidecar", Image: "registry.example/belay-sidecar:1", RestartPolicy: &always}},
				},
			}, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			status := func(name string) []corev1.ContainerStatus {
				return []corev1.ContainerStatus{{
					Name: name, ContainerID: "containerd://" + name + string(p.UID), Image: "registry.example/app:1", ImageID: "x", Ready: true,
					State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: running}},
				}}
			}
			p.Status = corev1.PodStatus{
				Phase: corev1.PodRunning, ContainerStatuses: status("main"), InitContainerStatuses: status("belay-sidecar"),
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: running}},
			}
			_, err = pods.UpdateStatus(one, p, metav1.UpdateOptions{})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	_, err = kube.CoreV1().Namespaces().Patch(ctx, ns.Name, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, v1alpha1.ModeLabel, v1alpha1.ModeEnforce), metav1.PatchOptions{})
	return err
}
