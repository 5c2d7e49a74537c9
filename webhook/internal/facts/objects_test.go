package facts

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/naming"
)

var jobsResource = schema.GroupResource{Group: "batch", Resource: "jobs"}

// stored is a Job as it is stored.
func stored(name, uid string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "batch/v1", "kind": "Job"}}
	u.SetName(name)
	u.SetNamespace("lab")
	u.SetUID(types.UID(uid))
	return u
}

// reads is a dynamic client that fails with each of these errors in turn, nil for none,
// and goes on with the last one. It notes what it was asked.
type reads struct {
	*dynamicfake.FakeDynamicClient
	mu    sync.Mutex
	asked []string
}

func reading(errs []error, objects ...runtime.Object) *reads {
	r := &reads{FakeDynamicClient: dynamicfake.NewSimpleDynamicClient(runtime.NewScheme(), objects...)}
	r.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.asked = append(r.asked, fmt.Sprintf("%s %s/%s", a.GetVerb(), a.GetResource().Resource, a.GetNamespace()))
		if len(errs) == 0 {
			return false, nil, nil
		}
		err := errs[0]
		if len(errs) > 1 {
			errs = errs[1:]
		}
		return err != nil, nil, err
	})
	return r
}

func TestExisting(t *testing.T) {
	t.Parallel()
	notFound := apierrors.NewNotFound(jobsResource, "a")
	noPath := apierrors.NewGenericServerResponse(404, "GET", jobsResource, "a", "404 page not found", 0, true)
	internal := apierrors.NewInternalError(errors.New("etcdserver: leader changed"))
	for name, c := range map[string]struct {
		res     v1alpha1.ResolvedResource
		errs    []error
		objects []runtime.Object
		uid     string
		state   fact.State
		cause   fact.Cause
		asked   []string
	}{
		"an object that is there":                             {builders.Jobs(), nil, []runtime.Object{stored("a", "u")}, "u", fact.Known, "", []string{"get jobs/lab"}},
		"an object that is not":                               {builders.Jobs(), nil, nil, "", fact.Absent, "", []string{"get jobs/lab"}},
		"a path that is not served is not an absent object":   {builders.Jobs(), []error{noPath}, nil, "", fact.Unknown, fact.CauseNoKind, []string{"get jobs/lab"}},
		"a 404 that names no object is not an absent one":     {builders.Jobs(), []error{&apierrors.StatusError{ErrStatus: metav1.Status{Code: 404, Reason: metav1.StatusReasonNotFound}}}, nil, "", fact.Unknown, fact.CauseNoKind, []string{"get jobs/lab"}},
		"a missing right is not asked for again":              {builders.Jobs(), []error{apierrors.NewForbidden(jobsResource, "a", nil)}, nil, "", fact.Unknown, fact.CauseForbidden, []string{"get jobs/lab"}},
		"trouble that passes":                                 {builders.Jobs(), []error{internal, nil}, []runtime.Object{stored("a", "u")}, "u", fact.Known, "", []string{"get jobs/lab", "get jobs/lab"}},
		"trouble that passes, and then there is none":         {builders.Jobs(), []error{internal, notFound}, nil, "", fact.Absent, "", []string{"get jobs/lab", "get jobs/lab"}},
		"trouble that stays":                                  {builders.Jobs(), []error{internal}, []runtime.Object{stored("a", "u")}, "", fact.Unknown, fact.CauseServer, []string{"get jobs/lab", "get jobs/lab", "get jobs/lab"}},
		"an API server that is too slow":                      {builders.Jobs(), []error{apierrors.NewTimeoutError("slow", 1)}, nil, "", fact.Unknown, fact.CauseTimeout, []string{"get jobs/lab", "get jobs/lab", "get jobs/lab"}},
		"a cluster-scoped object, whatever namespace is said": {v1alpha1.ResolvedResource{Group: "batch", Version: "v1", Kind: "Job", Resource: "jobs"}, nil, nil, "", fact.Absent, "", []string{"get jobs/"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := reading(c.errs, c.objects...)
			u, state, cause := NewObjects(d, nil, nil).Existing(t.Context(), c.res, "lab", "a")
			if state != c.state || cause != c.cause || (u != nil) != (c.state == fact.Known) || u != nil && string(u.GetUID()) != c.uid {
				t.Errorf("%v %v %q", u, state, cause)
			}
			if diff := cmp.Diff(c.asked, d.asked); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestN21_ExistingIsNeverRemembered: what has just been created, or deleted, is seen.
func TestN21_ExistingIsNeverRemembered(t *testing.T) {
	t.Parallel()
	d := reading(nil)
	o := NewObjects(d, nil, nil)
	jobs := d.Resource(ResourceOf(builders.Jobs())).Namespace("lab")
	look := func(want fact.State) {
		t.Helper()
		if _, state, _ := o.Existing(t.Context(), builders.Jobs(), "lab", "a"); state != want {
			t.Errorf("state %v, want %v", state, want)
		}
	}
	look(fact.Absent)
	if _, err := jobs.Create(t.Context(), stored("a", "u"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	look(fact.Known)
	if err := jobs.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	look(fact.Absent)
}

// TestExistingEndsWithItsContext: no try after the time is up.
func TestExistingEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	d := reading([]error{apierrors.NewInternalError(errors.New("no"))})
	cancel()
	if _, state, cause := NewObjects(d, nil, nil).Existing(ctx, builders.Jobs(), "lab", "a"); state != fact.Unknown || cause != fact.CauseServer || len(d.asked) != 1 {
		t.Errorf("%v %q after %v", state, cause, d.asked)
	}
}

// pod is a Pod of Job "a" as the API server lists it; on its way out where deleting is
// not empty.
func pod(name, deleting string) string { return podOf("a", "u", name, deleting) }

func podOf(job, uid, name, deleting string) string {
	more := []string{fmt.Sprintf(`"ownerReferences":[{"apiVersion":"batch/v1","kind":"Job","name":%q,"uid":%q,"controller":true}]`, job, uid)}
	if deleting != "" {
		more = append(more, fmt.Sprintf(`"deletionTimestamp":%q`, deleting))
	}
	return object(name, "uid-of-"+name, more...)
}

func TestPodsOf(t *testing.T) {
	t.Parallel()
	const (
		early, late = "2026-03-01T12:00:00Z", "2026-03-01T12:05:00Z"
		byName      = "/api/v1/namespaces/lab/pods?fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed&labelSelector=batch.kubernetes.io%2Fjob-name%3Da&limit=10"
		byUID       = "/api/v1/namespaces/lab/pods?fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed&labelSelector=batch.kubernetes.io%2Fcontroller-uid%3Du&limit=10"
		hadName     = "/api/v1/namespaces/lab/pods?labelSelector=batch.kubernetes.io%2Fjob-name%3Da&limit=1"
		hadUID      = "/api/v1/namespaces/lab/pods?labelSelector=batch.kubernetes.io%2Fcontroller-uid%3Du&limit=1"
		allName     = "/api/v1/namespaces/lab/pods?labelSelector=batch.kubernetes.io%2Fjob-name%3Da&limit=10"
		allUID      = "/api/v1/namespaces/lab/pods?labelSelector=batch.kubernetes.io%2Fcontroller-uid%3Du&limit=10"
	)
	at := func(s string) time.Time {
		out, err := time.Parse(time.RFC3339, s)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	running := func(names ...string) naming.PodsFact { return naming.PodsFact{State: fact.Known, Names: names} }
	ending := func(since string, names ...string) naming.PodsFact {
		return naming.PodsFact{State: fact.Known, Names: names, Terminating: true, Since: at(since)}
	}
	internal := failure(500, metav1.StatusReasonInternalError, "")
	none, some := ok(listOf("")), ok(listOf("", pod("had", "")))
	for name, c := range map[string]struct {
		uid                string
		had, first, second []answer // to the look for one, to the list of Pods that run, and to that of all
		want               naming.PodsFact
		asked              []string
	}{
		"nothing ever had the name":                {"", []answer{none}, nil, nil, naming.PodsFact{State: fact.Absent}, []string{hadName}},
		"none is left":                             {"", []answer{some}, []answer{none}, []answer{none}, naming.PodsFact{State: fact.Absent}, []string{hadName, byName, allName}},
		"none of this Job":                         {"u", []answer{none}, nil, nil, naming.PodsFact{State: fact.Absent}, []string{hadUID}},
		"one runs":                                 {"", []answer{some}, []answer{ok(listOf("", pod("x", "")))}, nil, running("x"), []string{hadName, byName}},
		"one of this Job runs":                     {"u", []answer{some}, []answer{ok(listOf("", pod("x", "")))}, nil, running("x"), []string{hadUID, byUID}},
		"one that was orphaned runs":               {"", []answer{some}, []answer{ok(listOf("", object("x", "x"), podOf("b", "u", "y", "")))}, nil, running("x"), []string{hadName, byName}},
		"a Pod that only has the labels":           {"u", []answer{some}, []answer{ok(listOf("", object("x", "x")))}, []answer{ok(listOf("", object("x", "x")))}, naming.PodsFact{State: fact.Absent}, []string{hadUID, byUID, allUID}},
		"a Pod of another Job with the label":      {"u", []answer{some}, []answer{ok(listOf("", podOf("a", "v", "x", "")))}, []answer{none}, naming.PodsFact{State: fact.Absent}, []string{hadUID, byUID, allUID}},
		"N10: one runs, and is ending":             {"", []answer{some}, []answer{ok(listOf("", pod("x", late)))}, nil, ending(late, "x"), []string{hadName, byName}},
		"one runs, another one is ending":          {"u", []answer{some}, []answer{ok(listOf("", pod("x", ""), pod("y", late)))}, nil, naming.PodsFact{State: fact.Known, Names: []string{"y", "x"}, Since: at(late)}, []string{hadUID, byUID}},
		"first the one that is ending for longest": {"u", []answer{some}, []answer{ok(listOf("", pod("x", late), pod("y", early), pod("z", late)))}, nil, ending(early, "y", "x", "z"), []string{hadUID, byUID}},
		"more than are named":                      {"u", []answer{some}, []answer{ok(listOf("", pod("w", ""), pod("x", ""), pod("y", ""), pod("z", ""), pod("zz", "")))}, nil, naming.PodsFact{State: fact.Known, Names: []string{"w", "x", "y", "z"}, More: true}, []string{hadUID, byUID}},
		"N17: ended, but for a finalizer":          {"u", []answer{some}, []answer{none}, []answer{ok(listOf("", pod("done", ""), pod("x", late), pod("y", early)))}, ending(early, "y", "x"), []string{hadUID, byUID, allUID}},
		"ended, and kept":                          {"", []answer{some}, []answer{none}, []answer{ok(listOf("", pod("done", ""), pod("done2", "")))}, naming.PodsFact{State: fact.Absent}, []string{hadName, byName, allName}},
		"trouble that passes":                      {"u", []answer{some, some}, []answer{internal, ok(listOf("", pod("x", "")))}, nil, running("x"), []string{hadUID, byUID, hadUID, byUID}},
		"trouble with the first list":              {"", []answer{internal, some}, []answer{ok(listOf("", pod("x", "")))}, nil, running("x"), []string{hadName, hadName, byName}},
		"trouble that stays":                       {"", []answer{some}, []answer{internal}, nil, naming.PodsFact{Cause: fact.CauseServer}, []string{hadName, byName, hadName, byName, hadName, byName}},
		"a right that is missing":                  {"", []answer{failure(403, metav1.StatusReasonForbidden, "")}, nil, nil, naming.PodsFact{Cause: fact.CauseForbidden}, []string{hadName}},
		"Pods that are not served":                 {"", nil, nil, nil, naming.PodsFact{Cause: fact.CauseNoKind}, []string{hadName}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, map[string][]answer{hadName: c.had, hadUID: c.had, byName: c.first, byUID: c.first, allName: c.second, allUID: c.second})
			m, err := metadata.NewForConfig(&rest.Config{Host: s.URL, QPS: -1})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if diff := cmp.Diff(c.want, NewObjects(nil, m, nil).PodsOf(ctx, "lab", "a", c.uid)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(c.asked, s.seen()); diff != "" {
				t.Errorf("asked (-want +got)\n%s", diff)
			}
		})
	}
}

// authorizer answers SubjectAccessReviews, and notes them.
type authorizer struct {
	client.Client
	allow   func(authorizationv1.SubjectAccessReviewSpec) (bool, error)
	reviews []authorizationv1.SubjectAccessReviewSpec
}

func authorizing(allow func(authorizationv1.SubjectAccessReviewSpec) (bool, error)) *authorizer {
	a := &authorizer{allow: allow}
	a.Client = fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(_ context.Context, _ client.WithWatch, obj client.Object, _ ...client.CreateOption) (err error) {
			review, ok := obj.(*authorizationv1.SubjectAccessReview)
			if !ok {
				return fmt.Errorf("no review: %T", obj)
			}
			a.reviews = append(a.reviews, review.Spec)
			review.Status.Allowed, err = a.allow(review.Spec)
			return err
		},
	}).Build()
	return a
}

func always(allowed bool) func(authorizationv1.SubjectAccessReviewSpec) (bool, error) {
	return func(authorizationv1.SubjectAccessReviewSpec) (bool, error) { return allowed, nil }
}

// clock is a time that the test moves.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

// mayDelete is Objects over an authorizer, with a clock for what it remembers.
func mayDelete(a *authorizer) (*Objects, *clock) {
	o, c := NewObjects(nil, nil, a), &clock{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	o.rights = utilcache.NewLRUExpireCacheWithClock(maxRights, c)
	return o, c
}

var alice = authenticationv1.UserInfo{
	Username: "alice", UID: "7", Groups: []string{"a", "system:authenticated"},
	Extra: map[string]authenticationv1.ExtraValue{"scopes.example.com": {"x", "y"}},
}

func TestMayDeleteAsksForWhoCreates(t *testing.T) {
	t.Parallel()
	a := authorizing(always(true))
	o, _ := mayDelete(a)
	if got := o.MayDelete(t.Context(), alice, builders.Jobs(), "lab", "a"); got != (naming.RightFact{State: fact.Known}) {
		t.Errorf("%+v", got)
	}
	want := []authorizationv1.SubjectAccessReviewSpec{{
		User: "alice", UID: "7", Groups: []string{"a", "system:authenticated"}, Extra: map[string]authorizationv1.ExtraValue{"scopes.example.com": {"x", "y"}},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "delete", Group: "batch", Version: "v1", Resource: "jobs", Namespace: "lab", Name: "a"},
	}}
	if diff := cmp.Diff(want, a.reviews); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestARightIsRememberedBriefly(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		allowed bool
		until   time.Duration
		state   fact.State
	}{
		"granted": {true, 10 * time.Second, fact.Known},
		"denied":  {false, 2 * time.Second, fact.Absent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := authorizing(always(c.allowed))
			o, clock := mayDelete(a)
			ask := func(reviews int) {
				t.Helper()
				if got := o.MayDelete(t.Context(), alice, builders.Jobs(), "lab", "a"); got.State != c.state || len(a.reviews) != reviews {
					t.Errorf("%+v after %d reviews, want %d", got, len(a.reviews), reviews)
				}
			}
			ask(1)
			clock.now = clock.now.Add(c.until - time.Millisecond)
			ask(1)
			clock.now = clock.now.Add(2 * time.Millisecond)
			ask(2)
		})
	}
}

// TestARightIsOneUsersOverOneObject: whatever differs is asked for anew.
func TestARightIsOneUsersOverOneObject(t *testing.T) {
	t.Parallel()
	with := func(change func(*authenticationv1.UserInfo)) authenticationv1.UserInfo {
		u := *alice.DeepCopy()
		change(&u)
		return u
	}
	type question struct {
		user            authenticationv1.UserInfo
		res             v1alpha1.ResolvedResource
		namespace, name string
	}
	first := question{alice, builders.Jobs(), "lab", "a"}
	for name, q := range map[string]question{
		"another name":           {with(func(u *authenticationv1.UserInfo) { u.Username = "bob" }), first.res, "lab", "a"},
		"another uid":            {with(func(u *authenticationv1.UserInfo) { u.UID = "8" }), first.res, "lab", "a"},
		"a group more":           {with(func(u *authenticationv1.UserInfo) { u.Groups = append(u.Groups, "b") }), first.res, "lab", "a"},
		"a group less":           {with(func(u *authenticationv1.UserInfo) { u.Groups = u.Groups[1:] }), first.res, "lab", "a"},
		"groups joined":          {with(func(u *authenticationv1.UserInfo) { u.Groups = []string{"a,system:authenticated"} }), first.res, "lab", "a"},
		"no extra":               {with(func(u *authenticationv1.UserInfo) { u.Extra = nil }), first.res, "lab", "a"},
		"another extra":          {with(func(u *authenticationv1.UserInfo) { u.Extra["scopes.example.com"] = authenticationv1.ExtraValue{"x"} }), first.res, "lab", "a"},
		"another object":         {alice, first.res, "lab", "b"},
		"another namespace":      {alice, first.res, "lab2", "a"},
		"another kind":           {alice, builders.Pods(), "lab", "a"},
		"names that run on":      {alice, first.res, "la", "ba"},
		"a name in another case": {with(func(u *authenticationv1.UserInfo) { u.Username = "Alice" }), first.res, "lab", "a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := authorizing(func(s authorizationv1.SubjectAccessReviewSpec) (bool, error) { return true, nil })
			o, _ := mayDelete(a)
			o.MayDelete(t.Context(), first.user, first.res, first.namespace, first.name)
			a.allow = always(false)
			if got := o.MayDelete(t.Context(), q.user, q.res, q.namespace, q.name); got.State != fact.Absent || len(a.reviews) != 2 {
				t.Errorf("%+v after %d reviews", got, len(a.reviews))
			}
			if got := o.MayDelete(t.Context(), first.user, first.res, first.namespace, first.name); got.State != fact.Known || len(a.reviews) != 2 {
				t.Errorf("the first answer is forgotten: %+v after %d reviews", got, len(a.reviews))
			}
		})
	}
}

// TestARightThatCouldNotBeFoundOutIsNotRemembered: an error is neither a yes nor a no.
func TestARightThatCouldNotBeFoundOutIsNotRemembered(t *testing.T) {
	t.Parallel()
	reviews := schema.GroupResource{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"}
	for name, c := range map[string]struct {
		err   error
		cause fact.Cause
		calls int
	}{
		"the API server is in trouble":      {apierrors.NewInternalError(errors.New("no")), fact.CauseServer, attempts},
		"belay may not ask":                 {apierrors.NewForbidden(reviews, "", nil), fact.CauseForbidden, 1},
		"the API server is too slow":        {apierrors.NewServerTimeout(reviews, "create", 1), fact.CauseTimeout, attempts},
		"the answer is allowed, and failed": {context.DeadlineExceeded, fact.CauseTimeout, attempts},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := authorizing(func(authorizationv1.SubjectAccessReviewSpec) (bool, error) { return true, c.err })
			o, _ := mayDelete(a)
			if got := o.MayDelete(t.Context(), alice, builders.Jobs(), "lab", "a"); got != (naming.RightFact{Cause: c.cause}) || len(a.reviews) != c.calls {
				t.Errorf("%+v after %d reviews", got, len(a.reviews))
			}
			a.allow = always(true)
			if got := o.MayDelete(t.Context(), alice, builders.Jobs(), "lab", "a"); got.State != fact.Known {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestTheMemoryOfRightsIsBounded: anybody can create under any name.
func TestTheMemoryOfRightsIsBounded(t *testing.T) {
	t.Parallel()
	a := authorizing(always(true))
	o, _ := mayDelete(a)
	o.rights = utilcache.NewLRUExpireCache(3)
	for i := range 10 {
		o.MayDelete(t.Context(), alice, builders.Jobs(), "lab", fmt.Sprintf("a-%d", i))
	}
	if n := len(o.rights.Keys()); n != 3 {
		t.Errorf("%d are remembered", n)
	}
}
