package recovery

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/sidecar/wire"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// TestReportMessage: what is written can be read again.
func TestReportMessage(t *testing.T) {
	t.Parallel()
	const at = 1_772_366_400_123
	for name, c := range map[string]struct {
		container, text string
		order           Order
		want            string
	}{
		"an ordinary one": {"containerd://m1", "it answers", Order{"b7Qm3xYc", 7, at}, "containerd://m1: it answers (report 7 of b7Qm3xYc since 2026-03-01T12:00:00.123Z)"},
		"the most there is": {
			"containerd://m1", "it answers", Order{strings.Repeat("r", 128), math.MaxUint64, wire.MaxUnixMillis},
			"containerd://m1: it answers (report 18446744073709551615 of " + strings.Repeat("r", 128) + " since 9999-12-31T23:59:59.999Z)",
		},
		"no beginning is told":           {"cri-o://m1", "it answers", Order{"r", 1, 0}, "cri-o://m1: it answers (report 1 of r since 1970-01-01T00:00:00.000Z)"},
		"a whole second":                 {"m1", "x", Order{"r", 1, 1000}, "m1: x (report 1 of r since 1970-01-01T00:00:01.000Z)"},
		"an odd name of a run":           {"m1", "x", Order{"0x1F-_.:/%d", 1, at}, "m1: x (report 1 of 0x1F-_.:/%d since 2026-03-01T12:00:00.123Z)"},
		"a name that reads like an end":  {"m1", "x", Order{"since", 1, at}, "m1: x (report 1 of since since 2026-03-01T12:00:00.123Z)"},
		"a text that reads like another": {"m1", "x (report 9 of y since 2027-01-01T00:00:00.000Z)", Order{"r", 1, at}, "m1: x (report 9 of y since 2027-01-01T00:00:00.000Z) (report 1 of r since 2026-03-01T12:00:00.123Z)"},
		"a text with colons":             {"m1", "a: b", Order{"r", 1, at}, "m1: a: b (report 1 of r since 2026-03-01T12:00:00.123Z)"},
		"no text":                        {"m1", "", Order{"r", 1, at}, "m1:  (report 1 of r since 2026-03-01T12:00:00.123Z)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ReportMessage(c.container, c.text, c.order)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			container, order := readMessage(got)
			if diff := cmp.Diff(c.order, order); diff != "" || container != c.container {
				t.Errorf("about %q (-want +got)\n%s", container, diff)
			}
		})
	}
}

