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
	"github.com/belay-dev/belay/webhook/internal/naming"
)

func withNames(policies ...*v1alpha1.NamePolicy) *objects {
	o := &objects{names: map[string]*v1alpha1.NamePolicy{}}
	for _, p := range policies {
		o.names[p.Name] = p
	}
	return o
}

func TestNamePolicyStanding(t *testing.T) {
	t.Parallel()
	inForce := builders.MakeNamePolicy("restore").InForce(builders.Jobs()).Obj()
	refused := builders.MakeNamePolicy("restore").Obj()
	broken := builders.MakeNamePolicy("restore").Spec(func(s *v1alpha1.NamePolicySpec) { s.Hold = "existing." }).InForce(builders.Jobs()).Obj()
	away := &objects{err: errors.New("the caches are not synced yet")}
	for name, c := range map[string]struct {
		cached, live *objects
		deleted      bool
		want         Standing
		err          string
	}{
		"known to the cache":                           {withNames(inForce), away, false, StandingInForce, ""},
		"P06: newer than the cache":                    {withNames(), withNames(inForce), false, StandingInForce, ""},
		"accepted a moment ago":                        {withNames(refused), withNames(inForce), false, StandingInForce, ""},
		"never accepted":                               {withNames(refused), withNames(refused), false, StandingNotInForce, ""},
		"there is none":                                {withNames(), withNames(), false, StandingAbsent, ""},
		"an OwnerPolicy of that name is another":       {with(builders.MakeOwnerPolicy("restore").InForce(builders.Jobs()).Obj()), withNames(), false, StandingAbsent, ""},
		"deleted, and registered still":                {withNames(), &objects{entries: []string{"restore.name.belay.dev"}}, false, StandingDeleted, ""},
		"an OwnerPolicy of that name is registered":    {withNames(), &objects{entries: []string{"restore.owner.belay.dev"}}, false, StandingAbsent, ""},
		"deleted a moment ago":                         {withNames(), withNames(), true, StandingDeleted, ""},
		"deleted and made again":                       {withNames(inForce), withNames(inForce), true, StandingInForce, ""},
		"the API server does not answer":               {withNames(), away, false, StandingUnknown, `reading policy "restore"`},
		"in force, but this replica cannot compile it": {withNames(broken), withNames(broken), false, StandingUnknown, `compiling policy "restore": spec.hold: line 1`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := NewNamePolicies(c.cached, c.live)
			if c.deleted {
				s.Deleted(refused)
			}
			p, standing, err := s.Get(t.Context(), "restore")
			if standing != c.want || (p != nil) != (c.want == StandingInForce) {
				t.Errorf("%v %v", p, standing)
			}
			if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("got %v, want %q", err, c.err)
			}
		})
	}
}

// TestANamePolicyInForceIsAsItsSpec: every field that decisions read.
func TestANamePolicyInForceIsAsItsSpec(t *testing.T) {
	t.Parallel()
	no := false
	p := builders.MakeNamePolicy("restore").Spec(func(s *v1alpha1.NamePolicySpec) {
		s.Generate = &v1alpha1.NameGeneration{Prefix: `"p"`, Key: []string{`"k"`}}
		s.WhenFinished, s.Propagation, s.Racing, s.FailurePolicy = v1alpha1.FinishedCoalesce, v1alpha1.PropagationForeground, v1alpha1.RacingSerialize, v1alpha1.FailureIgnore
		s.Settle, s.NameWait = metav1.Duration{Duration: time.Minute}, metav1.Duration{Duration: 2 * time.Second}
		s.WaitForPods, s.AdoptUnmarked = &no, true
		s.Answers.OtherWork = v1alpha1.AnswerInvalid
	}).InForce(builders.Jobs(), builders.Pods()).Obj()
	got, _, err := NewNamePolicies(withNames(p), withNames(p)).Get(t.Context(), "restore")
	if err != nil {
		t.Fatal(err)
	}
	want := naming.Policy{
		Name: "restore", Generates: true, WhenFinished: v1alpha1.FinishedCoalesce, Settle: time.Minute, WaitForPods: false, Serialize: true,
		Answers:       v1alpha1.NameAnswers{SameWork: v1alpha1.AnswerAlreadyExists, OtherWork: v1alpha1.AnswerInvalid, Finished: v1alpha1.AnswerConflict, Terminating: v1alpha1.AnswerTooManyRequests},
		FailurePolicy: v1alpha1.FailureIgnore,
	}
	if diff := cmp.Diff(want, got.Policy); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]v1alpha1.ResolvedResource{builders.Jobs(), builders.Pods()}, got.Kinds); diff != "" || got.Propagation != v1alpha1.PropagationForeground || got.NameWait != 2*time.Second || !got.Adopt {
		t.Errorf("%+v %s", got, diff)
	}
	plain := builders.MakeNamePolicy("plain").Spec(func(s *v1alpha1.NamePolicySpec) { s.WaitForPods = nil }).InForce(builders.Jobs()).Obj()
	if got, _, _ := NewNamePolicies(withNames(plain), withNames(plain)).Get(t.Context(), "plain"); !got.WaitForPods || got.Serialize || got.Generates || got.Adopt {
		t.Errorf("what is not said: %+v", got)
	}
}

