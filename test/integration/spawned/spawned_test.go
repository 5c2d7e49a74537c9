package spawned

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/otf"
	"github.com/belay-dev/belay/test/integration/plane"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/client/failfast"
	"github.com/belay-dev/belay/webhook/client/spawn"
)

// rounds is how many runs are spawned, with and without belay in turns; at most so many
// at once.
const (
	rounds = 200
	atOnce = 6
)

// run is one spawn in the shape of OTF's: Secret, Job, the Job as the Secret's owner.
type run struct {
	secret *corev1.Secret
	job    *batchv1.Job
	result spawn.Result
	err    error
	failed atomic.Int32 // how often the Failed hook was called
}

func newRun(ns, id string) *run {
	name := spawn.Name("job", id)
	r := &run{secret: otf.Secret(ns, name, id, "t0ken"), job: otf.Job(ns, name, id)}
	nobody := "example.com/nobody"
	r.job.Spec.ManagedBy = &nobody
	return r
}

func (r *run) spawn(ctx context.Context, c client.Client) {
	o := spawn.Options{
		Backoff: wait.Backoff{Duration: 20 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 5, Cap: time.Second},
		Failed:  func(context.Context, error) { r.failed.Add(1) },
	}
	r.result, r.err = o.Do(ctx, c,
		spawn.Create(r.secret).Identity(r.secret.Labels["otf.ninja/job-id"]),
		spawn.Create(r.job).Identity(r.secret.Labels["otf.ninja/job-id"]).PointOfNoReturn(),
		spawn.Patch(func() (client.Object, client.Patch, error) {
			patch := fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"batch/v1","kind":"Job","name":%q,"uid":%q}]}}`, r.job.Name, r.job.UID)
			s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: r.secret.Namespace, Name: r.secret.Name}}
			return s, client.RawPatch("application/merge-patch+json", []byte(patch)), nil
		}),
	)
}

func start(ctx context.Context, t *testing.T) (*stack.Stack, *stack.Cutter, client.Client) {
	t.Helper()
	cutter, err := stack.NewCutter()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cutter.Close)
	s, err := stack.Start(ctx, stack.Options{Plane: plane.Options{EtcdProxy: cutter}, Webhooks: 1, Presets: []string{"otf"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	for _, wait := range []func(context.Context, string) error{s.WaitPolicy, s.WaitNamePolicy} {
		if err := wait(ctx, "otf"); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(failfast.Config(s.Plane.Config()), client.Options{Scheme: s.Client.Scheme(), Mapper: s.Client.RESTMapper()})
	if err != nil {
		t.Fatal(err)
	}
	return s, cutter, c
}

// TestEtcdCut: the answers of etcd are lost at a chosen moment, then at random ones.
func TestEtcdCut(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	defer cancel()
	s, cutter, c := start(ctx, t)
	for name, mode := range map[string]string{"with belay": v1alpha1.ModeEnforce, "without belay": ""} {
		t.Run(name, func(t *testing.T) {
			for _, resource := range []string{"secrets", "jobs"} {
				t.Run("after the commit of "+resource, func(t *testing.T) {
					ns := newNamespace(ctx, t, s, mode)
					before := len(cutter.Cuts())
					cutter.CutAfterCommit(1, stack.Under("/registry/"+resource+"/"+ns+"/"))
					defer cutter.Set(nil)
					r := newRun(ns, "job-Kx3")
					r.spawn(ctx, c)
					check(ctx, t, s, ns, []*run{r})
					if cuts := cutter.Cuts()[before:]; len(cuts) != 1 || cuts[0].Cut != stack.CutAfter {
						t.Errorf("cuts: %+v", cuts)
					}
					if len(r.result.Recovered) != 1 || !strings.Contains(r.result.Recovered[0], strings.TrimSuffix(resource, "s")) {
						t.Errorf("recovered %v", r.result.Recovered)
					}
				})
			}
		})
	}
	t.Run("200 rounds with random cuts", func(t *testing.T) {
		with, without := newNamespace(ctx, t, s, v1alpha1.ModeEnforce), newNamespace(ctx, t, s, "")
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		ours := func(w stack.EtcdWrite) bool {
			return strings.Contains(w.Key, "/"+with+"/") || strings.Contains(w.Key, "/"+without+"/")
		}
		before := len(cutter.Cuts())
		cutter.Set(stack.RandomCuts(seed, 0.25, ours))
		runs := map[string][]*run{}
		for i := range rounds {
			ns := with
			if i%2 == 1 {
				ns = without
			}
			runs[ns] = append(runs[ns], newRun(ns, fmt.Sprintf("job-%d-%x", i, rand.Uint32())))
		}
		work := make(chan *run)
		var wg sync.WaitGroup
		for range atOnce {
			wg.Go(func() {
				for r := range work {
					r.spawn(ctx, c)
				}
			})
		}
		began := time.Now()
		for i := range rounds / 2 {
			work <- runs[with][i]
			work <- runs[without][i]
		}
		close(work)
		wg.Wait()
		took := time.Since(began)
		cuts := cutter.Cuts()[before:]
		cutter.Set(nil)
		tries, recovered := 0, 0
		for ns, rs := range runs {
			check(ctx, t, s, ns, rs)
			for _, r := range rs {
				tries += r.result.Tries
				recovered += len(r.result.Recovered)
			}
		}
		after := 0
		for _, w := range cuts {
			if w.Cut == stack.CutAfter {
				after++
			}
		}
		if after < rounds/10 {
			t.Errorf("only %d cuts after a commit", after)
		}
		stack.Report(t, "spawned: %d runs, %d cuts of etcd, %d of them after the commit: %d API calls (%d without trouble), %d objects recovered, no orphan, no duplicate, %s",
			rounds, len(cuts), after, tries, 3*rounds, recovered, took.Round(time.Second))
	})
}

// check expects exactly one Secret and one Job for each run, the Job as the Secret's
// owner, and nothing else.
func check(ctx context.Context, t *testing.T, s *stack.Stack, ns string, runs []*run) {
	t.Helper()
	secrets, err := s.Kube.CoreV1().Secrets(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	jobs, err := s.Kube.BatchV1().Jobs(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(secrets.Items) != len(runs) || len(jobs.Items) != len(runs) {
		t.Errorf("%d secrets and %d jobs for %d runs", len(secrets.Items), len(jobs.Items), len(runs))
	}
	stored := map[string]*corev1.Secret{}
	for i := range secrets.Items {
		stored[secrets.Items[i].Name] = &secrets.Items[i]
	}
	for _, r := range runs {
		if r.err != nil || r.failed.Load() > 0 {
			t.Errorf("%s: %v; failed was called %d times", r.job.Name, r.err, r.failed.Load())
			continue
		}
		for _, w := range r.result.Warnings {
			t.Errorf("%s: %v", r.job.Name, w)
		}
		sec := stored[r.secret.Name]
		if sec == nil {
			t.Errorf("%s: no secret", r.job.Name)
			continue
		}
		if refs := sec.OwnerReferences; len(refs) != 1 || refs[0].UID != r.job.UID || r.job.UID == "" {
			t.Errorf("%s (uid %s): the secret is owned by %+v", r.job.Name, r.job.UID, refs)
		}
	}
	for _, j := range jobs.Items {
		if !containsJob(runs, j) {
			t.Errorf("job %s (uid %s) belongs to no run", j.Name, j.UID)
		}
	}
}

func containsJob(runs []*run, j batchv1.Job) bool {
	for _, r := range runs {
		if r.job.UID == j.UID {
			return true
		}
	}
	return false
}

func newNamespace(ctx context.Context, t *testing.T, s *stack.Stack, mode string) string {
	t.Helper()
	ns, err := s.NewNamespace(ctx, "spawned", mode)
	if err != nil {
		t.Fatal(err)
	}
	return ns
}
