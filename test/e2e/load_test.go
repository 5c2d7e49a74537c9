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
	// unasked: belay could not ask the API server, and refused.
	unasked
	// lost: belay was asked, or should have been, and the call failed for another reason.
	lost
)

// guarded is the label of the ConfigMaps that policies guard, and the name of these policies. Its
// value says which of them are about one.
const (
	guarded = "e2e-load"
	byBoth  = "true"
	byName  = "named"
	byOwner = "owned"
)

// guard registers policies whose stance is Fail: each create is named, or owned, or both, by belay,
// or refused.
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
		s.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: guarded, Operator: metav1.LabelSelectorOpIn, Values: []string{byBoth, byName}}}}
		s.Identity = []string{`object.data["work"]`}
		s.WhenFinished = v1alpha1.FinishedCoalesce
		s.WaitForPods = new(false)
		s.FailurePolicy, s.TimeoutSeconds = v1alpha1.FailureFail, 3
	}).Obj()
	owned := builders.MakeOwnerPolicy(guarded).Spec(func(s *v1alpha1.OwnerPolicySpec) {
		s.Dependents = []v1alpha1.Kind{{APIVersion: "v1", Kind: "ConfigMap"}}
		s.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: guarded, Operator: metav1.LabelSelectorOpIn, Values: []string{byBoth, byOwner}}}}
		s.Owner.APIVersion, s.Owner.Kind, s.Owner.Name = "v1", "ConfigMap", `"the-owner"`
		s.WhenUnresolved = v1alpha1.UnresolvedDeny // or what could not be found out would be let in without an owner
		s.FailurePolicy, s.TimeoutSeconds = v1alpha1.FailureFail, 3
	}).Obj()
	register(ctx, t, role, named, owned)
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	if err := errors.Join(c.WaitNamePolicy(ctx, guarded), c.WaitPolicy(ctx, guarded)); err != nil {
		t.Fatal(err)
	}
}

// register creates what builders made, in the place of what a run that was cut off has left behind,
// and deletes it at the end of t.
func register(ctx context.Context, t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		o.SetUID("")
		o.SetGeneration(0)
		within(ctx, t, o.GetName()+" is created", func() error {
			err := c.Client.Create(ctx, o)
			if apierrors.IsAlreadyExists(err) {
				err = errors.Join(err, c.Client.Delete(ctx, o))
			}
			return err
		})
		stack.Cleanup(t, func(ctx context.Context) {
			// A test that takes belay away takes policies away with their kinds.
			if err := client.IgnoreNotFound(c.Client.Delete(ctx, o)); err != nil {
				t.Error(err)
			}
		})
	}
}

// guardedMap is a ConfigMap that the policies of guard are about; its work is its name.
func guardedMap(ns, name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{guarded: byBoth}},
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
	since  time.Time
	lasted map[string]time.Duration
	calls  map[string][]outcome
}

// outcome is one call.
type outcome struct {
	took time.Duration
	what int
	err  error
	// write says that it was a write of a status.
	write bool
}

