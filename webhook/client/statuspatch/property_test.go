package statuspatch

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The property: applied to any status that can be there, the patch gives the fields
// that are owned exactly the values of desired, and leaves all others as they are.
// Keys of maps are the exception: those that current does not have stay. So a random
// status has maps only where it is what current is as well.

// random fills a value. A third of what could be empty is.
func random(r *rand.Rand, v reflect.Value, depth int, withMaps bool) {
	if !v.CanSet() && v.Kind() != reflect.Struct {
		return
	}
	if v.CanSet() && r.IntN(3) == 0 {
		return
	}
	if v.Type() == reflect.TypeFor[metav1.Time]() {
		v.Set(reflect.ValueOf(metav1.NewTime(time.Unix(r.Int64N(1e9), 0))))
		return
	}
	if opaque(v.Type()) {
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			random(r, v.Field(i), depth-1, withMaps)
		}
	case reflect.Pointer:
		if depth > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			random(r, v.Elem(), depth-1, withMaps)
		}
	case reflect.Slice:
		n := r.IntN(3)
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			random(r, v.Index(i), depth-1, true) // lists are replaced, and maps in them
		}
	case reflect.Map:
		if !withMaps || v.Type().Key().Kind() != reflect.String {
			return
		}
		v.Set(reflect.MakeMap(v.Type()))
		for range r.IntN(3) {
			key, element := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			key.SetString(string(rune('a' + r.IntN(4))))
			random(r, element, depth-1, true)
			v.SetMapIndex(key, element)
		}
	case reflect.String:
		v.SetString(string(rune('a' + r.IntN(4))))
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(r.Int64N(1 << 30))
	case reflect.Bool:
		v.SetBool(true)
	}
}

// plant puts fields of somebody else into each object that is not in a list, and tells
// where: "x.task" is one in the task.
func plant(value any, at string, planted map[string]bool) {
	object, ok := value.(map[string]any)
	if !ok {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		plant(object[name], at+"."+name, planted)
	}
	object["foreign"] = map[string]any{"at": at, "list": []any{json.Number("1")}}
	planted[at] = true
}

// reap takes them out again. Objects go that held nothing else and are not in like:
// those are not in what desired has, and say no more than absent.
func reap(t *testing.T, value any, at string, planted map[string]bool) {
	t.Helper()
	object, ok := value.(map[string]any)
	if !ok {
		return
	}
	for name, inner := range object {
		if name != "foreign" {
			reap(t, inner, at+"."+name, planted)
		}
	}
	if foreign, ok := object["foreign"]; ok {
		want := map[string]any{"at": at, "list": []any{json.Number("1")}}
		if diff := cmp.Diff(any(want), foreign); diff != "" {
			t.Errorf("somebody else's field in %s (-want +got):\n%s", at, diff)
		}
		delete(object, "foreign")
		delete(planted, at)
	}
}

// has tells whether there is an object at that place.
func has(value any, at string) bool {
	for name := range strings.SplitSeq(strings.TrimPrefix(at, "."), ".") {
		if name == "" {
			break
		}
		value = object(value)[name]
	}
	_, ok := value.(map[string]any)
	return ok
}

// checkTyped checks the property for three statuses of one Go type.
func checkTyped(t *testing.T, current, desired client.Object, live any, foreign bool) {
	t.Helper()
	patch, _ := mustMake(t, Options{}, current, desired)
	if again, _ := mustMake(t, Options{}, current, desired); string(again) != string(patch) {
		t.Fatalf("two patches of one change:\n%s\n%s", patch, again)
	}
	want, err := readStatus(desired)
	if err != nil {
		t.Fatal(err)
	}
	tree, planted := plain(t, live), map[string]bool{}
	if foreign {
		plant(tree, "", planted)
	}
	there := toText(t, tree)
	result := apply(t, tree, patch)

	// What the type knows is what was wanted, without help of this package.
	got := reflect.New(reflect.TypeOf(desired).Elem()).Interface().(client.Object)
	if err := json.Unmarshal([]byte(toText(t, map[string]any{"status": result})), got); err != nil {
		t.Fatal(err)
	}
	gotStatus, err := readStatus(got)
	if err != nil {
		t.Fatal(err)
	}
	wanted, err := want.readBack()
	if err != nil {
		t.Fatal(err)
	}
	if wanted == nil {
		wanted = map[string]any{} // a pointer to a status: the API server has an empty one
	}
	if !equal(wanted, gotStatus.value) { // an element of a map that is null cannot be stored
		t.Errorf("status (-want +got):\n%s\nof %s\npatched by %s", cmp.Diff(wanted, gotStatus.value), there, patch)
	}
	// What it does not know is there still, unless what it was in has to go.
	reap(t, result, "", planted)
	for at := range planted {
		if has(want.value, at) {
			t.Errorf("somebody else's field in %q is gone:\n%s\npatched by %s", at, there, patch)
		}
	}
	// And nothing is left to do.
	got.SetNamespace(current.GetNamespace())
	got.SetName(current.GetName())
	if again, changed := mustMake(t, Options{}, got, desired); changed {
		t.Errorf("the result differs from what is wanted: %s to be patched by %s", toText(t, result), again)
	}
}

