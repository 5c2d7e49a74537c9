package recovered

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// rig is a stack whose processes reach the API server through proxies: a test sees what they
// send, and says what becomes of it.
type rig struct {
	*stack.Stack
	controller, webhook *wire
}

// TestRough is everything that makes requests of belay fail, or takes belay away, on a stack
// of its own.
func TestRough(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	defer cancel()
	s, err := stack.Start(ctx, stack.Options{FaultyWebhook: true, FaultyController: true})
	must(t, err)
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
	r := &rig{Stack: s, controller: tap(s.ControllerFaults), webhook: tap(s.WebhookFaults)}
	if !t.Run("without the preset's roles nothing is accepted", func(t *testing.T) { withoutRoles(t, r) }) {
		return
	}
	still := driverIsQuiet(t, r)
	atOnce(t, map[string]func(*testing.T){
		"one merge patch with an explicit null":                              func(t *testing.T) { driverWrites(t, r) },
		"a conflict is decided again":                                        func(t *testing.T) { driverConflicts(t, r) },
		"S32 Pods that belay-controller cannot read are not gone":            func(t *testing.T) { driverCannotRead(t, r) },
		"S32 Pods that belay-webhook cannot read are not gone":               func(t *testing.T) { guardCannotRead(t, r) },
		"S32 a failure whose Pods cannot be read waits, or is not recorded":  func(t *testing.T) { failureCannotRead(t, r) },
		"S32 right after its start belay-webhook answers from live reads":    func(t *testing.T) { guardBeforeSync(t, r) },
		"S32 a policy that cannot be read is a failed call, and no decision": func(t *testing.T) { policyCannotRead(t, r) },
	})
	t.Run("an object that stays as it is costs no request", func(t *testing.T) { still.ends(ctx, t, r) })
	t.Run("S33 belay-controller needs no webhook", func(t *testing.T) { driverNeedsNoWebhook(t, r) })
	t.Run("belay is away", func(t *testing.T) { guardIsAway(t, r) })
	t.Run("controllers die", func(t *testing.T) { controllersDie(t, r) })
}

// atOnce runs subtests that mostly wait, all at once: t.Parallel allows as many as there are
// processors, whatever they do.
func atOnce(t *testing.T, parts map[string]func(*testing.T)) {
	t.Helper()
	var all sync.WaitGroup
	for name, part := range parts {
		all.Go(func() { t.Run(name, part) })
	}
	all.Wait()
}

// withoutRoles: the preset's policy without its ClusterRoles names what is missing, account by
// account, and is accepted untouched when they are there. belay-webhook may read Pods anyway,
// whose sidecars report to it.
func withoutRoles(t *testing.T, r *rig) {
	ctx := stack.TestContext(t)
	must(t, r.ApplyCRD(ctx, opensandbox.CRD(opensandbox.CRDOptions{Record: &opensandbox.Record{}})))
	served(ctx, t, r.Stack, opensandbox.CRD(opensandbox.CRDOptions{}))
	objects, err := stack.ReadManifests(ctx, filepath.Join(stack.Root(), "manifests", "presets", "opensandbox"))
	must(t, err)
	for _, o := range objects {
		if o.GetKind() == "RecoveryPolicy" {
			must(t, r.Apply(ctx, o))
		}
	}
	notInForce(ctx, t, r.Stack, "opensandbox", v1alpha1.ReasonMissingPermission,
		"serviceaccount belay-system/belay-controller may not get pods", "belay-controller may not list pods", "belay-controller may not watch pods",
		"rbac.belay.dev/aggregate-to-recovery-reader")
	must(t, r.ApplyPreset(ctx, "opensandbox"))
	inForce(ctx, t, r.Stack, "opensandbox")
}

