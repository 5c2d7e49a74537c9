package inject

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/belay-dev/belay/sidecar/settings"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// holds checks what holds for every Pod, and returns the Pod after it was seen.
func holds(t testing.TB, in Input) map[string]any {
	t.Helper()
	before := runtime.DeepCopyJSON(in.Pod)
	d := Mutate(in)
	if !reflect.DeepEqual(before, in.Pod) {
		t.Fatalf("the input was changed\n%s", cmp.Diff(before, in.Pod))
	}
	if !d.Allowed {
		t.Fatalf("%s: it is denied: %s", d.Reason, d.Message)
	}
	for _, w := range d.Warnings {
		if len(w) > 4096 || strings.ContainsAny(w, "\n\r\x00") {
			t.Errorf("a warning of %d bytes: %q", len(w), w)
		}
	}
	in.Pod = applied(t, in.Pod, d.Edits)
	if was, is := withoutOurs(before), withoutOurs(in.Pod); !reflect.DeepEqual(was, is) {
		t.Errorf("something else was changed (-before +after)\n%s", cmp.Diff(was, is))
	}
	again := Mutate(in)
	if len(again.Edits) > 0 {
		t.Errorf("seen again, it is changed again: %s", encoded(t, again.Edits))
	}
	switch d.Reason {
	case ReasonInjected, ReasonRebuilt, ReasonInPlace:
		if again.Reason != ReasonInPlace {
			t.Errorf("%s, and then %s", d.Reason, again.Reason)
		}
		if v := Verify(in); !v.Allowed || v.Reason != ReasonInPlace || len(v.Warnings) > 0 {
			t.Errorf("at last: %s: %s", v.Reason, v.Message)
		}
		if was, is := classOf(before), classOf(in.Pod); was != is && was != "unknown" && sidecarOf(before) == nil {
			t.Errorf("quality of service: %s, was %s", is, was)
		}
	default:
		if len(d.Edits) > 0 || again.Reason != d.Reason {
			t.Errorf("%s with %d edits, then %s", d.Reason, len(d.Edits), again.Reason)
		}
		if v := Verify(in); !v.Allowed && v.Reason != ReasonBlocking {
			t.Errorf("at last: %s: %s", v.Reason, v.Message)
		}
	}
	return in.Pod
}

func TestWhatHoldsForEveryPod(t *testing.T) {
	t.Parallel()
	for name := range goldens {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := goldenInput(t, name)
			in.Pod = holds(t, in)
			if sidecarOf(in.Pod) != nil && Mutate(in).Reason == ReasonInPlace {
				told(t, in.Pod)
			}
			// The other entry sees the same Pod, and both are content.
			for _, by := range []string{v1alpha1.SidecarByAnnotation, v1alpha1.SidecarByPolicy, v1alpha1.SidecarByAnnotation} {
				other := in
				if other.By = by; by == v1alpha1.SidecarByAnnotation {
					other.MainContainer = ""
				}
				other.Pod = mutated(t, other)
				if by == v1alpha1.SidecarByPolicy {
					in.Pod = other.Pod
				}
			}
			if by := text(in.Pod, "metadata", "labels", v1alpha1.SidecarLabel); Mutate(in).Reason == ReasonInPlace && by != v1alpha1.SidecarByPolicy {
				t.Errorf("label %q", by)
			}
		})
	}
}

