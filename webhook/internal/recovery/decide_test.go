package recovery

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
)

// row is a write, from how it comes in to what is stored.
type row struct {
	in Input
	// pods are what is found when they are asked for.
	pods []Pod
	// mutating and validating are what either phase says of it. What the first denies does
	// not come to the second.
	mutating, validating string
	// asks are the wishes of the one phase, and after a bar those of the other.
	asks string
	// record is what is stored; nil where the write is denied, or for none.
	record []string
	// as is the record's field where no UID is in it.
	as Record
}

// table are the rows of the table in the design's section 6, by the names of their tests.
func table() map[string]map[string]row {
	return map[string]map[string]row{
		"any → Failed": toFailed(),
		"→ Failed with the terminal condition, or from a resume in flight": toTerminal(),
		"Failed → Failed":                               failedToFailed(),
		"Failed → lifecycle phase":                      failedToLifecycle(),
		"record present → recovered phase":              recordToRecovered(),
		"terminal failure → recovered phase":            terminalToRecovered(),
		"Failed with an empty record → recovered phase": noRecordToRecovered(),
		"recovered → recovered, record present":         recoveredToRecovered(),
		"anything that this table does not name":        unnamed(),
		"not guarded":                                   notGuarded(),
	}
}

func TestAnyToFailed(t *testing.T)                           { t.Parallel(); testRows(t, toFailed()) }
func TestToFailedTerminalOrWithAResumeInFlight(t *testing.T) { t.Parallel(); testRows(t, toTerminal()) }
func TestFailedToFailed(t *testing.T)                        { t.Parallel(); testRows(t, failedToFailed()) }
func TestFailedToLifecyclePhase(t *testing.T)                { t.Parallel(); testRows(t, failedToLifecycle()) }
func TestRecordPresentToRecovered(t *testing.T)              { t.Parallel(); testRows(t, recordToRecovered()) }
func TestTerminalFailureToRecovered(t *testing.T)            { t.Parallel(); testRows(t, terminalToRecovered()) }
func TestFailedWithAnEmptyRecordToRecovered(t *testing.T) {
	t.Parallel()
	testRows(t, noRecordToRecovered())
}
func TestRecoveredToRecovered(t *testing.T)    { t.Parallel(); testRows(t, recoveredToRecovered()) }
func TestWhatTheTableDoesNotName(t *testing.T) { t.Parallel(); testRows(t, unnamed()) }
func TestWhatIsNotGuarded(t *testing.T)        { t.Parallel(); testRows(t, notGuarded()) }

// failingPods are two, of which the first fails.
func failingPods() []Pod { return []Pod{one(looping), two()} }

