package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/metrics"
	rules "github.com/belay-dev/belay/webhook/internal/recovery"
	"github.com/belay-dev/belay/webhook/internal/wording"
)

const (
	// workers look at objects of one policy at a time.
	workers = 2
	// lookTimeout bounds one look with all its reads and its write.
	lookTimeout = 30 * time.Second
	// firstRetry and lastRetry bound the wait after trouble. Every change of the object or of
	// its Pods comes before it.
	firstRetry, lastRetry = time.Second, 5 * time.Minute
	// grace is how long the evidence has to hold before belay writes: the object's own
	// controller hears of the same Pods at the same time. One that recovers by itself is left
	// to do so, and one that only counts its Pods has then written its counts, and with them
	// the old phase.
	grace = time.Second
	// remembered is how long a recovery is remembered, and maxAgain how often in that time it
	// is done again: a controller's write that was under way puts the old phase back.
	remembered = 20 * time.Second
	maxAgain   = 3
	// An object that was brought back contested times, each less than contestedFor after the
	// last, is fought about: from then on the evidence has to hold twice as long each time, up
	// to lastRetry. A Pod that crashes and comes back takes longer: the kubelet waits, too.
	contested    = 5
	contestedFor = time.Minute
	// settled is how long an object is left alone after a look at the API server itself that
	// led to nothing: its Pods may change as often as somebody likes.
	settled = time.Second
	// unwitnessed is how long a recovery has waited for nothing but a witness before that is
	// told: the kubelet and the sidecar hear of a Pod at about the same time.
	unwitnessed = 10 * time.Second
	// patience is how often in a row trouble of the API server is passed over in silence.
	patience = 3
	// syncRetry is how long to wait for the informer of Pods to be ready.
	syncRetry = 500 * time.Millisecond
)

// Labels of the metric that counts looks, beside the rules' reasons.
const (
	countConflict = "Conflict"
	countRefused  = "WriteRefused"
	// countContested: an object was brought back again and again.
	countContested = "Contested"
)

// driver brings back the objects of one policy.
type driver struct {
	policy  *facts.RecoveryPolicy
	log     logr.Logger
	objects cache.SharedIndexInformer
	pods    facts.CachedPods
	live    *facts.Pods
	// namespaces reads a cache of their metadata.
	namespaces client.Reader
	client     client.Client
	events     events.EventRecorder
	own        string

	queue workqueue.TypedRateLimitingInterface[types.NamespacedName]
	mu    sync.Mutex
	// told is what the last event of an object said: it is told once.
	told map[types.NamespacedName]string
	// since is when what is to be done for an object was first to be done.
	since map[types.NamespacedName]seen
	// often counts recoveries of an object, and slow says until when it is left alone.
	often map[types.NamespacedName]frequency
	slow  map[types.NamespacedName]slowed
	// recent are recoveries of a moment ago.
	recent map[types.NamespacedName]recovery
	done   sync.WaitGroup
	stop   context.CancelFunc
}

// seen is a reason to do something, and when it came.
type seen struct {
	reason rules.Reason
	at     time.Time
}

// frequency is how often an object was brought back, and when it was the last time.
type frequency struct {
	uid   types.UID
	count int
	last  time.Time
}

// slowed says until when an object is left alone, and how often in a row that came about.
type slowed struct {
	until time.Time
	count int
}

// recovery is what is remembered of one: all the Pods that the object had then. While these
// very Pods are there, those that were ready are, and none fails, none has failed since.
type recovery struct {
	uid types.UID
	// generation is that of the object: nobody has asked for anything else since.
	generation int64
	// version is the resourceVersion that was recovered from.
	version string
	// names are those of its Pods, where an annotation gives them.
	names []string
	pods  []string
	// ready are those of the Pods that the evidence counts: the recorded ones, and others
	// that were ready. One that only is not ready yet does not keep an object failed.
	ready []string
	at    time.Time
	again int
}

