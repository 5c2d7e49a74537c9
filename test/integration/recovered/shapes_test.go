package recovered

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// object is JSON.
type object = map[string]any

// setter is the user whose writes the policies of variations leave alone: a test puts an
// object into any state with it, at one request, before it makes the write that counts.
const setter = "setter"

// variation is how a kind differs from OpenSandbox's.
type variation struct {
	opensandbox.CRDOptions
	schema func(*apiextensionsv1.CustomResourceDefinition)
	policy func(*v1alpha1.RecoveryPolicySpec)
}

// kind is a variation that is installed, with a policy of its own, and a namespace for its
// objects.
type kind struct {
	t     *testing.T
	names opensandbox.Names
	// version is the one that apply speaks of.
	version   string
	namespace string
	// guarded is an administrator; past is one whom the policy does not see.
	guarded, past dynamic.ResourceInterface
	admin         *rest.Config
}

// vary installs variations side by side, and waits until their policies are in force.
func vary(ctx context.Context, t *testing.T, test string, variations map[string]variation) map[string]*kind {
	t.Helper()
	kinds := map[string]*kind{}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "belay-test-" + test, Labels: map[string]string{
		"rbac.belay.dev/aggregate-to-recovery-driver": "true",
	}}}
	for name, v := range variations {
		v.Names = opensandbox.Names{Group: name + "." + test + ".example.com"}
		gvr := v.GVR(opensandbox.Version)
		kinds[name] = v.install(ctx, t, shared.TestNamespace(ctx, t, test, v1alpha1.ModeEnforce))
		role.Rules = append(role.Rules,
			rbacv1.PolicyRule{APIGroups: []string{gvr.Group}, Resources: []string{gvr.Resource}, Verbs: []string{"get", "list", "watch", "patch"}},
			rbacv1.PolicyRule{APIGroups: []string{gvr.Group}, Resources: []string{gvr.Resource + "/status"}, Verbs: []string{"patch"}})
	}
	must(t, shared.Client.Create(ctx, role))
	stack.Cleanup(t, func(ctx context.Context) { _ = shared.Client.Delete(ctx, role) })
	for name, v := range variations {
		k := kinds[name]
		k.mayDrive(ctx)
		p := builders.MakeRecoveryPolicy(test + "-" + name).Spec(func(s *v1alpha1.RecoveryPolicySpec) {
			gvk := k.names.GVK(opensandbox.Version)
			s.Resource = v1alpha1.Kind{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind}
			s.MatchConditions = []v1alpha1.MatchCondition{{Name: "not-setter", Expression: fmt.Sprintf("request.userInfo.username != %q", setter)}}
			if v.policy != nil {
				v.policy(s)
			}
		}).Obj()
		must(t, shared.Client.Create(ctx, p))
		stack.Cleanup(t, func(ctx context.Context) { _ = shared.Client.Delete(ctx, p) })
	}
	wait, cancel := context.WithTimeout(ctx, stack.Bound)
	defer cancel()
	for name := range variations {
		must(t, shared.WaitRecoveryPolicy(wait, test+"-"+name))
	}
	return kinds
}

// install installs the CRD.
func (v variation) install(ctx context.Context, t *testing.T, namespace string) *kind {
	t.Helper()
	crd := opensandbox.CRD(v.CRDOptions)
	if v.schema != nil {
		v.schema(crd)
	}
	must(t, shared.ApplyCRD(ctx, crd))
	stack.Cleanup(t, func(ctx context.Context) {
		crds := apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")
		_ = shared.Dynamic.Resource(crds).Delete(ctx, crd.Name, metav1.DeleteOptions{})
	})
	k := &kind{t: t, names: v.Names, version: opensandbox.Version, namespace: namespace, admin: shared.Plane.Config()}
	k.guarded = dynamicFor(t, k.admin).Resource(v.GVR(k.version)).Namespace(namespace)
	past := rest.CopyConfig(k.admin)
	past.Impersonate = rest.ImpersonationConfig{UserName: setter, Groups: []string{"system:masters"}}
	k.past = dynamicFor(t, past).Resource(v.GVR(k.version)).Namespace(namespace)
	return k
}

