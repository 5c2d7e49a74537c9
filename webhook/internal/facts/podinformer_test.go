package facts

import (
	"context"
	"errors"
	"fmt"
	"net/http"
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
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/belay-dev/belay/webhook/internal/recovery"
)

// watching runs a PodWatch in a bubble whose clock goes on when nothing else does, until
// the test ends.
type watching struct {
	t      *testing.T
	client *fake.Clientset
	*PodWatch
	// end ends it and waits.
	end func()

	mu      sync.Mutex
	changes []PodChange
}

func watchIn(ctx context.Context, t *testing.T, client *fake.Clientset, selectors ...string) *watching {
	t.Helper()
	w := &watching{t: t, client: client}
	w.PodWatch = NewPodWatch(client, func(c PodChange) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.changes = append(w.changes, c)
	})
	w.Want(selectors)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- w.Start(ctx) }()
	w.end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%v", err)
		}
	})
	t.Cleanup(w.end)
	synctest.Wait()
	return w
}

// told are the changes since the last time.
func (w *watching) told() []PodChange {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.changes
	w.changes = nil
	return out
}

func (w *watching) found(q PodQuery) (names []string, ok bool) {
	pods, ok := w.Pods(q)
	names = namesOfPods(pods)
	slices.Sort(names)
	return names, ok
}

func (w *watching) expect(q PodQuery, ok bool, names ...string) {
	w.t.Helper()
	got, synced := w.found(q)
	if diff := cmp.Diff(names, got); diff != "" || synced != ok {
		w.t.Errorf("%+v: known %t (-want +got)\n%s", q, synced, diff)
	}
}

// requests are what the client was asked: verb, resource, selector.
func requests(c *fake.Clientset) []string {
	var out []string
	for _, a := range c.Actions() {
		switch a := a.(type) {
		case clienttesting.ListActionImpl:
			out = append(out, "list "+a.ListOptions.LabelSelector)
		case clienttesting.WatchActionImpl:
			out = append(out, "watch "+a.ListOptions.LabelSelector)
		default:
			out = append(out, a.GetVerb())
		}
	}
	return out
}

func TestWatchedPodsAreFoundByOwnerAndByName(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		elsewhere := podWith("elsewhere", "box", "box-uid")
		elsewhere.Namespace = "other"
		ownedOnly := podWith("owned-only", "box", "box-uid")
		ownedOnly.OwnerReferences[0].Controller = nil
		w := watchIn(t.Context(), t, fake.NewClientset(
			podWith("b", "box", "box-uid"), podWith("a", "box", "box-uid"), podWith("c", "box", "other-uid"), podWith("d", "box", ""), ownedOnly, elsewhere,
			podWith("p", "pool", "pool-uid"), podWith("q", "pool", "pool-uid"), podWith("x", "x", "box-uid"),
		), "app=box", "app=pool")
		w.expect(ofBoxA, true, "a", "b")
		w.expect(PodQuery{Namespace: "other", Selector: "app=box", Owner: "box-uid"}, true, "elsewhere")
		w.expect(PodQuery{Namespace: "lab", Selector: "app=box", Owner: "nobody"}, true)
		w.expect(PodQuery{Namespace: "lab", Selector: "app=pool", Names: []string{"q", "gone", "p", "a"}}, true, "p", "q")
		w.expect(PodQuery{Namespace: "other", Selector: "app=pool", Names: []string{"p"}}, true)
		w.expect(PodQuery{Namespace: "lab", Selector: "app=pool"}, true)
		w.expect(PodQuery{Namespace: "lab"}, true)
		w.expect(PodQuery{Namespace: "lab", Selector: "app=x", Owner: "box-uid"}, false)
		pods, _ := w.Pods(PodQuery{Namespace: "lab", Selector: "app=pool", Names: []string{"p"}})
		if diff := cmp.Diff([]recovery.Pod{recovery.PodOf(podWith("p", "pool", "pool-uid"))}, pods); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	})
}

