package app

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"

	"github.com/belay-dev/belay/webhook/internal/collector"
)

// crowd is a listener that anybody may connect to, in a process that must not die of it: it
// has so many connections at a time and no more. One that comes on top takes the place of the
// oldest that has not shown a token which counts, else of the oldest that waits for nothing: a
// sidecar dials anew. Closing the new one instead would let whoever came first keep all others
// out.
type crowd struct {
	net.Listener
	most int

	mu     sync.Mutex
	guests *list.List // of *guest, the oldest first
}

func newCrowd(l net.Listener, most int) *crowd {
	return &crowd{Listener: l, most: most, guests: list.New()}
}

// guest is one of the connections.
type guest struct {
	net.Conn
	crowd *crowd
	// at is nil once it is closed. It and what follows are guarded by the crowd.
	at            *list.Element
	trusted, idle bool
}

// Accept waits for a connection, and makes room for it.
func (c *crowd) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	g := &guest{Conn: conn, crowd: c}
	c.mu.Lock()
	var leaves *guest
	if c.guests.Len() >= c.most {
		if leaves = c.leaves(); leaves != nil {
			c.guests.Remove(leaves.at)
			leaves.at = nil
		}
	}
	g.at = c.guests.PushBack(g)
	c.mu.Unlock()
	if leaves != nil {
		_ = leaves.Conn.Close()
	}
	return g, nil
}

// leaves is the connection that makes room.
func (c *crowd) leaves() *guest {
	var idle, oldest *guest
	for e := c.guests.Front(); e != nil; e = e.Next() {
		g, ok := e.Value.(*guest)
		switch {
		case !ok:
		case !g.trusted:
			return g
		case g.idle && idle == nil:
			idle = g
		case oldest == nil:
			oldest = g
		}
	}
	if idle != nil {
		return idle
	}
	return oldest
}

// Close closes the connection, and forgets it.
func (g *guest) Close() error {
	g.crowd.mu.Lock()
	if g.at != nil {
		g.crowd.guests.Remove(g.at)
		g.at = nil
	}
	g.crowd.mu.Unlock()
	return g.Conn.Close()
}

func (g *guest) set(change func(*guest)) {
	g.crowd.mu.Lock()
	defer g.crowd.mu.Unlock()
	change(g)
}

// guestOf is the connection below a TLS connection.
func guestOf(conn net.Conn) (*guest, bool) {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	g, ok := conn.(*guest)
	return g, ok
}

// states follows which connections wait for nothing, as http.Server.ConnState.
func states(conn net.Conn, s http.ConnState) {
	if g, ok := guestOf(conn); ok {
		g.set(func(g *guest) { g.idle = s == http.StateIdle })
	}
}

// trusting lets the handler say that a connection has shown a token which counts, as
// http.Server.ConnContext.
func trusting(ctx context.Context, conn net.Conn) context.Context {
	g, ok := guestOf(conn)
	if !ok {
		return ctx
	}
	return collector.WithTrusted(ctx, func() { g.set(func(g *guest) { g.trusted = true }) })
}
