package main

import (
	"fmt"
	"strconv"
	"strings"
)

// hole is a field that a value of the chart fills.
type hole struct {
	// kind and name of the object; an empty name is each of that kind.
	kind, name string
	// path to the field, with slashes. What is not there is added; a last element "-" adds an
	// element to a list.
	path string
	// value is an expression in the language of templates.
	value string
	as    form
}

// form is how a value is written down.
type form int

const (
	// scalar: it is always there.
	scalar form = iota
	// optional: a scalar, and without it there is no such field.
	optional
	// block: a list or a map, and without it there is no such field.
	block
	// items of a list, which may have others of its own; a list that would be empty is not there.
	items
)

// holes are what the chart lets its users say beside choices. The defaults in values.yaml are
// what the manifests have; test/charts holds them to it.
func holes() []hole {
	out := []hole{
		{"ResourceQuota", "belay-critical-pods", "spec/scopeSelector/matchExpressions/0/values/0", ".Values.priorityClassName", scalar},
		{"NetworkPolicy", "belay-webhook", "spec/ingress/0/from", ".Values.networkPolicy.callers", block},
		{"NetworkPolicy", "belay-webhook", "spec/ingress/1/from", ".Values.networkPolicy.sidecars", block},
		{"NetworkPolicy", "belay-metrics", "spec/ingress/0/from", ".Values.networkPolicy.metrics", block},
		{"NetworkPolicy", "belay-egress", "spec/egress/1/to", ".Values.networkPolicy.egress.apiServer.to", block},
		{"NetworkPolicy", "belay-egress", "spec/egress/1/ports", ".Values.networkPolicy.egress.apiServer.ports", block},
		{"ServiceMonitor", "belay", "metadata/labels/-", ".Values.metrics.serviceMonitor.labels", items},
		{"PrometheusRule", "belay", "metadata/labels/-", ".Values.metrics.alerts.labels", items},
		{"Deployment", "belay-webhook", env + "SIDECAR_IMAGE/value", `include "belay.image" (list . "sidecar")`, scalar},
	}
	out = append(out,
		hole{"Deployment", "belay-webhook", pod + "terminationGracePeriodSeconds", ".Values.webhook.terminationGracePeriodSeconds", scalar},
		hole{"Deployment", "belay-webhook", pod + "volumes/-", ".Values.webhook.extraVolumes", items},
		hole{"Deployment", "belay-webhook", container + "volumeMounts/-", ".Values.webhook.extraVolumeMounts", items},
	)
	for _, part := range []string{"webhook", "controller"} {
		deployment := func(path, value string, as form) {
			out = append(out, hole{"Deployment", "belay-" + part, path, value, as})
		}
		values := ".Values." + part
		deployment("spec/replicas", values+".replicas", scalar)
		deployment("spec/template/metadata/annotations", values+".podAnnotations", block)
		deployment(pod+"imagePullSecrets", ".Values.image.pullSecrets", block)
		deployment(pod+"priorityClassName", ".Values.priorityClassName", optional)
		deployment(pod+"nodeSelector", values+".nodeSelector", block)
		deployment(pod+"tolerations", values+".tolerations", block)
		deployment(pod+"affinity", values+".affinity", block)
		deployment(container+"image", fmt.Sprintf("include \"belay.image\" (list . %q)", part), scalar)
		deployment(container+"imagePullPolicy", ".Values.image.pullPolicy", optional)
		deployment(container+"args/-", values+".extraArgs", items)
		deployment(env+"GOMEMLIMIT/value", values+".goMemoryLimit | quote", scalar)
		deployment(container+"resources", values+".resources", block)
	}
	return out
}

const (
	pod       = "spec/template/spec/"
	container = pod + "containers/0/"
	env       = container + "env/"
)

// only are values without which all objects of a kind are left out.
var only = map[string]string{
	"NetworkPolicy": ".Values.networkPolicy.enabled",
	// A quota for a class that is not limited by default would limit it.
	"ResourceQuota": `hasPrefix "system-" .Values.priorityClassName`,
}

// token stands in an object where the hole of that number is.
func token(n int) string { return fmt.Sprintf("HOLE-%d-", n) }

// dig puts tokens into an object.
func dig(object map[string]any, all []hole) error {
	for n, h := range all {
		if !h.of(object) {
			continue
		}
		if err := set(object, strings.Split(h.path, "/"), token(n)); err != nil {
			return fmt.Errorf("%s of %s %s: %w", h.path, h.kind, h.name, err)
		}
	}
	return nil
}

func (h hole) of(object map[string]any) bool {
	return h.kind == object["kind"] && (h.name == "" || h.name == nameOf(object))
}

// set sets a field, or adds to a list or a map where the path ends in "-". An element of a list is
// found by its number or its name.
func set(at any, path []string, value string) error {
	switch at := at.(type) {
	case map[string]any:
		if len(path) == 1 && path[0] == "-" {
			at[value] = ""
			return nil
		}
		if len(path) == 1 {
			at[path[0]] = value
			return nil
		}
		list, isList := at[path[0]].([]any)
		switch {
		case isList && path[1] == "-":
			at[path[0]] = append(list, value)
			return nil
		case at[path[0]] == nil && path[1] == "-" && len(path) == 2:
			at[path[0]] = value
			return nil
		}
		return set(at[path[0]], path[1:], value)
	case []any:
		for i, element := range at {
			fields, _ := element.(map[string]any)
			if path[0] != strconv.Itoa(i) && fields["name"] != path[0] {
				continue
			}
			if len(path) == 1 {
				at[i] = value
				return nil
			}
			return set(element, path[1:], value)
		}
	}
	return fmt.Errorf("there is no %q", path[0])
}

// fill makes of the lines with tokens what Helm fills.
func fill(text string, all []hole) string {
	var out strings.Builder
	for l := range strings.Lines(text) {
		n, ok := holeIn(l)
		if !ok {
			out.WriteString(l)
			continue
		}
		out.WriteString(all[n].line(strings.TrimSuffix(l, "\n"), token(n)))
	}
	return out.String()
}

// holeIn is the number of the hole in a line.
func holeIn(l string) (int, bool) {
	_, after, ok := strings.Cut(l, "HOLE-")
	if !ok {
		return 0, false
	}
	number, _, _ := strings.Cut(after, "-")
	n, err := strconv.Atoi(number)
	return n, err == nil
}

// line is what a line with the token becomes.
func (h hole) line(l, token string) string {
	start := l[:len(l)-len(strings.TrimLeft(l, " "))]
	if h.as == scalar {
		return strings.Replace(l, token, "{{ "+h.value+" }}", 1) + "\n"
	}
	var dash string
	if field, first := strings.CutPrefix(l, start+"- "); first && h.as != items {
		// The first field of an element, which is there without the field as well.
		dash, l, start = start+"-\n", field, start+"  "
	}
	key, content, _ := strings.Cut(strings.TrimLeft(l, " "), ":")
	as := h.as
	if as == items && strings.TrimSpace(content) == token {
		as = block // all of the list
	}
	var inside string
	switch as {
	case optional:
		inside = start + key + ": {{ . }}\n"
	case block:
		indent := len(start) + 2
		inside = fmt.Sprintf("%s%s:\n%*s{{- toYaml . | nindent %d }}\n", start, key, indent, "", indent)
	case items:
		inside = fmt.Sprintf("%s{{- toYaml . | nindent %d }}\n", start, len(start))
	}
	return dash + start + "{{- with " + h.value + " }}\n" + inside + start + "{{- end }}\n"
}
