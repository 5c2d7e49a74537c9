package certs

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/belay-dev/belay/webhook/internal/metrics"
)

func TestRemedy(t *testing.T) {
	t.Parallel()
	const every = time.Minute
	for name, c := range map[string]struct {
		mending
		want Remedy
	}{
		"it could not be read":                             {mending{}, Leave},
		"it could not be read for long":                    {mending{since: time.Hour, remembered: true}, Leave},
		"it is good":                                       {mending{found: Good, since: time.Hour, remembered: true}, Leave},
		"gone, and never seen":                             {mending{found: Gone}, Make},
		"gone, and remembered":                             {mending{found: Gone, remembered: true}, Restore},
		"T05: empty from the start":                        {mending{found: Blank}, Make},
		"emptied a moment ago":                             {mending{found: Blank, remembered: true}, Leave},
		"emptied a look ago":                               {mending{found: Blank, remembered: true, since: every}, Restore},
		"T08: torn a moment ago":                           {mending{found: Broken, remembered: true}, Leave},
		"T08: torn for almost a look":                      {mending{found: Broken, remembered: true, since: every - 1}, Leave},
		"torn for good":                                    {mending{found: Broken, remembered: true, since: every}, Restore},
		"torn from the start, others may know better":      {mending{found: Broken, since: 2*every - 1}, Leave},
		"torn from the start, and nobody did":              {mending{found: Broken, since: 2 * every}, Make},
		"somebody else's, torn":                            {mending{found: Broken, foreign: true, since: time.Hour, remembered: true}, Leave},
		"somebody else's, empty":                           {mending{found: Blank, foreign: true, since: time.Hour}, Leave},
		"gone: whose it was says nothing about the next":   {mending{found: Gone, since: time.Hour, remembered: true}, Restore},
		"gone for a while, because nothing can be written": {mending{found: Gone, since: time.Hour}, Make},
	} {
		if got := remedy(c.mending, every); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestAdopts(t *testing.T) {
	t.Parallel()
	ca, ahead := newCA(t, day0), newCA(t, day0.Add(2000*day))
	leaf := func(of *Authority, at time.Time, life time.Duration) *x509.Certificate {
		l, err := of.Leaf(at, life, []string{"localhost"})
		must(t, err)
		return l.Leaf
	}
	lives, old, early := leaf(ca, day0, 2*time.Hour), leaf(ca, day0, time.Hour), leaf(ahead, day0, time.Hour)
	now := day0.Add(time.Hour)
	for name, c := range map[string]struct {
		former  *x509.Certificate
		next    *Authority
		trusted Answer
		want    bool
	}{
		"the first certificate":                              {nil, ca, Unknown, true},
		"the first one, whom nobody trusts yet":              {nil, ca, No, true},
		"registrations trust the CA":                         {lives, ca, Yes, true},
		"they do not":                                        {lives, ca, No, false},
		"it is not known":                                    {lives, ca, Unknown, false},
		"they do not, and the former one is old":             {old, ca, No, true},
		"not known, and the former one is old":               {old, ca, Unknown, true},
		"they do not, and the former one is not valid yet":   {early, ca, No, true},
		"they trust the CA, which is not valid yet":          {lives, ahead, Yes, false},
		"the CA is not valid yet, and the former one is old": {old, ahead, Yes, true},
	} {
		if got := adopts(c.former, c.next.Cert, now, c.trusted); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// short are lives with few looks in them.
var short = Lives{CA: usual.CA, Leaf: 30 * time.Minute, Settle: usual.Settle}

// bench is a Source on a Secret, whose registrations trust what the test says.
type bench struct {
	*Source
	t      *testing.T
	client *fake.Clientset
	// mistrusted are the registrations that do not trust what is asked about.
	mistrusted []string
	fails      error
}

func newBench(t *testing.T, objects ...runtime.Object) *bench {
	t.Helper()
	b := &bench{t: t, client: fake.NewClientset(objects...)}
	b.Source = &Source{
		Secrets: b.client.CoreV1().Secrets("belay-system"), Name: "belay-ca", Names: []string{"localhost"}, Lives: short, Log: logr.Discard(),
		Trusted: func(context.Context, *x509.Certificate) ([]string, error) { return b.mistrusted, b.fails },
	}
	return b
}

// secret is what there is.
func (b *bench) secret() *corev1.Secret {
	b.t.Helper()
	s, err := b.Secrets.Get(b.t.Context(), b.Name, metav1.GetOptions{})
	must(b.t, err)
	return s
}

// set writes the Secret; versions is what an API server would count.
func (b *bench) set(change func(*corev1.Secret)) {
	b.t.Helper()
	s := b.secret()
	change(s)
	s.ResourceVersion = fmt.Sprint(len(b.client.Actions()))
	_, err := b.Secrets.Update(b.t.Context(), s, metav1.UpdateOptions{})
	must(b.t, err)
}

// serves asserts that a certificate of a CA is served now.
func (b *bench) serves(a *Authority) {
	b.t.Helper()
	c, err := b.GetCertificate(nil)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := c.Leaf.CheckSignatureFrom(a.Cert); err != nil {
		b.t.Fatalf("it is of another CA: %v", err)
	}
	if expired(c.Leaf, time.Now()) {
		b.t.Fatalf("it has expired at %s", c.Leaf.NotAfter)
	}
}

// pass lets time pass, with looks as the loop has them.
func (b *bench) pass(d time.Duration) {
	for until := time.Now().Add(d); time.Now().Before(until); {
		<-time.After(b.look(b.t.Context()))
	}
}

// at is a CA that is made at the time of a bubble.
func at(t *testing.T) *Authority { return newCA(t, time.Now()) }

func TestASourceMakesTheFirstCAAndRenews(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		if _, err := b.GetCertificate(nil); !errors.Is(err, ErrNone) {
			t.Error(err)
		}
		b.look(t.Context())
		st, err := Parse(b.secret())
		must(t, err)
		if len(st.Trusted) != 1 || st.Next != nil || b.secret().Labels["app.kubernetes.io/name"] != "belay" {
			t.Errorf("%+v", describe(st))
		}
		seen := map[string]bool{}
		for range 60 {
			b.pass(10 * time.Minute)
			b.serves(st.Signer)
			c, _ := b.GetCertificate(nil)
			seen[c.Leaf.SerialNumber.String()] = true
			if left := time.Until(c.Leaf.NotAfter); left < short.Leaf/shares-short.Every() {
				t.Fatalf("%s are left", left)
			}
		}
		// 600 minutes of 20 to 21 each.
		if len(seen) < 29 || len(seen) > 31 {
			t.Errorf("%d certificates", len(seen))
		}
	})
}

// TestAMachineThatSlept: the clock on the wall is ahead when it wakes up.
func TestAMachineThatSlept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		var off time.Duration
		b.now = func() time.Time { return time.Now().Add(off) }
		b.look(t.Context())
		c, _ := b.GetCertificate(nil)
		off = 2 * short.Leaf
		b.pass(short.Every() + time.Second)
		again, _ := b.GetCertificate(nil)
		if c == again || expired(again.Leaf, b.now()) {
			t.Errorf("what expired at %s is served at %s", again.Leaf.NotAfter, b.now())
		}
		// And one whose clock is set right again goes on.
		off = 0
		b.pass(time.Hour)
		b.serves(b.last.Signer)
		// By this clock the CA has expired: nothing can be made, and the last one is served on.
		off = 400 * day
		b.pass(5 * time.Minute)
		off = 0
		b.serves(b.last.Signer)
	})
}

