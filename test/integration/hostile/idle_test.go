package hostile

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/belay-dev/belay/test/integration/stack"
)

const (
	// idleConnections are made to the admission port, which has some hundreds at a time.
	idleConnections = 4000
	// halfOf is how much of a review is sent over each.
	halfOf = 64 << 10
)

// Whoever makes connections to the admission port, as many as he can, and sends half a review on
// each, costs a bounded amount of memory and nobody a review: also where an API server comes from
// the same address, as here.
func TestConnectionsThatAreKept(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), stack.Bound)
	defer cancel()
	labels := shared.TestNamePolicy(ctx, t, "hostile-idle", nil)
	ns := shared.TestNamespace(ctx, t, "idle", "enforce")
	w := shared.Webhooks()[0]
	before := resident(t, w)
	config := trust(ctx, t)
	conns := make([]net.Conn, idleConnections)
	half := fmt.Sprintf("POST /mutate/owner/otf?timeout=30s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", halfOf+1024, strings.Repeat("x", halfOf))
	var top atomic.Int64
	stop := make(chan struct{})
	var wg, watching sync.WaitGroup
	watching.Go(func() { watch(t, w, stop, &top) })
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
				_, _ = io.WriteString(c, half)
			}
		})
	}
	for i := range conns {
		next <- i
		if i%(idleConnections/10) == 0 {
			must(t, shared.Client.Create(ctx, job(ns, fmt.Sprintf("among-%d", i), "one", labels)))
		}
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
	took := time.Since(began)
	close(stop)
	watching.Wait()
	stack.Report(t, "hostile: %d connections with half a review each: a create beside them took %s; resident %d MiB at most (before %d)", made, took.Round(time.Millisecond), top.Load()>>20, before>>20)
	if top.Load() > mayHold {
		t.Errorf("belay-webhook held %d MiB", top.Load()>>20)
	}
	if made < idleConnections/2 {
		t.Errorf("only %d connections were made", made)
	}
	alive(ctx, t)
}
