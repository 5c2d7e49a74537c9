package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// narrator says what is going on.
type narrator func(format string, args ...any)

// pair is the two namespaces of a story.
type pair struct{ without, with string }

// newPair makes them, and gives the upstream its rights in both.
func newPair(ctx context.Context, s *stack.Stack, name string, grant func(context.Context, kubernetes.Interface, string) error) (pair, error) {
	var p pair
	for _, n := range []struct {
		name *string
		half string
		mode string
	}{{&p.without, "without-belay", ""}, {&p.with, "with-belay", v1alpha1.ModeEnforce}} {
		ns, err := s.NewNamespace(ctx, name+"-"+n.half, n.mode)
		if err != nil {
			return p, err
		}
		if err := grant(ctx, s.Kube, ns); err != nil {
			return p, err
		}
		// Until it is there, the API server refuses Pods.
		if err := until(ctx, time.Minute, "the namespace has its service account", func(ctx context.Context) error {
			_, err := s.Kube.CoreV1().ServiceAccounts(ns).Get(ctx, "default", metav1.GetOptions{})
			return err
		}); err != nil {
			return p, err
		}
		*n.name = ns
	}
	return p, nil
}

// register applies a preset, and waits until its policies are in force.
func register(ctx context.Context, s *stack.Stack, preset string, policies ...policy) error {
	if err := s.ApplyPreset(ctx, preset); err != nil {
		return err
	}
	return inForce(ctx, s, policies...)
}

// policy waits until a policy is in force.
type policy func(context.Context, *stack.Stack) error

func owners(name string) policy {
	return func(ctx context.Context, s *stack.Stack) error { return s.WaitPolicy(ctx, name) }
}

func names(name string) policy {
	return func(ctx context.Context, s *stack.Stack) error { return s.WaitNamePolicy(ctx, name) }
}

func recoveries(name string) policy {
	return func(ctx context.Context, s *stack.Stack) error { return s.WaitRecoveryPolicy(ctx, name) }
}

func inForce(ctx context.Context, s *stack.Stack, policies ...policy) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, p := range policies {
		if err := p(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// patience is how long the demo waits for what takes seconds.
const patience = 2 * time.Minute

// nothing is what runs where everything is finished.
const nothing = "NOTHING"

// act is one thing that happens to an upstream on a side, and what is promised to
// come of it. That is held against the side without belay as well: a demo in which
// nothing goes wrong without belay shows nothing.
type act[S any] struct {
	name          string
	play          func(context.Context, S) (cells, error)
	without, with cells
	// wrong says that it goes wrong without belay.
	wrong bool
}

// sides are an upstream in each of the two namespaces.
type sides[S any] struct{ without, with S }

// perform plays acts one after the other, each on both sides at once.
func perform[S any](ctx context.Context, say narrator, s sides[S], acts []act[S]) []line {
	var out []line
	for _, a := range acts {
		say("%s", a.name)
		ctx, cancel := context.WithTimeout(ctx, patience)
		l := line{name: a.name}
		var without, with error
		var wg sync.WaitGroup
		wg.Go(func() { l.without, without = a.play(ctx, s.without) })
		wg.Go(func() { l.with, with = a.play(ctx, s.with) })
		wg.Wait()
		cancel()
		l.broken = errors.Join(compare("without belay", &l.without, a.without, without), compare("with belay", &l.with, a.with, with))
		out = append(out, l)
	}
	return out
}

func compare(side string, got *cells, want cells, err error) error {
	switch {
	case err != nil:
		*got = cells{"?", "?"}
		return fmt.Errorf("%s: %w", side, err)
	case *got != want:
		return fmt.Errorf("%s: %q, %q instead of %q, %q", side, got[0], got[1], want[0], want[1])
	}
	return nil
}

// wrongs counts the acts that go wrong without belay.
func wrongs[S any](acts []act[S]) int {
	n := 0
	for _, a := range acts {
		if a.wrong {
			n++
		}
	}
	return n
}

var errLost = errors.New("connection lost")

// wire is the connection of one upstream to the API server. It notes the last
// refusal of a create, and can lose an answer.
type wire struct {
	next http.RoundTripper

	mu      sync.Mutex
	lose    bool
	refusal metav1.Status
}

// connect is a client configuration for an upstream's account on a wire of its own.
func connect(ctx context.Context, s *stack.Stack, namespace, account string) (*rest.Config, *wire, error) {
	cfg, err := s.Config(ctx, namespace, account)
	if err != nil {
		return nil, nil, err
	}
	w := &wire{}
	cfg.ContentType = "application/json" // so that refusals can be read
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		w.next = next
		return w
	})
	return cfg, w, nil
}

// loseNext loses the answer to the next create that succeeds.
func (w *wire) loseNext() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lose = true
}

// lostAsMeant is what went wrong with a call whose answer was to be lost, or was not.
func lostAsMeant(lost bool, err error) error {
	switch {
	case lost && errors.Is(err, errLost):
		return nil
	case lost && err == nil:
		return errors.New("its answer was not lost")
	}
	return err
}

// uid is the UID that the last refusal of a create names.
func (w *wire) uid() types.UID {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refusal.Details == nil {
		return ""
	}
	return w.refusal.Details.UID
}

// RoundTrip implements http.RoundTripper.
func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := w.next.RoundTrip(r)
	if err != nil || r.Method != http.MethodPost {
		return resp, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case resp.StatusCode >= http.StatusBadRequest:
		w.refusal = metav1.Status{}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			return nil, err
		}
		_ = json.Unmarshal(body, &w.refusal) // else it names nothing
		resp.Body = io.NopCloser(bytes.NewReader(body))
	case w.lose:
		w.lose = false
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%w: the create is stored, its answer never came", errLost)
	}
	return resp, nil
}

// podIs writes the status of a Pod, as its kubelet would: there is none here.
func podIs(ctx context.Context, kube kubernetes.Interface, pod *corev1.Pod, phase corev1.PodPhase) error {
	patch := fmt.Sprintf(`{"status":{"phase":%q}}`, phase)
	if _, err := kube.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("making pod %s %s: %w", pod.Name, phase, err)
	}
	return nil
}

// until tries until it works, for a bounded time.
func until(ctx context.Context, bound time.Duration, what string, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w", what, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