// failed counts failed loads of a reason. The metric is the process's.
func failed(t *testing.T, reason FaultReason) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(metrics.CertificateLoads)
	families, err := r.Gather()
	must(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == string(reason) && m.GetLabel()[1].GetValue() == metrics.CertificateFailed {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// faults are the reasons for which the process's metric says that something is wrong.
func faults(t *testing.T) string {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(metrics.CertificateFault)
	families, err := r.Gather()
	must(t, err)
	var out []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			out = append(out, m.GetLabel()[0].GetValue())
		}
	}
	return strings.Join(out, " ")
}

// TestT08_TheLastGoodPairIsKept is not parallel: it reads the process's metrics.
func TestT08_TheLastGoodPairIsKept(t *testing.T) {
	for name, c := range map[string]struct {
		spoil  func(*corev1.Secret, *Authority)
		reason FaultReason
	}{
		"the certificate of another pair": {func(s *corev1.Secret, o *Authority) { s.Data["tls.crt"] = o.certPEM }, Mismatched},
		"the key of another pair":         {func(s *corev1.Secret, o *Authority) { s.Data["tls.key"] = o.keyPEM }, Mismatched},
		"garbage":                         {func(s *corev1.Secret, _ *Authority) { s.Data["tls.crt"] = []byte("garbage") }, Unreadable},
		"emptied":                         {func(s *corev1.Secret, _ *Authority) { s.Data = nil }, Empty},
		"one key emptied":                 {func(s *corev1.Secret, _ *Authority) { delete(s.Data, "tls.key") }, Empty},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, other := at(t), at(t)
				b := newBench(t, secret(&State{Signer: a, Trusted: trusting(a)}))
				b.look(t.Context())
				before := failed(t, c.reason)
				b.set(func(s *corev1.Secret) { c.spoil(s, other) })
				b.pass(2 * time.Second)
				b.serves(a)
				if got := failed(t, c.reason) - before; got != 1 {
					t.Errorf("%v failures are counted", got)
				}
				if got := faults(t); got != string(c.reason) {
					t.Errorf("what is wrong now: %q", got)
				}
				// The other half comes.
				b.set(func(s *corev1.Secret) {
					(&State{Signer: other, Trusted: trusting(other)}).write(s)
				})
				b.pass(behind + 2*time.Second)
				b.serves(other)
				if got := faults(t); got != "" {
					t.Errorf("nothing is wrong any more, and it says %q", got)
				}
				// It does not come: what was there before is written, with the same CA.
				b.set(func(s *corev1.Secret) { c.spoil(s, a) })
				b.pass(3 * short.Every())
				st, err := Parse(b.secret())
				must(t, err)
				if !st.Signer.Cert.Equal(other.Cert) {
					t.Error("another CA was made")
				}
				b.serves(other)
			})
		})
	}
}

