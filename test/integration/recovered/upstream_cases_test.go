package recovered

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// S05: what a webhook returns about metadata on a write of a status is dropped without a
// word. The record is in the status, and nothing of it is anywhere else.
func TestS05_TheRecordIsInTheStatusOnly(t *testing.T) {
	t.Parallel()
	for name, g := range generations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := stack.TestContext(t)
			s := newSandboxes(ctx, t, shared, g, v1alpha1.ModeEnforce)
			pod := s.start(ctx, "box", 1)[0]
			meta := func() string {
				m := s.get(ctx, "box").ObjectMeta
				m.ResourceVersion, m.ManagedFields = "", nil
				raw, err := json.Marshal(m)
				must(t, err)
				return string(raw)
			}
			before := meta()
			must(t, opensandbox.Crash(ctx, s.admin, pod, "CrashLoopBackOff"))
			must(t, s.Reconcile(ctx, "box"))
			s.wantRecord(ctx, "box", string(pod.UID))
			if diff := cmp.Diff(before, meta()); diff != "" {
				t.Errorf("metadata when it failed (-before +after):\n%s", diff)
			}
			must(t, opensandbox.Ready(ctx, s.admin, pod))
			s.becomes(ctx, "box", opensandbox.PhaseSucceed)
			if diff := cmp.Diff(before, meta()); diff != "" {
				t.Errorf("metadata when it had recovered (-before +after):\n%s", diff)
			}
		})
	}
}

// S08: a sandbox that is scaled to nothing and back has other Pods, of the same names. No
// webhook on its status hears of /scale; the UIDs tell.
func TestS08_ScaledToNothingAndBack(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	// Upstream's CRD has no scale subresource; this variation does.
	names := opensandbox.Names{Group: "s08.sandbox.example.com"}
	crd := opensandbox.CRD(opensandbox.CRDOptions{Names: names, Record: &opensandbox.Record{}})
	crd.Spec.Versions[0].Subresources.Scale = &apiextensionsv1.CustomResourceSubresourceScale{
		SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.replicas",
	}
	installVariation(ctx, t, names, crd)
	s := newSandboxes(ctx, t, shared, opensandbox.Old, v1alpha1.ModeEnforce)
	for _, o := range opensandbox.Grant(s.Namespace, names)[1:] {
		must(t, s.s.Client.Create(ctx, o))
	}
	cfg, err := s.s.Config(ctx, s.Namespace, opensandbox.Account)
	must(t, err)
	gvk := names.GVK(opensandbox.Version)
	s.Client, err = opensandbox.NewClient(cfg, s.Generation, gvk)
	must(t, err)
	s.admin, err = opensandbox.NewClient(s.s.Plane.Config(), opensandbox.New, gvk)
	must(t, err)

	b := opensandbox.Sandbox(s.Namespace, "box", 1)
	b.SetGroupVersionKind(gvk)
	pod := s.begin(ctx, b)[0]
	must(t, opensandbox.Crash(ctx, s.admin, pod, "CrashLoopBackOff"))
	must(t, s.Reconcile(ctx, "box"))
	s.wantRecord(ctx, "box", string(pod.UID))
	scale := func(replicas int) {
		t.Helper()
		r := s.s.Dynamic.Resource(names.GVR(opensandbox.Version)).Namespace(s.Namespace)
		u, err := r.Patch(ctx, "box", types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas), metav1.PatchOptions{}, "scale")
		if err != nil || u.GetKind() != "Scale" {
			t.Fatalf("%v, %v", u, err)
		}
	}
	scale(0)
	must(t, s.admin.Delete(ctx, pod.DeepCopy(), client.GracePeriodSeconds(0)))
	refused(t, s.write(ctx, "box", `{"phase":"Succeed","failedPodUIDs":null}`), "PodGone", string(pod.UID))
	must(t, s.Reconcile(ctx, "box"))
	scale(1)
	must(t, s.Scale(ctx, "box"))
	fresh := s.pods(ctx, "box")[0]
	must(t, opensandbox.Ready(ctx, s.admin, fresh))
	must(t, s.Reconcile(ctx, "box"))
	refused(t, s.write(ctx, "box", `{"phase":"Succeed","failedPodUIDs":null}`), "PodReplaced", string(pod.UID), string(fresh.UID))
	s.wantPhase(ctx, "box", opensandbox.PhaseFailed)
	s.wantRecord(ctx, "box", string(pod.UID))
}

