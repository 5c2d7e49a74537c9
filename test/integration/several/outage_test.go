package several

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/app"
)

// holder is who leads belay-controller.
func holder(ctx context.Context, t *testing.T) (string, error) {
	t.Helper()
	var l coordinationv1.Lease
	if err := clientOf(t, serverA).Get(ctx, client.ObjectKey{Namespace: stack.Namespace, Name: "belay-controller"}, &l); err != nil {
		return "", err
	}
	if l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" {
		return "", fmt.Errorf("nobody leads")
	}
	return *l.Spec.HolderIdentity, nil
}

// One Lease decides who leads, through whichever server it is written: where the leader's
// server hangs, the controller of the other one takes over, and the former ends with an error
// before it does anything more.
func TestTheLeadersServerHangs(t *testing.T) {
	ctx := stack.TestContext(t)
	ns := shared.TestNamespace(ctx, t, "several", v1alpha1.ModeEnforce)
	before, err := holder(ctx, t)
	must(t, err)
	leader := shared.Controllers()[0] // it was there first, and talks to B
	kube, a := kubeOf(t, serverA), clientOf(t, serverA)
	must(t, shared.Plane.Do(ctx, "pause kube-apiserver-2"))
	resumed := false
	defer func() {
		if !resumed {
			must(t, shared.Plane.Do(ctx, "resume kube-apiserver-2"))
		}
	}()
	began := time.Now()
	stack.Eventually(ctx, t, "the other one leads", func() error {
		now, err := holder(ctx, t)
		if err == nil && now == before {
			err = fmt.Errorf("%s leads still", now)
		}
		return err
	})
	took := time.Since(began)
	wait, cancel := context.WithTimeout(ctx, stack.Bound)
	defer cancel()
	code, err := leader.Wait(wait)
	if err != nil || code != app.ExitCore {
		t.Errorf("the former leader ended with %d, %v; its log ends with\n%s", code, err, leader.Tail(5))
	}
	// The new one works: an Anchor is bound. The replica of B is out of the traffic, as it is
	// in a cluster where it is not ready.
	shared.Detach(shared.Webhooks()[1])
	// That cuts connections, and a call that comes at that moment is lost: the policy's Ignore
	// has it stored as it is.
	tries := 0
	stack.Eventually(ctx, t, "server A calls the other replica", func() error {
		tries++
		first := token(ns, fmt.Sprintf("first-%d", tries))
		err := a.Create(ctx, first)
		if err == nil && len(first.OwnerReferences) == 0 {
			err = errors.New("stored without belay")
		}
		return err
	})
	s := token(ns, "led")
	must(t, a.Create(ctx, s))
	owner := job(ns, "led", "one", nil)
	must(t, a.Create(ctx, owner))
	stack.Eventually(ctx, t, "the Anchor is bound by the new leader", func() error {
		if len(s.OwnerReferences) != 1 || s.OwnerReferences[0].Kind != "Anchor" {
			t.Fatalf("owned by %+v", s.OwnerReferences)
		}
		anchor := &v1alpha1.Anchor{}
		if err := a.Get(ctx, client.ObjectKey{Namespace: ns, Name: s.OwnerReferences[0].Name}, anchor); err != nil {
			return err
		}
		if len(anchor.OwnerReferences) != 1 || anchor.OwnerReferences[0].UID != owner.UID {
			return fmt.Errorf("owned by %+v", anchor.OwnerReferences)
		}
		return nil
	})
	must(t, shared.Plane.Do(ctx, "resume kube-apiserver-2"))
	resumed = true
	stack.Eventually(ctx, t, "B answers", func() error { _, err := kubeOf(t, serverB).Discovery().ServerVersion(); return err })
	shared.Attach()
	if _, err := kube.Discovery().ServerVersion(); err != nil {
		t.Error(err)
	}
	_, err = shared.StartController(ctx) // in the place of the one that ended
	must(t, err)
	stack.Report(t, "several: the API server of the leader of belay-controller hung; the other controller led after %s (lease 4 s), the former ended with code %d", took.Round(100*time.Millisecond), code)
}

func kubeOf(t testing.TB, server int) kubernetes.Interface {
	t.Helper()
	k, err := kubernetes.NewForConfig(shared.Plane.ConfigOf(server))
	must(t, err)
	return k
}

const (
	// perSecond creates go on through A while B is killed and started again.
	perSecond = 50
	killed    = 6 * time.Second
)

// Fifty guarded creates a second go on through A while B is killed, and while it comes back.
// The webhooks reach the API servers by their front, as in a cluster by the Service
// kubernetes, so that each has connections to B, or has not. No create fails.
func TestOneServerIsKilled(t *testing.T) {
	ctx := stack.TestContext(t)
	labels := shared.TestNamePolicy(ctx, t, "several-killed", func(*v1alpha1.NamePolicySpec) {})
	ns := shared.TestNamespace(ctx, t, "several", v1alpha1.ModeEnforce)
	old := shared.Webhooks()
	for range 2 {
		_, err := shared.StartWebhook(ctx)
		must(t, err)
	}
	news := shared.Webhooks()[len(old):]
	shared.Detach(old...)
	defer func() {
		for _, p := range news {
			must(t, p.Stop())
		}
		shared.Attach()
	}()
	kube := kubeOf(t, serverA)
	phase := func(what string, during func()) []time.Duration {
		var mu sync.Mutex
		var took []time.Duration
		failures := map[string]int{}
		over := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			defer close(over)
			during()
		})
		tick := time.NewTicker(time.Second / perSecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-tick.C:
			case <-over:
				wg.Wait()
				for text, n := range failures {
					t.Errorf("%s: %d creates failed: %s", what, n, text)
				}
				return took
			}
			wg.Go(func() {
				began := time.Now()
				a := post(ctx, kube, job(ns, fmt.Sprintf("%s-%d", what, i), "one", labels))
				d := time.Since(began)
				mu.Lock()
				defer mu.Unlock()
				took = append(took, d)
				if a.code != http.StatusCreated {
					failures[fmt.Sprintf("%d %s %s", a.code, a.reason, a.text)]++
				}
			})
		}
	}
	pass := func(d time.Duration) func() {
		return func() {
			select {
			case <-time.After(d):
			case <-ctx.Done():
			}
		}
	}
	quiet := phase("quiet", pass(killed))
	down := phase("down", func() {
		must(t, shared.Plane.Do(ctx, "kill kube-apiserver-2"))
		pass(killed)()
	})
	back := phase("back", func() {
		must(t, shared.Plane.Do(ctx, "start kube-apiserver-2"))
	})
	for _, x := range []struct {
		what string
		took []time.Duration
	}{{"both are there", quiet}, {"B is killed", down}, {"B comes back", back}} {
		slices.Sort(x.took)
		n := len(x.took)
		if n < perSecond { // seconds of it
			t.Errorf("%s: only %d creates", x.what, n)
			continue
		}
		stack.Report(t, "several: %d guarded creates through A, 50 a second, while %s: p50 %s, p99 %s", n, x.what, x.took[n/2].Round(time.Millisecond), x.took[n*99/100].Round(time.Millisecond))
	}
}
