package spawn

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/webhook/client/spawn/names"
)

const (
	// AnnotationSpawn is set on every object that a Create step makes: the digest of
	// its identity. By it the same work is known where belay is not installed.
	AnnotationSpawn = "belay.dev/spawn"
	// AnnotationWork is set by belay on objects that a NamePolicy covers: the digest
	// of their identity by that policy.
	AnnotationWork = "belay.dev/work"
)

// relation is what an object that is there has to do with the one that is wanted.
type relation int

const (
	other relation = iota
	same
	terminating
)

// relate compares the object that is there with the one that is wanted, which has
// its AnnotationSpawn. What is terminating is going, whosever it is. Belay's digest
// says more than ours, for the policy's author has chosen what is in it; but ours
// is what there is unless both have one.
func relate(wanted, stored client.Object, sameWork func(client.Object) bool) relation {
	want, have := wanted.GetAnnotations(), stored.GetAnnotations()
	isSame := false
	switch {
	case stored.GetDeletionTimestamp() != nil:
		return terminating
	case sameWork != nil:
		isSame = sameWork(stored)
	case want[AnnotationWork] != "" && have[AnnotationWork] != "":
		isSame = want[AnnotationWork] == have[AnnotationWork]
	default:
		isSame = want[AnnotationSpawn] == have[AnnotationSpawn]
	}
	if isSame {
		return same
	}
	return other
}

// stamp returns a copy of the object with its identity on it: the digest of the
// values, or without any of the object as it is given.
func stamp(obj client.Object, identity []any) (client.Object, error) {
	if len(identity) == 0 {
		content, err := essence(obj)
		if err != nil {
			return nil, err
		}
		identity = []any{content}
	}
	digest, err := digestOf(identity)
	if err != nil {
		return nil, fmt.Errorf("reading the identity of a %T: %w", obj, err)
	}
	stamped, ok := obj.DeepCopyObject().(client.Object)
	if !ok {
		return nil, fmt.Errorf("a copy of a %T is no object", obj)
	}
	annotations := maps.Clone(stamped.GetAnnotations())
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[AnnotationSpawn] = digest
	stamped.SetAnnotations(annotations)
	return stamped, nil
}

// digestOf takes the values as JSON has them, so that a types.UID is the string that
// it is, and a struct behind a pointer is not its address.
func digestOf(values []any) (string, error) {
	raw, err := json.Marshal(values)
	if err != nil {
		return "", err
	}
	var plain []any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber() // ids of 64 bits are told apart
	if err := d.Decode(&plain); err != nil {
		return "", err
	}
	return names.Digest(plain...), nil
}

// essence is what the caller wrote in the object, without what the API server or
// this package writes. Whether a typed object says its kind is chance, and only
// objects of one kind are ever compared, so that is left out, too.
func essence(obj client.Object) (map[string]any, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj.DeepCopyObject())
	if err != nil {
		return nil, fmt.Errorf("reading the identity of a %T: %w", obj, err)
	}
	for _, field := range []string{"apiVersion", "kind", "status"} {
		delete(content, field)
	}
	if metadata, ok := content["metadata"].(map[string]any); ok {
		for _, field := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink"} {
			delete(metadata, field)
		}
		if annotations, ok := metadata["annotations"].(map[string]any); ok {
			delete(annotations, AnnotationSpawn)
		}
	}
	prune(content)
	return content, nil
}

// prune takes out what is null or empty. Whether Go writes those down depends on
// the tags of a type, which change between releases of k8s.io/api: without this, an
// update of a controller would make its running work other work.
func prune(content map[string]any) {
	for key, value := range content {
		switch value := value.(type) {
		case nil:
			delete(content, key)
		case map[string]any:
			if prune(value); len(value) == 0 {
				delete(content, key)
			}
		case []any:
			for _, element := range value {
				if m, ok := element.(map[string]any); ok {
					prune(m)
				}
			}
			if len(value) == 0 {
				delete(content, key)
			}
		}
	}
}

// toldUID is the UID of the object in the way, where the answer says it: in its
// details, or in the cause for a field metadata.uid.
func toldUID(err error) types.UID {
	status, ok := statusOf(err)
	if !ok || status.Details == nil {
		return ""
	}
	if status.Details.UID != "" {
		return status.Details.UID
	}
	for _, cause := range status.Details.Causes {
		if (cause.Type == CauseSameWork || cause.Type == CauseOtherWork) && cause.Field == "metadata.uid" {
			return types.UID(cause.Message)
		}
	}
	return ""
}

func saysSameWork(err error) bool  { return apierrors.HasStatusCause(err, CauseSameWork) }
func saysOtherWork(err error) bool { return apierrors.HasStatusCause(err, CauseOtherWork) }
