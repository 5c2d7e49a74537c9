package facts

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// answer is what the API server sends for one request.
type answer struct {
	code        int
	contentType string // "application/json" where it is empty
	body        string
}

// apiServer answers with what answers gives for a path and query; the last answer of a
// list is given for ever.
type apiServer struct {
	*httptest.Server
	answers map[string][]answer

	mu       sync.Mutex
	requests []string
	accept   string // of the last request
}

func serve(t *testing.T, answers map[string][]answer) *apiServer {
	t.Helper()
	s := &apiServer{answers: answers}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.URL.Path
		if r.URL.RawQuery != "" {
			key += "?" + r.URL.RawQuery
		}
		s.mu.Lock()
		s.requests, s.accept = append(s.requests, key), r.Header.Get("Accept")
		list := s.answers[key]
		if len(list) > 1 {
			s.answers[key] = list[1:]
		}
		s.mu.Unlock()
		if len(list) == 0 {
			http.NotFound(w, r) // as the API server does for a path that is not served
			return
		}
		if list[0].code == 0 { // never answered
			<-r.Context().Done()
			return
		}
		ct := list[0].contentType
		if ct == "" {
			ct = "application/json"
		}
		w.Header().Set("Content-Type", ct)
		w.WriteHeader(list[0].code)
		_, _ = w.Write([]byte(list[0].body))
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *apiServer) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// reader is a Reader over the server, with a fixed set of kinds.
func (s *apiServer) reader(t *testing.T) *Reader {
	t.Helper()
	c, err := metadata.NewForConfig(&rest.Config{Host: s.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return NewReader(c, kinds())
}

func kinds() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	m.Add(schema.GroupVersionKind{Group: "batch", Version: "v1", Kind: "Job"}, meta.RESTScopeNamespace)
	m.Add(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, meta.RESTScopeNamespace)
	m.Add(schema.GroupVersionKind{Version: "v1", Kind: "Node"}, meta.RESTScopeRoot)
	return m
}

// object is the metadata of one object, as the API server sends it.
func object(name, uid string, change ...string) string {
	more := ""
	for _, c := range change {
		more += "," + c
	}
	return fmt.Sprintf(`{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":%q,"namespace":"lab","uid":%q%s}}`, name, uid, more)
}

const terminating = `"deletionTimestamp":"2026-01-01T00:00:00Z"`

func listOf(next string, objects ...string) string {
	items := make([]json.RawMessage, 0, len(objects))
	for _, o := range objects {
		items = append(items, json.RawMessage(o))
	}
	body, err := json.Marshal(map[string]any{
		"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": map[string]any{"continue": next}, "items": items,
	})
	if err != nil {
		panic(err)
	}
	return string(body)
}

// failure is a Status, as the API server sends it.
func failure(code int, reason metav1.StatusReason, name string) answer {
	details := ""
	if name != "" {
		details = fmt.Sprintf(`,"details":{"name":%q,"group":"batch","kind":"jobs"}`, name)
	}
	return answer{code: code, body: fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","reason":%q,"code":%d%s}`, reason, code, details)}
}

func ok(body string) answer { return answer{code: http.StatusOK, body: body} }
