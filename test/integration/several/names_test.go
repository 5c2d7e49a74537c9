package several

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// racersEach is how many clients race through each API server, half of them for each work.
const racersEach = 4

// Two works race for one name through two API servers: on a free name, on one that a finished
// Job has, on one whose Job is deleted meanwhile, and where B is behind. One of them gets it,
// and who loses to the other work is told so: never AlreadyExists, which many clients take
// for success.
func TestTwoWorksRaceThroughTwoServers(t *testing.T) {
	ctx := stack.TestContext(t)
	labels := shared.TestNamePolicy(ctx, t, "several-serialize", func(s *v1alpha1.NamePolicySpec) { s.Racing = v1alpha1.RacingSerialize })
	ns := shared.TestNamespace(ctx, t, "several", v1alpha1.ModeEnforce)
	for _, kind := range []struct {
		name, prefix string
		rounds       int
		of           func(*batchv1.Job)
		// meanwhile happens to it while there is a race.
		meanwhile func(*batchv1.Job) error
	}{
		{"a free name", "free", 30, nil, nil},
		{"a finished Job", "finished", 15, func(j *batchv1.Job) { finish(ctx, t, shared.Client, j) }, nil},
		{"a Job that is deleted", "deleted", 10, func(j *batchv1.Job) {
			j.Finalizers = []string{"example.com/hold"}
			must(t, shared.Client.Update(ctx, j))
			must(t, shared.Client.Delete(ctx, j, client.PropagationPolicy(metav1.DeletePropagationBackground)))
		}, func(j *batchv1.Job) error {
			return shared.Client.Patch(ctx, j, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
		}},
	} {
		t.Run(kind.name, func(t *testing.T) {
			rounds(ctx, t, kind.rounds, func(round int) *contest {
				c := &contest{ns: ns, name: fmt.Sprintf("%s-%d", kind.prefix, round), labels: labels, serialized: true}
				if kind.of != nil {
					old := job(ns, c.name, "one", labels)
					must(t, shared.Client.Create(ctx, old))
					c.old = old.UID
					kind.of(old)
					if kind.meanwhile != nil {
						c.meanwhile = func() error { return kind.meanwhile(old) }
					}
				}
				return c
			})
		})
	}
	t.Run("B is behind", func(t *testing.T) {
		// Without a look at the Pods of a finished Job, which B would have to list: it lists
		// nothing while it does not know whether its caches are fresh; see below.
		labels := shared.TestNamePolicy(ctx, t, "several-behind", func(s *v1alpha1.NamePolicySpec) {
			s.Racing, s.WaitForPods = v1alpha1.RacingSerialize, new(false)
		})
		release := holdB(t)
		defer release()
		rounds(ctx, t, 10, func(round int) *contest {
			c := &contest{ns: ns, name: fmt.Sprintf("behind-%d", round), labels: labels, serialized: true, behind: true}
			if round%2 == 0 {
				old := job(ns, c.name, "one", labels)
				must(t, clientOf(t, serverA).Create(ctx, old))
				c.old = old.UID
				finish(ctx, t, clientOf(t, serverA), old)
			}
			return c
		})
	})
	t.Run("B is behind, and Pods must be looked for", func(t *testing.T) {
		old := job(ns, "pods-behind", "one", labels)
		must(t, shared.Client.Create(ctx, old))
		finish(ctx, t, shared.Client, old)
		release := holdB(t)
		defer release()
		// B has never heard of a Pod that still runs.
		pod := podOf(old)
		must(t, clientOf(t, serverA).Create(ctx, pod))
		// The replica of B cannot find it out, and says so. Nothing is deleted while the Pod runs,
		// and afterwards the name is had once.
		shared.Detach(shared.Webhooks()[0])
		defer shared.Attach()
		kubes, _ := both(t)
		put := 0
		for i := range 6 {
			switch a := post(ctx, kubes[i%2], job(ns, old.Name, "one", labels)); {
			case a.code == http.StatusServiceUnavailable && a.cause == "belay.dev/LookupFailed":
				put++
			case a.code == http.StatusTooManyRequests && strings.Contains(a.text, pod.Name):
			default:
				t.Errorf("answered %+v while a Pod runs", a)
			}
		}
		stack.Report(t, "several: of 6 creates on a finished Job while B was behind %d were put off with 503", put)
		live := func() *batchv1.Job {
			j := &batchv1.Job{}
			if err := shared.Client.Get(ctx, client.ObjectKeyFromObject(old), j); client.IgnoreNotFound(err) != nil {
				t.Fatal(err)
			}
			return j
		}
		if live().UID != old.UID {
			t.Error("it is gone, and a Pod of it runs")
		}
		must(t, clientOf(t, serverA).Delete(ctx, pod, client.GracePeriodSeconds(0)))
		release()
		stack.Eventually(ctx, t, "it is replaced when B knows", func() error {
			if a := post(ctx, kubes[serverB], job(ns, old.Name, "one", labels)); a.code == http.StatusCreated || live().UID != old.UID && live().UID != "" {
				return nil
			} else if a.code != http.StatusServiceUnavailable && a.code != http.StatusTooManyRequests {
				t.Fatalf("answered %+v", a)
			}
			return fmt.Errorf("it is still there")
		})
	})
}

// podOf is a Pod of a Job that nobody runs.
func podOf(j *batchv1.Job) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: j.Namespace, Name: j.Name + "-0", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(j, batchv1.SchemeGroupVersion.WithKind("Job"))},
		Labels: map[string]string{batchv1.JobNameLabel: j.Name, batchv1.ControllerUidLabel: string(j.UID)},
	}}
	p.Spec = *j.Spec.Template.Spec.DeepCopy()
	return p
}

