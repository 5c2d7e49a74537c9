package admission

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/anchors"
	"github.com/belay-dev/belay/webhook/internal/expr"
	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/metrics"
	"github.com/belay-dev/belay/webhook/internal/owner"
)

// Paths under which owner admission is served. A policy's name follows after
// another slash; the mutating path alone serves the annotation belay.dev/owner.
const (
	MutateOwnerPath   = "/mutate/owner"
	ValidateOwnerPath = "/validate/owner"
)

// Phases of admission.
const (
	phaseMutate   = "mutate"
	phaseValidate = "validate"
)

// AnnotationDeadline is how long an Anchor waits for an owner that an annotation
// names: the default of a policy's deadline.
const AnnotationDeadline = 10 * time.Minute

const (
	// defaultTimeout is taken where the API server gives no timeout parameter.
	defaultTimeout = 3 * time.Second
	// maxTimeout is the longest that the API allows a webhook.
	maxTimeout = 30 * time.Second
	// answerMargin is the part of the time-out, one in so many, that is kept free
	// for connecting, encoding and sending: the API server's clock starts before it
	// dials, and an answer that comes late is no answer. A fifth of the default 3 s
	// was enough on two cores under full load, where 200 ms were not.
	answerMargin = 5
)

// PolicyGetter finds policies by name.
type PolicyGetter interface {
	Get(ctx context.Context, name string) (*facts.OwnerPolicy, facts.Standing, error)
}

// ModeGetter tells a namespace's mode.
type ModeGetter interface {
	Mode(ctx context.Context, namespace string) (string, error)
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
func (h *Owner) Mutate() http.Handler { return h.handler(phaseMutate, MutateOwnerPath) }

// Validate is the handler of the validating phase.
func (h *Owner) Validate() http.Handler { return h.handler(phaseValidate, ValidateOwnerPath) }

func (h *Owner) handler(phase, path string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			// Outside of answer there is no policy yet, or the answer itself is at fault:
			// the API server takes a 500 as a failed call, as its failure policy says.
			if p := recover(); p != nil {
				metrics.Panics.WithLabelValues("owner").Inc()
				h.Log.Error(fmt.Errorf("panic: %v", p), "panic while serving", "phase", phase, "stack", string(debug.Stack()))
				http.Error(w, "belay had an internal error; see its log", http.StatusInternalServerError)
			}
		}()
		err := h.serve(w, r, phase, strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, path), "/"))
		var he *httpError
		switch {
		case err == nil:
		case errors.As(err, &he):
			metrics.Unreadable.WithLabelValues(fmt.Sprint(he.code)).Inc()
			http.Error(w, he.message, he.code)
		default:
			h.Log.V(1).Info("answer not delivered", "phase", phase, "error", err.Error())
		}
	})
}

func (h *Owner) serve(w http.ResponseWriter, r *http.Request, phase, policyName string) error {
	req, err := readReview(w, r)
	if err != nil {
		return err
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(r.Context(), budget(r.URL.Query().Get("timeout")))
	defer cancel()

	c := &call{phase: phase, policyName: policyName, req: req}
	if err := h.choose(ctx, c); err != nil {
		return err
	}
	h.answer(ctx, c)
	metrics.Duration.WithLabelValues("owner", phase).Observe(time.Since(start).Seconds())
	h.record(c)
	return writeReview(w, req, respond(c))
}

// budget is the time for the decision: what the API server says it waits, less a
// margin for the answer.
func budget(timeout string) time.Duration {
	d, err := time.ParseDuration(timeout)
	if err != nil || d <= 0 {
		d = defaultTimeout
	}
	d = min(d, maxTimeout)
	return d - d/answerMargin
}

// call is one review on its way through.
type call struct {
	phase, policyName string
	req               *admissionv1.AdmissionRequest
	policy            *facts.OwnerPolicy // nil until it is known
	mode              string
	decision          owner.Decision
	patch             []byte
	panicked          bool
}

// choose finds the policy that the path names.
func (h *Owner) choose(ctx context.Context, c *call) error {
	if c.policyName == "" {
		if c.phase != phaseMutate {
			return &httpError{code: http.StatusNotFound, message: "the path names no policy"}
		}
		c.policy = annotationPolicy()
		return nil
	}
	p, standing, err := h.Policies.Get(ctx, c.policyName)
	switch standing {
	case facts.StandingInForce:
		c.policy = p
	case facts.StandingAbsent:
		return &httpError{code: http.StatusNotFound, message: fmt.Sprintf("there is no OwnerPolicy %.100q", c.policyName)}
	case facts.StandingDeleted:
		c.decision = owner.Decision{Allowed: true, Reason: ReasonPolicyDeleted, Message: "the policy was deleted a moment ago"}
	case facts.StandingNotInForce:
		c.decision = warned(ReasonPolicyNotInForce, fmt.Sprintf("OwnerPolicy %q has never been accepted; see its conditions", c.policyName))
	default:
		h.Log.Error(err, "policy not readable", "policy", c.policyName)
		c.decision = warned(ReasonPolicyUnreadable, fmt.Sprintf("OwnerPolicy %q could not be read in time: the object is admitted without an owner reference", c.policyName))
	}
	return nil
}

// Reasons of the edge itself, beside those of the decision.
const (
	ReasonPolicyDeleted    owner.Reason = "PolicyDeleted"
	ReasonPolicyNotInForce owner.Reason = "PolicyNotInForce"
	ReasonPolicyUnreadable owner.Reason = "PolicyUnreadable"
	ReasonExcluded         owner.Reason = "NamespaceExcluded"
	ReasonNotOptedIn       owner.Reason = "NamespaceNotOptedIn"
	ReasonObjectUnreadable owner.Reason = "ObjectUnreadable"
	ReasonInternal         owner.Reason = "InternalError"
)

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

// answer decides. A panic is a bug of belay and ends as the policy says that
// trouble ends: admitted with a warning, or denied with 500. It never takes the
// process with it.
func (h *Owner) answer(ctx context.Context, c *call) {
	if c.policy == nil {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			c.panicked = true
			metrics.Panics.WithLabelValues("owner").Inc()
			h.Log.Error(fmt.Errorf("panic: %v", p), "panic while deciding", "policy", c.policyName, "namespace", c.req.Namespace, "stack", string(debug.Stack()))
			h.internal(c)
		}
	}()
	c.mode = h.mode(ctx, c)
	if c.mode == "" {
		return
	}
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
		c.decision = owner.Decision{Code: http.StatusInternalServerError, Reason: ReasonInternal, Message: message}
		return
	}
	c.decision = warned(ReasonInternal, message+"; the object is admitted without an owner reference")
}

