package several

import (
	"fmt"
	"net/http"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// What B, and belay's processes that talk to B, last knew of a Pod is not what is so: an
// object recovers by no evidence that is only in a cache. What cannot be found out in time is
// asked for again. The controller that leads talks to B.
func TestEvidenceThatBStillBelieves(t *testing.T) {
	ctx := stack.TestContext(t)
	ns := shared.TestNamespace(ctx, t, "several", v1alpha1.ModeEnforce)
	for name, c := range map[string]struct {
		// change is what happens to the Pod while B hears of nothing.
		change func(b *sandbox)
		want   string
	}{
		"crashes": {func(b *sandbox) {
			must(t, opensandbox.Crash(ctx, b.via[serverA], b.pod, "CrashLoopBackOff"))
		}, "MainNotRunning"},
		"is-replaced": {func(b *sandbox) {
			must(t, b.via[serverA].Delete(ctx, b.pod, client.GracePeriodSeconds(0)))
			b.newPod(ctx, serverA)
			must(t, opensandbox.Ready(ctx, b.via[serverA], b.pod))
			b.witnessed(ctx)
		}, "PodReplaced"},
		"is-gone": {func(b *sandbox) {
			must(t, b.via[serverA].Delete(ctx, b.pod, client.GracePeriodSeconds(0)))
		}, "PodGone"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newSandbox(ctx, t, ns, name)
			b.t = t
			b.newPod(ctx, serverA)
			must(t, opensandbox.Ready(ctx, b.via[serverA], b.pod))
			b.witnessed(ctx)
			// B knows a Pod that is ready and witnessed. It fails, and its object, where B
			// does not see it.
			for i := range b.via {
				stack.Eventually(ctx, t, "the Pod is known", func() error {
					return b.via[i].Get(ctx, client.ObjectKeyFromObject(b.pod), b.pod)
				})
			}
			b.fails(ctx)
			must(t, opensandbox.Ready(ctx, b.via[serverA], b.pod))
			// Ready, but not witnessed in this run of the container: it does not recover yet.
			if refused, err := b.phase(ctx, serverB, opensandbox.PhaseSucceed, client.DryRunAll); err != nil || refused == nil {
				t.Fatalf("%+v, %v", refused, err)
			}
			release := holdB(t)
			defer release()
			c.change(b)
			answers := map[string]int{}
			for i := range 4 {
				refused, err := b.phase(ctx, i%2, opensandbox.PhaseSucceed)
				switch {
				case err != nil:
					t.Fatal(err)
				case refused == nil:
					t.Fatal("it recovered")
				case refused.Code == http.StatusForbidden && causesOf(refused) == c.want,
					refused.Code == http.StatusServiceUnavailable && causesOf(refused) == "LookupFailed":
					answers[fmt.Sprint(refused.Code)]++
				default:
					t.Errorf("%d %s: %s", refused.Code, causesOf(refused), refused.Message)
				}
			}
			release()
			stack.Eventually(ctx, t, "it is refused for what is so", func() error {
				refused, err := b.phase(ctx, serverB, opensandbox.PhaseSucceed)
				if err != nil || refused == nil || causesOf(refused) != c.want {
					return fmt.Errorf("%+v, %w", refused, err)
				}
				return nil
			})
			if s := b.status(ctx); s.Phase != opensandbox.PhaseFailed || len(s.FailedPodUIDs) != 1 {
				t.Errorf("status %+v", s)
			}
			stack.Report(t, "several: recoveries by a Pod that %s while B was behind: 403 %d, 503 %d, admitted 0", name, answers["403"], answers["503"])
			if name == "crashes" { // and the same Pod brings it back, through the controller that talks to B
				must(t, opensandbox.Ready(ctx, b.via[serverA], b.pod))
				b.witnessed(ctx)
				stack.Eventually(ctx, t, "it recovers", func() error {
					if s := b.status(ctx); s.Phase != opensandbox.PhaseSucceed || len(s.FailedPodUIDs) > 0 {
						return fmt.Errorf("status %+v", s)
					}
					return nil
				})
			}
		})
	}
}
