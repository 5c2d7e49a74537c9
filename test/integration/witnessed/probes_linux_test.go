package witnessed

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"testing"

	"github.com/belay-dev/belay/test/integration/stack"
)

// Numbers of system calls, which are the same on every architecture.
const (
	pidfdOpen  = 434
	pidfdGetfd = 438
)

// breakListener ends a listening socket of another process, behind its back.
func breakListener(pid, port int) error {
	process, _, errno := syscall.Syscall(pidfdOpen, uintptr(pid), 0, 0)
	if errno != 0 {
		return fmt.Errorf("pidfd_open: %w", errno)
	}
	defer func() { _ = syscall.Close(int(process)) }()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return err
	}
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			return err
		}
		fd, _, errno := syscall.Syscall(pidfdGetfd, process, uintptr(n), 0)
		if errors.Is(errno, syscall.EBADF) {
			continue // closed meanwhile
		}
		if errno != 0 {
			return fmt.Errorf("pidfd_getfd: %w", errno)
		}
		found, err := shut(int(fd), port)
		_ = syscall.Close(int(fd))
		if found {
			return err
		}
	}
	return fmt.Errorf("process %d does not listen on port %d", pid, port)
}

// shut ends a socket if it listens on the port.
func shut(fd, port int) (bool, error) {
	if listens, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN); err != nil || listens == 0 {
		return false, nil
	}
	address, err := syscall.Getsockname(fd)
	if err != nil {
		return false, nil
	}
	if a, ok := address.(*syscall.SockaddrInet4); !ok || a.Port != port {
		return false, nil
	}
	return true, syscall.Shutdown(fd, syscall.SHUT_RDWR)
}

// The binary that is shipped, not one with a failpoint: a listener that breaks is not survived.
func TestExitWhenAListenerBreaks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		port   func(*stack.Process) int
		reason string
	}{
		"the collector's":        {func(p *stack.Process) int { return p.CollectorPort }, "belay-webhook stopped: collector: accept tcp "},
		"the admission server's": {func(p *stack.Process) int { return p.Port }, "belay-webhook stopped: manager: accept tcp "},
		"the probes'":            {func(p *stack.Process) int { return p.ProbePort }, "belay-webhook stopped: probes: accept tcp "},
		"that of the metrics":    {func(p *stack.Process) int { return p.MetricsPort }, "belay-webhook stopped: manager: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := stack.TestContext(t)
			p := launched(t, shared, "")
			answersWith(ctx, t, p, "/readyz", http.StatusOK)
			err := breakListener(p.Pid(), c.port(p))
			if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSYS) {
				t.Skipf("sockets of other processes cannot be taken here: %v", err)
			}
			must(t, err)
			exits(ctx, t, p, 70, c.reason)
		})
	}
}
