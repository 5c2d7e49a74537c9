package rotated

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/otf"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// start runs a stack of the test's own.
func start(ctx context.Context, t *testing.T, o stack.Options) *stack.Stack {
	t.Helper()
	s, err := stack.Start(ctx, o)
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			for _, p := range append(s.Controllers(), s.Webhooks()...) {
				t.Logf("%s:\n%s", p.Name, notable(p.Tail(4000)))
			}
		}
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// turn is the shared stack, for a test that is alone with its CA.
func turn(t *testing.T) (context.Context, *stack.Stack) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			for _, p := range append(shared.Controllers(), shared.Webhooks()...) {
				t.Logf("%s:\n%s", p.Name, notable(p.Tail(4000)))
			}
		}
	})
	ctx := stack.TestContext(t)
	addressed(ctx, t, shared, shared.Webhooks()...)
	return ctx, shared
}

// notable are the lines of a log that are about certificates, or about trouble.
func notable(log string) string {
	var out []string
	for line := range strings.Lines(log) {
		if strings.Contains(line, `"rotation"`) || strings.Contains(line, `"certificate"`) || strings.Contains(line, `"level":"error"`) || !strings.HasPrefix(line, "{") {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return strings.Join(out[max(0, len(out)-60):], "\n")
}

// secretOf reads the Secret of the CA.
func secretOf(ctx context.Context, t testing.TB, s *stack.Stack) *corev1.Secret {
	t.Helper()
	secret, err := readSecret(ctx, s)
	must(t, err)
	return secret
}

func readSecret(ctx context.Context, s *stack.Stack) (*corev1.Secret, error) {
	return s.Kube.CoreV1().Secrets(stack.Namespace).Get(ctx, "belay-ca", metav1.GetOptions{})
}

// change changes the Secret of the CA.
func change(ctx context.Context, t testing.TB, s *stack.Stack, how func(*corev1.Secret)) {
	t.Helper()
	stack.Eventually(ctx, t, "the Secret is changed", func() error {
		secret, err := readSecret(ctx, s)
		if err != nil {
			return err
		}
		how(secret)
		_, err = s.Kube.CoreV1().Secrets(stack.Namespace).Update(ctx, secret, metav1.UpdateOptions{})
		return err
	})
}

// certificatesOf reads a bundle.
func certificatesOf(bundle []byte) []*x509.Certificate {
	var out []*x509.Certificate
	for {
		var block *pem.Block
		if block, bundle = pem.Decode(bundle); block == nil {
			return out
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			out = append(out, c)
		}
	}
}

func signerOf(t testing.TB, s *corev1.Secret) *x509.Certificate {
	t.Helper()
	c := certificatesOf(s.Data[corev1.TLSCertKey])
	if len(c) != 1 {
		t.Fatalf("%d certificates sign", len(c))
	}
	return c[0]
}

// addressed tells which replicas there are, as the headless Service's EndpointSlices do.
func addressed(ctx context.Context, t testing.TB, s *stack.Stack, replicas ...*stack.Process) {
	t.Helper()
	for _, p := range replicas {
		yes, https, reports := true, "https", "reports"
		port, collector := int32(p.Port), int32(p.CollectorPort)
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: stack.Namespace, Name: "of-" + p.Name, Labels: map[string]string{discoveryv1.LabelServiceName: "belay-webhook-replicas", discoveryv1.LabelManagedBy: "test"}},
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"127.0.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &yes}}},
			Ports: []discoveryv1.EndpointPort{{Name: &https, Port: &port}, {Name: &reports, Port: &collector}},
		}
		// The API server refuses addresses of the loopback interface, where the processes listen.
		own := ownAddress(t)
		slice.Endpoints[0].Addresses = []string{own}
		for _, port := range []int{p.Port, p.CollectorPort} {
			passedOn(t, net.JoinHostPort(own, strconv.Itoa(port)), fmt.Sprintf("127.0.0.1:%d", port))
		}
		_, err := s.Kube.DiscoveryV1().EndpointSlices(stack.Namespace).Create(ctx, slice, metav1.CreateOptions{})
		must(t, err)
		stack.Cleanup(t, func(ctx context.Context) {
			_ = s.Kube.DiscoveryV1().EndpointSlices(stack.Namespace).Delete(ctx, slice.Name, metav1.DeleteOptions{})
		})
	}
}

