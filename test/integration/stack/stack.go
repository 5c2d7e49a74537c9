package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	crlog "sigs.k8s.io/controller-runtime/pkg/log"

	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/belay-dev/belay/test/integration/plane"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// Namespace is where belay runs.
const Namespace = "belay-system"

// Names of belay's service accounts.
const (
	WebhookAccount    = "belay-webhook"
	ControllerAccount = "belay-controller"
)

// Options say how to run belay.
type Options struct {
	Plane plane.Options
	// Webhooks and Controllers are how many to start; 0 is one, negative is none.
	Webhooks, Controllers int
	// Presets are folders below manifests/presets.
	Presets []string
	// FaultyWebhook and FaultyController put a proxy between the processes and the
	// API server that can make requests fail.
	FaultyWebhook, FaultyController bool
	// WebhookServers and ControllerServers are the API servers, counted from 1, that the
	// processes talk to, in turn as they are started; none is the front of all.
	WebhookServers, ControllerServers []int
	// WebhookFlags and ControllerFlags are added to those of belay-webhook and
	// belay-controller.
	WebhookFlags, ControllerFlags []string
	// Dir gets logs and kubeconfigs; empty is a temporary one, removed by Stop.
	Dir string
}

// Stack is belay on a control plane.
type Stack struct {
	Plane *plane.Plane
	// Client, Kube and Dynamic are the administrator's.
	Client  client.WithWatch
	Kube    kubernetes.Interface
	Dynamic dynamic.Interface
	// WebhookFaults and ControllerFaults are there when they were asked for.
	WebhookFaults, ControllerFaults *Faults
	// Dir has the logs.
	Dir string

	o Options
	// cluster is set by Connect.
	cluster *rest.Config
	mapper  meta.RESTMapper
	bin     string
	front   *front
	// collectors is in front of the collectors.
	collectors *front
	ownDir     bool
	mu         sync.Mutex
	webhooks   []*Process
	control    []*Process
	started    int
}

// memoryLimits are those of the manifests.
var memoryLimits = map[string]string{"webhook": "230MiB", "controller": "460MiB"}

// Start runs a control plane, installs belay and starts its processes. What was
// started is stopped again when it fails.
func Start(ctx context.Context, o Options) (_ *Stack, err error) {
	s := &Stack{o: o}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	if s.bin, err = build(ctx); err != nil {
		return nil, err
	}
	if s.Plane, err = plane.Start(ctx, o.Plane); err != nil {
		return nil, err
	}
	if err = s.clients(); err != nil {
		return nil, err
	}
	if s.Dir = o.Dir; s.Dir == "" {
		s.ownDir = true
		if s.Dir, err = os.MkdirTemp("", "belay-stack-"); err != nil {
			return nil, err
		}
	}
	if s.front, err = newFront(); err != nil {
		return nil, err
	}
	if s.collectors, err = newFront(); err != nil {
		return nil, err
	}
	if err = s.install(ctx); err != nil {
		return nil, err
	}
	for range count(o.Webhooks) {
		if _, err = s.StartWebhook(ctx); err != nil {
			return nil, err
		}
	}
	for range count(o.Controllers) {
		if _, err = s.StartController(ctx); err != nil {
			return nil, err
		}
	}
	for _, p := range o.Presets {
		if err = s.ApplyPreset(ctx, p); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func count(n int) int {
	if n == 0 {
		return 1
	}
	return max(n, 0)
}

// Root is the repository; where there is none, files below it are not found, and say so.
func Root() string {
	root, err := plane.Root()
	if err != nil {
		return "."
	}
	return root
}

// built is what build compiled for the stacks of this process.
var built struct {
	sync.Mutex
	dir string
	// users are the stacks that are not stopped.
	users int
}

// build compiles belay's processes into a folder of the cache, once for all stacks of this
// process; release says that one of them is done. A folder for each process, so that two test
// binaries never write one file at once.
func build(ctx context.Context) (string, error) {
	built.Lock()
	defer built.Unlock()
	if built.users > 0 {
		built.users++
		return built.dir, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache directory: %w", err)
	}
	cache = filepath.Join(cache, "belay", "stack")
	if err := os.MkdirAll(cache, 0o750); err != nil {
		return "", err
	}
	sweep(cache)
	dir, err := os.MkdirTemp(cache, "bin-")
	if err != nil {
		return "", err
	}
	args := []string{"build", "-o", dir + string(filepath.Separator)}
	if raceEnabled {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./cmd/...")...)
	cmd.Dir = Root()
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", errors.Join(fmt.Errorf("building belay: %w\n%s", err, out), os.RemoveAll(dir))
	}
	built.dir, built.users = dir, 1
	return dir, nil
}

// release removes what build compiled after the last stack.
func release() error {
	built.Lock()
	defer built.Unlock()
	if built.users--; built.users > 0 {
		return nil
	}
	return os.RemoveAll(built.dir)
}

// sweep removes what a run left behind that was killed: no run takes a day.
func sweep(cache string) {
	entries, err := os.ReadDir(cache)
	if err != nil {
		return // nothing to remove, or somebody else's business
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > 24*time.Hour {
			_ = os.RemoveAll(filepath.Join(cache, e.Name()))
		}
	}
}

func (s *Stack) clients() error {
	crlog.SetLogger(logr.Discard()) // the library's own log; belay's is in its processes
	cfg := s.admin()
	scheme := clientgoscheme.Scheme
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return err
	}
	var err error
	if s.Kube, err = kubernetes.NewForConfig(cfg); err != nil {
		return err
	}
	if s.Dynamic, err = dynamic.NewForConfig(cfg); err != nil {
		return err
	}
	hc, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return err
	}
	// It asks again for kinds that it does not know yet.
	if s.mapper, err = apiutil.NewDynamicRESTMapper(cfg, hc); err != nil {
		return err
	}
	s.Client, err = client.NewWithWatch(cfg, client.Options{Scheme: scheme, Mapper: s.mapper})
	return err
}

