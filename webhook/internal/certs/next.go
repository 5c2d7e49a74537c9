package certs

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"time"
)

// Phase is where a rotation is.
type Phase string

// Phases.
const (
	// Steady: one CA, which signs and is trusted.
	Steady Phase = "steady"
	// Adding: the next CA is trusted beside the one that signs.
	Adding Phase = "add"
	// Serving: the next CA signs, and the former one is still trusted.
	Serving Phase = "serve"
)

// phases are all of them.
var phases = []Phase{Steady, Adding, Serving}

// Action is what is to be done to the Secret.
type Action string

// Actions.
const (
	// Wait leaves it as it is.
	Wait Action = ""
	// Trust puts into the bundle what signs, or is about to, and is missing there.
	Trust Action = "trust"
	// Add makes the next CA, and has it trusted.
	Add Action = "add"
	// Serve has the next CA sign.
	Serve Action = "serve"
	// Drop ends the trust in the CAs that do not sign any more.
	Drop Action = "drop"
)

// Answer is what is known of a question. The zero value is that it could not be found out.
type Answer int

// Answers.
const (
	Unknown Answer = iota
	No
	Yes
)

// Proof is a fact about everybody: that all trust a CA, or that all serve a certificate of it.
type Proof struct {
	Answer Answer
	// Held is for how long it has been Yes at each look, by a clock that does not jump.
	Held time.Duration
	// Missing says who is not there yet, or why it could not be found out.
	Missing string
}

// Facts are what a rotation depends on besides the Secret.
type Facts struct {
	// Registered: the next CA is in every registration.
	Registered Proof
	// Distributed: it is in everything that sidecars are given.
	Distributed Proof
	// Served: every replica serves a certificate of the CA that signs.
	Served Proof
	// Lapsed: what is waited for is worth nothing any more: while a CA is added, the one that
	// signs has expired; while it is served, all former ones have. By one look at a clock that has
	// jumped they would have, too.
	Lapsed Proof
}

// Step is what is to be done now.
type Step struct {
	Phase  Phase
	Action Action
	// Because says why, or what is waited for.
	Because string
}

const (
	// patience is how many times Settle what sidecars are given may keep a rotation waiting:
	// a tenant who undoes belay's writes in a namespace of theirs must not keep a CA that was
	// stolen in force. Their sidecars report again when they are through.
	patience = 10
	// mostTrusted bounds the bundle: rotations are asked for by hand, and each waits for all
	// replicas.
	mostTrusted = 4
)

// Next decides what is to be done to the Secret. It is a step at a time: whatever comes between
// two of them, the next one is decided on what is there then.
func Next(st *State, f Facts, l Lives, now time.Time) Step {
	if st == nil {
		return Step{Steady, Wait, "there is no CA that could be used; belay-webhook makes the first one"}
	}
	signer := st.Signer.Cert
	phase := phaseOf(st)
	step := func(a Action, because string, args ...any) Step { return Step{phase, a, fmt.Sprintf(because, args...)} }
	if !st.trusts(signer) || st.Next != nil && !st.trusts(st.Next.Cert) {
		return step(Trust, "the bundle lacks a CA that signs, or will")
	}
	switch phase {
	case Adding:
		next := st.Next.Cert
		switch r, d := f.Registered, f.Distributed; {
		case !now.Before(due(next, l.CA)):
			return step(Add, "the next CA has grown old before it was used")
		case f.Lapsed.Held >= l.Settle && r.Answer != No:
			// Nobody trusts what is served now, and waiting would help nobody.
			return step(Serve, "the CA has expired")
		case r.Answer != Yes:
			return step(Wait, "for the next CA to be in all registrations: %s", r.Missing)
		case r.Held < l.Settle:
			return step(Wait, "for API servers to see the next CA")
		case d.Answer == Yes && d.Held >= l.Settle:
			return step(Serve, "the next CA is trusted everywhere")
		case r.Held >= patience*l.Settle:
			return step(Serve, "the next CA is in all registrations, and sidecars were waited for long enough: %s", d.Missing)
		case d.Answer != Yes:
			return step(Wait, "for sidecars to be given the next CA: %s", d.Missing)
		default:
			return step(Wait, "for kubelets to bring the next CA to sidecars")
		}
	case Serving:
		switch s := f.Served; {
		case s.Answer == Yes && s.Held >= l.Settle:
			return step(Drop, "every replica serves a certificate of the new CA")
		case f.Lapsed.Held >= l.Settle:
			return step(Drop, "the former CA has expired")
		case wanted(st, l, now) == "":
			if s.Answer == Yes {
				return step(Wait, "for every replica to have served a certificate of the new CA for a while")
			}
			return step(Wait, "for every replica to serve a certificate of the new CA: %s", s.Missing)
		case len(st.Trusted) >= mostTrusted:
			return step(Wait, "for every replica to serve a certificate of the new CA, before the next one is made: %s", s.Missing)
		}
	}
	if because := wanted(st, l, now); because != "" {
		return step(Add, "%s", because)
	}
	return step(Wait, "")
}

