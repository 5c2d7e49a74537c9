package registration

import (
	"context"
	"errors"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/admission"
	"github.com/belay-dev/belay/webhook/internal/expr"
	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/naming"
)

// ReplacerLabel is the label that, on a ClusterRole, adds its rules to what
// belay-webhook may read, list and delete on behalf of NamePolicies.
const ReplacerLabel = "rbac.belay.dev/aggregate-to-replacer"

// observedNames is all that the acceptance of a NamePolicy depends on.
type observedNames struct {
	kinds  []kindFact
	rights []rightFact
}

// acceptName judges a spec. It is pure; the first thing that is wrong is reported,
// with its field path.
func acceptName(p *v1alpha1.NamePolicy, o observedNames) verdict {
	s := p.Spec
	if _, err := facts.CompileNames(s); err != nil {
		return badExpression(err)
	}
	if v, bad := checkConditions(s.MatchConditions); bad {
		return v
	}
	if v, bad := checkSelectors(s.Selector, s.NamespaceSelector); bad {
		return v
	}
	for i, k := range s.Kinds {
		path := fmt.Sprintf("spec.kinds[%d]", i)
		if v, bad := checkKind(path, k.APIVersion, k.Kind, o.kinds[i]); bad {
			return v
		}
		res := o.kinds[i].resource
		if why := forbidden(res); why != "" {
			return verdict{reason: v1alpha1.ReasonForbiddenKind, message: fmt.Sprintf("%s: %s %s", path, k.Kind, why)}
		}
		if s.WhenFinished == v1alpha1.FinishedReplace && s.Finished == "" && !naming.BuiltIn(res.Group, res.Kind) {
			return verdict{reason: v1alpha1.ReasonInvalidSpec, message: fmt.Sprintf("spec.finished: must say when a %s is finished, since spec.whenFinished is Replace; only Jobs and Pods say so themselves", k.Kind)}
		}
	}
	if v, bad := checkRights(o.rights, ReplacerLabel); bad {
		return v
	}
	in := &v1alpha1.AcceptedNamePolicy{Generation: p.Generation, Spec: *s.DeepCopy()}
	for _, k := range o.kinds {
		in.Kinds = append(in.Kinds, k.resource)
	}
	return verdict{ok: true, reason: v1alpha1.ReasonAccepted, message: accepted, nameInForce: in}
}

// observeName finds out what acceptance depends on.
func (r *Reconciler) observeName(ctx context.Context, p *v1alpha1.NamePolicy) observedNames {
	var o observedNames
	pods := false
	for _, k := range p.Spec.Kinds {
		res, err := r.resolver.Resolve(k.APIVersion, k.Kind)
		o.kinds = append(o.kinds, kindFact{resource: res, err: err})
		if err != nil {
			continue
		}
		verbs := []string{"get"}
		if p.Spec.WhenFinished == v1alpha1.FinishedReplace {
			verbs = append(verbs, "delete")
		}
		for _, v := range verbs {
			o.rights = append(o.rights, r.right(ctx, r.o.WebhookAccount, v, res))
		}
		pods = pods || naming.IsJob(res.Group, res.Kind)
	}
	if pods && (p.Spec.WaitForPods == nil || *p.Spec.WaitForPods) {
		o.rights = append(o.rights, r.right(ctx, r.o.WebhookAccount, "list", v1alpha1.ResolvedResource{Version: "v1", Resource: "pods"}))
	}
	return o
}

// nameEntries are the entries of a NamePolicy.
func nameEntries(p *v1alpha1.NamePolicy, s settings) (mutating, validating entry) {
	spec := p.Status.InForce.Spec
	e := entry{
		name:              p.Name + v1alpha1.NameEntryDomain,
		namespaceSelector: optedIn(spec.NamespaceSelector, s.ownNamespace),
		objectSelector:    selectorOrAll(spec.Selector),
		conditions:        conditionsOf(spec.MatchConditions),
		rules:             rulesOf(p.Status.InForce.Kinds),
		failurePolicy:     admissionregistrationv1.FailurePolicyType(spec.FailurePolicy),
		timeoutSeconds:    spec.TimeoutSeconds,
		// A second call could not be told from the first, and would take the work from an
		// object that other webhooks have changed by then.
		once: true,
	}
	mutating, validating = e, e
	mutating.path = admission.MutateNamePath + "/" + p.Name
	validating.path = admission.ValidateNamePath + "/" + p.Name
	return mutating, validating
}

func badExpression(err error) verdict {
	var ce *expr.CompileError
	if errors.As(err, &ce) {
		return verdict{reason: v1alpha1.ReasonInvalidExpression, message: clip(ce.Error())}
	}
	return verdict{reason: v1alpha1.ReasonCheckFailed, message: clip(err.Error()), again: true}
}
