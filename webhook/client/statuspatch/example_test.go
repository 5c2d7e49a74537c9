package statuspatch_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/webhook/client/statuspatch"
)

// Sandbox is the kind of the examples.
type Sandbox struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Status            SandboxStatus `json:"status,omitempty"`
}

// SandboxStatus has omitempty where most types have it.
type SandboxStatus struct {
	Phase         string   `json:"phase,omitempty"`
	Ready         int32    `json:"ready"`
	FailedPodUIDs []string `json:"failedPodUIDs,omitempty"`
}

// DeepCopyObject is what controller-gen would have written.
func (s *Sandbox) DeepCopyObject() runtime.Object { return s.DeepCopy() }

// DeepCopy is what controller-gen would have written.
func (s *Sandbox) DeepCopy() *Sandbox {
	c := *s
	c.Status.FailedPodUIDs = append([]string(nil), s.Status.FailedPodUIDs...)
	return &c
}

// A list is cleared although its field has omitempty, and although the cache that
// current comes from has not seen it.
func Example() {
	current := &Sandbox{ // as the cache has it
		ObjectMeta: metav1.ObjectMeta{Namespace: "runs", Name: "a", ResourceVersion: "41"},
		Status:     SandboxStatus{Phase: "Failed"},
	}
	api := &server{stored: `{"metadata":{"namespace":"runs","name":"a","resourceVersion":"42"},
		"status":{"phase":"Failed","ready":0,"failedPodUIDs":["3f0c"],"quota":"somebody else's"}}`}

	desired := current.DeepCopy()
	desired.Status = SandboxStatus{Phase: "Running", Ready: 1}
	wrote, err := statuspatch.Options{}.Write(context.Background(), api, current, desired)
	fmt.Println(wrote, err)
	fmt.Println("sent:  ", api.sent)
	fmt.Println("stored:", api.stored)

	// The same once more: desired is what the API server has by now.
	wrote, err = statuspatch.Options{}.Write(context.Background(), api, desired, desired.DeepCopy())
	fmt.Println(wrote, err)
	// Output:
	// true <nil>
	// sent:   {"status":{"failedPodUIDs":null,"phase":"Running","ready":1}}
	// stored: {"metadata":{"name":"a","namespace":"runs","resourceVersion":"43"},"status":{"phase":"Running","quota":"somebody else's","ready":1}}
	// false <nil>
}

// A decision that rests on what was read is only good for that: somebody has written
// in between, and the write is refused. Read again, and decide again.
func ExampleOptions_Write_resourceVersion() {
	api := &server{stored: `{"metadata":{"namespace":"runs","name":"a","resourceVersion":"42"},
		"status":{"phase":"Failed","ready":0,"failedPodUIDs":["3f0c","77aa"]}}`}
	stale := &Sandbox{
		ObjectMeta: metav1.ObjectMeta{Namespace: "runs", Name: "a", ResourceVersion: "41"},
		Status:     SandboxStatus{Phase: "Failed", FailedPodUIDs: []string{"3f0c"}},
	}
	recovered := stale.DeepCopy() // 3f0c is well again, and 77aa is not known here
	recovered.Status.Phase, recovered.Status.FailedPodUIDs = "Running", nil

	options := statuspatch.Options{Fields: []string{"phase", "failedPodUIDs"}, ResourceVersion: true, FieldOwner: "sandboxes"}
	wrote, err := options.Write(context.Background(), api, stale, recovered)
	fmt.Println("sent:", api.sent)
	fmt.Println(wrote, apierrors.IsConflict(err))
	// Output:
	// sent: {"metadata":{"resourceVersion":"41"},"status":{"failedPodUIDs":null,"phase":"Running"}}
	// false true
}

// Of an unstructured object the fields are named. This one's status has more in it,
// which stays out of the patch.
func ExampleOptions_Make_unstructured() {
	current := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Sandbox",
		"metadata": map[string]any{"namespace": "runs", "name": "a"},
		"status": map[string]any{
			"phase":         "Failed",
			"failedPodUIDs": []any{"3f0c"},
			"task":          map[string]any{"running": int64(1), "started": "10:02"},
		},
	}}
	desired := current.DeepCopy()
	desired.Object["status"] = map[string]any{"phase": "Running"}

	options := statuspatch.Options{Fields: []string{"phase", "failedPodUIDs", "task.running"}}
	patch, changed, err := options.Make(current, desired)
	fmt.Println(string(patch), changed, err)
	// Output:
	// {"status":{"failedPodUIDs":null,"phase":"Running","task":{"running":null}}} true <nil>
}

// A path that the Go type does not have is told, with those that may have been meant.
func ExampleOptions_Make_misspelt() {
	current := &Sandbox{ObjectMeta: metav1.ObjectMeta{Namespace: "runs", Name: "a"}}
	_, _, err := statuspatch.Options{Fields: []string{"failedPodUids"}}.Make(current, current.DeepCopy())
	fmt.Println(err)
	// Output:
	// field "failedPodUids": status (statuspatch_test.SandboxStatus) has no "failedPodUids"; near: failedPodUIDs, ready, phase
}

// server stands for an API server. A controller has c.Status() for it.
type server struct{ stored, sent string }

func (s *server) Patch(_ context.Context, obj client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
	data, err := patch.Data(obj)
	if err != nil {
		return err
	}
	s.sent = string(data)
	merged, err := jsonpatch.MergePatch([]byte(s.stored), data)
	if err != nil {
		return err
	}
	var before, after Sandbox
	for text, into := range map[string]*Sandbox{s.stored: &before, string(merged): &after} {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			return err
		}
	}
	if before.ResourceVersion != after.ResourceVersion {
		return apierrors.NewConflict(schema.GroupResource{Group: "example.com", Resource: "sandboxes"}, obj.GetName(), errors.New("the object has been modified"))
	}
	merged, err = jsonpatch.MergePatch(merged, []byte(`{"metadata":{"resourceVersion":"43"}}`))
	if err != nil {
		return err
	}
	s.stored = string(merged)
	return json.Unmarshal(merged, obj)
}
