package recovery

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/belay-dev/belay/webhook/internal/fact"
)

// causes reads the closed list from its source.
func causes(t *testing.T) []fact.Cause {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "../fact/fact.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []fact.Cause
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(spec.Names[0].Name, "Cause") || len(spec.Values) != 1 {
			return true
		}
		if lit, ok := spec.Values[0].(*ast.BasicLit); ok {
			s, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, fact.Cause(s))
		}
		return true
	})
	if len(out) < 5 || out[0] != fact.CauseNotAsked {
		t.Fatalf("only %q were found", out)
	}
	return out
}

// everyWrite calls f with a write of every kind, in every phase of admission.
func everyWrite(f func(Input)) {
	phases := []string{"", "Pending", "Succeed", "Paused", "Resuming", "Failed", "Melting"}
	records := [][]string{nil, {u1}, {u1, u2}, {seal}, {u1, seal}}
	keep := func(*Input) {}
	for _, from := range phases {
		for _, to := range phases {
			for _, old := range records {
				for _, shown := range records {
					for _, terminal := range []int{0, 1, 2, 3} {
						for _, phase := range []func(*Input){keep, finally, previewing} {
							for _, stance := range []func(*Input){keep, ignoring} {
								arounds := []func(*Input){keep}
								switch to { // where it may matter
								case "Failed":
									arounds = append(arounds, resumeInFlight)
								case "Succeed", "Pending":
									arounds = append(arounds, annotated)
								}
								for _, around := range arounds {
									a, b := status(from, old...), status(to, shown...)
									a.Terminal, b.Terminal = terminal&1 > 0, terminal&2 > 0
									f(write(a, b, phase, stance, around))
								}
							}
						}
					}
				}
			}
		}
	}
}

// needs says which Pods a decision rests on, from the design: a failure whose record belay
// has to fill in, while that can still be done; and a recovery that evidence could allow,
// where nothing changes the write any more.
func needs(in Input) Wish {
	before, after := in.Policy.kind(in.Old.Phase), in.Policy.kind(in.New.Phase)
	record := in.Old.Record.UIDs
	carrying := len(record) > 0 && before != recovered && before != replacing
	switch {
	case after == failed && before != failed:
		settled := in.New.Terminal || before == replacing || in.Object.ResumeInFlight
		shown := in.New.Record.UIDs
		// The mark of a leftover may as well be what belay made of the write.
		news := len(shown) > 0 && (!same(shown, record) || slices.Contains(record, seal))
		if carrying {
			// Where the mark is, no Pod matters any more.
			news = !covers(record, shown) || slices.Contains(record, seal)
		}
		if !settled && !news && (!in.Final || in.Preview) {
			return WishPods
		}
	case after == recovered && (before == failed || carrying):
		terminal := before == failed && (in.Old.Terminal || in.New.Terminal)
		provable := len(record) > 0 && record[len(record)-1] != seal
		if in.Final && !terminal && provable {
			return WishLivePods
		}
	}
	return WishNone
}

// TestEveryFactUnknown: with nothing known there is a decision about every write, and it is
// the policy's stance; with nothing asked yet there is a wish, where one is needed.
func TestEveryFactUnknown(t *testing.T) {
	t.Parallel()
	all := causes(t)
	checked := map[Wish]int{}
	everyWrite(func(in Input) {
		if t.Failed() {
			return
		}
		need := needs(in)
		checked[need]++
		bad := func(what string, in Input, d Decision) { t.Errorf("%s: %+v\n%+v", what, in, d) }
		asking := Decide(in)
		if asking.Wish != need {
			bad("wants "+strconv.Quote(string(asking.Wish))+" and needs "+strconv.Quote(string(need)), in, asking)
			return
		}
		for _, state := range []fact.State{fact.Unknown, fact.Absent} {
			for _, cause := range all[1:] {
				// An answer that is none, whether or not the API server itself was asked.
				in.Pods = PodsFact{State: state, Cause: cause, Live: state == fact.Absent}
				d := Decide(in)
				checkDecision(t, in, d)
				switch {
				case d.Wish != WishNone:
					bad("asks again", in, d)
				case need == WishNone:
					if !reflect.DeepEqual(asking, d) {
						bad("depends on pods that it does not need", in, d)
					}
				case d.Reason != ReasonLookupFailed:
					bad("another reason", in, d)
				case need == WishPods && in.Policy.FailurePolicy == "Ignore":
					if !d.Allowed || len(d.Warnings) != 1 || !strings.Contains(d.Warnings[0], cause.Words()) {
						bad("is not admitted with a warning", in, d)
					}
					// What the object was carrying stays; nothing else is recorded.
					var kept []string
					if before := in.Policy.kind(in.Old.Phase); before == other || before == lifecycle {
						kept = in.Old.Record.UIDs
					}
					if got := edited(in.Policy, in.New, d.Record).Record.UIDs; !same(got, kept) {
						bad(fmt.Sprintf("records %q", got), in, d)
					}
				default:
					if d.Allowed || !d.Retry || !strings.Contains(d.Message, cause.Words()) || !strings.HasSuffix(d.Message, "; try again") {
						bad("is not to be tried again", in, d)
					}
				}
			}
		}
		// An expression that fails is as bad at the next try.
		in.Pods = PodsFact{Problem: "spec.pods[0].when: no such key: x"}
		d := Decide(in)
		checkDecision(t, in, d)
		switch {
		case d.Wish != WishNone || d.Retry && need != WishNone:
			bad("is to be tried again", in, d)
		case need == WishNone && !reflect.DeepEqual(asking, d):
			bad("depends on an expression that it does not need", in, d)
		case need == WishPods && (!d.Allowed || d.Reason != ReasonExpressionFailed || len(d.Warnings) != 1):
			bad("an object does not come into its failed phase", in, d)
		case need == WishLivePods && (d.Allowed || d.Reason != ReasonExpressionFailed):
			bad("an object recovers", in, d)
		}
	})
	for _, w := range []Wish{WishNone, WishPods, WishLivePods} {
		if checked[w] < 100 {
			t.Errorf("%d writes need %q: this test proves too little", checked[w], w)
		}
	}
}

// TestPodsOfACacheAreAskedForAgain only where they would decide.
func TestPodsOfACacheAreAskedForAgain(t *testing.T) {
	t.Parallel()
	cached := func(pods ...Pod) func(*Input) { return unknownPods(PodsFact{State: fact.Known, Pods: pods}) }
	live := func(pods ...Pod) func(*Input) {
		return unknownPods(PodsFact{State: fact.Known, Pods: pods, Live: true})
	}
	for name, c := range map[string]struct {
		in   Input
		want string
	}{
		"a failure that the cache has seen":                 {write(status("Succeed"), status("Failed"), cached(one(looping))), "allow Recorded"},
		"a failure that the cache has not seen":             {write(status("Succeed"), status("Failed"), cached(one())), "wish live-pods"},
		"a failure that the API server has not seen either": {write(status("Succeed"), status("Failed"), live(one())), "allow NothingToRecord"},
		"a recovery that the cache has seen":                {write(status("Failed", u1), status("Succeed"), finally, cached(one())), "wish live-pods"},
		"a recovery that the cache has not seen":            {write(status("Failed", u1), status("Succeed"), finally, cached()), "wish live-pods"},
		"a recovery that the API server has seen":           {write(status("Failed", u1), status("Succeed"), finally, live(one())), "allow Recovered"},
		"a recovery that the API server has not seen":       {write(status("Failed", u1), status("Succeed"), finally, live()), "deny PodGone"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := outcome(Decide(c.in)); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}
