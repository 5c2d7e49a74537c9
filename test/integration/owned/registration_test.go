package owned

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/otf"
	"github.com/belay-dev/belay/test/integration/plane"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// TestRegistration is everything that changes the registrations themselves, on a
// stack of its own. Its parts follow one another; the last takes belay away.
func TestRegistration(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	s, err := stack.Start(ctx, stack.Options{Plane: plane.Options{}, Presets: []string{"otf"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := s.WaitPolicy(ctx, "otf"); err != nil {
		t.Fatal(err)
	}
	for _, part := range []struct {
		name string
		run  func(*testing.T, *stack.Stack)
	}{
		{"what is registered", whatIsRegistered},
		{"P01 the system's and belay's own namespaces are left alone whatever their labels", excludedNamespaces},
		{"P02 a namespace that did not opt in costs no call, and works while belay is away", notOptedIn},
		{"drift is repaired", driftIsRepaired},
		{"P05 another writer's selectors and CA are kept", otherWriters},
		{"P05 a writer who undoes a repair is not fought", noFight},
		{"P13 all listeners are reached over IPv6", overIPv6},
		{"P03 without belay's namespace nothing is in the way", uninstalled},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(t, s) })
		if t.Failed() {
			return
		}
	}
}

func mutatingConfig(ctx context.Context, t *testing.T, s *stack.Stack) *admissionregistrationv1.MutatingWebhookConfiguration {
	t.Helper()
	var c admissionregistrationv1.MutatingWebhookConfiguration
	if err := s.Client.Get(ctx, client.ObjectKey{Name: "belay"}, &c); err != nil {
		t.Fatal(err)
	}
	return &c
}

func whatIsRegistered(t *testing.T, s *stack.Stack) {
	ctx := testContext(t)
	c := mutatingConfig(ctx, t, s)
	var names []string
	for _, w := range c.Webhooks {
		names = append(names, w.Name)
		for _, r := range w.Rules {
			if len(r.Operations) != 1 || r.Operations[0] != admissionregistrationv1.Create {
				t.Errorf("%s: operations %v; P03 allows no DELETE, and nothing but CREATE is ever changed", w.Name, r.Operations)
			}
		}
		reinvocation := admissionregistrationv1.IfNeededReinvocationPolicy
		if strings.HasSuffix(w.Name, v1alpha1.NameEntryDomain) {
			reinvocation = admissionregistrationv1.NeverReinvocationPolicy // a second call would take the work from a changed object
		}
		if *w.TimeoutSeconds > 5 || *w.SideEffects != admissionregistrationv1.SideEffectClassNoneOnDryRun || *w.MatchPolicy != admissionregistrationv1.Equivalent || *w.ReinvocationPolicy != reinvocation {
			t.Errorf("%s: %+v", w.Name, w)
		}
		if !slices.Equal(w.AdmissionReviewVersions, []string{"v1"}) {
			t.Errorf("P10: %s lists %v", w.Name, w.AdmissionReviewVersions)
		}
		for _, m := range w.MatchConditions {
			if strings.Contains(m.Expression, "namespaceObject") {
				t.Errorf("P19: %s uses namespaceObject", w.Name)
			}
		}
	}
	if !slices.Equal(names, []string{"otf.owner.belay.dev", "annotation.belay.dev", "otf.name.belay.dev", "sidecar.annotation.belay.dev"}) {
		t.Errorf("entries %v", names)
	}
	if len(c.OwnerReferences) != 1 || c.OwnerReferences[0].Kind != "Namespace" || c.OwnerReferences[0].Name != stack.Namespace {
		t.Errorf("owned by %+v", c.OwnerReferences)
	}
	// Owners are checked in the validating phase for policies that deny, and only for them.
	checked := func() []string {
		var v admissionregistrationv1.ValidatingWebhookConfiguration
		if err := s.Client.Get(ctx, client.ObjectKey{Name: "belay"}, &v); err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, w := range v.Webhooks {
			_, path, _ := strings.Cut(*w.ClientConfig.URL, "/validate/")
			out = append(out, path)
		}
		return out
	}
	if got := checked(); !slices.Equal(got, []string{"name/otf", "sidecar"}) {
		t.Errorf("checked without need: %v", got)
	}
	policy(ctx, t, s, "denies", func(p *v1alpha1.OwnerPolicySpec) { p.WhenUnresolved = v1alpha1.UnresolvedDeny })
	if got := checked(); !slices.Equal(got, []string{"owner/denies", "name/otf", "sidecar"}) {
		t.Errorf("checked %v", got)
	}
}

func excludedNamespaces(t *testing.T, s *stack.Stack) {
	ctx := testContext(t)
	label := []byte(`{"metadata":{"labels":{"belay.dev/mode":"enforce"}}}`)
	names := []string{stack.Namespace, "kube-system", "kube-public"}
	if _, err := s.Kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-somebody"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, ns := range append(names, "kube-somebody") {
		if _, err := s.Kube.CoreV1().Namespaces().Patch(ctx, ns, types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		before := total(t, s)
		sec := create(ctx, t, s.Kube, otf.Secret(ns, "labelled-by-mistake", "job-1", "s3cret"))
		if len(sec.OwnerReferences) > 0 {
			t.Errorf("%s: owned by %+v", ns, sec.OwnerReferences)
		}
		if after := total(t, s); after != before {
			t.Errorf("%s: belay was called", ns)
		}
		if _, err := s.Kube.CoreV1().Namespaces().Patch(ctx, ns, types.MergePatchType, []byte(`{"metadata":{"labels":{"belay.dev/mode":null}}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// total counts all decisions.
func total(t *testing.T, s *stack.Stack) float64 { return decisions(t, s, "") }

func notOptedIn(t *testing.T, s *stack.Stack) {
	ctx := testContext(t)
	plain := namespace(ctx, t, s, "")
	opted := namespace(ctx, t, s, v1alpha1.ModeEnforce)
	before := total(t, s)
	create(ctx, t, s.Kube, otf.Secret(plain, "run-1", "job-1", "s3cret"))
	// Nor does an object that no policy names, in a namespace that did.
	create(ctx, t, s.Kube, secret(opted, "other", nil))
	other := otf.Job(opted, "run-1", "job-1")
	other.Labels, other.Spec.Template.Labels = nil, nil // the API server takes those of the template for its own
	if _, err := s.Kube.BatchV1().Jobs(opted).Create(ctx, other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if after := total(t, s); after != before {
		t.Errorf("belay was called %v times", after-before)
	}
	s.Detach()
	defer s.Attach()
	policyLabels := map[string]string{"test": "denies"}
	create(ctx, t, s.Kube, secret(plain, "while-away", policyLabels))
	create(ctx, t, s.Kube, secret(opted, "while-away", nil))
}

func driftIsRepaired(t *testing.T, s *stack.Stack) {
	ctx := testContext(t)
	want := mutatingConfig(ctx, t, s)
	drifted := want.DeepCopy()
	ten := int32(10)
	fail := admissionregistrationv1.Fail
	for i := range drifted.Webhooks {
		drifted.Webhooks[i].TimeoutSeconds, drifted.Webhooks[i].FailurePolicy = &ten, &fail
		drifted.Webhooks[i].NamespaceSelector = &metav1.LabelSelector{}
		drifted.Webhooks[i].ClientConfig.CABundle = nil
	}
	drifted.Webhooks = drifted.Webhooks[:1]
	if err := s.Client.Update(ctx, drifted); err != nil {
		t.Fatal(err)
	}
	repaired(ctx, t, s, want)
	if err := s.Client.Delete(ctx, drifted); err != nil {
		t.Fatal(err)
	}
	repaired(ctx, t, s, want)
}

func repaired(ctx context.Context, t *testing.T, s *stack.Stack, want *admissionregistrationv1.MutatingWebhookConfiguration) {
	t.Helper()
	eventually(ctx, t, "the registration is as it was", func() error {
		var c admissionregistrationv1.MutatingWebhookConfiguration
		if err := s.Client.Get(ctx, client.ObjectKey{Name: "belay"}, &c); err != nil {
			return err
		}
		if !equality.Semantic.DeepEqual(c.Webhooks, want.Webhooks) {
			return errors.New("it differs")
		}
		return nil
	})
}

func otherWriters(t *testing.T, s *stack.Stack) {
	ctx := testContext(t)
	restart(ctx, t, s) // belay's memory of earlier repairs is of no interest here
	c := mutatingConfig(ctx, t, s)
	foreign := metav1.LabelSelectorRequirement{Key: "control-plane", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"true"}}
	for i := range c.Webhooks {
		c.Webhooks[i].NamespaceSelector.MatchExpressions = append(c.Webhooks[i].NamespaceSelector.MatchExpressions, foreign)
	}
	if err := s.Client.Update(ctx, c); err != nil {
		t.Fatal(err)
	}
	// A change of the policy's own selector: its old expression goes, the other
	// writer's stays.
	var p v1alpha1.OwnerPolicy
	for _, selector := range []*metav1.LabelSelector{{MatchLabels: map[string]string{"team": "a"}}, {MatchLabels: map[string]string{"tier": "b"}}, nil} {
		eventually(ctx, t, "the policy is changed", func() error {
			if err := s.Client.Get(ctx, client.ObjectKey{Name: "otf"}, &p); err != nil {
				return err
			}
			p.Spec.NamespaceSelector = selector
			return s.Client.Update(ctx, &p)
		})
		if err := s.WaitPolicy(ctx, "otf"); err != nil {
			t.Fatal(err)
		}
		got := mutatingConfig(ctx, t, s).Webhooks[0].NamespaceSelector
		var labels map[string]string
		if selector != nil {
			labels = selector.MatchLabels
		}
		if !equality.Semantic.DeepEqual(got.MatchLabels, labels) || len(got.MatchExpressions) != 3 || got.MatchExpressions[2].Key != "control-plane" {
			t.Fatalf("with %v: %+v", selector, got)
		}
	}
}

// noFight: a writer changes what is belay's own, again after each repair, for 20
// seconds of the minute that the rule is about. belay writes less than three times.
func noFight(t *testing.T, s *stack.Stack) {
	ctx := testContext(t)
	restart(ctx, t, s)
	fight, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	belays, mine := 0, 0
	for fight.Err() == nil {
		c := mutatingConfig(ctx, t, s)
		if *c.Webhooks[0].TimeoutSeconds == 3 {
			belays++
			ten := int32(10)
			c.Webhooks[0].TimeoutSeconds = &ten
			if err := s.Client.Update(ctx, c); err != nil && !apierrors.IsConflict(err) {
				t.Fatal(err)
			}
			mine++
		}
		select {
		case <-fight.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	// The first time belay had not written yet.
	if belays-1 >= 3 {
		t.Errorf("belay wrote %d times against %d changes in 20 s", belays-1, mine)
	}
	restart(ctx, t, s)
	eventually(ctx, t, "it is repaired when the fight is over", func() error {
		if *mutatingConfig(ctx, t, s).Webhooks[0].TimeoutSeconds != 3 {
			return errors.New("not yet")
		}
		return nil
	})
}

// restart restarts the controller.
func restart(ctx context.Context, t *testing.T, s *stack.Stack) {
	t.Helper()
	all := s.Controllers()
	if err := all[len(all)-1].Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.StartController(ctx); err != nil {
		t.Fatal(err)
	}
}

// overIPv6 runs belay-webhook in a network namespace without IPv4, and
// reaches each of its listeners there. The API server is brought in through a
// Unix socket, which network namespaces share: see inIPv6Only.
func overIPv6(t *testing.T, s *stack.Stack) {
	if out, err := exec.Command("unshare", "--net", "ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Skipf("no network namespace can be made here (it takes root and iproute2): %v %s", err, out)
	}
	ctx := testContext(t)
	socket := filepath.Join(t.TempDir(), "api")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go forward(l, "tcp", strings.TrimPrefix(s.Plane.Server(), "https://"))

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, "unshare", "--net", "--kill-child", self)
	cmd.Env = append(os.Environ(), inIPv6OnlyEnv+"="+socket, "BELAY_TEST_BINARY="+s.Webhooks()[0].Binary(), "BELAY_TEST_KUBECONFIG="+filepath.Join(s.Dir, "belay-webhook.kubeconfig"))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "all listeners reached") {
		t.Errorf("%v: %s", err, out)
	}
}

// uninstalled: belay's namespace is deleted first. Its registrations go with it,
// and an opted-in namespace can be deleted.
func uninstalled(t *testing.T, s *stack.Stack) {
	ctx := testContext(t)
	labels := policy(ctx, t, s, "strict", func(p *v1alpha1.OwnerPolicySpec) {
		p.FailurePolicy, p.WhenUnresolved = v1alpha1.FailureFail, v1alpha1.UnresolvedDeny
	})
	ns := namespace(ctx, t, s, v1alpha1.ModeEnforce)
	create(ctx, t, s.Kube, secret(ns, "guarded", labels))
	for _, p := range append(s.Controllers(), s.Webhooks()...) {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}
	if err := s.Kube.CoreV1().Namespaces().Delete(ctx, stack.Namespace, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the registrations are gone", func() error {
		for _, c := range []client.Object{&admissionregistrationv1.MutatingWebhookConfiguration{}, &admissionregistrationv1.ValidatingWebhookConfiguration{}} {
			if err := mustBeNotFound(s.Client.Get(ctx, client.ObjectKey{Name: "belay"}, c)); err != nil {
				return err
			}
		}
		return nil
	})
	if _, err := s.Kube.CoreV1().Secrets(ns).Create(ctx, secret(ns, "after", labels), metav1.CreateOptions{}); err != nil {
		t.Errorf("a create afterwards: %v", err)
	}
	if err := s.Kube.CoreV1().Namespaces().Delete(ctx, ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the opted-in namespace is gone", func() error {
		_, err := s.Kube.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{})
		return mustBeNotFound(err)
	})
}
