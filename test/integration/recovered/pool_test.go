package recovered

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// pool makes ready Pods of a pool; whose they are is said later.
func (s *sandboxes) pool(ctx context.Context, n int) []*corev1.Pod {
	s.t.Helper()
	var out []*corev1.Pod
	for range n {
		p := opensandbox.PoolPod(s.Namespace, "pool", "uid-of-the-pool")
		must(s.t, s.admin.Create(ctx, p))
		must(s.t, opensandbox.Ready(ctx, s.admin, p))
		out = append(out, p)
	}
	return out
}

// pooled is a sandbox that has these Pods of the pool, and is Succeed.
func (s *sandboxes) pooled(ctx context.Context, name string, pods ...*corev1.Pod) {
	s.t.Helper()
	must(s.t, s.admin.Create(ctx, opensandbox.Pooled(s.Namespace, name, "pool", int32(len(pods)))))
	must(s.t, s.Allocate(ctx, name, names(pods...)...))
	must(s.t, s.Reconcile(ctx, name))
	s.wantPhase(ctx, name, opensandbox.PhaseSucceed)
}

// crashed lets one Pod of a sandbox crash, by which it is Failed.
func (s *sandboxes) crashed(ctx context.Context, name string, pod *corev1.Pod) {
	s.t.Helper()
	must(s.t, opensandbox.Crash(ctx, s.admin, pod, "CrashLoopBackOff"))
	must(s.t, s.Reconcile(ctx, name))
	s.wantPhase(ctx, name, opensandbox.PhaseFailed)
	s.wantRecord(ctx, name, string(pod.UID))
}

// annotate is an administrator's patch of an annotation.
func (s *sandboxes) annotate(ctx context.Context, name, annotation, value string) {
	s.t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{annotation: value}}})
	must(s.t, err)
	b := &opensandbox.BatchSandbox{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: name}}
	must(s.t, s.admin.Patch(ctx, b, client.RawPatch(types.MergePatchType, patch)))
}

func names(pods ...*corev1.Pod) []string {
	out := []string{}
	for _, p := range pods {
		out = append(out, p.Name)
	}
	return out
}

func allocation(pods ...*corev1.Pod) string {
	raw, _ := json.Marshal(map[string]any{"pods": names(pods...)}) // strings always have one
	return string(raw)
}

// In pool mode a sandbox has the Pods that it was given and has not given back. Neither
// controller hears of their changes there, so that belay is who brings it back.
func TestPool(t *testing.T) {
	t.Parallel()
	for name, g := range generations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := stack.TestContext(t)
			s := newSandboxes(ctx, t, shared, g, v1alpha1.ModeEnforce)
			pods := s.pool(ctx, 4)
			mine, back, foreign := pods[:2], pods[2], pods[3]
			s.pooled(ctx, "box", append(mine[:2:2], back)...)
			must(t, s.Release(ctx, "box", back.Name))
			// What fails and is not its own changes nothing, neither now nor when it recovers.
			for _, p := range []*corev1.Pod{back, foreign} {
				must(t, opensandbox.Crash(ctx, s.admin, p, "CrashLoopBackOff"))
			}
			must(t, s.Reconcile(ctx, "box"))
			s.wantPhase(ctx, "box", opensandbox.PhaseSucceed)
			must(t, opensandbox.Crash(ctx, s.admin, mine[1], "CrashLoopBackOff"))
			// An administrator lists none: belay finds out which ones.
			must(t, s.write(ctx, "box", `{"phase":"Failed"}`))
			s.wantRecord(ctx, "box", string(mine[1].UID))
			refused(t, s.write(ctx, "box", `{"phase":"Succeed"}`), "MainNotRunning", mine[1].Name)
			// One of its own that is not recorded does.
			must(t, opensandbox.Crash(ctx, s.admin, mine[0], "ErrImagePull"))
			must(t, opensandbox.Ready(ctx, s.admin, mine[1]))
			refused(t, s.write(ctx, "box", `{"phase":"Succeed"}`), "OtherPodFailing", mine[0].Name)
			must(t, opensandbox.Ready(ctx, s.admin, mine[0]))
			s.becomes(ctx, "box", opensandbox.PhaseSucceed)
			s.wantNoField(ctx, "box")
		})
	}
}

