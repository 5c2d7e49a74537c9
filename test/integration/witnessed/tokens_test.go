package witnessed

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/sidecar/channel"
	"github.com/belay-dev/belay/sidecar/wire"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// reporter speaks to the collectors as a sidecar does, with whatever token.
type reporter struct {
	address string
	channel *channel.Client
}

func newReporter(ctx context.Context, t testing.TB, s *stack.Stack, namespace string) *reporter {
	t.Helper()
	var pem string
	stack.Eventually(ctx, t, "ConfigMap with the CA", func() error {
		cm, err := s.Kube.CoreV1().ConfigMaps(namespace).Get(ctx, v1alpha1.CABundleName, metav1.GetOptions{})
		if err == nil {
			pem = cm.Data[v1alpha1.CABundleKey]
		}
		return err
	})
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(pem)) {
		t.Fatalf("no certificate in %q", pem)
	}
	c, err := channel.New(channel.Config{TLS: func() (*tls.Config, error) {
		return &tls.Config{RootCAs: roots, ServerName: "localhost", MinVersion: tls.VersionTLS13}, nil
	}})
	must(t, err)
	t.Cleanup(c.Close)
	return &reporter{address: s.CollectorAddress(), channel: c}
}

// about is a report about a Pod.
func about(p *corev1.Pod, state wire.State, sequence uint64) wire.Report {
	return wire.Report{
		Namespace: p.Namespace, Pod: p.Name, UID: string(p.UID), Container: "main", State: state, Reason: "ProbeSucceeded",
		Reporter: "r1", Sequence: sequence, ObservedUnixMillis: time.Now().UnixMilli(), ReporterSinceUnixMillis: time.Now().Add(-time.Hour).UnixMilli(),
	}
}

