package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is one of belay's processes.
type Process struct {
	// Name is unique in its stack: webhook-1.
	Name string
	// Port is that of the admission server; 0 for a controller.
	Port int
	// CollectorPort is that of the collector; 0 for a controller.
	CollectorPort int
	// ProbePort and MetricsPort are those of /readyz and /metrics.
	ProbePort, MetricsPort int
	// Log is the path of its log.
	Log string

	cmd  *exec.Cmd
	done chan struct{}
	err  error // valid after done
	once sync.Once
}

// startProcess runs a binary. Where the system can, the process dies with the
// thread that started it, which is kept for that: a test that crashes leaves
// nothing behind.
//
// env are variables, NAME=value, that take the place of the test's own; none of them means
// all of those.
func startProcess(name, binary, log string, args []string, env ...string) (*Process, error) {
	out, err := os.Create(filepath.Clean(log))
	if err != nil {
		return nil, fmt.Errorf("creating the log of %s: %w", name, err)
	}
	p := &Process{Name: name, Log: log, done: make(chan struct{})}
	p.cmd = exec.Command(binary, args...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.Env = env
	p.cmd.SysProcAttr = dieWithParent()
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		defer close(p.done)
		defer func() { _ = out.Close() }()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	return p, nil
}

// stopBound is how long a process may take to end after SIGTERM.
const stopBound = 20 * time.Second

// Stop ends the process with SIGTERM, after a bound with SIGKILL, and waits.
func (p *Process) Stop() error {
	var err error
	p.once.Do(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(stopBound):
			_ = p.cmd.Process.Kill()
			<-p.done
			err = fmt.Errorf("%s did not stop within %s; its log ends with:\n%s", p.Name, stopBound, p.Tail(20))
		}
	})
	<-p.done
	return err
}

// Kill ends the process with SIGKILL, and waits.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Signal sends a signal.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Pid is the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Wait waits for the process to end by itself and returns its exit code.
func (p *Process) Wait(ctx context.Context) (int, error) {
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("%s still runs: %w", p.Name, ctx.Err())
	}
}

// Tail is the end of the log, in lines.
func (p *Process) Tail(lines int) string {
	b, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// readyBound is how long a process may take to be ready: it takes a second.
const readyBound = time.Minute

// ready waits until /readyz answers 200.
func (p *Process) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyBound)
	defer cancel()
	go func() { // no need to wait on when it has ended
		select {
		case <-p.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	err := WaitOK(ctx, fmt.Sprintf("http://127.0.0.1:%d/readyz", p.ProbePort))
	if err == nil {
		return nil
	}
	select {
	case <-p.done:
		return fmt.Errorf("%s ended before it was ready: %w; its log ends with:\n%s", p.Name, p.err, p.Tail(20))
	default:
		return fmt.Errorf("%s is not ready (%w); its log ends with:\n%s", p.Name, err, p.Tail(20))
	}
}

// WaitOK waits until a URL answers 200.
func WaitOK(ctx context.Context, url string) error {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(resp.Status)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", url, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// freePorts finds ports of the loopback interface that are free now.
func freePorts(n int) ([]int, error) {
	var out []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("finding a free port: %w", err)
		}
		defer func() { _ = l.Close() }()
		addr, ok := l.Addr().(*net.TCPAddr)
		if !ok {
			return nil, fmt.Errorf("finding a free port: unexpected address %v", l.Addr())
		}
		out = append(out, addr.Port)
	}
	return out, nil
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Metrics is the text that the process serves under /metrics.
func (p *Process) Metrics(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/metrics", p.MetricsPort), http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

// Binary is the path of the program.
func (p *Process) Binary() string { return p.cmd.Path }
