package charts

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestEachAlertSaysWhatToDo in the table that it points to, which has no others.
func TestEachAlertSaysWhatToDo(t *testing.T) {
	t.Parallel()
	readme := string(read(t, manifests+"/dashboards/README.md"))
	var told []string
	for _, m := range regexp.MustCompile(`(?m)^\| (Belay\w+) \| .+ \| .+ \|$`).FindAllStringSubmatch(readme, -1) {
		told = append(told, m[1])
	}
	var there []string
	for name, rule := range rules(t) {
		there = append(there, name)
		if rule.Annotations["summary"] == "" || !strings.HasSuffix(rule.Annotations["runbook_url"], "/manifests/dashboards/README.md#what-to-do") || rule.Labels["severity"] == "" {
			t.Errorf("%s: %+v", name, rule)
		}
	}
	slices.Sort(told)
	slices.Sort(there)
	if !slices.Equal(told, there) {
		t.Errorf("alerts %q, told %q", there, told)
	}
}

// rule of Prometheus.
type rule struct {
	Alert       string            `json:"alert"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func rules(t *testing.T) map[string]rule {
	t.Helper()
	var object struct {
		Spec struct {
			Groups []struct {
				Rules []rule `json:"rules"`
			} `json:"groups"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(read(t, manifests+"/components/alerts/prometheusrule.yaml"), &object); err != nil {
		t.Fatal(err)
	}
	out := map[string]rule{}
	for _, g := range object.Spec.Groups {
		for _, r := range g.Rules {
			out[r.Alert] = r
		}
	}
	return out
}
