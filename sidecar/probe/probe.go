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
	"net/url"
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
	// Detail is for the log. It is short, and has nothing in it that the server said.
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
	// No proxy: the kubelet's probes have none. Protocols are the kubelet's, too.
	protocols := new(http.Protocols)
	protocols.SetHTTP1(s.Probe.Kind != settings.KindGRPC)
	protocols.SetHTTP2(s.Probe.Kind == settings.KindHTTPS)
	protocols.SetUnencryptedHTTP2(s.Probe.Kind == settings.KindGRPC)
	return &Prober{
		spec: s.Probe, address: net.JoinHostPort(host, strconv.Itoa(s.Probe.Port)), headers: s.Headers, timeout: s.Timeout,
		http: &http.Transport{
			Protocols:         protocols,
			DisableKeepAlives: true, DisableCompression: true,
			TLSClientConfig:        &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // as the kubelet: a pod's own certificate is mostly for other names
			MaxResponseHeaderBytes: 64 << 10,
		},
	}
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
	return Result{Reason: reason(ctx, err), Detail: bounded(err.Error()), At: began}
}

// failure is an answer that means no.
type failure struct {
	reason string
	text   string
}

func (f failure) Error() string { return f.text }

// unreadable hides what a server said: errors about malformed answers repeat them, at length.
type unreadable struct{ err error }

func (u unreadable) Error() string {
	return "the request cannot be sent, or its answer cannot be read"
}

func (u unreadable) Unwrap() error { return u.err }

// maxDetail bounds a line of the log; the longest host names and paths are cut.
const maxDetail = 256

func bounded(text string) string {
	if len(text) <= maxDetail {
		return text
	}
	return strings.ToValidUTF8(text[:maxDetail], "") + "…"
}

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

// answer is as much of an HTTP response as was read.
type answer struct {
	status          int
	header, trailer http.Header
	body            []byte
}

// exchange makes one request over a connection of its own, and closes that whatever comes: a
// kept one would go on to an earlier run of the container, and one that http.Transport has to
// itself is dialled on after the time-out, and kept for as long as the server says nothing.
func (p *Prober) exchange(req *http.Request) (answer, error) {
	conn, err := p.http.NewClientConn(req.Context(), req.URL.Scheme, p.address)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = conn.Close() }()
	resp, err := conn.RoundTrip(req)
	if err != nil {
		return answer{}, conceal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody)) // some servers mind a client that leaves
	if err != nil {
		return answer{}, conceal(err)
	}
	return answer{status: resp.StatusCode, header: resp.Header, trailer: resp.Trailer, body: body}, nil
}

func conceal(err error) error {
	if ours := net.Error(nil); errors.As(err, &ours) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	return unreadable{err}
}

func (p *Prober) get(ctx context.Context) error {
	target, err := url.Parse(p.spec.Path)
	if err != nil {
		// As the kubelet: what is no path of a URL is escaped to be one.
		target = &url.URL{Path: p.spec.Path}
	}
	target.Scheme, target.Host = string(p.spec.Kind), p.address
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), http.NoBody)
	if err != nil {
		return err
	}
	for _, h := range p.headers {
		req.Header.Add(h.Name, h.Value)
	}
	// What the pod asks for takes the place of what is sent without it; empty is not sent.
	for name, standard := range map[string]string{"User-Agent": agent, "Accept": "*/*"} {
		if _, ok := req.Header[name]; !ok {
			req.Header.Set(name, standard)
		} else if name == "Accept" && req.Header.Get(name) == "" {
			req.Header.Del(name)
		}
	}
	if host := req.Header.Get("Host"); host != "" {
		req.Host = host
	}
	got, err := p.exchange(req)
	if err != nil {
		return err
	}
	if got.status < 200 || got.status >= 400 {
		return failure{ReasonStatus, fmt.Sprintf("the HTTP status is %d", got.status)}
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
	frame := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+p.address+"/grpc.health.v1.Health/Check", bytes.NewReader(frame))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	req.Header.Set("User-Agent", agent)
	got, err := p.exchange(req)
	if err != nil {
		return err
	}
	if got.status != http.StatusOK {
		return failure{ReasonStatus, fmt.Sprintf("the HTTP status is %d", got.status)}
	}
	if len(got.body) == maxBody {
		return errMessage // and the status behind it was not read
	}
	status := got.trailer.Get("Grpc-Status")
	if status == "" {
		status = got.header.Get("Grpc-Status") // an answer without a message
	}
	if status != "0" {
		return failure{ReasonStatus, fmt.Sprintf("the gRPC status is %.8q", status)}
	}
	state, err := healthStatus(got.body)
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

// never is earlier than any run of a container.
var never = time.UnixMilli(1)

// file finds when the ready file was written. A time to come says nothing of when that was: it
// stays ready, and vouches for no run.
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
		return never, nil
	}
	return info.ModTime(), nil
}