// start runs the driver until the context ends or stop is called.
func (d *driver) start(ctx context.Context) {
	ctx, d.stop = context.WithCancel(ctx)
	d.told, d.since, d.recent = map[types.NamespacedName]string{}, map[types.NamespacedName]seen{}, map[types.NamespacedName]recovery{}
	d.often, d.slow = map[types.NamespacedName]frequency{}, map[types.NamespacedName]slowed{}
	d.queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](firstRetry, lastRetry))
	add := func(obj any) {
		if u, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = u.Obj
		}
		if o, ok := obj.(*object); ok {
			d.queue.Add(o.key())
		}
	}
	// Neither fails on an informer that does not run yet.
	_, _ = d.objects.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: add, DeleteFunc: add, UpdateFunc: func(_, obj any) {
		d.passed(obj)
		add(obj)
	}})
	_ = d.objects.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		d.log.V(1).Info("watch of guarded objects interrupted", "error", err.Error())
	})
	d.done.Go(func() { d.objects.RunWithContext(ctx) })
	d.done.Go(func() {
		<-ctx.Done()
		d.queue.ShutDown()
	})
	for range workers {
		d.done.Go(func() {
			if !cache.WaitForCacheSync(ctx.Done(), d.objects.HasSynced) {
				return
			}
			for d.next(ctx) {
			}
		})
	}
}

// end stops the driver and waits for it.
func (d *driver) end() {
	d.stop()
	d.done.Wait()
}

func (d *driver) next(ctx context.Context) bool {
	key, shutdown := d.queue.Get()
	if shutdown {
		return false
	}
	defer d.queue.Done(key)
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	switch err := d.look(ctx, key); {
	case err == nil:
		d.queue.Forget(key)
	case errors.Is(err, errNotSynced):
		d.queue.AddAfter(key, syncRetry)
	default:
		d.log.V(1).Info("look put off", "namespace", key.Namespace, "name", key.Name, "error", err.Error())
		d.queue.AddRateLimited(key)
	}
	return true
}

// kind is that of the policy's objects.
func (d *driver) kind() schema.GroupVersionKind {
	return facts.ResourceOf(d.policy.Resource).GroupVersion().WithKind(d.policy.Resource.Kind)
}

// podChanged looks at the objects that a Pod belongs to.
func (d *driver) podChanged(c facts.PodChange) {
	if c.Controller != "" {
		d.enqueue(byUID, string(c.Controller))
	}
	d.enqueue(byPod, c.Namespace+"/"+c.Name)
}

// namespaceChanged looks at the objects of a namespace, whose mode may be another.
func (d *driver) namespaceChanged(name string) { d.enqueue(byNamespace, name) }

func (d *driver) enqueue(index, key string) {
	found, err := d.objects.GetIndexer().ByIndex(index, key)
	if err != nil {
		return // there are these three
	}
	for _, obj := range found {
		o, ok := obj.(*object)
		if !ok {
			continue
		}
		d.unsettled(o)
		if d.policy.IsFailed(o.status.Phase) || o.about.Allowed {
			d.queue.Add(o.key())
		}
	}
}

var errNotSynced = errors.New("the informers are not synced yet")

// look looks at one object.
func (d *driver) look(ctx context.Context, key types.NamespacedName) error {
	obj, exists, err := d.objects.GetStore().GetByKey(key.String())
	o, ok := obj.(*object)
	if err != nil || !exists || !ok || o.about.Deleting {
		d.forget(key)
		return nil
	}
	var ns metav1.PartialObjectMetadata
	ns.SetGroupVersionKind(facts.NamespaceKind)
	if err := d.namespaces.Get(ctx, client.ObjectKey{Name: key.Namespace}, &ns); err != nil {
		return client.IgnoreNotFound(err)
	}
	mode := acts(d.policy, d.own, &ns)
	if mode == "" || ns.DeletionTimestamp != nil {
		return nil
	}
	if !d.policy.IsFailed(o.status.Phase) {
		d.forget(key)
		if o.about.Allowed && o.status.Problem == "" && len(o.status.Record.UIDs) == 0 && mode == v1alpha1.ModeEnforce {
			return d.disallow(ctx, o)
		}
		return nil
	}
	if o.problem != "" {
		d.tell(o, note{corev1.EventTypeWarning, v1alpha1.ReasonNotRecoverable, rules.ReasonExpressionFailed, o.problem, nil})
		return nil
	}
	verdict, err := d.suggests(o)
	if err != nil {
		return err
	}
	metrics.Recoveries.WithLabelValues(string(verdict.Reason)).Inc()
	final := !verdict.Allowed && verdict.Final()
	if verdict.Reason == rules.ReasonNoRecord && mode == v1alpha1.ModeWarn {
		final = false // nothing is recorded there, where enforce would have
	}
	if pod, waits := waitsForWitness(verdict); waits && !final {
		d.witnessMissing(key, o, pod)
		return nil
	}
	if !final && (!recovers(verdict) || d.policy.Spec.Recover != v1alpha1.RecoverAuto) {
		d.forget(key)
		return nil
	}
	if left := d.holds(key, o.UID, verdict.Reason); left > 0 {
		d.queue.AddAfter(key, left)
		return nil
	}
	switch {
	case final:
		d.tell(o, note{corev1.EventTypeWarning, v1alpha1.ReasonNotRecoverable, verdict.Reason, verdict.Lasting(), nil})
	case mode == v1alpha1.ModeWarn:
		d.tell(o, note{corev1.EventTypeNormal, v1alpha1.ReasonRecovered, verdict.Reason, "mode warn: enforce would bring it back to " + string(d.policy.Spec.Recovered.Phase) + ": " + because(verdict), related(key.Namespace, verdict)})
	default:
		if left := d.alone(key); left > 0 {
			d.queue.AddAfter(key, left)
			return nil
		}
		return d.recover(ctx, key, o)
	}
	return nil
}

