package recovered

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// TestEveryRecordInEverySchema (S01, S03, S12): whatever a write says of the record, by whatever verb, and
// whatever the schema says of the field, the write goes through, and there is no UID left
// where the record has to be cleared, and all of them where it has to be kept.
//
// The API server refuses some of these writes by itself, which every case asks it first by
// a dry run past the policy:
//
//   - A required field without a default must be there: 422 for a PUT without it, for a
//     merge patch with null or a JSON patch with remove, and, where it is not nullable, for
//     any null but an apply's, as such nulls are dropped. belay's mutating phase comes before
//     that check, and puts there what makes the write valid.
//   - An apply may not say null where the field is not nullable and has no default, which
//     would take its place: 422. belay puts a record there where there is one to keep, and
//     leaves the write to be refused where there is none.
func TestEveryRecordInEverySchema(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	variations := map[string]variation{}
	schemas := map[string]*opensandbox.Record{}
	for i := range 8 {
		r, name := &opensandbox.Record{}, "field"
		if i&1 != 0 {
			r.Nullable, name = true, name+"-nullable"
		}
		if i&2 != 0 {
			r.Required, name = true, name+"-required"
		}
		if i&4 != 0 {
			r.Default, name = "[]", name+"-defaulted"
		}
		schemas[name], variations[name] = r, variation{CRDOptions: opensandbox.CRDOptions{Record: r}}
	}
	kinds := vary(ctx, t, "record", variations)

	const absent, removed = "absent", "removed"
	for name, k := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, schema := k.in(t), schemas[name]
			uid := string(k.box(ctx, "box", 1, nil)[0].UID)
			for what, c := range map[string]struct {
				before, after object
				kept          bool
			}{
				"a recovery": {
					before: status("Failed", object{"failedPodUIDs": []string{uid}}),
					after:  status("Succeed", nil),
				},
				"a failure to resume": {
					before: status("Resuming", object{"failedPodUIDs": []string{}}),
					after:  status("Failed", object{"conditions": resumeFailed()}),
				},
				"a failure that proves terminal": {
					before: status("Failed", object{"failedPodUIDs": []string{uid}}),
					after:  status("Failed", object{"conditions": resumeFailed()}),
				},
				"a leftover of a recovery": {
					before: status("Succeed", object{"failedPodUIDs": []string{uid}}),
					after:  status("Succeed", nil),
				},
				"a resume": {
					before: status("Failed", object{"failedPodUIDs": []string{uid}}),
					after:  status("Resuming", nil),
				},
				"another look at a failure": {
					before: status("Failed", object{"failedPodUIDs": []string{uid}}),
					after:  status("Failed", nil), kept: true,
				},
				"a pause": {
					before: status("Failed", object{"failedPodUIDs": []string{uid}}),
					after:  status("Pausing", nil), kept: true,
				},
			} {
				for content, value := range map[string]any{absent: nil, removed: gone{}, "null": nil, "empty": []string{}, "set": []string{uid}} {
					for _, verb := range verbs {
						if content == removed && verb != byJSON {
							continue // they have no word for it
						}
						fields := status("", c.after)
						if content != absent {
							fields["failedPodUIDs"] = value
						}
						k.set(ctx, "box", c.before)
						which := fmt.Sprintf("%s by %s, record %s", what, verb, content)

						nullApplied := verb == byApply && content == "null" && !schema.Nullable && schema.Default == ""
						missing := content == removed || content == absent && verb == byPut || content == "null" && verb == byMerge ||
							content == "null" && !schema.Nullable && verb != byApply
						refuses := nullApplied || missing && schema.Required && schema.Default == ""
						_, err := k.send(ctx, k.past, verb, "box", fields, "All")
						if apierrors.IsInvalid(err) != refuses || (err != nil) != refuses {
							t.Errorf("%s: the API server itself answers %v", which, err)
						}

						got, err := k.send(ctx, k.guarded, verb, "box", fields)
						if nullApplied && !c.kept {
							if !apierrors.IsInvalid(err) || strings.Contains(err.Error(), "belay") {
								t.Errorf("%s: %v", which, err)
							}
							continue
						}
						if err != nil {
							t.Errorf("%s: %v", which, err)
							continue
						}
						var want []string
						if c.kept {
							want = []string{uid}
						}
						if diff := cmp.Diff(want, record(t, got)); diff != "" {
							t.Errorf("%s: record (-want +got):\n%s", which, diff)
						}
						if phaseOf(got) != c.after["phase"] {
							t.Errorf("%s: phase %q", which, phaseOf(got))
						}
					}
				}
			}
		})
	}
}

