package settings_test

import (
	"strings"
	"testing"

	"github.com/belay-dev/belay/sidecar/settings"
)

func TestParse(t *testing.T) {
	t.Parallel()
	type probe = settings.Probe
	tests := map[string]struct {
		text string
		want probe
		// again is the text it is written as; empty: text.
		again string
	}{
		"nothing is none":                  {text: "", want: probe{Kind: settings.KindNone}, again: "none"},
		"none":                             {text: "none", want: probe{Kind: settings.KindNone}},
		"a command":                        {text: "exec", want: probe{Kind: settings.KindExec}},
		"a probe that cannot be used":      {text: "unusable", want: probe{Kind: settings.KindUnusable}},
		"http with a port alone":           {text: "http://:8080", want: probe{Kind: settings.KindHTTP, Port: 8080}},
		"http with a path":                 {text: "http://:8080/healthz", want: probe{Kind: settings.KindHTTP, Port: 8080, Path: "/healthz"}},
		"http with a host":                 {text: "http://example.org:80/", want: probe{Kind: settings.KindHTTP, Host: "example.org", Port: 80, Path: "/"}},
		"http with an IPv4 host":           {text: "http://127.0.0.1:80/", want: probe{Kind: settings.KindHTTP, Host: "127.0.0.1", Port: 80, Path: "/"}},
		"http with an IPv6 host":           {text: "http://[::1]:80/", want: probe{Kind: settings.KindHTTP, Host: "::1", Port: 80, Path: "/"}},
		"an IPv6 host with a zone":         {text: "tcp://[fe80::1%eth0]:80", want: probe{Kind: settings.KindTCP, Host: "fe80::1%eth0", Port: 80}},
		"a query":                          {text: "http://:80/a?b=c&d=%20", want: probe{Kind: settings.KindHTTP, Port: 80, Path: "/a?b=c&d=%20"}},
		"a query without a path":           {text: "http://:80?b=c", want: probe{Kind: settings.KindHTTP, Port: 80, Path: "/?b=c"}, again: "http://:80/?b=c"},
		"a query that holds a URL":         {text: "http://:80/?to=http://x:1/", want: probe{Kind: settings.KindHTTP, Port: 80, Path: "/?to=http://x:1/"}},
		"an at sign in the path":           {text: "http://:80/@me", want: probe{Kind: settings.KindHTTP, Port: 80, Path: "/@me"}},
		"escapes that are none":            {text: "http://:80/100%", want: probe{Kind: settings.KindHTTP, Port: 80, Path: "/100%"}},
		"two slashes":                      {text: "http://:80//a", want: probe{Kind: settings.KindHTTP, Port: 80, Path: "//a"}},
		"letters of other scripts":         {text: "http://:80/здоров", want: probe{Kind: settings.KindHTTP, Port: 80, Path: "/здоров"}},
		"https":                            {text: "https://:8443/", want: probe{Kind: settings.KindHTTPS, Port: 8443, Path: "/"}},
		"tcp":                              {text: "tcp://:5432", want: probe{Kind: settings.KindTCP, Port: 5432}},
		"tcp with a slash":                 {text: "tcp://:5432/", want: probe{Kind: settings.KindTCP, Port: 5432}, again: "tcp://:5432"},
		"gRPC of the server":               {text: "grpc://:9000", want: probe{Kind: settings.KindGRPC, Port: 9000}},
		"gRPC of a service":                {text: "grpc://:9000/a.b.C", want: probe{Kind: settings.KindGRPC, Port: 9000, Path: "a.b.C"}},
		"gRPC of a service with a slash":   {text: "grpc://:9000/a/b", want: probe{Kind: settings.KindGRPC, Port: 9000, Path: "a/b"}},
		"a file":                           {text: "file:///shared/ready", want: probe{Kind: settings.KindFile, Path: "/shared/ready"}},
		"a file with a space and a query":  {text: "file:///a b?c#d", want: probe{Kind: settings.KindFile, Path: "/a b?c#d"}},
		"the first port":                   {text: "tcp://:1", want: probe{Kind: settings.KindTCP, Port: 1}},
		"the last port":                    {text: "tcp://:65535", want: probe{Kind: settings.KindTCP, Port: 65535}},
		"a path as long as is read at all": {text: "http://:80/" + strings.Repeat("a", 2048-11), want: probe{Kind: settings.KindHTTP, Port: 80, Path: "/" + strings.Repeat("a", 2048-11)}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := settings.Parse(tc.text)
			if err != nil || got != tc.want {
				t.Fatalf("got %+v, %v, want %+v", got, err, tc.want)
			}
			if tc.again == "" {
				tc.again = tc.text
			}
			if got := got.String(); got != tc.again {
				t.Errorf("is written as %q, want %q", got, tc.again)
			}
			if runs := strings.Contains(tc.again, ":"); got.Runs() != runs {
				t.Errorf("runs: %t", got.Runs())
			}
		})
	}
}

func TestParseFaults(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ text, want string }{
		"no scheme":                  {":8080/", `":8080/" has no scheme`},
		"an unknown scheme":          {"ftp://:21", `has an unknown scheme`},
		"a scheme in capitals":       {"HTTP://:80", `has an unknown scheme`},
		"none is not a scheme":       {"none://", `has an unknown scheme`},
		"no port":                    {"http://example.org/", `names no port`},
		"an empty port":              {"http://example.org:/", `has a port that is not from 1 to 65535`},
		"a named port":               {"http://:web/", `has a port that is not from 1 to 65535`},
		"port 0":                     {"tcp://:0", `has a port that is not from 1 to 65535`},
		"a port too high":            {"tcp://:65536", `has a port that is not from 1 to 65535`},
		"a negative port":            {"tcp://:-1", `has a port that is not from 1 to 65535`},
		"an IPv6 host without":       {"tcp://fd00::1:80", `names no port`},
		"brackets in the wrong spot": {"tcp://[fd00::1:80]", `names no port`},
		"a user":                     {"http://me@example.org:80/", `has a user in its host`},
		"a path for tcp":             {"tcp://:80/x", `has a path, which tcp has none of`},
		"a query for tcp":            {"tcp://:80?x", `has a path, which tcp has none of`},
		"a relative file":            {"file://ready", `names no file by an absolute path`},
		"a folder":                   {"file:///shared/", `names no file by an absolute path`},
		"no file":                    {"file://", `names no file by an absolute path`},
		"a line break":               {"http://:80/a\nb", `holds a control character`},
		"a zero byte":                {"file:///a\x00b", `holds a control character`},
		"a space around":             {" http://:80", `has an unknown scheme`},
		"too long":                   {"http://:80/" + strings.Repeat("a", 2048), `it has 2059 bytes, at most 2048 are read`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := settings.Parse(tc.text)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error with %s", err, tc.want)
			}
			if got != (settings.Probe{Kind: settings.KindNone}) {
				t.Errorf("got %+v beside the error", got)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"", "none", "exec", "unusable", "http://:8080/healthz?a=b", "https://[fd00::1%eth0]:8443/%zz#x", "tcp://:5432/",
		"grpc://:9000//a", "grpc://:9000?a", "file:///a b", "http://[::1]:080", "http://:80#f",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := settings.Parse(text)
		if err != nil {
			if p != (settings.Probe{Kind: settings.KindNone}) {
				t.Errorf("%q gave %+v beside %v", text, p, err)
			}
			return
		}
		if again, err := settings.Parse(p.String()); err != nil || again != p {
			t.Errorf("%q is %+v, written as %q, which is %+v, %v", text, p, p.String(), again, err)
		}
	})
}
