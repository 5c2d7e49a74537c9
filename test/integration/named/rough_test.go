package named

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// trouble is what goes wrong between belay and the API server while a finished Job is
// to be replaced.
type trouble struct {
	fault func(*http.Request) *stack.Fault
	// code is what the create is answered at once; 0 is success.
	code int32
	says string
	// deletes is how many DELETEs belay may send, from the first create until it works.
	deletes int32
	// replaced says that the finished Job is gone after the first create.
	replaced bool
}

func onPath(method, part string, fault stack.Fault) func(*http.Request) *stack.Fault {
	return func(r *http.Request) *stack.Fault {
		if r.Method == method && strings.Contains(r.URL.Path, part) {
			return &fault
		}
		return nil
	}
}

func first(times int32, choose func(*http.Request) *stack.Fault) func(*http.Request) *stack.Fault {
	var n atomic.Int32
	return func(r *http.Request) *stack.Fault {
		if f := choose(r); f != nil && n.Add(1) <= times {
			return f
		}
		return nil
	}
}

// TestRough: what belay cannot find out or do in time is denied with a retry, and never
// ends in a deletion that nobody waits for.
func TestRough(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s := start(ctx, t, stack.Options{Webhooks: 1, FaultyWebhook: true, Presets: []string{"felis-restore"}})
	if _, err := s.Kube.RbacV1().ClusterRoles().Create(ctx, rights(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	labels := policy(ctx, t, s, "rough", nil)
	ns := namespace(ctx, t, s, v1alpha1.ModeEnforce)
	etcd := stack.Fault{Status: 500, Body: `{"kind":"Status","apiVersion":"v1","status":"Failure","code":500,"reason":"InternalError","message":"etcdserver: request timed out"}`}
	for name, c := range map[string]trouble{
		"the look fails": {
			fault: onPath(http.MethodGet, "/jobs/", etcd), code: 503, says: "could not find out whether", deletes: 1,
		},
		"the first look fails": {
			fault: first(1, onPath(http.MethodGet, "/jobs/", etcd)), deletes: 1, replaced: true,
		},
		"the look takes all the time": {
			fault: onPath(http.MethodGet, "/jobs/", stack.Fault{Delay: 30 * time.Second}), code: 503, says: "could not find out whether", deletes: 1,
		},
		"Pods cannot be listed": {
			fault: onPath(http.MethodGet, "/pods", etcd), code: 503, says: "could not find out whether Pods", deletes: 1,
		},
		"the right cannot be asked for": {
			fault: onPath(http.MethodPost, "/subjectaccessreviews", etcd), code: 503, says: "whether the requester may delete", deletes: 1,
		},
		"no turn can be taken": {
			fault: onPath(http.MethodPost, "/leases", etcd), code: 429, says: "is being replaced", deletes: 1,
		},
		"hardly any time is left to delete": {
			// 4 s are for the decision; the list of Pods takes nearly all of them.
			fault: first(1, onPath(http.MethodGet, "/pods", stack.Fault{Delay: 2300 * time.Millisecond})), deletes: 1, replaced: true,
		},
		"the answer to the DELETE is lost": {
			fault: first(1, onPath(http.MethodDelete, "/jobs/", stack.Fault{Drop: true})), deletes: 1, replaced: true,
		},
		"the DELETE fails": {
			fault: first(1, onPath(http.MethodDelete, "/jobs/", etcd)), code: 429, says: "is being replaced", deletes: 2,
		},
		"the DELETE takes all the time": {
			fault: first(1, onPath(http.MethodDelete, "/jobs/", stack.Fault{Delay: 30 * time.Second})), code: 429, says: "is being replaced", deletes: 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			key := "rough-" + strings.ReplaceAll(strings.ToLower(name), " ", "-")
			j := job(ns, key, "one", labels)
			if err := s.Client.Create(ctx, j); err != nil {
				t.Fatal(err)
			}
			setOn(ctx, t, s, j, batchv1.JobFailureTarget, batchv1.JobFailed)
			var deletes atomic.Int32
			s.WebhookFaults.Set(func(r *http.Request) *stack.Fault {
				if r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "/jobs/"+key) {
					deletes.Add(1)
				}
				return c.fault(r)
			})
			defer s.WebhookFaults.Set(nil)
			began := time.Now()
			a := post(ctx, t, s.Plane.Config(), job(ns, key, "two", labels))
			if a.status.Code != c.code {
				t.Errorf("answered %d: %s", a.status.Code, a.status.Message)
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("answered after %s", took)
			}
			says(t, a.status.Message, c.says)
			live, err := s.Kube.BatchV1().Jobs(ns).Get(ctx, key, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if (live.UID != j.UID) != c.replaced {
				t.Errorf("replaced: %t", live.UID != j.UID)
			}
			s.WebhookFaults.Set(func(r *http.Request) *stack.Fault {
				if r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "/jobs/"+key) {
					deletes.Add(1)
				}
				return nil
			})
			if !c.replaced { // the trouble is over: client-go's own retries are enough
				if err := s.Client.Create(ctx, job(ns, key, "two", labels)); err != nil {
					// After a DELETE whose fate is unknown nobody sends another one for ten seconds.
					eventually(ctx, t, "the create goes through", func() error { return s.Client.Create(ctx, job(ns, key, "two", labels)) })
				}
			}
			if n := deletes.Load(); n > c.deletes {
				t.Errorf("%d deletes were sent", n)
			}
		})
	}
	t.Run("belay is away", func(t *testing.T) { belayIsAway(t, s) })
	t.Run("a policy that is deleted lets go", func(t *testing.T) { deletedPolicy(t, s) })
	t.Run("a webhook starts where the CRD is missing", func(t *testing.T) { withoutCRD(t, s) }) // last: it takes CRDs away, and ends the replicas that were there
}

