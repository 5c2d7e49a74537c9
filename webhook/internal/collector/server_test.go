package collector

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/belay-dev/belay/sidecar/wire"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/metrics"
	"github.com/belay-dev/belay/webhook/internal/recovery"
)

// collecting is a collector over a cluster with one Pod.
type collecting struct {
	t *testing.T
	*cluster
	reviews *reviewer
	cached  CachedPods
	mode    func(ctx context.Context, namespace string) (string, error)
	waits   waits
	handler http.Handler
	c       *Collector

	mu   sync.Mutex
	logs []string
}

// Mode is the mode of all namespaces.
func (c *collecting) Mode(ctx context.Context, namespace string) (string, error) {
	return c.mode(ctx, namespace)
}

// Pod asks the informers.
func (c *collecting) Pod(namespace, name string) (recovery.Pod, bool) {
	return c.cached.Pod(namespace, name)
}

// waits is what objects wait for.
type waits struct {
	freshFor time.Duration
	pods     []string
	any      bool
	unsynced bool
}

// For is whether a failed object waits for a Pod.
func (w waits) For(namespace, uid string) (time.Duration, bool) {
	return w.freshFor, namespace == me.Namespace && slices.Contains(w.pods, uid)
}

// Any is whether a policy goes by reports.
func (w waits) Any() bool { return w.any }

// Synced is whether it knows.
func (w waits) Synced() bool { return !w.unsynced }

func collect(t *testing.T, changes ...func(*collecting)) *collecting {
	t.Helper()
	c := &collecting{t: t, cached: noCache{}, mode: func(context.Context, string) (string, error) { return v1alpha1.ModeEnforce, nil }}
	c.cluster = clusterOf(t, podAt(time.Now()))
	c.reviews = always(accepts(me), nil)
	for _, change := range changes {
		change(c)
	}
	log := funcr.New(func(_, args string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.logs = append(c.logs, args)
	}, funcr.Options{Verbosity: 5})
	c.c = &Collector{Tokens: NewTokens(c.reviews), Pods: Pods{Kube: c.cluster, Cached: c}, Modes: c, Waiting: &c.waits, Log: log}
	c.handler = c.c.Handler()
	return c
}

// post is a report as the sidecar sends it.
func post(r wire.Report, changes ...func(*http.Request)) *http.Request {
	body, err := wire.EncodeReport(r)
	if err != nil {
		panic(err)
	}
	req := httptest.NewRequest(http.MethodPost, wire.Path, bytes.NewReader(body))
	req.Header.Set("Content-Type", wire.ContentType)
	req.Header.Set("Authorization", "Bearer "+claimsOf(me, time.Now().Add(time.Hour)).token("s"))
	for _, change := range changes {
		change(req)
	}
	return req
}

func header(key, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(key, value) }
}

func body(text string) func(*http.Request) {
	return func(r *http.Request) {
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
	}
}

func chunked(text string) func(*http.Request) {
	return func(r *http.Request) { r.Body, r.ContentLength = io.NopCloser(strings.NewReader(text)), -1 }
}

// send takes a request to the handler.
func (c *collecting) send(r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	c.handler.ServeHTTP(w, r)
	return w
}

// answered is an answer in words.
func answered(t *testing.T, w *httptest.ResponseRecorder) string {
	t.Helper()
	if got := w.Header().Get("Content-Type"); got != wire.ContentType {
		t.Errorf("content type %q", got)
	}
	if w.Body.Len() > wire.MaxAnswerBytes {
		t.Errorf("an answer of %d bytes, and %d are read", w.Body.Len(), wire.MaxAnswerBytes)
	}
	text := fmt.Sprint(w.Code)
	if w.Code == http.StatusOK {
		a, err := wire.DecodeAnswer(w.Body.Bytes())
		if err != nil {
			t.Error(err)
		}
		text += " " + a.Outcome + " " + a.Interval().String()
	} else {
		r := wire.DecodeRefusal(w.Body.Bytes())
		if r.Message == "" || strings.ContainsAny(r.Message, "\n\r") || strings.HasSuffix(r.Message, ".") {
			t.Errorf("message %q", r.Message)
		}
		text += " " + r.Reason
	}
	if after := w.Header().Get("Retry-After"); after != "" {
		text += " after " + after
	}
	return text
}

