package owner

// Reason is why a request was decided as it was: a closed list, since it labels
// metrics and audit annotations.
type Reason string

// Reasons of decisions.
const (
	// ReasonNotCreate: only creates are looked at.
	ReasonNotCreate Reason = "NotCreate"
	// ReasonNoOwner: policy and object ask for no owner.
	ReasonNoOwner Reason = "NoOwner"
	// ReasonOwned: a reference to the owner was added.
	ReasonOwned Reason = "Owned"
	// ReasonAlreadyOwned: the object references the owner already.
	ReasonAlreadyOwned Reason = "AlreadyOwned"
	// ReasonCorrected: a stale reference to the owner was replaced.
	ReasonCorrected Reason = "Corrected"
	// ReasonAnchored: the owner does not exist yet; an Anchor holds its place.
	ReasonAnchored Reason = "Anchored"
	// ReasonAnchorNeeded: an Anchor is needed to decide, or would be (dry run).
	ReasonAnchorNeeded Reason = "AnchorNeeded"
	// ReasonAmbiguous: several objects have the labels.
	ReasonAmbiguous Reason = "OwnerAmbiguous"
	// ReasonLookupFailed: it could not be found out whether the owner exists.
	ReasonLookupFailed Reason = "OwnerLookupFailed"
	// ReasonKindUnknown: the API server serves no such kind of owner.
	ReasonKindUnknown Reason = "OwnerKindUnknown"
	// ReasonAnchorFailed: the Anchor could not be created.
	ReasonAnchorFailed Reason = "AnchorFailed"
	// ReasonNoAnchor: an Anchor lives in a namespace and cannot own this object.
	ReasonNoAnchor Reason = "AnchorImpossible"
	// ReasonTooLarge: the object is too near the storage limit to add anything.
	ReasonTooLarge Reason = "ObjectTooLarge"
	// ReasonOtherNamespace: the owner lives in another namespace.
	ReasonOtherNamespace Reason = "OwnerInOtherNamespace"
	// ReasonScopeMismatch: a cluster-scoped object cannot have a namespaced owner.
	ReasonScopeMismatch Reason = "OwnerScopeMismatch"
	// ReasonAnnotationInvalid: the owner annotation cannot be read.
	ReasonAnnotationInvalid Reason = "OwnerAnnotationInvalid"
	// ReasonExpressionFailed: the policy's expression failed on this object.
	ReasonExpressionFailed Reason = "ExpressionFailed"
	// ReasonBadReference: the client brought a wrong owner reference.
	ReasonBadReference Reason = "BadOwnerReference"
	// ReasonNoReference: the object ended without a reference that the policy demands.
	ReasonNoReference Reason = "OwnerReferenceMissing"
)
