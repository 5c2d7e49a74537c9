package statuspatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Options say what a patch is made of. The zero value names every field of the Go
// type's status, without a precondition.
type Options struct {
	// Fields are the fields that the caller owns, as dotted paths of JSON names below
	// status: "failedPodUIDs", "task.running". Empty means every field of the Go type;
	// unstructured objects need some.
	Fields []string
	// Required are fields, by paths as in Fields, that must not be null because the CRD
	// requires them. Where they are empty their zero value is sent: [], {}, 0, "", false.
	// A field of an unstructured object has none that is known, so that desired has to
	// hold it.
	Required []string
	// ResourceVersion makes current's resourceVersion a precondition: the write is
	// refused with a conflict if the object has changed since it was read.
	ResourceVersion bool
	// Always makes Write send the patch although current says that it changes nothing.
	// Then current and desired may be one object.
	Always bool
	// FieldOwner is the manager in managedFields. Default: the program's name, as
	// client-go has it.
	FieldOwner string
}

// Patcher sends a patch of a status. Status() of controller-runtime's client.Client
// returns one.
type Patcher interface {
	Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error
}

// Make makes the merge patch (RFC 7386) that gives the fields that are owned the values
// of desired, and tells whether it would change any of them in current. The patch is
// whole even if it would not, and the same for the same input. current is the object as
// it was read, desired a changed copy of it; both are left as they are.
//
// Errors are the caller's: two objects that are not the same one, a path that the Go
// type does not have, a status that JSON cannot hold.
func (o Options) Make(current, desired client.Object) (patch []byte, changed bool, err error) {
	if err := same(current, desired); err != nil {
		return nil, false, err
	}
	if current == desired && !o.Always {
		return nil, false, errors.New("current and desired are one object, so nothing could be seen to change; change a copy")
	}
	body := map[string]any{}
	if o.ResourceVersion {
		version := current.GetResourceVersion()
		if version == "" {
			return nil, false, errors.New("current has no resourceVersion, so it was not read from an API server")
		}
		body["metadata"] = map[string]any{"resourceVersion": version}
	}
	cur, err := readStatus(current)
	if err != nil {
		return nil, false, fmt.Errorf("reading current: %w", err)
	}
	des, err := readStatus(desired)
	if err != nil {
		return nil, false, fmt.Errorf("reading desired: %w", err)
	}
	part, err := o.resolve(des.typ)
	if err != nil {
		return nil, false, err
	}
	body["status"], changed, err = part.merge(cur.value, des.value)
	if err != nil {
		return nil, false, err
	}
	patch, err = json.Marshal(body)
	if err != nil {
		return nil, false, fmt.Errorf("encoding the patch: %w", err)
	}
	return patch, changed && part.readsChanged(cur, des), nil
}

// Write sends what [Options.Make] makes to the status subresource, once, unless it would
// change nothing in current, and tells whether it did. Then desired is the object as
// the API server has it, with its new resourceVersion and what webhooks have made of it.
// Otherwise desired is left as it is.
//
// An error of the API server can be had with errors.As and the functions of apierrors.
// An error does not say that nothing was written: the answer may have been lost.
// The same patch may be sent again.
func (o Options) Write(ctx context.Context, c Patcher, current, desired client.Object) (wrote bool, err error) {
	patch, changed, err := o.Make(current, desired)
	if err != nil {
		return false, fmt.Errorf("making a patch for the status of %s: %w", title(desired), err)
	}
	if !changed && !o.Always {
		return false, nil
	}
	// A client decodes into what it is given, and what the answer lacks would stay.
	answer, ok := reflect.New(reflect.TypeOf(desired).Elem()).Interface().(client.Object)
	if !ok {
		return false, fmt.Errorf("a new %T is no object", desired) // cannot be: it has the type of one
	}
	kind := kindOf(current, desired)
	answer.GetObjectKind().SetGroupVersionKind(kind)
	answer.SetNamespace(current.GetNamespace())
	answer.SetName(current.GetName())
	var opts []client.SubResourcePatchOption
	if o.FieldOwner != "" {
		opts = append(opts, client.FieldOwner(o.FieldOwner))
	}
	if err := c.Patch(ctx, answer, client.RawPatch(types.MergePatchType, patch), opts...); err != nil {
		return false, fmt.Errorf("patching the status of %s: %w", title(desired), err)
	}
	if answer.GetObjectKind().GroupVersionKind().Empty() {
		answer.GetObjectKind().SetGroupVersionKind(kind) // clients of Go types leave it out
	}
	reflect.ValueOf(desired).Elem().Set(reflect.ValueOf(answer).Elem())
	return true, nil
}

// same refuses two objects that are not one. A uid or kind that only one of them has
// says nothing: desired need not be a copy.
func same(current, desired client.Object) error {
	for _, given := range []struct {
		name string
		obj  client.Object
	}{{"current", current}, {"desired", desired}} {
		if v := reflect.ValueOf(given.obj); !v.IsValid() || v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
			return fmt.Errorf("there is no %s object", given.name)
		}
	}
	if reflect.TypeOf(current) != reflect.TypeOf(desired) {
		return fmt.Errorf("current is a %T and desired a %T", current, desired)
	}
	if is, want := current.GetObjectKind().GroupVersionKind(), desired.GetObjectKind().GroupVersionKind(); is != want && !is.Empty() && !want.Empty() {
		return fmt.Errorf("current is of kind %q and desired of %q", is, want)
	}
	if current.GetName() == "" {
		return errors.New("current has no name")
	}
	if is, want := client.ObjectKeyFromObject(current), client.ObjectKeyFromObject(desired); is != want {
		return fmt.Errorf("current is %q and desired %q", is, want)
	}
	if is, want := current.GetUID(), desired.GetUID(); is != want && is != "" && want != "" {
		return fmt.Errorf("%s: current has uid %q and desired %q", title(current), is, want)
	}
	return nil
}

func kindOf(objs ...client.Object) schema.GroupVersionKind {
	for _, obj := range objs {
		if kind := obj.GetObjectKind().GroupVersionKind(); !kind.Empty() {
			return kind
		}
	}
	return schema.GroupVersionKind{}
}

// title names an object in errors. The object may be none.
func title(obj client.Object) string {
	v := reflect.ValueOf(obj)
	if !v.IsValid() || v.Kind() != reflect.Pointer || v.IsNil() {
		return "nothing"
	}
	kind := obj.GetObjectKind().GroupVersionKind().Kind
	if kind == "" {
		kind = v.Elem().Type().Name()
	}
	return fmt.Sprintf("%s %s", strings.ToLower(kind), strings.TrimPrefix(obj.GetNamespace()+"/"+obj.GetName(), "/"))
}
