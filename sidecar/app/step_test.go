package app

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/belay-dev/belay/sidecar/channel"
	"github.com/belay-dev/belay/sidecar/probe"
	"github.com/belay-dev/belay/sidecar/settings"
	"github.com/belay-dev/belay/sidecar/wire"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func probing() settings.Settings {
	return settings.Settings{
		Namespace: "training", Pod: "worker-0", PodUID: "u-1", Container: "main",
		Probe:  settings.Probe{Kind: settings.KindHTTP, Port: 80},
		Period: 10 * time.Second, Timeout: time.Second, Successes: 1, Failures: 3,
	}
}

func unprobed(kind settings.Kind) settings.Settings {
	s := probing()
	s.Probe = settings.Probe{Kind: kind}
	return s
}

// world is the state and a clock. It checks, after each step, what must always be so.
type world struct {
	t         *testing.T
	st        state
	now       time.Time
	began     time.Time // of the probe under way
	probe     bool
	report    *wire.Report // under way
	exited    bool
	sequences []uint64 // of reports that were sent, each once
	last      actions
}

func newWorld(t *testing.T, s settings.Settings) *world {
	t.Helper()
	w := &world{t: t, st: begin(s, "r-1", start), now: start}
	w.always()
	return w
}

func (w *world) do(e event) actions {
	w.t.Helper()
	if w.exited {
		w.t.Fatal("a step after the end")
	}
	e.now = w.now
	switch e.kind {
	case probed:
		if !w.probe {
			w.t.Fatal("the test ends a probe that did not begin")
		}
		w.probe = false
	case delivered, failed, busy, refused:
		if w.report == nil {
			w.t.Fatal("the test ends a report that was not sent")
		}
		e.sequence, w.report = w.report.Sequence, nil
	}
	before := w.st
	var a actions
	w.st, a = step(w.st, e)
	w.last = a
	if a.probe {
		if w.probe {
			w.t.Fatal("a second probe beside the first")
		}
		w.probe, w.began = true, w.now
	}
	if a.report != nil {
		if w.report != nil {
			w.t.Fatal("a second report beside the first")
		}
		w.report = a.report
		if err := a.report.Validate(); err != nil {
			w.t.Fatalf("%+v cannot be sent: %v", *a.report, err)
		}
		if n := len(w.sequences); n == 0 || w.sequences[n-1] != a.report.Sequence {
			if n > 0 && w.sequences[n-1] > a.report.Sequence {
				w.t.Fatalf("sequence %d after %d", a.report.Sequence, w.sequences[n-1])
			}
			w.sequences = append(w.sequences, a.report.Sequence)
		}
		if a.report.Sequence != w.st.sequence || a.report.State != w.st.verdict || a.report.Reason != w.st.reason {
			w.t.Fatalf("sends %+v, which is not what is so: %+v", *a.report, w.st)
		}
	}
	if a.exit {
		w.exited = true
		if a.report != nil || a.probe {
			w.t.Fatal("leaves, and begins something")
		}
	}
	if w.st.sequence < before.sequence || w.st.told < before.told || w.st.tried < before.tried {
		w.t.Fatalf("a sequence went back: %+v to %+v", before, w.st)
	}
	if changed := w.st.verdict != before.verdict; changed != (w.st.sequence != before.sequence) && e.kind != stop {
		w.t.Fatalf("%s to %s, and sequence %d to %d", before.verdict, w.st.verdict, before.sequence, w.st.sequence)
	}
	w.always()
	return a
}

// always checks what must be so between any two steps.
func (w *world) always() {
	w.t.Helper()
	if w.probe != w.st.probing || (w.report != nil) != w.st.sending {
		w.t.Fatalf("under way are probe %t and report %t, the state says %t and %t", w.probe, w.report != nil, w.st.probing, w.st.sending)
	}
	if w.exited {
		return
	}
	wake := w.st.wake()
	first := w.now.Equal(start) && !w.probe && w.report == nil
	if !wake.IsZero() && !wake.After(w.now) && !first {
		w.t.Fatalf("wakes at %s, which is past, at %s: a loop would spin; %+v", wake, w.now, w.st)
	}
	if w.st.stopping {
		if !w.st.sending {
			w.t.Fatal("stops, waits for nothing and does not leave")
		}
		return
	}
	if !w.probe && w.st.settings.Probe.Runs() && (wake.IsZero() || wake.After(w.now.Add(w.st.period()))) {
		w.t.Fatalf("wakes at %s, with a probe due within %s of %s", wake, w.st.period(), w.now)
	}
	if w.report == nil && w.st.sequence > 0 && (wake.IsZero() || wake.After(w.now.Add(wire.MaxInterval))) {
		w.t.Fatalf("wakes at %s, with a report due", wake)
	}
}

