package health

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/certs"
	"github.com/belay-dev/belay/webhook/internal/metrics"
)

// authority is a CA.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// sign makes a certificate; a nil signer signs itself.
func sign(t *testing.T, by *authority, c *x509.Certificate) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	parent, signer := c, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	if c.NotBefore.IsZero() {
		c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	out, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{out, key}
}

func newCA(t *testing.T, by *authority, name string) *authority {
	t.Helper()
	return sign(t, by, &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
}

func (a *authority) leaf(t *testing.T, change func(*x509.Certificate)) *authority {
	t.Helper()
	c := &x509.Certificate{DNSNames: []string{serviceHost}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if change != nil {
		change(c)
	}
	return sign(t, a, c)
}

func (a *authority) bundle() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// chain is what a server presents.
func chain(certs ...*authority) *tls.Certificate {
	out := &tls.Certificate{}
	for _, c := range certs {
		out.Certificate = append(out.Certificate, c.cert.Raw)
	}
	return out
}

const serviceHost = "belay-webhook.belay-system.svc"

type clientConfig = admissionregistrationv1.WebhookClientConfig

func service(bundle ...[]byte) clientConfig {
	port := int32(443)
	return clientConfig{
		Service:  &admissionregistrationv1.ServiceReference{Namespace: "belay-system", Name: "belay-webhook", Port: &port},
		CABundle: slices.Concat(bundle...),
	}
}

func at(url string, bundle ...[]byte) clientConfig {
	return clientConfig{URL: &url, CABundle: slices.Concat(bundle...)}
}

// TestOneEntry: what the API server would say, and nothing is left of belay without it.
func TestOneEntry(t *testing.T) {
	t.Parallel()
	first, second := newCA(t, nil, "first"), newCA(t, nil, "second")
	middle := newCA(t, first, "middle")
	now := time.Now()
	leaf := first.leaf(t, nil)
	named := func(names ...string) *tls.Certificate {
		return chain(first.leaf(t, func(c *x509.Certificate) { c.DNSNames = names }))
	}
	byIP := chain(first.leaf(t, func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv6loopback, net.IPv4(127, 0, 0, 1)} }))
	const untrusted = "the API server would not trust the serving certificate for any entry: MutatingWebhookConfiguration/0.owner.belay.dev: "
	for name, c := range map[string]struct {
		served  *tls.Certificate
		clients []clientConfig
		at      time.Duration
		want    string // empty for trusted
	}{
		"nothing is registered":                         {chain(leaf), nil, 0, ""},
		"a Service":                                     {chain(leaf), []clientConfig{service(first.bundle())}, 0, ""},
		"a Service of another name":                     {named("other.belay-system.svc"), []clientConfig{service(first.bundle())}, 0, untrusted + "x509: certificate is valid for other.belay-system.svc, not " + serviceHost},
		"a certificate for all Services of a namespace": {named("*.belay-system.svc"), []clientConfig{service(first.bundle())}, 0, ""},
		"a URL":                                             {named("localhost"), []clientConfig{at("https://localhost:9443/mutate/owner", first.bundle())}, 0, ""},
		"a URL without a port":                              {named("belay.example"), []clientConfig{at("https://belay.example/mutate", first.bundle())}, 0, ""},
		"a URL of another host":                             {named("localhost"), []clientConfig{at("https://belay.example:9443/", first.bundle())}, 0, untrusted + "x509: certificate is valid for localhost, not belay.example"},
		"a URL with an address of IPv6":                     {byIP, []clientConfig{at("https://[::1]:9443/", first.bundle())}, 0, ""},
		"a URL with an address of IPv4":                     {byIP, []clientConfig{at("https://127.0.0.1:9443/", first.bundle())}, 0, ""},
		"a URL with an address that is not in it":           {byIP, []clientConfig{at("https://[::2]:9443/", first.bundle())}, 0, untrusted + "x509: certificate is valid for"},
		"another CA":                                        {chain(leaf), []clientConfig{service(second.bundle())}, 0, untrusted + "x509: certificate signed by unknown authority"},
		"the old and the new CA, with a certificate of one": {chain(leaf), []clientConfig{service(second.bundle(), first.bundle())}, 0, ""},
		"and of the other":                                  {chain(second.leaf(t, nil)), []clientConfig{service(second.bundle(), first.bundle())}, 0, ""},
		"no CA":                                             {chain(leaf), []clientConfig{service()}, 0, untrusted + "its caBundle has no certificate"},
		"a bundle that is none":                             {chain(leaf), []clientConfig{service([]byte("Cg=="))}, 0, untrusted + "its caBundle has no certificate"},
		"a certificate that has expired":                    {chain(leaf), []clientConfig{service(first.bundle())}, 2 * time.Hour, untrusted + "x509: certificate has expired or is not yet valid"},
		"a certificate that is not valid yet":               {chain(leaf), []clientConfig{service(first.bundle())}, -2 * time.Hour, untrusted + "x509: certificate has expired or is not yet valid"},
		"a certificate of clients": {chain(first.leaf(t, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} })),
			[]clientConfig{service(first.bundle())}, 0, untrusted + "x509: certificate specifies an incompatible key usage"},
		"with the intermediate one that it needs":    {chain(middle.leaf(t, nil), middle), []clientConfig{service(first.bundle())}, 0, ""},
		"without the intermediate one that it needs": {chain(middle.leaf(t, nil)), []clientConfig{service(first.bundle())}, 0, untrusted + "x509: certificate signed by unknown authority"},
		"no certificate at all":                      {nil, []clientConfig{service(first.bundle())}, 0, "no serving certificate yet"},
		"an empty certificate":                       {chain(), []clientConfig{service(first.bundle())}, 0, "no serving certificate yet"},
		"a certificate that is none":                 {&tls.Certificate{Certificate: [][]byte{{1}}}, []clientConfig{service(first.bundle())}, 0, "the serving certificate cannot be read: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := entriesOf(c.clients)
			doubts, err := untrusting(c.served, all, now.Add(c.at))
			if err == nil {
				err = enough(doubts, len(all))
			}
			if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
				t.Error(err)
			}
		})
	}
}