// send sends a report, and returns the status with what the answer says.
func (r *reporter) send(ctx context.Context, token string, report wire.Report) (int, wire.Answer, wire.Refusal, error) {
	body, err := wire.EncodeReport(report)
	if err != nil {
		return 0, wire.Answer{}, wire.Refusal{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+r.address+wire.Path, bytes.NewReader(body))
	if err != nil {
		return 0, wire.Answer{}, wire.Refusal{}, err
	}
	req.Header.Set("Content-Type", wire.ContentType)
	req.Header.Set("Authorization", "Bearer "+token)
	a, err := r.channel.Do(req)
	if err != nil {
		return 0, wire.Answer{}, wire.Refusal{}, err
	}
	var answer wire.Answer
	if a.Status == http.StatusOK {
		answer, err = wire.DecodeAnswer(a.Body)
	}
	return a.Status, answer, wire.DecodeRefusal(a.Body), err
}

// refused sums a metric of refusals over all replicas.
func refused(ctx context.Context, t testing.TB, s *stack.Stack, reason string) (total int) {
	t.Helper()
	for _, w := range s.Webhooks() {
		text, err := w.Metrics(ctx)
		must(t, err)
		for line := range strings.Lines(text) {
			if rest, ok := strings.CutPrefix(line, fmt.Sprintf("belay_reports_total{reason=%q,result=\"refused\"} ", reason)); ok {
				n, err := strconv.Atoi(strings.TrimSpace(rest))
				must(t, err)
				total += n
			}
		}
	}
	return total
}

// Whoever has another token than that of the very Pod is refused, with a reason, and counted;
// nothing is written.
func TestTokensOfOthersAreRefused(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	ns := shared.TestNamespace(ctx, t, "tokens", v1alpha1.ModeEnforce)
	r := newReporter(ctx, t, shared, ns)
	create := func(name string, change func(*corev1.Pod)) *corev1.Pod {
		p := pod(ns, name, 1)
		if change != nil {
			change(p)
		}
		must(t, shared.Client.Create(ctx, p))
		must(t, running(ctx, shared, p, 1, 10*time.Second))
		return p
	}
	token := func(p *corev1.Pod, audience string) string {
		out, err := shared.PodToken(ctx, p, audience, 600)
		must(t, err)
		return out
	}
	gone := func(p *corev1.Pod) {
		must(t, shared.Client.Delete(ctx, p, client.GracePeriodSeconds(0)))
		stack.Eventually(ctx, t, "the Pod is gone", func() error {
			return stack.MustBeNotFound(shared.Client.Get(ctx, client.ObjectKeyFromObject(p), &corev1.Pod{}))
		})
	}
	accepted := func(p *corev1.Pod, tok string) {
		code, _, why, err := r.send(ctx, tok, about(p, wire.StateReady, 1))
		must(t, err)
		if code != http.StatusOK {
			t.Fatalf("%d %+v", code, why)
		}
	}
	for name, try := range map[string]func() (victim *corev1.Pod, tok string, report wire.Report, code int, reasons []string){
		"C24: of another Pod": func() (*corev1.Pod, string, wire.Report, int, []string) {
			a, b := create("a", nil), create("b", nil)
			return a, token(b, v1alpha1.WitnessAudience), about(a, wire.StateReady, 1), http.StatusForbidden, []string{"OtherPod"}
		},
		"C24: for another audience": func() (*corev1.Pod, string, wire.Report, int, []string) {
			p := create("audience", nil)
			return p, token(p, "vault"), about(p, wire.StateReady, 1), http.StatusUnauthorized, []string{"WrongAudience"}
		},
		"for the API server": func() (*corev1.Pod, string, wire.Report, int, []string) {
			p := create("apiserver", nil)
			return p, token(p, "https://kubernetes.default.svc"), about(p, wire.StateReady, 1), http.StatusUnauthorized, []string{"WrongAudience"}
		},
		"C24: bound to nothing": func() (*corev1.Pod, string, wire.Report, int, []string) {
			p := create("unbound", nil)
			out, err := shared.Kube.CoreV1().ServiceAccounts(ns).CreateToken(ctx, "default", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{v1alpha1.WitnessAudience}}}, metav1.CreateOptions{})
			must(t, err)
			return p, out.Status.Token, about(p, wire.StateReady, 1), http.StatusUnauthorized, []string{"UnboundToken"}
		},
		"bound to a Secret": func() (*corev1.Pod, string, wire.Report, int, []string) {
			p := create("secretive", nil)
			s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "bound"}}
			must(t, shared.Client.Create(ctx, s))
			out, err := shared.Kube.CoreV1().ServiceAccounts(ns).CreateToken(ctx, "default", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
				Audiences:      []string{v1alpha1.WitnessAudience},
				BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: s.Name, UID: s.UID},
			}}, metav1.CreateOptions{})
			must(t, err)
			return p, out.Status.Token, about(p, wire.StateReady, 1), http.StatusUnauthorized, []string{"UnboundToken"}
		},
		"made up": func() (*corev1.Pod, string, wire.Report, int, []string) {
			p := create("forged", nil)
			parts := strings.Split(token(p, v1alpha1.WitnessAudience), ".")
			signature := []byte(parts[2])
			signature[10] ^= 1
			if signature[10] == '=' || signature[10] < '0' {
				signature[10] = 'A'
			}
			return p, parts[0] + "." + parts[1] + "." + string(signature), about(p, wire.StateReady, 1), http.StatusUnauthorized, []string{"TokenInvalid"}
		},
		"C23: of a Pod that is deleted, seen for the first time": func() (*corev1.Pod, string, wire.Report, int, []string) {
			p := create("deleted", nil)
			tok := token(p, v1alpha1.WitnessAudience)
			gone(p)
			// The API server itself finds out within some seconds.
			return nil, tok, about(p, wire.StateReady, 1), 0, []string{"TokenInvalid", "PodGone"}
		},
		"C23: of a Pod that is deleted, known from before": func() (*corev1.Pod, string, wire.Report, int, []string) {
			p := create("known", nil)
			tok := token(p, v1alpha1.WitnessAudience)
			accepted(p, tok)
			gone(p)
			return nil, tok, about(p, wire.StateNotReady, 2), 0, []string{"PodGone", "TokenInvalid"}
		},
		"C23: of a Pod that is being deleted": func() (*corev1.Pod, string, wire.Report, int, []string) {
			p := create("terminating", func(p *corev1.Pod) { p.Finalizers = []string{"example.com/hold"} })
			tok := token(p, v1alpha1.WitnessAudience)
			must(t, shared.Client.Delete(ctx, p))
			stack.Cleanup(t, func(ctx context.Context) {
				_ = shared.Client.Patch(ctx, p, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
			})
			return p, tok, about(p, wire.StateReady, 1), http.StatusForbidden, []string{"PodDeleting"}
		},
		"C24: of a predecessor, for the Pod that has its name now": func() (*corev1.Pod, string, wire.Report, int, []string) {
			old := create("successor", nil)
			tok := token(old, v1alpha1.WitnessAudience)
			accepted(old, tok)
			gone(old)
			now := create("successor", nil)
			return now, tok, about(now, wire.StateReady, 1), 0, []string{"OtherPod", "TokenInvalid"}
		},
		"C24: of a predecessor, for itself": func() (*corev1.Pod, string, wire.Report, int, []string) {
			old := create("predecessor", nil)
			tok := token(old, v1alpha1.WitnessAudience)
			accepted(old, tok)
			gone(old)
			return create("predecessor", nil), tok, about(old, wire.StateReady, 2), 0, []string{"PodReplaced", "TokenInvalid"}
		},
		"C22: of a service account that was made anew": func() (*corev1.Pod, string, wire.Report, int, []string) {
			sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "anew"}}
			must(t, shared.Client.Create(ctx, sa))
			p := create("orphan", func(p *corev1.Pod) { p.Spec.ServiceAccountName = "anew" })
			tok := token(p, v1alpha1.WitnessAudience)
			must(t, shared.Client.Delete(ctx, sa))
			must(t, shared.Client.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "anew"}}))
			return p, tok, about(p, wire.StateReady, 1), http.StatusUnauthorized, []string{"TokenInvalid"}
		},
		"its own, about a container that it does not have": func() (*corev1.Pod, string, wire.Report, int, []string) {
			p := create("container", nil)
			report := about(p, wire.StateReady, 1)
			report.Container = v1alpha1.SidecarName
			return p, token(p, v1alpha1.WitnessAudience), report, http.StatusForbidden, []string{"NoSuchContainer"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			victim, tok, report, code, reasons := try()
			var before corev1.Pod
			if victim != nil {
				must(t, shared.Client.Get(ctx, client.ObjectKeyFromObject(victim), &before))
			}
			count := 0
			for _, reason := range reasons {
				count += refused(ctx, t, shared, reason)
			}
			got, _, why, err := r.send(ctx, tok, report)
			must(t, err)
			if got < 400 || got >= 500 || (code != 0 && got != code) || !strings.Contains(strings.Join(reasons, " "), why.Reason) || why.Reason == "" || why.Message == "" {
				t.Errorf("%d %+v, want %d %v", got, why, code, reasons)
			}
			after := 0
			for _, reason := range reasons {
				after += refused(ctx, t, shared, reason)
			}
			if after <= count {
				t.Errorf("counted %d before and %d after", count, after)
			}
			if victim == nil {
				return
			}
			var now corev1.Pod
			must(t, shared.Client.Get(ctx, client.ObjectKeyFromObject(victim), &now))
			if now.ResourceVersion != before.ResourceVersion {
				t.Errorf("it was written: %+v", now.Status.Conditions)
			}
		})
	}
}

