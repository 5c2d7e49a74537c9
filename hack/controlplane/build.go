package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// progressEvery is how often a running build says that it is alive.
const progressEvery = 10 * time.Second

// binaries are the paths of the three components and the Kubernetes version
// that kube-apiserver is of.
type binaries struct {
	version                            string
	etcd, apiserver, controllerManager string
}

// A builder makes binaries, or finds those made before.
type builder struct {
	cache     string // <user cache>/belay/controlplane
	log       io.Writer
	goVersion string // asked for once, by dir
}

func newBuilder(log io.Writer) (*builder, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("finding the user's cache directory: %w", err)
	}
	cache := filepath.Join(dir, "belay", "controlplane")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, fmt.Errorf("creating the cache: %w", err)
	}
	return &builder{cache: cache, log: log}, nil
}

// binaries returns the components of the wanted version ("" is the newest) out
// of KUBEBUILDER_ASSETS, the cache or a build.
func (b *builder) binaries(ctx context.Context, want string) (binaries, error) {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		return b.fromAssets(ctx, dir, want)
	}
	version, err := resolveVersion(want, pinnedVersions("kube"))
	if err != nil {
		return binaries{}, err
	}
	kube, err := kubeTarget(version)
	if err != nil {
		return binaries{}, err
	}
	dirs, err := b.ensure(ctx, etcdTarget(), kube)
	if err != nil {
		return binaries{}, err
	}
	return binaries{
		version:           version,
		etcd:              filepath.Join(dirs[0], "bin", "etcd"),
		apiserver:         filepath.Join(dirs[1], "bin", "kube-apiserver"),
		controllerManager: filepath.Join(dirs[1], "bin", "kube-controller-manager"),
	}, nil
}

// fromAssets takes the binaries from dir. kube-controller-manager is built when
// it is not there, as the archives for envtest do not have it.
func (b *builder) fromAssets(ctx context.Context, dir, want string) (binaries, error) {
	dir, err := filepath.Abs(dir) // components run in another directory
	if err != nil {
		return binaries{}, err
	}
	bins := binaries{
		etcd:              filepath.Join(dir, "etcd"),
		apiserver:         filepath.Join(dir, "kube-apiserver"),
		controllerManager: filepath.Join(dir, "kube-controller-manager"),
	}
	var missing []string
	for _, p := range []string{bins.etcd, bins.apiserver} {
		if !exists(p) {
			missing = append(missing, filepath.Base(p))
		}
	}
	if len(missing) > 0 {
		return binaries{}, fmt.Errorf("KUBEBUILDER_ASSETS=%s has no %s; put it there, or unset KUBEBUILDER_ASSETS to have everything built",
			dir, strings.Join(missing, " and no "))
	}
	out, err := exec.CommandContext(ctx, bins.apiserver, "--version").Output()
	if err != nil {
		return binaries{}, fmt.Errorf("asking %s for its version: %w", bins.apiserver, err)
	}
	bins.version = strings.TrimPrefix(strings.TrimSpace(string(out)), "Kubernetes ")
	if want != "" {
		if _, err := resolveVersion(want, []string{bins.version}); err != nil {
			return binaries{}, fmt.Errorf("version %q is wanted, but KUBEBUILDER_ASSETS=%s has %s; unset one of the two",
				want, dir, bins.version)
		}
	}
	if exists(bins.controllerManager) {
		fmt.Fprintf(b.log, "using the control plane %s in KUBEBUILDER_ASSETS=%s\n", bins.version, dir)
		return bins, nil
	}
	version, err := resolveVersion(minor(bins.version), pinnedVersions("kube"))
	if err != nil {
		return binaries{}, fmt.Errorf("KUBEBUILDER_ASSETS=%s has no kube-controller-manager and none can be built for its kube-apiserver: %w", dir, err)
	}
	kube, err := kubeTarget(version)
	if err != nil {
		return binaries{}, err
	}
	fmt.Fprintf(b.log, "KUBEBUILDER_ASSETS=%s has no kube-controller-manager, taking that of %s\n", dir, version)
	dirs, err := b.ensure(ctx, kube)
	if err != nil {
		return binaries{}, err
	}
	bins.controllerManager = filepath.Join(dirs[0], "bin", "kube-controller-manager")
	return bins, nil
}

