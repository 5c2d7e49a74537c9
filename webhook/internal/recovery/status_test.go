package recovery

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	k8sjson "k8s.io/apimachinery/pkg/util/json"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// layout is OpenSandbox's.
func layout(changes ...func(*Layout)) Layout {
	l := Layout{
		Phase: ".status.phase", Record: ".status.failedPodUIDs", Conditions: ".status.conditions",
		TerminalType: "ResumeFailed", TerminalStatus: "True",
	}
	for _, change := range changes {
		change(&l)
	}
	return l
}

// decoders are the ways in which an object may have been read: one has int64 where the
// other has float64.
func decoders() map[string]func([]byte, any) error {
	return map[string]func([]byte, any) error{"encoding/json": json.Unmarshal, "apimachinery": k8sjson.Unmarshal}
}

func TestRead(t *testing.T) {
	t.Parallel()
	deep := func(l *Layout) {
		l.Phase, l.Record, l.Conditions = ".status.state.phase", ".status.recovery.failed-pods", ".status.state.list"
	}
	unconditional := func(l *Layout) { l.Conditions, l.TerminalType, l.TerminalStatus = "", "", "" }
	listsOnly := func(l *Layout) { l.TerminalType, l.TerminalStatus = "", "" }
	falsely := func(l *Layout) { l.TerminalStatus = "False" }
	problem := func(s string) Status { return Status{Problem: s} }
	for name, c := range map[string]struct {
		object string
		layout []func(*Layout)
		want   Status
	}{
		"no status":                                 {object: `{}`, want: Status{Absent: true}},
		"a status that is null":                     {object: `{"status":null}`, want: Status{Absent: true}},
		"an empty status":                           {object: `{"status":{}}`, want: Status{}},
		"a phase":                                   {object: `{"status":{"phase":"Failed"}}`, want: status("Failed")},
		"a phase that is null":                      {object: `{"status":{"phase":null}}`, want: status("")},
		"a phase and a record":                      {object: `{"status":{"phase":"Failed","failedPodUIDs":["u1","u2"]}}`, want: status("Failed", u1, u2)},
		"a record that is null":                     {object: `{"status":{"failedPodUIDs":null}}`, want: status("").null()},
		"a record that is empty":                    {object: `{"status":{"failedPodUIDs":[]}}`, want: status("").empty()},
		"a record of an empty UID":                  {object: `{"status":{"failedPodUIDs":[""]}}`, want: status("", "")},
		"UIDs that are there twice":                 {object: `{"status":{"failedPodUIDs":["u1","u1"]}}`, want: status("", u1, u1)},
		"no conditions":                             {object: `{"status":{"conditions":[]}}`, want: status("")},
		"conditions that are null":                  {object: `{"status":{"conditions":null}}`, want: status("")},
		"a terminal failure":                        {object: `{"status":{"phase":"Failed","conditions":[{"type":"ResumeFailed","status":"True"}]}}`, want: status("Failed").terminal()},
		"a terminal failure among others":           {object: `{"status":{"conditions":[{"type":"Ready","status":"False"},{"type":"ResumeFailed","status":"True"},{"type":"PodFailed","status":"True"}]}}`, want: status("").terminal()},
		"a condition of another type":               {object: `{"status":{"conditions":[{"type":"PodFailed","status":"True"}]}}`, want: status("")},
		"a condition that is false":                 {object: `{"status":{"conditions":[{"type":"ResumeFailed","status":"False"}]}}`, want: status("")},
		"a condition that is unknown":               {object: `{"status":{"conditions":[{"type":"ResumeFailed","status":"Unknown"}]}}`, want: status("")},
		"a condition without a status":              {object: `{"status":{"conditions":[{"type":"ResumeFailed"}]}}`, want: status("")},
		"a condition whose status is true or false": {object: `{"status":{"conditions":[{"type":"ResumeFailed","status":true}]}}`, want: status("")},
		"a condition of no type":                    {object: `{"status":{"conditions":[{}]}}`, want: status("")},
		"a condition whose type is a list":          {object: `{"status":{"conditions":[{"type":["ResumeFailed"],"status":{"True":1}}]}}`, want: status("")},
		"a condition twice, once true":              {object: `{"status":{"conditions":[{"type":"ResumeFailed","status":"True"},{"type":"ResumeFailed","status":"False"}]}}`, want: status("").terminal()},
		"a condition that is to be false":           {object: `{"status":{"conditions":[{"type":"ResumeFailed","status":"False"}]}}`, layout: []func(*Layout){falsely}, want: status("").terminal()},
		"no condition is terminal":                  {object: `{"status":{"conditions":[{"type":"","status":""},{}]}}`, layout: []func(*Layout){listsOnly}, want: status("")},
		"the policy names no conditions":            {object: `{"status":{"conditions":{"a":1}}}`, layout: []func(*Layout){unconditional}, want: status("")},
		"further down": {
			object: `{"status":{"phase":7,"state":{"phase":"Failed","list":[{"type":"ResumeFailed","status":"True"}]},"recovery":{"failed-pods":["u1"]}}}`,
			layout: []func(*Layout){deep}, want: status("Failed", u1).terminal(),
		},
		"further down, and nothing is there":      {object: `{"status":{}}`, layout: []func(*Layout){deep}, want: status("")},
		"further down, and it is null there":      {object: `{"status":{"state":null,"recovery":null}}`, layout: []func(*Layout){deep}, want: status("")},
		"further down, and it is empty there":     {object: `{"status":{"state":{},"recovery":{}}}`, layout: []func(*Layout){deep}, want: status("")},
		"a record whose parent is null is absent": {object: `{"status":{"state":{"phase":"Failed"},"recovery":null}}`, layout: []func(*Layout){deep}, want: status("Failed")},

		// Shapes that are wrong.
		"the status is a string":          {object: `{"status":"x"}`, want: problem(".status is a string, and should be an object")},
		"the status is a list":            {object: `{"status":[]}`, want: problem(".status is a list, and should be an object")},
		"the status is a number":          {object: `{"status":3}`, want: problem(".status is a number, and should be an object")},
		"the status is true":              {object: `{"status":true}`, want: problem(".status is true or false, and should be an object")},
		"the phase is a number":           {object: `{"status":{"phase":3}}`, want: problem(".status.phase is a number, and should be a string")},
		"the phase is a fraction":         {object: `{"status":{"phase":3.5}}`, want: problem(".status.phase is a number, and should be a string")},
		"the phase is a list":             {object: `{"status":{"phase":["Failed"]}}`, want: problem(".status.phase is a list, and should be a string")},
		"the phase is an object":          {object: `{"status":{"phase":{"a":"Failed"}}}`, want: problem(".status.phase is an object, and should be a string")},
		"the phase is false":              {object: `{"status":{"phase":false}}`, want: problem(".status.phase is true or false, and should be a string")},
		"the record is a string":          {object: `{"status":{"phase":"Failed","failedPodUIDs":"u1"}}`, want: Status{Phase: "Failed", Problem: ".status.failedPodUIDs is a string, and should be a list of strings"}},
		"the record is a number":          {object: `{"status":{"failedPodUIDs":1}}`, want: problem(".status.failedPodUIDs is a number, and should be a list of strings")},
		"the record is an object":         {object: `{"status":{"failedPodUIDs":{"u1":true}}}`, want: problem(".status.failedPodUIDs is an object, and should be a list of strings")},
		"the record is a list of numbers": {object: `{"status":{"failedPodUIDs":["u1",2]}}`, want: problem(".status.failedPodUIDs is a list, and should be a list of strings")},
		"the record is a list with null":  {object: `{"status":{"failedPodUIDs":["u1",null]}}`, want: problem(".status.failedPodUIDs is a list, and should be a list of strings")},
		"the conditions are an object":    {object: `{"status":{"phase":"Failed","failedPodUIDs":["u1"],"conditions":{"ResumeFailed":"True"}}}`, want: Status{Phase: "Failed", Problem: ".status.conditions is an object, and should be a list of conditions"}},
		"the conditions are a string":     {object: `{"status":{"conditions":"True"}}`, want: problem(".status.conditions is a string, and should be a list of conditions")},
		"a condition is a string":         {object: `{"status":{"conditions":["ResumeFailed"]}}`, want: problem(".status.conditions is a list, and should be a list of conditions")},
		"a condition is null":             {object: `{"status":{"conditions":[{"type":"ResumeFailed","status":"True"},null]}}`, want: problem(".status.conditions is a list, and should be a list of conditions")},
		"a condition is a list":           {object: `{"status":{"conditions":[[]]}}`, want: problem(".status.conditions is a list, and should be a list of conditions")},
		"a parent is a string":            {object: `{"status":{"state":"x"}}`, layout: []func(*Layout){deep}, want: problem(".status.state is a string, and should be an object")},
		"a parent is a list":              {object: `{"status":{"recovery":[{"failed-pods":["u1"]}]}}`, layout: []func(*Layout){deep}, want: problem(".status.recovery is a list, and should be an object")},
		"a parent of the phase alone is a string": {
			object: `{"status":{"state":"x","recovery":{"failed-pods":["u1"]}}}`, layout: []func(*Layout){deep, unconditional},
			want: problem(".status.state is a string, and should be an object"),
		},
		"a parent of the conditions is a number": {
			object: `{"status":{"phase":"Failed","list":1}}`, layout: []func(*Layout){func(l *Layout) { l.Conditions = ".status.list.conditions" }},
			want: Status{Phase: "Failed", Problem: ".status.list is a number, and should be an object"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for by, decode := range decoders() {
				object := map[string]any{}
				if err := decode([]byte(c.object), &object); err != nil {
					t.Fatal(err)
				}
				before := fmt.Sprintf("%#v", object)
				got := layout(c.layout...).Read(object)
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("%s: (-want +got)\n%s", by, diff)
				}
				if got.Problem != "" {
					checkWording(t, got.Problem)
				}
				if after := fmt.Sprintf("%#v", object); before != after {
					t.Errorf("%s: the object is changed: %s", by, after)
				}
			}
		})
	}
}