// A Pod that goes back to the pool, and from there to another sandbox, keeps its UID. It is
// ready again there, and that is no recovery of the sandbox that it failed in.
func TestARecycledPodCountsForWhoHasIt(t *testing.T) {
	t.Parallel()
	for name, g := range generations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := stack.TestContext(t)
			s := newSandboxes(ctx, t, shared, g, v1alpha1.ModeEnforce)
			pods := s.pool(ctx, 3)
			failed, other, third := pods[0], pods[1], pods[2]
			s.pooled(ctx, "first", failed, other)
			s.pooled(ctx, "second", third)
			s.crashed(ctx, "first", failed)

			must(t, s.Release(ctx, "first", failed.Name))
			must(t, s.Allocate(ctx, "second", third.Name, failed.Name))
			must(t, opensandbox.Ready(ctx, s.admin, failed))
			must(t, s.Reconcile(ctx, "second"))
			refused(t, s.write(ctx, "first", `{"phase":"Succeed","failedPodUIDs":null}`), "PodReplaced", string(failed.UID), other.Name)
			if g == opensandbox.New {
				f := s.sub(t)
				f.see(failed, other) // with a cache that does not know of the release
				refused(t, f.Reconcile(ctx, "first"), "PodReplaced", string(failed.UID))
			}
			s.tells(ctx, "first", v1alpha1.ReasonNotRecoverable, "PodReplaced", string(failed.UID))
			s.wantPhase(ctx, "first", opensandbox.PhaseFailed)
			s.wantRecord(ctx, "first", string(failed.UID))

			// Where it is now, it counts.
			s.wantPhase(ctx, "second", opensandbox.PhaseSucceed)
			s.crashed(ctx, "second", failed)
			refused(t, s.write(ctx, "second", `{"phase":"Succeed"}`), "MainNotRunning", failed.Name)
			must(t, opensandbox.Ready(ctx, s.admin, failed))
			s.becomes(ctx, "second", opensandbox.PhaseSucceed)
			s.wantPhase(ctx, "first", opensandbox.PhaseFailed)

			// Given back to the first one, it proves what was recorded.
			must(t, s.Release(ctx, "second", failed.Name))
			must(t, s.Release(ctx, "first"))
			s.becomes(ctx, "first", opensandbox.PhaseSucceed)
		})
	}
}

