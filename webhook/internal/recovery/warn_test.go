package recovery

import (
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
)

// TestAsWarning: warn mode admits unchanged, and tells what enforce would have done.
func TestAsWarning(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ in, want Decision }{
		"a write that is let through": {
			Decision{Allowed: true, Reason: ReasonUntouched},
			Decision{Allowed: true, Reason: ReasonUntouched},
		},
		"a record that would be set": {
			Decision{Allowed: true, Reason: ReasonRecorded, Message: "sets the record", Record: Edit{UIDs: []string{u1}}},
			Decision{Allowed: true, Reason: ReasonRecorded, Message: "mode warn: enforce sets the record", Warnings: []string{"mode warn: enforce sets the record"}},
		},
		"a record that would be cleared": {
			Decision{Allowed: true, Reason: ReasonCleared, Message: "clears the record", Record: Edit{Clear: true}, Warnings: []string{"first"}},
			Decision{Allowed: true, Reason: ReasonCleared, Message: "mode warn: enforce clears the record", Warnings: []string{"first", "mode warn: enforce clears the record"}},
		},
		"a write that would be denied": {
			Decision{Reason: ReasonPodGone, Message: "no", Evidence: []Verdict{{UID: u1, Reason: ReasonPodGone, Detail: "it is not there"}}},
			Decision{
				Allowed: true, Reason: ReasonPodGone, Message: "mode warn: would be denied with 403: no", Warnings: []string{"mode warn: would be denied with 403: no"},
				Evidence: []Verdict{{UID: u1, Reason: ReasonPodGone, Detail: "it is not there"}},
			},
		},
		"a write that would have to be tried again": {
			Decision{Retry: true, Reason: ReasonLookupFailed, Message: "not now"},
			Decision{Allowed: true, Reason: ReasonLookupFailed, Message: "mode warn: would be denied with 503: not now", Warnings: []string{"mode warn: would be denied with 503: not now"}},
		},
		"a write that is let through with a warning": {
			Decision{Allowed: true, Reason: ReasonUnreadable, Warnings: []string{"not guarded"}},
			Decision{Allowed: true, Reason: ReasonUnreadable, Warnings: []string{"not guarded"}},
		},
		"a wish is one still": {
			Decision{Wish: WishLivePods}, Decision{Wish: WishLivePods},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, c.in.AsWarning()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestAsWarningLeavesTheDecisionAsItIs: its warnings may have room behind them.
func TestAsWarningLeavesTheDecisionAsItIs(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]Decision{
		"denied": {Reason: ReasonPodGone, Message: "no"},
		"edited": {Allowed: true, Reason: ReasonCleared, Message: "clears", Record: Edit{Clear: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d.Warnings = append(make([]string, 0, 4), "first")
			d.AsWarning()
			d.AsWarning()
			if got := d.Warnings[:2]; got[1] != "" {
				t.Errorf("%q", got)
			}
		})
	}
}

// TestModeWarnAdmitsEverything: every row of the table, as mode warn sees it, is admitted as
// it is, and where enforce would deny or edit, that is told.
func TestModeWarnAdmitsEverything(t *testing.T) {
	t.Parallel()
	for group, rows := range table() {
		for name, r := range rows {
			t.Run(group+": "+name, func(t *testing.T) {
				t.Parallel()
				in := r.in
				previewing(&in)
				d, in, _ := asked(t, in, r.pods)
				w := d.AsWarning()
				checkDecision(t, in, d)
				if !w.Allowed || w.Retry || !w.Record.None() || w.Wish != WishNone || w.Reason != d.Reason {
					t.Errorf("%+v", w)
				}
				news := len(w.Warnings) - len(d.Warnings)
				if silent := d.Allowed && d.Record.None(); silent != (news == 0) || news > 1 {
					t.Errorf("%d warnings of %s: %q", news, outcome(d), w.Warnings)
				}
				for _, s := range w.Warnings {
					checkWording(t, s)
				}
				if !d.Allowed && !strings.Contains(w.Message, d.Message) {
					t.Errorf("it is not told why: %q", w.Message)
				}
				if diff := cmp.Diff(d.Evidence, w.Evidence); diff != "" {
					t.Error(diff)
				}
			})
		}
	}
}

// TestMessages: what is told, word for word.
func TestMessages(t *testing.T) {
	t.Parallel()
	const cannot = `box "a" cannot go from "Failed" to "Succeed"`
	ready := []Pod{one(), two()}
	many := func(n int) []string { return append([]string{u1}, numbered(n-1)...) }
	for name, c := range map[string]struct {
		in       Input
		pods     []Pod
		message  string
		warnings []string
	}{
		"a record is set": {
			in: write(status("Succeed"), status("Failed", u1, u2, u1)), message: "sets the record of failed pods to u1, u2",
		},
		"a record is cleared": {
			in: write(status("Succeed", u1), status("Succeed", u1)), message: "clears the record of failed pods",
		},
		"a record is cleared before the evidence is asked for": {
			in: write(status("Failed", u1), status("Succeed", u1)), message: "clears the record of failed pods",
		},
		"a record is cleared since the pods are ready again": {
			in: write(status("Failed", u1), status("Succeed", u1), previewing), pods: ready, message: "clears the record of failed pods, since they are ready again",
		},
		"a failure without a record": {
			in: write(status("Succeed"), status("Failed")), pods: ready,
			warnings: []string{`box "a" fails, and none of its pods is failing: nothing is recorded, so that it cannot recover by evidence; list the UIDs of the pods that failed in the same write`},
		},
		"a failure whose pods cannot be found out": {
			in:      write(status("Succeed"), status("Failed"), unknownPods(PodsFact{Cause: fact.CauseTimeout})),
			message: `box "a" fails, and which of its pods could not be found out: the API server did not answer in time; try again`,
		},
		"a failure whose pods cannot be found out, ignoring": {
			in:       write(status("Succeed"), status("Failed"), ignoring, unknownPods(PodsFact{Cause: fact.CauseForbidden})),
			warnings: []string{`box "a" fails, and which of its pods could not be found out: belay has no right to read it; nothing is recorded, so that it cannot recover by evidence`},
		},
		"a failure of an object that does not say which pods it has": {
			in:       write(status("Succeed"), status("Failed"), unknownPods(PodsFact{Problem: "spec.pods[0].when: no such key: poolRef"})),
			warnings: []string{`box "a": its pods cannot be told, so that nothing is recorded: spec.pods[0].when: no such key: poolRef`},
		},
		"a failure in what may be a resume": {
			in:       write(status("Paused"), status("Failed"), resumeUnclear),
			warnings: []string{`box "a": no telling whether its pods are being replaced, so nothing is recorded and it cannot recover by evidence: spec.resumeInFlight: no such key: pause`},
		},
		"a terminal failure is as the client says, and no news": {
			in: write(status("Succeed"), status("Failed", u1).terminal()), message: "clears the record of failed pods",
		},
		"a failure that the client gives the pods of": {
			in: write(status("Succeed"), status("Failed", u1)),
		},
		"a record that was changed": {
			in:      write(status("Failed", u1), status("Failed"), finally),
			message: `the record of box "a" is not what it must be: another webhook changed it, or belay did not see the write when it came in; try again`,
		},
		"a status that is removed": {
			in:      write(status("Failed", u1), Status{Absent: true}),
			message: `box "a" has failed (phase "Failed"), and its status must not be removed; write the phase and the rest of it`,
		},
		"a status that cannot be read": {
			in:       write(status("Succeed"), Status{Problem: ".status.phase is a list, and should be a string"}),
			warnings: []string{`box "a" is not guarded, since its status cannot be read: .status.phase is a list, and should be a string`},
		},
		"a failed object's status that cannot be read": {
			in:      write(status("Failed", u1), Status{Problem: ".status.phase is a list, and should be a string"}, finally),
			message: `box "a" has failed (phase "Failed"), and what it would become cannot be read: .status.phase is a list, and should be a string`,
		},
		"a status that could not be read before": {
			in:       write(Status{Problem: ".status.phase is a list, and should be a string"}, status("Succeed")),
			warnings: []string{`box "a" is not guarded, since its status cannot be read: .status.phase is a list, and should be a string`},
		},
		"a terminal failure": {
			in: write(status("Failed").terminal(), status("Succeed")), message: cannot + ": its failure is terminal; resume it, or create it anew",
		},
		"no record": {
			in:      write(status("Failed"), status("Succeed")),
			message: cannot + ": it failed without a record of its pods, so that nothing proves its recovery; annotate it with belay.dev/allow-recovery=true to let it recover once",
		},
		"no record, and the annotation": {
			in:       write(status("Failed"), status("Succeed"), annotated),
			warnings: []string{`box "a" recovers without evidence, as its annotation belay.dev/allow-recovery allows`},
		},
		"too many": {
			in: write(status("Failed", u1, seal), status("Succeed")), message: cannot + ": more pods failed than its record has room for; create it anew",
		},
		"one that is gone, and one that is not ready": {
			in: write(status("Failed", u1, u2), status("Succeed"), finally), pods: []Pod{one(unready)},
			message: cannot + `: pod "box-0" (uid u1): PodNotReady: its condition Ready is not True; uid "u2": PodGone: the object has no such pod; no evidence can come any more: resume it, or create it anew`,
		},
		"a UID that comes along is asked about after those that are recorded": {
			in:      write(status("Failed", u2), status("Succeed", u1, u2), finally),
			message: cannot + `: uid "u2": PodGone: the object has no such pod; uid "u1": PodGone: the object has no such pod; no evidence can come any more: resume it, or create it anew`,
		},
		"one that is gone, where no phase replaces the pods": {
			in:      write(status("Failed", u1), status("Succeed"), finally, func(in *Input) { in.Policy.ReplacesPods = nil }),
			message: cannot + `: uid "u1": PodGone: the object has no such pod; no evidence can come any more: create it anew`,
		},
		"one that is gone, and the annotation": {
			in:      write(status("Failed", u1), status("Succeed"), finally, annotated),
			message: cannot + `: uid "u1": PodGone: the object has no such pod; no evidence can come any more: resume it, or create it anew (annotation belay.dev/allow-recovery does not count, since UIDs are recorded)`,
		},
		"one that is not ready, and the annotation": {
			in: write(status("Failed", u1), status("Succeed"), finally, annotated), pods: []Pod{one(unready)},
			message: cannot + `: pod "box-0" (uid u1): PodNotReady: its condition Ready is not True`,
		},
		"those that are ready are not told of": {
			in: write(status("Failed", u1, u2), status("Succeed"), finally), pods: []Pod{one(), two(unready)},
			message: cannot + `: pod "box-1" (uid u2): PodNotReady: its condition Ready is not True`,
		},
		"five are told of": {
			in:      write(status("Failed", many(5)...), status("Succeed"), finally),
			message: cannot + `: uid "u1": PodGone: the object has no such pod; uid "n000": PodGone: the object has no such pod; uid "n001": PodGone: the object has no such pod; uid "n002": PodGone: the object has no such pod; uid "n003": PodGone: the object has no such pod; no evidence can come any more: resume it, or create it anew`,
		},
		"of more than five the rest is counted": {
			in:      write(status("Failed", many(7)...), status("Succeed"), finally),
			message: cannot + `: uid "u1": PodGone: the object has no such pod; uid "n000": PodGone: the object has no such pod; uid "n001": PodGone: the object has no such pod; uid "n002": PodGone: the object has no such pod; uid "n003": PodGone: the object has no such pod; and 2 more; no evidence can come any more: resume it, or create it anew`,
		},
		"the pods could not be found out": {
			in:      write(status("Failed", u1), status("Succeed"), finally, unknownPods(PodsFact{Cause: fact.CauseServer})),
			message: cannot + " yet: the state of its pods could not be found out: the API server had an error; try again",
		},
		"the object does not say which pods it has": {
			in:      write(status("Failed", u1), status("Succeed"), finally, unknownPods(PodsFact{Problem: "annotation example.com/pods: no JSON"})),
			message: cannot + ": its pods cannot be told: annotation example.com/pods: no JSON",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, _, _ := asked(t, c.in, c.pods)
			if diff := cmp.Diff(c.message, d.Message); diff != "" {
				t.Errorf("the message (-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(c.warnings, d.Warnings); diff != "" {
				t.Errorf("the warnings (-want +got)\n%s", diff)
			}
		})
	}
}

// TestLasting: what is told once must not change with every container that restarts.
func TestLasting(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in   Input
		pods []Pod
		want string
	}{
		"a record that no evidence is asked for": {
			write(status("Failed", u1, seal), status("Succeed")), nil,
			`box "a" cannot go from "Failed" to "Succeed": more pods failed than its record has room for; create it anew`,
		},
		"nothing that lasts": {
			write(status("Failed", u1), status("Succeed")), []Pod{one(unready)},
			`box "a" cannot go from "Failed" to "Succeed": pod "box-0" (uid u1): PodNotReady: its condition Ready is not True`,
		},
		"a pod that is gone, one that is not ready, and one that is": {
			write(status("Failed", u1, u2, u3), status("Succeed")), []Pod{one(unready), podNamed("box-2", u3)},
			`uid "u2": PodGone: the object has no such pod; no evidence can come any more`,
		},
		"many that are gone": {
			write(status("Failed", numbered(7)...), status("Succeed")), nil,
			`uid "n000": PodGone: the object has no such pod; uid "n001": PodGone: the object has no such pod; uid "n002": PodGone: the object has no such pod; uid "n003": PodGone: the object has no such pod; uid "n004": PodGone: the object has no such pod; and 2 more; no evidence can come any more`,
		},
		"an object that recovers": {write(status("Failed", u1), status("Succeed")), []Pod{one()}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := c.in
			finally(&in)
			d, _, _ := asked(t, in, c.pods)
			if got := d.Lasting(); got != c.want {
				t.Errorf("%s\nwant %s", got, c.want)
			}
		})
	}
}