// toFailed: the client's UIDs win; if it gave none, those of the Pods that fail now.
func toFailed() map[string]row {
	from := func(s Status, changes ...func(*Input)) Input { return write(s, status("Failed"), changes...) }
	return map[string]row{
		"the client's UIDs win, and nobody is asked": {
			in: write(status("Succeed"), status("Failed", u2, u1)), pods: failingPods(),
			mutating: "allow Recorded", validating: "allow Recorded", asks: "|", record: []string{u2, u1},
		},
		"S10: what the client gives twice is recorded once, in its order": {
			in:       write(status("Succeed"), status("Failed", u2, u1, u2)),
			mutating: "allow Recorded", validating: "allow Recorded", asks: "|", record: []string{u2, u1},
		},
		"S28: of too many some are left out, and the record says so": {
			in:       write(status("Succeed"), status("Failed", numbered(150)...)),
			mutating: "allow Recorded", validating: "allow Recorded", asks: "|", record: append(numbered(100), seal),
		},
		"S28: the schema may have less room": {
			in:       write(status("Succeed"), status("Failed", u1, u2, u3), capacity(2)),
			mutating: "allow Recorded", validating: "allow Recorded", asks: "|", record: []string{u1, seal},
		},
		"none are given: a Pod that waits for a reason on the list": {
			in: from(status("Succeed")), pods: failingPods(),
			mutating: "allow Recorded", validating: "allow Recorded", asks: "pods|", record: []string{u1},
		},
		"none are given: a Pod in phase Failed": {
			in: from(status("Pending")), pods: []Pod{one(), two(inPhase("Failed", "Evicted"))},
			mutating: "allow Recorded", validating: "allow Recorded", asks: "pods|", record: []string{u2},
		},
		"none are given: a main container that is not restarted": {
			in: from(status("Succeed")), pods: []Pod{one(never, main(ended(1)))},
			mutating: "allow Recorded", validating: "allow Recorded", asks: "pods|", record: []string{u1},
		},
		"none are given, and several fail": {
			in: from(status("Succeed")), pods: []Pod{two(inPhase("Failed", "")), one(looping)},
			mutating: "allow Recorded", validating: "allow Recorded", asks: "pods|", record: []string{u2, u1},
		},
		"none are given: a null is no UID": {
			in: write(status("Succeed"), status("Failed").null()), pods: failingPods(),
			mutating: "allow Recorded", validating: "allow Recorded", asks: "pods|", record: []string{u1},
		},
		"none are given: an empty list is no UID": {
			in: write(status("Succeed"), status("Failed").empty()), pods: failingPods(),
			mutating: "allow Recorded", validating: "allow Recorded", asks: "pods|", record: []string{u1},
		},
		"none are given, and more fail than there is room for": {
			in: from(status("Succeed"), capacity(2)), pods: []Pod{one(looping), two(looping), podNamed("box-2", u3, looping)},
			mutating: "allow Recorded", validating: "allow Recorded", asks: "pods|", record: []string{u1, seal},
		},
		"none are given and none fails: the API server itself is asked, and nothing is recorded": {
			in: from(status("Succeed")), pods: []Pod{one(), two()},
			mutating: "allow NothingToRecord", validating: "allow NothingToRecord", asks: "pods,live-pods|",
		},
		"none are given, and there are no pods": {
			in:       from(status("Succeed")),
			mutating: "allow NothingToRecord", validating: "allow NothingToRecord", asks: "pods,live-pods|",
		},
		"none are given, and none fails: a field that the schema wants is there": {
			in:       write(status("Succeed").empty(), status("Failed"), recordRequired),
			mutating: "allow NothingToRecord", validating: "allow NothingToRecord", asks: "pods,live-pods|", as: Record{Present: true},
		},
		"a pod that is being deleted does not fail": {
			in: from(status("Succeed")), pods: []Pod{one(looping, deletingPod), two(looping)},
			mutating: "allow Recorded", validating: "allow Recorded", asks: "pods|", record: []string{u2},
		},
		"the very first status": {
			in: write(Status{Absent: true}, status("Failed")), pods: failingPods(),
			mutating: "allow Recorded", validating: "allow Recorded", asks: "pods|", record: []string{u1},
		},
		"from no phase": {
			in: from(status("")), pods: failingPods(),
			mutating: "allow Recorded", validating: "allow Recorded", asks: "pods|", record: []string{u1},
		},
		"from an unknown phase": {
			in: from(status("Melting")), pods: failingPods(),
			mutating: "allow Recorded", validating: "allow Recorded", asks: "pods|", record: []string{u1},
		},
		"from a lifecycle phase without a record": {
			in: from(status("Paused")), pods: failingPods(),
			mutating: "allow Recorded", validating: "allow Recorded", asks: "pods|", record: []string{u1},
		},
		"from a lifecycle phase with a record: that stays, whatever the client says": {
			in:       write(status("Pausing", u1), status("Failed", u2)),
			mutating: "allow Recorded", validating: "allow Recorded", asks: "|", record: []string{u1, u2},
		},
		"from a lifecycle phase with a record that the write drops: it stays": {
			in: write(status("Pausing", u1), status("Failed")), pods: []Pod{one(), two()},
			mutating: "allow Recorded", validating: "allow Recorded", asks: "pods,live-pods|", record: []string{u1},
		},
		"from a lifecycle phase with a record that a merge shows again: what fails now comes to it": {
			in: write(status("Pausing", u1), status("Failed", u1)), pods: []Pod{one(), two(looping)},
			mutating: "allow Recorded", validating: "allow Recorded", asks: "pods|", record: []string{u1, u2},
		},
		"from a lifecycle phase without anything to prove it by: that stays so": {
			in: write(status("Pausing", seal), status("Failed", seal)), pods: []Pod{one(), two()},
			mutating: "allow Recorded", validating: "allow Recorded", asks: "|", record: []string{seal},
		},
		"from a lifecycle phase without anything to prove it by, and a pod fails: no evidence is enough": {
			in: write(status("Pausing", seal), status("Failed")), pods: failingPods(),
			mutating: "allow Recorded", validating: "allow Recorded", asks: "|", record: []string{seal},
		},
		"from a lifecycle phase with the mark: nobody is asked": {
			in:       write(status("Pausing", u1, seal), status("Failed", u1), unknownPods(PodsFact{Cause: fact.CauseTimeout})),
			mutating: "allow Recorded", validating: "allow Recorded", asks: "|", record: []string{u1, seal},
		},
		"from a lifecycle phase with the mark: what the client gives comes to it, behind what was there": {
			in:       write(status("Pausing", u2, seal), status("Failed", u1)),
			mutating: "allow Recorded", validating: "allow Recorded", asks: "|", record: []string{u2, u1, seal},
		},
		"from a lifecycle phase with a record: the client gives a part of what was carried, which is no news": {
			in: write(status("Paused", u1, u2), status("Failed", u2)), pods: []Pod{one(), two(), podNamed("box-2", u3, looping)},
			mutating: "allow Recorded", validating: "allow Recorded", asks: "pods|", record: []string{u1, u2, u3},
		},
		"from an unknown phase with a record: that stays": {
			in:       write(status("Melting", u1), status("Failed", u2)),
			mutating: "allow Recorded", validating: "allow Recorded", asks: "|", record: []string{u1, u2},
		},
		"from no phase with a record: that stays": {
			in:       write(status("", u1), status("Failed", u2)),
			mutating: "allow Recorded", validating: "allow Recorded", asks: "|", record: []string{u1, u2},
		},
		"S24: a recovered object's leftover is no news where a merge shows it again": {
			in: write(status("Succeed", u1), status("Failed", u1)), pods: []Pod{one(), two(looping)},
			mutating: "allow Recorded", validating: "allow Recorded", asks: "pods|", record: []string{u2},
		},
		"S24: nor where nothing fails": {
			in: write(status("Succeed", u1), status("Failed", u1)), pods: []Pod{one(), two()},
			mutating: "allow NothingToRecord", validating: "allow NothingToRecord", asks: "pods,live-pods|",
		},
		"a leftover with the mark may be what belay made of the write, so that it stays": {
			in: write(status("Succeed", u1, seal), status("Failed", u1, seal)), pods: []Pod{one(), two(looping)},
			mutating: "allow Recorded", validating: "allow Recorded", asks: "|", record: []string{u1, seal},
		},
		"what the client gives becomes what the leftover is": {
			in: write(status("Succeed", u1, seal), status("Failed", u1, u2, u3), capacity(2)), pods: []Pod{one(), two()},
			mutating: "allow Recorded", validating: "allow Recorded", asks: "|", record: []string{u1, seal},
		},
		"a leftover without the mark, in another order, is no news": {
			in: write(status("Succeed", u1, u2), status("Failed", u2, u1)), pods: []Pod{one(), two(looping)},
			mutating: "allow Recorded", validating: "allow Recorded", asks: "pods|", record: []string{u2},
		},
		"a recovered object's leftover does not stay beside what the client gives": {
			in:       write(status("Succeed", u1), status("Failed", u2)),
			mutating: "allow Recorded", validating: "allow Recorded", asks: "|", record: []string{u2},
		},
		"the pods cannot be found out: not now": {
			in:       from(status("Succeed"), unknownPods(PodsFact{Cause: fact.CauseTimeout})),
			mutating: "retry LookupFailed",
		},
		"the pods cannot be found out, ignoring: without a record": {
			in:       from(status("Succeed"), ignoring, unknownPods(PodsFact{Cause: fact.CauseServer})),
			mutating: "allow LookupFailed", validating: "allow NothingToRecord", asks: "|",
		},
		"the pods cannot be found out, ignoring: what was carried stays": {
			in:       write(status("Pausing", u1), status("Failed"), ignoring, unknownPods(PodsFact{Cause: fact.CauseServer})),
			mutating: "allow LookupFailed", validating: "allow Recorded", asks: "|", record: []string{u1},
		},
		"the pods cannot be found out, ignoring: a leftover does not become a record": {
			in:       write(status("Succeed", u1), status("Failed", u1), ignoring, unknownPods(PodsFact{Cause: fact.CauseServer})),
			mutating: "allow LookupFailed", validating: "allow NothingToRecord", asks: "|",
		},
		"the pods cannot be found out, but the client gives them": {
			in:       write(status("Succeed"), status("Failed", u1), unknownPods(PodsFact{Cause: fact.CauseTimeout})),
			mutating: "allow Recorded", validating: "allow Recorded", asks: "|", record: []string{u1},
		},
		"the object does not say which pods it has: without a record": {
			in:       from(status("Succeed"), unknownPods(PodsFact{Problem: "spec.pods[0].when: no such key"})),
			mutating: "allow ExpressionFailed", validating: "allow NothingToRecord", asks: "|",
		},
		"the object does not say which pods it has: what was carried stays": {
			in:       write(status("Melting", u1), status("Failed", u1), unknownPods(PodsFact{Problem: "spec.pods[0].when: no such key"})),
			mutating: "allow ExpressionFailed", validating: "allow Recorded", asks: "|", record: []string{u1},
		},
	}
}

// toTerminal: the record is cleared; it can never be read as transient later.
func toTerminal() map[string]row {
	return map[string]row{
		"with the condition: what the client gives is cleared": {
			in: write(status("Succeed"), status("Failed", u1).terminal()), pods: failingPods(),
			mutating: "allow Sealed", validating: "allow Sealed", asks: "|",
		},
		"with the condition, and nothing is given: nobody is asked": {
			in: write(status("Succeed"), status("Failed").terminal()), pods: failingPods(),
			mutating: "allow Sealed", validating: "allow Sealed", asks: "|",
		},
		"with the condition, on the way from another failure": {
			in:       write(status("Pausing", u1), status("Failed", u1).terminal()),
			mutating: "allow Sealed", validating: "allow Sealed", asks: "|",
		},
		"from a phase that replaces the pods": {
			in: write(status("Resuming"), status("Failed", u1)), pods: failingPods(),
			mutating: "allow Sealed", validating: "allow Sealed", asks: "|",
		},
		"from a phase that replaces the pods, with a leftover": {
			in: write(status("Resuming", u1), status("Failed", u1)), pods: failingPods(),
			mutating: "allow Sealed", validating: "allow Sealed", asks: "|",
		},
		"the phase does not say yet that the pods are being replaced": {
			in: write(status("Paused"), status("Failed", u1), resumeInFlight), pods: failingPods(),
			mutating: "allow Sealed", validating: "allow Sealed", asks: "|",
		},
		"whether the pods are being replaced cannot be told: it counts as true": {
			in: write(status("Paused"), status("Failed", u1), resumeUnclear), pods: failingPods(),
			mutating: "allow Sealed", validating: "allow Sealed", asks: "|",
		},
		"a field that the schema wants stays": {
			in:       write(status("Succeed").empty(), status("Failed").terminal(), recordRequired),
			mutating: "allow Sealed", validating: "allow Sealed", asks: "|", as: Record{Present: true},
		},
		"a field that the schema wants and the write has is left alone": {
			in:       write(status("Succeed").empty(), status("Failed").empty().terminal(), recordRequired),
			mutating: "allow Sealed", validating: "allow Sealed", asks: "|", as: Record{Present: true},
		},
		"a failed object becomes terminal": {
			in:       write(status("Failed", u1), status("Failed", u1).terminal()),
			mutating: "allow Sealed", validating: "allow Sealed", asks: "|",
		},
	}
}

