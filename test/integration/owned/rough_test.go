package owned

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/otf"
	"github.com/belay-dev/belay/test/integration/plane"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// TestRough is everything that stops processes, breaks the network or restarts
// servers: on a stack of its own, with OwnerReferencesPermissionEnforcement, one
// shared identity for all controllers, two webhooks and two controllers. Its parts
// follow one another.
func TestRough(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	s, err := stack.Start(ctx, stack.Options{
		Plane:    plane.Options{EnforceOwnerReferences: true, SharedControllerIdentity: true},
		Webhooks: 2, Controllers: 2, Presets: []string{"otf"}, FaultyWebhook: true, FaultyController: true,
		// As it comes: an API server is away for longer than the stack's short leases allow, and no
		// process is to end by that.
		ControllerFlags: []string{"--leader-elect-lease-duration=15s", "--leader-elect-renew-deadline=10s", "--leader-elect-retry-period=2s"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		if t.Failed() {
			for _, p := range append(s.Controllers(), s.Webhooks()...) {
				t.Logf("%s:\n%s", p.Name, p.Tail(40))
			}
		}
	})
	if err := s.WaitPolicy(ctx, "otf"); err != nil {
		t.Fatal(err)
	}
	for _, part := range []struct {
		name string
		run  func(*testing.T, *stack.Stack)
	}{
		{"the guard lets a shared controller identity through", guardLetsThrough},
		{"O14 permission enforcement refuses OTF's third call, and belay collects all the same", enforced},
		{"belay is down while the job appears", downWhileTheJobAppears},
		{"the leader dies and the other controller binds", leaderDies},
		{"one of two webhooks dies", webhookDies},
		{"owner look-ups time out", lookupsTimeOut},
		{"owner look-ups end with a 500 of etcd", lookupsFail},
		{"the anchor's create is lost after it was stored", anchorAnswerLost},
		{"with Deny a failed look-up is refused for a retry", denied},
		{"O13 the owner goes away while its anchor is bound", ownerGoesWhileBinding},
		{"O14 a refused binding becomes an event and a back-off", bindingRefused},
		{"P06 before its caches are synced belay answers from live reads", answersBeforeSync},
		{"a deleted policy with failurePolicy Fail is in nobody's way, though the controller is away", deletedWhileAway},
		{"the owner comes in another version than the policy names", ownerInAnotherVersion},
		{"the API server restarts in the middle", serverRestarts},
		{"etcd stands still for a moment", etcdPauses},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(t, s) })
		if t.Failed() {
			return // the next part would only fail of this one
		}
	}
}

// enforced: with the plug-in OTF's own PUT is refused, whatever belay does, since
// OTF's Role has no delete on Secrets. The Secret has its owner all the same.
func enforced(t *testing.T, s *stack.Stack) {
	ctx := testContext(t)
	ns := namespace(ctx, t, s, v1alpha1.ModeEnforce)
	r, err := executor(ctx, t, s, ns).Spawn(ctx, "job-1", "s3cret")
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "cannot set an ownerRef on a resource you can't delete") {
		t.Fatalf("the third call: %v", err)
	}
	a := anchorOf(ctx, t, s, r.Secret)
	waitBound(ctx, t, s, a, r.Job.UID)
	background := metav1.DeletePropagationBackground
	if err := s.Kube.BatchV1().Jobs(ns).Delete(ctx, r.Name, metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		t.Fatal(err)
	}
	waitGone(ctx, t, s, r.Secret, a)

	// A reference straight to the owner passes the plug-in as well.
	j := job(ctx, t, s.Kube, ns, "run-2")
	cfg, err := s.Config(ctx, ns, otf.Account)
	if err != nil {
		t.Fatal(err)
	}
	c, _ := clientFor(t, cfg)
	direct := create(ctx, t, c, otf.Secret(ns, "run-2", "job-2", "s3cret"))
	if len(direct.OwnerReferences) != 1 || direct.OwnerReferences[0].UID != j.UID {
		t.Errorf("owned by %+v", direct.OwnerReferences)
	}
}

