package registration

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/webhook/internal/certs"
	"github.com/belay-dev/belay/webhook/internal/entries"
)

// appliedAnnotation, on a webhook configuration, holds the selectors that belay
// wrote, by entry. What else a live selector holds is another writer's: some
// clouds add their own exclusions to every webhook, and undoing that makes two
// controllers write against each other for ever.
const appliedAnnotation = "belay.dev/applied-selectors"

// applied is what belay wrote to the selectors of each entry.
type applied map[string]selectors

type selectors struct {
	Namespace *metav1.LabelSelector `json:"namespace,omitempty"`
	Object    *metav1.LabelSelector `json:"object,omitempty"`
}

// config is a webhook configuration of either kind. Validating entries are
// planned as mutating ones without a reinvocation policy.
type config struct {
	entries []admissionregistrationv1.MutatingWebhook
	applied applied
}

// plan merges what is wanted into what is live. It keeps what other writers own:
// their additions to selectors, their entries, and their CAs; without a CA the
// caBundle is not touched at all. changed is false when there is nothing to write.
func plan(live config, want []admissionregistrationv1.MutatingWebhook, ca roots, now time.Time) (out config, changed bool) {
	wanted := map[string]admissionregistrationv1.MutatingWebhook{}
	out.applied = applied{}
	for _, w := range want {
		wanted[w.Name] = w
		out.applied[w.Name] = selectors{Namespace: w.NamespaceSelector, Object: w.ObjectSelector}
	}
	seen := map[string]bool{}
	for _, l := range live.entries {
		w, ok := wanted[l.Name]
		if !ok {
			// By the name as well: the record may be lost in the very moment when a policy
			// goes, and a path that answers 404 must not stay registered.
			if _, noted := live.applied[l.Name]; !noted && !entries.Ours(l.Name) {
				out.entries = append(out.entries, l) // somebody else's entry
			}
			continue
		}
		seen[l.Name] = true
		was := live.applied[l.Name]
		w.NamespaceSelector = mergeSelector(w.NamespaceSelector, l.NamespaceSelector, was.Namespace)
		w.ObjectSelector = mergeSelector(w.ObjectSelector, l.ObjectSelector, was.Object)
		w.ClientConfig.CABundle = ca.merge(l.ClientConfig.CABundle, now)
		out.entries = append(out.entries, w)
	}
	for _, w := range want {
		if !seen[w.Name] {
			// Where cert-manager injects the CA a new entry starts with that of another one,
			// or it would refuse everything until it is injected.
			w.ClientConfig.CABundle = ca.merge(anyBundle(live.entries), now)
			out.entries = append(out.entries, w)
		}
	}
	order(out.entries, want)
	return out, differs(live, out)
}

// order brings belay's entries into the order that is wanted, among the places that
// they have: the API server calls them in this order.
func order(planned, want []admissionregistrationv1.MutatingWebhook) {
	rank := map[string]int{}
	for i, w := range want {
		rank[w.Name] = i
	}
	var places []int
	var mine []admissionregistrationv1.MutatingWebhook
	for i, e := range planned {
		if _, ok := rank[e.Name]; ok {
			places, mine = append(places, i), append(mine, e)
		}
	}
	slices.SortStableFunc(mine, func(a, b admissionregistrationv1.MutatingWebhook) int { return rank[a.Name] - rank[b.Name] })
	for i, place := range places {
		planned[place] = mine[i]
	}
}

// anyBundle is the CA bundle of an entry of belay's own, if one has any.
func anyBundle(live []admissionregistrationv1.MutatingWebhook) []byte {
	for _, e := range live {
		if entries.Ours(e.Name) && len(e.ClientConfig.CABundle) > 0 {
			return e.ClientConfig.CABundle
		}
	}
	return nil
}

func differs(a, b config) bool {
	return !equality.Semantic.DeepEqual(a.entries, b.entries) || !equality.Semantic.DeepEqual(a.applied, b.applied)
}

// keepLive puts entries back to what is live, with what was noted of them, or leaves
// them out where they are not live: the API server has refused what was planned. Their CA is
// brought up to date all the same: without that they would fail with the next certificate.
func keepLive(planned, live config, names map[string]string) config {
	if len(names) == 0 {
		return planned
	}
	out := config{applied: applied{}}
	for name, s := range planned.applied {
		if _, back := names[name]; !back {
			out.applied[name] = s
		}
	}
	old := map[string]admissionregistrationv1.MutatingWebhook{}
	for _, e := range live.entries {
		old[e.Name] = e
	}
	for _, e := range planned.entries {
		l, isLive := old[e.Name]
		switch _, back := names[e.Name]; {
		case !back:
			out.entries = append(out.entries, e)
		case isLive:
			l.ClientConfig.CABundle = e.ClientConfig.CABundle
			out.entries = append(out.entries, l)
			if s, ok := live.applied[e.Name]; ok {
				out.applied[e.Name] = s
			}
		}
	}
	return out
}

// mergeSelector is what belay wants, and what another writer added to it.
func mergeSelector(want, live, was *metav1.LabelSelector) *metav1.LabelSelector {
	out := want.DeepCopy()
	if live == nil {
		return out
	}
	if was == nil {
		was = &metav1.LabelSelector{}
	}
	for k, v := range live.MatchLabels {
		_, ours := was.MatchLabels[k]
		_, mine := out.MatchLabels[k]
		if !ours && !mine {
			if out.MatchLabels == nil {
				out.MatchLabels = map[string]string{}
			}
			out.MatchLabels[k] = v
		}
	}
	for _, e := range live.MatchExpressions {
		if !containsExpression(was.MatchExpressions, e) && !containsExpression(out.MatchExpressions, e) {
			out.MatchExpressions = append(out.MatchExpressions, e)
		}
	}
	// Keep the live order where the content is the same, so that order alone is
	// never a reason to write.
	if len(out.MatchExpressions) == len(live.MatchExpressions) && containsAll(out.MatchExpressions, live.MatchExpressions) && containsAll(live.MatchExpressions, out.MatchExpressions) {
		out.MatchExpressions = live.MatchExpressions
	}
	return out
}

