package channel_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/belay-dev/belay/sidecar/channel"
)

// far is a bound that no test waits for.
const far = 10 * patience

// anybody is for peers that never get as far as to show a certificate.
func anybody() (*tls.Config, error) { return &tls.Config{MinVersion: tls.VersionTLS13}, nil }

// startListener hands every connection to serve and closes it afterwards. The
// channel gets a value for each one.
func startListener(t *testing.T, serve func(net.Conn)) (url string, served <-chan struct{}) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{}, 10)
	var running sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		running.Wait()
	})
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			closeWithTest(t, conn)
			running.Go(func() {
				serve(conn)
				_ = conn.Close()
				done <- struct{}{}
			})
		}
	})
	return "https://" + listener.Addr().String(), done
}

func waitServed(t *testing.T, served <-chan struct{}) {
	t.Helper()
	select {
	case <-served:
	case <-time.After(patience):
		t.Error("the client kept the connection")
	}
}

// callWithin fails the test at once, and not after a bound of the client that
// is far away.
func callWithin(t *testing.T, c *channel.Client, url string) (channel.Answer, error) {
	t.Helper()
	type result struct {
		answer channel.Answer
		err    error
	}
	results := make(chan result, 1)
	go func() {
		answer, err := post(t, c, url)
		results <- result{answer, err}
	}()
	select {
	case r := <-results:
		return r.answer, r.err
	case <-time.After(patience):
		t.Fatal("no bound ended the call")
		return channel.Answer{}, nil
	}
}

// A process too busy to accept does not show: its kernel takes connections for it.
func TestConnectToSomebodyWhoNeverAccepts(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	c := newClient(t, channel.Config{TLS: anybody, ConnectTimeout: short, RequestTimeout: far})
	if _, err := callWithin(t, c, "https://"+listener.Addr().String()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want a deadline exceeded", err)
	}
}

// A peer that takes connections and says nothing, at any depth of the protocol,
// holds a call no longer than the bound for that depth; and the connection goes
// with the call.
func TestSilentPeer(t *testing.T) {
	t.Parallel()
	listen := func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }
	shakeHands := func(proto string) func(s *server) func(net.Conn) {
		return func(s *server) func(net.Conn) {
			return func(conn net.Conn) {
				listen(tls.Server(conn, &tls.Config{
					Certificates: s.TLS.Certificates,
					NextProtos:   []string{proto},
					MinVersion:   tls.VersionTLS13,
				}))
			}
		}
	}
	tests := map[string]struct {
		peer   func(s *server) func(net.Conn)
		cfg    channel.Config
		byPing bool
	}{
		"no TLS, and the connect bound is the shorter one": {
			peer: func(*server) func(net.Conn) { return listen },
			cfg:  channel.Config{ConnectTimeout: short, RequestTimeout: far},
		},
		"no TLS, and the request bound is the shorter one": {
			peer: func(*server) func(net.Conn) { return listen },
			cfg:  channel.Config{ConnectTimeout: far, RequestTimeout: short},
		},
		"TLS and no HTTP/2": {
			peer: shakeHands("h2"),
			cfg:  channel.Config{RequestTimeout: short},
		},
		"TLS and no HTTP/2, and a ping is sent": {
			peer:   shakeHands("h2"),
			cfg:    channel.Config{RequestTimeout: far, PingAfter: short / 20, PingTimeout: short},
			byPing: true,
		},
		"TLS and no HTTP/1.1": {
			peer: shakeHands("http/1.1"),
			cfg:  channel.Config{RequestTimeout: short},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, true, func(http.ResponseWriter, *http.Request) {}) // for its certificate
			url, served := startListener(t, tc.peer(s))
			tc.cfg.TLS = s.trust()
			c := newClient(t, tc.cfg)
			if _, err := callWithin(t, c, url); err == nil || errors.Is(err, context.DeadlineExceeded) == tc.byPing {
				t.Errorf("got %v; want a ping to end the call: %t", err, tc.byPing)
			}
			waitServed(t, served)
		})
	}
}

// What makes a connection fit to be kept is not forgotten with the first one.
func TestAnswersKeepTheNextConnection(t *testing.T) {
	t.Parallel()
	for proto, http2 := range map[string]bool{"HTTP/2": true, "HTTP/1.1": false} {
		t.Run(proto, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			s := startServer(t, http2, func(w http.ResponseWriter, r *http.Request) {
				if calls.Add(1) == 3 {
					_, _ = io.Copy(io.Discard, r.Body) // an HTTP/1 server notices a hang-up only after it
					<-r.Context().Done()
				}
				w.WriteHeader(http.StatusForbidden)
			})
			c := newClient(t, channel.Config{TLS: s.trust(), RequestTimeout: short})
			for call, dials := range []int{1, 1, 1, 2, 2, 2} {
				answer, err := post(t, c, s.URL)
				if silent := call == 2; errors.Is(err, context.DeadlineExceeded) != silent {
					t.Errorf("call %d: got %v; want a deadline exceeded: %t", call, err, silent)
				} else if !silent && answer.Status != http.StatusForbidden {
					t.Errorf("call %d: got %d and %v, want %d", call, answer.Status, err, http.StatusForbidden)
				}
				if got := s.dialled(); got != dials {
					t.Errorf("call %d: dialled %d times, want %d", call, got, dials)
				}
			}
			s.waitOpen(t, 1)
		})
	}
}
