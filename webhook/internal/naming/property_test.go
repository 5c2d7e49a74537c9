package naming

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
)

// choices are what one part of an input may be.
type choices []func(*Input)

func answersOf(sameWork, otherWork, finished, terminating v1alpha1.Answer) func(*Input) {
	return func(in *Input) {
		in.Policy.Answers = v1alpha1.NameAnswers{SameWork: sameWork, OtherWork: otherWork, Finished: finished, Terminating: terminating}
	}
}

// existing are the objects that may have the name, and the ways of not knowing.
func existing() choices {
	out := choices{
		func(*Input) {},
		func(in *Input) { in.Facts.Existing.Cause = fact.CauseTimeout },
		nothing,
	}
	keep := func(*Object) {}
	for _, work := range []func(*Object){keep, otherWork, markless, adopted, func(o *Object) { o.Marked, o.Work = false, thatWork }} {
		for _, phase := range []func(*Object){keep, succeeded, failedJob, func(o *Object) { o.Phase.Problem = "spec.finished: no" }} {
			for _, hold := range []func(*Object){keep, func(o *Object) { o.Held = true }, func(o *Object) { o.HoldProblem = "spec.hold: no" }} {
				for _, age := range []func(*Object){keep, young} {
					for _, deleting := range []func(*Object){keep, deletingSince(now)} {
						out = append(out, known(work, phase, hold, age, deleting))
					}
				}
			}
		}
	}
	return out
}

// choicesFor are all parts of an input that matter to a replacement, one after the other.
func choicesFor() []choices {
	pods := func(f PodsFact) func(*Input) { return func(in *Input) { in.Facts.Pods = f } }
	right := func(f RightFact) func(*Input) { return func(in *Input) { in.Facts.Right = f } }
	replaced := func(r Replacement, c fact.Cause) func(*Input) {
		return func(in *Input) { in.Facts.Replaced, in.Facts.ReplacedCause = r, c }
	}
	left := func(d time.Duration) func(*Input) { return func(in *Input) { in.Facts.Left = d } }
	keep := func(*Input) {}
	return []choices{
		existing(),
		{pods(PodsFact{}), podless, pods(PodsFact{State: fact.Known, Names: []string{"a-x"}})},
		{right(RightFact{}), right(RightFact{State: fact.Absent}), mayDelete},
		{keep, replaced(ReplacementDone, ""), replaced(ReplacementFailed, fact.CauseServer)},
		{keep, left(MinReplace - 1)},
		{keep, whenFinished(v1alpha1.FinishedCoalesce), whenFinished(v1alpha1.FinishedReject)},
		{keep, func(in *Input) { in.Policy.Settle = time.Minute }},
		{keep, func(in *Input) { in.Policy.WaitForPods = false }},
		{keep, preview},
	}
}

