package admission

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestBodiesUnderWayAreBounded: large reviews wait for each other, small ones pass beside
// them, and who finds no room in time is told so.
func TestBodiesUnderWayAreBounded(t *testing.T) {
	t.Parallel()
	var under, most atomic.Int64
	entered, leave := make(chan struct{}, 64), make(chan struct{})
	server := httptest.NewServer(NewBodies().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		now := under.Add(n)
		for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
		}
		entered <- struct{}{}
		if n > 1<<10 {
			<-leave
		}
		under.Add(-n)
		w.WriteHeader(http.StatusOK)
	})))
	defer server.Close()
	post := func(size int, timeout string) (int, error) {
		resp, err := http.Post(server.URL+"?timeout="+timeout, "application/json", strings.NewReader(strings.Repeat("x", size)))
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	const large = 5 << 20
	done := make(chan error, 3)
	for range 2 {
		go func() {
			code, err := post(large, "20s")
			if err == nil && code != http.StatusOK {
				err = fmt.Errorf("code %d", code)
			}
			done <- err
		}()
	}
	<-entered
	<-entered
	if code, err := post(100, "20s"); err != nil || code != http.StatusOK {
		t.Errorf("a small one beside large ones: %d, %v", code, err)
	}
	<-entered
	if code, err := post(large, "200ms"); err != nil || code != http.StatusServiceUnavailable {
		t.Errorf("a third large one: %d, %v", code, err)
	}
	close(leave)
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if code, err := post(large, "20s"); err != nil || code != http.StatusOK {
		t.Errorf("when there is room again: %d, %v", code, err)
	}
	// Who announces much and sends nothing holds up nobody.
	for range 4 {
		c, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if _, err := fmt.Fprintf(c, "POST /?timeout=20s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n{", maxBody); err != nil {
			t.Fatal(err)
		}
	}
	if code, err := post(large, "2s"); err != nil || code != http.StatusOK {
		t.Errorf("beside those that send nothing: %d, %v", code, err)
	}
	if most.Load() > bodies {
		t.Errorf("%d bytes at once", most.Load())
	}
}

// TestAReviewThatIsHalfSent is answered when its time is over, and its connection is closed: no
// server waits for the rest for ever.
func TestAReviewThatIsHalfSent(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(NewBodies().Handler(http.NotFoundHandler()))
	defer server.Close()
	c, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := fmt.Fprint(c, "POST /?timeout=1s HTTP/1.1\r\nHost: x\r\nContent-Length: 3000\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") {
		t.Errorf("%v: %.60q", err, answer)
	}
}
