package hostile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// wholeStatus has all that the schema demands; the record is belay's business.
const wholeStatus = `{"status":{"phase":%q,"replicas":1,"allocated":1,"ready":0,"taskFailed":0,"taskPending":0,"taskRunning":0,"taskSucceed":0,"taskUnknown":0}}`

// sandboxClient is a client of BatchSandboxes, for an administrator.
func sandboxClient(t testing.TB) client.Client {
	t.Helper()
	c, err := opensandbox.NewClient(shared.Plane.Config(), opensandbox.New, opensandbox.Names{}.GVK(opensandbox.Version))
	must(t, err)
	return c
}

// phase asks for a phase, and returns the refusal and its reasons.
func phase(ctx context.Context, c client.Client, key types.NamespacedName, phase string, options ...client.SubResourcePatchOption) (*metav1.Status, string) {
	s := &opensandbox.BatchSandbox{}
	s.Namespace, s.Name = key.Namespace, key.Name
	err := c.Status().Patch(ctx, s, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, wholeStatus, phase)), options...)
	if err == nil {
		return nil, ""
	}
	var refusal apierrors.APIStatus
	if !errors.As(err, &refusal) {
		return &metav1.Status{Message: err.Error()}, "none"
	}
	status := refusal.Status()
	var reasons []string
	if status.Details != nil {
		for _, c := range status.Details.Causes {
			reasons = append(reasons, strings.TrimPrefix(string(c.Type), "belay.dev/"))
		}
	}
	return &status, strings.Join(reasons, " ")
}

// failed makes a BatchSandbox whose only Pod has crashed, and who says so.
func failed(ctx context.Context, t *testing.T, c client.Client, ns, name string) (types.NamespacedName, *corev1.Pod) {
	t.Helper()
	b := opensandbox.Sandbox(ns, name, 1)
	must(t, c.Create(ctx, b))
	pod, err := opensandbox.NewPod(b, 0)
	must(t, err)
	must(t, c.Create(ctx, pod))
	must(t, opensandbox.Crash(ctx, c, pod, "CrashLoopBackOff"))
	key := client.ObjectKeyFromObject(b)
	if refused, _ := phase(ctx, c, key, opensandbox.PhaseFailed); refused != nil {
		t.Fatalf("%+v", refused)
	}
	return key, pod
}

// witness writes what the collector would of a Pod whose main container is ready.
func witness(ctx context.Context, c client.Client, pod *corev1.Pod) error {
	if err := c.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
		return err
	}
	before := pod.DeepCopy()
	i := slices.IndexFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == pod.Spec.Containers[0].Name })
	pod.Status.Conditions = slices.DeleteFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == v1alpha1.MainReadyCondition })
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
		Type: v1alpha1.MainReadyCondition, Status: corev1.ConditionTrue, LastProbeTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		Message: pod.Status.ContainerStatuses[i].ContainerID + ": ready",
	})
	return c.Status().Patch(ctx, pod, client.StrategicMergeFrom(before))
}