// in is the kind for a part of a test.
func (k *kind) in(t *testing.T) *kind {
	out := *k
	out.t = t
	return &out
}

func dynamicFor(t *testing.T, cfg *rest.Config) dynamic.Interface {
	t.Helper()
	cfg = rest.CopyConfig(cfg)
	cfg.WarningHandler = rest.NoWarnings{} // there are many
	c, err := dynamic.NewForConfig(cfg)
	must(t, err)
	return c
}

// mayDrive waits until the aggregated role has belay's rights: a policy that lacks some is
// looked at again after seconds.
func (k *kind) mayDrive(ctx context.Context) {
	k.t.Helper()
	stack.Eventually(ctx, k.t, "belay's rights", func() error {
		gvr := k.names.GVR("")
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               "system:serviceaccount:" + stack.Namespace + ":" + stack.ControllerAccount,
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "patch", Group: gvr.Group, Resource: gvr.Resource},
		}}
		if err := shared.Client.Create(ctx, review); err != nil {
			return err
		}
		if !review.Status.Allowed {
			return fmt.Errorf("not yet: %s", review.Status.Reason)
		}
		return nil
	})
}

// box creates an object with ready Pods and a status, past the policy.
func (k *kind) box(ctx context.Context, name string, pods int, status object) []*corev1.Pod {
	k.t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(opensandbox.Sandbox(k.namespace, name, int32(pods)))
	must(k.t, err)
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(k.names.GVK(opensandbox.Version))
	unstructured.RemoveNestedField(u.Object, "status")
	u, err = k.past.Create(ctx, u, metav1.CreateOptions{})
	must(k.t, err)
	b := opensandbox.Sandbox(k.namespace, name, int32(pods))
	b.UID = u.GetUID()
	b.SetGroupVersionKind(u.GroupVersionKind())
	var out []*corev1.Pod
	for i := range pods {
		p, err := opensandbox.NewPod(b, i)
		must(k.t, err)
		must(k.t, shared.Client.Create(ctx, p))
		must(k.t, opensandbox.Ready(ctx, shared.Client, p))
		out = append(out, p)
	}
	if status != nil {
		k.set(ctx, name, status)
	}
	return out
}

// set makes a status the whole status of an object, past the policy, and its fields nobody's.
func (k *kind) set(ctx context.Context, name string, status any) *unstructured.Unstructured {
	k.t.Helper()
	ops := []object{{"op": "add", "path": "/status", "value": status}, {"op": "add", "path": "/metadata/managedFields", "value": []object{{}}}}
	u, err := k.past.Patch(ctx, name, types.JSONPatchType, encoded(k.t, ops), metav1.PatchOptions{}, "status")
	if err != nil {
		k.t.Fatalf("setting the status of %s: %v", name, err)
	}
	return u
}

func (k *kind) get(ctx context.Context, name string) *unstructured.Unstructured {
	k.t.Helper()
	u, err := k.past.Get(ctx, name, metav1.GetOptions{})
	must(k.t, err)
	return u
}

// Verbs that write a status.
const (
	byMerge = "merge patch"
	byJSON  = "JSON patch"
	byPut   = "PUT"
	byApply = "apply"
)

var verbs = []string{byMerge, byJSON, byPut, byApply}

// gone, as a field of a JSON patch, removes it.
type gone struct{}

