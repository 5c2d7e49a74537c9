package failfast

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

const (
	// connectTimeout is what sidecar/channel takes, too: ten times what a slow
	// network needs, and within every lease that matters.
	connectTimeout = 10 * time.Second
	// requestTimeout is longer than an API server takes for anything but lists of
	// very many objects: admission webhooks have 10 s by default, 30 s at most.
	requestTimeout = 30 * time.Second
	// keepAlive is client-go's own.
	keepAlive = 30 * time.Second
)

// Option changes a bound.
type Option func(*bounds)

type bounds struct {
	connect, request time.Duration
}

// ConnectTimeout bounds the name look-up and the TCP connect. Default 10 s, which
// is also taken for what is not positive.
func ConnectTimeout(d time.Duration) Option { return func(b *bounds) { b.connect = d } }

// RequestTimeout bounds a call as a whole, to the last byte of the answer. Default
// 30 s, which is also taken for what is not positive. A caller whose context ends
// sooner is answered sooner.
func RequestTimeout(d time.Duration) Option { return func(b *bounds) { b.request = d } }

// Config returns a copy of cfg whose calls are bounded and whose dead connections
// are replaced; see the package comment. A Dial and a WrapTransport that cfg has
// are kept, below.
func Config(cfg *rest.Config, options ...Option) *rest.Config {
	b := bounds{}
	for _, option := range options {
		option(&b)
	}
	if b.connect <= 0 {
		b.connect = connectTimeout
	}
	if b.request <= 0 {
		b.request = requestTimeout
	}
	bounded := rest.CopyConfig(cfg)
	conns := &tracker{conns: map[*conn]struct{}{}}
	dial := bounded.Dial
	if dial == nil {
		dial = (&net.Dialer{KeepAlive: keepAlive}).DialContext
	}
	bounded.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, b.connect)
		defer cancel()
		raw, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return conns.track(raw), nil
	}
	bounded.Wrap(func(base http.RoundTripper) http.RoundTripper {
		return &roundTripper{base: base, conns: conns, bound: b.request}
	})
	return bounded
}

// Client is [Config] and the one http.Client that all clients of it should be made
// with, so that they share a connection. It fails where client-go cannot make a
// transport of cfg: a certificate that is not readable, for example.
func Client(cfg *rest.Config, options ...Option) (*rest.Config, *http.Client, error) {
	bounded := Config(cfg, options...)
	c, err := rest.HTTPClientFor(bounded)
	if err != nil {
		return nil, nil, fmt.Errorf("making the HTTP client of %s: %w", cfg.Host, err)
	}
	return bounded, c, nil
}