func TestASecretThatWasDeletedComesBackWithTheSameCA(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, next := at(t), at(t)
		was := &State{Signer: a, Next: next, Trusted: trusting(a, next), Asked: "x", Done: "x", Retired: []string{"y"}}
		b := newBench(t, secret(was))
		b.look(t.Context())
		must(t, b.Secrets.Delete(t.Context(), b.Name, metav1.DeleteOptions{}))
		b.pass(short.Every() + time.Second)
		st, err := Parse(b.secret())
		must(t, err)
		if got := describe(st); got.Signer != Fingerprint(a.Cert) || got.Next != Fingerprint(next.Cert) || len(got.Trusted) != 2 || got.Done != "x" || len(got.Retired) != 1 {
			t.Errorf("%+v", got)
		}
	})
}

func TestASecretThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := at(t)
		s := secret(&State{Signer: a, Trusted: trusting(a)})
		yes := true
		s.Immutable = &yes
		b := newBench(t, s)
		b.look(t.Context())
		b.set(func(s *corev1.Secret) { s.Data["tls.key"] = nil })
		b.pass(5 * time.Minute)
		b.serves(a)
		if len(b.secret().Data["tls.key"]) > 0 {
			t.Error("what is immutable was written")
		}
		// Deleted by hand, as the log says.
		must(t, b.Secrets.Delete(t.Context(), b.Name, metav1.DeleteOptions{}))
		b.pass(short.Every() + time.Second)
		if st, err := Parse(b.secret()); err != nil || !st.Signer.Cert.Equal(a.Cert) {
			t.Errorf("%v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		// Somebody else's is never written, and what it has is used.
		a, other := at(t), at(t)
		s := secret(&State{Signer: a, Trusted: trusting(a)})
		s.Annotations = map[string]string{certManagerOwns: "belay"}
		b := newBench(t, s)
		b.look(t.Context())
		b.serves(a)
		b.set(func(s *corev1.Secret) { s.Data["tls.crt"] = other.certPEM })
		b.pass(5 * time.Minute)
		b.serves(a)
		for _, action := range b.client.Actions() {
			if action.GetVerb() == "create" {
				t.Error("it was written")
			}
		}
		if string(b.secret().Data["tls.crt"]) != string(other.certPEM) {
			t.Error("it was written")
		}
		b.set(func(s *corev1.Secret) { s.Data["tls.key"] = other.keyPEM })
		b.pass(behind + 2*time.Second)
		b.serves(other)
	})
}

