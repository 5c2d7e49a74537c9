package failfast

import (
	"net"
	"sync"
	"time"
)

// releaseWait bounds how long a dropped connection is waited for to leave its
// transport. It takes less than a millisecond; a transport that is stuck does not
// hold its callers.
const releaseWait = time.Second

// tracker knows the open connections of a configuration. k8s.io/client-go's
// connrotation does, too, but can only close all of them, and does not know which
// ones are silent.
type tracker struct {
	mu    sync.Mutex
	conns map[*conn]struct{}
}

// conn is a connection that knows whether its peer owes an answer, and since when
// it was not heard. It is what the dialer returns, below TLS.
type conn struct {
	net.Conn
	tracker *tracker
	dropped sync.Once
	// released is closed once the transport has closed the connection, and so will
	// not hand it to another call.
	released chan struct{}
	release  func()

	mu      sync.Mutex
	owing   int       // calls under way
	heard   time.Time // when bytes last came, or the dial ended
	waiting bool      // something was asked, and either not answered or still is not
	since   time.Time // since when waiting and not hearing anything
}

func (t *tracker) track(raw net.Conn) *conn {
	c := &conn{Conn: raw, tracker: t, released: make(chan struct{}), heard: time.Now()}
	c.release = sync.OnceFunc(func() { close(c.released) })
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conns[c] = struct{}{}
	return c
}

// find returns the tracked connection under one that a transport uses. It is there
// by itself, under layers that tell what they wrap (TLS), or hidden under those of
// client-go's certificate rotation, which do not: those are known by their
// addresses. It returns nil where that does not name exactly one.
func (t *tracker) find(used net.Conn) *conn {
	bottom := used
	for {
		if c, ok := bottom.(*conn); ok && c.tracker == t {
			return c
		}
		layer, ok := bottom.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		bottom = layer.NetConn()
	}
	var found *conn
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.conns {
		if sameAddr(c.LocalAddr(), used.LocalAddr()) && sameAddr(c.RemoteAddr(), used.RemoteAddr()) {
			if found != nil {
				return nil
			}
			found = c
		}
	}
	return found
}

// sameAddr is false for addresses that are not there: dialers that go through
// tunnels have none.
func sameAddr(a, b net.Addr) bool {
	return a != nil && b != nil && a.Network() == b.Network() && a.String() == b.String()
}

// asked counts a call that the peer owes an answer.
func (c *conn) asked() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.waiting {
		c.waiting, c.since = true, time.Now()
	}
	c.owing++
}

// settled ends a call. One that was given up goes on counting until something is
// heard, so that short calls in a row notice together what none of them would alone.
func (c *conn) settled(givenUp bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owing--
	if c.owing == 0 && !givenUp {
		c.waiting = false
	}
}

// silent tells since when an answer is owed and nothing was heard, and whether that
// is as long as patience.
func (c *conn) silent(patience time.Duration) (since time.Time, tooLong bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.since, c.waiting && time.Since(c.since) >= patience
}

// heardSince tells whether bytes came, or the dial ended, after that time.
func (c *conn) heardSince(t time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.heard.After(t)
}

// dropIfSilent closes c if it has owed an answer and was silent for as long as
// patience. With it go those to the same address that were not heard since either:
// an HTTP/1.1 client keeps a pool of them, and would lose a bound on each. When it
// returns, no transport hands out one of them any more.
func (t *tracker) dropIfSilent(c *conn, patience time.Duration) {
	since, tooLong := c.silent(patience)
	if !tooLong {
		return
	}
	doomed := []*conn{c}
	t.mu.Lock()
	for other := range t.conns {
		if other != c && sameAddr(other.RemoteAddr(), c.RemoteAddr()) && !other.heardSince(since) {
			doomed = append(doomed, other)
		}
	}
	t.mu.Unlock()
	for _, c := range doomed {
		c.drop()
	}
	timer := time.NewTimer(releaseWait)
	defer timer.Stop()
	for _, c := range doomed {
		select {
		case <-c.released:
		case <-timer.C:
			return
		}
	}
}

// drop closes the connection under its transport, which then finds it broken.
func (c *conn) drop() {
	c.dropped.Do(func() {
		c.forget()
		_ = c.Conn.Close()
	})
}

func (c *conn) forget() {
	c.tracker.mu.Lock()
	defer c.tracker.mu.Unlock()
	delete(c.tracker.conns, c)
}

// Read notes that the peer was heard.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.mu.Lock()
		c.heard = time.Now()
		c.waiting, c.since = c.owing > 0, c.heard
		c.mu.Unlock()
	}
	return n, err
}

// Close is called by the transport when it is done with the connection.
func (c *conn) Close() error {
	c.forget()
	err := c.Conn.Close()
	c.release()
	return err
}
