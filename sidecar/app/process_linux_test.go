package app_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/belay-dev/belay/sidecar/settings"
	"github.com/belay-dev/belay/sidecar/wire"
)

func TestSaysWhatIsSo(t *testing.T) {
	t.Parallel()
	ca, main := newAuthority(t), newTarget(t)
	c := newCollector(t, ca.issue(t)).start(t)
	began := time.Now()
	s := newPod(t, c.addr, ca.pem).probes(main, "/healthz").start(t)

	first := c.next(t)
	want := wire.Report{
		Namespace: "training", Pod: "worker-0", UID: "0c7d1a3e-5b0f-4c55-9d8e-0a9f6d1b2c3d", Container: "main",
		State: wire.StateReady, Reason: "ProbeSucceeded", Sequence: 1,
		Reporter: first.Reporter, ReporterSinceUnixMillis: first.ReporterSinceUnixMillis, ObservedUnixMillis: first.ObservedUnixMillis,
	}
	if first.Report != want || first.token != tokenMark+"first" || first.agent != "belay-sidecar/"+testVersion {
		t.Errorf("got %+v, want %+v", first, want)
	}
	if since := time.UnixMilli(first.ReporterSinceUnixMillis); since.Before(began.Truncate(time.Millisecond)) || since.After(first.at) || first.ObservedUnixMillis < first.ReporterSinceUnixMillis {
		t.Errorf("says it began at %s and probed %d ms later; it was started at %s", since, first.ObservedUnixMillis-first.ReporterSinceUnixMillis, began)
	}
	// Unchanged, it is said again when the collector has asked for it, with a newer probe.
	last := first
	for range 3 {
		next := c.next(t)
		if next.State != wire.StateReady || next.Sequence != 1 || next.Reporter != first.Reporter || next.ReporterSinceUnixMillis != first.ReporterSinceUnixMillis || next.ObservedUnixMillis < last.ObservedUnixMillis {
			t.Errorf("got %+v after %+v", next, last)
		}
		if early := next.at.Sub(last.at); early < 800*time.Millisecond {
			t.Errorf("said again after %s, and asked for in a second", early)
		}
		last = next
	}
	if last.ObservedUnixMillis == first.ObservedUnixMillis {
		t.Error("vouches for ever later times by one probe")
	}
	main.status.Store(503)
	if got := c.untilState(t, wire.StateNotReady); got.Reason != "BadStatus" || got.Sequence != 2 {
		t.Errorf("got %+v", got)
	}
	main.status.Store(204)
	if got := c.untilState(t, wire.StateReady); got.Reason != "ProbeSucceeded" || got.Sequence != 3 {
		t.Errorf("got %+v", got)
	}
	s.says(t, `"msg":"main container is NotReady"`, `"detail":"the HTTP status is 503"`)
	s.signal(t, syscall.SIGTERM)
	if got := c.until(t, "the last", func(r request) bool { return r.Reason == "Stopping" }); got.State != wire.StateUnknown || got.Sequence != 4 {
		t.Errorf("got %+v", got)
	}
	s.wantExit(t)
}

// What a ready file says is as old as the file.
func TestReadyFile(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	c := newCollector(t, ca.issue(t)).start(t)
	p := newPod(t, c.addr, ca.pem)
	p.with(settings.ProbeSpec, "file://"+filepath.Join(p.dir, "ready")).start(t)
	if got := c.next(t); got.State != wire.StateNotReady || got.Reason != "NoReadyFile" {
		t.Errorf("got %+v", got)
	}
	p.write(t, "ready", "")
	old := time.UnixMilli(1_700_000_000_000)
	if err := os.Chtimes(filepath.Join(p.dir, "ready"), old, old); err != nil {
		t.Fatal(err)
	}
	c.until(t, "as old as the file", func(r request) bool {
		return r.State == wire.StateReady && r.ObservedUnixMillis == old.UnixMilli()
	})
}

