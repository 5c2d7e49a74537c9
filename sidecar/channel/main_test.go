//go:build linux

package channel_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/belay-dev/belay/sidecar/channel"
)

// serveAt and serveHTTP2 make the test binary a server, which can be killed and
// frozen as no part of the test's own process can.
const (
	serveAt    = "BELAY_TEST_SERVE_AT"
	serveHTTP2 = "BELAY_TEST_SERVE_HTTP2"
)

// Headers of the answers of such a server.
const (
	pidHeader    = "Pid"
	openedHeader = "Connections-Opened"
)

// What such a server says on standard output, a word a line.
const (
	saysServing = "serving" // and its address and certificate
	saysHolding = "holding" // a request, for good
	saysClosed  = "closed"  // a connection
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(serveAt); addr != "" {
		fmt.Fprintln(os.Stderr, serve(addr, os.Getenv(serveHTTP2) == "true"))
		os.Exit(1)
	}
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		// Most tests wait for a bound, and not for a processor.
		if err := f.Value.Set("8"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// serve ends with the process only, save for an error.
func serve(addr string, http2 bool) error {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	say := func(words ...any) { _, _ = fmt.Fprintln(os.Stdout, words...) }
	var opened atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			say(saysHolding)
			select {}
		}
		w.Header().Set(pidHeader, strconv.Itoa(os.Getpid()))
		w.Header().Set(openedHeader, strconv.Itoa(int(opened.Load())))
	}))
	_ = s.Listener.Close()
	s.Listener = listener
	s.EnableHTTP2 = http2
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			opened.Add(1)
		case http.StateClosed:
			say(saysClosed)
		}
	}
	s.StartTLS()
	say(saysServing, listener.Addr(), base64.StdEncoding.EncodeToString(s.Certificate().Raw))
	select {}
}

// process is an HTTPS server in a process of its own.
type process struct {
	addr, url string
	pid       int
	cert      *x509.Certificate
	end       func()
	said      map[string]chan struct{} // a value for each time
}

// ownAddress is a loopback address that no client takes a port of, so that a
// server can come back to its port.
const ownAddress = "127.0.0.2:0"

func startProcess(t *testing.T, addr string, http2 bool) *process {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), serveAt+"="+addr, serveHTTP2+"="+strconv.FormatBool(http2))
	cmd.Stderr = os.Stderr
	// A frozen process would outlive a test that panics or runs into its time-out.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{pid: cmd.Process.Pid, said: map[string]chan struct{}{
		saysHolding: make(chan struct{}, 100),
		saysClosed:  make(chan struct{}, 100),
	}}
	serving, read := make(chan []string, 1), make(chan struct{})
	go func() {
		defer close(read)
		defer close(serving)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if words := strings.Fields(lines.Text()); words[0] == saysServing {
				serving <- words[1:]
			} else {
				p.said[words[0]] <- struct{}{}
			}
		}
	}()
	p.end = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		<-read
		_ = cmd.Wait()
	})
	t.Cleanup(p.end)
	select {
	case words := <-serving:
		if len(words) != 2 {
			t.Fatalf("the server's process ended: %v", words)
		}
		der, err := base64.StdEncoding.DecodeString(words[1])
		if err != nil {
			t.Fatal(err)
		}
		if p.cert, err = x509.ParseCertificate(der); err != nil {
			t.Fatal(err)
		}
		p.addr, p.url = words[0], "https://"+words[0]
	case <-time.After(patience):
		t.Fatal("the server's process does not serve")
	}
	return p
}

func (p *process) trust() func() (*tls.Config, error) { return trust(p.cert, certified) }

// wait waits until the process has said the word once more.
func (p *process) wait(t *testing.T, word string) {
	t.Helper()
	select {
	case <-p.said[word]:
	case <-time.After(patience):
		t.Fatalf("the server's process did not say %q", word)
	}
}

// freeze stops all threads of the process. Its kernel goes on to take and to
// acknowledge what comes, so that to the client's kernel all is well.
func (p *process) freeze(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(p.pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	for {
		if _, err := syscall.Wait4(p.pid, &status, syscall.WUNTRACED, nil); err == nil {
			break
		} else if !errors.Is(err, syscall.EINTR) {
			t.Fatal(err)
		}
	}
	if !status.Stopped() {
		t.Fatalf("the server's process has status %v, want a stopped one", status)
	}
}

func (p *process) thaw(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(p.pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// wantFrom checks which process answered, and how many connections it had by then.
func wantFrom(t *testing.T, answer channel.Answer, p *process, opened int) {
	t.Helper()
	if got := answer.Header.Get(pidHeader); got != strconv.Itoa(p.pid) {
		t.Errorf("process %s answered, want %d", got, p.pid)
	}
	if got := answer.Header.Get(openedHeader); got != strconv.Itoa(opened) {
		t.Errorf("the server had %s connections, want %d", got, opened)
	}
}
