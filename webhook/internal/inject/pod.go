package inject

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/belay-dev/belay/sidecar/settings"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/wording"
)

// Annotations and labels that others have named.
const (
	mirrorAnnotation  = "kubernetes.io/config.mirror"
	defaultAnnotation = "kubectl.kubernetes.io/default-container"
	osLabel           = "kubernetes.io/os"
	oldOSLabel        = "beta.kubernetes.io/os"
)

// member returns a field of an object; nil where there is none.
func member(o any, path ...string) any {
	for _, name := range path {
		m, ok := o.(map[string]any)
		if !ok {
			return nil
		}
		o = m[name]
	}
	return o
}

func object(o any, path ...string) map[string]any {
	m, _ := member(o, path...).(map[string]any)
	return m
}

func list(o any, path ...string) []any {
	l, _ := member(o, path...).([]any)
	return l
}

func text(o any, path ...string) string {
	s, _ := member(o, path...).(string)
	return s
}

// number reads an integer as JSON has it.
func number(o any, path ...string) (int64, bool) {
	switch n := member(o, path...).(type) {
	case int64:
		return n, true
	case float64:
		return int64(n), n == float64(int64(n))
	}
	return 0, false
}

// find returns the element of a list with a name, and its place.
func find(l []any, name string) (map[string]any, int) {
	for i, e := range l {
		if m, ok := e.(map[string]any); ok && m["name"] == name {
			return m, i
		}
	}
	return nil, -1
}

// isWindows reports whether a Pod is for Windows.
func isWindows(pod map[string]any) bool {
	return text(pod, "spec", "os", "name") == "windows" ||
		text(pod, "spec", "nodeSelector", osLabel) == "windows" || text(pod, "spec", "nodeSelector", oldOSLabel) == "windows" ||
		hasWindowsAffinity(pod)
}

