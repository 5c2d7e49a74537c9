package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RecoveryPolicy guards the status of a custom resource whose controller has a failed
// phase: an object recovers when, and only when, the same Pods that failed, by UID, are
// ready again, and its record of failed UIDs is cleared explicitly. It acts in namespaces
// that carry the label belay.dev/mode, on updates of the status subresource. It never
// changes anything but the record; what it does not allow, it denies with 403.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=recoverypol,categories=belay
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.resource.kind`
// +kubebuilder:printcolumn:name="Recover",type=string,JSONPath=`.spec.recover`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Registered",type=string,JSONPath=`.status.conditions[?(@.type=="Registered")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="the name must be a DNS label of at most 63 characters, since it becomes part of a webhook's name and path"
type RecoveryPolicy struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is what the policy asks for.
	// +required
	Spec RecoveryPolicySpec `json:"spec"`
	// status is what belay made of it.
	// +optional
	Status RecoveryPolicyStatus `json:"status,omitzero"`
}

// RecoveryPolicyList is a list of RecoveryPolicies.
//
// +kubebuilder:object:root=true
type RecoveryPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []RecoveryPolicy `json:"items"`
}

// RecoveryPolicySpec says where an object keeps its phase and its record, which phases
// mean what, which Pods are its own, and what counts as their failure and recovery.
//
// The expressions are CEL, with the libraries of Kubernetes. They see the variable
// object: the stored object as it was before the write, since the metadata and the spec
// that come with a write of the status are not stored.
//
// +kubebuilder:validation:XValidation:rule="!self.resource.apiVersion.startsWith('belay.dev/')",message="belay's own kinds cannot be guarded by it"
// +kubebuilder:validation:XValidation:rule="!has(self.terminal) || has(self.conditionsPath)",message="terminal needs conditionsPath"
// +kubebuilder:validation:XValidation:rule="self.recover == 'Never' || has(self.recovered)",message="recover: Auto needs recovered, which says what is written"
// +kubebuilder:validation:XValidation:rule="self.recover == 'Never' || !has(self.matchConditions) || self.matchConditions.size() == 0",message="recover: Auto does not go with matchConditions, which only the API server can evaluate; narrow the objects with selector or namespaceSelector"
// +kubebuilder:validation:XValidation:rule="!has(self.recovered) || self.recovered.phase in self.phases.recovered",message="recovered.phase must be one of phases.recovered"
// +kubebuilder:validation:XValidation:rule="!has(self.recovered) || has(self.conditionsPath) || ((!has(self.recovered.removeConditions) || self.recovered.removeConditions.size() == 0) && (!has(self.recovered.setConditions) || self.recovered.setConditions.size() == 0))",message="changing conditions needs conditionsPath"
type RecoveryPolicySpec struct {
	// resource is the custom resource that is guarded. Its CRD must have the status
	// subresource, and in every version that it serves a list of strings at recordPath.
	// +required
	Resource Kind `json:"resource"`

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
	// request and authorizer. A client may send any metadata and spec along with a status;
	// they are dropped, but after these expressions have seen them as object: judge by
	// oldObject. They do not go with recover: Auto.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	MatchConditions []MatchCondition `json:"matchConditions,omitempty"`

	// phasePath is where the object says its phase, a string. Default .status.phase.
	// +optional
	// +kubebuilder:default=".status.phase"
	PhasePath StatusPath `json:"phasePath,omitempty"`

	// recordPath is where the object records the UIDs of the Pods that failed, a list of
	// strings. Default .status.failedPodUIDs.
	// +optional
	// +kubebuilder:default=".status.failedPodUIDs"
	RecordPath StatusPath `json:"recordPath,omitempty"`

	// conditionsPath is where the object has its conditions, a list of objects with type
	// and status. Needed for terminal and for changes of conditions. Default none.
	// +optional
	ConditionsPath StatusPath `json:"conditionsPath,omitempty"`

	// phases say what the values at phasePath mean. One that is in none of them is no way
	// out of a failure: the record is carried through.
	// +required
	Phases RecoveryPhases `json:"phases"`

	// terminal is the condition that makes a failure terminal: such an object never goes
	// straight to a recovered phase. Default none.
	// +optional
	Terminal *ConditionValue `json:"terminal,omitempty"`

	// resumeInFlight is a CEL expression that says whether the object's Pods are about to
	// be replaced, although its phase does not say so yet. A failure then is terminal.
	// Where it fails on an object, that counts as true. Default none: never.
	// Example: object.metadata.generation > object.status.pauseObservedGeneration && object.spec.?pause.orValue(true) == false
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	ResumeInFlight string `json:"resumeInFlight,omitempty"`

	// pods say which Pods are the object's. The first entry whose when is true counts; an
	// object that none is true for has no Pods.
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	Pods []PodSource `json:"pods"`

	// detectors say what counts as the failure of a Pod.
	// +optional
	// +kubebuilder:default={}
	Detectors FailureDetectors `json:"detectors,omitzero"`

	// mainContainer is the name of the container whose state counts, for Pods without the
	// annotation kubectl.kubernetes.io/default-container. Default: the first one of the
	// Pod's spec.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	MainContainer string `json:"mainContainer,omitempty"`

	// evidence is who has to say that a Pod is ready again. Kubelet: the Pod is running and
	// ready, its readiness gates are true, and its main container is running and ready.
	// Witness: the Pod and its main container are running, and the condition
	// belay.dev/MainReady, by which a sidecar reports, is True, fresh, and about the container
	// that runs now; where the sidecar has no probe that it could run, the condition is
	// Unknown and the kubelet's word counts. Both: both. With Witness and Both the Pods that
	// pods selects get a sidecar when they are created, and belay-webhook needs list and watch
	// on the resource. Default Kubelet.
	// +optional
	// +kubebuilder:default=Kubelet
	Evidence EvidenceSource `json:"evidence,omitempty"`

	// witnessFreshFor is how old a sidecar's last report may be. While an object that has
	// failed waits for a Pod, its sidecar is asked for a report after a third of it, and after a
	// minute at most. From 5s to 10m. Default 30s.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Format=duration
	// +kubebuilder:validation:XValidation:rule="self >= duration('5s') && self <= duration('10m')",message="must be between 5s and 10m"
	WitnessFreshFor metav1.Duration `json:"witnessFreshFor,omitzero"`

	// recover says whether belay itself brings objects back whose own controller never
	// leaves a failed phase. Auto: when the evidence holds for all recorded Pods, belay
	// writes what recovered says. Never: it only guards. Default Never.
	// +optional
	// +kubebuilder:default=Never
	Recover RecoverMode `json:"recover,omitempty"`

	// recovered is what belay writes to an object that it brings back, beside clearing its
	// record.
	// +optional
	Recovered *RecoveredStatus `json:"recovered,omitempty"`

	// failurePolicy is what happens to a write of the status when belay cannot be reached:
	// Fail denies it, Ignore admits it. It is also what happens to a failure whose Pods
	// belay cannot find out: Fail denies it with 503 and Retry-After, so that it is
	// recorded on the next try; Ignore lets it in without a record, from where there is no
	// recovery. A recovery whose evidence cannot be found out is always denied with 503.
	// Default Fail.
	// +optional
	// +kubebuilder:default=Fail
	FailurePolicy FailurePolicy `json:"failurePolicy,omitempty"`

	// timeoutSeconds bounds one call of the API server to belay, which answers
	// before it ends. From 1 to 5. Default 3.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=5
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
}

