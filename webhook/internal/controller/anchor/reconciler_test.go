package anchor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/owner"
)

var anchorsResource = schema.GroupResource{Group: "belay.dev", Resource: "anchors"}

// cluster is one Anchor and what is found of its owner, look by look; the last answer
// is given for ever.
type cluster struct {
	client.Client
	anchor  *v1alpha1.Anchor // nil once it is deleted
	found   []owner.Fact
	resolve error
	// located is what the API server itself says.
	located error
	refuse  error // of every write

	looks, writes int
	deleted       *client.DeleteOptions
	events        *events.FakeRecorder
}

func (c *cluster) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	if c.anchor == nil {
		return apierrors.NewNotFound(anchorsResource, key.Name)
	}
	a, ok := obj.(*v1alpha1.Anchor)
	if !ok {
		return fmt.Errorf("not an Anchor: %T", obj)
	}
	c.anchor.DeepCopyInto(a)
	return nil
}

func (c *cluster) Update(_ context.Context, obj client.Object, _ ...client.UpdateOption) error {
	c.writes++
	if c.refuse != nil {
		return c.refuse
	}
	a, ok := obj.(*v1alpha1.Anchor)
	if !ok {
		return fmt.Errorf("not an Anchor: %T", obj)
	}
	c.anchor = a.DeepCopy()
	return nil
}

func (c *cluster) Delete(_ context.Context, _ client.Object, opts ...client.DeleteOption) error {
	c.writes++
	if c.refuse != nil {
		return c.refuse
	}
	c.deleted = (&client.DeleteOptions{}).ApplyOptions(opts)
	c.anchor = nil
	return nil
}

func (c *cluster) Status() client.SubResourceWriter { return statusWriter{c: c} }

type statusWriter struct {
	client.SubResourceWriter
	c *cluster
}

func (w statusWriter) Patch(_ context.Context, obj client.Object, _ client.Patch, _ ...client.SubResourcePatchOption) error {
	w.c.writes++
	if w.c.refuse != nil {
		return w.c.refuse
	}
	a, ok := obj.(*v1alpha1.Anchor)
	if !ok {
		return fmt.Errorf("not an Anchor: %T", obj)
	}
	w.c.anchor.Status = *a.Status.DeepCopy()
	return nil
}

func (c *cluster) Resolve(string, string) (v1alpha1.ResolvedResource, error) {
	return builders.Jobs(), c.resolve
}

func (c *cluster) Find(context.Context, facts.Query) owner.Fact {
	c.looks++
	f := c.found[0]
	if len(c.found) > 1 {
		c.found = c.found[1:]
	}
	return f
}

// reconcile runs the reconciler once, without watches, and returns the events.
func (c *cluster) reconcile(t *testing.T) (reconcile.Result, []string, error) {
	t.Helper()
	c.events = events.NewFakeRecorder(10)
	r := &Reconciler{client: c, facts: c, locate: func(context.Context, schema.GroupKind) (v1alpha1.ResolvedResource, error) {
		return builders.Jobs(), c.located
	}, owners: &owners{log: logr.Discard(), watches: watchMap{}}, events: c.events}
	result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "lab", Name: "job-run-x"}})
	close(c.events.Events)
	var told []string
	for e := range c.events.Events {
		told = append(told, e)
	}
	return result, told, err
}

// fresh is an Anchor made a second ago; old is one whose time is over.
func fresh() *v1alpha1.Anchor { return builders.MakeAnchor(time.Now().Add(-time.Second)).Obj() }
func old() *v1alpha1.Anchor   { return builders.MakeAnchor(time.Now().Add(-time.Hour)).Obj() }

