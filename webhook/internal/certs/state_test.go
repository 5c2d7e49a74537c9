package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"maps"
	"math/big"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// described is a state in words that can be compared.
type described struct {
	Signer, Next, Asked, Done string
	Trusted, Retired          []string
}

func describe(s *State) described {
	out := described{Signer: Fingerprint(s.Signer.Cert), Asked: s.Asked, Done: s.Done, Retired: s.Retired}
	if s.Next != nil {
		out.Next = Fingerprint(s.Next.Cert)
	}
	for _, c := range s.Trusted {
		out.Trusted = append(out.Trusted, Fingerprint(c))
	}
	return out
}

func secret(s *State) *corev1.Secret {
	out := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "belay-system", Name: "belay-ca"}}
	s.write(out)
	return out
}

func TestASecretOfAnOlderReleaseIsTakenOver(t *testing.T) {
	t.Parallel()
	// As cert-manager's DynamicAuthority makes it: P-384, not back-dated.
	key, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "belay-webhook-ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: day0, NotAfter: day0.Add(365 * day), KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	cert := encode(der)
	got, err := Parse(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"cert-manager.io/allow-direct-injection": "true"}},
		Data:       map[string][]byte{"tls.crt": cert, "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), "ca.crt": cert},
	})
	must(t, err)
	if got.Next != nil || len(got.Trusted) != 1 || !got.Trusted[0].Equal(got.Signer.Cert) {
		t.Errorf("%+v", describe(got))
	}
	if step := Next(got, Facts{}, usual, day0.Add(day)); step.Action != Wait || step.Phase != Steady {
		t.Errorf("%+v", step)
	}
	if step := Next(got, Facts{}, usual, day0.Add(244*day)); step.Action != Add {
		t.Errorf("%+v", step)
	}
	leaf, err := got.Signer.Leaf(day0.Add(day), usual.Leaf, []string{"localhost"})
	must(t, err)
	verified(t, leaf.Leaf, got.Signer, day0.Add(day))
}

func TestParse(t *testing.T) {
	t.Parallel()
	a, b := newCA(t, day0), newCA(t, day0)
	leaf, err := a.Leaf(day0, usual.Leaf, []string{"localhost"})
	must(t, err)
	leafKey, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey)
	must(t, err)
	good := map[string][]byte{"tls.crt": a.certPEM, "tls.key": a.keyPEM, "ca.crt": a.certPEM}
	with := func(kv ...[]byte) map[string][]byte {
		out := maps.Clone(good)
		for i := 0; i < len(kv); i += 2 {
			out[string(kv[i])] = kv[i+1]
		}
		return out
	}
	k := func(s string) []byte { return []byte(s) }
	for name, c := range map[string]struct {
		data   map[string][]byte
		reason FaultReason // empty for none
		next   bool
		trusts int
	}{
		"one CA":                           {good, "", false, 1},
		"two":                              {with(k("next.crt"), b.certPEM, k("next.key"), b.keyPEM, k("ca.crt"), append(a.certPEM, b.certPEM...)), "", true, 2},
		"without a bundle":                 {with(k("ca.crt"), nil), "", false, 0},
		"the bundle is garbage":            {with(k("ca.crt"), k("garbage")), "", false, 0},
		"the bundle says it twice":         {with(k("ca.crt"), append(a.certPEM, a.certPEM...)), "", false, 1},
		"T08: the next pair is torn":       {with(k("next.crt"), b.certPEM, k("next.key"), a.keyPEM), "", false, 1},
		"half of the next pair":            {with(k("next.crt"), b.certPEM), "", false, 1},
		"the next is the same":             {with(k("next.crt"), a.certPEM, k("next.key"), a.keyPEM), "", false, 1},
		"nothing":                          {nil, Empty, false, 0},
		"keys without a value":             {map[string][]byte{"tls.crt": {}, "tls.key": {}, "ca.crt": {}}, Empty, false, 0},
		"blanks":                           {map[string][]byte{"tls.crt": k("\n"), "tls.key": k(" ")}, Empty, false, 0},
		"only a bundle":                    {map[string][]byte{"ca.crt": a.certPEM}, Empty, false, 0},
		"no key":                           {with(k("tls.key"), nil), Empty, false, 0},
		"no certificate":                   {with(k("tls.crt"), nil), Empty, false, 0},
		"T08: the key is another's":        {with(k("tls.key"), b.keyPEM), Mismatched, false, 0},
		"T08: the certificate is":          {with(k("tls.crt"), b.certPEM), Mismatched, false, 0},
		"garbage for a certificate":        {with(k("tls.crt"), k("garbage")), Unreadable, false, 0},
		"garbage for a key":                {with(k("tls.key"), k("garbage")), Unreadable, false, 0},
		"half a certificate":               {with(k("tls.crt"), a.certPEM[:len(a.certPEM)/2]), Unreadable, false, 0},
		"half a key":                       {with(k("tls.key"), a.keyPEM[:len(a.keyPEM)/2]), Unreadable, false, 0},
		"what serves, and cannot sign":     {with(k("tls.crt"), encode(leaf.Certificate[0]), k("tls.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: leafKey})), NotCA, false, 0},
		"certificate and key swapped":      {with(k("tls.crt"), a.keyPEM, k("tls.key"), a.certPEM), Unreadable, false, 0},
		"with others' keys beside belay's": {with(k("note"), k("hello")), "", false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Parse(&corev1.Secret{Data: c.data})
			var fault *Fault
			switch {
			case c.reason != "":
				if !errors.As(err, &fault) || fault.Reason != c.reason {
					t.Errorf("%+v %v", fault, err)
				}
			case err != nil:
				t.Error(err)
			case (got.Next != nil) != c.next || len(got.Trusted) != c.trusts:
				t.Errorf("%+v", describe(got))
			}
		})
	}
}

func TestWhatBelongsToOthersInTheSecretStays(t *testing.T) {
	t.Parallel()
	a := newCA(t, day0)
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"note": "theirs"}, Labels: map[string]string{"team": "a"}},
		Data:       map[string][]byte{"note": []byte("theirs"), "next.crt": []byte("stale")},
	}
	(&State{Signer: a, Trusted: trusting(a), Done: "x"}).write(s)
	if diff := cmp.Diff(map[string]string{"note": "theirs", rotatedAnnotation: "x"}, s.Annotations); diff != "" {
		t.Error(diff)
	}
	if string(s.Data["note"]) != "theirs" || s.Labels["team"] != "a" || s.Data["next.crt"] != nil || len(s.Data) != 4 {
		t.Errorf("%v", s.Data)
	}
}

