package archive

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func sum(content string) string {
	digest := sha256.Sum256([]byte(content))
	return hex.EncodeToString(digest[:])
}

func written(t *testing.T, images ...Image) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := Write(&out, images...); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("machine code"), 0o700); err != nil {
		t.Fatal(err)
	}
	tool := Image{
		Name:         "localhost:5000/tool:v1",
		Architecture: "arm64",
		Files: []File{
			{Path: "/usr/bin/tool", Source: program},
			{Path: "/usr/bin/alias", Link: "tool"},
			{Path: "/usr/bin/su", Content: []byte("x"), Mode: 0o755 | fs.ModeSetuid},
			{Path: "/etc/hosts", Content: []byte("127.0.0.1 localhost\n")},
			{Path: "/tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
			{Path: "/run", Mode: fs.ModeDir},
			{Path: "/etc/empty"},
		},
		Entrypoint: []string{"/usr/bin/tool"},
		Cmd:        []string{"--help"},
		Env:        []string{"PATH=/usr/bin"},
		User:       "65532:65532",
		WorkingDir: "/tmp",
		Labels:     map[string]string{"b": "2", "a": "1"},
	}
	bare := Image{Name: "example.com/bare:v2", Files: []File{{Path: "/x", Content: []byte("x")}}}
	got, err := Read(bytes.NewReader(written(t, tool, bare)))
	if err != nil {
		t.Fatal(err)
	}
	dir := Entry{Type: tar.TypeDir, Mode: 0o755}
	file := func(mode int64, content string) Entry {
		return Entry{Type: tar.TypeReg, Mode: mode, Size: int64(len(content)), SHA256: sum(content)}
	}
	want := []Contents{
		{
			Names:        []string{"localhost:5000/tool:v1"},
			Architecture: "arm64",
			OS:           "linux",
			Entrypoint:   []string{"/usr/bin/tool"},
			Cmd:          []string{"--help"},
			Env:          []string{"PATH=/usr/bin"},
			User:         "65532:65532",
			WorkingDir:   "/tmp",
			Labels:       map[string]string{"a": "1", "b": "2"},
			Files: map[string]Entry{
				"/usr":           dir,
				"/usr/bin":       dir,
				"/usr/bin/tool":  file(0o755, "machine code"),
				"/usr/bin/alias": {Type: tar.TypeSymlink, Mode: 0o777, Link: "tool"},
				"/usr/bin/su":    file(0o4755, "x"),
				"/etc":           dir,
				"/etc/hosts":     file(0o644, "127.0.0.1 localhost\n"),
				"/etc/empty":     file(0o644, ""),
				"/tmp":           {Type: tar.TypeDir, Mode: 0o1777},
				"/run":           dir,
			},
		},
		{
			Names:        []string{"example.com/bare:v2"},
			Architecture: runtime.GOARCH,
			OS:           "linux",
			Files:        map[string]Entry{"/x": file(0o644, "x")},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
}

// Time and owner on the host, and the order in which files are named, are
// nothing of the image's.
func TestTheSameImageIsTheSameBytes(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("machine code"), 0o755); err != nil {
		t.Fatal(err)
	}
	image := Image{
		Name:   "example.com/a:v1",
		Files:  []File{{Path: "/b", Source: program}, {Path: "/a/b", Content: []byte("b")}, {Path: "/c", Link: "b"}},
		Labels: map[string]string{"a": "1", "b": "2", "c": "3", "d": "4"},
	}
	first := written(t, image)
	long := time.Now().Add(-48 * time.Hour)
	if err := os.Chtimes(program, long, long); err != nil {
		t.Fatal(err)
	}
	image.Files = slices.Clone(image.Files)
	slices.Reverse(image.Files)
	image.Labels = maps.Clone(image.Labels)
	if !bytes.Equal(first, written(t, image)) {
		t.Error("the second archive differs")
	}
	if err := os.WriteFile(program, []byte("machine CODE"), 0o755); err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(first, written(t, image)) {
		t.Error("other contents gave the same archive")
	}
}

func TestSharedLayersAreWrittenOnce(t *testing.T) {
	t.Parallel()
	files := []File{{Path: "/x", Content: bytes.Repeat([]byte("x"), 100_000)}}
	one := Image{Name: "example.com/a:v1", Files: files}
	two := Image{Name: "example.com/b:v1", Files: files, User: "1:1"}
	both := written(t, one, two)
	if len(both) > 150_000 {
		t.Errorf("the archive of both has %d bytes", len(both))
	}
	got, err := Read(bytes.NewReader(both))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got[0].Files, got[1].Files); len(got) != 2 || diff != "" {
		t.Errorf("%d images, files differ:\n%s", len(got), diff)
	}
}

