package facts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/expr"
	"github.com/belay-dev/belay/webhook/internal/recovery"
)

func labelled(key, value string) metav1.LabelSelector {
	return metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

// byName is a source of Pods that the annotation "pods" names, in the field "pods", less
// those that "gone" does.
func byName() *v1alpha1.PodsByName {
	return &v1alpha1.PodsByName{
		In: v1alpha1.AnnotatedNames{Annotation: "pods", Field: "pods"}, NotIn: &v1alpha1.AnnotatedNames{Annotation: "gone", Field: "pods"},
	}
}

// threeSources are Boxes that are empty, those that have their own Pods, and those that
// have a pool's.
func threeSources(s *v1alpha1.RecoveryPolicySpec) {
	s.Pods = []v1alpha1.PodSource{
		{When: `object.spec.kind == "plain"`, Selector: labelled("app", "plain"), Owner: &v1alpha1.PodsByOwner{}},
		{When: `object.spec.kind == "labelled"`, Selector: labelled("app", "labelled"), Owner: &v1alpha1.PodsByOwner{Labels: `{"box": object.metadata.name}`}},
		{When: `object.spec.kind in ["pool", "list"]`, Selector: labelled("app", "pool"), Names: byName()},
	}
}

func compiledRecovery(t testing.TB, change func(*v1alpha1.RecoveryPolicySpec)) RecoveryExpressions {
	t.Helper()
	e, err := CompileRecovery(builders.MakeRecoveryPolicy("boxes").Spec(change).Obj().Spec)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// boxOf is a Box with this spec and these annotations.
func boxOf(t testing.TB, spec string, annotations map[string]string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Box"}}
	var s map[string]any
	if err := json.Unmarshal([]byte(spec), &s); err != nil {
		t.Fatal(err)
	}
	u.Object["spec"] = s
	u.SetName("a")
	u.SetNamespace("lab")
	u.SetUID("box-uid")
	u.SetAnnotations(annotations)
	return u
}

func TestCompileRecoverySaysWhere(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec func(*v1alpha1.RecoveryPolicySpec)
		want string
	}{
		"resumeInFlight that is no expression": {func(s *v1alpha1.RecoveryPolicySpec) { s.ResumeInFlight = "object." }, "spec.resumeInFlight: line 1, column 8: Syntax error"},
		"resumeInFlight that gives a string":   {func(s *v1alpha1.RecoveryPolicySpec) { s.ResumeInFlight = `"yes"` }, "spec.resumeInFlight: line 1, column 1: gives string, but must give true or false"},
		"resumeInFlight that sees the request": {func(s *v1alpha1.RecoveryPolicySpec) { s.ResumeInFlight = "request.dryRun" }, "spec.resumeInFlight: line 1, column 1: undeclared reference to 'request'"},
		"resumeInFlight that sees oldObject":   {func(s *v1alpha1.RecoveryPolicySpec) { s.ResumeInFlight = "oldObject == null" }, "spec.resumeInFlight: line 1, column 1: undeclared reference to 'oldObject'"},
		"when that is no expression":           {func(s *v1alpha1.RecoveryPolicySpec) { threeSources(s); s.Pods[1].When = "nope" }, "spec.pods[1].when: line 1, column 1: undeclared reference to 'nope'"},
		"when on its second line":              {func(s *v1alpha1.RecoveryPolicySpec) { threeSources(s); s.Pods[2].When = "true &&\n nope" }, "spec.pods[2].when: line 2, column 2: undeclared reference to 'nope'"},
		"when that gives a number":             {func(s *v1alpha1.RecoveryPolicySpec) { s.Pods[0].When = "1" }, "spec.pods[0].when: line 1, column 1: gives int, but must give true or false"},
		"labels that are no expression":        {func(s *v1alpha1.RecoveryPolicySpec) { threeSources(s); s.Pods[1].Owner.Labels = "{" }, "spec.pods[1].owner.labels: line 1, column 2: Syntax error"},
		"labels that give a string":            {func(s *v1alpha1.RecoveryPolicySpec) { s.Pods[0].Owner.Labels = `"a=b"` }, "spec.pods[0].owner.labels: line 1, column 1: gives string, but must give a map of strings"},
		"labels of numbers":                    {func(s *v1alpha1.RecoveryPolicySpec) { s.Pods[0].Owner.Labels = `{"a": 1}` }, "spec.pods[0].owner.labels: line 1, column 1: gives map(string, int), but must give a map of strings"},
		"a selector that is malformed": {func(s *v1alpha1.RecoveryPolicySpec) {
			s.Pods[0].Selector = metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}
		}, `spec.pods[0].selector: "Like" is not a valid label selector operator`},
		"of two faults the first":             {func(s *v1alpha1.RecoveryPolicySpec) { s.ResumeInFlight, s.Pods[0].When = "nope", "neither" }, "spec.resumeInFlight: "},
		"of two faults of a source the first": {func(s *v1alpha1.RecoveryPolicySpec) { s.Pods[0].When, s.Pods[0].Owner.Labels = "nope", "neither" }, "spec.pods[0].when: "},
		"resumeInFlight, of no source at all": {func(s *v1alpha1.RecoveryPolicySpec) { s.ResumeInFlight, s.Pods = "nope", nil }, "spec.resumeInFlight: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := CompileRecovery(builders.MakeRecoveryPolicy("boxes").Spec(c.spec).Obj().Spec)
			var ce *expr.CompileError
			if !errors.As(err, &ce) || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestSelectorsAreThoseOfTheSourcesOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec func(*v1alpha1.RecoveryPolicySpec)
		want []string
	}{
		"one":       {func(*v1alpha1.RecoveryPolicySpec) {}, []string{"batch-sandbox.sandbox.opensandbox.io/name"}},
		"three":     {threeSources, []string{"app=plain", "app=labelled", "app=pool"}},
		"one twice": {func(s *v1alpha1.RecoveryPolicySpec) { threeSources(s); s.Pods[2].Selector = labelled("app", "plain") }, []string{"app=plain", "app=labelled"}},
		"one that is written in two ways": {func(s *v1alpha1.RecoveryPolicySpec) {
			s.Pods = []v1alpha1.PodSource{
				{Selector: labelled("app", "x"), Owner: &v1alpha1.PodsByOwner{}},
				{Selector: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: []string{"x"}}}}, Names: byName()},
			}
		}, []string{"app=x", "app in (x)"}},
		"of several labels, in one order": {func(s *v1alpha1.RecoveryPolicySpec) {
			s.Pods[0].Selector = metav1.LabelSelector{MatchLabels: map[string]string{"z": "1", "a": "2"}}
		}, []string{"a=2,z=1"}},
		"none": {func(s *v1alpha1.RecoveryPolicySpec) { s.Pods = nil }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, compiledRecovery(t, c.spec).Selectors()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestResumeInFlight(t *testing.T) {
	t.Parallel()
	const asOpenSandbox = `object.metadata.generation > object.?status.?pauseObservedGeneration.orValue(0) && object.spec.?pause.orValue(true) == false`
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for name, c := range map[string]struct {
		expression, object string
		ctx                context.Context
		want               bool
		problem            string
	}{
		"none: never":                           {"", `{"metadata":{"generation":2},"spec":{"pause":false}}`, t.Context(), false, ""},
		"a resume that has begun":               {asOpenSandbox, `{"metadata":{"generation":2},"spec":{"pause":false},"status":{"pauseObservedGeneration":1}}`, t.Context(), true, ""},
		"a resume that has begun, of no status": {asOpenSandbox, `{"metadata":{"generation":2},"spec":{"pause":false}}`, t.Context(), true, ""},
		"a resume that is done":                 {asOpenSandbox, `{"metadata":{"generation":2},"spec":{"pause":false},"status":{"pauseObservedGeneration":2}}`, t.Context(), false, ""},
		"a pause":                               {asOpenSandbox, `{"metadata":{"generation":2},"spec":{"pause":true}}`, t.Context(), false, ""},
		"neither was ever asked for":            {asOpenSandbox, `{"metadata":{"generation":2},"spec":{}}`, t.Context(), false, ""},
		"an object that it fails on":            {asOpenSandbox, `{"metadata":{},"spec":{"pause":false}}`, t.Context(), false, "spec.resumeInFlight: no such key: generation"},
		"an object of another shape":            {asOpenSandbox, `{"metadata":{"generation":"2"},"spec":{"pause":false}}`, t.Context(), false, "spec.resumeInFlight: no such overload"},
		"nothing":                               {asOpenSandbox, `null`, t.Context(), false, "spec.resumeInFlight: no such key: metadata"},
		"a value that is not true or false":     {"object.spec.pause", `{"spec":{"pause":"no"}}`, t.Context(), false, "spec.resumeInFlight: gave string, not true or false"},
		"the time ran out":                      {"object.spec.nope", `{"spec":{}}`, ended, false, "spec.resumeInFlight: context canceled"},
		"a problem that quotes the object":      {`object.spec[object.metadata.key] == 1`, `{"metadata":{"key":"a\nb"},"spec":{}}`, t.Context(), false, "spec.resumeInFlight: no such key: a b"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := compiledRecovery(t, func(s *v1alpha1.RecoveryPolicySpec) { s.ResumeInFlight = c.expression })
			yes, problem := e.ResumeInFlight(c.ctx, decoded(t, c.object))
			if yes != c.want || problem != c.problem {
				t.Errorf("%t %q", yes, problem)
			}
			if strings.ContainsFunc(problem, unicode.IsControl) {
				t.Errorf("%q", problem)
			}
		})
	}
}

