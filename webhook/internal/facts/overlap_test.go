package facts

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

func TestOverlaps(t *testing.T) {
	t.Parallel()
	other := func(change func(*v1alpha1.NamePolicySpec), kinds ...v1alpha1.ResolvedResource) *v1alpha1.NamePolicy {
		return builders.MakeNamePolicy("other").Spec(change).InForce(kinds...).Obj()
	}
	labelled := func(key, value string) func(*v1alpha1.NamePolicySpec) {
		return func(s *v1alpha1.NamePolicySpec) {
			s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
		}
	}
	inTeam := func(team string) func(*v1alpha1.NamePolicySpec) {
		return func(s *v1alpha1.NamePolicySpec) {
			s.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": team}}
		}
	}
	for name, c := range map[string]struct {
		other *v1alpha1.NamePolicy
		want  string
	}{
		"everything of the kind": {other(func(*v1alpha1.NamePolicySpec) {}, builders.Jobs()), "other"},
		"another kind":           {other(func(*v1alpha1.NamePolicySpec) {}, builders.Pods()), ""},
		"labels that it has":     {other(labelled("app", "a"), builders.Jobs()), "other"},
		"labels that it has not": {other(labelled("app", "b"), builders.Jobs()), ""},
		"this namespace":         {other(inTeam("x"), builders.Pods(), builders.Jobs()), "other"},
		"other namespaces":       {other(inTeam("y"), builders.Jobs()), ""},
		"conditions, which are unknown": {other(func(s *v1alpha1.NamePolicySpec) {
			s.MatchConditions = []v1alpha1.MatchCondition{{Name: "a", Expression: "true"}}
		}, builders.Jobs()), ""},
		"never accepted": {builders.MakeNamePolicy("other").Obj(), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := runtime.NewScheme()
			if err := errors.Join(clientgoscheme.AddToScheme(s), v1alpha1.AddToScheme(s)); err != nil {
				t.Fatal(err)
			}
			me := builders.MakeNamePolicy("me").InForce(builders.Jobs()).Obj()
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab", Labels: map[string]string{"team": "x"}}}
			live := fake.NewClientBuilder().WithScheme(s).WithObjects(me, c.other, ns).Build()
			unsynced := fake.NewClientBuilder().WithScheme(s).WithInterceptorFuncs(interceptor.Funcs{
				Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
					return errors.New("not synced")
				},
				List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
					return errors.New("not synced")
				},
			}).Build()
			for what, cached := range map[string]client.Reader{"cached": live, "live": unsynced} {
				got, err := NewOverlaps(cached, live).Find(t.Context(), "me", builders.Jobs(), "lab", labels.Set{"app": "a"})
				if err != nil || got != c.want {
					t.Errorf("%s: %q, %v, want %q", what, got, err, c.want)
				}
			}
			if _, err := NewOverlaps(unsynced, unsynced).Find(t.Context(), "me", builders.Jobs(), "lab", nil); err == nil {
				t.Error("what could not be listed overlaps with nothing")
			}
		})
	}
}
