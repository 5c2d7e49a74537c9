package registration

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// subject is a policy of any kind, as acceptance and registration see it.
type subject interface {
	client.Object
	// entryName is the name of its webhook entries.
	entryName() string
	conditions() *[]metav1.Condition
	// inForce is the generation whose spec is in force; 0 for none.
	inForce() int64
	// put puts the spec of a verdict in force, or, where it has none, nothing.
	put(v verdict)
	// judge observes what acceptance depends on, and accepts.
	judge(ctx context.Context, r *Reconciler) verdict
	// addTo adds the policy to those that are in force.
	addTo(p *inForce)
	// status is compared to tell whether there is something to write.
	status() any
	object() client.Object
}

type ownerSubject struct{ *v1alpha1.OwnerPolicy }

func (s ownerSubject) entryName() string               { return s.Name + v1alpha1.OwnerEntryDomain }
func (s ownerSubject) conditions() *[]metav1.Condition { return &s.Status.Conditions }
func (s ownerSubject) status() any                     { return s.Status.DeepCopy() }
func (s ownerSubject) object() client.Object           { return s.OwnerPolicy }

func (s ownerSubject) addTo(p *inForce) { p.owners = append(p.owners, s.OwnerPolicy) }

func (s ownerSubject) inForce() int64 {
	if s.Status.InForce == nil {
		return 0
	}
	return s.Status.InForce.Generation
}

func (s ownerSubject) put(v verdict) { s.Status.InForce = v.inForce }

func (s ownerSubject) judge(ctx context.Context, r *Reconciler) verdict {
	return accept(s.OwnerPolicy, r.observe(ctx, s.OwnerPolicy))
}

type nameSubject struct{ *v1alpha1.NamePolicy }

func (s nameSubject) entryName() string               { return s.Name + v1alpha1.NameEntryDomain }
func (s nameSubject) conditions() *[]metav1.Condition { return &s.Status.Conditions }
func (s nameSubject) status() any                     { return s.Status.DeepCopy() }
func (s nameSubject) object() client.Object           { return s.NamePolicy }

func (s nameSubject) addTo(p *inForce) { p.names = append(p.names, s.NamePolicy) }

func (s nameSubject) inForce() int64 {
	if s.Status.InForce == nil {
		return 0
	}
	return s.Status.InForce.Generation
}

func (s nameSubject) put(v verdict) { s.Status.InForce = v.nameInForce }

func (s nameSubject) judge(ctx context.Context, r *Reconciler) verdict {
	return acceptName(s.NamePolicy, r.observeName(ctx, s.NamePolicy))
}

type recoverySubject struct{ *v1alpha1.RecoveryPolicy }

func (s recoverySubject) entryName() string               { return s.Name + v1alpha1.RecoveryEntryDomain }
func (s recoverySubject) conditions() *[]metav1.Condition { return &s.Status.Conditions }
func (s recoverySubject) status() any                     { return s.Status.DeepCopy() }
func (s recoverySubject) object() client.Object           { return s.RecoveryPolicy }

func (s recoverySubject) addTo(p *inForce) { p.recoveries = append(p.recoveries, s.RecoveryPolicy) }

func (s recoverySubject) inForce() int64 {
	if s.Status.InForce == nil {
		return 0
	}
	return s.Status.InForce.Generation
}

func (s recoverySubject) put(v verdict) { s.Status.InForce = v.recoveryInForce }

func (s recoverySubject) judge(ctx context.Context, r *Reconciler) verdict {
	return acceptRecovery(s.RecoveryPolicy, r.observeRecovery(ctx, s.RecoveryPolicy))
}

// accept judges a policy and writes what came out, if it is news.
func (r *Reconciler) accept(ctx context.Context, s subject) (again bool, err error) {
	v := s.judge(ctx, r)
	before := s.status()
	c := metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: v.reason, Message: v.message, ObservedGeneration: s.GetGeneration()}
	if v.ok {
		c.Status = metav1.ConditionTrue
	}
	if v.ok || v.revised {
		s.put(v)
	}
	meta.SetStatusCondition(s.conditions(), c)
	return v.again, r.writeStatus(ctx, s, before)
}

// report writes the condition Registered.
func (r *Reconciler) report(ctx context.Context, s subject, o outcome) error {
	before := s.status()
	c := metav1.Condition{Type: v1alpha1.ConditionRegistered, Status: metav1.ConditionFalse, ObservedGeneration: s.GetGeneration(), Reason: o.reason, Message: o.message}
	switch {
	case s.inForce() == 0:
		c.Reason, c.Message = v1alpha1.ReasonNotAccepted, "no spec of this policy is in force; see its condition Accepted"
	case o.reason != v1alpha1.ReasonRegistered:
	case !meta.IsStatusConditionTrue(*s.conditions(), v1alpha1.ConditionAccepted):
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonRegisteredPrevious
		c.Message = fmt.Sprintf("the spec of generation %d goes on working, since generation %d was not accepted", s.inForce(), s.GetGeneration())
		if s.inForce() == s.GetGeneration() {
			c.Message = "the spec goes on working, though it would not be accepted now"
		}
	default:
		c.Status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(s.conditions(), c)
	return r.writeStatus(ctx, s, before)
}

func (r *Reconciler) writeStatus(ctx context.Context, s subject, before any) error {
	if equality.Semantic.DeepEqual(s.status(), before) {
		return nil
	}
	err := r.client.Status().Update(ctx, s.object())
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // deleted meanwhile, or changed: then the newer one is on its way here
	}
	if err != nil {
		return fmt.Errorf("writing the status of policy %q: %w", s.GetName(), err)
	}
	return nil
}
