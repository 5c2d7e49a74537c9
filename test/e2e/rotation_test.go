package e2e

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/hack/kind/choice"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

const (
	phaseOwnLeaf  = "self-managed: other certificates"
	phaseOwnCA    = "self-managed: another CA"
	phaseLeaf     = "cert-manager: another certificate"
	phaseIssuerCA = "cert-manager: the CA renewed"
)

// servedEvery is how often replicas are asked for what they serve, by commands on a node.
const servedEvery = 2 * time.Second

// rotation: the CA that belay manages itself is replaced, and no call is lost.
func rotation(t *testing.T) {
	ctx, ns := begin(t, "rotation", v1alpha1.ModeEnforce)
	guard(ctx, t)
	p := runs(ctx, t, witnessed(ns, "reports"))
	l := startLoad(ctx, t, ns)
	l.rest(ctx, 5*time.Second)
	l.during(ctx, t, phaseOwnLeaf, func() error {
		served, err := c.served(ctx)
		if err != nil {
			return err
		}
		return waitEvery(ctx, bound, servedEvery, func() error {
			now, err := c.served(ctx)
			if err != nil {
				return err
			}
			for pod, leaf := range now {
				if was := served[pod]; was != nil && was.Equal(leaf) {
					return fmt.Errorf("Pod %s serves the certificate of before", pod)
				}
			}
			return nil
		})
	})
	l.during(ctx, t, phaseOwnCA, func() error {
		old, err := c.secretCAs(ctx, "belay-ca")
		if err != nil {
			return err
		}
		start := time.Now()
		if _, err := c.kubectl(ctx, "--namespace", belayNamespace, "annotate", "secret", "belay-ca", "--overwrite", "belay.dev/rotate="+fmt.Sprint(start.Unix())); err != nil {
			return err
		}
		most := len(old)
		err = wait(ctx, 6*time.Minute, func() error {
			now, err := c.secretCAs(ctx, "belay-ca")
			if err != nil {
				return err
			}
			most = max(most, len(now))
			for _, was := range old {
				for _, is := range now {
					if was.Equal(is) {
						return fmt.Errorf("the CA of before is trusted still, beside %d others", len(now)-1)
					}
				}
			}
			return nil
		})
		stack.Report(t, "e2e: the self-managed CA replaced within %s, at most %d trusted at once", seconds(time.Since(start)), most)
		if most < 2 {
			t.Error("the new CA was never trusted beside the one of before")
		}
		return errors.Join(err, c.trusts(ctx, "belay-ca", old...))
	})
	l.enter(phaseAfter)
	l.rest(ctx, 5*time.Second)
	l.table(t, nil)
	// A change is reported over a connection that trusts the new CA: the kubelet brings it.
	if _, err := get(ctx, ns, p.Name, "/crash"); err != nil {
		t.Fatal(err)
	}
	within(ctx, t, "the sidecar reports again", func() error { return readyAgain(ctx, p) })
}

// secretCAs are the CAs of a Secret's ca.crt.
func (c *cluster) secretCAs(ctx context.Context, name string) ([]*x509.Certificate, error) {
	s, err := c.Kube.CoreV1().Secrets(belayNamespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return certificates(s.Data["ca.crt"])
}

func certificates(rest []byte) (out []*x509.Certificate, err error) {
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return out, nil
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		out = append(out, cert)
	}
}

// trusts waits until every entry of belay trusts the CAs of a Secret, and none of those of before.
// CAs of others stay until they expire.
func (c *cluster) trusts(ctx context.Context, secret string, before ...*x509.Certificate) error {
	return wait(ctx, bound, func() error {
		want, err := c.secretCAs(ctx, secret)
		if err != nil {
			return err
		}
		r, err := readRegistrations(ctx)
		if err != nil {
			return err
		}
		bundles := r.bundles()
		if len(bundles) == 0 {
			return errors.New("nothing is registered")
		}
		for name, bundle := range bundles {
			got, err := certificates(bundle)
			if err != nil {
				return err
			}
			for _, ca := range want {
				if !slices.ContainsFunc(got, ca.Equal) {
					return fmt.Errorf("entry %s trusts %d CAs, and not that of Secret %s", name, len(got), secret)
				}
			}
			for _, ca := range before {
				if slices.ContainsFunc(got, ca.Equal) {
					return fmt.Errorf("entry %s trusts a CA of before", name)
				}
			}
		}
		return nil
	})
}

