package v1alpha1

// Names that belay puts on objects, or reads from them. They are part of the
// API: changing one breaks objects that are stored in clusters.
const (
	// ModeLabel opts a namespace in. Its values are ModeEnforce and ModeWarn; a
	// namespace without it is never looked at.
	ModeLabel = "belay.dev/mode"
	// OwnerAnnotation names one object's owner without a policy, as
	// [GROUP/]VERSION/KIND/NAME: "batch/v1/Job/build-7", "v1/ConfigMap/site".
	OwnerAnnotation = "belay.dev/owner"
	// AllowDeleteAnnotation, set to "true" on an Anchor or on the Anchors' CRD,
	// lifts the guard that keeps people from deleting them.
	AllowDeleteAnnotation = "belay.dev/allow-delete"
	// PolicyLabel, on an Anchor, names the policy that asked for it.
	PolicyLabel = "belay.dev/policy"
	// WorkAnnotation, on an object that a NamePolicy let in, is the digest of the work
	// that it is for. It is belay's mark as well: only objects that carry it are ever
	// replaced.
	WorkAnnotation = "belay.dev/work"
	// AllowRecoveryAnnotation, set to "true" on an object that has failed without a record
	// of its Pods, lets it recover once without evidence. belay-controller takes it off
	// again when the object has left its failed phase.
	AllowRecoveryAnnotation = "belay.dev/allow-recovery"
	// MainReadyCondition is the condition of a Pod by which belay's sidecar reports on its
	// main container. Its message begins with the ID of the container that it is about and
	// a colon with a blank; its lastProbeTime is when the report came.
	MainReadyCondition = "belay.dev/MainReady"
	// WitnessAudience is the audience of the tokens by which sidecars report.
	WitnessAudience = "belay.dev"
	// SidecarAnnotation on a Pod asks for a sidecar where no policy does, with the value
	// SidecarInject, or declines the one that a policy asks for, with SidecarSkip. Without a
	// sidecar a Pod has no witness.
	SidecarAnnotation = "belay.dev/sidecar"
	// ProbeAnnotation on a Pod is how its sidecar probes the main container, in the place of
	// its readinessProbe: http://:8080/healthz, https://:8443/, tcp://:5432,
	// grpc://:9000/SERVICE, file://VOLUME/PATH, or none.
	ProbeAnnotation = "belay.dev/probe"
	// SidecarLabel marks Pods that have a sidecar: SidecarByPolicy or SidecarByAnnotation.
	SidecarLabel = "belay.dev/sidecar"
	// SidecarName is the name of the sidecar's container.
	SidecarName = "belay-sidecar"
	// CABundleName is the name of the ConfigMap in opted-in namespaces, and of the
	// ClusterTrustBundle, that has the CA of belay's collector, in CABundleKey.
	CABundleName = "belay-ca"
	// CABundleKey is the key of that ConfigMap.
	CABundleKey = "ca.crt"
	// NoPodUID in a record is no Pod's UID. Beside others it says that more Pods failed than
	// the record has room for; alone, that the object failed and nothing was recorded.
	// Either way no evidence can ever be found for it.
	NoPodUID = "00000000-0000-0000-0000-000000000000"
)

// Values of SidecarAnnotation.
const (
	SidecarInject = "inject"
	SidecarSkip   = "skip"
)

// Values of SidecarLabel.
const (
	SidecarByPolicy     = "policy"
	SidecarByAnnotation = "annotation"
)

// Types of the causes in the answers of a NamePolicy, in details.causes. They are for
// programs; the message is for people.
const (
	// CauseSameWork: the object of that name does the same work. details.uid is its UID.
	CauseSameWork = "belay.dev/same-work"
	// CauseOtherWork: the object of that name does other work, or carries no mark.
	CauseOtherWork = "belay.dev/other-work"
	// CauseFinished: the object of that name is finished, and the policy or its hold
	// expression keeps it from being replaced.
	CauseFinished = "belay.dev/finished"
	// CauseTerminating: the name is about to become free. Try again.
	CauseTerminating = "belay.dev/terminating"
	// CauseWrongName: the policy wants another name, which the message has.
	CauseWrongName = "belay.dev/wrong-name"
	// CauseDeleteForbidden: the object of that name is finished, but whoever creates
	// may not delete it, and belay does not do it for them.
	CauseDeleteForbidden = "belay.dev/delete-forbidden"
	// CauseWork: its message is the digest of the work of the request, for clients that
	// keep it; it goes with every answer about a name that is taken.
	CauseWork = "belay.dev/work"
)

// Names of the webhook configurations and their entries.
const (
	// ConfigurationName is the name of both webhook configurations.
	ConfigurationName = "belay"
	// OwnerEntryDomain ends the names of the entries of OwnerPolicies; the policy's
	// name stands before it.
	OwnerEntryDomain = ".owner.belay.dev"
	// NameEntryDomain ends the names of the entries of NamePolicies.
	NameEntryDomain = ".name.belay.dev"
	// RecoveryEntryDomain ends the names of the entries of RecoveryPolicies.
	RecoveryEntryDomain = ".recovery.belay.dev"
	// SidecarEntryDomain ends the names of the entries by which Pods get sidecars.
	SidecarEntryDomain = ".sidecar.belay.dev"
)

