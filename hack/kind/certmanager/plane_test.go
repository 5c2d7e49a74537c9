package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	cmscheme "github.com/cert-manager/cert-manager/pkg/client/clientset/versioned/scheme"
	"github.com/google/go-cmp/cmp"
	admission "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	kscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// releaseFolder names a folder with the commands "controller" and "cainjector" of the release, as
// its images have them.
const releaseFolder = "BELAY_CERT_MANAGER_RELEASE"

// On a real control plane, with the rights of the manifests: a chain of issuers,
// renewals that are asked for and that are due, and injection.
func TestOnAControlPlane(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a control plane")
	}
	binary := filepath.Join(t.TempDir(), "certmanager")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	t.Run("built", func(t *testing.T) {
		kubeconfig := startPlane(t)
		c := connect(t, kubeconfig)
		for deployment, container := range install(t, c, binary) {
			address := freeAddress(t)
			start(t, actingAs(t, kubeconfig, deployment), binary, append(container.args, "--health-address", address)...)
			eventually(t, deployment+" answering its probe", func(ctx context.Context) error {
				return get(ctx, "http://"+address+container.probe)
			})
		}
		issueAndInject(t, c)
	})
	t.Run("released", func(t *testing.T) {
		folder := os.Getenv(releaseFolder)
		if folder == "" {
			t.Skip(releaseFolder + " names no folder with the release's commands")
		}
		kubeconfig := startPlane(t)
		c := connect(t, kubeconfig)
		for deployment, container := range install(t, c, binary, "--released") {
			account := actingAs(t, kubeconfig, deployment)
			// Both serve metrics on one port, as each has a Pod to itself.
			args := append(slices.Clone(container.args), "--metrics-listen-address", freeAddress(t))
			if container.probe == "" {
				start(t, account, filepath.Join(folder, "cainjector"), args...)
				continue
			}
			address := freeAddress(t)
			start(t, account, filepath.Join(folder, "controller"), append(args, "--internal-healthz-listen-address", address)...)
			eventually(t, deployment+" answering its probe", func(ctx context.Context) error {
				return get(ctx, "http://"+address+container.probe)
			})
		}
		issueAndInject(t, c)
	})
}

func issueAndInject(t *testing.T, c client.Client) {
	t.Helper()
	const ns = "tls"
	create(t, c, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: ns, Name: name} }
	create(t, c, &cmapi.Issuer{ObjectMeta: named("root"), Spec: cmapi.IssuerSpec{IssuerConfig: cmapi.IssuerConfig{SelfSigned: &cmapi.SelfSignedIssuer{}}}})
	create(t, c, &cmapi.Certificate{ObjectMeta: named("ca"), Spec: cmapi.CertificateSpec{
		CommonName: "test CA", IsCA: true, SecretName: "ca", IssuerRef: cmmeta.IssuerReference{Name: "root"},
	}})
	create(t, c, &cmapi.Issuer{ObjectMeta: named("ca"), Spec: cmapi.IssuerSpec{IssuerConfig: cmapi.IssuerConfig{CA: &cmapi.CAIssuer{SecretName: "ca"}}}})
	create(t, c, &cmapi.Certificate{ObjectMeta: named("leaf"), Spec: cmapi.CertificateSpec{
		DNSNames: []string{"hook.tls.svc"}, SecretName: "leaf", IssuerRef: cmmeta.IssuerReference{Name: "ca"},
	}})
	for _, hook := range registrations(ns + "/leaf") {
		create(t, c, hook)
	}

	ca, leaf := issued(t, c, ns, "ca", 1), issued(t, c, ns, "leaf", 1)
	verify(t, ca, leaf)
	awaitInjection(t, c, ca)

	askForRenewal(t, c, ns, "leaf")
	renewed := issued(t, c, ns, "leaf", 2)
	verify(t, ca, renewed)
	if bytes.Equal(leaf.Data[corev1.TLSCertKey], renewed.Data[corev1.TLSCertKey]) {
		t.Error("the renewed certificate is the old one")
	}
	if diff := cmp.Diff(ca.Data, issued(t, c, ns, "ca", 1).Data); diff != "" {
		t.Error("the CA changed with its leaf")
	}

	// Nothing refuses a life of seconds, as the webhook would.
	create(t, c, &cmapi.Certificate{ObjectMeta: named("brief"), Spec: cmapi.CertificateSpec{
		DNSNames: []string{"brief.tls.svc"}, SecretName: "brief", IssuerRef: cmmeta.IssuerReference{Name: "ca"},
		Duration: &metav1.Duration{Duration: 20 * time.Second}, RenewBefore: &metav1.Duration{Duration: 17 * time.Second},
	}})
	verify(t, ca, issued(t, c, ns, "brief", 3))

	// A new CA comes with the next leaf: into its Secret, and from there into
	// the registrations, where cainjector leaves the old one beside it.
	askForRenewal(t, c, ns, "ca")
	next := issued(t, c, ns, "ca", 2)
	if bytes.Equal(ca.Data[corev1.TLSCertKey], next.Data[corev1.TLSCertKey]) {
		t.Error("the renewed CA is the old one")
	}
	askForRenewal(t, c, ns, "leaf")
	verify(t, next, issued(t, c, ns, "leaf", 3))
	awaitInjection(t, c, ca, next)
}

