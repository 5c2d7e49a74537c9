package collector

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/belay-dev/belay/sidecar/wire"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/recovery"
)

// TestWriteOnTheWire: what the API server gets.
func TestWriteOnTheWire(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 13, 0, 0, 999_000_000, time.FixedZone("", 3600))
	for name, c := range map[string]struct {
		changed bool
		more    string
	}{
		"another status":  {true, `,"lastTransitionTime":"2026-03-01T12:00:00Z"`},
		"the same status": {false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var body json.RawMessage
				if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
					t.Error(err)
				}
				got = append(got, r.Method+" "+r.URL.String(), r.Header.Get("Content-Type"), string(body))
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write([]byte(`{"kind":"Pod","apiVersion":"v1"}`))
			}))
			defer server.Close()
			kube, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			verdict := Condition{Status: corev1.ConditionFalse, Reason: "ProbeFailed", Message: `it "fails"`, Changed: c.changed}
			if err := (Pods{Kube: kube}).write(t.Context(), me, "7", verdict, at); err != nil {
				t.Fatal(err)
			}
			want := []string{
				"PATCH /api/v1/namespaces/lab/pods/box-0/status", "application/strategic-merge-patch+json",
				`{"metadata":{"resourceVersion":"7","uid":"u1"},"status":{"conditions":[{"type":"belay.dev/MainReady","status":"False","reason":"ProbeFailed","message":"it \"fails\"","lastProbeTime":"2026-03-01T12:00:00Z"` + c.more + `}]}}`,
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	broken := errors.New("no answer")
	live := pod()
	for name, c := range map[string]struct {
		live    bool
		cached  CachedPods
		given   func(*cluster)
		want    PodFact
		version string
		err     error
	}{
		"informers have it":                 {cached: cache{cachedOf(live)}, want: PodFact{State: fact.Known, Pod: cachedOf(live)}},
		"informers have it not":             {cached: noCache{}},
		"live":                              {live: true, cached: noCache{}, want: PodFact{State: fact.Known, Live: true, Pod: recovery.PodOf(live)}, version: "7"},
		"live, whatever informers have":     {live: true, cached: cache{recovery.Pod{Name: "x"}}, want: PodFact{State: fact.Known, Live: true, Pod: recovery.PodOf(live)}, version: "7"},
		"live, and gone":                    {live: true, cached: cache{cachedOf(live)}, given: func(c *cluster) { c.pod = nil }, want: PodFact{State: fact.Absent, Live: true}},
		"live, and nobody answers":          {live: true, cached: cache{cachedOf(live)}, given: func(c *cluster) { c.failingGet = broken }, want: PodFact{Live: true}, err: broken},
		"informers have it, nobody answers": {cached: cache{cachedOf(live)}, given: func(c *cluster) { c.failingGet = broken }, want: PodFact{State: fact.Known, Pod: cachedOf(live)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := clusterOf(t, pod())
			if c.given != nil {
				c.given(s)
			}
			got, version, err := Pods{Kube: s, Cached: c.cached}.read(t.Context(), me, c.live)
			if diff := cmp.Diff(c.want, got); diff != "" || version != c.version || !errors.Is(err, c.err) {
				t.Errorf("%q %v (-want +got)\n%s", version, err, diff)
			}
		})
	}
}

