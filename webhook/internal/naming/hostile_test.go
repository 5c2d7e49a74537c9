package naming

import (
	"strings"
	"testing"

	"github.com/belay-dev/belay/webhook/internal/fact"
)

// Anybody who may change the object that has the name may write anything into its mark;
// whoever creates may choose any name, since nobody has checked it in the mutating phase.
func TestMessagesOfHostileObjectsAreOneBoundedLine(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"a line break":             "a\nb",
		"a control character":      "a\u0085b\x1b[31m",
		"a digest that is cut":     "日本日本日本",
		"one that is far too long": strings.Repeat("é\n", 50_000),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mark := func(o *Object) { o.Work = text }
			for _, in := range []Input{
				input(known(mark)),
				input(known(mark), func(in *Input) { in.Request.Work.Value = text }),
				input(known(mark), func(in *Input) { in.Request.Name = text }),
				input(known(failedJob, mark), whenFinished("Coalesce")),
				input(nothing, podless, func(in *Input) {
					in.Policy.Serialize, in.Facts.Turn = true, TurnFact{State: fact.Absent, Work: text}
				}),
				input(known(func(o *Object) { o.Deleting, o.Finalizers = now, []string{text, text, text, text, text} })),
				input(nothing, func(in *Input) { in.Facts.Pods = PodsFact{State: fact.Known, Names: []string{text}} }),
				input(nothing, func(in *Input) { in.Expected.Value = text }),
			} {
				checkWording(t, Decide(in).Message)
			}
			m := Mutate(MutateInput{Request: Request{Operation: "CREATE", Kind: "Job", Name: text, Work: Computed{Value: thisWork}}})
			checkWording(t, m.Message)
		})
	}
}

// An object without a mark is not the same work as a request whose work is empty.
func TestNoWorkIsNotTheSameWork(t *testing.T) {
	t.Parallel()
	d := Decide(input(known(markless), func(in *Input) { in.Request.Work.Value = "" }))
	if d.Reason != ReasonForeign || d.Allowed {
		t.Errorf("%+v", d)
	}
}
