package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/facts"
)

// managed is a manager that does as a test says.
type managed struct {
	manager.Manager
	start func(context.Context) error
}

func (m managed) Start(ctx context.Context) error { return m.start(ctx) }

func hears(ctx context.Context) error { <-ctx.Done(); return nil }

// freeAddress is one of the loopback interface that is free now.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// runs runs a core with a loop beside its manager, and returns how it ended.
func runs(t *testing.T, c *core, caches *gate, mgr, loop func(context.Context) error) error {
	t.Helper()
	c.Go("collector", loop)
	ended := make(chan error, 1)
	go func() { ended <- c.run("x", "0", nil, managed{start: mgr}, caches) }()
	select {
	case err := <-ended:
		return err
	case <-time.After(30 * time.Second):
		t.Fatal("it runs on")
		return nil
	}
}

func TestHowACoreEnds(t *testing.T) {
	t.Parallel()
	open := &gate{}
	open.synced.Store(true)
	broken := errors.New("broken")
	// As a manager that waits for its caches.
	deaf := func(context.Context) error { select {} }
	for name, c := range map[string]struct {
		caches    *gate
		mgr, loop func(context.Context) error
		signal    bool
		want      string
	}{
		"a signal":                              {open, hears, hears, true, ""},
		"a signal before the caches are synced": {&gate{}, deaf, hears, true, ""},
		"P16: the manager fails":                {open, func(context.Context) error { return errors.New("leader election lost") }, hears, false, "x stopped: manager: leader election lost"},
		"the manager ends by itself":            {open, func(context.Context) error { return nil }, hears, false, "x stopped: manager: it stopped by itself"},
		"another loop fails":                    {open, hears, func(context.Context) error { return broken }, false, "x stopped: collector: broken"},
		"another loop ends by itself":           {open, hears, func(context.Context) error { return nil }, false, "x stopped: collector: it stopped by itself"},
		"another loop fails before the caches are synced, and the manager does not hear it": {&gate{}, deaf, func(context.Context) error { return broken }, false, "x stopped: collector: broken"},
		"another loop panics": {open, hears, func(context.Context) error { panic("no map") }, false, "x stopped: collector: panic: no map\n"},
		"no gate":             {nil, hears, func(context.Context) error { return broken }, false, "x stopped: collector: broken"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			signal, send := context.WithCancel(t.Context())
			defer send()
			if c.signal {
				send()
			}
			err := runs(t, newCore(signal, logr.Discard(), 0), c.caches, c.mgr, c.loop)
			if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
				t.Error(err)
			}
		})
	}
}

// TestADrain: until it is over everything runs, and the process says that it is about to stop.
func TestADrain(t *testing.T) {
	t.Parallel()
	signal, send := context.WithCancel(t.Context())
	c := newCore(signal, logr.Discard(), time.Second)
	if err := c.draining(nil); err != nil {
		t.Errorf("before: %v", err)
	}
	var drained time.Time
	begun := time.Now()
	send()
	err := runs(t, c, nil, hears, func(ctx context.Context) error {
		<-ctx.Done()
		drained = time.Now()
		return nil
	})
	if err != nil || drained.Sub(begun) < time.Second {
		t.Errorf("%v after %s", err, drained.Sub(begun))
	}
	if err := c.draining(nil); err == nil {
		t.Error("it does not say so")
	}
}

// TestADrainOfAReplicaThatIsStillCalled: whoever calls has not heard of the end yet. It goes on
// for as long again, and not when nobody has called for a while.
func TestADrainOfAReplicaThatIsStillCalled(t *testing.T) {
	t.Parallel()
	const drain = forgotten + time.Second
	for name, called := range map[string]bool{"it is called until the end": true, "it is called in the beginning": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			signal, send := context.WithCancel(t.Context())
			c := newCore(signal, logr.Discard(), drain)
			reviews := c.calls(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
			call := func() {
				w := httptest.NewRecorder()
				reviews.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody))
				if w.Code != http.StatusNoContent {
					t.Errorf("answered %d", w.Code)
				}
			}
			begun := time.Now()
			send()
			call()
			err := runs(t, c, nil, hears, func(ctx context.Context) error {
				for called {
					select {
					case <-ctx.Done():
						return nil
					case <-time.After(100 * time.Millisecond):
						call()
					}
				}
				<-ctx.Done()
				return nil
			})
			took := time.Since(begun)
			if err != nil || took < drain || (took >= 2*drain) != called {
				t.Errorf("%v after %s", err, took)
			}
		})
	}
}

