package facts

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// guardOf is a policy that goes by reports, compiled.
func guardOf(t testing.TB, name string, freshFor time.Duration, changes ...func(*v1alpha1.RecoveryPolicySpec)) *RecoveryPolicy {
	t.Helper()
	p, err := CompileRecoveryPolicy(inForce(builders.MakeRecoveryPolicy(name).Spec(func(s *v1alpha1.RecoveryPolicySpec) {
		s.Evidence, s.WitnessFreshFor = v1alpha1.EvidenceWitness, metav1.Duration{Duration: freshFor}
		for _, change := range changes {
			change(s)
		}
	}).Obj()))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// sandbox is a guarded object with this phase and record.
func sandbox(name, phase string, record ...string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "sandbox.opensandbox.io/v1alpha1", "kind": "BatchSandbox", "status": map[string]any{"phase": phase}}}
	u.SetNamespace("lab")
	u.SetName(name)
	u.SetUID("box-uid")
	if record != nil {
		list := make([]any, 0, len(record))
		for _, uid := range record {
			list = append(list, uid)
		}
		u.Object["status"].(map[string]any)["failedPodUIDs"] = list
	}
	return u
}

// fakeDynamic is a client of an API server with these objects.
func fakeDynamic(t testing.TB, objects ...*unstructured.Unstructured) *dynamicfake.FakeDynamicClient {
	t.Helper()
	r := ResourceOf(boxes())
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(apiruntime.NewScheme(), map[schema.GroupVersionResource]string{r: boxes().Kind + "List"})
	for _, o := range objects {
		if err := client.Tracker().Create(r, o, o.GetNamespace()); err != nil {
			t.Fatal(err)
		}
	}
	return client
}

// waitingRun runs a Waiting in a bubble, until the test ends.
type waitingRun struct {
	t      *testing.T
	client *dynamicfake.FakeDynamicClient
	*Waiting
	end func()
}

func waitIn(ctx context.Context, t *testing.T, client *dynamicfake.FakeDynamicClient, policies ...*RecoveryPolicy) *waitingRun {
	t.Helper()
	w := &waitingRun{t: t, client: client, Waiting: NewWaiting(client)}
	w.wants(policies...)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- w.Start(ctx) }()
	w.end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(w.end)
	synctest.Wait()
	return w
}

func (w *waitingRun) wants(policies ...*RecoveryPolicy) {
	all := map[string]*RecoveryPolicy{}
	for _, p := range policies {
		all[p.Name] = p
	}
	w.Want(all)
}

// waitsFor expects that these Pods, and not others, are waited for, each with a time.
func (w *waitingRun) waitsFor(want map[string]time.Duration) {
	w.t.Helper()
	synctest.Wait()
	got := map[string]time.Duration{}
	for _, uid := range []string{"u1", "u2", "u3", "", v1alpha1.NoPodUID, "lab/a", "box-uid"} {
		if _, waits := w.For("elsewhere", uid); waits {
			w.t.Errorf("an object of lab waits for %q elsewhere", uid)
		}
		freshFor, waits := w.For("lab", uid)
		if waits {
			got[uid] = freshFor
		} else if freshFor != 0 {
			w.t.Errorf("%q: %s, and nothing waits", uid, freshFor)
		}
	}
	if want == nil {
		want = map[string]time.Duration{}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("(-want +got)\n%s", diff)
	}
}

func (w *waitingRun) objects() dynamic.ResourceInterface {
	return w.client.Resource(ResourceOf(boxes())).Namespace("lab")
}

func (w *waitingRun) put(object *unstructured.Unstructured) {
	w.t.Helper()
	if _, err := w.objects().Update(w.t.Context(), object, metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
		_, err = w.objects().Create(w.t.Context(), object, metav1.CreateOptions{})
		if err != nil {
			w.t.Fatal(err)
		}
	} else if err != nil {
		w.t.Fatal(err)
	}
}

const half, minute = 30 * time.Second, time.Minute

