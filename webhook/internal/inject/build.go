package inject

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/belay-dev/belay/sidecar/settings"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// volumeName is the name of the sidecar's volume.
const volumeName = v1alpha1.SidecarName

// tokenSeconds is how long a token lasts. The kubelet renews it after four fifths.
const tokenSeconds = 3600

// sidecarUser is the user of the image, as a number: it satisfies runAsNonRoot whatever the
// image says, and is no user of the main container.
const sidecarUser = 65532

// userOf is the user that a sidecar runs as. Where all containers of a Pod run as one user, it
// is that one: the kubelet then gives the Pod's tokens to it alone, and to everybody as soon as
// one container runs as another.
func userOf(pod map[string]any) int64 {
	common := int64(0)
	for _, kind := range []string{"containers", "initContainers"} {
		for _, c := range list(pod, "spec", kind) {
			if text(c, "name") == v1alpha1.SidecarName {
				continue
			}
			user, ok := number(c, "securityContext", "runAsUser")
			if !ok {
				user, ok = number(pod, "spec", "securityContext", "runAsUser")
			}
			if !ok || user <= 0 || common != 0 && user != common {
				return sidecarUser
			}
			common = user
		}
	}
	return common
}

// build builds the sidecar with all that the API server would fill in, so that what is stored
// is what was sent: seen again, it is in place.
func build(in Input, main map[string]any, p probing) map[string]any {
	field := func(name, path string) any {
		return map[string]any{"name": name, "valueFrom": map[string]any{"fieldRef": map[string]any{"apiVersion": "v1", "fieldPath": path}}}
	}
	var env []any
	set := func(name, value string) {
		// What follows a dollar would be taken for the name of another variable.
		env = append(env, map[string]any{"name": name, "value": strings.ReplaceAll(value, "$", "$$")})
	}
	set(settings.Collector, in.Config.Collector)
	set(settings.ServerName, in.Config.ServerName)
	env = append(env, field(settings.Namespace, "metadata.namespace"), field(settings.Pod, "metadata.name"), field(settings.PodUID, "metadata.uid"), field(settings.PodIP, "status.podIP"))
	set(settings.Container, text(main, "name"))
	set(settings.ProbeSpec, p.probe.String())
	if len(p.headers) > 0 {
		set(settings.ProbeHeaders, settings.FormatHeaders(p.headers))
	}
	if p.probe.Runs() {
		set(settings.ProbePeriod, fmt.Sprintf("%ds", p.period))
		set(settings.ProbeTimeout, fmt.Sprintf("%ds", p.timeout))
		set(settings.SuccessThreshold, fmt.Sprint(p.successes))
		set(settings.FailureThreshold, fmt.Sprint(p.failures))
	}
	mounts := []any{map[string]any{"name": volumeName, "mountPath": settings.MountPath, "readOnly": true}}
	if p.volume != "" {
		mounts = append(mounts, map[string]any{"name": p.volume, "mountPath": readyPath, "readOnly": true})
	}
	pull := "IfNotPresent"
	if tag := in.Config.Image[strings.LastIndex(in.Config.Image, "/")+1:]; !strings.ContainsAny(tag, ":@") || strings.HasSuffix(tag, ":latest") {
		pull = "Always"
	}
	return map[string]any{
		"name": v1alpha1.SidecarName, "image": in.Config.Image, "imagePullPolicy": pull, "restartPolicy": "Always",
		"env": env, "resources": resources(in), "volumeMounts": mounts,
		"securityContext": map[string]any{
			"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsNonRoot": true,
			"runAsUser": userOf(in.Pod), "runAsGroup": int64(sidecarUser), "privileged": false,
			"capabilities":   map[string]any{"drop": []any{"ALL"}},
			"seccompProfile": map[string]any{"type": "RuntimeDefault"},
		},
		"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
	}
}