// between are what other webhooks do to a Pod after it has got its sidecar. kept says whether
// nothing of it is to be taken back.
var between = map[string]struct {
	change func(pod map[string]any)
	kept   bool
}{
	"nothing":                  {func(map[string]any) {}, true},
	"a mirror of the registry": {onSidecar(func(c map[string]any) { c["image"] = "mirror.example/x/" + lastSegment(text(c, "image")) }), true},
	"a digest":                 {onSidecar(func(c map[string]any) { c["image"] = text(c, "image") + "@sha256:0123" }), true},
	"a mirror and a digest":    {onSidecar(func(c map[string]any) { c["image"] = "m:5000/" + lastSegment(text(c, "image")) + "@sha256:0123" }), true},
	"another image":            {onSidecar(func(c map[string]any) { c["image"] = "ghcr.io/belay-dev/belay-sidecar:v0" }), false},
	"no tag":                   {onSidecar(func(c map[string]any) { c["image"] = "ghcr.io/belay-dev/belay-sidecar@sha256:0123" }), false},
	"always pulled":            {onSidecar(func(c map[string]any) { c["imagePullPolicy"] = "Always" }), true},
	"a user by a range":        {onSidecar(func(c map[string]any) { object(c, "securityContext")["runAsUser"] = int64(1000680000) }), true},
	"SELinux": {onSidecar(func(c map[string]any) {
		object(c, "securityContext")["seLinuxOptions"] = map[string]any{"level": "s0:c1,c2"}
	}), true},
	"root":                     {onSidecar(func(c map[string]any) { object(c, "securityContext")["runAsUser"] = int64(0) }), false},
	"privileges":               {onSidecar(func(c map[string]any) { c["securityContext"] = map[string]any{"privileged": true} }), false},
	"no security context":      {onSidecar(func(c map[string]any) { delete(c, "securityContext") }), false},
	"a variable at the end":    {onSidecar(func(c map[string]any) { c["env"] = append(list(c, "env"), variable("HTTPS_PROXY")) }), true},
	"a variable at the start":  {onSidecar(func(c map[string]any) { c["env"] = append([]any{variable("HTTPS_PROXY")}, list(c, "env")...) }), true},
	"a variable in the middle": {onSidecar(func(c map[string]any) { c["env"] = slices.Insert(slices.Clone(list(c, "env")), 2, any(variable("X"))) }), true},
	"a variable of belay's":    {onSidecar(func(c map[string]any) { c["env"] = append(list(c, "env"), variable("BELAY_CA_FILE")) }), false},
	"no variables":             {onSidecar(func(c map[string]any) { delete(c, "env") }), false},
	"the log level":            {onSidecar(func(c map[string]any) { c["env"] = append(list(c, "env"), variable(settings.LogLevel)) }), true},
	"a log level that is none": {onSidecar(func(c map[string]any) {
		c["env"] = append(list(c, "env"), map[string]any{"name": settings.LogLevel, "value": "trace"})
	}), false},
	"another order": {onSidecar(func(c map[string]any) { slices.Reverse(list(c, "env")) }), true},
	"a mount at the start": {onSidecar(func(c map[string]any) {
		c["volumeMounts"] = append([]any{map[string]any{"name": "ca", "mountPath": "/etc/ssl"}}, list(c, "volumeMounts")...)
	}), true},
	"a mount over belay's": {onSidecar(func(c map[string]any) {
		c["volumeMounts"] = append(list(c, "volumeMounts"), map[string]any{"name": "ca", "mountPath": "/var/run/belay/token"})
	}), false},
	"no mounts":           {onSidecar(func(c map[string]any) { delete(c, "volumeMounts") }), false},
	"a field of tomorrow": {onSidecar(func(c map[string]any) { c["fieldOfTomorrow"] = map[string]any{"a": []any{int64(1)}} }), true},
	"a readinessProbe": {onSidecar(func(c map[string]any) {
		c["readinessProbe"] = map[string]any{"tcpSocket": map[string]any{"port": int64(1)}}
	}), false},
	"a startupProbe": {onSidecar(func(c map[string]any) {
		c["startupProbe"] = map[string]any{"tcpSocket": map[string]any{"port": int64(1)}}
	}), false},
	"a port":                   {onSidecar(func(c map[string]any) { c["ports"] = []any{map[string]any{"containerPort": int64(1)}} }), false},
	"a command":                {onSidecar(func(c map[string]any) { c["command"] = []any{"sh"} }), false},
	"variables from a Secret":  {onSidecar(func(c map[string]any) { c["envFrom"] = []any{map[string]any{"secretRef": map[string]any{"name": "x"}}} }), false},
	"no restartPolicy":         {onSidecar(func(c map[string]any) { delete(c, "restartPolicy") }), false},
	"larger requests":          {onSidecar(sizing("requests", "cpu", "50m")), false},
	"smaller requests":         {onSidecar(sizing("requests", "cpu", "1m")), false},
	"a larger limit":           {onSidecar(sizing("limits", "memory", "1Gi")), false},
	"no resources":             {onSidecar(func(c map[string]any) { delete(c, "resources") }), false},
	"quantities that are none": {onSidecar(sizing("limits", "memory", "lots")), false},
	"no sidecar":               {func(pod map[string]any) { delete(object(pod, "spec"), "initContainers") }, false},
	"no volumes":               {func(pod map[string]any) { delete(object(pod, "spec"), "volumes") }, false},
	"no labels":                {func(pod map[string]any) { delete(object(pod, "metadata"), "labels") }, false},
	"an init container before": {func(pod map[string]any) {
		prepend(pod, "initContainers", map[string]any{"name": "other", "image": "x"})
	}, true},
	"a volume before": {func(pod map[string]any) { prepend(pod, "volumes", map[string]any{"name": "added"}) }, true},
	"a container after": {func(pod map[string]any) {
		object(pod, "spec")["containers"] = append(list(pod, "spec", "containers"), map[string]any{"name": "proxy", "image": "x"})
	}, false},
	"a container before": {func(pod map[string]any) { prepend(pod, "containers", map[string]any{"name": "proxy", "image": "x"}) }, false},
	"another token": {func(pod map[string]any) {
		v, _ := find(list(pod, "spec", "volumes"), volumeName)
		object(v, "projected")["sources"] = []any{}
	}, false},
	"a volume that is writable": {func(pod map[string]any) {
		v, _ := find(list(pod, "spec", "volumes"), volumeName)
		object(v, "projected")["defaultMode"] = int64(0o777)
	}, false},
	"resources everywhere": {func(pod map[string]any) {
		for _, field := range []string{"containers", "initContainers"} {
			for _, c := range list(pod, "spec", field) {
				if member(c, "resources", "limits") == nil {
					c.(map[string]any)["resources"] = map[string]any{"limits": map[string]any{"cpu": "1", "memory": "1Gi"}, "requests": map[string]any{"cpu": "500m", "memory": "1Gi"}}
				}
			}
		}
	}, false},
}