// kubectl returns the path of kubectl of the wanted version ("" is the newest)
// out of KUBEBUILDER_ASSETS, when it is there, the cache or a build.
func (b *builder) kubectl(ctx context.Context, want string) (string, error) {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		dir, err := filepath.Abs(dir)
		if err != nil {
			return "", err
		}
		if file := filepath.Join(dir, "kubectl"); exists(file) {
			return file, checkKubectl(ctx, file, want)
		}
		fmt.Fprintf(b.log, "KUBEBUILDER_ASSETS=%s has no kubectl\n", dir)
	}
	version, err := resolveVersion(want, pinnedVersions("kubectl"))
	if err != nil {
		return "", err
	}
	t, err := kubectlTarget(version)
	if err != nil {
		return "", err
	}
	dirs, err := b.ensure(ctx, t)
	if err != nil {
		return "", err
	}
	return filepath.Join(dirs[0], "bin", "kubectl"), nil
}

// checkKubectl fails when file is not of the wanted version; "" is any.
func checkKubectl(ctx context.Context, file, want string) error {
	if want == "" {
		return nil
	}
	out, err := exec.CommandContext(ctx, file, "version", "--client", "--output=json").Output()
	if err != nil {
		return fmt.Errorf("asking %s for its version: %w", file, err)
	}
	var answer struct{ ClientVersion struct{ GitVersion string } }
	if err := json.Unmarshal(out, &answer); err != nil {
		return fmt.Errorf("reading the version of %s: %w", file, err)
	}
	if _, err := resolveVersion(want, []string{answer.ClientVersion.GitVersion}); err != nil {
		return fmt.Errorf("version %q is wanted, but %s in KUBEBUILDER_ASSETS is %s; unset one of the two",
			want, file, answer.ClientVersion.GitVersion)
	}
	return nil
}

// ensure returns the cache directories of targets, building those missing.
func (b *builder) ensure(ctx context.Context, targets ...target) ([]string, error) {
	dirs := make([]string, len(targets))
	missing := false
	for i, t := range targets {
		var err error
		if dirs[i], err = b.dir(ctx, t); err != nil {
			return nil, err
		}
		missing = missing || !exists(dirs[i])
	}
	if !missing {
		fmt.Fprintf(b.log, "using binaries built before: %s\n", strings.Join(dirs, ", "))
		return dirs, nil
	}

	lock, err := b.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	var todo []int
	for i, dir := range dirs {
		if !exists(dir) { // another process may have built it meanwhile
			todo = append(todo, i)
		}
	}
	for n, i := range todo {
		fmt.Fprintf(b.log, "step %d of %d: building %s: %s\n", n+1, len(todo), targets[i].what, targets[i].usual)
		if err := b.build(ctx, targets[i], dirs[i]); err != nil {
			return nil, fmt.Errorf("building %s: %w", targets[i].what, err)
		}
	}
	return dirs, nil
}

// dir returns where the binaries of t are or will be.
func (b *builder) dir(ctx context.Context, t target) (string, error) {
	if b.goVersion == "" {
		cmd := exec.CommandContext(ctx, "go", "env", "GOVERSION")
		cmd.Dir = b.cache // a go.mod where the caller is must not choose the toolchain
		cmd.Env = goEnv()
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("asking go for its version (is Go installed and on PATH?): %w", err)
		}
		b.goVersion = strings.TrimSpace(string(out))
	}
	key, err := cacheKey(t, b.goVersion)
	if err != nil {
		return "", err
	}
	return filepath.Join(b.cache, t.name+"-"+key), nil
}

// cacheKey covers everything that the binaries of t depend on.
func cacheKey(t target, goVersion string) (string, error) {
	h := sha256.New()
	files, err := pinFiles(t)
	if err != nil {
		return "", err
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		fmt.Fprintf(h, "%d\n%s", len(files[name]), files[name])
	}
	fmt.Fprintf(h, "%q\n", []string{goVersion, t.output, t.ldflags})
	fmt.Fprintf(h, "%q\n%q\n", t.packages, buildEnv())
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}

func pinFiles(t target) (map[string][]byte, error) {
	files := map[string][]byte{}
	for name, embedded := range map[string]string{"go.mod": "mod.txt", "go.sum": "sum.txt"} {
		content, err := fs.ReadFile(pins, path.Join("pins", t.pin, embedded))
		if err != nil {
			return nil, fmt.Errorf("reading the pins: %w", err)
		}
		files[name] = content
	}
	return files, nil
}

