package hostile

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/sidecar/wire"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

const (
	// flooders send as fast as they are answered, over connections that they keep.
	flooders = 16
	// floodFor is how long each kind of junk is sent, longFor how long the first one, which is
	// other junk each time and answered fastest: what is kept of each piece is seen to grow.
	floodFor, longFor = 3 * time.Second, 20 * time.Second
	// floodRate a second of the first kind make a flood. It tells about the machine: belay
	// answers several times as many on two cores that have nothing else to do.
	floodRate = 2000
	// createsPerSecond go on meanwhile.
	createsPerSecond = 20
	// mayHold is how much memory the webhook may hold at any time: the manifests give it
	// 256 MiB, and the stack has it collect as they do. mayGrow is how much more it may hold
	// after all of it than before.
	mayHold, mayGrow = 250 << 20, 96 << 20
	// mayDrift, and a quarter, is how much more it may hold in the second half of the long flood
	// than in the first. What is kept of each piece grows past it, or past mayHold.
	mayDrift = 16 << 20
)

// junk makes the n-th request of a kind.
type junk func(n int64) *http.Request

// Reviews and reports that are junk come as fast as belay answers them, while guarded creates
// and a fleet's reports go on: none of those fails, each dependent has its owner, nothing of
// the junk is done, and memory stays flat.
func TestJunkAtThePorts(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	labels := shared.TestNamePolicy(ctx, t, "hostile-flood", nil)
	ns := shared.TestNamespace(ctx, t, "flood", v1alpha1.ModeEnforce)
	w := shared.Webhooks()[0]
	fleet, err := shared.NewFleet(ctx, ns, 10)
	must(t, err)
	t.Cleanup(fleet.Close)
	admission, collector := fmt.Sprintf("https://localhost:%d", w.Port), fmt.Sprintf("https://localhost:%d", w.CollectorPort)
	post := func(url, contentType string, header map[string]string, body func(n int64) string) junk {
		return func(n int64) *http.Request {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.ReplaceAll(url, "$N", fmt.Sprint(n)), strings.NewReader(body(n)))
			if err != nil {
				panic(err) // a URL of this file
			}
			req.Header.Set("Content-Type", contentType)
			for k, v := range header {
				req.Header.Set(k, strings.ReplaceAll(v, "$N", fmt.Sprint(n)))
			}
			return req
		}
	}
	review := func(namespace string) func(int64) string {
		return func(n int64) string {
			return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u%d","operation":"CREATE","namespace":%q,"object":{"metadata":{"name":"x%d"}}}}`, n, namespace, n)
		}
	}
	same := func(s string) func(int64) string { return func(int64) string { return s } }
	mebibyte, largest := strings.Repeat("x", 1<<20), strings.Repeat("x", 7<<20)
	pod, err := shared.Kube.CoreV1().Pods(ns).Get(ctx, "fleet-0", metav1.GetOptions{})
	must(t, err)
	// As fleet-0 itself would: nothing of it is a secret.
	forged, err := wire.EncodeReport(wire.Report{
		Namespace: ns, Pod: pod.Name, UID: string(pod.UID), Container: "main", State: wire.StateReady, Reason: "Simulated",
		Reporter: "mallory", Sequence: 1, ObservedUnixMillis: time.Now().UnixMilli(), ReporterSinceUnixMillis: 1,
	})
	must(t, err)
	b64 := base64.RawURLEncoding.EncodeToString
	looksLikeAToken := b64([]byte(`{"alg":"RS256","kid":"k"}`)) + "." +
		b64(fmt.Appendf(nil, `{"aud":["belay.dev"],"exp":%d,"iss":"https://kubernetes.default.svc.cluster.local","kubernetes.io":{"namespace":%q,"pod":{"name":"fleet-0","uid":%q}}}`, time.Now().Add(time.Hour).Unix(), ns, pod.UID)) + "." + b64(bytes.Repeat([]byte{1}, 256))
	baseline := creates(ctx, t, ns, "quiet", labels, fleet, floodFor, nil)
	before := resident(t, w)
	anchors, others := anchorsIn(ctx, t, ns), anchorsIn(ctx, t, "default")
	for i, k := range []struct {
		name    string
		junk    junk
		senders int
		lasts   time.Duration
	}{
		{"no JSON at all", post(admission+"/mutate/owner/none-$N?timeout=3s", "application/json", nil, func(n int64) string { return fmt.Sprintf("{%d", n) }), flooders, longFor},
		{"reviews of policies that do not exist", post(admission+"/mutate/owner/none-$N?timeout=3s", "application/json", nil, review(ns)), flooders, floodFor},
		{"reviews of a namespace that has not opted in", post(admission+"/mutate/owner/otf?timeout=3s", "application/json", nil, review("default")), flooders, floodFor},
		{"reviews of namespaces that do not exist", post(admission+"/mutate/owner/otf?timeout=3s", "application/json", nil, func(n int64) string { return review(fmt.Sprintf("none-%d", n))(n) }), flooders, floodFor},
		{"a mebibyte of nothing", post(admission+"/validate/name/hostile-flood?timeout=3s", "application/json", nil, same(mebibyte)), flooders / 2, floodFor},
		{"the largest bodies there are", post(admission+"/validate/name/hostile-flood?timeout=3s", "application/json", nil, same(largest)), 2 * flooders, floodFor},
		{"reports without a token", post(collector+wire.Path, wire.ContentType, nil, same(string(forged))), flooders, floodFor},
		{"reports with tokens that are made up", post(collector+wire.Path, wire.ContentType, map[string]string{"Authorization": "Bearer " + looksLikeAToken + "$N"}, same(string(forged))), flooders, floodFor},
	} {
		t.Run(k.name, func(t *testing.T) {
			var answered, first, second atomic.Int64
			codes := &sync.Map{}
			var rate float64
			took := creates(ctx, t, ns, slugOf(k.name), labels, fleet, k.lasts, func(stop <-chan struct{}) {
				half, cancel := context.WithTimeout(ctx, k.lasts/2)
				defer cancel()
				var wg sync.WaitGroup
				wg.Go(func() {
					watch(t, w, half.Done(), &first)
					watch(t, w, stop, &second)
				})
				defer wg.Wait()
				began := time.Now()
				flood(ctx, t, k.senders, k.junk, stop, &answered, codes)
				rate = float64(answered.Load()) / time.Since(began).Seconds()
			})
			top := max(first.Load(), second.Load())
			line := ""
			codes.Range(func(code, n any) bool {
				line += fmt.Sprintf(" %v: %d", code, n.(*atomic.Int64).Load())
				return true
			})
			stack.Report(t, "hostile: %s: %.0f a second (%s)", k.name, rate, strings.TrimSpace(line))
			stack.Report(t, "hostile: %s for %s: creates p50 %s, p99 %s: %.1f times that without (%s); resident %d MiB at most in the first half, %d in the second (before all %d)", k.name, k.lasts,
				p(took, 50), p(took, 99), float64(p(took, 99))/float64(p(baseline, 99)), p(baseline, 99), first.Load()>>20, second.Load()>>20, before>>20)
			if top > mayHold {
				t.Errorf("belay-webhook held %d MiB", top>>20)
			}
			if most := first.Load()*5/4 + mayDrift; k.lasts == longFor && second.Load() > most {
				t.Errorf("belay-webhook held %d MiB in the second half of the flood, and %d in the first: memory is not flat", second.Load()>>20, first.Load()>>20)
			}
			if answered.Load() == 0 {
				t.Error("nothing was answered: the test shows nothing")
			}
			if i == 0 && rate < floodRate {
				t.Errorf("%.0f a second, and %d are a flood: the machine is too slow for this test", rate, floodRate)
			}
			// What is about an opted-out namespace is a review, and is let by unchanged.
			if n, ok := codes.Load("200"); ok && !strings.HasPrefix(k.name, "reviews of a namespace") && !strings.HasPrefix(k.name, "reviews of namespaces") {
				t.Errorf("%d were taken", n.(*atomic.Int64).Load())
			}
			alive(ctx, t)
		})
	}
	if now := resident(t, w); now > before+mayGrow {
		t.Errorf("belay-webhook holds %d MiB afterwards, and held %d before", now>>20, before>>20)
	}
	// What the creates wanted, and nothing else.
	if got := anchorsIn(ctx, t, ns); got != anchors {
		t.Errorf("there are %d Anchors, and were %d", got, anchors)
	}
	if got := anchorsIn(ctx, t, "default"); got != others {
		t.Errorf("there are %d Anchors in a namespace that has not opted in, and were %d", got, others)
	}
	if got := fleet.Figures(); got.Failed > 0 {
		t.Errorf("of %d reports of the fleet %d failed", got.Reports, got.Failed)
	}
}