// guardCannotRead: a recovery whose evidence cannot be had is put off with 503 and
// Retry-After. It is no 403, which would tell the controller that it must not, and no 409.
// It is let in when the Pods can be read again, also for a client that knows nothing of this.
func guardCannotRead(t *testing.T, r *rig) {
	ctx := stack.TestContext(t)
	parts := map[string]func(*testing.T){}
	for name, fault := range cannotRead() {
		parts[name] = func(t *testing.T) {
			s := boxesOf(ctx, t, r.Stack, opensandbox.Names{}, opensandbox.New, v1alpha1.ModeEnforce)
			pod := s.fails(ctx, "box")
			dead := s.fails(ctx, "replaced")
			// Not the driver: it must not be faster.
			defer r.controller.rule(podsFail(s.Namespace, stack.Fault{Status: 500, Body: statusBody(500, "InternalError", "not now")}))()
			lift := r.webhook.rule(podsFail(s.Namespace, fault))
			defer lift()
			must(t, opensandbox.Ready(ctx, s.admin, pod))
			must(t, s.admin.Delete(ctx, dead, client.GracePeriodSeconds(0)))
			before := s.version(ctx, "box")
			for _, box := range []string{"box", "replaced"} {
				a := s.send(ctx, t, r.Plane.Config(), box, statusOfPhase(opensandbox.PhaseSucceed))
				if a.code != 503 || a.header.Get("Retry-After") != "1" || a.status.Reason != metav1.StatusReasonServiceUnavailable || !gocmp.Equal(a.causes(), []string{"belay.dev/LookupFailed"}) {
					t.Errorf("%s: answered %d, Retry-After %q, %v: %s", box, a.code, a.header.Get("Retry-After"), a.causes(), a.status.Message)
				}
				if !strings.Contains(a.status.Message, "could not be found out") {
					t.Errorf("%s: %s", box, a.status.Message)
				}
			}
			if got := s.version(ctx, "box"); got != before {
				t.Error("it was written")
			}
			// A lifecycle phase needs no evidence, and nothing waits for it.
			if a := s.send(ctx, t, r.Plane.Config(), "box", statusOfPhase(opensandbox.PhaseFailed)); a.code != 200 {
				t.Errorf("a write that leaves it failed: %d %s", a.code, a.status.Message)
			}
			done := make(chan error, 1)
			go func() { done <- s.Reconcile(ctx, "box") }()
			lift()
			must(t, <-done)
			s.wantPhase(ctx, "box", opensandbox.PhaseSucceed)
			a := s.send(ctx, t, r.Plane.Config(), "replaced", statusOfPhase(opensandbox.PhaseSucceed))
			if a.code != 403 || !gocmp.Equal(a.causes(), []string{"belay.dev/PodGone"}) {
				t.Errorf("after the trouble: %d %v: %s", a.code, a.causes(), a.status.Message)
			}
		}
	}
	atOnce(t, parts)
}

// failureCannotRead: the way into Failed while nobody can say which Pods fail. With
// failurePolicy Fail it is put off, so that it is recorded on the next try; with Ignore it is
// let in without a record, and told.
func failureCannotRead(t *testing.T, r *rig) {
	ctx := stack.TestContext(t)
	lenient := ownKind(ctx, t, r.Stack, "lenient", opensandbox.CRDOptions{}, func(s *v1alpha1.RecoveryPolicySpec) { s.FailurePolicy = v1alpha1.FailureIgnore })
	strict := boxesOf(ctx, t, r.Stack, opensandbox.Names{}, opensandbox.Old, v1alpha1.ModeEnforce)
	ignoring := boxesOf(ctx, t, r.Stack, lenient, opensandbox.Old, v1alpha1.ModeEnforce)
	pod := strict.start(ctx, "box", 1)[0]
	ignoring.start(ctx, "box", 1)
	etcd := stack.Fault{Status: 500, Body: statusBody(500, "InternalError", "etcdserver: request timed out")}
	lift := r.webhook.rule(podsFail(strict.Namespace, etcd))
	defer lift()
	defer r.webhook.rule(podsFail(ignoring.Namespace, etcd))()

	a := strict.send(ctx, t, r.Plane.Config(), "box", statusOfPhase(opensandbox.PhaseFailed))
	if a.code != 503 || a.header.Get("Retry-After") != "1" || !gocmp.Equal(a.causes(), []string{"belay.dev/LookupFailed"}) {
		t.Errorf("Fail: answered %d, Retry-After %q, %v: %s", a.code, a.header.Get("Retry-After"), a.causes(), a.status.Message)
	}
	strict.wantPhase(ctx, "box", opensandbox.PhaseSucceed)
	// Who names the Pods needs nobody to look.
	if a := strict.send(ctx, t, r.Plane.Config(), "box", statusOfPhase(opensandbox.PhaseFailed, fmt.Sprintf(`"failedPodUIDs":[%q]`, pod.UID))); a.code != 200 {
		t.Errorf("a write with the UIDs: %d %s", a.code, a.status.Message)
	}
	if diff := gocmp.Diff(uids(pod), strict.recordOf(ctx, "box")); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	// Nor where the informer has seen the failure.
	seen := strict.start(ctx, "seen", 1)[0]
	must(t, opensandbox.Crash(ctx, strict.admin, seen, "CrashLoopBackOff"))
	must(t, strict.Reconcile(ctx, "seen"))
	if diff := gocmp.Diff(uids(seen), strict.recordOf(ctx, "seen")); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}

	a = ignoring.send(ctx, t, r.Plane.Config(), "box", statusOfPhase(opensandbox.PhaseFailed))
	if warnings := strings.Join(a.warnings, "\n"); a.code != 200 || !strings.Contains(warnings, "nothing is recorded") || !strings.Contains(warnings, "the API server had an error") {
		t.Errorf("Ignore: answered %d, warnings %q: %s", a.code, warnings, a.status.Message)
	}
	ignoring.wantPhase(ctx, "box", opensandbox.PhaseFailed)
	if got := ignoring.recordOf(ctx, "box"); got != nil {
		t.Errorf("record %v", got)
	}
	// A recovery is never let in without a look, whatever the policy says.
	must(t, ignoring.phase(ctx, "box", opensandbox.PhasePaused, `"failedPodUIDs":["some-uid"]`))
	a = ignoring.send(ctx, t, r.Plane.Config(), "box", statusOfPhase(opensandbox.PhaseSucceed))
	if a.code != 503 && a.code != 403 {
		t.Errorf("a recovery with failurePolicy Ignore: %d", a.code)
	}
	lift()
}

