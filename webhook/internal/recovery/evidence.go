package recovery

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/wording"
)

// futureReport is how far a report's time may be ahead of the clock that judges it: two
// replicas' clocks differ.
const futureReport = 5 * time.Second

// Verdict is what the evidence says of one recorded UID, or of a Pod that is not in the
// record.
type Verdict struct {
	UID types.UID
	// Pod is the name of the Pod; empty where there is none.
	Pod string
	// Reason is empty when the Pod is ready again. Detail says more, for people.
	Reason Reason
	Detail string
	// NoSidecar: a report is missing, and nobody is there who could send one. The Pod was
	// created while belay was not asked, or has declined.
	NoSidecar bool
}

// OK reports whether the Pod is ready again.
func (v Verdict) OK() bool { return v.Reason == "" }

func (v Verdict) String() string {
	if v.OK() {
		return fmt.Sprintf("pod %s (uid %s) is ready again", quote(v.Pod), v.UID)
	}
	what := fmt.Sprintf("uid %s", quote(string(v.UID)))
	if v.Pod != "" {
		what = fmt.Sprintf("pod %s (uid %s)", quote(v.Pod), clean(string(v.UID)))
	}
	return wording.Clip(fmt.Sprintf("%s: %s: %s", what, v.Reason, v.Detail), maxLine)
}

// maxLine bounds what is said of one Pod: names of containers and reasons are other
// people's text.
const maxLine = 300

// Awaits are the UIDs whose Pods an object with this status may recover by: while it has
// failed, and on its way from a failure. None where no evidence is ever enough.
func (p Policy) Awaits(s Status) []string {
	k := p.kind(s.Phase)
	if s.Problem != "" || k == recovered || k == replacing || k == failed && s.Terminal || slices.Contains(s.Record.UIDs, v1alpha1.NoPodUID) {
		return nil
	}
	return s.Record.UIDs
}

// Evidence says for every recorded UID whether the same Pod is ready again, in the order of
// the record, and after them which other Pods of the object are failing. pods are all Pods
// of the object. It is a pure function of them and of the time.
func (p Policy) Evidence(record []string, pods []Pod, now time.Time) []Verdict {
	out := make([]Verdict, 0, len(record))
	for _, uid := range record {
		out = append(out, p.verdict(types.UID(uid), record, pods, now))
	}
	for _, pod := range pods {
		if slices.Contains(record, string(pod.UID)) {
			continue
		}
		if why, failing := p.Failing(pod); failing {
			out = append(out, Verdict{UID: pod.UID, Pod: pod.Name, Reason: ReasonOtherPodFailing, Detail: "it was not recorded, and is failing: " + why})
		}
	}
	return out
}

func (p Policy) verdict(uid types.UID, record []string, pods []Pod, now time.Time) Verdict {
	if uid == v1alpha1.NoPodUID {
		return Verdict{UID: uid, Reason: ReasonOverflow, Detail: "more pods failed than the record has room for"}
	}
	for _, pod := range pods {
		if uid != "" && pod.UID == uid {
			v := Verdict{UID: uid, Pod: pod.Name}
			v.Reason, v.Detail = p.notReady(pod, now)
			v.NoSidecar = v.Reason == ReasonReportMissing && !pod.hasSidecar()
			return v
		}
	}
	for _, pod := range pods {
		if !pod.Deleting && !slices.Contains(record, string(pod.UID)) {
			return Verdict{UID: uid, Reason: ReasonPodReplaced, Detail: fmt.Sprintf("that pod is gone; pod %s (uid %s) is another one", quote(pod.Name), pod.UID)}
		}
	}
	return Verdict{UID: uid, Reason: ReasonPodGone, Detail: "the object has no such pod"}
}

