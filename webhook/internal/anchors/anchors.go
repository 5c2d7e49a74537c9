// Package anchors gets hold of the Anchor that waits for an owner: the one place
// where admission writes to the cluster.
package anchors

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/owner"
)

// Client creates Anchors and reads them live.
type Client interface {
	Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error
	Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error
}

// Request says which Anchor is wanted.
type Request struct {
	Namespace string
	Owner     v1alpha1.AnchorOwner
	// Deadline is how long a new Anchor waits.
	Deadline time.Duration
	// Policy goes into a label; empty for an annotation's owner.
	Policy string
}

// maxSteps bounds the calls of one request. A step of the chain costs two, and each
// step is an owner of the same name that came and went while its Anchor is still
// there: bound to one that is going away, or released in the last two minutes, after
// which belay-controller takes released Anchors away.
const maxSteps = 40

// Hold creates the Anchor for an owner, or returns the one that is there and can
// be shared. It never waits: what cannot be had in a few calls is Unknown.
func Hold(ctx context.Context, c Client, r Request) owner.AnchorFact {
	var before types.UID
	var last error
	for range maxSteps {
		name := owner.AnchorName(r.Owner, before)
		made := &v1alpha1.Anchor{
			ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: name, Labels: policyLabel(r.Policy)},
			Spec:       v1alpha1.AnchorSpec{Owner: r.Owner, ExpiresAt: expiry(time.Now(), r.Deadline), Deadline: metav1.Duration{Duration: r.Deadline}},
		}
		last = create(ctx, c, made)
		if last == nil {
			return owner.AnchorFact{State: fact.Known, Name: name, UID: made.UID}
		}
		if !apierrors.IsAlreadyExists(last) {
			if final(last) || !facts.Pause(ctx) {
				break
			}
			continue // a lost answer: the next try finds what the first one made
		}
		var found v1alpha1.Anchor
		last = c.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: name}, &found)
		switch {
		case apierrors.IsNotFound(last):
			continue // deleted in between: the name is free
		case last != nil:
			if final(last) || !facts.Pause(ctx) {
				return owner.AnchorFact{Cause: facts.CauseOf(last)}
			}
			continue
		case owner.Shareable(&found, r.Owner, time.Now(), owner.AnchorMargin(r.Deadline)):
			return owner.AnchorFact{State: fact.Known, Name: name, UID: found.UID}
		}
		before = found.UID
	}
	cause := facts.CauseOf(last)
	if cause == fact.CauseNotAsked {
		cause = fact.CauseServer
	}
	return owner.AnchorFact{Cause: cause}
}

// create tries once, with its share of the time that is left.
func create(ctx context.Context, c Client, a *v1alpha1.Anchor) error {
	ctx, cancel := facts.Attempt(ctx)
	defer cancel()
	return c.Create(ctx, a)
}

// final errors are not worth another try: a missing right, a namespace that is
// being deleted, an Anchor that the API server finds invalid.
func final(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsInvalid(err) ||
		apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// expiry rounds up, since the API keeps whole seconds and a deadline must not
// come early.
func expiry(now time.Time, d time.Duration) metav1.Time {
	return metav1.NewTime(now.Add(d + time.Second - time.Nanosecond).Truncate(time.Second))
}

func policyLabel(policy string) map[string]string {
	if policy == "" {
		return nil
	}
	return map[string]string{v1alpha1.PolicyLabel: policy}
}