// until lets time pass, a tick at each wake, and answers every probe the same way and no
// report.
func (w *world) until(at time.Time, ok bool) {
	w.t.Helper()
	for {
		if w.probe {
			w.finish(ok)
			continue
		}
		wake := w.st.wake()
		if wake.IsZero() || wake.After(at) {
			break
		}
		w.now = wake
		w.do(event{kind: tick})
	}
	w.now = at
}

// wait lets time pass as until does.
func (w *world) wait(d time.Duration, ok bool) { w.t.Helper(); w.until(w.now.Add(d), ok) }

func (w *world) finish(ok bool) actions {
	w.t.Helper()
	r := probe.Result{OK: ok, Reason: probe.ReasonSucceeded, At: w.began}
	if !ok {
		r.Reason, r.Detail = probe.ReasonRefused, "refused"
	}
	return w.do(event{kind: probed, result: r})
}

// ready brings a world to a container that is ready, and a collector that knows.
func ready(t *testing.T, s settings.Settings) *world {
	t.Helper()
	w := newWorld(t, s)
	w.do(event{kind: tick})
	w.finish(true)
	w.do(event{kind: delivered, interval: time.Minute})
	return w
}

func (w *world) wantSent(state wire.State, reason string, sequence uint64) {
	w.t.Helper()
	if w.report == nil || w.report.State != state || w.report.Reason != reason || w.report.Sequence != sequence {
		w.t.Fatalf("sends %+v, want %s for %s with sequence %d", w.report, state, reason, sequence)
	}
}

func TestThresholds(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		successes, failures int
		// results are those of probes; after each, the state is said by a letter: U, R or N.
		results, states string
	}{
		"one success is ready":                             {1, 3, "+", "R"},
		"one failure is not NotReady":                      {1, 3, "-", "U"},
		"three failures are":                               {1, 3, "---", "UUN"},
		"a success in between starts the count over":       {1, 3, "--+--+---", "UURRRRRRN"},
		"and so does a failure":                            {3, 1, "++-++-+++", "UUNNNNNNR"},
		"two successes are needed":                         {2, 3, "++", "UR"},
		"one failure is enough":                            {1, 1, "+-+-", "RNRN"},
		"a container that alternates stays what it was":    {2, 2, "++-+-+-+--", "URRRRRRRRN"},
		"a long run counts no higher than it has to":       {1, 3, "----------+---", "UUNNNNNNNNRRRN"},
		"a container that alternates from the start is no": {2, 2, "+-+-+-", "UUUUUU"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := probing()
			s.Successes, s.Failures = tc.successes, tc.failures
			w := newWorld(t, s)
			var states strings.Builder
			for i, result := range tc.results {
				if i > 0 {
					w.now = w.now.Add(s.Period)
				}
				w.do(event{kind: tick})
				a := w.finish(result == '+')
				before := byte('U')
				if i > 0 {
					before = tc.states[i-1]
				}
				if a.changed != (tc.states[i] != before) {
					t.Errorf("after %s: changed is %t", tc.results[:i+1], a.changed)
				}
				states.WriteByte(string(w.st.verdict)[0])
				if w.report != nil {
					w.do(event{kind: delivered, interval: time.Minute})
				}
			}
			if states.String() != tc.states {
				t.Errorf("%s gave %s, want %s", tc.results, states.String(), tc.states)
			}
		})
	}
}

