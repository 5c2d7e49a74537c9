package statuspatch

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// nothing is the whole patch of a box whose status is empty.
const nothing = `{"any":null,"conditions":null,"extra":null,"failedPodUIDs":null,"labels":null,` +
	`"last":{"counts":{"ready":0,"total":null},"reason":null},"maybe":null,"phase":null,` +
	`"plain":{"done":false,"next":null,"nodes":null,"running":null},"raw":null,"ready":0,` +
	`"seen":null,"slots":null,"started":null,"task":null,"tasks":null,"total":null}`

func TestEveryFieldOfTheType(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		current, desired string
		want             string // of the fields in it; the others are as in nothing
		unchanged        bool
	}{
		"nothing is there and nothing is wanted": {current: `{}`, desired: `{}`, want: `{}`, unchanged: true},
		"a list is cleared":                      {current: `{"failedPodUIDs":["u1"]}`, desired: `{}`, want: `{}`},
		"a list that the cache has not seen is cleared as well, and that is no change": {
			current: `{"phase":"Running"}`, desired: `{"phase":"Running"}`, want: `{"phase":"Running"}`, unchanged: true,
		},
		"a list is replaced whole":                      {current: `{"failedPodUIDs":["u1","u2"]}`, desired: `{"failedPodUIDs":["u2"]}`, want: `{"failedPodUIDs":["u2"]}`},
		"a list in another order is another list":       {current: `{"failedPodUIDs":["u1","u2"]}`, desired: `{"failedPodUIDs":["u2","u1"]}`, want: `{"failedPodUIDs":["u2","u1"]}`},
		"a zero that is not omitted is sent":            {current: `{"ready":3}`, desired: `{"ready":0}`, want: `{"ready":0}`},
		"an empty list that is not omitted is sent":     {current: `{"slots":["a"]}`, desired: `{"slots":[]}`, want: `{"slots":[]}`},
		"a zero of an embedded struct that is omitted":  {current: `{"total":3}`, desired: `{}`, want: `{}`},
		"an int64 that no float64 holds":                {current: `{"total":9007199254740992}`, desired: `{"total":9007199254740993}`, want: `{"total":9007199254740993}`},
		"a pointer to a struct is cleared whole":        {current: `{"task":{"running":1}}`, desired: `{}`, want: `{}`},
		"a struct that is omitted for zero is, too":     {current: `{"maybe":{"running":1}}`, desired: `{}`, want: `{}`},
		"a struct that comes has all its fields":        {current: `{}`, desired: `{"task":{}}`, want: `{"task":{"done":false,"next":null,"nodes":null,"running":null}}`},
		"a field of a nested struct is cleared":         {current: `{"task":{"running":1,"nodes":["n"]}}`, desired: `{"task":{"running":1}}`, want: `{"task":{"done":false,"next":null,"nodes":null,"running":1}}`},
		"a type that contains itself":                   {current: `{}`, desired: `{"task":{"next":{"running":1}}}`, want: `{"task":{"done":false,"next":{"done":false,"next":null,"nodes":null,"running":1},"nodes":null,"running":null}}`},
		"a field of an embedded struct that has a name": {current: `{"last":{"counts":{"total":1}}}`, desired: `{}`, want: `{}`},
		"a key of a map goes":                           {current: `{"labels":{"a":"1","b":"2"}}`, desired: `{"labels":{"b":"3"}}`, want: `{"labels":{"a":null,"b":"3"}}`},
		"a map goes":                                    {current: `{"labels":{"a":"1"}}`, desired: `{}`, want: `{}`},
		"a field of a struct in a map goes": {
			current: `{"tasks":{"a":{"running":1},"b":{}}}`, desired: `{"tasks":{"a":{"done":true}}}`,
			want: `{"tasks":{"a":{"done":true,"next":null,"nodes":null,"running":null},"b":null}}`,
		},
		"a time is one value":                   {current: `{}`, desired: `{"started":"2026-01-02T03:04:05Z"}`, want: `{"started":"2026-01-02T03:04:05Z"}`},
		"a time that stays":                     {current: `{"started":"2026-01-02T03:04:05Z"}`, desired: `{"started":"2026-01-02T03:04:05Z"}`, want: `{"started":"2026-01-02T03:04:05Z"}`, unchanged: true},
		"a raw extension is treated as a map":   {current: `{"extra":{"a":1,"b":{"c":1,"d":2}}}`, desired: `{"extra":{"b":{"c":3}}}`, want: `{"extra":{"a":null,"b":{"c":3,"d":null}}}`},
		"raw JSON becomes a list":               {current: `{"raw":{"a":1}}`, desired: `{"raw":[{"a":1}]}`, want: `{"raw":[{"a":1}]}`},
		"raw JSON becomes an object":            {current: `{"raw":[1]}`, desired: `{"raw":{"a":{"b":1}}}`, want: `{"raw":{"a":{"b":1}}}`},
		"raw JSON loses an object for a number": {current: `{"raw":{"a":{"b":1}}}`, desired: `{"raw":{"a":5}}`, want: `{"raw":{"a":5}}`},
		"raw JSON writes a number otherwise":    {current: `{"raw":1.0}`, desired: `{"raw":1}`, want: `{"raw":1}`, unchanged: true},
		"an interface holds an object":          {current: `{"any":{"a":1}}`, desired: `{"any":{"b":2}}`, want: `{"any":{"a":null,"b":2}}`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			patch, changed := mustMake(t, Options{}, newBox(t, tc.current), newBox(t, tc.desired))
			var want, some map[string]json.RawMessage
			for text, into := range map[string]*map[string]json.RawMessage{nothing: &want, tc.want: &some} {
				if err := json.Unmarshal([]byte(text), into); err != nil {
					t.Fatal(err)
				}
			}
			for name, value := range some {
				want[name] = value
			}
			if diff := cmp.Diff(`{"status":`+toText(t, want)+`}`, string(patch)); diff != "" {
				t.Errorf("patch (-want +got):\n%s", diff)
			}
			if changed == tc.unchanged {
				t.Errorf("changed %t", changed)
			}
		})
	}
}

