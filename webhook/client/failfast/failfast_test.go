package failfast_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/belay-dev/belay/webhook/client/failfast"
)

const (
	// patience bounds what a test waits for. It is met in milliseconds.
	patience = 30 * time.Second
	// bound is set where a test wants it to be hit. A good call takes a hundredth of
	// it on an idle machine.
	bound = 2 * time.Second
)

// TestMain runs more tests at once than there are processors: they wait for bounds
// more than they compute. -parallel has the last word.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	m.Run()
}

var protocols = map[string]bool{"HTTP/2": true, "HTTP/1.1": false}

// server is a real HTTPS server on loopback that knows its connections.
type server struct {
	*httptest.Server
	mu     sync.Mutex
	opened int
	open   map[net.Conn]bool
	change chan struct{} // closed and replaced at every change
}

func startServer(t *testing.T, http2 bool, handler http.HandlerFunc) *server {
	t.Helper()
	s := &server{Server: httptest.NewUnstartedServer(handler), open: map[net.Conn]bool{}, change: make(chan struct{})}
	s.EnableHTTP2 = http2
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // connections that tests break on purpose
	s.Config.ConnState = func(conn net.Conn, state http.ConnState) {
		s.mu.Lock()
		defer s.mu.Unlock()
		switch state {
		case http.StateNew:
			s.opened++
			s.open[conn] = true
		case http.StateClosed:
			delete(s.open, conn)
		}
		close(s.change)
		s.change = make(chan struct{})
	}
	s.StartTLS()
	t.Cleanup(func() {
		s.CloseClientConnections() // those that tests left hanging
		s.Close()
	})
	return s
}

func (s *server) config() *rest.Config { return s.at(s.URL) }

// at is the configuration of a client that reaches the server by another address.
func (s *server) at(url string) *rest.Config {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	return &rest.Config{Host: url, TLSClientConfig: rest.TLSClientConfig{CAData: ca}}
}

func (s *server) dialled() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened
}

func (s *server) wantDialled(t *testing.T, want int) {
	t.Helper()
	if got := s.dialled(); got != want {
		t.Errorf("dialled %d times, want %d", got, want)
	}
}

// waitOpen waits until that many connections are open.
func (s *server) waitOpen(t *testing.T, want int) {
	t.Helper()
	deadline := time.After(patience)
	for {
		s.mu.Lock()
		got, change := len(s.open), s.change
		s.mu.Unlock()
		if got == want {
			return
		}
		select {
		case <-change:
		case <-deadline:
			t.Fatalf("%d connections are open, want %d", got, want)
		}
	}
}

// network is a TCP relay whose connections can be frozen: they stay open and carry
// nothing, as those of a lost node do. Later ones work.
type network struct {
	url      string
	accepted atomic.Int32
	// swallowed has a value once a frozen connection was written to.
	swallowed chan struct{}
	mu        sync.Mutex
	frozen    *atomic.Bool // of the connections accepted since the last freeze
	conns     []net.Conn
}

func startNetwork(t *testing.T, target string) *network {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &network{url: "https://" + listener.Addr().String(), swallowed: make(chan struct{}, 1), frozen: &atomic.Bool{}}
	var running sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		n.mu.Lock()
		for _, conn := range n.conns {
			_ = conn.Close()
		}
		n.mu.Unlock()
		running.Wait()
	})
	relay := func(from, to net.Conn, frozen *atomic.Bool) {
		buf := make([]byte, 64<<10)
		for {
			count, err := from.Read(buf)
			if err != nil {
				_ = to.Close()
				return
			}
			if !frozen.Load() {
				_, _ = to.Write(buf[:count])
				continue
			}
			select {
			case n.swallowed <- struct{}{}:
			default:
			}
		}
	}
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			n.accepted.Add(1)
			n.mu.Lock()
			frozen := n.frozen
			n.conns = append(n.conns, client)
			n.mu.Unlock()
			upstream, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				continue
			}
			running.Go(func() { relay(upstream, client, frozen) })
			running.Go(func() { relay(client, upstream, frozen) })
		}
	})
	return n
}

func (n *network) freeze() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.frozen.Store(true)
	n.frozen = &atomic.Bool{}
}

