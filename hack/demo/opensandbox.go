package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// sandboxPolicy is the name of the preset and of its policy.
const sandboxPolicy = "opensandbox"

// recordField is where the UIDs of failed Pods are, below the status.
const recordField = "failedPodUIDs"

// tellOpenSandbox tells of sandboxes that have failed: first where their CRD has no
// field for the record, as that of older releases, then where it has.
func tellOpenSandbox(ctx context.Context, s *stack.Stack, say narrator) (table, pair, error) {
	say("OpenSandbox")
	if err := s.ApplyCRD(ctx, opensandbox.CRD(opensandbox.CRDOptions{})); err != nil {
		return table{}, pair{}, err
	}
	p, err := newPair(ctx, s, "opensandbox", func(ctx context.Context, _ kubernetes.Interface, ns string) error {
		return grantOpenSandbox(ctx, s.Client, ns)
	})
	if err != nil {
		return table{}, p, err
	}
	admin, err := opensandbox.NewClient(s.Plane.Config(), opensandbox.New, opensandbox.Names{}.GVK(opensandbox.Version))
	if err != nil {
		return table{}, p, err
	}
	both := sides[*sandboxSide]{
		without: &sandboxSide{s: s, admin: admin, ns: p.without}, with: &sandboxSide{s: s, admin: admin, ns: p.with, guarded: true},
	}
	if err := s.ApplyPreset(ctx, sandboxPolicy); err != nil {
		return table{}, p, err
	}
	say("preset opensandbox is applied, to a CRD without a field for the record")
	before, after := withoutField(), withField()
	lines := perform(ctx, say, both, before)
	if err := patchCRD(ctx, s, both.without); err != nil {
		return table{}, p, err
	}
	if err := inForce(ctx, s, recoveries(sandboxPolicy)); err != nil {
		return table{}, p, err
	}
	say("the CRD has the field, and preset opensandbox is in force")
	return table{
		title:   "Sandboxes that OpenSandbox's controller has failed, which its older releases never take back. Preset opensandbox.",
		columns: cells{"the sandbox is", "its record, or the answer"},
		lines:   append(lines, perform(ctx, say, both, after)...),
		sum: fmt.Sprintf("Without belay %d of %d went wrong: what was over stayed Failed for ever, or what had failed for good was taken back.\n"+
			"With belay a sandbox recovers when, and only when, the very Pods that failed are ready again.", wrongs(before)+wrongs(after), len(before)+len(after)),
	}, p, nil
}

func grantOpenSandbox(ctx context.Context, c client.Client, ns string) error {
	for _, o := range opensandbox.Grant(ns, opensandbox.Names{}) {
		if err := c.Create(ctx, o); err != nil {
			return fmt.Errorf("granting OpenSandbox its rights: %w", err)
		}
	}
	return nil
}

// refusal waits until belay has judged the policy, and is the reason why it refuses it: a
// guard whose record is dropped would be half a guard.
func refusal(ctx context.Context, s *stack.Stack) (reason string, err error) {
	err = until(ctx, 30*time.Second, "policy opensandbox is refused", func(ctx context.Context) error {
		var p v1alpha1.RecoveryPolicy
		if err := s.Client.Get(ctx, client.ObjectKey{Name: sandboxPolicy}, &p); err != nil {
			return err
		}
		c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionAccepted)
		if c == nil || c.Status != metav1.ConditionFalse || c.ObservedGeneration != p.Generation {
			return fmt.Errorf("its condition is %+v", c)
		}
		reason = c.Reason
		return nil
	})
	return reason, err
}

// unguarded says that the API server does not call belay for sandboxes.
func unguarded(ctx context.Context, s *stack.Stack) error {
	mutating, err := s.Kube.AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	validating, err := s.Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var entries []string
	for _, c := range mutating.Items {
		for _, w := range c.Webhooks {
			entries = append(entries, w.Name)
		}
	}
	for _, c := range validating.Items {
		for _, w := range c.Webhooks {
			entries = append(entries, w.Name)
		}
	}
	for _, e := range entries {
		if strings.HasSuffix(e, v1alpha1.RecoveryEntryDomain) {
			return fmt.Errorf("webhook %s is registered", e)
		}
	}
	return nil
}

