package certs

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestNext(t *testing.T) {
	t.Parallel()
	a, b := newCA(t, day0), newCA(t, day0.Add(240*day))
	c := newCA(t, day0.Add(241*day))
	asked := func(s *State) *State { s.Asked = "now"; return s }
	yes := func(d time.Duration) Proof { return Proof{Answer: Yes, Held: d} }
	no := Proof{Answer: No, Missing: "somebody"}
	settled := usual.Settle
	// 365 days and two thirds of them.
	fresh, old, dead := day0.Add(time.Hour), day0.Add(244*day), day0.Add(366*day)
	early := day0.Add(241 * day)
	steady := func() *State { return &State{Signer: a, Trusted: trusting(a)} }
	adding := func() *State { return &State{Signer: a, Next: b, Trusted: trusting(a, b)} }
	serving := func() *State { return &State{Signer: b, Trusted: trusting(a, b)} }
	for name, tc := range map[string]struct {
		state   *State
		facts   Facts
		now     time.Time
		want    Action
		because string // a part of it
	}{
		"there is no CA":                          {nil, Facts{}, fresh, Wait, "belay-webhook makes the first one"},
		"a CA that is new":                        {steady(), Facts{}, fresh, Wait, ""},
		"a CA a moment before two thirds":         {steady(), Facts{}, a.Cert.NotAfter.Add(-usual.CA/3 - time.Second), Wait, ""},
		"a CA that has used two thirds":           {steady(), Facts{}, a.Cert.NotAfter.Add(-usual.CA / 3), Add, "two thirds"},
		"a CA that has expired":                   {steady(), Facts{}, dead, Add, "has expired"},
		"a CA at the very moment that it expires": {steady(), Facts{}, a.Cert.NotAfter, Add, "has expired"},
		"somebody asks":                           {asked(steady()), Facts{}, fresh, Add, "annotation belay.dev/rotate"},
		"what was asked for is done":              {&State{Signer: a, Trusted: trusting(a), Asked: "now", Done: "now"}, Facts{}, fresh, Wait, ""},
		"the request was taken back":              {&State{Signer: a, Trusted: trusting(a), Done: "now"}, Facts{}, fresh, Wait, ""},
		"another request":                         {&State{Signer: a, Trusted: trusting(a), Asked: "again", Done: "now"}, Facts{}, fresh, Add, "annotation"},
		"a clock before the CA was made":          {steady(), Facts{}, day0.Add(-1000 * day), Wait, ""},

		"the bundle lacks what signs":      {&State{Signer: a}, Facts{}, fresh, Trust, "lacks"},
		"the bundle lacks what will sign":  {&State{Signer: a, Next: b, Trusted: trusting(a)}, Facts{}, early, Trust, "lacks"},
		"the bundle has another CA, alone": {&State{Signer: a, Trusted: trusting(b)}, Facts{}, fresh, Trust, "lacks"},

		"add: nothing is known":                                   {adding(), Facts{}, early, Wait, "in all registrations"},
		"add: not in all registrations":                           {adding(), Facts{Registered: no, Distributed: yes(settled)}, early, Wait, "in all registrations: somebody"},
		"add: in all registrations since a moment":                {adding(), Facts{Registered: yes(settled - 1), Distributed: yes(settled)}, early, Wait, "API servers"},
		"add: sidecars are not given it":                          {adding(), Facts{Registered: yes(settled), Distributed: no}, early, Wait, "sidecars to be given the next CA: somebody"},
		"add: not known what sidecars are given":                  {adding(), Facts{Registered: yes(settled)}, early, Wait, "sidecars"},
		"add: sidecars are given it since a moment":               {adding(), Facts{Registered: yes(settled), Distributed: yes(settled - 1)}, early, Wait, "kubelets"},
		"add: trusted everywhere for long enough":                 {adding(), Facts{Registered: yes(settled), Distributed: yes(settled)}, early, Serve, "trusted everywhere"},
		"add: a tenant undoes what sidecars are given":            {adding(), Facts{Registered: yes(patience * settled), Distributed: no}, early, Serve, "long enough: somebody"},
		"add: and not so long yet":                                {adding(), Facts{Registered: yes(patience*settled - 1), Distributed: no}, early, Wait, "sidecars"},
		"add: for ever, but not in all registrations":             {adding(), Facts{Registered: no, Distributed: no}, old, Wait, "in all registrations"},
		"add: the CA expires, nothing is known":                   {adding(), Facts{Lapsed: yes(settled)}, dead, Serve, "has expired"},
		"add: it has expired at this look only":                   {adding(), Facts{Lapsed: yes(settled - 1)}, dead, Wait, "in all registrations"},
		"add: the CA expires, and some do not trust the next one": {adding(), Facts{Registered: no, Lapsed: yes(settled)}, dead, Wait, "in all registrations"},
		"add: the CA expires, all have the next one":              {adding(), Facts{Registered: yes(0), Lapsed: yes(settled)}, dead, Serve, "has expired"},
		"add: the next one is old as well":                        {adding(), Facts{Registered: yes(settled), Distributed: yes(settled)}, b.Cert.NotAfter.Add(-usual.CA / 3), Add, "before it was used"},
		"add: both have expired":                                  {adding(), Facts{}, day0.Add(2000 * day), Add, "before it was used"},
		"add: asked once more":                                    {asked(adding()), Facts{}, early, Wait, "in all registrations"},

		"serve: nothing is known":                           {serving(), Facts{}, old, Wait, "for every replica"},
		"serve: one replica does not":                       {serving(), Facts{Served: no}, old, Wait, "for every replica to serve a certificate of the new CA: somebody"},
		"serve: every replica does since a moment":          {serving(), Facts{Served: yes(settled - 1)}, old, Wait, "for a while"},
		"serve: every replica does":                         {serving(), Facts{Served: yes(settled)}, old, Drop, "every replica"},
		"serve: a replica hangs until the former CA is old": {serving(), Facts{Served: no, Lapsed: yes(settled)}, dead, Drop, "former CA has expired"},
		"serve: not known until the former CA is old":       {serving(), Facts{Lapsed: yes(settled)}, dead, Drop, "former CA has expired"},
		"serve: the former CA is old at this look only":     {serving(), Facts{Served: no, Lapsed: yes(settled - 1)}, dead, Wait, "for every replica"},
		"serve: asked once more, with a replica that hangs": {asked(serving()), Facts{Served: no}, old, Add, "annotation"},
		"serve: asked too often":                            {asked(&State{Signer: c, Trusted: trusting(a, b, c, newCA(t, old))}), Facts{Served: no}, old, Wait, "before the next one is made: somebody"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := Next(tc.state, tc.facts, usual, tc.now)
			if got.Action != tc.want || !strings.Contains(got.Because, tc.because) || got.Because == "" && tc.because == "" && got.Action != Wait {
				t.Errorf("%q because %q", got.Action, got.Because)
			}
		})
	}
}