func containsAll(in, all []metav1.LabelSelectorRequirement) bool {
	for _, e := range all {
		if !containsExpression(in, e) {
			return false
		}
	}
	return true
}

func containsExpression(in []metav1.LabelSelectorRequirement, e metav1.LabelSelectorRequirement) bool {
	return slices.ContainsFunc(in, func(o metav1.LabelSelectorRequirement) bool {
		return o.Key == e.Key && o.Operator == e.Operator && slices.Equal(o.Values, e.Values)
	})
}

// roots are belay's own CAs: what is to be trusted, and what no longer is. The zero value is
// that somebody else fills caBundle.
type roots struct {
	bundle []byte
	// retired are fingerprints of CAs that were replaced, and that nobody needs any more.
	retired []string
}

// merge makes sure that the CA is trusted. It adds to what is there: during
// a rotation replicas serve certificates of the old and of the new CA, and what
// another writer trusts is not belay's business. CAs that a rotation has retired are
// dropped; those that have expired, and what is no certificate, are when the bundle has to
// be written anyway.
func (r roots) merge(live []byte, now time.Time) []byte {
	if r.bundle == nil {
		return live
	}
	mine := certs.Bundle(r.bundle)
	have := certs.Bundle(live)
	changed := len(live) == 0
	for _, c := range mine {
		if !slices.ContainsFunc(have, c.Equal) {
			changed = true
			have = append(have, c)
		}
	}
	gone := func(c *x509.Certificate) bool {
		return slices.Contains(r.retired, certs.Fingerprint(c)) && !slices.ContainsFunc(mine, c.Equal)
	}
	if !changed && !slices.ContainsFunc(have, gone) {
		return live
	}
	var out bytes.Buffer
	for _, c := range have {
		// What signs, or will, stays: the clock may be wrong.
		if (now.Before(c.NotAfter) || slices.ContainsFunc(mine, c.Equal)) && !gone(c) {
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
		}
	}
	return out.Bytes()
}

// parseApplied reads the annotation; one that cannot be read counts as absent, so
// that everything live is kept.
func parseApplied(annotations map[string]string) applied {
	a := applied{}
	if err := json.Unmarshal([]byte(annotations[appliedAnnotation]), &a); err != nil {
		return applied{}
	}
	return a
}

func (a applied) String() string {
	out, err := json.Marshal(a)
	if err != nil {
		return fmt.Sprintf("%q", err) // cannot happen: the type has only strings
	}
	return string(out)
}

func mutatingConfig(c *admissionregistrationv1.MutatingWebhookConfiguration) config {
	return config{entries: c.Webhooks, applied: parseApplied(c.Annotations)}
}

func validatingConfig(c *admissionregistrationv1.ValidatingWebhookConfiguration) config {
	out := config{applied: parseApplied(c.Annotations)}
	for _, w := range c.Webhooks {
		out.entries = append(out.entries, asMutating(w))
	}
	return out
}

func asMutating(w admissionregistrationv1.ValidatingWebhook) admissionregistrationv1.MutatingWebhook {
	return admissionregistrationv1.MutatingWebhook{
		Name: w.Name, ClientConfig: w.ClientConfig, Rules: w.Rules, FailurePolicy: w.FailurePolicy, MatchPolicy: w.MatchPolicy,
		NamespaceSelector: w.NamespaceSelector, ObjectSelector: w.ObjectSelector, SideEffects: w.SideEffects,
		TimeoutSeconds: w.TimeoutSeconds, AdmissionReviewVersions: w.AdmissionReviewVersions, MatchConditions: w.MatchConditions,
	}
}

func asValidating(w admissionregistrationv1.MutatingWebhook) admissionregistrationv1.ValidatingWebhook {
	return admissionregistrationv1.ValidatingWebhook{
		Name: w.Name, ClientConfig: w.ClientConfig, Rules: w.Rules, FailurePolicy: w.FailurePolicy, MatchPolicy: w.MatchPolicy,
		NamespaceSelector: w.NamespaceSelector, ObjectSelector: w.ObjectSelector, SideEffects: w.SideEffects,
		TimeoutSeconds: w.TimeoutSeconds, AdmissionReviewVersions: w.AdmissionReviewVersions, MatchConditions: w.MatchConditions,
	}
}

// damper holds back a repair that somebody keeps undoing. Only what was written
// counts: a write that failed is tried again with the queue's back-off.
type damper struct {
	content string
	writes  []time.Time
}

const (
	// damperWindow and damperWrites: fewer than three writes in a minute against
	// another writer (case P05, where such fights reached 14,000 generations). The
	// first two go through at once: one is the change itself, one a repair.
	damperWindow = time.Minute
	damperWrites = 2
)

// wait is how long the same content may not be written again; 0 for now.
func (d *damper) wait(content string, now time.Time) time.Duration {
	if content != d.content {
		return 0
	}
	d.writes = slices.DeleteFunc(d.writes, func(t time.Time) bool { return now.Sub(t) >= damperWindow })
	if len(d.writes) < damperWrites {
		return 0
	}
	return damperWindow - now.Sub(d.writes[0])
}

// wrote notes a write.
func (d *damper) wrote(content string, now time.Time) {
	if content != d.content {
		d.content, d.writes = content, nil
	}
	d.writes = append(d.writes, now)
}
