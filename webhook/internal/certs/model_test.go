package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// world is a cluster in which everything takes its time: registrations and ConfigMaps follow the
// Secret, API servers and kubelets follow those, each replica follows the Secret; leaders
// change, looks fail, clocks on the wall jump.
type world struct {
	random *rand.Rand
	lives  Lives
	// elapsed is the time that really passes; wall is by how much a process's clock is off it.
	elapsed  time.Duration
	wall     map[string]time.Duration
	secret   *State
	cas      []*Authority
	replicas []*replica
	// registered is what the registrations have, and given what sidecars are given.
	registered, given []*x509.Certificate
	// views are what an API server and a kubelet see of them, late.
	apiserver, kubelet []seen
	hostile            bool
	rotation           *Rotation
	trace              []string
}

type replica struct {
	name string
	ca   *x509.Certificate
	leaf *tls.Certificate
	hung bool
}

// seen is what was there at a time.
type seen struct {
	at  time.Duration
	has []*x509.Certificate
}

func (w *world) now(who string) time.Time { return day0.Add(w.elapsed + w.wall[who]) }

// late is what one sees who is so late.
func late(views []seen, now, by time.Duration) []*x509.Certificate {
	var out []*x509.Certificate
	for _, v := range views {
		if v.at <= now-by {
			out = v.has
		}
	}
	return out
}

var errLook = errors.New("the look failed")

func (w *world) lacks(has func() []*x509.Certificate) Lacks {
	return func(_ context.Context, ca *x509.Certificate) ([]string, error) {
		if w.random.IntN(10) == 0 {
			return nil, errLook
		}
		if !slices.ContainsFunc(has(), ca.Equal) {
			return []string{"somebody"}, nil
		}
		return nil, nil
	}
}

// controller takes a look with a real Rotation, and takes the step on the world's Secret.
func (w *world) controller(t *testing.T) {
	if w.random.IntN(200) == 0 {
		w.rotation.held = nil // another leader
	}
	f := w.factsNow()
	step := Next(w.secret, f, w.lives, w.now("controller"))
	if step.Action == Wait {
		return
	}
	var made *Authority
	if step.Action == Add {
		var err error
		made, err = NewAuthority(w.now("controller"), w.lives.CA, w.secret.Signer)
		must(t, err)
		w.cas = append(w.cas, made)
	}
	w.trace = append(w.trace, fmt.Sprintf("%s %s: %s", w.elapsed, step.Action, step.Because))
	after := w.secret.after(step.Action, made)
	s := &corev1.Secret{}
	after.write(s)
	read, err := Parse(s)
	must(t, err)
	w.secret = read
}

// factsNow is Rotation.facts, by the time that passes in the world.
func (w *world) factsNow() Facts {
	ask := func(what string, ca *x509.Certificate, l Lacks, held map[string]holding) Proof {
		p := Proof{Answer: Yes}
		if lacking, err := l(context.Background(), ca); err != nil {
			p.Answer = Unknown
		} else if len(lacking) > 0 {
			p.Answer = No
		}
		key := what + Fingerprint(ca)
		held[key] = w.rotation.held[key].seen(p.Answer, day0.Add(w.elapsed))
		if p.Answer == Yes {
			p.Held = held[key].sum
		}
		return p
	}
	held := map[string]holding{}
	var f Facts
	switch phaseOf(w.secret) {
	case Adding:
		f.Registered = ask("registered", w.secret.Next.Cert, w.lacks(func() []*x509.Certificate { return w.registered }), held)
		f.Distributed = ask("distributed", w.secret.Next.Cert, w.lacks(func() []*x509.Certificate { return w.given }), held)
	case Serving:
		f.Served = ask("served", w.secret.Signer.Cert, func(_ context.Context, ca *x509.Certificate) ([]string, error) {
			for _, r := range w.replicas {
				if r.hung || r.leaf.Leaf.CheckSignatureFrom(ca) != nil {
					return []string{r.name}, nil
				}
			}
			return nil, nil
		}, held)
	}
	f.Lapsed = ask("lapsed", w.secret.Signer.Cert, lapsed(w.secret, w.now("controller")), held)
	w.rotation.held = held
	return f
}

// step lets a second pass, in which each does something or not.
func (w *world) step(t *testing.T) {
	w.elapsed += time.Second
	if w.random.IntN(4) == 0 {
		w.registered = w.secret.Trusted
	}
	if w.random.IntN(4) == 0 {
		w.given = w.registered
	}
	if w.hostile && w.random.IntN(3) == 0 {
		w.given = nil
	}
	w.apiserver = append(w.apiserver, seen{w.elapsed, w.registered})
	w.kubelet = append(w.kubelet, seen{w.elapsed, w.given})
	for _, views := range []*[]seen{&w.apiserver, &w.kubelet} {
		for len(*views) > 1 && (*views)[1].at <= w.elapsed-2*w.lives.Settle {
			*views = (*views)[1:]
		}
	}
	for _, r := range w.replicas {
		if w.random.IntN(300) == 0 {
			r.hung = !r.hung
		}
		if r.hung || w.random.IntN(3) > 0 {
			continue
		}
		w.replica(t, r)
	}
	if w.random.IntN(5) == 0 {
		w.controller(t)
	}
}

