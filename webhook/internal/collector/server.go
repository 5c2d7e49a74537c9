package collector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"

	"github.com/belay-dev/belay/sidecar/wire"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/metrics"
	"github.com/belay-dev/belay/webhook/internal/wording"
)

const (
	// callTimeout bounds the work on one report, with all its reads and its write. The
	// sidecar waits 30 s.
	callTimeout = 10 * time.Second
	// maxCalls is how many reports are worked on at a time: each reads and writes a Pod.
	maxCalls = 256
	// perPod and burst bound how often one Pod may report: a sidecar does at most once a
	// second.
	perPod = rate.Limit(2)
	burst  = 10
	// perWrite and writeBurst bound how often one Pod's condition is written: each write is one
	// of etcd's, and the whole Pod goes to all who watch. What is put off comes with the next
	// report.
	perWrite   = rate.Limit(0.5)
	writeBurst = 6
	// putOff is when that is asked for.
	putOff = 2 * time.Second
	// maxLimiters is how many Pods' rates are known at a time, of some 200 bytes each.
	maxLimiters = 20_000
	// tries bounds how often a report is decided on anew, when its Pod was changed meanwhile
	// or has to be read.
	tries = 6
)

// Reasons of the edge.
const (
	// ReasonUnreadable: it is no report.
	ReasonUnreadable Reason = "Unreadable"
	// ReasonPutOff: the condition was written too often of late; with the next report.
	ReasonPutOff Reason = "PutOff"
	// ReasonTooMany: reports come faster than they are taken.
	ReasonTooMany Reason = "TooManyReports"
	// ReasonInternal: a bug of belay.
	ReasonInternal Reason = "InternalError"
)

// ModeGetter tells a namespace's mode.
type ModeGetter interface {
	Mode(ctx context.Context, namespace string) (string, error)
}

// Waiting knows which Pods failed objects wait for.
type Waiting interface {
	// For reports whether a failed object waits for a Pod, and how old a report may then be.
	For(namespace, uid string) (freshFor time.Duration, waits bool)
	// Any reports whether there is a policy that goes by reports.
	Any() bool
	// Synced reports whether For knows.
	Synced() bool
}

type trustedKey struct{}

// WithTrusted is a context of a connection, whose server is told by a call that it has shown a
// token which counts, and of which Pod.
func WithTrusted(ctx context.Context, trusted func(pod types.UID)) context.Context {
	return context.WithValue(ctx, trustedKey{}, trusted)
}

// Collector is the HTTP handler of reports.
type Collector struct {
	Tokens  *Tokens
	Pods    Pods
	Modes   ModeGetter
	Waiting Waiting
	Log     logr.Logger

	calls    chan struct{}
	limiters *lru.Cache
}

// Handler returns the handler. The fields are not changed afterwards.
func (c *Collector) Handler() http.Handler {
	c.calls = make(chan struct{}, maxCalls)
	c.limiters = lru.New(maxLimiters)
	c.Pods.places = make(chan struct{}, maxPlaces)
	mux := http.NewServeMux()
	mux.HandleFunc(wire.Path, c.serve)
	return mux
}

// refusal is an answer other than 200.
type refusal struct {
	code       int
	reason     Reason
	message    string
	retryAfter int
}

// encode returns the body of a refusal, within what a sidecar reads of an answer: a message
// may repeat what the report says, and JSON takes up to six bytes for one.
func (r refusal) encode() ([]byte, error) {
	message := wording.OneLine(r.message)
	for _, most := range []int{len(message), 512, 128} {
		body, err := wire.EncodeRefusal(wire.Refusal{Reason: string(r.reason), Message: wording.Clip(message, most)})
		if err != nil || len(body) <= wire.MaxAnswerBytes {
			return body, err
		}
	}
	return wire.EncodeRefusal(wire.Refusal{Reason: string(r.reason)})
}

