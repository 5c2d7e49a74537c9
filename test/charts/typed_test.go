package charts

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// checks are what must hold of all objects of every rendering.
func checks() map[string]func(*testing.T, objects) {
	return map[string]func(*testing.T, objects){
		"Pods are restricted":                     checkPods,
		"there are two, apart from each other":    checkAvailability,
		"one Service to call, one to look":        checkServices,
		"ports are open to whom they are for":     checkNetworkPolicies,
		"rights are narrow":                       checkRights,
		"T09: what others write is not declared":  checkFieldsOfOthers,
		"the processes know their flags":          checkFlags,
		"certificates are issued, and are served": checkCertificates,
	}
}

// TestWhatIsInstalled looks at what kustomize makes, and at what Helm makes of the chart: what only
// the chart has is looked at as well.
func TestWhatIsInstalled(t *testing.T) {
	t.Parallel()
	helm, kustomize := tools(t)
	for name, r := range renderings() {
		for by, render := range map[string]func(*testing.T) objects{
			"kustomize": func(t *testing.T) objects { return parse(t, r.kustomized(t, kustomize)) },
			"Helm":      func(t *testing.T) objects { return r.helmed(t, helm, "belay-system") },
		} {
			t.Run(name+", by "+by, func(t *testing.T) {
				t.Parallel()
				all := render(t)
				for what, check := range checks() {
					t.Run(what, func(t *testing.T) { check(t, all) })
				}
			})
		}
	}
}

// typed are the objects of a kind by name. A field that the type does not have is an error.
func typed[T any](t *testing.T, all objects, kind string) map[string]T {
	t.Helper()
	out := map[string]T{}
	for key, object := range all {
		name, ok := strings.CutPrefix(key, kind+" ")
		if !ok {
			continue
		}
		raw, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		var o T
		if err := yaml.UnmarshalStrict(raw, &o); err != nil {
			t.Errorf("%s: %v", key, err)
		}
		out[name] = o
	}
	return out
}

// podTemplates are those of all workloads, by the workload's name.
func podTemplates(t *testing.T, all objects) map[string]corev1.PodTemplateSpec {
	t.Helper()
	out := map[string]corev1.PodTemplateSpec{}
	for name, d := range typed[appsv1.Deployment](t, all, "Deployment") {
		out[name] = d.Spec.Template
	}
	for name, j := range typed[batchv1.Job](t, all, "Job") {
		out[name] = j.Spec.Template
	}
	known := []string{"Deployment", "Job"}
	for key, object := range all {
		kind, _, _ := strings.Cut(key, " ")
		spec, _ := object["spec"].(map[string]any)
		if _, has := spec["template"]; has && !slices.Contains(known, kind) {
			t.Errorf("%s has a template that is not looked at", key)
		}
	}
	return out
}

// checkPods: every Pod is one that the Pod Security Standard "restricted" lets in, and needs
// no more than it has.
func checkPods(t *testing.T, all objects) {
	templates := podTemplates(t, all)
	if len(templates) < 2 {
		t.Fatalf("there are %d workloads", len(templates))
	}
	for name, template := range templates {
		for _, problem := range unrestricted(template.Spec) {
			t.Errorf("%s: %s", name, problem)
		}
		for _, c := range template.Spec.Containers {
			if c.SecurityContext == nil || c.SecurityContext.ReadOnlyRootFilesystem == nil || !*c.SecurityContext.ReadOnlyRootFilesystem {
				t.Errorf("%s may write to the image of %s", name, c.Name)
			}
			if r := c.Resources; r.Requests.Cpu().IsZero() || r.Requests.Memory().IsZero() || r.Limits.Memory().IsZero() {
				t.Errorf("%s: %+v", name, r)
			}
		}
		if s := template.Spec; s.AutomountServiceAccountToken == nil || s.ServiceAccountName == "" || s.EnableServiceLinks == nil || *s.EnableServiceLinks {
			t.Errorf("%s: account %q, token %v, service links %v", name, s.ServiceAccountName, s.AutomountServiceAccountToken, s.EnableServiceLinks)
		}
	}
	for name, account := range typed[corev1.ServiceAccount](t, all, "ServiceAccount") {
		if account.AutomountServiceAccountToken == nil || *account.AutomountServiceAccountToken {
			t.Errorf("ServiceAccount %s is mounted by whatever names it", name)
		}
	}
	if ns, ok := all["Namespace belay-system"]; ok {
		labels, _ := metadata(t, ns)["labels"].(map[string]any)
		for _, label := range []string{"pod-security.kubernetes.io/enforce", "pod-security.kubernetes.io/warn"} {
			if labels[label] != "restricted" {
				t.Errorf("%s: %v", label, labels[label])
			}
		}
	}
}

