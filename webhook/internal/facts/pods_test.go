package facts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/recovery"
)

var podsResource = schema.GroupResource{Resource: "pods"}

// podWith is a Pod of namespace lab with the label app and this controller.
func podWith(name, app, controller string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "7", Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if controller != "" {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Box", Name: "a", UID: types.UID(controller), Controller: new(true)}}
	}
	return p
}

// asked is one request of a fake client.
type asked struct {
	Verb, Namespace, Name, Selector, Continue string
	Limit                                     int64
}

// apiServerInMemory is a fake client that notes what it is asked. onList and onGet answer,
// where they are there and do not leave it to the tracker.
type apiServerInMemory struct {
	*fake.Clientset
	mu    sync.Mutex
	asked []asked
}

func inMemory(onList func(n int, o metav1.ListOptions) (*corev1.PodList, error), onGet func(n int, name string) (*corev1.Pod, error), pods ...runtime.Object) *apiServerInMemory {
	s := &apiServerInMemory{Clientset: fake.NewClientset(pods...)}
	count := func(a asked) int {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asked = append(s.asked, a)
		return len(s.asked)
	}
	s.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		a, ok := action.(clienttesting.ListActionImpl)
		if !ok {
			return true, nil, errors.New("not a list")
		}
		o := a.ListOptions
		n := count(asked{Verb: "list", Namespace: a.GetNamespace(), Selector: o.LabelSelector, Continue: o.Continue, Limit: o.Limit})
		if onList == nil {
			return false, nil, nil
		}
		list, err := onList(n, o)
		if err != nil {
			return true, &corev1.PodList{}, err
		}
		return true, list, nil
	})
	s.PrependReactor("get", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		a, ok := action.(clienttesting.GetAction)
		if !ok {
			return true, nil, errors.New("not a get")
		}
		n := count(asked{Verb: "get", Namespace: a.GetNamespace(), Name: a.GetName()})
		if onGet == nil {
			return false, nil, nil
		}
		pod, err := onGet(n, a.GetName())
		if pod == nil && err == nil {
			return false, nil, nil
		}
		return true, pod, err
	})
	return s
}

// paged gives Pods in pages of so many, by a token that says where the next one begins.
func paged(pods ...*corev1.Pod) func(o metav1.ListOptions) *corev1.PodList {
	return func(o metav1.ListOptions) *corev1.PodList {
		from := 0
		if o.Continue != "" {
			_, _ = fmt.Sscan(o.Continue, &from)
		}
		to := min(from+int(o.Limit), len(pods))
		list := &corev1.PodList{}
		for _, p := range pods[from:to] {
			list.Items = append(list.Items, *p)
		}
		if to < len(pods) {
			list.Continue = fmt.Sprint(to)
		}
		return list
	}
}

// manyPods are so many Pods of Box "a", with somebody else's between.
func manyPods(n int) []*corev1.Pod {
	var out []*corev1.Pod
	for i := range n {
		controller := "box-uid"
		if i%10 == 3 {
			controller = "other-uid"
		}
		out = append(out, podWith(fmt.Sprintf("p-%04d", i), "box", controller))
	}
	return out
}

func namesOfPods(pods []recovery.Pod) []string {
	var out []string
	for _, p := range pods {
		out = append(out, p.Name)
	}
	return out
}

var ofBoxA = PodQuery{Namespace: "lab", Selector: "app=box", Owner: "box-uid"}

