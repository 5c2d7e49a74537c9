package hostile

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/belay-dev/belay/test/integration/stack"
)

// idleConnections are made to the admission port at once, and kept.
const idleConnections = 2000

// Whoever keeps connections to the admission port, and sends half a review on each, costs some
// memory for each and nobody a review.
func TestConnectionsThatAreKept(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), stack.Bound)
	defer cancel()
	labels := shared.TestNamePolicy(ctx, t, "hostile-idle", nil)
	ns := shared.TestNamespace(ctx, t, "idle", "enforce")
	w := shared.Webhooks()[0]
	before := resident(t, w)
	config := trust(ctx, t)
	conns := make([]net.Conn, idleConnections)
	var wg sync.WaitGroup
	next := make(chan int)
	for range flooders {
		wg.Go(func() {
			d := &tls.Dialer{Config: config}
			for i := range next {
				c, err := d.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", w.Port))
				if err != nil {
					continue
				}
				conns[i] = c
				_, _ = io.WriteString(c, "POST /mutate/owner/otf?timeout=30s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9000\r\n\r\n{")
			}
		})
	}
	for i := range conns {
		next <- i
	}
	close(next)
	wg.Wait()
	defer func() {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
	}()
	made := 0
	for _, c := range conns {
		if c != nil {
			made++
		}
	}
	began := time.Now()
	must(t, shared.Client.Create(ctx, job(ns, "beside", "one", labels)))
	took, now := time.Since(began), resident(t, w)
	stack.Report(t, "hostile: %d connections with half a review each: a create beside them took %s; resident %d MiB (before %d): %d KiB a connection", made, took.Round(time.Millisecond), now>>20, before>>20, (now-before)>>10/int64(max(1, made)))
	if now > mayHold {
		t.Errorf("belay-webhook holds %d MiB", now>>20)
	}
	if made < idleConnections/2 {
		t.Errorf("only %d connections were made", made)
	}
	alive(ctx, t)
}
