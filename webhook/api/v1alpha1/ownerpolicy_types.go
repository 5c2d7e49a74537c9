package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// OwnerPolicy says which objects get an owner reference when they are created,
// and to whom. It acts in namespaces that carry the label belay.dev/mode.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=ownpol,categories=belay
// +kubebuilder:printcolumn:name="Owner",type=string,JSONPath=`.spec.owner.kind`
// +kubebuilder:printcolumn:name="Deadline",type=string,JSONPath=`.spec.deadline`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Registered",type=string,JSONPath=`.status.conditions[?(@.type=="Registered")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="the name must be a DNS label of at most 63 characters, since it becomes part of a webhook's name and path"
type OwnerPolicy struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is what the policy asks for.
	// +required
	Spec OwnerPolicySpec `json:"spec"`
	// status is what belay made of it.
	// +optional
	Status OwnerPolicyStatus `json:"status,omitzero"`
}

// OwnerPolicyList is a list of OwnerPolicies.
//
// +kubebuilder:object:root=true
type OwnerPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []OwnerPolicy `json:"items"`
}

// OwnerPolicySpec maps dependents to their owner.
//
// +kubebuilder:validation:XValidation:rule="self.dependents.all(d, !(d.apiVersion.startsWith('belay.dev/')))",message="belay's own kinds cannot be dependents"
type OwnerPolicySpec struct {
	// dependents are the kinds that get an owner reference on creation. A kind is
	// matched in every version that the API server serves it in.
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	Dependents []Kind `json:"dependents"`

	// selector narrows the dependents by their labels. The API server evaluates
	// it: an object that does not match costs nothing. Empty selects all.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// namespaceSelector narrows the opted-in namespaces further.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// matchConditions are CEL expressions which must all be true, evaluated by the
	// API server before it calls belay, with the variables object, oldObject,
	// request and authorizer.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	MatchConditions []MatchCondition `json:"matchConditions,omitempty"`

	// owner says who owns the dependents.
	// +required
	Owner OwnerTarget `json:"owner"`

	// controller makes the reference a controller reference where the object has
	// none yet. An object that is controlled by somebody else gets a plain one.
	// +optional
	// +kubebuilder:default=false
	Controller bool `json:"controller,omitempty"`

	// deadline is how long a dependent may wait for an owner that does not exist
	// yet. When it passes, the dependent is collected. From 5s to 720h.
	// +optional
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Format=duration
	// +kubebuilder:validation:XValidation:rule="self >= duration('5s') && self <= duration('720h')",message="must be between 5s and 720h"
	Deadline metav1.Duration `json:"deadline,omitzero"`

	// whenUnresolved says what happens to a create when the owner cannot be found
	// out, or the Anchor cannot be written, in time: Admit it without a reference,
	// with a warning (a missing reference never fails a spawn); or Deny it, with 503
	// and Retry-After, which clients retry, or with 403 where a retry cannot help (an
	// ambiguous owner, an unknown kind, an expression that fails).
	// +optional
	// +kubebuilder:default=Admit
	WhenUnresolved UnresolvedAction `json:"whenUnresolved,omitempty"`

	// clientReferences says what happens to owner references that the client
	// brought and that are wrong: no such kind, no such object in the namespace, or
	// another UID. The garbage collector deletes an object with only such owners.
	// +optional
	// +kubebuilder:default=Warn
	ClientReferences ReferenceLint `json:"clientReferences,omitempty"`

	// failurePolicy is what the API server does when belay cannot be reached.
	// +optional
	// +kubebuilder:default=Ignore
	FailurePolicy FailurePolicy `json:"failurePolicy,omitempty"`

	// timeoutSeconds bounds one call of the API server to belay, which answers
	// before it ends.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=5
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
}

// Kind names a kind of object in one API version.
type Kind struct {
	// apiVersion is the group and version, as in manifests: "v1", "batch/v1".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	APIVersion string `json:"apiVersion"`
	// kind is the kind, as in manifests: "Secret".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
}

