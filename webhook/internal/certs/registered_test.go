package certs

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func TestRegistrations(t *testing.T) {
	t.Parallel()
	a, b := newCA(t, day0), newCA(t, day0)
	both := encodeAll(trusting(a, b))
	mutating := func(entries map[string][]byte) client.Object {
		m := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "belay"}}
		for name, bundle := range entries {
			m.Webhooks = append(m.Webhooks, admissionregistrationv1.MutatingWebhook{Name: name, ClientConfig: admissionregistrationv1.WebhookClientConfig{CABundle: bundle}})
		}
		return m
	}
	validating := func(name string, bundle []byte) client.Object {
		return &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "belay"}, Webhooks: []admissionregistrationv1.ValidatingWebhook{
			{Name: name, ClientConfig: admissionregistrationv1.WebhookClientConfig{CABundle: bundle}},
		}}
	}
	for name, c := range map[string]struct {
		objects []client.Object
		want    []string
	}{
		"nothing is registered":         {nil, nil},
		"all have it":                   {[]client.Object{mutating(map[string][]byte{"x.owner.belay.dev": both}), validating("x.name.belay.dev", b.certPEM)}, nil},
		"one lacks it":                  {[]client.Object{mutating(map[string][]byte{"x.owner.belay.dev": a.certPEM, "y.owner.belay.dev": both})}, []string{"x.owner.belay.dev"}},
		"one that validates lacks it":   {[]client.Object{mutating(map[string][]byte{"x.owner.belay.dev": both}), validating("x.name.belay.dev", a.certPEM)}, []string{"x.name.belay.dev"}},
		"one has no CA at all":          {[]client.Object{mutating(map[string][]byte{"x.owner.belay.dev": nil})}, []string{"x.owner.belay.dev"}},
		"another's entry lacks it":      {[]client.Object{mutating(map[string][]byte{"audit.example.com": a.certPEM, "x.owner.belay.dev": both})}, nil},
		"one of a name that ends alike": {[]client.Object{mutating(map[string][]byte{"audit.notbelay.dev": a.certPEM})}, nil},
		// belay-controller leaves it as it is, so a rotation would wait for it for ever.
		"one of belay's domain that is not belay's": {[]client.Object{mutating(map[string][]byte{"audit.belay.dev": a.certPEM, "x.owner.belay.dev": both}), validating("audit.belay.dev", nil)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Registrations(registry(t, nil, c.objects...))(t.Context(), b.Cert)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
	for _, kind := range []client.Object{&admissionregistrationv1.MutatingWebhookConfiguration{}, &admissionregistrationv1.ValidatingWebhookConfiguration{}} {
		if _, err := Registrations(registry(t, kind))(t.Context(), b.Cert); err == nil {
			t.Errorf("%T cannot be read, and it is said that all have it", kind)
		}
	}
}

// registry is a client that cannot read a kind.
func registry(t *testing.T, unreadable client.Object, objects ...client.Object) client.Reader {
	t.Helper()
	s := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(s))
	return fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if unreadable != nil {
				if _, mutating := o.(*admissionregistrationv1.MutatingWebhookConfiguration); mutating == isMutating(unreadable) {
					return errors.New("no")
				}
			}
			return c.Get(ctx, key, o, opts...)
		},
	}).Build()
}

func isMutating(o client.Object) bool {
	_, ok := o.(*admissionregistrationv1.MutatingWebhookConfiguration)
	return ok
}

func TestFew(t *testing.T) {
	t.Parallel()
	if got := few([]string{"a", "b", "c"}); got != "a, b, c" {
		t.Error(got)
	}
	if got := few([]string{"a", "b", "c", "d", "e"}); got != "a, b, c and 2 more" {
		t.Error(got)
	}
}

// TestASteadySecretIsWhatAnOlderReleaseKeeps: it makes a new CA when ca.crt is not tls.crt, byte
// for byte; after a downgrade the one in use stays.
func TestASteadySecretIsWhatAnOlderReleaseKeeps(t *testing.T) {
	t.Parallel()
	a, b := newCA(t, day0), newCA(t, day0)
	rotated := (&State{Signer: a, Next: b, Trusted: trusting(a, b)}).after(Serve, nil).after(Drop, nil)
	for name, st := range map[string]*State{"the first CA": {Signer: a, Trusted: trusting(a)}, "after a rotation": rotated} {
		if s := secret(st); string(s.Data["ca.crt"]) != string(s.Data["tls.crt"]) {
			t.Errorf("%s: they differ", name)
		}
	}
}