// entriesOf names entries by their places.
func entriesOf(clients []clientConfig) (out []certs.Entry) {
	for i, c := range clients {
		out = append(out, certs.Entry{Kind: "MutatingWebhookConfiguration", Name: strconv.Itoa(i) + v1alpha1.OwnerEntryDomain, Client: c})
	}
	return out
}

// TestSeveralEntries: one that trusts the certificate is enough, and the others are told.
func TestSeveralEntries(t *testing.T) {
	t.Parallel()
	first, second := newCA(t, nil, "first"), newCA(t, nil, "second")
	leaf := chain(first.leaf(t, nil))
	good, other, none := service(first.bundle()), service(second.bundle()), service()
	for name, c := range map[string]struct {
		clients []clientConfig
		without []int // by their places
		ready   bool
	}{
		"all trust it":                   {[]clientConfig{good, good}, nil, true},
		"the last one trusts another CA": {[]clientConfig{good, good, other}, []int{2}, true},
		"the first one has no CA":        {[]clientConfig{none, good}, []int{0}, true},
		"one has another host":           {[]clientConfig{good, at("https://localhost/", first.bundle()), good}, []int{1}, true},
		"one alone trusts it":            {[]clientConfig{other, none, good, other}, []int{0, 1, 3}, true},
		"none trusts it":                 {[]clientConfig{other, none, other}, []int{0, 1, 2}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := entriesOf(c.clients)
			doubts, err := untrusting(leaf, all, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			var got, want []string
			for _, d := range doubts {
				got = append(got, d.entry)
			}
			for _, i := range c.without {
				want = append(want, all[i].Kind+"/"+all[i].Name)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if err := enough(doubts, len(all)); (err == nil) != c.ready {
				t.Error(err)
			}
		})
	}
}

// TestWhatIsTold: entries that do not trust the certificate are in the log when they become
// others, and not with each look; and in a metric. It is not parallel: it reads the process's
// metrics.
func TestWhatIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine, other := newCA(t, nil, "mine"), newCA(t, nil, "other")
		good, bad := service(mine.bundle()), service(other.bundle())
		leaf := chain(mine.leaf(t, nil))
		var lines []string
		told := func() string {
			out := strings.Join(lines, "\n")
			lines = nil
			return out
		}
		ctx := logr.NewContext(t.Context(), funcr.New(func(name, line string) { lines = append(lines, name+": "+line) }, funcr.Options{}))
		check := &Certificate{Served: func() (*tls.Certificate, error) { return leaf, nil }}
		look := func(a, b clientConfig, trusted, untrusted float64) error {
			t.Helper()
			<-time.After(lookEvery)
			check.Live = registered(t, map[string]clientConfig{"a.owner.belay.dev": a}, map[string]clientConfig{"b.name.belay.dev": b})
			err := check.Check(probe().WithContext(ctx))
			if diff := cmp.Diff(map[string]float64{"trusted": trusted, "untrusted": untrusted}, counted(t)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			return err
		}
		silent := func(when string) {
			t.Helper()
			if said := told(); said != "" {
				t.Errorf("%s: %s", when, said)
			}
		}
		says := func(when string, parts ...string) {
			t.Helper()
			said := told()
			for _, p := range parts {
				if strings.Count(said, p) != 1 {
					t.Errorf("%s: not once %s in %q", when, p, said)
				}
			}
		}
		ready := func(err error) {
			t.Helper()
			if err != nil {
				t.Error(err)
			}
		}
		ready(look(good, good, 2, 0))
		silent("all is well")
		ready(look(bad, good, 1, 1))
		says("one does not trust it", "certificate: ", `["MutatingWebhookConfiguration/a.owner.belay.dev"]`, "x509: certificate signed by unknown authority")
		ready(look(bad, good, 1, 1))
		silent("the same one")
		ready(look(good, bad, 1, 1))
		says("another one", `["ValidatingWebhookConfiguration/b.name.belay.dev"]`)
		if err := look(bad, bad, 0, 2); err == nil {
			t.Error("no entry trusts the certificate, and it is ready")
		}
		says("both", `["MutatingWebhookConfiguration/a.owner.belay.dev" "ValidatingWebhookConfiguration/b.name.belay.dev"]`)
		// The reason has another time in it with each look.
		<-time.After(2 * time.Hour)
		for range 3 {
			if err := look(good, good, 0, 2); err == nil || !strings.Contains(err.Error(), "expired") {
				t.Error(err)
			}
		}
		silent("both, since it has expired")
		mine = newCA(t, nil, "mine")
		good, leaf = service(mine.bundle()), chain(mine.leaf(t, nil))
		ready(look(good, good, 2, 0))
		says("all is well again", "all entries trust the serving certificate again")
		ready(look(good, good, 2, 0))
		silent("and stays so")
	})
}

