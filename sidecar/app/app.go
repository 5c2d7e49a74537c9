package app

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mrand "math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/belay-dev/belay/sidecar/probe"
	"github.com/belay-dev/belay/sidecar/settings"
)

// Exit codes.
const (
	// ExitOK follows SIGTERM, and flags that did what they should.
	ExitOK = 0
	// ExitNotReady: --once found a container that is not ready, or a collector that did not
	// take the report.
	ExitNotReady = 1
	// ExitUsage: an unknown flag, or --print-settings with settings that make no sense.
	ExitUsage = 2
)

// version is set when a release is built: -ldflags "-X …/sidecar/app.version=v0.1.0".
var version = "devel"

const usage = `belay-sidecar probes a pod's main container from inside the pod and tells belay's
collector whether it is ready. Injection starts it without flags.

  --once            probe once, report once, say what came of both; exit code 0 or 1
  --print-settings  print every setting and what is wrong with them; exit code 0 or 2
  --version         print the version
  --help            print this

Settings are environment variables; --print-settings names them all.
In a running pod:

  kubectl exec POD -c belay-sidecar -- /belay-sidecar --once
`

// Main runs the sidecar and returns its exit code.
func Main(args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	// The heap is a few hundred kilobytes: growing it by a fifth rather than to the double
	// between two collections costs nothing and keeps the pages private to a pod few. So
	// does one processor: each has caches and a stack of its own, and there is little to do.
	debug.SetGCPercent(20)
	runtime.GOMAXPROCS(1)
	// Who reads the log may be gone, which must not end what runs.
	signal.Ignore(syscall.SIGPIPE)
	ctx, end := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer end()
	s, wrong := settings.Read(getenv)
	flag := ""
	if len(args) > 0 {
		flag = args[0]
	}
	switch {
	case len(args) > 1:
		fmt.Fprintf(stderr, "belay-sidecar: unexpected argument %q\n\n%s", args[1], usage)
		return ExitUsage
	case len(args) == 0:
		run(ctx, s, wrong, logger(stderr, s.Debug))
		return ExitOK
	case flag == "--once", flag == "-once":
		return once(ctx, s, wrong, stdout)
	case flag == "--print-settings", flag == "-print-settings":
		return printed(s, wrong, stdout)
	case flag == "--version":
		fmt.Fprintln(stdout, "belay-sidecar", version)
		return ExitOK
	case flag == "--help", flag == "-h", flag == "help":
		fmt.Fprint(stdout, usage)
		return ExitOK
	default:
		fmt.Fprintf(stderr, "belay-sidecar: unknown flag %q\n\n%s", flag, usage)
		return ExitUsage
	}
}

func logger(w io.Writer, verbose bool) *slog.Logger {
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}))
}

func printed(s settings.Settings, wrong error, stdout io.Writer) int {
	for _, pair := range s.List() {
		fmt.Fprintf(stdout, "%s=%q\n", pair[0], pair[1])
	}
	if wrong != nil {
		fmt.Fprintf(stdout, "\nwrong:\n%v\n", wrong)
		return ExitUsage
	}
	return ExitOK
}

// once probes and reports once.
func once(ctx context.Context, s settings.Settings, wrong error, stdout io.Writer) int {
	if wrong != nil {
		fmt.Fprintf(stdout, "settings: %v\n", wrong)
		return ExitNotReady
	}
	ctx, cancel := context.WithTimeout(ctx, s.Timeout+onceTimeout)
	defer cancel()
	s.Successes, s.Failures = 1, 1
	st := begin(s, newReporter(), time.Now())
	st.since = time.Time{} // the sidecar that runs goes on to have the last word
	code := ExitOK
	if s.Probe.Runs() {
		st, _ = step(st, event{kind: tick, now: time.Now()})
		r := probe.New(s).Probe(ctx)
		fmt.Fprintf(stdout, "probe %s: %s %s\n", s.Probe, r.Reason, r.Detail)
		if !r.OK {
			code = ExitNotReady
		}
		st, _ = step(st, event{kind: probed, now: time.Now(), result: r})
	} else {
		fmt.Fprintf(stdout, "probe: none to run (%s); the kubelet's own verdict counts\n", st.reason)
	}
	out, err := newSender(s)
	if err != nil {
		fmt.Fprintf(stdout, "report: %v\n", err)
		return ExitNotReady
	}
	defer out.close()
	o := out.send(ctx, *st.report(time.Now()))
	if o.kind != delivered {
		fmt.Fprintf(stdout, "report to %s: %s: %v\n", s.Collector, o.kind, o.err)
		return ExitNotReady
	}
	fmt.Fprintf(stdout, "report to %s: delivered; outcome: %s; the next one in %s\n", s.Collector, cmp.Or(o.outcome, "not told"), o.interval)
	return code
}

