package statuspatch

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// merge makes the patch of a status, and tells whether it changes anything in current.
func (o owned) merge(current, desired map[string]any) (patch map[string]any, changed bool, err error) {
	m := maker{required: o.required}
	patch, err = m.parts(o.fields, o.typ, current, desired, nil)
	return patch, m.changed, err
}

// readsChanged tells whether the Go type reads the two statuses differently. Without it
// a write whose result reads as before would be made again for ever.
func (o owned) readsChanged(current, desired status) bool {
	cur, curErr := current.readBack()
	des, desErr := desired.readBack()
	if curErr != nil || desErr != nil {
		return true // a type that does not read what it writes
	}
	_, changed, err := o.merge(cur, des)
	return changed || err != nil
}

type maker struct {
	required map[string]any
	changed  bool
}

// parts names the fields of an object that are owned. Of the others nothing is said.
func (m *maker) parts(owned fields, t reflect.Type, current, desired map[string]any, path []string) (map[string]any, error) {
	patch, inside := make(map[string]any, len(owned)), below(t)
	for _, name := range slices.Sorted(maps.Keys(owned)) {
		at := append(slices.Clip(path), name)
		inner, _ := inside(name)
		var err error
		if owned[name] == nil {
			patch[name], err = m.whole(inner, current[name], desired[name], at)
		} else {
			patch[name], err = m.parts(owned[name], inner, object(current[name]), object(desired[name]), at)
		}
		if err != nil {
			return nil, err
		}
	}
	return patch, nil
}

// whole replaces a value. Only an object takes more than naming it: it is merged with
// what is there, so all that it must not have is named as well.
func (m *maker) whole(t reflect.Type, current, desired any, path []string) (any, error) {
	if empty, ok := m.required[key(path)]; ok && desired == nil {
		if empty == nil {
			return nil, fmt.Errorf("required field %q: not in the status of desired", strings.Join(path, "."))
		}
		desired = empty
		if current == nil {
			current = empty // a Go type cannot tell, and would be written for ever
		}
	}
	wanted, ok := desired.(map[string]any)
	if !ok {
		m.changed = m.changed || !equal(current, desired)
		return desired, nil
	}
	stored, ok := current.(map[string]any)
	m.changed = m.changed || !ok
	if t = deref(t); t != nil && t.Kind() == reflect.Struct && !opaque(t) {
		return m.parts(all(t), t, stored, wanted, path)
	}
	keys := fields{}
	for name := range wanted {
		keys[name] = nil
	}
	for name := range stored {
		keys[name] = nil
	}
	return m.parts(keys, t, stored, wanted, path)
}

func object(value any) map[string]any {
	o, _ := value.(map[string]any)
	return o
}

// equal tells whether two values of JSON are the same to an API server. A null in an
// object is: not there.
func equal(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok {
			return false
		}
		for name, value := range a {
			if !equal(value, b[name]) {
				return false
			}
		}
		for name, value := range b {
			if _, seen := a[name]; !seen && value != nil {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, equal)
	case json.Number:
		b, ok := b.(json.Number)
		return ok && sameNumber(a, b)
	}
	return a == b
}

// sameNumber compares by value, as an API server may write 1.0 as 1. In doubt numbers
// differ: a write too many does no harm.
func sameNumber(a, b json.Number) bool {
	if a == b {
		return true
	}
	if !strings.ContainsAny(string(a)+string(b), ".eE") {
		return false // two integers that are written differently
	}
	const exact = 1 << 53 // from there on, a float64 stands for several integers
	x, errX := strconv.ParseFloat(string(a), 64)
	y, errY := strconv.ParseFloat(string(b), 64)
	return errX == nil && errY == nil && x == y && math.Abs(x) < exact
}
