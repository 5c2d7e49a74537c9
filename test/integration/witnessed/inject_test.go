package witnessed

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/belay-dev/belay/sidecar/settings"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// injectLab is a namespace, and a client of an administrator that keeps its warnings.
type injectLab struct {
	ctx  context.Context
	t    *testing.T
	ns   string
	kube kubernetes.Interface

	mu       sync.Mutex
	warnings []string
}

// newInjectLab makes a namespace in a mode, empty for none, with more labels.
func newInjectLab(t *testing.T, mode string, labels ...string) *injectLab {
	t.Helper()
	l := &injectLab{ctx: stack.TestContext(t), t: t}
	all := map[string]string{}
	if mode != "" {
		all[v1alpha1.ModeLabel] = mode
	}
	for i := 0; i < len(labels); i += 2 {
		all[labels[i]] = labels[i+1]
	}
	ns, err := shared.Kube.CoreV1().Namespaces().Create(l.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "inject-", Labels: all}}, metav1.CreateOptions{})
	must(t, err)
	l.ns = ns.Name
	stack.Cleanup(t, func(ctx context.Context) {
		_ = shared.Kube.CoreV1().Namespaces().Delete(ctx, l.ns, metav1.DeleteOptions{})
	})
	cfg := rest.CopyConfig(shared.Plane.Config())
	cfg.WarningHandler = l
	l.kube, err = kubernetes.NewForConfig(cfg)
	must(t, err)
	return l
}

// HandleWarningHeader keeps a warning of the API server.
func (l *injectLab) HandleWarningHeader(_ int, _, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.warnings = append(l.warnings, text)
}

// told are the warnings since it was last asked.
func (l *injectLab) told() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.warnings = nil }()
	return strings.Join(l.warnings, "\n")
}

func (l *injectLab) tells(want string) {
	l.t.Helper()
	if got := l.told(); (want == "") != (got == "") || !strings.Contains(got, want) {
		l.t.Errorf("warnings %q, want %q", got, want)
	}
}

// injectPod is a Pod that asks for a sidecar by annotation.
func injectPod(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	p := pod("", name, 8080)
	for _, change := range changes {
		change(p)
	}
	return p
}

func bySelector(p *corev1.Pod) {
	delete(p.Annotations, v1alpha1.SidecarAnnotation)
	labelled("batch-sandbox.sandbox.opensandbox.io/name", "box")(p)
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations[key] = value }
}

func labelled(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		p.Labels[key] = value
	}
}

// sized sets resources of all containers: requests and limits as "cpu memory", - for none.
func sized(requests, limits string) func(*corev1.Pod) {
	list := func(text string) corev1.ResourceList {
		out := corev1.ResourceList{}
		for i, q := range strings.Fields(text) {
			if q != "-" {
				out[[]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}[i]] = resource.MustParse(q)
			}
		}
		return out
	}
	return func(p *corev1.Pod) {
		for i := range p.Spec.Containers {
			p.Spec.Containers[i].Resources = corev1.ResourceRequirements{Requests: list(requests), Limits: list(limits)}
		}
		for i := range p.Spec.InitContainers {
			p.Spec.InitContainers[i].Resources = corev1.ResourceRequirements{Requests: list(requests), Limits: list(limits)}
		}
	}
}

// inits adds init containers.
func inits(names ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, n := range names {
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: n, Image: "registry.example/init:1"})
		}
	}
}

func (l *injectLab) tries(p *corev1.Pod) (*corev1.Pod, error) {
	return l.kube.CoreV1().Pods(l.ns).Create(l.ctx, p, metav1.CreateOptions{})
}

func (l *injectLab) creates(p *corev1.Pod) *corev1.Pod {
	l.t.Helper()
	out, err := l.tries(p)
	must(l.t, err)
	return out
}

// until creates a Pod without a sidecar, on trial, until what comes of it is right: a quota or
// a range that was just made has effect.
func (l *injectLab) until(p *corev1.Pod, right func(*corev1.Pod, error) bool) {
	l.t.Helper()
	delete(p.Annotations, v1alpha1.SidecarAnnotation)
	stack.Eventually(l.ctx, l.t, "the namespace is set up", func() error {
		out, err := l.kube.CoreV1().Pods(l.ns).Create(l.ctx, p.DeepCopy(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if !right(out, err) {
			return fmt.Errorf("not yet: %w", err)
		}
		return nil
	})
	l.told()
}

// initNames are the names of the init containers.
func initNames(p *corev1.Pod) string {
	var names []string
	for _, c := range p.Spec.InitContainers {
		names = append(names, c.Name)
	}
	return strings.Join(names, " ")
}

func (l *injectLab) hasSidecar(p *corev1.Pod) *corev1.Container {
	l.t.Helper()
	c := stack.SidecarOf(p)
	if c == nil || c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
		l.t.Fatalf("pod %s has no sidecar that works: %+v", p.Name, c)
	}
	if n := strings.Count(" "+initNames(p)+" ", " "+v1alpha1.SidecarName+" "); n != 1 {
		l.t.Errorf("%d sidecars: %s", n, initNames(p))
	}
	return c
}

func (l *injectLab) untouched(p *corev1.Pod) {
	l.t.Helper()
	if stack.SidecarOf(p) != nil || p.Labels[v1alpha1.SidecarLabel] != "" || slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == v1alpha1.SidecarName }) {
		l.t.Errorf("pod %s was changed: %s, %v, %v", p.Name, initNames(p), p.Labels, p.Spec.Volumes)
	}
}

