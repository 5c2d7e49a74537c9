package recovery

import (
	"strings"
	"testing"

	"github.com/belay-dev/belay/webhook/internal/fact"
)

// TestTheWayOutIsSaid: whoever reads that a Pod is gone wants to know what is left to do, and
// that the annotation which other messages name does not help.
func TestTheWayOutIsSaid(t *testing.T) {
	t.Parallel()
	gone := write(status("Failed", u1), status("Succeed"), finally)
	gone.Pods = PodsFact{State: fact.Known, Live: true}
	annotated := gone
	annotated.Object.Allowed = true
	withoutResume := gone
	withoutResume.Policy.ReplacesPods = nil
	waiting := gone
	waiting.Pods.Pods = []Pod{one(unready)}
	for name, c := range map[string]struct {
		in        Input
		with, not string
	}{
		"a pod is gone": {gone, "; no evidence can come any more: resume it, or create it anew", "annotation"},
		"a pod is gone, and the object is annotated":   {annotated, "create it anew (annotation belay.dev/allow-recovery does not count, since UIDs are recorded)", "no such thing"},
		"a pod is gone, and nothing replaces pods":     {withoutResume, "; no evidence can come any more: create it anew", "resume"},
		"a pod is not ready yet, which may still come": {waiting, "PodNotReady", "any more"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := Decide(c.in)
			if d.Allowed || !strings.Contains(d.Message, c.with) || strings.Contains(d.Message, c.not) {
				t.Errorf("%+v", d)
			}
		})
	}
}

// TestWhatLastsIsSaidAlone: an event about an object that cannot recover must not change with
// every turn of another Pod.
func TestWhatLastsIsSaidAlone(t *testing.T) {
	t.Parallel()
	texts := map[string]bool{}
	for _, second := range []Pod{two(unready), two(looping)} {
		in := write(status("Failed", u1, u2), status("Succeed"), finally)
		in.Pods = PodsFact{State: fact.Known, Live: true, Pods: []Pod{second}}
		d := Decide(in)
		if !d.Final() {
			t.Fatalf("%+v", d)
		}
		texts[d.Lasting()] = true
	}
	if len(texts) != 1 {
		t.Errorf("%v", texts)
	}
	terminal := write(status("Failed").terminal(), status("Succeed"), finally)
	if d := Decide(terminal); d.Lasting() != d.Message {
		t.Errorf("%q, %q", d.Lasting(), d.Message)
	}
}

// TestARecordThatCannotBeReadIsNoWayOut: a phase that can be read says that the object failed,
// whatever its record or its conditions look like.
func TestARecordThatCannotBeReadIsNoWayOut(t *testing.T) {
	t.Parallel()
	for _, to := range []string{"Succeed", "Pausing", "Melting", ""} {
		in := write(Status{Phase: "Failed", Problem: "the record is a number"}, status(to))
		d := Decide(in)
		in.New = edited(in.Policy, in.New, d.Record)
		next := write(in.New, status("Succeed"), finally)
		if to == "Succeed" {
			next = write(Status{Phase: "Failed", Problem: "the record is a number"}, status("Succeed"), finally)
		}
		if d := Decide(next); d.Allowed || d.Reason != ReasonNoRecord {
			t.Errorf("by way of %q: %+v", to, d)
		}
	}
}
