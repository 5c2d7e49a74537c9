package plane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

// soon bounds what takes seconds on an idle machine.
const soon = time.Minute

func start(t *testing.T, o Options) (*Plane, *kubernetes.Clientset) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	t.Parallel()
	p, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Stop() // tests that care call it before
	})
	client, err := kubernetes.NewForConfig(p.Config())
	if err != nil {
		t.Fatal(err)
	}
	return p, client
}

func eventually(t *testing.T, what string, condition wait.ConditionWithContextFunc) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, soon, true, condition); err != nil {
		t.Fatalf("waiting until %s: %v", what, err)
	}
}

func TestControlPlaneCollectsGarbageAndSurvivesRestarts(t *testing.T) {
	p, client := start(t, Options{Audit: true, SharedControllerIdentity: true, EnforceOwnerReferences: true})
	configMaps := client.CoreV1().ConfigMaps("default")
	owner, err := configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name:            "dependent",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	for _, command := range []string{"restart kube-apiserver --v=1", "kill etcd", "start etcd", "pause kube-controller-manager", "restart kube-controller-manager --use-service-account-credentials=true"} {
		if err := p.Do(t.Context(), command); err != nil {
			t.Fatalf("%s: %v", command, err)
		}
	}
	if err := configMaps.Delete(t.Context(), owner.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the dependent is collected", func(ctx context.Context) (bool, error) {
		_, err := configMaps.Get(ctx, "dependent", metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})

	if got, err := client.Discovery().ServerVersion(); err != nil || got.GitVersion != p.Version() {
		t.Errorf("the server says that it is %v, %v; want %s", got, err, p.Version())
	}
	log, err := os.ReadFile(p.AuditLog())
	if err != nil || !strings.Contains(string(log), `"requestURI":"/api/v1/namespaces/default/configmaps/owner"`) {
		t.Errorf("the audit log (%d bytes, %v) does not have the deletion", len(log), err)
	}
	for _, command := range []string{"", "dance etcd", "stop kubelet", "restart etcd v=4", "stop etcd --v=4", "stop etcd\nkill etcd", "start etcd"} {
		if err := p.Do(t.Context(), command); err == nil {
			t.Errorf("no error for command %q", command)
		}
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(p.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the run directory is left: %v", err)
	}
	if err := p.Do(t.Context(), "stop etcd"); err == nil {
		t.Error("no error for a command after the end")
	}
}

func TestSeveralServersOnOneEtcd(t *testing.T) {
	p, front := start(t, Options{APIServers: 2, Audit: true})
	clients := make([]*kubernetes.Clientset, 2)
	for i, s := range p.Servers() {
		client, err := kubernetes.NewForConfig(p.ConfigOf(i))
		if err != nil {
			t.Fatal(err)
		}
		clients[i] = client
		if want := fmt.Sprintf("kube-apiserver-%d", i+1); s.Name != want {
			t.Errorf("server %d is called %q", i, s.Name)
		}
		// What one writes, the other has, and each has a log of its own.
		name := "by-" + s.Name
		if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		log, err := os.ReadFile(s.AuditLog)
		if err != nil || strings.Count(string(log), `"name":"by-`) != 1 || !strings.Contains(string(log), `"name":"`+name+`"`) {
			t.Errorf("the audit log of %s (%d bytes, %v) does not have the one create", s.Name, len(log), err)
		}
	}
	for _, client := range append(clients, front) {
		if list, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 3 {
			t.Errorf("%d config maps, %v; want the two, and that of the CA", len(list.Items), err)
		}
	}
	// One that is away does not matter to whoever talks to the front.
	for _, s := range p.Servers() {
		if err := p.Do(t.Context(), "kill "+s.Name); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the other one answers", func(ctx context.Context) (bool, error) {
			_, err := front.Discovery().ServerVersion()
			return err == nil, nil
		})
		if err := p.Do(t.Context(), "start "+s.Name); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Do(t.Context(), "pause kube-apiserver"); err == nil || !strings.Contains(err.Error(), "kube-apiserver-2") {
		t.Errorf("a name that two servers share: %v", err)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(p.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the run directory is left: %v", err)
	}
}

func TestKilledLauncherLeavesNothing(t *testing.T) {
	p, _ := start(t, Options{APIServers: 2})
	if err := syscall.Kill(p.ready.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the run directory is gone", func(context.Context) (bool, error) {
		_, err := os.Stat(p.Dir())
		return errors.Is(err, os.ErrNotExist), nil
	})
	// Every component has the run directory in its arguments.
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if args, err := os.ReadFile(f); err == nil && strings.Contains(string(args), p.Dir()+"/") {
			t.Errorf("left over: %s", strings.ReplaceAll(string(args), "\x00", " "))
		}
	}
	if err := p.Stop(); err == nil {
		t.Error("no error for a control plane that was killed")
	}
}

func TestStartSaysWhyItFailed(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	t.Parallel()
	for name, tc := range map[string]struct {
		options Options
		want    string
	}{
		"an unknown version":           {Options{Version: "v1.0.0"}, "no Kubernetes version"},
		"a flag that is none":          {Options{APIServerFlags: []string{"v"}}, "not of the form"},
		"a version, with a proxy":      {Options{Version: "v1.0.0", EtcdProxy: proxy("127.0.0.1:1")}, "no Kubernetes version"},
		"an address that is none":      {Options{EtcdProxy: proxy("nowhere")}, "missing port"},
		"a flag the server can't read": {Options{APIServerFlags: []string{"--nonsense=1"}}, "unknown flag: --nonsense"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := Start(t.Context(), tc.options)
			if err == nil {
				t.Fatal(errors.Join(errors.New("it started"), p.Stop()))
			}
			if !strings.Contains(fmt.Sprint(err), tc.want) {
				t.Errorf("the error does not say %q: %v", tc.want, err)
			}
		})
	}
}

// proxy is the address of a proxy that is not there.
type proxy string

func (p proxy) Addr() string      { return string(p) }
func (p proxy) SetBackend(string) {}

func TestKubectlTalksToTheControlPlane(t *testing.T) {
	p, client := start(t, Options{})
	path, err := Kubectl(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	kubectl := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), path, append([]string{"--kubeconfig=" + p.Kubeconfig(), "--cache-dir=" + t.TempDir()}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("kubectl %s: %v: %s", args, err, out)
		}
		return string(out)
	}
	var version struct{ ClientVersion, ServerVersion struct{ GitVersion string } }
	if err := json.Unmarshal([]byte(kubectl("version", "--output=json")), &version); err != nil {
		t.Fatal(err)
	}
	if got := version.ServerVersion.GitVersion; got != p.Version() {
		t.Errorf("the server's version is %q, want %q", got, p.Version())
	}
	// An archive of binaries may have another patch, but not none.
	if got := version.ClientVersion.GitVersion; !strings.HasPrefix(got, "v1.") || strings.HasPrefix(got, "v1.0") {
		t.Errorf("kubectl's version is %q", got)
	}
	if got := kubectl("create", "configmap", "dry", "--dry-run=server"); !strings.Contains(got, "server dry run") {
		t.Errorf("kubectl says %q", got)
	}
	if _, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "dry", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a dry run left something behind: %v", err)
	}
}

func TestKubectlSaysWhyThereIsNone(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the launcher of control planes")
	}
	t.Setenv("BELAY_K8S_VERSION", "v1.0.0")
	if path, err := Kubectl(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(), "no Kubernetes version") {
		t.Errorf("got %q, %v", path, err)
	}
}
