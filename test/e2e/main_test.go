package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/belay-dev/belay/hack/images/archive"
	"github.com/belay-dev/belay/test/integration/stack"
)

const (
	// belayNamespace is where the manifests put belay.
	belayNamespace = "belay-system"
	// bound is how long a test waits for what takes seconds: kubelets and the scheduler of
	// three nodes share two cores with the load of the tests.
	bound = 2 * time.Minute
)

// c is the cluster, shared by all tests.
var c *cluster

// cluster is the cluster with belay in it.
type cluster struct {
	*stack.Stack
	cfg        *rest.Config
	kubeconfig string
	kind       string // hack/kind
	bin        string // with kubectl
	root       string
	out        string // what went wrong
}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	kubeconfig := os.Getenv("BELAY_E2E_KUBECONFIG")
	if kubeconfig == "" {
		fmt.Println("no tests are run: they take a cluster; \"make e2e\" makes one and runs them")
		return 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	var err error
	if c, err = connect(ctx, kubeconfig); err == nil {
		err = c.prepare(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		if c != nil {
			c.collect(ctx, "install")
		}
		return 1
	}
	return m.Run()
}

func connect(ctx context.Context, kubeconfig string) (*cluster, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	s, err := stack.Connect(cfg)
	if err != nil {
		return nil, err
	}
	c := &cluster{Stack: s, cfg: cfg, kubeconfig: kubeconfig, root: stack.Root()}
	c.out = filepath.Join(c.root, "bin", "e2e")
	if err := errors.Join(os.RemoveAll(c.out), os.MkdirAll(c.out, 0o755)); err != nil {
		return nil, err
	}
	c.kind = filepath.Join(c.root, "bin", "kind-of-tests")
	if _, err := c.run(ctx, nil, "go", "build", "-o", c.kind, "./hack/kind"); err != nil {
		return nil, err
	}
	c.bin, err = c.run(ctx, nil, c.kind, "path")
	return c, err
}

// progress tells people what goes on.
func progress(format string, args ...any) { fmt.Printf("==> "+format+"\n", args...) }

// run runs a command in the repository, and returns what it prints. The error has all it said.
func (c *cluster) run(ctx context.Context, stdin []byte, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = c.root
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig)
	if stdin != nil {
		cmd.Stdin = bytes.NewReader(stdin)
	}
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s%s", filepath.Base(name), strings.Join(args, " "), err, said.String(), out.String())
	}
	return strings.TrimSpace(out.String()), nil
}

func (c *cluster) kubectl(ctx context.Context, args ...string) (string, error) {
	return c.run(ctx, nil, filepath.Join(c.bin, "kubectl"), args...)
}

// node runs a command on a node.
func (c *cluster) node(ctx context.Context, node string, args ...string) (string, error) {
	return c.run(ctx, nil, c.kind, append([]string{"docker", "exec", node}, args...)...)
}

// docker runs the engine's client.
func (c *cluster) docker(ctx context.Context, args ...string) (string, error) {
	return c.run(ctx, nil, c.kind, append([]string{"docker"}, args...)...)
}

// workloads are the images that the upstreams' Pods name, and what each does.
var workloads = map[string]string{
	"leg100/otf-job:0.4.0":          "otf-job",
	"ghcr.io/felismc/restore:1.0.0": "restore",
	"opensandbox/sandbox:v1.0.0":    "sandbox",
	trainImage:                      "sleep",
	plainImage:                      "sandbox",
	jobImage:                        "exit",
}

const (
	// trainImage is what Spur runs here. Its own has no tag, so that kubelets would always pull it.
	trainImage = "rocm/pytorch:e2e"
	plainImage = "localhost/belay-plain:e2e"
	jobImage   = "localhost/belay-job:e2e"
)

