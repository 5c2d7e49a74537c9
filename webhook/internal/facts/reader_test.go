package facts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/owner"
)

const (
	jobPath   = "/apis/batch/v1/namespaces/lab/jobs/run"
	listPath  = "/apis/batch/v1/namespaces/lab/jobs?labelSelector=a%3Db&limit=20"
	nodesPath = "/api/v1/nodes/run"
)

func job(name, uid string) owner.Object {
	return owner.Object{APIVersion: "batch/v1", Kind: "Job", Name: name, UID: types.UID(uid)}
}

func TestFind(t *testing.T) {
	t.Parallel()
	byName := Query{Resource: builders.Jobs(), Namespace: "lab", Name: "run"}
	byLabels := Query{Resource: builders.Jobs(), Namespace: "lab", Labels: map[string]string{"a": "b"}}
	nodes := v1alpha1.ResolvedResource{Version: "v1", Kind: "Node", Resource: "nodes"}
	gone := job("run", "u")
	gone.Terminating = true
	known := func(objects ...owner.Object) owner.Fact {
		return owner.Fact{State: fact.Known, Objects: objects}
	}
	internal := failure(500, metav1.StatusReasonInternalError, "")
	for name, c := range map[string]struct {
		query   Query
		path    string
		answers []answer
		want    owner.Fact
		calls   int
	}{
		"an object that exists":                                   {byName, jobPath, []answer{ok(object("run", "u"))}, known(job("run", "u")), 1},
		"an object on its way out":                                {byName, jobPath, []answer{ok(object("run", "u", terminating))}, known(gone), 1},
		"an object that does not exist":                           {byName, jobPath, []answer{failure(404, metav1.StatusReasonNotFound, "run")}, owner.Fact{State: fact.Absent}, 1},
		"a resource that is not served is not an absent object":   {byName, jobPath, []answer{{404, "text/plain", "404 page not found\n"}}, owner.Fact{Cause: fact.CauseNoKind}, 1},
		"a 404 that names no object is not an absent object":      {byName, jobPath, []answer{failure(404, metav1.StatusReasonNotFound, "")}, owner.Fact{Cause: fact.CauseNoKind}, 1},
		"a missing right is not tried again":                      {byName, jobPath, []answer{failure(403, metav1.StatusReasonForbidden, "run")}, owner.Fact{Cause: fact.CauseForbidden}, 1},
		"a missing identity is not tried again":                   {byName, jobPath, []answer{failure(401, metav1.StatusReasonUnauthorized, "")}, owner.Fact{Cause: fact.CauseForbidden}, 1},
		"a 500 is tried again":                                    {byName, jobPath, []answer{internal, ok(object("run", "u"))}, known(job("run", "u")), 2},
		"a 504 is tried again":                                    {byName, jobPath, []answer{failure(504, metav1.StatusReasonTimeout, ""), ok(object("run", "u"))}, known(job("run", "u")), 2},
		"a 500 that stays is given up":                            {byName, jobPath, []answer{internal}, owner.Fact{Cause: fact.CauseServer}, attempts},
		"a 504 that stays is a time-out":                          {byName, jobPath, []answer{failure(504, metav1.StatusReasonTimeout, "")}, owner.Fact{Cause: fact.CauseTimeout}, attempts},
		"an answer that is no object is an error":                 {byName, jobPath, []answer{ok("proxy error")}, owner.Fact{Cause: fact.CauseServer}, attempts},
		"a cluster-scoped object, whatever the namespace":         {Query{Resource: nodes, Namespace: "lab", Name: "run"}, nodesPath, []answer{ok(object("run", "u"))}, known(owner.Object{APIVersion: "v1", Kind: "Node", Name: "run", UID: "u"}), 1},
		"by labels: none":                                         {byLabels, listPath, []answer{ok(listOf(""))}, owner.Fact{State: fact.Absent}, 1},
		"by labels: one":                                          {byLabels, listPath, []answer{ok(listOf("", object("run", "u")))}, known(job("run", "u")), 1},
		"by labels: two, one of them on its way out":              {byLabels, listPath, []answer{ok(listOf("", object("run", "u", terminating), object("b", "v")))}, known(gone, job("b", "v")), 1},
		"by labels: more than are read":                           {byLabels, listPath, []answer{ok(listOf("next", object("run", "u")))}, owner.Fact{State: fact.Known, Objects: []owner.Object{job("run", "u")}, Truncated: true}, 1},
		"by labels: an empty page with more to come is not empty": {byLabels, listPath, []answer{ok(listOf("next"))}, owner.Fact{State: fact.Known, Truncated: true}, 1},
		"by labels: a 500 is tried again":                         {byLabels, listPath, []answer{internal, ok(listOf("", object("run", "u")))}, known(job("run", "u")), 2},
		"by labels: a resource that is not served is not empty":   {byLabels, listPath, []answer{{404, "text/plain", "404 page not found\n"}}, owner.Fact{Cause: fact.CauseNoKind}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, map[string][]answer{c.path: c.answers})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			got := s.reader(t).Find(ctx, c.query)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s%v", diff, s.seen())
			}
			if n := len(s.seen()); n != c.calls {
				t.Errorf("%d calls, want %d: %v", n, c.calls, s.seen())
			}
		})
	}
}

