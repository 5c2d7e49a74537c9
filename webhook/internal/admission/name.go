package admission

import (
	"context"
	"math"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/expr"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/naming"
	"github.com/belay-dev/belay/webhook/internal/replace"
)

// Paths under which name admission is served; a policy's name follows.
const (
	MutateNamePath   = "/mutate/name"
	ValidateNamePath = "/validate/name"
)

// NamePolicyGetter finds policies by name.
type NamePolicyGetter = policyGetter[*facts.NamePolicy]

// ObjectFinder finds what a create under a taken name is answered from.
type ObjectFinder interface {
	Existing(ctx context.Context, res v1alpha1.ResolvedResource, namespace, name string) (*unstructured.Unstructured, fact.State, fact.Cause)
	PodsOf(ctx context.Context, namespace, job, uid string) naming.PodsFact
	MayDelete(ctx context.Context, user authenticationv1.UserInfo, res v1alpha1.ResolvedResource, namespace, name string) naming.RightFact
}

// Replacer deletes a finished object.
type Replacer interface {
	Replace(ctx context.Context, t replace.Target) (naming.Replacement, fact.Cause)
}

// TurnTaker lets the creates of one work pass at a time.
type TurnTaker interface {
	Take(ctx context.Context, t replace.Turn) (mine bool, other string, err error)
	Version(ctx context.Context, t replace.Turn) (string, error)
}

// OverlapFinder finds another policy that is about the same object.
type OverlapFinder interface {
	Find(ctx context.Context, policy string, res v1alpha1.ResolvedResource, namespace string, object labels.Set) (string, error)
}

// StuckReporter tells people that a name has been held for long.
type StuckReporter interface {
	Stuck(s naming.Stuck, message string)
}

// Name serves name admission.
type Name struct {
	Policies NamePolicyGetter
	Modes    ModeGetter
	Objects  ObjectFinder
	Replacer Replacer
	Turns    TurnTaker
	Events   StuckReporter
	Overlaps OverlapFinder
	Log      logr.Logger
	// OwnNamespace is belay's own, which is never looked at.
	OwnNamespace string
}

// Mutate is the handler of the mutating phase.
func (h *Name) Mutate() http.Handler { return h.edge().handler(phaseMutate, MutateNamePath) }

// Validate is the handler of the validating phase.
func (h *Name) Validate() http.Handler { return h.edge().handler(phaseValidate, ValidateNamePath) }

func (h *Name) edge() edge { return edge{webhook: "name", log: h.Log, review: h.review} }

// nameCall is one review on its way through.
type nameCall struct {
	asked
	policy *facts.NamePolicy
	mode   string
	// modeKnown is false where enforce is only assumed.
	modeKnown bool
	object    namedObject
	raw       []byte
	vars      map[string]any
	// work is the digest that the validating phase goes by.
	work string
}

// namedObject is the part of an object that decisions read.
type namedObject struct {
	Metadata *struct {
		Name         string            `json:"name"`
		GenerateName string            `json:"generateName"`
		Labels       map[string]string `json:"labels"`
		Annotations  map[string]string `json:"annotations"`
	} `json:"metadata"`
}

func (h *Name) review(ctx context.Context, a asked) (outcome, error) {
	return underPolicy(ctx, h.Log, h.Policies, "NamePolicy", "create", a, func(p *facts.NamePolicy) outcome {
		return h.answer(ctx, &nameCall{asked: a, policy: p})
	})
}