func variable(name string) map[string]any { return map[string]any{"name": name, "value": "debug"} }

func prepend(pod map[string]any, field string, e any) {
	object(pod, "spec")[field] = append([]any{e}, list(pod, "spec", field)...)
}

func onSidecar(change func(map[string]any)) func(map[string]any) {
	return func(pod map[string]any) {
		if c := sidecarOf(pod); c != nil {
			change(c)
		}
	}
}

func sizing(kind, name, quantity string) func(map[string]any) {
	return func(c map[string]any) {
		resources := object(c, "resources")
		if object(resources, kind) == nil {
			resources[kind] = map[string]any{}
		}
		object(resources, kind)[name] = quantity
	}
}

// TestC10_AnotherWebhookInBetween: whatever it does, one more look is enough; what it has a
// right to, it is left.
func TestC10_AnotherWebhookInBetween(t *testing.T) {
	t.Parallel()
	for golden := range goldens {
		in := goldenInput(t, golden)
		in.Pod = mutated(t, in)
		if Mutate(in).Reason != ReasonInPlace {
			continue
		}
		for name, c := range between {
			t.Run(golden+", then "+name, func(t *testing.T) {
				t.Parallel()
				in := in
				in.Pod = runtime.DeepCopyJSON(in.Pod)
				c.change(in.Pod)
				if d := Mutate(in); c.kept && len(d.Edits) > 0 {
					t.Errorf("it is taken back: %s", encoded(t, d.Edits))
				}
				class := classOf(withoutOurs(in.Pod))
				in.Pod = holds(t, in)
				if Mutate(in).Reason != ReasonInPlace {
					t.Fatalf("%s", Mutate(in).Message)
				}
				told(t, in.Pod)
				if is := classOf(in.Pod); is != class {
					t.Errorf("quality of service: %s, without a sidecar %s", is, class)
				}
				for _, name := range never {
					if member(sidecarOf(in.Pod), name) != nil {
						t.Errorf("it has %s", name)
					}
				}
				for _, r := range []string{"cpu", "memory"} {
					request, _ := parsed(member(sidecarOf(in.Pod), "resources", "requests", r))
					limit, ok := parsed(member(sidecarOf(in.Pod), "resources", "limits", r))
					if ok && request.Cmp(limit) > 0 {
						t.Errorf("%s: the request exceeds the limit", r)
					}
				}
			})
		}
	}
}

