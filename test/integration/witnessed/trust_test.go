package witnessed

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/sidecar/settings"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// bundle is the CA in a namespace, with its ConfigMap.
func bundle(ctx context.Context, s *stack.Stack, namespace string) (*corev1.ConfigMap, error) {
	return s.Kube.CoreV1().ConfigMaps(namespace).Get(ctx, v1alpha1.CABundleName, metav1.GetOptions{})
}

// secretCA is the CA in the Secret.
func secretCA(ctx context.Context, t *testing.T, s *stack.Stack) string {
	t.Helper()
	secret, err := s.Kube.CoreV1().Secrets(stack.Namespace).Get(ctx, "belay-ca", metav1.GetOptions{})
	must(t, err)
	return string(secret.Data["ca.crt"])
}

// trusts waits until the ConfigMap of a namespace has a CA.
func trusts(ctx context.Context, t *testing.T, s *stack.Stack, namespace, want string) *corev1.ConfigMap {
	t.Helper()
	var cm *corev1.ConfigMap
	stack.Eventually(ctx, t, "the CA in "+namespace, func() (err error) {
		if cm, err = bundle(ctx, s, namespace); err != nil {
			return err
		}
		if cm.Data[v1alpha1.CABundleKey] != want {
			return fmt.Errorf("%q", cm.Data)
		}
		return nil
	})
	return cm
}

// mode sets the mode of a namespace; empty takes the label off.
func mode(ctx context.Context, t *testing.T, s *stack.Stack, namespace, mode string) {
	t.Helper()
	value := "null"
	if mode != "" {
		value = `"` + mode + `"`
	}
	_, err := s.Kube.CoreV1().Namespaces().Patch(ctx, namespace, types.MergePatchType, []byte(`{"metadata":{"labels":{"`+v1alpha1.ModeLabel+`":`+value+`}}}`), metav1.PatchOptions{})
	must(t, err)
}

func TestTrustIsBroughtAndKept(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	ca := secretCA(ctx, t, shared)
	ns := shared.TestNamespace(ctx, t, "ca", v1alpha1.ModeEnforce)
	maps := shared.Kube.CoreV1().ConfigMaps(ns)

	cm := trusts(ctx, t, shared, ns, ca)
	own, err := shared.Kube.CoreV1().Namespaces().Get(ctx, stack.Namespace, metav1.GetOptions{})
	must(t, err)
	if diff := cmp.Diff([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Namespace", Name: stack.Namespace, UID: own.UID}}, cm.OwnerReferences); diff != "" {
		t.Errorf("owner references (-want +got)\n%s", diff)
	}

	cm.Data[v1alpha1.CABundleKey], cm.Data["other"] = "edited", "stays"
	_, err = maps.Update(ctx, cm, metav1.UpdateOptions{})
	must(t, err)
	if cm = trusts(ctx, t, shared, ns, ca); cm.Data["other"] != "stays" {
		t.Errorf("%q", cm.Data)
	}

	yes := true
	cm.Data[v1alpha1.CABundleKey], cm.Immutable = "edited for ever", &yes
	_, err = maps.Update(ctx, cm, metav1.UpdateOptions{})
	must(t, err)
	if now := trusts(ctx, t, shared, ns, ca); now.UID == cm.UID {
		t.Error("an immutable one was changed")
	}

	must(t, maps.Delete(ctx, v1alpha1.CABundleName, metav1.DeleteOptions{}))
	trusts(ctx, t, shared, ns, ca)

	mode(ctx, t, shared, ns, v1alpha1.ModeWarn)
	mode(ctx, t, shared, ns, "")
	stack.Eventually(ctx, t, "the CA goes with the label", func() error {
		_, err := bundle(ctx, shared, ns)
		return stack.MustBeNotFound(err)
	})
	mode(ctx, t, shared, ns, v1alpha1.ModeWarn)
	trusts(ctx, t, shared, ns, ca)
}

// What somebody else has under the name stays, and is told, until it is gone.
func TestTrustTouchesNothingOfOthers(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	ns := shared.TestNamespace(ctx, t, "foreign", "")
	theirs, err := shared.Kube.CoreV1().ConfigMaps(ns).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.CABundleName}, Data: map[string]string{v1alpha1.CABundleKey: "theirs"},
	}, metav1.CreateOptions{})
	must(t, err)
	mode(ctx, t, shared, ns, v1alpha1.ModeEnforce)
	stack.Eventually(ctx, t, "it is told", func() error {
		all, err := shared.Kube.EventsV1().Events(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range all.Items {
			if e.Reason == v1alpha1.ReasonNameTaken && e.Type == corev1.EventTypeWarning && e.Regarding.Kind == "ConfigMap" && e.Regarding.UID == theirs.UID {
				return nil
			}
		}
		return fmt.Errorf("%+v", all.Items)
	})
	now, err := bundle(ctx, shared, ns)
	must(t, err)
	if diff := cmp.Diff(theirs, now); diff != "" {
		t.Errorf("it was touched (-want +got)\n%s", diff)
	}
	must(t, shared.Kube.CoreV1().ConfigMaps(ns).Delete(ctx, v1alpha1.CABundleName, metav1.DeleteOptions{}))
	trusts(ctx, t, shared, ns, secretCA(ctx, t, shared))
}