// answer decides. A panic is a bug of belay, and ends as trouble does under the
// policy: denied, or admitted with a warning. It never takes the process with it.
func (h *Name) answer(ctx context.Context, c *nameCall) (o outcome) {
	defer func() {
		if p := recover(); p != nil {
			h.edge().panicked(p, "panic while deciding", "policy", c.policyName, "namespace", c.req.Namespace)
			o = h.internal(c)
		}
	}()
	mode, known, excluded := modeOf(ctx, h.Modes, h.OwnNamespace, c.req.Namespace)
	if mode == "" {
		return excluded
	}
	c.mode, c.modeKnown = mode, known
	if c.req.Operation != admissionv1.Create || c.req.SubResource != "" {
		// Never looked into, whatever it is: the object of a DELETE is null.
		return h.outcome(c, naming.Mutate(naming.MutateInput{Request: naming.Request{Operation: "OTHER"}}), nil)
	}
	if o, ok := c.read(); !ok {
		return o
	}
	if c.phase == phaseMutate {
		return h.mutate(ctx, c)
	}
	d := h.validate(ctx, c)
	if d.Stuck != nil && !isDryRun(c.req) {
		d.Stuck.Namespace = c.req.Namespace
		if d.Stuck.Kind == "" {
			d.Stuck.APIVersion, d.Stuck.Kind = schema.GroupVersion{Group: c.req.Kind.Group, Version: c.req.Kind.Version}.String(), c.req.Kind.Kind
		}
		h.Events.Stuck(*d.Stuck, d.Message)
	}
	return h.outcome(c, d, nil)
}

// read decodes the object.
func (c *nameCall) read() (outcome, bool) {
	c.raw = c.req.Object.Raw
	err := utiljson.Unmarshal(c.raw, &c.object)
	if err == nil && c.object.Metadata != nil {
		if c.vars, err = variables(c.req); err == nil {
			return outcome{}, true
		}
	}
	const message = "the object in the review cannot be read: it must be an object with metadata"
	if c.mode == v1alpha1.ModeWarn {
		o := admitted(ReasonObjectUnreadable, "mode warn: would be denied with 400: "+message)
		o.mode, o.warnings = c.mode, []string{o.message}
		return o, false
	}
	return outcome{mode: c.mode, code: http.StatusBadRequest, status: metav1.StatusReasonBadRequest, reason: ReasonObjectUnreadable, message: message}, false
}

// internal answers for a bug of belay.
func (h *Name) internal(c *nameCall) outcome {
	const message = "belay had an internal error; see its log"
	if c.mode == v1alpha1.ModeWarn || c.policy.FailurePolicy == v1alpha1.FailureIgnore {
		o := admitted(ReasonInternal, message+"; the object is admitted unchecked")
		o.mode, o.warnings = c.mode, []string{o.message}
		return o
	}
	return outcome{mode: c.mode, code: http.StatusInternalServerError, status: metav1.StatusReasonInternalError, reason: ReasonInternal, message: message}
}

// request is what both phases have in common.
func (h *Name) request(c *nameCall) naming.Request {
	m := c.object.Metadata
	return naming.Request{
		Operation: string(c.req.Operation), Group: c.req.Kind.Group, Kind: c.req.Kind.Kind, Name: m.Name,
		Unnamed: c.unnamed(), HasGenerateName: m.GenerateName != "",
		Preview: isDryRun(c.req) || c.mode == v1alpha1.ModeWarn,
	}
}

// unnamed reports whether the client gave no name. In the validating phase the API
// server has filled it in, in the request as well; what tells then is that belay marks
// no object that it does not name.
func (c *nameCall) unnamed() bool {
	m := c.object.Metadata
	if c.phase == phaseMutate {
		return m.Name == "" && c.req.Name == ""
	}
	return m.GenerateName != "" && (c.mode == v1alpha1.ModeWarn || c.object.work() == "")
}

// mutate names and marks.
func (h *Name) mutate(ctx context.Context, c *nameCall) outcome {
	in := naming.MutateInput{Request: h.request(c), Policy: c.policy.Policy}
	in.Request.Work = c.policy.Expressions.Work(ctx, c.vars)
	if in.Request.Name == "" && in.Policy.Generates {
		in.Generated = c.policy.Expressions.Generated(ctx, h.limit(c), c.vars)
	}
	d := naming.Mutate(in)
	if c.mode == v1alpha1.ModeWarn {
		return h.outcome(c, d, nil)
	}
	patch, err := namePatch(c.raw, c.object, d)
	if err != nil {
		h.Log.Error(err, "patch does not apply", "policy", c.policyName, "namespace", c.req.Namespace)
		return h.internal(c)
	}
	return h.outcome(c, d, patch)
}

