package recovered

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/plane"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// presetPolicy is the preset's policy as it is shipped.
var presetPolicy = sync.OnceValues(func() (*v1alpha1.RecoveryPolicy, error) {
	ctx, cancel := context.WithTimeout(context.Background(), stack.Bound)
	defer cancel()
	objects, err := stack.ReadManifests(ctx, filepath.Join(stack.Root(), "manifests", "presets", "opensandbox"))
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		if o.GetKind() == "RecoveryPolicy" {
			p := &v1alpha1.RecoveryPolicy{}
			return p, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, p)
		}
	}
	return nil, errors.New("the preset has no policy")
})

// ownGroup is the names of a kind like BatchSandbox that is a test's own.
func ownGroup(group string) opensandbox.Names {
	return opensandbox.Names{Group: group + ".recovered.test"}
}

// ownPolicy is the preset's policy for another kind.
func ownPolicy(t *testing.T, name string, n opensandbox.Names, change func(*v1alpha1.RecoveryPolicySpec)) *v1alpha1.RecoveryPolicy {
	t.Helper()
	preset, err := presetPolicy()
	must(t, err)
	p := &v1alpha1.RecoveryPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: *preset.Spec.DeepCopy()}
	gvk := n.GVK(opensandbox.Version)
	p.Spec.Resource = v1alpha1.Kind{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind}
	if change != nil {
		change(&p.Spec)
	}
	return p
}

// addPolicy creates a policy that goes with the test.
func addPolicy(ctx context.Context, t *testing.T, s *stack.Stack, p *v1alpha1.RecoveryPolicy) {
	t.Helper()
	must(t, s.Client.Create(ctx, p))
	stack.Cleanup(t, func(ctx context.Context) {
		_ = s.Client.Delete(ctx, &v1alpha1.RecoveryPolicy{ObjectMeta: metav1.ObjectMeta{Name: p.Name}})
	})
}

// addCRD installs a CRD that goes with the test, and waits until its kind is served.
func addCRD(ctx context.Context, t *testing.T, s *stack.Stack, crd *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	applyCRD(ctx, t, s, crd)
	served(ctx, t, s, crd)
}

func applyCRD(ctx context.Context, t *testing.T, s *stack.Stack, crd *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	must(t, s.ApplyCRD(ctx, crd))
	stack.Cleanup(t, func(ctx context.Context) {
		_ = s.Dynamic.Resource(crdResource).Delete(ctx, crd.Name, metav1.DeleteOptions{})
	})
}

func served(ctx context.Context, t *testing.T, s *stack.Stack, crd *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	stack.Eventually(ctx, t, crd.Name+" is served", func() error {
		_, err := s.Client.RESTMapper().RESTMapping(schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Spec.Names.Kind})
		return err
	})
}

var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// addRole lets belay-controller do with a kind what the preset lets it do with BatchSandboxes.
func addRole(ctx context.Context, t *testing.T, s *stack.Stack, n opensandbox.Names, change func(*rbacv1.ClusterRole)) {
	t.Helper()
	r := n.GVR(opensandbox.Version)
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "test-" + r.Group, Labels: map[string]string{"rbac.belay.dev/aggregate-to-recovery-driver": "true"}},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{r.Group}, Resources: []string{r.Resource}, Verbs: []string{"get", "list", "watch", "patch"}},
			{APIGroups: []string{r.Group}, Resources: []string{r.Resource + "/status"}, Verbs: []string{"patch"}},
		},
	}
	if change != nil {
		change(role)
	}
	must(t, s.Client.Create(ctx, role))
	stack.Cleanup(t, func(ctx context.Context) { _ = s.Client.Delete(ctx, role) })
}

// addWitnessRole lets belay-webhook watch a kind whose policy goes by what sidecars report.
func addWitnessRole(ctx context.Context, t *testing.T, s *stack.Stack, n opensandbox.Names) {
	t.Helper()
	r := n.GVR(opensandbox.Version)
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "test-witness-" + r.Group, Labels: map[string]string{"rbac.belay.dev/aggregate-to-recovery-reader": "true"}},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{r.Group}, Resources: []string{r.Resource}, Verbs: []string{"list", "watch"}}},
	}
	must(t, s.Client.Create(ctx, role))
	stack.Cleanup(t, func(ctx context.Context) { _ = s.Client.Delete(ctx, role) })
}

// ownKind installs a kind of a test's own with rights and a policy of the same name, and waits
// until it is guarded.
func ownKind(ctx context.Context, t *testing.T, s *stack.Stack, name string, crd opensandbox.CRDOptions, change func(*v1alpha1.RecoveryPolicySpec)) opensandbox.Names {
	t.Helper()
	crd.Names = ownGroup(name)
	if crd.Record == nil {
		crd.Record = &opensandbox.Record{}
	}
	addRole(ctx, t, s, crd.Names, nil)
	addCRD(ctx, t, s, opensandbox.CRD(crd))
	addPolicy(ctx, t, s, ownPolicy(t, name, crd.Names, change))
	inForce(ctx, t, s, name)
	return crd.Names
}

// inForce waits until a policy is registered, and the API server acts on it.
func inForce(ctx context.Context, t *testing.T, s *stack.Stack, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, stack.Bound)
	defer cancel()
	must(t, s.WaitRecoveryPolicy(ctx, name))
}

// judged waits until a policy is judged, and expects what came out of it. reason is empty
// where it is accepted.
func judged(ctx context.Context, t *testing.T, s *stack.Stack, name, reason string, parts ...string) {
	t.Helper()
	// Of a CRD or a role that came a moment ago belay may not have heard yet.
	passing := []string{v1alpha1.ReasonUnknownKind, v1alpha1.ReasonCheckFailed, v1alpha1.ReasonMissingPermission}
	stack.Eventually(ctx, t, name+" is judged", func() error {
		var p v1alpha1.RecoveryPolicy
		if err := s.Client.Get(ctx, client.ObjectKey{Name: name}, &p); err != nil {
			return err
		}
		c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionAccepted)
		if c == nil || c.ObservedGeneration != p.Generation || c.Reason != reason && slices.Contains(passing, c.Reason) {
			return fmt.Errorf("conditions %+v", p.Status.Conditions)
		}
		if want := cmp.Or(reason, v1alpha1.ReasonAccepted); c.Reason != want {
			t.Fatalf("reason %s, want %s: %s", c.Reason, want, c.Message)
		}
		for _, part := range parts {
			if !strings.Contains(c.Message, part) {
				t.Errorf("message %q does not say %q", c.Message, part)
			}
		}
		return nil
	})
	if reason == "" {
		inForce(ctx, t, s, name)
		return
	}
	notInForce(ctx, t, s, name, reason)
}

// policySays waits until a condition of a policy says this, with all the parts in its
// message.
func policySays(ctx context.Context, t *testing.T, s *stack.Stack, name, kind string, status metav1.ConditionStatus, reason string, parts ...string) {
	t.Helper()
	stack.Eventually(ctx, t, fmt.Sprintf("%s: condition %s is %s, %s", name, kind, status, reason), func() error {
		var p v1alpha1.RecoveryPolicy
		if err := s.Client.Get(ctx, client.ObjectKey{Name: name}, &p); err != nil {
			return err
		}
		c := meta.FindStatusCondition(p.Status.Conditions, kind)
		if c == nil || c.Status != status || c.Reason != reason || c.ObservedGeneration != p.Generation {
			return fmt.Errorf("conditions %+v", p.Status.Conditions)
		}
		for _, part := range parts {
			if !strings.Contains(c.Message, part) {
				return fmt.Errorf("message %q does not say %q", c.Message, part)
			}
		}
		return nil
	})
}

// notInForce expects that a policy is not accepted, is not in force, and is not registered.
func notInForce(ctx context.Context, t *testing.T, s *stack.Stack, name, reason string, parts ...string) {
	t.Helper()
	policySays(ctx, t, s, name, v1alpha1.ConditionAccepted, metav1.ConditionFalse, reason, parts...)
	policySays(ctx, t, s, name, v1alpha1.ConditionRegistered, metav1.ConditionFalse, v1alpha1.ReasonNotAccepted)
	var p v1alpha1.RecoveryPolicy
	must(t, s.Client.Get(ctx, client.ObjectKey{Name: name}, &p))
	if p.Status.InForce != nil {
		t.Errorf("policy %s: generation %d is in force", name, p.Status.InForce.Generation)
	}
	if m, v := entriesOf(ctx, t, s, name); m != nil || v != nil {
		t.Errorf("policy %s is registered: %+v %+v", name, m, v)
	}
}

