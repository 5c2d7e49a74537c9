package owner

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/wording"
)

// Input is everything that a decision depends on.
type Input struct {
	Request Request
	Policy  Policy
	Target  Target
	Facts   Facts
}

// Decide says what becomes of a create in the mutating phase.
//
// The stance of an Unknown fact: an unknown owner or Anchor admits without a
// reference and warns, or denies with 503 where the policy says Deny; an unknown
// client reference is not spoken of, since belay may well have no right to read
// its kind.
func Decide(in Input) Decision {
	if in.Request.Operation != "CREATE" {
		return allow(ReasonNotCreate, "only creates are looked at")
	}
	if d, stop := checkTarget(in); stop {
		return d
	}
	d := resolve(in)
	warnings, bad := lint(in.Request, in.Policy, in.Facts.References, settled(in, d))
	if bad != nil {
		return *bad // nothing was written yet: an Anchor is made after this
	}
	d.Warnings = append(warnings, d.Warnings...)
	return d
}

// settled is the owner whose references are put right by the decision, so that they
// need no complaint; nil when they stay as they are.
func settled(in Input, d Decision) *Wanted {
	switch d.Reason {
	case ReasonOwned, ReasonAlreadyOwned, ReasonCorrected, ReasonAnchored, ReasonAnchorNeeded:
		w := target(in)
		return &w
	default:
		return nil
	}
}

// target is the wanted owner, with its name where it was found by labels: a stale
// reference has the name.
func target(in Input) Wanted {
	w := *in.Target.Owner
	if live := in.Facts.Owner.live(); w.Name == "" && len(live) == 1 {
		w.Name = live[0].Name
	}
	return w
}

// checkTarget handles what is wrong with the question itself: nothing to look up
// can change it, so these are denials whatever the policy says of look-ups.
func checkTarget(in Input) (Decision, bool) {
	t, r := in.Target, in.Request
	switch {
	case t.Reason == ReasonExpressionFailed, t.Reason == ReasonLookupFailed:
		return unresolved(in, t.Reason, t.Problem), true
	case t.Reason != "":
		return deny(t.Reason, t.Problem), true
	case t.Owner == nil:
		// Nothing is asked for, but the client's own references are still looked at.
		warnings, bad := lint(r, in.Policy, in.Facts.References, nil)
		if bad != nil {
			return *bad, true
		}
		d := allow(ReasonNoOwner, "no owner is asked for")
		d.Warnings = warnings
		return d, true
	case t.Owner.Scope == ScopeNamespaced && r.Namespace == "":
		return deny(ReasonScopeMismatch, fmt.Sprintf("%s is cluster-scoped and cannot be owned by the namespaced %s: the garbage collector would never find the owner; use a cluster-scoped owner", r.describe(), t.Owner)), true
	case t.Owner.Scope != ScopeCluster && t.Owner.Namespace != "" && t.Owner.Namespace != r.Namespace:
		return deny(ReasonOtherNamespace, fmt.Sprintf("%s is in namespace %q and cannot be owned by %s in namespace %q: the garbage collector would delete it; create both in one namespace", r.describe(), r.Namespace, t.Owner, t.Owner.Namespace)), true
	}
	return Decision{}, false
}

// resolve turns what is known of the owner into a reference, an Anchor, or a
// warning.
func resolve(in Input) Decision {
	want, f := *in.Target.Owner, in.Facts.Owner
	if f.State == fact.Unknown {
		return unknownOwner(in, want, f.Cause)
	}
	live := f.live()
	switch {
	case f.Truncated || len(live) > 1:
		d := unresolved(in, ReasonAmbiguous, fmt.Sprintf("several objects match %s (%s); belay does not guess: make the labels unique", want, nameSome(live, f.Truncated)))
		d.Ambiguous = live
		return d
	case len(live) == 1:
		return owned(in, live[0], "")
	}
	return anchored(in, want)
}

