package facts

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/expr"
	"github.com/belay-dev/belay/webhook/internal/owner"
)

func TestTarget(t *testing.T) {
	t.Parallel()
	vars := map[string]any{expr.VarObject: map[string]any{"metadata": map[string]any{
		"name": "run", "labels": map[string]any{"id": "7", "bad": "a b", "empty": "", "up": "../x"},
	}}}
	name := func(e string) v1alpha1.OwnerTarget { return v1alpha1.OwnerTarget{Name: e} }
	selector := func(e string) v1alpha1.OwnerTarget { return v1alpha1.OwnerTarget{Selector: e} }
	for title, c := range map[string]struct {
		expression v1alpha1.OwnerTarget
		want       *owner.Wanted
		problem    string
	}{
		"a name":                              {name("object.metadata.name"), &owner.Wanted{APIVersion: "batch/v1", Kind: "Job", Name: "run", Scope: owner.ScopeNamespaced}, ""},
		"no name, no owner":                   {name(`""`), nil, ""},
		"a name that leaves its path":         {name("object.metadata.labels.up"), nil, `spec.owner.name: gave "../x", which is not a name`},
		"a name that is too long":             {name(`[0,1,2,3,4,5,6,7,8,9].map(x, "aaaaaaaaaaaaaaaaaaaaaaaaaa").join()`), nil, "which is not a name"},
		"a name from a label that is missing": {name("object.metadata.labels.nope"), nil, "spec.owner.name: no such key: nope"},
		"labels":                              {selector(`{"example.com/id": object.metadata.labels.id}`), &owner.Wanted{APIVersion: "batch/v1", Kind: "Job", Labels: map[string]string{"example.com/id": "7"}, Scope: owner.ScopeNamespaced}, ""},
		"no labels, no owner":                 {selector(`{}`), nil, ""},
		"a label's value that is none":        {selector(`{"id": object.metadata.labels.bad}`), nil, "gave no valid labels: spec.owner.selector: Invalid value"},
		"a label's key that is none":          {selector(`{"a/b/c": "x"}`), nil, "gave no valid labels: spec.owner.selector: Invalid value"},
		"labels that are numbers":             {selector(`object.metadata`), nil, "spec.owner.selector: gave map, not a map of strings"},
		"more labels than an Anchor holds":    {selector(`{"a":"","b":"","c":"","d":"","e":"","f":"","g":"","h":"","i":"","j":"","k":"","l":"","m":"","n":"","o":"","p":"","q":""}`), nil, "spec.owner.selector: gave 17 labels, more than the limit of 16"},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			e, err := CompileOwner(c.expression)
			if err != nil {
				t.Fatal(err)
			}
			got := e.Target(t.Context(), builders.Jobs(), vars)
			if diff := cmp.Diff(c.want, got.Owner); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if c.problem == "" && got.Reason != "" || c.problem != "" && got.Reason != owner.ReasonExpressionFailed || !strings.Contains(got.Problem, c.problem) {
				t.Errorf("%+v, want %q", got, c.problem)
			}
		})
	}
}
