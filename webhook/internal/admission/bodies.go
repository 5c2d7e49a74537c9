package admission

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// largeBodies is how many bytes of large reviews are read, decoded and decided on at a
	// time. A review takes up to ten times its size in memory while it is decoded, and the
	// webhook has 256 MiB in the shipped manifests. The largest one fits.
	largeBodies = 10 << 20
	// small is the size of a review that needs no room to be read. Ordinary ones have a few
	// KiB.
	small = 64 << 10
	// smallBodies is the room of small ones, hundreds at once: apart from that of large ones,
	// behind which they would have to queue.
	smallBodies = 2 << 20
	// restWithin is how long the rest of a large review may take to come once it has room. An
	// API server sends 7 MiB in a tenth of a second; whoever is slower keeps others waiting.
	restWithin = 2 * time.Second
)

// Bodies bounds the reviews that are under way by their size.
type Bodies struct{ large, small *semaphore.Weighted }

// NewBodies makes the bound that all handlers of a process share.
func NewBodies() *Bodies {
	return &Bodies{large: semaphore.NewWeighted(largeBodies), small: semaphore.NewWeighted(smallBodies)}
}

// Handler reads a review, and lets it wait for room within the time that the API server waits
// for it. A large one waits before it is read, so that however many come at once do not fill
// the memory; whoever announces one and sends nothing of it holds up nobody. A review that
// finds no room is a failed call, as the API server's failure policy says.
func (b *Bodies) Handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > maxBody {
			// Refused by its length. Of so much the server reads no rest, and it gives the answer
			// time to arrive before it closes the connection.
			w.Header().Set("Connection", "close")
			refused := r.WithContext(r.Context()) // the server looks at r's own body for that
			refused.Body = http.NoBody
			h.ServeHTTP(w, refused)
			return
		}
		within := budget(r.URL.Query().Get("timeout"))
		ctx, cancel := context.WithTimeout(r.Context(), within)
		defer cancel()
		c := http.NewResponseController(w)
		// Not every writer of a test can; the server's can.
		_ = c.SetReadDeadline(time.Now().Add(within))
		head, err := io.ReadAll(io.LimitReader(r.Body, small+1))
		if err != nil {
			abandon(w, c)
			http.Error(w, "the body could not be read", http.StatusBadRequest)
			return
		}
		room, size := b.small, int64(len(head))
		switch {
		case size <= small:
		case r.ContentLength > 0:
			room, size = b.large, max(size, r.ContentLength)
		default:
			room, size = b.large, maxBody
		}
		if err := room.Acquire(ctx, size); err != nil {
			abandon(w, c)
			http.Error(w, "belay has too many large reviews under way; try again", http.StatusServiceUnavailable)
			return
		}
		defer room.Release(size)
		body := bytes.NewBuffer(head)
		if room == b.large {
			_ = c.SetReadDeadline(time.Now().Add(min(within, restWithin)))
			body.Grow(int(size) - len(head))
			// One byte more than may be shows that it is too large.
			if _, err := io.Copy(body, io.LimitReader(r.Body, maxBody+1-int64(len(head)))); err != nil {
				abandon(w, c)
				http.Error(w, "the body could not be read", http.StatusBadRequest)
				return
			}
		}
		if body.Len() > maxBody {
			abandon(w, c)
		} else {
			_ = c.SetReadDeadline(time.Time{})
		}
		r = r.WithContext(ctx)
		r.Body = io.NopCloser(body)
		h.ServeHTTP(w, r)
	})
}

// abandon leaves the rest of a body: the server reads it before it answers, and would wait for
// it for ever.
func abandon(w http.ResponseWriter, c *http.ResponseController) {
	w.Header().Set("Connection", "close")
	_ = c.SetReadDeadline(time.Now())
}
