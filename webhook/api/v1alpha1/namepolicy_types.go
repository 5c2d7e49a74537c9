package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NamePolicy gives one unit of work one object: it names objects that are created
// without a name, checks the names that others bring, and answers a create whose
// name is taken from the state of the object that has it. It acts in namespaces that
// carry the label belay.dev/mode. It never changes a name that a request carries.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=namepol,categories=belay
// +kubebuilder:printcolumn:name="Finished",type=string,JSONPath=`.spec.whenFinished`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Registered",type=string,JSONPath=`.status.conditions[?(@.type=="Registered")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="the name must be a DNS label of at most 63 characters, since it becomes part of a webhook's name and path"
type NamePolicy struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is what the policy asks for.
	// +required
	Spec NamePolicySpec `json:"spec"`
	// status is what belay made of it.
	// +optional
	Status NamePolicyStatus `json:"status,omitzero"`
}

// NamePolicyList is a list of NamePolicies.
//
// +kubebuilder:object:root=true
type NamePolicyList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NamePolicy `json:"items"`
}

// NamePolicySpec says how objects are named, and how a create is answered whose name
// is taken.
//
// The expressions are CEL, with the libraries of Kubernetes. generate, verify and
// identity see the variables object (the one that is being created) and request
// (namespace, name, operation, userInfo, dryRun); finished, succeeded and hold see
// existing, the object that has the name. The data of a Secret is in none of them.
// Where generate, verify or identity fails on an object, its create is denied with
// 403, whatever failurePolicy says.
//
// +kubebuilder:validation:XValidation:rule="self.kinds.all(k, !k.apiVersion.startsWith('belay.dev/'))",message="belay's own kinds cannot be named by it"
// +kubebuilder:validation:XValidation:rule="self.nameWait.getSeconds() + 2 <= self.timeoutSeconds",message="nameWait must leave two seconds of timeoutSeconds for everything else"
type NamePolicySpec struct {
	// kinds are the kinds that the policy is about. Each is matched in every version
	// that the API server serves it in. Objects of other kinds, such as the Pods of a
	// Job, are never looked at.
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	Kinds []Kind `json:"kinds"`

	// selector narrows the objects by their labels. The API server evaluates it: an
	// object that does not match costs nothing. Empty selects all.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// namespaceSelector narrows the opted-in namespaces further. Empty selects all of
	// them.
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

	// generate names objects that are created without a name (with generateName, or
	// with neither). Without it such objects are left to the API server. The name is the
	// prefix, a dash and ten characters of a digest over prefix and key: 63 bytes at
	// most, and less where more is derived from it (Indexed Jobs, CronJobs,
	// StatefulSets).
	// +optional
	Generate *NameGeneration `json:"generate,omitempty"`

	// verify is a CEL expression that gives the name which the object must have. An
	// object that says another one is denied, with the right one in the message. The
	// empty string means that every name will do. It sees object and request, and with
	// generate also generated, the name that generate gives. Default none: every name
	// will do.
	// Example: "restore-" + object.metadata.labels["example.com/server"]
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Verify string `json:"verify,omitempty"`

	// identity are CEL expressions whose values, taken together, say what work the
	// object is for: two objects with equal values are the same work. They are
	// evaluated before other webhooks of the create, where belay comes first, and kept
	// as a digest in the annotation belay.dev/work. Choose what the client itself
	// says; the API server adds a random volume to every Pod, for one. They see object
	// and request, and may give strings, numbers, booleans, or lists and maps of them.
	// Example: object.metadata.annotations["example.com/backup"]
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=4096
	// +listType=atomic
	Identity []string `json:"identity"`

	// finished is a CEL expression that says whether an existing object's work is
	// done. Jobs and Pods need none: a Job is finished by its conditions Complete,
	// Failed, SuccessCriteriaMet or FailureTarget, a Pod by its phase. Without it,
	// objects of other kinds are never finished, and Replace is not accepted. It sees
	// existing alone.
	// Example: has(existing.status) && existing.status.phase in ["Done", "Failed"]
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Finished string `json:"finished,omitempty"`

	// succeeded is a CEL expression that says whether an existing object that is
	// finished has succeeded; it matters for settle only. Jobs and Pods need none. It
	// sees existing alone.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Succeeded string `json:"succeeded,omitempty"`

	// hold is a CEL expression that forbids replacing a finished object while it is
	// true or fails, because somebody still needs it. It sees existing alone. Default
	// none: nothing is held.
	// Example: existing.metadata.?labels["example.com/then"].orValue("") == "pending"
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Hold string `json:"hold,omitempty"`

	// whenFinished says what happens to a create whose name is taken by a finished
	// object: Replace deletes that object and lets the new one in; Coalesce answers the
	// same work like one that runs, and other work like other work; Reject denies it.
	// Replace needs rights on the kinds that belay has not got by itself; see the
	// presets.
	// +required
	WhenFinished FinishedAction `json:"whenFinished"`

	// settle is how long after its creation a finished object counts as running, if it
	// succeeded and its work is the same: within that time the create is more likely
	// the retry of one whose answer was lost than a new request. From 0s to 24h.
	// Default 0s.
	// +optional
	// +kubebuilder:default="0s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Format=duration
	// +kubebuilder:validation:XValidation:rule="self >= duration('0s') && self <= duration('24h')",message="must be between 0s and 24h"
	Settle metav1.Duration `json:"settle,omitzero"`

	// propagation is how the replaced object's dependents are deleted. Background frees
	// a name at once unless a finalizer holds it; Foreground holds it until the
	// dependents that block it are gone; Orphan lets them live. Default Background.
	// +optional
	// +kubebuilder:default=Background
	Propagation Propagation `json:"propagation,omitempty"`

	// waitForPods counts a Job's name as taken while one of its Pods still runs or is
	// being deleted, also when the Job itself is finished or gone: the next attempt
	// must not meet the stragglers of the last one. It is for Jobs only, and takes the
	// right to list Pods. Default true.
	// +optional
	// +kubebuilder:default=true
	WaitForPods *bool `json:"waitForPods,omitempty"`

	// nameWait is how long a create that replaced an object is held until the name is
	// free, before it is answered with 429. It must leave two seconds of timeoutSeconds
	// for everything else. From 0s to 3s. Default 1s.
	// +optional
	// +kubebuilder:default="1s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Format=duration
	// +kubebuilder:validation:XValidation:rule="self >= duration('0s') && self <= duration('3s')",message="must be between 0s and 3s"
	NameWait metav1.Duration `json:"nameWait,omitzero"`

	// adoptUnmarked computes the work of an existing object that carries no
	// belay.dev/work from the object as it is. Otherwise such an object is other work.
	// Either way belay deletes marked objects only. Default false.
	// +optional
	// +kubebuilder:default=false
	AdoptUnmarked bool `json:"adoptUnmarked,omitempty"`

	// racing says who decides when creates for one name arrive at once. Storage: the
	// API server, which lets one in and answers all others AlreadyExists, whatever
	// their work. Serialize: belay lets the creates of one work pass at a time and
	// answers those of other work with 429 until they can be told from the stored
	// object; this costs one write of a Lease in belay's namespace for each create.
	// Default Storage.
	// +optional
	// +kubebuilder:default=Storage
	Racing Racing `json:"racing,omitempty"`

	// answers are the denials. Clients differ in what they make of them: some take
	// every 409 for success. Each has a default of its own.
	// +optional
	// +kubebuilder:default={}
	Answers NameAnswers `json:"answers,omitzero"`

	// failurePolicy is what happens to a create when belay cannot be reached, and also
	// when belay cannot find out what is there: Fail denies it (with 503 and
	// Retry-After in the latter case), Ignore admits it. Default Fail.
	// +optional
	// +kubebuilder:default=Fail
	FailurePolicy FailurePolicy `json:"failurePolicy,omitempty"`

	// timeoutSeconds bounds one call of the API server to belay, which answers
	// before it ends. From 2 to 5, and at least 2 more than nameWait. Default 5.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=5
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
}

