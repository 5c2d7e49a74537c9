// Command demo shows on a real control plane what belay does: it replays the exact
// calls of OTF, Felis, Spur and OpenSandbox, with the failures that happen in between,
// side by side in a namespace without belay and in one with it, and prints what came of
// them. Of OTF's token Secrets that is what the garbage collector left when the Jobs were
// deleted, of Felis' restores and Spur's launches what runs and what they believe, of
// OpenSandbox' failed sandboxes whether they recover, and on which Pods; and last what a
// Pod's sidecar says of its main container.
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
felis-restore-old, felis-restore, spur and opensandbox (with its patch of the CRD), and
replays what OTF, Felis, Spur and OpenSandbox do; then it runs belay-sidecar processes for
Pods, each with a token of its own. There is no kubelet: the demo says when a Pod is ready,
has crashed, has succeeded or has failed.
The exit code is 0 only if every line of every table is as promised.

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
	fs.DurationVar(&o.deadline, "deadline", 10*time.Second, "how long a Secret of OTF waits for a Job that never comes; the preset has 5m")
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
	s, err := stack.Start(ctx, stack.Options{
		Plane: plane.Options{Version: o.version, Log: progress}, Presets: []string{"otf"},
		// The API server is restarted in the middle: the leader may lose its lease then, and
		// ends, as it should.
		Controllers: 2,
	})
	if err != nil {
		return false, err
	}
	defer func() {
		say("stopping")
		err = errors.Join(err, s.Stop())
	}()
	if err := inForce(ctx, s, owners("otf"), names("otf")); err != nil {
		return false, err
	}
	if err := shorten(ctx, s, o.deadline); err != nil {
		return false, err
	}
	say("Kubernetes %s is up, preset otf is in force (deadline %s instead of 5m, so that you need not wait)", s.Plane.Version(), o.deadline)

	tables, where, err := tell(ctx, s, o.deadline, say)
	if all.Err() != nil {
		return false, all.Err()
	}
	ok = printAll(out, s.Plane.Version(), tables)
	if err != nil {
		return false, err
	}
	if o.keep {
		if err := shorten(ctx, s, presetDeadline); err != nil {
			return false, err
		}
		where.print(out, s)
		<-all.Done()
	}
	return ok, nil
}

// namespaces are those of the stories.
type namespaces struct{ otf, felis, spur, sandbox, witness pair }

// tell tells all stories, and returns the tables of those that came to their end.
// OTF's comes last, since it restarts kube-apiserver with a plug-in, and first in
// print.
func tell(ctx context.Context, s *stack.Stack, deadline time.Duration, say narrator) (tables []table, n namespaces, err error) {
	if tables, n.felis, err = tellFelis(ctx, s, say); err != nil {
		return tables, n, fmt.Errorf("telling Felis' story: %w", err)
	}
	spur, p, err := tellSpur(ctx, s, say)
	if err != nil {
		return tables, n, fmt.Errorf("telling Spur's story: %w", err)
	}
	tables, n.spur = append(tables, spur), p
	sandbox, p, err := tellOpenSandbox(ctx, s, say)
	if err != nil {
		return tables, n, fmt.Errorf("telling OpenSandbox' story: %w", err)
	}
	tables, n.sandbox = append(tables, sandbox), p
	witness, p, err := tellWitness(ctx, s, say)
	if err != nil {
		return tables, n, fmt.Errorf("telling of the witness: %w", err)
	}
	tables, n.witness = append(tables, witness), p
	otf, p, err := tellOTF(ctx, s, deadline, say)
	if err != nil {
		return tables, n, fmt.Errorf("telling OTF's story: %w", err)
	}
	n.otf = p
	return append([]table{otf}, tables...), n, nil
}

// presetDeadline is the deadline of manifests/presets/otf.
const presetDeadline = 5 * time.Minute