// failedToFailed: what a write dropped is restored; union, never narrower.
func failedToFailed() map[string]row {
	hundred := numbered(100)
	return map[string]row{
		"S02, S03: a record that a write drops is restored": {
			in:       write(status("Failed", u1, u2), status("Failed")),
			mutating: "allow Kept", validating: "allow Kept", asks: "|", record: []string{u1, u2},
		},
		"S03: also one that a write empties": {
			in:       write(status("Failed", u1), status("Failed").empty()),
			mutating: "allow Kept", validating: "allow Kept", asks: "|", record: []string{u1},
		},
		"a client's null is no way to narrow it": {
			in:       write(status("Failed", u1), status("Failed").null()),
			mutating: "allow Kept", validating: "allow Kept", asks: "|", record: []string{u1},
		},
		"a write that says the same": {
			in:       write(status("Failed", u1), status("Failed", u1)),
			mutating: "allow Kept", validating: "allow Kept", asks: "|", record: []string{u1},
		},
		"S09: two writers' records become one": {
			in:       write(status("Failed", u1), status("Failed", u2)),
			mutating: "allow Kept", validating: "allow Kept", asks: "|", record: []string{u1, u2},
		},
		"S09: of three one is dropped and one is new": {
			in:       write(status("Failed", u1, u2), status("Failed", u3, u2)),
			mutating: "allow Kept", validating: "allow Kept", asks: "|", record: []string{u1, u2, u3},
		},
		"S10: the order stays, and nothing is there twice": {
			in:       write(status("Failed", u1, u2), status("Failed", u2, u1, u2)),
			mutating: "allow Kept", validating: "allow Kept", asks: "|", record: []string{u1, u2},
		},
		"S28: a hundred and one": {
			in:       write(status("Failed", hundred...), status("Failed", "more")),
			mutating: "allow Kept", validating: "allow Kept", asks: "|", record: append(slices.Clone(hundred), seal),
		},
		"S28: a hundred have room": {
			in:       write(status("Failed", hundred[:99]...), status("Failed", hundred[99])),
			mutating: "allow Kept", validating: "allow Kept", asks: "|", record: hundred,
		},
		"S28: the mark stays, although a write drops it": {
			in:       write(status("Failed", u1, seal), status("Failed", u1)),
			mutating: "allow Kept", validating: "allow Kept", asks: "|", record: []string{u1, seal},
		},
		"S28: the mark has the last place of the schema's": {
			in:       write(status("Failed", numbered(3)...), status("Failed", u1), capacity(3)),
			mutating: "allow Kept", validating: "allow Kept", asks: "|", record: append(numbered(2), seal),
		},
		"an empty record stays empty, whatever the client says": {
			in: write(status("Failed"), status("Failed", u1)), pods: failingPods(),
			mutating: "allow Sealed", validating: "allow Sealed", asks: "|",
		},
		"an empty record stays empty: no pods are looked for": {
			in: write(status("Failed"), status("Failed")), pods: failingPods(),
			mutating: "allow Sealed", validating: "allow Sealed", asks: "|",
		},
		"an empty record that is null stays as it is": {
			in:       write(status("Failed").null(), status("Failed").null()),
			mutating: "allow Sealed", validating: "allow Sealed", asks: "|", as: Record{Present: true, Null: true},
		},
		"S26: the condition of a terminal failure is taken off in a write of its own": {
			in: write(status("Failed").terminal(), status("Failed", u1)), pods: failingPods(),
			mutating: "allow Sealed", validating: "allow Sealed", asks: "|",
		},
		"S26: also where the record had not been cleared": {
			in:       write(status("Failed", u1).terminal(), status("Failed", u1)),
			mutating: "allow Sealed", validating: "allow Sealed", asks: "|",
		},
		"a failed object that does not say which pods it has needs none": {
			in:       write(status("Failed", u1), status("Failed"), unknownPods(PodsFact{Problem: "spec.pods[0].when: no such key"})),
			mutating: "allow Kept", validating: "allow Kept", asks: "|", record: []string{u1},
		},
		"a resume in flight is no failure from it: the record stays until the phase says so": {
			in:       write(status("Failed", u1), status("Failed"), resumeInFlight),
			mutating: "allow Kept", validating: "allow Kept", asks: "|", record: []string{u1},
		},
		"one failed phase to another": {
			in:       write(status("Failed", u1), status("Broken"), func(in *Input) { in.Policy.Failed = append(in.Policy.Failed, "Broken") }),
			mutating: "allow Kept", validating: "allow Kept", asks: "|", record: []string{u1},
		},
	}
}

// failedToLifecycle: admitted with the record; a phase that replaces the Pods clears it.
func failedToLifecycle() map[string]row {
	return map[string]row{
		"the record goes along": {
			in:       write(status("Failed", u1), status("Pausing", u1)),
			mutating: "allow Carried", validating: "allow Carried", asks: "|", record: []string{u1},
		},
		"a record that the write drops goes along": {
			in:       write(status("Failed", u1, u2), status("Pausing")),
			mutating: "allow Carried", validating: "allow Carried", asks: "|", record: []string{u1, u2},
		},
		"a record that the write widens is wider": {
			in:       write(status("Failed", u1), status("Pausing", u2)),
			mutating: "allow Carried", validating: "allow Carried", asks: "|", record: []string{u1, u2},
		},
		"from one lifecycle phase to the next": {
			in:       write(status("Pausing", u1), status("Paused")),
			mutating: "allow Carried", validating: "allow Carried", asks: "|", record: []string{u1},
		},
		"without a record, the mark says that it had failed": {
			in:       write(status("Failed"), status("Pausing")),
			mutating: "allow Carried", validating: "allow Carried", asks: "|", record: []string{seal},
		},
		"without a record, what the client says is none": {
			in:       write(status("Failed"), status("Pausing", u1)),
			mutating: "allow Carried", validating: "allow Carried", asks: "|", record: []string{seal},
		},
		"the mark goes along": {
			in:       write(status("Pausing", seal), status("Paused")),
			mutating: "allow Carried", validating: "allow Carried", asks: "|", record: []string{seal},
		},
		"from a terminal failure, the mark says that it had failed": {
			in:       write(status("Failed", u1).terminal(), status("Pausing", u1).terminal()),
			mutating: "allow Carried", validating: "allow Carried", asks: "|", record: []string{seal},
		},
		"from a terminal failure whose condition goes in the same write": {
			in:       write(status("Failed").terminal(), status("Pausing")),
			mutating: "allow Carried", validating: "allow Carried", asks: "|", record: []string{seal},
		},
		"S26: the condition comes in the same write": {
			in:       write(status("Failed", u1), status("Paused", u1).terminal()),
			mutating: "allow Carried", validating: "allow Carried", asks: "|", record: []string{seal},
		},
		"S26: the condition comes to a paused object: it may be tried again": {
			in:       write(status("Pausing", u1), status("Paused", u1).terminal()),
			mutating: "allow Carried", validating: "allow Carried", asks: "|", record: []string{u1},
		},
		"a phase that replaces the pods clears the record": {
			in:       write(status("Failed", u1), status("Resuming", u1)),
			mutating: "allow Cleared", validating: "allow Cleared", asks: "|",
		},
		"a phase that replaces the pods clears the mark": {
			in:       write(status("Paused", seal), status("Resuming", seal)),
			mutating: "allow Cleared", validating: "allow Cleared", asks: "|",
		},
		"a phase that replaces the pods, after a terminal failure": {
			in:       write(status("Failed").terminal(), status("Resuming")),
			mutating: "allow Untouched", validating: "allow Untouched", asks: "|",
		},
		"a record that a stale writer brings back into such a phase is cleared": {
			in:       write(status("Resuming"), status("Resuming", u1)),
			mutating: "allow Cleared", validating: "allow Untouched", asks: "|",
		},
		"a field that the schema wants is left empty": {
			in:       write(status("Failed", u1), status("Resuming"), recordRequired),
			mutating: "allow Cleared", validating: "allow Cleared", asks: "|", as: Record{Present: true},
		},
	}
}