func TestPropertyOfGoTypes(t *testing.T) {
	t.Parallel()
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		make := func(withMaps bool) *box {
			b := named1(&box{})
			random(r, reflect.ValueOf(&b.Status).Elem(), 5, withMaps)
			return b
		}
		t.Run("seed "+fmt.Sprint(seed), func(t *testing.T) {
			checkTyped(t, make(false), make(false), make(false).Status, true) // the cache is stale
			current := make(true)
			checkTyped(t, current, make(true), current.Status, false) // it is not, and there are maps
		})
	}
}

// The same for all kinds of Kubernetes that have a status.
func TestPropertyOfKubernetesTypes(t *testing.T) {
	t.Parallel()
	tried := 0
	for gvk, typ := range clientgoscheme.Scheme.AllKnownTypes() {
		if _, ok := reflect.New(typ).Interface().(client.Object); !ok {
			continue
		}
		f, ok := jsonFields(typ)["status"]
		if !ok {
			continue
		}
		tried++
		t.Run(gvk.String(), func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(10) {
				r := rand.New(rand.NewPCG(seed, 2))
				make := func(withMaps bool) client.Object {
					obj := named1(reflect.New(typ).Interface().(client.Object))
					random(r, reflect.ValueOf(obj).Elem().FieldByIndex(f.index), 5, withMaps)
					return obj
				}
				statusOf := func(obj client.Object) any {
					return reflect.ValueOf(obj).Elem().FieldByIndex(f.index).Interface()
				}
				checkTyped(t, make(false), make(false), statusOf(make(false)), true)
				current := make(true)
				checkTyped(t, current, make(true), statusOf(current), false)
			}
		})
	}
	if tried < 30 {
		t.Errorf("only %d kinds with a status were found", tried)
	}
}

// tree makes a value without a type.
func tree(r *rand.Rand, depth int, withObjects bool) any {
	switch n := r.IntN(7); {
	case n == 0:
		return nil
	case n == 1:
		return "s"
	case n == 2:
		return int64(r.IntN(3))
	case n == 3:
		list := []any{}
		for range r.IntN(3) {
			list = append(list, tree(r, depth-1, true))
		}
		return list
	case depth > 0 && withObjects:
		object := map[string]any{}
		for range r.IntN(4) {
			object[string(rune('a'+r.IntN(3)))] = tree(r, depth-1, true)
		}
		return object
	}
	return true
}

func randomObject(r *rand.Rand) map[string]any {
	object := map[string]any{}
	for range r.IntN(4) {
		object[string(rune('a'+r.IntN(3)))] = tree(r, 3, true)
	}
	return object
}

func at(value any, path []string) any {
	for _, name := range path {
		value = object(value)[name]
	}
	return value
}

// leaves calls with every path that does not end in an object that has something in it.
func leaves(value any, path []string, call func([]string, any)) {
	inner := object(value)
	if len(inner) == 0 {
		call(path, value)
		return
	}
	for name, v := range inner {
		leaves(v, append(slices.Clip(path), name), call)
	}
}

