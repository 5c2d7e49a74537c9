package recovered

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// verdicts say for each row of upstream's matrix for which cause belay refuses a recovery;
// none where it lets it in.
var verdicts = map[string]string{
	"both pods are fit":                              "",
	"the main container's status comes first":        "",
	"a pod was replaced by another of its name":      "PodReplaced",
	"a pod is missing":                               "PodGone",
	"a pod is being deleted":                         "PodDeleting",
	"a pod is not ready":                             "PodNotReady",
	"a pod says nothing about being ready":           "PodNotReady",
	"a pod is ready and not running":                 "PodNotRunning",
	"a main container has ended well":                "MainNotRunning",
	"a main container has ended badly":               "MainNotRunning",
	"a main container waits":                         "MainNotRunning",
	"a main container still crashes":                 "MainNotRunning",
	"a sidecar crashes":                              "PodNotReady",
	"a main container has no status":                 "MainMissing",
	"no container has a status":                      "MainMissing",
	"a pod has no containers":                        "MainMissing",
	"a pod has failed for good":                      "PodNotRunning",
	"the record is empty":                            "NoRecord",
	"the record has an empty UID":                    "PodGone",
	"it failed while resuming":                       "Terminal",
	"another pod fails":                              "OtherPodFailing",
	"another pod crashes":                            "OtherPodFailing",
	"another pod fails and is being deleted":         "",
	"another pod is only not ready":                  "",
	"stricter: a main container is not ready itself": "PodNotReady",
	"stricter: a readiness gate has no condition":    "PodNotReady",
}

// gate is a readiness gate of the row that has one.
const gate = "example.com/gate"

// stricter are rows of our own: upstream's predicate holds in them, and belay's evidence
// wants more.
func stricter() []opensandbox.Case {
	return []opensandbox.Case{
		{Name: "stricter: a main container is not ready itself", Recovers: true, Pods: func(pods []*corev1.Pod) []*corev1.Pod {
			for i := range pods[1].Status.ContainerStatuses {
				if s := &pods[1].Status.ContainerStatuses[i]; s.Name == opensandbox.MainContainer {
					s.Ready = false
				}
			}
			return pods
		}},
		{Name: "stricter: a readiness gate has no condition", Recovers: true, Sandbox: func(b *opensandbox.BatchSandbox) {
			b.Spec.Template.Raw = []byte(strings.Replace(string(b.Spec.Template.Raw), `"spec":{`, `"spec":{"readinessGates":[{"conditionType":"`+gate+`"}],`, 1))
		}},
	}
}

// Upstream's own matrix of recoveries: belay lets a sandbox recover exactly where it does,
// whether its new controller writes that, with fresh or with old eyes, or an administrator,
// and brings the old controller's back in the same rows. Where belay is stricter the row
// says so.
func TestUpstreamsMatrix(t *testing.T) {
	t.Parallel()
	rows := append(opensandbox.Matrix(), stricter()...)
	for _, row := range rows {
		if _, ok := verdicts[row.Name]; !ok {
			t.Errorf("row %q has no verdict here", row.Name)
		}
	}
	if len(rows) != len(verdicts) {
		t.Errorf("there are %d rows, and verdicts on %d", len(rows), len(verdicts))
	}
	for name, g := range generations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := stack.TestContext(t)
			s := newSandboxes(ctx, t, shared, g, v1alpha1.ModeEnforce)
			stack.Cleanup(t, func(ctx context.Context) { _ = opensandbox.LetGo(ctx, s.admin, s.Namespace) })
			left := make([]*matrixRow, len(rows))
			t.Run("row", func(t *testing.T) {
				for i, row := range rows {
					t.Run(row.Name, func(t *testing.T) {
						t.Parallel()
						if row.OnlyInMemory {
							t.Skip("no API server has such objects; webhook/internal/recovery has the row for the pure function")
						}
						r := &matrixRow{Case: row, cause: verdicts[row.Name], name: fmt.Sprintf("row-%d", i), s: s.sub(t)}
						r.try(ctx)
						left[i] = r
					})
				}
			})
			s.driverHasLooked(ctx)
			for _, r := range left {
				if r == nil {
					continue
				}
				r.s.t = t
				t.Log(r.Name)
				if r.cause == "" {
					s.becomes(ctx, r.name, opensandbox.PhaseSucceed)
					s.wantRecord(ctx, r.name)
					continue
				}
				s.wantPhase(ctx, r.name, opensandbox.PhaseFailed)
				s.wantRecord(ctx, r.name, r.record...)
			}
		})
	}
}