// recordToRecovered: with evidence for every UID only; then the record is cleared.
func recordToRecovered() map[string]row {
	ready := []Pod{one(), two()}
	leave := func(in Input, pods []Pod, validating string) row {
		return row{in: in, pods: pods, mutating: "allow EvidencePending", validating: validating, asks: "|live-pods"}
	}
	noAsk := func(r row) row { r.asks = "|"; return r }
	return map[string]row{
		"S01: the same pods are ready again, and a merge keeps the record":    leave(write(status("Failed", u1), status("Succeed", u1)), ready, "allow Recovered"),
		"the same pods are ready again, and the client clears the record":     leave(write(status("Failed", u1, u2), status("Succeed").null()), ready, "allow Recovered").with(Record{Present: true, Null: true}),
		"the same pods are ready again, and a PUT has no record":              leave(write(status("Failed", u1), status("Succeed")), ready, "allow Recovered"),
		"the same pods are ready again: another recovered phase":              leave(write(status("Failed", u1), status("Pending")), ready, "allow Recovered"),
		"the same pods are ready again, after a pause":                        leave(write(status("Pausing", u1), status("Succeed", u1)), ready, "allow Recovered"),
		"the same pods are ready again, after a phase nobody knows":           leave(write(status("Melting", u1), status("Succeed", u1)), ready, "allow Recovered"),
		"the same pods are ready again, after no phase":                       leave(write(status("", u1), status("Succeed", u1)), ready, "allow Recovered"),
		"a paused object whose resumption failed once is not terminal":        leave(write(status("Paused", u1).terminal(), status("Succeed", u1).terminal()), ready, "allow Recovered"),
		"a field that the schema wants is left empty":                         leave(write(status("Failed", u1), status("Succeed"), recordRequired), ready, "allow Recovered").with(Record{Present: true}),
		"S13: the pod was replaced by one of the same name":                   leave(write(status("Failed", u1), status("Succeed")), []Pod{podNamed("box-0", u2)}, "deny PodReplaced"),
		"S08: all pods were replaced":                                         leave(write(status("Failed", u1, u2), status("Pending")), []Pod{podNamed("box-0", u3)}, "deny PodReplaced"),
		"the pod is gone":                                                     leave(write(status("Failed", u1), status("Succeed")), nil, "deny PodGone"),
		"S14: the pod is being deleted":                                       leave(write(status("Failed", u1), status("Succeed")), []Pod{one(deletingPod)}, "deny PodDeleting"),
		"one of two is not ready":                                             leave(write(status("Failed", u1, u2), status("Succeed")), []Pod{one(), two(unready)}, "deny PodNotReady"),
		"S25: another pod fails, which nobody has recorded":                   leave(write(status("Failed", u1), status("Succeed")), []Pod{one(), two(looping)}, "deny OtherPodFailing"),
		"after a pause the evidence is wanted all the same":                   leave(write(status("Paused", u1), status("Succeed")), []Pod{one(unready)}, "deny PodNotReady"),
		"after an unknown phase the evidence is wanted all the same":          leave(write(status("Melting", u1), status("Pending")), nil, "deny PodGone"),
		"an empty UID is no pod's":                                            leave(write(status("Failed", ""), status("Succeed")), ready, "deny PodReplaced"),
		"the annotation does not stand in for evidence that there could be":   leave(write(status("Failed", u1), status("Succeed"), annotated), nil, "deny PodGone"),
		"S32: the pods cannot be found out: not now":                          noAsk(leave(write(status("Failed", u1), status("Succeed"), unknownPods(PodsFact{Cause: fact.CauseTimeout})), nil, "retry LookupFailed")),
		"S32: nor for a policy that ignores":                                  noAsk(leave(write(status("Failed", u1), status("Succeed"), ignoring, unknownPods(PodsFact{Cause: fact.CauseForbidden})), nil, "retry LookupFailed")),
		"the object does not say which pods it has":                           noAsk(leave(write(status("Failed", u1), status("Succeed"), unknownPods(PodsFact{Problem: "spec.pods[0].when: no such key"})), nil, "deny ExpressionFailed")),
		"what a cache has is not enough: the API server is asked":             leave(write(status("Failed", u1), status("Succeed"), unknownPods(PodsFact{State: fact.Known, Pods: ready})), nil, "deny PodGone"),
		"what was known before is not enough when the API server cannot tell": noAsk(leave(write(status("Failed", u1), status("Succeed"), unknownPods(PodsFact{State: fact.Known, Pods: ready, Cause: fact.CauseTimeout})), nil, "retry LookupFailed")),
		"S28: more failed than the record has room for": {
			in: write(status("Failed", u1, seal), status("Succeed")), pods: ready, mutating: "deny Overflow",
		},
		"S28: also where the mark comes first": {
			in: write(status("Failed", seal, u1), status("Succeed")), pods: ready, mutating: "deny Overflow",
		},
		"S28: the annotation does not help": {
			in: write(status("Failed", u1, seal), status("Succeed"), annotated), pods: ready, mutating: "deny Overflow",
		},
		"S28: nor does a pause": {
			in: write(status("Paused", u1, seal), status("Succeed")), pods: ready, mutating: "deny Overflow",
		},
	}
}

func (r row) with(as Record) row {
	r.as = as
	return r
}

// terminalToRecovered: never, also when the condition goes in the same write.
func terminalToRecovered() map[string]row {
	ready := []Pod{one(), two()}
	return map[string]row{
		"a terminal failure":                              {in: write(status("Failed").terminal(), status("Succeed").terminal()), pods: ready, mutating: "deny Terminal"},
		"S26: the condition goes in the same write":       {in: write(status("Failed").terminal(), status("Succeed")), pods: ready, mutating: "deny Terminal"},
		"the condition comes in the same write":           {in: write(status("Failed", u1), status("Succeed").terminal()), pods: ready, mutating: "deny Terminal"},
		"S26: a record that had not been cleared":         {in: write(status("Failed", u1).terminal(), status("Succeed", u1)), pods: ready, mutating: "deny Terminal"},
		"to another recovered phase":                      {in: write(status("Failed").terminal(), status("Pending")), pods: ready, mutating: "deny Terminal"},
		"the annotation is about failures without record": {in: write(status("Failed").terminal(), status("Succeed"), annotated), pods: ready, mutating: "deny Terminal"},
	}
}

