package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/belay-dev/belay/hack/images/archive"
)

// binarySources are what the binaries are made of, nodeSources the rest of the node image.
var (
	binarySources = []string{"pins.go", "coredns", "pause"}
	nodeSources   = []string{"node", "image.go"}
)

func (k *kind) files() fs.FS { return os.DirFS(filepath.Join(k.root, "hack/kind")) }

// key is of all that is made from sources; Debian's packages are as they are on the day.
func (k *kind) key(ctx context.Context, sources ...string) (string, error) {
	goVersion, err := k.tools.output(ctx, call{name: "go", args: []string{"env", "GOVERSION"}, env: []string{"GOTOOLCHAIN=local"}})
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintln(h, goVersion, runtime.GOARCH)
	for _, from := range sources {
		err := fs.WalkDir(k.files(), from, func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			content, err := fs.ReadFile(k.files(), name)
			fmt.Fprintf(h, "%s %d\n%s", name, len(content), content)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	pins, err := filepath.Glob(filepath.Join(k.root, "hack/controlplane/pins", "*-"+kubernetesVersion, "mod.txt"))
	if err != nil {
		return "", err
	}
	slices.Sort(pins)
	for _, name := range pins {
		content, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		h.Write(content)
	}
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}

// binaryDir is the folder that they are in, or will be.
func (k *kind) binaryDir(ctx context.Context) (string, error) {
	key, err := k.key(ctx, binarySources...)
	return filepath.Join(k.cache, "bin-"+key), err
}

// buildNode makes the image.
func (k *kind) buildNode(ctx context.Context, image string) error {
	if os.Geteuid() != 0 {
		return errors.New("building a node image takes root, for its files' owners")
	}
	for command, packages := range map[string][]string{"debootstrap": {"debootstrap"}, "gcc": {"gcc", "libc6-dev"}, "pkg-config": {"pkg-config"}, "jq": {"jq"}} {
		if err := k.install(ctx, command, packages...); err != nil {
			return err
		}
	}
	if err := k.tools.run(ctx, call{name: "pkg-config", args: []string{"--exists", "libseccomp"}}); err != nil {
		if err := k.install(ctx, "libseccomp is no command", "libseccomp-dev"); err != nil {
			return err
		}
	}
	// Most of the work is the compiler's, but for debootstrap's.
	rootfs := make(chan error, 1)
	root := filepath.Join(k.cache, "rootfs-"+debianSuite+"-"+sum(debianPackages))
	go func() { rootfs <- k.rootfs(ctx, root) }()
	bin, err := k.binaryDir(ctx)
	if err == nil {
		err = k.binaries(ctx, bin)
	}
	if err := errors.Join(err, <-rootfs); err != nil {
		return err
	}
	work, err := os.MkdirTemp(k.cache, ".node-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	images := filepath.Join(work, "images.tar")
	var pause string
	if err := k.tools.step("images of the control plane", func() error {
		pause, err = k.controlPlaneImages(ctx, bin, root, images)
		return err
	}); err != nil {
		return err
	}
	if err := k.tools.step("assembling the node image", func() error { return k.assemble(ctx, image, bin, root, work, pause) }); err != nil {
		return err
	}
	k.forget(ctx, image, bin, root)
	return nil
}

// forget removes what other node images were made of, and those that no node uses.
func (k *kind) forget(ctx context.Context, image string, keep ...string) {
	for _, pattern := range []string{"bin-*", "rootfs-*"} {
		found, _ := filepath.Glob(filepath.Join(k.cache, pattern)) // the pattern is a valid one
		for _, dir := range found {
			if !slices.Contains(keep, dir) {
				_ = os.RemoveAll(dir)
			}
		}
	}
	others, _ := k.tools.output(ctx, call{name: "docker", args: []string{"image", "ls", "--format", "{{.Repository}}:{{.Tag}}", "kindest/node"}})
	for _, other := range strings.Fields(others) {
		if strings.Contains(other, "-belay-") && other != image {
			_ = k.tools.run(ctx, call{name: "docker", args: []string{"image", "rm", other}})
		}
	}
}

func sum(words []string) string {
	h := sha256.Sum256([]byte(strings.Join(words, " ")))
	return hex.EncodeToString(h[:])[:8]
}

// binaries builds what nodes run into dir. Compiled packages are in Go's own cache, so that a
// second time only links.
func (k *kind) binaries(ctx context.Context, dir string) error {
	if exists(dir) {
		k.made = "a node image built now, of binaries that were here"
		return nil
	}
	start := time.Now()
	defer func() {
		k.made = fmt.Sprintf("a node image built now, its binaries in %.0f s", time.Since(start).Seconds())
	}()
	tmp, err := os.MkdirTemp(k.cache, ".bin-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := os.Mkdir(filepath.Join(tmp, "cni"), 0o755); err != nil {
		return err
	}
	var built string
	if err := k.tools.step("Kubernetes "+kubernetesVersion+" from its module (12 minutes on two cores the first time)", func() error {
		kube := call{name: "go", loud: true, args: []string{"run", ".", "node", "--version", kubernetesVersion}, dir: filepath.Join(k.root, "hack/controlplane"), env: []string{"KUBEBUILDER_ASSETS="}}
		built, err = k.tools.output(ctx, kube)
		return err
	}); err != nil {
		return err
	}
	for _, file := range strings.Fields(built) {
		if err := k.tools.run(ctx, call{name: "cp", args: []string{file, tmp + "/"}}); err != nil {
			return err
		}
	}
	const flags = "GOFLAGS=-trimpath -buildvcs=false"
	for _, i := range installs() {
		name := i.pkg[strings.LastIndex(i.pkg, "/")+1:]
		cgo := "CGO_ENABLED=0"
		if i.cgo {
			cgo = "CGO_ENABLED=1"
		}
		args := []string{"install", "-ldflags", strings.TrimSpace("-s -w " + i.ldflags)}
		if i.tags != "" {
			args = append(args, "-tags", i.tags)
		}
		args = append(args, i.pkg+"@"+i.version)
		if err := k.tools.step(name+" "+i.version, func() error {
			return k.tools.run(ctx, call{name: "go", args: args, dir: tmp, env: []string{flags, cgo, "GOWORK=off", "GOBIN=" + filepath.Join(tmp, i.dir)}})
		}); err != nil {
			return err
		}
	}
	for _, own := range []struct{ name, dir string }{{"coredns", "hack/kind/coredns"}, {"pause", "hack/kind/pause"}} {
		if err := k.tools.step(own.name, func() error {
			return k.tools.run(ctx, call{
				name: "go", args: []string{"build", "-ldflags", "-s -w", "-o", filepath.Join(tmp, own.name), "."}, dir: filepath.Join(k.root, own.dir),
				env: []string{flags + " -mod=readonly", "CGO_ENABLED=0", "GOWORK=off"},
			})
		}); err != nil {
			return err
		}
	}
	return os.Rename(tmp, dir)
}

// rootfs makes a root file system of Debian.
func (k *kind) rootfs(ctx context.Context, dir string) error {
	if exists(dir) {
		return nil
	}
	return k.tools.step("Debian "+debianSuite+" (debootstrap)", func() error {
		tmp, err := os.MkdirTemp(k.cache, ".rootfs-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(tmp)
		if err := os.Chmod(tmp, 0o755); err != nil {
			return err
		}
		args := []string{"--variant=minbase", "--include=" + strings.Join(debianPackages, ","), debianSuite, tmp}
		if mirror := debianMirror(); mirror != "" {
			args = append(args, mirror)
		}
		if err := k.tools.run(ctx, call{name: "debootstrap", args: args}); err != nil {
			return err
		}
		return os.Rename(tmp, dir)
	})
}

// debianMirror is where this machine's own packages come from, if it is Debian; "" is
// debootstrap's default.
func debianMirror() string {
	for _, name := range []string{"/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"} {
		content, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		for _, word := range strings.Fields(string(content)) {
			if url := strings.TrimSuffix(word, "/"); strings.HasPrefix(url, "http") && strings.HasSuffix(url, "/debian") {
				return url
			}
		}
	}
	return ""
}

// controlPlaneImages writes the images that kubeadm wants into one archive, and returns what
// it calls pause.
func (k *kind) controlPlaneImages(ctx context.Context, bin, root, to string) (string, error) {
	list, err := k.tools.output(ctx, call{name: filepath.Join(bin, "kubeadm"), args: []string{"config", "images", "list", "--kubernetes-version", kubernetesVersion}})
	if err != nil {
		return "", err
	}
	named := map[string]string{}
	for _, image := range strings.Fields(list) {
		base := image[strings.LastIndex(image, "/")+1:]
		named[base[:strings.LastIndex(base, ":")]] = image
	}
	var images []archive.Image
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd", "coredns", "pause", "kube-proxy"} {
		if named[name] == "" {
			return "", fmt.Errorf("kubeadm %s does not name an image for %s: %s", kubernetesVersion, name, list)
		}
		at := "/usr/local/bin/" + name
		image := archive.Image{
			Name: named[name], Entrypoint: []string{at},
			Files: []archive.File{{Path: at, Source: filepath.Join(bin, name), Mode: 0o755}, {Path: "/tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777}},
		}
		if name == "kube-proxy" {
			files, err := k.netfilter(ctx, root)
			if err != nil {
				return "", err
			}
			image.Files = append(image.Files, files...)
			image.Env = []string{"PATH=/usr/sbin:/usr/local/bin"}
		}
		images = append(images, image)
	}
	return named["pause"], archive.WriteFile(to, images...)
}

// netfilter is what kube-proxy calls, with the libraries that the tools and iptables' plug-ins
// link: a plug-in whose library is missing fails only when a rule needs it.
func (k *kind) netfilter(ctx context.Context, root string) ([]archive.File, error) {
	var files []archive.File
	linked := []string{"/usr/sbin/xtables-nft-multi", "/usr/sbin/nft", "/usr/sbin/conntrack"}
	for _, tool := range linked {
		files = append(files, archive.File{Path: tool, Source: filepath.Join(root, tool), Mode: 0o755})
	}
	plugins, err := filepath.Glob(filepath.Join(root, "usr/lib/*/xtables/*.so"))
	if err != nil || len(plugins) == 0 {
		return nil, errors.Join(err, errors.New("no plug-ins of iptables in the root file system"))
	}
	for _, plugin := range plugins {
		info, err := os.Lstat(plugin)
		if err != nil {
			return nil, err
		}
		at := strings.TrimPrefix(plugin, root)
		if info.Mode()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(plugin)
			if err != nil {
				return nil, err
			}
			files = append(files, archive.File{Path: at, Link: target})
			continue
		}
		files = append(files, archive.File{Path: at, Source: plugin, Mode: 0o644})
		linked = append(linked, at)
	}
	said, err := k.tools.output(ctx, call{name: "chroot", args: append([]string{root, "ldd"}, linked...)})
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for line := range strings.Lines(said) {
		for _, word := range strings.Fields(line) {
			if !strings.HasPrefix(word, "/") || strings.HasSuffix(word, ":") || seen[word] {
				continue
			}
			seen[word] = true
			resolved, err := k.tools.output(ctx, call{name: "chroot", args: []string{root, "readlink", "-f", word}})
			if err != nil {
				return nil, err
			}
			files = append(files, archive.File{Path: word, Source: filepath.Join(root, resolved), Mode: 0o755})
		}
	}
	for _, name := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"} {
		files = append(files, archive.File{Path: "/usr/sbin/" + name, Link: "xtables-nft-multi"})
	}
	if exists(filepath.Join(root, "etc/protocols")) {
		files = append(files, archive.File{Path: "/etc/protocols", Source: filepath.Join(root, "etc/protocols"), Mode: 0o644})
	}
	return files, nil
}

// kindFiles are the files of kind's module that a node needs.
var kindFiles = []string{
	"etc/crictl.yaml", "etc/sysctl.d/10-network-magic.conf", "etc/sysctl.d/10-network-security.conf",
	"etc/systemd/system/containerd.service", "etc/systemd/system/kubelet.service", "etc/systemd/system/kubelet.slice",
	"etc/systemd/system/kubelet.service.d/10-kubeadm.conf", "etc/systemd/system/kubelet.service.d/11-kind.conf",
	"etc/systemd/system/undo-mount-hacks.service", "kind/bin/undo-mount-hacks.sh", "kind/bin/create-kubelet-cgroup-v2.sh",
	"usr/local/bin/entrypoint",
}

// assemble makes the node image: the files, and the control plane's images in the store of the
// containerd that will run there.
func (k *kind) assemble(ctx context.Context, image, bin, root, work, pause string) error {
	node := filepath.Join(work, "root")
	if err := k.tools.run(ctx, call{name: "cp", args: []string{"-a", root, node}}); err != nil {
		return err
	}
	if err := k.furnish(ctx, node, bin, pause); err != nil {
		return err
	}
	base := "belay-node-base:" + filepath.Base(work)[1:]
	tar, err := k.tools.command(ctx, call{name: "tar", args: []string{"-C", node, "--numeric-owner", "-c", "."}})
	if err != nil {
		return err
	}
	pipe, err := tar.StdoutPipe()
	if err != nil {
		return err
	}
	if err := tar.Start(); err != nil {
		return err
	}
	err = k.tools.run(ctx, call{name: "docker", args: []string{"import", "-c", "ENV container=docker", "-c", `ENTRYPOINT ["/usr/local/bin/entrypoint","/sbin/init"]`, "-", base}, stdin: pipe})
	if err := errors.Join(err, tar.Wait()); err != nil {
		return err
	}
	container := filepath.Base(work)[1:]
	defer func() {
		ctx := context.WithoutCancel(ctx)
		_ = k.tools.run(ctx, call{name: "docker", args: []string{"rm", "--force", container}})
		_ = k.tools.run(ctx, call{name: "docker", args: []string{"image", "rm", "--no-prune", base}})
	}()
	const load = `set -e
containerd >/tmp/containerd.log 2>&1 & 
for i in $(seq 100); do ctr version >/dev/null 2>&1 && break; sleep 0.2; done
ctr -n k8s.io images import --label=io.cri-containerd.pinned=pinned --no-unpack --digests /images/images.tar
kill %1; wait %1 || true
rm -rf /tmp/containerd.log /run/containerd`
	if err := k.tools.run(ctx, call{name: "docker", args: []string{
		"run", "--name", container, "--network", "none", "--privileged", "--security-opt", "seccomp=unconfined",
		"--volume", work + ":/images:ro", "--entrypoint", "bash", base, "-c", load,
	}}); err != nil {
		return err
	}
	return k.tools.run(ctx, call{name: "docker", args: []string{"commit", "--change", `ENTRYPOINT ["/usr/local/bin/entrypoint","/sbin/init"]`, container, image}})
}

// furnish turns Debian into a node, with the clean-up that kind's own image has.
func (k *kind) furnish(ctx context.Context, node, bin, pause string) error {
	in := func(name string) string { return filepath.Join(node, name) }
	for _, pattern := range []string{
		"lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service", "lib/systemd/system/multi-user.target.wants/*",
		"etc/systemd/system/*.wants/*", "lib/systemd/system/local-fs.target.wants/*", "lib/systemd/system/sockets.target.wants/*udev*",
		"lib/systemd/system/sockets.target.wants/*initctl*", "lib/systemd/system/basic.target.wants/*",
		"var/cache/apt/*", "var/lib/apt/lists/*", "usr/share/doc", "usr/share/man", "usr/share/locale", "var/log/*.log", "etc/apt/sources.list",
	} {
		found, err := filepath.Glob(in(pattern))
		if err != nil {
			return err
		}
		for _, name := range found {
			if err := os.RemoveAll(name); err != nil {
				return err
			}
		}
	}
	for _, dir := range []string{"kind/manifests", "kind/bin", "opt/cni/bin", "etc/kubernetes/manifests", "etc/containerd", "LICENSES", "etc/systemd/system/multi-user.target.wants"} {
		if err := os.MkdirAll(in(dir), 0o755); err != nil {
			return err
		}
	}
	said, err := k.tools.output(ctx, call{name: "go", args: []string{"mod", "download", "-json", "sigs.k8s.io/kind@" + kindVersion}, dir: k.cache})
	if err != nil {
		return err
	}
	var module struct{ Dir string }
	if err := json.Unmarshal([]byte(said), &module); err != nil {
		return fmt.Errorf("reading where kind's module is: %w", err)
	}
	executable := func(name string) fs.FileMode {
		if strings.HasPrefix(name, "kind/bin/") || strings.HasSuffix(name, "/entrypoint") {
			return 0o755
		}
		return 0o644
	}
	for _, name := range kindFiles {
		content, err := os.ReadFile(filepath.Join(module.Dir, "images/base/files", name))
		if err != nil {
			return err
		}
		if err := write(in(name), content, executable(name)); err != nil {
			return err
		}
	}
	err = fs.WalkDir(k.files(), "node", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(k.files(), name)
		if err != nil {
			return err
		}
		name = strings.TrimPrefix(name, "node/")
		return write(in(name), []byte(strings.ReplaceAll(string(content), "@PAUSE@", pause)), executable(name))
	})
	if err != nil {
		return err
	}
	for to, names := range map[string][]string{
		"usr/local/bin": {"containerd", "containerd-shim-runc-v2", "ctr", "crictl"}, "usr/local/sbin": {"runc"},
		"usr/bin": {"kubelet", "kubeadm", "kubectl"}, "opt/cni/bin": {"cni/host-local", "cni/loopback", "cni/ptp", "cni/portmap"},
	} {
		for _, name := range names {
			if err := k.tools.run(ctx, call{name: "install", args: []string{"-m755", filepath.Join(bin, name), in(to) + "/"}}); err != nil {
				return err
			}
		}
	}
	if err := k.baseSpec(ctx, bin, in("etc/containerd/cri-base.json")); err != nil {
		return err
	}
	if err := write(in("kind/version"), []byte(kubernetesVersion), 0o644); err != nil {
		return err
	}
	for _, unit := range []string{"kubelet", "containerd", "undo-mount-hacks", "node-cni"} {
		if err := os.Symlink("/etc/systemd/system/"+unit+".service", in("etc/systemd/system/multi-user.target.wants/"+unit+".service")); err != nil {
			return err
		}
	}
	if err := os.Symlink("/dev/null", in("etc/systemd/system/systemd-binfmt.service")); err != nil {
		return err
	}
	journal, err := os.OpenFile(in("etc/systemd/journald.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = journal.WriteString("ReadKMsg=no\n")
	return errors.Join(err, journal.Close())
}

// baseSpec is what every container starts from: the default, without limits that only
// CAP_SYS_RESOURCE could raise.
func (k *kind) baseSpec(ctx context.Context, bin, to string) error {
	said, err := k.tools.output(ctx, call{name: filepath.Join(bin, "ctr"), args: []string{"oci", "spec"}})
	if err != nil {
		return err
	}
	var spec map[string]any
	if err := json.Unmarshal([]byte(said), &spec); err != nil {
		return fmt.Errorf("reading containerd's default: %w", err)
	}
	process, ok := spec["process"].(map[string]any)
	if !ok {
		return errors.New("containerd's default has no process")
	}
	delete(process, "rlimits")
	content, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return write(to, content, 0o644)
}

func write(name string, content []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(name, content, mode); err != nil {
		return err
	}
	return os.Chmod(name, mode)
}
