package statuspatch

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// The client's interface has what Write needs.
var _ Patcher = client.SubResourceWriter(nil)

// sent is one patch that an api got.
type sent struct {
	Kind, Object string
	Type         types.PatchType
	Patch        string
	Owner        string
}

// api is what there is of an API server: it notes the patches, and answers with an
// object or an error.
type api struct {
	sent   []sent
	answer string
	err    error
}

func (a *api) Patch(_ context.Context, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	data, err := patch.Data(obj)
	if err != nil {
		return err
	}
	o := client.SubResourcePatchOptions{}
	o.ApplyOptions(opts)
	a.sent = append(a.sent, sent{Kind: obj.GetObjectKind().GroupVersionKind().Kind, Object: client.ObjectKeyFromObject(obj).String(), Type: patch.Type(), Patch: string(data), Owner: o.FieldManager})
	if a.err != nil {
		obj.SetName("half an answer")
		return a.err
	}
	return json.Unmarshal([]byte(a.answer), obj)
}

func TestWrite(t *testing.T) {
	t.Parallel()
	conflict := apierrors.NewConflict(schema.GroupResource{Group: "example.com", Resource: "boxes"}, "a", errors.New("modified"))
	const answer = `{"apiVersion":"example.com/v1","kind":"Box","metadata":{"namespace":"ns","name":"a","uid":"u1","resourceVersion":"8"},"status":{"phase":"Running","webhook":"was here"}}`
	failed := `{"phase":"Failed","failedPodUIDs":["u1"]}`
	tests := map[string]struct {
		current, desired string
		options          Options
		err              error
		want             []sent
	}{
		"a change is sent once": {
			current: failed, desired: `{"phase":"Running"}`, options: Options{Fields: []string{"phase", "failedPodUIDs"}},
			want: []sent{{Kind: "Box", Object: "ns/a", Type: types.MergePatchType, Patch: `{"status":{"failedPodUIDs":null,"phase":"Running"}}`}},
		},
		"with a precondition and an owner": {
			current: failed, desired: `{"phase":"Failed"}`, options: Options{Fields: []string{"failedPodUIDs"}, ResourceVersion: true, FieldOwner: "boxes"},
			want: []sent{{Kind: "Box", Object: "ns/a", Type: types.MergePatchType, Patch: `{"metadata":{"resourceVersion":"7"},"status":{"failedPodUIDs":null}}`, Owner: "boxes"}},
		},
		"what is there is not sent": {current: failed, desired: `{"failedPodUIDs":["u1"],"ready":1}`, options: Options{Fields: []string{"failedPodUIDs"}}},
		"unless it is asked for": {
			current: failed, desired: failed, options: Options{Fields: []string{"phase"}, Always: true},
			want: []sent{{Kind: "Box", Object: "ns/a", Type: types.MergePatchType, Patch: `{"status":{"phase":"Failed"}}`}},
		},
		"a conflict is not tried again": {
			current: failed, desired: `{}`, options: Options{Fields: []string{"phase"}}, err: conflict,
			want: []sent{{Kind: "Box", Object: "ns/a", Type: types.MergePatchType, Patch: `{"status":{"phase":null}}`}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			typed := func(status string) client.Object {
				b := newBox(t, status)
				b.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Box"})
				return b
			}
			untyped := func(status string) client.Object { return untyped(t, status) }
			for _, object := range []func(string) client.Object{typed, untyped} {
				a := &api{answer: answer, err: tc.err}
				current, desired := object(tc.current), object(tc.desired)
				wrote, err := tc.options.Write(t.Context(), a, current, desired)
				if diff := cmp.Diff(tc.want, a.sent); diff != "" {
					t.Errorf("sent (-want +got):\n%s", diff)
				}
				want := object(tc.desired)
				switch {
				case tc.err != nil:
					if wrote || !apierrors.IsConflict(err) || err.Error() != `patching the status of box ns/a: `+tc.err.Error() {
						t.Errorf("wrote %t, error %v", wrote, err)
					}
				case err != nil:
					t.Fatal(err)
				case wrote != (len(tc.want) > 0):
					t.Errorf("wrote %t", wrote)
				case wrote:
					want = object(`{"phase":"Running","webhook":"was here"}`) // nothing of desired is left over
					want.SetResourceVersion("8")
				}
				if diff := cmp.Diff(want, desired, cmp.AllowUnexported(box{}, boxStatus{}, named{})); diff != "" {
					t.Errorf("desired (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(object(tc.current), current, cmp.AllowUnexported(box{}, boxStatus{}, named{})); diff != "" {
					t.Errorf("current was changed (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestWriteSaysWhatItCannotMake(t *testing.T) {
	t.Parallel()
	a := &api{}
	b := newBox(t, `{}`)
	for want, desired := range map[string]client.Object{
		"making a patch for the status of box ns/a: current and desired are one object, so nothing could be seen to change; change a copy": b,
		"making a patch for the status of nothing: there is no desired object":                                                             (*box)(nil),
	} {
		if wrote, err := (Options{}).Write(t.Context(), a, b, desired); wrote || err == nil || err.Error() != want {
			t.Errorf("wrote %t, error %v, want %q", wrote, err, want)
		}
	}
	if len(a.sent) > 0 {
		t.Errorf("sent %v", a.sent)
	}
}

// A client of Go types leaves the kind out of its answer.
func TestWriteKeepsTheKind(t *testing.T) {
	t.Parallel()
	current, desired := newBox(t, `{}`), newBox(t, `{"phase":"a"}`)
	current.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Box"})
	a := &forgetful{}
	if _, err := (Options{}).Write(t.Context(), a, current, desired); err != nil {
		t.Fatal(err)
	}
	if got := desired.GetObjectKind().GroupVersionKind().String(); got != "example.com/v1, Kind=Box" {
		t.Errorf("kind %q", got)
	}
}

type forgetful struct{}

func (*forgetful) Patch(_ context.Context, obj client.Object, _ client.Patch, _ ...client.SubResourcePatchOption) error {
	obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return nil
}

// With controller-runtime's own fake client, which merges as an API server does, has
// resourceVersions, and keeps spec and status apart.
func TestWriteToAFakeClient(t *testing.T) {
	t.Parallel()
	began := metav1.Unix(1767323045, 0)
	stored := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "u1"},
		Status: batchv1.JobStatus{
			Active: 2, Failed: 1, StartTime: &began,
			UncountedTerminatedPods: &batchv1.UncountedTerminatedPods{Failed: []types.UID{"p1"}, Succeeded: []types.UID{"p2"}},
			Conditions:              []batchv1.JobCondition{{Type: batchv1.JobFailureTarget, Status: "True"}},
		},
	}
	c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithStatusSubresource(stored).WithObjects(stored).Build()
	get := func(into client.Object) {
		t.Helper()
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "a"}, into); err != nil {
			t.Fatal(err)
		}
	}
	read := &batchv1.Job{}
	get(read)

	// The cache has not seen who failed. A difference from it would not clear them.
	stale := read.DeepCopy()
	stale.Status.UncountedTerminatedPods.Failed = nil
	desired := stale.DeepCopy()
	desired.Labels = map[string]string{"not": "written"}
	desired.Status.Active, desired.Status.Conditions = 0, nil
	wrote, err := Options{Fields: []string{"active", "conditions", "uncountedTerminatedPods.failed"}}.Write(t.Context(), c.Status(), stale, desired)
	if !wrote || err != nil {
		t.Fatalf("wrote %t, error %v", wrote, err)
	}
	now := &batchv1.Job{}
	get(now)
	want := batchv1.JobStatus{Failed: 1, StartTime: &began, UncountedTerminatedPods: &batchv1.UncountedTerminatedPods{Succeeded: []types.UID{"p2"}}}
	for where, job := range map[string]*batchv1.Job{"stored": now, "in desired": desired} {
		if diff := cmp.Diff(want, job.Status); diff != "" {
			t.Errorf("status %s (-want +got):\n%s", where, diff)
		}
		if len(job.Labels) > 0 || job.ResourceVersion == read.ResourceVersion {
			t.Errorf("%s: labels %v, resourceVersion %s", where, job.Labels, job.ResourceVersion)
		}
	}

	// The first read is stale by now, and a write that rests on it is refused.
	late := read.DeepCopy()
	late.Status.Failed = 5
	if wrote, err := (Options{Fields: []string{"failed"}, ResourceVersion: true}).Write(t.Context(), c.Status(), read, late); wrote || !apierrors.IsConflict(err) {
		t.Errorf("wrote %t, error %v, want a conflict", wrote, err)
	}

	// The same by an unstructured object, with a read that is not stale.
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(batchv1.SchemeGroupVersion.WithKind("Job"))
	get(u)
	cleared := u.DeepCopy()
	unstructured.RemoveNestedField(cleared.Object, "status", "uncountedTerminatedPods")
	wrote, err = Options{Fields: []string{"uncountedTerminatedPods"}, ResourceVersion: true}.Write(t.Context(), c.Status(), u, cleared)
	if !wrote || err != nil {
		t.Fatalf("wrote %t, error %v", wrote, err)
	}
	var job batchv1.Job
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(cleared.Object, &job); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(batchv1.JobStatus{Failed: 1, StartTime: &began}, job.Status); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}

// The fields of one Options can be shared by all workers of a controller.
func TestOptionsAreNotChanged(t *testing.T) {
	t.Parallel()
	o := Options{Fields: []string{"phase", "task.running", "phase"}, Required: []string{"phase"}}
	want := Options{Fields: slices.Clone(o.Fields), Required: slices.Clone(o.Required)}
	first, _ := mustMake(t, o, newBox(t, `{}`), newBox(t, `{"phase":"a"}`))
	if diff := cmp.Diff(want, o); diff != "" {
		t.Errorf("options (-before +after):\n%s", diff)
	}
	if second, _ := mustMake(t, o, newBox(t, `{}`), newBox(t, `{"phase":"a"}`)); string(first) != string(second) {
		t.Errorf("then %s, now %s", first, second)
	}
}

func BenchmarkMake(b *testing.B) {
	current := newBox(b, `{"phase":"Failed","failedPodUIDs":["u1","u2"],"task":{"running":1},"conditions":[{"type":"Ready","status":"False","reason":"x","message":"y"}]}`)
	desired := newBox(b, `{"phase":"Running","conditions":[{"type":"Ready","status":"True","reason":"x","message":"y"}]}`)
	for b.Loop() {
		mustMake(b, Options{}, current, desired)
	}
}
