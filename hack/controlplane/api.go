package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// An api talks to one HTTP server, as the administrator where that matters.
type api struct {
	base string
	http *http.Client
}

// errConflict means that the object exists.
var errConflict = errors.New("exists already")

func newAPI(base string, p *pki) (*api, error) {
	cert, err := tls.X509KeyPair(p.admin.cert, p.admin.key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.ca.cert)
	return &api{base, clientFor(&tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}})}, nil
}

// clientFor makes a client that opens a connection for each request: a server
// that was restarted or paused leaves no broken ones behind.
func clientFor(config *tls.Config) *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
}

func (a *api) get(ctx context.Context, path string) ([]byte, error) {
	return a.do(ctx, http.MethodGet, path, nil)
}

func (a *api) post(ctx context.Context, path string, object any) error {
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	_, err = a.do(ctx, http.MethodPost, path, body)
	return err
}

func (a *api) do(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := a.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	case resp.StatusCode == http.StatusConflict:
		return nil, fmt.Errorf("%s %s: %w", method, path, errConflict)
	case resp.StatusCode/100 != 2:
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, content)
	}
	return content, nil
}

// shareIdentity lets the user of kube-controller-manager do what all the
// controllers may. Kubernetes grants it next to nothing, as it expects
// controllers to use service accounts of their own; whoever turns those off
// has to bind the roles.
func (a *api) shareIdentity(ctx context.Context) error {
	const path = "/apis/rbac.authorization.k8s.io/v1/"
	content, err := a.get(ctx, path+"clusterroles")
	if err != nil {
		return err
	}
	var roles struct {
		Items []struct {
			Metadata struct{ Name string }
		}
	}
	if err := json.Unmarshal(content, &roles); err != nil {
		return fmt.Errorf("reading cluster roles: %w", err)
	}
	type object = map[string]any
	for _, role := range roles.Items {
		name := role.Metadata.Name
		if !strings.HasPrefix(name, "system:controller:") {
			continue
		}
		err := a.post(ctx, path+"clusterrolebindings", object{
			"metadata": object{"name": "shared:" + name},
			"roleRef":  object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
			"subjects": []object{{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": controllerManagerUser}},
		})
		if err != nil && !errors.Is(err, errConflict) {
			return err
		}
	}
	return nil
}