// TestC07_TheClassOfServiceStays whatever a Pod's containers say of their resources.
func TestC07_TheClassOfServiceStays(t *testing.T) {
	t.Parallel()
	said := []string{"{}", `{limits: {cpu: "1", memory: 1Gi}, requests: {cpu: "1", memory: 1Gi}}`, `{limits: {cpu: "1", memory: 1Gi}}`, `{requests: {cpu: "1", memory: 1Gi}}`,
		`{requests: {cpu: "1"}}`, `{limits: {memory: 1Gi}, requests: {memory: 1Gi}}`, `{limits: {cpu: "2", memory: 1Gi}, requests: {cpu: "1", memory: 1Gi}}`,
		`{limits: {cpu: "0", memory: "0"}, requests: {cpu: "0", memory: "0"}}`, `{limits: {cpu: "0", memory: 1Gi}, requests: {cpu: "0", memory: 1Gi}}`, `{limits: {ephemeral-storage: 1Gi}}`}
	seen := map[string]int{}
	for _, a := range said {
		for _, b := range append(said, "none") {
			for _, i := range append(said, "none") {
				for _, whole := range []string{"null", said[1], said[4], `{}`} {
					pod := `spec: {resources: ` + whole + `, containers: [{name: a, resources: ` + a + `}`
					if b != "none" {
						pod += `, {name: b, resources: ` + b + `}`
					}
					pod += "]"
					if i != "none" {
						pod += `, initContainers: [{name: i, resources: ` + i + `}]`
					}
					in := asked(parse(t, "metadata: {}\n"+pod+"}"))
					seen[classOf(in.Pod)]++
					holds(t, in)
				}
			}
		}
	}
	if len(seen) != 3 {
		t.Errorf("%v", seen)
	}
}

// TestEveryProbeIsReadAsItWasMeant by the sidecar, whatever it holds.
func TestEveryProbeIsReadAsItWasMeant(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		probe   string
		want    string
		headers []settings.Header
	}{
		"a path with a variable": {`{httpGet: {path: "/$(A)/$$/$", port: 80}}`, "http://:80/$(A)/$$/$", nil},
		"headers":                {`{httpGet: {path: /, port: 80, httpHeaders: [{name: A, value: "$(X)$$"}, {name: B, value: ""}, {name: C, value: " :x: "}]}}`, "http://:80/", []settings.Header{{Name: "A", Value: "$(X)$$"}, {Name: "B"}, {Name: "C", Value: " :x: "}}},
		"IPv6":                   {`{tcpSocket: {host: "fd00::8", port: 80}}`, "tcp://[fd00::8]:80", nil},
		"a number as a float":    {`{tcpSocket: {port: 80.0}}`, "tcp://:80", nil},
		"a fraction":             {`{tcpSocket: {port: 80.5}}`, "unusable", nil},
		"no port":                {`{tcpSocket: {}}`, "unusable", nil},
		"a handler of tomorrow":  {`{http3: {port: 80}}`, "none", nil},
	} {
		t.Run("C27 "+name, func(t *testing.T) {
			t.Parallel()
			s := told(t, mutated(t, asked(simple(t, probed(c.probe)))))
			if s.Probe.String() != c.want {
				t.Errorf("%s, want %s", s.Probe, c.want)
			}
			if diff := cmp.Diff(c.headers, s.Headers); diff != "" {
				t.Errorf("headers (-want +got)\n%s", diff)
			}
		})
	}
}

