package admission

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/expr"
	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/metrics"
)

// Phases of admission.
const (
	phaseMutate   = "mutate"
	phaseValidate = "validate"
)

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

// Reasons of the edge itself, beside those of the decisions.
const (
	ReasonPolicyDeleted    = "PolicyDeleted"
	ReasonPolicyNotInForce = "PolicyNotInForce"
	ReasonPolicyUnreadable = "PolicyUnreadable"
	ReasonExcluded         = "NamespaceExcluded"
	ReasonNotOptedIn       = "NamespaceNotOptedIn"
	ReasonObjectUnreadable = "ObjectUnreadable"
	ReasonInternal         = "InternalError"
)

// ModeGetter tells a namespace's mode.
type ModeGetter interface {
	Mode(ctx context.Context, namespace string) (string, error)
}

// asked is one review with what the path says of it.
type asked struct {
	phase, policyName string
	req               *admissionv1.AdmissionRequest
}

// outcome is what becomes of a review, whatever decided it.
type outcome struct {
	mode    string
	allowed bool
	// first: a validating phase follows, which has the last word.
	first bool
	// code, status and retryAfter are those of a denial.
	code       int32
	status     metav1.StatusReason
	retryAfter int32
	reason     string
	// message of a denial, or what was done, for the audit annotation.
	message  string
	warnings []string
	patch    []byte
	// name and uid are of the object that a denial is about.
	name   string
	uid    types.UID
	causes []metav1.StatusCause
}

type connectionKey struct{}

// connection is what is known of one over which reviews come.
type connection struct {
	answered func()
	// since is when it was accepted; zero where that is not known.
	since time.Time
	// first is the age at which its first call came, in nanoseconds; 0 until then.
	first atomic.Int64
	// calls are under way, and waits of them wait for room.
	calls, waits atomic.Int64
}

// WithAnswered is a context of a connection that was accepted now, whose server is told that it
// has sent a review which is answered.
func WithAnswered(ctx context.Context, answered func()) context.Context {
	return context.WithValue(ctx, connectionKey{}, &connection{answered: answered, since: time.Now()})
}

// waited is how much of its time-out a call that comes now may have spent until its connection was
// there: the API server's clock runs while it dials and shakes hands, for seconds where both sides
// have too much to do. It is how long the first call took to come, half of the time-out at most,
// and counts for those that come within as long again: they may have waited with it. Where that is
// longer than the time-out, nobody waited.
func (c *connection) waited(timeout time.Duration) time.Duration {
	if c.since.IsZero() {
		return 0
	}
	age := time.Since(c.since)
	c.first.CompareAndSwap(0, int64(max(age, 1)))
	first := time.Duration(c.first.Load())
	if first >= timeout || age > 2*first {
		return 0
	}
	return min(first, timeout/2)
}

// connectionOf is that of a call; one of its own where the server tells of none.
func connectionOf(ctx context.Context) *connection {
	if c, ok := ctx.Value(connectionKey{}).(*connection); ok {
		return c
	}
	return &connection{answered: func() {}}
}

// edge is what all kinds of policies have in common between HTTP and their decision.
type edge struct {
	// webhook labels metrics: owner, name.
	webhook string
	log     logr.Logger
	// review decides. The error is for what is not even a review that can be answered.
	review func(ctx context.Context, a asked) (outcome, error)
}

// handler serves the policies of one kind below a path.
func (e edge) handler(phase, path string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			// Outside of the decision there is no policy yet, or the answer itself is at
			// fault: the API server takes a 500 as a failed call, as its failure policy says.
			if p := recover(); p != nil {
				e.panicked(p, "panic while serving", "phase", phase)
				http.Error(w, "belay had an internal error; see its log", http.StatusInternalServerError)
			}
		}()
		err := e.serve(w, r, phase, strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, path), "/"))
		var he *httpError
		switch {
		case err == nil:
		case errors.As(err, &he):
			metrics.Unreadable.WithLabelValues(fmt.Sprint(he.code)).Inc()
			http.Error(w, he.message, he.code)
		default:
			e.log.V(1).Info("answer not delivered", "phase", phase, "error", err.Error())
		}
	})
}

