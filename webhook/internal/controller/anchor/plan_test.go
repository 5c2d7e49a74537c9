package anchor

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/owner"
)

// created is when the Anchors of these tests were made; they expire ten minutes later.
var created = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func waiting() *builders.AnchorBuilder { return builders.MakeAnchor(created) }

var (
	run  = owner.Object{APIVersion: "batch/v1", Kind: "Job", Name: "run", UID: "job-uid"}
	walk = owner.Object{APIVersion: "batch/v1", Kind: "Job", Name: "walk", UID: "walk-uid"}
)

func leaving(o owner.Object) owner.Object {
	o.Terminating = true
	return o
}

func known(objects ...owner.Object) owner.Fact {
	return owner.Fact{State: fact.Known, Objects: objects}
}

var absent = owner.Fact{State: fact.Absent}

// summary is what a plan comes to.
type summary struct {
	bind      owner.Object
	expire    bool
	status    metav1.ConditionStatus
	reason    string
	eventType string
	after     time.Duration
}

func summaryOf(p plan) summary {
	s := summary{expire: p.expire, after: p.after}
	if p.bind != nil {
		s.bind = *p.bind
	}
	if p.condition != nil {
		s.status, s.reason = p.condition.Status, p.condition.Reason
	}
	if p.event != nil {
		s.eventType = p.event.kind
	}
	return s
}