// waitsForWitness reports whether nothing but sidecars' reports is missing for a recovery, and
// is the first Pod of those that are without.
func waitsForWitness(verdict rules.Decision) (pod rules.Verdict, waits bool) {
	if verdict.Allowed {
		return pod, false
	}
	for _, v := range verdict.Evidence {
		switch {
		case v.OK():
		case !v.Reason.OfWitness():
			return pod, false
		case !waits:
			pod, waits = v, true
		}
	}
	return pod, waits
}

// witnessMissing tells, once it has lasted, that a recovery waits for nothing but a witness.
func (d *driver) witnessMissing(key types.NamespacedName, o *object, pod rules.Verdict) {
	if left := d.held(key, pod.Reason, unwitnessed); left > 0 {
		d.queue.AddAfter(key, left)
		return
	}
	// Without the details, which change with each report: it is told once.
	news := d.tell(o, note{corev1.EventTypeWarning, v1alpha1.ReasonRecoveryWaits, pod.Reason, fmt.Sprintf(
		"all that is missing for its recovery is a sidecar's word on pod %s (uid %s): %s", pod.Pod, pod.UID, pod.Reason.OfWitnessWords()),
		&corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: key.Namespace, Name: pod.Pod, UID: pod.UID}})
	if news && pod.NoSidecar {
		metrics.WithoutSidecar.Inc()
	}
}

// holds notes why something is to be done for an object, and says for how much longer that
// has to last: a Pod that is replaced is gone for a moment.
func (d *driver) holds(key types.NamespacedName, uid types.UID, reason rules.Reason) time.Duration {
	d.mu.Lock()
	wait := d.wait(key, uid)
	d.mu.Unlock()
	return d.held(key, reason, wait)
}

// held notes why something is as it is for an object, and says how much is left of the time
// that it has to last.
func (d *driver) held(key types.NamespacedName, reason rules.Reason, wait time.Duration) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	first, ok := d.since[key]
	if !ok || first.reason != reason {
		first = seen{reason: reason, at: time.Now()}
		d.since[key] = first
	}
	return wait - time.Since(first.at)
}

// wait is how long the evidence has to hold.
func (d *driver) wait(key types.NamespacedName, uid types.UID) time.Duration {
	f := d.often[key]
	if f.uid != uid || f.over() {
		return grace
	}
	return f.wait()
}

func (f frequency) wait() time.Duration {
	if f.count < contested {
		return grace
	}
	return min(grace<<min(f.count-contested+1, 10), lastRetry)
}

// over reports whether the last recovery was too long ago to count.
func (f frequency) over() bool { return time.Since(f.last) > max(contestedFor, 3*f.wait()) }

// count notes a recovery, and says how many there were of late. Those that are long over are
// forgotten.
func (d *driver) count(key types.NamespacedName, uid types.UID) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, f := range d.often {
		if f.over() {
			delete(d.often, k)
		}
	}
	f := d.often[key]
	if f.uid != uid {
		f = frequency{uid: uid}
	}
	f.count, f.last = f.count+1, time.Now()
	d.often[key] = f
	return f.count
}

