package facts

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unique"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/recovery"
	"github.com/belay-dev/belay/webhook/internal/wording"
)

const (
	// ownedPage is how many Pods are read at once: anybody may put the labels on theirs, and
	// 256 KiB of annotations as well.
	ownedPage = 20
	// maxOwned bounds the Pods that are read for one object. Where there are more, nothing is
	// claimed.
	maxOwned = 2000
	// readers is how many Pods are read by name at a time.
	readers = 8
)

// CachedPods are the Pods that informers know.
type CachedPods interface {
	// Pods of a query; not ok where the informers do not know all of them yet.
	Pods(q PodQuery) (pods []recovery.Pod, ok bool)
}

// Pods finds the Pods of guarded objects.
type Pods struct {
	live   kubernetes.Interface
	cached CachedPods
}

// NewPods makes Pods.
func NewPods(live kubernetes.Interface, cached CachedPods) *Pods {
	return &Pods{live: live, cached: cached}
}

// Of finds the Pods of an object: from the informers, or, where live is asked for or they
// are not ready, from the API server. An error of the API server is never an absence.
func (p *Pods) Of(ctx context.Context, policy *RecoveryPolicy, object *unstructured.Unstructured, live bool) recovery.PodsFact {
	q, err := policy.Expressions.Query(ctx, object)
	switch {
	case cutShort(err):
		return recovery.PodsFact{Cause: fact.CauseTimeout}
	case err != nil:
		return recovery.PodsFact{Problem: wording.OneLine(err.Error())}
	}
	if !live {
		if pods, ok := p.cached.Pods(q); ok {
			return recovery.PodsFact{State: fact.Known, Pods: pods}
		}
	}
	return p.Live(ctx, q)
}

// Live reads the Pods of a query from the API server.
func (p *Pods) Live(ctx context.Context, q PodQuery) recovery.PodsFact {
	out := recovery.PodsFact{Live: true}
	if q.Selector == "" {
		out.State = fact.Known
		return out
	}
	var pods []recovery.Pod
	tooMany := false
	cause := tryHard(ctx, func(ctx context.Context) (err error) {
		if q.Owner == "" {
			pods, err = p.named(ctx, q)
			return err
		}
		if pods, tooMany, err = p.owned(ctx, q); err != nil || tooMany {
			return err
		}
		var strays []recovery.Pod
		strays, tooMany, err = p.strays(ctx, q, pods)
		pods = append(pods, strays...)
		return err
	})
	switch {
	case cause != fact.CauseNotAsked:
		out.Cause = cause
	case tooMany:
		out.Problem = fmt.Sprintf("there are more than %d pods to look through; narrow them with owner.labels", maxOwned)
	default:
		out.State, out.Pods = fact.Known, pods
	}
	return out
}

// owned reads the Pods that an object is the controller of, page by page, and keeps of each
// only what counts. The first page is no older than the request, and the others are of the
// same time.
func (p *Pods) owned(ctx context.Context, q PodQuery) (pods []recovery.Pod, tooMany bool, err error) {
	selector := q.Selector
	if len(q.Labels) > 0 {
		selector += "," + labels.Set(q.Labels).AsSelector().String()
	}
	options := metav1.ListOptions{LabelSelector: selector, Limit: ownedPage}
	for read := 0; ; {
		list, err := p.live.CoreV1().Pods(q.Namespace).List(ctx, options)
		if err != nil {
			return nil, false, err
		}
		for i := range list.Items {
			if pod := recovery.PodOf(&list.Items[i]); pod.Controller == q.Owner {
				pods = append(pods, cloned(pod))
			}
		}
		read += len(list.Items)
		if options.Continue = list.Continue; options.Continue == "" {
			return pods, false, nil
		}
		if read >= maxOwned {
			return nil, true, nil
		}
	}
}

// strays are Pods of an owner without the labels that the policy says all of them have, as
// far as the informers know them: a Pod that was recorded is not gone for want of a label.
func (p *Pods) strays(ctx context.Context, q PodQuery, found []recovery.Pod) (strays []recovery.Pod, tooMany bool, err error) {
	known, _ := p.cached.Pods(q)
	look := PodQuery{Namespace: q.Namespace, Selector: q.Selector}
	for _, pod := range known {
		if !slices.ContainsFunc(found, func(f recovery.Pod) bool { return f.Name == pod.Name }) {
			look.Names = append(look.Names, pod.Name)
		}
	}
	switch {
	case len(look.Names) == 0:
		return nil, false, nil
	case len(look.Names) > maxNamed:
		return nil, true, nil
	}
	strays, err = p.named(ctx, look)
	return slices.DeleteFunc(strays, func(pod recovery.Pod) bool { return pod.Controller != q.Owner }), false, err
}

