package owned

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

var (
	reads  = []string{"get", "list", "watch"}
	writes = []string{"create", "update", "patch", "delete", "deletecollection"}
)

// belay has no right on dependents. Both service accounts, under the shipped roles with the
// otf preset, are refused every verb on Secrets outside belay's namespace, every write on Jobs
// and Pods, and everything on kinds that no policy names; of Pods belay-webhook reads what
// reports are about and writes the status, and of ConfigMaps belay-controller has those of the
// CA's name.
func TestLeastPrivilege(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	all := append(append([]string{}, reads...), writes...)
	for _, account := range []string{stack.WebhookAccount, stack.ControllerAccount} {
		cfg, err := shared.Config(ctx, stack.Namespace, account)
		if err != nil {
			t.Fatal(err)
		}
		kube, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ask := func(a authorizationv1.ResourceAttributes) bool {
			t.Helper()
			r, err := kube.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &a},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return r.Status.Allowed
		}
		may := func(verb, group, resource, namespace string) bool {
			t.Helper()
			resource, subresource, _ := strings.Cut(resource, "/")
			return ask(authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: resource, Subresource: subresource, Namespace: namespace})
		}
		refused := func(verbs []string, group, resource string) {
			t.Helper()
			for _, verb := range verbs {
				for _, where := range []string{"", ns, "default", "kube-system"} {
					if may(verb, group, resource, where) {
						t.Errorf("%s may %s %s.%s in %q", account, verb, resource, group, where)
					}
				}
			}
		}
		wheres := []string{"", ns, "kube-system"}
		// exactly asserts which of all verbs an account has in all of wheres, and that it has
		// no others in any. name is empty for all names.
		exactly := func(whose, group, resource, name string, verbs ...string) {
			t.Helper()
			if account != whose {
				verbs = nil
			}
			plain, subresource, _ := strings.Cut(resource, "/")
			for _, verb := range all {
				for _, where := range wheres {
					got := ask(authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: plain, Subresource: subresource, Namespace: where, Name: name})
					if want := slices.Contains(verbs, verb); got != want {
						t.Errorf("%s may %s %s.%s %q in %q: %t, want %t", account, verb, resource, group, name, where, got, want)
					}
				}
			}
		}
		refused(all, "", "secrets")
		refused(writes, "batch", "jobs")
		for _, other := range uninvolved(t) {
			for _, verb := range all {
				if may(verb, other.Group, other.Resource, "") {
					t.Errorf("%s may %s %s", account, verb, other)
				}
			}
		}
		refused([]string{"create", "patch", "delete", "update"}, "", "namespaces")
		refused(writes, "apiextensions.k8s.io", "customresourcedefinitions")
		if account == stack.WebhookAccount {
			refused(reads, "apiextensions.k8s.io", "customresourcedefinitions")
		}
		for _, verb := range reads {
			if !may(verb, "batch", "jobs", "") {
				t.Errorf("%s may not %s jobs, which the preset grants", account, verb)
			}
		}

		// Reports: whose token it is, the Pod that it is about, and the condition.
		exactly(stack.WebhookAccount, "authentication.k8s.io", "tokenreviews", "", "create")
		exactly(stack.WebhookAccount, "", "pods", "", reads...)
		exactly(stack.WebhookAccount, "", "pods/status", "", "patch")
		for _, sub := range []string{"log", "exec", "attach", "portforward", "proxy", "eviction", "binding", "ephemeralcontainers", "resize"} {
			exactly("", "", "pods/"+sub, "")
		}
		exactly(stack.WebhookAccount, "", "nodes", "", "list")
		exactly("", "", "nodes/proxy", "")
		exactly("", "", "nodes/status", "")
		exactly("", "", "serviceaccounts/token", "")

		// The CA: anybody's name may be created, since a create cannot be limited to one.
		exactly(stack.ControllerAccount, "", "configmaps", "", "create")
		exactly(stack.ControllerAccount, "", "configmaps", "kube-root-ca.crt", "create")
		exactly(stack.ControllerAccount, "", "configmaps", v1alpha1.CABundleName, "create", "get", "list", "watch", "update", "delete")
		// Kubernetes lets every service account read these.
		for name, verbs := range map[string][]string{"": {"create"}, "other": {"create"}, v1alpha1.CABundleName: {"create", "update"}} {
			if account != stack.ControllerAccount {
				verbs = nil
			}
			for _, verb := range append([]string{"attest"}, writes...) {
				got := ask(authorizationv1.ResourceAttributes{Verb: verb, Group: "certificates.k8s.io", Resource: "clustertrustbundles", Name: name})
				if want := slices.Contains(verbs, verb); got != want {
					t.Errorf("%s may %s ClusterTrustBundle %q: %t, want %t", account, verb, name, got, want)
				}
			}
		}
		if account == stack.ControllerAccount && !ask(authorizationv1.ResourceAttributes{Verb: "get", Group: "certificates.k8s.io", Resource: "clustertrustbundles", Name: v1alpha1.CABundleName}) {
			t.Errorf("%s may not get its ClusterTrustBundle", account)
		}

		// belay's own kinds, and the registrations.
		webhook := account == stack.WebhookAccount
		either := func(webhooks, controllers []string) []string {
			if webhook {
				return webhooks
			}
			return controllers
		}
		for _, policies := range []string{"ownerpolicies", "namepolicies", "recoverypolicies"} {
			exactly(account, "belay.dev", policies, "", reads...)
			exactly(account, "belay.dev", policies+"/status", "", either(nil, []string{"update"})...)
		}
		exactly(account, "belay.dev", "anchors", "", either([]string{"create", "get"}, append([]string{"update", "delete"}, reads...))...)
		exactly(account, "belay.dev", "anchors/status", "", either(nil, []string{"patch"})...)
		for _, configurations := range []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations"} {
			exactly(account, "admissionregistration.k8s.io", configurations, v1alpha1.ConfigurationName, either([]string{"get"}, append([]string{"create", "update", "delete"}, reads...))...)
			exactly(account, "admissionregistration.k8s.io", configurations, "other", either(nil, []string{"create", "list", "watch"})...)
		}

		// In belay's own namespace.
		wheres = []string{stack.Namespace}
		exactly(account, "", "secrets", "other", either([]string{"create"}, nil)...)
		exactly(account, "", "secrets", "belay-ca", append(either([]string{"create"}, nil), append([]string{"update"}, reads...)...)...)
		exactly(account, "coordination.k8s.io", "leases", "other", either([]string{"create", "get", "update"}, []string{"create", "list", "delete"})...)
		exactly(account, "coordination.k8s.io", "leases", "belay-controller", either([]string{"create", "get", "update"}, []string{"create", "get", "update", "list", "delete"})...)
		exactly(account, "discovery.k8s.io", "endpointslices", "", either(nil, []string{"list"})...)
		for _, r := range []schema.GroupResource{{Resource: "serviceaccounts"}, {Resource: "services"}, {Resource: "pods/exec"}, {Group: "apps", Resource: "deployments"}, {Group: "rbac.authorization.k8s.io", Resource: "roles"}, {Group: "rbac.authorization.k8s.io", Resource: "rolebindings"}} {
			exactly("", r.Group, r.Resource, "")
		}

		// Not only asked: tried.
		if _, err := kube.CoreV1().Secrets(ns).List(ctx, metav1.ListOptions{}); err == nil {
			t.Errorf("%s listed secrets", account)
		}
		if _, err := kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{}); (err == nil) != (account == stack.WebhookAccount) {
			t.Errorf("%s listed pods: %v", account, err)
		}
		if err := kube.CoreV1().Pods(ns).Delete(ctx, "any", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("%s deleted a pod: %v", account, err)
		}
	}
}

