package registration

import (
	"fmt"
	"slices"
	"strconv"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/admission"
	"github.com/belay-dev/belay/webhook/internal/entries"
	"github.com/belay-dev/belay/webhook/internal/facts"
)

// sidecarTimeout is short: a Pod is admitted without a sidecar where belay cannot be asked.
const sidecarTimeout = 3

// sidecarEntries are the entries by which Pods get sidecars: those of policies that go by what
// sidecars report, one for each selector of their Pods, and one for the annotation.
func sidecarEntries(policies []*v1alpha1.RecoveryPolicy, s settings) (mutating, validating []entry) {
	add := func(name, policy string, namespaces, objects *metav1.LabelSelector, conditions ...admissionregistrationv1.MatchCondition) {
		e := entry{
			name:              name,
			namespaceSelector: optedIn(namespaces, s.ownNamespace),
			objectSelector:    selectorOrAll(objects),
			conditions:        append([]admissionregistrationv1.MatchCondition{notKube(), notMirror()}, conditions...),
			rules:             []admissionregistrationv1.RuleWithOperations{creates("", "v1", "pods", admissionregistrationv1.NamespacedScope)},
			failurePolicy:     admissionregistrationv1.Ignore,
			timeoutSeconds:    sidecarTimeout,
		}
		m, v := e, e
		m.path, v.path = admission.MutateSidecarPath+policy, admission.ValidateSidecarPath+policy
		mutating, validating = append(mutating, m), append(validating, v)
	}
	for _, p := range policies {
		spec := p.Status.InForce.Spec
		if !facts.ByWitness(spec) {
			continue
		}
		var seen []string
		for i := range spec.Pods {
			text := metav1.FormatLabelSelector(&spec.Pods[i].Selector)
			if slices.Contains(seen, text) {
				continue
			}
			name := p.Name + v1alpha1.SidecarEntryDomain
			if len(seen) > 0 {
				name = strconv.Itoa(len(seen)) + "." + name
			}
			seen = append(seen, text)
			add(name, "/"+p.Name, spec.NamespaceSelector, &spec.Pods[i].Selector)
		}
	}
	if !s.sidecarAnnotation {
		return mutating, validating
	}
	add(entries.SidecarAnnotation, "", nil, nil, admissionregistrationv1.MatchCondition{
		Name:       "belay.annotated",
		Expression: fmt.Sprintf("has(object.metadata) && has(object.metadata.annotations) && object.metadata.annotations[?%q].orValue(%q) != %q", v1alpha1.SidecarAnnotation, v1alpha1.SidecarSkip, v1alpha1.SidecarSkip),
	})
	return mutating, validating
}

// notMirror keeps belay from being asked about images of static Pods.
func notMirror() admissionregistrationv1.MatchCondition {
	return admissionregistrationv1.MatchCondition{
		Name:       "belay.not-mirror",
		Expression: `!has(object.metadata) || !has(object.metadata.annotations) || !("kubernetes.io/config.mirror" in object.metadata.annotations)`,
	}
}
