package registration

import (
	"errors"
	"flag"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/expr"
)

var update = flag.Bool("update", false, "write the golden registrations")

var service = Endpoint{ServiceNamespace: "belay-system", ServiceName: "belay-webhook", ServicePort: 443}

func putInForce(b *builders.OwnerPolicyBuilder, owner v1alpha1.ResolvedResource, dependents ...v1alpha1.ResolvedResource) *v1alpha1.OwnerPolicy {
	p := b.InForce(owner, dependents...).Obj()
	return p
}

func plain(name string) *v1alpha1.OwnerPolicy {
	return putInForce(builders.MakeOwnerPolicy(name), builders.Jobs(), builders.Secrets())
}

func named(name string) *v1alpha1.NamePolicy {
	return builders.MakeNamePolicy(name).Spec(func(s *v1alpha1.NamePolicySpec) {
		s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/managed-by": name}}
		s.MatchConditions = []v1alpha1.MatchCondition{{Name: "named", Expression: `object.metadata.name != ""`}}
	}).InForce(builders.Jobs(), builders.Pods()).Obj()
}

// full is a policy that says everything.
func full() *v1alpha1.OwnerPolicy {
	return putInForce(builders.MakeOwnerPolicy("full").Spec(func(s *v1alpha1.OwnerPolicySpec) {
		s.Dependents = append(s.Dependents, v1alpha1.Kind{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole"})
		s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/part-of": "otf"}}
		s.NamespaceSelector = &metav1.LabelSelector{
			MatchLabels:      map[string]string{"team": "a"},
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "stage", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"prod"}}},
		}
		s.MatchConditions = []v1alpha1.MatchCondition{{Name: "not-alice", Expression: `request.userInfo.username != "alice"`}, {Name: "named", Expression: `object.metadata.name != ""`}}
		s.WhenUnresolved, s.ClientReferences = v1alpha1.UnresolvedDeny, v1alpha1.LintDeny
		s.FailurePolicy, s.TimeoutSeconds = v1alpha1.FailureFail, 5
	}), builders.Jobs(), builders.Secrets(), builders.ClusterRoles())
}

// registrations are the cases of the golden files.
func registrations() map[string]struct {
	policies inForce
	settings settings
} {
	out := map[string]struct {
		policies inForce
		settings settings
	}{
		"one-policy.yaml":                  {inForce{owners: []*v1alpha1.OwnerPolicy{plain("otf")}}, settings{endpoint: service, ownNamespace: "belay-system"}},
		"policy-with-everything.yaml":      {inForce{owners: []*v1alpha1.OwnerPolicy{full()}}, settings{endpoint: service, ownNamespace: "belay-system"}},
		"two-policies-and-annotation.yaml": {inForce{owners: []*v1alpha1.OwnerPolicy{plain("spur"), plain("otf")}}, settings{endpoint: service, ownNamespace: "belay-system", annotation: true}},
		"names-after-owners.yaml": {inForce{
			names:  []*v1alpha1.NamePolicy{named("felis-restore")},
			owners: []*v1alpha1.OwnerPolicy{plain("otf")},
		}, settings{endpoint: service, ownNamespace: "belay-system", annotation: true}},
		"outside-the-cluster.yaml": {inForce{owners: []*v1alpha1.OwnerPolicy{plain("otf")}}, settings{endpoint: Endpoint{URL: "https://localhost:9443"}, ownNamespace: "belay-system", annotation: true}},
	}
	maps.Copy(out, sidecarRegistrations())
	return out
}

type rendered struct {
	Mutating   []admissionregistrationv1.MutatingWebhook   `json:"mutating"`
	Validating []admissionregistrationv1.ValidatingWebhook `json:"validating"`
}

func render(policies inForce, s settings) rendered {
	var out rendered
	mutating, validating := desired(policies, s)
	for _, e := range mutating {
		out.Mutating = append(out.Mutating, e.mutating(s.endpoint))
	}
	for _, e := range validating {
		out.Validating = append(out.Validating, e.validating(s.endpoint))
	}
	return out
}

func TestRegistrationsAreAsTheGoldenFiles(t *testing.T) {
	t.Parallel()
	for file, c := range registrations() {
		got, err := yaml.Marshal(render(c.policies, c.settings))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("testdata", file)
		if *update {
			if err := os.WriteFile(path, got, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is missing (-update writes it)", path)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s (-want +got; -update accepts it)\n%s", file, diff)
		}
	}
	entries, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if _, ok := registrations()[e.Name()]; !ok {
			t.Errorf("testdata/%s belongs to no case", e.Name())
		}
	}
}

