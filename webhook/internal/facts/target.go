package facts

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/expr"
	"github.com/belay-dev/belay/webhook/internal/owner"
)

// OwnerExpression is the compiled expression of an OwnerPolicy's owner.
type OwnerExpression struct {
	name, selector *expr.Program
}

// CompileOwner compiles the expression that finds the owner. The error is a
// *expr.CompileError with the field's path.
func CompileOwner(t v1alpha1.OwnerTarget) (OwnerExpression, error) {
	if t.Name != "" {
		p, err := expr.Compile("spec.owner.name", t.Name, expr.String)
		return OwnerExpression{name: p}, err
	}
	p, err := expr.Compile("spec.owner.selector", t.Selector, expr.StringMap)
	return OwnerExpression{selector: p}, err
}

// Target evaluates the expression for one object.
func (e OwnerExpression) Target(ctx context.Context, res v1alpha1.ResolvedResource, vars map[string]any) owner.Target {
	w := &owner.Wanted{APIVersion: ResourceOf(res).GroupVersion().String(), Kind: res.Kind, Scope: ScopeOf(res)}
	if e.name != nil {
		name, err := e.name.String(ctx, vars)
		switch {
		case err != nil:
			return failed(err)
		case name == "":
			return owner.Target{}
		case len(name) > 253 || len(content.IsPathSegmentName(name)) > 0:
			return failed(fmt.Errorf("spec.owner.name: gave %.100q, which is not a name", name))
		}
		w.Name = name
		return owner.Target{Owner: w}
	}
	labels, err := e.selector.StringMap(ctx, vars)
	if err != nil {
		return failed(err)
	}
	if len(labels) == 0 {
		return owner.Target{}
	}
	if errs := metav1validation.ValidateLabels(labels, field.NewPath("spec", "owner", "selector")); len(errs) > 0 {
		return failed(fmt.Errorf("gave no valid labels: %w", errs[0]))
	}
	if len(labels) > maxLabels {
		return failed(fmt.Errorf("spec.owner.selector: gave %d labels, more than the limit of %d", len(labels), maxLabels))
	}
	w.Labels = labels
	return owner.Target{Owner: w}
}

// maxLabels is the limit of an Anchor's matchLabels.
const maxLabels = 16

func failed(err error) owner.Target {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return owner.Target{Reason: owner.ReasonLookupFailed, Problem: err.Error()} // worth another try
	}
	return owner.Target{Reason: owner.ReasonExpressionFailed, Problem: err.Error()}
}