// Where the API server serves ClusterTrustBundles there is one with the same CA.
func TestTrustByAClusterTrustBundle(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	if _, err := shared.Kube.CertificatesV1().ClusterTrustBundles().List(ctx, metav1.ListOptions{Limit: 1}); apierrors.IsNotFound(err) {
		t.Skip("this API server does not serve them")
	}
	b, err := shared.Kube.CertificatesV1().ClusterTrustBundles().Get(ctx, v1alpha1.CABundleName, metav1.GetOptions{})
	must(t, err)
	if b.Spec.TrustBundle != secretCA(ctx, t, shared) || b.Spec.SignerName != "" || len(b.OwnerReferences) != 1 || b.OwnerReferences[0].Kind != "Namespace" {
		t.Errorf("%+v", b)
	}
}

// caSources is where the sidecar of a new Pod has the CA from.
func caSources(ctx context.Context, t *testing.T, s *stack.Stack, namespace string) corev1.VolumeProjection {
	t.Helper()
	p := injected(ctx, t, s, pod(namespace, "", 1), client.DryRunAll)
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; v.Name == v1alpha1.SidecarName && v.Projected != nil {
			for _, source := range v.Projected.Sources {
				if source.ServiceAccountToken == nil {
					return source
				}
			}
		}
	}
	t.Fatalf("the CA is not mounted: %+v", p.Spec.Volumes)
	return corev1.VolumeProjection{}
}

// injected creates a Pod, again until it has a sidecar: the registration comes a moment after
// belay, and an API server acts on it a moment later.
func injected(ctx context.Context, t *testing.T, s *stack.Stack, p *corev1.Pod, o ...client.CreateOption) *corev1.Pod {
	t.Helper()
	var out *corev1.Pod
	stack.Eventually(ctx, t, "a pod with a sidecar", func() error {
		out = p.DeepCopy()
		if out.Name == "" {
			out.GenerateName = "p-"
		}
		if err := s.Client.Create(ctx, out, o...); err != nil {
			return err
		}
		if stack.SidecarOf(out) != nil {
			return nil
		}
		if len(o) == 0 {
			if err := s.Client.Delete(ctx, out, client.GracePeriodSeconds(0)); err != nil {
				return err
			}
		}
		return errors.New("it has none")
	})
	return out
}

