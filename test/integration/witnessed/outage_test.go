package witnessed

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/integration/plane"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// witnesses are Pods with real sidecars, whose main containers change.
type witnesses struct {
	s    *stack.Stack
	pods []*corev1.Pod
	main []*target
}

// right waits until all conditions say what the main containers do, and says how long it took.
func (w *witnesses) right(ctx context.Context, t *testing.T, what string) time.Duration {
	t.Helper()
	began := time.Now()
	stack.Eventually(ctx, t, what, func() error {
		for i, p := range w.pods {
			want := corev1.ConditionFalse
			if w.main[i].Ready.Load() {
				want = corev1.ConditionTrue
			}
			var now corev1.Pod
			if err := w.s.Client.Get(ctx, client.ObjectKeyFromObject(p), &now); err != nil {
				return err
			}
			if c := condition(&now); c == nil || c.Status != want {
				return fmt.Errorf("pod %s: %+v, want %s", p.Name, c, want)
			}
		}
		return nil
	})
	return time.Since(began)
}

// turn makes what is ready not ready, and the other way round.
func (w *witnesses) turn() {
	for _, g := range w.main {
		g.Ready.Store(!g.Ready.Load())
	}
}

// Whatever is away for a while: each report that lasts comes through, and the conditions are
// right soon afterwards. The sidecars stay up all the time.
func TestNoReportIsLost(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
	defer cancel()
	s, err := stack.Start(ctx, stack.Options{Plane: plane.Options{}, Webhooks: 1})
	must(t, err)
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	ns := s.TestNamespace(ctx, t, "outage", v1alpha1.ModeEnforce)
	must(t, s.WaitSidecars(ctx, ns))
	const pods = 8
	w := &witnesses{s: s}
	var sidecars []*stack.Sidecar
	for i := range pods {
		main := newTarget(t, i%2 == 0)
		p := pod(ns, fmt.Sprintf("pod-%d", i), main.Port)
		must(t, s.Client.Create(ctx, p))
		must(t, running(ctx, s, p, 1, 10*time.Second))
		c := sidecar(ctx, t, s, p)
		w.pods, w.main, sidecars = append(w.pods, p), append(w.main, main), append(sidecars, c)
	}
	took := map[string]time.Duration{"at the start": w.right(ctx, t, "at the start")}

	first := s.Webhooks()[0]
	first.Kill()
	w.turn()
	_, err = s.StartWebhook(ctx)
	must(t, err)
	took["collector killed and started again"] = w.right(ctx, t, "collector killed and started again")

	second, err := s.StartWebhook(ctx)
	must(t, err)
	s.Attach() // connections spread over both
	w.turn()
	took["two collectors"] = w.right(ctx, t, "two collectors")
	must(t, second.Signal(syscall.SIGSTOP))
	w.turn()
	// It takes its connections along, and answers none of them.
	s.Detach(second)
	took["one of two collectors frozen"] = w.right(ctx, t, "one of two collectors frozen")
	must(t, second.Signal(syscall.SIGCONT))

	must(t, s.Plane.Do(ctx, "stop kube-apiserver"))
	w.turn()
	<-time.After(30 * time.Second) // the outage itself
	must(t, s.Plane.Do(ctx, "start kube-apiserver"))
	took["API server away for 30 s"] = w.right(ctx, t, "API server away for 30 s")

	for _, c := range sidecars {
		select {
		case <-c.Done():
			t.Errorf("%s has ended: %s", c.Name, c.Tail(5))
		default:
		}
	}
	for what, d := range took {
		stack.Report(t, "%d sidecars, %s: conditions right after %s", pods, what, d.Round(10*time.Millisecond))
	}
}