// StatusPath is the path of a field of the status: .status and the names of fields.
// +kubebuilder:validation:Pattern=`^\.status(\.[A-Za-z_][A-Za-z0-9_-]{0,62}){1,8}$`
// +kubebuilder:validation:MaxLength=512
type StatusPath string

// Phase is the value of a phase. It may not be empty: an object without a phase has none.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=128
type Phase string

// RecoveryPhases say what the values of a phase mean. A value may be in one of the lists
// only, but for replacesPods, which are among lifecycle.
//
// +kubebuilder:validation:XValidation:rule="self.failed.all(p, !(p in self.recovered))",message="a phase cannot be both failed and recovered"
// +kubebuilder:validation:XValidation:rule="!has(self.lifecycle) || self.lifecycle.all(p, !(p in self.recovered) && !(p in self.failed))",message="a lifecycle phase can be neither failed nor recovered"
// +kubebuilder:validation:XValidation:rule="!has(self.replacesPods) || self.replacesPods.all(p, has(self.lifecycle) && p in self.lifecycle)",message="replacesPods must be among lifecycle"
type RecoveryPhases struct {
	// failed are the phases of an object that has failed.
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=set
	Failed []Phase `json:"failed"`
	// recovered are the phases that a failed object may enter on evidence only.
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=set
	Recovered []Phase `json:"recovered"`
	// lifecycle are phases that somebody asked for: a failed object may enter them, and the
	// record is carried through.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=set
	Lifecycle []Phase `json:"lifecycle,omitempty"`
	// replacesPods are the lifecycle phases in which the Pods are replaced. Entering one
	// clears the record, and what comes after is not gated: the Pods that failed are gone.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=set
	ReplacesPods []Phase `json:"replacesPods,omitempty"`
}

