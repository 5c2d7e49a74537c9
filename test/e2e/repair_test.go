package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/fixtures/otf"
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
	stopWatching := watchReadiness(ctx, t)
	t.Run("a caBundle that is another one", func(t *testing.T) {
		want := registered(ctx, t)
		spoiled := registered(ctx, t)
		for i := range spoiled.mutating.Webhooks {
			spoiled.mutating.Webhooks[i].ClientConfig.CABundle = []byte(strangersCA(ctx, t))
		}
		spoiled.write(ctx, t)
		repaired(t, "a caBundle overwritten by hand", time.Now(), func() error {
			return errors.Join(want.again(ctx), create(fmt.Sprintf("after-bundle-%d", time.Now().UnixNano())))
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
		want := registered(ctx, t)
		admission := c.Kube.AdmissionregistrationV1()
		if err := errors.Join(
			admission.ValidatingWebhookConfigurations().Delete(ctx, v1alpha1.ConfigurationName, metav1.DeleteOptions{}),
			admission.MutatingWebhookConfigurations().Delete(ctx, v1alpha1.ConfigurationName, metav1.DeleteOptions{}),
		); err != nil {
			t.Fatal(err)
		}
		repaired(t, "registrations deleted by hand", time.Now(), func() error { return want.again(ctx) })
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
			m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("after-policy-%d", time.Now().UnixNano()), Labels: map[string]string{guarded: byBoth}}}
			return c.Client.Create(ctx, m)
		})
	})
	// After the policy has come back: a third repair of one content within a minute is held back,
	// and told of in the log and by a metric, since it takes two to fight.
	t.Run("a registration that was edited", func(t *testing.T) {
		if err := c.WaitNamePolicy(ctx, guarded); err != nil {
			t.Fatal(err)
		}
		want := registered(ctx, t)
		edited := registered(ctx, t)
		for i := range edited.mutating.Webhooks {
			w := &edited.mutating.Webhooks[i]
			w.FailurePolicy, w.Rules = new(admissionregistrationv1.Ignore), nil
		}
		for i := range edited.validating.Webhooks {
			w := &edited.validating.Webhooks[i]
			w.FailurePolicy, w.NamespaceSelector = new(admissionregistrationv1.Ignore), &metav1.LabelSelector{}
		}
		edited.write(ctx, t)
		repaired(t, "registrations edited by hand", time.Now(), func() error {
			return errors.Join(want.again(ctx), create(fmt.Sprintf("after-edit-%d", time.Now().UnixNano())))
		})
	})
	stopWatching()
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
		// Replicas look every five seconds, and kubelets ask every two and believe the third answer.
		if err := wait(ctx, 20*time.Second, func() error {
			d, err := c.deployment(ctx, "belay-webhook")
			if err == nil && d.Status.ReadyReplicas > 0 {
				err = fmt.Errorf("%d are", d.Status.ReadyReplicas)
			}
			return err
		}); err != nil {
			t.Errorf("no replica is ready: %v", err)
		}
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

// registrations are belay's two at one time.
type registrations struct {
	mutating   *admissionregistrationv1.MutatingWebhookConfiguration
	validating *admissionregistrationv1.ValidatingWebhookConfiguration
}

