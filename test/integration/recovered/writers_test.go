package recovered

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

const (
	manyWriters = 24
	// rounds are how often the object fails, in all of which each writer makes so many writes
	// while its Pod fails, and so many while it comes back, or is replaced.
	rounds, whileFailing, whileMending = 5, 2, 3
)

// TestManyWriters: 24 writers on one object, by every verb, some of them stale, some failing
// it and some bringing it back, while its Pods fail and recover, and belay-controller is one
// more. Every version that is stored follows from the one before; where that was in a
// failure and this is in a recovered phase, all recorded Pods were ready at some moment in
// between: resource versions of objects and of Pods are of one order. And asking belay
// leaves no trace: no write, and no event.
func TestManyWriters(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	k := &kind{t: t, names: opensandbox.Names{}, version: opensandbox.Version, admin: shared.Plane.Config()}
	k.namespace = shared.TestNamespace(ctx, t, "writers", v1alpha1.ModeEnforce)
	k.guarded = dynamicFor(t, k.admin).Resource(k.names.GVR(opensandbox.Version)).Namespace(k.namespace)
	k.past = k.guarded
	const box = "contended"
	pods := k.box(ctx, box, 2, nil)
	_, err := k.send(ctx, k.guarded, byMerge, box, status("Succeed", nil))
	must(t, err)

	objects := history(ctx, t, k.guarded)
	states := history(ctx, t, dynamicFor(t, k.admin).Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace(k.namespace))

	var codes tally
	var writers []*writer
	for i := range manyWriters {
		writers = append(writers, &writer{k: k, box: box, number: i, codes: &codes})
	}
	all := func(writes int, disturb func(), what func(w *writer, n int) object) {
		var wg sync.WaitGroup
		wg.Go(disturb)
		for _, w := range writers {
			wg.Go(func() {
				for n := range writes {
					w.write(ctx, n, what(w, n))
				}
			})
		}
		wg.Wait()
	}
	for round := range rounds {
		// A resume is the way out of everything.
		for _, phase := range []string{"Resuming", "Succeed"} {
			_, err := k.send(ctx, k.guarded, byMerge, box, object{"phase": phase})
			must(t, err)
		}
		pod := pods[round%len(pods)]
		crash := func() { must(t, opensandbox.Crash(ctx, shared.Client, pod, "CrashLoopBackOff")) }
		all(whileFailing, crash, func(w *writer, n int) object { return w.whileFailing(ctx, string(pod.UID), n) })
		mend := func() { must(t, opensandbox.Ready(ctx, shared.Client, pod)) }
		if round%3 == 2 {
			mend = func() { pods[round%len(pods)] = k.replace(ctx, pod) }
		}
		all(whileMending, mend, func(w *writer, n int) object { return w.whileMending(ctx, n) })
	}

	// What comes after the last write, such as a recovery by belay-controller, is seen or not.
	last := k.get(ctx, box)
	marked, err := shared.Kube.CoreV1().Pods(k.namespace).Patch(ctx, box+"-0", types.MergePatchType, []byte(`{"metadata":{"annotations":{"last":"one"}}}`), metav1.PatchOptions{})
	must(t, err)
	versions := objects.until(ctx, t, last.GetResourceVersion())
	j := &judge{t: t, pods: states.until(ctx, t, marked.ResourceVersion)}
	for i := 1; i < len(versions); i++ {
		if revision(t, versions[i]) > number(t, last.GetResourceVersion()) {
			break
		}
		if wrong := j.wrong(versions[i-1], versions[i]); wrong != "" {
			t.Errorf("%s\nfrom %s\nto   %s", wrong, encoded(t, versions[i-1].Object), encoded(t, versions[i].Object))
		}
	}
	stack.Report(t, "%d writers: %d versions stored, %d recoveries on evidence, answers %v", manyWriters, len(versions), j.recoveries, codes.counts)
	if len(versions) < manyWriters || j.recoveries == 0 || codes.counts[403] == 0 {
		t.Error("this test proves too little")
	}

	// The audit log is complete once it has a request that was made after all others.
	_, err = k.guarded.Get(ctx, "marker", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	var requests []audited
	stack.Eventually(ctx, t, "the marker in the audit log", func() error {
		requests = auditedIn(t, k.namespace)
		if !slices.ContainsFunc(requests, func(a audited) bool { return a.ObjectRef.Name == "marker" }) {
			return errors.New("not yet")
		}
		return nil
	})
	calls, events := 0, 0
	for _, a := range requests {
		switch {
		case a.guarded():
			calls++
		case a.by() == "system:serviceaccount:"+stack.Namespace+":"+stack.WebhookAccount && !a.reads():
			t.Errorf("the webhook writes: %s %s %s", a.Verb, a.ObjectRef.Resource, a.ObjectRef.Name)
		case a.ObjectRef.Resource == "events" && !a.reads():
			events++
		}
	}
	var list eventsv1.EventList
	must(t, shared.Client.List(ctx, &list, client.InNamespace(k.namespace)))
	for _, e := range list.Items {
		if e.ReportingController != "belay-controller" && !strings.HasPrefix(e.ReportingController, "kube") {
			t.Errorf("an event by %s: %s", e.ReportingController, e.Note)
		}
	}
	stack.Report(t, "%d writers: belay was asked about %d writes; belay-controller wrote %d times about events", manyWriters, calls, events)
	if calls < manyWriters*rounds || events > len(versions)/2 {
		t.Errorf("%d calls, %d writes of events, %d versions", calls, events, len(versions))
	}
}

// tally counts answers by their code.
type tally struct {
	mu     sync.Mutex
	counts map[int32]int
}

func (c *tally) add(code int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[int32]int{}
	}
	c.counts[code]++
}

