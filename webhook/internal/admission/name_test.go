package admission

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/client/spawn/names"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/metrics"
	"github.com/belay-dev/belay/webhook/internal/naming"
	"github.com/belay-dev/belay/webhook/internal/replace"
)

// generating names Jobs after the annotation "work".
func generating(s *v1alpha1.NamePolicySpec) {
	s.Generate = &v1alpha1.NameGeneration{Prefix: `"restore-" + object.metadata.annotations["work"]`, Key: []string{`object.metadata.annotations["work"]`}}
}

var mondayName = names.Of("restore-monday", 63, "monday")

// doubledMetadata is read as one by the one decoder, and as the other by the other.
const doubledMetadata = `{"metadata":{"name":"a","annotations":{"x":"y"}},"metadata":{"name":"a"}}`

const namelessJob = `{"apiVersion":"batch/v1","kind":"Job","metadata":{"generateName":"x-","annotations":{"work":"monday"}}}`

// TestMutateName is the way from a review to its patch.
func TestMutateName(t *testing.T) {
	t.Parallel()
	mark := func(op, path string) string {
		return `{"op":"` + op + `","path":"` + path + `","value":"` + monday + `"}`
	}
	const at = "/metadata/annotations/belay.dev~1work"
	named := `[{"op":"add","path":"/metadata/name","value":"` + mondayName + `"},{"op":"remove","path":"/metadata/generateName"},` + mark("add", at) + `]`
	type want struct {
		patch    string
		warnings []string
		code     int32 // of a denial
		reason   naming.Reason
	}
	for name, c := range map[string]struct {
		spec  func(*v1alpha1.NamePolicySpec)
		stage func(*nameStage)
		req   *admissionv1.AdmissionRequest
		want  want
	}{
		"N05: a name that the request carries stays; the object is marked": {
			spec: generating, req: creatingJob(plainJob), want: want{patch: "[" + mark("add", at) + "]", reason: naming.ReasonMarked},
		},
		"N01: an object with a generateName is named, and marked": {
			spec: generating, req: creatingJob(namelessJob, nameless), want: want{patch: named, reason: naming.ReasonGenerated},
		},
		"an object with neither is named, and marked": {
			spec: generating, req: creatingJob(strings.Replace(namelessJob, `"generateName":"x-",`, "", 1), nameless),
			want: want{patch: `[{"op":"add","path":"/metadata/name","value":"` + mondayName + `"},` + mark("add", at) + `]`, reason: naming.ReasonGenerated},
		},
		"a name that is null is none": {
			spec: generating, req: creatingJob(strings.Replace(namelessJob, `"generateName":"x-"`, `"name":null`, 1), nameless),
			want: want{patch: `[{"op":"add","path":"/metadata/name","value":"` + mondayName + `"},` + mark("add", at) + `]`, reason: naming.ReasonGenerated},
		},
		"a request with a name for an object without one is not named": {
			spec: generating, req: creatingJob(namelessJob), want: want{reason: naming.ReasonServerNamed},
		},
		"without generate the API server names, and nothing is marked": {
			req: creatingJob(namelessJob, nameless), want: want{reason: naming.ReasonServerNamed},
		},
		"without generate a copied mark goes": {
			req:  creatingJob(strings.Replace(namelessJob, `"work":"monday"`, `"work":"monday","belay.dev/work":"copied"`, 1), nameless),
			want: want{patch: `[{"op":"remove","path":"` + at + `"}]`, reason: naming.ReasonServerNamed},
		},
		"a copied mark is written over": {
			req: creatingJob(strings.Replace(markedJob, monday, sunday, 1)), want: want{patch: "[" + mark("add", at) + "]", reason: naming.ReasonMarked},
		},
		"a mark that is right already stays": {
			req: creatingJob(markedJob), want: want{reason: naming.ReasonMarked},
		},
		"there are no annotations": {
			spec: func(s *v1alpha1.NamePolicySpec) { s.Identity = []string{`"monday"`} }, req: creatingJob(`{"metadata":{"name":"a"}}`),
			want: want{patch: `[{"op":"add","path":"/metadata/annotations","value":{"belay.dev/work":"` + monday + `"}}]`, reason: naming.ReasonMarked},
		},
		"the annotations are null": {
			spec: func(s *v1alpha1.NamePolicySpec) { s.Identity = []string{`"monday"`} }, req: creatingJob(`{"metadata":{"name":"a","annotations":null}}`),
			want: want{patch: `[{"op":"add","path":"/metadata/annotations","value":{"belay.dev/work":"` + monday + `"}}]`, reason: naming.ReasonMarked},
		},
		"the annotations are empty": {
			spec: func(s *v1alpha1.NamePolicySpec) { s.Identity = []string{`"monday"`} }, req: creatingJob(`{"metadata":{"name":"a","annotations":{}}}`),
			want: want{patch: "[" + mark("add", at) + "]", reason: naming.ReasonMarked},
		},
		"a field that differs in case is no name": {
			spec: generating, req: creatingJob(strings.Replace(namelessJob, `"generateName"`, `"Name":"b","generateName"`, 1), nameless),
			want: want{patch: named, reason: naming.ReasonGenerated},
		},
		"a dry run gets its name: it is to see what a create would give": {
			spec: generating, req: creatingJob(namelessJob, nameless, dryRun), want: want{patch: named, reason: naming.ReasonGenerated},
		},
		"warn mode names nothing and says so": {
			spec: generating, stage: inWarnMode, req: creatingJob(namelessJob, nameless),
			want: want{reason: naming.ReasonGenerated, warnings: []string{`belay: mode warn: would be named: a new job is named "` + mondayName + `", with work ` + monday}},
		},
		"warn mode marks nothing": {
			stage: inWarnMode, req: creatingJob(plainJob), want: want{reason: naming.ReasonMarked},
		},
		"warn mode lets a copied mark be": {
			stage: inWarnMode, req: creatingJob(strings.Replace(namelessJob, `"work":"monday"`, `"work":"monday","belay.dev/work":"copied"`, 1), nameless),
			want: want{reason: naming.ReasonServerNamed},
		},
		"the work cannot be told": {
			req: creatingJob(`{"metadata":{"name":"a","annotations":{}}}`), want: want{code: 403, reason: naming.ReasonExpressionFailed},
		},
		"the work cannot be told, in warn mode": {
			stage: inWarnMode, req: creatingJob(`{"metadata":{"name":"a","annotations":{}}}`),
			want: want{reason: naming.ReasonExpressionFailed, warnings: []string{`belay: mode warn: would be denied with Forbidden: policy "restore": job "a": its work could not be computed: spec.identity[0]: no such key: work`}},
		},
		"the name cannot be made": {
			spec: func(s *v1alpha1.NamePolicySpec) {
				s.Generate = &v1alpha1.NameGeneration{Prefix: `"x"`, Key: []string{"object.nope"}}
			},
			req: creatingJob(namelessJob, nameless), want: want{code: 403, reason: naming.ReasonExpressionFailed},
		},
		"P22: a null object is denied":             {req: creatingJob("null"), want: want{code: 400, reason: ReasonObjectUnreadable}},
		"P22: no object is denied":                 {req: creatingJob("", objectless), want: want{code: 400, reason: ReasonObjectUnreadable}},
		"P22: null metadata is denied":             {req: creatingJob(`{"metadata":null}`), want: want{code: 400, reason: ReasonObjectUnreadable}},
		"P22: a name of another type is denied":    {req: creatingJob(`{"metadata":{"name":7}}`), want: want{code: 400, reason: ReasonObjectUnreadable}},
		"P22: annotations of another type, denied": {req: creatingJob(`{"metadata":{"name":"a","annotations":{"x":7}}}`), want: want{code: 400, reason: ReasonObjectUnreadable}},
		"P22: warn mode admits what it cannot read": {
			stage: inWarnMode, req: creatingJob(`{"metadata":{"name":7}}`),
			want: want{reason: ReasonObjectUnreadable, warnings: []string{"belay: mode warn: would be denied with 400: the object in the review cannot be read: it must be an object with metadata"}},
		},
		"P22: deep nesting is carried through": {
			req:  creatingJob(strings.Replace(plainJob, `"kind"`, `"x":`+strings.Repeat("[", 5000)+strings.Repeat("]", 5000)+`,"kind"`, 1)),
			want: want{patch: "[" + mark("add", at) + "]", reason: naming.ReasonMarked},
		},
		"P14: a patch that does not apply is not sent": {
			spec: func(s *v1alpha1.NamePolicySpec) { s.Identity = []string{`"monday"`} }, req: creatingJob(doubledMetadata), want: want{code: 500, reason: ReasonInternal},
		},
		"P14: a patch that does not apply is not sent, ignoring": {
			spec: func(s *v1alpha1.NamePolicySpec) {
				s.Identity, s.FailurePolicy = []string{`"monday"`}, v1alpha1.FailureIgnore
			},
			req:  creatingJob(doubledMetadata),
			want: want{reason: ReasonInternal, warnings: []string{"belay: belay had an internal error; see its log; the object is admitted unchecked"}},
		},
		"an update is not looked at, whatever it looks like": {
			req:  creatingJob(`{"metadata":{"name":7}}`, func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Update }),
			want: want{reason: naming.ReasonNotCreate},
		},
		"N29: a deletion has no object": {
			req:  creatingJob("null", func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Delete }),
			want: want{reason: naming.ReasonNotCreate},
		},
		"N29: a deletion of a collection has not even a name": {
			req:  creatingJob("", nameless, objectless, func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Delete }),
			want: want{reason: naming.ReasonNotCreate},
		},
		"a create of a subresource is no create": {
			req: creatingJob(plainJob, func(r *admissionv1.AdmissionRequest) { r.SubResource = "status" }), want: want{reason: naming.ReasonNotCreate},
		},
		"P01: kube-* is excluded whatever its label": {
			req: creatingJob(plainJob, func(r *admissionv1.AdmissionRequest) { r.Namespace = "kube-system" }), want: want{reason: ReasonExcluded},
		},
		"P01: belay's own namespace is excluded": {
			req: creatingJob(plainJob, func(r *admissionv1.AdmissionRequest) { r.Namespace = "belay-system" }), want: want{reason: ReasonExcluded},
		},
		"P02: an unlabelled namespace is left alone": {
			stage: func(s *nameStage) { s.mode = "" }, req: creatingJob(plainJob), want: want{reason: ReasonNotOptedIn},
		},
		"a mode that cannot be read counts as enforce": {
			stage: func(s *nameStage) { s.mode, s.modeErr = "", errors.New("no connection") }, req: creatingJob(plainJob),
			want: want{patch: "[" + mark("add", at) + "]", reason: naming.ReasonMarked},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setNames(t, c.spec).with(c.stage)
			resp := s.review(mutating, c.req)
			got := want{patch: string(resp.Patch), warnings: resp.Warnings, reason: naming.Reason(reasonOf(resp))}
			if !resp.Allowed {
				got.code = resp.Result.Code
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(want{})); diff != "" {
				t.Errorf("(-want +got)\n%s%+v", diff, resp.Result)
			}
			if resp.Patch != nil != (resp.PatchType != nil && *resp.PatchType == admissionv1.PatchTypeJSONPatch) {
				t.Errorf("patch type %v", resp.PatchType)
			}
			if len(s.calls) > 0 {
				t.Errorf("the mutating phase looked or acted: %v", s.calls)
			}
		})
	}
}

