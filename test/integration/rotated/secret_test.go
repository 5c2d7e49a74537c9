package rotated

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
	"slices"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// pair is a CA of the test's own, as cert-manager's DynamicAuthority made them, whose Secrets
// older releases have left behind.
type pair struct {
	cert      *x509.Certificate
	key       *ecdsa.PrivateKey
	pem, kpem []byte
}

func newPair(t testing.TB) *pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "belay-webhook-ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now(), NotAfter: time.Now().Add(365 * 24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	kder, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	out := &pair{key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), kpem: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: kder})}
	out.cert, err = x509.ParseCertificate(der)
	must(t, err)
	return out
}

// readPair reads one.
func readPair(t testing.TB, cert, key []byte) *pair {
	t.Helper()
	c, err := tls.X509KeyPair(cert, key)
	must(t, err)
	k, ok := c.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		t.Fatalf("%T", c.PrivateKey)
	}
	return &pair{cert: c.Leaf, key: k, pem: cert, kpem: key}
}

// leaf is a certificate for localhost, as files.
func (p *pair) leaf(t testing.TB) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: p.cert.NotBefore, NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, p.cert, k.Public(), p.key)
	must(t, err)
	kder, err := x509.MarshalPKCS8PrivateKey(k)
	must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: kder})
}

// remains asserts for a while that replicas serve a certificate of a CA.
func remains(ctx context.Context, t testing.TB, ca *x509.Certificate, d time.Duration, replicas ...*stack.Process) {
	t.Helper()
	for until := time.Now().Add(d); time.Now().Before(until); {
		for _, p := range replicas {
			c, err := shown(p.Port)
			must(t, err)
			if err := c.CheckSignatureFrom(ca); err != nil {
				t.Fatalf("%s serves a certificate of another CA: %v", p.Name, err)
			}
		}
		select {
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// TestT08_WhateverHappensToTheSecret: the last good pair is served, and no call is lost.
func TestT08_WhateverHappensToTheSecret(t *testing.T) {
	ctx, s := turn(t)
	ns := s.TestNamespace(ctx, t, "secret", v1alpha1.ModeEnforce)
	ca := signerOf(t, steady(ctx, t, s))
	of(ctx, t, ca, s.Webhooks()...)
	l := begin(ctx, t, s, ns, 20)
	other := newPair(t)
	w := s.Webhooks()
	const mismatched = `belay_certificate_loads_total{reason="Mismatched",result="failed"}`

	// Torn: one half of another pair, and its other half after a while. The new CA is trusted
	// before a certificate of it is served.
	change(ctx, t, s, func(s *corev1.Secret) { s.Data["tls.crt"] = other.pem })
	for _, p := range w {
		counts(ctx, t, p, mismatched, "1")
	}
	remains(ctx, t, ca, 2*time.Second, w...)
	change(ctx, t, s, func(s *corev1.Secret) { s.Data["tls.key"], s.Data["ca.crt"] = other.kpem, other.pem })
	of(ctx, t, other.cert, w...)
	trusted(ctx, t, s, ns, []*x509.Certificate{ca, other.cert}, w...)
	answers(ctx, t, w[0], "/readyz", 200, "")

	// Deleted: it is back, with the same CA.
	was := secretOf(ctx, t, s)
	must(t, s.Kube.CoreV1().Secrets(stack.Namespace).Delete(ctx, "belay-ca", metav1.DeleteOptions{}))
	stack.Eventually(ctx, t, "the Secret is back", func() error {
		_, err := s.Kube.CoreV1().Secrets(stack.Namespace).Get(ctx, "belay-ca", metav1.GetOptions{})
		return err
	})
	now := secretOf(ctx, t, s)
	if now.UID == was.UID || !signerOf(t, now).Equal(other.cert) || !equalPEM(now.Data["tls.key"], was.Data["tls.key"]) || !equalPEM(now.Data["ca.crt"], was.Data["ca.crt"]) {
		t.Error("it has come back with another CA")
	}
	remains(ctx, t, other.cert, time.Second, w...)

	// Emptied, and filled with garbage: it is as it was within a look or two (4 s each).
	for name, spoil := range map[string]func(*corev1.Secret){
		"emptied": func(s *corev1.Secret) { s.Data = nil },
		"garbage": func(s *corev1.Secret) { s.Data["tls.crt"], s.Data["ca.crt"] = []byte("garbage"), []byte("garbage") },
	} {
		change(ctx, t, s, spoil)
		remains(ctx, t, other.cert, time.Second, w...)
		stack.Eventually(ctx, t, name+": the Secret is as it was", func() error {
			now, err := readSecret(ctx, s)
			if err != nil {
				return err
			}
			if !equalPEM(now.Data["tls.crt"], was.Data["tls.crt"]) || !equalPEM(now.Data["ca.crt"], was.Data["ca.crt"]) {
				return errors.New("it is not")
			}
			return nil
		})
	}

	// Immutable: nothing can be done until somebody deletes it, and nothing is lost.
	change(ctx, t, s, func(s *corev1.Secret) { yes := true; s.Immutable = &yes })
	ask(ctx, t, s)
	counts(ctx, t, s.Controllers()[0], `belay_ca_rotation_phase{phase="steady"}`, "1")
	remains(ctx, t, other.cert, time.Second, w...)
	must(t, s.Kube.CoreV1().Secrets(stack.Namespace).Delete(ctx, "belay-ca", metav1.DeleteOptions{}))
	next := signerOf(t, steady(ctx, t, s)) // what was asked for is done now
	of(ctx, t, next, w...)

	// Somebody else's: used, and never written.
	change(ctx, t, s, func(s *corev1.Secret) {
		metav1.SetMetaDataAnnotation(&s.ObjectMeta, "cert-manager.io/certificate-name", "theirs")
		metav1.SetMetaDataAnnotation(&s.ObjectMeta, "belay.dev/rotate", "once more")
	})
	version := secretOf(ctx, t, s).ResourceVersion
	remains(ctx, t, next, 3*time.Second, w...)
	if now := secretOf(ctx, t, s); now.ResourceVersion != version {
		t.Errorf("it was written: %v", now.Annotations)
	}
	change(ctx, t, s, func(s *corev1.Secret) { delete(s.Annotations, "cert-manager.io/certificate-name") })
	of(ctx, t, signerOf(t, steady(ctx, t, s)), w...)
	l.lost(t, "a Secret that is torn, deleted, emptied, immutable and somebody else's")
}

// TestT02_ACABundleThatIsWrong: one that is valid, and not belay's, is brought up to date.
func TestT02_ACABundleThatIsWrong(t *testing.T) {
	ctx, s := turn(t)
	ca := signerOf(t, steady(ctx, t, s))
	stale := newPair(t)
	var m admissionregistrationv1.MutatingWebhookConfiguration
	must(t, s.Client.Get(ctx, client.ObjectKey{Name: v1alpha1.ConfigurationName}, &m))
	for i := range m.Webhooks {
		m.Webhooks[i].ClientConfig.CABundle = stale.pem
	}
	must(t, s.Client.Update(ctx, &m))
	verified(ctx, t, s, ca)
}

// TestT02_AnEntryThatIsNotBelays: one in belay's domain that belay did not write stays as it is. No
// rotation waits until it trusts the next CA, and no replica is less ready for it.
func TestT02_AnEntryThatIsNotBelays(t *testing.T) {
	ctx, s := turn(t)
	before := signerOf(t, steady(ctx, t, s))
	const name = "audit.belay.dev"
	stranger := newPair(t)
	registrations := s.Kube.AdmissionregistrationV1().MutatingWebhookConfigurations()
	changed := func(ctx context.Context, how func([]admissionregistrationv1.MutatingWebhook) []admissionregistrationv1.MutatingWebhook) {
		stack.Eventually(ctx, t, "the registration is changed", func() error {
			m, err := registrations.Get(ctx, v1alpha1.ConfigurationName, metav1.GetOptions{})
			if err != nil {
				return err
			}
			m.Webhooks = how(m.Webhooks)
			_, err = registrations.Update(ctx, m, metav1.UpdateOptions{})
			return err
		})
	}
	stack.Cleanup(t, func(ctx context.Context) {
		changed(ctx, func(all []admissionregistrationv1.MutatingWebhook) []admissionregistrationv1.MutatingWebhook {
			return slices.DeleteFunc(all, func(w admissionregistrationv1.MutatingWebhook) bool { return w.Name == name })
		})
	})
	changed(ctx, func(all []admissionregistrationv1.MutatingWebhook) []admissionregistrationv1.MutatingWebhook {
		return append(all, admissionregistrationv1.MutatingWebhook{
			Name: name, AdmissionReviewVersions: []string{"v1"}, SideEffects: new(admissionregistrationv1.SideEffectClassNone), FailurePolicy: new(admissionregistrationv1.Ignore),
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: new("https://audit.example.com/"), CABundle: stranger.pem},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{"example.com"}, APIVersions: []string{"v1"}, Resources: []string{"things"}},
			}},
		})
	})
	ask(ctx, t, s)
	after := signerOf(t, steady(ctx, t, s))
	if after.Equal(before) {
		t.Error("the CA is the former one")
	}
	of(ctx, t, after, s.Webhooks()...)
	for _, p := range s.Webhooks() {
		answers(ctx, t, p, "/readyz", 200, "")
		counts(ctx, t, p, `belay_registration_entries{trust="untrusted"}`, "0")
	}
	m, err := registrations.Get(ctx, v1alpha1.ConfigurationName, metav1.GetOptions{})
	must(t, err)
	if !slices.ContainsFunc(m.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool {
		return w.Name == name && equalPEM(w.ClientConfig.CABundle, stranger.pem)
	}) {
		t.Error("somebody else's entry was changed")
	}
}

