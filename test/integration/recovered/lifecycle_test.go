package recovered

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// The ways that upstream has out of Failed go on working, as far as they prove something:
// a resume makes new Pods, and a pause that fails is no recovery. Old's PUTs on the way drop
// the record, which is carried through.
func TestLifecycles(t *testing.T) {
	t.Parallel()
	ways := map[string]func(context.Context, *sandboxes, string){
		"Failed, Resuming, Succeed":                       resumedFromFailed,
		"Failed, Pausing, Paused, Resuming, Succeed":      pausedFromFailed,
		"a pause that fails, with the same pod":           pauseFails,
		"a pause that fails, with another pod":            pauseFailsWithAnother,
		"a pause that fails without a pod":                pauseFailsWithoutPods,
		"S26: Paused with ResumeFailed may try again":     resumeRolledBack,
		"three PUTs that complete a resume":               resumeCompleted,
		"S26: a terminal failure stays one in a pause":    pausedAfterResumeFailed,
		"no record stays none in a pause":                 pausedWithoutRecord,
		"a pod fails while a resume is on its way":        resumeInFlight,
		"the old controller's PUTs while it stays Failed": putsWhileFailed,
	}
	for name, g := range generations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := stack.TestContext(t)
			s := newSandboxes(ctx, t, shared, g, v1alpha1.ModeEnforce)
			for i, way := range slices.Sorted(maps.Keys(ways)) {
				t.Run(way, func(t *testing.T) {
					t.Parallel()
					ways[way](ctx, s.sub(t), fmt.Sprintf("box-%d", i))
				})
			}
		})
	}
}

func resumedFromFailed(ctx context.Context, s *sandboxes, box string) {
	old := s.failed(ctx, box, 1)[0]
	s.want(ctx, box, false)
	// The first of two PUTs, still Failed.
	must(s.t, s.ClearResumeFailed(ctx, box))
	s.wantPhase(ctx, box, opensandbox.PhaseFailed)
	s.wantRecord(ctx, box, string(old.UID))
	must(s.t, s.Resume(ctx, box))
	s.wantPhase(ctx, box, opensandbox.PhaseResuming)
	s.wantNoField(ctx, box)
	s.replace(ctx, box, old)
	must(s.t, s.Reconcile(ctx, box))
	s.wantPhase(ctx, box, opensandbox.PhaseSucceed)
	s.wantNoField(ctx, box)
}

func pausedFromFailed(ctx context.Context, s *sandboxes, box string) {
	old := s.failed(ctx, box, 1)[0]
	s.want(ctx, box, true)
	must(s.t, s.Pause(ctx, box))
	s.wantPhase(ctx, box, opensandbox.PhasePausing)
	s.wantRecord(ctx, box, string(old.UID))
	refused(s.t, s.write(ctx, box, `{"phase":"Succeed","failedPodUIDs":null}`), "MainNotRunning", string(old.UID))
	must(s.t, s.CompletePause(ctx, box))
	s.wantPhase(ctx, box, opensandbox.PhasePaused)
	s.wantRecord(ctx, box, string(old.UID))
	must(s.t, s.Reconcile(ctx, box))
	s.wantRecord(ctx, box, string(old.UID))
	refused(s.t, s.write(ctx, box, `{"phase":"Succeed","failedPodUIDs":null}`), "PodGone", string(old.UID))
	s.resumed(ctx, box)
}

// resumed resumes a sandbox that is Paused, with a new Pod.
func (s *sandboxes) resumed(ctx context.Context, name string) {
	s.t.Helper()
	s.want(ctx, name, false)
	must(s.t, s.Resume(ctx, name))
	s.wantPhase(ctx, name, opensandbox.PhaseResuming)
	s.wantNoField(ctx, name)
	must(s.t, s.Scale(ctx, name))
	for _, p := range s.pods(ctx, name) {
		must(s.t, opensandbox.Ready(ctx, s.admin, p))
	}
	must(s.t, s.Reconcile(ctx, name))
	s.wantPhase(ctx, name, opensandbox.PhaseSucceed)
	s.wantNoField(ctx, name)
	if s.has(ctx, name, opensandbox.ConditionResumeFailed) {
		s.t.Errorf("conditions %+v", s.get(ctx, name).Status.Conditions)
	}
}