func (e edge) serve(w http.ResponseWriter, r *http.Request, phase, policy string) error {
	req, err := readReview(w, r)
	if err != nil {
		return err
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(r.Context(), budget(r))
	defer cancel()

	a := asked{phase: phase, policyName: policy, req: req}
	o, err := e.review(ctx, a)
	if err != nil {
		return err
	}
	connectionOf(r.Context()).answered()
	metrics.Duration.WithLabelValues(e.webhook, phase).Observe(time.Since(start).Seconds())
	e.record(a, o)
	return writeReview(w, req, respond(req, o))
}

// record counts and logs a decision: never the object.
func (e edge) record(a asked, o outcome) {
	decision := metrics.Allowed
	if !o.allowed {
		decision = metrics.Denied
	}
	metrics.Decisions.WithLabelValues(e.webhook, a.phase, o.mode, decision, o.reason).Inc()
	e.log.V(1).Info("decided", "policy", a.policyName, "namespace", a.req.Namespace, "resource", a.req.Resource.Resource,
		"name", nameOf(a.req, o), "phase", a.phase, "mode", o.mode, "decision", decision, "reason", o.reason, "uid", a.req.UID)
}

// panicked counts and logs a panic, which is a bug of belay.
func (e edge) panicked(p any, message string, keys ...any) {
	metrics.Panics.WithLabelValues(e.webhook).Inc()
	e.log.Error(fmt.Errorf("panic: %v", p), message, append(keys, "stack", string(debug.Stack()))...)
}

// budget is the time for the decision: what the API server says it waits, less what may be gone
// of it already, and a margin for the answer.
func budget(r *http.Request) time.Duration {
	d, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil || d <= 0 {
		d = defaultTimeout
	}
	d = min(d, maxTimeout)
	return d - d/answerMargin - connectionOf(r.Context()).waited(d)
}

// admitted is an outcome that changes nothing and says why only in the audit log.
func admitted(reason, message string) outcome {
	return outcome{allowed: true, reason: reason, message: message}
}

// standing is the outcome where the policy of the path is not in force; uncertain is
// what becomes of a policy that could not be read. A policy that does not exist is no
// review that can be answered.
func standing(kind, name string, s facts.Standing, uncertain func(reason, message string) outcome) (outcome, error) {
	switch s {
	case facts.StandingAbsent:
		return outcome{}, &httpError{code: http.StatusNotFound, message: fmt.Sprintf("there is no %s %.100q", kind, name)}
	case facts.StandingDeleted:
		return admitted(ReasonPolicyDeleted, "the policy was deleted a moment ago"), nil
	case facts.StandingNotInForce:
		o := admitted(ReasonPolicyNotInForce, fmt.Sprintf("%s %q has never been accepted; see its conditions", kind, name))
		o.warnings = []string{o.message}
		return o, nil
	default:
		return uncertain(ReasonPolicyUnreadable, fmt.Sprintf("%s %q could not be read in time", kind, name)), nil
	}
}

// policyGetter finds policies of one kind by name.
type policyGetter[P any] interface {
	Get(ctx context.Context, name string) (P, facts.Standing, error)
}

// underPolicy answers under the policy of the path, for kinds of policies that are to be read
// or nothing: only the registration knows what one wants that cannot be. what was sent may be
// repeated then.
func underPolicy[P any](ctx context.Context, log logr.Logger, policies policyGetter[P], kind, what string, a asked, answer func(P) outcome) (outcome, error) {
	if a.policyName == "" {
		return outcome{}, &httpError{code: http.StatusNotFound, message: "the path names no policy"}
	}
	p, s, err := policies.Get(ctx, a.policyName)
	switch s {
	case facts.StandingInForce:
		return answer(p), nil
	case facts.StandingUnknown:
		// The API server takes a failed call as its failure policy says.
		log.Error(err, "policy not readable", "policy", a.policyName)
		return outcome{}, &httpError{code: http.StatusInternalServerError, message: fmt.Sprintf("%s %q could not be read in time; the %s may be repeated", kind, a.policyName, what)}
	default:
		return standing(kind, a.policyName, s, nil)
	}
}

// modeOf is the mode that counts for a request. Where there is none the outcome is
// made. What cannot be found out counts as enforce: the API server has matched the
// label.
//
// known is false where the mode is only taken for enforce: nothing may be deleted then.
func modeOf(ctx context.Context, modes ModeGetter, own, namespace string) (mode string, known bool, o outcome) {
	switch {
	case namespace == "":
		return v1alpha1.ModeEnforce, true, outcome{} // cluster-scoped: the policy itself is the opt-in
	case facts.Excluded(namespace, own):
		return "", true, admitted(ReasonExcluded, "this namespace is never looked at")
	}
	mode, err := modes.Mode(ctx, namespace)
	if err != nil {
		return v1alpha1.ModeEnforce, false, outcome{}
	}
	if mode != v1alpha1.ModeEnforce && mode != v1alpha1.ModeWarn {
		return "", true, admitted(ReasonNotOptedIn, "the namespace has no mode")
	}
	return mode, true, outcome{}
}

// variables are what an expression sees.
func variables(req *admissionv1.AdmissionRequest) (map[string]any, error) {
	var object map[string]any
	if err := utiljson.Unmarshal(req.Object.Raw, &object); err != nil {
		return nil, err
	}
	withoutSecrets(req.Kind.Group, req.Kind.Kind, object)
	return map[string]any{
		expr.VarObject: object,
		expr.VarRequest: map[string]any{
			"namespace": req.Namespace, "name": req.Name, "operation": string(req.Operation),
			"dryRun":   isDryRun(req),
			"userInfo": map[string]any{"username": req.UserInfo.Username, "groups": anySlice(req.UserInfo.Groups), "uid": req.UserInfo.UID},
		},
	}, nil
}

// withoutSecrets takes the data from a Secret before an expression sees it: what an
// expression gives, and what it fails on, ends in names and messages.
func withoutSecrets(group, kind string, object map[string]any) {
	if group == "" && kind == "Secret" {
		delete(object, "data")
		delete(object, "stringData")
	}
}

func anySlice(in []string) []any {
	out := make([]any, len(in))
	for i, s := range in {
		out[i] = s
	}
	return out
}

func isDryRun(req *admissionv1.AdmissionRequest) bool { return req.DryRun != nil && *req.DryRun }