func envOf(c *corev1.Container, name string) string {
	for _, e := range c.Env {
		if e.Name == name {
			return e.Value
		}
	}
	return ""
}

// TestC04_RestrictedPodSecurity: the sidecar breaks no rule of the strictest level.
func TestC04_RestrictedPodSecurity(t *testing.T) {
	t.Parallel()
	l := newInjectLab(t, v1alpha1.ModeEnforce,
		"pod-security.kubernetes.io/enforce", "restricted", "pod-security.kubernetes.io/enforce-version", "latest",
		"pod-security.kubernetes.io/warn", "restricted")
	compliant := func(p *corev1.Pod) {
		p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
	}
	if _, err := l.tries(injectPod("not-compliant")); !apierrors.IsForbidden(err) || strings.Contains(err.Error(), v1alpha1.SidecarName) {
		t.Errorf("the pod itself is at fault, and the sidecar is not: %v", err)
	}
	l.told()
	l.hasSidecar(l.creates(injectPod("a", compliant)))
	l.hasSidecar(l.creates(injectPod("b", compliant, bySelector)))
	l.tells("")
}

// TestC05_QuotasAndRanges: the sidecar has what a quota asks for where the Pod has it, and
// where a range refuses its size the message says which.
func TestC05_QuotasAndRanges(t *testing.T) {
	t.Parallel()
	quantities := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	for name, c := range map[string]struct {
		quota  bool
		limits *corev1.LimitRangeItem
		pod    func(*corev1.Pod)
		// want is the sidecar's requests and limits; or denied a part of the message.
		want, denied string
	}{
		"a quota, and a pod that says everything":             {quota: true, pod: sized("100m 64Mi", "200m 128Mi"), want: "20m 32Mi/20m 32Mi"},
		"a quota, and a pod that says nothing":                {quota: true, pod: sized("", ""), denied: "failed quota: all"},
		"a quota, and a range with defaults":                  {quota: true, limits: &corev1.LimitRangeItem{Default: quantities("200m", "128Mi"), DefaultRequest: quantities("100m", "64Mi")}, pod: sized("", ""), want: "20m 32Mi/20m 32Mi"},
		"a range with defaults for a part":                    {limits: &corev1.LimitRangeItem{DefaultRequest: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}}, pod: sized("", ""), want: "20m -/- -"},
		"a range that wants limits as they are requested":     {quota: true, limits: &corev1.LimitRangeItem{MaxLimitRequestRatio: quantities("1", "1")}, pod: sized("100m 64Mi", "100m 64Mi"), want: "20m 32Mi/20m 32Mi"},
		"a range with such a ratio, and defaults":             {limits: &corev1.LimitRangeItem{MaxLimitRequestRatio: quantities("1", "1"), Default: quantities("100m", "64Mi")}, pod: sized("", ""), want: "20m 32Mi/20m 32Mi"},
		"a range whose greatest limit is below the sidecar's": {limits: &corev1.LimitRangeItem{Max: quantities("10m", "1Gi")}, pod: sized("", ""), denied: "maximum cpu usage per Container is 10m, but limit is 20m"},
		"a range whose least request is above the sidecar's":  {limits: &corev1.LimitRangeItem{Min: quantities("50m", "1Mi")}, pod: sized("", ""), denied: "minimum cpu usage per Container is 50m, but request is 20m"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newInjectLab(t, v1alpha1.ModeEnforce)
			if c.limits != nil {
				c.limits.Type = corev1.LimitTypeContainer
				_, err := l.kube.CoreV1().LimitRanges(l.ns).Create(l.ctx, &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "range"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{*c.limits}}}, metav1.CreateOptions{})
				must(t, err)
				l.until(injectPod("probe", sized("1 1Gi", "2 2Gi")), func(p *corev1.Pod, err error) bool {
					if c.limits.Max != nil || c.limits.MaxLimitRequestRatio != nil {
						return apierrors.IsForbidden(err)
					}
					return err == nil
				})
				l.until(injectPod("probe", sized("", "")), func(p *corev1.Pod, err error) bool {
					return apierrors.IsForbidden(err) || err == nil && len(p.Spec.Containers[0].Resources.Requests) > 0
				})
			}
			if c.quota {
				hard := corev1.ResourceList{}
				for _, n := range []corev1.ResourceName{corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory} {
					hard[n] = resource.MustParse("64Gi")
				}
				_, err := l.kube.CoreV1().ResourceQuotas(l.ns).Create(l.ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}, metav1.CreateOptions{})
				must(t, err)
				stack.Eventually(l.ctx, t, "the quota is counted", func() error {
					q, err := l.kube.CoreV1().ResourceQuotas(l.ns).Get(l.ctx, "all", metav1.GetOptions{})
					if err == nil && len(q.Status.Hard) == 0 {
						err = fmt.Errorf("not yet")
					}
					return err
				})
				if c.limits == nil {
					l.until(injectPod("probe", sized("", "")), func(_ *corev1.Pod, err error) bool { return apierrors.IsForbidden(err) })
				}
			}
			p, err := l.tries(injectPod("a", c.pod))
			if c.denied != "" {
				if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.denied) {
					t.Errorf("got %v, want %s", err, c.denied)
				}
				return
			}
			must(t, err)
			r := l.hasSidecar(p).Resources
			one := func(l corev1.ResourceList, n corev1.ResourceName) string {
				if q, ok := l[n]; ok {
					return q.String()
				}
				return "-"
			}
			got := fmt.Sprintf("%s %s/%s %s", one(r.Requests, corev1.ResourceCPU), one(r.Requests, corev1.ResourceMemory), one(r.Limits, corev1.ResourceCPU), one(r.Limits, corev1.ResourceMemory))
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// TestC06_ARangeThatCameLaterKeepsNoPod: what the range would fill in can no longer be changed.
func TestC06_ARangeThatCameLaterKeepsNoPod(t *testing.T) {
	t.Parallel()
	l := newInjectLab(t, v1alpha1.ModeEnforce)
	const hold = "inject.belay.dev/hold"
	held := func(p *corev1.Pod) { p.Finalizers = []string{hold} }
	names := map[string]func(*corev1.Pod){"with-resources": sized("100m 64Mi", "100m 64Mi"), "without": sized("", "")}
	for name, change := range names {
		l.hasSidecar(l.creates(injectPod(name, change, held)))
	}
	quantities := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi"), corev1.ResourceEphemeralStorage: resource.MustParse("1Gi")}
	_, err := l.kube.CoreV1().LimitRanges(l.ns).Create(l.ctx, &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "range"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer, Default: quantities}}}}, metav1.CreateOptions{})
	must(t, err)
	l.until(injectPod("probe", sized("", "")), func(p *corev1.Pod, err error) bool {
		return err == nil && len(p.Spec.Containers[0].Resources.Limits) > 0
	})
	for name := range names {
		must(t, l.kube.CoreV1().Pods(l.ns).Delete(l.ctx, name, metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationForeground)}))
		_, err := l.kube.CoreV1().Pods(l.ns).Patch(l.ctx, name, types.JSONPatchType, fmt.Appendf(nil, `[{"op":"test","path":"/metadata/finalizers/0","value":%q},{"op":"remove","path":"/metadata/finalizers/0"}]`, hold), metav1.PatchOptions{})
		must(t, err)
	}
	for name := range names {
		stack.Eventually(l.ctx, t, name+" is gone", func() error {
			_, err := l.kube.CoreV1().Pods(l.ns).Get(l.ctx, name, metav1.GetOptions{})
			return stack.MustBeNotFound(err)
		})
	}
}