func TestNamedFields(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		current, desired string
		options          Options
		want             string
		unchanged        bool
		untypedOnly      bool
	}{
		"one field": {
			current: `{"phase":"Failed","failedPodUIDs":["u1"],"ready":1}`, desired: `{"phase":"Failed","ready":2}`,
			options: Options{Fields: []string{"failedPodUIDs"}}, want: `{"status":{"failedPodUIDs":null}}`,
		},
		"another field that changes is not a change": {
			current: `{"ready":1}`, desired: `{"ready":2,"phase":"x"}`,
			options: Options{Fields: []string{"failedPodUIDs"}}, want: `{"status":{"failedPodUIDs":null}}`, unchanged: true,
		},
		"a field of a nested struct": {
			current: `{"task":{"running":1,"done":true}}`, desired: `{"task":{"done":false}}`,
			options: Options{Fields: []string{"task.running"}}, want: `{"status":{"task":{"running":null}}}`,
		},
		"a field of a struct that is not there": {
			current: `{}`, desired: `{}`,
			options: Options{Fields: []string{"task.running"}}, want: `{"status":{"task":{"running":null}}}`, unchanged: true,
		},
		"a field of a struct that goes": {
			current: `{"task":{"running":1,"nodes":["n"]}}`, desired: `{}`,
			options: Options{Fields: []string{"task.running"}}, want: `{"status":{"task":{"running":null}}}`,
		},
		"fields of one struct": {
			current: `{}`, desired: `{"task":{"running":1,"next":{"nodes":["n"]}}}`,
			options: Options{Fields: []string{"task.running", "task.next.nodes", "task.next.running"}},
			want:    `{"status":{"task":{"next":{"nodes":["n"],"running":null},"running":1}}}`,
		},
		"a whole and its part, the same twice": {
			current: `{"labels":{"a":"1"}}`, desired: `{"labels":{"b":"1"}}`,
			options: Options{Fields: []string{"labels.b", "labels", "labels.b", "labels"}}, want: `{"status":{"labels":{"a":null,"b":"1"}}}`,
		},
		"a key of a map": {
			current: `{"labels":{"a":"1","b":"2"}}`, desired: `{}`,
			options: Options{Fields: []string{"labels.a"}}, want: `{"status":{"labels":{"a":null}}}`,
		},
		"with the resourceVersion": {
			current: `{"phase":"Failed"}`, desired: `{}`,
			options: Options{Fields: []string{"phase"}, ResourceVersion: true}, want: `{"metadata":{"resourceVersion":"7"},"status":{"phase":null}}`,
		},
		"an object without a type is treated as a map": {
			current: `{"odd":{"a":{"x":1,"y":null},"b":2}}`, desired: `{"odd":{"a":{"z":3}}}`, untypedOnly: true,
			options: Options{Fields: []string{"odd"}}, want: `{"status":{"odd":{"a":{"x":null,"y":null,"z":3},"b":null}}}`,
		},
		"a stored null is not there": {
			current: `{"odd":null,"list":[{"a":null,"b":[null]}]}`, desired: `{"list":[{"b":[null]}]}`, untypedOnly: true,
			options: Options{Fields: []string{"odd", "list"}}, want: `{"status":{"list":[{"b":[null]}],"odd":null}}`, unchanged: true,
		},
		"an empty list is not an absent one": {
			current: `{}`, desired: `{"odd":[]}`, untypedOnly: true,
			options: Options{Fields: []string{"odd"}}, want: `{"status":{"odd":[]}}`,
		},
		"an empty object is not an absent one": {
			current: `{}`, desired: `{"odd":{}}`, untypedOnly: true,
			options: Options{Fields: []string{"odd"}}, want: `{"status":{"odd":{}}}`,
		},
		"neither has a status": {untypedOnly: true, options: Options{Fields: []string{"phase"}}, want: `{"status":{"phase":null}}`, unchanged: true},
		"the first status":     {untypedOnly: true, desired: `{"phase":"New"}`, options: Options{Fields: []string{"phase", "a.b"}}, want: `{"status":{"a":{"b":null},"phase":"New"}}`},
		"the status goes":      {untypedOnly: true, current: `{"phase":"New","ready":1}`, options: Options{Fields: []string{"phase"}}, want: `{"status":{"phase":null}}`},
		"a part of what is no object": {
			current: `{"a":5}`, desired: `{"a":"x"}`, untypedOnly: true,
			options: Options{Fields: []string{"a.b"}}, want: `{"status":{"a":{"b":null}}}`, unchanged: true,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check := func(current, desired client.Object) {
				t.Helper()
				patch, changed := mustMake(t, tc.options, current, desired)
				if diff := cmp.Diff(tc.want, string(patch)); diff != "" {
					t.Errorf("patch of a %T (-want +got):\n%s", current, diff)
				}
				if changed == tc.unchanged {
					t.Errorf("changed %t", changed)
				}
			}
			check(untyped(t, tc.current), untyped(t, tc.desired))
			if !tc.untypedOnly {
				check(newBox(t, tc.current), newBox(t, tc.desired))
			}
		})
	}
}

