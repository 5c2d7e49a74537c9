// Package sidecar measures belay-sidecar: what each injected pod pays.
package sidecar

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/belay-dev/belay/sidecar/settings"
	"github.com/belay-dev/belay/sidecar/wire"
)

const (
	window   = 20 * time.Second
	patience = 30 * time.Second
)

// BenchmarkSidecar prints what a sidecar costs that probes once a second over HTTP, beside
// what it is meant to cost at most. Nothing is asserted: it depends on the machine.
//
// Two of them run at once, as on a node with two injected pods: pages that both use are not
// private to one. One has a report within the window and one has none, and the difference
// is what a report costs, with its handshake.
func BenchmarkSidecar(b *testing.B) {
	binary := build(b)
	ca, cert := authority(b)
	main := serve(b, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })})
	for b.Loop() {
		quiet := start(b, binary, ca, cert, main, time.Minute)
		reporting := start(b, binary, ca, cert, main, window)
		// The first seconds are those of start; the window begins with the second report of
		// the one that reports, which shows that it is over.
		reporting.report(b)
		before := []usage{quiet.usage(b), reporting.usage(b)}
		reporting.report(b)
		after := []usage{quiet.usage(b), reporting.usage(b)}
		if len(quiet.reports) > 0 {
			b.Fatal("a report came that was not due")
		}
		probes, both := millicores(before[0], after[0]), millicores(before[1], after[1])
		perReport := (both - probes) * after[1].at.Sub(before[1].at).Seconds() // in CPU milliseconds
		say(b, "binary", "MB", float64(size(b, binary))/1e6, 8)
		say(b, "resident", "MiB", after[1].rss, 10)
		say(b, "private", "MiB", after[1].private, 2.5)
		say(b, "anonymous", "MiB", after[1].anonymous, 0)
		say(b, "cpu, probes alone", "millicores", probes, 0)
		say(b, "cpu of one report", "ms", perReport, 0)
		say(b, "cpu, a report a minute", "millicores", probes+perReport/60, 1)
		quiet.stop()
		reporting.stop()
	}
}

// say prints a figure and, if there is one, its target.
func say(b *testing.B, what, unit string, value, target float64) {
	line := fmt.Sprintf("%-24s %7.2f %s", what, value, unit)
	if target > 0 {
		line += fmt.Sprintf(", to be at most %g", target)
	}
	fmt.Println(line)
	b.ReportMetric(value, strings.NewReplacer(",", "", " ", "-").Replace(what)+"-"+unit)
}

func millicores(before, after usage) float64 {
	return 1000 * (after.cpu - before.cpu).Seconds() / after.at.Sub(before.at).Seconds()
}

func build(b *testing.B) string {
	b.Helper()
	path := filepath.Join(b.TempDir(), "belay-sidecar")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "github.com/belay-dev/belay/cmd/belay-sidecar")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("building: %v\n%s", err, out)
	}
	return path
}

func size(b *testing.B, path string) int64 {
	b.Helper()
	info, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	return info.Size()
}

// authority returns a CA in PEM and a certificate for 127.0.0.1 that it signed: itself.
func authority(b *testing.B) ([]byte, tls.Certificate) {
	b.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		b.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func serve(b *testing.B, s *http.Server) string {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s.ErrorLog = log.New(io.Discard, "", 0)
	served := make(chan struct{})
	go func() {
		defer close(served)
		if s.TLSConfig != nil {
			_ = s.ServeTLS(l, "", "")
		} else {
			_ = s.Serve(l)
		}
	}()
	b.Cleanup(func() {
		_ = s.Close()
		<-served
	})
	return l.Addr().String()
}

type process struct {
	cmd     *exec.Cmd
	reports chan struct{}
}

// start starts a sidecar with a collector that asks for an interval, and waits for its first
// report.
func start(b *testing.B, binary string, ca []byte, cert tls.Certificate, main string, interval time.Duration) *process {
	b.Helper()
	p := &process{reports: make(chan struct{}, 100)}
	answer, err := wire.EncodeAnswer(wire.AnswerWith("Written", interval))
	if err != nil {
		b.Fatal(err)
	}
	collector := serve(b, &http.Server{TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}}, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(answer)
		p.reports <- struct{}{}
	})})
	dir := b.TempDir()
	for name, text := range map[string][]byte{"token": []byte(strings.Repeat("t", 1200)), "ca.crt": ca} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	p.cmd = exec.Command(binary)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	for name, value := range map[string]string{
		settings.Collector: collector, settings.Namespace: "training", settings.Pod: "worker-0", settings.PodUID: "0c7d1a3e-5b0f-4c55-9d8e-0a9f6d1b2c3d", settings.Container: "main",
		settings.ProbeSpec: "http://" + main + "/", settings.ProbePeriod: "1s", settings.TokenFile: filepath.Join(dir, "token"), settings.CAFile: filepath.Join(dir, "ca.crt"),
	} {
		p.cmd.Env = append(p.cmd.Env, name+"="+value)
	}
	if err := p.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(p.stop)
	p.report(b)
	return p
}

func (p *process) stop() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (p *process) report(b *testing.B) {
	b.Helper()
	select {
	case <-p.reports:
	case <-time.After(patience):
		b.Fatal("no report came")
	}
}

// usage is what a process has used and holds, memory in MiB.
type usage struct {
	at                      time.Time
	cpu                     time.Duration
	rss, private, anonymous float64
}

func (p *process) usage(b *testing.B) usage {
	b.Helper()
	u := usage{at: time.Now()}
	dir := fmt.Sprintf("/proc/%d", p.cmd.Process.Pid)
	tasks, err := filepath.Glob(dir + "/task/*/schedstat")
	if err != nil || len(tasks) == 0 {
		b.Fatal("the kernel keeps no schedstat: ", err)
	}
	for _, task := range tasks {
		// Nanoseconds on a processor; "stat" has hundredths of a second, which are too coarse.
		if text, err := os.ReadFile(task); err == nil {
			n, _ := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
			u.cpu += time.Duration(n)
		}
	}
	f, err := os.Open(dir + "/smaps_rollup")
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) < 3 {
			continue
		}
		kib, _ := strconv.ParseFloat(words[1], 64)
		switch words[0] {
		case "Rss:":
			u.rss = kib / 1024
		case "Private_Clean:", "Private_Dirty:":
			u.private += kib / 1024
		case "Anonymous:":
			u.anonymous = kib / 1024
		}
	}
	return u
}
