package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/recorder"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/facts"
)

// leader is a manager with a cache that the test fills. It keeps what is added to it.
type leader struct {
	manager.Manager
	cache *caching
	added []manager.Runnable
	err   error // of Add
	log   logr.Logger
}

func (l *leader) GetCache() cache.Cache                          { return l.cache }
func (l *leader) GetLogger() logr.Logger                         { return l.log }
func (l *leader) GetEventRecorder(string) recorder.EventRecorder { return events.NewFakeRecorder(100) }
func (l *leader) Add(r manager.Runnable) error {
	l.added = append(l.added, r)
	return l.err
}

// caching is the manager's cache: policies, and namespaces that all enforce.
type caching struct {
	cache.Cache
	mu       sync.Mutex
	policies []v1alpha1.RecoveryPolicy
	listErr  error
	lists    int
	informer map[string]*controllertest.FakeInformer
	// refuse fails the informer of a type, and deaf its handler.
	refuse, deaf string
}

func (c *caching) GetInformer(_ context.Context, obj client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	kind := fmt.Sprintf("%T", obj)
	if kind == c.refuse {
		return nil, errors.New("no informer")
	}
	i := controllertest.NewFakeInformer(controllertest.Synced)
	c.informer[kind] = i
	if kind == c.deaf {
		return deaf{i}, nil
	}
	return i, nil
}

// deaf is an informer that takes no handler.
type deaf struct{ cache.Informer }

func (deaf) AddEventHandler(toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	return nil, errors.New("no handler")
}

func (c *caching) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lists++
	if c.listErr != nil {
		return c.listErr
	}
	out, ok := list.(*v1alpha1.RecoveryPolicyList)
	if !ok {
		return fmt.Errorf("not expected: %T", list)
	}
	for _, p := range c.policies {
		out.Items = append(out.Items, *p.DeepCopy())
	}
	return nil
}

func (c *caching) Get(_ context.Context, k client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	ns, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return fmt.Errorf("not expected: %T", obj)
	}
	ns.Name, ns.Labels = k.Name, map[string]string{v1alpha1.ModeLabel: v1alpha1.ModeEnforce}
	return nil
}

func (c *caching) has(policies ...*v1alpha1.RecoveryPolicy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.policies = nil
	for _, p := range policies {
		c.policies = append(c.policies, *p)
	}
}

func (c *caching) fails(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listErr = err
}

func (c *caching) listed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lists
}

const (
	policyType    = "*v1alpha1.RecoveryPolicy"
	namespaceType = "*v1.PartialObjectMetadata"
)

func leading(policies ...*v1alpha1.RecoveryPolicy) *leader {
	l := &leader{cache: &caching{informer: map[string]*controllertest.FakeInformer{}}, log: logr.Discard()}
	l.cache.has(policies...)
	return l
}

func TestSetupSaysWhatItCannotWatch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*leader)
		want   string
	}{
		"no informer of policies":   {func(l *leader) { l.cache.refuse = policyType }, "watching RecoveryPolicies: no informer"},
		"no handler of policies":    {func(l *leader) { l.cache.deaf = policyType }, "watching RecoveryPolicies: no handler"},
		"no informer of namespaces": {func(l *leader) { l.cache.refuse = namespaceType }, "watching namespaces: no informer"},
		"no handler of namespaces":  {func(l *leader) { l.cache.deaf = namespaceType }, "watching namespaces: no handler"},
		"a manager that has begun":  {func(l *leader) { l.err = errors.New("too late") }, "too late"},
		"all is well":               {func(*leader) {}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := leading()
			c.change(l)
			err := Setup(t.Context(), l, Clients{Kube: kubefake.NewClientset()}, "belay-system")
			if (err != nil) != (c.want != "") || err != nil && err.Error() != c.want {
				t.Errorf("%v", err)
			}
			if len(l.added) != 1 && c.want == "" {
				t.Errorf("%d runnables", len(l.added))
			}
			if c.want == "" {
				r, ok := l.added[0].(manager.LeaderElectionRunnable)
				if !ok || !r.NeedLeaderElection() {
					t.Error("it would run on every replica")
				}
			}
		})
	}
}

