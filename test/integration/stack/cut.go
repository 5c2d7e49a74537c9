package stack

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"iter"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Cut says what becomes of a write on its way from kube-apiserver to etcd.
type Cut int

const (
	// CutNone lets it pass.
	CutNone Cut = iota
	// CutBefore closes the connection before etcd has the whole request: nothing is
	// written.
	CutBefore
	// CutAfter closes the connection when etcd has answered that it is written, instead
	// of passing that on: kube-apiserver does not know. A write that etcd does not do,
	// since the key is not as kube-apiserver believed, passes.
	CutAfter
)

func (c Cut) String() string {
	return [...]string{"no cut", "cut before commit", "cut after commit"}[c]
}

// EtcdWrite is a transaction of kube-apiserver, all of which write one key.
type EtcdWrite struct {
	// Verb is create, update or delete. The last update of an object with finalizers
	// is a delete here.
	Verb string
	// Key is /registry/<resource>/<namespace>/<name> for most, for custom resources
	// /registry/<group>/<resource>/<namespace>/<name>.
	Key string
}

// Under matches writes of keys below a prefix, such as /registry/secrets/default/.
func Under(prefix string) func(EtcdWrite) bool {
	return func(w EtcdWrite) bool { return strings.HasPrefix(w.Key, prefix) }
}

// CutWrite is a write that was cut; with CutAfter it is in etcd, with CutBefore not.
type CutWrite struct {
	EtcdWrite
	Cut Cut
}

// Cutter is a proxy between kube-apiserver and etcd that breaks connections at
// chosen writes; see plane.Options.EtcdProxy. Everything passes until it is told
// otherwise, and new connections always do. What else is under way on a connection
// that is cut is lost along with it, on either side of the commit.
//
// It follows the frames of HTTP/2, which etcd speaks here without TLS: the first
// bytes that come back after a request are acknowledgements of the transport, not
// the answer, so that counting bytes would cut before the commit.
type Cutter struct {
	listener net.Listener
	known    chan struct{} // closed when there is a backend
	done     chan struct{} // closed by Close
	once     sync.Once

	mu      sync.Mutex
	backend string
	choose  func(EtcdWrite) Cut
	left    int // cuts until all passes
	cuts    []CutWrite
	thaw    time.Time
	held    chan struct{} // closed when watches go on; nil while they do
	conns   map[*cutConn]struct{}
	wg      sync.WaitGroup
}

// NewCutter starts a proxy. It holds connections until it knows the backend.
func NewCutter() (*Cutter, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("starting a proxy for etcd: %w", err)
	}
	c := &Cutter{listener: l, known: make(chan struct{}), done: make(chan struct{}), conns: map[*cutConn]struct{}{}}
	c.wg.Go(c.accept)
	return c, nil
}

// Addr is where it listens.
func (c *Cutter) Addr() string { return c.listener.Addr().String() }

// SetBackend says where etcd is. Connections that are there stay with the old one.
func (c *Cutter) SetBackend(etcd string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.backend == "" {
		close(c.known)
	}
	c.backend = etcd
}

// Set chooses what becomes of each write from now on; nil lets all pass. The
// function is called for one write at a time and must be quick: it holds up all of
// them. kube-apiserver and the controllers write by themselves, too: leases, events,
// service accounts, status.
func (c *Cutter) Set(choose func(EtcdWrite) Cut) { c.set(math.MaxInt, choose) }

// CutBeforeCommit cuts the next n writes that match, each before it is done. Like
// CutAfterCommit, it replaces what was set before.
func (c *Cutter) CutBeforeCommit(n int, match func(EtcdWrite) bool) {
	c.set(n, always(CutBefore, match))
}

// CutAfterCommit cuts the next n writes that match and that etcd does, each before
// kube-apiserver learns that.
func (c *Cutter) CutAfterCommit(n int, match func(EtcdWrite) bool) {
	c.set(n, always(CutAfter, match))
}

func always(cut Cut, match func(EtcdWrite) bool) func(EtcdWrite) Cut {
	return func(w EtcdWrite) Cut {
		if match(w) {
			return cut
		}
		return CutNone
	}
}

func (c *Cutter) set(n int, choose func(EtcdWrite) Cut) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.choose, c.left = choose, n
	if choose == nil {
		c.left = 0
	}
}

