package health

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func until(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func TestACoreEndsWithTheFirstOfItsLoops(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		loop func(context.Context) error
		is   error
		want string
	}{
		"a loop that ends without an error":       {func(context.Context) error { return nil }, ErrStopped, "a: it stopped by itself"},
		"a loop that fails":                       {func(context.Context) error { return broken }, broken, "a: broken"},
		"a loop whose own work was cancelled":     {func(context.Context) error { return fmt.Errorf("x: %w", context.Canceled) }, context.Canceled, "a: x: context canceled"},
		"a loop that panics":                      {func(context.Context) error { panic("no map") }, nil, "a: panic: no map\ngoroutine "},
		"a loop whose goroutine ends":             {func(context.Context) error { runtime.Goexit(); return nil }, ErrStopped, "a: it stopped by itself"},
		"P16: a loop that gives up after a while": {func(context.Context) error { <-time.After(time.Hour); return broken }, broken, "a: broken"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				core := NewCore(t.Context())
				var asked atomic.Int32
				for _, name := range []string{"b", "c"} {
					core.Go(name, func(ctx context.Context) error {
						<-ctx.Done()
						asked.Add(1)
						return ctx.Err()
					})
					synctest.Wait()
				}
				if err := core.Live(nil); err != nil {
					t.Errorf("while all run: %v", err)
				}
				core.Go("a", c.loop)
				err := core.Wait()
				if err == nil || !strings.HasPrefix(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) {
					t.Errorf("%v", err)
				}
				if asked.Load() != 2 || core.Context().Err() == nil {
					t.Errorf("%d other loops were asked to end, context: %v", asked.Load(), core.Context().Err())
				}
				if err := core.Live(nil); err == nil || err.Error() != "not running: a, b, c" {
					t.Errorf("afterwards: %v", err)
				}
			})
		})
	}
}

func TestLiveNamesWhatDoesNotRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		core := NewCore(t.Context())
		if err := core.Live(nil); err != nil {
			t.Errorf("before the first: %v", err)
		}
		last := make(chan struct{})
		core.Go("slow", func(context.Context) error { <-last; return nil })
		core.Go("quick", until)
		core.Go("broken", func(context.Context) error { return errors.New("x") })
		synctest.Wait()
		if err := core.Live(nil); err == nil || err.Error() != "not running: broken, quick" {
			t.Errorf("while one still ends: %v", err)
		}
		if err := core.Err(); err == nil || err.Error() != "broken: x" {
			t.Errorf("while one still ends: %v", err)
		}
		close(last)
		if err := core.Wait(); err == nil || err.Error() != "broken: x" {
			t.Error(err)
		}
	})
}

func TestTheFirstReasonCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		core := NewCore(t.Context())
		core.Go("second", func(ctx context.Context) error { <-ctx.Done(); return errors.New("closed") })
		core.Go("first", func(context.Context) error { <-time.After(time.Second); return errors.New("lease lost") })
		if err := core.Wait(); err == nil || err.Error() != "first: lease lost" {
			t.Error(err)
		}
	})
}

func TestAnEndThatWasAskedFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		loop func(context.Context) error
		want string // empty for no error
	}{
		"a loop that ends":                       {until, ""},
		"a loop that says that it was cancelled": {func(ctx context.Context) error { <-ctx.Done(); return fmt.Errorf("watching: %w", ctx.Err()) }, ""},
		"a loop that could not end well is told": {func(ctx context.Context) error { <-ctx.Done(); return errors.New("requests were cut off") }, "a: requests were cut off"},
		"a loop that panics at its end is told":  {func(ctx context.Context) error { <-ctx.Done(); panic("x") }, "a: panic: x\n"},
		"a loop that takes its time":             {func(ctx context.Context) error { <-ctx.Done(); <-time.After(time.Minute); return nil }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				core := NewCore(ctx)
				core.Go("a", c.loop)
				core.Go("b", until)
				<-time.After(time.Minute)
				if err := core.Err(); err != nil {
					t.Errorf("before: %v", err)
				}
				cancel()
				err := core.Wait()
				if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
					t.Error(err)
				}
			})
		})
	}
}

func TestWhatIsNoLoopEndsACore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		core := NewCore(t.Context())
		core.Go("a", until)
		core.Fail("probes", errors.New("closed"))
		if err := core.Wait(); err == nil || err.Error() != "probes: closed" {
			t.Error(err)
		}
		if err := core.Live(nil); err == nil || err.Error() != "not running: a" {
			t.Error(err)
		}
	})
}

func TestAFailpointEndsOneLoop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		core := NewCore(t.Context())
		core.Failpoint = "a"
		start := time.Now()
		core.Go("a", until)
		core.Go("b", func(ctx context.Context) error {
			<-ctx.Done()
			if _, bounded := ctx.Deadline(); bounded {
				t.Error("b has the failpoint")
			}
			return nil
		})
		if err := core.Wait(); err == nil || err.Error() != "a: it stopped by itself" || !errors.Is(err, ErrStopped) {
			t.Error(err)
		}
		if d := time.Since(start); d != failAfter {
			t.Errorf("after %s", d)
		}
	})
}