// OwnerTarget finds the owner of a dependent. The expressions see the variables
// object (the dependent, as it is being created) and request (namespace, name,
// operation, userInfo, dryRun).
//
// +kubebuilder:validation:XValidation:rule="has(self.name) != has(self.selector)",message="give exactly one of name and selector"
type OwnerTarget struct {
	// apiVersion is the owner's group and version: "batch/v1".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	APIVersion string `json:"apiVersion"`
	// kind is the owner's kind: "Job".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`

	// name is a CEL expression that gives the owner's name as a string; the empty
	// string means that this object has no owner.
	// Example: object.metadata.name
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Name string `json:"name,omitempty"`

	// selector is a CEL expression that gives labels as a map of strings. Exactly
	// one object with these labels must exist: of two, belay refuses to guess. An
	// empty map means that this object has no owner.
	// Example: {"example.com/id": object.metadata.labels["example.com/id"]}
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Selector string `json:"selector,omitempty"`
}

// MatchCondition is a CEL expression that must be true for belay to be called.
type MatchCondition struct {
	// name identifies the condition in the API server's messages and metrics.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=48
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	Name string `json:"name"`
	// expression is evaluated by the API server. It must not use namespaceObject,
	// which is always null there.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Expression string `json:"expression"`
}

// UnresolvedAction is what happens when the owner could not be found out.
// +kubebuilder:validation:Enum=Admit;Deny
type UnresolvedAction string

const (
	// UnresolvedAdmit admits without a reference, and warns.
	UnresolvedAdmit UnresolvedAction = "Admit"
	// UnresolvedDeny denies: with 503 and Retry-After where a retry may help, else 403.
	UnresolvedDeny UnresolvedAction = "Deny"
)

// ReferenceLint is what happens to wrong owner references of the client.
// +kubebuilder:validation:Enum=Warn;Deny;Ignore
type ReferenceLint string

const (
	// LintWarn admits and warns.
	LintWarn ReferenceLint = "Warn"
	// LintDeny denies with 403.
	LintDeny ReferenceLint = "Deny"
	// LintIgnore does not look.
	LintIgnore ReferenceLint = "Ignore"
)

// FailurePolicy is what the API server does when belay does not answer.
// +kubebuilder:validation:Enum=Ignore;Fail
type FailurePolicy string

const (
	// FailureIgnore admits the object as if belay were not installed.
	FailureIgnore FailurePolicy = "Ignore"
	// FailureFail refuses the object.
	FailureFail FailurePolicy = "Fail"
)

// OwnerPolicyStatus is what belay made of a policy.
type OwnerPolicyStatus struct {
	// conditions are Accepted and Registered.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// inForce is the last spec that was accepted. It goes on working when a later
	// one is not, and it is what every replica of the webhook acts on.
	// +optional
	InForce *AcceptedOwnerPolicy `json:"inForce,omitempty"`
}

// AcceptedOwnerPolicy is a spec that was accepted, with what was resolved then.
type AcceptedOwnerPolicy struct {
	// generation is the metadata.generation that carried this spec.
	// +required
	// +kubebuilder:validation:Minimum=1
	Generation int64 `json:"generation"`
	// spec is a copy of the accepted spec.
	// +required
	Spec OwnerPolicySpec `json:"spec"`
	// owner is the resource of the owner's kind.
	// +required
	Owner ResolvedResource `json:"owner"`
	// dependents are the resources of the dependents' kinds, in the spec's order.
	// +required
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	Dependents []ResolvedResource `json:"dependents"`
}

// ResolvedResource is where the API server serves a kind.
type ResolvedResource struct {
	// group is the API group; empty for the core group.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Group string `json:"group,omitempty"`
	// version is the API version.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Version string `json:"version"`
	// kind is the kind.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
	// resource is the plural that is used in paths and rules.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Resource string `json:"resource"`
	// namespaced says whether objects of the kind live in namespaces.
	// +required
	Namespaced bool `json:"namespaced"`
}
