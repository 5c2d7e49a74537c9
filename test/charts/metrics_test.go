package charts

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// foreign are metrics of others that alerts and dashboard ask for, with what they are labelled by.
var foreign = map[string][]string{
	"up": {"job"}, "leader_election_master_status": {"name"}, "process_resident_memory_bytes": {"job"}, "process_cpu_seconds_total": {"job"},
	"apiserver_admission_webhook_rejection_count": {"name", "error_type"}, "apiserver_admission_webhook_fail_open_count": {"name"},
}

// everywhere are labels that Prometheus adds.
var everywhere = []string{"namespace", "pod", "job", "le"}

// TestAlertsAndDashboardAskForWhatIsThere: a metric that is renamed would leave an alert that never
// fires, and a panel that is empty.
func TestAlertsAndDashboardAskForWhatIsThere(t *testing.T) {
	t.Parallel()
	metrics := measured(t)
	if len(metrics) < 10 {
		t.Fatalf("metrics: %v", metrics)
	}
	for m, labels := range foreign {
		metrics[m] = labels
	}
	asked := regexp.MustCompile(`\b([a-z][a-z0-9_]*)\s*\{([^}]*)\}`)
	label := regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)\s*"`)
	grouped := regexp.MustCompile(`by \(([^)]*)\)`)
	expressions := map[string]string{}
	for name, rule := range rules(t) {
		expressions["alert "+name] = rule.Expr
	}
	for name, expression := range panels(t) {
		expressions["panel "+name] = expression
	}
	if len(expressions) < 20 {
		t.Fatalf("%d expressions", len(expressions))
	}
	for where, expression := range expressions {
		found := asked.FindAllStringSubmatch(expression, -1)
		if len(found) == 0 {
			t.Errorf("%s asks for nothing: %s", where, expression)
		}
		known := slices.Clone(everywhere)
		for _, f := range found {
			name := strings.TrimSuffix(f[1], "_bucket")
			labels, ok := metrics[name]
			if !ok {
				t.Errorf("%s asks for %s, which nobody measures", where, f[1])
			}
			known = append(known, labels...)
			for _, l := range label.FindAllStringSubmatch(f[2], -1) {
				if !slices.Contains(known, l[1]) {
					t.Errorf("%s: %s has no label %s", where, f[1], l[1])
				}
			}
		}
		for _, g := range grouped.FindAllStringSubmatch(expression, -1) {
			for l := range strings.SplitSeq(g[1], ",") {
				if l = strings.TrimSpace(l); !slices.Contains(known, l) {
					t.Errorf("%s groups by %s: %s", where, l, expression)
				}
			}
		}
	}
}

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
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
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

// panels of the dashboard: what they ask for.
func panels(t *testing.T) map[string]string {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			Title   string `json:"title"`
			Targets []struct {
				Expr  string `json:"expr"`
				RefID string `json:"refId"`
			} `json:"targets"`
		} `json:"panels"`
	}
	if err := json.Unmarshal(read(t, manifests+"/dashboards/belay.json"), &dashboard); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			out[p.Title+" "+target.RefID] = target.Expr
		}
	}
	return out
}

// measured are belay's metrics by name, with their labels, as their source has them.
func measured(t *testing.T) map[string][]string {
	t.Helper()
	source := string(read(t, "../../webhook/internal/metrics/metrics.go"))
	out := map[string][]string{}
	metric := regexp.MustCompile(`(?s)Name:\s+"(belay_[a-z_]+)".*?\n\t\}(?:, \[\]string\{([^}]*)\})?\)`)
	for _, m := range metric.FindAllStringSubmatch(source, -1) {
		var labels []string
		for l := range strings.SplitSeq(m[2], ",") {
			if l = strings.Trim(l, `" `); l != "" {
				labels = append(labels, l)
			}
		}
		out[m[1]] = labels
	}
	return out
}
