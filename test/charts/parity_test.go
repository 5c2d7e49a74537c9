package charts

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// kustomizeAdds is what only kustomize makes: Helm makes the namespace itself, or it is there.
var kustomizeAdds = []string{"Namespace belay-system"}

// helmAdds is what only the chart has: what runs before the release is removed. With kustomize the
// namespace goes, and with it the registrations, which it owns.
var helmAdds = []string{
	"ServiceAccount belay-uninstall", "ClusterRole belay-uninstall", "ClusterRoleBinding belay-uninstall",
	"Role belay-uninstall", "RoleBinding belay-uninstall", "Job belay-uninstall",
}

// tools are the programs that render, and skips the test where they are not named.
func tools(t *testing.T) (helm, kustomize string) {
	t.Helper()
	helm, kustomize = os.Getenv("BELAY_HELM"), os.Getenv("BELAY_KUSTOMIZE")
	if helm == "" || kustomize == "" {
		t.Skip(`BELAY_HELM and BELAY_KUSTOMIZE are not set; run "make verify-chart"`)
	}
	return helm, kustomize
}

// rendering is one way to install belay, by both tools.
type rendering struct {
	// overlay and components are below manifests.
	overlay    string
	components []string
	// values are given to the chart.
	values []string
}

// renderings are all that the manifests offer.
func renderings() map[string]rendering {
	out := map[string]rendering{
		"e2e, self-managed": {overlay: "overlays/e2e", values: []string{"image.tag=e2e", "image.pullPolicy=Never", "metrics.enabled=true", "webhook.extraArgs={--certificate-life=90s}", "controller.extraArgs={--ca-settle=10s}"}},
		"e2e, cert-manager": {overlay: "overlays/e2e-cert-manager", values: []string{"image.tag=e2e", "image.pullPolicy=Never", "metrics.enabled=true", "webhook.extraArgs={--certificate-life=90s}", "controller.extraArgs={--ca-settle=10s}", "tls.mode=cert-manager"}},
		"base":              {overlay: "base", values: []string{"image.tag=latest"}},
	}
	for _, mode := range []string{"self-managed", "cert-manager"} {
		for name, metrics := range map[string]rendering{
			"": {},
			", metrics": {
				components: []string{"components/metrics"},
				values:     []string{"metrics.enabled=true"},
			},
			", metrics and ServiceMonitor": {
				components: []string{"components/metrics", "components/service-monitor"},
				values:     []string{"metrics.enabled=true", "metrics.serviceMonitor.enabled=true"},
			},
			", metrics and alerts": {
				components: []string{"components/metrics", "components/alerts"},
				values:     []string{"metrics.enabled=true", "metrics.alerts.enabled=true"},
			},
		} {
			r := rendering{overlay: "overlays/" + mode, components: metrics.components, values: append([]string{"image.tag=latest", "tls.mode=" + mode}, metrics.values...)}
			out[mode+name] = r
			out[mode+name+", egress"] = rendering{
				overlay: r.overlay, components: append(slices.Clone(r.components), "components/egress"),
				values: append(slices.Clone(r.values), "networkPolicy.egress.enabled=true"),
			}
		}
	}
	return out
}

// kustomized is what kustomize makes.
func (r rendering) kustomized(t *testing.T, kustomize string) []byte {
	t.Helper()
	dir := t.TempDir()
	up, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	absolute, err := filepath.Abs(manifests)
	if err != nil {
		t.Fatal(err)
	}
	// kustomize takes no absolute paths.
	if up, err = filepath.Rel(up, absolute); err != nil {
		t.Fatal(err)
	}
	content := fmt.Sprintf("resources: [%s]\n", filepath.Join(up, r.overlay))
	for i, c := range r.components {
		if i == 0 {
			content += "components:\n"
		}
		content += "- " + filepath.Join(up, c) + "\n"
	}
	write(t, filepath.Join(dir, "kustomization.yaml"), content)
	out, err := run(t.Context(), kustomize, "build", dir)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// helmed is what Helm makes.
func (r rendering) helmed(t *testing.T, helm, namespace string, more ...string) objects {
	t.Helper()
	return printed(t, helm, "template", "belay", chart, "--namespace", namespace, "--kube-version", "1.33.0",
		"--set", strings.Join(slices.Concat([]string{"crds.keep=false"}, r.values, more), ","))
}

// TestTheChartMakesWhatKustomizeMakes: field by field, in every mode and with every option, and in
// every namespace.
func TestTheChartMakesWhatKustomizeMakes(t *testing.T) {
	t.Parallel()
	helm, kustomize := tools(t)
	for name, r := range renderings() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			built := r.kustomized(t, kustomize)
			for _, namespace := range []string{"belay-system", "1234"} {
				want := parse(t, bytes.ReplaceAll(built, []byte("namespace: belay-system\n"), []byte("namespace: \""+namespace+"\"\n")))
				if namespace != "belay-system" {
					want = parse(t, bytes.ReplaceAll(bytes.ReplaceAll(built, []byte(": belay-system\n"), []byte(": \""+namespace+"\"\n")), []byte("belay-system"), []byte(namespace)))
				}
				got := r.helmed(t, helm, namespace)
				for _, key := range kustomizeAdds {
					without(t, want, strings.ReplaceAll(key, "belay-system", namespace))
				}
				for _, key := range helmAdds {
					without(t, got, key)
				}
				compare(t, "in namespace "+namespace, want, got)
			}
		})
	}
}

// without takes an object out that must be there.
func without(t *testing.T, all objects, key string) {
	t.Helper()
	if _, ok := all[key]; !ok {
		t.Errorf("there is no %s; there are %q", key, slices.Sorted(maps.Keys(all)))
	}
	delete(all, key)
}

// TestTheBaseIsTheSelfManagedOverlay: README names either.
func TestTheBaseIsTheSelfManagedOverlay(t *testing.T) {
	t.Parallel()
	_, kustomize := tools(t)
	base := parse(t, rendering{overlay: "base"}.kustomized(t, kustomize))
	compare(t, "self-managed", base, parse(t, rendering{overlay: "overlays/self-managed"}.kustomized(t, kustomize)))
}
