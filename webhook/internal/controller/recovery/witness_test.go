package recovery

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	rules "github.com/belay-dev/belay/webhook/internal/recovery"
)

// witnessedPod is a Pod that is ready by the kubelet's word, with a sidecar's report.
func witnessedPod(uid string, status corev1.ConditionStatus, age time.Duration) *corev1.Pod {
	p := podOf(uid, "")
	p.Status.ContainerStatuses[0].ContainerID = "containerd://1"
	if status != "" {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
			Type: v1alpha1.MainReadyCondition, Status: status, Reason: "ProbeFailed", LastProbeTime: metav1.NewTime(time.Now().Add(-age)),
			Message: rules.ReportMessage("containerd://1", "x", rules.Order{Reporter: "r", Sequence: 1, Since: 1}),
		})
	}
	return p
}

func byWitness(in *v1alpha1.AcceptedRecoveryPolicy) {
	in.Spec.Evidence = v1alpha1.EvidenceBoth
	in.Spec.WitnessFreshFor = metav1.Duration{Duration: 30 * time.Second}
}

// TestARecoveryThatWaitsForItsWitnessSaysSo: once, when it has lasted, and with the reason as
// the action; and not where something else is missing as well.
func TestARecoveryThatWaitsForItsWitnessSaysSo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pods   func() []*corev1.Pod
		action string
	}{
		"no report":           {func() []*corev1.Pod { return []*corev1.Pod{witnessedPod("u1", "", 0)} }, "ReportMissing"},
		"an old report":       {func() []*corev1.Pod { return []*corev1.Pod{witnessedPod("u1", corev1.ConditionTrue, time.Minute)} }, "ReportStale"},
		"it says no":          {func() []*corev1.Pod { return []*corev1.Pod{witnessedPod("u1", corev1.ConditionFalse, 0)} }, "ReportNotReady"},
		"the Pod is down":     {func() []*corev1.Pod { return []*corev1.Pod{podOf("u1", crash)} }, ""},
		"another Pod is, too": {func() []*corev1.Pod { return []*corev1.Pod{witnessedPod("u1", "", 0), podOf("u2", crash)} }, ""},
		"all is well":         {func() []*corev1.Pod { return []*corev1.Pod{witnessedPod("u1", corev1.ConditionTrue, 0)} }, "Recovered"},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := run(t, compiledPolicy(t, byWitness), sandbox(t, failedU1))
			p.turn(c.pods()...)
			pass(5 * time.Second)
			if got := p.said(); len(got) > 0 && c.action != "Recovered" {
				t.Errorf("%s: told at once: %+v", name, got)
			}
			pass(time.Hour)
			p.turn(c.pods()...)
			pass(time.Hour)
			var told []event
			for _, e := range p.said() {
				if e.Reason == v1alpha1.ReasonRecoveryWaits {
					told = append(told, e)
				}
			}
			switch {
			case c.action == "" || c.action == "Recovered":
				if len(told) > 0 {
					t.Errorf("%s: %+v", name, told)
				}
			case len(told) != 1 || told[0].Kind != "Warning" || told[0].Action != c.action || told[0].About != aboutA || !strings.Contains(told[0].Note, "u1"):
				t.Errorf("%s: %+v", name, told)
			}
		})
	}
}
