// Package archive writes container images without a container engine, and reads
// those that engines save. The format is that of "docker save": a tar with a
// manifest.json, a configuration and the layers, which "docker load", "podman
// load", "ctr images import" and "kind load image-archive" take.
//
// What is written depends on the Image and the contents of its files alone: no
// clock, no owner and no time of a file on the host gets into it. So the same
// image is the same bytes, and an image that is there already is not loaded
// twice.
package archive

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// An Image is what Write makes an image of one layer from.
type Image struct {
	Name         string // with its tag: example.com/project/image:v1
	Architecture string // as in GOARCH, which is the default
	Files        []File

	Entrypoint []string
	Cmd        []string
	Env        []string // NAME=value
	User       string   // uid:gid; empty is root
	WorkingDir string
	Labels     map[string]string
}

// A File is one entry of the image's file system. It is owned by root, and the
// folders above it are made with mode 0755 where no File says otherwise.
type File struct {
	Path string // absolute
	// Mode has the permissions and, for a folder, fs.ModeDir; fs.ModeSetuid,
	// ModeSetgid and ModeSticky are kept. Permissions default to 0644 for
	// contents and to 0755 for folders and what Source tells to be executable.
	Mode fs.FileMode

	// At most one of these is set. Without any, a folder is a folder and
	// everything else an empty file.
	Source  string // a regular file on the host, read while writing
	Content []byte
	Link    string // the target of a symbolic link
}

// epoch is the time of everything.
var epoch = time.Unix(0, 0).UTC()

// Tree returns the files of the host's folder dir as the contents of the
// image's folder at: folders, regular files and symbolic links with their
// permissions, but not their owners and times. Anything else is an error.
func Tree(dir, at string) ([]File, error) {
	var files []File
	err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		file := File{Path: path.Join("/", at, filepath.ToSlash(below)), Mode: info.Mode()}
		switch info.Mode().Type() {
		case 0:
			file.Source = name
		case fs.ModeSymlink:
			if file.Link, err = os.Readlink(name); err != nil {
				return err
			}
		case fs.ModeDir:
			if file.Path == "/" {
				return nil
			}
		default:
			return fmt.Errorf("%s is neither a folder nor a file nor a symbolic link", name)
		}
		files = append(files, file)
		return nil
	})
	return files, err
}

// Write writes the images into one archive. The contents of files are read
// twice; when they change in between, Write fails.
func Write(w io.Writer, images ...Image) error {
	if len(images) == 0 {
		return errors.New("an archive needs at least one image")
	}
	archive := tar.NewWriter(w)
	written := map[string]bool{}
	var manifest []manifestEntry
	for _, image := range images {
		entry, err := write(archive, image, written)
		if err != nil {
			return fmt.Errorf("image %q: %w", image.Name, err)
		}
		manifest = append(manifest, entry)
	}
	content, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	if err := writeBlob(archive, manifestName, content); err != nil {
		return err
	}
	return archive.Close()
}

// WriteFile writes the images into the file name, which is not there before
// all of it is.
func WriteFile(name string, images ...Image) (err error) {
	file, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			file.Close()
			os.Remove(file.Name())
		}
	}()
	if err := Write(file, images...); err != nil {
		return err
	}
	if err := file.Chmod(0o644); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	return os.Rename(file.Name(), name)
}

const manifestName = "manifest.json"

