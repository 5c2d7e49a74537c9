package recovery

import (
	"fmt"
	"slices"
	"strings"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/wording"
)

// Decide says what becomes of a write to the status of a guarded object.
func Decide(in Input) Decision {
	if in.Old.Problem != "" && in.Policy.IsFailed(in.Old.Phase) {
		// What cannot be read proves nothing: as if there were no record.
		in.Old = Status{Phase: in.Old.Phase}
	}
	switch {
	case in.Object.Deleting:
		// The last writes of a controller must never keep an object from going.
		return untouched(ReasonDeleting)
	case in.New.Problem != "" && in.Old.Problem == "" && in.inFailure() && in.Final:
		// The schema has let it through; what cannot be read is no way out.
		return in.deny(ReasonUnreadable, fmt.Sprintf("%s has failed (phase %s), and what it would become cannot be read: %s", in.subject(), quote(in.Old.Phase), clean(in.New.Problem)))
	case in.Old.Problem != "" || in.New.Problem != "":
		return unreadable(in)
	case in.New.Absent && in.inFailure():
		return in.deny(ReasonStatusRemoved, fmt.Sprintf("%s has failed (phase %s), and its status must not be removed; write the phase and the rest of it", in.subject(), quote(in.Old.Phase)))
	case in.New.Absent:
		return untouched(ReasonUntouched)
	}
	before, after := in.Policy.kind(in.Old.Phase), in.Policy.kind(in.New.Phase)
	switch {
	case after == failed && before == failed:
		return in.stay()
	case after == failed:
		return in.enter(before)
	case after == recovered && in.inFailure():
		return in.leave()
	case after == recovered, after == replacing:
		// A stale writer's leftover, or new Pods: those that are recorded are gone.
		return in.cleared(ReasonCleared)
	default:
		return in.carry(before)
	}
}

// inFailure: the stored object is failed, or on its way from a failure.
func (in Input) inFailure() bool {
	before := in.Policy.kind(in.Old.Phase)
	return before == failed || (len(in.Old.Record.UIDs) > 0 && before != recovered && before != replacing)
}

// enter is the way into a failed phase from any other.
func (in Input) enter(before kind) Decision {
	if in.New.Terminal || before == replacing || in.Object.ResumeInFlight || in.Object.ResumeProblem != "" {
		d := in.cleared(ReasonSealed)
		if in.Object.ResumeProblem != "" {
			d.Warnings = append(d.Warnings, fmt.Sprintf("%s: no telling whether its pods are being replaced, so nothing is recorded and it cannot recover by evidence: %s", in.subject(), clean(in.Object.ResumeProblem)))
		}
		return d
	}
	// What the object was carrying stays. A leftover of a recovered object is none of it, and
	// is no news either where the write only shows it again.
	var kept []string
	given := in.New.Record.UIDs
	switch carried := in.inFailure(); {
	case carried && slices.Contains(in.Old.Record.UIDs, v1alpha1.NoPodUID):
		// No evidence will ever be enough, whichever Pods fail now.
		return in.record(ReasonRecorded, union(in.Old.Record.UIDs, given))
	case carried:
		kept = in.Old.Record.UIDs
		if covers(kept, given) {
			given = nil
		}
	case same(given, in.Old.Record.UIDs) && !slices.Contains(given, v1alpha1.NoPodUID):
		given = nil
	}
	if len(given) > 0 {
		return in.record(ReasonRecorded, union(kept, given))
	}
	if in.Final && !in.Preview {
		// What was recorded, was recorded when the write came in.
		if len(kept) == 0 && len(in.New.Record.UIDs) == 0 {
			return untouched(ReasonNothingToRecord)
		}
		if covers(in.New.Record.UIDs, in.Policy.capped(kept)) {
			return untouched(ReasonRecorded)
		}
		return in.changed()
	}
	if in.Pods.State != fact.Known && in.Pods.Cause == fact.CauseNotAsked && in.Pods.Problem == "" {
		return Decision{Wish: WishPods}
	}
	if in.Pods.State != fact.Known {
		return in.unknown(kept)
	}
	var failing []string
	for _, pod := range in.Pods.Pods {
		if _, yes := in.Policy.Failing(pod); yes {
			failing = append(failing, string(pod.UID))
		}
	}
	if len(failing) == 0 && !in.Pods.Live {
		return Decision{Wish: WishLivePods} // a cache may lag behind the failure that the writer saw
	}
	d := in.record(ReasonRecorded, union(kept, failing))
	if len(failing) == 0 && len(kept) == 0 {
		d = in.cleared(ReasonNothingToRecord)
		d.Warnings = append(d.Warnings, fmt.Sprintf("%s fails, and none of its pods is failing: nothing is recorded, so that it cannot recover by evidence; list the UIDs of the pods that failed in the same write", in.subject()))
	}
	return d
}

