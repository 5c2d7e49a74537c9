package facts

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/owner"
)

// OwnerPolicy is a policy in force, compiled.
type OwnerPolicy struct {
	owner.Policy
	Deadline   time.Duration
	Resource   v1alpha1.ResolvedResource
	Expression OwnerExpression
}

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

// OwnerPolicies finds policies by name: first in the cache, then live, since a
// policy may be registered before a replica's cache has heard of it.
type OwnerPolicies struct {
	cached, live client.Reader

	mu       sync.Mutex
	compiled map[types.UID]compiledOwnerPolicy
	deleted  map[string]time.Time
}

type compiledOwnerPolicy struct {
	generation int64
	policy     *OwnerPolicy
}

// deletedFor is how long a deleted policy's name is remembered: the registration
// follows within seconds, this is far more.
const deletedFor = 10 * time.Minute

// NewOwnerPolicies makes the store.
func NewOwnerPolicies(cached, live client.Reader) *OwnerPolicies {
	return &OwnerPolicies{cached: cached, live: live, compiled: map[types.UID]compiledOwnerPolicy{}, deleted: map[string]time.Time{}}
}

// Get returns the policy in force. The error says why a Standing is unknown.
func (s *OwnerPolicies) Get(ctx context.Context, name string) (*OwnerPolicy, Standing, error) {
	var p v1alpha1.OwnerPolicy
	err := s.cached.Get(ctx, client.ObjectKey{Name: name}, &p)
	if err != nil || p.Status.InForce == nil {
		err = s.live.Get(ctx, client.ObjectKey{Name: name}, &p)
	}
	switch {
	case apierrors.IsNotFound(err):
		if s.wasDeleted(name) || s.registered(ctx, name) {
			return nil, StandingDeleted, nil
		}
		return nil, StandingAbsent, nil
	case err != nil:
		return nil, StandingUnknown, fmt.Errorf("reading policy %q: %w", name, err)
	case p.Status.InForce == nil:
		return nil, StandingNotInForce, nil
	}
	c, err := s.compile(&p)
	if err != nil {
		return nil, StandingUnknown, err
	}
	return c, StandingInForce, nil
}

// Deleted notes that a policy was deleted.
func (s *OwnerPolicies) Deleted(p *v1alpha1.OwnerPolicy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for name, at := range s.deleted {
		if now.Sub(at) > deletedFor {
			delete(s.deleted, name)
		}
	}
	s.deleted[p.Name] = now
	delete(s.compiled, p.UID)
}

func (s *OwnerPolicies) wasDeleted(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.deleted[name]
	return ok && time.Since(at) < deletedFor
}

// registered reports whether the API server is still told to call for a policy. One
// that does not exist, but is registered, was deleted while this process did not run
// or longer ago than it remembers, and belay-controller is away: with failurePolicy
// Fail a 404 would then refuse every create.
func (s *OwnerPolicies) registered(ctx context.Context, name string) bool {
	var c admissionregistrationv1.MutatingWebhookConfiguration
	if err := s.live.Get(ctx, client.ObjectKey{Name: v1alpha1.ConfigurationName}, &c); err != nil {
		return false
	}
	return slices.ContainsFunc(c.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool {
		return w.Name == name+v1alpha1.OwnerEntryDomain
	})
}

// compile compiles a spec once for each generation that came into force.
func (s *OwnerPolicies) compile(p *v1alpha1.OwnerPolicy) (*OwnerPolicy, error) {
	in := p.Status.InForce
	s.mu.Lock()
	c, ok := s.compiled[p.UID]
	s.mu.Unlock()
	// The resource may change under one generation: a CRD installed anew.
	if ok && c.generation == in.Generation && c.policy.Resource == in.Owner {
		return c.policy, nil
	}
	e, err := CompileOwner(in.Spec.Owner)
	if err != nil {
		return nil, fmt.Errorf("compiling policy %q: %w", p.Name, err)
	}
	policy := &OwnerPolicy{
		Policy: owner.Policy{
			Name: p.Name, Controller: in.Spec.Controller,
			WhenUnresolved: in.Spec.WhenUnresolved, ClientReferences: in.Spec.ClientReferences,
		},
		Deadline: in.Spec.Deadline.Duration, Resource: in.Owner, Expression: e,
	}
	s.mu.Lock()
	s.compiled[p.UID] = compiledOwnerPolicy{generation: in.Generation, policy: policy}
	s.mu.Unlock()
	return policy, nil
}
