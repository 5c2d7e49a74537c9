package replace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/naming"
)

var jobs = schema.GroupResource{Group: "batch", Resource: "jobs"}

// cluster has a finished Job "a" until it is deleted, and turns.
type cluster struct {
	t       *testing.T
	dynamic *dynamicfake.FakeDynamicClient
	turns   *api
	clock   *clock

	mu      sync.Mutex
	deletes []clienttesting.DeleteActionImpl
	looks   int
	until   time.Time // the last look's deadline
	told    []Target  // of deletions
	// onDelete is what the API server says to a DELETE; nil: it takes the object away.
	onDelete func() error
	// seen is what is found under the name, after so many looks; nil: the Job while it is there.
	seen func(look int) (types.UID, fact.State)
	gone bool
}

func finishedJob(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, dynamic: dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()), turns: serve(), clock: &clock{now: noon}}
	c.dynamic.PrependReactor("delete", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		d, ok := a.(clienttesting.DeleteActionImpl)
		if !ok {
			return true, nil, fmt.Errorf("no delete: %T", a)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.deletes = append(c.deletes, d)
		if c.onDelete != nil {
			return true, nil, c.onDelete()
		}
		c.gone = true
		return true, nil, nil
	})
	return c
}

// Existing makes the cluster a Finder.
func (c *cluster) Existing(ctx context.Context, _ v1alpha1.ResolvedResource, _, _ string) (*unstructured.Unstructured, fact.State, fact.Cause) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.looks++
	c.until, _ = ctx.Deadline()
	uid, state := types.UID("job-uid"), fact.Known
	if c.seen != nil {
		uid, state = c.seen(c.looks)
	} else if c.gone {
		state = fact.Absent
	}
	if state != fact.Known {
		return nil, state, ""
	}
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetUID(uid)
	return u, state, ""
}

func (c *cluster) replacer() Replacer {
	return Replacer{Dynamic: c.dynamic, Find: c, Turns: c.turns.turns(c.clock), Deleted: func(t Target) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.told = append(c.told, t)
	}}
}

// target is the finished Job as it was when it was looked at.
func target(by string) Target {
	return Target{
		Resource: builders.Jobs(), Namespace: "lab", Name: "a", UID: "job-uid", ResourceVersion: "7",
		Propagation: v1alpha1.PropagationForeground, Wait: 50 * time.Millisecond, By: by,
	}
}

func TestN17_OneDeleteWithPreconditionsAndPropagation(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change    func(*Target)
		want      metav1.DeletionPropagation
		namespace string
	}{
		"in the foreground":   {func(*Target) {}, metav1.DeletePropagationForeground, "lab"},
		"in the background":   {func(t *Target) { t.Propagation = v1alpha1.PropagationBackground }, metav1.DeletePropagationBackground, "lab"},
		"orphaning":           {func(t *Target) { t.Propagation = v1alpha1.PropagationOrphan }, metav1.DeletePropagationOrphan, "lab"},
		"nothing was said":    {func(t *Target) { t.Propagation = "" }, metav1.DeletePropagationBackground, "lab"},
		"in no namespace":     {func(t *Target) { t.Resource.Namespaced, t.Namespace = false, "" }, metav1.DeletePropagationForeground, ""},
		"it has no namespace": {func(t *Target) { t.Resource.Namespaced = false }, metav1.DeletePropagationForeground, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster, to := finishedJob(t), target("review")
			c.change(&to)
			if got, cause := cluster.replacer().Replace(t.Context(), to); got != naming.ReplacementDone || cause != "" {
				t.Errorf("%v %q", got, cause)
			}
			if len(cluster.deletes) != 1 {
				t.Fatalf("%d deletes", len(cluster.deletes))
			}
			d := cluster.deletes[0]
			uid, version := types.UID("job-uid"), "7"
			want := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}, PropagationPolicy: &c.want}
			if diff := cmp.Diff(want, d.GetDeleteOptions()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if d.GetName() != "a" || d.GetNamespace() != c.namespace || d.GetResource() != facts.ResourceOf(to.Resource) {
				t.Errorf("%+v", d.ActionImpl)
			}
		})
	}
}

