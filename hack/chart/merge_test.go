package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// of is the text of one variant.
func of(lines []line, v variant) []string {
	var out []string
	for _, l := range lines {
		if l.in&(1<<v) != 0 {
			out = append(out, l.text)
		}
	}
	return out
}

func TestMergedLinesHaveEachVariant(t *testing.T) {
	t.Parallel()
	for name, texts := range map[string][]string{
		"one":                       {"a b c"},
		"the same":                  {"a b c", "a b c"},
		"a line more":               {"a b c", "a b x c"},
		"a line less":               {"a b c", "a c"},
		"another line":              {"a b c", "a x c"},
		"another order":             {"a b c", "c b a"},
		"nothing in common":         {"a b", "x y"},
		"lines that repeat":         {"a a b a", "a b a a", "b b a"},
		"both in between":           {"a c", "a x c", "a y c", "a x y c"},
		"an end that only one has":  {"a", "a b"},
		"a start that only one has": {"b", "a b"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var lines []line
			for v, text := range texts {
				lines = merge(lines, strings.Fields(text), variant(v))
			}
			for v, text := range texts {
				if diff := cmp.Diff(strings.Fields(text), of(lines, variant(v))); diff != "" {
					t.Errorf("variant %d (-text +merged):\n%s", v, diff)
				}
			}
			if texts[0] == "a b c" && len(lines) > 5 {
				t.Errorf("what is common is there twice: %v", lines)
			}
		})
	}
}

// A condition holds for the variants that it was made of, and for no others.
func TestConditions(t *testing.T) {
	t.Parallel()
	every := all(len(choices))
	having := func(choice int) (out variants) {
		for v := range variant(1) << len(choices) {
			if v&(1<<choice) != 0 {
				out |= 1 << v
			}
		}
		return out
	}
	for name, c := range map[string]struct {
		set  variants
		want string
	}{
		"always":            {every, ""},
		"one is made":       {having(0), `eq .Values.tls.mode "cert-manager"`},
		"one is not made":   {every &^ having(0), `eq .Values.tls.mode "self-managed"`},
		"both":              {having(0) & having(1), `and (eq .Values.tls.mode "cert-manager") (.Values.metrics.enabled)`},
		"one without other": {having(1) &^ having(0), `and (.Values.metrics.enabled) (eq .Values.tls.mode "self-managed")`},
	} {
		got, err := c.set.condition()
		if err != nil || got != c.want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for name, set := range map[string]variants{"never": 0, "one or the other": having(0) | having(1), "either or": having(0) ^ having(1)} {
		if got, err := set.condition(); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestConditionsStandAroundWhatIsNotInAll(t *testing.T) {
	t.Parallel()
	var lines []line
	for v := range variant(1) << len(choices) {
		text := []string{"a"}
		if v&1 != 0 {
			text = append(text, "b", "c")
		} else {
			text = append(text, "x")
		}
		lines = merge(lines, text, v)
	}
	got, err := conditional(lines, all(len(choices)))
	want := `a
{{- if eq .Values.tls.mode "self-managed" }}
x
{{- end }}
{{- if eq .Values.tls.mode "cert-manager" }}
b
c
{{- end }}
`
	if err != nil || got != want {
		t.Errorf("%v\n%s", err, cmp.Diff(want, got))
	}
}

func TestHoles(t *testing.T) {
	t.Parallel()
	object := func() map[string]any {
		return map[string]any{
			"kind": "Thing", "metadata": map[string]any{"name": "a"},
			"list": []any{map[string]any{"name": "x", "value": "old", "z": "1"}, map[string]any{"name": "y"}},
			"args": []any{"--a"},
		}
	}
	for name, c := range map[string]struct {
		hole hole
		want []string // lines that must be there
	}{
		"a scalar":                          {hole{path: "list/x/value", value: ".Values.v", as: scalar}, []string{"  value: {{ .Values.v }}"}},
		"by number":                         {hole{path: "list/1/value", value: ".Values.v", as: scalar}, []string{"- name: \"y\"\n  value: {{ .Values.v }}"}},
		"an element":                        {hole{path: "args/0", value: ".Values.v", as: scalar}, []string{"- {{ .Values.v }}"}},
		"a field that is not there":         {hole{path: "metadata/more", value: ".Values.v", as: optional}, []string{"  {{- with .Values.v }}\n  more: {{ . }}\n  {{- end }}"}},
		"a block":                           {hole{path: "metadata/more", value: ".Values.v", as: block}, []string{"  {{- with .Values.v }}\n  more:\n    {{- toYaml . | nindent 4 }}\n  {{- end }}"}},
		"the first field of an item":        {hole{path: "list/x/a", value: ".Values.v", as: block}, []string{"-\n  {{- with .Values.v }}\n  a:\n    {{- toYaml . | nindent 4 }}\n  {{- end }}\n  name: x"}},
		"more items":                        {hole{path: "args/-", value: ".Values.v", as: items}, []string{"- --a\n{{- with .Values.v }}\n{{- toYaml . | nindent 0 }}\n{{- end }}"}},
		"items of a list that is not there": {hole{path: "metadata/more/-", value: ".Values.v", as: items}, []string{"  {{- with .Values.v }}\n  more:\n    {{- toYaml . | nindent 4 }}\n  {{- end }}"}},
		"another object's":                  {hole{name: "b", path: "nowhere", value: ".Values.v"}, []string{"args:\n- --a"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.hole.kind = "Thing"
			o := object()
			if err := dig(o, []hole{c.hole}); err != nil {
				t.Fatal(err)
			}
			text, err := written(o)
			if err != nil {
				t.Fatal(err)
			}
			got := fill(text+"\n", []hole{c.hole})
			for _, want := range c.want {
				if !strings.Contains(got, want) {
					t.Errorf("there is no\n%s\nin\n%s", want, got)
				}
			}
			if strings.Contains(got, "HOLE") {
				t.Errorf("a hole is left open:\n%s", got)
			}
		})
	}
	for _, path := range []string{"nowhere/at", "list/z/value", "list/2/value", "kind/x"} {
		if err := dig(object(), []hole{{kind: "Thing", path: path}}); err == nil {
			t.Errorf("%s is found", path)
		}
	}
}

func TestTheNamespaceIsTheReleases(t *testing.T) {
	t.Parallel()
	got, err := written(map[string]any{"namespace": "belay-system", "user": "system:serviceaccount:belay-system:x", "text": "{{ no action }}"})
	want := `namespace: {{ .Release.Namespace | quote }}
text: '{{ "{{" }} no action }}'
user: system:serviceaccount:{{ .Release.Namespace }}:x`
	if err != nil || got != want {
		t.Errorf("%v\n%s", err, cmp.Diff(want, got))
	}
}

// Objects and fields that values are for must be there, in the place that they are for.
func TestAValueForNothing(t *testing.T) {
	t.Parallel()
	built := make([][]map[string]any, 1<<len(choices))
	if _, err := templates(built); err == nil || !strings.Contains(err.Error(), "there is no ResourceQuota belay-critical-pods, for the value .Values.priorityClassName") {
		t.Errorf("%v", err)
	}
}
