package naming

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// BuiltIn reports whether the kind says itself when it is finished.
func BuiltIn(group, kind string) bool {
	return IsJob(group, kind) || (group == "" && kind == "Pod")
}

// IsJob reports whether the kind is batch Job.
func IsJob(group, kind string) bool { return group == "batch" && kind == "Job" }

// PhaseOf reads how far the work of a Job or Pod is. It is for kinds that are BuiltIn;
// of all others it says that they run.
func PhaseOf(group, kind string, object map[string]any) Phase {
	switch {
	case IsJob(group, kind):
		return jobPhase(object)
	case group == "" && kind == "Pod":
		phase, _, _ := unstructured.NestedString(object, "status", "phase")
		if phase == "Succeeded" || phase == "Failed" {
			return Phase{Finished: true, Succeeded: phase == "Succeeded", Because: "phase " + phase}
		}
	}
	return Phase{}
}

// jobPhase goes by the conditions and by nothing else: counters are wrong while Pods
// are retried and with several completions, and a Job without conditions was only
// created, is suspended, or is run by another controller (spec.managedBy) whose
// status may come late. SuccessCriteriaMet and FailureTarget come before Complete and
// Failed, while Pods still run: the outcome is decided then.
func jobPhase(object map[string]any) Phase {
	status, _ := object["status"].(map[string]any)
	conditions, _ := status["conditions"].([]any)
	var p Phase
	failed := false
	for _, c := range conditions {
		condition, _ := c.(map[string]any)
		if condition["status"] != "True" {
			continue
		}
		switch kind := condition["type"]; kind {
		case "Complete", "Failed":
			// The final ones are named, whatever else is there.
			p.Finished, p.Because = true, fmt.Sprint(kind)
			failed = failed || kind == "Failed"
		case "SuccessCriteriaMet", "FailureTarget":
			p.Finished = true
			if p.Because == "" {
				p.Because = fmt.Sprint(kind)
			}
			failed = failed || kind == "FailureTarget"
		}
	}
	p.Succeeded = p.Finished && !failed
	return p
}