// TestCallsAboutPodsAtATimeAreBounded: a Pod may be large, and comes with each answer.
func TestCallsAboutPodsAtATimeAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		asked, underWay, most := 0, 0, 0
		release := make(chan struct{})
		kube, err := kubernetes.NewForConfig(&rest.Config{Host: "http://api", QPS: -1, Transport: transport(func(*http.Request) (*http.Response, error) {
			mu.Lock()
			asked++
			underWay++
			most = max(most, underWay)
			mu.Unlock()
			<-release
			mu.Lock()
			underWay--
			mu.Unlock()
			w := httptest.NewRecorder()
			w.Header().Set("Content-Type", "application/json")
			_, err := w.WriteString(`{"kind":"Pod","apiVersion":"v1","metadata":{"uid":"u1","resourceVersion":"7"}}`)
			return w.Result(), err
		})})
		if err != nil {
			t.Fatal(err)
		}
		c := &Collector{Pods: Pods{Kube: kube, Cached: noCache{}}}
		c.Handler()
		var all sync.WaitGroup
		for range maxPlaces {
			all.Go(func() {
				if f, version, err := c.Pods.read(t.Context(), me, true); err != nil || version != "7" || f.State != fact.Known {
					t.Errorf("%+v %q %v", f, version, err)
				}
			})
			all.Go(func() {
				if err := c.Pods.write(t.Context(), me, "7", Condition{Status: corev1.ConditionTrue}, now); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		// Those whose time is over meanwhile have not asked, and do not know.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		f, _, err := c.Pods.read(ctx, me, true)
		if diff := cmp.Diff(PodFact{Live: true}, f); diff != "" || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v (-want +got)\n%s", err, diff)
		}
		if err := c.Pods.write(ctx, me, "7", Condition{}, now); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		// What informers have needs no place.
		if _, _, err := c.Pods.read(t.Context(), me, false); err != nil {
			t.Error(err)
		}
		close(release)
		all.Wait()
		if most != maxPlaces || asked != 2*maxPlaces || len(c.Pods.places) != 0 {
			t.Errorf("asked %d times, %d at once; %d places are not given back", asked, most, len(c.Pods.places))
		}
	})
}

// transport is a function as an http.RoundTripper.
type transport func(*http.Request) (*http.Response, error)

// RoundTrip calls it.
func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestAWriteThatComesTooLate is decided on anew: the Pod may be another, and the report may not
// be the last one any more.
func TestAWriteThatComesTooLate(t *testing.T) {
	t.Parallel()
	at := time.Now()
	order := orderOf(reportAt(at))
	later := order
	later.Sequence++
	once := func(change func(*cluster)) func(*cluster) {
		return func(c *cluster) {
			c.before = func(c *cluster) {
				c.before = nil
				change(c)
			}
		}
	}
	conflict := apierrors.NewConflict(podsResource, me.Pod, errors.New("the object has been modified"))
	for name, c := range map[string]struct {
		given        func(*cluster)
		want         string
		gets, writes int
		// message is part of the condition's, afterwards.
		message string
	}{
		"somebody else wrote something else": {once(func(c *cluster) { c.change(func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }) }), "200 Written 1m0s", 2, 2, "(report 5 of r2"},
		"a later report was written":         {once(func(c *cluster) { c.change(said(corev1.ConditionFalse, "ProbeFailed", "containerd://m1", later, 0)) }), "200 Late 1m0s", 2, 1, "(report 6 of r2"},
		"the same report was written":        {once(func(c *cluster) { c.change(said(corev1.ConditionTrue, "ProbeSucceeded", "containerd://m1", order, 0)) }), "200 Unchanged 1m0s", 2, 1, "(report 5 of r2"},
		"C20: the container was restarted": {once(func(c *cluster) {
			c.change(mainIs(func(s *corev1.ContainerStatus) { s.ContainerID, s.State = "containerd://m2", runningSince(at) }))
		}), "200 EarlierRun 1s", 2, 1, ""},
		"C23: the pod is being deleted":                  {once(func(c *cluster) { c.change(deleting) }), "403 PodDeleting", 2, 1, ""},
		"C24: another pod of that name":                  {once(func(c *cluster) { c.change(func(p *corev1.Pod) { p.UID = "u2" }) }), "403 PodReplaced", 2, 1, ""},
		"C24: another pod, and by chance that version":   {once(func(c *cluster) { c.pod.UID = "u2" }), "403 PodReplaced", 2, 1, ""},
		"the pod has gone":                               {once(func(c *cluster) { c.pod = nil }), "403 PodGone", 2, 1, ""},
		"always somebody is faster":                      {func(c *cluster) { c.before = func(c *cluster) { c.change() } }, "503 LookupFailed after 1", 5, 5, ""},
		"it always conflicts":                            {func(c *cluster) { c.failing = conflict }, "503 LookupFailed after 1", 5, 5, ""},
		"a write that nobody answers is not tried again": {func(c *cluster) { c.failing = errors.New("no answer") }, "503 LookupFailed after 1", 1, 1, ""},
		"the API server is busy":                         {func(c *cluster) { c.failing = apierrors.NewTooManyRequests("busy", 1) }, "503 LookupFailed after 1", 1, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := collect(t, func(s *collecting) { c.given(s.cluster) })
			if got := answered(t, s.send(post(reportAt(at)))); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if gets, writes := s.asked(); gets != c.gets || writes != c.writes {
				t.Errorf("%d reads, %d writes; want %d, %d", gets, writes, c.gets, c.writes)
			}
			if s.pod == nil {
				return
			}
			got := ""
			if m := s.mainReady(); m != nil {
				got = m.Message
			}
			if (got == "") != (c.message == "") || !strings.Contains(got, c.message) {
				t.Errorf("%q stays, want %q", got, c.message)
			}
		})
	}
}

