package registration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/certs"
	"github.com/belay-dev/belay/webhook/internal/metrics"
)

// ConfigurationName is the name of both webhook configurations.
const ConfigurationName = v1alpha1.ConfigurationName

const (
	// recheckSoon is how soon a spec is looked at again that was refused for
	// something outside of it: a missing CRD or right.
	recheckSoon = 5 * time.Second
	// firstRetry is how soon after a failure everything is tried again; it doubles up to
	// recheckSoon.
	firstRetry = 50 * time.Millisecond
	// recheckLate is how often everything is looked at without a reason.
	recheckLate = 5 * time.Minute
)

// KindResolver finds the resource of a kind.
type KindResolver interface {
	Resolve(apiVersion, kind string) (v1alpha1.ResolvedResource, error)
}

// Options configures a Reconciler.
type Options struct {
	Endpoint Endpoint
	// OwnNamespace is where belay runs.
	OwnNamespace string
	// WebhookAccount and ControllerAccount are the service accounts in OwnNamespace
	// that need to read the owners' kinds.
	WebhookAccount, ControllerAccount string
	// Annotation registers the entry for the annotation belay.dev/owner.
	Annotation bool
	// SidecarAnnotation registers the entries for the annotation belay.dev/sidecar.
	SidecarAnnotation bool
	// InjectCAFrom is the value of cert-manager.io/inject-ca-from; empty when belay
	// manages its own CA, which is then read from the Secret CASecret.
	InjectCAFrom string
	CASecret     string
}

// Reconciler accepts policies and writes the registrations. One worker does all
// of it, since both configurations depend on all policies.
type Reconciler struct {
	client   client.Client
	live     client.Reader
	resolver KindResolver
	o        Options
	dampers  map[string]*damper
}

// Setup adds a Reconciler to the manager.
func Setup(mgr manager.Manager, resolver KindResolver, o Options) error {
	r := &Reconciler{client: mgr.GetClient(), live: mgr.GetAPIReader(), resolver: resolver, o: o, dampers: map[string]*damper{}}
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: ConfigurationName}}}
	})
	named := predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetName() == ConfigurationName })
	ca := predicate.NewPredicateFuncs(func(obj client.Object) bool {
		return obj.GetNamespace() == o.OwnNamespace && obj.GetName() == o.CASecret
	})
	b := ctrl.NewControllerManagedBy(mgr).Named("registration").
		// All policies are one piece of work: what fails for one of them must not keep the others
		// waiting, and the queue's own bound is a quarter of an hour.
		WithOptions(controller.Options{RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, recheckSoon)}).
		Watches(&v1alpha1.OwnerPolicy{}, all).
		Watches(&v1alpha1.NamePolicy{}, all).
		Watches(&v1alpha1.RecoveryPolicy{}, all).
		// Of CRDs the metadata tells that something changed; the few that matter are read live.
		WatchesMetadata(&apiextensionsv1.CustomResourceDefinition{}, all, builder.WithPredicates(predicate.NewPredicateFuncs(r.guarded))).
		Watches(&admissionregistrationv1.MutatingWebhookConfiguration{}, all, builder.WithPredicates(named)).
		Watches(&admissionregistrationv1.ValidatingWebhookConfiguration{}, all, builder.WithPredicates(named))
	if o.InjectCAFrom == "" {
		b = b.Watches(&corev1.Secret{}, all, builder.WithPredicates(ca))
	}
	return b.Complete(r)
}

