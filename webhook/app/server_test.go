package app

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"github.com/belay-dev/belay/webhook/internal/admission"
)

// admissionOn makes an admission server on a free address, with a certificate that nobody
// verifies.
func admissionOn(t *testing.T, http2 bool, clients *x509.CertPool) *admissionServer {
	t.Helper()
	other := httptest.NewUnstartedServer(nil)
	other.StartTLS()
	defer other.Close()
	served := other.TLS.Certificates[0]
	config := tlsConfig(clients, func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &served, nil })
	return newAdmissionServer(freeAddress(t), http2, config, logr.Discard())
}

// started starts it until the test ends, and waits until it answers.
func (s *admissionServer) started(t *testing.T) {
	t.Helper()
	ctx, ended := t.Context(), make(chan error, 1) // it ends before cleanups
	go func() { ended <- s.Start(ctx) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	s.answers(t)
}

// answers waits until it answers, as its check says.
func (s *admissionServer) answers(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody)
	for {
		err := s.StartedChecker()(r)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// hasAnswered has a client's connection stand as by a review that was answered, and returns how many
// there are.
func (s *admissionServer) hasAnswered(client net.Conn) int {
	c := s.runs.Load().listener
	c.mu.Lock()
	defer c.mu.Unlock()
	for e := c.guests.Front(); e != nil; e = e.Next() {
		if g, ok := e.Value.(*guest); ok && g.RemoteAddr().String() == client.LocalAddr().String() {
			g.trusted = "answered"
		}
	}
	return c.guests.Len()
}

func anyServer() *tls.Config { return &tls.Config{InsecureSkipVerify: true} }

// callers makes a client.
func callers(t *testing.T, http2 bool) *http.Client {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: anyServer(), ForceAttemptHTTP2: http2}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 30 * time.Second}
}

// TestWhatIsUnderWayAtTheEndOfADrain gets its answer, and is not cancelled when the manager ends.
func TestWhatIsUnderWayAtTheEndOfADrain(t *testing.T) {
	t.Parallel()
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := admissionOn(t, http2, nil)
			o := &webhookOptions{}
			o.metricsAddr = "0"
			mgr, err := o.manager(&rest.Config{Host: "https://127.0.0.1:1"}, logr.Discard(), s)
			if err != nil {
				t.Fatal(err)
			}
			signal, send := context.WithCancel(t.Context())
			defer send()
			c := newCore(signal, logr.Discard(), 0)
			entered := make(chan struct{})
			mgr.GetWebhookServer().Register("/x", c.closing(admission.NewBodies().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				close(entered)
				select {
				case <-r.Context().Done():
					http.Error(w, r.Context().Err().Error(), http.StatusServiceUnavailable)
				case <-time.After(time.Second):
				}
			}))))
			ended := make(chan error, 1)
			go func() { ended <- c.run("x", "0", nil, mgr, nil) }()
			s.answers(t)
			go func() {
				<-entered
				send()
			}()
			resp, err := callers(t, http2).Post("https://"+s.address+"/x?timeout=5s", "application/json", strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK || (resp.ProtoMajor == 2) != http2 {
				t.Errorf("%s %s %s", resp.Proto, resp.Status, body)
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if err := s.StartedChecker()(httptest.NewRequest(http.MethodGet, "/", http.NoBody)); err == nil {
				t.Error("it answers though it has ended")
			}
		})
	}
}

// late is a connection whose reader can be kept from hearing anything, as by a machine with too
// much to do.
type late struct {
	net.Conn
	deaf sync.Mutex
}

func (l *late) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	l.deaf.Lock()
	defer l.deaf.Unlock()
	return n, err
}

