package admission

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/owner"
)

const siteRef = `{"apiVersion":"v1","kind":"ConfigMap","name":"site","uid":"site-uid","blockOwnerDeletion":true}`

var jobRef = metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: "run", UID: "job-uid"}

// TestOwnerPatch compares the bytes: they are what the API server applies.
func TestOwnerPatch(t *testing.T) {
	t.Parallel()
	const value = `{"apiVersion":"batch/v1","kind":"Job","name":"run","uid":"job-uid"}`
	add := []owner.Edit{{Op: owner.EditAppend, Reference: jobRef}}
	for name, c := range map[string]struct {
		object string
		edits  []owner.Edit
		want   string
	}{
		"nothing to do, no patch":        {`{"metadata":{}}`, nil, ""},
		"no list yet":                    {`{"metadata":{}}`, add, `[{"op":"add","path":"/metadata/ownerReferences","value":[` + value + `]}]`},
		"a null list":                    {`{"metadata":{"ownerReferences":null}}`, add, `[{"op":"add","path":"/metadata/ownerReferences","value":[` + value + `]}]`},
		"an empty list":                  {`{"metadata":{"ownerReferences":[]}}`, add, `[{"op":"add","path":"/metadata/ownerReferences","value":[` + value + `]}]`},
		"O17: a list with entries":       {`{"metadata":{"ownerReferences":[` + siteRef + `]}}`, add, `[{"op":"add","path":"/metadata/ownerReferences/-","value":` + value + `}]`},
		"O01: a stale entry, guarded":    {`{"metadata":{"ownerReferences":[` + siteRef + `]}}`, []owner.Edit{{Op: owner.EditReplace, Was: "site-uid", Reference: jobRef}}, `[{"op":"test","path":"/metadata/ownerReferences/0/uid","value":"site-uid"},{"op":"replace","path":"/metadata/ownerReferences/0","value":` + value + `}]`},
		"O06: a second entry, guarded":   {`{"metadata":{"ownerReferences":[` + siteRef + `,` + siteRef + `]}}`, []owner.Edit{{Op: owner.EditRemove, Index: 1, Was: "site-uid"}}, `[{"op":"test","path":"/metadata/ownerReferences/1/uid","value":"site-uid"},{"op":"remove","path":"/metadata/ownerReferences/1"}]`},
		"a controller is marked as such": {`{"metadata":{}}`, []owner.Edit{{Op: owner.EditAppend, Reference: metav1.OwnerReference{UID: "u", Controller: new(true)}}}, `[{"op":"add","path":"/metadata/ownerReferences","value":[{"apiVersion":"","kind":"","name":"","uid":"u","controller":true}]}]`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var d dependent
			if err := json.Unmarshal([]byte(c.object), &d); err != nil {
				t.Fatal(err)
			}
			got, err := ownerPatch([]byte(c.object), d.Metadata.OwnerReferences, c.edits)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, string(got)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestP14_APatchThatDoesNotApplyIsAnError(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		object string
		edit   owner.Edit
	}{
		"the entry has another UID":    {`{"metadata":{"ownerReferences":[` + siteRef + `]}}`, owner.Edit{Op: owner.EditReplace, Was: "other", Reference: jobRef}},
		"the entry does not exist":     {`{"metadata":{"ownerReferences":[` + siteRef + `]}}`, owner.Edit{Op: owner.EditRemove, Index: 3, Was: "site-uid"}},
		"there is no metadata":         {`{"kind":"Secret"}`, owner.Edit{Op: owner.EditAppend, Reference: jobRef}},
		"metadata is no object":        {`{"metadata":7}`, owner.Edit{Op: owner.EditAppend, Reference: jobRef}},
		"the object is none":           {`[]`, owner.Edit{Op: owner.EditAppend, Reference: jobRef}},
		"an edit that nobody knows of": {`{"metadata":{}}`, owner.Edit{Op: "move"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := ownerPatch([]byte(c.object), nil, []owner.Edit{c.edit}); err == nil {
				t.Error("no error")
			}
		})
	}
}

// FuzzEveryPatchApplies takes objects of any content and any mix of right, stale and
// foreign references: what belay wants to change can be changed, and nothing else is.
func FuzzEveryPatchApplies(f *testing.F) {
	for mix := range 16 {
		f.Add(`{"data":{"k":"v"}}`, `{"name":"run"}`, uint64(mix*37), false)
	}
	f.Add(`{"spec":{"n":12345678901234567,"f":1e400,"s":"\u0000<é"}}`, `{"labels":{"a/b":"~1"},"annotations":null}`, uint64(7), true)
	f.Add(`{"":{}}`, `{"ownerReference":[],"~0":1}`, uint64(0), true)
	f.Fuzz(func(t *testing.T, rest, metadata string, mix uint64, controller bool) {
		var object, meta map[string]json.RawMessage
		if json.Unmarshal([]byte(rest), &object) != nil || json.Unmarshal([]byte(metadata), &meta) != nil || object == nil || meta == nil {
			return
		}
		for k := range object { // one spelling of each key, as the API server sends
			if k != "metadata" && strings.EqualFold(k, "metadata") {
				return
			}
		}
		for k := range meta {
			if strings.EqualFold(k, "ownerReferences") {
				return
			}
		}
		refs := mixed(mix)
		if refs != nil {
			meta["ownerReferences"] = raw(t, refs)
		}
		object["metadata"] = raw(t, meta)
		whole := raw(t, object)
		var d dependent
		if err := json.Unmarshal(whole, &d); err != nil {
			return // wrong types: such objects are refused before
		}

		in := owner.Input{
			Request: owner.Request{Operation: "CREATE", Namespace: "lab", References: d.Metadata.OwnerReferences, Size: len(whole)},
			Policy:  owner.Policy{Controller: controller},
			Target:  owner.Target{Owner: &owner.Wanted{APIVersion: "batch/v1", Kind: "Job", Name: "run", Scope: owner.ScopeNamespaced}},
			Facts:   owner.Facts{Owner: owner.Fact{State: fact.Known, Objects: []owner.Object{{APIVersion: "batch/v1", Kind: "Job", Name: "run", UID: "job-uid"}}}},
		}
		edits := owner.Decide(in).Edits
		patch, err := ownerPatch(whole, d.Metadata.OwnerReferences, edits)
		if err != nil {
			t.Fatalf("%s: %v", whole, err)
		}
		if len(edits) == 0 {
			if patch != nil {
				t.Errorf("a patch without edits: %s", patch)
			}
			return
		}
		p, err := jsonpatch.DecodePatch(patch)
		if err != nil {
			t.Fatal(err)
		}
		out, err := p.Apply(whole)
		if err != nil {
			t.Fatalf("%s does not apply to %s: %v", patch, whole, err)
		}
		var after dependent
		if err := json.Unmarshal(out, &after); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(edited(refs, edits), after.Metadata.OwnerReferences); diff != "" {
			t.Errorf("references (-want +got)\n%s", diff)
		}
		if diff := cmp.Diff(withoutRefs(t, whole), withoutRefs(t, out)); diff != "" {
			t.Errorf("something else changed (-before +after)\n%s", diff)
		}
	})
}

// mixed is a list of up to five references, chosen by the digits of n.
func mixed(n uint64) []metav1.OwnerReference {
	stale := jobRef
	stale.UID = "old-uid"
	stock := []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "ConfigMap", Name: "site", UID: "site-uid", BlockOwnerDeletion: new(true)},
		{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "web-uid", Controller: new(true)},
		jobRef, stale,
	}
	var out []metav1.OwnerReference
	for ; n > 0 && len(out) < 5; n /= 5 {
		if i := n % 5; i < 4 {
			out = append(out, stock[i])
		}
	}
	return out
}