// What the shipped role lets belay-controller do about ConfigMaps, tried as the cache of its
// manager does it: across all namespaces, by field selector.
func TestTrustTakesNoMoreThanItsName(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	cfg, err := shared.Config(ctx, stack.Namespace, stack.ControllerAccount)
	must(t, err)
	kube, err := kubernetes.NewForConfig(cfg)
	must(t, err)
	ns := shared.TestNamespace(ctx, t, "rights", v1alpha1.ModeEnforce)
	trusts(ctx, t, shared, ns, secretCA(ctx, t, shared))
	named := metav1.ListOptions{FieldSelector: "metadata.name=" + v1alpha1.CABundleName}
	for what, c := range map[string]struct {
		try func() error
		may bool
	}{
		"list by name in all namespaces": {func() error {
			l, err := kube.CoreV1().ConfigMaps("").List(ctx, named)
			if err == nil && len(l.Items) == 0 {
				return errors.New("it lists nothing")
			}
			return err
		}, true},
		"watch by name in all namespaces": {func() error {
			w, err := kube.CoreV1().ConfigMaps("").Watch(ctx, named)
			if err == nil {
				w.Stop()
			}
			return err
		}, true},
		"get by name": {func() error {
			_, err := kube.CoreV1().ConfigMaps(ns).Get(ctx, v1alpha1.CABundleName, metav1.GetOptions{})
			return err
		}, true},
		"list all":                {func() error { _, err := kube.CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{}); return err }, false},
		"list all of a namespace": {func() error { _, err := kube.CoreV1().ConfigMaps(ns).List(ctx, metav1.ListOptions{}); return err }, false},
		"list by labels": {func() error {
			_, err := kube.CoreV1().ConfigMaps(ns).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=belay"})
			return err
		}, false},
		"list by another name": {func() error {
			_, err := kube.CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=kube-root-ca.crt"})
			return err
		}, false},
		"list all but one name": {func() error {
			_, err := kube.CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{FieldSelector: "metadata.name!=belay-ca"})
			return err
		}, false},
		"watch all": {func() error { _, err := kube.CoreV1().ConfigMaps("").Watch(ctx, metav1.ListOptions{}); return err }, false},
		"get another": {func() error {
			_, err := kube.CoreV1().ConfigMaps(ns).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
			return err
		}, false},
		"delete another": {func() error {
			return kube.CoreV1().ConfigMaps(ns).Delete(ctx, "kube-root-ca.crt", metav1.DeleteOptions{})
		}, false},
		"delete all of its name": {func() error { return kube.CoreV1().ConfigMaps(ns).DeleteCollection(ctx, metav1.DeleteOptions{}, named) }, false},
		"delete the trust bundle": {func() error {
			return kube.CertificatesV1().ClusterTrustBundles().Delete(ctx, v1alpha1.CABundleName, metav1.DeleteOptions{})
		}, false},
	} {
		if err := c.try(); (err == nil) != c.may || !c.may && !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// newCA is a CA of somebody else with its key, in PEM.
func newCA(t *testing.T) (ca, of string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "other"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:  x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(365 * 24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	must(t, err)
	kder, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: kder}))
}

// What disturbs others, on a stack of its own, one after the other.
func TestTrustThroughTrouble(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	s, err := stack.Start(ctx, stack.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, s.Stop()) })
	ns := s.TestNamespace(ctx, t, "trouble", v1alpha1.ModeEnforce)
	for _, sub := range []struct {
		name string
		run  func(context.Context, *testing.T, *stack.Stack, string)
	}{
		{"where nothing is known of kubelets Pods mount the ConfigMap", mountsTheConfigMap},
		{"namespaces of Kubernetes and belay's own get none", neverThere},
		{"a rotation is no trouble for a sidecar", rotation},
		{"a replica that is not trusted is not ready", untrusted},
		{"where every kubelet can, Pods mount the ClusterTrustBundle", mountsTheBundle},
		{"an API server that hangs", hangs},
	} {
		if !t.Run(sub.name, func(t *testing.T) { sub.run(ctx, t, s, ns) }) {
			for _, p := range append(s.Controllers(), s.Webhooks()...) {
				t.Logf("%s:\n%s", p.Name, p.Tail(15))
			}
		}
	}
}

func mountsTheConfigMap(ctx context.Context, t *testing.T, s *stack.Stack, ns string) {
	if source := caSources(ctx, t, s, ns); source.ConfigMap == nil || source.ConfigMap.Name != v1alpha1.CABundleName || source.ClusterTrustBundle != nil {
		t.Errorf("%+v", source)
	}
}