// A report that is repeated must not vouch for a run of the container that no probe has
// agreed about.
func TestObservedMovesWithAgreeingResults(t *testing.T) {
	t.Parallel()
	w := newWorld(t, probing())
	var want time.Time
	at := w.now
	for i, result := range "---+++--+----" {
		if i > 0 {
			w.now = at.Add(w.st.period()) // sooner, a failure does not count
			if w.st.nextProbe.After(w.now) {
				w.now = w.st.nextProbe
			}
		}
		w.do(event{kind: tick})
		at = w.began
		w.now = w.now.Add(300 * time.Millisecond)
		w.finish(result == '+')
		agrees := (result == '+') == (w.st.verdict == wire.StateReady) && w.st.verdict != wire.StateUnknown
		if agrees {
			want = at
		}
		if !w.st.observed.Equal(want) {
			t.Errorf("after result %d, %c: observed at %s, want %s", i, result, w.st.observed, want)
		}
		if w.report != nil {
			if got := w.report.ObservedUnixMillis; got != want.UnixMilli() {
				t.Errorf("reports %d, want %d", got, want.UnixMilli())
			}
			w.do(event{kind: delivered, interval: time.Minute})
		}
	}
}

func TestObservedTimesThatNoReportTakes(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]time.Time{
		"before 1970":      time.Unix(-1000, 0),
		"1970":             time.Unix(0, 0),
		"after 9999":       time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC),
		"the first of all": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, probing())
			w.do(event{kind: tick})
			w.do(event{kind: probed, result: probe.Result{OK: true, Reason: probe.ReasonSucceeded, At: at}}) // checks the report
			if w.report == nil || w.report.ObservedUnixMillis == 0 {
				t.Errorf("sends %+v, want one that vouches for no later run", w.report)
			}
		})
	}
}

