package channel_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/belay-dev/belay/sidecar/channel"
)

// inNamespace tells the test binary that it was started in a network namespace
// of its own.
const inNamespace = "BELAY_TEST_IN_NAMESPACE"

// noDevice is how the reason begins for which the test is skipped there.
const noDevice = "no network device can be made here"

// TestLostPackets is about peers from whom no packet comes back, not even one of
// their kernel's. Loopback has none, so it runs in a network namespace that has
// a device of its own for them.
func TestLostPackets(t *testing.T) {
	t.Parallel()
	if os.Getenv(inNamespace) == "" {
		runInNamespace(t, "TestLostPackets")
		return
	}
	w := startWire(t)
	t.Run("connect", func(t *testing.T) { t.Parallel(); connectToNobody(t, w) })
	t.Run("established", func(t *testing.T) { t.Parallel(); establishedThenLost(t, w) })
	t.Run("idle", func(t *testing.T) { t.Parallel(); idleThenLost(t, w) })
}

// connectToNobody is the only way into the time-out of the TCP connect.
func connectToNobody(t *testing.T, w *wire) {
	tests := map[string]struct {
		host byte
		cfg  channel.Config
	}{
		"the connect bound ends the call": {
			host: nobody, cfg: channel.Config{ConnectTimeout: short, RequestTimeout: far},
		},
		"the request bound ends the call, and the dial goes with it": {
			host: nobody + 1, cfg: channel.Config{ConnectTimeout: far, RequestTimeout: short},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.cfg.TLS = anybody
			c := newClient(t, tc.cfg)
			const port = 443
			_, err := callWithin(t, c, urlOf(tc.host, port))
			// The net package has two errors for the end of a dial's time, and
			// returns whichever comes first.
			var timeout net.Error
			if !errors.As(err, &timeout) || !timeout.Timeout() {
				t.Errorf("got %v, want a time-out", err)
			}
			if w.sent(tc.host) == 0 {
				t.Error("no packet was sent")
			}
			waitSockets(t, tc.host, port, synSent, 0)
		})
	}
}

// establishedThenLost is a node that is lost, or a NAT entry that expires: what
// belongs to the old connection vanishes, and a new one would do.
func establishedThenLost(t *testing.T, w *wire) {
	tests := map[string]struct {
		host   byte
		cfg    channel.Config
		byPing bool
	}{
		"the request bound ends the call": {
			host: 2, cfg: channel.Config{RequestTimeout: short},
		},
		"the ping bound ends the call": {
			host: 3, cfg: channel.Config{RequestTimeout: far, PingAfter: short / 20, PingTimeout: short}, byPing: true,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, port := startServerAtSelf(t)
			url := urlOf(tc.host, port)
			tc.cfg.TLS = trust(s.Certificate(), certified)
			c := newClient(t, tc.cfg)
			mustPost(t, c, url)
			w.loseConnections(tc.host)
			if _, err := callWithin(t, c, url); err == nil || errors.Is(err, context.DeadlineExceeded) == tc.byPing {
				t.Errorf("got %v; want a ping to end the call: %t", err, tc.byPing)
			}
			waitSockets(t, tc.host, port, established, 0)
			for range 2 {
				mustPost(t, c, url)
			}
			if got := s.dialled(); got != 2 {
				t.Errorf("dialled %d times, want 2", got)
			}
		})
	}
}

// idleThenLost: no call loses its time, since pings find it out before.
func idleThenLost(t *testing.T, w *wire) {
	const host = 4
	s, port := startServerAtSelf(t)
	url := urlOf(host, port)
	c := newClient(t, channel.Config{
		TLS:            trust(s.Certificate(), certified),
		RequestTimeout: far,
		PingAfter:      short / 20,
		PingTimeout:    short,
	})
	mustPost(t, c, url)
	waitSockets(t, host, port, established, 1)
	w.loseConnections(host)
	waitSockets(t, host, port, established, 0)
	if _, err := callWithin(t, c, url); err != nil {
		t.Error(err)
	}
	if got := s.dialled(); got != 2 {
		t.Errorf("dialled %d times, want 2", got)
	}
}

