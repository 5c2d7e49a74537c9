package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// uninstall follows the README: no registration stays, no namespace hangs, and no dependent
// goes that had an owner.
func uninstall(t *testing.T) {
	ctx, ns := begin(t, "uninstall", v1alpha1.ModeEnforce)
	e := executor(ctx, t, ns)
	errLost := errors.New("lost")
	e.AfterJob = func() error { return errLost } // so that the Secret has no owner but its Anchor
	r, err := e.Spawn(ctx, "Job-"+ns, "t0ken")
	if !errors.Is(err, errLost) {
		t.Fatal(err)
	}
	finishes(ctx, t, r.Job)
	p := runs(ctx, t, witnessed(ns, "pod"))
	sandboxes, err := opensandbox.NewClient(c.cfg, opensandbox.New, opensandbox.Names{}.GVK(opensandbox.Version))
	if err != nil {
		t.Fatal(err)
	}
	// One that failed, which nothing but evidence may change as long as belay is there.
	if err := fails(ctx, sandboxes, ns, "failed", true); err != nil {
		t.Fatal(err)
	}
	start, err := c.takeAway(ctx, "e2e")
	if err != nil {
		t.Fatal(err)
	}
	within(ctx, t, "nothing is registered, and the namespace is gone", func() error { return c.nothingLeft(ctx, true) })
	stack.Report(t, "e2e: uninstalled by kubectl delete -k within %s", seconds(time.Since(start)))
	// Whoever collects garbage has had time for it, then.
	holds(ctx, t, 10*time.Second, "the Secret that an Anchor held, and the Job, stay", func() error {
		return errors.Join(c.stays(ctx, r.Secret), c.stays(ctx, r.Job))
	})
	b := &opensandbox.BatchSandbox{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "failed"}}
	recovered := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"status":{"phase":%q,"failedPodUIDs":null}}`, opensandbox.PhaseSucceed))
	if err := sandboxes.Status().Patch(ctx, b, recovered); err != nil || b.Status.Phase != opensandbox.PhaseSucceed {
		t.Errorf("a sandbox that failed before, written by whoever likes: %v, phase %q", err, b.Status.Phase)
	}
	live, err := c.Kube.CoreV1().Pods(ns).Get(ctx, p.Name, metav1.GetOptions{})
	if err != nil || conditionIs(live, corev1.PodReady, corev1.ConditionTrue) != nil {
		t.Errorf("a Pod whose sidecar has nobody to report to is %+v, %v", live.Status.Conditions, err)
	}
	kubectl := func(args ...string) {
		t.Helper()
		if _, err := c.kubectl(ctx, args...); err != nil {
			t.Fatal(err)
		}
	}
	// It is labelled again, as by somebody who does not know: nobody is asked.
	kubectl("label", "namespace", ns, v1alpha1.ModeLabel+"=enforce")
	if err := c.Client.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "after"}}); err != nil {
		t.Error(err)
	}
	kubectl("delete", "namespace", ns, "--timeout=60s")
	if _, err := c.Kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err) // the test's own end deletes it
	}
	if !c.hasCertManager(ctx) {
		progress("cert-manager is not there (TestCertManager installs it): not installed with its certificates")
		return
	}
	// A first install by one command: registrations begin without a CA, and nobody is ready before
	// cert-manager has brought it.
	kubectl("label", "namespace", ns, v1alpha1.ModeLabel+"=enforce")
	start = time.Now()
	if err := c.install(ctx, "e2e-cert-manager"); err != nil {
		t.Fatal(err)
	}
	stack.Report(t, "e2e: kubectl apply -k with cert-manager's certificates, a first install: all ready within %s", seconds(time.Since(start)))
	guard(ctx, t)
	within(ctx, t, "a guarded create works", func() error { return c.guardedCreate(ctx, ns) })
	if _, err := c.takeAway(ctx, "e2e-cert-manager"); err != nil {
		t.Fatal(err)
	}
	within(ctx, t, "nothing is registered, and the namespace is gone", func() error { return c.nothingLeft(ctx, true) })
}

// hasCertManager reports whether a test before has installed it.
func (c *cluster) hasCertManager(ctx context.Context) bool {
	_, err := c.Kube.AppsV1().Deployments("cert-manager").Get(ctx, "cert-manager", metav1.GetOptions{})
	return err == nil
}

// guardedCreate creates a ConfigMap that the policies of guard are about, and belay must have named
// and owned it.
func (c *cluster) guardedCreate(ctx context.Context, ns string) error {
	m := guardedMap(ns, fmt.Sprintf("x-%d", time.Now().UnixNano()))
	if err := c.Client.Create(ctx, m); err != nil {
		return err
	}
	return stored(m)
}

// stays says whether an object is gone, or on its way.
func (c *cluster) stays(ctx context.Context, o client.Object) error {
	live := &metav1.PartialObjectMetadata{}
	gvk, err := c.Client.GroupVersionKindFor(o)
	if err != nil {
		return err
	}
	live.SetGroupVersionKind(gvk)
	if err := c.Client.Get(ctx, client.ObjectKeyFromObject(o), live); err != nil {
		return err
	}
	if live.UID != o.GetUID() || live.DeletionTimestamp != nil {
		return fmt.Errorf("%s %s: UID %s where it was %s, deleted at %v", gvk.Kind, live.Name, live.UID, o.GetUID(), live.DeletionTimestamp)
	}
	return nil
}

// takeAway uninstalls what kustomize has installed, as the README says. What Anchors hold stays.
// start is when belay itself began to go.
func (c *cluster) takeAway(ctx context.Context, overlay string) (start time.Time, err error) {
	steps := [][]string{
		{"label", "namespaces", "-l", v1alpha1.ModeLabel, v1alpha1.ModeLabel + "-"},
		{"annotate", "anchors", "--all", "-A", "belay.dev/allow-delete=true"},
		{"delete", "anchors", "--all", "-A", "--cascade=orphan"},
		{"annotate", "crd", "anchors.belay.dev", "belay.dev/allow-delete=true"},
	}
	for _, preset := range presets {
		steps = append(steps, []string{"delete", "-k", "manifests/presets/" + preset, "--ignore-not-found"})
	}
	for _, args := range steps {
		if _, err := c.kubectl(ctx, args...); err != nil {
			return start, err
		}
	}
	start = time.Now()
	_, err = c.kubectl(ctx, "delete", "-k", "manifests/overlays/"+overlay, "--ignore-not-found", "--timeout=120s")
	return start, err
}

// nothingLeft reports what of belay is outside of its CRDs.
func (c *cluster) nothingLeft(ctx context.Context, namespaceToo bool) error {
	said, err := c.kubectl(ctx, "get", "mutatingwebhookconfigurations,validatingwebhookconfigurations", "-o", "name")
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range strings.Fields(said) {
		if strings.HasSuffix(name, "/belay") {
			errs = append(errs, fmt.Errorf("%s is there", name))
		}
	}
	for _, kind := range []string{"configmaps", "clustertrustbundles"} {
		if said, err := c.kubectl(ctx, "get", kind, "-A", "--field-selector=metadata.name=belay-ca", "-o", "name"); err != nil {
			errs = append(errs, err)
		} else if said != "" {
			errs = append(errs, fmt.Errorf("%s are there: %q", kind, said))
		}
	}
	if namespaceToo {
		if _, err := c.Kube.CoreV1().Namespaces().Get(ctx, belayNamespace, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			errs = append(errs, errors.Join(fmt.Errorf("namespace %s is there", belayNamespace), err))
		}
	}
	return errors.Join(errs...)
}

// helm: one command installs a belay that works, upgrades do not fight it, and one command
// takes it away.
func helm(t *testing.T) {
	program := os.Getenv("BELAY_HELM")
	if program == "" {
		t.Skip("BELAY_HELM does not say where helm is; make e2e builds it")
	}
	ctx, ns := begin(t, "helm", "")
	// By the test before it is not installed any more; where this one runs alone it is.
	if _, err := c.deployment(ctx, "belay-webhook"); err == nil {
		if _, err := c.takeAway(ctx, "e2e"); err != nil {
			t.Fatal(err)
		}
		within(ctx, t, "nothing is registered, and the namespace is gone", func() error { return c.nothingLeft(ctx, true) })
	}
	if _, err := c.kubectl(ctx, "label", "namespace", ns, v1alpha1.ModeLabel+"="+v1alpha1.ModeEnforce); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) time.Duration {
		t.Helper()
		start := time.Now()
		if _, err := c.run(ctx, nil, program, args...); err != nil {
			c.collect(ctx, t.Name(), ns)
			t.Fatal(err)
		}
		return time.Since(start)
	}
	values := []string{"--namespace", belayNamespace, "--set", "image.tag=e2e", "--set", "image.pullPolicy=Never", "--wait", "--timeout", "3m"}
	chart := "manifests/charts/belay"
	took := run(append([]string{"install", "belay", chart, "--create-namespace"}, values...)...)
	guard(ctx, t)
	works := func(name string) *corev1.ConfigMap {
		t.Helper()
		m := guardedMap(ns, name)
		if err := c.Client.Create(ctx, m); err != nil || m.Annotations[v1alpha1.WorkAnnotation] == "" {
			t.Errorf("%s: %v, annotations %v", name, err, m.Annotations)
		}
		return m
	}
	kept := works("installed")
	if len(kept.OwnerReferences) == 0 {
		t.Fatal("nothing holds it, so that nothing could take it away")
	}
	first := run(append([]string{"upgrade", "belay", chart}, values...)...)
	works("upgraded")
	second := run(append([]string{"upgrade", "belay", chart, "--set", "webhook.podAnnotations.again=yes"}, values...)...)
	works("upgraded-again")
	stack.Report(t, "e2e: helm install --wait %s, upgrades %s and %s (with a roll-out)", seconds(took), seconds(first), seconds(second))
	gone := run("uninstall", "belay", "--namespace", belayNamespace, "--wait", "--timeout", "4m")
	within(ctx, t, "nothing is registered", func() error { return c.nothingLeft(ctx, false) })
	if err := c.Client.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "after", Labels: map[string]string{guarded: byBoth}}}); err != nil {
		t.Error(err)
	}
	stack.Report(t, "e2e: helm uninstall %s", seconds(gone))
	holds(ctx, t, 10*time.Second, "what an Anchor held stays", func() error { return c.stays(ctx, kept) })
	if c.hasCertManager(ctx) {
		took := run(append([]string{"install", "belay", chart, "--set", "tls.mode=cert-manager"}, values...)...)
		stack.Report(t, "e2e: helm install --wait with cert-manager's certificates %s", seconds(took))
		within(ctx, t, "a guarded create works", func() error { return c.guardedCreate(ctx, ns) })
		run("uninstall", "belay", "--namespace", belayNamespace, "--wait", "--timeout", "4m")
		within(ctx, t, "nothing is registered", func() error { return c.nothingLeft(ctx, false) })
	} else {
		progress("cert-manager is not there (TestCertManager installs it): not installed with its certificates")
	}
	if _, err := c.kubectl(ctx, "delete", "namespace", belayNamespace, "--timeout=60s"); err != nil {
		t.Error(err)
	}
}
