package main

import (
	"fmt"
	"io"
	"net"
	"sync"
)

// A front is one address for several servers: each connection goes to the next
// one that takes it. It passes bytes on, so that TLS is between the ends.
type front struct {
	listener net.Listener
	backends []string

	mu    sync.Mutex
	next  int
	conns map[net.Conn]bool // nil when it is closed
	wg    sync.WaitGroup
}

func newFront(port int, backends []int) (*front, error) {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return nil, err
	}
	f := &front{listener: l, conns: map[net.Conn]bool{}}
	for _, p := range backends {
		f.backends = append(f.backends, fmt.Sprintf("127.0.0.1:%d", p))
	}
	f.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f.wg.Go(func() { f.pass(c) })
		}
	})
	return f, nil
}

func (f *front) pass(in net.Conn) {
	if !f.keep(in) {
		return
	}
	defer f.drop(in)
	out := f.dial()
	if out == nil || !f.keep(out) {
		return
	}
	defer f.drop(out)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		_, _ = io.Copy(out, in) // how a connection ends is of no interest
		out.Close()
	})
	_, _ = io.Copy(in, out)
	in.Close()
}

// dial connects to the next backend that is there; nil when none is.
func (f *front) dial() net.Conn {
	f.mu.Lock()
	first := f.next
	f.next++
	f.mu.Unlock()
	for i := range f.backends {
		if c, err := net.Dial("tcp", f.backends[(first+i)%len(f.backends)]); err == nil {
			return c
		}
	}
	return nil
}

// keep remembers a connection, or closes it when the front is closed.
func (f *front) keep(c net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conns == nil {
		c.Close()
		return false
	}
	f.conns[c] = true
	return true
}

func (f *front) drop(c net.Conn) {
	c.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.conns, c)
}

// close ends all connections and waits for them.
func (f *front) close() {
	f.listener.Close()
	f.mu.Lock()
	for c := range f.conns {
		c.Close()
	}
	f.conns = nil
	f.mu.Unlock()
	f.wg.Wait()
}
