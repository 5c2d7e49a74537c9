package witnessed

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/belay-dev/belay/test/integration/stack"
)

// probed asks a process's probes; the code is 0 where nobody answers.
func probed(ctx context.Context, p *stack.Process, path string) (int, string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", p.ProbePort, path), http.NoBody)
	if err != nil {
		return 0, err.Error()
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}

// answersWith waits until a probe answers with a code and what is wanted of its body.
func answersWith(ctx context.Context, t *testing.T, p *stack.Process, path string, code int, parts ...string) {
	t.Helper()
	stack.Eventually(ctx, t, fmt.Sprintf("%s of %s answers %d", path, p.Name, code), func() error {
		got, body := probed(ctx, p, path)
		if got != code {
			return fmt.Errorf("%d: %s", got, body)
		}
		for _, part := range parts {
			if !strings.Contains(body, part) {
				return fmt.Errorf("%q is not in: %s", part, body)
			}
		}
		return nil
	})
}

// launched starts a belay-webhook that gets no traffic and ends with the test.
func launched(t *testing.T, s *stack.Stack, binary string, flags ...string) *stack.Process {
	t.Helper()
	p, err := s.LaunchWith(binary, flags...)
	must(t, err)
	t.Cleanup(func() {
		_ = p.Stop()
		if t.Failed() {
			t.Logf("%s:\n%s", p.Name, p.Tail(15))
		}
	})
	return p
}

// exits waits for the end of a process, and asserts its code and what the end of its log says.
func exits(ctx context.Context, t *testing.T, p *stack.Process, code int, parts ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, stack.Bound)
	defer cancel()
	got, err := p.Wait(ctx)
	must(t, err)
	if got != code {
		t.Errorf("exit code %d", got)
	}
	log := p.Tail(8)
	for _, part := range parts {
		if !strings.Contains(log, part) {
			t.Errorf("the end of the log does not say %q:\n%s", part, log)
		}
	}
}

// kubeconfigOf writes a kubeconfig of belay-webhook for a server.
func kubeconfigOf(ctx context.Context, t *testing.T, s *stack.Stack, change func(*clientcmdapi.Cluster, string)) string {
	t.Helper()
	cfg, err := s.Config(ctx, stack.Namespace, stack.WebhookAccount)
	must(t, err)
	cluster := &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData}
	change(cluster, cfg.BearerToken)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"x": cluster},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"x": {Token: cfg.BearerToken}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "x", AuthInfo: "x"}},
		CurrentContext: "x",
	}, path))
	return path
}

// nobody is a kubeconfig for a port where nobody listens.
func nobody(ctx context.Context, t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, l.Close())
	return kubeconfigOf(ctx, t, shared, func(c *clientcmdapi.Cluster, _ string) { c.Server = "https://" + l.Addr().String() })
}

// When a part of the core ends, the process does, with a code and a reason.
func TestExitWhenAPartOfTheCoreStops(t *testing.T) {
	t.Parallel()
	const reason = "it stopped by itself"
	for _, part := range []string{"manager", "collector", "certificates"} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			ctx := stack.TestContext(t)
			binary := filepath.Join(t.TempDir(), "belay-webhook")
			cmd := exec.CommandContext(ctx, "go", "build", "-o", binary, "-ldflags", "-s -w -X github.com/belay-dev/belay/webhook/app.failpoint="+part, "./cmd/belay-webhook")
			cmd.Dir = stack.Root()
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			p := launched(t, shared, binary)
			var away *stack.Process
			if part == "collector" {
				// The same while the manager waits for its caches, and hears nothing.
				away = launched(t, shared, binary, "--kubeconfig="+nobody(ctx, t))
			}
			exits(ctx, t, p, 70, "belay-webhook stopped: "+part+": ", reason)
			if away != nil {
				exits(ctx, t, away, 70, "belay-webhook stopped: "+part+": ", reason)
			}
		})
	}
}

// A port that is taken is no fault of the command line: the next start may find it free.
func TestExitWhenAPortIsTaken(t *testing.T) {
	t.Parallel()
	for flag, reason := range map[string]string{
		"listen":                    "belay-webhook stopped: manager: ",
		"collector-listen":          "listening for reports: ",
		"health-probe-bind-address": "listening for probes: ",
		"metrics-bind-address":      "belay-webhook stopped: manager: ",
	} {
		t.Run(flag, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			must(t, err)
			defer func() { _ = l.Close() }()
			p := launched(t, shared, "", fmt.Sprintf("--%s=%s", flag, l.Addr()))
			exits(stack.TestContext(t), t, p, 70, reason, l.Addr().String()+": bind: address already in use")
		})
	}
}