// noRecordToRecovered: no record, no recovery, but for the annotation.
func noRecordToRecovered() map[string]row {
	ready := []Pod{one(), two()}
	return map[string]row{
		"no record":                         {in: write(status("Failed"), status("Succeed")), pods: ready, mutating: "deny NoRecord"},
		"a null":                            {in: write(status("Failed").null(), status("Succeed").null()), pods: ready, mutating: "deny NoRecord"},
		"an empty list":                     {in: write(status("Failed").empty(), status("Pending").empty()), pods: ready, mutating: "deny NoRecord"},
		"a record that comes too late":      {in: write(status("Failed"), status("Succeed", u1)), pods: ready, mutating: "deny NoRecord"},
		"the mark alone":                    {in: write(status("Failed", seal), status("Succeed", seal)), pods: ready, mutating: "deny NoRecord"},
		"the mark alone, after a pause":     {in: write(status("Paused", seal), status("Succeed")), pods: ready, mutating: "deny NoRecord"},
		"the mark alone, after no phase":    {in: write(status("", seal), status("Succeed")), pods: ready, mutating: "deny NoRecord"},
		"S26: after the condition had gone": {in: write(status("Failed"), status("Succeed", u1)), pods: ready, mutating: "deny NoRecord"},
		"the pods cannot be found out": {
			in:       write(status("Failed"), status("Succeed"), unknownPods(PodsFact{Cause: fact.CauseTimeout})),
			mutating: "deny NoRecord",
		},
		"the annotation allows it": {
			in:       write(status("Failed"), status("Succeed"), annotated),
			mutating: "allow AllowedByAnnotation", validating: "allow AllowedByAnnotation", asks: "|",
		},
		"the annotation allows it, and a record that comes too late is cleared": {
			in:       write(status("Failed"), status("Succeed", u1), annotated),
			mutating: "allow AllowedByAnnotation", validating: "allow AllowedByAnnotation", asks: "|",
		},
		"the annotation allows it after a pause, and the mark is cleared": {
			in:       write(status("Paused", seal), status("Pending", seal), annotated),
			mutating: "allow AllowedByAnnotation", validating: "allow AllowedByAnnotation", asks: "|",
		},
	}
}

// recoveredToRecovered: a stale writer's leftover is cleared.
func recoveredToRecovered() map[string]row {
	return map[string]row{
		"a leftover that a merge shows again": {
			in:       write(status("Succeed", u1), status("Succeed", u1)),
			mutating: "allow Cleared", validating: "allow Cleared", asks: "|",
		},
		"a leftover that the client clears": {
			in:       write(status("Succeed", u1), status("Pending").null()),
			mutating: "allow Cleared", validating: "allow Cleared", asks: "|", as: Record{Present: true, Null: true},
		},
		"a record that a stale writer brings": {
			in:       write(status("Pending"), status("Succeed", u1)),
			mutating: "allow Cleared", validating: "allow Untouched", asks: "|",
		},
		"a record that a stale writer brings where the schema wants the field": {
			in:       write(status("Pending").empty(), status("Succeed", u1), recordRequired),
			mutating: "allow Cleared", validating: "allow Untouched", asks: "|", as: Record{Present: true},
		},
		"a leftover on the way to a lifecycle phase": {
			in:       write(status("Succeed", u1), status("Pausing", u1)),
			mutating: "allow Cleared", validating: "allow Cleared", asks: "|",
		},
		"a leftover on the way to a phase that replaces the pods": {
			in:       write(status("Succeed", u1), status("Resuming", u1)),
			mutating: "allow Cleared", validating: "allow Cleared", asks: "|",
		},
		"a leftover on the way to no phase": {
			in:       write(status("Succeed", u1), status("", u1)),
			mutating: "allow Cleared", validating: "allow Cleared", asks: "|",
		},
		"the pods were replaced: the way out needs no evidence": {
			in:       write(status("Resuming"), status("Succeed")),
			mutating: "allow Untouched", validating: "allow Untouched", asks: "|",
		},
		"the pods were replaced: a leftover is cleared": {
			in:       write(status("Resuming", u1), status("Succeed", u1)),
			mutating: "allow Cleared", validating: "allow Cleared", asks: "|",
		},
		"the pods were replaced: a leftover is cleared on the way to another phase": {
			in:       write(status("Resuming", u1), status("Paused", u1)),
			mutating: "allow Cleared", validating: "allow Cleared", asks: "|",
		},
	}
}

// unnamed: no way out; the record is carried.
func unnamed() map[string]row {
	return map[string]row{
		"a phase that is absent": {
			in:       write(status("Failed", u1), status("")),
			mutating: "allow Carried", validating: "allow Carried", asks: "|", record: []string{u1},
		},
		"a phase that nobody knows": {
			in:       write(status("Failed", u1), status("Melting", u1)),
			mutating: "allow Carried", validating: "allow Carried", asks: "|", record: []string{u1},
		},
		"a phase in other letters is another one": {
			in:       write(status("Failed", u1), status("succeed")),
			mutating: "allow Carried", validating: "allow Carried", asks: "|", record: []string{u1},
		},
		"an empty phase is no recovered one, whatever the policy says": {
			in:       write(status("Failed", u1), status(""), func(in *Input) { in.Policy.Recovered = append(in.Policy.Recovered, "") }),
			mutating: "allow Carried", validating: "allow Carried", asks: "|", record: []string{u1},
		},
		"from a phase that nobody knows to another": {
			in:       write(status("Melting", u1), status("Frozen").null()),
			mutating: "allow Carried", validating: "allow Carried", asks: "|", record: []string{u1},
		},
		"from a phase that nobody knows to a lifecycle phase": {
			in:       write(status("Melting", u1), status("Paused")),
			mutating: "allow Carried", validating: "allow Carried", asks: "|", record: []string{u1},
		},
		"from a phase that nobody knows to one that replaces the pods": {
			in:       write(status("Melting", u1), status("Resuming", u1)),
			mutating: "allow Cleared", validating: "allow Cleared", asks: "|",
		},
		"without a record, the mark says that it had failed": {
			in:       write(status("Failed"), status("")),
			mutating: "allow Carried", validating: "allow Carried", asks: "|", record: []string{seal},
		},
		"without a record, the mark is there already": {
			in:       write(status("Failed"), status("Melting", seal)),
			mutating: "allow Carried", validating: "allow Carried", asks: "|", record: []string{seal},
		},
		"after a terminal failure, the mark says that it had failed": {
			in:       write(status("Failed").terminal(), status("Melting")),
			mutating: "allow Carried", validating: "allow Carried", asks: "|", record: []string{seal},
		},
		"more than there is room for": {
			in:       write(status("Failed", u1, u2), status("Melting", u3), capacity(2)),
			mutating: "allow Carried", validating: "allow Carried", asks: "|", record: []string{u1, seal},
		},
		"the status of a failed object is removed": {
			in:       write(status("Failed", u1), Status{Absent: true}),
			mutating: "deny StatusRemoved",
		},
		"the status of a failed object without a record is removed": {
			in:       write(status("Failed"), Status{Absent: true}),
			mutating: "deny StatusRemoved",
		},
		"the status of an object on its way from a failure is removed": {
			in:       write(status("Paused", u1), Status{Absent: true}),
			mutating: "deny StatusRemoved",
		},
		"the status of an object without a phase but with a record is removed": {
			in:       write(status("", seal), Status{Absent: true}),
			mutating: "deny StatusRemoved",
		},
	}
}