func registered(ctx context.Context, t *testing.T) registrations {
	t.Helper()
	r, err := readRegistrations(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func readRegistrations(ctx context.Context) (r registrations, err error) {
	if r.mutating, err = c.Kube.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, v1alpha1.ConfigurationName, metav1.GetOptions{}); err != nil {
		return r, err
	}
	r.validating, err = c.Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(ctx, v1alpha1.ConfigurationName, metav1.GetOptions{})
	return r, err
}

// bundles are what each entry trusts.
func (r registrations) bundles() map[string][]byte {
	out := map[string][]byte{}
	for _, w := range r.mutating.Webhooks {
		out["mutating "+w.Name] = w.ClientConfig.CABundle
	}
	for _, w := range r.validating.Webhooks {
		out["validating "+w.Name] = w.ClientConfig.CABundle
	}
	return out
}

// again says how what is registered now differs from r. Of CAs it wants belay's own: those of
// others stay in a bundle until they expire.
func (r registrations) again(ctx context.Context) error {
	now, err := readRegistrations(ctx)
	if err != nil {
		return err
	}
	others := cmpopts.IgnoreFields(admissionregistrationv1.WebhookClientConfig{}, "CABundle")
	if diff := cmp.Diff(r.mutating.Webhooks, now.mutating.Webhooks, others) + cmp.Diff(r.validating.Webhooks, now.validating.Webhooks, others); diff != "" {
		return fmt.Errorf("registered differently from before (-before +now):\n%s", diff)
	}
	own, err := c.secretCAs(ctx, "belay-ca")
	if err != nil {
		return err
	}
	for name, bundle := range now.bundles() {
		trusted, err := certificates(bundle)
		if err != nil {
			return err
		}
		for _, ca := range own {
			if !slices.ContainsFunc(trusted, ca.Equal) {
				return fmt.Errorf("%s does not trust belay's CA", name)
			}
		}
	}
	return nil
}

// watchReadiness asks both replicas for /readyz, until it is told to stop. Some entry trusts
// their certificate all the while, so that they are ready.
func watchReadiness(ctx context.Context, t *testing.T) (stop func()) {
	t.Helper()
	pods, err := c.replicas(ctx, "webhook")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	for _, p := range pods {
		watchers.Go(func() {
			asked := 0
			for ; ctx.Err() == nil; asked++ {
				raw, err := c.Kube.CoreV1().RESTClient().Get().Namespace(belayNamespace).Resource("pods").Name(p.Name + ":8081").SubResource("proxy").Suffix("/readyz").DoRaw(ctx)
				if err != nil && ctx.Err() == nil {
					t.Errorf("%s is not ready: %s: %v", p.Name, raw, err)
				}
				select {
				case <-ctx.Done():
				case <-time.After(200 * time.Millisecond):
				}
			}
			if asked < 10 {
				t.Errorf("%s was asked for its readiness %d times only", p.Name, asked)
			}
		})
	}
	var once sync.Once
	stop = func() { once.Do(func() { cancel(); watchers.Wait() }) }
	t.Cleanup(stop)
	return stop
}

func (r registrations) write(ctx context.Context, t *testing.T) {
	t.Helper()
	if _, err := c.Kube.AdmissionregistrationV1().MutatingWebhookConfigurations().Update(ctx, r.mutating, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Update(ctx, r.validating, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// spoil has the entries of these names trust a stranger, in both registrations.
func spoil(ctx context.Context, t *testing.T, which func(name string) bool) {
	t.Helper()
	stranger := []byte(strangersCA(ctx, t))
	r := registered(ctx, t)
	for i := range r.mutating.Webhooks {
		if w := &r.mutating.Webhooks[i]; which(w.Name) {
			w.ClientConfig.CABundle = stranger
		}
	}
	for i := range r.validating.Webhooks {
		if w := &r.validating.Webhooks[i]; which(w.Name) {
			w.ClientConfig.CABundle = stranger
		}
	}
	r.write(ctx, t)
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
	sandboxes, err := opensandbox.NewClient(c.cfg, opensandbox.New, opensandbox.Names{}.GVK(opensandbox.Version))
	if err != nil {
		t.Fatal(err)
	}
	if err := fails(ctx, sandboxes, in, "before", true); err != nil {
		t.Fatal(err)
	}
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
		pods, err := c.pods(ctx, "webhook")
		if len(pods) > 0 {
			err = fmt.Errorf("%d are there", len(pods))
		}
		return err
	})
	refused := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "failed calling webhook") {
			t.Errorf("a policy that fails without belay let %s pass, or somebody else refuses it: %v", what, err)
		}
	}
	label := map[string]string{guarded: byBoth}
	if err := c.Client.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: out, Name: "x", Labels: label}}); err != nil {
		t.Errorf("where nobody opted in: %v", err)
	}
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: out, Name: "x", Labels: label}, Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "main", Image: jobImage, ImagePullPolicy: corev1.PullNever}},
	}}}}
	if err := c.Client.Create(ctx, job); err != nil {
		t.Errorf("a Job where nobody opted in: %v", err)
	} else {
		finishes(ctx, t, job)
	}
	if err := fails(ctx, sandboxes, out, "x", true); err != nil {
		t.Errorf("a status where nobody opted in: %v", err)
	}
	refused("a create", c.Client.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: in, Name: "x", Labels: label}}))
	refused("a write of a status", fails(ctx, sandboxes, in, "before", false))
	// OTF's policy lets pass what nobody can answer for: its runs go on.
	secret := otf.Secret(in, "run-"+in, "job-1", "t0ken")
	if err := c.Client.Create(ctx, secret); err != nil {
		t.Errorf("a Secret of OTF: %v", err)
	} else if len(secret.OwnerReferences) > 0 {
		t.Errorf("a Secret got its owner from nobody: %+v", secret.OwnerReferences)
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

// fails makes a sandbox, where it is new, and writes twice that it failed: belay is to be asked
// about the second.
func fails(ctx context.Context, cl client.Client, ns, name string, fresh bool) error {
	b := opensandbox.Sandbox(ns, name, 0)
	if fresh {
		if err := cl.Create(ctx, b); err != nil {
			return err
		}
		if err := cl.Status().Patch(ctx, b, failedStatus(0, `["`+failedPod+`"]`)); err != nil {
			return err
		}
	}
	return cl.Status().Patch(ctx, b, failedStatus(1, "null"))
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
	register(ctx, t, p)
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
	// C20: its Pod comes back with other containers, and its sidecar reports of these.
	p := runs(ctx, t, witnessed(ns, "rebooted"))
	before, err := c.Kube.CoreV1().Pods(ns).Get(ctx, p.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
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
	err = wait(up, 5*time.Minute, func() error {
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
		m := guardedMap(ns, fmt.Sprintf("x-%d", time.Now().UnixNano()))
		if err := c.Client.Create(up, m); err != nil {
			return err
		}
		if err := stored(m); err != nil {
			t.Error(err) // under Fail it is refused, or belay was asked
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	stack.Report(t, "e2e: all nodes down and up again, with belay registered as Fail: guarded creates work %s after the start", seconds(time.Since(start)))
	if err := c.ready(up); err != nil {
		t.Error(err)
	}
	within(up, t, "the Pod is ready with other containers, and its sidecar says so of these", func() error { return reported(up, before) })
}
