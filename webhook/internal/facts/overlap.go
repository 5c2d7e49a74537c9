package facts

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// Overlaps finds NamePolicies that are about the same object. The API server asks for
// all of them at once, so that one could delete what another one holds.
type Overlaps struct {
	cached, live client.Reader
}

// NewOverlaps makes Overlaps.
func NewOverlaps(cached, live client.Reader) *Overlaps { return &Overlaps{cached: cached, live: live} }

// Find names another NamePolicy in force that selects an object, or nothing. Policies
// with matchConditions are left out: only the API server evaluates those.
func (o *Overlaps) Find(ctx context.Context, policy string, res v1alpha1.ResolvedResource, namespace string, object labels.Set) (string, error) {
	var list v1alpha1.NamePolicyList
	if err := o.cached.List(ctx, &list); err != nil {
		if err := o.live.List(ctx, &list); err != nil {
			return "", fmt.Errorf("listing name policies: %w", err)
		}
	}
	for i := range list.Items {
		p := &list.Items[i]
		if p.Name == policy || p.Status.InForce == nil || p.DeletionTimestamp != nil || len(p.Status.InForce.Spec.MatchConditions) > 0 {
			continue
		}
		about := slices.ContainsFunc(p.Status.InForce.Kinds, func(k v1alpha1.ResolvedResource) bool {
			return k.Group == res.Group && k.Resource == res.Resource
		})
		if !about || !Selects(p.Status.InForce.Spec.Selector, object) {
			continue
		}
		in, err := o.inNamespace(ctx, p.Status.InForce.Spec.NamespaceSelector, namespace)
		if err != nil {
			return "", err
		}
		if in {
			return p.Name, nil
		}
	}
	return "", nil
}

// Selects reports whether a selector matches; none matches everything. Accepted ones
// are valid.
func Selects(s *metav1.LabelSelector, set labels.Set) bool {
	if s == nil {
		return true
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && selector.Matches(set)
}

func (o *Overlaps) inNamespace(ctx context.Context, s *metav1.LabelSelector, namespace string) (bool, error) {
	if s == nil || namespace == "" {
		return true, nil
	}
	var ns metav1.PartialObjectMetadata
	ns.SetGroupVersionKind(NamespaceKind)
	key := client.ObjectKey{Name: namespace}
	if err := o.cached.Get(ctx, key, &ns); err != nil {
		if err := o.live.Get(ctx, key, &ns); err != nil {
			return false, fmt.Errorf("reading namespace %q: %w", namespace, err)
		}
	}
	return Selects(s, ns.Labels), nil
}
