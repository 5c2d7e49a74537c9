package replace

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

var (
	noon   = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
)

// clock is a time that the test moves.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// api is an API server in memory that counts calls, and does what before says first.
type api struct {
	client.WithWatch
	calls  atomic.Int64
	before func(verb string, obj client.Object) error
}

func serve(objects ...client.Object) *api {
	a, s := &api{}, runtime.NewScheme()
	if err := coordinationv1.AddToScheme(s); err != nil {
		panic(err)
	}
	hook := func(verb string, obj client.Object) error {
		a.calls.Add(1)
		if a.before == nil {
			return nil
		}
		return a.before(verb, obj)
	}
	a.WithWatch = fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			if err := hook("create", obj); err != nil {
				return err
			}
			return c.Create(ctx, obj, opts...)
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if err := hook("get", obj); err != nil {
				return err
			}
			return c.Get(ctx, key, obj, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
			if err := hook("update", obj); err != nil {
				return err
			}
			return c.Update(ctx, obj, opts...)
		},
	}).Build()
	return a
}

func (a *api) turns(c *clock) Turns {
	return Turns{Client: a, Namespace: "belay-system", Now: c.Now}
}

// turn is the turn of job "a" for a holder.
func turn(holder string) Turn {
	return Turn{Purpose: "create", Key: []any{"batch", "jobs", "lab", "a"}, Holder: holder}
}

// take takes a turn and fails the test on an error.
func take(t *testing.T, turns Turns, w Turn) (bool, string) {
	t.Helper()
	mine, other, err := turns.Take(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	return mine, other
}

func TestATurnIsALease(t *testing.T) {
	t.Parallel()
	a, c := serve(), &clock{now: noon}
	if mine, other := take(t, a.turns(c), turn("work-1")); !mine || other != "" {
		t.Fatalf("%t %q", mine, other)
	}
	var list coordinationv1.LeaseList
	if err := a.List(t.Context(), &list); err != nil || len(list.Items) != 1 {
		t.Fatalf("%v %+v", err, list.Items)
	}
	l := list.Items[0]
	if l.Namespace != "belay-system" || l.Labels[TurnLabel] != "create" || l.Labels["app.kubernetes.io/name"] != "belay" {
		t.Errorf("%+v", l.ObjectMeta)
	}
	if errs := validation.IsDNS1123Subdomain(l.Name); len(errs) > 0 {
		t.Errorf("%q: %s", l.Name, errs)
	}
	at := metav1.NewMicroTime(noon)
	want := coordinationv1.LeaseSpec{HolderIdentity: new("work-1"), LeaseDurationSeconds: new(int32(10)), AcquireTime: &at, RenewTime: &at}
	if diff := cmp.Diff(want, l.Spec); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestTake has what happens to the turn that "work-1" took at noon.
func TestTake(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		after  time.Duration
		turn   func(version string) Turn
		mine   bool
		other  string
		holder string // of the Lease then
		taken  time.Duration
	}{
		"the same holder takes it anew":                 {time.Millisecond, func(string) Turn { return turn("work-1") }, true, "", "work-1", time.Millisecond},
		"the same holder takes it anew when it is over": {TurnFor, func(string) Turn { return turn("work-1") }, true, "", "work-1", TurnFor},
		"another one waits":                             {0, func(string) Turn { return turn("work-2") }, false, "work-1", "work-1", 0},
		"another one waits to the end":                  {TurnFor - time.Millisecond, func(string) Turn { return turn("work-2") }, false, "work-1", "work-1", 0},
		"another one takes over":                        {TurnFor, func(string) Turn { return turn("work-2") }, true, "", "work-2", TurnFor},
		"a clock that is behind a little waits":         {-maxSkew, func(string) Turn { return turn("work-2") }, false, "work-1", "work-1", 0},
		"a turn from the future blocks nobody":          {-time.Hour, func(string) Turn { return turn("work-2") }, true, "", "work-2", -time.Hour},
		"the turn is spent: another one takes over": {0, func(v string) Turn {
			w := turn("work-2")
			w.Spent = v
			return w
		}, true, "", "work-2", 0},
		"the turn is spent: the same holder takes it anew": {time.Millisecond, func(v string) Turn {
			w := turn("work-1")
			w.Spent = v
			return w
		}, true, "", "work-1", time.Millisecond},
		"a turn before it was spent": {0, func(v string) Turn {
			w := turn("work-2")
			w.Spent = v + "0"
			return w
		}, false, "work-1", "work-1", 0},
		"another name is another turn": {0, func(string) Turn {
			w := turn("work-2")
			w.Key = []any{"batch", "jobs", "lab", "b"}
			return w
		}, true, "", "work-1", 0},
		"another purpose is another turn": {0, func(string) Turn {
			w := turn("work-2")
			w.Purpose = "delete"
			return w
		}, true, "", "work-1", 0},
		"names that run on are other turns": {0, func(string) Turn {
			w := turn("work-2")
			w.Key = []any{"batch", "jobs", "la", "ba"}
			return w
		}, true, "", "work-1", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, clock := serve(), &clock{now: noon}
			turns := a.turns(clock)
			if mine, _ := take(t, turns, turn("work-1")); !mine {
				t.Fatal("the first one has to wait")
			}
			version, err := turns.Version(t.Context(), turn(""))
			if err != nil || version == "" {
				t.Fatalf("%q %v", version, err)
			}
			clock.move(c.after)
			if mine, other := take(t, turns, c.turn(version)); mine != c.mine || other != c.other {
				t.Errorf("mine %t, other %q", mine, other)
			}
			var l coordinationv1.Lease
			if err := a.Get(t.Context(), client.ObjectKey{Namespace: "belay-system", Name: turn("").name()}, &l); err != nil {
				t.Fatal(err)
			}
			if *l.Spec.HolderIdentity != c.holder || !l.Spec.AcquireTime.Time.Equal(noon.Add(c.taken)) {
				t.Errorf("%q since %s", *l.Spec.HolderIdentity, l.Spec.AcquireTime)
			}
		})
	}
}