func (c *Collector) serve(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	d, no := c.report(w, r)
	reason := d.Reason
	result := metrics.ReportAccepted
	if no != nil {
		reason, result = no.reason, metrics.ReportRefused
	}
	metrics.Reports.WithLabelValues(result, string(reason)).Inc()
	metrics.ReportDuration.Observe(time.Since(began).Seconds())
	w.Header().Set("Content-Type", wire.ContentType)
	var body []byte
	var err error
	code := http.StatusOK
	if no != nil {
		if no.retryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(no.retryAfter))
		}
		code = no.code
		if code == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", "Bearer")
		}
		body, err = no.encode()
	} else {
		body, err = wire.EncodeAnswer(wire.AnswerWith(string(d.Reason), d.Interval))
	}
	if err != nil {
		c.Log.Error(err, "answer not encoded")
		code = http.StatusInternalServerError
	}
	w.WriteHeader(code)
	if _, err := w.Write(body); err != nil { //nolint:gosec // it is JSON, and says so
		c.Log.V(1).Info("answer not delivered", "error", err.Error())
	}
}

// report takes one report. A panic is a bug of belay, and costs one report.
func (c *Collector) report(w http.ResponseWriter, r *http.Request) (d Decision, no *refusal) {
	defer func() {
		if p := recover(); p != nil {
			metrics.Panics.WithLabelValues("collector").Inc()
			c.Log.Error(fmt.Errorf("panic: %v", p), "panic while taking a report", "stack", string(debug.Stack()))
			no = &refusal{code: http.StatusInternalServerError, reason: ReasonInternal, message: "belay had an internal error; see its log"}
		}
	}()
	// A body may come as slowly as the server lets it, from anybody: it keeps no place.
	report, no := decoded(w, r)
	if no != nil {
		return d, no
	}
	scheme, bearer, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	ok = ok && strings.EqualFold(scheme, "Bearer")
	if !ok {
		return d, unauthorized(ReasonNoToken)
	}
	select {
	case c.calls <- struct{}{}:
		defer func() { <-c.calls }()
	default:
		return d, &refusal{code: http.StatusServiceUnavailable, reason: ReasonTooMany, message: "too many reports at a time", retryAfter: 1}
	}
	ctx, cancel := context.WithTimeout(r.Context(), callTimeout)
	defer cancel()
	caller, reason, err := c.Tokens.Review(ctx, strings.TrimSpace(bearer))
	log := c.Log.WithValues("namespace", report.Namespace, "name", report.Pod, "uid", report.UID)
	switch {
	case err != nil:
		log.V(1).Info("token not reviewed", "error", err.Error())
		return d, &refusal{code: http.StatusServiceUnavailable, reason: ReasonReviewFailed, message: "the API server could not be asked about the token", retryAfter: 1}
	case reason != "":
		log.V(1).Info("token refused", "reason", reason)
		return d, unauthorized(reason)
	}
	if !c.limits(caller).calls.Allow() {
		return d, &refusal{code: http.StatusTooManyRequests, reason: ReasonTooMany, message: "this pod reports too often", retryAfter: 1}
	}
	if trusted, ok := r.Context().Value(trustedKey{}).(func(types.UID)); ok {
		trusted(caller.UID)
	}
	d, err = c.decide(ctx, report, caller)
	keys := []any{"reason", d.Reason, "container", report.Container, "state", report.State, "sequence", report.Sequence}
	switch {
	case d.Accepted && d.Write != nil:
		log.V(1).Info("condition written", keys...)
		return d, nil
	case d.Accepted:
		return d, nil
	case d.Retry:
		log.V(1).Info("report not taken", append(keys, "error", fmt.Sprint(err))...)
		return d, &refusal{code: http.StatusServiceUnavailable, reason: d.Reason, message: "the state of the pod could not be found out or written", retryAfter: 1}
	default:
		log.V(1).Info("report refused", keys...)
		return d, &refusal{code: http.StatusForbidden, reason: d.Reason, message: words[d.Reason]}
	}
}

