package registration

import (
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/admission"
	"github.com/belay-dev/belay/webhook/internal/entries"
)

// Endpoint is where the API server reaches the webhook: by a Service, or by a URL
// where belay runs outside the cluster.
type Endpoint struct {
	// URL without a path, such as "https://localhost:9443"; wins when it is set.
	URL string
	// ServiceNamespace, ServiceName and ServicePort name the Service.
	ServiceNamespace, ServiceName string
	ServicePort                   int32
}

// settings are what all entries share.
type settings struct {
	endpoint     Endpoint
	ownNamespace string
	annotation   bool // register the entry for the annotation belay.dev/owner
	// sidecarAnnotation: register those for the annotation belay.dev/sidecar.
	sidecarAnnotation bool
	// controllerAccount is the service account of belay-controller, in ownNamespace.
	controllerAccount string
}

// inForce are the policies that have an accepted spec.
type inForce struct {
	owners     []*v1alpha1.OwnerPolicy
	names      []*v1alpha1.NamePolicy
	recoveries []*v1alpha1.RecoveryPolicy
}

// entry is a webhook entry in either kind of configuration, with the fields that
// both have. reinvoke is for mutating entries only.
type entry struct {
	name              string
	path              string
	rules             []admissionregistrationv1.RuleWithOperations
	namespaceSelector *metav1.LabelSelector
	objectSelector    *metav1.LabelSelector
	conditions        []admissionregistrationv1.MatchCondition
	failurePolicy     admissionregistrationv1.FailurePolicyType
	timeoutSeconds    int32
	// once: never called again when a later webhook changed the object.
	once bool
}

// desired builds the entries of both configurations, in the order in which the API
// server is to call them: owners first, since the work of an object may be told by who
// owns it; sidecars last, which see what the others made of a Pod; within one kind of policy
// by name.
func desired(p inForce, s settings) (mutating, validating []entry) {
	slices.SortFunc(p.owners, func(a, b *v1alpha1.OwnerPolicy) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(p.names, func(a, b *v1alpha1.NamePolicy) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(p.recoveries, func(a, b *v1alpha1.RecoveryPolicy) int { return strings.Compare(a.Name, b.Name) })
	for _, p := range p.owners {
		e := entryOf(p, s)
		m := e
		m.path = admission.MutateOwnerPath + "/" + p.Name
		mutating = append(mutating, m)
		if verified(p.Status.InForce.Spec) {
			v := e
			v.path = admission.ValidateOwnerPath + "/" + p.Name
			validating = append(validating, v)
		}
	}
	if s.annotation {
		mutating = append(mutating, annotated(s))
	}
	for _, p := range p.names {
		m, v := nameEntries(p, s)
		mutating, validating = append(mutating, m), append(validating, v)
	}
	for _, p := range p.recoveries {
		m, v := recoveryEntries(p, s)
		mutating, validating = append(mutating, m), append(validating, v)
	}
	m, v := sidecarEntries(p.recoveries, s)
	mutating, validating = append(mutating, m...), append(validating, v...)
	return mutating, validating
}

// verified says whether a policy needs the validating phase: only one that denies
// does. For the others a second call per create would tell nothing new.
func verified(s v1alpha1.OwnerPolicySpec) bool {
	return s.ClientReferences == v1alpha1.LintDeny || s.WhenUnresolved == v1alpha1.UnresolvedDeny
}

func entryOf(p *v1alpha1.OwnerPolicy, s settings) entry {
	spec := p.Status.InForce.Spec
	return entry{
		name:              p.Name + v1alpha1.OwnerEntryDomain,
		namespaceSelector: optedIn(spec.NamespaceSelector, s.ownNamespace),
		objectSelector:    selectorOrAll(spec.Selector),
		conditions:        conditionsOf(spec.MatchConditions),
		rules:             rulesOf(p.Status.InForce.Dependents),
		failurePolicy:     admissionregistrationv1.FailurePolicyType(spec.FailurePolicy),
		timeoutSeconds:    spec.TimeoutSeconds,
	}
}

func conditionsOf(conditions []v1alpha1.MatchCondition) []admissionregistrationv1.MatchCondition {
	out := []admissionregistrationv1.MatchCondition{notKube()}
	for _, c := range conditions {
		out = append(out, admissionregistrationv1.MatchCondition{Name: "policy." + c.Name, Expression: c.Expression})
	}
	return out
}

func rulesOf(resources []v1alpha1.ResolvedResource) []admissionregistrationv1.RuleWithOperations {
	var out []admissionregistrationv1.RuleWithOperations
	for _, r := range resources {
		scope := admissionregistrationv1.ClusterScope
		if r.Namespaced {
			scope = admissionregistrationv1.NamespacedScope
		}
		out = append(out, creates(r.Group, r.Version, r.Resource, scope))
	}
	return out
}

// annotated is the entry for objects that name their owner themselves. Its rule
// is wide, but its condition is evaluated by the API server: an object without
// the annotation costs no call.
func annotated(s settings) entry {
	return entry{
		name:              entries.OwnerAnnotation,
		path:              admission.MutateOwnerPath,
		rules:             []admissionregistrationv1.RuleWithOperations{creates("*", "*", "*", admissionregistrationv1.AllScopes)},
		namespaceSelector: optedIn(nil, s.ownNamespace),
		objectSelector:    &metav1.LabelSelector{},
		conditions: []admissionregistrationv1.MatchCondition{
			notKube(),
			{Name: "belay.annotated", Expression: fmt.Sprintf("has(object.metadata) && has(object.metadata.annotations) && %q in object.metadata.annotations", v1alpha1.OwnerAnnotation)},
			{Name: "belay.never", Expression: `!(request.resource.group in ["belay.dev", "coordination.k8s.io", "events.k8s.io", "authentication.k8s.io", "authorization.k8s.io"]) && !(request.resource.group == "" && request.resource.resource in ["events", "namespaces", "nodes"])`},
			// Controllers copy annotations from what people write to what they make of it:
			// a ReplicaSet that is owned by the Deployment's owner, too, would outlive it.
			{Name: "belay.not-inherited", Expression: `!(request.resource.group == "apps" && request.resource.resource in ["replicasets", "controllerrevisions"]) && request.resource.group != "discovery.k8s.io"`},
		},
		failurePolicy:  admissionregistrationv1.Ignore,
		timeoutSeconds: 3,
	}
}

// creates is the only kind of rule about objects themselves: never UPDATE, where an injected reference can
// deny the user and the garbage collector's own writes must pass; never DELETE,
// which would keep namespaces from going away when belay is gone.
func creates(group, version, resource string, scope admissionregistrationv1.ScopeType) admissionregistrationv1.RuleWithOperations {
	return admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{group}, APIVersions: []string{version}, Resources: []string{resource}, Scope: &scope,
		},
	}
}

