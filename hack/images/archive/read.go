package archive

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"strings"
)

// Contents is what Read finds out about one image: what decides how it runs,
// and nothing of when and with what it was built.
type Contents struct {
	Names        []string
	Architecture string
	OS           string
	Entrypoint   []string
	Cmd          []string
	Env          []string
	User         string
	WorkingDir   string
	Labels       map[string]string
	// Files are those of all layers together, by absolute path.
	Files map[string]Entry
}

// An Entry is one file of an image that was read.
type Entry struct {
	Type   byte  // of archive/tar
	Mode   int64 // permissions, setuid, setgid and sticky, as in tar
	UID    int
	GID    int
	Size   int64
	SHA256 string // of a regular file
	Link   string // the target of a link
}

// Read reads an archive that Write or an engine has written.
func Read(r io.ReadSeeker) ([]Contents, error) {
	manifest, err := readManifest(r)
	if err != nil {
		return nil, err
	}
	needed := map[string]bool{}
	for _, entry := range manifest {
		needed[entry.Config] = true
		for _, layer := range entry.Layers {
			needed[layer] = true
		}
	}
	parts, err := readParts(r, needed)
	if err != nil {
		return nil, err
	}
	var images []Contents
	for _, entry := range manifest {
		image, err := parts.contents(entry)
		if err != nil {
			return nil, fmt.Errorf("image %q: %w", entry.RepoTags, err)
		}
		images = append(images, image)
	}
	return images, nil
}

func readManifest(r io.ReadSeeker) ([]manifestEntry, error) {
	var manifest []manifestEntry
	err := eachEntry(r, func(head *tar.Header, content io.Reader) error {
		if path.Clean(head.Name) != manifestName {
			return nil
		}
		return json.NewDecoder(content).Decode(&manifest)
	})
	if err == nil && manifest == nil {
		err = errors.New("it has no " + manifestName + ", so it is no archive of images")
	}
	return manifest, err
}

// parts are the members of an archive by name.
type parts struct {
	configs map[string]config
	layers  map[string]map[string]Entry
	diffIDs map[string]string
}

// readParts reads the members that are needed. Some engines write a layer that
// two images share once, and a symbolic link for the second.
func readParts(r io.ReadSeeker, needed map[string]bool) (parts, error) {
	links := map[string]string{}
	err := eachEntry(r, func(head *tar.Header, _ io.Reader) error {
		if name := path.Clean(head.Name); head.Typeflag == tar.TypeSymlink && needed[name] {
			links[name] = path.Join(path.Dir(name), head.Linkname)
		}
		return nil
	})
	if err != nil {
		return parts{}, err
	}
	for _, target := range links {
		needed[target] = true
	}
	found := parts{configs: map[string]config{}, layers: map[string]map[string]Entry{}, diffIDs: map[string]string{}}
	err = eachEntry(r, func(head *tar.Header, content io.Reader) error {
		name := path.Clean(head.Name)
		if head.Typeflag != tar.TypeReg || !needed[name] {
			return nil
		}
		return found.read(name, content)
	})
	for name, target := range links {
		found.layers[name], found.diffIDs[name] = found.layers[target], found.diffIDs[target]
	}
	return found, err
}

// read tells a configuration from a layer by its first byte: names do not.
func (p parts) read(name string, content io.Reader) error {
	buffered := bufio.NewReader(content)
	start, err := buffered.Peek(2)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if start[0] == '{' {
		var c config
		if err := json.NewDecoder(buffered).Decode(&c); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		p.configs[name] = c
		return nil
	}
	content = buffered
	if bytes.Equal(start, []byte{0x1f, 0x8b}) {
		if content, err = gzip.NewReader(buffered); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	hash := sha256.New()
	content = io.TeeReader(content, hash)
	if p.layers[name], err = readLayer(content); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	// What stands behind the end of the tar is part of the digest as well.
	if _, err := io.Copy(io.Discard, content); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	p.diffIDs[name] = "sha256:" + hex.EncodeToString(hash.Sum(nil))
	return nil
}

func readLayer(r io.Reader) (map[string]Entry, error) {
	files := map[string]Entry{}
	for layer := tar.NewReader(r); ; {
		head, err := layer.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		entry := Entry{Type: head.Typeflag, Mode: head.Mode & 0o7777, UID: head.Uid, GID: head.Gid, Size: head.Size, Link: head.Linkname}
		if head.Typeflag == tar.TypeReg {
			hash := sha256.New()
			if _, err := io.Copy(hash, layer); err != nil {
				return nil, err
			}
			entry.SHA256 = hex.EncodeToString(hash.Sum(nil))
		}
		files[path.Join("/", head.Name)] = entry
	}
}

// contents puts an image together and checks that its layers are those that
// its configuration tells of.
func (p parts) contents(entry manifestEntry) (Contents, error) {
	c, ok := p.configs[entry.Config]
	if !ok {
		return Contents{}, fmt.Errorf("the configuration %q is missing", entry.Config)
	}
	if len(c.RootFS.DiffIDs) != len(entry.Layers) {
		return Contents{}, fmt.Errorf("it has %d layers, and its configuration tells of %d", len(entry.Layers), len(c.RootFS.DiffIDs))
	}
	files := map[string]Entry{}
	for i, name := range entry.Layers {
		layer, ok := p.layers[name]
		if !ok {
			return Contents{}, fmt.Errorf("the layer %q is missing", name)
		}
		if p.diffIDs[name] != c.RootFS.DiffIDs[i] {
			return Contents{}, fmt.Errorf("the layer %q has the digest %s, and its configuration tells of %s", name, p.diffIDs[name], c.RootFS.DiffIDs[i])
		}
		apply(files, layer)
	}
	return Contents{
		Names:        entry.RepoTags,
		Architecture: c.Architecture,
		OS:           c.OS,
		Entrypoint:   c.Config.Entrypoint,
		Cmd:          c.Config.Cmd,
		Env:          c.Config.Env,
		User:         c.Config.User,
		WorkingDir:   c.Config.WorkingDir,
		Labels:       c.Config.Labels,
		Files:        files,
	}, nil
}

// apply lays a layer over files. Names that begin with ".wh." take something of
// the layers below away.
func apply(files, layer map[string]Entry) {
	for name := range layer {
		gone, ok := strings.CutPrefix(path.Base(name), ".wh.")
		if !ok {
			continue
		}
		gone = path.Join(path.Dir(name), gone)
		opaque := path.Base(name) == ".wh..wh..opq"
		maps.DeleteFunc(files, func(below string, _ Entry) bool {
			if opaque {
				return strings.HasPrefix(below, path.Dir(name)+"/")
			}
			return below == gone || strings.HasPrefix(below, gone+"/")
		})
	}
	for name, entry := range layer {
		if !strings.HasPrefix(path.Base(name), ".wh.") {
			files[name] = entry
		}
	}
}

func eachEntry(r io.ReadSeeker, do func(*tar.Header, io.Reader) error) error {
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		return err
	}
	for archive := tar.NewReader(r); ; {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := do(head, archive); err != nil {
			return err
		}
	}
}