// limit is the longest name for the object.
func (h *Name) limit(c *nameCall) int {
	object, _ := c.vars[expr.VarObject].(map[string]any)
	return naming.Limit(c.req.Kind.Group, c.req.Kind.Kind, object)
}

// namePatch writes the decision as a JSON patch on the raw object. It names an object
// only where it has no name.
func namePatch(raw []byte, object namedObject, d naming.Decision) ([]byte, error) {
	var ops []operation
	if d.SetName != "" && object.Metadata.Name == "" {
		ops = append(ops, operation{"add", "/metadata/name", d.SetName})
		if d.DropGenerateName {
			// Else a collision is reported as "not able to generate a unique name".
			ops = append(ops, operation{Op: "remove", Path: "/metadata/generateName"})
		}
	}
	_, marked := object.Metadata.Annotations[v1alpha1.WorkAnnotation]
	switch {
	case d.DropWork && marked:
		ops = append(ops, operation{Op: "remove", Path: workPath})
	case d.SetWork == "" || object.Metadata.Annotations[v1alpha1.WorkAnnotation] == d.SetWork:
	case object.Metadata.Annotations == nil:
		ops = append(ops, operation{"add", "/metadata/annotations", map[string]string{v1alpha1.WorkAnnotation: d.SetWork}})
	default:
		// Whatever a client wrote there: it may be the copy of a live object.
		ops = append(ops, operation{"add", workPath, d.SetWork})
	}
	if len(ops) == 0 {
		return nil, nil
	}
	return encoded(raw, ops)
}

// workPath is the path of the mark in a JSON patch.
const workPath = "/metadata/annotations/belay.dev~1work"

// purposeCreate marks the turns of creates.
const purposeCreate = "create"

// rounds bounds how often a decision is made: one for each wish, and all of them once
// more after a replacement.
const rounds = 12

