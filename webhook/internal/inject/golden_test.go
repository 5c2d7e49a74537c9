package inject

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden Pods")

// live is a Pod with a sidecar as kubectl get -o yaml has it; kind is the value of its label.
func live(kind string) string {
	return `
metadata:
  uid: 5d1a7d0e-6f0c-4b53-9c0e-0d2f9f1f7a01
  resourceVersion: "4711"
  labels: {app: trainer, belay.dev/sidecar: ` + kind + `}
  annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}"}
spec:
  nodeName: node-a
  serviceAccountName: default
  serviceAccount: default
  priority: 0
  enableServiceLinks: true
  preemptionPolicy: PreemptLowerPriority
  tolerations: [{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 300}]
  containers:
  - name: main
    image: registry.example/app:1
    resources: {}
    ports: [{containerPort: 8080, protocol: TCP}]
    readinessProbe: {httpGet: {path: /healthz, port: 8080, scheme: HTTP}, periodSeconds: 5, timeoutSeconds: 2, successThreshold: 1, failureThreshold: 4}
    volumeMounts: [{name: kube-api-access-abcde, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}]
  initContainers:
  - name: belay-sidecar
    image: ghcr.io/belay-dev/belay-sidecar:v1.2.3
    imagePullPolicy: IfNotPresent
    restartPolicy: Always
    env:
    - {name: BELAY_COLLECTOR, value: "belay-webhook.belay-system.svc:9444"}
    - {name: BELAY_SERVER_NAME, value: belay-webhook.belay-system.svc}
    - {name: BELAY_NAMESPACE, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.namespace}}}
    - {name: BELAY_POD, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.name}}}
    - {name: BELAY_POD_UID, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.uid}}}
    - {name: BELAY_POD_IP, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: status.podIP}}}
    - {name: BELAY_CONTAINER, value: main}
    - {name: BELAY_PROBE, value: "http://:8080/healthz"}
    - {name: BELAY_PROBE_PERIOD, value: 5s}
    - {name: BELAY_PROBE_TIMEOUT, value: 2s}
    - {name: BELAY_PROBE_SUCCESS_THRESHOLD, value: "1"}
    - {name: BELAY_PROBE_FAILURE_THRESHOLD, value: "4"}
    resources: {}
    securityContext:
      allowPrivilegeEscalation: false
      capabilities: {drop: [ALL]}
      privileged: false
      readOnlyRootFilesystem: true
      runAsGroup: 65532
      runAsNonRoot: true
      runAsUser: 65532
      seccompProfile: {type: RuntimeDefault}
    terminationMessagePath: /dev/termination-log
    terminationMessagePolicy: File
    volumeMounts:
    - {name: belay-sidecar, mountPath: /var/run/belay, readOnly: true}
    - {name: kube-api-access-abcde, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
  volumes:
  - name: kube-api-access-abcde
    projected: {defaultMode: 420, sources: [{serviceAccountToken: {expirationSeconds: 3607, path: token}}]}
  - name: belay-sidecar
    projected:
      defaultMode: 420
      sources:
      - serviceAccountToken: {audience: belay.dev, expirationSeconds: 3600, path: token}
      - configMap: {name: belay-ca, optional: true, items: [{key: ca.crt, path: ca.crt}]}
status:
  phase: Running
  qosClass: BestEffort
  podIP: 10.0.0.7
`
}

// oldSidecar is what an early version has injected.
const oldSidecar = `
metadata: {labels: {belay.dev/sidecar: policy}}
spec:
  initContainers:
  - name: belay-sidecar
    image: ghcr.io/belay-dev/belay-sidecar:v0.1.0
    restartPolicy: Always
    command: [/belay-sidecar]
    env:
    - {name: BELAY_OLD, value: gone}
    - {name: BELAY_COLLECTOR, value: "elsewhere:1"}
    - {name: BELAY_LOG_LEVEL, value: debug}
    - {name: BELAY_POD_UID, value: some-other-pod}
    - {name: BELAY_TOKEN_FILE, value: /elsewhere/token}
    - {name: BELAY_COLLECTOR, value: "twice:2"}
    ports: [{containerPort: 9000}]
    securityContext: {runAsUser: 0, privileged: true, capabilities: {add: [NET_ADMIN]}}
    volumeMounts: [{name: belay-sidecar, mountPath: /old}, {name: data, mountPath: /var/run/belay/token}]
  volumes:
  - {name: data, emptyDir: {}}
  - {name: belay-sidecar, projected: {sources: [{serviceAccountToken: {audience: belay.dev, path: token, expirationSeconds: 86400}}]}}
`

