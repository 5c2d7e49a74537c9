package admission

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
)

func TestP09_WhatIsNoReviewIsRefused(t *testing.T) {
	t.Parallel()
	const v1 = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview",`
	for name, c := range map[string]struct {
		method, contentType, body string
		code                      int
		message                   string
	}{
		"the least that is a review":       {"POST", "application/json", v1 + `"request":{"uid":"u"}}`, 0, ""},
		"a charset is no other type":       {"POST", "application/json; charset=utf-8", v1 + `"request":{"uid":"u"}}`, 0, ""},
		"a GET":                            {"GET", "application/json", "", 405, "send an AdmissionReview with POST"},
		"text/plain":                       {"POST", "text/plain", v1 + `"request":{"uid":"u"}}`, 400, "content type is not application/json"},
		"no content type":                  {"POST", "", v1 + `"request":{"uid":"u"}}`, 400, "content type is not application/json"},
		"an empty body":                    {"POST", "application/json", "", 400, "the body is empty"},
		"a blank body":                     {"POST", "application/json", " \n\t", 400, "the body is empty"},
		"no JSON":                          {"POST", "application/json", "uid: u", 400, "the body is not an AdmissionReview"},
		"JSON that is cut off":             {"POST", "application/json", v1 + `"request":{"uid":"u"`, 400, "the body is not an AdmissionReview"},
		"JSON of another shape":            {"POST", "application/json", `["topsecret"]`, 400, "the body is not an AdmissionReview"},
		"a request of another shape":       {"POST", "application/json", v1 + `"request":"topsecret"}`, 400, "the body is not an AdmissionReview"},
		"no request":                       {"POST", "application/json", v1 + `"response":{"uid":"u"}}`, 400, "the review has no request"},
		"a null request":                   {"POST", "application/json", v1 + `"request":null}`, 400, "the review has no request"},
		"no uid":                           {"POST", "application/json", v1 + `"request":{"name":"topsecret"}}`, 400, "the request has no uid"},
		"another kind":                     {"POST", "application/json", `{"apiVersion":"admission.k8s.io/v1","kind":"Secret","request":{"uid":"u"}}`, 400, `apiVersion and kind must be "admission.k8s.io/v1" and "AdmissionReview"`},
		"P10: a v1beta1 review, like junk": {"POST", "application/json", `{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"u"}}`, 400, `apiVersion and kind must be "admission.k8s.io/v1" and "AdmissionReview"`},
		"nesting without end":              {"POST", "application/json", v1 + `"request":{"uid":"u","object":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}}`, 400, "the body is not an AdmissionReview"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequest(c.method, "/mutate/owner/otf", strings.NewReader(c.body))
			r.Header.Set("Content-Type", c.contentType)
			req, err := readReview(httptest.NewRecorder(), r)
			if c.code == 0 {
				if err != nil || req.UID != "u" {
					t.Errorf("%v %v", req, err)
				}
				return
			}
			var he *httpError
			if !errors.As(err, &he) || he.code != c.code || he.message != c.message {
				t.Errorf("got %v, want %d %s", err, c.code, c.message)
			}
		})
	}
}

func TestP09_TheAnswerEchoesWhatV1Demands(t *testing.T) {
	t.Parallel()
	for name, object := range map[string]string{"with a patch": plainSecret, "without": `{"metadata":{"name":""}}`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, body := set(t).post("/mutate/owner/otf", reviewOf(t, creating(object)))
			var got map[string]any
			if err := json.Unmarshal([]byte(body), &got); err != nil || code != 200 {
				t.Fatalf("%d %v: %s", code, err, body)
			}
			resp, _ := got["response"].(map[string]any)
			if got["apiVersion"] != "admission.k8s.io/v1" || got["kind"] != "AdmissionReview" || resp["uid"] != "review-uid" || resp["allowed"] != true {
				t.Errorf("%s", body)
			}
			if _, has := got["request"]; has {
				t.Error("the request is sent back")
			}
			if (resp["patch"] != nil) != (name == "with a patch") || (resp["patch"] != nil) != (resp["patchType"] == "JSONPatch") {
				t.Errorf("patch %v, patchType %v", resp["patch"], resp["patchType"])
			}
		})
	}
}

func TestP11_ObjectAndOldObjectOfFullSizeFit(t *testing.T) {
	t.Parallel()
	big := `{"metadata":{"name":"run"},"data":{"x":"` + strings.Repeat("A", 1_400_000) + `"}}`
	req := creating(big, func(r *admissionv1.AdmissionRequest) {
		r.Operation, r.OldObject = admissionv1.Update, apiruntime.RawExtension{Raw: []byte(big)}
	})
	if resp := set(t).review("/mutate/owner/otf", req); !resp.Allowed {
		t.Errorf("%+v", resp)
	}
}

// endless gives a JSON string of n bytes and counts what was taken of it.
type endless struct{ left, taken int }

func (e *endless) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n := min(len(p), e.left)
	copy(p, bytes.Repeat([]byte("a"), n))
	e.left -= n
	e.taken += n
	return n, nil
}

// TestP11_AnOversizedBodyIsNotRead is not parallel: it measures memory.
func TestP11_AnOversizedBodyIsNotRead(t *testing.T) {
	const size = 50 << 20
	for name, c := range map[string]struct {
		length         int64
		taken, kept    int
		allocatedBytes uint64
	}{
		"announced: refused unread":          {size, 0, 0, 1 << 20},
		"chunked: refused at the limit":      {-1, maxBody + 1, 0, 8 * maxBody},
		"announced too small: still refused": {10, maxBody + 1, 0, 8 * maxBody},
	} {
		body := &endless{left: size}
		r := httptest.NewRequest(http.MethodPost, "/mutate/owner/otf", body)
		r.Header.Set("Content-Type", "application/json")
		r.ContentLength = c.length
		w := httptest.NewRecorder()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		(&Owner{}).Mutate().ServeHTTP(w, r)
		runtime.ReadMemStats(&after)
		if w.Code != http.StatusRequestEntityTooLarge || !strings.Contains(w.Body.String(), fmt.Sprint(maxBody)) {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
		if body.taken > c.taken+4096 {
			t.Errorf("%s: %d bytes were read", name, body.taken)
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > c.allocatedBytes {
			t.Errorf("%s: %d bytes were allocated", name, got)
		}
	}
}

func FuzzReadReview(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","object":{}}}`))
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","object":null,"dryRun":"x"}}`))
	f.Add([]byte("\xff"))
	f.Fuzz(func(t *testing.T, body []byte) {
		r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		req, err := readReview(httptest.NewRecorder(), r)
		var he *httpError
		if (req == nil) == (err == nil) || (err != nil && !errors.As(err, &he)) {
			t.Errorf("%v %v", req, err)
		}
	})
}
