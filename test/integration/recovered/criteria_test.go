package recovered

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/client/statuspatch"
)

var generations = map[string]opensandbox.Generation{"old controller": opensandbox.Old, "new controller": opensandbox.New}

// The same Pods, by UID, bring a sandbox back: under a controller that never leaves Failed
// belay does it, and under one that does belay lets it.
func TestTheSamePodsRecover(t *testing.T) {
	t.Parallel()
	type crash func(context.Context, client.Client, *corev1.Pod) error
	looping := func(ctx context.Context, c client.Client, p *corev1.Pod) error {
		return opensandbox.Crash(ctx, c, p, "CrashLoopBackOff")
	}
	for detector, crashes := range map[string][]crash{
		"by a waiting reason": {nil, looping},
		// S17: that a Pod comes back from phase Failed has been seen, and the API server lets
		// it where containers are restarted. It is the same Pod.
		"by the phase": {looping, opensandbox.Fail},
	} {
		for name, g := range generations {
			t.Run(detector+", "+name, func(t *testing.T) {
				t.Parallel()
				ctx := stack.TestContext(t)
				s := newSandboxes(ctx, t, shared, g, v1alpha1.ModeEnforce)
				pods := s.start(ctx, "box", 2)
				var want []string
				for i, crash := range crashes {
					if crash != nil {
						must(t, crash(ctx, s.admin, pods[i]))
						want = append(want, string(pods[i].UID))
					}
				}
				must(t, s.Reconcile(ctx, "box"))
				s.wantPhase(ctx, "box", opensandbox.PhaseFailed)
				s.wantRecord(ctx, "box", want...)
				if crashes[0] != nil {
					must(t, opensandbox.Ready(ctx, s.admin, pods[0]))
					refused(t, s.write(ctx, "box", `{"phase":"Succeed","failedPodUIDs":null}`), "PodNotRunning", string(pods[1].UID))
				}
				must(t, opensandbox.Ready(ctx, s.admin, pods[1]))
				must(t, s.Reconcile(ctx, "box"))
				s.becomes(ctx, "box", opensandbox.PhaseSucceed)
				if status := s.stored(ctx, "box"); status["failedPodUIDs"] != nil {
					t.Errorf("record %v", status["failedPodUIDs"])
				}
				if g == opensandbox.Old {
					s.tells(ctx, "box", v1alpha1.ReasonRecovered, want...)
				}
			})
		}
	}
}

// What fails for good is recorded as well, whoever notices: the record then keeps the
// sandbox from recovering, since that Pod never runs again.
func TestTheTerminalDetectorRecords(t *testing.T) {
	t.Parallel()
	type ending struct {
		restart corev1.RestartPolicy
		end     func(context.Context, client.Client, *corev1.Pod) error
		cause   string
		// never: the API server itself keeps it from running again.
		never bool
	}
	endings := map[string]ending{
		"a pod failed": {restart: corev1.RestartPolicyAlways, end: opensandbox.Fail, cause: "PodNotRunning"},
		"the main container ended and is not restarted": {
			restart: corev1.RestartPolicyNever, cause: "MainNotRunning", never: true,
			end: func(ctx context.Context, c client.Client, p *corev1.Pod) error {
				return opensandbox.Terminate(ctx, c, p, 3)
			},
		},
	}
	ways := map[string]struct {
		g opensandbox.Generation
		// another Pod crashes as well: what only belay sees is recorded with what the
		// controller sees.
		another bool
		fail    func(context.Context, *sandboxes, string) error
	}{
		"the new controller, which lists them":     {g: opensandbox.New, fail: func(ctx context.Context, s *sandboxes, box string) error { return s.Reconcile(ctx, box) }},
		"the old controller, which sees another's": {g: opensandbox.Old, another: true, fail: func(ctx context.Context, s *sandboxes, box string) error { return s.Reconcile(ctx, box) }},
		"an administrator, who lists none": {g: opensandbox.New, fail: func(ctx context.Context, s *sandboxes, box string) error {
			return s.write(ctx, box, `{"phase":"Failed"}`)
		}},
	}
	ctx := stack.TestContext(t)
	all, i := map[opensandbox.Generation]*sandboxes{}, 0
	for _, g := range generations {
		all[g] = newSandboxes(ctx, t, shared, g, v1alpha1.ModeEnforce)
	}
	for what, e := range endings {
		for who, way := range ways {
			i++
			box := fmt.Sprintf("box-%d", i)
			t.Run(what+", says "+who, func(t *testing.T) {
				t.Parallel()
				s := all[way.g].sub(t)
				b := opensandbox.Sandbox(s.Namespace, box, 2)
				b.Spec.Template = opensandbox.Template(e.restart, opensandbox.MainContainer, opensandbox.Sidecar)
				pods := s.begin(ctx, b)
				must(t, e.end(ctx, s.admin, pods[1]))
				want := uids(pods[1])
				if way.another {
					must(t, opensandbox.Crash(ctx, s.admin, pods[0], "CrashLoopBackOff"))
					want = uids(pods[0], pods[1])
				}
				must(t, way.fail(ctx, s, box))
				s.wantPhase(ctx, box, opensandbox.PhaseFailed)
				s.wantRecord(ctx, box, want...)
				if way.another {
					must(t, opensandbox.Ready(ctx, s.admin, pods[0]))
				}
				if e.never {
					if err := opensandbox.Ready(ctx, s.admin, pods[1]); !apierrors.IsInvalid(err) {
						t.Fatalf("it runs again: %v", err)
					}
				}
				must(t, s.Reconcile(ctx, box))
				refused(t, s.write(ctx, box, `{"phase":"Succeed","failedPodUIDs":null}`), e.cause, string(pods[1].UID))
				s.wantPhase(ctx, box, opensandbox.PhaseFailed)
				s.wantRecord(ctx, box, want...)
			})
		}
	}
}

