package trust

import (
	"encoding/pem"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/certs"
)

func TestLacking(t *testing.T) {
	t.Parallel()
	a, err := certs.NewAuthority(time.Now(), time.Hour, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := certs.NewAuthority(time.Now(), time.Hour, nil)
	if err != nil {
		t.Fatal(err)
	}
	of := func(all ...*certs.Authority) string {
		var out []byte
		for _, a := range all {
			out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Cert.Raw})...)
		}
		return string(out)
	}
	in := func(namespace, bundle string, theirs bool) client.Object {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.CABundleName, Labels: labels}, Data: map[string]string{v1alpha1.CABundleKey: bundle}}
		if theirs {
			m.Labels = nil
		}
		return m
	}
	going := in("going", of(a), false)
	named := func(name string) client.Object { return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	terminating := named("x")
	terminating.SetFinalizers([]string{"example.com/hold"})
	now := metav1.Now()
	terminating.SetDeletionTimestamp(&now)
	going.SetDeletionTimestamp(&now)
	going.SetFinalizers([]string{"example.com/hold"})
	bundle := func(content string, theirs bool) client.Object {
		b := &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.CABundleName, Labels: labels}, Spec: certificatesv1.ClusterTrustBundleSpec{TrustBundle: content}}
		if theirs {
			b.Labels = nil
		}
		return b
	}
	for name, c := range map[string]struct {
		objects []client.Object
		bundles bool
		want    []string
	}{
		"nobody has a sidecar":                              {nil, false, nil},
		"all have it":                                       {[]client.Object{in("x", of(b), false), in("y", of(a, b), false), bundle(of(a, b), false)}, true, nil},
		"one namespace lacks it":                            {[]client.Object{named("x"), in("x", of(a), false), in("y", of(a, b), false)}, false, []string{"ConfigMap x/belay-ca"}},
		"one was emptied":                                   {[]client.Object{named("x"), in("x", "", false)}, false, []string{"ConfigMap x/belay-ca"}},
		"one is another's":                                  {[]client.Object{named("x"), in("x", of(a), true)}, false, nil},
		"one goes with its namespace":                       {[]client.Object{going}, false, nil},
		"the ClusterTrustBundle lacks it":                   {[]client.Object{bundle(of(a), false)}, true, []string{"ClusterTrustBundle belay-ca"}},
		"the ClusterTrustBundle is another's":               {[]client.Object{bundle(of(a), true)}, true, nil},
		"there is no ClusterTrustBundle yet":                {nil, true, nil},
		"the API server does not serve ClusterTrustBundles": {[]client.Object{bundle(of(a), false)}, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "", c.bundles, c.objects...)
			got, err := Lacking(w.client, w.live, w.mapper)(t.Context(), b.Cert)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
	t.Run("it cannot be read", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "", true, bundle(of(b), false))
		w.before = func(verb string, o client.Object) error {
			if _, ok := o.(*certificatesv1.ClusterTrustBundle); ok && verb == "get" {
				return errors.New("no")
			}
			return nil
		}
		if _, err := Lacking(w.Reconciler.client, w.live, w.mapper)(t.Context(), b.Cert); err == nil {
			t.Error("it is said that all have it")
		}
	})
}