// volume is the token, for belay alone and soon over, and the CA. Nothing of it keeps a Pod
// from starting but the token.
func volume(in Input) map[string]any {
	ca := map[string]any{"configMap": map[string]any{
		"name": v1alpha1.CABundleName, "optional": true, "items": []any{map[string]any{"key": v1alpha1.CABundleKey, "path": settings.CAPath}},
	}}
	if in.CA == CAClusterTrustBundle {
		ca = map[string]any{"clusterTrustBundle": map[string]any{"name": v1alpha1.CABundleName, "optional": true, "path": settings.CAPath}}
	}
	token := map[string]any{"serviceAccountToken": map[string]any{"audience": v1alpha1.WitnessAudience, "expirationSeconds": int64(tokenSeconds), "path": settings.TokenPath}}
	return map[string]any{"name": volumeName, "projected": map[string]any{"defaultMode": int64(0o644), "sources": []any{token, ca}}}
}

// resources are set exactly where every container of the Pod sets them: then the class of its
// quality of service stays (Guaranteed needs all, BestEffort none), and a quota that asks for
// them of every container is content. Where the Pod itself says them, its containers need not,
// and together must not exceed them.
func resources(in Input) map[string]any {
	out := map[string]any{}
	size := map[string]string{"cpu": in.Config.CPU, "memory": in.Config.Memory, "ephemeral-storage": in.Config.EphemeralStorage}
	for _, kind := range []string{"requests", "limits"} {
		set := map[string]any{}
		for name, quantity := range size {
			if member(in.Pod, "spec", "resources", "requests", name) != nil || member(in.Pod, "spec", "resources", "limits", name) != nil {
				continue
			}
			every, zero := everyContainer(in.Pod, kind, name)
			switch {
			case every && zero:
				set[name] = "0" // which counts for no class, and for a quota as set
			case every:
				set[name] = quantity
			}
		}
		if len(set) > 0 {
			out[kind] = set
		}
	}
	return out
}

// everyContainer reports whether each of a Pod's containers sets a resource, and whether each
// sets it to zero.
func everyContainer(pod map[string]any, kind, name string) (every, zero bool) {
	all := list(pod, "spec", "containers")
	every, zero = len(all) > 0, true
	for _, c := range all {
		quantity := member(c, "resources", kind, name)
		every = every && quantity != nil
		q, ok := parsed(quantity)
		zero = zero && ok && q.IsZero()
	}
	return every, zero
}

// allEqual reports whether each of a Pod's containers requests of a resource what its limit is.
func allEqual(pod map[string]any, name string) bool {
	for _, c := range list(pod, "spec", "containers") {
		request, ok := parsed(member(c, "resources", "requests", name))
		limit, also := parsed(member(c, "resources", "limits", name))
		if !ok || !also || request.Cmp(limit) != 0 {
			return false
		}
	}
	return true
}

func parsed(quantity any) (resource.Quantity, bool) {
	s, ok := quantity.(string)
	if !ok {
		return resource.Quantity{}, false
	}
	q, err := resource.ParseQuantity(s)
	return q, err == nil
}

// never are fields that the sidecar has not, whoever set them: a probe could make the Pod
// unready, and a port could clash.
var never = []string{
	"ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "command", "args", "envFrom", "workingDir",
	"stdin", "stdinOnce", "tty", "volumeDevices", "restartPolicyRules",
}

