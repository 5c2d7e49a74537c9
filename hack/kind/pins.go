package main

// What the node image is made of, beside what hack/controlplane pins. All of these are served
// by the Go module proxy.
const (
	kubernetesVersion = "v1.37.2"
	kindVersion       = "v0.33.0"
	containerdVersion = "v2.3.7"
	runcVersion       = "v1.4.3"
	crictlVersion     = "v1.37.0"
	cniVersion        = "v1.10.0"
	debianSuite       = "bookworm"

	// officialImage is what kind v0.33.0 takes by default.
	officialImage = "kindest/node:v1.37.0@sha256:a1ed56cfb0e7b93589bdf97c8cd566405a265939e3620fc4f5de89adff580ae5"
)

// debianPackages are what kind's own node image has of Debian, without NFS, iSCSI and FUSE.
var debianPackages = []string{
	"systemd", "systemd-sysv", "dbus", "conntrack", "iptables", "nftables", "iproute2", "ethtool", "util-linux", "mount",
	"kmod", "libseccomp2", "e2fsprogs", "bash", "ca-certificates", "curl", "jq", "procps", "ebtables", "socat",
}

// An installed is a command that "go install" builds.
type installed struct {
	pkg, version string
	tags         string
	ldflags      string
	cgo          bool
	dir          string // below the folder of binaries
}

func installs() []installed {
	const drivers = "no_btrfs no_devmapper no_zfs no_aufs"
	stamp := "-X github.com/containerd/containerd/v2/version.Version=" + containerdVersion
	out := []installed{
		{pkg: "sigs.k8s.io/kind", version: kindVersion},
		{pkg: "github.com/containerd/containerd/v2/cmd/containerd", version: containerdVersion, tags: drivers, ldflags: stamp},
		{pkg: "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", version: containerdVersion, tags: drivers, ldflags: stamp},
		{pkg: "github.com/containerd/containerd/v2/cmd/ctr", version: containerdVersion, tags: drivers, ldflags: stamp},
		{pkg: "sigs.k8s.io/cri-tools/cmd/crictl", version: crictlVersion, ldflags: "-X sigs.k8s.io/cri-tools/pkg/version.Version=" + crictlVersion},
		// Its start-up code is C, and so is libseccomp.
		{pkg: "github.com/opencontainers/runc", version: runcVersion, tags: "seccomp", ldflags: "-X main.version=" + runcVersion[1:], cgo: true},
	}
	for _, plugin := range []string{"ipam/host-local", "main/loopback", "main/ptp", "meta/portmap"} {
		out = append(out, installed{pkg: "github.com/containernetworking/plugins/plugins/" + plugin, version: cniVersion, dir: "cni"})
	}
	return out
}