// verified waits until each bundle trusts what each replica serves, and holds a CA.
func verified(ctx context.Context, t testing.TB, s *stack.Stack, ca *x509.Certificate) {
	t.Helper()
	stack.Eventually(ctx, t, "what is served is trusted by every bundle", func() error {
		all, err := bundles(ctx, s.Client)
		if err != nil {
			return err
		}
		for _, b := range all {
			pool, has := x509.NewCertPool(), false
			for _, c := range certificatesOf(b) {
				pool.AddCert(c)
				has = has || c.Equal(ca)
			}
			if !has {
				return errors.New("a bundle lacks the CA")
			}
			for _, p := range s.Webhooks() {
				if err := verifies(p.Port, pool); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// TestT12_AnotherWriter: somebody writes the webhook configurations every 50 ms while the CA is
// replaced.
func TestT12_AnotherWriter(t *testing.T) {
	ctx, s := turn(t)
	ns := s.TestNamespace(ctx, t, "writer", v1alpha1.ModeEnforce)
	before := signerOf(t, steady(ctx, t, s))
	writing, stop := context.WithCancel(ctx)
	done := make(chan int)
	go func() {
		n := 0
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for writing.Err() == nil {
			<-tick.C
			n++
			patch := []byte(`{"metadata":{"annotations":{"example.com/touched":"` + time.Now().Format(time.RFC3339Nano) + `"}}}`)
			_, _ = s.Kube.AdmissionregistrationV1().MutatingWebhookConfigurations().Patch(writing, "belay", types.MergePatchType, patch, metav1.PatchOptions{})
			_, _ = s.Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Patch(writing, "belay", types.MergePatchType, patch, metav1.PatchOptions{})
		}
		done <- n
	}()
	l := begin(ctx, t, s, ns, 20)
	ask(ctx, t, s)
	after := signerOf(t, steady(ctx, t, s))
	if after.Equal(before) {
		t.Error("the CA is the former one")
	}
	verified(ctx, t, s, after)
	stack.Eventually(ctx, t, "the former CA is trusted by nobody", func() error {
		all, err := bundles(ctx, s.Client)
		if err != nil {
			return err
		}
		for _, b := range all {
			if slices.ContainsFunc(certificatesOf(b), before.Equal) {
				return errors.New("a bundle has it")
			}
		}
		return nil
	})
	stop()
	n := <-done
	l.lost(t, "a rotation while another writer touches the registrations")
	stack.Report(t, "the other writer wrote %d times", 2*n)
}
