package collector

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	utilcache "k8s.io/apimachinery/pkg/util/cache"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// TestClaimsAreRefusedWithoutAsking: what the claims show by themselves costs the API server
// nothing.
func TestClaimsAreRefusedWithoutAsking(t *testing.T) {
	t.Parallel()
	good := claimsOf(me, time.Now().Add(time.Hour))
	parts := strings.Split(good.token("s"), ".")
	whole := func(payload string) string {
		return parts[0] + "." + encoded(payload) + "." + parts[2]
	}
	for name, c := range map[string]struct {
		token string
		want  Reason
	}{
		"nothing":                          {"", ReasonNoToken},
		"a word":                           {"secret", ReasonNoToken},
		"two parts":                        {parts[0] + "." + parts[1], ReasonNoToken},
		"four parts":                       {good.token("s") + ".x", ReasonNoToken},
		"dots":                             {"..", ReasonNoToken},
		"no base64":                        {parts[0] + ".%%%." + parts[2], ReasonNoToken},
		"padded":                           {parts[0] + "." + encoded("{}") + "==." + parts[2], ReasonNoToken},
		"no JSON":                          {whole("{"), ReasonNoToken},
		"two values":                       {whole("{}{}"), ReasonNoToken},
		"a list":                           {whole("[]"), ReasonNoToken},
		"a number for a name":              {whole(`{"aud":"belay.dev","kubernetes.io":{"pod":{"name":1}}}`), ReasonNoToken},
		"an expiry in words":               {good.with("exp", "tomorrow").token("s"), ReasonNoToken},
		"huge":                             {good.with("x", strings.Repeat("x", maxToken)).token("s"), ReasonNoToken},
		"a huge signature":                 {good.token(strings.Repeat("s", maxToken)), ReasonNoToken},
		"null":                             {whole("null"), ReasonWrongAudience},
		"nothing claimed":                  {whole("{}"), ReasonWrongAudience},
		"C24: of a legacy service account": {whole(`{"iss":"kubernetes/serviceaccount","kubernetes.io/serviceaccount/namespace":"lab"}`), ReasonWrongAudience},
		"C24: another audience":            {good.with("aud", "https://kubernetes.default.svc").token("s"), ReasonWrongAudience},
		"C24: other audiences":             {good.with("aud", []string{"vault", "belay.dev.example.com"}).token("s"), ReasonWrongAudience},
		"C24: no audience in a list":       {good.with("aud", []string{}).token("s"), ReasonWrongAudience},
		"C24: an audience that is a list":  {good.with("aud", []any{[]string{"belay.dev"}}).token("s"), ReasonWrongAudience},
		"C24: an audience that is no text": {good.with("aud", map[string]string{"belay.dev": "belay.dev"}).token("s"), ReasonWrongAudience},
		"C24: in capitals":                 {good.with("aud", "BELAY.DEV").token("s"), ReasonWrongAudience},
		"C24: bound to nothing":            {good.with("kubernetes.io", map[string]any{"namespace": "lab"}).token("s"), ReasonUnbound},
		"C24: no claims of Kubernetes":     {good.with("kubernetes.io", nil).token("s"), ReasonUnbound},
		"C24: bound to a Secret":           {good.with("kubernetes.io", map[string]any{"secret": map[string]any{"name": "s", "uid": "u"}}).token("s"), ReasonUnbound},
		"expired":                          {claimsOf(me, time.Now().Add(-time.Second)).token("s"), ReasonExpired},
		"no expiry":                        {good.with("exp", 0).token("s"), ReasonExpired},
		"before all time":                  {good.with("exp", math.MinInt64).token("s"), ReasonExpired},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := always(accepts(me), nil)
			caller, reason, err := NewTokens(v).Review(t.Context(), c.token)
			if err != nil || reason != c.want || caller != (Caller{}) {
				t.Errorf("%+v %s %v, want %s", caller, reason, err, c.want)
			}
			if v.count() != 0 {
				t.Error("the API server was asked")
			}
		})
	}
}

