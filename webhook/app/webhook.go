package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/admission"
	"github.com/belay-dev/belay/webhook/internal/certs"
	"github.com/belay-dev/belay/webhook/internal/collector"
	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/health"
	"github.com/belay-dev/belay/webhook/internal/naming"
	"github.com/belay-dev/belay/webhook/internal/owner"
	"github.com/belay-dev/belay/webhook/internal/replace"
)

// webhookOptions are the flags of belay-webhook.
type webhookOptions struct {
	common
	sidecars sidecarOptions
	listen   string
	dnsNames []string
	certDir  string
	clientCA string
	http2    bool
	drain    time.Duration
	lives    certs.Lives
}

// NewWebhookCommand is the command belay-webhook.
func NewWebhookCommand() *cobra.Command {
	o := &webhookOptions{}
	cmd := &cobra.Command{
		Use:   "belay-webhook",
		Short: "Answers the API server's admission calls",
		Long: `belay-webhook answers the API server's admission calls: it gives objects that are
being created a reference to their owner, or to an Anchor that holds the owner's
place; it names them, marks them with the work that they are for, and answers
creates whose name is taken from the state of what has it; and it lets failed objects
recover only when the Pods that failed are ready again. It adds sidecars to Pods, and its
collector takes what they report, on a port of its own. It has no state of its own; run
as many replicas as you like.

Paths:
  /mutate/owner/POLICY    adds owner references, as OwnerPolicy POLICY says
  /mutate/owner           adds the owner that annotation belay.dev/owner names
  /validate/owner/POLICY  checks the final object, for policies that deny
  /mutate/name/POLICY     names and marks, as NamePolicy POLICY says
  /validate/name/POLICY   checks the name, answers for one that is taken, replaces
  /mutate/recovery/POLICY    keeps the record of the Pods that failed, as RecoveryPolicy POLICY says
  /validate/recovery/POLICY  asks for evidence before an object leaves its failed phase
  /mutate/sidecar/POLICY     adds sidecars to Pods, as RecoveryPolicy POLICY says
  /mutate/sidecar            adds one where annotation belay.dev/sidecar asks for it
  /validate/sidecar[/POLICY] checks that the final Pod works with its sidecar

Probes are answered on a listener of their own: /livez says that the core runs (manager,
certificates, collector), /readyz that this replica can be called. Both take ?verbose, and
the name of a check: /readyz/certificate. When a part of the core stops, the process ends
with exit code 70 and the reason.

The serving certificate is signed by a CA that the replicas share in a Secret
(--ca-secret): the first replica makes it, each one signs a certificate of its own, and
belay-controller replaces the CA before it expires. With --cert-dir the certificate is
read from a folder with tls.crt and tls.key, such as one mounted from a cert-manager
Certificate. Either way a new one is served without a restart, and the last good one is
served on while the next one cannot be used.

On SIGTERM /readyz fails at once. Calls are answered for --drain, by then with
"Connection: close", so that callers go elsewhere, and for up to 10s more while some still
come; then what is under way is finished.`,
		Example: `  # in a cluster: the shipped manifests have all flags
  belay-webhook

  # out of a cluster, for development
  belay-webhook --kubeconfig=kubeconfig --listen=127.0.0.1:9443 --dns-names=localhost`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.add(cmd.Flags())
	o.sidecars.add(cmd.Flags())
	cmd.Flags().StringVar(&o.listen, "listen", ":9443", "address of the admission server")
	cmd.Flags().StringSliceVar(&o.dnsNames, "dns-names", nil, "names in the self-managed certificate; empty: those of the Service belay-webhook in --namespace")
	cmd.Flags().StringVar(&o.certDir, "cert-dir", "", "folder with tls.crt and tls.key; empty: belay manages its certificates itself")
	cmd.Flags().StringVar(&o.clientCA, "client-ca-file", "", "PEM file of a CA; only callers with a client certificate of it are answered. The API server presents one when its --admission-control-config-file says so. Empty: whoever reaches the port is answered")
	cmd.Flags().BoolVar(&o.http2, "http2", true, "speak HTTP/2. An API server then sends all its calls over one connection, to one replica; with HTTP/1.1 they spread over the replicas")
	cmd.Flags().DurationVar(&o.drain, "drain", 10*time.Second, "how long calls are answered after SIGTERM, while /readyz fails: others need that long to hear of it. While reviews still come it is as long again, 10s at most; then what is under way is finished, for up to 18s. All of it has to fit into the Pod's terminationGracePeriodSeconds")
	cmd.Flags().DurationVar(&o.lives.Leaf, "certificate-life", certs.DefaultLeafLife, "how long a certificate that belay signs itself is valid; it is renewed after two thirds of that")
	addCALife(cmd.Flags(), &o.lives)
	return cmd
}

func (o *webhookOptions) complete() (host string, port int, err error) {
	if err := o.validate(); err != nil {
		return "", 0, err
	}
	if o.drain < 0 || o.drain > time.Minute {
		return "", 0, usagef("--drain %s: must be from 0s to 1m", o.drain)
	}
	o.lives.Settle = certs.DefaultSettle // the controller's business
	if o.lives.CA < 12*o.lives.Settle {
		o.lives.Settle = o.lives.CA / 12
	}
	if err := o.lives.Validate(); err != nil {
		return "", 0, usagef("--certificate-life, --ca-life: %w", err)
	}
	if o.certDir != "" {
		// What is in it may come later; the folder itself is there from the start, as a mount is.
		if _, err := os.ReadDir(o.certDir); err != nil {
			return "", 0, usagef("--cert-dir: %w", err)
		}
	}
	if len(o.dnsNames) == 0 {
		o.dnsNames = []string{
			fmt.Sprintf("belay-webhook.%s.svc", o.namespace),
			fmt.Sprintf("belay-webhook.%s.svc.cluster.local", o.namespace),
		}
	}
	for i, name := range o.dnsNames {
		if len(validation.IsDNS1123Subdomain(name)) > 0 && (i == 0 || len(validation.IsWildcardDNS1123Subdomain(name)) > 0) {
			return "", 0, usagef("--dns-names %q: must be names of DNS, and the first one, by which sidecars know the collector, without a *", name)
		}
	}
	if err := o.sidecars.complete(o.namespace); err != nil {
		return "", 0, err
	}
	return splitAddress("listen", o.listen)
}

func (o *webhookOptions) run(ctx context.Context) error {
	host, port, err := o.complete()
	if err != nil {
		return err
	}
	cfg, err := o.restConfig("belay-webhook")
	if err != nil {
		return err
	}
	log := o.logger()
	registerMetrics()

	clients, err := o.clientCAs()
	if err != nil {
		return err
	}
	hc, err := httpClient(cfg)
	if err != nil {
		return err
	}
	core := newCore(ctx, log, o.drain)
	//nolint:contextcheck // the core has the context of the signal
	serving, err := o.certificates(cfg, hc, core)
	if err != nil {
		return err
	}
	server := newAdmissionServer(net.JoinHostPort(host, strconv.Itoa(port)), o.http2, tlsConfig(clients, serving), log.WithName("admission"))
	mgr, err := o.manager(cfg, log, server)
	if err != nil {
		return err
	}
	cached, policies, err := o.stores(ctx, mgr)
	if err != nil {
		return err
	}
	find, metadata, err := reader(cfg, hc, mgr.GetRESTMapper())
	if err != nil {
		return err
	}
	dyn, err := dynamic.NewForConfigAndClient(cfg, hc)
	if err != nil {
		return fmt.Errorf("building the dynamic client: %w", err)
	}
	live, err := client.New(cfg, client.Options{HTTPClient: hc, Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return fmt.Errorf("building the client: %w", err)
	}
	tell := reporter{mgr.GetEventRecorder("belay-webhook")}
	modes := facts.NewModes(cached, mgr.GetAPIReader())
	h := &admission.Owner{
		Policies: policies.owners, Modes: modes, Facts: find, Anchors: live,
		Events: tell, Log: log.WithName("owner"), OwnNamespace: o.namespace,
	}
	objects := facts.NewObjects(dyn, metadata, live)
	turns := replace.Turns{Client: live, Namespace: o.namespace}
	n := &admission.Name{
		Policies: policies.names, Modes: modes, Objects: objects, Turns: turns,
		Replacer: replace.Replacer{Dynamic: dyn, Find: objects, Turns: turns, Deleted: func(t replace.Target) {
			log.Info("finished object deleted to make room", "policy", t.Policy, "namespace", t.Namespace, "resource", t.Resource.Resource, "name", t.Name, "uid", t.UID, "because", t.Because)
			tell.Replaced(t)
		}},
		Overlaps: facts.NewOverlaps(cached, mgr.GetAPIReader()),
		Events:   tell, Log: log.WithName("name"), OwnNamespace: o.namespace,
	}
	// Pods in protobuf: half the bytes, and a third of the time to read them.
	compact := rest.CopyConfig(cfg)
	compact.ContentType, compact.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	kube, err := kubernetes.NewForConfigAndClient(compact, hc)
	if err != nil {
		return fmt.Errorf("building the client of Pods: %w", err)
	}
	waiting := facts.NewWaiting(dyn)
	watched, err := o.watchPods(ctx, mgr, kube, policies.recoveries, waiting)
	if err != nil {
		return err
	}
	bundles := &facts.Bundles{Kube: kube, Mapper: mgr.GetRESTMapper()}
	if err := mgr.Add(manager.RunnableFunc(bundles.Start)); err != nil {
		return err
	}
	i := &admission.Sidecar{
		Policies: policies.recoveries, Modes: modes, Config: o.sidecars.config(o.dnsNames), CA: o.sidecars.source(bundles),
		Log: log.WithName("sidecar"), OwnNamespace: o.namespace,
	}
	g := &admission.Recovery{
		Policies: policies.recoveries, Modes: modes, Pods: facts.NewPods(kube, watched),
		Log: log.WithName("recovery"), OwnNamespace: o.namespace,
	}
	// Asking the manager for the server is what makes it start it.
	mgr.GetWebhookServer()
	bodies := admission.NewBodies()
	for path, handler := range map[string]http.Handler{
		admission.MutateOwnerPath:            h.Mutate(),
		admission.MutateOwnerPath + "/":      h.Mutate(),
		admission.ValidateOwnerPath + "/":    h.Validate(),
		admission.MutateNamePath + "/":       n.Mutate(),
		admission.ValidateNamePath + "/":     n.Validate(),
		admission.MutateRecoveryPath + "/":   g.Mutate(),
		admission.ValidateRecoveryPath + "/": g.Validate(),
		admission.MutateSidecarPath:          i.Mutate(),
		admission.MutateSidecarPath + "/":    i.Mutate(),
		admission.ValidateSidecarPath:        i.Validate(),
		admission.ValidateSidecarPath + "/":  i.Validate(),
	} {
		server.Register(path, core.closing(bodies.Handler(core.calls(handler))))
	}

	reports := &collector.Collector{
		Tokens: collector.NewTokens(kube.AuthenticationV1().TokenReviews()), Pods: collector.Pods{Kube: kube, Cached: watched},
		Modes: modes, Waiting: waiting, Log: log.WithName("collector"),
	}
	collects, err := listenCollector(o.sidecars.listen, serving, core.closing(reports.Handler()), log.WithName("collector"))
	if err != nil {
		return err
	}
	compiled := &health.Flag{Missing: "the policies in force are not compiled yet"}
	if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error { return policies.compile(ctx, mgr.GetCache(), compiled, log) })); err != nil {
		return err
	}
	ready := map[string]healthz.Checker{
		"live": core.Live, "draining": core.draining, "caches-synced": cached.check, "policies-compiled": compiled.Check,
		"listener": health.Remembered(server.StartedChecker(), listenerEvery), "collector": collects.check,
		"certificate": (&health.Certificate{Served: func() (*tls.Certificate, error) { return serving(nil) }, Live: mgr.GetAPIReader()}).Check,
	}
	log.Info("starting belay-webhook", "version", version, "listen", o.listen, "collector", o.sidecars.listen, "namespace", o.namespace)
	core.Go("collector", collects.run) //nolint:contextcheck // it is given the core's
	//nolint:contextcheck // the core has the context of the signal
	return core.run("belay-webhook", o.probeAddr, ready, mgr, cached)
}

