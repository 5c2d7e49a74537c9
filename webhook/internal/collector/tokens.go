package collector

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// Reasons for which a token does not count. The list is closed.
const (
	// ReasonNoToken: there is none, or it is no JSON Web Token, which those of Pods are.
	ReasonNoToken Reason = "NoToken"
	// ReasonWrongAudience: it is for somebody else.
	ReasonWrongAudience Reason = "WrongAudience"
	// ReasonUnbound: it is bound to no Pod.
	ReasonUnbound Reason = "UnboundToken"
	// ReasonExpired: its time is over.
	ReasonExpired Reason = "TokenExpired"
	// ReasonTokenInvalid: the API server does not accept it: its Pod or its service account is
	// gone, or it was made up.
	ReasonTokenInvalid Reason = "TokenInvalid"
	// ReasonReviewFailed: the API server could not be asked; to be sent again.
	ReasonReviewFailed Reason = "ReviewFailed"
)

const (
	// maxVerdict is how long a verdict of the API server is kept, if its token does not end
	// before. A service account that was deleted, and made anew, is noticed within it (C22);
	// that the Pod is there is looked at each time. At 10,000 Pods it takes 17 reviews a
	// second, where reviews that last as long as a token would take 3.
	maxVerdict = 10 * time.Minute
	// badVerdict is how long a refusal is kept: the same sidecar asks again after seconds.
	badVerdict = 10 * time.Second
	// maxVerdicts bounds the verdicts that are kept, of some 250 bytes each.
	maxVerdicts = 100_000
	// maxToken is the longest token that is looked at; those of Pods have less than 2 KiB.
	maxToken = 8 << 10
)

// Tokens says which Pod a token is bound to, by TokenReview.
//
// It is written on client-go rather than on the token authenticator of k8s.io/apiserver: that
// one links gRPC and the exporters of OpenTelemetry, and keeps of each verdict all groups
// and extras.
type Tokens struct {
	reviews  authenticationclient.TokenReviewInterface
	verdicts *utilcache.LRUExpireCache
	// inFlight bounds the reviews at a time: made-up tokens must not flood the API server.
	inFlight chan struct{}
	now      func() time.Time
}

// maxReviews is how many reviews are under way at a time.
const maxReviews = 32

// reviewWait is how long a report waits for its token's review to begin. Tokens that nobody
// knows, which anybody can make up, keep the others' places no longer.
const reviewWait = 500 * time.Millisecond

// NewTokens returns Tokens.
func NewTokens(reviews authenticationclient.TokenReviewInterface) *Tokens {
	return &Tokens{reviews: reviews, verdicts: utilcache.NewLRUExpireCache(maxVerdicts), inFlight: make(chan struct{}, maxReviews), now: time.Now}
}

// verdict is what is kept of a review. Of the Pod it keeps a digest: the caller says which Pod
// it is.
type verdict struct {
	pod    [sha256.Size]byte
	reason Reason
}

// claims are those of a Pod's token:
// https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/#schema-for-service-account-private-claims
type claims struct {
	Audience any   `json:"aud"`
	Expiry   int64 `json:"exp"`
	Private  struct {
		Namespace string `json:"namespace"`
		Pod       *struct {
			Name string `json:"name"`
			UID  string `json:"uid"`
		} `json:"pod"`
	} `json:"kubernetes.io"`
}

// read reads the claims, which nobody has verified yet: they can only make a token refused.
func read(token string) (c claims, ok bool) {
	parts := strings.Split(token, ".")
	if len(token) > maxToken || len(parts) != 3 {
		return c, false
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	return c, err == nil && json.Unmarshal(payload, &c) == nil
}

func (c claims) isFor(audience string) bool {
	switch aud := c.Audience.(type) {
	case string:
		return aud == audience
	case []any:
		return slices.Contains(aud, any(audience))
	}
	return false
}

// Review says which Pod a token is bound to, or why it does not count.
func (t *Tokens) Review(ctx context.Context, token string) (Caller, Reason, error) {
	c, ok := read(token)
	switch {
	case !ok:
		return Caller{}, ReasonNoToken, nil
	case !c.isFor(v1alpha1.WitnessAudience):
		return Caller{}, ReasonWrongAudience, nil
	case c.Private.Pod == nil:
		return Caller{}, ReasonUnbound, nil
	}
	left := time.Unix(c.Expiry, 0).Sub(t.now())
	if left <= 0 {
		return Caller{}, ReasonExpired, nil
	}
	caller := Caller{Namespace: c.Private.Namespace, Pod: c.Private.Pod.Name, UID: types.UID(c.Private.Pod.UID)}
	key := sha256.Sum256([]byte(token))
	v, known := t.known(key)
	if !known {
		var err error
		if v, err = t.review(ctx, token); err != nil {
			return Caller{}, ReasonReviewFailed, err
		}
		keep := min(left, maxVerdict)
		if v.reason != "" {
			keep = min(left, badVerdict)
		}
		t.verdicts.Add(key, v, keep)
	}
	switch {
	case v.reason != "":
		return Caller{}, v.reason, nil
	case v.pod != digest(caller):
		// The API server has verified the very bytes that the claims were read from.
		return Caller{}, ReasonTokenInvalid, nil
	}
	return caller, "", nil
}

func (t *Tokens) known(key [sha256.Size]byte) (verdict, bool) {
	kept, ok := t.verdicts.Get(key)
	v, is := kept.(verdict)
	return v, ok && is
}

// review asks the API server.
func (t *Tokens) review(ctx context.Context, token string) (verdict, error) {
	wait, cancel := context.WithTimeout(ctx, reviewWait)
	defer cancel()
	select {
	case t.inFlight <- struct{}{}:
		defer func() { <-t.inFlight }()
	case <-wait.Done():
		return verdict{}, fmt.Errorf("waiting for a review: %w", wait.Err())
	}
	r, err := t.reviews.Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{
		Token: token, Audiences: []string{v1alpha1.WitnessAudience},
	}}, metav1.CreateOptions{})
	if err != nil {
		return verdict{}, fmt.Errorf("reviewing a token: %w", err)
	}
	s := r.Status
	switch {
	case !s.Authenticated:
		return verdict{reason: ReasonTokenInvalid}, nil
	case !slices.Contains(s.Audiences, v1alpha1.WitnessAudience):
		// An authenticator that knows no audiences: the token was not checked for ours.
		return verdict{reason: ReasonWrongAudience}, nil
	}
	namespace, _, err := serviceaccount.SplitUsername(s.User.Username)
	name, uid := s.User.Extra[serviceaccount.PodNameKey], s.User.Extra[serviceaccount.PodUIDKey]
	if err != nil || len(name) != 1 || len(uid) != 1 || name[0] == "" || uid[0] == "" {
		return verdict{reason: ReasonUnbound}, nil
	}
	return verdict{pod: digest(Caller{Namespace: namespace, Pod: name[0], UID: types.UID(uid[0])})}, nil
}

func digest(c Caller) [sha256.Size]byte {
	return sha256.Sum256(fmt.Appendf(nil, "%q %q %q", c.Namespace, c.Pod, c.UID))
}