func TestLivePodsOfAnOwnerAreThoseThatItControls(t *testing.T) {
	t.Parallel()
	owned := podWith("owned-only", "box", "")
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Box", Name: "a", UID: "box-uid"}}
	elsewhere := podWith("elsewhere", "box", "box-uid")
	elsewhere.Namespace = "other"
	c := inMemory(nil, nil, podWith("mine", "box", "box-uid"), podWith("another's", "box", "other-uid"), podWith("nobody's", "box", ""), owned, podWith("unlabelled", "x", "box-uid"), elsewhere)
	got := NewPods(c, &cachedPods{}).Live(t.Context(), ofBoxA)
	if got.State != fact.Known || !got.Live || got.Cause != "" || got.Problem != "" {
		t.Errorf("%+v", got)
	}
	if diff := cmp.Diff([]string{"mine"}, namesOfPods(got.Pods)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(recovery.PodOf(podWith("mine", "box", "box-uid")), got.Pods[0]); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]asked{{Verb: "list", Namespace: "lab", Selector: "app=box", Limit: 20}}, c.asked); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	// With labels that the object's own Pods have.
	c = inMemory(nil, nil)
	q := ofBoxA
	q.Labels = map[string]string{"z": "1", "box": "a"}
	if got := NewPods(c, &cachedPods{}).Live(t.Context(), q); got.State != fact.Known || got.Pods != nil || !got.Live {
		t.Errorf("%+v", got)
	}
	if diff := cmp.Diff([]asked{{Verb: "list", Namespace: "lab", Selector: "app=box,box=a,z=1", Limit: 20}}, c.asked); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestLivePodsArePagedThrough: what counts is the whole of it, or nothing is claimed.
func TestLivePodsArePagedThrough(t *testing.T) {
	t.Parallel()
	gone := &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "The provided continue parameter is too old"}}
	internal := apierrors.NewInternalError(errors.New("etcdserver: leader changed"))
	forbidden := apierrors.NewForbidden(podsResource, "", nil)
	noPath := apierrors.NewGenericServerResponse(404, "GET", podsResource, "", "404 page not found", 0, true)
	always := func(err error) func(int, metav1.ListOptions) error {
		return func(int, metav1.ListOptions) error { return err }
	}
	onSecondPage := func(err error, times int) func(int, metav1.ListOptions) error {
		failed := 0
		return func(_ int, o metav1.ListOptions) error {
			if o.Continue == "20" && failed < times {
				failed++
				return err
			}
			return nil
		}
	}
	for name, c := range map[string]struct {
		pods   int
		fail   func(n int, o metav1.ListOptions) error
		state  fact.State
		cause  fact.Cause
		found  int
		tokens []string
	}{
		"none":                 {pods: 0, state: fact.Known, tokens: []string{""}},
		"one page, and full":   {pods: 20, state: fact.Known, found: 18, tokens: []string{""}},
		"one more than a page": {pods: 21, state: fact.Known, found: 19, tokens: []string{"", "20"}},
		"three pages":          {pods: 50, state: fact.Known, found: 45, tokens: []string{"", "20", "40"}},
		"the second page fails once: from the start": {pods: 50, fail: onSecondPage(internal, 1), state: fact.Known, found: 45, tokens: []string{"", "20", "", "20", "40"}},
		"the token is too old: from the start":       {pods: 50, fail: onSecondPage(gone, 2), state: fact.Known, found: 45, tokens: []string{"", "20", "", "20", "", "20", "40"}},
		"the token is always too old":                {pods: 50, fail: onSecondPage(gone, 99), cause: fact.CauseServer, tokens: []string{"", "20", "", "20", "", "20"}},
		"the second page always fails":               {pods: 50, fail: onSecondPage(internal, 99), cause: fact.CauseServer, tokens: []string{"", "20", "", "20", "", "20"}},
		"the second page is forbidden":               {pods: 50, fail: onSecondPage(forbidden, 99), cause: fact.CauseForbidden, tokens: []string{"", "20"}},
		"it is forbidden":                            {pods: 5, fail: always(forbidden), cause: fact.CauseForbidden, tokens: []string{""}},
		"it is not served":                           {pods: 5, fail: always(noPath), cause: fact.CauseNoKind, tokens: []string{""}},
		"a 404 is not none":                          {pods: 5, fail: always(apierrors.NewNotFound(podsResource, "")), cause: fact.CauseNoKind, tokens: []string{""}},
		"it is too slow":                             {pods: 5, fail: always(apierrors.NewTimeoutError("slow", 1)), cause: fact.CauseTimeout, tokens: []string{"", "", ""}},
		"there are too many requests":                {pods: 5, fail: always(apierrors.NewTooManyRequests("later", 1)), cause: fact.CauseServer, tokens: []string{"", "", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			page := paged(manyPods(c.pods)...)
			s := inMemory(func(n int, o metav1.ListOptions) (*corev1.PodList, error) {
				if c.fail != nil {
					if err := c.fail(n, o); err != nil {
						return nil, err
					}
				}
				return page(o), nil
			}, nil)
			got := NewPods(s, &cachedPods{}).Live(t.Context(), ofBoxA)
			if got.State != c.state || got.Cause != c.cause || !got.Live || got.Problem != "" || len(got.Pods) != c.found {
				t.Errorf("%+v", got)
			}
			var tokens []string
			for _, a := range s.asked {
				tokens = append(tokens, a.Continue)
				if a.Limit != 20 {
					t.Errorf("%+v", a)
				}
			}
			if diff := cmp.Diff(c.tokens, tokens); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			seen := map[types.UID]bool{}
			for _, p := range got.Pods {
				if seen[p.UID] || p.Controller != "box-uid" {
					t.Errorf("%+v", p)
				}
				seen[p.UID] = true
			}
		})
	}
}

