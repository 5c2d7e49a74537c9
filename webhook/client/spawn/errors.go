package spawn

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

var (
	// ErrOtherWork says that the name is taken by an object of another work. The
	// error that wraps it is a *WorkError.
	ErrOtherWork = errors.New("the object that is there is of other work")
	// ErrUnknownWork says that the name is taken and that nobody can tell by what:
	// the object may not be read, and belay said nothing. The error that wraps it is
	// a *WorkError.
	ErrUnknownWork = errors.New("the object that is there cannot be read")
	// ErrBudgetSpent says that the last error is one that a retry might have
	// overcome, had there been time.
	ErrBudgetSpent = errors.New("the budget is spent")
)

// Error is a step that failed, and the spawn with it.
type Error struct {
	// Step is the name of the step.
	Step string
	// Tries is how many API calls the step took, those that look up an object that
	// is in the way among them.
	Tries int
	// Ambiguous: a try had no answer, or one that does not say what became of it, so
	// the step may have been carried out although it failed. Whoever cleans up must
	// reckon with the object, now or in a moment.
	Ambiguous bool
	// Err is why: what the API server said last, with ErrBudgetSpent or the
	// context's error where there was no time for more, or a *WorkError.
	Err error
}

// Error tells all of it in one line.
func (e *Error) Error() string {
	tries := "1 try"
	if e.Tries != 1 {
		tries = fmt.Sprintf("%d tries", e.Tries)
	}
	if e.Ambiguous {
		tries += ", may have been carried out"
	}
	return fmt.Sprintf("%s (%s): %v", e.Step, tries, e.Err)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Warning is what did not work and is no failure: an optional step that was given
// up, or a step that is taken for done although something about it is not known.
type Warning struct {
	// Step is the name of the step.
	Step string
	// Tries is how many API calls the step took.
	Tries int
	// Done: the step is done; Err is what is not known about it.
	Done bool
	// Err is why.
	Err error
}

// Error makes a Warning usable where errors are.
func (w *Warning) Error() string {
	if w.Done {
		return fmt.Sprintf("%s: done, but %v", w.Step, w.Err)
	}
	return (&Error{Step: w.Step, Tries: w.Tries, Err: w.Err}).Error()
}

// Unwrap returns Err.
func (w *Warning) Unwrap() error { return w.Err }

// WorkError is about an object that has the name that a step wants.
type WorkError struct {
	Kind, Namespace, Name string
	// UID of the object that is there; empty where nobody told.
	UID types.UID
	// Err is ErrOtherWork or ErrUnknownWork.
	Err error
	// Answer is what the API server said.
	Answer error
}

// Error tells what is there and what the API server said about it.
func (e *WorkError) Error() string {
	uid := ""
	if e.UID != "" {
		uid = fmt.Sprintf(" (uid %s)", e.UID)
	}
	name := e.Name
	if e.Namespace != "" {
		name = e.Namespace + "/" + name
	}
	text := fmt.Sprintf("%s %q%s: %v", strings.ToLower(e.Kind), name, uid, e.Err)
	if e.Answer != nil {
		text += ": " + e.Answer.Error()
	}
	return text
}

// Unwrap returns Err and Answer.
func (e *WorkError) Unwrap() []error {
	if e.Answer == nil {
		return []error{e.Err}
	}
	return []error{e.Err, e.Answer}
}
