package spawn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var jobs = schema.GroupResource{Group: "batch", Resource: "jobs"}

func statusError(code int32, reason metav1.StatusReason, message string, causes ...metav1.CauseType) *apierrors.StatusError {
	details := &metav1.StatusDetails{}
	for _, cause := range causes {
		details.Causes = append(details.Causes, metav1.StatusCause{Type: cause})
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message, Details: details}}
}

func dialError(err error) error {
	return &url.Error{Op: "Post", URL: "https://10.0.0.1", Err: &net.OpError{Op: "dial", Err: err}}
}

func TestClassify(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		err       error
		want      Class
		ambiguous bool
	}{
		"no error":                                        {},
		"etcd timed out":                                  {err: statusError(500, "", "etcdserver: request timed out"), want: Retryable, ambiguous: true},
		"etcd has no leader":                              {err: apierrors.NewInternalError(errors.New("etcdserver: leader changed")), want: Retryable, ambiguous: true},
		"the server gave up waiting":                      {err: apierrors.NewTimeoutError("request did not complete", 0), want: Retryable, ambiguous: true},
		"the storage timed out":                           {err: apierrors.NewServerTimeout(jobs, "create", 0), want: Retryable, ambiguous: true},
		"a webhook could not be called":                   {err: apierrors.NewInternalError(errors.New("failed calling webhook")), want: Retryable, ambiguous: true},
		"a proxy lost the server":                         {err: statusError(502, "", "bad gateway"), want: Retryable, ambiguous: true},
		"no server behind the proxy":                      {err: apierrors.NewServiceUnavailable("no endpoints"), want: Retryable, ambiguous: true},
		"a proxy gave up waiting":                         {err: statusError(504, "", "gateway timeout"), want: Retryable, ambiguous: true},
		"the server sheds load":                           {err: apierrors.NewTooManyRequestsError("later"), want: Retryable},
		"too many requests, without a code":               {err: statusError(0, metav1.StatusReasonTooManyRequests, "later"), want: Retryable},
		"a token that the server does not know yet":       {err: apierrors.NewUnauthorized("no"), want: Retryable},
		"a conflict of optimistic locking":                {err: apierrors.NewConflict(jobs, "a", errors.New("modified")), want: Retryable},
		"a conflict, without a code":                      {err: statusError(0, metav1.StatusReasonConflict, "modified"), want: Retryable},
		"an error of the server that nobody knows":        {err: statusError(599, "Odd", "odd"), want: Retryable, ambiguous: true},
		"a status without reason or code":                 {err: statusError(0, "", "odd"), want: Retryable, ambiguous: true},
		"connection refused":                              {err: dialError(syscall.ECONNREFUSED), want: Retryable},
		"connection reset":                                {err: dialError(syscall.ECONNRESET), want: Retryable, ambiguous: true},
		"the answer was cut short":                        {err: fmt.Errorf("reading: %w", io.ErrUnexpectedEOF), want: Retryable, ambiguous: true},
		"the connection ended":                            {err: io.EOF, want: Retryable, ambiguous: true},
		"the server goes away":                            {err: errors.New("http2: server sent GOAWAY and closed the connection"), want: Retryable, ambiguous: true},
		"no ping was answered":                            {err: errors.New("http2: client connection lost"), want: Retryable, ambiguous: true},
		"the try took too long":                           {err: fmt.Errorf("posting: %w", context.DeadlineExceeded), want: Retryable, ambiguous: true},
		"the caller went away":                            {err: context.Canceled, want: Retryable, ambiguous: true},
		"the name is taken":                               {err: apierrors.NewAlreadyExists(jobs, "a"), want: AlreadyExists},
		"the name is taken, wrapped":                      {err: fmt.Errorf("creating: %w", apierrors.NewAlreadyExists(jobs, "a")), want: AlreadyExists},
		"belay says same work":                            {err: statusError(409, metav1.StatusReasonAlreadyExists, "", CauseSameWork), want: AlreadyExists},
		"belay says same work, with another reason":       {err: statusError(409, metav1.StatusReasonConflict, "", CauseSameWork), want: AlreadyExists},
		"belay says other work":                           {err: statusError(409, metav1.StatusReasonConflict, "", CauseOtherWork), want: Refused},
		"belay says other work, with code 422":            {err: statusError(422, metav1.StatusReasonInvalid, "", CauseOtherWork), want: Refused},
		"belay says other work, with AlreadyExists":       {err: statusError(409, metav1.StatusReasonAlreadyExists, "", CauseOtherWork), want: Refused},
		"bad request":                                     {err: apierrors.NewBadRequest("no"), want: Refused},
		"forbidden":                                       {err: apierrors.NewForbidden(jobs, "a", errors.New("no")), want: Refused},
		"forbidden, without a code":                       {err: statusError(0, metav1.StatusReasonForbidden, "no"), want: Refused},
		"the namespace is terminating":                    {err: statusError(403, metav1.StatusReasonForbidden, "", "NamespaceTerminating"), want: Refused},
		"the namespace is not there":                      {err: apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "a"), want: Refused},
		"the method is not allowed":                       {err: apierrors.NewMethodNotSupported(jobs, "create"), want: Refused},
		"it is gone":                                      {err: apierrors.NewResourceExpired("old"), want: Refused},
		"the object is too large":                         {err: apierrors.NewRequestEntityTooLargeError("no"), want: Refused},
		"the object is invalid":                           {err: apierrors.NewInvalid(schema.GroupKind{Kind: "Job"}, "a", nil), want: Refused},
		"the server does not have that":                   {err: statusError(501, "", "not implemented"), want: Refused},
		"the kind is not served":                          {err: &meta.NoKindMatchError{GroupKind: schema.GroupKind{Kind: "Job"}}, want: Refused},
		"whoever made the call says that it is final":     {err: fmt.Errorf("calling: %w", Final(io.EOF)), want: Refused},
		"final, although the server would be asked again": {err: Final(apierrors.NewTooManyRequestsError("later")), want: Refused},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := Classify(tc.err); got != tc.want {
				t.Errorf("class %q, want %q", got, tc.want)
			}
			if got := ambiguous(tc.err); got != tc.ambiguous {
				t.Errorf("ambiguous %t, want %t", got, tc.ambiguous)
			}
		})
	}
}

// Every code of an answer has a class, and 4xx that nobody thought of are not
// hammered on.
func TestClassifyEveryCode(t *testing.T) {
	t.Parallel()
	for code := int32(300); code < 600; code++ {
		want := Refused
		if code >= 500 && code != http.StatusNotImplemented || code == 401 || code == 408 || code == 409 || code == 429 {
			want = Retryable
		}
		if got := Classify(statusError(code, "", "")); got != want {
			t.Errorf("code %d is %s, want %s", code, got, want)
		}
	}
}

func TestFinalOfNothing(t *testing.T) {
	t.Parallel()
	if err := Final(nil); err != nil {
		t.Errorf("got %v", err)
	}
	if !errors.Is(Final(io.EOF), io.EOF) || Final(io.EOF).Error() != "EOF" {
		t.Error("the error is hidden")
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for want, err := range map[time.Duration]error{
		0:               io.EOF,
		3 * time.Second: apierrors.NewTooManyRequests("later", 3),
		7 * time.Second: fmt.Errorf("creating: %w", apierrors.NewTimeoutError("later", 7)),
	} {
		if got := retryAfter(err); got != want {
			t.Errorf("retryAfter(%v) = %v, want %v", err, got, want)
		}
	}
}