// notGuarded: objects that are on their way out, or that have never failed.
func notGuarded() map[string]row {
	return map[string]row{
		"S29: a failed object that is being deleted recovers": {
			in:       write(status("Failed", u1), status("Succeed", u1), deletingObject),
			mutating: "allow ObjectDeleting", validating: "allow ObjectDeleting", asks: "|", record: []string{u1},
		},
		"S29: an object that is being deleted fails": {
			in:       write(status("Succeed"), status("Failed"), deletingObject),
			mutating: "allow ObjectDeleting", validating: "allow ObjectDeleting", asks: "|",
		},
		"S29: the status of a failed object that is being deleted is removed": {
			in:       write(status("Failed", u1), Status{Absent: true}, deletingObject),
			mutating: "allow ObjectDeleting", validating: "allow ObjectDeleting", asks: "|",
		},
		"S29: the status of one that is being deleted cannot be read": {
			in:       write(status("Failed", u1), Status{Problem: "no"}, deletingObject),
			mutating: "allow ObjectDeleting", validating: "allow ObjectDeleting", asks: "|",
		},
		"the first phase": {
			in:       write(Status{Absent: true}, status("Pending")),
			mutating: "allow Untouched", validating: "allow Untouched", asks: "|",
		},
		"an object that starts": {
			in:       write(status(""), status("Succeed")),
			mutating: "allow Untouched", validating: "allow Untouched", asks: "|",
		},
		"an object that falls back to pending": {
			in:       write(status("Succeed"), status("Pending")),
			mutating: "allow Untouched", validating: "allow Untouched", asks: "|",
		},
		"an object that pauses": {
			in:       write(status("Succeed"), status("Pausing")),
			mutating: "allow Untouched", validating: "allow Untouched", asks: "|",
		},
		"an object that pauses and runs on": {
			in:       write(status("Pausing"), status("Succeed")),
			mutating: "allow Untouched", validating: "allow Untouched", asks: "|",
		},
		"S26: a paused object whose resumption may be tried again": {
			in:       write(status("Paused").terminal(), status("Resuming").terminal()),
			mutating: "allow Untouched", validating: "allow Untouched", asks: "|",
		},
		"a phase that nobody knows": {
			in:       write(status("Succeed"), status("Melting")),
			mutating: "allow Untouched", validating: "allow Untouched", asks: "|",
		},
		"a status that is removed": {
			in:       write(status("Succeed"), Status{Absent: true}),
			mutating: "allow Untouched", validating: "allow Untouched", asks: "|",
		},
		"a status with a leftover that is removed": {
			in:       write(status("Succeed", u1), Status{Absent: true}),
			mutating: "allow Untouched", validating: "allow Untouched", asks: "|",
		},
		"a field that the schema wants is the client's business": {
			in:       write(status("Succeed"), status("Pending"), recordRequired),
			mutating: "allow Untouched", validating: "allow Untouched", asks: "|",
		},
	}
}

// testRows takes every row through both phases, as the API server would.
func testRows(t *testing.T, rows map[string]row) {
	t.Helper()
	for name, r := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, in, before := asked(t, r.in, r.pods)
			checkDecision(t, in, first)
			if got := outcome(first); got != r.mutating {
				t.Errorf("the mutating phase: %s, want %s: %s", got, r.mutating, first.Message)
			}
			if !first.Allowed {
				deniedInBoth(t, r, first)
				return
			}
			in.New, in.Pods = edited(in.Policy, in.New, first.Record), r.in.Pods
			twice, in, _ := asked(t, in, r.pods)
			if !twice.Allowed || !twice.Record.None() {
				t.Errorf("decided again, it is %s, with the edit %+v: %s", outcome(twice), twice.Record, twice.Message)
			}
			final := r.in
			final.Final, final.New = true, in.New
			then, final, after := asked(t, final, r.pods)
			checkDecision(t, final, then)
			if got := outcome(then); got != r.validating {
				t.Errorf("the validating phase: %s, want %s: %s", got, r.validating, then.Message)
			}
			if got := wishes(before) + "|" + wishes(after); got != r.asks {
				t.Errorf("it asks for %q, want %q", got, r.asks)
			}
			previewTells(t, r, first, then)
			if !then.Allowed {
				return
			}
			if diff := cmp.Diff(r.record, final.New.Record.UIDs); diff != "" {
				t.Errorf("the record (-want +got)\n%s", diff)
			}
			if r.record == nil {
				if diff := cmp.Diff(r.as, final.New.Record); diff != "" {
					t.Errorf("the field (-want +got)\n%s", diff)
				}
			}
		})
	}
}

// deniedInBoth: a write that the mutating phase denies would be denied by the validating
// one, too, if the first had not been asked; but for Pods that nobody asks about then.
func deniedInBoth(t *testing.T, r row, first Decision) {
	t.Helper()
	if r.validating != "" || r.asks != "" || r.record != nil {
		t.Error("a row that says what becomes of a write that is denied")
	}
	preview := r.in
	previewing(&preview)
	if d, _, _ := asked(t, preview, r.pods); outcome(d) != outcome(first) || d.Message != first.Message {
		t.Errorf("a preview says %s: %s", outcome(d), d.Message)
	}
	if first.Retry {
		return
	}
	final := r.in
	finally(&final)
	if d, _, _ := asked(t, final, r.pods); outcome(d) != outcome(first) {
		t.Errorf("the validating phase alone says %s: %s", outcome(d), d.Message)
	}
}

// previewTells: one decision tells what both phases together would do.
func previewTells(t *testing.T, r row, first, then Decision) {
	t.Helper()
	in := r.in
	previewing(&in)
	d, in, _ := asked(t, in, r.pods)
	checkDecision(t, in, d)
	if !then.Allowed {
		if outcome(d) != outcome(then) || d.Message != then.Message {
			t.Errorf("a preview says %s: %s", outcome(d), d.Message)
		}
		return
	}
	want, got := edited(in.Policy, in.New, first.Record), edited(in.Policy, in.New, d.Record)
	// Only the mutating phase adds a field that the schema wants, which is no news.
	want.Record.Present, got.Record.Present = false, false
	if diff := cmp.Diff(want, got); diff != "" || !d.Allowed {
		t.Errorf("a preview says %s (-want +got)\n%s", outcome(d), diff)
	}
	reason := first.Reason
	if reason == ReasonEvidencePending {
		reason = then.Reason
	}
	if d.Reason != reason {
		t.Errorf("a preview says %s, want %s", d.Reason, reason)
	}
}

func wishes(list []Wish) string {
	var out []string
	for _, w := range list {
		out = append(out, string(w))
	}
	return strings.Join(out, ",")
}

