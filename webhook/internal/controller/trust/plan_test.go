package trust

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"maps"
	"math/big"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// configMap is one of belay's, changed.
func configMap(bundle string, change ...func(*corev1.ConfigMap)) *corev1.ConfigMap {
	out := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "lab", Name: v1alpha1.CABundleName, Labels: maps.Clone(labels),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Namespace", Name: "belay-system", UID: "own"}},
		},
		Data: map[string]string{v1alpha1.CABundleKey: bundle},
	}
	for _, c := range change {
		c(out)
	}
	return out
}

func immutable(cm *corev1.ConfigMap) { yes := true; cm.Immutable = &yes }

func relabelled(cm *corev1.ConfigMap) { delete(cm.Labels, "app.kubernetes.io/component") }

func TestPlan(t *testing.T) {
	t.Parallel()
	foreignOne := func(cm *corev1.ConfigMap) { cm.Labels = map[string]string{"app": "other"} }
	for name, c := range map[string]struct {
		want   bool
		bundle string
		is     *corev1.ConfigMap
		owner  types.UID
		action action
		out    *corev1.ConfigMap
	}{
		"an opted-in namespace without one":                 {true, "new", nil, "own", create, configMap("new")},
		"belay's own namespace is not known":                {true, "new", nil, "", create, configMap("new", func(cm *corev1.ConfigMap) { cm.OwnerReferences = nil })},
		"the CA is not known yet":                           {true, "", nil, "own", leave, nil},
		"a CA that is there is better than none":            {true, "", configMap("old"), "own", leave, nil},
		"one that is as it should be":                       {true, "new", configMap("new"), "own", leave, nil},
		"one with an older CA, or that was edited":          {true, "new", configMap("old"), "own", update, configMap("new")},
		"one that somebody emptied":                         {true, "new", configMap("", func(cm *corev1.ConfigMap) { cm.Data = nil }), "own", update, configMap("new")},
		"what others added stays":                           {true, "new", configMap("old", func(cm *corev1.ConfigMap) { cm.Data["x"], cm.Labels["y"] = "1", "2" }), "own", update, configMap("new", func(cm *corev1.ConfigMap) { cm.Data["x"], cm.Labels["y"] = "1", "2" })},
		"one that somebody made immutable, as it should be": {true, "new", configMap("new", immutable), "own", leave, nil},
		"one that somebody made immutable, with an old CA":  {true, "new", configMap("old", immutable), "own", remove, configMap("old", immutable)},
		"somebody else's":                                   {true, "new", configMap("x", foreignOne), "own", foreign, nil},
		"somebody else's with the same content":             {true, "new", configMap("new", foreignOne), "own", foreign, nil},
		"one that has lost a label is not belay's":          {true, "new", configMap("old", relabelled), "own", foreign, nil},
		"somebody else's before the CA is known":            {true, "", configMap("x", foreignOne), "own", foreign, nil},
		"somebody else's where none is wanted":              {false, "new", configMap("x", foreignOne), "own", leave, nil},
		"none where none is wanted":                         {false, "new", nil, "own", leave, nil},
		"one where none is wanted any more":                 {false, "new", configMap("new"), "own", remove, configMap("new")},
		"and the CA is not known":                           {false, "", configMap("new"), "own", remove, configMap("new")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := c.is.DeepCopy()
			a, out := plan("lab", c.want, c.bundle, c.is, c.owner, "belay-system")
			if diff := cmp.Diff(c.out, out); a != c.action || diff != "" {
				t.Errorf("%q (-want +got)\n%s", a, diff)
			}
			if diff := cmp.Diff(before, c.is); diff != "" {
				t.Errorf("what is in the cache was changed (-want +got)\n%s", diff)
			}
			if a == create {
				out.Labels["x"] = "y"
				if _, shared := labels["x"]; shared {
					t.Error("the labels are shared")
				}
			}
		})
	}
}

