package deps

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const module = "github.com/belay-dev/belay"

// Patterns are import paths, or import paths with "/..." for the package and
// everything below. Those that start with "./" are below this module, and
// "std" is the whole standard library.
const (
	std = "std"
	all = "./..."
)

// pure are the decisions: (request, facts, policy) in, a decision out.
var pure = []string{"./webhook/internal/owner", "./webhook/internal/naming", "./webhook/internal/recovery", "./webhook/internal/inject"}

// ban is one forbidden import and why it is forbidden.
type ban struct {
	imports string // pattern
	except  []string
	because string
}

// wall is what the packages of from must not import. With deep, the belay
// packages that they reach are held to it as well.
type wall struct {
	from   []string // patterns
	except []string // patterns taken out of from
	deep   bool
	bans   []ban
}

// walls are keyed by what they are there for. A package that does not exist
// yet is no violation; the required ones are listed in TestWalls.
var walls = map[string]wall{
	"the sidecar is the standard library and itself": {
		from: []string{"./sidecar/...", "./cmd/belay-sidecar"},
		bans: []ban{
			{imports: all, except: []string{"./sidecar/..."}, because: "the sidecar ships into other people's pods and takes nothing of the webhook along"},
			{imports: "...", except: []string{std, all}, because: "what the sidecar links is paid for in every pod: memory, image size and advisories"},
		},
	},
	"names are made the same everywhere": {
		from: []string{"./webhook/client/spawn/names"},
		bans: []ban{
			{imports: all, because: "webhook and client library both build on it"},
			{imports: "...", except: []string{std, all}, because: "a name must not change with a library's version"},
		},
	},
	"the client library stands alone": {
		from: []string{"./webhook/client/..."},
		bans: []ban{
			{imports: all, except: []string{"./webhook/client/...", "./sidecar/channel"}, because: "authors of controllers import the library without the rest of belay"},
		},
	},
	"decisions are pure": {
		from: pure,
		deep: true,
		bans: []ban{
			{
				imports: all, except: []string{"./webhook/api/...", "./webhook/internal/fact", "./webhook/internal/wording", "./webhook/client/spawn/names", "./sidecar/settings", "./sidecar/wire"},
				because: "a decision knows the policy's types and nothing that gathers, serves or writes",
			},
			{imports: "context", because: "a decision neither blocks nor carries hidden values"},
			{imports: "net/http", because: "a decision does not know that it is asked over HTTP"},
			{imports: "os/...", because: "a decision depends on its arguments only, not on the process"},
			{imports: "log/...", because: "a decision is its own record; admission logs it"},
			{imports: "math/rand/...", because: "the same facts give the same decision"},
			{imports: "crypto/rand", because: "the same facts give the same decision"},
			{imports: "k8s.io/client-go/...", because: "facts are gathered before deciding"},
			{imports: "sigs.k8s.io/controller-runtime/...", because: "facts are gathered before deciding"},
			{imports: "github.com/prometheus/...", because: "one request can be decided many times; admission counts once"},
			{imports: "github.com/go-logr/...", because: "a decision is its own record; admission logs it"},
			{imports: "k8s.io/klog/...", because: "a decision is its own record; admission logs it"},
		},
	},
	"the API types have no behaviour": {
		from: []string{"./webhook/api/..."},
		bans: []ban{
			{imports: all, except: []string{"./webhook/api/..."}, because: "everything imports the API types, so they import nothing of belay"},
			{imports: "net/http", because: "types do not do"},
			{imports: "os/...", because: "types do not do"},
			{
				imports: "...",
				except:  []string{std, all, "k8s.io/api/...", "k8s.io/apimachinery/...", "sigs.k8s.io/controller-runtime/pkg/scheme"},
				because: "whoever reads a policy in Go pulls in the API types of Kubernetes and no more",
			},
		},
	},
	"facts do not know who asks": {
		from: []string{"./webhook/internal/facts/..."},
		deep: true,
		bans: []ban{
			{imports: "./webhook/internal/admission/...", because: "facts are gathered for admission, not by it"},
			{imports: "./webhook/internal/controller/...", because: "controllers gather facts, too, and not the other way round"},
			{imports: "./webhook/internal/collector/...", because: "the collector gathers facts, too, and not the other way round"},
			{imports: "./webhook/app/...", because: "app puts the parts together and is imported by none of them"},
		},
	},
	"admission needs no controller": {
		from: []string{"./webhook/internal/admission/...", "./webhook/internal/collector/..."},
		deep: true,
		bans: []ban{
			{imports: "./webhook/internal/controller/...", because: "losing the controller never touches admission"},
		},
	},
	"app is put together by mains and tests only": {
		from:   []string{all},
		except: []string{"./cmd/...", "./webhook/app/...", "./test/...", "./hack/..."},
		bans: []ban{
			{imports: "./webhook/app/...", because: "app puts the parts together and is imported by none of them"},
		},
	},
	"mains are about ten lines": {
		from: []string{"./cmd/..."},
		bans: []ban{
			{imports: all, except: []string{"./webhook/app/...", "./sidecar/app/..."}, because: "app is the one public door"},
			{
				imports: "...",
				except:  []string{std, all, "sigs.k8s.io/controller-runtime", "sigs.k8s.io/controller-runtime/pkg/manager/signals"},
				because: "a main turns signals into a context and app's error into an exit code; the rest is app's",
			},
		},
	},
	"production code does not lean on tests": {
		from:   []string{all},
		except: []string{"./test/...", "./hack/..."},
		bans: []ban{
			{imports: "./test/...", because: "test code changes for the sake of tests"},
			{imports: "./hack/...", because: "what is in hack is for those who work on belay"},
			{imports: "testing/...", because: "it brings its flags into the binary"},
			{imports: "net/http/httptest", because: "it is made for tests and skips what a server must do"},
			{imports: "github.com/google/go-cmp/...", because: "it panics on what it cannot compare"},
		},
	},
}

