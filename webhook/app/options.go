package app

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"go.uber.org/zap/zapcore"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/client/failfast"
	"github.com/belay-dev/belay/webhook/internal/certs"
	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/metrics"
)

// common are the flags of both processes.
type common struct {
	kubeconfig  string
	namespace   string
	metricsAddr string
	probeAddr   string
	logLevel    int
	caSecret    string
}

func (c *common) add(fs *pflag.FlagSet) {
	c.addConnection(fs)
	fs.StringVar(&c.metricsAddr, "metrics-bind-address", "127.0.0.1:8080", "address of the metrics; \"0\" turns them off")
	fs.StringVar(&c.probeAddr, "health-probe-bind-address", ":8081", "address of /livez and /readyz; \"0\" turns them off")
	fs.StringVar(&c.caSecret, "ca-secret", "belay-ca", "name of the Secret, in belay's namespace, with the CA that belay manages itself")
}

// addConnection adds the flags of what runs for a moment only.
func (c *common) addConnection(fs *pflag.FlagSet) {
	fs.StringVar(&c.kubeconfig, "kubeconfig", "", "path of a kubeconfig; empty: the pod's service account, else $KUBECONFIG or ~/.kube/config")
	fs.StringVar(&c.namespace, "namespace", "belay-system", "the namespace that belay runs in; it is never looked at, whatever its labels")
	fs.IntVar(&c.logLevel, "v", 0, "log level: 0 says what changed, 1 also every decision")
}

// addCALife adds the flag that both processes have: the webhook makes the first CA, and the
// controller those that come after it.
func addCALife(fs *pflag.FlagSet, l *certs.Lives) {
	fs.DurationVar(&l.CA, "ca-life", certs.DefaultCALife, "how long a CA that belay makes is valid; it is replaced after two thirds of that. The same for webhook and controller")
}

func (c *common) validate() error {
	if errs := validation.IsDNS1123Label(c.namespace); len(errs) > 0 {
		return usagef("--namespace %q: %s", c.namespace, errs[0])
	}
	if errs := validation.IsDNS1123Subdomain(c.caSecret); len(errs) > 0 {
		return usagef("--ca-secret %q: %s", c.caSecret, errs[0])
	}
	for flag, address := range map[string]string{"metrics-bind-address": c.metricsAddr, "health-probe-bind-address": c.probeAddr} {
		if address == "0" {
			continue
		}
		if _, _, err := splitAddress(flag, address); err != nil {
			return err
		}
	}
	if c.logLevel < 0 || c.logLevel > 10 {
		return usagef("--v %d: must be from 0 to 10", c.logLevel)
	}
	return nil
}

func (c *common) logger() logr.Logger {
	log := zap.New(zap.Level(zapcore.Level(-c.logLevel)), zap.StacktraceLevel(zapcore.DPanicLevel))
	ctrl.SetLogger(log)
	return log
}

// restConfig bounds every call, and drops connections that died: admission must not
// wait for a peer that is gone, one time-out after another. It leaves rate limiting to the API server's priority and fairness: a
// client-side limit would make creates wait in the webhook.
func (c *common) restConfig(agent string) (*rest.Config, error) {
	loader := clientcmd.NewDefaultClientConfigLoadingRules()
	loader.ExplicitPath = c.kubeconfig
	cfg, err := rest.InClusterConfig()
	if c.kubeconfig != "" || err != nil {
		cfg, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(loader, nil).ClientConfig()
	}
	if err != nil {
		return nil, usagef("no way to reach an API server: %w; give --kubeconfig", err)
	}
	cfg.QPS, cfg.Burst = -1, -1
	cfg.UserAgent = agent
	return failfast.Config(cfg), nil
}

// httpClient is what all clients beside the manager's share: one connection.
func httpClient(cfg *rest.Config) (*http.Client, error) {
	hc, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("building the HTTP client: %w", err)
	}
	return hc, nil
}

func scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(s); err != nil {
		return nil, err
	}
	if err := apiextensionsv1.AddToScheme(s); err != nil {
		return nil, err
	}
	return s, v1alpha1.AddToScheme(s)
}

// discoveryTimeout bounds one discovery call, which no context of a request does.
const discoveryTimeout = 2 * time.Second

// reader builds the reader of live facts, over the manager's mapper: discovery is
// done once a process.
func reader(cfg *rest.Config, hc *http.Client, mapper meta.RESTMapper) (*facts.Reader, metadata.Interface, error) {
	mc, err := metadata.NewForConfigAndClient(cfg, hc)
	if err != nil {
		return nil, nil, fmt.Errorf("building the metadata client: %w", err)
	}
	return facts.NewReader(mc, mapper), mc, nil
}

// registrationMapper knows the kinds of webhook configurations, so that nothing has to be asked
// for them.
func registrationMapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"} {
		m.Add(admissionregistrationv1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeRoot)
	}
	return m
}

// mapperFor gives managers a mapper whose calls are bounded.
func mapperFor(cfg *rest.Config, _ *http.Client) (meta.RESTMapper, error) {
	bounded := rest.CopyConfig(cfg)
	bounded.Timeout = discoveryTimeout
	hc, err := rest.HTTPClientFor(bounded)
	if err != nil {
		return nil, err
	}
	asked, err := apiutil.NewDynamicRESTMapper(bounded, hc)
	if err != nil {
		return nil, err
	}
	return newKnowingMapper(asked), nil
}

// knowingMapper knows the kinds that a process watches from its start without asking an API
// server that is away: the process waits for it then, and does not end again and again.
type knowingMapper struct {
	meta.RESTMapper
	known *meta.DefaultRESTMapper

	mu sync.Mutex
	// failed is when the API server could not be asked.
	failed time.Time
}

// askAgain is how long an API server that could not be asked is not asked about what is known:
// while it hangs the start would take a time-out for each kind.
const askAgain = 5 * discoveryTimeout

func newKnowingMapper(asked meta.RESTMapper) *knowingMapper {
	known := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"OwnerPolicy", "NamePolicy", "RecoveryPolicy"} {
		known.Add(v1alpha1.GroupVersion.WithKind(kind), meta.RESTScopeRoot)
	}
	known.Add(v1alpha1.GroupVersion.WithKind("Anchor"), meta.RESTScopeNamespace)
	known.Add(facts.NamespaceKind, meta.RESTScopeRoot)
	return &knowingMapper{RESTMapper: asked, known: known}
}

// RESTMapping asks first: an API server that is older than this release may not serve a kind.
func (m *knowingMapper) RESTMapping(gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	known, unknown := m.known.RESTMapping(gk, versions...)
	if unknown != nil {
		return m.RESTMapper.RESTMapping(gk, versions...)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.failed.IsZero() && time.Since(m.failed) < askAgain {
		return known, nil
	}
	out, err := m.RESTMapper.RESTMapping(gk, versions...)
	if err == nil || meta.IsNoMatchError(err) {
		return out, err
	}
	m.failed = time.Now()
	return known, nil
}

func registerMetrics() { metrics.MustRegister() }
