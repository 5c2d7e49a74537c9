package admission

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/recovery"
)

// Paths under which the guard of statuses is served; a policy's name follows.
const (
	MutateRecoveryPath   = "/mutate/recovery"
	ValidateRecoveryPath = "/validate/recovery"
)

// RecoveryPolicyGetter finds policies by name.
type RecoveryPolicyGetter = policyGetter[*facts.RecoveryPolicy]

// PodFinder finds the Pods of a guarded object.
type PodFinder interface {
	Of(ctx context.Context, p *facts.RecoveryPolicy, object *unstructured.Unstructured, live bool) recovery.PodsFact
}

// Recovery serves the guard of statuses.
type Recovery struct {
	Policies RecoveryPolicyGetter
	Modes    ModeGetter
	Pods     PodFinder
	Log      logr.Logger
	// OwnNamespace is belay's own, which is never looked at.
	OwnNamespace string
}

// Mutate is the handler of the mutating phase, which keeps the record.
func (h *Recovery) Mutate() http.Handler { return h.edge().handler(phaseMutate, MutateRecoveryPath) }

// Validate is the handler of the validating phase, which asks for evidence.
func (h *Recovery) Validate() http.Handler {
	return h.edge().handler(phaseValidate, ValidateRecoveryPath)
}

func (h *Recovery) edge() edge { return edge{webhook: "recovery", log: h.Log, review: h.review} }

// recoveryCall is one review on its way through.
type recoveryCall struct {
	asked
	policy *facts.RecoveryPolicy
	mode   string
	// was and wants are the statuses that are stored and asked for, each in an object with
	// nothing else. Of what comes with the status a client sends nothing counts: the API
	// server drops the rest, but after it has shown it here.
	was, wants map[string]any
	about      recovery.Object
}

func (h *Recovery) review(ctx context.Context, a asked) (outcome, error) {
	return underPolicy(ctx, h.Log, h.Policies, "RecoveryPolicy", "write", a, func(p *facts.RecoveryPolicy) outcome {
		return h.answer(ctx, &recoveryCall{asked: a, policy: p})
	})
}

// answer decides. A panic is a bug of belay. It never takes the process with it, and never
// lets an object out of a failure.
func (h *Recovery) answer(ctx context.Context, c *recoveryCall) (o outcome) {
	defer func() {
		if p := recover(); p != nil {
			h.edge().panicked(p, "panic while deciding", "policy", c.policyName, "namespace", c.req.Namespace)
			o = h.outcome(c, recovery.Decision{Reason: recovery.ReasonInternal, Retry: true, Message: "belay had an internal error; see its log"}, nil)
		}
	}()
	mode, _, excluded := modeOf(ctx, h.Modes, h.OwnNamespace, c.req.Namespace)
	if mode == "" {
		return excluded
	}
	c.mode = mode
	if c.req.Operation != admissionv1.Update || c.req.SubResource != "status" {
		return h.outcome(c, recovery.Decision{Allowed: true, Reason: recovery.ReasonUntouched}, nil)
	}
	if !c.read() {
		return h.outcome(c, unreadableObjects(), nil)
	}
	preview := c.mode == v1alpha1.ModeWarn
	if preview && c.phase == phaseMutate {
		// All of it is told in the other phase, and nothing is changed.
		return h.outcome(c, recovery.Decision{Allowed: true, Reason: recovery.ReasonUntouched}, nil)
	}
	d := h.decide(ctx, c, preview)
	if d.Record.None() || preview {
		return h.outcome(c, d, nil)
	}
	patch, err := recordPatch(c.req.Object.Raw, c.wants, c.policy, d.Record)
	if err != nil {
		h.Log.Error(err, "patch not usable", "policy", c.policyName, "namespace", c.req.Namespace, "name", c.req.Name)
		return h.outcome(c, recovery.Decision{Reason: recovery.ReasonInternal, Retry: true, Message: "belay had an internal error; see its log"}, nil)
	}
	return h.outcome(c, d, patch)
}

