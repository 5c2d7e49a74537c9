package app

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/certs"
	"github.com/belay-dev/belay/webhook/internal/controller/anchor"
	"github.com/belay-dev/belay/webhook/internal/controller/recovery"
	"github.com/belay-dev/belay/webhook/internal/controller/registration"
	"github.com/belay-dev/belay/webhook/internal/controller/trust"
	"github.com/belay-dev/belay/webhook/internal/controller/turns"
	"github.com/belay-dev/belay/webhook/internal/facts"
)

// controllerOptions are the flags of belay-controller.
type controllerOptions struct {
	common
	webhookURL        string
	webhookService    string
	webhookPort       int32
	webhookAccount    string
	controllerAccount string
	injectCAFrom      string
	ownerAnnotation   bool
	sidecarAnnotation bool
	leaderElect       bool
	leaseDuration     time.Duration
	renewDeadline     time.Duration
	retryPeriod       time.Duration
	replicasService   string
	lives             certs.Lives
}

// NewControllerCommand is the command belay-controller.
func NewControllerCommand() *cobra.Command {
	o := &controllerOptions{}
	cmd := &cobra.Command{
		Use:   "belay-controller",
		Short: "Accepts policies, registers them, binds and expires Anchors, and brings failed objects back",
		Long: `belay-controller accepts policies, keeps the API server's webhook configurations
as the accepted policies want them, brings the CA to the namespaces of sidecars, binds,
expires and releases Anchors, and brings failed objects back when the Pods that failed are
ready again. One replica works at a
time. When it is away admission goes on: Anchors are bound, or expire, and objects
recover, when it is back.

It also replaces the CA that belay manages itself (--ca-secret), after two thirds of its
life, without a lost call: the next CA is added to all registrations and to what sidecars
are given; when that has been so for --ca-settle it signs; and when every replica, found by
--webhook-replicas-service, has served a certificate of it for as long, the former one is
dropped. At once, such as when a key was stolen:

  kubectl -n belay-system annotate secret belay-ca --overwrite belay.dev/rotate="$(date)"

Each step is an event of the Secret; belay_ca_rotation_phase says where it is.`,
		Example: `  # in a cluster: the shipped manifests have all flags
  belay-controller

  # with cert-manager: it injects the CA, belay leaves caBundle alone
  belay-controller --inject-ca-from=belay-system/belay-webhook

  # out of a cluster, for development, beside belay-webhook with its default ports
  belay-controller --kubeconfig=kubeconfig --webhook-url=https://localhost:9443 \
    --health-probe-bind-address=0 --metrics-bind-address=0`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	fs := cmd.Flags()
	o.add(fs)
	fs.StringVar(&o.webhookURL, "webhook-url", "", "https URL of belay-webhook without a path, where it runs outside the cluster; empty: the Service")
	fs.StringVar(&o.webhookService, "webhook-service", "belay-webhook", "Service of belay-webhook in --namespace")
	fs.Int32Var(&o.webhookPort, "webhook-port", 443, "port of the Service")
	fs.StringVar(&o.webhookAccount, "webhook-service-account", "belay-webhook", "service account of belay-webhook, whose rights policies need")
	fs.StringVar(&o.controllerAccount, "service-account", "belay-controller", "service account of this process, whose rights policies need")
	fs.StringVar(&o.injectCAFrom, "inject-ca-from", "", "NAMESPACE/NAME of the cert-manager Certificate whose CA is injected; empty: belay manages its CA itself")
	fs.BoolVar(&o.ownerAnnotation, "owner-annotation", true, "serve the annotation belay.dev/owner")
	fs.BoolVar(&o.sidecarAnnotation, "sidecar-annotation", true, "serve the annotation belay.dev/sidecar")
	fs.BoolVar(&o.leaderElect, "leader-elect", true, "work only while holding the Lease belay-controller in --namespace")
	fs.DurationVar(&o.leaseDuration, "leader-elect-lease-duration", 15*time.Second, "how long others wait for a leader that went silent")
	fs.DurationVar(&o.renewDeadline, "leader-elect-renew-deadline", 10*time.Second, "how long a leader tries to renew before it gives up")
	fs.DurationVar(&o.retryPeriod, "leader-elect-retry-period", 2*time.Second, "how often the Lease is tried")
	fs.StringVar(&o.replicasService, "webhook-replicas-service", "belay-webhook-replicas", "headless Service in --namespace that has all replicas of belay-webhook, ready or not: each one's certificate is looked at before a former CA is dropped")
	fs.DurationVar(&o.lives.Settle, "ca-settle", certs.DefaultSettle, "how long a new CA has to be everywhere before it is used, and a former one is not any more: API servers and kubelets need that long to see it")
	addCALife(fs, &o.lives)
	cmd.AddCommand(newUnregisterCommand())
	cmd.CompletionOptions.DisableDefaultCmd = true
	return cmd
}

func (o *controllerOptions) complete() error {
	if err := o.validate(); err != nil {
		return err
	}
	if o.webhookPort < 1 || o.webhookPort > 65535 {
		return usagef("--webhook-port %d: must be from 1 to 65535", o.webhookPort)
	}
	for flag, name := range map[string]string{"webhook-service": o.webhookService, "webhook-service-account": o.webhookAccount, "service-account": o.controllerAccount, "webhook-replicas-service": o.replicasService} {
		if errs := validation.IsDNS1123Subdomain(name); len(errs) > 0 {
			return usagef("--%s %q: %s", flag, name, errs[0])
		}
	}
	if ns, name, ok := strings.Cut(o.injectCAFrom, "/"); o.injectCAFrom != "" && (!ok || ns == "" || name == "" || strings.Contains(name, "/")) {
		return usagef("--inject-ca-from %q: must be NAMESPACE/NAME of a cert-manager Certificate", o.injectCAFrom)
	}
	if o.leaderElect && (o.retryPeriod <= 0 || o.renewDeadline <= o.retryPeriod || o.leaseDuration <= o.renewDeadline) {
		return usagef("the leader election needs retry period < renew deadline < lease duration, not %s, %s, %s", o.retryPeriod, o.renewDeadline, o.leaseDuration)
	}
	// The life of a certificate is the webhook's business; here it says how often to look.
	o.lives.Leaf = min(certs.DefaultLeafLife, o.lives.CA/2)
	if err := o.lives.Validate(); err != nil {
		return usagef("--ca-life, --ca-settle: %w", err)
	}
	if o.webhookURL == "" {
		return nil
	}
	u, err := url.Parse(o.webhookURL)
	if err != nil || u.Scheme != "https" || u.Host == "" || (u.Path != "" && u.Path != "/") || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return usagef("--webhook-url %q: must be https://HOST:PORT without a path", o.webhookURL)
	}
	o.webhookURL = "https://" + u.Host
	return nil
}

