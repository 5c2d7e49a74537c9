package naming

import (
	"fmt"
	"strings"
	"time"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/wording"
)

// Input is everything that the validating phase depends on.
type Input struct {
	Request Request
	Policy  Policy
	// Expected is the name that the policy wants; an empty value will take any. Rule is
	// the rule that it breaks as a name.
	Expected Computed
	Rule     string
	// Overlap is another policy in force that is about the object as well.
	Overlap string
	Facts   Facts
}

// Decide says what becomes of a create. It is asked again with more facts as long as
// it has a Wish.
//
// The stance of an Unknown fact: the create is denied with 503 and Retry-After, or
// admitted with a warning where the policy's failurePolicy is Ignore. Nothing is ever
// deleted on an Unknown.
func Decide(in Input) Decision {
	r := in.Request
	switch {
	case r.Operation != "CREATE":
		return allow(ReasonNotCreate, "only creates are looked at")
	case r.Name == "", r.Unnamed && r.HasGenerateName:
		// Named by the API server: nothing has that name, and if so it makes another.
		return allow(ReasonServerNamed, "the API server names the object")
	}
	if in.Overlap != "" {
		// The API server asks for both at once: one could delete what the other one holds,
		// and the mark is that of whichever came last.
		return stance(in.Policy, v1alpha1.AnswerForbidden, ReasonOverlap, fmt.Sprintf("the policies %q and %q are both about %s; give them selectors that exclude each other", in.Policy.Name, in.Overlap, r.describe()))
	}
	if d, stop := verify(in); stop {
		return d
	}
	if r.Work.Problem != "" {
		return failed(in.Policy, r, "its work could not be computed", r.Work)
	}
	d := answer(in)
	if d.Wish == WishNone && !d.Allowed && d.UID == "" && in.Facts.Existing.State == fact.Known {
		d.UID = in.Facts.Existing.Object.UID
	}
	return d
}

// verify checks the name against the one that the policy wants.
func verify(in Input) (Decision, bool) {
	r, want := in.Request, in.Expected
	switch {
	case want.Problem != "":
		return failed(in.Policy, r, "its name could not be checked", want), true
	case want.Value == "":
		return Decision{}, false
	case in.Rule != "":
		return deny(v1alpha1.AnswerInvalid, ReasonInvalidName, fmt.Sprintf("policy %q wants the name %q for %s, which is no valid name: %s; mend spec.verify or what it reads", in.Policy.Name, clip(want.Value), r.describe(), in.Rule)), true
	case want.Value == r.Name:
		return Decision{}, false
	}
	d := deny(v1alpha1.AnswerInvalid, ReasonWrongName, fmt.Sprintf("policy %q: %s must have the name %q; belay never renames, so create it under that name", in.Policy.Name, r.describe(), clip(want.Value)))
	d.Cause = v1alpha1.CauseWrongName
	return d, true
}

// answer goes by what has the name.
func answer(in Input) Decision {
	e := in.Facts.Existing
	switch {
	case e.State == fact.Unknown:
		return unresolved(in.Policy, ReasonLookupFailed, fmt.Sprintf("could not find out whether %s exists (%s); the create may be repeated", in.Request.describe(), e.Cause.Words()))
	case e.State == fact.Absent:
		return free(in)
	case !e.Object.Deleting.IsZero():
		return terminating(in)
	case e.Object.Phase.Finished:
		return finished(in)
	default:
		return running(in)
	}
}

// free answers where nothing has the name: let it in, unless stragglers of the last
// attempt still run, or other work is about to take the name.
func free(in Input) Decision {
	if d, stop := pods(in); stop {
		return d
	}
	if in.Policy.Serialize && !in.Request.Preview {
		switch t := in.Facts.Turn; {
		case t.State == fact.Unknown && t.Cause == fact.CauseNotAsked:
			return Decision{Wish: WishTurn}
		case t.State == fact.Unknown:
			return unresolved(in.Policy, ReasonLookupFailed, fmt.Sprintf("could not find out whether other work is taking the name of %s (%s); the create may be repeated", in.Request.describe(), t.Cause.Words()))
		case t.State == fact.Absent:
			d := wait(in, ReasonRace, fmt.Sprintf("other work (%s) is being created as %s at this moment; try again", short(t.Work), in.Request.describe()))
			d.Cause = v1alpha1.CauseTerminating
			return d
		}
	}
	if in.Facts.Replaced == ReplacementDone {
		return allow(ReasonReplaced, fmt.Sprintf("the finished %s was deleted", in.Request.describe()))
	}
	return allow(ReasonNameFree, "nothing has the name")
}