// pauseFails is where belay is stricter than upstream, which is then Succeed whatever the
// Pods say.
func pauseFails(ctx context.Context, s *sandboxes, box string) {
	pod := s.failed(ctx, box, 1)[0]
	s.want(ctx, box, true)
	must(s.t, s.Pause(ctx, box))
	refused(s.t, s.FailPause(ctx, box), "MainNotRunning", string(pod.UID))
	s.wantPhase(ctx, box, opensandbox.PhasePausing)
	s.wantRecord(ctx, box, string(pod.UID))
	must(s.t, opensandbox.Ready(ctx, s.admin, pod))
	must(s.t, s.FailPause(ctx, box))
	s.wantPhase(ctx, box, opensandbox.PhaseSucceed)
	if !s.has(ctx, box, opensandbox.ConditionPauseFailed) {
		s.t.Errorf("conditions %+v", s.get(ctx, box).Status.Conditions)
	}
	s.wantNoField(ctx, box)
}

func pauseFailsWithAnother(ctx context.Context, s *sandboxes, box string) {
	pod := s.failed(ctx, box, 1)[0]
	s.want(ctx, box, true)
	must(s.t, s.Pause(ctx, box))
	s.replace(ctx, box, pod)
	refused(s.t, s.FailPause(ctx, box), "PodReplaced", string(pod.UID))
	s.wantPhase(ctx, box, opensandbox.PhasePausing)
	s.wantRecord(ctx, box, string(pod.UID))
}

func pauseFailsWithoutPods(ctx context.Context, s *sandboxes, box string) {
	pod := s.failed(ctx, box, 1)[0]
	s.want(ctx, box, true)
	must(s.t, s.Pause(ctx, box))
	must(s.t, s.admin.Delete(ctx, pod.DeepCopy(), client.GracePeriodSeconds(0)))
	must(s.t, s.FailPause(ctx, box))
	s.wantPhase(ctx, box, opensandbox.PhaseFailed)
	s.wantRecord(ctx, box, string(pod.UID))
	refused(s.t, s.write(ctx, box, `{"phase":"Succeed","failedPodUIDs":null}`), "PodGone", string(pod.UID))
}

func resumeRolledBack(ctx context.Context, s *sandboxes, box string) {
	s.start(ctx, box, 1)
	s.paused(ctx, box)
	s.want(ctx, box, false)
	must(s.t, s.Resume(ctx, box))
	must(s.t, s.RollBackResume(ctx, box))
	s.wantPhase(ctx, box, opensandbox.PhasePaused)
	if !s.has(ctx, box, opensandbox.ConditionResumeFailed) {
		s.t.Errorf("conditions %+v", s.get(ctx, box).Status.Conditions)
	}
	must(s.t, s.Reconcile(ctx, box))
	s.wantNoField(ctx, box)
	s.resumed(ctx, box)
}

func resumeCompleted(ctx context.Context, s *sandboxes, box string) {
	old := s.failed(ctx, box, 1)[0]
	s.want(ctx, box, false)
	must(s.t, s.Resume(ctx, box))
	s.replace(ctx, box, old)
	before := s.Updates
	must(s.t, s.CompleteResume(ctx, box))
	if got := s.Updates - before; got != 3 {
		s.t.Errorf("it took %d PUTs", got)
	}
	s.wantPhase(ctx, box, opensandbox.PhaseSucceed)
	s.wantNoField(ctx, box)
	for _, c := range []string{opensandbox.ConditionResumeFailed, opensandbox.ConditionPodFailed} {
		if s.has(ctx, box, c) {
			s.t.Errorf("it has %s", c)
		}
	}
}

// A terminal failure has no record, and in a pause its phase does not tell it either: the
// mark does.
func pausedAfterResumeFailed(ctx context.Context, s *sandboxes, box string) {
	pod := s.resumeFailed(ctx, box)
	must(s.t, opensandbox.Ready(ctx, s.admin, pod))
	s.want(ctx, box, true)
	must(s.t, s.Pause(ctx, box))
	s.wantPhase(ctx, box, opensandbox.PhasePausing)
	s.wantRecord(ctx, box, v1alpha1.NoPodUID)
	must(s.t, s.SetCondition(ctx, box, opensandbox.Condition{Type: opensandbox.ConditionResumeFailed, Status: "False"}))
	refused(s.t, s.FailPause(ctx, box), "NoRecord")
	refused(s.t, s.write(ctx, box, fmt.Sprintf(`{"phase":"Succeed","failedPodUIDs":[%q]}`, pod.UID)), "NoRecord")
	s.wantPhase(ctx, box, opensandbox.PhasePausing)
	must(s.t, s.CompletePause(ctx, box))
	s.wantRecord(ctx, box, v1alpha1.NoPodUID)
	s.resumed(ctx, box)
}