// NameGeneration makes names.
type NameGeneration struct {
	// prefix is a CEL expression that gives the readable part of the name. What a name
	// may not hold becomes a dash, and what is too long is cut. It sees object and
	// request.
	// Example: "restore-" + object.metadata.labels["example.com/server"]
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Prefix string `json:"prefix"`
	// key are CEL expressions whose values make the name: equal values give equal
	// names, and any difference gives another one. They may give strings, numbers,
	// booleans, or lists and maps of them. They see object and request.
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=4096
	// +listType=atomic
	Key []string `json:"key"`
}

// NameAnswers are the answers to a create whose name is taken: each an HTTP status
// code with its reason.
type NameAnswers struct {
	// sameWork is the answer when the object does the same work and runs, or counts as
	// running. details.uid is its UID. Default AlreadyExists.
	// +optional
	// +kubebuilder:default=AlreadyExists
	// +kubebuilder:validation:Enum=AlreadyExists;Conflict;Invalid;Forbidden
	SameWork Answer `json:"sameWork,omitempty"`
	// otherWork is the answer when the object does other work, or carries no mark.
	// Choose Invalid for clients that take every 409 for success, and AlreadyExists for
	// clients that compare the work themselves. Default Conflict.
	// +optional
	// +kubebuilder:default=Conflict
	// +kubebuilder:validation:Enum=AlreadyExists;Conflict;Invalid;Forbidden;TooManyRequests
	OtherWork Answer `json:"otherWork,omitempty"`
	// finished is the answer when a finished object is in the way that may not be
	// replaced, by Reject or by hold. Default Conflict.
	// +optional
	// +kubebuilder:default=Conflict
	// +kubebuilder:validation:Enum=AlreadyExists;Conflict;Invalid;Forbidden
	Finished Answer `json:"finished,omitempty"`
	// terminating is the answer while the name is about to become free. Clients of
	// client-go wait for TooManyRequests and ServiceUnavailable by themselves. Default
	// TooManyRequests.
	// +optional
	// +kubebuilder:default=TooManyRequests
	// +kubebuilder:validation:Enum=Conflict;Invalid;Forbidden;TooManyRequests;ServiceUnavailable
	Terminating Answer `json:"terminating,omitempty"`
}