// A tenant makes Pods in his namespace that say they are those of somebody else's object: by
// owner reference, labels, name, and reports. They are no evidence for it, and none against.
func TestPodsOfAnotherNamespace(t *testing.T) {
	ctx := stack.TestContext(t)
	alice := shared.TestNamespace(ctx, t, "alice", v1alpha1.ModeEnforce)
	mallory, _ := tenant(ctx, t)
	admin := sandboxClient(t)
	key, victim := failed(ctx, t, admin, alice, "box")
	// The garbage collector takes Pods whose owner is in another namespace within a moment, and
	// one that is being deleted counts for nothing. It may be late.
	stack.Eventually(ctx, t, "a service account for Pods", func() error {
		return shared.Client.Get(ctx, client.ObjectKey{Namespace: mallory, Name: "default"}, &corev1.ServiceAccount{})
	})
	must(t, shared.Plane.Do(ctx, "pause kube-controller-manager"))
	stack.Cleanup(t, func(ctx context.Context) { must(t, shared.Plane.Do(ctx, "resume kube-controller-manager")) })

	forge := func(name string) *corev1.Pod {
		t.Helper()
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: mallory, Name: name, Labels: victim.Labels, OwnerReferences: victim.OwnerReferences,
		}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: victim.Spec.Containers[0].Name, Image: "registry.example/evil:1"}}}}
		must(t, admin.Create(ctx, p)) // as the tenant may, who has all rights there
		return p
	}
	good := forge(victim.Name)
	must(t, opensandbox.Ready(ctx, admin, good))
	must(t, witness(ctx, admin, good))
	if refused, reasons := phase(ctx, admin, key, opensandbox.PhaseSucceed); refused == nil || refused.Code != 403 || reasons != "MainNotRunning" || strings.Contains(refused.Message, mallory) {
		t.Errorf("by a Pod of another namespace: %s: %+v", reasons, refused)
	}
	bad := forge("bad")
	must(t, opensandbox.Crash(ctx, admin, bad, "CrashLoopBackOff"))
	must(t, opensandbox.Ready(ctx, admin, victim))
	must(t, witness(ctx, admin, victim))
	stack.Eventually(ctx, t, "it recovers by its own Pod", func() error {
		b := &opensandbox.BatchSandbox{}
		if err := admin.Get(ctx, key, b); err != nil {
			return err
		}
		if b.Status.Phase != opensandbox.PhaseSucceed {
			_, reasons := phase(ctx, admin, key, opensandbox.PhaseSucceed, client.DryRunAll)
			return fmt.Errorf("phase %s; refused for %q", b.Status.Phase, reasons)
		}
		return nil
	})
}

// A record that a tenant forges, with UIDs of ready Pods that are not his object's, is no way
// out of a failure, and tells nothing about those Pods. Neither is an override on an object
// that has a record.
func TestARecordOfOthersPods(t *testing.T) {
	ctx := stack.TestContext(t)
	alice := shared.TestNamespace(ctx, t, "alice", v1alpha1.ModeEnforce)
	mallory, _ := tenant(ctx, t)
	admin := sandboxClient(t)
	_, others := failed(ctx, t, admin, alice, "well")
	must(t, opensandbox.Ready(ctx, admin, others))
	must(t, witness(ctx, admin, others))

	key, own := failed(ctx, t, admin, mallory, "box")
	s := &opensandbox.BatchSandbox{ObjectMeta: metav1.ObjectMeta{Namespace: mallory, Name: key.Name}}
	must(t, admin.Status().Patch(ctx, s, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"status":{"failedPodUIDs":[%q]}}`, others.UID))))
	must(t, admin.Get(ctx, key, s))
	if !slices.Contains(s.Status.FailedPodUIDs, string(own.UID)) {
		t.Errorf("the record was narrowed to %v", s.Status.FailedPodUIDs)
	}
	refused, reasons := phase(ctx, admin, key, opensandbox.PhaseSucceed)
	if refused == nil || refused.Code != 403 || !strings.Contains(reasons, "MainNotRunning") || strings.Contains(refused.Message, others.Name) || strings.Contains(refused.Message, alice) {
		t.Errorf("%s: %+v", reasons, refused)
	}
	must(t, admin.Patch(ctx, s, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"true"}}}`, v1alpha1.AllowRecoveryAnnotation))))
	if refused, reasons := phase(ctx, admin, key, opensandbox.PhaseSucceed); refused == nil || refused.Code != 403 {
		t.Errorf("with the override, on an object that has a record: %s: %+v", reasons, refused)
	}
}