// TestPodsAreWaitedForWhileTheirObjectMayRecover by evidence, whichever phase it is in.
func TestPodsAreWaitedForWhileTheirObjectMayRecover(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := waitIn(t.Context(), t, fakeDynamic(t, sandbox("a", "Failed", "u1"), sandbox("b", "Succeed")), guardOf(t, "boxes", half))
		w.waitsFor(map[string]time.Duration{"u1": half})
		w.put(sandbox("b", "Failed", "u2", "u3"))
		w.waitsFor(map[string]time.Duration{"u1": half, "u2": half, "u3": half})
		w.put(sandbox("a", "Succeed"))
		w.waitsFor(map[string]time.Duration{"u2": half, "u3": half})
		w.put(sandbox("b", "Pausing", "u2", "u3")) // it carries the record, and needs evidence still
		w.waitsFor(map[string]time.Duration{"u2": half, "u3": half})
		w.put(sandbox("b", "Resuming", "u2", "u3"))
		w.waitsFor(nil)
		w.put(sandbox("b", "Failed", "u3", "u3"))
		w.waitsFor(map[string]time.Duration{"u3": half})
		w.put(sandbox("c", "Failed", "u3", ""))
		w.waitsFor(map[string]time.Duration{"u3": half, "": half})
		if err := w.objects().Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.waitsFor(map[string]time.Duration{"u3": half, "": half})
		if err := w.objects().Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.waitsFor(nil)
	})
}

// TestObjectsThatNothingIsWaitedForBy: no evidence counts for them, or they tell nothing.
func TestObjectsThatNothingIsWaitedForBy(t *testing.T) {
	t.Parallel()
	status := func(change func(map[string]any)) *unstructured.Unstructured {
		u := sandbox("a", "Failed", "u1")
		change(u.Object["status"].(map[string]any))
		return u
	}
	for name, object := range map[string]*unstructured.Unstructured{
		"it has recovered":         sandbox("a", "Succeed", "u1"),
		"its pods are replaced":    sandbox("a", "Resuming", "u1"),
		"no record":                sandbox("a", "Failed"),
		"an empty record":          sandbox("a", "Failed", []string{}...),
		"the mark":                 sandbox("a", "Failed", v1alpha1.NoPodUID),
		"S28: the mark among pods": sandbox("a", "Failed", "u1", v1alpha1.NoPodUID),
		"a terminal failure": status(func(s map[string]any) {
			s["conditions"] = []any{map[string]any{"type": "ResumeFailed", "status": "True"}}
		}),
		"a phase that is no text":   status(func(s map[string]any) { s["phase"] = int64(1) }),
		"a record that is a text":   status(func(s map[string]any) { s["failedPodUIDs"] = "u1" }),
		"a record with a number":    status(func(s map[string]any) { s["failedPodUIDs"] = []any{"u1", int64(1)} }),
		"conditions that are none":  status(func(s map[string]any) { s["conditions"] = "x" }),
		"no status":                 {Object: map[string]any{"metadata": map[string]any{"name": "a", "namespace": "lab"}}},
		"a status that is a number": {Object: map[string]any{"metadata": map[string]any{"name": "a", "namespace": "lab"}, "status": int64(7)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := guardOf(t, "boxes", half)
			o, ok := failedOf(p, object).(*failedObject)
			if !ok || len(o.record) != 0 {
				t.Errorf("%+v", o)
			}
		})
	}
}

