package admission

import (
	"context"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/anchors"
	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/owner"
)

// Paths under which owner admission is served. A policy's name follows after
// another slash; the mutating path alone serves the annotation belay.dev/owner.
const (
	MutateOwnerPath   = "/mutate/owner"
	ValidateOwnerPath = "/validate/owner"
)

// AnnotationDeadline is how long an Anchor waits for an owner that an annotation
// names: the default of a policy's deadline.
const AnnotationDeadline = 10 * time.Minute

// PolicyGetter finds policies by name.
type PolicyGetter interface {
	Get(ctx context.Context, name string) (*facts.OwnerPolicy, facts.Standing, error)
}

// FactFinder looks owners up.
type FactFinder interface {
	Find(ctx context.Context, q facts.Query) owner.Fact
	Resolve(apiVersion, kind string) (v1alpha1.ResolvedResource, error)
	References(ctx context.Context, namespace string, refs []metav1.OwnerReference) []owner.ReferenceFact
}

// AmbiguityReporter tells people that belay did not guess.
type AmbiguityReporter interface {
	Ambiguous(namespace string, candidates []owner.Object, message string)
}

// Owner serves owner admission.
type Owner struct {
	Policies PolicyGetter
	Modes    ModeGetter
	Facts    FactFinder
	Anchors  anchors.Client
	Events   AmbiguityReporter
	Log      logr.Logger
	// OwnNamespace is belay's own, which is never looked at.
	OwnNamespace string
}

// Mutate is the handler of the mutating phase.
func (h *Owner) Mutate() http.Handler { return h.edge().handler(phaseMutate, MutateOwnerPath) }

// Validate is the handler of the validating phase.
func (h *Owner) Validate() http.Handler { return h.edge().handler(phaseValidate, ValidateOwnerPath) }

func (h *Owner) edge() edge { return edge{webhook: "owner", log: h.Log, review: h.review} }

// call is one review on its way through.
type call struct {
	asked
	policy   *facts.OwnerPolicy
	mode     string
	decision owner.Decision
	patch    []byte
}

func (h *Owner) review(ctx context.Context, a asked) (outcome, error) {
	c := &call{asked: a}
	if a.policyName == "" {
		if a.phase != phaseMutate {
			return outcome{}, &httpError{code: http.StatusNotFound, message: "the path names no policy"}
		}
		c.policy = annotationPolicy()
	} else {
		p, s, err := h.Policies.Get(ctx, a.policyName)
		if s != facts.StandingInForce {
			if err != nil {
				h.Log.Error(err, "policy not readable", "policy", a.policyName)
			}
			return standing("OwnerPolicy", a.policyName, s, func(reason, message string) outcome {
				return outcomeOf(warned(owner.Reason(reason), message+": the object is admitted without an owner reference"), nil, "")
			})
		}
		c.policy = p
	}
	var excluded outcome
	if !h.answer(ctx, c, &excluded) {
		return excluded, nil
	}
	o := outcomeOf(c.decision, c.patch, c.mode)
	o.first = c.phase == phaseMutate && (c.policy.ClientReferences == v1alpha1.LintDeny || c.policy.WhenUnresolved == v1alpha1.UnresolvedDeny)
	return o, nil
}

// outcomeOf is a decision as the edge answers it.
func outcomeOf(d owner.Decision, patch []byte, mode string) outcome {
	o := outcome{
		mode: mode, allowed: d.Allowed, reason: string(d.Reason), message: d.Message, warnings: d.Warnings, patch: patch,
		code: d.Code, status: statusReason(d.Code), retryAfter: d.RetryAfterSeconds,
	}
	if !d.Allowed {
		o.causes = []metav1.StatusCause{{Type: metav1.CauseType("belay.dev/" + string(d.Reason)), Message: d.Message}}
	}
	return o
}

func statusReason(code int32) metav1.StatusReason {
	switch code {
	case http.StatusBadRequest:
		return metav1.StatusReasonBadRequest
	case http.StatusForbidden:
		return metav1.StatusReasonForbidden
	case http.StatusServiceUnavailable:
		return metav1.StatusReasonServiceUnavailable
	default:
		return metav1.StatusReasonInternalError
	}
}

func warned(reason owner.Reason, message string) owner.Decision {
	return owner.Decision{Allowed: true, Reason: reason, Message: message, Warnings: []string{message}}
}

// annotationPolicy is the stance for owners that an annotation names.
func annotationPolicy() *facts.OwnerPolicy {
	return &facts.OwnerPolicy{
		Policy:   owner.Policy{WhenUnresolved: v1alpha1.UnresolvedAdmit, ClientReferences: v1alpha1.LintWarn},
		Deadline: AnnotationDeadline,
	}
}

// answer decides, and reports whether there was anything to decide. A panic is a bug
// of belay and ends as the policy says that trouble ends: admitted with a warning, or
// denied with 500. It never takes the process with it.
func (h *Owner) answer(ctx context.Context, c *call, excluded *outcome) (decided bool) {
	defer func() {
		if p := recover(); p != nil {
			h.edge().panicked(p, "panic while deciding", "policy", c.policyName, "namespace", c.req.Namespace)
			h.internal(c)
			decided = true
		}
	}()
	if c.mode, _, *excluded = modeOf(ctx, h.Modes, h.OwnNamespace, c.req.Namespace); c.mode == "" {
		return false
	}
	h.decideCall(ctx, c)
	return true
}