func TestReports(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*testing.T){
		"nothing is said before a probe says something": func(t *testing.T) {
			w := newWorld(t, probing())
			w.do(event{kind: tick})
			w.finish(false)
			w.wait(19*time.Second, false)
			if w.report != nil {
				t.Errorf("sends %+v", w.report)
			}
			w.wait(time.Second, false)
			w.wantSent(wire.StateNotReady, probe.ReasonRefused, 1)
		},
		"a sidecar without a probe says so at once": func(t *testing.T) {
			for kind, reason := range map[settings.Kind]string{settings.KindNone: "NoProbe", settings.KindExec: "ExecProbe", settings.KindUnusable: "UnusableProbe"} {
				w := newWorld(t, unprobed(kind))
				w.do(event{kind: tick})
				w.wantSent(wire.StateUnknown, reason, 1)
				w.do(event{kind: delivered, interval: time.Minute})
				w.wait(time.Minute, false)
				w.wantSent(wire.StateUnknown, reason, 1)
				if got := w.report.ObservedUnixMillis; got != w.now.UnixMilli() {
					t.Errorf("observed at %d, want now, %d: the sidecar runs", got, w.now.UnixMilli())
				}
			}
		},
		"a change goes out at once": func(t *testing.T) {
			w := ready(t, probing())
			w.wait(9*time.Second, true)
			w.wait(time.Second, false)
			w.wait(20*time.Second, false)
			w.wantSent(wire.StateNotReady, probe.ReasonRefused, 2)
		},
		"a report says when its sidecar began": func(t *testing.T) {
			w := newWorld(t, unprobed(settings.KindNone))
			w.wait(time.Second, false)
			if w.report.ReporterSinceUnixMillis != start.UnixMilli() || w.report.Reporter != "r-1" || w.report.UID != "u-1" || w.report.Namespace != "training" || w.report.Pod != "worker-0" || w.report.Container != "main" {
				t.Errorf("sends %+v", w.report)
			}
		},
		"no two reports are closer than the gap": func(t *testing.T) {
			s := probing()
			s.Failures = 1
			w := ready(t, s)
			w.now = w.now.Add(gap / 2)
			w.st.nextProbe = w.now
			w.do(event{kind: tick})
			w.finish(false)
			if w.report != nil {
				t.Fatalf("sends %+v", w.report)
			}
			w.wait(gap/2-1, false)
			if w.report != nil {
				t.Fatalf("sends %+v before the gap is over", w.report)
			}
			w.wait(1, false)
			w.wantSent(wire.StateNotReady, probe.ReasonRefused, 2)
		},
		"a change while a report is under way follows it": func(t *testing.T) {
			s := probing()
			s.Failures = 1
			w := newWorld(t, s)
			w.do(event{kind: tick})
			w.finish(true)
			w.wantSent(wire.StateReady, probe.ReasonSucceeded, 1)
			w.wait(10*time.Second, false) // a hanging collector
			w.wantSent(wire.StateReady, probe.ReasonSucceeded, 1)
			if a := w.do(event{kind: delivered, interval: time.Minute}); a.rest {
				t.Error("lets the connection go, and needs it in a second")
			}
			w.wait(gap, false)
			w.wantSent(wire.StateNotReady, probe.ReasonRefused, 2)
		},
		"a change that was undone is known by its sequence": func(t *testing.T) {
			s := probing()
			s.Failures = 1
			w := newWorld(t, s)
			w.do(event{kind: tick})
			w.finish(true)
			w.wait(10*time.Second, false)
			w.wait(10*time.Second, true)
			w.do(event{kind: failed})
			w.wait(channel.MaxDelay, true)
			w.wantSent(wire.StateReady, probe.ReasonSucceeded, 3)
		},
		"what was not delivered is sent again": func(t *testing.T) {
			w := newWorld(t, probing())
			w.do(event{kind: tick})
			w.finish(true)
			for range 20 {
				w.do(event{kind: failed, random: 0.999})
				w.wait(channel.MaxDelay, true)
				w.wantSent(wire.StateReady, probe.ReasonSucceeded, 1)
			}
			w.do(event{kind: delivered, interval: time.Minute})
			w.now = w.now.Add(time.Second)
			w.do(event{kind: tick})
			if w.report != nil {
				t.Error("sends again what was delivered")
			}
		},
		"the interval is kept, a tenth earlier at most": func(t *testing.T) {
			for random, least := range map[float64]time.Duration{0: time.Minute, 0.5: 57 * time.Second, 0.999999: 54 * time.Second} {
				w := newWorld(t, unprobed(settings.KindNone))
				w.do(event{kind: tick})
				w.do(event{kind: delivered, interval: time.Minute, random: random})
				got := w.st.wake().Sub(w.now)
				if got < least || got > least+time.Millisecond {
					t.Errorf("with %f the next one is after %s, want %s", random, got, least)
				}
			}
		},
		"a connection rests over a long interval alone": func(t *testing.T) {
			for interval, want := range map[time.Duration]bool{time.Second: false, 4 * time.Second: false, 5 * time.Second: true, time.Minute: true} {
				w := newWorld(t, unprobed(settings.KindNone))
				w.do(event{kind: tick})
				if a := w.do(event{kind: delivered, interval: interval}); a.rest != want {
					t.Errorf("rests over %s: %t", interval, a.rest)
				}
			}
		},
		"a second wait is no longer after a success": func(t *testing.T) {
			w := newWorld(t, unprobed(settings.KindNone))
			w.do(event{kind: tick})
			var waits []time.Duration
			for range 8 {
				w.do(event{kind: failed, random: 0.999999})
				waits = append(waits, w.st.wake().Sub(w.now))
				w.wait(channel.MaxDelay, false)
			}
			for i := 1; i < len(waits); i++ {
				if waits[i] < waits[i-1] || waits[i] > channel.MaxDelay {
					t.Errorf("waits are %s", waits)
				}
			}
			if waits[7] < channel.MaxDelay*9/10 {
				t.Errorf("waits are %s, want them to grow", waits)
			}
			w.do(event{kind: delivered, interval: time.Second})
			w.wait(time.Second, false)
			w.do(event{kind: failed, random: 0.999999})
			if got := w.st.wake().Sub(w.now); got != waits[0] {
				t.Errorf("waits %s after a success, want %s as at first", got, waits[0])
			}
		},
		"a refusal is not asked for again within half a minute": func(t *testing.T) {
			for random, want := range map[float64]time.Duration{0: time.Minute, 0.999999: 30 * time.Second} {
				w := newWorld(t, unprobed(settings.KindNone))
				w.do(event{kind: tick})
				w.do(event{kind: refused, random: random})
				if got := w.st.wake().Sub(w.now).Round(time.Millisecond); got != want {
					t.Errorf("asks again after %s, want %s", got, want)
				}
				w.wait(time.Minute, false)
				w.wantSent(wire.StateUnknown, "NoProbe", 1)
			}
		},
		"a change goes out after a refusal": func(t *testing.T) {
			s := probing()
			s.Failures, s.Period = 1, time.Second
			w := newWorld(t, s)
			w.do(event{kind: tick})
			w.finish(true)
			w.do(event{kind: refused})
			w.wait(time.Second, false)
			w.wantSent(wire.StateNotReady, probe.ReasonRefused, 2)
		},
		"a busy collector is let alone for as long as it asks": func(t *testing.T) {
			s := probing()
			s.Failures, s.Period = 1, time.Second
			w := newWorld(t, s)
			w.do(event{kind: tick})
			w.finish(true)
			w.do(event{kind: busy, interval: 30 * time.Second})
			w.wait(30*time.Second-1, false) // even a change waits
			if w.report != nil {
				t.Fatalf("sends %+v", w.report)
			}
			w.wait(1, false)
			w.wantSent(wire.StateNotReady, probe.ReasonRefused, 2)
		},
		"a busy collector that says not how long is asked as one that failed": func(t *testing.T) {
			w := newWorld(t, unprobed(settings.KindNone))
			w.do(event{kind: tick})
			w.do(event{kind: busy})
			if got := w.st.wake().Sub(w.now); got <= 0 || got > channel.MaxDelay {
				t.Errorf("asks again after %s", got)
			}
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

func TestProbingPeriod(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ period, interval, want time.Duration }{
		"the pod's own period":                      {10 * time.Second, time.Minute, 10 * time.Second},
		"a recovery shortens it":                    {10 * time.Second, 2 * time.Second, 2 * time.Second},
		"never below a second":                      {10 * time.Second, time.Millisecond, time.Second},
		"a longer interval than it changes nothing": {time.Second, 10 * time.Minute, time.Second},
		"a period longer than reports are apart":    {time.Hour, time.Minute, time.Minute},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := probing()
			s.Period = tc.period
			w := newWorld(t, s)
			w.do(event{kind: tick})
			w.finish(true)
			w.do(event{kind: delivered, interval: tc.interval})
			// The collector's word counts at once, and not from the probe after next.
			for range 3 {
				if got := w.st.nextProbe.Sub(w.now); got != tc.want {
					t.Fatalf("the next probe is after %s, want %s", got, tc.want)
				}
				w.now = w.st.nextProbe
				w.do(event{kind: tick})
				w.finish(true)
				if w.report != nil {
					w.do(event{kind: delivered, interval: tc.interval})
				}
			}
		})
	}
	t.Run("a probe longer than the period is followed at once", func(t *testing.T) {
		t.Parallel()
		s := probing()
		s.Period, s.Timeout = time.Second, 5*time.Second
		w := ready(t, s)
		w.now = w.st.nextProbe
		w.do(event{kind: tick})
		w.now = w.now.Add(5 * time.Second)
		if a := w.do(event{kind: tick}); a.probe { // checked by the world, too
			t.Error("a second probe beside the first")
		}
		if a := w.finish(false); !a.probe {
			t.Error("no next probe")
		}
	})
	t.Run("a probe under way is not followed sooner for an answer", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, probing())
		w.do(event{kind: tick})
		w.finish(true)
		w.now = w.st.nextProbe
		w.do(event{kind: tick})
		w.do(event{kind: delivered, interval: time.Second})
		w.finish(true)
		if got := w.st.nextProbe.Sub(w.now); got != time.Second {
			t.Errorf("the next probe is after %s, want a second", got)
		}
	})
}