// pods asks for, and answers, Pods of a Job that still run.
func pods(in Input) (Decision, bool) {
	if !in.Policy.WaitForPods || !IsJob(in.Request.Group, in.Request.Kind) {
		return Decision{}, false
	}
	p := in.Facts.Pods
	switch {
	case p.State == fact.Absent:
		return Decision{}, false
	case p.State == fact.Unknown && p.Cause == fact.CauseNotAsked:
		return Decision{Wish: WishPods}, true
	case p.State == fact.Unknown:
		return unresolved(in.Policy, ReasonLookupFailed, fmt.Sprintf("could not find out whether Pods of %s still run (%s); the create may be repeated", in.Request.describe(), p.Cause.Words())), true
	}
	state := "are still running"
	if p.Terminating {
		state = "are still being deleted"
	}
	d := wait(in, ReasonPodsRunning, fmt.Sprintf("pods of the last %s %s (%s); nothing is deleted, try again", in.Request.describe(), state, list(p.Names, p.More)))
	if in.stuck(p.Since) && len(p.Names) > 0 {
		d.Stuck = &Stuck{APIVersion: "v1", Kind: "Pod", Name: p.Names[0]}
	}
	return d, true
}

// stuck reports whether something has been on its way out for too long.
func (in Input) stuck(since time.Time) bool {
	return !since.IsZero() && in.Facts.Now.Sub(since) >= StuckAfter
}

// terminating answers for an object that is on its way out. It is never deleted a
// second time: that could change its finalizers.
func terminating(in Input) Decision {
	o := in.Facts.Existing.Object
	holds := "its deletion is under way"
	switch {
	case len(o.Finalizers) > 0:
		holds = "held by finalizer " + list(o.Finalizers, false)
	case o.GraceSeconds > 0:
		holds = fmt.Sprintf("it may take %d s to end", o.GraceSeconds)
	}
	reason := ReasonTerminating
	if in.Facts.Replaced == ReplacementDone {
		reason = ReasonReplacing
	}
	d := wait(in, reason, fmt.Sprintf("%s is being deleted since %s, %s; try again", in.Request.describe(), clock(o.Deleting), holds))
	if in.stuck(o.Deleting.Add(time.Duration(o.GraceSeconds) * time.Second)) {
		d.Stuck = &Stuck{Name: in.Request.Name, UID: o.UID}
	}
	return d
}

// finished answers for an object whose work is done.
func finished(in Input) Decision {
	o, p := in.Facts.Existing.Object, in.Policy
	same := in.same()
	age := in.Facts.Now.Sub(o.Created)
	if same && o.Phase.Succeeded && p.Settle > 0 && age < p.Settle {
		return in.sameWork(ReasonSettling, fmt.Sprintf("did this work and succeeded (%s), %s after it was created, which counts as running for %s", o.Phase.Because, age.Round(time.Second), p.Settle))
	}
	switch {
	case p.WhenFinished == v1alpha1.FinishedCoalesce && same:
		return in.sameWork(ReasonCoalesced, fmt.Sprintf("is this work, and finished (%s)", o.Phase.Because))
	case p.WhenFinished == v1alpha1.FinishedCoalesce:
		return in.otherWork()
	case !o.Marked:
		d := in.denied(p.Answers.OtherWork, ReasonForeign, v1alpha1.CauseOtherWork, fmt.Sprintf("is finished (%s), but carries no mark of belay, which therefore does not delete it; delete it, or use another name", o.Phase.Because))
		return d
	case p.WhenFinished == v1alpha1.FinishedReplace:
		return replace(in)
	default:
		return in.denied(p.Answers.Finished, ReasonFinished, v1alpha1.CauseFinished, fmt.Sprintf("is finished (%s), and policy %q rejects a second run; delete it, or use another name", o.Phase.Because, p.Name))
	}
}