// TestMessagesOfOthers say nothing of an order: such a report is earlier than any.
func TestMessagesOfOthers(t *testing.T) {
	t.Parallel()
	const good = " (report 7 of r since 2026-03-01T12:00:00.123Z)"
	for name, c := range map[string]struct{ message, container string }{
		"nothing":                       {"", ""},
		"a container alone":             {"containerd://m1", ""},
		"a container and no text":       {"containerd://m1:" + good, "containerd://m1"},
		"no container":                  {": x", ""},
		"no order":                      {"m1: it answers", "m1"},
		"cut off before the end":        {"m1: x" + good[:len(good)-1], "m1"},
		"cut off within the time":       {"m1: x" + good[:len(good)-5], "m1"},
		"cut off after the number":      {"m1: x (report 7", "m1"},
		"words after it":                {"m1: x" + good + " and more", "m1"},
		"a stop after it":               {"m1: x" + good + ".", "m1"},
		"a line after it":               {"m1: x" + good + "\n", "m1"},
		"two brackets":                  {"m1: x" + good + ")", "m1"},
		"two blanks":                    {"m1: x (report  7 of r since 2026-03-01T12:00:00.123Z)", "m1"},
		"a tab":                         {"m1: x (report 7\tof r since 2026-03-01T12:00:00.123Z)", "m1"},
		"a sign":                        {"m1: x (report +7 of r since 2026-03-01T12:00:00.123Z)", "m1"},
		"a negative number":             {"m1: x (report -7 of r since 2026-03-01T12:00:00.123Z)", "m1"},
		"a leading zero":                {"m1: x (report 07 of r since 2026-03-01T12:00:00.123Z)", "m1"},
		"a number of another base":      {"m1: x (report 0x7 of r since 2026-03-01T12:00:00.123Z)", "m1"},
		"a number that is too large":    {"m1: x (report 18446744073709551616 of r since 2026-03-01T12:00:00.123Z)", "m1"},
		"no number":                     {"m1: x (report seven of r since 2026-03-01T12:00:00.123Z)", "m1"},
		"no run":                        {"m1: x (report 7 of  since 2026-03-01T12:00:00.123Z)", "m1"},
		"no time":                       {"m1: x (report 7 of r since )", "m1"},
		"another zone":                  {"m1: x (report 7 of r since 2026-03-01T13:00:00.123+01:00)", "m1"},
		"no milliseconds":               {"m1: x (report 7 of r since 2026-03-01T12:00:00Z)", "m1"},
		"a comma":                       {"m1: x (report 7 of r since 2026-03-01T12:00:00,123Z)", "m1"},
		"no such day":                   {"m1: x (report 7 of r since 2026-02-30T12:00:00.123Z)", "m1"},
		"a year of five digits":         {"m1: x (report 7 of r since 12026-03-01T12:00:00.123Z)", "m1"},
		"somebody else's, with a colon": {"PodCompleted: all is well", "PodCompleted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			container, order := readMessage(c.message)
			if container != c.container || order != (Order{}) {
				t.Errorf("%q %+v", container, order)
			}
		})
	}
}

// FuzzReadMessage: whatever a message says, it panics nobody, and it has an order only if
// ReportMessage could have written it.
func FuzzReadMessage(f *testing.F) {
	f.Add("containerd://m1: it answers (report 7 of b7Qm3xYc since 2026-03-01T12:00:00.123Z)")
	f.Add("m1: x (report 18446744073709551615 of since since 9999-12-31T23:59:59.999Z)")
	f.Add("m1: (report 1 of r since 0000-01-01T00:00:00.000Z)")
	f.Add("m1: x (report 07 of r since 2026-03-01T12:00:00,123Z) ")
	f.Fuzz(func(t *testing.T, message string) {
		container, order := readMessage(message)
		if order == (Order{}) {
			return
		}
		text, ok := strings.CutPrefix(message, container+": ")
		if !ok {
			t.Fatalf("about %q: %q", container, message)
		}
		text, ok = strings.CutSuffix(text, fmt.Sprintf(" (report %d of %s since %s)", order.Sequence, order.Reporter, time.UnixMilli(order.Since).UTC().Format(sinceFormat)))
		if !ok || order.Reporter == "" {
			t.Fatalf("%+v of %q", order, message)
		}
		if again := ReportMessage(container, text, order); again != message {
			t.Errorf("%q became %q", message, again)
		}
	})
}

// FuzzReportMessage: whatever a valid report says is read again.
func FuzzReportMessage(f *testing.F) {
	f.Add("containerd://4f1c", "b7Qm3xYc", uint64(7), int64(1_796_000_000_123))
	f.Add("a", "since", uint64(math.MaxUint64), int64(wire.MaxUnixMillis))
	f.Fuzz(func(t *testing.T, container, reporter string, sequence uint64, since int64) {
		r := wire.Report{
			Namespace: "n", Pod: "p", UID: "u", Container: "c", State: wire.StateReady, Reason: "R",
			Instance: container, Reporter: reporter, Sequence: sequence, ReporterSinceUnixMillis: since,
		}
		if r.Validate() != nil || container == "" || strings.Contains(container, ": ") {
			return
		}
		want := Order{Reporter: reporter, Sequence: sequence, Since: since}
		about, got := readMessage(ReportMessage(container, "it is so", want))
		if about != container || got != want || !utf8.ValidString(about) {
			t.Errorf("%q %+v, want %q %+v", about, got, container, want)
		}
	})
}

