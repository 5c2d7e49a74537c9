package facts

import (
	"context"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/belay-dev/belay/webhook/internal/recovery"
)

// podInformer watches the Pods with some labels.
type podInformer struct {
	informer toolscache.SharedIndexInformer
	cancel   context.CancelFunc
	done     sync.WaitGroup
}

func startPodInformer(ctx context.Context, client kubernetes.Interface, selector string, changed func(PodChange)) *podInformer {
	ctx, cancel := context.WithCancel(ctx)
	lw := toolscache.ToListWatcherWithWatchListSemantics(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = selector
			return client.CoreV1().Pods("").List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = selector
			return client.CoreV1().Pods("").Watch(ctx, o)
		},
	}, client)
	i := &podInformer{cancel: cancel, informer: toolscache.NewSharedIndexInformer(lw, &corev1.Pod{}, 0, toolscache.Indexers{byController: controllerOf})}
	// Neither fails before the informer runs.
	_ = i.informer.SetTransform(strip)
	_ = i.informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *toolscache.Reflector, err error) {
		// Reported once more in the policy's status, when a right is missing.
		logr.FromContextOrDiscard(ctx).V(1).Info("watch of pods interrupted", "selector", selector, "error", err.Error())
	})
	tell := func(obj any) {
		if u, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
			obj = u.Obj
		}
		if w, ok := obj.(*watchedPod); ok {
			changed(PodChange{Namespace: w.namespace, Name: w.pod.Name, Controller: w.pod.Controller})
		}
	}
	_, _ = i.informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: tell, DeleteFunc: tell, UpdateFunc: func(old, obj any) {
			before, ok := old.(*watchedPod)
			if now, yes := obj.(*watchedPod); ok && yes && before.pod.Controller != now.pod.Controller {
				tell(old) // it is news for the one that it belonged to, too
			}
			tell(obj)
		},
	})
	i.done.Go(func() { i.informer.RunWithContext(ctx) })
	return i
}

func (i *podInformer) stop() {
	i.cancel()
	i.done.Wait()
}

func (i *podInformer) pods(q PodQuery) ([]recovery.Pod, bool) {
	var out []recovery.Pod
	if q.Owner == "" {
		for _, name := range q.Names {
			obj, exists, err := i.informer.GetStore().GetByKey(q.Namespace + "/" + name)
			if w, ok := obj.(*watchedPod); err == nil && exists && ok {
				out = append(out, w.pod)
			}
		}
		return out, true
	}
	found, err := i.informer.GetIndexer().ByIndex(byController, string(q.Owner))
	if err != nil {
		return nil, false
	}
	for _, obj := range found {
		if w, ok := obj.(*watchedPod); ok && w.namespace == q.Namespace {
			out = append(out, w.pod)
		}
	}
	return out, true
}
