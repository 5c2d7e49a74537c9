package several

import (
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

var otf = map[string]string{"app.kubernetes.io/name": "otf-job", "app.kubernetes.io/part-of": "otf"}

func token(ns, name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: otf}}
}

// An owner that was created through one server a moment ago is the owner of what is created
// through the other: belay reads it from the storage, whichever server it talks to and
// however far that is behind.
func TestAnOwnerOfTheOtherServerIsSeenAtOnce(t *testing.T) {
	ctx := stack.TestContext(t)
	ns := shared.TestNamespace(ctx, t, "several", v1alpha1.ModeEnforce)
	_, clients := both(t)
	anchors := 0
	one := func(name string, ownerVia, dependentVia int) {
		owner := job(ns, name, "one", nil)
		must(t, clients[ownerVia].Create(ctx, owner))
		s := token(ns, name)
		must(t, clients[dependentVia].Create(ctx, s))
		if len(s.OwnerReferences) != 1 || s.OwnerReferences[0].UID != owner.UID {
			anchors++
			t.Errorf("%s: owned by %+v, want job %s", name, s.OwnerReferences, owner.UID)
		}
	}
	for i := range 50 {
		one(fmt.Sprintf("seen-%d", i), (i+1)%2, i%2)
	}
	release := holdB(t)
	defer release()
	for i := range 10 {
		one(fmt.Sprintf("behind-%d", i), serverA, serverB)
	}
	stack.Report(t, "several: of 60 dependents whose owner was created through the other API server %d did not have it as their owner", anchors)
}

// The owner comes through B while its dependent is created through A: whoever is first, in
// the end the dependent is the owner's, through an Anchor or not, and goes with it.
func TestALateOwnerThroughTheOtherServer(t *testing.T) {
	ctx := stack.TestContext(t)
	ns := shared.TestNamespace(ctx, t, "several", v1alpha1.ModeEnforce)
	_, clients := both(t)
	const rounds = 40
	var jobs, secrets []client.Object
	for i := range rounds {
		owner, s := job(ns, fmt.Sprintf("late-%d", i), "one", nil), token(ns, fmt.Sprintf("late-%d", i))
		var errs [2]error
		start := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() { <-start; errs[0] = clients[(i+1)%2].Create(ctx, owner) })
		wg.Go(func() { <-start; errs[1] = clients[i%2].Create(ctx, s) })
		close(start)
		wg.Wait()
		must(t, errs[0])
		must(t, errs[1])
		jobs, secrets = append(jobs, owner), append(secrets, s)
	}
	direct, anchored := 0, 0
	for i := range rounds {
		refs := secrets[i].GetOwnerReferences()
		switch {
		case len(refs) == 1 && refs[0].UID == jobs[i].GetUID():
			direct++
		case len(refs) == 1 && refs[0].Kind == "Anchor":
			anchored++
			stack.Eventually(ctx, t, "the Anchor is bound", func() error {
				a := &v1alpha1.Anchor{}
				if err := shared.Client.Get(ctx, client.ObjectKey{Namespace: ns, Name: refs[0].Name}, a); err != nil {
					return err
				}
				if a.UID != refs[0].UID || len(a.OwnerReferences) != 1 || a.OwnerReferences[0].UID != jobs[i].GetUID() {
					return fmt.Errorf("anchor %s is owned by %+v", a.UID, a.OwnerReferences)
				}
				return nil
			})
		default:
			t.Errorf("%s is owned by %+v", secrets[i].GetName(), refs)
		}
	}
	// One that comes when the controller has stopped looking by itself: two seconds later.
	for i := range 2 {
		name := fmt.Sprintf("later-%d", i)
		s := token(ns, name)
		must(t, clients[i%2].Create(ctx, s))
		if len(s.OwnerReferences) != 1 || s.OwnerReferences[0].Kind != "Anchor" {
			t.Fatalf("%s is owned by %+v", name, s.OwnerReferences)
		}
		a := &v1alpha1.Anchor{}
		stack.Eventually(ctx, t, "the Anchor says that it waits", func() error {
			if err := shared.Client.Get(ctx, client.ObjectKey{Namespace: ns, Name: s.OwnerReferences[0].Name}, a); err != nil {
				return err
			}
			if c := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionBound); c == nil || c.Reason != v1alpha1.ReasonWaiting {
				return fmt.Errorf("%+v", a.Status.Conditions)
			}
			return nil
		})
		owner := job(ns, name, "one", nil)
		must(t, clients[(i+1)%2].Create(ctx, owner))
		stack.Eventually(ctx, t, "the Anchor of the late owner is bound", func() error {
			if err := shared.Client.Get(ctx, client.ObjectKeyFromObject(a), a); err != nil {
				return err
			}
			if len(a.OwnerReferences) != 1 || a.OwnerReferences[0].UID != owner.UID {
				return fmt.Errorf("owned by %+v", a.OwnerReferences)
			}
			return nil
		})
		jobs, secrets = append(jobs, owner), append(secrets, s)
	}
	stack.Report(t, "several: of %d dependents that raced with their owner through two API servers %d have it as owner, %d an Anchor that is bound", rounds, direct, anchored)
	for i := range jobs {
		must(t, clients[i%2].Delete(ctx, jobs[i], client.PropagationPolicy(metav1.DeletePropagationBackground)))
	}
	for _, s := range secrets {
		stack.Eventually(ctx, t, s.GetName()+" is collected", func() error {
			return stack.MustBeNotFound(shared.Client.Get(ctx, client.ObjectKeyFromObject(s), &corev1.Secret{}))
		})
	}
}
