package collector

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/belay-dev/belay/sidecar/wire"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/recovery"
)

// from is the input of a report about a Pod as the API server has it.
func from(r wire.Report, p *corev1.Pod, changes ...func(*Input)) Input {
	in := Input{
		Report: r, Caller: me, Mode: v1alpha1.ModeEnforce, ModeState: fact.Known,
		Pod: PodFact{State: fact.Known, Live: true, Pod: recovery.PodOf(p)}, Now: now,
	}
	for _, change := range changes {
		change(&in)
	}
	return in
}

// fromCache is the input of a report about a Pod as informers have it.
func fromCache(r wire.Report, p *corev1.Pod, changes ...func(*Input)) Input {
	return from(r, p, append([]func(*Input){func(in *Input) { in.Pod.Live, in.Pod.Pod = false, cachedOf(p) }}, changes...)...)
}

func without(state fact.State, live bool) func(*Input) {
	return func(in *Input) { in.Pod = PodFact{State: state, Live: live} }
}

func recovering(freshFor time.Duration) func(*Input) {
	return func(in *Input) { in.Recovering, in.FreshFor = true, freshFor }
}

func witnesses(in *Input) { in.Witnesses = true }

func unsure(in *Input) { in.Unsure = true }

// outcome is a decision in words.
func outcome(d Decision) string {
	again := "; again in " + d.Interval.String()
	switch {
	case d.WantLive:
		return "read the pod"
	case d.Write != nil && d.Write.Changed:
		return fmt.Sprintf("turn to %s: %s: %s", d.Write.Status, d.Write.Reason, d.Write.Message) + again
	case d.Write != nil:
		return fmt.Sprintf("refresh %s: %s: %s", d.Write.Status, d.Write.Reason, d.Write.Message) + again
	case d.Accepted:
		return "take " + string(d.Reason) + again
	case d.Retry:
		return "later " + string(d.Reason)
	}
	return "refuse " + string(d.Reason)
}

