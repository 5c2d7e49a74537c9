package apifacts

import (
	"net/http"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// attempts counts the requests that a client sends.
type attempts struct {
	atomic.Int32
	next http.RoundTripper
}

func (a *attempts) RoundTrip(r *http.Request) (*http.Response, error) {
	a.Add(1)
	return a.next.RoundTrip(r)
}

// countingClient is an unmodified client of client-go and the number of its
// requests.
func (f *fixture) countingClient(t *testing.T) (*kubernetes.Clientset, *attempts) {
	t.Helper()
	count := &attempts{}
	config := f.as("somebody", "system:masters")
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		count.next = next
		return count
	})
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client, count
}

// Fact 4: client-go retries a 429 or 503 that carries Retry-After by itself, 10
// times; it never retries a 409.
func TestFact04_ClientGoRetriesWhatCarriesRetryAfter(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		code       int32
		retryAfter int32
		want       int32 // attempts
	}{
		"429 with Retry-After is retried 10 times": {http.StatusTooManyRequests, 1, 11},
		"503 with Retry-After is retried 10 times": {http.StatusServiceUnavailable, 1, 11},
		"500 with Retry-After is retried 10 times": {http.StatusInternalServerError, 1, 11},
		"429 without is not retried":               {http.StatusTooManyRequests, 0, 1},
		"503 without is not retried":               {http.StatusServiceUnavailable, 0, 1},
		"409 with Retry-After is not retried":      {http.StatusConflict, 1, 1},
		"409 without is not retried":               {http.StatusConflict, 0, 1},
		"403 with Retry-After is not retried":      {http.StatusForbidden, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t, usual)
			f.mutating(t, hookSpec{on: onConfigMaps(create), answer: func(*request) *response {
				return &response{Result: &metav1.Status{Code: tc.code, Details: &metav1.StatusDetails{RetryAfterSeconds: tc.retryAfter}}}
			}})
			client, count := f.countingClient(t)

			_, err := client.CoreV1().ConfigMaps(f.namespace).Create(t.Context(), configMap(metav1.ObjectMeta{Name: "one"}), metav1.CreateOptions{})
			if got := count.Load(); got != tc.want {
				t.Errorf("the client sent %d requests; want %d", got, tc.want)
			}
			if code(err) != tc.code {
				t.Errorf("the caller got %v; want the denial with code %d", err, tc.code)
			}
		})
	}
}

// Fact 4: a denial "429, retryAfterSeconds: 1" makes unmodified Go clients wait,
// transparently.
func TestFact04_ClientGoWaitsTransparently(t *testing.T) {
	f := setUp(t, usual)
	var calls atomic.Int32
	f.mutating(t, hookSpec{on: onConfigMaps(create), answer: func(*request) *response {
		if calls.Add(1) < 3 {
			return &response{Result: &metav1.Status{Code: http.StatusTooManyRequests, Details: &metav1.StatusDetails{RetryAfterSeconds: 1}}}
		}
		return nil
	}})
	client, count := f.countingClient(t)
	if _, err := client.CoreV1().ConfigMaps(f.namespace).Create(t.Context(), configMap(metav1.ObjectMeta{Name: "one"}), metav1.CreateOptions{}); err != nil {
		t.Errorf("the caller got %v", err)
	}
	if got := count.Load(); got != 3 {
		t.Errorf("the client sent %d requests; want 3", got)
	}
}
