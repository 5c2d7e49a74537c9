package facts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/naming"
	"github.com/belay-dev/belay/webhook/internal/owner"
	"github.com/belay-dev/belay/webhook/internal/recovery"
)

// Standing says whether there is a policy of a name.
type Standing int

// Standings. StandingUnknown: it could not be found out.
const (
	StandingUnknown Standing = iota
	// StandingInForce: the policy exists and has an accepted spec.
	StandingInForce
	// StandingNotInForce: it exists, but no spec of it was ever accepted.
	StandingNotInForce
	// StandingDeleted: it existed a moment ago; its registration is on its way out.
	StandingDeleted
	// StandingAbsent: there is none.
	StandingAbsent
)

// policyKind is how a store handles one kind of policy: O as it is stored, C compiled.
type policyKind[O client.Object, C any] struct {
	// blank is a new object to read into.
	blank func() O
	// inForce reports whether a spec of it was ever accepted.
	inForce func(O) bool
	// current reports whether what was compiled is still what is in force.
	current func(C, O) bool
	compile func(O) (C, error)
	// entryDomain ends the names of its webhook entries.
	entryDomain string
}

// Policies finds policies of one kind by name: first in the cache, then live, since a
// policy may be registered before a replica's cache has heard of it.
type Policies[O client.Object, C any] struct {
	kind         policyKind[O, C]
	cached, live client.Reader

	mu       sync.Mutex
	compiled map[types.UID]C
	deleted  map[string]time.Time
}

// deletedFor is how long a deleted policy's name is remembered: the registration
// follows within seconds, this is far more.
const deletedFor = 10 * time.Minute

func newPolicies[O client.Object, C any](kind policyKind[O, C], cached, live client.Reader) *Policies[O, C] {
	return &Policies[O, C]{kind: kind, cached: cached, live: live, compiled: map[types.UID]C{}, deleted: map[string]time.Time{}}
}

// Get returns the policy in force. The error says why a Standing is unknown.
func (s *Policies[O, C]) Get(ctx context.Context, name string) (C, Standing, error) {
	var none C
	p := s.kind.blank()
	err := s.cached.Get(ctx, client.ObjectKey{Name: name}, p)
	if err != nil || !s.kind.inForce(p) {
		p = s.kind.blank()
		err = s.live.Get(ctx, client.ObjectKey{Name: name}, p)
	}
	switch {
	case apierrors.IsNotFound(err):
		if s.wasDeleted(name) || s.registered(ctx, name) {
			return none, StandingDeleted, nil
		}
		return none, StandingAbsent, nil
	case err != nil:
		return none, StandingUnknown, fmt.Errorf("reading policy %q: %w", name, err)
	case !s.kind.inForce(p):
		return none, StandingNotInForce, nil
	}
	c, err := s.Compile(p)
	if err != nil {
		return none, StandingUnknown, fmt.Errorf("compiling policy %q: %w", name, err)
	}
	return c, StandingInForce, nil
}

// Deleted notes that a policy was deleted.
func (s *Policies[O, C]) Deleted(p O) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for name, at := range s.deleted {
		if now.Sub(at) > deletedFor {
			delete(s.deleted, name)
		}
	}
	s.deleted[p.GetName()] = now
	delete(s.compiled, p.GetUID())
}

func (s *Policies[O, C]) wasDeleted(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.deleted[name]
	return ok && time.Since(at) < deletedFor
}

// registered reports whether the API server is still told to call for a policy. One
// that does not exist, but is registered, was deleted while this process did not run
// or longer ago than it remembers, and belay-controller is away: with failurePolicy
// Fail a 404 would then refuse every create.
func (s *Policies[O, C]) registered(ctx context.Context, name string) bool {
	entry, key := name+s.kind.entryDomain, client.ObjectKey{Name: v1alpha1.ConfigurationName}
	var m admissionregistrationv1.MutatingWebhookConfiguration
	if err := s.live.Get(ctx, key, &m); err == nil && slices.ContainsFunc(m.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool { return w.Name == entry }) {
		return true
	}
	var v admissionregistrationv1.ValidatingWebhookConfiguration
	err := s.live.Get(ctx, key, &v)
	return err == nil && slices.ContainsFunc(v.Webhooks, func(w admissionregistrationv1.ValidatingWebhook) bool { return w.Name == entry })
}