func (h *Owner) decideCall(ctx context.Context, c *call) {
	in, raw, ok := h.gather(ctx, c)
	if !ok {
		if c.mode == v1alpha1.ModeWarn {
			c.decision = c.decision.AsWarning()
		}
		return
	}
	c.decision = h.decide(ctx, c, in)
	if len(c.decision.Ambiguous) > 0 && !isDryRun(c.req) {
		h.Events.Ambiguous(c.req.Namespace, c.decision.Ambiguous, c.decision.Message)
	}
	if c.mode == v1alpha1.ModeWarn {
		c.decision = c.decision.AsWarning()
	}
	patch, err := ownerPatch(raw, in.Request.References, c.decision.Edits)
	if err != nil {
		h.Log.Error(err, "patch does not apply", "policy", c.policyName, "namespace", c.req.Namespace)
		h.internal(c)
		return
	}
	c.patch = patch
}

// internal answers for a bug of belay.
func (h *Owner) internal(c *call) {
	c.patch = nil
	const message = "belay had an internal error; see its log"
	if c.policy.WhenUnresolved == v1alpha1.UnresolvedDeny && c.mode != v1alpha1.ModeWarn {
		c.decision = owner.Decision{Code: http.StatusInternalServerError, Reason: owner.Reason(ReasonInternal), Message: message}
		return
	}
	c.decision = warned(owner.Reason(ReasonInternal), message+"; the object is admitted without an owner reference")
}

// dependent is the part of an object that decisions read.
type dependent struct {
	Metadata *struct {
		Name            string                  `json:"name"`
		Annotations     map[string]string       `json:"annotations"`
		OwnerReferences []metav1.OwnerReference `json:"ownerReferences"`
	} `json:"metadata"`
}

// gather collects what the decision needs, all but an Anchor.
func (h *Owner) gather(ctx context.Context, c *call) (owner.Input, []byte, bool) {
	raw := c.req.Object.Raw
	in := owner.Input{Policy: c.policy.Policy, Request: owner.Request{
		Operation: string(c.req.Operation), Namespace: c.req.Namespace, Kind: c.req.Kind.Kind,
		Preview: isDryRun(c.req) || c.mode == v1alpha1.ModeWarn, Size: len(raw),
	}}
	if c.req.Operation != admissionv1.Create || c.req.SubResource != "" {
		in.Request.Operation = "OTHER" // never looked into, whatever it is
		return in, raw, true
	}
	var d dependent
	// With the case of keys, as Kubernetes reads them: a custom resource may well have
	// a field "Metadata" of its own.
	if err := utiljson.Unmarshal(raw, &d); err != nil || d.Metadata == nil {
		c.decision = owner.Decision{Code: http.StatusBadRequest, Reason: owner.Reason(ReasonObjectUnreadable), Message: "the object in the review cannot be read: it must be an object with metadata"}
		return in, raw, false
	}
	in.Request.Name, in.Request.References = d.Metadata.Name, d.Metadata.OwnerReferences

	if c.policyName == "" {
		in.Target = owner.FromAnnotation(d.Metadata.Annotations[v1alpha1.OwnerAnnotation])
	} else {
		vars, err := variables(c.req)
		if err != nil {
			c.decision = owner.Decision{Code: http.StatusBadRequest, Reason: owner.Reason(ReasonObjectUnreadable), Message: "the object in the review cannot be read"}
			return in, raw, false
		}
		in.Target = c.policy.Expression.Target(ctx, c.policy.Resource, vars)
	}
	h.look(ctx, c, &in)
	return in, raw, true
}

// look reads the facts that the target makes necessary.
func (h *Owner) look(ctx context.Context, c *call, in *owner.Input) {
	if in.Target.Owner != nil && c.phase == phaseMutate {
		h.lookForOwner(ctx, c, in)
	}
	if in.Policy.ClientReferences != v1alpha1.LintIgnore && len(in.Request.References) > 0 {
		// After the owner, and with a part of the time that is left: this is advice,
		// that is the promise, and an Anchor may have to be made yet.
		ctx, cancel := context.WithTimeout(ctx, lintShare(ctx))
		defer cancel()
		in.Facts.References = h.Facts.References(ctx, in.Request.Namespace, in.Request.References)
	}
}

// lintShare is a quarter of the time that is left.
func lintShare(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return defaultTimeout
	}
	return time.Until(deadline) / 4
}

// lookForOwner finds the owner that is wanted.
func (h *Owner) lookForOwner(ctx context.Context, c *call, in *owner.Input) {
	w := in.Target.Owner
	res := c.policy.Resource
	if c.policyName == "" {
		var err error
		res, err = facts.Within(ctx, func() (v1alpha1.ResolvedResource, error) { return h.Facts.Resolve(w.APIVersion, w.Kind) })
		if err != nil {
			in.Facts.Owner.Cause = facts.CauseOf(err)
			return
		}
		w.Scope = facts.ScopeOf(res)
	}
	if res.Namespaced && (in.Request.Namespace == "" || (w.Namespace != "" && w.Namespace != in.Request.Namespace)) {
		return // denied for that alone
	}
	in.Facts.Owner = h.Facts.Find(ctx, facts.Query{Resource: res, Namespace: in.Request.Namespace, Name: w.Name, Labels: w.Labels})
}

// decide asks the rules, and once more when they need an Anchor.
func (h *Owner) decide(ctx context.Context, c *call, in owner.Input) owner.Decision {
	if c.phase == phaseValidate {
		return owner.Verify(in)
	}
	d := owner.Decide(in)
	if d.Anchor == nil {
		return d
	}
	in.Facts.Anchor = anchors.Hold(ctx, h.Anchors, anchors.Request{
		Namespace: in.Request.Namespace, Owner: d.Anchor.Owner, Deadline: c.policy.Deadline, Policy: c.policyName,
	})
	return owner.Decide(in)
}
