package stack

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// front does for the webhooks what a Service does in a cluster: one address, every
// connection goes to one of the backends that are there. It passes bytes on, so
// that TLS is between the API server and the webhook. Without a backend it drops
// the connection: belay is down.
type front struct {
	listener net.Listener
	next     atomic.Uint64
	calls    atomic.Int64 // connections that came in

	mu       sync.Mutex
	backends []string
	conns    map[net.Conn]struct{}
	closed   bool
	wg       sync.WaitGroup
}

func newFront() (*front, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &front{listener: l, conns: map[net.Conn]struct{}{}}
	f.wg.Go(f.accept)
	return f, nil
}

func (f *front) port() int {
	a, _ := f.listener.Addr().(*net.TCPAddr)
	return a.Port
}

// set changes the backends. Connections to backends that are gone break by
// themselves; all others are cut when cut is set, so that they spread anew.
func (f *front) set(backends []string, cut bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.backends = backends
	if cut {
		for c := range f.conns {
			_ = c.Close()
		}
	}
}

func (f *front) accept() {
	for {
		c, err := f.listener.Accept()
		if err != nil {
			return
		}
		f.calls.Add(1)
		f.wg.Go(func() { f.pass(c) })
	}
}

func (f *front) pass(in net.Conn) {
	defer func() { _ = in.Close() }()
	if !f.keep(in) {
		return
	}
	defer f.forget(in)
	f.mu.Lock()
	backends := f.backends
	f.mu.Unlock()
	for range backends {
		out, err := net.Dial("tcp", backends[f.next.Add(1)%uint64(len(backends))])
		if err != nil {
			continue
		}
		if !f.keep(out) {
			_ = out.Close()
			return
		}
		defer f.forget(out)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = io.Copy(out, in)
			_ = out.Close()
		}()
		_, _ = io.Copy(in, out)
		_ = in.Close()
		<-done
		return
	}
}

func (f *front) keep(c net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	f.conns[c] = struct{}{}
	return true
}

func (f *front) forget(c net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.conns, c)
}

func (f *front) close() {
	_ = f.listener.Close()
	f.mu.Lock()
	f.closed = true
	for c := range f.conns {
		_ = c.Close()
	}
	f.mu.Unlock()
	f.wg.Wait()
}
