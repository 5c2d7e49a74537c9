// Package probe asks a main container whether it is ready, as the kubelet would: by
// HTTP, HTTPS, TCP or gRPC's health protocol; or by a file that it writes.
package probe

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/belay-dev/belay/sidecar/settings"
)

// Reasons of results: CamelCase, as a condition takes them.
const (
	ReasonSucceeded = "ProbeSucceeded"
	// ReasonRefused: nothing listens there.
	ReasonRefused = "ConnectionRefused"
	// ReasonTimeout: no answer in time.
	ReasonTimeout = "ProbeTimeout"
	// ReasonStatus: an HTTP status below 200, or of 400 and above; or a gRPC status.
	ReasonStatus = "BadStatus"
	// ReasonNotServing: the health service says anything but SERVING.
	ReasonNotServing = "NotServing"
	// ReasonNoFile: the ready file is not there.
	ReasonNoFile = "NoReadyFile"
	// ReasonFailed is anything else.
	ReasonFailed = "ProbeFailed"
)

// Result is what one probe found.
type Result struct {
	OK     bool
	Reason string
	// Detail is for the log. It never has a header or a body in it.
	Detail string
	// At is when what was found was so: when the probe began, or when the file was written.
	At time.Time
}

// Prober probes one container.
type Prober struct {
	spec    settings.Probe
	address string
	headers []settings.Header
	timeout time.Duration
	http    *http.Transport
}

// agent is what the probed server sees.
const agent = "belay-sidecar/1"

// maxBody is how much of an answer is read, as the kubelet does: the rest says nothing.
const maxBody = 10 << 10

// New returns a prober of what the settings say.
func New(s settings.Settings) *Prober {
	host := s.Probe.Host
	if host == "" {
		host = s.PodIP
	}
	if host == "" {
		host = "localhost"
	}
	p := &Prober{spec: s.Probe, address: net.JoinHostPort(host, strconv.Itoa(s.Probe.Port)), headers: s.Headers, timeout: s.Timeout}
	// No proxy and no connection that is kept: the kubelet's probes have neither, and a
	// kept connection would go on to an earlier run of the container.
	p.http = &http.Transport{
		DisableKeepAlives: true, DisableCompression: true,
		TLSClientConfig:        &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // as the kubelet: a pod's own certificate is mostly for other names
		MaxResponseHeaderBytes: 64 << 10,
	}
	if s.Probe.Kind == settings.KindGRPC {
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(true)
		p.http.Protocols = protocols
		p.http.DisableKeepAlives = false // HTTP/2 knows it as closing after the request, which the health call does itself
	}
	return p
}

// Probe probes once.
func (p *Prober) Probe(ctx context.Context) Result {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	var err error
	at := began
	switch p.spec.Kind {
	case settings.KindHTTP, settings.KindHTTPS:
		err = p.get(ctx)
	case settings.KindTCP:
		err = p.connect(ctx)
	case settings.KindGRPC:
		err = p.health(ctx)
	case settings.KindFile:
		at, err = file(p.spec.Path, began)
	default:
		err = fmt.Errorf("there is no probe of kind %q", p.spec.Kind)
	}
	if err == nil {
		return Result{OK: true, Reason: ReasonSucceeded, At: at}
	}
	return Result{Reason: reason(ctx, err), Detail: err.Error(), At: began}
}

// failure is an answer that means no.
type failure struct {
	reason string
	text   string
}

func (f failure) Error() string { return f.text }

func reason(ctx context.Context, err error) string {
	var f failure
	var timeout net.Error
	switch {
	case errors.As(err, &f):
		return f.reason
	case errors.Is(err, syscall.ECONNREFUSED):
		return ReasonRefused
	case ctx.Err() != nil, errors.As(err, &timeout) && timeout.Timeout():
		return ReasonTimeout
	default:
		return ReasonFailed
	}
}

func (p *Prober) connect(ctx context.Context) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.address)
	if err != nil {
		return err
	}
	return conn.Close()
}

