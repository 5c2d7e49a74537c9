package monitored

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/belay-dev/belay/test/integration/stack"
)

// monitor is what is read of a ServiceMonitor; a field besides would be one that is not taken into
// account here.
type monitor struct {
	Selector  metav1.LabelSelector `json:"selector"`
	Endpoints []struct {
		Port string `json:"port"`
	} `json:"endpoints"`
}

// eachReplicaIsATarget computes the targets as the operator has Prometheus do it: Services by
// label, their addresses, ready or not, that have a port of that name. The addresses are those of
// Pods as the Deployments make them, by the cluster's own controllers.
func eachReplicaIsATarget(ctx context.Context, t *testing.T) {
	t.Helper()
	object, err := shared.Dynamic.Resource(schema.GroupVersionResource{Group: "monitoring.coreos.com", Version: "v1", Resource: "servicemonitors"}).
		Namespace(stack.Namespace).Get(ctx, "belay", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := yaml.Marshal(object.Object["spec"])
	if err != nil {
		t.Fatal(err)
	}
	var m monitor
	if err := yaml.UnmarshalStrict(raw, &m); err != nil {
		t.Fatalf("the ServiceMonitor has more than is known here: %v", err)
	}
	selector, err := metav1.LabelSelectorAsSelector(&m.Selector)
	if err != nil {
		t.Fatal(err)
	}
	want := running(ctx, t)
	stack.Eventually(ctx, t, "job, Pod and address of each target", func() error {
		var services corev1.ServiceList
		if err := shared.Client.List(ctx, &services, client.InNamespace(stack.Namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil {
			return err
		}
		var got []string
		for _, s := range services.Items {
			found, err := addresses(ctx, s.Name, m)
			if err != nil {
				return err
			}
			got = append(got, found...)
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("(-want +got):\n%s", diff)
		}
		return nil
	})
}

// addresses are the targets of a Service. The job is called after it.
func addresses(ctx context.Context, service string, m monitor) (targets []string, err error) {
	var slices discoveryv1.EndpointSliceList
	if err := shared.Client.List(ctx, &slices, client.InNamespace(stack.Namespace), client.MatchingLabels{discoveryv1.LabelServiceName: service}); err != nil {
		return nil, err
	}
	for _, slice := range slices.Items {
		for _, port := range slice.Ports {
			for _, e := range m.Endpoints {
				if *port.Name != e.Port {
					continue
				}
				for _, endpoint := range slice.Endpoints {
					targets = append(targets, target(service, endpoint.TargetRef.Name, endpoint.Addresses[0], strconv.Itoa(int(*port.Port))))
				}
			}
		}
	}
	return targets, nil
}

func target(job, pod, host, port string) string {
	return fmt.Sprintf("%s %s %s", job, pod, net.JoinHostPort(host, port))
}

// running gives each Pod of both Deployments an address, as a kubelet would, the first of each
// being ready. It returns the targets that there should be: the job that alerts go by, the Pod, and
// the port where the process in it is told to serve its metrics.
func running(ctx context.Context, t *testing.T) (targets []string) {
	t.Helper()
	for n, part := range []string{"belay-webhook", "belay-controller"} {
		var d appsv1.Deployment
		if err := shared.Client.Get(ctx, client.ObjectKey{Namespace: stack.Namespace, Name: part}, &d); err != nil {
			t.Fatal(err)
		}
		var pods corev1.PodList
		stack.Eventually(ctx, t, "the Pods of "+part, func() error {
			err := shared.Client.List(ctx, &pods, client.InNamespace(stack.Namespace), client.MatchingLabels(d.Spec.Selector.MatchLabels))
			if err == nil && len(pods.Items) != 2 {
				err = fmt.Errorf("%d Pods", len(pods.Items))
			}
			return err
		})
		for i, p := range pods.Items {
			ready := corev1.ConditionFalse
			if i == 0 {
				ready = corev1.ConditionTrue
			}
			ip := fmt.Sprintf("10.1.%d.%d", n, i+1)
			p.Status.Phase, p.Status.PodIP, p.Status.PodIPs = corev1.PodRunning, ip, []corev1.PodIP{{IP: ip}}
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: ready, LastTransitionTime: metav1.Now()})
			if err := shared.Client.Status().Update(ctx, &p); err != nil {
				t.Fatal(err)
			}
			for _, arg := range p.Spec.Containers[0].Args {
				if address, ok := strings.CutPrefix(arg, "--metrics-bind-address="); ok {
					_, port, err := net.SplitHostPort(address)
					if err != nil {
						t.Fatal(err)
					}
					targets = append(targets, target(part+"-replicas", p.Name, ip, port))
				}
			}
		}
	}
	if len(targets) != 4 {
		t.Fatalf("of two Deployments with two replicas each: %q", targets)
	}
	slices.Sort(targets)
	return targets
}
