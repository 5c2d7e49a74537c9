package admission

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"
)

// bodies is how many bytes of reviews are decoded and decided on at a time. A review takes up
// to ten times its size in memory while it is decoded, and the webhook has 256 MiB in the
// shipped manifests; ordinary reviews have a few KiB, so that thousands pass at once.
const bodies = 12 << 20

// Bodies bounds the reviews that are under way by their size.
type Bodies struct{ room *semaphore.Weighted }

// NewBodies makes the bound that all handlers of a process share.
func NewBodies() *Bodies { return &Bodies{room: semaphore.NewWeighted(bodies)} }

// Handler reads a review, and lets it wait for room within the time that the API server waits
// for it. Room is taken for what has come, and never for what was announced: whoever sends
// nothing holds up nobody. A review that finds no room is a failed call, as the API server's
// failure policy says.
func (b *Bodies) Handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		within := budget(r.URL.Query().Get("timeout"))
		ctx, cancel := context.WithTimeout(r.Context(), within)
		defer cancel()
		body, err := read(w, r, within)
		var over *http.MaxBytesError
		if err != nil && !errors.As(err, &over) {
			http.Error(w, "the body could not be read", http.StatusBadRequest)
			return
		}
		if err := b.room.Acquire(ctx, int64(len(body))); err != nil {
			http.Error(w, "belay has too many large reviews under way; try again", http.StatusServiceUnavailable)
			return
		}
		defer b.room.Release(int64(len(body)))
		r = r.WithContext(ctx)
		r.Body = io.NopCloser(bytes.NewReader(body))
		h.ServeHTTP(w, r)
	})
}

// read reads a body within a time; of one that is too large as much as shows it.
func read(w http.ResponseWriter, r *http.Request, within time.Duration) ([]byte, error) {
	c := http.NewResponseController(w)
	// Not every writer of a test can; the server's can.
	_ = c.SetReadDeadline(time.Now().Add(within))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody+1))
	if err != nil {
		// The server reads the rest of a body before it answers, and would wait for it for ever.
		w.Header().Set("Connection", "close")
		_ = c.SetReadDeadline(time.Now())
		return body, err
	}
	_ = c.SetReadDeadline(time.Time{})
	return body, nil
}