// entriesOf are the webhook entries of a policy; nil for none.
func entriesOf(ctx context.Context, t *testing.T, s *stack.Stack, name string) (*admissionregistrationv1.MutatingWebhook, *admissionregistrationv1.ValidatingWebhook) {
	t.Helper()
	var mutating admissionregistrationv1.MutatingWebhookConfiguration
	var validating admissionregistrationv1.ValidatingWebhookConfiguration
	// Where there is nothing to register there may be no configuration yet.
	must(t, client.IgnoreNotFound(s.Client.Get(ctx, client.ObjectKey{Name: v1alpha1.ConfigurationName}, &mutating)))
	must(t, client.IgnoreNotFound(s.Client.Get(ctx, client.ObjectKey{Name: v1alpha1.ConfigurationName}, &validating)))
	var m *admissionregistrationv1.MutatingWebhook
	var v *admissionregistrationv1.ValidatingWebhook
	for i := range mutating.Webhooks {
		if mutating.Webhooks[i].Name == name+v1alpha1.RecoveryEntryDomain {
			m = &mutating.Webhooks[i]
		}
	}
	for i := range validating.Webhooks {
		if validating.Webhooks[i].Name == name+v1alpha1.RecoveryEntryDomain {
			v = &validating.Webhooks[i]
		}
	}
	return m, v
}

// boxes is a namespace with a controller of a generation, for BatchSandboxes or a kind of a
// test's own like it.
type boxes struct {
	*sandboxes
	names opensandbox.Names
	tries int
}

func boxesOf(ctx context.Context, t *testing.T, s *stack.Stack, n opensandbox.Names, g opensandbox.Generation, mode string) *boxes {
	t.Helper()
	return boxesIn(ctx, t, s, n, g, s.TestNamespace(ctx, t, "recovered", mode))
}

// boxesIn is boxesOf for a namespace that is there.
func boxesIn(ctx context.Context, t *testing.T, s *stack.Stack, n opensandbox.Names, g opensandbox.Generation, ns string) *boxes {
	t.Helper()
	for _, o := range opensandbox.Grant(ns, n) {
		if err := s.Client.Create(ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	cfg, err := s.Config(ctx, ns, opensandbox.Account)
	must(t, err)
	c, err := opensandbox.NewClient(cfg, g, n.GVK(opensandbox.Version))
	must(t, err)
	admin, err := opensandbox.NewClient(s.Plane.Config(), opensandbox.New, n.GVK(opensandbox.Version))
	must(t, err)
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, p := range append(s.Controllers(), s.Webhooks()...) {
			for line := range strings.Lines(p.Tail(20000)) {
				if strings.Contains(line, ns) {
					t.Logf("%s: %s", p.Name, strings.TrimSpace(line))
				}
			}
		}
	})
	return &boxes{names: n, sandboxes: &sandboxes{Controller: &opensandbox.Controller{Client: c, Namespace: ns, Generation: g}, t: t, s: s, admin: admin}}
}

// add creates a sandbox of one replica. It has no Pod and no status yet.
func (s *boxes) add(ctx context.Context, name string) *opensandbox.BatchSandbox {
	s.t.Helper()
	b := opensandbox.Sandbox(s.Namespace, name, 1)
	must(s.t, s.admin.Create(ctx, b))
	return b
}

// phase is an administrator's merge patch of a status: a phase, the counters that the schema
// requires, and more fields as JSON.
func (s *boxes) phase(ctx context.Context, name, phase string, fields ...string) error {
	b := &opensandbox.BatchSandbox{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: name}}
	return s.admin.Status().Patch(ctx, b, client.RawPatch(types.MergePatchType, statusOfPhase(phase, fields...)))
}

// statusOfPhase is a merge patch of a status.
func statusOfPhase(phase string, fields ...string) []byte {
	all := []string{fmt.Sprintf(`"phase":%q`, phase)}
	for _, c := range []string{"allocated", "ready", "replicas", "taskFailed", "taskPending", "taskRunning", "taskSucceed", "taskUnknown"} {
		if !strings.Contains(strings.Join(fields, ","), c) {
			all = append(all, fmt.Sprintf(`%q:0`, c))
		}
	}
	return []byte(`{"status":{` + strings.Join(append(all, fields...), ",") + `}}`)
}

// stored is the status of a sandbox as the API server has it, with nulls and unknown fields.
func (s *boxes) stored(ctx context.Context, name string) map[string]any {
	s.t.Helper()
	u, err := s.s.Dynamic.Resource(s.names.GVR(opensandbox.Version)).Namespace(s.Namespace).Get(ctx, name, metav1.GetOptions{})
	must(s.t, err)
	return statusOf(u)
}

// guarded says whether a recovery without a record is denied, and fails for every other
// answer.
func (s *boxes) guarded(ctx context.Context, name string) bool {
	s.t.Helper()
	s.add(ctx, name)
	must(s.t, s.phase(ctx, name, opensandbox.PhaseFailed))
	err := s.phase(ctx, name, opensandbox.PhaseSucceed)
	if err != nil {
		denied(s.t, err, 403, "failed without a record")
	}
	return err != nil
}

// becomesGuarded waits until the API server acts on what is registered, or not any more.
func (s *boxes) becomesGuarded(ctx context.Context, want bool) {
	s.t.Helper()
	stack.Eventually(ctx, s.t, fmt.Sprintf("guarded: %t", want), func() error {
		if s.tries++; s.guarded(ctx, fmt.Sprintf("try-%d", s.tries)) != want {
			return errors.New("not yet")
		}
		return nil
	})
}

// schemaField changes the schema of a field of the status.
func schemaField(v *apiextensionsv1.CustomResourceDefinitionVersion, name string, change func(*apiextensionsv1.JSONSchemaProps)) {
	status := v.Schema.OpenAPIV3Schema.Properties["status"]
	f := status.Properties[name]
	change(&f)
	status.Properties[name] = f
	v.Schema.OpenAPIV3Schema.Properties["status"] = status
}

// onRecord changes the schema of the record, and onPhase that of the phase.
func onRecord(change func(*apiextensionsv1.JSONSchemaProps)) func(*apiextensionsv1.CustomResourceDefinition) {
	return func(crd *apiextensionsv1.CustomResourceDefinition) {
		schemaField(&crd.Spec.Versions[0], "failedPodUIDs", change)
	}
}

func onPhase(change func(*apiextensionsv1.JSONSchemaProps)) func(*apiextensionsv1.CustomResourceDefinition) {
	return func(crd *apiextensionsv1.CustomResourceDefinition) {
		schemaField(&crd.Spec.Versions[0], "phase", change)
	}
}

// onCondition changes the schema of one field of the conditions.
func onCondition(name string, change func(*apiextensionsv1.JSONSchemaProps)) func(*apiextensionsv1.CustomResourceDefinition) {
	return func(crd *apiextensionsv1.CustomResourceDefinition) {
		schemaField(&crd.Spec.Versions[0], "conditions", func(c *apiextensionsv1.JSONSchemaProps) {
			f := c.Items.Schema.Properties[name]
			change(&f)
			c.Items.Schema.Properties[name] = f
		})
	}
}

func withoutValue(value string) func(*apiextensionsv1.JSONSchemaProps) {
	return func(p *apiextensionsv1.JSONSchemaProps) {
		p.Enum = slices.DeleteFunc(slices.Clone(p.Enum), func(e apiextensionsv1.JSON) bool { return string(e.Raw) == `"`+value+`"` })
	}
}

func listOf(of string) *apiextensionsv1.JSONSchemaPropsOrArray {
	return &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{Type: of}}
}

