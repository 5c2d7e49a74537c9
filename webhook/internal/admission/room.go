package admission

import (
	"container/list"
	"context"
	"io"
	"sync"
	"time"
)

// room is how many bytes of reviews there may be at a time. A review takes it in parts, as its
// bytes come, and only while all that it still lacks would fit: so whoever took a part last can
// come to its end, gives back all that it has, and then the one before it can; no two of them wait
// for each other.
type room struct {
	mu   sync.Mutex
	free int64
	// waiting are the parts that do not fit yet, and go in this order as soon as they do.
	waiting list.List // of *part
	// coming are the reviews of which a part comes, the one that is quiet for longest first.
	coming list.List // of *arrival
}

func newRoom(size int64) *room { return &room{free: size} }

// arrival is a review that comes. Only one goroutine takes its parts.
type arrival struct {
	room *room
	// cut ends the reading of the part that comes.
	cut func()
	// conn is what it shares with others; nil for nothing.
	conn *connection

	// What follows is guarded by the room. A part comes from begun on, and since is when bytes of
	// it came last.
	has          int64
	begun, since time.Time
	comes        *list.Element
}

// part is room that an arrival waits for.
type part struct {
	*arrival
	size, lacks int64
	taken       chan struct{}
}

// take takes room for the next bytes of a review that lacks so many. While it waits, those whose
// bytes do not come are sent away.
func (a *arrival) take(ctx context.Context, size, lacks int64) error {
	r := a.room
	p := &part{arrival: a, size: size, lacks: lacks, taken: make(chan struct{})}
	r.mu.Lock()
	if r.fits(p) {
		r.mu.Unlock()
		return nil
	}
	if a.conn != nil {
		if a.conn.waits.Add(1) > MaxWaiting {
			a.conn.waits.Add(-1)
			r.mu.Unlock()
			return errBusy
		}
		defer a.conn.waits.Add(-1)
	}
	at := r.waiting.PushBack(p)
	r.mu.Unlock()
	for {
		again := time.NewTimer(r.cutLate())
		select {
		case <-p.taken:
			again.Stop()
			return nil
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			r.mu.Lock()
			defer r.mu.Unlock()
			select {
			case <-p.taken:
				return nil
			default:
				r.waiting.Remove(at)
				return ctx.Err()
			}
		}
	}
}

// fits takes the room for a part if it is there.
func (r *room) fits(p *part) bool {
	if r.free < p.lacks {
		return false
	}
	r.free -= p.size
	p.has += p.size
	p.begun = time.Now()
	p.since = p.begun
	p.comes = r.coming.PushBack(p.arrival)
	return true
}

// came says that the bytes of a part have come, or are not waited for any more.
func (a *arrival) came() {
	a.room.mu.Lock()
	defer a.room.mu.Unlock()
	if a.comes != nil {
		a.room.coming.Remove(a.comes)
		a.comes = nil
	}
}

// comesOn says that bytes have come. Of a part that takes long that does not count any more.
func (a *arrival) comesOn() {
	a.room.mu.Lock()
	defer a.room.mu.Unlock()
	if now := time.Now(); a.comes != nil && now.Sub(a.begun) < longPart {
		a.since = now
		a.room.coming.MoveToBack(a.comes)
	}
}

// follows is a body whose arrival is told that bytes have come.
type follows struct {
	io.Reader
	a *arrival
}

// Read reads the body.
func (f follows) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	if n > 0 {
		f.a.comesOn()
	}
	return n, err
}

// cutLate ends the reading of parts that do not come on, and says when to look again.
func (r *room) cutLate() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	for e := r.coming.Front(); e != nil; e = r.coming.Front() {
		a, ok := e.Value.(*arrival)
		if left := patience - time.Since(a.since); !ok || left > 0 {
			return left
		}
		r.coming.Remove(e)
		a.comes = nil
		a.cut()
	}
	return patience
}

// keep gives back all room but so much.
func (a *arrival) keep(n int64) {
	r := a.room
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free += max(0, a.has-n)
	a.has = min(a.has, n)
	for e := r.waiting.Front(); e != nil; {
		next := e.Next()
		if p, ok := e.Value.(*part); ok && r.fits(p) {
			r.waiting.Remove(e)
			close(p.taken)
		}
		e = next
	}
}
