package anchor

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/owner"
)

// observed is what a plan depends on.
type observed struct {
	anchor *v1alpha1.Anchor
	// owner is what is known of the awaited owner. It is not looked at for an
	// Anchor that is bound.
	owner owner.Fact
	// watched says that the owner's kind is watched, so that no polling is needed.
	watched bool
}

// plan is what is to be done about one Anchor.
type plan struct {
	// bind makes this object the Anchor's owner.
	bind *owner.Object
	// expire deletes the Anchor, and with it what it holds.
	expire bool
	// leave deletes the Anchor and leaves behind what it held.
	leave bool
	// condition to be written, if it is news.
	condition *metav1.Condition
	// event to be written along with a condition that is news.
	event *notice
	// after is when to look again; 0 for never.
	after time.Duration
}

// notice is an event about the Anchor.
type notice struct {
	kind, reason, action, note string
}

const (
	// quiet is how long an Anchor may wait before its status says so: owners mostly
	// come within milliseconds, and a status write for each would double the cost.
	quiet = 2 * time.Second
	// releasedFor is how long a released Anchor stays. A create that was under way when
	// it was bound may still be about to be stored with a reference to it: the API
	// server ends requests after a minute (--request-timeout); this is twice that.
	releasedFor = 2 * time.Minute
	// pollFirst and pollLast bound the polling for an owner whose kind is not
	// watched, or about which nothing could be found out.
	pollFirst = time.Second
	pollLast  = 15 * time.Second
)

// decide plans for one Anchor.
func decide(o observed, now time.Time) plan {
	a := o.anchor
	switch {
	case a.DeletionTimestamp != nil:
		return plan{}
	case a.Spec.BoundUID != "":
		return decideBound(a, now)
	case o.owner.State == fact.Unknown:
		// Never expired on a guess: a missing answer is not a missing owner.
		return plan{
			condition: condition(v1alpha1.ReasonLookupFailed, fmt.Sprintf("could not find out whether %s exists (%s); the Anchor is kept", describe(a), o.owner.Cause)),
			event:     &notice{corev1.EventTypeWarning, v1alpha1.ReasonLookupFailed, "LookUp", fmt.Sprintf("could not find out whether %s exists (%s); what the Anchor holds is kept", describe(a), o.owner.Cause)},
			after:     poll(a, now),
		}
	}
	var live []owner.Object
	for _, c := range o.owner.Objects {
		if !c.Terminating {
			live = append(live, c)
		}
	}
	switch {
	case o.owner.Truncated || len(live) > 1:
		message := fmt.Sprintf("several objects are %s; belay does not guess: make the labels unique. What the Anchor holds is kept", describe(a))
		return plan{
			condition: condition(v1alpha1.ReasonAmbiguous, message),
			event:     &notice{corev1.EventTypeWarning, v1alpha1.ReasonAmbiguous, "Bind", message},
			after:     pollLast,
		}
	case len(live) == 1:
		return plan{bind: &live[0]}
	}
	return decideWaiting(o, now)
}

// decideBound tells a bound Anchor from a released one. The garbage collector
// removes the reference when the owner is deleted with --cascade=orphan; it is
// never set again, neither to that owner nor to a later one of the same name.
// After a while it is taken away, leaving behind what it held: else every owner of
// the same name that comes and is orphaned would leave one for ever.
func decideBound(a *v1alpha1.Anchor, now time.Time) plan {
	for _, ref := range a.OwnerReferences {
		if ref.UID == types.UID(a.Spec.BoundUID) {
			c := condition(v1alpha1.ReasonBound, fmt.Sprintf("owned by %s (uid %s)", describe(a), a.Spec.BoundUID))
			c.Status = metav1.ConditionTrue
			return plan{condition: c}
		}
	}
	message := fmt.Sprintf("%s (uid %s) was deleted and left its dependents behind; what the Anchor holds stays, and is never bound again", describe(a), a.Spec.BoundUID)
	p := plan{
		condition: condition(v1alpha1.ReasonReleased, message),
		event:     &notice{corev1.EventTypeNormal, v1alpha1.ReasonReleased, "Release", message},
		after:     releasedFor,
	}
	if c := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionBound); c != nil && c.Reason == v1alpha1.ReasonReleased {
		p.after = max(0, c.LastTransitionTime.Add(releasedFor).Sub(now)) + 10*time.Millisecond
		p.leave = !now.Before(c.LastTransitionTime.Add(releasedFor))
	}
	return p
}

// decideWaiting plans for an Anchor whose owner is absent, or on its way out.
func decideWaiting(o observed, now time.Time) plan {
	a := o.anchor
	expires := owner.Expiry(a)
	created := a.CreationTimestamp.Time
	if !now.Before(expires) {
		message := fmt.Sprintf("%s did not come until %s; the Anchor is deleted, and the garbage collector takes what it holds", describe(a), expires.UTC().Format(time.RFC3339))
		return plan{
			expire:    true,
			condition: condition(v1alpha1.ReasonExpired, message),
			event:     &notice{corev1.EventTypeWarning, v1alpha1.ReasonExpired, "Expire", message},
		}
	}
	overdue := created.Add(expires.Sub(created) / 2)
	p := plan{after: expires.Sub(now)}
	switch {
	case !now.Before(overdue):
		message := fmt.Sprintf("%s has not come yet; at %s the Anchor is deleted with all that it holds", describe(a), expires.UTC().Format(time.RFC3339))
		p.condition = condition(v1alpha1.ReasonOverdue, message)
		p.event = &notice{corev1.EventTypeWarning, v1alpha1.ReasonOverdue, "Wait", message}
	case now.Sub(created) >= quiet:
		p.condition = condition(v1alpha1.ReasonWaiting, fmt.Sprintf("%s does not exist yet", describe(a)))
		p.after = overdue.Sub(now)
	default:
		p.after = min(overdue.Sub(now), quiet-now.Sub(created))
	}
	if !o.watched {
		p.after = min(p.after, poll(a, now))
	}
	// A moment later, so that the clock has passed the mark for certain.
	p.after += 10 * time.Millisecond
	return p
}

// poll is the time to the next look at an owner that is not watched: half of the
// Anchor's age, within bounds.
func poll(a *v1alpha1.Anchor, now time.Time) time.Duration {
	return min(max(now.Sub(a.CreationTimestamp.Time)/2, pollFirst), pollLast)
}

// news reports whether the condition differs from what the Anchor says now.
func (p plan) news(a *v1alpha1.Anchor) bool {
	if p.condition == nil {
		return false
	}
	have := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionBound)
	return have == nil || have.Status != p.condition.Status || have.Reason != p.condition.Reason
}

func condition(reason, message string) *metav1.Condition {
	return &metav1.Condition{Type: v1alpha1.ConditionBound, Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

// describe names the awaited owner in messages.
func describe(a *v1alpha1.Anchor) string {
	o := a.Spec.Owner
	return owner.Wanted{APIVersion: o.APIVersion, Kind: o.Kind, Name: o.Name, Labels: o.MatchLabels}.String()
}

// holds reports whether an Anchor could be bound to an object with this name and
// these labels.
func holds(o v1alpha1.AnchorOwner, name string, labels map[string]string) bool {
	if o.Name != "" {
		return o.Name == name
	}
	for k, v := range o.MatchLabels {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return len(o.MatchLabels) > 0
}

// groupKind is the key under which Anchors are indexed.
func groupKind(apiVersion, kind string) string {
	return strings.ToLower(kind) + "." + schema.FromAPIVersionAndKind(apiVersion, kind).Group
}