// Whenever the container becomes ready first, that is seen within a tenth of a second or a
// twentieth of what it took, and at the latest after a period; for few probes more than the
// kubelet's.
func TestReadinessIsSeenSoon(t *testing.T) {
	t.Parallel()
	for _, period := range []time.Duration{time.Second, 10 * time.Second} {
		for took := 10 * time.Millisecond; took < time.Hour; took += took/7 + time.Millisecond {
			s := probing()
			s.Period, s.Failures = period, 3
			w := newWorld(t, s)
			probes := w.runs(start.Add(24*time.Hour), func() bool { return w.now.Sub(start) >= took }, 0, func() bool { return w.st.verdict == wire.StateReady })
			late := w.now.Sub(start) - took
			if most := min(max(took/20, 100*time.Millisecond)+20*time.Millisecond, period); late > most {
				t.Errorf("each %s: ready after %s, seen %s later, want %s at most", period, took, late, most)
			}
			if most := int(took/period) + 40 + int(20*math.Log(float64(period/(100*time.Millisecond)))) + 4; probes > most {
				t.Errorf("each %s: ready after %s, %d probes, want %d at most", period, took, probes, most)
			}
			if got := w.st.nextProbe.Sub(w.now); got != period {
				t.Errorf("each %s: ready, and the next probe is after %s", period, got)
			}
		}
	}
	t.Run("failures count once a period", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, probing())
		w.wait(20*time.Second-1, false)
		if w.st.verdict != wire.StateUnknown {
			t.Error("three failures need two periods of ten seconds")
		}
		w.wait(1, false)
		if w.st.verdict != wire.StateNotReady {
			t.Errorf("two periods have passed, and it is %s", w.st.verdict)
		}
	})
	t.Run("successes count once a period", func(t *testing.T) {
		t.Parallel()
		s := probing()
		s.Successes = 3
		w := newWorld(t, s)
		w.wait(5*time.Second, false)
		w.wait(20*time.Second, true)
		if w.st.verdict != wire.StateUnknown {
			t.Error("three successes need two periods of ten seconds")
		}
		w.wait(time.Second, true)
		if w.st.verdict != wire.StateReady {
			t.Errorf("two periods have passed since the first success, and it is %s", w.st.verdict)
		}
	})
	t.Run("one success of three, and it is searched for again", func(t *testing.T) {
		t.Parallel()
		s := probing()
		s.Successes = 3
		w := newWorld(t, s)
		w.do(event{kind: tick})
		w.finish(true)
		if got := w.st.nextProbe.Sub(w.now); got != 10*time.Second {
			t.Errorf("the probe after a success is after %s", got)
		}
		w.now = w.st.nextProbe
		w.do(event{kind: tick})
		w.finish(false)
		w.now = w.st.nextProbe
		w.do(event{kind: tick})
		w.finish(false)
		if got := w.st.nextProbe.Sub(w.now); got >= 10*time.Second {
			t.Errorf("the next probe is after %s", got)
		}
	})
	t.Run("once it was ready, the period says when", func(t *testing.T) {
		t.Parallel()
		w := ready(t, probing())
		if probes := w.runs(start.Add(time.Hour), func() bool { return false }, 0, nil); probes > 361 {
			t.Errorf("%d probes in an hour, of a container that was ready once", probes)
		}
	})
	t.Run("a container that hangs is not probed without a pause", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, probing())
		if probes := w.runs(start.Add(time.Minute), func() bool { return false }, time.Second, nil); probes > 27 {
			t.Errorf("%d probes of a second each in a minute", probes)
		}
	})
}