func (s *Stack) install(ctx context.Context) error {
	objects, err := ReadManifests(ctx, filepath.Join(Root(), "manifests", "base"))
	if err != nil {
		return err
	}
	if err := s.Apply(ctx, objects...); err != nil {
		return err
	}
	// The garbage collector looks for new kinds every 30 seconds, and until then does
	// not know that an Anchor can be an owner. A restart tells it at once.
	if err := s.Plane.Do(ctx, "restart kube-controller-manager"); err != nil {
		return err
	}
	if s.o.FaultyWebhook {
		if s.WebhookFaults, err = NewFaults(s.Plane.Config()); err != nil {
			return err
		}
	}
	if s.o.FaultyController {
		s.ControllerFaults, err = NewFaults(s.Plane.Config())
	}
	return err
}

// ApplyPreset applies a folder below manifests/presets.
func (s *Stack) ApplyPreset(ctx context.Context, name string) error {
	objects, err := ReadManifests(ctx, filepath.Join(Root(), "manifests", "presets", name))
	if err != nil {
		return err
	}
	return s.Apply(ctx, objects...)
}

// Config is a client configuration for one of belay's service accounts, or any
// other of a namespace.
func (s *Stack) Config(ctx context.Context, namespace, account string) (*rest.Config, error) {
	hours := int64(24 * 3600)
	t, err := s.Kube.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &hours},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("requesting a token for %s/%s: %w", namespace, account, err)
	}
	admin := s.admin()
	return &rest.Config{
		Host: admin.Host, BearerToken: t.Status.Token, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: admin.CAData},
	}, nil
}

// ClientOf is Client of one API server, an index into Plane.Servers.
func (s *Stack) ClientOf(server int) (client.WithWatch, error) {
	return client.NewWithWatch(s.Plane.ConfigOf(server), client.Options{Scheme: clientgoscheme.Scheme, Mapper: s.mapper})
}

// kubeconfig writes a kubeconfig for one of belay's service accounts, and an API server,
// counted from 1; 0 is the front of all.
func (s *Stack) kubeconfig(ctx context.Context, account string, server int, faults *Faults) (string, error) {
	cfg, err := s.Config(ctx, Namespace, account)
	if err != nil {
		return "", err
	}
	path := filepath.Join(s.Dir, account+".kubeconfig")
	if server > 0 {
		cfg.Host = s.Plane.Servers()[server-1].URL
		path = filepath.Join(s.Dir, fmt.Sprintf("%s-%d.kubeconfig", account, server))
	}
	cluster := &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData}
	if faults != nil {
		cluster = faults.cluster()
	}
	err = clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"plane": cluster},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{account: {Token: cfg.BearerToken}},
		Contexts:       map[string]*clientcmdapi.Context{"plane": {Cluster: "plane", AuthInfo: account}},
		CurrentContext: "plane",
	}, path+".new")
	if err != nil {
		return "", err
	}
	// In one step: a process that was started before may be reading it.
	return path, os.Rename(path+".new", path)
}

