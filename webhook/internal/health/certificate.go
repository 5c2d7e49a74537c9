package health

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/webhook/internal/certs"
)

const (
	// lookEvery is how long what was found is good for, whoever asks how often.
	lookEvery = 5 * time.Second
	// lookTimeout bounds the look at the API server: kubelets wait a second by default.
	lookTimeout = 800 * time.Millisecond
)

// Certificate checks that the certificate which is served now is one that the API server
// trusts, by what is registered now for belay. While the API server cannot be asked, what was
// found last counts: nobody calls then.
type Certificate struct {
	// Served gives the certificate.
	Served func() (*tls.Certificate, error)
	// Live reads the registrations.
	Live client.Reader

	mu   sync.Mutex
	at   time.Time
	last error
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
	clients, err := c.registered(ctx)
	c.at = time.Now()
	if err == nil {
		c.last = trusted(served, clients, c.at)
	}
	return c.last
}

func (c *Certificate) registered(ctx context.Context) ([]admissionregistrationv1.WebhookClientConfig, error) {
	entries, err := certs.Registered(ctx, c.Live)
	if err != nil {
		return nil, err
	}
	var out []admissionregistrationv1.WebhookClientConfig
	for _, e := range entries {
		out = append(out, e.Client)
	}
	return out, nil
}

// trusted verifies the certificate as the API server does, for every entry.
func trusted(served *tls.Certificate, clients []admissionregistrationv1.WebhookClientConfig, now time.Time) error {
	if served == nil || len(served.Certificate) == 0 {
		return errors.New("no serving certificate yet")
	}
	leaf, err := x509.ParseCertificate(served.Certificate[0])
	if err != nil {
		return fmt.Errorf("the serving certificate cannot be read: %w", err)
	}
	intermediates := x509.NewCertPool()
	for _, der := range served.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			intermediates.AddCert(c)
		}
	}
	done := map[string]bool{}
	for _, c := range clients {
		host := hostOf(c)
		key := host + "\x00" + string(c.CABundle)
		if done[key] {
			continue
		}
		done[key] = true
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(c.CABundle) {
			return errors.New("the registration has no caBundle: the API server cannot trust any certificate")
		}
		if _, err := leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
			return fmt.Errorf("the API server would not trust the serving certificate: %w", err)
		}
	}
	return nil
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
