package collector

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/belay-dev/belay/sidecar/wire"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/recovery"
)

var accepting = []Reason{ReasonWritten, ReasonUnchanged, ReasonLate, ReasonEarlierRun, ReasonNotRunning, ReasonFinished}

var refusing = []Reason{ReasonOtherPod, ReasonNotOptedIn, ReasonPodGone, ReasonPodReplaced, ReasonPodDeleting, ReasonNoSuchContainer}

// checkDecision holds a decision to what must be so whatever it is about.
func checkDecision(t *testing.T, in Input, d Decision) {
	t.Helper()
	bad := func(what string) {
		t.Helper()
		t.Errorf("%s: %s\n%+v", what, outcome(d), in)
	}
	switch {
	case d.WantLive:
		if in.Pod.Live {
			bad("it was read already")
		}
		if diff := gocmp.Diff(Decision{WantLive: true}, d); diff != "" {
			bad("a wish and a decision at once")
		}
		return
	case d.Accepted && (d.Retry || !slices.Contains(accepting, d.Reason) || d.Interval < wire.MinInterval || d.Interval > wire.DefaultInterval):
		bad("no way to accept")
	case d.Retry && (d.Reason != ReasonLookupFailed || d.Interval != 0 || d.Write != nil):
		bad("no way to ask for another try")
	case !d.Accepted && !d.Retry && (!slices.Contains(refusing, d.Reason) || d.Interval != 0 || d.Write != nil):
		bad("no way to refuse")
	case (d.Write != nil) != (d.Reason == ReasonWritten):
		bad("written or not")
	case d.Accepted && (in.ModeState != fact.Known || in.Mode != v1alpha1.ModeEnforce || in.Pod.State != fact.Known):
		bad("accepted without the facts")
	}
	if d.Write == nil {
		return
	}
	p := in.Pod.Pod
	whole := in.Report.Namespace == in.Caller.Namespace && in.Report.Pod == in.Caller.Pod && types.UID(in.Report.UID) == in.Caller.UID
	if !in.Pod.Live || p.UID != in.Caller.UID || p.Deleting || !whole || p.Phase == corev1.PodFailed || p.Phase == corev1.PodSucceeded {
		bad("written to a pod that it must not be written to")
	}
	after := recovery.PodOf(written(pod(), *d.Write, in.Now)).Report
	at := slices.IndexFunc(p.Containers, func(c recovery.Container) bool { return c.Name == in.Report.Container && !c.Init })
	if at < 0 || after.Container == "" || after.Container != p.Containers[at].ID {
		bad("about no container")
		return
	}
	if diff := gocmp.Diff(orderOf(in.Report), after.Order); diff != "" {
		bad("its order cannot be read again: " + diff)
	}
	main := p.Containers[at]
	switch {
	case (after.Status == corev1.ConditionTrue) != (in.Report.State == wire.StateReady):
		bad("ready, or not")
	case after.Status == corev1.ConditionTrue && (!main.Running || main.Started == 0 || in.Report.ObservedUnixMillis < main.Started*1000+1000):
		bad("ready, about a run that may be over")
	case d.Write.Changed != (!p.Report.Present || p.Report.Status != after.Status):
		bad("changed, or not")
	case p.Report.Reporter == in.Report.Reporter && p.Report.Sequence > in.Report.Sequence:
		bad("over a later one")
	}
}

// dice draws inputs from few values, so that all that can be equal often is.
type dice struct{ *rand.Rand }

func oneOf[T any](d dice, of ...T) T { return of[d.IntN(len(of))] }

func (d dice) millis() int64 {
	return oneOf(d, 0, 1, now.UnixMilli()-3_600_000, now.UnixMilli()-60_000, now.UnixMilli()-59_001, now.UnixMilli()-59_000, now.UnixMilli()-1000, now.UnixMilli(), now.UnixMilli()+5000, now.UnixMilli()+5001, wire.MaxUnixMillis)
}

func (d dice) order() recovery.Order {
	return recovery.Order{Reporter: oneOf(d, "r1", "r2", "r2", "r3"), Sequence: oneOf[uint64](d, 1, 4, 5, 5, 5, 6, 1<<64-1), Since: d.millis()}
}

func (d dice) report() wire.Report {
	o := d.order()
	return wire.Report{
		Namespace: oneOf(d, "lab", "lab", "lab", "lab", "lab", "lab", "other"), Pod: oneOf(d, "box-0", "box-0", "box-0", "box-0", "box-0", "box-0", "box-1"), UID: oneOf(d, "u1", "u1", "u1", "u1", "u1", "u1", "u2"),
		Container: oneOf(d, "main", "main", "main", "main", "proxy", "belay", "work"), State: oneOf(d, wire.StateReady, wire.StateReady, wire.StateNotReady, wire.StateUnknown),
		Reason: oneOf(d, "ProbeSucceeded", "ProbeSucceeded", "NoProbe", "ExecProbe", "ProbePending"), Reporter: o.Reporter, ReporterSinceUnixMillis: o.Since, Sequence: o.Sequence, ObservedUnixMillis: d.millis(),
	}
}

