package inject

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/belay-dev/belay/sidecar/settings"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// config is what all sidecars of the tests have in common.
func config() Config {
	return Config{
		Image: "ghcr.io/belay-dev/belay-sidecar:v1.2.3", Collector: "belay-webhook.belay-system.svc:9444", ServerName: "belay-webhook.belay-system.svc",
		CPU: "20m", Memory: "32Mi", EphemeralStorage: "16Mi",
	}
}

// asked is the input for a Pod.
func asked(pod map[string]any) Input {
	return Input{Pod: pod, By: v1alpha1.SidecarByPolicy, Config: config(), CA: CAConfigMap}
}

// parse reads a Pod from YAML.
func parse(t testing.TB, text string) map[string]any {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return decoded(t, raw)
}

func decoded(t testing.TB, raw []byte) map[string]any {
	t.Helper()
	var pod map[string]any
	if err := utiljson.Unmarshal(raw, &pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

func encoded(t testing.TB, v any) []byte {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// simple is a Pod as the API server shows it, with changes merged into it.
func simple(t testing.TB, changes ...string) map[string]any {
	t.Helper()
	raw := encoded(t, parse(t, `
apiVersion: v1
kind: Pod
metadata: {name: worker-0, namespace: lab, creationTimestamp: null}
spec:
  containers:
  - name: main
    image: registry.example/app:1
    imagePullPolicy: IfNotPresent
    resources: {}
    ports: [{name: web, containerPort: 8080, protocol: TCP}]
    readinessProbe:
      httpGet: {path: /healthz, port: web, scheme: HTTP}
      periodSeconds: 5
      timeoutSeconds: 2
      successThreshold: 1
      failureThreshold: 4
    terminationMessagePath: /dev/termination-log
    terminationMessagePolicy: File
  restartPolicy: Always
  dnsPolicy: ClusterFirst
  terminationGracePeriodSeconds: 30
  securityContext: {}
  schedulerName: default-scheduler
`))
	for _, change := range changes {
		merge, err := yaml.YAMLToJSON([]byte(change))
		if err != nil {
			t.Fatalf("%v\n%s", err, change)
		}
		if raw, err = jsonpatch.MergePatch(raw, merge); err != nil {
			t.Fatal(err)
		}
	}
	return decoded(t, raw)
}

// applied is what the API server makes of a Pod and edits of it.
func applied(t testing.TB, pod map[string]any, edits []Edit) map[string]any {
	t.Helper()
	if len(edits) == 0 {
		return runtime.DeepCopyJSON(pod)
	}
	patch, err := jsonpatch.DecodePatch(encoded(t, edits))
	if err != nil {
		t.Fatal(err)
	}
	out, err := patch.Apply(encoded(t, pod))
	if err != nil {
		t.Fatalf("the edits do not apply: %v\n%s", err, encoded(t, edits))
	}
	return decoded(t, out)
}

// mutated is a Pod after it was seen.
func mutated(t testing.TB, in Input) map[string]any {
	t.Helper()
	return applied(t, in.Pod, Mutate(in).Edits)
}

// sidecarOf is the sidecar of a Pod; nil for none.
func sidecarOf(pod map[string]any) map[string]any {
	c, _ := find(list(pod, "spec", "initContainers"), v1alpha1.SidecarName)
	return c
}

// withoutOurs is a Pod without what is belay's.
func withoutOurs(pod map[string]any) map[string]any {
	out := runtime.DeepCopyJSON(pod)
	named := func(name string) func(any) bool { return func(e any) bool { return text(e, "name") == name } }
	if spec := object(out, "spec"); spec != nil {
		for field, name := range map[string]string{"initContainers": v1alpha1.SidecarName, "volumes": volumeName} {
			if l := slices.DeleteFunc(list(spec, field), named(name)); len(l) > 0 {
				spec[field] = l
			} else if spec[field] == nil || list(spec, field) != nil {
				delete(spec, field)
			}
		}
	}
	if metadata := object(out, "metadata"); metadata != nil {
		delete(object(metadata, "labels"), v1alpha1.SidecarLabel)
		if metadata["labels"] == nil || object(metadata, "labels") != nil && len(object(metadata, "labels")) == 0 {
			delete(metadata, "labels")
		}
	}
	return out
}

// environment are the variables of a sidecar as the kubelet sets them. Names of fields stand
// for what it puts there.
func environment(sidecar map[string]any) func(string) string {
	return func(name string) string {
		e, _ := find(list(sidecar, "env"), name)
		switch text(e, "valueFrom", "fieldRef", "fieldPath") {
		case "metadata.namespace":
			return "lab"
		case "metadata.name":
			return "worker-0"
		case "metadata.uid":
			return "0c7d1a3e-5b0f-4c55-9d8e-0a9f6d1b2c3d"
		case "status.podIP":
			return "fd00::7"
		}
		return strings.ReplaceAll(text(e, "value"), "$$", "$")
	}
}

// told is what a sidecar reads of what it was told.
func told(t testing.TB, pod map[string]any) settings.Settings {
	t.Helper()
	s, err := settings.Read(environment(sidecarOf(pod)))
	if err != nil {
		t.Errorf("the sidecar does not start with it: %v", err)
	}
	return s
}

// classOf is a Pod's class of quality of service, by the rule of
// https://kubernetes.io/docs/concepts/workloads/pods/pod-qos/ and, for resources of the Pod as
// a whole, which alone count then, of the API's reference. Init containers count. It is unknown
// where a quantity is none.
func classOf(pod map[string]any) string {
	all := append(slices.Clone(list(pod, "spec", "containers")), list(pod, "spec", "initContainers")...)
	if object(pod, "spec", "resources") != nil {
		all = []any{object(pod, "spec")}
	}
	unknown := false
	quantity := func(c any, kind, name string) resource.Quantity {
		v := member(c, "resources", kind, name)
		q, ok := parsed(v)
		unknown = unknown || v != nil && !ok
		return q
	}
	none, guaranteed := true, true
	for _, c := range all {
		for _, name := range []string{"cpu", "memory"} {
			request, limit := quantity(c, "requests", name), quantity(c, "limits", name)
			none = none && request.Sign() <= 0 && limit.Sign() <= 0
			// A request that is not said is the limit.
			if member(c, "resources", "requests", name) == nil {
				request = limit
			}
			guaranteed = guaranteed && limit.Sign() > 0 && request.Cmp(limit) == 0
		}
	}
	switch {
	case unknown:
		return "unknown"
	case none:
		return "BestEffort"
	case guaranteed:
		return "Guaranteed"
	default:
		return "Burstable"
	}
}
