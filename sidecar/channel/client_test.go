package channel_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/belay-dev/belay/sidecar/channel"
)

// patience bounds what a test waits for. It is met in milliseconds.
const patience = 20 * time.Second

// short is the bound that tests set where they want one to be hit. A good call
// takes a hundredth of it.
const short = time.Second

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
	s := newServer(http2, handler)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// newServer listens on loopback, and does not answer yet.
func newServer(http2 bool, handler http.HandlerFunc) *server {
	s := &server{Server: httptest.NewUnstartedServer(handler), open: map[net.Conn]bool{}, change: make(chan struct{})}
	s.EnableHTTP2 = http2
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes that tests break on purpose
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
	return s
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

func (s *server) dialled() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened
}

func (s *server) trust() func() (*tls.Config, error) { return trust(s.Certificate(), "") }

// certified is a name in the certificate of every test server. It is for those
// that are reached by an address that the certificate does not have.
const certified = "example.com"

func trust(cert *x509.Certificate, name string) func() (*tls.Config, error) {
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	return func() (*tls.Config, error) {
		return &tls.Config{RootCAs: roots, ServerName: name, MinVersion: tls.VersionTLS13}, nil
	}
}

func newClient(t *testing.T, cfg channel.Config) *channel.Client {
	t.Helper()
	c, err := channel.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func post(t *testing.T, c *channel.Client, url string) (channel.Answer, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader([]byte("hello")))
	if err != nil {
		t.Fatal(err)
	}
	return c.Do(req)
}

func mustPost(t *testing.T, c *channel.Client, url string) channel.Answer {
	t.Helper()
	answer, err := post(t, c, url)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

func TestNewNeedsTLS(t *testing.T) {
	t.Parallel()
	if _, err := channel.New(channel.Config{}); err == nil {
		t.Error("a client without TLS settings was made")
	}
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		status int
		dials  int // that two calls take
	}{
		"success keeps the connection":                       {status: 200, dials: 1},
		"a redirect is an answer and is not followed":        {status: 307, dials: 1},
		"unauthorized keeps the connection":                  {status: 401, dials: 1},
		"forbidden keeps the connection":                     {status: 403, dials: 1},
		"not found keeps the connection":                     {status: 404, dials: 1},
		"too many requests keeps the connection":             {status: 429, dials: 1},
		"an internal error keeps the connection":             {status: 500, dials: 1},
		"bad gateway lets the next call try elsewhere":       {status: 502, dials: 2},
		"a draining replica lets the next call go elsewhere": {status: 503, dials: 2},
		"gateway time-out lets the next call try elsewhere":  {status: 504, dials: 2},
	}
	for name, tc := range tests {
		for proto, http2 := range map[string]bool{"HTTP/2": true, "HTTP/1.1": false} {
			t.Run(name+" on "+proto, func(t *testing.T) {
				t.Parallel()
				s := startServer(t, http2, func(w http.ResponseWriter, r *http.Request) {
					if r.Proto[:6] != proto[:6] {
						t.Errorf("spoke %s, want %s", r.Proto, proto)
					}
					body, _ := io.ReadAll(r.Body)
					w.Header().Set("Location", "/elsewhere")
					w.WriteHeader(tc.status)
					_, _ = w.Write(append(body, " back"...))
				})
				c := newClient(t, channel.Config{TLS: s.trust()})
				for range 2 {
					answer := mustPost(t, c, s.URL+"/report")
					if answer.Status != tc.status || string(answer.Body) != "hello back" {
						t.Errorf("got %d %q, want %d %q", answer.Status, answer.Body, tc.status, "hello back")
					}
				}
				if got := s.dialled(); got != tc.dials {
					t.Errorf("two calls dialled %d times, want %d", got, tc.dials)
				}
				s.waitOpen(t, 2-tc.dials) // a dropped connection is closed, not forgotten
				c.Close()
				s.waitOpen(t, 0)
				if _, err := post(t, c, s.URL); !errors.Is(err, channel.ErrClosed) {
					t.Errorf("a call on a closed client gave %v, want ErrClosed", err)
				}
			})
		}
	}
}

// The failure that this package is for: the peer took the connection and says
// nothing more. One call may lose its time on it, the next one must not.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	for proto, http2 := range map[string]bool{"HTTP/2": true, "HTTP/1.1": false} {
		t.Run(proto, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			s := startServer(t, http2, func(w http.ResponseWriter, r *http.Request) {
				if calls.Add(1) == 2 {
					_, _ = io.Copy(io.Discard, r.Body) // an HTTP/1 server notices a hang-up only after it
					<-r.Context().Done()
				}
			})
			c := newClient(t, channel.Config{TLS: s.trust(), RequestTimeout: short})
			mustPost(t, c, s.URL)
			if _, err := post(t, c, s.URL); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("the silent call gave %v, want a deadline exceeded", err)
			}
			mustPost(t, c, s.URL)
			if got := s.dialled(); got != 2 {
				t.Errorf("dialled %d times, want a new connection after the silent one", got)
			}
			s.waitOpen(t, 1)
		})
	}
}