func pausedWithoutRecord(ctx context.Context, s *sandboxes, box string) {
	pod := s.start(ctx, box, 1)[0]
	must(s.t, s.write(ctx, box, `{"phase":"Failed"}`))
	s.wantRecord(ctx, box)
	refused(s.t, s.write(ctx, box, `{"phase":"Succeed"}`), "NoRecord")
	s.want(ctx, box, true)
	must(s.t, s.Pause(ctx, box))
	refused(s.t, s.FailPause(ctx, box), "NoRecord")
	s.wantRecord(ctx, box, v1alpha1.NoPodUID)
	// Nor when it fails anew: what it had failed by is not known.
	must(s.t, opensandbox.Crash(ctx, s.admin, pod, "CrashLoopBackOff"))
	must(s.t, s.write(ctx, box, `{"phase":"Failed"}`))
	must(s.t, opensandbox.Ready(ctx, s.admin, pod))
	refused(s.t, s.write(ctx, box, `{"phase":"Succeed","failedPodUIDs":null}`), "NoRecord")
	must(s.t, s.Pause(ctx, box))
	must(s.t, s.CompletePause(ctx, box))
	s.resumed(ctx, box)
}

// A resume is in flight when the user wants it and the controller has not acknowledged it:
// a Pod that fails then is about to be replaced, and proves nothing later.
func resumeInFlight(ctx context.Context, s *sandboxes, box string) {
	pod := s.start(ctx, box, 1)[0]
	s.want(ctx, box, false)
	must(s.t, opensandbox.Crash(ctx, s.admin, pod, "CrashLoopBackOff"))
	must(s.t, s.Reconcile(ctx, box))
	s.wantPhase(ctx, box, opensandbox.PhaseFailed)
	s.wantNoField(ctx, box)
	must(s.t, opensandbox.Ready(ctx, s.admin, pod))
	must(s.t, s.Reconcile(ctx, box))
	cause := "NoRecord"
	if s.Generation == opensandbox.New {
		cause = "Terminal" // it says so by the condition
	}
	refused(s.t, s.write(ctx, box, fmt.Sprintf(`{"phase":"Succeed","failedPodUIDs":[%q]}`, pod.UID)), cause)

	// Nor does it help that somebody lists it.
	listed := s.start(ctx, box+"-listed", 1)[0]
	s.want(ctx, box+"-listed", false)
	must(s.t, opensandbox.Crash(ctx, s.admin, listed, "CrashLoopBackOff"))
	must(s.t, s.write(ctx, box+"-listed", fmt.Sprintf(`{"phase":"Failed","failedPodUIDs":[%q]}`, listed.UID)))
	s.wantNoField(ctx, box+"-listed")
	must(s.t, opensandbox.Ready(ctx, s.admin, listed))
	refused(s.t, s.write(ctx, box+"-listed", `{"phase":"Succeed"}`), "NoRecord")
}

func putsWhileFailed(ctx context.Context, s *sandboxes, box string) {
	pods := s.failed(ctx, box, 2)
	for range 2 {
		must(s.t, s.SetCondition(ctx, box, opensandbox.Condition{Type: opensandbox.ConditionPauseFailed, Status: "True", Reason: "UnsupportedReplicas"}))
		must(s.t, s.SetCondition(ctx, box, opensandbox.Condition{Type: opensandbox.ConditionPauseFailed, Status: "False"}))
		// Two replicas cannot be paused: it stays as it is, and says so.
		must(s.t, s.Pause(ctx, box))
		must(s.t, s.Reconcile(ctx, box))
		s.wantPhase(ctx, box, opensandbox.PhaseFailed)
		s.wantRecord(ctx, box, uids(pods...)...)
	}
	for _, p := range pods {
		must(s.t, opensandbox.Ready(ctx, s.admin, p))
	}
	must(s.t, s.Reconcile(ctx, box))
	s.becomes(ctx, box, opensandbox.PhaseSucceed)
	s.wantNoField(ctx, box)
}