func TestBindingWritesReferenceAndMarkTogether(t *testing.T) {
	t.Parallel()
	c := &cluster{anchor: fresh(), found: []owner.Fact{known(run)}}
	if _, told, err := c.reconcile(t); err != nil || len(told) > 0 {
		t.Fatalf("%v %q", err, told)
	}
	want := []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "run", UID: "job-uid"}}
	if diff := cmp.Diff(want, c.anchor.OwnerReferences); diff != "" || c.anchor.Spec.BoundUID != "job-uid" {
		t.Errorf("%s %+v", diff, c.anchor)
	}
	if !meta.IsStatusConditionTrue(c.anchor.Status.Conditions, v1alpha1.ConditionBound) || c.writes != 2 {
		t.Errorf("%d writes, %+v", c.writes, c.anchor.Status)
	}
}

func TestO13_AnOwnerThatWentAwayWhileItWasBoundIsLetGo(t *testing.T) {
	t.Parallel()
	reborn := run
	reborn.UID = "another-uid"
	for name, c := range map[string]struct {
		again owner.Fact
		bound bool
	}{
		"it is gone":                           {absent, false},
		"there is another one of its name":     {known(reborn), false},
		"it is there":                          {known(run), true},
		"whether it is there is not found out": {owner.Fact{Cause: fact.CauseTimeout}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cl := &cluster{anchor: fresh(), found: []owner.Fact{known(run), c.again}}
			if _, _, err := cl.reconcile(t); err != nil {
				t.Fatal(err)
			}
			if got := cl.anchor.Spec.BoundUID == "job-uid" && len(cl.anchor.OwnerReferences) == 1; got != c.bound {
				t.Errorf("bound: %t, %+v", got, cl.anchor)
			}
			if !c.bound && (cl.anchor.Spec.BoundUID != "" || len(cl.anchor.OwnerReferences) > 0) {
				t.Errorf("half bound: %+v", cl.anchor)
			}
		})
	}
}

func TestExpiringDeletesExactlyWhatWasLookedAt(t *testing.T) {
	t.Parallel()
	a := old()
	a.ResourceVersion = "77"
	c := &cluster{anchor: a, found: []owner.Fact{absent}}
	_, told, err := c.reconcile(t)
	if err != nil || c.deleted == nil {
		t.Fatalf("%v, deleted %v", err, c.deleted)
	}
	p := c.deleted.Preconditions
	if p == nil || p.UID == nil || *p.UID != "anchor-uid" || p.ResourceVersion == nil || *p.ResourceVersion != "77" {
		t.Errorf("preconditions %+v", p)
	}
	if c.deleted.PropagationPolicy == nil || *c.deleted.PropagationPolicy != metav1.DeletePropagationBackground {
		t.Errorf("propagation %v", c.deleted.PropagationPolicy)
	}
	if len(told) != 1 || !strings.HasPrefix(told[0], "Warning Expired ") {
		t.Errorf("events %q", told)
	}
}

func TestWhatIsNotKnownDeletesNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]*cluster{
		"the look-up fails":       {anchor: old(), found: []owner.Fact{{Cause: fact.CauseServer}}},
		"discovery fails":         {anchor: old(), found: []owner.Fact{absent}, resolve: errors.New("connection refused")},
		"two objects have labels": {anchor: old(), found: []owner.Fact{known(run, walk)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			result, told, err := c.reconcile(t)
			if err != nil || c.anchor == nil || c.anchor.Spec.BoundUID != "" || len(told) != 1 || result.RequeueAfter == 0 {
				t.Errorf("%v %+v %q, next look in %s", err, c.anchor, told, result.RequeueAfter)
			}
			if _, again, _ := c.reconcile(t); len(again) > 0 {
				t.Errorf("told twice: %q", again)
			}
		})
	}
}

