package named

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// The table of answers, on the wire.
func TestAnswers(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	labels := policy(ctx, t, shared, "answers", nil)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)

	first := create(ctx, t, shared.Client, job(ns, "a", "one", labels))
	if first.Annotations[v1alpha1.WorkAnnotation] == "" {
		t.Fatalf("not marked: %v", first.Annotations)
	}
	s := raw(ctx, t, shared, job(ns, "a", "one", labels))
	answerIs(t, s, 409, "AlreadyExists", v1alpha1.CauseSameWork)
	if s.Details.UID != first.UID {
		t.Errorf("details.uid is %q, the running job has %q", s.Details.UID, first.UID)
	}
	s = raw(ctx, t, shared, job(ns, "a", "two", labels))
	answerIs(t, s, 409, "Conflict", v1alpha1.CauseOtherWork)

	complete(ctx, t, first)
	second := create(ctx, t, shared.Client, job(ns, "a", "two", labels))
	if second.UID == first.UID {
		t.Error("the finished job was not replaced")
	}
	eventually(ctx, t, "an event on what was deleted", func() error {
		list, err := shared.Kube.EventsV1().Events(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Regarding.UID == first.UID && e.Reason == v1alpha1.ReasonReplaced && e.Note == `finished (Complete), and deleted to make room for the next run, as policy "answers" says` {
				return nil
			}
		}
		return fmt.Errorf("events %+v", list.Items)
	})
}