// ConditionValue is a condition that has a value.
type ConditionValue struct {
	// type of the condition.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=316
	Type string `json:"type"`
	// status of the condition. Default True.
	// +optional
	// +kubebuilder:default="True"
	// +kubebuilder:validation:Enum="True";"False";"Unknown"
	Status metav1.ConditionStatus `json:"status,omitempty"`
}

// PodSource says which Pods are an object's: those that it is the controller of, or those
// that it names in an annotation. They are in its namespace.
//
// +kubebuilder:validation:XValidation:rule="has(self.owner) != has(self.names)",message="exactly one of owner and names must be given"
type PodSource struct {
	// when is a CEL expression that says whether this entry is for the object. Default:
	// it is.
	// Example: object.spec.?poolRef.orValue("") == ""
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	When string `json:"when,omitempty"`
	// selector are the labels that all such Pods have, whichever their object: belay
	// watches Pods with these labels and no others. It must not be empty.
	// +required
	// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) && self.matchLabels.size() > 0) || (has(self.matchExpressions) && self.matchExpressions.size() > 0)",message="must not be empty: belay would have to watch every Pod"
	Selector metav1.LabelSelector `json:"selector"`
	// owner takes the Pods whose controller reference has the object's UID.
	// +optional
	Owner *PodsByOwner `json:"owner,omitempty"`
	// names takes the Pods that an annotation of the object names.
	// +optional
	Names *PodsByName `json:"names,omitempty"`
}

// PodsByOwner are the Pods that an object is the controller of.
type PodsByOwner struct {
	// labels is a CEL expression that gives labels, as a map of strings, which all Pods of
	// this very object have beside those of selector. It keeps a look at the Pods of one
	// object from reading those of all others in its namespace. Default none.
	// Example: {"example.com/name": object.metadata.name}
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Labels string `json:"labels,omitempty"`
}

// PodsByName are the Pods that an annotation names, less those that another one does.
type PodsByName struct {
	// in names the Pods. An object without it has none.
	// +required
	In AnnotatedNames `json:"in"`
	// notIn names Pods that are not the object's any more.
	// +optional
	NotIn *AnnotatedNames `json:"notIn,omitempty"`
}

// AnnotatedNames is a list of names in an annotation whose value is JSON: a list of
// strings, or an object that has one in a field.
type AnnotatedNames struct {
	// annotation is its key.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Annotation string `json:"annotation"`
	// field is the field of the JSON object that has the list. Default none: the value is
	// the list itself.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Field string `json:"field,omitempty"`
}

// FailureDetectors say what counts as the failure of a Pod. Init containers are read
// before containers. Pods that are being deleted do not count.
type FailureDetectors struct {
	// waitingReasons are the reasons for which a container that waits has failed. Default
	// CrashLoopBackOff, ImagePullBackOff, ErrImagePull, CreateContainerConfigError. An empty
	// list: a container that waits has not failed.
	// +optional
	// +kubebuilder:default={CrashLoopBackOff,ImagePullBackOff,ErrImagePull,CreateContainerConfigError}
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=128
	// +listType=set
	WaitingReasons []string `json:"waitingReasons"`
	// terminal takes a Pod for failed that is in phase Failed, or whose main container has
	// ended with a code other than 0 and is not restarted. Default true.
	// +optional
	// +kubebuilder:default=true
	Terminal *bool `json:"terminal,omitempty"`
}

