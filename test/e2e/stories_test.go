package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/felis"
	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/fixtures/otf"
	"github.com/belay-dev/belay/test/fixtures/spur"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// storyOTF: Jobs really run, and what OTF made for them goes with them, whatever became of its
// third call.
func storyOTF(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]bool{"three calls": false, "the third call is lost": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, ns := begin(t, "otf", v1alpha1.ModeEnforce)
			e := executor(ctx, t, ns)
			errLost := errors.New("lost")
			if lost {
				e.AfterJob = func() error { return errLost }
			}
			start := time.Now()
			r, err := e.Spawn(ctx, "Job-"+ns, "t0ken")
			if lost != errors.Is(err, errLost) || (err != nil && !lost) {
				t.Fatal(err)
			}
			if refs := r.Secret.OwnerReferences; len(refs) != 1 {
				t.Errorf("the Secret was created with owners %v; want one, the Job or its Anchor", refs)
			}
			j := finishes(ctx, t, r.Job)
			if !succeeded(j) {
				t.Fatalf("the Job has not succeeded: %+v", j.Status)
			}
			ran := time.Since(start)
			// OTF's own is an hour.
			ttl := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"ttlSecondsAfterFinished":1}}`))
			if err := c.Client.Patch(ctx, j, ttl); err != nil {
				t.Fatal(err)
			}
			within(ctx, t, "the Job is collected", gone(ctx, &batchv1.Job{ObjectMeta: j.ObjectMeta}))
			deleted := time.Now()
			within(ctx, t, "its Secret is collected", gone(ctx, &corev1.Secret{ObjectMeta: r.Secret.ObjectMeta}))
			stack.Report(t, "e2e: OTF, %s: ran for %s; the Secret went %s after the Job", name, seconds(ran), seconds(time.Since(deleted)))
		})
	}
	t.Run("without belay", func(t *testing.T) {
		t.Parallel()
		ctx, ns := begin(t, "otf-without", "")
		e := executor(ctx, t, ns)
		errLost := errors.New("lost")
		e.AfterJob = func() error { return errLost }
		r, err := e.Spawn(ctx, "Job-"+ns, "t0ken")
		if !errors.Is(err, errLost) {
			t.Fatal(err)
		}
		j := finishes(ctx, t, r.Job)
		if err := c.Client.Delete(ctx, j, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
			t.Fatal(err)
		}
		within(ctx, t, "the Job goes", gone(ctx, &batchv1.Job{ObjectMeta: j.ObjectMeta}))
		if len(r.Secret.OwnerReferences) > 0 {
			t.Error("the Secret has an owner where belay was not asked")
		}
		if err := c.Client.Get(ctx, client.ObjectKeyFromObject(r.Secret), &corev1.Secret{}); err != nil {
			t.Errorf("the Secret is gone, with nobody to collect it: %v", err)
		}
	})
}

func executor(ctx context.Context, t *testing.T, ns string) otf.Executor {
	t.Helper()
	if err := otf.Grant(ctx, c.Kube, ns); err != nil {
		t.Fatal(err)
	}
	cfg, err := c.Config(ctx, ns, otf.Account)
	if err != nil {
		t.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return otf.Executor{Client: kube, Namespace: ns}
}

// storyFelis: restores really finish and really fail, and one that is asked for again runs.
func storyFelis(t *testing.T) {
	t.Parallel()
	ctx, ns := begin(t, "felis", v1alpha1.ModeEnforce)
	if err := felis.Grant(ctx, c.Kube, ns); err != nil {
		t.Fatal(err)
	}
	api := func() *felis.Felis {
		cfg, err := c.Config(ctx, ns, felis.Account)
		if err != nil {
			t.Fatal(err)
		}
		cl, err := client.New(cfg, client.Options{Scheme: c.Client.Scheme(), Mapper: c.Client.RESTMapper()})
		if err != nil {
			t.Fatal(err)
		}
		return &felis.Felis{Client: cl, Namespace: ns}
	}
	live := func(server string) *batchv1.Job {
		t.Helper()
		j, err := c.Kube.BatchV1().Jobs(ns).Get(ctx, felis.JobName(server), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	f := api()
	if _, err := f.RestorePlainly(ctx, "alpha", "broken"); err != nil {
		t.Fatal(err)
	}
	first := finishes(ctx, t, live("alpha"))
	if succeeded(first) {
		t.Fatal("the restore of a broken archive has succeeded")
	}
	// An older release takes any AlreadyExists for success, so a new Job has to run.
	if _, err := f.RestorePlainly(ctx, "alpha", "monday"); err != nil {
		t.Fatalf("asked for again: %v", err)
	}
	second := finishes(ctx, t, live("alpha"))
	if second.UID == first.UID || !succeeded(second) {
		t.Errorf("asked for again, the restore is %s (first %s), %+v", second.UID, first.UID, second.Status)
	}
	// A newer release does not even have to delete.
	n := api()
	if _, err := n.Restore(ctx, "beta", "broken"); err != nil {
		t.Fatal(err)
	}
	if succeeded(finishes(ctx, t, live("beta"))) {
		t.Fatal("the restore of a broken archive has succeeded")
	}
	if _, err := n.Restore(ctx, "beta", "slow"); err != nil {
		t.Fatal(err)
	}
	if n.Creates != 2 || n.Deletes != 0 {
		t.Errorf("it took %d creates and %d deletes; want 2 and 0", n.Creates, n.Deletes)
	}
	slow := live("beta")
	if _, err := n.Restore(ctx, "beta", "tuesday"); !errors.Is(err, felis.ErrOtherRestoreRunning) {
		t.Errorf("another archive, while one is being restored: %v; want that to be said", err)
	}
	if again := live("beta"); again.UID != slow.UID || again.DeletionTimestamp != nil {
		t.Error("the running restore was touched")
	}
	within(ctx, t, "the running restore runs", func() error {
		if r := live("beta").Status.Ready; r == nil || *r == 0 {
			return errors.New("its Pod is not ready")
		}
		return nil
	})
}

// storySpur: Pods that pass by the scheduler run on the node they name, are owned, and go with
// their SpurJob.
func storySpur(t *testing.T) {
	t.Parallel()
	ctx, ns := begin(t, "spur", v1alpha1.ModeEnforce)
	if err := spur.Grant(ctx, c.Kube, ns); err != nil {
		t.Fatal(err)
	}
	cfg, err := c.Config(ctx, ns, spur.Account)
	if err != nil {
		t.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	const node = "belay-worker"
	id := fmt.Sprint(time.Now().UnixNano() % 1_000_000_000) // Spur looks for it in all namespaces
	agent := spur.Agent{Client: kube, Dynamic: dyn, Image: trainImage}
	job := spur.Job(ns, "train", "")
	if err := c.Client.Create(ctx, job); err != nil {
		t.Fatal(err)
	}
	if err := agent.Adopt(ctx, ns, "train", id); err != nil {
		t.Fatal(err)
	}
	name := spur.PodName(id, node)
	launch := func() *corev1.Pod {
		t.Helper()
		if l := agent.Launch(ctx, id, node, 2); !l.Success {
			t.Fatal(l.Err)
		}
		p, err := c.Kube.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	first := launch()
	if refs := first.OwnerReferences; len(refs) != 1 || refs[0].Kind != "SpurJob" {
		t.Errorf("the Pod has owners %v; want its SpurJob", refs)
	}
	within(ctx, t, "the Pod runs", func() error {
		p, err := c.Kube.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
		if err == nil && (p.Status.Phase != corev1.PodRunning || p.Spec.NodeName != node) {
			err = fmt.Errorf("it is %s on %s", p.Status.Phase, p.Spec.NodeName)
		}
		return err
	})
	if again := launch(); again.UID != first.UID {
		t.Error("launched again while it runs, the Pod is another one")
	}
	// The kubelet ends it, and it fails.
	over := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"activeDeadlineSeconds":1}}`))
	if err := c.Client.Patch(ctx, first.DeepCopy(), over); err != nil {
		t.Fatal(err)
	}
	within(ctx, t, "the Pod has failed", func() error {
		p, err := c.Kube.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
		if err == nil && p.Status.Phase != corev1.PodFailed {
			err = fmt.Errorf("it is %s", p.Status.Phase)
		}
		return err
	})
	var second *corev1.Pod
	within(ctx, t, "launched again, a new Pod runs", func() error {
		// Spur repeats a launch that was refused, as one is while the failed Pod goes.
		if l := agent.Launch(ctx, id, node, 2); !l.Success {
			return l.Err
		}
		p, err := c.Kube.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
		if err == nil && (p.UID == first.UID || p.Status.Phase != corev1.PodRunning) {
			err = fmt.Errorf("it is %s, %s", p.UID, p.Status.Phase)
		}
		second = p
		return err
	})
	if err := c.Client.Delete(ctx, job); err != nil {
		t.Fatal(err)
	}
	within(ctx, t, "the Pod goes with the SpurJob", gone(ctx, &corev1.Pod{ObjectMeta: second.ObjectMeta}))
	within(ctx, t, "the Service goes with the SpurJob", func() error {
		list, err := c.Kube.CoreV1().Services(ns).List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d are there", len(list.Items))
		}
		return err
	})
}