// Where a namespace has not opted in, or only to be warned, nothing is written: whatever a Pod
// has brought along from elsewhere.
func TestReportsCountWhereANamespaceHasOptedIn(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	home := shared.TestNamespace(ctx, t, "home", v1alpha1.ModeEnforce)
	r := newReporter(ctx, t, shared, home)
	for _, mode := range []string{"", v1alpha1.ModeWarn} {
		ns := shared.TestNamespace(ctx, t, "elsewhere", mode)
		p := pod(ns, "a", 1)
		must(t, shared.Client.Create(ctx, p))
		must(t, running(ctx, shared, p, 1, 10*time.Second))
		tok, err := shared.PodToken(ctx, p, v1alpha1.WitnessAudience, 600)
		must(t, err)
		code, _, why, err := r.send(ctx, tok, about(p, wire.StateReady, 1))
		must(t, err)
		var now corev1.Pod
		must(t, shared.Client.Get(ctx, client.ObjectKeyFromObject(p), &now))
		if code != http.StatusForbidden || why.Reason != "NamespaceNotEnforced" || condition(&now) != nil {
			t.Errorf("mode %q: %d %+v, %+v", mode, code, why, condition(&now))
		}
	}
}

// The order of reports is that of their sequence, whichever replica they come to and however
// late; a report about an earlier run of the container says nothing of the one there is.
func TestLateReportsAreDropped(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	ns := shared.TestNamespace(ctx, t, "late", v1alpha1.ModeEnforce)
	r := newReporter(ctx, t, shared, ns)
	p := pod(ns, "a", 1)
	must(t, shared.Client.Create(ctx, p))
	must(t, running(ctx, shared, p, 1, 10*time.Second))
	tok, err := shared.PodToken(ctx, p, v1alpha1.WitnessAudience, 600)
	must(t, err)
	send := func(what string, report wire.Report, want corev1.ConditionStatus, run int) wire.Answer {
		t.Helper()
		code, answer, why, err := r.send(ctx, tok, report)
		must(t, err)
		if code != http.StatusOK {
			t.Fatalf("%s: %d %+v", what, code, why)
		}
		var now corev1.Pod
		must(t, shared.Client.Get(ctx, client.ObjectKeyFromObject(p), &now))
		if c := condition(&now); c == nil || c.Status != want || !strings.HasPrefix(c.Message, stack.ContainerID(p, run)+": ") {
			t.Errorf("%s: %+v, want %s of run %d", what, c, want, run)
		}
		return answer
	}
	send("ready", about(p, wire.StateReady, 3), corev1.ConditionTrue, 1)
	send("late: not ready, from before", about(p, wire.StateNotReady, 2), corev1.ConditionTrue, 1)
	send("not ready", about(p, wire.StateNotReady, 4), corev1.ConditionFalse, 1)
	send("ready, again", about(p, wire.StateReady, 5), corev1.ConditionTrue, 1)
	send("late: not ready, once more", about(p, wire.StateNotReady, 4), corev1.ConditionTrue, 1)
	earlier := about(p, wire.StateNotReady, 9)
	earlier.Reporter, earlier.ReporterSinceUnixMillis = "r0", earlier.ReporterSinceUnixMillis-3600_000
	send("late: of an earlier run of the sidecar", earlier, corev1.ConditionTrue, 1)

	// C20: the container is started anew under the same UID. What was observed before says
	// nothing of it, and nothing is written.
	before := about(p, wire.StateReady, 6)
	must(t, running(ctx, shared, p, 2, 0))
	before.ObservedUnixMillis = time.Now().Add(-2 * time.Second).UnixMilli()
	if answer := send("ready, observed before the start", before, corev1.ConditionTrue, 1); answer.Interval() != wire.MinInterval {
		t.Errorf("the next report is asked for in %s", answer.Interval())
	}
	after := before
	after.ObservedUnixMillis = time.Now().Add(1100 * time.Millisecond).UnixMilli()
	send("ready, observed after the start", after, corev1.ConditionTrue, 2)
	later := about(p, wire.StateNotReady, 1)
	later.Reporter, later.ReporterSinceUnixMillis = "r2", later.ReporterSinceUnixMillis+60_000
	send("of a later run of the sidecar", later, corev1.ConditionFalse, 2)
	send("late: of the run before", about(p, wire.StateReady, 7), corev1.ConditionFalse, 2)
}