// As above, with the storage as the only judge: one of them gets the name, and all others are
// told that it is taken.
func TestStorageDecidesBetweenTwoServers(t *testing.T) {
	ctx := stack.TestContext(t)
	labels := shared.TestNamePolicy(ctx, t, "several-storage", func(*v1alpha1.NamePolicySpec) {})
	ns := shared.TestNamespace(ctx, t, "several", v1alpha1.ModeEnforce)
	rounds(ctx, t, 30, func(round int) *contest {
		c := &contest{ns: ns, name: fmt.Sprintf("storage-%d", round), labels: labels}
		if round%2 == 0 {
			old := job(ns, c.name, "one", labels)
			must(t, shared.Client.Create(ctx, old))
			c.old = old.UID
			finish(ctx, t, shared.Client, old)
		}
		return c
	})
}

func clientOf(t testing.TB, server int) client.Client {
	t.Helper()
	c, err := shared.ClientOf(server)
	must(t, err)
	return c
}

// contest is one name that is raced for.
type contest struct {
	ns, name string
	labels   map[string]string
	// old is the UID of the Job that had the name; empty for none.
	old types.UID
	// meanwhile happens in the race, once somebody is answered; nil for nothing.
	meanwhile func() error
	// serialized: nobody is told that other work exists already.
	serialized bool
	// behind: some things cannot be found out in time, and are to be asked for again.
	behind bool
}

// rounds races so many times, and reports who won and how the others were answered.
func rounds(ctx context.Context, t *testing.T, n int, begin func(round int) *contest) {
	t.Helper()
	kubes, _ := both(t)
	wins := [2]int{}
	answers := map[string]int{}
	for round := range n {
		c := begin(round)
		var mu sync.Mutex
		var won []answer
		works := []string{"one", "two"}
		winner := ""
		all := map[string][]answer{}
		start, answered := make(chan struct{}), make(chan struct{})
		first := sync.OnceFunc(func() { close(answered) })
		var wg sync.WaitGroup
		for server := range kubes {
			for i := range racersEach {
				work := works[i%2]
				wg.Go(func() {
					<-start
					a := post(ctx, kubes[server], job(c.ns, c.name, work, c.labels))
					first()
					mu.Lock()
					defer mu.Unlock()
					if a.code == http.StatusCreated {
						won, winner = append(won, a), work
						wins[server]++
						return
					}
					all[work] = append(all[work], a)
				})
			}
		}
		if c.meanwhile != nil {
			wg.Go(func() {
				<-answered
				if err := c.meanwhile(); err != nil {
					t.Errorf("%s: %v", c.name, err)
				}
			})
		}
		close(start)
		wg.Wait()
		// Nobody wins while the old one is on its way; then all are told to wait.
		deadline := time.Now().Add(stack.Bound)
		for len(won) == 0 && time.Now().Before(deadline) {
			a := post(ctx, kubes[round%2], job(c.ns, c.name, "one", c.labels))
			wait := a.code == http.StatusTooManyRequests || c.behind && a.code == http.StatusServiceUnavailable
			if a.code == http.StatusCreated {
				won, winner = append(won, a), "one"
			} else if !wait {
				t.Errorf("%s: answered %+v where nobody has the name", c.name, a)
				break
			}
		}
		if len(won) != 1 {
			t.Errorf("%s: %d creates succeeded", c.name, len(won))
			continue
		}
		live := &batchv1.Job{}
		must(t, shared.Client.Get(ctx, client.ObjectKey{Namespace: c.ns, Name: c.name}, live))
		if live.UID != won[0].made.UID || live.UID == c.old || live.Annotations["work"] != winner {
			t.Errorf("%s: the job of work %q is there, uid %s; %q was told that it won, uid %s", c.name, live.Annotations["work"], live.UID, winner, won[0].made.UID)
		}
		for work, losers := range all {
			for _, a := range losers {
				answers[fmt.Sprintf("%d %s", a.code, a.reason)]++
				if !c.right(a, work == winner) {
					t.Errorf("%s: work %q was answered %d %s %q while %q won: %s", c.name, work, a.code, a.reason, a.cause, winner, a.text)
				}
			}
		}
	}
	line := ""
	for _, k := range slices.Sorted(maps.Keys(answers)) {
		line += fmt.Sprintf(", %s: %d", k, answers[k])
	}
	stack.Report(t, "several: %s: %d rounds of %d creates through two API servers; won through A %d, through B %d%s", t.Name(), n, 2*racersEach, wins[serverA], wins[serverB], line)
}

// right reports whether a loser was answered as README says.
func (c *contest) right(a answer, same bool) bool {
	switch {
	case strings.Contains(a.text, "object is being deleted"):
		return false // the storage's words, where belay is to have said that it is to be waited for
	case c.behind && a.code == http.StatusServiceUnavailable:
		return a.cause == "belay.dev/LookupFailed"
	case a.code == http.StatusTooManyRequests:
		return true // the old one is on its way, or another create
	case a.code != http.StatusConflict:
		return false
	case same:
		return a.reason == metav1.StatusReasonAlreadyExists
	case c.serialized:
		return a.reason == metav1.StatusReasonConflict && a.cause == v1alpha1.CauseOtherWork
	default: // the storage's answer does not tell works apart
		return a.reason == metav1.StatusReasonAlreadyExists || a.reason == metav1.StatusReasonConflict
	}
}
