package owner

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

var update = flag.Bool("update", false, "add names that are missing to testdata; those that are there are never changed")

// named are owners and their predecessors. New ones are appended.
var named = []struct {
	owner       v1alpha1.AnchorOwner
	predecessor types.UID
}{
	{v1alpha1.AnchorOwner{APIVersion: "batch/v1", Kind: "Job", Name: "run"}, ""},
	{v1alpha1.AnchorOwner{APIVersion: "batch/v1", Kind: "Job", Name: "run"}, "5a1e1f0e-0000-4000-8000-000000000001"},
	{v1alpha1.AnchorOwner{APIVersion: "v1", Kind: "ConfigMap", Name: "run"}, ""},
	{v1alpha1.AnchorOwner{APIVersion: "spur.dev/v1", Kind: "SpurJob", MatchLabels: map[string]string{"spur.dev/id": "7", "a": "b"}}, ""},
	{v1alpha1.AnchorOwner{APIVersion: "batch/v1", Kind: "Job", Name: strings.Repeat("x", 252) + "a"}, ""},
	{v1alpha1.AnchorOwner{APIVersion: "batch/v1", Kind: "Job", Name: strings.Repeat("x", 252) + "b"}, ""},
	{v1alpha1.AnchorOwner{APIVersion: "batch/v1", Kind: "Job", Name: strings.Repeat("-", 253)}, ""},
	{v1alpha1.AnchorOwner{APIVersion: "batch/v1", Kind: "Job", Name: strings.Repeat("x", 41) + "-y"}, ""},
	{v1alpha1.AnchorOwner{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole", Name: "system:Node.é"}, ""},
}

// TestAnchorNamesAreStableForEver: a replica of another release must come to the
// same name, or one owner gets two Anchors.
func TestAnchorNamesAreStableForEver(t *testing.T) {
	t.Parallel()
	var names strings.Builder
	for _, n := range named {
		fmt.Fprintln(&names, AnchorName(n.owner, n.predecessor))
	}
	const file = "anchor-names.txt"
	path := filepath.Join("testdata", file)
	want, err := os.ReadFile(path)
	if *update && (errors.Is(err, fs.ErrNotExist) || (err == nil && strings.HasPrefix(names.String(), string(want)))) {
		want, err = []byte(names.String()), os.WriteFile(path, []byte(names.String()), 0o600)
	}
	if err != nil {
		t.Fatalf("%v (-update adds new names)", err)
	}
	if names.String() != string(want) {
		t.Errorf("got\n%swant\n%s", names.String(), want)
	}
	entries, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !e.IsDir() && e.Name() != file { // folders hold fuzz inputs
			t.Errorf("testdata/%s belongs to no test", e.Name())
		}
	}
}

func TestAnchorName(t *testing.T) {
	t.Parallel()
	base := v1alpha1.AnchorOwner{APIVersion: "batch/v1", Kind: "Job", Name: "run"}
	for name, c := range map[string]struct {
		owner       v1alpha1.AnchorOwner
		predecessor types.UID
		same        bool
	}{
		"the version does not matter":           {v1alpha1.AnchorOwner{APIVersion: "batch/v2alpha1", Kind: "Job", Name: "run"}, "", true},
		"the kind's case does not matter":       {v1alpha1.AnchorOwner{APIVersion: "batch/v1", Kind: "job", Name: "run"}, "", true},
		"the group matters":                     {v1alpha1.AnchorOwner{APIVersion: "other/v1", Kind: "Job", Name: "run"}, "", false},
		"the kind matters":                      {v1alpha1.AnchorOwner{APIVersion: "batch/v1", Kind: "CronJob", Name: "run"}, "", false},
		"the name matters":                      {v1alpha1.AnchorOwner{APIVersion: "batch/v1", Kind: "Job", Name: "run2"}, "", false},
		"the name's case matters":               {v1alpha1.AnchorOwner{APIVersion: "batch/v1", Kind: "Job", Name: "Run"}, "", false},
		"labels are no name":                    {v1alpha1.AnchorOwner{APIVersion: "batch/v1", Kind: "Job", MatchLabels: map[string]string{"run": ""}}, "", false},
		"the predecessor matters":               {base, "uid-1", false},
		"parts do not run into each other":      {v1alpha1.AnchorOwner{APIVersion: "batch/v1", Kind: "Jobr", Name: "un"}, "", false},
		"a predecessor is not part of the name": {v1alpha1.AnchorOwner{APIVersion: "batch/v1", Kind: "Job", Name: "ru"}, "n", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := AnchorName(c.owner, c.predecessor) == AnchorName(base, ""); got != c.same {
				t.Errorf("same name: %t, want %t", got, c.same)
			}
			if got := SameOwner(c.owner, base); got != (c.same || c.predecessor == "uid-1") {
				t.Errorf("SameOwner: %t", got)
			}
		})
	}
}