// TestACRDThatDoesNotCarryTheGuard: a policy says what its CRD lacks, and guards nothing.
func TestACRDThatDoesNotCarryTheGuard(t *testing.T) {
	t.Parallel()
	field := v1alpha1.ReasonUnsuitableField
	type row struct {
		crd    opensandbox.CRDOptions
		change func(*apiextensionsv1.CustomResourceDefinition)
		policy func(*v1alpha1.RecoveryPolicySpec)
		// reason is empty where the policy is accepted.
		reason string
		says   []string
	}
	rows := map[string]row{
		"S06 no status subresource": {
			crd: opensandbox.CRDOptions{NoStatus: true}, reason: v1alpha1.ReasonStatusSubresourceMissing,
			says: []string{"version v1alpha1: has no status subresource", "past the guard"},
		},
		"S06 no status subresource in the second version": {
			crd:    opensandbox.CRDOptions{Beta: &opensandbox.Beta{Record: &opensandbox.Record{}}},
			change: func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Spec.Versions[1].Subresources = nil },
			reason: v1alpha1.ReasonStatusSubresourceMissing, says: []string{"version v1beta1: has no status subresource"},
		},
		"no field for the record": {
			change: func(crd *apiextensionsv1.CustomResourceDefinition) {
				delete(crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"].Properties, "failedPodUIDs")
			},
			reason: v1alpha1.ReasonProvenanceFieldMissing, says: []string{"version v1alpha1: spec.recordPath: the schema has no field .status.failedPodUIDs", "type: array"},
		},
		"no field for the record in the second version that is served": {
			crd: opensandbox.CRDOptions{Beta: &opensandbox.Beta{}}, reason: v1alpha1.ReasonProvenanceFieldMissing, says: []string{"version v1beta1: spec.recordPath"},
		},
		"no field for the record in a version that is not served": {
			crd:    opensandbox.CRDOptions{Beta: &opensandbox.Beta{}},
			change: func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Spec.Versions[1].Served = false },
		},
		"the record is a string": {
			change: onRecord(func(p *apiextensionsv1.JSONSchemaProps) { p.Type, p.Items = "string", nil }),
			reason: field, says: []string{"spec.recordPath: .status.failedPodUIDs is of type string, and should be a list of strings"},
		},
		"the record is a list of numbers": {
			change: onRecord(func(p *apiextensionsv1.JSONSchemaProps) { p.Items = listOf("integer") }),
			reason: field, says: []string{"is a list of integer, and should be a list of strings"},
		},
		"the record allows some values only": {
			change: onRecord(func(p *apiextensionsv1.JSONSchemaProps) {
				p.Items.Schema.Enum = []apiextensionsv1.JSON{{Raw: []byte(`"a"`)}}
			}),
			reason: field, says: []string{".status.failedPodUIDs allows only some values"},
		},
		"the record has a pattern that no UID matches": {
			change: onRecord(func(p *apiextensionsv1.JSONSchemaProps) { p.Items.Schema.Pattern = "^pod-[a-z]+$" }),
			reason: field, says: []string{"spec.recordPath", ".status.failedPodUIDs", "pattern"},
		},
		"the record has a pattern that every UID matches": {
			change: onRecord(func(p *apiextensionsv1.JSONSchemaProps) { p.Items.Schema.Pattern = "^[0-9a-f-]{36}$" }),
		},
		"the record has a format that no UID has": {
			change: onRecord(func(p *apiextensionsv1.JSONSchemaProps) { p.Items.Schema.Format = "date" }),
			reason: field, says: []string{"spec.recordPath", ".status.failedPodUIDs", "format"},
		},
		"the record has the format of a UID": {
			change: onRecord(func(p *apiextensionsv1.JSONSchemaProps) { p.Items.Schema.Format = "uuid" }),
		},
		"the record's entries are too short for a UID": {
			change: onRecord(func(p *apiextensionsv1.JSONSchemaProps) { p.Items.Schema.MaxLength = new(int64(20)) }),
			reason: field, says: []string{"allows 20 characters an entry; a UID has 36"},
		},
		"the record's entries are longer than a UID": {
			change: onRecord(func(p *apiextensionsv1.JSONSchemaProps) { p.Items.Schema.MinLength = new(int64(40)) }),
			reason: field, says: []string{"wants 40 characters an entry; a UID has 36"},
		},
		"the record has room for nothing": {
			change: onRecord(func(p *apiextensionsv1.JSONSchemaProps) { p.MaxItems = new(int64(0)) }),
			reason: field, says: []string{"has room for nothing"},
		},
		"the record wants two entries, where one Pod may fail alone": {
			change: onRecord(func(p *apiextensionsv1.JSONSchemaProps) { p.MinItems = new(int64(2)) }),
			reason: field, says: []string{"spec.recordPath", ".status.failedPodUIDs", "2"},
		},
		"the record wants an entry and may be absent": {
			change: onRecord(func(p *apiextensionsv1.JSONSchemaProps) { p.MinItems = new(int64(1)) }),
		},
		"the record is required and wants an entry": {
			crd:    opensandbox.CRDOptions{Record: &opensandbox.Record{Required: true}},
			change: onRecord(func(p *apiextensionsv1.JSONSchemaProps) { p.MinItems = new(int64(1)) }),
			reason: field, says: []string{"can be neither null nor absent nor empty"},
		},
		"the record has rules of its own": {
			change: onRecord(func(p *apiextensionsv1.JSONSchemaProps) {
				p.XValidations = apiextensionsv1.ValidationRules{{Rule: "self.size() < 2"}}
				p.MaxItems = new(int64(5))
			}),
			reason: field, says: []string{"x-kubernetes-validations"},
		},
		"the record's entries have further schemas": {
			change: onRecord(func(p *apiextensionsv1.JSONSchemaProps) {
				p.Items.Schema.AllOf = []apiextensionsv1.JSONSchemaProps{{MaxLength: new(int64(10))}}
			}),
			reason: field, says: []string{"spec.recordPath", ".status.failedPodUIDs"},
		},
		"the phase is a number": {
			change: onPhase(func(p *apiextensionsv1.JSONSchemaProps) { p.Type, p.Enum = "integer", nil }),
			reason: field, says: []string{"spec.phasePath: .status.phase is of type integer, and should be a string"},
		},
		"there is no phase": {
			policy: func(s *v1alpha1.RecoveryPolicySpec) { s.PhasePath = ".status.state" },
			reason: field, says: []string{"spec.phasePath: the schema has no field .status.state"},
		},
		"the phases lack one that the policy calls failed": {
			change: onPhase(withoutValue("Failed")), reason: v1alpha1.ReasonUnknownPhase, says: []string{`spec.phases.failed: "Failed" is none of the values that the schema allows at .status.phase: Pending, Succeed`},
		},
		"the phases lack one that the policy calls recovered": {
			change: onPhase(withoutValue("Pending")), reason: v1alpha1.ReasonUnknownPhase, says: []string{`spec.phases.recovered: "Pending" is none of`},
		},
		"the phases lack one that the policy calls a lifecycle phase": {
			change: onPhase(withoutValue("Resuming")), reason: v1alpha1.ReasonUnknownPhase, says: []string{`spec.phases.lifecycle: "Resuming" is none of`},
		},
		"S27 the types of conditions lack the terminal one": {
			change: onCondition("type", withoutValue("ResumeFailed")), reason: v1alpha1.ReasonUnknownPhase, says: []string{`spec.terminal.type: "ResumeFailed" is none of the types of conditions`},
		},
		"S27 the types of conditions lack one that belay would write": {
			change: onCondition("type", withoutValue("Ready")), reason: v1alpha1.ReasonUnknownPhase, says: []string{`spec.recovered.setConditions: "Ready" is none of the types of conditions`},
		},
		"the conditions are an object": {
			policy: func(s *v1alpha1.RecoveryPolicySpec) { s.ConditionsPath = ".status.phase" },
			reason: field, says: []string{"spec.conditionsPath: .status.phase is of type string, and should be a list of conditions"},
		},
		"there are no conditions": {
			policy: func(s *v1alpha1.RecoveryPolicySpec) { s.ConditionsPath = ".status.states" },
			reason: field, says: []string{"spec.conditionsPath: the schema has no field .status.states"},
		},
		"the objects are in no namespace": {
			change: func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Spec.Scope = apiextensionsv1.ClusterScoped },
			reason: v1alpha1.ReasonScopeMismatch, says: []string{"BatchSandbox is cluster-scoped"},
		},
	}
	// All of them at once: what takes time is the API server's and belay's.
	ctx := stack.TestContext(t)
	crds := map[string]*apiextensionsv1.CustomResourceDefinition{}
	for name, c := range rows {
		o := c.crd
		o.Names = ownGroup(groupOf(name))
		if o.Record == nil {
			o.Record = &opensandbox.Record{}
		}
		crds[name] = opensandbox.CRD(o)
		if c.change != nil {
			c.change(crds[name])
		}
		addRole(ctx, t, shared, o.Names, nil)
		applyCRD(ctx, t, shared, crds[name])
	}
	for name, c := range rows {
		served(ctx, t, shared, crds[name])
		addPolicy(ctx, t, shared, ownPolicy(t, groupOf(name), ownGroup(groupOf(name)), c.policy))
	}
	for name, c := range rows {
		t.Run(name, func(t *testing.T) { judged(ctx, t, shared, groupOf(name), c.reason, c.says...) })
	}
}

// groupOf makes a DNS label of a sentence.
func groupOf(name string) string {
	words := strings.Fields(strings.ToLower(strings.NewReplacer(",", "", "'", "", "*", "any", "/", "-").Replace(name)))
	s := strings.Join(words, "-")
	return strings.Trim(s[:min(len(s), 50)], "-")
}