// Reconcile looks at every policy and at both configurations.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	log := logr.FromContextOrDiscard(ctx)
	subjects, err := r.subjects(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	after := recheckLate
	var failures []error

	// A spec is in force, in the policy's status, before it is registered: the
	// webhook acts on what it finds there.
	var policies inForce
	for _, s := range subjects {
		again, err := r.accept(ctx, s)
		if err != nil {
			failures = append(failures, err)
		}
		if again {
			after = min(after, recheckSoon)
		}
		if s.inForce() > 0 {
			s.addTo(&policies)
		}
	}

	held, outcome := r.register(ctx, log, policies)
	if held > 0 {
		after = min(after, held)
	}
	if outcome.err != nil {
		failures = append(failures, outcome.err)
	}
	if outcome.reason == v1alpha1.ReasonCertificateNotReady {
		after = min(after, recheckSoon)
	}
	for _, s := range subjects {
		if err := r.report(ctx, s, outcome.of(s.entryName())); err != nil {
			failures = append(failures, err)
		}
	}
	if err := errors.Join(failures...); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: after}, nil
}

// subjects are the policies of all kinds that are not being deleted.
func (r *Reconciler) subjects(ctx context.Context) ([]subject, error) {
	var out []subject
	var owners v1alpha1.OwnerPolicyList
	if err := r.client.List(ctx, &owners); err != nil {
		return nil, fmt.Errorf("listing owner policies: %w", err)
	}
	for i := range owners.Items {
		if owners.Items[i].DeletionTimestamp == nil {
			out = append(out, ownerSubject{&owners.Items[i]})
		}
	}
	var named v1alpha1.NamePolicyList
	if err := r.client.List(ctx, &named); err != nil {
		return nil, fmt.Errorf("listing name policies: %w", err)
	}
	for i := range named.Items {
		if named.Items[i].DeletionTimestamp == nil {
			out = append(out, nameSubject{&named.Items[i]})
		}
	}
	var guards v1alpha1.RecoveryPolicyList
	if err := r.client.List(ctx, &guards); err != nil {
		return nil, fmt.Errorf("listing recovery policies: %w", err)
	}
	for i := range guards.Items {
		if guards.Items[i].DeletionTimestamp == nil {
			out = append(out, recoverySubject{&guards.Items[i]})
		}
	}
	return out, nil
}

// guarded reports whether a RecoveryPolicy may be about a CRD: one of its group is.
func (r *Reconciler) guarded(crd client.Object) bool {
	var guards v1alpha1.RecoveryPolicyList
	if err := r.client.List(context.Background(), &guards); err != nil {
		return true
	}
	return slices.ContainsFunc(guards.Items, func(p v1alpha1.RecoveryPolicy) bool {
		group, _, _ := strings.Cut(p.Spec.Resource.APIVersion, "/")
		return strings.HasSuffix(crd.GetName(), "."+group)
	})
}

// observe finds out what acceptance depends on.
func (r *Reconciler) observe(ctx context.Context, p *v1alpha1.OwnerPolicy) observedPolicy {
	var o observedPolicy
	for _, d := range p.Spec.Dependents {
		res, err := r.resolver.Resolve(d.APIVersion, d.Kind)
		o.dependents = append(o.dependents, kindFact{resource: res, err: err})
	}
	res, err := r.resolver.Resolve(p.Spec.Owner.APIVersion, p.Spec.Owner.Kind)
	o.owner = kindFact{resource: res, err: err}
	if err != nil {
		return o
	}
	verbs := []string{"get"}
	if p.Spec.Owner.Selector != "" {
		verbs = append(verbs, "list")
	}
	for _, v := range verbs {
		o.rights = append(o.rights, r.right(ctx, r.o.WebhookAccount, v, res))
	}
	for _, v := range []string{"get", "list", "watch"} {
		o.rights = append(o.rights, r.right(ctx, r.o.ControllerAccount, v, res))
	}
	return o
}

