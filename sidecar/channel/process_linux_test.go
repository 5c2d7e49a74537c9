package channel_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/belay-dev/belay/sidecar/channel"
)

// The kernel of a killed process hangs up for it: no bound has to be waited for.
func TestKilledServer(t *testing.T) {
	t.Parallel()
	for proto, http2 := range map[string]bool{"HTTP/2": true, "HTTP/1.1": false} {
		t.Run(proto, func(t *testing.T) {
			t.Parallel()
			first := startProcess(t, ownAddress, http2)
			c := newClient(t, channel.Config{TLS: first.trust(), RequestTimeout: patience})
			wantFrom(t, mustPost(t, c, first.url), first, 1)
			held := make(chan error, 1)
			go func() {
				_, err := post(t, c, first.url+"/hold")
				held <- err
			}()
			first.wait(t, saysHolding)
			first.end()
			if err := <-held; err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the call under way gave %v, want an error at once", err)
			}
			if _, err := post(t, c, first.url); err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a call to nobody gave %v, want an error at once", err)
			}
			second := startProcess(t, first.addr, http2)
			for range 2 {
				wantFrom(t, mustPost(t, c, second.url), second, 1)
			}
		})
	}
}

// A frozen process is the worst peer: its kernel acknowledges every byte, so
// that TCP finds nothing amiss, ever.
func TestFrozenServer(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		http2     bool
		cfg       channel.Config
		byRequest bool // and not by a ping
	}{
		"the request bound ends the call": {
			http2: true, cfg: channel.Config{RequestTimeout: short}, byRequest: true,
		},
		"the ping bound ends the call": {
			http2: true, cfg: channel.Config{RequestTimeout: patience, PingAfter: short / 20, PingTimeout: short},
		},
		"the request bound ends the call before the ping bound": {
			http2: true, cfg: channel.Config{RequestTimeout: short, PingAfter: short / 20, PingTimeout: patience}, byRequest: true,
		},
		"the request bound ends the call on HTTP/1.1, which has no pings": {
			http2: false, cfg: channel.Config{RequestTimeout: short, PingAfter: short / 20, PingTimeout: short / 20}, byRequest: true,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProcess(t, ownAddress, tc.http2)
			tc.cfg.TLS = p.trust()
			c := newClient(t, tc.cfg)
			wantFrom(t, mustPost(t, c, p.url), p, 1)
			p.freeze(t)
			if _, err := post(t, c, p.url); err == nil || errors.Is(err, context.DeadlineExceeded) != tc.byRequest {
				t.Errorf("got %v; want the request bound to end the call: %t", err, tc.byRequest)
			}
			p.thaw(t)
			p.wait(t, saysClosed)
			for range 2 {
				wantFrom(t, mustPost(t, c, p.url), p, 2)
			}
		})
	}
}

// What this package is for, in numbers: a peer that died costs one bound, and
// not one for every call that follows. The client of net/http is measured beside
// it, and not judged: it may learn.
func TestDeadPeerCostsOneBound(t *testing.T) {
	t.Parallel()
	const calls, bound = 5, short
	tests := map[string]struct {
		// caller returns what makes a call.
		caller     func(t *testing.T, p *process) func(url string) error
		comparison bool
	}{
		"this package": {
			caller: func(t *testing.T, p *process) func(string) error {
				c := newClient(t, channel.Config{TLS: p.trust(), RequestTimeout: bound})
				return func(url string) error {
					_, err := post(t, c, url)
					return err
				}
			},
		},
		"net/http for comparison": {
			caller: func(t *testing.T, p *process) func(string) error {
				settings, err := p.trust()()
				if err != nil {
					t.Fatal(err)
				}
				transport := &http.Transport{TLSClientConfig: settings, ForceAttemptHTTP2: true}
				t.Cleanup(transport.CloseIdleConnections)
				c := &http.Client{Transport: transport, Timeout: bound}
				return func(url string) error {
					resp, err := c.Post(url, "text/plain", bytes.NewReader([]byte("hello")))
					if err != nil {
						return err
					}
					if resp.ProtoMajor != 2 {
						t.Errorf("spoke %s, want HTTP/2", resp.Proto)
					}
					return resp.Body.Close()
				}
			},
			comparison: true,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dead, live := startProcess(t, ownAddress, true), startProcess(t, ownAddress, true)
			service := startNetwork(t, dead.addr)
			call := tc.caller(t, dead)
			if err := call(service.url); err != nil {
				t.Fatal(err)
			}
			dead.freeze(t)
			service.lead(live.addr)
			failed, start := 0, time.Now()
			for range calls {
				if err := call(service.url); err != nil {
					failed++
				}
			}
			took, dials := time.Since(start), service.dials.Load()
			t.Logf("%d of %d calls failed, in %.2f bounds of time and %d dials", failed, calls, took.Seconds()/bound.Seconds(), dials)
			if tc.comparison {
				return
			}
			if failed != 1 {
				t.Errorf("%d calls failed, want the first one alone", failed)
			}
			if dials != 2 {
				t.Errorf("dialled %d times, want once to the dead peer and once to the live one", dials)
			}
		})
	}
}
