package recovery

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/facts"
	rules "github.com/belay-dev/belay/webhook/internal/recovery"
)

// sandboxes is where the resource of these tests' policy is served.
func sandboxes() v1alpha1.ResolvedResource {
	return v1alpha1.ResolvedResource{Group: "sandbox.opensandbox.io", Version: "v1alpha1", Kind: "BatchSandbox", Resource: "batchsandboxes", Namespaced: true}
}

// policyInForce is a policy that brings sandboxes back, as the preset does.
func policyInForce(changes ...func(*v1alpha1.AcceptedRecoveryPolicy)) *v1alpha1.RecoveryPolicy {
	p := builders.MakeRecoveryPolicy("opensandbox").Spec(func(s *v1alpha1.RecoveryPolicySpec) {
		s.Recover = v1alpha1.RecoverAuto
		s.ResumeInFlight = `object.metadata.generation > object.?status.?pauseObservedGeneration.orValue(0) && object.spec.?pause.orValue(true) == false`
		s.Pods = []v1alpha1.PodSource{
			{When: `object.spec.?poolRef.orValue("") == ""`, Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "box"}}, Owner: &v1alpha1.PodsByOwner{}},
			{Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "pool"}}, Names: &v1alpha1.PodsByName{In: v1alpha1.AnnotatedNames{Annotation: "pods"}}},
		}
		s.Recovered = &v1alpha1.RecoveredStatus{
			Phase: "Succeed", RemoveConditions: []string{"PodFailed"},
			SetConditions: []v1alpha1.ConditionEdit{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "PodsReady", Message: "Sandbox is running"}},
		}
	}).Obj()
	p.UID = "policy-uid"
	p.Status.InForce = &v1alpha1.AcceptedRecoveryPolicy{Generation: 1, Spec: p.Spec, Resource: sandboxes(), Record: v1alpha1.RecordSchema{Cleared: v1alpha1.ClearRemove}}
	for _, change := range changes {
		change(p.Status.InForce)
	}
	return p
}

func compiledPolicy(t testing.TB, changes ...func(*v1alpha1.AcceptedRecoveryPolicy)) *facts.RecoveryPolicy {
	t.Helper()
	p, err := facts.CompileRecoveryPolicy(policyInForce(changes...))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func cleared(how v1alpha1.RecordClearing) func(*v1alpha1.AcceptedRecoveryPolicy) {
	return func(in *v1alpha1.AcceptedRecoveryPolicy) { in.Record.Cleared = how }
}

func editing(r v1alpha1.RecoveredStatus) func(*v1alpha1.AcceptedRecoveryPolicy) {
	return func(in *v1alpha1.AcceptedRecoveryPolicy) { in.Spec.Recovered = &r }
}

// nested keeps all that the policy reads in parents of their own.
func nested(in *v1alpha1.AcceptedRecoveryPolicy) {
	in.Spec.PhasePath, in.Spec.RecordPath, in.Spec.ConditionsPath = ".status.state.phase", ".status.recovery.uids", ".status.state.list"
}

// sandbox is BatchSandbox lab/a with a status.
func sandbox(t testing.TB, status string, changes ...func(*unstructured.Unstructured)) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "sandbox.opensandbox.io/v1alpha1", "kind": "BatchSandbox", "spec": map[string]any{}}}
	u.SetName("a")
	u.SetNamespace("lab")
	u.SetUID("box-uid")
	u.SetGeneration(1)
	u.SetResourceVersion("10")
	if status != "" {
		var s any
		if err := json.Unmarshal([]byte(status), &s); err != nil {
			t.Fatal(err)
		}
		u.Object["status"] = s
	}
	for _, change := range changes {
		change(u)
	}
	return u
}

func annotated(annotations map[string]string) func(*unstructured.Unstructured) {
	return func(u *unstructured.Unstructured) { u.SetAnnotations(annotations) }
}

var at = time.Date(2026, 3, 1, 12, 0, 0, 0, time.FixedZone("", 3600))