func (s *Stack) start(ctx context.Context, kind, account string, faults *Faults, flags func(ports []int) []string) (*Process, error) {
	servers, n := s.o.WebhookServers, len(s.Webhooks())
	if account == ControllerAccount {
		servers, n = s.o.ControllerServers, len(s.Controllers())
	}
	server := 0
	if len(servers) > 0 {
		server = servers[n%len(servers)]
	}
	kc, err := s.kubeconfig(ctx, account, server, faults)
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(4)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.started++
	name := fmt.Sprintf("%s-%d", kind, s.started)
	s.mu.Unlock()
	args := append([]string{
		"--kubeconfig=" + kc, "--namespace=" + Namespace, "--v=1",
		fmt.Sprintf("--health-probe-bind-address=127.0.0.1:%d", ports[0]),
		fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", ports[1]),
	}, flags(ports)...)
	p, err := startProcess(name, filepath.Join(s.bin, "belay-"+kind), filepath.Join(s.Dir, name+".log"), args, append(os.Environ(), "GOMEMLIMIT="+memoryLimits[kind])...)
	if err != nil {
		return nil, err
	}
	p.ProbePort, p.MetricsPort = ports[0], ports[1]
	return p, nil
}

// StartWebhook starts one more belay-webhook, waits until it is ready and lets it
// take part in the traffic.
func (s *Stack) StartWebhook(ctx context.Context) (*Process, error) {
	p, err := s.LaunchWebhook(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.webhooks = append(s.webhooks, p)
	s.mu.Unlock()
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	s.route(false)
	return p, nil
}

// LaunchWebhook starts a belay-webhook and leaves it alone: it gets no traffic, and
// Stop does not know it.
func (s *Stack) LaunchWebhook(ctx context.Context) (*Process, error) {
	var port, collector int
	p, err := s.start(ctx, "webhook", WebhookAccount, s.WebhookFaults, func(ports []int) []string {
		port = ports[2]
		collector = ports[3]
		return append([]string{
			fmt.Sprintf("--listen=127.0.0.1:%d", port), fmt.Sprintf("--collector-listen=127.0.0.1:%d", collector),
			"--collector-address=" + s.CollectorAddress(), "--dns-names=localhost", "--drain=0s",
		}, s.o.WebhookFlags...)
	})
	if err != nil {
		return nil, err
	}
	p.Port, p.CollectorPort = port, collector
	return p, nil
}

// LaunchWith is LaunchWebhook for another binary, empty for the usual one, and with the
// kubeconfig that was written before. flags take the place of the usual ones.
func (s *Stack) LaunchWith(binary string, flags ...string) (*Process, error) {
	if binary == "" {
		binary = filepath.Join(s.bin, "belay-webhook")
	}
	ports, err := freePorts(4)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.started++
	name := fmt.Sprintf("webhook-%d", s.started)
	s.mu.Unlock()
	p, err := startProcess(name, binary, filepath.Join(s.Dir, name+".log"), append([]string{
		"--kubeconfig=" + filepath.Join(s.Dir, WebhookAccount+".kubeconfig"), "--namespace=" + Namespace, "--v=1",
		fmt.Sprintf("--health-probe-bind-address=127.0.0.1:%d", ports[0]), fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", ports[1]),
		fmt.Sprintf("--listen=127.0.0.1:%d", ports[2]), fmt.Sprintf("--collector-listen=127.0.0.1:%d", ports[3]),
		"--collector-address=" + s.CollectorAddress(), "--dns-names=localhost", "--drain=0s",
	}, flags...))
	if err != nil {
		return nil, err
	}
	p.ProbePort, p.MetricsPort, p.Port, p.CollectorPort = ports[0], ports[1], ports[2], ports[3]
	return p, nil
}

// StartController starts one more belay-controller and waits until it is up; with
// several, one of them leads.
func (s *Stack) StartController(ctx context.Context) (*Process, error) {
	p, err := s.start(ctx, "controller", ControllerAccount, s.ControllerFaults, func([]int) []string {
		// Short leases, so that a test sees a change of leaders within seconds.
		return append([]string{
			"--webhook-url=" + s.WebhookURL(),
			"--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s", "--leader-elect-retry-period=500ms",
		}, s.o.ControllerFlags...)
	})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.control = append(s.control, p)
	s.mu.Unlock()
	return p, p.ready(ctx)
}

// WebhookURL is where the API server reaches the webhooks.
func (s *Stack) WebhookURL() string { return fmt.Sprintf("https://localhost:%d", s.front.port()) }

// CollectorAddress is where sidecars reach the collectors.
func (s *Stack) CollectorAddress() string { return fmt.Sprintf("localhost:%d", s.collectors.port()) }

// Connections is how many connections the API server has made to the webhooks.
func (s *Stack) Connections() int64 { return s.front.calls.Load() }

// heard is how long API servers are given to hear that their connections were cut; a call that
// they send before that is lost.
const heard = 100 * time.Millisecond

// Detach takes a webhook out of the traffic, or all of them: belay is down.
func (s *Stack) Detach(ps ...*Process) {
	defer func() { <-time.After(heard) }()
	s.mu.Lock()
	defer s.mu.Unlock()
	var keep, collect []string
	for _, w := range s.webhooks {
		gone := len(ps) == 0
		for _, p := range ps {
			gone = gone || p == w
		}
		if !gone {
			keep = append(keep, fmt.Sprintf("127.0.0.1:%d", w.Port))
			collect = append(collect, fmt.Sprintf("127.0.0.1:%d", w.CollectorPort))
		}
	}
	s.front.set(keep, true)
	s.collectors.set(collect, true)
}

// Attach brings all running webhooks back into the traffic.
func (s *Stack) Attach() {
	s.route(true)
	<-time.After(heard)
}

func (s *Stack) route(cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all, collect []string
	for _, w := range s.webhooks {
		select {
		case <-w.done:
		default:
			all = append(all, fmt.Sprintf("127.0.0.1:%d", w.Port))
			collect = append(collect, fmt.Sprintf("127.0.0.1:%d", w.CollectorPort))
		}
	}
	s.front.set(all, cut)
	s.collectors.set(collect, cut)
}

// Webhooks are the webhooks that were started, in order.
func (s *Stack) Webhooks() []*Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*Process(nil), s.webhooks...)
}