// guardBeforeSync: neither the policies nor the Pods are in a cache yet, and both are read
// live. What cannot be read live either is put off.
func guardBeforeSync(t *testing.T, r *rig) {
	ctx := stack.TestContext(t)
	s := boxesOf(ctx, t, r.Stack, opensandbox.Names{}, opensandbox.New, v1alpha1.ModeEnforce)
	pod := s.fails(ctx, "box")
	gone := s.fails(ctx, "gone")
	must(t, s.admin.Delete(ctx, gone, client.GracePeriodSeconds(0)))
	healthy := s.start(ctx, "healthy", 1)[0]
	// Not the driver: it must not be faster.
	defer r.controller.rule(podsFail(s.Namespace, stack.Fault{Status: 500, Body: statusBody(500, "InternalError", "not now")}))()
	defer r.webhook.rule(func(q request) *stack.Fault {
		if q.path == "/api/v1/pods" || strings.HasSuffix(q.path, "/recoverypolicies") || q.path == "/api/v1/namespaces" {
			return &stack.Fault{Delay: time.Minute}
		}
		return nil
	})()
	must(t, opensandbox.Ready(ctx, s.admin, pod))
	p, err := r.LaunchWebhook(ctx)
	must(t, err)
	defer func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}()
	hc := webhookClient(ctx, t, r.Stack)
	failed, ready := s.asFailed(ctx, "box"), s.raw(ctx, "healthy")
	post := func(path string, before, after map[string]any) *admissionv1.AdmissionResponse {
		t.Helper()
		code, resp := review(ctx, t, hc, p.Port, path, s.Namespace, before, after)
		if code != http.StatusOK {
			t.Fatalf("answered %d", code)
		}
		return resp
	}
	stack.Eventually(ctx, t, "it listens", func() error {
		resp, err := hc.Get(fmt.Sprintf("https://localhost:%d/", p.Port))
		if err == nil {
			_ = resp.Body.Close()
		}
		return err
	})
	none := map[string]any{"failedPodUIDs": nil} // as the mutating phase leaves it
	if a := post("/validate/recovery/opensandbox", failed, phased(failed, opensandbox.PhaseSucceed, none)); !a.Allowed {
		t.Errorf("the same Pod is ready: %+v", a.Result)
	}
	other := s.asFailed(ctx, "gone")
	if a := post("/validate/recovery/opensandbox", other, phased(other, opensandbox.PhaseSucceed, nil)); a.Allowed || a.Result.Code != 403 || !strings.Contains(a.Result.Message, "PodGone") {
		t.Errorf("the Pod is gone: %+v", a)
	}
	must(t, opensandbox.Crash(ctx, s.admin, healthy, "CrashLoopBackOff"))
	if a := post("/mutate/recovery/opensandbox", ready, phased(ready, opensandbox.PhaseFailed, nil)); !a.Allowed || !strings.Contains(string(a.Patch), string(healthy.UID)) {
		t.Errorf("a failure: allowed %t, patch %s", a.Allowed, a.Patch)
	}
	lift := r.webhook.rule(podsFail(s.Namespace, stack.Fault{Status: 500, Body: statusBody(500, "InternalError", "etcdserver: request timed out")}))
	defer lift()
	if a := post("/validate/recovery/opensandbox", failed, phased(failed, opensandbox.PhaseSucceed, none)); a.Allowed || a.Result.Code != 503 || a.Result.Details.RetryAfterSeconds != 1 {
		t.Errorf("nothing can be read: %+v", a)
	}
	if a := post("/mutate/recovery/opensandbox", ready, phased(ready, opensandbox.PhaseFailed, nil)); a.Allowed || a.Result.Code != 503 {
		t.Errorf("a failure, and nothing can be read: %+v", a)
	}
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/readyz", p.ProbePort))
	must(t, err)
	_ = resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		t.Error("it says that it is ready")
	}
}

