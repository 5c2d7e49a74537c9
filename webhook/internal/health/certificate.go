package health

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/belay-dev/belay/webhook/internal/certs"
	"github.com/belay-dev/belay/webhook/internal/metrics"
)

const (
	// lookEvery is how long what was found is good for, whoever asks how often.
	lookEvery = 5 * time.Second
	// lookTimeout bounds the look at the API server: kubelets wait a second by default.
	lookTimeout = 800 * time.Millisecond
)

// Certificate checks that the certificate which is served now is one that the API server
// trusts, by what is registered now for belay. One entry that trusts it is enough: entries that
// do not are told of, and are no reason to take this replica, and with it all others, from those
// that do. While the API server cannot be asked, what was found last counts: nobody calls then.
type Certificate struct {
	// Served gives the certificate.
	Served func() (*tls.Certificate, error)
	// Live reads the registrations.
	Live client.Reader

	mu   sync.Mutex
	at   time.Time
	last error
	// told are the entries of which the log says that they do not trust it.
	told []string
}

// Check is the check.
func (c *Certificate) Check(r *http.Request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.at.IsZero() && time.Since(c.at) < lookEvery {
		return c.last
	}
	served, err := c.Served()
	if err != nil {
		return fmt.Errorf("no serving certificate yet: %w", err)
	}
	// What is found is for all who ask: one of them who hangs up does not spoil it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), lookTimeout)
	defer cancel()
	registered, err := certs.Registered(ctx, c.Live)
	c.at = time.Now()
	if err != nil {
		return c.last
	}
	without, err := untrusting(served, registered, c.at)
	if c.last = err; err == nil {
		c.tell(ctx, without, len(registered))
		c.last = enough(without, len(registered))
	}
	return c.last
}

// tell counts the entries, and logs which do not trust the certificate when those are others
// than before.
func (c *Certificate) tell(ctx context.Context, without []doubt, all int) {
	metrics.RegistrationEntries.WithLabelValues(metrics.EntryTrusted).Set(float64(all - len(without)))
	metrics.RegistrationEntries.WithLabelValues(metrics.EntryUntrusted).Set(float64(len(without)))
	// By their names only: some reasons have the time in them.
	var names []string
	for _, d := range without {
		names = append(names, d.entry)
	}
	slices.Sort(names)
	if slices.Equal(names, c.told) {
		return
	}
	c.told = names
	log := ctrllog.FromContext(ctx).WithName("certificate")
	if len(without) == 0 {
		log.Info("all entries trust the serving certificate again", "entries", all)
		return
	}
	log.Info("the API server does not call belay for entries that do not trust the serving certificate", "untrusting", names, "reason", without[0].why.Error(), "entries", all)
}

// doubt is an entry for which the API server would not trust a certificate.
type doubt struct {
	entry string // with the kind before it
	why   error
}

// enough says whether any entry is left for which the API server may call.
func enough(without []doubt, all int) error {
	if len(without) == 0 || len(without) < all {
		return nil
	}
	return fmt.Errorf("the API server would not trust the serving certificate for any entry: %s: %w", without[0].entry, without[0].why)
}

var errNoBundle = errors.New("its caBundle has no certificate")

// untrusting verifies the certificate as the API server does, for every entry.
func untrusting(served *tls.Certificate, registered []certs.Entry, now time.Time) ([]doubt, error) {
	if served == nil || len(served.Certificate) == 0 {
		return nil, errors.New("no serving certificate yet")
	}
	leaf, err := x509.ParseCertificate(served.Certificate[0])
	if err != nil {
		return nil, fmt.Errorf("the serving certificate cannot be read: %w", err)
	}
	intermediates := x509.NewCertPool()
	for _, der := range served.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			intermediates.AddCert(c)
		}
	}
	verify := func(host string, bundle []byte) error {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(bundle) {
			return errNoBundle
		}
		_, err := leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
		return err
	}
	var out []doubt
	done := map[string]error{} // most entries have the same host and the same bundle
	for _, e := range registered {
		host := hostOf(e.Client)
		key := host + "\x00" + string(e.Client.CABundle)
		why, ok := done[key]
		if !ok {
			why = verify(host, e.Client.CABundle)
			done[key] = why
		}
		if why != nil {
			out = append(out, doubt{e.Kind + "/" + e.Name, why})
		}
	}
	return out, nil
}

// hostOf is the name that the API server asks for.
func hostOf(c admissionregistrationv1.WebhookClientConfig) string {
	if c.Service != nil {
		return c.Service.Name + "." + c.Service.Namespace + ".svc"
	}
	if c.URL == nil {
		return ""
	}
	u, err := url.Parse(*c.URL)
	if err != nil {
		return ""
	}
	return u.Hostname()
}