func (p *Prober) get(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, string(p.spec.Kind)+"://"+p.address+p.spec.Path, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", agent)
	req.Header.Set("Accept", "*/*")
	for _, h := range p.headers {
		if strings.EqualFold(h.Name, "Host") {
			req.Host = h.Value
			continue
		}
		req.Header[http.CanonicalHeaderKey(h.Name)] = append(req.Header[http.CanonicalHeaderKey(h.Name)], h.Value)
	}
	for _, name := range []string{"User-Agent", "Accept"} {
		// What the pod asks for takes the place of what is sent without it.
		if values := req.Header[name]; len(values) > 1 {
			req.Header[name] = values[1:]
		}
	}
	resp, err := p.http.RoundTrip(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.CopyN(io.Discard, resp.Body, maxBody) // some servers mind a client that leaves
	if resp.StatusCode < 200 || resp.StatusCode >= 400 {
		return failure{ReasonStatus, fmt.Sprintf("the HTTP status is %d", resp.StatusCode)}
	}
	return nil
}

// serving is HealthCheckResponse.SERVING of
// https://github.com/grpc/grpc/blob/master/doc/health-checking.md
const serving = 1

// health makes the unary call grpc.health.v1.Health/Check over HTTP/2: a message is one
// byte that says whether it is compressed, four of its length, and the protobuf.
func (p *Prober) health(ctx context.Context) error {
	message := []byte{}
	if p.spec.Path != "" {
		// Field 1, a string: HealthCheckRequest.service.
		message = append(append(message, 0x0a), binary.AppendUvarint(nil, uint64(len(p.spec.Path)))...)
		message = append(message, p.spec.Path...)
	}
	frame := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...) //nolint:gosec // bounded by the settings
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+p.address+"/grpc.health.v1.Health/Check", bytes.NewReader(frame))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	req.Header.Set("User-Agent", agent)
	defer p.http.CloseIdleConnections()
	resp, err := p.http.RoundTrip(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return failure{ReasonStatus, fmt.Sprintf("the HTTP status is %d", resp.StatusCode)}
	}
	status := resp.Trailer.Get("Grpc-Status")
	if status == "" {
		status = resp.Header.Get("Grpc-Status") // an answer without a message
	}
	if status != "0" {
		return failure{ReasonStatus, fmt.Sprintf("the gRPC status is %.8q", status)}
	}
	state, err := healthStatus(body)
	if err != nil {
		return err
	}
	if state != serving {
		return failure{ReasonNotServing, fmt.Sprintf("the health status is %d, and not %d, SERVING", state, serving)}
	}
	return nil
}

var errMessage = errors.New("the answer is no HealthCheckResponse")

// healthStatus reads field 1 of a HealthCheckResponse, and passes over others.
func healthStatus(body []byte) (uint64, error) {
	if len(body) < 5 || body[0] != 0 || uint64(binary.BigEndian.Uint32(body[1:5])) != uint64(len(body)-5) {
		return 0, errMessage
	}
	state := uint64(0)
	for rest := body[5:]; len(rest) > 0; {
		tag, n := binary.Uvarint(rest)
		if n <= 0 {
			return 0, errMessage
		}
		rest = rest[n:]
		skip := uint64(0)
		switch tag & 7 {
		case 0: // a varint
			v, n := binary.Uvarint(rest)
			if n <= 0 {
				return 0, errMessage
			}
			if tag>>3 == 1 {
				state = v
			}
			skip = uint64(n)
		case 1:
			skip = 8
		case 2: // bytes with their length before them
			v, n := binary.Uvarint(rest)
			if n <= 0 || v > maxBody {
				return 0, errMessage
			}
			skip = uint64(n) + v
		case 5:
			skip = 4
		default:
			return 0, errMessage
		}
		if skip > uint64(len(rest)) {
			return 0, errMessage
		}
		rest = rest[skip:]
	}
	return state, nil
}

// file finds when the ready file was written; a time to come is taken for now.
func file(path string, now time.Time) (time.Time, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return now, failure{ReasonNoFile, "there is no file " + path}
	case err != nil:
		return now, err
	case info.IsDir():
		return now, failure{ReasonNoFile, path + " is a folder"}
	case info.ModTime().After(now):
		return now, nil
	}
	return info.ModTime(), nil
}