func TestPropertyOfUnstructuredObjects(t *testing.T) {
	t.Parallel()
	for seed := range uint64(5000) {
		r := rand.New(rand.NewPCG(seed, 3))
		var options Options
		for range 1 + r.IntN(3) {
			path := string(rune('a' + r.IntN(3)))
			for range r.IntN(3) {
				path += "." + string(rune('a'+r.IntN(3)))
			}
			options.Fields = append(options.Fields, path)
		}
		owned := fields{}
		for _, path := range options.Fields {
			owned.add(strings.Split(path, "."))
		}
		current, desired, live := randomObject(r), randomObject(r), randomObject(r)
		for _, path := range options.Fields {
			split := strings.Split(path, ".")
			if object(at(live, split)) != nil && object(at(desired, split)) != nil {
				live = plain(t, current).(map[string]any) // an object onto another needs a fresh read
				break
			}
		}
		a, b := untyped(t, toText(t, current)), untyped(t, toText(t, desired))
		patch, _ := mustMake(t, options, a, b)
		result := apply(t, live, patch)
		for _, path := range options.Fields {
			split := strings.Split(path, ".")
			if want, got := at(plain(t, desired), split), at(result, split); !equal(want, got) {
				t.Fatalf("seed %d: %s is %s and not %s: %s patched by %s", seed, path, toText(t, got), toText(t, want), toText(t, live), patch)
			}
		}
		leaves(plain(t, live), nil, func(path []string, want any) {
			if len(path) == 0 || touches(owned, path) {
				return
			}
			if got := at(result, path); !equal(want, got) {
				t.Fatalf("seed %d: %s, which is not owned, is %s and no longer %s: patched by %s", seed, strings.Join(path, "."), toText(t, got), toText(t, want), patch)
			}
		})
		if again, changed := mustMake(t, options, untyped(t, toText(t, result)), b); changed {
			t.Fatalf("seed %d: %s patched by %s is %s, to be patched by %s", seed, toText(t, live), patch, toText(t, result), again)
		}
		// What is no change by its own account is none.
		if patch, changed := mustMake(t, options, a, b); !changed {
			for _, path := range options.Fields {
				split := strings.Split(path, ".")
				if before, after := at(plain(t, current), split), at(apply(t, current, patch), split); !equal(before, after) {
					t.Fatalf("seed %d: %s changes from %s to %s and that is no change", seed, path, toText(t, before), toText(t, after))
				}
			}
		}
	}
}

// touches tells whether a path is owned, or is on the way to a field that is.
func touches(f fields, path []string) bool {
	for _, name := range path {
		inner, ok := f[name]
		if !ok {
			return false
		}
		if inner == nil {
			return true
		}
		f = inner
	}
	return true
}

// Whatever is in the two objects, Make does not panic, what it makes is a patch of
// nothing but the status, and once that is applied nothing is left to do.
func FuzzMake(f *testing.F) {
	f.Add(`{"phase":"Failed","failedPodUIDs":["u1"]}`, `{"phase":"Running"}`, "phase,failedPodUIDs", "", true)
	f.Add(`{"task":{"running":1,"nodes":null}}`, `{"task":{"next":{}}}`, "task.running", "task.running", false)
	f.Add(`{"labels":{"a":"1"},"extra":{"a":[{"b":null}]}}`, `{"labels":{"b":"\ud800"},"raw":1.0}`, "", "labels", false)
	f.Add(`null`, `{"any":{"":{"a.b":1e400}},"started":"2026-01-02T03:04:05Z"}`, "any,,x..y", "", true)
	f.Add(``, `[]`, "\x00", "\x00", false)
	f.Fuzz(func(t *testing.T, current, desired, fields, required string, resourceVersion bool) {
		options := Options{ResourceVersion: resourceVersion}
		if fields != "" {
			options.Fields = strings.Split(fields, ",")
		}
		if required != "" {
			options.Required = strings.Split(required, ",")
		}
		var cur, des any
		if json.Unmarshal([]byte(current), &cur) == nil && json.Unmarshal([]byte(desired), &des) == nil {
			fuzzOne(t, options, func(status any) client.Object {
				u := named1(&unstructured.Unstructured{})
				u.SetResourceVersion("7")
				u.Object["status"] = status
				return u
			}, cur, des)
		}
		var curBox, desBox boxStatus
		if json.Unmarshal([]byte(current), &curBox) == nil && json.Unmarshal([]byte(desired), &desBox) == nil {
			fuzzOne(t, options, func(status any) client.Object {
				b := named1(&box{})
				b.SetResourceVersion("7")
				if s, ok := status.(boxStatus); ok {
					b.Status = s
					return b
				}
				if err := json.Unmarshal([]byte(toText(t, status)), &b.Status); err != nil {
					t.Fatalf("the result is no status: %v", err)
				}
				return b
			}, curBox, desBox)
		}
	})
}

func fuzzOne(t *testing.T, o Options, object func(status any) client.Object, cur, des any) {
	t.Helper()
	current, desired := object(cur), object(des)
	patch, _, err := o.Make(current, desired)
	if err != nil {
		return
	}
	s, err := readStatus(current)
	if err != nil {
		t.Fatal(err)
	}
	result := apply(t, s.value, patch)
	if again, changed := mustMake(t, o, object(result), desired); changed {
		t.Errorf("%s patched by %s is %s, to be patched by %s", toText(t, s.value), patch, toText(t, result), again)
	}
}