// counted is what the metric of entries says.
func counted(t *testing.T) map[string]float64 {
	t.Helper()
	return gauges(t, metrics.RegistrationEntries)
}

// gauges are what a metric with one label says, by its value.
func gauges(t *testing.T, metric prometheus.Collector) map[string]float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(metric)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			out[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
		}
	}
	return out
}

// registered are both configurations with entries by name.
func registered(t *testing.T, mutating, validating map[string]clientConfig) client.Client {
	t.Helper()
	s := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	b := fake.NewClientBuilder().WithScheme(s)
	if mutating != nil {
		m := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ConfigurationName}}
		for name, c := range mutating {
			m.Webhooks = append(m.Webhooks, admissionregistrationv1.MutatingWebhook{Name: name, ClientConfig: c})
		}
		b = b.WithObjects(m)
	}
	if validating != nil {
		v := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ConfigurationName}}
		for name, c := range validating {
			v.Webhooks = append(v.Webhooks, admissionregistrationv1.ValidatingWebhook{Name: name, ClientConfig: c})
		}
		b = b.WithObjects(v)
	}
	return b.Build()
}

// looks counts the looks at the API server, and makes them fail or hang.
type looks struct {
	client.Reader
	mu   sync.Mutex
	n    int
	err  error
	hang bool
}

func (l *looks) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	l.mu.Lock()
	if _, first := obj.(*admissionregistrationv1.MutatingWebhookConfiguration); first {
		l.n++
	}
	err, hang := l.err, l.hang
	l.mu.Unlock()
	switch {
	case hang:
		<-ctx.Done()
		return ctx.Err()
	case err != nil:
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return l.Reader.Get(ctx, key, obj, opts...)
}

func probe() *http.Request { return httptest.NewRequest(http.MethodGet, ReadyPath, http.NoBody) }

