package channel_test

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"

	"github.com/belay-dev/belay/sidecar/channel"
)

func TestRest(t *testing.T) {
	t.Parallel()
	for proto, http2 := range map[string]bool{"HTTP/2": true, "HTTP/1.1": false} {
		t.Run(proto, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, http2, func(http.ResponseWriter, *http.Request) {})
			c := newClient(t, channel.Config{TLS: s.trust()})
			c.Rest() // nothing was dialled yet
			mustPost(t, c, s.URL)
			s.waitOpen(t, 1)
			c.Rest()
			s.waitOpen(t, 0)
			c.Rest() // nothing is left to close
			for range 2 {
				mustPost(t, c, s.URL)
			}
			if got := s.dialled(); got != 2 {
				t.Errorf("dialled %d times, want once before the rest and once after it", got)
			}
			c.Close()
			s.waitOpen(t, 0)
			c.Rest()
			if _, err := post(t, c, s.URL); !errors.Is(err, channel.ErrClosed) {
				t.Errorf("a call after Close and Rest gave %v, want ErrClosed", err)
			}
		})
	}
}

// Rest is told by one part of a program, and others may be in the middle of a
// call: theirs must end well, and must not keep the connection for later calls.
func TestRestLetsCallsEnd(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		then      func(t *testing.T, c *channel.Client, s *server)
		dials     int
		openAtEnd int
	}{
		"the next call dials anew beside them": {
			then: func(t *testing.T, c *channel.Client, s *server) {
				mustPost(t, c, s.URL)
				s.waitOpen(t, 2)
			},
			dials: 2, openAtEnd: 1,
		},
		"a second rest changes nothing": {
			then:  func(_ *testing.T, c *channel.Client, _ *server) { c.Rest() },
			dials: 1, openAtEnd: 0,
		},
		"closing the client does not break them off either": {
			then:  func(_ *testing.T, c *channel.Client, _ *server) { c.Close() },
			dials: 1, openAtEnd: 0,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const slow = 3
			arrived, finished := make(chan struct{}, slow), make(chan struct{})
			finish := sync.OnceFunc(func() { close(finished) })
			s := startServer(t, true, func(_ http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/slow" {
					arrived <- struct{}{}
					<-finished
				}
			})
			t.Cleanup(finish) // else a failure below would leave the server waiting
			c := newClient(t, channel.Config{TLS: s.trust(), RequestTimeout: patience})
			mustPost(t, c, s.URL) // else each slow call would dial
			results := make(chan error, slow)
			for range slow {
				go func() {
					_, err := post(t, c, s.URL+"/slow")
					results <- err
				}()
			}
			for range slow {
				<-arrived
			}
			c.Rest()
			tc.then(t, c, s)
			finish()
			for range slow {
				if err := <-results; err != nil {
					t.Errorf("a call under way was broken off: %v", err)
				}
			}
			s.waitOpen(t, tc.openAtEnd)
			if got := s.dialled(); got != tc.dials {
				t.Errorf("dialled %d times, want %d", got, tc.dials)
			}
		})
	}
}

// However calls and rests meet, no call fails by a rest, and no connection is
// left over.
func TestRestBesideCalls(t *testing.T) {
	t.Parallel()
	for proto, http2 := range map[string]bool{"HTTP/2": true, "HTTP/1.1": false} {
		t.Run(proto, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, http2, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
			c := newClient(t, channel.Config{TLS: s.trust()})
			var callers sync.WaitGroup
			for range 6 {
				callers.Go(func() {
					for range 10 {
						if answer, err := post(t, c, s.URL); err != nil || string(answer.Body) != "hello" {
							t.Errorf("got %q and %v, want the request's body back", answer.Body, err)
						}
						c.Rest()
					}
				})
			}
			callers.Wait()
			s.waitOpen(t, 0)
		})
	}
}