// right asks the API server whether an account has a right in all namespaces.
func (r *Reconciler) right(ctx context.Context, account, verb string, res v1alpha1.ResolvedResource) rightFact {
	f := rightFact{account: "serviceaccount " + r.o.OwnNamespace + "/" + account, verb: verb, resource: res.Resource}
	if res.Group != "" {
		f.resource += "." + res.Group
	}
	resource, subresource, _ := strings.Cut(res.Resource, "/")
	if subresource != "" {
		f.resource = resource + "." + res.Group + "/" + subresource
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:   fmt.Sprintf("system:serviceaccount:%s:%s", r.o.OwnNamespace, account),
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + r.o.OwnNamespace, "system:authenticated"},
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Group: res.Group, Version: res.Version, Resource: resource, Subresource: subresource,
		},
	}}
	f.err = r.client.Create(ctx, review)
	f.allowed = review.Status.Allowed
	return f
}

// outcome is what became of the registration.
type outcome struct {
	reason, message string
	err             error
	// rejected are the entries that the API server refused, with what it said. They
	// concern their own policies alone.
	rejected map[string]string
}

// of is the outcome for one policy.
func (o outcome) of(entry string) outcome {
	if message, ok := o.rejected[entry]; ok {
		return outcome{reason: v1alpha1.ReasonWriteFailed, message: clip(message)}
	}
	return o
}

// register brings both configurations to what the policies want. held is how long
// a repair is held back because another writer keeps undoing it.
func (r *Reconciler) register(ctx context.Context, log logr.Logger, policies inForce) (held time.Duration, o outcome) {
	ca, err := r.ca(ctx)
	if err != nil {
		return 0, outcome{reason: v1alpha1.ReasonCertificateNotReady, message: clip(err.Error())}
	}
	mutating, validating := desired(policies, settings{
		endpoint: r.o.Endpoint, ownNamespace: r.o.OwnNamespace, annotation: r.o.Annotation, sidecarAnnotation: r.o.SidecarAnnotation, controllerAccount: r.o.ControllerAccount,
	})
	var m, v []admissionregistrationv1.MutatingWebhook
	for _, e := range mutating {
		m = append(m, e.mutating(r.o.Endpoint))
	}
	for _, e := range validating {
		v = append(v, asMutating(e.validating(r.o.Endpoint)))
	}
	wm := r.write(ctx, log, &admissionregistrationv1.MutatingWebhookConfiguration{}, m, ca)
	wv := r.write(ctx, log, &admissionregistrationv1.ValidatingWebhookConfiguration{}, v, ca)
	rejected := wv.rejected
	maps.Copy(rejected, wm.rejected)
	held = max(wm.held, wv.held)
	switch err := errors.Join(wm.err, wv.err); {
	case err != nil:
		return 0, outcome{reason: v1alpha1.ReasonWriteFailed, message: clip(err.Error()), err: err}
	case held > 0:
		return held, outcome{reason: v1alpha1.ReasonContested, message: "another writer keeps changing the webhook configuration \"belay\"; it is repaired once a minute, find out who it is"}
	}
	if r.o.InjectCAFrom != "" && r.unsigned(ctx) {
		return 0, outcome{reason: v1alpha1.ReasonCertificateNotReady, message: "cert-manager has not filled caBundle yet; is the Certificate " + r.o.InjectCAFrom + " ready, and its CA injector running?"}
	}
	return 0, outcome{reason: v1alpha1.ReasonRegistered, message: "the API server calls belay for this policy", rejected: rejected}
}

// ca is the CA that the API server must trust; the zero value where cert-manager injects it.
func (r *Reconciler) ca(ctx context.Context) (roots, error) {
	if r.o.InjectCAFrom != "" {
		return roots{}, nil
	}
	var s corev1.Secret
	if err := r.client.Get(ctx, client.ObjectKey{Namespace: r.o.OwnNamespace, Name: r.o.CASecret}, &s); err != nil {
		return roots{}, fmt.Errorf("reading the CA that the webhook makes when it starts: %w", err)
	}
	ca := s.Data[corev1.ServiceAccountRootCAKey]
	if len(certs.Bundle(ca)) == 0 {
		return roots{}, fmt.Errorf("secret %s/%s holds no certificate yet", r.o.OwnNamespace, r.o.CASecret)
	}
	return roots{bundle: ca, retired: certs.Retired(&s)}, nil
}

