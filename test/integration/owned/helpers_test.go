package owned

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/otf"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

const bound = stack.Bound

func testContext(t *testing.T) context.Context { t.Helper(); return stack.TestContext(t) }

func eventually(ctx context.Context, t *testing.T, what string, check func() error) {
	t.Helper()
	stack.Eventually(ctx, t, what, check)
}

// warnings collects the warnings that a client gets.
type warnings struct {
	mu  sync.Mutex
	all []string
}

func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, text)
}

func (w *warnings) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.all
	w.all = nil
	return out
}

// must expects exactly one warning, which holds all the parts.
func (w *warnings) must(t *testing.T, parts ...string) {
	t.Helper()
	all := w.take()
	for _, p := range parts {
		if !strings.Contains(strings.Join(all, "\n"), p) {
			t.Errorf("warnings %q do not say %q", all, p)
		}
	}
}

// warned is an administrator's client, and the warnings that it gets.
func warned(t *testing.T, s *stack.Stack) (kubernetes.Interface, *warnings) {
	t.Helper()
	return clientFor(t, s.Plane.Config())
}

func clientFor(t *testing.T, cfg *rest.Config) (kubernetes.Interface, *warnings) {
	t.Helper()
	w := &warnings{}
	cfg.WarningHandler = w
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c, w
}

func namespace(ctx context.Context, t *testing.T, s *stack.Stack, mode string) string {
	t.Helper()
	return s.TestNamespace(ctx, t, "owned", mode)
}

// executor is OTF under its own service account, with the Role of its chart.
func executor(ctx context.Context, t *testing.T, s *stack.Stack, ns string) otf.Executor {
	t.Helper()
	if err := otf.Grant(ctx, s.Kube, ns); err != nil {
		t.Fatal(err)
	}
	cfg, err := s.Config(ctx, ns, otf.Account)
	if err != nil {
		t.Fatal(err)
	}
	c, _ := clientFor(t, cfg)
	return otf.Executor{Client: c, Namespace: ns}
}

// policy registers an OwnerPolicy that is the test's own: it acts on objects with
// the label test=NAME only.
func policy(ctx context.Context, t *testing.T, s *stack.Stack, name string, change func(*v1alpha1.OwnerPolicySpec)) map[string]string {
	t.Helper()
	p := newPolicy(name, change)
	if err := s.Client.Create(ctx, p); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		defer cancel()
		_ = s.Client.Delete(ctx, p)
	})
	if err := s.WaitPolicy(ctx, name); err != nil {
		t.Fatal(err)
	}
	return map[string]string{"test": name}
}

func newPolicy(name string, change func(*v1alpha1.OwnerPolicySpec)) *v1alpha1.OwnerPolicy {
	p := &v1alpha1.OwnerPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.OwnerPolicySpec{
			Dependents: []v1alpha1.Kind{{APIVersion: "v1", Kind: "Secret"}},
			Selector:   &metav1.LabelSelector{MatchLabels: map[string]string{"test": name}},
			Owner:      v1alpha1.OwnerTarget{APIVersion: "batch/v1", Kind: "Job", Name: "object.metadata.name"},
		},
	}
	if change != nil {
		change(&p.Spec)
	}
	return p
}

func deadline(d time.Duration) func(*v1alpha1.OwnerPolicySpec) {
	return func(s *v1alpha1.OwnerPolicySpec) { s.Deadline = metav1.Duration{Duration: d} }
}

func secret(ns, name string, labels map[string]string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: labels}, StringData: map[string]string{"token": "x"}}
}

