// Package admission turns AdmissionReviews into decisions and decisions into
// answers. It is the only HTTP edge of admission.
//
// A request goes through: decode, which policy (from the path), gather facts,
// decide, patch and respond, record. An answer that the API server can use is
// always HTTP 200 with a review in it; only what is no review, or concerns no
// policy, is answered on the HTTP level.
package admission