// unsigned reports whether some entry has no CA, so that calls for it fail.
func (r *Reconciler) unsigned(ctx context.Context) bool {
	var c admissionregistrationv1.MutatingWebhookConfiguration
	if err := r.live.Get(ctx, client.ObjectKey{Name: ConfigurationName}, &c); err != nil {
		return true
	}
	for _, w := range c.Webhooks {
		if len(w.ClientConfig.CABundle) == 0 {
			return true
		}
	}
	return false
}

// written is what became of writing one configuration.
type written struct {
	held     time.Duration
	rejected map[string]string
	err      error
}

// write creates or updates one configuration, if it is not as it should be. An
// entry that the API server refuses is left as it is live, or left out: one policy
// must not keep the others from being registered.
func (r *Reconciler) write(ctx context.Context, log logr.Logger, obj client.Object, want []admissionregistrationv1.MutatingWebhook, ca roots) written {
	rejected := map[string]string{}
	for range len(want) + 1 {
		held, names, err := r.writeOnce(ctx, log, obj, want, rejected, ca)
		before := len(rejected)
		for _, e := range want {
			if message, bad := names[e.Name]; bad {
				rejected[e.Name] = message
			}
		}
		// No further entry of belay's own is at fault: written, or not to be mended here.
		if len(rejected) == before {
			return written{held: held, rejected: rejected, err: err}
		}
	}
	return written{rejected: rejected, err: fmt.Errorf("the API server refuses each of the %d entries", len(want))}
}

// writeOnce tries once. When the API server refuses some of the entries it returns
// their names; obj is then what is live.
func (r *Reconciler) writeOnce(ctx context.Context, log logr.Logger, obj client.Object, want []admissionregistrationv1.MutatingWebhook, rejected map[string]string, ca roots) (time.Duration, map[string]string, error) {
	kind := "MutatingWebhookConfiguration"
	if _, ok := obj.(*admissionregistrationv1.ValidatingWebhookConfiguration); ok {
		kind = "ValidatingWebhookConfiguration"
	}
	// Live, so that a decision to repair is never made on an old copy.
	err := r.live.Get(ctx, client.ObjectKey{Name: ConfigurationName}, obj)
	exists := err == nil
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, nil, fmt.Errorf("reading %s: %w", kind, err)
	}
	live := configOf(obj)
	merged, _ := plan(live, want, ca, time.Now())
	merged = keepLive(merged, live, rejected)
	if !exists && len(merged.entries) == 0 {
		return 0, nil, nil
	}
	changed := differs(live, merged)
	dressed, err := r.dress(ctx, obj, exists)
	if err != nil {
		return 0, nil, err
	}
	if exists && !changed && !dressed {
		return 0, nil, nil
	}
	d := r.damper(kind, exists)
	content, err := json.Marshal(want)
	if err != nil {
		return 0, nil, fmt.Errorf("encoding %s: %w", kind, err)
	}
	key := string(content) + string(ca.bundle) + strings.Join(ca.retired, ",")
	if wait := d.wait(key, time.Now()); wait > 0 {
		metrics.RegistrationWrites.WithLabelValues(kind, "held").Inc()
		log.Info("another writer keeps changing the registration; repair held back", "kind", kind, "wait", wait.String())
		return wait, nil, nil
	}
	asked, ok := obj.DeepCopyObject().(client.Object)
	if !ok {
		return 0, nil, fmt.Errorf("writing %s: unexpected type", kind)
	}
	setConfig(asked, merged)
	if exists {
		err = r.client.Update(ctx, asked)
	} else {
		err = r.client.Create(ctx, asked)
	}
	if err != nil {
		metrics.RegistrationWrites.WithLabelValues(kind, "error").Inc()
		err = fmt.Errorf("writing %s: %w", kind, err)
		return 0, refusedEntries(err, merged.entries), err
	}
	d.wrote(key, time.Now())
	metrics.RegistrationWrites.WithLabelValues(kind, "ok").Inc()
	log.Info("registration written", "kind", kind, "entries", len(merged.entries))
	return 0, nil, nil
}