func FuzzAnchorName(f *testing.F) {
	for _, n := range named {
		f.Add(n.owner.APIVersion, n.owner.Kind, n.owner.Name, string(n.predecessor), "Job", "run")
	}
	f.Add("", "", "", "", "", "")
	f.Add("batch/v1", "7", "\xff/é", "", "K", "0")
	f.Fuzz(func(t *testing.T, apiVersion, kind, name, predecessor, otherKind, otherName string) {
		one := v1alpha1.AnchorOwner{APIVersion: apiVersion, Kind: kind, Name: name}
		got := AnchorName(one, types.UID(predecessor))
		if errs := validation.IsDNS1123Label(got); len(errs) > 0 {
			t.Fatalf("%q: %v", got, errs)
		}
		if got != AnchorName(one, types.UID(predecessor)) {
			t.Fatal("two calls, two names")
		}
		two := v1alpha1.AnchorOwner{APIVersion: apiVersion, Kind: otherKind, Name: otherName}
		if strings.ContainsFunc(kind+otherKind, func(r rune) bool { return r > unicode.MaxASCII }) {
			return // kinds are ASCII; beyond it case has more than one meaning
		}
		if same := got == AnchorName(two, types.UID(predecessor)); same != SameOwner(one, two) {
			t.Errorf("%+v and %+v: same name %t", one, two, same)
		}
	})
}

func TestShareable(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	wanted := v1alpha1.AnchorOwner{APIVersion: "batch/v1", Kind: "Job", Name: "run"}
	for name, c := range map[string]struct {
		change func(*v1alpha1.Anchor)
		want   bool
	}{
		"an Anchor that waits":                    {func(*v1alpha1.Anchor) {}, true},
		"exactly the margin is left":              {func(a *v1alpha1.Anchor) { a.Spec.ExpiresAt = metav1.NewTime(now.Add(5 * time.Minute)) }, true},
		"less than the margin is left":            {func(a *v1alpha1.Anchor) { a.Spec.ExpiresAt = metav1.NewTime(now.Add(5*time.Minute - time.Second)) }, false},
		"it is bound":                             {func(a *v1alpha1.Anchor) { a.Spec.BoundUID = "x" }, false},
		"it is being deleted":                     {func(a *v1alpha1.Anchor) { a.DeletionTimestamp = new(metav1.NewTime(now)) }, false},
		"it waits for another owner":              {func(a *v1alpha1.Anchor) { a.Spec.Owner.Name = "walk" }, false},
		"it waits for the owner in another group": {func(a *v1alpha1.Anchor) { a.Spec.Owner.APIVersion = "other/v1" }, false},
		"it names another version and case":       {func(a *v1alpha1.Anchor) { a.Spec.Owner.APIVersion, a.Spec.Owner.Kind = "batch/v2", "job" }, true},
		"it waits for labels":                     {func(a *v1alpha1.Anchor) { a.Spec.Owner.MatchLabels = map[string]string{"a": "b"} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &v1alpha1.Anchor{Spec: v1alpha1.AnchorSpec{Owner: wanted, ExpiresAt: metav1.NewTime(now.Add(10 * time.Minute))}}
			c.change(a)
			if got := Shareable(a, wanted, now, AnchorMargin(10*time.Minute)); got != c.want {
				t.Errorf("got %t", got)
			}
		})
	}
}
