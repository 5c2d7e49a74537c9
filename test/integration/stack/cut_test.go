package stack

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/belay-dev/belay/test/integration/plane"
)

// pb is a field of a protobuf message that holds bytes.
func pb(number byte, value ...[]byte) []byte {
	v := slices.Concat(value...)
	return append(binary.AppendUvarint([]byte{number<<3 | 2}, uint64(len(v))), v...)
}

// pbNumber is one that holds a number.
func pbNumber(number byte, v uint64) []byte { return binary.AppendUvarint([]byte{number << 3}, v) }

const aKey = "/registry/secrets/default/a"

func txn(revision uint64, op []byte) []byte {
	compare := slices.Concat(pbNumber(2, 2), pb(3, []byte(aKey)), pbNumber(6, revision))
	return slices.Concat(pb(1, compare), pb(2, op), pb(3, pb(1, pb(1, []byte(aKey)))))
}

func put() []byte { return pb(2, pb(1, []byte(aKey)), pb(2, []byte("k8s\x00..."))) }

func TestWritesAreRead(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		message []byte
		want    string // verb; empty is no write
	}{
		"a put where nothing was is a create":      {txn(0, put()), "create"},
		"a put over a revision is an update":       {txn(300, put()), "update"},
		"a delete":                                 {txn(300, pb(3, pb(1, []byte(aKey)))), "delete"},
		"a transaction that reads":                 {txn(300, pb(1, pb(1, []byte(aKey)))), ""},
		"a range over one key":                     {pb(1, []byte(aKey)), ""},
		"a range over a prefix":                    {slices.Concat(pb(1, []byte("/registry/secrets/")), pb(2, []byte("/registry/secrets0")), pbNumber(3, 500)), ""},
		"a watch":                                  {pb(1, pb(1, []byte("/registry/secrets/")), pb(2, []byte("/registry/secrets0"))), ""},
		"a lease":                                  {pbNumber(1, 3600), ""},
		"nothing":                                  {nil, ""},
		"a message that is cut off":                {txn(0, put())[:20], ""},
		"a length beyond everything there is":      {slices.Concat(pb(1), []byte{2<<3 | 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}), ""},
		"a field of a type that etcd does not use": {[]byte{2<<3 | 5, 0, 0, 0, 0}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ok := parseWrite(tc.message)
			if ok != (tc.want != "") {
				t.Fatalf("parseWrite = %+v, %t", got, ok)
			}
			if want := (EtcdWrite{tc.want, aKey}); ok && got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

func TestRandomCutsDependOnTheSeedAndTheKey(t *testing.T) {
	t.Parallel()
	const writes = 1000
	run := func(seed uint64, backwards bool) map[string]Cut {
		choose := RandomCuts(seed, 0.5, Under("/registry/secrets/"))
		out := map[string]Cut{}
		for i := range writes {
			if backwards {
				i = writes - 1 - i
			}
			key := fmt.Sprint("/registry/secrets/default/", i)
			out[key] = choose(EtcdWrite{"create", key})
		}
		return out
	}
	first := run(1, false)
	count := map[Cut]int{}
	for _, c := range first {
		count[c]++
	}
	// 500, 250, 250, give or take six standard deviations.
	for cut, want := range map[Cut]int{CutNone: writes / 2, CutBefore: writes / 4, CutAfter: writes / 4} {
		if got := count[cut]; got < want-100 || got > want+100 {
			t.Errorf("%s: %d of %d", cut, got, writes)
		}
	}
	if diff := cmp.Diff(first, run(1, true)); diff != "" {
		t.Errorf("the order matters: %s", diff)
	}
	if cmp.Equal(first, run(2, false)) {
		t.Error("the seed does not matter")
	}
	if c := RandomCuts(1, 1, Under("/registry/secrets/"))(EtcdWrite{"create", "/registry/pods/x/y"}); c != CutNone {
		t.Errorf("%s of a write that does not match", c)
	}
}

func http2Frame(kind, flags byte, stream uint32, payload []byte) frame {
	f := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	f = binary.BigEndian.AppendUint32(append(f, flags), stream)
	return append(f, payload...)
}

func grpcMessage(m []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m))), m...)
}

// wire is both ends of a connection through a Cutter, without kube-apiserver and etcd.
type wire struct {
	t            *testing.T
	client, etcd net.Conn
	fromEtcd, in *bufio.Reader
}