// refusedEntries reads from a refusal which entries are meant: its causes name the
// fields, such as webhooks[3].matchConditions[0].expression.
func refusedEntries(err error, entries []admissionregistrationv1.MutatingWebhook) map[string]string {
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	out := map[string]string{}
	for _, c := range status.Status().Details.Causes {
		var i int
		if n, err := fmt.Sscanf(c.Field, "webhooks[%d]", &i); n == 1 && err == nil && i >= 0 && i < len(entries) {
			out[entries[i].Name] = fmt.Sprintf("the API server refuses the registration: %s: %s", c.Field, c.Message)
		}
	}
	return out
}

// damper is the one for a kind of configuration. Creating one that somebody deleted
// is counted apart from repairing one that somebody changes.
func (r *Reconciler) damper(kind string, exists bool) *damper {
	key := fmt.Sprintf("%s/%t", kind, exists)
	d, ok := r.dampers[key]
	if !ok {
		d = &damper{}
		r.dampers[key] = d
	}
	return d
}

// dress sets what the configuration carries beside its entries: its labels, the
// request to cert-manager, and belay's namespace as its owner, so that it does not
// outlive the Service that it points to.
func (r *Reconciler) dress(ctx context.Context, obj client.Object, exists bool) (bool, error) {
	changed := false
	if !exists {
		obj.SetName(ConfigurationName)
	}
	labels := obj.GetLabels()
	if labels["app.kubernetes.io/name"] != "belay" {
		if labels == nil {
			labels = map[string]string{}
		}
		labels["app.kubernetes.io/name"] = "belay"
		obj.SetLabels(labels)
		changed = true
	}
	if a := obj.GetAnnotations(); r.o.InjectCAFrom != "" && a[injectCAFrom] != r.o.InjectCAFrom {
		if a == nil {
			a = map[string]string{}
		}
		a[injectCAFrom] = r.o.InjectCAFrom
		obj.SetAnnotations(a)
		changed = true
	} else if r.o.InjectCAFrom == "" && strings.HasPrefix(a[injectCAFrom], r.o.OwnNamespace+"/") {
		// Left from when cert-manager had to do it, which would go on.
		delete(a, injectCAFrom)
		obj.SetAnnotations(a)
		changed = true
	}
	var ns corev1.Namespace
	if err := r.live.Get(ctx, client.ObjectKey{Name: r.o.OwnNamespace}, &ns); err != nil {
		return false, fmt.Errorf("reading belay's namespace: %w", err)
	}
	for _, ref := range obj.GetOwnerReferences() {
		if ref.UID == ns.UID {
			return changed, nil
		}
	}
	obj.SetOwnerReferences(append(obj.GetOwnerReferences(), metav1.OwnerReference{APIVersion: "v1", Kind: "Namespace", Name: ns.Name, UID: ns.UID}))
	return true, nil
}

// injectCAFrom is cert-manager's annotation for its CA injector.
const injectCAFrom = "cert-manager.io/inject-ca-from"

func configOf(obj client.Object) config {
	switch o := obj.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		return mutatingConfig(o)
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		return validatingConfig(o)
	}
	return config{}
}

func setConfig(obj client.Object, c config) {
	a := obj.GetAnnotations()
	if a == nil {
		a = map[string]string{}
	}
	a[appliedAnnotation] = c.applied.String()
	obj.SetAnnotations(a)
	switch o := obj.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		o.Webhooks = c.entries
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		o.Webhooks = nil
		for _, e := range c.entries {
			o.Webhooks = append(o.Webhooks, asValidating(e))
		}
	}
}