// writer is one of many.
type writer struct {
	k      *kind
	box    string
	number int
	codes  *tally
	// stale is what it has seen a while ago.
	stale *unstructured.Unstructured
}

// Four writers each do the same thing, one by each verb. Each looks before it writes, which
// others may do in between; the last four look only now and then.

func (w *writer) whileFailing(ctx context.Context, uid string, n int) object {
	switch w.number / len(verbs) {
	case 0:
		return status("Failed", nil)
	case 1:
		return status("Failed", object{"failedPodUIDs": []string{uid}})
	case 2:
		return status("Succeed", nil)
	case 3:
		return status("Pending", object{"failedPodUIDs": []string{}})
	case 4:
		return status([]string{"Pausing", ""}[n%2], nil)
	}
	if n == 0 {
		w.stale = w.k.get(ctx, w.box)
	}
	return statusOf(w.stale)
}

func (w *writer) whileMending(ctx context.Context, n int) object {
	switch w.number / len(verbs) {
	case 0, 1:
		return statusOf(w.k.get(ctx, w.box)) // its counts alone
	case 2, 4:
		return status("Succeed", nil)
	case 3:
		return status("Pending", object{"failedPodUIDs": []string{}})
	}
	if n == 1 {
		w.stale = w.k.get(ctx, w.box)
	}
	return statusOf(w.stale)
}

// write makes one write.
func (w *writer) write(ctx context.Context, n int, fields object) {
	verb := verbs[w.number%len(verbs)]
	fields["ready"] = int64(w.number*10 + n) // so that there is something to write
	var err error
	if verb == byPut && w.stale != nil {
		u := w.stale.DeepCopy()
		u.Object["status"] = fields
		_, err = w.k.guarded.UpdateStatus(ctx, u, metav1.UpdateOptions{})
	} else {
		_, err = w.k.send(ctx, w.k.guarded, verb, w.box, fields)
	}
	var refused apierrors.APIStatus
	switch {
	case err == nil:
		w.codes.add(200)
	case !asStatus(err, &refused):
		w.k.t.Errorf("writer %d: %v", w.number, err)
	default:
		s := refused.Status()
		w.codes.add(s.Code)
		// A write that has lost too often against others is a conflict; on a busy machine, an
		// answer may come too late.
		late := s.Code >= 500 && (strings.Contains(s.Message, "deadline exceeded") || strings.Contains(s.Message, "timeout") || strings.Contains(s.Message, "could not be found out"))
		if s.Code != 403 && s.Code != 409 && !late {
			w.k.t.Errorf("writer %d by %s: %d: %v", w.number, verb, s.Code, err)
		}
	}
}

// replace puts another Pod of the same name in the place of one.
func (k *kind) replace(ctx context.Context, pod *corev1.Pod) *corev1.Pod {
	k.t.Helper()
	must(k.t, shared.Kube.CoreV1().Pods(k.namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	next := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, Labels: pod.Labels, OwnerReferences: pod.OwnerReferences}, Spec: pod.Spec}
	must(k.t, shared.Client.Create(ctx, next))
	must(k.t, opensandbox.Ready(ctx, shared.Client, next))
	return next
}

// chronicle is everything that has become of the objects of a resource.
type chronicle struct {
	c      dynamic.ResourceInterface
	mu     sync.Mutex
	events []watch.Event
}

// history watches from now on.
func history(ctx context.Context, t *testing.T, c dynamic.ResourceInterface) *chronicle {
	t.Helper()
	h := &chronicle{c: c}
	list, err := c.List(ctx, metav1.ListOptions{})
	must(t, err)
	for i := range list.Items {
		h.events = append(h.events, watch.Event{Type: watch.Added, Object: &list.Items[i]})
	}
	w, err := c.Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			h.mu.Lock()
			h.events = append(h.events, e)
			h.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		w.Stop()
		<-done
	})
	return h
}