// prepare installs belay, with images made of what is checked out.
func (c *cluster) prepare(ctx context.Context) error {
	start := time.Now()
	progress("images")
	images, err := c.images(ctx)
	if err != nil {
		return err
	}
	if _, err := c.run(ctx, nil, c.kind, append([]string{"load"}, images...)...); err != nil {
		return err
	}
	progress("belay, by kubectl apply -k manifests/overlays/e2e")
	_, before := c.deployment(ctx, "belay-webhook")
	if err := c.install(ctx, "e2e"); err != nil {
		return err
	}
	if before == nil {
		// The tag is the one of before: Pods that run go on with the image that they were started with.
		if _, err := c.kubectl(ctx, "--namespace", belayNamespace, "rollout", "restart", "deployment/belay-webhook", "deployment/belay-controller"); err != nil {
			return err
		}
		if err := c.available(ctx); err != nil {
			return err
		}
	}
	progress("kinds and policies of the upstreams")
	if err := c.upstreams(ctx); err != nil {
		return err
	}
	progress("installed after %.0f s", time.Since(start).Seconds())
	return nil
}

// images returns archives of belay's images, out of the folder BELAY_E2E_IMAGES or made of what
// is checked out, and of the upstreams' Pods.
func (c *cluster) images(ctx context.Context) ([]string, error) {
	dir := filepath.Join(c.out, "images")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	from := os.Getenv("BELAY_E2E_IMAGES")
	if from == "" {
		from = dir
		if _, err := c.run(ctx, nil, "go", "run", "./hack/images", "build", "--from=scratch", "--version=e2e", "--out="+dir); err != nil {
			return nil, err
		}
	}
	files, err := filepath.Glob(filepath.Join(from, "belay-*.tar"))
	if err != nil {
		return nil, err
	}
	workload := filepath.Join(dir, "workload.tar")
	return append(files, workload), c.workload(ctx, workload)
}

// workload writes the images of the upstreams' Pods: one program under several names.
func (c *cluster) workload(ctx context.Context, to string) error {
	binary, err := c.static(ctx, ".", "./test/e2e/workload")
	if err != nil {
		return err
	}
	var images []archive.Image
	for name, does := range workloads {
		images = append(images, imageOf(name, binary, does))
	}
	return archive.WriteFile(to, images...)
}

// static builds a command of a module of the repository, and returns where it is.
func (c *cluster) static(ctx context.Context, module, pkg string) (string, error) {
	binary := filepath.Join(c.out, "program-"+filepath.Base(filepath.Join(module, pkg)))
	_, err := c.run(ctx, nil, "env", "CGO_ENABLED=0", "GOWORK=off", "go", "build", "-C", module, "-trimpath", "-ldflags=-s -w", "-o", binary, pkg)
	return binary, err
}

// imageOf is an image of one program.
func imageOf(name, binary string, args ...string) archive.Image {
	return archive.Image{
		Name: name, Entrypoint: append([]string{"/program"}, args...), User: "65532:65532",
		Files: []archive.File{{Path: "/program", Source: binary, Mode: 0o755}},
	}
}

// loadProgram loads an image of one program into the nodes.
func (c *cluster) loadProgram(ctx context.Context, image, binary string) error {
	file := binary + ".tar"
	if err := archive.WriteFile(file, imageOf(image, binary)); err != nil {
		return err
	}
	if _, err := c.run(ctx, nil, c.kind, "load", file); err != nil {
		return err
	}
	return os.Remove(file)
}

// install applies an overlay, and waits until what it says runs: by one command.
func (c *cluster) install(ctx context.Context, overlay string) error {
	if _, err := c.kubectl(ctx, "apply", "-k", "manifests/overlays/"+overlay); err != nil {
		return err
	}
	return c.available(ctx)
}

// available waits until all of belay runs in its newest form.
func (c *cluster) available(ctx context.Context) error {
	for _, name := range []string{"belay-webhook", "belay-controller"} {
		if _, err := c.kubectl(ctx, "--namespace", belayNamespace, "rollout", "status", "deployment/"+name, "--timeout=180s"); err != nil {
			return err
		}
	}
	return nil
}

// left waits until no replica of belay-webhook is ending: what that costs belongs to what ended it.
func (c *cluster) left(ctx context.Context) error {
	return wait(ctx, bound, func() error {
		pods, err := c.pods(ctx, "webhook")
		if i := slices.IndexFunc(pods, ending); i >= 0 {
			err = fmt.Errorf("Pod %s is there", pods[i].Name)
		}
		return err
	})
}