// TestNothingIsKnownBeforeAllOfItIs: an empty answer would be an absence.
func TestNothingIsKnownBeforeAllOfItIs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(podWith("a", "box", "box-uid"))
		refused := true
		var mu sync.Mutex
		client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, apiruntime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			return refused, nil, apierrors.NewForbidden(podsResource, "", errors.New("no right"))
		})
		var logged []string
		ctx := logr.NewContext(t.Context(), funcr.New(func(_, args string) {
			mu.Lock()
			defer mu.Unlock()
			logged = append(logged, args)
		}, funcr.Options{Verbosity: 1}))
		w := watchIn(ctx, t, client, "app=box")
		w.expect(ofBoxA, false)
		w.expect(PodQuery{Namespace: "lab", Selector: "app=box", Names: []string{"a"}}, false)
		w.expect(PodQuery{Namespace: "lab"}, true) // no entry is for it, whatever else is known
		<-time.After(10 * time.Second)
		w.expect(ofBoxA, false)
		mu.Lock()
		if len(logged) == 0 || !strings.Contains(logged[0], `"watch of pods interrupted" "selector"="app=box"`) {
			t.Errorf("%q", logged)
		}
		refused = false
		mu.Unlock()
		<-time.After(time.Minute) // it goes on trying
		w.expect(ofBoxA, true, "a")
	})
	// Nor before it runs.
	w := NewPodWatch(fake.NewClientset(), nil)
	w.Want([]string{"app=box"})
	if pods, ok := w.Pods(ofBoxA); ok || pods != nil {
		t.Errorf("%v", pods)
	}
	if _, ok := w.Pods(PodQuery{}); !ok {
		t.Error("no Pods at all are known without a watch")
	}
}

func TestChangesAreTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(podWith("a", "box", "box-uid"))
		w := watchIn(t.Context(), t, client, "app=box")
		expect := func(want ...PodChange) {
			t.Helper()
			synctest.Wait()
			if diff := cmp.Diff(want, w.told()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		}
		a, b := PodChange{Namespace: "lab", Name: "a", Controller: "box-uid"}, PodChange{Namespace: "lab", Name: "b"}
		expect(a)
		pods := client.CoreV1().Pods("lab")
		made := podWith("b", "box", "")
		if _, err := pods.Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		expect(b)
		made.Status.Phase, made.ResourceVersion = corev1.PodFailed, "8"
		if _, err := pods.UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		expect(b)
		found, ok := w.Pods(PodQuery{Namespace: "lab", Selector: "app=box", Names: []string{"b"}})
		if !ok || len(found) != 1 || found[0].Phase != corev1.PodFailed {
			t.Errorf("%+v", found)
		}
		made.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Box", Name: "x", UID: "x-uid", Controller: new(true)}}
		made.ResourceVersion = "9"
		if _, err := pods.Update(t.Context(), made, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		expect(b, PodChange{Namespace: "lab", Name: "b", Controller: "x-uid"}) // who has lost it hears of it, too
		if err := pods.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		expect(a)
		w.expect(ofBoxA, true)
	})
}

// TestAPodThatWentWhileNobodyWatchedIsTold: of it only the last state is known.
func TestAPodThatWentWhileNobodyWatchedIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(podWith("a", "box", "box-uid"))
		var mu sync.Mutex
		var watches []*watch.FakeWatcher
		client.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) {
			f := watch.NewFakeWithChanSize(10, false)
			mu.Lock()
			watches = append(watches, f)
			mu.Unlock()
			return true, f, nil
		})
		w := watchIn(t.Context(), t, client, "app=box")
		w.told()
		if err := client.CoreV1().Pods("lab").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		w.expect(ofBoxA, true, "a") // it has not heard of that
		mu.Lock()
		watches[0].Error(&metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired})
		mu.Unlock()
		<-time.After(time.Minute)
		w.expect(ofBoxA, true)
		if diff := cmp.Diff([]PodChange{{Namespace: "lab", Name: "a", Controller: "box-uid"}}, w.told()); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	})
}

// TestOnlyWhatIsWantedIsWatched: what is not wanted any more is forgotten, and what goes on
// being wanted is not read again.
func TestOnlyWhatIsWantedIsWatched(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(podWith("a", "box", "box-uid"), podWith("p", "pool", ""))
		w := watchIn(t.Context(), t, client, "app=box")
		pool := PodQuery{Namespace: "lab", Selector: "app=pool", Names: []string{"p"}}
		asked := func(want ...string) {
			t.Helper()
			synctest.Wait()
			got := requests(client)
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			client.ClearActions()
		}
		asked("list app=box", "watch app=box")
		w.Want([]string{"app=pool", "app=box", "app=box"})
		asked("list app=pool", "watch app=pool")
		w.expect(ofBoxA, true, "a")
		w.expect(pool, true, "p")
		w.Want([]string{"app=box", "app=pool"})
		asked()
		w.Want([]string{"app=pool"})
		asked()
		w.expect(ofBoxA, false)
		w.expect(pool, true, "p")
		w.told()
		if _, err := client.CoreV1().Pods("lab").Create(t.Context(), podWith("late", "box", "box-uid"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		client.ClearActions()
		synctest.Wait()
		for _, c := range w.told() {
			// The fake's watches do not select; those of the API server do.
			if c.Name != "late" || len(w.watches) != 1 {
				t.Errorf("%+v", c)
			}
		}
		w.Want([]string{"app=box"})
		asked("list app=box", "watch app=box")
		w.expect(ofBoxA, true, "a", "late")
		w.expect(pool, false)
		w.Want(nil)
		w.expect(ofBoxA, false)
		w.end()
		w.Want([]string{"app=box"})
		asked()
	})
}