func TestDecide(t *testing.T) {
	t.Parallel()
	const (
		of       = " (report 5 of r2 since 2026-03-01T11:59:00.000Z)"
		yes      = "True: ProbeSucceeded: containerd://m1: the sidecar's probe of the main container succeeds" + of
		no       = "False: ProbeFailed: containerd://m1: the sidecar's probe of the main container fails" + of
		pending  = "Unknown: ProbePending: containerd://m1: the sidecar cannot tell whether the main container is ready" + of
		noProbe  = "Unknown: NoProbe: containerd://m1: there is no probe that a sidecar can run, so that the kubelet's verdict counts" + of
		isTrue   = corev1.ConditionTrue
		isFalse  = corev1.ConditionFalse
		aMinute  = "; again in 1m0s"
		trying   = "; again in 10s"
		atOnce   = "; again in 1s"
		okReason = "ProbeSucceeded"
	)
	since := now.Add(-time.Minute)
	order := orderOf(report())
	// left is the very condition that report() leaves, so long ago.
	left := func(ago time.Duration) func(*corev1.Pod) {
		return said(isTrue, okReason, "containerd://m1", order, ago)
	}
	after := func(change func(*recovery.Order)) func(*corev1.Pod) {
		o := order
		change(&o)
		return said(isFalse, "ProbeFailed", "containerd://m1", o, time.Second)
	}
	startedAt := func(at time.Time) func(*corev1.Pod) {
		return mainIs(func(s *corev1.ContainerStatus) { s.State = runningSince(at) })
	}
	for name, c := range map[string]struct {
		in   Input
		want string
	}{
		"the first report": {from(report(), pod()), "turn to " + yes + aMinute},
		"not ready":        {from(report(notReady), pod()), "turn to " + no + aMinute},
		"no result yet":    {from(report(unknown("ProbePending")), pod()), "turn to " + pending + aMinute},
		"no probe":         {from(report(unknown("NoProbe")), pod()), "turn to " + noProbe + aMinute},

		// Whose report it is.
		"C24: it names another namespace":   {from(report(func(r *wire.Report) { r.Namespace = "other" }), pod()), "refuse OtherPod"},
		"C24: it names another pod":         {from(report(func(r *wire.Report) { r.Pod = "box-1" }), pod()), "refuse OtherPod"},
		"C24: it names another UID":         {from(report(func(r *wire.Report) { r.UID = "u2" }), pod()), "refuse OtherPod"},
		"C24: the token is another pod's":   {from(report(), pod(), func(in *Input) { in.Caller.UID = "u2" }), "refuse OtherPod"},
		"C24: another pod, before any fact": {from(report(func(r *wire.Report) { r.UID = "u2" }), pod(), without(fact.Unknown, false), func(in *Input) { in.ModeState = fact.Unknown }), "refuse OtherPod"},

		// The namespace.
		"the mode is not known":        {from(report(), pod(), func(in *Input) { in.ModeState = fact.Unknown }), "later LookupFailed"},
		"the namespace is gone":        {from(report(), pod(), func(in *Input) { in.Mode, in.ModeState = "", fact.Absent }), "refuse NamespaceNotEnforced"},
		"a mode of no namespace":       {from(report(), pod(), func(in *Input) { in.ModeState = fact.Absent }), "refuse NamespaceNotEnforced"},
		"the namespace has no label":   {from(report(), pod(), func(in *Input) { in.Mode = "" }), "refuse NamespaceNotEnforced"},
		"the namespace is only warned": {from(report(), pod(), func(in *Input) { in.Mode = v1alpha1.ModeWarn }), "refuse NamespaceNotEnforced"},
		"a mode that nobody knows":     {from(report(), pod(), func(in *Input) { in.Mode = "Enforce" }), "refuse NamespaceNotEnforced"},
		"no mode, and no pod was read": {from(report(), pod(), without(fact.Unknown, false), func(in *Input) { in.Mode = "" }), "refuse NamespaceNotEnforced"},

		// The Pod.
		"no informer has the pod":                      {from(report(), pod(), without(fact.Unknown, false)), "read the pod"},
		"informers say that there is none":             {from(report(), pod(), without(fact.Absent, false)), "read the pod"},
		"the pod could not be read":                    {from(report(), pod(), without(fact.Unknown, true)), "later LookupFailed"},
		"there is no such pod":                         {from(report(), pod(), without(fact.Absent, true)), "refuse PodGone"},
		"informers still have another pod":             {fromCache(report(), pod(func(p *corev1.Pod) { p.UID = "u0" })), "read the pod"},
		"C24: there is another pod of that name":       {from(report(), pod(func(p *corev1.Pod) { p.UID = "u2" })), "refuse PodReplaced"},
		"C24: another pod of that name, being deleted": {from(report(), pod(deleting, func(p *corev1.Pod) { p.UID = "u2" })), "refuse PodReplaced"},
		"C23: the pod is being deleted":                {from(report(), pod(deleting)), "refuse PodDeleting"},
		"C23: informers know that it is":               {fromCache(report(), pod(deleting)), "refuse PodDeleting"},
		"C23: what is written stays":                   {from(report(), pod(deleting, left(time.Second))), "refuse PodDeleting"},
		"it has succeeded":                             {from(report(), pod(inPhase(corev1.PodSucceeded))), "take Finished" + aMinute},
		"it has failed":                                {from(report(notReady), pod(inPhase(corev1.PodFailed))), "take Finished" + aMinute},
		"informers know that it has failed":            {fromCache(report(notReady), pod(inPhase(corev1.PodFailed))), "take Finished" + aMinute},
		"C20: its phase is Pending for a while":        {from(report(), pod(inPhase(corev1.PodPending))), "turn to " + yes + aMinute},
		"nobody knows its phase":                       {from(report(), pod(inPhase(corev1.PodUnknown))), "turn to " + yes + aMinute},
		"it has no phase":                              {from(report(), pod(inPhase(""))), "turn to " + yes + aMinute},

		// The container.
		"a container that is not there":  {from(report(func(r *wire.Report) { r.Container = "work" }), pod()), "refuse NoSuchContainer"},
		"informers know that it is not":  {fromCache(report(func(r *wire.Report) { r.Container = "work" }), pod()), "refuse NoSuchContainer"},
		"the sidecar itself":             {from(report(func(r *wire.Report) { r.Container = "belay" }), pod()), "refuse NoSuchContainer"},
		"another one than the first":     {from(report(notReady, func(r *wire.Report) { r.Container = "proxy" }), pod()), "turn to " + strings.ReplaceAll(no, "m1", "p1") + aMinute},
		"ready, and the container waits": {from(report(), pod(waiting)), "take NotRunning" + atOnce},
		"ready, and it has no status":    {from(report(), pod(func(p *corev1.Pod) { p.Status.ContainerStatuses = nil })), "take NotRunning" + atOnce},
		"ready, and it has no ID":        {from(report(), pod(withoutID)), "take NotRunning" + atOnce},
		"ready, and it has ended for good": {from(report(), pod(func(p *corev1.Pod) {
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			mainIs(func(s *corev1.ContainerStatus) {
				s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}
			})(p)
		})), "take NotRunning" + trying},
		"ready, and it has ended, to be restarted": {from(report(), pod(mainIs(func(s *corev1.ContainerStatus) {
			s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}
		}))), "take NotRunning" + atOnce},
		"not ready, and the container waits": {from(report(notReady), pod(waiting)), "turn to " + no + aMinute},
		"not ready, and it has no ID":        {from(report(notReady), pod(withoutID)), "take NotRunning" + trying},
		"informers have no ID: ready":        {fromCache(report(), pod()), "read the pod"},
		"informers have no ID: not ready":    {fromCache(report(notReady), pod()), "read the pod"},
		"informers have it waiting":          {fromCache(report(), pod(waiting)), "take NotRunning" + atOnce},

		"informers have it waiting: not ready": {fromCache(report(notReady), pod(waiting)), "read the pod"},
		"informers have it waiting: no result": {fromCache(report(unknown("ProbePending")), pod(waiting)), "read the pod"},
		"informers have no status of it":       {fromCache(report(), pod(func(p *corev1.Pod) { p.Status.ContainerStatuses = nil })), "take NotRunning" + atOnce},

		// The run of the container.
		"C20: the probe began before the second is over": {from(report(observed(since.Add(999*time.Millisecond))), pod()), "take EarlierRun" + atOnce},
		"C20: the probe began in the next second":        {from(report(observed(since.Add(time.Second))), pod()), "turn to " + yes + aMinute},
		"C20: the probe began before the run":            {from(report(observed(since.Add(-time.Millisecond))), pod()), "take EarlierRun" + atOnce},
		"C20: long before the run: its clock differs":    {from(report(observed(since.Add(-10*time.Second))), pod()), "take EarlierRun" + trying},
		"C20: just near enough to be followed":           {from(report(observed(since.Add(-9*time.Second))), pod()), "take EarlierRun" + atOnce},
		"C20: it vouches for no run":                     {from(report(func(r *wire.Report) { r.ObservedUnixMillis = 0 }), pod()), "take EarlierRun" + trying},
		"C20: nobody knows when it was started":          {from(report(), pod(mainIs(func(s *corev1.ContainerStatus) { s.State.Running.StartedAt.Reset() }))), "take EarlierRun" + trying},
		"C20: not ready says nothing of a run":           {from(report(notReady, observed(since.Add(-time.Hour))), pod()), "turn to " + no + aMinute},
		"C20: same pod, new container: an old report":    {from(report(), pod(left(time.Second), startedAt(now), mainIs(func(s *corev1.ContainerStatus) { s.ContainerID = "containerd://m2" }))), "take EarlierRun" + atOnce},
		"C20: same pod, new container: a new report": {
			from(report(observed(now.Add(time.Second))), pod(left(time.Second), startedAt(now), mainIs(func(s *corev1.ContainerStatus) { s.ContainerID = "containerd://m2" }))),
			"refresh " + strings.ReplaceAll(yes, "m1", "m2") + aMinute,
		},
		"C20: same pod, new container, new sidecar": {
			from(report(observed(now.Add(2*time.Second)), byRun("r3", now.Add(time.Second)), sequence(1)), pod(left(time.Second), startedAt(now), mainIs(func(s *corev1.ContainerStatus) { s.ContainerID = "containerd://m2" }))),
			"refresh True: ProbeSucceeded: containerd://m2: the sidecar's probe of the main container succeeds (report 1 of r3 since 2026-03-01T12:00:01.000Z)" + aMinute,
		},
		"C20: informers have the new container": {fromCache(report(observed(now.Add(time.Second))), pod(left(time.Second), startedAt(now), mainIs(func(s *corev1.ContainerStatus) { s.ContainerID = "containerd://m2" }))), "read the pod"},

		// Which report is the later one.
		"a later number is written":                   {from(report(), pod(after(func(o *recovery.Order) { o.Sequence = 6 }))), "take Late" + aMinute},
		"a much later number":                         {from(report(), pod(after(func(o *recovery.Order) { o.Sequence = 1<<64 - 1 }))), "take Late" + aMinute},
		"the same number, and another state":          {from(report(), pod(after(func(*recovery.Order) {}))), "turn to " + yes + aMinute},
		"an earlier number is written":                {from(report(), pod(after(func(o *recovery.Order) { o.Sequence = 4 }))), "turn to " + yes + aMinute},
		"informers know the later one":                {fromCache(report(), pod(after(func(o *recovery.Order) { o.Sequence = 6 }))), "take Late" + aMinute},
		"informers know an earlier one":               {fromCache(report(), pod(after(func(o *recovery.Order) { o.Sequence = 4 }))), "read the pod"},
		"a later run has spoken":                      {from(report(), pod(after(func(o *recovery.Order) { o.Reporter, o.Since, o.Sequence = "r1", o.Since+1, 1 }))), "take Late" + aMinute},
		"an earlier run has spoken, with more to say": {from(report(), pod(after(func(o *recovery.Order) { o.Reporter, o.Since, o.Sequence = "r1", o.Since-1, 99 }))), "turn to " + yes + aMinute},
		"a run from the same millisecond":             {from(report(), pod(after(func(o *recovery.Order) { o.Reporter, o.Sequence = "r1", 99 }))), "turn to " + yes + aMinute},
		"a run that nobody knows the beginning of":    {from(report(), pod(after(func(o *recovery.Order) { o.Reporter, o.Since = "r1", 0 }))), "turn to " + yes + aMinute},
		"it tells no beginning, and another did":      {from(report(func(r *wire.Report) { r.ReporterSinceUnixMillis = 0 }), pod(after(func(o *recovery.Order) { o.Reporter = "r1" }))), "take Late" + aMinute},
		"it tells no beginning, and another did, long ago": {
			from(report(func(r *wire.Report) { r.ReporterSinceUnixMillis = 0 }), pod(said(isFalse, "ProbeFailed", "containerd://m1", recovery.Order{Reporter: "r1", Since: 1}, time.Hour))), "take Late" + aMinute,
		},
		"none of two runs tells its beginning": {
			from(report(func(r *wire.Report) { r.ReporterSinceUnixMillis = 0 }), pod(after(func(o *recovery.Order) { o.Reporter, o.Since = "r1", 0 }))),
			"turn to " + strings.Replace(yes, "2026-03-01T11:59", "1970-01-01T00:00", 1) + aMinute,
		},
		"it tells no beginning, and goes on": {
			from(report(func(r *wire.Report) { r.ReporterSinceUnixMillis = 0 }), pod(said(isFalse, "ProbeFailed", "containerd://m1", recovery.Order{Reporter: "r2", Sequence: 4}, time.Second))),
			"turn to " + strings.Replace(yes, "2026-03-01T11:59", "1970-01-01T00:00", 1) + aMinute,
		},
		"a run that is to begin in five seconds": {from(report(), pod(after(func(o *recovery.Order) { o.Reporter, o.Since = "r1", now.Add(5*time.Second).UnixMilli() }))), "take Late" + aMinute},
		"a run that is to begin later than that": {from(report(), pod(after(func(o *recovery.Order) { o.Reporter, o.Since = "r1", now.Add(5*time.Second).UnixMilli()+1 }))), "turn to " + yes + aMinute},
		"the same run, whatever its clock says":  {from(report(), pod(after(func(o *recovery.Order) { o.Sequence, o.Since = 6, now.Add(time.Hour).UnixMilli() }))), "take Late" + aMinute},
		"C20: the node's clock was put back, and a later run has spoken": {
			from(report(byRun("r3", now.Add(-time.Hour))), pod(said(isFalse, "ProbeFailed", "containerd://m1", order, settled-time.Second))), "take Late" + aMinute,
		},
		"C20: the node's clock was put back, and that is long ago": {
			from(report(byRun("r3", now.Add(-time.Hour))), pod(said(isFalse, "ProbeFailed", "containerd://m1", order, settled))),
			"turn to " + strings.Replace(yes, "r2 since 2026-03-01T11:59", "r3 since 2026-03-01T11:00", 1) + aMinute,
		},
		"the number counts however long ago": {from(report(), pod(said(isFalse, "ProbeFailed", "containerd://m1", recovery.Order{Reporter: "r2", Sequence: 6}, time.Hour))), "take Late" + aMinute},
		"the condition is not ours": {from(report(), pod(func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: v1alpha1.MainReadyCondition, Status: isFalse, Message: "because"})
		})), "turn to " + yes + aMinute},

		// Whether there is anything to write.
		"it is written already":             {from(report(), pod(left(time.Hour))), "take Unchanged" + aMinute},
		"informers know that it is":         {fromCache(report(), pod(left(time.Hour))), "take Unchanged" + aMinute},
		"the reason is another":             {from(report(), pod(said(isTrue, "Other", "containerd://m1", order, time.Second))), "refresh " + yes + aMinute},
		"the status is another":             {from(report(), pod(said(isFalse, okReason, "containerd://m1", order, time.Second))), "turn to " + yes + aMinute},
		"the container is another":          {from(report(), pod(said(isTrue, okReason, "containerd://m0", order, time.Second))), "refresh " + yes + aMinute},
		"the number is another":             {from(report(), pod(said(isTrue, okReason, "containerd://m1", recovery.Order{Reporter: "r2", Sequence: 4}, time.Second))), "refresh " + yes + aMinute},
		"the run of the sidecar is another": {from(report(), pod(said(isTrue, okReason, "containerd://m1", recovery.Order{Reporter: "r1", Sequence: 5}, time.Second))), "refresh " + yes + aMinute},

		// Freshness, and when to report again.
		"an object waits, and it is fresh":                     {from(report(), pod(left(9*time.Second)), recovering(30*time.Second)), "take Unchanged" + trying},
		"an object waits, and it is a third of its time old":   {from(report(), pod(left(10*time.Second)), recovering(30*time.Second)), "refresh " + yes + trying},
		"an object waits, and informers know that it is old":   {fromCache(report(), pod(left(10*time.Second)), recovering(30*time.Second)), "read the pod"},
		"an object waits, and another clock is a bit ahead":    {from(report(), pod(left(-5*time.Second)), recovering(30*time.Second)), "take Unchanged" + trying},
		"an object waits, and another clock is far ahead":      {from(report(), pod(left(-5*time.Second-1)), recovering(30*time.Second)), "refresh " + yes + trying},
		"no object waits, and another clock is far ahead":      {from(report(), pod(left(-time.Hour))), "take Unchanged" + aMinute},
		"an object waits for a second at most":                 {from(report(), pod(left(time.Second)), recovering(time.Second)), "refresh " + yes + atOnce},
		"an object waits for an hour":                          {from(report(), pod(left(time.Minute)), recovering(time.Hour)), "take Unchanged" + aMinute},
		"an object waits for no time at all":                   {from(report(), pod(left(0)), recovering(0)), "refresh " + yes + atOnce},
		"an object waits, and it is not ready":                 {from(report(notReady), pod(), recovering(9*time.Second)), "turn to " + no + "; again in 3s"},
		"an object waits, and the container does too":          {from(report(notReady), pod(withoutID), recovering(9*time.Second)), "take NotRunning; again in 3s"},
		"an object waits for long, and the container does too": {from(report(notReady), pod(withoutID), recovering(time.Hour)), "take NotRunning" + trying},
		"an object waits, and the pod is done":                 {from(report(), pod(inPhase(corev1.PodFailed)), recovering(30*time.Second)), "take Finished" + trying},
		"nobody knows yet what waits: ready":                   {from(report(), pod(), unsure), "turn to " + yes + trying},
		"nobody knows yet what waits: it is written already":   {from(report(), pod(left(time.Hour)), unsure), "take Unchanged" + trying},
		"nobody knows yet what waits, but an object does":      {from(report(), pod(), unsure, recovering(9*time.Second)), "turn to " + yes + "; again in 3s"},
		"a policy goes by reports: ready":                      {from(report(), pod(), witnesses), "turn to " + yes + aMinute},
		"a policy goes by reports: not ready":                  {from(report(notReady), pod(), witnesses), "turn to " + no + trying},
		"a policy goes by reports: no result yet":              {from(report(unknown("ProbePending")), pod(), witnesses), "turn to " + pending + trying},
		"a policy goes by reports: no probe, and ready":        {from(report(unknown("NoProbe")), pod(), witnesses), "turn to " + noProbe + aMinute},
		"a policy goes by reports: not ready, although it says no probe": {
			from(report(notReady, func(r *wire.Report) { r.Reason = "NoProbe" }), pod(), witnesses), "turn to " + strings.Replace(no, "ProbeFailed", "NoProbe", 1) + trying,
		},
		"a policy goes by reports: no probe, and not ready": {
			from(report(unknown("NoProbe")), pod(mainIs(func(s *corev1.ContainerStatus) { s.Ready = false })), witnesses), "turn to " + noProbe + trying,
		},
		"a policy goes by reports, and an object waits":           {from(report(notReady), pod(), witnesses, recovering(9*time.Second)), "turn to " + no + "; again in 3s"},
		"a policy goes by reports, and an object waits, for long": {from(report(notReady), pod(), witnesses, recovering(time.Hour)), "turn to " + no + aMinute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := Decide(c.in)
			if diff := cmp.Diff(c.want, outcome(d)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			checkDecision(t, c.in, d)
		})
	}
}

// TestNothingIsTakenWithoutFacts: the zero facts are Unknown.
func TestNothingIsTakenWithoutFacts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in   Input
		want string
	}{
		"nothing at all":       {Input{}, "later LookupFailed"},
		"only who calls":       {Input{Report: report(), Caller: me, Now: now}, "later LookupFailed"},
		"and the namespace":    {Input{Report: report(), Caller: me, Now: now, Mode: v1alpha1.ModeEnforce, ModeState: fact.Known}, "read the pod"},
		"and no pod was found": {Input{Report: report(), Caller: me, Now: now, Mode: v1alpha1.ModeEnforce, ModeState: fact.Known, Pod: PodFact{Live: true}}, "later LookupFailed"},
		"a pod without a UID":  {Input{Mode: v1alpha1.ModeEnforce, ModeState: fact.Known, Pod: PodFact{State: fact.Known}}, "refuse NoSuchContainer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := outcome(Decide(c.in)); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}