// policyCannotRead: what cannot be decided without the policy is a failed call, which the API
// server takes as the registration says: neither a 404 nor an admission.
func policyCannotRead(t *testing.T, r *rig) {
	ctx := stack.TestContext(t)
	s := boxesOf(ctx, t, r.Stack, opensandbox.Names{}, opensandbox.New, v1alpha1.ModeEnforce)
	s.fails(ctx, "box")
	before := s.raw(ctx, "box")
	defer r.webhook.rule(func(q request) *stack.Fault {
		if strings.HasSuffix(q.path, "/recoverypolicies") {
			return &stack.Fault{Delay: time.Minute}
		}
		if strings.HasSuffix(q.path, "/recoverypolicies/opensandbox") && q.method == http.MethodGet {
			return &stack.Fault{Status: 500, Body: statusBody(500, "InternalError", "etcdserver: request timed out")}
		}
		return nil
	})()
	p, err := r.LaunchWebhook(ctx)
	must(t, err)
	defer func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}()
	hc := webhookClient(ctx, t, r.Stack)
	stack.Eventually(ctx, t, "it listens", func() error {
		resp, err := hc.Get(fmt.Sprintf("https://localhost:%d/", p.Port))
		if err == nil {
			_ = resp.Body.Close()
		}
		return err
	})
	for _, path := range []string{"/mutate/recovery/opensandbox", "/validate/recovery/opensandbox"} {
		if code, a := review(ctx, t, hc, p.Port, path, s.Namespace, before, phased(before, opensandbox.PhaseSucceed, nil)); code != http.StatusInternalServerError {
			t.Errorf("%s: answered %d %+v", path, code, a)
		}
	}
}