func registrations(certificate string) []client.Object {
	annotated := metav1.ObjectMeta{Name: "hook", Annotations: map[string]string{cmapi.WantInjectAnnotation: certificate}}
	nowhere := admission.WebhookClientConfig{URL: new("https://127.0.0.1:1/")}
	none, ignore := admission.SideEffectClassNone, admission.Ignore
	rules := []admission.RuleWithOperations{{
		Operations: []admission.OperationType{admission.Connect},
		Rule:       admission.Rule{APIGroups: []string{"nobody.example.com"}, APIVersions: []string{"v1"}, Resources: []string{"things"}},
	}}
	return []client.Object{
		&admission.MutatingWebhookConfiguration{ObjectMeta: annotated, Webhooks: []admission.MutatingWebhook{{
			Name: "hook.example.com", ClientConfig: nowhere, SideEffects: &none, FailurePolicy: &ignore, Rules: rules, AdmissionReviewVersions: []string{"v1"},
		}}},
		&admission.ValidatingWebhookConfiguration{ObjectMeta: annotated, Webhooks: []admission.ValidatingWebhook{{
			Name: "hook.example.com", ClientConfig: nowhere, SideEffects: &none, FailurePolicy: &ignore, Rules: rules, AdmissionReviewVersions: []string{"v1"},
		}}},
	}
}

// issued waits until a Certificate is Ready at the revision, or a later one,
// and returns its Secret.
func issued(t *testing.T, c client.Client, ns, name string, revision int) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	eventually(t, fmt.Sprintf("revision %d of certificate %q", revision, name), func(ctx context.Context) error {
		cert := &cmapi.Certificate{}
		if err := c.Get(ctx, client.ObjectKey{Namespace: ns, Name: name}, cert); err != nil {
			return err
		}
		ready := false
		for _, condition := range cert.Status.Conditions {
			switch condition.Type {
			case cmapi.CertificateConditionReady:
				ready = condition.Status == cmmeta.ConditionTrue
			case cmapi.CertificateConditionIssuing:
				if condition.Status == cmmeta.ConditionTrue {
					return fmt.Errorf("it is being issued: %s", condition.Message)
				}
			}
		}
		if !ready || cert.Status.Revision == nil || *cert.Status.Revision < revision {
			return fmt.Errorf("its status is %+v", cert.Status)
		}
		return c.Get(ctx, client.ObjectKey{Namespace: ns, Name: cert.Spec.SecretName}, secret)
	})
	return secret
}