// TestValidateName has the outcomes of the validating phase, as clients see them.
func TestValidateName(t *testing.T) {
	t.Parallel()
	now := time.Now()
	type want struct {
		code   int32 // of a denial
		status metav1.StatusReason
		reason naming.Reason
		cause  metav1.CauseType
		uid    types.UID
		retry  int32
		calls  string
	}
	exists := func(reason naming.Reason, calls string) want {
		return want{409, metav1.StatusReasonAlreadyExists, reason, v1alpha1.CauseSameWork, "job-uid", 0, calls}
	}
	wait := func(reason naming.Reason, uid types.UID, calls string) want {
		return want{429, metav1.StatusReasonTooManyRequests, reason, v1alpha1.CauseTerminating, uid, 1, calls}
	}
	conflict := func(reason naming.Reason, cause metav1.CauseType, calls string) want {
		return want{409, metav1.StatusReasonConflict, reason, cause, "job-uid", 0, calls}
	}
	unavailable := func(reason naming.Reason, cause metav1.CauseType, uid types.UID, calls string) want {
		return want{503, metav1.StatusReasonServiceUnavailable, reason, cause, uid, 1, calls}
	}
	admit := func(reason naming.Reason, calls string) want { return want{reason: reason, calls: calls} }
	there := func(changes ...func(*unstructured.Unstructured)) func(*nameStage) {
		return func(s *nameStage) { s.there = job(changes...) }
	}
	all := func(changes ...func(*nameStage)) func(*nameStage) {
		return func(s *nameStage) {
			for _, c := range changes {
				c(s)
			}
		}
	}
	ignoring := func(s *v1alpha1.NamePolicySpec) { s.FailurePolicy = v1alpha1.FailureIgnore }
	serializing := func(s *v1alpha1.NamePolicySpec) { s.Racing = v1alpha1.RacingSerialize }
	podless := func(s *v1alpha1.NamePolicySpec) { s.WaitForPods = new(false) }
	for name, c := range map[string]struct {
		spec  func(*v1alpha1.NamePolicySpec)
		stage func(*nameStage)
		req   *admissionv1.AdmissionRequest
		want  want
	}{
		"nothing has the name":                        {want: admit(naming.ReasonNameFree, "look pods")},
		"nothing has the name, and Pods do not count": {spec: podless, want: admit(naming.ReasonNameFree, "look")},
		"N10: nothing has the name, but its Pods run": {
			stage: func(s *nameStage) { s.pods = naming.PodsFact{State: fact.Known, Names: []string{"a-x"}} },
			want:  wait(naming.ReasonPodsRunning, "", "look pods"),
		},
		"N08: running, same work":                    {stage: there(), want: exists(naming.ReasonSameWork, "look")},
		"running, other work":                        {stage: there(ofSunday), want: conflict(naming.ReasonOtherWork, v1alpha1.CauseOtherWork, "look")},
		"N07: running, foreign":                      {stage: there(foreign), want: conflict(naming.ReasonForeign, v1alpha1.CauseOtherWork, "look")},
		"running, foreign, adopted as the same work": {spec: func(s *v1alpha1.NamePolicySpec) { s.AdoptUnmarked = true }, stage: there(foreign), want: exists(naming.ReasonSameWork, "look")},
		"running, foreign, adopted as other work": {
			spec: func(s *v1alpha1.NamePolicySpec) { s.AdoptUnmarked = true }, stage: there(ofSunday, func(u *unstructured.Unstructured) { u.SetAnnotations(map[string]string{"work": "sunday"}) }),
			want: conflict(naming.ReasonOtherWork, v1alpha1.CauseOtherWork, "look"),
		},
		"running, foreign, and its work cannot be told": {
			spec: func(s *v1alpha1.NamePolicySpec) { s.AdoptUnmarked = true }, stage: there(func(u *unstructured.Unstructured) { u.SetAnnotations(nil) }),
			want: conflict(naming.ReasonForeign, v1alpha1.CauseOtherWork, "look"),
		},
		"N15: suspended":                                     {stage: there(in("Suspended")), want: exists(naming.ReasonSameWork, "look")},
		"finished: replaced":                                 {stage: there(in("Failed")), want: admit(naming.ReasonReplaced, "look pods right replace look pods")},
		"finished, other work: replaced":                     {stage: there(ofSunday, in("Complete")), want: admit(naming.ReasonReplaced, "look pods right replace look pods")},
		"finished, and Pods do not count: replaced":          {spec: podless, stage: there(in("FailureTarget")), want: admit(naming.ReasonReplaced, "look right replace look")},
		"N14: finished with Pods":                            {stage: all(there(in("FailureTarget")), func(s *nameStage) { s.pods = naming.PodsFact{State: fact.Known, Names: []string{"a-x"}} }), want: wait(naming.ReasonPodsRunning, "job-uid", "look pods")},
		"N30: finished, foreign":                             {stage: there(foreign, in("Failed")), want: conflict(naming.ReasonForeign, v1alpha1.CauseOtherWork, "look")},
		"N30: finished, foreign, adopted: it stays":          {spec: func(s *v1alpha1.NamePolicySpec) { s.AdoptUnmarked = true }, stage: there(foreign, in("Failed")), want: conflict(naming.ReasonForeign, v1alpha1.CauseOtherWork, "look")},
		"finished a moment ago: settles":                     {spec: func(s *v1alpha1.NamePolicySpec) { s.Settle.Duration = 2 * time.Hour }, stage: there(in("Complete")), want: exists(naming.ReasonSettling, "look")},
		"finished long ago: does not settle":                 {spec: func(s *v1alpha1.NamePolicySpec) { s.Settle.Duration = time.Minute }, stage: there(in("Complete")), want: admit(naming.ReasonReplaced, "look pods right replace look pods")},
		"finished, coalescing":                               {spec: func(s *v1alpha1.NamePolicySpec) { s.WhenFinished = v1alpha1.FinishedCoalesce }, stage: there(in("Failed")), want: exists(naming.ReasonCoalesced, "look")},
		"finished, rejecting":                                {spec: func(s *v1alpha1.NamePolicySpec) { s.WhenFinished = v1alpha1.FinishedReject }, stage: there(in("Failed")), want: conflict(naming.ReasonFinished, v1alpha1.CauseFinished, "look")},
		"finished and held":                                  {spec: func(s *v1alpha1.NamePolicySpec) { s.Hold = "existing.metadata.name == 'a'" }, stage: there(in("Failed")), want: conflict(naming.ReasonHeld, v1alpha1.CauseFinished, "look")},
		"finished, and whether it is held cannot be told":    {spec: func(s *v1alpha1.NamePolicySpec) { s.Hold = "existing.nope" }, stage: there(in("Failed")), want: conflict(naming.ReasonHoldUnknown, v1alpha1.CauseFinished, "look")},
		"running and held: hold says nothing":                {spec: func(s *v1alpha1.NamePolicySpec) { s.Hold = "existing.nope" }, stage: there(), want: exists(naming.ReasonSameWork, "look")},
		"finished, and the requester may not delete it":      {stage: all(there(in("Failed")), func(s *nameStage) { s.right = naming.RightFact{State: fact.Absent} }), want: want{403, metav1.StatusReasonForbidden, naming.ReasonDeleteForbidden, v1alpha1.CauseDeleteForbidden, "job-uid", 0, "look pods right"}},
		"finished, and the right could not be found out":     {stage: all(there(in("Failed")), func(s *nameStage) { s.right = naming.RightFact{Cause: fact.CauseServer} }), want: unavailable(naming.ReasonLookupFailed, "belay.dev/LookupFailed", "job-uid", "look pods right")},
		"N26: a dry run of a replacement":                    {stage: there(in("Failed")), req: creatingJob(markedJob, dryRun), want: want{429, metav1.StatusReasonTooManyRequests, naming.ReasonWouldReplace, v1alpha1.CauseTerminating, "job-uid", 0, "look pods right"}},
		"N32: terminating":                                   {stage: there(deletedAt(now, "example.com/slow")), want: wait(naming.ReasonTerminating, "job-uid", "look")},
		"terminating and finished":                           {stage: there(in("Failed"), deletedAt(now)), want: wait(naming.ReasonTerminating, "job-uid", "look")},
		"N21: what has the name could not be found out":      {stage: func(s *nameStage) { s.unknown = fact.CauseTimeout }, want: unavailable(naming.ReasonLookupFailed, "belay.dev/LookupFailed", "", "look")},
		"what has the name could not be found out, ignoring": {spec: ignoring, stage: func(s *nameStage) { s.unknown = fact.CauseTimeout }, want: admit(naming.ReasonLookupFailed, "look")},
		"replaced, but a finalizer holds the name": {
			stage: all(there(in("Failed")), func(s *nameStage) {
				s.onReplace = func(replace.Target) (naming.Replacement, fact.Cause) {
					s.there = job(in("Failed"), deletedAt(now, "example.com/slow"))
					return naming.ReplacementDone, ""
				}
			}),
			want: wait(naming.ReasonReplacing, "job-uid", "look pods right replace look"),
		},
		"N11: replaced, and another one runs other work by now": {
			stage: all(there(in("Failed")), func(s *nameStage) {
				s.onReplace = func(replace.Target) (naming.Replacement, fact.Cause) {
					s.there = job(ofSunday, withUID("new-uid"))
					return naming.ReplacementDone, ""
				}
			}),
			want: want{409, metav1.StatusReasonConflict, naming.ReasonOtherWork, v1alpha1.CauseOtherWork, "new-uid", 0, "look pods right replace look"},
		},
		"N11: replaced, and another one runs this work by now": {
			stage: all(there(in("Failed")), func(s *nameStage) {
				s.onReplace = func(replace.Target) (naming.Replacement, fact.Cause) {
					s.there = job(withUID("new-uid"))
					return naming.ReplacementDone, ""
				}
			}),
			want: want{409, metav1.StatusReasonAlreadyExists, naming.ReasonSameWork, v1alpha1.CauseSameWork, "new-uid", 0, "look pods right replace look"},
		},
		"replaced, and another one is finished by now: not twice": {
			stage: all(there(in("Failed")), func(s *nameStage) {
				s.onReplace = func(replace.Target) (naming.Replacement, fact.Cause) {
					s.there = job(in("Failed"), withUID("new-uid"))
					return naming.ReplacementDone, ""
				}
			}),
			want: wait(naming.ReasonReplacing, "new-uid", "look pods right replace look pods"),
		},
		"belay may not delete it": {
			stage: all(there(in("Failed")), func(s *nameStage) {
				s.onReplace = func(replace.Target) (naming.Replacement, fact.Cause) {
					return naming.ReplacementFailed, fact.CauseForbidden
				}
			}),
			want: unavailable(naming.ReasonReplaceFailed, "belay.dev/ReplaceFailed", "job-uid", "look pods right replace pods"),
		},
		"no turn could be had to delete it": {
			stage: all(there(in("Failed")), func(s *nameStage) {
				s.onReplace = func(replace.Target) (naming.Replacement, fact.Cause) {
					return naming.ReplacementFailed, fact.CauseServer
				}
			}),
			want: wait(naming.ReasonReplacing, "job-uid", "look pods right replace pods"),
		},
		"one work at a time: this one":    {spec: serializing, want: admit(naming.ReasonNameFree, "look pods turn")},
		"one work at a time: another one": {spec: serializing, stage: func(s *nameStage) { s.onTurn = func(replace.Turn) (bool, string, error) { return false, sunday, nil } }, want: wait(naming.ReasonRace, "", "look pods turn")},
		"one work at a time: it cannot be told": {spec: serializing, stage: func(s *nameStage) {
			s.onTurn = func(replace.Turn) (bool, string, error) { return false, "", errors.New("no") }
		}, want: unavailable(naming.ReasonLookupFailed, "belay.dev/LookupFailed", "", "look pods turn")},
		"one work at a time, after a replacement": {
			spec: serializing, stage: there(in("Failed")), want: admit(naming.ReasonReplaced, "look pods right version look replace look pods turn"),
		},
		"N26: a dry run takes no turn": {spec: serializing, req: creatingJob(markedJob, dryRun), want: admit(naming.ReasonNameFree, "look pods")},
		"N05: another name is wanted": {
			spec: func(s *v1alpha1.NamePolicySpec) { s.Verify = `"restore-" + object.metadata.annotations["work"]` },
			want: want{422, metav1.StatusReasonInvalid, naming.ReasonWrongName, v1alpha1.CauseWrongName, "", 0, ""},
		},
		"what is wanted is no name": {
			spec: func(s *v1alpha1.NamePolicySpec) { s.Verify = `"Restore " + object.metadata.name` },
			want: want{422, metav1.StatusReasonInvalid, naming.ReasonInvalidName, "belay.dev/InvalidName", "", 0, ""},
		},
		"what is wanted cannot be told": {
			spec: func(s *v1alpha1.NamePolicySpec) { s.Verify = `object.nope` },
			want: want{403, metav1.StatusReasonForbidden, naming.ReasonExpressionFailed, "belay.dev/ExpressionFailed", "", 0, ""},
		},
		"N06: what the API server named is left alone": {
			stage: there(ofSunday), req: creatingJob(strings.Replace(plainJob, `"name":"a"`, `"name":"x-abcde","generateName":"x-"`, 1)), want: admit(naming.ReasonServerNamed, ""),
		},
		"a kind that the policy does not know": {
			req:  creatingJob(markedJob, func(r *admissionv1.AdmissionRequest) { r.Resource.Resource = "trains" }),
			want: unavailable(naming.ReasonLookupFailed, "belay.dev/LookupFailed", "", ""),
		},
		"a mark that is missing is made good: only later webhooks made the policy match": {
			stage: there(), req: creatingJob(plainJob), want: exists(naming.ReasonSameWork, "look"),
		},
		"N29: a deletion has no object": {
			req: creatingJob("null", nameless, func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Delete }), want: admit(naming.ReasonNotCreate, ""),
		},
		"an update passes, whatever it is": {
			stage: there(ofSunday), req: creatingJob(markedJob, func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Update }), want: admit(naming.ReasonNotCreate, ""),
		},
		"a subresource passes": {
			stage: there(ofSunday), req: creatingJob(markedJob, func(r *admissionv1.AdmissionRequest) { r.SubResource = "scale" }), want: admit(naming.ReasonNotCreate, ""),
		},
		"P01: kube-* is excluded": {
			stage: there(ofSunday), req: creatingJob(markedJob, func(r *admissionv1.AdmissionRequest) { r.Namespace = "kube-system" }), want: admit(ReasonExcluded, ""),
		},
		"P22: an object that cannot be read": {req: creatingJob(`{"metadata":[]}`), want: want{400, metav1.StatusReasonBadRequest, ReasonObjectUnreadable, "", "", 0, ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setNames(t, c.spec).with(c.stage)
			req := c.req
			if req == nil {
				req = creatingJob(markedJob)
			}
			resp := s.review(validating, req)
			got := want{reason: naming.Reason(reasonOf(resp)), calls: strings.Join(s.calls, " ")}
			if !resp.Allowed {
				got.code, got.status = resp.Result.Code, resp.Result.Reason
				got.uid, got.retry = resp.Result.Details.UID, resp.Result.Details.RetryAfterSeconds
				if causes := resp.Result.Details.Causes; len(causes) > 0 {
					got.cause = causes[0].Type
				}
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(want{})); diff != "" {
				t.Errorf("(-want +got)\n%s%+v", diff, resp.Result)
			}
			if resp.Patch != nil {
				t.Errorf("the validating phase sends a patch: %s", resp.Patch)
			}
		})
	}
}

