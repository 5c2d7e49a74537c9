package admission

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/belay-dev/belay/webhook/internal/metrics"
)

const (
	// largeBodies is how many bytes of large reviews there are at a time. A review takes up to
	// ten times its size in memory while it is decoded, half of that while it is decided on, and
	// the webhook has 256 MiB in the shipped manifests. The largest one fits.
	largeBodies = 10 << 20
	// small is the size of a review that has its room apart from large ones, behind which it
	// would have to queue. Ordinary ones have a few KiB.
	small = 64 << 10
	// smallBodies is the room of small ones, hundreds at once.
	smallBodies = 4 << 20
	// firstPart is the room of a review of which nothing has come yet; each further part is as
	// large as what has. So a review has at most twice the room of what was sent of it.
	firstPart = 512
	// lastPart bounds that.
	lastPart = 1 << 20
	// patience is how long nothing of a part may come while others wait for room, where an API
	// server sends 7 MiB in a tenth of a second, and has to share a processor with others.
	patience = 500 * time.Millisecond
	// longPart is how long a part may come, byte after byte, until it counts as one of which
	// nothing comes.
	longPart = time.Second
	// partWithin is how long it may take where nobody waits.
	partWithin = 5 * time.Second
	// maxCalls are under way at a time, each of some 20 KiB besides its review, but ownCalls of
	// each connection always.
	maxCalls, ownCalls = 1000, 4
)

// MaxWaiting is how many reviews of one connection over HTTP/2 may wait for room. What has come of
// them and is not read counts against the connection, and with nothing left there the one that has
// room would not come to its end, and they would wait for it in vain.
const MaxWaiting = 3

// Bodies bounds the reviews that are under way by their size.
type Bodies struct {
	large, small *room
	calls        atomic.Int64
}

// NewBodies makes the bound that all handlers of a process share.
func NewBodies() *Bodies { return &Bodies{large: newRoom(largeBodies), small: newRoom(smallBodies)} }

// Handler reads a review, and lets it wait for room within the time that the API server waits
// for it. It waits before it is read, so that however many come at once do not fill the memory;
// whoever announces one and sends little of it has little room, and holds up nobody. A review
// that finds no room is a failed call, as the API server's failure policy says.
func (b *Bodies) Handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > maxBody {
			// Refused by its length. Of so much the server reads no rest, and it gives the answer
			// time to arrive before it closes the connection.
			leave(w, r)
			refused := r.WithContext(r.Context()) // the server looks at r's own body for that
			refused.Body = http.NoBody
			h.ServeHTTP(w, refused)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), budget(r))
		defer cancel()
		c := http.NewResponseController(w)
		conn := connectionOf(r.Context())
		all, own := b.calls.Add(1), conn.calls.Add(1)
		defer func() { b.calls.Add(-1); conn.calls.Add(-1) }()
		if all > maxCalls && own > ownCalls {
			busy(w, r, c)
			return
		}
		// Not every writer of a test can; the server's can.
		a := &arrival{room: b.large, cut: func() { _ = c.SetReadDeadline(time.Unix(1, 0)) }}
		if 0 <= r.ContentLength && r.ContentLength <= small {
			a.room = b.small
		}
		if r.ProtoMajor == 2 {
			a.conn = conn
		}
		defer a.keep(0)
		body, err := a.read(ctx, c, r)
		switch {
		case errors.Is(err, errBusy):
			busy(w, r, c)
			return
		case err != nil:
			abandon(w, r, c)
			http.Error(w, "the body could not be read", http.StatusBadRequest)
			return
		case len(body) > maxBody:
			abandon(w, r, c)
		default:
			_ = c.SetReadDeadline(time.Time{})
		}
		r = r.WithContext(ctx)
		half := int64(len(body)) / 2
		r.Body = &undecoded{Reader: bytes.NewReader(body), decoded: func() { a.keep(half) }}
		h.ServeHTTP(w, r)
	})
}

// undecoded is the body of a review. Once it is closed it takes the half of its room.
type undecoded struct {
	io.Reader
	decoded func()
}

// Close says that the body is decoded.
func (u *undecoded) Close() error {
	u.Reader = http.NoBody
	u.decoded()
	return nil
}

var errBusy = errors.New("there is no room")

// read reads a review in parts, each once it has room. Of one whose length is not known it reads
// a byte more than may be.
func (a *arrival) read(ctx context.Context, c *http.ResponseController, r *http.Request) ([]byte, error) {
	length := r.ContentLength
	if length < 0 {
		length = maxBody + 1
	}
	end, _ := ctx.Deadline()
	var body []byte
	for got := int64(0); got < length; got = int64(len(body)) {
		size := min(max(got, firstPart), lastPart, length-got)
		if a.take(ctx, size, length-got) != nil {
			return nil, errBusy
		}
		body = slices.Grow(body, int(size))
		if within := time.Now().Add(partWithin); within.Before(end) {
			_ = c.SetReadDeadline(within)
		} else {
			_ = c.SetReadDeadline(end)
		}
		n, err := io.ReadFull(follows{r.Body, a}, body[got:got+size])
		a.came()
		body = body[:int(got)+n]
		if r.ContentLength < 0 && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	return body, nil
}

// busy puts a review off.
func busy(w http.ResponseWriter, r *http.Request, c *http.ResponseController) {
	metrics.Busy.Inc()
	abandon(w, r, c)
	w.Header().Set("Retry-After", "1")
	http.Error(w, "belay has too many reviews under way; try again", http.StatusServiceUnavailable)
}

// abandon leaves the rest of a body: the server reads it before it answers, and would wait for
// it for ever.
func abandon(w http.ResponseWriter, r *http.Request, c *http.ResponseController) {
	leave(w, r)
	_ = c.SetReadDeadline(time.Now())
}

// leave makes an answer the last one of its connection. Over HTTP/2 a call ends alone, and others
// have the connection, too.
func leave(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor < 2 {
		w.Header().Set("Connection", "close")
	}
}
