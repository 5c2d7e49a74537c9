package apifacts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/belay-dev/belay/test/integration/plane"
)

// The control planes are shared by the tests, and started by the first that
// needs them.
var (
	// usual runs all the time, with all its controllers.
	usual = &sharedPlane{}
	// strict checks who sets owner references. Its controllers can be paused, so
	// tests that need them to run belong to the usual one.
	strict = &sharedPlane{options: plane.Options{EnforceOwnerReferences: true}}
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	code := m.Run()
	if err := errors.Join(usual.stop(), strict.stop()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

type sharedPlane struct {
	options plane.Options

	once    sync.Once
	plane   *plane.Plane
	widgets error // creating the custom resource
	err     error

	pausing sync.Mutex // held by the test that has paused the controllers
}

func (s *sharedPlane) start(t *testing.T) *plane.Plane {
	t.Helper()
	s.once.Do(func() {
		// The first start on a machine compiles Kubernetes.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Minute)
		defer cancel()
		if s.plane, s.err = plane.Start(ctx, s.options); s.err == nil {
			s.widgets = createWidgets(ctx, s.plane.Config())
		}
	})
	if err := errors.Join(s.err, s.widgets); err != nil {
		t.Fatal(err)
	}
	return s.plane
}

func (s *sharedPlane) stop() error {
	if s.plane == nil {
		return nil
	}
	return s.plane.Stop()
}

// pauseControllers stops garbage collector, Job controller and all others where
// they are. They go on with the returned function, or else with the end of the
// test.
func (s *sharedPlane) pauseControllers(t *testing.T) (resume func()) {
	t.Helper()
	s.pausing.Lock()
	resume = sync.OnceFunc(func() {
		defer s.pausing.Unlock()
		if err := s.plane.Do(context.WithoutCancel(t.Context()), "resume kube-controller-manager"); err != nil {
			t.Errorf("resuming the controllers: %v", err)
		}
	})
	t.Cleanup(resume)
	if err := s.plane.Do(t.Context(), "pause kube-controller-manager"); err != nil {
		t.Fatal(err)
	}
	return resume
}