// words say to people why a report is refused.
var words = map[Reason]string{
	ReasonOtherPod:        "the token is bound to another pod than the one that the report names",
	ReasonNotOptedIn:      "the namespace does not have the label belay.dev/mode=enforce",
	ReasonPodGone:         "there is no such pod",
	ReasonPodReplaced:     "there is another pod of that name",
	ReasonPodDeleting:     "the pod is being deleted",
	ReasonNoSuchContainer: "the pod has no such container",
}

// tokenWords say to people why a token does not count.
var tokenWords = map[Reason]string{ //nolint:gosec // about tokens, and none of them
	ReasonNoToken:       "there is no token of a service account",
	ReasonWrongAudience: "the token is for another audience",
	ReasonUnbound:       "the token is bound to no pod",
	ReasonExpired:       "the token has expired; is the token file renewed?",
	ReasonTokenInvalid:  "the API server does not accept the token: its pod or its service account is gone",
}

func unauthorized(r Reason) *refusal {
	return &refusal{code: http.StatusUnauthorized, reason: r, message: tokenWords[r]}
}

// decoded reads the body, within its bound.
func decoded(w http.ResponseWriter, r *http.Request) (wire.Report, *refusal) {
	unreadable := func(code int, format string, args ...any) (wire.Report, *refusal) {
		return wire.Report{}, &refusal{code: code, reason: ReasonUnreadable, message: fmt.Sprintf(format, args...)}
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return unreadable(http.StatusMethodNotAllowed, "reports come by POST")
	}
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != wire.ContentType {
		return unreadable(http.StatusUnsupportedMediaType, "a report is %s", wire.ContentType)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, wire.MaxReportBytes))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return unreadable(http.StatusRequestEntityTooLarge, "a report has at most %d bytes", wire.MaxReportBytes)
	case err != nil:
		return unreadable(http.StatusBadRequest, "the report could not be read to its end")
	}
	report, err := wire.DecodeReport(body)
	if err != nil {
		return unreadable(http.StatusBadRequest, "%v", err)
	}
	return report, nil
}

// limits are those of one Pod.
type limits struct{ calls, writes *rate.Limiter }

func (c *Collector) limits(caller Caller) limits {
	if l, ok := c.limiters.Get(caller.UID); ok {
		if l, ok := l.(limits); ok {
			return l
		}
	}
	l := limits{calls: rate.NewLimiter(perPod, burst), writes: rate.NewLimiter(perWrite, writeBurst)}
	c.limiters.Add(caller.UID, l)
	return l
}

// decide gathers what the decision needs, and writes what it says. A Pod that was changed
// meanwhile is read again: the other report may be the later one.
func (c *Collector) decide(ctx context.Context, report wire.Report, caller Caller) (d Decision, err error) {
	in := Input{Report: report, Caller: caller, Witnesses: c.Waiting.Any(), Unsure: !c.Waiting.Synced()}
	in.FreshFor, in.Recovering = c.Waiting.For(caller.Namespace, report.UID)
	if in.Mode, err = c.Modes.Mode(ctx, caller.Namespace); err == nil {
		in.ModeState = fact.Known
	} else if apierrors.IsNotFound(err) {
		in.ModeState = fact.Absent
	}
	live, version, counted := false, "", false
	for range tries {
		var failed error
		in.Pod, version, failed = c.Pods.read(ctx, caller, live)
		in.Now = time.Now()
		if d = Decide(in); d.WantLive {
			live = true
			continue
		}
		if d.Write == nil {
			return d, errors.Join(err, failed)
		}
		// Once for a report, however often it has to be decided anew.
		if !counted && !c.limits(caller).writes.Allow() {
			d.Reason, d.Write, d.Interval = ReasonPutOff, nil, min(d.Interval, putOff)
			return d, nil
		}
		counted = true
		err = c.Pods.write(ctx, caller, version, *d.Write, in.Now)
		switch {
		case err == nil:
			metrics.ConditionsWritten.Inc()
			return d, nil
		case !apierrors.IsConflict(err) && !apierrors.IsNotFound(err):
			return Decision{Reason: ReasonLookupFailed, Retry: true}, err
		}
		// Changed, or gone: it is read again.
	}
	return Decision{Reason: ReasonLookupFailed, Retry: true}, err
}
