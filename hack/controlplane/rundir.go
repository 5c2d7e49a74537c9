package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// Ports are chosen below the ranges from which Linux (32768) and macOS
	// (49152) take the ports of outgoing connections.
	firstPort, lastPort = 20000, 29999

	// cleanupWithin bounds how long killed processes may take to vanish and
	// their directory to be removable.
	cleanupWithin = 10 * time.Second
)

// A runDir is the directory of one running control plane.
type runDir struct {
	path  string
	lock  *os.File // held as long as the launcher lives
	ports ports
}

type ports struct {
	etcd, etcdPeer, controllerManager int
	apiservers                        []int // one for each kube-apiserver
	front                             int   // of all of them; 0 when there is but one
}

// countPorts is how many ports a control plane with so many servers listens on.
func countPorts(apiservers int) int {
	if apiservers == 1 {
		return 4
	}
	return 4 + apiservers
}

func newPorts(numbers []int, apiservers int) ports {
	p := ports{etcd: numbers[0], etcdPeer: numbers[1], controllerManager: numbers[2], apiservers: numbers[3 : 3+apiservers]}
	if apiservers > 1 {
		p.front = numbers[3+apiservers]
	}
	return p
}

func (r *runDir) file(elem ...string) string {
	return filepath.Join(append([]string{r.path}, elem...)...)
}

// newRunDir removes run directories whose launcher is gone and creates one
// below root, with ports for so many kube-apiservers. The lock on root keeps other launchers from taking a directory
// that is not locked yet for a stale one, and from choosing the same ports.
func newRunDir(ctx context.Context, root string, apiservers int, log io.Writer) (*runDir, error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, err
	}
	rootLock, err := lockFile(ctx, root+".lock", func() {})
	if err != nil {
		return nil, err
	}
	defer rootLock.Close()
	if err := sweep(root, log); err != nil {
		return nil, fmt.Errorf("removing stale run directories: %w", err)
	}

	path, err := os.MkdirTemp(root, "")
	if err != nil {
		return nil, err
	}
	r := &runDir{path: path}
	if r.lock, err = tryLock(r.file("lock")); err != nil {
		return nil, errors.Join(err, os.RemoveAll(path))
	}
	if err := r.fill(root, apiservers); err != nil {
		return nil, errors.Join(err, r.lock.Close(), os.RemoveAll(path))
	}
	return r, nil
}

func (r *runDir) fill(root string, apiservers int) error {
	numbers, err := freePorts(root, countPorts(apiservers))
	if err != nil {
		return err
	}
	r.ports = newPorts(numbers, apiservers)
	if err := os.WriteFile(r.file("ports"), []byte(strings.Trim(fmt.Sprint(numbers), "[]")), 0o600); err != nil {
		return err
	}
	return os.WriteFile(r.file("pids"), nil, 0o600)
}

// freePorts returns n ports that nobody listens on and that no other control
// plane below root has written down; one that is stopped needs its ports again.
func freePorts(root string, n int) ([]int, error) {
	taken := map[int]bool{}
	files, err := filepath.Glob(filepath.Join(root, "*", "ports"))
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		content, err := os.ReadFile(f)
		if err != nil {
			continue // that control plane ends just now
		}
		for _, s := range strings.Fields(string(content)) {
			if p, err := strconv.Atoi(s); err == nil {
				taken[p] = true
			}
		}
	}
	var free []int
	for range 1000 {
		p := firstPort + rand.IntN(lastPort-firstPort+1)
		if taken[p] {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p))
		if err != nil {
			continue
		}
		l.Close()
		taken[p] = true
		if free = append(free, p); len(free) == n {
			return free, nil
		}
	}
	return nil, fmt.Errorf("found no %d free ports between %d and %d", n, firstPort, lastPort)
}

// sweep cleans up run directories below root whose lock is not held. It wants
// the lock on root.
func sweep(root string, log io.Writer) error {
	entries, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		dir := filepath.Join(root, e.Name())
		lock, err := tryLock(filepath.Join(dir, "lock"))
		if errors.Is(err, errLocked) || errors.Is(err, os.ErrNotExist) {
			continue // in use, or its janitor was quicker
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(log, "removing %s, left over by a launcher that is gone\n", dir)
		if err := errors.Join(cleanup(dir), lock.Close()); err != nil {
			return err
		}
	}
	return nil
}

// cleanup kills the recorded processes of a run directory and removes it. It
// may run twice at the same time.
func cleanup(dir string) error {
	deadline := time.Now().Add(cleanupWithin)
	processes, err := readProcesses(filepath.Join(dir, "pids"))
	if err != nil {
		return err
	}
	for _, p := range processes {
		if p.alive() {
			// Each component leads a process group of its own.
			if err := syscall.Kill(-p.pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("killing process %d: %w", p.pid, err)
			}
		}
	}
	for _, p := range processes {
		for p.alive() {
			if time.Now().After(deadline) {
				return fmt.Errorf("process %d does not end", p.pid)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	if err := removeCopy(dir); err != nil {
		return err
	}
	// A component that was just forked may still open its log.
	for {
		err := os.RemoveAll(dir)
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}