// TestRecordsAreJoined: two controllers that know nothing of each other, or one that is
// stale, each say which Pods failed. Nobody's are lost.
func TestRecordsAreJoined(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	kinds := vary(ctx, t, "union", map[string]variation{
		"list": {CRDOptions: opensandbox.CRDOptions{Record: &opensandbox.Record{}}},
		"set":  {CRDOptions: opensandbox.CRDOptions{Record: &opensandbox.Record{Set: true}}},
		"few": {CRDOptions: opensandbox.CRDOptions{Record: &opensandbox.Record{}}, schema: func(crd *apiextensionsv1.CustomResourceDefinition) {
			changeStatus(crd, func(s *apiextensionsv1.JSONSchemaProps) {
				field := s.Properties["failedPodUIDs"]
				field.MaxItems = new(int64(3))
				s.Properties["failedPodUIDs"] = field
			})
		}},
	})

	for name, c := range map[string]struct {
		kind string
		// writes are records that come one after the other; nil says nothing of it.
		writes [][]string
		want   []string
	}{
		"S09 two controllers, one UID each":                            {"list", [][]string{{u(1)}, {u(2)}}, []string{u(1), u(2)}},
		"S09 a third that has seen neither":                            {"list", [][]string{{u(1)}, {u(2)}, {u(3)}}, []string{u(1), u(2), u(3)}},
		"S09 one that has seen more comes before one that is stale":    {"list", [][]string{{u(1), u(2)}, {u(2)}, {}}, []string{u(1), u(2)}},
		"S09 one in another order":                                     {"list", [][]string{{u(1), u(2)}, {u(2), u(1)}}, []string{u(1), u(2)}},
		"S10 the same UID again, in a list":                            {"list", [][]string{{u(1)}, {u(1)}, {u(1), u(2)}}, []string{u(1), u(2)}},
		"S10 the same UID again, in a set":                             {"set", [][]string{{u(1)}, {u(1)}, {u(1), u(2)}}, []string{u(1), u(2)}},
		"S10 what is there already and what is not, in a set":          {"set", [][]string{{u(1), u(2)}, {u(2), u(3)}}, []string{u(1), u(2), u(3)}},
		"S28 as many as the schema has room for":                       {"few", [][]string{{u(1)}, {u(2)}, {u(3)}}, []string{u(1), u(2), u(3)}},
		"S28 more than the schema has room for":                        {"few", [][]string{{u(1)}, {u(2)}, {u(3)}, {u(4)}}, []string{u(1), u(2), v1alpha1.NoPodUID}},
		"S28 more than the schema has room for, at once":               {"few", [][]string{{u(1), u(2), u(3), u(4)}}, []string{u(1), u(2), v1alpha1.NoPodUID}},
		"S28 the mark is as little dropped as a UID":                   {"few", [][]string{{u(1), u(2), u(3), u(4)}, {u(1), u(2)}, {}}, []string{u(1), u(2), v1alpha1.NoPodUID}},
		"S28 after the mark nothing else is kept, and nothing is lost": {"few", [][]string{{u(1), u(2), u(3), u(4)}, {u(5)}}, []string{u(1), u(2), v1alpha1.NoPodUID}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := kinds[c.kind].in(t)
			for _, verb := range verbs {
				box := named(name + verb)
				k.box(ctx, box, 0, status("Pending", nil))
				for _, uids := range c.writes {
					got, err := k.send(ctx, k.guarded, verb, box, status("Failed", object{"failedPodUIDs": uids}))
					must(t, err)
					if all := record(t, got); len(all) > 1 && slices.Contains(all[:len(all)-1], v1alpha1.NoPodUID) {
						t.Errorf("by %s: the mark is not at the end of %v", verb, all)
					}
				}
				got := record(t, k.get(ctx, box))
				if verb == byApply && c.kind == "set" {
					// An apply joins the sets of managers, and says what is its own first.
					slices.Sort(got)
				}
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("by %s: record (-want +got):\n%s", verb, diff)
				}
			}
		})
	}

	t.Run("S10 one UID twice in a write", func(t *testing.T) {
		t.Parallel()
		for name, k := range kinds {
			k := k.in(t)
			for _, verb := range verbs {
				box := named("twice" + verb)
				k.box(ctx, box, 0, status("Pending", nil))
				got, err := k.send(ctx, k.guarded, verb, box, status("Failed", object{"failedPodUIDs": []string{u(2), u(1), u(2)}}))
				if verb == byApply && name == "set" {
					// It is refused before anybody is asked.
					if err == nil || !strings.Contains(err.Error(), "duplicate") {
						t.Errorf("%s, %s: %v", name, verb, err)
					}
					continue
				}
				if err != nil {
					t.Errorf("%s, %s: %v", name, verb, err)
					continue
				}
				if diff := cmp.Diff([]string{u(2), u(1)}, record(t, got)); diff != "" {
					t.Errorf("%s, %s: record (-want +got):\n%s", name, verb, diff)
				}
			}
		}
	})

	// Three Pods fit in the record, and recover; of four two are not known any more.
	t.Run("S28 a record that is full recovers, one that overflowed does not", func(t *testing.T) {
		t.Parallel()
		k := kinds["few"].in(t)
		for box, c := range map[string]struct {
			pods int
			code int32
		}{"full": {3, 200}, "overflowed": {4, 403}} {
			all := uids(k.box(ctx, box, c.pods, status("Pending", nil))...)
			_, err := k.send(ctx, k.guarded, byMerge, box, object{"phase": "Failed", "failedPodUIDs": all})
			must(t, err)
			got, err := k.send(ctx, k.guarded, byMerge, box, object{"phase": "Succeed"})
			if c.code == 200 {
				must(t, err)
				if diff := cmp.Diff([]string(nil), record(t, got)); diff != "" {
					t.Errorf("record (-want +got):\n%s", diff)
				}
				continue
			}
			denied(t, err, c.code, "more pods failed than its record has room for")
			if cause := causeOf(t, err); cause != "belay.dev/Overflow" {
				t.Errorf("cause %q", cause)
			}
		}
	})
}

