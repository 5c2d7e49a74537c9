package facts

import (
	"context"
	"errors"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// objects is a client.Reader over policies and namespaces; err fails every read.
type objects struct {
	client.Reader
	policies   map[string]*v1alpha1.OwnerPolicy
	names      map[string]*v1alpha1.NamePolicy
	namespaces map[string]map[string]string // labels
	err        error
	entries    []string // of the live registration
	reads      int
}

func (o *objects) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	o.reads++
	if o.err != nil {
		return o.err
	}
	switch out := obj.(type) {
	case *v1alpha1.OwnerPolicy:
		if p := o.policies[key.Name]; p != nil {
			p.DeepCopyInto(out)
			return nil
		}
	case *v1alpha1.NamePolicy:
		if p := o.names[key.Name]; p != nil {
			p.DeepCopyInto(out)
			return nil
		}
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		for _, e := range o.entries {
			out.Webhooks = append(out.Webhooks, admissionregistrationv1.MutatingWebhook{Name: e})
		}
		return nil
	case *metav1.PartialObjectMetadata:
		if labels, ok := o.namespaces[key.Name]; ok {
			out.Labels = labels
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

func with(policies ...*v1alpha1.OwnerPolicy) *objects {
	o := &objects{policies: map[string]*v1alpha1.OwnerPolicy{}}
	for _, p := range policies {
		o.policies[p.Name] = p
	}
	return o
}

func TestPolicyStanding(t *testing.T) {
	t.Parallel()
	inForce := builders.MakeOwnerPolicy("otf").InForce(builders.Jobs(), builders.Secrets()).Obj()
	refused := builders.MakeOwnerPolicy("otf").Obj()
	broken := builders.MakeOwnerPolicy("otf").Spec(func(s *v1alpha1.OwnerPolicySpec) { s.Owner.Name = "object." }).InForce(builders.Jobs()).Obj()
	away := &objects{err: errors.New("the caches are not synced yet")}
	for name, c := range map[string]struct {
		cached, live *objects
		deleted      bool
		want         Standing
		liveReads    int
	}{
		"known to the cache: nothing is read":          {with(inForce), with(inForce), false, StandingInForce, 0},
		"P06: newer than the cache: read live":         {with(), with(inForce), false, StandingInForce, 1},
		"P06: the cache is not there yet: read live":   {away, with(inForce), false, StandingInForce, 1},
		"accepted a moment ago: read live":             {with(refused), with(inForce), false, StandingInForce, 1},
		"never accepted":                               {with(refused), with(refused), false, StandingNotInForce, 1},
		"there is none":                                {with(), with(), false, StandingAbsent, 3},
		"deleted, and registered still":                {with(), &objects{entries: []string{"otf.owner.belay.dev"}}, false, StandingDeleted, 2},
		"never made, beside others that are":           {with(), &objects{entries: []string{"x.owner.belay.dev"}}, false, StandingAbsent, 3},
		"deleted a moment ago":                         {with(), with(), true, StandingDeleted, 1},
		"deleted and made again":                       {with(inForce), with(inForce), true, StandingInForce, 0},
		"the API server does not answer":               {with(), away, false, StandingUnknown, 1},
		"in force, but this replica cannot compile it": {with(broken), with(broken), false, StandingUnknown, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := NewOwnerPolicies(c.cached, c.live)
			if c.deleted {
				s.Deleted(refused)
			}
			before := c.live.reads
			p, standing, err := s.Get(t.Context(), "otf")
			if standing != c.want || (err != nil) != (c.want == StandingUnknown) || (p != nil) != (c.want == StandingInForce) {
				t.Errorf("%v %v %v", p, standing, err)
			}
			if c.live != c.cached && c.live.reads-before != c.liveReads {
				t.Errorf("%d live reads", c.live.reads-before)
			}
		})
	}
}

func TestAPolicyIsCompiledOncePerSpec(t *testing.T) {
	t.Parallel()
	o := with(builders.MakeOwnerPolicy("otf").InForce(builders.Jobs()).Obj())
	s := NewOwnerPolicies(o, o)
	get := func() *OwnerPolicy {
		t.Helper()
		p, _, err := s.Get(t.Context(), "otf")
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	first := get()
	if get() != first {
		t.Error("compiled again")
	}
	o.policies["otf"] = builders.MakeOwnerPolicy("otf").Generation(2).Spec(func(s *v1alpha1.OwnerPolicySpec) { s.WhenUnresolved = v1alpha1.UnresolvedDeny }).InForce(builders.Jobs()).Obj()
	if second := get(); second.WhenUnresolved != v1alpha1.UnresolvedDeny || second == first {
		t.Errorf("the new spec is not acted on: %+v", second)
	}
}

func TestTheSpecInForceDecidesAndNotTheNewest(t *testing.T) {
	t.Parallel()
	p := builders.MakeOwnerPolicy("otf").InForce(builders.Jobs()).Obj()
	p.Generation, p.Spec.WhenUnresolved, p.Spec.Owner.Name = 2, v1alpha1.UnresolvedDeny, "object."
	got, standing, err := NewOwnerPolicies(with(p), with(p)).Get(t.Context(), "otf")
	if err != nil || standing != StandingInForce || got.WhenUnresolved != v1alpha1.UnresolvedAdmit {
		t.Errorf("%+v %v %v", got, standing, err)
	}
}

func TestMode(t *testing.T) {
	t.Parallel()
	labelled := func(mode string) *objects {
		return &objects{namespaces: map[string]map[string]string{"lab": {v1alpha1.ModeLabel: mode}}}
	}
	none := func() *objects { return &objects{namespaces: map[string]map[string]string{"lab": nil}} }
	away := func() *objects { return &objects{err: errors.New("no connection")} }
	for name, c := range map[string]struct {
		cached, live *objects
		want         string
		wantErr      bool
		liveReads    int
	}{
		"enforce, from the cache":                           {labelled("enforce"), none(), "enforce", false, 0},
		"warn, from the cache":                              {labelled("warn"), none(), "warn", false, 0},
		"P24: the cache has not heard of the label yet":     {none(), labelled("enforce"), "enforce", false, 1},
		"P24: the cache has not heard of the namespace yet": {&objects{}, labelled("warn"), "warn", false, 1},
		"P06: the cache is not there yet":                   {away(), labelled("enforce"), "enforce", false, 1},
		"no label at all":                                   {none(), none(), "", false, 1},
		"neither cache nor API server answers":              {away(), away(), "", true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := NewModes(c.cached, c.live).Mode(t.Context(), "lab")
			if got != c.want || (err != nil) != c.wantErr || c.live.reads != c.liveReads {
				t.Errorf("%q %v, %d live reads", got, err, c.live.reads)
			}
		})
	}
}
