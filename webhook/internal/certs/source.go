package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/belay-dev/belay/webhook/internal/metrics"
)

// ErrNone is that there is no certificate yet.
var ErrNone = errors.New("no serving certificate yet")

var errImmutable = errors.New("the Secret is immutable; delete it, and belay makes it again, with the CA that is in use")

// Source is the serving certificate of one replica, signed by the CA that the replicas share.
type Source struct {
	// Secrets are those of belay's namespace, and Name that of the CA's.
	Secrets corev1client.SecretInterface
	Name    string
	// Names are those that the certificate is for.
	Names []string
	Lives Lives
	// Trusted says which registrations do not trust a CA.
	Trusted Lacks
	Log     logr.Logger

	served atomic.Pointer[served]

	// What follows is the loop's own.
	//
	// last is what the Secret had when it was last usable.
	last *State
	// seen is what was found, and since when; it has the monotonic clock's reading.
	seen   string
	seenAt time.Time
	// trust is for how long registrations have trusted the CA with fingerprint trustOf.
	trust   holding
	trustOf string
	// told and toldRenewal are the failures that were told last: of the Secret, and of renewing.
	told, toldRenewal string
	// fault is what went wrong at this look; empty for nothing.
	fault FaultReason
	// now is the clock on the wall, which tests set.
	now func() time.Time
}

// served is a certificate with its CA.
type served struct {
	leaf *tls.Certificate
	ca   *x509.Certificate
}

const (
	// soon is how soon a replica looks again that waits for something, and atStart for its
	// first certificate: making a CA takes a few round trips.
	soon    = time.Second
	atStart = 200 * time.Millisecond
	// behind is how long API servers may take to see a registration; they watch them.
	behind = 2 * time.Second
	// lookTimeout bounds one look.
	lookTimeout = 10 * time.Second
)

// labels mark what belay made.
var labels = map[string]string{"app.kubernetes.io/name": "belay"}

// GetCertificate is the certificate that is served now.
func (s *Source) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := s.served.Load(); c != nil {
		return c.leaf, nil
	}
	return nil, ErrNone
}

// Start keeps the certificate until the context ends. It looks at the Secret when that changes,
// and each time the clock is looked at, whether or not it was told of a change.
func (s *Source) Start(ctx context.Context) error {
	return looking(ctx, s.Secrets, s.Name, s.look)
}

// looking looks at a Secret when it changes, and as soon as the last look said, until the context
// ends.
func looking(ctx context.Context, secrets corev1client.SecretInterface, name string, look func(context.Context) time.Duration) error {
	wake, stop := watched(ctx, secrets, name)
	defer stop()
	for {
		// A timer of the time from now on, as short as it is, not one of the day of a renewal.
		timer := time.NewTimer(look(ctx))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-wake:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// watched tells of changes of a Secret. It is a hint: whoever is told looks for themselves.
func watched(ctx context.Context, secrets corev1client.SecretInterface, name string) (changed <-chan struct{}, stop func()) {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	wake := make(chan struct{}, 1)
	notify := func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.FieldSelector = selector
				return secrets.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.FieldSelector = selector
				return secrets.Watch(ctx, o)
			},
		},
		ObjectType: &corev1.Secret{},
		Handler:    cache.ResourceEventHandlerFuncs{AddFunc: func(any) { notify() }, UpdateFunc: func(any, any) { notify() }, DeleteFunc: func(any) { notify() }},
		// The keys are not kept a second time.
		Transform: func(o any) (any, error) {
			if s, ok := o.(*corev1.Secret); ok {
				s.Data = nil
			}
			return o, nil
		},
	})
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); informer.RunWithContext(ctx) }()
	return wake, func() { cancel(); <-ended }
}

