package several

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// What B, and the replica that talks to B, know of a Pod is from before it failed: ready, and
// witnessed. That brings nothing back.
func TestEvidenceFromBeforeTheFailure(t *testing.T) {
	ctx := stack.TestContext(t)
	ns := shared.TestNamespace(ctx, t, "several", v1alpha1.ModeEnforce)
	b := newSandbox(ctx, t, ns, "was-ready")
	b.newPod(ctx, serverA)
	must(t, opensandbox.Ready(ctx, b.via[serverA], b.pod))
	b.witnessed(ctx)
	b.eventuallyKnown(ctx)
	release := holdB(t)
	defer release()
	defer shared.Attach()
	shared.Detach(shared.Webhooks()[1]) // that of B cannot find out what failed
	b.fails(ctx)
	shared.Attach()
	shared.Detach(shared.Webhooks()[0]) // and is the one to be asked
	answers := b.isRefused(ctx, "MainNotRunning", release)
	stack.Report(t, "several: recoveries by what B knew from before the failure: 403 %d, 503 %d, admitted 0", answers[403], answers[503])
}

// isRefused asks four times for the object's recovery while B is behind. It is refused for the
// cause, or put off, where that could not be found out; and for the cause when B knows. It returns
// how often there was each status code.
func (b *sandbox) isRefused(ctx context.Context, cause string, release func()) map[int32]int {
	b.t.Helper()
	answers := map[int32]int{}
	for i := range 4 {
		refused, err := b.phase(ctx, i%2, opensandbox.PhaseSucceed)
		switch {
		case err != nil:
			b.t.Fatal(err)
		case refused == nil:
			b.t.Fatal("it recovered")
		case refused.Code == http.StatusForbidden && causesOf(refused) == cause,
			refused.Code == http.StatusServiceUnavailable && causesOf(refused) == "LookupFailed":
			answers[refused.Code]++
		default:
			b.t.Errorf("%d %s: %s", refused.Code, causesOf(refused), refused.Message)
		}
	}
	release()
	stack.Eventually(ctx, b.t, "it is refused for what is so", func() error {
		refused, err := b.phase(ctx, serverB, opensandbox.PhaseSucceed)
		if err != nil || refused == nil || causesOf(refused) != cause {
			return fmt.Errorf("%+v, %w", refused, err)
		}
		return nil
	})
	return answers
}

// eventuallyKnown waits until B's cache has the Pod's witness.
func (b *sandbox) eventuallyKnown(ctx context.Context) {
	b.t.Helper()
	stack.Eventually(ctx, b.t, "B knows the witness", func() error {
		var list corev1.PodList
		if err := b.via[serverB].List(ctx, &list, client.InNamespace(b.key.Namespace), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}}); err != nil {
			return err
		}
		for _, p := range list.Items {
			if p.UID == b.pod.UID && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == v1alpha1.MainReadyCondition }) {
				return nil
			}
		}
		return fmt.Errorf("not among %d", len(list.Items))
	})
}

// The controller that leads talks to B, and has seen all that an object needs to come back. Before
// it writes, the Pod crashes where B does not see it.
func TestEvidenceThatGoesBeforeTheWrite(t *testing.T) {
	ctx := stack.TestContext(t)
	ns := shared.TestNamespace(ctx, t, "several", v1alpha1.ModeEnforce)
	const tries = 5 // the controller waits a second, and may be faster than this test
	for i := range tries {
		b := newSandbox(ctx, t, ns, fmt.Sprintf("crashes-again-%d", i))
		b.newPod(ctx, serverA)
		must(t, opensandbox.Ready(ctx, b.via[serverA], b.pod))
		b.fails(ctx)
		must(t, opensandbox.Ready(ctx, b.via[serverA], b.pod))
		b.witnessed(ctx)
		b.eventuallyKnown(ctx)
		release := holdB(t)
		must(t, opensandbox.Crash(ctx, b.via[serverA], b.pod, "CrashLoopBackOff"))
		if b.status(ctx).Phase != opensandbox.PhaseFailed {
			release()
			continue
		}
		for until := time.Now().Add(5 * time.Second); time.Now().Before(until); {
			if s := b.status(ctx); s.Phase != opensandbox.PhaseFailed {
				t.Fatalf("it came back while its Pod has crashed: %+v", s)
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				t.Fatal(ctx.Err())
			}
		}
		release()
		stack.Eventually(ctx, t, "it is refused for what is so", func() error {
			refused, err := b.phase(ctx, serverB, opensandbox.PhaseSucceed, client.DryRunAll)
			if err != nil || refused == nil || causesOf(refused) != "MainNotRunning" {
				return fmt.Errorf("%+v, %w", refused, err)
			}
			return nil
		})
		if s := b.status(ctx); s.Phase != opensandbox.PhaseFailed || len(s.FailedPodUIDs) != 1 {
			t.Errorf("status %+v", s)
		}
		return
	}
	t.Fatalf("in %d tries the controller was faster: the test shows nothing", tries)
}

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
			answers := b.isRefused(ctx, c.want, release)
			if s := b.status(ctx); s.Phase != opensandbox.PhaseFailed || len(s.FailedPodUIDs) != 1 {
				t.Errorf("status %+v", s)
			}
			stack.Report(t, "several: recoveries by a Pod that %s while B was behind: 403 %d, 503 %d, admitted 0", name, answers[403], answers[503])
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