// TestC07_TheClassOfServiceStays: as of the same Pod in a namespace that has not opted in.
func TestC07_TheClassOfServiceStays(t *testing.T) {
	t.Parallel()
	with, without := newInjectLab(t, v1alpha1.ModeEnforce), newInjectLab(t, "")
	both := func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "second", Image: "registry.example/app:1"})
	}
	wholePod := func(requests, limits string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			sized(requests, limits)(p)
			r := p.Spec.Containers[0].Resources
			sized("", "")(p)
			p.Spec.Resources = &r
		}
	}
	chain := func(changes ...func(*corev1.Pod)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			for _, c := range changes {
				c(p)
			}
		}
	}
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   corev1.PodQOSClass
	}{
		"guaranteed":              {sized("2 64Mi", "2 64Mi"), corev1.PodQOSGuaranteed},
		"guaranteed-by-limits":    {sized("", "2 64Mi"), corev1.PodQOSGuaranteed},
		"guaranteed-with-init":    {chain(inits("a"), sized("1 64Mi", "1 64Mi")), corev1.PodQOSGuaranteed},
		"guaranteed-but-for-init": {chain(sized("1 64Mi", "1 64Mi"), inits("a")), corev1.PodQOSBurstable},
		"guaranteed-two":          {chain(both, sized("1 64Mi", "1 64Mi")), corev1.PodQOSGuaranteed},
		"guaranteed-the-first":    {chain(sized("1 64Mi", "1 64Mi"), both), corev1.PodQOSBurstable},
		"guaranteed-of-the-pod":   {wholePod("1 64Mi", "1 64Mi"), corev1.PodQOSGuaranteed},
		"burstable":               {sized("1 64Mi", "2 128Mi"), corev1.PodQOSBurstable},
		"burstable-by-cpu":        {sized("1 -", ""), corev1.PodQOSBurstable},
		"burstable-by-limit":      {sized("", "1 -"), corev1.PodQOSBurstable},
		"burstable-of-the-pod":    {wholePod("1 64Mi", "2 -"), corev1.PodQOSBurstable},
		"burstable-cpu-of-the-pod": {chain(wholePod("1 -", "1 -"), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
		}), corev1.PodQOSBurstable},
		"best-effort":                   {sized("", ""), corev1.PodQOSBestEffort},
		"best-effort-by-zero":           {sized("0 0", ""), corev1.PodQOSBestEffort},
		"best-effort-by-zero-limits":    {sized("0 0", "0 0"), corev1.PodQOSBestEffort},
		"burstable-by-zero-and-another": {sized("0 64Mi", "0 64Mi"), corev1.PodQOSBurstable},
		"best-effort-with-storage": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("1Gi")}
		}, corev1.PodQOSBestEffort},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := with.tries(injectPod(name, c.change))
			must(t, err)
			with.hasSidecar(p)
			plain, err := without.tries(injectPod(name, c.change))
			must(t, err)
			if p.Status.QOSClass != plain.Status.QOSClass || plain.Status.QOSClass != c.want {
				t.Errorf("%s with a sidecar, %s without, want %s", p.Status.QOSClass, plain.Status.QOSClass, c.want)
			}
			if diff := cmp.Diff(plain.Spec.Containers[0].Resources, p.Spec.Containers[0].Resources); diff != "" {
				t.Errorf("the main container's resources (-without +with)\n%s", diff)
			}
		})
	}
}

