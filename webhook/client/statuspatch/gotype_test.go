package statuspatch

import (
	"encoding/json"
	"maps"
	"math/big"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

type level1 struct {
	*Level2
	Same   int `json:"same"`
	Hides  int
	Tagged int `json:"Both"`
}

type Level2 struct {
	Deep  int    `json:"deep,omitempty"`
	Hides string `json:"Hides"`
	Both  int
	Inner int
}

type Other struct {
	Same int
	Both int
}

type Tags struct {
	Else int `json:"same"`
	Rest int
}

type Tags2 struct {
	More int `json:"same"`
	Rest int
}

type Tags3 struct {
	Deeper int `json:"same"`
}

type (
	Deep3  struct{ Tags3 }
	Twice1 struct{ Level2 }
	Twice2 struct{ Level2 }
)

type Bare struct{ Both, Rest int }

type text int

type Self struct {
	*Self
	Own int
}

type odd struct {
	Quoted int    `json:"quoted,string"`
	None   int    `json:"-"`
	Empty  int    `json:",omitempty"`
	Inline level1 `json:",inline"` // not embedded: the option means nothing
	text
	Text text
}

// oddNames are tags that linters find fault with, too.
func oddNames() any {
	return reflect.Zero(reflect.StructOf([]reflect.StructField{
		{Name: "Dash", Type: reflect.TypeFor[int](), Tag: `json:"-,"`},
		{Name: "Bad", Type: reflect.TypeFor[int](), Tag: `json:"a\"b"`},
		{Name: "Umlaut", Type: reflect.TypeFor[int](), Tag: `json:"größe"`},
	})).Interface()
}

// embed makes a struct that embeds those. In the source vet would find fault with it.
func embed(inner ...any) any {
	var fields []reflect.StructField
	for _, value := range inner {
		t := reflect.TypeOf(value)
		fields = append(fields, reflect.StructField{Name: t.Name(), Type: t, Anonymous: true})
	}
	return reflect.Zero(reflect.StructOf(fields)).Interface()
}

// The fields of a struct are those that encoding/json writes.
func TestFieldsAreThoseOfEncodingJSON(t *testing.T) {
	t.Parallel()
	for _, value := range []any{
		level1{},
		odd{text: 1},
		oddNames(),
		Self{},
		struct{}{},
		struct {
			level1
			Other
		}{},
		struct {
			level1
			*Other
			Bare
		}{},
		struct {
			level1 `json:"named"`
			Other
		}{},
		embed(Tags{}, Tags2{}),
		embed(Tags{}, Tags2{}, Deep3{}),
		embed(Tags{}, Other{}),
		embed(Twice1{}, Twice2{}),
		embed(Twice1{}, Twice2{}, Level2{}),
		embed(Twice1{}, Level2{}, Bare{}),
		boxStatus{},
		named{},
	} {
		v := reflect.New(reflect.TypeOf(value)).Elem()
		v.Set(reflect.ValueOf(value))
		fill(v, 8)
		data, err := json.Marshal(v.Interface())
		if err != nil {
			t.Fatal(err)
		}
		var written map[string]any
		if err := json.Unmarshal(data, &written); err != nil {
			t.Fatal(err)
		}
		want, got := slices.Sorted(maps.Keys(written)), slices.Sorted(maps.Keys(jsonFields(v.Type())))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: fields (-encoding/json +got):\n%s", v.Type(), diff)
		}
	}
}

// The type is that of the field that counts, too.
func TestTheOuterFieldCounts(t *testing.T) {
	t.Parallel()
	if got := jsonFields(reflect.TypeFor[level1]())["Hides"].typ.Kind(); got != reflect.Int {
		t.Errorf("the field is of kind %s", got)
	}
}

// fill makes nothing be omitted. Of a type that contains itself, depth are enough.
func fill(v reflect.Value, depth int) {
	if depth == 0 {
		return
	}
	if !v.CanSet() { // embedded and not exported: what is in it may be
		if v.Kind() == reflect.Struct {
			for i := range v.NumField() {
				fill(v.Field(i), depth-1)
			}
		}
		return
	}
	switch v.Interface().(type) {
	case metav1.Time:
		v.Set(reflect.ValueOf(metav1.NewTime(time.Unix(1, 0))))
		return
	case json.RawMessage:
		v.Set(reflect.ValueOf(json.RawMessage("1")))
		return
	case runtime.RawExtension:
		v.Set(reflect.ValueOf(runtime.RawExtension{Raw: []byte("1")}))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), depth-1)
		}
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		fill(v.Elem(), depth-1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.Zero(v.Type().Key()), reflect.Zero(v.Type().Elem()))
	case reflect.String:
		v.SetString("x")
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Interface:
		v.Set(reflect.ValueOf(1))
	}
}

func TestTypesThatWriteThemselves(t *testing.T) {
	t.Parallel()
	for _, value := range []any{metav1.Time{}, metav1.MicroTime{}, metav1.Duration{}, metav1.FieldsV1{}, resource.Quantity{}, intstr.IntOrString{}, runtime.RawExtension{}, json.RawMessage{}, time.Time{}, netip.Addr{}, big.Int{}} {
		if !opaque(reflect.TypeOf(value)) {
			t.Errorf("%T is looked into", value)
		}
	}
	for _, value := range []any{metav1.Condition{}, boxStatus{}, "", 1, []string{}} {
		if opaque(reflect.TypeOf(value)) {
			t.Errorf("%T is not looked into", value)
		}
	}
}

func TestNearest(t *testing.T) {
	t.Parallel()
	names := []string{"phase", "failedPodUIDs", "ready", "readyReplicas", "conditions"}
	for meant, want := range map[string]string{"FailedPodUids": "failedPodUIDs", "redy": "ready", "condition": "conditions", "READYREPLICA": "readyReplicas"} {
		if got := nearest(slices.Clone(names), meant); len(got) != 3 || got[0] != want {
			t.Errorf("near %q are %q, want %q first", meant, got, want)
		}
	}
	if got := nearest([]string{"a"}, ""); !slices.Equal(got, []string{"a"}) {
		t.Errorf("got %v", got)
	}
	for _, tc := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"kitten", "sitting", 3}, {"ab", "ba", 2}} {
		if got := distance(tc.a, tc.b); got != tc.want {
			t.Errorf("distance of %q and %q is %d, want %d", tc.a, tc.b, got, tc.want)
		}
	}
}

func TestSameNumber(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		a, b json.Number
		want bool
	}{
		{"1", "1", true},
		{"1", "1.0", true},
		{"10", "1e1", true},
		{"0.1", "0.10", true},
		{"1", "2", false},
		{"1", "1.5", false},
		{"9007199254740993", "9007199254740992", false},
		{"9007199254740991", "9007199254740991.0", true},
		{"9007199254740993", "9007199254740992.0", false},
		{"18446744073709551615", "18446744073709551615", true},
		{"1e999", "2e999", false},
		{"1e999999999", "1e999999999", true},
	} {
		if got := sameNumber(tc.a, tc.b); got != tc.want {
			t.Errorf("%s and %s: %t", tc.a, tc.b, got)
		}
	}
}