func TestRequired(t *testing.T) {
	t.Parallel()
	all := []string{"failedPodUIDs", "labels", "phase", "total", "task", "slots"}
	empty := `{"failedPodUIDs":[],"labels":{},"phase":"","slots":[],"task":{"done":false,"next":null,"nodes":null,"running":null},"total":0}`
	tests := map[string]struct {
		current, desired client.Object
		options          Options
		want             string
		unchanged        bool
	}{
		"zero values, and they stay": {
			current: newBox(t, `{}`), desired: newBox(t, `{}`), unchanged: true,
			options: Options{Fields: all, Required: all}, want: empty,
		},
		"what there is gets empty": {
			current: newBox(t, `{"failedPodUIDs":["u1"],"labels":{"a":"1"}}`), desired: newBox(t, `{}`),
			options: Options{Fields: all, Required: all}, want: strings.Replace(empty, `"labels":{}`, `"labels":{"a":null}`, 1),
		},
		"what is not empty is sent as it is": {
			current: newBox(t, `{}`), desired: newBox(t, `{"failedPodUIDs":["u1"]}`),
			options: Options{Fields: []string{"failedPodUIDs"}, Required: []string{"failedPodUIDs"}}, want: `{"failedPodUIDs":["u1"]}`,
		},
		"a part of a field that is owned": {
			current: newBox(t, `{"task":{"nodes":["n"]}}`), desired: newBox(t, `{"task":{}}`),
			options: Options{Fields: []string{"task"}, Required: []string{"task.nodes"}}, want: `{"task":{"done":false,"next":null,"nodes":[],"running":null}}`,
		},
		"a part of what is not there": {
			current: newBox(t, `{"task":{"nodes":["n"]}}`), desired: newBox(t, `{}`),
			options: Options{Fields: []string{"task"}, Required: []string{"task.nodes"}}, want: `{"task":null}`,
		},
		"an unstructured object holds it": {
			current: untyped(t, `{}`), desired: untyped(t, `{"a":{"b":[]}}`),
			options: Options{Fields: []string{"a"}, Required: []string{"a.b"}}, want: `{"a":{"b":[]}}`,
		},
		"a key with a dot is not a path": {
			current: untyped(t, `{}`), desired: untyped(t, `{"a":{"b":{"c":1},"b.c":null}}`),
			options: Options{Fields: []string{"a"}, Required: []string{"a.b.c"}}, want: `{"a":{"b":{"c":1},"b.c":null}}`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			patch, changed := mustMake(t, tc.options, tc.current, tc.desired)
			if diff := cmp.Diff(`{"status":`+tc.want+`}`, string(patch)); diff != "" {
				t.Errorf("patch (-want +got):\n%s", diff)
			}
			if changed == tc.unchanged {
				t.Errorf("changed %t", changed)
			}
		})
	}
	patch, _ := mustMake(t, Options{Required: []string{"failedPodUIDs"}}, newBox(t, `{}`), newBox(t, `{}`))
	if !strings.Contains(string(patch), `"failedPodUIDs":[]`) {
		t.Errorf("required, with every field owned: %s", patch)
	}
}