// withoutCRD: images may be rolled out before the CRDs, or at the same time. A replica that starts
// then is ready, goes on serving owners, and serves names when their CRD is there.
func withoutCRD(t *testing.T, s *stack.Stack) {
	ctx := testContext(t)
	crds := s.Dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	var taken []*unstructured.Unstructured
	for _, name := range []string{"namepolicies.belay.dev", "recoverypolicies.belay.dev"} {
		crd, err := crds.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, crd)
		if err := crds.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(ctx, t, "the CRD is gone", func() error {
			_, err := crds.Get(ctx, name, metav1.GetOptions{})
			return mustBeNotFound(err)
		})
	}
	before := s.Webhooks()
	w, err := s.StartWebhook(ctx)
	if err != nil {
		t.Fatal(err)
	}
	// Three ask: for what is deleted of both, and for the Pods that RecoveryPolicies select.
	counts := func(line string) error {
		if n := strings.Count(w.Tail(1000), `"`+line); n != 3 {
			return fmt.Errorf("%q is in the log %d times:\n%s", line, n, w.Tail(5))
		}
		return nil
	}
	if err := counts("a kind of policy is not served"); err != nil {
		t.Error(err)
	}
	for _, p := range before {
		s.Detach(p)
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}
	for _, crd := range taken {
		crd.SetResourceVersion("")
		if _, err := crds.Create(ctx, crd, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(ctx, t, "both are watched", func() error { return counts("the kind of policy is served now") })
	labels := policy(ctx, t, s, "served-later", nil)
	ns := namespace(ctx, t, s, v1alpha1.ModeEnforce)
	create(ctx, t, s.Client, job(ns, "a", "one", labels))
	answerIs(t, raw(ctx, t, s, job(ns, "a", "one", labels)), 409, "AlreadyExists", v1alpha1.CauseSameWork)
}

// belayIsAway: Fail refuses what no rule could check, Ignore admits it.
func belayIsAway(t *testing.T, s *stack.Stack) {
	ctx := testContext(t)
	strict := policy(ctx, t, s, "strict", nil)
	lenient := policy(ctx, t, s, "lenient", func(p *v1alpha1.NamePolicySpec) { p.FailurePolicy = v1alpha1.FailureIgnore })
	ns := namespace(ctx, t, s, v1alpha1.ModeEnforce)
	s.Detach()
	defer s.Attach()
	a := post(ctx, t, s.Plane.Config(), job(ns, "a", "one", strict))
	if a.code != 500 {
		t.Errorf("answered %d: %s", a.code, a.status.Message)
	}
	says(t, a.status.Message, "strict.name.belay.dev")
	if err := s.Client.Create(ctx, job(ns, "b", "one", lenient)); err != nil {
		t.Errorf("failurePolicy Ignore: %v", err)
	}
}

// deletedPolicy: the calls that still come for a policy that was deleted are admitted,
// although its failurePolicy is Fail.
func deletedPolicy(t *testing.T, s *stack.Stack) {
	ctx := testContext(t)
	p := builders.MakeNamePolicy("short-lived").Spec(func(s *v1alpha1.NamePolicySpec) {
		s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"test": "short-lived"}}
	}).Obj()
	p.UID, p.Generation = "", 0
	if err := s.Client.Create(ctx, p); err != nil {
		t.Fatal(err)
	}
	if err := s.WaitNamePolicy(ctx, p.Name); err != nil {
		t.Fatal(err)
	}
	ns := namespace(ctx, t, s, v1alpha1.ModeEnforce)
	if err := s.Client.Delete(ctx, p); err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"test": "short-lived"}
	for i := range 20 {
		j := job(ns, "a-"+string(rune('a'+i)), "one", labels)
		if err := s.Client.Create(ctx, j); err != nil {
			t.Fatalf("create %d after the policy was deleted: %v", i, err)
		}
	}
}
