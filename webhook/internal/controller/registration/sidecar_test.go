package registration

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/entries"
	"github.com/belay-dev/belay/webhook/internal/expr"
)

// witnessed is a RecoveryPolicy in force with this evidence, and a source of Pods for each
// selector.
func witnessed(name string, evidence v1alpha1.EvidenceSource, selectors ...metav1.LabelSelector) *v1alpha1.RecoveryPolicy {
	p := builders.MakeRecoveryPolicy(name).Spec(func(s *v1alpha1.RecoveryPolicySpec) {
		s.Evidence = evidence
		source := s.Pods[0]
		for i, selector := range selectors {
			source.Selector = selector
			if i == 0 {
				s.Pods = nil
			}
			s.Pods = append(s.Pods, source)
		}
	}).Obj()
	p.Generation = 1
	p.Status.InForce = inForceOf(p, v1alpha1.RecordSchema{Cleared: v1alpha1.ClearRemove})
	return p
}

func matching(pairs ...string) metav1.LabelSelector {
	s := metav1.LabelSelector{MatchLabels: map[string]string{}}
	for i := 0; i < len(pairs); i += 2 {
		s.MatchLabels[pairs[i]] = pairs[i+1]
	}
	return s
}

var sidecarSettings = settings{endpoint: service, ownNamespace: "belay-system", controllerAccount: "belay-controller", annotation: true, sidecarAnnotation: true}

// sidecarRegistrations are cases of the golden files.
func sidecarRegistrations() map[string]struct {
	policies inForce
	settings settings
} {
	inNamespaces := witnessed("namespaces", v1alpha1.EvidenceWitness, matching("app", "a"))
	inNamespaces.Status.InForce.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}
	inNamespaces.Status.InForce.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"of": "the guarded object"}}
	inNamespaces.Status.InForce.Spec.MatchConditions = []v1alpha1.MatchCondition{{Name: "of-the-guarded-object", Expression: `object.metadata.name != ""`}}
	return map[string]struct {
		policies inForce
		settings settings
	}{
		"sidecars-by-annotation.yaml": {inForce{}, settings{endpoint: service, ownNamespace: "belay-system", sidecarAnnotation: true}},
		"sidecars-after-all-others.yaml": {inForce{
			owners: []*v1alpha1.OwnerPolicy{plain("otf")}, names: []*v1alpha1.NamePolicy{named("felis")},
			recoveries: []*v1alpha1.RecoveryPolicy{
				witnessed("two", v1alpha1.EvidenceBoth, matching("app", "a"), matching("app", "b"), matching("app", "a")),
				witnessed("kubelet", v1alpha1.EvidenceKubelet), inNamespaces,
			},
		}, sidecarSettings},
	}
}

func namesOf(mutating []entry) []string {
	var out []string
	for _, e := range mutating {
		out = append(out, e.name)
	}
	return out
}