// TestAnswersToTheDelete: what the API server says decides whether the name is waited for.
// Nothing that it says makes belay send another DELETE.
func TestAnswersToTheDelete(t *testing.T) {
	t.Parallel()
	uidConflict := apierrors.NewConflict(jobs, "a", errors.New("the UID in the precondition (job-uid) does not match the UID in record (new-uid)"))
	for name, c := range map[string]struct {
		err   error
		want  naming.Replacement
		cause fact.Cause
		waits bool
	}{
		"deleted":                  {nil, naming.ReplacementDone, "", true},
		"N12: it has gone already": {apierrors.NewNotFound(jobs, "a"), naming.ReplacementDone, "", true},
		"N11: another one is there, or it changed": {uidConflict, naming.ReplacementDone, "", false},
		"belay may not": {apierrors.NewForbidden(jobs, "a", nil), naming.ReplacementFailed, fact.CauseForbidden, false},
		"an error of the server: nobody can tell":  {apierrors.NewInternalError(errors.New("etcdserver: request timed out")), naming.ReplacementDone, "", true},
		"a time-out: nobody can tell":              {apierrors.NewTimeoutError("slow", 1), naming.ReplacementDone, "", true},
		"a connection that broke: nobody can tell": {errors.New("connection reset by peer"), naming.ReplacementDone, "", true},
		"too many requests":                        {apierrors.NewTooManyRequests("no", 1), naming.ReplacementDone, "", true},
		"a webhook on deletions that says no":      {apierrors.NewBadRequest("denied the request"), naming.ReplacementDone, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := finishedJob(t)
			cluster.onDelete = func() error { return c.err }
			for i := range 3 { // the next requests find the same turn
				got, cause := cluster.replacer().Replace(t.Context(), target(fmt.Sprintf("review-%d", i)))
				if i == 0 && (got != c.want || cause != c.cause) {
					t.Errorf("%v %q", got, cause)
				}
				if i == 0 && (cluster.looks > 0) != c.waits {
					t.Errorf("%d looks", cluster.looks)
				}
				if i > 0 && got != naming.ReplacementDone {
					t.Errorf("a request that has to wait: %v %q", got, cause)
				}
			}
			if len(cluster.deletes) != 1 {
				t.Errorf("%d deletes", len(cluster.deletes))
			}
			// Only what belay has deleted itself, as far as it knows, is told.
			if (len(cluster.told) > 0) != (c.err == nil) || len(cluster.told) > 1 {
				t.Errorf("told of %+v", cluster.told)
			}
		})
	}
}

// TestNobodyHasToBeTold of a deletion.
func TestNobodyHasToBeTold(t *testing.T) {
	t.Parallel()
	cluster := finishedJob(t)
	r := cluster.replacer()
	r.Deleted = nil
	if got, _ := r.Replace(t.Context(), target("review")); got != naming.ReplacementDone || len(cluster.deletes) != 1 {
		t.Errorf("%v after %d deletes", got, len(cluster.deletes))
	}
}

// TestN32_OneDeleteHoweverManyAsk has many requests in two replicas at one time.
func TestN32_OneDeleteHoweverManyAsk(t *testing.T) {
	t.Parallel()
	cluster := finishedJob(t)
	replicas := []Replacer{cluster.replacer(), cluster.replacer()}
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			if got, cause := replicas[i%2].Replace(t.Context(), target(fmt.Sprintf("review-%d", i))); got != naming.ReplacementDone {
				t.Errorf("%v %q", got, cause)
			}
		})
	}
	wg.Wait()
	if len(cluster.deletes) != 1 {
		t.Errorf("%d deletes", len(cluster.deletes))
	}
}

// TestATurnThatCannotBeTakenDeletesNothing: without it two replicas would.
func TestATurnThatCannotBeTakenDeletesNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		want fact.Cause
	}{
		"belay may not":        {apierrors.NewForbidden(leases, "x", nil), fact.CauseForbidden},
		"the server failed":    {apierrors.NewInternalError(errors.New("no")), fact.CauseServer},
		"the time is up":       {context.DeadlineExceeded, fact.CauseTimeout},
		"others keep doing so": {apierrors.NewAlreadyExists(leases, "x"), fact.CauseServer},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := finishedJob(t)
			cluster.turns.before = func(verb string, _ client.Object) error {
				if verb == "get" {
					return apierrors.NewNotFound(leases, "x")
				}
				return c.err
			}
			if got, cause := cluster.replacer().Replace(t.Context(), target("review")); got != naming.ReplacementFailed || cause != c.want || len(cluster.deletes) > 0 || cluster.looks > 0 {
				t.Errorf("%v %q after %d deletes and %d looks", got, cause, len(cluster.deletes), cluster.looks)
			}
		})
	}
}

// TestAnotherVersionIsAnotherTurn: an object that was changed since is decided on anew,
// and its deletion is another one. The one before it was refused by its preconditions.
func TestAnotherVersionIsAnotherTurn(t *testing.T) {
	t.Parallel()
	cluster := finishedJob(t)
	cluster.onDelete = func() error {
		return apierrors.NewConflict(jobs, "a", errors.New("the resourceVersion does not match"))
	}
	cluster.replacer().Replace(t.Context(), target("review-1"))
	newer := target("review-2")
	newer.ResourceVersion = "8"
	cluster.replacer().Replace(t.Context(), newer)
	if len(cluster.deletes) != 2 || *cluster.deletes[1].GetDeleteOptions().Preconditions.ResourceVersion != "8" {
		t.Errorf("%d deletes", len(cluster.deletes))
	}
}