func TestReview(t *testing.T) {
	t.Parallel()
	good := claimsOf(me, time.Now().Add(time.Hour))
	status := func(change func(*authenticationv1.TokenReviewStatus)) *authenticationv1.TokenReview {
		return accepts(me, change)
	}
	extra := func(key string, values ...string) *authenticationv1.TokenReview {
		return status(func(s *authenticationv1.TokenReviewStatus) {
			s.User.Extra["authentication.kubernetes.io/"+key] = values
		})
	}
	user := func(name string) *authenticationv1.TokenReview {
		return status(func(s *authenticationv1.TokenReviewStatus) { s.User.Username = name })
	}
	for name, c := range map[string]struct {
		claims payload
		answer *authenticationv1.TokenReview
		err    error
		want   Reason
	}{
		"the token of a pod":                       {good, accepts(me), nil, ""},
		"one audience, as a text":                  {good.with("aud", v1alpha1.WitnessAudience), accepts(me), nil, ""},
		"ours is one of several audiences":         {good.with("aud", []string{"vault", v1alpha1.WitnessAudience}), accepts(me), nil, ""},
		"it ends after all time":                   {good.with("exp", math.MaxInt64/1_000_000_000), accepts(me), nil, ""},
		"C22: the service account is gone":         {good, &authenticationv1.TokenReview{Status: authenticationv1.TokenReviewStatus{Error: "service account lab/default has been deleted"}}, nil, ReasonTokenInvalid},
		"C22: not authenticated, but described":    {good, status(func(s *authenticationv1.TokenReviewStatus) { s.Authenticated = false }), nil, ReasonTokenInvalid},
		"nothing is answered":                      {good, &authenticationv1.TokenReview{}, nil, ReasonTokenInvalid},
		"C24: checked for no audience":             {good, status(func(s *authenticationv1.TokenReviewStatus) { s.Audiences = nil }), nil, ReasonWrongAudience},
		"C24: checked for another audience":        {good, status(func(s *authenticationv1.TokenReviewStatus) { s.Audiences = []string{"vault"} }), nil, ReasonWrongAudience},
		"C24: no name of a pod":                    {good, extra("pod-name"), nil, ReasonUnbound},
		"C24: no UID of a pod":                     {good, extra("pod-uid"), nil, ReasonUnbound},
		"C24: an empty name":                       {good, extra("pod-name", ""), nil, ReasonUnbound},
		"C24: an empty UID":                        {good, extra("pod-uid", ""), nil, ReasonUnbound},
		"C24: two names":                           {good, extra("pod-name", "box-0", "box-1"), nil, ReasonUnbound},
		"C24: two UIDs":                            {good, extra("pod-uid", "u1", "u2"), nil, ReasonUnbound},
		"C24: no extras":                           {good, status(func(s *authenticationv1.TokenReviewStatus) { s.User.Extra = nil }), nil, ReasonUnbound},
		"C24: a user":                              {good, user("alice"), nil, ReasonUnbound},
		"C24: a node":                              {good, user("system:node:node-1"), nil, ReasonUnbound},
		"C24: a service account without namespace": {good, user("system:serviceaccount:default"), nil, ReasonUnbound},
		"C24: another pod of that name":            {good, extra("pod-uid", "u2"), nil, ReasonTokenInvalid},
		"C24: another pod":                         {good, extra("pod-name", "box-1"), nil, ReasonTokenInvalid},
		"C24: another namespace":                   {good, user("system:serviceaccount:other:default"), nil, ReasonTokenInvalid},
		"C24: claims of another pod":               {claimsOf(Caller{"lab", "box-1", "u2"}, time.Now().Add(time.Hour)), accepts(me), nil, ReasonTokenInvalid},
		"C24: names that run into one another":     {claimsOf(Caller{"lab", "box-0 u", "1"}, time.Now().Add(time.Hour)), accepts(Caller{"lab", "box-0", "u 1"}), nil, ReasonTokenInvalid},
		"the API server does not answer":           {good, nil, errors.New("connection refused"), ReasonReviewFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := always(c.answer, c.err)
			token := c.claims.token("signature")
			caller, reason, err := NewTokens(v).Review(t.Context(), token)
			if reason != c.want || !errors.Is(err, c.err) || (err != nil) != (c.err != nil) {
				t.Errorf("%s %v, want %s %v", reason, err, c.want, c.err)
			}
			if want := (Caller{}); reason != "" && caller != want || reason == "" && caller != me {
				t.Errorf("%+v", caller)
			}
			want := authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{v1alpha1.WitnessAudience}}
			if diff := cmp.Diff(want, v.last.Spec); diff != "" || v.count() != 1 {
				t.Errorf("asked %d times (-want +got)\n%s", v.count(), diff)
			}
			if err != nil && strings.Contains(err.Error(), token) {
				t.Errorf("the token is in the error: %v", err)
			}
		})
	}
}

