package certs

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Keys of the Secret. The first three are those that cert-manager uses, too.
const (
	keyCert     = corev1.TLSCertKey
	keyKey      = corev1.TLSPrivateKeyKey
	keyBundle   = corev1.ServiceAccountRootCAKey
	keyNextCert = "next.crt"
	keyNextKey  = "next.key"
)

// Annotations of the Secret.
const (
	// RotateAnnotation asks for a new CA at once: whenever its value changes.
	RotateAnnotation = "belay.dev/rotate"
	// rotatedAnnotation is the value that was followed last.
	rotatedAnnotation = "belay.dev/rotated"
	// RetiredAnnotation has the fingerprints of CAs that were replaced, of which it is proven
	// that nobody needs them: registrations drop them. What is not there stays until it has
	// expired, whoever put it there.
	RetiredAnnotation = "belay.dev/retired"
)

// mostRetired is how many CAs are remembered as retired.
const mostRetired = 8

// FaultReason says what is wrong with a certificate: a closed list, since it labels metrics.
type FaultReason string

// Faults.
const (
	Missing    FaultReason = "Missing"    // there is no Secret, or no file
	Empty      FaultReason = "Empty"      // it has no certificate
	Unreadable FaultReason = "Unreadable" // it is no certificate, or no key
	Mismatched FaultReason = "Mismatched" // the key is another certificate's
	NotCA      FaultReason = "NotCA"      // the certificate cannot sign
	LookupFail FaultReason = "LookupFailed"
	WriteFail  FaultReason = "WriteFailed"
)

// Fault is a certificate that cannot be used.
type Fault struct {
	Reason  FaultReason
	Message string
}

// Error is its message.
func (f *Fault) Error() string { return f.Message }

// reasonOf is the reason of a fault.
func reasonOf(err error) FaultReason {
	var f *Fault
	if errors.As(err, &f) {
		return f.Reason
	}
	return LookupFail
}

// faultOf tells a pair that does not belong together, as it is for a moment while somebody
// writes one half after the other, from one that cannot be read.
func faultOf(cert, key []byte, err error) *Fault {
	if len(bytes.TrimSpace(cert)) == 0 || len(bytes.TrimSpace(key)) == 0 {
		return &Fault{Empty, "the certificate or its key is missing"}
	}
	if len(Bundle(cert)) > 0 && keyReadable(key) {
		return &Fault{Mismatched, "the certificate and the key do not belong together"}
	}
	return &Fault{Unreadable, err.Error()}
}

// State is what the Secret says.
type State struct {
	// Signer signs leaves.
	Signer *Authority
	// Next will; nil outside of the first phase of a rotation.
	Next *Authority
	// Trusted is the bundle that others are to trust.
	Trusted []*x509.Certificate
	// Asked and Done are the values of the request to rotate: of the one there is, and of the
	// one that was followed last.
	Asked, Done string
	// Retired are fingerprints, the newest last.
	Retired []string
}

// Parse reads the Secret. The error is a Fault when its signing pair cannot be used; without
// another fault the next pair is taken for absent when it cannot, since it is made anew.
func Parse(s *corev1.Secret) (*State, error) {
	if len(bytes.TrimSpace(s.Data[keyCert])) == 0 && len(bytes.TrimSpace(s.Data[keyKey])) == 0 {
		return nil, &Fault{Empty, "the Secret has no CA"}
	}
	signer, err := parseAuthority(s.Data[keyCert], s.Data[keyKey])
	if err != nil {
		return nil, err
	}
	out := &State{
		Signer: signer, Trusted: Bundle(s.Data[keyBundle]),
		Asked: s.Annotations[RotateAnnotation], Done: s.Annotations[rotatedAnnotation], Retired: Retired(s),
	}
	if next, err := parseAuthority(s.Data[keyNextCert], s.Data[keyNextKey]); err == nil && !next.Cert.Equal(signer.Cert) {
		out.Next = next
	}
	return out, nil
}

// Retired reads which CAs are not needed any more.
func Retired(s *corev1.Secret) []string {
	var out []string
	for f := range strings.SplitSeq(s.Annotations[RetiredAnnotation], ",") {
		if f != "" {
			out = append(out, f)
		}
	}
	return out
}

// write puts the state into a Secret. What else it has stays.
func (st *State) write(s *corev1.Secret) {
	if s.Data == nil {
		s.Data = map[string][]byte{}
	}
	s.Data[keyCert], s.Data[keyKey] = st.Signer.certPEM, st.Signer.keyPEM
	s.Data[keyBundle] = encodeAll(st.Trusted)
	delete(s.Data, keyNextCert)
	delete(s.Data, keyNextKey)
	if st.Next != nil {
		s.Data[keyNextCert], s.Data[keyNextKey] = st.Next.certPEM, st.Next.keyPEM
	}
	set := func(name, value string) {
		if value == "" {
			delete(s.Annotations, name)
			return
		}
		metav1.SetMetaDataAnnotation(&s.ObjectMeta, name, value)
	}
	set(RotateAnnotation, st.Asked)
	set(rotatedAnnotation, st.Done)
	set(RetiredAnnotation, strings.Join(st.Retired, ","))
}

// trusts reports whether a certificate is in the bundle.
func (st *State) trusts(c *x509.Certificate) bool {
	return slices.ContainsFunc(st.Trusted, c.Equal)
}

// certManagerOwns is on Secrets that cert-manager writes.
const certManagerOwns = "cert-manager.io/certificate-name"

// foreign reports whether a Secret is kept by somebody else, who would undo what belay writes.
func foreign(s *corev1.Secret) bool {
	_, certManager := s.Annotations[certManagerOwns]
	return certManager || metav1.GetControllerOf(s) != nil
}

// keyReadable reports whether a private key can be read.
func keyReadable(key []byte) bool {
	block, _ := pem.Decode(key)
	if block == nil {
		return false
	}
	if _, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
		return true
	}
	if _, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
		return true
	}
	_, err := x509.ParsePKCS1PrivateKey(block.Bytes)
	return err == nil
}