// Answer is a reason of the Kubernetes API and the HTTP status code that goes with it.
type Answer string

const (
	// AnswerAlreadyExists is 409 AlreadyExists.
	AnswerAlreadyExists Answer = "AlreadyExists"
	// AnswerConflict is 409 Conflict.
	AnswerConflict Answer = "Conflict"
	// AnswerInvalid is 422 Invalid.
	AnswerInvalid Answer = "Invalid"
	// AnswerForbidden is 403 Forbidden.
	AnswerForbidden Answer = "Forbidden"
	// AnswerTooManyRequests is 429 TooManyRequests with Retry-After: 1.
	AnswerTooManyRequests Answer = "TooManyRequests"
	// AnswerServiceUnavailable is 503 ServiceUnavailable with Retry-After: 1.
	AnswerServiceUnavailable Answer = "ServiceUnavailable"
)

// FinishedAction is what happens to a create whose name a finished object has.
// +kubebuilder:validation:Enum=Replace;Coalesce;Reject
type FinishedAction string

const (
	// FinishedReplace deletes the finished object and admits the new one.
	FinishedReplace FinishedAction = "Replace"
	// FinishedCoalesce answers as if the finished object ran.
	FinishedCoalesce FinishedAction = "Coalesce"
	// FinishedReject denies.
	FinishedReject FinishedAction = "Reject"
)

// Propagation is how an object's dependents are deleted.
// +kubebuilder:validation:Enum=Background;Foreground;Orphan
type Propagation string

const (
	// PropagationBackground deletes the object, then its dependents.
	PropagationBackground Propagation = "Background"
	// PropagationForeground deletes the dependents first.
	PropagationForeground Propagation = "Foreground"
	// PropagationOrphan leaves the dependents.
	PropagationOrphan Propagation = "Orphan"
)

// Racing says who decides between creates that arrive at once.
// +kubebuilder:validation:Enum=Storage;Serialize
type Racing string

const (
	// RacingStorage leaves it to the API server's storage.
	RacingStorage Racing = "Storage"
	// RacingSerialize lets one work pass at a time.
	RacingSerialize Racing = "Serialize"
)

// NamePolicyStatus is what belay made of a policy.
type NamePolicyStatus struct {
	// conditions are Accepted and Registered.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// inForce is the last spec that was accepted. It goes on working when a later
	// one is not, and it is what every replica of the webhook acts on.
	// +optional
	InForce *AcceptedNamePolicy `json:"inForce,omitempty"`
}

// AcceptedNamePolicy is a spec that was accepted, with what was resolved then.
type AcceptedNamePolicy struct {
	// generation is the metadata.generation that carried this spec.
	// +required
	// +kubebuilder:validation:Minimum=1
	Generation int64 `json:"generation"`
	// spec is a copy of the accepted spec.
	// +required
	Spec NamePolicySpec `json:"spec"`
	// kinds are the resources of the spec's kinds, in its order.
	// +required
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	Kinds []ResolvedResource `json:"kinds"`
}