// TestPodsThatAreTooManyAreAProblem: of the policy, which should narrow them; and never half
// of the truth.
func TestPodsThatAreTooManyAreAProblem(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{2000: "", 2001: "there are more than 2000 pods to look through; narrow them with owner.labels", 5000: "there are more than 2000 pods to look through; narrow them with owner.labels"} {
		page := paged(manyPods(n)...)
		s := inMemory(func(_ int, o metav1.ListOptions) (*corev1.PodList, error) { return page(o), nil }, nil)
		got := NewPods(s, &cachedPods{}).Live(t.Context(), ofBoxA)
		if got.Problem != want || got.Cause != "" || (got.State == fact.Known) != (want == "") || (got.Pods != nil) != (want == "") || len(s.asked) != 100 {
			t.Errorf("%d: state %v %q %q, %d pods, %d requests", n, got.State, got.Cause, got.Problem, len(got.Pods), len(s.asked))
		}
	}
}

func TestLivePodsByName(t *testing.T) {
	t.Parallel()
	noPath := apierrors.NewGenericServerResponse(404, "GET", podsResource, "", "404 page not found", 0, true)
	nameless := &apierrors.StatusError{ErrStatus: metav1.Status{Code: 404, Reason: metav1.StatusReasonNotFound}}
	internal := apierrors.NewInternalError(errors.New("etcdserver: leader changed"))
	failing := func(name string, err error, times int) func(int, string) (*corev1.Pod, error) {
		failed := 0
		return func(_ int, asked string) (*corev1.Pod, error) {
			if asked == name && failed < times {
				failed++
				return nil, err
			}
			return nil, nil
		}
	}
	there := []runtime.Object{podWith("a", "pool", "pool-uid"), podWith("b", "pool", "pool-uid"), podWith("x", "other", "pool-uid"), podWith("n", "", "")}
	for name, c := range map[string]struct {
		names    []string
		onGet    func(int, string) (*corev1.Pod, error)
		state    fact.State
		cause    fact.Cause
		found    []string
		requests int // at least; where more than one is under way the others may be given up
	}{
		"all are there":        {names: []string{"a", "b"}, state: fact.Known, found: []string{"a", "b"}, requests: 2},
		"in their order":       {names: []string{"b", "a"}, state: fact.Known, found: []string{"b", "a"}, requests: 2},
		"one is not there":     {names: []string{"a", "gone", "b"}, state: fact.Known, found: []string{"a", "b"}, requests: 3},
		"none is there":        {names: []string{"gone"}, state: fact.Known, requests: 1},
		"one has other labels": {names: []string{"a", "x"}, state: fact.Known, found: []string{"a"}, requests: 2},
		"one has no labels":    {names: []string{"n", "a"}, state: fact.Known, found: []string{"a"}, requests: 2},
		"none is named":        {state: fact.Known},
		"a path that is not served is no absent Pod": {names: []string{"a"}, onGet: failing("a", noPath, 99), cause: fact.CauseNoKind, requests: 1},
		"a 404 that names nothing is no absent Pod":  {names: []string{"a"}, onGet: failing("a", nameless, 99), cause: fact.CauseNoKind, requests: 1},
		"it is forbidden":                          {names: []string{"a"}, onGet: failing("a", apierrors.NewForbidden(podsResource, "a", nil), 99), cause: fact.CauseForbidden, requests: 1},
		"trouble that passes":                      {names: []string{"a", "b"}, onGet: failing("b", internal, 1), state: fact.Known, found: []string{"a", "b"}, requests: 4},
		"trouble that passes, and then it is gone": {names: []string{"gone"}, onGet: failing("gone", internal, 2), state: fact.Known, requests: 3},
		"one of many cannot be found out":          {names: []string{"a", "b", "gone"}, onGet: failing("b", internal, 99), cause: fact.CauseServer, requests: 3},
		"it is too slow":                           {names: []string{"a"}, onGet: failing("a", apierrors.NewTimeoutError("slow", 1), 99), cause: fact.CauseTimeout, requests: 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := inMemory(nil, c.onGet, there...)
			got := NewPods(s, &cachedPods{}).Live(t.Context(), PodQuery{Namespace: "lab", Selector: "app=pool", Names: c.names})
			if got.State != c.state || got.Cause != c.cause || !got.Live || got.Problem != "" {
				t.Errorf("%+v", got)
			}
			if diff := cmp.Diff(c.found, namesOfPods(got.Pods)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if len(s.asked) < c.requests || c.state == fact.Known && len(s.asked) > c.requests {
				t.Errorf("%+v", s.asked)
			}
			for _, a := range s.asked {
				if a.Verb != "get" || a.Namespace != "lab" {
					t.Errorf("%+v", a)
				}
			}
		})
	}
	// 256 Pods are read, each of them once, and come in their order.
	var all []runtime.Object
	var names []string
	for i := range 256 {
		names = append(names, fmt.Sprintf("p-%03d", i))
		all = append(all, podWith(names[i], "pool", ""))
	}
	s := inMemory(nil, nil, all...)
	got := NewPods(s, &cachedPods{}).Live(t.Context(), PodQuery{Namespace: "lab", Selector: "app=pool", Names: names})
	if diff := cmp.Diff(names, namesOfPods(got.Pods)); diff != "" || len(s.asked) != 256 {
		t.Errorf("%d requests (-want +got)\n%s", len(s.asked), diff)
	}
	// A selector that no policy can have.
	if got := NewPods(s, &cachedPods{}).Live(t.Context(), PodQuery{Namespace: "lab", Selector: "((", Names: names}); got.State != fact.Unknown || got.Cause != fact.CauseServer {
		t.Errorf("%+v", got)
	}
}

