package admission

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxBody bounds a review: two objects of the API server's 3 MiB request limit
// (object and oldObject), and the envelope. controller-runtime uses the same.
const maxBody = 7 << 20

// reviewVersion is the only version that belay's registrations list and that is
// understood. A v1beta1 review is answered with 400.
const reviewVersion = "admission.k8s.io/v1"

// httpError is an answer below the level of reviews.
type httpError struct {
	code    int
	message string
}

func (e *httpError) Error() string { return e.message }

func unreadable(format string, args ...any) error {
	return &httpError{code: http.StatusBadRequest, message: fmt.Sprintf(format, args...)}
}

// readReview reads and checks one review.
func readReview(w http.ResponseWriter, r *http.Request) (*admissionv1.AdmissionRequest, error) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return nil, &httpError{code: http.StatusMethodNotAllowed, message: "send an AdmissionReview with POST"}
	}
	if ct, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || ct != "application/json" {
		return nil, unreadable("content type is not application/json")
	}
	if r.ContentLength > maxBody {
		return nil, tooLarge()
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return nil, tooLarge()
	case err != nil:
		return nil, unreadable("the body could not be read")
	case len(bytes.TrimSpace(body)) == 0:
		return nil, unreadable("the body is empty")
	}
	var review admissionv1.AdmissionReview
	err = json.Unmarshal(body, &review)
	_ = r.Body.Close() // it is not needed any more, and has room that others wait for
	if err != nil {
		// The parser's message may quote the body, which may hold a Secret.
		return nil, unreadable("the body is not an AdmissionReview")
	}
	switch {
	case review.APIVersion != reviewVersion || review.Kind != "AdmissionReview":
		return nil, unreadable("apiVersion and kind must be %q and \"AdmissionReview\"", reviewVersion)
	case review.Request == nil:
		return nil, unreadable("the review has no request")
	case review.Request.UID == "":
		return nil, unreadable("the request has no uid")
	}
	return review.Request, nil
}

func tooLarge() error {
	return &httpError{code: http.StatusRequestEntityTooLarge, message: fmt.Sprintf("a review may have %d bytes", maxBody)}
}

// writeReview answers a review: apiVersion, kind and uid echoed, as v1 demands.
func writeReview(w http.ResponseWriter, req *admissionv1.AdmissionRequest, resp *admissionv1.AdmissionResponse) error {
	resp.UID = req.UID
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: reviewVersion, Kind: "AdmissionReview"},
		Response: resp,
	})
	if err != nil {
		return fmt.Errorf("encoding the answer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	_, err = w.Write(body)
	return err
}
