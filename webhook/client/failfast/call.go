package failfast

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"time"
)

// roundTripper bounds calls. It implements client-go's RoundTripperWrapper, by
// which the transport's TLS settings and dialer are found.
type roundTripper struct {
	base  http.RoundTripper
	conns *tracker
	bound time.Duration
}

// WrappedRoundTripper returns what the calls go through.
func (r *roundTripper) WrappedRoundTripper() http.RoundTripper { return r.base }

// RoundTrip makes one call within the bound.
func (r *roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	if endless(req) {
		return r.base.RoundTrip(req)
	}
	ctx, cancel := context.WithTimeout(req.Context(), r.bound)
	c := &call{roundTripper: r, caller: req.Context(), ctx: ctx, cancel: cancel}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: c.gotConn})
	resp, err := r.base.RoundTrip(req.WithContext(ctx))
	if err != nil {
		return nil, c.ended(err)
	}
	resp.Body = &body{ReadCloser: resp.Body, call: c}
	return resp, nil
}

// call is one request and its answer.
type call struct {
	*roundTripper
	caller context.Context // of whoever called
	ctx    context.Context // with the bound
	cancel context.CancelFunc

	once      sync.Once
	outOfTime bool // set by once

	mu   sync.Mutex
	conn *conn // that the request is on; nil if none yet, or not one of ours
}

// gotConn is called once for each connection that the transport tries: it repeats
// a request by itself when a connection from its pool turns out to be closed.
func (c *call) gotConn(info httptrace.GotConnInfo) {
	found := c.conns.find(info.Conn)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		c.conn.settled(false)
	}
	if c.conn = found; found != nil {
		found.asked()
	}
}

// ended settles the call, the first time, and returns what its caller is told. An
// error of the transport needs no more: the connection that failed is closed by
// then. Only one that says nothing at all has to be looked for.
func (c *call) ended(err error) error {
	c.once.Do(func() {
		defer c.cancel()
		// The end of a body counts as well when it comes too late: a server that
		// noticed the hang-up may have ended an answer that it had not finished.
		c.outOfTime = err != nil && c.ctx.Err() != nil
		c.mu.Lock()
		on := c.conn
		c.mu.Unlock()
		if on == nil {
			return
		}
		if c.outOfTime {
			c.conns.dropIfSilent(on, c.bound/2)
		}
		on.settled(c.outOfTime)
	})
	switch {
	case !c.outOfTime:
		return err
	case c.caller.Err() == nil:
		return &timeoutError{bound: c.bound}
	case errors.Is(err, c.caller.Err()):
		return err
	default:
		// The connection was closed for it, and the transport may name that first.
		return c.caller.Err()
	}
}

// body ends its call at its end, when it is closed, or when it breaks off.
type body struct {
	io.ReadCloser
	call *call
}

// Read reads on within the bound.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		err = b.call.ended(err)
	}
	return n, err
}

// Close ends the call.
func (b *body) Close() error {
	err := b.ReadCloser.Close()
	_ = b.call.ended(nil)
	return err
}

// timeoutError is context.DeadlineExceeded, and a net.Error, which is what
// net/http and client-go ask for.
type timeoutError struct {
	bound time.Duration
}

func (e *timeoutError) Error() string   { return fmt.Sprintf("no complete answer within %v", e.bound) }
func (e *timeoutError) Timeout() bool   { return true }
func (e *timeoutError) Temporary() bool { return true }
func (e *timeoutError) Unwrap() error   { return context.DeadlineExceeded }

// endless tells the requests that have no natural end. SPDY and WebSocket clients
// set their Upgrade header only below this round tripper, so exec, attach and
// port-forward are known by their path.
func endless(req *http.Request) bool {
	if req.Header.Get("Upgrade") != "" {
		return true
	}
	query := req.URL.Query()
	if truth(query, "watch") {
		return true
	}
	// From the end: a proxy may have put anything before the API's own path.
	path := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	if n := len(path); n >= 3 && path[n-3] == "pods" {
		switch path[n-1] {
		case "exec", "attach", "portforward":
			return true
		case "log":
			return truth(query, "follow")
		}
	}
	// The old form: /api/v1/watch/..., /apis/GROUP/VERSION/watch/...
	for i, element := range path {
		if element == "watch" && (i >= 2 && path[i-2] == "api" || i >= 3 && path[i-3] == "apis") {
			return true
		}
	}
	return false
}

// truth reads a boolean parameter as the API server does: 0 and false are false,
// and anything else that is there is true, even nothing.
func truth(query url.Values, name string) bool {
	values := query[name]
	return len(values) > 0 && values[0] != "0" && !strings.EqualFold(values[0], "false")
}
