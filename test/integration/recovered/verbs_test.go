package recovered

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/stack"
)

// TestVerbs: what clients do to a status beside what a guard would like them to do.
func TestVerbs(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	plain := opensandbox.CRDOptions{Record: &opensandbox.Record{}}
	kinds := vary(ctx, t, "verbs", map[string]variation{
		"usual": {CRDOptions: plain},
		"scaled": {CRDOptions: plain, schema: func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Spec.Versions[0].Subresources.Scale = &apiextensionsv1.CustomResourceSubresourceScale{
				SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.replicas",
			}
		}},
		"beta":           {CRDOptions: opensandbox.CRDOptions{Record: &opensandbox.Record{}, Beta: &opensandbox.Beta{Record: &opensandbox.Record{}}}},
		"beta-nullable":  {CRDOptions: opensandbox.CRDOptions{Record: &opensandbox.Record{}, Beta: &opensandbox.Beta{Record: &opensandbox.Record{Nullable: true}}}},
		"alpha-nullable": {CRDOptions: opensandbox.CRDOptions{Record: &opensandbox.Record{Nullable: true}, Beta: &opensandbox.Beta{Record: &opensandbox.Record{}}}},
		"beta-required":  {CRDOptions: opensandbox.CRDOptions{Record: &opensandbox.Record{}, Beta: &opensandbox.Beta{Record: &opensandbox.Record{Required: true}}}},
	})
	usual := kinds["usual"]

	// A client that knows the field and omits it when it is empty has no word for clearing it.
	t.Run("S01 a recovery that does not mention the record clears it", func(t *testing.T) {
		t.Parallel()
		k := usual.in(t)
		for _, verb := range []string{byMerge, byJSON, byApply} {
			box := named("S01" + verb)
			pods := k.box(ctx, box, 1, nil)
			k.set(ctx, box, status("Failed", object{"failedPodUIDs": uids(pods...)}))
			got, err := k.send(ctx, k.guarded, verb, box, object{"phase": "Succeed"})
			must(t, err)
			if got := record(t, got); got != nil {
				t.Errorf("%s: record %v", verb, got)
			}
		}
	})

	t.Run("S02 an apply that does not mention the record keeps it", func(t *testing.T) {
		t.Parallel()
		k := usual.in(t)
		for who, prepare := range map[string]func(box string, uids []string){
			"nobody has it": func(box string, uids []string) {
				k.set(ctx, box, status("Failed", object{"failedPodUIDs": uids}))
			},
			"it was belay that recorded": func(box string, _ []string) {
				_, err := k.send(ctx, k.guarded, byApply, box, status("Failed", nil))
				must(t, err)
			},
			"another manager has it": func(box string, uids []string) {
				_, err := k.send(ctx, k.guarded, byMerge, box, object{"phase": "Failed", "failedPodUIDs": uids})
				must(t, err)
			},
			// Leaving out what it had is an apply's word for removing it.
			"the very manager had it": func(box string, uids []string) {
				_, err := k.send(ctx, k.guarded, byApply, box, status("Failed", object{"failedPodUIDs": uids}))
				must(t, err)
			},
		} {
			box := named("S02" + who)
			pods := k.box(ctx, box, 1, status("Pending", nil))
			must(t, opensandbox.Crash(ctx, shared.Client, pods[0], "CrashLoopBackOff"))
			prepare(box, uids(pods...))
			for range 2 {
				got, err := k.send(ctx, k.guarded, byApply, box, status("Failed", nil))
				must(t, err)
				if diff := cmp.Diff(uids(pods...), record(t, got)); diff != "" {
					t.Errorf("%s: record (-want +got):\n%s", who, diff)
				}
			}
		}
	})

	t.Run("S02 an apply that gives up the phase leaves the failure on record", func(t *testing.T) {
		t.Parallel()
		k := usual.in(t)
		k.box(ctx, "gives-up", 0, status("Pending", nil))
		_, err := k.send(ctx, k.guarded, byApply, "gives-up", status("Failed", object{"failedPodUIDs": []string{u(1)}}))
		must(t, err)
		got, err := k.send(ctx, k.guarded, byApply, "gives-up", status("", nil))
		must(t, err)
		if phaseOf(got) != "" || !slices.Equal(record(t, got), []string{u(1)}) {
			t.Errorf("phase %q, record %v", phaseOf(got), record(t, got))
		}
		_, err = k.send(ctx, k.guarded, byApply, "gives-up", status("Succeed", nil))
		denied(t, err, 403, "PodGone")
	})

	// The type of an older controller has no such field.
	t.Run("S03 a typed client that does not know the record keeps it", func(t *testing.T) {
		t.Parallel()
		k := usual.in(t)
		k.box(ctx, "old-type", 0, status("Failed", object{"failedPodUIDs": []string{u(1), u(2)}}))
		c, err := opensandbox.NewClient(k.admin, opensandbox.Old, k.names.GVK(opensandbox.Version))
		must(t, err)
		old := &opensandbox.OldBatchSandbox{}
		must(t, c.Get(ctx, types.NamespacedName{Namespace: k.namespace, Name: "old-type"}, old))
		old.Status.Ready = 7
		must(t, c.Status().Update(ctx, old))
		got := k.get(ctx, "old-type")
		if diff := cmp.Diff([]string{u(1), u(2)}, record(t, got)); diff != "" {
			t.Errorf("record (-want +got):\n%s", diff)
		}
		if n, _, _ := unstructured.NestedInt64(got.Object, "status", "ready"); n != 7 {
			t.Errorf("ready %d: the rest of the write is lost", n)
		}
	})

	t.Run("S07 scaling is none of the guard's business", func(t *testing.T) {
		t.Parallel()
		k := kinds["scaled"].in(t)
		k.box(ctx, "scaled", 0, status("Failed", object{"failedPodUIDs": []string{u(1)}}))
		before := k.get(ctx, "scaled")
		_, err := k.guarded.Patch(ctx, "scaled", types.MergePatchType, []byte(`{"spec":{"replicas":5}}`), metav1.PatchOptions{}, "scale")
		must(t, err)
		u, err := k.guarded.Get(ctx, "scaled", metav1.GetOptions{}, "scale")
		must(t, err)
		if u.GetKind() != "Scale" || u.GetAPIVersion() != autoscalingv1.SchemeGroupVersion.String() {
			t.Fatalf("%s %s", u.GetAPIVersion(), u.GetKind())
		}
		must(t, unstructured.SetNestedField(u.Object, int64(6), "spec", "replicas"))
		_, err = k.guarded.Update(ctx, u, metav1.UpdateOptions{}, "scale")
		must(t, err)
		after := k.get(ctx, "scaled")
		if n, _, _ := unstructured.NestedInt64(after.Object, "spec", "replicas"); n != 6 {
			t.Errorf("%d replicas", n)
		}
		if diff := cmp.Diff(before.Object["status"], after.Object["status"]); diff != "" {
			t.Errorf("status (-before +after):\n%s", diff)
		}
		asked(ctx, t, k, "scaled", "scale", 2, false)
		// It is asked about the status of the same object.
		_, err = k.send(ctx, k.guarded, byMerge, "scaled", object{"ready": 3})
		must(t, err)
		asked(ctx, t, k, "scaled", "status", 1, true)
	})

	t.Run("S29 an object that is being deleted is let go", func(t *testing.T) {
		t.Parallel()
		k := usual.in(t)
		for _, verb := range verbs {
			box := named("S29" + verb)
			k.box(ctx, box, 0, status("Failed", object{"failedPodUIDs": []string{u(1)}}))
			hold := func(finalizers ...string) error {
				_, err := k.guarded.Patch(ctx, box, types.MergePatchType, encoded(t, object{"metadata": object{"finalizers": finalizers}}), metav1.PatchOptions{})
				return err
			}
			must(t, hold("example.com/hold"))
			_, err := k.send(ctx, k.guarded, verb, box, status("Succeed", object{"failedPodUIDs": []string{}}))
			denied(t, err, 403, "PodGone")
			must(t, k.guarded.Delete(ctx, box, metav1.DeleteOptions{}))
			// What a controller does last, as it is, and with nothing that was Failed any more.
			got, err := k.send(ctx, k.guarded, verb, box, status("Succeed", object{"failedPodUIDs": []string{u(2)}}))
			must(t, err)
			if phaseOf(got) != "Succeed" || !slices.Equal(record(t, got), []string{u(2)}) {
				t.Errorf("%s: phase %q, record %v", verb, phaseOf(got), record(t, got))
			}
			must(t, hold())
			if _, err := k.past.Get(ctx, box, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("%s: %v", verb, err)
			}
		}
	})

	t.Run("S30 the guard stands before every version", func(t *testing.T) {
		t.Parallel()
		for _, name := range []string{"beta", "beta-nullable", "alpha-nullable", "beta-required"} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				throughBeta(ctx, t, kinds[name].in(t))
			})
		}
	})

	t.Run("S31 nothing but the record is touched", func(t *testing.T) {
		t.Parallel()
		k := usual.in(t)
		for what, c := range map[string]struct{ before, after object }{
			"recorded": {status("Pending", nil), status("Failed", nil)},
			"kept":     {status("Failed", object{"failedPodUIDs": []string{u(1)}}), status("Failed", object{"failedPodUIDs": []string{}})},
			"cleared":  {status("Succeed", object{"failedPodUIDs": []string{u(1)}}), status("Succeed", object{"failedPodUIDs": []string{u(1)}})},
		} {
			for _, verb := range verbs {
				var twins []*unstructured.Unstructured
				for _, c2 := range []dynamic.ResourceInterface{k.past, k.guarded} {
					box := named(fmt.Sprint("S31", what, verb, len(twins)))
					pods := k.box(ctx, box, 1, c.before)
					must(t, opensandbox.Crash(ctx, shared.Client, pods[0], "CrashLoopBackOff"))
					_, err := k.past.Patch(ctx, box, types.MergePatchType, encoded(t, object{"metadata": object{
						"labels": object{"a": "b"}, "annotations": object{"c": "d"}, "finalizers": []string{"example.com/hold"},
					}}), metav1.PatchOptions{FieldManager: "labeller"})
					must(t, err)
					stack.Cleanup(t, func(ctx context.Context) {
						_, _ = k.past.Patch(ctx, box, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
					})
					got, err := k.send(ctx, c2, verb, box, c.after)
					must(t, err)
					twins = append(twins, got)
				}
				if slices.Equal(record(t, twins[0]), record(t, twins[1])) {
					t.Errorf("%s by %s: the guard changes nothing", what, verb)
				}
				if diff := cmp.Diff(essence(t, twins[0]), essence(t, twins[1])); diff != "" {
					t.Errorf("%s by %s (-unguarded +guarded):\n%s", what, verb, diff)
				}
				// The manager goes on as if nothing had happened.
				if _, err := k.send(ctx, k.guarded, verb, twins[1].GetName(), c.after); err != nil {
					t.Errorf("%s by %s, again: %v", what, verb, err)
				}
			}
		}
	})

	t.Run("the status of a failed object is not removed", func(t *testing.T) {
		t.Parallel()
		k := usual.in(t)
		for from, s := range map[string]object{
			"Failed": status("Failed", object{"failedPodUIDs": []string{u(1)}}), "Failed without a record": status("Failed", nil),
			"Pausing": status("Pausing", object{"failedPodUIDs": []string{u(1)}}), "no phase": status("", object{"failedPodUIDs": []string{u(1)}}),
		} {
			for verb, remove := range removals(ctx, k) {
				box := named("removed" + from + verb)
				k.box(ctx, box, 0, s)
				denied(t, remove(box), 403, "must not be removed")
				if diff := cmp.Diff(s["phase"], statusOf(k.get(ctx, box))["phase"]); diff != "" {
					t.Errorf("%s by %s (-want +got):\n%s", from, verb, diff)
				}
			}
		}
		for _, from := range []object{status("Succeed", nil), status("", nil)} {
			for verb, remove := range removals(ctx, k) {
				box := named("removable" + verb + fmt.Sprint(from["phase"]))
				k.box(ctx, box, 0, from)
				must(t, remove(box))
				if s := statusOf(k.get(ctx, box)); len(s) > 0 {
					t.Errorf("%s: %v", verb, s)
				}
			}
		}
	})
}

