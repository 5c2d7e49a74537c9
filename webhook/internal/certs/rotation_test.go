package certs

import (
	"context"
	"crypto/x509"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// driven is a Rotation on a Secret, with everybody as the test says.
type driven struct {
	*Rotation
	t                               *testing.T
	client                          *fake.Clientset
	registered, distributed, served []string
	err                             error
}

func drive(t *testing.T, objects ...runtime.Object) *driven {
	t.Helper()
	d := &driven{t: t, client: fake.NewClientset(objects...)}
	d.Rotation = &Rotation{
		Secrets: d.client.CoreV1().Secrets("belay-system"), Name: "belay-ca", Lives: usual, Log: logr.Discard(),
		Registered:  func(context.Context, *x509.Certificate) ([]string, error) { return d.registered, d.err },
		Distributed: func(context.Context, *x509.Certificate) ([]string, error) { return d.distributed, d.err },
		Served:      func(context.Context, *x509.Certificate) ([]string, error) { return d.served, d.err },
	}
	return d
}

// pass lets time pass, with looks as the loop has them.
func (d *driven) pass(how time.Duration) {
	for until := time.Now().Add(how); time.Now().Before(until); {
		<-time.After(max(d.look(d.t.Context()), time.Millisecond))
	}
}

func (d *driven) state() *State {
	d.t.Helper()
	s, err := d.Secrets.Get(d.t.Context(), d.Name, metav1.GetOptions{})
	must(d.t, err)
	st, err := Parse(s)
	must(d.t, err)
	return st
}

// is asserts the phase.
func (d *driven) is(want Phase, when string) {
	d.t.Helper()
	if got := phaseOf(d.state()); got != want {
		d.t.Fatalf("%s: %s, want %s", when, got, want)
	}
}

func TestARotationByTheClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := at(t)
		d := drive(t, secret(&State{Signer: a, Trusted: trusting(a)}))
		off := time.Until(due(a.Cert, usual.CA)) - 2*time.Hour
		d.now = func() time.Time { return time.Now().Add(off) }
		d.pass(time.Hour)
		d.is(Steady, "an hour before")
		d.registered, d.distributed, d.served = []string{"r"}, []string{"d"}, []string{"s"}
		d.pass(2 * time.Hour)
		d.is(Adding, "an hour after")
		d.registered, d.distributed = nil, nil
		d.pass(usual.Settle - time.Second)
		d.is(Adding, "before it has settled")
		d.pass(usual.Settle/5 + time.Second)
		d.is(Serving, "when it has settled")
		d.pass(2 * time.Hour)
		d.is(Serving, "while a replica does not serve it")
		d.served = nil
		d.pass(usual.Settle - time.Second)
		d.is(Serving, "before that has settled")
		d.pass(usual.Settle/5 + time.Second)
		d.is(Steady, "when that has settled")
		if st := d.state(); st.Signer.Cert.Equal(a.Cert) || len(st.Trusted) != 1 || len(st.Retired) != 1 || st.Retired[0] != Fingerprint(a.Cert) {
			t.Errorf("%+v", describe(st))
		}
	})
}

// TestAWaitIsOfOnePiece: what is undone in between, or is not seen, does not count.
func TestAWaitIsOfOnePiece(t *testing.T) {
	t.Parallel()
	a := newCA(t, time.Now())
	b := newCA(t, time.Now())
	start := func(t *testing.T) *driven {
		d := drive(t, secret(&State{Signer: a, Next: b, Trusted: trusting(a, b)}))
		d.now = func() time.Time { return b.Cert.NotBefore.Add(backdated) }
		d.pass(usual.Settle / 2)
		return d
	}
	for name, c := range map[string]struct {
		between func(*driven)
		wait    time.Duration
	}{
		"undone":              {func(d *driven) { d.registered = []string{"r"} }, usual.Settle},
		"undone for sidecars": {func(d *driven) { d.distributed = []string{"d"} }, usual.Settle},
		"not seen":            {func(d *driven) { d.err = errors.New("no") }, usual.Settle / 2},
		"another leads":       {func(d *driven) { d.held = nil }, usual.Settle},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := start(t)
				c.between(d)
				d.pass(time.Hour - usual.Settle*6) // 30 min, and patience is 50
				if name == "another leads" {
					d = start(t)
					d.held = nil
				}
				d.is(Adding, "meanwhile")
				d.registered, d.distributed, d.err = nil, nil, nil
				d.pass(c.wait - usual.Settle/5)
				d.is(Adding, "before it has settled anew")
				d.pass(usual.Settle / 2)
				d.is(Serving, "when it has settled anew")
			})
		})
	}
}

// TestAClockThatJumpsShortensNoWait: the wall's, which a rotation is due by.
func TestAClockThatJumpsShortensNoWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := at(t), at(t)
		d := drive(t, secret(&State{Signer: a, Next: b, Trusted: trusting(a, b)}))
		var off time.Duration
		d.now = func() time.Time { return time.Now().Add(off) }
		for _, off = range []time.Duration{0, 30 * day, -300 * day, 100 * day} {
			d.pass(usual.Settle / 5)
			d.is(Adding, "after a jump")
		}
		off = 0
		d.pass(usual.Settle / 2)
		d.is(Serving, "in the end")
	})
}

func TestWhatIsNotWritten(t *testing.T) {
	t.Parallel()
	yes := true
	for name, change := range map[string]func(*corev1.Secret){
		"somebody else's": func(s *corev1.Secret) { s.OwnerReferences = []metav1.OwnerReference{{Controller: &yes}} },
		"immutable":       func(s *corev1.Secret) { s.Immutable = &yes },
		"torn":            func(s *corev1.Secret) { s.Data["tls.key"] = newCA(t, day0).keyPEM },
		"empty":           func(s *corev1.Secret) { s.Data = nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := at(t)
				s := secret(&State{Signer: a, Trusted: trusting(a), Asked: "now"})
				change(s)
				d := drive(t, s)
				d.pass(time.Hour)
				got, err := d.Secrets.Get(t.Context(), d.Name, metav1.GetOptions{})
				must(t, err)
				if diff := cmp.Diff(s, got); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		d := drive(t) // none: the webhook makes it
		d.pass(time.Hour)
		for _, a := range d.client.Actions() {
			if a.GetVerb() != "get" {
				t.Errorf("%s", a.GetVerb())
			}
		}
	})
}

// TestAWriteThatIsLost is decided anew, on what is there then.
func TestAWriteThatIsLost(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"changed meanwhile": apierrors.NewConflict(schema.GroupResource{Resource: "secrets"}, "belay-ca", nil),
		"no right":          apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "belay-ca", nil),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := at(t)
				d := drive(t, secret(&State{Signer: a, Trusted: trusting(a), Asked: "now"}))
				lost := 3
				d.client.PrependReactor("update", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
					lost--
					return lost >= 0, nil, err
				})
				d.registered = []string{"r"}
				d.pass(4 * time.Second)
				d.is(Adding, "in the end")
			})
		})
	}
}