// startLoad begins in a namespace, after what came before is over and the calls work.
func startLoad(ctx context.Context, t *testing.T, ns string) *load {
	t.Helper()
	// A hundred Pods of an earlier test that end are all that kubelets on two processors can do.
	err := waitEvery(ctx, bound, time.Second, func() error {
		all, err := c.Kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, n := range all.Items {
			if n.DeletionTimestamp != nil {
				return fmt.Errorf("namespace %s is being deleted", n.Name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
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
	l := &load{ns: ns, client: cl, writes: writes, lasted: map[string]time.Duration{}, calls: map[string][]outcome{}}
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
		if err := writes.Status().Patch(ctx, b, failedStatus(0, `["`+failedPod+`"]`)); err != nil {
			t.Fatal(err)
		}
	}
	for n := -2; n < 0; n++ {
		if o := l.create(ctx, n); o.what != fine {
			t.Fatal(o.err)
		}
	}
	if o := l.write(ctx, -1); o.what != fine {
		t.Fatal(o.err)
	}
	l.enter(phaseBefore)
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stop = stop
	l.running.Go(func() { l.run(running, time.Second/createsPerSecond, l.create) })
	l.running.Go(func() { l.run(running, time.Second/writesPerSecond, l.write) })
	t.Cleanup(l.end)
	return l
}

// run calls at a rate, and however busy the machine is: what is due by the clock is called, also
// where a tick came late. The calls of five seconds may be under way, more than time-outs of three
// make of it; beyond, the next one waits, or a machine that was too slow for a moment would work on
// nothing but calls that have timed out.
func (l *load) run(ctx context.Context, every time.Duration, call func(context.Context, int) outcome) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var calls sync.WaitGroup
	defer calls.Wait()
	start := time.Now()
	underWay := make(chan struct{}, 5*time.Second/every)
	for n := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for ; time.Duration(n)*every < time.Since(start); n++ {
			number := n
			select {
			case underWay <- struct{}{}:
			case <-ctx.Done():
				return
			}
			l.mu.Lock()
			phase := l.phase // that in which it began
			l.mu.Unlock()
			calls.Go(func() {
				defer func() { <-underWay }()
				o := call(context.WithoutCancel(ctx), number)
				l.mu.Lock()
				defer l.mu.Unlock()
				l.calls[phase] = append(l.calls[phase], o)
			})
		}
	}
}

// create creates a ConfigMap, which belay must have named, or owned: in turn, since both for each
// would be three calls a create, and all that two processors can do.
func (l *load) create(ctx context.Context, n int) outcome {
	name := fmt.Sprintf("load-%06d", n)
	m := guardedMap(l.ns, name)
	m.Labels[guarded] = []string{byName, byOwner}[n&1]
	start := time.Now()
	err := l.client.Create(ctx, m)
	if err == nil {
		err = stored(m)
	}
	if apierrors.IsAlreadyExists(err) {
		// An API server that goes away after it has stored something has done what it was asked.
		if err = l.client.Get(ctx, client.ObjectKeyFromObject(m), m); err == nil {
			err = stored(m)
		}
	}
	return judge(start, err)
}

// stored says what belay did not do for a ConfigMap of the load.
func stored(m *corev1.ConfigMap) error {
	by := m.Labels[guarded]
	if by != byName && len(m.OwnerReferences) != 1 || by != byOwner && m.Annotations[v1alpha1.WorkAnnotation] == "" {
		return fmt.Errorf("ConfigMap %s was stored without belay: owners %v, annotations %v", m.Name, m.OwnerReferences, m.Annotations)
	}
	return nil
}

// failedPod is what the sandboxes of the load have as the UID of the Pod that failed: it is
// never ready again.
const failedPod = "nobody"

// failedStatus is a patch of the status of a sandbox that failed. n is what it changes.
func failedStatus(n int, record string) client.Patch {
	return client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"status":{"phase":%q,"failedPodUIDs":%s,"replicas":0,"allocated":0,"ready":0,"taskFailed":%d,"taskPending":0,"taskRunning":0,"taskSucceed":0,"taskUnknown":0}}`, opensandbox.PhaseFailed, record, n))
}

// write writes the status of a sandbox that failed, and leaves out the record of its Pods, which
// RecoveryPolicy opensandbox puts back: the API server asks belay about such writes alone.
func (l *load) write(ctx context.Context, n int) outcome {
	b := &opensandbox.BatchSandbox{ObjectMeta: metav1.ObjectMeta{Namespace: l.ns, Name: fmt.Sprintf("written-%d", max(n, 0)%writesPerSecond)}}
	start := time.Now()
	err := l.writes.Status().Patch(ctx, b, failedStatus(n+2, "null"))
	if err == nil && !slices.Equal(b.Status.FailedPodUIDs, []string{failedPod}) {
		err = fmt.Errorf("the status of %s was stored without belay: %+v", b.Name, b.Status)
	}
	o := judge(start, err)
	o.write = true
	return o
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
	case strings.Contains(err.Error(), "admission webhook") && apierrors.IsServiceUnavailable(err):
		o.what = unasked
	// What belay refuses otherwise, whatever the code, is belay's.
	case strings.Contains(err.Error(), "admission webhook"):
		o.what = lost
	// Its own shutdown, and its start, before it knows roles, service accounts and kinds.
	case apierrors.IsServiceUnavailable(err), apierrors.IsForbidden(err) && strings.Contains(err.Error(), "kubernetes-admin"), apierrors.IsUnauthorized(err), strings.Contains(err.Error(), "apiserver is shutting down"), strings.Contains(err.Error(), "not yet ready to handle request"):
		o.what = away
	default:
		o.what = lost
	}
	return o
}

var broken = regexp.MustCompile(`EOF|connection refused|connection reset|broken pipe|client connection lost|use of closed network connection|server closed idle connection|no route to host`)

func isNet(err error) bool {
	_, ok := errors.AsType[net.Error](err)
	return ok
}

// enter begins a phase.
func (l *load) enter(phase string) {
	progress("phase: %s", phase)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lapse()
	l.phase = phase
	if !slices.Contains(l.phases, phase) {
		l.phases = append(l.phases, phase)
	}
}

// lapse adds what has gone by to the time that the phase has lasted.
func (l *load) lapse() {
	now := time.Now()
	if l.phase != "" {
		l.lasted[l.phase] += now.Sub(l.since)
	}
	l.since = now
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

// mostForgiven is how many calls may fail at most, where any may: as many as are made in three
// seconds, and of a phase of more than 1,000 as many of each 1,000. A replica that is frozen for 20 s
// costs 20 to 40 calls, and one that is killed 5 to 30.
const mostForgiven = 3 * (createsPerSecond + writesPerSecond)

// table ends the load, prints what came of it, and fails the test where a call was lost.
// What is forgiven is named by phase.
func (l *load) table(t *testing.T, forgiven map[string][]int) {
	t.Helper()
	l.mu.Lock()
	l.lapse()
	l.mu.Unlock()
	l.end()
	l.mu.Lock()
	defer l.mu.Unlock()
	stack.Report(t, "e2e: %-44s %6s %5s %8s %9s %8s %9s %8s %8s", "zero lost calls: phase", "calls", "lost", "cut off", "timed out", "unasked", "no server", "p50", "p99")
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
		writes := 0
		for _, o := range l.calls[phase] {
			if o.write {
				writes++
			}
		}
		// What was not asked cannot be lost.
		for what, of := range map[string]struct{ had, rate int }{"creates": {len(l.calls[phase]) - writes, createsPerSecond}, "writes of status": {writes, writesPerSecond}} {
			share := 0.5
			if phase == phaseBefore || phase == phaseAfter {
				share = 0.9
			}
			if want := l.lasted[phase].Seconds() * float64(of.rate) * share; float64(of.had) < want {
				t.Errorf("%s: %d %s in %s, want %d a second: the machine is too slow for this test, or the load has ended", phase, of.had, what, seconds(l.lasted[phase]), of.rate)
			}
		}
		slices.Sort(took)
		stack.Report(t, "e2e: %-44s %6d %5d %8d %9d %8d %9d %8s %8s", phase, len(l.calls[phase]), count[lost], count[cut], count[timedOut], count[unasked], count[away], ms(took, 50), ms(took, 99))
		for message, n := range said {
			t.Logf("  %d times: %s", n, message)
		}
		if first != nil {
			t.Errorf("%s: a call failed: %v", phase, first)
		}
		// What is forgiven is what is under way when something breaks, and not a belay that is away.
		if n := count[timedOut] + count[cut] + count[unasked]; n > max(mostForgiven, len(l.calls[phase])*mostForgiven/1000) {
			t.Errorf("%s: %d calls of %d failed", phase, n, len(l.calls[phase]))
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