func newClient(t *testing.T, cfg *rest.Config, options ...failfast.Option) *http.Client {
	t.Helper()
	_, c, err := failfast.Client(cfg, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// get makes a call and reads its answer to the end.
func get(ctx context.Context, c *http.Client, url string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

func mustGet(t *testing.T, c *http.Client, url string) {
	t.Helper()
	if _, err := get(t.Context(), c, url); err != nil {
		t.Fatal(err)
	}
}

func wantTimeout(t *testing.T, err error) {
	t.Helper()
	var netErr net.Error
	if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &netErr) || !netErr.Timeout() {
		t.Fatalf("got %v, want a deadline exceeded that is a time-out of the network, too", err)
	}
	if !strings.Contains(err.Error(), "no complete answer within") {
		t.Errorf("%q does not tell whose clock ran out", err)
	}
}

func hang(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // an HTTP/1 server notices a hang-up only after it
	<-r.Context().Done()
}

func nothing(http.ResponseWriter, *http.Request) {}

// A listener that takes connections and says nothing: each call loses one bound,
// which ends in spite of a handshake that does not, and the next one dials anew.
func TestSilentListener(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan net.Conn, 10)
	go func() {
		defer close(accepted)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		for conn := range accepted {
			_ = conn.Close()
		}
	})
	cfg := &rest.Config{Host: "https://" + listener.Addr().String(), TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	c := newClient(t, cfg, failfast.RequestTimeout(bound))
	for range 2 {
		start := time.Now()
		_, err := get(t.Context(), c, cfg.Host)
		wantTimeout(t, err)
		if took := time.Since(start); took > patience {
			t.Errorf("took %v", took)
		}
		select {
		case conn := <-accepted:
			defer conn.Close()
		case <-time.After(patience):
			t.Fatal("the call did not dial")
		}
	}
}

// The failure that this package is for, on the real thing: a connection whose peer
// is gone costs one bound, and not one a call.
func TestDeadPeerCostsOneBound(t *testing.T) {
	t.Parallel()
	for proto, http2 := range protocols {
		t.Run(proto, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, http2, nothing)
			n := startNetwork(t, s.Listener.Addr().String())
			c := newClient(t, s.at(n.url), failfast.RequestTimeout(bound))
			mustGet(t, c, n.url)
			n.freeze()
			var failed int
			for range 5 {
				if _, err := get(t.Context(), c, n.url); err != nil {
					wantTimeout(t, err)
					failed++
				}
			}
			if failed != 1 || n.accepted.Load() != 2 {
				t.Errorf("%d calls failed and %d connections were dialled, want 1 and 2", failed, n.accepted.Load())
			}
		})
	}
}

// What the same costs without this package: it is client-go that is compared with,
// and its answer to "why is this here".
func TestWithoutItEveryCallLosesItsTime(t *testing.T) {
	t.Parallel()
	s := startServer(t, true, nothing)
	n := startNetwork(t, s.Listener.Addr().String())
	cfg := s.at(n.url)
	cfg.Timeout = bound
	cfg.UserAgent = t.Name()
	c, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	mustGet(t, c, n.url)
	n.freeze()
	for range 3 {
		if _, err := get(t.Context(), c, n.url); err == nil {
			t.Fatal("client-go replaces dead connections by itself now: this package may have outlived its use")
		}
	}
}

// Calls that wait on the dead connection together fail together, within one bound,
// and do not take the new connection with them.
func TestManyCallsOnDeadPeer(t *testing.T) {
	t.Parallel()
	s := startServer(t, true, nothing)
	n := startNetwork(t, s.Listener.Addr().String())
	c := newClient(t, s.at(n.url), failfast.RequestTimeout(bound))
	mustGet(t, c, n.url)
	n.freeze()
	const calls = 50
	results := make(chan error, calls)
	for i := range calls {
		go func() {
			// Spread over half a bound, so that some are young when the first one fails.
			timer := time.NewTimer(time.Duration(i) * bound / (2 * calls))
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-t.Context().Done():
			}
			_, err := get(t.Context(), c, n.url)
			results <- err
		}()
	}
	failed := 0
	for range calls {
		if err := <-results; err != nil {
			failed++
			mustGet(t, c, n.url) // right after each failure: the new connection lives
		}
	}
	if failed != calls {
		t.Errorf("%d of %d calls failed: the connection was not dead", failed, calls)
	}
	if got := n.accepted.Load(); got != 2 {
		t.Errorf("%d connections were dialled, want the dead one and one more", got)
	}
}

