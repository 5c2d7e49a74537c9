package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

const (
	// What goes on while something happens to the cluster.
	createsPerSecond = 50
	writesPerSecond  = 10
	// callBound is a client's patience. The API server gives up on belay before.
	callBound = 30 * time.Second
)

// What came of a call.
const (
	fine = iota
	// away: the API server did not answer, so nobody asked belay anything.
	away
	// timedOut: belay was asked, and did not answer in time.
	timedOut
	// cut: the connection to belay broke, or could not be made.
	cut
	// lost: belay was asked, or should have been, and the call failed for another reason.
	lost
)

// guarded is the label of the load's ConfigMaps, and the name of the policies about them.
const guarded = "e2e-load"

// guard registers policies whose stance is Fail: each create is named and owned by belay, or
// refused.
func guard(ctx context.Context, t *testing.T) {
	t.Helper()
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: guarded, Labels: map[string]string{
			"rbac.belay.dev/aggregate-to-owner-reader": "true", "rbac.belay.dev/aggregate-to-replacer": "true",
		}},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "watch", "delete"}}},
	}
	named := builders.MakeNamePolicy(guarded).Spec(func(s *v1alpha1.NamePolicySpec) {
		s.Kinds = []v1alpha1.Kind{{APIVersion: "v1", Kind: "ConfigMap"}}
		s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{guarded: "true"}}
		s.Identity = []string{`object.data["work"]`}
		s.WhenFinished = v1alpha1.FinishedCoalesce
		s.WaitForPods = new(false)
		s.FailurePolicy, s.TimeoutSeconds = v1alpha1.FailureFail, 3
	}).Obj()
	owned := builders.MakeOwnerPolicy(guarded).Spec(func(s *v1alpha1.OwnerPolicySpec) {
		s.Dependents = []v1alpha1.Kind{{APIVersion: "v1", Kind: "ConfigMap"}}
		s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{guarded: "true"}}
		s.Owner.APIVersion, s.Owner.Kind, s.Owner.Name = "v1", "ConfigMap", `"the-owner"`
		s.FailurePolicy, s.TimeoutSeconds = v1alpha1.FailureFail, 3
	}).Obj()
	for _, o := range []client.Object{role, named, owned} {
		o.SetUID("")
		o.SetGeneration(0)
		if err := c.Client.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
		stack.Cleanup(t, func(ctx context.Context) {
			if err := c.Client.Delete(ctx, o); err != nil {
				t.Error(err)
			}
		})
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	if err := errors.Join(c.WaitNamePolicy(ctx, guarded), c.WaitPolicy(ctx, guarded)); err != nil {
		t.Fatal(err)
	}
}

// guardedMap is a ConfigMap that the policies of guard are about; its work is its name.
func guardedMap(ns, name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{guarded: "true"}},
		Data:       map[string]string{"work": name},
	}
}

// load creates and writes all the time, and notes what came of it by phase.
type load struct {
	ns      string
	client  client.Client
	writes  client.Client
	stop    context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	phase  string
	phases []string
	calls  map[string][]outcome
}

// outcome is one call.
type outcome struct {
	took time.Duration
	what int
	err  error
}

// startLoad begins in a namespace, after the calls work.
func startLoad(ctx context.Context, t *testing.T, ns string) *load {
	t.Helper()
	cfg := rest.CopyConfig(c.cfg)
	cfg.QPS, cfg.Timeout = -1, callBound
	cl, err := client.New(cfg, client.Options{Scheme: c.Client.Scheme(), Mapper: c.Client.RESTMapper()})
	if err != nil {
		t.Fatal(err)
	}
	writes, err := opensandbox.NewClient(cfg, opensandbox.New, opensandbox.Names{}.GVK(opensandbox.Version))
	if err != nil {
		t.Fatal(err)
	}
	l := &load{ns: ns, client: cl, writes: writes, calls: map[string][]outcome{}}
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "the-owner"}}
	if err := c.Client.Create(ctx, owner); err != nil {
		t.Fatal(err)
	}
	for i := range writesPerSecond {
		// Its Pods are nobody's business here.
		b := opensandbox.Sandbox(ns, fmt.Sprintf("written-%d", i), 0)
		if err := writes.Create(ctx, b); err != nil {
			t.Fatal(err)
		}
	}
	if o := l.create(ctx, -1); o.what != fine {
		t.Fatal(o.err)
	}
	if o := l.write(ctx, -1); o.what != fine {
		t.Fatal(o.err)
	}
	l.enter("before")
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stop = stop
	l.running.Go(func() { l.run(running, time.Second/createsPerSecond, l.create) })
	l.running.Go(func() { l.run(running, time.Second/writesPerSecond, l.write) })
	t.Cleanup(l.end)
	return l
}

// run calls at a rate, whatever becomes of the calls under way.
func (l *load) run(ctx context.Context, every time.Duration, call func(context.Context, int) outcome) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var calls sync.WaitGroup
	defer calls.Wait()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		l.mu.Lock()
		phase := l.phase // that in which it began
		l.mu.Unlock()
		calls.Go(func() {
			o := call(context.WithoutCancel(ctx), n)
			l.mu.Lock()
			defer l.mu.Unlock()
			l.calls[phase] = append(l.calls[phase], o)
		})
	}
}

