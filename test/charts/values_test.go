package charts

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// TestValues: what the chart's users say arrives.
func TestValues(t *testing.T) {
	t.Parallel()
	helm, _ := tools(t)
	deployment := func(t *testing.T, all objects, name string) appsv1.DeploymentSpec {
		t.Helper()
		return typed[appsv1.Deployment](t, all, "Deployment")[name].Spec
	}
	for name, c := range map[string]struct {
		values []string
		look   func(t *testing.T, all objects) (got, want any)
	}{
		"replicas": {[]string{"webhook.replicas=3", "controller.replicas=1"}, func(t *testing.T, all objects) (any, any) {
			return []int32{*deployment(t, all, "belay-webhook").Replicas, *deployment(t, all, "belay-controller").Replicas}, []int32{3, 1}
		}},
		"images of the release": {nil, func(t *testing.T, all objects) (any, any) {
			w := deployment(t, all, "belay-webhook").Template.Spec.Containers[0]
			return []string{w.Image, w.Env[2].Value, deployment(t, all, "belay-controller").Template.Spec.Containers[0].Image},
				[]string{"ghcr.io/belay-dev/belay-webhook:v0.1.0", "ghcr.io/belay-dev/belay-sidecar:v0.1.0", "ghcr.io/belay-dev/belay-controller:v0.1.0"}
		}},
		"images of another registry": {[]string{"image.registry=r.example.com:5000/b", "image.tag=x", "sidecar.image=r/s@sha256:1", "image.pullPolicy=Always", "image.pullSecrets[0].name=r"}, func(t *testing.T, all objects) (any, any) {
			p := deployment(t, all, "belay-webhook").Template.Spec
			w := p.Containers[0]
			return []string{w.Image, w.Env[2].Value, string(w.ImagePullPolicy), p.ImagePullSecrets[0].Name}, []string{"r.example.com:5000/b/belay-webhook:x", "r/s@sha256:1", "Always", "r"}
		}},
		"the uninstaller's image is the controller's": {[]string{"controller.image=r/c:1"}, func(t *testing.T, all objects) (any, any) {
			return podTemplates(t, all)["belay-uninstall"].Spec.Containers[0].Image, "r/c:1"
		}},
		"no priority class, and no quota for one": {[]string{"priorityClassName="}, func(t *testing.T, all objects) (any, any) {
			return deployment(t, all, "belay-webhook").Template.Spec.PriorityClassName, strings.Join(slices.Sorted(maps.Keys(typed[corev1.ResourceQuota](t, all, "ResourceQuota"))), " ")
		}},
		"a class of one's own has no quota": {[]string{"priorityClassName=high"}, func(t *testing.T, all objects) (any, any) {
			return len(typed[corev1.ResourceQuota](t, all, "ResourceQuota")), 0
		}},
		"a system class has one": {[]string{"priorityClassName=system-node-critical"}, func(t *testing.T, all objects) (any, any) {
			return typed[corev1.ResourceQuota](t, all, "ResourceQuota")["belay-critical-pods"].Spec.ScopeSelector.MatchExpressions[0].Values, []string{"system-node-critical"}
		}},
		"flags come last": {[]string{"webhook.extraArgs={--v=1,--drain=20s}", "metrics.enabled=true"}, func(t *testing.T, all objects) (any, any) {
			args := deployment(t, all, "belay-webhook").Template.Spec.Containers[0].Args
			return args[len(args)-3:], []string{"--metrics-bind-address=:8080", "--v=1", "--drain=20s"}
		}},
		"nodes": {[]string{"controller.nodeSelector.a=b", "controller.tolerations[0].operator=Exists", "controller.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution=null", "controller.podAnnotations.c=d"}, func(t *testing.T, all objects) (any, any) {
			p := deployment(t, all, "belay-controller").Template
			return []any{p.Spec.NodeSelector, p.Spec.Tolerations, p.Annotations}, []any{
				map[string]string{"a": "b", corev1.LabelOSStable: "linux"}, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, map[string]string{"c": "d"},
			}
		}},
		"resources": {[]string{"webhook.resources.limits.memory=1Gi", "webhook.goMemoryLimit=900MiB"}, func(t *testing.T, all objects) (any, any) {
			c := deployment(t, all, "belay-webhook").Template.Spec.Containers[0]
			return []string{c.Resources.Limits.Memory().String(), c.Env[0].Value}, []string{"1Gi", "900MiB"}
		}},
		"a longer drain, and who may call": {[]string{
			"webhook.extraArgs={--drain=30s,--client-ca-file=/callers/ca.crt}", "webhook.terminationGracePeriodSeconds=60",
			"webhook.extraVolumes[0].name=callers", "webhook.extraVolumes[0].configMap.name=callers-ca",
			"webhook.extraVolumeMounts[0].name=callers", "webhook.extraVolumeMounts[0].mountPath=/callers", "webhook.extraVolumeMounts[0].readOnly=true",
		}, func(t *testing.T, all objects) (any, any) {
			p := deployment(t, all, "belay-webhook").Template.Spec
			c := p.Containers[0]
			return []any{*p.TerminationGracePeriodSeconds, p.Volumes[len(p.Volumes)-1], c.VolumeMounts[len(c.VolumeMounts)-1], c.Args[len(c.Args)-2:]}, []any{
				int64(60),
				corev1.Volume{Name: "callers", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "callers-ca"}}}},
				corev1.VolumeMount{Name: "callers", MountPath: "/callers", ReadOnly: true},
				[]string{"--drain=30s", "--client-ca-file=/callers/ca.crt"},
			}
		}},
		"no network policies": {[]string{"networkPolicy.enabled=false", "metrics.enabled=true", "networkPolicy.egress.enabled=true"}, func(t *testing.T, all objects) (any, any) {
			return len(typed[networkingv1.NetworkPolicy](t, all, "NetworkPolicy")), 0
		}},
		"the API server's address": {[]string{"networkPolicy.callers[0].ipBlock.cidr=10.0.0.0/28", "networkPolicy.egress.enabled=true", "networkPolicy.egress.apiServer.to[0].ipBlock.cidr=10.0.0.1/32", "networkPolicy.egress.apiServer.ports=null"}, func(t *testing.T, all objects) (any, any) {
			p := typed[networkingv1.NetworkPolicy](t, all, "NetworkPolicy")
			in, out := p["belay-webhook"].Spec.Ingress[0], p["belay-egress"].Spec.Egress[1]
			// The controller looks at what replicas serve, however others are kept away.
			own := p["belay-webhook"].Spec.Ingress[2]
			return []any{in.From[0].IPBlock.CIDR, in.Ports[0].Port.IntValue(), out.To[0].IPBlock.CIDR, len(out.Ports), own.From[0].PodSelector.MatchLabels["app.kubernetes.io/component"], len(own.Ports)},
				[]any{"10.0.0.0/28", 9443, "10.0.0.1/32", 0, "controller", 2}
		}},
		"labels of the ServiceMonitor": {[]string{"metrics.enabled=true", "metrics.serviceMonitor.enabled=true", "metrics.serviceMonitor.labels.release=prometheus"}, func(t *testing.T, all objects) (any, any) {
			return metadata(t, all["ServiceMonitor belay"])["labels"], map[string]any{"app.kubernetes.io/name": "belay", "release": "prometheus"}
		}},
		"nothing runs at the end": {[]string{"uninstall.unregister=false"}, func(t *testing.T, all objects) (any, any) {
			left := slices.DeleteFunc(slices.Clone(helmAdds), func(key string) bool { return all[key] == nil })
			return len(left), 0
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, want := c.look(t, rendering{values: c.values}.helmed(t, helm, "belay-system"))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestValuesThatMakeNoSense are refused, and not left out.
func TestValuesThatMakeNoSense(t *testing.T) {
	t.Parallel()
	helm, _ := tools(t)
	for name, values := range map[string]string{
		"a mode that is none":                 "tls.mode=none",
		"a value that is none":                "webhok.replicas=3",
		"one below":                           "webhook.replica=3",
		"a monitor of what is not there":      "metrics.serviceMonitor.enabled=true",
		"alerts about what is not there":      "metrics.alerts.enabled=true",
		"a pull policy that is none":          "image.pullPolicy=Sometimes",
		"an argument that is no flag":         "webhook.extraArgs={run}",
		"a limit of memory as a quantity":     "webhook.goMemoryLimit=900Mi",
		"an API server that is not said":      "networkPolicy.egress.apiServer.ports=null",
		"less time than any drain":            "webhook.terminationGracePeriodSeconds=5",
		"a mount that is nowhere":             "webhook.extraVolumeMounts[0].name=a",
		"an annotation that is no text":       "webhook.podAnnotations.a=1",
		"replicas that are less than nothing": "webhook.replicas=-1",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := run(t.Context(), helm, "template", "belay", chart, "--kube-version", "1.33.0", "--set", values)
			if err == nil || !strings.Contains(err.Error(), "values don't meet the specifications of the schema") {
				t.Errorf("%v, %d bytes", err, len(out))
			}
		})
	}
}