// kept is what is printed when everything stays up.
const kept = `
Everything is still up. Namespaces without belay: %s, %s, %s, %s, %s;
with belay: %s, %s, %s, %s, %s.
The deadline of policy otf is %s again, policy felis-restore is that of preset felis-restore, and
kube-apiserver runs with OwnerReferencesPermissionEnforcement since OTF's last scenario. Logs are in
%s. Try, with kubectl:

export KUBECONFIG=%s

# OTF: a Secret that is owned before its owner exists
kubectl config set-context --current --namespace=%s
kubectl create -f - <<'EOF'
{"apiVersion":"v1","kind":"Secret","metadata":{"name":"run-1","labels":
  {"app.kubernetes.io/name":"otf-job","app.kubernetes.io/part-of":"otf"}}}
EOF
kubectl get anchors                        # waits for its owner
kubectl delete anchors --all               # the guard refuses
kubectl create job run-1 --image=busybox   # the Anchor is Bound
kubectl delete job run-1                   # Anchor and Secret go

# Felis: a Job that is answered from the Job that has its name
kubectl config set-context --current --namespace=%s
restore() { kubectl create -f - <<EOF
{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"restore-world","labels":{"app.kubernetes.io/managed-by":"felis-restore",
  "felis.lolicon.best/server":"world"},"annotations":{"felis.lolicon.best/backup-ref":"$1"}},
  "spec":{"backoffLimit":0,"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"restore","image":"busybox"}]}}}}
EOF
}
restore monday                             # runs
restore monday                             # refused: is running this work
restore tuesday                            # refused: is running other work
kubectl patch --subresource=status --type=merge -p '{"status":{"phase":"Failed"}}' \
  $(kubectl get pods -l batch.kubernetes.io/job-name=restore-world -o name)
kubectl wait --for=condition=Failed job/restore-world
restore monday                             # the failed one is replaced, and it runs

# Spur: Pods with an owner and a mark, which Spur gives them neither of
kubectl config set-context --current --namespace=%s
kubectl get pods -o custom-columns='POD:.metadata.name,PHASE:.status.phase,OWNER:.metadata.ownerReferences[*].name,WORK:.metadata.annotations.belay\.dev/work'
kubectl delete spurjobs --all              # the Service goes, Pods are being deleted: those that had not ended wait for a kubelet

# OpenSandbox: what failed recovers on the very Pods that failed, and in no other way
kubectl config set-context --current --namespace=%s
kubectl get bsbx -o custom-columns='SANDBOX:.metadata.name,PHASE:.status.phase,FAILED PODS:.status.failedPodUIDs'
is() { kubectl patch $1 --subresource=status --type=merge -p '{"status":{"phase":"'$2'"}}'; }
is bsbx/replaced Succeed                   # refused: PodReplaced
is pod/transient-0 Failed                  # as a kubelet would say
is bsbx/transient Failed                   # as the controller would: belay records the Pod's UID
is bsbx/transient Succeed                  # refused: PodNotRunning
is pod/transient-0 Running
kubectl wait --for=jsonpath='{.status.phase}'=Succeed bsbx/transient   # it was the same Pod

# A witness: the sidecar that a Pod gets for an annotation
kubectl config set-context --current --namespace=%s
kubectl run witnessed --image=busybox --annotations=belay.dev/sidecar=inject --port=8080
kubectl get pod witnessed -o jsonpath='{.spec.initContainers[*].name} {.spec.volumes[?(@.name=="belay-sidecar")]}{"\n"}'
kubectl get configmap belay-ca             # the CA, which the sidecar's volume mounts

Ctrl-C ends it.
`

// print says what can be tried.
func (n namespaces) print(out io.Writer, s *stack.Stack) {
	_, _ = fmt.Fprintf(out, kept, n.otf.without, n.felis.without, n.spur.without, n.sandbox.without, n.witness.without,
		n.otf.with, n.felis.with, n.spur.with, n.sandbox.with, n.witness.with,
		presetDeadline, s.Dir, s.Plane.Kubeconfig(), n.otf.with, n.felis.with, n.spur.with, n.sandbox.with, n.witness.with)
}

// shorten gives the preset's policy a deadline that a spectator can wait for.
func shorten(ctx context.Context, s *stack.Stack, d time.Duration) error {
	p := &v1alpha1.OwnerPolicy{}
	p.Name = "otf"
	patch := fmt.Sprintf(`{"spec":{"deadline":%q}}`, d)
	if err := s.Client.Patch(ctx, p, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		return fmt.Errorf("shortening the deadline: %w", err)
	}
	return inForce(ctx, s, owners("otf"))
}
