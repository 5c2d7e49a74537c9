package admission

import (
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Keys of audit annotations; the API server puts the webhook's name before them.
const (
	auditDecision = "decision"
	auditReason   = "reason"
	auditMessage  = "message"
	// auditMutation has the reason and the message of a mutating phase that a validating one
	// follows. Both have entries of one name, and the API server keeps the first value of a
	// key: the last word would be lost.
	auditMutation = "mutation"
)

// respond builds the answer to a review. All answers are built here.
func respond(req *admissionv1.AdmissionRequest, o outcome) *admissionv1.AdmissionResponse {
	resp := &admissionv1.AdmissionResponse{
		Allowed:          o.allowed,
		AuditAnnotations: map[string]string{auditReason: o.reason, auditMessage: o.message, auditDecision: "allowed"},
	}
	if o.first && o.allowed {
		resp.AuditAnnotations = map[string]string{auditMutation: o.reason}
		if o.message != "" {
			resp.AuditAnnotations[auditMutation] += ": " + o.message
		}
	}
	for _, w := range o.warnings {
		resp.Warnings = append(resp.Warnings, "belay: "+w)
	}
	if len(o.patch) > 0 {
		t := admissionv1.PatchTypeJSONPatch
		resp.Patch, resp.PatchType = o.patch, &t
	}
	if o.allowed {
		return resp
	}
	resp.AuditAnnotations[auditDecision] = "denied"
	code, status := o.code, o.status
	if code < 400 || status == "" {
		// A denial with a code of success makes clients report success.
		code, status = 500, metav1.StatusReasonInternalError
	}
	resp.Result = &metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    code,
		Reason:  status,
		Message: "belay: " + o.message,
		Details: &metav1.StatusDetails{
			Name: nameOf(req, o), Group: req.Resource.Group, Kind: req.Resource.Resource, UID: o.uid,
			RetryAfterSeconds: o.retryAfter,
			Causes:            o.causes,
		},
	}
	return resp
}

func nameOf(req *admissionv1.AdmissionRequest, o outcome) string {
	if o.name != "" {
		return o.name
	}
	return req.Name
}
