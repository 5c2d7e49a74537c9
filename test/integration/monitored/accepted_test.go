package monitored

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/belay-dev/belay/test/integration/stack"
)

// monitoring are the kinds that the operator's CRDs are for; each rendering has one object of both.
var monitoring = []string{"PrometheusRule", "ServiceMonitor"}

// TestTheOperatorsAPITakesEverything: strictly, without a warning, and as it is written. Objects
// that are not about monitoring go the same way. Of what is installed, each replica is one target.
func TestTheOperatorsAPITakesEverything(t *testing.T) {
	ctx := stack.TestContext(t)
	// One after the other: they are the same objects. Targets are looked at before there is a
	// roll-out, which no kubelet would bring to an end.
	for i, r := range []struct {
		name   string
		render func(context.Context, *testing.T) []byte
	}{
		{"kustomize", kustomized("self-managed")},
		{"Helm", helmed()},
		{"Helm, with labels of one's own", helmed("metrics.serviceMonitor.labels.release=prometheus", "metrics.alerts.labels.release=prometheus")},
		{"Helm, cert-manager", helmed("tls.mode=cert-manager")},
		{"kustomize, cert-manager", kustomized("cert-manager")},
	} {
		t.Run(r.name, func(t *testing.T) {
			var kinds []string
			for _, document := range documents(t, r.render(ctx, t)) {
				if kind := applied(ctx, t, document); slices.Contains(monitoring, kind) {
					kinds = append(kinds, kind)
				}
			}
			slices.Sort(kinds)
			if diff := cmp.Diff(monitoring, kinds); diff != "" {
				t.Errorf("objects of the operator (-want +got):\n%s", diff)
			}
			if i == 0 {
				eachReplicaIsATarget(ctx, t)
			}
		})
	}
}

// kustomized is an overlay with all components.
func kustomized(overlay string) func(context.Context, *testing.T) []byte {
	return func(ctx context.Context, t *testing.T) []byte {
		t.Helper()
		dir, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		// kustomize takes no absolute paths.
		up, err := filepath.Rel(dir, filepath.Join(stack.Root(), "manifests"))
		if err != nil {
			t.Fatal(err)
		}
		content := fmt.Sprintf("resources: [%s/overlays/%s]\ncomponents:\n", up, overlay)
		for _, c := range []string{"metrics", "service-monitor", "alerts", "egress"} {
			content += fmt.Sprintf("- %s/components/%s\n", up, c)
		}
		if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		raw, err := stack.Kustomize(ctx, dir)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
}

// helmed is the chart with all options.
func helmed(values ...string) func(context.Context, *testing.T) []byte {
	return func(ctx context.Context, t *testing.T) []byte {
		t.Helper()
		values := append([]string{"metrics.enabled=true", "metrics.serviceMonitor.enabled=true", "metrics.alerts.enabled=true", "networkPolicy.egress.enabled=true"}, values...)
		return printed(ctx, t, helm(ctx, t), "template", "belay", filepath.Join(stack.Root(), "manifests", "charts", "belay"),
			"--namespace", stack.Namespace, "--kube-version", shared.Plane.Version(), "--no-hooks", "--set", strings.Join(values, ","))
	}
}

// helm is that of BELAY_HELM, or is built: seconds of linking when it was built before.
func helm(ctx context.Context, t *testing.T) string {
	t.Helper()
	if path := os.Getenv("BELAY_HELM"); path != "" {
		return path
	}
	path := filepath.Join(shared.Dir, "helm")
	if _, err := os.Stat(path); err != nil {
		printed(ctx, t, "go", "build", "-C", filepath.Join(stack.Root(), "hack", "tools", "helm"), "-o", path, "helm.sh/helm/v4/cmd/helm")
	}
	return path
}

func printed(ctx context.Context, t *testing.T, name string, args ...string) []byte {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, stderr.Bytes())
	}
	return out
}

// documents are those of a stream of YAML, as they are written: what is sent must not be what a
// parser here has made of it.
func documents(t *testing.T, stream []byte) (out [][]byte) {
	t.Helper()
	for r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(stream))); ; {
		document, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		var object map[string]any
		if err := yaml.Unmarshal(document, &object); err != nil {
			t.Fatal(err)
		}
		if object != nil { // more than comments
			out = append(out, document)
		}
	}
	if len(out) < 20 {
		t.Fatalf("%d objects", len(out))
	}
	return out
}

// warnings are what the API server says beside its answer.
type warnings struct {
	mu   sync.Mutex
	said []string
}

func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, text)
}

// applied applies one document as "kubectl apply --server-side --validate=strict" does, and
// compares what is stored with what is written. It returns the kind.
func applied(ctx context.Context, t *testing.T, document []byte) string {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(document, &object.Object); err != nil {
		t.Fatal(err)
	}
	what := object.GetKind() + " " + object.GetName()
	said := &warnings{}
	config := shared.Plane.Config()
	config.WarningHandler = said
	force := true
	var stored *unstructured.Unstructured
	var refused error
	stack.Eventually(ctx, t, what+" is served", func() error {
		client, err := resource(config, object)
		if err == nil {
			stored, err = client.Patch(ctx, object.GetName(), types.ApplyPatchType, document,
				metav1.PatchOptions{FieldManager: "kubectl", Force: &force, FieldValidation: metav1.FieldValidationStrict})
		}
		// Its CRD came a moment ago.
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return err
		}
		refused = err
		return nil
	})
	if refused != nil {
		t.Errorf("%s: %v", what, refused)
		return object.GetKind()
	}
	for _, warning := range said.said {
		t.Errorf("%s: warning: %s", what, warning)
	}
	// kustomize gives a namespace to kinds that it does not know to have none, and API servers
	// drop it.
	if stored.GetNamespace() == "" {
		object.SetNamespace("")
	}
	for _, d := range differences(plain(t, object.Object), plain(t, stored.Object), "") {
		t.Errorf("%s: %s", what, d)
	}
	return object.GetKind()
}

// resource is the client of an object's kind.
func resource(config *rest.Config, object *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	gvk := object.GroupVersionKind()
	mapping, err := shared.Client.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		return client.Resource(mapping.Resource).Namespace(object.GetNamespace()), nil
	}
	return client.Resource(mapping.Resource), nil
}

// plain is an object with numbers of one type.
func plain(t *testing.T, object map[string]any) (out map[string]any) {
	t.Helper()
	raw, err := json.Marshal(object)
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// differences are what was written and is not stored as it was. What is stored besides are
// defaults and others' fields.
func differences(written, stored any, path string) (out []string) {
	switch w := written.(type) {
	case map[string]any:
		s, ok := stored.(map[string]any)
		for k, v := range w {
			switch _, there := s[k]; {
			case v == nil:
			case !ok || !there:
				out = append(out, path+"."+k+" is gone")
			default:
				out = append(out, differences(v, s[k], path+"."+k)...)
			}
		}
		return out
	case []any:
		s, ok := stored.([]any)
		if !ok || len(s) != len(w) {
			return []string{fmt.Sprintf("%s has %v, and %v was written", path, stored, written)}
		}
		for i := range w {
			out = append(out, differences(w[i], s[i], fmt.Sprintf("%s[%d]", path, i))...)
		}
		return out
	}
	if !reflect.DeepEqual(written, stored) {
		return []string{fmt.Sprintf("%s is %v, and %v was written", path, stored, written)}
	}
	return nil
}