// Controllers are the controllers that were started, in order.
func (s *Stack) Controllers() []*Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*Process(nil), s.control...)
}

// WaitPolicy waits until an OwnerPolicy is registered for its newest spec, and until
// the API server acts on it: its own caches lag behind what it stores.
func (s *Stack) WaitPolicy(ctx context.Context, name string) error {
	var p v1alpha1.OwnerPolicy
	return s.waitPolicy(ctx, name, &p, func() (*[]metav1.Condition, bool) {
		return &p.Status.Conditions, p.Status.InForce != nil && p.Status.InForce.Generation == p.Generation
	})
}

// WaitNamePolicy is WaitPolicy for a NamePolicy.
func (s *Stack) WaitNamePolicy(ctx context.Context, name string) error {
	var p v1alpha1.NamePolicy
	return s.waitPolicy(ctx, name, &p, func() (*[]metav1.Condition, bool) {
		return &p.Status.Conditions, p.Status.InForce != nil && p.Status.InForce.Generation == p.Generation
	})
}

// WaitRecoveryPolicy is WaitPolicy for a RecoveryPolicy.
func (s *Stack) WaitRecoveryPolicy(ctx context.Context, name string) error {
	var p v1alpha1.RecoveryPolicy
	return s.waitPolicy(ctx, name, &p, func() (*[]metav1.Condition, bool) {
		return &p.Status.Conditions, p.Status.InForce != nil && p.Status.InForce.Generation == p.Generation
	})
}

func (s *Stack) waitPolicy(ctx context.Context, name string, p client.Object, look func() (conditions *[]metav1.Condition, inForce bool)) error {
	for {
		err := s.Client.Get(ctx, client.ObjectKey{Name: name}, p)
		conditions, inForce := look()
		if err == nil && inForce && registered(*conditions, p.GetGeneration()) {
			return s.settle(ctx)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("policy %q is not registered: %+v: %w", name, *conditions, errors.Join(err, ctx.Err()))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// registered reports whether both conditions are true for a generation.
func registered(conditions []metav1.Condition, generation int64) bool {
	ok := 0
	for _, c := range conditions {
		if c.Status == metav1.ConditionTrue && c.ObservedGeneration == generation {
			ok++
		}
	}
	return ok == 2
}

// settle waits until the API server's webhook informer has what was written. A
// write returns before the server's own watch has seen it; there is nothing to ask
// for that, so it is given the time that one watch event takes, many times over.
func (s *Stack) settle(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(300 * time.Millisecond):
		return nil
	}
}

// NewNamespace makes a namespace with a name of its own, in a mode; empty for none.
func (s *Stack) NewNamespace(ctx context.Context, prefix, mode string) (string, error) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix + "-"}}
	if mode != "" {
		ns.Labels = map[string]string{v1alpha1.ModeLabel: mode}
	}
	out, err := s.Kube.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("creating a namespace: %w", err)
	}
	return out.Name, nil
}

// Stop stops what was started, in the reverse order.
func (s *Stack) Stop() error {
	var errs []error
	for _, p := range append(s.Controllers(), s.Webhooks()...) {
		errs = append(errs, p.Stop())
	}
	for _, f := range []*front{s.front, s.collectors} {
		if f != nil {
			f.close()
		}
	}
	for _, f := range []*Faults{s.WebhookFaults, s.ControllerFaults} {
		if f != nil {
			f.Close()
		}
	}
	if s.Plane != nil {
		errs = append(errs, s.Plane.Stop())
	}
	if s.bin != "" {
		errs = append(errs, release())
		s.bin = ""
	}
	if s.ownDir {
		errs = append(errs, os.RemoveAll(s.Dir))
	}
	return errors.Join(errs...)
}