// Compile compiles the spec in force of a policy, once for each that came into force: what
// it returns for the same one is the same.
func (s *Policies[O, C]) Compile(p O) (C, error) {
	s.mu.Lock()
	c, ok := s.compiled[p.GetUID()]
	s.mu.Unlock()
	if ok && s.kind.current(c, p) {
		return c, nil
	}
	c, err := s.kind.compile(p)
	if err != nil {
		return c, err
	}
	s.mu.Lock()
	s.compiled[p.GetUID()] = c
	s.mu.Unlock()
	return c, nil
}

// CompileAll compiles what is in force of a kind, as a cache has it: whoever asks for one then
// finds it done. A kind that is not served has none. The error names those that do not compile
// any more, each with its kind.
func (s *Policies[O, C]) CompileAll(ctx context.Context, cached client.Reader, list client.ObjectList) error {
	if err := cached.List(ctx, list); err != nil {
		return nil //nolint:nilerr // as is said above; a review reads live
	}
	var errs []error
	_ = meta.EachListItem(list, func(o runtime.Object) error { // a typed list has items
		p, ok := o.(O)
		if !ok || !s.kind.inForce(p) {
			return nil
		}
		if _, err := s.Compile(p); err != nil {
			errs = append(errs, fmt.Errorf("%T %q: %w", p, p.GetName(), err))
		}
		return nil
	})
	return errors.Join(errs...)
}

// OwnerPolicy is an OwnerPolicy in force, compiled.
type OwnerPolicy struct {
	owner.Policy
	Deadline   time.Duration
	Resource   v1alpha1.ResolvedResource
	Expression OwnerExpression

	generation int64
}

// OwnerPolicies finds OwnerPolicies.
type OwnerPolicies = Policies[*v1alpha1.OwnerPolicy, *OwnerPolicy]

// NewOwnerPolicies makes the store.
func NewOwnerPolicies(cached, live client.Reader) *OwnerPolicies {
	return newPolicies(policyKind[*v1alpha1.OwnerPolicy, *OwnerPolicy]{
		blank:   func() *v1alpha1.OwnerPolicy { return &v1alpha1.OwnerPolicy{} },
		inForce: func(p *v1alpha1.OwnerPolicy) bool { return p.Status.InForce != nil },
		current: func(c *OwnerPolicy, p *v1alpha1.OwnerPolicy) bool {
			// The resource may change under one generation: a CRD installed anew.
			return c.generation == p.Status.InForce.Generation && c.Resource == p.Status.InForce.Owner
		},
		compile:     compileOwnerPolicy,
		entryDomain: v1alpha1.OwnerEntryDomain,
	}, cached, live)
}

func compileOwnerPolicy(p *v1alpha1.OwnerPolicy) (*OwnerPolicy, error) {
	in := p.Status.InForce
	e, err := CompileOwner(in.Spec.Owner)
	if err != nil {
		return nil, err
	}
	return &OwnerPolicy{
		Policy: owner.Policy{
			Name: p.Name, Controller: in.Spec.Controller,
			WhenUnresolved: in.Spec.WhenUnresolved, ClientReferences: in.Spec.ClientReferences,
		},
		Deadline: in.Spec.Deadline.Duration, Resource: in.Owner, Expression: e, generation: in.Generation,
	}, nil
}

// NamePolicy is a NamePolicy in force, compiled.
type NamePolicy struct {
	naming.Policy
	Kinds       []v1alpha1.ResolvedResource
	Propagation v1alpha1.Propagation
	NameWait    time.Duration
	Adopt       bool
	Expressions NameExpressions

	generation int64
}

// NamePolicies finds NamePolicies.
type NamePolicies = Policies[*v1alpha1.NamePolicy, *NamePolicy]