// TestACAThatNobodyTrustsYet: one that comes without a rotation is not served before the
// registrations have it.
func TestACAThatNobodyTrustsYet(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]func(*bench){
		"registrations lack it": func(b *bench) { b.mistrusted = []string{"otf.owner.belay.dev"} },
		"they cannot be read":   func(b *bench) { b.fails = errors.New("no") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a, other := at(t), at(t)
				b := newBench(t, secret(&State{Signer: a, Trusted: trusting(a)}))
				how(b)
				b.look(t.Context())
				b.serves(a)
				b.set(func(s *corev1.Secret) { (&State{Signer: other, Trusted: trusting(other)}).write(s) })
				b.pass(short.Leaf - time.Minute)
				b.serves(a)
				b.mistrusted, b.fails = nil, nil
				b.pass(behind - time.Millisecond)
				b.serves(a) // API servers learn of it a moment later
				b.pass(2 * time.Second)
				b.serves(other)
				// The former one has expired: waiting helps nobody.
				how(b)
				b.set(func(s *corev1.Secret) { (&State{Signer: a, Trusted: trusting(a)}).write(s) })
				b.pass(short.Leaf + time.Minute)
				b.serves(a)
			})
		})
	}
}

// TestAnAPIServerThatIsAway: certificates are renewed without one, from the CA in memory.
func TestAnAPIServerThatIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := at(t)
		b := newBench(t, secret(&State{Signer: a, Trusted: trusting(a)}))
		b.look(t.Context())
		b.client.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewInternalError(errors.New("away"))
		})
		for range 2 {
			b.pass(short.Leaf)
			b.serves(a)
		}
	})
}

// TestT05_OfManyReplicasOneMakesTheCA: the others read it. The fake does what an API server does
// about creation; test/integration/rotated has the real one.
func TestT05_OfManyReplicasOneMakesTheCA(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset()
	var all sync.WaitGroup
	sources := make([]*Source, 5)
	for i := range sources {
		sources[i] = &Source{
			Secrets: client.CoreV1().Secrets("belay-system"), Name: "belay-ca", Names: []string{"localhost"}, Lives: usual, Log: logr.Discard(),
			Trusted: func(context.Context, *x509.Certificate) ([]string, error) { return nil, nil },
		}
		all.Go(func() {
			for sources[i].served.Load() == nil {
				sources[i].look(t.Context())
			}
		})
	}
	all.Wait()
	s, err := client.CoreV1().Secrets("belay-system").Get(t.Context(), "belay-ca", metav1.GetOptions{})
	must(t, err)
	st, err := Parse(s)
	must(t, err)
	for i, s := range sources {
		if c, err := s.GetCertificate(nil); err != nil || c.Leaf.CheckSignatureFrom(st.Signer.Cert) != nil {
			t.Errorf("replica %d: %v", i, err)
		}
	}
}

// TestARaceIsNoFailure: another replica was first.
func TestARaceIsNoFailure(t *testing.T) {
	t.Parallel()
	gr := schema.GroupResource{Resource: "secrets"}
	for name, err := range map[string]error{"created": apierrors.NewAlreadyExists(gr, "belay-ca"), "changed": apierrors.NewConflict(gr, "belay-ca", nil), "deleted": apierrors.NewNotFound(gr, "belay-ca")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.client.PrependReactor("create", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
			if again := b.look(t.Context()); again != atStart || b.last != nil {
				t.Errorf("%s", again)
			}
		})
	}
}

