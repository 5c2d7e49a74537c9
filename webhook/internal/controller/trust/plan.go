package trust

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"maps"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apilabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/entries"
	"github.com/belay-dev/belay/webhook/internal/facts"
)

// labels mark what belay wrote, and may change.
var labels = map[string]string{"app.kubernetes.io/name": "belay", "app.kubernetes.io/component": "ca"}

// Selector finds what has these labels.
func Selector() string { return apilabels.SelectorFromSet(labels).String() }

func ours(o metav1.Object) bool {
	for k, v := range labels {
		if o.GetLabels()[k] != v {
			return false
		}
	}
	return true
}

// bundleOf is the CA of belay's entries in a registration: each certificate once, in the order
// in which they come. Whom others trust with entries of their own there is not for sidecars.
func bundleOf(webhooks []admissionregistrationv1.MutatingWebhook) string {
	var out bytes.Buffer
	var seen []string
	for _, w := range webhooks {
		if !entries.Ours(w.Name) {
			continue
		}
		for rest := w.ClientConfig.CABundle; ; {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			if block.Type != "CERTIFICATE" || slices.Contains(seen, string(block.Bytes)) {
				continue
			}
			// The API server refuses a ClusterTrustBundle for one that it cannot read.
			if _, err := x509.ParseCertificate(block.Bytes); err != nil {
				continue
			}
			seen = append(seen, string(block.Bytes))
			// Without headers, which a ClusterTrustBundle must not have.
			_ = pem.Encode(&out, &pem.Block{Type: block.Type, Bytes: block.Bytes}) // a Buffer does not fail
		}
	}
	return out.String()
}

// wanted reports whether a namespace is to have the ConfigMap.
func wanted(ns *metav1.PartialObjectMetadata, own string) bool {
	if facts.Excluded(ns.Name, own) || ns.DeletionTimestamp != nil {
		return false
	}
	mode := ns.Labels[v1alpha1.ModeLabel]
	return mode == v1alpha1.ModeEnforce || mode == v1alpha1.ModeWarn
}

// action is what is to be done about a ConfigMap.
type action string

const (
	leave  action = ""
	create action = "create"
	update action = "update"
	remove action = "remove"
	// foreign: somebody else's has the name.
	foreign action = "foreign"
)

// plan decides on the ConfigMap of a namespace. is is nil where there is none; an empty bundle
// is one that is not known yet. The result is what to write.
func plan(namespace string, want bool, bundle string, is *corev1.ConfigMap, owner types.UID, ownerName string) (action, *corev1.ConfigMap) {
	switch {
	case is != nil && !ours(is):
		if want {
			return foreign, nil
		}
		return leave, nil
	case !want && is != nil:
		return remove, is
	case !want, bundle == "":
		return leave, nil
	case is == nil:
		out := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.CABundleName, Labels: maps.Clone(labels)},
			Data:       map[string]string{v1alpha1.CABundleKey: bundle},
		}
		if owner != "" {
			// It never outlives belay.
			out.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Namespace", Name: ownerName, UID: owner}}
		}
		return create, out
	case is.Data[v1alpha1.CABundleKey] == bundle:
		return leave, nil
	case is.Immutable != nil && *is.Immutable:
		return remove, is // it can be changed in no other way, and is made anew
	default:
		out := is.DeepCopy()
		if out.Data == nil {
			out.Data = map[string]string{}
		}
		out.Data[v1alpha1.CABundleKey] = bundle
		return update, out
	}
}