// unrestricted is what the Pod Security Standard "restricted" has against a Pod.
func unrestricted(pod corev1.PodSpec) (problems []string) {
	no := func(bad bool, problem string) {
		if bad {
			problems = append(problems, problem)
		}
	}
	yes := func(b *bool) bool { return b != nil && *b }
	no(pod.HostNetwork || pod.HostPID || pod.HostIPC, "is in a namespace of its node")
	for _, v := range pod.Volumes {
		s := v.VolumeSource
		no(s.ConfigMap == nil && s.Secret == nil && s.EmptyDir == nil && s.Projected == nil && s.DownwardAPI == nil && s.CSI == nil && s.PersistentVolumeClaim == nil && s.Ephemeral == nil,
			"volume "+v.Name+" is of a kind that is not allowed")
	}
	inPod := pod.SecurityContext
	if inPod == nil {
		inPod = &corev1.PodSecurityContext{}
	}
	no(len(inPod.Sysctls) > 0, "sets sysctls")
	containers := slices.Concat(pod.InitContainers, pod.Containers)
	no(len(containers) == 0, "has no container")
	for _, c := range containers {
		s := c.SecurityContext
		if s == nil {
			s = &corev1.SecurityContext{}
		}
		no(yes(s.Privileged), c.Name+" is privileged")
		no(s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation, c.Name+" may become another user")
		no(s.Capabilities == nil || !slices.Contains(s.Capabilities.Drop, "ALL"), c.Name+" keeps capabilities")
		no(s.Capabilities != nil && slices.ContainsFunc(s.Capabilities.Add, func(c corev1.Capability) bool { return c != "NET_BIND_SERVICE" }), c.Name+" adds capabilities")
		nonRoot := inPod.RunAsNonRoot
		if s.RunAsNonRoot != nil {
			nonRoot = s.RunAsNonRoot
		}
		no(!yes(nonRoot), c.Name+" may run as root")
		no(s.RunAsUser != nil && *s.RunAsUser == 0 || inPod.RunAsUser != nil && *inPod.RunAsUser == 0, c.Name+" runs as root")
		profile := inPod.SeccompProfile
		if s.SeccompProfile != nil {
			profile = s.SeccompProfile
		}
		no(profile == nil || profile.Type != corev1.SeccompProfileTypeRuntimeDefault && profile.Type != corev1.SeccompProfileTypeLocalhost, c.Name+" has no seccomp profile")
		no(s.ProcMount != nil && *s.ProcMount != corev1.DefaultProcMount, c.Name+" sees all of /proc")
		for _, p := range c.Ports {
			no(p.HostPort != 0, c.Name+" takes a port of its node")
		}
	}
	return problems
}

// covers reports whether a selector is about the Pods of one part of belay, and of nothing else
// that has come to its namespace.
func covers(selector map[string]string, part string) bool {
	return len(selector) == 2 && selector["app.kubernetes.io/name"] == "belay" && selector["app.kubernetes.io/component"] == part
}

