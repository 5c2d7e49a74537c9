package recovered

import (
	"encoding/json"
	"fmt"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/client/statuspatch"
)

// TestStatusPatch: the library's patches on the API server itself, where nobody guards.
func TestStatusPatch(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	s := boxesOf(ctx, t, shared, opensandbox.Names{}, opensandbox.New, "")
	requests := func(name string) int {
		n := 0
		for _, e := range auditLog(t, shared, s.Namespace) {
			if e.Verb == "patch" && e.ObjectRef.Name == name && e.ObjectRef.Subresource == "status" {
				n++
			}
		}
		return n
	}
	failed := func(name string) *opensandbox.BatchSandbox {
		s.add(ctx, name)
		must(t, s.phase(ctx, name, opensandbox.PhaseFailed, `"failedPodUIDs":["uid-1","uid-2"]`, `"conditions":[{"type":"PodFailed","status":"True"}]`, `"taskRunning":4`))
		return s.get(ctx, name)
	}
	recovered := func(b *opensandbox.BatchSandbox) *opensandbox.BatchSandbox {
		out := b.DeepCopy()
		out.Status.Phase, out.Status.FailedPodUIDs, out.Status.Conditions = opensandbox.PhaseSucceed, nil, nil
		return out
	}
	absent := func(t *testing.T, name string, fields ...string) {
		t.Helper()
		status := s.stored(ctx, name)
		for _, f := range fields {
			if v, there := status[f]; there {
				t.Errorf("%s is %v", f, v)
			}
		}
	}

	t.Run("omitempty says nothing, and the record stays: what it is for", func(t *testing.T) {
		b := recovered(failed("naive"))
		raw, err := json.Marshal(map[string]any{"status": b.Status})
		must(t, err)
		must(t, s.admin.Status().Patch(ctx, b, client.RawPatch(types.MergePatchType, raw)))
		if got := s.recordOf(ctx, "naive"); len(got) != 2 {
			t.Errorf("record %v", got)
		}
	})
	t.Run("what is empty is gone on the server", func(t *testing.T) {
		b := failed("clears")
		desired := recovered(b)
		wrote, err := statuspatch.Options{}.Write(ctx, s.admin.Status(), b, desired)
		if err != nil || !wrote {
			t.Fatalf("wrote %t, %v", wrote, err)
		}
		absent(t, "clears", "failedPodUIDs", "conditions")
		if live := s.get(ctx, "clears"); desired.ResourceVersion != live.ResourceVersion || live.Status.Phase != opensandbox.PhaseSucceed || live.Status.TaskRunning != 4 {
			t.Errorf("desired is at %s, the object at %s with %+v", desired.ResourceVersion, live.ResourceVersion, live.Status)
		}
	})
	t.Run("what changes nothing is not sent", func(t *testing.T) {
		b := failed("noop")
		before := requests("noop")
		for _, o := range []statuspatch.Options{{}, {ResourceVersion: true}, {Fields: []string{"phase", "failedPodUIDs"}}} {
			wrote, err := o.Write(ctx, s.admin.Status(), b, b.DeepCopy())
			if err != nil || wrote {
				t.Errorf("%+v: wrote %t, %v", o, wrote, err)
			}
		}
		if got := s.version(ctx, "noop"); got != b.ResourceVersion {
			t.Errorf("the object went from %s to %s", b.ResourceVersion, got)
		}
		// One that is sent shows that the log is complete up to here. The API server stores
		// nothing for it.
		wrote, err := statuspatch.Options{Always: true}.Write(ctx, s.admin.Status(), b, b.DeepCopy())
		if err != nil || !wrote {
			t.Errorf("Always: wrote %t, %v", wrote, err)
		}
		if got := s.version(ctx, "noop"); got != b.ResourceVersion {
			t.Errorf("Always: the object went from %s to %s", b.ResourceVersion, got)
		}
		stack.Eventually(ctx, t, "the audit log", func() error {
			switch got := requests("noop"); {
			case got < 2:
				return fmt.Errorf("%d requests, %d before", got, before)
			case got > 2: // the failure, and the one that had to be sent
				t.Fatalf("%d requests", got)
			}
			return nil
		})
	})
	t.Run("a stale read with the precondition is a conflict, and nothing is written", func(t *testing.T) {
		b := failed("conflict")
		must(t, s.phase(ctx, "conflict", opensandbox.PhaseFailed, `"taskRunning":5`))
		wrote, err := statuspatch.Options{ResourceVersion: true}.Write(ctx, s.admin.Status(), b, recovered(b))
		if wrote || !apierrors.IsConflict(err) {
			t.Fatalf("wrote %t, %v", wrote, err)
		}
		if live := s.get(ctx, "conflict"); live.Status.Phase != opensandbox.PhaseFailed || len(live.Status.FailedPodUIDs) != 2 {
			t.Errorf("status %+v", live.Status)
		}
		fresh := s.get(ctx, "conflict")
		wrote, err = statuspatch.Options{ResourceVersion: true}.Write(ctx, s.admin.Status(), fresh, recovered(fresh))
		if err != nil || !wrote {
			t.Errorf("a fresh read: wrote %t, %v", wrote, err)
		}
		absent(t, "conflict", "failedPodUIDs")
	})
	t.Run("a stale read that has no record clears it all the same", func(t *testing.T) {
		s.add(ctx, "stale")
		must(t, s.phase(ctx, "stale", opensandbox.PhaseFailed))
		b := s.get(ctx, "stale") // a cache that has not seen the record yet
		must(t, s.phase(ctx, "stale", opensandbox.PhaseFailed, `"failedPodUIDs":["uid-1"]`))
		wrote, err := statuspatch.Options{}.Write(ctx, s.admin.Status(), b, recovered(b))
		if err != nil || !wrote {
			t.Fatalf("wrote %t, %v", wrote, err)
		}
		absent(t, "stale", "failedPodUIDs")
		// The usual way leaves it, which is the hole that this closes.
		must(t, s.phase(ctx, "stale", opensandbox.PhaseFailed, `"failedPodUIDs":["uid-1"]`))
		must(t, s.admin.Status().Patch(ctx, recovered(b), client.MergeFrom(b)))
		if got := s.recordOf(ctx, "stale"); len(got) != 1 {
			t.Errorf("a patch of the difference leaves %v", got)
		}
		// Where nothing else changes the stale read hides it; Always does not.
		b.Status.Phase = opensandbox.PhaseSucceed
		if wrote, err := (statuspatch.Options{}).Write(ctx, s.admin.Status(), b, recovered(b)); err != nil || wrote {
			t.Errorf("nothing changes by what was read: wrote %t, %v", wrote, err)
		}
		if wrote, err := (statuspatch.Options{Always: true}).Write(ctx, s.admin.Status(), b, recovered(b)); err != nil || !wrote {
			t.Errorf("Always: wrote %t, %v", wrote, err)
		}
		absent(t, "stale", "failedPodUIDs")
	})
	t.Run("what somebody else owns stays", func(t *testing.T) {
		b := failed("shared")
		must(t, s.phase(ctx, "shared", opensandbox.PhaseFailed, `"taskRunning":9`, `"pauseObservedGeneration":3`))
		desired := recovered(b)
		wrote, err := statuspatch.Options{Fields: []string{"phase", "failedPodUIDs"}}.Write(ctx, s.admin.Status(), b, desired)
		if err != nil || !wrote {
			t.Fatalf("wrote %t, %v", wrote, err)
		}
		live := s.get(ctx, "shared").Status
		if live.Phase != opensandbox.PhaseSucceed || live.FailedPodUIDs != nil || live.TaskRunning != 9 || live.PauseObservedGeneration != 3 || len(live.Conditions) != 1 {
			t.Errorf("status %+v", live)
		}
	})
	t.Run("neither labels nor the spec are written", func(t *testing.T) {
		b := failed("status-only")
		desired := recovered(b)
		desired.Labels = map[string]string{"a": "b"}
		desired.Spec.Replicas = new(int32(7))
		if _, err := (statuspatch.Options{}).Write(ctx, s.admin.Status(), b, desired); err != nil {
			t.Fatal(err)
		}
		if live := s.get(ctx, "status-only"); len(live.Labels) > 0 || *live.Spec.Replicas != 1 {
			t.Errorf("labels %v, spec %+v", live.Labels, live.Spec)
		}
	})
	t.Run("an unstructured object, and the name in managedFields", func(t *testing.T) {
		failed("unstructured")
		gvr := opensandbox.Names{}.GVR(opensandbox.Version)
		b, err := shared.Dynamic.Resource(gvr).Namespace(s.Namespace).Get(ctx, "unstructured", metav1.GetOptions{})
		must(t, err)
		desired := b.DeepCopy()
		must(t, unstructured.SetNestedField(desired.Object, opensandbox.PhaseSucceed, "status", "phase"))
		unstructured.RemoveNestedField(desired.Object, "status", "failedPodUIDs")
		o := statuspatch.Options{Fields: []string{"phase", "failedPodUIDs"}, ResourceVersion: true, FieldOwner: "somebody"}
		wrote, err := o.Write(ctx, shared.Client.Status(), b, desired)
		if err != nil || !wrote {
			t.Fatalf("wrote %t, %v", wrote, err)
		}
		absent(t, "unstructured", "failedPodUIDs")
		manager := false
		for _, f := range desired.GetManagedFields() {
			manager = manager || f.Manager == "somebody" && f.Subresource == "status"
		}
		if !manager {
			t.Errorf("managers %+v", desired.GetManagedFields())
		}
	})
	t.Run("an object that is gone", func(t *testing.T) {
		b := failed("gone")
		must(t, s.admin.Delete(ctx, b.DeepCopy()))
		if wrote, err := (statuspatch.Options{}).Write(ctx, s.admin.Status(), b, recovered(b)); wrote || !apierrors.IsNotFound(err) {
			t.Errorf("wrote %t, %v", wrote, err)
		}
	})
	t.Run("an object that was made anew has another version", func(t *testing.T) {
		b := failed("anew")
		must(t, s.admin.Delete(ctx, b.DeepCopy()))
		failed("anew")
		if wrote, err := (statuspatch.Options{ResourceVersion: true}).Write(ctx, s.admin.Status(), b, recovered(b)); wrote || !apierrors.IsConflict(err) {
			t.Errorf("wrote %t, %v", wrote, err)
		}
		s.wantPhase(ctx, "anew", opensandbox.PhaseFailed)
	})
}

