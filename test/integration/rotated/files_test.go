package rotated

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/belay-dev/belay/test/integration/stack"
)

// mount is a Secret's volume, written as the kubelet does: each version in a folder of its own,
// and a link that is swapped.
type mount struct {
	dir string
	n   int
}

func (m *mount) project(t testing.TB, cert, key []byte) {
	t.Helper()
	m.n++
	next := fmt.Sprintf("..v%d", m.n)
	must(t, os.Mkdir(filepath.Join(m.dir, next), 0o700))
	must(t, os.WriteFile(filepath.Join(m.dir, next, "tls.crt"), cert, 0o600))
	must(t, os.WriteFile(filepath.Join(m.dir, next, "tls.key"), key, 0o600))
	must(t, os.Symlink(next, filepath.Join(m.dir, "..new")))
	must(t, os.Rename(filepath.Join(m.dir, "..new"), filepath.Join(m.dir, "..data")))
	if m.n == 1 {
		must(t, os.Symlink("..data/tls.crt", filepath.Join(m.dir, "tls.crt")))
		must(t, os.Symlink("..data/tls.key", filepath.Join(m.dir, "tls.key")))
		return
	}
	must(t, os.RemoveAll(filepath.Join(m.dir, fmt.Sprintf("..v%d", m.n-1))))
}

// shows waits until a replica shows a certificate.
func shows(ctx context.Context, t testing.TB, p *stack.Process, cert []byte) time.Duration {
	t.Helper()
	began := time.Now()
	want := certificatesOf(cert)[0]
	stack.Eventually(ctx, t, "the certificate is served", func() error {
		for _, port := range []int{p.Port, p.CollectorPort} {
			c, err := shown(port)
			if err != nil {
				return err
			}
			if !c.Equal(want) {
				return fmt.Errorf("port %d shows another one", port)
			}
		}
		return nil
	})
	return time.Since(began)
}

// TestFiles: the certificate comes from a folder, as with cert-manager. T01, T03, T08, T10, T11.
func TestFiles(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	m := &mount{dir: t.TempDir()}
	p, err := shared.LaunchWith("", "--cert-dir="+m.dir)
	must(t, err)
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("%s:\n%s", p.Name, notable(p.Tail(1000)))
		}
	})
	// T11, T10: the folder is empty. It waits, alive, and is not ready.
	answers(ctx, t, p, "/livez", http.StatusOK, "")
	answers(ctx, t, p, "/readyz?verbose", http.StatusInternalServerError, "[-]certificate failed")
	for until := time.Now().Add(5 * time.Second); time.Now().Before(until); {
		select {
		case <-p.Done():
			t.Fatal("it has ended")
		case <-time.After(200 * time.Millisecond):
		}
		for path, want := range map[string]int{"/livez": http.StatusOK, "/readyz": http.StatusInternalServerError, "/readyz/listener": http.StatusInternalServerError} {
			if code, body, err := get(ctx, p, path); err != nil || code != want {
				t.Fatalf("%s: %d %s %v", path, code, body, err)
			}
		}
	}
	// A certificate that no registration trusts is served, and it is not ready.
	other := newPair(t)
	cert, key := other.leaf(t)
	m.project(t, cert, key)
	shows(ctx, t, p, cert)
	answers(ctx, t, p, "/readyz/listener", http.StatusOK, "")
	answers(ctx, t, p, "/readyz?verbose", http.StatusInternalServerError, "[-]certificate failed")
	// One that they trust.
	ca := signing(ctx, t)
	cert, key = ca.leaf(t)
	m.project(t, cert, key)
	shows(ctx, t, p, cert)
	answers(ctx, t, p, "/readyz", http.StatusOK, "")
	// T01, T03: each swap is seen, without a restart.
	var worst time.Duration
	for range 3 {
		cert, key = ca.leaf(t)
		m.project(t, cert, key)
		worst = max(worst, shows(ctx, t, p, cert))
	}
	counts(ctx, t, p, `belay_certificate_loads_total{reason="Read",result="ok"}`, "5")
	// T08: half of a pair, and the other one two seconds later.
	next, nextKey := ca.leaf(t)
	data := filepath.Join(m.dir, fmt.Sprintf("..v%d", m.n))
	must(t, os.WriteFile(filepath.Join(data, "tls.crt"), next, 0o600))
	counts(ctx, t, p, `belay_certificate_loads_total{reason="Mismatched",result="failed"}`, "1")
	for until := time.Now().Add(2 * time.Second); time.Now().Before(until); {
		shows(ctx, t, p, cert)
		answers(ctx, t, p, "/readyz", http.StatusOK, "")
	}
	must(t, os.WriteFile(filepath.Join(data, "tls.key"), nextKey, 0o600))
	shows(ctx, t, p, next)
	if got, want := metric(ctx, t, p, `belay_certificate_expiry_timestamp_seconds{certificate="leaf"}`), fmt.Sprint(float64(certificatesOf(next)[0].NotAfter.Unix())); got != want {
		t.Errorf("it expires at %s, want %s", got, want)
	}
	// T10: probes leak nothing.
	leaks(ctx, t, p)
	stack.Report(t, "files swapped as the kubelet does: served after %s at most", worst.Round(10*time.Millisecond))
}

