package recovery

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// AnnotationDefaultContainer names a Pod's main container, as kubectl knows it:
// https://kubernetes.io/docs/reference/labels-annotations-taints/#kubectl-kubernetes-io-default-container
const AnnotationDefaultContainer = "kubectl.kubernetes.io/default-container"

// Pod is what decisions read of a Pod. It is small, since informers keep one for each.
type Pod struct {
	Name string
	UID  types.UID
	// Controller is the UID of its controller; empty for none.
	Controller types.UID
	Deleting   bool
	Phase      corev1.PodPhase
	// Reason is the status's own, such as Evicted.
	Reason string
	// Ready is the condition Ready; Gate is the first readiness gate that is not true.
	Ready bool
	Gate  string
	// Default is the annotation that names the main container; empty for none.
	Default string
	// Containers are those of the spec with their state: first the init containers.
	Containers []Container
	Report     Report
}

// Container is one container of a Pod.
type Container struct {
	Name string
	Init bool
	// Sidecar is an init container that is restarted always.
	Sidecar bool
	// NeverRestarted: when it ends, it has ended.
	NeverRestarted bool
	// Listed: the status has it. All below is empty otherwise.
	Listed  bool
	ID      string
	Ready   bool
	Running bool
	// Started is when the one that runs was started, in seconds since 1970, as the kubelet
	// tells it: by the node's clock, rounded down. 0 for unknown.
	Started int64
	// Waiting is the reason for which it waits, or unsaid.
	Waiting string
	// Ended: it has terminated, with ExitCode.
	Ended    bool
	ExitCode int32
}

// unsaid stands for the reason of a container that waits without one, or whose state says
// nothing: the API's default is that it waits.
const unsaid = "Waiting"

// Report is what the sidecar's condition says.
type Report struct {
	Present bool
	Status  corev1.ConditionStatus
	Reason  string
	// Container is the ID of the container that it is about.
	Container string
	// At is when the report came.
	At time.Time
	Order
}

// Order says which of two reports about one Pod is the later one.
type Order struct {
	// Reporter is one run of the sidecar, Sequence counts what it has told.
	Reporter string
	Sequence uint64
	// Since is when that run began, by the node's clock, in milliseconds since 1970.
	Since int64
}

// Defers reports whether the sidecar leaves the verdict to the kubelet: there is no probe that
// it could run.
func (r Report) Defers() bool {
	return r.Status == corev1.ConditionUnknown && slices.Contains([]string{ReportNoProbe, ReportExecProbe, ReportUnusableProbe}, r.Reason)
}

// Reasons of reports that leave the verdict to the kubelet.
const (
	ReportNoProbe   = "NoProbe"
	ReportExecProbe = "ExecProbe"
	// ReportUnusableProbe: the kubelet has a probe that the sidecar cannot run.
	ReportUnusableProbe = "UnusableProbe"
)

// ReportMessage is the message of the sidecar's condition: the container's ID first, whose
// report it is last.
func ReportMessage(container, text string, o Order) string {
	return container + ": " + text + ofOrder(o)
}

func ofOrder(o Order) string {
	return fmt.Sprintf(" (report %d of %s since %s)", o.Sequence, o.Reporter, time.UnixMilli(o.Since).UTC().Format(sinceFormat))
}

const sinceFormat = "2006-01-02T15:04:05.000Z"

// readMessage reads what ReportMessage wrote. What it cannot read is the zero value: such a
// report is earlier than any.
func readMessage(message string) (container string, o Order) {
	container, rest, ok := strings.Cut(message, ": ")
	if !ok {
		return "", Order{}
	}
	i := strings.LastIndex(rest, " (report ")
	if i < 0 {
		return container, Order{}
	}
	var since string
	if n, err := fmt.Sscanf(rest[i:], " (report %d of %s since %s", &o.Sequence, &o.Reporter, &since); n != 3 || err != nil {
		return container, Order{}
	}
	at, err := time.Parse(sinceFormat, strings.TrimSuffix(since, ")"))
	if err != nil {
		return container, Order{}
	}
	o.Since = at.UnixMilli()
	if !strings.HasSuffix(message, ofOrder(o)) {
		return container, Order{} // somebody else's words
	}
	return container, o
}

