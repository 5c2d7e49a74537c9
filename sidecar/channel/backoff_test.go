package channel

import (
	"testing"
	"time"
)

func TestBackoff(t *testing.T) {
	t.Parallel()
	almostOne := 1 - 1e-12
	tests := map[string]struct {
		failures int // that came before
		random   float64
		want     time.Duration
	}{
		"the first delay is at least half of 250 ms":   {failures: 0, random: 0, want: 125 * time.Millisecond},
		"the first delay is at most 250 ms":            {failures: 0, random: almostOne, want: 250 * time.Millisecond},
		"the jitter is spread evenly":                  {failures: 0, random: 0.5, want: 187500 * time.Microsecond},
		"the second delay is twice as long":            {failures: 1, random: 0, want: 250 * time.Millisecond},
		"the fifth delay is the last below the cap":    {failures: 4, random: almostOne, want: 4 * time.Second},
		"the sixth delay is capped":                    {failures: 5, random: almostOne, want: MaxDelay},
		"the cap is jittered, too":                     {failures: 5, random: 0, want: MaxDelay / 2},
		"a hundred failures do not overflow the delay": {failures: 100, random: almostOne, want: MaxDelay},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var b Backoff
			for range tc.failures {
				b, _ = b.Failed(almostOne)
			}
			_, got := b.Failed(tc.random)
			if diff := (got - tc.want).Abs(); diff > time.Microsecond {
				t.Errorf("got %v, want %v", got, tc.want)
			}
			if _, got := b.Succeeded().Failed(tc.random); got > firstDelay {
				t.Errorf("after a success the delay is %v, want at most %v", got, firstDelay)
			}
		})
	}
}