// patchCRD applies the preset's patch of the CRD, and waits until the API server stores
// the field: it exchanges schemas a moment after it has stored them.
func patchCRD(ctx context.Context, s *stack.Stack, side *sandboxSide) error {
	raw, err := os.ReadFile(filepath.Join(stack.Root(), "manifests", "presets", sandboxPolicy, "crd-patch.yaml"))
	if err != nil {
		return err
	}
	patch, err := yaml.ToJSON(raw)
	if err != nil {
		return fmt.Errorf("reading crd-patch.yaml: %w", err)
	}
	crd := &unstructured.Unstructured{}
	crd.SetAPIVersion("apiextensions.k8s.io/v1")
	crd.SetKind("CustomResourceDefinition")
	crd.SetName(opensandbox.CRD(opensandbox.CRDOptions{}).Name)
	if err := s.Client.Patch(ctx, crd, client.RawPatch(types.JSONPatchType, patch)); err != nil {
		return fmt.Errorf("patching the CRD of BatchSandboxes: %w", err)
	}
	return until(ctx, time.Minute, "the record is stored", func(ctx context.Context) error {
		b := &opensandbox.BatchSandbox{ObjectMeta: metav1.ObjectMeta{Namespace: side.ns, Name: unstored}}
		probe := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"status":{%q:["probe"]}}`, recordField))
		if err := side.admin.Status().Patch(ctx, b, probe, client.DryRunAll); err != nil {
			return err
		}
		if len(b.Status.FailedPodUIDs) == 0 {
			return errors.New("not yet")
		}
		return nil
	})
}

// Names of sandboxes that more than one step is about.
const (
	unstored  = "unstored"
	transient = "transient"
)

// withoutField is what happens while the CRD has no field for the record.
func withoutField() []act[*sandboxSide] {
	return []act[*sandboxSide]{
		{
			name: "a record is written, which the CRD has no field for", wrong: true,
			play:    dropped,
			without: cells{"Failed", "DROPPED, 200 OK"}, with: cells{"Failed, not guarded", v1alpha1.ReasonProvenanceFieldMissing},
		},
	}
}

// withField is what happens when it has.
func withField() []act[*sandboxSide] {
	return []act[*sandboxSide]{
		{
			name:    "crd-patch.yaml is applied, and a Pod crashes",
			play:    crashed,
			without: cells{"Failed", "no record"}, with: cells{"Failed", "the Pod's UID"},
		},
		{
			name: "that very Pod is ready again", wrong: true,
			play:    readyAgain,
			without: cells{"FAILED for ever", "no record"}, with: cells{"Succeed, event Recovered", "record gone"},
		},
		{
			name: "an older release's PUT drops what a newer one recorded", wrong: true,
			play:    rolledBack,
			without: cells{"FAILED for ever", "record LOST"}, with: cells{"Succeed", "record kept, then gone"},
		},
		{
			name: "its Pod is replaced; a stale replica sees a ready Pod", wrong: true,
			play:    replaced,
			without: cells{"SUCCEED on another Pod", "200 OK"}, with: cells{"Failed", "403 and event PodReplaced"},
		},
		{
			name: "a resume failed; a stale replica sees a ready Pod", wrong: true,
			play:    resumedByStale,
			without: cells{"SUCCEED, no ResumeFailed", "200 OK"}, with: cells{"Failed, ResumeFailed", "403 and event Terminal"},
		},
		{
			name:    "the user resumes a failed sandbox, with a new Pod",
			play:    resumed,
			without: cells{"Succeed, no record", "200 OK"}, with: cells{"Succeed, no record", "200 OK"},
		},
	}
}

// dropped lets a newer release fail a sandbox, while the CRD is still that of an older
// one: the API server drops the record, and says that all is well.
func dropped(ctx context.Context, s *sandboxSide) (cells, error) {
	var why string
	if s.guarded {
		var err error
		if why, err = refusal(ctx, s.s); err != nil {
			return cells{}, err
		}
	}
	c, err := s.replica(ctx, opensandbox.New)
	if err != nil {
		return cells{}, err
	}
	if _, err := s.failed(ctx, c, unstored, 1); err != nil {
		return cells{}, err
	}
	b, err := s.live(ctx, unstored)
	switch {
	case err != nil:
		return cells{}, err
	case len(b.Status.FailedPodUIDs) > 0:
		return cells{b.Status.Phase, "recorded"}, nil
	case !s.guarded:
		return cells{b.Status.Phase, "DROPPED, 200 OK"}, nil
	}
	if err := unguarded(ctx, s.s); err != nil {
		return cells{}, err
	}
	return cells{b.Status.Phase + ", not guarded", why}, nil
}

// crashed lets an older release fail a sandbox whose Pod has crashed.
func crashed(ctx context.Context, s *sandboxSide) (cells, error) {
	c, err := s.replica(ctx, opensandbox.Old)
	if err != nil {
		return cells{}, err
	}
	pod, err := s.failed(ctx, c, transient, 1)
	if err != nil {
		return cells{}, err
	}
	b, err := s.live(ctx, transient)
	if err != nil {
		return cells{}, err
	}
	return cells{b.Status.Phase, recordOf(b, pod)}, nil
}

// readyAgain brings the same Pod back: its container was started again.
func readyAgain(ctx context.Context, s *sandboxSide) (cells, error) {
	c, err := s.replica(ctx, opensandbox.Old)
	if err != nil {
		return cells{}, err
	}
	pod, err := s.pod(ctx, transient)
	if err != nil {
		return cells{}, err
	}
	phase, err := s.comesBack(ctx, c, transient, pod)
	if err != nil {
		return cells{}, err
	}
	b, err := s.live(ctx, transient)
	if err != nil {
		return cells{}, err
	}
	out := cells{phase, recordOf(b, pod)}
	if s.guarded {
		note, err := s.event(ctx, transient, v1alpha1.ReasonRecovered, string(pod.UID))
		if err != nil {
			return out, err
		}
		if !strings.Contains(note, "is ready again") {
			return out, fmt.Errorf("the event says %q", note)
		}
		out[0] += ", event Recovered"
		out[1], err = s.gone(ctx, transient)
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

// rolledBack lets a newer release record a Pod and an older one, after a roll-back, PUT a
// status that it does not know the record of; then the newer one is back, and the Pod as
// well. The PUT is that of a user's wish to pause, which is refused for two replicas.
func rolledBack(ctx context.Context, s *sandboxSide) (cells, error) {
	const name = "rolled-back"
	newer, err := s.replica(ctx, opensandbox.New)
	if err != nil {
		return cells{}, err
	}
	older, err := s.replica(ctx, opensandbox.Old)
	if err != nil {
		return cells{}, err
	}
	pod, err := s.failed(ctx, newer, name, 2)
	if err != nil {
		return cells{}, err
	}
	b, err := s.live(ctx, name)
	if err != nil {
		return cells{}, err
	}
	if got := recordOf(b, pod); got != "the Pod's UID" {
		return cells{b.Status.Phase, got}, errors.New("the newer release has recorded nothing")
	}
	if err := s.wantPause(ctx, name, true); err != nil {
		return cells{}, err
	}
	if err := older.Pause(ctx, name); err != nil {
		return cells{}, err
	}
	if b, err = s.live(ctx, name); err != nil {
		return cells{}, err
	}
	record := "record kept"
	if recordOf(b, pod) != "the Pod's UID" {
		record = "record LOST"
	}
	phase, err := s.comesBack(ctx, newer, name, pod)
	if err != nil {
		return cells{}, err
	}
	if record == "record kept" {
		then, err := s.gone(ctx, name)
		if err != nil {
			return cells{}, err
		}
		record += ", then " + strings.TrimPrefix(then, "record ")
	}
	return cells{phase, record}, nil
}

// replaced lets a Pod that has failed be deleted, and the controller make another of the
// same name. A second replica of the controller, with a copy of the sandbox from before it
// had failed, finds a ready Pod, and patches without resourceVersion.
func replaced(ctx context.Context, s *sandboxSide) (cells, error) {
	const name = "replaced"
	c, err := s.replica(ctx, opensandbox.Old)
	if err != nil {
		return cells{}, err
	}
	stale, err := s.replica(ctx, opensandbox.Old)
	if err != nil {
		return cells{}, err
	}
	if err := s.begun(ctx, c, name, 1); err != nil {
		return cells{}, err
	}
	if err := stale.Freeze(ctx, name); err != nil {
		return cells{}, err
	}
	first, err := s.crash(ctx, c, name)
	if err != nil {
		return cells{}, err
	}
	second, err := s.anew(ctx, c, name, first)
	if err != nil {
		return cells{}, err
	}
	refused := stale.Reconcile(ctx, name)
	b, err := s.live(ctx, name)
	if err != nil {
		return cells{}, err
	}
	out := cells{b.Status.Phase}
	if b.Status.Phase == opensandbox.PhaseSucceed && second.Name == first.Name && second.UID != first.UID {
		out[0] = "SUCCEED on another Pod"
	}
	out[1], err = s.answer(ctx, name, refused)
	return out, err
}

// resumedByStale lets a Pod crash during a resume, and come back. A second replica of the
// controller, with a copy of the sandbox from when it was still resuming, patches it to
// Succeed, and takes the condition ResumeFailed off in the same write.
func resumedByStale(ctx context.Context, s *sandboxSide) (cells, error) {
	const name = "resume-failed"
	c, err := s.replica(ctx, opensandbox.Old)
	if err != nil {
		return cells{}, err
	}
	stale, err := s.replica(ctx, opensandbox.Old)
	if err != nil {
		return cells{}, err
	}
	if err := s.begun(ctx, c, name, 1); err != nil {
		return cells{}, err
	}
	if err := s.paused(ctx, c, name); err != nil {
		return cells{}, err
	}
	if err := s.wantPause(ctx, name, false); err != nil {
		return cells{}, err
	}
	if err := c.Resume(ctx, name); err != nil {
		return cells{}, err
	}
	if err := stale.Freeze(ctx, name); err != nil {
		return cells{}, err
	}
	if err := c.Scale(ctx, name); err != nil {
		return cells{}, err
	}
	pod, err := s.crash(ctx, c, name)
	if err != nil {
		return cells{}, err
	}
	if err := opensandbox.Ready(ctx, s.admin, pod); err != nil {
		return cells{}, err
	}
	refused := stale.Reconcile(ctx, name)
	b, err := s.live(ctx, name)
	if err != nil {
		return cells{}, err
	}
	out := cells{b.Status.Phase}
	switch {
	case has(b, opensandbox.ConditionResumeFailed):
		out[0] += ", " + opensandbox.ConditionResumeFailed
	case b.Status.Phase == opensandbox.PhaseSucceed:
		out[0] = "SUCCEED, no ResumeFailed"
	}
	out[1], err = s.answer(ctx, name, refused)
	return out, err
}

// resumed is a way out of Failed that needs no evidence, since it begins with a new Pod.
func resumed(ctx context.Context, s *sandboxSide) (cells, error) {
	const name = "resumed"
	c, err := s.replica(ctx, opensandbox.Old)
	if err != nil {
		return cells{}, err
	}
	pod, err := s.failed(ctx, c, name, 1)
	if err != nil {
		return cells{}, err
	}
	if err := s.wantPause(ctx, name, false); err != nil {
		return cells{}, err
	}
	refused := c.Resume(ctx, name)
	if refused == nil {
		if _, err := s.anew(ctx, c, name, pod); err != nil {
			return cells{}, err
		}
		refused = settle(ctx, c, name)
	}
	b, err := s.live(ctx, name)
	if err != nil {
		return cells{}, err
	}
	out := cells{b.Status.Phase}
	if len(b.Status.FailedPodUIDs) == 0 {
		out[0] += ", no record"
	}
	out[1], err = s.answer(ctx, name, refused)
	return out, err
}

// sandboxSide is OpenSandbox in one namespace.
type sandboxSide struct {
	s *stack.Stack
	// admin reads and writes as an administrator, who also plays the user and the kubelet.
	admin client.Client
	ns    string
	// guarded says that this is the namespace with belay.
	guarded bool
}

// replica is one process of the controller, under its own rights.
func (s *sandboxSide) replica(ctx context.Context, g opensandbox.Generation) (*opensandbox.Controller, error) {
	cfg, err := s.s.Config(ctx, s.ns, opensandbox.Account)
	if err != nil {
		return nil, err
	}
	c, err := opensandbox.NewClient(cfg, g, opensandbox.Names{}.GVK(opensandbox.Version))
	if err != nil {
		return nil, err
	}
	return &opensandbox.Controller{Client: c, Namespace: s.ns, Generation: g}, nil
}

// begun is a sandbox that the user has created and whose Pods do not run yet.
func (s *sandboxSide) begun(ctx context.Context, c *opensandbox.Controller, name string, replicas int32) error {
	// Its kind is served a moment after its CRD is stored.
	if err := until(ctx, time.Minute, "the sandbox is created", func(ctx context.Context) error {
		err := s.admin.Create(ctx, opensandbox.Sandbox(s.ns, name, replicas))
		if apierrors.IsAlreadyExists(err) {
			err = nil
		}
		return err
	}); err != nil {
		return err
	}
	if err := c.Scale(ctx, name); err != nil {
		return err
	}
	return settle(ctx, c, name)
}

// failed is a sandbox that ran until its first Pod crashed, which is the result.
func (s *sandboxSide) failed(ctx context.Context, c *opensandbox.Controller, name string, replicas int32) (*corev1.Pod, error) {
	if err := s.begun(ctx, c, name, replicas); err != nil {
		return nil, err
	}
	return s.crash(ctx, c, name)
}

// crash makes all Pods of a sandbox ready and lets the first one crash, unless it is
// Resuming, which ends with the first that is ready.
func (s *sandboxSide) crash(ctx context.Context, c *opensandbox.Controller, name string) (*corev1.Pod, error) {
	b, err := s.live(ctx, name)
	if err != nil {
		return nil, err
	}
	pod, err := s.pod(ctx, name)
	if err != nil {
		return nil, err
	}
	if b.Status.Phase != opensandbox.PhaseResuming {
		for i := range *b.Spec.Replicas {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: fmt.Sprintf("%s-%d", name, i)}}
			if err := opensandbox.Ready(ctx, s.admin, p); err != nil {
				return nil, err
			}
		}
		if err := s.settles(ctx, c, name, opensandbox.PhaseSucceed); err != nil {
			return nil, err
		}
	}
	if err := opensandbox.Crash(ctx, s.admin, pod, "CrashLoopBackOff"); err != nil {
		return nil, err
	}
	return pod, s.settles(ctx, c, name, opensandbox.PhaseFailed)
}

// paused is what the controller does to a running sandbox at the user's wish.
func (s *sandboxSide) paused(ctx context.Context, c *opensandbox.Controller, name string) error {
	pod, err := s.pod(ctx, name)
	if err != nil {
		return err
	}
	if err := opensandbox.Ready(ctx, s.admin, pod); err != nil {
		return err
	}
	if err := s.settles(ctx, c, name, opensandbox.PhaseSucceed); err != nil {
		return err
	}
	if err := s.wantPause(ctx, name, true); err != nil {
		return err
	}
	if err := c.Pause(ctx, name); err != nil {
		return err
	}
	return c.CompletePause(ctx, name)
}

// anew deletes a Pod, as a drain of its node does, has the controller make the next one,
// and makes that ready.
func (s *sandboxSide) anew(ctx context.Context, c *opensandbox.Controller, name string, old *corev1.Pod) (*corev1.Pod, error) {
	if err := s.admin.Delete(ctx, old); err != nil {
		return nil, fmt.Errorf("deleting pod %s: %w", old.Name, err)
	}
	if err := c.Scale(ctx, name); err != nil {
		return nil, err
	}
	pod, err := s.pod(ctx, name)
	if err != nil {
		return nil, err
	}
	return pod, opensandbox.Ready(ctx, s.admin, pod)
}

// comesBack makes a Pod ready, and says what becomes of its sandbox: "FAILED for ever" if
// it is Failed, and the controller has nothing more to write.
func (s *sandboxSide) comesBack(ctx context.Context, c *opensandbox.Controller, name string, pod *corev1.Pod) (string, error) {
	if err := opensandbox.Ready(ctx, s.admin, pod); err != nil {
		return "", err
	}
	if err := settle(ctx, c, name); err != nil {
		return "", err
	}
	if s.guarded {
		if err := s.becomes(ctx, name, opensandbox.PhaseSucceed); err != nil {
			return "", err
		}
		// The controller must find it as it would have made it.
		if err := settle(ctx, c, name); err != nil {
			return "", err
		}
	}
	b, err := s.live(ctx, name)
	if err != nil {
		return "", err
	}
	if b.Status.Phase == opensandbox.PhaseFailed {
		return "FAILED for ever", nil
	}
	return b.Status.Phase, nil
}

// wantPause is what a user does to pause a sandbox or to resume it.
func (s *sandboxSide) wantPause(ctx context.Context, name string, pause bool) error {
	b := &opensandbox.BatchSandbox{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: name}}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"pause":%t}}`, pause))
	if err := s.admin.Patch(ctx, b, patch); err != nil {
		return fmt.Errorf("setting spec.pause of %s: %w", name, err)
	}
	return nil
}