// selfMade writes its status by itself, and keeps what it does to itself.
type selfMade struct {
	metav1.TypeMeta
	metav1.ObjectMeta `json:"metadata"`
	Status            metav1.Time `json:"status"`
}

func (s *selfMade) DeepCopyObject() runtime.Object { c := *s; return &c }

// pointed has its status behind a pointer, in an embedded struct that may be absent.
type pointed struct {
	metav1.TypeMeta
	metav1.ObjectMeta `json:"metadata"`
	*Inner
}

type Inner struct {
	Status *counts `json:"status,omitempty"`
}

func (p *pointed) DeepCopyObject() runtime.Object { c := *p; return &c }

func TestErrors(t *testing.T) {
	t.Parallel()
	phase := Options{Fields: []string{"phase"}}
	shared := newBox(t, `{}`)
	tests := map[string]struct {
		current, desired client.Object
		options          Options
		want             string
	}{
		"no current":            {desired: newBox(t, `{}`), want: "there is no current object"},
		"a nil pointer":         {current: newBox(t, `{}`), desired: (*box)(nil), want: "there is no desired object"},
		"two types":             {current: newBox(t, `{}`), desired: untyped(t, `{}`), want: "current is a *statuspatch.box and desired a *unstructured.Unstructured"},
		"two kinds":             {current: untyped(t, `{}`), desired: with(untyped(t, `{}`), func(u *unstructured.Unstructured) { u.SetKind("Crate") }), options: phase, want: `current is of kind "example.com/v1, Kind=Box" and desired of "example.com/v1, Kind=Crate"`},
		"two versions":          {current: untyped(t, `{}`), desired: with(untyped(t, `{}`), func(u *unstructured.Unstructured) { u.SetAPIVersion("example.com/v2") }), options: phase, want: `Kind=Box" and desired of "example.com/v2`},
		"two names":             {current: newBox(t, `{}`), desired: with(newBox(t, `{}`), func(b *box) { b.Name = "b" }), want: `current is "ns/a" and desired "ns/b"`},
		"two namespaces":        {current: newBox(t, `{}`), desired: with(newBox(t, `{}`), func(b *box) { b.Namespace = "b" }), want: `current is "ns/a" and desired "b/a"`},
		"two uids":              {current: newBox(t, `{}`), desired: with(newBox(t, `{}`), func(b *box) { b.UID = "u2" }), want: `box ns/a: current has uid "u1" and desired "u2"`},
		"no name":               {current: &box{}, desired: &box{}, want: "current has no name"},
		"one object":            {current: shared, desired: shared, want: "current and desired are one object"},
		"no resourceVersion":    {current: with(newBox(t, `{}`), func(b *box) { b.ResourceVersion = "" }), desired: newBox(t, `{}`), options: Options{ResourceVersion: true}, want: "current has no resourceVersion"},
		"unstructured, no type": {current: untyped(t, `{}`), desired: untyped(t, `{}`), want: "name those to own in Options.Fields"},
		"no such field":         {current: newBox(t, `{}`), desired: newBox(t, `{}`), options: Options{Fields: []string{"failedPodUids"}}, want: `field "failedPodUids": status (statuspatch.boxStatus) has no "failedPodUids"; near: failedPodUIDs, `},
		"no such nested field":  {current: newBox(t, `{}`), desired: newBox(t, `{}`), options: Options{Fields: []string{"task.next.rnning"}}, want: `field "task.next.rnning": status.task.next (statuspatch.task) has no "rnning"; near: running, `},
		"below a list":          {current: newBox(t, `{}`), desired: newBox(t, `{}`), options: Options{Fields: []string{"conditions.type"}}, want: `status.conditions is a []v1.Condition, of which no part can be owned`},
		"below a time":          {current: newBox(t, `{}`), desired: newBox(t, `{}`), options: Options{Fields: []string{"started.Time"}}, want: `status.started is a v1.Time, of which no part can be owned`},
		"a field without JSON":  {current: newBox(t, `{}`), desired: newBox(t, `{}`), options: Options{Fields: []string{"Secret"}}, want: `has no "Secret"`},
		"with status in front":  {current: newBox(t, `{}`), desired: newBox(t, `{}`), options: Options{Fields: []string{"status.phase"}}, want: `field "status.phase": status (statuspatch.boxStatus) has no "status"`},
		"an empty path":         {current: untyped(t, `{}`), desired: untyped(t, `{}`), options: Options{Fields: []string{""}}, want: `field "": not a dotted path`},
		"a dot too many":        {current: untyped(t, `{}`), desired: untyped(t, `{}`), options: Options{Fields: []string{".phase"}}, want: `field ".phase": not a dotted path`},

		"required, and no such field":            {current: newBox(t, `{}`), desired: newBox(t, `{}`), options: Options{Required: []string{"phases"}}, want: `required field "phases": status (statuspatch.boxStatus) has no "phases"; near: phase, `},
		"required, and not owned":                {current: newBox(t, `{}`), desired: newBox(t, `{}`), options: Options{Fields: []string{"task.running"}, Required: []string{"task"}}, want: `required field "task": is not among the fields that are owned`},
		"required, and always null when empty":   {current: newBox(t, `{}`), desired: newBox(t, `{}`), options: Options{Required: []string{"seen"}}, want: `required field "seen": a v1.Time has no empty value but null`},
		"required of anything":                   {current: newBox(t, `{}`), desired: newBox(t, `{}`), options: Options{Required: []string{"any"}}, want: `required field "any": a interface {} has no empty value but null`},
		"required, and an unstructured is empty": {current: untyped(t, `{}`), desired: untyped(t, `{"a":{"b":null}}`), options: Options{Fields: []string{"a"}, Required: []string{"a.b"}}, want: `required field "a.b": not in the status of desired`},

		"no status":                         {current: named1(&corev1.ConfigMap{}), desired: named1(&corev1.ConfigMap{}), want: "reading current: a v1.ConfigMap has no status"},
		"a status that writes itself":       {current: named1(&selfMade{}), desired: named1(&selfMade{}), want: "the status of a statuspatch.selfMade is a v1.Time, whose fields are not known"},
		"metadata only":                     {current: named1(&metav1.PartialObjectMetadata{}), desired: named1(&metav1.PartialObjectMetadata{}), want: "a v1.PartialObjectMetadata has no status"},
		"a status that is no object":        {current: untyped(t, `"x"`), desired: untyped(t, `{}`), options: phase, want: "reading current: the status is no object but a string"},
		"a status that JSON cannot hold":    {current: untyped(t, `{}`), desired: with(untyped(t, `{}`), func(u *unstructured.Unstructured) { u.Object["status"] = math.NaN() }), options: phase, want: "reading desired: encoding the status: json: unsupported value: NaN"},
		"raw JSON that is none":             {current: newBox(t, `{}`), desired: with(newBox(t, `{}`), func(b *box) { b.Status.Raw = json.RawMessage("{") }), want: "reading desired: encoding the status: json: error calling MarshalJSON"},
		"required under a map, not a field": {current: newBox(t, `{}`), desired: newBox(t, `{}`), options: Options{Required: []string{"labels.a.b"}}, want: `status.labels.a is a string, of which no part can be owned`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			patch, changed, err := tc.options.Make(tc.current, tc.desired)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q in it", err, tc.want)
			}
			if patch != nil || changed {
				t.Errorf("patch %s, changed %t, with an error", patch, changed)
			}
		})
	}
}