// EvidenceSource is who has to say that a Pod is ready again.
// +kubebuilder:validation:Enum=Kubelet;Witness;Both
type EvidenceSource string

const (
	// EvidenceKubelet wants the Pod's status to say so.
	EvidenceKubelet EvidenceSource = "Kubelet"
	// EvidenceWitness wants the sidecar's report to say so, and the Pod to run.
	EvidenceWitness EvidenceSource = "Witness"
	// EvidenceBoth wants both.
	EvidenceBoth EvidenceSource = "Both"
)

// RecoverMode says who brings objects back.
// +kubebuilder:validation:Enum=Auto;Never
type RecoverMode string

const (
	// RecoverAuto lets belay do it.
	RecoverAuto RecoverMode = "Auto"
	// RecoverNever leaves it to the object's own controller.
	RecoverNever RecoverMode = "Never"
)

// RecoveredStatus is what belay writes to an object that it brings back.
type RecoveredStatus struct {
	// phase is written at phasePath. It must be one of phases.recovered.
	// +required
	Phase Phase `json:"phase"`
	// removeConditions are types of conditions that are taken out of the list.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=316
	// +listType=set
	RemoveConditions []string `json:"removeConditions,omitempty"`
	// setConditions are conditions that are put into the list, or changed there. belay
	// adds lastTransitionTime.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=type
	SetConditions []ConditionEdit `json:"setConditions,omitempty"`
}

// ConditionEdit is a condition that belay writes. Its type and its reason are the
// resource's own: belay invents none.
type ConditionEdit struct {
	// type of the condition.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=316
	Type string `json:"type"`
	// status of the condition.
	// +required
	// +kubebuilder:validation:Enum="True";"False";"Unknown"
	Status metav1.ConditionStatus `json:"status"`
	// reason of the condition.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`
	// message of the condition.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Message string `json:"message,omitempty"`
}

// RecoveryPolicyStatus is what belay made of a policy.
type RecoveryPolicyStatus struct {
	// conditions are Accepted and Registered.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// inForce is the last spec that was accepted. It goes on working when a later
	// one is not, unless the CRD has lost what the guard stands on.
	// +optional
	InForce *AcceptedRecoveryPolicy `json:"inForce,omitempty"`
}

// AcceptedRecoveryPolicy is a spec that was accepted, with what was resolved then.
type AcceptedRecoveryPolicy struct {
	// generation is the metadata.generation that carried this spec.
	// +required
	// +kubebuilder:validation:Minimum=1
	Generation int64 `json:"generation"`
	// spec is a copy of the accepted spec.
	// +required
	Spec RecoveryPolicySpec `json:"spec"`
	// resource is where spec.resource is served.
	// +required
	Resource ResolvedResource `json:"resource"`
	// record is what the CRD's schema says of the field at recordPath.
	// +required
	Record RecordSchema `json:"record"`
}

// RecordSchema is what a CRD's schema says of the record.
type RecordSchema struct {
	// cleared is how the record is cleared on the way to the API server's storage. Null:
	// the field is nullable. Remove: it is not, and may be absent. Empty: it may be
	// neither null nor absent, or has a default, and becomes an empty list.
	// +required
	Cleared RecordClearing `json:"cleared"`
	// required: the schema wants the field to be there.
	// +optional
	Required bool `json:"required,omitempty"`
	// maxItems is the limit of the schema; 0 for none.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxItems int64 `json:"maxItems,omitempty"`
}

// RecordClearing is how a record is cleared.
// +kubebuilder:validation:Enum=Null;Remove;Empty
type RecordClearing string

const (
	// ClearNull puts an explicit null.
	ClearNull RecordClearing = "Null"
	// ClearRemove removes the field.
	ClearRemove RecordClearing = "Remove"
	// ClearEmpty puts an empty list.
	ClearEmpty RecordClearing = "Empty"
)