// alone says for how much longer an object is left alone.
func (d *driver) alone(key types.NamespacedName) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Until(d.slow[key].until)
}

// leave leaves an object alone for a while: for longer each time where its recovery was
// refused.
func (d *driver) leave(key types.NamespacedName, refused bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.slow[key]
	wait := settled
	if refused {
		wait = min(settled<<min(s.count, 10), lastRetry)
		s.count++
	}
	s.until = time.Now().Add(wait)
	d.slow[key] = s
}

// passed ends the memory of a recovery when the object has been in any phase since but the
// failed and the recovered ones, or has failed in a way of its own. It is told of every
// version, where a look sees the newest only.
func (d *driver) passed(obj any) {
	o, ok := obj.(*object)
	if !ok {
		return
	}
	key := o.key()
	d.mu.Lock()
	defer d.mu.Unlock()
	r, ok := d.recent[key]
	switch {
	case !ok || r.uid != o.UID:
	case !after(o.ResourceVersion, r.version):
		// It is what the object has recovered from.
	case !d.unchanged(o), !slices.Equal(o.query.Names, r.names):
		delete(d.recent, key)
	}
}

// after reports whether one version of an object came after another.
func after(version, other string) bool {
	order, err := resourceversion.CompareResourceVersion(version, other)
	return err != nil || order > 0
}

// unchanged reports whether an object is recovered, or failed again without a sign of a
// failure of its own.
func (d *driver) unchanged(o *object) bool {
	if o.status.Problem != "" || o.about.ResumeInFlight || o.status.Terminal {
		return false
	}
	return d.policy.IsRecovered(o.status.Phase) || (d.policy.IsFailed(o.status.Phase) && len(o.status.Record.UIDs) == 0)
}

// remember notes a recovery that is about to be written, and forgets those that are long
// over. pods are all Pods of the object, recovered on the evidence of some of them or, by an
// annotation, on none: then all have to be ready. What is returned takes it back, if it was not
// written: then what was remembered before counts again.
func (d *driver) remember(o *object, current *unstructured.Unstructured, pods []rules.Pod, evidence bool) (undo func()) {
	key := o.key()
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, r := range d.recent {
		if time.Since(r.at) > remembered {
			delete(d.recent, k)
		}
	}
	r := recovery{uid: current.GetUID(), generation: current.GetGeneration(), version: current.GetResourceVersion(), names: o.query.Names, at: time.Now()}
	last, known := d.recent[key]
	if known && last.uid == r.uid {
		r.at, r.again = last.at, last.again+1
	}
	for _, p := range pods {
		if p.Deleting {
			continue
		}
		uid := string(p.UID)
		r.pods = append(r.pods, uid)
		if !evidence || d.policy.Evidence([]string{uid}, []rules.Pod{p}, time.Now())[0].OK() {
			r.ready = append(r.ready, uid)
		}
	}
	d.recent[key] = r
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if _, ok := d.recent[key]; !ok {
			return // ended meanwhile
		}
		delete(d.recent, key)
		if known {
			d.recent[key] = last
		}
	}
}

// unsettled ends the memory of an object's recovery when its Pods are not the same any more,
// or not all ready: what fails it then may be new.
func (d *driver) unsettled(o *object) {
	key := o.key()
	d.mu.Lock()
	r, ok := d.recent[key]
	d.mu.Unlock()
	if !ok || r.uid != o.UID {
		return
	}
	pods, synced := d.pods.Pods(o.query)
	var there []string
	for _, p := range pods {
		if !p.Deleting {
			there = append(there, string(p.UID))
		}
	}
	same := synced && sets.New(there...).Equal(sets.New(r.pods...))
	for _, v := range d.policy.Evidence(r.ready, pods, time.Now()) {
		same = same && v.OK()
	}
	if same {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.recent, key)
}

// stale is the record to go by for an object that is failed without one a moment after belay
// had brought it back: the Pods that it had then. The write that failed it was under way
// before, or it is a new failure, and then these Pods are not all there and ready.
func (d *driver) stale(key types.NamespacedName, o metav1.Object, was rules.Status) (now rules.Status, yes bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, ok := d.recent[key]
	if !ok || r.uid != o.GetUID() || r.generation != o.GetGeneration() || len(r.ready) == 0 || r.again >= maxAgain || time.Since(r.at) > remembered {
		return was, false
	}
	if len(was.Record.UIDs) > 0 || was.Terminal {
		return was, false
	}
	was.Record.UIDs = r.ready
	return was, true
}