// TestN22_AnswersOnTheWire compares the JSON that the API server reads.
func TestN22_AnswersOnTheWire(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stage func(*nameStage)
		want  string
	}{
		"N08, N31: same work": {
			func(s *nameStage) { s.there = job() },
			`{"metadata":{},"status":"Failure","message":"belay: $","reason":"AlreadyExists","details":{"name":"a","group":"batch","kind":"jobs","uid":"job-uid","causes":[` +
				`{"reason":"belay.dev/same-work","message":"$","field":"metadata.name"},{"reason":"belay.dev/work","message":"` + monday + `","field":"metadata.annotations[belay.dev/work]"}]},"code":409}`,
		},
		"N07: other work": {
			func(s *nameStage) { s.there = job(ofSunday) },
			`{"metadata":{},"status":"Failure","message":"belay: $","reason":"Conflict","details":{"name":"a","group":"batch","kind":"jobs","uid":"job-uid","causes":[` +
				`{"reason":"belay.dev/other-work","message":"$","field":"metadata.name"},{"reason":"belay.dev/work","message":"` + monday + `","field":"metadata.annotations[belay.dev/work]"}]},"code":409}`,
		},
		"N23: terminating": {
			func(s *nameStage) { s.there = job(deletedAt(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))) },
			`{"metadata":{},"status":"Failure","message":"belay: $","reason":"TooManyRequests","details":{"name":"a","group":"batch","kind":"jobs","uid":"job-uid","causes":[` +
				`{"reason":"belay.dev/terminating","message":"$","field":"metadata.name"},{"reason":"belay.dev/work","message":"` + monday + `","field":"metadata.annotations[belay.dev/work]"}],"retryAfterSeconds":1},"code":429}`,
		},
		"N10: its Pods run: the name is taken, by nothing that has a UID": {
			func(s *nameStage) { s.pods = naming.PodsFact{State: fact.Known, Names: []string{"a-x"}} },
			`{"metadata":{},"status":"Failure","message":"belay: $","reason":"TooManyRequests","details":{"name":"a","group":"batch","kind":"jobs","causes":[` +
				`{"reason":"belay.dev/terminating","message":"$","field":"metadata.name"},{"reason":"belay.dev/work","message":"` + monday + `","field":"metadata.annotations[belay.dev/work]"}],"retryAfterSeconds":1},"code":429}`,
		},
		"unavailable": {
			func(s *nameStage) { s.unknown = fact.CauseServer },
			`{"metadata":{},"status":"Failure","message":"belay: $","reason":"ServiceUnavailable","details":{"name":"a","group":"batch","kind":"jobs","causes":[` +
				`{"reason":"belay.dev/LookupFailed","message":"$","field":"metadata.name"}],"retryAfterSeconds":1},"code":503}`,
		},
		"wrong name": {
			func(s *nameStage) {
				s.policies["restore"] = namePolicy(s.t, func(p *v1alpha1.NamePolicySpec) { p.Verify = `"b"` })
			},
			`{"metadata":{},"status":"Failure","message":"belay: $","reason":"Invalid","details":{"name":"a","group":"batch","kind":"jobs","causes":[` +
				`{"reason":"belay.dev/wrong-name","message":"$","field":"metadata.name"}]},"code":422}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setNames(t, nil).with(c.stage)
			_, body := s.post(validating, reviewOf(t, creatingJob(markedJob)))
			var out struct {
				Response struct {
					UID     string          `json:"uid"`
					Allowed bool            `json:"allowed"`
					Status  json.RawMessage `json:"status"`
					Audit   struct {
						Message string `json:"message"`
					} `json:"auditAnnotations"`
				} `json:"response"`
			}
			if err := json.Unmarshal([]byte(body), &out); err != nil || out.Response.UID != "review-uid" || out.Response.Allowed {
				t.Fatalf("%v %s", err, body)
			}
			// Messages are compared where they are made.
			text, err := json.Marshal(out.Response.Audit.Message)
			if err != nil {
				t.Fatal(err)
			}
			got := strings.ReplaceAll(string(out.Response.Status), strings.Trim(string(text), `"`), "$")
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestN25_EveryDenialHasAnErrorCode: also one that nobody thought of.
func TestN25_EveryDenialHasAnErrorCode(t *testing.T) {
	t.Parallel()
	for answer, want := range map[v1alpha1.Answer]metav1.Status{
		v1alpha1.AnswerAlreadyExists:      {Code: 409, Reason: metav1.StatusReasonAlreadyExists},
		v1alpha1.AnswerConflict:           {Code: 409, Reason: metav1.StatusReasonConflict},
		v1alpha1.AnswerInvalid:            {Code: 422, Reason: metav1.StatusReasonInvalid},
		v1alpha1.AnswerForbidden:          {Code: 403, Reason: metav1.StatusReasonForbidden},
		v1alpha1.AnswerTooManyRequests:    {Code: 429, Reason: metav1.StatusReasonTooManyRequests},
		v1alpha1.AnswerServiceUnavailable: {Code: 503, Reason: metav1.StatusReasonServiceUnavailable},
		"":                                {Code: 500, Reason: metav1.StatusReasonInternalError},
		"Success":                         {Code: 500, Reason: metav1.StatusReasonInternalError},
	} {
		s := setNames(t, nil)
		c := &nameCall{asked: asked{phase: phaseValidate, req: creatingJob(markedJob)}, policy: s.policy(), mode: v1alpha1.ModeEnforce}
		resp := respond(c.req, s.handler().outcome(c, naming.Decision{Answer: answer, Reason: naming.ReasonOtherWork, Message: "no"}, nil))
		if resp.Allowed || resp.Result.Code != want.Code || resp.Result.Reason != want.Reason || resp.Result.Status != metav1.StatusFailure || resp.Result.Code < 400 {
			t.Errorf("%q: %+v", answer, resp.Result)
		}
	}
}

// TestWhatIsReplacedIsWhatWasLookedAt: the target has the object's version, the policy's
// propagation, and no more time than there is.
func TestWhatIsReplacedIsWhatWasLookedAt(t *testing.T) {
	t.Parallel()
	s := setNames(t, func(s *v1alpha1.NamePolicySpec) { s.Propagation = v1alpha1.PropagationForeground })
	s.there = job(in("Failed"))
	s.review(validating, creatingJob(markedJob))
	want := []replace.Target{{
		Resource: builders.Jobs(), Namespace: "lab", Name: "a", UID: "job-uid", ResourceVersion: "7",
		Propagation: v1alpha1.PropagationForeground, Wait: time.Second, By: "review-uid", Policy: "restore", Because: "Failed",
	}}
	if diff := cmp.Diff(want, s.replaced); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{"job-uid", ""}, s.asked); diff != "" {
		t.Errorf("N10: Pods of the old Job before, of whichever had the name after (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(creatingJob("").UserInfo, s.users[0]); diff != "" || len(s.users) != 1 {
		t.Errorf("the right is the requester's (-want +got)\n%s", diff)
	}
}

func TestTheWaitForANameEndsInTime(t *testing.T) {
	t.Parallel()
	s := setNames(t, func(s *v1alpha1.NamePolicySpec) { s.NameWait.Duration = time.Hour }).with(func(s *nameStage) { s.there = job(in("Failed")) })
	s.review(validating+"?timeout=2s", creatingJob(markedJob))
	if len(s.replaced) != 1 || s.replaced[0].Wait > 1600*time.Millisecond-naming.MinReplace || s.replaced[0].Wait <= 0 {
		t.Errorf("%+v", s.replaced)
	}
}

// TestTooLateNothingIsDeleted: with less time than a replacement takes there is none. On a
// busy machine all of the time may be over when the object has been read.
func TestTooLateNothingIsDeleted(t *testing.T) {
	t.Parallel()
	s := setNames(t, nil).with(func(s *nameStage) { s.there = job(in("Failed")) })
	resp := s.review(validating+"?timeout=240ms", creatingJob(markedJob))
	reason := naming.Reason(reasonOf(resp))
	if resp.Allowed || resp.Result.Details.RetryAfterSeconds != 1 || (reason != naming.ReasonNoTime && reason != naming.ReasonLookupFailed) || len(s.sideEffects()) > 0 {
		t.Errorf("%+v after %v", resp.Result, s.calls)
	}
}

// TestNothingIsDeletedOnAGuess: not while the namespace's mode is not known, and not
// while another policy may hold the object.
func TestNothingIsDeletedOnAGuess(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*nameStage)
		reason naming.Reason
	}{
		"the mode is not known":           {func(s *nameStage) { s.modeErr = errors.New("away") }, naming.ReasonNoTime},
		"another policy selects it":       {func(s *nameStage) { s.overlaps.policy = "other" }, naming.ReasonOverlap},
		"other policies cannot be listed": {func(s *nameStage) { s.overlaps.err = errors.New("away") }, naming.ReasonLookupFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setNames(t, nil).with(func(s *nameStage) { s.there = job(in("Failed")) }).with(c.change)
			resp := s.review(validating, creatingJob(markedJob))
			if resp.Allowed || naming.Reason(reasonOf(resp)) != c.reason || len(s.sideEffects()) > 0 {
				t.Errorf("%+v after %v", resp.Result, s.calls)
			}
		})
	}
}

