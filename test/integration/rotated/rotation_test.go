package rotated

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// ask asks for a rotation.
func ask(ctx context.Context, t testing.TB, s *stack.Stack) {
	t.Helper()
	change(ctx, t, s, func(secret *corev1.Secret) {
		metav1.SetMetaDataAnnotation(&secret.ObjectMeta, "belay.dev/rotate", time.Now().String())
	})
}

// steady waits until a rotation that was asked for is over.
func steady(ctx context.Context, t testing.TB, s *stack.Stack) *corev1.Secret {
	t.Helper()
	var secret *corev1.Secret
	stack.Eventually(ctx, t, "the rotation is over", func() error {
		var err error
		if secret, err = readSecret(ctx, s); err != nil {
			return err
		}
		if asked := secret.Annotations["belay.dev/rotate"]; secret.Annotations["belay.dev/rotated"] != asked {
			return errors.New("it has not begun")
		}
		if len(secret.Data["next.crt"]) > 0 || len(certificatesOf(secret.Data["ca.crt"])) != 1 {
			return errors.New("it is under way")
		}
		return nil
	})
	return secret
}

// TestT06_ARotationThatIsAskedFor: the CA is replaced in phases, and no call is lost, whoever
// leads and whatever the age of what clients know.
func TestT06_ARotationThatIsAskedFor(t *testing.T) {
	ctx, s := turn(t)
	ns := s.TestNamespace(ctx, t, "rotation", v1alpha1.ModeEnforce)
	before := signerOf(t, secretOf(ctx, t, s))
	trusted(ctx, t, s, ns, []*x509.Certificate{before}, s.Webhooks()...)
	history := recorded(ctx, t, s)
	// Older than what replicas wait for API servers by themselves (2 s), and not as old as the
	// rotation waits (5 s): as a kubelet's view of a ConfigMap.
	l, d := begin(ctx, t, s, ns, 50), dialing(ctx, t, s, ns, 3*time.Second, s.Webhooks()...)
	began := time.Now()
	ask(ctx, t, s)
	after := steady(ctx, t, s)
	took := time.Since(began)
	next := signerOf(t, after)
	if next.Equal(before) {
		t.Fatal("the CA is the former one")
	}
	of(ctx, t, next, s.Webhooks()...)
	trusted(ctx, t, s, ns, []*x509.Certificate{next}, s.Webhooks()...)
	l.lost(t, "a rotation of the CA")
	d.refused(t, "a rotation of the CA")
	stack.Report(t, "a rotation with 5s to settle took %s", took.Round(100*time.Millisecond))
	want := []string{
		"signs A, next -, trusts A",
		"signs A, next B, trusts A B",
		"signs B, next -, trusts A B",
		"signs B, next -, trusts B",
	}
	if diff := cmp.Diff(want, history.phases()); diff != "" {
		t.Errorf("phases (-want +got)\n%s", diff)
	}
	controller := s.Controllers()[0]
	for _, step := range []string{"add", "serve", "drop"} {
		if got := metric(ctx, t, controller, fmt.Sprintf("belay_ca_rotation_steps_total{result=%q,step=%q}", "ok", step)); got == "" || got == "0" {
			t.Errorf("step %s is not counted: %q", step, got)
		}
	}
	counts(ctx, t, controller, `belay_ca_rotation_phase{phase="steady"}`, "1")
	for _, w := range s.Webhooks() {
		if got := metric(ctx, t, w, `belay_certificate_expiry_timestamp_seconds{certificate="ca"}`); got != fmt.Sprint(float64(next.NotAfter.Unix())) {
			t.Errorf("%s says that the CA expires at %s", w.Name, got)
		}
	}
	told(ctx, t, s, "next CA made", "certificates are signed by the next CA", "former CA dropped")
}