func (d dice) pod() *corev1.Pod {
	p := pod()
	p.UID = oneOf(d, me.UID, me.UID, me.UID, me.UID, me.UID, "u2", "")
	p.Status.Phase = oneOf(d, corev1.PodRunning, corev1.PodRunning, corev1.PodRunning, corev1.PodPending, corev1.PodFailed, corev1.PodSucceeded, corev1.PodUnknown, "")
	p.Spec.RestartPolicy = oneOf(d, corev1.RestartPolicyAlways, corev1.RestartPolicyNever)
	if d.IntN(8) == 0 {
		deleting(p)
	}
	mainIs(func(s *corev1.ContainerStatus) {
		s.ContainerID = oneOf(d, "containerd://m1", "containerd://m1", "containerd://m1", "containerd://m2", "")
		s.Ready = d.IntN(2) == 0
		switch d.IntN(8) {
		case 0:
			s.State = corev1.ContainerState{}
		case 1:
			s.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
		case 2:
			s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}
		case 3:
			s.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
		}
	})(p)
	switch d.IntN(6) {
	case 0:
	case 1:
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: v1alpha1.MainReadyCondition, Status: "odd", Message: "somebody else's: (report 9 of r2"})
	default:
		said(oneOf(d, corev1.ConditionTrue, corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown), oneOf(d, "ProbeSucceeded", "NoProbe", "ProbePending"),
			oneOf(d, "containerd://m1", "containerd://m1", "containerd://m2"), d.order(), oneOf(d, 0, time.Second, 10*time.Second, 3*time.Minute, -time.Second, -time.Hour))(p)
	}
	return p
}

func (d dice) input() Input {
	in := Input{
		Report: d.report(), Caller: me, Mode: oneOf(d, v1alpha1.ModeEnforce, v1alpha1.ModeEnforce, v1alpha1.ModeEnforce, v1alpha1.ModeEnforce, v1alpha1.ModeEnforce, v1alpha1.ModeWarn, "", "x"),
		ModeState:  oneOf(d, fact.Known, fact.Known, fact.Known, fact.Known, fact.Known, fact.Known, fact.Absent, fact.Unknown),
		Pod:        PodFact{State: oneOf(d, fact.Known, fact.Known, fact.Known, fact.Known, fact.Known, fact.Absent, fact.Unknown), Live: d.IntN(3) > 0},
		Recovering: d.IntN(3) == 0, FreshFor: oneOf(d, 0, time.Second, 30*time.Second, 10*time.Minute), Witnesses: d.IntN(2) == 0, Unsure: d.IntN(4) == 0, Now: now,
	}
	if d.IntN(2) == 0 {
		// What is there already is often what is reported once more.
		in.Report = report(sequence(in.Report.Sequence))
	}
	if in.Pod.State != fact.Known {
		return in
	}
	if p := d.pod(); in.Pod.Live {
		in.Pod.Pod = recovery.PodOf(p)
	} else {
		in.Pod.Pod = cachedOf(p)
	}
	return in
}

// TestWhateverComes: a decision is total, and writes nothing that it must not write.
func TestWhateverComes(t *testing.T) {
	t.Parallel()
	d := dice{rand.New(rand.NewPCG(1, 2))}
	seen := map[string]int{}
	for range 40_000 {
		in := d.input()
		got := Decide(in)
		checkDecision(t, in, got)
		key := string(got.Reason)
		if got.Write != nil {
			key += fmt.Sprint(" ", got.Write.Status, got.Write.Changed)
		}
		seen[key]++
		if again := Decide(in); gocmp.Diff(got, again) != "" {
			t.Errorf("not the same twice: %s, %s", outcome(got), outcome(again))
		}
		// The same report, with nothing found out yet.
		unknown := in
		unknown.ModeState = fact.Unknown
		if u := Decide(unknown); u.Accepted || u.Write != nil {
			t.Errorf("accepted without the mode: %s", outcome(u))
		}
		unknown = in
		unknown.Pod = PodFact{}
		if u := Decide(unknown); u.Accepted || u.Write != nil {
			t.Errorf("accepted without the pod: %s", outcome(u))
		}
		if t.Failed() {
			return
		}
	}
	// The dice reach all there is.
	for _, r := range slices.Concat(accepting, refusing, []Reason{ReasonLookupFailed}) {
		for _, key := range []string{string(r), string(r) + " Truetrue"} {
			if (r == ReasonWritten) == (key != string(r)) && seen[key] < 5 {
				t.Errorf("%s: %d times", key, seen[key])
			}
		}
	}
}