// TestAPolicyThatMeansNothing: what is wrong with a spec is said with its place. The API
// server refuses what does not go together; the rest is said in the policy's status.
func TestAPolicyThatMeansNothing(t *testing.T) {
	t.Parallel()
	type spec = v1alpha1.RecoveryPolicySpec
	type row struct {
		change func(*spec)
		// reason is empty where the API server refuses the policy.
		reason string
		says   []string
	}
	rows := map[string]row{
		"an expression that does not parse": {
			change: func(s *spec) { s.ResumeInFlight = "object.spec.pause ==\n  &&" },
			reason: v1alpha1.ReasonInvalidExpression, says: []string{"spec.resumeInFlight: line 2, column 3"},
		},
		"an expression of another type": {
			change: func(s *spec) { s.Pods[0].When = `"yes"` },
			reason: v1alpha1.ReasonInvalidExpression, says: []string{"spec.pods[0].when: line 1, column 1: gives string, but must give true or false"},
		},
		"an expression about what it does not see": {
			change: func(s *spec) { s.Pods[0].When = "request.operation == 'UPDATE'" },
			reason: v1alpha1.ReasonInvalidExpression, says: []string{"spec.pods[0].when", "undeclared reference to 'request'"},
		},
		"labels that are no map": {
			change: func(s *spec) { s.Pods[0].Owner.Labels = `"a=b"` },
			reason: v1alpha1.ReasonInvalidExpression, says: []string{"spec.pods[0].owner.labels: line 1, column 1"},
		},
		"a condition that does not compile": {
			change: func(s *spec) {
				s.Recover, s.Recovered = v1alpha1.RecoverNever, nil
				s.MatchConditions = []v1alpha1.MatchCondition{{Name: "odd", Expression: "object.spec +"}}
			},
			reason: v1alpha1.ReasonInvalidExpression, says: []string{"spec.matchConditions[0].expression"},
		},
		"a selector of Pods that means nothing": {
			change: func(s *spec) {
				s.Pods[1].Selector = metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "In"}}}
			},
			reason: v1alpha1.ReasonInvalidSelector, says: []string{"spec.pods[1].selector.matchExpressions[0].values"},
		},
		"a selector of objects that means nothing": {
			change: func(s *spec) { s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a b": "c"}} },
			reason: v1alpha1.ReasonInvalidSelector, says: []string{"spec.selector.matchLabels"},
		},
		"a selector of namespaces that means nothing": {
			change: func(s *spec) {
				s.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "not/a/value"}}
			},
			reason: v1alpha1.ReasonInvalidSelector, says: []string{"spec.namespaceSelector.matchLabels"},
		},
		"a kind that is not there": {
			change: func(s *spec) { s.Resource.Kind = "Sandcastle" },
			reason: v1alpha1.ReasonUnknownKind, says: []string{`spec.resource`, `"Sandcastle"`, "install its CRD"},
		},
		"a version that is not there": {
			change: func(s *spec) { s.Resource.APIVersion = "sandbox.opensandbox.io/v9" },
			reason: v1alpha1.ReasonUnknownKind, says: []string{"spec.resource", `"sandbox.opensandbox.io/v9"`},
		},
		"a kind that is no custom resource": {
			change: func(s *spec) { s.Resource = v1alpha1.Kind{APIVersion: "apps/v1", Kind: "Deployment"} },
			reason: v1alpha1.ReasonUnknownKind, says: []string{"spec.resource: there is no CRD deployments.apps", "name a custom resource"},
		},
		"a core kind": {
			change: func(s *spec) { s.Resource = v1alpha1.Kind{APIVersion: "v1", Kind: "Pod"} },
			reason: v1alpha1.ReasonUnknownKind, says: []string{"spec.resource: there is no CRD pods", "name a custom resource"},
		},
		"a kind that must never wait for a webhook": {
			change: func(s *spec) { s.Resource = v1alpha1.Kind{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"} },
			reason: v1alpha1.ReasonForbiddenKind, says: []string{"spec.resource: Lease must never wait"},
		},
		"belay's own kind": {
			change: func(s *spec) { s.Resource = v1alpha1.Kind{APIVersion: "belay.dev/v1alpha1", Kind: "Anchor"} },
			says:   []string{"belay's own kinds cannot be guarded by it"},
		},
		"a phase that is failed and recovered":   {change: func(s *spec) { s.Phases.Recovered = append(s.Phases.Recovered, "Failed") }, says: []string{"cannot be both failed and recovered"}},
		"a lifecycle phase that is failed":       {change: func(s *spec) { s.Phases.Lifecycle = append(s.Phases.Lifecycle, "Failed") }, says: []string{"neither failed nor recovered"}},
		"a replacing phase that is no lifecycle": {change: func(s *spec) { s.Phases.ReplacesPods = []v1alpha1.Phase{"Succeed"} }, says: []string{"must be among lifecycle"}},
		"a phase to write that is not recovered": {change: func(s *spec) { s.Recovered.Phase = "Paused" }, says: []string{"must be one of phases.recovered"}},
		"nothing to write":                       {change: func(s *spec) { s.Recovered = nil }, says: []string{"needs recovered"}},
		"a terminal condition without a list":    {change: func(s *spec) { s.ConditionsPath = "" }, says: []string{"terminal needs conditionsPath"}},
		"conditions for the API server, and a driver that cannot evaluate them": {
			change: func(s *spec) { s.MatchConditions = []v1alpha1.MatchCondition{{Name: "all", Expression: "true"}} },
			says:   []string{"does not go with matchConditions"},
		},
		"a record outside of the status":  {change: func(s *spec) { s.RecordPath = ".metadata.annotations" }, says: []string{"spec.recordPath"}},
		"every Pod of the cluster":        {change: func(s *spec) { s.Pods[0].Selector = metav1.LabelSelector{} }, says: []string{"must not be empty"}},
		"Pods by owner and by name":       {change: func(s *spec) { s.Pods[1].Owner = &v1alpha1.PodsByOwner{} }, says: []string{"exactly one of owner and names"}},
		"a report that is fresh for ever": {change: func(s *spec) { s.WitnessFreshFor.Duration = 1 << 50 }, says: []string{"between 5s and 10m"}},
	}
	ctx := stack.TestContext(t)
	for name, c := range rows {
		if c.reason != "" {
			addPolicy(ctx, t, shared, ownPolicy(t, groupOf(name), opensandbox.Names{}, c.change))
		}
	}
	for name, c := range rows {
		t.Run(name, func(t *testing.T) {
			if c.reason != "" {
				judged(ctx, t, shared, groupOf(name), c.reason, c.says...)
				return
			}
			p := ownPolicy(t, groupOf(name), opensandbox.Names{}, c.change)
			err := shared.Client.Create(ctx, p)
			if err == nil {
				_ = shared.Client.Delete(ctx, p)
			}
			denied(t, err, 422, c.says...)
		})
	}
}

// TestPoliciesFollow is what becomes of policies while CRDs, roles and other policies come, go
// and change. Its parts mostly wait.
func TestPoliciesFollow(t *testing.T) {
	t.Parallel()
	atOnce(t, map[string]func(*testing.T){
		"a CRD that comes later":                                       policyComesFirst,
		"a field that comes and goes":                                  fieldComesAndGoes,
		"the schema of the record is followed":                         recordFollowed,
		"one resource has one policy":                                  onePolicy,
		"a bad change leaves the guard as it was":                      badChange,
		"a deleted policy lets go":                                     deletedPolicy,
		"missing rights are named":                                     missingRights,
		"the CRD patch goes into no other version":                     patchOfAnotherVersion,
		"S06 without the status subresource nothing is guarded":        withoutSubresource,
		"S06 the status subresource goes while the policy is in force": subresourceGoes,
		"S04 S07 what concerns the guard":                              whatConcerns,
	})
}

