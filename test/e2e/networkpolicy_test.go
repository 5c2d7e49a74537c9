package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

const (
	// enforcer is hack/kind/networkpolicies, and what its manifests.yaml says.
	enforcer      = "hack/kind/networkpolicies"
	enforcerImage = "localhost/belay-networkpolicies:e2e"
	enforcerTable = "belay-networkpolicies"
	// aside is the node where nothing of belay runs, and no tenant.
	aside = "belay-control-plane"
	// silence is what the command timeout exits with.
	silence = 124
)

// networkPolicies: where NetworkPolicies are enforced, belay starts and works under those that it
// ships, components/egress among them; and what they close is closed.
func networkPolicies(t *testing.T) {
	ctx, ns := begin(t, "policed", v1alpha1.ModeEnforce)
	_, apart := begin(t, "apart", "")
	server, stranger := plain(ctx, t, apart, "belay-worker"), plain(ctx, t, ns, "belay-worker2")
	// So that there is something to be closed, and what is cut off later is so by policy.
	if enforces, err := c.enforces(ctx); err != nil {
		t.Fatal(err)
	} else if !enforces {
		expect(ctx, t, allOpen(append(belayRows(ctx, t, stranger, server), row{"a tenant's Pod to another", stranger, server.ip, 8080, true})))
		c.enforce(ctx, t, ns, apart)
	}
	one := row{"a tenant's Pod to one under a policy without rules", stranger, server.ip, 8080, false}
	none := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: apart, Name: "none"},
		Spec:       networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}},
	}
	if err := c.Client.Create(ctx, none); err != nil {
		t.Fatal(err)
	}
	expect(ctx, t, []row{one, {"and the other way", server, stranger.ip, 8080, false}})
	if err := c.Client.Delete(ctx, none); err != nil {
		t.Fatal(err)
	}
	expect(ctx, t, allOpen([]row{one, {"and the other way, without the policy", server, stranger.ip, 8080, true}}))
	if t.Failed() {
		t.Fatal("NetworkPolicies are not enforced, so that nothing could be told of belay's")
	}

	// Connections that are there stay, so belay starts anew: under policies from the beginning.
	start := time.Now()
	if err := c.installEgress(ctx); err != nil {
		t.Fatal(err)
	}
	stack.Cleanup(t, func(ctx context.Context) {
		_, err := c.kubectl(ctx, "--namespace", belayNamespace, "delete", "networkpolicies", "belay-egress", "belay-controller-egress")
		if err := errors.Join(err, c.install(ctx, "e2e")); err != nil {
			t.Error(err)
		}
	})
	if _, err := c.kubectl(ctx, "--namespace", belayNamespace, "rollout", "restart", "deployment/belay-webhook", "deployment/belay-controller"); err != nil {
		t.Fatal(err)
	}
	if err := c.available(ctx); err != nil {
		t.Fatal(err)
	}
	stack.Report(t, "e2e: under enforced NetworkPolicies, egress included, belay was rolled out within %s", seconds(time.Since(start)))
	guard(ctx, t) // which takes the controller to register them
	for _, name := range []string{"the-owner", "owned"} {
		m := guardedMap(ns, name)
		if err := c.Client.Create(ctx, m); err != nil || m.Annotations[v1alpha1.WorkAnnotation] == "" {
			t.Errorf("a guarded create: %v, annotations %v", err, m.Annotations)
		}
	}
	runs(ctx, t, witnessed(ns, "witnessed"))

	rows := belayRows(ctx, t, stranger, server)
	expect(ctx, t, rows)
	// Without components/metrics, whose policy opens them, metrics are closed.
	if _, err := c.kubectl(ctx, "--namespace", belayNamespace, "delete", "networkpolicy", "belay-metrics"); err != nil {
		t.Fatal(err)
	}
	// What the README tells those to do who have sidecars in Pods on the network of their nodes.
	if err := c.letNodes(ctx, "belay-webhook", 1); err != nil {
		t.Fatal(err)
	}
	for i, r := range rows {
		rows[i].open = r.open && r.port != 8080 || r.from.pid == "" && r.port == 9444
	}
	expect(ctx, t, rows)

	// Where the API servers' addresses are known, others are kept from their port, but for belay-controller.
	server0, err := c.Kube.CoreV1().Nodes().Get(ctx, "belay-control-plane", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var narrow []networkingv1.NetworkPolicyPeer
	for _, a := range server0.Status.Addresses {
		if a.Type == corev1.NodeInternalIP && !strings.Contains(a.Address, ":") {
			narrow = append(narrow, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: a.Address + "/32"}})
		}
	}
	np, err := c.Kube.NetworkingV1().NetworkPolicies(belayNamespace).Get(ctx, "belay-webhook", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	np.Spec.Ingress[0].From = narrow
	if _, err := c.Kube.NetworkingV1().NetworkPolicies(belayNamespace).Update(ctx, np, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for i, r := range rows {
		if r.port == 9443 {
			rows[i].open = strings.HasPrefix(r.what, "the controller") || r.from.node == aside && r.from.pid == ""
		}
	}
	expect(ctx, t, rows)
	m := guardedMap(ns, "narrowed")
	if err := c.Client.Create(ctx, m); err != nil || m.Annotations[v1alpha1.WorkAnnotation] == "" {
		t.Errorf("a guarded create, by an API server whose address is known: %v, annotations %v", err, m.Annotations)
	}

	done := time.Now()
	within(ctx, t, "the leader goes on leading", func() error {
		lease, err := c.Kube.CoordinationV1().Leases(belayNamespace).Get(ctx, "belay-controller", metav1.GetOptions{})
		if err == nil && (lease.Spec.RenewTime == nil || lease.Spec.RenewTime.Time.Before(done)) {
			err = fmt.Errorf("the Lease was renewed at %v", lease.Spec.RenewTime)
		}
		return err
	})
	for _, component := range []string{"webhook", "controller"} {
		for _, p := range replicasOf(ctx, t, component) {
			if err := conditionIs(&p, corev1.PodReady, corev1.ConditionTrue); err != nil || p.Status.ContainerStatuses[0].RestartCount > 0 {
				t.Errorf("%s was started again %d times; %v", p.Name, p.Status.ContainerStatuses[0].RestartCount, err)
			}
		}
	}
}

// plain runs a Pod without a sidecar on a node; it serves on 8080.
func plain(ctx context.Context, t *testing.T, ns, node string) end {
	t.Helper()
	p := witnessed(ns, "plain")
	p.Annotations, p.Spec.NodeName = nil, node
	if err := c.Client.Create(ctx, p); err != nil {
		t.Fatal(err)
	}
	within(ctx, t, "a Pod on "+node+" is ready", func() error {
		live, err := c.Kube.CoreV1().Pods(ns).Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		p = live
		return conditionIs(p, corev1.PodReady, corev1.ConditionTrue)
	})
	return endOf(ctx, t, p)
}

func replicasOf(ctx context.Context, t *testing.T, component string) []corev1.Pod {
	t.Helper()
	pods, err := c.replicas(ctx, component)
	if err != nil {
		t.Fatal(err)
	}
	if len(pods) == 0 {
		t.Fatalf("no replicas of belay-%s", component)
	}
	return pods
}

// end is where a connection begins or ends: a Pod, or a node as itself.
type end struct {
	node string
	pid  string // of a process of the Pod, on the node; empty for the node
	ip   string
}

func endOf(ctx context.Context, t *testing.T, p *corev1.Pod) end {
	t.Helper()
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	pid, err := c.node(ctx, p.Spec.NodeName, "crictl", "inspect", "--output", "go-template", "--template", "{{.info.pid}}", id)
	if err != nil {
		t.Fatal(err)
	}
	return end{node: p.Spec.NodeName, pid: pid, ip: p.Status.PodIP}
}

// row is a connection, and whether it can be made.
type row struct {
	what string
	from end
	ip   string
	port int
	open bool
}

// belayRows are the connections from and to belay that its policies are about. Where one may not
// be made, somebody listens all the same.
func belayRows(ctx context.Context, t *testing.T, stranger, tenant end) []row {
	t.Helper()
	webhook, controller := endOf(ctx, t, &replicasOf(ctx, t, "webhook")[0]), endOf(ctx, t, &replicasOf(ctx, t, "controller")[0])
	services := map[string]string{}
	for _, name := range []string{"default/kubernetes", "kube-system/kube-dns"} {
		ns, service, _ := strings.Cut(name, "/")
		s, err := c.Kube.CoreV1().Services(ns).Get(ctx, service, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		services[service] = s.Spec.ClusterIP
	}
	node := end{node: aside}
	rows := []row{
		{"a tenant's Pod to the port of API servers", stranger, webhook.ip, 9443, true},
		{"a tenant's Pod to the port of sidecars", stranger, webhook.ip, 9444, true},
		{"a tenant's Pod to the webhook's metrics", stranger, webhook.ip, 8080, true},
		{"a tenant's Pod to the webhook's probes", stranger, webhook.ip, 8081, false},
		{"a tenant's Pod to the controller's metrics", stranger, controller.ip, 8080, true},
		{"a tenant's Pod to the controller's probes", stranger, controller.ip, 8081, false},
		{"another node to the port of API servers", node, webhook.ip, 9443, true},
		{"another node to the port of sidecars", node, webhook.ip, 9444, false},
		{"another node to the webhook's metrics", node, webhook.ip, 8080, false},
		{"another node to the webhook's probes", node, webhook.ip, 8081, false},
		{"another node to the controller's metrics", node, controller.ip, 8080, false},
		{"another node to the controller's probes", node, controller.ip, 8081, false},
		{"the webhook to another of its replicas", webhook, replicasOf(ctx, t, "webhook")[1].Status.PodIP, 9444, false},
		{"the controller to the webhook's port of API servers", controller, webhook.ip, 9443, true},
		{"the controller to the webhook's port of sidecars", controller, webhook.ip, 9444, true},
	}
	for name, from := range map[string]end{"the webhook": webhook, "the controller": controller} {
		rows = append(rows,
			row{name + " to the API server", from, services["kubernetes"], 443, true},
			row{name + " to DNS", from, services["kube-dns"], 53, true},
			row{name + " to a tenant's Pod", from, tenant.ip, 8080, false})
	}
	return rows
}

// allOpen are the rows where nothing is enforced.
func allOpen(rows []row) []row {
	rows = slices.Clone(rows)
	for i := range rows {
		rows[i].open = true
	}
	return rows
}

// expect waits until connections can be made, and cannot, as the rows say.
func expect(ctx context.Context, t *testing.T, rows []row) {
	t.Helper()
	if err := wait(ctx, 30*time.Second, func() error {
		open, err := connections(ctx, rows)
		if err != nil {
			return err
		}
		var errs []error
		for i, r := range rows {
			if open[i] != r.open {
				errs = append(errs, fmt.Errorf("from %s (port %d): can be made %t, want %t", r.what, r.port, open[i], r.open))
			}
		}
		return errors.Join(errs...)
	}); err != nil {
		t.Errorf("connections: %v", err)
	}
}

// connections makes the connections, each from the network of where it begins, those of one node
// side by side. What a policy forbids is dropped, so that nothing is heard for as long as one
// waits; all else takes milliseconds.
func connections(ctx context.Context, rows []row) ([]bool, error) {
	scripts := map[string]string{}
	for i, r := range rows {
		inside := ""
		if r.from.pid != "" {
			inside = "nsenter --target " + r.from.pid + " --net "
		}
		scripts[r.from.node] += fmt.Sprintf("(%stimeout 2 bash -c '</dev/tcp/%s/%d'; echo %d $?)&\n", inside, r.ip, r.port, i)
	}
	open := make([]bool, len(rows))
	for node, script := range scripts {
		said, err := c.node(ctx, node, "bash", "-c", script+"wait")
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(said) {
			var i, code int
			if _, err := fmt.Sscan(line, &i, &code); err != nil {
				return nil, fmt.Errorf("on %s: %q: %w", node, line, err)
			}
			if code != 0 && code != silence {
				return nil, fmt.Errorf("from %s: connecting to %s:%d ended with %d", rows[i].what, rows[i].ip, rows[i].port, code)
			}
			open[i] = code == 0
		}
	}
	return open, nil
}

// enforces reports whether the cluster's own network enforces policies: kind's does, that of a
// node image which was built from source does not.
func (c *cluster) enforces(ctx context.Context) (bool, error) {
	_, err := c.Kube.AppsV1().DaemonSets("kube-system").Get(ctx, "kindnet", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// enforce has NetworkPolicies enforced on every node until the test ends. Of what went wrong then,
// the namespaces are collected while it can be seen.
func (c *cluster) enforce(ctx context.Context, t *testing.T, namespaces ...string) {
	t.Helper()
	binary, err := c.static(ctx, enforcer, ".")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.loadProgram(ctx, enforcerImage, binary); err != nil {
		t.Fatal(err)
	}
	manifests := filepath.Join(enforcer, "manifests.yaml")
	if _, err := c.kubectl(ctx, "apply", "-f", manifests); err != nil {
		t.Fatal(err)
	}
	nodes, err := c.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rules := func(ctx context.Context, node, verb string) error {
		_, err := c.node(ctx, node, "nft", verb, "table", "ip", enforcerTable)
		return err
	}
	stack.Cleanup(t, func(ctx context.Context) {
		if t.Failed() {
			c.collect(ctx, t.Name(), append(namespaces, "kube-system")...)
		}
		if _, err := c.kubectl(ctx, "delete", "-f", manifests, "--cascade=foreground", "--timeout=60s"); err != nil {
			t.Error(err)
		}
		for _, n := range nodes.Items {
			if rules(ctx, n.Name, "list") != nil {
				continue
			}
			t.Errorf("the rules on %s are still there: %v", n.Name, rules(ctx, n.Name, "delete"))
		}
	})
	if _, err := c.kubectl(ctx, "--namespace", "kube-system", "rollout", "status", "daemonset/networkpolicies", "--timeout=60s"); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes.Items {
		within(ctx, t, "there are rules on "+n.Name, func() error { return rules(ctx, n.Name, "list") })
	}
}

// installEgress adds components/egress to overlays/e2e, as somebody would who knows where the API
// server is.
func (c *cluster) installEgress(ctx context.Context) error {
	dir := filepath.Join(c.out, "with-egress")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	manifests, err := filepath.Rel(dir, filepath.Join(c.root, "manifests"))
	if err != nil {
		return err
	}
	kustomization := fmt.Sprintf("resources:\n- %[1]s/overlays/e2e\ncomponents:\n- %[1]s/components/egress\n", filepath.ToSlash(manifests))
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o600); err != nil {
		return err
	}
	_, err = c.kubectl(ctx, "apply", "-k", dir)
	return err
}

// letNodes adds the nodes to who is let in by a rule of a policy of belay's. "belay-webhook", 1 are
// the sidecars, "belay-metrics", 0 whoever reads metrics through the API server.
func (c *cluster) letNodes(ctx context.Context, policy string, rule int) error {
	nodes, err := c.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var patch []string
	for _, n := range nodes.Items {
		for _, a := range n.Status.Addresses {
			if a.Type == corev1.NodeInternalIP && !strings.Contains(a.Address, ":") {
				patch = append(patch, fmt.Sprintf(`{"op":"add","path":"/spec/ingress/%d/from/-","value":{"ipBlock":{"cidr":"%s/32"}}}`, rule, a.Address))
			}
		}
	}
	_, err = c.Kube.NetworkingV1().NetworkPolicies(belayNamespace).Patch(ctx, policy, types.JSONPatchType, []byte("["+strings.Join(patch, ",")+"]"), metav1.PatchOptions{})
	return err
}