// What a recorded Pod is like when somebody says that the sandbox has recovered. In all
// of them it is the same Pod, so that it may still come back, and does in the end.
func TestWhatAPodIsLike(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	all := newSandboxes(ctx, t, shared, opensandbox.New, v1alpha1.ModeEnforce)
	stack.Cleanup(t, func(ctx context.Context) { _ = opensandbox.LetGo(ctx, all.admin, all.Namespace) })
	i := 0
	const main, proxy = "zz-main", "aa-proxy"
	ready := opensandbox.SetReady
	condition := func(t corev1.PodConditionType, status corev1.ConditionStatus) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions = slices.DeleteFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == t })
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: t, Status: status})
		}
	}
	waiting := func(container, reason string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			for _, list := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
				for i := range list {
					if list[i].Name == container {
						list[i].Ready, list[i].State = false, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
					}
				}
			}
		}
	}
	two := func(first, second string) func(*corev1.PodTemplateSpec) {
		return func(p *corev1.PodTemplateSpec) {
			p.Spec.Containers = []corev1.Container{{Name: first, Image: "a"}, {Name: second, Image: "b"}}
		}
	}
	gated := func(p *corev1.PodTemplateSpec) {
		p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: gate}}
	}
	withSidecar := func(p *corev1.PodTemplateSpec) {
		p.Spec.InitContainers = []corev1.Container{{Name: "mesh", Image: "mesh", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}}
	}
	defaultContainer := func(name string) func(*corev1.PodTemplateSpec) {
		return func(p *corev1.PodTemplateSpec) {
			p.Annotations = map[string]string{"kubectl.kubernetes.io/default-container": name}
		}
	}
	type changes []func(*corev1.Pod)
	for name, c := range map[string]struct {
		template []func(*corev1.PodTemplateSpec)
		// fails makes the Pod fail; nil lets its main container crash.
		fails changes
		// now is what it is like at the time of the write, on top of a Pod that is ready.
		now   changes
		cause string // none where it is let in
		words []string
		// held: it is being deleted, and something holds it.
		held bool
		// never: there is no way back from it.
		never bool
	}{
		"S14: it is being deleted, Running and Ready": {
			held: true, now: changes{ready}, cause: "PodDeleting", never: true,
		},
		"S15: a readiness gate is False although it is Ready": {
			template: []func(*corev1.PodTemplateSpec){gated}, now: changes{ready, condition(gate, corev1.ConditionFalse)},
			cause: "PodNotReady", words: []string{gate},
		},
		"S15: a readiness gate has no condition although it is Ready": {
			template: []func(*corev1.PodTemplateSpec){gated}, now: changes{ready}, cause: "PodNotReady", words: []string{gate},
		},
		"S15: a readiness gate is True, and it is not Ready": {
			template: []func(*corev1.PodTemplateSpec){gated}, now: changes{ready, condition(gate, corev1.ConditionTrue), condition(corev1.PodReady, corev1.ConditionFalse)},
			cause: "PodNotReady",
		},
		"S15: its readiness gate is True": {
			template: []func(*corev1.PodTemplateSpec){gated}, now: changes{ready, condition(gate, corev1.ConditionTrue)},
		},
		"S16: it is Running without statuses of containers": {
			now: changes{ready, func(p *corev1.Pod) { p.Status.ContainerStatuses = nil }}, cause: "MainMissing",
		},
		"S16, S17: it was evicted and has no statuses": {
			fails: changes{evicted}, now: changes{evicted}, cause: "PodNotRunning",
		},
		"S17: its phase is Failed for no reason, and its container is lost": {
			fails: changes{lost}, now: changes{lost}, cause: "PodNotRunning",
		},
		"S17: its phase is Failed, and its container runs": {
			fails: changes{lost}, now: changes{ready, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }}, cause: "PodNotRunning",
		},
		"S18: its node is lost, and Ready is Unknown": {
			now:   changes{ready, func(p *corev1.Pod) { p.Status.Reason = "NodeLost" }, condition(corev1.PodReady, corev1.ConditionUnknown)},
			cause: "PodNotReady",
		},
		"S19: the proxy's status comes first and runs, and main still crashes": {
			template: []func(*corev1.PodTemplateSpec){two(main, proxy)}, now: changes{ready, waiting(main, "CrashLoopBackOff")},
			cause: "MainNotRunning", words: []string{main},
		},
		"S19: the proxy was injected first, and main, as an annotation says, still crashes": {
			template: []func(*corev1.PodTemplateSpec){two(proxy, main), defaultContainer(main)},
			fails:    changes{waiting(main, "CrashLoopBackOff"), readinessLost},
			now:      changes{ready, waiting(main, "CrashLoopBackOff")}, cause: "MainNotRunning", words: []string{main},
		},
		"S19: the annotation says main, which runs; the proxy's status comes first": {
			template: []func(*corev1.PodTemplateSpec){two(proxy, main), defaultContainer(main)}, now: changes{ready},
		},
		"S19: the annotation names a container that it has not, which is no reason to guess": {
			template: []func(*corev1.PodTemplateSpec){two(main, proxy), defaultContainer("gone")}, now: changes{ready},
			cause: "MainMissing", words: []string{"gone"}, never: true,
		},
		"S20: a sidecar cannot be pulled, and main waits for it": {
			template: []func(*corev1.PodTemplateSpec){withSidecar},
			fails:    changes{starting, waiting("mesh", "ImagePullBackOff"), waiting(opensandbox.MainContainer, "PodInitializing")},
			now:      changes{ready, starting, waiting("mesh", "ImagePullBackOff"), waiting(opensandbox.MainContainer, "PodInitializing")},
			cause:    "PodNotRunning", words: []string{`sidecar "mesh"`, "ImagePullBackOff"},
		},
		"S20: a sidecar crashes, and main runs": {
			template: []func(*corev1.PodTemplateSpec){withSidecar},
			fails:    changes{waiting("mesh", "CrashLoopBackOff"), readinessLost},
			now:      changes{ready, waiting("mesh", "CrashLoopBackOff"), readinessLost},
			cause:    "PodNotReady", words: []string{`sidecar "mesh"`, "CrashLoopBackOff"},
		},
	} {
		i++
		box := fmt.Sprintf("box-%d", i)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := all.sub(t)
			b := opensandbox.Sandbox(s.Namespace, box, 1)
			var template corev1.PodTemplateSpec
			must(t, json.Unmarshal(b.Spec.Template.Raw, &template))
			for _, change := range c.template {
				change(&template)
			}
			raw, err := json.Marshal(template)
			must(t, err)
			b.Spec.Template = &runtime.RawExtension{Raw: raw}
			pod := s.begin(ctx, b)[0]
			is := func(changes changes) {
				t.Helper()
				var live corev1.Pod
				must(t, s.admin.Get(ctx, client.ObjectKeyFromObject(pod), &live))
				for _, change := range changes {
					change(&live)
				}
				must(t, opensandbox.SetStatus(ctx, s.admin, &live))
			}
			if c.fails == nil {
				must(t, opensandbox.Crash(ctx, s.admin, pod, "CrashLoopBackOff"))
			} else {
				is(c.fails)
			}
			// Whoever says it, lists none: belay sees which one.
			must(t, s.write(ctx, box, `{"phase":"Failed"}`))
			s.wantRecord(ctx, box, string(pod.UID))
			if c.held {
				held := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["`+opensandbox.Hold+`"]}}`))
				must(t, s.admin.Patch(ctx, pod, held))
				must(t, s.admin.Delete(ctx, pod))
			}
			is(c.now)
			err = s.write(ctx, box, `{"phase":"Succeed","failedPodUIDs":null}`)
			if c.cause == "" {
				must(t, err)
				s.wantNoField(ctx, box)
				return
			}
			refused(t, err, c.cause, append(c.words, string(pod.UID))...)
			s.wantPhase(ctx, box, opensandbox.PhaseFailed)
			s.wantRecord(ctx, box, string(pod.UID))
			if c.never {
				return
			}
			is(changes{ready, func(p *corev1.Pod) { p.Status.Reason, p.Status.Message = "", "" }, condition(gate, corev1.ConditionTrue)})
			must(t, s.write(ctx, box, `{"phase":"Succeed","failedPodUIDs":null}`))
			s.wantPhase(ctx, box, opensandbox.PhaseSucceed)
			s.wantNoField(ctx, box)
		})
	}
}

// evicted is what the kubelet makes of a Pod that it evicts before its containers ran.
func evicted(p *corev1.Pod) {
	p.Status.Phase, p.Status.Reason, p.Status.ContainerStatuses = corev1.PodFailed, "Evicted", nil
}

// lost is what is left of a Pod after its node was lost.
func lost(p *corev1.Pod) {
	p.Status.Phase, p.Status.Reason = corev1.PodFailed, ""
	for i := range p.Status.ContainerStatuses {
		s := &p.Status.ContainerStatuses[i]
		s.Ready, s.State = false, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "ContainerStatusUnknown", ExitCode: 137}}
	}
}

// starting is a Pod none of whose containers runs yet.
func starting(p *corev1.Pod) {
	p.Status.Phase = corev1.PodPending
	for i := range p.Status.Conditions {
		p.Status.Conditions[i].Status = corev1.ConditionFalse
	}
}

// S24: a controller whose cache is behind says Failed once more, after a recovery. That is
// a failure anew: what fails now is recorded, and not what had been.
func TestS24_AStaleFailedAfterARecovery(t *testing.T) {
	t.Parallel()
	// stale is a sandbox of two Pods whose first has failed and recovered; the controller
	// still sees it Failed.
	stale := func(ctx context.Context, t *testing.T, g opensandbox.Generation) (*sandboxes, []*corev1.Pod) {
		t.Helper()
		s := newSandboxes(ctx, t, shared, g, v1alpha1.ModeEnforce)
		pods := s.start(ctx, "box", 2)
		if g == opensandbox.New {
			must(t, s.Freeze(ctx, "box")) // before it failed: it says so twice
		}
		must(t, opensandbox.Crash(ctx, s.admin, pods[0], "CrashLoopBackOff"))
		must(t, s.FreezePods(ctx, "box"))
		must(t, s.Reconcile(ctx, "box"))
		s.wantRecord(ctx, "box", string(pods[0].UID))
		if g == opensandbox.Old {
			must(t, s.Freeze(ctx, "box")) // it then counts Pods, and says Failed with that
			s.ReadPods = nil
		}
		must(t, opensandbox.Ready(ctx, s.admin, pods[0]))
		must(t, s.write(ctx, "box", `{"phase":"Succeed","failedPodUIDs":null}`))
		s.wantPhase(ctx, "box", opensandbox.PhaseSucceed)
		return s, pods
	}
	t.Run("old controller, and another pod fails by now", func(t *testing.T) {
		t.Parallel()
		ctx := stack.TestContext(t)
		s, pods := stale(ctx, t, opensandbox.Old)
		must(t, opensandbox.Crash(ctx, s.admin, pods[1], "ErrImagePull"))
		// It counts one ready Pod, as it did; so that it writes, there is none.
		must(t, opensandbox.Crash(ctx, s.admin, pods[0], "ContainerCreating"))
		must(t, s.Reconcile(ctx, "box"))
		s.Thaw()
		s.wantPhase(ctx, "box", opensandbox.PhaseFailed)
		s.wantRecord(ctx, "box", string(pods[1].UID))
		must(t, opensandbox.Ready(ctx, s.admin, pods[0]))
		must(t, opensandbox.Ready(ctx, s.admin, pods[1]))
		s.becomes(ctx, "box", opensandbox.PhaseSucceed)
	})
	t.Run("old controller, and nothing fails", func(t *testing.T) {
		t.Parallel()
		ctx := stack.TestContext(t)
		s, _ := stale(ctx, t, opensandbox.Old)
		before := s.Patches
		must(t, s.Reconcile(ctx, "box"))
		if s.Patches != before+1 {
			t.Fatal("it did not write")
		}
		s.wantPhase(ctx, "box", opensandbox.PhaseFailed)
		s.wantRecord(ctx, "box")
		refused(t, s.write(ctx, "box", `{"phase":"Succeed"}`), "NoRecord")
	})
	t.Run("new controller, which lists the pod", func(t *testing.T) {
		t.Parallel()
		ctx := stack.TestContext(t)
		s, pods := stale(ctx, t, opensandbox.New)
		must(t, s.Reconcile(ctx, "box"))
		s.Thaw()
		// Its list counts, and that Pod is ready: it is over as soon as anybody looks.
		s.wantPhase(ctx, "box", opensandbox.PhaseFailed)
		s.wantRecord(ctx, "box", string(pods[0].UID))
		must(t, s.Reconcile(ctx, "box"))
		s.wantPhase(ctx, "box", opensandbox.PhaseSucceed)
		s.wantNoField(ctx, "box")
	})
}

// S25: once it is Failed, a controller says nothing of a second Pod that fails. The first
// one's recovery is not the sandbox's.
func TestS25_ASecondPodFailsUnseen(t *testing.T) {
	t.Parallel()
	for name, g := range generations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := stack.TestContext(t)
			s := newSandboxes(ctx, t, shared, g, v1alpha1.ModeEnforce)
			pods := s.start(ctx, "box", 2)
			must(t, opensandbox.Crash(ctx, s.admin, pods[0], "CrashLoopBackOff"))
			must(t, s.Reconcile(ctx, "box"))
			must(t, opensandbox.Crash(ctx, s.admin, pods[1], "CrashLoopBackOff"))
			must(t, s.Reconcile(ctx, "box")) // counters only
			s.wantRecord(ctx, "box", string(pods[0].UID))
			must(t, opensandbox.Ready(ctx, s.admin, pods[0]))
			must(t, s.Reconcile(ctx, "box"))
			refused(t, s.write(ctx, "box", `{"phase":"Succeed","failedPodUIDs":null}`), "OtherPodFailing", pods[1].Name)
			if g == opensandbox.New {
				s.see(pods...)
				refused(t, s.Reconcile(ctx, "box"), "OtherPodFailing", pods[1].Name)
				s.Thaw()
			}
			s.driverHasLooked(ctx)
			s.wantPhase(ctx, "box", opensandbox.PhaseFailed)
			must(t, opensandbox.Ready(ctx, s.admin, pods[1]))
			must(t, s.Reconcile(ctx, "box"))
			s.becomes(ctx, "box", opensandbox.PhaseSucceed)
			s.wantNoField(ctx, "box")
		})
	}
}

// S27: the CRD's phases and types of conditions are closed. belay invents none, and makes
// of a sandbox what the controller that recovers by itself would have made of it; what the
// API server refuses is refused in its own words.
func TestS27_NothingIsInvented(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	made := map[string]map[string]any{}
	for name, g := range generations {
		s := newSandboxes(ctx, t, shared, g, v1alpha1.ModeEnforce)
		pod := s.failed(ctx, "box", 1)[0]
		for _, bad := range []string{
			`{"phase":"Recovered"}`, `{"phase":"Recovered","failedPodUIDs":null}`,
			`{"phase":"Succeed","conditions":[{"type":"Recovered","status":"True"}]}`,
		} {
			err := s.write(ctx, "box", bad)
			denied(t, err, 422, "Unsupported value", `"Recovered"`)
			if strings.Contains(err.Error(), "belay") {
				t.Errorf("belay says %v", err)
			}
		}
		must(t, opensandbox.Ready(ctx, s.admin, pod))
		must(t, s.Reconcile(ctx, "box"))
		s.becomes(ctx, "box", opensandbox.PhaseSucceed)
		before := s.Patches + s.Updates
		status := s.stored(ctx, "box")
		for _, c := range status["conditions"].([]any) {
			delete(c.(map[string]any), "lastTransitionTime")
		}
		made[name] = status
		// Its own controller finds nothing to mend.
		must(t, s.Reconcile(ctx, "box"))
		if s.Patches+s.Updates != before {
			t.Errorf("the %s wrote its status anew: it was %v", name, status)
		}
	}
	if diff := cmp.Diff(made["new controller"], made["old controller"]); diff != "" {
		t.Errorf("a status after a recovery (-by the new controller +by belay):\n%s", diff)
	}
}

// installVariation installs a variation of BatchSandbox with a policy of its own, until the test
// is over.
func installVariation(ctx context.Context, t *testing.T, n opensandbox.Names, crd *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	name := strings.ReplaceAll(n.Group, ".", "-")
	objects, err := stack.ReadManifests(ctx, filepath.Join(stack.Root(), "manifests", "presets", "opensandbox"))
	must(t, err)
	must(t, shared.ApplyCRD(ctx, crd))
	stack.Cleanup(t, func(ctx context.Context) { _ = shared.Client.Delete(ctx, crd) })
	for _, o := range objects {
		switch {
		case o.GetKind() == "RecoveryPolicy":
			o.SetName(name)
			must(t, unstructured.SetNestedField(o.Object, n.Group+"/"+opensandbox.Version, "spec", "resource", "apiVersion"))
		case strings.HasSuffix(o.GetName(), "-driver"):
			o.SetName(name)
			rules, _, err := unstructured.NestedSlice(o.Object, "rules")
			must(t, err)
			for _, r := range rules {
				r.(map[string]any)["apiGroups"] = []any{n.Group}
			}
			must(t, unstructured.SetNestedSlice(o.Object, rules, "rules"))
		default:
			continue // the right to read Pods is there
		}
		must(t, shared.Apply(ctx, o))
		stack.Cleanup(t, func(ctx context.Context) { _ = shared.Client.Delete(ctx, o) })
	}
	wait, cancel := context.WithTimeout(ctx, stack.Bound)
	defer cancel()
	must(t, shared.WaitRecoveryPolicy(wait, name))
}