// certManager: belay with cert-manager's certificates, which are renewed, and its CA.
func certManager(t *testing.T) {
	ctx, ns := begin(t, "cert-manager", v1alpha1.ModeEnforce)
	start := time.Now()
	if err := c.installCertManager(ctx, t); err != nil {
		c.collect(ctx, t.Name(), ns)
		t.Fatal(err)
	}
	if err := c.install(ctx, "e2e-cert-manager"); err != nil {
		t.Fatal(err)
	}
	stack.Cleanup(t, func(ctx context.Context) {
		if t.Failed() {
			c.collect(ctx, t.Name(), ns)
		}
		if err := c.install(ctx, "e2e"); err != nil {
			t.Error(err)
		}
		if err := c.trusts(ctx, "belay-ca"); err != nil {
			t.Error(err)
		}
		if _, err := c.kubectl(ctx, "delete", "--namespace", belayNamespace, "certificates,issuers", "--all"); err != nil {
			t.Error(err)
		}
	})
	if err := c.trusts(ctx, "belay-webhook-tls"); err != nil {
		t.Fatal(err)
	}
	stack.Report(t, "e2e: cert-manager and belay with its certificates installed within %s", seconds(time.Since(start)))
	guard(ctx, t)
	l := startLoad(ctx, t, ns)
	l.rest(ctx, 5*time.Second)
	// Kubelets bring a Secret within a minute and a half; all of that time is looked at, and a
	// phase ends when every replica serves what was issued in it.
	brought := func() error {
		start := time.Now()
		err := waitEvery(ctx, 3*time.Minute, servedEvery, func() error { return c.serves(ctx, "belay-webhook-tls") })
		progress("  every replica serves it after %s", seconds(time.Since(start)))
		return err
	}
	l.during(ctx, t, phaseLeaf, func() error {
		if err := c.renew(ctx, "belay-webhook", "belay-webhook-tls"); err != nil {
			return err
		}
		return brought()
	})
	l.during(ctx, t, phaseIssuerCA, func() error {
		if err := c.renew(ctx, "belay-webhook-ca", "belay-webhook-ca"); err != nil {
			return err
		}
		if err := c.renew(ctx, "belay-webhook", "belay-webhook-tls"); err != nil {
			return err
		}
		return brought()
	})
	l.enter(phaseAfter)
	l.rest(ctx, 5*time.Second)
	l.table(t, nil)
}

// installCertManager runs cert-manager's controllers: those of the released images, or built from
// their module. BELAY_E2E_CERT_MANAGER says which: auto (the default), released or built.
func (c *cluster) installCertManager(ctx context.Context, t *testing.T) error {
	binary, err := c.static(ctx, "hack/kind/certmanager", ".")
	if err != nil {
		return err
	}
	version, err := c.run(ctx, nil, binary, "version")
	if err != nil {
		return err
	}
	released, err := c.run(ctx, nil, binary, "images")
	if err != nil {
		return err
	}
	from, err := choice.Choose(os.Getenv("BELAY_E2E_CERT_MANAGER"), func() error {
		progress("released images of cert-manager %s", version)
		return c.pull(ctx, strings.Fields(released)...)
	})
	if err != nil {
		return fmt.Errorf("BELAY_E2E_CERT_MANAGER: %w", err)
	}
	args := []string{"manifests"}
	switch from {
	case choice.Released:
		args = append(args, "--released")
		progress("cert-manager %s: the released images", version)
		stack.Report(t, "e2e: cert-manager %s: the released images of controller and cainjector", version)
	case choice.Built:
		progress("cert-manager %s: built from its module", version)
		stack.Report(t, "e2e: cert-manager %s: built from its module, no released image", version)
	}
	manifests, err := c.run(ctx, nil, binary, args...)
	if err != nil {
		return err
	}
	if from == choice.Built {
		if err := c.loadCertManager(ctx, binary, manifests); err != nil {
			return err
		}
	}
	kubectl := filepath.Join(c.bin, "kubectl")
	if _, err := c.run(ctx, []byte(manifests), kubectl, "apply", "--server-side", "--force-conflicts", "-f", "-"); err != nil {
		return err
	}
	for _, name := range []string{"cert-manager", "cert-manager-cainjector"} {
		// Available may be the one of before, which had other images.
		if _, err := c.kubectl(ctx, "--namespace", "cert-manager", "rollout", "status", "deployment/"+name, "--timeout=180s"); err != nil {
			return err
		}
	}
	return nil
}

