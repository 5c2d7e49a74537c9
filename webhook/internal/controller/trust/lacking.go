package trust

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/certs"
	"github.com/belay-dev/belay/webhook/internal/facts"
)

// Lacking says which of what sidecars are given does not have a CA: ConfigMaps of belay's, by
// their namespaces, and the ClusterTrustBundle. What belongs to others counts for nothing: no
// sidecar behind it has ever trusted belay. Nor do namespaces that are going.
//
// cached has the ConfigMaps of belay's name only; live reads past it.
func Lacking(cached, live client.Reader, mapper meta.RESTMapper) certs.Lacks {
	return func(ctx context.Context, ca *x509.Certificate) ([]string, error) {
		var maps corev1.ConfigMapList
		if err := cached.List(ctx, &maps); err != nil {
			return nil, fmt.Errorf("listing ConfigMaps: %w", err)
		}
		var out []string
		has := func(bundle string) bool { return slices.ContainsFunc(certs.Bundle([]byte(bundle)), ca.Equal) }
		for i := range maps.Items {
			m := &maps.Items[i]
			if !ours(m) || m.DeletionTimestamp != nil || has(m.Data[v1alpha1.CABundleKey]) {
				continue
			}
			var ns metav1.PartialObjectMetadata
			ns.SetGroupVersionKind(facts.NamespaceKind)
			switch err := cached.Get(ctx, client.ObjectKey{Name: m.Namespace}, &ns); {
			case apierrors.IsNotFound(err) || err == nil && ns.DeletionTimestamp != nil:
			case err != nil:
				return nil, fmt.Errorf("reading namespace %s: %w", m.Namespace, err)
			default:
				out = append(out, "ConfigMap "+m.Namespace+"/"+m.Name)
			}
		}
		kind := certificatesv1.SchemeGroupVersion.WithKind("ClusterTrustBundle")
		if _, err := mapper.RESTMapping(kind.GroupKind(), kind.Version); meta.IsNoMatchError(err) {
			return out, nil
		} else if err != nil {
			return nil, fmt.Errorf("looking for ClusterTrustBundles: %w", err)
		}
		var b certificatesv1.ClusterTrustBundle
		switch err := live.Get(ctx, client.ObjectKey{Name: v1alpha1.CABundleName}, &b); {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("reading the ClusterTrustBundle: %w", err)
		case ours(&b) && !has(b.Spec.TrustBundle):
			out = append(out, "ClusterTrustBundle "+b.Name)
		}
		return out, nil
	}
}
