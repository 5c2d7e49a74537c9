package builders

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// RecoveryPolicyBuilder builds a RecoveryPolicy.
type RecoveryPolicyBuilder struct{ p v1alpha1.RecoveryPolicy }

// MakeRecoveryPolicy starts a policy about BatchSandboxes of OpenSandbox that make their
// own Pods. It guards, and leaves recovering to others; everything that it does not say is
// at the API's defaults.
func MakeRecoveryPolicy(name string) *RecoveryPolicyBuilder {
	b := &RecoveryPolicyBuilder{}
	b.p.Name = name
	yes := true
	b.p.Spec = v1alpha1.RecoveryPolicySpec{
		Resource:       v1alpha1.Kind{APIVersion: "sandbox.opensandbox.io/v1alpha1", Kind: "BatchSandbox"},
		PhasePath:      ".status.phase",
		RecordPath:     ".status.failedPodUIDs",
		ConditionsPath: ".status.conditions",
		Phases: v1alpha1.RecoveryPhases{
			Failed: []v1alpha1.Phase{"Failed"}, Recovered: []v1alpha1.Phase{"Succeed", "Pending"},
			Lifecycle: []v1alpha1.Phase{"Pausing", "Paused", "Resuming"}, ReplacesPods: []v1alpha1.Phase{"Resuming"},
		},
		Terminal: &v1alpha1.ConditionValue{Type: "ResumeFailed", Status: metav1.ConditionTrue},
		Pods: []v1alpha1.PodSource{{
			Selector: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "batch-sandbox.sandbox.opensandbox.io/name", Operator: metav1.LabelSelectorOpExists},
			}},
			Owner: &v1alpha1.PodsByOwner{Labels: `{"batch-sandbox.sandbox.opensandbox.io/name": object.metadata.name}`},
		}},
		Detectors: v1alpha1.FailureDetectors{
			WaitingReasons: []string{"CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "CreateContainerConfigError"}, Terminal: &yes,
		},
		Evidence:        v1alpha1.EvidenceKubelet,
		WitnessFreshFor: metav1.Duration{Duration: 30 * time.Second},
		Recover:         v1alpha1.RecoverNever,
		FailurePolicy:   v1alpha1.FailureFail,
		TimeoutSeconds:  3,
	}
	return b
}

// Spec changes the spec.
func (b *RecoveryPolicyBuilder) Spec(change func(*v1alpha1.RecoveryPolicySpec)) *RecoveryPolicyBuilder {
	change(&b.p.Spec)
	return b
}

// Obj is the policy.
func (b *RecoveryPolicyBuilder) Obj() *v1alpha1.RecoveryPolicy { return b.p.DeepCopy() }