// moreChoices matter to other answers; they are drawn, since all of them together are too
// many.
func moreChoices() []choices {
	turn := func(f TurnFact) func(*Input) { return func(in *Input) { in.Facts.Turn = f } }
	ofWork := func(c Computed) func(*Input) { return func(in *Input) { in.Request.Work = c } }
	expected := func(c Computed, rule string) func(*Input) {
		return func(in *Input) { in.Expected, in.Rule = c, rule }
	}
	keep := func(*Input) {}
	return append(choicesFor(),
		choices{keep, ignoring},
		choices{keep, keep, keep, func(in *Input) { in.Request.Operation = "DELETE" }},
		choices{keep, keep, keep, func(in *Input) { in.Request.Name = "" }},
		choices{keep, func(in *Input) { in.Request.Unnamed = true }},
		choices{keep, func(in *Input) { in.Request.HasGenerateName = true }},
		choices{keep, keep, keep, ofWork(Computed{Problem: "spec.identity[0]: no"}), ofWork(Computed{Problem: "spec.identity[0]: late", Transient: true})},
		choices{keep, keep, keep, expected(Computed{Value: "a"}, ""), expected(Computed{Value: "b"}, ""), expected(Computed{Value: "B"}, "is no name"), expected(Computed{Problem: "spec.verify: no"}, "")},
		choices{keep, keep, keep, func(in *Input) { in.Overlap = "other" }},
		choices{keep, keep, func(in *Input) { in.Facts.Pods = PodsFact{Cause: fact.CauseTimeout} }},
		choices{keep, keep, func(in *Input) { in.Facts.Right = RightFact{Cause: fact.CauseServer} }},
		choices{keep, keep, func(in *Input) { in.Facts.Replaced, in.Facts.ReplacedCause = ReplacementFailed, fact.CauseForbidden }},
		choices{keep, func(in *Input) { in.Policy.Serialize = true }},
		choices{keep, turn(TurnFact{Cause: fact.CauseTimeout}), turn(TurnFact{State: fact.Absent, Work: thatWork}), turn(TurnFact{State: fact.Known})},
		choices{keep, func(in *Input) { in.Request.Group, in.Request.Kind = "", "Pod" }, func(in *Input) { in.Request.Group, in.Request.Kind = "example.com", "" }},
		choices{
			keep,
			answersOf(v1alpha1.AnswerInvalid, v1alpha1.AnswerInvalid, v1alpha1.AnswerForbidden, v1alpha1.AnswerServiceUnavailable),
			answersOf(v1alpha1.AnswerForbidden, v1alpha1.AnswerTooManyRequests, v1alpha1.AnswerAlreadyExists, v1alpha1.AnswerConflict),
			answersOf("", "", "", ""),
		},
	)
}

// all calls f with every combination.
func all(parts []choices, f func(Input)) {
	at := make([]int, len(parts))
	for {
		in := input()
		for i, part := range parts {
			part[at[i]](&in)
		}
		f(in)
		i := 0
		for ; i < len(parts); i++ {
			if at[i]++; at[i] < len(parts[i]) {
				break
			}
			at[i] = 0
		}
		if i == len(parts) {
			return
		}
	}
}

// drawn is an input of parts that are drawn: of those that are seldom at the root of an
// answer, behind the first nine, mostly the plain one.
func drawn(r *rand.Rand, parts []choices) Input {
	in, first := input(), 9
	for i, part := range parts {
		if i < first || r.IntN(3) == 0 {
			part[r.IntN(len(part))](&in)
		}
	}
	return in
}

// obstacle says why an input must not end in a deletion; empty where it may. It is
// written from the design, and not from the code.
func obstacle(in Input) string {
	f, o, p := in.Facts, in.Facts.Existing.Object, in.Policy
	same := o.Work != "" && o.Work == in.Request.Work.Value
	switch {
	case in.Request.Operation != "CREATE":
		return "not a create"
	case in.Request.Preview:
		return "a dry run or warn mode"
	case f.Existing.State != fact.Known:
		return "there is no object, or it is not known"
	case !o.Marked:
		return "it carries no mark"
	case o.Held:
		return "it is held"
	case o.HoldProblem != "":
		return "whether it is held is not known"
	case !o.Phase.Finished:
		return "it is not finished"
	case !o.Deleting.IsZero():
		return "it is being deleted already"
	case p.WhenFinished != v1alpha1.FinishedReplace:
		return "the policy does not replace"
	case same && o.Phase.Succeeded && f.Now.Sub(o.Created) < p.Settle:
		return "it settles"
	case f.Right.State != fact.Known:
		return "the requester may not delete it, or that is not known"
	case p.WaitForPods && IsJob(in.Request.Group, in.Request.Kind) && f.Pods.State != fact.Absent:
		return "its Pods run, or that is not known"
	case f.Left < MinReplace:
		return "there is no time left"
	case f.Replaced != ReplacementNone:
		return "something was replaced already"
	case in.Request.Work.Problem != "":
		return "the work is not known"
	case in.Expected.Problem != "" || (in.Expected.Value != "" && in.Expected.Value != in.Request.Name):
		return "the name is not as it has to be, or that is not known"
	}
	return ""
}

