package spawn

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func takenForTest(uid types.UID, reason, said error) error {
	return &WorkError{Kind: "Job", Name: "a", UID: uid, Err: reason, Answer: said}
}

// said is belay's answer.
func said(cause metav1.CauseType, uid types.UID) error {
	err := statusError(409, metav1.StatusReasonAlreadyExists, "taken", cause)
	err.ErrStatus.Details.UID = uid
	return err
}

func cmpVerdicts() cmp.Options {
	return cmp.Options{cmp.AllowUnexported(progress{}, verdict{}), cmpopts.EquateErrors()}
}

func TestAfterCreate(t *testing.T) {
	t.Parallel()
	var (
		exists    = apierrors.NewAlreadyExists(jobs, "a")
		notFound  = apierrors.NewNotFound(jobs, "a")
		forbidden = apierrors.NewForbidden(jobs, "a", errors.New("no"))
		invalid   = apierrors.NewInvalid(metav1.SchemeGroupVersion.WithKind("Job").GroupKind(), "a", nil)
		later     = apierrors.NewTooManyRequests("later", 3)
		looking   = progress{next: opGet, inTheWay: exists}
		told      = progress{next: opGet, inTheWay: exists, told: true, toldUID: "u1"}
		toldNoUID = progress{next: opGet, inTheWay: exists, told: true}
		unsure    = progress{next: opGet, inTheWay: exists, ambiguous: true}
		listing   = progress{next: opList, inTheWay: exists}
		doubting  = progress{next: opGet, ambiguous: true, refused: forbidden}
	)
	tests := map[string]struct {
		before progress
		answer answer
		after  progress
		want   verdict
		uid    types.UID // of the WorkError
	}{
		"created": {
			want: verdict{outcome: done},
		},
		"an answer that says nothing is asked for again": {
			answer: answer{err: io.EOF},
			after:  progress{ambiguous: true},
			want:   verdict{err: io.EOF},
		},
		"an answer that says later is asked for later, and nothing was done": {
			answer: answer{err: later},
			want:   verdict{err: later, wait: 3 * time.Second},
		},
		"what was in doubt stays so": {
			before: progress{ambiguous: true},
			answer: answer{err: later},
			after:  progress{ambiguous: true},
			want:   verdict{err: later, wait: 3 * time.Second},
		},
		"refused": {
			answer: answer{err: invalid},
			want:   verdict{outcome: failed, err: invalid},
		},
		"refused after a create in doubt: look at once": {
			before: progress{ambiguous: true},
			answer: answer{err: forbidden},
			after:  doubting,
			want:   verdict{now: true, err: forbidden},
		},
		"and the object is there: that is what it was refused for": {
			before: doubting, after: doubting,
			answer: answer{relation: same, uid: "u1"},
			want:   verdict{outcome: done, recovered: true},
		},
		"and another one is there": {
			before: doubting, after: doubting,
			answer: answer{relation: other, uid: "u2"},
			want:   verdict{outcome: failed, err: forbidden},
		},
		"and it is being deleted": {
			before: doubting, after: doubting,
			answer: answer{relation: terminating, uid: "u1"},
			want:   verdict{outcome: failed, err: forbidden},
		},
		"and nothing is there": {
			before: doubting, after: doubting,
			answer: answer{err: notFound, canList: true},
			want:   verdict{outcome: failed, err: forbidden},
		},
		"and looking failed in passing": {
			before: doubting, after: doubting,
			answer: answer{err: io.EOF},
			want:   verdict{err: io.EOF},
		},
		"and looking is forbidden, too: list": {
			before: doubting, after: progress{next: opList, ambiguous: true, refused: forbidden},
			answer: answer{err: forbidden, canList: true},
			want:   verdict{now: true, err: forbidden},
		},
		"and looking is forbidden, too": {
			before: doubting, after: doubting,
			answer: answer{err: forbidden},
			want:   verdict{outcome: failed, err: forbidden},
		},
		"the name is taken: look at once": {
			answer: answer{err: exists},
			after:  looking,
			want:   verdict{now: true, err: exists},
		},
		"belay says same work: look, and know the UID already": {
			answer: answer{err: said(CauseSameWork, "u1")},
			after:  progress{next: opGet, inTheWay: apierrors.NewAlreadyExists(jobs, "a"), told: true, toldUID: "u1"},
			want:   verdict{now: true},
		},
		"belay says other work": {
			answer: answer{err: said(CauseOtherWork, "u2")},
			want:   verdict{outcome: failed, err: ErrOtherWork},
			uid:    "u2",
		},
		"the object is of the same work": {
			before: looking, after: looking,
			answer: answer{relation: same, uid: "u1"},
			want:   verdict{outcome: done, recovered: true},
		},
		"the object is of other work": {
			before: looking, after: looking,
			answer: answer{relation: other, uid: "u2"},
			want:   verdict{outcome: failed, err: ErrOtherWork},
			uid:    "u2",
		},
		"the object does not say so, but belay has, and it is that one": {
			before: told, after: told,
			answer: answer{relation: other, uid: "u1"},
			want:   verdict{outcome: done, recovered: true},
		},
		"belay spoke of another object, which is gone": {
			before: told, after: told,
			answer: answer{relation: other, uid: "u2"},
			want:   verdict{outcome: failed, err: ErrOtherWork},
			uid:    "u2",
		},
		"belay did not say a UID, and the object does": {
			before: toldNoUID, after: toldNoUID,
			answer: answer{relation: other, uid: "u1"},
			want:   verdict{outcome: done, recovered: true},
		},
		"the object is being deleted: create again, later": {
			before: looking, after: progress{inTheWay: exists},
			answer: answer{relation: terminating, uid: "u1"},
			want:   verdict{err: errTerminating},
		},
		"the object went meanwhile: create again, later": {
			before: looking, after: progress{inTheWay: exists},
			answer: answer{err: notFound},
			want:   verdict{err: notFound},
		},
		"looking failed in passing": {
			before: looking, after: looking,
			answer: answer{err: io.EOF},
			want:   verdict{err: io.EOF},
		},
		"looking failed in passing, and the UID is known": {
			before: told, after: told,
			answer: answer{err: io.EOF},
			want:   verdict{outcome: done, recovered: true},
		},
		"looking is forbidden, and the UID is known": {
			before: told, after: told,
			answer: answer{err: forbidden, canList: true},
			want:   verdict{outcome: done, recovered: true},
		},
		"looking is forbidden: list": {
			before: looking, after: listing,
			answer: answer{err: forbidden, canList: true},
			want:   verdict{now: true, err: forbidden},
		},
		"looking is forbidden, and there is no list": {
			before: looking, after: looking,
			answer: answer{err: forbidden},
			want:   verdict{outcome: failed, err: ErrUnknownWork},
		},
		"listing is forbidden, too": {
			before: listing, after: listing,
			answer: answer{err: forbidden, canList: true},
			want:   verdict{outcome: failed, err: ErrUnknownWork},
		},
		"the list finds it": {
			before: listing, after: listing,
			answer: answer{relation: same, uid: "u1", canList: true},
			want:   verdict{outcome: done, recovered: true},
		},
		"the list does not find it": {
			before: listing, after: progress{inTheWay: exists},
			answer: answer{err: notFound, canList: true},
			want:   verdict{err: notFound},
		},
		"looking is forbidden after a create of ours in doubt: taken for ours": {
			before: unsure, after: unsure,
			answer: answer{err: forbidden},
			want:   verdict{outcome: done, recovered: true, err: ErrUnknownWork},
		},
		"looking is forbidden, and belay said same work without a UID": {
			before: toldNoUID, after: toldNoUID,
			answer: answer{err: forbidden},
			want:   verdict{outcome: done, recovered: true, err: ErrUnknownWork},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			after, got := tc.before.afterCreate(tc.answer, takenForTest)
			var work *WorkError
			if errors.As(got.err, &work) && work.UID != tc.uid {
				t.Errorf("the error tells uid %q, want %q", work.UID, tc.uid)
			}
			if tc.want.err == nil {
				got.err = nil // of "again", and told by the answer
			}
			if diff := cmp.Diff(tc.want, got, cmpVerdicts()); diff != "" {
				t.Errorf("verdict (-want +got):\n%s", diff)
			}
			if (after.inTheWay == nil) != (tc.after.inTheWay == nil) {
				t.Errorf("in the way is %v, want %v", after.inTheWay, tc.after.inTheWay)
			}
			after.inTheWay, tc.after.inTheWay = nil, nil
			if diff := cmp.Diff(tc.after, after, cmpVerdicts()); diff != "" {
				t.Errorf("progress (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAfterSend(t *testing.T) {
	t.Parallel()
	var (
		conflict  = apierrors.NewConflict(jobs, "a", errors.New("modified"))
		notFound  = apierrors.NewNotFound(jobs, "a")
		forbidden = apierrors.NewForbidden(jobs, "a", errors.New("no"))
		looking   = progress{next: opGet, inTheWay: conflict}
	)
	tests := map[string]struct {
		before progress
		answer answer
		blind  bool
		after  progress
		want   verdict
	}{
		"sent":                  {want: verdict{outcome: done}},
		"an answer got lost":    {answer: answer{err: io.EOF}, after: progress{ambiguous: true}, want: verdict{err: io.EOF}},
		"refused":               {answer: answer{err: notFound}, want: verdict{outcome: failed, err: notFound}},
		"belay says other work": {answer: answer{err: said(CauseOtherWork, "u2")}, want: verdict{outcome: failed, err: ErrOtherWork}},
		"a conflict: read anew": {answer: answer{err: conflict}, after: looking, want: verdict{err: conflict}},
		"a conflict of a step that has no object to read": {
			answer: answer{err: conflict}, blind: true, want: verdict{err: conflict},
		},
		"read: send at once": {before: looking, after: progress{inTheWay: conflict}, want: verdict{now: true, err: conflict}},
		"not read in passing": {
			before: looking, after: looking, answer: answer{err: io.EOF}, want: verdict{err: io.EOF},
		},
		"must not be read": {
			before: looking, after: looking, answer: answer{err: forbidden}, want: verdict{outcome: failed, err: conflict},
		},
		"gone when read": {
			before: looking, after: looking, answer: answer{err: notFound}, want: verdict{outcome: failed, err: notFound},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			after, got := tc.before.afterSend(tc.answer, !tc.blind, takenForTest)
			if diff := cmp.Diff(tc.want, got, cmpVerdicts()); diff != "" {
				t.Errorf("verdict (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.after, after, cmpVerdicts()); diff != "" {
				t.Errorf("progress (-want +got):\n%s", diff)
			}
		})
	}
}
