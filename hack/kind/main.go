package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/belay-dev/belay/hack/kind/choice"
)

const usage = `kind runs a Kubernetes cluster with real kubelets in containers: one control
plane and two workers.

Usage: go run ./hack/kind COMMAND [flags]

  up          make the cluster, with all that it takes, unless it is there
  down        remove it, and what was started for it; images stay for the next time
  load FILE…  load image archives (docker save) into the nodes
  pull IMAGE… load images into the nodes; the engine pulls those that it does not have
  docker …    the docker client, talking to the cluster's engine
  logs DIR    write the nodes' logs into a folder
  kubeconfig  print the path of its kubeconfig
  path        print the folder with kubectl and kind
  clean       remove everything, the cache included
  help        this text; "kind COMMAND --help" explains the flags

kubectl is told by KUBECONFIG, which "up" prints last; ~/.kube/config is not touched.
The first "up" may compile Kubernetes and its runtime: 15 minutes on two cores.
Later ones take about 45 seconds.

Exit codes: 1 it failed, 2 usage, 3 there is no container engine, and this machine can have
none, 4 an image of "pull" is not here and cannot be pulled.
`

// A kind is one cluster with its cache.
type kind struct {
	tools *tools
	cache string // belay/kind in the user's cache directory
	root  string // of the repository
	name  string
	from  string // auto, official, built: the node image
	out   io.Writer
	state state
	// patience is how long pull waits for registries, all images together.
	patience time.Duration
	// made says where the node image comes from, for whoever wonders what took so long.
	made string
}

func (k *kind) say(line string) { fmt.Fprintln(k.tools.log, "    "+line) }

// A usageError is an error in how the command was called: exit code 2.
type usageError string

func (e usageError) Error() string { return string(e) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second one ends the process
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(exitCode(err, os.Stderr))
}

func exitCode(err error, stderr io.Writer) int {
	_, misused := errors.AsType[usageError](err)
	_, without := errors.AsType[noEngineError](err)
	_, notPulled := errors.AsType[notPulledError](err)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case misused:
		fmt.Fprintf(stderr, "kind: %v; see \"go run ./hack/kind help\"\n", err)
		return 2
	case without:
		fmt.Fprintf(stderr, "kind: %v\n", err)
		return 3
	case notPulled:
		fmt.Fprintf(stderr, "kind: %v\n", err)
		return choice.NotPulled
	default:
		fmt.Fprintf(stderr, "kind: %v\n", err)
		return 1
	}
}

func run(ctx context.Context, args []string, out, log io.Writer) error {
	name := "help"
	if len(args) > 0 {
		name, args = args[0], args[1:]
	}
	commands := map[string]struct {
		about string
		do    func(*kind, context.Context, []string) error
		takes bool // arguments
	}{
		"up":         {"Makes the cluster, unless it is there. The last line on standard output is its kubeconfig.", (*kind).up, false},
		"down":       {"Removes the cluster, the engine that was started for it, and what kubelets changed for the whole machine.", (*kind).down, false},
		"load":       {"Loads image archives, as docker save writes them, into every node.", (*kind).loadImages, true},
		"pull":       {"Has the engine pull the images that it does not have, and loads all of them into every node. Exit code 4: one is not here and cannot be pulled, and none is loaded.", (*kind).pull, true},
		"docker":     {"Runs the docker client against the engine of the cluster.", (*kind).docker, true},
		"logs":       {"Writes the logs of the nodes, and of what runs on them, into a folder.", (*kind).logs, true},
		"kubeconfig": {"Prints the path of the cluster's kubeconfig.", (*kind).printKubeconfig, false},
		"path":       {"Prints the folder with kubectl and kind.", (*kind).path, false},
		"clean":      {"Removes the cluster and the cache: binaries, the root file system, and the engine's images.", (*kind).clean, false},
	}
	command, found := commands[name]
	switch {
	case slices.Contains([]string{"help", "-h", "--help", "-help"}, name):
		fmt.Fprint(out, usage)
		return nil
	case !found:
		return usageError(fmt.Sprintf("no command %q", name))
	}
	k, err := newKind(out, log)
	if err != nil {
		return err
	}
	if name != "docker" {
		fs := flag.NewFlagSet(name, flag.ContinueOnError)
		fs.SetOutput(out)
		fs.Usage = func() {
			fmt.Fprintf(out, "%s\n\nFlags:\n", command.about)
			fs.PrintDefaults()
		}
		fs.StringVar(&k.name, "name", k.name, "name of the cluster")
		if name == "up" {
			fs.StringVar(&k.from, "node-image", k.from, "auto: kind's own if it is here or can be pulled, and could run here, else one built from source; official; built")
		}
		if name == "pull" {
			fs.DurationVar(&k.patience, "timeout", k.patience, "how long to wait for registries, all images together")
		}
		if err := fs.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return err
			}
			return usageError(fmt.Sprintf("%s: %v", name, err))
		}
		args = fs.Args()
	}
	if len(args) > 0 && !command.takes {
		return usageError(fmt.Sprintf("%s: unexpected argument %q", name, args[0]))
	}
	if !slices.Contains([]string{"auto", "official", "built"}, k.from) {
		return usageError(fmt.Sprintf("--node-image %q: must be auto, official or built", k.from))
	}
	turn, err := lock(filepath.Join(k.cache, "lock"), func() { k.say("waiting for another kind") })
	if err != nil {
		return err
	}
	defer turn.Close()
	if err := k.load(); err != nil {
		return err
	}
	return command.do(k, ctx, args)
}

