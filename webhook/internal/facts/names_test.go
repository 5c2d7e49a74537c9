package facts

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/client/spawn/names"
	"github.com/belay-dev/belay/webhook/internal/expr"
	"github.com/belay-dev/belay/webhook/internal/naming"
)

// expressions are those of a policy that identifies by the annotation "work", changed.
func expressions(t *testing.T, change func(*v1alpha1.NamePolicySpec)) NameExpressions {
	t.Helper()
	e, err := CompileNames(builders.MakeNamePolicy("p").Spec(change).Obj().Spec)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// identity is a policy that identifies by these expressions.
func identity(of ...string) func(*v1alpha1.NamePolicySpec) {
	return func(s *v1alpha1.NamePolicySpec) { s.Identity = of }
}

func generate(prefix string, key ...string) func(*v1alpha1.NamePolicySpec) {
	return func(s *v1alpha1.NamePolicySpec) { s.Generate = &v1alpha1.NameGeneration{Prefix: prefix, Key: key} }
}

// created are the variables of a request for this object.
func created(t *testing.T, object string) map[string]any {
	t.Helper()
	return map[string]any{
		expr.VarObject:  decoded(t, object),
		expr.VarRequest: map[string]any{"namespace": "lab", "name": "", "operation": "CREATE", "dryRun": false},
	}
}

// decoded is an object as admission reads it.
func decoded(t *testing.T, object string) map[string]any {
	t.Helper()
	var out map[string]any
	if err := utiljson.Unmarshal([]byte(object), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestCompileNamesSaysWhere has a broken expression in each field that holds one.
func TestCompileNamesSaysWhere(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec func(*v1alpha1.NamePolicySpec)
		want string
	}{
		"the prefix":                            {generate("object.", `"k"`), "spec.generate.prefix: line 1, column 8: Syntax error"},
		"the second key":                        {generate(`"p"`, `"k"`, "nope"), "spec.generate.key[1]: line 1, column 1: undeclared reference to 'nope'"},
		"verify":                                {func(s *v1alpha1.NamePolicySpec) { s.Verify = "object.metadata.name +\n nope" }, "spec.verify: line 2, column 2: undeclared reference to 'nope'"},
		"the third of identity":                 {identity("object", "1", "nope"), "spec.identity[2]: line 1, column 1: undeclared reference"},
		"finished":                              {func(s *v1alpha1.NamePolicySpec) { s.Finished = "existing." }, "spec.finished: line 1, column 10: Syntax error"},
		"succeeded":                             {func(s *v1alpha1.NamePolicySpec) { s.Succeeded = "nope" }, "spec.succeeded: line 1, column 1: undeclared reference"},
		"hold":                                  {func(s *v1alpha1.NamePolicySpec) { s.Hold = "nope" }, "spec.hold: line 1, column 1: undeclared reference"},
		"a prefix that gives a number":          {generate("1 + 1", `"k"`), "spec.generate.prefix: line 1, column 1: gives int, but must give a string"},
		"verify that gives true":                {func(s *v1alpha1.NamePolicySpec) { s.Verify = "true" }, "spec.verify: line 1, column 1: gives bool, but must give a string"},
		"finished that gives a string":          {func(s *v1alpha1.NamePolicySpec) { s.Finished = `"Done"` }, "spec.finished: line 1, column 1: gives string, but must give true or false"},
		"finished that gives an optional":       {func(s *v1alpha1.NamePolicySpec) { s.Finished = "existing.?done" }, "spec.finished: line 1, column 1: gives optional_type(dyn), but must give true or false"},
		"generated, where nothing is generated": {func(s *v1alpha1.NamePolicySpec) { s.Verify = "generated" }, "spec.verify: line 1, column 1: undeclared reference to 'generated'"},
		"generated, in identity":                {func(s *v1alpha1.NamePolicySpec) { generate(`"p"`, `"k"`)(s); identity("generated")(s) }, "spec.identity[0]: line 1, column 1: undeclared reference to 'generated'"},
		"generated, in the key":                 {generate(`"p"`, "generated"), "spec.generate.key[0]: line 1, column 1: undeclared reference to 'generated'"},
		"the object that is there, in identity": {identity("existing"), "spec.identity[0]: line 1, column 1: undeclared reference to 'existing'"},
		"the object that is created, in hold":   {func(s *v1alpha1.NamePolicySpec) { s.Hold = "object.held" }, "spec.hold: line 1, column 1: undeclared reference to 'object'"},
		"the request, in finished":              {func(s *v1alpha1.NamePolicySpec) { s.Finished = "request.dryRun" }, "spec.finished: line 1, column 1: undeclared reference to 'request'"},
		"the namespace, which is never there":   {identity("namespaceObject.metadata.name"), "spec.identity[0]: line 1, column 1: undeclared reference"},
		"an empty identity":                     {identity(""), "spec.identity[0]: the expression is empty"},
		"an empty prefix":                       {generate("", `"k"`), "spec.generate.prefix: the expression is empty"},
		"an empty key":                          {generate(`"p"`, " "), "spec.generate.key[0]: the expression is empty"},
		"of two faults the first in the spec's order": {func(s *v1alpha1.NamePolicySpec) {
			generate("object.", `"k"`)(s)
			s.Hold = "nope"
		}, "spec.generate.prefix: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := CompileNames(builders.MakeNamePolicy("p").Spec(c.spec).Obj().Spec)
			var ce *expr.CompileError
			if !errors.As(err, &ce) || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestWhatIsNotSaidIsNotCompiled: a policy of the least that a spec may have.
func TestWhatIsNotSaidIsNotCompiled(t *testing.T) {
	t.Parallel()
	e := expressions(t, identity(`"w"`))
	vars := created(t, `{}`)
	if got := e.Expected(t.Context(), 63, vars); got != (naming.Computed{}) {
		t.Errorf("a name is expected: %+v", got)
	}
	if held, problem := e.Held(t.Context(), map[string]any{}); held || problem != "" {
		t.Errorf("held %t, %s", held, problem)
	}
	if p := e.Phase(t.Context(), "example.com", "Train", decoded(t, `{"status":{"phase":"Done"}}`)); p != (naming.Phase{}) {
		t.Errorf("N15: without spec.finished a custom resource runs for ever: %+v", p)
	}
}

func TestWork(t *testing.T) {
	t.Parallel()
	const object = `{"metadata":{"annotations":{"work":"7"},"labels":{"b":"2","a":"1"}},"spec":{"n":1,"x":[1,{"k":null}]}}`
	for name, c := range map[string]struct {
		identity []string
		want     []any // the values that the digest is over
	}{
		"a string":                          {[]string{`object.metadata.annotations["work"]`}, []any{"7"}},
		"several":                           {[]string{`object.metadata.annotations["work"]`, `object.spec.n`}, []any{"7", 1}},
		"a whole object":                    {[]string{`object.spec`}, []any{map[string]any{"n": 1, "x": []any{1, map[string]any{"k": nil}}}}},
		"a list that is made":               {[]string{`object.spec.x.filter(e, e == 1)`}, []any{[]any{1}}},
		"a map that is made":                {[]string{`{"b": dyn(object.spec.n), "a": dyn(true)}`}, []any{map[string]any{"a": true, "b": 1}}},
		"an optional value that is there":   {[]string{`object.metadata.?labels.a`}, []any{"1"}},
		"an optional value that is missing": {[]string{`object.metadata.?nope.a`}, []any{nil}},
		"missing is as null":                {[]string{`null`}, []any{nil}},
		"a value instead of a missing one":  {[]string{`object.metadata.annotations[?"nope"].orValue("")`}, []any{""}},
		"optional entries":                  {[]string{`[?object.?nope, ?object.spec.?n]`}, []any{[]any{1}}},
		"a number past every double":        {[]string{`9007199254740993`}, []any{"9007199254740993"}},
		"a time":                            {[]string{`timestamp("2026-01-01T00:00:00Z")`}, []any{"2026-01-01T00:00:00Z"}},
		"a duration":                        {[]string{`duration("90s")`}, []any{"90s"}},
		"bytes":                             {[]string{`b"abc"`}, []any{"YWJj"}},
		"who asks":                          {[]string{`request.namespace`, `request.dryRun`}, []any{"lab", false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := expressions(t, identity(c.identity...))
			want := naming.Computed{Value: names.Digest(c.want...)}
			for range 5 { // maps are walked in another order each time
				if diff := cmp.Diff(want, e.Work(t.Context(), created(t, object))); diff != "" {
					t.Fatalf("(-want +got)\n%s", diff)
				}
			}
		})
	}
}

func TestWorkDoesNotDependOnTheOrderOfKeys(t *testing.T) {
	t.Parallel()
	e := expressions(t, identity("object.spec", "object.metadata.labels"))
	one := e.Work(t.Context(), created(t, `{"spec":{"a":1,"b":{"c":2,"d":3}},"metadata":{"labels":{"x":"1","y":"2"}}}`))
	two := e.Work(t.Context(), created(t, `{"metadata":{"labels":{"y":"2","x":"1"}},"spec":{"b":{"d":3,"c":2},"a":1}}`))
	if one != two || one.Value == "" {
		t.Errorf("%+v %+v", one, two)
	}
}

// deep is a value of more nesting than anybody writes.
func deep(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

func TestExpressionsThatFail(t *testing.T) {
	t.Parallel()
	const ten = `[0,1,2,3,4,5,6,7,8,9]`
	costly := ten + `.map(a, ` + ten + `.map(b, ` + ten + `.map(c, ` + ten + `.map(d, ` + ten + `.map(e, ` + ten + `.map(f, f))))))`
	for name, c := range map[string]struct{ identity, want string }{
		"a missing key":           {`object.metadata.annotations["work"]`, "spec.identity[0]: no such key: work"},
		"a type is no JSON":       {`type(object)`, "spec.identity[0]: gave type, which is no value of JSON"},
		"a quantity is no JSON":   {`quantity("1Gi")`, "spec.identity[0]: gave kubernetes.Quantity, which is no value of JSON"},
		"a URL is no JSON":        {`url("https://example.com")`, "spec.identity[0]: gave kubernetes.URL, which is no value of JSON"},
		"a map of numbers is not": {`{1: "a"}`, "spec.identity[0]: gave map, which is no value of JSON"},
		"an optional in a list":   {`[object.?nope]`, "spec.identity[0]: gave list, which is no value of JSON"},
		"an optional of none":     {`optional.of(object.?nope)`, "spec.identity[0]: gave optional_type, which is no value of JSON"},
		"a division by zero":      {`1 / object.zero`, "spec.identity[0]: division by zero"},
		"another type":            {`object.zero + "a"`, "spec.identity[0]: no such overload"},
		"too costly":              {costly, "spec.identity[0]: the expression costs more than the limit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vars := created(t, `{"metadata":{"annotations":{}},"zero":0}`)
			got := expressions(t, identity(c.identity)).Work(t.Context(), vars)
			if got.Value != "" || got.Transient || !strings.HasPrefix(got.Problem, c.want) {
				t.Errorf("%+v, want %q", got, c.want)
			}
			// As a key of a generated name it fails as well.
			got = expressions(t, generate(`"p"`, c.identity)).Generated(t.Context(), 63, vars)
			if got.Value != "" || !strings.HasPrefix(got.Problem, strings.Replace(c.want, "spec.identity[0]", "spec.generate.key[0]", 1)) {
				t.Errorf("%+v, want %q", got, c.want)
			}
		})
	}
	t.Run("deep nesting is no trouble", func(t *testing.T) {
		t.Parallel()
		if got := expressions(t, identity("object.x")).Work(t.Context(), created(t, `{"x":`+deep(5000)+`}`)); got.Value == "" {
			t.Errorf("%.200s", got.Problem)
		}
	})
	t.Run("the time is up: worth another try", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
		defer cancel()
		if got := expressions(t, identity(costly)).Work(ctx, created(t, `{}`)); !got.Transient || got.Value != "" {
			t.Errorf("%+v", got)
		}
	})
}

func TestGenerated(t *testing.T) {
	t.Parallel()
	const object = `{"metadata":{"labels":{"server":"Überlebende Welt","backup":"monday"}}}`
	e := expressions(t, generate(`"restore-" + object.metadata.labels.server`, "object.metadata.labels.backup"))
	got := e.Generated(t.Context(), 30, created(t, object))
	want := naming.Computed{Value: names.Of("restore-Überlebende Welt", 30, "monday")}
	if diff := cmp.Diff(want, got); diff != "" || !strings.HasPrefix(got.Value, "restore-berlebende-") {
		t.Errorf("(-want +got)\n%s%s", diff, got.Value)
	}
	if got := e.Generated(t.Context(), 63, created(t, `{"metadata":{}}`)); got.Problem != "spec.generate.prefix: no such key: labels" {
		t.Errorf("%+v", got)
	}
}

func TestExpected(t *testing.T) {
	t.Parallel()
	verify := func(v string, more ...func(*v1alpha1.NamePolicySpec)) func(*v1alpha1.NamePolicySpec) {
		return func(s *v1alpha1.NamePolicySpec) {
			s.Verify = v
			for _, m := range more {
				m(s)
			}
		}
	}
	vars := created(t, `{"metadata":{"name":"a","labels":{"id":"7"}}}`)
	for name, c := range map[string]struct {
		spec func(*v1alpha1.NamePolicySpec)
		want naming.Computed
	}{
		"a name":                        {verify(`"restore-" + object.metadata.labels.id`), naming.Computed{Value: "restore-7"}},
		"any name":                      {verify(`object.metadata.labels.id == "8" ? "x" : ""`), naming.Computed{}},
		"the one that is generated":     {verify("generated", generate(`"p"`, `"k"`)), naming.Computed{Value: names.Of("p", 63, "k")}},
		"beside one that is generated":  {verify(`generated + "-x"`, generate(`"p"`, `"k"`)), naming.Computed{Value: names.Of("p", 63, "k") + "-x"}},
		"none is said to be right":      {generate(`"p"`, `"k"`), naming.Computed{}},
		"a name that cannot be told":    {verify("object.metadata.labels.nope"), naming.Computed{Problem: "spec.verify: no such key: nope"}},
		"a key that cannot be told":     {verify("generated", generate(`"p"`, `object.nope`)), naming.Computed{Problem: "spec.generate.key[0]: no such key: nope"}},
		"a number at the time it is so": {verify("dyn(7)"), naming.Computed{Problem: "spec.verify: gave int, not a string"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, expressions(t, c.spec).Expected(t.Context(), 63, vars)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestExpectedLeavesTheCallersVariablesAsTheyAre(t *testing.T) {
	t.Parallel()
	e := expressions(t, func(s *v1alpha1.NamePolicySpec) {
		generate(`"p"`, `"k"`)(s)
		s.Verify = "generated"
	})
	vars := created(t, `{}`)
	if got := e.Expected(t.Context(), 63, vars); got.Value == "" || len(vars) != 2 {
		t.Errorf("%+v %v", got, vars)
	}
}

func TestPhase(t *testing.T) {
	t.Parallel()
	finished := func(f, s string) func(*v1alpha1.NamePolicySpec) {
		return func(p *v1alpha1.NamePolicySpec) { p.Finished, p.Succeeded = f, s }
	}
	const done = "as the policy's spec.finished says"
	for name, c := range map[string]struct {
		spec        func(*v1alpha1.NamePolicySpec)
		group, kind string
		existing    string
		want        naming.Phase
	}{
		"finished":               {finished(`existing.status.phase == "Done"`, ""), "example.com", "Train", `{"status":{"phase":"Done"}}`, naming.Phase{Finished: true, Because: done}},
		"not finished":           {finished(`existing.status.phase == "Done"`, ""), "example.com", "Train", `{"status":{"phase":"Runs"}}`, naming.Phase{Because: done}},
		"finished and succeeded": {finished(`has(existing.status)`, `existing.status.ok`), "example.com", "Train", `{"status":{"ok":true}}`, naming.Phase{Finished: true, Succeeded: true, Because: done}},
		"finished and failed":    {finished(`has(existing.status)`, `existing.status.ok`), "example.com", "Train", `{"status":{"ok":false}}`, naming.Phase{Finished: true, Because: done}},
		"whether it succeeded cannot be told: it did not": {finished(`has(existing.status)`, `existing.status.ok`), "example.com", "Train", `{"status":{}}`, naming.Phase{Finished: true, Because: done}},
		"whether it succeeded matters at the end only":    {finished(`has(existing.status)`, `true`), "example.com", "Train", `{}`, naming.Phase{Because: done}},
		"it cannot be told: it runs":                      {finished(`existing.status.phase == "Done"`, ""), "example.com", "Train", `{}`, naming.Phase{Problem: "spec.finished: no such key: status"}},
		"a Job says so itself":                            {finished(`true`, "true"), "batch", "Job", `{"status":{}}`, naming.Phase{}},
		"a Pod says so itself":                            {finished(`false`, ""), "", "Pod", `{"status":{"phase":"Failed"}}`, naming.Phase{Finished: true, Because: "phase Failed"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := expressions(t, c.spec).Phase(t.Context(), c.group, c.kind, decoded(t, c.existing))
			if !got.Finished {
				got.Because, c.want.Because = "", "" // which nobody reads then
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestHeld(t *testing.T) {
	t.Parallel()
	e := expressions(t, func(s *v1alpha1.NamePolicySpec) { s.Hold = `existing.metadata.labels["then"] == "pending"` })
	for name, c := range map[string]struct {
		existing string
		held     bool
		problem  string
	}{
		"held":               {`{"metadata":{"labels":{"then":"pending"}}}`, true, ""},
		"not held":           {`{"metadata":{"labels":{"then":"done"}}}`, false, ""},
		"it cannot be told":  {`{"metadata":{"labels":{}}}`, false, "spec.hold: no such key: then"},
		"nor without labels": {`{"metadata":{}}`, false, "spec.hold: no such key: labels"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if held, problem := e.Held(t.Context(), decoded(t, c.existing)); held != c.held || problem != c.problem {
				t.Errorf("held %t, %q", held, problem)
			}
		})
	}
}

// FuzzNameExpressions has objects of any shape meet expressions of every kind: a value or
// a problem, the same each time, and never a panic.
func FuzzNameExpressions(f *testing.F) {
	for _, o := range []string{`{}`, `null`, `{"metadata":{"annotations":{"work":"7"},"name":"a"},"status":{"phase":"Done"}}`, `{"metadata":[]}`, `{"metadata":{"annotations":7}}`, `{"":{"":[[[]]]}}`, `{"spec":1e400}`, `{"spec":12345678901234567890}`} {
		f.Add([]byte(o))
	}
	spec := builders.MakeNamePolicy("p").Spec(func(s *v1alpha1.NamePolicySpec) {
		s.Generate = &v1alpha1.NameGeneration{Prefix: `"restore-" + object.metadata.annotations["work"]`, Key: []string{"object.spec", "object.?metadata.?labels"}}
		s.Verify = `object.?metadata.?name.orValue("") == generated ? generated : ""`
		s.Identity = []string{"object", `object.?metadata.?annotations[?"work"]`}
		s.Finished, s.Succeeded, s.Hold = `existing.status.phase in ["Done"]`, "existing.status.ok", `existing.metadata.labels["then"] == "pending"`
	}).Obj().Spec
	e, err := CompileNames(spec)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var object map[string]any
		if !json.Valid(raw) || utiljson.Unmarshal(raw, &object) != nil {
			return
		}
		vars := map[string]any{expr.VarObject: object, expr.VarRequest: map[string]any{"namespace": "lab"}}
		for name, c := range map[string]func() naming.Computed{
			"work":      func() naming.Computed { return e.Work(t.Context(), vars) },
			"generated": func() naming.Computed { return e.Generated(t.Context(), 63, vars) },
			"expected":  func() naming.Computed { return e.Expected(t.Context(), 63, vars) },
		} {
			got := c()
			if got != c() {
				t.Errorf("%s differs", name)
			}
			if (got.Value == "") != (got.Problem != "") && name != "expected" {
				t.Errorf("%s: %+v", name, got)
			}
		}
		if p := e.Phase(t.Context(), "example.com", "Train", object); p.Finished && p.Problem != "" || p.Succeeded && !p.Finished {
			t.Errorf("%+v", p)
		}
		if held, problem := e.Held(t.Context(), object); held && problem != "" {
			t.Errorf("held, and %s", problem)
		}
	})
}