// Whatever a tenant does to Anchors of his own namespace, he has none of somebody else's, and
// makes none that belay would take for its own.
func TestAnchorsByHand(t *testing.T) {
	ctx := stack.TestContext(t)
	alice := shared.TestNamespace(ctx, t, "alice", v1alpha1.ModeEnforce)
	mallory, c := tenant(ctx, t)
	s := token(alice, "run")
	must(t, shared.Client.Create(ctx, s))
	if len(s.OwnerReferences) != 1 || s.OwnerReferences[0].Kind != "Anchor" {
		t.Fatalf("owned by %+v", s.OwnerReferences)
	}
	a := &v1alpha1.Anchor{}
	must(t, shared.Client.Get(ctx, client.ObjectKey{Namespace: alice, Name: s.OwnerReferences[0].Name}, a))

	// Names of Anchors are no secret: the tenant is there first, for an owner of the same name.
	planted := &v1alpha1.Anchor{ObjectMeta: metav1.ObjectMeta{Namespace: mallory, Name: a.Name, Labels: a.Labels}, Spec: *a.Spec.DeepCopy()}
	if err := c.Create(ctx, planted); !apierrors.IsForbidden(err) {
		t.Errorf("planted: %v", err)
	}
	mine := token(mallory, "run")
	must(t, c.Create(ctx, mine))
	own := &v1alpha1.Anchor{}
	must(t, c.Get(ctx, client.ObjectKey{Namespace: mallory, Name: mine.OwnerReferences[0].Name}, own))
	patch := func(sub, body string) error {
		o := own.DeepCopy()
		if sub != "" {
			return c.Status().Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(body)))
		}
		return c.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(body)))
	}
	for what, err := range map[string]error{
		"another owner":                    patch("", `{"spec":{"owner":{"name":"other"}}}`),
		"another deadline":                 patch("", `{"spec":{"expiresAt":"2040-01-01T00:00:00Z"}}`),
		"a binding":                        patch("", fmt.Sprintf(`{"spec":{"boundUID":%q}}`, s.UID)),
		"a reference to another namespace": patch("", fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Secret","name":"run","uid":%q}]}}`, s.UID)),
		"deleted":                          c.Delete(ctx, own.DeepCopy()),
		"all deleted":                      c.DeleteAllOf(ctx, &v1alpha1.Anchor{}, client.InNamespace(mallory)),
		"somebody else's deleted":          c.Delete(ctx, a.DeepCopy()),
		"somebody else's all deleted":      c.DeleteAllOf(ctx, &v1alpha1.Anchor{}, client.InNamespace(alice)),
		"belay's own namespace":            c.DeleteAllOf(ctx, &v1alpha1.Anchor{}, client.InNamespace(stack.Namespace)),
	} {
		if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// What he may: a status, labels, finalizers. belay goes by none of them.
	must(t, patch("", `{"metadata":{"labels":{"belay.dev/policy":"forged"},"annotations":{"belay.dev/owner":"batch/v1/Job/other"}}}`))
	err := patch("status", `{"status":{"conditions":[{"type":"Bound","status":"True","reason":"Bound","message":"forged","lastTransitionTime":"2020-01-01T00:00:00Z"}]}}`)
	if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
		t.Errorf("a status: %v", err)
	}
	owner := job(mallory, "run", "one", nil)
	must(t, c.Create(ctx, owner))
	stack.Eventually(ctx, t, "his Anchor is bound all the same", func() error {
		if err := c.Get(ctx, client.ObjectKeyFromObject(own), own); err != nil {
			return err
		}
		if len(own.OwnerReferences) != 1 || own.OwnerReferences[0].UID != owner.UID {
			return fmt.Errorf("owned by %+v", own.OwnerReferences)
		}
		return nil
	})
	// Somebody else's is as it was.
	still := &v1alpha1.Anchor{}
	must(t, shared.Client.Get(ctx, client.ObjectKeyFromObject(a), still))
	if still.UID != a.UID || len(still.OwnerReferences) != 0 {
		t.Errorf("%+v", still)
	}
}

