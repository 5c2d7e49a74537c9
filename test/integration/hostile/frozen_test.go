package hostile

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// P07: belay hangs. Leader elections in a namespace that has opted in, whose Leases are
// renewed every half second, do not notice; neither do Events, nor updates of what belay is
// about. What is guarded waits for belay's time-outs, each once, and for no longer.
func TestP07_BelayHangs(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*stack.Bound)
	defer cancel()
	labels := shared.TestNamePolicy(ctx, t, "hostile-frozen", nil)
	ns := shared.TestNamespace(ctx, t, "frozen", v1alpha1.ModeEnforce)
	existing := job(ns, "existing", "one", labels)
	must(t, shared.Client.Create(ctx, existing))

	const elections = 5
	var lost, renewed atomic.Int64
	var slowest atomic.Int64
	cfg := shared.Plane.Config()
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			began := time.Now()
			resp, err := rt.RoundTrip(r)
			if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/leases/") {
				renewed.Add(1)
				for d := int64(time.Since(began)); ; {
					if was := slowest.Load(); was >= d || slowest.CompareAndSwap(was, d) {
						break
					}
				}
			}
			return resp, err
		})
	})
	kube, err := kubernetes.NewForConfig(cfg)
	must(t, err)
	run, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var led [elections]atomic.Bool
	for i := range elections {
		e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta: metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("election-%d", i)}, Client: kube.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: "me"},
			},
			LeaseDuration: 4 * time.Second, RenewDeadline: 3 * time.Second, RetryPeriod: 500 * time.Millisecond,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { led[i].Store(true) },
				OnStoppedLeading: func() {
					if run.Err() == nil {
						lost.Add(1)
					}
				},
			},
		})
		must(t, err)
		wg.Go(func() { e.Run(run) })
	}
	for i := range led {
		stack.Eventually(ctx, t, "somebody leads", func() error {
			if !led[i].Load() {
				return errors.New("not yet")
			}
			return nil
		})
	}
	w := shared.Webhooks()[0]
	must(t, w.Signal(syscall.SIGSTOP))
	thawed := false
	defer func() {
		if !thawed {
			must(t, w.Signal(syscall.SIGCONT))
		}
	}()
	before := renewed.Load()
	slowest.Store(0)
	var longest time.Duration
	timed := func(what string, within time.Duration, do func() error) error {
		t.Helper()
		began := time.Now()
		err := do()
		took := time.Since(began)
		longest = max(longest, took)
		if took > within {
			t.Errorf("%s took %s", what, took)
		}
		return err
	}
	// Renewals, events and updates are not belay's business at all.
	const atOnce = 2 * time.Second
	must(t, timed("an event", atOnce, func() error {
		return shared.Client.Create(ctx, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "e"}, InvolvedObject: corev1.ObjectReference{Namespace: ns, Name: "existing"}})
	}))
	must(t, timed("an update", atOnce, func() error {
		return shared.Client.Patch(ctx, existing, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"x":"y"}}}`)))
	}))
	must(t, timed("a deletion", atOnce, func() error { return shared.Client.Delete(ctx, existing) }))
	longest = 0
	for i := range 2 {
		if err := timed("a Job that is guarded (Fail)", together(ctx, t, "jobs"), func() error { return shared.Client.Create(ctx, job(ns, fmt.Sprintf("j%d", i), "one", labels)) }); err == nil {
			t.Error("a Job was let in without belay")
		}
		must(t, timed("a Secret (Ignore)", together(ctx, t, "secrets"), func() error { return shared.Client.Create(ctx, token(ns, fmt.Sprintf("s%d", i))) }))
		must(t, timed("a Pod that asks for an owner and a sidecar (Ignore)", together(ctx, t, "pods"), func() error {
			return shared.Client.Create(ctx, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("p%d", i), Annotations: map[string]string{
					v1alpha1.SidecarAnnotation: v1alpha1.SidecarInject, v1alpha1.OwnerAnnotation: "batch/v1/Job/none",
				}},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.example/app:1"}}},
			})
		}))
	}
	while := renewed.Load() - before
	must(t, w.Signal(syscall.SIGCONT))
	thawed = true
	stop()
	wg.Wait()
	if lost.Load() != 0 {
		t.Errorf("%d of %d leaders lost their lease", lost.Load(), elections)
	}
	if while < elections {
		t.Errorf("only %d renewals: the test shows nothing", while)
	}
	stack.Report(t, "hostile: while belay hung %d leases were renewed %d times, the slowest took %s; no leader was lost; the longest create that is guarded took %s", elections, while,
		time.Duration(slowest.Load()).Round(time.Millisecond), longest.Round(10*time.Millisecond))
	alive(ctx, t)
}

// together is how long all calls of belay about one create may take: the time-outs of all
// entries for it, and a moment.
func together(ctx context.Context, t *testing.T, resource string) time.Duration {
	t.Helper()
	sum := int32(0)
	add := func(rules []admissionregistrationv1.RuleWithOperations, timeout *int32) {
		if slices.ContainsFunc(rules, func(r admissionregistrationv1.RuleWithOperations) bool {
			return (slices.Contains(r.Resources, resource) || slices.Contains(r.Resources, "*")) && slices.Contains(r.Operations, admissionregistrationv1.Create)
		}) {
			sum += *timeout
		}
		if *timeout > 5 {
			t.Errorf("an entry for %s waits for %d s", resource, *timeout)
		}
	}
	var mutating admissionregistrationv1.MutatingWebhookConfiguration
	must(t, shared.Client.Get(ctx, client.ObjectKey{Name: v1alpha1.ConfigurationName}, &mutating))
	for i := range mutating.Webhooks {
		add(mutating.Webhooks[i].Rules, mutating.Webhooks[i].TimeoutSeconds)
	}
	var validating admissionregistrationv1.ValidatingWebhookConfiguration
	must(t, shared.Client.Get(ctx, client.ObjectKey{Name: v1alpha1.ConfigurationName}, &validating))
	for i := range validating.Webhooks {
		add(validating.Webhooks[i].Rules, validating.Webhooks[i].TimeoutSeconds)
	}
	return time.Duration(sum)*time.Second + 2*time.Second
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// P15: the probes answer while reviews come as fast as they can and whatever takes belay's
// events stalls: they take no lock of the request path.
func TestP15_ProbesUnderLoad(t *testing.T) {
	ctx := stack.TestContext(t)
	labels := shared.TestNamePolicy(ctx, t, "hostile-probes", nil)
	ns := shared.TestNamespace(ctx, t, "probes", v1alpha1.ModeEnforce)
	w := shared.Webhooks()[0]
	shared.WebhookFaults.Set(func(r *http.Request) *stack.Fault {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/events") {
			return &stack.Fault{Delay: time.Minute}
		}
		return nil
	})
	defer shared.WebhookFaults.Set(nil)
	must(t, shared.Client.Create(ctx, job(ns, "held", "one", labels)))
	// Jobs that have ended: belay tells in an event of each that it replaces.
	const ended = 40
	for i := range ended {
		j := job(ns, fmt.Sprintf("ended-%d", i), "one", labels)
		must(t, shared.Client.Create(ctx, j))
		now := metav1.Now()
		j.Status.StartTime = &now
		for _, kind := range []batchv1.JobConditionType{batchv1.JobFailureTarget, batchv1.JobFailed} {
			j.Status.Conditions = append(j.Status.Conditions, batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now, Reason: "Test"})
		}
		must(t, shared.Client.Status().Update(ctx, j))
	}
	stop := make(chan struct{})
	var reviews, refused atomic.Int64
	var wg sync.WaitGroup
	for range flooders {
		wg.Go(func() {
			for n := reviews.Add(1); ; n = reviews.Add(1) {
				select {
				case <-stop:
					return
				default:
				}
				// A denial, a mark, or a replacement with its event.
				var err error
				switch n % 3 {
				case 0:
					err = shared.Client.Create(ctx, job(ns, "held", "other", labels), client.DryRunAll)
				case 1:
					err = shared.Client.Create(ctx, job(ns, fmt.Sprintf("new-%d", n), "one", labels), client.DryRunAll)
				case 2:
					err = shared.Client.Create(ctx, job(ns, fmt.Sprintf("ended-%d", n/3%ended), "one", labels))
				}
				if err != nil {
					refused.Add(1)
				}
			}
		})
	}
	const bound = 5 * time.Second // a kubelet waits for one, and tries again
	hc := &http.Client{Timeout: bound}
	var took []time.Duration
	for end := time.Now().Add(floodFor); time.Now().Before(end); {
		for _, path := range []string{"livez", "readyz", "readyz?verbose"} {
			began := time.Now()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/%s", w.ProbePort, path), http.NoBody)
			must(t, err)
			resp, err := hc.Do(req)
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			_ = resp.Body.Close()
			took = append(took, time.Since(began))
			if resp.StatusCode != http.StatusOK {
				t.Errorf("%s: %s", path, resp.Status)
			}
		}
	}
	close(stop)
	wg.Wait()
	slices.Sort(took)
	if refused.Load() == 0 || reviews.Load() == refused.Load() {
		t.Errorf("%d of %d creates were refused: the test shows nothing", refused.Load(), reviews.Load())
	}
	if shared.WebhookFaults.Seen() == 0 {
		t.Error("belay wrote no event: the test shows nothing")
	}
	stack.Report(t, "hostile: %d probes under %d creates in %s, with events that stall: p50 %s, p99 %s, all 200", len(took), reviews.Load(), floodFor, p(took, 50), p(took, 99))
	alive(ctx, t)
}
