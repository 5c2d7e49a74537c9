package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// repairBound is what the project promises.
const repairBound = 10 * time.Second

// repairs: what is edited by hand is put back, or told of, within ten seconds; and readiness
// says the truth all along.
func repairs(t *testing.T) {
	ctx, ns := begin(t, "repairs", v1alpha1.ModeEnforce)
	guard(ctx, t)
	create := func(name string) error {
		m := guardedMap(ns, name)
		err := c.Client.Create(ctx, m)
		if err == nil && m.Annotations[v1alpha1.WorkAnnotation] == "" {
			err = errors.New("it was stored without belay")
		}
		return err
	}
	if err := create("the-owner"); err != nil {
		t.Fatal(err)
	}
	mutating := func(t *testing.T) *admissionregistrationv1.MutatingWebhookConfiguration {
		t.Helper()
		m, err := c.Kube.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, v1alpha1.ConfigurationName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	repaired := func(t *testing.T, what string, start time.Time, check func() error) {
		t.Helper()
		if err := wait(ctx, repairBound, check); err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		stack.Report(t, "e2e: %s: put right within %s", what, seconds(time.Since(start)))
	}
	t.Run("a caBundle that is another one", func(t *testing.T) {
		m := mutating(t)
		good := m.Webhooks[0].ClientConfig.CABundle
		for i := range m.Webhooks {
			m.Webhooks[i].ClientConfig.CABundle = []byte(strangersCA(ctx, t))
		}
		if _, err := c.Kube.AdmissionregistrationV1().MutatingWebhookConfigurations().Update(ctx, m, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		repaired(t, "a caBundle overwritten by hand", time.Now(), func() error {
			for _, w := range mutating(t).Webhooks {
				if !strings.Contains(string(w.ClientConfig.CABundle), strings.TrimSpace(string(good))) {
					return fmt.Errorf("entry %s has another one", w.Name)
				}
			}
			return create(fmt.Sprintf("after-bundle-%d", time.Now().UnixNano()))
		})
		if err := c.ready(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Run("a registration that was deleted", func(t *testing.T) {
		// What was set off before is over by then, so that who puts it back has heard of this.
		select {
		case <-ctx.Done():
		case <-time.After(3 * time.Second):
		}
		if err := c.Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(ctx, v1alpha1.ConfigurationName, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		repaired(t, "a registration deleted by hand", time.Now(), func() error {
			_, err := c.Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(ctx, v1alpha1.ConfigurationName, metav1.GetOptions{})
			return err
		})
	})
	t.Run("a policy that is deleted in use", func(t *testing.T) {
		var p v1alpha1.NamePolicy
		if err := c.Client.Get(ctx, client.ObjectKey{Name: guarded}, &p); err != nil {
			t.Fatal(err)
		}
		if err := c.Client.Delete(ctx, &p); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		again := p.DeepCopy()
		again.ObjectMeta = metav1.ObjectMeta{Name: p.Name}
		t.Cleanup(func() {
			if err := c.Client.Create(ctx, again); err != nil {
				t.Error(err)
			}
		})
		repaired(t, "a policy deleted in use", start, func() error {
			for _, w := range mutating(t).Webhooks {
				if w.Name == guarded+".name.belay.dev" {
					return errors.New("it is still registered")
				}
			}
			// Creates go on: the OwnerPolicy is still there, the NamePolicy asks nothing any more.
			m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("after-policy-%d", time.Now().UnixNano()), Labels: map[string]string{guarded: "true"}}}
			return c.Client.Create(ctx, m)
		})
	})
	// After the policy has come back: a third repair of one content within a minute is held back,
	// and told of in the log and by a metric, since it takes two to fight.
	t.Run("a registration that was edited", func(t *testing.T) {
		if err := c.WaitNamePolicy(ctx, guarded); err != nil {
			t.Fatal(err)
		}
		m := mutating(t)
		for i := range m.Webhooks {
			m.Webhooks[i].FailurePolicy = new(admissionregistrationv1.Ignore)
			m.Webhooks[i].Rules = nil
		}
		if _, err := c.Kube.AdmissionregistrationV1().MutatingWebhookConfigurations().Update(ctx, m, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		repaired(t, "a registration edited by hand", time.Now(), func() error {
			for _, w := range mutating(t).Webhooks {
				if len(w.Rules) == 0 {
					return fmt.Errorf("entry %s has no rules", w.Name)
				}
			}
			return create(fmt.Sprintf("after-edit-%d", time.Now().UnixNano()))
		})
	})
	t.Run("readiness while nobody trusts the certificate", func(t *testing.T) {
		// While the controller is away nobody repairs, and /readyz has to say so.
		scale := func(n int) {
			t.Helper()
			if _, err := c.kubectl(ctx, "--namespace", belayNamespace, "scale", "deployment/belay-controller", fmt.Sprintf("--replicas=%d", n)); err != nil {
				t.Fatal(err)
			}
		}
		scale(0)
		t.Cleanup(func() { scale(2) })
		within(ctx, t, "the controller is away", func() error {
			pods, err := c.replicas(ctx, "controller")
			if err == nil && len(pods) > 0 {
				err = fmt.Errorf("%d replicas", len(pods))
			}
			return err
		})
		check := func(p corev1.Pod) ([]byte, error) {
			return c.Kube.CoreV1().RESTClient().Get().Namespace(belayNamespace).Resource("pods").Name(p.Name + ":8081").SubResource("proxy").Suffix("/readyz/certificate").DoRaw(ctx)
		}
		// As long as one entry trusts the certificate belay answers for that, and tells of the others.
		m := mutating(t)
		if len(m.Webhooks) < 2 {
			t.Fatalf("%d entries", len(m.Webhooks))
		}
		since := time.Now()
		spoil(ctx, t, func(name string) bool { return name != m.Webhooks[0].Name })
		within(ctx, t, "one entry is left, and replicas say that", func() error {
			pods, err := c.replicas(ctx, "webhook")
			if err != nil {
				return err
			}
			for _, p := range pods {
				said, err := c.kubectl(ctx, "--namespace", belayNamespace, "logs", p.Name, "--since-time="+since.Format(time.RFC3339))
				if err != nil {
					return err
				}
				if !strings.Contains(said, "do not trust the serving certificate") {
					return fmt.Errorf("%s does not: %s", p.Name, said)
				}
				if raw, err := check(p); err != nil {
					return fmt.Errorf("%s is not ready: %s: %w", p.Name, raw, err)
				}
			}
			return nil
		})
		spoil(ctx, t, func(string) bool { return true })
		start := time.Now()
		within(ctx, t, "no replica is ready", func() error {
			d, err := c.deployment(ctx, "belay-webhook")
			if err == nil && d.Status.ReadyReplicas > 0 {
				err = fmt.Errorf("%d are", d.Status.ReadyReplicas)
			}
			return err
		})
		pods, err := c.replicas(ctx, "webhook")
		if err != nil {
			t.Fatal(err)
		}
		raw, _ := check(pods[0])
		stack.Report(t, "e2e: nobody trusts the certificate: unready after %s; /readyz/certificate: %.150q", seconds(time.Since(start)), raw)
		scale(2)
		within(ctx, t, "with the controller back, all are ready", func() error { return c.ready(ctx) })
		if err := wait(ctx, bound, func() error { return create(fmt.Sprintf("after-away-%d", time.Now().UnixNano())) }); err != nil {
			t.Error(err)
		}
	})
}

// spoil has the entries of these names trust a stranger, in both registrations.
func spoil(ctx context.Context, t *testing.T, which func(name string) bool) {
	t.Helper()
	stranger := []byte(strangersCA(ctx, t))
	mutating, validating := c.Kube.AdmissionregistrationV1().MutatingWebhookConfigurations(), c.Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	m, err := mutating.Get(ctx, v1alpha1.ConfigurationName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range m.Webhooks {
		if which(m.Webhooks[i].Name) {
			m.Webhooks[i].ClientConfig.CABundle = stranger
		}
	}
	if _, err := mutating.Update(ctx, m, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	v, err := validating.Get(ctx, v1alpha1.ConfigurationName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range v.Webhooks {
		if which(v.Webhooks[i].Name) {
			v.Webhooks[i].ClientConfig.CABundle = stranger
		}
	}
	if _, err := validating.Update(ctx, v, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// strangersCA is a certificate that signed nothing of belay's.
func strangersCA(ctx context.Context, t *testing.T) string {
	t.Helper()
	m, err := c.Kube.CoreV1().ConfigMaps("kube-system").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return m.Data["ca.crt"]
}

// scaledToZero: where nobody opted in, nobody notices; where somebody did, the policies'
// stance holds; and when belay is back, all is as before.
func scaledToZero(t *testing.T) {
	ctx, in := begin(t, "in", v1alpha1.ModeEnforce)
	_, out := begin(t, "out", "")
	guard(ctx, t)
	scale := func(n int) {
		t.Helper()
		if _, err := c.kubectl(ctx, "--namespace", belayNamespace, "scale", "deployment/belay-webhook", fmt.Sprintf("--replicas=%d", n)); err != nil {
			t.Error(err)
		}
	}
	scale(0)
	t.Cleanup(func() {
		scale(2)
		if err := c.ready(ctx); err != nil {
			t.Error(err)
		}
		m := guardedMap(in, "again")
		if err := wait(ctx, bound, func() error { return c.Client.Create(ctx, m) }); err != nil || m.Annotations[v1alpha1.WorkAnnotation] == "" {
			t.Errorf("with belay back: %v, annotations %v", err, m.Annotations)
		}
	})
	within(ctx, t, "no replica serves", func() error {
		list, err := c.Kube.CoreV1().Pods(belayNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=webhook"})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d are there", len(list.Items))
		}
		return err
	})
	label := map[string]string{guarded: "true"}
	if err := c.Client.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: out, Name: "x", Labels: label}}); err != nil {
		t.Errorf("where nobody opted in: %v", err)
	}
	if err := c.Client.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: in, Name: "x", Labels: label}}); err == nil {
		t.Error("a policy that fails without belay let a create pass")
	}
	// Sidecars are asked for by a policy that lets Pods pass without them.
	p := witnessed(in, "without")
	if err := c.Client.Create(ctx, p); err != nil {
		t.Errorf("a Pod that asks for a sidecar: %v", err)
	}
	if stack.SidecarOf(p) != nil {
		t.Error("a Pod got its sidecar from nobody")
	}
	within(ctx, t, "it is ready all the same", func() error {
		live, err := c.Kube.CoreV1().Pods(in).Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return conditionIs(live, corev1.PodReady, corev1.ConditionTrue)
	})
}

// everyPod registers a policy whose stance is Fail, about every Pod.
func everyPod(ctx context.Context, t *testing.T) {
	t.Helper()
	const name = "e2e-pods"
	p := builders.MakeOwnerPolicy(name).Spec(func(s *v1alpha1.OwnerPolicySpec) {
		s.Dependents = []v1alpha1.Kind{{APIVersion: "v1", Kind: "Pod"}}
		s.Owner.APIVersion, s.Owner.Kind, s.Owner.Name = "v1", "ConfigMap", `"the-owner"`
		s.FailurePolicy = v1alpha1.FailureFail
	}).Obj()
	p.SetUID("")
	p.SetGeneration(0)
	if err := c.Client.Create(ctx, p); err != nil {
		t.Fatal(err)
	}
	stack.Cleanup(t, func(ctx context.Context) {
		if err := c.Client.Delete(ctx, p); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	if err := c.WaitPolicy(ctx, name); err != nil {
		t.Fatal(err)
	}
}

// bootstrap: every node goes down and comes up again, while belay is registered with Fail,
// and its namespaces, and kube-system, are labelled by mistake. The cluster comes back by itself.
func bootstrap(t *testing.T) {
	ctx, ns := begin(t, "bootstrap", v1alpha1.ModeEnforce)
	guard(ctx, t)
	mistaken := func(value string) {
		t.Helper()
		for _, name := range []string{"kube-system", "kube-node-lease", belayNamespace} {
			patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, v1alpha1.ModeLabel, value))
			if err := c.Client.Patch(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, patch); err != nil {
				t.Fatal(err)
			}
		}
	}
	everyPod(ctx, t)
	mistaken(`"enforce"`)
	t.Cleanup(func() { mistaken("null") })
	// So that Pods of the system and of belay have to be created while nobody answers.
	for _, args := range [][]string{{"--namespace", belayNamespace, "--all"}, {"--namespace", "kube-system", "--selector", "k8s-app=kube-dns"}} {
		if _, err := c.kubectl(ctx, append([]string{"delete", "pods", "--force", "--grace-period=0"}, args...)...); err != nil {
			t.Fatal(err)
		}
	}
	nodes := []string{"belay-control-plane", "belay-worker", "belay-worker2"}
	if _, err := c.docker(ctx, append([]string{"stop", "--time", "5"}, nodes...)...); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if _, err := c.docker(ctx, append([]string{"start"}, nodes...)...); err != nil {
		t.Fatal(err)
	}
	up, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	err := wait(up, 5*time.Minute, func() error {
		list, err := c.Kube.CoreV1().Nodes().List(up, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, n := range list.Items {
			for _, cond := range n.Status.Conditions {
				// What was said before the nodes went down counts for nothing.
				if cond.Type == corev1.NodeReady && (cond.Status != corev1.ConditionTrue || cond.LastHeartbeatTime.Time.Before(start)) {
					return fmt.Errorf("node %s is not ready since the start", n.Name)
				}
			}
		}
		d, err := c.Kube.AppsV1().Deployments("kube-system").Get(up, "coredns", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if d.Status.ReadyReplicas == 0 {
			return errors.New("no CoreDNS")
		}
		return c.Client.Create(up, guardedMap(ns, fmt.Sprintf("x-%d", time.Now().UnixNano())))
	})
	if err != nil {
		t.Fatal(err)
	}
	stack.Report(t, "e2e: all nodes down and up again, with belay registered as Fail: guarded creates work %s after the start", seconds(time.Since(start)))
	if err := c.ready(up); err != nil {
		t.Error(err)
	}
}
