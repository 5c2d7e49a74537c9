package statuspatch

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// status is the status of an object.
type status struct {
	typ   reflect.Type   // nil where it is not known
	value map[string]any // as JSON has it; numbers as they are written
}

func readStatus(obj client.Object) (status, error) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		value, err := toJSON(u.Object["status"])
		return status{value: value}, err
	}
	v := reflect.ValueOf(obj).Elem()
	f, ok := jsonFields(v.Type())["status"]
	if !ok {
		return status{}, fmt.Errorf("a %s has no status", v.Type())
	}
	typ := deref(f.typ)
	if typ.Kind() != reflect.Struct || opaque(typ) {
		return status{}, fmt.Errorf("the status of a %s is a %s, whose fields are not known; use an unstructured object and Options.Fields", v.Type(), typ)
	}
	s := status{typ: typ}
	sv, err := v.FieldByIndexErr(f.index)
	if err != nil {
		return s, nil // in an embedded struct that is not there
	}
	s.value, err = toJSON(sv.Addr().Interface())
	return s, err
}

// readBack is the status as a client would read it into the Go type. That can be less
// than what was written: omitzero writes a struct that holds an empty list, and leaves
// it out once that is read as nil.
func (s status) readBack() (map[string]any, error) {
	if s.typ == nil {
		return s.value, nil
	}
	data, err := json.Marshal(s.value)
	if err != nil {
		return nil, err
	}
	into := reflect.New(s.typ).Interface()
	if err := utiljson.Unmarshal(data, into); err != nil {
		return nil, err
	}
	return toJSON(into)
}

// toJSON is what an API server would be sent.
func toJSON(value any) (map[string]any, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("encoding the status: %w", err)
	}
	decoded, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("decoding the status: %w", err)
	}
	object, ok := decoded.(map[string]any)
	if decoded != nil && !ok {
		return nil, fmt.Errorf("the status is no object but a %T", decoded)
	}
	return object, nil
}

func decode(data []byte) (any, error) {
	var value any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber() // a float64 does not hold every int64
	err := d.Decode(&value)
	return value, err
}

// field is a field of a struct as encoding/json finds it.
type field struct {
	index  []int
	typ    reflect.Type
	tagged bool
}

// jsonFields are the fields of a struct by their names in JSON. These are the rules of
// encoding/json, which exports none of them: embedded structs without a name are part of
// the outer one; of fields with the same name the least nested one counts, then the one
// with a tag, and otherwise none.
func jsonFields(t reflect.Type) map[string]field {
	type embedded struct {
		typ   reflect.Type
		index []int
	}
	fields := map[string]field{}
	decided, visited := map[string]bool{}, map[reflect.Type]bool{}
	for level := []embedded{{typ: t}}; len(level) > 0; {
		var next []embedded
		found := map[string][]field{}
		for _, e := range level {
			visited[e.typ] = true
			for i := range e.typ.NumField() {
				sf := e.typ.Field(i)
				inner := sf.Type
				if inner.Kind() == reflect.Pointer && inner.Name() == "" {
					inner = inner.Elem()
				}
				if !sf.IsExported() && (!sf.Anonymous || inner.Kind() != reflect.Struct) {
					continue
				}
				tag := sf.Tag.Get("json")
				if tag == "-" {
					continue
				}
				name, _, _ := strings.Cut(tag, ",")
				if !validName(name) {
					name = ""
				}
				index := append(slices.Clone(e.index), i)
				if name == "" && sf.Anonymous && inner.Kind() == reflect.Struct {
					next = append(next, embedded{typ: inner, index: index})
					continue
				}
				f := field{index: index, typ: sf.Type, tagged: name != ""}
				if name == "" {
					name = sf.Name
				}
				found[name] = append(found[name], f)
			}
		}
		for name, candidates := range found {
			if decided[name] {
				continue
			}
			decided[name] = true
			if f, ok := dominant(candidates); ok {
				fields[name] = f
			}
		}
		// Twice the same type in one level is kept: its fields then hide each other.
		level = slices.DeleteFunc(next, func(e embedded) bool { return visited[e.typ] })
	}
	return fields
}

func dominant(candidates []field) (field, bool) {
	if len(candidates) == 1 {
		return candidates[0], true
	}
	tagged := slices.DeleteFunc(slices.Clone(candidates), func(f field) bool { return !f.tagged })
	if len(tagged) == 1 {
		return tagged[0], true
	}
	return field{}, false
}

func validName(name string) bool {
	return name != "" && strings.IndexFunc(name, func(r rune) bool {
		return !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", r) && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}) < 0
}

func deref(t reflect.Type) reflect.Type {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

var (
	jsonMarshaler = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

// opaque tells whether a type writes itself, so that its fields say nothing about its
// JSON: metav1.Time, resource.Quantity, runtime.RawExtension.
func opaque(t reflect.Type) bool {
	for _, t := range []reflect.Type{t, reflect.PointerTo(t)} {
		if t.Implements(jsonMarshaler) || t.Implements(textMarshaler) {
			return true
		}
	}
	return false
}

// below finds the types of what is in a type: of a struct's fields by their names in
// JSON, of a map's elements by whatever key. It finds none where they are not known.
func below(t reflect.Type) func(name string) (reflect.Type, bool) {
	t = deref(t)
	if t != nil && !opaque(t) {
		switch t.Kind() {
		case reflect.Struct:
			fields := jsonFields(t)
			return func(name string) (reflect.Type, bool) { f, ok := fields[name]; return f.typ, ok }
		case reflect.Map:
			return func(string) (reflect.Type, bool) { return t.Elem(), true }
		}
	}
	return func(string) (reflect.Type, bool) { return nil, false }
}

// zero is the JSON of an empty value that is not null, or nil where there is none.
func zero(t reflect.Type) (any, error) {
	t = deref(t)
	v := reflect.Zero(t)
	switch t.Kind() {
	case reflect.Slice:
		v = reflect.MakeSlice(t, 0, 0)
	case reflect.Map:
		v = reflect.MakeMap(t)
	}
	data, err := json.Marshal(v.Interface())
	if err != nil {
		return nil, err
	}
	return decode(data)
}
