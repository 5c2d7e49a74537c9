package probe_test

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/belay-dev/belay/sidecar/probe"
)

func TestTCP(t *testing.T) {
	t.Parallel()
	for _, host := range loopbacks {
		t.Run(host, func(t *testing.T) {
			t.Parallel()
			left := make(chan struct{}, 1)
			addr := answer(t, host, func(conn net.Conn) {
				if n, err := conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
					t.Errorf("got %d bytes and %v, want the end", n, err)
				}
				left <- struct{}{}
			})
			p := newProber(t, "tcp://"+addr)
			for range 2 {
				want(t, p, probe.ReasonSucceeded)
				<-left
			}
		})
	}
}

// blackHole is an address that answers no connect: the kernel drops what a full queue has
// no room for.
func blackHole(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	sa, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(sa.(*syscall.SockaddrInet4).Port))
	for range 10 {
		conn, err := net.DialTimeout("tcp", addr, short)
		if err != nil {
			return addr
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	t.Fatal("the queue takes ever more")
	return ""
}

func TestNoAnswerToConnect(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"tcp", "http", "https", "grpc"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			want(t, newProber(t, scheme+"://"+blackHole(t), timeout(short)), probe.ReasonTimeout)
		})
	}
}

// What hangs leaves nothing behind. This runs alone: it counts what the process has.
func TestNothingIsLeftOfProbes(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which closes forgotten connections
	silent := listen(t, "127.0.0.1").Addr().String() // connects, as its queue has room, and says nothing
	hole := blackHole(t)
	for name, text := range map[string]string{
		"http to silence": "http://" + silent, "https to silence": "https://" + silent, "tcp to silence": "tcp://" + silent, "grpc to silence": "grpc://" + silent,
		"http to nowhere": "http://" + hole, "https to nowhere": "https://" + hole, "tcp to nowhere": "tcp://" + hole, "grpc to nowhere": "grpc://" + hole,
	} {
		t.Run(name, func(t *testing.T) {
			goroutines, files := runtime.NumGoroutine(), openFiles(t)
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() {
					p := newProber(t, text, timeout(short/5))
					for range 10 {
						p.Probe(t.Context())
					}
				})
			}
			all.Wait()
			// What is left of the last ones ends soon, if it ends.
			for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); runtime.Gosched() {
				if runtime.NumGoroutine() <= goroutines && openFiles(t) <= files {
					return
				}
			}
			t.Errorf("there are %d goroutines, %d before; %d files, %d before", runtime.NumGoroutine(), goroutines, openFiles(t), files)
		})
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