// mountsTheBundle: there is one node, with a kubelet that is new enough.
func mountsTheBundle(ctx context.Context, t *testing.T, s *stack.Stack, ns string) {
	if _, err := s.Kube.CertificatesV1().ClusterTrustBundles().List(ctx, metav1.ListOptions{Limit: 1}); apierrors.IsNotFound(err) {
		t.Skip("this API server does not serve them")
	}
	_, err := s.Kube.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "new"}, Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.37.0"}},
	}, metav1.CreateOptions{})
	must(t, err)
	byItself, byFlag := launched(t, s, ""), launched(t, s, "", "--sidecar-ca=ConfigMap")
	for p, want := range map[*stack.Process]string{byItself: "clusterTrustBundle", byFlag: "configMap"} {
		answersWith(ctx, t, p, "/readyz", http.StatusOK)
		stack.Eventually(ctx, t, "a patch with a "+want, func() error {
			patch, err := reviewed(ctx, s, p, pod(ns, "asked", 1))
			if err != nil {
				return err
			}
			if !strings.Contains(patch, `"`+want+`":`) || strings.Count(patch, `"configMap":`)+strings.Count(patch, `"clusterTrustBundle":`) != 1 {
				return errors.New(patch)
			}
			return nil
		})
	}
}

// reviewed asks one replica about a new Pod, as the API server does, and returns its patch.
func reviewed(ctx context.Context, s *stack.Stack, p *stack.Process, pod *corev1.Pod) (string, error) {
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	object, err := json.Marshal(pod)
	if err != nil {
		return "", err
	}
	review, err := json.Marshal(&admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "1", Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}, Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
			Namespace: pod.Namespace, Name: pod.Name, Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: object},
		},
	})
	if err != nil {
		return "", err
	}
	secret, err := s.Kube.CoreV1().Secrets(stack.Namespace).Get(ctx, "belay-ca", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(secret.Data["ca.crt"])
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("https://localhost:%d/mutate/sidecar", p.Port), bytes.NewReader(review))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	var answer admissionv1.AdmissionReview
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return "", err
	}
	if answer.Response == nil || !answer.Response.Allowed {
		return "", fmt.Errorf("%+v", answer.Response)
	}
	return string(answer.Response.Patch), nil
}

func neverThere(ctx context.Context, t *testing.T, s *stack.Stack, _ string) {
	never := []string{"kube-system", "kube-public", "kube-node-lease", stack.Namespace}
	for _, ns := range never {
		mode(ctx, t, s, ns, v1alpha1.ModeEnforce)
	}
	// What came before this one has been looked at when this one has been.
	after := s.TestNamespace(ctx, t, "after", v1alpha1.ModeEnforce)
	trusts(ctx, t, s, after, secretCA(ctx, t, s))
	for _, ns := range never {
		if _, err := bundle(ctx, s, ns); !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v", ns, err)
		}
		mode(ctx, t, s, ns, "")
	}
}

// served reports whether a port's certificate is of one of the CAs.
func served(port int, cas string) error {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(cas))
	conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port), &tls.Config{RootCAs: pool, ServerName: "localhost", MinVersion: tls.VersionTLS12})
	if err != nil {
		return err
	}
	return conn.Close()
}

