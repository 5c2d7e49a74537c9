// Package expr compiles and evaluates the CEL expressions of policies, with the
// libraries that Kubernetes itself offers and a bound on their cost.
package expr

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"
	"google.golang.org/protobuf/types/known/structpb"
	"k8s.io/apimachinery/pkg/util/version"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"
)

// Variables that every expression sees.
const (
	// VarObject is the object that is being admitted.
	VarObject = "object"
	// VarRequest has namespace, name, operation, dryRun and userInfo.
	VarRequest = "request"
	// VarGenerated is the name that a NamePolicy generates; for its verify only.
	VarGenerated = "generated"
	// VarExisting is the object that has the name which is asked for.
	VarExisting = "existing"
)

// Scope says which variables an expression sees.
type Scope int

// Scopes.
const (
	// Creating sees object and request.
	Creating Scope = iota
	// Verifying sees generated as well.
	Verifying
	// Existing sees existing alone.
	Existing
	// Stored sees object alone: the one that is stored.
	Stored
)

// Result is the type that an expression must give.
type Result int

// Results.
const (
	// String is a string.
	String Result = iota
	// StringMap is a map of strings to strings.
	StringMap
	// Bool is true or false.
	Bool
	// Any is anything that JSON can hold.
	Any
)

// maxResult bounds what an expression may give: 16 labels with keys of 317 and
// values of 63 bytes.
const maxResult = 16 * (317 + 63)

// oldestServer is the oldest server that belay supports: expressions may use the
// libraries that all supported servers have, so that one that is moved into a
// ValidatingAdmissionPolicy or a matchCondition still compiles there.
var oldestServer = version.MajorMinor(1, 33)

// baseEnv is what belay evaluates; conditionEnv is what the API server offers to
// matchConditions. namespaceObject is in neither: the API server has it as null
// there, so that an expression which uses it fails on every request.
var (
	baseEnv      = envWith(creating...)
	verifyEnv    = envWith(append(creating[:2:2], cel.Variable(VarGenerated, cel.StringType))...)
	existingEnv  = envWith(cel.Variable(VarExisting, cel.DynType))
	storedEnv    = envWith(creating[:1:1]...)
	conditionEnv = envWith(append(creating[:2:2], cel.Variable("oldObject", cel.DynType), cel.Variable("authorizer", library.AuthorizerType), cel.Variable("authorizer.requestResource", library.ResourceCheckType))...)

	creating = []cel.EnvOption{cel.Variable(VarObject, cel.DynType), cel.Variable(VarRequest, cel.DynType)}
)

func envWith(variables ...cel.EnvOption) func() (*cel.Env, error) {
	return sync.OnceValues(func() (*cel.Env, error) {
		set, err := environment.MustBaseEnvSet(oldestServer).Extend(environment.VersionedOptions{
			IntroducedVersion: version.MajorMinor(1, 0),
			EnvOptions:        variables,
		})
		if err != nil {
			return nil, fmt.Errorf("building the CEL environment: %w", err)
		}
		return set.NewExpressionsEnv(), nil
	})
}

// CompileError says where an expression is wrong.
type CompileError struct {
	// Field is the path of the field that holds the expression.
	Field string
	// Line counts from 1, Column from 1; both 0 where no place can be told.
	Line, Column int
	Message      string
}

func (e *CompileError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.Field, e.Message)
	}
	return fmt.Sprintf("%s: line %d, column %d: %s", e.Field, e.Line, e.Column, e.Message)
}

// Program is a compiled expression. It may be evaluated by several goroutines.
type Program struct {
	field   string
	result  Result
	program cel.Program
}

// CheckCondition finds what is wrong with a matchCondition, and where, as far as
// that can be told without the types that the API server gives to request. The
// error is a *CompileError.
func CheckCondition(field, source string) error {
	_, err := compile(conditionEnv, field, source, Bool)
	return err
}

// Compile checks an expression that sees object and request, and the type that it
// gives. The error is a *CompileError.
func Compile(field, source string, result Result) (*Program, error) {
	return CompileIn(Creating, field, source, result)
}

// CompileIn is Compile for other variables.
func CompileIn(scope Scope, field, source string, result Result) (*Program, error) {
	env := baseEnv
	switch scope {
	case Verifying:
		env = verifyEnv
	case Existing:
		env = existingEnv
	case Stored:
		env = storedEnv
	case Creating:
	}
	return compile(env, field, source, result)
}