func edited(refs []metav1.OwnerReference, edits []owner.Edit) []metav1.OwnerReference {
	out := slices.Clone(refs)
	for _, e := range edits {
		switch e.Op {
		case owner.EditAppend:
			out = append(out, e.Reference)
		case owner.EditReplace:
			out[e.Index] = e.Reference
		case owner.EditRemove:
			out = slices.Delete(out, e.Index, e.Index+1)
		}
	}
	return out
}

func raw(t *testing.T, v any) json.RawMessage {
	t.Helper()
	out, err := json.Marshal(v)
	if err != nil {
		t.Skip(err) // such as a number that no float holds
	}
	return out
}

// withoutRefs is an object but for its references, with numbers as they are written.
func withoutRefs(t *testing.T, object []byte) any {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(string(object)))
	dec.UseNumber()
	var out map[string]any
	if err := dec.Decode(&out); err != nil {
		t.Fatal(err)
	}
	meta, _ := out["metadata"].(map[string]any)
	delete(meta, "ownerReferences")
	return out
}

func TestO15_ThousandsOfReferencesAreNotSentBack(t *testing.T) {
	t.Parallel()
	var refs []metav1.OwnerReference
	for i := range 5000 {
		refs = append(refs, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: fmt.Sprintf("c-%d", i), UID: types.UID(fmt.Sprintf("8d2f9b2e-0000-4000-8000-%012d", i))})
	}
	object := string(raw(t, map[string]any{"metadata": map[string]any{"name": "run", "ownerReferences": refs}}))
	resp := set(t).review("/mutate/owner/otf", creating(object))
	if got := string(resp.Patch); got != `[{"op":"add","path":"/metadata/ownerReferences/-","value":{"apiVersion":"batch/v1","kind":"Job","name":"run","uid":"job-uid"}}]` {
		t.Errorf("%.300s", got)
	}
}
