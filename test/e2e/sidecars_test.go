package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// witnessed is a Pod that asks for a sidecar, and serves.
func witnessed(ns, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Annotations: map[string]string{v1alpha1.SidecarAnnotation: v1alpha1.SidecarInject}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(1)),
			Containers: []corev1.Container{{
				Name: "main", Image: plainImage, ImagePullPolicy: corev1.PullNever,
				Ports: []corev1.ContainerPort{{ContainerPort: 8080}}, ReadinessProbe: httpProbe("/ready"),
			}},
		},
	}
}

// sidecars are the cases about sidecars that take a kubelet.
func sidecars(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T){
		"C01 a Job with a sidecar completes":                        jobCompletes,
		"C03 two Pods on the network of one node":                   hostNetwork,
		"C04 Pod Security restricted, and C25 another user":         restricted,
		"C06 a LimitRange that came later, and a foreground delete": limitRangeLater,
		"C07 a Guaranteed Pod stays one":                            guaranteed,
		"C08 no token for the main container":                       noToken,
		"C15 kubectl debug":                                         debugged,
		"C18 C19 the sidecar is up first, and without belay":        unreachable,
		"C20 the sandbox of a Pod is made anew":                     sandboxChange,
		"C21 the token is renewed":                                  tokenRenewed,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

func jobCompletes(t *testing.T) {
	ctx, ns := begin(t, "c01", v1alpha1.ModeEnforce)
	p := witnessed(ns, "")
	p.Spec.Containers[0] = corev1.Container{Name: "main", Image: jobImage, ImagePullPolicy: corev1.PullNever}
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	j := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "job"},
		Spec:       batchv1.JobSpec{Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Annotations: p.Annotations}, Spec: p.Spec}},
	}
	if err := c.Client.Create(ctx, j); err != nil {
		t.Fatal(err)
	}
	if live := finishes(ctx, t, j); !succeeded(live) || live.Status.Succeeded != 1 {
		t.Errorf("the Job has not completed: %+v", live.Status)
	}
	pods, err := c.Kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods.Items {
		s := sidecarOf(t, &pods.Items[i])
		within(ctx, t, "the sidecar ends after its main container, by itself", func() error {
			live, err := c.Kube.CoreV1().Pods(ns).Get(ctx, pods.Items[i].Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			ended := live.Status.InitContainerStatuses[0].State.Terminated
			if ended == nil || ended.ExitCode != 0 || live.Status.Phase != corev1.PodSucceeded {
				return fmt.Errorf("%s is %+v, the Pod %s", s.Name, live.Status.InitContainerStatuses[0].State, live.Status.Phase)
			}
			return nil
		})
	}
}

// sidecarOf is belay's container, which a Pod must have.
func sidecarOf(t *testing.T, p *corev1.Pod) *corev1.Container {
	t.Helper()
	s := stack.SidecarOf(p)
	if s == nil {
		t.Fatalf("Pod %s has no sidecar", p.Name)
	}
	return s
}

// runs creates a Pod, and waits until the kubelet and the sidecar say that it is ready.
func runs(ctx context.Context, t *testing.T, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	if err := c.Client.Create(ctx, p); err != nil {
		t.Fatal(err)
	}
	sidecarOf(t, p)
	within(ctx, t, "Pod "+p.Name+" is ready, and its sidecar says so", func() error { return bothReady(ctx, p) })
	return p
}

func bothReady(ctx context.Context, p *corev1.Pod) error {
	live, err := c.Kube.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	return errors.Join(conditionIs(live, corev1.PodReady, corev1.ConditionTrue), conditionIs(live, v1alpha1.MainReadyCondition, corev1.ConditionTrue))
}

// hostNetwork: with the cluster's DNS, sidecars on one node report without getting into each
// other's way; without it they find no collector, and the Pod runs.
func hostNetwork(t *testing.T) {
	ctx, ns := begin(t, "c03", v1alpha1.ModeEnforce)
	if err := c.letNodes(ctx, "belay-webhook", 1); err != nil {
		t.Fatal(err)
	}
	for name, policy := range map[string]corev1.DNSPolicy{"one": corev1.DNSClusterFirstWithHostNet, "two": corev1.DNSClusterFirstWithHostNet, "three": corev1.DNSClusterFirst} {
		p := witnessed(ns, name)
		p.Spec.NodeName, p.Spec.HostNetwork, p.Spec.DNSPolicy = "belay-worker2", true, policy
		// Ports of the node are no part of this: the sidecars have none.
		p.Spec.Containers[0] = corev1.Container{Name: "main", Image: trainImage, ImagePullPolicy: corev1.PullNever}
		if err := c.Client.Create(ctx, p); err != nil {
			t.Fatal(err)
		}
		sidecarOf(t, p)
		within(ctx, t, "the Pod is ready", func() error {
			live, err := c.Kube.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			err = conditionIs(live, corev1.PodReady, corev1.ConditionTrue)
			if policy == corev1.DNSClusterFirstWithHostNet {
				// Of a main container without a probe the sidecar knows nothing, and says so.
				err = errors.Join(err, conditionIs(live, v1alpha1.MainReadyCondition, corev1.ConditionUnknown))
			}
			return err
		})
	}
}

