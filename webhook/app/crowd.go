package app

import (
	"cmp"
	"container/list"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/belay-dev/belay/webhook/internal/admission"
	"github.com/belay-dev/belay/webhook/internal/collector"
)

// crowd is a listener that anybody may connect to, in a process that must not die of it: it
// has so many connections at a time and no more. One that comes on top takes the place of the
// oldest that has not shown a token which counts; a quarter of the places is kept for those, and
// beyond that the oldest that waits for nothing leaves: a sidecar dials anew. Closing the new one
// instead would let whoever came first keep all others out. One Pod's token counts for two
// connections, and a third one takes the place of the first.
//
// Where peers share the places, who leaves is one of the peer that has most of them: whoever
// comes from one address keeps nobody out who comes from another and has fewer.
type crowd struct {
	net.Listener
	most  int
	share bool
	// rush is how many there may be while those beyond most have come within grace: a client
	// that has a burst of calls dials for each of them, and closes what it does not need. 0 for no
	// more than most.
	rush int
	// lingers is how long a connection that has shown what counts is still read from after it was
	// closed, while its client does not close it: 0 for not at all. net/http closes one a second
	// after its GOAWAY, and a client that has not come to read that by then would find the
	// connection broken when it writes, and take its call for lost; so it hears of it, and calls
	// elsewhere.
	lingers time.Duration
	// lingering are those of them; begun under mu.
	lingering sync.WaitGroup

	// mu guards lingers, and what follows.
	mu     sync.Mutex
	guests *list.List // of *guest, the oldest first
	// peers is how many of them each peer has, the one that comes included.
	peers map[netip.Addr]int
}

func newCrowd(l net.Listener, most int) *crowd {
	return &crowd{Listener: l, most: most, guests: list.New(), peers: map[netip.Addr]int{}}
}

// guest is one of the connections.
type guest struct {
	net.Conn
	crowd *crowd
	since time.Time
	// at is nil once it is closed. It and what follows are guarded by the crowd.
	at   *list.Element
	idle bool
	// closed says that nothing is written to it any more.
	closed bool
	// trusted is the Pod whose token was shown, or that a review was answered; empty for neither.
	trusted types.UID
	// peer is the zero value where peers do not share the places.
	peer netip.Addr
}

// grace is how long a connection may take until it has shown what it is for.
const grace = 2 * time.Second

// perPod is how many connections one Pod's token counts for: a sidecar has one, and the next
// one while that breaks.
const perPod = 2

// Accept waits for a connection, and makes room for it.
func (c *crowd) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	g := &guest{Conn: conn, crowd: c, since: time.Now()}
	if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok && c.share {
		g.peer = a.AddrPort().Addr().Unmap()
	}
	c.mu.Lock()
	c.peers[g.peer]++
	var all []*guest
	for c.guests.Len() >= c.most {
		leaves := c.leaves()
		if leaves == nil || c.guests.Len() < c.rush && !leaves.closed && time.Since(leaves.since) < grace {
			break
		}
		c.forget(leaves)
		all = append(all, leaves)
	}
	g.at = c.guests.PushBack(g)
	c.mu.Unlock()
	for _, leaves := range all {
		_ = leaves.Conn.Close()
	}
	return g, nil
}

// forget takes a connection from those that are there.
func (c *crowd) forget(g *guest) {
	c.guests.Remove(g.at)
	g.at = nil
	if c.peers[g.peer]--; c.peers[g.peer] == 0 {
		delete(c.peers, g.peer)
	}
}

// leaves is the connection that makes room.
func (c *crowd) leaves() *guest {
	var largest netip.Addr
	for e := c.guests.Front(); e != nil; e = e.Next() {
		if g, ok := e.Value.(*guest); ok && c.peers[g.peer] > c.peers[largest] {
			largest = g.peer
		}
	}
	var closed, stranger, idle, oldest *guest
	all, trusted := 0, 0
	for e := c.guests.Front(); e != nil; e = e.Next() {
		g, ok := e.Value.(*guest)
		if !ok || g.peer != largest {
			continue
		}
		all++
		if g.trusted != "" && !g.closed {
			trusted++
		}
		switch {
		case g.closed:
			closed = cmp.Or(closed, g)
		case g.trusted == "":
			stranger = cmp.Or(stranger, g)
		case g.idle:
			idle = cmp.Or(idle, g)
		default:
			oldest = cmp.Or(oldest, g)
		}
	}
	if trusted > all*3/4 {
		return cmp.Or(closed, idle, stranger, oldest)
	}
	return cmp.Or(closed, stranger, idle, oldest)
}

// trust notes whose token a connection has shown.
func (g *guest) trust(pod types.UID) {
	var first *guest
	c := g.crowd
	c.mu.Lock()
	g.trusted = pod
	had := 0
	for e := c.guests.Front(); e != nil; e = e.Next() {
		if o, ok := e.Value.(*guest); ok && o.trusted == pod && !o.closed {
			had++
			first = cmp.Or(first, o)
		}
	}
	if had > perPod {
		c.forget(first)
	} else {
		first = nil
	}
	c.mu.Unlock()
	if first != nil {
		_ = first.Conn.Close()
	}
}

// Close closes the connection, and forgets it; at once, or when its client has heard of it. Until
// then it keeps its place, and is the first of its peer to make room.
func (g *guest) Close() error {
	c := g.crowd
	half, ok := g.Conn.(interface{ CloseWrite() error })
	c.mu.Lock()
	if g.closed {
		c.mu.Unlock()
		return net.ErrClosed
	}
	g.closed = true
	if !ok || g.at == nil || g.trusted == "" || c.lingers == 0 {
		c.mu.Unlock()
		return g.gone()
	}
	lingers := c.lingers
	c.lingering.Go(func() {
		// Not a deadline: whoever reads it still, as net/http does over HTTP/1.1, sets others.
		end := time.AfterFunc(lingers, func() { _ = g.gone() })
		defer end.Stop()
		// What fails here is a connection that is closed already.
		_ = half.CloseWrite()
		_, _ = io.Copy(io.Discard, g.Conn)
		_ = g.gone()
	})
	c.mu.Unlock()
	return nil
}

// gone closes the connection at once, and forgets it where it has not made room yet.
func (g *guest) gone() error {
	g.crowd.mu.Lock()
	if g.at != nil {
		g.crowd.forget(g)
	}
	g.crowd.mu.Unlock()
	return g.Conn.Close()
}

// left waits until those that linger are closed. Those that are closed from now on do not.
func (c *crowd) left() {
	c.mu.Lock()
	c.lingers = 0
	c.mu.Unlock()
	c.lingering.Wait()
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
	return collector.WithTrusted(ctx, g.trust)
}

// answering lets the handler say that a connection has had a review answered, as
// http.Server.ConnContext. Nothing that counts for more is shown to the admission server, and an
// API server's connection has it after its first call.
func answering(ctx context.Context, conn net.Conn) context.Context {
	g, ok := guestOf(conn)
	if !ok {
		return ctx
	}
	return admission.WithAnswered(ctx, func() { g.set(func(g *guest) { g.trusted = "answered" }) })
}