// TestReadOfWhatNoDecoderMakes: objects may have been built by hand.
func TestReadOfWhatNoDecoderMakes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		object map[string]any
		want   string
	}{
		"no object":                      {nil, ""},
		"a phase of another type":        {map[string]any{"status": map[string]any{"phase": v1alpha1.Phase("Failed")}}, ".status.phase is something else, and should be a string"},
		"an int":                         {map[string]any{"status": map[string]any{"phase": 1}}, ".status.phase is a number, and should be a string"},
		"a list of strings":              {map[string]any{"status": map[string]any{"failedPodUIDs": []string{u1}}}, ".status.failedPodUIDs is something else, and should be a list of strings"},
		"a map of strings":               {map[string]any{"status": map[string]string{"phase": "Failed"}}, ".status is something else, and should be an object"},
		"a map without anything":         {map[string]any{"status": map[string]any(nil)}, ""},
		"a list without anything":        {map[string]any{"status": map[string]any{"failedPodUIDs": []any(nil), "conditions": []any(nil)}}, ""},
		"a condition that has no fields": {map[string]any{"status": map[string]any{"conditions": []any{map[string]any(nil)}}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := layout().Read(c.object); got.Problem != c.want {
				t.Errorf("%+v", got)
			}
			if got := (Layout{}).Read(c.object); got.Phase != "" || got.Record.UIDs != nil || got.Terminal {
				t.Errorf("of a layout of nothing: %+v", got)
			}
		})
	}
}

