package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/webhook/internal/certs"
	"github.com/belay-dev/belay/webhook/internal/owner"
)

func commands() map[string]func() *cobra.Command {
	return map[string]func() *cobra.Command{"belay-webhook": NewWebhookCommand, "belay-controller": NewControllerCommand}
}

func TestFlagsThatMakeNoSenseEndWithAHint(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		command string
		args    []string
		want    string
	}{
		"a flag that does not exist":       {"belay-webhook", []string{"--lisen=:1"}, "unknown flag: --lisen"},
		"a flag without its value":         {"belay-controller", []string{"--webhook-url"}, "flag needs an argument: --webhook-url"},
		"an argument":                      {"belay-webhook", []string{"listen=:1"}, `unexpected argument "listen=:1"`},
		"an argument of the controller":    {"belay-controller", []string{"run"}, `unexpected argument "run"`},
		"a namespace that is none":         {"belay-webhook", []string{"--namespace=Belay_System"}, `--namespace "Belay_System": `},
		"a namespace of the controller":    {"belay-controller", []string{"--namespace="}, `--namespace "": `},
		"a Secret's name that is none":     {"belay-webhook", []string{"--ca-secret=a/b"}, `--ca-secret "a/b": `},
		"a log level below all":            {"belay-webhook", []string{"--v=-1"}, "--v -1: must be from 0 to 10"},
		"a log level beyond all":           {"belay-controller", []string{"--v=11"}, "--v 11: must be from 0 to 10"},
		"a log level in words":             {"belay-webhook", []string{"--v=debug"}, `invalid argument "debug" for "--v" flag`},
		"an address without a port":        {"belay-webhook", []string{"--listen=localhost"}, `--listen "localhost": `},
		"a port in words":                  {"belay-webhook", []string{"--listen=:https"}, `--listen ":https": the port must be from 1 to 65535`},
		"a port beyond all":                {"belay-webhook", []string{"--listen=:65536"}, `--listen ":65536": the port must be from 1 to 65535`},
		"the port zero":                    {"belay-webhook", []string{"--listen=:0"}, `--listen ":0": the port must be from 1 to 65535`},
		"a probe address without a port":   {"belay-webhook", []string{"--health-probe-bind-address=8081"}, `--health-probe-bind-address "8081": `},
		"probes on the port zero":          {"belay-controller", []string{"--health-probe-bind-address=:0"}, `--health-probe-bind-address ":0": the port must be from 1 to 65535`},
		"no probe address":                 {"belay-controller", []string{"--health-probe-bind-address="}, `--health-probe-bind-address "": `},
		"a metrics address without a port": {"belay-controller", []string{"--metrics-bind-address=localhost"}, `--metrics-bind-address "localhost": `},
		// An empty one would be all interfaces.
		"no metrics address":                {"belay-webhook", []string{"--metrics-bind-address="}, `--metrics-bind-address "": `},
		"an address of IPv6 without []":     {"belay-webhook", []string{"--metrics-bind-address=::1:8080"}, `--metrics-bind-address "::1:8080": `},
		"a collector without a port":        {"belay-webhook", []string{"--collector-listen=localhost"}, `--collector-listen "localhost": `},
		"a collector on the port zero":      {"belay-webhook", []string{"--collector-listen=:0"}, `--collector-listen ":0": the port must be from 1 to 65535`},
		"a collector's address, no port":    {"belay-webhook", []string{"--collector-address=belay-webhook"}, `--collector-address "belay-webhook": `},
		"a collector's address, no host":    {"belay-webhook", []string{"--collector-address=:9444"}, `--collector-address ":9444": sidecars need the name or the address of a host`},
		"a collector's address, all hosts":  {"belay-webhook", []string{"--collector-address=[::]:9444"}, `--collector-address "[::]:9444": sidecars need the name or the address of a host`},
		"a collector's address, a URL":      {"belay-webhook", []string{"--collector-address=https://belay:9444"}, `--collector-address "https://belay:9444": `},
		"a collector's address with a path": {"belay-webhook", []string{"--collector-address=belay/x:9444"}, `--collector-address "belay/x:9444": sidecars need the name or the address of a host`},
		"no image":                          {"belay-webhook", []string{"--sidecar-image="}, `--sidecar-image "": must be the name of an image`},
		"an image with a blank":             {"belay-webhook", []string{"--sidecar-image=a b"}, `--sidecar-image "a b": must be the name of an image`},
		"CPU that is none":                  {"belay-webhook", []string{"--sidecar-cpu=much"}, `--sidecar-cpu "much": must be a quantity above 0, such as 20m or 32Mi`},
		"no CPU":                            {"belay-webhook", []string{"--sidecar-cpu=0"}, `--sidecar-cpu "0": must be a quantity above 0`},
		"memory below all":                  {"belay-webhook", []string{"--sidecar-memory=-1Mi"}, `--sidecar-memory "-1Mi": must be a quantity above 0`},
		"memory in thousandths":             {"belay-webhook", []string{"--sidecar-memory=20m"}, `--sidecar-memory "20m": must be whole bytes, such as 32Mi`},
		"storage without a number":          {"belay-webhook", []string{"--sidecar-ephemeral-storage=Mi"}, `--sidecar-ephemeral-storage "Mi": must be a quantity above 0`},
		"storage in thousandths":            {"belay-webhook", []string{"--sidecar-ephemeral-storage=1500m"}, `--sidecar-ephemeral-storage "1500m": must be whole bytes`},
		"a source of the CA that is none":   {"belay-webhook", []string{"--sidecar-ca=configmap"}, `--sidecar-ca "configmap": must be auto, ConfigMap or ClusterTrustBundle`},
		"a drain below all":                 {"belay-webhook", []string{"--drain=-1s"}, "--drain -1s: must be from 0s to 1m"},
		"a drain beyond all":                {"belay-webhook", []string{"--drain=61s"}, "--drain 1m1s: must be from 0s to 1m"},
		"a drain without a unit":            {"belay-webhook", []string{"--drain=3"}, "missing unit in duration"},
		"a name that is none":               {"belay-webhook", []string{"--dns-names=local host"}, `--dns-names "local host": must be names of DNS`},
		"a name for all hosts comes first":  {"belay-webhook", []string{"--dns-names=*.example.com"}, `--dns-names "*.example.com": must be names of DNS, and the first one`},
		"an empty name":                     {"belay-webhook", []string{"--dns-names=localhost,,"}, `--dns-names "": must be names of DNS`},
		"a URL without https":               {"belay-controller", []string{"--webhook-url=http://localhost:9443"}, `--webhook-url "http://localhost:9443": must be https://HOST:PORT without a path`},
		"a URL with a path":                 {"belay-controller", []string{"--webhook-url=https://localhost:9443/mutate"}, "must be https://HOST:PORT without a path"},
		"a URL with a query":                {"belay-controller", []string{"--webhook-url=https://localhost:9443?x=y"}, "must be https://HOST:PORT without a path"},
		"a URL with a password":             {"belay-controller", []string{"--webhook-url=https://a:b@localhost:9443"}, "must be https://HOST:PORT without a path"},
		"a URL without a host":              {"belay-controller", []string{"--webhook-url=https:///"}, "must be https://HOST:PORT without a path"},
		"a certificate of no time":          {"belay-webhook", []string{"--certificate-life=1s"}, "--certificate-life, --ca-life: a certificate's life of 1s: must be at least 30s"},
		"a CA with a shorter life":          {"belay-webhook", []string{"--ca-life=240h"}, "--certificate-life, --ca-life: a CA's life of 240h0m0s: must be at least twice that of a certificate"},
		"a CA of a minute":                  {"belay-controller", []string{"--ca-life=1m"}, "--ca-life, --ca-settle: 5m0s for a CA to be seen: must be at most a twelfth of its life, 1m0s"},
		"a CA that is seen at once":         {"belay-controller", []string{"--ca-settle=0s"}, "--ca-life, --ca-settle: 0s for a CA to be seen: must be above 0"},
		"a Service that is none":            {"belay-controller", []string{"--webhook-replicas-service=a/b"}, `--webhook-replicas-service "a/b": `},
		"a folder that does not exist":      {"belay-webhook", []string{"--cert-dir=/does/not/exist"}, "--cert-dir: open /does/not/exist: no such file"},
		"a duration without a unit":         {"belay-controller", []string{"--leader-elect-retry-period=2"}, "missing unit in duration"},
		"a kubeconfig that does not exist":  {"belay-webhook", []string{"--kubeconfig=/does/not/exist"}, "no way to reach an API server: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stderr bytes.Buffer
			code := Main(commands()[c.command](), c.args, &stderr)
			out := stderr.String()
			if code != ExitUsage || !strings.HasPrefix(out, c.command+": ") || !strings.Contains(out, c.want) || !strings.HasSuffix(out, "Run '"+c.command+" --help' for all flags.\n") {
				t.Errorf("exit code %d:\n%s", code, out)
			}
			if strings.Count(out, "\n") != 2 {
				t.Errorf("more than two lines:\n%s", out)
			}
		})
	}
}