// matrixRow is a row in a cluster.
type matrixRow struct {
	opensandbox.Case
	cause, name string
	s           *sandboxes
	record      []string
}

func (r *matrixRow) try(ctx context.Context) {
	s, t := r.s, r.s.t
	have := r.stage(ctx)
	was := s.get(ctx, r.name).Status
	if was.Phase != opensandbox.PhaseFailed && r.cause != "" {
		t.Fatalf("status %+v", was)
	}

	// An administrator, in four ways. What is let in is only tried, since each has to come
	// to a sandbox that is Failed.
	var dry []client.SubResourcePatchOption
	var dryPut []client.SubResourceUpdateOption
	if r.cause == "" {
		dry, dryPut = append(dry, client.DryRunAll), append(dryPut, client.DryRunAll)
	}
	writes := map[string]error{
		"a PUT without the record": s.put(ctx, r.name, func(b *opensandbox.BatchSandbox) {
			b.Status.Phase, b.Status.FailedPodUIDs = opensandbox.PhaseSucceed, nil
		}, dryPut...),
	}
	for _, status := range []string{`{"phase":"Succeed"}`, `{"phase":"Succeed","failedPodUIDs":null}`, `{"phase":"Pending","failedPodUIDs":null}`} {
		writes[status] = s.write(ctx, r.name, status, dry...)
	}
	for how, err := range writes {
		t.Log(how)
		if r.cause == "" {
			must(t, err)
			continue
		}
		refused(t, err, r.cause)
	}

	// Old never writes it. New does where its predicate holds, be it on a cache that is
	// behind.
	if s.Generation == opensandbox.New && r.cause != "" {
		s.see(have...)
		err := s.Reconcile(ctx, r.name)
		s.Thaw()
		if r.Pods != nil || r.Recovers {
			refused(t, err, r.cause)
		} else {
			must(t, err)
		}
	}
	if err := s.Reconcile(ctx, r.name); r.Recovers && r.cause != "" && s.Generation == opensandbox.New {
		refused(t, err, r.cause)
	} else {
		must(t, err)
	}
	if s.Generation == opensandbox.New && r.cause == "" {
		s.wantPhase(ctx, r.name, opensandbox.PhaseSucceed)
		s.wantRecord(ctx, r.name)
	}
}

// stage makes a sandbox fail and brings its Pods to where the row has them. It returns the
// two that it failed by.
func (r *matrixRow) stage(ctx context.Context) []*corev1.Pod {
	s, t := r.s, r.s.t
	t.Helper()
	b := opensandbox.Sandbox(s.Namespace, r.name, 2)
	b.Spec.Template = opensandbox.Template(corev1.RestartPolicyAlways, opensandbox.MainContainer, opensandbox.Sidecar)
	empty := false
	if r.Sandbox != nil {
		changed := b.DeepCopy()
		changed.Status.FailedPodUIDs = []string{"first", "second"}
		r.Sandbox(changed)
		empty = changed.Status.FailedPodUIDs == nil
		b.Spec = changed.Spec
	}
	have := s.begin(ctx, b)
	if empty {
		// It fails while its Pods do not: nothing is recorded.
		must(t, s.write(ctx, r.name, `{"phase":"Failed"}`))
		s.wantRecord(ctx, r.name)
		return have
	}
	for _, p := range have {
		must(t, opensandbox.Crash(ctx, s.admin, p, "CrashLoopBackOff"))
	}
	must(t, s.Reconcile(ctx, r.name))
	s.wantPhase(ctx, r.name, opensandbox.PhaseFailed)
	r.record = uids(have...)
	s.wantRecord(ctx, r.name, r.record...)
	if r.Sandbox != nil {
		must(t, s.put(ctx, r.name, r.Sandbox))
		r.record = s.recordOf(ctx, r.name)
	}
	var want []*corev1.Pod
	for _, p := range have {
		p = p.DeepCopy()
		opensandbox.SetReady(p)
		want = append(want, p)
	}
	if r.Pods != nil {
		want = r.Pods(want)
	}
	// The last one first, so that the sandbox is never fit on the way to a row in which it
	// is not: belay would bring it back.
	slices.Reverse(want)
	must(t, opensandbox.Play(ctx, s.admin, have, want))
	return have
}

