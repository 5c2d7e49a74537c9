package inject

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// Mutate decides what becomes of a Pod that is being created.
func Mutate(in Input) Decision {
	if d, out := exempt(in); out {
		return d
	}
	in.MainContainer = mainByPolicy(in)
	main, problem := mainOf(in)
	if problem != "" {
		return without(ReasonNoMainContainer, problem)
	}
	p, problem := probeOf(in.Pod, main)
	d := Decision{Allowed: true, Reason: ReasonInjected}
	if problem != "" {
		d.Warnings = append(d.Warnings, problem)
	}
	if problem := unresolvable(in); problem != "" {
		d.Warnings = append(d.Warnings, problem)
	}
	if said := text(in.Pod, "metadata", "annotations", v1alpha1.SidecarAnnotation); said != "" && said != v1alpha1.SidecarInject {
		d.Warnings = append(d.Warnings, fmt.Sprintf("annotation %s: %s is neither %s nor %s, and does not count", v1alpha1.SidecarAnnotation, quote(said), v1alpha1.SidecarInject, v1alpha1.SidecarSkip))
	}
	want := build(in, main, p)
	inits := list(in.Pod, "spec", "initContainers")
	is, at := find(inits, v1alpha1.SidecarName)
	switch {
	case at < 0 && len(inits) == 0:
		d.Edits = append(d.Edits, Edit{"add", "/spec/initContainers", []any{want}})
	case at < 0:
		d.Edits = append(d.Edits, Edit{"add", "/spec/initContainers/-", want})
	default:
		d.Reason = ReasonRebuilt
		if want = rebuilt(in.Pod, is, want); !reflect.DeepEqual(is, want) {
			d.Edits = append(d.Edits, Edit{"replace", fmt.Sprintf("/spec/initContainers/%d", at), want})
		}
	}
	volumes := list(in.Pod, "spec", "volumes")
	wanted := volume(in)
	has, at := find(volumes, volumeName)
	switch {
	case at < 0 && len(volumes) == 0:
		d.Edits = append(d.Edits, Edit{"add", "/spec/volumes", []any{wanted}})
	case at < 0:
		d.Edits = append(d.Edits, Edit{"add", "/spec/volumes/-", wanted})
	case !reflect.DeepEqual(has, wanted):
		d.Edits = append(d.Edits, Edit{"replace", fmt.Sprintf("/spec/volumes/%d", at), wanted})
	}
	switch labels := object(in.Pod, "metadata", "labels"); {
	case labels == nil:
		d.Edits = append(d.Edits, Edit{"add", "/metadata/labels", map[string]any{v1alpha1.SidecarLabel: in.By}})
	case labels[v1alpha1.SidecarLabel] != in.By && (in.By == v1alpha1.SidecarByPolicy || labels[v1alpha1.SidecarLabel] != v1alpha1.SidecarByPolicy):
		d.Edits = append(d.Edits, Edit{"add", "/metadata/labels/" + pointer(v1alpha1.SidecarLabel), in.By})
	}
	d.Message = fmt.Sprintf("a sidecar reports on container %s, probe %s", quote(text(main, "name")), quote(p.probe.String()))
	if len(d.Edits) == 0 {
		d.Reason = ReasonInPlace
	}
	return d
}

// pointer escapes a key for a JSON pointer.
func pointer(key string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}

// exempt are Pods that get no sidecar.
func exempt(in Input) (Decision, bool) {
	said := text(in.Pod, "metadata", "annotations", v1alpha1.SidecarAnnotation)
	switch {
	case object(in.Pod, "spec") == nil || object(in.Pod, "metadata") == nil || len(list(in.Pod, "spec", "containers")) == 0:
		return Decision{Allowed: true, Reason: ReasonUnsuitable, Message: "it has no containers"}, true
	case !wellFormed(in.Pod):
		return without(ReasonUnsuitable, "it has not the shape of a pod"), true
	case member(in.Pod, "metadata", "annotations", mirrorAnnotation) != nil:
		return Decision{Allowed: true, Reason: ReasonMirrorPod, Message: "it mirrors a static pod"}, true
	case said == v1alpha1.SidecarSkip:
		return Decision{Allowed: true, Reason: ReasonSkipped, Message: fmt.Sprintf("annotation %s declines the sidecar", v1alpha1.SidecarAnnotation)}, true
	case in.By == v1alpha1.SidecarByAnnotation && member(in.Pod, "metadata", "annotations", v1alpha1.SidecarAnnotation) != nil && said != v1alpha1.SidecarInject:
		return without(ReasonSkipped, fmt.Sprintf("annotation %s: %s is neither %s nor %s", v1alpha1.SidecarAnnotation, quote(said), v1alpha1.SidecarInject, v1alpha1.SidecarSkip)), true
	case isWindows(in.Pod):
		return without(ReasonWindows, "it is for Windows, which the sidecar is not made for"), true
	}
	if c, _ := find(list(in.Pod, "spec", "containers"), v1alpha1.SidecarName); c != nil {
		return without(ReasonNameClash, fmt.Sprintf("it has a container %s of its own; give that another name", quote(v1alpha1.SidecarName))), true
	}
	sidecar, _ := find(list(in.Pod, "spec", "initContainers"), v1alpha1.SidecarName)
	if sidecar != nil && !isOurs(sidecar) {
		return without(ReasonNameClash, fmt.Sprintf("it has an init container %s of its own; give that another name", quote(v1alpha1.SidecarName))), true
	}
	// Whoever projects something else by this name would lose it.
	if sidecar == nil && in.Bytes > maxPodBytes {
		return without(ReasonTooLarge, fmt.Sprintf("it has %d bytes, and from %d on a sidecar might keep it from being stored", in.Bytes, maxPodBytes)), true
	}
	if v, _ := find(list(in.Pod, "spec", "volumes"), volumeName); v != nil && !hasToken(v) && (sidecar == nil || object(v, "projected") == nil) {
		return without(ReasonNameClash, fmt.Sprintf("it has a volume %s of its own; give that another name", quote(volumeName))), true
	}
	return Decision{}, false
}

// wellFormed reports whether lists are lists where something is added to them: nothing may be
// lost.
func wellFormed(pod map[string]any) bool {
	for _, path := range [][]string{{"spec", "initContainers"}, {"spec", "volumes"}} {
		if list(pod, path...) == nil && member(pod, path...) != nil {
			return false
		}
	}
	return object(pod, "metadata", "labels") != nil || member(pod, "metadata", "labels") == nil
}

// without admits a Pod without a sidecar, and says why.
func without(r Reason, why string) Decision {
	return Decision{Allowed: true, Reason: r, Message: why, Warnings: []string{"the pod gets no sidecar, and so has no witness: " + why}}
}

// unresolvable says why a sidecar will not find the collector: without the cluster's DNS it
// has only addresses.
func unresolvable(in Input) string {
	if !strings.Contains(in.Config.Collector, ".svc") {
		return ""
	}
	policy := text(in.Pod, "spec", "dnsPolicy")
	host, _ := member(in.Pod, "spec", "hostNetwork").(bool)
	switch {
	case policy == "ClusterFirstWithHostNet", policy == "None":
		return "" // the latter brings its own, which may do
	case policy == "Default", host:
		return fmt.Sprintf("its dnsPolicy does not resolve names of the cluster, so that the sidecar cannot find %s; set dnsPolicy: ClusterFirstWithHostNet", quote(in.Config.Collector))
	}
	return ""
}
