package probe_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/belay-dev/belay/sidecar/probe"
	"github.com/belay-dev/belay/sidecar/settings"
)

var loopbacks = []string{"127.0.0.1", "::1"}

func TestHTTPStatus(t *testing.T) {
	t.Parallel()
	tests := map[int]string{
		200: probe.ReasonSucceeded,
		204: probe.ReasonSucceeded,
		302: probe.ReasonSucceeded,
		399: probe.ReasonSucceeded,
		400: probe.ReasonStatus,
		404: probe.ReasonStatus,
		500: probe.ReasonStatus,
		999: probe.ReasonStatus,
	}
	for _, host := range loopbacks {
		for _, scheme := range []string{"http", "https"} {
			t.Run(scheme+" on "+host, func(t *testing.T) {
				t.Parallel()
				s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					code := 0
					if _, err := fmt.Sscanf(r.URL.Path, "/%d", &code); err != nil {
						t.Errorf("asked for %s", r.URL.Path) // a redirect was followed
						code = 500
					}
					w.Header().Set("Location", "/elsewhere")
					w.WriteHeader(code)
				})}
				if scheme == "https" {
					s.TLSConfig = otherNames(t)
				}
				addr, conns := serve(t, host, s)
				for code, reason := range tests {
					got := want(t, newProber(t, fmt.Sprintf("%s://%s/%d", scheme, addr, code)), reason)
					if !got.OK && got.Detail != fmt.Sprintf("the HTTP status is %d", code) {
						t.Errorf("got the detail %q for %d", got.Detail, code)
					}
				}
				conns.wantClosed(t, len(tests))
			})
		}
	}
}

// otherNames has a certificate that no client would trust: of nobody, for another name, and
// expired.
func otherNames(t *testing.T) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"other.example.org"}, NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
}

// A server may speak HTTP/2 alone; the kubelet offers it, too.
func TestHTTPSOfHTTP2Alone(t *testing.T) {
	t.Parallel()
	alone := new(http.Protocols)
	alone.SetHTTP2(true)
	addr, conns := serve(t, "127.0.0.1", &http.Server{TLSConfig: otherNames(t), Protocols: alone, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("asked by %s", r.Proto)
		}
		_, _ = io.WriteString(w, strings.Repeat("x", 1<<20))
	})})
	p := newProber(t, "https://"+addr+"/")
	for range 3 {
		want(t, p, probe.ReasonSucceeded)
	}
	conns.wantClosed(t, 3)
}

