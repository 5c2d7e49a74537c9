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
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// fails lets the main container of a sandbox's only Pod crash, and its controller see that.
func (s *boxes) fails(ctx context.Context, name string) *corev1.Pod {
	s.t.Helper()
	pod := s.start(ctx, name, 1)[0]
	must(s.t, opensandbox.Crash(ctx, s.admin, pod, "CrashLoopBackOff"))
	must(s.t, s.Reconcile(ctx, name))
	s.wantPhase(ctx, name, opensandbox.PhaseFailed)
	if diff := gocmp.Diff(uids(pod), s.recordOf(ctx, name)); diff != "" {
		s.t.Fatalf("record of %s (-want +got):\n%s", name, diff)
	}
	return pod
}

// recovers makes the Pod ready, and waits until belay has brought its sandbox back.
func (s *boxes) recovers(ctx context.Context, name string, pod *corev1.Pod) {
	s.t.Helper()
	must(s.t, opensandbox.Ready(ctx, s.admin, pod))
	s.becomes(ctx, name, opensandbox.PhaseSucceed)
}

// unrecorded is a sandbox that failed without a record; its Pod is ready.
func (s *boxes) unrecorded(ctx context.Context, name string) *corev1.Pod {
	s.t.Helper()
	pod := s.start(ctx, name, 1)[0]
	must(s.t, s.phase(ctx, name, opensandbox.PhaseFailed))
	if got := s.recordOf(ctx, name); got != nil {
		s.t.Fatalf("record %v of a sandbox whose pod is ready", got)
	}
	return pod
}

// passed waits until belay has brought back another sandbox that failed later: what it would
// have done to earlier ones is done.
func (s *boxes) passed(ctx context.Context) {
	s.t.Helper()
	s.tries++
	name := fmt.Sprintf("later-%d", s.tries)
	s.recovers(ctx, name, s.fails(ctx, name))
}

// version is the resourceVersion of a sandbox.
func (s *boxes) version(ctx context.Context, name string) string {
	s.t.Helper()
	return s.get(ctx, name).ResourceVersion
}

// eventsOn are the reasons and notes of the events on a sandbox.
func (s *boxes) eventsOn(ctx context.Context, name string) []string {
	s.t.Helper()
	var all eventsv1.EventList
	must(s.t, s.s.Client.List(ctx, &all, client.InNamespace(s.Namespace)))
	var out []string
	for _, e := range all.Items {
		if e.Regarding.Name == name && e.Regarding.Kind == "BatchSandbox" {
			out = append(out, e.Reason+": "+e.Note)
		}
	}
	return out
}

// TestTheDriver is what belay-controller does to objects that have failed. Its parts mostly
// wait.
func TestTheDriver(t *testing.T) {
	t.Parallel()
	atOnce(t, map[string]func(*testing.T){
		"where it is asked, and nowhere else":                                   driverWhereAsked,
		"recover Never":                                                         driverNever,
		"a recovery that the API server refuses":                                driverRefused,
		"S24 a stale write after the recovery":                                  driverStale,
		"S26 what is remembered of a recovery is no way out of a failed resume": driverAfterAResume,
		"the annotation that allows it once":                                    driverAllowed,
		"S21 S22 S23 what a witness says":                                       driverWitnessed,
	})
}

// driverWhereAsked: in opted-in namespaces in mode enforce, on objects that
// the policy selects, and nowhere else; and as soon as it is asked.
func driverWhereAsked(t *testing.T) {
	ctx := stack.TestContext(t)
	n := ownKind(ctx, t, shared, "asked", opensandbox.CRDOptions{}, func(s *v1alpha1.RecoveryPolicySpec) {
		s.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}
		s.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "leave-alone", Operator: metav1.LabelSelectorOpDoesNotExist}}}
	})
	preset := opensandbox.Names{}
	sentinel := boxesOf(ctx, t, shared, preset, opensandbox.Old, v1alpha1.ModeEnforce)
	other := boxesOf(ctx, t, shared, n, opensandbox.Old, v1alpha1.ModeEnforce)
	label(ctx, t, other.Namespace, `"team":"a"`)

	type place struct {
		*boxes
		// later is what makes belay act after all: labels of the namespace as JSON, or a
		// change of the sandbox.
		later  string
		change string
		pod    *corev1.Pod
		at     string
	}
	places := map[string]*place{
		"without the label":             {boxes: boxesOf(ctx, t, shared, preset, opensandbox.New, ""), later: `"belay.dev/mode":"enforce"`},
		"an odd mode":                   {boxes: boxesOf(ctx, t, shared, preset, opensandbox.New, "Enforce"), later: `"belay.dev/mode":"enforce"`},
		"in mode warn":                  {boxes: boxesOf(ctx, t, shared, preset, opensandbox.New, v1alpha1.ModeWarn), later: `"belay.dev/mode":"enforce"`},
		"not among the namespaces":      {boxes: boxesOf(ctx, t, shared, n, opensandbox.New, v1alpha1.ModeEnforce), later: `"team":"a"`},
		"not among the objects":         {boxes: boxesIn(ctx, t, shared, n, opensandbox.New, other.Namespace), change: `{"metadata":{"labels":{"leave-alone":null}}}`},
		"in a namespace of the system":  {boxes: boxesIn(ctx, t, shared, preset, opensandbox.New, systemNamespace(ctx, t, "kube-recovered"))},
		"in belay's own namespace":      {boxes: boxesIn(ctx, t, shared, preset, opensandbox.New, ownNamespace(ctx, t))},
		"an object that is on its way":  {boxes: boxesIn(ctx, t, shared, preset, opensandbox.New, sentinel.Namespace)},
		"an object whose Pod is behind": {boxes: boxesIn(ctx, t, shared, preset, opensandbox.New, sentinel.Namespace)},
	}
	for name, p := range places {
		p.t = t
		box := groupOf(name)
		b := opensandbox.Sandbox(p.Namespace, box, 1)
		if p.change != "" {
			b.Labels = map[string]string{"leave-alone": ""}
		}
		if name == "an object that is on its way" {
			b.Finalizers = []string{"example.com/hold"}
		}
		must(t, p.admin.Create(ctx, b))
		stack.Cleanup(t, func(ctx context.Context) {
			_ = p.admin.Patch(ctx, b, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
			_ = p.admin.Delete(ctx, b)
		})
		pod, err := opensandbox.NewPod(p.get(ctx, box), 0)
		must(t, err)
		// The garbage collector takes a Pod whose owner is of another kind.
		pod.OwnerReferences[0].APIVersion, pod.OwnerReferences[0].Kind = p.names.GVK(opensandbox.Version).ToAPIVersionAndKind()
		restrict(pod) // belay's own namespace wants that
		must(t, p.admin.Create(ctx, pod))
		p.pod = pod
		must(t, opensandbox.Crash(ctx, p.admin, p.pod, "CrashLoopBackOff"))
		must(t, p.phase(ctx, box, opensandbox.PhaseFailed, fmt.Sprintf(`"failedPodUIDs":[%q]`, p.pod.UID)))
		if name == "an object that is on its way" {
			must(t, p.admin.Delete(ctx, b))
		}
		p.at = p.version(ctx, box)
		if name != "an object whose Pod is behind" {
			must(t, opensandbox.Ready(ctx, p.admin, p.pod))
		}
	}
	sentinel.passed(ctx)
	other.passed(ctx)

	told := places["in mode warn"].event(ctx, "in-mode-warn", v1alpha1.ReasonRecovered)
	for _, part := range []string{"mode warn: enforce would bring it back to Succeed", string(places["in mode warn"].pod.UID), "is ready again"} {
		if !strings.Contains(told, part) {
			t.Errorf("in mode warn: event %q does not say %q", told, part)
		}
	}
	for name, p := range places {
		if got := p.version(ctx, groupOf(name)); got != p.at {
			t.Errorf("%s: it was written: %+v", name, p.get(ctx, groupOf(name)).Status)
		}
		if all := p.eventsOn(ctx, groupOf(name)); len(all) > 0 && name != "in mode warn" {
			t.Errorf("%s: events %q", name, all)
		}
	}
	for name, p := range places {
		switch {
		case p.later != "":
			label(ctx, t, p.Namespace, p.later)
		case p.change != "":
			must(t, p.admin.Patch(ctx, p.get(ctx, groupOf(name)), client.RawPatch(types.MergePatchType, []byte(p.change))))
		case name == "an object whose Pod is behind":
			must(t, opensandbox.Ready(ctx, p.admin, p.pod))
		default:
			continue
		}
		p.becomes(ctx, groupOf(name), opensandbox.PhaseSucceed)
		if got := p.recordOf(ctx, groupOf(name)); got != nil {
			t.Errorf("%s: record %v", name, got)
		}
	}
}