// hasWindowsAffinity reports whether the nodes that a Pod requires are Windows alone: each of
// the terms, one of which must hold, says so.
func hasWindowsAffinity(pod map[string]any) bool {
	terms := list(pod, "spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
	for _, term := range terms {
		if !slices.ContainsFunc(list(term, "matchExpressions"), func(e any) bool {
			key, values := text(e, "key"), list(e, "values")
			return (key == osLabel || key == oldOSLabel) && text(e, "operator") == "In" && len(values) == 1 && values[0] == "windows"
		}) {
			return false
		}
	}
	return len(terms) > 0
}

// mainByPolicy is the policy's main container. A Pod that a policy selects, and that asks for
// a sidecar itself, is seen by both; what the policy has said stands.
func mainByPolicy(in Input) string {
	if in.By != v1alpha1.SidecarByAnnotation || text(in.Pod, "metadata", "labels", v1alpha1.SidecarLabel) != v1alpha1.SidecarByPolicy {
		return in.MainContainer
	}
	sidecar, _ := find(list(in.Pod, "spec", "initContainers"), v1alpha1.SidecarName)
	said, _ := find(list(sidecar, "env"), settings.Container)
	if c, _ := find(list(in.Pod, "spec", "containers"), text(said, "value")); c == nil {
		return in.MainContainer
	}
	return text(said, "value")
}

// mainOf is the container whose readiness counts, by the same rule as evidence: the annotation,
// else the policy, else the first.
func mainOf(in Input) (main map[string]any, problem string) {
	containers := list(in.Pod, "spec", "containers")
	name, from := text(in.Pod, "metadata", "annotations", defaultAnnotation), "annotation "+defaultAnnotation
	if name == "" {
		name, from = in.MainContainer, "the policy's mainContainer"
	}
	if name == "" {
		if len(containers) > 0 {
			main, _ = containers[0].(map[string]any)
		}
		if text(main, "name") == "" {
			return nil, "it has no container"
		}
		return main, ""
	}
	if main, _ = find(containers, name); main == nil {
		return nil, fmt.Sprintf("it has no container %s, which %s names", quote(name), from)
	}
	return main, ""
}

// probing is how the sidecar is to probe.
type probing struct {
	probe   settings.Probe
	headers []settings.Header
	// period and timeout in seconds; thresholds.
	period, timeout, successes, failures int64
	// volume has the ready file; empty for none.
	volume string
}

// readyPath is where the volume with the ready file is mounted.
const readyPath = "/var/run/belay-ready"

// mostSeconds bounds a period and a time-out to what a sidecar reads.
const mostSeconds = int64(settings.MaxPeriod / time.Second)

// maxHeaders bounds the headers of a probe. A variable of 128 KiB keeps a container from
// starting.
const maxHeaders = 16 << 10

// probeOf is what the annotation says, else the readinessProbe. problem is a warning.
func probeOf(pod, main map[string]any) (p probing, problem string) {
	p = probing{
		probe:  settings.Probe{Kind: settings.KindNone},
		period: int64(settings.DefaultPeriod.Seconds()), timeout: int64(settings.DefaultTimeout.Seconds()),
		successes: settings.DefaultSuccessThreshold, failures: settings.DefaultFailureThreshold,
	}
	ready := object(main, "readinessProbe")
	for _, f := range []struct {
		field string
		value *int64
		most  int64
	}{
		{"periodSeconds", &p.period, mostSeconds}, {"timeoutSeconds", &p.timeout, mostSeconds},
		{"successThreshold", &p.successes, settings.MaxThreshold}, {"failureThreshold", &p.failures, settings.MaxThreshold},
	} {
		if n, ok := number(ready, f.field); ok && n > 0 {
			*f.value = min(n, f.most)
		}
	}
	if said, ok := member(pod, "metadata", "annotations", v1alpha1.ProbeAnnotation).(string); ok {
		return p.annotated(pod, said)
	}
	switch {
	case object(ready, "httpGet") != nil:
		get := object(ready, "httpGet")
		p.probe = settings.Probe{Kind: settings.KindHTTP, Host: text(get, "host"), Path: text(get, "path")}
		if strings.EqualFold(text(get, "scheme"), "https") {
			p.probe.Kind = settings.KindHTTPS
		}
		if path := p.probe.Path; path != "" && path[0] != '/' {
			p.probe.Path = "/" + path
		}
		for _, h := range list(get, "httpHeaders") {
			p.headers = append(p.headers, settings.Header{Name: text(h, "name"), Value: text(h, "value")})
		}
		return p.at(member(get, "port"), main)
	case object(ready, "tcpSocket") != nil:
		socket := object(ready, "tcpSocket")
		p.probe = settings.Probe{Kind: settings.KindTCP, Host: text(socket, "host")}
		return p.at(member(socket, "port"), main)
	case object(ready, "grpc") != nil:
		p.probe = settings.Probe{Kind: settings.KindGRPC, Path: text(ready, "grpc", "service")}
		return p.at(member(ready, "grpc", "port"), main)
	case object(ready, "exec") != nil:
		p.probe.Kind = settings.KindExec
	}
	return p, ""
}

// at sets the port, which may be the name of one of the container's; and checks that the
// sidecar will read what is written.
func (p probing) at(port any, main map[string]any) (probing, string) {
	n, ok := number(map[string]any{"port": port}, "port")
	if name, named := port.(string); named {
		if _, err := fmt.Sscanf(name, "%d", &n); err == nil && fmt.Sprint(n) == name {
			ok = true
		} else if found, _ := find(list(main, "ports"), name); found != nil {
			n, ok = number(found, "containerPort")
		}
	}
	unusable := func(why string) (probing, string) {
		p.probe, p.headers = settings.Probe{Kind: settings.KindUnusable}, nil
		return p, fmt.Sprintf("the readinessProbe of container %s %s, so that the kubelet's verdict counts", quote(text(main, "name")), why)
	}
	if !ok || n < 1 || n > 65535 {
		return unusable("names a port that the container does not have")
	}
	p.probe.Port = int(n)
	if again, err := settings.Parse(p.probe.String()); err != nil || again != p.probe {
		return unusable("cannot be run by a sidecar")
	}
	if text := settings.FormatHeaders(p.headers); len(text) > maxHeaders {
		return unusable(fmt.Sprintf("has %d bytes of headers, and a sidecar is told at most %d", len(text), maxHeaders))
	}
	for _, h := range p.headers {
		if h.Name == "" || strings.ContainsFunc(h.Name+h.Value, unicode.IsControl) {
			return unusable("has a header that cannot be sent")
		}
	}
	return p, ""
}

// annotated is the probe of the annotation. A ready file is in a volume of the Pod.
func (p probing) annotated(pod map[string]any, said string) (probing, string) {
	wrong := func(why string) (probing, string) {
		p.probe = settings.Probe{Kind: settings.KindNone}
		return p, fmt.Sprintf("annotation %s: %s; the kubelet's verdict counts", v1alpha1.ProbeAnnotation, why)
	}
	rest, isFile := strings.CutPrefix(said, "file://")
	if isFile {
		volume, path, _ := strings.Cut(rest, "/")
		found, _ := find(list(pod, "spec", "volumes"), volume)
		switch {
		// The sidecar's own is there only when the Pod is seen again.
		case volume == "" || volume == volumeName || found == nil:
			return wrong(fmt.Sprintf("%s names no volume of the pod; it must be file://VOLUME/PATH", quote(said)))
		case path == "" || strings.HasSuffix(path, "/"):
			return wrong(fmt.Sprintf("%s names no file; it must be file://VOLUME/PATH", quote(said)))
		case strings.Contains("/"+path+"/", "/../"):
			return wrong(quote(said) + " leaves the volume")
		}
		p.volume, said = volume, "file://"+readyPath+"/"+path
	}
	probe, err := settings.Parse(said)
	if err != nil {
		p.volume = ""
		return wrong(wording.OneLine(err.Error()))
	}
	p.probe = probe
	return p, ""
}

// quote quotes other people's text for a message.
func quote(s string) string {
	return `"` + strings.ReplaceAll(wording.OneLine(wording.Clip(s, 128)), `"`, "'") + `"`
}
