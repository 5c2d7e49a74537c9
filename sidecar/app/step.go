package app

import (
	"time"

	"github.com/belay-dev/belay/sidecar/channel"
	"github.com/belay-dev/belay/sidecar/probe"
	"github.com/belay-dev/belay/sidecar/settings"
	"github.com/belay-dev/belay/sidecar/wire"
)

// Reasons of reports beside those of probes.
const (
	// reasonPending: no probe has come to a result yet.
	reasonPending = "ProbePending"
	// reasonStopping: the sidecar was asked to stop, and speaks for nobody any more.
	reasonStopping = "Stopping"
)

const (
	// gap is the least time from one report to the next.
	gap = time.Second
	// refusedWait is how long to wait after a refusal, which the same report will get again
	// until the token, the pod or the cluster is another.
	refusedWait = time.Minute

	// soonest is the least time between two probes while the container is not known to be
	// ready; the kubelet's own is a second.
	soonest = 100 * time.Millisecond
	// share: until the container is ready, the wait for the next probe is this part of the time
	// that it was waited for, so that readiness is seen within a twentieth of what it took, for
	// at most 20+20·ln(period/soonest) probes more than the period makes: 66 at 1 s.
	share = 20
)

// why is why a sidecar that runs no probe does not.
var why = map[settings.Kind]string{
	settings.KindNone:     "NoProbe",
	settings.KindExec:     "ExecProbe",
	settings.KindUnusable: "UnusableProbe",
}

// state is all that the sidecar knows. It is a value: step makes the next one.
type state struct {
	settings settings.Settings
	// reporter is this run of the sidecar, and since when it began; the zero time gives way
	// to any other.
	reporter string
	since    time.Time

	// What is known of the container, and since which probe.
	verdict  wire.State
	reason   string
	observed time.Time
	// sequence counts changes.
	sequence uint64
	// good and bad are results in a row.
	good, bad int

	probing bool
	// nextProbe is when to probe next.
	nextProbe time.Time
	// waiting is since when the container is waited for.
	waiting time.Time
	// slot is when the last probe began whose failure counts, and counts is whether that of the
	// one under way does: those that come sooner than the period do not.
	slot   time.Time
	counts bool

	sending bool
	// tried is the last sequence that was sent, and told the last that was delivered; 0 for
	// none.
	tried, told uint64
	// nextReport is when to report although nothing has changed; nothing is sent before
	// earliest.
	nextReport, earliest time.Time
	// interval is what the collector asked for.
	interval time.Duration
	backoff  channel.Backoff
	stopping bool
}

// event is what happened, at a time.
type event struct {
	kind eventKind
	now  time.Time
	// random is in [0, 1).
	random float64

	result probe.Result // probed

	sequence uint64        // of the report: delivered, failed, refused
	interval time.Duration // delivered: until the next report; busy, refused: until the next try, or 0
}

type eventKind string

const (
	// tick: it is time, or may be.
	tick eventKind = "tick"
	// probed: a probe has ended.
	probed eventKind = "probed"
	// delivered: the collector has the report.
	delivered eventKind = "delivered"
	// failed: it is not known whether the collector has it.
	failed eventKind = "failed"
	// busy: the collector asks to wait.
	busy eventKind = "busy"
	// refused: the collector does not take it.
	refused eventKind = "refused"
	// stop: SIGTERM.
	stop eventKind = "stop"
)

// actions are what is to be done.
type actions struct {
	probe  bool
	report *wire.Report
	// rest: no call for a while; the connection is not needed.
	rest bool
	exit bool
	// changed: the verdict is another.
	changed bool
}

// begin is the state at the start.
func begin(s settings.Settings, reporter string, now time.Time) state {
	st := state{settings: s, reporter: reporter, since: now, verdict: wire.StateUnknown, reason: reasonPending, nextProbe: now, waiting: now, nextReport: now, earliest: now, interval: wire.DefaultInterval}
	if !s.Probe.Runs() {
		st.reason = why[s.Probe.Kind]
		st.sequence = 1
	}
	return st
}

// step is all that the sidecar decides.
func step(s state, e event) (state, actions) {
	var a actions
	switch e.kind {
	case tick:
	case probed:
		s.probing = false
		searched := s.searches()
		s, a.changed = s.judge(e)
		switch {
		case searched && !s.searches():
			s.nextProbe = e.now.Add(s.period()) // a second success is not to come sooner
		case s.searches():
			s.nextProbe = sooner(s.nextProbe, s.next(e.now))
		}
	case delivered:
		s.sending = false
		s.told = max(s.told, e.sequence)
		s.backoff = s.backoff.Succeeded()
		s.interval = e.interval
		// A tenth earlier at most, so that sidecars that began together do not stay together.
		s.nextReport = e.now.Add(e.interval - time.Duration(e.random*float64(e.interval)/10))
		s.earliest = e.now.Add(gap)
		// What is asked for now must not wait for a probe that was put off before.
		s.nextProbe = sooner(s.nextProbe, s.next(e.now))
		a.rest = s.interval >= restAfter && s.told >= s.sequence
	case failed, busy, refused:
		s.sending = false
		var wait time.Duration
		s.backoff, wait = s.backoff.Failed(e.random)
		wait = max(wait, e.interval)
		s.earliest, s.nextReport = e.now.Add(wait), e.now.Add(wait)
		if e.kind == refused {
			long := refusedWait
			if e.interval > 0 {
				long = e.interval
			}
			s.nextReport = e.now.Add(long - time.Duration(e.random*float64(long)/2))
		}
	case stop:
		if !s.stopping {
			s.stopping = true
			s.verdict, s.reason = wire.StateUnknown, reasonStopping
			s.sequence++
			s.earliest = e.now
		}
	}
	if s.stopping {
		return s.end(e, a)
	}
	if s.settings.Probe.Runs() && !s.probing && !e.now.Before(s.nextProbe) {
		s.probing = true
		if s.counts = !s.searches() || e.now.Sub(s.slot) >= s.period(); s.counts {
			s.slot = e.now
		}
		s.nextProbe = s.next(e.now)
		a.probe = true
	}
	if !s.sending && s.due(e.now) {
		s.sending, s.tried = true, s.sequence
		a.report = s.report(e.now)
	}
	return s, a
}