// checkAvailability: two replicas of each, apart from each other, of which one at a time may go;
// and a roll-out of the webhook takes none away before there is another.
func checkAvailability(t *testing.T, all objects) {
	deployments := typed[appsv1.Deployment](t, all, "Deployment")
	budgets := typed[policyv1.PodDisruptionBudget](t, all, "PodDisruptionBudget")
	if len(deployments) != 2 || len(budgets) != 2 {
		t.Fatalf("%d Deployments, %d budgets", len(deployments), len(budgets))
	}
	for _, part := range []string{"webhook", "controller"} {
		d, b := deployments["belay-"+part], budgets["belay-"+part]
		pod := d.Spec.Template
		if d.Spec.Replicas == nil || *d.Spec.Replicas != 2 {
			t.Errorf("%s has %v replicas", part, d.Spec.Replicas)
		}
		if d.Spec.RevisionHistoryLimit == nil || *d.Spec.RevisionHistoryLimit > 5 {
			t.Errorf("%s keeps %v old ReplicaSets", part, d.Spec.RevisionHistoryLimit)
		}
		if !covers(d.Spec.Selector.MatchLabels, part) || !covers(b.Spec.Selector.MatchLabels, part) || !covers(pod.Labels, part) {
			t.Errorf("%s: Deployment %v, budget %v, Pods %v", part, d.Spec.Selector, b.Spec.Selector, pod.Labels)
		}
		if b.Spec.MaxUnavailable == nil || b.Spec.MaxUnavailable.IntValue() != 1 || b.Spec.MinAvailable != nil ||
			b.Spec.UnhealthyPodEvictionPolicy == nil || *b.Spec.UnhealthyPodEvictionPolicy != policyv1.AlwaysAllow {
			t.Errorf("%s: %+v", part, b.Spec)
		}
		var keys []string
		for _, c := range pod.Spec.TopologySpreadConstraints {
			keys = append(keys, c.TopologyKey)
			if c.MaxSkew != 1 || c.WhenUnsatisfiable != corev1.ScheduleAnyway || !covers(c.LabelSelector.MatchLabels, part) || !slices.Equal(c.MatchLabelKeys, []string{"pod-template-hash"}) {
				t.Errorf("%s: %+v", part, c)
			}
		}
		if !slices.Equal(keys, []string{corev1.LabelHostname, corev1.LabelTopologyZone}) {
			t.Errorf("%s is spread over %q", part, keys)
		}
		if pod.Spec.PriorityClassName != "system-cluster-critical" || pod.Spec.NodeSelector[corev1.LabelOSStable] != "linux" {
			t.Errorf("%s: priority class %q, nodes %v", part, pod.Spec.PriorityClassName, pod.Spec.NodeSelector)
		}
		c := pod.Spec.Containers[0]
		for name, p := range map[string]*corev1.Probe{"/livez": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
			if p == nil || p.HTTPGet == nil || p.HTTPGet.Path != name || p.HTTPGet.Port.String() != "probes" {
				t.Errorf("%s: %+v", part, p)
			}
		}
		if c.StartupProbe == nil || c.StartupProbe.HTTPGet.Path != "/livez" {
			t.Errorf("%s: %+v", part, c.StartupProbe)
		}
	}
	w := deployments["belay-webhook"].Spec
	if s := w.Strategy; s.Type != appsv1.RollingUpdateDeploymentStrategyType || s.RollingUpdate.MaxUnavailable.IntValue() != 0 || s.RollingUpdate.MaxSurge.IntValue() != 1 {
		t.Errorf("webhook: %+v", w.Strategy)
	}
	quotas := typed[corev1.ResourceQuota](t, all, "ResourceQuota")
	if q, ok := quotas["belay-critical-pods"]; len(quotas) != 1 || !ok || !slices.Equal(q.Spec.ScopeSelector.MatchExpressions[0].Values, []string{"system-cluster-critical"}) {
		t.Errorf("quotas: %+v", quotas)
	}
}