// ownAddress is an address of this machine that is not of the loopback interface.
func ownAddress(t testing.TB) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	must(t, err)
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	t.Skip("this machine has no address but those of the loopback interface")
	return ""
}

// passedOn passes connections to one address on to another.
func passedOn(t testing.TB, from, to string) {
	t.Helper()
	l, err := net.Listen("tcp", from)
	must(t, err)
	f := newService(l)
	f.ready(to)
	t.Cleanup(f.close)
}

// shown is the certificate that a port shows.
func shown(port int) (*x509.Certificate, error) {
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", fmt.Sprintf("127.0.0.1:%d", port), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	return conn.ConnectionState().PeerCertificates[0], nil
}

// of waits until both ports of all replicas show a certificate of a CA.
func of(ctx context.Context, t testing.TB, ca *x509.Certificate, replicas ...*stack.Process) {
	t.Helper()
	for _, p := range replicas {
		for _, port := range []int{p.Port, p.CollectorPort} {
			stack.Eventually(ctx, t, fmt.Sprintf("%s shows a certificate of the CA", p.Name), func() error {
				c, err := shown(port)
				if err != nil {
					return err
				}
				return c.CheckSignatureFrom(ca)
			})
		}
	}
}

// bundles are those of all of belay's entries.
func bundles(ctx context.Context, c client.Client) ([][]byte, error) {
	var m admissionregistrationv1.MutatingWebhookConfiguration
	if err := c.Get(ctx, client.ObjectKey{Name: v1alpha1.ConfigurationName}, &m); err != nil {
		return nil, err
	}
	var v admissionregistrationv1.ValidatingWebhookConfiguration
	if err := c.Get(ctx, client.ObjectKey{Name: v1alpha1.ConfigurationName}, &v); client.IgnoreNotFound(err) != nil {
		return nil, err
	}
	var out [][]byte
	for _, w := range m.Webhooks {
		out = append(out, w.ClientConfig.CABundle)
	}
	for _, w := range v.Webhooks {
		out = append(out, w.ClientConfig.CABundle)
	}
	return out, nil
}

// trusted waits until registrations and ConfigMaps have these CAs and no others, and what is
// served verifies against it.
func trusted(ctx context.Context, t testing.TB, s *stack.Stack, ns string, cas []*x509.Certificate, replicas ...*stack.Process) {
	t.Helper()
	same := func(bundle []byte) error {
		have := certificatesOf(bundle)
		if len(have) == len(cas) && !slices.ContainsFunc(cas, func(c *x509.Certificate) bool { return !slices.ContainsFunc(have, c.Equal) }) {
			return nil
		}
		return fmt.Errorf("%d CAs, want %d", len(have), len(cas))
	}
	stack.Eventually(ctx, t, "the CAs are trusted, and no others", func() error {
		all, err := bundles(ctx, s.Client)
		if err != nil {
			return err
		}
		cm, err := s.Kube.CoreV1().ConfigMaps(ns).Get(ctx, v1alpha1.CABundleName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, b := range append(all, []byte(cm.Data[v1alpha1.CABundleKey])) {
			if err := same(b); err != nil {
				return err
			}
			pool := x509.NewCertPool()
			pool.AppendCertsFromPEM(b)
			for _, p := range replicas {
				if err := verifies(p.Port, pool); err != nil {
					return fmt.Errorf("%s: %w", p.Name, err)
				}
			}
		}
		return nil
	})
}

// verifies makes a connection as the API server does.
func verifies(port int, pool *x509.CertPool) error {
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", fmt.Sprintf("127.0.0.1:%d", port), &tls.Config{RootCAs: pool, ServerName: "localhost"})
	if err != nil {
		return err
	}
	return conn.Close()
}

// load creates objects all the time that need belay.
type load struct {
	calls, failed atomic.Int64
	mu            sync.Mutex
	errors        []string
	took          []time.Duration

	stop func()
}

// begin creates so many objects a second, in ns, until the test or stop ends it.
func begin(ctx context.Context, t testing.TB, s *stack.Stack, ns string, perSecond int) *load {
	t.Helper()
	if err := s.Client.Create(ctx, otf.Job(ns, "owner", "owner")); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	l := &load{}
	var all sync.WaitGroup
	l.stop = sync.OnceFunc(func() { cancel(); all.Wait() })
	t.Cleanup(l.stop)
	n := atomic.Int64{}
	const workers = 8
	for range workers {
		all.Go(func() {
			tick := time.NewTicker(time.Second * workers / time.Duration(perSecond))
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				l.one(ctx, s, ns, n.Add(1))
			}
		})
	}
	return l
}