func TestTree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, mode := range map[string]fs.FileMode{"lib/a.so": 0o644, "lib/deep/b.so": 0o755} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(filepath.Base(name)), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("deep/b.so", filepath.Join(dir, "lib/b.so")); err != nil {
		t.Fatal(err)
	}
	files, err := Tree(dir, "/usr")
	if err != nil {
		t.Fatal(err)
	}
	got, err := Read(bytes.NewReader(written(t, Image{Name: "a:v1", Files: files})))
	if err != nil {
		t.Fatal(err)
	}
	folder := Entry{Type: tar.TypeDir, Mode: 0o755}
	want := map[string]Entry{
		"/usr":               folder,
		"/usr/lib":           folder,
		"/usr/lib/deep":      folder,
		"/usr/lib/a.so":      {Type: tar.TypeReg, Mode: 0o644, Size: 4, SHA256: sum("a.so")},
		"/usr/lib/deep/b.so": {Type: tar.TypeReg, Mode: 0o755, Size: 4, SHA256: sum("b.so")},
		"/usr/lib/b.so":      {Type: tar.TypeSymlink, Mode: 0o777, Link: "deep/b.so"},
	}
	if diff := cmp.Diff(want, got[0].Files); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	named := func(files ...File) Image { return Image{Name: "a:v1", Files: files} }
	tests := map[string]struct {
		image Image
		want  string
	}{
		"a name without a tag":              {Image{Name: "example.com/a"}, "needs a tag"},
		"a port is no tag":                  {Image{Name: "localhost:5000/a"}, "needs a tag"},
		"upper case in the repository":      {Image{Name: "example.com/A:v1"}, "lower case"},
		"a digest":                          {Image{Name: "a@sha256:0"}, "no tag and no repository"},
		"a relative path":                   {named(File{Path: "a"}), "not absolute"},
		"a path that climbs":                {named(File{Path: "/a/../b"}), "not absolute, clean"},
		"a path that is there twice":        {named(File{Path: "/a"}, File{Path: "/a"}), "twice"},
		"a file below a file":               {named(File{Path: "/a"}, File{Path: "/a/b/c"}), `below "/a"`},
		"two kinds of contents":             {named(File{Path: "/a", Link: "b", Content: []byte("c")}), "one kind"},
		"a folder with contents":            {named(File{Path: "/a", Mode: fs.ModeDir, Content: []byte("c")}), "one kind"},
		"a source that is not there":        {named(File{Path: "/a", Source: "/nonexistent/file"}), "no such file"},
		"a source that is no regular file":  {named(File{Path: "/a", Source: "/dev"}), "no regular file"},
		"an error names the file it is of":  {named(File{Path: "/a", Source: "/nonexistent/file"}), `file "/a"`},
		"an error names the image it is of": {named(File{Path: "a"}), `image "a:v1"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := Write(&bytes.Buffer{}, tc.image)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want something with %q", err, tc.want)
			}
		})
	}
}

// A failed write leaves neither half a file nor a temporary one.
func TestWriteFileLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "images.tar")
	if err := WriteFile(name, Image{Name: "a:v1", Files: []File{{Path: "/a", Content: []byte("a")}}}); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(name, Image{Name: "no tag"}); err == nil {
		t.Error("an image without a tag was written")
	}
	after, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, after) {
		t.Error("the file that was there is changed")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 {
		t.Errorf("the folder has %v", entries)
	}
}

// What engines write and Write does not: several layers, of which later ones
// take away from earlier ones, and links from one layer to another.
func TestReadLayers(t *testing.T) {
	t.Parallel()
	layer := func(names ...string) []byte {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		for _, name := range names {
			if err := w.WriteHeader(header(name, 0o644, 0)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	base, top := layer("a", "gone/x", "kept/x", "opaque/x"), layer("b", ".wh.gone", "opaque/.wh..wh..opq", "opaque/y")
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	put := func(head *tar.Header, content []byte) {
		if err := w.WriteHeader(head); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	config := `{"architecture":"amd64","os":"linux","rootfs":{"diff_ids":["sha256:` + sum(string(base)) + `","sha256:` + sum(string(top)) + `"]}}`
	manifest := `[{"Config":"c.json","RepoTags":["a:v1"],"Layers":["1/layer.tar","3/layer.tar"]}]`
	put(header("c.json", 0o644, int64(len(config))), []byte(config))
	put(header("1/layer.tar", 0o644, int64(len(base))), base)
	put(header("2/layer.tar", 0o644, int64(len(top))), top)
	put(&tar.Header{Typeflag: tar.TypeSymlink, Name: "3/layer.tar", Linkname: "../2/layer.tar"}, nil)
	put(header(manifestName, 0o644, int64(len(manifest))), []byte(manifest))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := Read(bytes.NewReader(out.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"/a", "/b", "/kept/x", "/opaque/y"}, slices.Sorted(maps.Keys(got[0].Files))); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}

	// A layer that is not what the configuration tells of is noticed.
	broken := bytes.Replace(out.Bytes(), []byte(sum(string(top))), []byte(sum("else")), 1)
	if _, err := Read(bytes.NewReader(broken)); err == nil || !strings.Contains(err.Error(), "digest") {
		t.Errorf("a wrong digest gave %v", err)
	}
}

func TestReadOfSomethingElse(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := tar.NewWriter(&out).Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(bytes.NewReader(out.Bytes())); err == nil || !strings.Contains(err.Error(), "no archive of images") {
		t.Errorf("an empty tar gave %v", err)
	}
}