func TestOnlyPoliciesThatGoByReportsWait(t *testing.T) {
	t.Parallel()
	by := func(source v1alpha1.EvidenceSource) func(*v1alpha1.RecoveryPolicySpec) {
		return func(s *v1alpha1.RecoveryPolicySpec) { s.Evidence = source }
	}
	synctest.Test(t, func(t *testing.T) {
		w := waitIn(t.Context(), t, fakeDynamic(t, sandbox("a", "Failed", "u1"), sandbox("b", "Succeed", "u2")))
		asked := func(want ...string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for _, a := range w.client.Actions() {
				got = append(got, a.GetVerb()+" "+a.GetResource().Resource)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			w.client.ClearActions()
		}
		is := func(some bool, want map[string]time.Duration) {
			t.Helper()
			w.waitsFor(want)
			if !w.Synced() {
				t.Error("not known")
			}
			if w.Any() != some {
				t.Errorf("a policy that goes by reports: %t", w.Any())
			}
		}
		is(false, nil)
		kubelet := guardOf(t, "boxes", half, by(v1alpha1.EvidenceKubelet))
		w.wants(kubelet, guardOf(t, "none", half, by("")))
		is(false, nil)
		asked()
		both := guardOf(t, "boxes", half, by(v1alpha1.EvidenceBoth))
		w.wants(both)
		is(true, map[string]time.Duration{"u1": half})
		asked("list batchsandboxes", "watch batchsandboxes")
		w.wants(both)
		asked() // what goes on being wanted is not read again
		// Two policies about one kind: the shortest time counts.
		longer := guardOf(t, "longer", minute, func(s *v1alpha1.RecoveryPolicySpec) {
			s.Phases.Failed, s.Phases.Recovered = []v1alpha1.Phase{"Succeed", "Failed"}, []v1alpha1.Phase{"Fine"}
		})
		w.wants(both, longer)
		is(true, map[string]time.Duration{"u1": half, "u2": minute})
		asked("list batchsandboxes", "watch batchsandboxes")
		shorter := guardOf(t, "shorter", time.Second)
		w.wants(longer, both, shorter)
		is(true, map[string]time.Duration{"u1": time.Second, "u2": minute})
		w.wants(longer)
		is(true, map[string]time.Duration{"u1": minute, "u2": minute})
		// One that was changed.
		w.wants(guardOf(t, "longer", half))
		is(true, map[string]time.Duration{"u1": half})
		w.wants(kubelet)
		is(false, nil)
		w.client.ClearActions()
		w.put(sandbox("a", "Failed", "u3"))
		w.client.ClearActions()
		is(false, nil)
		w.end()
		w.wants(both)
		asked()
		if !w.Any() || w.Synced() {
			t.Error("after the end a policy is not known, or is said to be watched")
		}
	})
}

// TestTheSelectorOfAPolicyIsAskedFor: objects of others are not even sent.
func TestTheSelectorOfAPolicyIsAskedFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		selector *metav1.LabelSelector
		want     string
	}{
		"none":     {nil, ""},
		"an empty": {&metav1.LabelSelector{}, ""},
		"one":      {&metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}, MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "x", Operator: metav1.LabelSelectorOpExists}}}, "team=a,x"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := waitIn(t.Context(), t, fakeDynamic(t), guardOf(t, "boxes", half, func(s *v1alpha1.RecoveryPolicySpec) { s.Selector = c.selector }))
				var got []string
				for _, a := range w.client.Actions() {
					switch a := a.(type) {
					case clienttesting.ListActionImpl:
						got = append(got, "list "+a.ListOptions.LabelSelector+a.Namespace)
					case clienttesting.WatchActionImpl:
						got = append(got, "watch "+a.ListOptions.LabelSelector+a.Namespace)
					}
				}
				if diff := cmp.Diff([]string{"list " + c.want, "watch " + c.want}, got); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
			})
		})
	}
}

// TestAWatchOfObjectsGoesOnTrying, and nothing waits meanwhile.
func TestAWatchOfObjectsGoesOnTrying(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := fakeDynamic(t, sandbox("a", "Failed", "u1"))
		var mu sync.Mutex
		refused := true
		var logged []string
		client.PrependReactor("list", "*", func(clienttesting.Action) (bool, apiruntime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			return refused, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "batchsandboxes"}, "", errors.New("no right"))
		})
		ctx := logr.NewContext(t.Context(), funcr.New(func(_, args string) {
			mu.Lock()
			defer mu.Unlock()
			logged = append(logged, args)
		}, funcr.Options{Verbosity: 1}))
		w := waitIn(ctx, t, client, guardOf(t, "boxes", half))
		w.waitsFor(nil)
		if w.Synced() {
			t.Error("it claims to know")
		}
		<-time.After(syncPatience - time.Second)
		if w.Synced() {
			t.Error("it has no patience")
		}
		<-time.After(time.Second)
		w.waitsFor(nil)
		if !w.Synced() {
			t.Error("it waits for what may never come")
		}
		mu.Lock()
		if len(logged) == 0 || !strings.Contains(logged[0], `"watch of guarded objects interrupted" "policy"="boxes"`) {
			t.Errorf("%q", logged)
		}
		refused = false
		mu.Unlock()
		<-time.After(time.Minute)
		w.waitsFor(map[string]time.Duration{"u1": half})
		if !w.Synced() {
			t.Error("it does not know that it knows")
		}
	})
}