func newKind(out, log io.Writer) (*kind, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("finding the user's cache directory: %w", err)
	}
	k := &kind{tools: &tools{log: log}, cache: filepath.Join(dir, "belay", "kind"), name: "belay", from: "auto", out: out, patience: pullTimeout}
	if err := os.MkdirAll(k.cache, 0o755); err != nil {
		return nil, err
	}
	if k.root, err = repository(); err != nil {
		return nil, err
	}
	return k, nil
}

// repository is the folder with go.mod of belay, at or above the present one.
func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		content, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(content), "module github.com/belay-dev/belay\n") {
			return dir, nil
		}
	}
	return "", errors.New("run this inside of belay's repository: the node image is made from it")
}

// nodes is what kind makes.
const nodes = `kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes:
- role: control-plane
- role: worker
- role: worker
`

// cgroupV1 lets kubelets run on hosts with cgroup v1, which since 1.35 they do only when asked to,
// and kind does not ask. The node image that is built here does it itself.
const cgroupV1 = `kubeadmConfigPatches:
- |
  kind: KubeletConfiguration
  failCgroupV1: false
`

// config is what kind makes on the engine's host.
func (k *kind) config(ctx context.Context) (string, error) {
	version, err := k.tools.output(ctx, call{name: "docker", args: []string{"info", "--format", "{{.CgroupVersion}}"}})
	if err != nil {
		return "", err
	}
	if version == "1" {
		return nodes + cgroupV1, nil
	}
	return nodes, nil
}

// machineWide are what a kubelet sets for all of the machine that it runs on.
var machineWide = []string{"kernel.panic", "kernel.panic_on_oops", "vm.overcommit_memory", "kernel.keys.root_maxkeys", "kernel.keys.root_maxbytes"}

func sysctl(name string) string { return "/proc/sys/" + strings.ReplaceAll(name, ".", "/") }

func (k *kind) kubeconfig() string { return filepath.Join(k.cache, "kubeconfig-"+k.name) }

func (k *kind) up(ctx context.Context, _ []string) error {
	start := time.Now()
	if err := k.engine(ctx); err != nil {
		return err
	}
	if there, err := k.there(ctx); err != nil {
		return err
	} else if there {
		if err := k.answers(ctx); err != nil {
			return fmt.Errorf("the cluster %q is there and does not answer; make kind-down removes it: %w", k.name, err)
		}
		fmt.Fprintf(k.tools.log, "==> the cluster is there, with node image %s\n", k.state.Image)
		fmt.Fprintln(k.out, k.kubeconfig())
		return nil
	}
	image, err := k.nodeImage(ctx)
	if err != nil {
		return err
	}
	if err := k.binDir(ctx); err != nil {
		return err
	}
	if err := k.tools.step("the cluster", func() error { return k.create(ctx, image) }); err != nil {
		return err
	}
	fmt.Fprintf(k.tools.log, "==> the cluster is up after %.0f s, with %s: export KUBECONFIG=%s\n", time.Since(start).Seconds(), k.made, k.kubeconfig())
	fmt.Fprintln(k.out, k.kubeconfig())
	return nil
}