// cachedPods answers for the informers.
type cachedPods struct {
	pods  []recovery.Pod
	ok    bool
	asked []PodQuery
}

func (c *cachedPods) Pods(q PodQuery) ([]recovery.Pod, bool) {
	c.asked = append(c.asked, q)
	if !c.ok {
		return nil, false
	}
	return c.pods, true
}

// TestPodsAreReadWhereItIsAskedFor: from the informers, if they know all, and live otherwise
// or where that is asked for.
func TestPodsAreReadWhereItIsAskedFor(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	late, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	known := []recovery.Pod{{Name: "known"}}
	for name, c := range map[string]struct {
		spec                string
		annotations         map[string]string
		ctx                 context.Context
		synced, live        bool
		want                recovery.PodsFact
		fromCache, requests int
	}{
		"from the informers":                    {spec: `{"kind":"plain"}`, synced: true, want: recovery.PodsFact{State: fact.Known, Pods: known}, fromCache: 1},
		"the informers do not know all yet":     {spec: `{"kind":"plain"}`, want: recovery.PodsFact{State: fact.Known, Live: true}, fromCache: 2, requests: 1},
		"live, and those that they know":        {spec: `{"kind":"plain"}`, synced: true, live: true, want: recovery.PodsFact{State: fact.Known, Live: true}, fromCache: 1, requests: 2},
		"by name, live":                         {spec: `{"kind":"pool"}`, annotations: map[string]string{"pods": `{"pods":["p","q"]}`}, live: true, want: recovery.PodsFact{State: fact.Known, Live: true}, requests: 2},
		"no entry is for the object":            {spec: `{"kind":"none"}`, live: true, want: recovery.PodsFact{State: fact.Known, Live: true}},
		"no entry is for it, from informers":    {spec: `{"kind":"none"}`, synced: true, want: recovery.PodsFact{State: fact.Known, Pods: known}, fromCache: 1},
		"an expression fails":                   {spec: `{}`, synced: true, want: recovery.PodsFact{Problem: "spec.pods[0].when: no such key: kind"}},
		"an expression fails, live":             {spec: `{}`, live: true, want: recovery.PodsFact{Problem: "spec.pods[0].when: no such key: kind"}},
		"an annotation that is none":            {spec: `{"kind":"pool"}`, annotations: map[string]string{"pods": "a\nb"}, live: true, want: recovery.PodsFact{Problem: "the annotation pods is no JSON object"}},
		"the time ran out in an expression":     {spec: `{}`, ctx: ended, synced: true, want: recovery.PodsFact{Cause: fact.CauseTimeout}},
		"the time ran out by a deadline":        {spec: `{}`, ctx: late, synced: true, want: recovery.PodsFact{Cause: fact.CauseTimeout}},
		"the time ran out before it was asked":  {spec: `{"kind":"plain"}`, ctx: ended, live: true, want: recovery.PodsFact{State: fact.Known, Live: true}, fromCache: 1, requests: 1},
		"the informers need no time to look it": {spec: `{"kind":"plain"}`, ctx: ended, synced: true, want: recovery.PodsFact{State: fact.Known, Pods: known}, fromCache: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			policy, err := CompileRecoveryPolicy(inForce(builders.MakeRecoveryPolicy("boxes").Spec(threeSources).Obj()))
			if err != nil {
				t.Fatal(err)
			}
			s, cached := inMemory(nil, nil), &cachedPods{pods: known, ok: c.synced}
			ctx := c.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			got := NewPods(s, cached).Of(ctx, policy, boxOf(t, c.spec, c.annotations), c.live)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if len(cached.asked) != c.fromCache || len(s.asked) != c.requests {
				t.Errorf("%d looks into the cache, %d requests", len(cached.asked), len(s.asked))
			}
		})
	}
	policy, err := CompileRecoveryPolicy(inForce(builders.MakeRecoveryPolicy("boxes").Spec(func(s *v1alpha1.RecoveryPolicySpec) {
		s.Pods[0].Owner.Labels = `{"x": object.spec["a\nb"]}`
	}).Obj()))
	if err != nil {
		t.Fatal(err)
	}
	if got := NewPods(nil, &cachedPods{}).Of(t.Context(), policy, boxOf(t, `{}`, nil), true); got.Problem == "" || strings.ContainsAny(got.Problem, "\n\x00") {
		t.Errorf("%+v", got)
	}
}

