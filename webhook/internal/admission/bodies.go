package admission

import (
	"context"
	"net/http"

	"golang.org/x/sync/semaphore"
)

// bodies is how many bytes of reviews are read and decided on at a time. A review takes up to
// ten times its size in memory while it is decoded, and the webhook has 256 MiB in the shipped
// manifests; ordinary reviews have a few KiB, so that thousands pass at once.
const bodies = 12 << 20

// Bodies bounds the reviews that are under way by their size.
type Bodies struct{ room *semaphore.Weighted }

// NewBodies makes the bound that all handlers of a process share.
func NewBodies() *Bodies { return &Bodies{room: semaphore.NewWeighted(bodies)} }

// Handler lets a review wait for room, within the time that the API server waits for it. One
// that finds none is a failed call, as the API server's failure policy says.
func (b *Bodies) Handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size := r.ContentLength
		if size < 0 || size > maxBody {
			size = maxBody // what is larger is refused after as much
		}
		ctx, cancel := context.WithTimeout(r.Context(), budget(r.URL.Query().Get("timeout")))
		defer cancel()
		if err := b.room.Acquire(ctx, size); err != nil {
			http.Error(w, "belay has too many large reviews under way; try again", http.StatusServiceUnavailable)
			return
		}
		defer b.room.Release(size)
		h.ServeHTTP(w, r)
	})
}