// TestNothingIsDeletedThatMustNotBe goes through every combination that matters to a
// deletion. It also sees that what may be deleted is.
func TestNothingIsDeletedThatMustNotBe(t *testing.T) {
	t.Parallel()
	deletions := 0
	all(choicesFor(), func(in Input) {
		d := Decide(in)
		why := obstacle(in)
		switch {
		case d.Wish == WishReplace && why != "":
			t.Fatalf("%s, and is deleted: %+v", why, in)
		case d.Wish != WishReplace && why == "":
			t.Fatalf("is not replaced: %+v\n%+v", in, d)
		case d.Wish == WishReplace:
			deletions++
		}
	})
	if deletions == 0 {
		t.Error("nothing was ever deleted: this test proves nothing")
	}
}

// check holds a decision to what must be so whatever the input is.
func check(t *testing.T, in Input, d Decision, allowedReasons []Reason) {
	t.Helper()
	bad := func(what string) { t.Errorf("%s: %+v\n%+v", what, in, d) }
	if d.Wish != WishNone {
		if d.Allowed || d.Reason != "" || d.Message != "" || d.Answer != "" {
			bad("a wish and a decision at once")
		}
		if d.Wish == WishReplace && obstacle(in) != "" {
			bad(obstacle(in) + ", and is deleted")
		}
		return
	}
	if !slices.Contains(allowedReasons, d.Reason) {
		bad("a reason that is not on the list")
	}
	checkWording(t, d.Message)
	for _, w := range d.Warnings {
		checkWording(t, w)
	}
	again := d.Answer == v1alpha1.AnswerTooManyRequests || d.Answer == v1alpha1.AnswerServiceUnavailable
	if d.RetryAfterSeconds != 0 && !again {
		bad("N20: Retry-After on what a retry does not mend")
	}
	if again && d.RetryAfterSeconds != 1 && d.Reason != ReasonWouldReplace {
		bad("N23: no Retry-After")
	}
	if d.SetName != "" || d.SetWork != "" || d.DropGenerateName || d.DropWork {
		bad("the validating phase changes the object")
	}
	if d.Allowed {
		if d.Answer != "" || d.Cause != "" || d.RetryAfterSeconds != 0 || d.Stuck != nil {
			bad("admitted with what belongs to a denial")
		}
		looked := d.Reason != ReasonNotCreate && d.Reason != ReasonServerNamed
		if in.Facts.Existing.State == fact.Known && looked && in.Policy.FailurePolicy != v1alpha1.FailureIgnore {
			bad("admitted although the name is taken")
		}
		if in.Policy.FailurePolicy == v1alpha1.FailureIgnore && looked && in.Facts.Existing.State != fact.Absent && len(d.Warnings) == 0 {
			bad("admitted unchecked without a word")
		}
		return
	}
	if d.UID != "" && in.Facts.Existing.State != fact.Known {
		bad("a UID of nothing")
	}
	if (d.Cause == v1alpha1.CauseSameWork || d.Cause == v1alpha1.CauseOtherWork || d.Cause == v1alpha1.CauseFinished) && d.UID != "job-uid" {
		bad("the object is not named by its UID")
	}
	if d.Cause == v1alpha1.CauseSameWork && in.Facts.Existing.Object.Work != in.Request.Work.Value {
		bad("other work is said to be the same")
	}
}

