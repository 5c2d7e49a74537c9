package anchors

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/owner"
)

var (
	anchorsResource = schema.GroupResource{Group: "belay.dev", Resource: "anchors"}
	forRun          = v1alpha1.AnchorOwner{APIVersion: "batch/v1", Kind: "Job", Name: "run"}
)

// store holds Anchors as the API server does, and fails as told: fault is asked before
// each call, with its number from 1, for an error and whether the call is carried out
// all the same.
type store struct {
	objects map[string]*v1alpha1.Anchor
	fault   func(verb string, n int) (err error, done bool)
	calls   int
}

func newStore(anchors ...*v1alpha1.Anchor) *store {
	s := &store{objects: map[string]*v1alpha1.Anchor{}, fault: func(string, int) (error, bool) { return nil, true }}
	for _, a := range anchors {
		s.objects[a.Name] = a
	}
	return s
}

func (s *store) Create(_ context.Context, obj client.Object, _ ...client.CreateOption) error {
	s.calls++
	err, done := s.fault("create", s.calls)
	if done {
		a, ok := obj.(*v1alpha1.Anchor)
		if !ok {
			return fmt.Errorf("not an Anchor: %T", obj)
		}
		if s.objects[a.Name] != nil {
			return apierrors.NewAlreadyExists(anchorsResource, a.Name)
		}
		stored := a.DeepCopy()
		stored.UID = types.UID(fmt.Sprintf("uid-%d", s.calls))
		s.objects[a.Name] = stored
		if err == nil {
			a.UID = stored.UID
		}
	}
	return err
}

func (s *store) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	s.calls++
	if err, _ := s.fault("get", s.calls); err != nil {
		return err
	}
	a, ok := obj.(*v1alpha1.Anchor)
	if !ok {
		return fmt.Errorf("not an Anchor: %T", obj)
	}
	found := s.objects[key.Name]
	if found == nil {
		return apierrors.NewNotFound(anchorsResource, key.Name)
	}
	found.DeepCopyInto(a)
	return nil
}

func request() Request {
	return Request{Namespace: "lab", Owner: forRun, Deadline: 10 * time.Minute, Policy: "otf"}
}

// chained is the name after these predecessors.
func chained(predecessor types.UID) string { return owner.AnchorName(forRun, predecessor) }

func waiting(name string, uid types.UID) *builders.AnchorBuilder {
	return builders.MakeAnchor(time.Now()).Named(name, uid)
}

func TestHold(t *testing.T) {
	t.Parallel()
	first := chained("")
	terminating := apierrors.NewForbidden(anchorsResource, "x", errors.New("namespace lab is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	failing := func(verb string, err error, done bool) func(string, int) (error, bool) {
		return func(v string, n int) (error, bool) {
			if v == verb && n <= 2 {
				return err, done
			}
			return nil, true
		}
	}
	for name, c := range map[string]struct {
		there []*v1alpha1.Anchor
		fault func(verb string, n int) (error, bool)
		want  owner.AnchorFact
		calls int // the most that it may take
	}{
		"none yet: one is created": {
			want: owner.AnchorFact{State: fact.Known, Name: first, UID: "uid-1"}, calls: 1,
		},
		"one that waits is shared": {
			there: []*v1alpha1.Anchor{waiting(first, "a").Obj()},
			want:  owner.AnchorFact{State: fact.Known, Name: first, UID: "a"}, calls: 2,
		},
		"O08: behind a bound one a new one is made": {
			there: []*v1alpha1.Anchor{waiting(first, "a").BoundTo("old-job").Obj()},
			want:  owner.AnchorFact{State: fact.Known, Name: chained("a"), UID: "uid-3"}, calls: 3,
		},
		"O08: a released one is never used again": {
			there: []*v1alpha1.Anchor{waiting(first, "a").BoundTo("old-job").Released().Obj()},
			want:  owner.AnchorFact{State: fact.Known, Name: chained("a"), UID: "uid-3"}, calls: 3,
		},
		"behind one on its way out a new one is made": {
			there: []*v1alpha1.Anchor{waiting(first, "a").Terminating(time.Now()).Obj()},
			want:  owner.AnchorFact{State: fact.Known, Name: chained("a"), UID: "uid-3"}, calls: 3,
		},
		"behind one that is nearly over a new one is made": {
			there: []*v1alpha1.Anchor{waiting(first, "a").ExpiresAt(time.Now().Add(4 * time.Minute)).Obj()},
			want:  owner.AnchorFact{State: fact.Known, Name: chained("a"), UID: "uid-3"}, calls: 3,
		},
		"one of the same name for another owner is not used": {
			there: []*v1alpha1.Anchor{waiting(first, "a").For(v1alpha1.AnchorOwner{APIVersion: "v1", Kind: "ConfigMap", Name: "run"}).Obj()},
			want:  owner.AnchorFact{State: fact.Known, Name: chained("a"), UID: "uid-3"}, calls: 3,
		},
		"the end of a chain is shared": {
			there: []*v1alpha1.Anchor{waiting(first, "a").BoundTo("x").Obj(), waiting(chained("a"), "b").BoundTo("y").Obj(), waiting(chained("b"), "c").Obj()},
			want:  owner.AnchorFact{State: fact.Known, Name: chained("b"), UID: "c"}, calls: 6,
		},
		"a create whose answer was lost is found again": {
			fault: failing("create", apierrors.NewTimeoutError("the answer was lost", 0), true),
			want:  owner.AnchorFact{State: fact.Known, Name: first, UID: "uid-1"}, calls: 3,
		},
		"a create that failed is tried again": {
			fault: failing("create", apierrors.NewInternalError(errors.New("etcdserver: leader changed")), false),
			want:  owner.AnchorFact{State: fact.Known, Name: first, UID: "uid-3"}, calls: 3,
		},
		"a read that failed is tried again": {
			there: []*v1alpha1.Anchor{waiting(first, "a").Obj()},
			fault: failing("get", apierrors.NewInternalError(errors.New("no leader")), false),
			want:  owner.AnchorFact{State: fact.Known, Name: first, UID: "a"}, calls: 4,
		},
		"one that went away in between leaves its name": {
			fault: func(verb string, n int) (error, bool) {
				if n == 1 {
					return apierrors.NewAlreadyExists(anchorsResource, first), false
				}
				return nil, true
			},
			want: owner.AnchorFact{State: fact.Known, Name: first, UID: "uid-3"}, calls: 3,
		},
		"P04: a namespace that is being deleted is final": {
			fault: func(string, int) (error, bool) { return terminating, false },
			want:  owner.AnchorFact{Cause: fact.CauseServer}, calls: 1,
		},
		"a missing right is final": {
			fault: func(string, int) (error, bool) { return apierrors.NewForbidden(anchorsResource, "x", nil), false },
			want:  owner.AnchorFact{Cause: fact.CauseForbidden}, calls: 1,
		},
		"an Anchor that the API server refuses is final": {
			fault: func(string, int) (error, bool) {
				return apierrors.NewInvalid(schema.GroupKind{Kind: "Anchor"}, "x", nil), false
			},
			want: owner.AnchorFact{Cause: fact.CauseServer}, calls: 1,
		},
		"without the right to read, an Anchor that exists is out of reach": {
			there: []*v1alpha1.Anchor{waiting(first, "a").Obj()},
			fault: func(verb string, _ int) (error, bool) {
				if verb == "get" {
					return apierrors.NewForbidden(anchorsResource, first, nil), false
				}
				return nil, true
			},
			want: owner.AnchorFact{Cause: fact.CauseForbidden}, calls: 2,
		},
		"an API server that fails for ever is not asked for ever": {
			fault: func(string, int) (error, bool) { return apierrors.NewInternalError(errors.New("no leader")), false },
			want:  owner.AnchorFact{Cause: fact.CauseServer}, calls: maxSteps,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(c.there...)
			if c.fault != nil {
				s.fault = c.fault
			}
			got := Hold(t.Context(), s, request())
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if s.calls > c.calls {
				t.Errorf("%d calls, at most %d are needed", s.calls, c.calls)
			}
		})
	}
}