func TestServe(t *testing.T) {
	t.Parallel()
	good, err := wire.EncodeReport(reportAt(time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	fields := func(change func(*wire.Report)) *http.Request { return post(reportAt(time.Now(), change)) }
	modes := func(mode string, err error) func(*collecting) {
		return func(c *collecting) { c.mode = func(context.Context, string) (string, error) { return mode, err } }
	}
	reviewed := func(answer *authenticationv1.TokenReview, err error) func(*collecting) {
		return func(c *collecting) { c.reviews = always(answer, err) }
	}
	changed := func(change func(*corev1.Pod)) func(*collecting) { return func(c *collecting) { change(c.pod) } }
	failing := func(get, patch error) func(*collecting) {
		return func(c *collecting) { c.failingGet, c.failing = get, patch }
	}
	forbidden := apierrors.NewForbidden(podsResource, me.Pod, errors.New("no right"))
	token := func(p payload) *http.Request {
		return post(reportAt(time.Now()), header("Authorization", "Bearer "+p.token("s")))
	}
	mine := claimsOf(me, time.Now().Add(time.Hour))
	for name, c := range map[string]struct {
		given   []func(*collecting)
		request *http.Request
		want    string
		writes  int
	}{
		"a report":                        {request: post(reportAt(time.Now())), want: "200 Written 1m0s", writes: 1},
		"a field of a newer sidecar":      {request: post(reportAt(time.Now()), body(strings.Replace(string(good), "{", `{"later":1,`, 1))), want: "200 Written 1m0s", writes: 1},
		"with a charset":                  {request: post(reportAt(time.Now()), header("Content-Type", "application/json; charset=utf-8")), want: "200 Written 1m0s", writes: 1},
		"in chunks":                       {request: post(reportAt(time.Now()), chunked(string(good))), want: "200 Written 1m0s", writes: 1},
		"as long as it may be":            {request: post(reportAt(time.Now()), body(string(good)+strings.Repeat(" ", wire.MaxReportBytes-len(good)))), want: "200 Written 1m0s", writes: 1},
		"an object waits":                 {given: []func(*collecting){func(c *collecting) { c.waits = waits{freshFor: 30 * time.Second, pods: []string{"u1"}, any: true} }}, request: post(reportAt(time.Now())), want: "200 Written 10s", writes: 1},
		"an object waits for another pod": {given: []func(*collecting){func(c *collecting) { c.waits = waits{freshFor: 30 * time.Second, pods: []string{"u2"}, any: true} }}, request: post(reportAt(time.Now())), want: "200 Written 1m0s", writes: 1},
		"nobody knows yet what waits":     {given: []func(*collecting){func(c *collecting) { c.waits.unsynced = true }}, request: post(reportAt(time.Now())), want: "200 Written 10s", writes: 1},
		"a policy goes by reports":        {given: []func(*collecting){func(c *collecting) { c.waits.any = true }}, request: fields(notReady), want: "200 Written 10s", writes: 1},

		// The request.
		"GET":                             {request: post(reportAt(time.Now()), func(r *http.Request) { r.Method = http.MethodGet }), want: "405 Unreadable"},
		"PUT":                             {request: post(reportAt(time.Now()), func(r *http.Request) { r.Method = http.MethodPut }), want: "405 Unreadable"},
		"odd":                             {request: post(reportAt(time.Now()), func(r *http.Request) { r.Method = "post" }), want: "405 Unreadable"},
		"no content type":                 {request: post(reportAt(time.Now()), func(r *http.Request) { r.Header.Del("Content-Type") }), want: "415 Unreadable"},
		"protobuf":                        {request: post(reportAt(time.Now()), header("Content-Type", "application/vnd.kubernetes.protobuf")), want: "415 Unreadable"},
		"a content type that is none":     {request: post(reportAt(time.Now()), header("Content-Type", "application/json; =")), want: "415 Unreadable"},
		"too long, as it says":            {request: post(reportAt(time.Now()), body(string(good)+strings.Repeat(" ", wire.MaxReportBytes-len(good)+1))), want: "413 Unreadable"},
		"too long, in chunks":             {request: post(reportAt(time.Now()), chunked(strings.Repeat(" ", 1<<20))), want: "413 Unreadable"},
		"it breaks off":                   {request: post(reportAt(time.Now()), func(r *http.Request) { r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(good[:20]), broken{})) }), want: "400 Unreadable"},
		"it breaks off when all was said": {request: post(reportAt(time.Now()), func(r *http.Request) { r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(good), broken{})) }), want: "400 Unreadable"},
		"nothing":                         {request: post(reportAt(time.Now()), body("")), want: "400 Unreadable"},
		"no JSON":                         {request: post(reportAt(time.Now()), body("{")), want: "400 Unreadable"},
		"no report":                       {request: post(reportAt(time.Now()), body("{}")), want: "400 Unreadable"},
		"two reports":                     {request: post(reportAt(time.Now()), body(string(good)+string(good))), want: "400 Unreadable"},
		"a huge number":                   {request: post(reportAt(time.Now()), body(`{"sequence":`+strings.Repeat("9", 4000)+`}`)), want: "400 Unreadable"},
		"faults that JSON escapes":        {request: post(reportAt(time.Now()), body(`{"namespace":"`+strings.Repeat("<", 700)+`","pod":"`+strings.Repeat("<", 700)+`","uid":"`+strings.Repeat("&", 120)+`","reason":"`+strings.Repeat("<", 120)+`","container":"`+strings.Repeat("<", 60)+`","state":"`+strings.Repeat("&", 60)+`"}`)), want: "400 Unreadable"},

		// The token.
		"no token":                      {request: post(reportAt(time.Now()), func(r *http.Request) { r.Header.Del("Authorization") }), want: "401 NoToken"},
		"a password":                    {request: post(reportAt(time.Now()), header("Authorization", "Basic eDp5")), want: "401 NoToken"},
		"a scheme alone":                {request: post(reportAt(time.Now()), header("Authorization", "Bearer ")), want: "401 NoToken"},
		"a word":                        {request: post(reportAt(time.Now()), header("Authorization", "Bearer secret")), want: "401 NoToken"},
		"a scheme in small letters":     {request: post(reportAt(time.Now()), header("Authorization", "bearer "+mine.token("s"))), want: "200 Written 1m0s", writes: 1},
		"a token without a scheme":      {request: post(reportAt(time.Now()), header("Authorization", mine.token("s"))), want: "401 NoToken"},
		"space around the token":        {request: post(reportAt(time.Now()), header("Authorization", "Bearer  "+mine.token("s")+" ")), want: "200 Written 1m0s", writes: 1},
		"C24: another audience":         {request: token(mine.with("aud", "vault")), want: "401 WrongAudience"},
		"C24: bound to nothing":         {request: token(mine.with("kubernetes.io", nil)), want: "401 UnboundToken"},
		"an old token":                  {request: token(claimsOf(me, time.Now().Add(-time.Minute))), want: "401 TokenExpired"},
		"C22: the service account gone": {given: []func(*collecting){reviewed(&authenticationv1.TokenReview{}, nil)}, request: post(reportAt(time.Now())), want: "401 TokenInvalid"},
		"C21: belay's own token":        {given: []func(*collecting){reviewed(nil, apierrors.NewUnauthorized("no"))}, request: post(reportAt(time.Now())), want: "503 ReviewFailed after 1"},

		// The Pod.
		"C24: of another pod":        {request: fields(func(r *wire.Report) { r.Pod = "box-1" }), want: "403 OtherPod"},
		"C24: of another UID":        {request: fields(func(r *wire.Report) { r.UID = "u2" }), want: "403 OtherPod"},
		"the namespace warns":        {given: []func(*collecting){modes(v1alpha1.ModeWarn, nil)}, request: post(reportAt(time.Now())), want: "403 NamespaceNotEnforced"},
		"the namespace has no label": {given: []func(*collecting){modes("", nil)}, request: post(reportAt(time.Now())), want: "403 NamespaceNotEnforced"},
		"the namespace is gone":      {given: []func(*collecting){modes("", apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "lab"))}, request: post(reportAt(time.Now())), want: "403 NamespaceNotEnforced"},
		"the mode is not known":      {given: []func(*collecting){modes(v1alpha1.ModeEnforce, errors.New("no answer"))}, request: post(reportAt(time.Now())), want: "503 LookupFailed after 1"},
		"the pod is gone":            {given: []func(*collecting){func(c *collecting) { c.pod = nil }}, request: post(reportAt(time.Now())), want: "403 PodGone"},
		"C24: there is another":      {given: []func(*collecting){changed(func(p *corev1.Pod) { p.UID = "u2" })}, request: post(reportAt(time.Now())), want: "403 PodReplaced"},
		"C23: it is being deleted":   {given: []func(*collecting){changed(deleting)}, request: post(reportAt(time.Now())), want: "403 PodDeleting"},
		"no such container":          {request: fields(func(r *wire.Report) { r.Container = "work" }), want: "403 NoSuchContainer"},
		"the pod cannot be read":     {given: []func(*collecting){failing(errors.New("no answer"), nil)}, request: post(reportAt(time.Now())), want: "503 LookupFailed after 1"},
		"it must not be written":     {given: []func(*collecting){failing(nil, forbidden)}, request: post(reportAt(time.Now())), want: "503 LookupFailed after 1", writes: 1},
		"it must not be read":        {given: []func(*collecting){failing(forbidden, nil)}, request: post(reportAt(time.Now())), want: "503 LookupFailed after 1"},
		"the pod waits":              {given: []func(*collecting){changed(waiting)}, request: post(reportAt(time.Now())), want: "200 NotRunning 1s"},
		"the pod is done":            {given: []func(*collecting){changed(inPhase(corev1.PodFailed))}, request: post(reportAt(time.Now())), want: "200 Finished 1m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := collect(t, c.given...)
			w := s.send(c.request)
			if diff := cmp.Diff(c.want, answered(t, w)); diff != "" {
				t.Errorf("(-want +got)\n%s%s", diff, w.Body)
			}
			if _, writes := s.asked(); writes != c.writes {
				t.Errorf("%d writes, want %d", writes, c.writes)
			}
			if allow := w.Header().Get("Allow"); (allow == http.MethodPost) != (w.Code == http.StatusMethodNotAllowed) {
				t.Errorf("Allow %q", allow)
			}
			if challenge := w.Header().Get("WWW-Authenticate"); (challenge == "Bearer") != (w.Code == http.StatusUnauthorized) {
				t.Errorf("WWW-Authenticate %q", challenge)
			}
			s.quiet(w)
		})
	}
}