// TestRecordsStaySmall: an object whose Pods fail without end neither grows until it cannot
// be stored, nor loses what keeps it from recovering.
func TestRecordsStaySmall(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	k := vary(ctx, t, "small", map[string]variation{"list": {CRDOptions: opensandbox.CRDOptions{Record: &opensandbox.Record{}}}})["list"]
	const all = 40_000
	var uids []string
	for i := range all {
		uids = append(uids, u(i+1))
	}
	want := append(slices.Clone(uids[:100]), v1alpha1.NoPodUID)
	check := func(t *testing.T, box string) {
		t.Helper()
		got := k.in(t).get(ctx, box)
		if diff := cmp.Diff(want, record(t, got)); diff != "" {
			t.Errorf("record (-want +got):\n%s", diff)
		}
		if n := len(encoded(t, got.Object["status"])); n > 6<<10 {
			t.Errorf("the status has %d bytes", n)
		}
		for _, verb := range verbs {
			_, err := k.send(ctx, k.guarded, verb, box, status("Succeed", object{"failedPodUIDs": []string{}}))
			denied(t, err, 403, "more pods failed than its record has room for")
			if cause := causeOf(t, err); cause != "belay.dev/Overflow" {
				t.Errorf("cause %q", cause)
			}
		}
	}
	for _, verb := range verbs {
		t.Run("S28 40000 UIDs at once by "+verb, func(t *testing.T) {
			t.Parallel()
			k, box := k.in(t), named("once"+verb)
			k.box(ctx, box, 0, status("Pending", nil))
			_, err := k.send(ctx, k.guarded, verb, box, status("Failed", object{"failedPodUIDs": uids}))
			must(t, err)
			check(t, box)
		})
	}
	t.Run("S28 40000 UIDs over time", func(t *testing.T) {
		t.Parallel()
		k := k.in(t)
		k.box(ctx, "slowly", 0, status("Pending", nil))
		const step = 400
		for i := 0; i < all; i += step {
			got, err := k.send(ctx, k.guarded, verbs[i/step%len(verbs)], "slowly", status("Failed", object{"failedPodUIDs": uids[i : i+step]}))
			must(t, err)
			if n := len(record(t, got)); n > 101 {
				t.Fatalf("%d UIDs are stored", n)
			}
		}
		check(t, "slowly")
	})
}
