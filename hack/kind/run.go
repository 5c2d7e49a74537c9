package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A tools runs commands, and tells what goes on.
type tools struct {
	log  io.Writer
	env  []string // of every command; what is here wins over the process's own
	path string   // goes before PATH
}

// proxies are variables that kind would give to the nodes, where they make no sense.
var proxies = []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"}

func (t *tools) environ(more ...string) []string {
	env := append(os.Environ(), t.env...) // of two values, the last one counts
	if t.path != "" {
		env = append(env, "PATH="+t.path+":"+os.Getenv("PATH"))
	}
	return append(env, more...)
}

func (t *tools) look(name string) (string, error) {
	for _, dir := range strings.Split(t.path+":"+os.Getenv("PATH")+":/usr/sbin:/sbin", ":") {
		file := dir + "/" + name
		if info, err := os.Stat(file); dir != "" && err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("%s is not on PATH", name)
}

// A call is one command.
type call struct {
	name  string
	args  []string
	dir   string
	env   []string
	stdin io.Reader
	// loud shows what the command says to people.
	loud bool
}

func (t *tools) command(ctx context.Context, c call) (*exec.Cmd, error) {
	file, err := t.look(c.name)
	if strings.Contains(c.name, "/") {
		file, err = c.name, nil
	}
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, file, c.args...)
	cmd.Dir, cmd.Stdin, cmd.Env = c.dir, c.stdin, t.environ(c.env...)
	if c.name == "kind" {
		cmd.Env = slices.DeleteFunc(cmd.Env, func(v string) bool {
			name, _, _ := strings.Cut(v, "=")
			return slices.Contains(proxies, strings.ToUpper(name))
		})
	}
	// An interrupted go build or docker ends its children.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	return cmd, nil
}

// output returns what a command prints. The error has the end of what it says.
func (t *tools) output(ctx context.Context, c call) (string, error) {
	cmd, err := t.command(ctx, c)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	said := &tail{}
	if c.loud {
		said.to = t.log
	}
	cmd.Stdout, cmd.Stderr = &out, said
	if err := cmd.Run(); err != nil {
		return "", failed(ctx, c, err, said.String()+out.String())
	}
	return strings.TrimSpace(out.String()), nil
}

func (t *tools) run(ctx context.Context, c call) error {
	_, err := t.output(ctx, c)
	return err
}

func failed(ctx context.Context, c call, err error, said string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	line := strings.Join(append([]string{c.name}, c.args...), " ")
	if len(line) > 200 {
		line = line[:200] + " …"
	}
	if said = strings.TrimSpace(said); said != "" {
		return fmt.Errorf("%s: %w; its last lines:\n%s", line, err, said)
	}
	return fmt.Errorf("%s: %w", line, err)
}

// tail keeps the end of what is written.
type tail struct {
	to io.Writer

	mu   sync.Mutex
	kept []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	t.kept = t.kept[max(0, len(t.kept)-4096):]
	if t.to != nil {
		return t.to.Write(p)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.kept)
}

// every is how often a long step says that it is alive.
const every = 15 * time.Second

// step runs do, and tells how long it took.
func (t *tools) step(what string, do func() error) error {
	start := time.Now()
	fmt.Fprintf(t.log, "==> %s\n", what)
	done := make(chan error, 1)
	go func() { done <- do() }()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			fmt.Fprintf(t.log, "    %s: %.0f s\n", what, time.Since(start).Seconds())
		case err := <-done:
			if err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			if took := time.Since(start); took > time.Second {
				fmt.Fprintf(t.log, "    %s: done after %.0f s\n", what, took.Seconds())
			}
			return nil
		}
	}
}

// eventually tries until there is no error.
func eventually(ctx context.Context, within time.Duration, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("not within %s", within), err)
		case <-tick.C:
		}
	}
}

// lock makes processes take turns; closing the file gives the turn on.
func lock(name string, waiting func()) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		waiting()
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
	} else if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}
