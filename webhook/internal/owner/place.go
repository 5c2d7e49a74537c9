package owner

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// place gives the edits that make an object owned by owner. It appends, so that
// order and every other entry stay; it never adds a second entry with the same
// UID, since the API server stores both. A reference to the wanted owner under
// another UID is stale (a copied or restored object): the garbage collector reads
// it as an absent owner, so it is replaced and not kept beside the right one.
//
// blockOwnerDeletion is never set: with OwnerReferencesPermissionEnforcement it
// would deny the user who creates the object.
//
// controller asks for a controller reference. An Anchor never gets one: it is
// nobody's controller, and the real one could then not become it.
func place(refs []metav1.OwnerReference, owner Object, wanted Wanted, controller bool) ([]Edit, Reason) {
	anchor := groupOf(owner.APIVersion) == v1alpha1.GroupVersion.Group
	var wrong []int // stale, incoherent or doubled entries, which must not stay
	present, controlled := false, false
	for i, ref := range refs {
		same := ref.UID == owner.UID
		coherent := same && sameCoordinates(ref, groupOf(owner.APIVersion), owner.Kind, owner.Name)
		isStale := !same && sameCoordinates(ref, wanted.Group(), wanted.Kind, wanted.Name)
		switch {
		case coherent && !present:
			present = true
		case same, isStale:
			wrong = append(wrong, i)
			continue
		}
		controlled = controlled || (ref.Controller != nil && *ref.Controller)
	}
	var edits []Edit
	if !present {
		flag := controllerFlag(controller && !controlled && !anchor)
		if len(wrong) == 0 {
			return []Edit{{Op: EditAppend, Reference: reference(owner, flag)}}, ReasonOwned
		}
		// The first wrong entry becomes the right one, and keeps the client's own
		// controller flag. A right UID under wrong coordinates counts as wrong: it
		// makes the collector delete live objects at its next restart.
		i := wrong[0]
		if flag == nil && !anchor {
			flag = refs[i].Controller
		}
		edits = append(edits, Edit{Op: EditReplace, Index: i, Was: refs[i].UID, Reference: reference(owner, flag)})
		wrong = wrong[1:]
	}
	// From the end, so that an index never shifts under a later edit.
	for n := len(wrong) - 1; n >= 0; n-- {
		edits = append(edits, Edit{Op: EditRemove, Index: wrong[n], Was: refs[wrong[n]].UID})
	}
	if len(edits) == 0 {
		return nil, ReasonAlreadyOwned
	}
	return edits, ReasonCorrected
}

func reference(o Object, controller *bool) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: o.APIVersion, Kind: o.Kind, Name: o.Name, UID: o.UID, Controller: controller}
}

// controllerFlag is nil for false: an absent flag is what false is stored as by
// clients of this field, and two controllers in one object are refused with 422.
func controllerFlag(on bool) *bool {
	if !on {
		return nil
	}
	return &on
}

// stale reports whether some reference names the wanted owner, under whatever UID.
func stale(refs []metav1.OwnerReference, wanted Wanted) bool {
	return slices.ContainsFunc(refs, func(r metav1.OwnerReference) bool {
		return sameCoordinates(r, wanted.Group(), wanted.Kind, wanted.Name)
	})
}

// sameCoordinates compares what a reference says, but for its UID and version.
// Kinds are compared without case, as the garbage collector resolves them.
func sameCoordinates(ref metav1.OwnerReference, group, kind, name string) bool {
	return name != "" && ref.Name == name && groupOf(ref.APIVersion) == group && strings.EqualFold(ref.Kind, kind)
}