// TestTurnsAreOfTheName: what is taken turns for, and by whom.
func TestTurnsAreOfTheName(t *testing.T) {
	t.Parallel()
	s := setNames(t, func(s *v1alpha1.NamePolicySpec) { s.Racing = v1alpha1.RacingSerialize })
	s.there, s.version = job(in("Failed")), "12"
	s.review(validating, creatingJob(markedJob))
	want := []replace.Turn{{Purpose: "create", Key: []any{"batch", "jobs", "lab", "a"}, Holder: monday, Spent: "12"}}
	if diff := cmp.Diff(want, s.turns); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestAnObjectThatChangesIsDecidedOnAnew: between the look and the deletion it was changed,
// and it is held by now.
func TestAnObjectThatChangesIsDecidedOnAnew(t *testing.T) {
	t.Parallel()
	s := setNames(t, func(s *v1alpha1.NamePolicySpec) {
		s.Racing, s.Hold = v1alpha1.RacingSerialize, `existing.metadata.?labels["then"].orValue("") == "pending"`
	})
	s.there = job(in("Failed"))
	s.onLook = func(look int) {
		if look == 2 {
			s.there.SetResourceVersion("8")
			s.there.SetLabels(map[string]string{"then": "pending"})
		}
	}
	resp := s.review(validating, creatingJob(markedJob))
	if resp.Allowed || reasonOf(resp) != string(naming.ReasonHeld) || len(s.replaced) > 0 {
		t.Errorf("%+v after %v", resp.Result, s.calls)
	}
}

// TestAnObjectThatKeepsChangingEnds: a bounded number of looks.
func TestAnObjectThatKeepsChangingEnds(t *testing.T) {
	t.Parallel()
	s := setNames(t, func(s *v1alpha1.NamePolicySpec) { s.Racing = v1alpha1.RacingSerialize })
	s.there = job(in("Failed"))
	s.onLook = func(look int) { s.there.SetResourceVersion(fmt.Sprint(look)) }
	resp := s.review(validating, creatingJob(markedJob))
	if resp.Allowed || resp.Result.Code != 429 || len(s.replaced) > 0 || len(s.calls) > 4*rounds {
		t.Errorf("%+v after %v", resp.Result, s.calls)
	}
}

// scenarios are states of the cluster that enforce would do something about.
func scenarios() map[string]func(*nameStage) {
	now := time.Now()
	return map[string]func(*nameStage){
		"running, same work":  func(s *nameStage) { s.there = job() },
		"running, other work": func(s *nameStage) { s.there = job(ofSunday) },
		"finished":            func(s *nameStage) { s.there = job(in("Failed")) },
		"finished, foreign":   func(s *nameStage) { s.there = job(foreign, in("Failed")) },
		"terminating":         func(s *nameStage) { s.there = job(deletedAt(now)) },
		"stuck":               func(s *nameStage) { s.there = job(deletedAt(now.Add(-time.Hour), "x")) },
		"Pods run":            func(s *nameStage) { s.pods = naming.PodsFact{State: fact.Known, Names: []string{"a-x"}} },
		"Pods are stuck": func(s *nameStage) {
			s.pods = naming.PodsFact{State: fact.Known, Names: []string{"a-x"}, Terminating: true, Since: now.Add(-time.Hour)}
		},
		"unknown":        func(s *nameStage) { s.unknown = fact.CauseServer },
		"no right":       func(s *nameStage) { s.there, s.right = job(in("Failed")), naming.RightFact{State: fact.Absent} },
		"another's turn": func(s *nameStage) { s.onTurn = func(replace.Turn) (bool, string, error) { return false, sunday, nil } },
		"nothing":        func(*nameStage) {},
	}
}

// specs are policies of several kinds.
func specs() map[string]func(*v1alpha1.NamePolicySpec) {
	return map[string]func(*v1alpha1.NamePolicySpec){
		"replacing":   nil,
		"serializing": func(s *v1alpha1.NamePolicySpec) { s.Racing = v1alpha1.RacingSerialize },
		"rejecting":   func(s *v1alpha1.NamePolicySpec) { s.WhenFinished = v1alpha1.FinishedReject },
		"verifying":   func(s *v1alpha1.NamePolicySpec) { s.Verify = `"b"` },
		"failing":     func(s *v1alpha1.NamePolicySpec) { s.Identity = []string{"object.nope"} },
		"generating":  generating,
		"ignoring":    func(s *v1alpha1.NamePolicySpec) { s.FailurePolicy = v1alpha1.FailureIgnore },
	}
}

// TestWarnModeChangesNothing: in no state of the cluster, under no policy, in neither
// phase does warn mode deny, change or delete anything, or take a turn.
func TestWarnModeChangesNothing(t *testing.T) {
	t.Parallel()
	for title, scenario := range scenarios() {
		for kind, spec := range specs() {
			t.Run(title+", "+kind, func(t *testing.T) {
				t.Parallel()
				for _, path := range []string{mutating, validating} {
					for _, object := range []string{plainJob, markedJob, namelessJob, `{"metadata":{"name":7}}`, "null"} {
						s := setNames(t, spec).with(scenario).with(inWarnMode)
						resp := s.review(path, creatingJob(object, func(r *admissionv1.AdmissionRequest) {
							if object == namelessJob {
								r.Name = ""
							}
						}))
						if !resp.Allowed || resp.Patch != nil {
							t.Errorf("%s %s: %+v", path, object, resp)
						}
						if did := s.sideEffects(); slices.Contains(did, "replace") || slices.Contains(did, "turn") {
							t.Errorf("%s %s: %v", path, object, did)
						}
					}
				}
			})
		}
	}
}

// TestWarnModeTrustsNoMark: nothing in warn mode has written it.
func TestWarnModeTrustsNoMark(t *testing.T) {
	t.Parallel()
	s := setNames(t, nil).with(inWarnMode).with(func(s *nameStage) { s.there = job() })
	resp := s.review(validating, creatingJob(strings.Replace(markedJob, monday, sunday, 1)))
	if !resp.Allowed || reasonOf(resp) != string(naming.ReasonSameWork) {
		t.Errorf("%+v", resp)
	}
}

// TestN26_ADryRunHasNoSideEffect: not in any state of the cluster, and its answer has the
// code that a create would get, or it says what would have been deleted.
func TestN26_ADryRunHasNoSideEffect(t *testing.T) {
	t.Parallel()
	for title, scenario := range scenarios() {
		for kind, spec := range specs() {
			t.Run(title+", "+kind, func(t *testing.T) {
				t.Parallel()
				dry := setNames(t, spec).with(scenario)
				resp := dry.review(validating, creatingJob(markedJob, dryRun))
				if did := dry.sideEffects(); len(did) > 0 {
					t.Errorf("%v", did)
				}
				real := setNames(t, spec).with(scenario)
				want := real.review(validating, creatingJob(markedJob))
				switch {
				case len(real.replaced) > 0:
					if resp.Allowed || resp.Result.Code != 429 || !strings.Contains(resp.Result.Message, "would be deleted") {
						t.Errorf("%+v", resp)
					}
				case slices.Contains(real.sideEffects(), "turn"): // whose turn it is is not asked for
				case resp.Allowed != want.Allowed || !want.Allowed && resp.Result.Code != want.Result.Code:
					t.Errorf("dry %+v\nreal %+v", resp, want)
				}
			})
		}
	}
}

func TestN17_WhatHoldsANameForLongIsToldOf(t *testing.T) {
	t.Parallel()
	long := time.Now().Add(-time.Hour)
	for name, c := range map[string]struct {
		stage func(*nameStage)
		req   *admissionv1.AdmissionRequest
		want  []naming.Stuck
	}{
		"a Job with a finalizer": {func(s *nameStage) { s.there = job(deletedAt(long, "x")) }, creatingJob(markedJob), []naming.Stuck{{Namespace: "lab", APIVersion: "batch/v1", Kind: "Job", Name: "a", UID: "job-uid"}}},
		"a Job a moment ago":     {func(s *nameStage) { s.there = job(deletedAt(time.Now(), "x")) }, creatingJob(markedJob), nil},
		"a dry run":              {func(s *nameStage) { s.there = job(deletedAt(long, "x")) }, creatingJob(markedJob, dryRun), nil},
		"a Pod": {func(s *nameStage) {
			s.pods = naming.PodsFact{State: fact.Known, Names: []string{"a-x"}, Terminating: true, Since: long}
		}, creatingJob(markedJob), []naming.Stuck{{Namespace: "lab", APIVersion: "v1", Kind: "Pod", Name: "a-x"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setNames(t, nil).with(c.stage)
			s.review(validating, c.req)
			if diff := cmp.Diff(c.want, s.stuck); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestAGracePeriodIsPartOfTheTime: the API server writes down when a Pod is to be gone.
func TestAGracePeriodIsPartOfTheTime(t *testing.T) {
	t.Parallel()
	end := time.Date(2026, 3, 1, 12, 0, 30, 0, time.UTC)
	s := setNames(t, nil).with(func(s *nameStage) {
		s.there = job(deletedAt(end))
		thirty := int64(30)
		s.there.SetDeletionGracePeriodSeconds(&thirty)
	})
	resp := s.review(validating, creatingJob(markedJob))
	if want := `belay: job "a" is being deleted since 2026-03-01 12:00:00 UTC, it may take 30 s to end; try again`; resp.Result.Message != want {
		t.Errorf("got %q", resp.Result.Message)
	}
}

func TestThePolicyOfThePath(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		standing facts.Standing
		path     string
		code     int // of HTTP
		body     string
		reason   string
		warnings []string
	}{
		"there is none":                {facts.StandingAbsent, "/validate/name/nope", 404, `there is no NamePolicy "nope"`, "", nil},
		"there is none, mutating":      {facts.StandingAbsent, "/mutate/name/nope", 404, `there is no NamePolicy "nope"`, "", nil},
		"a name that is cut":           {facts.StandingAbsent, "/mutate/name/" + strings.Repeat("n", 500), 404, `there is no NamePolicy "` + strings.Repeat("n", 100) + `"`, "", nil},
		"the path names none":          {facts.StandingUnknown, "/validate/name/", 404, "the path names no policy", "", nil},
		"the path names none, either":  {facts.StandingUnknown, "/mutate/name/", 404, "the path names no policy", "", nil},
		"it could not be read":         {facts.StandingUnknown, "/validate/name/nope", 500, `NamePolicy "nope" could not be read in time; the create may be repeated`, "", nil},
		"it could not be read, either": {facts.StandingUnknown, "/mutate/name/nope", 500, `NamePolicy "nope" could not be read in time; the create may be repeated`, "", nil},
		"reading it panics":            {panicking, "/validate/name/nope", 500, "belay had an internal error; see its log", "", nil},
		"it was deleted a moment ago":  {facts.StandingDeleted, "/validate/name/nope", 200, "", ReasonPolicyDeleted, nil},
		"it was never accepted":        {facts.StandingNotInForce, "/validate/name/nope", 200, "", ReasonPolicyNotInForce, []string{`belay: NamePolicy "nope" has never been accepted; see its conditions`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setNames(t, nil).with(func(s *nameStage) { s.standing = c.standing; s.there = job(ofSunday) })
			code, body := s.post(c.path, reviewOf(t, creatingJob(markedJob)))
			if code != c.code {
				t.Fatalf("HTTP %d: %s", code, body)
			}
			if code != http.StatusOK {
				if strings.TrimSpace(body) != c.body {
					t.Errorf("got %q", body)
				}
				return
			}
			var out admissionv1.AdmissionReview
			if err := json.Unmarshal([]byte(body), &out); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.warnings, out.Response.Warnings); diff != "" || !out.Response.Allowed || reasonOf(out.Response) != c.reason {
				t.Errorf("%s%+v", diff, out.Response)
			}
		})
	}
}

// TestP22_APanicEndsOneNameRequest runs its cases one after the other: they share a counter.
func TestP22_APanicEndsOneNameRequest(t *testing.T) {
	t.Parallel()
	before := count(t, metrics.Panics, "name")
	boom := func(s *nameStage) { s.onLook = func(int) { panic("boom") } }
	failing := setNames(t, nil).with(boom)
	resp := failing.review(validating, creatingJob(markedJob))
	if resp.Allowed || resp.Result.Code != 500 || resp.Result.Reason != metav1.StatusReasonInternalError || strings.Contains(resp.Result.Message, "boom") || resp.Result.Details.RetryAfterSeconds != 0 {
		t.Errorf("Fail: %+v", resp)
	}
	ignoring := setNames(t, func(s *v1alpha1.NamePolicySpec) { s.FailurePolicy = v1alpha1.FailureIgnore }).with(boom)
	resp = ignoring.review(validating, creatingJob(markedJob))
	if want := []string{"belay: belay had an internal error; see its log; the object is admitted unchecked"}; !resp.Allowed || cmp.Diff(want, resp.Warnings) != "" {
		t.Errorf("Ignore: %+v", resp)
	}
	if resp = setNames(t, nil).with(boom).with(inWarnMode).review(validating, creatingJob(markedJob)); !resp.Allowed || len(resp.Warnings) != 1 {
		t.Errorf("warn mode: %+v", resp)
	}
	if got := count(t, metrics.Panics, "name") - before; got < 3 {
		t.Errorf("%v panics were counted", got)
	}
	failing.onLook = nil
	if resp = failing.review(validating, creatingJob(markedJob)); !resp.Allowed {
		t.Errorf("the next request: %+v", resp)
	}
}

// TestP08_NamesAreAnsweredInTime has a cluster that answers nothing, and a client that
// waits as long as the API server says it does.
func TestP08_NamesAreAnsweredInTime(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec    func(*v1alpha1.NamePolicySpec)
		allowed bool
	}{
		"failing":  {nil, false},
		"ignoring": {func(s *v1alpha1.NamePolicySpec) { s.FailurePolicy = v1alpha1.FailureIgnore }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setNames(t, c.spec).with(func(s *nameStage) { s.block = true })
			apiServer := http.Client{Timeout: 2 * time.Second}
			resp, err := apiServer.Post(s.server().URL+validating+"?timeout=2s", "application/json", bytes.NewReader(reviewOf(t, creatingJob(markedJob))))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			var out admissionv1.AdmissionReview
			if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
				t.Fatal(err)
			}
			if out.Response.Allowed != c.allowed || !c.allowed && (out.Response.Result.Code != 503 || out.Response.Result.Details.RetryAfterSeconds != 1) {
				t.Errorf("%+v", out.Response)
			}
		})
	}
}

// TestAnExpressionThatIsCutShortSaysNothing: an object whose spec.finished could not be
// evaluated in time does not count as running.
func TestAnExpressionThatIsCutShortSaysNothing(t *testing.T) {
	t.Parallel()
	const ten = `[0,1,2,3,4,5,6,7,8,9]`
	slow := ten + `.all(a, ` + ten + `.all(b, ` + ten + `.all(c, existing.metadata.name == "a")))`
	for name, spec := range map[string]func(*v1alpha1.NamePolicySpec){
		"finished": func(s *v1alpha1.NamePolicySpec) { s.Finished = slow },
		"hold":     func(s *v1alpha1.NamePolicySpec) { s.Finished, s.Hold = "true", slow },
		"identity": func(s *v1alpha1.NamePolicySpec) {
			s.AdoptUnmarked, s.Identity = true, []string{strings.ReplaceAll(slow, "existing", "object")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setNames(t, spec)
			s.policies["restore"] = namePolicy(t, spec, v1alpha1.ResolvedResource{Group: "example.com", Version: "v1", Kind: "Train", Resource: "trains", Namespaced: true})
			s.there = job()
			if name == "identity" {
				s.there = job(foreign)
			}
			// The object is found at the very end of the time.
			s.onLook = func(int) {
				timer := time.NewTimer(200 * time.Millisecond)
				defer timer.Stop()
				<-timer.C
			}
			resp := s.review(validating+"?timeout=200ms", creatingJob(markedJob, func(r *admissionv1.AdmissionRequest) {
				r.Kind = metav1.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Train"}
				r.Resource = metav1.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "trains"}
			}))
			if resp.Allowed || resp.Result.Code != 503 || len(s.replaced) > 0 {
				t.Errorf("%+v", resp.Result)
			}
		})
	}
}