// TestAWatchThatIsDroppedWhileItTellsDoesNotHang: who is told may be about to change what is
// wanted.
func TestAWatchThatIsDroppedWhileItTellsDoesNotHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w *PodWatch
		w = NewPodWatch(fake.NewClientset(podWith("a", "box", "")), func(PodChange) { w.Want([]string{"app=pool"}) })
		w.Want([]string{"app=box"})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = w.Start(ctx)
		}()
		synctest.Wait()
		if _, ok := w.Pods(ofBoxA); ok {
			t.Error("it is watched still")
		}
		cancel()
		<-done
	})
}

// TestAPodWatchLeavesNothingBehind: Start returns when all that it started has ended.
func TestAPodWatchLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	for range 3 {
		// A bubble does not end before its goroutines do; they must, without the clock.
		synctest.Test(t, func(t *testing.T) {
			w := watchIn(t.Context(), t, fake.NewClientset(manyObjects(100)...), "app=box", "app=pool", "app=x")
			w.Want([]string{"app=box"})
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
}

// TestStartWaitsForWhoIsStillTold: an informer that is stopped, now or before, may be about
// to tell a change.
func TestStartWaitsForWhoIsStillTold(t *testing.T) {
	t.Parallel()
	for name, last := range map[string][]string{"watched until the end": {"app=box"}, "dropped before": nil} {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			w := NewPodWatch(fake.NewClientset(podWith("a", "box", "")), func(PodChange) { <-release })
			w.Want([]string{"app=box"})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = w.Start(ctx)
			}()
			synctest.Wait()
			w.Want(last)
			cancel()
			synctest.Wait()
			select {
			case <-done:
				t.Errorf("%s: it does not wait", name)
			default:
			}
			close(release)
			<-done
		})
	}
}

// others are the goroutines of the bubble beside the caller's and the bubble's own.
func others() []string {
	own := make([]byte, 200)
	own = own[:runtime.Stack(own, false)]
	_, bubble, _ := strings.Cut(string(own), "synctest bubble ")
	bubble, _, _ = strings.Cut(bubble, "]")
	buf := make([]byte, 4<<20)
	var out []string
	for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		first, _, _ := strings.Cut(g, "\n")
		if strings.Contains(first, "synctest bubble "+bubble+"]") && !strings.Contains(g, "facts.others(") && !strings.Contains(g, "testing/synctest.Test") {
			out = append(out, g)
		}
	}
	return out
}

func manyObjects(n int) []apiruntime.Object {
	var out []apiruntime.Object
	for _, p := range manyPods(n) {
		out = append(out, p)
	}
	return out
}

// TestAPodWatchIsUsedByManyAtOnce is for the race detector.
func TestAPodWatchIsUsedByManyAtOnce(t *testing.T) {
	t.Parallel()
	w := NewPodWatch(fake.NewClientset(manyObjects(50)...), nil)
	ctx, cancel := context.WithCancel(t.Context())
	var start, users sync.WaitGroup
	start.Go(func() { _ = w.Start(ctx) })
	for i := range 8 {
		users.Go(func() {
			for n := range 25 {
				switch (n + i) % 4 {
				case 0:
					w.Want([]string{"app=box", "app=pool"})
				case 1:
					w.Want([]string{"app=pool"})
				default:
					if pods, ok := w.Pods(ofBoxA); ok && len(pods) != 45 {
						t.Errorf("%d pods", len(pods))
					}
				}
			}
		})
	}
	users.Wait()
	cancel()
	start.Wait()
}

func TestStrip(t *testing.T) {
	t.Parallel()
	p := fullPod()
	p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: strings.Repeat("x", 10_000)}}
	got, err := strip(p)
	w, ok := got.(*watchedPod)
	if err != nil || !ok {
		t.Fatalf("%v %v", got, err)
	}
	if diff := cmp.Diff(cloned(recovery.PodOf(p)), w.pod); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	m, err := meta.Accessor(got)
	if err != nil || m.GetNamespace() != "lab" || m.GetName() != p.Name || m.GetUID() != p.UID || m.GetResourceVersion() != "7" || m.GetManagedFields() != nil || w.GetObjectMeta() != m {
		t.Errorf("%+v %v", m, err)
	}
	if again, err := strip(got); err != nil || again != got {
		t.Errorf("its own result: %v %v", again, err)
	}
	gone := toolscache.DeletedFinalStateUnknown{Key: "lab/a", Obj: got}
	if other, err := strip(gone); err != nil || other != gone {
		t.Errorf("%v %v", other, err)
	}
	for name, c := range map[string]struct {
		obj  any
		want []string
	}{
		"its controller's": {w, []string{string(p.OwnerReferences[0].UID)}}, "none": {&watchedPod{}, nil}, "something else": {p, nil}, "nothing": {nil, nil},
	} {
		if keys, err := controllerOf(c.obj); err != nil || cmp.Diff(c.want, keys) != "" {
			t.Errorf("%s: %v %v", name, keys, err)
		}
	}
	if key, err := toolscache.MetaNamespaceKeyFunc(w); err != nil || key != "lab/"+p.Name {
		t.Errorf("%q %v", key, err)
	}
}