// TestWhatIsWrittenToBringAnObjectBack: as the patch that is sent, and as what a server
// makes of it.
func TestWhatIsWrittenToBringAnObjectBack(t *testing.T) {
	t.Parallel()
	plain := editing(v1alpha1.RecoveredStatus{Phase: "Succeed"})
	const ready = `{"lastTransitionTime":"2026-03-01T11:00:00Z","message":"Sandbox is running","reason":"PodsReady","status":"True","type":"Ready"}`
	for name, c := range map[string]struct {
		policy []func(*v1alpha1.AcceptedRecoveryPolicy)
		status string
		patch  string // its status
		result string
	}{
		"an explicit null clears the record": {
			[]func(*v1alpha1.AcceptedRecoveryPolicy){plain}, `{"phase":"Failed","failedPodUIDs":["u1"],"ready":0}`,
			`{"failedPodUIDs":null,"phase":"Succeed"}`, `{"phase":"Succeed","ready":0}`,
		},
		"a nullable record, too": {
			[]func(*v1alpha1.AcceptedRecoveryPolicy){plain, cleared(v1alpha1.ClearNull)}, `{"phase":"Failed","failedPodUIDs":["u1"]}`,
			`{"failedPodUIDs":null,"phase":"Succeed"}`, `{"phase":"Succeed"}`,
		},
		"one that must be there is emptied": {
			[]func(*v1alpha1.AcceptedRecoveryPolicy){plain, cleared(v1alpha1.ClearEmpty)}, `{"phase":"Failed","failedPodUIDs":["u1"]}`,
			`{"failedPodUIDs":[],"phase":"Succeed"}`, `{"phase":"Succeed","failedPodUIDs":[]}`,
		},
		"one that must be there, and is null": {
			[]func(*v1alpha1.AcceptedRecoveryPolicy){plain, cleared(v1alpha1.ClearEmpty)}, `{"phase":"Failed","failedPodUIDs":null}`,
			`{"failedPodUIDs":[],"phase":"Succeed"}`, `{"phase":"Succeed","failedPodUIDs":[]}`,
		},
		"no record: null all the same, since another may be on its way": {
			[]func(*v1alpha1.AcceptedRecoveryPolicy){plain}, `{"phase":"Failed"}`, `{"failedPodUIDs":null,"phase":"Succeed"}`, `{"phase":"Succeed"}`,
		},
		"conditions: one goes, one comes, the others stay in their order": {
			nil, `{"phase":"Failed","failedPodUIDs":["u1"],"conditions":[{"type":"Paused","status":"False","x":1},{"type":"PodFailed","status":"True"},{"type":"Progressing","status":"True"}]}`,
			`{"conditions":[{"type":"Paused","status":"False","x":1},{"type":"Progressing","status":"True"},` + ready + `],"failedPodUIDs":null,"phase":"Succeed"}`,
			`{"phase":"Succeed","conditions":[{"type":"Paused","status":"False","x":1},{"type":"Progressing","status":"True"},` + ready + `]}`,
		},
		"conditions: one changes where it is": {
			nil, `{"phase":"Failed","conditions":[{"type":"Ready","status":"False","reason":"Old","message":"old","lastTransitionTime":"2020-01-01T00:00:00Z","observedGeneration":7},{"type":"Paused","status":"False"}]}`,
			`{"conditions":[{"lastTransitionTime":"2026-03-01T11:00:00Z","message":"Sandbox is running","observedGeneration":7,"reason":"PodsReady","status":"True","type":"Ready"},{"status":"False","type":"Paused"}],"failedPodUIDs":null,"phase":"Succeed"}`,
			`{"phase":"Succeed","conditions":[{"type":"Ready","status":"True","reason":"PodsReady","message":"Sandbox is running","lastTransitionTime":"2026-03-01T11:00:00Z","observedGeneration":7},{"type":"Paused","status":"False"}]}`,
		},
		"conditions: a status that is the same keeps its time": {
			nil, `{"phase":"Failed","conditions":[{"type":"Ready","status":"True","reason":"Old","lastTransitionTime":"2020-01-01T00:00:00Z"}]}`,
			`{"conditions":[{"lastTransitionTime":"2020-01-01T00:00:00Z","message":"Sandbox is running","reason":"PodsReady","status":"True","type":"Ready"}],"failedPodUIDs":null,"phase":"Succeed"}`,
			`{"phase":"Succeed","conditions":[{"type":"Ready","status":"True","reason":"PodsReady","message":"Sandbox is running","lastTransitionTime":"2020-01-01T00:00:00Z"}]}`,
		},
		"conditions: what is not said stays": {
			[]func(*v1alpha1.AcceptedRecoveryPolicy){editing(v1alpha1.RecoveredStatus{Phase: "Pending", SetConditions: []v1alpha1.ConditionEdit{{Type: "Ready", Status: metav1.ConditionUnknown}}})},
			`{"phase":"Failed","conditions":[{"type":"Ready","status":"Unknown","reason":"Old","message":"old"}]}`,
			`{"conditions":[{"message":"old","reason":"Old","status":"Unknown","type":"Ready"}],"failedPodUIDs":null,"phase":"Pending"}`,
			`{"phase":"Pending","conditions":[{"type":"Ready","status":"Unknown","reason":"Old","message":"old"}]}`,
		},
		"conditions: all that are removed": {
			[]func(*v1alpha1.AcceptedRecoveryPolicy){editing(v1alpha1.RecoveredStatus{Phase: "Succeed", RemoveConditions: []string{"A", "B"}})},
			`{"phase":"Failed","conditions":[{"type":"B"},{"type":"A"},{"type":"A"},{"type":"a"}]}`,
			`{"conditions":[{"type":"a"}],"failedPodUIDs":null,"phase":"Succeed"}`, `{"phase":"Succeed","conditions":[{"type":"a"}]}`,
		},
		"conditions: one that is removed and set": {
			[]func(*v1alpha1.AcceptedRecoveryPolicy){editing(v1alpha1.RecoveredStatus{Phase: "Succeed", RemoveConditions: []string{"A"}, SetConditions: []v1alpha1.ConditionEdit{{Type: "A", Status: "False"}}})},
			`{"phase":"Failed","conditions":[{"type":"A","status":"True","reason":"x"},{"type":"B"}]}`,
			`{"conditions":[{"type":"B"},{"lastTransitionTime":"2026-03-01T11:00:00Z","status":"False","type":"A"}],"failedPodUIDs":null,"phase":"Succeed"}`,
			`{"phase":"Succeed","conditions":[{"type":"B"},{"type":"A","status":"False","lastTransitionTime":"2026-03-01T11:00:00Z"}]}`,
		},
		"conditions: entries without a type are nobody's": {
			nil, `{"phase":"Failed","conditions":[{},{"type":""},{"type":7},{"status":"True"}]}`,
			`{"conditions":[{},{"type":""},{"type":7},{"status":"True"},` + ready + `],"failedPodUIDs":null,"phase":"Succeed"}`,
			`{"phase":"Succeed","conditions":[{},{"type":""},{"type":7},{"status":"True"},` + ready + `]}`,
		},
		"conditions: none are there": {
			nil, `{"phase":"Failed"}`, `{"conditions":[` + ready + `],"failedPodUIDs":null,"phase":"Succeed"}`, `{"phase":"Succeed","conditions":[` + ready + `]}`,
		},
		"conditions: null is none": {
			nil, `{"phase":"Failed","conditions":null}`, `{"conditions":[` + ready + `],"failedPodUIDs":null,"phase":"Succeed"}`, `{"phase":"Succeed","conditions":[` + ready + `]}`,
		},
		"further down": {
			[]func(*v1alpha1.AcceptedRecoveryPolicy){nested}, `{"phase":"mine","state":{"phase":"Failed","list":[{"type":"PodFailed"}],"n":1},"recovery":{"uids":["u1"],"since":"x"}}`,
			`{"recovery":{"uids":null},"state":{"list":[` + ready + `],"phase":"Succeed"}}`,
			`{"phase":"mine","state":{"phase":"Succeed","list":[` + ready + `],"n":1},"recovery":{"since":"x"}}`,
		},
		"further down, emptied": {
			[]func(*v1alpha1.AcceptedRecoveryPolicy){nested, plain, cleared(v1alpha1.ClearEmpty)}, `{"state":{"phase":"Failed"},"recovery":{"uids":["u1"],"since":"x"}}`,
			`{"recovery":{"uids":[]},"state":{"phase":"Succeed"}}`, `{"state":{"phase":"Succeed"},"recovery":{"uids":[],"since":"x"}}`,
		},
		"further down, and conditions are not there": {
			[]func(*v1alpha1.AcceptedRecoveryPolicy){nested, func(in *v1alpha1.AcceptedRecoveryPolicy) { in.Spec.ConditionsPath = ".status.more.list" }}, `{"state":{"phase":"Failed"},"recovery":{"uids":["u1"]},"more":null}`,
			`{"more":{"list":[` + ready + `]},"recovery":{"uids":null},"state":{"phase":"Succeed"}}`,
			`{"state":{"phase":"Succeed"},"recovery":{},"more":{"list":[` + ready + `]}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			current := sandbox(t, c.status)
			before := current.DeepCopy()
			patch := patchOf(t, compiledPolicy(t, c.policy...), current)
			if diff := cmp.Diff(before, current); diff != "" {
				t.Errorf("the object was changed\n%s", diff)
			}
			sameJSON(t, `{"metadata":{"resourceVersion":"10"},"status":`+c.patch+`}`, string(patch))
			raw, err := json.Marshal(current)
			if err != nil {
				t.Fatal(err)
			}
			merged, err := jsonpatch.MergePatch(raw, patch)
			if err != nil {
				t.Fatal(err)
			}
			var got struct{ Status json.RawMessage }
			if err := json.Unmarshal(merged, &got); err != nil {
				t.Fatal(err)
			}
			sameJSON(t, c.result, string(got.Status))
		})
	}
}

// TestOwnedLeavesOutWhatHasNoParent: a parent that is made for a record that is empty would
// lack all else that it needs.
func TestOwnedLeavesOutWhatHasNoParent(t *testing.T) {
	t.Parallel()
	removing := editing(v1alpha1.RecoveredStatus{Phase: "Succeed", RemoveConditions: []string{"A"}})
	for _, how := range []v1alpha1.RecordClearing{v1alpha1.ClearNull, v1alpha1.ClearRemove, v1alpha1.ClearEmpty} {
		for _, status := range []string{`{"state":{"phase":"Failed"}}`, `{"state":{"phase":"Failed"},"recovery":null}`} {
			p := compiledPolicy(t, nested, removing, cleared(how), func(in *v1alpha1.AcceptedRecoveryPolicy) { in.Spec.ConditionsPath = ".status.recovery.list" })
			patch := patchOf(t, p, sandbox(t, status))
			var got struct{ Status map[string]any }
			if err := json.Unmarshal(patch, &got); err != nil {
				t.Fatal(err)
			}
			if got.Status["recovery"] != nil {
				t.Errorf("%s, %s: %s", how, status, patch)
			}
		}
	}
}

func patchOf(t *testing.T, p *facts.RecoveryPolicy, current *unstructured.Unstructured) []byte {
	t.Helper()
	desired, err := recovered(p, current, at)
	if err != nil {
		t.Fatal(err)
	}
	patch, changed, err := owned(p, current).Make(current, desired)
	if err != nil || !changed {
		t.Fatalf("%t %v", changed, err)
	}
	return patch
}

func sameJSON(t *testing.T, want, got string) {
	t.Helper()
	var a, b any
	if err := json.Unmarshal([]byte(want), &a); err != nil {
		t.Fatalf("%v: %s", err, want)
	}
	if err := json.Unmarshal([]byte(got), &b); err != nil {
		t.Fatalf("%v: %s", err, got)
	}
	if diff := cmp.Diff(a, b); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestAStatusOfAnotherShapeIsNotBroughtBack: an error, and never a panic.
func TestAStatusOfAnotherShapeIsNotBroughtBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		policy []func(*v1alpha1.AcceptedRecoveryPolicy)
		status string
		want   string
	}{
		"a status that is a text":                              {nil, `"x"`, "setting .status.phase: "},
		"a parent of the phase is a list":                      {[]func(*v1alpha1.AcceptedRecoveryPolicy){nested}, `{"state":[]}`, "setting .status.state.phase: "},
		"a parent of the record is a text: there is no record": {[]func(*v1alpha1.AcceptedRecoveryPolicy){nested, cleared(v1alpha1.ClearEmpty)}, `{"state":{},"recovery":"x"}`, ""},
		"conditions that are a map":                            {nil, `{"conditions":{}}`, "reading .status.conditions: "},
		"conditions below a number":                            {[]func(*v1alpha1.AcceptedRecoveryPolicy){func(in *v1alpha1.AcceptedRecoveryPolicy) { in.Spec.ConditionsPath = ".status.n.list" }}, `{"n":7}`, "reading .status.n.list: "},
		"conditions where the phase is put":                    {[]func(*v1alpha1.AcceptedRecoveryPolicy){func(in *v1alpha1.AcceptedRecoveryPolicy) { in.Spec.ConditionsPath = ".status.phase" }}, `{}`, "reading .status.phase: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := recovered(compiledPolicy(t, c.policy...), sandbox(t, c.status), at)
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.HasPrefix(err.Error(), c.want) || got != nil {
				t.Errorf("%v %v", got, err)
			}
		})
	}
}

func TestTheFieldsThatBelayWrites(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		policy   []func(*v1alpha1.AcceptedRecoveryPolicy)
		fields   []string
		required []string
	}{
		"phase, record and conditions":     {nil, []string{"phase", "failedPodUIDs", "conditions"}, nil},
		"no changes of conditions":         {[]func(*v1alpha1.AcceptedRecoveryPolicy){editing(v1alpha1.RecoveredStatus{Phase: "Succeed"})}, []string{"phase", "failedPodUIDs"}, nil},
		"conditions that are removed only": {[]func(*v1alpha1.AcceptedRecoveryPolicy){editing(v1alpha1.RecoveredStatus{RemoveConditions: []string{"A"}})}, []string{"phase", "failedPodUIDs", "conditions"}, nil},
		"a record that must be there":      {[]func(*v1alpha1.AcceptedRecoveryPolicy){cleared(v1alpha1.ClearEmpty)}, []string{"phase", "failedPodUIDs", "conditions"}, []string{"failedPodUIDs"}},
		"further down":                     {[]func(*v1alpha1.AcceptedRecoveryPolicy){nested}, []string{"state.phase", "recovery.uids", "state.list"}, nil},
		"nothing is said of recovery":      {[]func(*v1alpha1.AcceptedRecoveryPolicy){func(in *v1alpha1.AcceptedRecoveryPolicy) { in.Spec.Recovered = nil }}, []string{"phase", "failedPodUIDs"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := owned(compiledPolicy(t, c.policy...), sandbox(t, `{"state":{},"recovery":{}}`))
			if diff := cmp.Diff(c.fields, o.Fields) + cmp.Diff(c.required, o.Required); diff != "" || !o.ResourceVersion || o.Always || o.FieldOwner != "belay-controller" {
				t.Errorf("%+v (-want +got)\n%s", o, diff)
			}
		})
	}
}

// TestTheQuestionIsAlwaysTheLastOne: as if nothing changed the write any more.
func TestTheQuestionIsAlwaysTheLastOne(t *testing.T) {
	t.Parallel()
	p := compiledPolicy(t)
	about, was, is := rules.Object{Name: "a"}, rules.Status{Phase: "Failed"}, rules.Status{Phase: "Succeed"}
	want := rules.Input{Policy: p.Policy, Object: about, Old: was, New: is, Final: true, Now: at}
	if diff := cmp.Diff(want, input(p, about, was, is, at)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