// Annotations that do not tell which Pods there are: no recovery until they do, and no
// record from them. A Pod that a sandbox names and that is no pool's is none of its own.
func TestMalformedAllocations(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	s := newSandboxes(ctx, t, shared, opensandbox.New, v1alpha1.ModeEnforce)
	var mended sync.Map
	t.Run("case", func(t *testing.T) {
		for name, c := range map[string]struct {
			annotation, value string
			// cause is why a recovery is refused.
			cause string
		}{
			"no JSON":                         {opensandbox.AllocStatusAnnotation, `box-0,box-1`, "ExpressionFailed"},
			"cut off":                         {opensandbox.AllocStatusAnnotation, `{"pods":["box`, "ExpressionFailed"},
			"a list instead of an object":     {opensandbox.AllocStatusAnnotation, `["box-0"]`, "ExpressionFailed"},
			"a name instead of a list":        {opensandbox.AllocStatusAnnotation, `{"pods":"box-0"}`, "ExpressionFailed"},
			"numbers for names":               {opensandbox.AllocStatusAnnotation, `{"pods":[1,2]}`, "ExpressionFailed"},
			"what was given back is no JSON":  {opensandbox.AllocReleaseAnnotation, `{`, "ExpressionFailed"},
			"more names than anybody reads":   {opensandbox.AllocStatusAnnotation, allocation(many(257)...), "ExpressionFailed"},
			"no names":                        {opensandbox.AllocStatusAnnotation, `{}`, "PodGone"},
			"null":                            {opensandbox.AllocStatusAnnotation, `{"pods":null}`, "PodGone"},
			"empty":                           {opensandbox.AllocStatusAnnotation, ``, "PodGone"},
			"a pod that there is not":         {opensandbox.AllocStatusAnnotation, `{"pods":["nobody"]}`, "PodGone"},
			"a name that is a path elsewhere": {opensandbox.AllocStatusAnnotation, `{"pods":["../../../api/v1/pods","a/b?c"]}`, "PodGone"},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				box := "box-" + strings.NewReplacer(" ", "-").Replace(strings.ToLower(name))
				s := s.sub(t)
				pod := s.pool(ctx, 1)[0]
				s.pooled(ctx, box, pod)
				s.crashed(ctx, box, pod)
				s.annotate(ctx, box, c.annotation, c.value)
				must(t, opensandbox.Ready(ctx, s.admin, pod))
				err := s.write(ctx, box, `{"phase":"Succeed","failedPodUIDs":null}`)
				switch c.cause {
				case "ExpressionFailed":
					refused(t, err, c.cause, c.annotation)
					s.tells(ctx, box, v1alpha1.ReasonNotRecoverable, c.annotation)
				default:
					refused(t, err, c.cause, string(pod.UID))
				}
				s.wantPhase(ctx, box, opensandbox.PhaseFailed)
				s.wantRecord(ctx, box, string(pod.UID))

				// On the way into Failed nothing is recorded; it is no reason to refuse that.
				other := box + "-fails"
				second := s.pool(ctx, 1)[0]
				s.pooled(ctx, other, second)
				s.annotate(ctx, other, c.annotation, c.value)
				must(t, opensandbox.Crash(ctx, s.admin, second, "CrashLoopBackOff"))
				must(t, s.write(ctx, other, `{"phase":"Failed"}`))
				s.wantRecord(ctx, other)

				// Mended, it says which Pods there are.
				s.annotate(ctx, box, opensandbox.AllocReleaseAnnotation, "")
				s.annotate(ctx, box, opensandbox.AllocStatusAnnotation, allocation(pod))
				mended.Store(box, name)
			})
		}
		t.Run("a pod that is no pool's", func(t *testing.T) {
			t.Parallel()
			s := s.sub(t)
			stray := opensandbox.PoolPod(s.Namespace, "stray", "uid-of-the-stray")
			stray.Labels, stray.OwnerReferences = map[string]string{"app": "other"}, nil
			must(t, s.admin.Create(ctx, stray))
			must(t, opensandbox.Ready(ctx, s.admin, stray))
			mine := s.pool(ctx, 1)[0]
			s.pooled(ctx, "named", mine, stray)
			must(t, opensandbox.Crash(ctx, s.admin, stray, "CrashLoopBackOff"))
			must(t, opensandbox.Crash(ctx, s.admin, mine, "CrashLoopBackOff"))
			must(t, s.write(ctx, "named", `{"phase":"Failed"}`))
			s.wantRecord(ctx, "named", string(mine.UID))
		})
	})
	mended.Range(func(box, name any) bool {
		t.Log(name)
		s.becomes(ctx, box.(string), opensandbox.PhaseSucceed)
		return true
	})
}

// many are Pods that need not exist.
func many(n int) []*corev1.Pod {
	var out []*corev1.Pod
	for i := range n {
		out = append(out, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i)}})
	}
	return out
}