func TestWhichEntriesCount(t *testing.T) {
	t.Parallel()
	mine, other := newCA(t, nil, "mine"), newCA(t, nil, "other")
	good, bad := service(mine.bundle()), service(other.bundle())
	leaf := chain(mine.leaf(t, nil))
	for name, c := range map[string]struct {
		mutating, validating map[string]clientConfig
		ok                   bool
	}{
		"nothing is registered yet":            {nil, nil, true},
		"both are as they should be":           {map[string]clientConfig{"otf.owner.belay.dev": good}, map[string]clientConfig{"otf.owner.belay.dev": good}, true},
		"a mutating entry alone":               {map[string]clientConfig{"annotation.belay.dev": good}, nil, true},
		"a mutating entry with another CA":     {map[string]clientConfig{"annotation.belay.dev": bad}, nil, false},
		"a validating entry with another CA":   {map[string]clientConfig{"otf.owner.belay.dev": good}, map[string]clientConfig{"otf.recovery.belay.dev": bad}, true},
		"all mutating ones with another CA":    {map[string]clientConfig{"a.owner.belay.dev": bad, "b.owner.belay.dev": bad}, map[string]clientConfig{"b.owner.belay.dev": good}, true},
		"all of both with another CA":          {map[string]clientConfig{"a.owner.belay.dev": bad, "b.owner.belay.dev": bad}, map[string]clientConfig{"b.owner.belay.dev": bad}, false},
		"somebody else's alone trusts it":      {map[string]clientConfig{"a.owner.belay.dev": bad, "audit.example.com": good, "audit.belay.dev": good}, nil, false},
		"somebody else's alone does not":       {map[string]clientConfig{"audit.belay.dev": bad}, map[string]clientConfig{"audit.belay.dev": service()}, true},
		"an entry that somebody else added":    {map[string]clientConfig{"x.name.belay.dev": good, "audit.example.com": at("https://audit.example.com/", other.bundle())}, map[string]clientConfig{"audit.example.com": bad}, true},
		"an entry with no CA, somebody else's": {map[string]clientConfig{"x.sidecar.belay.dev": good, "audit.example.com": service()}, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check := &Certificate{Served: func() (*tls.Certificate, error) { return leaf, nil }, Live: registered(t, c.mutating, c.validating)}
			if err := check.Check(probe()); (err == nil) != c.ok {
				t.Error(err)
			}
		})
	}
}

// TestWhileTheAPIServerIsAway: what was found last counts, for better or worse.
func TestWhileTheAPIServerIsAway(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		trusts bool // what the registration does before
		away   func(*looks)
		took   time.Duration
	}{
		"trusted before, refused":       {true, func(l *looks) { l.err = errors.New("connection refused") }, 0},
		"not trusted before, refused":   {false, func(l *looks) { l.err = errors.New("connection refused") }, 0},
		"trusted before, no answer":     {true, func(l *looks) { l.hang = true }, lookTimeout},
		"not trusted before, no answer": {false, func(l *looks) { l.hang = true }, lookTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				mine, other := newCA(t, nil, "mine"), newCA(t, nil, "other")
				bundle := other.bundle()
				if c.trusts {
					bundle = mine.bundle()
				}
				leaf := chain(mine.leaf(t, nil))
				l := &looks{Reader: registered(t, map[string]clientConfig{"annotation.belay.dev": service(bundle)}, nil)}
				check := &Certificate{Served: func() (*tls.Certificate, error) { return leaf, nil }, Live: l}
				before := check.Check(probe())
				if (before == nil) != c.trusts {
					t.Fatal(before)
				}
				c.away(l)
				<-time.After(lookEvery)
				start := time.Now()
				if err := check.Check(probe()); !errors.Is(err, before) {
					t.Errorf("away: %v", err)
				}
				if d := time.Since(start); d != c.took {
					t.Errorf("it took %s", d)
				}
				// A look that failed is a look: the next probe does not wait for it, too.
				for range 10 {
					if err := check.Check(probe()); !errors.Is(err, before) {
						t.Errorf("away: %v", err)
					}
				}
				if d := time.Since(start); d != c.took || l.n != 2 {
					t.Errorf("11 probes took %s and %d looks", d, l.n-1)
				}
			})
		})
	}
}

func TestNothingWasFoundYet(t *testing.T) {
	t.Parallel()
	mine := newCA(t, nil, "mine")
	leaf := chain(mine.leaf(t, nil))
	l := &looks{err: errors.New("connection refused")}
	check := &Certificate{Served: func() (*tls.Certificate, error) { return leaf, nil }, Live: l}
	if err := check.Check(probe()); err != nil {
		t.Errorf("nobody calls, and it is not known that anything is wrong: %v", err)
	}
	missing := &Certificate{Served: func() (*tls.Certificate, error) { return nil, errors.New("the CA is being made") }, Live: l}
	if err := missing.Check(probe()); err == nil || err.Error() != "no serving certificate yet: the CA is being made" {
		t.Error(err)
	}
}