// TestManyUIDsAreOneBoundedMessage: a record may have a hundred.
func TestManyUIDsAreOneBoundedMessage(t *testing.T) {
	t.Parallel()
	d := Decide(write(status("Succeed"), status("Failed", numbered(150)...)))
	if n := len(d.Message); n > 600 || !strings.HasSuffix(d.Message, "…") {
		t.Errorf("%d bytes: %s", n, d.Message)
	}
}

// TestQuote: other people's text is one line, bounded, and does not end its quotes.
func TestQuote(t *testing.T) {
	t.Parallel()
	x := func(n int) string { return strings.Repeat("x", n) }
	for name, c := range map[string]struct{ in, quoted, cleaned string }{
		"nothing":       {"", `""`, ""},
		"a word":        {"a", `"a"`, "a"},
		"quotes":        {`a"b"`, `"a'b'"`, `a"b"`},
		"two lines":     {"a\nb", `"a b"`, "a b"},
		"as many":       {x(128), `"` + x(128) + `"`, x(128)},
		"one more":      {x(129), `"` + x(128) + `…"`, x(129)},
		"as many again": {x(256), `"` + x(128) + `…"`, x(256)},
		"too many":      {x(257), `"` + x(128) + `…"`, x(256) + "…"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := quote(c.in); got != c.quoted {
				t.Errorf("quoted, it is %s, want %s", got, c.quoted)
			}
			if got := clean(c.in); got != c.cleaned {
				t.Errorf("cleaned, it is %s, want %s", got, c.cleaned)
			}
		})
	}
}

