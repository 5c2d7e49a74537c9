package recovery

import (
	"slices"
	"time"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
)

// Policy is the part of a RecoveryPolicy that decides.
type Policy struct {
	Name string
	// Phases by what they mean.
	Failed, Recovered, Lifecycle, ReplacesPods []v1alpha1.Phase
	Detectors                                  Detectors
	MainContainer                              string
	// Source is who has to say that a Pod is ready; FreshFor how old a report may be.
	Source        v1alpha1.EvidenceSource
	FreshFor      time.Duration
	FailurePolicy v1alpha1.FailurePolicy
	// MaxItems is the schema's limit of the record; 0 for none. Required: the schema wants
	// the field to be there.
	MaxItems int64
	Required bool
}

// kind is what a phase means.
type kind int

const (
	other kind = iota
	failed
	recovered
	lifecycle
	replacing
)

func (p Policy) kind(phase string) kind {
	is := func(list []v1alpha1.Phase) bool { return slices.Contains(list, v1alpha1.Phase(phase)) }
	switch {
	case phase == "":
		return other
	case is(p.Failed):
		return failed
	case is(p.Recovered):
		return recovered
	case is(p.ReplacesPods):
		return replacing
	case is(p.Lifecycle):
		return lifecycle
	}
	return other
}

// IsFailed reports whether a phase is one of failure.
func (p Policy) IsFailed(phase string) bool { return p.kind(phase) == failed }

// IsRecovered reports whether a phase is one of those that are gated.
func (p Policy) IsRecovered(phase string) bool { return p.kind(phase) == recovered }

// Object is what decisions read of the stored object beside its status. It is never taken
// from what a client sends with a status: the API server drops that, but after it has shown
// it to webhooks.
type Object struct {
	// Kind and Name are for messages.
	Kind, Name string
	Deleting   bool
	// ResumeInFlight: its Pods are about to be replaced. ResumeProblem says why that could
	// not be told; it then counts as true.
	ResumeInFlight bool
	ResumeProblem  string
	// Allowed: its annotation lets it recover without a record.
	Allowed bool
}

// PodsFact are all the Pods of an object.
type PodsFact struct {
	// State is Known also where there are none.
	State fact.State
	Cause fact.Cause
	// Problem says which expression or annotation does not tell.
	Problem string
	Pods    []Pod
	// Live: read from the API server itself, after the request came in.
	Live bool
}

// Input is all that a decision depends on.
type Input struct {
	Policy   Policy
	Object   Object
	Old, New Status
	// Final: nothing changes the write any more. Evidence is asked for then, and the record
	// must be as belay left it.
	Final bool
	// Preview goes with Final: the record is as the client left it, and what would become of
	// it is told.
	Preview bool
	Pods    PodsFact
	Now     time.Time
}

// Wish is what has to be found out before deciding again.
type Wish string

// Wishes.
const (
	WishNone Wish = ""
	// WishPods: find the Pods of the object, as fresh as may be.
	WishPods Wish = "pods"
	// WishLivePods: ask the API server itself for the Pods of the object.
	WishLivePods Wish = "live-pods"
)

// Edit is what becomes of the record.
type Edit struct {
	// Clear: no UID may be left. Otherwise UIDs is the record; nil leaves it as it is.
	Clear bool
	UIDs  []string
}

// None reports whether the record stays as it is asked for.
func (e Edit) None() bool { return !e.Clear && e.UIDs == nil }

// Decision is what becomes of a write.
type Decision struct {
	// Wish is set when the decision cannot be made yet. All else is empty then.
	Wish    Wish
	Allowed bool
	// Retry: what was denied may be allowed the next time; 503 and not 403.
	Retry    bool
	Reason   Reason
	Message  string
	Warnings []string
	Record   Edit
	// Evidence are the verdicts that the decision rests on.
	Evidence []Verdict
}