// PodOf takes from a Pod what decisions read.
func PodOf(p *corev1.Pod) Pod {
	out := Pod{
		Name: p.Name, UID: p.UID, Deleting: p.DeletionTimestamp != nil, Phase: p.Status.Phase, Reason: p.Status.Reason,
		Default: p.Annotations[AnnotationDefaultContainer],
	}
	if c := metav1.GetControllerOfNoCopy(p); c != nil {
		out.Controller = c.UID
	}
	for _, c := range p.Status.Conditions {
		switch c.Type {
		case corev1.PodReady:
			out.Ready = c.Status == corev1.ConditionTrue
		case v1alpha1.MainReadyCondition:
			out.Report = Report{Present: true, Status: c.Status, Reason: c.Reason, At: c.LastProbeTime.Time}
			out.Report.Container, out.Report.Order = readMessage(c.Message)
		}
	}
	for _, g := range p.Spec.ReadinessGates {
		if !trueCondition(p.Status.Conditions, g.ConditionType) {
			out.Gate = string(g.ConditionType)
			break
		}
	}
	out.Containers = make([]Container, 0, len(p.Spec.InitContainers)+len(p.Spec.Containers))
	for i := range p.Spec.InitContainers {
		c := containerOf(&p.Spec.InitContainers[i], p.Spec.RestartPolicy, p.Status.InitContainerStatuses)
		c.Init = true
		c.Sidecar = p.Spec.InitContainers[i].RestartPolicy != nil && *p.Spec.InitContainers[i].RestartPolicy == corev1.ContainerRestartPolicyAlways
		out.Containers = append(out.Containers, c)
	}
	for i := range p.Spec.Containers {
		out.Containers = append(out.Containers, containerOf(&p.Spec.Containers[i], p.Spec.RestartPolicy, p.Status.ContainerStatuses))
	}
	return out
}

func trueCondition(conditions []corev1.PodCondition, t corev1.PodConditionType) bool {
	for _, c := range conditions {
		if c.Type == t {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// containerOf finds the status of a container by its name: the kubelet sorts statuses by
// name, and injectors put containers in front.
func containerOf(c *corev1.Container, pod corev1.RestartPolicy, statuses []corev1.ContainerStatus) Container {
	out := Container{Name: c.Name, NeverRestarted: pod == corev1.RestartPolicyNever}
	switch {
	case len(c.RestartPolicyRules) > 0:
		// Whether it is restarted depends on how it ends; the Pod's phase will tell.
		out.NeverRestarted = false
	case c.RestartPolicy != nil:
		out.NeverRestarted = *c.RestartPolicy == corev1.ContainerRestartPolicyNever
	}
	for i := range statuses {
		s := &statuses[i]
		if s.Name != c.Name {
			continue
		}
		out.Listed, out.ID, out.Ready, out.Running = true, s.ContainerID, s.Ready, s.State.Running != nil
		switch {
		case s.State.Running != nil:
			if at := s.State.Running.StartedAt; !at.IsZero() {
				out.Started = at.Unix()
			}
		case s.State.Terminated != nil:
			out.Ended, out.ExitCode = true, s.State.Terminated.ExitCode
		case s.State.Waiting != nil && s.State.Waiting.Reason != "":
			out.Waiting = s.State.Waiting.Reason
		default:
			out.Waiting = unsaid
		}
		break
	}
	return out
}

// Main is the container whose state counts, by name: what the annotation says, else the
// policy, else the first of the spec. problem says why there is none: a name that no
// container has is not guessed around.
func (p Pod) Main(policy string) (main Container, problem string) {
	name, from := p.Default, "the annotation "+AnnotationDefaultContainer
	if name == "" {
		name, from = policy, "the policy's mainContainer"
	}
	for _, c := range p.Containers {
		if !c.Init && (name == "" || c.Name == name) {
			return c, ""
		}
	}
	if name == "" {
		return Container{}, "it has no containers"
	}
	return Container{}, "it has no container " + quote(name) + ", which " + from + " names"
}
