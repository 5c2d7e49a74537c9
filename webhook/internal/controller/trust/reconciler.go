package trust

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/facts"
)

// workers is how many namespaces are looked at at a time: a rotation concerns all of them.
const workers = 4

// recheck is how often the ClusterTrustBundle is looked at without a reason. It is not watched:
// not every API server serves them, and one that does not may do so after an upgrade.
const recheck = time.Minute

// Reconciler keeps the ConfigMaps and the ClusterTrustBundle. A request without a name is about
// the latter.
type Reconciler struct {
	client client.Client
	// live reads past the cache.
	live   client.Reader
	mapper meta.RESTMapper
	events events.EventRecorder
	own    string
}

// Setup adds the controller to the manager, whose cache must hold ConfigMaps of belay's name
// only.
func Setup(mgr manager.Manager, own string) error {
	r := &Reconciler{client: mgr.GetClient(), live: mgr.GetAPIReader(), mapper: mgr.GetRESTMapper(), events: mgr.GetEventRecorder("belay-controller"), own: own}
	byNamespace := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request { return request(o.GetNamespace()) })
	return ctrl.NewControllerManagedBy(mgr).Named("trust").WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		WatchesMetadata(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request { return request(o.GetName()) })).
		Watches(&corev1.ConfigMap{}, byNamespace).
		Watches(&admissionregistrationv1.MutatingWebhookConfiguration{}, handler.EnqueueRequestsFromMapFunc(r.all),
			builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetName() == v1alpha1.ConfigurationName }))).
		Complete(r)
}

func request(name string) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: name}}}
}

// all asks for every namespace that is opted in, and for the ClusterTrustBundle.
func (r *Reconciler) all(ctx context.Context, _ client.Object) []reconcile.Request {
	out := request("")
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(facts.NamespaceKind)
	if err := r.client.List(ctx, &list, client.HasLabels{v1alpha1.ModeLabel}); err != nil {
		logr.FromContextOrDiscard(ctx).Error(err, "listing namespaces")
		return out
	}
	for i := range list.Items {
		out = append(out, request(list.Items[i].Name)...)
	}
	return out
}

// Reconcile looks at one namespace, or at the ClusterTrustBundle.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var registration admissionregistrationv1.MutatingWebhookConfiguration
	if err := r.client.Get(ctx, client.ObjectKey{Name: v1alpha1.ConfigurationName}, &registration); client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("reading the registration: %w", err)
	}
	bundle := bundleOf(registration.Webhooks)
	if req.Name == "" {
		if err := r.clusterBundle(ctx, bundle); err != nil {
			return reconcile.Result{}, err
		}
		return reconcile.Result{RequeueAfter: recheck}, nil
	}
	return reconcile.Result{}, r.namespace(ctx, req.Name, bundle)
}

func (r *Reconciler) namespace(ctx context.Context, name, bundle string) error {
	log := logr.FromContextOrDiscard(ctx).WithValues("namespace", name)
	var ns metav1.PartialObjectMetadata
	ns.SetGroupVersionKind(facts.NamespaceKind)
	if err := r.client.Get(ctx, client.ObjectKey{Name: name}, &ns); err != nil {
		return client.IgnoreNotFound(err)
	}
	if ns.DeletionTimestamp != nil {
		return nil // it goes with everything in it
	}
	is := &corev1.ConfigMap{}
	if err := r.client.Get(ctx, client.ObjectKey{Namespace: name, Name: v1alpha1.CABundleName}, is); apierrors.IsNotFound(err) {
		is = nil
	} else if err != nil {
		return fmt.Errorf("reading the ConfigMap: %w", err)
	}
	owner, err := r.owner(ctx)
	if err != nil {
		return err
	}
	what, out := plan(name, wanted(&ns, r.own), bundle, is, owner, r.own)
	switch what {
	case leave:
		return nil
	case create:
		err = r.client.Create(ctx, out)
		if apierrors.IsAlreadyExists(err) {
			// The cache holds what has the name only if it is belay's by its field selector: it
			// is on its way.
			err = nil
		}
	case update:
		err = r.client.Update(ctx, out)
	case remove:
		err = client.IgnoreNotFound(r.client.Delete(ctx, out, client.Preconditions{UID: &out.UID, ResourceVersion: &out.ResourceVersion}))
	case foreign:
		r.events.Eventf(is, nil, corev1.EventTypeWarning, v1alpha1.ReasonNameTaken, "Trust",
			"sidecars in this namespace read belay's CA from a ConfigMap of this name, and this one is not belay's: they cannot report until it is renamed or deleted")
		log.Info("ConfigMap of another has the name of belay's CA", "name", v1alpha1.CABundleName)
		return nil
	}
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil // changed, or going: the newer one is on its way here
	case err != nil:
		return fmt.Errorf("%s ConfigMap %s/%s: %w", what, name, v1alpha1.CABundleName, err)
	}
	log.Info("CA brought to namespace", "action", what)
	return nil
}

// owner is the UID of belay's own namespace; empty where there is none.
func (r *Reconciler) owner(ctx context.Context) (types.UID, error) {
	var ns metav1.PartialObjectMetadata
	ns.SetGroupVersionKind(facts.NamespaceKind)
	if err := r.client.Get(ctx, client.ObjectKey{Name: r.own}, &ns); client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("reading belay's own namespace: %w", err)
	}
	return ns.UID, nil
}

// clusterBundle keeps the ClusterTrustBundle, where the API server serves them.
func (r *Reconciler) clusterBundle(ctx context.Context, bundle string) error {
	if bundle == "" {
		return nil
	}
	kind := certificatesv1.SchemeGroupVersion.WithKind("ClusterTrustBundle")
	if _, err := r.mapper.RESTMapping(kind.GroupKind(), kind.Version); meta.IsNoMatchError(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("looking for ClusterTrustBundles: %w", err)
	}
	log := logr.FromContextOrDiscard(ctx)
	var is certificatesv1.ClusterTrustBundle
	err := r.live.Get(ctx, client.ObjectKey{Name: v1alpha1.CABundleName}, &is)
	switch {
	case apierrors.IsNotFound(err):
		owner, err := r.owner(ctx)
		if err != nil {
			return err
		}
		is = certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.CABundleName, Labels: maps.Clone(labels)}}
		is.Spec.TrustBundle = bundle
		if owner != "" {
			is.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Namespace", Name: r.own, UID: owner}}
		}
		err = r.client.Create(ctx, &is)
		if err == nil {
			log.Info("ClusterTrustBundle created", "name", is.Name)
		}
		return wrapped("creating", err)
	case err != nil:
		return wrapped("reading", err)
	case is.Spec.TrustBundle == bundle:
		return nil
	case !ours(&is):
		r.events.Eventf(&is, nil, corev1.EventTypeWarning, v1alpha1.ReasonNameTaken, "Trust", "sidecars read belay's CA from a ClusterTrustBundle of this name, and this one is not belay's")
		return nil
	}
	is.Spec.TrustBundle = bundle
	if err := r.client.Update(ctx, &is); err != nil {
		return wrapped("updating", err)
	}
	log.Info("ClusterTrustBundle updated", "name", is.Name)
	return nil
}

func wrapped(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s ClusterTrustBundle %s: %w", doing, v1alpha1.CABundleName, err)
}