type manifestEntry struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// config is the part of an image's configuration that is written and compared.
// The order of the fields is the order in the file, and so part of its digest.
type config struct {
	Architecture string    `json:"architecture"`
	OS           string    `json:"os"`
	Created      time.Time `json:"created"`
	Config       struct {
		User       string            `json:"User,omitempty"`
		Env        []string          `json:"Env,omitempty"`
		Entrypoint []string          `json:"Entrypoint,omitempty"`
		Cmd        []string          `json:"Cmd,omitempty"`
		WorkingDir string            `json:"WorkingDir,omitempty"`
		Labels     map[string]string `json:"Labels,omitempty"`
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
	History []history `json:"history"`
}

type history struct {
	Created   time.Time `json:"created"`
	CreatedBy string    `json:"created_by"`
}

func (i Image) config(diffID string) config {
	c := config{Architecture: cmp.Or(i.Architecture, runtime.GOARCH), OS: "linux", Created: epoch}
	c.Config.User = i.User
	c.Config.Env = i.Env
	c.Config.Entrypoint = i.Entrypoint
	c.Config.Cmd = i.Cmd
	c.Config.WorkingDir = i.WorkingDir
	c.Config.Labels = i.Labels
	c.RootFS.Type = "layers"
	c.RootFS.DiffIDs = []string{diffID}
	c.History = []history{{Created: epoch, CreatedBy: "files without a base image"}}
	return c
}

// write writes one image's layer and configuration, unless an image before had
// the same ones.
func write(archive *tar.Writer, image Image, written map[string]bool) (manifestEntry, error) {
	if err := checkName(image.Name); err != nil {
		return manifestEntry{}, err
	}
	entries, err := image.entries()
	if err != nil {
		return manifestEntry{}, err
	}
	measured := newMeter(io.Discard)
	if err := writeLayer(measured, entries); err != nil {
		return manifestEntry{}, err
	}
	content, err := json.Marshal(image.config("sha256:" + measured.digest()))
	if err != nil {
		return manifestEntry{}, err
	}
	digest := sha256.Sum256(content)
	entry := manifestEntry{
		Config:   hex.EncodeToString(digest[:]) + ".json",
		RepoTags: []string{image.Name},
		Layers:   []string{measured.digest() + "/layer.tar"},
	}
	if layer := entry.Layers[0]; !written[layer] {
		written[layer] = true
		if err := archive.WriteHeader(header(layer, 0o644, measured.size)); err != nil {
			return manifestEntry{}, err
		}
		again := newMeter(archive)
		if err := writeLayer(again, entries); err != nil {
			return manifestEntry{}, err
		}
		if again.digest() != measured.digest() {
			return manifestEntry{}, errors.New("a file changed while it was read; try again")
		}
	}
	if !written[entry.Config] {
		written[entry.Config] = true
		if err := writeBlob(archive, entry.Config, content); err != nil {
			return manifestEntry{}, err
		}
	}
	return entry, nil
}

func writeBlob(archive *tar.Writer, name string, content []byte) error {
	if err := archive.WriteHeader(header(name, 0o644, int64(len(content)))); err != nil {
		return err
	}
	_, err := archive.Write(content)
	return err
}

func header(name string, mode, size int64) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: size, ModTime: epoch}
}

// checkName refuses names that engines would refuse or complete with something
// that nobody asked for.
func checkName(name string) error {
	repository, tag, found := cutTag(name)
	switch {
	case !found || repository == "" || tag == "":
		return errors.New("the name needs a tag, as in example.com/image:v1")
	case strings.ToLower(repository) != repository:
		return errors.New("the name of a repository is in lower case")
	case strings.ContainsAny(name, " \t\n@"):
		return errors.New("the name has a character that no tag and no repository may have")
	}
	return nil
}

// cutTag parts repository and tag; a colon before the last slash is a port.
func cutTag(name string) (repository, tag string, found bool) {
	colon := strings.LastIndexByte(name, ':')
	if colon < 0 || colon < strings.LastIndexByte(name, '/') {
		return name, "", false
	}
	return name[:colon], name[colon+1:], true
}