func TestTokenIsRenewed(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	c := newCollector(t, ca.issue(t)).start(t)
	p := newPod(t, c.addr, ca.pem)
	s := p.start(t)
	if got := c.next(t).token; got != tokenMark+"first" {
		t.Errorf("got token %q", got)
	}
	p.write(t, "token", tokenMark+"second")
	c.until(t, "of the second token", func(r request) bool { return r.token == tokenMark+"second" })
	// A file that is none for a while, and then is one again.
	for _, fault := range []struct{ text, says string }{
		{"", "the token file holds no token"},
		{strings.Repeat("x", 1<<15), "has more than 16384 bytes"},
		{tokenMark + "\x01", "invalid header field value"},
		{tokenMark + "a b", "the token file holds no token"},
	} {
		p.write(t, "token", fault.text)
		s.says(t, "not delivered", fault.says)
		next := tokenMark + strconv.Itoa(len(fault.text))
		p.write(t, "token", next)
		c.until(t, "of the next token", func(r request) bool {
			if !strings.HasPrefix(r.token, tokenMark) {
				t.Errorf("sent the token %q", r.token)
			}
			return r.token == next
		})
	}
	s.says(t, "reports get through again")
}

func TestCAIsRotated(t *testing.T) {
	t.Parallel()
	before, after := newAuthority(t), newAuthority(t)
	c := newCollector(t, before.issue(t)).start(t)
	p := newPod(t, c.addr, before.pem)
	s := p.start(t)
	c.next(t)
	again := func() {
		c.stop()
		for len(c.got) > 0 {
			<-c.got
		}
		c.start(t)
	}
	p.write(t, "ca.crt", string(before.pem)+string(after.pem))
	again()
	c.next(t)
	c.cert.Store(after.issue(t))
	again()
	c.next(t)
	p.write(t, "ca.crt", string(after.pem))
	again()
	c.next(t)
	// A server of the old CA is nobody any more, and none is asked without a CA.
	c.cert.Store(before.issue(t))
	again()
	s.says(t, "certificate signed by unknown authority")
	for len(c.got) > 0 {
		<-c.got // from before
	}
	p.write(t, "ca.crt", "nothing")
	s.says(t, "holds no certificate")
	if len(c.got) > 0 {
		t.Errorf("%+v was sent to nobody", <-c.got)
	}
	p.write(t, "ca.crt", string(before.pem))
	c.next(t)
}

// A certificate for another name is somebody else's, whoever signed it.
func TestServerName(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	c := newCollector(t, ca.issue(t)).start(t)
	s := newPod(t, c.addr, ca.pem).with(settings.ServerName, "other.example.org").start(t)
	s.says(t, "not other.example.org")
	if len(c.got) > 0 {
		t.Error("the report was sent to somebody else")
	}
}

func TestCollectorComesAndGoes(t *testing.T) {
	t.Parallel()
	ca, main := newAuthority(t), newTarget(t)
	c := newCollector(t, ca.issue(t))
	s := newPod(t, c.addr, ca.pem).probes(main, "/").start(t)
	s.says(t, `"level":"WARN"`, "not delivered", "connection refused")
	c.start(t)
	first := c.next(t)
	s.says(t, "reports get through again")
	c.stop()
	main.status.Store(500)
	s.says(t, "main container is NotReady")
	c.start(t)
	if got := c.untilState(t, wire.StateNotReady); got.Sequence != first.Sequence+1 || got.Reporter != first.Reporter {
		t.Errorf("got %+v after %+v", got, first)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for status, reason := range map[int]string{401: "TokenRejected", 403: "OtherPod"} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			ca, main := newAuthority(t), newTarget(t)
			c := newCollector(t, ca.issue(t)).start(t)
			c.will(refuse(status, reason))
			s := newPod(t, c.addr, ca.pem).probes(main, "/").start(t)
			c.next(t)
			s.says(t, `"level":"WARN"`, `"outcome":"refused"`, fmt.Sprintf("answers %d %s the test refuses", status, reason))
			// It would say the same again in a minute; what is new goes out at once.
			c.will(accept(time.Second))
			main.status.Store(500)
			if got := c.next(t); got.State != wire.StateNotReady {
				t.Errorf("got %+v", got)
			}
			s.says(t, "reports get through again")
		})
	}
	for name, status := range map[string]int{"too many requests": 429, "unavailable": 503} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ca := newAuthority(t)
			c := newCollector(t, ca.issue(t)).start(t)
			c.will(refuse(status, "Overload", "Retry-After", "2"))
			newPod(t, c.addr, ca.pem).start(t)
			first := c.next(t)
			c.will(accept(time.Second))
			if early := c.next(t).at.Sub(first.at); early < 2*time.Second {
				t.Errorf("came again after %s, and was asked to wait two seconds", early)
			}
		})
	}
	// Somebody who is no collector has not taken the report.
	t.Run("an answer that is none", func(t *testing.T) {
		t.Parallel()
		ca := newAuthority(t)
		c := newCollector(t, ca.issue(t)).start(t)
		c.will(refuse(200, "<html>"))
		c.will(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) })
		s := newPod(t, c.addr, ca.pem).start(t)
		c.next(t)
		s.says(t, `"outcome":"failed"`, "decoding answer")
		c.next(t)
	})
	// Trouble of another kind is news, or a log would blame the network for ever.
	t.Run("a refusal after a failure", func(t *testing.T) {
		t.Parallel()
		ca := newAuthority(t)
		c := newCollector(t, ca.issue(t))
		c.will(refuse(403, "OtherPod"))
		s := newPod(t, c.addr, ca.pem).with(settings.LogLevel, "info").start(t)
		s.says(t, "connection refused")
		c.start(t)
		s.says(t, `"outcome":"refused"`)
	})
}

