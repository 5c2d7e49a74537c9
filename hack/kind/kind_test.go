package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestExitCodes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		want int
		says string
	}{
		"done":      {nil, 0, ""},
		"misused":   {usageError("no command \"x\""), 2, "help"},
		"no engine": {noEngineError{errors.New("start docker")}, 3, "start docker"},
		"no image":  {notPulledError{errors.New("manifest unknown")}, 4, "manifest unknown"},
		"failed":    {errors.New("it broke"), 1, "it broke"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var said bytes.Buffer
			if got := exitCode(test.err, &said); got != test.want || !strings.Contains(said.String(), test.says) {
				t.Errorf("exit code %d, said %q; want %d, %q", got, said.String(), test.want, test.says)
			}
		})
	}
}

func TestUsage(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	for name, args := range map[string][]string{
		"no such command": {"uup"}, "no such flag": {"up", "--colour=x"}, "an argument too many": {"up", "x"}, "no such node image": {"up", "--node-image=latest"}, "nothing to load": {"load"},
		"nothing to pull": {"pull"}, "no such time": {"pull", "--timeout=soon", "x"}, "another command's flag": {"load", "--timeout=1s", "x"},
	} {
		var out bytes.Buffer
		err := run(t.Context(), args, &out, &out)
		if _, misused := errors.AsType[usageError](err); !misused {
			t.Errorf("%s: %v; want an error that says how it is used", name, err)
		}
	}
	var out bytes.Buffer
	if err := run(t.Context(), []string{"help"}, &out, &out); err != nil || !strings.Contains(out.String(), "KUBECONFIG") {
		t.Errorf("help: %v, %q", err, out.String())
	}
}

