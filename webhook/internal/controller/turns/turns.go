// Package turns removes the Leases by which replicas of the webhook took turns, when
// they are over. Nothing depends on that: a turn that is over is taken over in place.
package turns

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/belay-dev/belay/webhook/internal/replace"
)

const (
	// every is how often Leases are looked through.
	every = time.Minute
	// keep is how long after its turn a Lease is kept: long enough that nobody who is
	// about to take it over finds it gone, and for people to see who had it.
	keep = time.Minute
	// page bounds one list.
	page = 500
)

// Sweeper removes Leases.
type Sweeper struct {
	Reader client.Reader
	Writer client.Writer
	// Namespace is belay's own.
	Namespace string
}

// Setup adds a Sweeper to the manager.
func Setup(mgr manager.Manager, namespace string) error {
	return mgr.Add(&Sweeper{Reader: mgr.GetAPIReader(), Writer: mgr.GetClient(), Namespace: namespace})
}

// NeedLeaderElection says that one replica is enough.
func (*Sweeper) NeedLeaderElection() bool { return true }

// Start sweeps until the context ends.
func (s *Sweeper) Start(ctx context.Context) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if n, err := s.Sweep(ctx, time.Now()); err != nil && ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, "removing leases that are over", "removed", n)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Sweep removes the Leases that are over, and says how many.
func (s *Sweeper) Sweep(ctx context.Context, now time.Time) (removed int, err error) {
	var errs []error
	for next := ""; ; {
		var list coordinationv1.LeaseList
		if err := s.Reader.List(ctx, &list, client.InNamespace(s.Namespace), client.HasLabels{replace.TurnLabel}, client.Limit(page), client.Continue(next)); err != nil {
			return removed, errors.Join(append(errs, fmt.Errorf("listing leases: %w", err))...)
		}
		for i := range list.Items {
			l := &list.Items[i]
			if !over(l, now) {
				continue
			}
			// As it was read: one that was taken over since is somebody's turn.
			err := s.Writer.Delete(ctx, l, client.Preconditions{UID: &l.UID, ResourceVersion: &l.ResourceVersion})
			switch {
			case err == nil:
				removed++
			case !apierrors.IsNotFound(err) && !apierrors.IsConflict(err):
				errs = append(errs, fmt.Errorf("removing lease %s: %w", l.Name, err))
			}
		}
		if next = list.Continue; next == "" {
			return removed, errors.Join(errs...)
		}
	}
}

func over(l *coordinationv1.Lease, now time.Time) bool {
	at := l.CreationTimestamp.Time
	if l.Spec.AcquireTime != nil {
		at = l.Spec.AcquireTime.Time
	}
	return now.Sub(at) > replace.TurnFor+keep
}