// downWhileTheJobAppears: the Secret was anchored, then all of belay went away, the
// Job came, and belay came back.
func downWhileTheJobAppears(t *testing.T, s *stack.Stack) {
	ctx := testContext(t)
	ns := namespace(ctx, t, s, v1alpha1.ModeEnforce)
	sec := create(ctx, t, s.Kube, otf.Secret(ns, "run-1", "job-1", "s3cret"))
	a := anchorOf(ctx, t, s, sec)
	for _, p := range s.Controllers() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}
	s.Detach()
	j := job(ctx, t, s.Kube, ns, "run-1")

	// With failurePolicy Ignore a Secret is created without belay; it has no owner,
	// and nothing fails.
	kube, _ := warned(t, s)
	bare := create(ctx, t, kube, otf.Secret(ns, "run-2", "job-2", "s3cret"))
	if len(bare.OwnerReferences) > 0 {
		t.Errorf("owned by %+v while belay is away", bare.OwnerReferences)
	}
	s.Attach()
	for range 2 {
		if _, err := s.StartController(ctx); err != nil {
			t.Fatal(err)
		}
	}
	waitBound(ctx, t, s, a, j.UID)
}

// leaderDies: kill -9, no time to hand the lease over.
func leaderDies(t *testing.T, s *stack.Stack) {
	ctx := testContext(t)
	ns := namespace(ctx, t, s, v1alpha1.ModeEnforce)
	sec := create(ctx, t, s.Kube, otf.Secret(ns, "run-1", "job-1", "s3cret"))
	a := anchorOf(ctx, t, s, sec)
	all := s.Controllers()
	leader, other := all[len(all)-2], all[len(all)-1]
	if !strings.Contains(leader.Tail(1000), "Starting workers") {
		leader, other = other, leader
	}
	leader.Kill()
	j := job(ctx, t, s.Kube, ns, "run-1")
	waitBound(ctx, t, s, a, j.UID)
	if !strings.Contains(other.Tail(1000), "Starting workers") {
		t.Error("the other controller did not take over")
	}
	if _, err := s.StartController(ctx); err != nil {
		t.Fatal(err)
	}
}

// webhookDies: while Secrets are created all the time, one of two webhooks is
// killed. No create fails; what falls into the gap is admitted without belay.
func webhookDies(t *testing.T, s *stack.Stack) {
	ctx := testContext(t)
	ns := namespace(ctx, t, s, v1alpha1.ModeEnforce)
	dying := s.Webhooks()[0]
	owned := 0
	for i := range 60 {
		if i == 20 {
			dying.Kill()
			s.Attach()
		}
		sec, err := s.Kube.CoreV1().Secrets(ns).Create(ctx, otf.Secret(ns, fmt.Sprintf("run-%d", i), "job-1", "s3cret"), metav1.CreateOptions{})
		if err != nil {
			t.Fatalf("create %d: %v", i, err)
		}
		owned += len(sec.OwnerReferences)
	}
	if owned < 55 {
		t.Errorf("%d of 60 secrets are owned", owned)
	}
	if _, err := s.StartWebhook(ctx); err != nil {
		t.Fatal(err)
	}
}

// ownerLookups are the webhook's own GETs of Jobs.
func ownerLookups(f stack.Fault) func(*http.Request) *stack.Fault {
	return func(r *http.Request) *stack.Fault {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/jobs/") {
			return &f
		}
		return nil
	}
}

func lookupsTimeOut(t *testing.T, s *stack.Stack) {
	ctx := testContext(t)
	ns := namespace(ctx, t, s, v1alpha1.ModeEnforce)
	kube, w := warned(t, s)
	s.WebhookFaults.Set(ownerLookups(stack.Fault{Delay: time.Minute}))
	defer s.WebhookFaults.Set(nil)
	before := decisions(t, s, "OwnerLookupFailed")
	start := time.Now()
	sec := create(ctx, t, kube, otf.Secret(ns, "run-1", "job-1", "s3cret"))
	// In time: the API server would have given up after timeoutSeconds, 3, and
	// admitted the Secret without a word. The warning shows that belay answered.
	if len(sec.OwnerReferences) > 0 {
		t.Errorf("owned by %+v", sec.OwnerReferences)
	}
	w.must(t, "created without an owner reference", "did not answer in time")
	t.Logf("admitted after %s, %d requests held", time.Since(start), s.WebhookFaults.Seen())
	if got := decisions(t, s, "OwnerLookupFailed"); got != before+1 {
		t.Errorf("the metric went from %v to %v", before, got)
	}
}