// TestAConditionGoesThroughTheAPIServer: what was written is read again as it was meant, other
// conditions stay, and so does the time of the last transition while the status does.
func TestAConditionGoesThroughTheAPIServer(t *testing.T) {
	t.Parallel()
	s := collect(t)
	at := time.Now()
	ready := s.pod.Status.Conditions[0]
	var transitions []string
	for i, change := range []func(*wire.Report){notReady, func(*wire.Report) {}, func(*wire.Report) {}, unknown("ProbePending")} {
		r := reportAt(at, change, sequence(uint64(i+1)))
		if got := answered(t, s.send(post(r))); got != "200 Written 1m0s" {
			t.Fatal(got)
		}
		var given struct {
			Status struct{ Conditions []map[string]any }
		}
		if err := json.Unmarshal([]byte(s.patches[i]), &given); err != nil || len(given.Status.Conditions) != 1 {
			t.Fatalf("%v %s", err, s.patches[i])
		}
		if _, ok := given.Status.Conditions[0]["lastTransitionTime"]; ok {
			transitions = append(transitions, r.Reason)
		}
		got := recovery.PodOf(s.pod).Report
		want := recovery.Report{Present: true, Status: s.mainReady().Status, Reason: r.Reason, Container: "containerd://m1", At: got.At, Order: orderOf(r)}
		if diff := cmp.Diff(want, got); diff != "" || got.At.IsZero() {
			t.Errorf("(-want +got)\n%s", diff)
		}
		if !slices.Contains(s.pod.Status.Conditions, ready) || len(s.pod.Status.Conditions) != 2 {
			t.Errorf("%+v", s.pod.Status.Conditions)
		}
	}
	if diff := cmp.Diff([]string{"ProbeFailed", "ProbeSucceeded", "ProbePending"}, transitions); diff != "" {
		t.Errorf("transitions (-want +got)\n%s", diff)
	}
}

// TestTheModeIsThatOfTheCallersNamespace, and not of the one that the report names.
func TestTheModeIsThatOfTheCallersNamespace(t *testing.T) {
	t.Parallel()
	var asked []string
	s := collect(t, func(c *collecting) {
		c.mode = func(_ context.Context, namespace string) (string, error) {
			asked = append(asked, namespace)
			return v1alpha1.ModeEnforce, nil
		}
	})
	if got := answered(t, s.send(post(reportAt(time.Now(), func(r *wire.Report) { r.Namespace = "kube-system" })))); got != "403 OtherPod" {
		t.Error(got)
	}
	for _, namespace := range asked {
		if namespace != me.Namespace {
			t.Errorf("asked about %s", namespace)
		}
	}
}