// broken is a body that breaks off.
type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// quiet looks for the token in what is logged and answered.
func (c *collecting) quiet(w *httptest.ResponseRecorder) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, text := range append(slices.Clone(c.logs), w.Body.String()) {
		for _, secret := range []string{"eyJ", "secret", "Bearer"} {
			if strings.Contains(text, secret) {
				c.t.Errorf("a token: %s", text)
			}
		}
	}
}

func TestOnlyReportsAreServed(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{"the root": "/", "another": "/v2/report", "below": "/v1/report/x", "the metrics": "/metrics"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := collect(t)
			if w := s.send(post(reportAt(time.Now()), func(r *http.Request) { r.URL.Path = path })); w.Code != http.StatusNotFound {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if s.reviews.count() != 0 {
				t.Error("the API server was asked")
			}
		})
	}
}

// TestWhatInformersKnowCostsNothing: a report that changes nothing is answered from what
// informers have, without the API server.
func TestWhatInformersKnowCostsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, token := reportAt(time.Now()), claimsOf(me, time.Now().Add(time.Hour)).token("s")
		s := collect(t)
		expect := func(want string, gets, writes int) {
			t.Helper()
			w := s.send(post(r, header("Authorization", "Bearer "+token)))
			g, p := s.asked()
			if got := answered(t, w); got != want || g != gets || p != writes || s.reviews.count() != 1 {
				t.Errorf("%s after %d reads, %d writes, %d reviews; want %s, %d, %d", got, g, p, s.reviews.count(), want, gets, writes)
			}
		}
		expect("200 Written 1m0s", 1, 1)
		s.cached = cache{cachedOf(s.pod)}
		expect("200 Unchanged 1m0s", 1, 1)
		// While an object waits the report is kept fresh, and no more.
		s.waits = waits{freshFor: 30 * time.Second, pods: []string{string(me.UID)}, any: true}
		<-time.After(9 * time.Second)
		expect("200 Unchanged 10s", 1, 1)
		<-time.After(time.Second)
		expect("200 Written 10s", 2, 2)
		s.cached = cache{cachedOf(s.pod)}
		expect("200 Unchanged 10s", 2, 2)
		if c := s.mainReady(); !c.LastProbeTime.After(c.LastTransitionTime.Time) {
			t.Errorf("%+v", c)
		}
	})
}