func slugOf(s string) string { return strings.ReplaceAll(strings.ToLower(s), " ", "-") }

func p(took []time.Duration, percent int) time.Duration {
	return took[len(took)*percent/100].Round(100 * time.Microsecond)
}

// watch looks at the webhook's memory until it is told to stop, and once more then.
func watch(t *testing.T, w *stack.Process, stop <-chan struct{}, top *atomic.Int64) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for stopped := false; !stopped; top.Store(max(top.Load(), resident(t, w))) {
		select {
		case <-stop:
			stopped = true
		case <-tick.C:
		}
	}
}

// flood sends junk until it is told to stop.
func flood(ctx context.Context, t *testing.T, senders int, j junk, stop <-chan struct{}, answered *atomic.Int64, codes *sync.Map) {
	t.Helper()
	config := trust(ctx, t)
	var n atomic.Int64
	var wg sync.WaitGroup
	for range senders {
		wg.Go(func() {
			tr := &http.Transport{TLSClientConfig: config, MaxIdleConnsPerHost: 1}
			defer tr.CloseIdleConnections()
			hc := &http.Client{Transport: tr, Timeout: senderPatience}
			l := &line{config: config}
			defer l.hangUp()
			for {
				select {
				case <-stop:
					return
				default:
				}
				req := j(n.Add(1))
				do := hc.Do
				if req.ContentLength < small {
					do = l.do
				}
				code := "broken"
				if resp, err := do(req); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
					code = fmt.Sprint(resp.StatusCode)
					answered.Add(1)
				}
				c, _ := codes.LoadOrStore(code, &atomic.Int64{})
				c.(*atomic.Int64).Add(1)
			}
		})
	}
	wg.Wait()
}

