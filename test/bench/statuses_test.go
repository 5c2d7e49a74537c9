package bench

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// objects is how many guarded objects a namespace of BenchmarkStatuses has.
const objects = 100

// BenchmarkStatuses compares writes to the status of a guarded custom resource with those
// in a namespace that did not opt in: ordinary ones, which belay is not asked about; ones
// of a failed object that stays failed (the record is kept, nothing is looked up); and the
// pair of a failure and a recovery, the latter with evidence (one LIST of the object's
// Pods).
func BenchmarkStatuses(b *testing.B) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	s, c := guardedStack(ctx, b)
	for b.Loop() {
		var ordinary, failed, recovered []*variant
		for _, mode := range []string{"", v1alpha1.ModeEnforce} {
			name := "none"
			if mode != "" {
				name = "guarded"
			}
			boxes := sandboxes(ctx, b, s, c, mode)
			ordinary = append(ordinary, &variant{name: name, create: func(ctx context.Context, i int) error {
				return boxes.write(ctx, i, fmt.Sprintf(`{"status":{"phase":"Succeed","ready":%d}}`, i%2))
			}})
			failed = append(failed, &variant{name: name + "-failed", create: func(ctx context.Context, i int) error {
				return boxes.write(ctx, i, fmt.Sprintf(`{"status":{"phase":"Failed","ready":%d,"failedPodUIDs":[%q]}}`, i%2, boxes.pods[i%objects].UID))
			}})
			recovered = append(recovered, &variant{name: name + "-recovered", create: func(ctx context.Context, i int) error {
				// The writers of one object are apart by as many as there are objects.
				if err := boxes.write(ctx, i, fmt.Sprintf(`{"status":{"phase":"Failed","ready":0,"failedPodUIDs":[%q]}}`, boxes.pods[i%objects].UID)); err != nil {
					return err
				}
				return boxes.write(ctx, i, `{"status":{"phase":"Succeed","ready":1,"failedPodUIDs":null}}`)
			}})
		}
		compare(ctx, b, ordinary)
		compare(ctx, b, recovered)
		compare(ctx, b, failed)
	}
}

// guardedStack runs belay with OpenSandbox's CRD and preset.
func guardedStack(ctx context.Context, b *testing.B) (*stack.Stack, client.Client) {
	b.Helper()
	s, err := stack.Start(ctx, stack.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Stop(); err != nil {
			b.Error(err)
		}
	})
	if err := s.ApplyCRD(ctx, opensandbox.CRD(opensandbox.CRDOptions{Record: &opensandbox.Record{}})); err != nil {
		b.Fatal(err)
	}
	if err := s.ApplyPreset(ctx, "opensandbox"); err != nil {
		b.Fatal(err)
	}
	if err := s.WaitRecoveryPolicy(ctx, "opensandbox"); err != nil {
		b.Fatal(err)
	}
	c, err := opensandbox.NewClient(s.Plane.Config(), opensandbox.New, opensandbox.Names{}.GVK(opensandbox.Version))
	if err != nil {
		b.Fatal(err)
	}
	return s, c
}

type boxes struct {
	client client.Client
	boxes  []*opensandbox.BatchSandbox
	pods   []*corev1.Pod
}

// sandboxes makes a namespace of healthy objects with a ready Pod each.
func sandboxes(ctx context.Context, b *testing.B, s *stack.Stack, c client.Client, mode string) *boxes {
	b.Helper()
	ns, err := s.NewNamespace(ctx, "statuses", mode)
	if err != nil {
		b.Fatal(err)
	}
	out := &boxes{client: c}
	for i := range objects {
		box := opensandbox.Sandbox(ns, fmt.Sprintf("box-%d", i), 1)
		if err := c.Create(ctx, box); err != nil {
			b.Fatal(err)
		}
		box.Kind, box.APIVersion = "BatchSandbox", "sandbox.opensandbox.io/v1alpha1"
		pod, err := opensandbox.NewPod(box, 0)
		if err != nil {
			b.Fatal(err)
		}
		if err := c.Create(ctx, pod); err != nil {
			b.Fatal(err)
		}
		if err := opensandbox.Ready(ctx, c, pod); err != nil {
			b.Fatal(err)
		}
		out.boxes, out.pods = append(out.boxes, box), append(out.pods, pod)
		if err := out.write(ctx, i, `{"status":{"phase":"Succeed","replicas":1,"allocated":1,"ready":1,"taskRunning":0,"taskSucceed":0,"taskFailed":0,"taskPending":0,"taskUnknown":0}}`); err != nil {
			b.Fatal(err)
		}
	}
	return out
}

func (o *boxes) write(ctx context.Context, i int, patch string) error {
	box := &opensandbox.BatchSandbox{}
	box.Namespace, box.Name = o.boxes[i%objects].Namespace, o.boxes[i%objects].Name
	return o.client.Status().Patch(ctx, box, client.RawPatch("application/merge-patch+json", []byte(patch)))
}

// watched is how many Pods BenchmarkWatchedPods has.
const watched = 10_000

// BenchmarkWatchedPods measures what a replica of the webhook keeps in memory for the Pods
// that a RecoveryPolicy selects: its resident memory with none and with 10,000, half a minute
// after the last one came, and the difference for each.
func BenchmarkWatchedPods(b *testing.B) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	s, c := guardedStack(ctx, b)
	ns, err := s.NewNamespace(ctx, "watched", v1alpha1.ModeEnforce)
	if err != nil {
		b.Fatal(err)
	}
	box := opensandbox.Sandbox(ns, "box", 1)
	if err := c.Create(ctx, box); err != nil {
		b.Fatal(err)
	}
	box.Kind, box.APIVersion = "BatchSandbox", "sandbox.opensandbox.io/v1alpha1"
	for b.Loop() {
		before := resident(b, s.Webhooks()[0].Pid())
		v := &variant{name: "pods", create: func(ctx context.Context, i int) error {
			pod, err := opensandbox.NewPod(box, i)
			if err != nil {
				return err
			}
			if err := c.Create(ctx, pod); err != nil {
				return err
			}
			return opensandbox.Ready(ctx, c, pod)
		}}
		for from := 0; from < watched; from += perRound {
			v.run(ctx, b, from)
		}
		select {
		case <-ctx.Done():
			b.Fatal(ctx.Err())
		case <-time.After(30 * time.Second): // the scavenger gives memory back by and by
		}
		after := resident(b, s.Webhooks()[0].Pid())
		b.ReportMetric(float64(before)/(1<<20), "none-MiB")
		b.ReportMetric(float64(after)/(1<<20), "10000-pods-MiB")
		b.ReportMetric(float64(after-before)/watched, "bytes-per-pod")
	}
}

// resident is a process' resident memory in bytes.
func resident(b *testing.B, pid int) int64 {
	b.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Skipf("resident memory is read from /proc: %v", err)
	}
	for line := range strings.SplitSeq(string(raw), "\n") {
		var kib int64
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	b.Fatal("no VmRSS")
	return 0
}
