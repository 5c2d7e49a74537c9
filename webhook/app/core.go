package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/belay-dev/belay/webhook/internal/health"
)

// failpoint names a part of the core that ends by itself a moment after the start: manager,
// certificates or collector. It is set when tests build a binary, by -ldflags
// "-X …/webhook/app.failpoint=collector", and in no other way.
var failpoint string

const (
	// finishTimeout bounds what is under way at the end of a drain: an admission call takes 5 s at
	// most, a report 10 s.
	finishTimeout = 15 * time.Second
	// drainMore is how much longer than --drain a replica answers at most, while it is called:
	// nodes that have too much to do take long to bring the Service's rules up to date, and who
	// dials by old ones would find nobody. With --drain's 10 s, finishTimeout and lingers it fits
	// into the 45 s that the manifests give a Pod.
	drainMore = 10 * time.Second
	// forgotten is how long nobody has to have called until a replica takes itself for forgotten.
	forgotten = 2 * time.Second
)

// certificatesLoop keeps the serving certificate.
const certificatesLoop = "certificates"

// core is what a process cannot do without. It ends some time after the signal: others have to
// hear first that this replica is not ready any more.
type core struct {
	*health.Core
	log    logr.Logger
	signal context.Context
	drains atomic.Bool
	// leaves is set in the second half of the drain.
	leaves atomic.Bool
	// called is when a review was read last, in nanoseconds since 1970.
	called atomic.Int64
	cancel context.CancelFunc
}

func newCore(signal context.Context, log logr.Logger, drain time.Duration) *core {
	ctx, cancel := context.WithCancel(logr.NewContext(context.WithoutCancel(signal), log))
	c := &core{Core: health.NewCore(ctx), log: log, signal: signal, cancel: cancel}
	c.Failpoint = failpoint
	context.AfterFunc(signal, func() {
		c.drains.Store(true)
		log.Info("draining", "for", drain.String())
		for range 2 {
			select {
			case <-time.After(drain / 2):
			case <-ctx.Done():
			}
			c.leaves.Store(true)
		}
		c.untilQuiet(ctx, min(drain, drainMore))
		cancel()
	})
	return c
}

// untilQuiet waits while reviews come, for so long at most.
func (c *core) untilQuiet(ctx context.Context, most time.Duration) {
	for end := time.Now().Add(most); ; {
		wait := min(time.Until(time.Unix(0, c.called.Load()).Add(forgotten)), time.Until(end))
		if wait <= 0 {
			return
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// calls notes when reviews come. What is refused before it is read does not count.
func (c *core) calls(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.called.Store(time.Now().UnixNano())
		h.ServeHTTP(w, r)
	})
}

// closing has HTTP/1.1 answers say from the signal on that their connection closes, so that the
// next call is made over a new one, which goes to a replica that stays. HTTP/2 is told in the
// second half of the drain: its connections carry many calls, and would be made anew, to this
// process again, until others have heard that it leaves.
func (c *core) closing(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c.drains.Load() && (r.ProtoMajor < 2 || c.leaves.Load()) {
			w.Header().Set("Connection", "close") // over HTTP/2 it becomes a GOAWAY
		}
		h.ServeHTTP(w, r)
	})
}

// draining is a check that fails from the signal on.
func (c *core) draining(*http.Request) error {
	if c.drains.Load() {
		return errors.New("the process is about to stop")
	}
	return nil
}

// run runs the manager with the other loops, and the probes until all of them have ended.
func (c *core) run(name, probes string, ready map[string]healthz.Checker, mgr manager.Manager, caches *gate) error {
	defer c.cancel()
	answers, err := health.Listen(probes, map[string]healthz.Checker{"core": c.Live}, ready)
	if err != nil {
		return err
	}
	if answers != nil {
		probing, stop := context.WithCancel(context.WithoutCancel(c.signal))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if err := answers.Run(probing); probing.Err() == nil {
				c.Fail("probes", err)
			}
		}()
		defer func() { stop(); <-ended }()
	}
	c.Go("manager", mgr.Start)
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	select {
	case err = <-ended:
	case <-c.Context().Done():
		if caches != nil && !caches.synced.Load() {
			// A manager whose caches are not synced does not hear the signal: it waits for
			// them first. There is no traffic yet that would have to be drained.
			select {
			case err = <-ended:
			case <-time.After(time.Second):
				c.log.Info("stopping before the caches were synced")
				err = c.Err()
			}
			break
		}
		err = <-ended
	}
	if err != nil {
		return fmt.Errorf("%s stopped: %w", name, err)
	}
	return nil
}
