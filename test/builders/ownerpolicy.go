package builders

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// OwnerPolicyBuilder builds an OwnerPolicy.
type OwnerPolicyBuilder struct{ p v1alpha1.OwnerPolicy }

// MakeOwnerPolicy starts a policy that has Secrets owned by the Job of their name,
// with everything else at the API's defaults.
func MakeOwnerPolicy(name string) *OwnerPolicyBuilder {
	b := &OwnerPolicyBuilder{}
	b.p.Name, b.p.UID, b.p.Generation = name, types.UID("uid-of-"+name), 1
	b.p.Spec = v1alpha1.OwnerPolicySpec{
		Dependents:       []v1alpha1.Kind{{APIVersion: "v1", Kind: "Secret"}},
		Owner:            v1alpha1.OwnerTarget{APIVersion: "batch/v1", Kind: "Job", Name: "object.metadata.name"},
		Deadline:         metav1.Duration{Duration: 10 * time.Minute},
		WhenUnresolved:   v1alpha1.UnresolvedAdmit,
		ClientReferences: v1alpha1.LintWarn,
		FailurePolicy:    v1alpha1.FailureIgnore,
		TimeoutSeconds:   3,
	}
	return b
}

// Spec changes the spec.
func (b *OwnerPolicyBuilder) Spec(change func(*v1alpha1.OwnerPolicySpec)) *OwnerPolicyBuilder {
	change(&b.p.Spec)
	return b
}

// Generation sets metadata.generation.
func (b *OwnerPolicyBuilder) Generation(n int64) *OwnerPolicyBuilder {
	b.p.Generation = n
	return b
}

// InForce puts the spec in force, as it is now and with these resources.
func (b *OwnerPolicyBuilder) InForce(owner v1alpha1.ResolvedResource, dependents ...v1alpha1.ResolvedResource) *OwnerPolicyBuilder {
	b.p.Status.InForce = &v1alpha1.AcceptedOwnerPolicy{
		Generation: b.p.Generation, Spec: *b.p.Spec.DeepCopy(), Owner: owner, Dependents: dependents,
	}
	return b
}

// Obj is the policy.
func (b *OwnerPolicyBuilder) Obj() *v1alpha1.OwnerPolicy { return b.p.DeepCopy() }

// Jobs are namespaced and in a group of their own.
func Jobs() v1alpha1.ResolvedResource {
	return v1alpha1.ResolvedResource{Group: "batch", Version: "v1", Kind: "Job", Resource: "jobs", Namespaced: true}
}

// Secrets are namespaced and in the core group.
func Secrets() v1alpha1.ResolvedResource {
	return v1alpha1.ResolvedResource{Version: "v1", Kind: "Secret", Resource: "secrets", Namespaced: true}
}

// ClusterRoles are cluster-scoped.
func ClusterRoles() v1alpha1.ResolvedResource {
	return v1alpha1.ResolvedResource{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole", Resource: "clusterroles"}
}