func TestSIGTERM(t *testing.T) {
	t.Parallel()
	stopping := func(t *testing.T, c *collector) {
		t.Helper()
		c.until(t, "the last", func(r request) bool { return r.State == wire.StateUnknown && r.Reason == "Stopping" })
	}
	tests := map[string]func(t *testing.T, c *collector, p *pod){
		"the last report is sent": func(t *testing.T, c *collector, p *pod) {
			s := p.start(t)
			c.next(t)
			s.signal(t, syscall.SIGTERM)
			stopping(t, c)
			s.wantExit(t)
		},
		"and also by who types control and C": func(t *testing.T, c *collector, p *pod) {
			s := p.start(t)
			c.next(t)
			s.signal(t, os.Interrupt)
			stopping(t, c)
			s.wantExit(t)
		},
		"over a new connection": func(t *testing.T, c *collector, p *pod) {
			c.will(accept(time.Minute))
			s := p.start(t)
			c.next(t)
			s.says(t, `"msg":"reported"`, `"next":"1m0s"`)
			select {
			case <-c.closed:
			case <-time.After(patience):
				t.Error("keeps a connection that it does not need for a minute")
			}
			s.signal(t, syscall.SIGTERM)
			stopping(t, c)
			s.wantExit(t)
		},
		"a collector that hangs is not waited for": func(t *testing.T, c *collector, p *pod) {
			s := p.start(t)
			c.next(t)
			c.hang()
			s.signal(t, syscall.SIGTERM)
			stopping(t, c)
			s.signal(t, syscall.SIGTERM) // and again, which changes nothing
			s.wantExit(t)
			s.says(t, "stopped without the last report")
		},
		"a collector that hangs before is not waited for": func(t *testing.T, c *collector, p *pod) {
			c.hang()
			s := p.start(t)
			c.next(t)
			s.signal(t, syscall.SIGTERM)
			s.wantExit(t)
			s.says(t, "stopped without the last report")
		},
		"the last report is refused": func(t *testing.T, c *collector, p *pod) {
			s := p.start(t)
			c.next(t)
			c.will(refuse(403, "OtherPod"))
			s.signal(t, syscall.SIGTERM)
			stopping(t, c)
			s.wantExit(t)
		},
		"a collector that is gone": func(t *testing.T, c *collector, p *pod) {
			s := p.start(t)
			c.next(t)
			c.stop()
			s.says(t, "connection refused")
			s.signal(t, syscall.SIGTERM)
			s.wantExit(t)
		},
		"a collector that never was": func(t *testing.T, c *collector, p *pod) {
			c.stop()
			s := p.start(t)
			s.says(t, "connection refused")
			s.signal(t, syscall.SIGTERM)
			s.wantExit(t)
		},
		"nothing was ever said": func(t *testing.T, c *collector, p *pod) {
			s := p.with(settings.FailureThreshold, "1000", settings.ProbeSpec, "file:///nowhere/ready").start(t)
			s.says(t, "NoReadyFile")
			s.signal(t, syscall.SIGTERM)
			s.wantExit(t)
			if len(c.got) > 0 {
				t.Errorf("sent %+v", <-c.got)
			}
		},
		"a probe hangs": func(t *testing.T, c *collector, p *pod) {
			asked, addr := silent(t)
			s := p.with(settings.ProbeSpec, "http://"+addr, settings.ProbeTimeout, "1h").start(t)
			<-asked
			s.signal(t, syscall.SIGTERM)
			s.wantExit(t)
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ca := newAuthority(t)
			c := newCollector(t, ca.issue(t)).start(t)
			test(t, c, newPod(t, c.addr, ca.pem))
		})
	}
}

