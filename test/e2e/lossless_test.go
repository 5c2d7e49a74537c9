package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

const (
	phaseRollOut    = "rolling update of the webhook"
	phaseController = "controller killed (the leader)"
	phaseFrozen     = "a webhook replica frozen, 20 s"
	phaseKilled     = "a webhook replica killed"
	phaseDrain      = "a node drained"
	phaseServer     = "the API server restarts"
	// Of every load, while nothing is done to anything.
	phaseBefore, phaseAfter = "before", "after"
)

// noLostCalls: creates and writes of status go on, under policies that fail without belay,
// while belay and the cluster are worked on.
func noLostCalls(t *testing.T) {
	ctx, ns := begin(t, "lossless", v1alpha1.ModeEnforce)
	guard(ctx, t)
	// Which replica is the busiest is read through the API server, which belongs to a node.
	if err := c.letNodes(ctx, "belay-metrics", 0); err != nil {
		t.Fatal(err)
	}
	l := startLoad(ctx, t, ns)
	l.rest(ctx, 5*time.Second)
	l.during(ctx, t, phaseRollOut, func() error {
		_, err := c.kubectl(ctx, "--namespace", belayNamespace, "rollout", "restart", "deployment/belay-webhook")
		return errors.Join(err, c.available(ctx), c.left(ctx))
	})
	l.during(ctx, t, phaseController, func() error {
		leader, err := c.leader(ctx)
		if err != nil {
			return err
		}
		former, err := c.leading(ctx)
		if err != nil {
			return err
		}
		start := time.Now()
		if err := c.signal(ctx, leader, "KILL"); err != nil {
			return err
		}
		err = wait(ctx, bound, func() error {
			now, err := c.leading(ctx)
			if err == nil && now == former {
				err = errors.New("nobody leads instead")
			}
			return err
		})
		progress("  another one leads after %s", seconds(time.Since(start)))
		return err
	})
	l.during(ctx, t, phaseFrozen, func() error {
		p, err := c.busiest(ctx)
		if err != nil {
			return err
		}
		if err := c.signal(ctx, p, "STOP"); err != nil {
			return err
		}
		// Readiness has failed after 8 s, and the kubelet needs a moment to say so. The API server
		// may have left by itself, so calls do not tell.
		start := time.Now()
		err = wait(ctx, 15*time.Second, func() error {
			live, err := c.Kube.CoreV1().Pods(belayNamespace).Get(ctx, p.Name, metav1.GetOptions{})
			if err == nil {
				err = errors.Join(conditionIs(live, corev1.PodReady, corev1.ConditionFalse), c.outOfService(ctx, live))
			}
			return err
		})
		progress("  not ready after %s", seconds(time.Since(start)))
		l.rest(ctx, 20*time.Second-time.Since(start))
		return errors.Join(err, c.signal(ctx, p, "CONT"), c.ready(ctx))
	})
	l.during(ctx, t, phaseKilled, func() error {
		p, err := c.busiest(ctx)
		if err != nil {
			return err
		}
		if err := c.signal(ctx, p, "KILL"); err != nil {
			return err
		}
		l.rest(ctx, 3*time.Second)
		return c.ready(ctx)
	})
	l.during(ctx, t, phaseDrain, func() error {
		p, err := c.busiest(ctx)
		if err != nil {
			return err
		}
		defer func() {
			if _, err := c.kubectl(ctx, "uncordon", p.Spec.NodeName); err != nil {
				t.Error(err)
			}
		}()
		_, err = c.kubectl(ctx, "drain", p.Spec.NodeName, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s")
		return errors.Join(err, c.available(ctx), c.left(ctx))
	})
	l.during(ctx, t, phaseServer, func() error {
		if _, err := c.node(ctx, "belay-control-plane", "pkill", "-TERM", "-x", "kube-apiserver"); err != nil {
			return err
		}
		l.rest(ctx, 2*time.Second)
		err := wait(ctx, bound, func() error {
			_, err := c.Kube.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
			return err
		})
		l.rest(ctx, 5*time.Second) // what has waited for it is not quiet
		return err
	})
	l.enter(phaseAfter)
	l.rest(ctx, 5*time.Second)
	l.table(t, map[string][]int{
		phaseFrozen: {timedOut},
		// What a process that is killed was working on is gone, and so are connections to its
		// address until the node has started it again, or the Service is without it.
		phaseKilled: {cut},
		// Who asks belay then, belay may not be able to answer.
		phaseServer: {away, unasked},
	})
}

// outOfService reports whether Service belay-webhook has a Pod in it still.
func (c *cluster) outOfService(ctx context.Context, p *corev1.Pod) error {
	list, err := c.Kube.DiscoveryV1().EndpointSlices(belayNamespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=belay-webhook"})
	if err != nil {
		return err
	}
	found := false
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			if e.TargetRef == nil || e.TargetRef.UID != p.UID {
				continue
			}
			if found = true; e.Conditions.Ready == nil || *e.Conditions.Ready {
				return fmt.Errorf("the Service has Pod %s", p.Name)
			}
		}
	}
	if !found {
		return fmt.Errorf("no EndpointSlice of the Service says anything of Pod %s", p.Name)
	}
	return nil
}

