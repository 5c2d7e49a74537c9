package admission

import (
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Keys of audit annotations; the API server puts the webhook's name before them.
const (
	auditDecision = "decision"
	auditReason   = "reason"
	auditMessage  = "message"
)

// respond builds the answer to a review. All answers are built here.
func respond(c *call) *admissionv1.AdmissionResponse {
	d := c.decision
	resp := &admissionv1.AdmissionResponse{
		Allowed:          d.Allowed,
		AuditAnnotations: map[string]string{auditReason: string(d.Reason), auditMessage: d.Message, auditDecision: "allowed"},
	}
	for _, w := range d.Warnings {
		resp.Warnings = append(resp.Warnings, "belay: "+w)
	}
	if len(c.patch) > 0 {
		t := admissionv1.PatchTypeJSONPatch
		resp.Patch, resp.PatchType = c.patch, &t
	}
	if d.Allowed {
		return resp
	}
	resp.AuditAnnotations[auditDecision] = "denied"
	resp.Result = &metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    d.Code,
		Reason:  statusReason(d.Code),
		Message: "belay: " + d.Message,
		Details: &metav1.StatusDetails{
			Name: c.req.Name, Group: c.req.Resource.Group, Kind: c.req.Resource.Resource,
			RetryAfterSeconds: d.RetryAfterSeconds,
			Causes:            []metav1.StatusCause{{Type: metav1.CauseType("belay.dev/" + string(d.Reason)), Message: d.Message}},
		},
	}
	return resp
}

func statusReason(code int32) metav1.StatusReason {
	switch code {
	case http.StatusBadRequest:
		return metav1.StatusReasonBadRequest
	case http.StatusForbidden:
		return metav1.StatusReasonForbidden
	case http.StatusServiceUnavailable:
		return metav1.StatusReasonServiceUnavailable
	default:
		return metav1.StatusReasonInternalError
	}
}