// TestEveryInputHasADecision draws inputs of every kind.
func TestEveryInputHasADecision(t *testing.T) {
	t.Parallel()
	list := reasons(t)
	r := rand.New(rand.NewPCG(1, 2))
	parts := moreChoices()
	seen := map[Reason]bool{}
	for range 100_000 {
		in := drawn(r, parts)
		d := Decide(in)
		seen[d.Reason] = true
		if check(t, in, d, list); t.Failed() {
			return
		}
		w := d.AsWarning()
		if d.Wish == WishNone && (!w.Allowed || w.Answer != "" || w.SetName != "" || w.SetWork != "" || w.DropWork || w.RetryAfterSeconds != 0 || w.Cause != "") {
			t.Fatalf("warn mode denies or changes: %+v", w)
		}
		if d.Wish == WishNone && !d.Allowed && !slices.ContainsFunc(w.Warnings, func(s string) bool { return strings.Contains(s, d.Message) }) {
			t.Fatalf("warn mode does not tell: %+v", w)
		}
	}
	for _, r := range list {
		if mutating := r == ReasonMarked || r == ReasonGenerated; !seen[r] && !mutating {
			t.Errorf("%s never came up: this test proves too little", r)
		}
	}
}

// TestEveryFactUnknown: with nothing known at all there is a decision for every request and
// every policy, and it is the policy's stance.
func TestEveryFactUnknown(t *testing.T) {
	t.Parallel()
	keep := func(*Input) {}
	all([]choices{
		{keep, whenFinished(v1alpha1.FinishedCoalesce), whenFinished(v1alpha1.FinishedReject)},
		{keep, ignoring},
		{keep, preview},
		{keep, func(in *Input) { in.Policy.Serialize = true }},
		{keep, func(in *Input) { in.Policy.WaitForPods = false }},
		{keep, func(in *Input) { in.Facts.Now, in.Facts.Left = time.Time{}, 0 }},
		{keep, func(in *Input) { in.Request = Request{Operation: "CREATE", Name: "a"} }},
	}, func(in Input) {
		d := Decide(in)
		if d.Wish != WishNone || d.Reason != ReasonLookupFailed {
			t.Errorf("%+v\n%+v", in, d)
		}
		if ignore := in.Policy.FailurePolicy == v1alpha1.FailureIgnore; d.Allowed != ignore || !ignore && d.Answer != v1alpha1.AnswerServiceUnavailable {
			t.Errorf("%+v\n%+v", in, d)
		}
	})
	if d := Decide(Input{}); d.Wish != WishNone || d.Message == "" {
		t.Errorf("of nothing: %+v", d)
	}
	if d := Mutate(MutateInput{}); d.Message == "" {
		t.Errorf("of nothing: %+v", d)
	}
}

// rounds is far less than what admission asks at most, which leaves room for an object
// that changes while it is looked at.
const rounds = 8

// TestTheDecisionEnds plays whoever answers wishes: with any answer there is a decision
// before admission gives up, at most one deletion, and no question that is asked again
// although nothing has changed since.
func TestTheDecisionEnds(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	objects := existing()[1:] // all but what was not asked
	pick := func(c ...func(*Input)) func(*Input) { return c[r.IntN(len(c))] }
	parts := moreChoices()
	most, deletions := 0, 0
	for range 40_000 {
		in := input()
		for _, part := range parts { // mostly plain, so that many come far
			if r.IntN(6) == 0 {
				part[r.IntN(len(part))](&in)
			}
		}
		in.Facts = Facts{Now: now, Left: time.Second}
		object := func() func(*Input) {
			return pick(objects[r.IntN(len(objects))], nothing, known(failedJob), known(succeeded))
		}
		object()(&in)
		asked := map[Wish]bool{}
		replaced := false
		n := 1
		for ; ; n++ {
			if n > rounds {
				t.Fatalf("no decision after %d rounds: %+v", rounds, in)
			}
			d := Decide(in)
			if d.Wish == WishNone {
				break
			}
			if asked[d.Wish] {
				t.Fatalf("%s is asked for again: %+v", d.Wish, in)
			}
			asked[d.Wish] = true
			switch d.Wish {
			case WishPods:
				pick(podless, podless, func(in *Input) { in.Facts.Pods = PodsFact{State: fact.Known, Names: []string{"x"}} }, func(in *Input) { in.Facts.Pods = PodsFact{Cause: fact.CauseTimeout} })(&in)
			case WishRight:
				pick(mayDelete, mayDelete, func(in *Input) { in.Facts.Right = RightFact{State: fact.Absent} }, func(in *Input) { in.Facts.Right = RightFact{Cause: fact.CauseServer} })(&in)
			case WishTurn:
				in.Facts.Turn = []TurnFact{{State: fact.Known}, {State: fact.Absent}, {Cause: fact.CauseServer}}[r.IntN(3)]
			case WishReplace:
				if replaced {
					t.Fatalf("a second deletion: %+v", in)
				}
				replaced = true
				deletions++
				in.Facts = Facts{Now: in.Facts.Now, Left: in.Facts.Left, Right: in.Facts.Right, Existing: in.Facts.Existing, Replaced: ReplacementFailed, ReplacedCause: fact.CauseServer}
				if r.IntN(3) > 0 {
					in.Facts.Replaced = ReplacementDone
					object()(&in)
				}
				// What was known does not hold any more.
				asked = map[Wish]bool{WishReplace: true, WishRight: asked[WishRight]}
			default:
				t.Fatalf("nobody knows the wish %q", d.Wish)
			}
		}
		most = max(most, n)
	}
	if most < 6 || deletions == 0 {
		t.Errorf("at most %d rounds, %d deletions: this test proves too little", most, deletions)
	}
}

