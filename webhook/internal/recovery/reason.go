package recovery

// Reason says why, in one word: a closed list, since it labels metrics.
type Reason string

// Reasons why a Pod, or an object, has not recovered. They are the same in denials, events
// and metrics.
const (
	// ReasonPodGone: no Pod of the object has that UID, and it has no other Pod.
	ReasonPodGone Reason = "PodGone"
	// ReasonPodReplaced: no Pod of the object has that UID; others have come.
	ReasonPodReplaced Reason = "PodReplaced"
	// ReasonPodDeleting: the Pod is being deleted.
	ReasonPodDeleting Reason = "PodDeleting"
	// ReasonPodNotRunning: its phase is not Running.
	ReasonPodNotRunning Reason = "PodNotRunning"
	// ReasonPodNotReady: its condition Ready, a readiness gate, or its main container's
	// readiness is not true.
	ReasonPodNotReady Reason = "PodNotReady"
	// ReasonMainMissing: it cannot be told which container is the main one, or the Pod's
	// status does not list it.
	ReasonMainMissing Reason = "MainMissing"
	// ReasonMainNotRunning: the main container waits or has ended.
	ReasonMainNotRunning Reason = "MainNotRunning"
	// ReasonReportMissing: no sidecar has reported.
	ReasonReportMissing Reason = "ReportMissing"
	// ReasonReportStale: the sidecar's report is too old, or about an earlier container.
	ReasonReportStale Reason = "ReportStale"
	// ReasonReportNotReady: the sidecar reports that the main container is not ready.
	ReasonReportNotReady Reason = "ReportNotReady"
	// ReasonOverflow: more Pods failed than the record has room for.
	ReasonOverflow Reason = "Overflow"
	// ReasonOtherPodFailing: a Pod of the object that is not in the record is failing.
	ReasonOtherPodFailing Reason = "OtherPodFailing"
	// ReasonTerminal: the failure is terminal.
	ReasonTerminal Reason = "Terminal"
)

// Further reasons of decisions.
const (
	// ReasonUntouched: the write does not concern a failure.
	ReasonUntouched Reason = "Untouched"
	// ReasonDeleting: the object is being deleted.
	ReasonDeleting Reason = "ObjectDeleting"
	// ReasonUnreadable: the status has not the shape that the policy says.
	ReasonUnreadable Reason = "StatusUnreadable"
	// ReasonRecorded: the object fails, and the UIDs of its Pods are recorded.
	ReasonRecorded Reason = "Recorded"
	// ReasonNothingToRecord: the object fails, and none of its Pods is failing.
	ReasonNothingToRecord Reason = "NothingToRecord"
	// ReasonSealed: the failure is terminal, or the object had failed without a record: it
	// gets none.
	ReasonSealed Reason = "Sealed"
	// ReasonKept: the object stays failed, and so does its record.
	ReasonKept Reason = "Kept"
	// ReasonCarried: the object is not in a failed phase any more, but its record stays.
	ReasonCarried Reason = "Carried"
	// ReasonCleared: a record that means nothing any more is cleared.
	ReasonCleared Reason = "Cleared"
	// ReasonEvidencePending: the evidence is asked for when nothing changes the write any more.
	ReasonEvidencePending Reason = "EvidencePending"
	// ReasonRecovered: the evidence holds.
	ReasonRecovered Reason = "Recovered"
	// ReasonAllowed: the annotation belay.dev/allow-recovery lets it recover.
	ReasonAllowed Reason = "AllowedByAnnotation"
	// ReasonNoRecord: the object failed without a record, so that nothing can be proven.
	ReasonNoRecord Reason = "NoRecord"
	// ReasonStatusRemoved: the status of a failed object must not be removed.
	ReasonStatusRemoved Reason = "StatusRemoved"
	// ReasonRecordChanged: after belay had seen the write, something else changed the record.
	ReasonRecordChanged Reason = "RecordChanged"
	// ReasonLookupFailed: the Pods could not be found out.
	ReasonLookupFailed Reason = "LookupFailed"
	// ReasonExpressionFailed: an expression of the policy failed on the object.
	ReasonExpressionFailed Reason = "ExpressionFailed"
	// ReasonInternal: a bug of belay.
	ReasonInternal Reason = "InternalError"
)

// final are the reasons after which no Pod can ever make the object recover.
func (r Reason) final() bool {
	return r == ReasonPodGone || r == ReasonPodReplaced || r == ReasonOverflow || r == ReasonTerminal || r == ReasonNoRecord
}