// A container that answers well now and then is not taken for ready much more often than the
// kubelet would take it, although it is asked more often.
func TestAContainerThatSeldomAnswers(t *testing.T) {
	t.Parallel()
	for _, percent := range []float64{1, 5, 10, 20} {
		var ready [2]time.Duration
		for n := range 300 {
			for kubelet := range 2 {
				random := rand.New(rand.NewPCG(uint64(n), 7))
				w := newWorld(t, probing())
				w.st.found = kubelet == 1 // what follows then is the kubelet's way
				last := start
				w.runs(start.Add(time.Minute), func() bool { return random.Float64()*100 < percent }, 0, func() bool {
					if w.st.verdict == wire.StateReady {
						ready[kubelet] += w.now.Sub(last)
					}
					last = w.now
					return false
				})
			}
		}
		share := func(d time.Duration) float64 { return 100 * d.Minutes() / 300 }
		t.Logf("%2.0f of 100 answers are good: ready for %2.0f of 100 seconds, by the kubelet %2.0f", percent, share(ready[0]), share(ready[1]))
		if share(ready[0]) > share(ready[1])+6 {
			t.Errorf("%2.0f of 100 answers are good: ready for %2.0f of 100 seconds, by the kubelet %2.0f", percent, share(ready[0]), share(ready[1]))
		}
	}
}

