package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// pullTimeout is for a few images of tens of megabytes: who needs longer has other reasons to wait.
const pullTimeout = time.Minute

// A notPulledError says that an image is not here and cannot be pulled.
type notPulledError struct{ error }

// pull gets images into the engine, and from there into every node: all of them, or none.
func (k *kind) pull(ctx context.Context, images []string) error {
	if len(images) == 0 {
		return usageError("pull: name at least one image")
	}
	if !k.useEngine(ctx) {
		if err := answers(ctx, k.tools); err != nil {
			return fmt.Errorf("there is no cluster %q, for no container engine answers; make kind-up makes one: %w", k.name, err)
		}
	}
	if there, err := k.there(ctx); err != nil {
		return err
	} else if !there {
		return fmt.Errorf("there is no cluster %q; make kind-up makes one", k.name)
	}
	if err := k.pullImages(ctx, images); err != nil {
		return err
	}
	return k.loadPulled(ctx, images)
}

// pullImages has the engine pull what it does not have. A registry that hangs is one that does
// not answer.
func (k *kind) pullImages(ctx context.Context, images []string) error {
	bounded, cancel := context.WithTimeoutCause(ctx, k.patience, fmt.Errorf("not within %s", k.patience))
	defer cancel()
	for _, image := range images {
		if k.has(ctx, image) {
			k.say(image + ": the engine has it")
			continue
		}
		err := k.tools.step("pulling "+image, func() error {
			return k.tools.run(bounded, call{name: "docker", args: []string{"pull", "--quiet", image}})
		})
		if err == nil {
			continue
		}
		// Without the engine, and when this is interrupted, nothing is known of the registry.
		if gone := answers(ctx, k.tools); gone != nil {
			return errors.Join(err, gone)
		}
		return notPulledError{err}
	}
	return nil
}

// loadPulled imports only what is of the nodes' platform. An engine with containerd's image store
// saves the index of all platforms, and has the contents of one: kind's own "load" fails then
// (kubernetes-sigs/kind#3795).
func (k *kind) loadPulled(ctx context.Context, images []string) error {
	names, err := k.tools.output(ctx, call{name: "kind", args: []string{"get", "nodes", "--name", k.name}})
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp(k.cache, ".pulled-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	file := filepath.Join(work, "images.tar")
	return k.tools.step("loading "+strings.Join(images, ", "), func() error {
		if err := k.tools.run(ctx, call{name: "docker", args: append([]string{"save", "--output", file}, images...)}); err != nil {
			return err
		}
		for _, node := range strings.Fields(names) {
			if err := k.importInto(ctx, node, file); err != nil {
				return err
			}
		}
		return nil
	})
}

func (k *kind) importInto(ctx context.Context, node, file string) error {
	archive, err := os.Open(file)
	if err != nil {
		return err
	}
	defer archive.Close()
	return k.tools.run(ctx, call{name: "docker", args: []string{"exec", "--privileged", "--interactive", node, "ctr", "--namespace=k8s.io", "images", "import", "--digests", "-"}, stdin: archive})
}