// What comes with a write of a status beside the status is not stored. It is shown to
// belay, and does not count: neither other Pods nor an allowance, nor a deletion.
func TestWhatComesWithAStatusDoesNotCount(t *testing.T) {
	t.Parallel()
	for name, g := range generations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := stack.TestContext(t)
			s := newSandboxes(ctx, t, shared, g, v1alpha1.ModeEnforce)
			pods := s.pool(ctx, 3)
			failed, other, foreign := pods[0], pods[1], pods[2]
			s.pooled(ctx, "box", failed, other)
			s.crashed(ctx, "box", failed)
			// Neither is what it failed by its own now, nor is all well with what is.
			must(t, s.Release(ctx, "box", failed.Name))
			must(t, opensandbox.Ready(ctx, s.admin, failed))
			must(t, opensandbox.Crash(ctx, s.admin, other, "CrashLoopBackOff"))
			before := s.get(ctx, "box")
			forged := func(forge func(*opensandbox.BatchSandbox)) func(*opensandbox.BatchSandbox) {
				return func(b *opensandbox.BatchSandbox) {
					b.Status.Phase, b.Status.FailedPodUIDs = opensandbox.PhaseSucceed, nil
					forge(b)
				}
			}
			for how, c := range map[string]struct {
				forge func(*opensandbox.BatchSandbox)
				cause string
			}{
				"nothing":               {func(*opensandbox.BatchSandbox) {}, "PodReplaced"},
				"it was not given back": {func(b *opensandbox.BatchSandbox) { delete(b.Annotations, opensandbox.AllocReleaseAnnotation) }, "PodReplaced"},
				"it is the only one": {func(b *opensandbox.BatchSandbox) {
					delete(b.Annotations, opensandbox.AllocReleaseAnnotation)
					b.Annotations[opensandbox.AllocStatusAnnotation] = allocation(failed)
				}, "PodReplaced"},
				"the one that fails is another's": {func(b *opensandbox.BatchSandbox) {
					b.Annotations[opensandbox.AllocReleaseAnnotation] = allocation(other)
				}, "OtherPodFailing"},
				"it is being deleted": {func(b *opensandbox.BatchSandbox) {
					b.DeletionTimestamp, b.DeletionGracePeriodSeconds = new(metav1.Now()), new(int64(0))
					b.Finalizers = []string{"example.com/hold"}
				}, "PodReplaced"},
				"it makes its own pods": {func(b *opensandbox.BatchSandbox) { b.Spec.PoolRef = "" }, "PodReplaced"},
				"it is another sandbox": {func(b *opensandbox.BatchSandbox) { b.Labels = map[string]string{"a": "b"}; b.Generation = 99 }, "PodReplaced"},
				"it is about to resume": {func(b *opensandbox.BatchSandbox) { b.Spec.Pause = new(false) }, "PodReplaced"},
			} {
				t.Log(how)
				refused(t, s.put(ctx, "box", forged(c.forge)), c.cause)
			}
			after := s.get(ctx, "box")
			if before.ResourceVersion != after.ResourceVersion {
				t.Errorf("it was written: %+v", after)
			}

			// Nor an allowance for one that has no record.
			s.pooled(ctx, "unrecorded", s.pool(ctx, 1)...)
			must(t, s.write(ctx, "unrecorded", `{"phase":"Failed"}`))
			refused(t, s.put(ctx, "unrecorded", forged(func(b *opensandbox.BatchSandbox) {
				b.Annotations[v1alpha1.AllowRecoveryAnnotation] = "true"
			})), "NoRecord")

			// Nor on the way into Failed: the Pods of others are not recorded.
			mine := s.pool(ctx, 1)[0]
			s.pooled(ctx, "fails", mine)
			for _, p := range []*corev1.Pod{mine, foreign} {
				must(t, opensandbox.Crash(ctx, s.admin, p, "CrashLoopBackOff"))
			}
			must(t, s.put(ctx, "fails", func(b *opensandbox.BatchSandbox) {
				b.Status.Phase = opensandbox.PhaseFailed
				b.Annotations[opensandbox.AllocStatusAnnotation] = allocation(foreign)
			}))
			s.wantRecord(ctx, "fails", string(mine.UID))
			if got := s.get(ctx, "fails").Annotations[opensandbox.AllocStatusAnnotation]; got != allocation(mine) {
				t.Errorf("%s is %q", opensandbox.AllocStatusAnnotation, got)
			}
		})
	}
}
