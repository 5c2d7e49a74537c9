package alerts

import (
	"go/ast"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	goparser "go/parser"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// foreign are metrics of others that are asked for, with their labels. test/integration/monitored
// looks at what really serves them.
var foreign = map[string][]string{
	"up":                            {},
	"leader_election_master_status": {"name"},
	"process_resident_memory_bytes": {}, "process_cpu_seconds_total": {},
	"apiserver_admission_webhook_rejection_count": {"name", "type", "operation", "error_type", "rejection_code"},
	"apiserver_admission_webhook_fail_open_count": {"name", "type"},
}

// everywhere are labels of the target, which Prometheus adds; those that
// components/service-monitor makes.
var everywhere = []string{"namespace", "pod", "job"}

// TestAlertsAndDashboardAskForWhatIsThere: a metric, a label or a value of one that is renamed
// would leave an alert that never fires, and a panel that is empty.
func TestAlertsAndDashboardAskForWhatIsThere(t *testing.T) {
	t.Parallel()
	metrics := measured(t)
	words := literals(t)
	expressions := map[string]target{}
	for name, r := range rules(t) {
		expressions["alert "+name] = target{Expr: r.Expr}
	}
	for name, target := range panels(t) {
		expressions["panel "+name] = target
	}
	asked := map[string]bool{}
	for where, target := range expressions {
		expr, err := language.ParseExpr(target.Expr)
		if err != nil {
			t.Errorf("%s: %v", where, err)
			continue
		}
		for _, problem := range unknown(expr, metrics, words) {
			t.Errorf("%s: %s in %s", where, problem, target.Expr)
		}
		has, _ := labelled(expr, metrics)
		for _, m := range regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`).FindAllStringSubmatch(target.Legend, -1) {
			if !slices.Contains(has, m[1]) {
				t.Errorf("%s: the legend has %s, and the lines have %q", where, m[1], has)
			}
		}
		for _, s := range selectors(expr) {
			asked[family(s.Name)] = true
		}
	}
	for name := range foreign {
		if !asked[name] {
			t.Errorf("nobody asks for %s any more", name)
		}
	}
}

// TestUnknown is the check itself, on expressions with one fault each.
func TestUnknown(t *testing.T) {
	t.Parallel()
	metrics := map[string][]string{"belay_a_total": {"reason", "result"}, "belay_d_seconds_bucket": {"le"}}
	words := map[string]bool{"Good": true, "Bad": true}
	for expression, want := range map[string]string{
		`sum by (reason, pod) (rate(belay_a_total{namespace="x", reason=~"Good|Bad", result!="Bad"}[5m])) > 1`: ``,
		`histogram_quantile(0.5, sum by (le) (rate(belay_d_seconds_bucket[5m])))`:                              ``,
		`belay_b_total`:                           `nobody measures belay_b_total`,
		`belay_d_seconds`:                         `nobody measures belay_d_seconds`,
		`belay_a_total{kind="Good"}`:              `belay_a_total has no label kind`,
		`belay_a_total{reason="Better"}`:          `no reason of belay_a_total is "Better"`,
		`belay_a_total{reason=~"Good|Better"}`:    `no reason of belay_a_total is "Better"`,
		`belay_a_total{reason=~"Go+d"}`:           `what reason=~"Go+d" means cannot be looked up`,
		`sum by (kind) (belay_a_total)`:           `grouped by kind`,
		`belay_a_total / on (kind) belay_a_total`: `matched on kind`,
	} {
		expr, err := language.ParseExpr(expression)
		if err != nil {
			t.Errorf("%s: %v", expression, err)
			continue
		}
		if got := strings.Join(unknown(expr, metrics, words), "; "); got != want {
			t.Errorf("%s: %q, want %q", expression, got, want)
		}
	}
}

// unknown is what an expression asks for and nobody has.
func unknown(expr parser.Expr, metrics map[string][]string, words map[string]bool) (problems []string) {
	for _, s := range selectors(expr) {
		has, ok := labelsOf(s.Name, metrics)
		if !ok {
			problems = append(problems, "nobody measures "+s.Name)
			continue
		}
		for _, m := range s.LabelMatchers {
			switch {
			case m.Name == model.MetricNameLabel || slices.Contains(everywhere, m.Name):
				continue
			case !slices.Contains(has, m.Name):
				problems = append(problems, s.Name+" has no label "+m.Name)
				continue
			case !strings.HasPrefix(s.Name, "belay_"):
				continue
			}
			values := m.SetMatches()
			if m.Type == labels.MatchEqual || m.Type == labels.MatchNotEqual {
				values = []string{m.Value}
			}
			if len(values) == 0 {
				problems = append(problems, "what "+m.String()+" means cannot be looked up")
			}
			for _, v := range values {
				if !words[v] {
					problems = append(problems, "no "+m.Name+" of "+s.Name+" is "+strconv.Quote(v))
				}
			}
		}
	}
	_, more := labelled(expr, metrics)
	return append(problems, more...)
}

func selectors(expr parser.Expr) (out []*parser.VectorSelector) {
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			out = append(out, s)
		}
		return nil
	})
	return out
}

// labelled are the labels that what comes of an expression may have, and the faults on the way.
func labelled(expr parser.Expr, metrics map[string][]string) (has, faults []string) {
	switch e := expr.(type) {
	case *parser.VectorSelector:
		has, _ = labelsOf(e.Name, metrics)
		return has, nil
	case *parser.AggregateExpr:
		has, faults = labelled(e.Expr, metrics)
		for _, l := range e.Grouping {
			if !slices.Contains(has, l) {
				faults = append(faults, "grouped by "+l)
			}
		}
		if e.Without {
			return slices.DeleteFunc(has, func(l string) bool { return slices.Contains(e.Grouping, l) }), faults
		}
		return e.Grouping, faults
	case *parser.BinaryExpr:
		left, a := labelled(e.LHS, metrics)
		right, b := labelled(e.RHS, metrics)
		faults = slices.Concat(a, b)
		if e.VectorMatching != nil && e.VectorMatching.On {
			for _, l := range e.VectorMatching.MatchingLabels {
				if !slices.Contains(left, l) || !slices.Contains(right, l) {
					faults = append(faults, "matched on "+l)
				}
			}
		}
		if len(left) == 0 {
			return right, faults
		}
		return left, faults
	}
	for child := range parser.ChildrenIter(expr) {
		if c, ok := child.(parser.Expr); ok {
			l, f := labelled(c, metrics)
			has, faults = append(has, l...), append(faults, f...)
		}
	}
	return has, faults
}

// family is the name of a metric without what a series of a histogram adds.
func family(series string) string { return strings.TrimSuffix(series, "_bucket") }

func labelsOf(series string, metrics map[string][]string) ([]string, bool) {
	has, ok := metrics[series]
	if !ok {
		has, ok = foreign[series]
	}
	return slices.Concat(has, everywhere), ok
}

// measured are belay's series by name, with their labels, as the source has them, which a test
// beside it compares with what a scrape gets.
func measured(t *testing.T) map[string][]string {
	t.Helper()
	file, err := goparser.ParseFile(token.NewFileSet(), root+"webhook/internal/metrics/metrics.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	text := func(e ast.Expr) string {
		l, ok := e.(*ast.BasicLit)
		if !ok {
			return ""
		}
		s, err := strconv.Unquote(l.Value)
		if err != nil {
			return ""
		}
		return s
	}
	out := map[string][]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		made, ok := call.Fun.(*ast.SelectorExpr)
		options, isOptions := call.Args[0].(*ast.CompositeLit)
		if !ok || !isOptions || !strings.HasPrefix(made.Sel.Name, "New") {
			return true
		}
		var name string
		for _, o := range options.Elts {
			if kv, ok := o.(*ast.KeyValueExpr); ok && kv.Key.(*ast.Ident).Name == "Name" {
				name = text(kv.Value)
			}
		}
		var has []string
		if len(call.Args) > 1 {
			for _, l := range call.Args[1].(*ast.CompositeLit).Elts {
				has = append(has, text(l))
			}
		}
		if strings.Contains(made.Sel.Name, "Histogram") {
			out[name+"_sum"], out[name+"_count"] = has, has
			name, has = name+"_bucket", append(slices.Clone(has), "le")
		}
		out[name] = has
		return true
	})
	if len(out) < 15 || out[""] != nil {
		t.Fatalf("metrics: %q", out)
	}
	return out
}

// literals are all texts in belay's source: a value of a label is one of them.
func literals(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	err := filepath.WalkDir(root+"webhook", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := goparser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				if s, err := strconv.Unquote(l.Value); err == nil {
					out[s] = true
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 1000 {
		t.Fatalf("%d texts", len(out))
	}
	return out
}