// TestStatusPatchWhereTheRecordIsRequired: null would be refused there, and the empty value is
// sent.
func TestStatusPatchWhereTheRecordIsRequired(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	n := ownGroup("required")
	addCRD(ctx, t, shared, opensandbox.CRD(opensandbox.CRDOptions{Names: n, Record: &opensandbox.Record{Required: true}}))
	s := boxesOf(ctx, t, shared, n, opensandbox.New, "")
	s.add(ctx, "box")
	must(t, s.phase(ctx, "box", opensandbox.PhaseFailed, `"failedPodUIDs":["uid-1"]`))
	b := s.get(ctx, "box")
	desired := b.DeepCopy()
	desired.Status.Phase, desired.Status.FailedPodUIDs = opensandbox.PhaseSucceed, nil
	if _, err := (statuspatch.Options{}).Write(ctx, s.admin.Status(), b, desired.DeepCopy()); !apierrors.IsInvalid(err) {
		t.Errorf("null where the CRD requires a list: %v", err)
	}
	o := statuspatch.Options{Required: []string{"failedPodUIDs"}}
	wrote, err := o.Write(ctx, s.admin.Status(), b, desired)
	if err != nil || !wrote {
		t.Fatalf("wrote %t, %v", wrote, err)
	}
	if diff := gocmp.Diff(any([]any{}), s.stored(ctx, "box")["failedPodUIDs"]); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	b = s.get(ctx, "box")
	if wrote, err := o.Write(ctx, s.admin.Status(), b, b.DeepCopy()); err != nil || wrote {
		t.Errorf("once more: wrote %t, %v", wrote, err)
	}
}