// TestWhichPodsGetSidecars, by whose entries.
func TestWhichPodsGetSidecars(t *testing.T) {
	t.Parallel()
	by := func(policies ...*v1alpha1.RecoveryPolicy) []string {
		mutating, validating := sidecarEntries(policies, settings{endpoint: service, ownNamespace: "belay-system"})
		if diff := cmp.Diff(namesOf(mutating), namesOf(validating)); diff != "" {
			t.Errorf("the phases differ\n%s", diff)
		}
		return namesOf(mutating)
	}
	a, b := matching("app", "a", "x", "y"), matching("app", "b")
	reordered := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "x", Operator: metav1.LabelSelectorOpExists}, {Key: "app", Operator: metav1.LabelSelectorOpIn, Values: []string{"a", "b"}}}}
	sorted := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: []string{"b", "a"}}, {Key: "x", Operator: metav1.LabelSelectorOpExists}}}
	for name, c := range map[string]struct {
		policy *v1alpha1.RecoveryPolicy
		want   []string
	}{
		"Witness":                     {witnessed("p", v1alpha1.EvidenceWitness), []string{"p.sidecar.belay.dev"}},
		"Both":                        {witnessed("p", v1alpha1.EvidenceBoth), []string{"p.sidecar.belay.dev"}},
		"Kubelet":                     {witnessed("p", v1alpha1.EvidenceKubelet), nil},
		"two selectors":               {witnessed("p", v1alpha1.EvidenceBoth, a, b), []string{"p.sidecar.belay.dev", "1.p.sidecar.belay.dev"}},
		"one twice":                   {witnessed("p", v1alpha1.EvidenceBoth, a, a), []string{"p.sidecar.belay.dev"}},
		"one twice, with one between": {witnessed("p", v1alpha1.EvidenceBoth, a, b, a, matching("c", "d")), []string{"p.sidecar.belay.dev", "1.p.sidecar.belay.dev", "2.p.sidecar.belay.dev"}},
		"one in another order":        {witnessed("p", v1alpha1.EvidenceBoth, reordered, sorted), []string{"p.sidecar.belay.dev"}},
		"the evidence of the last spec": {func() *v1alpha1.RecoveryPolicy {
			p := witnessed("p", v1alpha1.EvidenceKubelet)
			p.Spec.Evidence = v1alpha1.EvidenceBoth
			return p
		}(), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, by(c.policy)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestSidecarEntriesKeepTheirRules beside those of TestEveryEntryKeepsTheRules.
func TestSidecarEntriesKeepTheirRules(t *testing.T) {
	t.Parallel()
	c := sidecarRegistrations()["sidecars-after-all-others.yaml"]
	mutating, validating := desired(c.policies, c.settings)
	for phase, all := range map[string][]entry{"mutating": mutating, "validating": validating} {
		last := false
		names := map[string]bool{}
		for _, e := range all {
			is := strings.Contains(e.name, "sidecar")
			if last && !is {
				t.Errorf("%s: %s is called after sidecars", phase, e.name)
			}
			if last = is; !is {
				continue
			}
			if names[e.name] {
				t.Errorf("%s is there twice", e.name)
			}
			names[e.name] = true
			if !entries.Ours(e.name) || len(strings.Split(e.name, ".")) < 3 {
				t.Errorf("%s is not known by its name, or none that the API server takes", e.name)
			}
			if e.failurePolicy != admissionregistrationv1.Ignore || e.once || e.timeoutSeconds > 3 {
				t.Errorf("%s: %+v", e.name, e)
			}
			if slices.ContainsFunc(e.conditions, func(c admissionregistrationv1.MatchCondition) bool { return strings.HasPrefix(c.Name, "policy.") }) {
				t.Errorf("%s has conditions of the guarded object", e.name)
			}
			if !strings.HasPrefix(e.path, map[string]string{"mutating": "/mutate/sidecar", "validating": "/validate/sidecar"}[phase]) {
				t.Errorf("%s: %s", phase, e.path)
			}
		}
		if len(names) != 4 || !last {
			t.Errorf("%s: %v", phase, names)
		}
	}
}

// TestPodsThatAreAskedAbout: a mirror Pod never, and by annotation only one that asks.
func TestPodsThatAreAskedAbout(t *testing.T) {
	t.Parallel()
	type object = map[string]any
	annotated := func(pairs ...string) object {
		a := object{}
		for i := 0; i < len(pairs); i += 2 {
			a[pairs[i]] = pairs[i+1]
		}
		return object{"metadata": object{"name": "a", "annotations": a}, "spec": object{}}
	}
	mutating, _ := desired(inForce{recoveries: []*v1alpha1.RecoveryPolicy{witnessed("p", v1alpha1.EvidenceBoth)}}, sidecarSettings)
	byPolicy, byAnnotation := mutating[len(mutating)-2], mutating[len(mutating)-1]
	if byAnnotation.name != entries.SidecarAnnotation || byPolicy.name != "p.sidecar.belay.dev" {
		t.Fatalf("%v", namesOf(mutating))
	}
	// What the API server itself compiles match conditions with, on the oldest server.
	compiler := plugincel.NewCompiler(environment.MustBaseEnvSet(version.MajorMinor(1, 33)))
	for _, e := range []entry{byPolicy, byAnnotation} {
		for _, m := range e.conditions {
			condition := matchconditions.MatchCondition(m)
			if res := compiler.CompileCELExpression(&condition, plugincel.OptionalVariableDeclarations{HasAuthorizer: true}, environment.NewExpressions); res.Error != nil {
				t.Errorf("the API server refuses %s: %v", m.Name, res.Error)
			}
			if err := expr.CheckCondition(m.Name, m.Expression); err != nil {
				t.Error(err)
			}
		}
	}
	for name, c := range map[string]struct {
		pod                  object
		policy, byAnnotation bool
	}{
		"no annotations":                {object{"metadata": object{"name": "a"}}, true, false},
		"no metadata":                   {object{"spec": object{}}, true, false},
		"other annotations":             {annotated("a", "b"), true, false},
		"it asks":                       {annotated("belay.dev/sidecar", "inject"), true, true},
		"it declines":                   {annotated("belay.dev/sidecar", "skip"), true, false},
		"another value, to be told so":  {annotated("belay.dev/sidecar", "true"), true, true},
		"no value, to be told so":       {annotated("belay.dev/sidecar", ""), true, true},
		"C12: a mirror Pod":             {annotated("kubernetes.io/config.mirror", "x"), false, false},
		"C12: one without a value":      {annotated("kubernetes.io/config.mirror", ""), false, false},
		"C12: a mirror Pod that asks":   {annotated("kubernetes.io/config.mirror", "x", "belay.dev/sidecar", "inject"), false, false},
		"a static Pod's other marks":    {annotated("kubernetes.io/config.source", "file"), true, false},
		"a namespace of the system":     {object{"namespace": "kube-system"}, false, false},
		"the same, and it asks":         {object{"namespace": "kube-flannel", "metadata": annotated("belay.dev/sidecar", "inject")["metadata"]}, false, false},
		"a name that only begins so":    {object{"namespace": "kubeflow", "metadata": annotated("belay.dev/sidecar", "inject")["metadata"]}, true, true},
		"annotations that are no map":   {object{"metadata": object{"annotations": object{}}}, true, false},
		"a key that only looks like it": {annotated("belay.dev/sidecar.", "inject"), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for entry, want := range map[*entry]bool{&byPolicy: c.policy, &byAnnotation: c.byAnnotation} {
				got := true
				for _, m := range entry.conditions {
					got = got && evaluatedFor(t, m.Expression, c.pod)
				}
				if got != want {
					t.Errorf("%s: asked %t", entry.name, got)
				}
			}
		})
	}
}

// evaluatedFor is what the oldest supported API server makes of a condition for an object,
// which may say its namespace.
func evaluatedFor(t *testing.T, source string, object map[string]any) bool {
	t.Helper()
	set, err := environment.MustBaseEnvSet(version.MajorMinor(1, 33)).Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0),
		EnvOptions:        []cel.EnvOption{cel.Variable("object", cel.DynType), cel.Variable("request", cel.DynType)},
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
	namespace, _ := object["namespace"].(string)
	if namespace == "" {
		namespace = "lab"
	}
	out, _, err := p.Eval(map[string]any{"object": object, "request": map[string]any{"namespace": namespace}})
	if err != nil {
		t.Fatal(err)
	}
	return out.Value() == true
}