// TestFindOneLostAnswerDoesNotUseUpTheTime: the first try gets a share of the time, so
// that there is a second one.
func TestFindOneLostAnswerDoesNotUseUpTheTime(t *testing.T) {
	t.Parallel()
	s := serve(t, map[string][]answer{jobPath: {{}, ok(object("run", "u"))}})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	got := s.reader(t).Find(ctx, Query{Resource: builders.Jobs(), Namespace: "lab", Name: "run"})
	if diff := cmp.Diff(owner.Fact{State: fact.Known, Objects: []owner.Object{job("run", "u")}}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestFindEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := serve(t, map[string][]answer{jobPath: {{}}})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if got := s.reader(t).Find(ctx, Query{Resource: builders.Jobs(), Namespace: "lab", Name: "run"}); got.State != fact.Unknown || got.Cause != fact.CauseTimeout {
		t.Errorf("%+v", got)
	}
	if n := len(s.seen()); n > attempts {
		t.Errorf("%d calls", n)
	}
}

func TestCauseOf(t *testing.T) {
	t.Parallel()
	jobs := schema.GroupResource{Group: "batch", Resource: "jobs"}
	get := func(err error) error { return &url.Error{Op: "Get", URL: "https://10.0.0.1/", Err: err} }
	for name, c := range map[string]struct {
		err  error
		want fact.Cause
	}{
		"no error":                             {nil, fact.CauseNotAsked},
		"forbidden":                            {apierrors.NewForbidden(jobs, "run", nil), fact.CauseForbidden},
		"unauthorized":                         {apierrors.NewUnauthorized("token expired"), fact.CauseForbidden},
		"wrapped forbidden":                    {fmt.Errorf("reading: %w", apierrors.NewForbidden(jobs, "run", nil)), fact.CauseForbidden},
		"no such kind":                         {ErrNoKind, fact.CauseNoKind},
		"no match in discovery":                {&meta.NoKindMatchError{GroupKind: schema.GroupKind{Kind: "X"}}, fact.CauseNoKind},
		"a path that is not served":            {apierrors.NewGenericServerResponse(404, "GET", jobs, "run", "404 page not found", 0, true), fact.CauseNoKind},
		"a 404 without a name":                 {&apierrors.StatusError{ErrStatus: metav1.Status{Code: 404, Reason: metav1.StatusReasonNotFound}}, fact.CauseNoKind},
		"an object that does not exist":        {apierrors.NewNotFound(jobs, "run"), fact.CauseServer}, // Absent before it comes here
		"the own deadline":                     {context.DeadlineExceeded, fact.CauseTimeout},
		"the own deadline, from the transport": {get(context.DeadlineExceeded), fact.CauseTimeout},
		"cancelled":                            {get(context.Canceled), fact.CauseTimeout},
		"the server's time-out":                {apierrors.NewTimeoutError("slow", 1), fact.CauseTimeout},
		"the server's time-out, to be retried": {apierrors.NewServerTimeout(jobs, "get", 1), fact.CauseTimeout},
		"a dial that timed out":                {get(&net.OpError{Op: "dial", Err: timeoutError{}}), fact.CauseTimeout},
		"a connection refused":                 {get(&net.OpError{Op: "dial", Err: errors.New("connection refused")}), fact.CauseServer},
		"etcd has no leader":                   {apierrors.NewInternalError(errors.New("etcdserver: no leader")), fact.CauseServer},
		"too many requests":                    {apierrors.NewTooManyRequests("slow down", 1), fact.CauseServer},
		"unavailable":                          {apierrors.NewServiceUnavailable("starting"), fact.CauseServer},
		"anything else":                        {errors.New("x"), fact.CauseServer},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := CauseOf(c.err); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

type timeoutError struct{}

func (timeoutError) Error() string   { return "i/o timeout" }
func (timeoutError) Timeout() bool   { return true }
func (timeoutError) Temporary() bool { return true }

func configMap(i int) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: fmt.Sprintf("c-%d", i), UID: "x"}
}

func TestReferences(t *testing.T) {
	t.Parallel()
	node := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "run"}
	for name, c := range map[string]struct {
		namespace string
		refs      []metav1.OwnerReference
		want      []owner.ReferenceFact
		calls     []string
	}{
		"what exists, what does not, and what is not served": {
			"lab", []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "run"}, configMap(1), {APIVersion: "v7", Kind: "Nope", Name: "x"}, node},
			[]owner.ReferenceFact{
				{Index: 0, Scope: owner.ScopeNamespaced, Fact: owner.Fact{State: fact.Known, Objects: []owner.Object{job("run", "u")}}},
				{Index: 1, Scope: owner.ScopeNamespaced, Fact: owner.Fact{State: fact.Absent}},
				{Index: 2, Fact: owner.Fact{Cause: fact.CauseNoKind}},
				{Index: 3, Scope: owner.ScopeCluster, Fact: owner.Fact{State: fact.Known, Objects: []owner.Object{{APIVersion: "v1", Kind: "Node", Name: "run", UID: "n"}}}},
			},
			[]string{jobPath, "/api/v1/namespaces/lab/configmaps/c-1", nodesPath},
		},
		"O04: of a cluster-scoped object, a namespaced owner is absent without a look": {
			"", []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "run"}},
			[]owner.ReferenceFact{{Index: 0, Scope: owner.ScopeNamespaced, Fact: owner.Fact{State: fact.Absent}}},
			nil,
		},
		"an apiVersion that cannot be read is no kind": {
			"lab", []metav1.OwnerReference{{APIVersion: "a/b/c", Kind: "Job", Name: "run"}},
			[]owner.ReferenceFact{{Index: 0, Fact: owner.Fact{Cause: fact.CauseNoKind}}},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, map[string][]answer{
				jobPath:                                 {ok(object("run", "u"))},
				nodesPath:                               {ok(object("run", "n"))},
				"/api/v1/namespaces/lab/configmaps/c-1": {failure(404, metav1.StatusReasonNotFound, "c-1")},
			})
			if diff := cmp.Diff(c.want, s.reader(t).References(t.Context(), c.namespace, c.refs)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(c.calls, s.seen()); diff != "" {
				t.Errorf("calls (-want +got)\n%s", diff)
			}
		})
	}
}

