package main

import (
	"io"
	"net"
	"testing"
)

// backend answers each connection with its name until it is closed.
func backend(t *testing.T, name string) (port int, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, name)
			c.Close()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port, func() { l.Close() }
}

func TestAFrontGoesToTheServersThatAreThere(t *testing.T) {
	t.Parallel()
	a, stopA := backend(t, "a")
	b, stopB := backend(t, "b")
	l, err := net.Listen("tcp", "127.0.0.1:0") // a port that is free
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	f, err := newFront(l.Addr().(*net.TCPAddr).Port, []int{a, b})
	if err != nil {
		t.Fatal(err)
	}
	ask := func() (out string) {
		for range 4 {
			c, err := net.Dial("tcp", f.listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			answer, _ := io.ReadAll(c) // reset, when there is no server
			c.Close()
			out += string(answer)
		}
		return out
	}
	if got := ask(); got != "abab" {
		t.Errorf("both answered %q", got)
	}
	stopA()
	if got := ask(); got != "bbbb" {
		t.Errorf("without the first, %q answered", got)
	}
	stopB()
	if got := ask(); got != "" {
		t.Errorf("without any, %q answered", got)
	}
	f.close()
	if c, err := net.Dial("tcp", f.listener.Addr().String()); err == nil {
		c.Close()
		t.Error("a closed front takes connections")
	}
}
