package recovery

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/facts"
	rules "github.com/belay-dev/belay/webhook/internal/recovery"
)

// object is a guarded object as the informer keeps it: what decisions read of it.
type object struct {
	metav1.ObjectMeta
	about  rules.Object
	status rules.Status
	query  facts.PodQuery
	// problem says why its Pods cannot be told.
	problem string
}

func (o *object) key() types.NamespacedName {
	return types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
}

// Indexes of objects.
const (
	byUID       = "uid"
	byPod       = "pod"
	byNamespace = "namespace"
)

// watchObjects makes the informer of a policy's objects; it does not run yet.
func watchObjects(ctx context.Context, client dynamic.Interface, p *facts.RecoveryPolicy) cache.SharedIndexInformer {
	return facts.GuardedInformer(client, p, cache.Indexers{
		byUID: index(func(o *object) []string { return []string{string(o.UID)} }),
		byPod: index(func(o *object) []string {
			var keys []string
			for _, name := range o.query.Names {
				keys = append(keys, o.Namespace+"/"+name)
			}
			return keys
		}),
		byNamespace: index(func(o *object) []string { return []string{o.Namespace} }),
	}, func(obj any) any { return strip(ctx, p, obj) })
}

func index(of func(*object) []string) cache.IndexFunc {
	return func(obj any) ([]string, error) {
		if o, ok := obj.(*object); ok {
			return of(o), nil
		}
		return nil, nil
	}
}

// strip keeps of an object what decisions read. It may be given its own result.
func strip(ctx context.Context, p *facts.RecoveryPolicy, obj any) any {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj
	}
	o := &object{about: p.Guarded(ctx, u), status: p.Layout.Read(u.Object)}
	o.Namespace, o.Name, o.UID, o.ResourceVersion = u.GetNamespace(), u.GetName(), u.GetUID(), u.GetResourceVersion()
	o.Generation = u.GetGeneration()
	q, err := p.Expressions.Query(ctx, u)
	if err != nil {
		o.problem = err.Error()
	}
	o.query = q
	return o
}

// acts says what to do in a namespace: v1alpha1.ModeEnforce, v1alpha1.ModeWarn, or nothing.
func acts(p *facts.RecoveryPolicy, own string, ns *metav1.PartialObjectMetadata) string {
	if facts.Excluded(ns.Name, own) || !facts.Selects(p.Spec.NamespaceSelector, ns.Labels) {
		return ""
	}
	switch mode := ns.Labels[v1alpha1.ModeLabel]; mode {
	case v1alpha1.ModeEnforce, v1alpha1.ModeWarn:
		return mode
	}
	return ""
}