// restrict makes a Pod one that the restricted Pod Security Standard takes.
func restrict(p *corev1.Pod) {
	p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
	for i := range p.Spec.Containers {
		p.Spec.Containers[i].SecurityContext = &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		}
	}
}

// label sets labels of a namespace.
func label(ctx context.Context, t *testing.T, ns, labels string) {
	t.Helper()
	_, err := shared.Kube.CoreV1().Namespaces().Patch(ctx, ns, types.MergePatchType, []byte(`{"metadata":{"labels":{`+labels+`}}}`), metav1.PatchOptions{})
	must(t, err)
}

// systemNamespace is a namespace whose name says that it is the system's, with the label.
func systemNamespace(ctx context.Context, t *testing.T, name string) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-", Labels: map[string]string{v1alpha1.ModeLabel: v1alpha1.ModeEnforce}}}
	out, err := shared.Kube.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
	must(t, err)
	stack.Cleanup(t, func(ctx context.Context) {
		_ = shared.Kube.CoreV1().Namespaces().Delete(ctx, out.Name, metav1.DeleteOptions{})
	})
	return out.Name
}

// ownNamespace is belay's, with the label while the test runs.
func ownNamespace(ctx context.Context, t *testing.T) string {
	t.Helper()
	label(ctx, t, stack.Namespace, `"belay.dev/mode":"enforce"`)
	stack.Cleanup(t, func(ctx context.Context) {
		_, _ = shared.Kube.CoreV1().Namespaces().Patch(ctx, stack.Namespace, types.MergePatchType, []byte(`{"metadata":{"labels":{"belay.dev/mode":null}}}`), metav1.PatchOptions{})
	})
	return stack.Namespace
}

// driverNever: such a policy guards, and writes nothing.
func driverNever(t *testing.T) {
	ctx := stack.TestContext(t)
	n := ownKind(ctx, t, shared, "never", opensandbox.CRDOptions{}, func(s *v1alpha1.RecoveryPolicySpec) { s.Recover = v1alpha1.RecoverNever })
	s := boxesOf(ctx, t, shared, n, opensandbox.Old, v1alpha1.ModeEnforce)
	sentinel := boxesOf(ctx, t, shared, opensandbox.Names{}, opensandbox.Old, v1alpha1.ModeEnforce)
	pod := s.fails(ctx, "box")
	at := s.version(ctx, "box")
	denied(t, s.phase(ctx, "box", opensandbox.PhaseSucceed), 403, "MainNotRunning")
	must(t, opensandbox.Ready(ctx, s.admin, pod))
	sentinel.passed(ctx)
	if got := s.version(ctx, "box"); got != at {
		t.Errorf("it was written: %+v", s.get(ctx, "box").Status)
	}
	must(t, s.phase(ctx, "box", opensandbox.PhaseSucceed))
}