// TestStatusPatchUnderTheGuard: a controller that writes with the library recovers its object
// in one write when the guard agrees, and is told why not when it does not.
func TestStatusPatchUnderTheGuard(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	n := ownKind(ctx, t, shared, "library", opensandbox.CRDOptions{Record: &opensandbox.Record{Nullable: true}}, func(s *v1alpha1.RecoveryPolicySpec) { s.Recover = v1alpha1.RecoverNever })
	s := boxesOf(ctx, t, shared, n, opensandbox.New, v1alpha1.ModeEnforce)
	pod := s.fails(ctx, "box")
	write := func() (bool, error) {
		b := s.get(ctx, "box")
		desired := b.DeepCopy()
		desired.Status.Phase, desired.Status.FailedPodUIDs, desired.Status.Conditions = opensandbox.PhaseSucceed, nil, nil
		return statuspatch.Options{ResourceVersion: true}.Write(ctx, s.Client.Status(), b, desired)
	}
	wrote, err := write()
	if wrote {
		t.Error("it was written")
	}
	denied(t, err, 403, "MainNotRunning", string(pod.UID))
	must(t, opensandbox.Ready(ctx, s.admin, pod))
	wrote, err = write()
	if err != nil || !wrote {
		t.Fatalf("wrote %t, %v", wrote, err)
	}
	s.wantPhase(ctx, "box", opensandbox.PhaseSucceed)
	if got := s.stored(ctx, "box")["failedPodUIDs"]; got != nil {
		t.Errorf("record %v", got)
	}
	if wrote, err := write(); err != nil || wrote {
		t.Errorf("once more: wrote %t, %v", wrote, err)
	}
	// Named as null, as the merge patch of an object that had none would leave out.
	patch, changed, err := statuspatch.Options{}.Make(s.get(ctx, "box"), s.get(ctx, "box"))
	must(t, err)
	if changed {
		t.Error("two reads of one object differ")
	}
	var sent struct{ Status map[string]json.RawMessage }
	must(t, json.Unmarshal(patch, &sent))
	if string(sent.Status["failedPodUIDs"]) != "null" {
		t.Errorf("the patch is %s", patch)
	}
}