// named reads Pods by their names. One that is not there, or has not the labels, is no Pod
// of the object.
func (p *Pods) named(ctx context.Context, q PodQuery) ([]recovery.Pod, error) {
	selector, err := labels.Parse(q.Selector)
	if err != nil {
		return nil, err
	}
	found := make([]*recovery.Pod, len(q.Names))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	for i, name := range q.Names {
		g.Go(func() error {
			pod, err := p.live.CoreV1().Pods(q.Namespace).Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) && !IsNoResource(err) {
				return nil
			}
			if err != nil {
				return err
			}
			if of := cloned(recovery.PodOf(pod)); selector.Matches(labels.Set(pod.Labels)) {
				found[i] = &of
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var out []recovery.Pod
	for _, pod := range found {
		if pod != nil {
			out = append(out, *pod)
		}
	}
	return out, nil
}

// cloned copies the texts of a Pod: parts of a decoded page would keep all of it in memory.
// Those that many Pods have in common are kept once.
func cloned(p recovery.Pod) recovery.Pod {
	for _, s := range []*string{&p.Name, (*string)(&p.UID), &p.Report.Container, &p.Report.Reporter} {
		*s = strings.Clone(*s)
	}
	for _, s := range []*string{(*string)(&p.Controller), (*string)(&p.Phase), &p.Reason, &p.Gate, &p.Default, (*string)(&p.Report.Status), &p.Report.Reason} {
		*s = shared(*s)
	}
	for i := range p.Containers {
		c := &p.Containers[i]
		c.Name, c.Waiting = shared(c.Name), shared(c.Waiting)
		// IDs are compared with that of the report, and for nothing else.
		if c.ID != p.Report.Container {
			c.ID = ""
		} else {
			c.ID = p.Report.Container
		}
	}
	return p
}

// shared is the one copy of a text.
func shared(s string) string { return unique.Make(s).Value() }

// watchedPod is a Pod as the informers keep it. Of its metadata it has what a store needs; all
// else is that of noMeta, which all of them share.
type watchedPod struct {
	*metav1.ObjectMeta
	namespace, version string
	pod                recovery.Pod
}

var noMeta = &metav1.ObjectMeta{}

// GetNamespace is the Pod's namespace.
func (w *watchedPod) GetNamespace() string { return w.namespace }

// GetName is the Pod's name.
func (w *watchedPod) GetName() string { return w.pod.Name }

// GetUID is the Pod's UID.
func (w *watchedPod) GetUID() types.UID { return w.pod.UID }

// GetResourceVersion is the Pod's resourceVersion.
func (w *watchedPod) GetResourceVersion() string { return w.version }

// GetObjectMeta is the Pod itself: the embedded one would be nobody's.
func (w *watchedPod) GetObjectMeta() metav1.Object { return w }

// strip is the informers' transformation. It may be given its own result.
func strip(obj any) (any, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	return &watchedPod{ObjectMeta: noMeta, namespace: shared(p.Namespace), version: strings.Clone(p.ResourceVersion), pod: cloned(recovery.PodOf(p))}, nil
}

// byController is the index of Pods by the UID of their controller.
const byController = "controller"

func controllerOf(obj any) ([]string, error) {
	if w, ok := obj.(*watchedPod); ok && w.pod.Controller != "" {
		return []string{string(w.pod.Controller)}, nil
	}
	return nil, nil
}

// PodWatch keeps the Pods with given labels, each stripped to what decisions read.
type PodWatch struct {
	client  kubernetes.Interface
	changed func(PodChange)

	mu      sync.Mutex
	ctx     context.Context // of Start; nil before
	want    map[string]bool
	watches map[string]*podInformer
	ended   bool
	// ending are informers that are being stopped.
	ending sync.WaitGroup
}

// PodChange tells that a Pod came, changed or went.
type PodChange struct {
	Namespace, Name string
	Controller      types.UID
}

// NewPodWatch makes a PodWatch that watches nothing yet. changed is called for every change;
// nil for none.
func NewPodWatch(client kubernetes.Interface, changed func(PodChange)) *PodWatch {
	if changed == nil {
		changed = func(PodChange) {}
	}
	return &PodWatch{client: client, changed: changed, want: map[string]bool{}, watches: map[string]*podInformer{}}
}

// Start runs the informers until the context ends, and waits for them.
func (w *PodWatch) Start(ctx context.Context) error {
	w.mu.Lock()
	w.ctx = ctx
	w.apply()
	w.mu.Unlock()
	<-ctx.Done()
	w.mu.Lock()
	w.ended = true
	all := maps.Clone(w.watches)
	w.mu.Unlock()
	for _, i := range all {
		i.stop()
	}
	w.ending.Wait()
	return nil
}

// Want says which labels to watch from now on; the others are forgotten.
func (w *PodWatch) Want(selectors []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.want = map[string]bool{}
	for _, s := range selectors {
		w.want[s] = true
	}
	w.apply()
}

// apply starts what is wanted and stops what is not.
func (w *PodWatch) apply() {
	if w.ctx == nil || w.ended {
		return
	}
	for selector, i := range w.watches {
		if !w.want[selector] {
			delete(w.watches, selector)
			w.ending.Go(i.stop) // apart from here: its handlers may be waiting for the lock
		}
	}
	for selector := range w.want {
		if w.watches[selector] == nil {
			w.watches[selector] = startPodInformer(w.ctx, w.client, selector, w.changed)
		}
	}
}

// Pods finds the Pods of a query among those that are watched.
func (w *PodWatch) Pods(q PodQuery) ([]recovery.Pod, bool) {
	if q.Selector == "" {
		return nil, true
	}
	w.mu.Lock()
	i := w.watches[q.Selector]
	w.mu.Unlock()
	if i == nil || !i.informer.HasSynced() {
		return nil, false
	}
	return i.pods(q)
}

// Pod finds a Pod by its name among those that are watched, whichever labels it is watched
// for.
func (w *PodWatch) Pod(namespace, name string) (recovery.Pod, bool) {
	w.mu.Lock()
	watches := slices.Collect(maps.Values(w.watches))
	w.mu.Unlock()
	for _, i := range watches {
		obj, exists, err := i.informer.GetStore().GetByKey(namespace + "/" + name)
		if p, ok := obj.(*watchedPod); err == nil && exists && ok {
			return p.pod, true
		}
	}
	return recovery.Pod{}, false
}