// What a cache says of kinds is no reason to give an Anchor up; the API server's own
// word is.
func TestOnlyTheServersOwnWordThatThereIsNoKindExpires(t *testing.T) {
	t.Parallel()
	away := errors.New("the server is currently unable to handle the request")
	job := owner.Fact{State: fact.Known, Objects: []owner.Object{{APIVersion: "batch/v1", Kind: "Job", Name: "run", UID: "job-uid"}}}
	for name, c := range map[string]struct {
		resolve, located error
		found            []owner.Fact
		deleted, bound   bool
	}{
		"the server says that there is no such kind":      {facts.ErrNoKind, facts.ErrNoKind, nil, true, false},
		"its group does not answer":                       {facts.ErrNoKind, away, nil, false, false},
		"it is served in another version":                 {facts.ErrNoKind, nil, []owner.Fact{job}, false, true},
		"the path that the cache knows is not served now": {nil, away, []owner.Fact{{Cause: fact.CauseNoKind}}, false, false},
		"nor is the kind in any other version":            {nil, facts.ErrNoKind, []owner.Fact{{Cause: fact.CauseNoKind}}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &cluster{anchor: old(), resolve: c.resolve, located: c.located, found: c.found}
			if _, _, err := s.reconcile(t); err != nil {
				t.Fatal(err)
			}
			if (s.deleted != nil) != c.deleted || (s.anchor != nil && s.anchor.Spec.BoundUID != "") != c.bound {
				t.Errorf("deleted %t, anchor %+v", s.deleted != nil, s.anchor)
			}
		})
	}
}

// A released Anchor is taken away after a while, and what it held is left behind.
func TestAReleasedAnchorLeavesAndOrphans(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		since time.Duration
		gone  bool
	}{"just released": {time.Second, false}, "released long ago": {releasedFor + time.Second, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := old()
			a.Spec.BoundUID = "job-uid"
			a.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionBound, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonReleased, LastTransitionTime: metav1.NewTime(time.Now().Add(-c.since))}}
			s := &cluster{anchor: a}
			result, _, err := s.reconcile(t)
			if err != nil || (s.deleted != nil) != c.gone {
				t.Fatalf("%v, deleted %v", err, s.deleted)
			}
			if c.gone && *s.deleted.PropagationPolicy != metav1.DeletePropagationOrphan {
				t.Errorf("what it held goes with it: %v", *s.deleted.PropagationPolicy)
			}
			if !c.gone && result.RequeueAfter <= 0 {
				t.Error("never looked at again")
			}
		})
	}
}

func TestWritesThatAreRefused(t *testing.T) {
	t.Parallel()
	dying := apierrors.NewForbidden(anchorsResource, "x", errors.New("namespace lab is being terminated"))
	dying.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, c := range map[string]struct {
		refuse error
		again  bool // looked at again soon, without an error
		err    bool // looked at again with back-off
		told   int
	}{
		"P04: a dying namespace: the work item is dropped": {dying, false, false, 0},
		"the Anchor is gone: dropped":                      {apierrors.NewNotFound(anchorsResource, "x"), false, false, 0},
		"the cache is behind: again at once":               {apierrors.NewConflict(anchorsResource, "x", errors.New("modified")), true, false, 0},
		"O14: a missing right: an event and back-off":      {apierrors.NewForbidden(anchorsResource, "x", errors.New("rbac")), false, true, 1},
		"the API server fails: back-off":                   {apierrors.NewInternalError(errors.New("no leader")), false, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cl := &cluster{anchor: fresh(), found: []owner.Fact{known(run)}, refuse: c.refuse}
			result, told, err := cl.reconcile(t)
			if (err != nil) != c.err || (result.RequeueAfter > 0) != c.again || len(told) != c.told || cl.writes != 1 {
				t.Errorf("%v %+v %q, %d writes", err, result, told, cl.writes)
			}
		})
	}
}

func TestABoundAnchorCostsNothing(t *testing.T) {
	t.Parallel()
	a := builders.MakeAnchor(time.Now().Add(-time.Hour)).BoundTo("job-uid").Condition("True", v1alpha1.ReasonBound).Obj()
	c := &cluster{anchor: a}
	if result, told, err := c.reconcile(t); err != nil || result != (reconcile.Result{}) || len(told) > 0 || c.writes+c.looks > 0 {
		t.Errorf("%v %+v %q, %d writes, %d looks", err, result, told, c.writes, c.looks)
	}
}
