package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/belay-dev/belay/hack/images/archive"
	"github.com/google/go-cmp/cmp"
)

// builder is what the command line makes, talking to the test's log.
func builder(t *testing.T, args ...string) *build {
	t.Helper()
	b, err := options(args)
	if err != nil {
		t.Fatal(err)
	}
	b.stderr = t.Output()
	b.say = func(format string, args ...any) { fmt.Fprintf(b.stderr, format+"\n", args...) }
	return b
}

func read(t *testing.T, name string) []archive.Contents {
	t.Helper()
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	contents, err := archive.Read(file)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return contents
}

// The repository's own Dockerfile is understood, every command that is an image
// has its target, and each image is one static binary that it runs as nobody.
func TestTheDockerfile(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(filepath.Join("..", "..", "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	args := map[string]string{"VERSION": "v1", "TARGETOS": "linux", "TARGETARCH": "arm64"}
	file, err := parse(string(content), args)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"controller", "sidecar", "webhook"}, file.targets()); diff != "" {
		t.Errorf("targets (-want +got):\n%s", diff)
	}
	if images := file.images(); len(images) != 1 || !strings.HasPrefix(images[0], "golang:1.") {
		t.Errorf("base images %q; besides scratch there should be golang only", images)
	}
	side := map[string]string{"controller": "webhook", "webhook": "webhook", "sidecar": "sidecar"}
	for _, target := range file.targets() {
		got, err := file.recipe(target, args)
		if err != nil {
			t.Errorf("target %s: %v", target, err)
			continue
		}
		name := "/belay-" + target
		want := recipe{
			user:       "65532:65532",
			entrypoint: []string{name},
			labels: map[string]string{
				"org.opencontainers.image.title":    "belay",
				"org.opencontainers.image.version":  "v1",
				"org.opencontainers.image.licenses": "Apache-2.0",
				"org.opencontainers.image.source":   "https://github.com/belay-dev/belay",
			},
			env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			workingDir: "/",
			binaries: []binary{{
				path: name,
				env:  []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=arm64"},
				args: []string{"-trimpath", "-buildvcs=false", "-ldflags=-s -w -X github.com/belay-dev/belay/" + side[target] + "/app.version=v1", "./cmd" + name},
			}},
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(recipe{}, binary{})); diff != "" {
			t.Errorf("target %s (-want +got):\n%s", target, diff)
		}
	}
}

