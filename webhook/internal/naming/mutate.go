package naming

import (
	"fmt"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/wording"
)

// MutateInput is everything that the mutating phase depends on.
type MutateInput struct {
	Request Request
	Policy  Policy
	// Generated is the name that the policy's expressions give; it is asked for only
	// where the request has none.
	Generated Computed
}

// Mutate names an object that has no name, and marks it with its work. A name that
// the request carries, in the object or beside it, is never changed: an object that was
// asked for under one name and stored under another cannot be found by whoever asked.
func Mutate(in MutateInput) Decision {
	r := in.Request
	if r.Operation != "CREATE" {
		return allow(ReasonNotCreate, "only creates are looked at")
	}
	if r.Name != "" || !r.Unnamed || !in.Policy.Generates {
		if r.Name == "" {
			// Names that the API server makes are never taken: there is nothing to answer.
			return unmarked(allow(ReasonServerNamed, "the API server names the object"))
		}
		return marked(in, allow(ReasonMarked, fmt.Sprintf("%s is marked with work %s", r.describe(), r.Work.Value)))
	}
	if in.Generated.Problem != "" {
		return unmarked(failed(in.Policy, r, "its name could not be made", in.Generated))
	}
	d := allow(ReasonGenerated, fmt.Sprintf("a new %s is named %q, with work %s", r.kind(), in.Generated.Value, r.Work.Value))
	d.SetName, d.DropGenerateName = in.Generated.Value, r.HasGenerateName
	return marked(in, d)
}

// marked sets the mark, or denies where the work cannot be told: an object without a
// mark would answer every retry as foreign.
func marked(in MutateInput, d Decision) Decision {
	if in.Request.Work.Problem != "" {
		return unmarked(failed(in.Policy, in.Request, "its work could not be computed", in.Request.Work))
	}
	d.SetWork = in.Request.Work.Value
	return d
}

// unmarked takes a mark away that the client copied from somewhere: the validating phase
// would take it for belay's own.
func unmarked(d Decision) Decision {
	d.DropWork = d.Allowed
	return d
}

// failed denies for an expression that failed: the policy cannot do what it is for.
// Only where the time ran out can a retry help.
func failed(p Policy, r Request, what string, c Computed) Decision {
	message := fmt.Sprintf("policy %q: %s: %s: %s", p.Name, r.describe(), what, wording.OneLine(clip(c.Problem)))
	if c.Transient {
		return unresolved(p, ReasonExpressionFailed, message)
	}
	return deny(v1alpha1.AnswerForbidden, ReasonExpressionFailed, message)
}
