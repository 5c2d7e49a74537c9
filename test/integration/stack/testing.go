package stack

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Bound is how long a test waits for what must happen: much longer than it takes, so
// that a slow machine fails nothing.
// The garbage collector looks for new kinds every 30 seconds, and gives up on a look after as
// long.
const Bound = 100 * time.Second

// Main is the TestMain of a package whose tests share a stack: it starts one, lets prepare
// install what they need, and runs the tests, so many side by side where -parallel says
// nothing: they wait for servers more than they compute. The code is the process's.
func Main(m *testing.M, shared **Stack, sideBySide int, o Options, prepare func(context.Context, *Stack) error) (code int) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		if err := f.Value.Set(strconv.Itoa(sideBySide)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	defer cancel()
	s, err := Start(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := s.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	if err := prepare(ctx, s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		for _, p := range append(s.Controllers(), s.Webhooks()...) {
			fmt.Fprintln(os.Stderr, p.Name, p.Tail(30))
		}
		return 1
	}
	*shared = s
	return m.Run()
}

// TestContext ends with the test, and after a while.
func TestContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// Cleanup runs with a context of its own when the test is over.
func Cleanup(t testing.TB, f func(context.Context)) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Bound)
		defer cancel()
		f(ctx)
	})
}

// Eventually waits until a condition holds; check returns nil when it does.
func Eventually(ctx context.Context, t testing.TB, what string, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, Bound)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// TestNamespace makes a namespace in a mode that goes with the test.
func (s *Stack) TestNamespace(ctx context.Context, t testing.TB, prefix, mode string) string {
	t.Helper()
	ns, err := s.NewNamespace(ctx, prefix, mode)
	if err != nil {
		t.Fatal(err)
	}
	Cleanup(t, func(ctx context.Context) { _ = s.Kube.CoreV1().Namespaces().Delete(ctx, ns, metav1.DeleteOptions{}) })
	return ns
}

// MustBeNotFound is nil for the error of an object that is gone.
func MustBeNotFound(err error) error {
	if err == nil {
		return fmt.Errorf("it is still there")
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