// read decodes the statuses, and of the stored object what says how it stands. The rest of
// both, which may be megabytes, is not decoded for most writes.
func (c *recoveryCall) read() bool {
	var asked struct {
		Status any `json:"status"`
	}
	var old struct {
		Metadata *struct {
			DeletionTimestamp any               `json:"deletionTimestamp"`
			Annotations       map[string]string `json:"annotations"`
		} `json:"metadata"`
		Status any `json:"status"`
	}
	// With the case of keys, as Kubernetes reads them.
	if utiljson.Unmarshal(c.req.OldObject.Raw, &old) != nil || utiljson.Unmarshal(c.req.Object.Raw, &asked) != nil {
		return false
	}
	if old.Metadata == nil || !isObject(c.req.Object.Raw) {
		return false
	}
	c.was, c.wants = map[string]any{}, map[string]any{}
	if old.Status != nil {
		c.was["status"] = old.Status
	}
	if asked.Status != nil {
		c.wants["status"] = asked.Status
	}
	c.about = recovery.Object{
		Kind: c.policy.Resource.Kind, Name: c.req.Name, Deleting: old.Metadata.DeletionTimestamp != nil,
		Allowed: old.Metadata.Annotations[v1alpha1.AllowRecoveryAnnotation] == "true",
	}
	return true
}

// stored decodes the whole stored object, for the policy's expressions.
func (c *recoveryCall) stored() (*unstructured.Unstructured, error) {
	var object map[string]any
	if err := utiljson.Unmarshal(c.req.OldObject.Raw, &object); err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: object}
	// Where the API server has it, and nowhere else, are its Pods looked for.
	u.SetNamespace(c.req.Namespace)
	u.SetName(c.req.Name)
	return u, nil
}

// decide gathers what the decision wishes for: most writes need nothing.
func (h *Recovery) decide(ctx context.Context, c *recoveryCall, preview bool) recovery.Decision {
	p := c.policy
	in := recovery.Input{
		Policy: p.Policy, Object: c.about, Old: p.Layout.Read(c.was), New: p.Layout.Read(c.wants),
		Final: c.phase == phaseValidate, Preview: preview, Now: time.Now(),
	}
	var object *unstructured.Unstructured
	if in.Enters() {
		var err error
		if object, err = c.stored(); err != nil {
			return unreadableObjects()
		}
		in.Object.ResumeInFlight, in.Object.ResumeProblem = p.Expressions.ResumeInFlight(ctx, object.Object)
		if ctx.Err() != nil {
			// An expression that was cut short says nothing, and must not cost a record.
			return recovery.Decision{Reason: recovery.ReasonLookupFailed, Retry: true, Message: "the policy's expressions could not be evaluated in time; try again"}
		}
	}
	for range looks {
		d := recovery.Decide(in)
		if d.Wish == recovery.WishNone {
			return d
		}
		if object == nil {
			var err error
			if object, err = c.stored(); err != nil {
				return unreadableObjects()
			}
		}
		in.Pods = h.Pods.Of(ctx, p, object, d.Wish == recovery.WishLivePods)
		in.Now = time.Now()
	}
	return recovery.Decision{Reason: recovery.ReasonLookupFailed, Retry: true, Message: "the state of the object's pods could not be found out; try again"}
}

func unreadableObjects() recovery.Decision {
	return recovery.Decision{
		Allowed: true, Reason: ReasonObjectUnreadable,
		Warnings: []string{"the objects in the review cannot be read, so that nothing is guarded"},
	}
}

// looks bounds how often a decision gets what it wishes for: from the informers, from the API
// server, and the decision itself.
const looks = 4

// outcome is a decision as the edge answers it.
func (h *Recovery) outcome(c *recoveryCall, d recovery.Decision, patch []byte) outcome {
	if c.mode == v1alpha1.ModeWarn {
		d = d.AsWarning()
	}
	o := outcome{mode: c.mode, allowed: d.Allowed, reason: string(d.Reason), message: d.Message, warnings: d.Warnings, patch: patch, name: c.req.Name, first: c.phase == phaseMutate}
	if d.Allowed {
		return o
	}
	// Never 409: controllers answer a conflict by trying again at once.
	o.code, o.status = http.StatusForbidden, metav1.StatusReasonForbidden
	if d.Retry {
		o.code, o.status, o.retryAfter = http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, 1
	}
	field := strings.TrimPrefix(string(c.policy.Layout.Record), ".")
	for _, v := range d.Evidence {
		if !v.OK() {
			o.causes = append(o.causes, metav1.StatusCause{Type: metav1.CauseType("belay.dev/" + string(v.Reason)), Message: v.String(), Field: field})
		}
	}
	if len(o.causes) == 0 {
		o.causes = []metav1.StatusCause{{Type: metav1.CauseType("belay.dev/" + string(d.Reason)), Message: d.Message, Field: field}}
	}
	return o
}
