package channel

import "time"

const (
	// firstDelay is about the time that a Service needs to stop sending to a
	// replica that went away in order.
	firstDelay = 250 * time.Millisecond
	// MaxDelay bounds every delay. A collector that comes back is heard by all
	// sidecars within it.
	MaxDelay = 5 * time.Second
	// doublings is how many it takes from firstDelay past MaxDelay.
	doublings = 5
)

// Backoff says how long to wait after failures in a row: 250 ms, doubled each
// time up to 5 s, and jittered down to half so that callers that failed
// together do not come back together. It is a value without clock or
// randomness of its own; the zero value has seen no failure.
type Backoff struct {
	failures int
}

// Failed counts one more failure and returns the delay before the next try.
// random is a number in [0, 1), such as from rand.Float64.
func (b Backoff) Failed(random float64) (Backoff, time.Duration) {
	full := min(firstDelay<<b.failures, MaxDelay)
	delay := full/2 + time.Duration(random*float64(full/2))
	return Backoff{failures: min(b.failures+1, doublings)}, delay
}

// Succeeded forgets all failures.
func (b Backoff) Succeeded() Backoff { return Backoff{} }
