package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

const usage = `controlplane builds and runs a real Kubernetes control plane with nothing but Go.

Usage: controlplane COMMAND [flags]

  build      build the servers into the cache and print where they are
  kubectl    build kubectl into the cache and print where it is
  node       build all that a node runs into the cache and print where it is
  up         build when needed, start, print one line of JSON, run until stopped
  versions   list the versions that can be had and where the cache is
  clean      remove cached binaries that the present pins do not use
  help       this text; "controlplane COMMAND --help" explains the flags

A first build compiles Kubernetes, which takes minutes. Later ones take none.
kubectl is built by its own command only.

Examples:

  # a control plane to try things on; Ctrl-C stops it and removes its data
  controlplane up --kubeconfig /tmp/plane.kubeconfig
  $(controlplane kubectl) --kubeconfig /tmp/plane.kubeconfig get namespaces

  # another version; 1.34 and v1.34.0 mean the same
  controlplane up --version 1.34
  BELAY_K8S_VERSION=1.34 controlplane up

  # owner references need permission, controllers share one user, requests are logged
  controlplane up --enforce-owner-references --shared-controller-identity --audit

  # flags of kube-apiserver replace the defaults of the same name
  controlplane up --apiserver-flag=--request-timeout=10s --apiserver-flag=--v=4

  # two kube-apiservers on one etcd, and a front that spreads connections
  controlplane up --apiservers=2

  # for programs: commands on stdin, answers on stdout, ends with stdin
  controlplane up --until-eof

Environment:

  BELAY_K8S_VERSION   the version when --version is not given
  KUBEBUILDER_ASSETS  directory with etcd and kube-apiserver (and, when they are
                      there, kube-controller-manager and kubectl) to use instead
                      of building
`

// A usageError is an error in how the command was called: exit code 2.
type usageError string

func (e usageError) Error() string { return string(e) }

func main() {
	os.Exit(exitCode(run(os.Args[1:]), os.Stderr))
}

func exitCode(err error, stderr io.Writer) int {
	_, misused := errors.AsType[usageError](err)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case misused:
		fmt.Fprintf(stderr, "controlplane: %v; see \"controlplane help\"\n", err)
		return 2
	default:
		fmt.Fprintf(stderr, "controlplane: %v\n", err)
		return 1
	}
}

func run(args []string) error {
	name, args := "help", args
	if len(args) > 0 {
		name, args = args[0], args[1:]
	}
	// The hidden commands come first: they must not catch signals.
	switch name {
	case "component":
		return becomeComponent(args)
	case "janitor":
		return runJanitor(args)
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	// After the first signal the defaults are back: a second Ctrl-C ends the
	// launcher at once and leaves the rest to the janitor.
	context.AfterFunc(ctx, stop)

	switch name {
	case "build":
		return runBuild(ctx, args)
	case "kubectl":
		return runKubectl(ctx, args)
	case "node":
		return runNode(ctx, args)
	case "up":
		return runUp(ctx, args)
	case "versions":
		return runVersions(ctx, args)
	case "clean":
		return runClean(ctx, args)
	case "help", "-h", "--help", "-help":
		fmt.Print(usage)
		return nil
	}
	return usageError(fmt.Sprintf("no command %q", name))
}

// newFlags returns a flag set that explains itself with about on --help.
func newFlags(name, about string) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.Usage = func() {
		fmt.Fprintf(fs.Output(), "%s\n\nFlags:\n", strings.TrimSpace(about))
		fs.PrintDefaults()
	}
	return fs
}

// parse parses flags of a command that takes nothing but flags.
func parse(fs *flag.FlagSet, args []string) error {
	for _, a := range args {
		if a == "-h" || a == "--help" || a == "-help" {
			fs.SetOutput(os.Stdout)
		}
	}
	if fs.Output() != os.Stdout {
		usage := fs.Usage
		defer func() { fs.Usage = usage }()
		fs.Usage = func() {}
		fs.SetOutput(io.Discard) // the error is reported once, by exitCode
	}
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return err
	case err != nil:
		return usageError(fmt.Sprintf("%s: %v", fs.Name(), err))
	case fs.NArg() > 0:
		return usageError(fmt.Sprintf("%s: unexpected argument %q", fs.Name(), fs.Arg(0)))
	}
	return nil
}

func versionFlag(fs *flag.FlagSet) *string {
	return fs.String("version", os.Getenv("BELAY_K8S_VERSION"),
		"Kubernetes version, such as v1.37.2 or 1.37 (default the newest that can be had)")
}

func runBuild(ctx context.Context, args []string) error {
	fs := newFlags("build", `
Builds etcd, kube-apiserver and kube-controller-manager into the cache, unless
they are there, and prints the paths of the three. Processes that build at the
same time wait for each other and build once.`)
	version := versionFlag(fs)
	if err := parse(fs, args); err != nil {
		return err
	}
	b, err := newBuilder(os.Stderr)
	if err != nil {
		return err
	}
	bins, err := b.binaries(ctx, *version)
	if err != nil {
		return err
	}
	fmt.Printf("%s\n%s\n%s\n", bins.etcd, bins.apiserver, bins.controllerManager)
	return nil
}

func runKubectl(ctx context.Context, args []string) error {
	fs := newFlags("kubectl", `
Builds kubectl into the cache, unless it is there, and prints its path.`)
	version := versionFlag(fs)
	if err := parse(fs, args); err != nil {
		return err
	}
	b, err := newBuilder(os.Stderr)
	if err != nil {
		return err
	}
	file, err := b.kubectl(ctx, *version)
	if err != nil {
		return err
	}
	fmt.Println(file)
	return nil
}

func runVersions(ctx context.Context, args []string) error {
	fs := newFlags("versions", "Lists the versions that can be had and where the cache is.")
	if err := parse(fs, args); err != nil {
		return err
	}
	b, err := newBuilder(os.Stderr)
	if err != nil {
		return err
	}
	targets, err := pinnedTargets()
	if err != nil {
		return err
	}
	for _, t := range targets {
		dir, err := b.dir(ctx, t)
		if err != nil {
			return err
		}
		state := "not built (" + t.usual + ")"
		if exists(dir) {
			state = "built in " + dir
		}
		fmt.Printf("%-16s %s\n", t.name, state)
	}
	fmt.Printf("\nThe default is %s. The cache is %s.\n", pinnedVersions("kube")[0], b.cache)
	if assets := os.Getenv("KUBEBUILDER_ASSETS"); assets != "" {
		fmt.Printf("KUBEBUILDER_ASSETS is set: binaries come from %s first.\n", assets)
	}
	return nil
}

func runClean(ctx context.Context, args []string) error {
	fs := newFlags("clean", `
Removes cached binaries that the present pins and Go version do not use. A
control plane that runs is left alone, but can not restart a removed binary.`)
	all := fs.Bool("all", false, "remove the binaries in use as well")
	if err := parse(fs, args); err != nil {
		return err
	}
	b, err := newBuilder(os.Stderr)
	if err != nil {
		return err
	}
	return b.clean(ctx, *all)
}