// TestTheValidatingPhaseWantsTheRecordAsBelayLeftIt: whatever changed it since, or belay was
// not asked then.
func TestTheValidatingPhaseWantsTheRecordAsBelayLeftIt(t *testing.T) {
	t.Parallel()
	ready := []Pod{one(), two()}
	for name, c := range map[string]struct {
		in   Input
		want string
	}{
		"a failed object's record was dropped":                            {write(status("Failed", u1), status("Failed")), "retry RecordChanged"},
		"a failed object's record is narrower":                            {write(status("Failed", u1, u2), status("Failed", u2)), "retry RecordChanged"},
		"a failed object's record is wider: that is a client's":           {write(status("Failed", u1), status("Failed", u1, u2)), "allow Kept"},
		"a failed object's record is in another order":                    {write(status("Failed", u1, u2), status("Failed", u2, u1)), "allow Kept"},
		"a failed object's record has no mark":                            {write(status("Failed", u1, u2), status("Failed", u1, u2, u3), capacity(2)), "retry RecordChanged"},
		"a failed object gets a record that it had not":                   {write(status("Failed"), status("Failed", u1)), "retry RecordChanged"},
		"a terminal failure gets a record":                                {write(status("Succeed"), status("Failed", u1).terminal()), "retry RecordChanged"},
		"a failure in a resume gets a record":                             {write(status("Paused"), status("Failed", u1), resumeInFlight), "retry RecordChanged"},
		"a failure in what may be a resume gets a record":                 {write(status("Paused"), status("Failed", u1), resumeUnclear), "retry RecordChanged"},
		"an object fails, and what it carried is gone":                    {write(status("Paused", u1), status("Failed")), "retry RecordChanged"},
		"an object fails, and only what came to it is there":              {write(status("Paused", u1), status("Failed", u2)), "retry RecordChanged"},
		"an object fails, and what it carried has no mark":                {write(status("Paused", u1, u2, u3), status("Failed"), capacity(2)), "retry RecordChanged"},
		"an object fails, and all that it carried is there, without room": {write(status("Paused", u1, u2, u3), status("Failed", u1, u2, u3), capacity(2)), "retry RecordChanged"},
		"an object fails with more than there is room for":                {write(status("Succeed"), status("Failed", numbered(150)...)), "retry RecordChanged"},
		"a record is dropped on the way to a pause":                       {write(status("Failed", u1), status("Paused")), "retry RecordChanged"},
		"the mark is missing on the way to a pause":                       {write(status("Failed"), status("Paused")), "retry RecordChanged"},
		"the mark has company on the way to a pause":                      {write(status("Failed"), status("Paused", u1, seal)), "allow Carried"},
		"a record is not cleared where the pods are replaced":             {write(status("Failed", u1), status("Resuming", u1)), "retry RecordChanged"},
		"a record comes along although the evidence holds":                {write(status("Failed", u1), status("Succeed", u1)), "retry RecordChanged"},
		"a record comes along that no evidence holds for":                 {write(status("Failed", u1), status("Succeed", u3)), "deny PodReplaced"},
		"an object fails, and its leftover is what was recorded":          {write(status("Succeed", u1), status("Failed", u1)), "allow Recorded"},
		"an object fails, and nothing was recorded":                       {write(status("Succeed"), status("Failed")), "allow NothingToRecord"},
		"a leftover of a recovered object is not cleared":                 {write(status("Succeed", u1), status("Succeed", u1)), "retry RecordChanged"},
		"the annotation allows it, and the mark is not cleared":           {write(status("Paused", seal), status("Succeed", seal), annotated), "retry RecordChanged"},
		"an object that has never failed recovers and brings a UID":       {write(status("Succeed"), status("Pending", u1)), "retry RecordChanged"},
		"an object that has never failed pauses and brings a UID":         {write(status("Succeed"), status("Paused", u1)), "allow Untouched"},
		"a field that the schema wants is the schema's business now":      {write(status("Failed", u1), status("Succeed"), recordRequired), "allow Recovered"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := c.in
			finally(&in)
			d, in, _ := asked(t, in, ready)
			checkDecision(t, in, d)
			if got := outcome(d); got != c.want {
				t.Errorf("%s, want %s: %s", got, c.want, d.Message)
			}
			if in.Object.Allowed && !d.Allowed && len(d.Warnings) > 0 {
				t.Errorf("denied, and warns of what does not happen: %q", d.Warnings)
			}
		})
	}
}

// TestWhatCannotBeReadIsNoWayOut: a status that has not the shape that the policy says is
// nothing that the table names, and a failed object must not lose its record by it.
func TestWhatCannotBeReadIsNoWayOut(t *testing.T) {
	t.Parallel()
	odd := func(phase string) Status {
		return Status{Phase: phase, Problem: ".status.conditions is an object, and should be a list of conditions"}
	}
	const (
		admits = "allow StatusUnreadable"
		denies = "deny StatusUnreadable"
	)
	for name, c := range map[string]struct {
		from, to Status
		// mutating may leave it to the schema, which refuses it in better words.
		mutating, validating string
		edit                 Edit
	}{
		"of a failed object":                             {status("Failed", u1), odd("Succeed"), admits, denies, Edit{}},
		"of a failed object that stays so":               {status("Failed", u1), odd("Failed"), admits, denies, Edit{}},
		"of a failed object that pauses":                 {status("Failed", u1), odd("Paused"), admits, denies, Edit{}},
		"of a failed object without a record":            {status("Failed"), odd("Succeed"), admits, denies, Edit{}},
		"of a terminal failure":                          {status("Failed").terminal(), odd(""), admits, denies, Edit{}},
		"of a paused object with a record":               {status("Paused", u1), odd(""), admits, denies, Edit{}},
		"of an object without a phase but with a record": {status("", seal), odd("Succeed"), admits, denies, Edit{}},
		"of an object that runs":                         {status("Succeed"), odd("Pending"), admits, admits, Edit{}},
		"of an object that runs, with a leftover":        {status("Succeed", u1), odd(""), admits, admits, Edit{}},
		"of an object that fails":                        {status("Succeed"), odd("Failed"), admits, admits, Edit{}},
		"of an object whose pods are replaced":           {status("Resuming"), odd("Succeed"), admits, admits, Edit{}},
		"of a new object":                                {Status{Absent: true}, odd(""), admits, admits, Edit{}},
		"both before and after":                          {odd("Pending"), odd("Succeed"), admits, admits, Edit{}},
		"before, of an object that runs":                 {odd("Succeed"), status("Failed"), admits, admits, Edit{}},
		"before, and not even a phase":                   {odd(""), status("Succeed"), admits, admits, Edit{}},

		// What cannot be read of a failed object proves nothing: as if there were no record.
		"before, of a failed object that recovers":               {odd("Failed"), status("Succeed"), "deny NoRecord", "deny NoRecord", Edit{}},
		"before, of a failed object that recovers with a record": {odd("Failed"), status("Succeed", u1), "deny NoRecord", "deny NoRecord", Edit{}},
		"before, of a failed object that stays so":               {odd("Failed"), status("Failed"), "allow Sealed", "allow Sealed", Edit{}},
		"before, of a failed object that gets a record":          {odd("Failed"), status("Failed", u1), "allow Sealed", "retry RecordChanged", Edit{Clear: true}},
		"before, of a failed object that pauses":                 {odd("Failed"), status("Paused"), "allow Carried", "retry RecordChanged", Edit{UIDs: []string{seal}}},
		"before, of a failed object whose pods are replaced":     {odd("Failed"), status("Resuming"), "allow Untouched", "allow Untouched", Edit{}},
		"before, of a failed object whose status is removed":     {odd("Failed"), Status{Absent: true}, "deny StatusRemoved", "deny StatusRemoved", Edit{}},
		"before and after, of a failed object":                   {odd("Failed"), odd("Succeed"), admits, denies, Edit{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, phase := range []func(*Input){func(*Input) {}, finally, previewing} {
				d, in, _ := asked(t, write(c.from, c.to, phase), []Pod{one(), two()})
				checkDecision(t, in, d)
				want, edit := c.mutating, c.edit
				// In a preview nothing has changed a record.
				if in.Final && (!in.Preview || c.validating != "retry RecordChanged") {
					want, edit = c.validating, Edit{}
				}
				if got := outcome(d); got != want {
					t.Errorf("%s, want %s: %s", got, want, d.Message)
				}
				if diff := cmp.Diff(edit, d.Record); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
				if d.Reason == ReasonUnreadable && d.Allowed && (len(d.Warnings) != 1 || !strings.Contains(d.Warnings[0], odd("").Problem)) {
					t.Errorf("nothing is told: %q", d.Warnings)
				}
			}
			if d := Decide(write(c.from, c.to, finally, annotated)); c.validating == "deny NoRecord" && c.to.Record.UIDs == nil && !d.Allowed {
				t.Errorf("the annotation does not help: %s", d.Message)
			}
		})
	}
}

