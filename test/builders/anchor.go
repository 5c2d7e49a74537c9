package builders

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// AnchorBuilder builds an Anchor.
type AnchorBuilder struct{ a v1alpha1.Anchor }

// MakeAnchor starts an Anchor that waits for job "run" and was created at created,
// to expire ten minutes later.
func MakeAnchor(created time.Time) *AnchorBuilder {
	b := &AnchorBuilder{}
	b.a.Namespace, b.a.Name, b.a.UID = "lab", "job-run-x", "anchor-uid"
	b.a.CreationTimestamp = metav1.NewTime(created)
	b.a.Spec.Owner = v1alpha1.AnchorOwner{APIVersion: "batch/v1", Kind: "Job", Name: "run"}
	b.a.Spec.ExpiresAt = metav1.NewTime(created.Add(10 * time.Minute))
	return b
}

// Named sets name and UID.
func (b *AnchorBuilder) Named(name string, uid types.UID) *AnchorBuilder {
	b.a.Name, b.a.UID = name, uid
	return b
}

// For sets the awaited owner.
func (b *AnchorBuilder) For(o v1alpha1.AnchorOwner) *AnchorBuilder {
	b.a.Spec.Owner = o
	return b
}

// ExpiresAt sets the end of the wait.
func (b *AnchorBuilder) ExpiresAt(t time.Time) *AnchorBuilder {
	b.a.Spec.ExpiresAt = metav1.NewTime(t)
	return b
}

// BoundTo sets the mark that an owner came, and the reference to it.
func (b *AnchorBuilder) BoundTo(uid types.UID) *AnchorBuilder {
	b.a.Spec.BoundUID = string(uid)
	b.a.OwnerReferences = []metav1.OwnerReference{{APIVersion: b.a.Spec.Owner.APIVersion, Kind: b.a.Spec.Owner.Kind, Name: b.a.Spec.Owner.Name, UID: uid}}
	return b
}

// Released takes the owner references away, as --cascade=orphan does.
func (b *AnchorBuilder) Released() *AnchorBuilder {
	b.a.OwnerReferences = nil
	return b
}

// Terminating sets a deletion timestamp.
func (b *AnchorBuilder) Terminating(at time.Time) *AnchorBuilder {
	t := metav1.NewTime(at)
	b.a.DeletionTimestamp = &t
	return b
}

// Condition sets the condition Bound.
func (b *AnchorBuilder) Condition(status metav1.ConditionStatus, reason string) *AnchorBuilder {
	b.a.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionBound, Status: status, Reason: reason}}
	return b
}

// Obj is the Anchor.
func (b *AnchorBuilder) Obj() *v1alpha1.Anchor { return b.a.DeepCopy() }