// TestEveryEntryKeepsTheRules holds for all registrations what must hold for each.
func TestEveryEntryKeepsTheRules(t *testing.T) {
	t.Parallel()
	// What the API server itself compiles match conditions with, on the oldest server.
	compiler := plugincel.NewCompiler(environment.MustBaseEnvSet(version.MajorMinor(1, 33)))
	for file, c := range registrations() {
		r := render(c.policies, c.settings)
		all := r.Mutating
		for _, v := range r.Validating {
			all = append(all, asMutating(v))
		}
		for i, w := range all {
			name := file + " " + w.Name
			operation := admissionregistrationv1.Create
			if strings.HasSuffix(w.Name, v1alpha1.RecoveryEntryDomain) {
				operation = admissionregistrationv1.Update // of the status
			}
			for _, rule := range w.Rules {
				if diff := cmp.Diff([]admissionregistrationv1.OperationType{operation}, rule.Operations); diff != "" {
					t.Errorf("P03: %s: %s", name, diff)
				}
			}
			if !excludes(w.NamespaceSelector, "belay-system") || !excludes(w.NamespaceSelector, "kube-system") || !excludes(w.NamespaceSelector, "kube-node-lease") || !excludes(w.NamespaceSelector, "kube-public") {
				t.Errorf("P01: %s: %v", name, w.NamespaceSelector)
			}
			if !slices.ContainsFunc(w.NamespaceSelector.MatchExpressions, func(e metav1.LabelSelectorRequirement) bool {
				return e.Key == "belay.dev/mode" && e.Operator == metav1.LabelSelectorOpIn && slices.Equal(e.Values, []string{"enforce", "warn"})
			}) {
				t.Errorf("P02: %s is called for namespaces that did not opt in: %v", name, w.NamespaceSelector)
			}
			if *w.TimeoutSeconds < 1 || *w.TimeoutSeconds > 5 {
				t.Errorf("P07: %s: timeout %d", name, *w.TimeoutSeconds)
			}
			if *w.SideEffects != admissionregistrationv1.SideEffectClassNoneOnDryRun || *w.MatchPolicy != admissionregistrationv1.Equivalent {
				t.Errorf("%s: side effects %s, match policy %s", name, *w.SideEffects, *w.MatchPolicy)
			}
			if diff := cmp.Diff([]string{"v1"}, w.AdmissionReviewVersions); diff != "" {
				t.Errorf("P10: %s: %s", name, diff)
			}
			reinvocation := admissionregistrationv1.IfNeededReinvocationPolicy
			if strings.HasSuffix(w.Name, v1alpha1.NameEntryDomain) {
				reinvocation = admissionregistrationv1.NeverReinvocationPolicy
			}
			if i < len(r.Mutating) != (w.ReinvocationPolicy != nil && *w.ReinvocationPolicy == reinvocation) {
				t.Errorf("%s: reinvocation policy %v", name, w.ReinvocationPolicy)
			}
			for _, m := range w.MatchConditions {
				if strings.Contains(m.Expression, "namespaceObject") {
					t.Errorf("P19: %s: %s uses namespaceObject", name, m.Name)
				}
				if err := expr.CheckCondition(m.Name, m.Expression); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				condition := matchconditions.MatchCondition(m)
				if res := compiler.CompileCELExpression(&condition, plugincel.OptionalVariableDeclarations{HasAuthorizer: true}, environment.NewExpressions); res.Error != nil {
					t.Errorf("%s: the API server refuses %s: %v", name, m.Name, res.Error)
				}
			}
			if w.MatchConditions[0].Name != "belay.not-kube" {
				t.Errorf("P01: %s: no condition keeps kube-* out: %v", name, w.MatchConditions)
			}
		}
	}
}

func excludes(s *metav1.LabelSelector, namespace string) bool {
	return slices.ContainsFunc(s.MatchExpressions, func(e metav1.LabelSelectorRequirement) bool {
		return e.Key == "kubernetes.io/metadata.name" && e.Operator == metav1.LabelSelectorOpNotIn && slices.Contains(e.Values, namespace)
	})
}

func TestOnlyPoliciesThatDenyAreValidated(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec func(*v1alpha1.OwnerPolicySpec)
		want int
	}{
		"admits and warns":        {func(*v1alpha1.OwnerPolicySpec) {}, 0},
		"denies unresolved ones":  {func(s *v1alpha1.OwnerPolicySpec) { s.WhenUnresolved = v1alpha1.UnresolvedDeny }, 1},
		"denies wrong references": {func(s *v1alpha1.OwnerPolicySpec) { s.ClientReferences = v1alpha1.LintDeny }, 1},
		"ignores references":      {func(s *v1alpha1.OwnerPolicySpec) { s.ClientReferences = v1alpha1.LintIgnore }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := putInForce(builders.MakeOwnerPolicy("otf").Spec(c.spec), builders.Jobs(), builders.Secrets())
			mutating, validating := desired(inForce{owners: []*v1alpha1.OwnerPolicy{p}}, settings{endpoint: service})
			if len(mutating) != 1 || len(validating) != c.want {
				t.Errorf("%d mutating, %d validating", len(mutating), len(validating))
			}
		})
	}
}

func TestDesiredDoesNotDependOnTheOrderOfPolicies(t *testing.T) {
	t.Parallel()
	s := settings{endpoint: service, ownNamespace: "belay-system", annotation: true}
	one := render(inForce{owners: []*v1alpha1.OwnerPolicy{plain("a"), full(), plain("b")}}, s)
	two := render(inForce{owners: []*v1alpha1.OwnerPolicy{plain("b"), plain("a"), full()}}, s)
	if diff := cmp.Diff(one, two, cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
}

func TestDesiredLeavesThePolicyAsItIs(t *testing.T) {
	t.Parallel()
	p := full()
	before := p.Status.InForce.DeepCopy()
	r := render(inForce{owners: []*v1alpha1.OwnerPolicy{p}}, settings{endpoint: service, ownNamespace: "belay-system"})
	plan(config{}, r.Mutating, roots{}, time.Time{})
	if diff := cmp.Diff(before, p.Status.InForce); diff != "" {
		t.Error(diff)
	}
}
