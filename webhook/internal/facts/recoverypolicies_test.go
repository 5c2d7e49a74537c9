package facts

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/recovery"
)

// boxes is where the resource of RecoveryPolicies is served.
func boxes() v1alpha1.ResolvedResource {
	return v1alpha1.ResolvedResource{Group: "sandbox.opensandbox.io", Version: "v1alpha1", Kind: "BatchSandbox", Resource: "batchsandboxes", Namespaced: true}
}

// inForce puts a policy's spec in force.
func inForce(p *v1alpha1.RecoveryPolicy, changes ...func(*v1alpha1.AcceptedRecoveryPolicy)) *v1alpha1.RecoveryPolicy {
	out := p.DeepCopy()
	out.Status.InForce = &v1alpha1.AcceptedRecoveryPolicy{Generation: 1, Spec: *p.Spec.DeepCopy(), Resource: boxes(), Record: v1alpha1.RecordSchema{Cleared: v1alpha1.ClearRemove}}
	for _, change := range changes {
		change(out.Status.InForce)
	}
	return out
}

// guards is a reader that knows RecoveryPolicies as well.
type guards struct {
	*objects
	policies map[string]*v1alpha1.RecoveryPolicy
}

func (g *guards) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if out, ok := obj.(*v1alpha1.RecoveryPolicy); ok && g.err == nil {
		if p := g.policies[key.Name]; p != nil {
			g.reads++
			p.DeepCopyInto(out)
			return nil
		}
	}
	return g.objects.Get(ctx, key, obj, opts...)
}

func withGuards(policies ...*v1alpha1.RecoveryPolicy) *guards {
	g := &guards{objects: &objects{}, policies: map[string]*v1alpha1.RecoveryPolicy{}}
	for _, p := range policies {
		g.policies[p.Name] = p
	}
	return g
}

func TestRecoveryPolicyStanding(t *testing.T) {
	t.Parallel()
	plain := builders.MakeRecoveryPolicy("boxes").Obj()
	accepted := inForce(plain)
	broken := inForce(builders.MakeRecoveryPolicy("boxes").Spec(func(s *v1alpha1.RecoveryPolicySpec) { s.Pods[0].When = "object." }).Obj())
	away := &guards{objects: &objects{err: errors.New("the caches are not synced yet")}}
	registered := func(entry string) *guards { return &guards{objects: &objects{entries: []string{entry}}} }
	for name, c := range map[string]struct {
		cached, live *guards
		deleted      bool
		want         Standing
		err          string
	}{
		"known to the cache":                           {withGuards(accepted), away, false, StandingInForce, ""},
		"newer than the cache":                         {withGuards(), withGuards(accepted), false, StandingInForce, ""},
		"accepted a moment ago":                        {withGuards(plain), withGuards(accepted), false, StandingInForce, ""},
		"the cache is not there yet":                   {away, withGuards(accepted), false, StandingInForce, ""},
		"never accepted, or not in force any more":     {withGuards(plain), withGuards(plain), false, StandingNotInForce, ""},
		"there is none":                                {withGuards(), withGuards(), false, StandingAbsent, ""},
		"deleted a moment ago":                         {withGuards(), withGuards(), true, StandingDeleted, ""},
		"deleted and made again":                       {withGuards(accepted), away, true, StandingInForce, ""},
		"deleted, and registered still":                {withGuards(), registered("boxes.recovery.belay.dev"), false, StandingDeleted, ""},
		"a NamePolicy of that name is registered":      {withGuards(), registered("boxes.name.belay.dev"), false, StandingAbsent, ""},
		"the API server does not answer":               {withGuards(), away, false, StandingUnknown, `reading policy "boxes": the caches are not synced yet`},
		"in force, but this replica cannot compile it": {withGuards(broken), away, false, StandingUnknown, `compiling policy "boxes": spec.pods[0].when: line 1, column 8: `},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := NewRecoveryPolicies(c.cached, c.live)
			if c.deleted {
				s.Deleted(plain)
			}
			p, standing, err := s.Get(t.Context(), "boxes")
			if standing != c.want || (p != nil) != (c.want == StandingInForce) {
				t.Errorf("%v %v", p, standing)
			}
			if (err != nil) != (c.err != "") || err != nil && !strings.HasPrefix(err.Error(), c.err) {
				t.Errorf("got %v, want %q", err, c.err)
			}
		})
	}
}

