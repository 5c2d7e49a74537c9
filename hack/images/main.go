// Command images makes the container images of the Dockerfile's targets, with a
// container engine where one is and can get the base image, and without one
// otherwise. The images are equal: what they hold, and as whom and what they
// run, is read from the Dockerfile, and a test compares the two ways.
//
// Without an engine, the binaries are built with the go command and written
// into archives that "docker load", "podman load", "ctr images import" and
// "kind load image-archive" take. The same sources, version and Go give the
// same bytes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const usage = `images makes the container images of the Dockerfile's targets.

Usage: images build [flags]

Prints the archive of each image; what goes on is on standard error.

  --version V          the version that the binaries and labels tell, and the tag (default devel)
  --prefix P           images are called P/belay-TARGET:V (default ghcr.io/belay-dev)
  --target T           a target of the Dockerfile; may be repeated (default all that have an ENTRYPOINT)
  --build-arg NAME=VALUE
                       another value for an ARG of the Dockerfile; may be repeated
  --arch A             the architecture, as in GOARCH (default this machine's)
  --out DIR            where the archives go (default bin/images)
  --from HOW           dockerfile: build with the engine
                       scratch: build with the go command, and without an engine
                       auto: dockerfile where an engine answers and has, or can pull, the
                       base image; else scratch (default; prints which, and why)
  --load               load what scratch made into the engine, too; auto does when one answers
  --engine COMMAND     docker, or what is called like it (default docker)
  --pull-timeout TIME  how long pulling the base image may take (default 2m)
  --dockerfile FILE    (default Dockerfile); its folder is what is built

Examples:

  images build --version v0.1.0
  images build --target sidecar --from scratch --out /tmp
  kind load image-archive $(images build --from scratch)
`

// A usageError is an error in how the command was called: exit code 2.
type usageError string

func (e usageError) Error() string { return string(e) }

func main() {
	err := run(os.Args[1:], os.Stdout, os.Stderr)
	_, misused := errors.AsType[usageError](err)
	switch {
	case err == nil:
	case misused:
		fmt.Fprintf(os.Stderr, "images: %v; see \"images help\"\n", err)
		os.Exit(2)
	default:
		fmt.Fprintf(os.Stderr, "images: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string, stdout, stderr io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if len(args) == 0 {
		args = []string{"help"}
	}
	switch args[0] {
	case "build":
		b, err := options(args[1:])
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(stdout, usage)
			return nil
		}
		if err != nil {
			return err
		}
		b.say = func(format string, args ...any) { fmt.Fprintf(stderr, format+"\n", args...) }
		b.stderr = stderr
		archives, err := b.build(ctx)
		for _, archive := range archives {
			fmt.Fprintln(stdout, archive)
		}
		return err
	case "help", "-h", "--help", "-help":
		fmt.Fprint(stdout, usage)
		return nil
	}
	return usageError(fmt.Sprintf("no command %q", args[0]))
}

// options reads the flags of build and the Dockerfile.
func options(args []string) (*build, error) {
	b := &build{args: map[string]string{}}
	fs := flag.NewFlagSet("build", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // an error is reported once, by main
	fs.StringVar(&b.version, "version", "devel", "")
	fs.StringVar(&b.prefix, "prefix", "ghcr.io/belay-dev", "")
	fs.Func("target", "", func(target string) error {
		b.targets = append(b.targets, target)
		return nil
	})
	fs.Func("build-arg", "", func(arg string) error {
		name, value, ok := strings.Cut(arg, "=")
		if !ok || name == "" {
			return errors.New("want NAME=VALUE")
		}
		b.args[name] = value
		return nil
	})
	fs.StringVar(&b.arch, "arch", runtime.GOARCH, "")
	fs.StringVar(&b.out, "out", filepath.Join("bin", "images"), "")
	fs.StringVar(&b.from, "from", "auto", "")
	fs.BoolVar(&b.load, "load", false, "")
	fs.StringVar(&b.engine.command, "engine", "docker", "")
	fs.DurationVar(&b.pullTimeout, "pull-timeout", 2*time.Minute, "")
	dockerfile := fs.String("dockerfile", "Dockerfile", "")
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil, err
	case err != nil:
		return nil, usageError(err.Error())
	case fs.NArg() > 0:
		return nil, usageError(fmt.Sprintf("unexpected argument %q", fs.Arg(0)))
	case strings.TrimSpace(b.engine.command) == "":
		return nil, usageError("--engine is empty")
	case b.from != "auto" && b.from != "dockerfile" && b.from != "scratch":
		return nil, usageError(fmt.Sprintf("--from=%s: want auto, dockerfile or scratch", b.from))
	}
	b.args["VERSION"] = b.version
	content, err := os.ReadFile(*dockerfile)
	if err != nil {
		return nil, fmt.Errorf("%w; run it in the repository's folder, or name the file with --dockerfile", err)
	}
	b.dir, b.file = filepath.Dir(*dockerfile), *dockerfile
	if b.dockerfile, err = parse(string(content), b.args); err != nil {
		return nil, fmt.Errorf("%s: %w", *dockerfile, err)
	}
	known := b.dockerfile.targets()
	for _, target := range b.targets {
		if _, ok := b.dockerfile.stage(target); !ok {
			return nil, usageError(fmt.Sprintf("%s has no target %q; there are %s", *dockerfile, target, strings.Join(known, ", ")))
		}
	}
	if len(b.targets) == 0 {
		b.targets = known
	}
	return b, nil
}

// An engine is a container engine that is spoken to by its command, which may
// have words before it, as in "sudo docker".
type engine struct{ command string }

func (e engine) cmd(ctx context.Context, args ...string) *exec.Cmd {
	words := append(strings.Fields(e.command), args...)
	return exec.CommandContext(ctx, words[0], words[1:]...)
}

func (e engine) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return e.quietly(ctx, "version", "--format", "{{.Server.Version}}")
}

// have pulls an image unless it is there.
func (e engine) have(ctx context.Context, image string, timeout time.Duration) error {
	if e.quietly(ctx, "image", "inspect", image) == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := e.quietly(ctx, "pull", image)
	if ctx.Err() == context.DeadlineExceeded {
		return fmt.Errorf("%s was not pulled within %v", image, timeout)
	}
	return err
}

// quietly runs the engine's command and shows what it says only in the error.
func (e engine) quietly(ctx context.Context, args ...string) error {
	out, err := e.cmd(ctx, args...).CombinedOutput()
	if err == nil {
		return nil
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return fmt.Errorf("%s %s: %w: %s", e.command, args[0], err, lines[len(lines)-1])
}
