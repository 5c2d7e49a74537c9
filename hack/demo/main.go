// Command demo shows on a real control plane what belay does: it replays the exact
// calls of OTF's kubernetes executor, with the failures that happen in between,
// side by side in a namespace without belay and in one with it, deletes the Jobs,
// and prints what the garbage collector left.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/integration/plane"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

const usage = `Usage: make demo [DEMO_FLAGS="--keep --deadline=20s"]

Builds what is missing (Kubernetes itself: about 7 minutes, once), starts etcd,
kube-apiserver, kube-controller-manager, belay-webhook and belay-controller as
processes of their own on the loopback interface, applies manifests/presets/otf,
and replays what OTF does. The exit code is 0 only if every line of the table is as
promised.

Flags:
`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

type options struct {
	keep     bool
	version  string
	deadline time.Duration
	timeout  time.Duration
}

func run(args []string, out, progress io.Writer) int {
	var o options
	fs := flag.NewFlagSet("demo", flag.ContinueOnError)
	fs.SetOutput(progress)
	fs.Usage = func() {
		_, _ = fmt.Fprint(progress, usage)
		fs.PrintDefaults()
	}
	fs.BoolVar(&o.keep, "keep", false, "leave everything up at the end, print the KUBECONFIG, and wait for Ctrl-C")
	fs.StringVar(&o.version, "version", "", "Kubernetes version: 1.37 (the default) or 1.34")
	fs.DurationVar(&o.deadline, "deadline", 10*time.Second, "how long a Secret waits for a Job that never comes; the preset has 5m")
	fs.DurationVar(&o.timeout, "timeout", 30*time.Minute, "give up after this time, a first build of Kubernetes included")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if fs.NArg() > 0 || o.deadline < 5*time.Second || o.deadline > time.Hour {
		_, _ = fmt.Fprintln(progress, "demo: no arguments are taken, and --deadline is from 5s to 1h; see --help")
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := demo(ctx, o, out, progress)
	switch {
	case err != nil && ctx.Err() != nil:
		_, _ = fmt.Fprintln(progress, "demo: interrupted")
		return 1
	case err != nil:
		_, _ = fmt.Fprintf(progress, "demo: %v\n", err)
		return 1
	case !ok:
		return 1
	}
	return 0
}

func demo(ctx context.Context, o options, out, progress io.Writer) (ok bool, err error) {
	all := ctx
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(progress, "==> "+format+"\n", args...) }

	say("starting a control plane, belay-webhook and belay-controller")
	s, err := stack.Start(ctx, stack.Options{Plane: plane.Options{Version: o.version, Log: progress}, Presets: []string{"otf"}})
	if err != nil {
		return false, err
	}
	defer func() {
		say("stopping")
		err = errors.Join(err, s.Stop())
	}()
	if err := s.WaitPolicy(ctx, "otf"); err != nil {
		return false, err
	}
	if err := shorten(ctx, s, o.deadline); err != nil {
		return false, err
	}
	say("Kubernetes %s is up, policy otf is registered (deadline %s instead of 5m, so that you need not wait)", s.Plane.Version(), o.deadline)

	st, err := newStory(ctx, s, o.deadline, say)
	if err != nil {
		return false, err
	}
	rows, err := st.tell(ctx)
	if err != nil {
		return false, err
	}
	ok = table(out, rows, s.Plane.Version())
	if o.keep {
		if err := shorten(ctx, s, presetDeadline); err != nil {
			return false, err
		}
		_, _ = fmt.Fprintf(out, kept, st.without, st.with, presetDeadline, s.Dir, s.Plane.Kubeconfig(), st.with)
		<-all.Done()
	}
	return ok, nil
}

// presetDeadline is the deadline of manifests/presets/otf.
const presetDeadline = 5 * time.Minute

// kept is what is printed when everything stays up.
const kept = `
Everything is still up. Namespaces: %s (without belay), %s (with belay).
The policy's deadline is %s again; kube-apiserver runs with OwnerReferencesPermissionEnforcement
since the last scenario. Logs are in %s. Try, with kubectl:

  export KUBECONFIG=%s
  kubectl config set-context --current --namespace=%s
  kubectl create -f - <<'EOF'
  {"apiVersion":"v1","kind":"Secret","metadata":{"name":"run-1","labels":
    {"app.kubernetes.io/name":"otf-job","app.kubernetes.io/part-of":"otf"}}}
  EOF
  kubectl get anchors                        # waits for its owner
  kubectl delete anchors --all               # the guard refuses
  kubectl create job run-1 --image=busybox   # the Anchor is Bound
  kubectl delete job run-1                   # Anchor and Secret go

Ctrl-C ends it.
`

// shorten gives the preset's policy a deadline that a spectator can wait for.
func shorten(ctx context.Context, s *stack.Stack, d time.Duration) error {
	p := &v1alpha1.OwnerPolicy{}
	p.Name = "otf"
	patch := fmt.Sprintf(`{"spec":{"deadline":%q}}`, d)
	if err := s.Client.Patch(ctx, p, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		return fmt.Errorf("shortening the deadline: %w", err)
	}
	return s.WaitPolicy(ctx, "otf")
}
