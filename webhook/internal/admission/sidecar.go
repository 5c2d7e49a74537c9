package admission

import (
	"context"
	"net/http"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/inject"
)

// Paths under which Pods get sidecars: a policy's name follows, or nothing, for Pods that ask
// for one by annotation.
const (
	MutateSidecarPath   = "/mutate/sidecar"
	ValidateSidecarPath = "/validate/sidecar"
)

// Sidecar serves the injection of sidecars.
type Sidecar struct {
	Policies RecoveryPolicyGetter
	Modes    ModeGetter
	Config   inject.Config
	// CA is where sidecars have the collector's CA from.
	CA  func() inject.CASource
	Log logr.Logger
	// OwnNamespace is belay's own, which is never looked at.
	OwnNamespace string
}

// Mutate is the handler of the mutating phase, which adds the sidecar.
func (h *Sidecar) Mutate() http.Handler { return h.edge().handler(phaseMutate, MutateSidecarPath) }

// Validate is the handler of the validating phase, which looks at what others made of it.
func (h *Sidecar) Validate() http.Handler {
	return h.edge().handler(phaseValidate, ValidateSidecarPath)
}

func (h *Sidecar) edge() edge { return edge{webhook: "sidecar", log: h.Log, review: h.review} }

func (h *Sidecar) review(ctx context.Context, a asked) (outcome, error) {
	if a.policyName == "" {
		return h.answer(ctx, a, inject.Input{By: v1alpha1.SidecarByAnnotation}), nil
	}
	return underPolicy(ctx, h.Log, h.Policies, "RecoveryPolicy", "create", a, func(p *facts.RecoveryPolicy) outcome {
		return h.answer(ctx, a, inject.Input{By: v1alpha1.SidecarByPolicy, MainContainer: p.Spec.MainContainer})
	})
}

// answer decides. A panic is a bug of belay, and costs a Pod its sidecar and nothing else.
func (h *Sidecar) answer(ctx context.Context, a asked, in inject.Input) (o outcome) {
	defer func() {
		if p := recover(); p != nil {
			h.edge().panicked(p, "panic while deciding", "policy", a.policyName, "namespace", a.req.Namespace)
			o = h.failed(a)
		}
	}()
	mode, _, excluded := modeOf(ctx, h.Modes, h.OwnNamespace, a.req.Namespace)
	if mode == "" {
		return excluded
	}
	if a.req.Operation != admissionv1.Create || a.req.SubResource != "" || a.req.Resource.Resource != "pods" || a.req.Resource.Group != "" {
		return outcome{mode: mode, allowed: true, reason: string(inject.ReasonUnsuitable), message: "only pods that are being created get sidecars"}
	}
	if err := utiljson.Unmarshal(a.req.Object.Raw, &in.Pod); err != nil {
		return outcome{mode: mode, allowed: true, first: a.phase == phaseMutate, reason: ReasonObjectUnreadable, warnings: []string{"the pod in the review cannot be read, so that it gets no sidecar"}}
	}
	in.Bytes, in.Config, in.CA = len(a.req.Object.Raw), h.Config, h.CA()
	if a.phase == phaseValidate {
		return h.verified(a, mode, inject.Verify(in))
	}
	return h.mutated(a, mode, inject.Mutate(in))
}

func (h *Sidecar) mutated(a asked, mode string, d inject.Decision) outcome {
	o := outcome{mode: mode, allowed: true, reason: string(d.Reason), message: d.Message, warnings: d.Warnings, name: a.req.Name, first: true}
	if len(d.Edits) == 0 {
		return o
	}
	if mode == v1alpha1.ModeWarn {
		o.warnings = append([]string{"mode warn: enforce would change it: " + d.Message}, o.warnings...)
		return o
	}
	patch, err := encoded(a.req.Object.Raw, d.Edits)
	if err != nil {
		h.Log.Error(err, "patch not usable", "policy", a.policyName, "namespace", a.req.Namespace, "name", a.req.Name)
		return h.failed(a)
	}
	o.patch = patch
	return o
}

func (h *Sidecar) verified(a asked, mode string, d inject.Decision) outcome {
	o := outcome{mode: mode, allowed: d.Allowed, reason: string(d.Reason), message: d.Message, warnings: d.Warnings, name: a.req.Name}
	switch {
	case mode == v1alpha1.ModeWarn && (d.Reason == inject.ReasonMissing || d.Reason == inject.ReasonDamaged):
		o.warnings = nil // nothing was added; one that the Pod brought along would have been mended
	case mode == v1alpha1.ModeWarn && !d.Allowed:
		o.allowed, o.warnings = true, append(o.warnings, "mode warn: enforce would deny it: "+d.Message)
	case !d.Allowed:
		o.code, o.status = http.StatusForbidden, metav1.StatusReasonForbidden
		o.causes = []metav1.StatusCause{{Type: metav1.CauseType("belay.dev/" + string(d.Reason)), Message: d.Message, Field: "spec.initContainers"}}
	}
	return o
}

// failed is the outcome of a bug: the Pod is worth more than its sidecar.
func (h *Sidecar) failed(a asked) outcome {
	const message = "belay had an internal error, so that the pod gets no sidecar; see its log"
	return outcome{allowed: true, reason: ReasonInternal, message: message, warnings: []string{message}, first: a.phase == phaseMutate}
}
