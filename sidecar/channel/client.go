package channel

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// ErrClosed is returned by calls on a closed client.
var ErrClosed = errors.New("channel is closed")

// Config says whom to trust and how long to wait. Durations and sizes that are
// zero get the default.
type Config struct {
	// TLS returns the TLS settings of a new connection. It is asked at every
	// dial, so that a CA bundle that was rotated on disk is used from the next
	// connection on. The result is not changed.
	TLS func() (*tls.Config, error)

	// ConnectTimeout bounds the name look-up, the TCP connect and the TLS
	// handshake together. Default 10 s.
	ConnectTimeout time.Duration

	// RequestTimeout bounds a call as a whole, to the last byte of the answer.
	// Default 30 s.
	RequestTimeout time.Duration

	// PingAfter is how long a connection may be quiet before it is pinged.
	// Default 30 s: 10,000 idle sidecars then make 333 pings a second, which
	// costs less than the TLS handshakes that closing idle connections would.
	PingAfter time.Duration

	// PingTimeout closes a connection whose ping was not answered. Default 10 s.
	PingTimeout time.Duration

	// MaxAnswerBytes bounds the body of an answer. Default 64 KiB.
	MaxAnswerBytes int64
}

// Answer is an HTTP response that was read to its end.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Client makes calls over one link at a time. It may be used by several
// goroutines at once, and starts none that outlive its connections.
type Client struct {
	cfg Config

	mu   sync.Mutex
	link *link // nil once closed
}

// New returns a client. It dials nothing.
func New(cfg Config) (*Client, error) {
	if cfg.TLS == nil {
		return nil, errors.New("creating channel: no TLS settings")
	}
	setDefault(&cfg.ConnectTimeout, 10*time.Second)
	setDefault(&cfg.RequestTimeout, 30*time.Second)
	setDefault(&cfg.PingAfter, 30*time.Second)
	setDefault(&cfg.PingTimeout, 10*time.Second)
	setDefault(&cfg.MaxAnswerBytes, 64<<10)
	return &Client{cfg: cfg, link: newLink(cfg)}, nil
}

func setDefault[T ~int64](value *T, standard T) {
	if *value <= 0 {
		*value = standard
	}
}

// Do makes one call. An error means that no complete answer came, and that the
// connection was dropped; any answer, of whatever status, is no error.
// Redirects are answers like any other: following one would hand the caller's
// token to whoever the peer names.
func (c *Client) Do(req *http.Request) (Answer, error) {
	l, err := c.acquire()
	if err != nil {
		return Answer{}, err
	}
	answer, err := l.call(req, c.cfg)
	c.release(l, err != nil || ofReplica(answer.Status))
	if err != nil {
		return Answer{}, fmt.Errorf("%s %s: %w", req.Method, req.URL.Redacted(), err)
	}
	return answer, nil
}

// Rest lets the connection go. It is for a caller that will be quiet for a
// while: an idle connection costs the server about 40 KiB, and there is one per
// pod. Calls under way end first, and the next call dials anew.
func (c *Client) Rest() { c.swap(newLink(c.cfg)) }

// Close drops the connection. Calls under way end first, further ones fail.
func (c *Client) Close() { c.swap(nil) }

// swap puts next in the place of the link. The old one takes no further call,
// and is shut now or by its last call. A closed client stays closed.
func (c *Client) swap(next *link) {
	c.mu.Lock()
	old := c.link
	if old != nil {
		c.link = next
	}
	shut := old != nil && old.calls == 0
	c.mu.Unlock()
	if shut {
		old.shut()
	}
}

// ofReplica tells the statuses by which a proxy or a draining server says that
// this replica cannot answer now.
func ofReplica(status int) bool {
	return status == http.StatusBadGateway || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout
}

func (c *Client) acquire() (*link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == nil {
		return nil, ErrClosed
	}
	c.link.calls++
	return c.link, nil
}

// release ends a call. A dropped link takes no further call; its last call
// closes it. Calls that still run on it may yet succeed and are left alone.
func (c *Client) release(l *link, drop bool) {
	c.mu.Lock()
	l.calls--
	if drop && c.link == l {
		c.link = newLink(c.cfg)
	}
	shut := c.link != l && l.calls == 0
	c.mu.Unlock()
	if shut {
		l.shut()
	}
}

// link is a transport and the connections that it holds. They are tracked, for
// http.Transport closes only connections that it deems idle, and one that has
// just lost a request to a time-out may not be among them.
type link struct {
	transport *http.Transport
	calls     int // guarded by Client.mu

	mu     sync.Mutex
	conns  map[*trackedConn]struct{}
	closed bool
}

func newLink(cfg Config) *link {
	l := &link{conns: map[*trackedConn]struct{}{}}
	l.transport = &http.Transport{
		// No proxy: environment variables of somebody else's pod must not
		// redirect what belay says.
		DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, cfg.ConnectTimeout)
			defer cancel()
			return l.dial(ctx, network, addr, cfg.TLS)
		},
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			return nil, errors.New("only https is spoken here")
		},
		ForceAttemptHTTP2: true,
		// A page of it, where the default is ten megabytes: more than a sidecar may have.
		MaxResponseHeaderBytes: 16 << 10,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: cfg.PingAfter, PingTimeout: cfg.PingTimeout},
	}
	return l
}

func (l *link) call(req *http.Request, cfg Config) (Answer, error) {
	ctx, cancel := context.WithTimeout(req.Context(), cfg.RequestTimeout)
	defer cancel()
	resp, err := l.transport.RoundTrip(req.WithContext(ctx))
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, cfg.MaxAnswerBytes+1))
	if err != nil {
		return Answer{}, fmt.Errorf("reading the answer: %w", err)
	}
	if int64(len(body)) > cfg.MaxAnswerBytes {
		return Answer{}, fmt.Errorf("the answer has more than %d bytes", cfg.MaxAnswerBytes)
	}
	return Answer{Status: resp.StatusCode, Header: resp.Header, Body: body}, nil
}

func (l *link) dial(ctx context.Context, network, addr string, settings func() (*tls.Config, error)) (net.Conn, error) {
	cfg, err := settings()
	if err != nil {
		return nil, fmt.Errorf("reading TLS settings: %w", err)
	}
	cfg = cfg.Clone()
	if cfg.ServerName == "" {
		if cfg.ServerName, _, err = net.SplitHostPort(addr); err != nil {
			return nil, err
		}
	}
	cfg.NextProtos = []string{"h2", "http/1.1"}

	raw, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	conn, err := l.track(raw)
	if err != nil {
		return nil, err
	}
	secured := tls.Client(conn, cfg)
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("TLS handshake with %s: %w", addr, err)
	}
	return secured, nil
}

// track adopts a connection, unless the link was shut while it was dialled.
func (l *link) track(raw net.Conn) (*trackedConn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = raw.Close()
		return nil, ErrClosed
	}
	conn := &trackedConn{Conn: raw, link: l}
	l.conns[conn] = struct{}{}
	return conn, nil
}

// shut closes every connection of the link.
func (l *link) shut() {
	l.mu.Lock()
	l.closed = true
	conns := l.conns
	l.conns = nil
	l.mu.Unlock()
	for conn := range conns {
		_ = conn.Conn.Close()
	}
	l.transport.CloseIdleConnections()
}

type trackedConn struct {
	net.Conn
	link *link
}

// Close forgets the connection, too.
func (c *trackedConn) Close() error {
	c.link.mu.Lock()
	delete(c.link.conns, c)
	c.link.mu.Unlock()
	return c.Conn.Close()
}
