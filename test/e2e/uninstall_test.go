package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
	start, err := c.takeAway(ctx)
	if err != nil {
		t.Fatal(err)
	}
	within(ctx, t, "nothing is registered, and the namespace is gone", func() error { return c.nothingLeft(ctx, true) })
	stack.Report(t, "e2e: uninstalled by kubectl delete -k within %s", seconds(time.Since(start)))
	if err := c.Client.Get(ctx, client.ObjectKeyFromObject(r.Secret), &corev1.Secret{}); err != nil {
		t.Errorf("the Secret that an Anchor held: %v", err)
	}
	if err := c.Client.Get(ctx, client.ObjectKeyFromObject(r.Job), &batchv1.Job{}); err != nil {
		t.Errorf("the Job: %v", err)
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
}

// takeAway uninstalls what kustomize has installed, as the README says. What Anchors hold stays.
// start is when belay itself began to go.
func (c *cluster) takeAway(ctx context.Context) (start time.Time, err error) {
	steps := [][]string{
		{"label", "namespaces", "-l", v1alpha1.ModeLabel, v1alpha1.ModeLabel + "-"},
		{"annotate", "anchors", "--all", "-A", "belay.dev/allow-delete=true"},
		{"delete", "anchors", "--all", "-A", "--cascade=orphan"},
		{"annotate", "crd", "anchors.belay.dev", "belay.dev/allow-delete=true"},
	}
	for _, preset := range presets {
		steps = append(steps, []string{"delete", "-k", "manifests/presets/" + preset})
	}
	for _, args := range steps {
		if _, err := c.kubectl(ctx, args...); err != nil {
			return start, err
		}
	}
	start = time.Now()
	_, err = c.kubectl(ctx, "delete", "-k", "manifests/overlays/e2e", "--timeout=120s")
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
		if _, err := c.takeAway(ctx); err != nil {
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
	works := func(name string) {
		t.Helper()
		m := guardedMap(ns, name)
		if err := c.Client.Create(ctx, m); err != nil || m.Annotations[v1alpha1.WorkAnnotation] == "" {
			t.Errorf("%s: %v, annotations %v", name, err, m.Annotations)
		}
	}
	works("installed")
	first := run(append([]string{"upgrade", "belay", chart}, values...)...)
	works("upgraded")
	second := run(append([]string{"upgrade", "belay", chart, "--set", "webhook.podAnnotations.again=yes"}, values...)...)
	works("upgraded-again")
	stack.Report(t, "e2e: helm install --wait %s, upgrades %s and %s (with a roll-out)", seconds(took), seconds(first), seconds(second))
	gone := run("uninstall", "belay", "--namespace", belayNamespace, "--wait", "--timeout", "4m")
	within(ctx, t, "nothing is registered", func() error { return c.nothingLeft(ctx, false) })
	if err := c.Client.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "after", Labels: map[string]string{guarded: "true"}}}); err != nil {
		t.Error(err)
	}
	stack.Report(t, "e2e: helm uninstall %s", seconds(gone))
	if _, err := c.kubectl(ctx, "delete", "namespace", belayNamespace, "--timeout=60s"); err != nil {
		t.Error(err)
	}
}