// TestAPodThatReportsTooOften has ten reports at once, and two a second; others are not
// concerned.
func TestAPodThatReportsTooOften(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		other := Caller{"lab", "box-1", "u2"}
		s := collect(t, func(c *collecting) {
			c.reviews.answer = func(_ context.Context, r *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
				given, _ := read(r.Spec.Token)
				return accepts(Caller{"lab", given.Private.Pod.Name, types.UID(given.Private.Pod.UID)}), nil
			}
		})
		tell := func(want string) {
			t.Helper()
			if got := answered(t, s.send(post(reportAt(time.Now())))); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		}
		tell("200 Written 1m0s")
		for range 9 {
			tell("200 Unchanged 1m0s")
		}
		tell("429 TooManyReports after 1")
		w := s.send(post(reportAt(time.Now()), header("Authorization", "Bearer "+claimsOf(other, time.Now().Add(time.Hour)).token("s"))))
		if got := answered(t, w); got != "403 OtherPod" {
			t.Errorf("another pod: %s", got)
		}
		<-time.After(time.Second)
		tell("200 Unchanged 1m0s")
		tell("200 Unchanged 1m0s")
		tell("429 TooManyReports after 1")
		<-time.After(time.Minute)
		for range burst {
			tell("200 Unchanged 1m0s")
		}
		tell("429 TooManyReports after 1")
	})
}