// onceTimeout bounds the report of --once.
const onceTimeout = 15 * time.Second

// lastWord is how long the last report may take: the pod waits for it.
const lastWord = 2 * time.Second

// run runs until SIGTERM comes and the last report is out.
func run(ctx context.Context, s settings.Settings, wrong error, log *slog.Logger) {
	out, err := newSender(s)
	if wrong != nil || err != nil {
		// Exiting would be worse: the pod would not be ready any more.
		log.Error("settings make no sense; nothing is probed and nothing is reported", "error", errors.Join(wrong, err).Error(), "version", version)
		<-ctx.Done()
		return
	}
	defer out.close()
	log.Info("starting belay-sidecar", "version", version, "container", s.Container, "probe", s.Probe.String(), "collector", s.Collector, "uid", s.PodUID)
	l := &loop{out: out, prober: probe.New(s), log: log, results: make(chan probe.Result, 1), outcomes: make(chan outcome, 1), state: begin(s, newReporter(), time.Now())}
	l.run(ctx)
}

// newReporter draws the name of this run of the sidecar.
func newReporter() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// loop does what step decides. One probe and one report are under way at most, each with its
// own bound.
type loop struct {
	state    state
	out      *sender
	prober   *probe.Prober
	log      *slog.Logger
	results  chan probe.Result
	outcomes chan outcome
	// trouble is what became of the last report, when it did not get through, and was said.
	trouble eventKind
}

func (l *loop) run(ctx context.Context) {
	// Calls outlive SIGTERM by lastWord.
	calls, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stopped := ctx.Done()
	var late <-chan time.Time
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var e event
		select {
		case <-stopped:
			stopped = nil
			late = time.After(lastWord)
			l.log.Info("stopping")
			e.kind = stop
		case <-late:
			l.log.Info("stopped without the last report: no answer", "waited", lastWord.String())
			return
		case <-timer.C:
			e.kind = tick
		case r := <-l.results:
			e.kind, e.result = probed, r
			l.log.Debug("probed", "ok", r.OK, "reason", r.Reason, "detail", r.Detail)
		case o := <-l.outcomes:
			e.kind, e.sequence, e.interval = o.kind, o.sequence, o.interval
			l.tell(o)
		}
		e.now, e.random = time.Now(), mrand.Float64() //nolint:gosec // spreads calls, and is no secret
		var a actions
		l.state, a = step(l.state, e)
		if a.changed {
			l.log.Info("main container is "+string(l.state.verdict), "reason", l.state.reason, "detail", e.result.Detail, "sequence", l.state.sequence)
		}
		if a.exit {
			return
		}
		l.act(calls, a)
		timer.Reset(max(0, time.Until(l.state.wake())))
		if l.state.wake().IsZero() {
			timer.Stop()
		}
	}
}

func (l *loop) act(ctx context.Context, a actions) {
	if a.rest {
		l.out.rest()
		// A handshake leaves most of a megabyte behind, and the next one is a minute away.
		debug.FreeOSMemory()
	}
	if a.probe {
		go func() { l.results <- l.prober.Probe(ctx) }()
	}
	if a.report != nil {
		r := *a.report
		go func() { l.outcomes <- l.out.send(ctx, r) }()
	}
}

// tell logs what became of a report: trouble when it begins or is of another kind, and when
// it is over.
func (l *loop) tell(o outcome) {
	switch {
	case o.kind == delivered && l.trouble != "":
		l.trouble = ""
		l.log.Info("reports get through again")
	case o.kind == delivered:
		l.log.Debug("reported", "sequence", o.sequence, "outcome", o.outcome, "next", o.interval.String())
	case l.trouble != o.kind:
		l.trouble = o.kind
		l.log.Warn("report not delivered; trying again", "outcome", string(o.kind), "error", fmt.Sprint(o.err))
	default:
		l.log.Debug("report not delivered", "outcome", string(o.kind), "error", fmt.Sprint(o.err))
	}
}