// mode is the namespace's mode; where there is none, the decision is made. What
// cannot be found out counts as enforce: the API server has matched the label.
func (h *Owner) mode(ctx context.Context, c *call) string {
	ns := c.req.Namespace
	switch {
	case ns == "":
		return v1alpha1.ModeEnforce // cluster-scoped: the policy itself is the opt-in
	case ns == h.OwnNamespace || strings.HasPrefix(ns, "kube-"):
		c.decision = owner.Decision{Allowed: true, Reason: ReasonExcluded, Message: "this namespace is never looked at"}
		return ""
	}
	mode, err := h.Modes.Mode(ctx, ns)
	if err != nil {
		return v1alpha1.ModeEnforce
	}
	if mode != v1alpha1.ModeEnforce && mode != v1alpha1.ModeWarn {
		c.decision = owner.Decision{Allowed: true, Reason: ReasonNotOptedIn, Message: "the namespace has no mode"}
		return ""
	}
	return mode
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
		c.decision = owner.Decision{Code: http.StatusBadRequest, Reason: ReasonObjectUnreadable, Message: "the object in the review cannot be read: it must be an object with metadata"}
		return in, raw, false
	}
	in.Request.Name, in.Request.References = d.Metadata.Name, d.Metadata.OwnerReferences

	if c.policyName == "" {
		in.Target = owner.FromAnnotation(d.Metadata.Annotations[v1alpha1.OwnerAnnotation])
	} else {
		vars, err := variables(c.req)
		if err != nil {
			c.decision = owner.Decision{Code: http.StatusBadRequest, Reason: ReasonObjectUnreadable, Message: "the object in the review cannot be read"}
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

// variables are what an expression sees. The data of a Secret is not among them:
// what an expression gives ends in names and messages.
func variables(req *admissionv1.AdmissionRequest) (map[string]any, error) {
	var object map[string]any
	if err := utiljson.Unmarshal(req.Object.Raw, &object); err != nil {
		return nil, err
	}
	if req.Kind.Group == "" && req.Kind.Kind == "Secret" {
		delete(object, "data")
		delete(object, "stringData")
	}
	return map[string]any{
		expr.VarObject: object,
		expr.VarRequest: map[string]any{
			"namespace": req.Namespace, "name": req.Name, "operation": string(req.Operation),
			"dryRun":   isDryRun(req),
			"userInfo": map[string]any{"username": req.UserInfo.Username, "groups": anySlice(req.UserInfo.Groups), "uid": req.UserInfo.UID},
		},
	}, nil
}

func anySlice(in []string) []any {
	out := make([]any, len(in))
	for i, s := range in {
		out[i] = s
	}
	return out
}

func isDryRun(req *admissionv1.AdmissionRequest) bool { return req.DryRun != nil && *req.DryRun }

// record counts and logs a decision: never the object.
func (h *Owner) record(c *call) {
	decision := metrics.Allowed
	if !c.decision.Allowed {
		decision = metrics.Denied
	}
	metrics.Decisions.WithLabelValues("owner", c.phase, c.mode, decision, string(c.decision.Reason)).Inc()
	h.Log.V(1).Info("decided", "policy", c.policyName, "namespace", c.req.Namespace, "resource", c.req.Resource.Resource,
		"name", c.req.Name, "phase", c.phase, "mode", c.mode, "decision", decision, "reason", c.decision.Reason, "uid", c.req.UID)
}
