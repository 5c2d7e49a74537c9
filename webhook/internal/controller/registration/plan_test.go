package registration

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	mathrand "math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/certs"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// authority is a CA certificate in PEM, which ends at the given time.
func authority(t *testing.T, name string, notAfter time.Time) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-time.Hour), NotAfter: notAfter, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func TestT02_TheBundleHoldsOurCAAndKeepsOthers(t *testing.T) {
	t.Parallel()
	ours, theirs := authority(t, "ours", now.Add(time.Hour)), authority(t, "theirs", now.Add(time.Hour))
	next, expired := authority(t, "next", now.Add(2*time.Hour)), authority(t, "expired", now.Add(-time.Minute))
	for name, c := range map[string]struct{ live, ca, want []byte }{
		"none yet: ours":                                {nil, ours, ours},
		"ours is there: untouched":                      {ours, ours, ours},
		"ours is there beside another: untouched":       {join(theirs, ours), ours, join(theirs, ours)},
		"T02: somebody else's alone: ours is added":     {theirs, ours, join(theirs, ours)},
		"a rotation: old and new are both ours":         {ours, join(ours, next), join(ours, next)},
		"a rotation: the old one stays until it is old": {ours, next, join(ours, next)},
		"expired ones go when ours has to be added":     {join(expired, theirs), ours, join(theirs, ours)},
		"ours stays, although it has expired":           {join(expired, theirs), join(expired, next), join(expired, theirs, next)},
		"expired ones alone are no reason to write":     {join(expired, ours), ours, join(expired, ours)},
		"what is no certificate goes with the write":    {[]byte("Cg=="), ours, ours},
		"P05: without a CA of ours nothing is touched":  {theirs, nil, theirs},
		"P05: without a CA of ours none stays none":     {nil, nil, nil},
		"P05: without a CA of ours even junk stays":     {[]byte("junk"), nil, []byte("junk")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := (roots{bundle: c.ca}).merge(c.live, now); !bytes.Equal(got, c.want) {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

func TestWhatARotationHasRetiredIsDropped(t *testing.T) {
	t.Parallel()
	old, ours, theirs := authority(t, "old", now.Add(time.Hour)), authority(t, "ours", now.Add(time.Hour)), authority(t, "theirs", now.Add(time.Hour))
	retired := []string{certs.Fingerprint(certs.Bundle(old)[0])}
	for name, c := range map[string]struct {
		live    []byte
		retired []string
		want    []byte
	}{
		"it goes":                          {join(old, ours), retired, ours},
		"others' stay":                     {join(theirs, old, ours), retired, join(theirs, ours)},
		"one that is not known stays":      {join(old, ours), []string{"x"}, join(old, ours)},
		"it has gone: nothing is written":  {ours, retired, ours},
		"ours is missing, and it is there": {old, retired, ours},
		"what is trusted is not dropped":   {ours, []string{certs.Fingerprint(certs.Bundle(ours)[0])}, ours},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := (roots{bundle: ours, retired: c.retired}).merge(c.live, now); !bytes.Equal(got, c.want) {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

// An entry whose change the API server refuses stays as it is live, but for its CA: with the
// former one alone it would fail once that does not sign any more.
func TestAnEntryThatIsRefusedGetsTheNextCA(t *testing.T) {
	t.Parallel()
	old, next := authority(t, "old", now.Add(time.Hour)), authority(t, "next", now.Add(time.Hour))
	live, _ := plan(config{}, wanted("otf"), roots{bundle: old}, now)
	want := wanted("otf")
	seconds := int32(9)
	want[0].TimeoutSeconds = &seconds
	planned, _ := plan(live, want, roots{bundle: join(old, next)}, now)
	got := keepLive(planned, live, map[string]string{want[0].Name: "refused"})
	if e := got.entries[0]; !bytes.Equal(e.ClientConfig.CABundle, join(old, next)) || e.TimeoutSeconds != nil && *e.TimeoutSeconds == seconds {
		t.Errorf("%+v", e)
	}
}

// Where somebody else fills caBundle a new entry trusts what another one of belay's does, and not
// what a stranger's does.
func TestANewEntryStartsWithTheCAOfAnother(t *testing.T) {
	t.Parallel()
	ca := authority(t, "theirs", now.Add(time.Hour))
	trusting := func(name string, ca []byte) admissionregistrationv1.MutatingWebhook {
		return admissionregistrationv1.MutatingWebhook{Name: name, ClientConfig: admissionregistrationv1.WebhookClientConfig{CABundle: ca}}
	}
	stranger := trusting("audit.belay.dev", authority(t, "stranger's", now.Add(time.Hour)))
	for name, c := range map[string]struct {
		live []admissionregistrationv1.MutatingWebhook
		want []byte
	}{
		"nothing is there":         {nil, nil},
		"a stranger's is there":    {[]admissionregistrationv1.MutatingWebhook{stranger}, nil},
		"another is there as well": {[]admissionregistrationv1.MutatingWebhook{stranger, trusting("x.owner.belay.dev", ca)}, ca},
		"another has none yet":     {[]admissionregistrationv1.MutatingWebhook{trusting("x.owner.belay.dev", nil), trusting("y.owner.belay.dev", ca)}, ca},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, _ := plan(config{entries: c.live}, wanted("otf"), roots{}, now)
			for _, e := range out.entries {
				if e.Name == "otf.owner.belay.dev" && !bytes.Equal(e.ClientConfig.CABundle, c.want) {
					t.Errorf("%s", e.ClientConfig.CABundle)
				}
			}
		})
	}
}

// requirement is a selector's expression.
func requirement(key string, op metav1.LabelSelectorOperator, values ...string) metav1.LabelSelectorRequirement {
	return metav1.LabelSelectorRequirement{Key: key, Operator: op, Values: values}
}

func selecting(labels map[string]string, e ...metav1.LabelSelectorRequirement) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: labels, MatchExpressions: e}
}

func TestP05_WhatOthersAddedToASelectorStays(t *testing.T) {
	t.Parallel()
	mode := requirement("belay.dev/mode", metav1.LabelSelectorOpIn, "enforce", "warn")
	stage := requirement("stage", metav1.LabelSelectorOpNotIn, "prod")
	aks := requirement("control-plane", metav1.LabelSelectorOpNotIn, "true")
	for name, c := range map[string]struct{ want, live, was, merged *metav1.LabelSelector }{
		"nothing is there":                            {selecting(nil, mode), nil, nil, selecting(nil, mode)},
		"it is as it should be":                       {selecting(nil, mode), selecting(nil, mode), selecting(nil, mode), selecting(nil, mode)},
		"another writer added an expression":          {selecting(nil, mode), selecting(nil, mode, aks), selecting(nil, mode), selecting(nil, mode, aks)},
		"another writer added one in front":           {selecting(nil, mode), selecting(nil, aks, mode), selecting(nil, mode), selecting(nil, aks, mode)},
		"another writer added a label":                {selecting(nil, mode), selecting(map[string]string{"a": "b"}, mode), selecting(nil, mode), selecting(map[string]string{"a": "b"}, mode)},
		"what we wrote before and want no more goes":  {selecting(nil, mode), selecting(nil, mode, stage, aks), selecting(nil, mode, stage), selecting(nil, mode, aks)},
		"a label that we want no more goes":           {selecting(nil, mode), selecting(map[string]string{"team": "a", "a": "b"}, mode), selecting(map[string]string{"team": "a"}, mode), selecting(map[string]string{"a": "b"}, mode)},
		"a label of ours that was changed is mended":  {selecting(map[string]string{"team": "a"}), selecting(map[string]string{"team": "b"}), selecting(map[string]string{"team": "a"}), selecting(map[string]string{"team": "a"})},
		"an expression of ours that is gone is added": {selecting(nil, mode, stage), selecting(nil, aks, mode), selecting(nil, mode, stage), selecting(nil, mode, stage, aks)},
		"we want what another writer added already":   {selecting(nil, mode, aks), selecting(nil, mode, aks), selecting(nil, mode), selecting(nil, mode, aks)},
		"no record of what we wrote: all is kept":     {selecting(nil, mode), selecting(map[string]string{"x": "y"}, mode, stage), nil, selecting(map[string]string{"x": "y"}, mode, stage)},
		"an order alone is no change":                 {selecting(nil, mode, stage), selecting(nil, stage, mode), selecting(nil, mode, stage), selecting(nil, stage, mode)},
		"a doubled expression of another is kept one": {selecting(nil, mode), selecting(nil, mode, aks, aks), selecting(nil, mode), selecting(nil, mode, aks)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.merged, mergeSelector(c.want, c.live, c.was), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// wanted are the entries of policies of these names, as the reconciler makes them.
func wanted(names ...string) []admissionregistrationv1.MutatingWebhook {
	var policies []*v1alpha1.OwnerPolicy
	for _, n := range names {
		policies = append(policies, plain(n))
	}
	return render(inForce{owners: policies}, settings{endpoint: service, ownNamespace: "belay-system"}).Mutating
}

func entryNames(c config) []string {
	var out []string
	for _, e := range c.entries {
		out = append(out, e.Name)
	}
	return out
}

func TestPlan(t *testing.T) {
	t.Parallel()
	ca := authority(t, "ours", now.Add(time.Hour))
	foreign := admissionregistrationv1.MutatingWebhook{Name: "audit.example.com", ClientConfig: admissionregistrationv1.WebhookClientConfig{CABundle: []byte("theirs")}}
	settled := func(names ...string) config {
		c, _ := plan(config{}, wanted(names...), roots{bundle: ca}, now)
		return c
	}
	with := func(c config, change func(*config)) config {
		change(&c)
		return c
	}
	for name, c := range map[string]struct {
		live    config
		want    []admissionregistrationv1.MutatingWebhook
		names   []string
		changed bool
	}{
		"nothing is there":                  {config{}, wanted("otf"), []string{"otf.owner.belay.dev"}, true},
		"it is as it should be":             {settled("otf"), wanted("otf"), []string{"otf.owner.belay.dev"}, false},
		"a policy came":                     {settled("otf"), wanted("otf", "spur"), []string{"otf.owner.belay.dev", "spur.owner.belay.dev"}, true},
		"a policy went: its entry goes":     {settled("otf", "spur"), wanted("spur"), []string{"spur.owner.belay.dev"}, true},
		"the last policy went":              {settled("otf"), nil, nil, true},
		"P05: another's entry stays":        {with(settled("otf"), func(c *config) { c.entries = append(c.entries, foreign) }), wanted("otf"), []string{"otf.owner.belay.dev", "audit.example.com"}, false},
		"another's entry stays in front":    {with(settled("otf"), func(c *config) { c.entries = append([]admissionregistrationv1.MutatingWebhook{foreign}, c.entries...) }), wanted("otf"), []string{"audit.example.com", "otf.owner.belay.dev"}, false},
		"another's entry outlives the last": {with(settled("otf"), func(c *config) { c.entries = append(c.entries, foreign) }), nil, []string{"audit.example.com"}, true},
		"an entry was taken away":           {with(settled("otf", "spur"), func(c *config) { c.entries = c.entries[1:] }), wanted("otf", "spur"), []string{"otf.owner.belay.dev", "spur.owner.belay.dev"}, true},
		"entries out of order":              {with(settled("otf", "spur"), func(c *config) { slices.Reverse(c.entries) }), wanted("otf", "spur"), []string{"otf.owner.belay.dev", "spur.owner.belay.dev"}, true},
		"a rule was widened":                {with(settled("otf"), func(c *config) { c.entries[0].Rules[0].Operations = []admissionregistrationv1.OperationType{"*"} }), wanted("otf"), []string{"otf.owner.belay.dev"}, true},
		"the failure policy was changed":    {with(settled("otf"), func(c *config) { c.entries[0].FailurePolicy = new(admissionregistrationv1.Fail) }), wanted("otf"), []string{"otf.owner.belay.dev"}, true},
		"the record was taken away":         {with(settled("otf"), func(c *config) { c.applied = applied{} }), wanted("otf"), []string{"otf.owner.belay.dev"}, true},
		"P05: AKS added to the selector": {with(settled("otf"), func(c *config) {
			c.entries[0].NamespaceSelector = c.entries[0].NamespaceSelector.DeepCopy()
			c.entries[0].NamespaceSelector.MatchExpressions = append(c.entries[0].NamespaceSelector.MatchExpressions, requirement("control-plane", metav1.LabelSelectorOpNotIn, "true"))
		}), wanted("otf"), []string{"otf.owner.belay.dev"}, false},
		"the exclusion of kube-system was taken away": {with(settled("otf"), func(c *config) {
			c.entries[0].NamespaceSelector = selecting(nil, c.entries[0].NamespaceSelector.MatchExpressions[0])
		}), wanted("otf"), []string{"otf.owner.belay.dev"}, true},
		"the CA was taken away": {with(settled("otf"), func(c *config) { c.entries[0].ClientConfig.CABundle = nil }), wanted("otf"), []string{"otf.owner.belay.dev"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, changed := plan(c.live, c.want, roots{bundle: ca}, now)
			if changed != c.changed {
				t.Errorf("changed %t", changed)
			}
			if diff := cmp.Diff(c.names, entryNames(got)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			checkPlanned(t, got, c.want, ca)
		})
	}
}

// checkPlanned holds a result of plan to what was wanted.
func checkPlanned(t *testing.T, got config, want []admissionregistrationv1.MutatingWebhook, ca []byte) {
	t.Helper()
	for _, w := range want {
		i := slices.IndexFunc(got.entries, func(e admissionregistrationv1.MutatingWebhook) bool { return e.Name == w.Name })
		if i < 0 {
			t.Errorf("no entry %s", w.Name)
			continue
		}
		e := got.entries[i]
		for _, r := range w.NamespaceSelector.MatchExpressions {
			if !containsExpression(e.NamespaceSelector.MatchExpressions, r) {
				t.Errorf("%s: %v is not in %v", w.Name, r, e.NamespaceSelector.MatchExpressions)
			}
		}
		if ca != nil && !bytes.Contains(e.ClientConfig.CABundle, ca) {
			t.Errorf("%s: our CA is not trusted", w.Name)
		}
		e.NamespaceSelector, e.ObjectSelector, e.ClientConfig.CABundle = w.NamespaceSelector, w.ObjectSelector, nil
		if diff := cmp.Diff(w, e); diff != "" {
			t.Errorf("%s: %s", w.Name, diff)
		}
	}
}

// TestPlanSettles: what one plan wrote, the next one leaves alone, whatever was there.
func TestPlanSettles(t *testing.T) {
	t.Parallel()
	ours, theirs, expired := authority(t, "ours", now.Add(time.Hour)), authority(t, "theirs", now.Add(time.Hour)), authority(t, "expired", now.Add(-time.Hour))
	for seed := range uint64(300) {
		r := mathrand.New(mathrand.NewPCG(seed, 1))
		pick := func(n int) bool { return r.IntN(n) == 0 }
		stock := []metav1.LabelSelectorRequirement{
			requirement("control-plane", metav1.LabelSelectorOpNotIn, "true"), requirement("stage", metav1.LabelSelectorOpExists), requirement("a", metav1.LabelSelectorOpIn, "x", "y"),
		}
		want := wanted([]string{"otf", "spur", "felis"}[:r.IntN(4)]...)
		live, _ := plan(config{}, wanted([]string{"otf", "gone", "spur"}[:r.IntN(4)]...), roots{}, now)
		for i := range live.entries {
			e := &live.entries[i]
			e.NamespaceSelector = e.NamespaceSelector.DeepCopy()
			for _, s := range stock {
				if pick(2) {
					e.NamespaceSelector.MatchExpressions = append(e.NamespaceSelector.MatchExpressions, s)
				}
			}
			r.Shuffle(len(e.NamespaceSelector.MatchExpressions), func(i, j int) {
				x := e.NamespaceSelector.MatchExpressions
				x[i], x[j] = x[j], x[i]
			})
			if pick(3) {
				e.NamespaceSelector.MatchExpressions = e.NamespaceSelector.MatchExpressions[1:]
			}
			if pick(3) {
				e.ObjectSelector = selecting(map[string]string{"added": "by-them"})
			}
			e.ClientConfig.CABundle = join([][]byte{nil, theirs, expired, ours, []byte("junk")}[r.IntN(5)], [][]byte{nil, ours, expired}[r.IntN(3)])
			if pick(4) {
				e.Name = "audit.example.com"
			}
		}
		if pick(5) {
			live.applied = applied{}
		}
		ca := [][]byte{nil, ours, join(ours, theirs)}[r.IntN(3)]
		once, _ := plan(live, want, roots{bundle: ca}, now)
		checkPlanned(t, once, want, nil)
		twice, changed := plan(once, want, roots{bundle: ca}, now)
		if diff := cmp.Diff(once, twice, cmp.AllowUnexported(config{}), cmpopts.EquateEmpty()); changed || diff != "" {
			t.Fatalf("seed %d: changed %t (-once +twice)\n%s", seed, changed, diff)
		}
		if ca == nil {
			for _, e := range once.entries {
				for _, l := range live.entries {
					if e.Name == l.Name && e.Name != "audit.example.com" && !bytes.Equal(e.ClientConfig.CABundle, l.ClientConfig.CABundle) {
						t.Fatalf("seed %d: a caBundle was touched without a CA of ours", seed)
					}
				}
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// TestP05_AFakeEnforcerIsNotFought has a writer that adds its expression after each of
// our writes, and one that takes our own away.
func TestP05_AFakeEnforcerIsNotFought(t *testing.T) {
	t.Parallel()
	aks := requirement("control-plane", metav1.LabelSelectorOpNotIn, "true")
	for name, enforce := range map[string]func([]metav1.LabelSelectorRequirement) []metav1.LabelSelectorRequirement{
		"it adds": func(e []metav1.LabelSelectorRequirement) []metav1.LabelSelectorRequirement {
			return append(slices.Clone(e), aks)
		},
		"it takes away": func([]metav1.LabelSelectorRequirement) []metav1.LabelSelectorRequirement {
			return []metav1.LabelSelectorRequirement{aks}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var d damper
			live, writes := config{}, 0
			for second := range 60 {
				next, changed := plan(live, wanted("otf"), roots{}, now)
				if !changed {
					continue
				}
				at := now.Add(time.Duration(second) * time.Second)
				if d.wait("same", at) > 0 {
					continue
				}
				d.wrote("same", at)
				writes++
				live = next
				s := live.entries[0].NamespaceSelector.DeepCopy()
				if !containsExpression(s.MatchExpressions, aks) || name == "it takes away" {
					s.MatchExpressions = enforce(s.MatchExpressions)
				}
				live.entries[0].NamespaceSelector = s
			}
			if writes >= 3 {
				t.Errorf("%d writes in a minute", writes)
			}
		})
	}
}

func TestDamper(t *testing.T) {
	t.Parallel()
	// A step asks, and writes where it need not wait and fails is not set.
	type step struct {
		at      time.Duration
		content string
		wait    time.Duration
		fails   bool
	}
	for name, steps := range map[string][]step{
		"two writes go through, the third waits":  {{0, "a", 0, false}, {time.Second, "a", 0, false}, {2 * time.Second, "a", 58 * time.Second, false}},
		"new content goes through at once":        {{0, "a", 0, false}, {1, "a", 0, false}, {2, "b", 0, false}, {3, "b", 0, false}},
		"after a minute the next one goes":        {{0, "a", 0, false}, {time.Second, "a", 0, false}, {time.Minute, "a", 0, false}, {time.Minute + 1, "a", time.Second - 1, false}},
		"what was held back does not count":       {{0, "a", 0, false}, {0, "a", 0, false}, {time.Second, "a", 59 * time.Second, false}, {2 * time.Second, "a", 58 * time.Second, false}, {time.Minute, "a", 0, false}},
		"a write that failed is not a fight":      {{0, "a", 0, true}, {1, "a", 0, true}, {2, "a", 0, true}, {3, "a", 0, false}},
		"new content that failed forgets nothing": {{0, "a", 0, false}, {0, "a", 0, false}, {time.Second, "b", 0, true}, {2 * time.Second, "a", 58 * time.Second, false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var d damper
			for i, s := range steps {
				wait := d.wait(s.content, now.Add(s.at))
				if wait != s.wait {
					t.Errorf("step %d: wait %s, want %s", i, wait, s.wait)
				}
				if wait == 0 && !s.fails {
					d.wrote(s.content, now.Add(s.at))
				}
			}
		})
	}
}

func TestTheRecordOfSelectorsIsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	a := applied{"otf.owner.belay.dev": {Namespace: selecting(map[string]string{"a": "b"}, requirement("c", metav1.LabelSelectorOpExists)), Object: selecting(nil)}}
	if diff := cmp.Diff(a, parseApplied(map[string]string{appliedAnnotation: a.String()})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for name, text := range map[string]string{"absent": "", "junk": "{", "another shape": `["x"]`, "null": "null"} {
		if got := parseApplied(map[string]string{appliedAnnotation: text}); len(got) > 0 {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestValidatingEntriesSurviveTheDetour(t *testing.T) {
	t.Parallel()
	r := render(inForce{owners: []*v1alpha1.OwnerPolicy{full()}}, settings{endpoint: service, ownNamespace: "belay-system"})
	for _, v := range r.Validating {
		if diff := cmp.Diff(v, asValidating(asMutating(v))); diff != "" {
			t.Error(diff)
		}
	}
	if len(r.Validating) == 0 {
		t.Error("nothing to compare")
	}
}
