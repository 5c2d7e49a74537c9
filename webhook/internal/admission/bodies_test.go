package admission

import (
	"context"
	"crypto/tls"
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

	"github.com/belay-dev/belay/webhook/internal/metrics"
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
	resp, err := http.Post(server.URL+"?timeout=200ms", "application/json", strings.NewReader(strings.Repeat("x", large)))
	if err != nil {
		t.Fatal(err)
	}
	if _ = resp.Body.Close(); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") != "1" {
		t.Errorf("a third large one: %s %v", resp.Status, resp.Header)
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

// TestReviewsThatArePutOffAreCounted is not parallel: it reads the process's metrics.
func TestReviewsThatArePutOffAreCounted(t *testing.T) {
	bodies := NewBodies()
	handler := bodies.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	ctx := WithAnswered(t.Context(), func() {})
	connectionOf(ctx).calls.Store(ownCalls)
	before := count(t, metrics.Busy)
	for _, c := range []struct {
		under int64
		code  int
		want  float64
	}{
		{under: maxCalls - 1, code: http.StatusOK, want: 0},
		{under: maxCalls, code: http.StatusServiceUnavailable, want: 1},
		{under: maxCalls, code: http.StatusServiceUnavailable, want: 2},
	} {
		bodies.calls.Store(c.under)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader("{}")))
		if got := count(t, metrics.Busy) - before; w.Code != c.code || got != c.want {
			t.Errorf("with %d under way: %d, and %v are counted", c.under, w.Code, got)
		}
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
	const large, waiting = 5 << 20, 8
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

// TestStallersRefuseNobody: what was announced and does not come has no room, and who comes again
// and again with a beginning keeps no others waiting.
func TestStallersRefuseNobody(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(NewBodies().Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })))
	defer server.Close()
	stop := make(chan struct{})
	var stallers sync.WaitGroup
	begun := make(chan struct{}, 64)
	for range 6 {
		stallers.Go(func() {
			for again := true; again; {
				c, err := tls.Dial("tcp", server.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true})
				if err != nil {
					return
				}
				_, _ = fmt.Fprintf(c, "POST /?timeout=30s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", small+1, strings.Repeat("x", small+1))
				select {
				case begun <- struct{}{}:
				default:
				}
				hungUp := make(chan struct{})
				go func() { _, _ = io.Copy(io.Discard, c); close(hungUp) }()
				select {
				case <-hungUp:
				case <-stop:
					again = false
				}
				_ = c.Close()
				<-hungUp
			}
		})
	}
	for range 6 {
		<-begun
	}
	for range 8 {
		resp, err := server.Client().Post(server.URL+"?timeout=5s", "application/json", strings.NewReader(strings.Repeat("x", 100<<10)))
		if err != nil {
			t.Fatal(err)
		}
		if _ = resp.Body.Close(); resp.StatusCode != http.StatusOK {
			t.Errorf("beside them: %s", resp.Status)
		}
	}
	close(stop)
	stallers.Wait()
}

// TestWhoNeedsRoomSendsStallersAway: those that have sent most of a large review have most of its
// room, for a moment, and not for the time that they could have where nobody waits.
func TestWhoNeedsRoomSendsStallersAway(t *testing.T) {
	t.Parallel()
	bodies := NewBodies()
	server := httptest.NewTLSServer(bodies.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })))
	defer server.Close()
	for range 2 {
		c, err := tls.Dial("tcp", server.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		go func() {
			_, _ = fmt.Fprintf(c, "POST /?timeout=30s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", maxBody, strings.Repeat("x", maxBody*3/4))
		}()
	}
	for full := false; !full; {
		<-time.After(time.Millisecond)
		bodies.large.mu.Lock()
		full = bodies.large.free < largeBodies-maxBody/2
		bodies.large.mu.Unlock()
	}
	// Its 4.8 s are less than those have where nobody waits.
	resp, err := server.Client().Post(server.URL+"?timeout=6s", "application/json", strings.NewReader(strings.Repeat("x", maxBody)))
	if err != nil {
		t.Fatal(err)
	}
	if _ = resp.Body.Close(); resp.StatusCode != http.StatusOK {
		t.Errorf("beside them: %s", resp.Status)
	}
}

// TestASlowDecisionHasLessRoom: once a review is decoded it has the half of its room.
func TestASlowDecisionHasLessRoom(t *testing.T) {
	t.Parallel()
	const size, slow = 60 << 10, smallBodies/(60<<10) + 50
	entered, leave := make(chan struct{}, 2*slow), make(chan struct{})
	server := httptest.NewTLSServer(NewBodies().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := readReview(w, r); err != nil {
			t.Errorf("%v", err)
		}
		if r.ContentLength > 1<<10 {
			entered <- struct{}{}
			<-leave
		}
	})))
	defer server.Close()
	post := func(n int) (ok bool) {
		body := fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","name":%q}}`, strings.Repeat("x", n))
		resp, err := server.Client().Post(server.URL+"?timeout=20s", "application/json", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return false
		}
		if _ = resp.Body.Close(); resp.StatusCode != http.StatusOK {
			t.Error(resp.Status)
		}
		return resp.StatusCode == http.StatusOK
	}
	var all sync.WaitGroup
	for range slow {
		all.Go(func() {
			if !post(size) {
				entered <- struct{}{}
			}
		})
	}
	for range slow {
		<-entered
	}
	post(1)
	close(leave)
	all.Wait()
}

// TestBeginningsHaveLittleRoom: however many reviews begin and do not go on, what they have is
// twice what they sent, and a review that wants to be read whole is.
func TestBeginningsHaveLittleRoom(t *testing.T) {
	t.Parallel()
	bodies := NewBodies()
	server := httptest.NewTLSServer(bodies.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })))
	defer server.Close()
	const begun = 100
	for range begun {
		c, err := tls.Dial("tcp", server.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if _, err := fmt.Fprintf(c, "POST /?timeout=30s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", maxBody, strings.Repeat("x", firstPart)); err != nil {
			t.Fatal(err)
		}
	}
	bodies.large.mu.Lock()
	held := largeBodies - bodies.large.free
	bodies.large.mu.Unlock()
	if held > begun*2*firstPart {
		t.Errorf("%d bytes are held", held)
	}
	resp, err := server.Client().Post(server.URL+"?timeout=5s", "application/json", strings.NewReader(strings.Repeat("x", maxBody)))
	if err != nil {
		t.Fatal(err)
	}
	if _ = resp.Body.Close(); resp.StatusCode != http.StatusOK {
		t.Errorf("beside them: %s", resp.Status)
	}
}

// TestWhichConnectionsHaveAnAnswer: those over which a review came, and not junk.
func TestWhichConnectionsHaveAnAnswer(t *testing.T) {
	t.Parallel()
	h := edge{webhook: "test", review: func(context.Context, asked) (outcome, error) { return outcome{allowed: true}, nil }}.handler(phaseMutate, "/")
	for body, want := range map[string]bool{"{}": false, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u"}}`: true} {
		answered := false
		r := httptest.NewRequestWithContext(WithAnswered(t.Context(), func() { answered = true }), http.MethodPost, "/", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		h.ServeHTTP(httptest.NewRecorder(), r)
		if answered != want {
			t.Errorf("%s: %t", body, answered)
		}
	}
}
