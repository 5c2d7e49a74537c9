package app

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/inject"
)

// sidecars parses flags of sidecars.
func sidecars(t *testing.T, args ...string) (*sidecarOptions, error) {
	t.Helper()
	o := &sidecarOptions{}
	fs := pflag.NewFlagSet("x", pflag.ContinueOnError)
	o.add(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return o, o.complete("belay-system")
}

func TestWhatSidecarsAreTold(t *testing.T) {
	t.Parallel()
	usual := inject.Config{
		Image: "ghcr.io/belay-dev/belay-sidecar:latest", Collector: "belay-webhook.belay-system.svc:9444", ServerName: "belay-webhook.belay-system.svc",
		CPU: "20m", Memory: "32Mi", EphemeralStorage: "16Mi",
	}
	for name, c := range map[string]struct {
		args []string
		want func(*inject.Config)
	}{
		"nothing is said":                       {nil, func(*inject.Config) {}},
		"the name in the certificate stays":     {[]string{"--collector-address=belay.example:443"}, func(c *inject.Config) { c.Collector = "belay.example:443" }},
		"an address of IPv6":                    {[]string{"--collector-address=[fd00::1]:9444"}, func(c *inject.Config) { c.Collector = "[fd00::1]:9444" }},
		"quantities as the API server has them": {[]string{"--sidecar-cpu=0.5", "--sidecar-memory=0.5Gi", "--sidecar-ephemeral-storage=1e6"}, func(c *inject.Config) { c.CPU, c.Memory, c.EphemeralStorage = "500m", "512Mi", "1e6" }},
		"CPU is rounded up, as there":           {[]string{"--sidecar-cpu=0.5m"}, func(c *inject.Config) { c.CPU = "1m" }},
		"an image by its digest":                {[]string{"--sidecar-image=registry.example:5000/belay-sidecar@sha256:00"}, func(c *inject.Config) { c.Image = "registry.example:5000/belay-sidecar@sha256:00" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, err := sidecars(t, c.args...)
			if err != nil {
				t.Fatal(err)
			}
			want := usual
			c.want(&want)
			if diff := cmp.Diff(want, o.config([]string{"belay-webhook.belay-system.svc", "other"})); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestWhereTheCAComesFrom: until it is known that every kubelet can mount the other, it is the
// ConfigMap.
func TestWhereTheCAComesFrom(t *testing.T) {
	t.Parallel()
	for flag, want := range map[string]inject.CASource{"auto": inject.CAConfigMap, "ConfigMap": inject.CAConfigMap, "ClusterTrustBundle": inject.CAClusterTrustBundle} {
		o, err := sidecars(t, "--sidecar-ca="+flag)
		if err != nil {
			t.Fatal(err)
		}
		if got := o.source(&facts.Bundles{})(); got != want {
			t.Errorf("%s: %s", flag, got)
		}
	}
}

func TestTheCollectorsServer(t *testing.T) {
	t.Parallel()
	none := errors.New("no certificate yet")
	ready := httptest.NewUnstartedServer(nil)
	ready.StartTLS()
	defer ready.Close()
	served := ready.TLS.Certificates[0]
	for name, c := range map[string]string{"one interface": "127.0.0.1:0", "all interfaces": ":0", "all of IPv4": "0.0.0.0:0"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var has atomic.Bool
			s, err := listenCollector(c, func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
				if !has.Load() {
					return nil, none
				}
				return &served, nil
			}, http.NotFoundHandler(), logr.Discard())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- s.run(ctx) }()
			if state, err := dialed(s); err == nil {
				t.Errorf("it answers without a certificate: %+v", state)
			}
			has.Store(true)
			state, err := dialed(s)
			if err != nil || state.NegotiatedProtocol != "http/1.1" {
				t.Errorf("%v %q", err, state.NegotiatedProtocol)
			}
			if err := s.check(nil); err != nil {
				t.Error(err)
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if err := s.check(nil); err == nil {
				t.Error("it runs though it has ended")
			}
		})
	}
}

// dialed makes a TLS connection to a collector.
func dialed(s *server) (tls.ConnectionState, error) {
	_, port, err := net.SplitHostPort(s.listener.Addr().String())
	if err != nil {
		return tls.ConnectionState{}, err
	}
	conn, err := tls.Dial("tcp", "127.0.0.1:"+port, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer func() { _ = conn.Close() }()
	return conn.ConnectionState(), nil
}

// crowded is a crowd of so many places, to which clients come.
func crowded(t *testing.T, most int) (c *crowd, come func() (client net.Conn, g *guest)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c = newCrowd(l, most)
	t.Cleanup(func() { _ = c.Close() })
	return c, func() (client net.Conn, g *guest) {
		t.Helper()
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		conn, err := c.Accept()
		if err != nil {
			t.Fatal(err)
		}
		g, ok := guestOf(conn)
		if !ok {
			t.Fatalf("%T", conn)
		}
		return client, g
	}
}

// TestACrowdedCollector: whoever comes on top takes the place of a stranger, else of one that
// waits for nothing, and last of the oldest; never is the new one turned away.
func TestACrowdedCollector(t *testing.T) {
	t.Parallel()
	c, come := crowded(t, 3)
	gone := func(client net.Conn) bool {
		_ = client.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, err := client.Read(make([]byte, 1))
		return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
	}
	busy, g1 := come()
	idle, g2 := come()
	stranger, _ := come()
	g1.trust("a")
	g2.trust("b")
	states(g2, http.StateIdle)
	next, g4 := come()
	if !gone(stranger) || gone(busy) || gone(idle) || gone(next) {
		t.Error("a stranger should have left")
	}
	g4.trust("c")
	last, g5 := come()
	if !gone(idle) || gone(busy) || gone(next) || gone(last) {
		t.Error("the idle one should have left")
	}
	g5.trust("d")
	_, g6 := come()
	if !gone(busy) || gone(next) || gone(last) {
		t.Error("the oldest should have left")
	}
	if err := g6.Close(); err != nil || c.guests.Len() != 2 {
		t.Errorf("%v, %d are there", err, c.guests.Len())
	}
	_ = g6.Close() // once more, as servers do
	mine, g7 := come()
	if gone(next) || gone(last) || c.guests.Len() != 3 {
		t.Error("somebody has left although there was room")
	}
	// More than three quarters are trusted: an idle one leaves, so that strangers find a place.
	g7.trust("e")
	states(g4, http.StateIdle)
	come()
	if gone(mine) || !gone(next) || gone(last) {
		t.Error("an idle one should have left")
	}
	// A third connection with one Pod's token takes the place of the first.
	c.most = 10
	second, g9 := come()
	g9.trust("d")
	third, g10 := come()
	g10.trust("d")
	if !gone(last) || gone(second) || gone(third) || gone(mine) {
		t.Error("the first one with this token should have left")
	}
}

func TestACollectorWhoseListenerBreaks(t *testing.T) {
	t.Parallel()
	s, err := listenCollector("127.0.0.1:0", func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, errors.New("none") }, http.NotFoundHandler(), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.run(t.Context()) }()
	_ = s.listener.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
