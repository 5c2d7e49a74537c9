package named

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// P23: the failed Pod of the last run, which the Job controller keeps, is no peer of the next
// one: it keeps nobody waiting, beside a Pod that has done well and whatever has its labels.
// One that runs does.
func TestP23PodsThatHaveEndedAreNoPeers(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	labels := policy(ctx, t, shared, "p23", nil)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	old := create(ctx, t, shared.Client, job(ns, "leader", "one", labels))
	ended := func(name string, phase corev1.PodPhase) *corev1.Pod {
		p := podOf(old)
		p.Name = old.Name + "-" + name
		create(ctx, t, shared.Client, p)
		p.Status.Phase = phase
		if err := shared.Client.Status().Update(ctx, p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	ended("failed", corev1.PodFailed)
	ended("succeeded", corev1.PodSucceeded)
	running := ended("retried", corev1.PodRunning)
	fail(ctx, t, old)

	answerIs(t, raw(ctx, t, shared, job(ns, old.Name, "two", labels)), 429, "TooManyRequests", v1alpha1.CauseTerminating)
	running.Status.Phase = corev1.PodSucceeded
	if err := shared.Client.Status().Update(ctx, running); err != nil {
		t.Fatal(err)
	}
	if s := raw(ctx, t, shared, job(ns, old.Name, "two", labels)); s.Code != 0 {
		t.Fatalf("with Pods that have ended: answered %d: %s", s.Code, s.Message)
	}
	if liveUID(ctx, t, ns, old.Name) == old.UID {
		t.Error("it was not replaced")
	}
}