func compile(environment func() (*cel.Env, error), field, source string, result Result) (*Program, error) {
	env, err := environment()
	if err != nil {
		return nil, err
	}
	if strings.TrimSpace(source) == "" {
		return nil, &CompileError{Field: field, Message: "the expression is empty"}
	}
	ast, issues := env.Compile(source)
	if issues.Err() != nil {
		first := issues.Errors()[0]
		return nil, &CompileError{Field: field, Line: first.Location.Line(), Column: first.Location.Column() + 1, Message: first.Message}
	}
	want, word := cel.StringType, "a string"
	switch result {
	case StringMap:
		want, word = cel.MapType(cel.StringType, cel.StringType), "a map of strings"
	case Bool:
		want, word = cel.BoolType, "true or false"
	case Any:
		want = cel.DynType
	case String:
	}
	if got := ast.OutputType(); result != Any && !assignable(got, want) {
		return nil, &CompileError{Field: field, Line: 1, Column: 1, Message: fmt.Sprintf("gives %s, but must give %s", got, word)}
	}
	p, err := env.Program(ast,
		cel.EvalOptions(cel.OptOptimize, cel.OptTrackCost),
		cel.CostLimit(celconfig.PerCallLimit),
		cel.InterruptCheckFrequency(celconfig.CheckFrequency),
	)
	if err != nil {
		return nil, &CompileError{Field: field, Message: err.Error()}
	}
	return &Program{field: field, result: result, program: p}, nil
}

// assignable accepts the type itself, dyn, and maps whose keys or values are dyn,
// since the object's fields have no types here; the value is checked again after
// evaluation.
func assignable(got, want *cel.Type) bool {
	if got.IsExactType(cel.DynType) || got.IsExactType(want) {
		return true
	}
	if got.Kind() != cel.MapKind || want.Kind() != cel.MapKind {
		return false
	}
	for i, p := range got.Parameters() {
		if !p.IsExactType(cel.DynType) && !p.IsExactType(want.Parameters()[i]) {
			return false
		}
	}
	return true
}

// ErrCost is returned when an expression costs more than it may on some object.
var ErrCost = errors.New("the expression costs more than the limit")

// String evaluates an expression that gives a string.
func (p *Program) String(ctx context.Context, vars map[string]any) (string, error) {
	out, err := p.eval(ctx, vars)
	if err != nil {
		return "", err
	}
	s, ok := out.Value().(string)
	if !ok {
		return "", fmt.Errorf("%s: gave %s, not a string", p.field, out.Type().TypeName())
	}
	if len(s) > maxResult {
		return "", fmt.Errorf("%s: gave %d bytes, more than the limit of %d", p.field, len(s), maxResult)
	}
	return s, nil
}

// StringMap evaluates an expression that gives a map of strings.
func (p *Program) StringMap(ctx context.Context, vars map[string]any) (map[string]string, error) {
	out, err := p.eval(ctx, vars)
	if err != nil {
		return nil, err
	}
	native, err := out.ConvertToNative(reflect.TypeFor[map[string]string]())
	if err != nil {
		return nil, fmt.Errorf("%s: gave %s, not a map of strings", p.field, out.Type().TypeName())
	}
	m, _ := native.(map[string]string)
	size := 0
	for k, v := range m {
		size += len(k) + len(v)
	}
	if size > maxResult {
		return nil, fmt.Errorf("%s: gave %d bytes, more than the limit of %d", p.field, size, maxResult)
	}
	return m, nil
}

// Bool evaluates an expression that gives true or false.
func (p *Program) Bool(ctx context.Context, vars map[string]any) (bool, error) {
	out, err := p.eval(ctx, vars)
	if err != nil {
		return false, err
	}
	b, ok := out.Value().(bool)
	if !ok {
		return false, fmt.Errorf("%s: gave %s, not true or false", p.field, out.Type().TypeName())
	}
	return b, nil
}

// Any evaluates an expression that gives what JSON can hold: nil, bool, float64,
// string, []any or map[string]any. An optional without a value is nil.
func (p *Program) Any(ctx context.Context, vars map[string]any) (any, error) {
	out, err := p.eval(ctx, vars)
	if err != nil {
		return nil, err
	}
	if o, ok := out.(*types.Optional); ok {
		if !o.HasValue() {
			return nil, nil
		}
		out = o.GetValue()
	}
	native, err := out.ConvertToNative(types.JSONValueType)
	if err != nil {
		return nil, fmt.Errorf("%s: gave %s, which is no value of JSON", p.field, out.Type().TypeName())
	}
	v, ok := native.(*structpb.Value)
	if !ok {
		return nil, fmt.Errorf("%s: gave %s, which is no value of JSON", p.field, out.Type().TypeName())
	}
	return v.AsInterface(), nil
}

func (p *Program) eval(ctx context.Context, vars map[string]any) (ref.Val, error) {
	out, _, err := p.program.ContextEval(ctx, vars)
	var cancelled interpreter.EvalCancelledError
	switch {
	case err == nil:
		return out, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s: %w", p.field, ctx.Err())
	case errors.As(err, &cancelled) && cancelled.Cause == interpreter.CostLimitExceeded:
		return nil, fmt.Errorf("%s: %w", p.field, ErrCost)
	default:
		return nil, fmt.Errorf("%s: %w", p.field, err)
	}
}
