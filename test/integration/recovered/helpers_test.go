package recovered

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/stack"
)

// sandboxes is a namespace with a controller of a generation, under its own service
// account, that never tries again by itself: a test sees the very answers.
type sandboxes struct {
	*opensandbox.Controller
	t *testing.T
	s *stack.Stack
	// admin reads and writes as an administrator, in the same generation's types.
	admin client.Client
}

func newSandboxes(ctx context.Context, t *testing.T, s *stack.Stack, g opensandbox.Generation, mode string) *sandboxes {
	t.Helper()
	ns := s.TestNamespace(ctx, t, "recovered", mode)
	for _, o := range opensandbox.Grant(ns, opensandbox.Names{}) {
		if err := s.Client.Create(ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	cfg, err := s.Config(ctx, ns, opensandbox.Account)
	if err != nil {
		t.Fatal(err)
	}
	gvk := opensandbox.Names{}.GVK(opensandbox.Version)
	c, err := opensandbox.NewClient(cfg, g, gvk)
	if err != nil {
		t.Fatal(err)
	}
	admin, err := opensandbox.NewClient(s.Plane.Config(), opensandbox.New, gvk)
	if err != nil {
		t.Fatal(err)
	}
	return &sandboxes{Controller: &opensandbox.Controller{Client: c, Namespace: ns, Generation: g}, t: t, s: s, admin: admin}
}

// start creates a sandbox of so many replicas with ready Pods, and lets the controller see
// them: it is Succeed, OpenSandbox's word for running.
func (s *sandboxes) start(ctx context.Context, name string, replicas int32) []*corev1.Pod {
	s.t.Helper()
	b := opensandbox.Sandbox(s.Namespace, name, replicas)
	must(s.t, s.admin.Create(ctx, b))
	must(s.t, s.Scale(ctx, name))
	pods := s.pods(ctx, name)
	for _, p := range pods {
		must(s.t, opensandbox.Ready(ctx, s.admin, p))
	}
	must(s.t, s.Reconcile(ctx, name))
	s.wantPhase(ctx, name, opensandbox.PhaseSucceed)
	return pods
}

// pods are the Pods of a sandbox by name.
func (s *sandboxes) pods(ctx context.Context, name string) []*corev1.Pod {
	s.t.Helper()
	var list corev1.PodList
	must(s.t, s.admin.List(ctx, &list, client.InNamespace(s.Namespace), client.MatchingLabels{"batch-sandbox.sandbox.opensandbox.io/name": name}))
	var out []*corev1.Pod
	for i := range list.Items {
		out = append(out, &list.Items[i])
	}
	slices.SortFunc(out, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// get reads a sandbox as it is stored.
func (s *sandboxes) get(ctx context.Context, name string) *opensandbox.BatchSandbox {
	s.t.Helper()
	b := &opensandbox.BatchSandbox{}
	must(s.t, s.admin.Get(ctx, types.NamespacedName{Namespace: s.Namespace, Name: name}, b))
	return b
}

func (s *sandboxes) wantPhase(ctx context.Context, name string, phase string) {
	s.t.Helper()
	if got := s.get(ctx, name); got.Status.Phase != phase {
		s.t.Fatalf("phase %q, want %q; status %+v", got.Status.Phase, phase, got.Status)
	}
}

// recordOf is the record as it is stored: nil where the field is absent or null.
func (s *sandboxes) recordOf(ctx context.Context, name string) []string {
	s.t.Helper()
	return s.get(ctx, name).Status.FailedPodUIDs
}

// becomes waits until a sandbox is in a phase.
func (s *sandboxes) becomes(ctx context.Context, name string, phase string) {
	s.t.Helper()
	stack.Eventually(ctx, s.t, "phase "+phase, func() error {
		if got := s.get(ctx, name); got.Status.Phase != phase {
			return fmt.Errorf("phase %q, record %v", got.Status.Phase, got.Status.FailedPodUIDs)
		}
		return nil
	})
}

// event waits for an event on a sandbox, and returns its note.
func (s *sandboxes) event(ctx context.Context, name, reason string) string {
	s.t.Helper()
	note := ""
	stack.Eventually(ctx, s.t, "event "+reason, func() error {
		var list eventsv1.EventList
		if err := s.admin.List(ctx, &list, client.InNamespace(s.Namespace)); err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Regarding.Name == name && e.Regarding.Kind == "BatchSandbox" && e.Reason == reason {
				note = e.Note
				return nil
			}
		}
		return fmt.Errorf("none among %d events", len(list.Items))
	})
	return note
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// denied is the Status of a denial by belay; the test fails for anything else.
func denied(t *testing.T, err error, code int32, words ...string) {
	t.Helper()
	var status apierrors.APIStatus
	if err == nil {
		t.Fatalf("it was let in")
	}
	if !asStatus(err, &status) || status.Status().Code != code {
		t.Fatalf("%v; want code %d", err, code)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%v; want %q in it", err, w)
		}
	}
}

func asStatus(err error, status *apierrors.APIStatus) bool { return errors.As(err, status) }

func uids(pods ...*corev1.Pod) []string {
	var out []string
	for _, p := range pods {
		out = append(out, string(p.UID))
	}
	return out
}

// statusOf is a status of an object as the API server stores it.
func statusOf(u *unstructured.Unstructured) map[string]any {
	m, _, _ := unstructured.NestedMap(u.Object, "status")
	return m
}
