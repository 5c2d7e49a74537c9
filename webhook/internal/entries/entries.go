// Package entries knows belay's entries in webhook configurations by their names. It is asked by
// what writes them, and by what looks whether they trust a certificate: what one of them leaves
// alone as somebody else's, the other must not wait for.
package entries

import (
	"strings"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// Entries that belong to no policy. That of a policy has the policy's name, a DNS label, before
// its domain: OwnerAnnotation has none there, and SidecarAnnotation has another domain behind.
const (
	// OwnerAnnotation is for objects that name their owner themselves.
	OwnerAnnotation = "annotation.belay.dev"
	// SidecarAnnotation is for Pods that ask for a sidecar themselves.
	SidecarAnnotation = "sidecar.annotation.belay.dev"
)

// Ours reports whether an entry is belay's own.
func Ours(name string) bool {
	for _, domain := range []string{v1alpha1.OwnerEntryDomain, v1alpha1.NameEntryDomain, v1alpha1.RecoveryEntryDomain, v1alpha1.SidecarEntryDomain} {
		if strings.HasSuffix(name, domain) {
			return true
		}
	}
	return name == OwnerAnnotation || name == SidecarAnnotation
}