// rebuilt is the sidecar that a Pod brought along as it should be: want, and of what is there
// what others have a right to set.
func rebuilt(pod, is, want map[string]any) map[string]any {
	out := maps.Clone(want)
	for name, value := range is {
		if _, ours := want[name]; !ours && !slices.Contains(never, name) {
			out[name] = value
		}
	}
	// The same image by another registry, or pinned.
	if image := text(is, "image"); isSameImage(image, text(want, "image")) {
		out["image"] = image
		if policy := text(is, "imagePullPolicy"); policy != "" {
			out["imagePullPolicy"] = policy
		}
	}
	for _, name := range []string{"terminationMessagePath", "terminationMessagePolicy"} {
		if value := text(is, name); value != "" {
			out[name] = value
		}
	}
	out["env"] = union(list(is, "env"), list(want, "env"), "name", func(e map[string]any) bool {
		level := text(e, "name") == settings.LogLevel && (text(e, "value") == "info" || text(e, "value") == "debug")
		return !level && strings.HasPrefix(text(e, "name"), "BELAY_")
	})
	out["volumeMounts"] = union(list(is, "volumeMounts"), list(want, "volumeMounts"), "mountPath", func(m map[string]any) bool {
		at := text(m, "mountPath") + "/"
		return text(m, "name") == volumeName || strings.HasPrefix(at, settings.MountPath+"/") || strings.HasPrefix(at, readyPath+"/")
	})
	out["resources"] = sized(pod, object(is, "resources"), object(want, "resources"))
	security := maps.Clone(object(want, "securityContext"))
	for _, name := range []string{"seLinuxOptions", "appArmorProfile"} {
		if value := member(is, "securityContext", name); value != nil {
			security[name] = value
		}
	}
	for _, name := range []string{"runAsUser", "runAsGroup"} {
		if n, ok := number(is, "securityContext", name); ok && n > 0 {
			security[name] = n
		}
	}
	out["securityContext"] = security
	return out
}

// union is what is wanted, and what is there beside it that is not ours. Each stays in its
// place: variables may refer to those before them.
func union(is, want []any, key string, ours func(map[string]any) bool) []any {
	var out []any
	taken := map[string]bool{}
	for _, e := range is {
		m, ok := e.(map[string]any)
		if !ok {
			continue
		}
		if !ours(m) {
			out = append(out, e)
			continue
		}
		id := text(m, key)
		if i := slices.IndexFunc(want, func(w any) bool { return text(w, key) == id }); i >= 0 && !taken[id] {
			taken[id] = true
			out = append(out, want[i])
		}
	}
	for _, w := range want {
		if !taken[text(w, key)] {
			out = append(out, w)
		}
	}
	return out
}

// sized keeps quantities that are there, of what is wanted and not zero: as far as a request
// does not exceed its limit, and is equal to it where those of the Pod's containers are, whose
// class that may be.
func sized(pod, is, want map[string]any) map[string]any {
	out := map[string]any{}
	for kind := range want {
		set := map[string]any{}
		for name, quantity := range object(want, kind) {
			set[name] = quantity
			there := member(is, kind, name)
			if _, ok := parsed(there); ok && quantity != "0" {
				set[name] = there
			}
		}
		out[kind] = set
	}
	requests, limits := object(out, "requests"), object(out, "limits")
	for name := range limits {
		request, ok := parsed(requests[name])
		limit, also := parsed(limits[name])
		switch {
		case !ok || !also:
		case request.Cmp(limit) > 0:
			limits[name] = requests[name]
		case allEqual(pod, name):
			requests[name] = limits[name]
		}
	}
	return out
}

func lastSegment(image string) string { return image[strings.LastIndex(image, "/")+1:] }

// isSameImage reports whether an image is the one that is wanted: by whichever registry, and
// with a digest that the latter does not say.
func isSameImage(image, want string) bool {
	is := lastSegment(image)
	if tagged, _, pinned := strings.Cut(is, "@"); pinned && strings.Contains(lastSegment(want), ":") && !strings.Contains(want, "@") {
		is = tagged
	}
	return is != "" && is == lastSegment(want)
}

// isOurs reports whether an init container of the sidecar's name is a sidecar: it has its
// settings, or its image.
func isOurs(c map[string]any) bool {
	if e, _ := find(list(c, "env"), settings.Collector); e != nil {
		return true
	}
	name, _, _ := strings.Cut(lastSegment(text(c, "image")), "@")
	name, _, _ = strings.Cut(name, ":")
	return name == v1alpha1.SidecarName
}
