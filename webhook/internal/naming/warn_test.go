package naming

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// TestAsWarning: warn mode admits unchanged, and tells what enforce would have done.
func TestAsWarning(t *testing.T) {
	t.Parallel()
	warned := func(reason Reason, message string) Decision {
		return Decision{Allowed: true, Reason: reason, Message: message, Warnings: []string{message}}
	}
	for name, c := range map[string]struct{ in, want Decision }{
		"an object that is admitted": {
			Decision{Allowed: true, Reason: ReasonNameFree, Message: "nothing has the name"},
			Decision{Allowed: true, Reason: ReasonNameFree, Message: "nothing has the name"},
		},
		"an object that would be marked: that alone is no news": {
			Decision{Allowed: true, Reason: ReasonMarked, Message: "is marked", SetWork: thisWork},
			Decision{Allowed: true, Reason: ReasonMarked, Message: "is marked"},
		},
		"an object that would be named": {
			Decision{Allowed: true, Reason: ReasonGenerated, Message: `a new job is named "b"`, SetName: "b", DropGenerateName: true, SetWork: thisWork},
			warned(ReasonGenerated, `mode warn: would be named: a new job is named "b"`),
		},
		"an object that would be denied": {
			Decision{Answer: v1alpha1.AnswerConflict, Reason: ReasonOtherWork, Cause: v1alpha1.CauseOtherWork, UID: "u", Message: "no"},
			warned(ReasonOtherWork, "mode warn: would be denied with Conflict: no"),
		},
		"an object that would have to wait": {
			Decision{Answer: v1alpha1.AnswerTooManyRequests, RetryAfterSeconds: 1, Reason: ReasonTerminating, Message: "no", Stuck: &Stuck{Name: "a"}},
			warned(ReasonTerminating, "mode warn: would be denied with TooManyRequests: no"),
		},
		"an object that would replace another": {
			Decision{Answer: v1alpha1.AnswerTooManyRequests, Reason: ReasonWouldReplace, Message: "would be deleted and replaced"},
			warned(ReasonWouldReplace, "mode warn: would be deleted and replaced"),
		},
		"an object that is admitted unchecked": {
			Decision{Allowed: true, Reason: ReasonLookupFailed, Message: "could not", Warnings: []string{"admitted unchecked: could not"}},
			Decision{Allowed: true, Reason: ReasonLookupFailed, Message: "could not", Warnings: []string{"admitted unchecked: could not"}},
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
	warnings := make([]string, 1, 4)
	warnings[0] = "first"
	d := Decision{Reason: ReasonOtherWork, Message: "no", Warnings: warnings}
	d.AsWarning()
	d.AsWarning()
	if got := warnings[:2]; got[1] != "" {
		t.Errorf("%q", got)
	}
}
