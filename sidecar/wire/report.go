package wire

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Path is where the collector takes reports, by POST with ContentType.
const Path = "/v1/report"

// ContentType of a report and of an answer.
const ContentType = "application/json"

// MaxReportBytes bounds an encoded report. The fields of a valid report add up
// to less than 900 bytes, none of which JSON escapes, and the keys to 130: so
// four times as much leaves room for fields to come.
const MaxReportBytes = 4 << 10

// Bounds of the fields, in bytes. Names are as long as Kubernetes lets them be.
const (
	maxNamespace = 63  // a DNS label
	maxPodName   = 253 // a DNS subdomain
	maxContainer = 63  // a DNS label
	maxReason    = 128 // far below the 1024 of a condition's reason
	maxID        = 128 // UIDs have 36; container ids, with their scheme, below 90
)

// State is what the sidecar knows of the main container's readiness.
type State string

const (
	// StateReady says that the probe succeeded.
	StateReady State = "Ready"
	// StateNotReady says that the probe failed as often as it takes.
	StateNotReady State = "NotReady"
	// StateUnknown says that there is no probe which the sidecar could run,
	// or that it has not run yet. The kubelet's own verdict decides then.
	StateUnknown State = "Unknown"
)

// Report says how one container of one pod was, from inside that pod.
type Report struct {
	// Namespace, Pod and UID name the pod that speaks. The collector believes
	// them only if the caller's token is bound to that very pod.
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	UID       string `json:"uid"`

	// Container is the name of the container that the report is about.
	Container string `json:"container"`

	// Instance tells one run of that container from the next: an opaque value
	// that changes when the container is restarted. Empty means that the sidecar
	// cannot tell, as from inside of a pod it mostly can not: then
	// ObservedUnixMillis does.
	Instance string `json:"instance,omitempty"`

	// State is the readiness of the container.
	State State `json:"state"`

	// Reason is why, in CamelCase and short, as in a condition.
	Reason string `json:"reason"`

	// Reporter tells one run of the sidecar from the next. It is drawn at random
	// when the sidecar starts, because Sequence starts over with it.
	Reporter string `json:"reporter"`

	// ReporterSinceUnixMillis is when that run began, by the node's clock, in
	// milliseconds since 1970: of two runs the later one counts. Absent is earlier than
	// any.
	ReporterSinceUnixMillis int64 `json:"reporterSinceUnixMillis,omitempty"`

	// Sequence counts the changes that this Reporter has seen, from 1. A report
	// that is sent again keeps its number, so the collector can drop one that
	// arrives after a later one.
	Sequence uint64 `json:"sequence"`

	// ObservedUnixMillis is when the probe began whose result State is, by the
	// node's clock, in milliseconds since 1970. The kubelet notes by the same clock
	// when a container was started: so a report that is about an earlier run of the
	// container can be told from one that is about the run there is now. A report that
	// only repeats State has the time of the last probe that agreed with it. Absent
	// means that it vouches for no run in particular.
	ObservedUnixMillis int64 `json:"observedUnixMillis,omitempty"`
}

// MaxUnixMillis is the end of the year 9999, the last that RFC 3339 can say.
const MaxUnixMillis = 253402300799999

// Validate says everything that is wrong with the report, or nil.
func (r Report) Validate() error {
	errs := []error{
		checkName("namespace", r.Namespace, maxNamespace),
		checkName("pod", r.Pod, maxPodName),
		checkID("uid", r.UID),
		checkName("container", r.Container, maxContainer),
		checkReason(r.Reason),
		checkID("reporter", r.Reporter),
	}
	if r.Instance != "" {
		errs = append(errs, checkID("instance", r.Instance))
	}
	switch r.State {
	case StateReady, StateNotReady, StateUnknown:
	default:
		errs = append(errs, fmt.Errorf("state %.32q is none of %q, %q, %q", r.State, StateReady, StateNotReady, StateUnknown))
	}
	if r.Sequence == 0 {
		errs = append(errs, errors.New("sequence is 0; it counts from 1"))
	}
	for _, at := range []struct {
		field string
		value int64
	}{{"observedUnixMillis", r.ObservedUnixMillis}, {"reporterSinceUnixMillis", r.ReporterSinceUnixMillis}} {
		if at.value < 0 || at.value > MaxUnixMillis {
			errs = append(errs, fmt.Errorf("%s is %d, which is in no year from 1970 to 9999", at.field, at.value))
		}
	}
	return errors.Join(errs...)
}

// EncodeReport returns the JSON of a valid report, at most MaxReportBytes long.
func EncodeReport(r Report) ([]byte, error) {
	if err := r.Validate(); err != nil {
		return nil, fmt.Errorf("encoding report: %w", err)
	}
	return json.Marshal(r)
}

// DecodeReport reads one report and validates it. Fields that it does not know
// are ignored: they are those of a newer sidecar.
func DecodeReport(data []byte) (Report, error) {
	if len(data) > MaxReportBytes {
		return Report{}, fmt.Errorf("decoding report: %d bytes, at most %d are read", len(data), MaxReportBytes)
	}
	var r Report
	if err := json.Unmarshal(data, &r); err != nil {
		return Report{}, fmt.Errorf("decoding report: %w", err)
	}
	if err := r.Validate(); err != nil {
		return Report{}, fmt.Errorf("decoding report: %w", err)
	}
	return r, nil
}

// checkName checks the alphabet and the length of a Kubernetes name. The finer
// rules of a name are left out: the collector looks the pod up by it.
func checkName(field, value string, limit int) error {
	return check(field, value, limit, func(b byte) bool {
		return lower(b) || digit(b) || b == '-' || b == '.'
	})
}

// checkID checks an opaque value: a UID, a nonce, a container id such as
// "containerd://4f1c…".
func checkID(field, value string) error {
	return check(field, value, maxID, func(b byte) bool {
		return lower(b) || upper(b) || digit(b) || b == '-' || b == '_' || b == '.' || b == ':' || b == '/'
	})
}

// checkReason holds a reason to CamelCase, which is within what a condition takes:
// a report with another one could not be written to the pod.
func checkReason(value string) error {
	if value != "" && !lower(value[0]) && !upper(value[0]) {
		return fmt.Errorf("reason %.32q starts with no letter", value)
	}
	return check("reason", value, maxReason, func(b byte) bool {
		return lower(b) || upper(b) || digit(b)
	})
}

func check(field, value string, limit int, allowed func(byte) bool) error {
	if value == "" {
		return fmt.Errorf("%s is empty", field)
	}
	if len(value) > limit {
		return fmt.Errorf("%s has %d bytes, at most %d are allowed", field, len(value), limit)
	}
	for i := range len(value) {
		if !allowed(value[i]) {
			return fmt.Errorf("%s %.32q holds the character %q, which is not allowed", field, value, value[i])
		}
	}
	return nil
}

func lower(b byte) bool { return 'a' <= b && b <= 'z' }
func upper(b byte) bool { return 'A' <= b && b <= 'Z' }
func digit(b byte) bool { return '0' <= b && b <= '9' }
