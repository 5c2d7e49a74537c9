package certs

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
)

// leafPEM is a serving certificate as files.
func leafPEM(t *testing.T, ca *Authority) (cert, key []byte, leaf *x509.Certificate) {
	t.Helper()
	c, err := ca.Leaf(time.Now(), time.Hour, []string{"localhost"})
	must(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	must(t, err)
	return encode(c.Certificate[0]), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), c.Leaf
}

// kubelet writes a Secret's volume as the kubelet does: each version in a folder of its own, and
// a link that is swapped.
type kubelet struct {
	dir string
	n   int
}

func (k *kubelet) project(t *testing.T, cert, key []byte) {
	t.Helper()
	k.n++
	next := fmt.Sprintf("..v%d", k.n)
	must(t, os.Mkdir(filepath.Join(k.dir, next), 0o700))
	must(t, os.WriteFile(filepath.Join(k.dir, next, "tls.crt"), cert, 0o600))
	must(t, os.WriteFile(filepath.Join(k.dir, next, "tls.key"), key, 0o600))
	must(t, os.Symlink(next, filepath.Join(k.dir, "..new")))
	must(t, os.Rename(filepath.Join(k.dir, "..new"), filepath.Join(k.dir, "..data")))
	if k.n == 1 {
		must(t, os.Symlink("..data/tls.crt", filepath.Join(k.dir, "tls.crt")))
		must(t, os.Symlink("..data/tls.key", filepath.Join(k.dir, "tls.key")))
		return
	}
	must(t, os.RemoveAll(filepath.Join(k.dir, fmt.Sprintf("..v%d", k.n-1))))
}

// files runs a Files in a bubble.
func files(t *testing.T, dir string) *Files {
	t.Helper()
	f := &Files{Dir: dir, Log: logr.Discard()}
	go func() { _ = f.Start(t.Context()) }()
	return f
}

func (f *Files) serial(t *testing.T) string {
	t.Helper()
	synctest.Wait()
	c, err := f.GetCertificate(nil)
	if err != nil {
		return err.Error()
	}
	return c.Leaf.SerialNumber.String()
}

func TestT03_EverySwapOfTheKubeletsIsSeen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ca, k := at(t), &kubelet{dir: t.TempDir()}
		f := files(t, k.dir)
		for range 4 { // the first and three swaps
			cert, key, leaf := leafPEM(t, ca)
			k.project(t, cert, key)
			<-time.After(filesEvery + time.Millisecond)
			if got := f.serial(t); got != leaf.SerialNumber.String() {
				t.Fatalf("version %d: %s", k.n, got)
			}
		}
	})
}

func TestT11_AMountThatIsFilledLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ca, dir := at(t), filepath.Join(t.TempDir(), "not", "there", "yet")
		f := files(t, dir)
		<-time.After(90 * time.Second)
		if got := f.serial(t); got != ErrNone.Error() {
			t.Error(got)
		}
		must(t, os.MkdirAll(dir, 0o700))
		<-time.After(90 * time.Second)
		cert, key, leaf := leafPEM(t, ca)
		(&kubelet{dir: dir}).project(t, cert, key)
		<-time.After(filesEvery + time.Millisecond)
		if got := f.serial(t); got != leaf.SerialNumber.String() {
			t.Error(got)
		}
	})
}

// TestT08_ATornPairOfFiles is not parallel: it reads the process's metrics.
func TestT08_ATornPairOfFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, dir := at(t), t.TempDir()
		write := func(name string, content []byte) {
			must(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
			<-time.After(2 * time.Second)
		}
		f := files(t, dir)
		cert, key, first := leafPEM(t, ca)
		write("tls.crt", cert)
		write("tls.key", key)
		mismatched, unreadable, empty, missing := failed(t, Mismatched), failed(t, Unreadable), failed(t, Empty), failed(t, Missing)
		keeps := func(what string) {
			t.Helper()
			if got := f.serial(t); got != first.SerialNumber.String() {
				t.Errorf("%s: %s", what, got)
			}
		}
		keeps("both")
		next, nextKey, second := leafPEM(t, ca)
		write("tls.crt", next)
		keeps("torn")
		write("tls.key", []byte("garbage"))
		keeps("garbage")
		write("tls.key", nil)
		keeps("truncated")
		must(t, os.Remove(filepath.Join(dir, "tls.key")))
		<-time.After(2 * time.Second)
		keeps("removed")
		if got := faults(t); got != string(Missing) {
			t.Errorf("what is wrong now: %q", got)
		}
		for what, got := range map[string]float64{"torn": failed(t, Mismatched) - mismatched, "garbage": failed(t, Unreadable) - unreadable, "truncated": failed(t, Empty) - empty, "removed": failed(t, Missing) - missing} {
			if got != 1 {
				t.Errorf("%s: counted %v times", what, got)
			}
		}
		write("tls.key", nextKey)
		if got := f.serial(t); got != second.SerialNumber.String() {
			t.Errorf("whole again: %s", got)
		}
		if got := faults(t); got != "" {
			t.Errorf("whole again, and it says %q", got)
		}
	})
}
