package naming

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
)

// row is one line of a table of decisions. A message that is left out is not compared.
type row struct {
	in   Input
	want Decision
}

// answers has a row for each line of the answer table of the design's section 5, and for
// each condition that stands before a deletion.
func answers() map[string]row {
	const (
		retry  = v1alpha1.AnswerTooManyRequests
		exists = v1alpha1.AnswerAlreadyExists
	)
	settle := func(d time.Duration) func(*Input) { return func(in *Input) { in.Policy.Settle = d } }
	serialize := func(in *Input) { in.Policy.Serialize = true }
	turn := func(f TurnFact) func(*Input) { return func(in *Input) { in.Facts.Turn = f } }
	pods := func(f PodsFact) func(*Input) { return func(in *Input) { in.Facts.Pods = f } }
	right := func(f RightFact) func(*Input) { return func(in *Input) { in.Facts.Right = f } }
	replaced := func(in *Input) { in.Facts.Replaced = ReplacementDone }
	expected := func(c Computed) func(*Input) { return func(in *Input) { in.Expected = c } }
	answer := func(change func(*v1alpha1.NameAnswers)) func(*Input) {
		return func(in *Input) { change(&in.Policy.Answers) }
	}
	ofWork := func(c Computed) func(*Input) { return func(in *Input) { in.Request.Work = c } }
	held := func(o *Object) { o.Held = true }
	return map[string]row{
		"O16: an update is never looked at": {
			input(known(otherWork), func(in *Input) { in.Request.Operation = "UPDATE" }),
			Decision{Allowed: true, Reason: ReasonNotCreate, Message: "only creates are looked at"},
		},
		"N01: without a name there is nothing to collide with": {
			input(known(otherWork), func(in *Input) { in.Request.Name, in.Request.Unnamed = "", true }),
			Decision{Allowed: true, Reason: ReasonServerNamed, Message: "the API server names the object"},
		},
		"N06: a name that the API server made is left alone": {
			input(known(otherWork), func(in *Input) { in.Request.Unnamed, in.Request.HasGenerateName = true, true }),
			Decision{Allowed: true, Reason: ReasonServerNamed, Message: "the API server names the object"},
		},
		"a name that belay made is answered for": {
			input(known(), func(in *Input) { in.Request.Unnamed = true }),
			Decision{Answer: exists, Reason: ReasonSameWork, Cause: v1alpha1.CauseSameWork, UID: "job-uid"},
		},
		"a client that gives both a name and a generateName means the name": {
			input(known(), func(in *Input) { in.Request.HasGenerateName = true }),
			Decision{Answer: exists, Reason: ReasonSameWork, Cause: v1alpha1.CauseSameWork, UID: "job-uid"},
		},

		"nothing has the name: the Pods of the last one are asked for": {
			input(nothing), Decision{Wish: WishPods},
		},
		"nothing has the name, and no Pods run": {
			input(nothing, podless),
			Decision{Allowed: true, Reason: ReasonNameFree, Message: "nothing has the name"},
		},
		"nothing has the name of a Pod: there are no others to wait for": {
			input(nothing, func(in *Input) { in.Request.Group, in.Request.Kind = "", "Pod" }),
			Decision{Allowed: true, Reason: ReasonNameFree, Message: "nothing has the name"},
		},
		"nothing has the name, and the policy does not wait for Pods": {
			input(nothing, func(in *Input) { in.Policy.WaitForPods = false }),
			Decision{Allowed: true, Reason: ReasonNameFree, Message: "nothing has the name"},
		},
		"N10: nothing has the name, but its Pods run": {
			input(nothing, pods(PodsFact{State: fact.Known, Names: []string{"a-x", "a-y"}})),
			Decision{Answer: retry, RetryAfterSeconds: 1, Reason: ReasonPodsRunning, Cause: v1alpha1.CauseTerminating, Message: `pods of the last job "a" are still running ("a-x", "a-y"); nothing is deleted, try again`},
		},
		"N17: nothing has the name, but a Pod is stuck": {
			input(nothing, pods(PodsFact{State: fact.Known, Names: []string{"a-x"}, Terminating: true, Since: now.Add(-StuckAfter)})),
			Decision{
				Answer: retry, RetryAfterSeconds: 1, Reason: ReasonPodsRunning, Cause: v1alpha1.CauseTerminating, Message: `pods of the last job "a" are still being deleted ("a-x"); nothing is deleted, try again`,
				Stuck: &Stuck{APIVersion: "v1", Kind: "Pod", Name: "a-x"},
			},
		},
		"a Pod that has not been on its way out for long is nobody's business": {
			input(nothing, pods(PodsFact{State: fact.Known, Names: []string{"a-x"}, Terminating: true, Since: now.Add(time.Second - StuckAfter)})),
			Decision{Answer: retry, RetryAfterSeconds: 1, Reason: ReasonPodsRunning, Cause: v1alpha1.CauseTerminating},
		},
		"of many Pods three are named": {
			input(nothing, pods(PodsFact{State: fact.Known, Names: []string{"a", "b", "c", "d"}})),
			Decision{Answer: retry, RetryAfterSeconds: 1, Reason: ReasonPodsRunning, Cause: v1alpha1.CauseTerminating, Message: `pods of the last job "a" are still running ("a", "b", "c", …); nothing is deleted, try again`},
		},
		"of Pods that were not all read the rest is said to be there": {
			input(nothing, pods(PodsFact{State: fact.Known, Names: []string{"a"}, More: true})),
			Decision{Answer: retry, RetryAfterSeconds: 1, Reason: ReasonPodsRunning, Cause: v1alpha1.CauseTerminating, Message: `pods of the last job "a" are still running ("a", …); nothing is deleted, try again`},
		},
		"the Pods could not be listed": {
			input(nothing, pods(PodsFact{Cause: fact.CauseTimeout})),
			Decision{Answer: v1alpha1.AnswerServiceUnavailable, RetryAfterSeconds: 1, Reason: ReasonLookupFailed, Message: `could not find out whether Pods of job "a" still run (the API server did not answer in time); the create may be repeated`},
		},
		"the Pods could not be listed, ignoring": {
			input(nothing, ignoring, pods(PodsFact{Cause: fact.CauseForbidden})),
			Decision{
				Allowed: true, Reason: ReasonLookupFailed, Message: `could not find out whether Pods of job "a" still run (belay has no right to read it); the create may be repeated`,
				Warnings: []string{`admitted unchecked: could not find out whether Pods of job "a" still run (belay has no right to read it); the create may be repeated`},
			},
		},

		"one work at a time: the turn is asked for": {
			input(nothing, podless, serialize), Decision{Wish: WishTurn},
		},
		"one work at a time: the turn is this work's": {
			input(nothing, podless, serialize, turn(TurnFact{State: fact.Known})),
			Decision{Allowed: true, Reason: ReasonNameFree, Message: "nothing has the name"},
		},
		"one work at a time: the turn is another's": {
			input(nothing, podless, serialize, turn(TurnFact{State: fact.Absent, Work: thatWork})),
			Decision{Answer: retry, RetryAfterSeconds: 1, Reason: ReasonRace, Cause: v1alpha1.CauseTerminating, Message: `other work (zzzzzzzz…) is being created as job "a" at this moment; try again`},
		},
		"one work at a time: whose turn it is could not be found out": {
			input(nothing, podless, serialize, turn(TurnFact{Cause: fact.CauseServer})),
			Decision{Answer: v1alpha1.AnswerServiceUnavailable, RetryAfterSeconds: 1, Reason: ReasonLookupFailed, Message: `could not find out whether other work is taking the name of job "a" (the API server had an error); the create may be repeated`},
		},
		"one work at a time: a dry run takes no turn": {
			input(nothing, podless, serialize, preview),
			Decision{Allowed: true, Reason: ReasonNameFree, Message: "nothing has the name"},
		},

		"N21: what has the name could not be found out": {
			input(func(in *Input) { in.Facts.Existing.Cause = fact.CauseTimeout }),
			Decision{Answer: v1alpha1.AnswerServiceUnavailable, RetryAfterSeconds: 1, Reason: ReasonLookupFailed, Message: `could not find out whether job "a" exists (the API server did not answer in time); the create may be repeated`},
		},
		"what has the name could not be found out, ignoring": {
			input(ignoring, func(in *Input) { in.Facts.Existing.Cause = fact.CauseNoKind }),
			Decision{
				Allowed: true, Reason: ReasonLookupFailed, Message: `could not find out whether job "a" exists (no such kind); the create may be repeated`,
				Warnings: []string{`admitted unchecked: could not find out whether job "a" exists (no such kind); the create may be repeated`},
			},
		},

		"N08: running, same work": {
			input(known()),
			Decision{Answer: exists, Reason: ReasonSameWork, Cause: v1alpha1.CauseSameWork, UID: "job-uid", Message: `job "a" is running this work (work aaaaaaaa…, created 2026-03-01 11:00:00 UTC)`},
		},
		"running, the same work of an adopted object": {
			input(known(adopted)),
			Decision{Answer: exists, Reason: ReasonSameWork, Cause: v1alpha1.CauseSameWork, UID: "job-uid"},
		},
		"running, other work": {
			input(known(otherWork)),
			Decision{Answer: v1alpha1.AnswerConflict, Reason: ReasonOtherWork, Cause: v1alpha1.CauseOtherWork, UID: "job-uid", Message: `job "a" is running other work (work zzzzzzzz…, created 2026-03-01 11:00:00 UTC; this is work aaaaaaaa…); wait for it or use another name`},
		},
		"running, other work, for a client that takes every 409 for success": {
			input(known(otherWork), answer(func(a *v1alpha1.NameAnswers) { a.OtherWork = v1alpha1.AnswerInvalid })),
			Decision{Answer: v1alpha1.AnswerInvalid, Reason: ReasonOtherWork, Cause: v1alpha1.CauseOtherWork, UID: "job-uid"},
		},
		"running, other work, for a client that is to wait for it": {
			input(known(otherWork), answer(func(a *v1alpha1.NameAnswers) { a.OtherWork = retry })),
			Decision{Answer: retry, RetryAfterSeconds: 1, Reason: ReasonOtherWork, Cause: v1alpha1.CauseOtherWork, UID: "job-uid"},
		},
		"running, and whether it is finished could not be told": {
			input(known(otherWork, func(o *Object) { o.Phase.Problem = "spec.finished: no such key:\nphase" })),
			Decision{Answer: v1alpha1.AnswerConflict, Reason: ReasonOtherWork, Cause: v1alpha1.CauseOtherWork, UID: "job-uid", Message: `job "a" is running other work (work zzzzzzzz…, created 2026-03-01 11:00:00 UTC; this is work aaaaaaaa…); wait for it or use another name; whether it is finished could not be told: spec.finished: no such key: phase`},
		},
		"N07: running, foreign": {
			input(known(markless)),
			Decision{Answer: v1alpha1.AnswerConflict, Reason: ReasonForeign, Cause: v1alpha1.CauseOtherWork, UID: "job-uid", Message: `job "a" exists and is not work that belay knows: it carries no belay.dev/work (created 2026-03-01 11:00:00 UTC); use another name, or delete it`},
		},

		"finished a moment ago and succeeded, the same work: a retry": {
			input(known(succeeded, young), settle(30*time.Second)),
			Decision{Answer: exists, Reason: ReasonSettling, Cause: v1alpha1.CauseSameWork, UID: "job-uid", Message: `job "a" did this work and succeeded (Complete), 1s after it was created, which counts as running for 30s (work aaaaaaaa…, created 2026-03-01 11:59:59 UTC)`},
		},
		"the retry of what was adopted settles, too": {
			input(known(succeeded, young, adopted), settle(30*time.Second)),
			Decision{Answer: exists, Reason: ReasonSettling, Cause: v1alpha1.CauseSameWork, UID: "job-uid"},
		},
		"settled: as old as settle says is old enough": {
			input(known(succeeded, young), settle(time.Second), podless, mayDelete), Decision{Wish: WishReplace},
		},
		"N32: what failed does not settle": {
			input(known(failedJob, young), settle(30*time.Second), podless, mayDelete), Decision{Wish: WishReplace},
		},
		"other work does not settle": {
			input(known(succeeded, young, otherWork), settle(30*time.Second), podless, mayDelete), Decision{Wish: WishReplace},
		},
		"finished, same work, coalescing": {
			input(known(succeeded), whenFinished(v1alpha1.FinishedCoalesce)),
			Decision{Answer: exists, Reason: ReasonCoalesced, Cause: v1alpha1.CauseSameWork, UID: "job-uid", Message: `job "a" is this work, and finished (Complete) (work aaaaaaaa…, created 2026-03-01 11:00:00 UTC)`},
		},
		"finished, other work, coalescing": {
			input(known(failedJob, otherWork), whenFinished(v1alpha1.FinishedCoalesce)),
			Decision{Answer: v1alpha1.AnswerConflict, Reason: ReasonOtherWork, Cause: v1alpha1.CauseOtherWork, UID: "job-uid", Message: `job "a" has run other work (work zzzzzzzz…, created 2026-03-01 11:00:00 UTC; this is work aaaaaaaa…); use another name, or delete it`},
		},
		"finished, foreign, coalescing": {
			input(known(failedJob, markless), whenFinished(v1alpha1.FinishedCoalesce)),
			Decision{Answer: v1alpha1.AnswerConflict, Reason: ReasonForeign, Cause: v1alpha1.CauseOtherWork, UID: "job-uid"},
		},
		"finished, rejecting": {
			input(known(succeeded), whenFinished(v1alpha1.FinishedReject)),
			Decision{Answer: v1alpha1.AnswerConflict, Reason: ReasonFinished, Cause: v1alpha1.CauseFinished, UID: "job-uid", Message: `job "a" is finished (Complete), and policy "restore" rejects a second run; delete it, or use another name`},
		},
		"N30: finished, foreign": {
			input(known(failedJob, markless), podless, mayDelete),
			Decision{Answer: v1alpha1.AnswerConflict, Reason: ReasonForeign, Cause: v1alpha1.CauseOtherWork, UID: "job-uid", Message: `job "a" is finished (Failed), but carries no mark of belay, which therefore does not delete it; delete it, or use another name`},
		},
		"N30: finished, adopted: known to be the same work, and still not belay's to delete": {
			input(known(failedJob, adopted), podless, mayDelete),
			Decision{Answer: v1alpha1.AnswerConflict, Reason: ReasonForeign, Cause: v1alpha1.CauseOtherWork, UID: "job-uid"},
		},
		"finished and held": {
			input(known(failedJob, held), podless, mayDelete),
			Decision{Answer: v1alpha1.AnswerConflict, Reason: ReasonHeld, Cause: v1alpha1.CauseFinished, UID: "job-uid", Message: `job "a" is finished (Failed), but spec.hold of policy "restore" keeps it, since somebody still needs it`},
		},
		"finished, and whether it is held could not be told": {
			input(known(failedJob, func(o *Object) { o.HoldProblem = "spec.hold: no such key:\nx" }), podless, mayDelete),
			Decision{Answer: v1alpha1.AnswerConflict, Reason: ReasonHoldUnknown, Cause: v1alpha1.CauseFinished, UID: "job-uid", Message: `job "a" is finished (Failed), but whether it is held could not be told, so it is kept: policy "restore": spec.hold: no such key: x`},
		},
		"finished: its Pods are asked for": {
			input(known(failedJob), mayDelete), Decision{Wish: WishPods},
		},
		"N14: finished, but its Pods run": {
			input(known(failedJob), mayDelete, pods(PodsFact{State: fact.Known, Names: []string{"a-x"}})),
			Decision{Answer: retry, RetryAfterSeconds: 1, Reason: ReasonPodsRunning, Cause: v1alpha1.CauseTerminating, UID: "job-uid"},
		},
		"N14: finished with Pods that run, and nobody waits for them": {
			input(known(failedJob), mayDelete, func(in *Input) { in.Policy.WaitForPods = false }), Decision{Wish: WishReplace},
		},
		"finished, and its Pods could not be listed": {
			input(known(failedJob), mayDelete, pods(PodsFact{Cause: fact.CauseServer})),
			Decision{Answer: v1alpha1.AnswerServiceUnavailable, RetryAfterSeconds: 1, Reason: ReasonLookupFailed, UID: "job-uid"},
		},
		"finished: the requester's right is asked for": {
			input(known(failedJob), podless), Decision{Wish: WishRight},
		},
		"finished, and the requester may not delete it": {
			input(known(failedJob), podless, right(RightFact{State: fact.Absent})),
			Decision{Answer: v1alpha1.AnswerForbidden, Reason: ReasonDeleteForbidden, Cause: v1alpha1.CauseDeleteForbidden, UID: "job-uid", Message: `job "a" is finished (Failed) and would be replaced, but whoever creates must have the right to delete it; grant it, or delete the object`},
		},
		"finished, and whether the requester may delete it could not be found out": {
			input(known(failedJob), podless, right(RightFact{Cause: fact.CauseTimeout})),
			Decision{Answer: v1alpha1.AnswerServiceUnavailable, RetryAfterSeconds: 1, Reason: ReasonLookupFailed, UID: "job-uid", Message: `could not find out whether the requester may delete the finished job "a" (the API server did not answer in time); the create may be repeated`},
		},
		"finished: it is replaced": {
			input(replacing), Decision{Wish: WishReplace},
		},
		"N26: a dry run only says what would happen, and that waiting does not help": {
			input(replacing, preview),
			Decision{Answer: retry, Reason: ReasonWouldReplace, Cause: v1alpha1.CauseTerminating, UID: "job-uid", Message: `job "a" is finished (Failed): it would be deleted and replaced; in a dry run nothing is deleted`},
		},
		"too late to begin": {
			input(replacing, func(in *Input) { in.Facts.Left = MinReplace - 1 }),
			Decision{Answer: retry, RetryAfterSeconds: 1, Reason: ReasonNoTime, Cause: v1alpha1.CauseTerminating, UID: "job-uid", Message: `there is not enough time left to replace the finished job "a"; nothing is deleted, try again`},
		},
		"just in time to begin": {
			input(replacing, func(in *Input) { in.Facts.Left = MinReplace }), Decision{Wish: WishReplace},
		},
		"replaced, and the name is free": {
			input(nothing, podless, replaced),
			Decision{Allowed: true, Reason: ReasonReplaced, Message: `the finished job "a" was deleted`},
		},
		"replaced, but its Pods run still": {
			input(nothing, replaced, pods(PodsFact{State: fact.Known, Names: []string{"a-x"}, Terminating: true})),
			Decision{Answer: retry, RetryAfterSeconds: 1, Reason: ReasonPodsRunning, Cause: v1alpha1.CauseTerminating},
		},
		"replaced, but a finalizer holds the name": {
			input(replaced, known(failedJob, deletingSince(now), func(o *Object) { o.Finalizers = []string{"example.com/slow"} })),
			Decision{Answer: retry, RetryAfterSeconds: 1, Reason: ReasonReplacing, Cause: v1alpha1.CauseTerminating, UID: "job-uid", Message: `job "a" is being deleted since 2026-03-01 12:00:00 UTC, held by finalizer "example.com/slow"; try again`},
		},
		"N11: replaced, and another one runs other work by now": {
			input(replaced, known(otherWork, func(o *Object) { o.UID = "new-uid" })),
			Decision{Answer: v1alpha1.AnswerConflict, Reason: ReasonOtherWork, Cause: v1alpha1.CauseOtherWork, UID: "new-uid"},
		},
		"replaced once, and what is there is finished, too: not a second time": {
			input(replacing, replaced),
			Decision{Answer: retry, RetryAfterSeconds: 1, Reason: ReasonReplacing, Cause: v1alpha1.CauseTerminating, UID: "job-uid", Message: `the finished job "a" is being replaced; try again`},
		},
		"it could not be replaced, since belay may not": {
			input(replacing, func(in *Input) {
				in.Facts.Replaced, in.Facts.ReplacedCause = ReplacementFailed, fact.CauseForbidden
			}),
			Decision{Answer: v1alpha1.AnswerServiceUnavailable, RetryAfterSeconds: 1, Reason: ReasonReplaceFailed, UID: "job-uid", Message: `the finished job "a" could not be deleted, since belay may not; see the conditions of policy "restore"`},
		},
		"it could not be replaced, since belay may not, ignoring": {
			input(replacing, ignoring, func(in *Input) {
				in.Facts.Replaced, in.Facts.ReplacedCause = ReplacementFailed, fact.CauseForbidden
			}),
			Decision{Allowed: true, Reason: ReasonReplaceFailed, Warnings: []string{`admitted unchecked: the finished job "a" could not be deleted, since belay may not; see the conditions of policy "restore"`}},
		},
		"it could not be replaced for another reason: try again": {
			input(replacing, func(in *Input) {
				in.Facts.Replaced, in.Facts.ReplacedCause = ReplacementFailed, fact.CauseTimeout
			}),
			Decision{Answer: retry, RetryAfterSeconds: 1, Reason: ReasonReplacing, Cause: v1alpha1.CauseTerminating, UID: "job-uid"},
		},

		"N32: terminating, held by a finalizer": {
			input(known(deletingSince(now.Add(-time.Minute)), func(o *Object) { o.Finalizers = []string{"example.com/slow", "orphan"} })),
			Decision{Answer: retry, RetryAfterSeconds: 1, Reason: ReasonTerminating, Cause: v1alpha1.CauseTerminating, UID: "job-uid", Message: `job "a" is being deleted since 2026-03-01 11:59:00 UTC, held by finalizer "example.com/slow", "orphan"; try again`},
		},
		"terminating, within its grace period": {
			input(known(deletingSince(now), func(o *Object) { o.GraceSeconds = 30 })),
			Decision{Answer: retry, RetryAfterSeconds: 1, Reason: ReasonTerminating, Cause: v1alpha1.CauseTerminating, UID: "job-uid", Message: `job "a" is being deleted since 2026-03-01 12:00:00 UTC, it may take 30 s to end; try again`},
		},
		"terminating, and finished: nothing is deleted a second time": {
			input(known(failedJob, deletingSince(now)), podless, mayDelete),
			Decision{Answer: retry, RetryAfterSeconds: 1, Reason: ReasonTerminating, Cause: v1alpha1.CauseTerminating, UID: "job-uid", Message: `job "a" is being deleted since 2026-03-01 12:00:00 UTC, its deletion is under way; try again`},
		},
		"terminating for long, but within its grace period": {
			input(known(deletingSince(now.Add(-StuckAfter)), func(o *Object) { o.GraceSeconds = 3600 })),
			Decision{Answer: retry, RetryAfterSeconds: 1, Reason: ReasonTerminating, Cause: v1alpha1.CauseTerminating, UID: "job-uid"},
		},
		"N17: terminating for so long that somebody should know": {
			input(known(deletingSince(now.Add(-StuckAfter)))),
			Decision{Answer: retry, RetryAfterSeconds: 1, Reason: ReasonTerminating, Cause: v1alpha1.CauseTerminating, UID: "job-uid", Stuck: &Stuck{Name: "a", UID: "job-uid"}},
		},
		"terminating, for a client that does not wait": {
			input(known(deletingSince(now)), answer(func(a *v1alpha1.NameAnswers) { a.Terminating = v1alpha1.AnswerConflict })),
			Decision{Answer: v1alpha1.AnswerConflict, Reason: ReasonTerminating, Cause: v1alpha1.CauseTerminating, UID: "job-uid"},
		},

		"a name that is as the policy wants it": {
			input(nothing, podless, expected(Computed{Value: "a"})),
			Decision{Allowed: true, Reason: ReasonNameFree, Message: "nothing has the name"},
		},
		"N05: a name that is not as the policy wants it": {
			input(nothing, podless, expected(Computed{Value: "b"})),
			Decision{Answer: v1alpha1.AnswerInvalid, Reason: ReasonWrongName, Cause: v1alpha1.CauseWrongName, Message: `policy "restore": job "a" must have the name "b"; belay never renames, so create it under that name`},
		},
		"a name that the policy wants and that is none": {
			input(nothing, podless, expected(Computed{Value: "B"}), func(in *Input) { in.Rule = "a lowercase RFC 1123 subdomain must be lower case" }),
			Decision{Answer: v1alpha1.AnswerInvalid, Reason: ReasonInvalidName, Message: `policy "restore" wants the name "B" for job "a", which is no valid name: a lowercase RFC 1123 subdomain must be lower case; mend spec.verify or what it reads`},
		},
		"the name that the policy wants could not be told": {
			input(nothing, podless, expected(Computed{Problem: "spec.verify: no such key: x"})),
			Decision{Answer: v1alpha1.AnswerForbidden, Reason: ReasonExpressionFailed, Message: `policy "restore": job "a": its name could not be checked: spec.verify: no such key: x`},
		},
		"the name that the policy wants could not be told in time": {
			input(nothing, podless, expected(Computed{Problem: "spec.verify: context deadline exceeded", Transient: true})),
			Decision{Answer: v1alpha1.AnswerServiceUnavailable, RetryAfterSeconds: 1, Reason: ReasonExpressionFailed, Message: `policy "restore": job "a": its name could not be checked: spec.verify: context deadline exceeded`},
		},
		"another policy is about it as well": {
			input(known(failedJob), podless, mayDelete, func(in *Input) { in.Overlap = "other" }),
			Decision{Answer: v1alpha1.AnswerForbidden, Reason: ReasonOverlap, Message: `the policies "restore" and "other" are both about job "a"; give them selectors that exclude each other`},
		},
		"the work could not be told": {
			input(nothing, podless, ofWork(Computed{Problem: "spec.identity[0]: the expression costs more than the limit"})),
			Decision{Answer: v1alpha1.AnswerForbidden, Reason: ReasonExpressionFailed, Message: `policy "restore": job "a": its work could not be computed: spec.identity[0]: the expression costs more than the limit`},
		},
		"the work could not be told in time, ignoring": {
			input(nothing, podless, ignoring, ofWork(Computed{Problem: "spec.identity[0]: context deadline exceeded", Transient: true})),
			Decision{Allowed: true, Reason: ReasonExpressionFailed, Warnings: []string{`admitted unchecked: policy "restore": job "a": its work could not be computed: spec.identity[0]: context deadline exceeded`}},
		},
	}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	for name, c := range answers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := Decide(c.in)
			if got.Wish == WishNone {
				checkWording(t, got.Message)
			}
			if c.want.Message == "" {
				got.Message = ""
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestGiveUp: admission asks a bounded number of times.
func TestGiveUp(t *testing.T) {
	t.Parallel()
	got := GiveUp(input(known(failedJob)))
	want := Decision{Answer: v1alpha1.AnswerTooManyRequests, RetryAfterSeconds: 1, Reason: ReasonNoTime, Cause: v1alpha1.CauseTerminating, Message: `what has the name of job "a" keeps changing; nothing is deleted, try again`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestEveryReasonHasARow reads the closed list from its source.
func TestEveryReasonHasARow(t *testing.T) {
	t.Parallel()
	have := map[Reason]bool{}
	for _, c := range answers() {
		have[c.want.Reason] = true
	}
	for _, c := range mutations() {
		have[c.want.Reason] = true
	}
	for _, r := range reasons(t) {
		if !have[r] {
			t.Errorf("no row ends in %s", r)
		}
	}
}

func reasons(t *testing.T) []Reason {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []Reason
	ast.Inspect(f, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			s, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, Reason(s))
		}
		return true
	})
	if len(out) < 20 {
		t.Fatalf("only %d reasons were found", len(out))
	}
	return out
}
