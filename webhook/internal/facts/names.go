package facts

import (
	"context"
	"errors"
	"fmt"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/client/spawn/names"
	"github.com/belay-dev/belay/webhook/internal/expr"
	"github.com/belay-dev/belay/webhook/internal/naming"
)

// NameExpressions are the compiled expressions of a NamePolicy. Those that the policy
// has not got are nil.
type NameExpressions struct {
	prefix                    *expr.Program
	key, identity             []*expr.Program
	verify                    *expr.Program
	finished, succeeded, hold *expr.Program
}

// CompileNames compiles the expressions of a NamePolicy. The error is a
// *expr.CompileError with the field's path.
func CompileNames(s v1alpha1.NamePolicySpec) (NameExpressions, error) {
	var e NameExpressions
	var err error
	one := func(scope expr.Scope, field, source string, result expr.Result) *expr.Program {
		if err != nil {
			return nil
		}
		var p *expr.Program
		p, err = expr.CompileIn(scope, field, source, result)
		return p
	}
	may := func(scope expr.Scope, field, source string, result expr.Result) *expr.Program {
		if source == "" {
			return nil
		}
		return one(scope, field, source, result)
	}
	all := func(field string, sources []string) []*expr.Program {
		var out []*expr.Program
		for i, source := range sources {
			out = append(out, one(expr.Creating, fmt.Sprintf("%s[%d]", field, i), source, expr.Any))
		}
		return out
	}
	verifying := expr.Creating
	if s.Generate != nil {
		e.prefix = one(expr.Creating, "spec.generate.prefix", s.Generate.Prefix, expr.String)
		e.key = all("spec.generate.key", s.Generate.Key)
		verifying = expr.Verifying
	}
	e.verify = may(verifying, "spec.verify", s.Verify, expr.String)
	e.identity = all("spec.identity", s.Identity)
	e.finished = may(expr.Existing, "spec.finished", s.Finished, expr.Bool)
	e.succeeded = may(expr.Existing, "spec.succeeded", s.Succeeded, expr.Bool)
	e.hold = may(expr.Existing, "spec.hold", s.Hold, expr.Bool)
	return e, err
}

// Work is the digest of what an object is for.
func (e NameExpressions) Work(ctx context.Context, vars map[string]any) naming.Computed {
	values, err := evaluate(ctx, e.identity, vars)
	if err != nil {
		return problem(err)
	}
	return naming.Computed{Value: names.Digest(values...)}
}

// Generated is the name that the policy makes for an object of at most so many bytes.
func (e NameExpressions) Generated(ctx context.Context, most int, vars map[string]any) naming.Computed {
	prefix, err := e.prefix.String(ctx, vars)
	if err != nil {
		return problem(err)
	}
	values, err := evaluate(ctx, e.key, vars)
	if err != nil {
		return problem(err)
	}
	return naming.Computed{Value: names.Of(prefix, most, values...)}
}

// Expected is the name that the object must have; empty for any.
func (e NameExpressions) Expected(ctx context.Context, most int, vars map[string]any) naming.Computed {
	if e.verify == nil {
		return naming.Computed{}
	}
	if e.prefix != nil {
		g := e.Generated(ctx, most, vars)
		if g.Problem != "" {
			return g
		}
		with := map[string]any{expr.VarGenerated: g.Value}
		for k, v := range vars {
			with[k] = v
		}
		vars = with
	}
	name, err := e.verify.String(ctx, vars)
	if err != nil {
		return problem(err)
	}
	return naming.Computed{Value: name}
}

// Phase is how far the work of an existing object is: what its kind says itself, else
// what the policy's expressions say.
func (e NameExpressions) Phase(ctx context.Context, group, kind string, existing map[string]any) naming.Phase {
	if naming.BuiltIn(group, kind) || e.finished == nil {
		return naming.PhaseOf(group, kind, existing)
	}
	vars := map[string]any{expr.VarExisting: existing}
	finished, err := e.finished.Bool(ctx, vars)
	if err != nil {
		return naming.Phase{Problem: err.Error()}
	}
	p := naming.Phase{Finished: finished, Because: "as the policy's spec.finished says"}
	if finished && e.succeeded != nil {
		// An error is no success: it shortens what counts as running, and no more.
		p.Succeeded, _ = e.succeeded.Bool(ctx, vars)
	}
	return p
}

// Held says whether somebody still needs a finished object.
func (e NameExpressions) Held(ctx context.Context, existing map[string]any) (held bool, problem string) {
	if e.hold == nil {
		return false, ""
	}
	held, err := e.hold.Bool(ctx, map[string]any{expr.VarExisting: existing})
	if err != nil {
		return false, err.Error()
	}
	return held, ""
}

func evaluate(ctx context.Context, programs []*expr.Program, vars map[string]any) ([]any, error) {
	var values []any
	for _, p := range programs {
		v, err := p.Any(ctx, vars)
		if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, nil
}

func problem(err error) naming.Computed {
	return naming.Computed{Problem: err.Error(), Transient: errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)}
}