func TestP12_APodNearTheStorageLimitGetsNoSidecar(t *testing.T) {
	t.Parallel()
	in := asked(simple(t))
	in.Bytes = maxPodBytes
	if d := Mutate(in); d.Reason != ReasonInjected {
		t.Errorf("at the limit: %s", d.Reason)
	}
	after := in
	after.Pod = mutated(t, in)
	in.Bytes++
	for phase, d := range map[string]Decision{"mutated": Mutate(in), "at last": Verify(in)} {
		if d.Reason != ReasonTooLarge || !d.Allowed || len(d.Edits) > 0 {
			t.Errorf("%s: %+v", phase, d)
		}
	}
	// Seen again with what was added, it has its sidecar.
	after.Bytes = maxPodBytes + 4000
	if d := Mutate(after); d.Reason != ReasonInPlace {
		t.Errorf("seen again: %s", d.Reason)
	}
}

// TestVerify decides on the Pod as all webhooks have left it.
func TestVerify(t *testing.T) {
	t.Parallel()
	damage := func(what string) string { return "its sidecar was changed after belay had added it: " + what }
	for name, c := range map[string]struct {
		change func(map[string]any)
		denied bool
		reason Reason
		// message is a part of it, and of the warning.
		message string
	}{
		"as belay made it":              {func(map[string]any) {}, false, ReasonInPlace, ""},
		"C02 without its restartPolicy": {between["no restartPolicy"].change, true, ReasonBlocking, `init container "belay-sidecar" has lost restartPolicy: Always`},
		"C02 with another":              {onSidecar(func(c map[string]any) { c["restartPolicy"] = "OnFailure" }), true, ReasonBlocking, "annotation belay.dev/sidecar: skip"},
		"it is lost, and the Pod declines, so that all of it is its own": {func(pod map[string]any) {
			between["no restartPolicy"].change(pod)
			object(pod, "metadata")["annotations"] = map[string]any{v1alpha1.SidecarAnnotation: "skip"}
		}, false, ReasonSkipped, "declines"},
		"taken out again": {between["no sidecar"].change, false, ReasonMissing, "taken out again"},
		"taken out, and no main container": {func(pod map[string]any) {
			between["no sidecar"].change(pod)
			object(pod, "metadata")["annotations"] = map[string]any{defaultAnnotation: "nope"}
		}, false, ReasonNoMainContainer, "no container"},
		"with a readinessProbe":          {between["a readinessProbe"].change, false, ReasonDamaged, damage("it has got a readinessProbe")},
		"with a startupProbe":            {between["a startupProbe"].change, false, ReasonDamaged, damage("it has got a startupProbe")},
		"with a command":                 {between["a command"].change, false, ReasonDamaged, damage("it has got other command")},
		"without variables":              {between["no variables"].change, false, ReasonDamaged, "its variable BELAY_POD_UID is not that of the pod"},
		"without mounts":                 {between["no mounts"].change, false, ReasonDamaged, "its token is not mounted"},
		"without the volume":             {between["no volumes"].change, false, ReasonDamaged, "its volume has no token for belay.dev"},
		"with a volume without a token":  {between["another token"].change, false, ReasonDamaged, "its volume has no token for belay.dev"},
		"mirrored":                       {between["a mirror of the registry"].change, false, ReasonInPlace, ""},
		"beside a container of its name": {func(pod map[string]any) { prepend(pod, "containers", map[string]any{"name": "belay-sidecar"}) }, false, ReasonNameClash, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := asked(simple(t))
			in.Pod = mutated(t, in)
			c.change(in.Pod)
			d := Verify(in)
			if d.Allowed == c.denied || d.Reason != c.reason || !strings.Contains(d.Message, c.message) || len(d.Edits) > 0 {
				t.Fatalf("%+v", d)
			}
			if warned := d.Reason == ReasonMissing || d.Reason == ReasonDamaged; warned != (len(d.Warnings) > 0) {
				t.Errorf("warnings %q", d.Warnings)
			}
		})
	}
	// A Pod that never was to have one.
	for _, name := range []string{"C12 a mirror pod", "C13 a pod for Windows", "C16 declined with init containers", "no container", "C17 a volume of the same name"} {
		if d := Verify(goldenInput(t, name)); !d.Allowed || len(d.Warnings) > 0 {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// TestImages: the sidecar's image without a tag, by a digest, from a mirror.
func TestImages(t *testing.T) {
	t.Parallel()
	for image, pull := range map[string]string{
		"belay-sidecar":                       "Always",
		"belay-sidecar:latest":                "Always",
		"localhost:5000/belay-sidecar":        "Always",
		"localhost:5000/belay-sidecar:v1":     "IfNotPresent",
		"belay-sidecar@sha256:0123":           "IfNotPresent",
		"belay-sidecar:v1@sha256:0123":        "IfNotPresent",
		"r.example/belay-sidecar:latest-arm":  "IfNotPresent",
		"r.example/another-name:v1":           "IfNotPresent",
		"r.example/x/belay-sidecar:latest@sh": "IfNotPresent",
	} {
		in := asked(simple(t))
		in.Config.Image = image
		pod := holds(t, in)
		if got := text(sidecarOf(pod), "imagePullPolicy"); got != pull {
			t.Errorf("%s: %s", image, got)
		}
	}
	for _, c := range []struct {
		is, want string
		same     bool
	}{
		{"a/b:1", "c/b:1", true}, {"a/b:1", "a/b:2", false}, {"a/b", "a/b", true}, {"a/b@sha256:0", "a/b", false}, {"a/b:1@sha256:0", "a/b:1", true},
		{"a/b:1@sha256:0", "a/b:1@sha256:1", false}, {"m/b:1@sha256:0", "a/b:1@sha256:0", true}, {"", "a/b:1", false}, {"", "", false}, {"a/b:2@sha256:0", "a/b:1", false},
		{"a:5000/b", "c/b", true}, {"evil:1", "b:1", false},
	} {
		if isSameImage(c.is, c.want) != c.same {
			t.Errorf("%s for %s: %t", c.is, c.want, !c.same)
		}
	}
}

// FuzzMutate: no JSON makes it panic, and what holds for every Pod holds.
func FuzzMutate(f *testing.F) {
	for name := range goldens {
		f.Add(encoded(f, goldenInput(f, name).Pod), true)
		f.Add(encoded(f, mutated(f, goldenInput(f, name))), false)
	}
	for _, raw := range []string{
		`null`, `{}`, `{"spec":{"containers":[null]},"metadata":{}}`, `{"spec":{"containers":[{"name":1}],"initContainers":[1,null,{"name":"belay-sidecar","env":"x"}]},"metadata":{"labels":[]}}`,
		`{"spec":{"containers":[{"name":"a","env":{},"readinessProbe":{"httpGet":[]}}],"initContainers":[{"name":"belay-sidecar","image":"belay-sidecar","env":[{"name":"BELAY_COLLECTOR"},{"name":"BELAY_COLLECTOR"},3],"volumeMounts":[{}],"resources":[],"securityContext":"x"}],"volumes":[{"name":"belay-sidecar","projected":{"sources":[null]}}]},"metadata":{"annotations":{"belay.dev/probe":5}}}`,
	} {
		f.Add([]byte(raw), true)
	}
	f.Fuzz(func(t *testing.T, raw []byte, byPolicy bool) {
		var pod map[string]any
		if utiljson.Unmarshal(raw, &pod) != nil {
			return
		}
		in := asked(pod)
		if !byPolicy {
			in.By = v1alpha1.SidecarByAnnotation
		}
		Verify(in)
		d := Mutate(in)
		if len(d.Edits) == 0 {
			return
		}
		in.Pod = holds(t, in)
		if slices.Contains([]Reason{ReasonInjected, ReasonRebuilt}, d.Reason) && reportable(in.Pod) {
			told(t, in.Pod)
		}
	})
}

// reportable reports whether the main container has a name that the API server would take.
func reportable(pod map[string]any) bool {
	e, _ := find(list(sidecarOf(pod), "env"), settings.Container)
	name := text(e, "value")
	return len(name) < 64 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// TestGoldensCoverTheReasons: each reason of the mutating phase has a Pod.
func TestGoldensCoverTheReasons(t *testing.T) {
	t.Parallel()
	want := map[Reason]bool{
		ReasonInjected: true, ReasonRebuilt: true, ReasonInPlace: true, ReasonSkipped: true, ReasonMirrorPod: true, ReasonWindows: true, ReasonNameClash: true, ReasonNoMainContainer: true, ReasonUnsuitable: true,
	}
	for name := range goldens {
		delete(want, Mutate(goldenInput(t, name)).Reason)
	}
	if len(want) > 0 {
		t.Errorf("no pod has %s", fmt.Sprint(slices.Collect(maps.Keys(want))))
	}
}

// TestRandomPods: Pods of the golden files, before and after they were seen, with parts of one
// in another, or gone, or twice, or of another type.
func TestRandomPods(t *testing.T) {
	t.Parallel()
	var pods []map[string]any
	for _, name := range slices.Sorted(maps.Keys(goldens)) {
		in := goldenInput(t, name)
		pods = append(pods, in.Pod, mutated(t, in))
	}
	var parts []any
	for _, p := range pods {
		walk(p, func(parent, v any) { parts = append(parts, v) })
	}
	reasons := map[Reason]int{}
	for seed := range uint64(1_500) {
		r := rand.New(rand.NewPCG(seed, 1))
		pod := runtime.DeepCopyJSON(pods[r.IntN(len(pods))])
		for range 1 + r.IntN(4) {
			shake(r, pod, parts)
		}
		in := asked(pod)
		if r.IntN(2) == 0 {
			in.By = v1alpha1.SidecarByAnnotation
		}
		Verify(in)
		d := Mutate(in)
		reasons[d.Reason]++
		out := holds(t, in)
		if slices.Contains([]Reason{ReasonInjected, ReasonRebuilt}, d.Reason) && reportable(out) {
			told(t, out)
		}
		if t.Failed() {
			t.Fatalf("seed %d: %s", seed, encoded(t, pod))
		}
	}
	if reasons[ReasonInjected] < 100 || reasons[ReasonRebuilt] < 100 {
		t.Errorf("few pods get so far: %v", reasons)
	}
}

// walk visits all there is below a value.
func walk(v any, visit func(parent, v any)) {
	switch v := v.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			visit(v, v[key])
			walk(v[key], visit)
		}
	case []any:
		for _, e := range v {
			visit(v, e)
			walk(e, visit)
		}
	}
}

// shake changes one thing in a Pod.
func shake(r *rand.Rand, pod map[string]any, parts []any) {
	var parents []any
	walk(pod, func(parent, _ any) { parents = append(parents, parent) })
	odd := []any{nil, "", "belay-sidecar", int64(0), int64(-1), 1.5, true, []any{}, map[string]any{}}
	value := func() any {
		if r.IntN(2) == 0 {
			return odd[r.IntN(len(odd))]
		}
		return runtime.DeepCopyJSONValue(parts[r.IntN(len(parts))])
	}
	switch parent := parents[r.IntN(len(parents))].(type) {
	case map[string]any:
		keys := slices.Sorted(maps.Keys(parent))
		key := keys[r.IntN(len(keys))]
		switch r.IntN(3) {
		case 0:
			delete(parent, key)
		case 1:
			parent[key] = value()
		default:
			// The same key of another Pod's object.
			for range 50 {
				if m, ok := parts[r.IntN(len(parts))].(map[string]any); ok && m[key] != nil {
					parent[key] = runtime.DeepCopyJSONValue(m[key])
					break
				}
			}
		}
	case []any:
		i := r.IntN(len(parent))
		if r.IntN(2) == 0 {
			parent[i] = value()
		} else {
			parent[i] = runtime.DeepCopyJSONValue(parent[r.IntN(len(parent))])
		}
	}
}