// settle reconciles until the controller has nothing to write.
func settle(ctx context.Context, c *opensandbox.Controller, name string) error {
	sent := func() int { return c.Patches + c.Updates + c.MainPatches }
	for range 10 {
		before := sent()
		if err := c.Reconcile(ctx, name); err != nil {
			return err
		}
		if sent() == before {
			return nil
		}
	}
	return fmt.Errorf("the controller does not come to rest over %s", name)
}

// settles is settle where it has to end in a phase.
func (s *sandboxSide) settles(ctx context.Context, c *opensandbox.Controller, name, phase string) error {
	if err := settle(ctx, c, name); err != nil {
		return err
	}
	b, err := s.live(ctx, name)
	if err == nil && b.Status.Phase != phase {
		err = fmt.Errorf("sandbox %s is %s, and not %s", name, b.Status.Phase, phase)
	}
	return err
}

// becomes waits until a sandbox is in a phase.
func (s *sandboxSide) becomes(ctx context.Context, name, phase string) error {
	return until(ctx, 30*time.Second, "sandbox "+name+" is "+phase, func(ctx context.Context) error {
		b, err := s.live(ctx, name)
		if err == nil && b.Status.Phase != phase {
			err = fmt.Errorf("it is %s, its record %v", b.Status.Phase, b.Status.FailedPodUIDs)
		}
		return err
	})
}