// send writes fields of a status. In a PUT they are all that there is; in the others they
// are those that the client names. An apply takes what it names from whoever has it.
func (k *kind) send(ctx context.Context, c dynamic.ResourceInterface, verb, name string, fields object, dryRun ...string) (*unstructured.Unstructured, error) {
	o := metav1.PatchOptions{DryRun: dryRun, FieldManager: "writer"}
	switch verb {
	case byMerge:
		return c.Patch(ctx, name, types.MergePatchType, encoded(k.t, object{"status": fields}), o, "status")
	case byJSON:
		ops := []object{}
		for field, v := range fields {
			if v == (gone{}) {
				ops = append(ops, object{"op": "remove", "path": "/status/" + field})
			} else {
				ops = append(ops, object{"op": "add", "path": "/status/" + field, "value": v})
			}
		}
		return c.Patch(ctx, name, types.JSONPatchType, encoded(k.t, ops), o, "status")
	case byPut:
		u, err := c.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		u.Object["status"] = fields
		return c.UpdateStatus(ctx, u, metav1.UpdateOptions{DryRun: dryRun, FieldManager: "writer"})
	}
	gvk := k.names.GVK(k.version)
	o.Force, o.FieldManager = new(true), "applier"
	u := object{"apiVersion": gvk.GroupVersion().String(), "kind": gvk.Kind, "metadata": object{"name": name}, "status": fields}
	return c.Patch(ctx, name, types.ApplyPatchType, encoded(k.t, u), o, "status")
}

func encoded(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	must(t, err)
	return b
}

// status is one with the counters that BatchSandboxes want, a phase unless it is empty, and
// more fields.
func status(phase string, more object) object {
	s := object{}
	for _, counter := range []string{"allocated", "ready", "replicas", "taskFailed", "taskPending", "taskRunning", "taskSucceed", "taskUnknown"} {
		s[counter] = int64(1)
	}
	if phase != "" {
		s["phase"] = phase
	}
	for field, v := range more {
		s[field] = v
	}
	return s
}

// record are the UIDs that an object has at a path: none where the field is absent or null.
func record(t *testing.T, u *unstructured.Unstructured, path ...string) []string {
	t.Helper()
	if len(path) == 0 {
		path = []string{"status", "failedPodUIDs"}
	}
	v, found, err := unstructured.NestedFieldNoCopy(u.Object, path...)
	if err != nil || !found || v == nil {
		return nil
	}
	var out []string
	for _, e := range v.([]any) {
		out = append(out, e.(string))
	}
	return out
}

func phaseOf(u *unstructured.Unstructured) string {
	p, _, _ := unstructured.NestedString(u.Object, "status", "phase")
	return p
}

// resumeFailed is the condition that makes a failure terminal.
func resumeFailed() []any { return []any{object{"type": "ResumeFailed", "status": "True"}} }

// u is a UID that no Pod has.
func u(n int) string { return fmt.Sprintf("00000000-0000-0000-0000-%012d", n) }

// named makes a name of an object from any text.
func named(text string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text)) // never fails
	return fmt.Sprintf("box-%x", h.Sum64())
}

// changeStatus changes the schema of the status, in every version.
func changeStatus(crd *apiextensionsv1.CustomResourceDefinition, change func(*apiextensionsv1.JSONSchemaProps)) {
	for i := range crd.Spec.Versions {
		schema := crd.Spec.Versions[i].Schema.OpenAPIV3Schema
		s := schema.Properties["status"]
		change(&s)
		schema.Properties["status"] = s
	}
}

// causeOf is the first cause of a denial.
func causeOf(t *testing.T, err error) string {
	t.Helper()
	var s apierrors.APIStatus
	if !asStatus(err, &s) || s.Status().Details == nil || len(s.Status().Details.Causes) == 0 {
		t.Errorf("%v has no cause", err)
		return ""
	}
	return string(s.Status().Details.Causes[0].Type)
}

// audited is a request in the audit log.
type audited struct {
	Stage, Verb            string
	User, ImpersonatedUser struct{ Username string }
	ObjectRef              struct{ Namespace, Name, Resource, Subresource string }
	ResponseStatus         struct{ Code int }
	Annotations            map[string]string
}

// by is the user whose rights counted.
func (a audited) by() string {
	if a.ImpersonatedUser.Username != "" {
		return a.ImpersonatedUser.Username
	}
	return a.User.Username
}

func (a audited) reads() bool { return a.Verb == "get" || a.Verb == "list" || a.Verb == "watch" }

// guarded reports whether a RecoveryPolicy had a say.
func (a audited) guarded() bool {
	for key := range a.Annotations {
		if strings.HasSuffix(key, v1alpha1.RecoveryEntryDomain+"/decision") {
			return true
		}
	}
	return false
}