// TestStarted: when the container that runs was started, in whole seconds.
func TestStarted(t *testing.T) {
	t.Parallel()
	since := func(at metav1.Time) corev1.ContainerState {
		return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}}
	}
	for name, c := range map[string]struct {
		state corev1.ContainerState
		want  int64
	}{
		"it runs":                              {since(metav1.NewTime(now)), now.Unix()},
		"it runs, and something tells more":    {since(metav1.NewTime(now.Add(999 * time.Millisecond))), now.Unix()},
		"by another zone":                      {since(metav1.NewTime(now.In(time.FixedZone("", 3600)))), now.Unix()},
		"it runs, and nobody knows since when": {since(metav1.Time{}), 0},
		"it waits":                             {waiting("CrashLoopBackOff"), 0},
		"it has ended, and ran before":         {corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{StartedAt: metav1.NewTime(now)}}, 0},
		"it is in no state":                    {corev1.ContainerState{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := one(main(c.state)).Containers[0].Started; got != c.want {
				t.Errorf("%d, want %d", got, c.want)
			}
		})
	}
}

// TestDefers: only a sidecar that has no probe to run leaves the verdict to the kubelet.
func TestDefers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status corev1.ConditionStatus
		reason string
		want   bool
	}{
		"no probe":                 {corev1.ConditionUnknown, "NoProbe", true},
		"an exec probe":            {corev1.ConditionUnknown, "ExecProbe", true},
		"no result yet":            {corev1.ConditionUnknown, "ProbePending", false},
		"it stops":                 {corev1.ConditionUnknown, "Stopping", false},
		"a probe that is no good":  {corev1.ConditionUnknown, "UnusableProbe", true},
		"no reason":                {corev1.ConditionUnknown, "", false},
		"not ready, for no probe":  {corev1.ConditionFalse, "NoProbe", false},
		"ready, without a probe":   {corev1.ConditionTrue, "NoProbe", false},
		"a status that nobody has": {"", "NoProbe", false},
		"in small letters":         {corev1.ConditionUnknown, "noprobe", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := (Report{Present: true, Status: c.status, Reason: c.reason}).Defers(); got != c.want {
				t.Errorf("%t", got)
			}
		})
	}
}