// house runs what Setup adds to the manager, in a bubble.
type house struct {
	*leader
	t    *testing.T
	d    *drivers
	dyn  *dynamicfake.FakeDynamicClient
	kube *kubefake.Clientset
	end  func()

	mu     sync.Mutex
	logged []string
}

func open(t *testing.T, policies ...*v1alpha1.RecoveryPolicy) *house {
	t.Helper()
	h := &house{
		leader: leading(policies...), t: t, kube: kubefake.NewClientset(),
		dyn: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), listKinds),
	}
	h.log = funcr.New(func(_, args string) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.logged = append(h.logged, args)
	}, funcr.Options{})
	live := fake.NewClientBuilder().WithScheme(runtime.NewScheme()).WithStatusSubresource(sandbox(t, "")).Build()
	if err := Setup(t.Context(), h.leader, Clients{Dynamic: h.dyn, Kube: h.kube, Live: live}, "belay-system"); err != nil {
		t.Fatal(err)
	}
	var ok bool
	if h.d, ok = h.added[0].(*drivers); !ok {
		t.Fatalf("%T", h.added[0])
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.d.Start(ctx) }()
	h.end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(h.end)
	synctest.Wait()
	return h
}

// text is what was logged.
func (h *house) text() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.logged, "\n")
}

// heard has the cache hold these policies and no others, and tells so.
func (h *house) heard(policies ...*v1alpha1.RecoveryPolicy) {
	h.t.Helper()
	h.cache.has(policies...)
	h.cache.informer[policyType].Update(&v1alpha1.RecoveryPolicy{}, &v1alpha1.RecoveryPolicy{})
	synctest.Wait()
}

// runs checks which policies have a driver, and returns them.
func (h *house) runs(want ...string) map[string]*driver {
	h.t.Helper()
	got := h.d.drivers()
	var names []string
	for name := range got {
		names = append(names, name)
	}
	slices.Sort(names)
	if diff := cmp.Diff(want, names); diff != "" {
		h.t.Errorf("(-want +got)\n%s", diff)
	}
	return got
}

// watched are the selectors by which Pods have been watched since the last time.
func (h *house) watched() []string {
	var out []string
	for _, a := range h.kube.Actions() {
		if w, ok := a.(clienttesting.WatchActionImpl); ok {
			out = append(out, w.ListOptions.LabelSelector)
		}
	}
	h.kube.ClearActions()
	slices.Sort(out)
	return out
}

func inForceAs(name string, changes ...func(*v1alpha1.RecoveryPolicy)) *v1alpha1.RecoveryPolicy {
	p := policyInForce()
	p.Name, p.UID = name, types.UID(name+"-uid")
	for _, change := range changes {
		change(p)
	}
	return p
}

