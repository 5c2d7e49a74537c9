package owner

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestPlace(t *testing.T) {
	t.Parallel()
	with := func(r metav1.OwnerReference, change func(*metav1.OwnerReference)) metav1.OwnerReference {
		change(&r)
		return r
	}
	stale := with(ref(job), func(r *metav1.OwnerReference) { r.UID = "old-uid" })
	older := with(ref(job), func(r *metav1.OwnerReference) { r.UID = "older-uid" })
	site := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "site", UID: "site-uid", BlockOwnerDeletion: new(true)}
	set := controllerRef(Object{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "web-uid"})

	for name, c := range map[string]struct {
		refs       []metav1.OwnerReference
		controller bool
		edits      []Edit
		reason     Reason
	}{
		"no reference yet: append": {edits: appended(ref(job)), reason: ReasonOwned},
		"O17: other entries stay as and where they are": {
			refs: []metav1.OwnerReference{set, site}, edits: appended(ref(job)), reason: ReasonOwned,
		},
		"O06: the same UID is there: nothing to do":              {refs: []metav1.OwnerReference{site, ref(job)}, reason: ReasonAlreadyOwned},
		"O06: the same UID with other flags counts as there":     {refs: []metav1.OwnerReference{with(ref(job), func(r *metav1.OwnerReference) { r.BlockOwnerDeletion = new(true) })}, reason: ReasonAlreadyOwned},
		"O07: the same UID under another version counts":         {refs: []metav1.OwnerReference{with(ref(job), func(r *metav1.OwnerReference) { r.APIVersion = "batch/v1beta1" })}, reason: ReasonAlreadyOwned},
		"OTF: the same UID under the kind in lower case counts":  {refs: []metav1.OwnerReference{with(ref(job), func(r *metav1.OwnerReference) { r.Kind = "job" })}, reason: ReasonAlreadyOwned},
		"a controller flag is not set later on a reference":      {refs: []metav1.OwnerReference{ref(job)}, controller: true, reason: ReasonAlreadyOwned},
		"the same name in another group is somebody else's":      {refs: []metav1.OwnerReference{with(stale, func(r *metav1.OwnerReference) { r.APIVersion = "other/v1" })}, edits: appended(ref(job)), reason: ReasonOwned},
		"the same kind under another name is somebody else's":    {refs: []metav1.OwnerReference{with(stale, func(r *metav1.OwnerReference) { r.Name = "run-2" })}, edits: appended(ref(job)), reason: ReasonOwned},
		"O05: a controller of somebody else leaves ours a plain": {refs: []metav1.OwnerReference{set}, controller: true, edits: appended(ref(job)), reason: ReasonOwned},
		"O05: without any controller ours is one, if asked for":  {refs: []metav1.OwnerReference{site}, controller: true, edits: appended(controllerRef(job)), reason: ReasonOwned},
		"O05: controller false is no controller": {
			refs: []metav1.OwnerReference{with(site, func(r *metav1.OwnerReference) { r.Controller = new(false) })}, controller: true, edits: appended(controllerRef(job)), reason: ReasonOwned,
		},
		"O06: a second entry with the same UID is removed": {
			refs: []metav1.OwnerReference{ref(job), site, ref(job)}, edits: []Edit{{Op: EditRemove, Index: 2, Was: "job-uid"}}, reason: ReasonCorrected,
		},
		"O01: a stale entry is replaced where it stands": {
			refs: []metav1.OwnerReference{site, stale, set}, edits: []Edit{{Op: EditReplace, Index: 1, Was: "old-uid", Reference: ref(job)}}, reason: ReasonCorrected,
		},
		"O01: a stale entry in lower case is replaced": {
			refs: []metav1.OwnerReference{with(stale, func(r *metav1.OwnerReference) { r.Kind = "job" })}, edits: []Edit{{Op: EditReplace, Was: "old-uid", Reference: ref(job)}}, reason: ReasonCorrected,
		},
		"O01: a stale entry is not kept next to the right one": {
			refs: []metav1.OwnerReference{stale, ref(job)}, edits: []Edit{{Op: EditRemove, Index: 0, Was: "old-uid"}}, reason: ReasonCorrected,
		},
		"O01: of several stale entries one is replaced and the rest removed, from the end": {
			refs: []metav1.OwnerReference{stale, site, older, stale},
			edits: []Edit{
				{Op: EditReplace, Index: 0, Was: "old-uid", Reference: ref(job)},
				{Op: EditRemove, Index: 3, Was: "old-uid"},
				{Op: EditRemove, Index: 2, Was: "older-uid"},
			},
			reason: ReasonCorrected,
		},
		"O02: the right UID under another kind is corrected": {
			refs: []metav1.OwnerReference{with(ref(job), func(r *metav1.OwnerReference) { r.Kind = "CronJob" })}, edits: []Edit{{Op: EditReplace, Was: "job-uid", Reference: ref(job)}}, reason: ReasonCorrected,
		},
		"O02: the right UID under another name is corrected": {
			refs: []metav1.OwnerReference{with(ref(job), func(r *metav1.OwnerReference) { r.Name = "walk" })}, edits: []Edit{{Op: EditReplace, Was: "job-uid", Reference: ref(job)}}, reason: ReasonCorrected,
		},
		"O05: a stale controller stays a controller, and never blocks": {
			refs:   []metav1.OwnerReference{with(stale, func(r *metav1.OwnerReference) { r.Controller, r.BlockOwnerDeletion = new(true), new(true) })},
			edits:  []Edit{{Op: EditReplace, Was: "old-uid", Reference: controllerRef(job)}},
			reason: ReasonCorrected,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			edits, reason := place(c.refs, job, *wantJob(), c.controller)
			if diff := cmp.Diff(c.edits, edits); diff != "" || reason != c.reason {
				t.Errorf("reason %s, want %s; (-want +got)\n%s", reason, c.reason, diff)
			}
		})
	}
}

