package recovery

import (
	"fmt"
	"strings"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// Layout is where an object keeps what decisions read.
type Layout struct {
	Phase, Record, Conditions v1alpha1.StatusPath
	// TerminalType and TerminalStatus are the condition of a terminal failure; empty for
	// none.
	TerminalType, TerminalStatus string
}

// Segments are the names of the fields on a path, from the object's top.
func Segments(p v1alpha1.StatusPath) []string {
	return strings.Split(strings.TrimPrefix(string(p), "."), ".")
}

// Status is what decisions read of a status.
type Status struct {
	// Absent: there is no status at all, or it is null.
	Absent bool
	// Problem says what has not the shape that the policy says. All else is empty then, but
	// for a phase that can be read.
	Problem string
	Phase   string
	Record  Record
	// Terminal: the condition of a terminal failure is there.
	Terminal bool
}

// Record is the list of the UIDs of the Pods that failed.
type Record struct {
	// Present: the field is there, be it null.
	Present bool
	Null    bool
	UIDs    []string
}

// Read reads an object's status. It never panics, whatever is there.
func (l Layout) Read(object map[string]any) Status {
	status, ok := object["status"]
	if !ok || status == nil {
		return Status{Absent: true}
	}
	s, err := l.read(object)
	if err != nil {
		return Status{Phase: s.Phase, Problem: err.Error()}
	}
	return s
}

func (l Layout) read(object map[string]any) (Status, error) {
	var s Status
	phase, _, err := at(object, l.Phase)
	if err != nil {
		return s, err
	}
	switch v := phase.(type) {
	case nil:
	case string:
		s.Phase = v
	default:
		return s, shape(l.Phase, "a string", v)
	}
	if s.Record, err = l.record(object); err != nil {
		return s, err
	}
	s.Terminal, err = l.terminal(object)
	return s, err
}

func (l Layout) record(object map[string]any) (Record, error) {
	record, present, err := at(object, l.Record)
	if err != nil {
		return Record{}, err
	}
	r := Record{Present: present, Null: present && record == nil}
	if record == nil {
		return r, nil
	}
	list, ok := record.([]any)
	if !ok {
		return r, shape(l.Record, "a list of strings", record)
	}
	for _, e := range list {
		uid, ok := e.(string)
		if !ok {
			return r, shape(l.Record, "a list of strings", record)
		}
		r.UIDs = append(r.UIDs, uid)
	}
	return r, nil
}

func (l Layout) terminal(object map[string]any) (bool, error) {
	if l.Conditions == "" {
		return false, nil
	}
	conditions, _, err := at(object, l.Conditions)
	if err != nil || conditions == nil {
		return false, err
	}
	list, ok := conditions.([]any)
	if !ok {
		return false, shape(l.Conditions, "a list of conditions", conditions)
	}
	found := false
	for _, e := range list {
		c, ok := e.(map[string]any)
		if !ok {
			return false, shape(l.Conditions, "a list of conditions", conditions)
		}
		if l.TerminalType != "" && c["type"] == l.TerminalType && c["status"] == l.TerminalStatus {
			found = true
		}
	}
	return found, nil
}

// at is the value at a path. Where something on the way is absent, so is the value; where
// it is no object, that is an error.
func at(object map[string]any, path v1alpha1.StatusPath) (value any, present bool, err error) {
	var here any = object
	segments := Segments(path)
	for i, name := range segments {
		if here == nil {
			return nil, false, nil
		}
		m, ok := here.(map[string]any)
		if !ok {
			return nil, false, shape(v1alpha1.StatusPath("."+strings.Join(segments[:i], ".")), "an object", here)
		}
		if here, present = m[name]; !present {
			return nil, false, nil
		}
	}
	return here, true, nil
}

func shape(path v1alpha1.StatusPath, want string, got any) error {
	word := "something else"
	switch got.(type) {
	case string:
		word = "a string"
	case bool:
		word = "true or false"
	case int64, float64, int:
		word = "a number"
	case []any:
		word = "a list"
	case map[string]any:
		word = "an object"
	}
	return fmt.Errorf("%s is %s, and should be %s", path, word, want)
}