// TestVerdictsAreKept: for ten minutes, or as long as the token lasts; refusals for ten
// seconds; and no failure to ask.
func TestVerdictsAreKept(t *testing.T) {
	t.Parallel()
	refused := &authenticationv1.TokenReview{}
	for name, c := range map[string]struct {
		answer     *authenticationv1.TokenReview
		err        error
		lasts      time.Duration
		keeps      time.Duration
		then, last Reason
	}{
		"accepted":                      {accepts(me), nil, time.Hour, 10 * time.Minute, "", ""},
		"accepted, and about to end":    {accepts(me), nil, time.Minute, time.Minute, "", ReasonExpired},
		"refused":                       {refused, nil, time.Hour, 10 * time.Second, ReasonTokenInvalid, ReasonTokenInvalid},
		"refused, and about to end":     {refused, nil, 5 * time.Second, 5 * time.Second, ReasonTokenInvalid, ReasonExpired},
		"C24: accepted for another pod": {accepts(Caller{"lab", "box-0", "u2"}), nil, time.Hour, 10 * time.Minute, ReasonTokenInvalid, ReasonTokenInvalid},
		"not asked":                     {nil, errors.New("no"), time.Hour, 0, ReasonReviewFailed, ReasonReviewFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				v := always(c.answer, c.err)
				tokens := NewTokens(v)
				token := claimsOf(me, time.Now().Add(c.lasts)).token("s")
				expect := func(want Reason, asked int) {
					t.Helper()
					if _, reason, _ := tokens.Review(t.Context(), token); reason != want || v.count() != asked {
						t.Errorf("%s, asked %d times; want %s, %d", reason, v.count(), want, asked)
					}
				}
				expect(c.then, 1)
				if c.keeps == 0 {
					expect(c.then, 2)
					return
				}
				expect(c.then, 1)
				<-time.After(c.keeps - time.Second)
				expect(c.then, 1)
				<-time.After(time.Second + 1)
				asked := 2
				if c.last == ReasonExpired {
					asked = 1
				}
				expect(c.last, asked)
			})
		})
	}
}

// TestATokenThatIsMadeUpAfterAnother: a verdict is about the whole of the token.
func TestATokenThatIsMadeUpAfterAnother(t *testing.T) {
	t.Parallel()
	good := claimsOf(me, time.Now().Add(time.Hour))
	real := good.token("real")
	v := &reviewer{answer: func(_ context.Context, r *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
		if r.Spec.Token == real {
			return accepts(me), nil
		}
		return &authenticationv1.TokenReview{}, nil
	}}
	tokens := NewTokens(v)
	for i, c := range []struct {
		token string
		want  Reason
	}{{real, ""}, {good.token("forged"), ReasonTokenInvalid}, {real, ""}, {good.with("sub", "x").token("real"), ReasonTokenInvalid}, {real, ""}} {
		if _, reason, err := tokens.Review(t.Context(), c.token); reason != c.want || err != nil {
			t.Errorf("%d: %s %v, want %s", i, reason, err, c.want)
		}
	}
	if v.count() != 3 {
		t.Errorf("asked %d times", v.count())
	}
}

