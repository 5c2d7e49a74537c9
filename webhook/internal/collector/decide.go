package collector

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/belay-dev/belay/sidecar/wire"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/recovery"
)

// Reason says what came of a report. The list is closed.
type Reason string

// Reasons of decisions.
const (
	// ReasonWritten: the condition was written.
	ReasonWritten Reason = "Written"
	// ReasonUnchanged: the condition says so already.
	ReasonUnchanged Reason = "Unchanged"
	// ReasonLate: a later report came before it.
	ReasonLate Reason = "Late"
	// ReasonEarlierRun: it is about a run of the container that is over, or was observed too
	// near to the start of the one there is to tell.
	ReasonEarlierRun Reason = "EarlierRun"
	// ReasonNotRunning: as far as the API server knows the container does not run.
	ReasonNotRunning Reason = "NotRunning"
	// ReasonFinished: the Pod is done.
	ReasonFinished Reason = "Finished"

	// ReasonOtherPod: the report is about another Pod than the token is bound to.
	ReasonOtherPod Reason = "OtherPod"
	// ReasonNotOptedIn: the namespace does not have belay's label with the value enforce.
	ReasonNotOptedIn Reason = "NamespaceNotEnforced"
	// ReasonPodGone: there is no such Pod.
	ReasonPodGone Reason = "PodGone"
	// ReasonPodReplaced: there is another Pod of that name.
	ReasonPodReplaced Reason = "PodReplaced"
	// ReasonPodDeleting: the Pod is being deleted.
	ReasonPodDeleting Reason = "PodDeleting"
	// ReasonNoSuchContainer: the Pod has no such container.
	ReasonNoSuchContainer Reason = "NoSuchContainer"
	// ReasonLookupFailed: something could not be found out, or written; to be sent again.
	ReasonLookupFailed Reason = "LookupFailed"
)

// Caller is the Pod that a token is bound to.
type Caller struct {
	Namespace, Pod string
	UID            types.UID
}

// PodFact is the Pod that a report names.
type PodFact struct {
	State fact.State
	// Live: it was read for this report, and not long before.
	Live bool
	Pod  recovery.Pod
}

// Input is all that a decision depends on.
type Input struct {
	Report wire.Report
	Caller Caller
	// Mode is that of the namespace; ModeState says whether it is known.
	Mode      string
	ModeState fact.State
	Pod       PodFact
	// Recovering: a failed object waits for this Pod. FreshFor is how old a report may be
	// then.
	Recovering bool
	FreshFor   time.Duration
	// Witnesses: there is a policy that goes by reports. Unsure: it is not known yet whom
	// failed objects wait for.
	Witnesses, Unsure bool
	Now               time.Time
}

// Decision is what becomes of a report.
type Decision struct {
	Reason Reason
	// Accepted: the report need not be sent again. Otherwise Retry says whether it should be.
	Accepted, Retry bool
	// WantLive: the Pod has to be read first; nothing else of the decision counts then.
	WantLive bool
	// Write is the condition to write; nil for none.
	Write *Condition
	// Interval is when to report again.
	Interval time.Duration
}

// Condition is what the Pod's condition is to say.
type Condition struct {
	Status  corev1.ConditionStatus
	Reason  string
	Message string
	// Changed: the status is another than before.
	Changed bool
}

const (
	// soon is the interval until a report can be told to be about the run there is.
	soon = wire.MinInterval
	// trial is the interval of a Pod that is not ready, where a policy goes by reports: its
	// object may be about to fail, and what the record says is heard of by the next report.
	trial = 10 * time.Second
	// skew is how far a node's clock may be ahead of the collector's. A run of a sidecar that
	// is to begin later than that orders nothing: the clock was wrong.
	skew = 5 * time.Second
	// settled is how long reports of a run of a sidecar that is over may still come in: the
	// connection of one ends after 45 s without a call, reading one and working on it take 10 s
	// each. A run that began earlier by the node's clock, and speaks later than that, is the
	// one there is: the clock was put back.
	settled = 2 * time.Minute
)