func rotation(ctx context.Context, t *testing.T, s *stack.Stack, ns string) {
	target := newTarget(t, true)
	p := injected(ctx, t, s, pod(ns, "rotated", target.Port))
	c := sidecar(ctx, t, s, p)
	must(t, running(ctx, s, p, 1, 10*time.Second))
	becomes(ctx, t, s, p, corev1.ConditionTrue, 1)
	w := s.Webhooks()[0]
	old := secretCA(ctx, t, s)
	must(t, served(w.CollectorPort, old))

	secret, err := s.Kube.CoreV1().Secrets(stack.Namespace).Get(ctx, "belay-ca", metav1.GetOptions{})
	must(t, err)
	renewed, key := newCA(t) // put there by hand; belay's own rotation takes its time
	secret.Data = map[string][]byte{"tls.crt": []byte(renewed), "tls.key": []byte(key), "ca.crt": []byte(renewed)}
	_, err = s.Kube.CoreV1().Secrets(stack.Namespace).Update(ctx, secret, metav1.UpdateOptions{})
	must(t, err)
	trusts(ctx, t, s, ns, old+renewed)
	stack.Eventually(ctx, t, "the ClusterTrustBundle has both", func() error {
		b, err := s.Kube.CertificatesV1().ClusterTrustBundles().Get(ctx, v1alpha1.CABundleName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			if _, err := s.Kube.CertificatesV1().ClusterTrustBundles().List(ctx, metav1.ListOptions{}); err != nil {
				return nil //nolint:nilerr // this API server does not serve them
			}
		}
		if err == nil && b.Spec.TrustBundle != old+renewed {
			err = errors.New(b.Spec.TrustBundle)
		}
		return err
	})
	stack.Eventually(ctx, t, "the collector serves a certificate of the new one", func() error { return served(w.CollectorPort, renewed) })
	answersWith(ctx, t, w, "/readyz/certificate", http.StatusOK)

	must(t, s.Mount(ctx, p, c.Dir)) // as the kubelet does, a minute later
	if b, err := os.ReadFile(filepath.Join(c.Dir, settings.CAPath)); err != nil || string(b) != old+renewed {
		t.Errorf("mounted: %v %s", err, b)
	}
	// The connection of old ends, as all do.
	s.Detach()
	s.Attach()
	target.Ready.Store(false)
	becomes(ctx, t, s, p, corev1.ConditionFalse, 1)
	target.Ready.Store(true)
	becomes(ctx, t, s, p, corev1.ConditionTrue, 1)
	select {
	case <-c.Done():
		t.Error("the sidecar has ended")
	default:
	}
	// And the API server, which calls with the bundle of both.
	injected(ctx, t, s, pod(ns, "", target.Port), client.DryRunAll)
}

// overwrite puts another CA into both registrations, but for the entries of a name. It returns how
// many there are of both, and what the first one had.
func overwrite(ctx context.Context, t *testing.T, s *stack.Stack, ca []byte, but string) (spoilt, left int, was []byte) {
	t.Helper()
	put := func(name string, c *admissionregistrationv1.WebhookClientConfig) {
		if name == but {
			left++
			return
		}
		spoilt++
		c.CABundle = ca
	}
	key := client.ObjectKey{Name: v1alpha1.ConfigurationName}
	var m admissionregistrationv1.MutatingWebhookConfiguration
	must(t, s.Client.Get(ctx, key, &m))
	was = m.Webhooks[0].ClientConfig.CABundle
	for i := range m.Webhooks {
		put(m.Webhooks[i].Name, &m.Webhooks[i].ClientConfig)
	}
	must(t, s.Client.Update(ctx, &m))
	var v admissionregistrationv1.ValidatingWebhookConfiguration
	must(t, s.Client.Get(ctx, key, &v))
	for i := range v.Webhooks {
		put(v.Webhooks[i].Name, &v.Webhooks[i].ClientConfig)
	}
	must(t, s.Client.Update(ctx, &v))
	return spoilt, left, was
}

// entries waits until a replica has found so many entries that trust its certificate, and that
// do not.
func entries(ctx context.Context, t *testing.T, p *stack.Process, trusted, untrusted int) {
	t.Helper()
	stack.Eventually(ctx, t, fmt.Sprintf("%d entries trust the certificate, and %d do not", trusted, untrusted), func() error {
		_, _ = probed(ctx, p, "/readyz") // as the kubelet does: it looks when it is asked
		said, err := p.Metrics(ctx)
		if err != nil {
			return err
		}
		for value, n := range map[string]int{"trusted": trusted, "untrusted": untrusted} {
			if want := fmt.Sprintf("belay_registration_entries{trust=%q} %d\n", value, n); !strings.Contains(said, want) {
				return fmt.Errorf("no %s", want)
			}
		}
		return nil
	})
}