func TestForeign(t *testing.T) {
	t.Parallel()
	yes := true
	for name, c := range map[string]struct {
		meta metav1.ObjectMeta
		want bool
	}{
		"belay's":                        {metav1.ObjectMeta{Labels: labels}, false},
		"an older release's":             {metav1.ObjectMeta{Annotations: map[string]string{"cert-manager.io/allow-direct-injection": "true"}}, false},
		"cert-manager's":                 {metav1.ObjectMeta{Annotations: map[string]string{"cert-manager.io/certificate-name": "belay"}}, true},
		"another controller's":           {metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Kind: "ExternalSecret", Controller: &yes}}}, true},
		"owned, for collection, by some": {metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Kind: "Namespace"}}}, false},
	} {
		if got := foreign(&corev1.Secret{ObjectMeta: c.meta}); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// verified checks a leaf as a client does.
func verified(t testing.TB, leaf *x509.Certificate, ca *Authority, at time.Time) {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(ca.Cert)
	if _, err := leaf.Verify(x509.VerifyOptions{DNSName: "localhost", Roots: pool, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
		t.Errorf("at %s: %v", at, err)
	}
}

// FuzzParse: whatever a Secret has, it is read or refused.
func FuzzParse(f *testing.F) {
	a, err := NewAuthority(day0, usual.CA, nil)
	must(f, err)
	f.Add(a.certPEM, a.keyPEM, a.certPEM, a.certPEM, a.keyPEM, "a,b")
	f.Add([]byte("x"), []byte(""), []byte("-----BEGIN CERTIFICATE-----"), []byte(nil), []byte("\x00"), ",,")
	f.Fuzz(func(t *testing.T, cert, key, bundle, nextCert, nextKey []byte, retired string) {
		s, err := Parse(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{RetiredAnnotation: retired}},
			Data:       map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": bundle, "next.crt": nextCert, "next.key": nextKey},
		})
		if (err == nil) != (s != nil && s.Signer != nil) {
			t.Fatalf("%+v %v", s, err)
		}
		if s != nil {
			Next(s, Facts{}, usual, day0)
		}
	})
}
