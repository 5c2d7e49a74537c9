package recovery

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
)

// The inputs of this package's tests: box "a" is guarded by a policy with the phases of
// OpenSandbox, where Succeed means that it runs. Its Pods are box-0 and box-1.

const (
	u1 = "u1"
	u2 = "u2"
	u3 = "u3"
	// seal is the mark of a record that has none; beside UIDs it says that some are missing.
	seal = v1alpha1.NoPodUID
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func policy(changes ...func(*Policy)) Policy {
	p := Policy{
		Name:         "boxes",
		Failed:       []v1alpha1.Phase{"Failed"},
		Recovered:    []v1alpha1.Phase{"Succeed", "Pending"},
		Lifecycle:    []v1alpha1.Phase{"Pausing", "Paused", "Resuming"},
		ReplacesPods: []v1alpha1.Phase{"Resuming"},
		Detectors: Detectors{
			WaitingReasons: []string{"CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "CreateContainerConfigError"},
			Terminal:       true,
		},
		Source:        v1alpha1.EvidenceKubelet,
		FreshFor:      30 * time.Second,
		FailurePolicy: v1alpha1.FailureFail,
	}
	for _, change := range changes {
		change(&p)
	}
	return p
}

// write is a write of a status in the mutating phase.
func write(from, to Status, changes ...func(*Input)) Input {
	in := Input{Policy: policy(), Object: Object{Kind: "Box", Name: "a"}, Old: from, New: to, Now: now}
	for _, change := range changes {
		change(&in)
	}
	return in
}

// status is one with a phase and a record. Without UIDs the field is not there.
func status(phase string, uids ...string) Status {
	return Status{Phase: phase, Record: Record{Present: len(uids) > 0, UIDs: uids}}
}

func (s Status) terminal() Status {
	s.Terminal = true
	return s
}

func (s Status) null() Status {
	s.Record = Record{Present: true, Null: true}
	return s
}

func (s Status) empty() Status {
	s.Record = Record{Present: true}
	return s
}

func deletingObject(in *Input)      { in.Object.Deleting = true }
func resumeInFlight(in *Input)      { in.Object.ResumeInFlight = true }
func resumeUnclear(in *Input)       { in.Object.ResumeProblem = "spec.resumeInFlight: no such key: pause" }
func annotated(in *Input)           { in.Object.Allowed = true }
func ignoring(in *Input)            { in.Policy.FailurePolicy = v1alpha1.FailureIgnore }
func recordRequired(in *Input)      { in.Policy.Required = true }
func finally(in *Input)             { in.Final = true }
func previewing(in *Input)          { in.Final, in.Preview = true, true }
func capacity(n int64) func(*Input) { return func(in *Input) { in.Policy.MaxItems = n } }

// unknownPods are Pods that could not be found out, whatever is asked.
func unknownPods(f PodsFact) func(*Input) { return func(in *Input) { in.Pods = f } }

// podNamed is a Pod that is ready, as the kubelet writes it, with one container.
func podNamed(name, uid string, changes ...func(*corev1.Pod)) Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid)},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyAlways,
			Containers:    []corev1.Container{{Name: "main"}},
		},
		Status: corev1.PodStatus{
			Phase:      corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: "main", ContainerID: "containerd://m1", Ready: true, State: running(),
			}},
		},
	}
	for _, change := range changes {
		change(p)
	}
	return PodOf(p)
}

func one(changes ...func(*corev1.Pod)) Pod { return podNamed("box-0", u1, changes...) }
func two(changes ...func(*corev1.Pod)) Pod { return podNamed("box-1", u2, changes...) }

func running() corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
}

func waiting(reason string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
}

func ended(code int32) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}
}

// main is a change of the state of the container main, and of the Pod's readiness with it.
func main(state corev1.ContainerState) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for i := range p.Status.ContainerStatuses {
			if s := &p.Status.ContainerStatuses[i]; s.Name == "main" {
				s.State, s.Ready = state, false
			}
		}
		unready(p)
	}
}

func looping(p *corev1.Pod) { main(waiting("CrashLoopBackOff"))(p) }

func unready(p *corev1.Pod) { condition(corev1.PodReady, corev1.ConditionFalse)(p) }

func deletingPod(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }

func inPhase(phase corev1.PodPhase, reason string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase, p.Status.Reason = phase, reason }
}

func withoutStatuses(p *corev1.Pod) { p.Status.ContainerStatuses = nil }

func never(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }

func defaultContainer(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Annotations = map[string]string{AnnotationDefaultContainer: name}
	}
}

func condition(t corev1.PodConditionType, s corev1.ConditionStatus) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = slices.DeleteFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == t })
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: t, Status: s})
	}
}

func gated(gates ...corev1.PodConditionType) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, g := range gates {
			p.Spec.ReadinessGates = append(p.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: g})
		}
	}
}

// container puts a container behind main, with its status in front of main's.
func container(name string, state corev1.ContainerState) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: name})
		s := corev1.ContainerStatus{Name: name, ContainerID: "containerd://" + name, State: state, Ready: state.Running != nil}
		p.Status.ContainerStatuses = append([]corev1.ContainerStatus{s}, p.Status.ContainerStatuses...)
	}
}

