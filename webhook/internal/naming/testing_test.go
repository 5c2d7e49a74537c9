package naming

import (
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
)

// The inputs of this package's tests: job "a" is created for the work of thisWork, in a
// namespace where nothing is known yet of what has that name.

const (
	thisWork = "aaaaaaaabbbbbbbbccccccccdddddddd"
	thatWork = "zzzzzzzzyyyyyyyyxxxxxxxxwwwwwwww"
)

var (
	now     = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	created = now.Add(-time.Hour)
)

// input is a create under the API's defaults, of a policy that replaces.
func input(changes ...func(*Input)) Input {
	in := Input{
		Request: Request{Operation: "CREATE", Group: "batch", Kind: "Job", Name: "a", Work: Computed{Value: thisWork}},
		Policy: Policy{
			Name: "restore", WhenFinished: v1alpha1.FinishedReplace, WaitForPods: true, FailurePolicy: v1alpha1.FailureFail,
			Answers: v1alpha1.NameAnswers{
				SameWork: v1alpha1.AnswerAlreadyExists, OtherWork: v1alpha1.AnswerConflict,
				Finished: v1alpha1.AnswerConflict, Terminating: v1alpha1.AnswerTooManyRequests,
			},
		},
		Facts: Facts{Now: now, Left: 3 * time.Second},
	}
	for _, change := range changes {
		change(&in)
	}
	return in
}

// known says what has the name: the Job of this work, running.
func known(changes ...func(*Object)) func(*Input) {
	o := Object{UID: "job-uid", ResourceVersion: "7", Created: created, Marked: true, Work: thisWork}
	for _, change := range changes {
		change(&o)
	}
	return func(in *Input) { in.Facts.Existing = ObjectFact{State: fact.Known, Object: o} }
}

func nothing(in *Input) { in.Facts.Existing.State = fact.Absent }

func otherWork(o *Object) { o.Work = thatWork }

// markless is an object that belay did not let in; adopted is one whose work was
// computed all the same.
func markless(o *Object) { o.Marked, o.Work = false, "" }
func adopted(o *Object)  { o.Marked = false }

func succeeded(o *Object) { o.Phase = Phase{Finished: true, Succeeded: true, Because: "Complete"} }
func failedJob(o *Object) { o.Phase = Phase{Finished: true, Because: "Failed"} }
func young(o *Object)     { o.Created = now.Add(-time.Second) }

func deletingSince(at time.Time) func(*Object) { return func(o *Object) { o.Deleting = at } }

func ignoring(in *Input) { in.Policy.FailurePolicy = v1alpha1.FailureIgnore }
func preview(in *Input)  { in.Request.Preview = true }
func podless(in *Input)  { in.Facts.Pods = PodsFact{State: fact.Absent} }
func mayDelete(in *Input) {
	in.Facts.Right.State = fact.Known
}

func whenFinished(a v1alpha1.FinishedAction) func(*Input) {
	return func(in *Input) { in.Policy.WhenFinished = a }
}

// replacing is everything that a replacement needs.
func replacing(in *Input) {
	known(failedJob)(in)
	podless(in)
	mayDelete(in)
}

// checkWording holds a message to the rules for messages: lower case, no final stop, one
// line, bounded, and text.
func checkWording(t *testing.T, message string) {
	t.Helper()
	first, _ := utf8.DecodeRuneInString(message)
	switch {
	case message == "":
		t.Error("there is no message")
	case unicode.IsUpper(first):
		t.Errorf("begins with a capital: %q", message)
	case strings.HasSuffix(message, "."):
		t.Errorf("ends in a full stop: %q", message)
	case strings.ContainsFunc(message, unicode.IsControl):
		t.Errorf("is more than one line: %q", message)
	case !utf8.ValidString(message):
		t.Errorf("is no text: %q", message)
	case len(message) > 4096:
		t.Errorf("has %d bytes: %.100q…", len(message), message)
	}
}
