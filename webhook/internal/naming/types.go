package naming

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
)

// Request is what the API server asks about.
type Request struct {
	// Operation is the admission operation: only CREATE is ever looked at.
	Operation string
	// Group and Kind of the object, for messages and for what is built in.
	Group, Kind string
	// Name is empty where the API server, or the policy, is to make one.
	Name string
	// Unnamed: the client gave no name; it may have given a generateName.
	Unnamed bool
	// HasGenerateName: the object still carries a generateName.
	HasGenerateName bool
	// Work is the digest of what the object is for.
	Work Computed
	// Preview is set for a dry run and in warn mode: nothing may be deleted.
	Preview bool
}

// Computed is what expressions gave.
type Computed struct {
	Value string
	// Problem says why there is no value. Transient: the time ran out.
	Problem   string
	Transient bool
}

// Policy is the part of a NamePolicy that decides.
type Policy struct {
	Name          string
	Generates     bool
	WhenFinished  v1alpha1.FinishedAction
	Settle        time.Duration
	WaitForPods   bool
	Serialize     bool
	Answers       v1alpha1.NameAnswers
	FailurePolicy v1alpha1.FailurePolicy
}

// Object is what was read of the object that has the name.
type Object struct {
	UID             types.UID
	ResourceVersion string
	Created         time.Time
	// Deleting is when it was asked to go; zero while it was not.
	Deleting   time.Time
	Finalizers []string
	// GraceSeconds is the grace period of its deletion.
	GraceSeconds int64
	// Marked: it carries belay's annotation. Work is what that says, or what was
	// computed of an unmarked object where the policy adopts it; empty: foreign.
	Marked bool
	Work   string
	Phase  Phase
	// Held is what the hold expression said, HoldProblem why it could not.
	Held        bool
	HoldProblem string
}

// Phase says how far an object's work is.
type Phase struct {
	Finished  bool
	Succeeded bool
	// Because names what says so: Complete, phase Failed.
	Because string
	// Problem: the policy's expression failed. The object then counts as running.
	Problem string
}

// ObjectFact is the object that has the name.
type ObjectFact struct {
	State  fact.State
	Cause  fact.Cause
	Object Object
}

// PodsFact are the Pods that still run for the name.
type PodsFact struct {
	// State is Absent where there are none.
	State fact.State
	Cause fact.Cause
	// Names are some of them, first the one that has been on its way out for longest;
	// More: there are others.
	Names []string
	More  bool
	// Terminating: the named ones are being deleted. Since is the earliest such time,
	// at the end of the grace period.
	Terminating bool
	Since       time.Time
}

// RightFact is whether the requester may delete the object. Absent: may not.
type RightFact struct {
	State fact.State
	Cause fact.Cause
}

// TurnFact is whether this work may be created under the name now. Absent: another
// work's create is under way.
type TurnFact struct {
	State fact.State
	Cause fact.Cause
	// Work is the other's.
	Work string
}

// Replacement is what became of the attempt to replace the finished object.
type Replacement int

// Replacements. ReplacementNone: none was tried.
const (
	ReplacementNone Replacement = iota
	// ReplacementDone: it was deleted, by this or by another request, or had gone.
	ReplacementDone
	// ReplacementFailed: the deletion failed; Cause says why.
	ReplacementFailed
)

// Facts is all that a decision may know of the cluster.
type Facts struct {
	Existing ObjectFact
	Pods     PodsFact
	Right    RightFact
	Turn     TurnFact
	// Replaced is what became of the attempt to replace, and the cause where it failed.
	Replaced      Replacement
	ReplacedCause fact.Cause
	// Now is the time of the decision; Left is how long the caller still waits.
	Now  time.Time
	Left time.Duration
}

// Wish is what has to be found out, or done, before deciding again.
type Wish string

// Wishes.
const (
	WishNone Wish = ""
	// WishPods: find the Pods that still run for the name.
	WishPods Wish = "pods"
	// WishRight: find out whether the requester may delete the object.
	WishRight Wish = "right"
	// WishReplace: delete the object, and wait for the name.
	WishReplace Wish = "replace"
	// WishTurn: find out whether another work's create is under way.
	WishTurn Wish = "turn"
)

// Decision is what becomes of the request.
type Decision struct {
	// Wish is set when the decision cannot be made yet. All else is empty then.
	Wish    Wish
	Allowed bool
	// Answer is the reason and code of a denial; empty for Code.
	Answer v1alpha1.Answer
	// RetryAfterSeconds goes with 429 and 503.
	RetryAfterSeconds int32
	Reason            Reason
	// Cause is the type of the denial's first cause: one of the API's, or empty.
	Cause string
	// Message of a denial, or what was done, for the audit annotation.
	Message  string
	Warnings []string
	// UID of the object that has the name.
	UID types.UID
	// Stuck is set when a name has been held for so long that somebody should know.
	Stuck *Stuck
	// SetName, DropGenerateName, SetWork and DropWork are the changes of the mutating phase.
	SetName          string
	DropGenerateName bool
	SetWork          string
	DropWork         bool
}

// MinReplace is the least time that must be left for a replacement to begin: one
// DELETE and one look, which take some 10 ms each, ten times over. With less, the API
// server may have given the create up when the object is gone.
const MinReplace = 200 * time.Millisecond

// MaxPods is how many Pods are named in a message.
const MaxPods = 3

// StuckAfter is how long a name may be held by a deletion before an event says so.
// Pods are given 30 s to end by default, and rarely more than a few minutes.
const StuckAfter = 5 * time.Minute

// Stuck is an object that holds a name for too long.
type Stuck struct {
	Namespace string
	// APIVersion is empty for the object that has the name itself; then so is Kind.
	APIVersion, Kind, Name string
	UID                    types.UID
}