// manyNames are so many names as a JSON list.
func manyNames(prefix string, n int) string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%q", fmt.Sprintf("%s-%03d", prefix, i))
	}
	return "[" + strings.Join(out, ",") + "]"
}

func TestQuery(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	const pool = `{"kind":"pool"}`
	pods := func(in string) map[string]string { return map[string]string{"pods": in} }
	less := func(in, out string) map[string]string { return map[string]string{"pods": in, "gone": out} }
	named := func(names ...string) PodQuery {
		return PodQuery{Namespace: "lab", Selector: "app=pool", Names: names}
	}
	for name, c := range map[string]struct {
		spec        string
		annotations map[string]string
		change      func(*v1alpha1.RecoveryPolicySpec)
		ctx         context.Context
		want        PodQuery
		err         string
		cutShort    bool
	}{
		"the Pods that it is the controller of":              {spec: `{"kind":"plain"}`, want: PodQuery{Namespace: "lab", Selector: "app=plain", Owner: "box-uid"}},
		"with labels of its own":                             {spec: `{"kind":"labelled"}`, want: PodQuery{Namespace: "lab", Selector: "app=labelled", Owner: "box-uid", Labels: map[string]string{"box": "a"}}},
		"the Pods that it names":                             {spec: pool, annotations: pods(`{"pods":["b","a"]}`), want: named("a", "b")},
		"none is true: it has no Pods":                       {spec: `{"kind":"none"}`, want: PodQuery{Namespace: "lab"}},
		"the first that is true counts":                      {spec: `{"kind":"plain"}`, change: func(s *v1alpha1.RecoveryPolicySpec) { s.Pods[1].When, s.Pods[2].When = "true", "true" }, want: PodQuery{Namespace: "lab", Selector: "app=plain", Owner: "box-uid"}},
		"one without when is true":                           {spec: `{"kind":"none"}`, change: func(s *v1alpha1.RecoveryPolicySpec) { s.Pods[1].When = "" }, want: PodQuery{Namespace: "lab", Selector: "app=labelled", Owner: "box-uid", Labels: map[string]string{"box": "a"}}},
		"when fails: it is not guessed by the next":          {spec: `{}`, change: func(s *v1alpha1.RecoveryPolicySpec) { s.Pods[2].When = "" }, err: "spec.pods[0].when: no such key: kind"},
		"a later when that fails is not asked":               {spec: `{"kind":"plain"}`, change: func(s *v1alpha1.RecoveryPolicySpec) { s.Pods[1].When = "object.nope" }, want: PodQuery{Namespace: "lab", Selector: "app=plain", Owner: "box-uid"}},
		"when gives a text":                                  {spec: `{"kind":"yes"}`, change: func(s *v1alpha1.RecoveryPolicySpec) { s.Pods[0].When = "object.spec.kind" }, err: "spec.pods[0].when: gave string, not true or false"},
		"labels fail":                                        {spec: `{"kind":"labelled"}`, change: func(s *v1alpha1.RecoveryPolicySpec) { s.Pods[1].Owner.Labels = `{"a": object.nope}` }, err: "spec.pods[1].owner.labels: no such key: nope"},
		"labels are not all texts":                           {spec: `{"kind":"labelled","n":1}`, change: func(s *v1alpha1.RecoveryPolicySpec) { s.Pods[1].Owner.Labels = `{"a": object.spec.n}` }, err: "spec.pods[1].owner.labels: gave map, not a map of strings"},
		"a label that no Pod can have, since it is too long": {spec: `{"kind":"labelled","n":"` + strings.Repeat("n", 64) + `"}`, change: func(s *v1alpha1.RecoveryPolicySpec) { s.Pods[1].Owner.Labels = `{"a": object.spec.n}` }, err: "spec.pods[1].owner.labels: "},
		"a label that no Pod can have, since it is a blank":  {spec: `{"kind":"labelled","n":"a b"}`, change: func(s *v1alpha1.RecoveryPolicySpec) { s.Pods[1].Owner.Labels = `{"a": object.spec.n}` }, err: "spec.pods[1].owner.labels: "},
		"a label that would be two":                          {spec: `{"kind":"labelled","n":"x,y in (z)"}`, change: func(s *v1alpha1.RecoveryPolicySpec) { s.Pods[1].Owner.Labels = `{"a": object.spec.n}` }, err: "spec.pods[1].owner.labels: "},
		"a label whose key is none":                          {spec: `{"kind":"labelled","n":"!k"}`, change: func(s *v1alpha1.RecoveryPolicySpec) { s.Pods[1].Owner.Labels = `{object.spec.n: "v"}` }, err: "spec.pods[1].owner.labels: "},
		"a label that is empty":                              {spec: `{"kind":"labelled","n":""}`, change: func(s *v1alpha1.RecoveryPolicySpec) { s.Pods[1].Owner.Labels = `{"a": object.spec.n}` }, want: PodQuery{Namespace: "lab", Selector: "app=labelled", Owner: "box-uid", Labels: map[string]string{"a": ""}}},
		"the time ran out in when":                           {spec: `{}`, ctx: ended, err: "spec.pods[0].when: context canceled", cutShort: true},
		"the time ran out in labels": {spec: `{"kind":"labelled"}`, ctx: ended, change: func(s *v1alpha1.RecoveryPolicySpec) {
			s.Pods = s.Pods[1:2]
			s.Pods[0].When, s.Pods[0].Owner.Labels = "", `{"a": object.nope}`
		}, err: "spec.pods[0].owner.labels: context canceled", cutShort: true},
		"no annotation: no Pods":                           {spec: pool, want: named()},
		"an empty annotation: no Pods":                     {spec: pool, annotations: pods(""), want: named()},
		"an empty object: no Pods":                         {spec: pool, annotations: pods("{}"), want: named()},
		"another field: no Pods":                           {spec: pool, annotations: pods(`{"Pods":["a"]}`), want: named()},
		"null: no Pods":                                    {spec: pool, annotations: pods("null"), want: named()},
		"a field that is null: no Pods":                    {spec: pool, annotations: pods(`{"pods":null}`), want: named()},
		"an empty list: no Pods":                           {spec: pool, annotations: pods(`{"pods":[]}`), want: named()},
		"names that are there twice":                       {spec: pool, annotations: pods(`{"pods":["b","a","b","a","b"]}`), want: named("a", "b")},
		"a field that is there twice: the last":            {spec: pool, annotations: pods(`{"pods":["a"],"pods":["b"]}`), want: named("b")},
		"fields beside it":                                 {spec: pool, annotations: pods(`{"poolRef":"p","generation":3,"pods":["a"]}`), want: named("a")},
		"less those that it has given back":                {spec: pool, annotations: less(`{"pods":["a","b","c"]}`, `{"pods":["b","x"]}`), want: named("a", "c")},
		"it has given all back":                            {spec: pool, annotations: less(`{"pods":["a"]}`, `{"pods":["a"]}`), want: named()},
		"it has given back what it never had":              {spec: pool, annotations: less(``, `{"pods":["a"]}`), want: named()},
		"no JSON":                                          {spec: pool, annotations: pods(`a,b`), err: "the annotation pods is no JSON object"},
		"JSON that is cut off":                             {spec: pool, annotations: pods(`{"pods":["a"`), err: "the annotation pods is no JSON object"},
		"more than one JSON":                               {spec: pool, annotations: pods(`{"pods":["a"]}{}`), err: "the annotation pods is no JSON object"},
		"a list where an object should be":                 {spec: pool, annotations: pods(`["a"]`), err: "the annotation pods is no JSON object"},
		"a number where an object should be":               {spec: pool, annotations: pods(`7`), err: "the annotation pods is no JSON object"},
		"a text where a list should be":                    {spec: pool, annotations: pods(`{"pods":"a"}`), err: "the annotation pods holds no list of names"},
		"an object where a list should be":                 {spec: pool, annotations: pods(`{"pods":{"a":1}}`), err: "the annotation pods holds no list of names"},
		"a number where a name should be":                  {spec: pool, annotations: pods(`{"pods":["a",1]}`), err: "the annotation pods holds no list of names"},
		"a list where a name should be":                    {spec: pool, annotations: pods(`{"pods":[["a"]]}`), err: "the annotation pods holds no list of names"},
		"nesting without end":                              {spec: pool, annotations: pods(`{"pods":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`), err: "the annotation pods is no JSON object"},
		"what it has given back cannot be told":            {spec: pool, annotations: less(`{"pods":["a"]}`, `a`), err: "the annotation gone is no JSON object"},
		"a list without a field":                           {spec: `{"kind":"list"}`, annotations: pods(`["b","a"]`), change: func(s *v1alpha1.RecoveryPolicySpec) { s.Pods[2].Names.In.Field, s.Pods[2].Names.NotIn = "", nil }, want: named("a", "b")},
		"an object where a list without a field should be": {spec: pool, annotations: pods(`{"pods":["a"]}`), change: func(s *v1alpha1.RecoveryPolicySpec) { s.Pods[2].Names.In.Field = "" }, err: "the annotation pods holds no list of names"},
		"more names than may be read":                      {spec: pool, annotations: pods(`{"pods":` + manyNames("p", 257) + `}`), err: "the annotation pods names 257 pods, more than the limit of 256"},
		"more names than may be read, most given back":     {spec: pool, annotations: less(`{"pods":`+manyNames("p", 600)+`}`, `{"pods":`+strings.Replace(manyNames("p", 600), `"p-007",`, "", 1)+`}`), want: named("p-007")},
		"names that no Pod can have name none":             {spec: pool, annotations: pods(`{"pods":["","a","A","a/b","..","../a","a b","a%2fb","-a","a\u0000","` + strings.Repeat("a", 254) + `",null,"a.b"]}`), want: named("a", "a.b")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := compiledRecovery(t, func(s *v1alpha1.RecoveryPolicySpec) {
				threeSources(s)
				if c.change != nil {
					c.change(s)
				}
			})
			ctx := c.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			object := boxOf(t, c.spec, c.annotations)
			got, err := e.Query(ctx, object)
			same := err == nil || err.Error() == c.err || strings.HasSuffix(c.err, ": ") && strings.HasPrefix(err.Error(), c.err)
			if (err != nil) != (c.err != "") || !same || cutShort(err) != c.cutShort {
				t.Fatalf("got %v, want %s", err, c.err)
			}
			if err != nil {
				return
			}
			if got.Names == nil && c.want.Names != nil {
				t.Errorf("no names")
			}
			if len(got.Names) == 0 {
				got.Names = nil // as good as none
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
	if got, err := compiledRecovery(t, threeSources).Query(t.Context(), boxOf(t, pool, pods(`{"pods":`+manyNames("p", 256)+`}`))); err != nil || len(got.Names) != 256 {
		t.Errorf("256 names: %d, %v", len(got.Names), err)
	}
}

// TestAnExpensiveExpressionIsAProblemOfThePolicy: not of the time.
func TestAnExpensiveExpressionIsAProblemOfThePolicy(t *testing.T) {
	t.Parallel()
	const hundred = `[0,1,2,3,4,5,6,7,8,9].map(a, [0,1,2,3,4,5,6,7,8,9]).map(l, l.map(x, x))`
	e := compiledRecovery(t, func(s *v1alpha1.RecoveryPolicySpec) {
		s.Pods[0].When = "object.spec.list.all(a, object.spec.list.all(b, object.spec.list.all(c, " + hundred + ".size() > 0)))"
	})
	list := "[" + strings.Repeat("1,", 199) + "1]"
	_, err := e.Query(t.Context(), boxOf(t, `{"list":`+list+`}`, nil))
	if !errors.Is(err, expr.ErrCost) || cutShort(err) {
		t.Errorf("%v", err)
	}
}

func TestGuarded(t *testing.T) {
	t.Parallel()
	p, err := CompileRecoveryPolicy(inForce(builders.MakeRecoveryPolicy("boxes").Spec(func(s *v1alpha1.RecoveryPolicySpec) {
		s.ResumeInFlight = "object.spec.resume"
	}).Obj()))
	if err != nil {
		t.Fatal(err)
	}
	plain := recovery.Object{Kind: "BatchSandbox", Name: "a"}
	with := func(change func(*recovery.Object)) recovery.Object {
		o := plain
		change(&o)
		return o
	}
	for name, c := range map[string]struct {
		spec        string
		annotations map[string]string
		change      func(*unstructured.Unstructured)
		want        recovery.Object
	}{
		"a plain one":                  {spec: `{"resume":false}`, want: plain},
		"one that is resumed":          {spec: `{"resume":true}`, want: with(func(o *recovery.Object) { o.ResumeInFlight = true })},
		"one whose resume is not told": {spec: `{}`, want: with(func(o *recovery.Object) { o.ResumeProblem = "spec.resumeInFlight: no such key: resume" })},
		"one that is being deleted": {spec: `{"resume":false}`, change: func(u *unstructured.Unstructured) {
			now := metav1.Now()
			u.SetDeletionTimestamp(&now)
		}, want: with(func(o *recovery.Object) { o.Deleting = true })},
		"one that is allowed":            {spec: `{"resume":false}`, annotations: map[string]string{"belay.dev/allow-recovery": "true"}, want: with(func(o *recovery.Object) { o.Allowed = true })},
		"one that is allowed in capital": {spec: `{"resume":false}`, annotations: map[string]string{"belay.dev/allow-recovery": "True"}, want: plain},
		"one that is not allowed":        {spec: `{"resume":false}`, annotations: map[string]string{"belay.dev/allow-recovery": "false"}, want: plain},
		"one that is allowed by a label": {spec: `{"resume":false}`, change: func(u *unstructured.Unstructured) {
			u.SetLabels(map[string]string{"belay.dev/allow-recovery": "true"})
		}, want: plain},
		"annotations of another shape": {spec: `{"resume":false}`, change: func(u *unstructured.Unstructured) {
			u.Object["metadata"].(map[string]any)["annotations"] = []any{"belay.dev/allow-recovery"}
		}, want: plain},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := boxOf(t, c.spec, c.annotations)
			if c.change != nil {
				c.change(u)
			}
			if diff := cmp.Diff(c.want, p.Guarded(t.Context(), u)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// FuzzQuery has annotations of any text: names that Pods can have, sorted, each once and
// no more than may be read; or an error. Never a panic.
func FuzzQuery(f *testing.F) {
	for _, s := range []string{``, `{}`, `{"pods":["a"]}`, `{"pods":[null]}`, `["a"]`, `{"pods":["a","a",""]}`, `"`, "\xff", `{"pods":["\ud800"]}`} {
		f.Add(s, s)
	}
	e := compiledRecovery(f, threeSources)
	f.Fuzz(func(t *testing.T, in, out string) {
		q, err := e.Query(t.Context(), boxOf(t, `{"kind":"pool"}`, map[string]string{"pods": in, "gone": out}))
		if err != nil {
			if len(err.Error()) > 200 {
				t.Errorf("%d bytes: %v", len(err.Error()), err)
			}
			return
		}
		if len(q.Names) > maxNamed {
			t.Errorf("%d names", len(q.Names))
		}
		for i, name := range q.Names {
			if i > 0 && q.Names[i-1] >= name || name == "" || strings.ContainsAny(name, "/% \n") || len(name) > 253 {
				t.Errorf("%q", q.Names)
			}
		}
	})
}