const touched = `
spec:
  initContainers:
  - name: other-init
    image: registry.example/other:1
  - name: belay-sidecar
    image: mirror.example/ghcr/belay-sidecar:v1.2.3
    imagePullPolicy: Always
    restartPolicy: Always
    env:
    - {name: HTTPS_PROXY, value: "http://proxy.example:3128"}
    - {name: BELAY_COLLECTOR, value: "belay-webhook.belay-system.svc:9444"}
    - {name: NODE, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: spec.nodeName}}}
    - {name: BELAY_CONTAINER, value: somebody-else}
    resources: {requests: {cpu: 7m}, claims: [{name: gpu}]}
    resizePolicy: [{resourceName: cpu, restartPolicy: NotRequired}]
    readinessProbe: {tcpSocket: {port: 1}}
    startupProbe: {tcpSocket: {port: 1}}
    lifecycle: {postStart: {exec: {command: [sh]}}}
    ports: [{containerPort: 15000}]
    envFrom: [{secretRef: {name: all}}]
    securityContext: {runAsUser: 1000680000, seLinuxOptions: {level: "s0:c26,c5"}, appArmorProfile: {type: RuntimeDefault}, capabilities: {add: [SYS_ADMIN]}}
    terminationMessagePath: /dev/termination-log
    terminationMessagePolicy: FallbackToLogsOnError
    volumeMounts:
    - {name: extra, mountPath: /etc/ssl/extra, readOnly: true}
    - {name: belay-sidecar, mountPath: /var/run/belay}
    fieldOfTomorrow: {kept: true}
  volumes:
  - {name: extra, emptyDir: {}}
`

func resourced(requests, limits string) string {
	return `{spec: {containers: [{name: main, image: "registry.example/app:1", resources: {requests: ` + requests + `, limits: ` + limits + `}, readinessProbe: {tcpSocket: {port: 80}}}]}}`
}

func probed(probe string) string {
	return `{spec: {containers: [{name: main, image: "registry.example/app:1", ports: [{name: web, containerPort: 8080}], readinessProbe: ` + probe + `}]}}`
}

func annotatedWith(key, value string) string {
	return `{metadata: {annotations: {"` + key + `": "` + value + `"}}}`
}

func probedBy(value string) string {
	return annotatedWith(v1alpha1.ProbeAnnotation, value) + "\n---\n{spec: {volumes: [{name: shared, emptyDir: {}}]}}"
}