// Values of ModeLabel.
const (
	// ModeEnforce changes and denies.
	ModeEnforce = "enforce"
	// ModeWarn admits everything unchanged, and tells in a warning and an audit
	// annotation what ModeEnforce would have done.
	ModeWarn = "warn"
)

// Condition types of policies.
const (
	// ConditionAccepted says whether the newest spec can be put to work.
	ConditionAccepted = "Accepted"
	// ConditionRegistered says whether the API server calls belay for the policy.
	ConditionRegistered = "Registered"
)

// ReasonReplaced is the reason of events on finished objects that were deleted to make
// room for the next one of their name.
const ReasonReplaced = "Replaced"

// ReasonNameHeld is the reason of events on objects that have held a name for minutes
// although they are being deleted, while others wait for it.
const ReasonNameHeld = "NameHeld"

// ReasonNameTaken is the reason of events on objects that have the name under which sidecars
// look for belay's CA.
const ReasonNameTaken = "NameTaken"

// Reasons of events on objects that a RecoveryPolicy is about.
const (
	// ReasonRecovered: belay brought the object back, since the Pods that had failed are
	// ready again.
	ReasonRecovered = "Recovered"
	// ReasonNotRecoverable: the object cannot recover any more; the message says why.
	ReasonNotRecoverable = "NotRecoverable"
	// ReasonRecoveryWaits: all that is missing for the object's recovery is a sidecar's word
	// on its Pods; the event's action says what of it.
	ReasonRecoveryWaits = "RecoveryWaits"
	// ReasonRecoveryFailed: the API server refused what belay wrote to bring it back.
	ReasonRecoveryFailed = "RecoveryFailed"
	// ReasonRecoveryContested: belay has brought the object back again and again, and somebody
	// keeps writing that it failed.
	ReasonRecoveryContested = "RecoveryContested"
	// ReasonRecoveryAllowed: the object has recovered without evidence, since its
	// annotation belay.dev/allow-recovery allowed it.
	ReasonRecoveryAllowed = "RecoveryAllowed"
)

// Reasons of the conditions Accepted and Registered.
const (
	// ReasonAccepted: the spec compiles, its kinds are served, belay has the rights.
	ReasonAccepted = "Accepted"
	// ReasonInvalidExpression: a CEL expression does not compile; the message has
	// the field path, line and column.
	ReasonInvalidExpression = "InvalidExpression"
	// ReasonInvalidSelector: a label selector is malformed.
	ReasonInvalidSelector = "InvalidSelector"
	// ReasonUnknownKind: the API server serves no such kind.
	ReasonUnknownKind = "UnknownKind"
	// ReasonForbiddenKind: the kind can never be put under this policy.
	ReasonForbiddenKind = "ForbiddenKind"
	// ReasonScopeMismatch: a cluster-scoped dependent with a namespaced owner.
	ReasonScopeMismatch = "ScopeMismatch"
	// ReasonInvalidSpec: fields do not go together; the message says which.
	ReasonInvalidSpec = "InvalidSpec"
	// ReasonStatusSubresourceMissing: the CRD has no status subresource in some version that
	// it serves.
	ReasonStatusSubresourceMissing = "StatusSubresourceMissing"
	// ReasonProvenanceFieldMissing: the CRD's schema has no field for the record in some
	// version that it serves. What is written there would not be stored.
	ReasonProvenanceFieldMissing = "ProvenanceFieldMissing"
	// ReasonUnsuitableField: the CRD's schema has another type there, or bounds that a record
	// does not fit in.
	ReasonUnsuitableField = "UnsuitableField"
	// ReasonUnknownPhase: the CRD's schema does not allow a phase, or the type of a
	// condition, that the policy names.
	ReasonUnknownPhase = "UnknownPhase"
	// ReasonOverlap: another policy guards the same resource.
	ReasonOverlap = "Overlap"
	// ReasonMissingPermission: one of belay's service accounts lacks a right; the
	// message has the account, the verb and the resource.
	ReasonMissingPermission = "MissingPermission"
	// ReasonCheckFailed: belay could not find out; it tries again.
	ReasonCheckFailed = "CheckFailed"
	// ReasonRegistered: the webhook entries are as the accepted spec wants them.
	ReasonRegistered = "Registered"
	// ReasonRegisteredPrevious: the entries are those of the last accepted spec,
	// because the newest one was not accepted.
	ReasonRegisteredPrevious = "RegisteredPrevious"
	// ReasonNotAccepted: nothing is registered, since no spec was ever accepted.
	ReasonNotAccepted = "NotAccepted"
	// ReasonCertificateNotReady: there is no CA yet that the API server could trust.
	ReasonCertificateNotReady = "CertificateNotReady"
	// ReasonContested: another writer keeps undoing the registration, and belay does
	// not fight.
	ReasonContested = "Contested"
	// ReasonWriteFailed: the webhook registration could not be written.
	ReasonWriteFailed = "WriteFailed"
)