// validate answers for the name.
func (h *Name) validate(ctx context.Context, c *nameCall) naming.Decision {
	in := naming.Input{Request: h.request(c), Policy: c.policy.Policy}
	// The mark is what the mutating phase computed, before other webhooks. It is missing
	// where only their changes made the policy match.
	if in.Request.Work.Value = c.object.Metadata.Annotations[v1alpha1.WorkAnnotation]; in.Request.Work.Value == "" || c.mode == v1alpha1.ModeWarn {
		in.Request.Work = c.policy.Expressions.Work(ctx, c.vars)
	}
	c.work = in.Request.Work.Value
	in.Expected = c.policy.Expressions.Expected(ctx, h.limit(c), c.vars)
	if in.Expected.Value != "" {
		object, _ := c.vars[expr.VarObject].(map[string]any)
		in.Rule = naming.CheckName(in.Expected.Value, in.Request.Group, in.Request.Kind, object)
	}
	res, ok := h.resource(c)
	if ok {
		var err error
		if in.Overlap, err = h.Overlaps.Find(ctx, c.policyName, res, c.req.Namespace, c.object.Metadata.Labels); err != nil {
			in.Facts.Existing.Cause = facts.CauseOf(err)
			return naming.Decide(in)
		}
	}
	if d := naming.Decide(in); d.Reason != naming.ReasonLookupFailed {
		return d // nothing has to be looked up
	}
	if !ok {
		in.Facts.Existing.Cause = fact.CauseNoKind
		return naming.Decide(in)
	}
	in.Facts.Existing = h.existing(ctx, c, res, in.Request.Name)
	turn := replace.Turn{
		Purpose: purposeCreate, Key: []any{res.Group, res.Resource, c.req.Namespace, in.Request.Name}, Holder: in.Request.Work.Value,
	}
	for range rounds {
		in.Facts.Now, in.Facts.Left = time.Now(), left(ctx)
		if !c.modeKnown {
			in.Facts.Left = 0 // nothing is deleted on a guess
		}
		d := naming.Decide(in)
		switch d.Wish {
		case naming.WishNone:
			return d
		case naming.WishPods:
			uid := ""
			if in.Facts.Existing.State == fact.Known {
				uid = string(in.Facts.Existing.Object.UID)
			}
			in.Facts.Pods = h.Objects.PodsOf(ctx, c.req.Namespace, in.Request.Name, uid)
		case naming.WishRight:
			in.Facts.Right = h.Objects.MayDelete(ctx, c.req.UserInfo, res, c.req.Namespace, in.Request.Name)
		case naming.WishTurn:
			in.Facts.Turn = h.turn(ctx, c, turn)
		case naming.WishReplace:
			if in.Policy.Serialize && turn.Spent == "" {
				// Whoever has a turn while the finished object is there took it for that one, or
				// for nothing. Read before the object is seen once more.
				turn.Spent, _ = h.Turns.Version(ctx, turn)
				before := in.Facts.Existing.Object
				in.Facts.Existing = h.existing(ctx, c, res, in.Request.Name)
				if now := in.Facts.Existing.Object; now.UID != before.UID || now.ResourceVersion != before.ResourceVersion {
					turn.Spent = ""
					in.Facts.Pods = naming.PodsFact{}
					continue
				}
			}
			o := in.Facts.Existing.Object
			replaced, cause := h.Replacer.Replace(ctx, replace.Target{
				Resource: res, Namespace: c.req.Namespace, Name: in.Request.Name, UID: o.UID, ResourceVersion: o.ResourceVersion,
				Propagation: c.policy.Propagation, Wait: min(c.policy.NameWait, left(ctx)-naming.MinReplace), By: string(c.req.UID), Policy: c.policyName, Because: o.Phase.Because,
			})
			// What was known of the last object does not hold for what is there now.
			in.Facts = naming.Facts{Replaced: replaced, ReplacedCause: cause, Right: in.Facts.Right, Existing: in.Facts.Existing}
			if replaced == naming.ReplacementDone {
				in.Facts.Existing = h.existing(ctx, c, res, in.Request.Name)
			}
		}
	}
	return naming.GiveUp(in)
}

// left is how long the API server still waits, as far as belay may use it.
func left(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return defaultTimeout
	}
	return time.Until(deadline)
}

// resource is where the object's kind is served, in the version of the request where the
// policy names that: expressions compare both objects.
func (h *Name) resource(c *nameCall) (v1alpha1.ResolvedResource, bool) {
	best := -1
	for i, r := range c.policy.Kinds {
		if r.Group != c.req.Resource.Group || r.Resource != c.req.Resource.Resource {
			continue
		}
		if r.Version == c.req.Resource.Version {
			return r, true
		}
		if best < 0 {
			best = i
		}
	}
	if best < 0 {
		return v1alpha1.ResolvedResource{}, false
	}
	return c.policy.Kinds[best], true
}