// S13: a missing Pod is made anew under the same name. It is another one, so that neither
// the controller, with a cache that still has the one that failed, nor an administrator nor
// belay itself takes it for a recovery.
func TestS13_AReplacementOfTheSameNameDoesNotRecover(t *testing.T) {
	t.Parallel()
	for name, g := range generations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := stack.TestContext(t)
			s := newSandboxes(ctx, t, shared, g, v1alpha1.ModeEnforce)
			old := s.failed(ctx, "box", 1)[0]
			fresh := s.replace(ctx, "box", old)
			if fresh.Name != old.Name || fresh.UID == old.UID {
				t.Fatalf("the replacement is %s %s, and it was %s %s", fresh.Name, fresh.UID, old.Name, old.UID)
			}
			must(t, s.Reconcile(ctx, "box"))
			s.wantPhase(ctx, "box", opensandbox.PhaseFailed)

			words := []string{string(old.UID), string(fresh.UID)}
			if g == opensandbox.New {
				s.see(old)
				refused(t, s.Reconcile(ctx, "box"), "PodReplaced", words...)
				s.Thaw()
			}
			for _, status := range []string{
				`{"phase":"Succeed"}`, `{"phase":"Succeed","failedPodUIDs":null}`, `{"phase":"Pending","failedPodUIDs":[]}`,
				// Nor does it help to say that it was the other one that failed.
				fmt.Sprintf(`{"phase":"Succeed","failedPodUIDs":[%q]}`, fresh.UID),
			} {
				refused(t, s.write(ctx, "box", status), "PodReplaced", words...)
			}
			refused(t, s.put(ctx, "box", func(b *opensandbox.BatchSandbox) {
				b.Status.Phase, b.Status.FailedPodUIDs = opensandbox.PhaseSucceed, nil
			}), "PodReplaced", words...)

			s.tells(ctx, "box", v1alpha1.ReasonNotRecoverable, append(words, "PodReplaced")...)
			s.wantPhase(ctx, "box", opensandbox.PhaseFailed)
			s.wantRecord(ctx, "box", string(old.UID))
		})
	}
}

