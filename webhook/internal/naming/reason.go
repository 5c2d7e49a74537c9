package naming

// Reason is why a request was decided as it was: a closed list, since it labels
// metrics and audit annotations.
type Reason string

// Reasons of decisions.
const (
	// ReasonNotCreate: only creates are looked at.
	ReasonNotCreate Reason = "NotCreate"
	// ReasonMarked: the object was marked with its work; it brought its name.
	ReasonMarked Reason = "Marked"
	// ReasonGenerated: the object got its name, and its mark.
	ReasonGenerated Reason = "NameGenerated"
	// ReasonServerNamed: the API server named the object, as the client asked.
	ReasonServerNamed Reason = "ServerNamed"
	// ReasonNameFree: nothing has the name.
	ReasonNameFree Reason = "NameFree"
	// ReasonReplaced: a finished object was deleted, and the name is free.
	ReasonReplaced Reason = "Replaced"
	// ReasonSameWork: the object of that name does the same work, and runs.
	ReasonSameWork Reason = "SameWork"
	// ReasonSettling: it has just succeeded; this is more likely a retry.
	ReasonSettling Reason = "Settling"
	// ReasonCoalesced: it is finished, and the policy has that count as running.
	ReasonCoalesced Reason = "Coalesced"
	// ReasonOtherWork: the object of that name does other work.
	ReasonOtherWork Reason = "OtherWork"
	// ReasonForeign: the object of that name carries no mark.
	ReasonForeign Reason = "Foreign"
	// ReasonFinished: it is finished, and the policy denies.
	ReasonFinished Reason = "Finished"
	// ReasonHeld: it is finished, and the hold expression keeps it.
	ReasonHeld Reason = "Held"
	// ReasonHoldUnknown: it is finished, and whether it is held could not be told.
	ReasonHoldUnknown Reason = "HoldUnknown"
	// ReasonTerminating: the object of that name is being deleted.
	ReasonTerminating Reason = "Terminating"
	// ReasonPodsRunning: Pods of the object of that name still run.
	ReasonPodsRunning Reason = "PodsRunning"
	// ReasonReplacing: the finished object was deleted, but the name is not free yet.
	ReasonReplacing Reason = "Replacing"
	// ReasonWouldReplace: a dry run: the finished object would be replaced.
	ReasonWouldReplace Reason = "WouldReplace"
	// ReasonNoTime: there is no time left to replace the finished object safely.
	ReasonNoTime Reason = "NoTimeLeft"
	// ReasonDeleteForbidden: whoever creates may not delete the finished object.
	ReasonDeleteForbidden Reason = "DeleteForbidden"
	// ReasonRace: a create of other work for this name is under way.
	ReasonRace Reason = "Racing"
	// ReasonOverlap: another policy is about the object as well.
	ReasonOverlap Reason = "PoliciesOverlap"
	// ReasonWrongName: the policy wants another name.
	ReasonWrongName Reason = "WrongName"
	// ReasonInvalidName: the policy's expression gives what cannot be a name.
	ReasonInvalidName Reason = "InvalidName"
	// ReasonExpressionFailed: an expression of the policy failed on this object.
	ReasonExpressionFailed Reason = "ExpressionFailed"
	// ReasonLookupFailed: it could not be found out what is there.
	ReasonLookupFailed Reason = "LookupFailed"
	// ReasonReplaceFailed: the finished object could not be deleted.
	ReasonReplaceFailed Reason = "ReplaceFailed"
)