// TestAConnectionIsTrusted once a token has been shown on it that counts, whatever becomes of
// the report.
func TestAConnectionIsTrusted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		given   func(*collecting)
		request *http.Request
		want    bool
	}{
		"a report":                   {request: post(reportAt(time.Now())), want: true},
		"a report of another pod":    {request: post(reportAt(time.Now(), func(r *wire.Report) { r.UID = "u2" })), want: true},
		"no report":                  {request: post(reportAt(time.Now()), body("{}"))},
		"no token":                   {request: post(reportAt(time.Now()), header("Authorization", ""))},
		"another audience":           {request: post(reportAt(time.Now()), header("Authorization", "Bearer "+claimsOf(me, time.Now().Add(time.Hour)).with("aud", "vault").token("s")))},
		"a token that was made up":   {given: func(c *collecting) { c.reviews = always(&authenticationv1.TokenReview{}, nil) }, request: post(reportAt(time.Now()))},
		"a token of another pod":     {given: func(c *collecting) { c.reviews = always(accepts(Caller{"lab", "box-0", "u2"}), nil) }, request: post(reportAt(time.Now()))},
		"a token nobody could check": {given: func(c *collecting) { c.reviews = always(nil, errors.New("no answer")) }, request: post(reportAt(time.Now()))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := collect(t, func(s *collecting) {
				if c.given != nil {
					c.given(s)
				}
			})
			trusted := 0
			s.send(c.request.WithContext(WithTrusted(t.Context(), func(types.UID) { trusted++ })))
			if (trusted == 1) != c.want || trusted > 1 {
				t.Errorf("%d times", trusted)
			}
		})
	}
}