// replica does what Source.renew does.
func (w *world) replica(t *testing.T, r *replica) {
	now := w.now(r.name)
	signer := w.secret.Signer
	switch {
	case r.leaf == nil:
	case !r.ca.Equal(signer.Cert):
		answer := No
		if slices.ContainsFunc(w.registered, signer.Cert.Equal) {
			answer = Yes
		}
		if !adopts(r.leaf.Leaf, signer.Cert, now, answer) {
			return
		}
	case now.Before(due(r.leaf.Leaf, w.lives.Leaf)):
		return
	}
	leaf, err := signer.Leaf(now, w.lives.Leaf, []string{"localhost"})
	if err != nil {
		return // by its clock the CA has expired: the former one is served on
	}
	r.leaf, r.ca = leaf, signer.Cert
}

// lost says which call would be lost now: by an API server, or by a sidecar, that is late by as
// much as they are given.
func (w *world) lost() string {
	for _, r := range w.replicas {
		if r.hung {
			continue
		}
		if now := day0.Add(w.elapsed); now.Before(r.leaf.Leaf.NotBefore) {
			return fmt.Sprintf("%s serves what is not valid yet, by %s", r.name, r.leaf.Leaf.NotBefore.Sub(now))
		}
		for who, views := range map[string][]seen{"API server": w.apiserver, "sidecar": w.kubelet} {
			if w.hostile && who == "sidecar" {
				continue // it is the tenant's own
			}
			for _, by := range []time.Duration{0, w.lives.Settle / 2, w.lives.Settle - 2*time.Second} {
				has := late(views, w.elapsed, by)
				if has == nil {
					continue
				}
				if !slices.ContainsFunc(has, r.ca.Equal) {
					return fmt.Sprintf("%s that is %s late does not trust %s", who, by, r.name)
				}
			}
		}
	}
	return ""
}

// TestNoCallIsLostWhateverTakesItsTime runs rotations that are asked for, in worlds of all kinds.
func TestNoCallIsLostWhateverTakesItsTime(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 1))
			first, err := NewAuthority(day0, usual.CA, nil)
			must(t, err)
			w := &world{
				random: random, lives: Lives{CA: usual.CA, Leaf: usual.Leaf, Settle: time.Duration(10+random.IntN(60)) * time.Second},
				secret: &State{Signer: first, Trusted: trusting(first)}, registered: trusting(first), given: trusting(first),
				wall: map[string]time.Duration{}, hostile: seed%5 == 4, rotation: &Rotation{},
			}
			for i := range 1 + random.IntN(3) {
				r := &replica{name: fmt.Sprint("replica ", i)}
				w.replica(t, r)
				w.replicas = append(w.replicas, r)
			}
			rotated := 0
			for range 4000 {
				if random.IntN(400) == 0 {
					// A clock on the wall jumps, by up to a month, or back to the truth. That of
					// whoever makes certificates does, too.
					who := []string{"controller", "replica 0", "replica 1"}[random.IntN(3)]
					w.wall[who] = time.Duration(random.IntN(60)-30) * day * time.Duration(random.IntN(2))
				}
				if w.secret.Asked == w.secret.Done {
					w.secret.Asked = fmt.Sprint("n", rotated)
					rotated++
				}
				w.step(t)
				if what := w.lost(); what != "" {
					t.Fatalf("at %s: %s\n%q", w.elapsed, what, w.trace)
				}
			}
			if rotated < 3 {
				t.Errorf("%d rotations: %q", rotated, w.trace)
			}
		})
	}
}

// TestAClusterThatWasOff: after any time, everything works again within the waits of a rotation.
func TestAClusterThatWasOff(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 2))
		first, err := NewAuthority(day0, usual.CA, nil)
		must(t, err)
		w := &world{
			random: random, lives: Lives{CA: usual.CA, Leaf: usual.Leaf, Settle: 20 * time.Second},
			secret: &State{Signer: first, Trusted: trusting(first)}, registered: trusting(first), given: trusting(first),
			wall: map[string]time.Duration{}, rotation: &Rotation{},
		}
		for i := range 2 {
			r := &replica{name: fmt.Sprint("replica ", i)}
			w.replica(t, r)
			w.replicas = append(w.replicas, r)
		}
		// Off in any phase, more than once.
		for range 3 {
			for range random.IntN(200) {
				if w.secret.Asked == w.secret.Done && random.IntN(50) == 0 {
					w.secret.Asked = fmt.Sprint(w.elapsed)
				}
				w.step(t)
			}
			w.elapsed += time.Duration(random.IntN(900)) * day
			w.rotation.held = nil
			for _, r := range w.replicas {
				r.hung = false
			}
			broken := 0
			for range 240 {
				w.step(t)
				for _, r := range w.replicas {
					r.hung = false
				}
				if expired(w.replicas[0].leaf.Leaf, w.now("")) || expired(w.replicas[1].leaf.Leaf, w.now("")) || w.lost() != "" {
					broken++
				}
			}
			for _, r := range w.replicas {
				if expired(r.leaf.Leaf, w.now("")) || !slices.ContainsFunc(w.registered, r.ca.Equal) {
					t.Fatalf("seed %d: %s serves what nobody takes: %q", seed, r.name, w.trace)
				}
			}
			if broken > 120 {
				t.Fatalf("seed %d: broken for %d s: %q", seed, broken, w.trace)
			}
		}
	}
}