// TestACopiedMarkDoesNotOutliveATimeout: an object whose work could not be told in time is
// admitted, if the policy says so, but not with the mark of another one.
func TestACopiedMarkDoesNotOutliveATimeout(t *testing.T) {
	t.Parallel()
	const ten = `[0,1,2,3,4,5,6,7,8,9]`
	s := setNames(t, func(s *v1alpha1.NamePolicySpec) {
		s.FailurePolicy, s.Identity = v1alpha1.FailureIgnore, []string{ten + `.map(a, ` + ten + `.map(b, ` + ten + `.map(c, object.metadata.name)))`}
	})
	resp := s.review(mutating+"?timeout=1ns", creatingJob(strings.Replace(markedJob, monday, sunday, 1)))
	if want := `[{"op":"remove","path":"/metadata/annotations/belay.dev~1work"}]`; !resp.Allowed || string(resp.Patch) != want || len(resp.Warnings) != 1 {
		t.Errorf("%s %+v", resp.Patch, resp)
	}
}

// TestTheVersionOfTheRequestIsRead: expressions compare both objects, so that both have to
// come in one version.
func TestTheVersionOfTheRequestIsRead(t *testing.T) {
	t.Parallel()
	at := func(version string) v1alpha1.ResolvedResource {
		return v1alpha1.ResolvedResource{Group: "example.com", Version: version, Kind: "Train", Resource: "trains", Namespaced: true}
	}
	for name, c := range map[string]struct{ version, want string }{
		"the first of them":  {"v1beta1", "example.com/v1beta1/trains lab/a"},
		"the second of them": {"v1", "example.com/v1/trains lab/a"},
		"neither: the first": {"v2", "example.com/v1beta1/trains lab/a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setNames(t, nil)
			s.policies["restore"] = namePolicy(t, nil, at("v1beta1"), at("v1"))
			s.review(validating, creatingJob(markedJob, func(r *admissionv1.AdmissionRequest) {
				r.Kind = metav1.GroupVersionKind{Group: "example.com", Version: c.version, Kind: "Train"}
				r.Resource = metav1.GroupVersionResource{Group: "example.com", Version: c.version, Resource: "trains"}
			}))
			if diff := cmp.Diff([]string{c.want}, s.versions); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestAClusterScopedObjectIsOfNoNamespace(t *testing.T) {
	t.Parallel()
	s := setNames(t, func(s *v1alpha1.NamePolicySpec) { s.Identity = []string{"object.rules"} })
	s.mode = "" // there is no namespace that could have one
	resp := s.review(validating, creatingJob(`{"metadata":{"name":"reader"},"rules":[]}`, func(r *admissionv1.AdmissionRequest) {
		r.Namespace, r.Name = "", "reader"
		r.Kind = metav1.GroupVersionKind{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"}
		r.Resource = metav1.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"}
	}))
	if !resp.Allowed || reasonOf(resp) != string(naming.ReasonNameFree) {
		t.Errorf("%+v", resp)
	}
	if diff := cmp.Diff([]string{"rbac.authorization.k8s.io/v1/clusterroles /reader"}, s.versions); diff != "" {
		t.Error(diff)
	}
}

// secretRequest is for a Secret, with its data.
func secretRequest(object string) *admissionv1.AdmissionRequest {
	return creatingJob(object, func(r *admissionv1.AdmissionRequest) {
		r.Kind = metav1.GroupVersionKind{Version: "v1", Kind: "Secret"}
		r.Resource = metav1.GroupVersionResource{Version: "v1", Resource: "secrets"}
	})
}

// TestTheDataOfSecretsIsNotSeen: neither of the one that is created nor of the one that is
// there, by no expression.
func TestTheDataOfSecretsIsNotSeen(t *testing.T) {
	t.Parallel()
	const token = "dG9rLTVlNmY3YThi"
	const object = `{"metadata":{"name":"a","labels":{}},"data":{"t":"` + token + `"},"stringData":{"t":"` + token + `"}}`
	// Each would put the token into a message.
	leak := func(of string) string {
		return `object.metadata.labels[` + of + `] == "x" ? "a" : "b"`
	}
	for name, spec := range map[string]func(*v1alpha1.NamePolicySpec){
		"identity, data":       func(s *v1alpha1.NamePolicySpec) { s.Identity = []string{leak("object.data.t")} },
		"identity, stringData": func(s *v1alpha1.NamePolicySpec) { s.Identity = []string{leak("object.stringData.t")} },
		"verify":               func(s *v1alpha1.NamePolicySpec) { s.Identity, s.Verify = []string{`"x"`}, "object.data.t" },
		"generate": func(s *v1alpha1.NamePolicySpec) {
			generating(s)
			s.Identity, s.Generate.Prefix, s.Verify = []string{`"x"`}, "object.data.t", "generated"
		},
		"finished": func(s *v1alpha1.NamePolicySpec) {
			s.Identity, s.Finished = []string{`"x"`}, `existing.metadata.labels[existing.data.t] == "x"`
		},
		"hold": func(s *v1alpha1.NamePolicySpec) {
			s.Identity, s.Finished, s.Hold = []string{`"x"`}, "true", `existing.metadata.labels[existing.data.t] == "x"`
		},
		"hold, stringData": func(s *v1alpha1.NamePolicySpec) {
			s.Identity, s.Finished, s.Hold = []string{`"x"`}, "true", `existing.metadata.labels[existing.stringData.t] == "x"`
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var lines []string
			for _, path := range []string{mutating, validating} {
				s := setNames(t, spec)
				s.log = funcr.New(func(prefix, args string) {
					mu.Lock()
					defer mu.Unlock()
					lines = append(lines, prefix+args)
				}, funcr.Options{Verbosity: 10})
				s.there = job(ofSunday, func(u *unstructured.Unstructured) {
					u.SetKind("Secret")
					u.SetLabels(map[string]string{})
					u.Object["data"] = map[string]any{"t": token}
					u.Object["stringData"] = map[string]any{"t": token}
				})
				if _, body := s.post(path, reviewOf(t, secretRequest(object))); strings.Contains(body, token) || strings.Contains(body, strings.ToLower(token)) {
					t.Errorf("%s answers %s", path, body)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if all := strings.Join(lines, "\n"); strings.Contains(all, token) || len(lines) == 0 {
				t.Errorf("%d lines are logged: %s", len(lines), all)
			}
		})
	}
}

// TestTheWorkOfAnAdoptedSecretIsThatOfTheNewOne: both without their data.
func TestTheWorkOfAnAdoptedSecretIsThatOfTheNewOne(t *testing.T) {
	t.Parallel()
	s := setNames(t, func(s *v1alpha1.NamePolicySpec) {
		s.Identity, s.AdoptUnmarked = []string{"object.?data", "object.type"}, true
	})
	s.there = job(foreign, func(u *unstructured.Unstructured) {
		u.Object["type"], u.Object["data"] = "Opaque", map[string]any{"t": "eA=="}
	})
	resp := s.review(validating, secretRequest(`{"metadata":{"name":"a"},"type":"Opaque","data":{"t":"eA=="}}`))
	if resp.Allowed || resp.Result.Reason != metav1.StatusReasonAlreadyExists {
		t.Errorf("%+v", resp.Result)
	}
}

// TestAGeneratedNameIsOfTheObjectsLimit: what is derived of it fits, too.
func TestAGeneratedNameIsOfTheObjectsLimit(t *testing.T) {
	t.Parallel()
	s := setNames(t, func(s *v1alpha1.NamePolicySpec) {
		s.Generate = &v1alpha1.NameGeneration{Prefix: `"` + strings.Repeat("a", 100) + `"`, Key: []string{`"k"`}}
		s.Verify = "generated"
	})
	const spec = `"spec":{"completionMode":"Indexed","completions":100000},`
	resp := s.review(mutating, creatingJob(strings.Replace(namelessJob, `"metadata"`, spec+`"metadata"`, 1), nameless))
	want := names.Of(strings.Repeat("a", 100), 57, "k")
	if !strings.Contains(string(resp.Patch), `"`+want+`"`) || len(want) != 57 {
		t.Errorf("%s", resp.Patch)
	}
	// The validating phase wants the same.
	object := strings.Replace(strings.Replace(markedJob, `"name":"a"`, `"name":"`+want+`"`, 1), `"metadata"`, spec+`"metadata"`, 1)
	if resp := s.review(validating, creatingJob(object, func(r *admissionv1.AdmissionRequest) { r.Name = want })); !resp.Allowed {
		t.Errorf("%+v", resp.Result)
	}
}

// TestMetricsHaveClosedLabels: whatever is asked, by whomever.
func TestMetricsHaveClosedLabels(t *testing.T) {
	t.Parallel()
	known := []string{
		ReasonPolicyDeleted, ReasonPolicyNotInForce, ReasonPolicyUnreadable, ReasonExcluded, ReasonNotOptedIn, ReasonObjectUnreadable, ReasonInternal,
		"NotCreate", "Marked", "NameGenerated", "ServerNamed", "NameFree", "Replaced", "SameWork", "Settling", "Coalesced", "OtherWork", "Foreign", "Finished", "Held", "HoldUnknown",
		"Terminating", "PodsRunning", "Replacing", "WouldReplace", "NoTimeLeft", "DeleteForbidden", "Racing", "WrongName", "InvalidName", "ExpressionFailed", "LookupFailed", "ReplaceFailed",
	}
	for _, scenario := range scenarios() {
		s := setNames(t, nil).with(scenario)
		odd := creatingJob(strings.Replace(markedJob, `"name":"a"`, `"name":"odd-`+strings.Repeat("x", 50)+`"`, 1), func(r *admissionv1.AdmissionRequest) {
			r.Operation = "ODD"
		})
		s.review(validating, creatingJob(markedJob))
		s.review(validating, odd)
		s.review(mutating, creatingJob(`{"metadata":7}`))
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(metrics.Decisions)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["webhook"] != "name" {
				continue
			}
			seen++
			if !slices.Contains(known, labels["reason"]) || !slices.Contains([]string{"", "enforce", "warn"}, labels["mode"]) || !slices.Contains([]string{"allowed", "denied"}, labels["decision"]) || !slices.Contains([]string{"mutate", "validate"}, labels["phase"]) {
				t.Errorf("%v", labels)
			}
		}
	}
	if seen < 5 {
		t.Errorf("only %d series: this test proves nothing", seen)
	}
}

// TestConcurrentNamesDoNotMix sends many reviews at once; each gets its own answer.
func TestConcurrentNamesDoNotMix(t *testing.T) {
	t.Parallel()
	s := setNames(t, generating)
	url := s.server().URL + mutating
	var wg sync.WaitGroup
	for i := range 50 {
		work := fmt.Sprintf("day-%d", i)
		body := reviewOf(t, creatingJob(strings.Replace(namelessJob, "monday", work, 1), nameless))
		wg.Go(func() {
			resp, err := http.Post(url, "application/json", bytes.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = resp.Body.Close() }()
			out, err := io.ReadAll(resp.Body)
			var review admissionv1.AdmissionReview
			if err != nil || json.Unmarshal(out, &review) != nil || !strings.Contains(string(review.Response.Patch), `"`+names.Of("restore-"+work, 63, work)+`"`) {
				t.Errorf("%s: %v %s", work, err, out)
			}
		})
	}
	wg.Wait()
}

// TestN01_TheLogNamesWhatWasNamed: an object that came without a name is not one without
// identity in the log.
func TestN01_TheLogNamesWhatWasNamed(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var lines []string
	s := setNames(t, generating)
	s.log = funcr.New(func(prefix, args string) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, prefix+args)
	}, funcr.Options{Verbosity: 10})
	s.review(mutating, creatingJob(namelessJob, nameless))
	mu.Lock()
	defer mu.Unlock()
	if all := strings.Join(lines, "\n"); !strings.Contains(all, mondayName) {
		t.Errorf("%s", all)
	}
}
