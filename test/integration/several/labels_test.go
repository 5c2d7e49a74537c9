package several

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

const (
	// labelRounds is how often the race is run, with nothing in B's way.
	labelRounds = 200
	// heldRounds is how often B is made to lose.
	heldRounds = 6
)

// P24, P20: a namespace is labelled through A, and a Pod is created through B at once. Where
// B does not know of the label yet, the Pod has no sidecar: its object does not recover by
// it, and that is told.
func TestP24_P20_ALabelOfAMomentAgo(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*stack.Bound) // all that are missed are looked at
	defer cancel()
	kubes, _ := both(t)
	var missed []*sandbox
	for i := range labelRounds {
		b := newSandbox(ctx, t, unlabelled(ctx, t, kubes[serverA]), fmt.Sprintf("box-%d", i))
		optIn(ctx, t, kubes[serverA], b.key.Namespace)
		b.newPod(ctx, serverB)
		if stack.SidecarOf(b.pod) == nil {
			missed = append(missed, b)
		}
	}
	byChance := len(missed)
	var held []*sandbox
	for i := range heldRounds {
		held = append(held, newSandbox(ctx, t, unlabelled(ctx, t, kubes[serverA]), fmt.Sprintf("held-%d", i)))
	}
	for _, b := range held { // B has seen it without the label
		stack.Eventually(ctx, t, "B knows the namespace", func() error {
			_, err := kubes[serverB].CoreV1().Namespaces().Get(ctx, b.key.Namespace, metav1.GetOptions{ResourceVersion: "0"})
			return err
		})
	}
	release := holdB(t)
	for _, b := range held {
		optIn(ctx, t, kubes[serverA], b.key.Namespace)
		b.newPod(ctx, serverB)
		if stack.SidecarOf(b.pod) == nil {
			missed = append(missed, b)
		}
	}
	release()
	stack.Report(t, "several: %d of %d Pods missed a label that was set through the other API server a moment before; %d of %d while its watches were held", byChance, labelRounds, len(missed)-byChance, heldRounds)
	if len(missed) == byChance {
		t.Fatal("B missed nothing while its watches were held: the test shows nothing")
	}

	const looked, without = `belay_recovery_looks_total{reason="ReportMissing"}`, "belay_recovery_pods_without_sidecar_total"
	looks, told := counted(ctx, t, looked), counted(ctx, t, without)
	for _, b := range missed {
		b.fails(ctx)
		must(t, opensandbox.Ready(ctx, b.via[serverA], b.pod))
		for server := range b.via {
			refused, err := b.phase(ctx, server, opensandbox.PhaseSucceed, client.DryRunAll)
			if err != nil || refused == nil || refused.Code != 403 || causesOf(refused) != "ReportMissing" || !strings.Contains(refused.Message, string(b.pod.UID)) {
				t.Errorf("%s: a Pod without a sidecar: %+v, %v", b.key, refused, err)
			}
		}
	}
	for _, b := range missed {
		stack.Eventually(ctx, t, "the event that names the Pod", func() error {
			var list eventsv1.EventList
			if err := b.via[serverA].List(ctx, &list, client.InNamespace(b.key.Namespace)); err != nil {
				return err
			}
			for _, e := range list.Items {
				if e.Reason == v1alpha1.ReasonRecoveryWaits && strings.Contains(e.Note, string(b.pod.UID)) && strings.Contains(e.Note, v1alpha1.SidecarName) {
					return nil
				}
			}
			return fmt.Errorf("none among %d", len(list.Items))
		})
		if s := b.status(ctx); s.Phase != opensandbox.PhaseFailed || len(s.FailedPodUIDs) != 1 {
			t.Errorf("%s: status %+v", b.key, s)
		}
	}
	if now := counted(ctx, t, looked); now < looks+float64(len(missed)) {
		t.Errorf("%s went from %v to %v", looked, looks, now)
	}
	if now := counted(ctx, t, without); now != told+float64(len(missed)) {
		t.Errorf("%s went from %v to %v, by %d Pods", without, told, now, len(missed))
	}
}

func unlabelled(ctx context.Context, t *testing.T, kube kubernetes.Interface) string {
	t.Helper()
	ns, err := shared.NewNamespace(ctx, "label", "")
	must(t, err)
	stack.Cleanup(t, func(ctx context.Context) { _ = kube.CoreV1().Namespaces().Delete(ctx, ns, metav1.DeleteOptions{}) })
	return ns
}

func optIn(ctx context.Context, t *testing.T, kube kubernetes.Interface, ns string) {
	t.Helper()
	_, err := kube.CoreV1().Namespaces().Patch(ctx, ns, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, v1alpha1.ModeLabel, v1alpha1.ModeEnforce), metav1.PatchOptions{})
	must(t, err)
}

// counted sums a metric, with its labels, over the controllers.
func counted(ctx context.Context, t *testing.T, metric string) (sum float64) {
	t.Helper()
	for _, p := range shared.Controllers() {
		select {
		case <-p.Done():
			continue
		default:
		}
		text, err := p.Metrics(ctx)
		must(t, err)
		for line := range strings.Lines(text) {
			if value, ok := strings.CutPrefix(line, metric+" "); ok {
				n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
				must(t, err)
				sum += n
			}
		}
	}
	return sum
}