// suggests is the decision as far as the informers know.
func (d *driver) suggests(o *object) (rules.Decision, error) {
	pods, synced := d.pods.Pods(o.query)
	if !synced {
		return rules.Decision{}, errNotSynced
	}
	phase := d.policy.Recovered[0]
	if d.policy.Spec.Recovered != nil {
		phase = d.policy.Spec.Recovered.Phase
	}
	was, _ := d.stale(o.key(), o, o.status)
	in := input(d.policy, o.about, was, rules.Status{Phase: string(phase)}, time.Now())
	in.Pods = rules.PodsFact{State: fact.Known, Live: true, Pods: pods}
	return rules.Decide(in), nil
}

// recover decides once more, on what the API server itself says, and writes. looked is the
// object as the informer has it.
func (d *driver) recover(ctx context.Context, key types.NamespacedName, looked *object) (err error) {
	done, refused := false, false
	defer func() {
		if !done {
			d.leave(key, refused)
		}
	}()
	current := &unstructured.Unstructured{}
	current.SetGroupVersionKind(d.kind())
	if err := d.client.Get(ctx, key, current); err != nil {
		return client.IgnoreNotFound(err)
	}
	was := d.policy.Layout.Read(current.Object)
	if !d.policy.IsFailed(was.Phase) || was.Problem != "" {
		return nil // somebody else was faster
	}
	desired, err := recovered(d.policy, current, time.Now())
	if err != nil {
		return err
	}
	was, again := d.stale(key, current, was)
	if again && current.GetResourceVersion() != looked.ResourceVersion {
		return nil // what has happened since is not known yet; it brings us back
	}
	in := input(d.policy, d.policy.Guarded(ctx, current), was, d.policy.Layout.Read(desired.Object), time.Now())
	verdict := rules.Decide(in)
	if verdict.Wish != rules.WishNone {
		in.Pods = d.live.Of(ctx, d.policy, current, true)
		in.Now = time.Now()
		verdict = rules.Decide(in)
	}
	switch {
	case verdict.Retry:
		return errors.New(verdict.Message)
	case !recovers(verdict):
		return nil // the informers are behind; what they are missing brings us back
	}
	undo := d.remember(looked, current, in.Pods.Pods, verdict.Reason == rules.ReasonRecovered)
	wrote, err := owned(d.policy, current).Write(ctx, d.client.Status(), current, desired)
	if err != nil {
		undo()
	}
	switch {
	case err == nil:
		done = true
	case apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	case apierrors.IsConflict(err):
		metrics.Recoveries.WithLabelValues(countConflict).Inc()
		return err
	case ctx.Err() != nil:
		return err
	default:
		refused = apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err)
		// Trouble of the API server passes, or it is told, too.
		if refused || d.queue.NumRequeues(key) >= patience {
			metrics.Recoveries.WithLabelValues(countRefused).Inc()
			d.log.Error(err, "recovery refused", "namespace", key.Namespace, "name", key.Name)
			d.event(current, note{corev1.EventTypeWarning, v1alpha1.ReasonRecoveryFailed, countRefused, "its pods are ready again, but the API server refuses the change: " + err.Error(), nil})
		}
		return err
	}
	if wrote {
		d.log.Info("object brought back", "namespace", key.Namespace, "name", key.Name, "uid", current.GetUID(), "phase", d.policy.Spec.Recovered.Phase, "because", because(verdict))
		reason := v1alpha1.ReasonRecovered
		if verdict.Reason == rules.ReasonAllowed {
			reason = v1alpha1.ReasonRecoveryAllowed
		}
		d.event(desired, note{corev1.EventTypeNormal, reason, verdict.Reason, fmt.Sprintf("brought back from %s to %s: %s", was.Phase, d.policy.Spec.Recovered.Phase, because(verdict)), related(key.Namespace, verdict)})
		if n := d.count(key, current.GetUID()); n >= contested {
			metrics.Recoveries.WithLabelValues(countContested).Inc()
			d.log.Info("object keeps failing and coming back", "namespace", key.Namespace, "name", key.Name, "uid", current.GetUID(), "recoveries", n)
			d.event(desired, note{corev1.EventTypeWarning, v1alpha1.ReasonRecoveryContested, countContested, fmt.Sprintf("brought back %d times, each soon after the last: its pods keep failing and coming back, or somebody keeps writing %s by another idea of failure than this policy's; belay waits longer each time", n, was.Phase), nil})
		}
	}
	return nil
}

