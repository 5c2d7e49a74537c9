package anchor

import (
	"context"
	"sync"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/facts"
)

// owners watches the kinds that policies name as owners: metadata only, stripped
// to what binding needs. What it knows decides when to look; whether to bind or to
// expire is always decided on a live read.
type owners struct {
	client metadata.Interface
	log    logr.Logger
	// came is called for every owner that appears or changes.
	came func(res v1alpha1.ResolvedResource, m *metav1.PartialObjectMetadata)

	mu      sync.Mutex
	watches map[schema.GroupVersionResource]*ownerWatch
	wg      sync.WaitGroup
}

type ownerWatch struct {
	resource v1alpha1.ResolvedResource
	informer cache.SharedIndexInformer
	stop     context.CancelFunc
}

// want makes the watched kinds exactly these. Watches end with the context, too.
func (o *owners) want(ctx context.Context, resources []v1alpha1.ResolvedResource) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	wanted := map[schema.GroupVersionResource]v1alpha1.ResolvedResource{}
	for _, r := range resources {
		wanted[facts.ResourceOf(r)] = r
	}
	for gvr, w := range o.watches {
		if _, ok := wanted[gvr]; !ok {
			w.stop()
			delete(o.watches, gvr)
			o.log.Info("owner kind no longer watched", "resource", gvr.String())
		}
	}
	for gvr, r := range wanted {
		if _, ok := o.watches[gvr]; ok {
			continue
		}
		w, err := o.start(ctx, gvr, r)
		if err != nil {
			return err
		}
		o.watches[gvr] = w
		o.log.Info("owner kind watched", "resource", gvr.String())
	}
	return nil
}

func (o *owners) start(ctx context.Context, gvr schema.GroupVersionResource, r v1alpha1.ResolvedResource) (*ownerWatch, error) {
	informer := metadatainformer.NewFilteredMetadataInformer(o.client, gvr, metav1.NamespaceAll, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}, nil).Informer()
	if err := informer.SetTransform(strip); err != nil {
		return nil, err
	}
	if err := informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		// Reported once more in the policy's status, when a right is missing.
		o.log.V(1).Info("owner watch interrupted", "resource", gvr.String(), "error", err.Error())
	}); err != nil {
		return nil, err
	}
	tell := func(obj any) {
		if m, ok := obj.(*metav1.PartialObjectMetadata); ok && m.DeletionTimestamp == nil {
			o.came(r, m)
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    tell,
		UpdateFunc: func(_, obj any) { tell(obj) },
	}); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	o.wg.Go(func() { informer.RunWithContext(ctx) })
	return &ownerWatch{resource: r, informer: informer, stop: stop}, nil
}

// strip keeps what binding needs: two of three bytes of an object's metadata are
// managed fields and annotations.
func strip(obj any) (any, error) {
	m, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil
	}
	return &metav1.PartialObjectMetadata{
		TypeMeta: m.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion,
			Labels: m.Labels, DeletionTimestamp: m.DeletionTimestamp,
		},
	}, nil
}

// mayExist reports whether the watch has seen a live owner for the Anchor, and
// whether the kind is watched at all. Without a synced watch it may always exist.
func (o *owners) mayExist(a *v1alpha1.Anchor) (exists, watched bool) {
	w := o.find(a.Spec.Owner)
	if w == nil || !w.informer.HasSynced() {
		return true, false
	}
	if a.Spec.Owner.Name != "" {
		key := a.Spec.Owner.Name
		if w.resource.Namespaced {
			key = a.Namespace + "/" + key
		}
		obj, ok, err := w.informer.GetStore().GetByKey(key)
		if err != nil {
			return true, true
		}
		m, isMeta := obj.(*metav1.PartialObjectMetadata)
		return ok && isMeta && m.DeletionTimestamp == nil, true
	}
	found := false
	err := cache.ListAllByNamespace(w.informer.GetIndexer(), a.Namespace, labels.SelectorFromSet(a.Spec.Owner.MatchLabels), func(obj any) {
		if m, ok := obj.(*metav1.PartialObjectMetadata); ok && m.DeletionTimestamp == nil {
			found = true
		}
	})
	return found || err != nil || !w.resource.Namespaced, true
}

// find returns the watch of an awaited owner's kind, in whatever version.
func (o *owners) find(a v1alpha1.AnchorOwner) *ownerWatch {
	o.mu.Lock()
	defer o.mu.Unlock()
	for gvr, w := range o.watches {
		if groupKind(gvr.GroupVersion().String(), w.resource.Kind) == groupKind(a.APIVersion, a.Kind) {
			return w
		}
	}
	return nil
}
