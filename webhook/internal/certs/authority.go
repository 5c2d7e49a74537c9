package certs

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"slices"
	"time"
)

// Authority is a CA with its key.
type Authority struct {
	Cert *x509.Certificate

	key             crypto.Signer
	certPEM, keyPEM []byte
}

// commonName is that of every CA; they differ in their keys.
const commonName = "belay-webhook-ca"

const (
	typeCertificate = "CERTIFICATE"
	typeKey         = "PRIVATE KEY"
)

// NewAuthority makes a CA. It is valid since the CA that it is to follow, if there is one and
// that is longer ago: by a clock that is ahead for a moment, a CA would be made that nobody else
// takes before that time has come.
func NewAuthority(now time.Time, life time.Duration, follows *Authority) (*Authority, error) {
	since := now.Add(-backdated)
	if follows != nil {
		since = earlier(since, follows.Cert.NotBefore)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the key of a CA: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: commonName},
		NotBefore: since, NotAfter: now.Add(life),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing a CA: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding the key of a CA: %w", err)
	}
	return parseAuthority(encode(der), pem.EncodeToMemory(&pem.Block{Type: typeKey, Bytes: keyDER}))
}

func newSerial() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("making a serial number: %w", err)
	}
	return n, nil
}

// encode is a certificate as PEM.
func encode(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: typeCertificate, Bytes: der})
}

// parseAuthority reads a CA and its key.
func parseAuthority(certPEM, keyPEM []byte) (*Authority, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, faultOf(certPEM, keyPEM, err)
	}
	cert, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return nil, &Fault{Unreadable, err.Error()}
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, &Fault{Unreadable, "the key cannot sign"}
	}
	if !cert.IsCA || cert.KeyUsage != 0 && cert.KeyUsage&x509.KeyUsageCertSign == 0 {
		return nil, &Fault{NotCA, "the certificate is not that of a CA"}
	}
	return &Authority{Cert: cert, key: key, certPEM: bytes.Clone(certPEM), keyPEM: bytes.Clone(keyPEM)}, nil
}

// Leaf makes a serving certificate, valid as long as its CA at most.
//
// It is valid from when its CA is: that is a year at least before the CA was made, and a replica
// whose clock has jumped ahead does not make one that nobody else takes yet.
func (a *Authority) Leaf(now time.Time, life time.Duration, names []string) (*tls.Certificate, error) {
	if !now.Before(a.Cert.NotAfter) {
		return nil, fmt.Errorf("the CA has expired at %s", a.Cert.NotAfter.Format(time.RFC3339))
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the key of a certificate: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: first(names)},
		NotBefore: a.Cert.NotBefore, NotAfter: earlier(now.Add(life), a.Cert.NotAfter),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, n)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.Cert, key.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("signing a certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate that was made: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

// first is the name of the subject, which has at most 64 characters; clients look at the
// others.
func first(names []string) string {
	if len(names) == 0 || len(names[0]) > 64 {
		return "belay-webhook"
	}
	return names[0]
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// due is when a certificate is to be replaced: a third of its life before it expires. The life
// is what those are given that are made now, since one that is back-dated does not say.
func due(c *x509.Certificate, life time.Duration) time.Time {
	return c.NotAfter.Add(-min(life, c.NotAfter.Sub(c.NotBefore)) / shares)
}

// expired says so by a clock.
func expired(c *x509.Certificate, now time.Time) bool { return !now.Before(c.NotAfter) }

// valid reports whether now is within the life of a certificate.
func valid(c *x509.Certificate, now time.Time) bool {
	return !now.Before(c.NotBefore) && !expired(c, now)
}

// Fingerprint names a certificate.
func Fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}

// Bundle reads the certificates of a bundle, each once. What is none is passed over.
func Bundle(pemBytes []byte) []*x509.Certificate {
	var out []*x509.Certificate
	for {
		var block *pem.Block
		if block, pemBytes = pem.Decode(pemBytes); block == nil {
			return out
		}
		if block.Type != typeCertificate {
			continue
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && !slices.ContainsFunc(out, c.Equal) {
			out = append(out, c)
		}
	}
}

func encodeAll(certs []*x509.Certificate) []byte {
	var out []byte
	for _, c := range certs {
		out = append(out, encode(c.Raw)...)
	}
	return out
}