// busiest is the replica of belay-webhook that serves most calls now: over one connection, an
// API server calls one.
func (c *cluster) busiest(ctx context.Context) (*corev1.Pod, error) {
	pods, err := c.replicas(ctx, "webhook")
	if err != nil {
		return nil, err
	}
	if len(pods) < 2 {
		return nil, fmt.Errorf("%d replicas of belay-webhook", len(pods))
	}
	count := func(p *corev1.Pod) (int, error) {
		raw, err := c.Kube.CoreV1().RESTClient().Get().Namespace(belayNamespace).Resource("pods").Name(p.Name + ":8080").SubResource("proxy").Suffix("/metrics").DoRaw(ctx)
		n := 0
		for line := range strings.Lines(string(raw)) {
			if strings.HasPrefix(line, "controller_runtime_webhook_requests_total") || strings.HasPrefix(line, "belay_admission_decisions_total") {
				var v float64
				if _, err := fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &v); err == nil {
					n += int(v)
				}
			}
		}
		return n, err
	}
	before := make([]int, len(pods))
	for i := range pods {
		if before[i], err = count(&pods[i]); err != nil {
			return nil, err
		}
	}
	select {
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
	best, most := 0, -1
	for i := range pods {
		after, err := count(&pods[i])
		if err != nil {
			return nil, err
		}
		if after-before[i] > most {
			best, most = i, after-before[i]
		}
	}
	progress("  %s serves %d calls a second", pods[best].Name, most)
	return &pods[best], nil
}

// leading is the identity of the belay-controller that leads: its Pod and its run.
func (c *cluster) leading(ctx context.Context) (string, error) {
	lease, err := c.Kube.CoordinationV1().Leases(belayNamespace).Get(ctx, "belay-controller", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
		return "", errors.New("nobody leads")
	}
	return *lease.Spec.HolderIdentity, nil
}

// leader is the Pod of the belay-controller that leads.
func (c *cluster) leader(ctx context.Context) (*corev1.Pod, error) {
	identity, err := c.leading(ctx)
	if err != nil {
		return nil, err
	}
	name, _, _ := strings.Cut(identity, "_")
	return c.Kube.CoreV1().Pods(belayNamespace).Get(ctx, name, metav1.GetOptions{})
}

// signal sends a signal to the process of a Pod of belay.
func (c *cluster) signal(ctx context.Context, p *corev1.Pod, signal string) error {
	if len(p.Status.ContainerStatuses) != 1 {
		return fmt.Errorf("Pod %s has no container", p.Name)
	}
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	pid, err := c.node(ctx, p.Spec.NodeName, "crictl", "inspect", "--output", "go-template", "--template", "{{.info.pid}}", id)
	if err != nil {
		return err
	}
	_, err = c.node(ctx, p.Spec.NodeName, "kill", "-"+signal, pid)
	return err
}

// ready waits until two replicas of belay-webhook are ready.
func (c *cluster) ready(ctx context.Context) error {
	return wait(ctx, bound, func() error {
		d, err := c.deployment(ctx, "belay-webhook")
		if err == nil && (d.Status.ReadyReplicas != *d.Spec.Replicas || d.Status.UpdatedReplicas != *d.Spec.Replicas) {
			err = fmt.Errorf("%d of %d are ready", d.Status.ReadyReplicas, *d.Spec.Replicas)
		}
		return err
	})
}