// S26: a failed resume is for ever, whenever its condition is taken off: only another
// resume, which makes new Pods, leads out of it.
func TestS26_AResumeFailureIsTerminal(t *testing.T) {
	t.Parallel()
	const clearing = `{"phase":"Succeed","failedPodUIDs":null,"conditions":[{"type":"Ready","status":"True"}]}`
	ctx := stack.TestContext(t)
	for name, g := range generations {
		all, i := newSandboxes(ctx, t, shared, g, v1alpha1.ModeEnforce), 0
		for how, c := range map[string]struct {
			// earlier are writes that are let in, and then a recovery is refused for a cause.
			earlier func(context.Context, *sandboxes, string, *corev1.Pod) error
			write   string
			cause   string
		}{
			"the condition stays":                        {write: `{"phase":"Succeed"}`, cause: "Terminal"},
			"the condition is cleared in the same write": {write: clearing, cause: "Terminal"},
			"the condition is cleared earlier": {
				earlier: func(ctx context.Context, s *sandboxes, box string, _ *corev1.Pod) error {
					return s.ClearResumeFailed(ctx, box)
				},
				write: clearing, cause: "NoRecord",
			},
			"the condition is cleared earlier, and the pod is recorded": {
				earlier: func(ctx context.Context, s *sandboxes, box string, p *corev1.Pod) error {
					return errors.Join(s.ClearResumeFailed(ctx, box), s.write(ctx, box, fmt.Sprintf(`{"failedPodUIDs":[%q]}`, p.UID)))
				},
				write: clearing, cause: "NoRecord",
			},
			"the pod is recorded while the condition is there": {
				earlier: func(ctx context.Context, s *sandboxes, box string, p *corev1.Pod) error {
					return errors.Join(s.write(ctx, box, fmt.Sprintf(`{"failedPodUIDs":[%q]}`, p.UID)), s.ClearResumeFailed(ctx, box))
				},
				write: clearing, cause: "NoRecord",
			},
			"the pod is recorded in the write that recovers": {
				earlier: func(ctx context.Context, s *sandboxes, box string, p *corev1.Pod) error {
					return s.ClearResumeFailed(ctx, box)
				},
				write: "recorded", cause: "NoRecord",
			},
		} {
			i++
			box := fmt.Sprintf("box-%d", i)
			t.Run(how+", "+name, func(t *testing.T) {
				t.Parallel()
				s := all.sub(t)
				pod := s.resumeFailed(ctx, box)
				must(t, opensandbox.Ready(ctx, s.admin, pod))
				must(t, s.Reconcile(ctx, box))
				s.wantPhase(ctx, box, opensandbox.PhaseFailed)
				if c.earlier != nil {
					must(t, c.earlier(ctx, s, box, pod))
				}
				must(t, s.Reconcile(ctx, box))
				s.wantRecord(ctx, box)
				write := c.write
				if write == "recorded" {
					write = fmt.Sprintf(`{"phase":"Succeed","failedPodUIDs":[%q],"conditions":[]}`, pod.UID)
				}
				refused(t, s.write(ctx, box, write), c.cause)
				s.wantPhase(ctx, box, opensandbox.PhaseFailed)
				if c.earlier == nil {
					s.tells(ctx, box, v1alpha1.ReasonNotRecoverable, "Terminal")
				}

				// The way out is the one that upstream has.
				must(t, s.Resume(ctx, box))
				must(t, s.Reconcile(ctx, box))
				s.wantPhase(ctx, box, opensandbox.PhaseSucceed)
				s.wantRecord(ctx, box)
			})
		}
	}
}