// TestAPodIsNotGoneForWantOfALabel: one that the informers know as the object's is asked for
// by its name, where it has not the labels that all of the object's Pods have.
func TestAPodIsNotGoneForWantOfALabel(t *testing.T) {
	t.Parallel()
	labelled, stray, handed, unselected := podWith("labelled", "box", "box-uid"), podWith("stray", "box", "box-uid"), podWith("handed", "box", "other-uid"), podWith("unselected", "x", "box-uid")
	labelled.Labels["box"] = "a"
	known := func(names ...string) *cachedPods {
		c := &cachedPods{ok: true}
		for _, n := range names {
			c.pods = append(c.pods, recovery.Pod{Name: n})
		}
		return c
	}
	q := ofBoxA
	q.Labels = map[string]string{"box": "a"}
	for name, c := range map[string]struct {
		cached *cachedPods
		fails  error
		found  []string
		state  fact.State
		cause  fact.Cause
		gets   int
	}{
		"the informers know no more":     {known("labelled"), nil, []string{"labelled"}, fact.Known, "", 0},
		"they know of another":           {known("labelled", "stray"), nil, []string{"labelled", "stray"}, fact.Known, "", 1},
		"it is another's now":            {known("handed"), nil, []string{"labelled"}, fact.Known, "", 1},
		"it is none of the policy's now": {known("unselected"), nil, []string{"labelled"}, fact.Known, "", 1},
		"it is gone":                     {known("gone", "stray"), nil, []string{"labelled", "stray"}, fact.Known, "", 2},
		"they are not synced":            {&cachedPods{}, nil, []string{"labelled"}, fact.Known, "", 0},
		"it cannot be read":              {known("stray"), apierrors.NewInternalError(errors.New("etcd")), nil, fact.Unknown, fact.CauseServer, 3},
		"it may not be read":             {known("stray"), apierrors.NewForbidden(podsResource, "stray", nil), nil, fact.Unknown, fact.CauseForbidden, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var onGet func(int, string) (*corev1.Pod, error)
			if c.fails != nil {
				onGet = func(int, string) (*corev1.Pod, error) { return nil, c.fails }
			}
			s := inMemory(nil, onGet, labelled, stray, handed, unselected)
			got := NewPods(s, c.cached).Live(t.Context(), q)
			if got.State != c.state || got.Cause != c.cause || !got.Live || got.Problem != "" {
				t.Errorf("%+v", got)
			}
			if diff := cmp.Diff(c.found, namesOfPods(got.Pods)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			gets := 0
			for _, a := range s.asked {
				if a.Verb == "get" {
					gets++
				}
			}
			if gets != c.gets {
				t.Errorf("%+v", s.asked)
			}
		})
	}
}

