package builders

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// NamePolicyBuilder builds a NamePolicy.
type NamePolicyBuilder struct{ p v1alpha1.NamePolicy }

// MakeNamePolicy starts a policy about Jobs whose work is told by the annotation
// "work" and which replaces finished ones, with everything else at the API's defaults.
func MakeNamePolicy(name string) *NamePolicyBuilder {
	b := &NamePolicyBuilder{}
	b.p.Name, b.p.UID, b.p.Generation = name, types.UID("uid-of-"+name), 1
	yes := true
	b.p.Spec = v1alpha1.NamePolicySpec{
		Kinds:        []v1alpha1.Kind{{APIVersion: "batch/v1", Kind: "Job"}},
		Identity:     []string{`object.metadata.annotations["work"]`},
		WhenFinished: v1alpha1.FinishedReplace,
		Propagation:  v1alpha1.PropagationBackground,
		WaitForPods:  &yes,
		NameWait:     metav1.Duration{Duration: time.Second},
		Racing:       v1alpha1.RacingStorage,
		Answers: v1alpha1.NameAnswers{
			SameWork: v1alpha1.AnswerAlreadyExists, OtherWork: v1alpha1.AnswerConflict,
			Finished: v1alpha1.AnswerConflict, Terminating: v1alpha1.AnswerTooManyRequests,
		},
		FailurePolicy:  v1alpha1.FailureFail,
		TimeoutSeconds: 5,
	}
	return b
}

// Spec changes the spec.
func (b *NamePolicyBuilder) Spec(change func(*v1alpha1.NamePolicySpec)) *NamePolicyBuilder {
	change(&b.p.Spec)
	return b
}

// Generation sets metadata.generation.
func (b *NamePolicyBuilder) Generation(n int64) *NamePolicyBuilder {
	b.p.Generation = n
	return b
}

// InForce puts the spec in force, as it is now and with these resources.
func (b *NamePolicyBuilder) InForce(kinds ...v1alpha1.ResolvedResource) *NamePolicyBuilder {
	b.p.Status.InForce = &v1alpha1.AcceptedNamePolicy{Generation: b.p.Generation, Spec: *b.p.Spec.DeepCopy(), Kinds: kinds}
	return b
}

// Obj is the policy.
func (b *NamePolicyBuilder) Obj() *v1alpha1.NamePolicy { return b.p.DeepCopy() }

// Pods are namespaced and in the core group.
func Pods() v1alpha1.ResolvedResource {
	return v1alpha1.ResolvedResource{Version: "v1", Kind: "Pod", Resource: "pods", Namespaced: true}
}