// there reports whether the cluster is.
func (k *kind) there(ctx context.Context) (bool, error) {
	name, err := k.tools.output(ctx, call{name: "docker", args: []string{"ps", "--all", "--quiet", "--filter", "name=^" + k.name + "-control-plane$"}})
	if err != nil || name == "" {
		return false, err
	}
	return true, k.binDir(ctx)
}

// binDir puts kind and kubectl before PATH. With kind's own node image, nothing else is built.
func (k *kind) binDir(ctx context.Context) error {
	dir, err := k.binaryDir(ctx)
	if err != nil {
		return err
	}
	if !exists(dir) {
		dir = filepath.Join(k.cache, "kind-"+kindVersion)
		if !exists(filepath.Join(dir, "kind")) {
			if err := k.tools.step("kind "+kindVersion, func() error {
				return k.tools.run(ctx, call{name: "go", args: []string{"install", "sigs.k8s.io/kind@" + kindVersion}, dir: k.cache, env: []string{"CGO_ENABLED=0", "GOBIN=" + dir, "GOWORK=off"}})
			}); err != nil {
				return err
			}
		}
		if !exists(filepath.Join(dir, "kubectl")) {
			file, err := k.tools.output(ctx, call{name: "go", args: []string{"run", ".", "kubectl", "--version", kubernetesVersion}, dir: filepath.Join(k.root, "hack/controlplane")})
			if err != nil {
				return err
			}
			if err := os.Symlink(file, filepath.Join(dir, "kubectl")); err != nil {
				return err
			}
		}
	}
	if k.tools.path != "" {
		dir += ":" + k.tools.path
	}
	k.tools.path = dir
	return nil
}