// TestC08_C09_Tokens: belay's token is the sidecar's alone. The token of the service account
// is mounted in the sidecar, too, by the API server's own plugin, which runs again after a
// webhook; nothing needs it.
func TestC08_C09_Tokens(t *testing.T) {
	t.Parallel()
	l := newInjectLab(t, v1alpha1.ModeEnforce)
	mounts := func(c *corev1.Container) string {
		var out []string
		for _, m := range c.VolumeMounts {
			name := m.Name
			if strings.HasPrefix(name, "kube-api-access-") {
				name = "kube-api-access"
			}
			out = append(out, name+" at "+m.MountPath)
		}
		return strings.Join(out, ", ")
	}
	const own, account = "belay-sidecar at /var/run/belay", "kube-api-access at /var/run/secrets/kubernetes.io/serviceaccount"
	for name, c := range map[string]struct {
		change        func(*corev1.Pod)
		main, sidecar string
	}{
		"not-mounted": {func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = new(false) }, "", own},
		"mounted":     {func(*corev1.Pod) {}, account, own + ", " + account},
	} {
		p := l.creates(injectPod(name, c.change))
		sidecar := l.hasSidecar(p)
		if got := mounts(&p.Spec.Containers[0]); got != c.main {
			t.Errorf("%s: main: %s", name, got)
		}
		if got := mounts(sidecar); got != c.sidecar {
			t.Errorf("%s: sidecar: %s", name, got)
		}
		if p.Spec.ServiceAccountName != "default" {
			t.Errorf("%s: service account %s", name, p.Spec.ServiceAccountName)
		}
		text, err := json.Marshal(sidecar.Env)
		must(t, err)
		if strings.Contains(string(text), "serviceaccount") {
			t.Errorf("it depends on the service account's mount: %s", text)
		}
	}
}

// TestC12_C13_PodsThatGetNone, and those that are not asked about.
func TestC12_C13_PodsThatGetNone(t *testing.T) {
	t.Parallel()
	l := newInjectLab(t, v1alpha1.ModeEnforce)
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		told   string
	}{
		"mirror": {func(p *corev1.Pod) {
			p.Annotations[corev1.MirrorPodAnnotationKey], p.Spec.NodeName = "x", "node-a"
		}, ""},
		"windows":             {func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }, "it is for Windows"},
		"windows-by-selector": {func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelOSStable: "windows"} }, "it is for Windows"},
		"windows-by-affinity": {func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelOSStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"windows"}}}}},
			}}}
		}, "it is for Windows"},
		"clash": {func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: v1alpha1.SidecarName, Image: "registry.example/own:1"})
		}, `it has a container "belay-sidecar" of its own`},
		"clash-of-init":  {inits("b", v1alpha1.SidecarName, "a"), `it has an init container "belay-sidecar" of its own`},
		"no-such-main":   {annotated("kubectl.kubernetes.io/default-container", "nope"), `it has no container "nope"`},
		"skip":           {annotated(v1alpha1.SidecarAnnotation, v1alpha1.SidecarSkip), ""},
		"skip-of-policy": {func(p *corev1.Pod) { bySelector(p); annotated(v1alpha1.SidecarAnnotation, v1alpha1.SidecarSkip)(p) }, ""},
	} {
		before := injectPod(name, c.change)
		p := l.creates(before.DeepCopy())
		if c.told == "" || !strings.HasPrefix(name, "clash") {
			l.untouched(p)
		}
		l.tells(c.told)
		if got, want := initNames(p), initNames(before); got != want {
			t.Errorf("%s: init containers %s, want %s", name, got, want)
		}
		if p.Labels[v1alpha1.SidecarLabel] != "" {
			t.Errorf("%s: labels %v", name, p.Labels)
		}
	}
}

// TestC14_C15_LaterChanges of a Pod belong to nobody but who makes them.
func TestC14_C15_LaterChanges(t *testing.T) {
	t.Parallel()
	l := newInjectLab(t, "")
	p := l.creates(injectPod("old"))
	l.untouched(p)
	_, err := l.kube.CoreV1().Namespaces().Patch(l.ctx, l.ns, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:"enforce"}}}`, v1alpha1.ModeLabel), metav1.PatchOptions{})
	must(t, err)
	stack.Eventually(l.ctx, t, "the namespace has opted in", func() error {
		p, err := l.kube.CoreV1().Pods(l.ns).Create(l.ctx, injectPod("probe"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && stack.SidecarOf(p) == nil {
			err = fmt.Errorf("not yet")
		}
		return err
	})
	p, err = l.kube.CoreV1().Pods(l.ns).Patch(l.ctx, "old", types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`), metav1.PatchOptions{})
	must(t, err)
	l.untouched(p)
	p = l.creates(injectPod("new"))
	want := *l.hasSidecar(p)
	p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debugger", Image: "busybox"}})
	p, err = l.kube.CoreV1().Pods(l.ns).UpdateEphemeralContainers(l.ctx, "new", p, metav1.UpdateOptions{})
	must(t, err)
	if e := p.Spec.EphemeralContainers; len(e) != 1 || len(e[0].VolumeMounts) != 0 {
		t.Errorf("%+v", e)
	}
	if diff := cmp.Diff(want, *l.hasSidecar(p)); diff != "" {
		t.Errorf("the sidecar was changed (-before +after)\n%s", diff)
	}
	if got := envOf(stack.SidecarOf(p), settings.Container); got != "main" {
		t.Errorf("it reports on %s", got)
	}
	l.tells("")
}