// From each of upstream's phases: what it takes to be Failed from there, what is recorded
// then, and whether that ever recovers.
func TestPhases(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	controllers := map[string]*sandboxes{}
	for name, g := range generations {
		controllers[name] = newSandboxes(ctx, t, shared, g, v1alpha1.ModeEnforce)
	}
	controllers["administrator"] = controllers["new controller"]
	type outcome struct {
		phase  string
		record bool
		// cause is why a recovery is refused when the Pod is ready again; none where it is let
		// in.
		cause string
	}
	stays := func(phase string) outcome { return outcome{phase: phase} }
	recorded := outcome{phase: opensandbox.PhaseFailed, record: true}
	// reach brings a sandbox of one Pod to a phase.
	reach := map[string]func(context.Context, *sandboxes, string){
		"": func(ctx context.Context, s *sandboxes, box string) {
			must(s.t, s.admin.Create(ctx, opensandbox.Sandbox(s.Namespace, box, 1)))
			must(s.t, s.Scale(ctx, box))
		},
		opensandbox.PhasePending: func(ctx context.Context, s *sandboxes, box string) {
			must(s.t, s.admin.Create(ctx, opensandbox.Sandbox(s.Namespace, box, 1)))
			must(s.t, s.Scale(ctx, box))
			must(s.t, s.Reconcile(ctx, box))
		},
		opensandbox.PhaseSucceed: func(ctx context.Context, s *sandboxes, box string) { s.start(ctx, box, 1) },
		opensandbox.PhasePausing: func(ctx context.Context, s *sandboxes, box string) {
			s.start(ctx, box, 1)
			s.want(ctx, box, true)
			must(s.t, s.Pause(ctx, box))
		},
		opensandbox.PhasePaused: func(ctx context.Context, s *sandboxes, box string) {
			s.start(ctx, box, 1)
			s.paused(ctx, box)
		},
		opensandbox.PhaseResuming: func(ctx context.Context, s *sandboxes, box string) {
			s.start(ctx, box, 1)
			s.paused(ctx, box)
			s.want(ctx, box, false)
			must(s.t, s.Resume(ctx, box))
			must(s.t, s.Scale(ctx, box))
		},
	}
	// A Pod that has failed, New's controller with its two detectors; a Pod that crashes,
	// and Old's with its one; an administrator, who lists nothing.
	for phase, outcomes := range map[string][3]outcome{
		"":                       {recorded, recorded, recorded},
		opensandbox.PhasePending: {recorded, recorded, recorded},
		opensandbox.PhaseSucceed: {recorded, recorded, recorded},
		opensandbox.PhasePausing: {stays(opensandbox.PhasePausing), stays(opensandbox.PhasePausing), recorded},
		opensandbox.PhasePaused:  {stays(opensandbox.PhasePaused), stays(opensandbox.PhasePaused), {phase: opensandbox.PhaseFailed, cause: "NoRecord"}},
		opensandbox.PhaseResuming: {
			{phase: opensandbox.PhaseFailed, cause: "Terminal"}, {phase: opensandbox.PhaseFailed, cause: "Terminal"},
			{phase: opensandbox.PhaseFailed, cause: "NoRecord"},
		},
	} {
		for i, who := range []string{"new controller", "old controller", "administrator"} {
			name := phase
			if name == "" {
				name = "no phase"
			}
			t.Run(name+", "+who, func(t *testing.T) {
				t.Parallel()
				s, box := controllers[who].sub(t), strings.ToLower("box"+phase+"-"+who[:3])
				reach[phase](ctx, s, box)
				s.wantPhase(ctx, box, phase)
				pods := s.pods(ctx, box)
				for _, p := range pods {
					if who == "new controller" {
						must(t, opensandbox.Fail(ctx, s.admin, p))
					} else {
						must(t, opensandbox.Crash(ctx, s.admin, p, "CrashLoopBackOff"))
					}
				}
				if who == "administrator" {
					must(t, s.write(ctx, box, counted(`"phase":"Failed"`)))
				} else {
					must(t, s.Reconcile(ctx, box))
				}
				want := outcomes[i]
				s.wantPhase(ctx, box, want.phase)
				if !want.record {
					s.wantRecord(ctx, box)
				} else {
					s.wantRecord(ctx, box, uids(pods...)...)
				}
				for _, p := range pods {
					must(t, opensandbox.Ready(ctx, s.admin, p))
				}
				err := s.write(ctx, box, `{"phase":"Succeed"}`, client.DryRunAll)
				if want.cause != "" {
					refused(t, err, want.cause)
				} else {
					must(t, err)
				}
			})
		}
	}
}