// overHTTP is a real client of the server.
func overHTTP(t *testing.T, s *apiServer) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(&rest.Config{Host: s.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestAReadThatHangsLeavesTimeForAnother: and ends with the context in any case.
func TestAReadThatHangsLeavesTimeForAnother(t *testing.T) {
	t.Parallel()
	const list, get = "/api/v1/namespaces/lab/pods?labelSelector=app%3Dbox&limit=20", "/api/v1/namespaces/lab/pods/a"
	pods := jsonOf(t, &corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []corev1.Pod{*podWith("mine", "box", "box-uid")}})
	one := podWith("a", "box", "")
	one.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	byName := PodQuery{Namespace: "lab", Selector: "app=box", Names: []string{"a"}}
	for name, c := range map[string]struct {
		q       PodQuery
		answers map[string][]answer
		want    fact.State
		cause   fact.Cause
		most    int
	}{
		"a list that hangs once":   {ofBoxA, map[string][]answer{list: {{}, ok(pods)}}, fact.Known, "", 2},
		"a list that always hangs": {ofBoxA, map[string][]answer{list: {{}}}, fact.Unknown, fact.CauseTimeout, 3},
		"a get that hangs once":    {byName, map[string][]answer{get: {{}, ok(jsonOf(t, one))}}, fact.Known, "", 2},
		"a get that always hangs":  {byName, map[string][]answer{get: {{}}}, fact.Unknown, fact.CauseTimeout, 3},
		"a get of what is gone":    {byName, map[string][]answer{get: {failure(404, metav1.StatusReasonNotFound, "a")}}, fact.Known, "", 1},
		"a server that is no API":  {byName, map[string][]answer{}, fact.Unknown, fact.CauseNoKind, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, c.answers)
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			got := NewPods(overHTTP(t, s), &cachedPods{}).Live(ctx, c.q)
			if got.State != c.want || got.Cause != c.cause {
				t.Errorf("%+v", got)
			}
			if n := len(s.seen()); n > c.most {
				t.Errorf("%d requests", n)
			}
		})
	}
}

// countingGets is a client that tells when a Pod is read by name.
type countingGets struct {
	kubernetes.Interface
	begin, end func()
}

func (c countingGets) CoreV1() typedcorev1.CoreV1Interface {
	return countingCore{c.Interface.CoreV1(), c}
}

type countingCore struct {
	typedcorev1.CoreV1Interface
	c countingGets
}

func (c countingCore) Pods(namespace string) typedcorev1.PodInterface {
	return countingPods{c.CoreV1Interface.Pods(namespace), c.c}
}

