package recovery

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// P20: a Pod that slipped through while belay was away is told from one whose sidecar has not
// reported yet.
func TestP20_APodWithoutASidecar(t *testing.T) {
	t.Parallel()
	always := corev1.ContainerRestartPolicyAlways
	injected := func(p *corev1.Pod) {
		p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: v1alpha1.SidecarName, RestartPolicy: &always})
	}
	named := func(p *corev1.Pod) { // a container of that name is no sidecar
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: v1alpha1.SidecarName})
	}
	for name, c := range map[string]struct {
		pod    Pod
		source v1alpha1.EvidenceSource
		want   bool
	}{
		"none":                              {one(), v1alpha1.EvidenceBoth, true},
		"none, where the sidecar decides":   {one(), v1alpha1.EvidenceWitness, true},
		"none, where the kubelet decides":   {one(), v1alpha1.EvidenceKubelet, false},
		"one that has not reported":         {one(injected), v1alpha1.EvidenceBoth, false},
		"an ordinary container of its name": {one(named), v1alpha1.EvidenceBoth, true},
		"none, of a Pod that is not ready":  {one(unready), v1alpha1.EvidenceBoth, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := Policy{Source: c.source}
			got := p.Evidence([]string{u1}, []Pod{c.pod}, now)
			if len(got) != 1 || got[0].NoSidecar != c.want {
				t.Errorf("%+v", got)
			}
		})
	}
}