// unknown is the way into a failed phase where the Pods could not be found out.
func (in Input) unknown(kept []string) Decision {
	if in.Pods.Problem != "" {
		d := in.record(ReasonExpressionFailed, kept)
		d.Warnings = append(d.Warnings, fmt.Sprintf("%s: its pods cannot be told, so that nothing is recorded: %s", in.subject(), clean(in.Pods.Problem)))
		return d
	}
	message := fmt.Sprintf("%s fails, and which of its pods could not be found out: %s", in.subject(), in.Pods.Cause.Words())
	if in.Policy.FailurePolicy == v1alpha1.FailureIgnore {
		d := in.record(ReasonLookupFailed, kept)
		d.Warnings = append(d.Warnings, message+"; nothing is recorded, so that it cannot recover by evidence")
		return d
	}
	return in.retry(ReasonLookupFailed, message+"; try again")
}

// stay is a write to a failed object that leaves it failed.
func (in Input) stay() Decision {
	if in.New.Terminal || in.Old.Terminal || len(in.Old.Record.UIDs) == 0 {
		// An empty record is the memory of a failure that nothing can be proven about: the
		// condition of a terminal one may be taken off in a write of its own.
		return in.cleared(ReasonSealed)
	}
	return in.record(ReasonKept, union(in.Old.Record.UIDs, in.New.Record.UIDs))
}

// leave is the way from a failure to a recovered phase: on evidence only.
func (in Input) leave() Decision {
	record := in.Old.Record.UIDs
	wasFailed := in.Policy.kind(in.Old.Phase) == failed
	to := fmt.Sprintf("%s cannot go from %s to %s", in.subject(), quote(in.Old.Phase), quote(in.New.Phase))
	switch {
	case wasFailed && (in.Old.Terminal || in.New.Terminal):
		return in.deny(ReasonTerminal, to+": its failure is terminal; resume it, or create it anew")
	case len(record) == 0 || sealed(record):
		if in.Object.Allowed {
			d := in.cleared(ReasonAllowed)
			if !d.Allowed {
				return d
			}
			d.Warnings = append(d.Warnings, fmt.Sprintf("%s recovers without evidence, as its annotation %s allows", in.subject(), v1alpha1.AllowRecoveryAnnotation))
			return d
		}
		return in.deny(ReasonNoRecord, to+fmt.Sprintf(": it failed without a record of its pods, so that nothing proves its recovery; annotate it with %s=true to let it recover once", v1alpha1.AllowRecoveryAnnotation))
	case overflown(record):
		return in.deny(ReasonOverflow, to+": more pods failed than its record has room for; create it anew")
	case !in.Final:
		return in.cleared(ReasonEvidencePending)
	}
	if !in.Pods.Live && in.Pods.Cause == fact.CauseNotAsked && in.Pods.Problem == "" {
		return Decision{Wish: WishLivePods}
	}
	switch {
	case in.Pods.Problem != "":
		return in.deny(ReasonExpressionFailed, to+": its pods cannot be told: "+clean(in.Pods.Problem))
	case in.Pods.State != fact.Known || !in.Pods.Live:
		return in.retry(ReasonLookupFailed, to+" yet: the state of its pods could not be found out: "+in.Pods.Cause.Words()+"; try again")
	}
	evidence := in.Policy.Evidence(union(record, in.New.Record.UIDs), in.Pods.Pods, in.Now)
	if no := refusals(evidence); len(no) > 0 {
		d := in.deny(no[0].Reason, to+": "+lines(no)+in.wayOut(no))
		d.Evidence = evidence
		return d
	}
	d := in.cleared(ReasonRecovered)
	d.Evidence = evidence
	return d
}

// wayOut says what is left to do where no evidence can come any more.
func (in Input) wayOut(no []Verdict) string {
	if !slices.ContainsFunc(no, func(v Verdict) bool { return v.Reason.final() }) {
		return ""
	}
	text := "; no evidence can come any more: create it anew"
	if len(in.Policy.ReplacesPods) > 0 {
		text = "; no evidence can come any more: resume it, or create it anew"
	}
	if in.Object.Allowed {
		text += fmt.Sprintf(" (annotation %s does not count, since UIDs are recorded)", v1alpha1.AllowRecoveryAnnotation)
	}
	return text
}

// maxLines bounds how many Pods a message names; the answer's causes name all.
const maxLines = 5

func lines(no []Verdict) string {
	var out []string
	for i, v := range no {
		if i == maxLines {
			out = append(out, fmt.Sprintf("and %d more", len(no)-i))
			break
		}
		out = append(out, v.String())
	}
	return strings.Join(out, "; ")
}

// carry is the way to a phase that is neither failed nor recovered: the record stays.
func (in Input) carry(before kind) Decision {
	switch {
	case !in.inFailure() && len(in.Old.Record.UIDs) > 0:
		return in.cleared(ReasonCleared) // a leftover: it would gate what comes later
	case !in.inFailure():
		return untouched(ReasonUntouched)
	}
	record := in.Old.Record.UIDs
	if before == failed && (len(record) == 0 || in.Old.Terminal || in.New.Terminal) {
		// Without a phase or a record that says so, nobody would know that it had failed.
		record = []string{v1alpha1.NoPodUID}
		if same(in.New.Record.UIDs, record) {
			return untouched(ReasonCarried)
		}
		return in.set(ReasonCarried, record)
	}
	return in.record(ReasonCarried, union(record, in.New.Record.UIDs))
}