// buildEnv is the part of the environment that shapes the binaries.
func buildEnv() []string {
	return []string{
		"CGO_ENABLED=0",
		"GOFLAGS=-trimpath -buildvcs=false -mod=readonly",
		"GOOS=" + runtime.GOOS,
		"GOARCH=" + runtime.GOARCH,
		"GOWORK=off",
	}
}

func goEnv() []string { return append(os.Environ(), buildEnv()...) }

// build compiles t in a folder beside dir and renames it to dir, so that dir
// is never half full.
func (b *builder) build(ctx context.Context, t target, dir string) error {
	tmp, err := os.MkdirTemp(b.cache, ".build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	files, err := pinFiles(t)
	if err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(tmp, name), content, 0o644); err != nil {
			return err
		}
	}
	// -v names every package that is compiled: something to count.
	args := append([]string{"build", "-v", "-ldflags", t.ldflags, "-o", filepath.Join(tmp, "bin") + "/" + strings.TrimPrefix(t.output, "/")}, t.packages...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = tmp, goEnv()
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // go ends its compilers then
	cmd.WaitDelay = 10 * time.Second
	out := &buildOutput{}
	cmd.Stdout, cmd.Stderr = out, out

	start := time.Now()
	if err := cmd.Start(); err != nil {
		return err
	}
	waited := make(chan error, 1)
	go func() { waited <- cmd.Wait() }()
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			fmt.Fprintf(b.log, "  %.0f s: %s\n", time.Since(start).Seconds(), out.summary())
		case err := <-waited:
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err != nil {
				return fmt.Errorf("go build: %w (modules come from the proxy in go env GOPROXY); its last lines:\n%s", err, out.tail())
			}
			fmt.Fprintf(b.log, "  done after %.0f s\n", time.Since(start).Seconds())
			return os.Rename(tmp, dir)
		}
	}
}

// buildOutput counts what go build -v says and keeps its last lines.
type buildOutput struct {
	mu                   sync.Mutex
	partial              []byte
	downloaded, compiled int
	lines                []string
}

func (o *buildOutput) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.partial = append(o.partial, p...)
	for {
		line, rest, found := bytes.Cut(o.partial, []byte("\n"))
		if !found {
			return len(p), nil
		}
		o.partial = rest
		s := string(line)
		switch {
		case strings.HasPrefix(s, "go: downloading "):
			o.downloaded++
		case !strings.ContainsAny(s, " \t"):
			o.compiled++
		default:
			o.lines = append(o.lines, s)
			o.lines = o.lines[max(0, len(o.lines)-20):]
		}
	}
}

func (o *buildOutput) summary() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return fmt.Sprintf("%d modules downloaded, %d packages compiled", o.downloaded, o.compiled)
}

func (o *buildOutput) tail() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(append(slices.Clone(o.lines), string(o.partial)), "\n")
}

// lock lets one process change the cache at a time. The lock is released by
// closing the file, or by the kernel. Folders of builds that were killed go.
func (b *builder) lock(ctx context.Context) (*os.File, error) {
	name := filepath.Join(b.cache, "build.lock")
	lock, err := lockFile(ctx, name, func() {
		fmt.Fprintln(b.log, "waiting for another process that builds")
	})
	if err != nil {
		return nil, err
	}
	stale, err := filepath.Glob(filepath.Join(b.cache, ".build-*"))
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	for _, dir := range stale {
		if err := os.RemoveAll(dir); err != nil {
			return nil, errors.Join(err, lock.Close())
		}
	}
	return lock, nil
}

// clean removes what the present targets do not use, or everything.
func (b *builder) clean(ctx context.Context, all bool) error {
	targets, err := pinnedTargets()
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, t := range targets {
		dir, err := b.dir(ctx, t)
		if err != nil {
			return err
		}
		keep[dir] = !all
	}
	lock, err := b.lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Close()
	var found []string
	for _, pattern := range []string{"etcd-v*-*", "kubectl-v*-*", "node-v*-*", "v*-*"} {
		dirs, err := filepath.Glob(filepath.Join(b.cache, pattern))
		if err != nil {
			return err
		}
		found = append(found, dirs...)
	}
	for _, dir := range found {
		if keep[dir] {
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		fmt.Fprintf(b.log, "removed %s\n", dir)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
