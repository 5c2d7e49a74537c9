package apifacts

import (
	"context"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
)

// Fact 9: OwnerReferencesPermissionEnforcement judges the requesting user after
// mutation: an injected blockOwnerDeletion: true can deny the user; any injected
// reference on UPDATE can, too. On CREATE, and with blockOwnerDeletion unset, none
// does.
func TestFact09_InjectedOwnerReferenceIsJudgedAsTheUsers(t *testing.T) {
	t.Parallel()
	may := func(resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{resource}, Verbs: verbs}
	}
	writer := may("configmaps", "create", "get", "update", "patch")
	deleter := may("configmaps", "create", "get", "update", "patch", "delete")
	finalizer := may("configmaps/finalizers", "update")
	creates := func(ctx context.Context, c coreclient.ConfigMapInterface) error {
		_, err := c.Create(ctx, configMap(metav1.ObjectMeta{Name: "new"}), metav1.CreateOptions{})
		return err
	}
	applies := func(ctx context.Context, c coreclient.ConfigMapInterface) error {
		_, err := c.Patch(ctx, "new", types.ApplyPatchType, []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"new"}}`), metav1.PatchOptions{FieldManager: "test"})
		return err
	}
	updates := func(ctx context.Context, c coreclient.ConfigMapInterface) error {
		_, err := c.Update(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "old"}, Data: map[string]string{"new": "yes"}}, metav1.UpdateOptions{})
		return err
	}
	patches := func(ctx context.Context, c coreclient.ConfigMapInterface) error {
		_, err := c.Patch(ctx, "old", types.MergePatchType, []byte(`{"data":{"new":"yes"}}`), metav1.PatchOptions{})
		return err
	}
	const (
		cannotBlock  = "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on"
		cannotDelete = "cannot set an ownerRef on a resource you can't delete"
	)
	blocking, notBlocking := new(true), new(false)
	for name, tc := range map[string]struct {
		rights []rbacv1.PolicyRule
		write  func(context.Context, coreclient.ConfigMapInterface) error
		block  *bool
		denial string
	}{
		"CREATE with blockOwnerDeletion unset":                        {[]rbacv1.PolicyRule{writer}, creates, nil, ""},
		"CREATE with blockOwnerDeletion false":                        {[]rbacv1.PolicyRule{writer}, creates, notBlocking, ""},
		"CREATE with blockOwnerDeletion true":                         {[]rbacv1.PolicyRule{writer}, creates, blocking, cannotBlock},
		"CREATE with blockOwnerDeletion true by one who may delete":   {[]rbacv1.PolicyRule{deleter}, creates, blocking, cannotBlock},
		"CREATE with blockOwnerDeletion true by one who may finalize": {[]rbacv1.PolicyRule{writer, finalizer}, creates, blocking, ""},
		"apply-create with blockOwnerDeletion unset":                  {[]rbacv1.PolicyRule{writer}, applies, nil, ""},
		"apply-create with blockOwnerDeletion true":                   {[]rbacv1.PolicyRule{writer}, applies, blocking, cannotBlock},
		"UPDATE with blockOwnerDeletion unset":                        {[]rbacv1.PolicyRule{writer}, updates, nil, cannotDelete},
		"UPDATE with blockOwnerDeletion unset by one who may delete":  {[]rbacv1.PolicyRule{deleter}, updates, nil, ""},
		"UPDATE with blockOwnerDeletion true by one who may delete":   {[]rbacv1.PolicyRule{deleter}, updates, blocking, cannotBlock},
		"UPDATE with blockOwnerDeletion true by one who may finalize": {[]rbacv1.PolicyRule{writer, finalizer}, updates, blocking, cannotDelete},
		"UPDATE with blockOwnerDeletion true by one who may do both":  {[]rbacv1.PolicyRule{deleter, finalizer}, updates, blocking, ""},
		"PATCH with blockOwnerDeletion unset":                         {[]rbacv1.PolicyRule{writer}, patches, nil, cannotDelete},
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t, strict)
			owner := f.createConfigMap(t, metav1.ObjectMeta{Name: "owner"})
			f.createConfigMap(t, metav1.ObjectMeta{Name: "old"})
			user := f.user(t, "user", tc.rights...)
			f.mutating(t, hookSpec{on: onConfigMaps(create, update), answer: func(*request) *response {
				reference := object{"apiVersion": "v1", "kind": "ConfigMap", "name": owner.Name, "uid": owner.UID}
				if tc.block != nil {
					reference["blockOwnerDeletion"] = *tc.block
				}
				return patch(operation{"add", "/metadata/ownerReferences", []object{reference}})
			}})

			err := tc.write(t.Context(), user.CoreV1().ConfigMaps(f.namespace))
			if tc.denial == "" && err != nil {
				t.Errorf("the user was denied: %v", err)
			}
			if tc.denial != "" && (code(err) != http.StatusForbidden || !strings.Contains(err.Error(), tc.denial)) {
				t.Errorf("the user got %v; want %d %q", err, http.StatusForbidden, tc.denial)
			}
		})
	}
}

// Beside fact 9: what is not changed is not judged, be it a reference that is there.
func TestFact09_OwnerReferenceThatIsThereIsNotJudged(t *testing.T) {
	f := setUp(t, strict)
	owner := f.createConfigMap(t, metav1.ObjectMeta{Name: "owner"})
	f.createConfigMap(t, metav1.ObjectMeta{Name: "old", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, BlockOwnerDeletion: new(true)},
	}})
	user := f.user(t, "user", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"patch"}})
	if _, err := user.CoreV1().ConfigMaps(f.namespace).Patch(t.Context(), "old", types.MergePatchType, []byte(`{"data":{"new":"yes"}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("the user was denied: %v", err)
	}
}