// disallow takes the annotation off that let an object recover without evidence: it is for
// once.
func (d *driver) disallow(ctx context.Context, o *object) error {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(d.kind())
	u.SetNamespace(o.Namespace)
	u.SetName(o.Name)
	patch := fmt.Sprintf(`{"metadata":{"resourceVersion":%q,"annotations":{%q:null}}}`, o.ResourceVersion, v1alpha1.AllowRecoveryAnnotation)
	err := d.client.Patch(ctx, u, client.RawPatch(types.MergePatchType, []byte(patch)))
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil // the newer one is on its way here
	case err != nil:
		return fmt.Errorf("taking annotation %s off: %w", v1alpha1.AllowRecoveryAnnotation, err)
	}
	d.log.Info("allowance used up", "namespace", o.Namespace, "name", o.Name, "uid", o.UID, "phase", o.status.Phase)
	d.event(u, note{corev1.EventTypeNormal, v1alpha1.ReasonRecoveryAllowed, "Disallowed", fmt.Sprintf("it is not failed (phase %s): annotation %s, which lets an object recover once without evidence, is taken off", o.status.Phase, v1alpha1.AllowRecoveryAnnotation), nil})
	return nil
}

// recovers reports whether a decision lets an object recover; others let writes be that have
// nothing to do with it.
func recovers(verdict rules.Decision) bool {
	return verdict.Allowed && (verdict.Reason == rules.ReasonRecovered || verdict.Reason == rules.ReasonAllowed)
}

// because says what a recovery rests on.
func because(verdict rules.Decision) string {
	if verdict.Reason == rules.ReasonAllowed {
		return "annotation " + v1alpha1.AllowRecoveryAnnotation + " allows it"
	}
	text := "nothing was recorded"
	for i, v := range verdict.Evidence {
		if i == 0 {
			text = v.String()
			continue
		}
		text += "; " + v.String()
	}
	return wording.Clip(text, 512)
}

// tell writes an event on an object, unless it was the last one to say so.
func (d *driver) tell(o *object, n note) (news bool) {
	key := o.key()
	text := string(o.UID) + n.reason + n.message
	d.mu.Lock()
	same := d.told[key] == text
	d.told[key] = text
	d.mu.Unlock()
	if same {
		return false
	}
	u := &unstructured.Unstructured{}
	u.SetNamespace(o.Namespace)
	u.SetName(o.Name)
	u.SetUID(o.UID)
	d.event(u, n)
	return true
}

func (d *driver) forget(key types.NamespacedName) {
	d.mu.Lock()
	delete(d.told, key)
	delete(d.since, key)
	delete(d.slow, key)
	d.mu.Unlock()
}

// maxNote is the API's limit of an event's note.
const maxNote = 1024

// note is what an event says. why is its action and pod what it relates to: the recorder
// folds events that differ in their text alone, and keeps the first text for minutes.
type note struct {
	kind, reason string
	why          rules.Reason
	message      string
	pod          *corev1.ObjectReference
}

func (d *driver) event(o *unstructured.Unstructured, n note) {
	var pod runtime.Object
	if n.pod != nil {
		pod = n.pod
	}
	if !strings.Contains(n.message, string(n.why)) {
		n.message = fmt.Sprintf("%s: %s", n.why, n.message)
	}
	d.events.Eventf(&corev1.ObjectReference{
		APIVersion: d.kind().GroupVersion().String(), Kind: d.kind().Kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(),
	}, pod, n.kind, n.reason, string(n.why), "%s", wording.Clip(n.message, maxNote-8))
}

// related is the first Pod that a recovery rests on.
func related(namespace string, verdict rules.Decision) *corev1.ObjectReference {
	if len(verdict.Evidence) == 0 {
		return nil
	}
	v := verdict.Evidence[0]
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: v.Pod, UID: v.UID}
}