func initContainer(name string, state corev1.ContainerState) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: name})
		p.Status.InitContainerStatuses = append(p.Status.InitContainerStatuses, corev1.ContainerStatus{
			Name: name, State: state, Ready: state.Terminated != nil && state.Terminated.ExitCode == 0 || state.Running != nil,
		})
	}
}

// nativeSidecar is an init container that is restarted always.
func nativeSidecar(name string, state corev1.ContainerState) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		initContainer(name, state)(p)
		p.Spec.InitContainers[len(p.Spec.InitContainers)-1].RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	}
}

// reported is a sidecar's report about a container, so long ago.
func reported(status corev1.ConditionStatus, message string, ago time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
			Type: v1alpha1.MainReadyCondition, Status: status, Message: message, LastProbeTime: metav1.Time{Time: now.Add(-ago)},
		})
	}
}

// asked grants a decision's wishes: first the Pods as a cache has them, then live. It
// returns the input that has been decided on and what was asked for.
func asked(t *testing.T, in Input, pods []Pod) (Decision, Input, []Wish) {
	t.Helper()
	var wishes []Wish
	for range 3 {
		d := Decide(in)
		switch d.Wish {
		case WishNone:
			return d, in, wishes
		case WishPods:
			in.Pods = PodsFact{State: fact.Known, Pods: pods}
		case WishLivePods:
			in.Pods = PodsFact{State: fact.Known, Pods: pods, Live: true}
		default:
			t.Fatalf("nobody knows the wish %q", d.Wish)
		}
		if d.Allowed || d.Retry || d.Reason != "" || d.Message != "" || d.Warnings != nil || !d.Record.None() || d.Evidence != nil {
			t.Fatalf("a wish and a decision at once: %+v", d)
		}
		wishes = append(wishes, d.Wish)
	}
	t.Fatalf("no decision after %q: %+v", wishes, in)
	return Decision{}, in, nil
}

// edited is a status as belay leaves it.
func edited(p Policy, s Status, e Edit) Status {
	switch {
	case e.Clear && p.Required:
		s.Record = Record{Present: true}
	case e.Clear:
		s.Record = Record{}
	case e.UIDs != nil:
		s.Record = Record{Present: true, UIDs: slices.Clone(e.UIDs)}
	}
	return s
}

// outcome is a decision in two words.
func outcome(d Decision) string {
	switch {
	case d.Wish != WishNone:
		return "wish " + string(d.Wish)
	case d.Allowed && !d.Retry:
		return "allow " + string(d.Reason)
	case d.Allowed:
		return "allow and retry " + string(d.Reason)
	case d.Retry:
		return "retry " + string(d.Reason)
	}
	return "deny " + string(d.Reason)
}

// checkDecision holds a decision to what must be so whatever it is about.
func checkDecision(t *testing.T, in Input, d Decision) {
	t.Helper()
	bad := func(what string) { t.Errorf("%s: %+v\n%+v", what, in, d) }
	if d.Wish != WishNone {
		if d.Allowed || d.Reason != "" || d.Message != "" || !d.Record.None() {
			bad("a wish and a decision at once")
		}
		return
	}
	switch {
	case d.Reason == "":
		bad("no reason")
	case !d.Allowed && !d.Record.None():
		bad("denied and edited")
	case d.Allowed && d.Retry:
		bad("admitted, to be tried again")
	case in.Final && !in.Preview && !d.Record.None():
		bad("the validating phase edits")
	case d.Record.Clear && d.Record.UIDs != nil:
		bad("cleared and set at once")
	case d.Record.UIDs != nil && len(d.Record.UIDs) == 0:
		bad("set to nothing")
	case !d.Allowed || !d.Record.None():
		checkWording(t, d.Message)
	case d.Message != "":
		bad("a message about nothing")
	}
	for _, w := range d.Warnings {
		checkWording(t, w)
	}
	for _, v := range d.Evidence {
		checkWording(t, v.String())
		if d.Allowed && !v.OK() {
			bad("admitted against the evidence")
		}
	}
}

// checkWording holds a message to the rules for messages: lower case, no final stop, one
// line, bounded, and text.
func checkWording(t *testing.T, message string) {
	t.Helper()
	first, _ := utf8.DecodeRuneInString(message)
	switch {
	case message == "":
		t.Error("there is no message")
	case unicode.IsUpper(first), unicode.IsSpace(first):
		t.Errorf("does not begin with a small letter: %q", message)
	case strings.HasSuffix(message, "."):
		t.Errorf("ends in a full stop: %q", message)
	case strings.ContainsFunc(message, unicode.IsControl):
		t.Errorf("is more than one line: %q", message)
	case !utf8.ValidString(message):
		t.Errorf("is no text: %q", message)
	case len(message) > 4096:
		t.Errorf("has %d bytes: %.100q…", len(message), message)
	}
}

// numbered are so many UIDs.
func numbered(n int) []string {
	out := make([]string, 0, n)
	for i := range n {
		out = append(out, fmt.Sprintf("n%03d", i))
	}
	return out
}

// reasons reads the closed list from its source.
func reasons(t *testing.T) []Reason {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []Reason
	ast.Inspect(f, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			s, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			if s != "" {
				out = append(out, Reason(s))
			}
		}
		return true
	})
	if len(out) < 25 {
		t.Fatalf("only %d reasons were found", len(out))
	}
	return out
}

func ref(uid string, controller bool) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Box", Name: uid, UID: types.UID(uid), Controller: &controller}
}
