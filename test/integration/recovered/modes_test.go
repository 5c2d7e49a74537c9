package recovered

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// sideBySide is one write to a status that is made in three namespaces at once.
type sideBySide struct {
	// before makes the sandbox, and its Pod, what they are, while nobody guards.
	before func(ctx context.Context, s *boxes, box string, pod *corev1.Pod) error
	write  func(s *boxes, pod *corev1.Pod) []byte
	// cause is that of the denial where it is enforced; empty where the write is let in.
	cause string
	// tells is how the warning begins where only that is done; empty for no warning.
	tells string
}

func recordPatch(pod *corev1.Pod) string { return fmt.Sprintf(`"failedPodUIDs":[%q]`, pod.UID) }

// hasFailed makes a sandbox that has failed with a record of its Pod.
func hasFailed(ctx context.Context, s *boxes, box string, pod *corev1.Pod) error {
	if err := opensandbox.Crash(ctx, s.admin, pod, "CrashLoopBackOff"); err != nil {
		return err
	}
	return s.phase(ctx, box, opensandbox.PhaseFailed, recordPatch(pod))
}

// TestWarnTellsWhatEnforceDoes: in mode warn nothing is denied and nothing is changed, and the
// warning says in the same words what mode enforce does to the same write beside it.
func TestWarnTellsWhatEnforceDoes(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	n := ownKind(ctx, t, shared, "modes", opensandbox.CRDOptions{}, func(s *v1alpha1.RecoveryPolicySpec) { s.Recover = v1alpha1.RecoverNever })
	to := func(phase string, fields ...string) func(*boxes, *corev1.Pod) []byte {
		return func(*boxes, *corev1.Pod) []byte { return statusOfPhase(phase, fields...) }
	}
	const denies, does = "mode warn: would be denied with 403: ", "mode warn: enforce "
	rows := map[string]sideBySide{
		"an ordinary write": {write: to(opensandbox.PhaseSucceed, `"taskRunning":3`)},
		"a failure, and a Pod that crashes": {
			before: func(ctx context.Context, s *boxes, _ string, pod *corev1.Pod) error {
				return opensandbox.Crash(ctx, s.admin, pod, "CrashLoopBackOff")
			},
			write: to(opensandbox.PhaseFailed), tells: does + "sets the record of failed pods to ",
		},
		"a failure that names its Pod": {
			write: func(_ *boxes, pod *corev1.Pod) []byte {
				return statusOfPhase(opensandbox.PhaseFailed, recordPatch(pod))
			},
		},
		"a failure without a Pod that fails": {
			write: to(opensandbox.PhaseFailed), tells: `batchsandbox "a-failure-without-a-pod-that-fails" fails, and none of its pods is failing`,
		},
		"a recovery while the Pod crashes": {before: hasFailed, write: to(opensandbox.PhaseSucceed), cause: "MainNotRunning", tells: denies},
		"a recovery, and the Pod is another": {
			before: func(ctx context.Context, s *boxes, box string, pod *corev1.Pod) error {
				if err := hasFailed(ctx, s, box, pod); err != nil {
					return err
				}
				if err := s.admin.Delete(ctx, pod, client.GracePeriodSeconds(0)); err != nil {
					return err
				}
				if err := s.Scale(ctx, box); err != nil {
					return err
				}
				return opensandbox.Ready(ctx, s.admin, s.pods(ctx, box)[0])
			},
			write: to(opensandbox.PhasePending), cause: "PodReplaced", tells: denies,
		},
		"a recovery with evidence": {
			before: func(ctx context.Context, s *boxes, box string, pod *corev1.Pod) error {
				if err := hasFailed(ctx, s, box, pod); err != nil {
					return err
				}
				return opensandbox.Ready(ctx, s.admin, pod)
			},
			write: to(opensandbox.PhaseSucceed), tells: does + "clears the record of failed pods",
		},
		"a recovery without a record": {
			before: func(ctx context.Context, s *boxes, box string, _ *corev1.Pod) error {
				return s.phase(ctx, box, opensandbox.PhaseFailed)
			},
			write: to(opensandbox.PhaseSucceed), cause: "NoRecord", tells: denies,
		},
		"a resume that fails": {
			before: hasFailed, write: to(opensandbox.PhaseFailed, `"conditions":[{"type":"ResumeFailed","status":"True"}]`), tells: does + "clears the record of failed pods",
		},
		"a recovery after a resume that failed": {
			before: func(ctx context.Context, s *boxes, box string, pod *corev1.Pod) error {
				return s.phase(ctx, box, opensandbox.PhaseFailed, `"conditions":[{"type":"ResumeFailed","status":"True"}]`)
			},
			write: to(opensandbox.PhaseSucceed, `"conditions":[]`), cause: "Terminal", tells: denies,
		},
		"a write that drops the record":           {before: hasFailed, write: to(opensandbox.PhaseFailed, `"failedPodUIDs":null`), tells: does + "sets the record of failed pods to "},
		"a pause that drops the record":           {before: hasFailed, write: to(opensandbox.PhasePausing, `"failedPodUIDs":null`), tells: does + "sets the record of failed pods to "},
		"a resume that carries the record":        {before: hasFailed, write: to(opensandbox.PhaseResuming), tells: does + "clears the record of failed pods"},
		"a status that is taken away":             {before: hasFailed, write: func(*boxes, *corev1.Pod) []byte { return []byte(`{"status":null}`) }, cause: "StatusRemoved", tells: denies},
		"a write that is as failed as it was":     {before: hasFailed, write: to(opensandbox.PhaseFailed, `"taskFailed":2`)},
		"a recovered object with an old record":   {before: leftover, write: to(opensandbox.PhaseSucceed), tells: does + "clears the record of failed pods"},
		"a recovered object that waits once more": {before: leftover, write: to(opensandbox.PhasePending), tells: does + "clears the record of failed pods"},
	}
	places := map[string]*boxes{}
	pods := map[string]map[string]*corev1.Pod{}
	staging := map[string]func(*testing.T){}
	for _, mode := range []string{v1alpha1.ModeEnforce, v1alpha1.ModeWarn, ""} {
		s, made := boxesOf(ctx, t, shared, n, opensandbox.New, ""), map[string]*corev1.Pod{}
		places[mode], pods[mode] = s, made
		staging["what there is before, for mode "+mode] = func(t *testing.T) {
			s := boxesIn(ctx, t, shared, n, opensandbox.New, s.Namespace)
			for name, c := range rows {
				made[name] = s.start(ctx, groupOf(name), 1)[0]
				if c.before != nil {
					must(t, c.before(ctx, s, groupOf(name), made[name]))
				}
			}
		}
	}
	atOnce(t, staging)
	if t.Failed() {
		return
	}
	for mode, s := range places {
		if mode != "" {
			label(ctx, t, s.Namespace, fmt.Sprintf("%q:%q", v1alpha1.ModeLabel, mode))
		}
	}
	places[v1alpha1.ModeEnforce].becomesGuarded(ctx, true)
	stack.Eventually(ctx, t, "mode warn", func() error {
		s := places[v1alpha1.ModeWarn]
		s.tries++
		box := fmt.Sprintf("probe-%d", s.tries)
		s.add(ctx, box)
		if a := s.send(ctx, t, shared.Plane.Config(), box, statusOfPhase(opensandbox.PhaseFailed)); len(a.warnings) == 0 {
			return fmt.Errorf("no warning yet")
		}
		return nil
	})

	for name, c := range rows {
		t.Run(name, func(t *testing.T) {
			box := groupOf(name)
			replies, stored := map[string]reply{}, map[string]string{}
			for mode, s := range places {
				plain := func(text string) string {
					all := append(s.pods(ctx, box), pods[mode][name])
					for i := len(all) - 1; i >= 0; i-- {
						text = strings.ReplaceAll(text, string(all[i].UID), fmt.Sprintf("pod-%t", all[i].UID == pods[mode][name].UID))
					}
					return times.ReplaceAllString(text, "at some time")
				}
				a := s.send(ctx, t, shared.Plane.Config(), box, c.write(s, pods[mode][name]))
				a.status.Message = plain(a.status.Message)
				for i, w := range a.warnings {
					a.warnings[i] = plain(w)
				}
				replies[mode] = a
				stored[mode] = plain(fmt.Sprint(s.raw(ctx, box)["status"]))
			}
			enforce, warn, unasked := replies[v1alpha1.ModeEnforce], replies[v1alpha1.ModeWarn], replies[""]
			if warn.code != 200 || unasked.code != 200 || len(unasked.warnings) > 0 {
				t.Fatalf("mode warn answers %d: %s; without a mode %d %q: %s", warn.code, warn.status.Message, unasked.code, unasked.warnings, unasked.status.Message)
			}
			if diff := gocmp.Diff(stored[""], stored[v1alpha1.ModeWarn]); diff != "" {
				t.Errorf("mode warn changed the status (-without +warn):\n%s", diff)
			}
			told := strings.Join(warn.warnings, "\n")
			if (c.tells == "") != (told == "") || !strings.Contains(told, c.tells) || len(warn.warnings) > 1 {
				t.Errorf("warnings %q, want %q", warn.warnings, c.tells)
			}
			if c.cause == "" {
				if enforce.code != 200 {
					t.Fatalf("mode enforce answers %d: %s", enforce.code, enforce.status.Message)
				}
				changed := stored[v1alpha1.ModeEnforce] != stored[""]
				if said := strings.HasPrefix(c.tells, does); changed != said {
					t.Errorf("mode enforce changed the status: %t\nwithout: %s\nenforce: %s", changed, stored[""], stored[v1alpha1.ModeEnforce])
				}
				if strings.Contains(told, "sets the record") && !strings.Contains(told, "to pod-true") {
					t.Errorf("warnings %q do not say what the record becomes", warn.warnings)
				}
				if strings.Contains(c.tells, "none of its pods") {
					if diff := gocmp.Diff(enforce.warnings, warn.warnings); diff != "" {
						t.Errorf("warnings (-enforce +warn):\n%s", diff)
					}
				}
				return
			}
			if enforce.code != 403 || enforce.causes()[0] != "belay.dev/"+c.cause {
				t.Fatalf("mode enforce answers %d %v: %s", enforce.code, enforce.causes(), enforce.status.Message)
			}
			_, why, _ := strings.Cut(enforce.status.Message, "denied the request: belay: ")
			if why == "" || !strings.Contains(strings.ReplaceAll(told, `\"`, `"`), denies+why) {
				t.Errorf("mode warn tells %q\nmode enforce says %q", told, why)
			}
		})
	}

	t.Run("the audit log tells the same", func(t *testing.T) {
		stack.Eventually(ctx, t, "the audit log", func() error {
			for name, c := range rows {
				if c.cause == "" {
					continue
				}
				for mode, want := range map[string]struct {
					code           int
					decision, says string
				}{
					v1alpha1.ModeEnforce: {403, "denied", "cannot go from"},
					v1alpha1.ModeWarn:    {200, "allowed", "mode warn: would be denied with 403"},
				} {
					found := false
					for _, e := range auditLog(t, shared, places[mode].Namespace) {
						said := e.recovery()
						if e.ObjectRef.Name != groupOf(name) || e.ObjectRef.Subresource != "status" || e.Verb != "patch" || len(said) == 0 {
							continue
						}
						found = true
						text := fmt.Sprint(said)
						if e.ResponseStatus.Code != want.code || !ends(said, "decision", want.decision) || !ends(said, "reason", c.cause) || !strings.Contains(text, want.says) && c.cause != "StatusRemoved" || ends(said, "reason", "Recovered") {
							t.Fatalf("%s, mode %s: answered %d, annotations %v", name, mode, e.ResponseStatus.Code, said)
						}
					}
					if !found {
						return fmt.Errorf("%s, mode %s: no entry", name, mode)
					}
				}
			}
			return nil
		})
	})
}

