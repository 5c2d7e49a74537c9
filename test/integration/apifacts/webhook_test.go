package apifacts

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Operations, as rules of webhooks say them.
const (
	create = admissionregistrationv1.Create
	update = admissionregistrationv1.Update
	remove = admissionregistrationv1.Delete
)

type (
	request  = admissionv1.AdmissionRequest
	response = admissionv1.AdmissionResponse
	rule     = admissionregistrationv1.RuleWithOperations
)

// A hookSpec says what a webhook is called for and what it does then.
type hookSpec struct {
	on rule
	// answer may be called by many at once. None, or nil, allows.
	answer func(*request) *response
	// transport may answer instead, without the protocol, and tells if it did.
	transport func(http.ResponseWriter) bool
	// ignore registers failurePolicy Ignore in place of Fail.
	ignore bool
}

// A hook is a registered admission webhook and what it was asked.
type hook struct {
	name string
	spec hookSpec

	mu     sync.Mutex
	active bool // a probe has come
	asked  []request
}

// requests returns what the webhook was asked so far, in order.
func (h *hook) requests() []request {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.asked)
}

// isActive tells whether the API server knows the webhook.
func (h *hook) isActive() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.active
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, fmt.Sprintf("no review: %v", err), http.StatusBadRequest)
		return
	}
	var answer *response
	switch {
	case isProbe(review.Request):
		h.mu.Lock()
		h.active = true
		h.mu.Unlock()
	case review.Request.UserInfo.Username == rootCAPublisher:
	default:
		h.mu.Lock()
		h.asked = append(h.asked, *review.Request)
		h.mu.Unlock()
		if h.spec.transport != nil && h.spec.transport(w) {
			return
		}
		if h.spec.answer != nil {
			answer = h.spec.answer(review.Request)
		}
	}
	if answer == nil {
		answer = &response{Allowed: true}
	}
	answer.UID = review.Request.UID
	review.Request, review.Response = nil, answer
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // the API server reports what it misses
}

// patch allows with a JSON patch.
func patch(operations ...operation) *response {
	body, err := json.Marshal(operations)
	if err != nil {
		panic(err) // only strings, maps and numbers are ever put in
	}
	return &response{Allowed: true, Patch: body, PatchType: new(admissionv1.PatchTypeJSONPatch)}
}

// An operation is one step of a JSON patch. Value is always sent, as null, too.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// on makes a rule for a resource, as in "batch/v1/jobs/status".
func on(group, version, resource string, operations ...admissionregistrationv1.OperationType) rule {
	return rule{
		Operations: operations,
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{group}, APIVersions: []string{version}, Resources: []string{resource},
		},
	}
}

func onConfigMaps(operations ...admissionregistrationv1.OperationType) rule {
	return on("", "v1", "configmaps", operations...)
}

func onWidgets(operations ...admissionregistrationv1.OperationType) rule {
	return on(widgetResource.Group, widgetResource.Version, widgetResource.Resource, operations...)
}

func onWidgetStatus(operations ...admissionregistrationv1.OperationType) rule {
	return on(widgetResource.Group, widgetResource.Version, widgetResource.Resource+"/status", operations...)
}

// mutating registers a mutating webhook for the namespace of the test and waits
// until it is called.
func (f *fixture) mutating(t *testing.T, spec hookSpec) *hook {
	t.Helper()
	h := &hook{name: "mutating.apifacts.belay.dev", spec: spec}
	client, policy, rules := f.serve(t, h)
	configurations := f.admin.AdmissionregistrationV1().MutatingWebhookConfigurations()
	made, err := configurations.Create(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: f.namespace + "-"},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name:                    h.name,
			ClientConfig:            client,
			FailurePolicy:           &policy,
			Rules:                   rules,
			NamespaceSelector:       f.selector(),
			SideEffects:             new(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f.cleanup(t, func(ctx context.Context) error {
		return configurations.Delete(ctx, made.Name, metav1.DeleteOptions{})
	})
	f.waitActive(t, h)
	return h
}

// validating registers a validating webhook for the namespace of the test and
// waits until it is called.
func (f *fixture) validating(t *testing.T, spec hookSpec) *hook {
	t.Helper()
	h := &hook{name: "validating.apifacts.belay.dev", spec: spec}
	client, policy, rules := f.serve(t, h)
	configurations := f.admin.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	made, err := configurations.Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: f.namespace + "-"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name:                    h.name,
			ClientConfig:            client,
			FailurePolicy:           &policy,
			Rules:                   rules,
			NamespaceSelector:       f.selector(),
			SideEffects:             new(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f.cleanup(t, func(ctx context.Context) error {
		return configurations.Delete(ctx, made.Name, metav1.DeleteOptions{})
	})
	f.waitActive(t, h)
	return h
}

// serve starts the server of a webhook and returns what is the same in both
// kinds of its registration.
func (f *fixture) serve(t *testing.T, h *hook) (admissionregistrationv1.WebhookClientConfig, admissionregistrationv1.FailurePolicyType, []rule) {
	t.Helper()
	certificate, ca := newCertificate(t)
	server := httptest.NewUnstartedServer(h)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections() // the API server keeps its own open
		server.Close()
	})
	policy := admissionregistrationv1.Fail
	if h.spec.ignore {
		policy = admissionregistrationv1.Ignore
	}
	return admissionregistrationv1.WebhookClientConfig{URL: &server.URL, CABundle: ca}, policy, []rule{h.spec.on, probeRule()}
}

// newCertificate makes the certificate of a server on 127.0.0.1, which is its
// own authority.
func newCertificate(t *testing.T) (certificate tls.Certificate, ca []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "apifacts"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// selector selects the namespace of the test.
func (f *fixture) selector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: f.namespace}}
}

// Probes are Leases, which no test uses otherwise. Every webhook is registered
// for them, and they are never stored.
func probeRule() rule { return on("coordination.k8s.io", "v1", "leases", create) }

// rootCAPublisher puts a ConfigMap into every new namespace, some time after it
// was created; it is nobody's business here.
const rootCAPublisher = "system:serviceaccount:kube-system:root-ca-cert-publisher"

func isProbe(r *request) bool { return r.Resource.Resource == "leases" }

// waitActive waits until the API server calls the webhook; it hears of
// registrations by a watch.
func (f *fixture) waitActive(t *testing.T, h *hook) {
	t.Helper()
	eventually(t, "the API server calls the webhook", func(ctx context.Context) (bool, error) {
		_, err := f.admin.CoordinationV1().Leases(f.namespace).Create(ctx,
			&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-"}},
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil && !apierrors.IsInternalError(err) {
			return false, err
		}
		return h.isActive(), nil
	})
}