func TestSegments(t *testing.T) {
	t.Parallel()
	for path, want := range map[v1alpha1.StatusPath][]string{
		".status.phase":    {"status", "phase"},
		".status.a.b-c._d": {"status", "a", "b-c", "_d"},
		"status.phase":     {"status", "phase"},
		".status":          {"status"},
	} {
		if diff := cmp.Diff(want, Segments(path)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", path, diff)
		}
	}
}

// FuzzRead has statuses of any shape met by every decision: nothing panics, and each write
// has a decision that keeps to its phase.
func FuzzRead(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"status":null}`, `{"status":{"phase":"Failed","failedPodUIDs":["u1"]}}`, `{"status":{"phase":"Succeed"}}`,
		`{"status":{"phase":"Failed"}}`, `{"status":{"phase":"Pausing","failedPodUIDs":["00000000-0000-0000-0000-000000000000"]}}`,
		`{"status":{"phase":"Failed","failedPodUIDs":["u1","u1","","00000000-0000-0000-0000-000000000000"],"conditions":[{"type":"ResumeFailed","status":"True"}]}}`,
		`{"status":{"phase":"Resuming","failedPodUIDs":null}}`, `{"status":{"phase":7,"failedPodUIDs":{},"conditions":[null]}}`,
		`{"status":{"phase":"a\nb","failedPodUIDs":["\u0000","\u2028"]}}`, `{"status":[]}`, `{"status":{"conditions":{}}}`, `{"status":{"phase":"","failedPodUIDs":[]}}`,
	} {
		for _, u := range []string{`{"status":{"phase":"Succeed"}}`, `{"status":{"phase":"Failed","failedPodUIDs":["u2"]}}`, `{"status":{"phase":"Paused"}}`, `{}`, s} {
			f.Add([]byte(s), []byte(u), uint8(len(u)))
			f.Add([]byte(u), []byte(s), uint8(len(s)*7))
		}
	}
	lists := [][]Pod{nil, {one(), two()}, {one(looping)}, {one(deletingPod), podNamed("box-0", u3)}, {two(inPhase("Failed", "Evicted"), withoutStatuses)}}
	f.Fuzz(func(t *testing.T, before, after []byte, choice uint8) {
		var from, to map[string]any
		if json.Unmarshal(before, &from) != nil || k8sjson.Unmarshal(after, &to) != nil {
			t.Skip()
		}
		l := layout()
		in := write(l.Read(from), l.Read(to))
		for _, s := range []Status{in.Old, in.New} {
			if s.Problem != "" {
				checkWording(t, s.Problem)
				if s.Record.Present || s.Record.UIDs != nil || s.Terminal || s.Absent {
					t.Errorf("a problem and more: %+v", s)
				}
			}
		}
		in.Object.ResumeInFlight, in.Object.Allowed, in.Policy.Required = choice&1 > 0, choice&2 > 0, choice&4 > 0
		in.Policy.MaxItems = int64(choice&8) / 4
		pods := lists[int(choice>>4)%len(lists)]
		first, in, _ := asked(t, in, pods)
		checkDecision(t, in, first)
		if !first.Allowed {
			return
		}
		in.New = edited(in.Policy, in.New, first.Record)
		twice, in, _ := asked(t, in, pods)
		if !twice.Allowed || !twice.Record.None() {
			t.Errorf("decided again: %+v\n%+v", in, twice)
		}
		in.Final, in.Pods = true, PodsFact{}
		then, in, _ := asked(t, in, pods)
		checkDecision(t, in, then)
		if then.Reason == ReasonRecordChanged {
			t.Errorf("the record is not as it was left: %+v\n%+v", in, then)
		}
		in.New, in.Preview, in.Pods = l.Read(to), true, PodsFact{}
		preview, in, _ := asked(t, in, pods)
		checkDecision(t, in, preview)
		if w := preview.AsWarning(); !w.Allowed || !w.Record.None() {
			t.Errorf("warn mode denies or edits: %+v", w)
		}
	})
}
