package owned

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/otf"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// user is a client of somebody who may do everything, but is neither the garbage
// collector nor belay: what kubectl is in the hands of an administrator.
func user(ctx context.Context, t *testing.T, s *stack.Stack, ns string) client.Client {
	t.Helper()
	if _, err := s.Kube.CoreV1().ServiceAccounts(ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "admin"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "admin-of-" + ns},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: ns, Name: "admin"}},
	}
	if err := s.Client.Create(ctx, b); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Client.Delete(testContext(t), b) })
	cfg, err := s.Config(ctx, ns, "admin")
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(cfg, client.Options{Scheme: s.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// The guard: nobody deletes an Anchor, moves its references, or deletes its CRD by
// hand; the annotation lifts it.
func TestTheAnchorGuard(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	s := create(ctx, t, shared.Kube, otf.Secret(ns, "run-1", "job-1", "s3cret"))
	a := anchorOf(ctx, t, shared, s)
	admin := user(ctx, t, shared, ns)

	refused := func(what string, err error, part string) {
		t.Helper()
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: got %v, want a refusal that says %q", what, err, part)
		}
	}
	refused("kubectl delete anchor", admin.Delete(ctx, a), "belay.dev/allow-delete=true")
	refused("kubectl delete anchors --all", admin.DeleteAllOf(ctx, &v1alpha1.Anchor{}, client.InNamespace(ns)), "belay.dev/allow-delete=true")
	crd := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "anchors.belay.dev"}}
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	refused("kubectl delete crd", admin.Delete(ctx, crd), "belay.dev/allow-delete=true")
	refused("kubectl delete crds --field-selector", admin.DeleteAllOf(ctx, crd, client.MatchingFields{"metadata.name": "anchors.belay.dev"}), "belay.dev/allow-delete=true")
	planted := &v1alpha1.Anchor{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "planted"}, Spec: *a.Spec.DeepCopy()}
	refused("an anchor made by hand", admin.Create(ctx, planted), "made by belay-webhook alone")
	moved := a.DeepCopy()
	moved.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Secret", Name: s.Name, UID: s.UID}}
	refused("an owner reference set by hand", admin.Patch(ctx, moved, client.MergeFrom(a)), "belong to belay-controller")
	moved = a.DeepCopy()
	moved.Spec.BoundUID = "made-up"
	refused("a binding set by hand", admin.Patch(ctx, moved, client.MergeFrom(a)), "belong to belay-controller")

	labelled := a.DeepCopy()
	labelled.Labels["team"] = "a"
	if err := admin.Patch(ctx, labelled, client.MergeFrom(a)); err != nil {
		t.Errorf("a label: %v", err)
	}
	allowed := labelled.DeepCopy()
	allowed.Annotations = map[string]string{v1alpha1.AllowDeleteAnnotation: "true"}
	if err := admin.Patch(ctx, allowed, client.MergeFrom(labelled)); err != nil {
		t.Fatal(err)
	}
	// Orphaned, as the documented way to uninstall does it: the Secret stays.
	if err := admin.Delete(ctx, a, client.PropagationPolicy(metav1.DeletePropagationOrphan)); err != nil {
		t.Fatalf("with the annotation: %v", err)
	}
	eventually(ctx, t, "the secret is free of its anchor", func() error {
		got, err := shared.Kube.CoreV1().Secrets(ns).Get(ctx, s.Name, metav1.GetOptions{})
		if err == nil && len(got.OwnerReferences) > 0 {
			err = fmt.Errorf("owned by %+v", got.OwnerReferences)
		}
		return err
	})
}

// A namespace with Anchors, waiting and bound, can be deleted, whichever identity
// the controller-manager uses.
func TestTheGuardLetsTheGarbageCollectorAndTheNamespaceControllerThrough(t *testing.T) {
	t.Parallel()
	guardLetsThrough(t, shared)
}

func guardLetsThrough(t *testing.T, s *stack.Stack) {
	t.Helper()
	ctx := testContext(t)
	ns := namespace(ctx, t, s, v1alpha1.ModeEnforce)
	bound := create(ctx, t, s.Kube, otf.Secret(ns, "run-1", "job-1", "s3cret"))
	waiting := create(ctx, t, s.Kube, otf.Secret(ns, "run-2", "job-1", "s3cret"))
	collected := create(ctx, t, s.Kube, otf.Secret(ns, "run-3", "job-1", "s3cret"))
	anchorOf(ctx, t, s, waiting)
	waitBound(ctx, t, s, anchorOf(ctx, t, s, bound), job(ctx, t, s.Kube, ns, "run-1").UID)
	a3, j3 := anchorOf(ctx, t, s, collected), job(ctx, t, s.Kube, ns, "run-3")
	waitBound(ctx, t, s, a3, j3.UID)

	background := metav1.DeletePropagationBackground
	if err := s.Kube.BatchV1().Jobs(ns).Delete(ctx, "run-3", metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		t.Fatal(err)
	}
	waitGone(ctx, t, s, collected, a3)
	if err := s.Kube.CoreV1().Namespaces().Delete(ctx, ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the namespace is gone", func() error {
		n, err := s.Kube.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{})
		if err == nil {
			return fmt.Errorf("conditions %+v", n.Status.Conditions)
		}
		return mustBeNotFound(err)
	})
}
