package registration

import (
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/expr"
)

// TestConcerned: the API server asks about whatever the guard may have to act on, whatever
// its shape, and about nothing else.
func TestConcerned(t *testing.T) {
	t.Parallel()
	type object = map[string]any
	deleting := func(o object) object {
		o["metadata"] = object{"name": "a", "deletionTimestamp": "2026-03-01T12:00:00Z"}
		return o
	}
	status := func(s any) object { return object{"metadata": object{"name": "a"}, "status": s} }
	for layout, paths := range map[string][3]v1alpha1.StatusPath{
		"flat":   {".status.phase", ".status.failedPodUIDs", ".status.conditions"},
		"nested": {".status.state.phase-name", ".status.failure.in.uids", ".status.list-of.conditions"},
	} {
		spec := v1alpha1.RecoveryPolicySpec{
			PhasePath: paths[0], RecordPath: paths[1], ConditionsPath: paths[2],
			Phases: v1alpha1.RecoveryPhases{Failed: []v1alpha1.Phase{"Failed", `Bro"ken`}},
		}
		at := func(phase, record, conditions any) object {
			out := object{}
			for i, v := range []any{phase, record, conditions} {
				if v == nil {
					continue
				}
				here := out
				segments := strings.Split(strings.TrimPrefix(string(paths[i]), ".status."), ".")
				for _, s := range segments[:len(segments)-1] {
					if here[s] == nil {
						here[s] = object{}
					}
					here = here[s].(object)
				}
				here[segments[len(segments)-1]] = v
			}
			return status(out)
		}
		condition := concerned(spec)
		if err := expr.CheckCondition("spec", condition.Expression); err != nil {
			t.Fatal(err)
		}
		for name, c := range map[string]struct {
			old, object object
			want        bool
		}{
			"a healthy object":                 {at("Succeed", nil, []any{}), at("Pending", nil, []any{}), false},
			"no status":                        {status(nil), status(nil), false},
			"a first status":                   {status(nil), at("Pending", nil, nil), false},
			"it is being deleted":              {deleting(at("Failed", []any{"u1"}, nil)), at("Succeed", nil, nil), false},
			"only the new one says so":         {at("Failed", []any{"u1"}, nil), deleting(at("Succeed", nil, nil)), true},
			"null as a status":                 {status(nil), status(nil), false},
			"an empty status":                  {status(object{}), status(object{}), false},
			"an empty record":                  {at("Succeed", []any{}, nil), at("Succeed", []any{}, nil), false},
			"it fails":                         {at("Succeed", nil, nil), at("Failed", nil, nil), true},
			"it fails, by the other word":      {at("Succeed", nil, nil), at(`Bro"ken`, nil, nil), true},
			"it had failed":                    {at("Failed", nil, nil), at("Succeed", nil, nil), true},
			"its status is removed":            {at("Failed", nil, nil), object{}, true},
			"it has a record":                  {at("Pausing", []any{"u1"}, nil), at("Pausing", nil, nil), true},
			"it gets a record":                 {at("Succeed", nil, nil), at("Succeed", []any{"u1"}, nil), true},
			"its phase is a number":            {at("Succeed", nil, nil), at(int64(5), nil, nil), true},
			"its phase was a list":             {at([]any{}, nil, nil), at("Succeed", nil, nil), true},
			"its record is a text":             {at("Succeed", nil, nil), at("Succeed", "u1", nil), true},
			"its record is a number":           {at("Succeed", nil, nil), at("Succeed", int64(0), nil), true},
			"its conditions are a map":         {at("Succeed", nil, nil), at("Succeed", nil, object{}), true},
			"its status is a text":             {at("Succeed", nil, nil), status("x"), true},
			"its status is a list":             {at("Succeed", nil, nil), status([]any{}), true},
			"null where there should be more":  {status(object{"state": nil, "failure": nil, "list-of": nil}), status(object{"state": object{"phase-name": nil}, "failure": object{"in": nil}, "list-of": nil}), false},
			"a lifecycle without a record":     {at("Resuming", nil, nil), at("Succeed", nil, nil), false},
			"an unknown phase, and no failure": {at("Odd", nil, nil), at("Odder", nil, nil), false},
		} {
			t.Run(layout+": "+name, func(t *testing.T) {
				t.Parallel()
				if got := evaluated(t, condition.Expression, c.old, c.object); got != c.want {
					t.Errorf("%t; %s", got, condition.Expression)
				}
			})
		}
	}
}

// evaluated is what the oldest supported API server makes of a condition.
func evaluated(t *testing.T, source string, old, object map[string]any) bool {
	t.Helper()
	set, err := environment.MustBaseEnvSet(version.MajorMinor(1, 33)).Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0),
		EnvOptions:        []cel.EnvOption{cel.Variable("object", cel.DynType), cel.Variable("oldObject", cel.DynType)},
	})
	if err != nil {
		t.Fatal(err)
	}
	env := set.NewExpressionsEnv()
	ast, issues := env.Compile(source)
	if issues.Err() != nil {
		t.Fatal(issues.Err())
	}
	p, err := env.Program(ast)
	if err != nil {
		t.Fatal(err)
	}
	out, _, err := p.Eval(map[string]any{"object": object, "oldObject": old})
	if err != nil {
		t.Fatal(err)
	}
	return out.Value() == true
}