// askForRenewal does what "cmctl renew" does.
func askForRenewal(t *testing.T, c client.Client, ns, name string) {
	t.Helper()
	eventually(t, "asking for the renewal of "+name, func(ctx context.Context) error {
		cert := &cmapi.Certificate{}
		if err := c.Get(ctx, client.ObjectKey{Namespace: ns, Name: name}, cert); err != nil {
			return err
		}
		cert.Status.Conditions = append(cert.Status.Conditions, cmapi.CertificateCondition{
			Type: cmapi.CertificateConditionIssuing, Status: cmmeta.ConditionTrue, Reason: "ManuallyTriggered",
			Message: "asked for by a test", LastTransitionTime: new(metav1.Now()), ObservedGeneration: cert.Generation,
		})
		return c.Status().Update(ctx, cert)
	})
}

// verify checks that the leaf is the CA's, and that its Secret has the CA.
func verify(t *testing.T, ca, leaf *corev1.Secret) {
	t.Helper()
	if !bytes.Equal(ca.Data[corev1.TLSCertKey], leaf.Data[cmmeta.TLSCAKey]) {
		t.Errorf("the Secret %q has another CA", leaf.Name)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca.Data[corev1.TLSCertKey]) {
		t.Fatal("the CA's Secret has no certificate")
	}
	block, _ := pem.Decode(leaf.Data[corev1.TLSCertKey])
	if block == nil {
		t.Fatalf("the Secret %q has no certificate", leaf.Name)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	// At its own time: a life of seconds may be over.
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: cert.NotBefore}); err != nil {
		t.Errorf("the certificate of %q: %v", leaf.Name, err)
	}
}

// awaitInjection waits until both registrations have just these CAs.
func awaitInjection(t *testing.T, c client.Client, cas ...*corev1.Secret) {
	t.Helper()
	want := map[string]bool{}
	for _, ca := range cas {
		want[strings.TrimSpace(string(ca.Data[corev1.TLSCertKey]))] = true
	}
	eventually(t, fmt.Sprintf("%d CAs in the registrations", len(want)), func(ctx context.Context) error {
		var mutating admission.MutatingWebhookConfiguration
		var validating admission.ValidatingWebhookConfiguration
		if err := errors.Join(c.Get(ctx, client.ObjectKey{Name: "hook"}, &mutating), c.Get(ctx, client.ObjectKey{Name: "hook"}, &validating)); err != nil {
			return err
		}
		for kind, bundle := range map[string][]byte{
			"mutating":   mutating.Webhooks[0].ClientConfig.CABundle,
			"validating": validating.Webhooks[0].ClientConfig.CABundle,
		} {
			got := map[string]bool{}
			for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
				got[strings.TrimSpace(string(pem.EncodeToMemory(block)))] = true
			}
			if diff := cmp.Diff(want, got); diff != "" {
				return fmt.Errorf("the %s registration has other CAs (-want +got):\n%s", kind, diff)
			}
		}
		return nil
	})
}

// startPlane runs a control plane for as long as the test, and returns its
// kubeconfig.
func startPlane(t *testing.T) string {
	t.Helper()
	// Not bound to the test's context: the end of its input is what ends it.
	plane := exec.Command("go", "run", "-C", "../../controlplane", ".", "up", "--until-eof")
	plane.Stderr = os.Stderr
	stdin, err := plane.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := plane.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := plane.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		if err := plane.Wait(); err != nil {
			t.Errorf("the control plane ended: %v", err)
		}
	})
	var ready struct{ Kubeconfig string }
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil {
		t.Fatalf("the control plane did not start: %v", err)
	}
	if err := json.Unmarshal(line, &ready); err != nil {
		t.Fatalf("the control plane printed %q: %v", line, err)
	}
	return ready.Kubeconfig
}