func TestItIsLookedNowAndThen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mine, other := newCA(t, nil, "mine"), newCA(t, nil, "other")
		leaf := chain(mine.leaf(t, nil))
		store := registered(t, map[string]clientConfig{"annotation.belay.dev": service(mine.bundle())}, nil)
		l := &looks{Reader: store}
		check := &Certificate{Served: func() (*tls.Certificate, error) { return leaf, nil }, Live: l}
		put := func(bundle []byte) {
			t.Helper()
			var m admissionregistrationv1.MutatingWebhookConfiguration
			if err := store.Get(t.Context(), client.ObjectKey{Name: v1alpha1.ConfigurationName}, &m); err != nil {
				t.Fatal(err)
			}
			m.Webhooks[0].ClientConfig.CABundle = bundle
			if err := store.Update(t.Context(), &m); err != nil {
				t.Fatal(err)
			}
		}
		// A probe a second for a minute.
		for second := range 60 {
			switch second {
			case 21:
				put(other.bundle())
			case 41:
				put(slices.Concat(other.bundle(), mine.bundle()))
			}
			err := check.Check(probe())
			if wrong := second >= 26 && second <= 40; wrong && err == nil {
				t.Errorf("second %d: another CA has been registered for %d s", second, second-21)
			}
			if right := second <= 20 || second >= 46; right && err != nil {
				t.Errorf("second %d: %v", second, err)
			}
			<-time.After(time.Second)
		}
		if l.n != 12 {
			t.Errorf("%d looks in a minute", l.n)
		}
	})
}

func TestACertificateThatExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mine := newCA(t, nil, "mine")
		leaf := chain(mine.leaf(t, nil))
		check := &Certificate{Served: func() (*tls.Certificate, error) { return leaf, nil }, Live: registered(t, map[string]clientConfig{"annotation.belay.dev": service(mine.bundle())}, nil)}
		if err := check.Check(probe()); err != nil {
			t.Error(err)
		}
		<-time.After(2 * time.Hour)
		if err := check.Check(probe()); err == nil || !strings.Contains(err.Error(), "expired") {
			t.Error(err)
		}
	})
}

// TestAProbeThatHangsUp does not spoil what the others are told.
func TestAProbeThatHangsUp(t *testing.T) {
	t.Parallel()
	mine, other := newCA(t, nil, "mine"), newCA(t, nil, "other")
	leaf := chain(mine.leaf(t, nil))
	check := &Certificate{Served: func() (*tls.Certificate, error) { return leaf, nil }, Live: &looks{Reader: registered(t, map[string]clientConfig{"annotation.belay.dev": service(other.bundle())}, nil)}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := check.Check(probe().WithContext(ctx)); err == nil {
		t.Error("its look was not made")
	}
	if err := check.Check(probe()); err == nil {
		t.Error("what it found is not what it saw")
	}
}

// TestManyProbesAtOnceMakeOneLook, in real time: who waits for a mutex keeps the clock of a
// bubble from going on.
func TestManyProbesAtOnceMakeOneLook(t *testing.T) {
	t.Parallel()
	mine := newCA(t, nil, "mine")
	leaf := chain(mine.leaf(t, nil))
	l := &looks{hang: true}
	check := &Certificate{Served: func() (*tls.Certificate, error) { return leaf, nil }, Live: l}
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if err := check.Check(probe()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if l.n != 1 {
		t.Errorf("%d looks", l.n)
	}
}

// TestAConfigurationThatCannotBeRead: one of the two is not enough to say that all is well.
func TestAConfigurationThatCannotBeRead(t *testing.T) {
	t.Parallel()
	mine, other := newCA(t, nil, "mine"), newCA(t, nil, "other")
	leaf := chain(mine.leaf(t, nil))
	live := interceptor.NewClient(registered(t, map[string]clientConfig{"annotation.belay.dev": service(other.bundle())}, nil).(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if _, ok := obj.(*admissionregistrationv1.ValidatingWebhookConfiguration); ok {
				return errors.New("timeout")
			}
			return c.Get(ctx, key, obj, opts...)
		},
	})
	check := &Certificate{Served: func() (*tls.Certificate, error) { return leaf, nil }, Live: live}
	if err := check.Check(probe()); err != nil {
		t.Errorf("a look that failed half way counts: %v", err)
	}
}
