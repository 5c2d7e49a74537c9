package owner

import (
	"fmt"
	"strings"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// Verify says what becomes of a create in the validating phase, on the object as
// it will be stored. It is registered for policies that deny: there, what counts
// is how the object ended after every other webhook, not how it passed by.
func Verify(in Input) Decision {
	r, t := in.Request, in.Target
	if r.Operation != "CREATE" {
		return allow(ReasonNotCreate, "only creates are looked at")
	}
	// Only a denial counts here: what is merely warned about, the mutating phase has
	// warned about already.
	if _, bad := lint(r, in.Policy, in.Facts.References, nil); bad != nil {
		return *bad
	}
	if t.Reason != "" {
		d, _ := checkTarget(in) // the mutating call may have been missed
		return d
	}
	d := verifyReference(in)
	if t.Owner == nil {
		d.Reason = ReasonNoOwner
	}
	return d
}

// verifyReference demands a reference to the owner's kind, or to an Anchor, where
// the policy denies what cannot be owned. A dry run makes no Anchor and is let
// through; an object too large for a reference was let through before.
func verifyReference(in Input) Decision {
	r, t := in.Request, in.Target
	if in.Policy.WhenUnresolved != v1alpha1.UnresolvedDeny || t.Owner == nil || r.Preview || r.Size > MaxObjectBytes {
		return allow(ReasonAlreadyOwned, "nothing is demanded")
	}
	for _, ref := range r.References {
		group := groupOf(ref.APIVersion)
		if group == v1alpha1.GroupVersion.Group && ref.Kind == "Anchor" {
			return allow(ReasonAlreadyOwned, "owned by an anchor")
		}
		if group == t.Owner.Group() && strings.EqualFold(ref.Kind, t.Owner.Kind) {
			return allow(ReasonAlreadyOwned, "owned")
		}
	}
	d := deny(ReasonNoReference, fmt.Sprintf("policy %q: %s ended without a reference to %s; another webhook removed it, or belay was away for a moment: repeat the create", in.Policy.Name, r.describe(), t.Owner))
	d.Code, d.RetryAfterSeconds = 503, 1
	return d
}
