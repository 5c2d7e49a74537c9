package probe_test

import (
	"encoding/binary"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/belay-dev/belay/sidecar/probe"
	"github.com/belay-dev/belay/sidecar/settings"
)

// message puts gRPC's prefix before a message.
func message(flag byte, body string) string {
	return string(binary.BigEndian.AppendUint32([]byte{flag}, uint32(len(body)))) + body
}

// grpcAnswer answers as a gRPC server does: a status after the message, or, without one, in
// the headers.
func grpcAnswer(status, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		if body == "" {
			w.Header().Set("Grpc-Status", status)
			return
		}
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = io.WriteString(w, body)
		w.Header().Set("Grpc-Status", status)
	}
}

func h2c() *http.Protocols {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return p
}

func TestGRPC(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		handler http.HandlerFunc
		reason  string
	}{
		"serving":                           {grpcAnswer("0", message(0, "\x08\x01")), probe.ReasonSucceeded},
		"serving, and a field to come":      {grpcAnswer("0", message(0, "\x12\x03abc\x08\x01\x19\x01\x02\x03\x04\x05\x06\x07\x08\x25\x01\x02\x03\x04")), probe.ReasonSucceeded},
		"not serving":                       {grpcAnswer("0", message(0, "\x08\x02")), probe.ReasonNotServing},
		"unknown, as nothing was said":      {grpcAnswer("0", message(0, "")), probe.ReasonNotServing},
		"a service that is unknown":         {grpcAnswer("0", message(0, "\x08\x03")), probe.ReasonNotServing},
		"a status to come":                  {grpcAnswer("0", message(0, "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")), probe.ReasonNotServing},
		"no such service":                   {grpcAnswer("5", ""), probe.ReasonStatus},
		"no such method":                    {grpcAnswer("12", ""), probe.ReasonStatus},
		"serving, but the call failed":      {grpcAnswer("14", message(0, "\x08\x01")), probe.ReasonStatus},
		"no message, and yet all was well":  {grpcAnswer("0", ""), probe.ReasonFailed},
		"no status":                         {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, message(0, "\x08\x01")) }, probe.ReasonStatus},
		"a long status":                     {grpcAnswer(strings.Repeat("0", 10000), ""), probe.ReasonStatus},
		"a compressed message":              {grpcAnswer("0", message(1, "\x08\x01")), probe.ReasonFailed},
		"garbage":                           {grpcAnswer("0", "garbage"), probe.ReasonFailed},
		"garbage in a message":              {grpcAnswer("0", message(0, "\xff\xff")), probe.ReasonFailed},
		"two messages":                      {grpcAnswer("0", message(0, "\x08\x01")+message(0, "\x08\x01")), probe.ReasonFailed},
		"a message that breaks off":         {grpcAnswer("0", message(0, "\x08\x01")[:6]), probe.ReasonFailed},
		"a message longer than is read":     {grpcAnswer("0", message(0, "\x08\x01\x12\x80\x80\x01"+strings.Repeat("x", 1<<14))), probe.ReasonFailed},
		"an answer of a web server":         {http.NotFound, probe.ReasonStatus},
		"a stream that is reset in between": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, probe.ReasonFailed},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, conns := serve(t, "127.0.0.1", &http.Server{Protocols: h2c(), Handler: tc.handler})
			p := newProber(t, "grpc://"+addr+"/a.b.C")
			for range 2 {
				want(t, p, tc.reason)
			}
			conns.wantClosed(t, 2)
		})
	}
}

func TestGRPCRequest(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("s", 300)
	tests := map[string]struct{ service, want string }{
		"the server as a whole":            {"", message(0, "")},
		"a service":                        {"a.b.C", message(0, "\x0a\x05a.b.C")},
		"a service with a slash":           {"a/b", message(0, "\x0a\x03a/b")},
		"a service's name of many letters": {long, message(0, "\x0a\xac\x02"+long)},
	}
	for name, tc := range tests {
		for _, host := range loopbacks {
			t.Run(name+" on "+host, func(t *testing.T) {
				t.Parallel()
				addr, _ := serve(t, host, &http.Server{Protocols: h2c(), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					body, err := io.ReadAll(r.Body)
					if err != nil || string(body) != tc.want {
						t.Errorf("got the message %q, %v, want %q", body, err, tc.want)
					}
					if r.Method != http.MethodPost || r.RequestURI != "/grpc.health.v1.Health/Check" || r.Host != r.Context().Value(http.LocalAddrContextKey).(interface{ String() string }).String() {
						t.Errorf("got %s %s of %s", r.Method, r.RequestURI, r.Host)
					}
					for name, value := range map[string]string{"Content-Type": "application/grpc", "Te": "trailers", "User-Agent": "belay-sidecar/1", "Accept-Encoding": "", "X-Secret": ""} {
						if got := r.Header.Get(name); got != value {
							t.Errorf("header %s is %q, want %q", name, got, value)
						}
					}
					grpcAnswer("0", message(0, "\x08\x01"))(w, r)
				})})
				want(t, newProber(t, "grpc://"+addr+"/"+tc.service, func(s *settings.Settings) {
					s.Headers = []settings.Header{{Name: "X-Secret", Value: "only for HTTP"}}
				}), probe.ReasonSucceeded)
			})
		}
	}
}

func TestGRPCOfOtherServers(t *testing.T) {
	t.Parallel()
	only1 := new(http.Protocols)
	only1.SetHTTP1(true)
	tests := map[string]func(t *testing.T) string{
		"a server of HTTP/1.1": func(t *testing.T) string {
			addr, _ := serve(t, "127.0.0.1", &http.Server{Protocols: only1})
			return addr
		},
		"a server with TLS": func(t *testing.T) string {
			addr, _ := serve(t, "127.0.0.1", &http.Server{TLSConfig: otherNames(t)})
			return addr
		},
		"a server of another language": func(t *testing.T) string { return answer(t, "127.0.0.1", say("SSH-2.0-5ecret\r\n")) },
		"a server that leaves":         func(t *testing.T) string { return answer(t, "127.0.0.1", say("")) },
	}
	for name, start := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := want(t, newProber(t, "grpc://"+start(t)), probe.ReasonFailed); strings.Contains(got.Detail, "5ecret") {
				t.Errorf("the detail repeats what the server said: %q", got.Detail)
			}
		})
	}
}