func (l *load) one(ctx context.Context, s *stack.Stack, ns string, n int64) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("load-%d", n), Labels: map[string]string{"test": guarded}}}
	began := time.Now()
	out, err := s.Kube.CoreV1().Secrets(ns).Create(ctx, secret, metav1.CreateOptions{})
	if ctx.Err() != nil {
		return // the test has ended it
	}
	if err == nil && len(out.OwnerReferences) != 1 {
		err = errors.New("belay was not asked: there is no owner")
	}
	l.calls.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.took = append(l.took, time.Since(began))
	if err != nil {
		l.failed.Add(1)
		l.errors = append(l.errors, time.Now().Format(time.StampMilli)+" "+err.Error())
	}
}

// lost ends the load and fails the test for each call that was lost.
func (l *load) lost(t testing.TB, what string) {
	t.Helper()
	l.stop()
	if n := l.failed.Load(); n > 0 {
		t.Errorf("%s: %d of %d calls lost:\n%s", what, n, l.calls.Load(), strings.Join(l.errors[:min(len(l.errors), 10)], "\n"))
	}
	slices.Sort(l.took)
	if len(l.took) == 0 {
		t.Fatalf("%s: nothing was created", what)
	}
	at := func(share float64) time.Duration {
		return l.took[min(len(l.took)-1, int(share*float64(len(l.took))))].Round(time.Millisecond)
	}
	stack.Report(t, "%s: %d creates with failurePolicy Fail, %d lost; p50 %s, p99 %s, longest %s", what, l.calls.Load(), l.failed.Load(), at(.5), at(.99), at(1))
}

// dialer makes new connections to replicas all the time, as an API server and a sidecar do whose
// view of what is trusted is a while old.
type dialer struct {
	dials atomic.Int64
	mu    sync.Mutex
	lost  []string
	stop  func()
}

// dialing dials with bundles that were read as long ago as old says.
func dialing(ctx context.Context, t testing.TB, s *stack.Stack, ns string, old time.Duration, replicas ...*stack.Process) *dialer {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	d := &dialer{}
	var all sync.WaitGroup
	d.stop = sync.OnceFunc(func() { cancel(); all.Wait() })
	t.Cleanup(d.stop)
	type view struct {
		at                   time.Time
		registered, sidecars *x509.CertPool
	}
	all.Go(func() {
		var views []view
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			registered, err := bundles(ctx, s.Client)
			if err != nil || len(registered) == 0 {
				continue
			}
			v := view{at: time.Now(), registered: x509.NewCertPool(), sidecars: x509.NewCertPool()}
			v.registered.AppendCertsFromPEM(registered[0])
			cm, err := s.Kube.CoreV1().ConfigMaps(ns).Get(ctx, v1alpha1.CABundleName, metav1.GetOptions{})
			if err != nil {
				continue
			}
			v.sidecars.AppendCertsFromPEM([]byte(cm.Data[v1alpha1.CABundleKey]))
			views = append(views, v)
			for len(views) > 1 && time.Since(views[1].at) >= old {
				views = views[1:]
			}
			for _, p := range replicas {
				for _, err := range []error{verifies(p.Port, views[0].registered), verifies(p.CollectorPort, views[0].sidecars)} {
					d.dials.Add(1)
					if err != nil && ctx.Err() == nil {
						d.mu.Lock()
						d.lost = append(d.lost, fmt.Sprintf("%s %s: %v", time.Now().Format(time.StampMilli), p.Name, err))
						d.mu.Unlock()
					}
				}
			}
		}
	})
	return d
}