// The record goes by an explicit null, and then it is gone from the server. What belay
// writes itself is not guarded, and an omitted field would stay as it is stored: so where
// belay has brought a sandbox back and the field is gone, its patch had the null.
func TestTheClearIsAnExplicitNull(t *testing.T) {
	t.Parallel()
	t.Run("in the driver's patch", func(t *testing.T) {
		t.Parallel()
		ctx := stack.TestContext(t)
		s := newSandboxes(ctx, t, shared, opensandbox.Old, v1alpha1.ModeEnforce)
		pod := s.failed(ctx, "box", 1)[0]
		s.wantRecord(ctx, "box", string(pod.UID))
		must(t, opensandbox.Ready(ctx, s.admin, pod))
		s.becomes(ctx, "box", opensandbox.PhaseSucceed)
		s.wantNoField(ctx, "box")
		var wrote []auditEntry
		stack.Eventually(ctx, t, "the driver's patch in the audit log", func() error {
			wrote = inAuditLog(t, s.Namespace, func(e auditEntry) bool {
				return e.ObjectRef.Subresource == "status" && e.ObjectRef.Resource == "batchsandboxes" && e.by(stack.ControllerAccount)
			})
			if len(wrote) == 0 {
				return errors.New("there is none")
			}
			return nil
		})
		if len(wrote) != 1 || wrote[0].Verb != "patch" || wrote[0].ResponseStatus.Code != http.StatusOK {
			t.Errorf("belay-controller wrote %+v", wrote)
		}
		if guarded := wrote[0].guarded(); guarded {
			t.Errorf("its own write was guarded: %v", wrote[0].Annotations)
		}
	})
	t.Run("in the patch of an author's controller, where nothing is guarded", func(t *testing.T) {
		t.Parallel()
		ctx := stack.TestContext(t)
		s := newSandboxes(ctx, t, shared, opensandbox.New, "")
		pod := s.failed(ctx, "box", 1)[0]
		s.wantRecord(ctx, "box", string(pod.UID))
		cfg, err := s.s.Config(ctx, s.Namespace, opensandbox.Account)
		must(t, err)
		sent := &bodies{}
		cfg.Wrap(sent.wrap)
		c, err := opensandbox.NewClient(cfg, opensandbox.New, opensandbox.Names{}.GVK(opensandbox.Version))
		must(t, err)
		current := s.get(ctx, "box")
		desired := current.DeepCopy()
		desired.Status.Phase, desired.Status.FailedPodUIDs = opensandbox.PhaseSucceed, nil
		wrote, err := statuspatch.Options{}.Write(ctx, c.Status(), current, desired)
		if err != nil || !wrote {
			t.Fatalf("wrote %t, %v", wrote, err)
		}
		var patch struct{ Status map[string]json.RawMessage }
		must(t, json.Unmarshal(sent.last(), &patch))
		if got := string(patch.Status["failedPodUIDs"]); got != "null" {
			t.Errorf("the patch has %q in %s", got, sent.last())
		}
		s.wantNoField(ctx, "box")
	})
	t.Run("and where a patch does not mention the field, belay takes it off", func(t *testing.T) {
		t.Parallel()
		ctx := stack.TestContext(t)
		s := newSandboxes(ctx, t, shared, opensandbox.New, v1alpha1.ModeEnforce)
		pod := s.failed(ctx, "box", 1)[0]
		cfg, sent := s.s.Plane.Config(), &bodies{}
		cfg.Wrap(sent.wrap)
		var err error
		s.admin, err = opensandbox.NewClient(cfg, opensandbox.New, opensandbox.Names{}.GVK(opensandbox.Version))
		must(t, err)
		must(t, opensandbox.Ready(ctx, s.admin, pod))
		before := sent.count()
		must(t, s.write(ctx, "box", `{"phase":"Succeed"}`))
		// At the first try: were it denied for a while, belay-controller would be faster.
		if got := sent.count() - before; got != 1 {
			t.Errorf("it took %d requests", got)
		}
		s.wantPhase(ctx, "box", opensandbox.PhaseSucceed)
		s.wantNoField(ctx, "box")
	})
}

// sub is s in a subtest that runs beside others, with a controller of its own.
func (s *sandboxes) sub(t *testing.T) *sandboxes {
	return &sandboxes{
		Controller: &opensandbox.Controller{Client: s.Client, Namespace: s.Namespace, Generation: s.Generation}, t: t, s: s.s, admin: s.admin,
	}
}

// begin is start with a sandbox of the test's own.
func (s *sandboxes) begin(ctx context.Context, b *opensandbox.BatchSandbox) []*corev1.Pod {
	s.t.Helper()
	must(s.t, s.admin.Create(ctx, b))
	must(s.t, s.Scale(ctx, b.Name))
	pods := s.pods(ctx, b.Name)
	for _, p := range pods {
		must(s.t, opensandbox.Ready(ctx, s.admin, p))
	}
	must(s.t, s.Reconcile(ctx, b.Name))
	s.wantPhase(ctx, b.Name, opensandbox.PhaseSucceed)
	return pods
}

// failed is start, and then all Pods crash, which the controller sees.
func (s *sandboxes) failed(ctx context.Context, name string, replicas int32) []*corev1.Pod {
	s.t.Helper()
	pods := s.start(ctx, name, replicas)
	for _, p := range pods {
		must(s.t, opensandbox.Crash(ctx, s.admin, p, "CrashLoopBackOff"))
	}
	must(s.t, s.Reconcile(ctx, name))
	s.wantPhase(ctx, name, opensandbox.PhaseFailed)
	s.wantRecord(ctx, name, uids(pods...)...)
	return pods
}