func TestO15_OnlyTheFirstReferencesAreLookedUp(t *testing.T) {
	t.Parallel()
	answers := map[string][]answer{}
	var refs []metav1.OwnerReference
	for i := range 5000 {
		refs = append(refs, configMap(i))
		answers[fmt.Sprintf("/api/v1/namespaces/lab/configmaps/c-%d", i)] = []answer{ok(object(fmt.Sprintf("c-%d", i), "x"))}
	}
	s := serve(t, answers)
	if got := s.reader(t).References(t.Context(), "lab", refs); len(got) != 8 || len(s.seen()) != 8 {
		t.Errorf("%d facts, %d calls", len(got), len(s.seen()))
	}
}

func TestReferencesOfAForbiddenKindAreAskedForOnce(t *testing.T) {
	t.Parallel()
	s := serve(t, map[string][]answer{"/api/v1/namespaces/lab/configmaps/c-1": {failure(403, metav1.StatusReasonForbidden, "c-1")}})
	r := s.reader(t)
	first := r.References(t.Context(), "lab", []metav1.OwnerReference{configMap(1), configMap(2)})
	if diff := cmp.Diff([]owner.ReferenceFact{{Scope: owner.ScopeNamespaced, Fact: owner.Fact{Cause: fact.CauseForbidden}}}, first); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if again := r.References(t.Context(), "lab", []metav1.OwnerReference{configMap(3)}); len(again) > 0 || len(s.seen()) != 1 {
		t.Errorf("%v, calls %v", again, s.seen())
	}
}

