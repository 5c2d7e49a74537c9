package spawn

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// lister is what a client may have beside Client: some roles allow to list and not
// to get, that of OTF's runner among them. The permission to list a kind is enough
// to read one object of it by name.
type lister interface {
	List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error
}

func (r *running) canList() bool {
	_, ok := r.client.(lister)
	return ok && !r.gvk().Empty()
}

// gvk is empty where neither the object nor the client knows it.
func (r *running) gvk() schema.GroupVersionKind {
	if r.obj == nil {
		return schema.GroupVersionKind{}
	}
	if said := r.obj.GetObjectKind().GroupVersionKind(); !said.Empty() {
		return said
	}
	if c, ok := r.client.(interface {
		GroupVersionKindFor(runtime.Object) (schema.GroupVersionKind, error)
	}); ok {
		if known, err := c.GroupVersionKindFor(r.obj); err == nil {
			return known
		}
	}
	return schema.GroupVersionKind{}
}

// list reads the object that has the name by a list of it alone.
func (r *running) list(ctx context.Context) error {
	c, ok := r.client.(lister)
	if !ok {
		return fmt.Errorf("a %T cannot list", r.client)
	}
	gvk := r.gvk()
	items := &unstructured.UnstructuredList{}
	items.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	err := c.List(ctx, items, client.InNamespace(r.obj.GetNamespace()), client.MatchingFields{"metadata.name": r.obj.GetName()})
	if err != nil {
		return err
	}
	for i := range items.Items {
		if items.Items[i].GetName() != r.obj.GetName() {
			continue
		}
		found := empty(r.obj)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(items.Items[i].Object, found); err != nil {
			return Final(fmt.Errorf("reading a %s: %w", gvk.Kind, err))
		}
		r.found = found
		return nil
	}
	return apierrors.NewNotFound(schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}, r.obj.GetName())
}