func TestWanted(t *testing.T) {
	t.Parallel()
	now := metav1.Now()
	for name, c := range map[string]struct {
		namespace, mode string
		deleted         *metav1.Time
		want            bool
	}{
		"enforce":                         {"lab", "enforce", nil, true},
		"warn: its Pods have sidecars":    {"lab", "warn", nil, true},
		"not opted in":                    {"lab", "", nil, false},
		"a mode that is none":             {"lab", "Enforce", nil, false},
		"the default one":                 {"default", "enforce", nil, true},
		"belay's own, whatever its label": {"belay-system", "enforce", nil, false},
		"Kubernetes' own":                 {"kube-system", "enforce", nil, false},
		"another of Kubernetes":           {"kube-node-lease", "warn", nil, false},
		"a name that begins alike":        {"kubeflow", "enforce", nil, true},
		"a name with belay's own in it":   {"belay-system-2", "enforce", nil, true},
		"one that is being deleted":       {"lab", "enforce", &now, false},
	} {
		ns := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: c.namespace, DeletionTimestamp: c.deleted}}
		if c.mode != "" {
			ns.Labels = map[string]string{v1alpha1.ModeLabel: c.mode}
		}
		if got := wanted(ns, "belay-system"); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// newCA is the certificate of a CA, in PEM.
func newCA(t *testing.T, name string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// entry is an entry of a registration.
func entry(name, bundle string) admissionregistrationv1.MutatingWebhook {
	return admissionregistrationv1.MutatingWebhook{Name: name, ClientConfig: admissionregistrationv1.WebhookClientConfig{CABundle: []byte(bundle)}}
}

func TestBundleOf(t *testing.T) {
	t.Parallel()
	a, b, c := newCA(t, "a"), newCA(t, "b"), newCA(t, "c")
	block, _ := pem.Decode([]byte(a))
	block.Headers = map[string]string{"Subject": "a"}
	withHeaders := string(pem.EncodeToMemory(block))
	key := string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: []byte{1, 2, 3}}))
	unreadable := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte{1, 2, 3}}))
	block.Type, block.Headers = "X509 CERTIFICATE", nil
	otherType := string(pem.EncodeToMemory(block))
	const name = "otf.owner.belay.dev"
	for what, test := range map[string]struct {
		entries []admissionregistrationv1.MutatingWebhook
		want    string
	}{
		"no entries":                           {nil, ""},
		"an entry without a CA":                {[]admissionregistrationv1.MutatingWebhook{entry(name, "")}, ""},
		"one":                                  {[]admissionregistrationv1.MutatingWebhook{entry(name, a)}, a},
		"the old and the new one":              {[]admissionregistrationv1.MutatingWebhook{entry(name, a+b)}, a + b},
		"the same in all entries":              {[]admissionregistrationv1.MutatingWebhook{entry(name, a+b), entry("annotation.belay.dev", a+b), entry("sidecar.annotation.belay.dev", a+b)}, a + b},
		"an entry that lags behind":            {[]admissionregistrationv1.MutatingWebhook{entry(name, a), entry("x.name.belay.dev", a+b), entry("x.recovery.belay.dev", b+c)}, a + b + c},
		"an entry that has none yet":           {[]admissionregistrationv1.MutatingWebhook{entry(name, ""), entry("x.sidecar.belay.dev", b)}, b},
		"an entry that somebody else wrote":    {[]admissionregistrationv1.MutatingWebhook{entry("audit.belay.dev", b)}, ""},
		"twice in one entry":                   {[]admissionregistrationv1.MutatingWebhook{entry(name, a+a)}, a},
		"with headers and without is one":      {[]admissionregistrationv1.MutatingWebhook{entry(name, withHeaders+a)}, a},
		"headers are left out":                 {[]admissionregistrationv1.MutatingWebhook{entry(name, withHeaders)}, a},
		"text around":                          {[]admissionregistrationv1.MutatingWebhook{entry(name, "# the old one\n"+a+"\n\n# the new one\n"+b+"end")}, a + b},
		"a private key never gets out":         {[]admissionregistrationv1.MutatingWebhook{entry(name, key+a)}, a},
		"what is no certificate is left out":   {[]admissionregistrationv1.MutatingWebhook{entry(name, unreadable+a)}, a},
		"a type that the API server refuses":   {[]admissionregistrationv1.MutatingWebhook{entry(name, otherType+b)}, b},
		"no PEM at all":                        {[]admissionregistrationv1.MutatingWebhook{entry(name, "Cg==")}, ""},
		"half a certificate":                   {[]admissionregistrationv1.MutatingWebhook{entry(name, a[:len(a)/2])}, ""},
		"half a certificate and a whole one":   {[]admissionregistrationv1.MutatingWebhook{entry(name, a[:len(a)/2]+"\n"+b)}, b},
		"an entry that somebody else added":    {[]admissionregistrationv1.MutatingWebhook{entry("audit.example.com", c), entry(name, a)}, a},
		"nothing but what somebody else added": {[]admissionregistrationv1.MutatingWebhook{entry("audit.example.com", c)}, ""},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, bundleOf(test.entries)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
