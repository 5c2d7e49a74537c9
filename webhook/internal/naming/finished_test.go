package naming

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPhaseOf takes objects as the API server stores them, and some that it never would.
func TestPhaseOf(t *testing.T) {
	t.Parallel()
	running := Phase{}
	for name, c := range map[string]struct {
		group, kind, object string
		want                Phase
	}{
		"N13: counters say nothing":                  {"batch", "Job", `{"status":{"failed":1,"active":1}}`, running},
		"N13: counters say nothing of success":       {"batch", "Job", `{"status":{"succeeded":3,"completionTime":"2026-01-01T00:00:00Z"}}`, running},
		"N13: the interim condition comes first":     {"batch", "Job", `{"status":{"conditions":[{"type":"SuccessCriteriaMet","status":"True"},{"type":"Complete","status":"True"}]}}`, Phase{Finished: true, Succeeded: true, Because: "Complete"}},
		"N13: the order does not matter":             {"batch", "Job", `{"status":{"conditions":[{"type":"Complete","status":"True"},{"type":"SuccessCriteriaMet","status":"True"}]}}`, Phase{Finished: true, Succeeded: true, Because: "Complete"}},
		"N13: resumed and complete":                  {"batch", "Job", `{"status":{"conditions":[{"type":"Suspended","status":"False"},{"type":"Complete","status":"True"}]}}`, Phase{Finished: true, Succeeded: true, Because: "Complete"}},
		"N13: not complete":                          {"batch", "Job", `{"status":{"conditions":[{"type":"Complete","status":"False"}]}}`, running},
		"N13: whether it is complete is unknown":     {"batch", "Job", `{"status":{"conditions":[{"type":"Complete","status":"Unknown"}]}}`, running},
		"N14: failed, decided but not done":          {"batch", "Job", `{"status":{"conditions":[{"type":"FailureTarget","status":"True"}]}}`, Phase{Finished: true, Because: "FailureTarget"}},
		"N14: failed, with Pods":                     {"batch", "Job", `{"status":{"active":1,"terminating":2,"conditions":[{"type":"Failed","status":"True"}]}}`, Phase{Finished: true, Because: "Failed"}},
		"succeeded, decided but not done":            {"batch", "Job", `{"status":{"conditions":[{"type":"SuccessCriteriaMet","status":"True"}]}}`, Phase{Finished: true, Succeeded: true, Because: "SuccessCriteriaMet"}},
		"failed for good":                            {"batch", "Job", `{"status":{"conditions":[{"type":"FailureTarget","status":"True"},{"type":"Failed","status":"True"}]}}`, Phase{Finished: true, Because: "Failed"}},
		"both: then it did not succeed":              {"batch", "Job", `{"status":{"conditions":[{"type":"Failed","status":"True"},{"type":"Complete","status":"True"}]}}`, Phase{Finished: true, Because: "Complete"}},
		"both, decided: then it did not succeed":     {"batch", "Job", `{"status":{"conditions":[{"type":"FailureTarget","status":"True"},{"type":"Complete","status":"True"}]}}`, Phase{Finished: true, Because: "Complete"}},
		"N15: suspended":                             {"batch", "Job", `{"spec":{"suspend":true},"status":{"conditions":[{"type":"Suspended","status":"True"}]}}`, running},
		"created and nothing else":                   {"batch", "Job", `{"metadata":{"name":"a"}}`, running},
		"N16: managed by another controller":         {"batch", "Job", `{"spec":{"managedBy":"kueue.x-k8s.io/multikueue"},"status":{}}`, running},
		"a condition that nobody knows":              {"batch", "Job", `{"status":{"conditions":[{"type":"Done","status":"True"}]}}`, running},
		"conditions that are no list":                {"batch", "Job", `{"status":{"conditions":{"Complete":"True"}}}`, running},
		"a condition that is no object":              {"batch", "Job", `{"status":{"conditions":["Complete",null,7,{"type":"Failed","status":"True"}]}}`, Phase{Finished: true, Because: "Failed"}},
		"a type and a status of another type":        {"batch", "Job", `{"status":{"conditions":[{"type":{"a":1},"status":"True"},{"type":"Complete","status":true},{"type":["x"],"status":["True"]}]}}`, running},
		"a status that is no object":                 {"batch", "Job", `{"status":"Complete"}`, running},
		"nothing at all":                             {"batch", "Job", `null`, running},
		"a Job of another group":                     {"example.com", "Job", `{"status":{"conditions":[{"type":"Complete","status":"True"}]}}`, running},
		"a Pod that succeeded":                       {"", "Pod", `{"status":{"phase":"Succeeded"}}`, Phase{Finished: true, Succeeded: true, Because: "phase Succeeded"}},
		"a Pod that failed":                          {"", "Pod", `{"status":{"phase":"Failed"}}`, Phase{Finished: true, Because: "phase Failed"}},
		"a Pod that runs":                            {"", "Pod", `{"status":{"phase":"Running"}}`, running},
		"a Pod that was created":                     {"", "Pod", `{}`, running},
		"a Pod of a lost node":                       {"", "Pod", `{"status":{"phase":"Unknown"}}`, running},
		"a Pod whose phase is no string":             {"", "Pod", `{"status":{"phase":1}}`, running},
		"a Pod of another group":                     {"metrics.k8s.io", "Pod", `{"status":{"phase":"Failed"}}`, running},
		"a custom resource, whatever its conditions": {"example.com", "Train", `{"status":{"phase":"Failed","conditions":[{"type":"Complete","status":"True"}]}}`, running},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var object map[string]any
			if err := json.Unmarshal([]byte(c.object), &object); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, PhaseOf(c.group, c.kind, object)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// FuzzPhaseOf takes objects of any shape. What succeeded is finished, and what is finished
// says why.
func FuzzPhaseOf(f *testing.F) {
	for _, s := range []string{`{}`, `null`, `{"status":{"conditions":[{"type":"Complete","status":"True"}]}}`, `{"status":{"phase":"Failed"}}`, `{"status":{"conditions":[{"type":{},"status":[]}]}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var object map[string]any
		if json.Unmarshal(raw, &object) != nil {
			return
		}
		for _, k := range [][2]string{{"batch", "Job"}, {"", "Pod"}, {"example.com", "Train"}} {
			p := PhaseOf(k[0], k[1], object)
			if p.Succeeded && !p.Finished || p.Finished != (p.Because != "") || p.Problem != "" || p.Finished && !BuiltIn(k[0], k[1]) {
				t.Errorf("%v: %+v", k, p)
			}
		}
	})
}