// pkg is what a wall has to know about a package.
type pkg struct {
	imports []string // without those of test files
	std     bool
}

// graph holds packages by import path. Packages that are imported and not in
// it are taken for other modules'.
type graph map[string]pkg

// matches tells whether an import path is in a pattern.
func (g graph) matches(path string, patterns ...string) bool {
	for _, pattern := range patterns {
		pattern = strings.Replace(pattern, "./", module+"/", 1)
		prefix, below := strings.CutSuffix(pattern, "...")
		prefix = strings.TrimSuffix(prefix, "/")
		switch {
		case pattern == std && g[path].std,
			path == prefix,
			below && (prefix == "" || strings.HasPrefix(path, prefix+"/")):
			return true
		}
	}
	return false
}

// violations lists what breaks the wall, sorted, each with its reason.
func (g graph) violations(w wall) []string {
	var found []string
	for start := range g {
		if !g.matches(start, w.from...) || g.matches(start, w.except...) {
			continue
		}
		way := []string{start} // packages to look at; it grows while it is read
		for i := 0; i < len(way); i++ {
			for _, imported := range g[way[i]].imports {
				broken := false
				for _, b := range w.bans {
					if g.matches(imported, b.imports) && !g.matches(imported, b.except...) {
						broken = true
						found = append(found, fmt.Sprintf("%s imports %s, but %s", from(start, way[i]), short(imported), b.because))
					}
				}
				// Beyond a broken wall everything would be reported once more.
				if w.deep && !broken && g.matches(imported, all) && !slices.Contains(way, imported) {
					way = append(way, imported)
				}
			}
		}
	}
	slices.Sort(found)
	return found
}

func from(start, at string) string {
	if start == at {
		return short(start)
	}
	return short(start) + ", by way of " + short(at) + ","
}

func short(path string) string { return strings.TrimPrefix(path, module+"/") }

func TestWalls(t *testing.T) {
	t.Parallel()
	g := load(t)
	for _, required := range []string{"webhook/api/v1alpha1", "webhook/internal/owner", "sidecar/wire", "sidecar/channel"} {
		if _, ok := g[module+"/"+required]; !ok {
			t.Errorf("%s is not there: it was moved, and walls that name it hold nothing any more", required)
		}
	}
	for name, w := range walls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, violation := range g.violations(w) {
				t.Error(violation)
			}
		})
	}
}

// load asks the go command for every package of the module and what it imports.
func load(t *testing.T) graph {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-e", "-deps", "-json=ImportPath,Imports,Standard", all)
	list.Dir = root(t)
	var stderr bytes.Buffer
	list.Stderr = &stderr
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	g := graph{}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var listed struct {
			ImportPath string
			Imports    []string
			Standard   bool
		}
		err := decoder.Decode(&listed)
		if errors.Is(err, io.EOF) {
			return g
		}
		if err != nil {
			t.Fatalf("reading what go list says: %v", err)
		}
		g[listed.ImportPath] = pkg{imports: listed.Imports, std: listed.Standard}
	}
}

// root returns the folder of the module's go.mod.
var root = func() func(*testing.T) string {
	find := sync.OnceValues(func() (string, error) {
		dir, err := os.Getwd()
		if err != nil {
			return "", err
		}
		for {
			if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
				return dir, nil
			}
			parent := filepath.Dir(dir)
			if parent == dir {
				return "", errors.New("no go.mod above the test's folder")
			}
			dir = parent
		}
	})
	return func(t *testing.T) string {
		t.Helper()
		dir, err := find()
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
}()