// The image has to be another one when anything is that it is made of.
func TestKeyCoversWhatTheImageIsMadeOf(t *testing.T) {
	root, err := repository()
	if err != nil {
		t.Fatal(err)
	}
	copied := t.TempDir()
	for _, dir := range []string{"hack/kind", "hack/controlplane/pins"} {
		if err := os.CopyFS(filepath.Join(copied, dir), os.DirFS(filepath.Join(root, dir))); err != nil {
			t.Fatal(err)
		}
	}
	k := &kind{tools: &tools{log: t.Output()}, root: copied}
	key := func(sources ...string) string {
		t.Helper()
		got, err := k.key(t.Context(), sources...)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	all := append(append([]string{}, binarySources...), nodeSources...)
	before, binaries := key(all...), key(binarySources...)
	for name, alsoBinaries := range map[string]bool{
		"hack/kind/pins.go": true, "hack/kind/coredns/go.mod": true, "hack/kind/pause/main.go": true, "hack/controlplane/pins/kube-" + kubernetesVersion + "/mod.txt": true,
		"hack/kind/image.go": false, "hack/kind/node/kind/bin/node-cni.sh": false, "hack/kind/node/etc/containerd/config.toml": false,
	} {
		file := filepath.Join(copied, name)
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, append(content, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
		if key(all...) == before {
			t.Errorf("%s is changed, and the image is the same", name)
		}
		if changed := key(binarySources...) != binaries; changed != alsoBinaries {
			t.Errorf("%s is changed: the binaries are others: %t", name, changed)
		}
		if err := os.WriteFile(file, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if key(all...) != before {
		t.Error("nothing is changed, and the image is another one")
	}
}

func TestRuntimeAsksForOneCapabilityLess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	runc := filepath.Join(dir, "runc")
	if err := os.WriteFile(runc, []byte("#!/bin/sh\necho \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	wrapper := filepath.Join(dir, "wrapper")
	if err := os.WriteFile(wrapper, []byte(strings.ReplaceAll(string(without), "@RUNC@", runc)), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ config, want string }{
		"first": {`{"bounding":["CAP_SYS_RESOURCE","CAP_KILL"]}`, `{"bounding":["CAP_KILL"]}`},
		"last":  {`{"bounding":["CAP_KILL","CAP_SYS_RESOURCE"]}`, `{"bounding":["CAP_KILL"]}`},
		"none":  {`{"bounding":["CAP_KILL"]}`, `{"bounding":["CAP_KILL"]}`},
	} {
		bundle := filepath.Join(dir, name)
		if err := os.Mkdir(bundle, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, call := range []struct {
			file string
			args []string
		}{
			{filepath.Join(bundle, "config.json"), []string{"--root", "x", "create", "--bundle", bundle, "id"}},
			{filepath.Join(bundle, "process"), []string{"exec", "--process", filepath.Join(bundle, "process"), "id"}},
		} {
			if err := os.WriteFile(call.file, []byte(test.config), 0o644); err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), wrapper, call.args...).CombinedOutput()
			if err != nil || strings.TrimSpace(string(out)) != strings.Join(call.args, " ") {
				t.Errorf("%s: the runtime got %q, %v", name, out, err)
			}
			if got, err := os.ReadFile(call.file); err != nil || string(got) != test.want {
				t.Errorf("%s: %s, %v; want %s", name, got, err, test.want)
			}
		}
	}
}

func TestProxiesAreNoneOfTheNodes(t *testing.T) {
	t.Setenv("https_proxy", "http://proxy.example.com:3128")
	tools := &tools{log: t.Output(), env: []string{"HTTP_PROXY=http://proxy.example.com:3128", "KEPT=yes"}}
	dir := t.TempDir()
	for _, name := range []string{"kind", "go"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\nenv\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	tools.path = dir
	for name, want := range map[string]bool{"kind": false, "go": true} {
		out, err := tools.output(t.Context(), call{name: name})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(out, "proxy.example.com"); got != want || !strings.Contains(out, "KEPT=yes") {
			t.Errorf("%s sees a proxy: %t; want %t\n%s", name, got, want, out)
		}
	}
}

func TestErrorsHaveTheLastLines(t *testing.T) {
	t.Parallel()
	tools := &tools{log: t.Output()}
	_, err := tools.output(t.Context(), call{name: "sh", args: []string{"-c", "echo one; echo two >&2; exit 7"}})
	if err == nil || !strings.Contains(err.Error(), "exit status 7") || !strings.Contains(err.Error(), "two") {
		t.Errorf("the error is %v", err)
	}
	if _, err := tools.output(t.Context(), call{name: "no-such-command-anywhere"}); err == nil || !strings.Contains(err.Error(), "PATH") {
		t.Errorf("the error is %v", err)
	}
}

func TestEventuallyGivesUp(t *testing.T) {
	t.Parallel()
	why := errors.New("not yet")
	if err := eventually(t.Context(), 300*time.Millisecond, func() error { return why }); !errors.Is(err, why) {
		t.Errorf("the error is %v", err)
	}
	n := 0
	if err := eventually(t.Context(), time.Minute, func() error {
		if n++; n < 3 {
			return why
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func TestWhatIsStartedInheritsNothing(t *testing.T) {
	t.Parallel()
	file, err := os.Create(filepath.Join(t.TempDir(), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	// A copy is handed on, which what Go opens itself is not.
	given, err := syscall.Dup(int(file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(given)
	inherited := func() bool {
		out, err := exec.CommandContext(t.Context(), "ls", "-l", "/proc/self/fd").CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return strings.Contains(string(out), file.Name())
	}
	if !inherited() {
		t.Error("a copy is not handed on, so that this test shows nothing")
	}
	if err := inheritNothing(); err != nil {
		t.Fatal(err)
	}
	if inherited() {
		t.Error("a command inherits what this process was given")
	}
}

func TestLock(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "lock")
	first, err := lock(name, func() { t.Error("it waits for nobody") })
	if err != nil {
		t.Fatal(err)
	}
	waits, got := make(chan struct{}), make(chan error, 1)
	go func() {
		second, err := lock(name, func() { close(waits) })
		if err == nil {
			err = second.Close()
		}
		got <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case <-waits:
	case <-ctx.Done():
		t.Fatal("the second does not wait")
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-got:
		if err != nil {
			t.Error(err)
		}
	case <-ctx.Done():
		t.Error("the second waits for ever")
	}
}
