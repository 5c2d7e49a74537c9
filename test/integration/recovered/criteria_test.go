package recovered

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// TestTheSamePodRecovers: on either detector, under a controller that never leaves Failed
// (belay brings it back), and under one that does (belay lets it).
func TestTheSamePodRecovers(t *testing.T) {
	t.Parallel()
	for name, g := range map[string]opensandbox.Generation{"old controller": opensandbox.Old, "new controller": opensandbox.New} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := stack.TestContext(t)
			s := newSandboxes(ctx, t, shared, g, v1alpha1.ModeEnforce)
			pods := s.start(ctx, "box", 2)
			must(t, opensandbox.Crash(ctx, s.admin, pods[1], "CrashLoopBackOff"))
			must(t, s.Reconcile(ctx, "box"))
			s.wantPhase(ctx, "box", opensandbox.PhaseFailed)
			if diff := cmp.Diff(uids(pods[1]), s.recordOf(ctx, "box")); diff != "" {
				t.Fatalf("record (-want +got):\n%s", diff)
			}
			must(t, opensandbox.Ready(ctx, s.admin, pods[1]))
			must(t, s.Reconcile(ctx, "box"))
			s.becomes(ctx, "box", opensandbox.PhaseSucceed)
			if got := s.recordOf(ctx, "box"); got != nil {
				t.Errorf("record %v", got)
			}
		})
	}
}
