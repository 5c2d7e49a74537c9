package registration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/facts"
)

// bench is a Reconciler over an API server in memory. The real one is in
// test/integration; here it is the writes that count.
type bench struct {
	t      *testing.T
	client client.WithWatch
	r      *Reconciler
	// allowed are the rights that both accounts have.
	allowed bool
	// refuse is asked before each write of a webhook configuration.
	refuse func(*admissionregistrationv1.MutatingWebhookConfiguration) error
	writes int // of webhook configurations, refused ones too
}

func set(t *testing.T, objects ...client.Object) *bench {
	t.Helper()
	s := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	if err := v1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, allowed: true}
	own := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "belay-system", UID: "ns-uid"}}
	b.client = fake.NewClientBuilder().WithScheme(s).WithObjects(append(objects, own)...).WithStatusSubresource(&v1alpha1.OwnerPolicy{}, &v1alpha1.NamePolicy{}).
		WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
				if review, ok := obj.(*authorizationv1.SubjectAccessReview); ok {
					review.Status.Allowed = b.allowed
					return nil
				}
				if err := b.count(obj); err != nil {
					return err
				}
				return c.Create(ctx, obj, opts...)
			},
			Update: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
				if err := b.count(obj); err != nil {
					return err
				}
				return c.Update(ctx, obj, opts...)
			},
		}).Build()
	b.r = &Reconciler{
		client: b.client, live: b.client, resolver: kinds{}, dampers: map[string]*damper{},
		o: Options{Endpoint: service, OwnNamespace: "belay-system", WebhookAccount: "belay-webhook", ControllerAccount: "belay-controller", CASecret: "belay-ca"},
	}
	return b
}

func (b *bench) count(obj client.Object) error {
	switch o := obj.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		b.writes++
		if b.refuse != nil {
			return b.refuse(o)
		}
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		b.writes++
	}
	return nil
}

type kinds struct{}

func (kinds) Resolve(_, kind string) (v1alpha1.ResolvedResource, error) {
	switch kind {
	case "Job":
		return builders.Jobs(), nil
	case "Secret":
		return builders.Secrets(), nil
	case "Pod":
		return builders.Pods(), nil
	}
	return v1alpha1.ResolvedResource{}, facts.ErrNoKind
}

func caSecret(t *testing.T) *corev1.Secret {
	t.Helper()
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "belay-system", Name: "belay-ca"},
		Data:       map[string][]byte{"ca.crt": authority(t, "ours", time.Now().Add(time.Hour))},
	}
}

func (b *bench) reconcile() reconcile.Result {
	b.t.Helper()
	result, err := b.r.Reconcile(b.t.Context(), reconcile.Request{})
	if err != nil {
		b.t.Fatal(err)
	}
	return result
}

// conditions are a policy's conditions as type: status reason.
func (b *bench) conditions(name string) map[string]string {
	b.t.Helper()
	out := map[string]string{}
	for _, c := range b.policy(name).Status.Conditions {
		out[c.Type] = string(c.Status) + " " + c.Reason
	}
	return out
}

func (b *bench) policy(name string) *v1alpha1.OwnerPolicy {
	b.t.Helper()
	var p v1alpha1.OwnerPolicy
	if err := b.client.Get(b.t.Context(), client.ObjectKey{Name: name}, &p); err != nil {
		b.t.Fatal(err)
	}
	return &p
}

// mutating is the mutating configuration; nil where there is none.
func (b *bench) mutating() *admissionregistrationv1.MutatingWebhookConfiguration {
	b.t.Helper()
	var c admissionregistrationv1.MutatingWebhookConfiguration
	err := b.client.Get(b.t.Context(), client.ObjectKey{Name: ConfigurationName}, &c)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return &c
}

