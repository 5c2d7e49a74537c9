package certs

import (
	"crypto/ecdsa"
	"crypto/x509"
	"math/rand/v2"
	"testing"
	"time"
)

func TestT07_CertificatesAreBackDated(t *testing.T) {
	t.Parallel()
	ca := newCA(t, day0)
	if got := day0.Sub(ca.Cert.NotBefore); got < time.Hour {
		t.Errorf("the CA is back-dated by %s", got)
	}
	if _, ok := ca.key.(*ecdsa.PrivateKey); !ok || !ca.Cert.IsCA || !ca.Cert.NotAfter.Equal(day0.Add(usual.CA)) {
		t.Errorf("%T %+v", ca.key, ca.Cert)
	}
	random := rand.New(rand.NewPCG(7, 7))
	for range 200 {
		// Whatever the clock of the replica says while its CA is valid by it.
		at := day0.Add(time.Duration(random.Int64N(int64(usual.CA+100*day))) - 100*day)
		life := time.Minute + time.Duration(random.Int64N(int64(30*day)))
		leaf, err := ca.Leaf(at, life, []string{"localhost", "127.0.0.1", "::1"})
		must(t, err)
		c := leaf.Leaf
		if c.NotBefore.Before(ca.Cert.NotBefore) || c.NotAfter.After(ca.Cert.NotAfter) || day0.Sub(c.NotBefore) < time.Hour {
			t.Errorf("at %s: from %s to %s", at, c.NotBefore, c.NotAfter)
		}
		if want := earlier(at.Add(life), ca.Cert.NotAfter).Truncate(time.Second); !c.NotAfter.Equal(want) {
			t.Errorf("at %s: until %s, want %s", at, c.NotAfter, want)
		}
		if len(c.DNSNames) != 1 || len(c.IPAddresses) != 2 || c.IsCA {
			t.Errorf("%+v", c)
		}
		// A client whose clock is hours behind the replica's takes it, as long as it is up to a
		// day behind the making of the CA.
		for _, behind := range []time.Duration{0, 30 * time.Second, 5 * time.Hour} {
			if when := at.Add(-behind); when.After(ca.Cert.NotBefore) && when.Before(c.NotAfter) {
				verified(t, c, ca, when)
			}
		}
	}
	if _, err := ca.Leaf(ca.Cert.NotAfter, usual.Leaf, nil); err == nil {
		t.Error("a CA that has expired signs")
	}
}

func TestCAsOfOneNameAreToldApart(t *testing.T) {
	t.Parallel()
	a, b := newCA(t, day0), newCA(t, day0)
	leaf, err := a.Leaf(day0, usual.Leaf, []string{"localhost"})
	must(t, err)
	both := x509.NewCertPool()
	both.AddCert(b.Cert)
	both.AddCert(a.Cert)
	if _, err := leaf.Leaf.Verify(x509.VerifyOptions{DNSName: "localhost", Roots: both, CurrentTime: day0}); err != nil {
		t.Error(err)
	}
	if leaf.Leaf.CheckSignatureFrom(a.Cert) != nil || leaf.Leaf.CheckSignatureFrom(b.Cert) == nil {
		t.Error("it is not told whose it is")
	}
}

func TestT04_TheClockIsLookedAtOftenEnough(t *testing.T) {
	t.Parallel()
	if err := usual.Validate(); err != nil || usual.Every() != time.Minute {
		t.Errorf("%v, each %s", err, usual.Every())
	}
	random := rand.New(rand.NewPCG(4, 4))
	valid := 0
	for range 20000 {
		l := Lives{
			CA:     time.Duration(random.ExpFloat64() * float64(100*day)),
			Leaf:   time.Duration(random.ExpFloat64() * float64(10*day)),
			Settle: time.Duration(random.ExpFloat64() * float64(time.Hour)),
		}
		if l.Validate() != nil {
			continue
		}
		valid++
		// From when a leaf is due, and a CA, until it expires.
		for _, ahead := range []time.Duration{l.Leaf / shares, l.CA / shares} {
			if l.Every() > ahead/10 || l.Every() > time.Minute || l.Every() <= 0 {
				t.Fatalf("%+v: each %s, %s ahead", l, l.Every(), ahead)
			}
		}
		// Both waits of a rotation fit into what is left of a CA, twice.
		if 4*l.Settle > l.CA/shares {
			t.Fatalf("%+v", l)
		}
	}
	if valid < 1000 {
		t.Errorf("only %d of the configurations are valid", valid)
	}
	for name, l := range map[string]Lives{
		"none":                         {},
		"a leaf of no time":            {CA: usual.CA, Settle: usual.Settle},
		"a leaf longer than half a CA": {CA: 10 * day, Leaf: 6 * day, Settle: time.Minute},
		"a CA of a lifetime":           {CA: 100 * 365 * day, Leaf: day, Settle: time.Minute},
		"no time to settle":            {CA: usual.CA, Leaf: usual.Leaf},
		"longer to settle than a CA":   {CA: 12 * day, Leaf: day, Settle: 2 * day},
	} {
		if l.Validate() == nil {
			t.Errorf("%s passes: %+v", name, l)
		}
	}
}

// A clock that is ahead by years when the next CA is made, and right again a moment later: what
// the CA signs is taken at once, and by clocks that are behind.
func TestACAThatAClockAheadMade(t *testing.T) {
	t.Parallel()
	first := newCA(t, day0)
	next, err := NewAuthority(day0.Add(2000*day), usual.CA, first)
	must(t, err)
	leaf, err := next.Leaf(day0, usual.Leaf, []string{"localhost"})
	must(t, err)
	for _, now := range []time.Time{day0, day0.Add(-300 * day)} {
		if !valid(next.Cert, now) || !valid(leaf.Leaf, now) {
			t.Errorf("at %s: valid since %s and %s", now, next.Cert.NotBefore, leaf.Leaf.NotBefore)
		}
	}
	// And by one that is behind it is no younger than it has to be.
	if behind, err := NewAuthority(day0.Add(-2000*day), usual.CA, first); err != nil || !behind.Cert.NotBefore.Before(day0.Add(-2000*day)) {
		t.Errorf("made at %s, valid since %s: %v", day0.Add(-2000*day), behind.Cert.NotBefore, err)
	}
}
