package bench

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/belay-dev/belay/sidecar/wire"
	"github.com/belay-dev/belay/test/integration/plane"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// fleet is how many sidecars BenchmarkReports has.
const fleet = 10_000

// BenchmarkReports measures one collector with 10,000 sidecars, simulated, over TLS, each for a
// Pod in etcd with a token of its own: all report for the first time within a minute, then once
// more within a minute without a change, then one in a hundred changes within ten seconds, among
// repetitions of the others.
func BenchmarkReports(b *testing.B) {
	ctx, cancel := context.WithTimeout(b.Context(), 30*time.Minute)
	defer cancel()
	s, f := reporting(ctx, b, fleet)
	w := s.Webhooks()[0]
	phase := func(name string, over time.Duration, members []int, state func(int) wire.State) {
		written, cpu, began := counter(ctx, b, w, "belay_conditions_written_total"), processorTime(b, w.Pid()), time.Now()
		if err := f.Round(ctx, over, members, state); err != nil {
			b.Errorf("%s: %v", name, err)
		}
		took := time.Since(began)
		wrote := counter(ctx, b, w, "belay_conditions_written_total") - written
		stack.Eventually(ctx, b, "what was written is seen", f.Unseen)
		g := f.Figures()
		b.Logf("%-22s %6d reports in %s (%.0f/s), %d not accepted; conditions written %d, seen %d, not seen %d; answer p50 %s p99 %s; report to condition p50 %s p99 %s; collector %.0f millicores, %.1f MiB resident",
			name, g.Reports, took.Round(100*time.Millisecond), float64(g.Reports)/took.Seconds(), g.Failed, wrote, g.Conditions, g.Unseen,
			g.AnswerP50.Round(100*time.Microsecond), g.AnswerP99.Round(100*time.Microsecond), g.ConditionP50.Round(100*time.Microsecond), g.ConditionP99.Round(100*time.Microsecond),
			1000*(processorTime(b, w.Pid())-cpu).Seconds()/took.Seconds(), float64(resident(b, w.Pid()))/(1<<20))
		b.ReportMetric(float64(g.ConditionP50.Microseconds())/1000, strings.ReplaceAll(name, " ", "-")+"-condition-p50-ms")
	}
	for b.Loop() {
		all := f.All()
		phase("first", time.Minute, all, func(int) wire.State { return wire.StateReady })
		phase("unchanged", time.Minute, all, func(int) wire.State { return wire.StateReady })
		phase("one in a hundred", 10*time.Second, all[:len(all)/6], func(i int) wire.State {
			if i%17 == 0 {
				return wire.StateNotReady
			}
			return wire.StateReady
		})
	}
}

// reporting is a stack with a fleet of so many sidecars, whose conditions are followed, until the
// benchmark ends.
func reporting(ctx context.Context, b *testing.B, size int) (*stack.Stack, *stack.Fleet) {
	b.Helper()
	s, err := stack.Start(ctx, stack.Options{Plane: plane.Options{}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Stop() })
	ns, err := s.NewNamespace(ctx, "fleet", v1alpha1.ModeEnforce)
	if err != nil {
		b.Fatal(err)
	}
	if err := s.WaitSidecars(ctx, ns); err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	f, err := s.NewFleet(ctx, ns, size)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(f.Close)
	b.Logf("%d Pods and tokens made in %s", size, time.Since(began).Round(time.Second))
	if err := f.Watch(ctx); err != nil {
		b.Fatal(err)
	}
	return s, f
}

// counter reads a metric without labels.
func counter(ctx context.Context, b *testing.B, p *stack.Process, name string) int {
	b.Helper()
	text, err := p.Metrics(ctx)
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				b.Fatal(err)
			}
			return int(n)
		}
	}
	return 0
}

// processorTime is what a process has used, in user and kernel mode.
func processorTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Skipf("processor time is read from /proc: %v", err)
	}
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	ticks := 0
	for _, f := range fields[11:13] { // utime and stime, in hundredths of a second
		n, err := strconv.Atoi(f)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
