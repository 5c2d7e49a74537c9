package replace

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/webhook/client/spawn/names"
)

// TurnLabel on a Lease says what its turn is for. belay-controller removes Leases
// with it when they are long over.
const TurnLabel = "belay.dev/turn"

// TurnFor is how long a turn counts: longer than the API server waits for a webhook,
// so that whoever took it is done or gone, and than a create takes to be stored after
// its admission.
const TurnFor = 10 * time.Second

// maxSkew is by how much the clocks of replicas may differ, as those of one cluster do.
const maxSkew = 2 * time.Second

// Client creates, reads and takes over Leases.
type Client interface {
	Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error
	Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error
	Update(ctx context.Context, obj client.Object, opts ...client.UpdateOption) error
}

// Turns hands out turns.
type Turns struct {
	Client Client
	// Namespace is belay's own.
	Namespace string
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// maxSteps bounds the calls for one turn: others that take it, let it run out or have
// it removed in between cost two each.
const maxSteps = 6

// Turn is what a turn is taken for.
type Turn struct {
	// Purpose and Key say what only one holder at a time may do.
	Purpose string
	Key     []any
	// Holder is who wants it.
	Holder string
	// Spent, where it is set, is the version of a turn that has come to its end, since
	// what it was for has been made, and has gone again.
	Spent string
}

func (w Turn) name() string {
	return "turn-" + names.Digest(append([]any{w.Purpose}, w.Key...)...)
}

// Version is the version of a turn as it is now, and empty where nobody has it.
func (t Turns) Version(ctx context.Context, turn Turn) (string, error) {
	var found coordinationv1.Lease
	err := t.Client.Get(ctx, client.ObjectKey{Namespace: t.Namespace, Name: turn.name()}, &found)
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("reading a turn: %w", err)
	}
	return found.ResourceVersion, nil
}

// Take takes a turn, or says who has it. A turn is never given back: it runs out after
// TurnFor.
func (t Turns) Take(ctx context.Context, turn Turn) (mine bool, other string, err error) {
	name, purpose, holder := turn.name(), turn.Purpose, turn.Holder
	seen := "" // the version of the turn when it was first looked at
	for range maxSteps {
		lease := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: t.Namespace, Name: name, Labels: map[string]string{"app.kubernetes.io/name": "belay", TurnLabel: purpose}},
		}
		t.fill(lease, holder)
		err = t.Client.Create(ctx, lease)
		if err == nil {
			return true, "", nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return false, "", fmt.Errorf("taking a turn: %w", err)
		}
		var found coordinationv1.Lease
		err = t.Client.Get(ctx, client.ObjectKeyFromObject(lease), &found)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return false, "", fmt.Errorf("reading a turn: %w", err)
		}
		if seen == "" {
			seen = found.ResourceVersion
		}
		spent := turn.Spent != "" && found.ResourceVersion == turn.Spent
		switch has := holderOf(&found); {
		case has == holder && found.ResourceVersion != seen:
			return true, "", nil // taken for this work since then: it is not spent
		case has != holder && !spent && t.age(&found) < TurnFor:
			return false, has, nil
		}
		// Also where this work has it: it may have been for an object that has gone since,
		// so that others count it as spent.
		t.fill(&found, holder) // with its resourceVersion: one of several takes it over
		err = t.Client.Update(ctx, &found)
		if err == nil {
			return true, "", nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return false, "", fmt.Errorf("taking over a turn: %w", err)
		}
	}
	return false, "", fmt.Errorf("taking a turn: others kept taking it: %w", err)
}

func (t Turns) now() time.Time {
	if t.Now != nil {
		return t.Now()
	}
	return time.Now()
}

func (t Turns) fill(l *coordinationv1.Lease, holder string) {
	seconds := int32(TurnFor / time.Second)
	at := metav1.NewMicroTime(t.now())
	l.Spec = coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, AcquireTime: &at, RenewTime: &at}
}

// age is how long ago the turn was taken.
func (t Turns) age(l *coordinationv1.Lease) time.Duration {
	if l.Spec.AcquireTime == nil {
		return TurnFor
	}
	age := t.now().Sub(l.Spec.AcquireTime.Time)
	if age < -maxSkew {
		return TurnFor // taken in a future that is none: it must not block the name until then
	}
	return age
}

func holderOf(l *coordinationv1.Lease) string {
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}
