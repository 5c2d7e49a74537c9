package alerts

import (
	"encoding/json"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

const (
	root      = "../../"
	rulesFile = root + "manifests/components/alerts/prometheusrule.yaml"
	dashboard = root + "manifests/dashboards/belay.json"
)

// language is PromQL without what has to be switched on in Prometheus.
var language = parser.NewParser(parser.Options{})

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// rules are the alerts by name, as Prometheus reads them: with unknown fields, expressions, names,
// durations or templates that it does not take, it would load none of the file.
func rules(t *testing.T) map[string]rulefmt.Rule {
	t.Helper()
	var object struct {
		Spec any `yaml:"spec"`
	}
	if err := yaml.Unmarshal(read(t, rulesFile), &object); err != nil {
		t.Fatal(err)
	}
	spec, err := yaml.Marshal(object.Spec)
	if err != nil {
		t.Fatal(err)
	}
	groups, errs := rulefmt.Parse(spec, false, model.LegacyValidation, language, slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Errorf("Prometheus says: %v", err)
	}
	out := map[string]rulefmt.Rule{}
	if groups == nil {
		t.FailNow()
	}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			if _, twice := out[r.Alert]; twice || r.Alert == "" {
				t.Errorf("rule %q: a name that is missing, or taken", r.Alert)
			}
			out[r.Alert] = r
		}
	}
	if len(out) < 10 {
		t.Fatalf("%d alerts", len(out))
	}
	return out
}

// A target is an expression of a panel of the dashboard, and what its lines are called.
type target struct {
	Expr   string `json:"expr"`
	Legend string `json:"legendFormat"`
	RefID  string `json:"refId"`
}

// grafana are the variables of the dashboard, with values such as Grafana puts in their place.
var grafana = strings.NewReplacer("$namespace", "belay-system", "$__rate_interval", "1m")

// panels are the targets of the dashboard by panel and reference, without variables.
func panels(t *testing.T) map[string]target {
	t.Helper()
	var d struct {
		Panels []struct {
			Title   string   `json:"title"`
			Targets []target `json:"targets"`
		} `json:"panels"`
		Templating struct {
			List []struct {
				Name  string `json:"name"`
				Type  string `json:"type"`
				Query string `json:"query"`
			} `json:"list"`
		} `json:"templating"`
	}
	if err := json.Unmarshal(read(t, dashboard), &d); err != nil {
		t.Fatal(err)
	}
	out := map[string]target{}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			target.Expr = grafana.Replace(target.Expr)
			out[p.Title+" "+target.RefID] = target
		}
	}
	// What a variable may be asks for a metric as well.
	values := regexp.MustCompile(`^label_values\((.+), *(\w+)\)$`)
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		m := values.FindStringSubmatch(v.Query)
		if m == nil {
			t.Errorf("variable %s: %q", v.Name, v.Query)
			continue
		}
		out["variable "+v.Name] = target{Expr: m[1], Legend: "{{" + m[2] + "}}"}
	}
	if len(out) < 15 {
		t.Fatalf("%d targets", len(out))
	}
	return out
}