// storyOpenSandbox: a Pod really crashes and backs off, and its sandbox recovers with that very
// Pod; one that was replaced under its name does not make it recover.
func storyOpenSandbox(t *testing.T) {
	t.Parallel()
	ctx, ns := begin(t, "opensandbox", v1alpha1.ModeEnforce)
	for _, o := range opensandbox.Grant(ns, opensandbox.Names{}) {
		if err := c.Client.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	s := sandboxes(ctx, t, ns)
	s.create(ctx, t, "returns")
	s.create(ctx, t, "replaced")
	s.phase(ctx, t, "returns", opensandbox.PhaseSucceed)
	s.phase(ctx, t, "replaced", opensandbox.PhaseSucceed)
	first := s.pod(ctx, t, "returns")
	within(ctx, t, "the sidecar has said that the Pod is ready", mainReady(ctx, first, corev1.ConditionTrue))

	var crashed sync.WaitGroup
	var lost *corev1.Pod
	var recovered time.Duration
	crashed.Go(func() {
		s.crash(ctx, t, "returns")
		failedAt := time.Now()
		if err := s.is(ctx, t, "returns", opensandbox.PhaseSucceed); err != nil {
			t.Error(err)
		}
		recovered = time.Since(failedAt)
	})
	crashed.Go(func() { lost = s.lose(ctx, t, "replaced") })
	crashed.Wait()
	if t.Failed() {
		t.FailNow()
	}

	stack.Report(t, "e2e: OpenSandbox: failed by CrashLoopBackOff, recovered after %s with the same Pod", seconds(recovered))
	again := s.pod(ctx, t, "returns")
	if again.UID != first.UID || again.Status.ContainerStatuses[0].RestartCount == 0 {
		t.Errorf("recovered with Pod %s, restarted %d times; want %s, restarted", again.UID, again.Status.ContainerStatuses[0].RestartCount, first.UID)
	}
	if got := s.get(ctx, t, "returns").Status.FailedPodUIDs; len(got) > 0 {
		t.Errorf("recovered, the record is still %v", got)
	}

	var stranger *corev1.Pod
	within(ctx, t, "another Pod of the same name is ready", func() error {
		p, err := c.Kube.CoreV1().Pods(ns).Get(ctx, lost.Name, metav1.GetOptions{})
		switch {
		case err != nil:
			return err
		case p.UID == lost.UID:
			return errors.New("it is the old one")
		}
		stranger = p
		return errors.Join(mainReady(ctx, p, corev1.ConditionTrue)(), conditionIs(p, corev1.PodReady, corev1.ConditionTrue))
	})
	// The controller sees a ready Pod, and says so as often as it looks.
	holds(ctx, t, 10*time.Second, "the sandbox stays failed", func() error {
		b := s.get(ctx, t, "replaced")
		if b.Status.Phase != opensandbox.PhaseFailed || !slices.Equal(b.Status.FailedPodUIDs, []string{string(lost.UID)}) {
			return fmt.Errorf("it is %s, recorded %v, with Pod %s", b.Status.Phase, b.Status.FailedPodUIDs, stranger.UID)
		}
		return nil
	})
	within(ctx, t, "an event says why", func() error { return s.event(ctx, "replaced", v1alpha1.ReasonNotRecoverable, "PodReplaced") })
}

// sandboxSide is an older release's controller, which works all the time.
type sandboxSide struct {
	ns    string
	admin client.Client
}

func sandboxes(ctx context.Context, t *testing.T, ns string) *sandboxSide {
	t.Helper()
	admin, err := opensandbox.NewClient(c.cfg, opensandbox.New, opensandbox.Names{}.GVK(opensandbox.Version))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := c.Config(ctx, ns, opensandbox.Account)
	if err != nil {
		t.Fatal(err)
	}
	cl, err := opensandbox.NewClient(cfg, opensandbox.Old, opensandbox.Names{}.GVK(opensandbox.Version))
	if err != nil {
		t.Fatal(err)
	}
	s := &sandboxSide{ns: ns, admin: admin}
	working, stop := context.WithCancel(ctx)
	var ended sync.WaitGroup
	ended.Go(func() {
		controller := &opensandbox.Controller{Client: cl, Namespace: ns, Generation: opensandbox.Old}
		tick := time.NewTicker(300 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-working.Done():
				return
			case <-tick.C:
			}
			for _, name := range []string{"returns", "replaced"} {
				// What it is refused, it tries again.
				_ = controller.Scale(working, name)
				_ = controller.Reconcile(working, name)
			}
		}
	})
	t.Cleanup(func() { stop(); ended.Wait() })
	return s
}

