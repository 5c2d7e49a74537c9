package main

import (
	"bufio"
	"bytes"
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/belay-dev/belay/hack/images/archive"
	"github.com/google/go-cmp/cmp"
)

// The images that an engine builds from the Dockerfile are those that are made
// without one: the same files down to the bytes of the binaries, the same
// user, entrypoint, environment and labels.
//
// BELAY_COMPARE_IMAGES names the targets, or "all"; the command of the engine
// may be in DOCKER. Where golang cannot be pulled, the engine builds on an
// image of this machine's Go and its module cache.
func TestTheEngineMakesEqualImages(t *testing.T) {
	which := os.Getenv("BELAY_COMPARE_IMAGES")
	if which == "" {
		t.Skip(`it takes a container engine and minutes; "make images-compare" runs it`)
	}
	command := os.Getenv("DOCKER")
	if command == "" {
		command = "docker"
	}
	args := []string{"--dockerfile", filepath.Join(snapshot(t), "Dockerfile"), "--engine", command,
		"--version", "v0.0.1-compare", "--prefix", "localhost/belay-compare"}
	if which != "all" {
		for _, target := range strings.Split(which, ",") {
			args = append(args, "--target", target)
		}
	}
	probe := builder(t, args...)
	if err := probe.engine.answers(t.Context()); err != nil {
		t.Fatalf("BELAY_COMPARE_IMAGES is set, and no engine answers: %v", err)
	}
	sameGo := false
	if err := probe.engine.have(t.Context(), probe.dockerfile.images()[0], time.Minute); err != nil {
		t.Logf("golang cannot be had (%v); building on this machine's Go", err)
		args = append(args, "--build-arg", "GO_VERSION="+standIn(t, probe.engine))
		sameGo = true
	}
	made := map[string][]archive.Contents{}
	for _, from := range []string{"dockerfile", "scratch"} {
		b := builder(t, append(args, "--from", from, "--out", t.TempDir())...)
		for _, target := range b.targets {
			t.Cleanup(func() { removeImage(t, b.engine, b.name(target)) })
		}
		archives, err := b.build(t.Context())
		if err != nil {
			t.Fatalf("from %s: %v", from, err)
		}
		for _, name := range archives {
			made[from] = append(made[from], read(t, name)...)
		}
	}
	if len(made["scratch"]) == 0 {
		t.Fatal("nothing was compared")
	}
	if !sameGo {
		// Other patch releases of Go make other binaries.
		for _, images := range made {
			for _, image := range images {
				for name, entry := range image.Files {
					entry.Size, entry.SHA256 = 0, ""
					image.Files[name] = entry
				}
			}
		}
	}
	if diff := cmp.Diff(made["dockerfile"], made["scratch"]); diff != "" {
		t.Fatalf("images (-engine +scratch):\n%s", diff)
	}
	for _, image := range made["scratch"] {
		t.Logf("equal: %s, %d files, user %s, entrypoint %s", image.Names[0], len(image.Files), image.User, image.Entrypoint)
	}
}

// snapshot copies what images are made of: somebody may go on working while
// this builds for minutes.
func snapshot(t *testing.T) string {
	t.Helper()
	root, dir := filepath.Join("..", ".."), t.TempDir()
	for _, name := range []string{"Dockerfile", ".dockerignore", "go.mod", "go.sum"} {
		content, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"cmd", "webhook", "sidecar"} {
		if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join(root, name))); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func removeImage(t *testing.T, e engine, name string) {
	// The test's context is over by now.
	if out, err := e.cmd(context.Background(), "rmi", "-f", name).CombinedOutput(); err != nil {
		t.Errorf("removing %s: %v\n%s", name, err, out)
	}
}

// standIn loads an image that is golang's as far as the Dockerfile needs it,
// and returns its tag: Go, a shell, and the modules of go.sum, from which
// "go mod download" takes them.
func standIn(t *testing.T, e engine) string {
	t.Helper()
	goroot, cache := goEnv(t, "GOROOT"), filepath.Join(goEnv(t, "GOMODCACHE"), "cache", "download")
	image := archive.Image{
		Name: "golang:belay-stand-in",
		Env: []string{
			"PATH=/usr/local/go/bin:/bin", "HOME=/root", "GOTOOLCHAIN=local",
			"GOPATH=/go", "GOPROXY=file:///proxy", "GOSUMDB=off",
		},
		Files: []archive.File{{Path: "/tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777}, {Path: "/root", Mode: fs.ModeDir | 0o700}},
	}
	for _, part := range []string{"VERSION", "go.env", "bin", "lib", "pkg", "src"} {
		files, err := archive.Tree(filepath.Join(goroot, part), "/usr/local/go/"+part)
		if err != nil {
			t.Fatal(err)
		}
		image.Files = append(image.Files, files...)
	}
	image.Files = append(image.Files, shell(t)...)

	if out, err := exec.CommandContext(t.Context(), "go", "mod", "download").CombinedOutput(); err != nil {
		t.Fatalf("go mod download: %v\n%s", err, out)
	}
	sums, err := os.Open(filepath.Join("..", "..", "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	defer sums.Close()
	for lines := bufio.NewScanner(sums); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		version, modOnly := strings.CutSuffix(fields[1], "/go.mod")
		endings := []string{".info", ".zip"}
		if modOnly {
			endings = []string{".mod"}
		}
		for _, ending := range endings {
			name := escape(fields[0]) + "/@v/" + escape(version) + ending
			file := archive.File{Path: "/proxy/" + name, Source: filepath.Join(cache, filepath.FromSlash(name))}
			// go.sum also has modules that only their go.mod was needed of.
			if _, err := os.Stat(file.Source); err == nil {
				image.Files = append(image.Files, file)
			}
		}
	}
	name := filepath.Join(t.TempDir(), "golang.tar")
	if err := archive.WriteFile(name, image); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeImage(t, e, image.Name) })
	if err := e.quietly(t.Context(), "load", "-i", name); err != nil {
		t.Fatal(err)
	}
	return "belay-stand-in"
}

// escape writes upper case as the module cache does.
func escape(path string) string {
	return regexp.MustCompile("[A-Z]").ReplaceAllStringFunc(path, func(c string) string { return "!" + strings.ToLower(c) })
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// shell returns this machine's /bin/sh and the libraries that it names.
func shell(t *testing.T) []archive.File {
	t.Helper()
	sh, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	files := []archive.File{{Path: "/bin/sh", Source: sh, Mode: 0o755}}
	out, err := exec.CommandContext(t.Context(), "ldd", sh).CombinedOutput()
	if bytes.Contains(out, []byte("not a dynamic executable")) {
		return files
	}
	if err != nil {
		t.Fatalf("ldd %s: %v\n%s", sh, err, out)
	}
	for _, library := range regexp.MustCompile(`/\S+`).FindAllString(string(out), -1) {
		if library == sh || strings.HasSuffix(library, ":") {
			continue
		}
		source, err := filepath.EvalSymlinks(library)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, archive.File{Path: library, Source: source, Mode: 0o755})
	}
	return files
}