// restAfter is the interval from which a connection is closed between two reports: it costs
// the collector some 40 KiB while it is open, and a handshake costs a third of a millisecond.
const restAfter = 5 * time.Second

// judge takes a result in.
func (s state) judge(e event) (state, bool) {
	switch {
	case e.result.OK:
		s.good, s.bad = min(s.good+1, s.settings.Successes), 0
	case s.counts:
		s.good, s.bad = 0, min(s.bad+1, s.settings.Failures)
	default:
		s.good = 0
	}
	want := s.verdict
	switch {
	case s.stopping:
		return s, false
	case e.result.OK && s.good >= s.settings.Successes:
		want = wire.StateReady
	case !e.result.OK && s.bad >= s.settings.Failures:
		want = wire.StateNotReady
	}
	// Only a result that agrees makes what is known newer: one failure may be the first of
	// another run of the container.
	agrees := (want == wire.StateReady) == e.result.OK && want != wire.StateUnknown
	changed := want != s.verdict
	if changed {
		if s.verdict == wire.StateReady {
			s.waiting = e.now
		}
		s.verdict, s.reason = want, e.result.Reason
		s.sequence++
	}
	if agrees {
		s.observed = e.result.At
	}
	return s, changed
}

// due reports whether it is time to report.
func (s state) due(now time.Time) bool {
	if s.sequence == 0 || now.Before(s.earliest) {
		return false
	}
	return s.tried < s.sequence || !now.Before(s.nextReport)
}

// end is what is done while stopping: what is on its way ends first, and one last report
// follows, if there ever was one.
func (s state) end(e event, a actions) (state, actions) {
	switch {
	case s.sending:
	case s.tried == 0, s.tried == s.sequence:
		a.exit = true
	default:
		s.sending, s.tried = true, s.sequence
		a.report = s.report(e.now)
	}
	return s, a
}

// period is the time from one probe to the next: as the pod asks for, or as often as the
// collector asks for reports.
func (s state) period() time.Duration {
	return max(min(s.settings.Period, s.interval), settings.MinPeriod)
}

// searches reports whether the container is waited for and has not answered well yet.
func (s state) searches() bool { return s.verdict != wire.StateReady && s.good == 0 }

// next is when to probe after a probe at now: a period later, and sooner while the container is
// waited for. How many successes it takes, and how many failures, goes by the period all the
// same.
func (s state) next(now time.Time) time.Time {
	if !s.searches() {
		return now.Add(s.period())
	}
	next := now.Add(min(max(now.Sub(s.waiting)/share, soonest), s.period()))
	if slot := s.slot.Add(s.period()); slot.After(now) {
		return sooner(next, slot)
	}
	return next
}

func sooner(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// wake is when the next tick is due; zero for never.
func (s state) wake() time.Time {
	var at time.Time
	if s.stopping {
		return at // for what is on its way, with the bound on stopping
	}
	if s.settings.Probe.Runs() && !s.probing {
		at = s.nextProbe
	}
	if !s.sending && s.sequence > 0 {
		next := s.nextReport
		if s.tried < s.sequence || next.Before(s.earliest) {
			next = s.earliest
		}
		if at.IsZero() || next.Before(at) {
			at = next
		}
	}
	return at
}

// millis are within what a report takes, whatever a file's or a clock's time is: 0 would be
// absent, and vouch for any run.
func millis(t time.Time) int64 {
	return min(max(t.UnixMilli(), 1), wire.MaxUnixMillis)
}

func (s state) report(now time.Time) *wire.Report {
	// How long ago it was goes by the clock that only runs forward: had the node's been put back
	// since, what was observed of an earlier run would seem to be of the next one.
	observed := now.Add(-now.Sub(s.observed))
	if s.verdict == wire.StateUnknown {
		observed = now // nothing was observed but that the sidecar runs
	}
	r := &wire.Report{
		Namespace: s.settings.Namespace, Pod: s.settings.Pod, UID: s.settings.PodUID, Container: s.settings.Container,
		State: s.verdict, Reason: s.reason, Reporter: s.reporter, Sequence: s.sequence, ObservedUnixMillis: millis(observed),
	}
	if !s.since.IsZero() {
		r.ReporterSinceUnixMillis = millis(s.since)
	}
	return r
}