// auditedIn are the finished requests in a namespace. The log is written a moment late.
func auditedIn(t *testing.T, namespace string) []audited {
	t.Helper()
	all, err := stack.AuditLog[audited](shared, strconv.Quote(namespace))
	must(t, err)
	var out []audited
	for _, a := range all {
		if a.Stage == "ResponseComplete" && a.ObjectRef.Namespace == namespace {
			out = append(out, a)
		}
	}
	return out
}

// TestShapes: whatever is there of a status, or is not, the record is put where it belongs,
// and nothing beside it is lost.
func TestShapes(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	uidList := apiextensionsv1.JSONSchemaProps{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{Type: "string"}}}
	// nested has everything below fields of the status, and the record two levels deep.
	nested := func(nullable bool) variation {
		return variation{
			schema: func(crd *apiextensionsv1.CustomResourceDefinition) {
				changeStatus(crd, func(s *apiextensionsv1.JSONSchemaProps) {
					s.Properties["failure"] = apiextensionsv1.JSONSchemaProps{Type: "object", Nullable: nullable, Properties: map[string]apiextensionsv1.JSONSchemaProps{
						"note": {Type: "string"},
						"pods": {Type: "object", Nullable: nullable, Properties: map[string]apiextensionsv1.JSONSchemaProps{"note": {Type: "string"}, "uids": uidList}},
					}}
					s.Required = nil
				})
			},
			policy: func(s *v1alpha1.RecoveryPolicySpec) { s.RecordPath = ".status.failure.pods.uids" },
		}
	}
	kinds := vary(ctx, t, "shapes", map[string]variation{
		"flat": {CRDOptions: opensandbox.CRDOptions{Record: &opensandbox.Record{}}, schema: func(crd *apiextensionsv1.CustomResourceDefinition) {
			changeStatus(crd, func(s *apiextensionsv1.JSONSchemaProps) { s.Required = nil })
		}},
		"nested": nested(false), "nested-nullable": nested(true),
	})
	paths := map[string][]string{"flat": {"status", "failedPodUIDs"}, "nested": {"status", "failure", "pods", "uids"}, "nested-nullable": {"status", "failure", "pods", "uids"}}

	// The pod fails, so that whoever fails the object without saying which gets it recorded.
	const uid = "$"
	for name, c := range map[string]struct {
		kind string
		// stored is the status before; nil is none. written is the whole of it after, in which
		// a field of what is stored that is not there is removed. $ is the UID of the pod.
		stored, written, want string
		code                  int32
	}{
		"S11 the first status ever is a failure":                         {"flat", ``, `{"phase":"Failed"}`, `{"phase":"Failed","failedPodUIDs":["$"]}`, 0},
		"S11 the first status ever is a failure, far down":               {"nested", ``, `{"phase":"Failed"}`, `{"phase":"Failed","failure":{"pods":{"uids":["$"]}}}`, 0},
		"S11 the first status ever is none of a failure":                 {"flat", ``, `{"phase":"Pending"}`, `{"phase":"Pending"}`, 0},
		"S11 the first status ever is empty":                             {"flat", ``, `{}`, `{}`, 0},
		"S11 an empty status":                                            {"flat", `{}`, `{"phase":"Failed"}`, `{"phase":"Failed","failedPodUIDs":["$"]}`, 0},
		"S11 a status without a phase":                                   {"nested", `{"ready":1}`, `{"phase":"Failed","ready":2}`, `{"phase":"Failed","ready":2,"failure":{"pods":{"uids":["$"]}}}`, 0},
		"S11 a list that is absent":                                      {"flat", `{"phase":"Succeed"}`, `{"phase":"Failed"}`, `{"phase":"Failed","failedPodUIDs":["$"]}`, 0},
		"S11 a list that is empty":                                       {"flat", `{"phase":"Succeed","failedPodUIDs":[]}`, `{"phase":"Failed","failedPodUIDs":[]}`, `{"phase":"Failed","failedPodUIDs":["$"]}`, 0},
		"S11 a parent that is empty":                                     {"nested", `{"phase":"Succeed","failure":{}}`, `{"phase":"Failed","failure":{}}`, `{"phase":"Failed","failure":{"pods":{"uids":["$"]}}}`, 0},
		"S11 a parent with a field of its own":                           {"nested", `{"phase":"Succeed"}`, `{"phase":"Failed","failure":{"note":"n","pods":{"note":"m"}}}`, `{"phase":"Failed","failure":{"note":"n","pods":{"note":"m","uids":["$"]}}}`, 0},
		"S11 a grandparent with a field of its own":                      {"nested", `{"phase":"Succeed"}`, `{"phase":"Failed","failure":{"note":"n"}}`, `{"phase":"Failed","failure":{"note":"n","pods":{"uids":["$"]}}}`, 0},
		"S11 a parent that is null":                                      {"nested-nullable", `{"phase":"Succeed","failure":{"pods":null}}`, `{"phase":"Failed","failure":{"pods":null}}`, `{"phase":"Failed","failure":{"pods":{"uids":["$"]}}}`, 0},
		"S11 a grandparent that is null":                                 {"nested-nullable", `{"phase":"Succeed","failure":null}`, `{"phase":"Failed","failure":null}`, `{"phase":"Failed","failure":{"pods":{"uids":["$"]}}}`, 0},
		"S11 a null that is none of a failure's":                         {"nested-nullable", `{"phase":"Succeed","failure":null}`, `{"phase":"Pending","failure":null}`, `{"phase":"Pending","failure":null}`, 0},
		"S12 a write that drops the record of a failure":                 {"flat", `{"phase":"Failed","failedPodUIDs":["$"]}`, `{"phase":"Failed","ready":3}`, `{"phase":"Failed","ready":3,"failedPodUIDs":["$"]}`, 0},
		"S12 a write that drops its parent":                              {"nested", `{"phase":"Failed","failure":{"note":"n","pods":{"uids":["$"]}}}`, `{"phase":"Failed","failure":{"note":"n"}}`, `{"phase":"Failed","failure":{"note":"n","pods":{"uids":["$"]}}}`, 0},
		"S12 a write that drops its grandparent":                         {"nested", `{"phase":"Failed","failure":{"note":"n","pods":{"uids":["$"]}}}`, `{"phase":"Pausing"}`, `{"phase":"Pausing","failure":{"pods":{"uids":["$"]}}}`, 0},
		"S12 a write that makes its grandparent null":                    {"nested-nullable", `{"phase":"Failed","failure":{"note":"n","pods":{"uids":["$"]}}}`, `{"phase":"Failed","failure":null}`, `{"phase":"Failed","failure":{"pods":{"uids":["$"]}}}`, 0},
		"S12 a resume that has dropped the record itself":                {"flat", `{"phase":"Failed","failedPodUIDs":["$"]}`, `{"phase":"Resuming"}`, `{"phase":"Resuming"}`, 0},
		"S12 a resume that has dropped its parent itself":                {"nested", `{"phase":"Failed","failure":{"pods":{"uids":["$"]}}}`, `{"phase":"Resuming"}`, `{"phase":"Resuming"}`, 0},
		"S12 a resume that has made its parent null itself":              {"nested-nullable", `{"phase":"Failed","failure":{"pods":{"uids":["$"]}}}`, `{"phase":"Resuming","failure":{"pods":null}}`, `{"phase":"Resuming","failure":{"pods":null}}`, 0},
		"S12 a resume that leaves it to the guard":                       {"nested", `{"phase":"Failed","failure":{"note":"n","pods":{"note":"m","uids":["$"]}}}`, `{"phase":"Resuming","failure":{"note":"n","pods":{"note":"m","uids":["$"]}}}`, `{"phase":"Resuming","failure":{"note":"n","pods":{"note":"m"}}}`, 0},
		"S12 a leftover far down":                                        {"nested", `{"phase":"Succeed","failure":{"pods":{"uids":["$"]}}}`, `{"phase":"Succeed","failure":{"pods":{"uids":["$"]}}}`, `{"phase":"Succeed","failure":{"pods":{}}}`, 0},
		"S12 a recovery without evidence that drops the record's parent": {"nested", `{"phase":"Failed","failure":{"pods":{"uids":["$"]}}}`, `{"phase":"Succeed"}`, ``, 403},
		"S12 a recovery without evidence that makes the parent null":     {"nested-nullable", `{"phase":"Failed","failure":{"pods":{"uids":["$"]}}}`, `{"phase":"Succeed","failure":null}`, ``, 403},
		"S12 a failure without a record that goes on without a parent":   {"nested", `{"phase":"Failed"}`, `{"phase":"Pausing"}`, `{"phase":"Pausing","failure":{"pods":{"uids":["` + v1alpha1.NoPodUID + `"]}}}`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := kinds[c.kind].in(t)
			for _, verb := range verbs {
				box := named(name + verb)
				pods := k.box(ctx, box, 1, nil)
				must(t, opensandbox.Crash(ctx, shared.Client, pods[0], "CrashLoopBackOff"))
				parsed := func(text string) any {
					var v any
					if text == "" {
						return nil
					}
					must(t, json.Unmarshal([]byte(strings.ReplaceAll(text, uid, string(pods[0].UID))), &v))
					return v
				}
				if c.stored != "" {
					k.set(ctx, box, parsed(c.stored))
				}
				written := parsed(c.written).(object)
				if verb == byApply && !reachable(parsed(c.stored), written) {
					continue // it cannot take away what others have put there
				}
				if verb == byMerge && strings.Contains(c.want, "null") {
					continue // its null removes
				}
				got, err := k.whole(ctx, verb, box, parsed(c.stored), written)
				if c.code != 0 {
					denied(t, err, c.code, "MainNotRunning")
					if diff := cmp.Diff(parsed(c.stored), any(statusOf(k.get(ctx, box)))); diff != "" {
						t.Errorf("by %s: status (-want +got):\n%s", verb, diff)
					}
					continue
				}
				if err != nil {
					t.Errorf("by %s: %v", verb, err)
					continue
				}
				if diff := cmp.Diff(string(encoded(t, parsed(c.want))), string(encoded(t, got.Object["status"]))); diff != "" {
					t.Errorf("by %s: status (-want +got):\n%s", verb, diff)
				}
				if r := record(t, got, paths[c.kind]...); len(r) > 1 {
					t.Errorf("by %s: record %v", verb, r)
				}
			}
		})
	}
}