// TestWitnessedPoliciesAreRegistered by the reconciler, and their entries go with them.
func TestWitnessedPoliciesAreRegistered(t *testing.T) {
	t.Parallel()
	p := firstRecovery("opensandbox")
	p.Spec.Evidence = v1alpha1.EvidenceBoth
	b := setRecovery(t, p, crdOf(versionOf("v1alpha1")))
	b.reconcile()
	b.stands("opensandbox", "True Accepted", "True Registered", 1)
	want := []string{"opensandbox.recovery.belay.dev", "opensandbox.sidecar.belay.dev"}
	if diff := cmp.Diff([][]string{want, want}, [][]string{b.mutatingNames(), b.validating()}); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	writes := b.writes
	if b.reconcile(); b.writes != writes {
		t.Errorf("%d writes for nothing", b.writes-writes)
	}
	b.edit("opensandbox", 2, func(s *v1alpha1.RecoveryPolicySpec) { s.Evidence = v1alpha1.EvidenceKubelet })
	b.reconcile()
	if diff := cmp.Diff(want[:1], b.mutatingNames()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestAPolicyByWitnessWantsTheCollectorsRights on the guarded resource.
func TestAPolicyByWitnessWantsTheCollectorsRights(t *testing.T) {
	t.Parallel()
	for evidence, want := range map[v1alpha1.EvidenceSource]int{v1alpha1.EvidenceKubelet: 0, v1alpha1.EvidenceBoth: 2, v1alpha1.EvidenceWitness: 2} {
		b := setRecovery(t, crdOf(versionOf("v1alpha1")))
		p := firstRecovery("opensandbox")
		p.Spec.Evidence = evidence
		o := b.r.observeRecovery(t.Context(), p)
		n := 0
		for _, r := range o.readers {
			if r.resource == "batchsandboxes.sandbox.opensandbox.io" {
				n++
			}
		}
		if n != want {
			t.Errorf("%s: %d rights: %+v", evidence, n, o.readers)
		}
	}
}
