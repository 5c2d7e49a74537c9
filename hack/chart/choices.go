package main

import (
	"fmt"
	"math/bits"
	"strings"
)

// choice is something that kustomize says by an overlay or a component, and the chart by a value.
type choice struct {
	// overlay and component are below manifests: the one is what is built, the other is added.
	// The overlay is in place of the default one.
	overlay, component string
	// when is true where this is chosen, and unless where it is not.
	when, unless string
}

// defaultOverlay is what is built where no choice says otherwise.
const defaultOverlay = "overlays/self-managed"

// choices in the order of their bits in a variant.
var choices = []choice{
	{overlay: "overlays/cert-manager", when: `eq .Values.tls.mode "cert-manager"`, unless: `eq .Values.tls.mode "self-managed"`},
	{component: "components/metrics", when: ".Values.metrics.enabled", unless: "not .Values.metrics.enabled"},
	{component: "components/service-monitor", when: ".Values.metrics.serviceMonitor.enabled", unless: "not .Values.metrics.serviceMonitor.enabled"},
	{component: "components/alerts", when: ".Values.metrics.alerts.enabled", unless: "not .Values.metrics.alerts.enabled"},
	{component: "components/egress", when: ".Values.networkPolicy.egress.enabled", unless: "not .Values.networkPolicy.egress.enabled"},
}

// variant has a bit for each choice that is made.
type variant uint

// kustomization of a variant; up is the way to manifests from where it will be.
func (v variant) kustomization(up string) string {
	overlay := defaultOverlay
	var components strings.Builder
	for i, c := range choices {
		switch {
		case v&(1<<i) == 0:
		case c.overlay != "":
			overlay = c.overlay
		default:
			fmt.Fprintf(&components, "- %s/%s\n", up, c.component)
		}
	}
	out := fmt.Sprintf("resources:\n- %s/%s\n", up, overlay)
	if components.Len() > 0 {
		out += "components:\n" + components.String()
	}
	return out
}

// variants is a set of them, with a bit for each.
type variants uint64

// all variants of n choices.
func all(n int) variants { return 1<<(1<<n) - 1 }

// condition says in the language of templates which variants are in a set; empty for all of them.
// Each choice has to have a say of its own: "this or that" is not to be expressed.
func (s variants) condition() (string, error) {
	var made, left []int // choices that all of the set have made, or none
	for i := range choices {
		with, without := false, false
		for v := range variant(1) << len(choices) {
			if s&(1<<v) != 0 {
				with, without = with || v&(1<<i) != 0, without || v&(1<<i) == 0
			}
		}
		switch {
		case with && !without:
			made = append(made, i)
		case without && !with:
			left = append(left, i)
		}
	}
	if free := len(choices) - len(made) - len(left); s == 0 || bits.OnesCount64(uint64(s)) != 1<<free {
		return "", fmt.Errorf("variants %b are no combination of choices", s)
	}
	var terms []string
	for _, i := range made {
		terms = append(terms, choices[i].when)
	}
	for _, i := range left {
		terms = append(terms, choices[i].unless)
	}
	return and(terms...), nil
}

// and is true where all terms are; empty ones do not count.
func and(terms ...string) string {
	var some []string
	for _, t := range terms {
		if t != "" {
			some = append(some, t)
		}
	}
	if len(some) < 2 {
		return strings.Join(some, "")
	}
	return "and (" + strings.Join(some, ") (") + ")"
}