// TestWhatIsWrittenNeedNotBeWrittenAgain: the same report about the Pod as it is then changes
// nothing, and informers can tell.
func TestWhatIsWrittenNeedNotBeWrittenAgain(t *testing.T) {
	t.Parallel()
	d := dice{rand.New(rand.NewPCG(3, 4))}
	writes := 0
	for range 30_000 {
		p := d.pod()
		in := d.input()
		in.Pod = PodFact{State: fact.Known, Live: true, Pod: recovery.PodOf(p)}
		first := Decide(in)
		if first.Write == nil {
			continue
		}
		writes++
		after := written(p, *first.Write, in.Now)
		if in.Recovering && in.FreshFor < 3*time.Second {
			in.Recovering = false // a time in whole seconds is a third of that old at once
		}
		in.Pod.Pod = recovery.PodOf(after)
		if again := Decide(in); again.Reason != ReasonUnchanged {
			t.Fatalf("%s, after %s\n%+v", outcome(again), outcome(first), in)
		}
		in.Pod.Live, in.Pod.Pod = false, cachedOf(after)
		if again := Decide(in); again.Reason != ReasonUnchanged {
			t.Fatalf("from informers: %s, after %s\n%+v", outcome(again), outcome(first), in)
		}
	}
	if writes < 1000 {
		t.Errorf("only %d writes", writes)
	}
}

// TestInformersSayNothingElse: what is decided by what informers have, is decided alike by
// what the API server has, if they are up to date.
func TestInformersSayNothingElse(t *testing.T) {
	t.Parallel()
	d := dice{rand.New(rand.NewPCG(5, 6))}
	decided := 0
	for range 30_000 {
		p, in := d.pod(), d.input()
		in.Pod = PodFact{State: fact.Known, Pod: cachedOf(p)}
		cached := Decide(in)
		if cached.WantLive {
			continue
		}
		decided++
		in.Pod = PodFact{State: fact.Known, Live: true, Pod: recovery.PodOf(p)}
		if diff := gocmp.Diff(Decide(in), cached); diff != "" {
			t.Fatalf("(-live +informers)\n%s\n%+v", diff, in)
		}
	}
	if decided < 1000 {
		t.Errorf("only %d decisions", decided)
	}
}

// race is one Pod with collectors that take reports, each of which may stop between its read
// and its write.
type race struct {
	pod     *corev1.Pod
	version int
}

// call is a report that a collector works on.
type call struct {
	report  wire.Report
	live    bool
	version int
	write   *Condition
	done    bool
}

// step does the next thing of a call: it reads and decides, or writes.
func (r *race) step(t *testing.T, c *call, behind *corev1.Pod) {
	t.Helper()
	if c.write != nil {
		if c.version == r.version {
			r.pod, r.version, c.done = written(r.pod, *c.write, now), r.version+1, true
		}
		c.write = nil // changed meanwhile: read again
		return
	}
	in := from(c.report, r.pod)
	if !c.live {
		in = fromCache(c.report, behind)
	}
	d := Decide(in)
	checkDecision(t, in, d)
	switch {
	case d.WantLive:
		c.live = true
	case d.Write != nil:
		c.write, c.version = d.Write, r.version
	default:
		c.done = true
	}
}

// TestTheLastReportStays: whatever the order in which reports come to two collectors, however
// often, and however far behind their informers are, the condition is that of the last one.
func TestTheLastReportStays(t *testing.T) {
	t.Parallel()
	for seed := range uint64(1000) {
		d := dice{rand.New(rand.NewPCG(seed, 7))}
		var reports []wire.Report
		for i, run := range []string{"r7", "r3", "r5"}[:1+d.IntN(3)] {
			for n := range 1 + d.IntN(4) {
				reports = append(reports, report(byRun(run, now.Add(time.Duration(i-30)*time.Second)), sequence(uint64(n+1)),
					oneOf(d, notReady, unknown("ProbePending"), func(*wire.Report) {})))
			}
		}
		last := slices.MaxFunc(reports, func(a, b wire.Report) int {
			return cmp.Or(cmp.Compare(a.ReporterSinceUnixMillis, b.ReporterSinceUnixMillis), cmp.Compare(a.Sequence, b.Sequence))
		})
		var calls []*call
		for _, r := range reports {
			for range 1 + d.IntN(2) { // sent again
				calls = append(calls, &call{report: r})
			}
		}
		r := &race{pod: pod()}
		states := []*corev1.Pod{r.pod}
		for len(calls) > 0 {
			i := d.IntN(len(calls))
			r.step(t, calls[i], states[d.IntN(len(states))])
			states = append(states, r.pod)
			if calls[i].done {
				calls = slices.Delete(calls, i, i+1)
			}
		}
		got := recovery.PodOf(r.pod).Report
		if got.Order != orderOf(last) || got.Reason != last.Reason || got.Container != "containerd://m1" {
			t.Fatalf("seed %d: %+v stays, and not %+v", seed, got, last)
		}
	}
}