// driverRefused: what the API server does not take is told on the object with the
// API server's own words, tried again at longer and longer intervals, and done when the
// reason is gone.
func driverRefused(t *testing.T) {
	ctx := stack.TestContext(t)
	n := ownGroup("refuses")
	// Of the bounds of a condition belay knows when it accepts the policy, but not of rules.
	crd := func(rule string) *apiextensionsv1.CustomResourceDefinition {
		crd := opensandbox.CRD(opensandbox.CRDOptions{Names: n, Record: &opensandbox.Record{}})
		onCondition("reason", func(p *apiextensionsv1.JSONSchemaProps) {
			p.MaxLength = new(int64(100))
			p.XValidations = apiextensionsv1.ValidationRules{{Rule: rule, Message: "not before noon"}}
		})(crd)
		schemaField(&crd.Spec.Versions[0], "conditions", func(p *apiextensionsv1.JSONSchemaProps) { p.MaxItems = new(int64(20)) })
		return crd
	}
	addRole(ctx, t, shared, n, nil)
	addCRD(ctx, t, shared, crd("self != 'Recovered'"))
	addPolicy(ctx, t, shared, ownPolicy(t, "refuses", n, func(s *v1alpha1.RecoveryPolicySpec) { s.Recovered.SetConditions[0].Reason = "Recovered" }))
	inForce(ctx, t, shared, "refuses")
	s := boxesOf(ctx, t, shared, n, opensandbox.Old, v1alpha1.ModeEnforce)
	pod := s.fails(ctx, "box")
	must(t, opensandbox.Ready(ctx, s.admin, pod))
	note := s.event(ctx, "box", v1alpha1.ReasonRecoveryFailed)
	for _, part := range []string{"its pods are ready again, but the API server refuses the change", "status.conditions", "not before noon"} {
		if !strings.Contains(note, part) {
			t.Errorf("event %q does not say %q", note, part)
		}
	}
	var tries []time.Time
	stack.Eventually(ctx, t, "a third try", func() error {
		tries = nil
		for _, e := range auditLog(t, shared, s.Namespace) {
			if e.Verb == "patch" && e.ObjectRef.Name == "box" && strings.HasSuffix(e.User.Username, ":belay-controller") {
				if e.ResponseStatus.Code != 422 {
					t.Fatalf("the write was answered %d", e.ResponseStatus.Code)
				}
				tries = append(tries, e.RequestReceivedTimestamp)
			}
		}
		if len(tries) < 3 {
			return fmt.Errorf("%d so far", len(tries))
		}
		return nil
	})
	// 1 s and 2 s, and no less: the clock that counts is belay's, so that nothing is early.
	if first, second := tries[1].Sub(tries[0]), tries[2].Sub(tries[1]); first < 900*time.Millisecond || second < 1900*time.Millisecond {
		t.Errorf("it tried again after %s and %s", first, second)
	}
	s.wantPhase(ctx, "box", opensandbox.PhaseFailed)
	if diff := gocmp.Diff(uids(pod), s.recordOf(ctx, "box")); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	must(t, shared.ApplyCRD(ctx, crd("true")))
	s.becomes(ctx, "box", opensandbox.PhaseSucceed)
}

// driverStale: the controller's write that was under way puts the old
// phase back. It is brought back again, since the same Pods are there and ready, but not for
// ever; and not where a Pod has been replaced since.
func driverStale(t *testing.T) {
	ctx := stack.TestContext(t)
	s := boxesOf(ctx, t, shared, opensandbox.Names{}, opensandbox.Old, v1alpha1.ModeEnforce)
	stale := func(name string) func() {
		must(t, s.Freeze(ctx, name))
		read := s.Read
		s.Thaw()
		return func() {
			s.Read = read
			defer s.Thaw()
			must(t, s.Reconcile(ctx, name))
		}
	}
	replaced := s.fails(ctx, "replaced")
	putBackReplaced := stale("replaced")
	fresh := s.fails(ctx, "fresh")
	pod := s.fails(ctx, "box")
	putBack := stale("box")
	s.recovers(ctx, "replaced", replaced)
	s.recovers(ctx, "fresh", fresh)
	s.recovers(ctx, "box", pod)

	// Another Pod of the name does not count, whatever is remembered.
	must(t, s.admin.Delete(ctx, replaced, client.GracePeriodSeconds(0)))
	must(t, s.Scale(ctx, "replaced"))
	another := s.pods(ctx, "replaced")[0]
	must(t, opensandbox.Ready(ctx, s.admin, another))
	if another.UID == replaced.UID {
		t.Fatal("the pod is the same")
	}
	putBackReplaced()

	// A Pod that fails now is recorded, as in any failure.
	must(t, opensandbox.Crash(ctx, s.admin, fresh, "CrashLoopBackOff"))
	must(t, s.phase(ctx, "fresh", opensandbox.PhaseFailed))
	if diff := gocmp.Diff(uids(fresh), s.recordOf(ctx, "fresh")); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}

	// Three times within twenty seconds of the first recovery.
	for i := range 3 {
		putBack()
		if got := s.recordOf(ctx, "box"); got != nil {
			t.Fatalf("record %v though no pod is failing", got)
		}
		s.becomes(ctx, "box", opensandbox.PhaseSucceed)
		if i == 0 {
			if got := s.get(ctx, "box").Status; hasCondition(got, opensandbox.ConditionPodFailed) || !hasCondition(got, opensandbox.ConditionReady) {
				t.Errorf("brought back again, but %+v", got.Conditions)
			}
		}
	}
	putBack()
	s.wantPhase(ctx, "box", opensandbox.PhaseFailed)
	if note := s.event(ctx, "box", v1alpha1.ReasonNotRecoverable); !strings.Contains(note, "NoRecord") {
		t.Errorf("event %q", note)
	}
	s.passed(ctx)
	s.wantPhase(ctx, "box", opensandbox.PhaseFailed)
	s.wantPhase(ctx, "fresh", opensandbox.PhaseFailed)
	s.wantPhase(ctx, "replaced", opensandbox.PhaseFailed)
	writes := 0
	for _, e := range auditLog(t, shared, s.Namespace) {
		if e.Verb == "patch" && e.ObjectRef.Name == "box" && strings.HasSuffix(e.User.Username, ":belay-controller") {
			writes++
		}
	}
	if writes != 4 {
		t.Errorf("belay wrote %d times", writes)
	}
	s.recovers(ctx, "fresh", fresh)
	for i := range 2 { // its own controller has caught up, and sees nothing to change
		must(t, s.Reconcile(ctx, "fresh"))
		at := s.version(ctx, "fresh")
		must(t, s.Reconcile(ctx, "fresh"))
		if s.version(ctx, "fresh") != at {
			t.Errorf("round %d: the controller and belay write in turns", i)
		}
	}
}

func hasCondition(s opensandbox.Status, kind string) bool {
	for _, c := range s.Conditions {
		if c.Type == kind && c.Status == "True" {
			return true
		}
	}
	return false
}

// driverAfterAResume: the object was brought back a
// moment ago; then a resume fails, and the controller clears the condition in a write of its
// own. The same Pods are there and ready, and it stays failed all the same.
func driverAfterAResume(t *testing.T) {
	ctx := stack.TestContext(t)
	s := boxesOf(ctx, t, shared, opensandbox.Names{}, opensandbox.Old, v1alpha1.ModeEnforce)
	s.recovers(ctx, "box", s.fails(ctx, "box"))
	must(t, s.phase(ctx, "box", opensandbox.PhaseResuming))
	must(t, s.phase(ctx, "box", opensandbox.PhaseFailed, `"conditions":[{"type":"ResumeFailed","status":"True"}]`))
	must(t, s.phase(ctx, "box", opensandbox.PhaseFailed, `"conditions":[]`))
	s.passed(ctx)
	s.wantPhase(ctx, "box", opensandbox.PhaseFailed)
	denied(t, s.phase(ctx, "box", opensandbox.PhaseSucceed), 403, "failed without a record")
}

