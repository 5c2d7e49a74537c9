//go:build linux

package app_test

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/belay-dev/belay/sidecar/settings"
	"github.com/belay-dev/belay/sidecar/wire"
)

// patience bounds what should come soon.
const patience = 20 * time.Second

// binary builds belay-sidecar as a release does, once.
var binary = sync.OnceValues(func() (string, error) {
	// A result of these tests is kept for as long as the files that they opened are the same:
	// so they open what the binary is made of.
	for _, pattern := range []string{"../*/*.go", "../../cmd/belay-sidecar/*.go"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			if _, err := os.ReadFile(file); err != nil {
				return "", err
			}
		}
	}
	path := filepath.Join(buildDir, "belay-sidecar")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w -X github.com/belay-dev/belay/sidecar/app.version="+testVersion, "-o", path, "../../cmd/belay-sidecar")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building belay-sidecar: %w\n%s", err, out)
	}
	return path, nil
})

const testVersion = "v0.0.0-test"

var buildDir string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		// Most tests wait for a process, and not for a processor.
		if err := f.Value.Set("16"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	var err error
	if buildDir, err = os.MkdirTemp("", "belay-sidecar"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(buildDir) }()
	if err := os.Chmod(buildDir, 0o755); err != nil { // also for users of other tests
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// serverName is in the collectors' certificates, and not their address.
const serverName = "belay-collector.belay-system.svc"

// authority signs the certificates of collectors.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "CA " + rand.Text()},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert: cert, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (a *authority) issue(t *testing.T) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{serverName}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// request is one that a collector got.
type request struct {
	wire.Report
	token, agent string
	at           time.Time
}

// collector takes reports, and can go away and come back at its address.
type collector struct {
	addr string
	cert atomic.Pointer[tls.Certificate]
	// answer answers a report that was read.
	answer atomic.Pointer[http.HandlerFunc]
	got    chan request
	// closed has a value for each connection that ended.
	closed chan struct{}
	quit   chan struct{} // closed at the end of the test

	server *http.Server
	served chan struct{}
}

func accept(interval time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		body, err := wire.EncodeAnswer(wire.AnswerWith("Written", interval))
		if err != nil {
			panic(err)
		}
		w.Header().Set("Content-Type", wire.ContentType)
		_, _ = w.Write(body)
	}
}

func refuse(status int, reason string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		body, err := wire.EncodeRefusal(wire.Refusal{Reason: reason, Message: "the test refuses"})
		if err != nil {
			panic(err)
		}
		if len(header) == 2 {
			w.Header().Set(header[0], header[1])
		}
		w.WriteHeader(status)
		_, _ = w.Write(body)
	}
}

// collectors counts them, for each has an address of its own: a port that it left is taken by
// nobody else until it is back.
var collectors atomic.Int32

// newCollector returns one that is not there yet.
func newCollector(t *testing.T, cert *tls.Certificate) *collector {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.77.0.%d:0", collectors.Add(1)%250+1))
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	c := &collector{addr: l.Addr().String(), got: make(chan request, 1000), closed: make(chan struct{}, 1000), quit: make(chan struct{})}
	c.cert.Store(cert)
	c.will(accept(time.Second))
	t.Cleanup(func() {
		close(c.quit)
		c.stop()
	})
	return c
}

func (c *collector) will(answer http.HandlerFunc) { c.answer.Store(&answer) }

// hang never answers.
func (c *collector) hang() {
	c.will(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-c.quit:
		}
	})
}

func (c *collector) start(t *testing.T) *collector {
	t.Helper()
	l, err := net.Listen("tcp", c.addr)
	// A child of another test holds what is open here until it is a program of its own.
	for deadline := time.Now().Add(patience); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(deadline); {
		l, err = net.Listen("tcp", c.addr)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.server = &http.Server{
		Handler:   http.HandlerFunc(c.take),
		TLSConfig: &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.cert.Load(), nil }},
		ErrorLog:  log.New(io.Discard, "", 0),
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateClosed {
				c.closed <- struct{}{}
			}
		},
	}
	served := make(chan struct{})
	c.served = served
	server := c.server
	go func() {
		defer close(served)
		_ = server.ServeTLS(l, "", "")
	}()
	return c
}

// stop hangs up on everybody, as a killed process does.
func (c *collector) stop() {
	if c.server != nil {
		_ = c.server.Close()
		<-c.served
		c.server = nil
	}
}

func (c *collector) take(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, wire.MaxReportBytes+1))
	report, bad := wire.DecodeReport(body)
	if err != nil || bad != nil || r.Method != http.MethodPost || r.URL.Path != wire.Path || r.Header.Get("Content-Type") != wire.ContentType {
		http.Error(w, fmt.Sprint(err, bad), http.StatusBadRequest)
		return
	}
	answer := *c.answer.Load() // the test may change it once it knows of the report
	c.got <- request{Report: report, token: strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), agent: r.UserAgent(), at: time.Now()}
	answer(w, r)
}

// next waits for a report.
func (c *collector) next(t *testing.T) request {
	t.Helper()
	select {
	case r := <-c.got:
		return r
	case <-time.After(patience):
		t.Fatal("no report came")
		return request{}
	}
}