// A controller in its normal life, in which nothing fails: 500 writes of statuses, of both
// generations, by patches and PUTs. Each version that is stored is to the byte what it is
// without belay, and none of the writes is denied, warned about or even shown to it.
func TestAnOrdinaryLifeIsLeftAlone(t *testing.T) {
	t.Parallel()
	const steps = 50 // 500 writes
	ctx := stack.TestContext(t)
	type space struct {
		*versions
		namespace string
		writes    atomic.Int64
	}
	spaces := map[string]map[string]*space{}
	t.Run("lives", func(t *testing.T) {
		for _, mode := range []string{v1alpha1.ModeEnforce, ""} {
			spaces[mode] = map[string]*space{}
			for name, g := range generations {
				s, said := newSandboxes(ctx, t, shared, g, mode), &warnings{}
				s.listen(ctx, said)
				here := &space{namespace: s.Namespace, versions: s.watch(ctx)}
				spaces[mode][name] = here
				for i := range ordinaryLives {
					t.Run(fmt.Sprintf("%s, mode %q, %d", name, mode, i), func(t *testing.T) {
						t.Parallel()
						l := &life{sandboxes: s.sub(t), name: fmt.Sprintf("box-%d", i)}
						l.live(ctx, steps)
						here.writes.Add(int64(l.seen))
						if all := said.heard(); len(all) > 0 {
							t.Errorf("warnings %q", all)
						}
					})
				}
			}
		}
	})
	writes := int64(0)
	for name, with := range spaces[v1alpha1.ModeEnforce] {
		writes += with.writes.Load()
		if diff := cmp.Diff(spaces[""][name].wait(ctx, t), with.wait(ctx, t)); diff != "" {
			t.Errorf("what is stored under the %s (-without belay +with it):\n%s", name, diff)
		}
	}
	if writes < 2*ordinaryLives*steps {
		t.Errorf("only %d writes", writes)
	}

	// It was in force: of a write that concerns it there is a word in the audit log.
	s := newSandboxes(ctx, t, shared, opensandbox.New, v1alpha1.ModeEnforce)
	s.failed(ctx, "box", 1)
	stack.Eventually(ctx, t, "a guarded write in the audit log", func() error {
		if len(inAuditLog(t, s.Namespace, auditEntry.guarded)) == 0 {
			return errors.New("there is none")
		}
		return nil
	})
	for _, with := range spaces[v1alpha1.ModeEnforce] {
		if asked := inAuditLog(t, with.namespace, auditEntry.guarded); len(asked) > 0 {
			t.Errorf("belay was asked about %d ordinary writes, such as %+v", len(asked), asked[0])
		}
	}
}

// ordinaryLives are how many sandboxes of each generation live an ordinary life.
const ordinaryLives = 5

// life is a sandbox in its normal life.
type life struct {
	*sandboxes
	name string
	seen int
}

// lived is the annotation that ends what is compared.
const lived = "example.com/lived"

// live makes at least so many writes of the status.
func (l *life) live(ctx context.Context, writes int) {
	t := l.t
	must(t, l.admin.Create(ctx, opensandbox.Sandbox(l.Namespace, l.name, 1)))
	must(t, l.Scale(ctx, l.name))
	l.does(ctx, l.Reconcile)
	for round := 0; l.seen < writes; round++ {
		l.ready(ctx, true)
		l.does(ctx, l.Reconcile)
		l.ready(ctx, false)
		l.does(ctx, l.Reconcile)
		l.ready(ctx, true)
		l.does(ctx, l.Reconcile)
		l.does(ctx, l.Reconcile) // nothing to do
		l.writes(l.write(ctx, l.name, fmt.Sprintf(`{"taskRunning":%d}`, round+1)))
		patch := client.RawPatch(types.JSONPatchType, []byte(`[{"op":"replace","path":"/status/taskRunning","value":0}]`))
		l.writes(l.admin.Status().Patch(ctx, l.get(ctx, l.name), patch))
		l.writes(l.put(ctx, l.name, func(b *opensandbox.BatchSandbox) { b.Status.TaskSucceed++ }))

		l.want(ctx, l.name, true)
		l.does(ctx, l.Pause)
		if round%3 == 1 {
			l.does(ctx, l.FailPause)
			continue
		}
		l.does(ctx, l.CompletePause)
		l.does(ctx, l.Reconcile)
		l.want(ctx, l.name, false)
		l.does(ctx, l.Resume)
		if round%3 == 2 {
			l.does(ctx, l.RollBackResume)
			l.does(ctx, l.Resume)
		}
		must(t, l.Scale(ctx, l.name))
		l.ready(ctx, true)
		if round%2 == 0 {
			l.does(ctx, l.CompleteResume)
		}
		l.does(ctx, l.Reconcile)
	}
	l.annotate(ctx, l.name, lived, "yes")
}