func TestAPolicyIsAcceptedAndRegistered(t *testing.T) {
	t.Parallel()
	ca := caSecret(t)
	b := set(t, ca, builders.MakeOwnerPolicy("otf").Obj())
	b.reconcile()
	if diff := cmp.Diff(map[string]string{"Accepted": "True Accepted", "Registered": "True Registered"}, b.conditions("otf")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	m := b.mutating()
	if m == nil || len(m.Webhooks) != 1 || m.Webhooks[0].Name != "otf.owner.belay.dev" || string(m.Webhooks[0].ClientConfig.CABundle) != string(ca.Data["ca.crt"]) {
		t.Fatalf("%+v", m)
	}
	if len(m.OwnerReferences) != 1 || m.OwnerReferences[0].UID != "ns-uid" {
		t.Errorf("P03: the registration outlives belay's namespace: %+v", m.OwnerReferences)
	}
	writes := b.writes
	if b.reconcile(); b.writes != writes {
		t.Errorf("%d writes for nothing", b.writes-writes)
	}
}

func TestTheLastGoodSpecKeepsWorking(t *testing.T) {
	t.Parallel()
	b := set(t, caSecret(t), builders.MakeOwnerPolicy("otf").Obj())
	b.reconcile()
	p := b.policy("otf")
	p.Spec.Owner.Name, p.Generation = "object.", 2
	if err := b.client.Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	b.reconcile()
	if diff := cmp.Diff(map[string]string{"Accepted": "False InvalidExpression", "Registered": "True RegisteredPrevious"}, b.conditions("otf")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if in := b.policy("otf").Status.InForce; in == nil || in.Spec.Owner.Name != "object.metadata.name" || len(b.mutating().Webhooks) != 1 {
		t.Errorf("in force: %+v", in)
	}
}

func TestWhatWasNeverAcceptedIsNotRegistered(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		policy  *v1alpha1.OwnerPolicy
		allowed bool
		reason  string
		soon    bool
	}{
		"without the rights":    {builders.MakeOwnerPolicy("otf").Obj(), false, "MissingPermission", true},
		"without its CRD":       {builders.MakeOwnerPolicy("otf").Spec(func(s *v1alpha1.OwnerPolicySpec) { s.Owner.Kind = "SpurJob" }).Obj(), true, "UnknownKind", true},
		"with a bad expression": {builders.MakeOwnerPolicy("otf").Spec(func(s *v1alpha1.OwnerPolicySpec) { s.Owner.Name = "1" }).Obj(), true, "InvalidExpression", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := set(t, caSecret(t), c.policy)
			b.allowed = c.allowed
			result := b.reconcile()
			if diff := cmp.Diff(map[string]string{"Accepted": "False " + c.reason, "Registered": "False NotAccepted"}, b.conditions("otf")); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if b.mutating() != nil || (result.RequeueAfter <= recheckSoon) != c.soon {
				t.Errorf("next look in %s, %+v", result.RequeueAfter, b.mutating())
			}
		})
	}
}

func TestARightThatComesLaterIsNoticed(t *testing.T) {
	t.Parallel()
	b := set(t, caSecret(t), builders.MakeOwnerPolicy("otf").Obj())
	b.allowed = false
	b.reconcile()
	b.allowed = true
	b.reconcile()
	if p := b.policy("otf"); !meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionRegistered) || b.mutating() == nil {
		t.Errorf("%v", b.conditions("otf"))
	}
}

