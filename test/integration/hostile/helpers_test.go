package hostile

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// otf are the labels that the preset's policy about Secrets is about.
var otf = map[string]string{"app.kubernetes.io/name": "otf-job", "app.kubernetes.io/part-of": "otf"}

func token(ns, name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: otf}}
}

// job is a Job that nobody runs.
func job(ns, name, work string, labels map[string]string) *batchv1.Job {
	nobody := "example.com/nobody"
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: labels, Annotations: map[string]string{"work": work}},
		Spec: batchv1.JobSpec{
			ManagedBy: &nobody,
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever,
				Containers:    []corev1.Container{{Name: "main", Image: "registry.example/app:1"}},
			}},
		},
	}
}

// tenant is somebody who may do everything in one namespace: also what no ordinary user may,
// such as writing the status of his Pods, and belay's own kinds.
func tenant(ctx context.Context, t testing.TB) (ns string, c client.Client) {
	t.Helper()
	ns = shared.TestNamespace(ctx, t, "mallory", v1alpha1.ModeEnforce)
	must(t, shared.Client.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "mallory"}}))
	must(t, shared.Client.Create(ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "all"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}},
	}))
	must(t, shared.Client.Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "all"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "all"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: ns, Name: "mallory"}},
	}))
	cfg, err := shared.Config(ctx, ns, "mallory")
	must(t, err)
	c, err = client.New(cfg, client.Options{Scheme: shared.Client.Scheme(), Mapper: shared.Client.RESTMapper()})
	must(t, err)
	// RBAC is read from caches of the API server.
	stack.Eventually(ctx, t, "the tenant's rights", func() error {
		return c.List(ctx, &v1alpha1.AnchorList{}, client.InNamespace(ns))
	})
	return ns, c
}

// trust is a client's TLS configuration for belay's ports.
func trust(ctx context.Context, t testing.TB) *tls.Config {
	t.Helper()
	ca, err := shared.Kube.CoreV1().Secrets(stack.Namespace).Get(ctx, "belay-ca", metav1.GetOptions{})
	must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.Data["ca.crt"])
	return &tls.Config{RootCAs: roots, ServerName: "localhost", MinVersion: tls.VersionTLS12}
}

// resident is the memory of a process, in bytes.
func resident(t testing.TB, p *stack.Process) int64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid()))
	if err != nil {
		t.Errorf("resident memory is read from /proc, on Linux: %v", err)
		return 0
	}
	for line := range bytes.Lines(raw) {
		var kib int64
		if n, _ := fmt.Sscanf(string(line), "VmRSS: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	t.Error("no VmRSS")
	return 0
}

// counter sums a metric of the webhook over its labels.
func counter(ctx context.Context, t testing.TB, name string) (sum float64) {
	t.Helper()
	text, err := shared.Webhooks()[0].Metrics(ctx)
	must(t, err)
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, name+"{") || strings.HasPrefix(line, name+" ") {
			n, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
			must(t, err)
			sum += n
		}
	}
	return sum
}

// alive fails the test where the webhook has ended, or panicked.
func alive(ctx context.Context, t testing.TB) {
	t.Helper()
	w := shared.Webhooks()[0]
	select {
	case <-w.Done():
		t.Fatalf("belay-webhook has ended:\n%s", w.Tail(20))
	default:
	}
	if n := counter(ctx, t, "belay_admission_panics_total"); n != 0 {
		t.Errorf("belay-webhook panicked %v times:\n%s", n, w.Tail(40))
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	must(t, stack.WaitOK(ctx, fmt.Sprintf("http://127.0.0.1:%d/readyz", w.ProbePort)))
}