// An HTTP/1.1 client has a pool of connections, and all of them are dead.
func TestDeadPoolCostsOneBound(t *testing.T) {
	t.Parallel()
	const pool = 5
	var waiting sync.WaitGroup
	waiting.Add(pool)
	s := startServer(t, false, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/together" { // so that each needs a connection of its own
			waiting.Done()
			waiting.Wait()
		}
	})
	n := startNetwork(t, s.Listener.Addr().String())
	c := newClient(t, s.at(n.url), failfast.RequestTimeout(2*bound))
	var calls sync.WaitGroup
	for range pool {
		calls.Go(func() {
			if _, err := get(t.Context(), c, n.url+"/together"); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	n.freeze()
	_, err := get(t.Context(), c, n.url)
	wantTimeout(t, err)
	mustGet(t, c, n.url)
	if got := n.accepted.Load(); got != pool+1 {
		t.Errorf("%d connections were dialled, want %d", got, pool+1)
	}
}

// A connection that was dialled while another one was silent has nothing to do with
// it.
func TestYoungerConnectionIsKept(t *testing.T) {
	t.Parallel()
	s := startServer(t, false, nothing) // HTTP/1.1, so that a busy connection is not shared
	n := startNetwork(t, s.Listener.Addr().String())
	c := newClient(t, s.at(n.url), failfast.RequestTimeout(bound))
	mustGet(t, c, n.url)
	n.freeze()
	silent := make(chan error, 1)
	go func() {
		_, err := get(t.Context(), c, n.url)
		silent <- err
	}()
	select {
	case <-n.swallowed:
	case <-time.After(patience):
		t.Fatal("nothing was sent on the silent connection")
	}
	mustGet(t, c, n.url)
	wantTimeout(t, <-silent)
	mustGet(t, c, n.url)
	if got := n.accepted.Load(); got != 2 {
		t.Errorf("%d connections were dialled, want the silent one and one beside it", got)
	}
}

// Callers with short contexts of their own, as leader election is one, would never
// see the bound. Together they notice that nothing comes.
func TestShortContextsOnDeadPeer(t *testing.T) {
	t.Parallel()
	s := startServer(t, true, nothing)
	n := startNetwork(t, s.Listener.Addr().String())
	c := newClient(t, s.at(n.url), failfast.RequestTimeout(2*bound))
	mustGet(t, c, n.url)
	n.freeze()
	start := time.Now()
	for failed := 0; ; failed++ {
		ctx, cancel := context.WithTimeout(t.Context(), bound/5)
		_, err := get(ctx, c, n.url)
		cancel()
		if err == nil {
			break
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v, want a deadline exceeded", err)
		}
		if failed == 0 && n.accepted.Load() != 1 {
			t.Error("one short context was enough to drop the connection")
		}
		if time.Since(start) > patience {
			t.Fatal("the dead connection is used for ever")
		}
	}
}

// The server took the request and says nothing more.
func TestSilentAnswer(t *testing.T) {
	t.Parallel()
	halfway := func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("half of it"))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
	for name, silent := range map[string]http.HandlerFunc{"before the answer": hang, "in its body": halfway} {
		for proto, http2 := range protocols {
			t.Run(name+" on "+proto, func(t *testing.T) {
				t.Parallel()
				var calls atomic.Int32
				s := startServer(t, http2, func(w http.ResponseWriter, r *http.Request) {
					if calls.Add(1) == 2 {
						silent(w, r)
					}
				})
				c := newClient(t, s.config(), failfast.RequestTimeout(bound))
				mustGet(t, c, s.URL)
				_, err := get(t.Context(), c, s.URL)
				wantTimeout(t, err)
				mustGet(t, c, s.URL)
				s.wantDialled(t, 2)
				s.waitOpen(t, 1) // the silent one is closed, not forgotten
			})
		}
	}
}

func TestKilledServer(t *testing.T) {
	t.Parallel()
	for proto, http2 := range protocols {
		t.Run(proto, func(t *testing.T) {
			t.Parallel()
			arrived := make(chan struct{}, 1)
			s := startServer(t, http2, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/killed" {
					arrived <- struct{}{}
					hang(w, r)
				}
			})
			c := newClient(t, s.config(), failfast.RequestTimeout(patience))
			result := make(chan error, 1)
			go func() {
				_, err := get(t.Context(), c, s.URL+"/killed")
				result <- err
			}()
			<-arrived
			s.CloseClientConnections()
			select {
			case err := <-result:
				if err == nil {
					t.Error("a call whose server was killed succeeded")
				}
				if errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v: the call waited for its bound", err)
				}
			case <-time.After(patience):
				t.Fatal("the call hangs")
			}
			mustGet(t, c, s.URL)
			s.wantDialled(t, 2)
		})
	}
}