// does lets the controller take a step.
func (l *life) does(ctx context.Context, step func(context.Context, string) error) {
	l.t.Helper()
	before := l.Patches + l.Updates
	must(l.t, step(ctx, l.name))
	l.seen += l.Patches + l.Updates - before
}

// writes is somebody else's write.
func (l *life) writes(err error) {
	l.t.Helper()
	must(l.t, err)
	l.seen++
}

// ready makes the Pod ready, or not; it does not fail.
func (l *life) ready(ctx context.Context, yes bool) {
	l.t.Helper()
	for _, p := range l.pods(ctx, l.name) {
		opensandbox.SetReady(p)
		if !yes {
			readinessLost(p)
		}
		must(l.t, opensandbox.SetStatus(ctx, l.admin, p))
	}
}

// readinessLost makes a Pod not ready, although its containers run.
func readinessLost(p *corev1.Pod) {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodReady || c.Type == corev1.ContainersReady {
			c.Status = corev1.ConditionFalse
		}
	}
}

// versions are all that the API server stores of the sandboxes of a namespace, by their
// names.
type versions struct {
	done chan struct{}
	of   map[string][]string
	err  error
}

// transition is what no two lives have in common.
var transition = regexp.MustCompile(`"lastTransitionTime":"[^"]*"`)

// watch keeps every version from now on, of each sandbox until it has lived, and until the
// context ends.
func (s *sandboxes) watch(ctx context.Context) *versions {
	s.t.Helper()
	w, err := s.s.Dynamic.Resource(opensandbox.Names{}.GVR(opensandbox.Version)).Namespace(s.Namespace).Watch(ctx, metav1.ListOptions{})
	must(s.t, err)
	v := &versions{done: make(chan struct{}), of: map[string][]string{}}
	lives := 0
	go func() {
		defer close(v.done)
		defer w.Stop()
		for e := range w.ResultChan() {
			u, ok := e.Object.(*unstructured.Unstructured)
			if !ok {
				v.err = fmt.Errorf("watching: %v", e.Object)
				return
			}
			if u.GetAnnotations()[lived] != "" {
				if lives++; lives == ordinaryLives {
					return
				}
				continue
			}
			raw, err := json.Marshal(map[string]any{"annotations": u.GetAnnotations(), "labels": u.GetLabels(), "spec": u.Object["spec"], "status": u.Object["status"]})
			if err != nil {
				v.err = err
				return
			}
			v.of[u.GetName()] = append(v.of[u.GetName()], transition.ReplaceAllString(string(raw), `"lastTransitionTime":"then"`))
		}
		v.err = errors.New("the watch has ended")
	}()
	return v
}

// wait waits for all sandboxes to have lived.
func (v *versions) wait(ctx context.Context, t *testing.T) map[string][]string {
	t.Helper()
	select {
	case <-v.done:
		must(t, v.err)
		return v.of
	case <-ctx.Done():
		t.Fatal(ctx.Err())
		return nil
	}
}

// listen keeps the warnings that both clients are sent.
func (s *sandboxes) listen(ctx context.Context, w *warnings) {
	s.t.Helper()
	own, err := s.s.Config(ctx, s.Namespace, opensandbox.Account)
	must(s.t, err)
	admin := s.s.Plane.Config()
	own.WarningHandler, admin.WarningHandler = w, w
	gvk := opensandbox.Names{}.GVK(opensandbox.Version)
	s.Client, err = opensandbox.NewClient(own, s.Generation, gvk)
	must(s.t, err)
	s.admin, err = opensandbox.NewClient(admin, opensandbox.New, gvk)
	must(s.t, err)
}

// warnings are those that clients are sent.
type warnings struct {
	mu  sync.Mutex
	all []string
}

// HandleWarningHeader keeps a warning.
func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, text)
}

func (w *warnings) heard() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.all)
}
