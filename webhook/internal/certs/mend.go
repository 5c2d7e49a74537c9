package certs

import (
	"crypto/x509"
	"time"
)

// Found is what was found at the Secret's place.
type Found int

// Founds. Unseen is the zero value: it could not be read.
const (
	Unseen Found = iota
	Gone
	Blank
	Broken
	Good
)

// Remedy is what a replica does about it.
type Remedy string

// Remedies.
const (
	Leave   Remedy = ""
	Restore Remedy = "restore" // write what was there before
	Make    Remedy = "make"    // make a CA
)

// mending is what a remedy depends on.
type mending struct {
	found Found
	// since is for how long the very same has been found broken, by a clock that does not jump.
	since time.Duration
	// foreign: somebody else writes the Secret.
	foreign bool
	// remembered: this replica knows what it had before.
	remembered bool
}

// remedy decides what to do when the Secret has no CA that can be used. A Secret that is gone
// comes back as it was: with another CA, which nobody trusts yet, calls would be lost. One that
// is broken may be half-written; it is left alone for one look at the clock, and for another one
// by replicas that know nothing better than a new CA, so that one that does comes first.
func remedy(m mending, every time.Duration) Remedy {
	better := Make
	if m.remembered {
		better = Restore
	}
	wait := every
	if !m.remembered {
		wait = 2 * every
	}
	switch {
	case m.foreign:
		return Leave
	case m.found == Gone:
		return better
	case m.found == Blank && (!m.remembered || m.since >= every):
		return better
	case m.found == Broken && m.since >= wait:
		return better
	}
	return Leave
}

// adopts decides whether a replica serves a certificate of another CA, next, from now on. A CA
// can come without the phases of a rotation: by hand, from a backup, from an older release. Until
// the registrations trust it, and until it is valid, the former certificate is the one that is
// trusted, as long as it is valid. former is nil for none.
func adopts(former, next *x509.Certificate, now time.Time, trusted Answer) bool {
	return former == nil || !valid(former, now) || trusted == Yes && !now.Before(next.NotBefore)
}