// NewNamePolicies makes the store.
func NewNamePolicies(cached, live client.Reader) *NamePolicies {
	return newPolicies(policyKind[*v1alpha1.NamePolicy, *NamePolicy]{
		blank:   func() *v1alpha1.NamePolicy { return &v1alpha1.NamePolicy{} },
		inForce: func(p *v1alpha1.NamePolicy) bool { return p.Status.InForce != nil },
		current: func(c *NamePolicy, p *v1alpha1.NamePolicy) bool {
			return c.generation == p.Status.InForce.Generation && slices.Equal(c.Kinds, p.Status.InForce.Kinds)
		},
		compile:     compileNamePolicy,
		entryDomain: v1alpha1.NameEntryDomain,
	}, cached, live)
}

func compileNamePolicy(p *v1alpha1.NamePolicy) (*NamePolicy, error) {
	in := p.Status.InForce
	e, err := CompileNames(in.Spec)
	if err != nil {
		return nil, err
	}
	s := in.Spec
	return &NamePolicy{
		Policy: naming.Policy{
			Name: p.Name, Generates: s.Generate != nil, WhenFinished: s.WhenFinished, Settle: s.Settle.Duration,
			WaitForPods: s.WaitForPods == nil || *s.WaitForPods, Serialize: s.Racing == v1alpha1.RacingSerialize,
			Answers: s.Answers, FailurePolicy: s.FailurePolicy,
		},
		Kinds: in.Kinds, Propagation: s.Propagation, NameWait: s.NameWait.Duration, Adopt: s.AdoptUnmarked, Expressions: e,
		generation: in.Generation,
	}, nil
}

// RecoveryPolicy is a RecoveryPolicy in force, compiled.
type RecoveryPolicy struct {
	recovery.Policy
	Layout   recovery.Layout
	Resource v1alpha1.ResolvedResource
	Record   v1alpha1.RecordSchema
	// Spec is what was accepted.
	Spec        v1alpha1.RecoveryPolicySpec
	Expressions RecoveryExpressions

	generation int64
}

// RecoveryPolicies finds RecoveryPolicies.
type RecoveryPolicies = Policies[*v1alpha1.RecoveryPolicy, *RecoveryPolicy]

// NewRecoveryPolicies makes the store.
func NewRecoveryPolicies(cached, live client.Reader) *RecoveryPolicies {
	return newPolicies(policyKind[*v1alpha1.RecoveryPolicy, *RecoveryPolicy]{
		blank:   func() *v1alpha1.RecoveryPolicy { return &v1alpha1.RecoveryPolicy{} },
		inForce: func(p *v1alpha1.RecoveryPolicy) bool { return p.Status.InForce != nil },
		current: func(c *RecoveryPolicy, p *v1alpha1.RecoveryPolicy) bool {
			// The CRD may change under one generation.
			in := p.Status.InForce
			return c.generation == in.Generation && c.Resource == in.Resource && c.Record == in.Record
		},
		compile:     CompileRecoveryPolicy,
		entryDomain: v1alpha1.RecoveryEntryDomain,
	}, cached, live)
}

// CompileRecoveryPolicy compiles what is in force of a policy.
func CompileRecoveryPolicy(p *v1alpha1.RecoveryPolicy) (*RecoveryPolicy, error) {
	in := p.Status.InForce
	e, err := CompileRecovery(in.Spec)
	if err != nil {
		return nil, err
	}
	s := in.Spec
	c := &RecoveryPolicy{
		Policy: recovery.Policy{
			Name: p.Name, Failed: s.Phases.Failed, Recovered: s.Phases.Recovered, Lifecycle: s.Phases.Lifecycle, ReplacesPods: s.Phases.ReplacesPods,
			Detectors:     recovery.Detectors{WaitingReasons: s.Detectors.WaitingReasons, Terminal: s.Detectors.Terminal == nil || *s.Detectors.Terminal},
			MainContainer: s.MainContainer, Source: s.Evidence, FreshFor: s.WitnessFreshFor.Duration,
			FailurePolicy: s.FailurePolicy, MaxItems: in.Record.MaxItems, Required: in.Record.Required,
		},
		Layout:   recovery.Layout{Phase: s.PhasePath, Record: s.RecordPath, Conditions: s.ConditionsPath},
		Resource: in.Resource, Record: in.Record, Spec: s, Expressions: e, generation: in.Generation,
	}
	if s.Terminal != nil {
		c.Layout.TerminalType, c.Layout.TerminalStatus = s.Terminal.Type, string(s.Terminal.Status)
	}
	return c, nil
}