// uninvolved are all the kinds that the API server serves and that neither the otf policy
// nor belay's own work concerns. Kinds that other tests bring, with roles of their own,
// are left out.
func uninvolved(t *testing.T) []schema.GroupResource {
	t.Helper()
	_, lists, err := shared.Kube.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	concerned := map[schema.GroupResource]bool{
		{Resource: "secrets"}: true, {Resource: "namespaces"}: true, {Group: "batch", Resource: "jobs"}: true, // asked for one by one
		{Resource: "pods"}: true, {Resource: "nodes"}: true, {Resource: "configmaps"}: true, {Group: "authentication.k8s.io", Resource: "tokenreviews"}: true,
		{Group: "events.k8s.io", Resource: "events"}: true, {Resource: "events"}: true,
		{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"}: true,
		// Every account may ask about itself.
		{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"}: true, {Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"}: true,
		{Group: "authentication.k8s.io", Resource: "selfsubjectreviews"}: true,
		// Kubernetes lets every service account read these (system:cluster-trust-bundle-discovery).
		{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}:                      true,
		{Group: "admissionregistration.k8s.io", Resource: "mutatingwebhookconfigurations"}:   true,
		{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}:               true, // asked for below
		{Group: "admissionregistration.k8s.io", Resource: "validatingwebhookconfigurations"}: true,
		{Group: "batch", Resource: "cronjobs"}:                                               true, {Group: "storage.k8s.io", Resource: "storageclasses"}: true,
	}
	seen := map[schema.GroupResource]bool{}
	var out []schema.GroupResource
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range l.APIResources {
			gr := schema.GroupResource{Group: gv.Group, Resource: r.Name}
			if strings.Contains(r.Name, "/") || concerned[gr] || seen[gr] || gv.Group == "belay.dev" || gv.Group == "spur.amd.com" {
				continue
			}
			seen[gr] = true
			out = append(out, gr)
		}
	}
	if len(out) < 40 {
		t.Fatalf("only %d kinds: %v", len(out), out)
	}
	return out
}