// TestARecoveryPolicyInForceIsAsItsSpec: every field that decisions read.
func TestARecoveryPolicyInForceIsAsItsSpec(t *testing.T) {
	t.Parallel()
	no := false
	in := inForce(builders.MakeRecoveryPolicy("boxes").Spec(func(s *v1alpha1.RecoveryPolicySpec) {
		s.PhasePath, s.RecordPath, s.ConditionsPath = ".status.a.phase", ".status.b.uids", ".status.c"
		s.Phases = v1alpha1.RecoveryPhases{Failed: []v1alpha1.Phase{"F"}, Recovered: []v1alpha1.Phase{"R"}, Lifecycle: []v1alpha1.Phase{"L", "P"}, ReplacesPods: []v1alpha1.Phase{"P"}}
		s.Terminal = &v1alpha1.ConditionValue{Type: "Dead", Status: metav1.ConditionFalse}
		s.Detectors = v1alpha1.FailureDetectors{WaitingReasons: []string{"X"}, Terminal: &no}
		s.MainContainer, s.Evidence, s.WitnessFreshFor = "app", v1alpha1.EvidenceBoth, metav1.Duration{Duration: time.Minute}
		s.FailurePolicy = v1alpha1.FailureIgnore
	}).Obj(), func(in *v1alpha1.AcceptedRecoveryPolicy) {
		in.Record = v1alpha1.RecordSchema{Cleared: v1alpha1.ClearEmpty, Required: true, MaxItems: 7}
	})
	g := withGuards(in)
	got, _, err := NewRecoveryPolicies(g, g).Get(t.Context(), "boxes")
	if err != nil {
		t.Fatal(err)
	}
	want := recovery.Policy{
		Name: "boxes", Failed: []v1alpha1.Phase{"F"}, Recovered: []v1alpha1.Phase{"R"}, Lifecycle: []v1alpha1.Phase{"L", "P"}, ReplacesPods: []v1alpha1.Phase{"P"},
		Detectors: recovery.Detectors{WaitingReasons: []string{"X"}}, MainContainer: "app", Source: v1alpha1.EvidenceBoth, FreshFor: time.Minute,
		FailurePolicy: v1alpha1.FailureIgnore, MaxItems: 7, Required: true,
	}
	if diff := cmp.Diff(want, got.Policy); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	layout := recovery.Layout{Phase: ".status.a.phase", Record: ".status.b.uids", Conditions: ".status.c", TerminalType: "Dead", TerminalStatus: "False"}
	if diff := cmp.Diff(layout, got.Layout); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got.Resource != boxes() || got.Record != in.Status.InForce.Record || cmp.Diff(in.Status.InForce.Spec, got.Spec) != "" {
		t.Errorf("%+v", got)
	}
	// What is not said.
	bare := inForce(builders.MakeRecoveryPolicy("bare").Spec(func(s *v1alpha1.RecoveryPolicySpec) {
		s.Terminal, s.ConditionsPath, s.Detectors = nil, "", v1alpha1.FailureDetectors{}
	}).Obj())
	c, err := CompileRecoveryPolicy(bare)
	if err != nil || !c.Detectors.Terminal || c.Detectors.WaitingReasons != nil || c.Layout.TerminalType != "" || c.Layout.Conditions != "" {
		t.Errorf("%+v %v", c, err)
	}
}

func TestARecoveryPolicyIsCompiledOncePerWhatIsInForce(t *testing.T) {
	t.Parallel()
	made := func(changes ...func(*v1alpha1.AcceptedRecoveryPolicy)) *v1alpha1.RecoveryPolicy {
		return inForce(builders.MakeRecoveryPolicy("boxes").Obj(), changes...)
	}
	g := withGuards(made())
	s := NewRecoveryPolicies(g, g)
	get := func() *RecoveryPolicy {
		t.Helper()
		p, _, err := s.Get(t.Context(), "boxes")
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	last := get()
	if get() != last {
		t.Error("compiled again")
	}
	for name, p := range map[string]*v1alpha1.RecoveryPolicy{
		"a new generation": made(func(in *v1alpha1.AcceptedRecoveryPolicy) { in.Generation = 2 }),
		"another resource": made(func(in *v1alpha1.AcceptedRecoveryPolicy) { in.Resource.Resource = "boxen" }),
		"another scope":    made(func(in *v1alpha1.AcceptedRecoveryPolicy) { in.Resource.Namespaced = false }),
		"another schema":   made(func(in *v1alpha1.AcceptedRecoveryPolicy) { in.Record.Cleared = v1alpha1.ClearNull }),
		"a limit":          made(func(in *v1alpha1.AcceptedRecoveryPolicy) { in.Record.MaxItems = 3 }),
		"another UID":      func() *v1alpha1.RecoveryPolicy { p := made(); p.UID = "anew"; return p }(),
	} {
		g.policies["boxes"] = p
		got := get()
		if got == last || got.Resource != p.Status.InForce.Resource || got.Record != p.Status.InForce.Record {
			t.Errorf("%s is not acted on: %+v", name, got)
		}
		g.policies["boxes"] = made()
		last = get()
	}
	// The spec in force decides, and not the newest.
	newer := made()
	newer.Generation, newer.Spec.ResumeInFlight, newer.Spec.Phases.Failed = 2, "object.", []v1alpha1.Phase{"Broken"}
	g.policies["boxes"] = newer
	if got := get(); got != last {
		t.Errorf("%+v", got)
	}
	// What is withdrawn is not remembered.
	newer.Status.InForce = nil
	if p, standing, err := s.Get(t.Context(), "boxes"); p != nil || standing != StandingNotInForce || err != nil {
		t.Errorf("%v %v %v", p, standing, err)
	}
}

// TestRecoveryPoliciesAreReadByManyAtOnce is for the race detector.
func TestRecoveryPoliciesAreReadByManyAtOnce(t *testing.T) {
	t.Parallel()
	p := inForce(builders.MakeRecoveryPolicy("boxes").Spec(threeSources).Obj())
	s := NewRecoveryPolicies(oneGuard{p}, oneGuard{p})
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if i%5 == 0 {
				s.Deleted(p)
			}
			got, standing, err := s.Get(t.Context(), "boxes")
			if err != nil || standing != StandingInForce {
				t.Errorf("%v %v", standing, err)
				return
			}
			if q, err := got.Expressions.Query(t.Context(), boxOf(t, `{"kind":"labelled"}`, nil)); err != nil || q.Labels["box"] != "a" {
				t.Errorf("%+v %v", q, err)
			}
		})
	}
	wg.Wait()
}

// oneGuard reads one policy, without counting.
type oneGuard struct{ p *v1alpha1.RecoveryPolicy }

func (o oneGuard) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	out, ok := obj.(*v1alpha1.RecoveryPolicy)
	if !ok {
		return errors.New("another kind")
	}
	o.p.DeepCopyInto(out)
	return nil
}

func (oneGuard) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("not expected")
}