// replace deletes a Pod; the controller makes another of its name, which is ready.
func (s *sandboxes) replace(ctx context.Context, name string, pod *corev1.Pod) *corev1.Pod {
	s.t.Helper()
	must(s.t, s.admin.Delete(ctx, pod.DeepCopy(), client.GracePeriodSeconds(0)))
	must(s.t, s.Scale(ctx, name))
	fresh := &corev1.Pod{}
	must(s.t, s.admin.Get(ctx, client.ObjectKeyFromObject(pod), fresh))
	must(s.t, opensandbox.Ready(ctx, s.admin, fresh))
	return fresh
}

// resumeFailed is a sandbox of one Pod that failed, by that Pod, while it was resuming.
func (s *sandboxes) resumeFailed(ctx context.Context, name string) *corev1.Pod {
	s.t.Helper()
	s.start(ctx, name, 1)
	s.paused(ctx, name)
	s.want(ctx, name, false)
	must(s.t, s.Resume(ctx, name))
	must(s.t, s.Scale(ctx, name))
	pod := s.pods(ctx, name)[0]
	must(s.t, opensandbox.Crash(ctx, s.admin, pod, "CrashLoopBackOff"))
	must(s.t, s.Reconcile(ctx, name))
	s.wantPhase(ctx, name, opensandbox.PhaseFailed)
	s.wantRecord(ctx, name)
	if !s.has(ctx, name, opensandbox.ConditionResumeFailed) {
		s.t.Fatalf("conditions %+v", s.get(ctx, name).Status.Conditions)
	}
	return pod
}