func (c *cluster) deployment(ctx context.Context, name string) (*appsv1.Deployment, error) {
	return c.Kube.AppsV1().Deployments(belayNamespace).Get(ctx, name, metav1.GetOptions{})
}

// pods are those of one of belay's Deployments.
func (c *cluster) pods(ctx context.Context, component string) ([]corev1.Pod, error) {
	list, err := c.Kube.CoreV1().Pods(belayNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=" + component})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// replicas are those of them that are not ending.
func (c *cluster) replicas(ctx context.Context, component string) ([]corev1.Pod, error) {
	pods, err := c.pods(ctx, component)
	return slices.DeleteFunc(pods, ending), err
}

func ending(p corev1.Pod) bool { return p.DeletionTimestamp != nil }

// begin gives a test a context and a namespace, and collects what there is to see if it fails.
func begin(t *testing.T, prefix, mode string) (context.Context, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	t.Cleanup(cancel)
	ns, err := c.NewNamespace(ctx, prefix, mode)
	if err != nil {
		t.Fatal(err)
	}
	stack.Cleanup(t, func(ctx context.Context) {
		if t.Failed() {
			c.collect(ctx, t.Name(), ns)
		}
		if err := c.Kube.CoreV1().Namespaces().Delete(ctx, ns, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	// Until it is there, the API server refuses Pods.
	within(ctx, t, "the namespace has its service account", func() error {
		_, err := c.Kube.CoreV1().ServiceAccounts(ns).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	return ctx, ns
}

// within waits until there is no error.
func within(ctx context.Context, t testing.TB, what string, check func() error) {
	t.Helper()
	if err := wait(ctx, bound, check); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func wait(ctx context.Context, d time.Duration, check func() error) error {
	return waitEvery(ctx, d, 100*time.Millisecond, check)
}

// waitEvery is for checks that cost something, such as a command on a node: what waits must not
// take the processors from what is measured.
func waitEvery(ctx context.Context, d, every time.Duration, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %w", d, err)
		case <-tick.C:
		}
	}
}

// collect writes what there is to see of some namespaces, and of belay's own, into a folder.
func (c *cluster) collect(ctx context.Context, name string, namespaces ...string) {
	dir := filepath.Join(c.out, strings.NewReplacer("/", "_", " ", "_").Replace(name))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		fmt.Println(err)
		return
	}
	keep := func(file string, args ...string) {
		out, err := c.kubectl(ctx, args...)
		if err != nil {
			out += "\n" + err.Error()
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte(out), 0o600); err != nil {
			fmt.Println(err)
		}
	}
	keep("nodes.txt", "describe", "nodes")
	keep("pods.txt", "get", "pods", "-A", "-o", "wide")
	keep("policies.yaml", "get", "ownerpolicies,namepolicies,recoverypolicies", "-o", "yaml")
	keep("registrations.yaml", "get", "mutatingwebhookconfigurations,validatingwebhookconfigurations", "-o", "yaml")
	for _, ns := range append(namespaces, belayNamespace, "cert-manager") {
		keep(ns+"-events.txt", "--namespace", ns, "get", "events", "--sort-by=.lastTimestamp")
		keep(ns+"-describe.txt", "--namespace", ns, "describe", "all")
		pods, err := c.Kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for _, p := range pods.Items {
			keep(ns+"-"+p.Name+".log", "--namespace", ns, "logs", p.Name, "--all-containers", "--prefix", "--tail=2000")
			keep(ns+"-"+p.Name+".yaml", "--namespace", ns, "get", "pod", p.Name, "-o", "yaml")
			for _, s := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
				if s.RestartCount > 0 {
					keep(ns+"-"+p.Name+"-"+s.Name+".previous.log", "--namespace", ns, "logs", p.Name, "--container", s.Name, "--previous", "--tail=2000")
				}
			}
		}
	}
	fmt.Println("what there is to see is in", dir)
}