func with[T any](obj *T, change func(*T)) *T { change(obj); return obj }

func named1[T client.Object](obj T) T { obj.SetName("a"); return obj }

// What only one of the two objects knows does not make them two.
func TestDesiredNeedNotBeACopy(t *testing.T) {
	t.Parallel()
	current, desired := untyped(t, `{"phase":"a"}`), untyped(t, `{}`)
	desired.SetUID("")
	desired.SetResourceVersion("9")
	desired.SetGroupVersionKind(batchv1.SchemeGroupVersion.WithKind(""))
	delete(desired.Object, "apiVersion")
	delete(desired.Object, "kind")
	patch, changed := mustMake(t, Options{Fields: []string{"phase"}, ResourceVersion: true}, current, desired)
	if want := `{"metadata":{"resourceVersion":"7"},"status":{"phase":null}}`; string(patch) != want || !changed {
		t.Errorf("got %s, %t", patch, changed)
	}
}

// Of the object only the status counts, and Make leaves both objects alone.
func TestNothingElseIsWritten(t *testing.T) {
	t.Parallel()
	current := newBox(t, `{"phase":"Failed"}`)
	desired := newBox(t, `{"phase":"Failed"}`)
	desired.Spec.Replicas, desired.Labels, desired.Finalizers = 3, map[string]string{"a": "b"}, []string{"f"}
	desired.Status.Secret, desired.Status.private = "x", "y"
	before, after := current.DeepCopyObject(), desired.DeepCopyObject()
	patch, changed := mustMake(t, Options{}, current, desired)
	if changed || strings.Contains(string(patch), "spec") || strings.Contains(string(patch), "metadata") || strings.Contains(string(patch), "ecret") {
		t.Errorf("changed %t: %s", changed, patch)
	}
	for _, pair := range [][2]any{{before, current}, {after, desired}} {
		if diff := cmp.Diff(pair[0], pair[1], cmp.AllowUnexported(box{}, boxStatus{}, named{})); diff != "" {
			t.Errorf("an argument was changed (-before +after):\n%s", diff)
		}
	}
}