// goldens are Pods by a sentence, which is the name of a file, too. Changes of simple are
// parted by ---.
var goldens = map[string]struct {
	pod string
	by  string // default: by a policy
	// main is the policy's.
	main string
	ca   CASource
}{
	"a plain pod":                                    {},
	"a plain pod that asks by annotation":            {pod: annotatedWith("belay.dev/sidecar", "inject"), by: v1alpha1.SidecarByAnnotation},
	"a pod with labels":                              {pod: `{metadata: {labels: {app: trainer}}}`},
	"a pod of a job":                                 {pod: `{metadata: {name: null, generateName: run-, labels: {job-name: run}, ownerReferences: [{apiVersion: batch/v1, kind: Job, name: run, uid: u, controller: true}]}, spec: {restartPolicy: Never, activeDeadlineSeconds: 60}}`},
	"a CA from a ClusterTrustBundle":                 {ca: CAClusterTrustBundle},
	"C07 a guaranteed pod":                           {pod: resourced(`{cpu: "4", memory: 1Gi}`, `{cpu: "4", memory: 1Gi}`)},
	"C07 a pod with best effort":                     {pod: resourced(`{}`, `{}`)},
	"C07 a pod with best effort by zero":             {pod: resourced(`{cpu: "0", memory: "0"}`, `{}`)},
	"C07 a burstable pod that requests a part":       {pod: resourced(`{cpu: "1"}`, `{memory: 1Gi}`)},
	"C07 two containers of which one says resources": {pod: `{spec: {containers: [{name: main, image: a, resources: {limits: {cpu: "1", memory: 1Gi}, requests: {cpu: "1", memory: 1Gi}}}, {name: b, image: b, resources: {requests: {cpu: "1"}}}]}}`},
	"C05 a pod for a quota on everything":            {pod: resourced(`{cpu: "1", memory: 1Gi, ephemeral-storage: 1Gi, example.com/gpu: "1"}`, `{cpu: "2", memory: 2Gi, ephemeral-storage: 2Gi, example.com/gpu: "1"}`)},
	"resources of the pod as a whole":                {pod: `{spec: {resources: {requests: {cpu: "2"}, limits: {cpu: "2", memory: 2Gi}}}}`},
	"requests of the pod as a whole":                 {pod: resourced(`{cpu: "1", memory: 1Gi}`, `{cpu: "1"}`) + "\n---\n{spec: {resources: {requests: {cpu: \"2\"}}}}"},
	"resources of the pod and its containers":        {pod: resourced(`{cpu: "1", memory: 1Gi, ephemeral-storage: 1Gi}`, `{cpu: "1"}`) + "\n---\n{spec: {resources: {limits: {cpu: \"2\"}}}}"},
	"C04 a pod for the restricted level":             {pod: `{spec: {securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}}}`},
	"C03 the network of the host":                    {pod: `{spec: {hostNetwork: true}}`},
	"C03 the network of the host and the cluster":    {pod: `{spec: {hostNetwork: true, dnsPolicy: ClusterFirstWithHostNet}}`},
	"names by the node":                              {pod: `{spec: {dnsPolicy: Default}}`},
	"names by its own servers":                       {pod: `{spec: {dnsPolicy: None, dnsConfig: {nameservers: [10.0.0.10]}}}`},
	"C17 init containers b and a":                    {pod: `{spec: {initContainers: [{name: b, image: b}, {name: a, image: a, restartPolicy: Always}]}}`},
	"C16 init containers that are null":              {pod: "", main: "null"},
	"C16 declined with init containers":              {pod: annotatedWith("belay.dev/sidecar", "skip") + "\n---\n{spec: {initContainers: [{name: b, image: b}, {name: a, image: a}]}}"},
	"an annotation with another value":               {pod: annotatedWith("belay.dev/sidecar", "True")},
	"injected by an older version":                   {pod: oldSidecar},
	"C11 a copy of a live pod":                       {pod: live("policy")},
	"C11 a copy of a live pod that asks itself":      {pod: live("policy"), by: v1alpha1.SidecarByAnnotation},
	"C11 a copy of a live pod that asked itself":     {pod: live("annotation")},
	"C10 another webhook in between":                 {pod: touched},
	"C10 another webhook in between and resources":   {pod: touched + "\n---\n" + resourced(`{cpu: "1", memory: 1Gi}`, `{cpu: "1", memory: 1Gi}`)},
	"C13 a pod for Windows":                          {pod: `{spec: {os: {name: windows}}}`},
	"C13 nodes with Windows":                         {pod: `{spec: {nodeSelector: {kubernetes.io/os: windows}}}`},
	"C13 nodes with Windows by affinity":             {pod: `{spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: Exists}, {key: kubernetes.io/os, operator: In, values: [windows]}]}]}}}}}`},
	"C13 nodes with Windows or others":               {pod: `{spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/os, operator: In, values: [windows]}]}, {matchExpressions: [{key: zone, operator: Exists}]}]}}}}}`},
	"nodes with Linux":                               {pod: `{spec: {os: {name: linux}, nodeSelector: {kubernetes.io/os: linux}}}`},
	"C12 a mirror pod":                               {pod: annotatedWith("kubernetes.io/config.mirror", "x")},
	"C17 a container of the same name":               {pod: `{spec: {containers: [{name: main, image: a}, {name: belay-sidecar, image: own}]}}`},
	"C17 an init container of the same name":         {pod: `{spec: {initContainers: [{name: belay-sidecar, image: own}]}}`},
	"C17 a volume of the same name":                  {pod: `{spec: {volumes: [{name: belay-sidecar, emptyDir: {}}]}}`},
	"C17 a projected volume of the same name":        {pod: `{spec: {volumes: [{name: belay-sidecar, projected: {sources: [{secret: {name: own}}]}}]}}`},
	"C15 ephemeral containers":                       {pod: `{spec: {ephemeralContainers: [{name: debugger, image: busybox}]}}`},
	"C08 no token of the service account":            {pod: `{spec: {automountServiceAccountToken: false}}`},
	"two containers":                                 {pod: `{spec: {containers: [{name: proxy, image: p}, {name: app, image: a, readinessProbe: {grpc: {port: 9000}}}]}}`},
	"two containers and an annotation":               {pod: `{metadata: {annotations: {kubectl.kubernetes.io/default-container: app}}, spec: {containers: [{name: proxy, image: p}, {name: app, image: a, readinessProbe: {grpc: {port: 9000}}}]}}`},
	"two containers and a policy that names one":     {pod: `{spec: {containers: [{name: proxy, image: p}, {name: app, image: a, readinessProbe: {grpc: {port: 9000}}}]}}`, main: "app"},
	"an annotation that names no container":          {pod: annotatedWith("kubectl.kubernetes.io/default-container", "nope")},
	"a policy that names no container":               {main: "nope"},
	"selected and asking for itself":                 {pod: `{metadata: {annotations: {belay.dev/sidecar: inject}, labels: {belay.dev/sidecar: policy}}, spec: {containers: [{name: proxy, image: p}, {name: app, image: a}], initContainers: [{name: belay-sidecar, image: belay-sidecar, env: [{name: BELAY_CONTAINER, value: app}]}]}}`, by: v1alpha1.SidecarByAnnotation},

	"probe by annotation: a path":                    {pod: probedBy("http://:9090/ready")},
	"probe by annotation: a host":                    {pod: probedBy("tcp://[::1]:5432")},
	"probe by annotation: none":                      {pod: probedBy("none")},
	"probe by annotation: a file":                    {pod: probedBy("file://shared/run/ready")},
	"probe by annotation: a file in no volume":       {pod: probedBy("file:///run/ready")},
	"probe by annotation: a file in another volume":  {pod: probedBy("file://other/ready")},
	"probe by annotation: a file in belay's volume":  {pod: probedBy("file://belay-sidecar/token")},
	"probe by annotation: a file outside":            {pod: probedBy("file://shared/a/../../belay/token")},
	"probe by annotation: a volume alone":            {pod: probedBy("file://shared")},
	"probe by annotation: a folder":                  {pod: probedBy("file://shared/run/")},
	"probe by annotation: no port":                   {pod: probedBy("http://example.org/")},
	"probe by annotation: a typing error":            {pod: probedBy(`htpp://:80\nX`)},
	"probe by annotation: nothing":                   {pod: probedBy("")},
	"probe: a named port over TLS":                   {pod: probed(`{httpGet: {path: "/a b?c=d", port: web, scheme: HTTPS}}`)},
	"probe: a named port that is not there":          {pod: probed(`{httpGet: {path: /, port: nope}}`)},
	"probe: a port as a text":                        {pod: probed(`{tcpSocket: {port: "9000"}}`)},
	"probe: a path without a slash":                  {pod: probed(`{httpGet: {path: "healthz", port: 80}}`)},
	"probe: a query without a path":                  {pod: probed(`{httpGet: {path: "?a=b", port: 80}}`)},
	"probe: headers with dollars":                    {pod: probed(`{httpGet: {path: "/$(X)", port: 80, httpHeaders: [{name: Host, value: example.org}, {name: X-Var, value: "$(POD) $$(POD) $"}, {name: X-Space, value: " two: a"}]}}`)},
	"probe: headers that cannot be sent":             {pod: probed(`{httpGet: {path: /, port: 80, httpHeaders: [{name: X-Break, value: "a\nb"}]}}`)},
	"probe: headers without bounds":                  {pod: probed(`{httpGet: {path: /, port: 80, httpHeaders: [{name: X-Long, value: "` + strings.Repeat("x", 20_000) + `"}]}}`)},
	"C27 probe: a host by IPv6":                      {pod: probed(`{httpGet: {host: "fd00::8", path: /, port: 80}}`)},
	"probe: a host that is none":                     {pod: probed(`{httpGet: {host: "a@b", path: /, port: 80}}`)},
	"probe: tcp":                                     {pod: probed(`{tcpSocket: {port: 5432}, periodSeconds: 1}`)},
	"probe: grpc":                                    {pod: probed(`{grpc: {port: 9000, service: a.b.C}, successThreshold: 3}`)},
	"probe: a command":                               {pod: probed(`{exec: {command: ["true"]}}`)},
	"probe: none":                                    {pod: probed(`null`)},
	"probe: out of the sidecar's bounds":             {pod: probed(`{tcpSocket: {port: 80}, periodSeconds: 86400, timeoutSeconds: 7200, successThreshold: 5000, failureThreshold: 100000}`)},
	"probe: a path longer than a sidecar reads":      {pod: probed(`{httpGet: {path: "/` + strings.Repeat("a", 3000) + `", port: 80}}`)},
	"probe: a port that is none":                     {pod: probed(`{tcpSocket: {port: 70000}}`)},
	"probe: by annotation wins, its period does not": {pod: probed(`{tcpSocket: {port: 80}, periodSeconds: 3}`) + "\n---\n" + probedBy("http://:81")},
	"C26 declined":                                   {pod: annotatedWith("belay.dev/sidecar", "skip") + "\n---\n" + live("policy")},
	"no container":                                   {pod: `{spec: {containers: []}}`},
	"init containers that are a text":                {pod: `{spec: {initContainers: none}}`},
}

