package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/belay-dev/belay/hack/kind/choice"
)

// engineScript is a docker client, and a kind, whose engine and registries fail as a test says.
const engineScript = `#!/bin/sh
echo "$*" >>"$DIR/calls"
case "$1 $2" in
"image inspect") test -e "$DIR/has-$3" ;;
"version --format") test ! -e "$DIR/gone" ;;
"pull --quiet")
	if test -e "$DIR/refuses-$3"; then echo "manifest unknown" >&2; exit 1; fi
	if test -e "$DIR/hangs-$3"; then echo began >"$DIR/began"; exec sleep 600; fi
	touch "$DIR/has-$3" ;;
"save --output") echo "$4 $5" >"$3" ;;
"get nodes") printf 'belay-control-plane\nbelay-worker\n' ;;
"exec --privileged") cat >"$DIR/imported-$4" ;;
*) echo "$1 $2 is new here" >&2; exit 1 ;;
esac
`

// engineOf returns a kind that talks to engineScript, and the folder that says how it fails.
func engineOf(t *testing.T, files ...string) (*kind, string) {
	t.Helper()
	bin, dir := t.TempDir(), t.TempDir()
	for _, name := range []string{"docker", "kind"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(engineScript), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range files {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return &kind{tools: &tools{log: t.Output(), path: bin, env: []string{"DIR=" + dir}}, cache: dir, name: "belay", patience: time.Minute}, dir
}

func calls(t *testing.T, dir, prefix string) []string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(content)) {
		if rest, found := strings.CutPrefix(strings.TrimSpace(line), prefix+" "); found {
			out = append(out, rest)
		}
	}
	return out
}

func TestPullImages(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		files []string
		// pulled are those that the engine is asked for.
		pulled []string
		code   int
		says   string
	}{
		"the engine has them":        {[]string{"has-one", "has-two"}, nil, 0, ""},
		"it pulls what it lacks":     {[]string{"has-one"}, []string{"two"}, 0, ""},
		"the first is refused":       {[]string{"refuses-one"}, []string{"one"}, choice.NotPulled, "manifest unknown"},
		"the second is refused":      {[]string{"refuses-two"}, []string{"one", "two"}, choice.NotPulled, "manifest unknown"},
		"the engine is gone by then": {[]string{"refuses-one", "gone"}, []string{"one"}, 1, "manifest unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, dir := engineOf(t, test.files...)
			err := k.pullImages(t.Context(), []string{"one", "two"})
			var said strings.Builder
			if got := exitCode(err, &said); got != test.code || !strings.Contains(said.String(), test.says) {
				t.Errorf("exit code %d, said %q; want %d, %q", got, said.String(), test.code, test.says)
			}
			if got := calls(t, dir, "pull --quiet"); !slices.Equal(got, test.pulled) {
				t.Errorf("it pulls %q; want %q", got, test.pulled)
			}
		})
	}
}

// TestNodeImage: kind's own where it is here or can be pulled, and could run; else one that was
// built before, else a new one.
func TestNodeImage(t *testing.T) {
	t.Parallel()
	const built = "built"
	for name, test := range map[string]struct {
		from    string
		short   bool
		files   []string
		want    string
		pulls   bool
		refused bool
	}{
		"kind's own is here":                            {from: "auto", files: []string{"has-own", "has-built"}, want: officialImage},
		"one was built before, no registry is asked":    {from: "auto", files: []string{"has-built"}, want: built},
		"kind's own can be pulled":                      {from: "auto", want: officialImage, pulls: true},
		"it cannot: one is built":                       {from: "auto", files: []string{"refuses-own"}, pulls: true},
		"kind's own is here, and could not run":         {from: "auto", short: true, files: []string{"has-own", "has-built"}, want: built},
		"it could not run: one is built, and not asked": {from: "auto", short: true},
		"kind's own is asked for":                       {from: "official", short: true, files: []string{"has-built"}, want: officialImage, pulls: true},
		"it is asked for and cannot be pulled":          {from: "official", files: []string{"has-built", "refuses-own"}, pulls: true, refused: true},
		"a built one is asked for":                      {from: "built", files: []string{"has-own", "has-built"}, want: built},
		"a built one is asked for, and has to be built": {from: "built", files: []string{"has-own"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, dir := engineOf(t)
			for _, file := range test.files {
				// The name of an image has slashes.
				file = filepath.Join(dir, strings.Replace(file, "own", officialImage, 1))
				if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, "has-"+officialImage)), 0o755); err != nil {
				t.Fatal(err)
			}
			k.from = test.from
			got, err := k.imageHere(t.Context(), built, test.short)
			if got != test.want || (err != nil) != test.refused {
				t.Errorf("it is %q, %v; want %q", got, err, test.want)
			}
			if got != "" && k.made == "" {
				t.Error("it is not said where it comes from")
			}
			if pulled := calls(t, dir, "pull --quiet"); len(pulled) > 0 != test.pulls {
				t.Errorf("it pulls %q", pulled)
			}
		})
	}
}

func TestARegistryThatHangsCannotBePulledFrom(t *testing.T) {
	t.Parallel()
	k, _ := engineOf(t, "hangs-one")
	k.patience = 200 * time.Millisecond
	err := k.pullImages(t.Context(), []string{"one", "two"})
	if got := exitCode(err, t.Output()); got != choice.NotPulled || !strings.Contains(err.Error(), "not within 200ms") {
		t.Errorf("exit code %d, %v", got, err)
	}
}

func TestWhoeverInterruptsAPullDoesNotLearnThatItCannotBePulled(t *testing.T) {
	t.Parallel()
	k, dir := engineOf(t, "hangs-one")
	ctx, interrupt := context.WithCancel(t.Context())
	pulled := make(chan error, 1)
	go func() { pulled <- k.pullImages(ctx, []string{"one"}) }()
	if err := eventually(t.Context(), time.Minute, func() error {
		_, err := os.Stat(filepath.Join(dir, "began"))
		return err
	}); err != nil {
		t.Error(err)
	}
	interrupt()
	if err := <-pulled; !errors.Is(err, context.Canceled) || exitCode(err, t.Output()) != 1 {
		t.Errorf("the error is %v", err)
	}
}

func TestWhatIsPulledIsImportedIntoEveryNode(t *testing.T) {
	t.Parallel()
	k, dir := engineOf(t)
	if err := k.loadPulled(t.Context(), []string{"one", "two"}); err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{"belay-control-plane", "belay-worker"} {
		if got, err := os.ReadFile(filepath.Join(dir, "imported-"+node)); err != nil || string(got) != "one two\n" {
			t.Errorf("node %s has %q, %v", node, got, err)
		}
	}
	for _, args := range calls(t, dir, "exec --privileged --interactive") {
		// The contents of other platforms may be missing.
		if strings.Contains(args, "--all-platforms") {
			t.Errorf("it imports %q", args)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".pulled-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}
