package admission

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/recovery"
)

// exact decodes JSON without losing a digit.
func exact(t *testing.T, raw []byte) map[string]any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var out map[string]any
	if err := d.Decode(&out); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	return out
}

// withValue is an object after an edit of the record, made without a patch. value is what is
// put there; without put it is taken away.
func withValue(object map[string]any, segments []string, put bool, value any) map[string]any {
	out := maps.Clone(object)
	if len(segments) == 1 {
		if put {
			out[segments[0]] = value
		} else {
			delete(out, segments[0])
		}
		return out
	}
	below, ok := object[segments[0]].(map[string]any)
	if !ok {
		if !put {
			return object
		}
		below = map[string]any{}
	}
	out[segments[0]] = withValue(below, segments[1:], put, value)
	return out
}

// TestRecordPatch goes through what may be there, how the schema wants it cleared, and
// what is to become of it, on paths of several lengths: each patch applies to the very bytes
// that came, and nothing but the record is another than before.
func TestRecordPatch(t *testing.T) {
	t.Parallel()
	// What belay must not touch: numbers that a float64 cannot hold, names that differ in
	// case, escapes, nulls, neighbours with the same names elsewhere.
	const around = `{ "apiVersion":"example.com/v1","kind":"Box","metadata":{"name":"a","uid":"u","generation":9007199254740993,"annotations":{"a/b~c":"\u00e9\u2028\n"},"managedFields":[{"manager":"x"}]},
		"spec":{"status":{"failedPodUIDs":["mine"]},"null":null,"n":1e3,"f":1.10,"big":123456789012345678901234567890,"":[{}]},"Status":{"failedPodUIDs":["case"]}%s }`
	paths := map[v1alpha1.StatusPath]string{".status.failedPodUIDs": "%s", ".status.recovery.failedPodUIDs": `"recovery":{"other":[1,{}]%s}`, ".status.a.b.c": `"a":{"n":0.10,"b":{"z":null%s}}`}
	records := map[string]string{"absent": "", "null": "null", "empty": "[]", "set": `["u1","u2"]`}
	type expected struct {
		put   bool
		value any
	}
	edits := map[string]struct {
		edit recovery.Edit
		want map[v1alpha1.RecordClearing]expected
	}{
		"cleared": {recovery.Edit{Clear: true}, map[v1alpha1.RecordClearing]expected{
			v1alpha1.ClearNull: {true, nil}, v1alpha1.ClearRemove: {false, nil}, v1alpha1.ClearEmpty: {true, []any{}},
		}},
		"set": {recovery.Edit{UIDs: []string{"u1", "v\"~/é"}}, map[v1alpha1.RecordClearing]expected{
			v1alpha1.ClearNull: {true, []any{"u1", "v\"~/é"}}, v1alpha1.ClearRemove: {true, []any{"u1", "v\"~/é"}}, v1alpha1.ClearEmpty: {true, []any{"u1", "v\"~/é"}},
		}},
	}
	for path, status := range paths {
		segments := recovery.Segments(path)
		last := segments[len(segments)-1]
		shapes := map[string]string{"no status": "", "a status that is null": `,"status":null`, "an empty status": `,"status":{}`, "a status with other fields": `,"status":{"phase":"Failed","conditions":[{"type":"Ready"}]}`}
		for name, record := range records {
			field := ""
			if record != "" {
				field = `"` + last + `":` + record
			}
			inner := strings.Contains(status, ",%s") || strings.HasPrefix(status, `"`)
			if field != "" && inner {
				field = "," + field
			}
			whole := fmt.Sprintf(status, field)
			if whole != "" {
				whole = "," + whole
			}
			shapes["a record that is "+name] = `,"status":{"phase":"Failed"` + whole + `}`
		}
		if len(segments) > 2 {
			shapes["a parent that is null"] = `,"status":{"phase":"Failed","` + segments[1] + `":null}`
			shapes["a parent that is empty"] = `,"status":{"phase":"Failed","` + segments[1] + `":{}}`
		}
		for shape, text := range shapes {
			raw := []byte(fmt.Sprintf(around, text))
			for name, e := range edits {
				for cleared, want := range e.want {
					t.Run(fmt.Sprintf("%s, %s, %s, %s", path, shape, name, cleared), func(t *testing.T) {
						t.Parallel()
						var object map[string]any
						if err := utiljson.Unmarshal(raw, &object); err != nil {
							t.Fatal(err)
						}
						p := &facts.RecoveryPolicy{Layout: recovery.Layout{Phase: ".status.phase", Record: path}, Record: v1alpha1.RecordSchema{Cleared: cleared}}
						patch, err := recordPatch(raw, object, p, e.edit)
						if err != nil {
							t.Fatal(err)
						}
						got := raw
						if patch != nil {
							decoded, err := jsonpatch.DecodePatch(patch)
							if err != nil {
								t.Fatal(err)
							}
							if len(decoded) != 1 {
								t.Errorf("%d operations: %s", len(decoded), patch)
							}
							if got, err = decoded.Apply(raw); err != nil {
								t.Fatalf("%v: %s", err, patch)
							}
							if at, err := decoded[0].Path(); err != nil || !strings.HasPrefix(at, "/status") || at == "/status" && exact(t, raw)["status"] != nil {
								t.Errorf("S31: it touches %s: %s", at, patch)
							}
						}
						put := want.put
						if depth, _ := presence(object, segments); e.edit.Clear && depth < len(segments)-1 {
							put = false // nothing is put into a parent that is not there only to be empty
						}
						wanted := withValue(exact(t, raw), segments, put, want.value)
						if diff := cmp.Diff(wanted, exact(t, got)); diff != "" {
							t.Errorf("%s (-want +got)\n%s", patch, diff)
						}
						if changes := cmp.Diff(wanted, exact(t, raw)) != ""; !changes && patch != nil && !put {
							t.Errorf("S12: a patch for what is not there: %s", patch)
						}
					})
				}
			}
		}
	}
}

