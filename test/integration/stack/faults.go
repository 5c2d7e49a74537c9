package stack

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Fault says what happens to a request of a process on its way to the API server.
type Fault struct {
	// Before happens before the request goes on.
	Before func()
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
	server *httptest.Server

	mu     sync.Mutex
	choose func(*http.Request) *Fault
	seen   int
}

// NewFaults starts a proxy in front of the API server of a configuration.
func NewFaults(cfg *rest.Config) (*Faults, error) {
	target, err := url.Parse(cfg.Host)
	if err != nil {
		return nil, fmt.Errorf("reading the server's address: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(cfg.CAData) {
		return nil, errors.New("the server's CA is unreadable")
	}
	f := &Faults{}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}},
		FlushInterval: -1, // watches
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			w.WriteHeader(http.StatusBadGateway)
		},
	}
	// With TLS, since a client sends no token over a plain connection.
	f.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fault := f.pick(r)
		if fault != nil && fault.Before != nil {
			fault.Before()
		}
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
	}))
	f.server.EnableHTTP2 = true
	f.server.Config.ErrorLog = log.New(io.Discard, "", 0) // dropped connections are the point
	f.server.StartTLS()
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

// cluster is the proxy as a kubeconfig names it.
func (f *Faults) cluster() *clientcmdapi.Cluster {
	return &clientcmdapi.Cluster{Server: f.server.URL, CertificateAuthorityData: f.ca()}
}

// Config is a configuration that goes through the proxy, with the token of another one.
func (f *Faults) Config(token string) *rest.Config {
	return &rest.Config{Host: f.server.URL, BearerToken: token, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: f.ca()}}
}

func (f *Faults) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.server.Certificate().Raw})
}

// Close stops the proxy.
func (f *Faults) Close() {
	f.server.CloseClientConnections() // watches never end by themselves
	f.server.Close()
}

// discard is a response that nobody reads.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(int)             {}
