package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// readyWithin bounds a start. It takes seconds; on a machine that compiles
	// something else meanwhile it was seen to take ten times as long.
	readyWithin = 3 * time.Minute

	// lastLines is how many lines of its log a failed component is quoted with.
	lastLines = 20
)

// A component is etcd, kube-apiserver or kube-controller-manager, running or
// not. It is not safe for concurrent use.
type component struct {
	name       string
	bin        string
	flags      []string
	dir        *runDir
	stopWithin time.Duration // from SIGTERM to SIGKILL
	healthy    func(context.Context) error
	prepare    func(ctx context.Context, flags []string) error // before a start; may be nil
	exited     func(name string, err error)                    // when it ends and nobody asked it to

	running *process // nil when it does not run
}

type process struct {
	cmd     *exec.Cmd
	watched atomic.Bool   // its end is worth a report
	done    chan struct{} // closed when it has ended
	err     error         // how it ended; readable when done is closed
}

func (c *component) logFile() string { return c.dir.file(c.name + ".log") }

// isRunning tells whether the process is there; a paused one is.
func (c *component) isRunning() bool {
	if c.running == nil {
		return false
	}
	select {
	case <-c.running.done:
		return false
	default:
		return true
	}
}

// start starts the component with extra flags replacing its own of the same
// name, for this run only, and waits until it is healthy.
func (c *component) start(ctx context.Context, extra []string) error {
	if c.isRunning() {
		return fmt.Errorf("%s is running already", c.name)
	}
	flags, err := mergeFlags(c.flags, extra)
	if err != nil {
		return err
	}
	if c.prepare != nil {
		if err := c.prepare(ctx, flags); err != nil {
			return fmt.Errorf("preparing %s: %w", c.name, err)
		}
	}
	if err := c.launch(flags); err != nil {
		return fmt.Errorf("starting %s: %w", c.name, err)
	}
	if err := c.waitFor(ctx, c.healthy); err != nil {
		return errors.Join(err, c.kill())
	}
	c.running.watched.Store(true)
	return nil
}

// launch runs this program again, which records itself and then becomes the
// component; see becomeComponent.
func (c *component) launch(flags []string) error {
	exe, err := self()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(c.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	args := append([]string{"component", c.dir.file("pids"), strconv.Itoa(os.Getpid()), c.bin}, flags...)
	cmd := exec.Command(exe, args...)
	cmd.Args[0] = "controlplane"
	cmd.Dir = c.dir.path
	cmd.Env = componentEnv()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = groupOfItsOwn()
	if err := cmd.Start(); err != nil {
		return err
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() { // ends with the process, which stop and kill wait for
		p.err = cmd.Wait()
		close(p.done)
		if p.watched.Load() {
			c.exited(c.name, c.failure("ended unexpectedly", p.err))
		}
	}()
	c.running = p
	return nil
}

// groupOfItsOwn keeps Ctrl-C, which the terminal sends to a whole group, from
// components: the launcher stops them in order.
func groupOfItsOwn() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// componentEnv keeps variables such as ETCD_NAME or KUBECONFIG away from the
// components, which would heed them. Unless GOGC says otherwise they collect
// garbage less often than usual: with few objects, it took an eighth of a
// kube-apiserver's time.
func componentEnv() []string {
	env := []string{"GOGC=400"}
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "TZ", "GODEBUG", "GOMAXPROCS", "GOMEMLIMIT", "GOGC"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// becomeComponent is the hidden command: controlplane component PIDS PARENT
// BINARY FLAGS... . When the parent is gone after the record was written, the
// janitor may have read the pids before, so it must not go on. When it is
// there, the janitor reads them later.
func becomeComponent(args []string) error {
	if len(args) < 3 {
		return usageError("component is not for people")
	}
	if err := recordProcess(args[0]); err != nil {
		return fmt.Errorf("recording the process: %w", err)
	}
	if strconv.Itoa(os.Getppid()) != args[1] {
		return errors.New("the launcher is gone")
	}
	return fmt.Errorf("executing %s: %w", args[2], syscall.Exec(args[2], args[2:], os.Environ()))
}

// waitFor waits until healthy returns nil. It fails when the running component
// ends meanwhile or it takes too long.
func (c *component) waitFor(ctx context.Context, healthy func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	last := errors.New("it was not asked yet")
	for {
		asked, done := context.WithTimeout(ctx, 5*time.Second)
		err := healthy(asked)
		done()
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-c.running.done:
			return c.failure("ended before it was healthy", c.running.err)
		case <-ctx.Done():
			return c.failure("is not healthy", fmt.Errorf("%w: %w", context.Cause(ctx), last))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (c *component) failure(what string, err error) error {
	if err == nil {
		err = errors.New("exit status 0")
	}
	return fmt.Errorf("%s %s: %w; the end of its log:\n%s", c.name, what, err, logTail(c.logFile()))
}

// stop ends the component: SIGTERM, then SIGKILL when that takes too long. It
// is no error when it does not run.
func (c *component) stop() error {
	if !c.isRunning() {
		return nil
	}
	c.running.watched.Store(false)
	// A paused process handles SIGTERM once it is continued.
	if err := errors.Join(c.signal(syscall.SIGTERM), c.signal(syscall.SIGCONT)); err != nil {
		return err
	}
	select {
	case <-c.running.done:
		return nil
	case <-time.After(c.stopWithin):
		return c.kill()
	}
}

func (c *component) kill() error {
	if !c.isRunning() {
		return nil
	}
	c.running.watched.Store(false)
	if err := c.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-c.running.done
	return nil
}

// signal sends s; it is no error when the process has just ended.
func (c *component) signal(s syscall.Signal) error {
	if err := c.running.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("sending %s to %s: %w", s, c.name, err)
	}
	return nil
}

// logTail returns the last lines of a log, indented.
func logTail(file string) string {
	const enough = 32 << 10
	f, err := os.Open(file)
	if err != nil {
		return "  (no log: " + err.Error() + ")"
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > enough {
		if _, err := f.Seek(-enough, io.SeekEnd); err != nil {
			return "  (no log: " + err.Error() + ")"
		}
	}
	content, err := io.ReadAll(f)
	if err != nil {
		return "  (no log: " + err.Error() + ")"
	}
	lines := strings.Split(string(bytes.TrimSpace(content)), "\n")
	return "  " + strings.Join(lines[max(0, len(lines)-lastLines):], "\n  ")
}