func (s *sandboxSide) create(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	b := opensandbox.Sandbox(s.ns, name, 1)
	spec := probed()
	b.Spec.Template = opensandbox.TemplateOf(spec)
	if err := s.admin.Create(ctx, b); err != nil {
		t.Fatal(err)
	}
}

// probed is a Pod that is ready when /ready says so.
func probed() corev1.PodSpec {
	return corev1.PodSpec{
		RestartPolicy:                 corev1.RestartPolicyAlways,
		TerminationGracePeriodSeconds: new(int64(2)),
		Containers: []corev1.Container{{
			Name: opensandbox.MainContainer, Image: "opensandbox/sandbox:v1.0.0", ImagePullPolicy: corev1.PullNever,
			Ports:          []corev1.ContainerPort{{ContainerPort: 8080}},
			ReadinessProbe: httpProbe("/ready"),
		}},
	}
}

func (s *sandboxSide) get(ctx context.Context, t *testing.T, name string) *opensandbox.BatchSandbox {
	t.Helper()
	var b opensandbox.BatchSandbox
	if err := s.admin.Get(ctx, client.ObjectKey{Namespace: s.ns, Name: name}, &b); err != nil {
		t.Fatal(err)
	}
	return &b
}

func (s *sandboxSide) phase(ctx context.Context, t *testing.T, name, phase string) {
	t.Helper()
	if err := s.is(ctx, t, name, phase); err != nil {
		t.Fatal(err)
	}
}