func TestDecide(t *testing.T) {
	t.Parallel()
	const tick = 10 * time.Millisecond
	at := created.Add
	for name, c := range map[string]struct {
		anchor  *v1alpha1.Anchor
		owner   owner.Fact
		watched bool
		now     time.Time
		want    summary
	}{
		"just made and the kind is watched: silent, a look when it would be slow": {
			waiting().Obj(), absent, true, at(0), summary{after: quiet + tick},
		},
		"just made and the kind is not watched: polled": {
			waiting().Obj(), absent, false, at(0), summary{after: pollFirst + tick},
		},
		"waiting for longer than is usual: the status says so, without an event": {
			waiting().Obj(), absent, true, at(quiet), summary{status: "False", reason: v1alpha1.ReasonWaiting, after: 5*time.Minute - quiet + tick},
		},
		"polling slows down to its bound": {
			waiting().Obj(), absent, false, at(4 * time.Minute), summary{status: "False", reason: v1alpha1.ReasonWaiting, after: pollLast + tick},
		},
		"half of the time is over: a warning": {
			waiting().Obj(), absent, true, at(5 * time.Minute), summary{status: "False", reason: v1alpha1.ReasonOverdue, eventType: corev1.EventTypeWarning, after: 5*time.Minute + tick},
		},
		"a moment before the deadline: kept": {
			waiting().Obj(), absent, true, at(10*time.Minute - time.Nanosecond), summary{status: "False", reason: v1alpha1.ReasonOverdue, eventType: corev1.EventTypeWarning, after: time.Nanosecond + tick},
		},
		"at the deadline with the owner absent: expired": {
			waiting().Obj(), absent, true, at(10 * time.Minute), summary{expire: true, status: "False", reason: v1alpha1.ReasonExpired, eventType: corev1.EventTypeWarning},
		},
		"O09: an owner on its way out counts as absent": {
			waiting().Obj(), known(leaving(run)), true, at(10 * time.Minute), summary{expire: true, status: "False", reason: v1alpha1.ReasonExpired, eventType: corev1.EventTypeWarning},
		},
		"long after the deadline, with the answer unknown: kept": {
			waiting().Obj(), owner.Fact{Cause: fact.CauseTimeout}, true, at(time.Hour), summary{status: "False", reason: v1alpha1.ReasonLookupFailed, eventType: corev1.EventTypeWarning, after: pollLast},
		},
		"long after the deadline, without the right to look: kept": {
			waiting().Obj(), owner.Fact{Cause: fact.CauseForbidden}, false, at(time.Hour), summary{status: "False", reason: v1alpha1.ReasonLookupFailed, eventType: corev1.EventTypeWarning, after: pollLast},
		},
		"the zero fact is unknown": {
			waiting().Obj(), owner.Fact{}, true, at(time.Hour), summary{status: "False", reason: v1alpha1.ReasonLookupFailed, eventType: corev1.EventTypeWarning, after: pollLast},
		},
		"an unknown answer early on is asked for again soon": {
			waiting().Obj(), owner.Fact{}, true, at(4 * time.Second), summary{status: "False", reason: v1alpha1.ReasonLookupFailed, eventType: corev1.EventTypeWarning, after: 2 * time.Second},
		},
		"long after the deadline, with two owners: kept": {
			waiting().Obj(), known(run, walk), true, at(time.Hour), summary{status: "False", reason: v1alpha1.ReasonAmbiguous, eventType: corev1.EventTypeWarning, after: pollLast},
		},
		"long after the deadline, with more than were read: kept": {
			waiting().Obj(), owner.Fact{State: fact.Known, Truncated: true}, true, at(time.Hour), summary{status: "False", reason: v1alpha1.ReasonAmbiguous, eventType: corev1.EventTypeWarning, after: pollLast},
		},
		"the owner is there: bound": {
			waiting().Obj(), known(run), true, at(time.Second), summary{bind: run},
		},
		"the owner came after the deadline, before anybody looked: bound": {
			waiting().Obj(), known(run), true, at(time.Hour), summary{bind: run},
		},
		"of two, one is leaving: the other one is bound": {
			waiting().Obj(), known(leaving(run), walk), true, at(time.Second), summary{bind: walk},
		},
		"bound: said, and left alone": {
			waiting().BoundTo(run.UID).Obj(), owner.Fact{}, false, at(time.Hour), summary{status: "True", reason: v1alpha1.ReasonBound},
		},
		"O08: released: never bound again, not even to a new owner of the name": {
			waiting().BoundTo("old-uid").Released().Obj(), known(run), true, at(time.Hour), summary{status: "False", reason: v1alpha1.ReasonReleased, eventType: corev1.EventTypeNormal, after: releasedFor},
		},
		"O08: a reference to another UID is not the owner's": {
			func() *v1alpha1.Anchor {
				a := waiting().BoundTo("old-uid").Obj()
				a.OwnerReferences[0].UID = run.UID
				return a
			}(), known(run), true, at(time.Hour), summary{status: "False", reason: v1alpha1.ReasonReleased, eventType: corev1.EventTypeNormal, after: releasedFor},
		},
		"on its way out: nothing": {
			waiting().Terminating(created).Obj(), absent, true, at(time.Hour), summary{},
		},
		"bound and on its way out: nothing": {
			waiting().BoundTo(run.UID).Terminating(created).Obj(), owner.Fact{}, true, at(time.Hour), summary{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := c.anchor.DeepCopy()
			got := decide(observed{anchor: c.anchor, owner: c.owner, watched: c.watched}, c.now)
			if diff := cmp.Diff(c.want, summaryOf(got), cmp.AllowUnexported(summary{})); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(before, c.anchor); diff != "" {
				t.Errorf("a plan changed the Anchor: %s", diff)
			}
			if got.event != nil && (got.condition == nil || got.event.reason != got.condition.Reason || got.event.action == "") {
				t.Errorf("event %+v does not go with condition %+v", got.event, got.condition)
			}
		})
	}
}

func TestMessagesOfPlans(t *testing.T) {
	t.Parallel()
	labels := v1alpha1.AnchorOwner{APIVersion: "spur.dev/v1", Kind: "SpurJob", MatchLabels: map[string]string{"spur.dev/id": "7"}}
	for name, c := range map[string]struct {
		anchor *v1alpha1.Anchor
		owner  owner.Fact
		after  time.Duration
		want   string
	}{
		"waiting":   {waiting().Obj(), absent, quiet, `job "run" does not exist yet`},
		"overdue":   {waiting().Obj(), absent, 6 * time.Minute, `job "run" has not come yet; at 2026-03-01T12:10:00Z the Anchor is deleted with all that it holds`},
		"expired":   {waiting().Obj(), absent, time.Hour, `job "run" did not come until 2026-03-01T12:10:00Z; the Anchor is deleted, and the garbage collector takes what it holds`},
		"ambiguous": {waiting().For(labels).Obj(), known(run, walk), time.Minute, `several objects are spurjob with labels spur.dev/id=7; belay does not guess: make the labels unique. What the Anchor holds is kept`},
		"unknown":   {waiting().Obj(), owner.Fact{Cause: fact.CauseTimeout}, time.Minute, `could not find out whether job "run" exists (Timeout); the Anchor is kept`},
		"bound":     {waiting().BoundTo("u").Obj(), absent, time.Minute, `owned by job "run" (uid u)`},
		"released":  {waiting().BoundTo("u").Released().Obj(), absent, time.Minute, `job "run" (uid u) was deleted and left its dependents behind; what the Anchor holds stays, and is never bound again`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := decide(observed{anchor: c.anchor, owner: c.owner, watched: true}, created.Add(c.after))
			if p.condition == nil || p.condition.Message != c.want {
				t.Errorf("got %+v", p.condition)
			}
		})
	}
}