func newWire(t *testing.T, c *Cutter) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	w := &wire{t: t}
	if w.client, err = net.Dial("tcp", c.Addr()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.client.Close() })
	c.SetBackend(l.Addr().String()) // late: it waits
	if w.etcd, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.etcd.Close() })
	w.fromEtcd, w.in = bufio.NewReader(w.client), bufio.NewReader(w.etcd)
	for _, conn := range []net.Conn{w.client, w.etcd} {
		if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	w.send(w.client, []byte(clientPreface))
	if _, err := io.ReadFull(w.in, make([]byte, len(clientPreface))); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *wire) send(to net.Conn, frames ...[]byte) {
	w.t.Helper()
	if _, err := to.Write(slices.Concat(frames...)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wire) expect(from io.Reader, frames ...frame) {
	w.t.Helper()
	for i, want := range frames {
		var got frame
		if err := got.read(from); err != nil {
			w.t.Fatalf("frame %d: %v", i, err)
		}
		if !cmp.Equal(got, want) {
			w.t.Fatalf("frame %d: got %q, want %q", i, got, want)
		}
	}
}

// expectEnd expects that the connection ends without another byte. An end is a reset
// when the other side had not read everything.
func (w *wire) expectEnd(from io.Reader) {
	w.t.Helper()
	var got frame
	err := got.read(from)
	if ne := net.Error(nil); err == nil || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &ne) && ne.Timeout() {
		w.t.Fatalf("got %q, %v; want the end of the connection", got, err)
	}
}