// TestTheGuardsPatchesAreOfTheSchema: what a field may hold decides how it is cleared; and
// what is not there is not patched, unless the schema wants it.
func TestTheGuardsPatchesAreOfTheSchema(t *testing.T) {
	t.Parallel()
	schemas := map[string]v1alpha1.RecordSchema{
		"Null": {Cleared: v1alpha1.ClearNull}, "Null, required": {Cleared: v1alpha1.ClearNull, Required: true},
		"Remove": {Cleared: v1alpha1.ClearRemove},
		"Empty":  {Cleared: v1alpha1.ClearEmpty}, "Empty, required": {Cleared: v1alpha1.ClearEmpty, Required: true},
	}
	const none = ""
	for name, c := range map[string]struct {
		old, object string
		want        map[string]string // by schema; missing: no patch
	}{
		"S01: a record that a merge patch left": {
			failedU1, runningU1, map[string]string{
				"Null": `[{"op":"replace","path":"/status/failedPodUIDs","value":null}]`, "Null, required": `[{"op":"replace","path":"/status/failedPodUIDs","value":null}]`,
				"Remove": `[{"op":"remove","path":"/status/failedPodUIDs"}]`,
				"Empty":  `[{"op":"replace","path":"/status/failedPodUIDs","value":[]}]`, "Empty, required": `[{"op":"replace","path":"/status/failedPodUIDs","value":[]}]`,
			},
		},
		"S12: a record that the client dropped": {
			failedU1, running, map[string]string{
				"Null, required":  `[{"op":"add","path":"/status/failedPodUIDs","value":null}]`,
				"Empty, required": `[{"op":"add","path":"/status/failedPodUIDs","value":[]}]`,
			},
		},
		"a record that the client put null":  {failedU1, `{"phase":"Running","failedPodUIDs":null}`, nil},
		"a record that the client emptied":   {failedU1, `{"phase":"Running","failedPodUIDs":[]}`, nil},
		"a failure that keeps its record":    {failedU1, failedU1, nil},
		"a record that is to be there again": {failedU1, failedBare, all5(schemas, `[{"op":"add","path":"/status/failedPodUIDs","value":["u1"]}]`)},
		"one where null stands":              {failedU1, `{"phase":"Failed","failedPodUIDs":null}`, all5(schemas, `[{"op":"replace","path":"/status/failedPodUIDs","value":["u1"]}]`)},
		"one where an empty list stands":     {failedU1, `{"phase":"Failed","failedPodUIDs":[]}`, all5(schemas, `[{"op":"replace","path":"/status/failedPodUIDs","value":["u1"]}]`)},
		"one where others stand":             {failedU1, `{"phase":"Failed","failedPodUIDs":["u2","u1","u2"]}`, all5(schemas, `[{"op":"replace","path":"/status/failedPodUIDs","value":["u1","u2"]}]`)},
		"S10: one that has a UID twice":      {running, `{"phase":"Failed","failedPodUIDs":["u2","u1","u2"]}`, all5(schemas, `[{"op":"replace","path":"/status/failedPodUIDs","value":["u2","u1"]}]`)},
		"S11: the first status of all":       {`{}`, none, nil},
	} {
		for kind, schema := range schemas {
			t.Run(name+", "+kind, func(t *testing.T) {
				t.Parallel()
				s := setGuard(t, guarded(func(in *v1alpha1.AcceptedRecoveryPolicy) { in.Record = schema }), havingPods(healthy("u1")))
				object := box(c.object)
				if c.object == none {
					object = strings.Replace(box("null"), `,"status":null`, "", 1)
				}
				resp := s.decided(phaseMutate, updating(box(c.old), object))
				if !resp.Allowed || string(resp.Patch) != c.want[kind] {
					t.Errorf("%s\ngot  %s\nwant %s", resp.AuditAnnotations, resp.Patch, c.want[kind])
				}
			})
		}
	}
}

