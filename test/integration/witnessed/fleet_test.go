package witnessed

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/belay-dev/belay/sidecar/wire"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// written is how many conditions all replicas have written.
func written(ctx context.Context, t *testing.T, s *stack.Stack) (total int) {
	t.Helper()
	for _, w := range s.Webhooks() {
		text, err := w.Metrics(ctx)
		must(t, err)
		for line := range strings.Lines(text) {
			if rest, ok := strings.CutPrefix(line, "belay_conditions_written_total "); ok {
				n, err := strconv.Atoi(strings.TrimSpace(rest))
				must(t, err)
				total += n
			}
		}
	}
	return total
}

// Cost follows changes, not Pods: what is reported again is not written again. The benchmark
// Reports does it with 10,000.
func TestOnlyChangesAreWritten(t *testing.T) {
	ctx := stack.TestContext(t) // not beside others, whose conditions would be counted
	ns := shared.TestNamespace(ctx, t, "fleet", v1alpha1.ModeEnforce)
	const size = 100
	f, err := shared.NewFleet(ctx, ns, size)
	must(t, err)
	t.Cleanup(f.Close)
	must(t, f.Watch(ctx))
	round := func(what string, want int, state func(int) wire.State) {
		t.Helper()
		before := written(ctx, t, shared)
		must(t, f.Round(ctx, time.Second, f.All(), state))
		if got := written(ctx, t, shared) - before; got != want {
			t.Errorf("%s: %d conditions were written, not %d", what, got, want)
		}
	}
	round("the first reports", size, func(int) wire.State { return wire.StateReady })
	round("the same again", 0, func(int) wire.State { return wire.StateReady })
	round("one in ten has changed", size/10, func(i int) wire.State {
		if i%10 == 0 {
			return wire.StateNotReady
		}
		return wire.StateReady
	})
	stack.Eventually(ctx, t, "all are seen", func() error { return f.Unseen() })
	g := f.Figures()
	if g.Failed != 0 || g.Reports != 3*size {
		t.Errorf("%+v", g)
	}
	stack.Report(t, "%d simulated sidecars, two collectors: report to condition p50 %s p99 %s, answer p50 %s p99 %s", size,
		g.ConditionP50.Round(100*time.Microsecond), g.ConditionP99.Round(100*time.Microsecond), g.AnswerP50.Round(100*time.Microsecond), g.AnswerP99.Round(100*time.Microsecond))
}