// listenerEvery is how long the check of the listener is good for: it is a TLS handshake with
// the process itself, and anybody may ask.
const listenerEvery = time.Second

// clientCAs reads the CA of the callers; nil for none.
func (o *webhookOptions) clientCAs() (*x509.CertPool, error) {
	if o.clientCA == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(o.clientCA)
	if err != nil {
		return nil, usagef("--client-ca-file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, usagef("--client-ca-file %q holds no certificate", o.clientCA)
	}
	return pool, nil
}

// certificates makes what gives the serving certificate. Its loop is added to the core: a manager
// would start it only when its caches are synced, and until then there would be no certificate,
// hence no answer.
func (o *webhookOptions) certificates(cfg *rest.Config, hc *http.Client, core *core) (certificates, error) {
	if o.certDir != "" {
		files := &certs.Files{Dir: o.certDir, Log: core.log.WithName("certificate")}
		core.Go(certificatesLoop, files.Start)
		return files.GetCertificate, nil
	}
	kube, err := kubernetes.NewForConfigAndClient(cfg, hc)
	if err != nil {
		return nil, fmt.Errorf("building the client of the CA: %w", err)
	}
	live, err := client.New(cfg, client.Options{HTTPClient: hc, Scheme: clientgoscheme.Scheme, Mapper: registrationMapper()})
	if err != nil {
		return nil, fmt.Errorf("building the client of registrations: %w", err)
	}
	source := &certs.Source{
		Secrets: kube.CoreV1().Secrets(o.namespace), Name: o.caSecret, Names: o.dnsNames, Lives: o.lives,
		Trusted: certs.Registrations(live), Log: core.log.WithName("certificate"),
	}
	core.Go(certificatesLoop, source.Start)
	return source.GetCertificate, nil
}

// tlsConfig is what connections need.
func tlsConfig(clients *x509.CertPool, serving certificates) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: serving}
	if clients != nil {
		c.ClientCAs, c.ClientAuth = clients, tls.RequireAndVerifyClientCert
	}
	return c
}

