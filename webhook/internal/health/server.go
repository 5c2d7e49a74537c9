package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/healthz"
)

// Paths of the probes. Each takes ?verbose, and the name of a single check after it.
const (
	LivePath  = "/livez"
	ReadyPath = "/readyz"
)

// Server answers the probes on a listener of its own.
type Server struct {
	listener net.Listener
	http     *http.Server
}

// Listen opens the listener; address "0" is none. What the checks of readiness find is measured.
func Listen(address string, live, ready map[string]healthz.Checker) (*Server, error) {
	if address == "0" || address == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening for probes: %w", err)
	}
	mux := http.NewServeMux()
	for path, checks := range map[string]map[string]healthz.Checker{LivePath: live, ReadyPath: measured(ready)} {
		h := http.StripPrefix(path, &healthz.Handler{Checks: checks})
		mux.Handle(path, h)
		mux.Handle(path+"/", h)
	}
	return &Server{listener: l, http: &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
		IdleTimeout: 30 * time.Second, MaxHeaderBytes: 8 << 10,
	}}, nil
}

// Run serves until the context ends.
func (s *Server) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = s.http.Close() }) // a probe that is cut off is sent again
	defer stop()
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Remembered makes the result of a check good for a while, whoever asks how often; those who ask
// while it is looked for wait for the same one. What is found is for all of them: that one who asks
// hangs up is not heard, so the check needs a bound of its own.
func Remembered(check healthz.Checker, d time.Duration) healthz.Checker {
	var mu sync.Mutex
	var at time.Time
	var last error
	return func(r *http.Request) error {
		mu.Lock()
		defer mu.Unlock()
		if at.IsZero() || time.Since(at) >= d {
			last = check(r.WithContext(context.WithoutCancel(r.Context())))
			at = time.Now()
		}
		return last
	}
}

// Flag is a check that passes once it was set.
type Flag struct {
	set atomic.Bool
	// Missing says what is not so yet.
	Missing string
}

// Set makes the check pass.
func (f *Flag) Set() { f.set.Store(true) }

// IsSet reports whether it was set.
func (f *Flag) IsSet() bool { return f.set.Load() }

// Check is the check.
func (f *Flag) Check(*http.Request) error {
	if !f.set.Load() {
		return errors.New(f.Missing)
	}
	return nil
}