// runInNamespace runs the named test in a process of the test binary that has a
// network namespace of its own.
func runInNamespace(t *testing.T, test string) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	command := func(flags uintptr) *exec.Cmd {
		out.Reset()
		cmd := exec.CommandContext(t.Context(), program, "-test.run=^"+test+"$", "-test.v")
		cmd.Env = append(os.Environ(), inNamespace+"=true")
		cmd.Stdout, cmd.Stderr = &out, &out
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | flags, Pdeathsig: syscall.SIGKILL}
		if flags&syscall.CLONE_NEWUSER != 0 {
			cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
			cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
		}
		return cmd
	}
	cmd := command(0)
	if err = cmd.Start(); errors.Is(err, syscall.EPERM) {
		cmd = command(syscall.CLONE_NEWUSER) // which not every system gives to everybody
		err = cmd.Start()
	}
	var refused syscall.Errno
	if errors.As(err, &refused) {
		t.Skipf("no network namespace can be made here: %v (errno %d)", err, int(refused))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v:\n%s", err, &out)
	}
	if _, rest, found := strings.Cut(out.String(), noDevice); found {
		reason, _, _ := strings.Cut(rest, "\n")
		t.Skip(noDevice + reason)
	}
	if !strings.Contains(out.String(), "--- PASS: "+test) {
		t.Fatalf("the test did not run in its namespace:\n%s", &out)
	}
}

// self is the last byte of the only address that there is. Those up to nobody
// lead back to it, and packets to the others vanish.
const (
	self   = 1
	nobody = 128
)

func address(host byte) string { return fmt.Sprintf("10.99.0.%d", host) }

func urlOf(host byte, port int) string { return fmt.Sprintf("https://%s:%d", address(host), port) }

// wire is a network device whose other end is this test. It needs no second
// machine: a packet from self to another address is sent back with the two
// addresses exchanged, which no checksum notices. So a client that connects to
// another address reaches a server at self.
type wire struct {
	mu   sync.Mutex
	seen map[flow]int  // packets
	lost map[flow]bool // connections
}

// flow is a connection as both directions have it.
type flow struct {
	host        byte
	port, other uint16 // ordered
}

func startWire(t *testing.T) *wire {
	t.Helper()
	const path = "/dev/net/tun"
	// Not os.OpenFile, for which a device that has no interface yet is broken.
	fd, err := syscall.Open(path, syscall.O_RDWR|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	var refused syscall.Errno
	if errors.As(err, &refused) {
		t.Skipf("%s: opening %s: %v (errno %d)", noDevice, path, refused, int(refused))
	}
	if refused := control(fd, syscall.TUNSETIFF, request("belay", flags(syscall.IFF_TUN|syscall.IFF_NO_PI))); refused != 0 {
		_ = syscall.Close(fd)
		t.Skipf("%s: TUNSETIFF: %v (errno %d)", noDevice, refused, int(refused))
	}
	device := os.NewFile(uintptr(fd), path)
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(socket)
	up := flags(syscall.IFF_UP | syscall.IFF_RUNNING)
	for _, step := range []struct {
		name    string
		code    uintptr
		request ifreq
	}{
		{"address", syscall.SIOCSIFADDR, request("belay", ipv4(10, 99, 0, self))},
		{"netmask", syscall.SIOCSIFNETMASK, request("belay", ipv4(255, 255, 255, 0))},
		{"up", syscall.SIOCSIFFLAGS, request("belay", up)},
		{"loopback", syscall.SIOCSIFFLAGS, request("lo", up)},
	} {
		if failed := control(socket, step.code, step.request); failed != 0 {
			t.Fatalf("%s of the network device: %v", step.name, failed)
		}
	}
	w := &wire{seen: map[flow]int{}, lost: map[flow]bool{}}
	var running sync.WaitGroup
	running.Go(func() { w.carry(device) })
	t.Cleanup(func() {
		_ = device.Close()
		running.Wait()
	})
	return w
}

// carry ends when the device is closed.
func (w *wire) carry(device *os.File) {
	buf := make([]byte, 64<<10)
	for {
		n, err := device.Read(buf)
		if err != nil {
			return
		}
		packet := buf[:n]
		f, ok := flowOf(packet)
		if !ok || w.loses(f) {
			continue
		}
		var from [4]byte
		copy(from[:], packet[12:16])
		copy(packet[12:16], packet[16:20])
		copy(packet[16:20], from[:])
		_, _ = device.Write(packet) // one that does not get through is sent again
	}
}

// flowOf knows TCP over IPv4 alone.
func flowOf(packet []byte) (flow, bool) {
	if len(packet) < 20 || packet[0]>>4 != 4 || packet[9] != syscall.IPPROTO_TCP {
		return flow{}, false
	}
	header := int(packet[0]&15) * 4
	if len(packet) < header+4 {
		return flow{}, false
	}
	from, to := binary.BigEndian.Uint16(packet[header:]), binary.BigEndian.Uint16(packet[header+2:])
	return flow{host: packet[19], port: min(from, to), other: max(from, to)}, true
}

func (w *wire) loses(f flow) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen[f]++
	return f.host >= nobody || w.lost[f]
}

