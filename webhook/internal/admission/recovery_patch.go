package admission

import (
	"strings"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/recovery"
)

// nullable is an operation whose value may be null, which operation leaves out.
type nullable struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// recordPatch writes an edit of the record as a JSON patch on the raw object. It is built
// against what is really there: a remove of what is absent, or an add below what is absent,
// is a 500 for the client, whatever the failure policy says. It never touches anything
// outside of the status.
func recordPatch(raw []byte, object map[string]any, p *facts.RecoveryPolicy, e recovery.Edit) ([]byte, error) {
	segments := recovery.Segments(p.Layout.Record)
	// Names of fields have neither "/" nor "~", so that nothing has to be escaped.
	path := "/" + strings.Join(segments, "/")
	depth, present := presence(object, segments)

	if e.Clear && !present && depth < len(segments)-1 {
		return nil, nil // it is wanted in a parent, and there is none
	}
	var value any
	switch {
	case !e.Clear:
		value = e.UIDs
	case p.Record.Cleared == v1alpha1.ClearNull:
		value = nil
	case p.Record.Cleared == v1alpha1.ClearEmpty:
		value = []string{}
	case present:
		return encoded(raw, []any{operation{Op: "remove", Path: path}})
	default:
		return nil, nil
	}
	if present {
		return encoded(raw, []any{nullable{Op: "replace", Path: path, Value: value}})
	}
	// Only the first parent that is missing is added, with all that is below it.
	for i := len(segments) - 1; i > depth; i-- {
		value = map[string]any{segments[i]: value}
	}
	return encoded(raw, []any{nullable{Op: "add", Path: "/" + strings.Join(segments[:depth+1], "/"), Value: value}})
}

// presence says how many of the first fields on a path are there, and whether all are. A
// null is no parent: it counts as absent where something is to go below it.
func presence(object map[string]any, segments []string) (depth int, all bool) {
	here := object
	for i, name := range segments {
		v, ok := here[name]
		if !ok {
			return i, false
		}
		if i == len(segments)-1 {
			return i, true
		}
		below, ok := v.(map[string]any)
		if !ok {
			return i, false
		}
		here = below
	}
	return 0, false
}
