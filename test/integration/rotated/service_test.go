package rotated

import (
	"io"
	"net"
	"sync"
)

// service does what kube-proxy does: new connections go to one of the backends that are ready,
// and those that are there stay with theirs.
type service struct {
	listener net.Listener

	mu       sync.Mutex
	backends []string
	next     int
	conns    map[net.Conn]struct{}
	wg       sync.WaitGroup
}

func newService(l net.Listener) *service {
	s := &service{listener: l, conns: map[net.Conn]struct{}{}}
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.wg.Go(func() { s.pass(c) })
		}
	})
	return s
}

func (s *service) ready(backends ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.backends = backends
}

func (s *service) keep(c net.Conn) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[c] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.conns, c)
		_ = c.Close()
	}
}

func (s *service) pass(in net.Conn) {
	defer s.keep(in)()
	s.mu.Lock()
	if len(s.backends) == 0 {
		s.mu.Unlock()
		return
	}
	s.next++
	to := s.backends[s.next%len(s.backends)]
	s.mu.Unlock()
	out, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer s.keep(out)()
	var both sync.WaitGroup
	// Each direction ends by itself, as it does without a proxy.
	both.Go(func() { _, _ = io.Copy(out, in); closeWrite(out) })
	both.Go(func() { _, _ = io.Copy(in, out); closeWrite(in) })
	both.Wait()
}

func closeWrite(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.CloseWrite()
	}
}

func (s *service) close() {
	_ = s.listener.Close()
	s.mu.Lock()
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}
