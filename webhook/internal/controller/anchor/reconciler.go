package anchor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/metrics"
	"github.com/belay-dev/belay/webhook/internal/owner"
	"github.com/belay-dev/belay/webhook/internal/wording"
)

// Workers is how many Anchors are worked on at once: binding is three round trips
// of a few milliseconds, so that 16 workers bind well over a thousand a second.
const Workers = 16

// maxRefusal is how much of the API server's refusal an event repeats, in bytes: a note has 1,024.
const maxRefusal = 512

// lookupTimeout bounds one live look at an owner.
const lookupTimeout = 10 * time.Second

// finder looks owners up, live.
type finder interface {
	Find(ctx context.Context, q facts.Query) owner.Fact
	Resolve(apiVersion, kind string) (v1alpha1.ResolvedResource, error)
}

// Reconciler works on Anchors.
type Reconciler struct {
	client client.Client
	facts  finder
	// locate asks the API server itself where it serves a kind, in any version.
	locate func(context.Context, schema.GroupKind) (v1alpha1.ResolvedResource, error)
	owners *owners
	events events.EventRecorder
}

// indexOwner finds the Anchors that wait, by the owner's group, kind and name; those
// that wait for labels stand under the empty name.
const indexOwner = "belay.owner"

func indexKey(groupKind, name string) string { return groupKind + "/" + name }

// Clients are the clients beside the manager's own.
type Clients struct {
	Metadata metadata.Interface
	// Discovery is used with absolute paths only.
	Discovery rest.Interface
}

// Setup adds a Reconciler, and its watches for owners, to the manager.
func Setup(ctx context.Context, mgr manager.Manager, f *facts.Reader, clients Clients) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.Anchor{}, indexOwner, func(o client.Object) []string {
		a, ok := o.(*v1alpha1.Anchor)
		if !ok {
			return nil
		}
		if a.Spec.BoundUID != "" {
			return nil // waits for nobody any more
		}
		return []string{indexKey(groupKind(a.Spec.Owner.APIVersion, a.Spec.Owner.Kind), a.Spec.Owner.Name)}
	}); err != nil {
		return fmt.Errorf("indexing anchors: %w", err)
	}
	r := &Reconciler{client: mgr.GetClient(), facts: f, locate: func(ctx context.Context, gk schema.GroupKind) (v1alpha1.ResolvedResource, error) {
		return f.Locate(ctx, clients.Discovery, gk.Group, gk.Kind)
	}, events: mgr.GetEventRecorder("belay-controller")}
	came := make(chan event.GenericEvent, 1024)
	r.owners = &owners{
		client: clients.Metadata, log: mgr.GetLogger().WithName("owners"),
		came:    func(res v1alpha1.ResolvedResource, m *metav1.PartialObjectMetadata) { r.ownerCame(ctx, came, res, m) },
		watches: watchMap{},
	}
	if err := mgr.Add(manager.RunnableFunc(r.owners.run(mgr.GetClient()))); err != nil {
		return fmt.Errorf("adding the owner watches: %w", err)
	}
	return ctrl.NewControllerManagedBy(mgr).Named("anchor").
		For(&v1alpha1.Anchor{}).
		WatchesRawSource(source.Channel(came, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: Workers}).
		Complete(r)
}

// ownerCame enqueues the Anchors that wait for an owner. An Anchor that is not in
// the cache yet finds the owner itself, when it comes there.
func (r *Reconciler) ownerCame(ctx context.Context, out chan<- event.GenericEvent, res v1alpha1.ResolvedResource, m *metav1.PartialObjectMetadata) {
	gk := groupKind(facts.ResourceOf(res).GroupVersion().String(), res.Kind)
	var waiting []v1alpha1.Anchor
	for _, key := range []string{indexKey(gk, m.Name), indexKey(gk, "")} {
		opts := []client.ListOption{client.MatchingFields{indexOwner: key}}
		if res.Namespaced {
			opts = append(opts, client.InNamespace(m.Namespace))
		}
		var list v1alpha1.AnchorList
		if err := r.client.List(ctx, &list, opts...); err != nil {
			return // shutting down, or the cache is not there yet: the Anchor looks itself
		}
		waiting = append(waiting, list.Items...)
	}
	for i := range waiting {
		a := &waiting[i]
		if a.Spec.BoundUID != "" || !holds(a.Spec.Owner, m.Name, m.Labels) {
			continue
		}
		select {
		case out <- event.GenericEvent{Object: a}:
		case <-ctx.Done():
			return
		}
	}
}

// Reconcile looks at one Anchor.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	log := logr.FromContextOrDiscard(ctx)
	var a v1alpha1.Anchor
	if err := r.client.Get(ctx, req.NamespacedName, &a); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	now := time.Now()
	o := observed{anchor: &a}
	if a.Spec.BoundUID == "" && a.DeletionTimestamp == nil {
		o.owner, o.watched = r.look(ctx, &a, now)
	}
	p := decide(o, now)
	err := r.apply(ctx, log, &a, p)
	switch {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: pollFirst / 10}, nil // the cache is behind
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), apierrors.IsNotFound(err) && !facts.IsNoResource(err):
		return reconcile.Result{}, nil // all of it is going away
	case err != nil:
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: p.after}, nil
}

// look finds the owner. That it is absent may come from the watch while there is
// time left: then nothing but waiting follows from it. Everything else is read live.
func (r *Reconciler) look(ctx context.Context, a *v1alpha1.Anchor, now time.Time) (owner.Fact, bool) {
	exists, watched := r.owners.mayExist(a)
	if watched && !exists && now.Before(owner.Expiry(a)) {
		return owner.Fact{State: fact.Absent}, true
	}
	return r.find(ctx, a), watched
}

