package apifacts

import (
	"context"
	"errors"
	"flag"
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
	// strict checks who sets owner references. Its controllers can be halted, so
	// tests that need them all the time belong to the usual one.
	strict = &sharedPlane{options: plane.Options{EnforceOwnerReferences: true}}
)

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	// The tests wait for servers more than they compute. -parallel has the last word.
	if err := flag.Set("test.parallel", "16"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
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

	halting sync.Mutex // held by the test that has halted the controllers
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
// test, and see then what happened meanwhile, step by step.
func (s *sharedPlane) pauseControllers(t *testing.T) (resume func()) {
	t.Helper()
	return s.halt(t, "pause", "resume")
}

// stopControllers ends them. Those that start again see only what came out.
func (s *sharedPlane) stopControllers(t *testing.T) (start func()) {
	t.Helper()
	return s.halt(t, "stop", "start")
}

func (s *sharedPlane) halt(t *testing.T, off, on string) (goOn func()) {
	t.Helper()
	const controllers = " kube-controller-manager"
	s.halting.Lock()
	if err := s.plane.Do(t.Context(), off+controllers); err != nil {
		s.halting.Unlock()
		t.Fatal(err)
	}
	goOn = sync.OnceFunc(func() {
		defer s.halting.Unlock()
		if err := s.plane.Do(context.WithoutCancel(t.Context()), on+controllers); err != nil {
			t.Errorf("the controllers do not go on: %v", err)
		}
	})
	t.Cleanup(goOn)
	return goOn
}