// withoutSubresource: a status that travels with the object
// itself goes past every guard, and belay does not pretend otherwise (S06).
func withoutSubresource(t *testing.T) {
	ctx := stack.TestContext(t)
	n := ownGroup("no-status")
	addRole(ctx, t, shared, n, nil)
	addCRD(ctx, t, shared, opensandbox.CRD(opensandbox.CRDOptions{Names: n, Record: &opensandbox.Record{}, NoStatus: true}))
	addPolicy(ctx, t, shared, ownPolicy(t, "no-status", n, nil))
	notInForce(ctx, t, shared, "no-status", v1alpha1.ReasonStatusSubresourceMissing, "subresources: {status: {}}")
	s := boxesOf(ctx, t, shared, n, opensandbox.New, v1alpha1.ModeEnforce)
	b := s.add(ctx, "box")
	if err := s.phase(ctx, "box", opensandbox.PhaseFailed); !apierrors.IsNotFound(err) {
		t.Errorf("a write to a subresource that is not there: %v", err)
	}
	for _, phase := range []string{opensandbox.PhaseFailed, opensandbox.PhaseSucceed} {
		must(t, s.admin.Patch(ctx, b, client.RawPatch(types.MergePatchType, statusOfPhase(phase))))
		s.wantPhase(ctx, "box", phase)
	}
	for _, e := range auditLog(t, shared, s.Namespace) {
		if len(e.recovery()) > 0 {
			t.Errorf("%s %s: belay was called: %v", e.Verb, e.ObjectRef.Subresource, e.Annotations)
		}
	}
}

// subresourceGoes: an upgrade of the CRD takes the subresource away, and with it the guard.
func subresourceGoes(t *testing.T) {
	ctx := stack.TestContext(t)
	n := ownKind(ctx, t, shared, "goes", opensandbox.CRDOptions{}, nil)
	must(t, shared.ApplyCRD(ctx, opensandbox.CRD(opensandbox.CRDOptions{Names: n, Record: &opensandbox.Record{}, NoStatus: true})))
	notInForce(ctx, t, shared, "goes", v1alpha1.ReasonStatusSubresourceMissing, "version v1alpha1")
	must(t, shared.ApplyCRD(ctx, opensandbox.CRD(opensandbox.CRDOptions{Names: n, Record: &opensandbox.Record{}})))
	inForce(ctx, t, shared, "goes")
}

// policyComesFirst: without a restart and without being touched.
func policyComesFirst(t *testing.T) {
	ctx := stack.TestContext(t)
	n := ownGroup("comes-late")
	addRole(ctx, t, shared, n, nil)
	addPolicy(ctx, t, shared, ownPolicy(t, "comes-late", n, nil))
	notInForce(ctx, t, shared, "comes-late", v1alpha1.ReasonUnknownKind, "install its CRD")
	addCRD(ctx, t, shared, opensandbox.CRD(opensandbox.CRDOptions{Names: n, Record: &opensandbox.Record{}}))
	inForce(ctx, t, shared, "comes-late")
	s := boxesOf(ctx, t, shared, n, opensandbox.New, v1alpha1.ModeEnforce)
	if !s.guarded(ctx, "box") {
		t.Error("it is registered, and guards nothing")
	}
}