// driverAllowed: the annotation lets an object without a record recover, once. It is taken
// off, and an event says so; after that the object needs evidence like any other.
func driverAllowed(t *testing.T) {
	ctx := stack.TestContext(t)
	allow := func(s *boxes, name, value string) {
		must(t, s.admin.Patch(ctx, s.get(ctx, name), client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.AllowRecoveryAnnotation, value))))
	}
	usedUp := func(s *boxes, name string) {
		stack.Eventually(ctx, t, name+": the annotation is taken off", func() error {
			if v, there := s.get(ctx, name).Annotations[v1alpha1.AllowRecoveryAnnotation]; there {
				return fmt.Errorf("it is %q", v)
			}
			return nil
		})
	}
	s := boxesOf(ctx, t, shared, opensandbox.Names{}, opensandbox.Old, v1alpha1.ModeEnforce)
	s.unrecorded(ctx, "odd")
	s.unrecorded(ctx, "box")
	if note := s.event(ctx, "box", v1alpha1.ReasonNotRecoverable); !strings.Contains(note, "NoRecord") || !strings.Contains(note, v1alpha1.AllowRecoveryAnnotation+"=true") {
		t.Errorf("event %q does not say what can be done", note)
	}
	allow(s, "odd", "yes")
	allow(s, "box", "true")
	s.becomes(ctx, "box", opensandbox.PhaseSucceed)
	usedUp(s, "box")
	if note := s.event(ctx, "box", v1alpha1.ReasonRecoveryAllowed); !strings.Contains(note, v1alpha1.AllowRecoveryAnnotation) {
		t.Errorf("event %q", note)
	}
	must(t, s.phase(ctx, "box", opensandbox.PhaseFailed))
	s.passed(ctx)
	for _, name := range []string{"box", "odd"} {
		s.wantPhase(ctx, name, opensandbox.PhaseFailed)
		denied(t, s.phase(ctx, name, opensandbox.PhaseSucceed), 403, "failed without a record", v1alpha1.AllowRecoveryAnnotation)
	}
	// An allowance that a healthy object has is no supply for later.
	s.start(ctx, "healthy", 1)
	allow(s, "healthy", "true")
	usedUp(s, "healthy")
	must(t, s.phase(ctx, "healthy", opensandbox.PhaseFailed))
	denied(t, s.phase(ctx, "healthy", opensandbox.PhaseSucceed), 403, "failed without a record")

	// Where its own controller does it, the write is let in with a warning.
	n := ownKind(ctx, t, shared, "allows", opensandbox.CRDOptions{}, func(s *v1alpha1.RecoveryPolicySpec) { s.Recover = v1alpha1.RecoverNever })
	g := boxesOf(ctx, t, shared, n, opensandbox.New, v1alpha1.ModeEnforce)
	g.unrecorded(ctx, "box")
	allow(g, "box", "true")
	a := g.send(ctx, t, g.s.Plane.Config(), "box", statusOfPhase(opensandbox.PhaseSucceed))
	if a.code != 200 || !strings.Contains(strings.Join(a.warnings, "\n"), "recovers without evidence") {
		t.Errorf("answered %d, warnings %q: %s", a.code, a.warnings, a.status.Message)
	}
	usedUp(g, "box")
	if note := g.event(ctx, "box", v1alpha1.ReasonRecoveryAllowed); !strings.Contains(note, "is taken off") {
		t.Errorf("event %q", note)
	}
	must(t, g.phase(ctx, "box", opensandbox.PhaseFailed))
	denied(t, g.phase(ctx, "box", opensandbox.PhaseSucceed), 403, "failed without a record")
	// With a record, or after a failed resume, it allows nothing.
	recorded := g.fails(ctx, "recorded")
	allow(g, "recorded", "true")
	denied(t, g.phase(ctx, "recorded", opensandbox.PhaseSucceed), 403, "MainNotRunning", string(recorded.UID))
	g.start(ctx, "resumed", 1)
	must(t, g.phase(ctx, "resumed", opensandbox.PhaseFailed, `"conditions":[{"type":"ResumeFailed","status":"True"}]`))
	allow(g, "resumed", "true")
	denied(t, g.phase(ctx, "resumed", opensandbox.PhaseSucceed), 403, "terminal")
}

// reported puts a sidecar's report on a Pod: about a container, true or not, of some age.
func reported(pod *corev1.Pod, container string, status corev1.ConditionStatus, age time.Duration) {
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
		Type: v1alpha1.MainReadyCondition, Status: status, LastProbeTime: metav1.NewTime(time.Now().Add(-age)), Message: container + ": ready",
	})
}

