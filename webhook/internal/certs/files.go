package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"

	"github.com/belay-dev/belay/webhook/internal/metrics"
)

// filesEvery is how often files are read. Watching them saves nothing: two files of a few KiB
// take microseconds. And a watch is lost when the kubelet swaps the link that they are behind
// (case T03), and has nothing to hang on to while the folder is empty (T11).
const filesEvery = time.Second

// Files is the serving certificate in a folder that somebody else writes, such as cert-manager
// through a mounted Secret. The last pair that was good is served until the next one is.
type Files struct {
	// Dir has tls.crt and tls.key. It may be empty, and need not be there yet.
	Dir string
	Log logr.Logger

	served atomic.Pointer[tls.Certificate]
	// What follows is the loop's own.
	cert, key []byte
	told      string
}

// GetCertificate is the certificate that is served now.
func (f *Files) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := f.served.Load(); c != nil {
		return c, nil
	}
	return nil, ErrNone
}

// Start reads the files until the context ends.
func (f *Files) Start(ctx context.Context) error {
	tick := time.NewTicker(filesEvery)
	defer tick.Stop()
	for {
		f.read()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// read serves what the files have, when that is new and good.
func (f *Files) read() {
	cert, err := os.ReadFile(filepath.Join(f.Dir, corev1.TLSCertKey))
	key, errKey := os.ReadFile(filepath.Join(f.Dir, corev1.TLSPrivateKeyKey))
	if err := errors.Join(err, errKey); err != nil {
		reason := Unreadable
		if errors.Is(err, fs.ErrNotExist) {
			reason = Missing
		}
		f.fail(reason, err)
		return
	}
	if bytes.Equal(cert, f.cert) && bytes.Equal(key, f.key) {
		f.told = ""
		metrics.SetCertificateFault("")
		return
	}
	c, err := tls.X509KeyPair(cert, key)
	if err != nil {
		fault := faultOf(cert, key, err)
		f.fail(fault.Reason, fault)
		return
	}
	if c.Leaf == nil {
		if c.Leaf, err = x509.ParseCertificate(c.Certificate[0]); err != nil {
			f.fail(Unreadable, err)
			return
		}
	}
	f.served.Store(&c)
	f.cert, f.key, f.told = cert, key, ""
	metrics.SetCertificateFault("")
	measure(metrics.CertificateLeaf, c.Leaf, c.Leaf.NotAfter.Sub(c.Leaf.NotBefore))
	metrics.CertificateLoads.WithLabelValues(metrics.CertificateLoaded, "Read").Inc()
	f.Log.Info("certificate read", "folder", f.Dir, "expires", c.Leaf.NotAfter.Format(time.RFC3339), "fingerprint", Fingerprint(c.Leaf))
}

// fail counts and tells a failure, once as long as it stays the same.
func (f *Files) fail(reason FaultReason, err error) {
	metrics.SetCertificateFault(string(reason))
	if what := fmt.Sprint(reason, err); what != f.told {
		f.told = what
		metrics.CertificateLoads.WithLabelValues(metrics.CertificateFailed, string(reason)).Inc()
		f.Log.Error(err, "certificate not read", "folder", f.Dir, "reason", string(reason), "serving", f.served.Load() != nil)
	}
}
