package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// kubeconfigMark begins every kubeconfig written here. A file without it is
// somebody's own and is neither overwritten nor removed.
const kubeconfigMark = "# Written by controlplane up; goes away with the control plane.\n"

func kubeconfig(server string, ca []byte, user identity) []byte {
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Appendf([]byte(kubeconfigMark), `apiVersion: v1
kind: Config
clusters:
- name: controlplane
  cluster:
    server: %s
    certificate-authority-data: %s
users:
- name: user
  user:
    client-certificate-data: %s
    client-key-data: %s
contexts:
- name: controlplane
  context:
    cluster: controlplane
    user: user
current-context: controlplane
`, server, b64(ca), b64(user.cert), b64(user.key))
}

// copyNote is the file in a run directory that says where a copy of the
// kubeconfig was written, for cleanup.
const copyNote = "kubeconfig-copy"

// writeCopy writes a kubeconfig where the user wants one and returns its
// absolute path.
func writeCopy(dir *runDir, file string, content []byte) (string, error) {
	file, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	old, err := os.ReadFile(file)
	if err == nil && !strings.HasPrefix(string(old), kubeconfigMark) {
		return "", fmt.Errorf("%s exists and was not written by this command; remove it or choose another --kubeconfig", file)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := os.WriteFile(dir.file(copyNote), []byte(file), 0o600); err != nil {
		return "", err
	}
	// Removed first, as an existing file would keep its mode.
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return file, os.WriteFile(file, content, 0o600)
}

// removeCopy removes the copy of the kubeconfig of a run directory, unless
// another control plane has replaced it.
func removeCopy(dir string) error {
	note, err := os.ReadFile(filepath.Join(dir, copyNote))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	written, err := os.ReadFile(string(note))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	original, err := os.ReadFile(filepath.Join(dir, "kubeconfig"))
	if err != nil || string(original) != string(written) {
		return nil
	}
	return os.Remove(string(note))
}
