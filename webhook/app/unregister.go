package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
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
     again, and waits until its Pods are gone;
  2. it deletes the webhook configurations "belay";
  3. it deletes the CA that sidecars read: ConfigMaps and a ClusterTrustBundle "belay-ca".

Policies, Anchors and what these hold stay. It can be repeated. "helm uninstall" runs it first.`,
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
	if err := stopController(ctx, kube, namespace, log); err != nil {
		return err
	}
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

// stopController ends what would register again.
func stopController(ctx context.Context, kube kubernetes.Interface, namespace string, log logr.Logger) error {
	deployments := kube.AppsV1().Deployments(namespace)
	scale, err := deployments.GetScale(ctx, controllerDeployment, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		log.Info("no Deployment to stop", "namespace", namespace, "name", controllerDeployment)
		return nil
	case err != nil:
		return fmt.Errorf("reading the scale of %s: %w", controllerDeployment, err)
	}
	if scale.Spec.Replicas != 0 {
		zero := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: controllerDeployment}}
		if _, err := deployments.UpdateScale(ctx, controllerDeployment, zero, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("scaling %s to zero: %w", controllerDeployment, err)
		}
		log.Info("scaled to zero", "namespace", namespace, "name", controllerDeployment)
	}
	ctx, cancel := context.WithTimeout(ctx, goneWithin)
	defer cancel()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		pods, err := kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: controllerPods})
		if err == nil && len(pods.Items) == 0 {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("%d Pods of %s are left", len(pods.Items), controllerDeployment)
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("waiting until nothing registers any more: %w", err), ctx.Err())
		case <-tick.C:
		}
	}
}