// lapsed says which of the CAs that are waited for are worth waiting for.
func lapsed(st *State, now time.Time) Lacks {
	return func(context.Context, *x509.Certificate) ([]string, error) {
		var out []string
		if st.Next != nil && !expired(st.Signer.Cert, now) {
			out = append(out, Fingerprint(st.Signer.Cert))
		}
		for _, c := range st.Trusted {
			if st.Next == nil && !c.Equal(st.Signer.Cert) && !expired(c, now) {
				out = append(out, Fingerprint(c))
			}
		}
		return out, nil
	}
}

// phaseOf is the phase that the Secret is in.
func phaseOf(st *State) Phase {
	switch {
	case st.Next != nil:
		return Adding
	case slices.ContainsFunc(st.Trusted, func(c *x509.Certificate) bool { return !c.Equal(st.Signer.Cert) }):
		return Serving
	}
	return Steady
}

// wanted says why the CA is to be replaced; empty when it is not.
func wanted(st *State, l Lives, now time.Time) string {
	switch {
	case st.Asked != "" && st.Asked != st.Done:
		return "annotation " + RotateAnnotation + " asks for it"
	case expired(st.Signer.Cert, now):
		return "the CA has expired"
	case !now.Before(due(st.Signer.Cert, l.CA)):
		return "the CA has used two thirds of its life"
	}
	return ""
}

// after is the state after an action; made is the CA that Add wants.
func (st *State) after(a Action, made *Authority) *State {
	out := *st
	out.Trusted = slices.Clone(st.Trusted)
	out.Retired = slices.Clone(st.Retired)
	add := func(c *x509.Certificate) {
		if !out.trusts(c) {
			out.Trusted = append(out.Trusted, c)
		}
	}
	switch a {
	case Trust:
		add(st.Signer.Cert)
		if st.Next != nil {
			add(st.Next.Cert)
		}
	case Add:
		if st.Next != nil {
			out.retire(func(c *x509.Certificate) bool { return c.Equal(st.Next.Cert) })
		}
		out.Next, out.Done = made, st.Asked
		add(made.Cert)
	case Serve:
		out.Signer, out.Next = st.Next, nil
	case Drop:
		out.retire(func(c *x509.Certificate) bool { return !c.Equal(st.Signer.Cert) })
	}
	return &out
}

// retire ends the trust in some of the CAs.
func (st *State) retire(which func(*x509.Certificate) bool) {
	for _, c := range st.Trusted {
		if which(c) {
			st.Retired = append(st.Retired, Fingerprint(c))
		}
	}
	st.Retired = st.Retired[max(0, len(st.Retired)-mostRetired):]
	st.Trusted = slices.DeleteFunc(st.Trusted, which)
}
