package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/belay-dev/belay/hack/images/archive"
)

type build struct {
	dockerfile  dockerfile
	dir, file   string // the folder that is built, and its Dockerfile
	version     string
	args        map[string]string // of --build-arg
	prefix      string
	targets     []string
	arch        string
	out         string
	from        string
	load        bool
	engine      engine
	pullTimeout time.Duration

	say    func(format string, args ...any)
	stderr io.Writer
}

func (b *build) name(target string) string {
	return b.prefix + "/belay-" + target + ":" + b.version
}

func (b *build) archive(target string) string {
	return filepath.Join(b.out, "belay-"+target+".tar")
}

// build makes the images and returns their archives.
func (b *build) build(ctx context.Context) ([]string, error) {
	if err := os.MkdirAll(b.out, 0o755); err != nil {
		return nil, err
	}
	switch b.from {
	case "dockerfile":
		return b.withEngine(ctx)
	case "scratch":
		return b.withGo(ctx)
	}
	err := b.engine.answers(ctx)
	b.load = b.load || err == nil
	for _, image := range b.dockerfile.images() {
		if err == nil {
			b.say("looking for the base image %s (at most %v)", image, b.pullTimeout)
			err = b.engine.have(ctx, image, b.pullTimeout)
		}
	}
	if err == nil {
		var archives []string
		b.say("building with %s: it answers and has the base image", b.engine.command)
		if archives, err = b.withEngine(ctx); err == nil {
			return archives, nil
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	b.say("building without an engine, which gives equal images (%v)", err)
	return b.withGo(ctx)
}

// withEngine builds the Dockerfile's targets.
func (b *build) withEngine(ctx context.Context) ([]string, error) {
	var archives []string
	for _, target := range b.targets {
		began := time.Now()
		cmd := b.engine.cmd(ctx, b.engineArgs(target)...)
		// Mounts of a RUN and the platform's variables are BuildKit's.
		cmd.Env = append(os.Environ(), "DOCKER_BUILDKIT=1")
		cmd.Stdout, cmd.Stderr = b.stderr, b.stderr
		if err := cmd.Run(); err != nil {
			return archives, fmt.Errorf("%s build --target %s: %w", b.engine.command, target, err)
		}
		if err := b.engine.quietly(ctx, "save", "-o", b.archive(target), b.name(target)); err != nil {
			return archives, err
		}
		archives = append(archives, b.archive(target))
		b.say("%s by %s in %v", b.name(target), b.engine.command, time.Since(began).Round(100*time.Millisecond))
	}
	return archives, nil
}

func (b *build) engineArgs(target string) []string {
	args := []string{"build", "--target", target, "-t", b.name(target), "-f", b.file}
	for _, name := range slices.Sorted(maps.Keys(b.args)) {
		args = append(args, "--build-arg", name+"="+b.args[name])
	}
	if b.arch != runtime.GOARCH {
		args = append(args, "--platform", "linux/"+b.arch)
	}
	return append(args, b.dir)
}

// withGo builds the binaries that the targets consist of, and writes archives.
func (b *build) withGo(ctx context.Context) ([]string, error) {
	for _, image := range b.dockerfile.images() {
		if want, ok := strings.CutPrefix(image, "golang:"); ok && !strings.HasPrefix(runtime.Version()+".", "go"+want+".") {
			b.say("note: the Dockerfile builds with Go %s, and this is %s", want, runtime.Version())
		}
	}
	if b.load {
		if err := b.engine.answers(ctx); err != nil {
			return nil, fmt.Errorf("there is no engine to load images into: %w", err)
		}
	}
	binaries, err := os.MkdirTemp("", "belay-images-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(binaries)
	var archives []string
	for _, target := range b.targets {
		began := time.Now()
		image, err := b.image(ctx, target, filepath.Join(binaries, target))
		if err != nil {
			return archives, fmt.Errorf("target %s: %w", target, err)
		}
		if err := archive.WriteFile(b.archive(target), image); err != nil {
			return archives, err
		}
		archives = append(archives, b.archive(target))
		if b.load {
			if err := b.engine.quietly(ctx, "load", "-i", b.archive(target)); err != nil {
				return archives, err
			}
		}
		b.say("%s in %v: %s", image.Name, time.Since(began).Round(100*time.Millisecond), b.archive(target))
	}
	return archives, nil
}

// image builds a target's binaries below folder.
func (b *build) image(ctx context.Context, target, folder string) (archive.Image, error) {
	args := maps.Clone(b.args)
	args["TARGETOS"], args["TARGETARCH"] = "linux", b.arch
	r, err := b.dockerfile.recipe(target, args)
	if err != nil {
		return archive.Image{}, err
	}
	image := archive.Image{
		Name:         b.name(target),
		Architecture: b.arch,
		Entrypoint:   r.entrypoint,
		Env:          r.env,
		User:         r.user,
		WorkingDir:   r.workingDir,
		Labels:       r.labels,
	}
	for _, binary := range r.binaries {
		output := filepath.Join(folder, filepath.FromSlash(binary.path))
		if err := os.MkdirAll(filepath.Dir(output), 0o755); err != nil {
			return archive.Image{}, err
		}
		b.say("go build %s", binary.args[len(binary.args)-1])
		cmd := exec.CommandContext(ctx, "go", slices.Concat([]string{"build", "-o", output}, binary.args)...)
		cmd.Dir = b.dir
		cmd.Env = append(environ(), binary.env...)
		cmd.Stdout, cmd.Stderr = b.stderr, b.stderr
		if err := cmd.Run(); err != nil {
			if ctx.Err() != nil {
				err = errors.Join(ctx.Err(), err)
			}
			return archive.Image{}, fmt.Errorf("go build %s: %w", strings.Join(binary.args, " "), err)
		}
		image.Files = append(image.Files, archive.File{Path: binary.path, Source: output, Mode: 0o755})
	}
	return image, nil
}

// environ is this process's environment without what changes the binaries and
// is not set in the Dockerfile's builder.
func environ() []string {
	changing := []string{"GOFLAGS", "GOOS", "GOARCH", "GOAMD64", "GOARM64", "GOEXPERIMENT", "CGO_ENABLED"}
	return slices.DeleteFunc(os.Environ(), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return slices.Contains(changing, name)
	})
}