// TestC16_C17_InitContainersKeepTheirOrder, and null is none.
func TestC16_C17_InitContainersKeepTheirOrder(t *testing.T) {
	t.Parallel()
	l := newInjectLab(t, v1alpha1.ModeEnforce)
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   string
	}{
		"two": {inits("b", "a"), "b a belay-sidecar"},
		"declined": {func(p *corev1.Pod) {
			inits("b", "a")(p)
			annotated(v1alpha1.SidecarAnnotation, v1alpha1.SidecarSkip)(p)
		}, "b a"},
		"a-native-sidecar": {func(p *corev1.Pod) {
			inits("b", "a")(p)
			p.Spec.InitContainers[0].RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		}, "b a belay-sidecar"},
		"none": {func(*corev1.Pod) {}, "belay-sidecar"},
	} {
		if got := initNames(l.creates(injectPod(name, c.change))); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	raw := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"null","annotations":{"belay.dev/sidecar":"inject"}},"spec":{"initContainers":null,"volumes":null,"containers":[{"name":"main","image":"x"}]}}`
	var p corev1.Pod
	must(t, l.kube.CoreV1().RESTClient().Post().Namespace(l.ns).Resource("pods").Body([]byte(raw)).Do(l.ctx).Into(&p))
	if got := initNames(&p); got != "belay-sidecar" {
		t.Errorf("null: %s", got)
	}
}

// TestC26_AnOperatorThatRepeatsItsPods: what a webhook adds belongs to nobody's apply, so that
// it stays, and nothing is written. Who puts a whole Pod is refused, as for every field that
// the API server filled in; the annotation declines the sidecar.
func TestC26_AnOperatorThatRepeatsItsPods(t *testing.T) {
	t.Parallel()
	l := newInjectLab(t, v1alpha1.ModeEnforce)
	apply := func() *corev1.Pod {
		body := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"applied","annotations":{"belay.dev/sidecar":"inject"}},"spec":{"containers":[{"name":"main","image":"registry.example/app:1"}]}}`
		p, err := l.kube.CoreV1().Pods(l.ns).Patch(l.ctx, "applied", types.ApplyPatchType, []byte(body), metav1.PatchOptions{FieldManager: "operator", Force: new(true)})
		must(t, err)
		return p
	}
	first := apply()
	l.hasSidecar(first)
	for range 3 {
		again := apply()
		if diff := cmp.Diff(first.Spec, again.Spec); diff != "" || again.ResourceVersion != first.ResourceVersion {
			t.Fatalf("something was written (-first +again)\n%s", diff)
		}
	}
	l.tells("")
	put := func(name string, changes ...func(*corev1.Pod)) error {
		p := l.creates(injectPod(name, changes...))
		bare := injectPod(name, append(changes, labelled("x", "y"))...)
		bare.ResourceVersion = p.ResourceVersion
		bare.Spec.Volumes, bare.Spec.Containers[0].VolumeMounts, bare.Spec.ServiceAccountName = nil, nil, "default"
		bare.Spec.Tolerations = p.Spec.Tolerations // of a plugin
		bare.Spec.EnableServiceLinks, bare.Spec.Priority, bare.Spec.PreemptionPolicy = p.Spec.EnableServiceLinks, p.Spec.Priority, p.Spec.PreemptionPolicy
		_, err := l.kube.CoreV1().Pods(l.ns).Update(l.ctx, bare, metav1.UpdateOptions{})
		return err
	}
	quiet := func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = new(false) }
	if err := put("put", quiet); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "initContainers") {
		t.Errorf("a bare pod was put: %v", err)
	}
	if err := put("put-declined", quiet, annotated(v1alpha1.SidecarAnnotation, v1alpha1.SidecarSkip)); err != nil {
		t.Errorf("declined: %v", err)
	}
}

