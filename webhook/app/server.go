package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/belay-dev/belay/webhook/internal/admission"
	"github.com/belay-dev/belay/webhook/internal/certs"
)

// server is an HTTPS server that anybody may reach. The contexts of its calls do not end with
// the one that it runs in.
type server struct {
	name     string
	listener *crowd
	http     *http.Server
	// finish bounds the end of calls that are under way.
	finish time.Duration
	serves atomic.Bool
}

// run serves until the context ends, and then ends the calls that are under way.
func (s *server) run(ctx context.Context) error {
	ended := make(chan error, 1)
	s.serves.Store(true)
	defer s.serves.Store(false)
	go func() { ended <- s.http.ServeTLS(s.listener, "", "") }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.finish)
	defer cancel()
	if err := s.http.Shutdown(last); err != nil {
		_ = s.http.Close() // callers take it for a failed call, and sidecars send again
	}
	s.listener.left() // the process ends after this, and would break them
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// check is a check that the server takes connections. It makes none: whoever floods the port
// must not take the replica out of service.
func (s *server) check(*http.Request) error {
	if !s.serves.Load() {
		return fmt.Errorf("the %s does not run", s.name)
	}
	return nil
}

// quiet logs what an HTTP server says, such as handshakes that failed, at level 1: anybody can
// cause it.
func quiet(l logr.Logger, who string) *log.Logger { return log.New(logWriter{l, who}, "", 0) }

type logWriter struct {
	log logr.Logger
	who string
}

// Write logs a line.
func (w logWriter) Write(p []byte) (int, error) {
	w.log.V(1).Info(w.who, "message", strings.TrimSpace(string(p)))
	return len(p), nil
}

const (
	// maxCallers is how many connections the admission server has at a time. An API server has
	// one over HTTP/2 for each entry that it calls, and more where it has more calls under way
	// than that takes. One takes some 50 KiB without its calls.
	maxCallers = 250
	// maxCallers1 is how many there are where it speaks HTTP/1.1 alone: one for each call that
	// is under way, of some 25 KiB.
	maxCallers1 = rush
	// rush is how many connections there may be for a moment.
	rush = 600
	// maxStreams is how many calls one connection has under way; Go's own bound. For each call
	// beyond it, an API server dials a connection of its own at once, and a burst would crowd
	// itself out. How many calls there are in all is bounded by admission.Bodies.
	maxStreams = 250
	// streamWindow and connWindow are how much of reviews that are not read yet, since they
	// wait for room, is kept for one call, and for all of a connection: those that may wait keep
	// no other one of their connection waiting. The former is also what comes in a round trip.
	streamWindow, connWindow = 64 << 10, (admission.MaxWaiting + 1) * streamWindow
	// maxFrame is the least that HTTP/2 has: a frame has its memory before it has come.
	maxFrame = 16 << 10
	// lingers is how long a connection waits for an API server that has not heard of its end; by
	// then its call would have timed out, as most entries have it.
	lingers = 3 * time.Second
	// callersIdle is what Go's clients keep idle connections for.
	callersIdle = 90 * time.Second
)

// admissionServer is the HTTPS server of admission: that of controller-runtime takes the
// handlers, with its metrics, but has no bounds of its own for connections, calls and memory,
// and its calls' contexts end with the manager's, before their answer.
type admissionServer struct {
	webhook.Server
	address string
	http2   bool
	tls     *tls.Config
	log     logr.Logger
	runs    atomic.Pointer[server]
}

func newAdmissionServer(address string, http2 bool, config *tls.Config, log logr.Logger) *admissionServer {
	return &admissionServer{
		Server:  webhook.NewServer(webhook.Options{WebhookMux: http.NewServeMux()}),
		address: address, http2: http2, tls: config, log: log,
	}
}

// Start serves until the context ends, and then ends the reviews that are under way.
func (s *admissionServer) Start(ctx context.Context) error {
	l, err := net.Listen("tcp", s.address)
	if err != nil {
		return fmt.Errorf("listening for reviews: %w", err)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(s.http2)
	most := maxCallers
	if !s.http2 {
		most = maxCallers1
	}
	c := newCrowd(l, most)
	c.share, c.rush, c.lingers = true, rush, lingers
	serves := &server{name: "admission server", listener: c, finish: finishTimeout, http: &http.Server{
		Handler: s.WebhookMux(), ErrorLog: quiet(s.log, "admission server"), Protocols: protocols, ConnState: states, ConnContext: answering, TLSConfig: s.tls,
		ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 40 * time.Second, // a review takes 30 s at most
		IdleTimeout: callersIdle, MaxHeaderBytes: 16 << 10,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, MaxReadFrameSize: maxFrame,
			MaxReceiveBufferPerStream: streamWindow, MaxReceiveBufferPerConnection: connWindow,
		},
	}}
	s.runs.Store(serves)
	s.log.Info("serving reviews", "listen", l.Addr().String())
	return serves.run(ctx)
}

// StartedChecker is a check that the server answers: it makes a TLS connection to it, which
// those of others do not crowd out, as there are fewer from here.
func (s *admissionServer) StartedChecker() healthz.Checker {
	return func(r *http.Request) error {
		serves := s.runs.Load()
		if serves == nil {
			return errors.New("the admission server has not been started yet")
		}
		if err := serves.check(r); err != nil {
			return err
		}
		if _, err := certs.Served(r.Context(), s.address); err != nil {
			return fmt.Errorf("the admission server does not answer: %w", err)
		}
		return nil
	}
}