// reachable reports whether nothing of what is stored is missing in what is written, or null
// there.
func reachable(stored, written any) bool {
	s, ok := stored.(object)
	if !ok {
		return true
	}
	w, ok := written.(object)
	if !ok {
		return false
	}
	for field, v := range s {
		if _, there := w[field]; !there || !reachable(v, w[field]) {
			return false
		}
	}
	return true
}

// whole makes a status the whole status of an object by one write.
func (k *kind) whole(ctx context.Context, verb, name string, stored any, written object) (*unstructured.Unstructured, error) {
	k.t.Helper()
	switch verb {
	case byJSON:
		// The status itself may be absent, and then nothing can be put below it.
		op := []object{{"op": "add", "path": "/status", "value": written}}
		return k.guarded.Patch(ctx, name, types.JSONPatchType, encoded(k.t, op), metav1.PatchOptions{}, "status")
	case byMerge:
		was, _ := stored.(object)
		written = mergeOf(was, written)
	}
	return k.send(ctx, k.guarded, verb, name, written)
}

// mergeOf is the merge patch that makes one object the other.
func mergeOf(from, to object) object {
	out := object{}
	for field := range from {
		if _, there := to[field]; !there {
			out[field] = nil
		}
	}
	for field, v := range to {
		was, a := from[field].(object)
		is, b := v.(object)
		if a && b {
			out[field] = mergeOf(was, is)
			continue
		}
		out[field] = v
	}
	return out
}