// fieldComesAndGoes: OpenSandbox's CRD of a release without the field, patched as the
// preset says by the real kubectl, overwritten by an upgrade, and patched again. The guard
// comes and goes with the field, is never a half one, and says so.
func fieldComesAndGoes(t *testing.T) {
	ctx := stack.TestContext(t)
	n := ownGroup("comes-and-goes")
	crd := opensandbox.CRD(opensandbox.CRDOptions{Names: n})
	addRole(ctx, t, shared, n, nil)
	addCRD(ctx, t, shared, crd)
	addPolicy(ctx, t, shared, ownPolicy(t, "comes-and-goes", n, nil))
	s := boxesOf(ctx, t, shared, n, opensandbox.Old, v1alpha1.ModeEnforce)
	for round := range 2 {
		notInForce(ctx, t, shared, "comes-and-goes", v1alpha1.ReasonProvenanceFieldMissing, "version v1alpha1", "upgrade the CRD, or add the field")
		s.becomesGuarded(ctx, false)

		kubectl(ctx, t, shared, "patch", "crd", crd.Name, "--type=json", "--patch-file="+crdPatch)
		inForce(ctx, t, shared, "comes-and-goes")
		s.becomesGuarded(ctx, true)
		name := fmt.Sprintf("box-%d", round)
		pods := s.start(ctx, name, 1)
		must(t, opensandbox.Crash(ctx, s.admin, pods[0], "CrashLoopBackOff"))
		must(t, s.Reconcile(ctx, name))
		if diff := gocmp.Diff(uids(pods[0]), s.recordOf(ctx, name)); diff != "" {
			t.Fatalf("record (-want +got):\n%s", diff)
		}
		must(t, opensandbox.Ready(ctx, s.admin, pods[0]))
		s.becomes(ctx, name, opensandbox.PhaseSucceed)

		// An upgrade that brings the CRD as the release has it.
		stack.Eventually(ctx, t, "the field is gone", func() error {
			live, err := shared.Dynamic.Resource(crdResource).Get(ctx, crd.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			versions, _, _ := unstructured.NestedSlice(live.Object, "spec", "versions")
			for i := range versions {
				unstructured.RemoveNestedField(versions[i].(map[string]any), "schema", "openAPIV3Schema", "properties", "status", "properties", "failedPodUIDs")
			}
			must(t, unstructured.SetNestedSlice(live.Object, versions, "spec", "versions"))
			_, err = shared.Dynamic.Resource(crdResource).Update(ctx, live, metav1.UpdateOptions{})
			return err
		})
	}
	notInForce(ctx, t, shared, "comes-and-goes", v1alpha1.ReasonProvenanceFieldMissing)
	s.becomesGuarded(ctx, false)
}

var crdPatch = filepath.Join(stack.Root(), "manifests", "presets", "opensandbox", "crd-patch.yaml")

// patchOfAnotherVersion: where the first version is another one, it is
// refused as a whole.
func patchOfAnotherVersion(t *testing.T) {
	ctx := stack.TestContext(t)
	crd := opensandbox.CRD(opensandbox.CRDOptions{Names: ownGroup("other-version"), Beta: &opensandbox.Beta{}})
	slices.Reverse(crd.Spec.Versions)
	addCRD(ctx, t, shared, crd)
	before, err := shared.Dynamic.Resource(crdResource).Get(ctx, crd.Name, metav1.GetOptions{})
	must(t, err)
	if out, err := kubectlCommand(ctx, t, shared, "patch", "crd", crd.Name, "--type=json", "--patch-file="+crdPatch).CombinedOutput(); err == nil {
		t.Errorf("it was applied: %s", out)
	}
	after, err := shared.Dynamic.Resource(crdResource).Get(ctx, crd.Name, metav1.GetOptions{})
	must(t, err)
	if diff := gocmp.Diff(before.Object["spec"], after.Object["spec"]); diff != "" {
		t.Errorf("the CRD changed (-before +after):\n%s", diff)
	}
}

// kubectl runs the real one, as an administrator.
func kubectl(ctx context.Context, t *testing.T, s *stack.Stack, args ...string) {
	t.Helper()
	if out, err := kubectlCommand(ctx, t, s, args...).CombinedOutput(); err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func kubectlCommand(ctx context.Context, t *testing.T, s *stack.Stack, args ...string) *exec.Cmd {
	t.Helper()
	path, err := plane.Kubectl(ctx, t.Output())
	must(t, err)
	dir := t.TempDir()
	cmd := exec.CommandContext(ctx, path, append([]string{"--kubeconfig=" + s.Plane.Kubeconfig(), "--cache-dir=" + dir}, args...)...)
	cmd.Env = append(cmd.Environ(), "HOME="+dir)
	return cmd
}

// recordFollowed: what becomes of a record that is cleared follows the
// CRD while the policy is in force, by the guard and by belay itself.
func recordFollowed(t *testing.T) {
	ctx := stack.TestContext(t)
	n := ownKind(ctx, t, shared, "followed", opensandbox.CRDOptions{}, func(s *v1alpha1.RecoveryPolicySpec) { s.Recover = v1alpha1.RecoverNever })
	s := boxesOf(ctx, t, shared, n, opensandbox.New, v1alpha1.ModeEnforce)
	absent := "absent"
	for i, c := range []struct {
		name   string
		record opensandbox.Record
		change func(*apiextensionsv1.JSONSchemaProps)
		auto   bool
		want   v1alpha1.RecordSchema
		// left is what is stored after a recovery.
		left any
	}{
		{name: "it may be absent", want: v1alpha1.RecordSchema{Cleared: v1alpha1.ClearRemove}, left: absent},
		{name: "it may be null", record: opensandbox.Record{Nullable: true}, want: v1alpha1.RecordSchema{Cleared: v1alpha1.ClearNull}, left: nil},
		{name: "it is required", record: opensandbox.Record{Required: true}, want: v1alpha1.RecordSchema{Cleared: v1alpha1.ClearEmpty, Required: true}, left: []any{}},
		{name: "it has a default", record: opensandbox.Record{Default: `["from-the-schema"]`}, want: v1alpha1.RecordSchema{Cleared: v1alpha1.ClearEmpty}, left: []any{}},
		{
			name: "it is bounded", change: func(p *apiextensionsv1.JSONSchemaProps) { p.MaxItems = new(int64(7)) },
			want: v1alpha1.RecordSchema{Cleared: v1alpha1.ClearRemove, MaxItems: 7}, left: absent,
		},
		{name: "belay brings it back, and it is required", auto: true, record: opensandbox.Record{Required: true}, want: v1alpha1.RecordSchema{Cleared: v1alpha1.ClearEmpty, Required: true}, left: []any{}},
		{name: "belay brings it back, and it may be null", auto: true, record: opensandbox.Record{Nullable: true}, want: v1alpha1.RecordSchema{Cleared: v1alpha1.ClearNull}, left: absent},
	} {
		crd := opensandbox.CRD(opensandbox.CRDOptions{Names: n, Record: &c.record})
		if c.change != nil {
			schemaField(&crd.Spec.Versions[0], "failedPodUIDs", c.change)
		}
		must(t, shared.ApplyCRD(ctx, crd))
		if c.auto {
			must(t, shared.Client.Patch(ctx, &v1alpha1.RecoveryPolicy{ObjectMeta: metav1.ObjectMeta{Name: "followed"}}, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"recover":"Auto"}}`))))
		}
		stack.Eventually(ctx, t, c.name, func() error {
			var p v1alpha1.RecoveryPolicy
			if err := shared.Client.Get(ctx, client.ObjectKey{Name: "followed"}, &p); err != nil {
				return err
			}
			if p.Status.InForce == nil {
				return fmt.Errorf("not in force: %+v", p.Status.Conditions)
			}
			if diff := gocmp.Diff(c.want, p.Status.InForce.Record); diff != "" {
				return fmt.Errorf("(-want +got):\n%s", diff)
			}
			return nil
		})
		inForce(ctx, t, shared, "followed")

		name := fmt.Sprintf("box-%d", i)
		s.add(ctx, name)
		must(t, s.Scale(ctx, name))
		pod := s.pods(ctx, name)[0]
		must(t, opensandbox.Crash(ctx, s.admin, pod, "CrashLoopBackOff"))
		// A CRD is stored a moment before its new schema is what requests are judged by.
		stack.Eventually(ctx, t, c.name+": it fails", func() error {
			must(t, s.phase(ctx, name, opensandbox.PhasePending, `"failedPodUIDs":[]`))
			return s.phase(ctx, name, opensandbox.PhaseFailed)
		})
		if diff := gocmp.Diff(uids(pod), s.recordOf(ctx, name)); diff != "" {
			t.Fatalf("%s: record (-want +got):\n%s", c.name, diff)
		}
		must(t, opensandbox.Ready(ctx, s.admin, pod))
		if !c.auto {
			must(t, s.phase(ctx, name, opensandbox.PhaseSucceed))
		}
		s.becomes(ctx, name, opensandbox.PhaseSucceed)
		left, there := s.stored(ctx, name)["failedPodUIDs"]
		if !there {
			left = absent
		}
		if diff := gocmp.Diff(c.left, left); diff != "" {
			t.Errorf("%s: what is left of the record (-want +got):\n%s", c.name, diff)
		}
	}
}

// onePolicy: an object has one record, so that the second policy about its
// resource is refused, whichever version it names, until the first is gone.
func onePolicy(t *testing.T) {
	ctx := stack.TestContext(t)
	second := ownPolicy(t, "second-opensandbox", opensandbox.Names{}, nil)
	addPolicy(ctx, t, shared, second)
	notInForce(ctx, t, shared, second.Name, v1alpha1.ReasonOverlap, `spec.resource: RecoveryPolicy "opensandbox" guards batchsandboxes already`)

	n := ownKind(ctx, t, shared, "first", opensandbox.CRDOptions{Beta: &opensandbox.Beta{Record: &opensandbox.Record{}}}, nil)
	other := ownPolicy(t, "other", n, func(s *v1alpha1.RecoveryPolicySpec) {
		s.Resource.APIVersion = n.GVK(opensandbox.BetaVersion).GroupVersion().String()
	})
	addPolicy(ctx, t, shared, other)
	notInForce(ctx, t, shared, "other", v1alpha1.ReasonOverlap, `RecoveryPolicy "first" guards`)
	policySays(ctx, t, shared, "first", v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
	must(t, shared.Client.Delete(ctx, &v1alpha1.RecoveryPolicy{ObjectMeta: metav1.ObjectMeta{Name: "first"}}))
	inForce(ctx, t, shared, "other")
	stack.Eventually(ctx, t, "the policy that was deleted is not registered any more", func() error {
		if m, v := entriesOf(ctx, t, shared, "first"); m != nil || v != nil {
			return errors.New("it is")
		}
		return nil
	})

	// Of two that come at once one is accepted.
	twins := ownGroup("twins")
	addRole(ctx, t, shared, twins, nil)
	addCRD(ctx, t, shared, opensandbox.CRD(opensandbox.CRDOptions{Names: twins, Record: &opensandbox.Record{}}))
	var both sync.WaitGroup
	for _, name := range []string{"twin-a", "twin-b"} {
		p := ownPolicy(t, name, twins, nil)
		stack.Cleanup(t, func(ctx context.Context) { _ = shared.Client.Delete(ctx, p) })
		both.Go(func() {
			if err := shared.Client.Create(ctx, p.DeepCopy()); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	stack.Eventually(ctx, t, "one of the twins is in force", func() error {
		accepted, overlaps := 0, 0
		for _, name := range []string{"twin-a", "twin-b"} {
			var p v1alpha1.RecoveryPolicy
			if err := shared.Client.Get(ctx, client.ObjectKey{Name: name}, &p); err != nil {
				return err
			}
			switch c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionAccepted); {
			case c == nil:
			case c.Status == metav1.ConditionTrue:
				accepted++
			case c.Reason == v1alpha1.ReasonOverlap:
				overlaps++
			}
		}
		if accepted > 1 {
			t.Fatal("both are in force")
		}
		if accepted+overlaps < 2 {
			return fmt.Errorf("%d accepted, %d refused", accepted, overlaps)
		}
		return nil
	})
}

// badChange: the last spec that was accepted goes on working.
func badChange(t *testing.T) {
	ctx := stack.TestContext(t)
	n := ownKind(ctx, t, shared, "bad-change", opensandbox.CRDOptions{}, nil)
	s := boxesOf(ctx, t, shared, n, opensandbox.New, v1alpha1.ModeEnforce)
	bad := []byte(`{"spec":{"resumeInFlight":"object.spec.pause +"}}`)
	must(t, shared.Client.Patch(ctx, &v1alpha1.RecoveryPolicy{ObjectMeta: metav1.ObjectMeta{Name: "bad-change"}}, client.RawPatch(types.MergePatchType, bad)))
	policySays(ctx, t, shared, "bad-change", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalidExpression, "spec.resumeInFlight")
	policySays(ctx, t, shared, "bad-change", v1alpha1.ConditionRegistered, metav1.ConditionTrue, v1alpha1.ReasonRegisteredPrevious, "generation 1 goes on working")
	if !s.guarded(ctx, "box") {
		t.Error("nothing is guarded any more")
	}
}

// deletedPolicy: with failurePolicy Fail no call that still comes may end in a 404
// that refuses the write.
func deletedPolicy(t *testing.T) {
	ctx := stack.TestContext(t)
	n := ownKind(ctx, t, shared, "lets-go", opensandbox.CRDOptions{}, nil)
	s := boxesOf(ctx, t, shared, n, opensandbox.New, v1alpha1.ModeEnforce)
	s.add(ctx, "box")
	must(t, s.phase(ctx, "box", opensandbox.PhaseFailed))
	must(t, shared.Client.Delete(ctx, &v1alpha1.RecoveryPolicy{ObjectMeta: metav1.ObjectMeta{Name: "lets-go"}}))
	for i := range 40 {
		phase := opensandbox.PhaseFailed
		if i%2 == 0 {
			phase = opensandbox.PhaseSucceed
		}
		if err := s.phase(ctx, "box", phase); err != nil {
			// A replica that has not heard of the deletion guards on; it does not fail.
			denied(t, err, 403, "failed without a record")
		}
	}
	s.becomesGuarded(ctx, false)
}

// missingRights: each with its account, verb and resource, and mended without
// touching the policy.
func missingRights(t *testing.T) {
	ctx := stack.TestContext(t)
	n := ownGroup("no-rights")
	addCRD(ctx, t, shared, opensandbox.CRD(opensandbox.CRDOptions{Names: n, Record: &opensandbox.Record{}}))
	addPolicy(ctx, t, shared, ownPolicy(t, "no-rights", n, nil))
	notInForce(ctx, t, shared, "no-rights", v1alpha1.ReasonMissingPermission,
		"serviceaccount belay-system/belay-controller may not get batchsandboxes.no-rights.recovered.test",
		"may not list batchsandboxes.no-rights.recovered.test", "may not watch batchsandboxes.no-rights.recovered.test",
		"may not patch batchsandboxes.no-rights.recovered.test;", "may not patch batchsandboxes.no-rights.recovered.test/status", "rbac.belay.dev/aggregate-to-recovery-driver")
	addRole(ctx, t, shared, n, nil)
	inForce(ctx, t, shared, "no-rights")

	// What only guards writes no status.
	n = ownGroup("only-guards")
	addRole(ctx, t, shared, n, func(r *rbacv1.ClusterRole) { r.Rules = r.Rules[:1] })
	addCRD(ctx, t, shared, opensandbox.CRD(opensandbox.CRDOptions{Names: n, Record: &opensandbox.Record{}}))
	addPolicy(ctx, t, shared, ownPolicy(t, "only-guards", n, func(s *v1alpha1.RecoveryPolicySpec) { s.Recover = v1alpha1.RecoverNever }))
	inForce(ctx, t, shared, "only-guards")

	// A role may name every status at once.
	n = ownGroup("any-status")
	addRole(ctx, t, shared, n, func(r *rbacv1.ClusterRole) { r.Rules[1].Resources = []string{"*/status"} })
	addCRD(ctx, t, shared, opensandbox.CRD(opensandbox.CRDOptions{Names: n, Record: &opensandbox.Record{}}))
	addPolicy(ctx, t, shared, ownPolicy(t, "any-status", n, nil))
	inForce(ctx, t, shared, "any-status")
}

// TestBelayHasTheRightsOfThePresetAndNoMore: what the base and the preset give together is
// all that the guard and the driver of the other tests have.
func TestBelayHasTheRightsOfThePresetAndNoMore(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	group := opensandbox.Names{}.GVR("").Group
	may := func(account, verb, group, resource, sub string) bool {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:   "system:serviceaccount:belay-system:" + account,
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:belay-system", "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: "default", Verb: verb, Group: group, Version: "*", Resource: resource, Subresource: sub,
			},
		}}
		out, err := shared.Kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		must(t, err)
		return out.Status.Allowed
	}
	for _, r := range []struct{ group, resource, sub, controller, webhook string }{
		{group, "batchsandboxes", "", "get list watch patch", ""},
		{group, "batchsandboxes", "status", "patch", ""},
		{group, "batchsandboxes", "finalizers", "", ""},
		{group, "batchsandboxes", "scale", "", ""},
		{group, "pools", "", "", ""},
		{"", "pods", "", "get list watch", "get list watch"},
		{"", "pods", "status", "", "patch"},
		{"", "pods", "exec", "", ""},
		{"", "pods", "log", "", ""},
		{"", "pods", "eviction", "", ""},
		{"", "secrets", "", "", ""},
		{"", "configmaps", "", "create", ""},
		{"apiextensions.k8s.io", "customresourcedefinitions", "", "get list watch", ""},
		{"apiextensions.k8s.io", "customresourcedefinitions", "status", "", ""},
		{"belay.dev", "recoverypolicies", "", "get list watch", "get list watch"},
		{"belay.dev", "recoverypolicies", "status", "update", ""},
	} {
		for account, want := range map[string]string{"belay-controller": r.controller, "belay-webhook": r.webhook} {
			for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"} {
				if got := may(account, verb, r.group, r.resource, r.sub); got != slices.Contains(strings.Fields(want), verb) {
					t.Errorf("%s may %s %s.%s/%s: %t", account, verb, r.resource, r.group, r.sub, got)
				}
			}
		}
	}
}

// TestWhatIsRegistered: the status of the resource and nothing else, in both phases, and
// never for belay's own writes.
func TestS04_S06_S33_WhatIsRegistered(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	mutating, validating := entriesOf(ctx, t, shared, "opensandbox")
	if mutating == nil || validating == nil {
		t.Fatal("the preset is not registered")
	}
	scope := admissionregistrationv1.NamespacedScope
	want := admissionregistrationv1.MutatingWebhook{
		Name: "opensandbox.recovery.belay.dev",
		Rules: []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
			Rule: admissionregistrationv1.Rule{
				APIGroups: []string{"sandbox.opensandbox.io"}, APIVersions: []string{"v1alpha1"}, Resources: []string{"batchsandboxes/status"}, Scope: &scope,
			},
		}},
		FailurePolicy: new(admissionregistrationv1.Fail), MatchPolicy: new(admissionregistrationv1.Equivalent),
		SideEffects: new(admissionregistrationv1.SideEffectClassNoneOnDryRun), TimeoutSeconds: new(int32(3)),
		AdmissionReviewVersions: []string{"v1"}, ReinvocationPolicy: new(admissionregistrationv1.IfNeededReinvocationPolicy),
		ObjectSelector: &metav1.LabelSelector{},
		NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "belay.dev/mode", Operator: metav1.LabelSelectorOpIn, Values: []string{"enforce", "warn"}},
			{Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"belay-system", "kube-system", "kube-public", "kube-node-lease"}},
		}},
		MatchConditions: []admissionregistrationv1.MatchCondition{
			{Name: "belay.not-kube", Expression: `!has(request.namespace) || !request.namespace.startsWith("kube-")`},
			{Name: "belay.not-controller", Expression: `request.userInfo.username != "system:serviceaccount:belay-system:belay-controller"`},
			{Name: "belay.concerned"}, // see TestWhatConcernsTheGuard
		},
	}
	for _, conditions := range [][]admissionregistrationv1.MatchCondition{mutating.MatchConditions, validating.MatchConditions} {
		for i := range conditions {
			if conditions[i].Name == "belay.concerned" {
				conditions[i].Expression = ""
			}
		}
	}
	path := shared.WebhookURL() + "/mutate/recovery/opensandbox"
	want.ClientConfig = admissionregistrationv1.WebhookClientConfig{URL: &path, CABundle: mutating.ClientConfig.CABundle}
	if len(want.ClientConfig.CABundle) == 0 {
		t.Error("there is no CA")
	}
	if diff := gocmp.Diff(want, *mutating); diff != "" {
		t.Errorf("mutating (-want +got):\n%s", diff)
	}
	path = shared.WebhookURL() + "/validate/recovery/opensandbox"
	same := admissionregistrationv1.ValidatingWebhook{
		Name: want.Name, ClientConfig: want.ClientConfig, Rules: want.Rules, FailurePolicy: want.FailurePolicy, MatchPolicy: want.MatchPolicy, SideEffects: want.SideEffects,
		TimeoutSeconds: want.TimeoutSeconds, AdmissionReviewVersions: want.AdmissionReviewVersions, ObjectSelector: want.ObjectSelector,
		NamespaceSelector: want.NamespaceSelector, MatchConditions: want.MatchConditions,
	}
	if diff := gocmp.Diff(same, *validating); diff != "" {
		t.Errorf("validating (-want +got):\n%s", diff)
	}
	for _, r := range validating.Rules {
		for _, name := range r.Resources {
			if strings.Contains(name, "*") {
				t.Errorf("S33: the rule %q catches more than its resource", name)
			}
		}
	}
}

// TestWhatBelayIsCalledFor, as the audit log has it.
func TestS04_S33_WhatBelayIsCalledFor(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	s := newSandboxes(ctx, t, shared, opensandbox.Old, v1alpha1.ModeEnforce)
	pods := s.start(ctx, "box", 1)
	must(t, opensandbox.Crash(ctx, s.admin, pods[0], "CrashLoopBackOff"))
	must(t, s.Reconcile(ctx, "box"))
	must(t, opensandbox.Ready(ctx, s.admin, pods[0]))
	s.becomes(ctx, "box", opensandbox.PhaseSucceed)
	// A status in a write of the object itself is dropped by the API server.
	b := s.get(ctx, "box")
	b.Labels = map[string]string{"any": "label"}
	b.Status.Phase = opensandbox.PhaseFailed
	must(t, s.admin.Update(ctx, b))
	s.wantPhase(ctx, "box", opensandbox.PhaseSucceed)
	must(t, s.admin.Delete(ctx, b))

	admin := adminName(ctx, t, shared)
	stack.Eventually(ctx, t, "the audit log", func() error {
		type row struct{ user, verb, sub string }
		called, all := map[row]bool{}, map[row]int{}
		for _, e := range auditLog(t, shared, s.Namespace) {
			if e.ObjectRef.Resource != "batchsandboxes" || e.ResponseStatus.Code >= 300 {
				continue
			}
			r := row{e.User.Username, e.Verb, e.ObjectRef.Subresource}
			all[r]++
			called[r] = called[r] || len(e.recovery()) > 0
		}
		for _, c := range []struct {
			what string
			row  row
			want bool
		}{
			{"S04 the controller's patch of the status", row{"system:serviceaccount:" + s.Namespace + ":" + opensandbox.Account, "patch", "status"}, true},
			{"S33 belay's own patch of the status", row{"system:serviceaccount:belay-system:belay-controller", "patch", "status"}, false},
			{"the create", row{admin, "create", ""}, false},
			{"the update of the object", row{admin, "update", ""}, false},
			{"the deletion", row{admin, "delete", ""}, false},
		} {
			if all[c.row] == 0 {
				return fmt.Errorf("%s is not there yet: %v", c.what, all)
			}
			if called[c.row] != c.want {
				t.Fatalf("%s: belay was called: %t", c.what, called[c.row])
			}
		}
		return nil
	})
}

// whatConcerns: the API server asks about what has to do with a failure, and about nothing
// else. It can tell for every status that the CRD allows: also where there is null on the way
// to a field.
func whatConcerns(t *testing.T) {
	ctx := stack.TestContext(t)
	n := ownGroup("concerns")
	crd := opensandbox.CRD(opensandbox.CRDOptions{Names: n, Record: &opensandbox.Record{}})
	v := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	status := v.Properties["status"]
	status.Nullable, status.Required = true, nil
	for _, name := range []string{"phase", "conditions"} {
		p := status.Properties[name]
		p.Nullable = true
		status.Properties[name] = p
	}
	phase := status.Properties["phase"]
	// A nullable enumeration has to allow null.
	phase.Enum = append(phase.Enum, apiextensionsv1.JSON{Raw: []byte("null")})
	status.Properties["phase"] = phase
	status.Properties["failure"] = apiextensionsv1.JSONSchemaProps{Type: "object", Nullable: true, Properties: map[string]apiextensionsv1.JSONSchemaProps{
		"podUIDs": {Type: "array", Nullable: true, Items: listOf("string")},
	}}
	v.Properties["status"] = status
	addRole(ctx, t, shared, n, nil)
	addCRD(ctx, t, shared, crd)
	addPolicy(ctx, t, shared, ownPolicy(t, "concerns", n, func(s *v1alpha1.RecoveryPolicySpec) {
		s.RecordPath, s.Recover = ".status.failure.podUIDs", v1alpha1.RecoverNever
	}))
	inForce(ctx, t, shared, "concerns")
	// While nobody guards, a namespace gets objects of any status.
	s := boxesOf(ctx, t, shared, n, opensandbox.New, "")
	type row struct {
		before, after string
		called        bool
		code          int
	}
	rows := map[string]row{
		"a healthy object":                       {`{"phase":"Succeed"}`, `{"phase":"Pending"}`, false, 200},
		"its first status":                       {``, `{"phase":"Succeed"}`, false, 200},
		"its first status is a failure":          {``, `{"phase":"Failed"}`, true, 200},
		"a status that is null":                  {`{"phase":"Succeed"}`, `null`, false, 200},
		"a status that was null":                 {`null`, `{"phase":"Succeed"}`, false, 200},
		"a phase that is null":                   {`{"phase":null}`, `{"phase":null,"ready":1}`, false, 200},
		"conditions that are null":               {`{"phase":"Succeed","conditions":null}`, `{"phase":"Succeed","ready":1}`, false, 200},
		"null on the way to the record":          {`{"phase":"Succeed","failure":null}`, `{"phase":"Succeed","ready":1}`, false, 200},
		"null comes on the way to the record":    {`{"phase":"Succeed"}`, `{"phase":"Pending","failure":null}`, false, 200},
		"a record that is null":                  {`{"phase":"Succeed","failure":{"podUIDs":null}}`, `{"phase":"Succeed","ready":1}`, false, 200},
		"an empty record":                        {`{"phase":"Succeed","failure":{"podUIDs":[]}}`, `{"phase":"Succeed","ready":1}`, false, 200},
		"a leftover":                             {`{"phase":"Succeed","failure":{"podUIDs":["u"]}}`, `{"phase":"Succeed","ready":1}`, true, 200},
		"a record that a healthy object gets":    {`{"phase":"Succeed"}`, `{"phase":"Succeed","failure":{"podUIDs":["u"]}}`, true, 200},
		"a failure, and null on the way":         {`{"phase":"Succeed","failure":null}`, `{"phase":"Failed","failure":null}`, true, 200},
		"a failed object":                        {`{"phase":"Failed"}`, `{"phase":"Failed","ready":1}`, true, 200},
		"a failed object, and null on the way":   {`{"phase":"Failed","failure":null}`, `{"phase":"Succeed","failure":null}`, true, 403},
		"a failed object that recovers":          {`{"phase":"Failed"}`, `{"phase":"Succeed"}`, true, 403},
		"a failed object whose phase goes":       {`{"phase":"Failed"}`, `{"phase":null}`, true, 200},
		"a failed object whose status goes":      {`{"phase":"Failed"}`, `null`, true, 403},
		"an object on its way from a failure":    {`{"phase":"Pausing","failure":{"podUIDs":["u"]}}`, `{"phase":"Succeed","failure":null}`, true, 403},
		"a lifecycle that has no failure in it":  {`{"phase":"Pausing"}`, `{"phase":"Paused"}`, false, 200},
		"a failed object that is to be replaced": {`{"phase":"Failed","failure":{"podUIDs":["u"]}}`, `{"phase":"Resuming"}`, true, 200},
	}
	for name, c := range rows {
		s.add(ctx, groupOf(name))
		if c.before != "" {
			if a := s.send(ctx, t, shared.Plane.Config(), groupOf(name), []byte(`{"status":`+c.before+`}`)); a.code != 200 {
				t.Fatalf("%s: the API server refuses what it should have before: %s", name, a.status.Message)
			}
		}
	}
	label(ctx, t, s.Namespace, `"belay.dev/mode":"enforce"`)
	s.becomesGuarded(ctx, true)
	replies := map[string]reply{}
	for name, c := range rows {
		replies[name] = s.send(ctx, t, shared.Plane.Config(), groupOf(name), []byte(`{"status":`+c.after+`}`))
	}
	for name, c := range rows {
		if a := replies[name]; a.code != c.code {
			t.Errorf("%s: answered %d: %s", name, a.code, a.status.Message)
		}
		stack.Eventually(ctx, t, "the audit log", func() error {
			all := auditLog(t, shared, `"`+groupOf(name)+`"`)
			all = slices.DeleteFunc(all, func(e logged) bool {
				return e.ObjectRef.Namespace != s.Namespace || e.ObjectRef.Subresource != "status" || e.ObjectRef.Name != groupOf(name)
			})
			want := 2
			if c.before == "" {
				want = 1
			}
			if len(all) < want {
				return fmt.Errorf("%d entries so far", len(all))
			}
			if called := len(all[len(all)-1].recovery()) > 0; called != c.called {
				t.Errorf("%s: belay was called: %t", name, called)
			}
			return nil
		})
	}
}

// logged is one request in the audit log.
type logged struct {
	Stage, Verb, UserAgent, RequestURI string
	User                               struct{ Username string }
	ObjectRef                          struct{ Namespace, Name, Resource, Subresource string }
	ResponseStatus                     struct{ Code int }
	Annotations                        map[string]string
	RequestReceivedTimestamp           time.Time
}

// recovery is what guards have said of a request.
func (e logged) recovery() map[string]string {
	out := map[string]string{}
	for k, v := range e.Annotations {
		if strings.Contains(k, v1alpha1.RecoveryEntryDomain[1:]+"/") {
			out[k] = v
		}
	}
	return out
}

// auditLog are the requests that are over and whose entry has a word in it, such as a
// namespace. It is written a moment late.
func auditLog(t *testing.T, s *stack.Stack, word string) []logged {
	t.Helper()
	all, err := stack.AuditLog[logged](s, word)
	must(t, err)
	var out []logged
	for _, e := range all {
		if e.Stage == "ResponseComplete" {
			out = append(out, e)
		}
	}
	return out
}

// adminName is the administrator's user name.
func adminName(ctx context.Context, t *testing.T, s *stack.Stack) string {
	t.Helper()
	me, err := s.Kube.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	must(t, err)
	return me.Status.UserInfo.Username
}
