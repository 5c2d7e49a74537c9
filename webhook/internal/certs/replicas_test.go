package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// serving is a server with a certificate of a CA.
func serving(t *testing.T, ca *Authority, change func(*tls.Config)) (host string, port int32) {
	t.Helper()
	leaf, err := ca.Leaf(time.Now(), time.Hour, []string{"localhost"})
	must(t, err)
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.TLS = &tls.Config{Certificates: []tls.Certificate{*leaf}}
	if change != nil {
		change(s.TLS)
	}
	s.Config.ErrorLog = nil
	s.StartTLS()
	t.Cleanup(s.Close)
	h, p, err := net.SplitHostPort(s.Listener.Addr().String())
	must(t, err)
	n, err := strconv.Atoi(p)
	must(t, err)
	return h, int32(n)
}

func slice(service, host string, ports map[string]int32) *discoveryv1.EndpointSlice {
	out := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "belay-system", Name: service + "-" + strings.NewReplacer(".", "-", ":", "-").Replace(host), Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	if host != "" {
		no := false
		out.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{host}, Conditions: discoveryv1.EndpointConditions{Ready: &no, Terminating: &no}}}
	}
	for name, port := range ports {
		out.Ports = append(out.Ports, discoveryv1.EndpointPort{Name: &name, Port: &port})
		out.Name += "-" + strconv.Itoa(int(port))
	}
	return out
}

func TestReplicas(t *testing.T) {
	t.Parallel()
	a, b := newCA(t, time.Now()), newCA(t, time.Now())
	const name = "belay-webhook-replicas"
	host, ofA := serving(t, a, nil)
	_, ofB := serving(t, b, nil)
	_, strict := serving(t, b, func(c *tls.Config) {
		c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	})
	_, older := serving(t, b, func(c *tls.Config) {
		c.ClientAuth, c.ClientCAs, c.MaxVersion = tls.RequireAndVerifyClientCert, x509.NewCertPool(), tls.VersionTLS12
	})
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	_, p, err := net.SplitHostPort(gone.Addr().String())
	must(t, err)
	closed, err := strconv.Atoi(p)
	must(t, err)
	must(t, gone.Close())
	for what, c := range map[string]struct {
		slices []*discoveryv1.EndpointSlice
		want   []string // parts, in order; nil for all serve it
		err    bool
	}{
		"all serve it":                          {[]*discoveryv1.EndpointSlice{slice(name, host, map[string]int32{"https": ofB, "reports": ofB})}, nil, false},
		"one does not, and is not ready either": {[]*discoveryv1.EndpointSlice{slice(name, host, map[string]int32{"https": ofB}), slice(name, host, map[string]int32{"https": ofA})}, []string{":" + strconv.Itoa(int(ofA)) + " serves a certificate of another CA"}, false},
		"its collector does not":                {[]*discoveryv1.EndpointSlice{slice(name, host, map[string]int32{"https": ofB, "reports": ofA})}, []string{" serves a certificate of another CA"}, false},
		"it wants a client's certificate":       {[]*discoveryv1.EndpointSlice{slice(name, host, map[string]int32{"https": strict})}, nil, false},
		"so does one of an older TLS":           {[]*discoveryv1.EndpointSlice{slice(name, host, map[string]int32{"https": older})}, nil, false},
		"one does not answer":                   {[]*discoveryv1.EndpointSlice{slice(name, host, map[string]int32{"https": int32(closed)})}, []string{" does not answer ("}, false},
		"other ports":                           {[]*discoveryv1.EndpointSlice{slice(name, host, map[string]int32{"https": ofB, "metrics": ofA, "probes": int32(closed)})}, nil, false},
		"another Service":                       {[]*discoveryv1.EndpointSlice{slice(name, host, map[string]int32{"https": ofB}), slice("other", host, map[string]int32{"https": ofA})}, nil, false},
		"there are no replicas":                 {[]*discoveryv1.EndpointSlice{slice(name, "", nil)}, nil, true},
		"none of the ports is known":            {[]*discoveryv1.EndpointSlice{slice(name, host, map[string]int32{"web": ofA})}, nil, true},
		"nobody says which replicas there are":  {nil, nil, true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			client := fake.NewClientset()
			for _, s := range c.slices {
				_, err := client.DiscoveryV1().EndpointSlices("belay-system").Create(t.Context(), s, metav1.CreateOptions{})
				must(t, err)
			}
			got, err := Replicas(client.DiscoveryV1().EndpointSlices("belay-system"), name)(t.Context(), b.Cert)
			if (err != nil) != c.err || len(got) != len(c.want) {
				t.Fatalf("%q %v", got, err)
			}
			for i := range got {
				if !strings.Contains(got[i], c.want[i]) {
					t.Errorf("%q, want %q", got[i], c.want[i])
				}
			}
		})
	}
}

// TestAReplicaThatHangs is waited for within bounds.
func TestAReplicaThatHangs(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") // it never accepts
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := Served(ctx, l.Addr().String()); err == nil {
		t.Error("it has answered")
	}
}