func TestHoldEndsOnAChainWithoutEnd(t *testing.T) {
	t.Parallel()
	s := newStore()
	uid := types.UID("")
	for i := range 50 {
		name := chained(uid)
		uid = types.UID(fmt.Sprint("link-", i))
		s.objects[name] = waiting(name, uid).BoundTo("x").Obj()
	}
	got := Hold(t.Context(), s, request())
	if got.State != fact.Unknown || got.Cause == fact.CauseNotAsked {
		t.Errorf("%+v: a cause must be given, or the decision would ask for an Anchor again", got)
	}
	if s.calls > 2*maxSteps {
		t.Errorf("%d calls", s.calls)
	}
}

func TestHoldEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	s := newStore()
	s.fault = func(_ string, n int) (error, bool) {
		if n == 3 {
			cancel()
		}
		return apierrors.NewInternalError(errors.New("no leader")), false
	}
	if got := Hold(ctx, s, request()); got.State != fact.Unknown || got.Cause == fact.CauseNotAsked || s.calls != 3 {
		t.Errorf("%+v after %d calls", got, s.calls)
	}
}

func TestANewAnchor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		policy string
		labels map[string]string
	}{
		"for a policy carries its label":     {"otf", map[string]string{"belay.dev/policy": "otf"}},
		"for an annotation carries no label": {"", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, r := newStore(), request()
			r.Policy = c.policy
			before := time.Now()
			Hold(t.Context(), s, r)
			a := s.objects[chained("")]
			if a == nil {
				t.Fatal("no Anchor")
			}
			if diff := cmp.Diff(c.labels, a.Labels); diff != "" || a.Namespace != "lab" || a.Spec.BoundUID != "" || len(a.OwnerReferences) > 0 {
				t.Errorf("%s %+v", diff, a)
			}
			if diff := cmp.Diff(forRun, a.Spec.Owner); diff != "" {
				t.Error(diff)
			}
			if a.Spec.ExpiresAt.Time.Before(before.Add(r.Deadline)) {
				t.Errorf("expires %s, before its deadline", a.Spec.ExpiresAt)
			}
		})
	}
}

func TestExpiryNeverComesEarlyAndIsAWholeSecond(t *testing.T) {
	t.Parallel()
	base := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct{ now, want time.Time }{
		"a whole second":       {base, base.Add(5 * time.Second)},
		"a nanosecond later":   {base.Add(1), base.Add(6 * time.Second)},
		"just before the next": {base.Add(time.Second - 1), base.Add(6 * time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := expiry(c.now, 5*time.Second); !got.Time.Equal(c.want) {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}