// guardIsAway: failurePolicy Fail denies every write of a guarded status, Ignore admits it.
// What failed unseen has no record, and does not recover for that.
func guardIsAway(t *testing.T, r *rig) {
	ctx := stack.TestContext(t)
	n := ownKind(ctx, t, r.Stack, "away", opensandbox.CRDOptions{}, func(s *v1alpha1.RecoveryPolicySpec) { s.FailurePolicy = v1alpha1.FailureIgnore })
	strict := boxesOf(ctx, t, r.Stack, opensandbox.Names{}, opensandbox.Old, v1alpha1.ModeEnforce)
	lenient := boxesOf(ctx, t, r.Stack, n, opensandbox.Old, v1alpha1.ModeEnforce)
	plain := boxesOf(ctx, t, r.Stack, opensandbox.Names{}, opensandbox.Old, "")
	strict.fails(ctx, "box")
	recorded := lenient.fails(ctx, "recorded")
	pod := lenient.start(ctx, "unseen", 1)[0]
	plain.start(ctx, "box", 1)
	must(t, opensandbox.Crash(ctx, lenient.admin, pod, "CrashLoopBackOff"))
	r.Detach()
	back := false
	defer func() {
		if !back {
			r.Attach()
		}
	}()
	for _, phase := range []string{opensandbox.PhaseSucceed, opensandbox.PhaseFailed} {
		a := strict.send(ctx, t, r.Plane.Config(), "box", statusOfPhase(phase))
		if a.code != 500 || !strings.Contains(a.status.Message, "opensandbox.recovery.belay.dev") {
			t.Errorf("Fail: a write of %s is answered %d: %s", phase, a.code, a.status.Message)
		}
	}
	strict.wantPhase(ctx, "box", opensandbox.PhaseFailed)
	must(t, lenient.Reconcile(ctx, "unseen"))
	lenient.wantPhase(ctx, "unseen", opensandbox.PhaseFailed)
	must(t, lenient.phase(ctx, "recorded", opensandbox.PhasePending))
	must(t, plain.phase(ctx, "box", opensandbox.PhaseFailed))
	// The rest of the object is nobody's business.
	must(t, strict.admin.Patch(ctx, strict.get(ctx, "box"), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`))))
	r.Attach()
	back = true
	stack.Eventually(ctx, t, "belay answers again", func() error { return strict.phase(ctx, "box", opensandbox.PhaseFailed) })

	// The leftover of a write that nobody saw is cleared by the next one.
	if diff := gocmp.Diff(uids(recorded), lenient.recordOf(ctx, "recorded")); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	must(t, lenient.phase(ctx, "recorded", opensandbox.PhasePending, `"ready":0`))
	if got := lenient.recordOf(ctx, "recorded"); got != nil {
		t.Errorf("a leftover stays: %v", got)
	}
	must(t, opensandbox.Ready(ctx, lenient.admin, pod))
	lenient.passed(ctx)
	lenient.wantPhase(ctx, "unseen", opensandbox.PhaseFailed)
	denied(t, lenient.phase(ctx, "unseen", opensandbox.PhaseSucceed), 403, "failed without a record")
}

// TestAStatusOfTheWrongShape: the API server lets nobody write one. Whatever reaches belay all
// the same is let in as it is, with a warning and a metric, unless the object has failed: what
// cannot be read is no way out. Nothing makes belay panic.
func TestAStatusOfTheWrongShape(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	s := boxesOf(ctx, t, shared, opensandbox.Names{}, opensandbox.New, v1alpha1.ModeEnforce)
	n := ownKind(ctx, t, shared, "shapes", opensandbox.CRDOptions{}, func(s *v1alpha1.RecoveryPolicySpec) { s.Recover = v1alpha1.RecoverNever })
	quiet := boxesOf(ctx, t, shared, n, opensandbox.New, v1alpha1.ModeEnforce)
	s.start(ctx, "box", 1)
	quiet.fails(ctx, "failed")
	hc := webhookClient(ctx, t, shared)
	healthy, failed := s.raw(ctx, "box"), quiet.raw(ctx, "failed")
	counted := func() float64 {
		return metric(ctx, t, shared.Webhooks(), "belay_admission_decisions_total", `webhook="recovery"`, `reason="StatusUnreadable"`)
	}
	panics := metric(ctx, t, shared.Webhooks(), "belay_admission_panics_total")
	for name, c := range map[string]struct {
		status any
		says   string
	}{
		"the phase is a number":              {status: map[string]any{"phase": 7}, says: ".status.phase is a number, and should be a string"},
		"the phase is a list":                {status: map[string]any{"phase": []any{"Failed"}}, says: ".status.phase is a list, and should be a string"},
		"the phase is an object":             {status: map[string]any{"phase": map[string]any{"is": "Failed"}}, says: ".status.phase is an object"},
		"the phase is true":                  {status: map[string]any{"phase": true}, says: ".status.phase is true or false"},
		"the conditions are a map":           {status: map[string]any{"phase": "Succeed", "conditions": map[string]any{"Ready": "True"}}, says: ".status.conditions is an object, and should be a list of conditions"},
		"the conditions are words":           {status: map[string]any{"phase": "Succeed", "conditions": []any{"Ready"}}, says: ".status.conditions is a list, and should be a list of conditions"},
		"a condition is null":                {status: map[string]any{"phase": "Succeed", "conditions": []any{nil}}, says: ".status.conditions"},
		"the record is a string":             {status: map[string]any{"phase": "Succeed", "failedPodUIDs": "uid"}, says: ".status.failedPodUIDs is a string, and should be a list of strings"},
		"the record is a list of numbers":    {status: map[string]any{"phase": "Succeed", "failedPodUIDs": []any{1, 2}}, says: ".status.failedPodUIDs is a list, and should be a list of strings"},
		"the record is a map":                {status: map[string]any{"phase": "Succeed", "failedPodUIDs": map[string]any{"a": "b"}}, says: ".status.failedPodUIDs is an object"},
		"the record has a null":              {status: map[string]any{"phase": "Succeed", "failedPodUIDs": []any{nil}}, says: ".status.failedPodUIDs"},
		"the status is a string":             {status: "Failed", says: ".status is a string, and should be an object"},
		"the status is a list":               {status: []any{map[string]any{"phase": "Failed"}}, says: ".status is a list, and should be an object"},
		"the status is a number":             {status: 1.5, says: ".status is a number"},
		"the phase is as long as a document": {status: map[string]any{"phase": []any{strings.Repeat("x", 1<<20)}}, says: ".status.phase is a list"},
	} {
		t.Run(name, func(t *testing.T) {
			before := counted()
			for _, path := range []string{"/mutate/recovery/opensandbox", "/validate/recovery/opensandbox"} {
				code, a := review(ctx, t, hc, shared.Webhooks()[0].Port, path, s.Namespace, healthy, withStatus(healthy, c.status))
				if code != http.StatusOK || a == nil {
					t.Fatalf("%s: answered %d", path, code)
				}
				if !a.Allowed || len(a.Patch) > 0 || a.AuditAnnotations["reason"] != "StatusUnreadable" && strings.HasPrefix(path, "/validate") {
					t.Errorf("%s: allowed %t, patch %s, annotations %v", path, a.Allowed, a.Patch, a.AuditAnnotations)
				}
				if warnings := strings.Join(a.Warnings, "\n"); strings.HasPrefix(path, "/validate") && (!strings.Contains(warnings, "is not guarded, since its status cannot be read") || !strings.Contains(warnings, c.says)) || len(warnings) > 2048 {
					t.Errorf("%s: warnings %q", path, a.Warnings)
				}
			}
			if after := counted(); after <= before {
				t.Errorf("the metric went from %v to %v", before, after)
			}
			code, a := review(ctx, t, hc, shared.Webhooks()[0].Port, "/validate/recovery/shapes", quiet.Namespace, failed, withStatus(failed, c.status))
			if code != http.StatusOK || a.Allowed || a.Result.Code != 403 || !strings.Contains(a.Result.Message, c.says) {
				t.Errorf("out of a failure: %d %+v", code, a)
			}
			// The API server itself.
			raw, err := json.Marshal(map[string]any{"status": c.status})
			must(t, err)
			if answer := s.send(ctx, t, shared.Plane.Config(), "box", raw); answer.code != 422 && answer.code != 400 {
				t.Errorf("the API server answers %d: %s", answer.code, answer.status.Message)
			}
		})
	}
	if got := metric(ctx, t, shared.Webhooks(), "belay_admission_panics_total"); got != panics {
		t.Errorf("belay panicked %v times", got-panics)
	}
}

// raw is a sandbox as the API server hands it over.
func (s *boxes) raw(ctx context.Context, name string) map[string]any {
	s.t.Helper()
	u, err := s.s.Dynamic.Resource(s.names.GVR(opensandbox.Version)).Namespace(s.Namespace).Get(ctx, name, metav1.GetOptions{})
	must(s.t, err)
	return u.Object
}

// asFailed is a sandbox that has failed.
func (s *boxes) asFailed(ctx context.Context, name string) map[string]any {
	s.t.Helper()
	o := s.raw(ctx, name)
	status, _ := o["status"].(map[string]any)
	if status["phase"] != opensandbox.PhaseFailed {
		s.t.Fatalf("%s is %v", name, status["phase"])
	}
	return o
}

// phased is a copy of an object in another phase, with more fields of the status.
func phased(o map[string]any, phase string, fields map[string]any) map[string]any {
	out := runtime.DeepCopyJSON(o)
	status, _ := out["status"].(map[string]any)
	status["phase"] = phase
	for k, v := range fields {
		status[k] = v
	}
	return out
}

// withStatus is a copy of an object with any status.
func withStatus(o map[string]any, status any) map[string]any {
	out := runtime.DeepCopyJSON(o)
	out["status"] = status
	return out
}

// review posts an AdmissionReview of a write to a status straight to a webhook.
func review(ctx context.Context, t *testing.T, hc *http.Client, port int, path, ns string, before, after map[string]any) (int, *admissionv1.AdmissionResponse) {
	t.Helper()
	meta, _ := before["metadata"].(map[string]any)
	body, err := json.Marshal(map[string]any{
		"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": map[string]any{
			"uid": "u", "operation": "UPDATE", "namespace": ns, "name": meta["name"], "subResource": "status",
			"kind":      map[string]any{"group": "sandbox.opensandbox.io", "version": "v1alpha1", "kind": "BatchSandbox"},
			"resource":  map[string]any{"group": "sandbox.opensandbox.io", "version": "v1alpha1", "resource": "batchsandboxes"},
			"object":    after,
			"oldObject": before,
		},
	})
	must(t, err)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("https://localhost:%d%s?timeout=3s", port, path), bytes.NewReader(body))
	must(t, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := hc.Do(req)
	must(t, err)
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	must(t, err)
	var out admissionv1.AdmissionReview
	if resp.StatusCode == http.StatusOK {
		must(t, json.Unmarshal(raw, &out))
	}
	return resp.StatusCode, out.Response
}

// webhookClient talks to belay-webhook as the API server does.
func webhookClient(ctx context.Context, t *testing.T, s *stack.Stack) *http.Client {
	t.Helper()
	ca, err := s.Kube.CoreV1().Secrets(stack.Namespace).Get(ctx, "belay-ca", metav1.GetOptions{})
	must(t, err)
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca.Data[corev1.ServiceAccountRootCAKey]) {
		t.Fatal("there is no CA")
	}
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: time.Minute}
}

// reply is what came back over the wire.
type reply struct {
	code     int
	header   http.Header
	warnings []string
	status   metav1.Status // of a refusal
}

func (a reply) causes() []string {
	var out []string
	if a.status.Details != nil {
		for _, c := range a.status.Details.Causes {
			out = append(out, string(c.Type))
		}
	}
	return out
}

// send is one merge patch of a sandbox's status, past all that client-go adds: a 503 comes
// back as it is.
func (s *boxes) send(ctx context.Context, t *testing.T, cfg *rest.Config, name string, body []byte) reply {
	t.Helper()
	gvr := s.names.GVR(opensandbox.Version)
	url := fmt.Sprintf("%s/apis/%s/%s/namespaces/%s/%s/%s/status", cfg.Host, gvr.Group, gvr.Version, s.Namespace, gvr.Resource, name)
	hc, err := rest.HTTPClientFor(cfg)
	must(t, err)
	req, err := http.NewRequestWithContext(ctx, http.MethodPatch, url, bytes.NewReader(body))
	must(t, err)
	req.Header.Set("Content-Type", string(types.MergePatchType))
	req.Header.Set("Accept", "application/json")
	resp, err := hc.Do(req)
	must(t, err)
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	must(t, err)
	a := reply{code: resp.StatusCode, header: resp.Header}
	warnings, errs := utilnet.ParseWarningHeaders(resp.Header.Values("Warning"))
	for _, err := range errs {
		t.Errorf("a warning that cannot be read: %v", err)
	}
	for _, w := range warnings {
		a.warnings = append(a.warnings, w.Text)
	}
	if resp.StatusCode >= 300 {
		if err := json.Unmarshal(raw, &a.status); err != nil {
			t.Fatalf("%d %s: %v", resp.StatusCode, raw, err)
		}
	}
	return a
}

// metric adds up the values of a metric over processes, where all parts are in its labels.
func metric(ctx context.Context, t *testing.T, ps []*stack.Process, name string, labels ...string) float64 {
	t.Helper()
	sum := 0.0
	for _, p := range ps {
		text, err := p.Metrics(ctx)
		must(t, err)
	lines:
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(line, name) {
				continue
			}
			for _, l := range labels {
				if !strings.Contains(line, l) {
					continue lines
				}
			}
			v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
			must(t, err)
			sum += v
		}
	}
	return sum
}