// hostileTexts are what a client may put wherever a schema wants a string.
func hostileTexts() map[string]string {
	return map[string]string{
		"a line break":               "a\nb",
		"a carriage return":          "a\rb",
		"control characters":         "a\u0000\u0085b\x1b[31m",
		"a quote that ends too soon": `a" is fine; "`,
		"one that is far too long":   strings.Repeat("é\n", 50_000),
		"one whose cut is a control": strings.Repeat("\n", 400),
		"wide characters":            strings.Repeat("日本", 300),
		"a line separator":           "a\u2028b",
	}
}

// TestMessagesOfHostileObjectsAreOneBoundedLine: names of phases and UIDs are the client's,
// reasons and names of containers are those of whoever writes a Pod or its status.
func TestMessagesOfHostileObjectsAreOneBoundedLine(t *testing.T) {
	t.Parallel()
	for name, text := range hostileTexts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			phaseIs := func(p *Policy) {
				p.Failed, p.Recovered = append(p.Failed, v1alpha1.Phase(text+"-")), append(p.Recovered, v1alpha1.Phase(text+"+"))
			}
			named := func(p *corev1.Pod) {
				p.Name = text
				p.Spec.Containers[0].Name, p.Status.ContainerStatuses[0].Name = text, text
			}
			both := func(in *Input) { in.Policy.Source = v1alpha1.EvidenceBoth }
			leave := func(changes ...func(*Input)) Input {
				return write(status("Failed", u1), status("Succeed"), append(changes, finally)...)
			}
			object := func(in *Input) { in.Object.Name = text }
			for what, c := range map[string]struct {
				in   Input
				pods []Pod
			}{
				"the object's name":                {in: write(status("Failed"), status("Succeed"), object)},
				"the object's name, removed":       {in: write(status("Failed"), Status{Absent: true}, object)},
				"the object's name, changed":       {in: write(status("Failed", u1), status("Failed"), object, finally)},
				"the phases":                       {in: write(status(text+"-", u1), status(text+"+"), func(in *Input) { phaseIs(&in.Policy) }, finally)},
				"the phase of a status removed":    {in: write(status(text, u1), Status{Absent: true})},
				"UIDs that are recorded":           {in: write(status("Succeed"), status("Failed", text, text, "b"))},
				"UIDs that are restored":           {in: write(status("Failed", text), status("Failed"))},
				"UIDs that no pod has":             {in: write(status("Failed", text), status("Succeed"), finally)},
				"the name of a pod":                {in: leave(), pods: []Pod{one(named, unready)}},
				"the name of another pod":          {in: leave(), pods: []Pod{two(named)}},
				"the phase of a pod":               {in: leave(), pods: []Pod{one(inPhase(corev1.PodPhase(text), ""))}},
				"the reason of a wait":             {in: leave(), pods: []Pod{one(main(waiting(text)))}},
				"the reason of a wait, pending":    {in: leave(), pods: []Pod{one(inPhase("Pending", ""), main(waiting(text)))}},
				"the reason of another's wait":     {in: leave(), pods: []Pod{one(container("proxy", waiting(text)), unready)}},
				"the name of another container":    {in: leave(), pods: []Pod{one(container(text, ended(1)), unready)}},
				"the name of a sidecar":            {in: leave(), pods: []Pod{one(nativeSidecar(text, waiting("x")), unready)}},
				"the annotation's container":       {in: leave(), pods: []Pod{one(defaultContainer(text))}},
				"a gate":                           {in: leave(), pods: []Pod{one(gated(corev1.PodConditionType(text)))}},
				"the name of main, ended":          {in: leave(), pods: []Pod{one(named, func(p *corev1.Pod) { p.Status.ContainerStatuses[0].State = ended(1) })}},
				"the name of main, not listed":     {in: leave(), pods: []Pod{one(func(p *corev1.Pod) { p.Spec.Containers[0].Name = text })}},
				"a report about another container": {in: leave(both), pods: []Pod{one(reported(corev1.ConditionTrue, text, 0))}},
				"a report that says no":            {in: leave(both), pods: []Pod{one(named, reported(corev1.ConditionFalse, "containerd://m1: "+text, 0))}},
				"why another pod failed":           {in: leave(), pods: []Pod{one(), two(inPhase("Failed", text))}},
				"which container of another pod":   {in: leave(), pods: []Pod{one(), two(inPhase("Failed", ""), named, func(p *corev1.Pod) { p.Status.ContainerStatuses[0].State = ended(1) })}},
				"what an expression says":          {in: leave(unknownPods(PodsFact{Problem: "spec.pods[0]: " + text + "~"}))},
				"what an expression says, failing": {in: write(status("Succeed"), status("Failed"), unknownPods(PodsFact{Problem: "spec.pods[0]: " + text + "~"}))},
				"what cannot be read":              {in: write(status("Failed"), Status{Problem: text + "~"}, finally)},
				"what cannot be read, running":     {in: write(status("Succeed"), Status{Problem: text + "~"}, finally)},
				"what the resume says":             {in: write(status("Succeed"), status("Failed"), func(in *Input) { in.Object.ResumeProblem = "spec.resumeInFlight: " + text + "~" })},
			} {
				d, in, _ := asked(t, c.in, c.pods)
				if d.Message == "" && len(d.Warnings) == 0 {
					t.Errorf("%s: nothing is said", what)
				}
				d.checkHostile(t, what)
				previewing(&in)
				d, _, _ = asked(t, in, c.pods)
				d.AsWarning().checkHostile(t, what+", in mode warn")
			}
		})
	}
}

