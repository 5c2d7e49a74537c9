// Package choice chooses between images that a project releases and images that are built of its
// module: the former where they can be had.
package choice

import (
	"errors"
	"fmt"
	"os/exec"
)

// NotPulled is the exit code of "kind pull" when an image is not here and cannot be pulled. 1 to 3
// say that something else is wrong.
const NotPulled = 4

// Where images may come from. Auto is the default.
const (
	Auto     = "auto"
	Released = "released"
	Built    = "built"
)

// Choose returns Released or Built. pull runs "kind pull" for the released images, and returns the
// error of os/exec, wrapped or not; Built does not call it. With Auto, only NotPulled makes it
// Built: what else fails would fail again, and is returned.
func Choose(from string, pull func() error) (string, error) {
	switch from {
	case Built:
		return Built, nil
	case "", Auto, Released:
	default:
		return "", fmt.Errorf("%q: must be %s, %s or %s", from, Auto, Released, Built)
	}
	err := pull()
	if err == nil {
		return Released, nil
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == NotPulled && from != Released {
		return Built, nil
	}
	return "", fmt.Errorf("getting the released images: %w", err)
}
