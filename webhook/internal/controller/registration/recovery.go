package registration

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/admission"
	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/recovery"
)

// Labels that, on a ClusterRole, add its rules to what belay may do on behalf of
// RecoveryPolicies: belay-webhook and belay-controller read Pods, and belay-controller reads
// guarded objects and writes their status.
const (
	RecoveryReaderLabel = "rbac.belay.dev/aggregate-to-recovery-reader"
	RecoveryDriverLabel = "rbac.belay.dev/aggregate-to-recovery-driver"
)

// observedRecovery is all that the acceptance of a RecoveryPolicy depends on.
type observedRecovery struct {
	kind kindFact
	// crd is nil where the kind has none; crdErr says why that is not known.
	crd    *apiextensionsv1.CustomResourceDefinition
	crdErr error
	// other is the policy that guards the resource already; otherErr says why that is not
	// known.
	other    string
	otherErr error
	readers  []rightFact
	drivers  []rightFact
	// held is the CRD of what is in force, which may be another's; nil where there is none.
	held    *apiextensionsv1.CustomResourceDefinition
	heldErr error
}

// acceptRecovery judges a spec, and what is in force. It is pure.
func acceptRecovery(p *v1alpha1.RecoveryPolicy, o observedRecovery) verdict {
	v := judgeRecovery(p, o)
	in := p.Status.InForce
	if v.ok || in == nil || o.heldErr != nil {
		return v
	}
	// A spec that is refused leaves the last one in force, but not without what that stands
	// on: a record that is not stored would be half a guard.
	if o.held == nil {
		v.revised = true
		return v
	}
	record, _, lost := checkCRD(in.Spec, o.held, in.Resource.Version)
	switch {
	case lost:
		v.revised = true
	case record != in.Record:
		v.revised, v.recoveryInForce = true, in.DeepCopy()
		v.recoveryInForce.Record = record
	}
	return v
}

// judgeRecovery judges the newest spec; the first thing that is wrong is reported, with its
// field path.
func judgeRecovery(p *v1alpha1.RecoveryPolicy, o observedRecovery) verdict {
	s := p.Spec
	if v, bad := checkPodSelectors(s.Pods); bad {
		return v
	}
	if _, err := facts.CompileRecovery(s); err != nil {
		return badExpression(err)
	}
	if v, bad := checkConditions(s.MatchConditions); bad {
		return v
	}
	if v, bad := checkSelectors(s.Selector, s.NamespaceSelector); bad {
		return v
	}
	if v, bad := checkKind("spec.resource", s.Resource.APIVersion, s.Resource.Kind, o.kind); bad {
		return v
	}
	res := o.kind.resource
	if why := forbidden(res); why != "" {
		return verdict{reason: v1alpha1.ReasonForbiddenKind, message: fmt.Sprintf("spec.resource: %s %s", s.Resource.Kind, why)}
	}
	switch {
	case o.crdErr != nil:
		return verdict{reason: v1alpha1.ReasonCheckFailed, again: true, message: clip(fmt.Sprintf("spec.resource: could not read the CRD: %v", o.crdErr))}
	case o.crd == nil:
		return verdict{reason: v1alpha1.ReasonUnknownKind, again: true, message: fmt.Sprintf("spec.resource: there is no CRD %s.%s; install it, or name a custom resource", res.Resource, res.Group)}
	case !res.Namespaced:
		return verdict{reason: v1alpha1.ReasonScopeMismatch, message: fmt.Sprintf("spec.resource: %s is cluster-scoped, and has no Pods of its own", s.Resource.Kind)}
	}
	record, v, bad := checkCRD(s, o.crd, res.Version)
	if bad {
		return v
	}
	switch {
	case o.otherErr != nil:
		return verdict{reason: v1alpha1.ReasonCheckFailed, again: true, message: clip(fmt.Sprintf("could not find out which other policies there are: %v", o.otherErr))}
	case o.other != "":
		return verdict{reason: v1alpha1.ReasonOverlap, again: true, message: fmt.Sprintf("spec.resource: RecoveryPolicy %q guards %s already, and an object has one record; change that policy, or delete it", o.other, res.Resource)}
	}
	if v, bad := checkRights(o.readers, RecoveryReaderLabel); bad {
		return v
	}
	if v, bad := checkRights(o.drivers, RecoveryDriverLabel); bad {
		return v
	}
	return verdict{ok: true, reason: v1alpha1.ReasonAccepted, message: accepted, recoveryInForce: &v1alpha1.AcceptedRecoveryPolicy{
		Generation: p.Generation, Spec: *s.DeepCopy(), Resource: res, Record: record,
	}}
}