// What the command line names and is not there is a fault of it.
func TestExitWithAHintWhereAFileIsMissing(t *testing.T) {
	t.Parallel()
	for flag, reason := range map[string]string{
		"client-ca-file": "--client-ca-file: open /does/not/exist: no such file",
		"cert-dir":       "--cert-dir: open /does/not/exist: no such file",
		"kubeconfig":     "no way to reach an API server: ",
	} {
		t.Run(flag, func(t *testing.T) {
			t.Parallel()
			p := launched(t, shared, "", "--"+flag+"=/does/not/exist")
			exits(stack.TestContext(t), t, p, 2, "belay-webhook: "+reason, "Run 'belay-webhook --help' for all flags.")
		})
	}
}

func TestProbesSayWhatTheyLookAt(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	for p, checks := range map[*stack.Process][]string{
		shared.Webhooks()[0]:    {"caches-synced", "certificate", "collector", "draining", "listener", "live", "policies-compiled"},
		shared.Controllers()[0]: {"caches-synced", "draining", "live"},
	} {
		want := "[+]" + strings.Join(checks, " ok\n[+]") + " ok\nhealthz check passed\n"
		answersWith(ctx, t, p, "/readyz", http.StatusOK)
		code, body := probed(ctx, p, "/readyz?verbose")
		if diff := cmp.Diff(want, body); code != http.StatusOK || diff != "" {
			t.Errorf("%s: %d (-want +got)\n%s", p.Name, code, diff)
		}
		for _, check := range checks {
			if code, body := probed(ctx, p, "/readyz/"+check); code != http.StatusOK || body != "ok" {
				t.Errorf("%s: %s: %d %s", p.Name, check, code, body)
			}
		}
		for path, want := range map[string]int{"/livez": 200, "/livez?verbose": 200, "/livez/core": 200, "/readyz/other": 404, "/livez/certificate": 404, "/metrics": 404} {
			if code, body := probed(ctx, p, path); code != want {
				t.Errorf("%s: %s: %d %s", p.Name, path, code, body)
			}
		}
	}
}

// While there is no API server the process waits for it: it lives, says what is missing, and
// hears a signal.
func TestProbesWithoutAnAPIServer(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	p := launched(t, shared, "", "--kubeconfig="+nobody(ctx, t))
	answersWith(ctx, t, p, "/livez", http.StatusOK)
	answersWith(ctx, t, p, "/readyz", http.StatusInternalServerError,
		"[-]caches-synced failed", "[-]certificate failed", "[+]collector ok", "[+]draining ok", "[-]listener failed", "[+]live ok", "[-]policies-compiled failed")
	answersWith(ctx, t, p, "/readyz/certificate", http.StatusInternalServerError, "no serving certificate yet")
	must(t, p.Signal(syscall.SIGTERM))
	exits(ctx, t, p, 0)
}

// Until the caches are synced a replica is not ready, whatever else works.
func TestProbesUntilTheCachesAreSynced(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	faults, err := stack.NewFaults(shared.Plane.Config())
	must(t, err)
	t.Cleanup(faults.Close)
	faults.Set(func(r *http.Request) *stack.Fault {
		if strings.Contains(r.URL.Path, "/ownerpolicies") {
			return &stack.Fault{Status: http.StatusServiceUnavailable, Body: `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"ServiceUnavailable","code":503}`}
		}
		return nil
	})
	kubeconfig := kubeconfigOf(ctx, t, shared, func(c *clientcmdapi.Cluster, token string) {
		through := faults.Config(token)
		c.Server, c.CertificateAuthorityData = through.Host, through.CAData
	})
	p := launched(t, shared, "", "--kubeconfig="+kubeconfig)
	answersWith(ctx, t, p, "/readyz", http.StatusInternalServerError,
		"[-]caches-synced failed", "[+]certificate ok", "[+]collector ok", "[+]draining ok", "[+]listener ok", "[+]live ok", "[-]policies-compiled failed")
	answersWith(ctx, t, p, "/readyz/caches-synced", http.StatusInternalServerError, "the caches are not synced yet")
	answersWith(ctx, t, p, "/readyz/policies-compiled", http.StatusInternalServerError, "the policies in force are not compiled yet")
	answersWith(ctx, t, p, "/livez", http.StatusOK)
	faults.Set(nil)
	answersWith(ctx, t, p, "/readyz", http.StatusOK)
}

// After a signal a replica says that it is not ready, goes on working for the while of --drain,
// and ends well.
func TestProbesWhileAReplicaDrains(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	p := launched(t, shared, "", "--drain=5s")
	answersWith(ctx, t, p, "/readyz", http.StatusOK)
	must(t, p.Signal(syscall.SIGTERM))
	answersWith(ctx, t, p, "/readyz", http.StatusInternalServerError, "[-]draining failed",
		"[+]caches-synced ok", "[+]certificate ok", "[+]collector ok", "[+]listener ok", "[+]live ok", "[+]policies-compiled ok")
	for _, path := range []string{"/livez", "/readyz/listener", "/readyz/collector"} {
		if code, body := probed(ctx, p, path); code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	exits(ctx, t, p, 0)
}