// TestReportsAtATimeAreBounded: too many are told to come again, and what is worked on goes on.
func TestReportsAtATimeAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s := collect(t, func(c *collecting) {
			c.reviews.answer = func(context.Context, *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
				<-release
				return &authenticationv1.TokenReview{}, nil
			}
		})
		var all sync.WaitGroup
		for range 256 {
			all.Go(func() {
				if got := answered(t, s.send(post(reportAt(time.Now())))); got != "401 TokenInvalid" {
					t.Error(got)
				}
			})
		}
		synctest.Wait()
		if got := answered(t, s.send(post(reportAt(time.Now())))); got != "503 TooManyReports after 1" {
			t.Error(got)
		}
		// What is no report, or has no token, is told so all the same.
		if got := answered(t, s.send(post(reportAt(time.Now()), body("{")))); got != "400 Unreadable" {
			t.Error(got)
		}
		if got := answered(t, s.send(post(reportAt(time.Now()), header("Authorization", "x")))); got != "401 NoToken" {
			t.Error(got)
		}
		close(release)
		all.Wait()
		if got := answered(t, s.send(post(reportAt(time.Now())))); got != "401 TokenInvalid" {
			t.Errorf("later: %s", got)
		}
	})
}

// TestASlowBodyKeepsNoPlace: anybody can send one, and it takes as long as the server lets it.
func TestASlowBodyKeepsNoPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := collect(t)
		var all sync.WaitGroup
		var ends []*io.PipeWriter
		for range maxCalls + 1 {
			r, w := io.Pipe()
			ends = append(ends, w)
			all.Go(func() {
				got := answered(t, s.send(post(reportAt(time.Now()), func(req *http.Request) { req.Body, req.ContentLength = r, -1 })))
				if got != "400 Unreadable" {
					t.Error(got)
				}
			})
		}
		synctest.Wait()
		if got := answered(t, s.send(post(reportAt(time.Now())))); got != "200 Written 1m0s" {
			t.Error(got)
		}
		for _, w := range ends {
			w.CloseWithError(errors.New("the server's time is over"))
		}
		all.Wait()
	})
}

// TestAReportTakesTenSecondsAtMost: whatever the API server does.
func TestAReportTakesTenSecondsAtMost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		given func(*collecting)
		want  string
	}{
		"the review hangs": {func(c *collecting) {
			c.reviews.answer = func(ctx context.Context, _ *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
		}, "503 ReviewFailed after 1"},
		"the namespace hangs": {func(c *collecting) {
			c.mode = func(ctx context.Context, _ string) (string, error) {
				<-ctx.Done()
				return "", ctx.Err()
			}
		}, "503 LookupFailed after 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				if got := answered(t, collect(t, c.given).send(post(reportAt(time.Now())))); got != c.want {
					t.Error(got)
				}
				if took := time.Since(began); took != callTimeout {
					t.Errorf("it took %s", took)
				}
				// A caller that has gone is not waited for.
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				began = time.Now()
				collect(t, c.given).send(post(reportAt(time.Now())).WithContext(ctx))
				if took := time.Since(began); took != time.Second {
					t.Errorf("it took %s", took)
				}
			})
		})
	}
}

