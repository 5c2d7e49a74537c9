package inject

import (
	"fmt"
	"slices"
	"strings"

	"github.com/belay-dev/belay/sidecar/settings"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// Verify decides on the Pod as all webhooks have left it: whether its sidecar works, and above
// all whether the Pod does with it.
func Verify(in Input) Decision {
	if d, out := exempt(in); out {
		d.Warnings = nil // told when it was mutated
		return d
	}
	c, _ := find(list(in.Pod, "spec", "initContainers"), v1alpha1.SidecarName)
	switch {
	case c == nil:
		if _, problem := mainOf(in); problem != "" {
			return Decision{Allowed: true, Reason: ReasonNoMainContainer, Message: problem}
		}
		return without(ReasonMissing, "its sidecar was taken out again, or belay was not there to add it")
	case text(c, "restartPolicy") != "Always":
		return Decision{Reason: ReasonBlocking, Message: fmt.Sprintf(
			"init container %s has lost restartPolicy: Always, so that the pod would wait for it for ever; find the webhook that drops fields it does not know, or set annotation %s: %s on the pod",
			quote(v1alpha1.SidecarName), v1alpha1.SidecarAnnotation, v1alpha1.SidecarSkip)}
	}
	var damage []string
	for _, field := range []string{"readinessProbe", "livenessProbe", "startupProbe", "lifecycle"} {
		if member(c, field) != nil {
			damage = append(damage, "it has got a "+field+", which can make the pod unready")
		}
	}
	for _, field := range []string{"command", "args"} {
		if member(c, field) != nil {
			damage = append(damage, "it has got other "+field)
		}
	}
	for name, path := range map[string]string{settings.Namespace: "metadata.namespace", settings.Pod: "metadata.name", settings.PodUID: "metadata.uid"} {
		if e, _ := find(list(c, "env"), name); text(e, "valueFrom", "fieldRef", "fieldPath") != path {
			damage = append(damage, "its variable "+name+" is not that of the pod")
		}
	}
	if m, _ := find(list(c, "volumeMounts"), volumeName); text(m, "mountPath") != settings.MountPath {
		damage = append(damage, "its token is not mounted")
	}
	if v, _ := find(list(in.Pod, "spec", "volumes"), volumeName); !hasToken(v) {
		damage = append(damage, "its volume has no token for "+v1alpha1.WitnessAudience)
	}
	if len(damage) > 0 {
		slices.Sort(damage)
		why := "its sidecar was changed after belay had added it: " + strings.Join(damage, "; ")
		return Decision{Allowed: true, Reason: ReasonDamaged, Message: why, Warnings: []string{why}}
	}
	return Decision{Allowed: true, Reason: ReasonInPlace}
}

func hasToken(volume map[string]any) bool {
	for _, source := range list(volume, "projected", "sources") {
		if text(source, "serviceAccountToken", "audience") == v1alpha1.WitnessAudience && text(source, "serviceAccountToken", "path") == settings.TokenPath {
			return true
		}
	}
	return false
}
