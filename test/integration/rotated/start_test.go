package rotated

import (
	"crypto/x509"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/test/integration/stack"
)

// TestT05_ThreeAtOnce: replicas that start at once with no CA, with an empty Secret, and with one
// of an older release, all serve certificates of the one that the Secret has.
func TestT05_ThreeAtOnce(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	// With a short life, so that garbage is waited on for seconds only.
	s := start(ctx, t, stack.Options{Webhooks: -1, Controllers: 1, WebhookFlags: []string{"--certificate-life=30s"}})
	older := newPair(t)
	secrets := s.Kube.CoreV1().Secrets(stack.Namespace)
	for _, c := range []struct {
		name   string
		secret *corev1.Secret
		want   *x509.Certificate
	}{
		{"no Secret", nil, nil},
		{"an empty Secret", &corev1.Secret{}, nil},
		{"a Secret of an older release", &corev1.Secret{Data: map[string][]byte{"tls.crt": older.pem, "tls.key": older.kpem, "ca.crt": older.pem}}, older.cert},
		{"a Secret with garbage, and nobody who knows better", &corev1.Secret{Data: map[string][]byte{"tls.crt": []byte("garbage"), "tls.key": []byte("garbage"), "ca.crt": older.pem}}, nil},
	} {
		if c.secret != nil {
			c.secret.Name = "belay-ca"
			_, err := secrets.Create(ctx, c.secret, metav1.CreateOptions{})
			must(t, err)
		}
		var replicas []*stack.Process
		for range 3 {
			p, err := s.LaunchWebhook(ctx)
			must(t, err)
			replicas = append(replicas, p)
		}
		for _, p := range replicas {
			answers(ctx, t, p, "/readyz", 200, "")
			// From the moment on that it is ready.
			ca := signerOf(t, secretOf(ctx, t, s))
			if c.want != nil && !ca.Equal(c.want) {
				t.Errorf("%s: another CA was made", c.name)
			}
			for _, port := range []int{p.Port, p.CollectorPort} {
				leaf, err := shown(port)
				must(t, err)
				if err := leaf.CheckSignatureFrom(ca); err != nil {
					t.Errorf("%s: %s is ready and serves a certificate of another CA: %v", c.name, p.Name, err)
				}
			}
		}
		var all sync.WaitGroup
		for _, p := range replicas {
			all.Go(func() {
				if err := p.Stop(); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		must(t, secrets.Delete(ctx, "belay-ca", metav1.DeleteOptions{}))
	}
}
