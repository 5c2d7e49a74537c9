package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

const controllerManagerUser = "system:kube-controller-manager"

// auditPolicy says who did what to which object, for every request that was
// answered, but not what was in it.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`

// options say how a control plane differs from the default one.
type options struct {
	enforceOwnerReferences   bool
	sharedControllerIdentity bool
	audit                    bool
	apiservers               int
	etcdProxies              []string // host:port of each kube-apiserver's; the last one counts for the rest
	apiserverFlags           []string
}

// etcdProxy is the one of the i-th kube-apiserver; empty without.
func (o options) etcdProxy(i int) string {
	if len(o.etcdProxies) == 0 {
		return ""
	}
	return o.etcdProxies[min(i, len(o.etcdProxies)-1)]
}

// A server is one kube-apiserver, as its users know it.
type server struct {
	Name       string `json:"name"`
	Server     string `json:"server"`
	Kubeconfig string `json:"kubeconfig"`
	AuditLog   string `json:"auditLog"`
}

// A plane is the components of one control plane, in the order in which they
// start.
type plane struct {
	dir        *runDir
	server     string // the URL of kube-apiserver, or that of the front of several
	servers    []server
	etcd       string // host:port of etcd
	kubeconfig []byte // of the administrator
	api        *api   // of the first kube-apiserver
	components []*component
	log        io.Writer
}

// newPlane prepares a control plane in dir without starting anything.
func newPlane(dir *runDir, bins binaries, o options, log io.Writer) (*plane, error) {
	keys, err := newPKI()
	if err != nil {
		return nil, fmt.Errorf("making certificates: %w", err)
	}
	if err := keys.write(dir); err != nil {
		return nil, fmt.Errorf("writing certificates: %w", err)
	}
	p := &plane{
		dir: dir, log: log,
		servers: newServers(dir, o),
		etcd:    fmt.Sprintf("127.0.0.1:%d", dir.ports.etcd),
	}
	p.server = p.servers[0].Server
	if dir.ports.front != 0 {
		p.server = fmt.Sprintf("https://127.0.0.1:%d", dir.ports.front)
	}
	p.kubeconfig = kubeconfig(p.server, keys.ca.cert, keys.admin)
	files := map[string][]byte{
		"kubeconfig": p.kubeconfig,
		// Controllers act alike through each, and one that fails over would hide
		// which of them a test has broken.
		"kube-controller-manager.kubeconfig": kubeconfig(p.servers[0].Server, keys.ca.cert, keys.controllerManager),
	}
	if len(p.servers) > 1 {
		for _, s := range p.servers {
			files[s.Name+".kubeconfig"] = kubeconfig(s.Server, keys.ca.cert, keys.admin)
		}
	}
	if o.audit {
		files["audit-policy.yaml"] = []byte(auditPolicy)
	}
	for name, content := range files {
		if err := os.WriteFile(dir.file(name), content, 0o600); err != nil {
			return nil, err
		}
	}
	apiservers := make([]*component, len(p.servers))
	for i := range p.servers {
		if apiservers[i], err = p.apiserver(i, bins.apiserver, o, keys); err != nil {
			return nil, err
		}
	}
	if p.api, err = newAPI(p.servers[0].Server, keys); err != nil {
		return nil, err
	}
	etcd := &api{"http://" + p.etcd, clientFor(nil)}
	// The controller manager signs its own serving certificate. Only its
	// health is read from it, on the loopback interface.
	manager := &api{
		fmt.Sprintf("https://127.0.0.1:%d", dir.ports.controllerManager),
		clientFor(&tls.Config{InsecureSkipVerify: true}),
	}
	p.components = slices.Concat([]*component{{
		name:       "etcd",
		bin:        bins.etcd,
		flags:      p.etcdFlags(),
		stopWithin: 2 * time.Second,
		healthy:    func(ctx context.Context) error { _, err := etcd.get(ctx, "/health"); return err },
	}}, apiservers, []*component{{
		name:       "kube-controller-manager",
		bin:        bins.controllerManager,
		flags:      p.controllerManagerFlags(o),
		stopWithin: 5 * time.Second,
		healthy:    func(ctx context.Context) error { return controllersRun(ctx, manager) },
		prepare: func(ctx context.Context, flags []string) error {
			if !hasFlag(flags, "use-service-account-credentials", "false") {
				return nil
			}
			return p.api.shareIdentity(ctx)
		},
	}})
	for _, c := range p.components {
		c.dir = dir
		c.exited = func(name string, err error) { fmt.Fprintln(log, err) }
	}
	return p, nil
}

// newServers says where the kube-apiservers are. One alone has the plain names.
func newServers(dir *runDir, o options) []server {
	servers := make([]server, len(dir.ports.apiservers))
	for i, port := range dir.ports.apiservers {
		s := server{Name: "kube-apiserver", Server: fmt.Sprintf("https://127.0.0.1:%d", port), Kubeconfig: dir.file("kubeconfig")}
		log := "audit.log"
		if len(servers) > 1 {
			s.Name = fmt.Sprintf("kube-apiserver-%d", i+1)
			s.Kubeconfig = dir.file(s.Name + ".kubeconfig")
			log = fmt.Sprintf("audit-%d.log", i+1)
		}
		if o.audit {
			s.AuditLog = dir.file(log)
		}
		servers[i] = s
	}
	return servers
}