// replace answers for a finished object that the policy has replaced. Each condition
// stands before what it guards: nothing is deleted that is held, whose Pods run, that
// the requester could not delete, on a dry run, a second time, or too late.
func replace(in Input) Decision {
	o, p, f := in.Facts.Existing.Object, in.Policy, in.Facts
	switch {
	case o.HoldProblem != "":
		return in.denied(p.Answers.Finished, ReasonHoldUnknown, v1alpha1.CauseFinished, fmt.Sprintf("is finished (%s), but whether it is held could not be told, so it is kept: policy %q: %s", o.Phase.Because, p.Name, wording.OneLine(clip(o.HoldProblem))))
	case o.Held:
		return in.denied(p.Answers.Finished, ReasonHeld, v1alpha1.CauseFinished, fmt.Sprintf("is finished (%s), but spec.hold of policy %q keeps it, since somebody still needs it", o.Phase.Because, p.Name))
	}
	if d, stop := pods(in); stop {
		return d
	}
	switch {
	case f.Right.State == fact.Unknown && f.Right.Cause == fact.CauseNotAsked:
		return Decision{Wish: WishRight}
	case f.Right.State == fact.Unknown:
		return unresolved(p, ReasonLookupFailed, fmt.Sprintf("could not find out whether the requester may delete the finished %s (%s); the create may be repeated", in.Request.describe(), f.Right.Cause.Words()))
	case f.Right.State == fact.Absent:
		return in.denied(v1alpha1.AnswerForbidden, ReasonDeleteForbidden, v1alpha1.CauseDeleteForbidden, fmt.Sprintf("is finished (%s) and would be replaced, but whoever creates must have the right to delete it; grant it, or delete the object", o.Phase.Because))
	case in.Request.Preview:
		// Without Retry-After: nothing changes by waiting.
		d := in.denied(v1alpha1.AnswerTooManyRequests, ReasonWouldReplace, v1alpha1.CauseTerminating, fmt.Sprintf("is finished (%s): it would be deleted and replaced; in a dry run nothing is deleted", o.Phase.Because))
		d.RetryAfterSeconds = 0
		return d
	case f.Replaced == ReplacementFailed && f.ReplacedCause == fact.CauseForbidden:
		return unresolved(p, ReasonReplaceFailed, fmt.Sprintf("the finished %s could not be deleted, since belay may not; see the conditions of policy %q", in.Request.describe(), p.Name))
	case f.Replaced != ReplacementNone:
		return wait(in, ReasonReplacing, fmt.Sprintf("the finished %s is being replaced; try again", in.Request.describe()))
	case f.Left < MinReplace:
		return wait(in, ReasonNoTime, fmt.Sprintf("there is not enough time left to replace the finished %s; nothing is deleted, try again", in.Request.describe()))
	}
	return Decision{Wish: WishReplace}
}

// running answers for an object whose work is under way, or has not begun.
func running(in Input) Decision {
	if in.same() {
		return in.sameWork(ReasonSameWork, "is running this work")
	}
	return in.otherWork()
}

func (in Input) same() bool {
	o := in.Facts.Existing.Object
	return o.Work != "" && o.Work == in.Request.Work.Value
}

func (in Input) sameWork(reason Reason, state string) Decision {
	return in.denied(in.Policy.Answers.SameWork, reason, v1alpha1.CauseSameWork, fmt.Sprintf("%s (work %s, created %s)", state, short(in.Request.Work.Value), clock(in.Facts.Existing.Object.Created)))
}

func (in Input) otherWork() Decision {
	o := in.Facts.Existing.Object
	if o.Work == "" {
		return in.denied(in.Policy.Answers.OtherWork, ReasonForeign, v1alpha1.CauseOtherWork, fmt.Sprintf("exists and is not work that belay knows: it carries no %s (created %s); use another name, or delete it", v1alpha1.WorkAnnotation, clock(o.Created)))
	}
	state, do := "is running", "wait for it or use another name"
	if o.Phase.Finished {
		state, do = "has run", "use another name, or delete it"
	}
	d := in.denied(in.Policy.Answers.OtherWork, ReasonOtherWork, v1alpha1.CauseOtherWork, fmt.Sprintf("%s other work (work %s, created %s; this is work %s); %s", state, short(o.Work), clock(o.Created), short(in.Request.Work.Value), do))
	if o.Phase.Problem != "" {
		d.Message += "; whether it is finished could not be told: " + wording.OneLine(clip(o.Phase.Problem))
	}
	return d
}