// TestWaitingLeavesNothingBehind: Start returns when all that it started has ended, also what
// was dropped before.
func TestWaitingLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := waitIn(t.Context(), t, fakeDynamic(t, sandbox("a", "Failed", "u1")), guardOf(t, "a", half), guardOf(t, "b", half), guardOf(t, "c", half))
		w.wants(guardOf(t, "a", half), guardOf(t, "d", half))
		before := time.Now()
		w.end()
		if time.Since(before) > 0 {
			t.Errorf("it took %s", time.Since(before))
		}
		if left := others(); len(left) > 0 {
			t.Errorf("still there:\n%s", strings.Join(left, "\n\n"))
		}
	})
}

// TestAWatchOfObjectsIsStoppedApart: who says what is wanted does not wait for what is not
// wanted any more; Start does, and for what is watched to the end.
func TestAWatchOfObjectsIsStoppedApart(t *testing.T) {
	t.Parallel()
	for name, dropped := range map[string]bool{"watched until the end": false, "dropped before": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				client := fakeDynamic(t)
				client.PrependReactor("list", "*", func(clienttesting.Action) (bool, apiruntime.Object, error) {
					return true, nil, errors.New("no answer")
				})
				release := make(chan struct{})
				ctx := logr.NewContext(t.Context(), funcr.New(func(string, string) { <-release }, funcr.Options{Verbosity: 1}))
				ctx, cancel := context.WithCancel(ctx)
				w := NewWaiting(client)
				w.Want(map[string]*RecoveryPolicy{"boxes": guardOf(t, "boxes", half)})
				done := make(chan struct{})
				go func() {
					defer close(done)
					_ = w.Start(ctx)
				}()
				synctest.Wait() // it is about to log
				if dropped {
					w.Want(nil) // does not hang
					if _, waits := w.For("lab", "u1"); waits || w.Any() {
						t.Error("something waits")
					}
				}
				cancel()
				synctest.Wait()
				select {
				case <-done:
					t.Error("it does not wait for it")
				default:
				}
				close(release)
				<-done
			})
		})
	}
}

// TestWhatIsNotWantedIsNotWatched any more.
func TestWhatIsNotWantedIsNotWatched(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := fakeDynamic(t)
		var mu sync.Mutex
		var watches []*watch.FakeWatcher
		client.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) {
			f := watch.NewFakeWithChanSize(10, false)
			mu.Lock()
			defer mu.Unlock()
			watches = append(watches, f)
			return true, f, nil
		})
		w := waitIn(t.Context(), t, client, guardOf(t, "boxes", half))
		if len(watches) != 1 || watches[0].IsStopped() {
			t.Fatalf("%d watches", len(watches))
		}
		w.wants(guardOf(t, "boxes", minute))
		synctest.Wait()
		if len(watches) != 2 || !watches[0].IsStopped() || watches[1].IsStopped() {
			t.Errorf("the old one goes on, of %d", len(watches))
		}
		w.wants()
		synctest.Wait()
		if len(watches) != 2 || !watches[1].IsStopped() {
			t.Errorf("it goes on, of %d", len(watches))
		}
	})
}

// TestWaitingIsUsedByManyAtOnce is for the race detector.
func TestWaitingIsUsedByManyAtOnce(t *testing.T) {
	t.Parallel()
	w := NewWaiting(fakeDynamic(t, sandbox("a", "Failed", "u1")))
	a, b := guardOf(t, "a", half), guardOf(t, "b", minute)
	ctx, cancel := context.WithCancel(t.Context())
	var start, users sync.WaitGroup
	start.Go(func() { _ = w.Start(ctx) })
	for i := range 8 {
		users.Go(func() {
			for n := range 25 {
				switch (n + i) % 5 {
				case 0:
					w.Want(map[string]*RecoveryPolicy{"a": a, "b": b})
				case 1:
					w.Want(map[string]*RecoveryPolicy{"b": b})
				case 2:
					w.Any()
				default:
					if f, waits := w.For("lab", "u1"); waits && f != half && f != minute {
						t.Errorf("%s", f)
					}
				}
			}
		})
	}
	users.Wait()
	cancel()
	start.Wait()
}

