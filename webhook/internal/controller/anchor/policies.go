package anchor

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

type watchMap = map[schema.GroupVersionResource]*ownerWatch

// followInterval is how often the watched kinds are compared with the policies in
// force. A kind that is not watched yet is polled, so nothing waits for this.
const followInterval = 2 * time.Second

// run keeps the watched kinds at what the policies in force name as owners, until
// the context ends, and waits for the watches to stop.
func (o *owners) run(policies client.Reader) func(context.Context) error {
	return func(ctx context.Context) error {
		defer o.wg.Wait()
		t := time.NewTicker(followInterval)
		defer t.Stop()
		for {
			if err := o.follow(ctx, policies); err != nil && ctx.Err() == nil {
				o.log.Error(err, "following the policies")
			}
			select {
			case <-ctx.Done():
				return nil
			case <-t.C:
			}
		}
	}
}

func (o *owners) follow(ctx context.Context, policies client.Reader) error {
	var list v1alpha1.OwnerPolicyList
	if err := policies.List(ctx, &list); err != nil {
		return fmt.Errorf("listing owner policies: %w", err)
	}
	var kinds []v1alpha1.ResolvedResource
	for _, p := range list.Items {
		if p.Status.InForce != nil {
			kinds = append(kinds, p.Status.InForce.Owner)
		}
	}
	return o.want(ctx, kinds)
}
