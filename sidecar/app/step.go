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

	// soonest is the least time from one probe to the next until the container was ready once;
	// the kubelet's own is a second.
	soonest = 100 * time.Millisecond
	// share: until then, the wait for the next probe is this part of the time since the start, so
	// that readiness is seen within a twentieth of what it took, for at most
	// 40+20·ln(period/soonest) probes more than the period makes: 86 at 1 s.
	share = 20
	// A success that comes sooner than the period counts when it is the last of so many in a row,
	// confirm apart: who asks more often would else find a container ready that seldom answers.
	confirmations = 3
	confirm       = 10 * time.Millisecond
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
	// found: the container was ready since the sidecar began.
	found bool
	// slot is when the last probe began whose result counts by itself, and counts is whether that
	// of the one under way, or the last, does: those that come sooner than the period do not.
	// asked is when that one began.
	slot, asked time.Time
	counts      bool
	// streak is successes in a row, whether they count or not.
	streak int

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
	st := state{settings: s, reporter: reporter, since: now, verdict: wire.StateUnknown, reason: reasonPending, nextProbe: now, nextReport: now, earliest: now, interval: wire.DefaultInterval}
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
		if searched {
			s.nextProbe = s.again(e.now)
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
		s.nextProbe = sooner(s.nextProbe, e.now.Add(s.period()))
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
		s.asked, s.nextProbe = e.now, e.now.Add(s.period())
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
	if !e.result.OK {
		s.good, s.streak = 0, 0
		if s.counts {
			s.bad = min(s.bad+1, s.settings.Failures)
		}
	} else if s.streak = min(s.streak+1, confirmations); s.counts || s.streak == confirmations {
		s.good, s.bad = min(s.good+1, s.settings.Successes), 0
	}
	want := s.verdict
	switch {
	case s.stopping:
		return s, false
	case e.result.OK && s.good >= s.settings.Successes:
		want, s.found = wire.StateReady, true
	case !e.result.OK && s.bad >= s.settings.Failures:
		want = wire.StateNotReady
	}
	// Only a result that agrees makes what is known newer: one failure may be the first of
	// another run of the container.
	agrees := (want == wire.StateReady) == e.result.OK && want != wire.StateUnknown
	changed := want != s.verdict
	if changed {
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

// searches reports whether the container is waited for since the start, and no success has
// counted. Once it was ready, the period alone says when to probe: by the collector's interval
// that is a second or two where a recovery waits.
func (s state) searches() bool { return !s.found && s.good == 0 }

// again is when to probe after a probe that ended now, of a container that was waited for: no
// more than half of the time goes into probes, and one is where the period wants it.
func (s state) again(now time.Time) time.Time {
	switch {
	case !s.searches():
		return now.Add(s.period())
	case s.streak > 0:
		return now.Add(confirm)
	}
	next := now.Add(min(max(now.Sub(s.since)/share, now.Sub(s.asked), soonest), s.period()))
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
