package registration

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/owner"
	"github.com/belay-dev/belay/webhook/internal/wording"
)

// kindFact is what was found out about one kind that a policy names.
type kindFact struct {
	resource v1alpha1.ResolvedResource
	// err is facts.ErrNoKind where there is none, or why it is not known.
	err error
}

// rightFact is one right that the policy needs.
type rightFact struct {
	account, verb, resource string
	// allowed counts only when err is nil.
	allowed bool
	err     error
}

// observedPolicy is all that acceptance depends on.
type observedPolicy struct {
	dependents []kindFact
	owner      kindFact
	rights     []rightFact
}

// verdict is whether a spec can be put to work.
type verdict struct {
	ok              bool
	reason, message string
	// again says that the same spec may be accepted later without being changed.
	again bool
	// revised says that what is in force changes, although the newest spec is refused: what
	// the one in force stands on is gone, or is another now.
	revised bool
	// One of these is set when ok, by the kind of the policy.
	inForce         *v1alpha1.AcceptedOwnerPolicy
	nameInForce     *v1alpha1.AcceptedNamePolicy
	recoveryInForce *v1alpha1.AcceptedRecoveryPolicy
}

// accepted is the message of policies that are.
const accepted = "the policy is valid and belay has the rights that it needs"

// accept judges a spec. It is pure; the first thing that is wrong is reported,
// with its field path.
func accept(p *v1alpha1.OwnerPolicy, o observedPolicy) verdict {
	if _, err := facts.CompileOwner(p.Spec.Owner); err != nil {
		return badExpression(err)
	}
	if v, bad := checkConditions(p.Spec.MatchConditions); bad {
		return v
	}
	if v, bad := checkSelectors(p.Spec.Selector, p.Spec.NamespaceSelector); bad {
		return v
	}
	for i, d := range p.Spec.Dependents {
		if v, bad := checkKind(fmt.Sprintf("spec.dependents[%d]", i), d.APIVersion, d.Kind, o.dependents[i]); bad {
			return v
		}
		if why := forbidden(o.dependents[i].resource); why != "" {
			return verdict{reason: v1alpha1.ReasonForbiddenKind, message: fmt.Sprintf("spec.dependents[%d]: %s %s", i, d.Kind, why)}
		}
	}
	if v, bad := checkKind("spec.owner", p.Spec.Owner.APIVersion, p.Spec.Owner.Kind, o.owner); bad {
		return v
	}
	if why := owner.NeverOwner(o.owner.resource.Group, o.owner.resource.Kind); why != "" {
		return verdict{reason: v1alpha1.ReasonForbiddenKind, message: "spec.owner: " + why}
	}
	for i, d := range o.dependents {
		if !d.resource.Namespaced && o.owner.resource.Namespaced {
			return verdict{reason: v1alpha1.ReasonScopeMismatch, message: fmt.Sprintf("spec.dependents[%d]: %s is cluster-scoped and cannot be owned by the namespaced %s", i, d.resource.Kind, o.owner.resource.Kind)}
		}
	}
	if v, bad := checkRights(o.rights, AggregateLabel); bad {
		return v
	}
	in := &v1alpha1.AcceptedOwnerPolicy{Generation: p.Generation, Spec: *p.Spec.DeepCopy(), Owner: o.owner.resource}
	for _, d := range o.dependents {
		in.Dependents = append(in.Dependents, d.resource)
	}
	return verdict{ok: true, reason: v1alpha1.ReasonAccepted, message: accepted, inForce: in}
}

func checkConditions(conditions []v1alpha1.MatchCondition) (verdict, bool) {
	for i, c := range conditions {
		if err := checkCondition(fmt.Sprintf("spec.matchConditions[%d].expression", i), c.Expression); err != nil {
			return badExpression(err), true
		}
	}
	return verdict{}, false
}

func checkSelectors(selector, namespaceSelector *metav1.LabelSelector) (verdict, bool) {
	for _, c := range []struct {
		name     string
		selector *metav1.LabelSelector
	}{{"selector", selector}, {"namespaceSelector", namespaceSelector}} {
		if raw, err := json.Marshal(c.selector); err != nil || len(raw) > maxSelector {
			return verdict{reason: v1alpha1.ReasonInvalidSelector, message: fmt.Sprintf("spec.%s: has more than %d bytes; select by a label of your own instead of listing names", c.name, maxSelector)}, true
		}
		errs := metav1validation.ValidateLabelSelector(c.selector, metav1validation.LabelSelectorValidationOptions{}, field.NewPath("spec", c.name))
		if len(errs) > 0 {
			return verdict{reason: v1alpha1.ReasonInvalidSelector, message: clip(errs[0].Error())}, true
		}
	}
	return verdict{}, false
}

// maxSelector bounds a selector in JSON. All of them are kept in one annotation,
// whose limit is 256 KiB: one policy must not use that up for the others.
const maxSelector = 4 << 10

func checkKind(path, apiVersion, kind string, f kindFact) (verdict, bool) {
	switch {
	case f.err == nil:
		return verdict{}, false
	case errors.Is(f.err, facts.ErrNoKind):
		return verdict{reason: v1alpha1.ReasonUnknownKind, again: true, message: fmt.Sprintf("%s: the API server serves no kind %q in %q; check apiVersion and kind, or install its CRD", path, kind, apiVersion)}, true
	default:
		return verdict{reason: v1alpha1.ReasonCheckFailed, again: true, message: clip(fmt.Sprintf("%s: could not find out whether the API server serves %q in %q: %v", path, kind, apiVersion, f.err))}, true
	}
}

// checkRights names every right that is missing, so that one change mends it.
func checkRights(rights []rightFact, label string) (verdict, bool) {
	var missing []string
	for _, r := range rights {
		if r.err != nil {
			return verdict{reason: v1alpha1.ReasonCheckFailed, again: true, message: clip(fmt.Sprintf("could not find out whether %s may %s %s: %v", r.account, r.verb, r.resource, r.err))}, true
		}
		if !r.allowed {
			missing = append(missing, fmt.Sprintf("%s may not %s %s", r.account, r.verb, r.resource))
		}
	}
	if len(missing) == 0 {
		return verdict{}, false
	}
	return verdict{reason: v1alpha1.ReasonMissingPermission, again: true, message: clip(fmt.Sprintf("%s; add a ClusterRole labelled %s: \"true\" with these rights, as the presets do", strings.Join(missing, "; "), label))}, true
}

// AggregateLabel is the label that, on a ClusterRole, adds its rules to what belay may read.
const AggregateLabel = "rbac.belay.dev/aggregate-to-owner-reader"

// forbidden says why a kind can never be a dependent.
func forbidden(r v1alpha1.ResolvedResource) string {
	switch r.Group {
	case v1alpha1.GroupVersion.Group:
		return "is belay's own"
	case "admissionregistration.k8s.io":
		return "is never sent to webhooks by the API server"
	case "authentication.k8s.io", "authorization.k8s.io":
		return "is a question to the API server and is never stored"
	case "coordination.k8s.io", "events.k8s.io":
		return "must never wait for a webhook: leader elections and events depend on it"
	case "certificates.k8s.io", "apiregistration.k8s.io", "apiextensions.k8s.io", "flowcontrol.apiserver.k8s.io":
		return "is what the cluster itself runs on, and must never wait for a webhook"
	case "":
		if r.Resource == "events" || r.Resource == "namespaces" || r.Resource == "nodes" {
			return "must never wait for a webhook"
		}
	}
	return ""
}

// clip keeps a message within what a condition may hold.
func clip(s string) string { return wording.Clip(s, 1024) }