// TestCallersAreSentElsewhere: over HTTP/1.1 with the answer from the signal on, over HTTP/2 in
// the second half of the drain, which ends the connection and none of its calls.
func TestCallersAreSentElsewhere(t *testing.T) {
	t.Parallel()
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			signal, send := context.WithCancel(t.Context())
			defer send()
			c := newCore(signal, logr.Discard(), 2*time.Second)
			server := httptest.NewUnstartedServer(c.closing(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })))
			server.EnableHTTP2 = http2
			var made atomic.Int32
			server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
				if s == http.StateNew {
					made.Add(1)
				}
			}
			server.StartTLS()
			defer server.Close()
			call := func() {
				t.Helper()
				resp, err := server.Client().Get(server.URL)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = resp.Body.Close() }()
				if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "ok" || resp.ProtoMajor == 2 != http2 {
					t.Errorf("%s %q %v", resp.Proto, body, err)
				}
			}
			for range 3 {
				call()
			}
			if made.Load() != 1 {
				t.Errorf("%d connections before", made.Load())
			}
			send()
			for !c.drains.Load() {
				<-time.After(time.Millisecond)
			}
			for range 3 {
				call()
			}
			// The first one is the connection that was there.
			if want := map[bool]int32{true: 1, false: 3}[http2]; made.Load() != want {
				t.Errorf("%d connections in the first half, want %d", made.Load(), want)
			}
			for !c.leaves.Load() {
				<-time.After(time.Millisecond)
			}
			before := made.Load()
			for begun := time.Now(); made.Load() == before && time.Since(begun) < 5*time.Second; {
				call()
			}
			if made.Load() == before {
				t.Error("the connection is kept in the second half")
			}
		})
	}
}

// TestADrainThatIsCutShort: what has failed is not waited for.
func TestADrainThatIsCutShort(t *testing.T) {
	t.Parallel()
	signal, send := context.WithCancel(t.Context())
	c := newCore(signal, logr.Discard(), time.Hour)
	send()
	err := runs(t, c, nil, hears, func(context.Context) error { return errors.New("broken") })
	if err == nil || err.Error() != "x stopped: collector: broken" {
		t.Error(err)
	}
}

func TestProbesAnswerUntilTheLoopsHaveEnded(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	ask := func(path string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, http.NoBody)
		if err != nil {
			return 0, err.Error()
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err.Error()
		}
		defer func() { _ = resp.Body.Close() }()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	signal, send := context.WithCancel(t.Context())
	c := newCore(signal, logr.Discard(), 0)
	started, asked, last := make(chan struct{}), make(chan struct{}), make(chan struct{})
	ended := make(chan error, 1)
	ready := map[string]healthz.Checker{"live": c.Live, "draining": c.draining}
	c.Go("collector", hears)
	go func() {
		ended <- c.run("x", address, ready, managed{start: func(ctx context.Context) error {
			close(started)
			<-ctx.Done()
			close(asked)
			<-last
			return nil
		}}, nil)
	}()
	<-started
	if code, body := ask("/readyz?verbose"); code != http.StatusOK || !strings.Contains(body, "[+]draining ok\n[+]live ok") {
		t.Errorf("%d %s", code, body)
	}
	send()
	<-asked
	if code, body := ask("/readyz/draining"); code != http.StatusInternalServerError || !strings.Contains(body, "the process is about to stop") {
		t.Errorf("at the end: %d %s", code, body)
	}
	close(last)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if l, err := net.Listen("tcp", address); err != nil {
		t.Errorf("the probes' port is still taken: %v", err)
	} else {
		_ = l.Close()
	}
}

func TestProbesThatCannotBeListenedFor(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	c := newCore(t.Context(), logr.Discard(), 0)
	err = c.run("x", l.Addr().String(), nil, managed{start: hears}, nil)
	if err == nil || !strings.HasPrefix(err.Error(), "listening for probes: ") {
		t.Error(err)
	}
}

// away is an API server that does not answer.
type away struct {
	meta.RESTMapper
	err   error
	asked int
}

func (a *away) RESTMapping(schema.GroupKind, ...string) (*meta.RESTMapping, error) {
	a.asked++
	return nil, a.err
}

func TestWhatIsWatchedFromTheStartIsKnownWithoutTheAPIServer(t *testing.T) {
	t.Parallel()
	refused := fmt.Errorf("failed to get server groups: %w", errors.New("connection refused"))
	server := &away{err: refused}
	m := newKnowingMapper(server)
	for kind, want := range map[schema.GroupVersionKind]string{
		v1alpha1.GroupVersion.WithKind("OwnerPolicy"):    "ownerpolicies",
		v1alpha1.GroupVersion.WithKind("NamePolicy"):     "namepolicies",
		v1alpha1.GroupVersion.WithKind("RecoveryPolicy"): "recoverypolicies",
		v1alpha1.GroupVersion.WithKind("Anchor"):         "anchors",
		facts.NamespaceKind:                              "namespaces",
	} {
		scope := meta.RESTScopeNameRoot
		if kind.Kind == "Anchor" {
			scope = meta.RESTScopeNameNamespace
		}
		got, err := m.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil || got.Resource != kind.GroupVersion().WithResource(want) || got.Scope.Name() != scope {
			t.Errorf("%s: %+v %v", kind, got, err)
		}
	}
	if server.asked != 1 {
		t.Errorf("it was asked %d times, and each may take a time-out", server.asked)
	}
	job := schema.GroupVersionKind{Group: "batch", Version: "v1", Kind: "Job"}
	if _, err := m.RESTMapping(job.GroupKind(), job.Version); !errors.Is(err, refused) {
		t.Errorf("of others it is told that it could not be asked: %v", err)
	}
	// An API server that answers has the say.
	old := newKnowingMapper(&away{err: &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "belay.dev", Kind: "RecoveryPolicy"}}})
	if _, err := old.RESTMapping(schema.GroupKind{Group: "belay.dev", Kind: "RecoveryPolicy"}, "v1alpha1"); !meta.IsNoMatchError(err) {
		t.Errorf("%v", err)
	}
}