// all5 is one patch whatever the schema.
func all5(schemas map[string]v1alpha1.RecordSchema, patch string) map[string]string {
	out := map[string]string{}
	for name := range schemas {
		out[name] = patch
	}
	return out
}

// TestARequiredRecordIsNotPutIntoAParentThatIsNotThere: the schema wants it only where its
// parent is, and a parent made for it would lack all else that it needs.
func TestARequiredRecordIsNotPutIntoAParentThatIsNotThere(t *testing.T) {
	t.Parallel()
	for _, cleared := range []v1alpha1.RecordClearing{v1alpha1.ClearNull, v1alpha1.ClearEmpty} {
		s := setGuard(t, guarded(func(in *v1alpha1.AcceptedRecoveryPolicy) {
			in.Spec.RecordPath, in.Record = ".status.recovery.uids", v1alpha1.RecordSchema{Cleared: cleared, Required: true}
		}), havingPods(healthy("u1")))
		for object, want := range map[string]bool{`{"phase":"Running"}`: false, `{"phase":"Running","recovery":null}`: false, `{"phase":"Running","recovery":{"since":"x"}}`: true} {
			resp := s.decided(phaseMutate, updating(box(`{"phase":"Failed","recovery":{"since":"x","uids":["u1"]}}`), box(object)))
			if !resp.Allowed || (resp.Patch != nil) != want {
				t.Errorf("%s, %s: %s", cleared, object, resp.Patch)
			}
		}
	}
}

func TestPresence(t *testing.T) {
	t.Parallel()
	segments := []string{"status", "a", "b"}
	for raw, want := range map[string]struct {
		depth int
		all   bool
	}{
		`{}`: {0, false}, `{"status":null}`: {0, false}, `{"status":[]}`: {0, false}, `{"status":{}}`: {1, false}, `{"status":{"a":null}}`: {1, false},
		`{"status":{"a":"b"}}`: {1, false}, `{"status":{"a":{}}}`: {2, false}, `{"status":{"a":{"b":null}}}`: {2, true}, `{"status":{"a":{"b":[]}}}`: {2, true},
	} {
		if depth, all := presence(exact(t, []byte(raw)), segments); depth != want.depth || all != want.all {
			t.Errorf("%s: %d %t", raw, depth, all)
		}
	}
	if depth, all := presence(map[string]any{"a": 1}, nil); depth != 0 || all {
		t.Errorf("no path: %d %t", depth, all)
	}
}

// FuzzRecordPatch has objects of any shape patched on paths of several lengths: what the
// guard can read is patched so that it applies, and changes the record alone.
func FuzzRecordPatch(f *testing.F) {
	for _, s := range []string{box(running), box(failedU1), box("null"), box(`{"a":null}`), box(`{"a":{"b":null}}`), box(`{"a":{"b":["x"]},"b":1}`), `{}`, `{"status":{"a":[]}}`, `{"status":{},"status":{"a":{"b":[]}}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var object map[string]any
		if !json.Valid(raw) || utiljson.Unmarshal(raw, &object) != nil || object == nil {
			return
		}
		for _, path := range []v1alpha1.StatusPath{".status.failedPodUIDs", ".status.a.b"} {
			layout := recovery.Layout{Phase: ".status.phase", Record: path}
			if s := layout.Read(object); s.Problem != "" || s.Absent {
				continue // such writes are never patched
			}
			for _, cleared := range []v1alpha1.RecordClearing{v1alpha1.ClearNull, v1alpha1.ClearRemove, v1alpha1.ClearEmpty} {
				for _, e := range []recovery.Edit{{Clear: true}, {UIDs: []string{"u1"}}} {
					p := &facts.RecoveryPolicy{Layout: layout, Record: v1alpha1.RecordSchema{Cleared: cleared}}
					patch, err := recordPatch(raw, object, p, e)
					if err != nil {
						t.Fatalf("%s: %v", patch, err)
					}
					if patch == nil {
						continue
					}
					decoded, err := jsonpatch.DecodePatch(patch)
					if err != nil {
						t.Fatal(err)
					}
					out, err := decoded.Apply(raw)
					if err != nil {
						t.Fatal(err)
					}
					var after map[string]any
					if err := utiljson.Unmarshal(out, &after); err != nil {
						t.Fatal(err)
					}
					got := layout.Read(after)
					if got.Problem != "" || !slices.Equal(got.Record.UIDs, e.UIDs) {
						t.Errorf("%s: %+v", patch, got)
					}
				}
			}
		}
	})
}
