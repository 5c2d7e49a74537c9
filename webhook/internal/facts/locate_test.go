package facts

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

func TestLocateTakesNothingButTheServersOwnWord(t *testing.T) {
	t.Parallel()
	const group = `{"kind":"APIGroup","apiVersion":"v1","name":"example.com","versions":[{"groupVersion":"example.com/v2","version":"v2"},{"groupVersion":"example.com/v1","version":"v1"}]}`
	list := func(names string) string { return `{"kind":"APIResourceList","resources":[` + names + `]}` }
	const widget = `{"name":"widgets/status","kind":"Widget","namespaced":true},{"name":"widgets","kind":"Widget","namespaced":true}`
	for name, c := range map[string]struct {
		paths   map[string]string // 404 for others; "503" for a server that is away
		version string
		noKind  bool
	}{
		"in the first version":                       {map[string]string{"/apis/example.com": group, "/apis/example.com/v2": list(widget)}, "v2", false},
		"in an older version":                        {map[string]string{"/apis/example.com": group, "/apis/example.com/v2": list(""), "/apis/example.com/v1": list(widget)}, "v1", false},
		"in none":                                    {map[string]string{"/apis/example.com": group, "/apis/example.com/v2": list(""), "/apis/example.com/v1": list("")}, "", true},
		"there is no such group":                     {nil, "", true},
		"a version is away, which is no word at all": {map[string]string{"/apis/example.com": group, "/apis/example.com/v2": "503", "/apis/example.com/v1": list("")}, "", false},
		"the group is away":                          {map[string]string{"/apis/example.com": "503"}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, ok := c.paths[r.URL.Path]
				switch {
				case !ok:
					http.NotFound(w, r)
				case body == "503":
					http.Error(w, "away", http.StatusServiceUnavailable)
				default:
					w.Header().Set("Content-Type", "application/json")
					_, _ = w.Write([]byte(body))
				}
			}))
			t.Cleanup(server.Close)
			rc, err := rest.UnversionedRESTClientFor(&rest.Config{Host: server.URL, QPS: -1, ContentConfig: rest.ContentConfig{
				GroupVersion: &metav1.Unversioned, NegotiatedSerializer: serializer.NewCodecFactory(runtime.NewScheme()),
			}})
			if err != nil {
				t.Fatal(err)
			}
			got, err := NewReader(nil, nil).Locate(t.Context(), rc, "example.com", "widget")
			if got.Version != c.version || errors.Is(err, ErrNoKind) != c.noKind || (err == nil) != (c.version != "") {
				t.Errorf("%+v %v", got, err)
			}
			if err == nil && (got.Resource != "widgets" || got.Kind != "Widget" || !got.Namespaced) {
				t.Errorf("%+v", got)
			}
		})
	}
}
