package expr

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCompileErrorsSayWhere(t *testing.T) {
	for name, c := range map[string]struct {
		source string
		result Result
		want   string
	}{
		"a syntax error has its column":          {"object.metadata.", String, "spec.owner.name: line 1, column 17: "},
		"the second line is counted":             {"object.metadata.name +\n nope", String, "spec.owner.name: line 2, column 2: undeclared reference to 'nope'"},
		"a number is not a string":               {"1 + 2", String, "spec.owner.name: line 1, column 1: gives int, but must give a string"},
		"a map of ints is not a map of strings":  {"{'a': 1}", StringMap, "spec.owner.name: line 1, column 1: gives map(string, int), but must give a map of strings"},
		"an empty expression is told apart":      {"  ", String, "spec.owner.name: the expression is empty"},
		"namespaceObject is no variable of ours": {"namespaceObject.metadata.name", String, "spec.owner.name: line 1, column 1: undeclared reference"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Compile("spec.owner.name", c.source, c.result)
			var ce *CompileError
			if !errors.As(err, &ce) {
				t.Fatalf("got %v, want a CompileError", err)
			}
			if !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("got %q, want prefix %q", err, c.want)
			}
		})
	}
}

var vars = map[string]any{
	VarObject: map[string]any{"metadata": map[string]any{"name": "run-1", "labels": map[string]any{"id": "7"}, "n": int64(3)}},
}

func TestEval(t *testing.T) {
	ctx := context.Background()
	p, err := Compile("f", `object.metadata.name + "-" + object.metadata.labels.id`, String)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := p.String(ctx, vars); err != nil || got != "run-1-7" {
		t.Errorf("got %q, %v", got, err)
	}
	m, err := Compile("f", `{"example.com/id": object.metadata.labels["id"]}`, StringMap)
	if err != nil {
		t.Fatal(err)
	}
	got, err := m.StringMap(ctx, vars)
	if diff := cmp.Diff(map[string]string{"example.com/id": "7"}, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
}

func TestEvalFailuresAreErrors(t *testing.T) {
	for name, c := range map[string]struct{ source, want string }{
		"a missing key":                   {`object.metadata.labels["nope"]`, "f: no such key"},
		"a number where a string must be": {`object.metadata.n`, "f: gave int, not a string"},
		"too long a result":               {`[0,1,2,3,4,5,6,7,8,9].map(x, "0123456789012345678901234567890123456789012345678901234567890123456789").join() + [0,1,2,3,4,5,6,7,8,9].map(x, [0,1,2,3,4,5,6,7,8,9].map(x, "0123456789012345678901234567890123456789012345678901234567890123456789").join()).join()`, "f: gave 7700 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := Compile("f", c.source, String)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := p.String(context.Background(), vars); err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("got %q, %v; want error %q", got, err, c.want)
			}
		})
	}
}

func TestCostIsBounded(t *testing.T) {
	ten := `[0,1,2,3,4,5,6,7,8,9]`
	source := ten + `.all(a, ` + ten + `.all(b, ` + ten + `.all(c, ` + ten + `.all(d, ` + ten + `.all(e, ` + ten + `.all(f, true)))))) ? "x" : "y"`
	p, err := Compile("spec.owner.name", source, String)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.String(context.Background(), vars); !errors.Is(err, ErrCost) {
		t.Errorf("got %v, want ErrCost", err)
	}
}

func FuzzCompile(f *testing.F) {
	for _, s := range []string{"object.metadata.name", "{", `"a" + 'b'`, "object.metadata.labels['x'].lowerAscii()", "\xff", "[1].map(x, x)"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) > 4096 {
			return
		}
		p, err := Compile("f", s, String)
		if err != nil {
			return
		}
		if out, err := p.String(context.Background(), vars); err == nil && len(out) > maxResult {
			t.Errorf("unbounded result of %d bytes", len(out))
		}
	})
}