func TestVersionOfNoTurn(t *testing.T) {
	t.Parallel()
	a := serve()
	if v, err := a.turns(&clock{now: noon}).Version(t.Context(), turn("w")); v != "" || err != nil {
		t.Errorf("%q %v", v, err)
	}
	a.before = func(string, client.Object) error { return apierrors.NewInternalError(errors.New("no")) }
	if v, err := a.turns(&clock{now: noon}).Version(t.Context(), turn("w")); v != "" || !apierrors.IsInternalError(err) {
		t.Errorf("%q %v", v, err)
	}
}

// TestOddLeases: what somebody else wrote under the name is no turn for ever.
func TestOddLeases(t *testing.T) {
	t.Parallel()
	at := metav1.NewMicroTime(noon)
	for name, c := range map[string]struct {
		spec  coordinationv1.LeaseSpec
		mine  bool
		other string
	}{
		"nothing in it":       {coordinationv1.LeaseSpec{}, true, ""},
		"a holder since ever": {coordinationv1.LeaseSpec{HolderIdentity: new("x")}, true, ""},
		"a time and nobody":   {coordinationv1.LeaseSpec{AcquireTime: &at}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "belay-system", Name: turn("").name()}, Spec: c.spec}
			a := serve(l)
			if mine, other := take(t, a.turns(&clock{now: noon}), turn("w")); mine != c.mine || other != c.other {
				t.Errorf("mine %t, other %q", mine, other)
			}
		})
	}
}

// race has many holders go for one turn at once, in two replicas, and gives the winners.
func race(t *testing.T, a *api, c *clock, holders int, spent string) []string {
	t.Helper()
	replicas := []Turns{a.turns(c), a.turns(c)}
	var mu sync.Mutex
	var winners []string
	var wg sync.WaitGroup
	for i := range holders {
		holder := fmt.Sprintf("work-%d", i)
		wg.Go(func() {
			w := turn(holder)
			w.Spent = spent
			mine, other, err := replicas[i%2].Take(t.Context(), w)
			if err != nil {
				t.Errorf("%s: %v", holder, err)
			}
			if mine {
				mu.Lock()
				winners = append(winners, holder)
				mu.Unlock()
			} else if other == holder {
				t.Errorf("%s waits for itself", holder)
			}
		})
	}
	wg.Wait()
	return winners
}

func TestOneOfManyTakesATurn(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(t *testing.T, a *api, c *clock) (spent string){
		"a new one": func(*testing.T, *api, *clock) string { return "" },
		"one that is over": func(t *testing.T, a *api, c *clock) string {
			take(t, a.turns(c), turn("gone"))
			c.move(TurnFor)
			return ""
		},
		"one that is spent": func(t *testing.T, a *api, c *clock) string {
			take(t, a.turns(c), turn("gone"))
			version, err := a.turns(c).Version(t.Context(), turn(""))
			if err != nil {
				t.Fatal(err)
			}
			return version
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 6 {
				a, c := serve(), &clock{now: noon}
				if winners := race(t, a, c, 16, prepare(t, a, c)); len(winners) != 1 {
					t.Fatalf("%d won: %v", len(winners), winners)
				}
			}
		})
	}
}