func TestHelpNamesEveryFlag(t *testing.T) {
	t.Parallel()
	for name, command := range commands() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := command()
			var stdout, stderr bytes.Buffer
			cmd.SetOut(&stdout)
			if code := Main(cmd, []string{"--help"}, &stderr); code != ExitOK || stderr.Len() > 0 {
				t.Errorf("exit code %d: %s", code, &stderr)
			}
			n := 0
			cmd.Flags().VisitAll(func(f *pflag.Flag) {
				n++
				if !strings.Contains(stdout.String(), "--"+f.Name) || f.Usage == "" {
					t.Errorf("--%s is not explained", f.Name)
				}
			})
			if n < 8 || !strings.Contains(stdout.String(), "Examples:") {
				t.Errorf("%d flags:\n%s", n, &stdout)
			}
		})
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err    error
		code   int
		stderr string
	}{
		"an end without a fault":            {nil, ExitOK, ""},
		"P16: a core that stopped":          {errors.New("leader election lost"), ExitCore, "x: leader election lost\n"},
		"a fault of the flags, deep inside": {fmt.Errorf("starting: %w", usagef("--a %q: no", "b")), ExitUsage, "x: starting: --a \"b\": no\nRun 'x --help' for all flags.\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stderr bytes.Buffer
			cmd := &cobra.Command{Use: "x", RunE: func(*cobra.Command, []string) error { return c.err }}
			if code := Main(cmd, nil, &stderr); code != c.code || stderr.String() != c.stderr {
				t.Errorf("exit code %d: %s", code, &stderr)
			}
		})
	}
}