// TestACallerThatHearsOfTheEndLate writes to a connection whose server has said that it leaves,
// and has left: it must still hear that, and call another replica.
func TestACallerThatHearsOfTheEndLate(t *testing.T) {
	t.Parallel()
	leaves, stays := admissionOn(t, true, nil), admissionOn(t, true, nil)
	for _, s := range []*admissionServer{leaves, stays} {
		s.Register("/x", admission.NewBodies().Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s.address) })))
	}
	stays.started(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- leaves.Start(ctx) }()
	leaves.answers(t)

	addresses, conns := make(chan string, 2), make(chan *late, 2)
	addresses <- leaves.address
	addresses <- stays.address
	tr := &http.Transport{TLSClientConfig: anyServer(), ForceAttemptHTTP2: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, <-addresses)
		if err != nil {
			return nil, err
		}
		l := &late{Conn: conn}
		conns <- l
		return l, nil
	}}
	defer tr.CloseIdleConnections()
	call := func() (string, error) {
		// Longer than what is written at once.
		resp, err := (&http.Client{Transport: tr, Timeout: 30 * time.Second}).Post("https://"+leaves.address+"/x?timeout=5s", "application/json", strings.NewReader("{}"+strings.Repeat(" ", 48<<10)))
		if err != nil {
			return "", err
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		return string(body), err
	}
	if by, err := call(); by != leaves.address {
		t.Fatalf("answered by %q, %v", by, err)
	}
	first := <-conns
	leaves.hasAnswered(first)
	first.deaf.Lock()
	cancel()
	<-time.After(3 * time.Second / 2) // net/http closes a connection a second after its GOAWAY
	type answer struct {
		by  string
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		by, err := call()
		answered <- answer{by, err}
	}()
	<-time.After(300 * time.Millisecond)
	first.deaf.Unlock()
	if a := <-answered; a.by != stays.address {
		t.Errorf("answered by %q, %v", a.by, a.err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestAConnectionThatLingers keeps its place until its client goes, others need it, or its time is
// over; what its client writes meanwhile breaks nothing. A stranger's does not linger.
func TestAConnectionThatLingers(t *testing.T) {
	t.Parallel()
	c, come := crowded(t, 2)
	c.lingers = time.Hour
	closes := func(g *guest) {
		t.Helper()
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		if err := g.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("closed twice: %v", err)
		}
	}
	there := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.guests.Len()
	}
	answered := func() (net.Conn, *guest) {
		client, g := come()
		g.set(func(g *guest) { g.trusted = "answered" })
		return client, g
	}
	_, stranger := come()
	closes(stranger)
	if n := there(); n != 0 {
		t.Errorf("a stranger lingers: %d", n)
	}
	client, g := answered()
	closes(g)
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the client reads %v", err)
	}
	for range 3 {
		if _, err := client.Write([]byte("x")); err != nil {
			t.Errorf("the client writes: %v", err)
		}
	}
	if n := there(); n != 1 {
		t.Errorf("%d are there while it lingers", n)
	}
	_ = client.Close()
	c.lingering.Wait()
	if n := there(); n != 0 {
		t.Errorf("%d are there when its client has gone", n)
	}
	// One that lingers makes room, and none that lives, whatever that has shown.
	for _, live := range []func() (net.Conn, *guest){come, answered} {
		_, kept := live()
		_, g := answered()
		closes(g)
		_, newcomer := come()
		c.lingering.Wait()
		if kept.at == nil || newcomer.at == nil {
			t.Error("one that lives has made room for one that lingers")
		}
		for _, g := range []*guest{kept, newcomer} {
			_ = g.gone()
		}
	}
	c.lingers = time.Millisecond
	_, g = answered()
	closes(g)
	c.lingering.Wait()
	c.lingers = time.Hour
	c.left()
	_, g = answered()
	closes(g)
	if n := there(); n != 0 {
		t.Errorf("%d are there after the last one has left", n)
	}
}

// TestACallerThatGoesOnAfterTheEnd sends another request over HTTP/1.1 and stays, after its idle
// connection was closed: net/http, which reads still, takes all deadlines away.
func TestACallerThatGoesOnAfterTheEnd(t *testing.T) {
	t.Parallel()
	s := admissionOn(t, false, nil)
	s.Register("/x", admission.NewBodies().Handler(http.NotFoundHandler()))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Start(ctx) }()
	s.answers(t)
	conn, err := tls.Dial("tcp", s.address, anyServer())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	call := func() {
		t.Helper()
		if _, err := io.WriteString(conn, "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"); err != nil {
			t.Fatal(err)
		}
	}
	call()
	answer := bufio.NewReader(conn)
	resp, err := http.ReadResponse(answer, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	s.hasAnswered(conn)
	cancel()
	if _, err := answer.ReadByte(); !errors.Is(err, io.EOF) {
		t.Fatalf("the client reads %v", err)
	}
	call()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(4 * lingers):
		t.Error("the end waits for a client")
	}
}

