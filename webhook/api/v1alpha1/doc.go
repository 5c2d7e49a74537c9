// Package v1alpha1 is the API group belay.dev/v1alpha1: the policies that
// opt kinds of objects into belay's promises, and the Anchor, which holds the
// place of an owner that does not exist yet.
//
// The package holds types and constants only; what they mean for an object is
// decided in webhook/internal.
//
// +kubebuilder:object:generate=true
// +groupName=belay.dev
package v1alpha1
