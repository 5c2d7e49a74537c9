package witnessed

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"time"

	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// The life of a Pod: ready, not ready, ready again; its main container is started anew.
func TestAPodIsWitnessed(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	ns := shared.TestNamespace(ctx, t, "life", v1alpha1.ModeEnforce)
	main := newTarget(t, true)
	p := pod(ns, "a", main.Port)
	must(t, shared.Client.Create(ctx, p))
	sidecar(ctx, t, shared, p)
	must(t, running(ctx, shared, p, 1, 10*time.Second))
	becomes(ctx, t, shared, p, corev1.ConditionTrue, 1)
	main.Ready.Store(false)
	becomes(ctx, t, shared, p, corev1.ConditionFalse, 1)
	main.Ready.Store(true)
	becomes(ctx, t, shared, p, corev1.ConditionTrue, 1)
	main.Stop()
	becomes(ctx, t, shared, p, corev1.ConditionFalse, 1)
	must(t, running(ctx, shared, p, 2, 0))
	main.start(t)
	becomes(ctx, t, shared, p, corev1.ConditionTrue, 2)
}
