package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Anchor holds the place of an owner that does not exist yet: dependents are
// owned by the Anchor from their creation on, and the Anchor is owned by the
// owner as soon as that exists. If it never comes, the Anchor is deleted and
// the garbage collector takes the dependents.
//
// Anchors are made by belay. Deleting one deletes what it holds, as deleting
// any owner does.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,categories=belay
// +kubebuilder:printcolumn:name="Owner Kind",type=string,JSONPath=`.spec.owner.kind`
// +kubebuilder:printcolumn:name="Owner",type=string,JSONPath=`.spec.owner.name`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.conditions[?(@.type=="Bound")].reason`
// +kubebuilder:printcolumn:name="Expires",type=string,JSONPath=`.spec.expiresAt`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Anchor struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec says whom the Anchor waits for.
	// +required
	Spec AnchorSpec `json:"spec"`
	// status says how far it got.
	// +optional
	Status AnchorStatus `json:"status,omitzero"`
}

// AnchorList is a list of Anchors.
//
// +kubebuilder:object:root=true
type AnchorList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Anchor `json:"items"`
}

// AnchorSpec says whom an Anchor waits for, and until when.
//
// +kubebuilder:validation:XValidation:rule="self.owner == oldSelf.owner && self.expiresAt == oldSelf.expiresAt && has(self.deadline) == has(oldSelf.deadline) && (!has(self.deadline) || self.deadline == oldSelf.deadline)",message="owner, expiresAt and deadline are immutable"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.boundUID) || !has(self.boundUID) || self.boundUID == oldSelf.boundUID",message="boundUID cannot change from one owner to another: a dependent never moves"
type AnchorSpec struct {
	// owner is the object that the Anchor waits for.
	// +required
	Owner AnchorOwner `json:"owner"`

	// expiresAt is when the Anchor is given up, if no owner came until then.
	// +required
	ExpiresAt metav1.Time `json:"expiresAt"`

	// deadline is how long the Anchor waits at least, from its creation on. Together
	// with expiresAt it keeps an Anchor from being given up early when the clocks of
	// the webhook and of the API server differ.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Format=duration
	Deadline metav1.Duration `json:"deadline,omitzero"`

	// boundUID is the UID of the owner that came. Like a claim's volumeName it is
	// set once, in the same write as the owner reference. An Anchor which has it
	// but no such owner reference was released (kubectl delete --cascade=orphan)
	// and is never bound again.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	BoundUID string `json:"boundUID,omitempty"`
}

// AnchorOwner identifies the awaited owner by name, or by labels that exactly
// one object has.
//
// +kubebuilder:validation:XValidation:rule="has(self.name) != has(self.matchLabels)",message="give exactly one of name and matchLabels"
type AnchorOwner struct {
	// apiVersion is the owner's group and version.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	APIVersion string `json:"apiVersion"`
	// kind is the owner's kind.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
	// name is the owner's name.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
	// matchLabels are labels that exactly one object has.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=16
	MatchLabels map[string]string `json:"matchLabels,omitempty"`
}

// AnchorStatus says how far an Anchor got.
type AnchorStatus struct {
	// conditions holds Bound.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ConditionBound is True while the Anchor's owner exists and owns it.
const ConditionBound = "Bound"

// Reasons of the condition Bound, and of events about Anchors.
const (
	// ReasonWaiting: the owner has not come yet.
	ReasonWaiting = "WaitingForOwner"
	// ReasonOverdue: half of the time has passed and the owner has not come.
	ReasonOverdue = "OwnerOverdue"
	// ReasonBound: the owner exists and owns the Anchor.
	ReasonBound = "Bound"
	// ReasonReleased: the owner was deleted and its dependents were orphaned.
	ReasonReleased = "Released"
	// ReasonExpired: the owner did not come in time; the Anchor is being deleted.
	ReasonExpired = "Expired"
	// ReasonAmbiguous: several objects have the labels; belay does not guess.
	ReasonAmbiguous = "OwnerAmbiguous"
	// ReasonLookupFailed: belay could not find out whether the owner exists.
	ReasonLookupFailed = "OwnerLookupFailed"
	// ReasonBindFailed: the owner exists, but the Anchor could not be written.
	ReasonBindFailed = "BindFailed"
)