// TestC01_AJobOfTheControllerManager has a Pod with a sidecar, and completes with it.
func TestC01_AJobOfTheControllerManager(t *testing.T) {
	t.Parallel()
	l := newInjectLab(t, v1alpha1.ModeEnforce)
	template := injectPod("", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever })
	job, err := l.kube.BatchV1().Jobs(l.ns).Create(l.ctx, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "run"}, Spec: batchv1.JobSpec{
		BackoffLimit: new(int32(0)), Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Annotations: template.Annotations}, Spec: template.Spec},
	}}, metav1.CreateOptions{})
	must(t, err)
	if len(job.Spec.Template.Spec.InitContainers) != 0 {
		t.Error("the template was changed")
	}
	var p *corev1.Pod
	stack.Eventually(l.ctx, t, "the Job has a Pod", func() error {
		pods, err := l.kube.CoreV1().Pods(l.ns).List(l.ctx, metav1.ListOptions{LabelSelector: "job-name=run"})
		if err != nil || len(pods.Items) != 1 {
			return fmt.Errorf("%d pods, %w", len(pods.Items), err)
		}
		p = &pods.Items[0]
		return nil
	})
	l.hasSidecar(p)
	if ref := metav1.GetControllerOf(p); ref == nil || ref.UID != job.UID {
		t.Errorf("%+v", p.OwnerReferences)
	}
	// As the kubelet: the main container has ended, and then the sidecar was.
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"}}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{
		"phase":                 corev1.PodSucceeded,
		"containerStatuses":     []corev1.ContainerStatus{{Name: "main", State: ended, ImageID: "x", Image: "x"}},
		"initContainerStatuses": []corev1.ContainerStatus{{Name: v1alpha1.SidecarName, State: ended, ImageID: "x", Image: "x"}},
	}})
	must(t, err)
	_, err = l.kube.CoreV1().Pods(l.ns).Patch(l.ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	must(t, err)
	stack.Eventually(l.ctx, t, "the Job is complete", func() error {
		j, err := l.kube.BatchV1().Jobs(l.ns).Get(l.ctx, "run", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range j.Status.Conditions {
			if c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("%+v", j.Status)
	})
}

// TestInjectModes: warn tells and changes nothing; without a mode nobody is asked.
func TestInjectModes(t *testing.T) {
	t.Parallel()
	warn, none, enforce := newInjectLab(t, v1alpha1.ModeWarn), newInjectLab(t, ""), newInjectLab(t, v1alpha1.ModeEnforce)
	for name, change := range map[string]func(*corev1.Pod){"annotated": func(*corev1.Pod) {}, "selected": bySelector} {
		warn.untouched(warn.creates(injectPod(name, change)))
		warn.tells(`belay: mode warn: enforce would change it: a sidecar reports on container "main", probe "http://:8080/healthz"`)
		none.untouched(none.creates(injectPod(name, change)))
		none.tells("")
		p := enforce.creates(injectPod(name, change))
		enforce.hasSidecar(p)
		enforce.tells("")
		if got, want := p.Labels[v1alpha1.SidecarLabel], map[string]string{"annotated": "annotation", "selected": "policy"}[name]; got != want {
			t.Errorf("%s: label %s", name, got)
		}
	}
	// Both ask for it, and agree.
	p := enforce.creates(injectPod("both", labelled("batch-sandbox.sandbox.opensandbox.io/name", "box")))
	enforce.hasSidecar(p)
	if got := p.Labels[v1alpha1.SidecarLabel]; got != v1alpha1.SidecarByPolicy {
		t.Errorf("label %s", got)
	}
	// What is wrong with a Pod is told to whoever creates it.
	enforce.creates(injectPod("wrong", annotated(v1alpha1.ProbeAnnotation, "ftp://:21")))
	enforce.tells("has an unknown scheme")
	enforce.creates(injectPod("word", bySelector, annotated(v1alpha1.SidecarAnnotation, "yes")))
	enforce.tells(`annotation belay.dev/sidecar: "yes" is neither inject nor skip`)
}

// auditedCreate is what the audit log says of a creation.
type auditedCreate struct {
	Stage, Verb string
	ObjectRef   struct{ Namespace, Resource, Name, Subresource string }
	Annotations map[string]string
}

// rounds are, for each round of mutation, whether belay's entries changed a Pod; "-" where none
// was asked.
func (l *injectLab) rounds(name string) string {
	l.t.Helper()
	out := []string{"-", "-"}
	stack.Eventually(l.ctx, l.t, "the audit log has it", func() error {
		all, err := stack.AuditLog[auditedCreate](shared, strconv.Quote(l.ns))
		if err != nil {
			return err
		}
		for _, e := range all {
			if e.Stage != "ResponseComplete" || e.Verb != "create" || e.ObjectRef.Resource != "pods" || e.ObjectRef.Name != name {
				continue
			}
			for key, value := range e.Annotations {
				rest, ok := strings.CutPrefix(key, "mutation.webhook.admission.k8s.io/round_")
				var m struct {
					Configuration string
					Mutated       bool
				}
				if !ok || json.Unmarshal([]byte(value), &m) != nil || m.Configuration != v1alpha1.ConfigurationName {
					continue
				}
				if i := int(rest[0] - '0'); out[i] != "changed" {
					out[i] = map[bool]string{true: "changed", false: "unchanged"}[m.Mutated]
				}
			}
			return nil
		}
		return fmt.Errorf("not yet")
	})
	return strings.Join(out, ", ")
}

// edits are operations of a JSON patch.
type injectEdit struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// others are webhooks of somebody else, by the value of a label.
var others = map[string]func(*corev1.Pod) []injectEdit{
	"env": func(p *corev1.Pod) []injectEdit {
		return eachContainer(p, func(path string, c *corev1.Container) []injectEdit {
			v := corev1.EnvVar{Name: "HTTPS_PROXY", Value: "http://proxy.example:3128"}
			switch {
			case envOf(c, v.Name) != "":
				return nil
			case len(c.Env) == 0:
				return []injectEdit{{"add", path + "/env", []corev1.EnvVar{v}}}
			}
			return []injectEdit{{"add", path + "/env/0", v}}
		})
	},
	"mirror": func(p *corev1.Pod) []injectEdit {
		return eachContainer(p, func(path string, c *corev1.Container) []injectEdit {
			if strings.HasPrefix(c.Image, "mirror.example/") {
				return nil
			}
			return []injectEdit{{"replace", path + "/image", "mirror.example/" + c.Image}}
		})
	},
	"pin": func(p *corev1.Pod) []injectEdit {
		return eachContainer(p, func(path string, c *corev1.Container) []injectEdit {
			if strings.Contains(c.Image, "@") {
				return nil
			}
			return []injectEdit{{"replace", path + "/image", c.Image + "@sha256:" + strings.Repeat("0", 64)}}
		})
	},
	"mount": func(p *corev1.Pod) []injectEdit {
		if slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "extra" }) {
			return nil
		}
		out := []injectEdit{{"add", "/spec/volumes/0", corev1.Volume{Name: "extra"}}}
		return append(out, eachContainer(p, func(path string, c *corev1.Container) []injectEdit {
			m := corev1.VolumeMount{Name: "extra", MountPath: "/extra"}
			if len(c.VolumeMounts) == 0 {
				return []injectEdit{{"add", path + "/volumeMounts", []corev1.VolumeMount{m}}}
			}
			return []injectEdit{{"add", path + "/volumeMounts/0", m}}
		})...)
	},
	"init": func(p *corev1.Pod) []injectEdit {
		if strings.HasPrefix(initNames(p), "other") || len(p.Spec.InitContainers) == 0 {
			return nil
		}
		return []injectEdit{{"add", "/spec/initContainers/0", corev1.Container{Name: "other", Image: "registry.example/other:1"}}}
	},
	"requests": func(p *corev1.Pod) []injectEdit {
		return eachContainer(p, func(path string, c *corev1.Container) []injectEdit {
			if len(c.Resources.Requests) > 0 {
				return nil
			}
			return []injectEdit{{"add", path + "/resources/requests", map[string]string{"cpu": "7m"}}}
		})
	},
	"probe": func(p *corev1.Pod) []injectEdit {
		return onSidecar(p, func(path string, _ *corev1.Container) []injectEdit {
			return []injectEdit{{"add", path + "/readinessProbe", map[string]any{"tcpSocket": map[string]any{"port": 1}}}, {"add", path + "/command", []string{"sh"}}}
		})
	},
	"strip": func(p *corev1.Pod) []injectEdit {
		return onSidecar(p, func(path string, c *corev1.Container) []injectEdit {
			if c.RestartPolicy == nil {
				return nil
			}
			return []injectEdit{{Op: "remove", Path: path + "/restartPolicy"}}
		})
	},
	"drop": func(p *corev1.Pod) []injectEdit {
		return onSidecar(p, func(path string, _ *corev1.Container) []injectEdit { return []injectEdit{{Op: "remove", Path: path}} })
	},
}

