package settings

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Kind is a way of probing.
type Kind string

const (
	// KindNone is nothing to probe; the kubelet's own verdict counts.
	KindNone Kind = "none"
	// KindExec is a command, which only the kubelet can run in the main container; its
	// verdict counts.
	KindExec Kind = "exec"
	// KindUnusable is a probe that names a port that the container does not have, which the
	// kubelet will fail on as well.
	KindUnusable Kind = "unusable"
	// KindHTTP succeeds on any status from 200 to 399. Redirects are not followed.
	KindHTTP Kind = "http"
	// KindHTTPS does, too. Certificates are not verified, as the kubelet does not.
	KindHTTPS Kind = "https"
	// KindTCP succeeds when a connection is accepted.
	KindTCP Kind = "tcp"
	// KindGRPC asks grpc.health.v1.Health, without TLS.
	KindGRPC Kind = "grpc"
	// KindFile succeeds while a file is there. What it says dates from when the file was
	// written: the main container writes, or touches, it each time it has started.
	KindFile Kind = "file"
)

// Probe is what to probe. Its text is one of
//
//	none | exec | unusable
//	http://[HOST]:PORT[/PATH] | https://[HOST]:PORT[/PATH]
//	tcp://[HOST]:PORT
//	grpc://[HOST]:PORT[/SERVICE]
//	file:///PATH
//
// Without a host it is the pod's own IP address, where the kubelet probes, too.
type Probe struct {
	Kind Kind
	Host string
	Port int
	// Path is that of http and of the file, and the name of the service of grpc.
	Path string
}

// Runs reports whether there is something that a sidecar can run.
func (p Probe) Runs() bool {
	switch p.Kind {
	case KindNone, KindExec, KindUnusable, "":
		return false
	default:
		return true
	}
}

func (p Probe) String() string {
	switch {
	case p.Kind == "":
		return string(KindNone)
	case !p.Runs():
		return string(p.Kind)
	case p.Kind == KindFile:
		return "file://" + p.Path
	}
	text := string(p.Kind) + "://" + net.JoinHostPort(p.Host, strconv.Itoa(p.Port))
	if p.Host == "" {
		text = fmt.Sprintf("%s://:%d", p.Kind, p.Port)
	}
	if p.Kind == KindGRPC && p.Path != "" {
		return text + "/" + p.Path
	}
	return text + p.Path
}

// maxSpec bounds the text of a probe: the path of a readinessProbe has no bound of its own.
const maxSpec = 2048

// Parse reads the text of a probe; empty is none.
func Parse(text string) (Probe, error) {
	if len(text) > maxSpec {
		return Probe{Kind: KindNone}, fmt.Errorf("it has %d bytes, at most %d are read", len(text), maxSpec)
	}
	switch kind := Kind(text); kind {
	case "", KindNone:
		return Probe{Kind: KindNone}, nil
	case KindExec, KindUnusable:
		return Probe{Kind: kind}, nil
	}
	wrong := func(why string) (Probe, error) {
		return Probe{Kind: KindNone}, fmt.Errorf("%.128q %s; it must be like http://:8080/healthz, https://:8443/, tcp://:5432, grpc://:9000/SERVICE, file:///PATH or none", text, why)
	}
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return wrong("has no scheme")
	}
	p := Probe{Kind: Kind(scheme)}
	if strings.ContainsFunc(rest, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return wrong("holds a control character")
	}
	switch p.Kind {
	case KindFile:
		if p.Path = rest; !strings.HasPrefix(rest, "/") || strings.HasSuffix(rest, "/") {
			return wrong("names no file by an absolute path")
		}
		return p, nil
	case KindHTTP, KindHTTPS, KindTCP, KindGRPC:
	default:
		return wrong("has an unknown scheme")
	}
	authority, path := rest, ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority, path = rest[:i], rest[i:]
	}
	host, port, err := net.SplitHostPort(authority)
	if err != nil {
		return wrong("names no port")
	}
	if p.Port, err = strconv.Atoi(port); err != nil || p.Port < 1 || p.Port > 65535 {
		return wrong("has a port that is not from 1 to 65535")
	}
	if strings.Contains(host, "@") {
		return wrong("has a user in its host")
	}
	p.Host = host
	switch p.Kind {
	case KindTCP:
		if path != "" && path != "/" {
			return wrong("has a path, which tcp has none of")
		}
	case KindGRPC:
		p.Path = strings.TrimPrefix(path, "/")
	default:
		if p.Path = path; path != "" && path[0] != '/' {
			p.Path = "/" + path
		}
	}
	return p, nil
}
