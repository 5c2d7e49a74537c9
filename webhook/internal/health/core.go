// Package health says whether a process works: it runs the loops that the process cannot do
// without, ends it when one of them ends, and answers the kubelet's probes.
package health

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
)

// ErrStopped is why a core ends whose loop came to its end without being asked to.
var ErrStopped = errors.New("it stopped by itself")

// Core runs loops. When one of them ends, for whatever reason, all are asked to.
type Core struct {
	// Failpoint names a loop that ends a moment after it has begun, in binaries that tests
	// build.
	Failpoint string

	ctx    context.Context
	cancel context.CancelFunc
	loops  sync.WaitGroup

	mu    sync.Mutex
	runs  map[string]bool
	first error
}

// failAfter is when the loop of a failpoint ends.
const failAfter = 3 * time.Second

// NewCore returns a core whose loops end with the context.
func NewCore(ctx context.Context) *Core {
	c := &Core{runs: map[string]bool{}}
	c.ctx, c.cancel = context.WithCancel(ctx)
	return c
}

// Context ends with the core.
func (c *Core) Context() context.Context { return c.ctx }

// Go runs a loop. Its name is that of a check, and goes to the log when it ends.
func (c *Core) Go(name string, loop func(context.Context) error) {
	c.mu.Lock()
	c.runs[name] = true
	c.mu.Unlock()
	c.loops.Go(func() {
		ctx := c.ctx
		if name == c.Failpoint {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, failAfter)
			defer cancel()
		}
		var err error
		defer func() {
			// The runtime would end the process with the code of flags that make no sense.
			if r := recover(); r != nil {
				err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
			}
			c.end(name, err)
		}()
		err = loop(ctx)
	})
}

// Fail ends the core because of what is not one of its loops.
func (c *Core) Fail(name string, err error) { c.end(name, err) }

// end notes that something has ended, and asks all loops to.
func (c *Core) end(name string, err error) {
	c.mu.Lock()
	asked := c.ctx.Err() != nil
	switch {
	case err == nil && !asked:
		err = ErrStopped
	case asked && errors.Is(err, context.Canceled):
		err = nil // that is what it was asked to do
	}
	if _, loop := c.runs[name]; loop {
		c.runs[name] = false
	}
	if err != nil && c.first == nil {
		c.first = fmt.Errorf("%s: %w", name, err)
	}
	c.mu.Unlock()
	c.cancel()
}

// Wait waits for all loops, and returns what Err does.
func (c *Core) Wait() error {
	c.loops.Wait()
	return c.Err()
}

// Err is what went wrong first: a loop ended without being asked to, or could not end well. It
// is nil while all run, and after an end that was asked for.
func (c *Core) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.first
}

// Live is a check that fails when a loop does not run.
func (c *Core) Live(*http.Request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ended []string
	for name, runs := range c.runs {
		if !runs {
			ended = append(ended, name)
		}
	}
	if len(ended) > 0 {
		slices.Sort(ended)
		return fmt.Errorf("not running: %s", strings.Join(ended, ", "))
	}
	return nil
}
