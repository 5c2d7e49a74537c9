package expr

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// TestTheScopeStoredSeesTheStoredObjectAlone: who asks, and what for, must not decide which
// Pods an object has.
func TestTheScopeStoredSeesTheStoredObjectAlone(t *testing.T) {
	t.Parallel()
	if _, err := CompileIn(Stored, "f", VarObject, Any); err != nil {
		t.Errorf("object: %v", err)
	}
	for _, variable := range []string{VarRequest, VarGenerated, VarExisting, "oldObject", "authorizer", "namespaceObject", "params", "variables"} {
		_, err := CompileIn(Stored, "spec.resumeInFlight", variable, Any)
		var ce *CompileError
		if !errors.As(err, &ce) || !strings.Contains(err.Error(), "spec.resumeInFlight: line 1, column 1: undeclared reference to '"+variable+"'") {
			t.Errorf("%s: %v", variable, err)
		}
	}
}

// TestWhatAStoredObjectGives: the expressions that a guard has, on objects as they are.
func TestWhatAStoredObjectGives(t *testing.T) {
	t.Parallel()
	stored := map[string]any{VarObject: map[string]any{
		"metadata": map[string]any{"name": "a", "generation": int64(3)},
		"spec":     map[string]any{"pause": false},
		"status":   map[string]any{"pauseObservedGeneration": int64(2)},
	}}
	for source, want := range map[string]bool{
		`object.metadata.generation > object.?status.?pauseObservedGeneration.orValue(0)`:                                                                  true,
		`object.spec.?pause.orValue(true)`:                                                                                                                 false,
		`object.spec.?poolRef.orValue("") == "" || has(object.spec.template)`:                                                                              true,
		`object.metadata.generation > object.?status.?pauseObservedGeneration.orValue(0) && object.spec.?pause.orValue(true) == false`:                     true,
		`object.metadata.generation > object.?status.?pauseObservedGeneration.orValue(0) && object.spec.?pause.orValue(true) == false && has(object.nope)`: false,
	} {
		p, err := CompileIn(Stored, "f", source, Bool)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		if got, err := p.Bool(context.Background(), stored); err != nil || got != want {
			t.Errorf("%s: %t %v", source, got, err)
		}
	}
}
