package probe_test

import (
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/belay-dev/belay/sidecar/probe"
	"github.com/belay-dev/belay/sidecar/settings"
)

const (
	// patience bounds what should come soon.
	patience = 10 * time.Second
	// short is the time-out of a probe that is to run into it.
	short = 50 * time.Millisecond
)

// newProber probes what the text says.
func newProber(t *testing.T, text string, changes ...func(*settings.Settings)) *probe.Prober {
	t.Helper()
	p, err := settings.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	s := settings.Settings{Probe: p, Timeout: patience}
	for _, change := range changes {
		change(&s)
	}
	return probe.New(s)
}

func timeout(d time.Duration) func(*settings.Settings) {
	return func(s *settings.Settings) { s.Timeout = d }
}

// want probes once, and checks what came of it.
func want(t *testing.T, p *probe.Prober, reason string) probe.Result {
	t.Helper()
	began := time.Now()
	got := p.Probe(t.Context())
	if got.Reason != reason || got.OK != (reason == probe.ReasonSucceeded) {
		t.Errorf("got %+v, want reason %s", got, reason)
	}
	if got.OK != (got.Detail == "") {
		t.Errorf("got %+v; a detail says why a probe fails", got)
	}
	if len(got.Detail) > 300 {
		t.Errorf("the detail has %d bytes: %.100q", len(got.Detail), got.Detail)
	}
	if got.At.Before(began) || got.At.After(time.Now()) {
		t.Errorf("it was so at %s, want the time of the probe, from %s on", got.At, began)
	}
	return got
}

// listen listens on a loopback address until the test ends.
func listen(t *testing.T, host string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		if host == "::1" {
			t.Skip("no IPv6 here: ", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// connections counts those of a server.
type connections struct {
	mu            sync.Mutex
	open, opened  int
	changed       chan struct{} // closed at each change
	establishedOn map[net.Conn]bool
}

func newConnections() *connections {
	return &connections{changed: make(chan struct{}), establishedOn: map[net.Conn]bool{}}
}

func (c *connections) note(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case state == http.StateNew && !c.establishedOn[conn]:
		c.establishedOn[conn] = true
		c.open++
		c.opened++
	case state == http.StateClosed && c.establishedOn[conn]:
		delete(c.establishedOn, conn)
		c.open--
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

// wantClosed waits until so many connections were opened, and none is open.
func (c *connections) wantClosed(t *testing.T, opened int) {
	t.Helper()
	late := time.After(patience)
	for {
		c.mu.Lock()
		nowOpen, nowOpened, changed := c.open, c.opened, c.changed
		c.mu.Unlock()
		if nowOpen == 0 && nowOpened >= opened {
			if nowOpened > opened {
				t.Errorf("%d connections were opened, want %d", nowOpened, opened)
			}
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Errorf("%d of %d connections are open, want none of %d", nowOpen, nowOpened, opened)
			return
		}
	}
}

// serve serves on a loopback address until the test ends, and returns HOST:PORT.
func serve(t *testing.T, host string, s *http.Server) (string, *connections) {
	t.Helper()
	l := listen(t, host)
	c := newConnections()
	s.ConnState = c.note
	s.ErrorLog = log.New(io.Discard, "", 0)
	served := make(chan struct{})
	go func() {
		defer close(served)
		if s.TLSConfig != nil {
			_ = s.ServeTLS(l, "", "")
		} else {
			_ = s.Serve(l)
		}
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-served
	})
	return l.Addr().String(), c
}

// answer lets each connection be answered by a function, until the test ends.
func answer(t *testing.T, host string, do func(net.Conn)) string {
	t.Helper()
	l := listen(t, host)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer func() { _ = conn.Close() }()
				_ = conn.SetDeadline(time.Now().Add(patience))
				do(conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	return l.Addr().String()
}

// say reads what a client has to say first, and sends the text.
func say(text string) func(net.Conn) {
	return func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 4096))
		_, _ = io.WriteString(conn, text)
	}
}