// driverWitnessed: with evidence Both the sidecar's report has to be there, fresh, and
// about the container that runs now, and nothing else tells one run from another.
func driverWitnessed(t *testing.T) {
	ctx := stack.TestContext(t)
	for _, name := range []string{"witnessed", "witness-only"} {
		addWitnessRole(ctx, t, shared, ownGroup(name))
	}
	n := ownKind(ctx, t, shared, "witnessed", opensandbox.CRDOptions{}, func(s *v1alpha1.RecoveryPolicySpec) {
		s.Evidence, s.WitnessFreshFor = v1alpha1.EvidenceBoth, metav1.Duration{Duration: 2 * time.Minute}
	})
	only := ownKind(ctx, t, shared, "witness-only", opensandbox.CRDOptions{}, func(s *v1alpha1.RecoveryPolicySpec) {
		s.Evidence, s.WitnessFreshFor = v1alpha1.EvidenceWitness, metav1.Duration{Duration: 2 * time.Minute}
	})
	both := boxesOf(ctx, t, shared, n, opensandbox.Old, v1alpha1.ModeEnforce)
	alone := boxesOf(ctx, t, shared, only, opensandbox.Old, v1alpha1.ModeEnforce)
	kubelet := boxesOf(ctx, t, shared, opensandbox.Names{}, opensandbox.Old, v1alpha1.ModeEnforce)
	main := func(p *corev1.Pod) *corev1.ContainerStatus { return &p.Status.ContainerStatuses[0] }
	fresh := func(p *corev1.Pod) { reported(p, main(p).ContainerID, corev1.ConditionTrue, 0) }
	parts := map[string]func(*testing.T){}
	for name, c := range map[string]struct {
		in *boxes
		// now makes the Pod, which is ready again, what it is.
		now func(p *corev1.Pod, before corev1.ContainerStatus)
		// cause is empty where it recovers.
		cause string
		says  string
	}{
		"no sidecar has reported": {
			in: both, now: func(*corev1.Pod, corev1.ContainerStatus) {}, cause: "ReportMissing",
		},
		"S23 a late report is about the container that ran before": {
			in: both, now: func(p *corev1.Pod, before corev1.ContainerStatus) {
				reported(p, before.ContainerID, corev1.ConditionTrue, 0)
			}, cause: "ReportStale", says: "about an earlier container",
		},
		"S23 a report that says no container": {
			in: both, now: func(p *corev1.Pod, _ corev1.ContainerStatus) { reported(p, "", corev1.ConditionTrue, 0) }, cause: "ReportStale",
		},
		"the report is too old": {
			in: both, now: func(p *corev1.Pod, _ corev1.ContainerStatus) {
				reported(p, main(p).ContainerID, corev1.ConditionTrue, 5*time.Minute)
			}, cause: "ReportStale", says: "must not be older than 2m0s",
		},
		"S22 the report is from the future": {
			in: both, now: func(p *corev1.Pod, _ corev1.ContainerStatus) {
				reported(p, main(p).ContainerID, corev1.ConditionTrue, -5*time.Minute)
			}, cause: "ReportStale",
		},
		"the sidecar says that it is not ready": {
			in: both, now: func(p *corev1.Pod, _ corev1.ContainerStatus) {
				reported(p, main(p).ContainerID, corev1.ConditionFalse, 0)
			}, cause: "ReportNotReady",
		},
		"the kubelet says that it is not ready": {
			in: both, now: func(p *corev1.Pod, _ corev1.ContainerStatus) {
				fresh(p)
				main(p).Ready = false
				notReady(p)
			}, cause: "PodNotReady",
		},
		"the sidecar alone is asked, and it is ready whatever the kubelet says": {
			in: alone, now: func(p *corev1.Pod, _ corev1.ContainerStatus) {
				fresh(p)
				main(p).Ready = false
				notReady(p)
			},
		},
		"the sidecar alone is asked, and has not reported": {
			in: alone, now: func(*corev1.Pod, corev1.ContainerStatus) {}, cause: "ReportMissing",
		},
		"the kubelet alone is asked, and a stale report means nothing": {
			in: kubelet, now: func(p *corev1.Pod, before corev1.ContainerStatus) {
				reported(p, before.ContainerID, corev1.ConditionFalse, time.Hour)
			},
		},
		"both say that it is ready": {
			in: both, now: func(p *corev1.Pod, _ corev1.ContainerStatus) { fresh(p) },
		},
		"S21 the count of restarts goes down, and the container is another": {
			in: both, now: func(p *corev1.Pod, _ corev1.ContainerStatus) {
				main(p).RestartCount, main(p).ContainerID = 4, "containerd://pruned"
				fresh(p)
			},
		},
		"S21 the count of restarts goes down, where the kubelet alone is asked": {
			in: kubelet, now: func(p *corev1.Pod, _ corev1.ContainerStatus) { main(p).RestartCount = 0 },
		},
		"S22 the container started before the failure by the node's clock": {
			in: both, now: func(p *corev1.Pod, before corev1.ContainerStatus) {
				main(p).State.Running.StartedAt = metav1.NewTime(p.CreationTimestamp.Add(-time.Hour))
				fresh(p)
			},
		},
		"S22 the container starts in three seconds by the node's clock": {
			in: both, now: func(p *corev1.Pod, _ corev1.ContainerStatus) {
				main(p).State.Running.StartedAt = metav1.NewTime(time.Now().Add(3 * time.Second))
				fresh(p)
			},
		},
	} {
		parts[name] = func(t *testing.T) {
			b := boxesIn(ctx, t, shared, c.in.names, opensandbox.Old, c.in.Namespace)
			box := groupOf(name)
			pod := b.start(ctx, box, 1)[0]
			if strings.Contains(name, "S21") {
				main(pod).RestartCount = 5
				must(t, opensandbox.SetStatus(ctx, b.admin, pod))
			}
			before := *main(pod)
			must(t, opensandbox.Crash(ctx, b.admin, pod, "CrashLoopBackOff"))
			must(t, b.Reconcile(ctx, box))
			if diff := gocmp.Diff(uids(pod), b.recordOf(ctx, box)); diff != "" {
				t.Fatalf("record (-want +got):\n%s", diff)
			}
			opensandbox.SetReady(pod)
			c.now(pod, before)
			must(t, opensandbox.SetStatus(ctx, b.admin, pod))
			if c.cause == "" {
				b.becomes(ctx, box, opensandbox.PhaseSucceed)
				return
			}
			a := b.send(ctx, t, shared.Plane.Config(), box, statusOfPhase(opensandbox.PhaseSucceed))
			if got := a.causes(); a.code != 403 || !gocmp.Equal(got, []string{"belay.dev/" + c.cause}) || !strings.Contains(a.status.Message, c.says) {
				t.Errorf("answered %d %v: %s", a.code, got, a.status.Message)
			}
			b.wantPhase(ctx, box, opensandbox.PhaseFailed)
		}
	}
	atOnce(t, parts)
	kubelet.passed(ctx)
	for _, name := range []string{"S23 a late report is about the container that ran before", "no sidecar has reported", "the kubelet says that it is not ready"} {
		both.wantPhase(ctx, groupOf(name), opensandbox.PhaseFailed)
	}
	// The sidecar of the container that runs now reports at last.
	late := groupOf("S23 a late report is about the container that ran before")
	pod := both.pods(ctx, late)[0]
	pod.Status.Conditions = slices.DeleteFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == v1alpha1.MainReadyCondition })
	fresh(pod)
	must(t, opensandbox.SetStatus(ctx, both.admin, pod))
	both.becomes(ctx, late, opensandbox.PhaseSucceed)
}

