// Package bench measures what belay costs, on a real control plane, as ratios within
// one run: all variants are interleaved in rounds, so that whatever else the machine
// does is shared by all of them.
package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/test/fixtures/otf"
	"github.com/belay-dev/belay/test/integration/plane"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

const (
	rounds      = 4
	perRound    = 500
	concurrency = 8
)

// variant is one way for an object to be created.
type variant struct {
	name      string
	namespace string
	create    func(ctx context.Context, i int) error
	took      []time.Duration
	wall      time.Duration
}

// BenchmarkCreate compares creates of small Secrets: in a namespace that did not opt
// in, with an owner that exists (one live look-up), and with one that does not yet
// (a look-up and a new Anchor). Its figures are p50 and p99 in milliseconds, creates
// a second, and the ratios to the first variant.
func BenchmarkCreate(b *testing.B) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	s, err := stack.Start(ctx, stack.Options{Plane: plane.Options{}, Presets: []string{"otf"}})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := s.Stop(); err != nil {
			b.Error(err)
		}
	}()
	if err := s.WaitPolicy(ctx, "otf"); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		measure(ctx, b, s)
	}
}

func measure(ctx context.Context, b *testing.B, s *stack.Stack) {
	b.Helper()
	vs := []*variant{{name: "none"}, {name: "owner-exists"}, {name: "owner-to-come"}}
	for i, v := range vs {
		mode := v1alpha1.ModeEnforce
		if i == 0 {
			mode = ""
		}
		ns, err := s.NewNamespace(ctx, v.name, mode)
		if err != nil {
			b.Fatal(err)
		}
		v.namespace = ns
		v.create = func(ctx context.Context, i int) error {
			_, err := s.Kube.CoreV1().Secrets(ns).Create(ctx, otf.Secret(ns, fmt.Sprintf("run-%05d", i), "job-1", "t0ken"), metav1.CreateOptions{})
			return err
		}
	}
	suspended := true
	for i := range rounds * perRound {
		j := otf.Job(vs[1].namespace, fmt.Sprintf("run-%05d", i), "job-1")
		j.Spec.Suspend = &suspended
		if _, err := s.Kube.BatchV1().Jobs(j.Namespace).Create(ctx, j, metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	compare(ctx, b, vs)
}

// compare runs the variants in interleaved rounds. The first is what others are
// compared to.
func compare(ctx context.Context, b *testing.B, vs []*variant) {
	b.Helper()
	for round := range rounds {
		for _, v := range vs {
			v.run(ctx, b, round*perRound)
		}
	}
	base := vs[0]
	for _, v := range vs {
		p50, p99 := v.quantile(50), v.quantile(99)
		b.ReportMetric(ms(p50), v.name+"-p50-ms")
		b.ReportMetric(ms(p99), v.name+"-p99-ms")
		b.ReportMetric(float64(len(v.took))/v.wall.Seconds(), v.name+"-per-s")
		if v != base {
			b.ReportMetric(float64(p50)/float64(base.quantile(50)), v.name+"-p50-ratio")
			b.ReportMetric(float64(p99)/float64(base.quantile(99)), v.name+"-p99-ratio")
		}
	}
}

// run creates one round of objects.
func (v *variant) run(ctx context.Context, b *testing.B, from int) {
	b.Helper()
	next := make(chan int)
	var mu sync.Mutex
	var wg sync.WaitGroup
	start := time.Now()
	for range concurrency {
		wg.Go(func() {
			for i := range next {
				t := time.Now()
				err := v.create(ctx, i)
				d := time.Since(t)
				mu.Lock()
				v.took = append(v.took, d)
				mu.Unlock()
				if err != nil {
					b.Error(err)
				}
			}
		})
	}
	for i := range perRound {
		next <- from + i
	}
	close(next)
	wg.Wait()
	v.wall += time.Since(start)
}

func (v *variant) quantile(p int) time.Duration {
	all := slices.Sorted(slices.Values(v.took))
	return all[(len(all)-1)*p/100]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