func checkPodSelectors(sources []v1alpha1.PodSource) (verdict, bool) {
	for i := range sources {
		path := field.NewPath("spec", "pods").Index(i).Child("selector")
		if errs := metav1validation.ValidateLabelSelector(&sources[i].Selector, metav1validation.LabelSelectorValidationOptions{}, path); len(errs) > 0 {
			return verdict{reason: v1alpha1.ReasonInvalidSelector, message: clip(errs[0].Error())}, true
		}
	}
	return verdict{}, false
}

// observeRecovery finds out what acceptance depends on.
func (r *Reconciler) observeRecovery(ctx context.Context, p *v1alpha1.RecoveryPolicy) observedRecovery {
	var o observedRecovery
	res, err := r.resolver.Resolve(p.Spec.Resource.APIVersion, p.Spec.Resource.Kind)
	o.kind = kindFact{resource: res, err: err}
	if err == nil {
		o.crd, o.crdErr = r.definition(ctx, res)
	}
	switch in := p.Status.InForce; {
	case in == nil:
	case err == nil && in.Resource.Group == res.Group && in.Resource.Resource == res.Resource:
		o.held, o.heldErr = o.crd, o.crdErr
	default:
		o.held, o.heldErr = r.definition(ctx, in.Resource)
	}
	if err != nil {
		return o
	}
	o.other, o.otherErr = r.otherGuard(ctx, p, res)
	pods := v1alpha1.ResolvedResource{Version: "v1", Resource: "pods"}
	for _, account := range []string{r.o.WebhookAccount, r.o.ControllerAccount} {
		for _, verb := range []string{"get", "list", "watch"} {
			o.readers = append(o.readers, r.right(ctx, account, verb, pods))
		}
	}
	if facts.ByWitness(p.Spec) {
		// The collector asks for reports more often while a failed object waits for its Pods.
		for _, verb := range []string{"list", "watch"} {
			o.readers = append(o.readers, r.right(ctx, r.o.WebhookAccount, verb, res))
		}
	}
	for _, verb := range []string{"get", "list", "watch", "patch"} {
		o.drivers = append(o.drivers, r.right(ctx, r.o.ControllerAccount, verb, res))
	}
	if p.Spec.Recover == v1alpha1.RecoverAuto {
		status := res
		status.Resource += "/status"
		o.drivers = append(o.drivers, r.right(ctx, r.o.ControllerAccount, "patch", status))
	}
	return o
}

// definition reads the CRD of a resource; nil where there is none.
func (r *Reconciler) definition(ctx context.Context, res v1alpha1.ResolvedResource) (*apiextensionsv1.CustomResourceDefinition, error) {
	var crd apiextensionsv1.CustomResourceDefinition
	err := r.live.Get(ctx, client.ObjectKey{Name: res.Resource + "." + res.Group}, &crd)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &crd, nil
}

// otherGuard finds another policy that guards the same resource. It asks the API server
// itself: of two that are accepted one after the other, the second must see the first.
func (r *Reconciler) otherGuard(ctx context.Context, p *v1alpha1.RecoveryPolicy, res v1alpha1.ResolvedResource) (string, error) {
	about := func(q *v1alpha1.RecoveryPolicy) bool {
		in := q.Status.InForce
		return in != nil && in.Resource.Group == res.Group && in.Resource.Resource == res.Resource
	}
	if about(p) {
		return "", nil
	}
	var all v1alpha1.RecoveryPolicyList
	if err := r.live.List(ctx, &all); err != nil {
		return "", err
	}
	for i := range all.Items {
		if q := &all.Items[i]; q.Name != p.Name && q.DeletionTimestamp == nil && about(q) {
			return q.Name, nil
		}
	}
	return "", nil
}