// pull has the nodes have images, and shows how it goes: it may take a minute.
func (c *cluster) pull(ctx context.Context, images ...string) error {
	cmd := exec.CommandContext(ctx, c.kind, append([]string{"pull"}, images...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.root, os.Stdout, os.Stdout
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return nil
}

// loadCertManager loads the image that the manifests name.
func (c *cluster) loadCertManager(ctx context.Context, binary, manifests string) error {
	image := ""
	for line := range strings.Lines(manifests) {
		if _, name, found := strings.Cut(strings.TrimSpace(line), "image: "); found {
			image = strings.Trim(name, `"'`)
		}
	}
	return c.loadProgram(ctx, image, binary)
}

// renew has cert-manager issue a certificate anew, as "cmctl renew" does, and waits for it.
func (c *cluster) renew(ctx context.Context, name, secret string) error {
	before, err := c.Kube.CoreV1().Secrets(belayNamespace).Get(ctx, secret, metav1.GetOptions{})
	if err != nil {
		return err
	}
	now := time.Now().UTC().Format(time.RFC3339)
	condition := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"True","reason":"Ready","message":"","lastTransitionTime":%q},{"type":"Issuing","status":"True","reason":"ManuallyTriggered","message":"by a test","lastTransitionTime":%q}]}}`, now, now)
	if _, err := c.kubectl(ctx, "--namespace", belayNamespace, "patch", "certificate", name, "--subresource=status", "--type=merge", "--patch", condition); err != nil {
		return err
	}
	return wait(ctx, bound, func() error {
		after, err := c.Kube.CoreV1().Secrets(belayNamespace).Get(ctx, secret, metav1.GetOptions{})
		if err == nil && string(after.Data["tls.crt"]) == string(before.Data["tls.crt"]) {
			err = fmt.Errorf("Secret %s has the certificate of before", secret)
		}
		return err
	})
}

// serves reports whether every replica serves the certificate of a Secret.
func (c *cluster) serves(ctx context.Context, secret string) error {
	s, err := c.Kube.CoreV1().Secrets(belayNamespace).Get(ctx, secret, metav1.GetOptions{})
	if err != nil {
		return err
	}
	want, err := certificates(s.Data["tls.crt"])
	if err != nil || len(want) == 0 {
		return errors.Join(err, fmt.Errorf("Secret %s has no certificate", secret))
	}
	served, err := c.served(ctx)
	if err != nil {
		return err
	}
	for pod, leaf := range served {
		if !leaf.Equal(want[0]) {
			return fmt.Errorf("Pod %s serves another certificate", pod)
		}
	}
	return nil
}

// served is what each replica serves, by a handshake from a node.
func (c *cluster) served(ctx context.Context) (map[string]*x509.Certificate, error) {
	pods, err := c.replicas(ctx, "webhook")
	if err != nil {
		return nil, err
	}
	out := map[string]*x509.Certificate{}
	for _, p := range pods {
		said, err := c.node(ctx, "belay-control-plane", "curl", "--silent", "--insecure", "--output", "/dev/null", "--max-time", "5",
			"--write-out", "%{certs}", fmt.Sprintf("https://%s:9443/", p.Status.PodIP))
		if err != nil {
			return nil, err
		}
		got, err := certificates([]byte(said))
		if err != nil || len(got) == 0 {
			return nil, errors.Join(err, fmt.Errorf("Pod %s serves no certificate", p.Name))
		}
		out[p.Name] = got[0]
	}
	return out, nil
}
