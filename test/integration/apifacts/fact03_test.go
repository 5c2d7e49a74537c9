package apifacts

import (
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Fact 3: a denial keeps code, reason, details (name, kind, uid, causes,
// retryAfterSeconds → Retry-After header) and warnings.
func TestFact03_DenialReachesTheUserAsItIs(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		denial     metav1.Status
		code       int    // when it is not that of the denial
		retryAfter string // header
	}{
		"a conflict with details of its own": {denial: metav1.Status{
			Code: http.StatusConflict, Reason: metav1.StatusReasonAlreadyExists,
			Details: &metav1.StatusDetails{Name: "restore-a", Group: "batch", Kind: "jobs", UID: "0c9e0d2a"},
		}},
		"a wait": {denial: metav1.Status{
			Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
			Details: &metav1.StatusDetails{RetryAfterSeconds: 7},
		}, retryAfter: "7"},
		"a wait without a time": {denial: metav1.Status{
			Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
		}},
		"an invalid field with its cause": {denial: metav1.Status{
			Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{
				{Type: metav1.CauseTypeFieldValueInvalid, Field: "spec.size", Message: "too large"},
				{Type: "OurOwn", Message: "anything"},
			}},
		}},
		"a reason that is no reason of Kubernetes": {denial: metav1.Status{Code: http.StatusForbidden, Reason: "OwnerIsGone"}},
		"a code of success, which becomes 400":     {denial: metav1.Status{Code: http.StatusOK, Reason: "OwnerIsGone"}, code: http.StatusBadRequest},
	} {
		for phase, register := range map[string]func(*fixture, *testing.T, hookSpec) *hook{
			"mutating": (*fixture).mutating, "validating": (*fixture).validating,
		} {
			t.Run(name+", "+phase, func(t *testing.T) {
				f := setUp(t, usual)
				denial := tc.denial.DeepCopy()
				denial.Message = "wait for the other"
				h := register(f, t, hookSpec{on: onConfigMaps(create), answer: func(*request) *response {
					return &response{Result: denial.DeepCopy(), Warnings: []string{"first", "second"}}
				}})

				answer, body := f.send(t, http.MethodPost, f.configMapPath(""), "application/json", configMapJSON("one"))

				want := *denial
				want.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
				want.Status = metav1.StatusFailure
				want.Message = `admission webhook "` + h.name + `" denied the request: ` + denial.Message
				if tc.code != 0 {
					want.Code = int32(tc.code)
				}
				if diff := cmp.Diff(want, decode[metav1.Status](t, body)); diff != "" {
					t.Errorf("status (-want +got):\n%s", diff)
				}
				if answer.StatusCode != int(want.Code) {
					t.Errorf("the HTTP status is %d; want %d", answer.StatusCode, want.Code)
				}
				if got := answer.Header.Get("Retry-After"); got != tc.retryAfter {
					t.Errorf("Retry-After is %q; want %q", got, tc.retryAfter)
				}
				if diff := cmp.Diff([]string{`299 - "first"`, `299 - "second"`}, answer.Header.Values("Warning")); diff != "" {
					t.Errorf("warnings (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// Fact 3: a review answer is always HTTP 200; a transport-level 429 ends as a 500
// for the user, and so does every other status.
func TestFact03_TransportStatusEndsAs500(t *testing.T) {
	t.Parallel()
	for name, status := range map[string]int{
		"429": http.StatusTooManyRequests,
		"403": http.StatusForbidden,
		"409": http.StatusConflict,
		"503": http.StatusServiceUnavailable,
	} {
		for phase, register := range map[string]func(*fixture, *testing.T, hookSpec) *hook{
			"mutating": (*fixture).mutating, "validating": (*fixture).validating,
		} {
			t.Run(name+", "+phase, func(t *testing.T) {
				f := setUp(t, usual)
				h := register(f, t, hookSpec{on: onConfigMaps(create), transport: func(w http.ResponseWriter) bool {
					http.Error(w, "wait", status)
					return true
				}})

				answer, body := f.send(t, http.MethodPost, f.configMapPath(""), "application/json", configMapJSON("one"))
				got := decode[metav1.Status](t, body)
				if answer.StatusCode != http.StatusInternalServerError || got.Reason != metav1.StatusReasonInternalError || answer.Header.Get("Retry-After") != "" {
					t.Errorf("the answer is %d %s, Retry-After %q; want %d %s without", answer.StatusCode, got.Reason, answer.Header.Get("Retry-After"),
						http.StatusInternalServerError, metav1.StatusReasonInternalError)
				}
				if calls := len(h.requests()); calls != 1 {
					t.Errorf("the webhook was called %d times; want once", calls)
				}
			})
		}
	}
}

// Beside fact 3: a transport-level 429 or 503 that carries Retry-After is retried
// by the API server itself, whose own client is client-go: the user waits and does
// not hear of it.
func TestFact03_TransportRetryAfterIsRetriedByTheServer(t *testing.T) {
	t.Parallel()
	for name, status := range map[string]int{"429": http.StatusTooManyRequests, "503": http.StatusServiceUnavailable} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t, usual)
			var calls atomic.Int32
			h := f.mutating(t, hookSpec{on: onConfigMaps(create), transport: func(w http.ResponseWriter) bool {
				if calls.Add(1) > 1 {
					return false
				}
				w.Header().Set("Retry-After", "1")
				http.Error(w, "wait", status)
				return true
			}})
			answer, body := f.send(t, http.MethodPost, f.configMapPath(""), "application/json", configMapJSON("one"))
			if answer.StatusCode != http.StatusCreated || len(h.requests()) != 2 {
				t.Errorf("the answer is %d after %d calls of the webhook; want %d after 2: %s", answer.StatusCode, len(h.requests()), http.StatusCreated, body)
			}
		})
	}
}