func TestAfter(t *testing.T) {
	t.Parallel()
	a, b, c := newCA(t, day0), newCA(t, day0), newCA(t, day0)
	for name, tc := range map[string]struct {
		before *State
		action Action
		want   *State
	}{
		"add":                             {&State{Signer: a, Trusted: trusting(a), Asked: "now"}, Add, &State{Signer: a, Next: c, Trusted: trusting(a, c), Asked: "now", Done: "now"}},
		"add in the place of one unused":  {&State{Signer: a, Next: b, Trusted: trusting(a, b)}, Add, &State{Signer: a, Next: c, Trusted: trusting(a, c), Retired: []string{Fingerprint(b.Cert)}}},
		"serve":                           {&State{Signer: a, Next: b, Trusted: trusting(a, b)}, Serve, &State{Signer: b, Trusted: trusting(a, b)}},
		"drop":                            {&State{Signer: b, Trusted: trusting(a, b), Retired: []string{"x"}}, Drop, &State{Signer: b, Trusted: trusting(b), Retired: []string{"x", Fingerprint(a.Cert)}}},
		"trust what signs":                {&State{Signer: a}, Trust, &State{Signer: a, Trusted: trusting(a)}},
		"trust what signs, and will":      {&State{Signer: a, Next: b, Trusted: trusting(c)}, Trust, &State{Signer: a, Next: b, Trusted: trusting(c, a, b)}},
		"wait":                            {&State{Signer: a, Trusted: trusting(a)}, Wait, &State{Signer: a, Trusted: trusting(a)}},
		"drop remembers so many":          {&State{Signer: b, Trusted: trusting(a, b), Retired: slices.Repeat([]string{"x"}, mostRetired)}, Drop, &State{Signer: b, Trusted: trusting(b), Retired: append(slices.Repeat([]string{"x"}, mostRetired-1), Fingerprint(a.Cert))}},
		"what was retired and comes back": {&State{Signer: a, Trusted: trusting(a), Retired: []string{Fingerprint(c.Cert)}}, Add, &State{Signer: a, Next: c, Trusted: trusting(a, c), Retired: []string{Fingerprint(c.Cert)}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := describe(tc.before)
			got := tc.before.after(tc.action, c)
			if diff := cmp.Diff(describe(tc.want), describe(got)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(before, describe(tc.before)); diff != "" {
				t.Errorf("what was before has changed\n%s", diff)
			}
			// It survives the Secret.
			s := secret(got)
			again, err := Parse(s)
			must(t, err)
			if diff := cmp.Diff(describe(got), describe(again)); diff != "" {
				t.Errorf("written and read\n%s", diff)
			}
		})
	}
}