func connect(t *testing.T, kubeconfig string) client.Client {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	scheme := runtime.NewScheme()
	if err := errors.Join(kscheme.AddToScheme(scheme), cmscheme.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// install applies what "manifests" prints as "kubectl apply --server-side"
// does, and waits until the API is served. It returns the containers of the
// Deployments, which have the names of their service accounts.
func install(t *testing.T, c client.Client, binary string, args ...string) map[string]container {
	t.Helper()
	command := exec.CommandContext(t.Context(), binary, append([]string{"manifests"}, args...)...)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("manifests: %v", err)
	}
	all := objects(t, out)
	for _, object := range all {
		if err := c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("test")); err != nil {
			t.Fatalf("applying %s %q: %v", object.GetKind(), object.GetName(), err)
		}
	}
	eventually(t, "the API of cert-manager", func(ctx context.Context) error {
		err := c.List(ctx, &cmapi.CertificateList{})
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return err
		}
		return errors.Join(err, c.List(ctx, &cmapi.IssuerList{}), c.List(ctx, &cmapi.ClusterIssuerList{}), c.List(ctx, &cmapi.CertificateRequestList{}))
	})
	return containers(all)
}

// A container is the only one of a Deployment.
type container struct {
	args  []string
	probe string // path; empty if there is none
}

// containers are those of the Deployments among the objects.
func containers(objects []*unstructured.Unstructured) map[string]container {
	out := map[string]container{}
	for _, object := range objects {
		all, _, _ := unstructured.NestedSlice(object.Object, "spec", "template", "spec", "containers")
		for _, each := range all {
			var c container
			c.args, _, _ = unstructured.NestedStringSlice(each.(map[string]any), "args")
			c.probe, _, _ = unstructured.NestedString(each.(map[string]any), "livenessProbe", "httpGet", "path")
			out[object.GetName()] = c
		}
	}
	return out
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func get(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	return nil
}

func objects(t *testing.T, stream []byte) []*unstructured.Unstructured {
	t.Helper()
	var found []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(stream), 4096); ; {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatalf("reading the manifests: %v", err)
		}
		if len(object.Object) > 0 {
			found = append(found, object)
		}
	}
}

// actingAs returns a kubeconfig with the rights of one of the service accounts.
func actingAs(t *testing.T, kubeconfig, account string) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range config.AuthInfos {
		user.Impersonate = "system:serviceaccount:cert-manager:" + account
		user.ImpersonateGroups = []string{"system:serviceaccounts", "system:authenticated"}
	}
	file := filepath.Join(t.TempDir(), account)
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// start runs the binary for as long as the test, and shows its log when the
// test failed. That it was refused anything is a failure.
func start(t *testing.T, kubeconfig, binary string, args ...string) {
	t.Helper()
	name := filepath.Base(binary) + " " + args[0]
	command := exec.Command(binary, append(args, "--kubeconfig", kubeconfig)...)
	// The release's cainjector has the flag, and reads this.
	command.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	log := &safeBuffer{}
	command.Stderr = log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	t.Cleanup(func() {
		if err := command.Process.Signal(syscall.SIGTERM); err != nil {
			t.Errorf("%s had ended before the test: %v", name, err)
		}
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("%s ended with %v", name, err)
			}
		case <-time.After(30 * time.Second):
			t.Errorf("%s does not end: %v", name, errors.Join(command.Process.Kill(), <-ended))
		}
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, "forbidden") {
				t.Errorf("%s lacks a right: %s", name, line)
			}
		}
		if t.Failed() {
			t.Logf("log of %s:\n%s", name, log.String())
		}
	})
}

type safeBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func create(t *testing.T, c client.Client, object client.Object) {
	t.Helper()
	if err := c.Create(t.Context(), object); err != nil {
		t.Fatalf("creating %T %q: %v", object, object.GetName(), err)
	}
}

// eventually waits until check returns nil.
func eventually(t *testing.T, what string, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	var last error
	for {
		err := check(ctx)
		if err == nil {
			t.Logf("%s after %v", what, time.Since(began).Round(time.Millisecond))
			return
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, last)
		case <-tick.C:
		}
	}
}
