package certs

import (
	"crypto/x509"
	"testing"
	"time"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// day0 is when the first CA of a test is made.
var day0 = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

const day = 24 * time.Hour

// usual are the default lives.
var usual = Lives{CA: DefaultCALife, Leaf: DefaultLeafLife, Settle: DefaultSettle}

func newCA(t testing.TB, at time.Time) *Authority {
	t.Helper()
	a, err := NewAuthority(at, usual.CA, nil)
	must(t, err)
	return a
}

func trusting(all ...*Authority) []*x509.Certificate {
	var out []*x509.Certificate
	for _, a := range all {
		out = append(out, a.Cert)
	}
	return out
}
