package facts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/expr"
	"github.com/belay-dev/belay/webhook/internal/recovery"
	"github.com/belay-dev/belay/webhook/internal/wording"
)

// RecoveryExpressions are the compiled expressions of a RecoveryPolicy, and the selectors
// of its Pods.
type RecoveryExpressions struct {
	resume  *expr.Program
	sources []podSource
}

// podSource is one entry of spec.pods.
type podSource struct {
	when, labels *expr.Program
	selector     labels.Selector
	names        *v1alpha1.PodsByName
	// field is the path of labels.
	field string
}

// CompileRecovery compiles the expressions of a RecoveryPolicy. The error is a
// *expr.CompileError with the field's path.
func CompileRecovery(s v1alpha1.RecoveryPolicySpec) (RecoveryExpressions, error) {
	var e RecoveryExpressions
	var err error
	may := func(field, source string, result expr.Result) *expr.Program {
		if source == "" || err != nil {
			return nil
		}
		var p *expr.Program
		p, err = expr.CompileIn(expr.Stored, field, source, result)
		return p
	}
	e.resume = may("spec.resumeInFlight", s.ResumeInFlight, expr.Bool)
	for i, source := range s.Pods {
		path := fmt.Sprintf("spec.pods[%d]", i)
		c := podSource{names: source.Names, when: may(path+".when", source.When, expr.Bool)}
		if source.Owner != nil {
			c.field = path + ".owner.labels"
			c.labels = may(c.field, source.Owner.Labels, expr.StringMap)
		}
		if err != nil {
			return e, err
		}
		// A selector that is malformed is told by acceptance, with its path.
		if c.selector, err = metav1.LabelSelectorAsSelector(&source.Selector); err != nil {
			return e, &expr.CompileError{Field: path + ".selector", Message: err.Error()}
		}
		e.sources = append(e.sources, c)
	}
	return e, err
}

// Selectors are those of the Pods that the policy is about, without duplicates.
func (e RecoveryExpressions) Selectors() []string {
	var out []string
	for _, s := range e.sources {
		if text := s.selector.String(); !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out
}

// ResumeInFlight says whether the Pods of an object are about to be replaced, or why that
// cannot be told.
func (e RecoveryExpressions) ResumeInFlight(ctx context.Context, object map[string]any) (yes bool, problem string) {
	if e.resume == nil {
		return false, ""
	}
	yes, err := e.resume.Bool(ctx, map[string]any{expr.VarObject: object})
	if err != nil {
		return false, wording.OneLine(err.Error())
	}
	return yes, ""
}

// PodQuery says which Pods are an object's.
type PodQuery struct {
	Namespace string
	// Selector is that of the policy's entry: of the Pods that are watched. It is empty where
	// no entry is for the object, which has no Pods then.
	Selector string
	// Owner is the UID of their controller; empty for Pods by name.
	Owner types.UID
	// Labels are further ones that all Pods of the owner have.
	Labels map[string]string
	Names  []string
}

// checkLabels says what no Pod can carry: the API server would refuse to look for it.
func checkLabels(set map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(set)) {
		if errs := validation.IsQualifiedName(key); len(errs) > 0 {
			return fmt.Errorf("gave the key %.64q, which no label has: %s", key, errs[0])
		}
		if errs := validation.IsValidLabelValue(set[key]); len(errs) > 0 {
			return fmt.Errorf("gave the value %.80q for %s, which no label has: %s", set[key], key, errs[0])
		}
	}
	return nil
}

// maxNamed bounds the Pods that an annotation names: each is read on its own.
const maxNamed = 256

// Query says which Pods are an object's. The error says why that cannot be told; it is the
// context's where the time ran out.
func (e RecoveryExpressions) Query(ctx context.Context, object *unstructured.Unstructured) (PodQuery, error) {
	vars := map[string]any{expr.VarObject: object.Object}
	for _, s := range e.sources {
		if s.when != nil {
			yes, err := s.when.Bool(ctx, vars)
			if err != nil {
				return PodQuery{}, err
			}
			if !yes {
				continue
			}
		}
		q := PodQuery{Namespace: object.GetNamespace(), Selector: s.selector.String()}
		if s.names != nil {
			names, err := namesIn(object.GetAnnotations(), s.names)
			q.Names = names
			return q, err
		}
		q.Owner = object.GetUID()
		if s.labels != nil {
			set, err := s.labels.StringMap(ctx, vars)
			if err != nil {
				return PodQuery{}, err
			}
			if err := checkLabels(set); err != nil {
				return PodQuery{}, fmt.Errorf("%s: %w", s.field, err)
			}
			q.Labels = set
		}
		return q, nil
	}
	return PodQuery{Namespace: object.GetNamespace()}, nil
}

// namesIn reads the names of Pods from annotations. What no Pod can be called names none.
func namesIn(annotations map[string]string, by *v1alpha1.PodsByName) ([]string, error) {
	names, err := annotated(annotations, by.In)
	if err != nil {
		return nil, err
	}
	if by.NotIn != nil {
		gone, err := annotated(annotations, *by.NotIn)
		if err != nil {
			return nil, err
		}
		names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(gone, name) })
	}
	names = slices.DeleteFunc(names, func(name string) bool { return len(validation.IsDNS1123Subdomain(name)) > 0 })
	if len(names) > maxNamed {
		return nil, fmt.Errorf("the annotation %s names %d pods, more than the limit of %d", by.In.Annotation, len(names), maxNamed)
	}
	return names, nil
}

func annotated(annotations map[string]string, a v1alpha1.AnnotatedNames) ([]string, error) {
	value := annotations[a.Annotation]
	if value == "" {
		return nil, nil
	}
	raw := json.RawMessage(value)
	if a.Field != "" {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(raw, &fields); err != nil {
			return nil, fmt.Errorf("the annotation %s is no JSON object", a.Annotation)
		}
		if raw = fields[a.Field]; raw == nil {
			return nil, nil
		}
	}
	var names []string
	if err := json.Unmarshal(raw, &names); err != nil {
		return nil, fmt.Errorf("the annotation %s holds no list of names", a.Annotation)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Guarded is what decisions read of a stored object beside its status.
func (p *RecoveryPolicy) Guarded(ctx context.Context, object *unstructured.Unstructured) recovery.Object {
	o := recovery.Object{
		Kind: p.Resource.Kind, Name: object.GetName(), Deleting: object.GetDeletionTimestamp() != nil,
		Allowed: object.GetAnnotations()[v1alpha1.AllowRecoveryAnnotation] == "true",
	}
	o.ResumeInFlight, o.ResumeProblem = p.Expressions.ResumeInFlight(ctx, object.Object)
	return o
}

// cutShort reports whether an expression ended since the time ran out.
func cutShort(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}