// etcd500 is what kube-apiserver answers when etcd times out.
const etcd500 = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"etcdserver: request timed out","code":500}`

func lookupsFail(t *testing.T, s *stack.Stack) {
	ctx := testContext(t)
	ns := namespace(ctx, t, s, v1alpha1.ModeEnforce)
	kube, w := warned(t, s)
	j := job(ctx, t, s.Kube, ns, "run-1")

	// Once: the second try finds the owner.
	once := ownerLookups(stack.Fault{Status: 500, Body: etcd500})
	s.WebhookFaults.Set(func(r *http.Request) *stack.Fault {
		f := once(r)
		if f != nil {
			once = func(*http.Request) *stack.Fault { return nil }
		}
		return f
	})
	defer s.WebhookFaults.Set(nil)
	sec := create(ctx, t, kube, otf.Secret(ns, "run-1", "job-1", "s3cret"))
	if len(sec.OwnerReferences) != 1 || sec.OwnerReferences[0].UID != j.UID {
		t.Errorf("after one error: owned by %+v", sec.OwnerReferences)
	}
	if all := w.take(); len(all) > 0 {
		t.Errorf("after one error: warnings %q", all)
	}

	// Always: admitted, with a warning.
	s.WebhookFaults.Set(ownerLookups(stack.Fault{Status: 500, Body: etcd500}))
	sec = create(ctx, t, kube, otf.Secret(ns, "run-2", "job-2", "s3cret"))
	if len(sec.OwnerReferences) > 0 {
		t.Errorf("owned by %+v", sec.OwnerReferences)
	}
	w.must(t, "created without an owner reference", "the API server had an error")
}

// anchorAnswerLost: the Anchor is stored, but the answer never arrives. The retry
// finds it; there is one Anchor, and it is the Secret's.
func anchorAnswerLost(t *testing.T, s *stack.Stack) {
	ctx := testContext(t)
	ns := namespace(ctx, t, s, v1alpha1.ModeEnforce)
	lost := 0
	s.WebhookFaults.Set(func(r *http.Request) *stack.Fault {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/anchors") && lost == 0 {
			lost++
			return &stack.Fault{Drop: true}
		}
		return nil
	})
	defer s.WebhookFaults.Set(nil)
	sec := create(ctx, t, s.Kube, otf.Secret(ns, "run-1", "job-1", "s3cret"))
	anchorOf(ctx, t, s, sec)
	var all v1alpha1.AnchorList
	if err := s.Client.List(ctx, &all, client.InNamespace(ns)); err != nil || len(all.Items) != 1 {
		t.Errorf("%d anchors, %v", len(all.Items), err)
	}
	if s.WebhookFaults.Seen() != 1 {
		t.Errorf("%d answers were lost", s.WebhookFaults.Seen())
	}
}

func denied(t *testing.T, s *stack.Stack) {
	ctx := testContext(t)
	labels := policy(ctx, t, s, "deny", func(p *v1alpha1.OwnerPolicySpec) {
		p.WhenUnresolved, p.FailurePolicy, p.TimeoutSeconds = v1alpha1.UnresolvedDeny, v1alpha1.FailureFail, 1
	})
	ns := namespace(ctx, t, s, v1alpha1.ModeEnforce)
	s.WebhookFaults.Set(ownerLookups(stack.Fault{Status: 500, Body: etcd500}))
	defer s.WebhookFaults.Set(nil)

	// A client that does not retry sees the refusal as it is.
	err := s.Kube.CoreV1().RESTClient().Post().Namespace(ns).Resource("secrets").Body(secret(ns, "denied", labels)).MaxRetries(0).Do(ctx).Error()
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Code != http.StatusServiceUnavailable || status.Status().Details.RetryAfterSeconds != 1 ||
		status.Status().Reason != metav1.StatusReasonServiceUnavailable || !strings.Contains(err.Error(), `policy "deny"`) {
		t.Fatalf("got %v, want a 503 with Retry-After", err)
	}
	seen := s.WebhookFaults.Seen()
	// An unmodified client waits and comes through when the trouble is over.
	done := make(chan error, 1)
	go func() { done <- s.Client.Create(ctx, secret(ns, "denied", labels)) }()
	eventually(ctx, t, "it was refused", func() error {
		if s.WebhookFaults.Seen() <= seen {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	s.WebhookFaults.Set(nil)
	if err := <-done; err != nil {
		t.Errorf("after the trouble: %v", err)
	}
	got, err := s.Kube.CoreV1().Secrets(ns).Get(ctx, "denied", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	anchorOf(ctx, t, s, got)
}

// ownerGoesWhileBinding: the owner is deleted between the look and the write. What
// was bound is unbound; the Anchor waits for another owner, and the Secret stays.
func ownerGoesWhileBinding(t *testing.T, s *stack.Stack) {
	ctx := testContext(t)
	ns := namespace(ctx, t, s, v1alpha1.ModeEnforce)
	sec := create(ctx, t, s.Kube, otf.Secret(ns, "run-1", "job-1", "s3cret"))
	a := anchorOf(ctx, t, s, sec)
	// Without the garbage collector, which would be quicker than anybody.
	if err := s.Plane.Do(ctx, "stop kube-controller-manager"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Plane.Do(ctx, "start kube-controller-manager"); err != nil {
			t.Error(err)
		}
	}()
	background := metav1.DeletePropagationBackground
	writes := 0
	s.ControllerFaults.Set(func(r *http.Request) *stack.Fault {
		if r.Method != http.MethodPut || !strings.Contains(r.URL.Path, "/anchors/"+a.Name) {
			return nil
		}
		if writes++; writes == 1 {
			if err := s.Kube.BatchV1().Jobs(ns).Delete(ctx, "run-1", metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
				t.Error(err)
			}
		}
		return &stack.Fault{} // counted, and passed on
	})
	defer s.ControllerFaults.Set(nil)
	gone := job(ctx, t, s.Kube, ns, "run-1")
	eventually(ctx, t, "bound and unbound", func() error {
		if s.ControllerFaults.Seen() < 2 {
			return fmt.Errorf("%d writes", s.ControllerFaults.Seen())
		}
		if err := s.Client.Get(ctx, client.ObjectKeyFromObject(a), a); err != nil {
			return err
		}
		if len(a.OwnerReferences) > 0 || a.Spec.BoundUID != "" {
			return fmt.Errorf("owned by %+v, bound to %q", a.OwnerReferences, a.Spec.BoundUID)
		}
		return nil
	})
	s.ControllerFaults.Set(nil)
	j := job(ctx, t, s.Kube, ns, "run-1")
	if j.UID == gone.UID {
		t.Fatal("the same job")
	}
	waitBound(ctx, t, s, a, j.UID)
	if _, err := s.Kube.CoreV1().Secrets(ns).Get(ctx, "run-1", metav1.GetOptions{}); err != nil {
		t.Errorf("the secret: %v", err)
	}
}

// bindingRefused: belay-controller lost its right on Anchors.
func bindingRefused(t *testing.T, s *stack.Stack) {
	ctx := testContext(t)
	ns := namespace(ctx, t, s, v1alpha1.ModeEnforce)
	sec := create(ctx, t, s.Kube, otf.Secret(ns, "run-1", "job-1", "s3cret"))
	a := anchorOf(ctx, t, s, sec)
	s.ControllerFaults.Set(func(r *http.Request) *stack.Fault {
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/anchors/"+a.Name) {
			return &stack.Fault{Status: 403, Body: `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"anchors.belay.dev is forbidden","reason":"Forbidden","code":403}`}
		}
		return nil
	})
	defer s.ControllerFaults.Set(nil)
	j := job(ctx, t, s.Kube, ns, "run-1")
	waitEvent(ctx, t, s, ns, a.UID, v1alpha1.ReasonBindFailed)
	if n := s.ControllerFaults.Seen(); n > 30 {
		t.Errorf("a hot loop: %d writes", n)
	}
	s.ControllerFaults.Set(nil)
	waitBound(ctx, t, s, a, j.UID)
}

// serverRestarts: Secrets anchored before, Jobs created after, and Secrets created
// right when the server is back.
func serverRestarts(t *testing.T, s *stack.Stack) {
	ctx := testContext(t)
	ns := namespace(ctx, t, s, v1alpha1.ModeEnforce)
	sec := create(ctx, t, s.Kube, otf.Secret(ns, "run-1", "job-1", "s3cret"))
	a := anchorOf(ctx, t, s, sec)
	running := alive(append(s.Webhooks(), s.Controllers()...))
	if err := s.Plane.Do(ctx, "restart kube-apiserver"); err != nil {
		t.Fatal(err)
	}
	j := job(ctx, t, s.Kube, ns, "run-1")
	waitBound(ctx, t, s, a, j.UID)
	tries := 0
	eventually(ctx, t, "belay answers again", func() error {
		tries++
		sec, err := s.Kube.CoreV1().Secrets(ns).Create(ctx, otf.Secret(ns, fmt.Sprintf("again-%d", tries), "job-1", "s3cret"), metav1.CreateOptions{})
		if err == nil && len(sec.OwnerReferences) != 1 {
			err = fmt.Errorf("owned by %+v", sec.OwnerReferences)
		}
		return err
	})
	for _, p := range running {
		select {
		case <-p.Done():
			t.Errorf("%s ended with the API server:\n%s", p.Name, p.Tail(10))
		default:
		}
	}
}

// alive are those of the processes that run.
func alive(ps []*stack.Process) []*stack.Process {
	return slices.DeleteFunc(ps, func(p *stack.Process) bool {
		select {
		case <-p.Done():
			return true
		default:
			return false
		}
	})
}

// etcdPauses: the owner look-up hangs in the API server itself. The create is
// admitted when etcd goes on, and belay has answered in time: with a warning, or
// with an owner, where the API server itself was held up before it called.
func etcdPauses(t *testing.T, s *stack.Stack) {
	ctx := testContext(t)
	ns := namespace(ctx, t, s, v1alpha1.ModeEnforce)
	kube, w := warned(t, s)
	if err := s.Plane.Do(ctx, "pause etcd"); err != nil {
		t.Fatal(err)
	}
	resumed := make(chan error, 1)
	go func() {
		<-time.After(4 * time.Second) // longer than timeoutSeconds: the fault itself, not a wait for a result
		resumed <- s.Plane.Do(ctx, "resume etcd")
	}()
	sec, err := kube.CoreV1().Secrets(ns).Create(ctx, otf.Secret(ns, "run-1", "job-1", "s3cret"), metav1.CreateOptions{})
	if rerr := <-resumed; rerr != nil {
		t.Fatal(rerr)
	}
	if err != nil {
		t.Fatalf("the create failed: %v", err)
	}
	if len(sec.OwnerReferences) == 0 {
		w.must(t, "created without an owner reference", "did not answer in time")
	} else {
		anchorOf(ctx, t, s, sec)
	}
}

// answersBeforeSync: listing the policies and the namespaces takes for ever, as it
// may with very many objects. The webhook is not ready; whoever calls it all the
// same, since its address is known already, gets the right answer from live reads.
func answersBeforeSync(t *testing.T, s *stack.Stack) {
	ctx := testContext(t)
	ns := namespace(ctx, t, s, v1alpha1.ModeEnforce)
	s.WebhookFaults.Set(func(r *http.Request) *stack.Fault {
		if strings.HasSuffix(r.URL.Path, "/ownerpolicies") || strings.HasSuffix(r.URL.Path, "/namespaces") {
			return &stack.Fault{Delay: time.Minute}
		}
		return nil
	})
	defer s.WebhookFaults.Set(nil)
	p, err := s.LaunchWebhook(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}()
	review, err := json.Marshal(map[string]any{
		"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": map[string]any{
			"uid": "u", "operation": "CREATE", "namespace": ns, "kind": map[string]any{"version": "v1", "kind": "Secret"},
			"object": map[string]any{"metadata": map[string]any{"name": "run-1"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	hc := webhookClient(ctx, t, s)
	eventually(ctx, t, "an answer", func() error {
		resp, err := hc.Post(fmt.Sprintf("https://localhost:%d/mutate/owner/otf?timeout=3s", p.Port), "application/json", bytes.NewReader(review))
		if err != nil {
			return err // not listening yet
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK || !strings.Contains(string(body), `"reason":"Anchored"`) || !strings.Contains(string(body), `"patch":`) {
			t.Fatalf("got %d %s", resp.StatusCode, body)
		}
		return nil
	})
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/readyz", p.ProbePort))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		t.Error("it says that it is ready")
	}
}

// deletedWhileAway: nobody takes the registration back, and the webhook that is called
// has never heard of the policy.
func deletedWhileAway(t *testing.T, s *stack.Stack) {
	ctx := testContext(t)
	labels := policy(ctx, t, s, "away", func(p *v1alpha1.OwnerPolicySpec) { p.FailurePolicy = v1alpha1.FailureFail })
	ns := namespace(ctx, t, s, v1alpha1.ModeEnforce)
	for _, p := range s.Controllers() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}
	if err := s.Client.Delete(ctx, newPolicy("away", nil)); err != nil {
		t.Fatal(err)
	}
	fresh, err := s.StartWebhook(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range s.Webhooks() {
		if w != fresh {
			s.Detach(w)
			if err := w.Stop(); err != nil {
				t.Error(err)
			}
		}
	}
	s.Attach()
	if _, err := s.Kube.CoreV1().Secrets(ns).Create(ctx, secret(ns, "s", labels), metav1.CreateOptions{}); err != nil {
		t.Errorf("refused: %v", err)
	}
	for range 2 {
		if _, err := s.StartController(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.StartWebhook(ctx); err != nil {
		t.Fatal(err)
	}
}

// ownerInAnotherVersion: while a Secret waits for a Widget of v1, an upgrade of its CRD
// serves v2 only. The Anchor is not given up, and is bound to the Widget that comes.
func ownerInAnotherVersion(t *testing.T, s *stack.Stack) {
	ctx := testContext(t)
	crd := func(served ...string) *unstructured.Unstructured {
		var versions []any
		for _, v := range []string{"v1", "v2"} {
			versions = append(versions, map[string]any{
				"name": v, "served": slices.Contains(served, v), "storage": v == "v2",
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}},
			})
		}
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "widgets.example.com"},
			"spec": map[string]any{
				"group": "example.com", "scope": "Namespaced", "names": map[string]any{"plural": "widgets", "kind": "Widget"}, "versions": versions,
			},
		}}
	}
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "test-widgets", Labels: map[string]string{"rbac.belay.dev/aggregate-to-owner-reader": "true"}},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"example.com"}, Resources: []string{"widgets"}, Verbs: reads}},
	}
	if err := s.Client.Create(ctx, role); err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(ctx, crd("v1", "v2")); err != nil {
		t.Fatal(err)
	}
	labels := policy(ctx, t, s, "widgets", func(p *v1alpha1.OwnerPolicySpec) {
		p.Owner.APIVersion, p.Owner.Kind = "example.com/v1", "Widget"
		p.Deadline = metav1.Duration{Duration: 8 * time.Second}
	})
	ns := namespace(ctx, t, s, v1alpha1.ModeEnforce)
	sec := create(ctx, t, s.Kube, secret(ns, "w", labels))
	a := anchorOf(ctx, t, s, sec)
	if err := s.Apply(ctx, crd("v2")); err != nil {
		t.Fatal(err)
	}
	for _, p := range s.Controllers() { // with nothing in their caches
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}
	w := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v2", "kind": "Widget", "metadata": map[string]any{"namespace": ns, "name": "w"}}}
	eventually(ctx, t, "the widget is created", func() error { return s.Client.Create(ctx, w.DeepCopy()) })
	if err := s.Client.Get(ctx, client.ObjectKeyFromObject(w), w); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the deadline passes while nobody looks", func() error {
		if left := time.Until(a.Spec.ExpiresAt.Time); left > 0 {
			return fmt.Errorf("%s are left", left)
		}
		return nil
	})
	for range 2 {
		if _, err := s.StartController(ctx); err != nil {
			t.Fatal(err)
		}
	}
	waitBound(ctx, t, s, a, w.GetUID())
	if _, err := s.Kube.CoreV1().Secrets(ns).Get(ctx, "w", metav1.GetOptions{}); err != nil {
		t.Errorf("the secret: %v", err)
	}
}