func TestFailedObjectsAreWhatAStoreNeeds(t *testing.T) {
	t.Parallel()
	p := guardOf(t, "boxes", half)
	object := sandbox("a", "Failed", "u1")
	object.SetResourceVersion("7")
	o, ok := failedOf(p, object).(*failedObject)
	if !ok {
		t.Fatalf("%+v", o)
	}
	if key, err := toolscache.MetaNamespaceKeyFunc(o); err != nil || key != "lab/a" {
		t.Errorf("%q %v", key, err)
	}
	if o.GetResourceVersion() != "7" || o.GetObjectMeta() != metav1.Object(o) || o.GetUID() != "" || o.GetLabels() != nil {
		t.Errorf("%+v", o)
	}
	if again := failedOf(p, o); again != any(o) {
		t.Errorf("its own result: %+v", again)
	}
	gone := toolscache.DeletedFinalStateUnknown{Key: "lab/a", Obj: o}
	if other := failedOf(p, gone); other != any(gone) {
		t.Errorf("%+v", other)
	}
	object = sandbox("a", "Failed", strings.Split(strings.Repeat("u,", 3*maxRecorded), ",")...)
	if o, ok := failedOf(p, object).(*failedObject); !ok || len(o.record) != maxRecorded || cap(o.record) > 2*maxRecorded {
		t.Errorf("%d are kept", len(o.record))
	}
	object.SetNamespace("")
	if key, err := toolscache.MetaNamespaceKeyFunc(failedOf(p, object)); err != nil || key != "a" {
		t.Errorf("of the cluster: %q %v", key, err)
	}
}

// TestAnObjectThatMayFailCostsLittleMemory is not parallel: it measures memory. Most objects
// have not failed.
func TestAnObjectThatMayFailCostsLittleMemory(t *testing.T) {
	const n, most = 10_000, 640
	client := fakeDynamic(t)
	client.PrependReactor("list", "*", func(clienttesting.Action) (bool, apiruntime.Object, error) {
		list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "sandbox.opensandbox.io/v1alpha1", "kind": "BatchSandboxList"}}
		for i := range n {
			o := sandbox(fmt.Sprintf("sandbox-with-an-ordinary-name-%05d", i), "Succeed")
			o.SetNamespace(fmt.Sprintf("team-%d", i%50))
			o.SetResourceVersion(fmt.Sprint(1_000_000 + i))
			o.SetAnnotations(map[string]string{"example.com/config": strings.Repeat("x", 1000)})
			if i%100 == 0 {
				if err := unstructured.SetNestedStringSlice(o.Object, []string{fmt.Sprintf("%08x-5b4a-4321-8fed-cba987654321", i)}, "status", "failedPodUIDs"); err != nil {
					return true, nil, err
				}
				o.Object["status"].(map[string]any)["phase"] = "Failed"
			}
			list.Items = append(list.Items, *o)
		}
		return true, list, nil
	})
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	w := NewWaiting(client)
	w.Want(map[string]*RecoveryPolicy{"boxes": guardOf(t, "boxes", half)})
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { _ = w.Start(ctx) })
	last := fmt.Sprintf("%08x-5b4a-4321-8fed-cba987654321", n-100)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(time.Minute); ; {
		if _, waits := w.For(fmt.Sprintf("team-%d", (n-100)%50), last); waits {
			break
		}
		select {
		case <-tick.C:
			continue
		case <-deadline:
			t.Error("the last object is not known")
		}
		break
	}
	client.ClearActions()
	each := (float64(heap()) - float64(before)) / n
	t.Logf("%.0f bytes an object", each)
	if each > most {
		t.Errorf("%.0f bytes of heap an object, more than %d", each, most)
	}
	if found := slices.Collect(maps.Keys(w.watches)); len(found) != 1 {
		t.Errorf("%q", found)
	}
	cancel()
	done.Wait()
}

// TestBeforeItRunsNothingIsKnown, unless there is nothing to know.
func TestBeforeItRunsNothingIsKnown(t *testing.T) {
	t.Parallel()
	w := NewWaiting(fakeDynamic(t, sandbox("a", "Failed", "u1")))
	if !w.Synced() || w.Any() {
		t.Error("something is wanted")
	}
	w.Want(map[string]*RecoveryPolicy{"boxes": guardOf(t, "boxes", half)})
	if _, waits := w.For("lab", "u1"); waits || w.Synced() || !w.Any() {
		t.Error("it claims to know")
	}
	w.Want(map[string]*RecoveryPolicy{"boxes": guardOf(t, "boxes", half, func(s *v1alpha1.RecoveryPolicySpec) { s.Evidence = v1alpha1.EvidenceKubelet })})
	if !w.Synced() {
		t.Error("what does not go by reports is not waited for")
	}
}