func (s *sandboxSide) live(ctx context.Context, name string) (*opensandbox.BatchSandbox, error) {
	b := &opensandbox.BatchSandbox{}
	return b, s.admin.Get(ctx, client.ObjectKey{Namespace: s.ns, Name: name}, b)
}

// pod is the first Pod of a sandbox.
func (s *sandboxSide) pod(ctx context.Context, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	return pod, s.admin.Get(ctx, client.ObjectKey{Namespace: s.ns, Name: name + "-0"}, pod)
}

// recordOf says what a sandbox has recorded, of which one Pod has failed.
func recordOf(b *opensandbox.BatchSandbox, pod *corev1.Pod) string {
	switch r := b.Status.FailedPodUIDs; {
	case len(r) == 0:
		return "no record"
	case len(r) == 1 && r[0] == string(pod.UID):
		return "the Pod's UID"
	default:
		return fmt.Sprintf("recorded %v", r)
	}
}

// gone says whether the record's field is away as it is stored, which its Go type does not
// tell.
func (s *sandboxSide) gone(ctx context.Context, name string) (string, error) {
	u, err := s.s.Dynamic.Resource(opensandbox.Names{}.GVR(opensandbox.Version)).Namespace(s.ns).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	v, found, err := unstructured.NestedFieldNoCopy(u.Object, "status", recordField)
	switch {
	case err != nil:
		return "", err
	case found && v != nil:
		return fmt.Sprintf("record %v", v), nil
	}
	return "record gone", nil
}