// TestACrowdOfOnePeer: whoever has most of the places makes room, whatever his connections have
// shown, and a peer that has few keeps them.
func TestACrowdOfOnePeer(t *testing.T) {
	t.Parallel()
	if l, err := net.Listen("tcp", "127.0.0.2:0"); err != nil {
		t.Skipf("no second address on this machine: %v", err)
	} else if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s := admissionOn(t, true, nil)
	s.Register("/x", admission.NewBodies().Handler(http.NotFoundHandler()))
	s.started(t)
	client := callers(t, true)
	kept := func() (reused bool) {
		t.Helper()
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }})
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+s.address+"/x", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		return reused
	}
	kept()
	stranger := &tls.Dialer{NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}, Config: anyServer()}
	for range rush + 20 {
		conn, err := stranger.DialContext(t.Context(), "tcp", s.address)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		// What an API server's connection has shown, too.
		if n := s.hasAnswered(conn); n > rush {
			t.Errorf("%d connections", n)
		}
	}
	if !kept() {
		t.Error("the connection of a peer that has one was closed")
	}
}

// TestAnAnsweredConnectionStays where strangers come from the same address.
func TestAnAnsweredConnectionStays(t *testing.T) {
	t.Parallel()
	c, come := crowded(t, 4)
	c.share = true
	_, first := come()
	first.set(func(g *guest) { g.trusted = "answered" })
	for range 8 {
		come()
	}
	if first.at == nil || c.guests.Len() != 4 || len(c.peers) != 1 {
		t.Errorf("%v, %d connections, peers %v", first.at, c.guests.Len(), c.peers)
	}
	for e := c.guests.Front(); e != nil; e = c.guests.Front() {
		if g, ok := e.Value.(*guest); ok {
			_ = g.Close()
		}
	}
	if len(c.peers) != 0 {
		t.Errorf("%v are counted though nobody is there", c.peers)
	}
}

// TestTheAdmissionServersBounds: calls of a connection, headers and their time.
func TestTheAdmissionServersBounds(t *testing.T) {
	t.Parallel()
	s := admissionOn(t, true, nil)
	entered, leave := make(chan struct{}, 2*maxStreams), make(chan struct{})
	s.Register("/x", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		entered <- struct{}{}
		<-leave
	}))
	s.Register("/y", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.started(t)
	client := callers(t, true)
	get := func(path string, header http.Header) (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+s.address+path, http.NoBody)
		if err != nil {
			return nil, err
		}
		req.Header = header
		resp, err := client.Do(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		return resp, err
	}
	if resp, err := get("/y", nil); err != nil || resp.ProtoMajor != 2 {
		t.Fatal(resp, err)
	}
	var calls sync.WaitGroup
	for range maxStreams + 1 {
		calls.Go(func() {
			if _, err := get("/x", nil); err != nil {
				t.Error(err)
			}
		})
	}
	for range maxStreams + 1 {
		<-entered
	}
	c := s.runs.Load().listener
	c.mu.Lock()
	n := c.guests.Len()
	c.mu.Unlock()
	if n != 2 {
		t.Errorf("%d calls at once over %d connections", maxStreams+1, n)
	}
	close(leave)
	calls.Wait()
	if resp, err := get("/y", http.Header{"X": {strings.Repeat("x", 64<<10)}}); err == nil && resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a header of 64 KiB: %s", resp.Status)
	}
	conn, err := tls.Dial("tcp", s.address, anyServer())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprint(conn, "POST /y HTTP/1.1\r\nHost: x\r\n"); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := bufio.NewReader(conn).ReadByte(); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("a header that does not end: %v", err)
	}
}