// recoveryEntries are the entries of a RecoveryPolicy.
func recoveryEntries(p *v1alpha1.RecoveryPolicy, s settings) (mutating, validating entry) {
	in := p.Status.InForce
	scope := admissionregistrationv1.NamespacedScope
	e := entry{
		name:              p.Name + v1alpha1.RecoveryEntryDomain,
		namespaceSelector: optedIn(in.Spec.NamespaceSelector, s.ownNamespace),
		objectSelector:    selectorOrAll(in.Spec.Selector),
		conditions:        append(conditionsOf(in.Spec.MatchConditions), notController(s), concerned(in.Spec)),
		// The subresource by its name, and no other: a Scale is no custom resource, and a rule
		// for the resource itself is not asked for writes to its status.
		rules: []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
			Rule: admissionregistrationv1.Rule{
				APIGroups: []string{in.Resource.Group}, APIVersions: []string{in.Resource.Version}, Resources: []string{in.Resource.Resource + "/status"}, Scope: &scope,
			},
		}},
		failurePolicy:  admissionregistrationv1.FailurePolicyType(in.Spec.FailurePolicy),
		timeoutSeconds: in.Spec.TimeoutSeconds,
	}
	mutating, validating = e, e
	mutating.path = admission.MutateRecoveryPath + "/" + p.Name
	validating.path = admission.ValidateRecoveryPath + "/" + p.Name
	return mutating, validating
}

// notController exempts belay-controller: what it writes rests on evidence that it has read
// itself, and must not depend on the webhook.
func notController(s settings) admissionregistrationv1.MatchCondition {
	return admissionregistrationv1.MatchCondition{
		Name:       "belay.not-controller",
		Expression: fmt.Sprintf("request.userInfo.username != %q", "system:serviceaccount:"+s.ownNamespace+":"+s.controllerAccount),
	}
}

// concerned keeps the API server from asking about writes that have nothing to do with a
// failure: neither the stored object nor the new one is failed, or has a record, or has
// something else at these paths than it should. The ordinary life of a guarded object costs
// no call.
//
// It must be true wherever the guard does not leave a write untouched; what is being deleted
// it does leave, and then nobody has to be there to be asked.
func concerned(s v1alpha1.RecoveryPolicySpec) admissionregistrationv1.MatchCondition {
	var failed []string
	for _, p := range s.Phases.Failed {
		failed = append(failed, strconv.Quote(string(p)))
	}
	var either []string
	for _, object := range []string{"oldObject", "object"} {
		phase, record := optional(object, s.PhasePath), optional(object, s.RecordPath)
		concerns := []string{
			fmt.Sprintf("%s in [%s]", phase, strings.Join(failed, ", ")),
			fmt.Sprintf("(%s != null && type(%s) != string)", phase, phase),
			fmt.Sprintf("(%s != null && %s != [])", record, record),
		}
		if s.ConditionsPath != "" {
			conditions := optional(object, s.ConditionsPath)
			concerns = append(concerns, fmt.Sprintf("(%s != null && type(%s) != list)", conditions, conditions))
		}
		either = append(either, fmt.Sprintf("(has(%s.status) && %s.status != null && (type(%s.status) != map || %s))", object, object, object, strings.Join(concerns, " || ")))
	}
	return admissionregistrationv1.MatchCondition{Name: "belay.concerned", Expression: "!has(oldObject.metadata.deletionTimestamp) && (" + strings.Join(either, " || ") + ")"}
}

// optional is the CEL expression of the value at a path; null where it is absent.
func optional(object string, path v1alpha1.StatusPath) string {
	text := object
	for _, name := range recovery.Segments(path) {
		text += "[?" + strconv.Quote(name) + "]" // as a key, since CEL reserves some words
	}
	return text + ".orValue(dyn(null))"
}