func restricted(t *testing.T) {
	ctx, ns := begin(t, "c04", v1alpha1.ModeEnforce)
	label := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`))
	if err := c.Client.Patch(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, label); err != nil {
		t.Fatal(err)
	}
	p := witnessed(ns, "restricted")
	p.Spec.SecurityContext = &corev1.PodSecurityContext{
		RunAsNonRoot: new(true), RunAsUser: new(int64(1000)), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	if user := *sidecarOf(t, runs(ctx, t, p)).SecurityContext.RunAsUser; user != 1000 {
		t.Errorf("the sidecar of a Pod of user 1000 runs as %d", user)
	}
	// Where its containers have several users, the sidecar has another one.
	p = witnessed(ns, "several-users")
	p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "aside", Image: trainImage, ImagePullPolicy: corev1.PullNever})
	for i := range p.Spec.Containers {
		p.Spec.Containers[i].SecurityContext = &corev1.SecurityContext{
			RunAsUser: new(int64(1000 + i)), AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		}
	}
	if user := *sidecarOf(t, runs(ctx, t, p)).SecurityContext.RunAsUser; user == 0 || user == 1000 || user == 1001 {
		t.Errorf("the sidecar of a Pod of users 1000 and 1001 runs as %d", user)
	}
}

func limitRangeLater(t *testing.T) {
	ctx, ns := begin(t, "c06", v1alpha1.ModeEnforce)
	p := runs(ctx, t, witnessed(ns, "pod"))
	amount := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi")}
	r := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "later"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
		Type: corev1.LimitTypeContainer, Default: amount, DefaultRequest: amount,
	}}}}
	if err := c.Client.Create(ctx, r); err != nil {
		t.Fatal(err)
	}
	if err := c.Client.Delete(ctx, p, client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
		t.Fatal(err)
	}
	within(ctx, t, "the Pod goes", gone(ctx, p))
}

func guaranteed(t *testing.T) {
	ctx, ns := begin(t, "c07", v1alpha1.ModeEnforce)
	p := witnessed(ns, "guaranteed")
	amount := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("64Mi")}
	p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: amount, Limits: amount}
	runs(ctx, t, p)
	live, err := c.Kube.CoreV1().Pods(ns).Get(ctx, p.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if live.Status.QOSClass != corev1.PodQOSGuaranteed {
		t.Errorf("with its sidecar the Pod is %s", live.Status.QOSClass)
	}
}

func noToken(t *testing.T) {
	ctx, ns := begin(t, "c08", v1alpha1.ModeEnforce)
	p := witnessed(ns, "no-token")
	p.Spec.AutomountServiceAccountToken = new(false)
	runs(ctx, t, p)
	for _, m := range p.Spec.Containers[0].VolumeMounts {
		t.Errorf("the main container mounts %s at %s", m.Name, m.MountPath)
	}
}

func debugged(t *testing.T) {
	ctx, ns := begin(t, "c15", v1alpha1.ModeEnforce)
	p := runs(ctx, t, witnessed(ns, "debugged"))
	if _, err := c.kubectl(ctx, "--namespace", ns, "debug", p.Name, "--image="+trainImage, "--container=debugger", "--image-pull-policy=Never"); err != nil {
		t.Fatal(err)
	}
	var live *corev1.Pod
	within(ctx, t, "the debugger runs", func() error {
		var err error
		if live, err = c.Kube.CoreV1().Pods(ns).Get(ctx, p.Name, metav1.GetOptions{}); err != nil {
			return err
		}
		if s := live.Status.EphemeralContainerStatuses; len(s) != 1 || s[0].State.Running == nil {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	for _, m := range live.Spec.EphemeralContainers[0].VolumeMounts {
		if strings.Contains(m.Name, "belay") {
			t.Errorf("the debugger has belay's volume %s", m.Name)
		}
	}
	// The main container crashes; that the debugger runs is no answer.
	if _, err := get(ctx, ns, p.Name, "/crash"); err != nil {
		t.Fatal(err)
	}
	within(ctx, t, "the sidecar says of the main container, which was started again, that it is ready", func() error { return readyAgain(ctx, p) })
}

// readyAgain reports whether the main container was started again, and the kubelet and the sidecar
// say of this run that it is ready. What was said of the run before stays until the next report.
func readyAgain(ctx context.Context, p *corev1.Pod) error {
	live, err := c.Kube.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	main := live.Status.ContainerStatuses[0]
	if main.RestartCount == 0 || main.State.Running == nil {
		return errors.New("the main container was not started again yet")
	}
	for _, cond := range live.Status.Conditions {
		if cond.Type == v1alpha1.MainReadyCondition && !strings.HasPrefix(cond.Message, main.ContainerID+": ") {
			return fmt.Errorf("the last report is about another run: %s", cond.Message)
		}
	}
	return bothReady(ctx, p)
}

// nowhere is an address for documentation (RFC 5737), where nobody answers.
const nowhere = "192.0.2.1"

func unreachable(t *testing.T) {
	ctx, ns := begin(t, "c19", v1alpha1.ModeEnforce)
	p := witnessed(ns, "unreachable")
	p.Spec.HostAliases = []corev1.HostAlias{{IP: nowhere, Hostnames: []string{"belay-webhook." + belayNamespace + ".svc"}}}
	// It asks the sidecar's neighbour at once; nothing that belay does may hold it up.
	p.Spec.InitContainers = []corev1.Container{{Name: "first", Image: jobImage, ImagePullPolicy: corev1.PullNever}}
	if err := c.Client.Create(ctx, p); err != nil {
		t.Fatal(err)
	}
	s := sidecarOf(t, p)
	if !strings.Contains(fmt.Sprint(s.Env), "belay-webhook."+belayNamespace+".svc") {
		t.Fatalf("the sidecar reports elsewhere, so that this shows nothing: %v", s.Env)
	}
	ready := func() error {
		live, err := c.Kube.CoreV1().Pods(ns).Get(ctx, p.Name, metav1.GetOptions{})
		if err == nil {
			err = conditionIs(live, corev1.PodReady, corev1.ConditionTrue)
		}
		if err == nil && conditionIs(live, v1alpha1.MainReadyCondition, corev1.ConditionTrue) == nil {
			return errors.New("the sidecar has reached belay, so that this shows nothing")
		}
		return err
	}
	within(ctx, t, "the Pod is ready", ready)
	holds(ctx, t, 15*time.Second, "it stays ready and serves", func() error {
		_, err := get(ctx, ns, p.Name, "/")
		return errors.Join(err, ready())
	})
	live, err := c.Kube.CoreV1().Pods(ns).Get(ctx, p.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, status := range live.Status.InitContainerStatuses {
		if status.RestartCount > 0 {
			t.Errorf("container %s was started again %d times", status.Name, status.RestartCount)
		}
	}
}

func sandboxChange(t *testing.T) {
	ctx, ns := begin(t, "c20", v1alpha1.ModeEnforce)
	p := runs(ctx, t, witnessed(ns, "rebooted"))
	before, err := c.Kube.CoreV1().Pods(ns).Get(ctx, p.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sandbox, err := c.node(ctx, before.Spec.NodeName, "crictl", "pods", "--quiet", "--state", "ready", "--label", "io.kubernetes.pod.uid="+string(p.UID))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.node(ctx, before.Spec.NodeName, "crictl", "stopp", sandbox); err != nil {
		t.Fatal(err)
	}
	within(ctx, t, "the same Pod is ready, with other containers, and its sidecar says so of these", func() error { return reported(ctx, before) })
}

// reported says what is missing until a Pod is ready with other containers than before, and its
// sidecar has said so of these.
func reported(ctx context.Context, before *corev1.Pod) error {
	live, err := c.Kube.CoreV1().Pods(before.Namespace).Get(ctx, before.Name, metav1.GetOptions{})
	switch {
	case err != nil:
		return err
	case live.UID != before.UID:
		return errors.New("it is another Pod")
	case live.Status.ContainerStatuses[0].ContainerID == before.Status.ContainerStatuses[0].ContainerID || live.Status.ContainerStatuses[0].State.Running == nil:
		return errors.New("the main container is the old one, or none")
	}
	for _, cond := range live.Status.Conditions {
		if cond.Type == v1alpha1.MainReadyCondition && cond.LastProbeTime.Before(&live.Status.ContainerStatuses[0].State.Running.StartedAt) {
			return errors.New("what the sidecar said is of before")
		}
	}
	return bothReady(ctx, live)
}

// tokenRenewed takes longer than all the rest: kubelets renew a token of ten minutes after eight.
func tokenRenewed(t *testing.T) {
	if os.Getenv("BELAY_E2E_LONG") == "" {
		t.Skip("takes 13 minutes, the shortest that a token lives being 10; BELAY_E2E_LONG=1 runs it")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	_, ns := begin(t, "c21", v1alpha1.ModeEnforce)
	p := runs(ctx, t, witnessed(ns, "old"))
	tick := time.NewTicker(13 * time.Minute)
	defer tick.Stop()
	select {
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	case <-tick.C:
	}
	// The first token has ended. What is reported now needs another one.
	if _, err := get(ctx, ns, p.Name, "/crash"); err != nil {
		t.Fatal(err)
	}
	within(ctx, t, "the sidecar reports what is new", func() error {
		live, err := c.Kube.CoreV1().Pods(ns).Get(ctx, p.Name, metav1.GetOptions{})
		if err == nil && live.Status.ContainerStatuses[0].RestartCount == 0 {
			err = errors.New("the main container was not started again yet")
		}
		if err != nil {
			return err
		}
		for _, cond := range live.Status.Conditions {
			if s := live.Status.ContainerStatuses[0].State.Running; cond.Type == v1alpha1.MainReadyCondition && s != nil && !cond.LastProbeTime.Before(&s.StartedAt) {
				return bothReady(ctx, p)
			}
		}
		return errors.New("nothing is reported of this run")
	})
}

// latency: how long after the main container is ready its Pod's conditions say so, the
// sidecar's and the kubelet's own, over a hundred Pods in one run.
func latency(t *testing.T) {
	ctx, ns := begin(t, "latency", v1alpha1.ModeEnforce)
	const size, together = 100, 10
	type times struct{ main, kubelet, sidecar time.Time }
	var mu sync.Mutex
	seen := map[string]*times{}
	w, err := c.Kube.CoreV1().Pods(ns).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	go func() {
		for e := range w.ResultChan() {
			p, ok := e.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			now := time.Now()
			mu.Lock()
			s := seen[p.Name]
			if s == nil {
				s = &times{}
				seen[p.Name] = s
			}
			if s.kubelet.IsZero() && conditionIs(p, corev1.PodReady, corev1.ConditionTrue) == nil {
				s.kubelet = now
			}
			if s.sidecar.IsZero() && conditionIs(p, v1alpha1.MainReadyCondition, corev1.ConditionTrue) == nil {
				s.sidecar = now
			}
			mu.Unlock()
		}
	}()
	start := time.Now()
	for first := 0; first < size; first += together {
		var names []string
		for i := first; i < first+together; i++ {
			p := witnessed(ns, fmt.Sprintf("pod-%03d", i))
			// Ready some time after it was started, so that what is measured is neither the
			// start of the sidecar nor that of the kubelet's probes.
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "READY_AFTER", Value: "3s"}}
			if err := c.Client.Create(ctx, p); err != nil {
				t.Fatal(err)
			}
			names = append(names, p.Name)
		}
		within(ctx, t, "they are ready", func() error {
			mu.Lock()
			defer mu.Unlock()
			for _, name := range names {
				if s := seen[name]; s == nil || s.kubelet.IsZero() || s.sidecar.IsZero() {
					return fmt.Errorf("%s is not: %+v", name, s)
				}
			}
			return nil
		})
		for _, name := range names {
			raw, err := c.Kube.CoreV1().Pods(ns).GetLogs(name, &corev1.PodLogOptions{Container: "main"}).DoRaw(ctx)
			if err != nil {
				t.Fatal(err)
			}
			_, at, _ := strings.Cut(string(raw), "ready at ")
			at, _, _ = strings.Cut(at, "\n")
			millis, err := strconv.ParseInt(at, 10, 64)
			if err != nil {
				t.Fatalf("the log of %s: %q", name, raw)
			}
			mu.Lock()
			seen[name].main = time.UnixMilli(millis)
			mu.Unlock()
			if err := c.Kube.CoreV1().Pods(ns).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
				t.Fatal(err)
			}
		}
	}
	mu.Lock()
	defer mu.Unlock()
	var kubelet, sidecar []time.Duration
	for _, s := range seen {
		kubelet = append(kubelet, s.kubelet.Sub(s.main))
		sidecar = append(sidecar, s.sidecar.Sub(s.main))
	}
	slices.Sort(kubelet)
	slices.Sort(sidecar)
	stack.Report(t, "e2e: main container ready → condition, %d Pods that are probed each second, in %s: MainReady p50 %s p99 %s; the kubelet's Ready p50 %s p99 %s",
		len(seen), seconds(time.Since(start)), ms(sidecar, 50), ms(sidecar, 99), ms(kubelet, 50), ms(kubelet, 99))
	if len(seen) != size {
		t.Errorf("%d Pods were seen", len(seen))
	}
}