// anchored answers for an owner that does not exist, or is on its way out.
func anchored(in Input, want Wanted) Decision {
	r, f := in.Request, in.Facts.Anchor
	switch {
	case references(r.References, in.Facts.Owner.Objects):
		// A right reference to an owner that is on its way out: the client's own choice.
		return allow(ReasonAlreadyOwned, fmt.Sprintf("owned by %s, which is being deleted", want))
	case r.Size > MaxObjectBytes && !stale(r.References, want):
		return tooLarge(in, want) // no Anchor that nothing would ever reference
	case r.Namespace == "":
		return unresolved(in, ReasonNoAnchor, fmt.Sprintf("%s does not exist, and an Anchor cannot hold its place for a cluster-scoped object; create the owner first", want))
	case r.Preview:
		d := allow(ReasonAnchorNeeded, fmt.Sprintf("would be owned by a new Anchor until %s exists", want))
		d.Warnings = []string{fmt.Sprintf("%s does not exist yet: %s would be owned by an Anchor that waits for it", want, r.describe())}
		return d
	case f.State != fact.Known && f.Cause == fact.CauseNotAsked:
		return Decision{Allowed: true, Reason: ReasonAnchorNeeded, Anchor: &AnchorWanted{Owner: want.AnchorOwner()}}
	case f.State != fact.Known:
		return unresolved(in, ReasonAnchorFailed, fmt.Sprintf("%s does not exist yet, and no Anchor could be made to wait for it (%s)", want, f.Cause.Words()))
	}
	anchor := Object{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Anchor", Name: f.Name, UID: f.UID}
	return owned(in, anchor, fmt.Sprintf(" until %s exists", want))
}

// owned places the reference.
func owned(in Input, owner Object, until string) Decision {
	want := target(in)
	edits, reason := place(in.Request.References, owner, want, in.Policy.Controller)
	if reason == ReasonOwned && in.Request.Size > MaxObjectBytes {
		return tooLarge(in, want) // a stale reference is replaced all the same: that adds nothing
	}
	if reason == ReasonOwned && until != "" {
		reason = ReasonAnchored
	}
	d := allow(reason, fmt.Sprintf("owned by %s %q (uid %s)%s", strings.ToLower(owner.Kind), owner.Name, owner.UID, until))
	d.Edits = edits
	return d
}

// references reports whether some reference has the UID of one of the objects.
func references(refs []metav1.OwnerReference, objects []Object) bool {
	return slices.ContainsFunc(refs, func(r metav1.OwnerReference) bool {
		return slices.ContainsFunc(objects, func(o Object) bool { return o.UID == r.UID })
	})
}

func tooLarge(in Input, want Wanted) Decision {
	d := allow(ReasonTooLarge, "too near the storage limit to add a reference")
	d.Warnings = []string{fmt.Sprintf("%s is %d bytes and too near the storage limit of %d to add an owner reference: it is not owned by %s", in.Request.describe(), in.Request.Size, MaxObjectBytes, want)}
	return d
}

func unknownOwner(in Input, want Wanted, c fact.Cause) Decision {
	if c == fact.CauseNoKind {
		return unresolved(in, ReasonKindUnknown, fmt.Sprintf("the API server serves no kind %q in %q; check apiVersion and kind, or install its CRD", want.Kind, want.APIVersion))
	}
	hint := "the create may be repeated"
	if c == fact.CauseForbidden {
		hint = "give belay get, list and watch on the kind, with a ClusterRole labelled rbac.belay.dev/aggregate-to-owner-reader: \"true\""
	}
	return unresolved(in, ReasonLookupFailed, fmt.Sprintf("could not find out whether %s exists (%s); %s", want, c.Words(), hint))
}

// unresolved is the one place where the policy's stance on what could not be
// found out is applied. A denial asks for a retry only where one may help.
func unresolved(in Input, reason Reason, why string) Decision {
	why = wording.OneLine(wording.Clip(why, maxWhy))
	if in.Policy.WhenUnresolved == v1alpha1.UnresolvedDeny {
		d := deny(reason, fmt.Sprintf("policy %q: %s cannot be given its owner: %s", in.Policy.Name, in.Request.describe(), why))
		if reason == ReasonLookupFailed || reason == ReasonAnchorFailed {
			d.Code, d.RetryAfterSeconds = 503, 1
		}
		return d
	}
	d := allow(reason, why)
	d.Warnings = []string{fmt.Sprintf("%s is created without an owner reference: %s", in.Request.describe(), why)}
	return d
}

func allow(reason Reason, message string) Decision {
	return Decision{Allowed: true, Reason: reason, Message: message}
}

func deny(reason Reason, message string) Decision {
	return Decision{Code: 403, Reason: reason, Message: message}
}

// describe names the dependent in messages: secret "run-1", or a new secret.
func (r Request) describe() string {
	kind := strings.ToLower(r.Kind)
	if kind == "" {
		kind = "object"
	}
	if r.Name == "" {
		return "a new " + kind
	}
	return fmt.Sprintf("%s %q", kind, r.Name)
}

// nameSome lists a few candidates for a message.
func nameSome(objects []Object, more bool) string {
	const most = 3
	var names []string
	for i, o := range objects {
		if i == most {
			more = true
			break
		}
		names = append(names, fmt.Sprintf("%q", o.Name))
	}
	if more {
		names = append(names, "…")
	}
	return strings.Join(names, ", ")
}
