package stack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"

	"github.com/belay-dev/belay/test/integration/plane"
)

// notWithoutKubelet are the kinds that need nodes or a cluster network.
var notWithoutKubelet = map[string]bool{"Deployment": true, "Service": true, "PodDisruptionBudget": true}

// kubectl is built once a process, with its progress on stderr.
var kubectl = sync.OnceValues(func() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	return plane.Kubectl(ctx, os.Stderr)
})

// ReadManifests reads a folder's kustomization, as kubectl apply -k does.
func ReadManifests(ctx context.Context, dir string) ([]*unstructured.Unstructured, error) {
	raw, err := Kustomize(ctx, dir)
	if err != nil {
		return nil, err
	}
	return Decode(raw)
}

// Kustomize builds a folder's kustomization, and returns it as it is written.
func Kustomize(ctx context.Context, dir string) ([]byte, error) {
	kubectl, err := kubectl()
	if err != nil {
		return nil, fmt.Errorf("building kubectl: %w", err)
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, kubectl, "kustomize", dir)
	cmd.Stderr = &stderr
	raw, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("building %s: %w: %s", filepath.Base(dir), err, stderr.Bytes())
	}
	return raw, nil
}

// Decode reads YAML documents.
func Decode(raw []byte) ([]*unstructured.Unstructured, error) {
	d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(raw), 4096)
	var out []*unstructured.Unstructured
	for {
		u := &unstructured.Unstructured{}
		err := d.Decode(&u.Object)
		switch {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return nil, fmt.Errorf("decoding YAML: %w", err)
		case len(u.Object) > 0:
			out = append(out, u)
		}
	}
}

// Apply applies objects on the server's side, as kubectl apply --server-side does:
// without force, so that a conflict with another writer is an error.
// A kind that is not served yet, since its CRD was applied a moment ago, is waited
// for.
func (s *Stack) Apply(ctx context.Context, objects ...*unstructured.Unstructured) error {
	for _, o := range objects {
		if notWithoutKubelet[o.GetKind()] && o.GetNamespace() == Namespace {
			continue
		}
		if err := s.apply(ctx, o); err != nil {
			return fmt.Errorf("applying %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// ApplyCRD applies a CustomResourceDefinition that a test, or an upstream's fixture, has made.
func (s *Stack) ApplyCRD(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) error {
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(crd)
	if err != nil {
		return fmt.Errorf("converting CRD %s: %w", crd.Name, err)
	}
	u := &unstructured.Unstructured{Object: raw}
	u.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
	delete(u.Object, "status")
	return s.Apply(ctx, u)
}

func (s *Stack) apply(ctx context.Context, o *unstructured.Unstructured) error {
	for {
		c, err := s.resource(o)
		if err == nil {
			_, err = c.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: "kubectl"})
			if err == nil {
				return nil
			}
		}
		if !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (s *Stack) resource(o *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	gvk := o.GroupVersionKind()
	m, err := s.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, err
	}
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		return s.Dynamic.Resource(m.Resource).Namespace(o.GetNamespace()), nil
	}
	return s.Dynamic.Resource(m.Resource), nil
}
