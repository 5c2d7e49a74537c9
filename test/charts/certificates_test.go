package charts

import (
	"crypto"
	"crypto/x509"
	"slices"
	"strings"
	"testing"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/cert-manager/cert-manager/pkg/util/pki"
	appsv1 "k8s.io/api/apps/v1"
)

// checkCertificates: with cert-manager, replicas serve what is issued for them, under the name that
// the API server asks for; belay-controller names that Certificate; and whatever is renewed, what is
// served and what is injected go together, in either order.
func checkCertificates(t *testing.T, all objects) {
	certificates := typed[cmapi.Certificate](t, all, "Certificate")
	issuers := typed[cmapi.Issuer](t, all, "Issuer")
	deployments := typed[appsv1.Deployment](t, all, "Deployment")
	webhook, controller := deployments["belay-webhook"].Spec.Template.Spec, deployments["belay-controller"].Spec.Template.Spec
	injected := ""
	for _, a := range controller.Containers[0].Args {
		if v, ok := strings.CutPrefix(a, "--inject-ca-from="); ok {
			injected = v
		}
	}
	if len(certificates) == 0 {
		if len(issuers) > 0 || injected != "" || len(webhook.Volumes) > 0 {
			t.Errorf("there are no Certificates; issuers %v, --inject-ca-from=%s, volumes %v", issuers, injected, webhook.Volumes)
		}
		return
	}
	leaf, ok := certificates["belay-webhook"]
	if !ok || injected != "belay-system/belay-webhook" {
		t.Fatalf("%d Certificates, --inject-ca-from=%s", len(certificates), injected)
	}
	if len(webhook.Volumes) != 1 || webhook.Volumes[0].Secret == nil || webhook.Volumes[0].Secret.SecretName != leaf.Spec.SecretName {
		t.Fatalf("volumes %+v, Secret %s", webhook.Volumes, leaf.Spec.SecretName)
	}
	c := webhook.Containers[0]
	if len(c.VolumeMounts) != 1 || c.VolumeMounts[0].Name != webhook.Volumes[0].Name || !slices.Contains(c.Args, "--cert-dir="+c.VolumeMounts[0].MountPath) {
		t.Errorf("%+v, %q", c.VolumeMounts, c.Args)
	}
	name := "belay-webhook.belay-system.svc"
	if !slices.Contains(leaf.Spec.DNSNames, name) {
		t.Errorf("names %q", leaf.Spec.DNSNames)
	}
	by := issuers[leaf.Spec.IssuerRef.Name]
	if by.Spec.CA == nil {
		t.Fatalf("the issuer %s is no CA", leaf.Spec.IssuerRef.Name)
	}
	var ca cmapi.Certificate
	for _, candidate := range certificates {
		if candidate.Spec.SecretName == by.Spec.CA.SecretName {
			ca = candidate
		}
	}
	if !ca.Spec.IsCA || issuers[ca.Spec.IssuerRef.Name].Spec.SelfSigned == nil {
		t.Fatalf("the CA: %+v", ca.Spec)
	}
	if ca.Spec.RenewBefore.Duration < leaf.Spec.Duration.Duration {
		t.Errorf("the CA is renewed %s before it ends, and signs for %s", ca.Spec.RenewBefore.Duration, leaf.Spec.Duration.Duration)
	}
	if left := leaf.Spec.RenewBefore.Duration; left < 7*24*time.Hour || left > leaf.Spec.Duration.Duration/2 {
		t.Errorf("%s are left when a replica's certificate of %s is renewed", left, leaf.Spec.Duration.Duration)
	}

	key, old := issue(t, ca, nil, nil, nil)
	var kept crypto.Signer
	if ca.Spec.PrivateKey.RotationPolicy == cmapi.RotationPolicyNever {
		kept = key
	}
	newKey, renewed := issue(t, ca, kept, nil, nil)
	_, before := issue(t, leaf, nil, old, key)
	_, after := issue(t, leaf, nil, renewed, newKey)
	for what, served := range map[string]*x509.Certificate{"before": before, "after": after} {
		for which, trusted := range map[string]*x509.Certificate{"old": old, "renewed": renewed} {
			roots := x509.NewCertPool()
			roots.AddCert(trusted)
			if _, err := served.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
				t.Errorf("what was issued %s the CA was renewed does not verify by the %s CA: %v", what, which, err)
			}
		}
	}
}

// issue does what cert-manager does for a Certificate: with a key that is kept or a new one, signed
// by a CA or by itself.
func issue(t *testing.T, c cmapi.Certificate, key crypto.Signer, by *x509.Certificate, byKey crypto.Signer) (crypto.Signer, *x509.Certificate) {
	t.Helper()
	var err error
	if key == nil {
		if key, err = pki.GeneratePrivateKeyForCertificate(&c); err != nil {
			t.Fatal(err)
		}
	}
	template, err := pki.CertificateTemplateFromCertificate(&c)
	if err != nil {
		t.Fatal(err)
	}
	if template.PublicKey = key.Public(); by == nil {
		by, byKey = template, key
	}
	_, signed, err := pki.SignCertificate(template, by, key.Public(), byKey)
	if err != nil {
		t.Fatal(err)
	}
	return key, signed
}