// ends reports whether an annotation whose key ends like this has a value.
func ends(annotations map[string]string, key, value string) bool {
	for k, v := range annotations {
		if strings.HasSuffix(k, "/"+key) && v == value {
			return true
		}
	}
	return false
}

var times = regexp.MustCompile(`\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z`)

// leftover is a sandbox that has recovered, and a record that a stale writer left.
func leftover(ctx context.Context, s *boxes, box string, pod *corev1.Pod) error {
	return s.phase(ctx, box, opensandbox.PhaseSucceed, recordPatch(pod))
}

// TestWhereBelayIsNeverCalled: namespaces without the label, those of the system and belay's
// own, whatever their labels say. The audit log would tell of a call.
func TestWhereBelayIsNeverCalled(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	for name, s := range map[string]*boxes{
		"without the label":            boxesOf(ctx, t, shared, opensandbox.Names{}, opensandbox.New, ""),
		"another mode":                 boxesOf(ctx, t, shared, opensandbox.Names{}, opensandbox.New, "audit"),
		"a namespace of the system":    boxesIn(ctx, t, shared, opensandbox.Names{}, opensandbox.New, systemNamespace(ctx, t, "kube-guarded")),
		"the namespace kube-public":    boxesIn(ctx, t, shared, opensandbox.Names{}, opensandbox.New, "kube-public"),
		"belay's own namespace":        boxesIn(ctx, t, shared, opensandbox.Names{}, opensandbox.New, ownNamespace(ctx, t)),
		"an opted-in one, to compare":  boxesOf(ctx, t, shared, opensandbox.Names{}, opensandbox.New, v1alpha1.ModeEnforce),
		"an opted-in one in mode warn": boxesOf(ctx, t, shared, opensandbox.Names{}, opensandbox.New, v1alpha1.ModeWarn),
	} {
		t.Run(name, func(t *testing.T) {
			s.t = t
			if s.Namespace == "kube-public" {
				label(ctx, t, s.Namespace, `"belay.dev/mode":"enforce"`)
				stack.Cleanup(t, func(ctx context.Context) {
					_, _ = shared.Kube.CoreV1().Namespaces().Patch(ctx, s.Namespace, types.MergePatchType, []byte(`{"metadata":{"labels":{"belay.dev/mode":null}}}`), metav1.PatchOptions{})
				})
			}
			box := groupOf(name)
			b := s.add(ctx, box)
			stack.Cleanup(t, func(ctx context.Context) { _ = s.admin.Delete(ctx, b) })
			must(t, s.phase(ctx, box, opensandbox.PhaseFailed))
			a := s.send(ctx, t, shared.Plane.Config(), box, statusOfPhase(opensandbox.PhaseSucceed))
			compare := strings.Contains(name, "opted-in")
			if !compare && (a.code != 200 || len(a.warnings) > 0) {
				t.Errorf("answered %d, warnings %q: %s", a.code, a.warnings, a.status.Message)
			}
			stack.Eventually(ctx, t, "the audit log", func() error {
				found := 0
				for _, e := range auditLog(t, shared, `"`+box+`"`) {
					if e.ObjectRef.Namespace != s.Namespace || e.ObjectRef.Subresource != "status" {
						continue
					}
					found++
					if called := len(e.recovery()) > 0; called != compare {
						t.Fatalf("belay was called: %t, %v", called, e.Annotations)
					}
				}
				if found < 2 {
					return fmt.Errorf("%d entries so far", found)
				}
				return nil
			})
		})
	}
}