// is waits until a sandbox is in a phase.
func (s *sandboxSide) is(ctx context.Context, t *testing.T, name, phase string) error {
	t.Helper()
	return wait(ctx, bound, func() error {
		if got := s.get(ctx, t, name).Status.Phase; got != phase {
			return fmt.Errorf("sandbox %s is %q, not %q", name, got, phase)
		}
		return nil
	})
}

func (s *sandboxSide) pod(ctx context.Context, t *testing.T, name string) *corev1.Pod {
	t.Helper()
	p, err := c.Kube.CoreV1().Pods(s.ns).Get(ctx, name+"-0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// crash lets the Pod crash, each time that it is up, until its sandbox has failed.
func (s *sandboxSide) crash(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	err := wait(ctx, bound, func() error {
		if phase := s.get(ctx, t, name).Status.Phase; phase != opensandbox.PhaseFailed {
			_, err := get(ctx, s.ns, name+"-0", "/crash")
			return fmt.Errorf("it is %q (%w)", phase, err)
		}
		return nil
	})
	if err != nil {
		t.Errorf("the Pod of sandbox %s crashes: %v", name, err)
	}
}

// lose lets the Pod crash until its sandbox has failed, and deletes it. It is back after the
// kubelet's back-off, and its sandbox recovers as it should: where that was sooner, it crashes again.
func (s *sandboxSide) lose(ctx context.Context, t *testing.T, name string) (lost *corev1.Pod) {
	t.Helper()
	err := wait(ctx, bound, func() error {
		s.crash(ctx, t, name)
		lost = s.pod(ctx, t, name)
		if err := conditionIs(lost, corev1.PodReady, corev1.ConditionFalse); err != nil {
			return err
		}
		b := s.get(ctx, t, name)
		if b.Status.Phase != opensandbox.PhaseFailed {
			return fmt.Errorf("it is %q again", b.Status.Phase)
		}
		if got := b.Status.FailedPodUIDs; !slices.Equal(got, []string{string(lost.UID)}) {
			t.Errorf("the record of what failed is %v; want %s", got, lost.UID)
		}
		// Not if anything has come of it since, such as that it is ready.
		return c.Client.Delete(ctx, lost, client.GracePeriodSeconds(0), client.Preconditions{UID: &lost.UID, ResourceVersion: &lost.ResourceVersion})
	})
	if err != nil {
		t.Errorf("the Pod of sandbox %s is deleted while it fails: %v", name, err)
	}
	return lost
}

func (s *sandboxSide) event(ctx context.Context, name, reason, action string) error {
	list, err := c.Kube.EventsV1().Events(s.ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var seen []string
	for _, e := range list.Items {
		if e.Regarding.Name == name && e.Reason == reason && e.Action == action {
			return nil
		}
		seen = append(seen, e.Regarding.Name+" "+e.Reason+" "+e.Action)
	}
	return fmt.Errorf("no event %s about %s among %s", reason, name, strings.Join(seen, ", "))
}

// get asks a Pod over the API server.
func get(ctx context.Context, ns, pod, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	raw, err := c.Kube.CoreV1().RESTClient().Get().Namespace(ns).Resource("pods").Name(pod + ":8080").SubResource("proxy").Suffix(path).DoRaw(ctx)
	return string(raw), err
}

func httpProbe(path string) *corev1.Probe {
	p := &corev1.Probe{PeriodSeconds: 1}
	p.HTTPGet = &corev1.HTTPGetAction{Path: path}
	p.HTTPGet.Port.IntVal = 8080
	return p
}

func conditionIs(p *corev1.Pod, kind corev1.PodConditionType, want corev1.ConditionStatus) error {
	for _, cond := range p.Status.Conditions {
		if cond.Type == kind {
			if cond.Status != want {
				return fmt.Errorf("%s is %s, %s: %s", kind, cond.Status, cond.Reason, cond.Message)
			}
			return nil
		}
	}
	return fmt.Errorf("Pod %s has no condition %s", p.Name, kind)
}

// mainReady reports whether the sidecar has said so of this very Pod.
func mainReady(ctx context.Context, p *corev1.Pod, want corev1.ConditionStatus) func() error {
	return func() error {
		live, err := c.Kube.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		switch {
		case err != nil:
			return err
		case live.UID != p.UID:
			return fmt.Errorf("it is another Pod, %s", live.UID)
		}
		return conditionIs(live, v1alpha1.MainReadyCondition, want)
	}
}

// holds looks again and again for a while.
func holds(ctx context.Context, t *testing.T, d time.Duration, what string, check func() error) {
	t.Helper()
	err := wait(ctx, d, func() error {
		if err := check(); err != nil {
			t.Errorf("%s: %v", what, err)
			return nil
		}
		return errStill
	})
	if !errors.Is(err, errStill) && !t.Failed() {
		t.Errorf("%s: %v", what, err)
	}
}

var errStill = errors.New("as before")

// finishes waits until a Job has finished.
func finishes(ctx context.Context, t *testing.T, j *batchv1.Job) *batchv1.Job {
	t.Helper()
	var live *batchv1.Job
	within(ctx, t, "Job "+j.Name+" finishes", func() error {
		var err error
		if live, err = c.Kube.BatchV1().Jobs(j.Namespace).Get(ctx, j.Name, metav1.GetOptions{}); err != nil {
			return err
		}
		if live.UID != j.UID {
			return fmt.Errorf("it is another one, %s", live.UID)
		}
		for _, cond := range live.Status.Conditions {
			if (cond.Type == batchv1.JobComplete || cond.Type == batchv1.JobFailed) && cond.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("%+v", live.Status)
	})
	return live
}

func succeeded(j *batchv1.Job) bool {
	return slices.ContainsFunc(j.Status.Conditions, func(cond batchv1.JobCondition) bool {
		return cond.Type == batchv1.JobComplete && cond.Status == corev1.ConditionTrue
	})
}

// gone waits for an object's end; another one of its name is none of it.
func gone(ctx context.Context, o client.Object) func() error {
	uid := o.GetUID()
	return func() error {
		err := c.Client.Get(ctx, client.ObjectKeyFromObject(o), o)
		if apierrors.IsNotFound(err) || (err == nil && o.GetUID() != uid) {
			return nil
		}
		if err == nil {
			err = errors.New("it is there")
		}
		return err
	}
}