func notReady(p *corev1.Pod) {
	for i := range p.Status.Conditions {
		if t := p.Status.Conditions[i].Type; t == corev1.PodReady || t == corev1.ContainersReady {
			p.Status.Conditions[i].Status = corev1.ConditionFalse
		}
	}
}

// wire is what one kind of belay's processes sends to the API server.
type wire struct {
	mu    sync.Mutex
	sent  []request
	rules map[int]func(request) *stack.Fault
	next  int
}

// request is one of them.
type request struct {
	method, path, query, kind string
	body                      []byte
	at                        time.Time
}

// tap makes a proxy note what passes, and ask the rules.
func tap(f *stack.Faults) *wire {
	w := &wire{rules: map[int]func(request) *stack.Fault{}}
	f.Set(func(r *http.Request) *stack.Fault {
		q := request{method: r.Method, path: r.URL.Path, query: r.URL.RawQuery, kind: r.Header.Get("Content-Type"), at: time.Now()}
		if r.Body != nil && r.ContentLength != 0 {
			var err error
			if q.body, err = io.ReadAll(r.Body); err != nil {
				return &stack.Fault{Status: http.StatusBadRequest}
			}
			r.Body = io.NopCloser(bytes.NewReader(q.body))
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.sent = append(w.sent, q)
		for _, rule := range w.rules {
			if fault := rule(q); fault != nil {
				return fault
			}
		}
		return nil
	})
	return w
}

// rule says what happens to requests until it is lifted. It must be quick.
func (w *wire) rule(choose func(request) *stack.Fault) (lift func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := w.next
	w.next++
	w.rules[id] = choose
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.rules, id)
	}
}

// about are the requests below a path, such as those of a namespace.
func (w *wire) about(part string) []request {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []request
	for _, q := range w.sent {
		if strings.Contains(q.path, part) {
			out = append(out, q)
		}
	}
	return out
}

// writes are the patches of a sandbox's status.
func (w *wire) writes(ns, name string) []request {
	var out []request
	for _, q := range w.about("/namespaces/" + ns + "/batchsandboxes/" + name + "/status") {
		if q.method != http.MethodGet {
			out = append(out, q)
		}
	}
	return out
}

// driverWrites: one merge patch for one recovery, with the resourceVersion of what was
// decided on, the recovered phase, the policy's changes of the conditions and an explicit
// null; and an event.
func driverWrites(t *testing.T, r *rig) {
	ctx := stack.TestContext(t)
	s := boxesOf(ctx, t, r.Stack, opensandbox.Names{}, opensandbox.Old, v1alpha1.ModeEnforce)
	pod := s.fails(ctx, "box")
	must(t, opensandbox.Ready(ctx, s.admin, pod))
	must(t, s.Reconcile(ctx, "box")) // it counts its Pods, and leaves the phase
	before := s.get(ctx, "box")
	s.becomes(ctx, "box", opensandbox.PhaseSucceed)
	all := r.controller.writes(s.Namespace, "box")
	if len(all) != 1 || all[0].method != http.MethodPatch || all[0].kind != string(types.MergePatchType) {
		t.Fatalf("writes %+v", all)
	}
	var patch struct {
		Metadata map[string]any             `json:"metadata"`
		Status   map[string]json.RawMessage `json:"status"`
		Rest     map[string]any             `json:"-"`
	}
	must(t, json.Unmarshal(all[0].body, &patch))
	must(t, json.Unmarshal(all[0].body, &patch.Rest))
	if len(patch.Rest) != 2 || !gocmp.Equal(patch.Metadata, map[string]any{"resourceVersion": before.ResourceVersion}) {
		t.Errorf("the patch is %s; the object was at %s", all[0].body, before.ResourceVersion)
	}
	var conditions []opensandbox.Condition
	must(t, json.Unmarshal(patch.Status["conditions"], &conditions))
	delete(patch.Status, "conditions")
	want := map[string]json.RawMessage{"phase": json.RawMessage(`"Succeed"`), "failedPodUIDs": json.RawMessage("null")}
	if diff := gocmp.Diff(want, patch.Status); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	preset, err := presetPolicy()
	must(t, err)
	edit := preset.Spec.Recovered.SetConditions[0]
	var ready *opensandbox.Condition
	var others []opensandbox.Condition
	for i, c := range conditions {
		if c.Type == edit.Type {
			ready = &conditions[i]
			continue
		}
		others = append(others, c)
	}
	if ready == nil || ready.Status != string(edit.Status) || ready.Reason != edit.Reason || ready.Message != edit.Message || ready.LastTransitionTime == nil {
		t.Errorf("condition %+v, want %+v", ready, edit)
	}
	var kept []opensandbox.Condition
	for _, c := range before.Status.Conditions {
		if c.Type != edit.Type && c.Type != opensandbox.ConditionPodFailed {
			kept = append(kept, c)
		}
	}
	if diff := gocmp.Diff(kept, others); diff != "" {
		t.Errorf("the other conditions (-want +got):\n%s", diff)
	}
	if _, there := s.stored(ctx, "box")["failedPodUIDs"]; there {
		t.Error("the record is still there")
	}
	if note := s.event(ctx, "box", v1alpha1.ReasonRecovered); !strings.Contains(note, "brought back from Failed to Succeed") || !strings.Contains(note, string(pod.UID)) {
		t.Errorf("event %q", note)
	}

	// Its own controller agrees from here on, and nobody writes any more.
	for range 3 {
		must(t, s.Reconcile(ctx, "box"))
	}
	s.wantPhase(ctx, "box", opensandbox.PhaseSucceed)
	at := s.version(ctx, "box")
	must(t, s.Reconcile(ctx, "box"))
	s.passed(ctx)
	if s.version(ctx, "box") != at || len(r.controller.writes(s.Namespace, "box")) != 1 {
		t.Errorf("written again: %d writes of belay, %+v", len(r.controller.writes(s.Namespace, "box")), s.get(ctx, "box").Status)
	}
	for _, q := range r.controller.about("/namespaces/" + s.Namespace + "/") {
		// The CA for sidecars goes to every namespace that has opted in.
		if q.method != http.MethodGet && !strings.Contains(q.path, "/events") && !strings.HasSuffix(q.path, "/status") && !strings.HasSuffix(q.path, "/configmaps") {
			t.Errorf("belay sent %s %s", q.method, q.path)
		}
	}
	for _, q := range r.webhook.about("/namespaces/" + s.Namespace) {
		if q.method != http.MethodGet {
			t.Errorf("belay-webhook sent %s %s", q.method, q.path)
		}
	}
}