// silent takes a connection and says nothing.
func silent(t *testing.T) (<-chan struct{}, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	asked := make(chan struct{})
	go func() {
		if conn, err := l.Accept(); err == nil {
			close(asked)
			defer func() { _ = conn.Close() }()
			_, _ = conn.Read(make([]byte, 1<<20))
			_, _ = conn.Read(make([]byte, 1))
		}
	}()
	return asked, l.Addr().String()
}

// A native sidecar that ends makes its pod unready, so wrong settings do not end it.
func TestWrongSettings(t *testing.T) {
	t.Parallel()
	s := newPod(t, "nowhere", nil).with(settings.Pod, "", settings.ProbeSpec, "ftp://x").start(t)
	line := s.says(t, `"level":"ERROR"`, "settings make no sense")
	for _, want := range []string{"BELAY_COLLECTOR is", "BELAY_POD is not set", "BELAY_PROBE: ", `"version":"` + testVersion + `"`} {
		if !strings.Contains(line, want) {
			t.Errorf("the log has no %s: %s", want, line)
		}
	}
	if strings.Contains(line, "nil") {
		t.Errorf("the log tells of nothing: %s", line)
	}
	s.wantRunning(t)
	s.signal(t, syscall.SIGTERM)
	s.wantExit(t)
}

// Files that are not there yet, as with a slow volume, are no reason to end either.
func TestFilesComeLater(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	c := newCollector(t, ca.issue(t)).start(t)
	p := newPod(t, c.addr, ca.pem)
	for _, name := range []string{"token", "ca.crt"} {
		if err := os.Remove(filepath.Join(p.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	s := p.start(t)
	s.says(t, "reading the token", "no such file")
	p.write(t, "token", tokenMark+"late")
	s.says(t, "reading the collector's CA", "no such file")
	p.write(t, "ca.crt", string(ca.pem))
	if got := c.next(t).token; got != tokenMark+"late" {
		t.Errorf("got token %q", got)
	}
}

// A port would be one more that a pod's network policy and its owner have to know of.
func TestNoPortIsOpen(t *testing.T) {
	t.Parallel()
	ca, main := newAuthority(t), newTarget(t)
	c := newCollector(t, ca.issue(t)).start(t)
	s := newPod(t, c.addr, ca.pem).probes(main, "/").start(t)
	c.next(t)
	c.next(t)
	if open := listening(t, s.cmd.Process.Pid); len(open) > 0 {
		t.Errorf("listens: %v", open)
	}
	if open := listening(t, os.Getpid()); len(open) == 0 {
		t.Error("this process listens, which is not seen")
	}
}

// listening are the sockets of a process that wait for connections or datagrams of anybody.
func listening(t *testing.T, pid int) []string {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d", pid)
	own := map[string]bool{}
	fds, err := os.ReadDir(dir + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(filepath.Join(dir, "fd", fd.Name())); err == nil && strings.HasPrefix(to, "socket:[") {
			own[strings.Trim(to, "socket:[]")] = true
		}
	}
	var open []string
	for name, state := range map[string]string{"tcp": "0A", "tcp6": "0A", "udp": "07", "udp6": "07"} {
		f, err := os.Open(filepath.Join(dir, "net", name))
		if err != nil {
			continue // no IPv6
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if words := strings.Fields(lines.Text()); len(words) > 9 && words[3] == state && own[words[9]] {
				open = append(open, name+" "+words[1])
			}
		}
		_ = f.Close()
	}
	return open
}

func TestSurroundings(t *testing.T) {
	t.Parallel()
	tests := map[string]func(t *testing.T, p *pod) func(*exec.Cmd){
		"no standard streams": func(*testing.T, *pod) func(*exec.Cmd) {
			return func(cmd *exec.Cmd) {
				cmd.Args = []string{"sh", "-c", `exec "$0" <&- >&- 2>&-`, cmd.Path}
				cmd.Path = "/bin/sh"
			}
		},
		"a folder that cannot be written": func(*testing.T, *pod) func(*exec.Cmd) {
			return func(cmd *exec.Cmd) { cmd.Dir = "/proc" }
		},
		"another user, whose group alone may read the token": func(t *testing.T, p *pod) func(*exec.Cmd) {
			if os.Getuid() != 0 {
				t.Skip("only root can become another user")
			}
			const group = 2000
			for _, name := range []string{"token", "ca.crt"} {
				path := filepath.Join(p.dir, name)
				if err := os.Chown(path, 0, group); err != nil {
					t.Fatal(err)
				}
				if err := os.Chmod(path, 0o040); err != nil {
					t.Fatal(err)
				}
			}
			return func(cmd *exec.Cmd) {
				cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65532, Gid: 65532, Groups: []uint32{group}}
			}
		},
		"a proxy that is meant for the main container": func(t *testing.T, p *pod) func(*exec.Cmd) {
			p.with("HTTP_PROXY", "http://127.0.0.1:1", "HTTPS_PROXY", "http://127.0.0.1:1", "ALL_PROXY", "http://127.0.0.1:1", "https_proxy", "http://127.0.0.1:1")
			return func(*exec.Cmd) {}
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ca, main := newAuthority(t), newTarget(t)
			c := newCollector(t, ca.issue(t)).start(t)
			p := newPod(t, c.addr, ca.pem).probes(main, "/")
			s := p.start(t, test(t, p))
			c.untilState(t, wire.StateReady)
			main.status.Store(500)
			c.untilState(t, wire.StateNotReady)
			s.signal(t, syscall.SIGTERM)
			c.untilState(t, wire.StateUnknown)
			s.wantExit(t)
		})
	}
}

// Who read the log may end, as a runtime's logger does when it is renewed.
func TestNobodyReadsTheLog(t *testing.T) {
	t.Parallel()
	ca, main := newAuthority(t), newTarget(t)
	c := newCollector(t, ca.issue(t)).start(t)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s := newPod(t, c.addr, ca.pem).probes(main, "/").start(t, func(cmd *exec.Cmd) { cmd.Stderr, cmd.Stdout = write, write })
	_ = write.Close()
	c.untilState(t, wire.StateReady)
	_ = read.Close()
	main.status.Store(500)
	c.untilState(t, wire.StateNotReady)
	main.status.Store(200)
	c.untilState(t, wire.StateReady)
	s.wantRunning(t)
	s.signal(t, syscall.SIGTERM)
	s.wantExit(t)
}

func TestOnce(t *testing.T) {
	t.Parallel()
	ca, main := newAuthority(t), newTarget(t)
	c := newCollector(t, ca.issue(t)).start(t)
	absent := newCollector(t, ca.issue(t))
	refusing := newCollector(t, ca.issue(t)).start(t)
	refusing.will(refuse(403, "OtherPod"))
	older := newCollector(t, ca.issue(t)).start(t)
	older.will(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"intervalMillis":1000}`)) })
	echo := newCollector(t, ca.issue(t)).start(t)
	echo.will(func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(wire.AnswerWith(r.Header.Get("Authorization"), time.Second))
	})
	down := newTarget(t)
	down.status.Store(500)
	tests := map[string]struct {
		pod  *pod
		want []string
		code int
	}{
		"ready":                          {newPod(t, c.addr, ca.pem).probes(main, "/"), []string{"ProbeSucceeded", "delivered; outcome: Written; the next one in 1s"}, 0},
		"not ready":                      {newPod(t, c.addr, ca.pem).probes(down, "/").with(settings.FailureThreshold, "3"), []string{"BadStatus the HTTP status is 500", "delivered"}, 1},
		"no probe":                       {newPod(t, c.addr, ca.pem), []string{"none to run (NoProbe)", "delivered"}, 0},
		"ready, and no collector":        {newPod(t, absent.addr, ca.pem).probes(main, "/"), []string{"ProbeSucceeded", "report to " + absent.addr + ": failed", "connection refused"}, 1},
		"ready, and refused":             {newPod(t, refusing.addr, ca.pem).probes(main, "/"), []string{"refused: the collector answers 403 OtherPod the test refuses"}, 1},
		"a collector of another version": {newPod(t, older.addr, ca.pem), []string{"delivered; outcome: not told"}, 0},
		"one that repeats the token":     {newPod(t, echo.addr, ca.pem), []string{"outcome: something that repeats the token"}, 0},
		"no collector that can be named": {newPod(t, "nowhere", ca.pem).probes(main, "/"), []string{`settings: BELAY_COLLECTOR is "nowhere"`}, 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, code := tc.pod.output(t, "--once")
			if code != tc.code {
				t.Errorf("ended with %d, want %d: %s", code, tc.code, out)
			}
			for _, want := range tc.want {
				if !strings.Contains(out, want) {
					t.Errorf("says %q, want %q", out, want)
				}
			}
			if strings.Contains(out, "nil") {
				t.Errorf("tells of nothing: %s", out)
			}
		})
	}
	t.Cleanup(func() {
		// The sidecar that runs has the last word: what is said once gives way to it.
		for len(c.got) > 0 {
			if r := <-c.got; r.ReporterSinceUnixMillis != 0 {
				t.Errorf("sent %+v", r)
			}
		}
	})
}

func TestFlags(t *testing.T) {
	t.Parallel()
	right := newPod(t, "127.0.0.2:1", nil).with(settings.ProbeSpec, "http://:80/", settings.ProbeHeaders, "Host: example.org\nX: y")
	wrong := newPod(t, "nowhere", nil).with(settings.ProbePeriod, "1")
	tests := map[string]struct {
		pod  *pod
		args []string
		want []string
		code int
	}{
		"settings":                 {right, []string{"--print-settings"}, []string{`BELAY_COLLECTOR="127.0.0.2:1"`, `BELAY_PROBE="http://:80/"`, `BELAY_PROBE_HEADERS="Host: example.org\nX: y"`, `BELAY_PROBE_SUCCESS_THRESHOLD="1"`}, 0},
		"settings that are wrong":  {wrong, []string{"--print-settings"}, []string{`BELAY_COLLECTOR="nowhere"`, "\nwrong:\n", `BELAY_PROBE_PERIOD is "1"`, `BELAY_COLLECTOR is "nowhere"`}, 2},
		"no settings":              {&pod{env: map[string]string{}}, []string{"--print-settings"}, []string{`BELAY_POD=""`, "BELAY_POD is not set", `BELAY_TOKEN_FILE="/var/run/belay/token"`}, 2},
		"the version":              {wrong, []string{"--version"}, []string{"belay-sidecar " + testVersion}, 0},
		"the manual":               {wrong, []string{"--help"}, []string{"--once", "--print-settings", "--version"}, 0},
		"an unknown flag":          {right, []string{"--nonce"}, []string{`unknown flag "--nonce"`, "--once"}, 2},
		"a word that is no flag":   {right, []string{"once"}, []string{`unknown flag "once"`}, 2},
		"more than one flag":       {right, []string{"--version", "--once"}, []string{`unexpected argument "--once"`}, 2},
		"an empty flag is no flag": {right, []string{""}, []string{`unknown flag ""`}, 2},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, code := tc.pod.output(t, tc.args...)
			if code != tc.code {
				t.Errorf("ended with %d, want %d: %s", code, tc.code, out)
			}
			for _, want := range tc.want {
				if !strings.Contains(out, want) {
					t.Errorf("says %q, want %q", out, want)
				}
			}
			if tc.args[0] == "--print-settings" {
				var names []string
				for line := range strings.Lines(out) {
					if name, _, ok := strings.Cut(line, "="); ok && strings.HasPrefix(name, "BELAY_") {
						names = append(names, name)
					}
				}
				if len(names) != 16 || !slices.Contains(names, settings.CAFile) {
					t.Errorf("prints %d settings: %v", len(names), names)
				}
			}
		})
	}
}