// FuzzDecide puts other people's text where it comes from other people.
func FuzzDecide(f *testing.F) {
	for i, s := range []string{"", "a", "a\nb", "日本日本日本", strings.Repeat("x", 5000), "\xff\xfe", "a\x00b", `"`, "\u2028"} {
		f.Add(s, uint64(i))
		f.Add(s, uint64(i)<<32)
	}
	parts := moreChoices()
	f.Fuzz(func(t *testing.T, text string, seed uint64) {
		// As JSON decoders leave it, and with an end that no sentence has.
		text = strings.ToValidUTF8(text, "\uFFFD") + "~"
		r := rand.New(rand.NewPCG(seed, 5))
		in := drawn(r, parts)
		for _, s := range []*string{
			&in.Request.Name, &in.Request.Work.Value, &in.Request.Work.Problem, &in.Expected.Value, &in.Expected.Problem,
			&in.Facts.Existing.Object.Work, &in.Facts.Existing.Object.HoldProblem, &in.Facts.Existing.Object.Phase.Problem, &in.Facts.Turn.Work,
		} {
			if r.IntN(3) == 0 && (*s != "" || s == &in.Facts.Existing.Object.Work) {
				*s = text
			}
		}
		in.Facts.Existing.Object.Finalizers = []string{text, text}
		if in.Facts.Pods.State == fact.Known {
			in.Facts.Pods.Names = []string{text, "b", text, "c"}
		}
		d := Decide(in)
		if d.Wish == WishNone {
			checkWording(t, d.Message)
			for _, w := range d.AsWarning().Warnings {
				checkWording(t, w)
			}
		}
		in.Request.Work.Value = thisWork // which is always belay's own in this phase
		m := Mutate(MutateInput{Request: in.Request, Policy: in.Policy, Generated: in.Expected})
		if m.SetName != "" && in.Request.Name != "" {
			t.Errorf("renamed %q to %q", in.Request.Name, m.SetName)
		}
		checkWording(t, m.Message)
	})
}

// TestADecisionDependsOnItsInputAlone: the same input has the same decision, and is left as
// it was.
func TestADecisionDependsOnItsInputAlone(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 8))
	parts := moreChoices()
	for range 2000 {
		in := drawn(r, parts)
		before := fmt.Sprintf("%+v", in)
		one, two := Decide(in), Decide(in)
		if a, b := fmt.Sprintf("%+v", one), fmt.Sprintf("%+v", two); one.Stuck == nil && a != b {
			t.Fatalf("%s\n%s", a, b)
		}
		if after := fmt.Sprintf("%+v", in); before != after {
			t.Fatalf("%s\n%s", before, after)
		}
	}
}