func TestCutterFollowsFrames(t *testing.T) {
	t.Parallel()
	headers := http2Frame(frameHeaders, 0, 5, []byte("compressed"))
	request := http2Frame(frameData, flagEndStream, 5, grpcMessage(txn(0, put())))
	// The same over two frames, the second padded.
	whole := grpcMessage(txn(0, put()))
	first := http2Frame(frameData, 0, 5, whole[:30])
	second := http2Frame(frameData, flagEndStream|flagPadded, 5, slices.Concat([]byte{2}, whole[30:], []byte{0, 0}))
	// Other requests, before and after it.
	other := http2Frame(frameData, flagEndStream, 3, grpcMessage(pb(1, []byte(aKey))))
	later := http2Frame(frameData, flagEndStream, 7, grpcMessage(pb(1, []byte(aKey))))
	window := http2Frame(8, 0, 0, []byte{0, 0, 0, 9})
	otherAnswer := http2Frame(frameData, 0, 3, grpcMessage(pb(1)))
	start := http2Frame(frameHeaders, 0, 5, []byte("200"))
	done := http2Frame(frameData, 0, 5, grpcMessage(slices.Concat(pb(1, pbNumber(3, 7)), pbNumber(2, 1))))
	refused := http2Frame(frameData, 0, 5, grpcMessage(slices.Concat(pb(1, pbNumber(3, 7)), pb(3))))
	failed := http2Frame(frameHeaders, flagEndStream, 5, []byte("grpc-status: 14"))

	open := func(t *testing.T, set func(*Cutter)) (*Cutter, *wire) {
		t.Helper()
		c, err := NewCutter()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		set(c)
		return c, newWire(t, c)
	}
	cuts := func(t *testing.T, c *Cutter, want ...Cut) {
		t.Helper()
		var got []Cut
		for _, w := range c.Cuts() {
			got = append(got, w.Cut)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}

	t.Run("everything passes", func(t *testing.T) {
		t.Parallel()
		c, w := open(t, func(*Cutter) {})
		w.send(w.client, headers, first, second, later)
		w.expect(w.in, headers, first, second, later)
		w.send(w.etcd, window, start, done)
		w.expect(w.fromEtcd, window, start, done)
		cuts(t, c)
	})
	t.Run("before: etcd has no more than a part", func(t *testing.T) {
		t.Parallel()
		c, w := open(t, func(c *Cutter) { c.CutBeforeCommit(1, Under("/registry/secrets/")) })
		w.send(w.client, other, headers, first)
		w.expect(w.in, other, headers, first)
		w.send(w.client, second)
		w.expectEnd(w.in)
		w.expectEnd(w.fromEtcd)
		cuts(t, c, CutBefore)
	})
	t.Run("after: acknowledgements of the transport are no answer", func(t *testing.T) {
		t.Parallel()
		c, w := open(t, func(c *Cutter) { c.CutAfterCommit(1, Under("/registry/secrets/")) })
		w.send(w.client, headers, first, second, later)
		w.expect(w.in, headers, first, second)
		w.send(w.etcd, window, otherAnswer, start)
		cuts(t, c)
		w.send(w.etcd, done)
		w.expectEnd(w.fromEtcd)
		w.expectEnd(w.in) // what came after the write is not sent on
		cuts(t, c, CutAfter)
	})
	for name, answer := range map[string]frame{"a write that etcd refuses": refused, "an error of etcd": failed} {
		t.Run("after: "+name+" passes, and so does what was held back", func(t *testing.T) {
			t.Parallel()
			c, w := open(t, func(c *Cutter) { c.CutAfterCommit(1, Under("/registry/secrets/")) })
			w.send(w.client, headers, request, later)
			w.expect(w.in, headers, request)
			w.send(w.etcd, window, otherAnswer, start, answer)
			w.expect(w.fromEtcd, window, otherAnswer, start, answer)
			w.expect(w.in, later)
			cuts(t, c)
			again := http2Frame(frameData, flagEndStream, 9, grpcMessage(txn(0, put())))
			w.send(w.client, again)
			w.expect(w.in, again)
			w.send(w.etcd, http2Frame(frameData, 0, 9, done[frameHeader:]))
			w.expectEnd(w.fromEtcd)
			cuts(t, c, CutAfter)
		})
	}
	t.Run("no more than n", func(t *testing.T) {
		t.Parallel()
		c, w := open(t, func(c *Cutter) { c.CutBeforeCommit(1, Under("/registry/pods/")) })
		w.send(w.client, request)
		w.expect(w.in, request)
		c.CutBeforeCommit(0, Under("/"))
		w.send(w.client, request)
		w.expect(w.in, request)
		cuts(t, c)
	})
	t.Run("all at once", func(t *testing.T) {
		t.Parallel()
		c, w := open(t, func(*Cutter) {})
		c.CutAll()
		w.expectEnd(w.fromEtcd)
		w.expectEnd(w.in)
	})
	t.Run("what is no HTTP/2 is not let through", func(t *testing.T) {
		t.Parallel()
		c, _ := open(t, func(*Cutter) {})
		conn, err := net.Dial("tcp", c.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if _, err := io.WriteString(conn, "GET /health HTTP/1.1\r\nHost: etcd\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(conn); len(b) > 0 {
			t.Errorf("got %q, %v", b, err)
		}
	})
}

func TestCutsBetweenKubeAPIServerAndEtcd(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	t.Parallel()
	cutter, err := NewCutter()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cutter.Close)
	p, err := plane.Start(t.Context(), plane.Options{EtcdProxy: cutter})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	kube, err := kubernetes.NewForConfig(p.Config())
	if err != nil {
		t.Fatal(err)
	}
	// The first namespace is written by others, too.
	namespace, err := kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "cut"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	secrets := kube.CoreV1().Secrets(namespace.Name)
	ours := Under("/registry/secrets/cut/")
	create := func(ctx context.Context, name string) error {
		return kube.CoreV1().RESTClient().Post().Namespace(namespace.Name).Resource("secrets").MaxRetries(0).
			Body(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}).Do(ctx).Error()
	}
	exists := func(t *testing.T, name string) bool {
		t.Helper()
		_, err := secrets.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		return err == nil
	}
	// lost checks what a client is told about a lost connection: nothing from which it
	// could know whether the write is done, and nothing that makes it try again.
	lost := func(t *testing.T, err error) {
		t.Helper()
		status := apierrors.APIStatus(nil)
		if !errors.As(err, &status) {
			t.Fatalf("the error is %v; want one of the server", err)
		}
		s := status.Status()
		if s.Code != 500 || s.Reason != "" || !strings.HasPrefix(s.Message, "rpc error: code = Unavailable") {
			t.Errorf("the status is %+v", s)
		}
		if _, ok := apierrors.SuggestsClientDelay(err); ok || !apierrors.IsInternalError(err) {
			t.Errorf("client-go reads %+v as something else than an internal error without a delay", s)
		}
	}
	afterwards := func(t *testing.T, name string, cut Cut) {
		t.Helper()
		cutter.Set(nil)
		all := cutter.Cuts()
		if want := (CutWrite{EtcdWrite{"create", "/registry/secrets/cut/" + name}, cut}); len(all) == 0 || all[len(all)-1] != want {
			t.Errorf("cuts are %+v; want %+v at last", all, want)
		}
	}

	t.Run("without a cut there is no error", func(t *testing.T) {
		if err := create(t.Context(), "whole"); err != nil || !exists(t, "whole") {
			t.Errorf("create: %v", err)
		}
		if all := cutter.Cuts(); len(all) != 0 {
			t.Errorf("there are cuts: %+v", all)
		}
	})
	t.Run("after the commit the client gets an error and the object exists", func(t *testing.T) {
		cutter.CutAfterCommit(1, ours)
		lost(t, create(t.Context(), "after"))
		afterwards(t, "after", CutAfter)
		if !exists(t, "after") {
			t.Error("the object does not exist")
		}
		if err := create(t.Context(), "after"); !apierrors.IsAlreadyExists(err) {
			t.Errorf("the next try: %v", err)
		}
	})
	t.Run("before the commit the client gets the same error and there is no object", func(t *testing.T) {
		cutter.CutBeforeCommit(1, ours)
		lost(t, create(t.Context(), "before"))
		afterwards(t, "before", CutBefore)
		if exists(t, "before") {
			t.Error("the object exists")
		}
		if err := create(t.Context(), "before"); err != nil {
			t.Errorf("the next try: %v", err)
		}
	})
	t.Run("a restarted kube-apiserver is still behind the proxy", func(t *testing.T) {
		if err := p.Do(t.Context(), "restart kube-apiserver"); err != nil {
			t.Fatal(err)
		}
		cutter.CutAfterCommit(1, ours)
		lost(t, create(t.Context(), "restarted"))
		afterwards(t, "restarted", CutAfter)
	})
	t.Run("a watch goes on after all connections are cut", func(t *testing.T) {
		w, err := secrets.Watch(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		cutter.CutAll()
		if err := create(t.Context(), "watched"); err != nil {
			t.Fatal(err)
		}
		for {
			select {
			case e, ok := <-w.ResultChan():
				if !ok {
					t.Fatal("the watch has ended")
				}
				if s, ok := e.Object.(*corev1.Secret); ok && s.Name == "watched" {
					return
				}
			case <-time.After(time.Minute):
				t.Fatal("no event")
			}
		}
	})
	t.Run("a watch that is held hears nothing, while reads and writes go on", func(t *testing.T) {
		w, err := secrets.Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		hears := func(name string, within time.Duration) bool {
			for deadline := time.After(within); ; {
				select {
				case e, ok := <-w.ResultChan():
					if !ok {
						t.Fatal("the watch has ended")
					}
					if s, ok := e.Object.(*corev1.Secret); ok && s.Name == name {
						return true
					}
				case <-deadline:
					return false
				}
			}
		}
		if err := create(t.Context(), "before-it-is-held"); err != nil || !hears("before-it-is-held", time.Minute) {
			t.Fatalf("no event of what was created before: %v", err)
		}
		cutter.HoldWatches(true)
		defer cutter.HoldWatches(false)
		for _, name := range []string{"held-a", "held-b"} {
			if err := create(t.Context(), name); err != nil || !exists(t, name) {
				t.Fatalf("%s: %v", name, err)
			}
		}
		// An event takes milliseconds otherwise.
		if hears("held-a", time.Second) {
			t.Error("it was heard of")
		}
		cutter.HoldWatches(false)
		if !hears("held-a", time.Minute) || !hears("held-b", time.Minute) {
			t.Error("what was held back did not come in order")
		}
	})
	t.Run("a freeze delays", func(t *testing.T) {
		const d = 300 * time.Millisecond
		start := time.Now()
		cutter.Freeze(d)
		if err := create(t.Context(), "frozen"); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < d {
			t.Errorf("it took %s, less than %s", took, d)
		}
	})
	t.Run("random cuts leave what they say", func(t *testing.T) {
		const n, workers = 200, 4
		before := len(cutter.Cuts())
		cutter.Set(RandomCuts(1, 0.3, ours))
		results := make([]error, n)
		var wg sync.WaitGroup
		for first := range workers {
			wg.Go(func() {
				for i := first; i < n; i += workers {
					results[i] = create(t.Context(), fmt.Sprint("random-", i))
				}
			})
		}
		wg.Wait()
		cutter.Set(nil)
		cut := map[string]Cut{}
		for _, w := range cutter.Cuts()[before:] {
			cut[strings.TrimPrefix(w.Key, "/registry/secrets/cut/")] = w.Cut
		}
		count := map[string]int{}
		for i, err := range results {
			name := fmt.Sprint("random-", i)
			there := exists(t, name)
			switch c := cut[name]; {
			case c != CutNone:
				lost(t, err)
				if there != (c == CutAfter) {
					t.Errorf("%s: %s, but the object exists: %t", name, c, there)
				}
				count[c.String()]++
			case err == nil:
				if !there {
					t.Errorf("%s: no error and no object", name)
				}
				count["ok"]++
			default: // on a connection that was cut for another one
				lost(t, err)
				count[fmt.Sprintf("on the same connection, exists: %t", there)]++
			}
		}
		t.Log(count)
		for _, c := range []Cut{CutBefore, CutAfter} {
			if count[c.String()] == 0 {
				t.Errorf("no %s", c)
			}
		}
	})
}