// Decide decides what becomes of a report. It is a pure function.
func Decide(in Input) Decision {
	refuse := func(r Reason) Decision { return Decision{Reason: r} }
	switch r := in.Report; {
	case r.Namespace != in.Caller.Namespace || r.Pod != in.Caller.Pod || types.UID(r.UID) != in.Caller.UID:
		return refuse(ReasonOtherPod)
	case in.ModeState == fact.Unknown:
		return Decision{Reason: ReasonLookupFailed, Retry: true}
	case in.ModeState != fact.Known || in.Mode != v1alpha1.ModeEnforce:
		return refuse(ReasonNotOptedIn)
	}
	pod := in.Pod.Pod
	live := Decision{WantLive: true}
	if in.Pod.State != fact.Known || pod.UID != in.Caller.UID {
		switch {
		case !in.Pod.Live:
			return live
		case in.Pod.State == fact.Unknown:
			return Decision{Reason: ReasonLookupFailed, Retry: true}
		case in.Pod.State != fact.Known:
			return refuse(ReasonPodGone)
		default:
			return refuse(ReasonPodReplaced)
		}
	}
	if pod.Deleting {
		return refuse(ReasonPodDeleting)
	}
	main, ok := container(pod, in.Report.Container)
	if !ok {
		return refuse(ReasonNoSuchContainer)
	}
	d := Decision{Accepted: true, Interval: in.interval(main)}
	order := recovery.Order{Reporter: in.Report.Reporter, Sequence: in.Report.Sequence, Since: in.Report.ReporterSinceUnixMillis}
	switch {
	case pod.Phase == corev1.PodSucceeded || pod.Phase == corev1.PodFailed:
		d.Reason = ReasonFinished
		return d
	case later(pod.Report, order, in.Now):
		d.Reason = ReasonLate
		return d
	}
	want := in.condition()
	id, reason := run(main, in.Report)
	if reason != "" {
		// That it does not run informers know well enough: a container that waits, of a Pod whose
		// probe succeeds all the same, must not cost a read each second. Of anything else than
		// ready they do not know which container it is about.
		if !in.Pod.Live && (in.Report.State != wire.StateReady || reason != ReasonNotRunning || main.Running) {
			return live
		}
		d.Reason = reason
		d.Interval = min(d.Interval, trial)
		if mayFollow(main, in.Report) {
			d.Interval = soon
		}
		return d
	}
	was := pod.Report
	same := was.Present && was.Status == want.Status && was.Reason == want.Reason && was.Container == id && was.Reporter == order.Reporter && was.Sequence == order.Sequence
	age := in.Now.Sub(was.At) // below zero by another clock
	fresh := -skew <= age && age < in.FreshFor/3
	if same && (fresh || !in.Recovering) {
		d.Reason = ReasonUnchanged
		return d
	}
	if !in.Pod.Live {
		return live
	}
	want.Message = recovery.ReportMessage(id, want.Message, order)
	want.Changed = !was.Present || was.Status != want.Status
	d.Reason, d.Write = ReasonWritten, &want
	return d
}

// container finds a container by its name; the sidecar itself and other init containers are
// none.
func container(p recovery.Pod, name string) (recovery.Container, bool) {
	for _, c := range p.Containers {
		if !c.Init && c.Name == name {
			return c, true
		}
	}
	return recovery.Container{}, false
}

// later reports whether what is written is later than what has come. One run of a sidecar
// counts; two runs are on one node, and go by its clock.
func later(was recovery.Report, is recovery.Order, now time.Time) bool {
	if was.Reporter == is.Reporter {
		return was.Sequence > is.Sequence
	}
	if is.Since == 0 {
		return was.Since > 0 // one that was asked for by hand, which has no say beside another
	}
	// Both are of one node's clock, which may be ahead; only one of them is ahead after it was
	// put right.
	ahead, age := now.Add(skew).UnixMilli(), now.Sub(was.At)
	return was.Since > is.Since && (was.Since <= ahead || is.Since > ahead) && -skew <= age && age < settled
}

// run finds the run of the container that a report is about; reason says why there is none.
// A container was started somewhen within the second that the kubelet tells. Ready has to be
// about the run there is. For anything else it does no harm to be about another.
func run(c recovery.Container, r wire.Report) (id string, reason Reason) {
	switch {
	case r.State == wire.StateReady && (!c.Running || c.ID == ""):
		return "", ReasonNotRunning
	case r.State == wire.StateReady && (c.Started == 0 || r.ObservedUnixMillis < (c.Started+1)*1000):
		return "", ReasonEarlierRun
	case c.ID == "":
		return "", ReasonNotRunning
	}
	return c.ID, ""
}

// mayFollow reports whether a report that says ready, and is about no run yet, can soon be
// followed by one that is: the kubelet is about to tell of the run, or the next probe begins
// late enough. Otherwise each second would cost a read for nothing.
func mayFollow(c recovery.Container, r wire.Report) bool {
	switch {
	case r.State != wire.StateReady || c.Ended && c.NeverRestarted:
		return false
	case !c.Running || c.ID == "":
		return true
	}
	return c.Started != 0 && r.ObservedUnixMillis+trial.Milliseconds() >= (c.Started+1)*1000
}

// condition is the condition that a report asks for, without whose report it is.
func (in Input) condition() Condition {
	switch r := in.Report; r.State {
	case wire.StateReady:
		return Condition{Status: corev1.ConditionTrue, Reason: r.Reason, Message: "the sidecar's probe of the main container succeeds"}
	case wire.StateNotReady:
		return Condition{Status: corev1.ConditionFalse, Reason: r.Reason, Message: "the sidecar's probe of the main container fails"}
	default:
		text := "the sidecar cannot tell whether the main container is ready"
		if defers(r) {
			text = "there is no probe that a sidecar can run, so that the kubelet's verdict counts"
		}
		return Condition{Status: corev1.ConditionUnknown, Reason: r.Reason, Message: text}
	}
}

// defers reports whether the sidecar leaves the verdict to the kubelet.
func defers(r wire.Report) bool {
	return recovery.Report{Status: corev1.ConditionUnknown, Reason: r.Reason}.Defers() && r.State == wire.StateUnknown
}

// interval is when the Pod is to report again: long as a rule, short while a failed object
// waits for it. Cost follows failures, not Pods: one without a probe is no failure.
func (in Input) interval(main recovery.Container) time.Duration {
	ready := in.Report.State == wire.StateReady || defers(in.Report) && main.Ready
	switch {
	case in.Recovering:
		return min(max(in.FreshFor/3, wire.MinInterval), wire.DefaultInterval)
	case in.Unsure, in.Witnesses && !ready:
		return trial
	default:
		return wire.DefaultInterval
	}
}
