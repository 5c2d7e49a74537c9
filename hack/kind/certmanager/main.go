package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	logf "github.com/cert-manager/cert-manager/pkg/logs"
	"github.com/cert-manager/cert-manager/pkg/util"
	logsapi "k8s.io/component-base/logs/api/v1"
	ctrl "sigs.k8s.io/controller-runtime"
)

const usage = `certmanager runs cert-manager's own controllers where its images cannot be pulled,
and prints what installs these images where they can.

Usage: certmanager COMMAND [flags]

  controller   issue and renew certificates (selfSigned and ca issuers)
  cainjector   put CAs into webhook configurations
  manifests    print what installs both, for "kubectl apply --server-side -f -"
  images       print the names of the release's images, of the controller and of cainjector
  version      print the version of cert-manager
  help         this text; "certmanager COMMAND --help" explains the flags

Examples:

  # into a cluster whose nodes have the image
  certmanager manifests | kubectl apply --server-side -f -

  # the release, into a cluster whose nodes have or can pull its images
  certmanager manifests --released | kubectl apply --server-side -f -

  # beside a cluster, from a terminal each
  certmanager controller --kubeconfig FILE
  certmanager cainjector --kubeconfig FILE
`

// module is what is run, and where its CustomResourceDefinitions are.
const module = "github.com/cert-manager/cert-manager"

// A usageError is an error in how the command was called: exit code 2.
type usageError string

func (e usageError) Error() string { return string(e) }

func main() {
	err := run(os.Args[1:], os.Stdout)
	_, misused := errors.AsType[usageError](err)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case misused:
		fmt.Fprintf(os.Stderr, "certmanager: %v; see \"certmanager help\"\n", err)
		os.Exit(2)
	default:
		fmt.Fprintf(os.Stderr, "certmanager: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string, stdout io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	name := "help"
	if len(args) > 0 {
		name, args = args[0], args[1:]
	}
	switch name {
	case "controller":
		var o controllerOptions
		fs := newFlags(name, stdout)
		fs.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` of the cluster to work on (default the one this runs in)")
		fs.StringVar(&o.namespace, "cluster-resource-namespace", namespace, "`namespace` of the Secrets of ClusterIssuers")
		fs.StringVar(&o.health, "health-address", "", "answer /livez on this `host:port`")
		verbosity := verbosityFlag(fs)
		if err := parse(fs, args); err != nil {
			return err
		}
		ctx, err := withLogs(ctx, name, *verbosity)
		if err != nil {
			return err
		}
		return runController(ctx, o)
	case "cainjector":
		var o cainjectorOptions
		fs := newFlags(name, stdout)
		fs.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` of the cluster to work on (default the one this runs in)")
		fs.StringVar(&o.health, "health-address", "", "answer /healthz on this `host:port`")
		verbosity := verbosityFlag(fs)
		if err := parse(fs, args); err != nil {
			return err
		}
		ctx, err := withLogs(ctx, name, *verbosity)
		if err != nil {
			return err
		}
		return runCainjector(ctx, o)
	case "manifests":
		o := manifestOptions{image: defaultImage(moduleVersion())}
		fs := newFlags(name, stdout)
		fs.StringVar(&o.image, "image", o.image, "`name` of the image with this binary")
		fs.BoolVar(&o.released, "released", false, "the release's own images and commands, in place of --image")
		moduleFlag(fs, &o.module)
		if err := parse(fs, args); err != nil {
			return err
		}
		if o.released && o.image != defaultImage(moduleVersion()) {
			return usageError("manifests: --released names its images itself; leave out --image")
		}
		return writeManifests(ctx, stdout, o)
	case "images":
		var folder string
		fs := newFlags(name, stdout)
		moduleFlag(fs, &folder)
		if err := parse(fs, args); err != nil {
			return err
		}
		folder, err := folderOr(ctx, folder)
		if err != nil {
			return err
		}
		named, err := releasedImages(folder, moduleVersion())
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "%s\n%s\n", named.controller, named.cainjector)
		return nil
	case "version":
		fmt.Fprintln(stdout, moduleVersion())
		return nil
	case "help", "-h", "--help", "-help":
		fmt.Fprint(stdout, usage)
		return nil
	}
	return usageError(fmt.Sprintf("no command %q", name))
}

func newFlags(name string, stdout io.Writer) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard) // an error is reported once, by main
	fs.Usage = func() {
		fs.SetOutput(stdout)
		fmt.Fprintf(stdout, "Usage: certmanager %s [flags]\n\nFlags:\n", name)
		fs.PrintDefaults()
		fs.SetOutput(io.Discard)
	}
	return fs
}

func moduleFlag(fs *flag.FlagSet, folder *string) {
	fs.StringVar(folder, "module", "", "`folder` of the module "+module+" (default the go command's module cache)")
}

// verbosityFlag defaults to what the release's chart says.
func verbosityFlag(fs *flag.FlagSet) *uint {
	return fs.Uint("v", 2, "how `much` to log: 0 failures, 2 what is done, 4 why")
}

// parse parses flags of a command that takes nothing but flags.
func parse(fs *flag.FlagSet, args []string) error {
	usage := fs.Usage
	fs.Usage = func() {}
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		usage()
		return err
	case err != nil:
		return usageError(fmt.Sprintf("%s: %v", fs.Name(), err))
	case fs.NArg() > 0:
		return usageError(fmt.Sprintf("%s: unexpected argument %q", fs.Name(), fs.Arg(0)))
	}
	return nil
}

// withLogs has cert-manager and controller-runtime log to standard error, and
// tell the API server who they are.
func withLogs(ctx context.Context, component string, verbosity uint) (context.Context, error) {
	util.AppVersion = moduleVersion()
	logf.InitLogs()
	config := logsapi.NewLoggingConfiguration()
	config.Verbosity = logsapi.VerbosityLevel(verbosity)
	if err := logf.ValidateAndApply(config); err != nil {
		return nil, err
	}
	ctrl.SetLogger(logf.Log)
	return logf.NewContext(ctx, logf.Log, component), nil
}

// moduleVersion is the version of cert-manager that was linked.
func moduleVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == module {
				return dep.Version
			}
		}
	}
	return "unknown"
}
