package admission

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
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
	if most.Load() > largeBodies+smallBodies {
		t.Errorf("%d bytes at once", most.Load())
	}
}

// TestASmallReviewQueuesBehindNoLargeOne: also where large ones wait already.
func TestASmallReviewQueuesBehindNoLargeOne(t *testing.T) {
	t.Parallel()
	entered, leave := make(chan struct{}, 64), make(chan struct{})
	server := httptest.NewServer(NewBodies().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, _ := io.Copy(io.Discard, r.Body); n > small {
			entered <- struct{}{}
			<-leave
		}
	})))
	defer server.Close()
	post := func(body io.Reader, timeout string) (int, error) {
		resp, err := http.Post(server.URL+"?timeout="+timeout, "application/json", body)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	const large, waiting = 5 << 20, 20
	taken := &counted{}
	var all sync.WaitGroup
	for range 2 + waiting {
		all.Go(func() {
			if code, err := post(io.LimitReader(taken, large), "25s"); err != nil || code != http.StatusOK {
				t.Errorf("a large one: %d, %v", code, err)
			}
		})
	}
	<-entered // one at least; of those whose length is not known there is but one at a time
	if code, err := post(strings.NewReader("{}"), "20s"); err != nil || code != http.StatusOK {
		t.Errorf("a small one beside large ones that wait: %d, %v", code, err)
	}
	close(leave)
	all.Wait()
	if n := taken.n.Load(); n < (2+waiting)*large {
		t.Errorf("only %d bytes were sent", n)
	}
}

// TestLargeReviewsAreNotReadBeforeThereIsRoom: however many come at once, what is read of them
// stays within the room, and a beginning of each.
func TestLargeReviewsAreNotReadBeforeThereIsRoom(t *testing.T) {
	t.Parallel()
	const clients = 40
	for name, length := range map[string]int64{"announced": maxBody, "chunked": -1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				taken, leave := &counted{}, make(chan struct{})
				handler := NewBodies().Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-leave }))
				var all sync.WaitGroup
				for range clients {
					all.Go(func() {
						r := httptest.NewRequest(http.MethodPost, "/?timeout=30s", io.LimitReader(taken, maxBody))
						r.ContentLength = length
						handler.ServeHTTP(httptest.NewRecorder(), r)
					})
				}
				synctest.Wait() // all of them wait: for room, or to leave
				if n := taken.n.Load(); n > largeBodies+clients*2*small || n < maxBody {
					t.Errorf("%d bytes were read", n)
				}
				close(leave)
				all.Wait()
				if n := taken.n.Load(); n < clients*maxBody {
					t.Errorf("only %d bytes were read in the end", n)
				}
			})
		})
	}
}

// counted are bytes without end.
type counted struct{ n atomic.Int64 }

func (c *counted) Read(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}

// TestALargeReviewThatStopsHalfWay keeps others waiting for a moment, and not for the time that
// it gave itself.
func TestALargeReviewThatStopsHalfWay(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(NewBodies().Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	})))
	defer server.Close()
	for range 3 {
		c, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if _, err := fmt.Fprintf(c, "POST /?timeout=30s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", maxBody, strings.Repeat("x", 2*small)); err != nil {
			t.Fatal(err)
		}
	}
	resp, err := http.Post(server.URL+"?timeout=30s", "application/json", strings.NewReader(strings.Repeat("x", maxBody)))
	if err != nil {
		t.Fatal(err)
	}
	if _ = resp.Body.Close(); resp.StatusCode != http.StatusOK {
		t.Errorf("beside them: %s", resp.Status)
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
