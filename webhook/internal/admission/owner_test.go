package admission

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/metrics"
	"github.com/belay-dev/belay/webhook/internal/owner"
)

const (
	addJob    = `[{"op":"add","path":"/metadata/ownerReferences","value":[{"apiVersion":"batch/v1","kind":"Job","name":"run","uid":"job-uid"}]}]`
	addAnchor = `[{"op":"add","path":"/metadata/ownerReferences","value":[{"apiVersion":"belay.dev/v1alpha1","kind":"Anchor","name":"job-run-rhlqqspvf35ufbwr","uid":"anchor-uid"}]}]`
)

func jobAbsent(context.Context, facts.Query) owner.Fact { return owner.Fact{State: fact.Absent} }

func jobUnknown(context.Context, facts.Query) owner.Fact {
	return owner.Fact{Cause: fact.CauseTimeout}
}

// TestMutate is the way from a review to its answer.
func TestMutate(t *testing.T) {
	t.Parallel()
	annotated := strings.Replace(plainSecret, `"name":"run"`, `"name":"x","annotations":{"belay.dev/owner":"batch/v1/Job/run"}`, 1)
	type want struct {
		patch    string
		warnings []string
		code     int32 // of a denial
		reason   owner.Reason
		anchors  int
	}
	for name, c := range map[string]struct {
		stage func(*stage)
		path  string // "/mutate/owner/otf" where it is empty
		req   *admissionv1.AdmissionRequest
		want  want
	}{
		"an owner that exists is added": {
			req: creating(plainSecret), want: want{patch: addJob, reason: owner.ReasonOwned},
		},
		"an owner that does not exist yet gets an Anchor": {
			stage: func(s *stage) { s.found = jobAbsent }, req: creating(plainSecret),
			want: want{patch: addAnchor, reason: owner.ReasonAnchored, anchors: 1},
		},
		"a dry run makes no Anchor": {
			stage: func(s *stage) { s.found = jobAbsent }, req: creating(plainSecret, dryRun),
			want: want{reason: owner.ReasonAnchorNeeded, warnings: []string{`belay: job "run" does not exist yet: secret "run" would be owned by an Anchor that waits for it`}},
		},
		"a dry run with an owner gets its patch": {
			req: creating(plainSecret, dryRun), want: want{patch: addJob, reason: owner.ReasonOwned},
		},
		"warn mode sends no patch": {
			stage: func(s *stage) { s.mode = v1alpha1.ModeWarn }, req: creating(plainSecret),
			want: want{reason: owner.ReasonOwned, warnings: []string{`belay: mode warn: would be owned by job "run" (uid job-uid)`}},
		},
		"warn mode makes no Anchor": {
			stage: func(s *stage) { s.mode, s.found = v1alpha1.ModeWarn, jobAbsent }, req: creating(plainSecret),
			want: want{reason: owner.ReasonAnchorNeeded, warnings: []string{`belay: job "run" does not exist yet: secret "run" would be owned by an Anchor that waits for it`}},
		},
		"warn mode admits what enforce would deny": {
			stage: func(s *stage) { s.denying().mode, s.found = v1alpha1.ModeWarn, jobUnknown }, req: creating(plainSecret),
			want: want{reason: owner.ReasonLookupFailed, warnings: []string{`belay: mode warn: would be denied with 503: policy "otf": secret "run" cannot be given its owner: could not find out whether job "run" exists (the API server did not answer in time); the create may be repeated`}},
		},
		"an owner that could not be looked up, denying": {
			stage: func(s *stage) { s.denying().found = jobUnknown }, req: creating(plainSecret),
			want: want{code: 503, reason: owner.ReasonLookupFailed},
		},
		"an Anchor that is refused": {
			stage: func(s *stage) {
				s.found = jobAbsent
				s.create = func(context.Context, *v1alpha1.Anchor) error {
					return apierrors.NewInvalid(schema.GroupKind{Group: "belay.dev", Kind: "Anchor"}, "x", nil)
				}
			},
			req:  creating(plainSecret),
			want: want{reason: owner.ReasonAnchorFailed, warnings: []string{`belay: secret "run" is created without an owner reference: job "run" does not exist yet, and no Anchor could be made to wait for it (the API server had an error)`}},
		},
		"an unlabelled namespace is left alone": {
			stage: func(s *stage) { s.mode = "" }, req: creating(plainSecret), want: want{reason: ReasonNotOptedIn},
		},
		"a mode that nobody knows is none": {
			stage: func(s *stage) { s.mode = "audit" }, req: creating(plainSecret), want: want{reason: ReasonNotOptedIn},
		},
		"a mode that cannot be read counts as enforce: the API server has matched it": {
			stage: func(s *stage) { s.mode, s.modeErr = "", fmt.Errorf("no connection") }, req: creating(plainSecret), want: want{patch: addJob, reason: owner.ReasonOwned},
		},
		"P01: kube-* is excluded whatever its label": {
			req: creating(plainSecret, func(r *admissionv1.AdmissionRequest) { r.Namespace = "kube-flannel" }), want: want{reason: ReasonExcluded},
		},
		"P01: belay's own namespace is excluded": {
			req: creating(plainSecret, func(r *admissionv1.AdmissionRequest) { r.Namespace = "belay-system" }), want: want{reason: ReasonExcluded},
		},
		"a policy deleted a moment ago admits": {
			stage: func(s *stage) { s.standing = facts.StandingDeleted }, path: "/mutate/owner/gone", req: creating(plainSecret),
			want: want{reason: ReasonPolicyDeleted},
		},
		"a policy that was never accepted admits and says so": {
			stage: func(s *stage) { s.standing = facts.StandingNotInForce }, path: "/mutate/owner/new", req: creating(plainSecret),
			want: want{reason: ReasonPolicyNotInForce, warnings: []string{`belay: OwnerPolicy "new" has never been accepted; see its conditions`}},
		},
		"a policy that cannot be read admits and says so": {
			stage: func(s *stage) { s.standing = facts.StandingUnknown }, path: "/mutate/owner/otf2", req: creating(plainSecret),
			want: want{reason: ReasonPolicyUnreadable, warnings: []string{`belay: OwnerPolicy "otf2" could not be read in time: the object is admitted without an owner reference`}},
		},
		"the annotation names the owner": {
			path: "/mutate/owner", req: creating(annotated), want: want{patch: addJob, reason: owner.ReasonOwned},
		},
		"the annotation names an owner that does not exist yet": {
			stage: func(s *stage) { s.found = jobAbsent }, path: "/mutate/owner", req: creating(annotated),
			want: want{patch: addAnchor, reason: owner.ReasonAnchored, anchors: 1},
		},
		"O03: the annotation names an owner in another namespace": {
			path: "/mutate/owner", req: creating(strings.Replace(annotated, "Job/run", "Job/elsewhere/run", 1)),
			want: want{code: 403, reason: owner.ReasonOtherNamespace},
		},
		"the annotation names a kind that is not served": {
			stage: func(s *stage) {
				s.resolve = func(string, string) (v1alpha1.ResolvedResource, error) {
					return v1alpha1.ResolvedResource{}, facts.ErrNoKind
				}
			},
			path: "/mutate/owner", req: creating(annotated),
			want: want{reason: owner.ReasonKindUnknown, warnings: []string{`belay: secret "x" is created without an owner reference: the API server serves no kind "Job" in "batch/v1"; check apiVersion and kind, or install its CRD`}},
		},
		"O12: no annotation, no owner": {
			path: "/mutate/owner", req: creating(plainSecret), want: want{reason: owner.ReasonNoOwner},
		},
		"O04: a cluster-scoped object of a namespaced owner": {
			req:  creating(`{"metadata":{"name":"run"}}`, func(r *admissionv1.AdmissionRequest) { r.Namespace, r.Kind.Kind = "", "ClusterRole" }),
			want: want{code: 403, reason: owner.ReasonScopeMismatch},
		},
		"O04: the annotation of a cluster-scoped object names a namespaced owner": {
			path: "/mutate/owner", req: creating(annotated, func(r *admissionv1.AdmissionRequest) { r.Namespace, r.Kind.Kind = "", "ClusterRole" }),
			want: want{code: 403, reason: owner.ReasonScopeMismatch},
		},
		"O16: an update of an object on its way out passes, whatever it looks like": {
			stage: func(s *stage) {
				s.denying().found = func(context.Context, facts.Query) owner.Fact { panic("looked at") }
			},
			req: creating(`{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z","finalizers":7,"ownerReferences":"junk"}}`, func(r *admissionv1.AdmissionRequest) {
				r.Operation = admissionv1.Update
			}),
			want: want{reason: owner.ReasonNotCreate},
		},
		"a create of a subresource is no create": {
			req:  creating(`{"metadata":{"name":"run"}}`, func(r *admissionv1.AdmissionRequest) { r.SubResource = "binding" }),
			want: want{reason: owner.ReasonNotCreate},
		},
		"P22: a null object is denied": {
			req: creating("null"), want: want{code: 400, reason: ReasonObjectUnreadable},
		},
		"P22: null metadata is denied": {
			req: creating(`{"metadata":null}`), want: want{code: 400, reason: ReasonObjectUnreadable},
		},
		"P22: metadata of another type is denied": {
			req: creating(`{"metadata":{"name":7}}`), want: want{code: 400, reason: ReasonObjectUnreadable},
		},
		"P22: warn mode admits what it cannot read": {
			stage: func(s *stage) { s.mode = v1alpha1.ModeWarn }, req: creating(`{"metadata":{"name":7}}`),
			want: want{reason: ReasonObjectUnreadable, warnings: []string{"belay: mode warn: would be denied with 400: the object in the review cannot be read: it must be an object with metadata"}},
		},
		"P22: deep nesting is carried through": {
			req:  creating(`{"metadata":{"name":"run"},"x":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`),
			want: want{patch: addJob, reason: owner.ReasonOwned},
		},
		"P12: an object 20 bytes below etcd's limit is not pushed over it": {
			stage: func(s *stage) { s.denying() },
			req:   creating(sized(1536*1024 - 20)),
			want:  want{reason: owner.ReasonTooLarge, warnings: []string{`belay: secret "run" is 1572844 bytes and too near the storage limit of 1556480 to add an owner reference: it is not owned by job "run"`}},
		},
		"P14: a patch that does not apply is not sent, admitting": {
			// Of two lists of the same name the API server would take the last one.
			req:  creating(`{"metadata":{"name":"run","ownerReferences":[` + siteRef + `]},"metadata":{"name":"run"}}`),
			want: want{reason: ReasonInternal, warnings: []string{"belay: belay had an internal error; see its log; the object is admitted without an owner reference"}},
		},
		"P14: a patch that does not apply is not sent, denying": {
			stage: func(s *stage) { s.denying() },
			req:   creating(`{"metadata":{"name":"run","ownerReferences":[` + siteRef + `]},"metadata":{"name":"run"}}`),
			want:  want{code: 500, reason: ReasonInternal},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := set(t)
			if c.stage != nil {
				c.stage(s)
			}
			path := c.path
			if path == "" {
				path = "/mutate/owner/otf"
			}
			resp := s.review(path, c.req)
			got := want{patch: string(resp.Patch), warnings: resp.Warnings, reason: owner.Reason(reasonOf(resp)), anchors: len(s.anchors)}
			if !resp.Allowed {
				got.code = resp.Result.Code
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(want{})); diff != "" {
				t.Errorf("(-want +got)\n%s%+v", diff, resp.Result)
			}
		})
	}
}

