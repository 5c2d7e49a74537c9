// Package plane starts a real Kubernetes control plane for tests, demonstrations
// and benchmarks: etcd, kube-apiserver and kube-controller-manager, without
// nodes. It builds and drives the command in hack/controlplane, whose
// documentation says where things are kept and how nothing is left behind.
//
// The first start on a machine compiles Kubernetes, which takes minutes; later
// ones take seconds. A control plane ends with the process that started it.
package plane

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// stopWithin is longer than the launcher takes at most: 22 s for components
	// that ignore SIGTERM and 10 s for its janitor.
	stopWithin = 45 * time.Second
	// eachStopWithin is for each kube-apiserver after the first.
	eachStopWithin = 15 * time.Second

	// maxAnswer bounds one line of the launcher; errors quote logs.
	maxAnswer = 1 << 20
)

// Options say which control plane to start. The zero value is the default one.
type Options struct {
	// Version of Kubernetes, such as v1.37.2 or 1.37. Empty means that of the
	// environment variable BELAY_K8S_VERSION, or else the newest there is.
	Version string
	// EnforceOwnerReferences enables the admission plugin
	// OwnerReferencesPermissionEnforcement.
	EnforceOwnerReferences bool
	// SharedControllerIdentity lets all controllers act as the user
	// system:kube-controller-manager instead of a service account each.
	SharedControllerIdentity bool
	// Audit logs the metadata of every request to AuditLog.
	Audit bool
	// APIServers is how many kube-apiservers there are on one etcd; 0 is one.
	APIServers int
	// APIServerFlags, of the form --name=value, replace the defaults of
	// kube-apiserver of the same name.
	APIServerFlags []string
	// EtcdProxy stands between kube-apiserver and etcd, also after restarts; nil
	// is no proxy. Whoever made it closes it after Stop.
	EtcdProxy EtcdProxy
	// EtcdProxies take the place of EtcdProxy where each kube-apiserver has one of
	// its own: the first is that of kube-apiserver-1.
	EtcdProxies []EtcdProxy
	// Log gets the progress of builds and starts; nil means os.Stderr.
	Log io.Writer
}

// An EtcdProxy passes on TCP connections without TLS.
type EtcdProxy interface {
	// Addr is the host:port where it listens.
	Addr() string
	// SetBackend says at which host:port etcd will listen, before it does.
	SetBackend(etcd string)
}

// A Plane is a running control plane. It is safe for concurrent use.
type Plane struct {
	ready  ready
	config *rest.Config

	stdin io.WriteCloser
	lines chan string   // what the launcher prints; closed when it stops to
	done  chan struct{} // closed when the launcher has ended
	err   error         // how it ended; readable when done is closed
	turn  chan struct{} // holds a token while a command waits for its answer

	process *os.Process
	stop    func() error
}

// ready is the line that the launcher prints when it has started everything.
type ready struct {
	Version, Kubeconfig, Server, Etcd, Dir, AuditLog string
	PID                                              int

	Servers []Server
}

// A Server is one kube-apiserver.
type Server struct {
	// Name is that of the component: kube-apiserver, or kube-apiserver-1 and so on.
	Name string
	// URL is where it listens.
	URL string `json:"server"`
	// Kubeconfig is the path of one of an administrator who talks to it alone.
	Kubeconfig string
	// AuditLog is the path of its own; it is empty without Options.Audit.
	AuditLog string
}

// Start builds what is missing, starts a control plane and waits until Pods can
// be created in it. It takes as long as ctx allows; when that ends, or nothing
// can be built or started, it returns an error and leaves nothing running.
// After that ctx has no meaning: call Stop.
func Start(ctx context.Context, o Options) (*Plane, error) {
	log := o.Log
	if log == nil {
		log = os.Stderr
	}
	tail := &tailWriter{}
	p, err := launch(ctx, o.args(), io.MultiWriter(log, tail))
	if err != nil {
		return nil, err
	}
	if err := p.await(ctx, o.proxies(), tail); err != nil {
		err = fmt.Errorf("starting the control plane: %w", err)
		select {
		case <-p.done: // by itself, which err says
			return nil, err
		default:
			return nil, errors.Join(err, p.Stop())
		}
	}
	p.config, err = clientcmd.BuildConfigFromFlags("", p.ready.Kubeconfig)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("reading the kubeconfig: %w", err), p.Stop())
	}
	p.config.QPS = -1
	return p, nil
}

// await waits until everything is started.
func (p *Plane) await(ctx context.Context, proxies []EtcdProxy, tail fmt.Stringer) error {
	if len(proxies) > 0 {
		// One more line says where etcd will be, before anything is started.
		if err := p.read(ctx, tail); err != nil {
			return err
		}
		for _, proxy := range proxies {
			proxy.SetBackend(p.ready.Etcd)
		}
	}
	return p.read(ctx, tail)
}