// RandomCuts is for Set: it cuts a share, from 0 to 1, of the writes that match, half
// of them before and half after the commit. The choice for the n-th write of a key
// depends on the seed and the key alone, so that a run can be repeated whatever the
// order in which other keys are written; but a write that is lost along with another
// one does not come that far.
func RandomCuts(seed uint64, share float64, match func(EtcdWrite) bool) func(EtcdWrite) Cut {
	count := map[string]uint64{}
	return func(w EtcdWrite) Cut {
		if !match(w) {
			return CutNone
		}
		count[w.Key]++
		h := fnv.New64a()
		_, _ = fmt.Fprintf(h, "%d %s", count[w.Key], w.Key)
		r := rand.New(rand.NewPCG(seed, h.Sum64()))
		switch {
		case r.Float64() >= share:
			return CutNone
		case r.IntN(2) == 0:
			return CutBefore
		default:
			return CutAfter
		}
	}
}

// Cuts are the writes that were cut, in order. A write is in it before kube-apiserver
// notices.
func (c *Cutter) Cuts() []CutWrite {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.cuts)
}

// CutAll closes all connections now, whatever is under way on them.
func (c *Cutter) CutAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n := range c.conns {
		n.close()
	}
}

// Freeze lets nothing move in either direction for d from now on, and then goes on
// with what came in meanwhile. It returns at once. It can be made longer meanwhile,
// not shorter. Afterwards all is well at once, whereas kube-apiserver was seen to look
// for an etcd that had been stopped for a minute only after another 40 s. It drops
// connections by itself that are silent for 40 s.
func (c *Cutter) Freeze(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.thaw = time.Now().Add(d)
}

// HoldWatches lets kube-apiserver hear nothing of what it watches, from now on: its caches
// stay as they are, while it reads and writes as before. What was held back comes in order
// when it ends, with HoldWatches(false). It is meant for seconds and few changes: of more
// than 64 KiB etcd would wait, with all else on the same connection.
func (c *Cutter) HoldWatches(hold bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case hold && c.held == nil:
		c.held = make(chan struct{})
	case !hold && c.held != nil:
		close(c.held)
		c.held = nil
	}
}

// watches is closed when watches go on; nil while they do.
func (c *Cutter) watches() chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held
}

// Close ends the proxy and all connections.
func (c *Cutter) Close() {
	c.HoldWatches(false)
	c.once.Do(func() {
		_ = c.listener.Close()
		close(c.done)
		c.CutAll()
	})
	c.wg.Wait()
}

func (c *Cutter) accept() {
	for {
		client, err := c.listener.Accept()
		if err != nil {
			return
		}
		c.wg.Go(func() { c.pass(client) })
	}
}

func (c *Cutter) pass(client net.Conn) {
	defer func() { _ = client.Close() }()
	select {
	case <-c.known:
	case <-c.done:
		return
	}
	c.mu.Lock()
	backend := c.backend
	c.mu.Unlock()
	server, err := net.Dial("tcp", backend)
	if err != nil {
		return // kube-apiserver finds that etcd is away, as without a proxy
	}
	n := &cutConn{cutter: c, client: client, server: server, done: make(chan struct{})}
	defer n.close()
	c.mu.Lock()
	select {
	case <-c.done: // CutAll did not see this one
		c.mu.Unlock()
		return
	default:
	}
	c.conns[n] = struct{}{}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.conns, n)
	}()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(n.requests)
	n.answers()
}

// decide chooses what becomes of a write.
func (c *Cutter) decide(w EtcdWrite) Cut {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left == 0 {
		return CutNone
	}
	return c.choose(w)
}

// record counts a cut that is about to be made. It is false when there were enough
// meanwhile.
func (c *Cutter) record(w CutWrite) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left == 0 {
		return false
	}
	c.left--
	c.cuts = append(c.cuts, w)
	return true
}

// cutConn is one connection of kube-apiserver and the one to etcd that belongs to it.
type cutConn struct {
	cutter         *Cutter
	client, server net.Conn
	done           chan struct{}
	once           sync.Once
	doubt          atomic.Pointer[doubt] // nil when there is none
	watch          sync.Map              // streams on which kube-apiserver watches
}

// doubt is a write that is to be cut when etcd answers that it is done. Until then
// nothing is passed on, neither from etcd nor, after the write, to it.
type doubt struct {
	EtcdWrite
	stream uint32
	over   chan struct{} // closed when the answer is another
}

func (n *cutConn) close() {
	n.once.Do(func() {
		close(n.done)
		_ = n.client.Close()
		_ = n.server.Close()
	})
}