// TestReviewsAtATimeAreBounded: the others wait half a second, or as long as they have time.
func TestReviewsAtATimeAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		v := &reviewer{answer: func(context.Context, *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
			<-release
			return accepts(me), nil
		}}
		tokens := NewTokens(v)
		good := claimsOf(me, time.Now().Add(time.Hour))
		var all, first sync.WaitGroup
		for i := range maxReviews {
			first.Go(func() {
				if _, reason, err := tokens.Review(t.Context(), good.token(fmt.Sprint(i))); reason != "" || err != nil {
					t.Errorf("%s %v", reason, err)
				}
			})
		}
		synctest.Wait()
		began := time.Now()
		for i := range 2 * maxReviews {
			all.Go(func() {
				_, reason, err := tokens.Review(t.Context(), good.token(fmt.Sprint("late", i)))
				if reason != ReasonReviewFailed || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != reviewWait {
					t.Errorf("%s %v after %s", reason, err, time.Since(began))
				}
			})
		}
		ctx, cancel := context.WithCancel(t.Context())
		all.Go(func() {
			_, reason, err := tokens.Review(ctx, good.token("gone"))
			if reason != ReasonReviewFailed || !errors.Is(err, context.Canceled) || time.Since(began) != 0 {
				t.Errorf("%s %v after %s", reason, err, time.Since(began))
			}
		})
		synctest.Wait()
		cancel()
		all.Wait()
		// What is under way takes as long as it takes, and nobody's place is lost.
		if v.count() != maxReviews {
			t.Errorf("%d were asked about", v.count())
		}
		close(release)
		first.Wait()
		for i := range 3 * maxReviews {
			all.Go(func() {
				if _, reason, err := tokens.Review(t.Context(), good.token(fmt.Sprint("later", i))); reason != "" || err != nil {
					t.Errorf("%s %v", reason, err)
				}
			})
		}
		all.Wait()
		if v.count() != 4*maxReviews || v.mostAtOnce > maxReviews {
			t.Errorf("asked %d times, %d at once", v.count(), v.mostAtOnce)
		}
	})
}

// TestMoreTokensThanAreKept: the oldest verdicts give way, and new ones are kept all the same.
func TestMoreTokensThanAreKept(t *testing.T) {
	t.Parallel()
	v := always(accepts(me), nil)
	tokens := NewTokens(v)
	tokens.verdicts = utilcache.NewLRUExpireCache(10)
	good := claimsOf(me, time.Now().Add(time.Hour))
	for i := range 25 {
		for range 2 {
			if _, reason, err := tokens.Review(t.Context(), good.token(fmt.Sprint(i))); reason != "" || err != nil {
				t.Fatalf("%s %v", reason, err)
			}
		}
	}
	if v.count() != 25 {
		t.Errorf("25 tokens were asked about %d times", v.count())
	}
	if kept := len(tokens.verdicts.Keys()); kept != 10 {
		t.Errorf("%d are kept", kept)
	}
}

// TestTokensAreReviewedByManyAtOnce is for the race detector.
func TestTokensAreReviewedByManyAtOnce(t *testing.T) {
	t.Parallel()
	other := Caller{"lab", "box-1", "u2"}
	v := &reviewer{answer: func(_ context.Context, r *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
		c, _ := read(r.Spec.Token)
		return accepts(Caller{"lab", c.Private.Pod.Name, other.UID}), nil
	}}
	tokens := NewTokens(v)
	later := time.Now().Add(time.Hour)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range 50 {
				if caller, reason, err := tokens.Review(t.Context(), claimsOf(other, later).token(fmt.Sprint(n%7))); caller != other || reason != "" || err != nil {
					t.Errorf("%d: %+v %s %v", i, caller, reason, err)
				}
				if _, reason, err := tokens.Review(t.Context(), claimsOf(me, later).token(fmt.Sprint(n%7))); reason != ReasonTokenInvalid || err != nil {
					t.Errorf("%d: %s %v", i, reason, err)
				}
			}
		})
	}
	all.Wait()
}

// FuzzReview: whatever a token is, it counts for nobody but whom the API server says.
func FuzzReview(f *testing.F) {
	good := claimsOf(me, time.Now().Add(time.Hour))
	f.Add(good.token("s"))
	f.Add(good.with("aud", "belay.dev").token("s"))
	f.Add("a." + encoded(`{"aud":["belay.dev"],"AUD":1,"exp":9999999999,"kubernetes.io":{"namespace":"lab","pod":{"name":"box-1","uid":"u1"}}}`) + ".c")
	f.Add("a." + encoded(strings.Repeat("[", 4000)) + ".c")
	f.Fuzz(func(t *testing.T, token string) {
		caller, reason, err := NewTokens(always(accepts(me), nil)).Review(t.Context(), token)
		if err != nil || reason == "" && caller != me || reason != "" && caller != (Caller{}) {
			t.Errorf("%+v %s %v", caller, reason, err)
		}
		if reason != "" && tokenWords[reason] == "" {
			t.Errorf("no words for %s", reason)
		}
	})
}