func (o *webhookOptions) manager(cfg *rest.Config, log logr.Logger, server webhook.Server) (manager.Manager, error) {
	s, err := scheme()
	if err != nil {
		return nil, fmt.Errorf("building the scheme: %w", err)
	}
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme: s, Logger: log, WebhookServer: server, MapperProvider: mapperFor,
		Metrics: metricsserver.Options{BindAddress: o.metricsAddr}, HealthProbeBindAddress: "0",
		// What the last reviews take, and a moment for the rest.
		GracefulShutdownTimeout: new(finishTimeout + lingers + time.Second),
		Cache:                   cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
	})
	if err != nil {
		return nil, fmt.Errorf("building the manager: %w", err)
	}
	return mgr, nil
}

// policyStores are the policies that admission reads.
type policyStores struct {
	owners *facts.OwnerPolicies
	names  *facts.NamePolicies

	recoveries *facts.RecoveryPolicies
}

// stores starts the caches that admission reads: policies and the labels of
// namespaces. Until they are synced every read is live.
func (o *webhookOptions) stores(ctx context.Context, mgr manager.Manager) (*gate, policyStores, error) {
	g := &gate{Reader: mgr.GetCache()}
	stores := policyStores{owners: facts.NewOwnerPolicies(g, mgr.GetAPIReader()), names: facts.NewNamePolicies(g, mgr.GetAPIReader()), recoveries: facts.NewRecoveryPolicies(g, mgr.GetAPIReader())}
	for kind, watch := range map[string]func(context.Context) error{
		"OwnerPolicy": func(ctx context.Context) error {
			return watchDeleted(ctx, mgr, &v1alpha1.OwnerPolicy{}, stores.owners.Deleted)
		},
		"NamePolicy": func(ctx context.Context) error {
			return watchDeleted(ctx, mgr, &v1alpha1.NamePolicy{}, stores.names.Deleted)
		},
		"RecoveryPolicy": func(ctx context.Context) error {
			return watchDeleted(ctx, mgr, &v1alpha1.RecoveryPolicy{}, stores.recoveries.Deleted)
		},
	} {
		if err := onceServed(ctx, mgr, kind, watch); err != nil {
			return nil, stores, err
		}
	}
	var ns metav1.PartialObjectMetadata
	ns.SetGroupVersionKind(facts.NamespaceKind)
	if _, err := mgr.GetCache().GetInformer(ctx, &ns, cache.BlockUntilSynced(false)); err != nil {
		return nil, stores, fmt.Errorf("watching namespaces: %w", err)
	}
	return g, stores, mgr.Add(cacheSync{g, mgr.GetCache()})
}