// ordinaryPod is one as controllers make it, with what the kubelet writes.
func ordinaryPod(i int) corev1.Pod {
	name := fmt.Sprintf("sandbox-with-an-ordinary-name-%05d-0", i)
	uid := fmt.Sprintf("%08x-5b4a-4321-8fed-cba987654321", i)
	id := func(c string) string { return "containerd://" + strings.Repeat(fmt.Sprintf("%02x", i%256), 31) + c }
	env := make([]corev1.EnvVar, 20)
	for j := range env {
		env[j] = corev1.EnvVar{Name: fmt.Sprintf("SOME_VARIABLE_%d", j), Value: fmt.Sprintf("some value %d of %d", j, i)}
	}
	always := corev1.ContainerRestartPolicyAlways
	container := func(c string) corev1.Container {
		return corev1.Container{
			Name: c, Image: "registry.example.com/team/image:1.2.3", Env: env, Command: []string{"/bin/sh", "-c", "exec server"},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("1Gi")}},
		}
	}
	running := func(c string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: c, Ready: true, ContainerID: id(c[:2]), Image: "registry.example.com/team/image:1.2.3", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	}
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: fmt.Sprintf("team-%d", i%50), Name: name, UID: types.UID(uid), ResourceVersion: fmt.Sprint(1_000_000 + i),
			Labels:          map[string]string{"app": "box", "batch-sandbox.sandbox.opensandbox.io/name": name, "pod-template-hash": fmt.Sprint(i)},
			Annotations:     map[string]string{"kubectl.kubernetes.io/default-container": "sandbox", "example.com/config": strings.Repeat("x", 500)},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Box", Name: name, UID: types.UID("c" + uid[1:]), Controller: new(true)}},
			ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(strings.Repeat("y", 1000))}},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{container("sandbox"), container("proxy")}, InitContainers: []corev1.Container{container("belay")}},
		Status: corev1.PodStatus{
			Phase:                 corev1.PodRunning,
			Conditions:            []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: "belay.dev/MainReady", Status: corev1.ConditionTrue, Message: id("sa") + ": ready"}},
			ContainerStatuses:     []corev1.ContainerStatus{running("proxy"), running("sandbox")},
			InitContainerStatuses: []corev1.ContainerStatus{running("belay")},
		},
	}
	p.Spec.InitContainers[0].RestartPolicy = &always
	return p
}

// TestAWatchedPodCostsLittleMemory is not parallel: it measures memory. The aim is 1 KiB of
// heap a Pod.
func TestAWatchedPodCostsLittleMemory(t *testing.T) {
	const n, most = 10_000, 2048
	client := fake.NewClientset()
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, apiruntime.Object, error) {
		list := &corev1.PodList{Items: make([]corev1.Pod, n)}
		for i := range list.Items {
			list.Items[i] = ordinaryPod(i)
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
	told := 0
	var mu sync.Mutex
	all := make(chan struct{})
	w := NewPodWatch(client, func(PodChange) {
		mu.Lock()
		defer mu.Unlock()
		if told++; told == n {
			close(all)
		}
	})
	w.Want([]string{"app=box"})
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { _ = w.Start(ctx) })
	select {
	case <-all:
	case <-time.After(time.Minute):
		t.Error("not all were told")
	}
	each := (float64(heap()) - float64(before)) / n
	t.Logf("%.0f bytes a Pod", each)
	if each > most {
		t.Errorf("%.0f bytes of heap a Pod, more than %d", each, most)
	}
	p := ordinaryPod(7)
	pods, ok := w.Pods(PodQuery{Namespace: p.Namespace, Selector: "app=box", Owner: p.OwnerReferences[0].UID})
	if !ok || cmp.Diff([]recovery.Pod{cloned(recovery.PodOf(&p))}, pods) != "" {
		t.Errorf("%+v", pods)
	}
	cancel()
	done.Wait()
}
