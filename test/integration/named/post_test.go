package named

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// answered is what came back over the wire.
type answered struct {
	code     int
	header   http.Header
	status   *metav1.Status // of a refusal
	warnings []string
}

// post sends one POST and reads one answer, past everything that client-go adds.
func post(ctx context.Context, t *testing.T, cfg *rest.Config, obj client.Object, query ...string) answered {
	t.Helper()
	gvk, err := apiutil.GVKForObject(obj, shared.Client.Scheme())
	if err != nil {
		t.Fatal(err)
	}
	m, err := shared.Client.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		t.Fatal(err)
	}
	obj.GetObjectKind().SetGroupVersionKind(gvk)
	body, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	path := "/apis/" + gvk.Group + "/" + gvk.Version
	if gvk.Group == "" {
		path = "/api/" + gvk.Version
	}
	if obj.GetNamespace() != "" {
		path += "/namespaces/" + obj.GetNamespace()
	}
	url := cfg.Host + path + "/" + m.Resource.Resource
	if len(query) > 0 {
		url += "?" + strings.Join(query, "&")
	}
	hc, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	resp, err := hc.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := answered{code: resp.StatusCode, header: resp.Header, status: &metav1.Status{}, warnings: resp.Header.Values("Warning")}
	if resp.StatusCode < 300 {
		if err := json.Unmarshal(raw, obj); err != nil {
			t.Fatal(err)
		}
		return a
	}
	if err := json.Unmarshal(raw, a.status); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return a
}