func create(ctx context.Context, t *testing.T, c kubernetes.Interface, s *corev1.Secret) *corev1.Secret {
	t.Helper()
	out, err := c.CoreV1().Secrets(s.Namespace).Create(ctx, s, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// job creates a Job that stays unfinished.
func job(ctx context.Context, t *testing.T, c kubernetes.Interface, ns, name string) *batchv1.Job {
	t.Helper()
	out, err := c.BatchV1().Jobs(ns).Create(ctx, otf.Job(ns, name, "job-1"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// anchorOf is the Anchor that owns an object, and fails where that is not so.
func anchorOf(ctx context.Context, t *testing.T, s *stack.Stack, o metav1.Object) *v1alpha1.Anchor {
	t.Helper()
	refs := o.GetOwnerReferences()
	if len(refs) != 1 || refs[0].Kind != "Anchor" || refs[0].APIVersion != "belay.dev/v1alpha1" {
		t.Fatalf("%s is owned by %+v, not by one anchor", o.GetName(), refs)
	}
	if refs[0].BlockOwnerDeletion != nil || refs[0].Controller != nil {
		t.Errorf("flags are set: %+v", refs[0])
	}
	var a v1alpha1.Anchor
	if err := s.Client.Get(ctx, client.ObjectKey{Namespace: o.GetNamespace(), Name: refs[0].Name}, &a); err != nil {
		t.Fatal(err)
	}
	if a.UID != refs[0].UID {
		t.Fatalf("the anchor has uid %s, the reference %s", a.UID, refs[0].UID)
	}
	return &a
}

// waitBound waits until an Anchor is owned by exactly this UID.
func waitBound(ctx context.Context, t *testing.T, s *stack.Stack, a *v1alpha1.Anchor, uid types.UID) {
	t.Helper()
	eventually(ctx, t, "the anchor is bound", func() error {
		if err := s.Client.Get(ctx, client.ObjectKeyFromObject(a), a); err != nil {
			return err
		}
		if len(a.OwnerReferences) != 1 || a.OwnerReferences[0].UID != uid || a.Spec.BoundUID != string(uid) {
			return fmt.Errorf("owned by %+v, bound to %q", a.OwnerReferences, a.Spec.BoundUID)
		}
		if !condition(a, metav1.ConditionTrue, v1alpha1.ReasonBound) {
			return fmt.Errorf("conditions %+v", a.Status.Conditions)
		}
		return nil
	})
}

func condition(a *v1alpha1.Anchor, status metav1.ConditionStatus, reason string) bool {
	for _, c := range a.Status.Conditions {
		if c.Type == v1alpha1.ConditionBound && c.Status == status && c.Reason == reason {
			return true
		}
	}
	return false
}

// waitGone waits until a Secret and its Anchor are gone.
func waitGone(ctx context.Context, t *testing.T, s *stack.Stack, secret *corev1.Secret, a *v1alpha1.Anchor) {
	t.Helper()
	eventually(ctx, t, "the secret is gone", func() error {
		_, err := s.Kube.CoreV1().Secrets(secret.Namespace).Get(ctx, secret.Name, metav1.GetOptions{})
		return mustBeNotFound(err)
	})
	if a == nil {
		return
	}
	eventually(ctx, t, "the anchor is gone", func() error {
		return mustBeNotFound(s.Client.Get(ctx, client.ObjectKeyFromObject(a), &v1alpha1.Anchor{}))
	})
}

func mustBeNotFound(err error) error { return stack.MustBeNotFound(err) }

// events are the reasons of the events about an object, with their notes.
func events(ctx context.Context, s *stack.Stack, ns string, uid types.UID) (map[string]string, error) {
	var list eventsv1.EventList
	if err := s.Client.List(ctx, &list, client.InNamespace(ns)); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, e := range list.Items {
		if e.Regarding.UID == uid {
			out[e.Reason] = e.Note
		}
	}
	return out, nil
}

func waitEvent(ctx context.Context, t *testing.T, s *stack.Stack, ns string, uid types.UID, reason string) {
	t.Helper()
	eventually(ctx, t, "event "+reason, func() error {
		all, err := events(ctx, s, ns, uid)
		if err == nil && all[reason] == "" {
			err = fmt.Errorf("events are %v", all)
		}
		return err
	})
}

// unnamed is a Secret that the API server names.
func unnamed(ns string, labels map[string]string) *corev1.Secret {
	s := secret(ns, "", labels)
	s.GenerateName = "s-"
	return s
}

// decisions adds up the decisions with a reason, or all, over the webhooks that run.
func decisions(t *testing.T, s *stack.Stack, reason string) float64 {
	t.Helper()
	sum := 0.0
	for _, p := range s.Webhooks() {
		select {
		case <-p.Done():
			continue
		default:
		}
		text, err := p.Metrics(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "belay_admission_decisions_total{") && (reason == "" || strings.Contains(line, `reason="`+reason+`"`)) {
				v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
				if err != nil {
					t.Fatal(err)
				}
				sum += v
			}
		}
	}
	return sum
}

func storageClass(name string) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "example.com/none"}
}

// suspended is a Job that gets no Pods.
func suspended(ns, name string) *batchv1.Job {
	j := otf.Job(ns, name, "job-1")
	yes := true
	j.Spec.Suspend = &yes
	return j
}