// The checker itself, on a graph that has one of each fault.
func TestViolations(t *testing.T) {
	t.Parallel()
	g := graph{
		"fmt":                    {std: true},
		"os/signal":              {std: true},
		"net/http":               {std: true},
		"example.com/lib":        {},
		module + "/core":         {imports: []string{"fmt", module + "/core/part"}},
		module + "/core/part":    {imports: []string{"os/signal"}},
		module + "/edge":         {imports: []string{"net/http", "example.com/lib", module + "/core"}},
		module + "/edge/lonely":  {imports: []string{"fmt"}},
		module + "/edgewise":     {imports: []string{"net/http"}},
		module + "/round":        {imports: []string{module + "/round/about"}},
		module + "/round/about":  {imports: []string{module + "/round", "os/signal"}},
		module + "/not/existing": {},
	}
	tests := map[string]struct {
		wall wall
		want []string
	}{
		"a wall that nothing breaks": {
			wall: wall{from: []string{"./core"}, bans: []ban{{imports: "net/http"}}},
		},
		"a wall of packages that do not exist": {
			wall: wall{from: []string{"./nowhere/..."}, bans: []ban{{imports: "..."}}},
		},
		"a direct import": {
			wall: wall{from: []string{"./edge"}, bans: []ban{{imports: "net/http", because: "it is the edge"}}},
			want: []string{"edge imports net/http, but it is the edge"},
		},
		"an import of a belay package is not looked through": {
			wall: wall{from: []string{"./core"}, bans: []ban{{imports: "os/..."}}},
		},
		"an import of a belay package is looked through when the wall is deep": {
			wall: wall{from: []string{"./core"}, deep: true, bans: []ban{{imports: "os/...", because: "it is pure"}}},
			want: []string{"core, by way of core/part, imports os/signal, but it is pure"},
		},
		"packages that import each other end": {
			wall: wall{from: []string{"./round"}, deep: true, bans: []ban{{imports: "os/signal", because: "it is pure"}}},
			want: []string{"round, by way of round/about, imports os/signal, but it is pure"},
		},
		"everything but the standard library and belay": {
			wall: wall{from: []string{"./edge/..."}, bans: []ban{{imports: "...", except: []string{std, all}, because: "it stands alone"}}},
			want: []string{"edge imports example.com/lib, but it stands alone"},
		},
		"belay packages but some": {
			wall: wall{from: []string{all}, except: []string{"./round/..."}, bans: []ban{{imports: all, except: []string{"./core/..."}, because: "only core"}}},
		},
		"a pattern ends at a slash": {
			wall: wall{from: []string{"./edge/..."}, except: []string{"./edge"}, bans: []ban{{imports: "net/..."}}},
		},
		"an import that breaks two rules is told twice, with either reason": {
			wall: wall{from: []string{"./edge"}, bans: []ban{{imports: "example.com/...", because: "not theirs"}, {imports: "...", except: []string{std, all}, because: "nobody's"}}},
			want: []string{"edge imports example.com/lib, but nobody's", "edge imports example.com/lib, but not theirs"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, g.violations(tc.wall)); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

// TestEveryBanHasAReason keeps the table honest: a reason is what tells the
// next reader whether a wall may move.
func TestEveryBanHasAReason(t *testing.T) {
	t.Parallel()
	for name, w := range walls {
		for _, b := range w.bans {
			if b.because == "" {
				t.Errorf("%s: %s is forbidden for no reason", name, b.imports)
			}
		}
	}
}

// topLevel is all that may stand at the top of the repository. Whatever is new
// has a place in one of these folders.
var topLevel = []string{
	".ci", ".dockerignore", ".editorconfig", ".gitignore", ".golangci.yaml",
	"CONTRIBUTING.md", "Dockerfile", "LICENSE", "Makefile", "README.md", "CHANGELOG.md", "SECURITY.md",
	"cmd", "go.mod", "go.sum", "hack", "manifests", "sidecar", "test", "webhook",
}

func TestTopLevel(t *testing.T) {
	t.Parallel()
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z")
	list.Dir = root(t)
	out, err := list.Output()
	if err != nil {
		t.Skipf("not a git work tree, so there is no telling what belongs to the repository: %v", err)
	}
	for _, name := range strayTopLevel(strings.Split(strings.TrimRight(string(out), "\x00"), "\x00")) {
		t.Errorf("%s: nothing else goes to the top level; see the layout in CONTRIBUTING.md", name)
	}
}

// strayTopLevel returns the first elements of paths that are not in topLevel.
func strayTopLevel(paths []string) []string {
	var stray []string
	for _, path := range paths {
		first, _, _ := strings.Cut(path, "/")
		if first != "" && !slices.Contains(topLevel, first) && !slices.Contains(stray, first) {
			stray = append(stray, first)
		}
	}
	return stray
}

func TestStrayTopLevel(t *testing.T) {
	t.Parallel()
	got := strayTopLevel([]string{"", "README.md", "CHANGELOG.md", "webhook/doc.go", ".ci/run", "util/a.go", "util/b.go", "main.go"})
	if diff := cmp.Diff([]string{"util", "main.go"}, got); diff != "" {
		t.Errorf("stray (-want +got):\n%s", diff)
	}
}