// TestDriversAreAsThePoliciesInForceWantThem: one for each; anew when what is in force
// changes, and as before when it does not.
func TestDriversAreAsThePoliciesInForceWantThem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := open(t, inForceAs("a"), inForceAs("idle", func(p *v1alpha1.RecoveryPolicy) { p.Status.InForce = nil }))
		first := h.runs("a")["a"]
		if diff := cmp.Diff([]string{"app=box", "app=pool"}, h.watched()); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		// Conditions change, and the newest spec is not in force.
		h.heard(inForceAs("a", func(p *v1alpha1.RecoveryPolicy) {
			p.Generation, p.Spec.Recover, p.Status.Conditions = 2, v1alpha1.RecoverNever, []metav1.Condition{{Type: "Accepted"}}
		}))
		if h.runs("a")["a"] != first || len(h.watched()) > 0 {
			t.Error("it was started anew for nothing")
		}
		last := first
		for name, change := range map[string]func(*v1alpha1.RecoveryPolicy){
			"a new generation":      func(p *v1alpha1.RecoveryPolicy) { p.Status.InForce.Generation = 2 },
			"another record":        func(p *v1alpha1.RecoveryPolicy) { p.Status.InForce.Record.Cleared = v1alpha1.ClearNull },
			"a limit of the record": func(p *v1alpha1.RecoveryPolicy) { p.Status.InForce.Record.MaxItems = 3 },
			"another scope":         func(p *v1alpha1.RecoveryPolicy) { p.Status.InForce.Resource.Kind = "Batchsandbox" },
			"another policy":        func(p *v1alpha1.RecoveryPolicy) { p.UID = "anew" },
		} {
			h.heard(inForceAs("a", change))
			now := h.runs("a")["a"]
			if now == last {
				t.Errorf("%s is not acted on", name)
			}
			if !ended(last) || ended(now) {
				t.Errorf("%s: the one before has ended: %t, this one: %t", name, ended(last), ended(now))
			}
			h.heard(inForceAs("a"))
			last = h.runs("a")["a"]
		}
		h.watched()
		// A second one comes, whose Pods are others as well.
		h.heard(inForceAs("a"), inForceAs("b", func(p *v1alpha1.RecoveryPolicy) {
			p.Status.InForce.Spec.Pods[1].Selector = metav1.LabelSelector{MatchLabels: map[string]string{"app": "other"}}
		}))
		if h.runs("a", "b")["a"] != last {
			t.Error("the first was started anew")
		}
		if diff := cmp.Diff([]string{"app=other"}, h.watched()); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		// What goes, is withdrawn, is being deleted, or does not compile, stops.
		for name, p := range map[string][]*v1alpha1.RecoveryPolicy{
			"it is gone":          nil,
			"it is withdrawn":     {inForceAs("a", func(p *v1alpha1.RecoveryPolicy) { p.Status.InForce = nil })},
			"it is being deleted": {inForceAs("a", func(p *v1alpha1.RecoveryPolicy) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })},
			"it does not compile": {inForceAs("a", func(p *v1alpha1.RecoveryPolicy) {
				p.Status.InForce.Generation, p.Status.InForce.Spec.ResumeInFlight = 2, "object."
			})},
			"another one is there": {inForceAs("c")},
		} {
			h.heard(inForceAs("a"))
			d := h.d.drivers()["a"]
			h.heard(p...)
			if h.d.drivers()["a"] != nil || !ended(d) {
				t.Errorf("%s: it runs still", name)
			}
		}
		text := h.text()
		for _, want := range []string{`"driver started" "policy"="a" "resource"="sandbox.opensandbox.io/v1alpha1, Resource=batchsandboxes" "recover"="Auto"`, `"driver stopped" "policy"="a"`, `"policy does not compile; its objects are not brought back" "error"="spec.resumeInFlight`} {
			if !strings.Contains(text, want) {
				t.Errorf("not logged: %s\n%s", want, text)
			}
		}
		h.heard(inForceAs("a"), inForceAs("b"))
		all := h.runs("a", "b")
		before := time.Now()
		h.end()
		if time.Since(before) > 0 || !ended(all["a"]) || !ended(all["b"]) {
			t.Errorf("after %s: %t %t", time.Since(before), ended(all["a"]), ended(all["b"]))
		}
	})
}

// ended reports whether nothing of a driver runs any more.
func ended(d *driver) bool { return d.objects.IsStopped() && d.queue.ShuttingDown() }

// TestPoliciesThatCannotBeListedStopNothing, and are listed again when something changes.
func TestPoliciesThatCannotBeListedStopNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := open(t, inForceAs("a"))
		first := h.runs("a")["a"]
		h.cache.fails(errors.New("no cache"))
		h.heard()
		if h.runs("a")["a"] != first || ended(first) || !strings.Contains(h.text(), `"following the policies" "error"="listing recovery policies: no cache"`) {
			t.Errorf("%s", h.text())
		}
		h.cache.fails(nil)
		h.heard()
		h.runs()
	})
}