// runs lets time pass until a time, or until over says so after a step, with probes that take
// so long and find what ok says at their end; it returns how many probes that were.
func (w *world) runs(until time.Time, ok func() bool, takes time.Duration, over func() bool) (probes int) {
	w.t.Helper()
	w.do(event{kind: tick})
	for w.now.Before(until) {
		switch {
		case w.probe:
			probes++
			w.now = w.began.Add(takes)
			w.finish(ok())
			if over != nil && over() {
				return probes
			}
		case w.report != nil:
			w.do(event{kind: delivered, interval: 10 * time.Minute})
		default:
			w.now = w.st.wake()
			w.do(event{kind: tick})
		}
	}
	return probes
}

func TestStop(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*testing.T){
		"before anything": func(t *testing.T) {
			w := newWorld(t, probing())
			w.do(event{kind: stop})
			wantExit(t, w, true)
		},
		"before anything, without a probe": func(t *testing.T) {
			w := newWorld(t, unprobed(settings.KindNone))
			w.do(event{kind: stop})
			wantExit(t, w, true)
		},
		"while the first probe is under way": func(t *testing.T) {
			w := newWorld(t, probing())
			w.do(event{kind: tick})
			w.do(event{kind: stop})
			wantExit(t, w, true)
		},
		"after probes that said nothing yet": func(t *testing.T) {
			w := newWorld(t, probing())
			w.wait(11*time.Second, false)
			w.do(event{kind: stop})
			wantExit(t, w, true)
		},
		"at rest": func(t *testing.T) {
			w := ready(t, probing())
			w.wait(5*time.Second, true)
			w.do(event{kind: stop})
			w.wantSent(wire.StateUnknown, reasonStopping, 2)
			w.do(event{kind: delivered, interval: time.Minute})
			wantExit(t, w, true)
		},
		"within the gap": func(t *testing.T) {
			w := ready(t, probing())
			w.do(event{kind: stop})
			w.wantSent(wire.StateUnknown, reasonStopping, 2)
		},
		"while a report is under way": func(t *testing.T) {
			for _, o := range []eventKind{delivered, failed, busy, refused} {
				w := newWorld(t, probing())
				w.do(event{kind: tick})
				w.finish(true)
				w.do(event{kind: stop})
				w.wantSent(wire.StateReady, probe.ReasonSucceeded, 1) // which is still under way
				wantExit(t, w, false)
				w.now = w.now.Add(time.Minute)
				w.do(event{kind: tick})
				w.do(event{kind: o, interval: time.Minute})
				w.wantSent(wire.StateUnknown, reasonStopping, 2)
				w.do(event{kind: tick})
				wantExit(t, w, false)
				w.do(event{kind: o, interval: time.Minute})
				wantExit(t, w, true) // it is not sent again
			}
		},
		"while waiting after a failure": func(t *testing.T) {
			for _, o := range []eventKind{failed, busy, refused} {
				w := newWorld(t, probing())
				w.do(event{kind: tick})
				w.finish(true)
				w.do(event{kind: o, interval: time.Minute})
				w.do(event{kind: stop})
				w.wantSent(wire.StateUnknown, reasonStopping, 2)
			}
		},
		"while a probe is under way": func(t *testing.T) {
			w := ready(t, probing())
			w.now = w.st.nextProbe
			w.do(event{kind: tick})
			w.do(event{kind: stop})
			w.wantSent(wire.StateUnknown, reasonStopping, 2)
			w.now = w.now.Add(time.Minute)
			if a := w.finish(true); a.changed || a.probe || w.st.verdict != wire.StateUnknown {
				t.Errorf("a probe has the last word: %+v, %+v", a, w.st)
			}
			wantExit(t, w, false)
			w.do(event{kind: refused})
			wantExit(t, w, true)
		},
		"twice": func(t *testing.T) {
			w := ready(t, probing())
			w.do(event{kind: stop})
			w.do(event{kind: stop})
			w.wantSent(wire.StateUnknown, reasonStopping, 2)
			w.do(event{kind: delivered, interval: time.Minute})
			wantExit(t, w, true)
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

func wantExit(t *testing.T, w *world, exit bool) {
	t.Helper()
	if w.last.exit != exit {
		t.Fatalf("leaves: %t; %+v", w.last.exit, w.st)
	}
}

// Whatever comes in whatever order: what world checks holds, what is so reaches the
// collector once that is back, and SIGTERM ends it.
func TestAnyOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(400) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 1))
			s := probing()
			if r.IntN(8) == 0 {
				s = unprobed(settings.KindExec)
			}
			s.Successes, s.Failures = 1+r.IntN(3), 1+r.IntN(3)
			s.Period = time.Second * time.Duration(1+r.IntN(90))
			w := newWorld(t, s)
			outcomes := []eventKind{delivered, failed, busy, refused}
			answer := func(kinds ...eventKind) {
				e := event{kind: kinds[r.IntN(len(kinds))], random: r.Float64()}
				switch e.kind {
				case delivered:
					e.interval = wire.Answer{IntervalMillis: r.Int64N(700_000)}.Interval()
				case busy:
					e.interval = time.Duration(r.Int64N(int64(time.Minute)))
				}
				w.do(e)
			}
			for range 400 {
				switch n := r.IntN(10); {
				case n < 3 && w.probe:
					w.finish(r.IntN(2) == 0)
				case n < 5 && w.report != nil:
					answer(outcomes...)
				case n < 9:
					if wake := w.st.wake(); wake.After(w.now) {
						w.now = wake
					}
					w.do(event{kind: tick, random: r.Float64()})
				default: // a timer may go off early, and a machine may sleep
					w.now = w.now.Add(time.Duration(r.Int64N(int64(3 * time.Minute))))
					w.do(event{kind: tick, random: r.Float64()})
				}
			}
			// The collector is back, and the container is what it is.
			ok := r.IntN(2) == 0
			delivery := func() {
				for end := w.now.Add(10 * time.Minute); w.now.Before(end); {
					switch wake := w.st.wake(); {
					case w.report != nil:
						answer(delivered)
					case w.probe:
						w.finish(ok)
					default:
						w.now = wake
						w.do(event{kind: tick})
					}
				}
			}
			delivery()
			want := wire.StateNotReady
			switch {
			case !s.Probe.Runs():
				want = wire.StateUnknown
			case ok:
				want = wire.StateReady
			}
			if w.st.verdict != want || w.st.told != w.st.sequence && w.report == nil {
				t.Errorf("is %+v, want %s, and the collector to know", w.st, want)
			}
			// And SIGTERM ends it within two more answers.
			w.do(event{kind: stop})
			for n := 0; !w.exited; n++ {
				if n == 2 {
					t.Fatalf("does not leave: %+v", w.st)
				}
				if w.probe && r.IntN(2) == 0 {
					w.finish(ok)
				}
				w.now = w.now.Add(time.Minute)
				w.do(event{kind: tick})
				answer(outcomes...)
			}
		})
	}
}