// servedEvery is how often a kind of policy is looked for that the API server does not serve yet.
const servedEvery = 10 * time.Second

// onceServed begins to watch a kind of policy: now, or when the API server serves it. An image may
// be newer than the CRDs, or come with them: what is there is served meanwhile.
func onceServed(ctx context.Context, mgr manager.Manager, kind string, watch func(context.Context) error) error {
	err := watch(ctx)
	if !meta.IsNoMatchError(err) {
		return err
	}
	log := mgr.GetLogger().WithValues("kind", kind)
	log.Error(err, "a kind of policy is not served; apply the CRDs of this release")
	return mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		tick := time.NewTicker(servedEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
			switch err := watch(ctx); {
			case err == nil:
				log.Info("the kind of policy is served now")
				return nil
			case !meta.IsNoMatchError(err):
				log.Error(err, "watching a kind of policy; trying again")
			}
		}
	}))
}

// watchDeleted watches a kind of policy, and tells its store which were deleted.
func watchDeleted[O client.Object](ctx context.Context, mgr manager.Manager, kind O, deleted func(O)) error {
	inf, err := mgr.GetCache().GetInformer(ctx, kind, cache.BlockUntilSynced(false))
	if err == nil {
		_, err = inf.AddEventHandler(toolscache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
			if u, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				obj = u.Obj
			}
			if p, ok := obj.(O); ok {
				deleted(p)
			}
		}})
	}
	if err != nil {
		return fmt.Errorf("watching %T: %w", kind, err)
	}
	return nil
}

