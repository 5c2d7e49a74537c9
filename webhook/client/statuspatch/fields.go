package statuspatch

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// fields are parts of an object by name. One that is nil is owned whole; of the others
// only what is below is.
type fields map[string]fields

func (f fields) add(path []string) {
	name, rest := path[0], path[1:]
	inner, there := f[name]
	switch {
	case len(rest) == 0:
		f[name] = nil
	case there && inner == nil: // owned whole already
	default:
		if inner == nil {
			inner = fields{}
			f[name] = inner
		}
		inner.add(rest)
	}
}

func (f fields) own(path []string) bool {
	inner, there := f[path[0]]
	if !there || inner == nil || len(path) == 1 {
		return there && inner == nil
	}
	return inner.own(path[1:])
}

// all are the fields of a struct.
func all(t reflect.Type) fields {
	f := fields{}
	for name := range jsonFields(t) {
		f[name] = nil
	}
	return f
}

// owned is the part of a status that is written.
type owned struct {
	typ      reflect.Type // of the status; nil where it is not known
	fields   fields
	required map[string]any // zero values by the key of their path; nil where it is not known
}

// key makes a path one string. No name in a path that was given has a NUL: it is there
// so that the key "a.b" of a map is not taken for b in a.
func key(path []string) string { return strings.Join(path, "\x00") }

// resolve finds the fields that the options name in the type, if there is one.
func (o Options) resolve(t reflect.Type) (owned, error) {
	part := owned{typ: t, fields: fields{}, required: map[string]any{}}
	if len(o.Fields) == 0 {
		if t == nil {
			return owned{}, errors.New("an unstructured object has no type that would tell its fields: name those to own in Options.Fields")
		}
		part.fields = all(t)
	}
	for _, named := range o.Fields {
		path, _, err := find(t, named)
		if err != nil {
			return owned{}, fmt.Errorf("field %q: %w", named, err)
		}
		part.fields.add(path)
	}
	for _, named := range o.Required {
		path, typ, err := find(t, named)
		if err == nil && !part.fields.own(path) {
			err = errors.New("is not among the fields that are owned")
		}
		var value any
		if err == nil && t != nil {
			value, err = zero(typ)
			if err == nil && value == nil {
				err = fmt.Errorf("a %s has no empty value but null", typ)
			}
		}
		if err != nil {
			return owned{}, fmt.Errorf("required field %q: %w", named, err)
		}
		part.required[key(path)] = value
	}
	return part, nil
}

// find splits a path and follows it.
func find(t reflect.Type, named string) ([]string, reflect.Type, error) {
	path := strings.Split(named, ".")
	if slices.Contains(path, "") {
		return nil, nil, errors.New("not a dotted path of names below status")
	}
	if t == nil {
		return path, nil, nil
	}
	where := "status"
	for _, name := range path {
		inner, ok := below(t)(name)
		if !ok {
			return nil, nil, unknown(t, where, name)
		}
		t, where = inner, where+"."+name
	}
	return path, t, nil
}

func unknown(t reflect.Type, where, name string) error {
	t = deref(t)
	if t.Kind() != reflect.Struct || opaque(t) {
		return fmt.Errorf("%s is a %s, of which no part can be owned", where, t)
	}
	names := slices.Collect(maps.Keys(jsonFields(t)))
	if len(names) == 0 {
		return fmt.Errorf("%s (%s) has no fields", where, t)
	}
	return fmt.Errorf("%s (%s) has no %q; near: %s", where, t, name, strings.Join(nearest(names, name), ", "))
}

// nearest are the three names that take the least changes to become the one that was
// meant. Three are enough to find a slip, and do not fill a line.
func nearest(names []string, meant string) []string {
	lower := strings.ToLower(meant)
	slices.SortFunc(names, func(a, b string) int {
		if d := distance(strings.ToLower(a), lower) - distance(strings.ToLower(b), lower); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	return names[:min(3, len(names))]
}

// distance is how many letters have to be put in, taken out or replaced (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