// untrusted: somebody writes another CA into the registrations while nobody repairs them. As long
// as an entry is left that trusts their certificate, replicas are ready and answer for it; then
// they say that they cannot be called, and are ready again when the registrations are repaired.
func untrusted(ctx context.Context, t *testing.T, s *stack.Stack, ns string) {
	w := s.Webhooks()[0]
	answersWith(ctx, t, w, "/readyz", http.StatusOK)
	controllers := s.Controllers()
	must(t, controllers[len(controllers)-1].Stop())
	other, _ := newCA(t)
	const left = "sidecar.annotation.belay.dev"
	spoilt, n, was := overwrite(ctx, t, s, []byte(other), left)
	if spoilt == 0 || n == 0 {
		t.Fatalf("%d entries, and %d of them are left", spoilt+n, n)
	}
	entries(ctx, t, w, n, spoilt)
	answersWith(ctx, t, w, "/readyz", http.StatusOK)
	if log := w.Tail(20); !strings.Contains(log, "do not trust the serving certificate") || !strings.Contains(log, "MutatingWebhookConfiguration/annotation.belay.dev") || strings.Contains(log, left) {
		t.Errorf("the log does not tell which: %s", log)
	}
	injected(ctx, t, s, pod(ns, "", 1), client.DryRunAll)

	overwrite(ctx, t, s, []byte(other), "")
	within, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	answersWith(within, t, w, "/readyz/certificate", http.StatusInternalServerError, "the API server would not trust the serving certificate for any entry: MutatingWebhookConfiguration/", "x509: certificate signed by unknown authority")
	answersWith(ctx, t, w, "/readyz", http.StatusInternalServerError, "[-]certificate failed", "[+]listener ok", "[+]live ok")
	answersWith(ctx, t, w, "/livez", http.StatusOK)

	_, err := s.StartController(ctx)
	must(t, err)
	answersWith(ctx, t, w, "/readyz", http.StatusOK)
	var m admissionregistrationv1.MutatingWebhookConfiguration
	must(t, s.Client.Get(ctx, client.ObjectKey{Name: v1alpha1.ConfigurationName}, &m))
	current := secretCA(ctx, t, s)
	if got := m.Webhooks[0].ClientConfig.CABundle; !bytes.Contains(got, []byte(current)) || !strings.Contains(string(was), current) {
		t.Errorf("repaired to %s", got)
	}
	// Sidecars follow what the registration says.
	trusts(ctx, t, s, ns, string(m.Webhooks[0].ClientConfig.CABundle))
	// An entry that somebody else has there is not belay's business.
	m.Webhooks = append(m.Webhooks, admissionregistrationv1.MutatingWebhook{
		Name: "audit.example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: sideEffects(), FailurePolicy: ignore(),
		ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: urlOf("https://audit.example.com/"), CABundle: []byte(other)},
		Rules: []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{"example.com"}, APIVersions: []string{"v1"}, Resources: []string{"things"}},
		}},
	})
	must(t, s.Client.Update(ctx, &m))
	again := s.TestNamespace(ctx, t, "again", v1alpha1.ModeEnforce)
	trusts(ctx, t, s, again, string(m.Webhooks[0].ClientConfig.CABundle))
	// A replica that has not looked yet looks now.
	fresh := launched(t, s, "")
	answersWith(ctx, t, fresh, "/readyz", http.StatusOK)
}

func sideEffects() *admissionregistrationv1.SideEffectClass {
	none := admissionregistrationv1.SideEffectClassNone
	return &none
}

func ignore() *admissionregistrationv1.FailurePolicyType {
	p := admissionregistrationv1.Ignore
	return &p
}

func urlOf(u string) *string { return &u }

// hangs: an API server that does not answer takes no replica out of the traffic, and ends none
// that starts then.
func hangs(ctx context.Context, t *testing.T, s *stack.Stack, _ string) {
	w := s.Webhooks()[0]
	answersWith(ctx, t, w, "/readyz", http.StatusOK)
	must(t, s.Plane.Do(ctx, "pause kube-apiserver"))
	fresh := launched(t, s, "")
	answersWith(ctx, t, fresh, "/livez", http.StatusOK)
	answersWith(ctx, t, fresh, "/readyz", http.StatusInternalServerError, "[-]caches-synced failed", "[+]live ok")
	for range 3 {
		if code, body := probed(ctx, w, "/readyz"); code != http.StatusOK {
			t.Errorf("a replica that was ready: %d %s", code, body)
		}
	}
	must(t, s.Plane.Do(ctx, "resume kube-apiserver"))
	answersWith(ctx, t, fresh, "/readyz", http.StatusOK)
}