// TestAWinnerThatDiedIsReplacedByAnother: after its turn.
func TestAWinnerThatDiedIsReplacedByAnother(t *testing.T) {
	t.Parallel()
	cluster := finishedJob(t)
	to := target("dead")
	if mine, _, err := cluster.replacer().Turns.Take(t.Context(), Turn{Purpose: purposeDelete, Holder: "dead", Key: []any{string(to.UID), to.ResourceVersion}}); !mine || err != nil {
		t.Fatalf("%t %v", mine, err)
	}
	cluster.replacer().Replace(t.Context(), target("review-1"))
	if len(cluster.deletes) > 0 {
		t.Fatal("deleted by one that has no turn")
	}
	cluster.clock.move(TurnFor)
	cluster.replacer().Replace(t.Context(), target("review-2"))
	if len(cluster.deletes) != 1 {
		t.Errorf("%d deletes", len(cluster.deletes))
	}
}

func TestWaitingEnds(t *testing.T) {
	t.Parallel()
	const long = time.Minute
	for name, c := range map[string]struct {
		wait, deadline time.Duration
		seen           func(look int) (types.UID, fact.State)
		looks          int // at most
		free           bool
	}{
		"when the name is free": {long, 0, func(look int) (types.UID, fact.State) {
			if look < 3 {
				return "job-uid", fact.Known
			}
			return "", fact.Absent
		}, 3, true},
		"when another one has the name": {long, 0, func(look int) (types.UID, fact.State) {
			if look < 2 {
				return "job-uid", fact.Known
			}
			return "new-uid", fact.Known
		}, 2, true},
		"not for want of an answer": {long, 0, func(look int) (types.UID, fact.State) {
			if look < 3 {
				return "", fact.Unknown
			}
			return "", fact.Absent
		}, 3, true},
		"when the wait is over":                       {30 * time.Millisecond, 0, func(int) (types.UID, fact.State) { return "job-uid", fact.Known }, 5, false},
		"at once where there is no wait":              {0, 0, func(int) (types.UID, fact.State) { return "job-uid", fact.Known }, 1, false},
		"at once where the wait is less than nothing": {-time.Second, 0, func(int) (types.UID, fact.State) { return "job-uid", fact.Known }, 1, false},
		"in time for a last look before the deadline": {long, naming.MinReplace + 30*time.Millisecond, func(int) (types.UID, fact.State) { return "job-uid", fact.Known }, 5, false},
		"at once where the deadline leaves no more":   {long, naming.MinReplace / 2, func(int) (types.UID, fact.State) { return "job-uid", fact.Known }, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := finishedJob(t)
			cluster.seen = c.seen
			ctx := t.Context()
			if c.deadline > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.deadline)
				defer cancel()
			}
			to := target("review")
			to.Wait = c.wait
			cluster.replacer().waitForName(ctx, to)
			if cluster.looks == 0 || cluster.looks > c.looks || c.free && cluster.looks != c.looks {
				t.Errorf("%d looks, want %d", cluster.looks, c.looks)
			}
			if end, ok := ctx.Deadline(); ok && end.Sub(cluster.until) < naming.MinReplace/2 {
				t.Errorf("there are %s left to look at what is there", end.Sub(cluster.until))
			}
		})
	}
}

// TestWaitingEndsWithItsContext: a request that was given up holds nobody.
func TestWaitingEndsWithItsContext(t *testing.T) {
	t.Parallel()
	cluster := finishedJob(t)
	ctx, cancel := context.WithCancel(t.Context())
	cluster.seen = func(look int) (types.UID, fact.State) {
		if look == 2 {
			cancel()
		}
		return "job-uid", fact.Known
	}
	to := target("review")
	to.Wait = time.Hour
	cluster.replacer().waitForName(ctx, to)
	if cluster.looks != 2 {
		t.Errorf("%d looks", cluster.looks)
	}
}

// TestADeleteThatHangsLeavesTimeToLook: nobody can tell what became of it, and the create
// is answered all the same.
func TestADeleteThatHangsLeavesTimeToLook(t *testing.T) {
	t.Parallel()
	deletes := make(chan struct{}, 10)
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			deletes <- struct{}{}
			_, _ = io.Copy(io.Discard, r.Body) // else the server does not notice that the client has gone
		}
		<-r.Context().Done()
	}))
	t.Cleanup(srv.Close)
	d, err := dynamic.NewForConfig(&rest.Config{Host: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	cluster := finishedJob(t)
	r := cluster.replacer()
	r.Dynamic = d
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if got, cause := r.Replace(ctx, target("review")); got != naming.ReplacementDone || cause != "" {
		t.Errorf("%v %q", got, cause)
	}
	if ctx.Err() != nil || cluster.looks == 0 || len(deletes) != 1 {
		t.Errorf("%v after %d looks and %d deletes", ctx.Err(), cluster.looks, len(deletes))
	}
}