// The sidecar's image, which compiles in seconds, really built: as the
// Dockerfile says, twice the same, for this and for another architecture.
func TestBuildFromScratch(t *testing.T) {
	t.Parallel()
	for _, arch := range []string{"amd64", "arm64"} {
		t.Run(arch, func(t *testing.T) {
			t.Parallel()
			var made [][]byte
			for range 2 {
				out := t.TempDir()
				b := builder(t, "--dockerfile", filepath.Join("..", "..", "Dockerfile"), "--from", "scratch",
					"--target", "sidecar", "--version", "v1.2.3", "--prefix", "localhost:5000/x", "--arch", arch, "--out", out)
				archives, err := b.build(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff([]string{filepath.Join(out, "belay-sidecar.tar")}, archives); diff != "" {
					t.Fatalf("archives (-want +got):\n%s", diff)
				}
				content, err := os.ReadFile(archives[0])
				if err != nil {
					t.Fatal(err)
				}
				made = append(made, content)
			}
			if !bytes.Equal(made[0], made[1]) {
				t.Error("a second build made another archive")
			}
			images, err := archive.Read(bytes.NewReader(made[0]))
			if err != nil {
				t.Fatal(err)
			}
			image := images[0]
			if diff := cmp.Diff([]string{"localhost:5000/x/belay-sidecar:v1.2.3"}, image.Names); diff != "" {
				t.Errorf("names (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"/belay-sidecar"}, slices.Collect(maps.Keys(image.Files))); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
			binary := image.Files["/belay-sidecar"]
			if binary.Type != tar.TypeReg || binary.Mode != 0o755 || binary.UID != 0 || binary.GID != 0 {
				t.Errorf("the binary is %+v", binary)
			}
			if image.User != "65532:65532" || image.Architecture != arch || image.Labels["org.opencontainers.image.version"] != "v1.2.3" {
				t.Errorf("the image is %+v", image)
			}
		})
	}
}

// Without an engine, auto says so and builds all the same; what was asked for
// by name fails.
func TestFrom(t *testing.T) {
	t.Parallel()
	common := []string{"--dockerfile", filepath.Join("..", "..", "Dockerfile"), "--target", "sidecar", "--engine", "no-such-engine"}
	var said strings.Builder
	b := builder(t, append(common, "--out", t.TempDir())...)
	b.say = func(format string, args ...any) { fmt.Fprintf(&said, format+"\n", args...) }
	if archives, err := b.build(t.Context()); err != nil || len(archives) != 1 {
		t.Errorf("auto: %q, %v", archives, err)
	}
	for _, want := range []string{"building without an engine", "no-such-engine", "belay-sidecar:devel"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("auto said nothing of %q:\n%s", want, said.String())
		}
	}
	for _, args := range [][]string{{"--from", "dockerfile"}, {"--from", "scratch", "--load"}} {
		b := builder(t, append(append(common, "--out", t.TempDir()), args...)...)
		if archives, err := b.build(t.Context()); err == nil || len(archives) > 0 {
			t.Errorf("%q without an engine: %q, %v", args, archives, err)
		}
	}
}

func TestEngineArgs(t *testing.T) {
	t.Parallel()
	other := map[string]string{"amd64": "arm64"}[runtime.GOARCH]
	if other == "" {
		other = "amd64"
	}
	file := filepath.Join("..", "..", "Dockerfile")
	b := builder(t, "--dockerfile", file, "--version", "v1", "--build-arg", "GO_VERSION=1.99", "--arch", other)
	want := []string{
		"build", "--target", "webhook", "-t", "ghcr.io/belay-dev/belay-webhook:v1", "-f", file,
		"--build-arg", "GO_VERSION=1.99", "--build-arg", "VERSION=v1", "--platform", "linux/" + other, filepath.Join("..", ".."),
	}
	if diff := cmp.Diff(want, b.engineArgs("webhook")); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"golang:1.99"}, b.dockerfile.images()); diff != "" {
		t.Errorf("base images (-want +got):\n%s", diff)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	file := filepath.Join("..", "..", "Dockerfile")
	tests := map[string]struct {
		args []string
		want string
	}{
		"an unknown command":           {[]string{"make"}, `no command "make"`},
		"an unknown flag":              {[]string{"build", "--nope"}, "-nope"},
		"an argument":                  {[]string{"build", "webhook"}, `unexpected argument "webhook"`},
		"no engine's command":          {[]string{"build", "--engine", " "}, "--engine is empty"},
		"an unknown way":               {[]string{"build", "--from", "registry"}, "want auto, dockerfile or scratch"},
		"an unknown target":            {[]string{"build", "--dockerfile", file, "--target", "x"}, "there are controller, sidecar, webhook"},
		"a build argument of one half": {[]string{"build", "--build-arg", "X"}, "want NAME=VALUE"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := run(tc.args, &bytes.Buffer{}, &bytes.Buffer{})
			if _, misused := errors.AsType[usageError](err); !misused || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want a usage error with %q", err, tc.want)
			}
		})
	}
	var out bytes.Buffer
	if err := run([]string{"build", "--help"}, &out, &bytes.Buffer{}); err != nil || !strings.Contains(out.String(), "--pull-timeout") {
		t.Errorf("--help: %v\n%s", err, out.String())
	}
	if err := run([]string{"build", "--dockerfile", "nowhere"}, &bytes.Buffer{}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "run it in the repository's folder") {
		t.Errorf("without a Dockerfile: %v", err)
	}
}
