package recovery

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// Detectors say what counts as the failure of a Pod.
type Detectors struct {
	WaitingReasons []string
	Terminal       bool
}

// Failing says whether a Pod is failing now, and why, for messages. A Pod that is being
// deleted is not: it is on its way out whatever it does.
//
// Init containers are read before containers: while one of them fails, the others only
// wait for it. belay's own sidecar is not looked at, since what is wrong with it says nothing of
// the Pod's own containers; if it keeps them from starting, they are not ready.
func (p Policy) Failing(pod Pod) (why string, failing bool) {
	if pod.Deleting {
		return "", false
	}
	for _, c := range pod.Containers {
		if c.Init && c.Sidecar && c.Name == v1alpha1.SidecarName {
			continue
		}
		if c.Waiting != "" && slices.Contains(p.Detectors.WaitingReasons, c.Waiting) {
			return fmt.Sprintf("%s waits: %s", c.words(), c.Waiting), true
		}
	}
	if !p.Detectors.Terminal {
		return "", false
	}
	if pod.Phase == corev1.PodFailed {
		return failedBecause(pod), true
	}
	// A main container that cannot be told from others has not failed: that would be a
	// guess, and the Pod's phase tells in the end.
	main, problem := pod.Main(p.MainContainer)
	if problem == "" && main.Ended && main.ExitCode != 0 && main.NeverRestarted {
		return fmt.Sprintf("%s ended with code %d and is not restarted", main.words(), main.ExitCode), true
	}
	return "", false
}

// failedBecause names what made a Pod fail. Its phase is what counts: a Pod that was
// evicted may have no statuses at all.
func failedBecause(pod Pod) string {
	if pod.Reason != "" {
		return "phase Failed: " + clean(pod.Reason)
	}
	for _, c := range pod.Containers {
		if c.Ended && c.ExitCode != 0 {
			return fmt.Sprintf("phase Failed: %s ended with code %d", c.words(), c.ExitCode)
		}
	}
	return "phase Failed"
}

func (c Container) words() string {
	switch {
	case c.Sidecar:
		return "sidecar " + quote(c.Name)
	case c.Init:
		return "init container " + quote(c.Name)
	}
	return "container " + quote(c.Name)
}
