package health

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
)

// serve runs a server until the test ends, and returns its address.
func serve(t *testing.T, address string, live, ready map[string]healthz.Checker) string {
	t.Helper()
	s, err := Listen(address, live, ready)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("at its end: %v", err)
		}
	})
	return s.listener.Addr().String()
}

// get asks, and returns the code and the body.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestProbes(t *testing.T) {
	t.Parallel()
	synced := &Flag{Missing: "the caches are not synced yet"}
	set := &Flag{Missing: "never"}
	set.Set()
	if !set.IsSet() || synced.IsSet() {
		t.Fatal("a flag is not what it was set to")
	}
	address := serve(t, "127.0.0.1:0",
		map[string]healthz.Checker{"core": healthz.Ping},
		map[string]healthz.Checker{"live": healthz.Ping, "caches-synced": synced.Check, "policies-compiled": set.Check})
	for name, c := range map[string]struct {
		path string
		code int
		body string
	}{
		"alive":                           {"/livez", 200, "ok"},
		"alive, with a slash":             {"/livez/", 200, "ok"},
		"alive, verbose":                  {"/livez?verbose", 200, "[+]core ok\nhealthz check passed\n"},
		"one check of the live ones":      {"/livez/core", 200, "ok"},
		"not ready says which check":      {"/readyz", 500, "[-]caches-synced failed: reason withheld\n[+]live ok\n[+]policies-compiled ok\nhealthz check failed\n"},
		"not ready, verbose":              {"/readyz?verbose", 500, "[-]caches-synced failed: reason withheld\n[+]live ok\n[+]policies-compiled ok\nhealthz check failed\n"},
		"one check that passes":           {"/readyz/policies-compiled", 200, "ok"},
		"one check says why it fails":     {"/readyz/caches-synced", 500, "internal server error: the caches are not synced yet\n"},
		"a check that is not there":       {"/readyz/certificate", 404, "404 page not found\n"},
		"a check of the other probe":      {"/livez/caches-synced", 404, "404 page not found\n"},
		"another path":                    {"/healthz", 404, "404 page not found\n"},
		"a path that begins like one":     {"/livezz", 404, "404 page not found\n"},
		"the root":                        {"/", 404, "404 page not found\n"},
		"nothing of the process is shown": {"/debug/pprof/", 404, "404 page not found\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, body := get(t, "http://"+address+c.path)
			if diff := cmp.Diff(c.body, body); code != c.code || diff != "" {
				t.Errorf("%d (-want +got)\n%s", code, diff)
			}
		})
	}
}

func TestProbesThatAreTurnedOff(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"0", ""} {
		if s, err := Listen(address, nil, nil); s != nil || err != nil {
			t.Errorf("%q: %v %v", address, s, err)
		}
	}
}

func TestAnAddressThatCannotBeListenedOn(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for name, c := range map[string]struct{ address, want string }{
		"one that is taken":   {l.Addr().String(), "address already in use"},
		"one without a port":  {"localhost", "missing port in address"},
		"one of another host": {"192.0.2.1:0", "cannot assign requested address"},
	} {
		s, err := Listen(c.address, nil, nil)
		if s != nil || err == nil || !strings.HasPrefix(err.Error(), "listening for probes: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v %v", name, s, err)
		}
	}
}

func TestP13_ProbesAreReachedOverBothFamilies(t *testing.T) {
	t.Parallel()
	live := map[string]healthz.Checker{"core": healthz.Ping}
	_, port, err := net.SplitHostPort(serve(t, ":0", live, nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"127.0.0.1", "::1"} {
		if l, err := net.Listen("tcp", net.JoinHostPort(host, "0")); err != nil {
			t.Logf("no loopback interface of this family here: %v", err)
			continue
		} else {
			_ = l.Close()
		}
		for _, address := range []string{net.JoinHostPort(host, port), serve(t, net.JoinHostPort(host, "0"), live, nil)} {
			if code, body := get(t, "http://"+address+LivePath); code != http.StatusOK || body != "ok" {
				t.Errorf("%s: %d %s", address, code, body)
			}
		}
	}
}

func TestASlowClientDoesNotKeepItsConnection(t *testing.T) {
	t.Parallel()
	s, err := Listen("127.0.0.1:0", map[string]healthz.Checker{"core": healthz.Ping}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, d := range map[string]time.Duration{
		"header": s.http.ReadHeaderTimeout, "read": s.http.ReadTimeout, "write": s.http.WriteTimeout, "idle": s.http.IdleTimeout,
	} {
		if d <= 0 || d > time.Minute {
			t.Errorf("%s: %s", name, d)
		}
	}
	// The same with a bound that a test can wait for.
	s.http.ReadHeaderTimeout, s.http.ReadTimeout = 100*time.Millisecond, 100*time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	slow, err := net.Dial("tcp", s.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = slow.Close() }()
	if _, err := io.WriteString(slow, "GET /livez HTTP/1.1\r\nHost: x\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := slow.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, slow); err != nil {
		t.Errorf("the connection is still open: %v", err)
	}
	if code, _ := get(t, "http://"+s.listener.Addr().String()+LivePath); code != http.StatusOK {
		t.Errorf("others get %d", code)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestALargeHeaderIsRefused(t *testing.T) {
	t.Parallel()
	address := serve(t, "127.0.0.1:0", map[string]healthz.Checker{"core": healthz.Ping}, nil)
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	go func() {
		_, _ = fmt.Fprintf(conn, "GET /livez HTTP/1.1\r\nHost: x\r\nX: %s\r\n\r\n", strings.Repeat("x", 64<<10))
	}()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Error(resp.Status)
	}
}

func TestAListenerThatBreaksIsTold(t *testing.T) {
	t.Parallel()
	s, err := Listen("127.0.0.1:0", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Run(t.Context()) }()
	if err := s.listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

func TestProbesEndAtOnceThoughOneIsUnderWay(t *testing.T) {
	t.Parallel()
	asked, last := make(chan struct{}), make(chan struct{})
	defer close(last)
	s, err := Listen("127.0.0.1:0", nil, map[string]healthz.Checker{"slow": func(*http.Request) error { close(asked); <-last; return nil }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	go func() { _, _ = http.Get("http://" + s.listener.Addr().String() + ReadyPath) }() //nolint:noctx // cut off
	<-asked
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("it waits for a probe")
	}
}

// TestOneWhoHangsUpSpoilsNothing: what is found is for all who ask.
func TestOneWhoHangsUpSpoilsNothing(t *testing.T) {
	t.Parallel()
	looked := 0
	check := Remembered(func(r *http.Request) error {
		looked++
		return r.Context().Err()
	}, time.Hour)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, ctx := range []context.Context{gone, t.Context()} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/readyz/listener", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if err := check(req); err != nil {
			t.Errorf("%v, from one who asks and hangs up", err)
		}
	}
	if looked != 1 {
		t.Errorf("it was looked for %d times", looked)
	}
}