// TestManyOfOneHolderPass: creates of one work do not wait for one another.
func TestManyOfOneHolderPass(t *testing.T) {
	t.Parallel()
	a, c := serve(), &clock{now: noon}
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			if mine, other, err := a.turns(c).Take(t.Context(), turn("work")); !mine || err != nil {
				t.Errorf("%t %q %v", mine, other, err)
			}
		})
	}
	wg.Wait()
}

// TestATurnThatItsOwnWorkTookIsNoLongerSpent: between the two looks another create of the
// same work took it, for an object that is not there yet.
func TestATurnThatItsOwnWorkTookIsNoLongerSpent(t *testing.T) {
	t.Parallel()
	a, c := serve(), &clock{now: noon}
	take(t, a.turns(c), turn("work"))
	spent, err := a.turns(c).Version(t.Context(), turn(""))
	if err != nil {
		t.Fatal(err)
	}
	if mine, _ := take(t, a.turns(c), turn("work")); !mine {
		t.Fatal("it has to wait for itself")
	}
	w := turn("other")
	w.Spent = spent
	if mine, other := take(t, a.turns(c), w); mine || other != "work" {
		t.Errorf("mine %t, other %q", mine, other)
	}
}

// TestTakeMeetsChanges: what happens to the Lease between two calls.
func TestTakeMeetsChanges(t *testing.T) {
	t.Parallel()
	notFound := apierrors.NewNotFound(leases, "x")
	exists := apierrors.NewAlreadyExists(leases, "x")
	conflict := apierrors.NewConflict(leases, "x", errors.New("changed"))
	forbidden := apierrors.NewForbidden(leases, "x", nil)
	type script = map[string][]error // by verb, in turn; then none
	for name, c := range map[string]struct {
		over    bool
		errs    script
		mine    bool
		err     func(error) bool
		message string
	}{
		"deleted before it is read":                     {errs: script{"get": {notFound}, "create": {exists}}, mine: true},
		"deleted before it is taken over":               {over: true, errs: script{"update": {notFound}}, mine: true},
		"taken over by another one, and that is over":   {over: true, errs: script{"update": {conflict}}, mine: true},
		"it may not be made":                            {errs: script{"create": {forbidden}}, err: apierrors.IsForbidden, message: "taking a turn: "},
		"it may not be read":                            {errs: script{"create": {exists}, "get": {forbidden}}, err: apierrors.IsForbidden, message: "reading a turn: "},
		"it may not be taken over":                      {over: true, errs: script{"update": {forbidden}}, err: apierrors.IsForbidden, message: "taking over a turn: "},
		"others keep taking it":                         {over: true, errs: script{"update": {conflict, conflict, conflict, conflict, conflict, conflict}}, err: apierrors.IsConflict, message: "taking a turn: others kept taking it: "},
		"others keep making and removing it":            {errs: script{"create": {exists, exists, exists, exists, exists, exists}, "get": {notFound, notFound, notFound, notFound, notFound, notFound}}, err: apierrors.IsNotFound, message: "taking a turn: others kept taking it: "},
		"the time is up":                                {errs: script{"create": {context.DeadlineExceeded}}, err: func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }, message: "taking a turn: "},
		"a stranger took it before it was found absent": {errs: script{"create": {exists, exists}, "get": {notFound, notFound}}, mine: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, clock := serve(), &clock{now: noon}
			if c.over {
				take(t, a.turns(clock), turn("gone"))
				clock.move(TurnFor)
			}
			a.calls.Store(0)
			errs := c.errs
			a.before = func(verb string, _ client.Object) error {
				if len(errs[verb]) == 0 {
					return nil
				}
				err := errs[verb][0]
				errs[verb] = errs[verb][1:]
				return err
			}
			mine, _, err := a.turns(clock).Take(t.Context(), turn("w"))
			if mine != c.mine || (err != nil) != (c.err != nil) {
				t.Errorf("mine %t, %v", mine, err)
			}
			if c.err != nil && err != nil && (!c.err(err) || err.Error()[:len(c.message)] != c.message) {
				t.Errorf("%v", err)
			}
			if n := a.calls.Load(); n > 3*maxSteps {
				t.Errorf("%d calls", n)
			}
		})
	}
}

// TestWithoutAClockTheSystemsIsTaken: without one of the test's own.
func TestWithoutAClockTheSystemsIsTaken(t *testing.T) {
	t.Parallel()
	if d := time.Since(Turns{}.now()); d < 0 || d > time.Minute {
		t.Errorf("it is off by %s", d)
	}
}