// until is what there is up to a resource version, in order.
func (h *chronicle) until(ctx context.Context, t *testing.T, version string) []watch.Event {
	t.Helper()
	var out []watch.Event
	stack.Eventually(ctx, t, "the history up to "+version, func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		out = slices.Clone(h.events)
		if last := out[len(out)-1]; last.Type == watch.Error {
			t.Fatalf("the watch ended: %+v", last.Object)
		} else if revision(t, last) < number(t, version) {
			return fmt.Errorf("at %d", revision(t, last))
		}
		return nil
	})
	slices.SortStableFunc(out, func(a, b watch.Event) int { return cmp.Compare(revision(t, a), revision(t, b)) })
	return out
}

func revision(t *testing.T, e watch.Event) int64 {
	t.Helper()
	return number(t, e.Object.(*unstructured.Unstructured).GetResourceVersion())
}

func number(t *testing.T, version string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(version, 10, 64)
	must(t, err)
	return n
}

// judge compares versions with what had become of the Pods.
type judge struct {
	t *testing.T
	// pods is their history.
	pods       []watch.Event
	recoveries int
}

// wrong says what is wrong with a version that follows another.
func (j *judge) wrong(from, to watch.Event) string {
	before, after := from.Object.(*unstructured.Unstructured), to.Object.(*unstructured.Unstructured)
	was := stored{phase: phaseOf(before), record: strings.Join(record(j.t, before), " ")}
	is := stored{phase: phaseOf(after), record: strings.Join(record(j.t, after), " ")}
	kept := join(is.record, was.record) == is.record
	switch meaningOf(is.phase) {
	case alive:
		if is.record != "" {
			return "a recovered object has a record"
		}
		if !was.inFailure() {
			return ""
		}
		j.recoveries++
		return j.unproven(strings.Fields(was.record), revision(j.t, from), revision(j.t, to), phaseBy(j.t, after) == "belay-controller")
	case replacing:
		if is.record != "" {
			return "an object whose Pods are replaced has a record"
		}
	case failing:
		switch {
		case meaningOf(was.phase) == replacing && is.record != "":
			return "a failure to resume has a record"
		case meaningOf(was.phase) == failing && was.record == "" && is.record != "":
			return "a failure without a record has got one"
		case was.inFailure() && !kept:
			return "the record is narrower"
		}
	case between:
		switch {
		case was.inFailure() && is.record == "":
			return "nobody would know that it had failed"
		case was.inFailure() && !kept:
			return "the record is narrower"
		}
	}
	return ""
}

// phaseBy is the manager who wrote the phase.
func phaseBy(t *testing.T, u *unstructured.Unstructured) string {
	t.Helper()
	who := ""
	for _, m := range u.GetManagedFields() {
		var fields struct {
			Status map[string]any `json:"f:status"`
		}
		must(t, json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields))
		if _, ok := fields.Status["f:phase"]; ok {
			who = m.Manager
		}
	}
	return who
}

// unproven says why Pods had not recovered at any moment between two resource versions;
// empty where they had. belay-controller may bring back what it has brought back a moment
// ago, when all the Pods are those that it had then.
func (j *judge) unproven(uids []string, from, to int64, controller bool) string {
	if len(uids) == 0 && !controller || slices.Contains(uids, v1alpha1.NoPodUID) {
		return "it recovers, and nothing could be proven"
	}
	now := map[string]*corev1.Pod{}
	why := "there are no pods"
	for i, e := range j.pods {
		var p corev1.Pod
		must(j.t, runtime.DefaultUnstructuredConverter.FromUnstructured(e.Object.(*unstructured.Unstructured).Object, &p))
		if now[p.Name] = &p; e.Type == watch.Deleted {
			delete(now, p.Name)
		}
		if at := revision(j.t, e); at >= to {
			break
		}
		if i+1 < len(j.pods) && revision(j.t, j.pods[i+1]) <= from {
			continue // it is over before the window begins
		}
		if why = unready(now, uids); why == "" {
			return ""
		}
	}
	return "it recovers without evidence: " + why
}

// unready says which of the Pods with these UIDs is not ready, or which other fails.
func unready(pods map[string]*corev1.Pod, uids []string) string {
	found := 0
	for _, p := range pods {
		ready := p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].Ready
		switch {
		case slices.Contains(uids, string(p.UID)) && ready:
			found++
		case slices.Contains(uids, string(p.UID)):
			return fmt.Sprintf("pod %s (uid %s) is not ready", p.Name, p.UID)
		case p.DeletionTimestamp == nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil:
			return fmt.Sprintf("pod %s (uid %s) fails", p.Name, p.UID)
		}
	}
	if found < len(uids) {
		return fmt.Sprintf("of %v there are %d", uids, found)
	}
	return ""
}