func (o *controllerOptions) run(ctx context.Context) error {
	if err := o.complete(); err != nil {
		return err
	}
	cfg, err := o.restConfig("belay-controller")
	if err != nil {
		return err
	}
	log := o.logger()
	registerMetrics()
	s, err := scheme()
	if err != nil {
		return fmt.Errorf("building the scheme: %w", err)
	}
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme: s, Logger: log, MapperProvider: mapperFor,
		Metrics: metricsserver.Options{BindAddress: o.metricsAddr}, HealthProbeBindAddress: "0",
		LeaderElection: o.leaderElect, LeaderElectionID: "belay-controller", LeaderElectionNamespace: o.namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &o.leaseDuration, RenewDeadline: &o.renewDeadline, RetryPeriod: &o.retryPeriod,
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			// The only Secret that belay may read is its own CA, and the only ConfigMaps are those
			// that bring it to sidecars.
			ByObject: map[client.Object]cache.ByObject{&corev1.Secret{}: {
				Namespaces: map[string]cache.Config{o.namespace: {}},
				Field:      fields.OneTermEqualSelector("metadata.name", o.caSecret),
			}, &corev1.ConfigMap{}: {
				Field: fields.OneTermEqualSelector("metadata.name", v1alpha1.CABundleName),
			}},
		},
	})
	if err != nil {
		return fmt.Errorf("building the manager: %w", err)
	}
	hc, err := httpClient(cfg)
	if err != nil {
		return err
	}
	find, meta, err := reader(cfg, hc, mgr.GetRESTMapper())
	if err != nil {
		return err
	}
	disc, err := discovery.NewDiscoveryClientForConfigAndClient(cfg, hc)
	if err != nil {
		return fmt.Errorf("building the discovery client: %w", err)
	}
	if err := anchor.Setup(ctx, mgr, find, anchor.Clients{Metadata: meta, Discovery: disc.RESTClient()}); err != nil {
		return fmt.Errorf("setting up anchors: %w", err)
	}
	if err := registration.Setup(mgr, facts.Fresh{Reader: find}, registration.Options{
		Endpoint:     registration.Endpoint{URL: o.webhookURL, ServiceNamespace: o.namespace, ServiceName: o.webhookService, ServicePort: o.webhookPort},
		OwnNamespace: o.namespace, WebhookAccount: o.webhookAccount, ControllerAccount: o.controllerAccount,
		Annotation: o.ownerAnnotation, SidecarAnnotation: o.sidecarAnnotation, InjectCAFrom: o.injectCAFrom, CASecret: o.caSecret,
	}); err != nil {
		return fmt.Errorf("setting up registration: %w", err)
	}
	dyn, err := dynamic.NewForConfigAndClient(cfg, hc)
	if err != nil {
		return fmt.Errorf("building the dynamic client: %w", err)
	}
	kube, err := kubernetes.NewForConfigAndClient(cfg, hc)
	if err != nil {
		return fmt.Errorf("building the client of Pods: %w", err)
	}
	live, err := client.New(cfg, client.Options{HTTPClient: hc, Scheme: s, Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return fmt.Errorf("building the client: %w", err)
	}
	if err := recovery.Setup(ctx, mgr, recovery.Clients{Dynamic: dyn, Kube: kube, Live: live}, o.namespace); err != nil {
		return fmt.Errorf("setting up recovery: %w", err)
	}
	if err := turns.Setup(mgr, o.namespace); err != nil {
		return fmt.Errorf("setting up the removal of leases: %w", err)
	}
	if err := trust.Setup(mgr, o.namespace); err != nil {
		return fmt.Errorf("setting up the distribution of the CA: %w", err)
	}
	if o.injectCAFrom == "" {
		rotation := &certs.Rotation{
			Secrets: kube.CoreV1().Secrets(o.namespace), Name: o.caSecret, Lives: o.lives,
			Registered: certs.Registrations(mgr.GetAPIReader()), Distributed: trust.Lacking(mgr.GetClient(), mgr.GetAPIReader(), mgr.GetRESTMapper()),
			Served: certs.Replicas(kube.DiscoveryV1().EndpointSlices(o.namespace), o.replicasService),
			Events: mgr.GetEventRecorder("belay-controller"), Log: log.WithName("rotation"),
		}
		if err := mgr.Add(manager.RunnableFunc(rotation.Start)); err != nil {
			return err
		}
	}
	synced := &gate{Reader: mgr.GetCache()}
	if err := mgr.Add(cacheSync{synced, mgr.GetCache()}); err != nil {
		return err
	}
	core := newCore(ctx, log, 0) // nobody calls it
	log.Info("starting belay-controller", "version", version, "namespace", o.namespace)
	//nolint:contextcheck // the core has the context of the signal
	return core.run("belay-controller", o.probeAddr, map[string]healthz.Checker{
		"live": core.Live, "draining": core.draining, "caches-synced": synced.check,
	}, mgr, synced)
}