// want is what a user does who wants to pause a sandbox, or to resume it.
func (s *sandboxes) want(ctx context.Context, name string, pause bool) {
	s.t.Helper()
	b := &opensandbox.BatchSandbox{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: name}}
	must(s.t, s.admin.Patch(ctx, b, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"pause":%t}}`, pause))))
}

// paused pauses a sandbox in all steps.
func (s *sandboxes) paused(ctx context.Context, name string) {
	s.t.Helper()
	s.want(ctx, name, true)
	must(s.t, s.Pause(ctx, name))
	s.wantPhase(ctx, name, opensandbox.PhasePausing)
	must(s.t, s.CompletePause(ctx, name))
	s.wantPhase(ctx, name, opensandbox.PhasePaused)
}

// see makes the controller see these Pods as ready, whatever there is, as with a cache that
// is behind; until Thaw.
func (s *sandboxes) see(pods ...*corev1.Pod) {
	s.ReadPods = func(context.Context, *opensandbox.BatchSandbox) ([]*corev1.Pod, error) {
		var out []*corev1.Pod
		for _, p := range pods {
			p = p.DeepCopy()
			opensandbox.SetReady(p)
			out = append(out, p)
		}
		return out, nil
	}
}

// write is an administrator's merge patch of a status, without resourceVersion.
func (s *sandboxes) write(ctx context.Context, name, status string, o ...client.SubResourcePatchOption) error {
	b := &opensandbox.BatchSandbox{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: name}}
	return s.admin.Status().Patch(ctx, b, client.RawPatch(types.MergePatchType, []byte(`{"status":`+status+`}`)), o...)
}

// put is an administrator's PUT of a whole status, of what is stored now.
func (s *sandboxes) put(ctx context.Context, name string, change func(*opensandbox.BatchSandbox), o ...client.SubResourceUpdateOption) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		b := s.get(ctx, name)
		change(b)
		return s.admin.Status().Update(ctx, b, o...)
	})
}

// stored is a status as the API server has it, in no Go type.
func (s *sandboxes) stored(ctx context.Context, name string) map[string]any {
	s.t.Helper()
	u, err := s.s.Dynamic.Resource(opensandbox.Names{}.GVR(opensandbox.Version)).Namespace(s.Namespace).Get(ctx, name, metav1.GetOptions{})
	must(s.t, err)
	return statusOf(u)
}

func (s *sandboxes) has(ctx context.Context, name, condition string) bool {
	s.t.Helper()
	return slices.ContainsFunc(s.get(ctx, name).Status.Conditions, func(c opensandbox.Condition) bool { return c.Type == condition && c.Status == "True" })
}

// wantRecord wants these UIDs in the record, in any order; none means that it is empty.
func (s *sandboxes) wantRecord(ctx context.Context, name string, want ...string) {
	s.t.Helper()
	got := s.recordOf(ctx, name)
	slices.Sort(got)
	want = slices.Sorted(slices.Values(want))
	if !slices.Equal(want, got) {
		s.t.Fatalf("record of %s (-want +got):\n%s", name, cmp.Diff(want, got))
	}
}

func (s *sandboxes) wantNoField(ctx context.Context, name string) {
	s.t.Helper()
	if status := s.stored(ctx, name); status["failedPodUIDs"] != nil {
		s.t.Errorf("status %v", status)
	}
}

// tells waits for an event on a sandbox that says all of these words; there may be others
// before it.
func (s *sandboxes) tells(ctx context.Context, name, reason string, words ...string) {
	s.t.Helper()
	stack.Eventually(ctx, s.t, "event "+reason, func() error {
		var list eventsv1.EventList
		if err := s.admin.List(ctx, &list, client.InNamespace(s.Namespace)); err != nil {
			return err
		}
		var notes []string
		for _, e := range list.Items {
			if e.Regarding.Kind != "BatchSandbox" || e.Regarding.Name != name || e.Reason != reason {
				continue
			}
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(e.Note, w) }) {
				return nil
			}
			notes = append(notes, e.Note)
		}
		return fmt.Errorf("want %q in one of %q", words, notes)
	})
}

// driverHasLooked waits until belay-controller has had the time to bring back what it
// would: another sandbox, which is ready after the others, is back.
func (s *sandboxes) driverHasLooked(ctx context.Context) {
	s.t.Helper()
	const name = "canary"
	pod := s.start(ctx, name, 1)[0]
	must(s.t, opensandbox.Crash(ctx, s.admin, pod, "CrashLoopBackOff"))
	must(s.t, s.write(ctx, name, `{"phase":"Failed"}`))
	must(s.t, opensandbox.Ready(ctx, s.admin, pod))
	s.becomes(ctx, name, opensandbox.PhaseSucceed)
}

// refused wants a denial of the guard with 403, one of whose causes is of this reason.
func refused(t *testing.T, err error, cause string, words ...string) {
	t.Helper()
	denied(t, err, http.StatusForbidden, words...)
	var status apierrors.APIStatus
	if !asStatus(err, &status) || status.Status().Reason != metav1.StatusReasonForbidden || status.Status().Details == nil {
		t.Fatalf("%+v", status)
	}
	for _, c := range status.Status().Details.Causes {
		if string(c.Type) == "belay.dev/"+cause {
			return
		}
	}
	t.Fatalf("causes %+v; want %s; %v", status.Status().Details.Causes, cause, err)
}

// auditEntry is a request in the audit log.
type auditEntry struct {
	Stage, Verb    string
	User           struct{ Username string }
	ObjectRef      struct{ Namespace, Name, Resource, Subresource string }
	ResponseStatus struct{ Code int }
	Annotations    map[string]string
}

// by reports whether one of belay's service accounts sent it.
func (e auditEntry) by(account string) bool {
	return e.User.Username == "system:serviceaccount:"+stack.Namespace+":"+account
}

// guarded reports whether belay was asked about it.
func (e auditEntry) guarded() bool {
	for key := range e.Annotations {
		if strings.HasPrefix(key, "opensandbox"+v1alpha1.RecoveryEntryDomain+"/") {
			return true
		}
	}
	return false
}

// inAuditLog are the requests about a namespace that are in the audit log so far.
func inAuditLog(t *testing.T, namespace string, match func(auditEntry) bool) []auditEntry {
	t.Helper()
	all, err := stack.AuditLog[auditEntry](shared, namespace)
	must(t, err)
	var out []auditEntry
	for _, e := range all {
		if e.Stage == "ResponseComplete" && e.ObjectRef.Namespace == namespace && match(e) {
			out = append(out, e)
		}
	}
	return out
}

// bodies keeps what a client sends.
type bodies struct {
	next http.RoundTripper
	mu   sync.Mutex
	all  [][]byte
}

func (b *bodies) wrap(next http.RoundTripper) http.RoundTripper {
	b.next = next
	return b
}

// RoundTrip keeps the body and sends the request.
func (b *bodies) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		raw, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		r = r.Clone(r.Context())
		r.Body = io.NopCloser(bytes.NewReader(raw))
		b.mu.Lock()
		b.all = append(b.all, raw)
		b.mu.Unlock()
	}
	return b.next.RoundTrip(r)
}

func (b *bodies) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.all)
}

func (b *bodies) last() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.all) == 0 {
		return nil
	}
	return b.all[len(b.all)-1]
}
