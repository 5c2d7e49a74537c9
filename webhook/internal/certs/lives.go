package certs

import (
	"fmt"
	"time"
)

// Lives are the times of certificates.
type Lives struct {
	// CA and Leaf are how long certificates are valid from when they are made.
	CA, Leaf time.Duration
	// Settle is how long something has to be so at all API servers' doors before it counts as
	// seen behind them: kubelets bring a ConfigMap to the files of Pods within two minutes, and
	// API servers learn of a registration within seconds.
	Settle time.Duration
}

// Defaults. A leaf is renewed after two thirds of its life, and for that a replica needs no API
// server: seven days outlast any outage that belay could be of use in, and bound what a stolen
// key is good for. A CA is replaced after eight months, so that the replacement is no event of
// a lifetime, and one of a cluster that was switched off for a quarter of a year is still good.
// Settle is more than twice what kubelets take.
const (
	DefaultCALife   = 365 * 24 * time.Hour
	DefaultLeafLife = 7 * 24 * time.Hour
	DefaultSettle   = 5 * time.Minute
)

const (
	// backdated is how far certificates reach back: clients' clocks may be behind, some of them
	// by hours (case T07), and the clock that the first CA is made by may be ahead.
	backdated = 365 * 24 * time.Hour
	// mostEvery is how long the clock is not looked at, at most.
	mostEvery = time.Minute
	// shares is in how many parts a life is divided: the last one is for the replacement.
	shares = 3
	// looks is how often the clock is looked at, at least, from when a leaf is due until it
	// expires (case T04).
	looks = 10
)

// Bounds of the times, for which flags are checked.
const (
	minLeafLife = 30 * time.Second
	maxCALife   = 10 * 365 * 24 * time.Hour
	maxSettle   = 24 * time.Hour
)

// Validate says which time makes no sense.
func (l Lives) Validate() error {
	switch {
	case l.Leaf < minLeafLife:
		return fmt.Errorf("a certificate's life of %s: must be at least %s", l.Leaf, minLeafLife)
	case l.CA < 2*l.Leaf || l.CA > maxCALife:
		return fmt.Errorf("a CA's life of %s: must be at least twice that of a certificate, %s, and at most %s", l.CA, l.Leaf, maxCALife)
	case l.Settle <= 0 || l.Settle > maxSettle:
		return fmt.Errorf("%s for a CA to be seen: must be above 0 and at most %s", l.Settle, maxSettle)
	case 4*l.Settle > l.CA/shares:
		// Two phases of it, and as much again for what takes longer.
		return fmt.Errorf("%s for a CA to be seen: must be at most a twelfth of its life, %s, or it expires while it is replaced", l.Settle, l.CA)
	}
	return nil
}

// Every is how often the clock is looked at.
func (l Lives) Every() time.Duration { return min(mostEvery, l.Leaf/shares/looks) }
