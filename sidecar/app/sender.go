package app

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/belay-dev/belay/sidecar/channel"
	"github.com/belay-dev/belay/sidecar/settings"
	"github.com/belay-dev/belay/sidecar/wire"
)

// Bounds of the files: a token has one or two kilobytes, a bundle of CAs a few.
const (
	maxToken = 16 << 10
	maxCA    = 1 << 20
)

// unauthorizedWait is how long to wait after a token was not accepted: as long as the collector
// keeps that verdict.
const unauthorizedWait = 10 * time.Second

// sender sends reports over one channel.
type sender struct {
	settings settings.Settings
	client   *channel.Client
}

// outcome is what became of a report.
type outcome struct {
	kind     eventKind
	sequence uint64
	interval time.Duration
	// outcome is what the collector says came of it, where it was delivered.
	outcome string
	err     error
}

func newSender(s settings.Settings) (*sender, error) {
	c, err := channel.New(channel.Config{TLS: func() (*tls.Config, error) { return trust(s) }, MaxAnswerBytes: wire.MaxAnswerBytes})
	if err != nil {
		return nil, err
	}
	return &sender{settings: s, client: c}, nil
}

func (s *sender) close() { s.client.Close() }

func (s *sender) rest() { s.client.Rest() }

// trust reads the CA that signs the collector's certificate.
func trust(s settings.Settings) (*tls.Config, error) {
	pem, err := read(s.CAFile, maxCA)
	if err != nil {
		return nil, fmt.Errorf("reading the collector's CA: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", s.CAFile)
	}
	return &tls.Config{RootCAs: roots, ServerName: s.ServerName, MinVersion: tls.VersionTLS12}, nil
}

// read reads a file up to a bound.
func read(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", path, limit)
	}
	return b, err
}

// send sends one report.
func (s *sender) send(ctx context.Context, r wire.Report) outcome {
	o := outcome{kind: failed, sequence: r.Sequence}
	req, err := s.request(ctx, r)
	if err != nil {
		o.err = err
		return o
	}
	answer, err := s.client.Do(req)
	if err != nil {
		o.err = err
		return o
	}
	o.err = fmt.Errorf("the collector answers %d %s", answer.Status, said(wire.DecodeRefusal(answer.Body), req.Header.Get("Authorization")))
	switch {
	case answer.Status == http.StatusOK:
		a, err := wire.DecodeAnswer(answer.Body)
		if err != nil {
			// Somebody answers who is no collector.
			o.err = err
			return o
		}
		o.kind, o.interval, o.err = delivered, a.Interval(), nil
		o.outcome = said(wire.Refusal{Reason: a.Outcome}, req.Header.Get("Authorization"))
	case answer.Status == http.StatusTooManyRequests || answer.Status == http.StatusServiceUnavailable:
		o.kind, o.interval = busy, retryAfter(answer.Header)
	case answer.Status == http.StatusUnauthorized:
		// It may be the token, which is renewed, or a moment's trouble of who looks at it.
		o.kind, o.interval = refused, unauthorizedWait
	case answer.Status >= 400 && answer.Status < 500:
		o.kind = refused
	}
	return o
}

func (s *sender) request(ctx context.Context, r wire.Report) (*http.Request, error) {
	body, err := wire.EncodeReport(r)
	if err != nil {
		return nil, err
	}
	// Each time: the kubelet puts a new one there long before the old one ends.
	token, err := read(s.settings.TokenFile, maxToken)
	if err != nil {
		return nil, fmt.Errorf("reading the token: %w", err)
	}
	bearer := strings.TrimSpace(string(token))
	if bearer == "" || strings.ContainsAny(bearer, " \r\n\t") {
		return nil, errors.New("the token file holds no token") // whose text is not repeated
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+s.settings.Collector+wire.Path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", wire.ContentType)
	req.Header.Set("Authorization", "Bearer "+bearer)
	req.Header.Set("User-Agent", "belay-sidecar/"+version)
	return req, nil
}

// maxSaid bounds what is logged of somebody else's text.
const maxSaid = 256

// said is what a refusal says, for the log: not more than a line, and nothing where it repeats
// the token, as an echo of the request would.
func said(why wire.Refusal, authorization string) string {
	text := why.Reason + " " + why.Message
	if _, token, _ := strings.Cut(authorization, " "); strings.Contains(text, token) {
		return "something that repeats the token"
	}
	return strings.TrimSpace(text[:min(len(text), maxSaid)])
}

// retryAfter reads a Retry-After in seconds, within bounds.
func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, time.Minute)
}
