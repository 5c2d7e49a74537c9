package recovery

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/client/statuspatch"
	"github.com/belay-dev/belay/webhook/internal/facts"
	rules "github.com/belay-dev/belay/webhook/internal/recovery"
)

// owned are the fields of an object that belay writes, as paths below the status. A field
// whose parent is not there is empty already, and naming it would make the parent.
func owned(p *facts.RecoveryPolicy, current *unstructured.Unstructured) statuspatch.Options {
	o := statuspatch.Options{ResourceVersion: true, FieldOwner: "belay-controller"}
	paths := []v1alpha1.StatusPath{p.Layout.Phase, p.Layout.Record}
	if editsConditions(p.Spec.Recovered) {
		paths = append(paths, p.Layout.Conditions)
	}
	paths = slices.DeleteFunc(paths, func(path v1alpha1.StatusPath) bool {
		sets := path == p.Layout.Phase || (path == p.Layout.Conditions && len(p.Spec.Recovered.SetConditions) > 0)
		return !sets && !hasParent(current.Object, rules.Segments(path))
	})
	for _, path := range paths {
		o.Fields = append(o.Fields, below(path))
	}
	if p.Record.Cleared == v1alpha1.ClearEmpty && slices.Contains(paths, p.Layout.Record) {
		o.Required = []string{below(p.Layout.Record)}
	}
	return o
}

func below(p v1alpha1.StatusPath) string { return strings.TrimPrefix(string(p), ".status.") }

func editsConditions(r *v1alpha1.RecoveredStatus) bool {
	return r != nil && len(r.RemoveConditions)+len(r.SetConditions) > 0
}

// recovered is an object as it is when belay has brought it back: with the recovered phase,
// the policy's changes of conditions and an empty record. The object is left as it is.
func recovered(p *facts.RecoveryPolicy, object *unstructured.Unstructured, now time.Time) (*unstructured.Unstructured, error) {
	out := object.DeepCopy()
	r := p.Spec.Recovered
	for _, path := range []v1alpha1.StatusPath{p.Layout.Phase, p.Layout.Record, p.Layout.Conditions} {
		if path != "" {
			withoutNull(out.Object, rules.Segments(path))
		}
	}
	if err := unstructured.SetNestedField(out.Object, string(r.Phase), rules.Segments(p.Layout.Phase)...); err != nil {
		return nil, fmt.Errorf("setting %s: %w", p.Layout.Phase, err)
	}
	if p.Record.Cleared == v1alpha1.ClearEmpty && hasParent(out.Object, rules.Segments(p.Layout.Record)) {
		if err := unstructured.SetNestedStringSlice(out.Object, []string{}, rules.Segments(p.Layout.Record)...); err != nil {
			return nil, fmt.Errorf("emptying %s: %w", p.Layout.Record, err)
		}
	} else {
		unstructured.RemoveNestedField(out.Object, rules.Segments(p.Layout.Record)...)
	}
	if !editsConditions(r) {
		return out, nil
	}
	path := rules.Segments(p.Layout.Conditions)
	list, _, err := unstructured.NestedSlice(out.Object, path...)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", p.Layout.Conditions, err)
	}
	if err := unstructured.SetNestedSlice(out.Object, edited(list, r, now), path...); err != nil {
		return nil, fmt.Errorf("setting %s: %w", p.Layout.Conditions, err)
	}
	return out, nil
}

// hasParent reports whether there is an object that the last field on a path is in.
func hasParent(object map[string]any, path []string) bool {
	for _, name := range path[:len(path)-1] {
		var ok bool
		if object, ok = object[name].(map[string]any); !ok {
			return false
		}
	}
	return true
}

// withoutNull takes a null out that is on a path, since null is as good as absent.
func withoutNull(object map[string]any, path []string) {
	for _, name := range path {
		v, there := object[name]
		if there && v == nil {
			delete(object, name)
		}
		var ok bool
		if object, ok = v.(map[string]any); !ok {
			return
		}
	}
}

// edited is a list of conditions after the policy's changes; the order of the others stays.
func edited(list []any, r *v1alpha1.RecoveredStatus, now time.Time) []any {
	out := slices.DeleteFunc(slices.Clone(list), func(e any) bool {
		t, _ := typeOf(e)
		return slices.Contains(r.RemoveConditions, t)
	})
	for _, c := range r.SetConditions {
		i := slices.IndexFunc(out, func(e any) bool {
			t, ok := typeOf(e)
			return ok && t == c.Type
		})
		if i < 0 {
			out = append(out, map[string]any{"type": c.Type})
			i = len(out) - 1
		}
		m, ok := out[i].(map[string]any)
		if !ok {
			continue // it has a type, so it is one
		}
		if m["status"] != string(c.Status) {
			m["lastTransitionTime"] = metav1.NewTime(now).UTC().Format(time.RFC3339)
		}
		m["status"] = string(c.Status)
		for name, text := range map[string]string{"reason": c.Reason, "message": c.Message} {
			if text != "" {
				m[name] = text
			}
		}
	}
	return out
}

func typeOf(condition any) (string, bool) {
	m, ok := condition.(map[string]any)
	if !ok {
		return "", false
	}
	t, ok := m["type"].(string)
	return t, ok
}

// input is the question whether an object may go from its status to that of another.
func input(p *facts.RecoveryPolicy, about rules.Object, was, is rules.Status, now time.Time) rules.Input {
	return rules.Input{Policy: p.Policy, Object: about, Old: was, New: is, Final: true, Now: now}
}