// hold waits while everything is frozen.
func (n *cutConn) hold() {
	for {
		n.cutter.mu.Lock()
		left := time.Until(n.cutter.thaw)
		n.cutter.mu.Unlock()
		if left <= 0 {
			return
		}
		select {
		case <-time.After(left):
		case <-n.done:
			return
		}
	}
}

// requests passes on what kube-apiserver sends, until the connection ends or is cut.
func (n *cutConn) requests() {
	defer n.close()
	in := bufio.NewReader(n.client)
	preface := make([]byte, len(clientPreface))
	if _, err := io.ReadFull(in, preface); err != nil || string(preface) != clientPreface {
		return
	}
	n.hold()
	if _, err := n.server.Write(preface); err != nil {
		return
	}
	streams := map[uint32]*messages{}
	for f := (frame)(nil); ; {
		if f.read(in) != nil {
			return
		}
		n.hold()
		var d *doubt
		if f.kind() == frameData {
			m := streams[f.stream()]
			if m == nil {
				m = &messages{}
				streams[f.stream()] = m
			}
			complete := m.add(f.data())
			if slices.ContainsFunc(complete, isWatch) {
				n.watch.Store(f.stream(), true)
			}
			w, ok := firstWrite(complete)
			if ok {
				switch n.cutter.decide(w) {
				case CutBefore:
					if n.cutter.record(CutWrite{w, CutBefore}) {
						return
					}
				case CutAfter:
					d = &doubt{w, f.stream(), make(chan struct{})}
					n.doubt.Store(d) // before etcd can answer
				}
			}
		}
		if f.ends() {
			delete(streams, f.stream())
		}
		if _, err := n.server.Write(f); err != nil {
			return
		}
		if d != nil {
			select {
			case <-d.over:
			case <-n.done:
				return
			}
		}
	}
}

// answers passes on what etcd sends, until the connection ends or is cut.
func (n *cutConn) answers() {
	defer n.close()
	in := n.withoutHeldWatches(bufio.NewReader(n.server))
	var held []byte
	for f := range in {
		n.hold()
		out := []byte(f)
		if d := n.doubt.Load(); d != nil {
			held = append(held, f...)
			if f.stream() != d.stream || f.kind() != frameData && !f.ends() {
				continue
			}
			if f.kind() == frameData && succeeded(f.data()) && n.cutter.record(CutWrite{d.EtcdWrite, CutAfter}) {
				return
			}
			out, held = held, nil
			n.doubt.Store(nil)
			close(d.over)
		}
		if _, err := n.client.Write(out); err != nil {
			return
		}
	}
}

// withoutHeldWatches yields the frames of etcd, those of watches when they are not held. The
// headers of a stream are never held: they change the state of the compression.
func (n *cutConn) withoutHeldWatches(in io.Reader) iter.Seq[frame] {
	frames := make(chan frame)
	n.cutter.wg.Go(func() { // ends with the connection
		defer close(frames)
		for {
			var f frame
			if f.read(in) != nil {
				return
			}
			select {
			case frames <- f:
			case <-n.done:
				return
			}
		}
	})
	return func(yield func(frame) bool) {
		var later []frame
		held := n.cutter.watches()
		for {
			if held == nil {
				for _, f := range later {
					if !yield(f) {
						return
					}
				}
				later = nil
			}
			select {
			case <-held:
				held = n.cutter.watches()
			case f, ok := <-frames:
				if !ok {
					return
				}
				if held == nil {
					held = n.cutter.watches()
				}
				if _, watch := n.watch.Load(f.stream()); watch && held != nil && f.kind() == frameData {
					later = append(later, f)
				} else if !yield(f) {
					return
				}
			}
		}
	}
}

// Of HTTP/2, RFC 9113.
const (
	clientPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	frameHeader   = 9

	frameData, frameHeaders, frameReset = 0, 1, 3
	flagEndStream, flagPadded           = 0x1, 0x8
)

// frame is a frame of HTTP/2 with its header.
type frame []byte

func (f *frame) read(r io.Reader) error {
	*f = append((*f)[:0], make([]byte, frameHeader)...)
	if _, err := io.ReadFull(r, *f); err != nil {
		return err
	}
	size := int((*f)[0])<<16 | int((*f)[1])<<8 | int((*f)[2])
	*f = append(*f, make([]byte, size)...)
	_, err := io.ReadFull(r, (*f)[frameHeader:])
	return err
}

func (f frame) kind() byte     { return f[3] }
func (f frame) stream() uint32 { return binary.BigEndian.Uint32(f[5:]) &^ (1 << 31) }