// existing reads the object that has the name, and what the policy makes of it.
func (h *Name) existing(ctx context.Context, c *nameCall, res v1alpha1.ResolvedResource, name string) naming.ObjectFact {
	u, state, cause := h.Objects.Existing(ctx, res, c.req.Namespace, name)
	if state != fact.Known {
		return naming.ObjectFact{State: state, Cause: cause}
	}
	o := naming.Object{
		UID: u.GetUID(), ResourceVersion: u.GetResourceVersion(), Created: u.GetCreationTimestamp().Time, Finalizers: u.GetFinalizers(),
		Work: u.GetAnnotations()[v1alpha1.WorkAnnotation],
	}
	o.Marked = o.Work != ""
	if t := u.GetDeletionTimestamp(); t != nil {
		o.Deleting = t.Time
		if g := u.GetDeletionGracePeriodSeconds(); g != nil {
			// The API server writes down when the grace period ends.
			o.GraceSeconds = min(*g, math.MaxInt32)
			o.Deleting = t.Add(-time.Duration(o.GraceSeconds) * time.Second)
		}
	}
	withoutSecrets(res.Group, res.Kind, u.Object)
	if !o.Marked && c.policy.Adopt {
		vars := map[string]any{expr.VarObject: u.Object, expr.VarRequest: c.vars[expr.VarRequest]}
		// An object that the expressions fail on is foreign.
		o.Work = c.policy.Expressions.Work(ctx, vars).Value
	}
	o.Phase = c.policy.Expressions.Phase(ctx, res.Group, res.Kind, u.Object)
	if o.Phase.Finished {
		o.Held, o.HoldProblem = c.policy.Expressions.Held(ctx, u.Object)
	}
	if ctx.Err() != nil {
		// An expression that was cut short says nothing: the object would count as running.
		return naming.ObjectFact{Cause: fact.CauseTimeout}
	}
	return naming.ObjectFact{State: fact.Known, Object: o}
}

// turn asks whether this work may be created now.
func (h *Name) turn(ctx context.Context, c *nameCall, turn replace.Turn) naming.TurnFact {
	mine, other, err := h.Turns.Take(ctx, turn)
	switch {
	case err != nil:
		h.Log.V(1).Info("no turn", "policy", c.policyName, "namespace", c.req.Namespace, "name", c.object.Metadata.Name, "error", err.Error())
		return naming.TurnFact{Cause: facts.CauseOf(err)}
	case mine:
		return naming.TurnFact{State: fact.Known}
	default:
		return naming.TurnFact{State: fact.Absent, Work: other}
	}
}

// outcome is a decision as the edge answers it.
func (h *Name) outcome(c *nameCall, d naming.Decision, patch []byte) outcome {
	if c.mode == v1alpha1.ModeWarn {
		d = d.AsWarning()
	}
	o := outcome{
		mode: c.mode, allowed: d.Allowed, reason: string(d.Reason), message: d.Message, warnings: d.Warnings, patch: patch,
		retryAfter: d.RetryAfterSeconds, uid: d.UID, first: c.phase == phaseMutate,
	}
	if c.object.Metadata != nil {
		o.name = c.object.Metadata.Name
		if o.name == "" {
			o.name = d.SetName
		}
	}
	if d.Allowed {
		return o
	}
	o.code, o.status = statusOf(d.Answer)
	cause := d.Cause
	if cause == "" {
		cause = "belay.dev/" + string(d.Reason)
	}
	o.causes = []metav1.StatusCause{{Type: metav1.CauseType(cause), Message: d.Message, Field: "metadata.name"}}
	if c.work != "" && (d.UID != "" || d.Cause == v1alpha1.CauseTerminating) {
		o.causes = append(o.causes, metav1.StatusCause{Type: v1alpha1.CauseWork, Message: c.work, Field: "metadata.annotations[" + v1alpha1.WorkAnnotation + "]"})
	}
	return o
}

func (o namedObject) work() string {
	if o.Metadata == nil {
		return ""
	}
	return o.Metadata.Annotations[v1alpha1.WorkAnnotation]
}

// statusOf is the code and the reason of an answer: always together, since clients
// look at either.
func statusOf(a v1alpha1.Answer) (int32, metav1.StatusReason) {
	switch a {
	case v1alpha1.AnswerAlreadyExists:
		return http.StatusConflict, metav1.StatusReasonAlreadyExists
	case v1alpha1.AnswerConflict:
		return http.StatusConflict, metav1.StatusReasonConflict
	case v1alpha1.AnswerInvalid:
		return http.StatusUnprocessableEntity, metav1.StatusReasonInvalid
	case v1alpha1.AnswerForbidden:
		return http.StatusForbidden, metav1.StatusReasonForbidden
	case v1alpha1.AnswerTooManyRequests:
		return http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests
	case v1alpha1.AnswerServiceUnavailable:
		return http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable
	}
	return 0, ""
}
