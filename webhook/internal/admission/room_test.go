package admission

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestWhoIsSentAway: while somebody waits for room a part may come slowly for a while, and nothing
// of it for a shorter one; where nobody waits nobody is sent away.
func TestWhoIsSentAway(t *testing.T) {
	t.Parallel()
	const sends = 100 * time.Millisecond
	for name, c := range map[string]struct {
		sends bool
		// waits is when somebody comes who waits, and gets when it has its room.
		waits, gets time.Duration
	}{
		"nothing comes": {false, 0, patience},
		"nothing has come for long when somebody comes": {false, time.Hour, time.Hour},
		"bytes come, and never a whole part":            {true, 0, longPart - sends + patience},
		"so they do when somebody comes":                {true, time.Hour, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				begun, cut := time.Now(), make(chan struct{})
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
				defer cancel()
				r := newRoom(10)
				a := &arrival{room: r, cut: func() { close(cut) }}
				if err := a.take(t.Context(), 10, 10); err != nil {
					t.Fatal(err)
				}
				go func() {
					tick := time.NewTicker(sends)
					defer tick.Stop()
					for {
						select {
						case <-ctx.Done():
							return
						case <-cut:
							a.came()
							a.keep(0)
							return
						case <-tick.C:
							if c.sends {
								a.comesOn()
							}
						}
					}
				}()
				<-time.After(c.waits)
				select {
				case <-cut:
					t.Error("it was sent away though nobody waits")
				default:
				}
				b := &arrival{room: r}
				if err := b.take(ctx, 1, 10); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(begun); took != c.gets {
					t.Errorf("room after %s, want %s", took, c.gets)
				}
			})
		})
	}
}

// TestARoomIsTakenInTurn: by the first that fits, only where all that it lacks fits, and by
// nobody who has given up.
func TestARoomIsTakenInTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(10)
		arrives := func() *arrival { return &arrival{room: r, cut: func() {}} }
		first := arrives()
		if err := first.take(t.Context(), 6, 10); err != nil {
			t.Fatal(err)
		}
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		got := make(chan string, 4)
		wait := func(ctx context.Context, name string, lacks int64) *arrival {
			a := arrives()
			go func() {
				err := a.take(ctx, 1, lacks)
				if errors.Is(err, context.DeadlineExceeded) {
					name += " gave up"
				}
				got <- name
			}()
			synctest.Wait()
			return a
		}
		wait(impatient, "impatient", 5)
		wait(t.Context(), "large", 9)
		small := wait(t.Context(), "small", 5)
		tiny := wait(t.Context(), "tiny", 4)
		if s := <-got; s != "tiny" {
			t.Error(s) // it fits at once
		}
		if s := <-got; s != "impatient gave up" {
			t.Error(s)
		}
		first.keep(3)
		if s := <-got; s != "small" {
			t.Error(s)
		}
		first.keep(0)
		synctest.Wait()
		if r.free != 8 || r.waiting.Len() != 1 {
			t.Errorf("%d are free, %d wait", r.free, r.waiting.Len())
		}
		small.keep(0)
		tiny.keep(0)
		if s := <-got; s != "large" {
			t.Error(s)
		}
	})
}
