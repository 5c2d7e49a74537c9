package failfast

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"
)

type late struct{ ctx context.Context }

func (l late) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: late{ctx: req.Context()}}, nil
}

func (l late) Read([]byte) (int, error) {
	<-l.ctx.Done()
	return 0, io.EOF
}

func (l late) Close() error { return nil }

// A server that notices that it was hung up on may end its answer properly, in the
// middle. That is not an answer.
func TestLateEndIsNoEnd(t *testing.T) {
	t.Parallel()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://127.0.0.1/api", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&roundTripper{base: late{}, bound: 20 * time.Millisecond}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadAll(resp.Body); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want a deadline exceeded", err)
	}
}

func TestEndless(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		url     string
		upgrade string
		want    bool
	}{
		"a get":                              {url: "/api/v1/namespaces/a/pods/b"},
		"a list":                             {url: "/apis/batch/v1/jobs?limit=500"},
		"a watch":                            {url: "/api/v1/pods?watch=true", want: true},
		"a watch, said with 1":               {url: "/api/v1/pods?watch=1", want: true},
		"a watch, said by name only":         {url: "/api/v1/pods?watch", want: true},
		"no watch, said with 0":              {url: "/api/v1/pods?watch=0"},
		"no watch, said so":                  {url: "/api/v1/pods?watch=False"},
		"an old watch":                       {url: "/api/v1/watch/namespaces/a/pods", want: true},
		"an old watch of a group":            {url: "/apis/apps/v1/watch/deployments", want: true},
		"an old watch behind a proxy's path": {url: "/k8s/clusters/c-1/apis/apps/v1/watch/deployments", want: true},
		"a namespace called watch":           {url: "/api/v1/namespaces/watch/pods"},
		"a pod called watch":                 {url: "/api/v1/namespaces/a/pods/watch"},
		"logs":                               {url: "/api/v1/namespaces/a/pods/b/log"},
		"logs that are followed":             {url: "/api/v1/namespaces/a/pods/b/log?follow=true", want: true},
		"logs that are not":                  {url: "/api/v1/namespaces/a/pods/b/log?follow=false"},
		"follow of something else":           {url: "/api/v1/namespaces/a/pods?follow=true"},
		"exec":                               {url: "/api/v1/namespaces/a/pods/b/exec?command=sh", want: true},
		"attach":                             {url: "/api/v1/namespaces/a/pods/b/attach", want: true},
		"port-forward":                       {url: "/api/v1/namespaces/a/pods/b/portforward", want: true},
		"exec behind a proxy's path":         {url: "/k8s/clusters/c-1/api/v1/namespaces/a/pods/b/exec", want: true},
		"a pod called exec":                  {url: "/api/v1/namespaces/a/pods/exec"},
		"an upgrade of whatever":             {url: "/api/v1/namespaces/a/services/b/proxy/", upgrade: "websocket", want: true},
		"a proxied call":                     {url: "/api/v1/namespaces/a/services/b/proxy/"},
		"nothing":                            {url: "/"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://127.0.0.1"+tc.url, nil)
			if err != nil {
				t.Fatal(err)
			}
			if tc.upgrade != "" {
				req.Header.Set("Upgrade", tc.upgrade)
			}
			if got := endless(req); got != tc.want {
				t.Errorf("endless(%s) = %t", tc.url, got)
			}
		})
	}
}
