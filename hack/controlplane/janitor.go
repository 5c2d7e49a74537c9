package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
)

// A janitor cleans up a run directory as soon as the launcher has ended, in
// whatever way.
type janitor struct {
	cmd  *exec.Cmd
	pipe *os.File // its end in the launcher, which is what ends the janitor
}

// self returns a path to execute this very program again. On Linux it stays
// right when the file has been replaced by a newer build.
func self() (string, error) {
	if runtime.GOOS == "linux" {
		return "/proc/self/exe", nil
	}
	return os.Executable()
}

func startJanitor(dir string) (*janitor, error) {
	exe, err := self()
	if err != nil {
		return nil, err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	cmd := exec.Command(exe, "janitor", dir)
	cmd.Args[0] = "controlplane"
	cmd.Dir = "/"
	cmd.Stdin = read
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // out of reach of Ctrl-C
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, write.Close())
	}
	return &janitor{cmd, write}, nil
}

// finish lets the janitor clean up and waits for it.
func (j *janitor) finish() error {
	return errors.Join(j.pipe.Close(), j.cmd.Wait())
}

// runJanitor is the hidden command: controlplane janitor DIR.
func runJanitor(args []string) error {
	if len(args) != 1 {
		return usageError("janitor is not for people")
	}
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return cleanup(args[0])
}