type countingPods struct {
	typedcorev1.PodInterface
	c countingGets
}

func (p countingPods) Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.Pod, error) {
	p.c.begin()
	defer p.c.end()
	return p.PodInterface.Get(ctx, name, o)
}

// TestAtMostEightPodsAreReadAtOnce: a webhook must not flood the API server.
func TestAtMostEightPodsAreReadAtOnce(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	now, most := 0, 0
	s := inMemory(nil, nil)
	full := make(chan struct{})
	var fill sync.Once
	c := countingGets{Interface: s, begin: func() {
		mu.Lock()
		now++
		most = max(most, now)
		if now == readers {
			fill.Do(func() { close(full) })
		}
		mu.Unlock()
		select { // until as many are under way as may be, once
		case <-full:
		case <-time.After(10 * time.Second):
		}
	}, end: func() { mu.Lock(); now--; mu.Unlock() }}
	var names []string
	for i := range 64 {
		names = append(names, fmt.Sprintf("p-%d", i))
	}
	if got := NewPods(c, &cachedPods{}).Live(t.Context(), PodQuery{Namespace: "lab", Selector: "app=box", Names: names}); got.State != fact.Known {
		t.Errorf("%+v", got)
	}
	if most != readers {
		t.Errorf("%d at once", most)
	}
}

// TestWhatIsKeptOfAPodSharesNothingWithIt: a part of a page would keep all of it in memory.
func TestWhatIsKeptOfAPodSharesNothingWithIt(t *testing.T) {
	t.Parallel()
	p := fullPod()
	of := recovery.PodOf(p)
	kept := cloned(recovery.PodOf(p))
	want := recovery.PodOf(p)
	want.Containers[0].ID = "" // which the report is not about
	if diff := cmp.Diff(want, kept); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	seen := 0
	var walk func(path string, a, b reflect.Value)
	walk = func(path string, a, b reflect.Value) {
		switch a.Kind() {
		case reflect.String:
			if a.Len() == 0 {
				return
			}
			seen++
			if x, y := a.String(), b.String(); unsafe.StringData(x) == unsafe.StringData(y) {
				t.Errorf("%s %q is shared", path, x)
			}
		case reflect.Struct:
			if a.Type() == reflect.TypeFor[time.Time]() {
				return
			}
			for i := range a.NumField() {
				walk(path+"."+a.Type().Field(i).Name, a.Field(i), b.Field(i))
			}
		case reflect.Slice:
			for i := range a.Len() {
				walk(fmt.Sprintf("%s[%d]", path, i), a.Index(i), b.Index(i))
			}
		}
	}
	walk("pod", reflect.ValueOf(of), reflect.ValueOf(kept))
	if seen < 12 {
		t.Errorf("only %d texts were compared", seen)
	}
}

// fullPod is a Pod that says all that decisions read, as long texts of one buffer.
func fullPod() *corev1.Pod {
	buffer := strings.Repeat("abcdefghijklmnopqrstuvwxyz", 8)
	at := 0
	text := func() string { at += 6; return buffer[at : at+6] }
	main := text()
	p := podWith("x", "box", "x")
	p.Name, p.UID = text(), types.UID(text())
	p.OwnerReferences[0].UID = types.UID(text())
	p.Annotations = map[string]string{recovery.AnnotationDefaultContainer: text()}
	p.Spec.Containers[0].Name = text()
	p.Spec.InitContainers = []corev1.Container{{Name: text()}}
	p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: corev1.PodConditionType(text())}}
	p.Status = corev1.PodStatus{
		Phase: corev1.PodPhase(text()), Reason: text(),
		Conditions:            []corev1.PodCondition{{Type: v1alpha1.MainReadyCondition, Message: main + ": x"}},
		ContainerStatuses:     []corev1.ContainerStatus{{Name: p.Spec.Containers[0].Name, ContainerID: main, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: text()}}}},
		InitContainerStatuses: []corev1.ContainerStatus{{Name: p.Spec.InitContainers[0].Name, ContainerID: text()}},
	}
	return p
}