// record sets the record, if it is not what the write has already.
func (in Input) record(r Reason, uids []string) Decision {
	uids = in.Policy.capped(uids)
	if slices.Equal(uids, in.New.Record.UIDs) {
		return in.allow(r, Edit{})
	}
	if len(uids) == 0 {
		return in.cleared(r)
	}
	return in.set(r, uids)
}

func (in Input) set(r Reason, uids []string) Decision {
	if in.Final && !in.Preview {
		if covers(in.New.Record.UIDs, uids) {
			return in.allow(r, Edit{}) // in another order
		}
		return in.changed()
	}
	return in.allow(r, Edit{UIDs: uids})
}

// cleared clears the record, if there is something to clear. A field that the schema wants
// is put there empty, or the API server would refuse the write.
func (in Input) cleared(r Reason) Decision {
	if len(in.New.Record.UIDs) == 0 {
		missing := in.Policy.Required && !in.New.Record.Present && in.Old.Record.Present && !in.Final
		return in.allow(r, Edit{Clear: missing})
	}
	if in.Final && !in.Preview {
		return in.changed()
	}
	return in.allow(r, Edit{Clear: true})
}

// changed denies a write whose record is not as belay left it. It is worth another try:
// belay may have been away when the write came in.
func (in Input) changed() Decision {
	return in.retry(ReasonRecordChanged, fmt.Sprintf("the record of %s is not what it must be: another webhook changed it, or belay did not see the write when it came in; try again", in.subject()))
}

func (in Input) allow(r Reason, e Edit) Decision {
	if r == ReasonCleared && e.None() && len(in.Old.Record.UIDs) == 0 {
		r = ReasonUntouched
	}
	return Decision{Allowed: true, Reason: r, Record: e, Message: in.did(r, e)}
}

// did says what was done, for the audit log and for namespaces in mode warn.
func (in Input) did(r Reason, e Edit) string {
	switch {
	case e.Clear && r == ReasonRecovered:
		return "clears the record of failed pods, since they are ready again"
	case e.Clear:
		return "clears the record of failed pods"
	case e.UIDs != nil:
		return wording.OneLine(wording.Clip("sets the record of failed pods to "+strings.Join(e.UIDs, ", "), 512))
	}
	return ""
}

func untouched(r Reason) Decision { return Decision{Allowed: true, Reason: r} }

func unreadable(in Input) Decision {
	problem := in.New.Problem
	if problem == "" {
		problem = in.Old.Problem
	}
	d := untouched(ReasonUnreadable)
	d.Warnings = []string{fmt.Sprintf("%s is not guarded, since its status cannot be read: %s", in.subject(), clean(problem))}
	return d
}

func (in Input) deny(r Reason, message string) Decision {
	return Decision{Reason: r, Message: message}
}

func (in Input) retry(r Reason, message string) Decision {
	return Decision{Reason: r, Message: message, Retry: true}
}

func (in Input) subject() string {
	return strings.ToLower(in.Object.Kind) + " " + quote(in.Object.Name)
}

// AsWarning is what a decision becomes where nothing is enforced: everything is admitted as
// it is, and what would have been done is told.
func (d Decision) AsWarning() Decision {
	if d.Wish != WishNone {
		return d
	}
	out := Decision{Allowed: true, Reason: d.Reason, Warnings: slices.Clone(d.Warnings), Evidence: d.Evidence, Message: d.Message}
	switch {
	case !d.Allowed:
		code := 403
		if d.Retry {
			code = 503
		}
		out.Message = fmt.Sprintf("mode warn: would be denied with %d: %s", code, d.Message)
		out.Warnings = append(out.Warnings, out.Message)
	case !d.Record.None():
		out.Message = "mode warn: enforce " + d.Message
		out.Warnings = append(out.Warnings, out.Message)
	}
	return out
}

// Lasting is the part of the message that cannot change any more.
func (d Decision) Lasting() string {
	var final []Verdict
	for _, v := range d.Evidence {
		if v.Reason.final() {
			final = append(final, v)
		}
	}
	if len(final) == 0 {
		return d.Message
	}
	return lines(final) + "; no evidence can come any more"
}

// Final reports whether no Pod can ever make the object recover from what was refused.
func (d Decision) Final() bool {
	for _, v := range d.Evidence {
		if v.Reason.final() {
			return true
		}
	}
	return d.Reason.final()
}

// Enters reports whether the write takes an object into a failed phase: only then does it
// matter whether its Pods are being replaced.
func (in Input) Enters() bool {
	return in.Policy.IsFailed(in.New.Phase) && !in.Policy.IsFailed(in.Old.Phase)
}