// TestARotationWaitsForEachReplica: one that hangs serves the former certificate when it goes on,
// so that the former CA is trusted until it has answered.
func TestARotationWaitsForEachReplica(t *testing.T) {
	ctx, s := turn(t)
	before := signerOf(t, steady(ctx, t, s))
	hangs := s.Webhooks()[1]
	s.Detach(hangs)
	defer s.Attach()
	must(t, hangs.Signal(syscall.SIGSTOP))
	goesOn := sync.OnceFunc(func() { must(t, hangs.Signal(syscall.SIGCONT)) })
	defer goesOn()
	ask(ctx, t, s)
	stack.Eventually(ctx, t, "the next CA signs", func() error {
		secret, err := readSecret(ctx, s)
		if err == nil && (signerOf(t, secret).Equal(before) || len(secret.Data["next.crt"]) > 0) {
			err = errors.New("not yet")
		}
		return err
	})
	of(ctx, t, signerOf(t, secretOf(ctx, t, s)), s.Webhooks()[0])
	// Far longer than the rotation waits where all answer, with a look that takes 5 s.
	for until := time.Now().Add(15 * time.Second); time.Now().Before(until); {
		if secret := secretOf(ctx, t, s); !slices.ContainsFunc(certificatesOf(secret.Data["ca.crt"]), before.Equal) {
			t.Fatal("the former CA is trusted no more, and a replica has not said that it serves a certificate of the next one")
		}
		select {
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
	goesOn()
	of(ctx, t, signerOf(t, steady(ctx, t, s)), s.Webhooks()...)
}

// told waits for events of the Secret.
func told(ctx context.Context, t testing.TB, s *stack.Stack, notes ...string) {
	t.Helper()
	stack.Eventually(ctx, t, "events", func() error {
		all, err := s.Kube.EventsV1().Events("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, note := range notes {
			found := false
			for _, e := range all.Items {
				found = found || e.Reason == "CARotation" && e.Regarding.Name == "belay-ca" && strings.Contains(e.Note, note)
			}
			if !found {
				return fmt.Errorf("none says %q", note)
			}
		}
		return nil
	})
}

// TestALifeInAMinute: with lives of a minute CAs and certificates are replaced by the clock, and
// nothing is lost.
func TestALifeInAMinute(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	lives := []string{"--ca-life=75s"}
	s := start(ctx, t, stack.Options{
		Presets: []string{"otf"}, Webhooks: 2, WebhookFlags: append([]string{"--http2=false", "--certificate-life=30s"}, lives...),
		ControllerFlags: append([]string{"--ca-settle=2s"}, lives...),
	})
	must(t, install(ctx, s, true))
	ns := s.TestNamespace(ctx, t, "lives", v1alpha1.ModeEnforce)
	addressed(ctx, t, s, s.Webhooks()...)
	first := signerOf(t, secretOf(ctx, t, s))
	trusted(ctx, t, s, ns, []*x509.Certificate{first}, s.Webhooks()...)
	history := recorded(ctx, t, s)
	l, d := begin(ctx, t, s, ns, 20), dialing(ctx, t, s, ns, time.Second, s.Webhooks()...)
	until := first.NotAfter.Add(5 * time.Second)
	leaves := map[string]bool{}
	for time.Now().Before(until) {
		for _, w := range s.Webhooks() {
			c, err := shown(w.Port)
			must(t, err)
			if time.Until(c.NotAfter) <= 0 {
				t.Errorf("%s shows a certificate that expired at %s", w.Name, c.NotAfter)
			}
			leaves[c.SerialNumber.String()] = true
		}
		select {
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
	l.lost(t, "CAs that live 75 s, certificates 30 s")
	d.refused(t, "CAs that live 75 s, certificates 30 s")
	got := history.phases()
	if len(got) < 4 || got[3] != "signs B, next -, trusts B" {
		t.Errorf("phases %q", got)
	}
	// 75 s of 20 s each, on two replicas.
	if len(leaves) < 6 {
		t.Errorf("%d certificates", len(leaves))
	}
	stack.Report(t, "CAs that live 75 s, certificates 30 s: %d certificates, phases %q", len(leaves), got)
}