// signing is the shared stack's CA.
func signing(ctx context.Context, t testing.TB) *pair {
	t.Helper()
	s := secretOf(ctx, t, shared)
	return readPair(t, s.Data["tls.crt"], s.Data["tls.key"])
}

// mayHoldOfBefore is how many objects may live on the heap after all probes, as a multiple of those
// that did before, which are some 35,000: three that each probe leaves behind are more.
const mayHoldOfBefore = 1.5

// leaks asks for /readyz 10,000 times.
func leaks(ctx context.Context, t testing.TB, p *stack.Process) {
	t.Helper()
	const probes = 10000
	state := func() (goroutines, files int) {
		goroutines, err := strconv.Atoi(metric(ctx, t, p, "go_goroutines"))
		must(t, err)
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Pid()))
		if err != nil {
			t.Skip("there is no /proc")
		}
		return goroutines, len(fds)
	}
	for range 1000 { // what is made once is there
		_, _, err := get(ctx, p, "/readyz")
		must(t, err)
	}
	goroutines, files := state()
	objects := alive(ctx, t, p)
	began := time.Now()
	for i := range probes {
		if code, body, err := get(ctx, p, "/readyz"); err != nil || code != http.StatusOK {
			t.Fatalf("probe %d: %d %s %v", i, code, body, err)
		}
	}
	took := time.Since(began)
	stack.Eventually(ctx, t, "nothing has leaked", func() error {
		g, f := state()
		if g > goroutines+10 || f > files+10 {
			return fmt.Errorf("goroutines %d, were %d; files %d, were %d", g, goroutines, f, files)
		}
		return nil
	})
	after := alive(ctx, t, p)
	stack.Report(t, "%d calls of /readyz in %s: goroutines and open files as before; %.0f objects lived on the heap before, %.0f after", probes, took.Round(time.Millisecond), objects, after)
	if after > mayHoldOfBefore*objects {
		t.Errorf("%.0f objects live on the heap after %d probes, and %.0f before: they leak", after, probes, objects)
	}
}

// alive is about how many objects live on the heap. What is counted holds garbage too, so it is
// the least count until the collector has run twice; reading it makes garbage enough for that.
func alive(ctx context.Context, t testing.TB, p *stack.Process) float64 {
	t.Helper()
	number := func(series string) float64 {
		v, err := strconv.ParseFloat(metric(ctx, t, p, series), 64)
		must(t, err)
		return v
	}
	least := math.Inf(1)
	for until := number("go_gc_duration_seconds_count") + 2; number("go_gc_duration_seconds_count") < until; {
		least = min(least, number("go_memstats_heap_objects"))
	}
	return least
}