// TestUnknownReports: what a sidecar says that does not know, by each source of evidence.
func TestUnknownReports(t *testing.T) {
	t.Parallel()
	says := func(reason string, container string, ago time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
				Type: v1alpha1.MainReadyCondition, Status: corev1.ConditionUnknown, Reason: reason, LastProbeTime: metav1.NewTime(now.Add(-ago)),
				Message: ReportMessage(container, "it cannot tell", Order{"r", 1, 1}),
			})
		}
	}
	const (
		good  = `pod "box-0" (uid u1) is ready again`
		pod   = `pod "box-0" (uid u1): `
		stale = pod + "ReportStale: the last report is "
		not   = pod + `ReportNotReady: the sidecar reports that container "main" is not ready: `
	)
	for name, c := range map[string]struct {
		changes []func(*corev1.Pod)
		// By the sidecar alone, and by both.
		witness, both string
	}{
		"no probe":                            {[]func(*corev1.Pod){says("NoProbe", "containerd://m1", time.Second)}, good, good},
		"an exec probe":                       {[]func(*corev1.Pod){says("ExecProbe", "containerd://m1", time.Second)}, good, good},
		"no probe, and main is not ready":     {[]func(*corev1.Pod){says("NoProbe", "containerd://m1", time.Second), func(p *corev1.Pod) { p.Status.ContainerStatuses[0].Ready = false }}, pod + `PodNotReady: container "main" is not ready`, pod + `PodNotReady: container "main" is not ready`},
		"no probe, and the pod is not ready":  {[]func(*corev1.Pod){says("NoProbe", "containerd://m1", time.Second), unready}, pod + "PodNotReady: its condition Ready is not True", pod + "PodNotReady: its condition Ready is not True"},
		"an exec probe, and a gate is closed": {[]func(*corev1.Pod){says("ExecProbe", "containerd://m1", time.Second), gated("example.com/x")}, pod + `PodNotReady: its readiness gate "example.com/x" is not True`, pod + `PodNotReady: its readiness gate "example.com/x" is not True`},
		"no probe, said too long ago":         {[]func(*corev1.Pod){says("NoProbe", "containerd://m1", 31*time.Second)}, stale + "from 2026-03-01T11:59:29Z, and must not be older than 30s", stale + "from 2026-03-01T11:59:29Z, and must not be older than 30s"},
		"C20: no probe, said of another run":  {[]func(*corev1.Pod){says("NoProbe", "containerd://m0", time.Second)}, stale + "about an earlier container", stale + "about an earlier container"},
		"no result yet":                       {[]func(*corev1.Pod){says("ProbePending", "containerd://m1", time.Second)}, not + "ProbePending", not + "ProbePending"},
		"it stops":                            {[]func(*corev1.Pod){says("Stopping", "containerd://m1", time.Second)}, not + "Stopping", not + "Stopping"},
		"a probe that is no good":             {[]func(*corev1.Pod){says("UnusableProbe", "containerd://m1", time.Second)}, good, good},
		"no result yet, and not ready":        {[]func(*corev1.Pod){says("ProbePending", "containerd://m1", time.Second), unready}, not + "ProbePending", pod + "PodNotReady: its condition Ready is not True"},
		"a reason on two lines":               {[]func(*corev1.Pod){says("a\nb", "containerd://m1", time.Second)}, not + "a b", not + "a b"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for source, want := range map[v1alpha1.EvidenceSource]string{v1alpha1.EvidenceWitness: c.witness, v1alpha1.EvidenceBoth: c.both} {
				got := policy(from(source)...).Evidence([]string{u1}, []Pod{one(c.changes...)}, now)[0].String()
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s (-want +got)\n%s", source, diff)
				}
				checkWording(t, got)
			}
			// Where the kubelet alone is asked, a sidecar changes nothing.
			with := policy().Evidence([]string{u1}, []Pod{one(c.changes...)}, now)
			bare := policy().Evidence([]string{u1}, []Pod{one(c.changes[1:]...)}, now)
			if diff := cmp.Diff(bare, with); diff != "" {
				t.Errorf("by the kubelet (-without +with)\n%s", diff)
			}
		})
	}
}

// TestAwaits: the Pods that an object's evidence is about are those that it has to be asked
// for, whenever evidence may count.
func TestAwaits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status Status
		want   []string
	}{
		"failed":                        {status("Failed", u1, u2), []string{u1, u2}},
		"failed, without a record":      {status("Failed"), nil},
		"failed for good":               {status("Failed", u1).terminal(), nil},
		"failed, and nothing is proven": {status("Failed", seal), nil},
		"S28: more than there is room":  {status("Failed", u1, seal), nil},
		"it cannot be read":             {Status{Phase: "Failed", Problem: "x", Record: Record{Present: true, UIDs: []string{u1}}}, nil},
		"on its way, with the condition of a terminal failure": {status("Pausing", u1).terminal(), []string{u1}},
		"on its way from a failure":                            {status("Pausing", u1), []string{u1}},
		"paused":                                               {status("Paused", u1), []string{u1}},
		"its pods are replaced":                                {status("Resuming", u1), nil},
		"recovered, with a leftover":                           {status("Succeed", u1), nil},
		"a phase that nobody names":                            {status("Odd", u1), []string{u1}},
		"no phase":                                             {status("", u1), []string{u1}},
		"no status":                                            {Status{Absent: true}, nil},
		"never failed":                                         {status("Pausing"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := policy().Awaits(c.status)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			// It is what the guard asks for on the way to a recovered phase.
			in := write(c.status, status("Succeed"), finally)
			asked := c.status.Problem == "" && Decide(in).Wish == WishLivePods
			if asked != (len(c.want) > 0) {
				t.Errorf("the guard asks for pods: %t", asked)
			}
		})
	}
}