// Nobody but its own Pod can be reported about, and what cannot be read changes nothing.
func TestWhatIsNoReportIsRefused(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	ns := shared.TestNamespace(ctx, t, "junk", v1alpha1.ModeEnforce)
	r := newReporter(ctx, t, shared, ns)
	p := pod(ns, "a", 1)
	must(t, shared.Client.Create(ctx, p))
	tok, err := shared.PodToken(ctx, p, v1alpha1.WitnessAudience, 600)
	must(t, err)
	good, err := json.Marshal(about(p, wire.StateReady, 1))
	must(t, err)
	for name, c := range map[string]struct {
		method, path, contentType, token string
		body                             []byte
		code                             int
	}{
		"no report":            {http.MethodPost, wire.Path, wire.ContentType, tok, []byte(`{}`), http.StatusBadRequest},
		"no JSON":              {http.MethodPost, wire.Path, wire.ContentType, tok, []byte(`<html>`), http.StatusBadRequest},
		"too much":             {http.MethodPost, wire.Path, wire.ContentType, tok, bytes.Repeat([]byte(" "), wire.MaxReportBytes+1), http.StatusRequestEntityTooLarge},
		"another type":         {http.MethodPost, wire.Path, "text/plain", tok, good, http.StatusUnsupportedMediaType},
		"a read":               {http.MethodGet, wire.Path, wire.ContentType, tok, good, http.StatusMethodNotAllowed},
		"another path":         {http.MethodPost, "/metrics", wire.ContentType, tok, good, http.StatusNotFound},
		"an admission review":  {http.MethodPost, "/mutate/owner", wire.ContentType, tok, good, http.StatusNotFound},
		"no token":             {http.MethodPost, wire.Path, wire.ContentType, "", good, http.StatusUnauthorized},
		"a token that is none": {http.MethodPost, wire.Path, wire.ContentType, "open sesame", good, http.StatusUnauthorized},
	} {
		req, err := http.NewRequestWithContext(ctx, c.method, "https://"+r.address+c.path, bytes.NewReader(c.body))
		must(t, err)
		req.Header.Set("Content-Type", c.contentType)
		req.Header.Set("Authorization", "Bearer "+c.token)
		a, err := r.channel.Do(req)
		if err != nil || a.Status != c.code {
			t.Errorf("%s: %v %d, want %d; %s", name, err, a.Status, c.code, a.Body)
		}
	}
}