// lastWords are those of them that are there a second time, as NAME-last: those are called
// again after belay, and have the last word.
var lastWords = []string{"strip", "drop", "probe"}

func eachContainer(p *corev1.Pod, edit func(string, *corev1.Container) []injectEdit) []injectEdit {
	var out []injectEdit
	for i := range p.Spec.InitContainers {
		out = append(out, edit(fmt.Sprintf("/spec/initContainers/%d", i), &p.Spec.InitContainers[i])...)
	}
	for i := range p.Spec.Containers {
		out = append(out, edit(fmt.Sprintf("/spec/containers/%d", i), &p.Spec.Containers[i])...)
	}
	return out
}

func onSidecar(p *corev1.Pod, edit func(string, *corev1.Container) []injectEdit) []injectEdit {
	for i := range p.Spec.InitContainers {
		if p.Spec.InitContainers[i].Name == v1alpha1.SidecarName {
			return edit(fmt.Sprintf("/spec/initContainers/%d", i), &p.Spec.InitContainers[i])
		}
	}
	return nil
}

const otherLabel = "inject.belay.dev/other"

// serveOthers registers the webhooks of others, which are called after belay's.
func serveOthers(ctx context.Context, t *testing.T) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		var p corev1.Pod
		body, _ := io.ReadAll(r.Body)
		if json.Unmarshal(body, &review) != nil || json.Unmarshal(review.Request.Object.Raw, &p) != nil {
			http.Error(w, "no review", http.StatusBadRequest)
			return
		}
		answer := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		if edits := others[strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/"), "-last")](&p); len(edits) > 0 {
			answer.PatchType = new(admissionv1.PatchTypeJSONPatch)
			answer.Patch, _ = json.Marshal(edits)
		}
		review.Request, review.Response = nil, answer
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	all := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{GenerateName: "other-"}}
	names := slices.Sorted(maps.Keys(others))
	for _, name := range lastWords {
		names = append(names, name+"-last")
	}
	for _, name := range names {
		reinvoke := admissionregistrationv1.NeverReinvocationPolicy
		if strings.HasSuffix(name, "-last") {
			reinvoke = admissionregistrationv1.IfNeededReinvocationPolicy
		}
		url := server.URL + "/" + name
		all.Webhooks = append(all.Webhooks, admissionregistrationv1.MutatingWebhook{
			Name: name + ".other.example", ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: ca},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}},
			ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{otherLabel: name}}, ReinvocationPolicy: &reinvoke,
			SideEffects: new(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
		})
	}
	configurations := shared.Kube.AdmissionregistrationV1().MutatingWebhookConfigurations()
	made, err := configurations.Create(ctx, all, metav1.CreateOptions{})
	must(t, err)
	stack.Cleanup(t, func(ctx context.Context) { _ = configurations.Delete(ctx, made.Name, metav1.DeleteOptions{}) })
}