// Without the preset's role a policy is not accepted, and says which account lacks
// which right; with the role it is, without being touched.
func TestMissingPermissionIsSaidAndMended(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	p := newPolicy("no-rights", func(s *v1alpha1.OwnerPolicySpec) {
		s.Owner = v1alpha1.OwnerTarget{APIVersion: "batch/v1", Kind: "CronJob", Selector: `{"id": object.metadata.name}`}
	})
	if err := shared.Client.Create(ctx, p); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = shared.Client.Delete(testContext(t), p) })
	waitCondition(t, shared, p.Name, v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonMissingPermission,
		"serviceaccount belay-system/belay-webhook may not get cronjobs.batch", "belay-webhook may not list cronjobs.batch",
		"serviceaccount belay-system/belay-controller may not watch cronjobs.batch", "rbac.belay.dev/aggregate-to-owner-reader")
	waitCondition(t, shared, p.Name, v1alpha1.ConditionRegistered, metav1.ConditionFalse, v1alpha1.ReasonNotAccepted)

	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "test-cronjobs", Labels: map[string]string{"rbac.belay.dev/aggregate-to-owner-reader": "true"}},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"batch"}, Resources: []string{"cronjobs"}, Verbs: reads}},
	}
	if err := shared.Client.Create(ctx, role); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = shared.Client.Delete(testContext(t), role) })
	waitCondition(t, shared, p.Name, v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
	waitCondition(t, shared, p.Name, v1alpha1.ConditionRegistered, metav1.ConditionTrue, v1alpha1.ReasonRegistered)
}

// waitCondition waits until a policy says this, with all the parts in its message.
func waitCondition(t *testing.T, s *stack.Stack, policy, kind string, status metav1.ConditionStatus, reason string, parts ...string) {
	t.Helper()
	ctx := testContext(t)
	eventually(ctx, t, "condition "+kind, func() error {
		var p v1alpha1.OwnerPolicy
		if err := s.Client.Get(ctx, client.ObjectKey{Name: policy}, &p); err != nil {
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

// The manifests can be applied again over an installed belay, without force, though
// Kubernetes itself has filled in the rules of the aggregated role.
func TestTheManifestsCanBeAppliedAgain(t *testing.T) { // not beside others, which add and remove rules
	ctx := testContext(t)
	objects, err := stack.ReadManifests(ctx, filepath.Join(stack.Root(), "manifests", "base"))
	if err != nil {
		t.Fatal(err)
	}
	var role rbacv1.ClusterRole
	if err := shared.Client.Get(ctx, client.ObjectKey{Name: "belay-owner-reader"}, &role); err != nil || len(role.Rules) == 0 {
		t.Fatalf("the role is not aggregated: %+v, %v", role.Rules, err)
	}
	if err := shared.Apply(ctx, objects...); err != nil {
		t.Fatal(err)
	}
	var after rbacv1.ClusterRole
	if err := shared.Client.Get(ctx, client.ObjectKey{Name: "belay-owner-reader"}, &after); err != nil || len(after.Rules) < len(role.Rules) {
		t.Errorf("rules %+v became %+v, %v", role.Rules, after.Rules, err)
	}
}