// loseConnections makes all packets of the connections vanish that the host has
// by now.
func (w *wire) loseConnections(host byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for f := range w.seen {
		if f.host == host {
			w.lost[f] = true
		}
	}
}

// sent counts the packets to the host.
func (w *wire) sent(host byte) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	count := 0
	for f, packets := range w.seen {
		if f.host == host {
			count += packets
		}
	}
	return count
}

// startServerAtSelf starts a server that is reached by every other address.
func startServerAtSelf(t *testing.T) (s *server, port int) {
	t.Helper()
	listener, err := net.Listen("tcp", address(self)+":0")
	if err != nil {
		t.Fatal(err)
	}
	s = newServer(true, func(http.ResponseWriter, *http.Request) {})
	_ = s.Listener.Close()
	s.Listener = listener
	s.StartTLS()
	t.Cleanup(s.Close)
	return s, listener.Addr().(*net.TCPAddr).Port
}

// States of sockets in /proc/net/tcp.
const (
	established = "01"
	synSent     = "02"
)

// waitSockets waits until that many sockets to the host's port are in the state.
// The server's own sockets are none of them: they go to a port of the client.
func waitSockets(t *testing.T, host byte, port int, state string, want int) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for {
		got := sockets(t, host, port, state)
		if got == want {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%d sockets to %s are in state %s, want %d", got, address(host), state, want)
		}
	}
}

func sockets(t *testing.T, host byte, port int, state string) int {
	t.Helper()
	table, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	// The kernel prints an address as a number in the byte order of the machine.
	remote := fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32([]byte{10, 99, 0, host}), port)
	count := 0
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); len(fields) > 3 && fields[2] == remote && fields[3] == state {
			count++
		}
	}
	return count
}

// ifreq is the kernel's struct of this name: an interface and what to do to it.
type ifreq struct {
	name  [syscall.IFNAMSIZ]byte
	value [24]byte
}

func request(device string, value [24]byte) ifreq {
	r := ifreq{value: value}
	copy(r.name[:], device)
	return r
}

func flags(bits uint16) (value [24]byte) {
	binary.NativeEndian.PutUint16(value[:], bits)
	return value
}

// ipv4 is a sockaddr_in.
func ipv4(a, b, c, d byte) (value [24]byte) {
	binary.NativeEndian.PutUint16(value[:], syscall.AF_INET)
	copy(value[4:], []byte{a, b, c, d})
	return value
}

func control(fd int, code uintptr, r ifreq) syscall.Errno {
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), code, uintptr(unsafe.Pointer(&r)))
	return errno
}
