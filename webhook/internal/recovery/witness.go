package recovery

import "github.com/belay-dev/belay/webhook/api/v1alpha1"

// OfWitness reports whether it is a sidecar's report that is missing, or says no.
func (r Reason) OfWitness() bool {
	return r == ReasonReportMissing || r == ReasonReportStale || r == ReasonReportNotReady
}

// OfWitnessWords says to people what of a sidecar's report is missing.
func (r Reason) OfWitnessWords() string {
	switch r {
	case ReasonReportMissing:
		return "it has never reported; has the pod a container " + v1alpha1.SidecarName + ", and does that reach belay's collector?"
	case ReasonReportStale:
		return "its last report is too old, or about an earlier run of the container; is it running, and does it reach belay's collector?"
	default:
		return "it reports that the main container is not ready"
	}
}
