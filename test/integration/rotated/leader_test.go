package rotated

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/app"
)

func insecure() *http.Transport {
	return &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
}

// leads is in the log of the process that leads: it alone runs controllers.
const leads = "Starting workers"

func leaseOf(ctx context.Context, s *stack.Stack) (*coordinationv1.Lease, error) {
	return s.Kube.CoordinationV1().Leases(stack.Namespace).Get(ctx, "belay-controller", metav1.GetOptions{})
}

// TestP16_ALeaderThatLosesItsLease ends with code 70 within the time that it may go on for, and
// says why. The stack's leases are renewed within 3 s, and waited for 4 s.
func TestP16_ALeaderThatLosesItsLease(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	s := start(ctx, t, stack.Options{Webhooks: -1, Controllers: 1, FaultyController: true})
	for name, take := range map[string]func() (undo func()){
		"another one has it": func() func() {
			stack.Eventually(ctx, t, "the lease is another's", func() error {
				l, err := leaseOf(ctx, s)
				if err != nil {
					return err
				}
				who, now := "somebody else", metav1.NowMicro()
				l.Spec.HolderIdentity, l.Spec.RenewTime, l.Spec.AcquireTime = &who, &now, &now
				_, err = s.Kube.CoordinationV1().Leases(stack.Namespace).Update(ctx, l, metav1.UpdateOptions{})
				return err
			})
			return func() {
				_ = s.Kube.CoordinationV1().Leases(stack.Namespace).Delete(ctx, "belay-controller", metav1.DeleteOptions{})
			}
		},
		"the API server does not answer": func() func() {
			s.ControllerFaults.Set(func(*http.Request) *stack.Fault { return &stack.Fault{Delay: time.Minute} })
			return func() { s.ControllerFaults.Set(nil) }
		},
		"the API server has errors": func() func() {
			s.ControllerFaults.Set(func(*http.Request) *stack.Fault { return &stack.Fault{Status: http.StatusServiceUnavailable} })
			return func() { s.ControllerFaults.Set(nil) }
		},
	} {
		all := s.Controllers()
		p := all[len(all)-1]
		stack.Eventually(ctx, t, "it leads", func() error {
			if !strings.Contains(p.Tail(4000), leads) {
				return errors.New("it does not")
			}
			return nil
		})
		undo := take()
		began := time.Now()
		code, err := p.Wait(ctx)
		must(t, err)
		took := time.Since(began)
		// 3 s to renew, one call that is under way, and the end of the loops.
		if code != app.ExitCore || took > 20*time.Second {
			t.Errorf("%s: it ended with %d after %s:\n%s", name, code, took, p.Tail(20))
		}
		// Workers that end at the same time may have the last word.
		if last := p.Tail(100); !strings.Contains(last, "belay-controller: belay-controller stopped: manager: leader election lost") {
			t.Errorf("%s: it does not say why: %s", name, last)
		}
		stack.Report(t, "leader, %s: exit code %d after %s", name, code, took.Round(100*time.Millisecond))
		undo()
		_, err = s.StartController(ctx)
		must(t, err)
	}
}

// TestP17_AStandbyThatIsStopped writes no lease.
func TestP17_AStandbyThatIsStopped(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	s := start(ctx, t, stack.Options{Webhooks: -1, Controllers: 2})
	var leader string
	stack.Eventually(ctx, t, "one leads", func() error {
		l, err := leaseOf(ctx, s)
		if err != nil || l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" {
			return errors.Join(err, errors.New("none does"))
		}
		leader = *l.Spec.HolderIdentity
		return nil
	})
	// Only the one that leads runs controllers, and says so.
	var standby *stack.Process
	stack.Eventually(ctx, t, "one does not lead", func() error {
		standby = nil
		leading := 0
		for _, p := range s.Controllers() {
			if strings.Contains(p.Tail(4000), leads) {
				leading++
			} else {
				standby = p
			}
		}
		if leading != 1 {
			return fmt.Errorf("%d lead", leading)
		}
		return nil
	})
	before, err := leaseOf(ctx, s)
	must(t, err)
	w, err := s.Kube.CoordinationV1().Leases(stack.Namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=belay-controller", ResourceVersion: before.ResourceVersion})
	must(t, err)
	var mu sync.Mutex
	var seen []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			if l, ok := e.Object.(*coordinationv1.Lease); ok {
				mu.Lock()
				seen = append(seen, fmt.Sprintf("%s %s, %d transitions", e.Type, ptr.Deref(l.Spec.HolderIdentity, "nobody"), ptr.Deref(l.Spec.LeaseTransitions, -1)))
				mu.Unlock()
			}
		}
	}()
	began := time.Now()
	must(t, standby.Signal(syscall.SIGTERM))
	code, err := standby.Wait(ctx)
	must(t, err)
	if code != 0 {
		t.Errorf("it ended with %d:\n%s", code, standby.Tail(20))
	}
	took := time.Since(began)
	// The leader renews a few times more.
	stack.Eventually(ctx, t, "the leader renews", func() error {
		mu.Lock()
		defer mu.Unlock()
		if len(seen) < 4 {
			return errors.New("not yet")
		}
		return nil
	})
	w.Stop()
	<-done
	want := fmt.Sprintf("MODIFIED %s, %d transitions", leader, *before.Spec.LeaseTransitions)
	for _, got := range seen {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	stack.Report(t, "a standby ended %s after SIGTERM; %d writes of the lease, all by its leader", took.Round(10*time.Millisecond), len(seen))
}