// read reads a line of the launcher into ready.
func (p *Plane) read(ctx context.Context, tail fmt.Stringer) error {
	select {
	case line, ok := <-p.lines:
		if !ok {
			<-p.done
			return fmt.Errorf("%w: %s", p.err, tail)
		}
		if err := json.Unmarshal([]byte(line), &p.ready); err != nil {
			return fmt.Errorf("reading %q: %w", line, err)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (o Options) proxies() []EtcdProxy {
	if len(o.EtcdProxies) == 0 && o.EtcdProxy != nil {
		return []EtcdProxy{o.EtcdProxy}
	}
	return o.EtcdProxies
}

func (o Options) args() []string {
	args := []string{"up", "--until-eof"}
	if o.Version != "" {
		args = append(args, "--version="+o.Version)
	}
	if o.EnforceOwnerReferences {
		args = append(args, "--enforce-owner-references")
	}
	if o.SharedControllerIdentity {
		args = append(args, "--shared-controller-identity")
	}
	if o.Audit {
		args = append(args, "--audit")
	}
	if o.APIServers != 0 {
		args = append(args, fmt.Sprintf("--apiservers=%d", o.APIServers))
	}
	for _, proxy := range o.proxies() {
		args = append(args, "--etcd-proxy="+proxy.Addr())
	}
	for _, f := range o.APIServerFlags {
		args = append(args, "--apiserver-flag="+f)
	}
	return args
}

// launch builds and starts the launcher and reads what it prints.
func launch(ctx context.Context, args []string, log io.Writer) (*Plane, error) {
	binary, lock, err := buildLauncher(ctx, log)
	if err != nil {
		return nil, fmt.Errorf("building the launcher of control planes: %w", err)
	}
	defer lock.Close() // held until the launcher is loaded

	cmd := exec.Command(binary, args...)
	cmd.Stderr = log
	cmd.WaitDelay = time.Second
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the launcher of control planes: %w", err)
	}
	p := &Plane{
		stdin:   stdin,
		lines:   make(chan string),
		done:    make(chan struct{}),
		turn:    make(chan struct{}, 1),
		process: cmd.Process,
	}
	stopped := make(chan struct{}) // closed when nobody wants lines any more
	p.stop = sync.OnceValue(func() error { close(stopped); return p.end() })
	go func() { // ends with the launcher, which end waits for
		defer close(p.done)
		defer func() { p.err = cmd.Wait() }()
		defer close(p.lines)
		for s := newScanner(stdout); s.Scan(); {
			select {
			case p.lines <- s.Text():
			case <-stopped:
			}
		}
	}()
	return p, nil
}

func newScanner(r io.Reader) *bufio.Scanner {
	s := bufio.NewScanner(r)
	s.Buffer(nil, maxAnswer)
	return s
}

// Kubectl returns the path of kubectl of the version in the environment variable
// BELAY_K8S_VERSION, or else of the newest there is. It comes out of
// KUBEBUILDER_ASSETS, the cache or, once on a machine, a build that takes a
// minute or two. No control plane is needed for it. Progress goes to log; nil
// means os.Stderr. kubectl reads the user's own kubeconfig and writes below the
// user's home, unless --kubeconfig and --cache-dir say otherwise.
func Kubectl(ctx context.Context, log io.Writer) (path string, err error) {
	if log == nil {
		log = os.Stderr
	}
	binary, lock, err := buildLauncher(ctx, log)
	if err != nil {
		return "", fmt.Errorf("building the launcher of control planes: %w", err)
	}
	tail := &tailWriter{}
	var out strings.Builder
	cmd := exec.CommandContext(ctx, binary, "kubectl")
	cmd.Stdout, cmd.Stderr = &out, io.MultiWriter(log, tail)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // ends the compilers
	cmd.WaitDelay = stopWithin
	err = cmd.Start()
	if err := errors.Join(err, lock.Close()); err != nil { // held until the launcher is loaded
		return "", fmt.Errorf("starting the launcher of control planes: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("building kubectl: %w: %s", err, tail)
	}
	return strings.TrimSpace(out.String()), nil
}

// buildLauncher builds the launcher into the user's cache directory, which is
// quick when it is there, and returns a lock that keeps other processes from
// replacing it.
func buildLauncher(ctx context.Context, log io.Writer) (path string, lock *os.File, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", nil, err
	}
	dir := filepath.Join(cache, "belay", "bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", nil, err
	}
	root, err := Root()
	if err != nil {
		return "", nil, err
	}
	path = filepath.Join(dir, "controlplane")
	lock, err = os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", nil, err
	}
	// Others hold the lock for a build of this small program, about a second.
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", nil, errors.Join(err, lock.Close())
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-C", filepath.Join(root, "hack", "controlplane"), "-o", path, ".")
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return "", nil, errors.Join(fmt.Errorf("go build of hack/controlplane in %s: %w", root, err), lock.Close())
	}
	return path, lock, nil
}