// refused ends it and fails the test for each connection that was refused.
func (d *dialer) refused(t testing.TB, what string) {
	t.Helper()
	d.stop()
	if len(d.lost) > 0 {
		t.Errorf("%s: %d of %d new connections refused:\n%s", what, len(d.lost), d.dials.Load(), strings.Join(d.lost[:min(len(d.lost), 10)], "\n"))
	}
	stack.Report(t, "%s: %d new connections to admission and collector, %d refused", what, d.dials.Load(), len(d.lost))
}

// get reads a path of the probes.
func get(ctx context.Context, p *stack.Process, path string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", p.ProbePort, path), http.NoBody)
	if err != nil {
		return 0, "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// answers waits until a path of the probes has a code, and a text in its answer.
func answers(ctx context.Context, t testing.TB, p *stack.Process, path string, code int, text string) {
	t.Helper()
	stack.Eventually(ctx, t, fmt.Sprintf("%s of %s answers %d", path, p.Name, code), func() error {
		got, body, err := get(ctx, p, path)
		if err == nil && (got != code || !strings.Contains(body, text)) {
			err = fmt.Errorf("%d %s", got, body)
		}
		return err
	})
}

// metric is the value of a metric's series, as it is written: name{labels}.
func metric(ctx context.Context, t testing.TB, p *stack.Process, series string) string {
	t.Helper()
	all, err := p.Metrics(ctx)
	must(t, err)
	for line := range strings.Lines(all) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// counts waits until a metric has a value.
func counts(ctx context.Context, t testing.TB, p *stack.Process, series, want string) {
	t.Helper()
	stack.Eventually(ctx, t, series, func() error {
		if got := metric(ctx, t, p, series); got != want {
			return fmt.Errorf("%s, want %s", got, want)
		}
		return nil
	})
}

// states records what the Secret goes through.
type states struct {
	mu  sync.Mutex
	all []*corev1.Secret
}

func recorded(ctx context.Context, t testing.TB, s *stack.Stack) *states {
	t.Helper()
	w, err := s.Kube.CoreV1().Secrets(stack.Namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=belay-ca"})
	must(t, err)
	r := &states{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			if secret, ok := e.Object.(*corev1.Secret); ok {
				r.mu.Lock()
				r.all = append(r.all, secret)
				r.mu.Unlock()
			}
		}
	}()
	t.Cleanup(func() { w.Stop(); <-done })
	return r
}

// phases are the phases that were gone through, in order, by who signs and how many are trusted.
func (r *states) phases() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	names := map[string]string{}
	name := func(cert []byte) string {
		if len(cert) == 0 {
			return "-"
		}
		k := string(cert)
		if _, ok := names[k]; !ok {
			names[k] = string(rune('A' + len(names)))
		}
		return names[k]
	}
	for _, s := range r.all {
		p := fmt.Sprintf("signs %s, next %s, trusts", name(s.Data["tls.crt"]), name(s.Data["next.crt"]))
		for _, c := range certificatesOf(s.Data["ca.crt"]) {
			p += " " + name(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
		}
		if len(out) == 0 || out[len(out)-1] != p {
			out = append(out, p)
		}
	}
	return out
}

// equalPEM reports whether two bundles hold the same.
func equalPEM(a, b []byte) bool { return bytes.Equal(bytes.TrimSpace(a), bytes.TrimSpace(b)) }