// byAnnotation selects the Pods that got a sidecar by annotation.
const byAnnotation = v1alpha1.SidecarLabel + "=" + v1alpha1.SidecarByAnnotation

// watchPods watches the Pods that RecoveryPolicies in force select, those that got a sidecar
// by annotation, and the objects that wait for what sidecars report.
func (o *webhookOptions) watchPods(ctx context.Context, mgr manager.Manager, kube kubernetes.Interface, policies *facts.RecoveryPolicies, waiting *facts.Waiting) (*facts.PodWatch, error) {
	watched := facts.NewPodWatch(kube, nil)
	want := func() {
		var all v1alpha1.RecoveryPolicyList
		if err := mgr.GetCache().List(ctx, &all); err != nil {
			return // the cache has stopped
		}
		selectors := []string{byAnnotation}
		wanted := map[string]*facts.RecoveryPolicy{}
		for i := range all.Items {
			if all.Items[i].Status.InForce == nil {
				continue
			}
			// One that does not compile any more is told in its status; its Pods are read live.
			if p, err := policies.Compile(&all.Items[i]); err == nil {
				selectors = append(selectors, p.Expressions.Selectors()...)
				wanted[all.Items[i].Name] = p
			}
		}
		watched.Want(selectors)
		waiting.Want(wanted)
	}
	err := onceServed(ctx, mgr, "RecoveryPolicy", func(ctx context.Context) error {
		inf, err := mgr.GetCache().GetInformer(ctx, &v1alpha1.RecoveryPolicy{}, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watching RecoveryPolicies: %w", err)
		}
		_, err = inf.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { want() }, UpdateFunc: func(any, any) { want() }, DeleteFunc: func(any) { want() },
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	// Where there is no policy, no event says so.
	watched.Want([]string{byAnnotation})
	if err := mgr.Add(manager.RunnableFunc(waiting.Start)); err != nil {
		return nil, err
	}
	return watched, mgr.Add(manager.RunnableFunc(watched.Start))
}

// compile compiles what is in force, once the caches are synced: the first reviews find it
// done. What does not compile any more is told in its status and here, and is no reason to
// answer for nothing.
func (s policyStores) compile(ctx context.Context, c cache.Cache, done *health.Flag, log logr.Logger) error {
	if !c.WaitForCacheSync(ctx) {
		return nil
	}
	for _, err := range []error{
		s.owners.CompileAll(ctx, c, &v1alpha1.OwnerPolicyList{}),
		s.names.CompileAll(ctx, c, &v1alpha1.NamePolicyList{}),
		s.recoveries.CompileAll(ctx, c, &v1alpha1.RecoveryPolicyList{}),
	} {
		if err != nil {
			log.Error(err, "policies in force do not compile")
		}
	}
	done.Set()
	return nil
}

// cacheSync opens a gate when its cache is synced.
type cacheSync struct {
	gate  *gate
	cache cache.Cache
}

// NeedLeaderElection says that every replica has a cache of its own.
func (cacheSync) NeedLeaderElection() bool { return false }

// Start waits for the cache.
func (c cacheSync) Start(ctx context.Context) error {
	if c.cache.WaitForCacheSync(ctx) {
		c.gate.synced.Store(true)
	}
	return nil
}

var errNotSynced = fmt.Errorf("the caches are not synced yet")

func (g *gate) check(*http.Request) error {
	if !g.synced.Load() {
		return errNotSynced
	}
	return nil
}

// gate is a cache that refuses reads until it is synced. A read of the cache
// itself would wait for that, and use up the time of the request.
type gate struct {
	client.Reader
	synced atomic.Bool
}

// Get reads the cache, once it is synced.
func (g *gate) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if !g.synced.Load() {
		return errNotSynced
	}
	return g.Reader.Get(ctx, key, obj, opts...)
}

// List reads the cache, once it is synced.
func (g *gate) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if !g.synced.Load() {
		return errNotSynced
	}
	return g.Reader.List(ctx, list, opts...)
}