// counted is a status with the counters that the schema wants.
func counted(fields string) string {
	for _, c := range []string{"replicas", "allocated", "ready", "taskRunning", "taskSucceed", "taskFailed", "taskPending", "taskUnknown"} {
		fields += fmt.Sprintf(",%q:0", c)
	}
	return "{" + fields + "}"
}

// Upstream's sequence of the records of one object over time: none, two Pods, none,
// another one, none. In the end it is an administrator who clears it, with a list that is
// empty.
func TestOneSandboxOverTime(t *testing.T) {
	t.Parallel()
	for name, g := range generations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := stack.TestContext(t)
			s := newSandboxes(ctx, t, shared, g, v1alpha1.ModeEnforce)
			pods := s.start(ctx, "box", 3)
			s.wantNoField(ctx, "box")
			fail := func(pods ...*corev1.Pod) {
				t.Helper()
				for _, p := range pods {
					must(t, opensandbox.Crash(ctx, s.admin, p, "CrashLoopBackOff"))
				}
				must(t, s.Reconcile(ctx, "box"))
				s.wantPhase(ctx, "box", opensandbox.PhaseFailed)
				s.wantRecord(ctx, "box", uids(pods...)...)
			}
			fail(pods[0], pods[1])
			must(t, opensandbox.Ready(ctx, s.admin, pods[0]))
			must(t, s.Reconcile(ctx, "box"))
			s.wantPhase(ctx, "box", opensandbox.PhaseFailed)
			s.wantRecord(ctx, "box", uids(pods[0], pods[1])...)
			must(t, opensandbox.Ready(ctx, s.admin, pods[1]))
			must(t, s.Reconcile(ctx, "box"))
			s.becomes(ctx, "box", opensandbox.PhaseSucceed)
			s.wantNoField(ctx, "box")

			fail(pods[2])
			// What was recorded the last time is over: one of them may even go.
			must(t, s.admin.Delete(ctx, pods[0], client.GracePeriodSeconds(0)))
			must(t, opensandbox.Ready(ctx, s.admin, pods[2]))
			must(t, s.write(ctx, "box", `{"phase":"Succeed","failedPodUIDs":[]}`))
			s.wantPhase(ctx, "box", opensandbox.PhaseSucceed)
			s.wantRecord(ctx, "box")
		})
	}
}