const (
	// senderPatience is how long a sender waits for an answer.
	senderPatience = 10 * time.Second
	// small: bodies below this are written at once, before the answer is read.
	small = 16 << 10
)

// line is one connection, over which requests go one after the other. It takes the machine,
// which belay shares, less than a half of the time that an http.Transport takes.
type line struct {
	config *tls.Config
	conn   *tls.Conn
	r      *bufio.Reader
	w      *bufio.Writer
	// last: the server closes after this answer.
	last bool
}

func (l *line) do(req *http.Request) (*http.Response, error) {
	if l.last {
		l.hangUp()
	}
	if l.conn == nil {
		conn, err := tls.Dial("tcp", req.URL.Host, l.config)
		if err != nil {
			return nil, err
		}
		l.conn, l.r, l.w = conn, bufio.NewReader(conn), bufio.NewWriterSize(conn, 2*small)
	}
	resp, err := l.exchange(req)
	if err != nil {
		l.hangUp()
		return nil, err
	}
	l.last = resp.Close
	return resp, nil
}

func (l *line) exchange(req *http.Request) (*http.Response, error) {
	if err := l.conn.SetDeadline(time.Now().Add(senderPatience)); err != nil {
		return nil, err
	}
	if err := req.Write(l.w); err != nil {
		return nil, err
	}
	if err := l.w.Flush(); err != nil {
		return nil, err
	}
	return http.ReadResponse(l.r, req)
}

func (l *line) hangUp() {
	if l.conn != nil {
		_ = l.conn.Close()
		l.conn, l.last = nil, false
	}
}

// creates makes a Job and its Secret in turn, so many a second, for so long, while something goes
// on, and the fleet reports. All of them succeed, and each Secret is its Job's. It returns how long
// they took, in order.
func creates(ctx context.Context, t *testing.T, ns, prefix string, labels map[string]string, fleet *stack.Fleet, lasts time.Duration, during func(stop <-chan struct{})) []time.Duration {
	t.Helper()
	stop := make(chan struct{})
	var background, wg sync.WaitGroup
	if during != nil {
		background.Go(func() { during(stop) })
	}
	state := wire.StateReady
	if len(prefix)%2 == 0 {
		state = wire.StateNotReady
	}
	background.Go(func() {
		if err := fleet.Round(ctx, lasts, fleet.All(), func(int) wire.State { return state }); err != nil {
			t.Errorf("the fleet: %v", err)
		}
	})
	var mu sync.Mutex
	var all []time.Duration
	tick := time.NewTicker(time.Second / createsPerSecond)
	defer tick.Stop()
	timed := func(o client.Object) bool {
		began := time.Now()
		err := shared.Client.Create(ctx, o)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, time.Since(began))
		if err != nil {
			t.Errorf("creating %s: %v", o.GetName(), err)
		}
		return err == nil
	}
	for i := range createsPerSecond * int(lasts/time.Second) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		}
		wg.Go(func() {
			name := fmt.Sprintf("%s-%d", prefix, i)
			j := job(ns, name, "one", labels)
			if !timed(j) {
				return
			}
			s := token(ns, name)
			if timed(s) && (len(s.OwnerReferences) != 1 || s.OwnerReferences[0].UID != j.UID) {
				t.Errorf("%s is owned by %+v", name, s.OwnerReferences)
			}
			if j.Annotations[v1alpha1.WorkAnnotation] == "" {
				t.Errorf("%s has no mark", name)
			}
		})
	}
	wg.Wait()
	close(stop)
	background.Wait()
	slices.Sort(all)
	return all
}

func anchorsIn(ctx context.Context, t *testing.T, ns string) int {
	t.Helper()
	var list v1alpha1.AnchorList
	must(t, shared.Client.List(ctx, &list, client.InNamespace(ns)))
	return len(list.Items)
}
