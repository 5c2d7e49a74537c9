package spawn

import (
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// op is the one API call of a try.
type op int

const (
	opSend op = iota // the step's own: create, update, patch or call
	opGet            // the object that has the step's name
	opList           // the same, by a list of one name
)

// progress is what a step has learnt from its tries. The zero value has not begun.
type progress struct {
	next      op
	ambiguous bool      // the step's own call was sent and may have been carried out
	told      bool      // belay said that the object in the way is of the same work,
	toldUID   types.UID // and this UID; empty if it did not say
	inTheWay  error     // the answer by which the step's name was found taken
	refused   error     // a create was refused after one that may have been carried out
}

// answer is what came of one try.
type answer struct {
	err error
	// Of opGet and opList without an error: what the object that is there has to do
	// with the wanted one, and its UID.
	relation relation
	uid      types.UID
	// canList: the client can list objects of this kind.
	canList bool
}

// outcome of a try.
type outcome int

const (
	again outcome = iota
	done
	failed
)

// verdict is what to do after a try.
type verdict struct {
	outcome outcome
	// Of again: not before this long, beside the back-off; or at once.
	wait time.Duration
	now  bool
	// Of done: the object was there already.
	recovered bool
	// Of failed, why; of done, what is not known all the same; of again, what was
	// wrong, for the case that there is no time left.
	err error
}

// taken makes the error about the object that has the step's name.
type taken func(uid types.UID, reason, said error) error

var errTerminating = errors.New("the object of that name is being deleted")

// afterCreate decides after a try of a Create step.
func (p progress) afterCreate(a answer, taken taken) (progress, verdict) {
	if p.next != opSend {
		return p.afterLook(a, taken)
	}
	switch {
	case a.err == nil:
		return p, verdict{outcome: done}
	case saysOtherWork(a.err):
		return p, verdict{outcome: failed, err: taken(toldUID(a.err), ErrOtherWork, a.err)}
	}
	switch Classify(a.err) {
	case AlreadyExists:
		p.next, p.inTheWay = opGet, a.err
		p.told, p.toldUID = saysSameWork(a.err), toldUID(a.err)
		return p, verdict{now: true, err: a.err}
	case Retryable:
		p.ambiguous = p.ambiguous || ambiguous(a.err)
		return p, verdict{wait: retryAfter(a.err), err: a.err}
	}
	if p.ambiguous {
		// The object of the first create may be what the second is refused for: with
		// a quota of one Job, the answer to it is 403 and not AlreadyExists.
		p.next, p.refused = opGet, a.err
		return p, verdict{now: true, err: a.err}
	}
	return p, verdict{outcome: failed, err: a.err}
}

// afterLook decides after the object in the way was looked at. It is the object of
// the same work if it says so, or if belay said so and it is still that one.
func (p progress) afterLook(a answer, taken taken) (progress, verdict) {
	if p.refused != nil && (a.err == nil && a.relation != same || a.err != nil && p.blind(a)) {
		return p, verdict{outcome: failed, err: p.refused}
	}
	switch {
	case a.err == nil && a.relation == terminating:
		p.next = opSend
		return p, verdict{err: errTerminating}
	case a.err == nil && (a.relation == same || p.told && (p.toldUID == "" || p.toldUID == a.uid)):
		return p, verdict{outcome: done, recovered: true}
	case a.err == nil:
		return p, verdict{outcome: failed, err: taken(a.uid, ErrOtherWork, p.inTheWay)}
	case apierrors.IsNotFound(a.err):
		// It went meanwhile. The back-off keeps a cache that lags behind from making
		// this a busy loop.
		p.next = opSend
		return p, verdict{wait: retryAfter(a.err), err: a.err}
	case p.told && p.toldUID != "":
		return p, verdict{outcome: done, recovered: true}
	case Classify(a.err) == Retryable:
		return p, verdict{wait: retryAfter(a.err), err: a.err}
	case p.next == opGet && a.canList:
		p.next = opList
		return p, verdict{now: true, err: a.err}
	case p.told || p.ambiguous:
		return p, verdict{outcome: done, recovered: true, err: taken("", ErrUnknownWork, a.err)}
	}
	return p, verdict{outcome: failed, err: taken(p.toldUID, ErrUnknownWork, a.err)}
}

// blind tells that a look found nothing, and that there is no further one.
func (p progress) blind(a answer) bool {
	canGoOn := Classify(a.err) == Retryable || p.next == opGet && a.canList
	return apierrors.IsNotFound(a.err) || !canGoOn
}

// afterSend decides after a try of a step that changes what is there. A conflict of
// optimistic locking is answered by reading the object anew, if the step can.
func (p progress) afterSend(a answer, canLook bool, taken taken) (progress, verdict) {
	sent := p.next == opSend
	switch {
	case a.err == nil && sent:
		return p, verdict{outcome: done}
	case a.err == nil:
		p.next = opSend
		return p, verdict{now: true, err: p.inTheWay}
	case saysOtherWork(a.err):
		return p, verdict{outcome: failed, err: taken(toldUID(a.err), ErrOtherWork, a.err)}
	case Classify(a.err) != Retryable:
		if !sent {
			return p, verdict{outcome: failed, err: fmt.Errorf("%w, and reading it anew: %w", p.inTheWay, a.err)}
		}
		return p, verdict{outcome: failed, err: a.err}
	}
	if sent {
		p.ambiguous = p.ambiguous || ambiguous(a.err)
		if canLook && apierrors.IsConflict(a.err) {
			p.next, p.inTheWay = opGet, a.err
		}
	}
	return p, verdict{wait: retryAfter(a.err), err: a.err}
}

func statusOf(err error) (metav1.Status, bool) {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return metav1.Status{}, false
	}
	return answer.Status(), true
}
