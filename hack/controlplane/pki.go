package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"
)

// validFor outlasts every run; the certificates go away with the run directory.
const validFor = 365 * 24 * time.Hour

// An identity is a certificate and its key, in PEM.
type identity struct{ cert, key []byte }

// A pki is the certificate authority and what it signed.
type pki struct {
	ca, serving, admin, controllerManager identity
	serviceAccounts                       struct{ public, private []byte }
}

func newPKI() (*pki, error) {
	now := time.Now()
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	ca := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "controlplane"},
		NotBefore:             now.Add(-time.Hour), // clients may have another idea of the time
		NotAfter:              now.Add(validFor),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	p := &pki{}
	if p.ca, err = sign(ca, ca, caKey, caKey); err != nil {
		return nil, err
	}
	issue := func(serial int64, name pkix.Name, usage x509.ExtKeyUsage, hosts ...string) (identity, error) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return identity{}, err
		}
		return sign(&x509.Certificate{
			SerialNumber: big.NewInt(serial),
			Subject:      name,
			NotBefore:    ca.NotBefore,
			NotAfter:     ca.NotAfter,
			KeyUsage:     x509.KeyUsageDigitalSignature,
			ExtKeyUsage:  []x509.ExtKeyUsage{usage},
			DNSNames:     hosts,
			IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 0, 0, 1)},
		}, ca, key, caKey)
	}
	if p.serving, err = issue(2, pkix.Name{CommonName: "kube-apiserver"}, x509.ExtKeyUsageServerAuth,
		"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"); err != nil {
		return nil, err
	}
	if p.admin, err = issue(3, pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}, x509.ExtKeyUsageClientAuth); err != nil {
		return nil, err
	}
	if p.controllerManager, err = issue(4, pkix.Name{CommonName: controllerManagerUser}, x509.ExtKeyUsageClientAuth); err != nil {
		return nil, err
	}
	saKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if p.serviceAccounts.private, err = encodeKey(saKey); err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKIXPublicKey(saKey.Public())
	if err != nil {
		return nil, err
	}
	p.serviceAccounts.public = pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	return p, nil
}

func sign(cert, parent *x509.Certificate, key, parentKey crypto.Signer) (identity, error) {
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, key.Public(), parentKey)
	if err != nil {
		return identity{}, fmt.Errorf("signing the certificate of %s: %w", cert.Subject.CommonName, err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return identity{}, err
	}
	return identity{pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), keyPEM}, nil
}

func encodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// write puts what the components read from files into the run directory.
func (p *pki) write(dir *runDir) error {
	if err := os.Mkdir(dir.file("pki"), 0o700); err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"ca.crt":        p.ca.cert,
		"ca.key":        p.ca.key,
		"apiserver.crt": p.serving.cert,
		"apiserver.key": p.serving.key,
		"sa.pub":        p.serviceAccounts.public,
		"sa.key":        p.serviceAccounts.private,
	} {
		if err := os.WriteFile(dir.file("pki", name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}