func has(b *opensandbox.BatchSandbox, condition string) bool {
	for _, c := range b.Status.Conditions {
		if c.Type == condition && c.Status == "True" {
			return true
		}
	}
	return false
}

// answer is what the API server said to the controller's write: that all is well, or
// belay's denial, for the reason of which there must be an event, too.
func (s *sandboxSide) answer(ctx context.Context, name string, err error) (string, error) {
	if err == nil {
		return "200 OK", nil
	}
	var st apierrors.APIStatus
	if !errors.As(err, &st) || st.Status().Details == nil || len(st.Status().Details.Causes) == 0 {
		return "", err
	}
	reason, ok := strings.CutPrefix(string(st.Status().Details.Causes[0].Type), "belay.dev/")
	if !ok {
		return "", err
	}
	if _, err := s.event(ctx, name, v1alpha1.ReasonNotRecoverable, reason); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d and event %s", st.Status().Code, reason), nil
}

// event waits for an event on a sandbox that has a word in its note, which is the result.
func (s *sandboxSide) event(ctx context.Context, name, reason, word string) (note string, err error) {
	err = until(ctx, 20*time.Second, fmt.Sprintf("there is an event %s with %s", reason, word), func(ctx context.Context) error {
		list, err := s.s.Kube.EventsV1().Events(s.ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var others []string
		for _, e := range list.Items {
			if e.Regarding.Name != name {
				continue
			}
			if e.Reason == reason && strings.Contains(e.Note, word) {
				note = e.Note
				return nil
			}
			others = append(others, e.Reason+": "+e.Note)
		}
		return fmt.Errorf("not among %q", others)
	})
	return note, err
}