// counted is what a metric says for the values of its labels, in the order of their names.
func counted(t *testing.T, c prometheus.Collector, values ...string) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var has []string
			for _, l := range m.GetLabel() {
				has = append(has, l.GetValue())
			}
			if slices.Equal(has, values) {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// TestAPanicCostsOneReport is not parallel, like all that count: others count as well.
func TestAPanicCostsOneReport(t *testing.T) {
	before := counted(t, metrics.Panics, "collector")
	s := collect(t, func(c *collecting) {
		c.mode = func(context.Context, string) (string, error) { panic("a bug") }
	})
	for range 2 * burst {
		w := s.send(post(reportAt(time.Now())))
		if got := answered(t, w); got != "500 InternalError" && got != "429 TooManyReports after 1" {
			t.Error(got)
		}
		s.quiet(w)
	}
	if len(s.c.calls) != 0 {
		t.Errorf("%d places are lost", len(s.c.calls))
	}
	if got := counted(t, metrics.Panics, "collector") - before; got < burst {
		t.Errorf("%v panics were counted", got)
	}
	if !strings.Contains(strings.Join(s.logs, "\n"), "a bug") {
		t.Errorf("%q", s.logs)
	}
}

// TestReportsAreCounted by result and reason, of which all are in the metric's description.
func TestReportsAreCounted(t *testing.T) {
	count := func() map[string]float64 {
		out := map[string]float64{"writes": counted(t, metrics.ConditionsWritten)}
		for _, r := range []string{"accepted Written", "accepted Unchanged", "refused Unreadable", "refused NoToken", "refused OtherPod", "refused LookupFailed"} {
			result, reason, _ := strings.Cut(r, " ")
			out[r] = counted(t, metrics.Reports, reason, result)
		}
		return out
	}
	s := collect(t)
	before := count()
	r := reportAt(time.Now())
	s.send(post(r))
	s.send(post(r))
	s.send(post(r))
	s.send(post(r, body("")))
	s.send(post(r, header("Authorization", "")))
	s.send(post(reportAt(time.Now(), func(r *wire.Report) { r.UID = "u2" })))
	s.failingGet = errors.New("no answer")
	s.send(post(r))
	after := count()
	for key := range after {
		after[key] -= before[key]
	}
	want := map[string]float64{"writes": 1, "accepted Written": 1, "accepted Unchanged": 2, "refused Unreadable": 1, "refused NoToken": 1, "refused OtherPod": 1, "refused LookupFailed": 1}
	if diff := cmp.Diff(want, after); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	text := metrics.Reports.WithLabelValues("accepted", "Written").Desc().String()
	for _, reason := range slices.Concat(accepting, refusing, slices.Collect(maps.Keys(tokenWords)), []Reason{ReasonLookupFailed, ReasonReviewFailed, ReasonUnreadable, ReasonTooMany, ReasonInternal}) {
		if !strings.Contains(text, string(reason)) {
			t.Errorf("%s is not described", reason)
		}
	}
}

// TestEveryRefusalHasWords for people.
func TestEveryRefusalHasWords(t *testing.T) {
	t.Parallel()
	for _, r := range refusing {
		if words[r] == "" {
			t.Errorf("no words for %s", r)
		}
	}
	for _, r := range []Reason{ReasonNoToken, ReasonWrongAudience, ReasonUnbound, ReasonExpired, ReasonTokenInvalid} {
		if tokenWords[r] == "" {
			t.Errorf("no words for %s", r)
		}
	}
}

// TestOverHTTP sends reports to a server, over both versions of HTTP.
func TestOverHTTP(t *testing.T) {
	t.Parallel()
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := collect(t)
			server := httptest.NewUnstartedServer(s.handler)
			server.EnableHTTP2 = http2
			server.StartTLS()
			defer server.Close()
			for i, want := range []string{"200", "413", "200"} {
				r := post(reportAt(time.Now(), sequence(uint64(i+1))))
				r.RequestURI = ""
				r.URL.Scheme, r.URL.Host = "https", server.Listener.Addr().String()
				if want == "413" {
					chunked(strings.Repeat("x", 1<<20))(r)
				}
				resp, err := server.Client().Do(r)
				if err != nil {
					t.Fatal(err)
				}
				text, err := io.ReadAll(resp.Body)
				if err != nil || fmt.Sprint(resp.StatusCode) != want || resp.Proto[:6] != name[:6] {
					t.Errorf("%s %d %s %v, want %s", resp.Proto, resp.StatusCode, text, err, want)
				}
				_ = resp.Body.Close()
			}
			if c := s.mainReady(); c == nil || c.Status != corev1.ConditionTrue || !strings.Contains(c.Message, "report 3 of r2") {
				t.Errorf("%+v", c)
			}
		})
	}
}