// notKube keeps belay out of every kube-* namespace, whatever its labels say: a
// selector cannot match a prefix.
func notKube() admissionregistrationv1.MatchCondition {
	return admissionregistrationv1.MatchCondition{Name: "belay.not-kube", Expression: `!has(request.namespace) || !request.namespace.startsWith("kube-")`}
}

// optedIn selects the namespaces that carry the mode label, but for the system's
// and belay's own.
func optedIn(extra *metav1.LabelSelector, own string) *metav1.LabelSelector {
	out := &metav1.LabelSelector{}
	if extra != nil {
		out = extra.DeepCopy()
	}
	out.MatchExpressions = append(out.MatchExpressions,
		metav1.LabelSelectorRequirement{Key: v1alpha1.ModeLabel, Operator: metav1.LabelSelectorOpIn, Values: []string{v1alpha1.ModeEnforce, v1alpha1.ModeWarn}},
		metav1.LabelSelectorRequirement{Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpNotIn, Values: []string{own, "kube-system", "kube-public", "kube-node-lease"}},
	)
	return out
}

func selectorOrAll(s *metav1.LabelSelector) *metav1.LabelSelector {
	if s == nil {
		return &metav1.LabelSelector{}
	}
	return s.DeepCopy()
}

// clientConfig is how the API server reaches the path.
func (e Endpoint) clientConfig(path string) admissionregistrationv1.WebhookClientConfig {
	if e.URL != "" {
		url := e.URL + path
		return admissionregistrationv1.WebhookClientConfig{URL: &url}
	}
	port := e.ServicePort
	return admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{
		Namespace: e.ServiceNamespace, Name: e.ServiceName, Port: &port, Path: &path,
	}}
}

func (e entry) mutating(at Endpoint) admissionregistrationv1.MutatingWebhook {
	equivalent, none, reinvoke := admissionregistrationv1.Equivalent, admissionregistrationv1.SideEffectClassNoneOnDryRun, admissionregistrationv1.IfNeededReinvocationPolicy
	if e.once {
		reinvoke = admissionregistrationv1.NeverReinvocationPolicy
	}
	return admissionregistrationv1.MutatingWebhook{
		Name: e.name, ClientConfig: at.clientConfig(e.path), Rules: e.rules,
		NamespaceSelector: e.namespaceSelector, ObjectSelector: e.objectSelector, MatchConditions: e.conditions,
		FailurePolicy: &e.failurePolicy, TimeoutSeconds: &e.timeoutSeconds, MatchPolicy: &equivalent,
		SideEffects: &none, AdmissionReviewVersions: []string{"v1"}, ReinvocationPolicy: &reinvoke,
	}
}

func (e entry) validating(at Endpoint) admissionregistrationv1.ValidatingWebhook {
	equivalent, none := admissionregistrationv1.Equivalent, admissionregistrationv1.SideEffectClassNoneOnDryRun
	return admissionregistrationv1.ValidatingWebhook{
		Name: e.name, ClientConfig: at.clientConfig(e.path), Rules: e.rules,
		NamespaceSelector: e.namespaceSelector, ObjectSelector: e.objectSelector, MatchConditions: e.conditions,
		FailurePolicy: &e.failurePolicy, TimeoutSeconds: &e.timeoutSeconds, MatchPolicy: &equivalent,
		SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
	}
}