// until waits for a report that is so, and passes over others.
func (c *collector) until(t *testing.T, what string, so func(request) bool) request {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case r := <-c.got:
			if so(r) {
				return r
			}
		case <-late:
			t.Fatalf("no report came that is %s", what)
		}
	}
}

func (c *collector) untilState(t *testing.T, state wire.State) request {
	t.Helper()
	return c.until(t, string(state), func(r request) bool { return r.State == state })
}

// target is a main container's server.
type target struct {
	port   string
	status atomic.Int32
}

func newTarget(t *testing.T) *target {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var g target
	_, g.port, _ = net.SplitHostPort(l.Addr().String())
	g.status.Store(200)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(g.status.Load())) })}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-served
	})
	return &g
}

// tokenMark is in every token of these tests, and must be in nothing that a sidecar says.
const tokenMark = "t0ken-"

// pod is the settings of a sidecar, and its folder of mounted files.
type pod struct {
	dir string
	env map[string]string
}

func newPod(t *testing.T, collector string, ca []byte) *pod {
	t.Helper()
	p := &pod{dir: t.TempDir()}
	// Its parent is the test's alone as it is made.
	if err := os.Chmod(filepath.Dir(p.dir), 0o755); err != nil {
		t.Fatal(err)
	}
	p.env = map[string]string{
		settings.Collector: collector, settings.ServerName: serverName,
		settings.Namespace: "training", settings.Pod: "worker-0", settings.PodUID: "0c7d1a3e-5b0f-4c55-9d8e-0a9f6d1b2c3d",
		settings.PodIP: "127.0.0.1", settings.Container: "main",
		settings.ProbePeriod: "1s", settings.FailureThreshold: "1", settings.LogLevel: "debug",
		settings.TokenFile: filepath.Join(p.dir, "token"), settings.CAFile: filepath.Join(p.dir, "ca.crt"),
	}
	p.write(t, "token", tokenMark+"first\n")
	p.write(t, "ca.crt", string(ca))
	return p
}

func (p *pod) with(pairs ...string) *pod {
	for i := 0; i < len(pairs); i += 2 {
		p.env[pairs[i]] = pairs[i+1]
	}
	return p
}

func (p *pod) probes(g *target, path string) *pod {
	return p.with(settings.ProbeSpec, "http://:"+g.port+path)
}

// write puts a file in the place of another at once, as the kubelet does.
func (p *pod) write(t *testing.T, name, text string) {
	t.Helper()
	next := filepath.Join(p.dir, ".next")
	if err := os.WriteFile(next, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(p.dir, name)); err != nil {
		t.Fatal(err)
	}
}

func (p *pod) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = []string{}
	for name, value := range maps.All(p.env) {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// process is a running sidecar.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{}

	mu      sync.Mutex
	log     strings.Builder
	changed chan struct{} // closed at each line
}

func (p *pod) start(t *testing.T, changes ...func(*exec.Cmd)) *process {
	t.Helper()
	cmd := p.command(t)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = write
	for _, change := range changes {
		change(cmd)
	}
	err = cmd.Start()
	_ = write.Close()
	if err != nil {
		t.Fatal(err)
	}
	s := &process{cmd: cmd, exited: make(chan struct{}), changed: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(read); lines.Scan(); {
			s.mu.Lock()
			s.log.WriteString(lines.Text() + "\n")
			close(s.changed)
			s.changed = make(chan struct{})
			s.mu.Unlock()
		}
	}()
	go func() {
		_ = cmd.Wait()
		close(s.exited)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-s.exited
		<-done
		_ = read.Close()
		if strings.Contains(s.log.String(), tokenMark) {
			t.Error("the log has a token in it")
		}
		if t.Failed() {
			t.Logf("the log was:\n%s", s.log.String())
		}
	})
	return s
}

// says waits until the log has a line with all of the texts.
func (s *process) says(t *testing.T, texts ...string) string {
	t.Helper()
	late := time.After(patience)
	for {
		s.mu.Lock()
		all, changed := s.log.String(), s.changed
		s.mu.Unlock()
	lines:
		for line := range strings.Lines(all) {
			for _, text := range texts {
				if !strings.Contains(line, text) {
					continue lines
				}
			}
			return line
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("the log has no line with %q", texts)
		}
	}
}

func (s *process) signal(t *testing.T, sig os.Signal) {
	t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// wantExit waits for the end, which is to be code 0.
func (s *process) wantExit(t *testing.T) {
	t.Helper()
	select {
	case <-s.exited:
		if code := s.cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("ended with %s, want code 0", s.cmd.ProcessState)
		}
	case <-time.After(patience):
		t.Fatal("does not end")
	}
}

func (s *process) wantRunning(t *testing.T) {
	t.Helper()
	select {
	case <-s.exited:
		t.Fatalf("ended with %s", s.cmd.ProcessState)
	default:
	}
}

// output runs a sidecar that ends by itself, and returns what it says and its exit code.
func (p *pod) output(t *testing.T, args ...string) (string, int) {
	t.Helper()
	cmd := p.command(t, args...)
	late := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if strings.Contains(string(out), tokenMark) {
		t.Errorf("the output has a token in it: %s", out)
	}
	if err == nil {
		return string(out), 0
	}
	exit := new(exec.ExitError)
	errors.As(err, &exit)
	return string(out), exit.ExitCode()
}