func TestANamePolicyIsCompiledOncePerSpecAndResources(t *testing.T) {
	t.Parallel()
	o := withNames(builders.MakeNamePolicy("restore").InForce(builders.Jobs()).Obj())
	s := NewNamePolicies(o, o)
	get := func() *NamePolicy {
		t.Helper()
		p, _, err := s.Get(t.Context(), "restore")
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	first := get()
	if get() != first {
		t.Error("compiled again")
	}
	o.names["restore"] = builders.MakeNamePolicy("restore").Generation(2).Spec(func(s *v1alpha1.NamePolicySpec) { s.WhenFinished = v1alpha1.FinishedReject }).InForce(builders.Jobs()).Obj()
	second := get()
	if second == first || second.WhenFinished != v1alpha1.FinishedReject {
		t.Errorf("the new spec is not acted on: %+v", second)
	}
	moved := builders.Jobs()
	moved.Resource = "jobz"
	o.names["restore"] = builders.MakeNamePolicy("restore").Generation(2).Spec(func(s *v1alpha1.NamePolicySpec) { s.WhenFinished = v1alpha1.FinishedReject }).InForce(moved).Obj()
	if third := get(); third == second || third.Kinds[0].Resource != "jobz" {
		t.Errorf("a resource that changed is not acted on: %+v", third)
	}
	// A policy that was deleted and made anew has generation 1 again, and another UID.
	anew := builders.MakeNamePolicy("restore").Spec(func(s *v1alpha1.NamePolicySpec) { s.WhenFinished = v1alpha1.FinishedCoalesce }).InForce(builders.Jobs()).Obj()
	anew.UID = "anew"
	o.names["restore"] = anew
	if got := get(); got.WhenFinished != v1alpha1.FinishedCoalesce {
		t.Errorf("%+v", got)
	}
}

func TestTheNameSpecInForceDecidesAndNotTheNewest(t *testing.T) {
	t.Parallel()
	p := builders.MakeNamePolicy("restore").InForce(builders.Jobs()).Obj()
	p.Generation, p.Spec.WhenFinished, p.Spec.Hold = 2, v1alpha1.FinishedReject, "existing."
	got, standing, err := NewNamePolicies(withNames(p), withNames(p)).Get(t.Context(), "restore")
	if err != nil || standing != StandingInForce || got.WhenFinished != v1alpha1.FinishedReplace {
		t.Errorf("%+v %v %v", got, standing, err)
	}
}

// TestPoliciesAreReadByManyAtOnce is for the race detector.
func TestPoliciesAreReadByManyAtOnce(t *testing.T) {
	t.Parallel()
	p := builders.MakeNamePolicy("restore").InForce(builders.Jobs()).Obj()
	s := NewNamePolicies(namesOnly{p}, namesOnly{p})
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if i%5 == 0 {
				s.Deleted(p)
			}
			if got, standing, err := s.Get(t.Context(), "restore"); err != nil || standing != StandingInForce || got == nil {
				t.Errorf("%v %v %v", got, standing, err)
			}
		})
	}
	wg.Wait()
}

// namesOnly reads one policy, without counting.
type namesOnly struct{ p *v1alpha1.NamePolicy }

func (n namesOnly) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	out, ok := obj.(*v1alpha1.NamePolicy)
	if !ok {
		return errors.New("another kind")
	}
	n.p.DeepCopyInto(out)
	return nil
}

func (namesOnly) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("not expected")
}
