package stack

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// Fault says what happens to a request of a process on its way to the API server.
type Fault struct {
	// Delay holds the request back; it ends early when the client gives up.
	Delay time.Duration
	// Status answers with this code and Body instead of asking the API server.
	Status int
	Body   string
	// Drop closes the connection after the API server has answered.
	Drop bool
}

// Faults is a proxy between one process and the API server that makes requests
// fail the way an overloaded etcd or a bad network does.
type Faults struct {
	server   *http.Server
	listener net.Listener
	done     chan struct{}

	mu     sync.Mutex
	choose func(*http.Request) *Fault
	seen   int
}

func newFaults(cfg *rest.Config) (*Faults, error) {
	target, err := url.Parse(cfg.Host)
	if err != nil {
		return nil, fmt.Errorf("reading the server's address: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(cfg.CAData) {
		return nil, errors.New("the server's CA is unreadable")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &Faults{listener: l, done: make(chan struct{})}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}},
		FlushInterval: -1, // watches
		ErrorHandler:  func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	f.server = &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fault := f.pick(r)
		switch {
		case fault == nil:
			proxy.ServeHTTP(w, r)
			return
		case fault.Delay > 0:
			select {
			case <-time.After(fault.Delay):
			case <-r.Context().Done():
				return
			}
		}
		switch {
		case fault.Status != 0:
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(fault.Status)
			_, _ = w.Write([]byte(fault.Body))
		case fault.Drop:
			proxy.ServeHTTP(&discard{header: http.Header{}}, r)
			panic(http.ErrAbortHandler) // closes the connection without an answer
		default:
			proxy.ServeHTTP(w, r)
		}
	})}
	go func() {
		defer close(f.done)
		_ = f.server.Serve(l)
	}()
	return f, nil
}

// Set chooses the fault of each request from now on; nil lets all pass.
func (f *Faults) Set(choose func(*http.Request) *Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.choose, f.seen = choose, 0
}

// Seen is how many requests had a fault since Set.
func (f *Faults) Seen() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen
}

func (f *Faults) pick(r *http.Request) *Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.choose == nil {
		return nil
	}
	fault := f.choose(r)
	if fault != nil {
		f.seen++
	}
	return fault
}

func (f *Faults) url() string { return "http://" + f.listener.Addr().String() }

func (f *Faults) close() {
	_ = f.server.Close()
	<-f.done
}

// discard is a response that nobody reads.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(int)             {}