// An answer keeps the connection, whatever it says; through client-go, as callers
// see it.
func TestAnswersKeepTheConnection(t *testing.T) {
	t.Parallel()
	for _, code := range []int{http.StatusOK, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusConflict, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable} {
		for proto, http2 := range protocols {
			t.Run(fmt.Sprintf("%d on %s", code, proto), func(t *testing.T) {
				t.Parallel()
				s := startServer(t, http2, func(w http.ResponseWriter, r *http.Request) {
					if !strings.HasPrefix(r.Proto, proto[:6]) {
						t.Errorf("spoke %s, want %s", r.Proto, proto)
					}
					w.Header().Set("Content-Type", "application/json")
					w.WriteHeader(code)
					if code == http.StatusOK {
						_, _ = w.Write([]byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}`))
						return
					}
					_, _ = fmt.Fprintf(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","code":%d,"message":"no"}`, code)
				})
				cfg, httpClient, err := failfast.Client(s.config())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(httpClient.CloseIdleConnections)
				clientset, err := kubernetes.NewForConfigAndClient(cfg, httpClient)
				if err != nil {
					t.Fatal(err)
				}
				for range 3 {
					_, err := clientset.CoreV1().Pods("default").Get(t.Context(), "a", metav1.GetOptions{})
					var status apierrors.APIStatus
					switch {
					case code == http.StatusOK && err != nil:
						t.Fatal(err)
					case code != http.StatusOK && (!errors.As(err, &status) || status.Status().Code != int32(code)):
						t.Fatalf("got %v, want code %d", err, code)
					}
				}
				s.wantDialled(t, 1)
			})
		}
	}
}

// A watch outlives the bound, and hears what comes after it.
func TestWatchIsNotBounded(t *testing.T) {
	t.Parallel()
	s := startServer(t, true, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-time.After(2 * bound):
		case <-r.Context().Done():
			return
		}
		_, _ = w.Write([]byte(`{"type":"ADDED","object":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"late"}}}` + "\n"))
		_ = http.NewResponseController(w).Flush()
		hang(w, r)
	})
	clientset, err := kubernetes.NewForConfig(failfast.Config(s.config(), failfast.RequestTimeout(bound)))
	if err != nil {
		t.Fatal(err)
	}
	w, err := clientset.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	select {
	case event, ok := <-w.ResultChan():
		if pod, isPod := event.Object.(*corev1.Pod); !ok || !isPod || pod.Name != "late" {
			t.Errorf("got %v, want the pod that came late", event)
		}
	case <-time.After(patience):
		t.Fatal("nothing came")
	}
}

func TestCallersContextKeepsTheConnection(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(context.Context) (context.Context, context.CancelFunc, error){
		"a deadline": func(ctx context.Context) (context.Context, context.CancelFunc, error) {
			ctx, cancel := context.WithTimeout(ctx, bound/5)
			return ctx, cancel, context.DeadlineExceeded
		},
		"a cancellation": func(ctx context.Context) (context.Context, context.CancelFunc, error) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(bound/5, cancel)
			return ctx, cancel, context.Canceled
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, true, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/hang" {
					hang(w, r)
				}
			})
			c := newClient(t, s.config(), failfast.RequestTimeout(patience))
			mustGet(t, c, s.URL)
			ctx, cancel, want := end(t.Context())
			defer cancel()
			if _, err := get(ctx, c, s.URL+"/hang"); !errors.Is(err, want) {
				t.Fatalf("got %v, want %v", err, want)
			}
			mustGet(t, c, s.URL)
			s.wantDialled(t, 1)
		})
	}
}

// A slow call among others that are answered is slow by itself: a drop would break
// off the watch beside it.
func TestSlowCallKeepsTheConnection(t *testing.T) {
	t.Parallel()
	s := startServer(t, true, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/quick" {
			_ = http.NewResponseController(w).Flush()
			hang(w, r)
		}
	})
	c := newClient(t, s.config(), failfast.RequestTimeout(2*bound))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/pods?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	watch, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Body.Close()
	watched := make(chan error, 1)
	go func() {
		_, err := watch.Body.Read(make([]byte, 1))
		watched <- err
	}()
	slow := make(chan error, 1)
	go func() {
		_, err := get(t.Context(), c, s.URL+"/slow")
		slow <- err
	}()
	for done := false; !done; {
		select {
		case err := <-slow:
			wantTimeout(t, err)
			done = true
		default:
			mustGet(t, c, s.URL+"/quick")
		}
	}
	mustGet(t, c, s.URL+"/quick")
	select {
	case err := <-watched:
		t.Errorf("the watch was broken off: %v", err)
	default:
	}
	s.wantDialled(t, 1)
}

