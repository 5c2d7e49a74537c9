package rotated

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// endpoints keeps a service's backends: as in a cluster, a replica that is not ready goes some
// time after it says so.
type endpoints struct {
	admission, reports *service

	mu       sync.Mutex
	replicas map[*stack.Process]bool
}

// follow takes replicas in and out as they say, so late, until the context ends.
func (e *endpoints) follow(ctx context.Context, late time.Duration) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	since := map[*stack.Process]time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		e.mu.Lock()
		var admission, reports []string
		for p := range e.replicas {
			if code, _, err := get(ctx, p, "/readyz"); err == nil && code == http.StatusOK {
				since[p] = time.Now()
			}
			if time.Since(since[p]) < late {
				admission = append(admission, fmt.Sprintf("127.0.0.1:%d", p.Port))
				reports = append(reports, fmt.Sprintf("127.0.0.1:%d", p.CollectorPort))
			}
		}
		e.mu.Unlock()
		e.admission.ready(admission...)
		e.reports.ready(reports...)
	}
}

func (e *endpoints) add(p *stack.Process) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.replicas[p] = true
}

// TestP18_ARollOut: replicas are replaced one after the other, as a Deployment does it with
// maxUnavailable 0, while Services hear of it three seconds late.
func TestP18_ARollOut(t *testing.T) {
	t.Parallel()
	for name, http2 := range map[string]bool{"HTTP/2, over which the API server has one connection": true, "HTTP/1.1": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := stack.TestContext(t)
			e := &endpoints{replicas: map[*stack.Process]bool{}}
			for _, s := range []**service{&e.admission, &e.reports} {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				must(t, err)
				*s = newService(l)
				t.Cleanup((*s).close)
			}
			s := start(ctx, t, stack.Options{
				Presets: []string{"otf"}, Webhooks: -1, WebhookFlags: []string{fmt.Sprintf("--http2=%t", http2), "--drain=8s"},
				ControllerFlags: []string{"--webhook-url=https://localhost:" + port(t, e.admission)},
			})
			following, stop := context.WithCancel(ctx)
			var loop sync.WaitGroup
			loop.Go(func() { e.follow(following, 3*time.Second) })
			t.Cleanup(func() { stop(); loop.Wait() })
			launch := func() *stack.Process {
				p, err := s.LaunchWebhook(ctx)
				must(t, err)
				e.add(p)
				answers(ctx, t, p, "/readyz", http.StatusOK, "")
				t.Cleanup(func() { _ = p.Stop() })
				return p
			}
			old := []*stack.Process{launch(), launch()}
			must(t, install(ctx, s, true))
			ns := s.TestNamespace(ctx, t, "rollout", v1alpha1.ModeEnforce)
			l := begin(ctx, t, s, ns, 50)
			for i, p := range old {
				launch()
				must(t, p.Signal(syscall.SIGTERM))
				signalled := time.Now()
				answers(ctx, t, p, "/readyz", http.StatusInternalServerError, "[-]draining failed")
				if i == 0 {
					drains(t, p, http2)
				}
				code, err := p.Wait(ctx)
				must(t, err)
				took := time.Since(signalled)
				if code != 0 || took < 8*time.Second || took > 28*time.Second {
					t.Errorf("%s ended with %d after %s:\n%s", p.Name, code, took, p.Tail(20))
				}
			}
			l.lost(t, fmt.Sprintf("a roll-out of two replicas, HTTP/2 %t", http2))
		})
	}
}

func port(t testing.TB, s *service) string {
	t.Helper()
	_, p, err := net.SplitHostPort(s.listener.Addr().String())
	must(t, err)
	return p
}

// drains looks at a replica that drains: it answers new connections on both ports for more than
// five seconds, and has callers over HTTP/1.1 close theirs.
func drains(t testing.TB, p *stack.Process, http2 bool) {
	t.Helper()
	for until := time.Now().Add(5 * time.Second); time.Now().Before(until); {
		for _, port := range []int{p.Port, p.CollectorPort} {
			proto, closes, err := called(port)
			if err != nil {
				t.Fatalf("%s does not answer while it drains: %v", p.Name, err)
			}
			if proto == 1 && !closes {
				t.Errorf("%s: port %d leaves a connection open", p.Name, port)
			}
			if want := map[bool]int{true: 2, false: 1}[http2 && port == p.Port]; proto != want {
				t.Errorf("port %d speaks HTTP/%d", port, proto)
			}
		}
		<-time.After(200 * time.Millisecond)
	}
}

// called makes a call over a connection of its own.
func called(port int) (proto int, closes bool, err error) {
	tr := insecure()
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr, Timeout: 5 * time.Second}).Get(fmt.Sprintf("https://127.0.0.1:%d/mutate/owner", port))
	if err != nil {
		return 0, false, err
	}
	defer func() { _ = resp.Body.Close() }()
	return resp.ProtoMajor, resp.Close, nil
}