// checkServices: one for calls, with ready replicas only, and one for looking at each replica.
func checkServices(t *testing.T, all objects) {
	services := typed[corev1.Service](t, all, "Service")
	calls, replicas := services["belay-webhook"].Spec, services["belay-webhook-replicas"].Spec
	if calls.PublishNotReadyAddresses || calls.ClusterIP != "" || !covers(calls.Selector, "webhook") {
		t.Errorf("belay-webhook: %+v", calls)
	}
	if !replicas.PublishNotReadyAddresses || replicas.ClusterIP != corev1.ClusterIPNone || !covers(replicas.Selector, "webhook") {
		t.Errorf("belay-webhook-replicas: %+v", replicas)
	}
	ports := func(s corev1.ServiceSpec) map[string]int32 {
		out := map[string]int32{}
		for _, p := range s.Ports {
			out[p.Name] = p.Port
			if p.TargetPort.String() != p.Name {
				t.Errorf("port %s goes to %s", p.Name, p.TargetPort.String())
			}
		}
		return out
	}
	if p := ports(calls); len(p) != 2 || p["https"] != 443 || p["reports"] != 9444 {
		t.Errorf("belay-webhook: %v", p)
	}
	// To an address of its own, a port is the container's.
	container := map[string]int32{}
	for _, p := range typed[appsv1.Deployment](t, all, "Deployment")["belay-webhook"].Spec.Template.Spec.Containers[0].Ports {
		container[p.Name] = p.ContainerPort
	}
	for name, port := range ports(replicas) {
		if container[name] != port {
			t.Errorf("belay-webhook-replicas: %s is %d, and the container's %d", name, port, container[name])
		}
	}
	if len(ports(replicas)) != 3 {
		t.Errorf("belay-webhook-replicas: %v", ports(replicas))
	}
}

// checkNetworkPolicies: each Pod is in one, and what it listens to is open to whom it is for.
func checkNetworkPolicies(t *testing.T, all objects) {
	policies := typed[networkingv1.NetworkPolicy](t, all, "NetworkPolicy")
	open := map[int][]string{}
	for _, rule := range policies["belay-webhook"].Spec.Ingress {
		who := "anybody"
		if len(rule.From) == 1 {
			switch from := rule.From[0]; {
			case from.NamespaceSelector != nil && len(from.NamespaceSelector.MatchLabels) == 0 && from.PodSelector == nil && from.IPBlock == nil:
				who = "Pods"
			case from.PodSelector != nil && covers(from.PodSelector.MatchLabels, "controller") && from.NamespaceSelector == nil && from.IPBlock == nil:
				who = "belay-controller"
			}
		}
		for _, p := range rule.Ports {
			open[p.Port.IntValue()] = append(open[p.Port.IntValue()], who)
		}
	}
	if diff := cmp.Diff(map[int][]string{9443: {"anybody", "belay-controller"}, 9444: {"Pods", "belay-controller"}}, open); diff != "" {
		t.Errorf("belay-webhook is open to others (-want +got):\n%s", diff)
	}
	for _, part := range []string{"webhook", "controller"} {
		p := policies["belay-"+part].Spec
		if !covers(p.PodSelector.MatchLabels, part) || !slices.Equal(p.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}) {
			t.Errorf("belay-%s: %+v", part, p)
		}
	}
	if len(policies["belay-controller"].Spec.Ingress) > 0 {
		t.Errorf("belay-controller: %+v", policies["belay-controller"].Spec.Ingress)
	}
	metrics := slices.Contains(typed[appsv1.Deployment](t, all, "Deployment")["belay-webhook"].Spec.Template.Spec.Containers[0].Args, "--metrics-bind-address=:8080")
	if _, ok := policies["belay-metrics"]; ok != metrics {
		t.Errorf("metrics are served: %t, and let in: %t", metrics, ok)
	}
	_, dns := policies["belay-egress"]
	_, replicas := policies["belay-controller-egress"]
	if dns != replicas {
		t.Errorf("out of belay's Pods: %t, to the replicas: %t", dns, replicas)
	}
}