func TestALoopEndsWithItsContext(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Start(ctx) }()
	for b.served.Load() == nil {
		<-time.After(time.Millisecond)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// measuredAs are the times of a certificate that the process's metrics say.
func measuredAs(t *testing.T, certificate string) (expires, due time.Time) {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(metrics.CertificateExpiry, metrics.CertificateRenewal)
	families, err := r.Gather()
	must(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			switch at := time.Unix(int64(m.GetGauge().GetValue()), 0).UTC(); {
			case m.GetLabel()[0].GetValue() != certificate:
			case strings.Contains(f.GetName(), "renewal"):
				due = at
			default:
				expires = at
			}
		}
	}
	return expires, due
}

// TestWhenCertificatesAreDue is not parallel: it reads the process's metrics.
func TestWhenCertificatesAreDue(t *testing.T) {
	const life = 90 * day
	dated := func(t *testing.T, from, to time.Duration) *Authority {
		a, err := NewAuthority(time.Now(), to, nil)
		must(t, err)
		signed, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: a.Cert.SerialNumber, Subject: a.Cert.Subject, NotBefore: time.Now().Add(from), NotAfter: time.Now().Add(to),
			IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		}, a.Cert, a.key.Public(), a.key)
		must(t, err)
		a, err = parseAuthority(encode(signed), a.keyPEM)
		must(t, err)
		return a
	}
	for name, c := range map[string]struct {
		tell             func(*testing.T)
		certificate      string
		expires, renewed time.Duration // from the beginning on
	}{
		"what belay signs, by --certificate-life": {
			func(t *testing.T) {
				a := at(t)
				newBench(t, secret(&State{Signer: a, Trusted: trusting(a)})).look(t.Context())
			}, metrics.CertificateLeaf, short.Leaf, short.Leaf * 2 / 3,
		},
		"belay's own CA, by --ca-life and not by its dates, which reach back": {
			func(t *testing.T) {
				a := at(t)
				newBench(t, secret(&State{Signer: a, Trusted: trusting(a)})).look(t.Context())
			}, metrics.CertificateCA, usual.CA, usual.CA * 2 / 3,
		},
		"the same, as belay-controller sees it": {
			func(t *testing.T) {
				a := at(t)
				drive(t, secret(&State{Signer: a, Trusted: trusting(a)})).look(t.Context())
			}, metrics.CertificateCA, usual.CA, usual.CA * 2 / 3,
		},
		"a CA of somebody else's, which lives shorter, by its own dates": {
			func(t *testing.T) {
				a := dated(t, -30*day, life-30*day)
				newBench(t, secret(&State{Signer: a, Trusted: trusting(a)})).look(t.Context())
			}, metrics.CertificateCA, life - 30*day, life*2/3 - 30*day,
		},
		"a file, by its own dates": {
			func(t *testing.T) {
				a := dated(t, -30*day, life-30*day)
				dir := t.TempDir()
				must(t, os.WriteFile(filepath.Join(dir, "tls.crt"), a.certPEM, 0o600))
				must(t, os.WriteFile(filepath.Join(dir, "tls.key"), a.keyPEM, 0o600))
				(&Files{Dir: dir, Log: logr.Discard()}).read()
			}, metrics.CertificateLeaf, life - 30*day, life*2/3 - 30*day,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				metrics.CertificateExpiry.Reset()
				metrics.CertificateRenewal.Reset()
				begun := time.Now()
				c.tell(t)
				expires, due := measuredAs(t, c.certificate)
				if diff := cmp.Diff([]time.Duration{c.expires, c.renewed}, []time.Duration{expires.Sub(begun), due.Sub(begun)}); diff != "" {
					t.Errorf("from now on (-want +got)\n%s", diff)
				}
			})
		})
	}
}