func (r *Reconciler) find(ctx context.Context, a *v1alpha1.Anchor) owner.Fact {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	q := facts.Query{Namespace: a.Namespace, Name: a.Spec.Owner.Name, Labels: a.Spec.Owner.MatchLabels}
	var err error
	if q.Resource, err = r.facts.Resolve(a.Spec.Owner.APIVersion, a.Spec.Owner.Kind); err == nil {
		if f := r.facts.Find(ctx, q); f.Cause != fact.CauseNoKind {
			return f
		}
	} else if !errors.Is(err, facts.ErrNoKind) {
		return owner.Fact{Cause: facts.CauseOf(err)}
	}
	// Not under the version that the Anchor names, as far as a cache knows. That may
	// be a group that is away for a moment, or another version of the same kind; only
	// the API server's own word that there is no such kind makes the owner absent.
	q.Resource, err = r.locate(ctx, schema.FromAPIVersionAndKind(a.Spec.Owner.APIVersion, a.Spec.Owner.Kind).GroupKind())
	switch {
	case errors.Is(err, facts.ErrNoKind):
		return owner.Fact{State: fact.Absent}
	case err != nil:
		return owner.Fact{Cause: facts.CauseOf(err)}
	}
	return r.facts.Find(ctx, q)
}

// apply does what was planned. The event comes before the deletion, since
// afterwards there is nothing to speak of; it is written again if that fails.
func (r *Reconciler) apply(ctx context.Context, log logr.Logger, a *v1alpha1.Anchor, p plan) error {
	if p.bind != nil {
		bound, err := r.bind(ctx, log, a, *p.bind)
		if err != nil || !bound {
			return err
		}
		p = decideBound(a, time.Now())
	}
	if p.news(a) && p.event != nil {
		metrics.Anchors.WithLabelValues(p.event.reason).Inc()
		r.events.Eventf(a, nil, p.event.kind, p.event.reason, p.event.action, "%s", p.event.note)
	}
	if p.expire {
		return r.remove(ctx, log, a, metav1.DeletePropagationBackground)
	}
	if p.leave {
		return r.remove(ctx, log, a, metav1.DeletePropagationOrphan)
	}
	if !p.news(a) {
		return nil
	}
	before := a.DeepCopy()
	meta.SetStatusCondition(&a.Status.Conditions, *p.condition)
	if err := r.client.Status().Patch(ctx, a, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("writing the status of anchor %s/%s: %w", a.Namespace, a.Name, err)
	}
	return nil
}

// bind makes the owner the Anchor's owner, in one write with the mark that it was
// bound. Then it looks at the owner once more: one that went away in between would
// take along what was never its own. A missing right becomes an event, and a retry
// with back-off.
func (r *Reconciler) bind(ctx context.Context, log logr.Logger, a *v1alpha1.Anchor, to owner.Object) (bool, error) {
	before := a.DeepCopy()
	a.OwnerReferences = append(a.OwnerReferences, metav1.OwnerReference{APIVersion: to.APIVersion, Kind: to.Kind, Name: to.Name, UID: to.UID})
	a.Spec.BoundUID = string(to.UID)
	if err := r.client.Update(ctx, a); err != nil {
		if apierrors.IsForbidden(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			metrics.Anchors.WithLabelValues(v1alpha1.ReasonBindFailed).Inc()
			r.events.Eventf(before, nil, corev1.EventTypeWarning, v1alpha1.ReasonBindFailed, "Bind", "the Anchor could not be bound to %s (uid %s): %s", describe(before), to.UID, wording.Clip(err.Error(), maxRefusal))
		}
		return false, fmt.Errorf("binding anchor %s/%s: %w", a.Namespace, a.Name, err)
	}
	again := r.find(ctx, a)
	if again.State != fact.Unknown && !contains(again.Objects, to.UID) {
		log.Info("owner went away while its anchor was bound; unbound", "namespace", a.Namespace, "name", a.Name, "uid", to.UID)
		a.OwnerReferences, a.Spec.BoundUID = before.OwnerReferences, ""
		if err := r.client.Update(ctx, a); err != nil {
			return false, fmt.Errorf("unbinding anchor %s/%s: %w", a.Namespace, a.Name, err)
		}
		return false, nil // the update brings the Anchor back here
	}
	metrics.Anchors.WithLabelValues(v1alpha1.ReasonBound).Inc()
	log.V(1).Info("anchor bound", "namespace", a.Namespace, "name", a.Name, "uid", to.UID)
	return true, nil
}

func contains(objects []owner.Object, uid types.UID) bool {
	for _, o := range objects {
		if o.UID == uid {
			return true
		}
	}
	return false
}

// remove deletes exactly the Anchor that was looked at: in the background, when it
// expired, or leaving behind what it held, when it was released.
func (r *Reconciler) remove(ctx context.Context, log logr.Logger, a *v1alpha1.Anchor, how metav1.DeletionPropagation) error {
	uid, rv := a.UID, a.ResourceVersion
	err := r.client.Delete(ctx, a, client.Preconditions{UID: &uid, ResourceVersion: &rv}, client.PropagationPolicy(how))
	if err != nil {
		return fmt.Errorf("deleting anchor %s/%s: %w", a.Namespace, a.Name, err)
	}
	log.Info("anchor deleted", "namespace", a.Namespace, "name", a.Name, "owner", describe(a), "propagation", how)
	return nil
}