// driverConflicts: somebody writes between the read and the patch. It is decided again.
func driverConflicts(t *testing.T, r *rig) {
	ctx := stack.TestContext(t)
	type row struct {
		// meanwhile is what somebody does between belay's read and its write; fault is what
		// happens to that write.
		meanwhile func(s *boxes, name string) error
		fault     stack.Fault
		phase     string
		writes    int
	}
	parts := map[string]func(*testing.T){}
	for name, c := range map[string]row{
		"somebody annotates it": {
			meanwhile: func(s *boxes, name string) error {
				return s.admin.Patch(ctx, &opensandbox.BatchSandbox{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: name}}, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"who":"me"}}}`)))
			},
			phase: opensandbox.PhaseSucceed, writes: 2,
		},
		"its controller counts its Pods": {
			meanwhile: func(s *boxes, name string) error {
				return s.phase(ctx, name, opensandbox.PhaseFailed, `"taskUnknown":7`)
			},
			phase: opensandbox.PhaseSucceed, writes: 2,
		},
		"its user pauses it": {
			meanwhile: func(s *boxes, name string) error { return s.phase(ctx, name, opensandbox.PhasePausing) },
			phase:     opensandbox.PhasePausing, writes: 1,
		},
		"its controller recovers it": {
			meanwhile: func(s *boxes, name string) error { return s.phase(ctx, name, opensandbox.PhaseSucceed) },
			phase:     opensandbox.PhaseSucceed, writes: 1,
		},
		"the API server fails once":       {fault: stack.Fault{Status: 500, Body: statusBody(500, "InternalError", "etcdserver: request timed out")}, phase: opensandbox.PhaseSucceed, writes: 2},
		"the answer to the write is lost": {fault: stack.Fault{Drop: true}, phase: opensandbox.PhaseSucceed, writes: 1},
		"another Pod fails": {
			meanwhile: func(s *boxes, name string) error {
				b := s.get(ctx, name)
				p, err := opensandbox.NewPod(b, 1)
				if err != nil {
					return err
				}
				return errors.Join(s.admin.Create(ctx, p), opensandbox.Crash(ctx, s.admin, p, "CrashLoopBackOff"), s.phase(ctx, name, opensandbox.PhaseFailed, `"replicas":2`))
			},
			phase: opensandbox.PhaseFailed, writes: 1,
		},
	} {
		parts[name] = func(t *testing.T) {
			s := boxesOf(ctx, t, r.Stack, opensandbox.Names{}, opensandbox.Old, v1alpha1.ModeEnforce)
			box := groupOf(name)
			pod := s.fails(ctx, box)
			written := make(chan error, 1)
			first := true
			lift := r.controller.rule(func(q request) *stack.Fault {
				if q.method != http.MethodPatch || !strings.HasSuffix(q.path, "/namespaces/"+s.Namespace+"/batchsandboxes/"+box+"/status") || !first {
					return nil
				}
				first = false
				fault := c.fault
				fault.Before = func() {
					if c.meanwhile == nil {
						written <- nil
						return
					}
					written <- c.meanwhile(s, box)
				}
				return &fault
			})
			defer lift()
			must(t, opensandbox.Ready(ctx, s.admin, pod))
			select {
			case err := <-written:
				must(t, err)
			case <-ctx.Done():
				t.Fatal("belay never wrote")
			}
			s.becomes(ctx, box, c.phase)
			s.passed(ctx)
			s.wantPhase(ctx, box, c.phase)
			if all := r.controller.writes(s.Namespace, box); len(all) != c.writes {
				t.Errorf("%d writes, want %d", len(all), c.writes)
			}
			if c.phase == opensandbox.PhaseSucceed && s.recordOf(ctx, box) != nil {
				t.Errorf("record %v", s.recordOf(ctx, box))
			}
			if c.phase != opensandbox.PhaseSucceed {
				if diff := gocmp.Diff(uids(pod), s.recordOf(ctx, box)); diff != "" {
					t.Errorf("record (-want +got):\n%s", diff)
				}
			}
			if box == groupOf("its controller counts its Pods") && s.stored(ctx, box)["taskUnknown"] != int64(7) {
				t.Errorf("the other write is lost: %v", s.stored(ctx, box))
			}
		}
	}
	atOnce(t, parts)
}

// podsFail is what goes wrong with reading the Pods of a namespace.
func podsFail(ns string, fault stack.Fault) func(request) *stack.Fault {
	return func(q request) *stack.Fault {
		if q.method == http.MethodGet && (strings.HasSuffix(q.path, "/namespaces/"+ns+"/pods") || strings.Contains(q.path, "/namespaces/"+ns+"/pods/")) {
			return &fault
		}
		return nil
	}
}

func statusBody(code int, reason, message string) string {
	return fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":%q,"reason":%q,"code":%d}`, message, reason, code)
}

// cannotRead are ways in which Pods cannot be read.
func cannotRead() map[string]stack.Fault {
	return map[string]stack.Fault{
		"an error of etcd":           {Status: 500, Body: statusBody(500, "InternalError", "etcdserver: request timed out")},
		"no right":                   {Status: 403, Body: statusBody(403, "Forbidden", "pods is forbidden")},
		"no login":                   {Status: 401, Body: statusBody(401, "Unauthorized", "Unauthorized")},
		"no answer in time":          {Delay: time.Minute},
		"a connection that breaks":   {Drop: true},
		"a path that is not there":   {Status: 404, Body: `404 page not found`},
		"a list that is too old":     {Status: 410, Body: statusBody(410, "Expired", "too old resource version")},
		"a proxy that says anything": {Status: 200, Body: `<html>`},
	}
}