// TestManyReportAtOnce is for the race detector: whatever comes when, the last report stays.
func TestManyReportAtOnce(t *testing.T) {
	t.Parallel()
	s := collect(t)
	replica := collect(t, func(c *collecting) { c.cluster = s.cluster })
	at := time.Now()
	var all sync.WaitGroup
	for n := range uint64(8) {
		for _, c := range []*collecting{s, replica} {
			all.Go(func() {
				state := notReady
				if n == 7 {
					state = func(*wire.Report) {}
				}
				for {
					w := c.send(post(reportAt(at, state, sequence(n+1))))
					if got := answered(t, w); strings.HasPrefix(got, "200 ") {
						return
					} else if got != "503 LookupFailed after 1" && got != "429 TooManyReports after 1" {
						t.Error(got)
						return
					}
					select {
					case <-t.Context().Done():
						return
					case <-time.After(50 * time.Millisecond):
					}
				}
			})
		}
	}
	all.Wait()
	if c := s.mainReady(); c == nil || c.Status != corev1.ConditionTrue || !strings.Contains(c.Message, "(report 8 of r2") {
		t.Errorf("%+v", c)
	}
}

// FuzzReport: whatever comes, nothing panics, and nothing is written but what a valid report
// of the very Pod says.
func FuzzReport(f *testing.F) {
	at := time.Now()
	good, err := wire.EncodeReport(reportAt(at))
	if err != nil {
		f.Fatal(err)
	}
	token := claimsOf(me, at.Add(time.Hour)).token("s")
	f.Add(http.MethodPost, wire.Path, wire.ContentType, "Bearer "+token, good)
	f.Add(http.MethodPost, wire.Path, wire.ContentType, "Bearer "+token, []byte(`{"namespace":"lab","pod":"box-0","uid":"u1","container":"main","state":"Unknown","reason":"E","reporter":"f","sequence":18446744073709551615,"reporterSinceUnixMillis":253402300799999}`))
	f.Add(http.MethodPut, wire.Path, "text/plain", "bearer x", []byte("[[[["))
	f.Add(http.MethodPost, "/v1//report", wire.ContentType+";a=\"", "Bearer a.b.c", []byte(`{"namespace":"<&>"}`))
	f.Fuzz(func(t *testing.T, method, path, contentType, authorization string, content []byte) {
		s := collect(t)
		r := httptest.NewRequest(http.MethodPost, wire.Path, bytes.NewReader(content))
		r.Method, r.URL.Path = method, path
		r.Header = http.Header{"Content-Type": {contentType}, "Authorization": {authorization}}
		w := s.send(r)
		_, writes := s.asked()
		report, err := wire.DecodeReport(content)
		valid := err == nil && report.Namespace == me.Namespace && report.Pod == me.Pod && report.UID == string(me.UID) && method == http.MethodPost && path == wire.Path
		if writes > 0 && (!valid || w.Code != http.StatusOK) {
			t.Errorf("%d writes after %d %q", writes, w.Code, content)
		}
		if w.Code >= http.StatusInternalServerError || w.Body.Len() > wire.MaxAnswerBytes && path == wire.Path {
			t.Errorf("%d with %d bytes", w.Code, w.Body.Len())
		}
		if c := s.mainReady(); c != nil {
			back := recovery.PodOf(s.pod).Report
			if back.Order != orderOf(report) || back.Container == "" || string(c.Status) == "" || c.LastTransitionTime.IsZero() {
				t.Errorf("%+v after %q", c, content)
			}
		}
	})
}

// TestWritesOfOnePodArePutOff: who changes for ever costs half a write a second, and what it says
// last is written by and by.
func TestWritesOfOnePodArePutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := collect(t)
		sequence := uint64(0)
		turn := func() string {
			sequence++
			return answered(t, s.send(post(reportAt(time.Now(), func(r *wire.Report) {
				r.Sequence = sequence
				if sequence%2 == 0 {
					notReady(r)
				}
			}))))
		}
		for range writeBurst {
			if got := turn(); got != "200 Written 1m0s" {
				t.Errorf("%d: %s", sequence, got)
			}
		}
		if got := turn(); got != "200 PutOff 2s" {
			t.Errorf("one more: %s", got)
		}
		<-time.After(putOff)
		again := answered(t, s.send(post(reportAt(time.Now(), func(r *wire.Report) { r.Sequence = sequence }))))
		if again != "200 Written 1m0s" {
			t.Errorf("the same again: %s", again)
		}
	})
}
