package facts

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// ByWitness reports whether a policy goes by what sidecars report.
func ByWitness(s v1alpha1.RecoveryPolicySpec) bool {
	return s.Evidence == v1alpha1.EvidenceWitness || s.Evidence == v1alpha1.EvidenceBoth
}

// Waiting knows which Pods failed objects wait for, by policies that go by what sidecars
// report: it watches their objects, and keeps of each that has failed, or is on its way from
// a failure, its record.
type Waiting struct {
	client dynamic.Interface

	mu      sync.Mutex
	ctx     context.Context
	ended   bool
	want    map[string]*RecoveryPolicy
	watches map[string]*waitingWatch
	ending  sync.WaitGroup
}

// NewWaiting returns a Waiting that watches nothing yet.
func NewWaiting(client dynamic.Interface) *Waiting {
	return &Waiting{client: client, watches: map[string]*waitingWatch{}}
}

// waitingWatch watches the objects of one policy.
type waitingWatch struct {
	policy   *RecoveryPolicy
	began    time.Time
	informer toolscache.SharedIndexInformer
	cancel   context.CancelFunc
	done     sync.WaitGroup
}

// failedObject is what is kept of an object: the record, while it waits for its Pods. The rest
// is what a store needs.
type failedObject struct {
	*metav1.ObjectMeta
	key     types.NamespacedName
	version string
	record  []string
}

// GetNamespace is the object's namespace.
func (o *failedObject) GetNamespace() string { return o.key.Namespace }

// GetName is the object's name.
func (o *failedObject) GetName() string { return o.key.Name }

// GetResourceVersion is the object's resourceVersion.
func (o *failedObject) GetResourceVersion() string { return o.version }

// GetObjectMeta is the object itself: the embedded one would be nobody's.
func (o *failedObject) GetObjectMeta() metav1.Object { return o }

const byRecorded = "recorded"

// maxRecorded bounds what is kept of a record, as the guard does: where nothing is guarded it
// may have any length.
const maxRecorded = 100

// syncPatience is how long a watch takes to be synced, many times over.
const syncPatience = 30 * time.Second

// Want says which policies are in force, by name; of those only the ones that go by reports
// count.
func (w *Waiting) Want(policies map[string]*RecoveryPolicy) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.want = map[string]*RecoveryPolicy{}
	for name, p := range policies {
		if ByWitness(p.Spec) {
			w.want[name] = p
		}
	}
	w.apply()
}

// Start watches until the context ends.
func (w *Waiting) Start(ctx context.Context) error {
	w.mu.Lock()
	w.ctx = ctx
	w.apply()
	w.mu.Unlock()
	<-ctx.Done()
	w.mu.Lock()
	w.ended = true
	for _, i := range w.watches {
		w.ending.Go(i.stop)
	}
	w.mu.Unlock()
	w.ending.Wait()
	return nil
}

// apply starts what is wanted and stops what is not.
func (w *Waiting) apply() {
	if w.ctx == nil || w.ended {
		return
	}
	for name, i := range w.watches {
		if w.want[name] != i.policy {
			delete(w.watches, name)
			w.ending.Go(i.stop)
		}
	}
	for name, p := range w.want {
		if w.watches[name] == nil {
			w.watches[name] = w.watch(w.ctx, name, p)
		}
	}
}

func (w *Waiting) watch(ctx context.Context, name string, p *RecoveryPolicy) *waitingWatch {
	ctx, cancel := context.WithCancel(ctx)
	i := &waitingWatch{policy: p, cancel: cancel, began: time.Now()}
	i.informer = GuardedInformer(w.client, p, toolscache.Indexers{
		byRecorded: func(obj any) ([]string, error) {
			o, ok := obj.(*failedObject)
			if !ok {
				return nil, nil
			}
			// By namespace: nobody's record has a say about Pods elsewhere.
			keys := make([]string, len(o.record))
			for i, uid := range o.record {
				keys[i] = o.key.Namespace + "/" + uid
			}
			return keys, nil
		},
	}, func(obj any) any { return failedOf(p, obj) })
	// It fails only on an informer that runs.
	_ = i.informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *toolscache.Reflector, err error) {
		// A right that is missing is reported in the policy's status.
		logr.FromContextOrDiscard(ctx).V(1).Info("watch of guarded objects interrupted", "policy", name, "error", err.Error())
	})
	i.done.Go(func() { i.informer.RunWithContext(ctx) })
	return i
}

// GuardedInformer makes the informer of a policy's objects; it does not run yet. strip keeps of
// an object what is read of it, and may be given its own result.
func GuardedInformer(client dynamic.Interface, p *RecoveryPolicy, indexers toolscache.Indexers, strip func(any) any) toolscache.SharedIndexInformer {
	selector := ""
	if s, err := metav1.LabelSelectorAsSelector(p.Spec.Selector); err == nil && p.Spec.Selector != nil {
		selector = s.String() // an accepted one is valid, and an empty one selects all
	}
	i := dynamicinformer.NewFilteredDynamicInformer(client, ResourceOf(p.Resource), metav1.NamespaceAll, 0, indexers,
		func(o *metav1.ListOptions) { o.LabelSelector = selector }).Informer()
	// It fails only on an informer that runs.
	_ = i.SetTransform(func(obj any) (any, error) { return strip(obj), nil })
	return i
}

func (i *waitingWatch) stop() {
	i.cancel()
	i.done.Wait()
}

// failedOf keeps of an object what counts. It may be given its own result.
func failedOf(p *RecoveryPolicy, obj any) any {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj
	}
	o := &failedObject{ObjectMeta: noMeta, key: types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}, version: u.GetResourceVersion()}
	record := p.Awaits(p.Layout.Read(u.Object))
	o.record = append(o.record, record[:min(len(record), maxRecorded)]...)
	return o
}

// For reports whether a failed object waits for a Pod of its namespace, and how old a report may then be: the
// shortest time of all that wait.
func (w *Waiting) For(namespace, uid string) (freshFor time.Duration, waits bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, i := range w.watches {
		keys, err := i.informer.GetIndexer().IndexKeys(byRecorded, namespace+"/"+uid)
		if err != nil || len(keys) == 0 {
			continue
		}
		if f := i.policy.FreshFor; !waits || f < freshFor {
			freshFor = f
		}
		waits = true
	}
	return freshFor, waits
}

// Synced reports whether For knows of all policies' objects, as far as it can.
func (w *Waiting) Synced() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name := range w.want {
		// One that cannot be synced, for want of a right or of the kind, is not waited for.
		if i := w.watches[name]; i == nil || !i.informer.HasSynced() && time.Since(i.began) < syncPatience {
			return false
		}
	}
	return true
}

// Any reports whether there is a policy that goes by reports.
func (w *Waiting) Any() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.want) > 0
}
