package recovery

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUnion(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ first, then, want []string }{
		"of nothing":                          {nil, nil, []string{}},
		"of one and nothing":                  {[]string{u1}, nil, []string{u1}},
		"of nothing and one":                  {nil, []string{u1}, []string{u1}},
		"what is in both is there once":       {[]string{u1, u2}, []string{u2, u1}, []string{u1, u2}},
		"what is in either twice, once":       {[]string{u1, u1}, []string{u2, u2, u1}, []string{u1, u2}},
		"what is new comes after what is old": {[]string{u2}, []string{u3, u2, u1}, []string{u2, u3, u1}},
		"the mark is like any other":          {[]string{u1, seal}, []string{u2, seal}, []string{u1, seal, u2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, union(c.first, c.then)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestCapped(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		most       int64
		from, want []string
	}{
		"nothing":                                      {0, nil, nil},
		"a few":                                        {0, []string{u2, u1}, []string{u2, u1}},
		"as many as there is room for":                 {0, numbered(100), numbered(100)},
		"one more":                                     {0, numbered(101), append(numbered(100), seal)},
		"as many as the schema has room for":           {3, numbered(3), numbered(3)},
		"one more than the schema has room for":        {3, numbered(4), append(numbered(2), seal)},
		"a schema that has as much room as belay":      {100, numbered(101), append(numbered(99), seal)},
		"a schema that has one place more":             {101, numbered(101), append(numbered(100), seal)},
		"a schema that has more room than belay":       {120, numbered(110), append(numbered(100), seal)},
		"a schema that has room for one":               {1, []string{u1}, []string{u1}},
		"a schema that has room for one, and two come": {1, []string{u1, u2}, []string{seal}},
		"the mark alone":                               {0, []string{seal}, []string{seal}},
		"the mark alone, in a schema with one place":   {1, []string{seal}, []string{seal}},
		"the mark stays":                               {0, []string{u1, seal}, []string{u1, seal}},
		"the mark goes to the end":                     {0, []string{seal, u1}, []string{u1, seal}},
		"the mark is there once":                       {0, []string{seal, u1, seal}, []string{u1, seal}},
		"the mark takes a place of the schema's":       {2, []string{u1, u2, seal}, []string{u1, seal}},
		"the mark beside as many as belay keeps":       {0, append(numbered(100), seal), append(numbered(100), seal)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, policy(func(p *Policy) { p.MaxItems = c.most }).capped(c.from)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// drawnRecord is a record of up to 130 UIDs, some of them twice, and often with the mark.
func drawnRecord(r *rand.Rand) []string {
	n := []int{0, 1, 2, 3, 20, 98, 99, 100, 101, 102, 130}[r.IntN(11)]
	var out []string
	for range n {
		out = append(out, fmt.Sprintf("n%03d", r.IntN(2*n)))
	}
	for range r.IntN(3) {
		out = slices.Insert(out, r.IntN(len(out)+1), seal)
	}
	return out
}

// TestRecordsKeepTheirRules for every limit that a schema may have.
func TestRecordsKeepTheirRules(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	over, under := 0, 0
	for most := range 121 {
		p := policy(func(p *Policy) { p.MaxItems = int64(most) })
		limit := MaxRecord
		if most > 0 {
			limit = min(limit, most)
		}
		for range 25 {
			a, b := drawnRecord(r), drawnRecord(r)
			a0, b0 := slices.Clone(a), slices.Clone(b)
			all := union(a, b)
			got := p.capped(all)
			bad := func(what string) {
				t.Fatalf("%s, with maxItems %d:\n%q and\n%q is\n%q", what, most, a, b, got)
			}

			// The union.
			if !slices.Equal(union(all, b), all) || !slices.Equal(union(all, a), all) || !slices.Equal(union(all, all), all) || !slices.Equal(union(all, nil), all) {
				bad("the union is not idempotent")
			}
			if !covers(all, a) || !covers(all, b) || !covers(union(b, a), all) {
				bad("the union loses something or adds something")
			}
			if head := union(a, nil); !slices.Equal(all[:len(head)], head) {
				bad("the union changes the order of the first")
			}

			// The cap.
			uids := slices.DeleteFunc(slices.Clone(got), func(uid string) bool { return uid == seal })
			want := slices.DeleteFunc(slices.Clone(all), func(uid string) bool { return uid == seal })
			marked := len(uids) < len(got)
			switch {
			case len(union(got, nil)) != len(got):
				bad("something is there twice")
			case len(uids) > limit || most > 0 && len(got) > most:
				bad("there are too many")
			case len(uids) > len(want) || !slices.Equal(uids, want[:len(uids)]):
				bad("the order changes, or something is left out of the middle")
			case marked && got[len(got)-1] != seal:
				bad("the mark is not at the end")
			case marked && len(uids) == len(want) && !slices.Contains(all, seal):
				bad("there is a mark, and nothing was left out")
			case !marked && (len(uids) < len(want) || slices.Contains(all, seal)):
				bad("something was left out, and there is no mark")
			case !slices.Equal(p.capped(got), got):
				bad("the cap is not idempotent")
			case marked && !slices.Contains(p.capped(union(got, drawnRecord(r))), seal):
				bad("the mark goes away")
			case len(want) <= limit && !slices.Contains(all, seal) && !slices.Equal(got, want):
				bad("what has room is not all there")
			case len(uids) > 0 && marked && !overflown(got):
				bad("the mark beside others is not seen")
			case sealed(got) && most != 1 && len(want) > 0:
				bad("an overflow is taken for a failure without a record")
			case !slices.Equal(a, a0) || !slices.Equal(b, b0):
				bad("what was given is changed")
			}
			if marked {
				over++
			} else {
				under++
			}
		}
	}
	if over < 1000 || under < 100 {
		t.Errorf("%d with the mark, %d without: this test proves too little", over, under)
	}
}

// TestCappedLeavesTheRoomBehindARecordAlone: records are slices of somebody else's.
func TestCappedLeavesTheRoomBehindARecordAlone(t *testing.T) {
	t.Parallel()
	p := policy(func(p *Policy) { p.MaxItems = 2 })
	for _, from := range [][]string{{u1, u2, u3}, {u1, seal, u2}, {u1, seal}} {
		roomy := append(make([]string, 0, 8), from...)
		first := p.capped(roomy)
		kept := slices.Clone(first)
		_ = append(first, "x")
		_ = append(p.capped(roomy), "y")
		if !slices.Equal(roomy, from) || !slices.Equal(first, kept) || roomy[:len(from)+1][len(from)] != "" {
			t.Errorf("%q became %q, %q became %q", from, roomy[:cap(roomy)], kept, first)
		}
	}
}

func TestMarks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		record            []string
		sealed, overflown bool
	}{
		"nothing":               {nil, false, false},
		"a UID":                 {[]string{u1}, false, false},
		"two UIDs":              {[]string{u1, u2}, false, false},
		"the mark alone":        {[]string{seal}, true, false},
		"the mark behind a UID": {[]string{u1, seal}, false, true},
		"the mark before a UID": {[]string{seal, u1}, false, true},
		"the mark between UIDs": {[]string{u1, seal, u2}, false, true},
		"an empty UID":          {[]string{""}, false, false},
		"a UID with other ends": {[]string{seal + "0"}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if sealed(c.record) != c.sealed || overflown(c.record) != c.overflown {
				t.Errorf("sealed %t, overflown %t", sealed(c.record), overflown(c.record))
			}
		})
	}
}

func TestCoversAndSame(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		a, b         []string
		covers, same bool
	}{
		"nothing has nothing": {nil, []string{}, true, true},
		"one has nothing":     {[]string{u1}, nil, true, false},
		"nothing has not one": {nil, []string{u1}, false, false},
		"one has itself":      {[]string{u1}, []string{u1}, true, true},
		"in another order":    {[]string{u1, u2}, []string{u2, u1}, true, true},
		"twice is once":       {[]string{u1}, []string{u1, u1}, true, true},
		"more than enough":    {[]string{u1, u2}, []string{u2}, true, false},
		"one of two":          {[]string{u1}, []string{u2, u1}, false, false},
		"as many, and others": {[]string{u1, u2}, []string{u1, u3}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if covers(c.a, c.b) != c.covers || same(c.a, c.b) != c.same || same(c.b, c.a) != c.same {
				t.Errorf("covers %t, same %t", covers(c.a, c.b), same(c.a, c.b))
			}
		})
	}
}