// reporter writes events. The recorder sends them in the background and folds
// repetitions.
type reporter struct{ events.EventRecorder }

// Ambiguous tells, on the first of the candidates by name, that belay did not choose
// among them.
func (r reporter) Ambiguous(namespace string, candidates []owner.Object, message string) {
	first := candidates[0]
	for _, c := range candidates[1:] {
		if c.Name < first.Name {
			first = c
		}
	}
	r.Eventf(&corev1.ObjectReference{APIVersion: first.APIVersion, Kind: first.Kind, Namespace: namespace, Name: first.Name, UID: first.UID}, nil,
		corev1.EventTypeWarning, v1alpha1.ReasonAmbiguous, "Own", "%s", message)
}

// Replaced tells, on a finished object, that it was deleted.
func (r reporter) Replaced(t replace.Target) {
	r.Eventf(&corev1.ObjectReference{
		APIVersion: facts.ResourceOf(t.Resource).GroupVersion().String(), Kind: t.Resource.Kind, Namespace: t.Namespace, Name: t.Name, UID: t.UID,
	}, nil, corev1.EventTypeNormal, v1alpha1.ReasonReplaced, "Replace", "finished (%s), and deleted to make room for the next run, as policy %q says", t.Because, t.Policy)
}

// Stuck tells, on what holds a name, that it has done so for long.
func (r reporter) Stuck(s naming.Stuck, message string) {
	r.Eventf(&corev1.ObjectReference{APIVersion: s.APIVersion, Kind: s.Kind, Namespace: s.Namespace, Name: s.Name, UID: s.UID}, nil,
		corev1.EventTypeWarning, v1alpha1.ReasonNameHeld, "Name", "%s", message)
}