func TestReferencesEndWithTheirContext(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := s.reader(t).References(ctx, "lab", []metav1.OwnerReference{configMap(1)}); len(got) > 0 || len(s.seen()) > 0 {
		t.Errorf("%v, calls %v", got, s.seen())
	}
}

// counted counts what is asked of a mapper, and fails with err where it is set.
type counted struct {
	meta.RESTMapper
	asked int
	err   error
}

func (c *counted) RESTMapping(gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	c.asked++
	if c.err != nil {
		return nil, c.err
	}
	return c.RESTMapper.RESTMapping(gk, versions...)
}

func TestResolve(t *testing.T) {
	t.Parallel()
	m := &counted{RESTMapper: kinds()}
	r := NewReader(nil, m)
	got, err := r.Resolve("batch/v1", "Job")
	if diff := cmp.Diff(builders.Jobs(), got); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
	if got, err = r.Resolve("v1", "Node"); err != nil || got.Namespaced || got.Group != "" || got.Resource != "nodes" {
		t.Errorf("%v %+v", err, got)
	}
	if _, err = r.Resolve("a/b/c", "Job"); !errors.Is(err, ErrNoKind) {
		t.Errorf("%v", err)
	}
}

func TestResolveRemembersWhatIsNotServed(t *testing.T) {
	t.Parallel()
	m := &counted{RESTMapper: kinds()}
	r := NewReader(nil, m)
	for range 3 {
		if _, err := r.Resolve("g/v1", "Nope"); !errors.Is(err, ErrNoKind) {
			t.Errorf("%v", err)
		}
	}
	if m.asked != 1 {
		t.Errorf("discovery was asked %d times", m.asked)
	}
	if _, err := r.Resolve("g/v2", "Nope"); !errors.Is(err, ErrNoKind) || m.asked != 2 {
		t.Errorf("another version is another question: %v, asked %d times", err, m.asked)
	}
	for i := range 3 * maxRemembered { // anybody can name any kind
		_, _ = r.Resolve("g/v1", fmt.Sprint("Kind", i))
	}
	if len(r.unserved) > maxRemembered {
		t.Errorf("%d kinds are remembered", len(r.unserved))
	}
}

func TestResolveDoesNotRememberWhatItCouldNotFindOut(t *testing.T) {
	t.Parallel()
	m := &counted{RESTMapper: kinds(), err: errors.New("connection refused")}
	r := NewReader(nil, m)
	if _, err := r.Resolve("batch/v1", "Job"); err == nil || errors.Is(err, ErrNoKind) {
		t.Errorf("%v", err)
	}
	m.err = nil
	if _, err := r.Resolve("batch/v1", "Job"); err != nil {
		t.Errorf("%v", err)
	}
}

func TestPauseEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	if !Pause(ctx) {
		t.Error("a pause with nothing in its way was cut short")
	}
	cancel()
	if Pause(ctx) {
		t.Error("a pause after the end")
	}
}

func TestMetadataIsAllThatIsAskedFor(t *testing.T) {
	t.Parallel()
	s := serve(t, map[string][]answer{jobPath: {ok(object("run", "u"))}})
	s.reader(t).Find(t.Context(), Query{Resource: builders.Jobs(), Namespace: "lab", Name: "run"})
	s.mu.Lock()
	defer s.mu.Unlock()
	if !strings.HasPrefix(s.accept, "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;") {
		t.Errorf("Accept: %s", s.accept)
	}
}