// create creates a ConfigMap, which belay must have named and owned.
func (l *load) create(ctx context.Context, n int) outcome {
	name := fmt.Sprintf("load-%06d", n)
	m := guardedMap(l.ns, name)
	start := time.Now()
	err := l.client.Create(ctx, m)
	if err == nil && (len(m.OwnerReferences) != 1 || m.Annotations[v1alpha1.WorkAnnotation] == "") {
		err = fmt.Errorf("ConfigMap %s was stored without belay: owners %v, annotations %v", name, m.OwnerReferences, m.Annotations)
	}
	// An API server that goes away after it has stored something has done what it was asked.
	if apierrors.IsAlreadyExists(err) {
		err = nil
	}
	return judge(start, err)
}

// write writes a status that RecoveryPolicy opensandbox guards.
func (l *load) write(ctx context.Context, n int) outcome {
	b := &opensandbox.BatchSandbox{ObjectMeta: metav1.ObjectMeta{Namespace: l.ns, Name: fmt.Sprintf("written-%d", max(n, 0)%writesPerSecond)}}
	phase := []string{opensandbox.PhasePending, opensandbox.PhaseSucceed}[max(n, 0)/writesPerSecond%2]
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"status":{"phase":%q,"replicas":0,"allocated":0,"ready":0,"taskFailed":0,"taskPending":0,"taskRunning":0,"taskSucceed":0,"taskUnknown":0}}`, phase))
	start := time.Now()
	return judge(start, l.writes.Status().Patch(ctx, b, patch))
}

func judge(start time.Time, err error) outcome {
	o := outcome{took: time.Since(start), err: err}
	var status apierrors.APIStatus
	switch {
	case err == nil:
	case !errors.As(err, &status) && (utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) || utilnet.IsProbableEOF(err) || isNet(err)):
		o.what = away
	case strings.Contains(err.Error(), "failed calling webhook") && (strings.Contains(err.Error(), "context deadline exceeded") || strings.Contains(err.Error(), "Timeout exceeded")):
		o.what = timedOut
	case strings.Contains(err.Error(), "failed calling webhook") && broken.MatchString(err.Error()):
		o.what = cut
	// Its own shutdown, and its start, before it knows roles, service accounts and kinds.
	case apierrors.IsServiceUnavailable(err), apierrors.IsForbidden(err) && strings.Contains(err.Error(), "kubernetes-admin"), apierrors.IsUnauthorized(err), strings.Contains(err.Error(), "apiserver is shutting down"), strings.Contains(err.Error(), "not yet ready to handle request"):
		o.what = away
	default:
		o.what = lost
	}
	return o
}

var broken = regexp.MustCompile(`EOF|connection refused|connection reset|broken pipe|client connection lost|server closed idle connection|no route to host`)

func isNet(err error) bool {
	_, ok := errors.AsType[net.Error](err)
	return ok
}

// enter begins a phase.
func (l *load) enter(phase string) {
	progress("phase: %s", phase)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.phase = phase
	if !slices.Contains(l.phases, phase) {
		l.phases = append(l.phases, phase)
	}
}

func (l *load) end() {
	l.stop()
	l.running.Wait()
}

// during plays something in a phase of its own, which goes on for a moment after.
func (l *load) during(ctx context.Context, t *testing.T, phase string, do func() error) {
	t.Helper()
	l.enter(phase)
	start := time.Now()
	if err := do(); err != nil {
		t.Errorf("%s: %v", phase, err)
	}
	l.rest(ctx, 3*time.Second)
	progress("  took %s", seconds(time.Since(start)))
}

// rest lets the load go on for a while.
func (l *load) rest(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// table ends the load, prints what came of it, and fails the test where a call was lost.
// What is forgiven is named by phase.
func (l *load) table(t *testing.T, forgiven map[string][]int) {
	t.Helper()
	l.end()
	l.mu.Lock()
	defer l.mu.Unlock()
	stack.Report(t, "e2e: %-44s %6s %5s %8s %9s %9s %8s %8s", "zero lost calls: phase", "calls", "lost", "cut off", "timed out", "no server", "p50", "p99")
	for _, phase := range l.phases {
		var took []time.Duration
		count := map[int]int{}
		var first error
		said := map[string]int{}
		for _, o := range l.calls[phase] {
			count[o.what]++
			if o.err != nil && o.what != away {
				said[kindOf(o.err)]++
			}
			if o.what == fine {
				took = append(took, o.took)
			}
			if o.what != fine && !slices.Contains(forgiven[phase], o.what) && first == nil {
				first = o.err
			}
		}
		slices.Sort(took)
		stack.Report(t, "e2e: %-44s %6d %5d %8d %9d %9d %8s %8s", phase, len(l.calls[phase]), count[lost], count[cut], count[timedOut], count[away], ms(took, 50), ms(took, 99))
		for message, n := range said {
			t.Logf("  %d times: %s", n, message)
		}
		if first != nil {
			t.Errorf("%s: a call failed: %v", phase, first)
		}
	}
}

// variable is what differs between errors of a kind: names, addresses, ports.
var variable = regexp.MustCompile(`load-\d+|written-\d+|[\d.]+:\d+`)

func kindOf(err error) string { return variable.ReplaceAllString(err.Error(), "…") }

func ms(sorted []time.Duration, percent int) string {
	if len(sorted) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f ms", float64(sorted[(len(sorted)-1)*percent/100].Microseconds())/1000)
}