// Root finds the repository, from the working directory upwards. The path that
// a file was compiled from does not tell: builds may trim it.
func Root() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the repository: %w", err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "hack", "controlplane", "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("found no hack/controlplane in %s or above; run inside of the repository", start)
		}
	}
}

// Kubeconfig is the path of a kubeconfig of an administrator.
func (p *Plane) Kubeconfig() string { return p.ready.Kubeconfig }

// Server is the URL of kube-apiserver; where there are several, that of a front
// that spreads connections over them. So does Kubeconfig.
func (p *Plane) Server() string { return p.ready.Server }

// Etcd is the host:port of etcd, past any Options.EtcdProxy.
func (p *Plane) Etcd() string { return p.ready.Etcd }

// Version is the version of Kubernetes, such as v1.37.2.
func (p *Plane) Version() string { return p.ready.Version }

// Servers are the kube-apiservers, in order; there is at least one.
func (p *Plane) Servers() []Server { return slices.Clone(p.ready.Servers) }

// ConfigOf is Config of one server, an index into Servers.
func (p *Plane) ConfigOf(server int) *rest.Config {
	c := p.Config()
	c.Host = p.ready.Servers[server].URL
	return c
}

// AuditLog is the path of the audit log of the first kube-apiserver, one JSON
// object a line; it is empty without Options.Audit.
func (p *Plane) AuditLog() string { return p.ready.AuditLog }

// Dir holds the logs, <component>.log, until Stop.
func (p *Plane) Dir() string { return p.ready.Dir }

// Config returns a new configuration of an administrator's client without
// limits on its own side.
func (p *Plane) Config() *rest.Config { return rest.CopyConfig(p.config) }

// Do tells a component something, such as "restart kube-apiserver", and waits
// until it is done: VERB NAME [--flag=value ...] with VERB one of start, stop,
// restart, pause, resume and kill, and NAME one of etcd, kube-apiserver (where
// there are several, one of the names of Servers) and kube-controller-manager. Ports and data stay the same. Flags, for start and
// restart, replace those of the same name until the next start. The error is
// that of the component with the end of its log, or that of ctx; the command
// goes on then, and the next one waits for it.
func (p *Plane) Do(ctx context.Context, command string) error {
	if strings.ContainsAny(command, "\r\n") {
		return fmt.Errorf("command %q has more than one line", command)
	}
	select {
	case p.turn <- struct{}{}:
	case <-p.done:
		return errors.New("the control plane has ended")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	result := make(chan error, 1)
	go func() { // ends with the answer or with the launcher
		result <- p.ask(command)
		<-p.turn
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return fmt.Errorf("waiting for %q: %w", command, context.Cause(ctx))
	}
}

func (p *Plane) ask(command string) error {
	if _, err := io.WriteString(p.stdin, command+"\n"); err != nil {
		return fmt.Errorf("the control plane has ended: %w", err)
	}
	line, ok := <-p.lines
	if !ok {
		return errors.New("the control plane has ended")
	}
	var answer struct{ Error string }
	if err := json.Unmarshal([]byte(line), &answer); err != nil {
		return fmt.Errorf("reading the answer %q: %w", line, err)
	}
	if answer.Error != "" {
		return errors.New(answer.Error)
	}
	return nil
}

// Stop ends the control plane and removes its data. It returns an error when
// that did not go well; nothing is running afterwards all the same. Calling it
// again returns the same.
func (p *Plane) Stop() error { return p.stop() }

func (p *Plane) end() error {
	within := stopWithin + time.Duration(max(0, len(p.ready.Servers)-1))*eachStopWithin
	if err := p.stdin.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("stopping the control plane: %w", err)
	}
	select {
	case <-p.done:
		if p.err != nil {
			return fmt.Errorf("stopping the control plane: %w", p.err)
		}
		return nil
	case <-time.After(within):
		// Its janitor does the rest.
		err := p.process.Kill()
		<-p.done
		return errors.Join(fmt.Errorf("the control plane did not stop within %s and was killed", within), err)
	}
}

// tailWriter keeps the end of what is written to it.
type tailWriter struct {
	mu   sync.Mutex
	text []byte
}

func (w *tailWriter) Write(p []byte) (int, error) {
	const enough = 4 << 10
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, p...)
	w.text = w.text[max(0, len(w.text)-enough):]
	return len(p), nil
}

func (w *tailWriter) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.TrimSpace(string(w.text))
}