// checkHostile holds everything that a decision says to the rules for messages.
func (d Decision) checkHostile(t *testing.T, what string) {
	t.Helper()
	said := append([]string{d.Message, d.Lasting()}, d.Warnings...)
	for _, v := range d.Evidence {
		said = append(said, v.String(), v.Detail)
	}
	for _, s := range said {
		if s == "" {
			continue
		}
		if strings.ContainsFunc(s, unicode.IsControl) || len(s) > 4096 || !utf8.ValidString(s) {
			t.Errorf("%s: %d bytes: %.120q", what, len(s), s)
		}
	}
}

// TestVerdictsAreBounded, each by itself: five of them go into a message.
func TestVerdictsAreBounded(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1000)
	for _, v := range []Verdict{
		{UID: types.UID(long), Reason: ReasonPodGone, Detail: long},
		{UID: u1, Pod: long, Reason: ReasonPodNotReady, Detail: long},
		{UID: u1, Pod: long},
		{UID: types.UID("a\nb" + long), Pod: "a", Reason: ReasonPodNotReady, Detail: "no"},
	} {
		checkWording(t, v.String())
		if s := v.String(); len(s) > 310 || v.Reason != "" && !strings.Contains(s, string(v.Reason)) {
			t.Errorf("%d bytes: %s", len(s), s)
		}
	}
	d, _, _ := asked(t, write(status("Failed", u1, u2, u3), status("Succeed"), finally), []Pod{
		podNamed(long, u1, main(waiting(long))), podNamed(long, u2, main(waiting(long))), podNamed(long, u3, main(waiting(long))),
	})
	if len(d.Message) > 1200 {
		t.Errorf("%d bytes: %s", len(d.Message), d.Message)
	}
	if v := (Verdict{UID: u1, Pod: "a", Reason: ReasonReportStale, Detail: time.Time{}.String()}); v.OK() {
		t.Error("a reason is no yes")
	}
}