func TestStatusBehindPointers(t *testing.T) {
	t.Parallel()
	none, empty := named1(&pointed{}), named1(&pointed{Inner: &Inner{}})
	full := named1(&pointed{Inner: &Inner{Status: &counts{Ready: 1}}})
	for name, tc := range map[string]struct {
		current, desired *pointed
		want             string
		changed          bool
	}{
		"there is none":     {current: none, desired: empty, want: `{"status":{"ready":null,"total":null}}`},
		"there will be one": {current: none, desired: full, want: `{"status":{"ready":1,"total":null}}`, changed: true},
		"there was one":     {current: full, desired: none, want: `{"status":{"ready":null,"total":null}}`, changed: true},
	} {
		patch, changed := mustMake(t, Options{}, tc.current, tc.desired)
		if string(patch) != tc.want || changed != tc.changed {
			t.Errorf("%s: %s, changed %t", name, patch, changed)
		}
	}
}

// One object written in place: with Always it is sent, with every field.
func TestAlwaysOfOneObject(t *testing.T) {
	t.Parallel()
	b := newBox(t, `{}`)
	patch, changed := mustMake(t, Options{Always: true}, b, b)
	if string(patch) != `{"status":`+nothing+`}` || changed {
		t.Errorf("%s, changed %t", patch, changed)
	}
}
