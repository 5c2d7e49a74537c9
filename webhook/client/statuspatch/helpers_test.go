package statuspatch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// box has a field of each sort in its status.
type box struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              boxSpec   `json:"spec,omitempty"`
	Status            boxStatus `json:"status,omitempty"`
}

type boxSpec struct {
	Replicas int32 `json:"replicas,omitempty"`
}

type boxStatus struct {
	counts        `json:",inline"`
	Phase         string                `json:"phase,omitempty"`
	FailedPodUIDs []string              `json:"failedPodUIDs,omitempty"`
	Slots         []string              `json:"slots"`
	Task          *task                 `json:"task,omitempty"`
	Plain         task                  `json:"plain"`
	Maybe         task                  `json:"maybe,omitzero"`
	Last          named                 `json:"last"`
	Started       *metav1.Time          `json:"started,omitempty"`
	Seen          metav1.Time           `json:"seen,omitempty"`
	Extra         *runtime.RawExtension `json:"extra,omitempty"`
	Raw           json.RawMessage       `json:"raw,omitempty"`
	Any           any                   `json:"any,omitempty"`
	Labels        map[string]string     `json:"labels,omitempty"`
	Tasks         map[string]task       `json:"tasks,omitempty"`
	Conditions    []metav1.Condition    `json:"conditions,omitempty"`
	Secret        string                `json:"-"`
	private       string
}

type counts struct {
	Ready int32 `json:"ready"`
	Total int64 `json:"total,omitempty"`
}

type named struct {
	counts `json:"counts"`
	Reason string `json:"reason,omitempty"`
}

type task struct {
	Running int32    `json:"running,omitempty"`
	Done    bool     `json:"done"`
	Nodes   []string `json:"nodes,omitempty"`
	Next    *task    `json:"next,omitempty"`
}

func (b *box) DeepCopyObject() runtime.Object {
	into := &box{}
	copyJSON(b, into)
	into.Status.Secret, into.Status.private = b.Status.Secret, b.Status.private
	return into
}

func copyJSON(from, into any) {
	data, err := json.Marshal(from)
	if err != nil {
		panic(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		panic(err)
	}
}

func newBox(t testing.TB, status string) *box {
	t.Helper()
	b := &box{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "u1", ResourceVersion: "7"}}
	if err := json.Unmarshal([]byte(status), &b.Status); err != nil {
		t.Fatal(err)
	}
	return b
}

// untyped is an object whose status is that JSON. An empty one is no status.
func untyped(t testing.TB, status string) *unstructured.Unstructured {
	t.Helper()
	text := `{"apiVersion":"example.com/v1","kind":"Box","metadata":{"namespace":"ns","name":"a","uid":"u1","resourceVersion":"7"}`
	if status != "" {
		text += `,"status":` + status
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON([]byte(text + "}")); err != nil {
		t.Fatal(err)
	}
	return u
}

func mustMake(t testing.TB, o Options, current, desired client.Object) (patch []byte, changed bool) {
	t.Helper()
	patch, changed, err := o.Make(current, desired)
	if err != nil {
		t.Fatal(err)
	}
	return patch, changed
}

// apply is what an API server does with a status and a patch.
func apply(t testing.TB, status any, patch []byte) map[string]any {
	t.Helper()
	live, err := json.Marshal(map[string]any{"metadata": map[string]any{"name": "a", "resourceVersion": "7"}, "spec": map[string]any{"replicas": 1}, "status": status})
	if err != nil {
		t.Fatal(err)
	}
	data, err := jsonpatch.MergePatch(live, patch)
	if err != nil {
		t.Fatalf("%v: applying %s", err, patch)
	}
	var result struct {
		Metadata map[string]any `json:"metadata"`
		Spec     map[string]any `json:"spec"`
		Status   map[string]any `json:"status"`
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&result); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(result.Metadata, result.Spec) != "map[name:a resourceVersion:7] map[replicas:1]" {
		t.Fatalf("metadata %v and spec %v are not what they were", result.Metadata, result.Spec)
	}
	return result.Status
}

// plain is a value as JSON has it, numbers as they are written.
func plain(t testing.TB, value any) any {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	decoded, err := decode(data)
	if err != nil {
		t.Fatal(err)
	}
	return decoded
}

func toText(t testing.TB, value any) string {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