// driverCannotRead: Pods that cannot be read are not gone. Nothing is written and nothing is
// told as long as the trouble lasts, and the object recovers when it is over (S32).
func driverCannotRead(t *testing.T, r *rig) {
	ctx := stack.TestContext(t)
	type trouble struct {
		*boxes
		pod  *corev1.Pod
		at   string
		lift func()
	}
	all := map[string]*trouble{}
	add := func(name string, fault stack.Fault, pool bool) {
		x := &trouble{boxes: boxesOf(ctx, t, r.Stack, opensandbox.Names{}, opensandbox.Old, v1alpha1.ModeEnforce)}
		if pool {
			x.pod = x.pooledFails(ctx, "box")
		} else {
			x.pod = x.fails(ctx, "box")
		}
		x.at = x.version(ctx, "box")
		held := make(chan struct{})
		if fault.Delay > 0 { // until it is lifted, so that nobody has to wait for more
			fault = stack.Fault{Before: func() { <-held }}
		}
		lift := r.controller.rule(podsFail(x.Namespace, fault))
		x.lift = sync.OnceFunc(func() {
			lift()
			close(held)
		})
		t.Cleanup(x.lift)
		all[name] = x
	}
	for name, fault := range cannotRead() {
		add(name, fault, false)
	}
	for _, name := range []string{"an error of etcd", "a path that is not there"} {
		add(name+", for Pods of a pool", cannotRead()[name], true)
	}
	for _, x := range all {
		must(t, opensandbox.Ready(ctx, x.admin, x.pod))
	}
	for name, x := range all {
		stack.Eventually(ctx, t, name+": belay looks", func() error {
			if got := r.controller.about("/namespaces/" + x.Namespace + "/pods"); len(got) == 0 {
				return errors.New("not yet")
			}
			return nil
		})
	}
	sentinel := boxesOf(ctx, t, r.Stack, opensandbox.Names{}, opensandbox.Old, v1alpha1.ModeEnforce)
	sentinel.passed(ctx)
	for name, x := range all {
		if got := x.version(ctx, "box"); got != x.at {
			t.Errorf("%s: it was written: %+v", name, x.get(ctx, "box").Status)
		}
		if told := x.eventsOn(ctx, "box"); len(told) > 0 {
			t.Errorf("%s: events %q", name, told)
		}
		x.lift()
	}
	for name, x := range all {
		t.Run(name, func(t *testing.T) { x.becomes(ctx, "box", opensandbox.PhaseSucceed) })
	}
}

// pooledFails is fails for a sandbox whose Pod is a pool's.
func (s *boxes) pooledFails(ctx context.Context, name string) *corev1.Pod {
	s.t.Helper()
	pod := opensandbox.PoolPod(s.Namespace, "pool", "uid-of-the-pool")
	must(s.t, s.admin.Create(ctx, pod))
	must(s.t, s.admin.Create(ctx, opensandbox.Pooled(s.Namespace, name, "pool", 1)))
	must(s.t, s.Allocate(ctx, name, pod.Name))
	must(s.t, opensandbox.Crash(ctx, s.admin, pod, "CrashLoopBackOff"))
	must(s.t, s.Reconcile(ctx, name))
	if diff := gocmp.Diff(uids(pod), s.recordOf(ctx, name)); diff != "" {
		s.t.Fatalf("record of %s (-want +got):\n%s", name, diff)
	}
	return pod
}

// quiet is an object that stays failed, one that never recovers, and one that did.
type quiet struct {
	*boxes
	since time.Time
	sent  int
}

// driverIsQuiet begins to watch what belay-controller sends about objects that do not change.
func driverIsQuiet(t *testing.T, r *rig) *quiet {
	t.Helper()
	ctx := stack.TestContext(t)
	q := &quiet{boxes: boxesOf(ctx, t, r.Stack, opensandbox.Names{}, opensandbox.Old, v1alpha1.ModeEnforce)}
	q.fails(ctx, "failing")
	q.unrecorded(ctx, "unrecorded")
	q.recovers(ctx, "back", q.fails(ctx, "back"))
	q.event(ctx, "back", v1alpha1.ReasonRecovered)
	q.event(ctx, "unrecorded", v1alpha1.ReasonNotRecoverable)
	q.since, q.sent = time.Now(), len(r.controller.about("/namespaces/"+q.Namespace+"/"))
	return q
}

// ends expects that nothing was sent for twenty seconds. The time is what is tested.
func (q *quiet) ends(ctx context.Context, t *testing.T, r *rig) {
	t.Helper()
	select {
	case <-time.After(20*time.Second - time.Since(q.since)):
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	}
	for _, s := range r.controller.about("/namespaces/" + q.Namespace + "/")[q.sent:] {
		t.Errorf("belay-controller sent %s %s?%s after %s", s.method, s.path, s.query, s.at.Sub(q.since))
	}
}

// controllersDie: kill -9 between the failure and the recovery, with another one to take over
// and with none.
func controllersDie(t *testing.T, r *rig) {
	ctx := stack.TestContext(t)
	s := boxesOf(ctx, t, r.Stack, opensandbox.Names{}, opensandbox.Old, v1alpha1.ModeEnforce)
	if _, err := r.StartController(ctx); err != nil {
		t.Fatal(err)
	}
	before := s.fails(ctx, "before")
	s.recovers(ctx, "before", before)
	taken, none := s.fails(ctx, "taken-over"), s.fails(ctx, "nobody")
	all := r.Controllers()
	all[len(all)-2].Kill()
	s.recovers(ctx, "taken-over", taken)
	if !strings.Contains(all[len(all)-1].Tail(1000), "object brought back") {
		t.Error("the other controller did not take over")
	}
	all[len(all)-1].Kill()
	must(t, opensandbox.Ready(ctx, s.admin, none))
	must(t, s.Reconcile(ctx, "nobody"))
	s.wantPhase(ctx, "nobody", opensandbox.PhaseFailed)
	if _, err := r.StartController(ctx); err != nil {
		t.Fatal(err)
	}
	s.becomes(ctx, "nobody", opensandbox.PhaseSucceed)
	s.passed(ctx)
	for _, name := range []string{"before", "taken-over", "nobody"} {
		if got := s.recordOf(ctx, name); got != nil {
			t.Errorf("%s: record %v", name, got)
		}
		if got := r.controller.writes(s.Namespace, name); len(got) != 1 {
			t.Errorf("%s: written %d times", name, len(got))
		}
	}
}

// driverNeedsNoWebhook: what belay-controller writes does not go through belay's own hook,
// whose failure would keep objects failed (S33).
func driverNeedsNoWebhook(t *testing.T, r *rig) {
	ctx := stack.TestContext(t)
	s := boxesOf(ctx, t, r.Stack, opensandbox.Names{}, opensandbox.Old, v1alpha1.ModeEnforce)
	pod := s.fails(ctx, "box")
	r.Detach()
	defer r.Attach()
	s.recovers(ctx, "box", pod)
}