// TestO06_TheHookOnItsOwnOutputPatchesNothing holds the rules of place together, for
// every list of up to four entries out of a small stock.
func TestO06_TheHookOnItsOwnOutputPatchesNothing(t *testing.T) {
	t.Parallel()
	var stock []metav1.OwnerReference
	for _, kind := range []string{"Job", "job", "CronJob"} {
		for _, name := range []string{"run", "walk"} {
			for _, uid := range []types.UID{job.UID, "old-uid"} {
				stock = append(stock, metav1.OwnerReference{APIVersion: "batch/v1", Kind: kind, Name: name, UID: uid, Controller: everyFourth(len(stock))})
			}
		}
	}
	var lists func(n int) [][]metav1.OwnerReference
	lists = func(n int) [][]metav1.OwnerReference {
		out := [][]metav1.OwnerReference{nil}
		if n == 0 {
			return out
		}
		for _, rest := range lists(n - 1) {
			for _, r := range stock {
				out = append(out, append([]metav1.OwnerReference{r}, rest...))
			}
		}
		return out
	}
	for _, refs := range lists(3) {
		for _, controller := range []bool{false, true} {
			edits, _ := place(refs, job, *wantJob(), controller)
			after := applied(refs, edits)
			right := 0
			for _, r := range after {
				if r.UID == job.UID {
					right++
				}
				if r.Name == job.Name && r.UID != job.UID && r.Kind != "CronJob" {
					t.Fatalf("a stale reference stays: %v becomes %v", refs, after)
				}
			}
			if right != 1 {
				t.Fatalf("%d references to the owner: %v becomes %v", right, uidsOf(refs), after)
			}
			if again, reason := place(after, job, *wantJob(), controller); len(again) > 0 || reason != ReasonAlreadyOwned {
				t.Fatalf("not settled: %v becomes %v, and then wants %v (%s)", refs, after, again, reason)
			}
			if controllers(after) > max(1, controllers(refs)) {
				t.Fatalf("one controller too many: %v becomes %v", refs, after)
			}
			if diff := cmp.Diff(others(refs), others(after)); diff != "" {
				t.Fatalf("somebody else's entry changed: %s", diff)
			}
		}
	}
}

func everyFourth(i int) *bool {
	if i%4 == 0 {
		return new(true)
	}
	return nil
}

func controllers(refs []metav1.OwnerReference) int {
	n := 0
	for _, r := range refs {
		if r.Controller != nil && *r.Controller {
			n++
		}
	}
	return n
}

// others are the entries that are none of belay's business.
func others(refs []metav1.OwnerReference) []metav1.OwnerReference {
	var out []metav1.OwnerReference
	for _, r := range refs {
		if r.UID != job.UID && (r.Name != job.Name || r.Kind == "CronJob") {
			out = append(out, r)
		}
	}
	return out
}

func TestO15_ThousandsOfReferencesGetOneAppend(t *testing.T) {
	t.Parallel()
	refs := make([]metav1.OwnerReference, 5000)
	for i := range refs {
		refs[i] = metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: fmt.Sprintf("c-%d", i), UID: types.UID(fmt.Sprintf("uid-%d", i))}
	}
	edits, reason := place(refs, job, *wantJob(), false)
	if diff := cmp.Diff(appended(ref(job)), edits); diff != "" || reason != ReasonOwned {
		t.Errorf("%s %s", reason, diff)
	}
}