func (k *kind) create(ctx context.Context, image string) error {
	if k.state.Sysctls == nil {
		k.state.Sysctls = map[string]string{}
		for _, name := range machineWide {
			if value, err := os.ReadFile(sysctl(name)); err == nil {
				k.state.Sysctls[name] = strings.TrimSpace(string(value))
			}
		}
	}
	k.state.Image = image
	if err := k.save(); err != nil {
		return err
	}
	config, err := k.config(ctx)
	if err != nil {
		return err
	}
	err = k.tools.run(ctx, call{
		name: "kind", loud: true, args: []string{"create", "cluster", "--name", k.name, "--config", "-", "--image", image, "--kubeconfig", k.kubeconfig(), "--wait", "180s", "--retain"},
		stdin: strings.NewReader(config),
	})
	if err := errors.Join(err, k.restore()); err != nil {
		return fmt.Errorf("%w\n\"go run ./hack/kind docker logs %s-control-plane\" says more", err, k.name)
	}
	if err := k.forwards(ctx); err != nil {
		return err
	}
	return k.tools.run(ctx, call{name: "kubectl", args: []string{"--kubeconfig", k.kubeconfig(), "--namespace", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=120s"}})
}

// restore puts back what kubelets have set for the whole machine.
func (k *kind) restore() error {
	var errs []error
	for name, value := range k.state.Sysctls {
		if now, err := os.ReadFile(sysctl(name)); err == nil && strings.TrimSpace(string(now)) != value {
			errs = append(errs, os.WriteFile(sysctl(name), []byte(value), 0o644))
		}
	}
	return errors.Join(errs...)
}

// forwards lets nodes reach each other where the host drops what it forwards by default. An
// engine that writes rules has one for its own networks.
func (k *kind) forwards(ctx context.Context) error {
	if k.state.Host == "" {
		return nil
	}
	name, err := k.network(ctx)
	if err != nil || name == "" {
		return err
	}
	bridged, err := os.ReadFile("/proc/sys/net/bridge/bridge-nf-call-iptables")
	if err != nil || strings.TrimSpace(string(bridged)) != "1" {
		return nil
	}
	policy, err := k.tools.output(ctx, call{name: "iptables", args: []string{"-S", "FORWARD"}})
	if err != nil || !strings.HasPrefix(policy, "-P FORWARD DROP") || strings.Contains(policy, name) {
		return err
	}
	return k.tools.run(ctx, call{name: "iptables", args: append([]string{"-I"}, forward(name)...)})
}

func forward(bridge string) []string {
	return []string{"FORWARD", "-i", bridge, "-o", bridge, "-j", "ACCEPT"}
}

// network returns the bridge of the nodes; empty if there is none.
func (k *kind) network(ctx context.Context) (string, error) {
	said, err := k.tools.output(ctx, call{name: "docker", args: []string{"network", "ls", "--no-trunc", "--filter", "name=^kind$", "--format", "{{.ID}}"}})
	if err != nil || len(said) < 12 {
		return "", err
	}
	return "br-" + said[:12], nil
}

func (k *kind) answers(ctx context.Context) error {
	return k.tools.run(ctx, call{name: "kubectl", args: []string{"--kubeconfig", k.kubeconfig(), "--request-timeout=10s", "get", "--raw", "/readyz"}})
}

func (k *kind) down(ctx context.Context, _ []string) error {
	reached := k.useEngine(ctx) || answers(ctx, k.tools) == nil
	if !reached && k.state.Host == "" {
		k.say("no container engine runs, so there is no cluster")
		return nil
	}
	if reached {
		if err := k.binDir(ctx); err != nil {
			return err
		}
		if err := k.tools.step("removing the cluster", func() error {
			return k.tools.run(ctx, call{name: "kind", args: []string{"delete", "cluster", "--name", k.name, "--kubeconfig", k.kubeconfig()}})
		}); err != nil {
			return err
		}
		if err := k.removeNetwork(ctx); err != nil {
			return err
		}
	}
	for _, name := range []string{k.kubeconfig(), k.kubeconfig() + ".lock"} {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := k.restore(); err != nil {
		return err
	}
	k.state.Sysctls, k.state.Image = nil, ""
	return errors.Join(k.stopEngine(ctx), k.save())
}

// removeNetwork removes kind's network if no other cluster has nodes there.
func (k *kind) removeNetwork(ctx context.Context) error {
	others, err := k.tools.output(ctx, call{name: "kind", args: []string{"get", "clusters", "--quiet"}})
	if err != nil || others != "" {
		return err
	}
	name, err := k.network(ctx)
	if err != nil || name == "" {
		return err
	}
	if _, err := k.tools.look("iptables"); err == nil && os.Geteuid() == 0 {
		if k.tools.run(ctx, call{name: "iptables", args: append([]string{"-C"}, forward(name)...)}) == nil {
			if err := k.tools.run(ctx, call{name: "iptables", args: append([]string{"-D"}, forward(name)...)}); err != nil {
				return err
			}
		}
	}
	return k.tools.run(ctx, call{name: "docker", args: []string{"network", "rm", "kind"}})
}

func (k *kind) loadImages(ctx context.Context, archives []string) error {
	if len(archives) == 0 {
		return usageError("load: name at least one archive")
	}
	k.useEngine(ctx)
	if err := k.binDir(ctx); err != nil {
		return err
	}
	for _, name := range archives {
		if err := k.tools.step("loading "+name, func() error {
			return k.tools.run(ctx, call{name: "kind", args: []string{"load", "image-archive", "--name", k.name, name}})
		}); err != nil {
			return err
		}
	}
	return nil
}

func (k *kind) logs(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return usageError("logs: name one folder")
	}
	k.useEngine(ctx)
	if err := k.binDir(ctx); err != nil {
		return err
	}
	return k.tools.run(ctx, call{name: "kind", args: []string{"export", "logs", "--name", k.name, args[0]}})
}

func (k *kind) docker(ctx context.Context, args []string) error {
	k.useEngine(ctx)
	cmd, err := k.tools.command(ctx, call{name: "docker", args: args, stdin: os.Stdin})
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = k.out, k.tools.log
	return cmd.Run()
}

func (k *kind) path(ctx context.Context, _ []string) error {
	if err := k.binDir(ctx); err != nil {
		return err
	}
	dir, _, _ := strings.Cut(k.tools.path, ":")
	fmt.Fprintln(k.out, dir)
	return nil
}

func (k *kind) printKubeconfig(context.Context, []string) error {
	if !exists(k.kubeconfig()) {
		return fmt.Errorf("there is no cluster %q; make kind-up makes one", k.name)
	}
	fmt.Fprintln(k.out, k.kubeconfig())
	return nil
}

func (k *kind) clean(ctx context.Context, _ []string) error {
	if err := k.down(ctx, nil); err != nil {
		return err
	}
	return os.RemoveAll(k.cache)
}