// TestADecisionDependsOnItsInputAlone: the same input has the same decision, and is left as
// it was, also where its lists have room behind them.
func TestADecisionDependsOnItsInputAlone(t *testing.T) {
	t.Parallel()
	roomy := func(s Status) Status {
		s.Record.UIDs = append(make([]string, 0, 8), s.Record.UIDs...)
		return s
	}
	for group, rows := range table() {
		for name, r := range rows {
			in := r.in
			in.Old, in.New = roomy(in.Old), roomy(in.New)
			if in.Pods.State != fact.Known {
				in.Pods = PodsFact{State: fact.Known, Pods: r.pods, Live: true, Cause: in.Pods.Cause}
			}
			for _, phase := range []func(*Input){func(*Input) {}, finally, previewing} {
				phase(&in)
				spare := func() []string {
					return append(slices.Clone(in.Old.Record.UIDs[:cap(in.Old.Record.UIDs)]), in.New.Record.UIDs[:cap(in.New.Record.UIDs)]...)
				}
				before := spare()
				first := Decide(in)
				for range 3 {
					if diff := cmp.Diff(first, Decide(in)); diff != "" {
						t.Errorf("%s: %s\n%s", group, name, diff)
					}
				}
				if diff := cmp.Diff(before, spare()); diff != "" {
					t.Errorf("%s: %s: the input is changed\n%s", group, name, diff)
				}
			}
		}
	}
}

// TestEveryReasonHasARow reads the closed list from its source.
func TestEveryReasonHasARow(t *testing.T) {
	t.Parallel()
	have := map[Reason]bool{
		ReasonInternal:      true, // of whoever calls, when this package panics
		ReasonUnreadable:    true, // TestWhatCannotBeReadIsNoWayOut
		ReasonRecordChanged: true, // TestTheValidatingPhaseWantsTheRecordAsBelayLeftIt
	}
	for _, rows := range table() {
		for r := range maps.Values(rows) {
			for _, s := range []string{r.mutating, r.validating} {
				if _, reason, ok := strings.Cut(s, " "); ok {
					have[Reason(reason)] = true
				}
			}
		}
	}
	for _, c := range evidences() {
		for _, v := range c.policy().Evidence(c.record, c.pods, now) {
			have[v.Reason] = true
		}
	}
	for _, r := range reasons(t) {
		if !have[r] {
			t.Errorf("no row ends in %s", r)
		}
	}
}

// TestFinal: what no Pod can mend is told apart from what one can.
func TestFinal(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in   Input
		pods []Pod
		want bool
	}{
		"a pod that is not ready may become ready":         {write(status("Failed", u1), status("Succeed")), []Pod{one(unready)}, false},
		"a pod that is being deleted has not gone yet":     {write(status("Failed", u1), status("Succeed")), []Pod{one(deletingPod)}, false},
		"a pod that is gone does not come back":            {write(status("Failed", u1), status("Succeed")), nil, true},
		"a pod that was replaced does not come back":       {write(status("Failed", u1), status("Succeed")), []Pod{two()}, true},
		"one that is gone, behind one that is not ready":   {write(status("Failed", u1, u2), status("Succeed")), []Pod{one(unready)}, true},
		"another pod that fails may stop failing":          {write(status("Failed", u1), status("Succeed")), []Pod{one(), two(looping)}, false},
		"a terminal failure":                               {write(status("Failed").terminal(), status("Succeed")), nil, true},
		"a record that has overflown":                      {write(status("Failed", u1, seal), status("Succeed")), nil, true},
		"a failure without a record":                       {write(status("Failed"), status("Succeed")), nil, true},
		"pods that could not be found out":                 {write(status("Failed", u1), status("Succeed"), unknownPods(PodsFact{Cause: fact.CauseTimeout})), nil, false},
		"a record that was changed":                        {write(status("Failed", u1), status("Failed")), nil, false},
		"an object that does not say which pods it has":    {write(status("Failed", u1), status("Succeed"), unknownPods(PodsFact{Problem: "no"})), nil, false},
		"an object that recovers":                          {write(status("Failed", u1), status("Succeed")), []Pod{one()}, false},
		"an object that recovers as its annotation allows": {write(status("Failed"), status("Succeed"), annotated), nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := c.in
			finally(&in)
			if d, _, _ := asked(t, in, c.pods); d.Final() != c.want {
				t.Errorf("%t, want %t: %+v", d.Final(), c.want, d)
			}
		})
	}
}

// TestKindsOfPhases: what a phase means, by the lists of the policy.
func TestKindsOfPhases(t *testing.T) {
	t.Parallel()
	p := policy()
	p.Failed = append(p.Failed, "")
	for phase, want := range map[string]kind{
		"Failed": failed, "Succeed": recovered, "Pending": recovered, "Pausing": lifecycle, "Paused": lifecycle,
		"Resuming": replacing, "": other, "failed": other, "Melting": other, "FailedAgain": other,
	} {
		if got := p.kind(phase); got != want {
			t.Errorf("%q is %d, want %d", phase, got, want)
		}
		if got := p.IsFailed(phase); got != (want == failed) {
			t.Errorf("%q is failed: %t", phase, got)
		}
		if got := p.IsRecovered(phase); got != (want == recovered) {
			t.Errorf("%q is recovered: %t", phase, got)
		}
		for _, c := range []struct {
			in   Input
			want bool
		}{
			{write(status(phase), status("Pending")), false},
			{write(status("Pending"), status(phase)), want == failed},
			{write(status("Failed"), status(phase)), false},
		} {
			if got := c.in.Enters(); got != c.want {
				t.Errorf("%q to %q is the way into a failure: %t", c.in.Old.Phase, c.in.New.Phase, got)
			}
		}
	}
	if got := (Policy{}).kind("Failed"); got != other {
		t.Errorf("a policy of nothing: %d", got)
	}
	if d := Decide(Input{}); !d.Allowed || d.Reason != ReasonUntouched {
		t.Errorf("of nothing: %+v", d)
	}
}

// TestTheAnnotationIsForFailuresWithoutARecordAlone: whatever else there is to prove has to
// be proven, also by an annotated object.
func TestTheAnnotationIsForFailuresWithoutARecordAlone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		from Status
		want string
	}{
		"no record":        {status("Failed"), "allow AllowedByAnnotation"},
		"a record":         {status("Failed", u1), "deny PodGone"},
		"a full record":    {status("Failed", u1, seal), "deny Overflow"},
		"terminal":         {status("Failed").terminal(), "deny Terminal"},
		"a sealed pause":   {status("Paused", seal), "allow AllowedByAnnotation"},
		"a recorded pause": {status("Paused", u1), "deny PodGone"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, _, _ := asked(t, write(c.from, status("Succeed"), annotated, finally), nil)
			if got := outcome(d); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if d.Allowed && (len(d.Warnings) != 1 || !strings.Contains(d.Warnings[0], v1alpha1.AllowRecoveryAnnotation)) {
				t.Errorf("nothing is told: %q", d.Warnings)
			}
		})
	}
}