// TestManyChangesAreFollowedAtOnce: and no change is missed.
func TestManyChangesAreFollowedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := open(t)
		before := h.cache.listed()
		i := h.cache.informer[policyType]
		h.cache.has(inForceAs("a"))
		for range 100 {
			i.Add(&v1alpha1.RecoveryPolicy{})
			i.Delete(&v1alpha1.RecoveryPolicy{})
		}
		synctest.Wait()
		h.runs("a")
		if n := h.cache.listed() - before; n == 0 || n > 100 {
			t.Errorf("listed %d times for 200 changes", n)
		}
	})
}

// TestEveryDriverHearsOfPodsAndNamespaces.
func TestEveryDriverHearsOfPodsAndNamespaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := open(t, inForceAs("a"), inForceAs("b"))
		u := sandbox(t, failedU1)
		if err := h.dyn.Tracker().Create(resource, u, "lab"); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		looks := func() int {
			n := 0
			for _, r := range h.runs("a", "b") {
				n += r.queue.Len()
			}
			return n
		}
		// Their workers are kept from working, so that what is queued stays.
		for _, r := range h.d.drivers() {
			r.end()
		}
		for _, r := range h.d.drivers() {
			fresh := set(t, compiledPolicy(t), nil)
			r.queue = fresh.d.queue
		}
		for name, change := range map[string]func(){
			"a namespace that comes":   func() { h.cache.informer[namespaceType].Add(namespace("lab")) },
			"a namespace that changes": func() { h.cache.informer[namespaceType].Update(namespace("x"), namespace("lab")) },
			"a Pod":                    func() { h.d.podChanged(facts.PodChange{Namespace: "lab", Name: "p", Controller: "box-uid"}) },
		} {
			change()
			if n := looks(); n != 2 {
				t.Errorf("%s: %d looks", name, n)
			}
			for _, r := range h.d.drivers() {
				for r.queue.Len() > 0 {
					k, _ := r.queue.Get()
					r.queue.Done(k)
				}
			}
		}
		h.d.namespaceChanged(&unstructured.Unstructured{}) // it is of no other kind
		h.cache.informer[namespaceType].Add(namespace("other"))
		if n := looks(); n != 0 {
			t.Errorf("%d looks", n)
		}
	})
}

func namespace(name string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// TestAPodThatChangesReachesItsDriver: from the watch of Pods to the object that is brought
// back, with all that lies between.
func TestAPodThatChangesReachesItsDriver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := open(t)
		u := sandbox(t, failedU1)
		u.SetResourceVersion("")
		if err := h.d.clients.Live.Create(t.Context(), u); err != nil {
			t.Fatal(err)
		}
		stored := sandbox(t, "")
		status := sandbox(t, failedU1)
		status.SetResourceVersion(u.GetResourceVersion())
		if err := h.d.clients.Live.Status().Update(t.Context(), status); err != nil {
			t.Fatal(err)
		}
		if err := h.d.clients.Live.Get(t.Context(), key, stored); err != nil {
			t.Fatal(err)
		}
		if err := h.dyn.Tracker().Create(resource, stored, "lab"); err != nil {
			t.Fatal(err)
		}
		pod := podOf("u1", crash)
		if _, err := h.kube.CoreV1().Pods("lab").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		h.heard(inForceAs("a"))
		pass(time.Hour)
		ready := podOf("u1", "")
		ready.ResourceVersion = "2"
		if _, err := h.kube.CoreV1().Pods("lab").UpdateStatus(t.Context(), ready, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		pass(grace)
		if err := h.d.clients.Live.Get(t.Context(), key, stored); err != nil {
			t.Fatal(err)
		}
		if phase, _, _ := unstructured.NestedString(stored.Object, "status", "phase"); phase != "Succeed" {
			t.Errorf("%v", stored.Object["status"])
		}
	})
}