// ends tells whether nothing comes after it on its stream.
func (f frame) ends() bool {
	return f.kind() == frameReset ||
		f[4]&flagEndStream != 0 && (f.kind() == frameData || f.kind() == frameHeaders)
}

// data is what a data frame carries.
func (f frame) data() []byte {
	b := f[frameHeader:]
	if f[4]&flagPadded == 0 {
		return b
	}
	if len(b) == 0 || len(b) < 1+int(b[0]) {
		return nil
	}
	return b[1 : len(b)-int(b[0])]
}

// messages puts together the messages that gRPC sends on one stream: a byte, four
// bytes of length, the message.
type messages struct{ rest []byte }

const messageHeader = 5

// add returns what is complete.
func (m *messages) add(data []byte) (complete [][]byte) {
	b := slices.Concat(m.rest, data)
	for len(b) >= messageHeader {
		end := messageHeader + int(binary.BigEndian.Uint32(b[1:]))
		if len(b) < end {
			break
		}
		complete = append(complete, b[messageHeader:end])
		b = b[end:]
	}
	m.rest = b
	return complete
}

// isWatch tells whether a message is a WatchRequest of etcd that creates a watch: its first
// field is a message whose first field is a key. That of a TxnRequest, a comparison, begins
// with a number or has its key in field 3.
func isWatch(message []byte) bool {
	create, err := field(message, 1)
	if err != nil || create.bytes == nil {
		return false
	}
	key, err := field(create.bytes, 1)
	return err == nil && strings.HasPrefix(string(key.bytes), "/")
}

func firstWrite(messages [][]byte) (EtcdWrite, bool) {
	for _, m := range messages {
		if w, ok := parseWrite(m); ok {
			return w, true
		}
	}
	return EtcdWrite{}, false
}

// parseWrite reads a TxnRequest of etcd (compare = 1, success = 2) whose first
// operation, when the comparison holds, is a put (2) or a delete (3). The name of the
// call is in compressed headers; but no other message of etcd can be read like that:
// where a range has bytes in field 2, those are a key, and no key of kube-apiserver is
// a message.
func parseWrite(message []byte) (EtcdWrite, bool) {
	op, err := field(message, 2)
	if err != nil || op.bytes == nil {
		return EtcdWrite{}, false
	}
	w := EtcdWrite{Verb: "update"}
	what, err := field(op.bytes, 2)
	if err == nil && what.bytes == nil {
		w.Verb = "delete"
		what, err = field(op.bytes, 3)
	}
	if err != nil || what.bytes == nil {
		return EtcdWrite{}, false
	}
	key, err := field(what.bytes, 1)
	if err != nil || key.bytes == nil {
		return EtcdWrite{}, false
	}
	w.Key = string(key.bytes)
	// A create expects that the revision (6) of the key's last change is 0.
	compare, err := field(message, 1)
	if err != nil {
		return EtcdWrite{}, false
	}
	if revision, err := field(compare.bytes, 6); err == nil && revision.found && revision.number == 0 && w.Verb == "update" {
		w.Verb = "create"
	}
	return w, true
}

// succeeded reads field 2 of a TxnResponse, of which the beginning will do.
func succeeded(data []byte) bool {
	if len(data) < messageHeader {
		return false
	}
	f, err := field(data[messageHeader:], 2)
	return err == nil && f.number == 1
}

// value is a field of a protobuf message: a number or bytes.
type value struct {
	found  bool
	number uint64
	bytes  []byte // not nil when it is bytes
}

var errMessage = errors.New("not a protobuf message")

// field finds the first field with a number. It fails when what comes before it is
// no message.
func field(b []byte, number uint64) (value, error) {
	for len(b) > 0 {
		tag, n := binary.Uvarint(b)
		if n <= 0 {
			return value{}, errMessage
		}
		b = b[n:]
		v := value{found: true}
		switch tag & 7 {
		case 0: // a number
			if v.number, n = binary.Uvarint(b); n <= 0 {
				return value{}, errMessage
			}
			b = b[n:]
		case 2: // bytes
			size, n := binary.Uvarint(b)
			if n <= 0 || size > uint64(len(b)-n) {
				return value{}, errMessage
			}
			v.bytes, b = b[n:n+int(size):n+int(size)], b[n+int(size):]
		default:
			return value{}, errMessage
		}
		if tag>>3 == number {
			return v, nil
		}
	}
	return value{}, nil
}