func TestHTTPRequest(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		path    string
		headers string // as lines
		// wantURI is the request's; wantHost is empty for the server's own address.
		wantURI, wantHost string
		// want are headers as the server sees them; nil: absent.
		want http.Header
	}{
		"the root without a path":  {"", "", "/", "", nil},
		"a path":                   {"/healthz", "", "/healthz", "", nil},
		"a query":                  {"/healthz?full=1&x=%20", "", "/healthz?full=1&x=%20", "", nil},
		"a query alone":            {"/?full", "", "/?full", "", nil},
		"escapes":                  {"/a%2Fb%20c", "", "/a%2Fb%20c", "", nil},
		"a space":                  {"/a b", "", "/a%20b", "", nil},
		"letters of other scripts": {"/здоров", "", (&url.URL{Path: "/здоров"}).EscapedPath(), "", nil},
		"escapes that are none are sent as they are": {"/100%", "", "/100%25", "", nil},
		"a fragment is not for the server":           {"/a#b", "", "/a", "", nil},
		"parameters":                                 {"/a;b=c,d:e@f", "", "/a;b=c,d:e@f", "", nil},
		"headers that are sent without being asked":  {"/", "", "/", "", http.Header{"User-Agent": {"belay-sidecar/1"}, "Accept": {"*/*"}, "Accept-Encoding": nil, "Connection": {"close"}}},
		"headers that are asked for":                 {"/", "x-a: b\nX-A: c\nX-Empty: ", "/", "", http.Header{"X-A": {"b", "c"}, "X-Empty": {""}}},
		"another host":                               {"/", "host: example.org", "/", "example.org", nil},
		"the first of two hosts":                     {"/", "Host: example.org\nHost: example.com", "/", "example.org", nil},
		"another agent":                              {"/", "user-agent: a", "/", "", http.Header{"User-Agent": {"a"}}},
		"no agent":                                   {"/", "User-Agent: ", "/", "", http.Header{"User-Agent": nil}},
		"another kind of answer":                     {"/", "accept: text/plain\nAccept: a/b", "/", "", http.Header{"Accept": {"text/plain", "a/b"}}},
		"no kind of answer":                          {"/", "Accept: ", "/", "", http.Header{"Accept": nil}},
		"a secret":                                   {"/", "Authorization: Basic x", "/", "", http.Header{"Authorization": {"Basic x"}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := make(chan *http.Request, 1)
			addr, _ := serve(t, "127.0.0.1", &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r })})
			p := newProber(t, "http://"+addr+tc.path, headers(t, tc.headers))
			for range 2 { // the first may have changed what the second sends
				if got := want(t, p, probe.ReasonSucceeded); !got.OK {
					return
				}
				r := <-asked
				if tc.wantHost == "" {
					tc.wantHost = addr
				}
				if r.Method != http.MethodGet || r.RequestURI != tc.wantURI || r.Host != tc.wantHost || r.Proto != "HTTP/1.1" || r.ContentLength != 0 {
					t.Errorf("got %s %q of %q by %s with %d bytes, want GET %q of %q", r.Method, r.RequestURI, r.Host, r.Proto, r.ContentLength, tc.wantURI, tc.wantHost)
				}
				for name, values := range tc.want {
					if !slices.Equal(r.Header[name], values) {
						t.Errorf("header %s is %q, want %q", name, r.Header[name], values)
					}
				}
			}
		})
	}
}

// headers sets what the lines say.
func headers(t *testing.T, lines string) func(*settings.Settings) {
	t.Helper()
	read, _ := settings.Read(func(name string) string {
		if name == settings.ProbeHeaders {
			return lines
		}
		return ""
	})
	return func(s *settings.Settings) { s.Headers = read.Headers }
}

// Nothing but an answer that came counts, and what a server sends is nowhere repeated: it
// may be a secret, and it may be long.
func TestHTTPOddServers(t *testing.T) {
	t.Parallel()
	const secret = "5ecret"
	tests := map[string]struct {
		do     func(net.Conn)
		reason string
	}{
		"a status below 200 is no answer":    {say("HTTP/1.1 199 " + secret + "\r\n\r\n"), probe.ReasonFailed},
		"an answer after a status below 200": {say("HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), probe.ReasonSucceeded},
		"another protocol":                   {say("HTTP/1.1 101 " + secret + "\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"), probe.ReasonStatus},
		"an answer as of HTTP/1.0":           {say("HTTP/1.0 200 OK\r\n\r\nhello"), probe.ReasonSucceeded},
		"a body that breaks off":             {say("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + secret), probe.ReasonFailed},
		"chunks that are none":               {say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + secret), probe.ReasonFailed},
		"another language":                   {say("SSH-2.0-" + secret + "\r\n"), probe.ReasonFailed},
		"a long line of another language":    {say(strings.Repeat(secret, 10000) + "\r\n"), probe.ReasonFailed},
		"a header that is none":              {say("HTTP/1.1 200 OK\r\n" + secret + "\r\n\r\n"), probe.ReasonFailed},
		"a status that is none":              {say("HTTP/1.1 " + secret + " OK\r\n\r\n"), probe.ReasonFailed},
		"headers without end":                {say("HTTP/1.1 200 OK\r\n" + strings.Repeat("X: "+secret+"\r\n", 100000)), probe.ReasonFailed},
		"nothing":                            {func(net.Conn) {}, probe.ReasonFailed},
		"half an answer":                     {say("HTTP/1.1 200 OK\r\nX-Secret: " + secret), probe.ReasonFailed},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := want(t, newProber(t, "http://"+answer(t, "127.0.0.1", tc.do)+"/", func(s *settings.Settings) {
				s.Headers = []settings.Header{{Name: "Authorization", Value: secret}}
			}), tc.reason)
			if strings.Contains(got.Detail, secret) {
				t.Errorf("the detail repeats what the server said: %q", got.Detail)
			}
		})
	}
	for name, header := range map[string]settings.Header{
		"a name that is none":         {Name: "A B", Value: secret},
		"a value with a control code": {Name: "A", Value: secret + "\x01"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, conns := serve(t, "127.0.0.1", &http.Server{})
			got := want(t, newProber(t, "http://"+addr, func(s *settings.Settings) { s.Headers = []settings.Header{header} }), probe.ReasonFailed)
			if strings.Contains(got.Detail, secret) {
				t.Errorf("the detail has the header: %q", got.Detail)
			}
			conns.wantClosed(t, 1)
		})
	}
}