// Ten thousand sidecars run for months: what one knows must not grow, so it may hold no list.
func TestStateDoesNotGrow(t *testing.T) {
	t.Parallel()
	typ := reflect.TypeFor[state]()
	for i := range typ.NumField() {
		f := typ.Field(i)
		if f.Name == "settings" {
			continue // as they were read
		}
		switch f.Type.Kind() {
		case reflect.Slice, reflect.Map, reflect.Chan, reflect.Pointer, reflect.Func, reflect.Interface:
			t.Errorf("field %s is a %s", f.Name, f.Type)
		}
	}
}

// TestAClockThatIsPutBack: the age of what was observed stays, so that it is never told to be of
// a run that has begun since.
func TestAClockThatIsPutBack(t *testing.T) {
	t.Parallel()
	s := begin(settings.Settings{Probe: settings.Probe{Kind: settings.KindTCP, Port: 1}, Period: time.Second, Successes: 1, Failures: 3}, "r", time.Now())
	ahead := time.Now().Round(0).Add(time.Hour) // by the wall alone, as a file's time
	at := time.Now()
	s, _ = step(s, event{kind: tick, now: at})
	s, _ = step(s, event{kind: probed, now: at, result: probe.Result{OK: true, Reason: "ProbeSucceeded", At: at}})
	later := at.Add(10 * time.Second)
	if got, want := s.report(later).ObservedUnixMillis, at.UnixMilli(); got < want-1 || got > want+1 {
		t.Errorf("observed %d, want %d", got, want)
	}
	if got := s.report(ahead.Add(time.Second)).ObservedUnixMillis; got > ahead.Add(time.Second).UnixMilli() {
		t.Errorf("observed %d, in times to come", got)
	}
}
