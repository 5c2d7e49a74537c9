package spawn

import (
	"errors"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// Class is what an error of an API call means for whoever spawns.
type Class string

const (
	// Retryable says to wait and call again. Either nothing was done (429, a
	// conflict), or nobody can tell whether something was (a time-out, a lost answer).
	Retryable Class = "Retryable"
	// AlreadyExists says that there is an object of that name. Whose, the caller has
	// to find out, unless belay has said that it is of the same work.
	AlreadyExists Class = "AlreadyExists"
	// Refused says that the same call will be answered the same.
	Refused Class = "Refused"
)

const (
	// CauseSameWork is the type of the cause in details.causes by which belay says
	// that the object in the way is of the same work. Its UID is in details.uid.
	CauseSameWork metav1.CauseType = "belay.dev/same-work"
	// CauseOtherWork is the one by which it says that it is of another. It counts
	// whatever the status code is: a policy chooses between 409 and 422.
	CauseOtherWork metav1.CauseType = "belay.dev/other-work"
	// CauseFinished is the one by which it says that the object in the way has finished
	// and may not be replaced.
	CauseFinished metav1.CauseType = "belay.dev/finished"
)

// Final marks an error of a [Call] as not worth a retry. It is nil for nil.
func Final(err error) error {
	if err == nil {
		return nil
	}
	return &finalError{err: err}
}

type finalError struct{ err error }

func (e *finalError) Error() string { return e.err.Error() }
func (e *finalError) Unwrap() error { return e.err }

// Classify tells what an error of an API call means. The class of nil is empty.
//
// An error without a status did not come from the API server: a connection that
// was refused, reset or lost, an answer cut short, a deadline. All of those are
// Retryable, so nobody has to know their texts, and so are all answers from 500 on
// but 501. That covers the time-outs of etcd, which come as 500 with a message that
// begins with "etcdserver:", and webhooks that could not be called. 401 is
// Retryable as well: an API server that has just started says so to tokens that it
// will know in a moment, and rotated tokens are read anew; nothing is done by then.
// Of the conflicts, those of optimistic locking are Retryable (a resource quota's
// among them), and those of another work are Refused.
func Classify(err error) Class {
	if err == nil {
		return ""
	}
	var final *finalError
	if errors.As(err, &final) || meta.IsNoMatchError(err) || runtime.IsNotRegisteredError(err) {
		return Refused
	}
	if apierrors.HasStatusCause(err, CauseOtherWork) || apierrors.HasStatusCause(err, CauseFinished) {
		return Refused
	}
	if apierrors.HasStatusCause(err, CauseSameWork) || apierrors.IsAlreadyExists(err) {
		return AlreadyExists
	}
	switch code := codeOf(err); {
	case code == 0, code == http.StatusTooManyRequests, code == http.StatusUnauthorized, code == http.StatusRequestTimeout, code == http.StatusConflict:
		return Retryable
	case code >= http.StatusInternalServerError && code != http.StatusNotImplemented:
		return Retryable
	}
	return Refused
}

// codeOf is the status code of an answer, or 0 where there was none. Errors that
// were put together without a code have that of their reason.
func codeOf(err error) int32 {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return 0
	}
	if code := answer.Status().Code; code != 0 {
		return code
	}
	for code, is := range map[int32]func(error) bool{
		http.StatusBadRequest:            apierrors.IsBadRequest,
		http.StatusUnauthorized:          apierrors.IsUnauthorized,
		http.StatusForbidden:             apierrors.IsForbidden,
		http.StatusNotFound:              apierrors.IsNotFound,
		http.StatusMethodNotAllowed:      apierrors.IsMethodNotSupported,
		http.StatusNotAcceptable:         apierrors.IsNotAcceptable,
		http.StatusConflict:              apierrors.IsConflict,
		http.StatusGone:                  apierrors.IsGone,
		http.StatusRequestEntityTooLarge: apierrors.IsRequestEntityTooLargeError,
		http.StatusUnsupportedMediaType:  apierrors.IsUnsupportedMediaType,
		http.StatusUnprocessableEntity:   apierrors.IsInvalid,
		http.StatusTooManyRequests:       apierrors.IsTooManyRequests,
	} {
		if is(err) {
			return code
		}
	}
	return 0
}

// ambiguous tells whether the call may have been carried out all the same.
func ambiguous(err error) bool {
	if Classify(err) != Retryable || utilnet.IsConnectionRefused(err) {
		return false
	}
	switch codeOf(err) {
	case http.StatusTooManyRequests, http.StatusUnauthorized, http.StatusConflict:
		return false
	}
	return true
}

// retryAfter is how long the server asks to wait at least.
func retryAfter(err error) time.Duration {
	seconds, _ := apierrors.SuggestsClientDelay(err)
	return time.Duration(seconds) * time.Second
}