// TestC02_C10_C11_AmongOtherWebhooks: what others have a right to change they change once, and
// there is one sidecar.
func TestC02_C10_C11_AmongOtherWebhooks(t *testing.T) {
	t.Parallel()
	l := newInjectLab(t, v1alpha1.ModeEnforce)
	serveOthers(l.ctx, t)
	l.until(injectPod("probe", labelled(otherLabel, "mirror")), func(p *corev1.Pod, err error) bool {
		return err == nil && strings.HasPrefix(p.Spec.Containers[0].Image, "mirror.example/")
	})
	plain := *l.hasSidecar(l.creates(injectPod("plain")))
	if got := l.rounds("plain"); got != "changed, unchanged" && got != "changed, -" {
		t.Errorf("plain: %s", got)
	}
	for name, c := range map[string]struct {
		// change is what is left of the other's change.
		change func(*corev1.Container)
		rounds string
		pod    func(*corev1.Pod)
	}{
		"env": {change: func(c *corev1.Container) {
			c.Env = append([]corev1.EnvVar{{Name: "HTTPS_PROXY", Value: "http://proxy.example:3128"}}, c.Env...)
		}},
		"mirror": {change: func(c *corev1.Container) { c.Image = "mirror.example/" + c.Image }},
		"pin":    {change: func(c *corev1.Container) { c.Image += "@sha256:" + strings.Repeat("0", 64) }},
		"init":   {change: func(*corev1.Container) {}},
		"mount": {change: func(c *corev1.Container) {
			c.VolumeMounts = append([]corev1.VolumeMount{{Name: "extra", MountPath: "/extra"}}, c.VolumeMounts...)
		}},
		"requests": {change: func(c *corev1.Container) {
			c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("7m")}
			c.ResizePolicy = nil
		}},
		"probe": {change: func(*corev1.Container) {}, rounds: "changed, changed"},
		"strip": {change: func(*corev1.Container) {}, rounds: "changed, changed"},
		// The API server's own plugins do not run a third time, and so do not mount the service
		// account's token.
		"drop": {change: func(c *corev1.Container) {
			c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return strings.HasPrefix(m.Name, "kube-api-access-") })
		}, rounds: "changed, changed"},
	} {
		t.Run("C10: "+name, func(t *testing.T) {
			t.Parallel()
			p, err := l.tries(injectPod("other-"+name, labelled(otherLabel, name)))
			must(t, err)
			got, want := *l.hasSidecar(p).DeepCopy(), *plain.DeepCopy()
			c.change(&want)
			for _, s := range []*corev1.Container{&got, &want} {
				s.ResizePolicy = nil
				for i := range s.VolumeMounts {
					if strings.HasPrefix(s.VolumeMounts[i].Name, "kube-api-access-") {
						s.VolumeMounts[i].Name = "kube-api-access"
					}
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if c.rounds == "" {
				c.rounds = "changed, unchanged"
			}
			if got := l.rounds(p.Name); got != c.rounds {
				t.Errorf("%s, want %s", got, c.rounds)
			}
			if n := slices.Collect(func(yield func(string) bool) {
				for _, v := range p.Spec.Volumes {
					if v.Name == v1alpha1.SidecarName && !yield(v.Name) {
						return
					}
				}
			}); len(n) != 1 {
				t.Errorf("%d volumes", len(n))
			}
		})
	}
	t.Run("C02: the last word takes restartPolicy", func(t *testing.T) {
		t.Parallel()
		_, err := l.tries(injectPod("stripped", labelled(otherLabel, "strip-last")))
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "has lost restartPolicy: Always") {
			t.Fatal(err)
		}
		if !apierrors.HasStatusCause(err, "belay.dev/SidecarBlocking") {
			t.Errorf("no cause: %v", err)
		}
		// The way out that the message names.
		p, err := l.tries(injectPod("declined", labelled(otherLabel, "strip-last"), annotated(v1alpha1.SidecarAnnotation, v1alpha1.SidecarSkip)))
		must(t, err)
		if stack.SidecarOf(p) != nil {
			t.Error("it has a sidecar")
		}
	})
	t.Run("C02: the last word takes or breaks the sidecar", func(t *testing.T) {
		t.Parallel()
		l := newInjectLab(t, v1alpha1.ModeEnforce)
		p := l.creates(injectPod("dropped", labelled(otherLabel, "drop-last")))
		if stack.SidecarOf(p) != nil {
			t.Error("it has a sidecar")
		}
		l.tells("the pod gets no sidecar, and so has no witness: its sidecar was taken out again")
		l.creates(injectPod("broken", labelled(otherLabel, "probe-last")))
		l.tells("it has got a readinessProbe")
	})
	t.Run("C11: a copy of a live Pod", func(t *testing.T) {
		t.Parallel()
		for _, change := range []func(*corev1.Pod){
			func(*corev1.Pod) {}, bySelector, inits("b", "a"), sized("1 64Mi", "1 64Mi"), labelled(otherLabel, "env"), labelled(otherLabel, "mirror"),
		} {
			live, err := l.kube.CoreV1().Pods(l.ns).Create(l.ctx, func() *corev1.Pod { p := injectPod("", change); p.GenerateName = "live-"; return p }(), metav1.CreateOptions{})
			must(t, err)
			copied := live.DeepCopy()
			copied.ObjectMeta = metav1.ObjectMeta{Name: live.Name + "-copy", Labels: live.Labels, Annotations: live.Annotations}
			p, err := l.tries(copied)
			must(t, err)
			l.hasSidecar(p)
			if diff := cmp.Diff(live.Spec, p.Spec); diff != "" {
				t.Errorf("(-live +copy)\n%s", diff)
			}
			if got := l.rounds(p.Name); strings.Contains(got, " changed") || strings.HasPrefix(got, "changed") {
				t.Errorf("%s: %s", initNames(p), got)
			}
		}
	})
}