// sized is a Secret named run whose JSON has n bytes.
func sized(n int) string {
	const head, tail = `{"metadata":{"name":"run"},"data":{"x":"`, `"}}`
	return head + strings.Repeat("A", n-len(head)-len(tail)) + tail
}

func TestAnUnknownPolicyIsA404WithItsName(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ path, want string }{
		"mutating":                         {"/mutate/owner/nope", `there is no OwnerPolicy "nope"`},
		"validating":                       {"/validate/owner/nope", `there is no OwnerPolicy "nope"`},
		"a name that is cut":               {"/mutate/owner/" + strings.Repeat("n", 500), `there is no OwnerPolicy "` + strings.Repeat("n", 100) + `"`},
		"validating has no annotation":     {"/validate/owner/", "the path names no policy"},
		"a name that would break the line": {"/mutate/owner/a%0ab", `there is no OwnerPolicy "a\nb"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, body := set(t).post(c.path, reviewOf(t, creating(plainSecret)))
			if code != http.StatusNotFound || strings.TrimSpace(body) != c.want {
				t.Errorf("%d %s", code, body)
			}
		})
	}
}

func TestADenialCarriesWhatClientsActOn(t *testing.T) {
	t.Parallel()
	resp := set(t).denying().with(func(s *stage) { s.found = jobUnknown }).review("/mutate/owner/otf", creating(plainSecret))
	const message = `policy "otf": secret "run" cannot be given its owner: could not find out whether job "run" exists (the API server did not answer in time); the create may be repeated`
	want := &admissionv1.AdmissionResponse{
		UID: "review-uid",
		Result: &metav1.Status{
			Status: "Failure", Code: 503, Reason: metav1.StatusReasonServiceUnavailable, Message: "belay: " + message,
			Details: &metav1.StatusDetails{
				Name: "run", Kind: "secrets", RetryAfterSeconds: 1,
				Causes: []metav1.StatusCause{{Type: "belay.dev/OwnerLookupFailed", Message: message}},
			},
		},
		AuditAnnotations: map[string]string{"decision": "denied", "reason": "OwnerLookupFailed", "message": message},
	}
	if diff := cmp.Diff(want, resp); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	owned := strings.Replace(plainSecret, `"name":"run"`, `"name":"run","ownerReferences":[{"apiVersion":"batch/v1","kind":"Job","name":"run","uid":"job-uid"}]`, 1)
	for name, c := range map[string]struct {
		stage  func(*stage)
		req    *admissionv1.AdmissionRequest
		code   int32
		reason owner.Reason
	}{
		"an object that lost its reference": {func(s *stage) { s.denying() }, creating(plainSecret), 503, owner.ReasonNoReference},
		"an object that has it":             {func(s *stage) { s.denying() }, creating(owned), 0, owner.ReasonAlreadyOwned},
		"a dry run":                         {func(s *stage) { s.denying() }, creating(plainSecret, dryRun), 0, owner.ReasonAlreadyOwned},
		"warn mode":                         {func(s *stage) { s.denying().mode = v1alpha1.ModeWarn }, creating(plainSecret), 0, owner.ReasonAlreadyOwned},
		"a wrong reference, denying": {func(s *stage) {
			s.policies["otf"].ClientReferences = v1alpha1.LintDeny
			s.linted = func(_ context.Context, refs []metav1.OwnerReference) []owner.ReferenceFact {
				return []owner.ReferenceFact{{Scope: owner.ScopeNamespaced, Fact: owner.Fact{State: fact.Absent}}}
			}
		}, creating(owned), 403, owner.ReasonBadReference},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := set(t)
			c.stage(s)
			resp := s.review("/validate/owner/otf", c.req)
			code := int32(0)
			if !resp.Allowed {
				code = resp.Result.Code
			}
			if code != c.code || reasonOf(resp) != string(c.reason) || resp.Patch != nil {
				t.Errorf("code %d, %+v", code, resp)
			}
			if len(s.queries) > 0 {
				t.Errorf("the owner was looked up: %v", s.queries)
			}
		})
	}
}

func TestAmbiguityIsReportedOnce(t *testing.T) {
	t.Parallel()
	two := func(context.Context, facts.Query) owner.Fact {
		return owner.Fact{State: fact.Known, Objects: []owner.Object{{Name: "a", UID: "a"}, {Name: "b", UID: "b"}}}
	}
	for name, c := range map[string]struct {
		req  *admissionv1.AdmissionRequest
		want int
	}{
		"a create": {creating(plainSecret), 1}, "a dry run has no side effect": {creating(plainSecret, dryRun), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := set(t).with(func(s *stage) { s.found = two })
			if resp := s.review("/mutate/owner/otf", c.req); !resp.Allowed || len(resp.Warnings) != 1 || len(s.ambiguous) != c.want {
				t.Errorf("%+v, events %q", resp, s.ambiguous)
			}
		})
	}
}

// TestP22_APanicEndsOneRequest runs its cases one after the other: they share a counter.
func TestP22_APanicEndsOneRequest(t *testing.T) {
	t.Parallel()
	boom := func(context.Context, facts.Query) owner.Fact { panic("boom") }
	before := count(t, metrics.Panics, "owner")
	admitting := set(t).with(func(s *stage) { s.found = boom })
	resp := admitting.review("/mutate/owner/otf", creating(plainSecret))
	if want := []string{"belay: belay had an internal error; see its log; the object is admitted without an owner reference"}; !resp.Allowed || resp.Patch != nil || cmp.Diff(want, resp.Warnings) != "" {
		t.Errorf("Admit: %+v", resp)
	}
	denying := set(t).denying().with(func(s *stage) { s.found = boom })
	resp = denying.review("/mutate/owner/otf", creating(plainSecret))
	if resp.Allowed || resp.Result.Code != 500 || resp.Result.Reason != metav1.StatusReasonInternalError || strings.Contains(resp.Result.Message, "boom") {
		t.Errorf("Deny: %+v", resp)
	}
	warning := set(t).denying().with(func(s *stage) { s.found, s.mode = boom, v1alpha1.ModeWarn })
	if resp = warning.review("/mutate/owner/otf", creating(plainSecret)); !resp.Allowed || len(resp.Warnings) != 1 {
		t.Errorf("warn mode: %+v", resp)
	}
	// Before the policy is known there is no stance: the API server applies its own.
	if code, body := set(t).with(func(s *stage) { s.policies = nil; s.standing = panicking }).post("/mutate/owner/otf", reviewOf(t, creating(plainSecret))); code != 500 || strings.Contains(body, "boom") {
		t.Errorf("without a policy: %d %s", code, body)
	}
	if got := count(t, metrics.Panics, "owner") - before; got != 4 {
		t.Errorf("%v panics were counted", got)
	}
	denying.found = set(t).found
	if resp = denying.review("/mutate/owner/otf", creating(plainSecret)); string(resp.Patch) != addJob {
		t.Errorf("the next request: %+v", resp)
	}
}

func TestP08_Budget(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		timeout string
		want    time.Duration
	}{
		"what the API server says, less a margin": {"10s", 8 * time.Second},
		"a short one keeps a fifth, too":          {"500ms", 400 * time.Millisecond},
		"none":                                    {"", 2400 * time.Millisecond},
		"one that cannot be read":                 {"soon", 2400 * time.Millisecond},
		"zero":                                    {"0s", 2400 * time.Millisecond},
		"less than nothing":                       {"-1s", 2400 * time.Millisecond},
		"more than the API allows":                {"1h", 24 * time.Second},
		"one nanosecond is no panic":              {"1ns", time.Nanosecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/?timeout="+c.timeout, http.NoBody)
			if got := budget(r); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// TestP08_TheBudgetOfACallThatWaitedForItsConnection: what is gone of the API server's time.
func TestP08_TheBudgetOfACallThatWaitedForItsConnection(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// first is how old the connection is when its first call comes, and age when the one comes
		// that is asked about.
		first, age, most, least time.Duration
	}{
		"it comes at once":                      {0, 0, 8 * time.Second, 7 * time.Second},
		"the first one":                         {2 * time.Second, 2 * time.Second, 6 * time.Second, 5 * time.Second},
		"one that may have waited with it":      {2 * time.Second, 3 * time.Second, 6 * time.Second, 5 * time.Second},
		"one that came later":                   {2 * time.Second, 5 * time.Second, 8 * time.Second, 8 * time.Second},
		"one of a connection that was fast":     {0, time.Second, 8 * time.Second, 8 * time.Second},
		"half of it is kept":                    {9 * time.Second, 9 * time.Second, 3 * time.Second, 3 * time.Second},
		"nothing came for longer than it waits": {time.Minute, time.Minute, 8 * time.Second, 8 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := WithAnswered(t.Context(), func() {})
			at := func(age time.Duration) time.Duration {
				connectionOf(ctx).since = time.Now().Add(-age)
				return budget(httptest.NewRequestWithContext(ctx, http.MethodPost, "/?timeout=10s", http.NoBody))
			}
			at(c.first)
			if got := at(c.age); got > c.most || got < c.least {
				t.Errorf("got %s", got)
			}
		})
	}
}

// TestP08_TheAnswerComesInTime has a cluster that answers nothing, and a client that
// waits as long as the API server says it does.
func TestP08_TheAnswerComesInTime(t *testing.T) {
	t.Parallel()
	const timeout = 2 * time.Second
	blocked := func(ctx context.Context, _ facts.Query) owner.Fact {
		<-ctx.Done()
		return owner.Fact{Cause: fact.CauseTimeout}
	}
	for name, c := range map[string]struct {
		stage   func(*stage)
		allowed bool
		reason  owner.Reason
	}{
		"the owner's look-up blocks: Admit": {func(s *stage) { s.found = blocked }, true, owner.ReasonLookupFailed},
		"the owner's look-up blocks: Deny":  {func(s *stage) { s.denying().found = blocked }, false, owner.ReasonLookupFailed},
		"the Anchor's create blocks: Admit": {func(s *stage) {
			s.found = jobAbsent
			s.create = func(ctx context.Context, _ *v1alpha1.Anchor) error { <-ctx.Done(); return ctx.Err() }
		}, true, owner.ReasonAnchorFailed},
		"the Anchor's create blocks: Deny": {func(s *stage) {
			s.denying().found = jobAbsent
			s.create = func(ctx context.Context, _ *v1alpha1.Anchor) error { <-ctx.Done(); return ctx.Err() }
		}, false, owner.ReasonAnchorFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := set(t)
			c.stage(s)
			before := count(t, metrics.Decisions, string(c.reason))
			apiServer := http.Client{Timeout: timeout}
			resp, err := apiServer.Post(s.server().URL+"/mutate/owner/otf?timeout="+timeout.String(), "application/json", bytes.NewReader(reviewOf(t, creating(plainSecret))))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			var review admissionv1.AdmissionReview
			if err := json.NewDecoder(resp.Body).Decode(&review); err != nil {
				t.Fatal(err)
			}
			got := review.Response
			if got.Allowed != c.allowed || reasonOf(got) != string(c.reason) || got.Patch != nil {
				t.Errorf("%+v", got)
			}
			if c.allowed && len(got.Warnings) != 1 {
				t.Errorf("no warning: %+v", got)
			}
			if !c.allowed && (got.Result.Code != 503 || got.Result.Details.RetryAfterSeconds != 1) {
				t.Errorf("%+v", got.Result)
			}
			if count(t, metrics.Decisions, string(c.reason)) <= before {
				t.Error("no metric")
			}
		})
	}
}

func TestExpressionsDoNotSeeASecretsData(t *testing.T) {
	t.Parallel()
	const seen = `has(object.data) || has(object.stringData) ? "visible" : "hidden"`
	const object = `{"metadata":{"name":"run"},"data":{"a":"Yg=="},"stringData":{"c":"d"}}`
	for name, c := range map[string]struct {
		change func(*admissionv1.AdmissionRequest)
		want   string
	}{
		"a Secret":                          {func(*admissionv1.AdmissionRequest) {}, "hidden"},
		"a ConfigMap's data is no secret":   {func(r *admissionv1.AdmissionRequest) { r.Kind.Kind = "ConfigMap" }, "visible"},
		"a Secret of another group is none": {func(r *admissionv1.AdmissionRequest) { r.Kind.Group = "example.com" }, "visible"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := set(t)
			s.policies["otf"] = policy(t, v1alpha1.OwnerTarget{Name: seen})
			s.review("/mutate/owner/otf", creating(object, c.change))
			if len(s.queries) != 1 || s.queries[0].Name != c.want {
				t.Errorf("looked for %+v", s.queries)
			}
		})
	}
}

func TestExpressionsSeeTheRequest(t *testing.T) {
	t.Parallel()
	s := set(t)
	s.policies["otf"] = policy(t, v1alpha1.OwnerTarget{Selector: `{"name": string(object.metadata.name), "rank": string(object.spec.n + 1), "ns": string(request.namespace), "op": string(request.operation), "who": string(request.userInfo.username), "first": string(request.userInfo.groups[0]), "dry": string(request.dryRun)}`})
	req := creating(`{"metadata":{"name":"run"},"spec":{"n":41}}`, dryRun)
	req.UserInfo.Username, req.UserInfo.Groups = "alice", []string{"devs"}
	s.review("/mutate/owner/otf", req)
	want := []facts.Query{{Resource: s.policies["otf"].Resource, Namespace: "lab", Labels: map[string]string{"name": "run", "rank": "42", "ns": "lab", "op": "CREATE", "who": "alice", "first": "devs", "dry": "true"}}}
	if diff := cmp.Diff(want, s.queries); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestNothingOfTheObjectIsLogged sends a token through every way that an answer can go.
func TestNothingOfTheObjectIsLogged(t *testing.T) {
	t.Parallel()
	const token = "tok-5e6f7a8b"
	object := `{"metadata":{"name":"run","annotations":{"x":"` + token + `"},"labels":{"y":"` + token + `"}},"stringData":{"token":"` + token + `"},"data":{"token":"` + token + `"}}`
	broken := strings.Replace(object, `"name":"run"`, `"name":["run"]`, 1)
	doubled := `{"metadata":{"ownerReferences":[` + siteRef + `]},` + object[1:] // no patch applies to it
	for name, c := range map[string]struct {
		stage func(*stage)
		path  string
		body  []byte
	}{
		"owned":    {nil, "/mutate/owner/otf", reviewOf(t, creating(object))},
		"anchored": {func(s *stage) { s.found = jobAbsent }, "/mutate/owner/otf", reviewOf(t, creating(object))},
		"denied":   {func(s *stage) { s.denying().found = jobUnknown }, "/mutate/owner/otf", reviewOf(t, creating(object))},
		"panicked": {func(s *stage) {
			s.found = func(context.Context, facts.Query) owner.Fact { var p *facts.Query; _ = p.Name; return owner.Fact{} }
		}, "/validate/owner/otf", reviewOf(t, creating(object))},
		"unreadable object": {nil, "/mutate/owner/otf", reviewOf(t, creating(broken))},
		"unreadable policy": {func(s *stage) { s.standing = facts.StandingUnknown }, "/mutate/owner/x", reviewOf(t, creating(object))},
		"unknown policy":    {nil, "/mutate/owner/x", reviewOf(t, creating(object))},
		"unreadable review": {nil, "/mutate/owner/otf", []byte(`{"request":` + object + `]`)},
		"wrong version":     {nil, "/mutate/owner/otf", []byte(`{"apiVersion":"v1","kind":"Secret","request":` + object + `}`)},
		"wrong patch":       {nil, "/mutate/owner/otf", reviewOf(t, creating(doubled))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var lines []string
			s := set(t)
			s.log = funcr.New(func(prefix, args string) {
				mu.Lock()
				defer mu.Unlock()
				lines = append(lines, prefix+" "+args)
			}, funcr.Options{Verbosity: 10, LogTimestamp: false})
			if c.stage != nil {
				c.stage(s)
			}
			code, body := s.post(c.path, c.body)
			mu.Lock()
			defer mu.Unlock()
			if all := strings.Join(lines, "\n"); strings.Contains(all, token) {
				t.Errorf("logged: %s", all)
			}
			if strings.Contains(body, token) {
				t.Errorf("answered: %d %s", code, body)
			}
			if code == http.StatusOK && len(lines) == 0 {
				t.Error("nothing is logged at all: this test proves nothing")
			}
		})
	}
}

func TestAnAnchorSaysWhoAskedForItAndUntilWhen(t *testing.T) {
	t.Parallel()
	s := set(t).with(func(s *stage) { s.found = jobAbsent })
	before := time.Now()
	s.review("/mutate/owner/otf", creating(plainSecret))
	if len(s.anchors) != 1 {
		t.Fatalf("%d anchors", len(s.anchors))
	}
	a := s.anchors[0]
	if diff := cmp.Diff(v1alpha1.AnchorOwner{APIVersion: "batch/v1", Kind: "Job", Name: "run"}, a.Spec.Owner); diff != "" || a.Namespace != "lab" || a.Labels[v1alpha1.PolicyLabel] != "otf" {
		t.Errorf("%s %+v", diff, a.ObjectMeta)
	}
	if left := a.Spec.ExpiresAt.Sub(before); left < 10*time.Minute || left > 12*time.Minute {
		t.Errorf("expires in %s", left)
	}
}

// TestP04_ADyingNamespaceIsNotPressed: the API server refuses to create anything in
// it, and belay asks once.
func TestP04_ADyingNamespaceIsNotPressed(t *testing.T) {
	t.Parallel()
	calls := 0
	s := set(t).with(func(s *stage) {
		s.found = jobAbsent
		s.create = func(context.Context, *v1alpha1.Anchor) error {
			calls++
			err := apierrors.NewForbidden(schema.GroupResource{Group: "belay.dev", Resource: "anchors"}, "x", fmt.Errorf("namespace lab is being terminated"))
			err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: corev1.NamespaceTerminatingCause})
			return err
		}
	})
	if resp := s.review("/mutate/owner/otf", creating(plainSecret)); !resp.Allowed || len(resp.Warnings) != 1 || calls != 1 {
		t.Errorf("%d calls, %+v", calls, resp)
	}
}

// TestConcurrentReviewsDoNotMix sends many reviews at once; each gets its own answer.
func TestConcurrentReviewsDoNotMix(t *testing.T) {
	t.Parallel()
	s := set(t).with(func(s *stage) {
		s.found = func(_ context.Context, q facts.Query) owner.Fact {
			return owner.Fact{State: fact.Known, Objects: []owner.Object{{APIVersion: "batch/v1", Kind: "Job", Name: q.Name, UID: "uid-of-job"}}}
		}
	})
	url := s.server().URL + "/mutate/owner/otf"
	var wg sync.WaitGroup
	for i := range 50 {
		name := fmt.Sprintf("run-%d", i)
		wg.Go(func() {
			req := creating(`{"metadata":{"name":"` + name + `"}}`)
			body, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: req})
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := http.Post(url, "application/json", bytes.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = resp.Body.Close() }()
			out, err := io.ReadAll(resp.Body)
			var review admissionv1.AdmissionReview
			if err != nil || json.Unmarshal(out, &review) != nil || !strings.Contains(string(review.Response.Patch), `"`+name+`"`) {
				t.Errorf("%s: %v %s", name, err, out)
			}
		})
	}
	wg.Wait()
}

// FuzzObjects sends objects of any shape: an answer, never a panic.
func FuzzObjects(f *testing.F) {
	for _, s := range []string{plainSecret, "null", "[]", `{"metadata":{"ownerReferences":[null]}}`, `{"metadata":{"annotations":{"belay.dev/owner":"v1/ConfigMap/x"}}}`, `{"metadata":{"name":"\u0000"}}`, `{"metadata":{"ownerReferences":[{"uid":"job-uid"}]}}`} {
		f.Add([]byte(s), true)
		f.Add([]byte(s), false)
	}
	f.Fuzz(func(t *testing.T, object []byte, byPolicy bool) {
		if !json.Valid(object) {
			return
		}
		s := set(t)
		c := &call{asked: asked{phase: phaseMutate, req: creating("")}, policy: annotationPolicy()}
		c.req.Object = runtime.RawExtension{Raw: object}
		if byPolicy {
			c.policyName, c.policy = "otf", s.policies["otf"]
		}
		h := &Owner{Policies: s, Modes: s, Facts: s, Anchors: anchorStore{s}, Events: s, Log: s.log}
		h.answer(context.Background(), c, &outcome{})
		if c.decision.Reason == owner.Reason(ReasonInternal) {
			t.Errorf("panic on %s", object)
		}
		if c.decision.Reason == "" {
			t.Errorf("no decision on %s", object)
		}
	})
}
