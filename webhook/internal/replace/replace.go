package replace

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/naming"
)

// Finder reads an object live.
type Finder interface {
	Existing(ctx context.Context, res v1alpha1.ResolvedResource, namespace, name string) (*unstructured.Unstructured, fact.State, fact.Cause)
}

// Target is the object to delete, exactly as it was when that was decided.
type Target struct {
	Resource        v1alpha1.ResolvedResource
	Namespace, Name string
	UID             types.UID
	ResourceVersion string
	Propagation     v1alpha1.Propagation
	// Wait is how long to wait for the name afterwards.
	Wait time.Duration
	// By identifies the request, so that its turn is its own.
	By string
	// Policy asked for it, and Because says why the object is finished: for the records.
	Policy, Because string
}

// Replacer deletes finished objects.
type Replacer struct {
	Dynamic dynamic.Interface
	Find    Finder
	Turns   Turns
	// Deleted is told of each object that was deleted; nil for nobody.
	Deleted func(t Target)
}

// purposeDelete marks the turns of deletions.
const purposeDelete = "delete"

// Replace deletes the target once, however many requests want that at this moment, and
// waits until the name is free. It does not judge what it finds then: decide again,
// with fresh facts. An object that was changed or recreated since is left alone.
func (r Replacer) Replace(ctx context.Context, t Target) (naming.Replacement, fact.Cause) {
	mine, _, err := r.Turns.Take(ctx, Turn{Purpose: purposeDelete, Holder: t.By, Key: []any{string(t.UID), t.ResourceVersion}})
	if err != nil {
		return naming.ReplacementFailed, facts.CauseOf(err)
	}
	if mine {
		err := r.delete(ctx, t)
		switch {
		case err == nil:
			if r.Deleted != nil {
				r.Deleted(t)
			}
		case apierrors.IsNotFound(err): // gone, by whomever
		case apierrors.IsConflict(err):
			// Not the object that was decided on: look again, and wait for nothing.
			return naming.ReplacementDone, ""
		case apierrors.IsForbidden(err):
			return naming.ReplacementFailed, fact.CauseForbidden
		}
		// Any other error is ambiguous, and never a reason to send a second DELETE.
	}
	r.waitForName(ctx, t)
	return naming.ReplacementDone, ""
}

func (r Replacer) delete(ctx context.Context, t Target) error {
	// Not all of the time: what became of it has to be looked at.
	ctx, cancel := facts.Attempt(ctx)
	defer cancel()
	var c dynamic.ResourceInterface = r.Dynamic.Resource(facts.ResourceOf(t.Resource))
	if t.Resource.Namespaced {
		c = r.Dynamic.Resource(facts.ResourceOf(t.Resource)).Namespace(t.Namespace)
	}
	// Always explicit: the default for Jobs orphans their Pods.
	propagation := metav1.DeletionPropagation(t.Propagation)
	if propagation == "" {
		propagation = metav1.DeletePropagationBackground
	}
	return c.Delete(ctx, t.Name, metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: &t.UID, ResourceVersion: &t.ResourceVersion},
		PropagationPolicy: &propagation,
	})
}

const (
	// Waiting begins with short looks, since a name is mostly free at once.
	firstLook, longestLook = 10 * time.Millisecond, 200 * time.Millisecond
)

// waitForName returns when the target has gone, or the time is up.
func (r Replacer) waitForName(ctx context.Context, t Target) {
	wait := t.Wait
	if deadline, ok := ctx.Deadline(); ok {
		// Turn and DELETE have taken theirs, and what is there afterwards has to be read.
		wait = min(wait, time.Until(deadline)-naming.MinReplace)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for pause := firstLook; ; pause = min(2*pause, longestLook) {
		found, state, _ := r.Find.Existing(ctx, t.Resource, t.Namespace, t.Name)
		if state == fact.Absent || (state == fact.Known && found.GetUID() != t.UID) {
			return
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}