// notReady says why a Pod that is there is not ready again; an empty reason when it is.
func (p Policy) notReady(pod Pod, now time.Time) (Reason, string) {
	if pod.Deleting {
		return ReasonPodDeleting, "it is being deleted"
	}
	if pod.Phase != corev1.PodRunning {
		return ReasonPodNotRunning, fmt.Sprintf("its phase is %s", quote(string(pod.Phase))) + pod.holdup()
	}
	main, problem := pod.Main(p.MainContainer)
	switch {
	case problem != "":
		return ReasonMainMissing, problem
	case !main.Listed:
		return ReasonMainMissing, fmt.Sprintf("its status does not list container %s", quote(main.Name))
	case main.Ended:
		return ReasonMainNotRunning, fmt.Sprintf("container %s ended with code %d", quote(main.Name), main.ExitCode)
	case !main.Running:
		return ReasonMainNotRunning, fmt.Sprintf("container %s waits: %s", quote(main.Name), clean(main.Waiting))
	}
	// A sidecar that has no probe to run says so, and leaves the verdict to the kubelet.
	if p.Source != v1alpha1.EvidenceWitness || pod.Report.Defers() {
		switch {
		case !main.Ready:
			return ReasonPodNotReady, fmt.Sprintf("container %s is not ready", quote(main.Name))
		case !pod.Ready:
			return ReasonPodNotReady, "its condition Ready is not True" + pod.unready()
		case pod.Gate != "":
			return ReasonPodNotReady, fmt.Sprintf("its readiness gate %s is not True", quote(pod.Gate))
		}
	}
	if why, failing := p.Failing(pod); failing {
		// Whoever looks at its containers says failed, and the object would fail again at once.
		return ReasonPodNotReady, why
	}
	if p.Source == v1alpha1.EvidenceWitness || p.Source == v1alpha1.EvidenceBoth {
		return p.unwitnessed(pod.Report, main, now)
	}
	return "", ""
}

func (p Pod) hasSidecar() bool {
	return slices.ContainsFunc(p.Containers, func(c Container) bool { return c.Init && c.Name == v1alpha1.SidecarName })
}

// unready names the first container that is not ready: init containers first, since a
// sidecar's state is in no list that people look at.
func (p Pod) unready() string {
	for _, c := range p.Containers {
		if c.Init && !c.Sidecar {
			continue
		}
		if !c.Ready {
			if c.Waiting != "" {
				return fmt.Sprintf("; %s waits: %s", c.words(), clean(c.Waiting))
			}
			return fmt.Sprintf("; %s is not ready", c.words())
		}
	}
	return ""
}

// holdup names the first container that waits for a reason of its own, and not for others.
func (p Pod) holdup() string {
	for _, c := range p.Containers {
		if c.Waiting != "" && c.Waiting != "PodInitializing" && c.Waiting != "ContainerCreating" && c.Waiting != unsaid {
			return fmt.Sprintf("; %s waits: %s", c.words(), clean(c.Waiting))
		}
	}
	return ""
}

// unwitnessed says why the sidecar's report does not count.
func (p Policy) unwitnessed(r Report, main Container, now time.Time) (Reason, string) {
	switch {
	case !r.Present:
		return ReasonReportMissing, "no sidecar has reported: it has no condition " + v1alpha1.MainReadyCondition
	case main.ID == "" || r.Container != main.ID:
		return ReasonReportStale, "the last report is about an earlier container"
	case now.Sub(r.At) > p.FreshFor || r.At.Sub(now) > futureReport:
		return ReasonReportStale, fmt.Sprintf("the last report is from %s, and must not be older than %s", r.At.UTC().Format(time.RFC3339), p.FreshFor)
	case r.Status != corev1.ConditionTrue && !r.Defers():
		text := fmt.Sprintf("the sidecar reports that container %s is not ready", quote(main.Name))
		if r.Reason != "" {
			text += ": " + clean(r.Reason)
		}
		return ReasonReportNotReady, text
	}
	return "", ""
}

// refusals are the verdicts that are not OK.
func refusals(all []Verdict) []Verdict {
	var out []Verdict
	for _, v := range all {
		if !v.OK() {
			out = append(out, v)
		}
	}
	return out
}

// clean makes other people's text fit for a message.
func clean(s string) string { return wording.OneLine(wording.Clip(s, 256)) }

// quote quotes other people's text for a message.
func quote(s string) string {
	return `"` + strings.ReplaceAll(wording.OneLine(wording.Clip(s, 128)), `"`, "'") + `"`
}