// entries returns the image's files in the order of the layer, with the folders
// above them and every default filled in.
func (i Image) entries() ([]File, error) {
	byPath := map[string]File{}
	for _, file := range i.Files {
		file, err := file.complete()
		if err != nil {
			return nil, fmt.Errorf("file %q: %w", file.Path, err)
		}
		if _, ok := byPath[file.Path]; ok {
			return nil, fmt.Errorf("file %q is there twice", file.Path)
		}
		byPath[file.Path] = file
	}
	for _, file := range i.Files {
		for dir := path.Dir(file.Path); dir != "/"; dir = path.Dir(dir) {
			above, ok := byPath[dir]
			if ok && !above.Mode.IsDir() {
				return nil, fmt.Errorf("file %q is below %q, which is no folder", file.Path, dir)
			}
			if !ok {
				byPath[dir] = File{Path: dir, Mode: fs.ModeDir | 0o755}
			}
		}
	}
	entries := make([]File, 0, len(byPath))
	for _, file := range byPath {
		entries = append(entries, file)
	}
	// A folder sorts before what is in it.
	slices.SortFunc(entries, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return entries, nil
}

// complete checks a file and fills in its permissions.
func (f File) complete() (File, error) {
	if !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || f.Path == "/" {
		return f, errors.New("the path is not absolute, clean and below /")
	}
	set := 0
	for _, is := range []bool{f.Source != "", f.Content != nil, f.Link != ""} {
		if is {
			set++
		}
	}
	if set > 1 || f.Mode.IsDir() && set > 0 {
		return f, errors.New("it can be a folder, a link, or have one kind of contents")
	}
	if f.Source != "" {
		info, err := os.Stat(f.Source)
		if err != nil {
			return f, err
		}
		if !info.Mode().IsRegular() {
			return f, fmt.Errorf("%s is no regular file", f.Source)
		}
		if f.Mode.Perm() == 0 && info.Mode()&0o111 != 0 {
			f.Mode |= 0o755
		}
	}
	switch {
	case f.Link != "":
		f.Mode = fs.ModeSymlink | 0o777
	case f.Mode.Perm() == 0 && f.Mode.IsDir():
		f.Mode |= 0o755
	case f.Mode.Perm() == 0:
		f.Mode |= 0o644
	}
	return f, nil
}

// tarMode gives the mode as tar has it, without the type.
func tarMode(mode fs.FileMode) int64 {
	bits := int64(mode.Perm())
	for flag, bit := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if mode&flag != 0 {
			bits |= bit
		}
	}
	return bits
}

func writeLayer(w io.Writer, entries []File) error {
	layer := tar.NewWriter(w)
	for _, file := range entries {
		if err := file.write(layer); err != nil {
			return fmt.Errorf("file %q: %w", file.Path, err)
		}
	}
	return layer.Close()
}

func (f File) write(layer *tar.Writer) error {
	head := header(strings.TrimPrefix(f.Path, "/"), tarMode(f.Mode), int64(len(f.Content)))
	var content io.Reader = bytes.NewReader(f.Content)
	switch {
	case f.Link != "":
		head.Typeflag, head.Linkname = tar.TypeSymlink, f.Link
	case f.Mode.IsDir():
		head.Typeflag, head.Name = tar.TypeDir, head.Name+"/"
	case f.Source != "":
		file, err := os.Open(f.Source)
		if err != nil {
			return err
		}
		defer file.Close()
		info, err := file.Stat()
		if err != nil {
			return err
		}
		head.Size, content = info.Size(), file
	}
	if err := layer.WriteHeader(head); err != nil {
		return err
	}
	_, err := io.CopyN(layer, content, head.Size)
	return err
}

// A meter counts and digests what goes through it.
type meter struct {
	w    io.Writer
	size int64
	hash interface{ Sum([]byte) []byte }
}

func newMeter(w io.Writer) *meter {
	hash := sha256.New()
	return &meter{w: io.MultiWriter(hash, w), hash: hash}
}

func (m *meter) Write(p []byte) (int, error) {
	n, err := m.w.Write(p)
	m.size += int64(n)
	return n, err
}

func (m *meter) digest() string { return hex.EncodeToString(m.hash.Sum(nil)) }
