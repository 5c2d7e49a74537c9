package admission

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/owner"
)

// JSON keys of Kubernetes are case-sensitive. A custom resource with a field of its own
// that is called "Metadata" must not be read as if that were its metadata.
func TestFieldsThatDifferInCaseAreNotMetadata(t *testing.T) {
	for name, object := range map[string]string{
		"hides that there is no owner": `{"metadata":{"name":"run"},"Metadata":{"ownerReferences":[{"apiVersion":"batch/v1","kind":"Job","name":"run","uid":"job-uid"}]}}`,
		"makes a patch that fails":     `{"metadata":{"name":"run"},"METADATA":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"x","uid":"x"}]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			if resp := set(t).review("/mutate/owner/otf", creating(object)); string(resp.Patch) != addJob {
				t.Errorf("%s %q", resp.AuditAnnotations, resp.Warnings)
			}
		})
	}
}

// A stale reference whose entry has no uid at all.
func TestAReferenceWithoutAUIDIsCorrected(t *testing.T) {
	resp := set(t).review("/mutate/owner/otf", creating(`{"metadata":{"name":"run","ownerReferences":[{"apiVersion":"batch/v1","kind":"Job","name":"run"}]}}`))
	if resp.Patch == nil {
		t.Errorf("%s %q", resp.AuditAnnotations, resp.Warnings)
	}
}

// The lint is advice; the owner is the promise. A read of a client's reference that hangs
// must not use up the time for the owner's look-up.
func TestLintDoesNotUseUpTheOwnersTime(t *testing.T) {
	s := set(t)
	s.linted = func(ctx context.Context, _ []metav1.OwnerReference) []owner.ReferenceFact { <-ctx.Done(); return nil }
	s.found = func(ctx context.Context, _ facts.Query) owner.Fact {
		if ctx.Err() != nil {
			return owner.Fact{Cause: fact.CauseTimeout}
		}
		return owner.Fact{State: fact.Known, Objects: []owner.Object{{APIVersion: "batch/v1", Kind: "Job", Name: "run", UID: "job-uid"}}}
	}
	resp := s.review("/mutate/owner/otf?timeout=1s", creating(`{"metadata":{"name":"run","ownerReferences":[`+siteRef+`]}}`))
	if resp.Patch == nil {
		t.Errorf("%s %q", resp.AuditAnnotations, resp.Warnings)
	}
}

// Discovery has no context: it may block for its own 2 s, when the API server has gone.
func TestP08_DiscoveryThatBlocksDoesNotOutliveTheRequest(t *testing.T) {
	s := set(t)
	s.resolve = func(string, string) (v1alpha1.ResolvedResource, error) {
		<-time.After(2 * time.Second) // app.discoveryTimeout
		return v1alpha1.ResolvedResource{}, context.DeadlineExceeded
	}
	req := creating(strings.Replace(plainSecret, `"name":"run"`, `"name":"x","annotations":{"belay.dev/owner":"batch/v1/Job/run"}`, 1))
	c := http.Client{Timeout: time.Second}
	resp, err := c.Post(s.server().URL+"/mutate/owner?timeout=1s", "application/json", bytes.NewReader(reviewOf(t, req)))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
}

// What an expression's error quotes of the object ends in warning, audit annotation and message.
func TestExpressionErrorsAreBounded(t *testing.T) {
	s := set(t)
	s.policies["otf"] = policy(t, v1alpha1.OwnerTarget{Name: `object.metadata.labels[object.metadata.annotations["k"]]`})
	resp := s.review("/mutate/owner/otf", creating(`{"metadata":{"name":"run","labels":{},"annotations":{"k":"a\nb`+strings.Repeat("x", 200_000)+`"}}}`))
	if n := len(resp.AuditAnnotations["message"]); n > 4096 {
		t.Errorf("audit annotation of %d bytes", n)
	}
	for _, w := range resp.Warnings {
		if len(w) > 4096 || strings.Contains(w, "\n") {
			t.Errorf("warning of %d bytes, line break %t", len(w), strings.Contains(w, "\n"))
		}
	}
}