// golden is the content of a file.
type golden struct {
	Input    map[string]any `json:"input"`
	Reason   Reason         `json:"reason"`
	Message  string         `json:"message"`
	Warnings []string       `json:"warnings"`
	// Output is the Pod with the edits; absent where there are none.
	Output map[string]any `json:"output,omitempty"`
}

func goldenFile(name string) string {
	return strings.NewReplacer(" ", "-", ":", "", "'", "", ",", "").Replace(name) + ".yaml"
}

func goldenInput(t testing.TB, name string) Input {
	t.Helper()
	g := goldens[name]
	var changes []string
	if g.pod != "" {
		changes = strings.Split(g.pod, "\n---\n")
	}
	in := asked(simple(t, changes...))
	in.MainContainer = g.main
	if name == "C16 init containers that are null" {
		object(in.Pod, "spec")["initContainers"], object(in.Pod, "spec")["volumes"], object(in.Pod, "metadata")["labels"] = nil, nil, nil
		in.MainContainer = ""
	}
	if g.by != "" {
		in.By = g.by
	}
	if g.ca != "" {
		in.CA = g.ca
	}
	return in
}

// TestPodsAreAsTheGoldenFiles: what becomes of a Pod, to the last field.
func TestPodsAreAsTheGoldenFiles(t *testing.T) {
	t.Parallel()
	files := map[string]bool{}
	for name := range goldens {
		files[goldenFile(name)] = true
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := goldenInput(t, name)
			d := Mutate(in)
			if !d.Allowed {
				t.Fatal("it is denied")
			}
			g := golden{Input: in.Pod, Reason: d.Reason, Message: d.Message, Warnings: d.Warnings}
			if len(d.Edits) > 0 {
				g.Output = applied(t, in.Pod, d.Edits)
			}
			got, err := yaml.Marshal(g)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", goldenFile(name))
			if *update {
				if err := os.WriteFile(path, got, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(filepath.Clean(path))
			if errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("%s is missing (-update writes it)", path)
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s (-want +got; -update accepts it)\n%s", path, diff)
			}
		})
	}
	entries, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !e.IsDir() && !files[e.Name()] {
			t.Errorf("testdata/%s belongs to no case", e.Name())
		}
	}
	if len(files) != len(goldens) {
		t.Error("two cases have one file")
	}
}