// checkRights: no wildcard, and of Secrets the one with belay's own CA, where there is one.
func checkRights(t *testing.T, all objects) {
	rules := map[string][]rbacv1.PolicyRule{}
	for name, r := range typed[rbacv1.ClusterRole](t, all, "ClusterRole") {
		rules["ClusterRole "+name] = r.Rules
		if (r.AggregationRule != nil) == (r.Rules != nil) {
			t.Errorf("ClusterRole %s: rules %v, aggregation %v", name, r.Rules, r.AggregationRule)
		}
		// The rules of an aggregated role are somebody else's field: whoever applies an empty
		// list takes all of them away.
		if _, has := all["ClusterRole "+name]["rules"]; has && r.AggregationRule != nil {
			t.Errorf("ClusterRole %s has rules of its own beside those that are aggregated", name)
		}
	}
	for name, r := range typed[rbacv1.Role](t, all, "Role") {
		rules["Role "+name] = r.Rules
	}
	_, issued := all["Certificate belay-webhook"]
	var secrets []string
	for role, rules := range rules {
		for _, r := range rules {
			for _, list := range [][]string{r.APIGroups, r.Resources, r.Verbs, r.NonResourceURLs} {
				if slices.ContainsFunc(list, func(s string) bool { return strings.Contains(s, "*") }) {
					t.Errorf("%s has a wildcard: %+v", role, r)
				}
			}
			for _, verb := range []string{"escalate", "bind", "impersonate"} {
				if slices.Contains(r.Verbs, verb) {
					t.Errorf("%s may %s", role, verb)
				}
			}
			if !slices.Contains(r.Resources, "secrets") {
				continue
			}
			secrets = append(secrets, role)
			if strings.HasPrefix(role, "ClusterRole") {
				t.Errorf("%s is about the Secrets of all namespaces", role)
			}
			if !slices.Equal(r.Verbs, []string{"create"}) && !slices.Equal(r.ResourceNames, []string{"belay-ca"}) {
				t.Errorf("%s is about more than one Secret: %+v", role, r)
			}
		}
	}
	slices.Sort(secrets)
	want := []string{"Role belay-controller-ca", "Role belay-webhook-ca"}
	if secrets = slices.Compact(secrets); issued && len(secrets) > 0 || !issued && !slices.Equal(secrets, want) {
		t.Errorf("of Secrets: %q", secrets)
	}
	for key, object := range all {
		if kind, _, _ := strings.Cut(key, " "); kind != "RoleBinding" && kind != "ClusterRoleBinding" {
			continue
		}
		ref, _ := object["roleRef"].(map[string]any)
		role, _ := ref["kind"].(string)
		name, _ := ref["name"].(string)
		if _, ok := rules[role+" "+name]; !ok {
			t.Errorf("%s is of a role that is not there: %v", key, ref)
		}
		subjects, _ := object["subjects"].([]any)
		for _, s := range subjects {
			subject, _ := s.(map[string]any)
			name, _ := subject["name"].(string)
			if _, ok := all["ServiceAccount "+name]; !ok || subject["kind"] != "ServiceAccount" || subject["namespace"] != "belay-system" {
				t.Errorf("%s is for %v", key, s)
			}
		}
	}
}

// checkFieldsOfOthers (T09): an upgrade would take it back, or fail for it.
func checkFieldsOfOthers(t *testing.T, all objects) {
	for key, object := range all {
		kind, _, _ := strings.Cut(key, " ")
		switch kind {
		case "Secret", "ConfigMap", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "ClusterTrustBundle", "Lease", "APIService":
			t.Errorf("there is a %s", key)
		}
		if kind == "CustomResourceDefinition" {
			continue // schemas have all sorts of names
		}
		if path := find(object, "caBundle", "status", "creationTimestamp", "resourceVersion"); path != "" {
			t.Errorf("%s has %s", key, path)
		}
	}
}

// find is the path to the first of some fields.
func find(value any, fields ...string) string {
	switch value := value.(type) {
	case map[string]any:
		for k, v := range value {
			if slices.Contains(fields, k) {
				return k
			}
			if below := find(v, fields...); below != "" {
				return k + "." + below
			}
		}
	case []any:
		for _, v := range value {
			if below := find(v, fields...); below != "" {
				return "[]." + below
			}
		}
	}
	return ""
}