func TestWithoutACAThereIsNoRegistration(t *testing.T) {
	t.Parallel()
	for name, objects := range map[string][]client.Object{
		"no Secret":                    {builders.MakeOwnerPolicy("otf").Obj()},
		"a Secret without a CA so far": {builders.MakeOwnerPolicy("otf").Obj(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "belay-system", Name: "belay-ca"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := set(t, objects...)
			if result := b.reconcile(); result.RequeueAfter > recheckSoon || b.mutating() != nil {
				t.Errorf("%+v %+v", result, b.mutating())
			}
			if diff := cmp.Diff(map[string]string{"Accepted": "True Accepted", "Registered": "False CertificateNotReady"}, b.conditions("otf")); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestP05_CertManagersBundleIsLeftAlone(t *testing.T) {
	t.Parallel()
	b := set(t, builders.MakeOwnerPolicy("otf").Obj())
	b.r.o.InjectCAFrom = "belay-system/belay-webhook"
	b.reconcile()
	m := b.mutating()
	if m.Annotations["cert-manager.io/inject-ca-from"] != "belay-system/belay-webhook" || m.Webhooks[0].ClientConfig.CABundle != nil {
		t.Fatalf("%+v", m)
	}
	m.Webhooks[0].ClientConfig.CABundle = []byte("injected")
	if err := b.client.Update(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	writes := b.writes
	if b.reconcile(); b.writes != writes || string(b.mutating().Webhooks[0].ClientConfig.CABundle) != "injected" {
		t.Errorf("%d writes, %s", b.writes-writes, b.mutating().Webhooks[0].ClientConfig.CABundle)
	}
}

func TestThePolicyThatGoesTakesItsEntryAlong(t *testing.T) {
	t.Parallel()
	b := set(t, caSecret(t), builders.MakeOwnerPolicy("otf").Obj(), builders.MakeOwnerPolicy("spur").Spec(func(s *v1alpha1.OwnerPolicySpec) { s.WhenUnresolved = v1alpha1.UnresolvedDeny }).Obj())
	b.reconcile()
	if err := b.client.Delete(t.Context(), b.policy("spur")); err != nil {
		t.Fatal(err)
	}
	b.reconcile()
	var v admissionregistrationv1.ValidatingWebhookConfiguration
	if err := b.client.Get(t.Context(), client.ObjectKey{Name: ConfigurationName}, &v); err != nil {
		t.Fatal(err)
	}
	if m := b.mutating(); len(m.Webhooks) != 1 || m.Webhooks[0].Name != "otf.owner.belay.dev" || len(v.Webhooks) != 0 {
		t.Errorf("%+v %+v", m.Webhooks, v.Webhooks)
	}
}

func TestDriftIsRepaired(t *testing.T) {
	t.Parallel()
	b := set(t, caSecret(t), builders.MakeOwnerPolicy("otf").Obj())
	b.reconcile()
	m := b.mutating()
	m.Webhooks[0].NamespaceSelector = &metav1.LabelSelector{}
	m.Labels = nil
	if err := b.client.Update(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	b.reconcile()
	if m = b.mutating(); !excludes(m.Webhooks[0].NamespaceSelector, "kube-system") || m.Labels["app.kubernetes.io/name"] != "belay" {
		t.Errorf("%+v", m)
	}
}

// refusing is an API server that does not take entries with this expression.
func refusing(expression string) func(*admissionregistrationv1.MutatingWebhookConfiguration) error {
	return func(c *admissionregistrationv1.MutatingWebhookConfiguration) error {
		var errs field.ErrorList
		for i, w := range c.Webhooks {
			for n, m := range w.MatchConditions {
				if m.Expression == expression {
					errs = append(errs, field.Invalid(field.NewPath("webhooks").Index(i).Child("matchConditions").Index(n), expression, "no"))
				}
			}
		}
		if len(errs) == 0 {
			return nil
		}
		return apierrors.NewInvalid(admissionregistrationv1.SchemeGroupVersion.WithKind("MutatingWebhookConfiguration").GroupKind(), c.Name, errs)
	}
}

func TestAnEntryThatTheAPIServerRefusesConcernsItsPolicyAlone(t *testing.T) {
	t.Parallel()
	const refused = `object.metadata.name == "refused"`
	spur := builders.MakeOwnerPolicy("spur").Spec(func(s *v1alpha1.OwnerPolicySpec) {
		s.MatchConditions = []v1alpha1.MatchCondition{{Name: "x", Expression: refused}}
	})
	b := set(t, caSecret(t), builders.MakeOwnerPolicy("otf").Obj(), spur.Obj())
	b.refuse = refusing(refused)
	b.reconcile()
	if diff := cmp.Diff(map[string]string{"Accepted": "True Accepted", "Registered": "True Registered"}, b.conditions("otf")); diff != "" {
		t.Errorf("otf (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"Accepted": "True Accepted", "Registered": "False WriteFailed"}, b.conditions("spur")); diff != "" {
		t.Errorf("spur (-want +got)\n%s", diff)
	}
	if m := b.mutating(); m == nil || len(m.Webhooks) != 1 || m.Webhooks[0].Name != "otf.owner.belay.dev" {
		t.Errorf("%+v", m)
	}
}

func TestAnEntryThatWasGoodStaysWhenTheNextOneIsRefused(t *testing.T) {
	t.Parallel()
	const good, refused = `object.metadata.name == "good"`, `object.metadata.name == "refused"`
	with := func(expression string) []v1alpha1.MatchCondition {
		return []v1alpha1.MatchCondition{{Name: "x", Expression: expression}}
	}
	b := set(t, caSecret(t), builders.MakeOwnerPolicy("otf").Spec(func(s *v1alpha1.OwnerPolicySpec) { s.MatchConditions = with(good) }).Obj())
	b.refuse = refusing(refused)
	b.reconcile()
	p := b.policy("otf")
	p.Spec.MatchConditions, p.Generation = with(refused), 2
	if err := b.client.Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	b.reconcile()
	if got := b.conditions("otf")["Registered"]; got != "False WriteFailed" {
		t.Errorf("the policy says %q", got)
	}
	if w := b.mutating().Webhooks; len(w) != 1 || w[0].MatchConditions[1].Expression != good {
		t.Errorf("%+v", w)
	}
}

// TestAnEntryOfAnotherWriterThatIsRefusedIsNoEndlessLoop: an older API server may
// have stored what this one takes no longer.
func TestAnEntryOfAnotherWriterThatIsRefusedIsNoEndlessLoop(t *testing.T) {
	t.Parallel()
	const refused = `object.metadata.name == "refused"`
	b := set(t, caSecret(t), builders.MakeOwnerPolicy("otf").Obj())
	b.reconcile()
	m := b.mutating()
	foreign := m.Webhooks[0].DeepCopy()
	foreign.Name, foreign.MatchConditions[0].Expression = "audit.example.com", refused
	m.Webhooks = append(m.Webhooks, *foreign)
	if err := b.client.Update(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if err := b.client.Create(t.Context(), builders.MakeOwnerPolicy("spur").Obj()); err != nil {
		t.Fatal(err)
	}
	b.writes = 0
	b.refuse = func(c *admissionregistrationv1.MutatingWebhookConfiguration) error {
		if b.writes > 10 {
			panic("endless")
		}
		return refusing(refused)(c)
	}
	if _, err := b.r.Reconcile(t.Context(), reconcile.Request{}); err == nil {
		t.Error("no error, so no back-off")
	}
	if got := b.conditions("otf")["Registered"]; got != "False WriteFailed" {
		t.Errorf("the policy says %q", got)
	}
}

// TestP05_AFightIsToldOf has a writer that undoes each write.
func TestP05_AFightIsToldOf(t *testing.T) {
	t.Parallel()
	b := set(t, caSecret(t), builders.MakeOwnerPolicy("otf").Obj())
	b.reconcile()
	for range 5 {
		m := b.mutating()
		m.Webhooks[0].NamespaceSelector = &metav1.LabelSelector{}
		b.writes--
		if err := b.client.Update(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		b.reconcile()
	}
	// The first write was a creation, which is no repair.
	if b.writes > 3 {
		t.Errorf("%d writes", b.writes)
	}
	if got := b.conditions("otf")["Registered"]; got != "False Contested" {
		t.Errorf("the policy says %q", got)
	}
}

func TestWritesThatFailAreTriedAgainAtOnce(t *testing.T) {
	t.Parallel()
	b := set(t, caSecret(t), builders.MakeOwnerPolicy("otf").Obj())
	b.refuse = func(*admissionregistrationv1.MutatingWebhookConfiguration) error {
		return apierrors.NewInternalError(errors.New("etcdserver: leader changed"))
	}
	for range 3 {
		if _, err := b.r.Reconcile(t.Context(), reconcile.Request{}); err == nil {
			t.Fatal("no error, so no back-off")
		}
		if got := b.conditions("otf")["Registered"]; got != "False WriteFailed" {
			t.Errorf("the policy says %q", got)
		}
	}
	b.refuse = nil
	b.reconcile()
	if b.mutating() == nil {
		t.Error("not written")
	}
}
