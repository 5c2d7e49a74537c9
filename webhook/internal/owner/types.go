package owner

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
)

// Request is what the API server asks about.
type Request struct {
	// Operation is the admission operation: only CREATE is ever changed.
	Operation string
	// Namespace of the dependent; empty when it is cluster-scoped.
	Namespace string
	// Kind and Name are for messages. Name may be empty (generateName).
	Kind, Name string
	// Preview is set for a dry run and in warn mode: nothing may be created.
	Preview bool
	// References are the owner references that the object carries now.
	References []metav1.OwnerReference
	// Size is the length of the object's JSON in bytes.
	Size int
}

// Policy is the part of an OwnerPolicy that decides.
type Policy struct {
	Name             string
	Controller       bool
	WhenUnresolved   v1alpha1.UnresolvedAction
	ClientReferences v1alpha1.ReferenceLint
}

// Target is the owner that a policy's expression or an object's annotation asks
// for. The zero value asks for none.
type Target struct {
	// Owner is whom to look for; nil when the object has no owner.
	Owner *Wanted
	// Problem says why no target could be told; Reason is then set.
	Problem string
	Reason  Reason
}

// Wanted identifies an owner by name or by labels.
type Wanted struct {
	APIVersion, Kind string
	// Namespace is set where an annotation names one; else the dependent's counts.
	Namespace string
	// Name of the owner, or Labels that exactly one object has.
	Name   string
	Labels map[string]string
	// Scope is where objects of the kind live.
	Scope Scope
}

// Scope is where the objects of a kind live.
type Scope int

// Scopes. ScopeUnknown: the kind could not be resolved.
const (
	ScopeUnknown Scope = iota
	ScopeNamespaced
	ScopeCluster
)

// Object is what belay read of a live object, from that object itself.
type Object struct {
	APIVersion, Kind, Name string
	UID                    types.UID
	// Terminating: it has a deletion timestamp, and counts as absent.
	Terminating bool
}

// Fact is the answer of a look-up: by name at most one object, by labels all of
// them up to a bound.
type Fact struct {
	State   fact.State
	Cause   fact.Cause
	Objects []Object
	// Truncated: there are more than the bound.
	Truncated bool
}

// live are the objects that are not on their way out.
func (f Fact) live() []Object {
	var out []Object
	for _, o := range f.Objects {
		if !o.Terminating {
			out = append(out, o)
		}
	}
	return out
}

// AnchorFact is the outcome of getting hold of an Anchor.
type AnchorFact struct {
	State fact.State
	Cause fact.Cause
	// Name and UID of the Anchor, when known.
	Name string
	UID  types.UID
}

// ReferenceFact is what was found for one reference of the client.
type ReferenceFact struct {
	// Index in Request.References.
	Index int
	Scope Scope
	Fact  Fact
}

// Facts is all that a decision may know of the cluster.
type Facts struct {
	Owner      Fact
	Anchor     AnchorFact
	References []ReferenceFact
}

// AnchorWanted asks the caller to create or reuse an Anchor, and to decide again.
type AnchorWanted struct {
	Owner v1alpha1.AnchorOwner
}

// Edit changes the list of owner references. Exactly one of its forms is used.
type Edit struct {
	// Op is "append", "replace" or "remove".
	Op string
	// Index of the replaced or removed entry.
	Index int
	// Was is the UID of the replaced or removed entry, as a guard.
	Was types.UID
	// Reference is the appended or replacing entry.
	Reference metav1.OwnerReference
}

// Operations of an Edit.
const (
	EditAppend  = "append"
	EditReplace = "replace"
	EditRemove  = "remove"
)

// Decision is what becomes of the request.
type Decision struct {
	Allowed bool
	// Code is the HTTP status of a denial: 403, or 503 where a retry may succeed.
	Code int32
	// RetryAfterSeconds goes with 503.
	RetryAfterSeconds int32
	Reason            Reason
	// Message of a denial, or what was done, for the audit annotation.
	Message  string
	Warnings []string
	Edits    []Edit
	// Anchor is set when the decision cannot be made without an Anchor.
	Anchor *AnchorWanted
	// Ambiguous lists the candidates among which belay did not choose.
	Ambiguous []Object
}

// MaxObjectBytes is the size of an object's JSON above which belay adds nothing:
// etcd's default request limit of 1.5 MiB (etcd --max-request-bytes) less 16 KiB
// for the reference, its managed fields and the request's envelope. A reference
// must never turn a storable object into a failing one.
const MaxObjectBytes = 1536*1024 - 16*1024

// AnchorMargin is how much of an Anchor's time must be left for a further
// dependent to share it. Below it a new Anchor is made, so that a dependent that
// is about to be stored never finds its Anchor deleted. Half of the policy's
// deadline: the dependent then waits at least that long.
func AnchorMargin(deadline time.Duration) time.Duration { return deadline / 2 }