// TestAnAnchorNeverExpiresOnAGuess goes through all of an Anchor's time with every
// fact that is not a plain "absent".
func TestAnAnchorNeverExpiresOnAGuess(t *testing.T) {
	t.Parallel()
	for _, f := range []owner.Fact{{}, {Cause: fact.CauseTimeout}, {Cause: fact.CauseForbidden}, {Cause: fact.CauseNoKind}, {Cause: fact.CauseServer}, known(run, walk), known(run), {State: fact.Known, Truncated: true}} {
		for after := time.Duration(0); after < time.Hour; after += 7 * time.Second {
			if p := decide(observed{anchor: waiting().Obj(), owner: f}, created.Add(after)); p.expire {
				t.Fatalf("%+v after %s: %+v", f, after, p)
			}
		}
	}
}

// TestAWaitingAnchorIsLookedAtAgain: without a next look an Anchor would stay for ever,
// and one in no time would keep a worker busy.
func TestAWaitingAnchorIsLookedAtAgain(t *testing.T) {
	t.Parallel()
	for _, watched := range []bool{false, true} {
		for after := time.Duration(0); after < 10*time.Minute; after += 313 * time.Millisecond {
			now := created.Add(after)
			p := decide(observed{anchor: waiting().Obj(), owner: absent, watched: watched}, now)
			if p.after <= 0 || now.Add(p.after).After(created.Add(10*time.Minute+time.Second)) {
				t.Fatalf("after %s: next look in %s", after, p.after)
			}
		}
	}
}

func TestNews(t *testing.T) {
	t.Parallel()
	says := func(status metav1.ConditionStatus, reason string) plan {
		c := condition(reason, "m")
		c.Status = status
		return plan{condition: c}
	}
	for name, c := range map[string]struct {
		plan   plan
		anchor *v1alpha1.Anchor
		want   bool
	}{
		"nothing to say":                {plan{}, waiting().Obj(), false},
		"the first word":                {says("False", v1alpha1.ReasonWaiting), waiting().Obj(), true},
		"said already":                  {says("False", v1alpha1.ReasonOverdue), waiting().Condition("False", v1alpha1.ReasonOverdue).Obj(), false},
		"another reason":                {says("False", v1alpha1.ReasonOverdue), waiting().Condition("False", v1alpha1.ReasonWaiting).Obj(), true},
		"the same reason, another word": {says("True", v1alpha1.ReasonBound), waiting().Condition("False", v1alpha1.ReasonBound).Obj(), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := c.plan.news(c.anchor); got != c.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestHolds(t *testing.T) {
	t.Parallel()
	byName := v1alpha1.AnchorOwner{Name: "run"}
	byLabels := v1alpha1.AnchorOwner{MatchLabels: map[string]string{"a": "b", "c": ""}}
	for name, c := range map[string]struct {
		owner  v1alpha1.AnchorOwner
		name   string
		labels map[string]string
		want   bool
	}{
		"the name":                         {byName, "run", nil, true},
		"another name":                     {byName, "walk", map[string]string{"name": "run"}, false},
		"all labels, and more":             {byLabels, "x", map[string]string{"a": "b", "c": "", "d": "e"}, true},
		"one label is missing":             {byLabels, "x", map[string]string{"a": "b"}, false},
		"one label differs":                {byLabels, "x", map[string]string{"a": "B", "c": ""}, false},
		"no labels hold nothing":           {v1alpha1.AnchorOwner{}, "x", map[string]string{"a": "b"}, false},
		"O11: the name counts, labels not": {v1alpha1.AnchorOwner{Name: "run", MatchLabels: map[string]string{"a": "b"}}, "x", map[string]string{"a": "b"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := holds(c.owner, c.name, c.labels); got != c.want {
				t.Errorf("got %t", got)
			}
		})
	}
}
