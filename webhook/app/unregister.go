package app

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/controller/trust"
)

const (
	// controllerDeployment is what the shipped manifests call it, and its Pods.
	controllerDeployment = "belay-controller"
	controllerPods       = "app.kubernetes.io/name=belay,app.kubernetes.io/component=controller"
	// goneWithin is longer than Pods have to end (30 s), and shorter than the uninstall hook's Job.
	goneWithin = 2 * time.Minute
	// shippedReplicas are those of the shipped manifests.
	shippedReplicas = 2
)

// newUnregisterCommand is "belay-controller unregister".
func newUnregisterCommand() *cobra.Command {
	c := common{metricsAddr: "0", probeAddr: "0", caSecret: v1alpha1.CABundleName}
	cmd := &cobra.Command{
		Use:   "unregister",
		Short: "Takes belay out of the API server's way, for good: before it is uninstalled",
		Long: `unregister undoes what belay-controller does outside of belay's namespace, so that nothing
there is refused for want of a belay that was uninstalled:

  1. it scales the Deployment belay-controller in --namespace to zero, which would register
     again, and waits until its Pods are gone, or have ended;
  2. it deletes the webhook configurations "belay";
  3. it deletes the CA that sidecars read: ConfigMaps and a ClusterTrustBundle "belay-ca".

Policies, Anchors and what these hold stay. It can be repeated. "helm uninstall" runs it first.
When it fails after the first step, belay-controller stays at zero replicas until somebody scales
it, or brings it back by "helm rollback" (Helm upgrades no release whose uninstallation failed).`,
		Example: `  belay-controller unregister --namespace=belay-system --kubeconfig=kubeconfig`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.validate(); err != nil {
				return err
			}
			cfg, err := c.restConfig("belay-unregister")
			if err != nil {
				return err
			}
			kube, err := kubernetes.NewForConfig(cfg)
			if err != nil {
				return fmt.Errorf("building the client: %w", err)
			}
			return unregister(cmd.Context(), kube, c.namespace, c.logger())
		},
	}
	c.addConnection(cmd.Flags())
	return cmd
}

// unregister does the steps in their order; each is done when what it removes is not there.
func unregister(ctx context.Context, kube kubernetes.Interface, namespace string, log logr.Logger) error {
	stopped, err := stopController(ctx, kube, namespace, log)
	if err == nil {
		err = remove(ctx, kube, log)
	}
	if err != nil && stopped {
		// An uninstallation that fails may be given up, and belay looks well without it for long.
		return fmt.Errorf("%w; %s is left at zero replicas, so that policies are not registered, Anchors neither bound nor expired, and certificates not rotated: run this again, or bring it back with kubectl -n %s scale deployment %s --replicas=%d, or helm rollback",
			err, controllerDeployment, namespace, controllerDeployment, shippedReplicas)
	}
	return err
}

// remove deletes what belay-controller has written outside of belay's namespace.
func remove(ctx context.Context, kube kubernetes.Interface, log logr.Logger) error {
	registrations := kube.AdmissionregistrationV1()
	for _, r := range []struct {
		what   string
		remove func() error
	}{
		{"MutatingWebhookConfiguration", func() error {
			return registrations.MutatingWebhookConfigurations().Delete(ctx, v1alpha1.ConfigurationName, metav1.DeleteOptions{})
		}},
		{"ValidatingWebhookConfiguration", func() error {
			return registrations.ValidatingWebhookConfigurations().Delete(ctx, v1alpha1.ConfigurationName, metav1.DeleteOptions{})
		}},
		{"ClusterTrustBundle", func() error {
			return kube.CertificatesV1().ClusterTrustBundles().Delete(ctx, v1alpha1.CABundleName, metav1.DeleteOptions{})
		}},
	} {
		switch err := r.remove(); {
		case err == nil:
			log.Info("deleted", "kind", r.what)
		// Nor is there one where the API server does not serve them.
		case !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err):
			return fmt.Errorf("deleting the %s: %w", r.what, err)
		}
	}
	list, err := kube.CoreV1().ConfigMaps(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", v1alpha1.CABundleName).String(), LabelSelector: trust.Selector(),
	})
	if err != nil {
		return fmt.Errorf("listing ConfigMaps %s: %w", v1alpha1.CABundleName, err)
	}
	for _, m := range list.Items {
		err := kube.CoreV1().ConfigMaps(m.Namespace).Delete(ctx, m.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &m.UID}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("deleting ConfigMap %s/%s: %w", m.Namespace, m.Name, err)
		}
	}
	log.Info("deleted", "kind", "ConfigMap", "number", len(list.Items))
	return nil
}

// stopController ends what would register again, and says whether it was scaled to zero, which
// it may have been before.
func stopController(ctx context.Context, kube kubernetes.Interface, namespace string, log logr.Logger) (stopped bool, err error) {
	deployments := kube.AppsV1().Deployments(namespace)
	scale, err := deployments.GetScale(ctx, controllerDeployment, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		log.Info("no Deployment to stop", "namespace", namespace, "name", controllerDeployment)
		return false, nil
	case err != nil:
		return false, fmt.Errorf("reading the scale of %s: %w", controllerDeployment, err)
	}
	if scale.Spec.Replicas != 0 {
		zero := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: controllerDeployment}}
		if _, err := deployments.UpdateScale(ctx, controllerDeployment, zero, metav1.UpdateOptions{}); err != nil {
			return false, fmt.Errorf("scaling %s to zero: %w", controllerDeployment, err)
		}
		log.Info("scaled to zero", "namespace", namespace, "name", controllerDeployment)
	}
	return true, gone(ctx, kube, namespace)
}

// gone waits until no Pod of belay-controller runs any more.
func gone(ctx context.Context, kube kubernetes.Interface, namespace string) error {
	ctx, cancel := context.WithTimeout(ctx, goneWithin)
	defer cancel()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		pods, err := kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: controllerPods})
		if err == nil {
			left := running(pods.Items)
			if len(left) == 0 {
				return nil
			}
			err = fmt.Errorf("%d Pods of %s are left: %s", len(left), controllerDeployment, strings.Join(left, ", "))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until nothing registers any more (%w): %w", ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// running are the Pods that have not ended. Those that have, on a node that was shut down, for
// instance, stay where they are: a ReplicaSet that is scaled to zero deletes no Pod that has
// failed.
func running(pods []corev1.Pod) (names []string) {
	for i := range pods {
		if phase := pods[i].Status.Phase; phase != corev1.PodFailed && phase != corev1.PodSucceeded {
			names = append(names, pods[i].Name)
		}
	}
	return names
}
