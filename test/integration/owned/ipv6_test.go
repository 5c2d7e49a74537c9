package owned

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/belay-dev/belay/test/integration/stack"
)

// inIPv6OnlyEnv makes the test binary play the part of inIPv6Only; its value is
// the Unix socket that leads to the API server.
const inIPv6OnlyEnv = "BELAY_TEST_IPV6_ONLY"

// inIPv6Only runs in a network namespace of its own, as bare as a Pod's in an
// IPv6-only cluster: no IPv4 but the kernel's own 127.0.0.1 on the loopback, which
// every namespace has. (Without that Go itself takes ":port" for 0.0.0.0, since it
// probes for mapped addresses with it.) It starts belay-webhook with listeners on
// ":port" and reaches them over ::1, where a listener on 0.0.0.0 is not.
func inIPv6Only(socket string) error {
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("bringing the loopback up: %w %s", err, out)
	}
	l, err := net.Listen("tcp", "[::1]:16443")
	if err != nil {
		return err
	}
	go forward(l, "unix", socket)
	cfg, err := clientcmd.LoadFromFile(os.Getenv("BELAY_TEST_KUBECONFIG"))
	if err != nil {
		return err
	}
	for _, c := range cfg.Clusters {
		c.Server, c.TLSServerName = "https://[::1]:16443", "localhost"
	}
	kubeconfig := socket + ".kubeconfig"
	if err := clientcmd.WriteToFile(*cfg, kubeconfig); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Getenv("BELAY_TEST_BINARY"), "--kubeconfig="+kubeconfig, "--dns-names=localhost",
		"--listen=:19443", "--collector-listen=:19444", "--health-probe-bind-address=:18081", "--metrics-bind-address=[::1]:18080")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	for _, url := range []string{"http://[::1]:18081/readyz", "http://[::1]:18080/metrics"} {
		if err := stack.WaitOK(ctx, url); err != nil {
			return err
		}
	}
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} // what is asked is only whether somebody listens
	for _, address := range []string{"[::1]:19443", "[::1]:19444"} {
		c, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		if err := c.Close(); err != nil {
			return err
		}
	}
	_, err = os.Stdout.WriteString("all listeners reached\n")
	return err
}

// forward passes every connection of a listener on to an address, until the
// listener is closed.
func forward(l net.Listener, network, address string) {
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = in.Close() }()
			out, err := net.Dial(network, address)
			if err != nil {
				return
			}
			defer func() { _ = out.Close() }()
			go func() {
				_, _ = io.Copy(out, in)
				_ = out.Close()
			}()
			_, _ = io.Copy(in, out)
		}()
	}
}