// TestABurst: hundreds of calls at once, from one API server by several entries, are all answered.
func TestABurst(t *testing.T) {
	t.Parallel()
	s := admissionOn(t, true, nil)
	s.Register("/x", admission.NewBodies().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-time.After(50 * time.Millisecond)
	})))
	s.started(t)
	var calls sync.WaitGroup
	for range 4 { // entries have clients of their own
		client := callers(t, true)
		for range 100 {
			calls.Go(func() {
				resp, err := client.Post("https://"+s.address+"/x?timeout=10s", "application/json", strings.NewReader("{}"))
				if err != nil {
					t.Error(err)
					return
				}
				_ = resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					t.Error(resp.Status)
				}
			})
		}
	}
	calls.Wait()
}

// TestLargeReviewsOfOneConnection: there is not room for all of them. None is cut off; who may not
// wait is told to come again, and a small one beside them does not wait. It is alone: a review of
// which nothing comes for half a second is sent away, and here the senders compute.
func TestLargeReviewsOfOneConnection(t *testing.T) {
	s := admissionOn(t, true, nil)
	s.Register("/x", admission.NewBodies().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_ = r.Body.Close()
		<-time.After(20 * time.Millisecond)
	})))
	s.started(t)
	client := callers(t, true)
	post := func(size int) int {
		resp, err := client.Post("https://"+s.address+"/x?timeout=10s", "application/json", strings.NewReader(strings.Repeat("x", size)))
		if err != nil {
			t.Error(err)
			return 0
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	if code := post(10); code != http.StatusOK {
		t.Fatal(code)
	}
	var calls sync.WaitGroup
	var done, putOff atomic.Int64
	for range 16 {
		calls.Go(func() {
			switch code := post(3 << 20); code {
			case http.StatusOK:
				done.Add(1)
			case http.StatusServiceUnavailable:
				putOff.Add(1)
			default:
				t.Errorf("a large review is answered %d", code)
			}
		})
	}
	for range 5 {
		if code := post(4 << 10); code != http.StatusOK {
			t.Errorf("a small one is answered %d", code)
		}
	}
	calls.Wait()
	if done.Load() < 5 {
		t.Errorf("%d of 16 were answered, %d put off", done.Load(), putOff.Load())
	}
}

// TestATooLargeReviewLeavesTheConnection to the other calls of its API server, which share it.
func TestATooLargeReviewLeavesTheConnection(t *testing.T) {
	t.Parallel()
	s := admissionOn(t, true, nil)
	s.Register("/x", admission.NewBodies().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > 10 {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
		}
	})))
	s.started(t)
	client := callers(t, true)
	for i, size := range []int{1, 8 << 20, 1, 8 << 20, 1} {
		var conn httptrace.GotConnInfo
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { conn = info }})
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+s.address+"/x?timeout=10s", strings.NewReader(strings.Repeat("x", size)))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if want := map[bool]int{true: http.StatusOK, false: http.StatusRequestEntityTooLarge}[size == 1]; resp.StatusCode != want {
			t.Errorf("%d bytes are answered %d, want %d", size, resp.StatusCode, want)
		}
		if conn.Reused != (i > 0) {
			t.Errorf("call %d: a new connection: %t", i, !conn.Reused)
		}
	}
}

// TestCallersHaveToShowACertificate: the check of the server itself does not need one.
func TestCallersHaveToShowACertificate(t *testing.T) {
	t.Parallel()
	s := admissionOn(t, false, x509.NewCertPool())
	s.Register("/x", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	if err := s.StartedChecker()(httptest.NewRequest(http.MethodGet, "/", http.NoBody)); err == nil {
		t.Error("it answers before it has been started")
	}
	s.started(t)
	if resp, err := callers(t, true).Get("https://" + s.address + "/x"); err == nil {
		t.Errorf("without a certificate: %s", resp.Status)
	}
}

func TestAnAddressThatIsTaken(t *testing.T) {
	t.Parallel()
	s := admissionOn(t, true, nil)
	l, err := net.Listen("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if err := s.Start(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "listening for reviews: ") {
		t.Error(err)
	}
}
