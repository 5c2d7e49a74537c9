package registration

import (
	"strings"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/version"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/belay-dev/belay/webhook/internal/expr"
)

// conditionCompiler is the API server's own, for the oldest server that is
// supported: what it refuses cannot be registered.
var conditionCompiler = sync.OnceValue(func() plugincel.Compiler {
	return plugincel.NewCompiler(environment.MustBaseEnvSet(version.MajorMinor(1, 33)))
})

// checkCondition compiles a matchCondition as the API server will. namespaceObject,
// which that would accept although it is always null there, is refused first. The
// error is a *expr.CompileError.
func checkCondition(field, source string) error {
	if err := expr.CheckCondition(field, source); err != nil {
		return err
	}
	c := matchconditions.MatchCondition(admissionregistrationv1.MatchCondition{Name: "condition", Expression: source})
	r := conditionCompiler().CompileCELExpression(&c, plugincel.OptionalVariableDeclarations{HasAuthorizer: true}, environment.NewExpressions)
	if r.Error != nil {
		return &expr.CompileError{Field: field, Message: strings.TrimPrefix(r.Error.Detail, "compilation failed: ")}
	}
	return nil
}