// removals are the ways to remove a status as a whole.
func removals(ctx context.Context, k *kind) map[string]func(box string) error {
	patch := func(t types.PatchType, body string) func(string) error {
		return func(box string) error {
			_, err := k.guarded.Patch(ctx, box, t, []byte(body), metav1.PatchOptions{}, "status")
			return err
		}
	}
	return map[string]func(string) error{
		byMerge: patch(types.MergePatchType, `{"status":null}`),
		byJSON:  patch(types.JSONPatchType, `[{"op":"remove","path":"/status"}]`),
		byPut: func(box string) error {
			u := k.get(ctx, box)
			delete(u.Object, "status")
			_, err := k.guarded.UpdateStatus(ctx, u, metav1.UpdateOptions{})
			return err
		},
	}
}

// throughBeta makes every kind of write through the version that the policy does not name.
func throughBeta(ctx context.Context, t *testing.T, k *kind) {
	t.Helper()
	c := dynamicFor(t, k.admin).Resource(k.names.GVR(opensandbox.BetaVersion)).Namespace(k.namespace)
	beta := *k
	beta.version = opensandbox.BetaVersion
	for _, verb := range verbs {
		box := named("S30" + verb)
		pods := k.box(ctx, box, 2, status("Pending", nil))
		both := uids(pods...)
		write := func(fields object) (*unstructured.Unstructured, error) {
			return beta.send(ctx, c, verb, box, fields)
		}
		want := func(what string, uids []string) {
			t.Helper()
			for version, r := range map[string]dynamic.ResourceInterface{opensandbox.Version: k.past, opensandbox.BetaVersion: c} {
				u, err := r.Get(ctx, box, metav1.GetOptions{})
				must(t, err)
				if diff := cmp.Diff(uids, record(t, u)); diff != "" {
					t.Errorf("%s, %s: record in %s (-want +got):\n%s", verb, what, version, diff)
				}
			}
		}
		must(t, opensandbox.Crash(ctx, shared.Client, pods[0], "CrashLoopBackOff"))
		fails := status("Failed", nil)
		if verb != byApply {
			fails["failedPodUIDs"] = []string{} // which one of them requires
		}
		_, err := write(fails)
		must(t, err)
		want("failed", both[:1])
		_, err = write(status("Failed", object{"failedPodUIDs": both[1:]}))
		must(t, err)
		want("failed again", both)
		_, err = write(status("Succeed", object{"failedPodUIDs": []string{}}))
		denied(t, err, 403, "MainNotRunning")
		want("denied", both)
		must(t, opensandbox.Ready(ctx, shared.Client, pods[0]))
		if _, err = write(status("Succeed", object{"failedPodUIDs": both})); err != nil {
			t.Errorf("%s: %v", verb, err)
			continue
		}
		want("recovered", nil)
	}
}