// Objects as large, as wide and as deep as the API server lets anybody try, many at once: each
// is answered as where belay is not asked, but for what belay does, and its memory stays flat.
func TestGiants(t *testing.T) {
	ctx := stack.TestContext(t)
	labels := shared.TestNamePolicy(ctx, t, "hostile-giants", nil)
	guarded, plain := shared.TestNamespace(ctx, t, "giants", v1alpha1.ModeEnforce), shared.TestNamespace(ctx, t, "giants", "")
	admin := sandboxClient(t)
	many := map[string]string{"work": "one"}
	for i := range 100_000 {
		many[fmt.Sprintf("a.b/k%d", i)] = "x"
	}
	blob := strings.Repeat("x", 1_400_000)
	deep := func(levels int) *runtime.RawExtension {
		return &runtime.RawExtension{Raw: []byte(strings.Repeat(`{"a":`, levels) + "1" + strings.Repeat("}", levels))}
	}
	w := shared.Webhooks()[0]
	for name, c := range map[string]struct {
		// atOnce: with the objects that are stored, as many as belay has room for at a time; of
		// 100,000 annotations the API server itself has enough with one.
		atOnce int
		of     func(ns, name string) client.Object
	}{
		"100,000 annotations on a Job": {1, func(ns, name string) client.Object {
			j := job(ns, name, "one", labels)
			j.Annotations = many
			return j
		}},
		"a Secret of 1 MiB less 1 KiB": {3, func(ns, name string) client.Object {
			s := token(ns, name)
			s.Data = map[string][]byte{"x": []byte(blob[:1<<20-1<<10])}
			return s
		}},
		"a Job whose work is 1.4 MB": {3, func(ns, name string) client.Object {
			j := job(ns, name, "one", labels)
			j.Spec.Template.Spec.Containers[0].Args = []string{blob}
			return j
		}},
		"a Pod of 2,000 containers": {3, func(ns, name string) client.Object {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Annotations: map[string]string{v1alpha1.SidecarAnnotation: v1alpha1.SidecarInject}}}
			for i := range 2000 {
				p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: fmt.Sprintf("c%d", i), Image: "registry.example/app:1"})
			}
			return p
		}},
		"a BatchSandbox of 1.4 MB": {3, func(ns, name string) client.Object {
			b := opensandbox.Sandbox(ns, name, 1)
			b.Spec.Template = &runtime.RawExtension{Raw: fmt.Appendf(nil, `{"x":%q}`, blob)}
			return b
		}},
		"a BatchSandbox 5,000 levels deep": {3, func(ns, name string) client.Object {
			b := opensandbox.Sandbox(ns, name, 1)
			b.Spec.Template = deep(5000)
			return b
		}},
	} {
		t.Run(name, func(t *testing.T) {
			id := fmt.Sprintf("g%d", len(name))
			want := tryGiant(ctx, admin, c.of(plain, id))
			got := make([]string, c.atOnce)
			var top atomic.Int64
			stop := make(chan struct{})
			var wg, watching sync.WaitGroup
			watching.Go(func() { watch(t, w, stop, &top) })
			for i := range got {
				wg.Go(func() { got[i] = tryGiant(ctx, admin, c.of(guarded, fmt.Sprintf("%s-%d", id, i))) })
			}
			wg.Wait()
			close(stop)
			watching.Wait()
			for _, g := range got {
				if g != want {
					t.Errorf("answered %s, and without belay %s", g, want)
				}
			}
			stack.Report(t, "hostile: %s: %s, as without belay; resident %d MiB at most", name, want, top.Load()>>20)
			if top.Load() > mayHold {
				t.Errorf("belay-webhook held %d MiB", top.Load()>>20)
			}
		})
	}
	alive(ctx, t)
	// And the next one is served.
	var j *batchv1.Job
	stack.Eventually(ctx, t, "a Job after all that", func() error { // of the API server's own time-outs
		j = job(guarded, "after", "one", labels)
		return shared.Client.Create(ctx, j)
	})
	if j.Annotations[v1alpha1.WorkAnnotation] == "" {
		t.Error("the Job after it has no mark")
	}
}

// tryGiant creates an object, and writes its status if it is a BatchSandbox; it returns how
// both were answered.
func tryGiant(ctx context.Context, c client.Client, o client.Object) string {
	answer := func(err error) string {
		var s apierrors.APIStatus
		switch {
		case err == nil:
			return "ok"
		case errors.As(err, &s):
			return fmt.Sprintf("%d %s", s.Status().Code, s.Status().Reason)
		}
		return err.Error()
	}
	out := answer(c.Create(ctx, o))
	if b, ok := o.(*opensandbox.BatchSandbox); ok && out == "ok" {
		for _, phase := range []string{opensandbox.PhaseFailed, opensandbox.PhaseFailed} {
			out += ", status " + answer(c.Status().Patch(ctx, b, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, wholeStatus, phase))))
		}
	}
	return out
}
