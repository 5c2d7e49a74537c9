package expr

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestScopes: each scope sees its own variables, and nothing else.
func TestScopes(t *testing.T) {
	t.Parallel()
	scopes := map[Scope]string{Creating: "creating", Verifying: "verifying", Existing: "existing"}
	for variable, seen := range map[string][]Scope{
		VarObject:         {Creating, Verifying},
		VarRequest:        {Creating, Verifying},
		VarGenerated:      {Verifying},
		VarExisting:       {Existing},
		"oldObject":       {},
		"authorizer":      {},
		"namespaceObject": {},
		"params":          {},
		"variables":       {},
	} {
		for scope, name := range scopes {
			want := false
			for _, s := range seen {
				want = want || s == scope
			}
			_, err := CompileIn(scope, "f", variable, Any)
			if (err == nil) != want {
				t.Errorf("%s in %s: %v", variable, name, err)
			}
			var ce *CompileError
			if err != nil && (!errors.As(err, &ce) || !strings.Contains(err.Error(), "undeclared reference to '"+variable+"'")) {
				t.Errorf("%s in %s: %v", variable, name, err)
			}
		}
	}
}

// TestGeneratedIsAString: what is compared with it is checked when it is compiled.
func TestGeneratedIsAString(t *testing.T) {
	t.Parallel()
	if _, err := CompileIn(Verifying, "spec.verify", "generated + 1", String); err == nil {
		t.Error("a number was added to a name")
	}
	p, err := CompileIn(Verifying, "spec.verify", `generated + "-x"`, String)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := p.String(context.Background(), map[string]any{VarGenerated: "a"}); err != nil || got != "a-x" {
		t.Errorf("%q %v", got, err)
	}
}

func TestConditionsSeeWhatTheAPIServerOffers(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]bool{
		"object != null && oldObject == null": true, "request.name == ''": true, "authorizer.requestResource.check('get').allowed()": true,
		"existing == null": false, "generated == ''": false, "namespaceObject == null": false, "'a string'": false,
	} {
		if err := CheckCondition("f", source); (err == nil) != want {
			t.Errorf("%s: %v", source, err)
		}
	}
}

func TestAny(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]any{
		"null": nil, "true": true, "1": 1.0, "-0.0": 0.0, "1.5": 1.5, "18446744073709551615u": "18446744073709551615", `"a"`: "a",
		`[1, 2]`: []any{1.0, 2.0}, `{"a": {"b": [true]}}`: map[string]any{"a": map[string]any{"b": []any{true}}}, "[]": []any{}, "{}": map[string]any{},
		"object.metadata": map[string]any{"name": "run-1", "labels": map[string]any{"id": "7"}, "n": 3.0},
		"object.?nope":    nil, "object.?nope.orValue(4)": 4.0, "object.metadata.?name": "run-1", "optional.none()": nil, "optional.of(null)": nil,
		"1.0 / 0.0": "Infinity", "0.0 / 0.0": "NaN",
	} {
		p, err := CompileIn(Creating, "f", source, Any)
		if err != nil {
			t.Fatalf("%s: %v", source, err)
		}
		got, err := p.Any(context.Background(), vars)
		if err != nil {
			t.Errorf("%s: %v", source, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", source, diff)
		}
	}
}

func TestBool(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		source string
		want   bool
		err    string
	}{
		"true":                    {"existing.done", true, ""},
		"false":                   {"!existing.done", false, ""},
		"a string in its place":   {"existing.text", false, "f: gave string, not true or false"},
		"a key that is missing":   {"existing.nope", false, "f: no such key: nope"},
		"null in its place":       {"existing.nil", false, "f: gave null_type, not true or false"},
		"an unknown in its stead": {"existing.map", false, "f: gave map, not true or false"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := CompileIn(Existing, "f", c.source, Bool)
			if err != nil {
				t.Fatal(err)
			}
			got, err := p.Bool(context.Background(), map[string]any{VarExisting: map[string]any{"done": true, "text": "true", "nil": nil, "map": map[string]any{}}})
			if got != c.want || (err != nil) != (c.err != "") || err != nil && err.Error() != c.err {
				t.Errorf("%t %v", got, err)
			}
		})
	}
}

// TestAnEvaluationEndsWithItsContext: whatever it was about to find, the error says that
// the time is up, so that somebody tries again.
func TestAnEvaluationEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	const ten = `[0,1,2,3,4,5,6,7,8,9]`
	for name, source := range map[string]string{
		"one that takes long": ten + `.map(a, ` + ten + `.map(b, ` + ten + `.map(c, c)))`,
		"one that fails":      "object.nope",
	} {
		p, err := CompileIn(Creating, "f", source, Any)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Any(ctx, vars); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzAny takes expressions of any kind: what they give is JSON, and the same each time.
func FuzzAny(f *testing.F) {
	for _, s := range []string{"object", "[object.?a]", "{1: 2}", "type(object)", "optional.of(optional.none())", "object.metadata.labels.map(k, k)", "b'x'", "duration('1h')", `"\ud800"`, "object.metadata.n * 1e300", "request", "[[[[1]]]]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) > 4096 {
			return
		}
		p, err := CompileIn(Creating, "f", s, Any)
		if err != nil {
			var ce *CompileError
			if !errors.As(err, &ce) {
				t.Errorf("%q: %v", s, err)
			}
			return
		}
		one, err := p.Any(context.Background(), vars)
		if err != nil {
			return
		}
		two, err := p.Any(context.Background(), vars)
		if diff := cmp.Diff(one, two); err != nil || diff != "" {
			t.Errorf("%q: %v %s", s, err, diff)
		}
	})
}