// essence is an object without what differs from one to the next, and without the
// record.
func essence(t *testing.T, u *unstructured.Unstructured) object {
	t.Helper()
	u = u.DeepCopy()
	managers := map[string]any{}
	for _, m := range u.GetManagedFields() {
		var fields object
		must(t, json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields))
		unstructured.RemoveNestedField(fields, "f:status", "f:failedPodUIDs")
		managers[fmt.Sprint(m.Manager, " ", m.Operation, " ", m.Subresource, " ", m.APIVersion)] = fields
	}
	for _, field := range []string{"name", "uid", "resourceVersion", "creationTimestamp", "managedFields"} {
		unstructured.RemoveNestedField(u.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(u.Object, "status", "failedPodUIDs")
	return object{"object": u.Object, "managers": managers}
}

// asked waits for requests about an object in the audit log, and checks whether belay was
// asked about them.
func asked(ctx context.Context, t *testing.T, k *kind, name, subresource string, atLeast int, want bool) {
	t.Helper()
	stack.Eventually(ctx, t, "the writes in the audit log", func() error {
		n := 0
		for _, e := range auditedIn(t, k.namespace) {
			if e.ObjectRef.Name != name || e.ObjectRef.Subresource != subresource || e.by() == setter || e.reads() {
				continue
			}
			n++
			if got := e.guarded(); got != want {
				t.Errorf("%s of %s: belay was asked: %t; annotations %v", e.Verb, subresource, got, e.Annotations)
			}
		}
		if n < atLeast {
			return fmt.Errorf("%d so far", n)
		}
		return nil
	})
}