// A body that is closed early, or read to its end, settles its call: what is idle
// after that owes nothing, however long it is silent.
func TestIdleConnectionIsKept(t *testing.T) {
	t.Parallel()
	s := startServer(t, true, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			hang(w, r)
		}
		_, _ = w.Write([]byte("some"))
	})
	c := newClient(t, s.config(), failfast.RequestTimeout(2*bound))
	mustGet(t, c, s.URL)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	unread, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = unread.Body.Close()
	idle := time.NewTimer(bound + bound/2)
	defer idle.Stop()
	<-idle.C
	ctx, cancel := context.WithTimeout(t.Context(), bound/5)
	defer cancel()
	if _, err := get(ctx, c, s.URL+"/hang"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want a deadline exceeded", err)
	}
	mustGet(t, c, s.URL)
	s.wantDialled(t, 1)
}

func TestConnectIsBounded(t *testing.T) {
	t.Parallel()
	cfg := &rest.Config{Host: "https://192.0.2.1", TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	cfg.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done() // a packet filter that drops, whatever the network of the test does
		return nil, ctx.Err()
	}
	c := newClient(t, cfg, failfast.ConnectTimeout(bound), failfast.RequestTimeout(2*patience))
	start := time.Now()
	if _, err := get(t.Context(), c, cfg.Host); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want a deadline exceeded", err)
	}
	if took := time.Since(start); took > patience {
		t.Errorf("took %v: the call's bound ended it, not that of connecting", took)
	}
}

// What a configuration brings along is still used, and stays the caller's.
func TestConfigIsKept(t *testing.T) {
	t.Parallel()
	s := startServer(t, true, func(_ http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Wrapped"); got != "yes" {
			t.Errorf("the header of the caller's transport is %q", got)
		}
	})
	var dials atomic.Int32
	cfg := s.config()
	cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		dials.Add(1)
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		return roundTripFunc(func(req *http.Request) (*http.Response, error) {
			req = req.Clone(req.Context())
			req.Header.Set("Wrapped", "yes")
			return rt.RoundTrip(req)
		})
	})
	mustGet(t, newClient(t, cfg), s.URL)
	if dials.Load() != 1 {
		t.Errorf("the caller's dialer was used %d times, want once", dials.Load())
	}
	plain := s.config()
	if failfast.Config(plain); plain.Dial != nil || plain.WrapTransport != nil {
		t.Error("the caller's configuration was changed")
	}
}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// One http.Client is one connection; clients made from the configuration alone have
// one each.
func TestSharing(t *testing.T) {
	t.Parallel()
	pods := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"apiVersion":"v1","kind":"PodList","items":[]}`))
	}
	for name, tc := range map[string]struct {
		make func(*rest.Config, *http.Client) (*kubernetes.Clientset, error)
		want int
	}{
		"clients of one http.Client share its connection": {make: kubernetes.NewForConfigAndClient, want: 1},
		"clients of the configuration have one each": {make: func(cfg *rest.Config, _ *http.Client) (*kubernetes.Clientset, error) {
			return kubernetes.NewForConfig(cfg)
		}, want: 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, true, pods)
			cfg, httpClient, err := failfast.Client(s.config())
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				clientset, err := tc.make(cfg, httpClient)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := clientset.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			s.wantDialled(t, tc.want)
		})
	}
}

// With certificates in files, client-go wraps the dialer once more and hides the
// connection, which is then known by its addresses.
func TestDeadPeerBehindCertificateRotation(t *testing.T) {
	t.Parallel()
	s := startServer(t, true, nothing)
	n := startNetwork(t, s.Listener.Addr().String())
	cfg := s.at(n.url)
	cfg.CertFile, cfg.KeyFile = writeCertificate(t)
	c := newClient(t, cfg, failfast.RequestTimeout(bound))
	mustGet(t, c, n.url)
	n.freeze()
	_, err := get(t.Context(), c, n.url)
	wantTimeout(t, err)
	mustGet(t, c, n.url)
	if got := n.accepted.Load(); got != 2 {
		t.Errorf("%d connections were dialled, want 2", got)
	}
}

func writeCertificate(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "client"}, NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(t.TempDir(), "tls.crt"), filepath.Join(t.TempDir(), "tls.key")
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: cert}, keyFile: {Type: "PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

func TestClientNeedsATransport(t *testing.T) {
	t.Parallel()
	cfg := &rest.Config{Host: "https://127.0.0.1", TLSClientConfig: rest.TLSClientConfig{CAFile: "/not/there"}}
	if _, _, err := failfast.Client(cfg); err == nil {
		t.Error("a client was made without the certificates that it is to trust")
	}
}