// denied is a denial about the object that has the name.
func (in Input) denied(a v1alpha1.Answer, reason Reason, cause, state string) Decision {
	d := deny(a, reason, in.Request.describe()+" "+state)
	d.Cause, d.UID = cause, in.Facts.Existing.Object.UID
	return d
}

// wait denies for something that passes.
func wait(in Input, reason Reason, message string) Decision {
	d := deny(in.Policy.Answers.Terminating, reason, message)
	d.Cause = v1alpha1.CauseTerminating
	return d
}

// GiveUp answers where what has the name changed as often as it was looked at.
func GiveUp(in Input) Decision {
	return wait(in, ReasonNoTime, fmt.Sprintf("what has the name of %s keeps changing; nothing is deleted, try again", in.Request.describe()))
}

// unresolved is the one place where the policy's stance on what could not be found
// out is applied.
func unresolved(p Policy, reason Reason, why string) Decision {
	return stance(p, v1alpha1.AnswerServiceUnavailable, reason, why)
}

// stance denies, or admits with a warning, as the policy says.
func stance(p Policy, answer v1alpha1.Answer, reason Reason, why string) Decision {
	if p.FailurePolicy == v1alpha1.FailureIgnore {
		d := allow(reason, why)
		d.Warnings = []string{"admitted unchecked: " + why}
		return d
	}
	return deny(answer, reason, why)
}

func allow(reason Reason, message string) Decision {
	return Decision{Allowed: true, Reason: reason, Message: message}
}

func deny(a v1alpha1.Answer, reason Reason, message string) Decision {
	d := Decision{Answer: a, Reason: reason, Message: message}
	if a == v1alpha1.AnswerTooManyRequests || a == v1alpha1.AnswerServiceUnavailable {
		d.RetryAfterSeconds = 1 // the shortest that the API can say
	}
	return d
}

// AsWarning is what warn mode makes of a decision: the object is admitted unchanged,
// and the warning says what enforce would have done.
func (d Decision) AsWarning() Decision {
	w := Decision{Allowed: true, Reason: d.Reason, Message: d.Message, Warnings: d.Warnings}
	switch {
	case !d.Allowed:
		w.Message = fmt.Sprintf("mode warn: would be denied with %s: %s", d.Answer, d.Message)
		if d.Reason == ReasonWouldReplace {
			w.Message = "mode warn: " + d.Message
		}
		w.Warnings = append(w.Warnings[:len(w.Warnings):len(w.Warnings)], w.Message)
	case d.SetName != "":
		w.Message = "mode warn: would be named: " + d.Message
		w.Warnings = append(w.Warnings[:len(w.Warnings):len(w.Warnings)], w.Message)
	}
	return w
}

// describe names the object in messages: job "restore-a", or a new job.
func (r Request) describe() string {
	if r.Name == "" {
		return "a new " + r.kind()
	}
	// Cut, since nobody has checked the name of an object in the mutating phase.
	return fmt.Sprintf("%s %q", r.kind(), clip(r.Name))
}

func (r Request) kind() string {
	if r.Kind == "" {
		return "object"
	}
	return strings.ToLower(r.Kind)
}

// short is the beginning of a digest, for people. Whoever may change the object that has
// the name may have written anything there.
func short(work string) string { return wording.OneLine(wording.Clip(work, 8)) }

// clock is a time as messages have it.
func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// list names some things.
func list(names []string, more bool) string {
	var out []string
	for i, n := range names {
		if i == MaxPods {
			more = true
			break
		}
		out = append(out, fmt.Sprintf("%q", clip(n)))
	}
	if more {
		out = append(out, "…")
	}
	return strings.Join(out, ", ")
}

// maxWhy bounds what somebody else's text adds to a message.
const maxWhy = 512

func clip(s string) string { return wording.Clip(s, maxWhy) }