// look looks at the Secret and at the clock, and returns when to look again.
func (s *Source) look(ctx context.Context) time.Duration {
	if s.now == nil {
		s.now = time.Now
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	s.fault = ""
	defer func() { metrics.SetCertificateFault(string(s.fault)) }()
	done := s.read(ctx)
	if s.last != nil {
		switch waits, err := s.renew(ctx); {
		case err != nil:
			s.fail(&s.toldRenewal, LookupFail, "certificate not renewed", err)
			done = false
		case waits:
			done = false
		}
	}
	switch {
	case s.served.Load() == nil:
		return atStart
	case !done:
		return min(soon, s.Lives.Every())
	}
	return s.Lives.Every()
}

// read brings last up to what the Secret has, and mends the Secret where it has no CA. It
// returns false when it is to be looked at again soon.
func (s *Source) read(ctx context.Context) bool {
	secret, err := s.Secrets.Get(ctx, s.Name, metav1.GetOptions{})
	m := mending{remembered: s.last != nil}
	var st *State
	switch {
	case apierrors.IsNotFound(err):
		secret, m.found = nil, Gone
		err = &Fault{Missing, "there is no Secret"}
	case err != nil:
		s.fail(&s.told, LookupFail, "reading the Secret of the CA", err)
		return false
	default:
		m.foreign = foreign(secret)
		switch st, err = Parse(secret); {
		case err == nil:
			m.found = Good
		case reasonOf(err) == Empty:
			m.found = Blank
		default:
			m.found = Broken
		}
	}
	m.since = s.since(secret, m.found)
	if m.found == Good {
		if s.last == nil || !s.last.Signer.Cert.Equal(st.Signer.Cert) {
			s.Log.Info("CA read", "secret", s.Name, "expires", st.Signer.Cert.NotAfter.Format(time.RFC3339), "fingerprint", Fingerprint(st.Signer.Cert))
		}
		s.last, s.told = st, ""
		return true
	}
	if m.found != Gone || m.remembered { // else it is the first start of all
		s.fail(&s.told, reasonOf(err), "the Secret of the CA cannot be used", err)
	}
	what := remedy(m, s.Lives.Every())
	if what == Leave {
		return false
	}
	wrote, err := s.mend(ctx, secret, what)
	switch {
	case apierrors.IsAlreadyExists(err), apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return false // another replica was first: what it wrote is read the next time
	case err != nil:
		s.fail(&s.told, WriteFail, "mending the Secret of the CA", err)
		return false
	}
	s.Log.Info("CA written", "secret", s.Name, "why", string(what), "fingerprint", Fingerprint(wrote.Signer.Cert))
	s.last, s.told = wrote, ""
	return true
}

// since is for how long the same has been found, by a clock that does not jump.
func (s *Source) since(secret *corev1.Secret, found Found) time.Duration {
	what := fmt.Sprint(found)
	if secret != nil {
		what += "/" + string(secret.UID) + "/" + secret.ResourceVersion
	}
	if what != s.seen || s.seenAt.IsZero() {
		s.seen, s.seenAt = what, time.Now()
	}
	return time.Since(s.seenAt)
}

// mend writes a CA: the one there was, or a new one. Of several replicas that do so at once one
// succeeds.
func (s *Source) mend(ctx context.Context, secret *corev1.Secret, what Remedy) (*State, error) {
	st := s.last
	if what == Make {
		a, err := NewAuthority(s.now(), s.Lives.CA, nil)
		if err != nil {
			return nil, err
		}
		st = &State{Signer: a, Trusted: []*x509.Certificate{a.Cert}}
	}
	if secret == nil {
		secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: s.Name, Labels: labels}}
		st.write(secret)
		_, err := s.Secrets.Create(ctx, secret, metav1.CreateOptions{})
		return st, err
	}
	if secret.Immutable != nil && *secret.Immutable {
		return nil, errImmutable
	}
	secret = secret.DeepCopy()
	st.write(secret)
	_, err := s.Secrets.Update(ctx, secret, metav1.UpdateOptions{})
	return st, err
}

// renew serves a new certificate where one is due. It returns true while a CA is not used yet
// because nobody trusts it.
func (s *Source) renew(ctx context.Context) (waits bool, err error) {
	now, has := s.now(), s.served.Load()
	signer := s.last.Signer
	measure(metrics.CertificateCA, signer.Cert, s.Lives.CA)
	switch {
	case has == nil:
	case !has.ca.Equal(signer.Cert):
		trusted, who := s.trusts(ctx, signer.Cert)
		if !adopts(has.leaf.Leaf, signer.Cert, now, trusted) {
			if what := "untrusted " + Fingerprint(signer.Cert); s.toldRenewal != what {
				s.toldRenewal = what
				s.Log.Info("the CA is another one, which registrations do not trust yet; the former certificate is served on", "fingerprint", Fingerprint(signer.Cert), "missing", who)
			}
			return true, nil
		}
	case now.Before(due(has.leaf.Leaf, s.Lives.Leaf)):
		return false, nil
	case !earlier(now.Add(s.Lives.Leaf), signer.Cert.NotAfter).After(has.leaf.Leaf.NotAfter):
		return false, nil // it lives as long as its CA, and so would the next one
	}
	leaf, err := signer.Leaf(now, s.Lives.Leaf, s.Names)
	if err != nil {
		return false, err
	}
	s.served.Store(&served{leaf: leaf, ca: signer.Cert})
	s.toldRenewal = ""
	measure(metrics.CertificateLeaf, leaf.Leaf, s.Lives.Leaf)
	metrics.CertificateLoads.WithLabelValues(metrics.CertificateLoaded, "Renewed").Inc()
	s.Log.Info("certificate made", "expires", leaf.Leaf.NotAfter.Format(time.RFC3339), "ca", Fingerprint(signer.Cert))
	return false, nil
}

// measure tells the metrics when a certificate expires, and when it is due.
func measure(certificate string, c *x509.Certificate, life time.Duration) {
	metrics.CertificateExpiry.WithLabelValues(certificate).Set(float64(c.NotAfter.Unix()))
	metrics.CertificateRenewal.WithLabelValues(certificate).Set(float64(due(c, life).Unix()))
}

// trusts reports whether API servers trust a CA: registrations have it, and have had it for as
// long as API servers take to see that.
func (s *Source) trusts(ctx context.Context, ca *x509.Certificate) (Answer, string) {
	answer, who := Yes, "API servers, for a moment"
	switch lacking, err := s.Trusted(ctx, ca); {
	case err != nil:
		answer, who = Unknown, err.Error()
	case len(lacking) > 0:
		answer, who = No, few(lacking)
	}
	if f := Fingerprint(ca); f != s.trustOf {
		s.trust, s.trustOf = holding{}, f
	}
	s.trust = s.trust.seen(answer, time.Now())
	if answer == Yes && s.trust.sum < behind {
		answer = No
	}
	return answer, who
}

// fail counts and tells a failure, once as long as it stays the same.
func (s *Source) fail(told *string, reason FaultReason, message string, err error) {
	s.fault = reason
	if what := string(reason) + s.seen; what != *told {
		*told = what
		metrics.CertificateLoads.WithLabelValues(metrics.CertificateFailed, string(reason)).Inc()
		s.Log.Error(err, message, "secret", s.Name, "reason", string(reason), "serving", s.served.Load() != nil)
	}
}