// apiserver is the component of the i-th server.
func (p *plane) apiserver(i int, bin string, o options, keys *pki) (*component, error) {
	flags, err := mergeFlags(p.apiserverFlags(i, o), o.apiserverFlags)
	if err != nil {
		return nil, err
	}
	self, err := newAPI(p.servers[i].Server, keys)
	if err != nil {
		return nil, err
	}
	return &component{
		name:       p.servers[i].Name,
		bin:        bin,
		flags:      flags,
		stopWithin: 15 * time.Second,
		healthy:    func(ctx context.Context) error { _, err := self.get(ctx, "/readyz"); return err },
	}, nil
}

// controllersRun fails until the controllers were started. Before that, the
// controller manager says that it is healthy without naming any of them.
func controllersRun(ctx context.Context, manager *api) error {
	checks, err := manager.get(ctx, "/healthz?verbose")
	if err == nil && !bytes.Contains(checks, []byte("[+]")) {
		err = errors.New("no controller was started yet")
	}
	return err
}

func (p *plane) etcdFlags() []string {
	client := "http://" + p.etcd
	peer := fmt.Sprintf("http://127.0.0.1:%d", p.dir.ports.etcdPeer)
	return []string{
		"--name=default",
		"--data-dir=" + p.dir.file("etcd"),
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=default=" + peer,
		"--unsafe-no-fsync", // the data goes away anyway; a killed etcd loses nothing, a dead machine might
		"--log-level=warn",
	}
}

func (p *plane) apiserverFlags(i int, o options) []string {
	flags := []string{
		"--etcd-servers=http://" + cmp.Or(o.etcdProxy(i), p.etcd),
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", p.dir.ports.apiservers[i]),
		"--shutdown-watch-termination-grace-period=1s", // a stop would wait a minute for open watches
		"--endpoint-reconciler-type=none",              // endpoints may not be loopback addresses
		"--service-cluster-ip-range=10.0.0.0/24",
		"--cert-dir=" + p.dir.file("pki"),
		"--tls-cert-file=" + p.dir.file("pki", "apiserver.crt"),
		"--tls-private-key-file=" + p.dir.file("pki", "apiserver.key"),
		"--client-ca-file=" + p.dir.file("pki", "ca.crt"),
		"--authorization-mode=RBAC",
		"--allow-privileged=true",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + p.dir.file("pki", "sa.pub"),
		"--service-account-signing-key-file=" + p.dir.file("pki", "sa.key"),
	}
	if o.enforceOwnerReferences {
		flags = append(flags, "--enable-admission-plugins=OwnerReferencesPermissionEnforcement")
	}
	if o.audit {
		flags = append(flags,
			"--audit-policy-file="+p.dir.file("audit-policy.yaml"),
			"--audit-log-path="+p.servers[i].AuditLog,
			"--audit-log-maxsize=10240", // MB; the log must not be rotated under its reader
		)
	}
	return flags
}

func (p *plane) controllerManagerFlags(o options) []string {
	return []string{
		"--kubeconfig=" + p.dir.file("kube-controller-manager.kubeconfig"),
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", p.dir.ports.controllerManager),
		"--cert-dir=" + p.dir.file("kube-controller-manager-pki"),
		"--leader-elect=false",
		// With the defaults (20, 30) it takes 5 s to make the service accounts of
		// all controllers, at every start.
		"--kube-api-qps=500",
		"--kube-api-burst=1000",
		// Without kubelets these wait for nodes and volumes that never come.
		"--controllers=*,-node-ipam-controller,-node-lifecycle-controller,-taint-eviction-controller,-persistentvolume-attach-detach-controller",
		fmt.Sprintf("--use-service-account-credentials=%t", !o.sharedControllerIdentity),
		"--service-account-private-key-file=" + p.dir.file("pki", "sa.key"),
		"--root-ca-file=" + p.dir.file("pki", "ca.crt"),
		"--cluster-signing-cert-file=" + p.dir.file("pki", "ca.crt"),
		"--cluster-signing-key-file=" + p.dir.file("pki", "ca.key"),
	}
}

// start starts the components one after the other and waits until Pods could
// be created in the default namespace, which takes its service account.
func (p *plane) start(ctx context.Context) error {
	for _, c := range p.components {
		fmt.Fprintf(p.log, "starting %s\n", c.name)
		if err := c.start(ctx, nil); err != nil {
			return err
		}
	}
	manager := p.components[len(p.components)-1]
	err := manager.waitFor(ctx, func(ctx context.Context) error {
		_, err := p.api.get(ctx, "/api/v1/namespaces/default/serviceaccounts/default")
		return err
	})
	if err != nil {
		return fmt.Errorf("waiting for the service account of the default namespace: %w", err)
	}
	return nil
}

// stop ends the components in the reverse order.
func (p *plane) stop() error {
	var errs []error
	for i := len(p.components) - 1; i >= 0; i-- {
		errs = append(errs, p.components[i].stop())
	}
	return errors.Join(errs...)
}
