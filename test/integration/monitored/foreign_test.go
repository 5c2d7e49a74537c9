package monitored

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// ofTargets are labels that Prometheus gives to every series of a target, as a ServiceMonitor has
// it done. Of a series that has one of its own, that would be renamed.
var ofTargets = []string{"namespace", "service", "endpoint", "pod", "container", "job", "instance"}

// TestMetricsOfOthersAreServed: what alerts and dashboard ask for and belay does not measure itself
// is served by the real API server, and by belay's processes, with labels and values as they are
// asked for. A new version of a library, or of Kubernetes, may rename them.
func TestMetricsOfOthersAreServed(t *testing.T) {
	ctx := stack.TestContext(t)
	awayFor(ctx, t)
	scraped := scrapes(ctx, t)
	asked := selectors(t)
	if len(asked) < 5 {
		t.Fatalf("selectors: %q", asked)
	}
	for _, s := range asked {
		// Prometheus' own.
		if s.name == "up" {
			continue
		}
		var candidates []string
		found := slices.ContainsFunc(scraped, func(one series) bool {
			if one.name == s.name {
				candidates = append(candidates, fmt.Sprint(one.labels))
			}
			return one.name == s.name && s.matches(one)
		})
		if !found {
			t.Errorf("%s: nobody serves %s; of that name there are %q", s.where, s.text, candidates)
		}
	}
	for _, one := range scraped {
		if !strings.HasPrefix(one.name, "belay_") {
			continue
		}
		for _, l := range ofTargets {
			if _, ok := one.labels[l]; ok {
				t.Errorf("%s has the label %s, which Prometheus would rename", one.name, l)
			}
		}
	}
}

// awayFor takes belay away from the API server for two creates: one that it has to refuse then,
// and one that it lets through.
func awayFor(ctx context.Context, t *testing.T) {
	t.Helper()
	strict := shared.TestNamePolicy(ctx, t, "strict", nil)
	lenient := shared.TestNamePolicy(ctx, t, "lenient", func(p *v1alpha1.NamePolicySpec) { p.FailurePolicy = v1alpha1.FailureIgnore })
	ns := shared.TestNamespace(ctx, t, "monitored", v1alpha1.ModeEnforce)
	job := func(name string, labels map[string]string) *batchv1.Job {
		manager := "example.com/nobody"
		return &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: labels, Annotations: map[string]string{"work": "one"}},
			Spec: batchv1.JobSpec{ManagedBy: &manager, Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "none.example.com/none"}},
			}}},
		}
	}
	shared.Detach()
	defer shared.Attach()
	if err := shared.Client.Create(ctx, job("a", strict)); err == nil || !strings.Contains(err.Error(), "strict.name.belay.dev") {
		t.Errorf("with failurePolicy Fail: %v", err)
	}
	if err := shared.Client.Create(ctx, job("b", lenient)); err != nil {
		t.Errorf("with failurePolicy Ignore: %v", err)
	}
}

// A series is a line of what a server answers to a scrape.
type series struct {
	name   string
	labels map[string]string
}

var (
	sampleLine = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? \S+$`)
	labelPair  = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)
)

// scrapes are the series of belay's processes and of the API server.
func scrapes(ctx context.Context, t *testing.T) (out []series) {
	t.Helper()
	raw, err := shared.Kube.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		t.Fatal(err)
	}
	texts := []string{string(raw)}
	for _, p := range slices.Concat(shared.Webhooks(), shared.Controllers()) {
		text, err := p.Metrics(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text, "\nbelay_") {
			t.Errorf("%s has no metrics of belay", p.Name)
		}
		texts = append(texts, text)
	}
	for _, text := range texts {
		for line := range strings.Lines(text) {
			m := sampleLine.FindStringSubmatch(strings.TrimSpace(line))
			if m == nil {
				continue
			}
			one := series{name: m[1], labels: map[string]string{}}
			for _, pair := range labelPair.FindAllStringSubmatch(m[2], -1) {
				one.labels[pair[1]] = pair[2]
			}
			out = append(out, one)
		}
	}
	return out
}

// A selector is one of an expression.
type selector struct {
	where, text, name string
	matchers          [][]string
}

// matches reports whether a series is selected, as far as its own labels go.
func (s selector) matches(one series) bool {
	for _, m := range s.matchers {
		label, operator, value := m[1], m[2], m[3]
		if slices.Contains(ofTargets, label) {
			continue
		}
		if strings.HasSuffix(operator, "~") {
			value = "^(?:" + value + ")$"
		} else {
			value = "^" + regexp.QuoteMeta(value) + "$"
		}
		if regexp.MustCompile(value).MatchString(one.labels[label]) == strings.HasPrefix(operator, "!") {
			return false
		}
	}
	return true
}

// selectors are those of alerts and dashboard that are not about belay's own metrics. That they are
// found by their braces is good enough here: hack/alerts has them parsed.
func selectors(t *testing.T) (out []selector) {
	t.Helper()
	inBraces := regexp.MustCompile(`\b([a-z][a-z0-9_]*)\{([^}]*)\}`)
	matcher := regexp.MustCompile(`(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"`)
	var rules struct {
		Spec struct {
			Groups []struct {
				Rules []struct{ Alert, Expr string }
			}
		}
	}
	raw, err := os.ReadFile(filepath.Join(stack.Root(), "manifests", "components", "alerts", "prometheusrule.yaml"))
	if err == nil {
		err = yaml.Unmarshal(raw, &rules)
	}
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	raw, err = os.ReadFile(filepath.Join(stack.Root(), "manifests", "dashboards", "belay.json"))
	if err == nil {
		err = json.Unmarshal(raw, &dashboard)
	}
	if err != nil {
		t.Fatal(err)
	}
	expressions := map[string]string{}
	for _, g := range rules.Spec.Groups {
		for _, r := range g.Rules {
			expressions["alert "+r.Alert] = r.Expr
		}
	}
	for _, p := range dashboard.Panels {
		for i, target := range p.Targets {
			expressions[fmt.Sprintf("panel %s %d", p.Title, i)] = target.Expr
		}
	}
	for where, expression := range expressions {
		for _, m := range inBraces.FindAllStringSubmatch(expression, -1) {
			if !strings.HasPrefix(m[1], "belay_") {
				out = append(out, selector{where: where, text: m[0], name: m[1], matchers: matcher.FindAllStringSubmatch(m[2], -1)})
			}
		}
	}
	return out
}