// TestASignalEndsTheContext is not parallel: the signal goes to the whole process.
func TestASignalEndsTheContext(t *testing.T) {
	var stderr bytes.Buffer
	cmd := &cobra.Command{Use: "x", RunE: func(cmd *cobra.Command, _ []string) error {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			return err
		}
		<-cmd.Context().Done()
		return nil
	}}
	if code := Main(cmd, nil, &stderr); code != ExitOK || stderr.Len() > 0 {
		t.Errorf("exit code %d: %s", code, &stderr)
	}
}

func TestWebhookOptions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		host string
		port int
		dns  []string
	}{
		"P13: all interfaces by default, IPv6, too": {nil, "", 9443, []string{"belay-webhook.belay-system.svc", "belay-webhook.belay-system.svc.cluster.local"}},
		"names follow the namespace":                {[]string{"--namespace=other"}, "", 9443, []string{"belay-webhook.other.svc", "belay-webhook.other.svc.cluster.local"}},
		"an address of IPv6":                        {[]string{"--listen=[::1]:9000", "--dns-names=localhost"}, "::1", 9000, []string{"localhost"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := &webhookOptions{}
			fs := pflag.NewFlagSet("x", pflag.ContinueOnError)
			o.add(fs)
			o.sidecars.add(fs)
			fs.StringVar(&o.listen, "listen", NewWebhookCommand().Flags().Lookup("listen").DefValue, "")
			fs.StringSliceVar(&o.dnsNames, "dns-names", nil, "")
			fs.DurationVar(&o.lives.Leaf, "certificate-life", certs.DefaultLeafLife, "")
			addCALife(fs, &o.lives)
			if err := fs.Parse(c.args); err != nil {
				t.Fatal(err)
			}
			host, port, err := o.complete()
			if err != nil || host != c.host || port != c.port {
				t.Errorf("%q %d %v", host, port, err)
			}
			if diff := cmp.Diff(c.dns, o.dnsNames); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestP13_NothingListensOnIPv4Alone(t *testing.T) {
	t.Parallel()
	for name, command := range commands() {
		command().Flags().VisitAll(func(f *pflag.Flag) {
			if strings.Contains(f.DefValue, "0.0.0.0") {
				t.Errorf("%s --%s=%s", name, f.Name, f.DefValue)
			}
		})
	}
}

func TestAWebhookURLLosesItsSlash(t *testing.T) {
	t.Parallel()
	o := sane()
	o.webhookURL = "https://localhost:9443/"
	if err := o.complete(); err != nil || o.webhookURL != "https://localhost:9443" {
		t.Errorf("%v %q", err, o.webhookURL)
	}
}

func TestClientsAreNotThrottledAndSayWhoTheyAre(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	const kubeconfig = "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: https://localhost:6443}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
	if err := os.WriteFile(path, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := (&common{kubeconfig: path}).restConfig("belay-webhook")
	if err != nil || cfg.QPS != -1 || cfg.UserAgent != "belay-webhook" || cfg.Host != "https://localhost:6443" {
		t.Errorf("%v %+v", err, cfg)
	}
}

// readThrough counts reads.
type readThrough struct {
	client.Reader
	reads int
}

func (r *readThrough) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	r.reads++
	return nil
}

func TestP06_ACacheThatIsNotSyncedIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	r := &readThrough{}
	g := &gate{Reader: r}
	if err := g.Get(t.Context(), client.ObjectKey{}, nil); !errors.Is(err, errNotSynced) || r.reads != 0 {
		t.Errorf("%v, %d reads", err, r.reads)
	}
	g.synced.Store(true)
	if err := g.Get(t.Context(), client.ObjectKey{}, nil); err != nil || r.reads != 1 {
		t.Errorf("%v, %d reads", err, r.reads)
	}
}

// regarding keeps the object of an event.
type regarding struct {
	events.EventRecorder
	object *corev1.ObjectReference
	note   string
}

func (r *regarding) Eventf(object, _ runtime.Object, _, _, _, note string, args ...any) {
	r.object, _ = object.(*corev1.ObjectReference)
	r.note = fmt.Sprintf(note, args...)
}

func TestAmbiguityIsToldOnTheSameObjectEachTime(t *testing.T) {
	t.Parallel()
	candidates := []owner.Object{{APIVersion: "spur.dev/v1", Kind: "SpurJob", Name: "b", UID: "2"}, {APIVersion: "spur.dev/v1", Kind: "SpurJob", Name: "a", UID: "1"}}
	r := &regarding{}
	reporter{r}.Ambiguous("lab", candidates, "100%d of two")
	want := &corev1.ObjectReference{APIVersion: "spur.dev/v1", Kind: "SpurJob", Namespace: "lab", Name: "a", UID: "1"}
	if diff := cmp.Diff(want, r.object); diff != "" || r.note != "100%d of two" {
		t.Errorf("%s %q", diff, r.note)
	}
}