func TestAnswerBreaksOff(t *testing.T) {
	t.Parallel()
	tests := map[string]http.HandlerFunc{
		"in its body": func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte("half of it"))
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		},
		"at a bound, being too long": func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write(make([]byte, 2000))
		},
	}
	for name, broken := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			s := startServer(t, true, func(w http.ResponseWriter, r *http.Request) {
				if calls.Add(1) == 1 {
					broken(w, r)
				}
			})
			c := newClient(t, channel.Config{TLS: s.trust(), RequestTimeout: short, MaxAnswerBytes: 1999})
			if answer, err := post(t, c, s.URL); err == nil {
				t.Fatalf("a broken answer was taken for %d with %d bytes", answer.Status, len(answer.Body))
			}
			mustPost(t, c, s.URL)
			if got := s.dialled(); got != 2 {
				t.Errorf("dialled %d times, want 2", got)
			}
		})
	}
}

// An idle connection whose peer vanished is found by its pings, so that not
// even one call has to lose its time on it.
func TestPingsFindDeadConnection(t *testing.T) {
	t.Parallel()
	s := startServer(t, true, func(http.ResponseWriter, *http.Request) {})
	network := startNetwork(t, s.Listener.Addr().String())
	c := newClient(t, channel.Config{
		TLS:            s.trust(),
		RequestTimeout: patience,
		PingAfter:      50 * time.Millisecond,
		PingTimeout:    short,
	})
	mustPost(t, c, network.url)
	network.cut()
	select {
	case <-network.hungUp:
	case <-time.After(patience):
		t.Fatal("the client kept a connection that answers no ping")
	}
	network.heal()
	mustPost(t, c, network.url)
	if got := s.dialled(); got != 2 {
		t.Errorf("dialled %d times, want 2", got)
	}
}

// closeWithTest keeps a test that failed from waiting for a client to hang up.
func closeWithTest(t *testing.T, conn net.Conn) {
	context.AfterFunc(t.Context(), func() { _ = conn.Close() })
}

// network is a TCP relay that can stop to carry bytes without closing anything,
// as a network does, and can lead new connections elsewhere, as a Service does.
type network struct {
	url    string
	target atomic.Pointer[string]
	silent atomic.Bool
	dials  atomic.Int32
	hungUp chan struct{} // gets a value each time the client closes a connection
}

func (n *network) cut()               { n.silent.Store(true) }
func (n *network) heal()              { n.silent.Store(false) }
func (n *network) lead(target string) { n.target.Store(&target) }

func startNetwork(t *testing.T, target string) *network {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &network{url: "https://" + listener.Addr().String(), hungUp: make(chan struct{}, 10)}
	n.lead(target)
	var running sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		running.Wait()
	})
	relay := func(from, to net.Conn) {
		buf := make([]byte, 4096)
		for {
			count, err := from.Read(buf)
			if err != nil {
				_ = to.Close()
				return
			}
			if !n.silent.Load() {
				_, _ = to.Write(buf[:count])
			}
		}
	}
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			closeWithTest(t, client)
			n.dials.Add(1)
			upstream, err := net.Dial("tcp", *n.target.Load())
			if err != nil {
				_ = client.Close()
				continue
			}
			running.Go(func() { relay(upstream, client) })
			running.Go(func() {
				relay(client, upstream)
				n.hungUp <- struct{}{}
			})
		}
	})
	return n
}

func TestPlainHTTPIsRefused(t *testing.T) {
	t.Parallel()
	c := newClient(t, channel.Config{TLS: func() (*tls.Config, error) { return &tls.Config{MinVersion: tls.VersionTLS13}, nil }})
	if _, err := post(t, c, "http://127.0.0.1:9/report"); err == nil {
		t.Error("a token would have gone over the line in the clear")
	}
}

// Rotated trust is used from the next connection on, without a new client.
func TestTrustIsReadAtEveryDial(t *testing.T) {
	t.Parallel()
	s := startServer(t, true, func(http.ResponseWriter, *http.Request) {})
	good, errNoFile := s.trust(), errors.New("no such file")
	settings := []func() (*tls.Config, error){
		func() (*tls.Config, error) { return nil, errNoFile },
		func() (*tls.Config, error) {
			return &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS13}, nil
		},
		good,
	}
	c := newClient(t, channel.Config{TLS: func() (*tls.Config, error) {
		next := settings[0]
		settings = settings[1:]
		return next()
	}})
	if _, err := post(t, c, s.URL); !errors.Is(err, errNoFile) {
		t.Errorf("got %v, want %v", err, errNoFile)
	}
	var unknown x509.UnknownAuthorityError
	if _, err := post(t, c, s.URL); !errors.As(err, &unknown) {
		t.Errorf("got %v, want an unknown authority", err)
	}
	mustPost(t, c, s.URL)
}

// A call that fails takes the connection from later calls, not from those
// that are still under way on it.
func TestDroppedConnectionFinishesOtherCalls(t *testing.T) {
	t.Parallel()
	arrived, finished := make(chan struct{}), make(chan struct{})
	finish := sync.OnceFunc(func() { close(finished) })
	s := startServer(t, true, func(_ http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/slow":
			close(arrived)
			<-finished
		case "/silent":
			<-r.Context().Done()
		}
	})
	t.Cleanup(finish) // else a failure below would leave the server waiting
	c := newClient(t, channel.Config{TLS: s.trust(), RequestTimeout: patience})

	slow := make(chan error, 1)
	go func() {
		_, err := post(t, c, s.URL+"/slow")
		slow <- err
	}()
	<-arrived
	ctx, cancel := context.WithTimeout(t.Context(), short)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/silent", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Do(req); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want a deadline exceeded", err)
	}
	mustPost(t, c, s.URL)
	s.waitOpen(t, 2)
	finish()
	if err := <-slow; err != nil {
		t.Errorf("the call under way was broken off: %v", err)
	}
	s.waitOpen(t, 1)
}
