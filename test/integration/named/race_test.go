package named

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

const (
	racers = 64
	// keys is how often the race is run, each on a name of its own.
	keys = 6
)

// 64 clients race on one key that a finished Job has, with two replicas of the
// webhook: exactly one 201, a correct answer for everyone else, one object, and one
// DELETE. They are ordinary clients, since administrators never queue in the API server.
func TestRace(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	labels := policy(ctx, t, shared, "race", nil)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	cfg := account(ctx, t, shared, ns, "racer", "create", "get", "delete")
	before := validated(ctx, t, shared)
	for i := range keys {
		name := fmt.Sprintf("same-%d", i)
		old := create(ctx, t, shared.Client, job(ns, name, "work", labels))
		fail(ctx, t, old)
		answers := race(ctx, t, cfg, func(int) *batchv1.Job { return job(ns, name, "work", labels) })
		won := 0
		for _, a := range answers {
			switch {
			case a.code == 201:
				won++
			case a.code == 409 && a.status.Reason == metav1.StatusReasonAlreadyExists:
				// belay's, or the storage's: of the same work, either is right.
			case a.code == 429 && a.status.Details.RetryAfterSeconds == 1:
			case a.putOff():
			default:
				t.Errorf("%s: answered %d %s: %s", name, a.code, a.status.Reason, a.status.Message)
			}
		}
		if won != 1 {
			t.Errorf("%s: %d were created", name, won)
		}
		if liveUID(ctx, t, ns, name) == old.UID {
			t.Errorf("%s: the finished job is still there", name)
		}
		eventuallyDeletes(ctx, t, ns, name, 1)
	}
	for name, n := range validated(ctx, t, shared) {
		if n == before[name] {
			t.Errorf("replica %s took no part", name)
		}
	}
}

// Two works race on one key, half of the clients each: whoever loses to the other work
// is never told AlreadyExists, which many clients take for success.
func TestRaceOfTwoWorks(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	labels := policy(ctx, t, shared, "race-two", func(s *v1alpha1.NamePolicySpec) { s.Racing = v1alpha1.RacingSerialize })
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	cfg := account(ctx, t, shared, ns, "racer", "create", "get", "delete")
	works := []string{"one", "two"}
	for i := range keys {
		name := fmt.Sprintf("two-%d", i)
		if i%2 == 0 { // on a free name, and on one that a finished Job has
			fail(ctx, t, create(ctx, t, shared.Client, job(ns, name, "one", labels)))
		}
		answers := race(ctx, t, cfg, func(i int) *batchv1.Job { return job(ns, name, works[i%2], labels) })
		live, err := shared.Kube.BatchV1().Jobs(ns).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		won := 0
		for i, a := range answers {
			same := works[i%2] == live.Annotations["work"]
			switch {
			case a.code == 201 && same:
				won++
			case a.code == 409 && a.status.Reason == metav1.StatusReasonAlreadyExists && same:
			case a.code == 409 && a.status.Reason == metav1.StatusReasonConflict && !same:
			case a.code == 429, a.putOff():
			default:
				t.Errorf("%s: work %q was answered %d %s where %q runs: %s", name, works[i%2], a.code, a.status.Reason, live.Annotations["work"], a.status.Message)
			}
		}
		if won != 1 {
			t.Errorf("%s: %d were created", name, won)
		}
	}
}

// putOff reports whether belay could not find out in time, as on a machine that has no time to
// spare: an answer that promises nothing, and asks to try again.
func (a answered) putOff() bool {
	return a.code == 503 && a.status.Reason == metav1.StatusReasonServiceUnavailable && a.status.Details != nil &&
		a.status.Details.RetryAfterSeconds == 1 && strings.Contains(a.status.Message, "did not answer in time")
}

// race sends all creates at once, once each.
func race(ctx context.Context, t *testing.T, cfg *rest.Config, of func(int) *batchv1.Job) []answered {
	t.Helper()
	answers := make([]answered, racers)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range racers {
		wg.Go(func() {
			j := of(i)
			<-start
			answers[i] = post(ctx, t, cfg, j)
		})
	}
	close(start)
	wg.Wait()
	return answers
}

// account makes a service account that may do these things with Jobs, and nothing else.
func account(ctx context.Context, t *testing.T, s *stack.Stack, ns, name string, verbs ...string) *rest.Config {
	t.Helper()
	meta := metav1.ObjectMeta{Name: name}
	if _, err := s.Kube.CoreV1().ServiceAccounts(ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	grant(ctx, t, s, ns, name, verbs...)
	cfg, err := s.Config(ctx, ns, name)
	if err != nil {
		t.Fatal(err)
	}
	// RBAC is read from caches of the API server.
	eventually(ctx, t, "the rights of "+name, func() error {
		for _, v := range verbs {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User:               "system:serviceaccount:" + ns + ":" + name,
				ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: ns, Verb: v, Group: "batch", Resource: "jobs"},
			}}
			if err := s.Client.Create(ctx, review); err != nil {
				return err
			}
			if !review.Status.Allowed {
				return fmt.Errorf("it may not %s", v)
			}
		}
		return nil
	})
	return cfg
}

func grant(ctx context.Context, t *testing.T, s *stack.Stack, ns, name string, verbs ...string) {
	t.Helper()
	meta := metav1.ObjectMeta{Namespace: ns, Name: name}
	role := &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, Verbs: verbs}}}
	if err := s.Client.Create(ctx, role); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: ns, Name: name}},
	}
	if err := s.Client.Create(ctx, binding); err != nil {
		t.Fatal(err)
	}
}

// sent is one request of belay in the audit log.
type sent struct {
	Stage, Verb    string
	User           struct{ Username string }
	ObjectRef      struct{ Namespace, Name, Resource, Subresource string }
	ResponseStatus struct{ Code int }
}

// deletes are the DELETE requests that belay-webhook sent for an object, whatever
// became of them.
func deletes(ns, name string) ([]sent, error) {
	all, err := stack.AuditLog[sent](shared, ns)
	if err != nil {
		return nil, err
	}
	var out []sent
	for _, s := range all {
		if s.Stage == "ResponseComplete" && s.Verb == "delete" && s.User.Username == "system:serviceaccount:belay-system:belay-webhook" && s.ObjectRef.Namespace == ns && s.ObjectRef.Name == name {
			out = append(out, s)
		}
	}
	return out, nil
}

// eventuallyDeletes expects that belay sent so many DELETEs for an object, and no more.
// The audit log is written a moment late; a marker request is waited for.
func eventuallyDeletes(ctx context.Context, t *testing.T, ns, name string, want int) {
	t.Helper()
	eventually(ctx, t, "the deletes in the audit log", func() error {
		got, err := deletes(ns, name)
		if err != nil {
			return err
		}
		if len(got) > want {
			t.Fatalf("%s: belay sent %d deletes: %+v", name, len(got), got)
		}
		if len(got) < want {
			return fmt.Errorf("%d so far", len(got))
		}
		return nil
	})
}

// validated counts the reviews of the validating phase that each replica answered.
func validated(ctx context.Context, t *testing.T, s *stack.Stack) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for _, p := range s.Webhooks() {
		text, err := p.Metrics(ctx)
		if err != nil {
			t.Fatal(err)
		}
		out[p.Name] = 0
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "belay_admission_decisions_total{") && strings.Contains(line, `webhook="name"`) && strings.Contains(line, `phase="validate"`) {
				v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
				if err != nil {
					t.Fatal(err)
				}
				out[p.Name] += v
			}
		}
	}
	return out
}