func TestHTTPHangingServers(t *testing.T) {
	t.Parallel()
	hang := func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) } // until the client leaves
	tests := map[string]struct {
		do     func(net.Conn)
		scheme string
	}{
		"no answer":                 {hang, "http"},
		"no handshake":              {hang, "https"},
		"an answer without end":     {then(say("HTTP/1.1 200 OK\r\n"), hang), "http"},
		"a body that does not come": {then(say("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"), hang), "http"},
		"no answer by gRPC":         {hang, "grpc"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			left := make(chan struct{}, 1)
			addr := answer(t, "127.0.0.1", then(tc.do, func(net.Conn) { left <- struct{}{} }))
			want(t, newProber(t, tc.scheme+"://"+addr, timeout(short)), probe.ReasonTimeout)
			select {
			case <-left:
			case <-time.After(patience / 2):
				t.Error("the connection is kept after the time-out")
			}
		})
	}
}

func then(first, second func(net.Conn)) func(net.Conn) {
	return func(conn net.Conn) {
		first(conn)
		second(conn)
	}
}

// A kept connection would go on to an earlier run of the container.
func TestHTTPBigBodyIsLeft(t *testing.T) {
	t.Parallel()
	wrote := make(chan int, 1)
	addr, conns := serve(t, "127.0.0.1", &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		total := 0
		for total < 1<<30 {
			n, err := w.Write(make([]byte, 1<<16))
			if total += n; err != nil {
				break
			}
		}
		wrote <- total
	})})
	want(t, newProber(t, "http://"+addr), probe.ReasonSucceeded)
	if total := <-wrote; total >= 1<<30 {
		t.Error("the whole body was read")
	}
	conns.wantClosed(t, 1)
}

// A proxy of the pod's environment is for its main container; and nothing listens is told
// apart from no answer.
func TestRefused(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"http", "https", "tcp", "grpc"} {
		for _, host := range loopbacks {
			t.Run(scheme+" on "+host, func(t *testing.T) {
				t.Parallel()
				l := listen(t, host)
				_ = l.Close()
				want(t, newProber(t, scheme+"://"+l.Addr().String()), probe.ReasonRefused)
			})
		}
	}
}

// Without a host it is the pod's own address that counts, in brackets if need be.
func TestPodIP(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"http", "tcp"} {
		for host, podIP := range map[string]string{"127.0.0.1": "127.0.0.1", "::1": "::1", "localhost": ""} {
			t.Run(scheme+" on "+host, func(t *testing.T) {
				t.Parallel()
				addr, _ := serve(t, host, &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})})
				_, port, err := net.SplitHostPort(addr)
				if err != nil {
					t.Fatal(err)
				}
				want(t, newProber(t, scheme+"://:"+port, func(s *settings.Settings) { s.PodIP = podIP }), probe.ReasonSucceeded)
			})
		}
	}
}

// SIGTERM and --once end a probe before its time.
func TestProbeEndsWithItsContext(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{})
	addr := answer(t, "127.0.0.1", func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1))
		close(asked)
		_, _ = io.Copy(io.Discard, conn)
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	if got := newProber(t, "http://"+addr).Probe(ctx); got.OK {
		t.Errorf("got %+v", got)
	}
}
