package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestCopyOfTheKubeconfig(t *testing.T) {
	t.Parallel()
	content := kubeconfig("https://127.0.0.1:1", []byte("ca"), identity{[]byte("cert"), []byte("key")})
	for name, tc := range map[string]struct {
		before     string // content of the file; empty: there is none
		meanwhile  string // what replaces the copy before the end; empty: nothing
		fails      bool
		afterwards bool // the file is there at the end
	}{
		"a new file is removed at the end":     {},
		"an older copy is replaced":            {before: kubeconfigMark + "old"},
		"a file of somebody else is left":      {before: "apiVersion: v1\n", fails: true, afterwards: true},
		"a newer control plane keeps its copy": {meanwhile: kubeconfigMark + "newer", afterwards: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := &runDir{path: t.TempDir()}
			file := filepath.Join(t.TempDir(), "config")
			write := func(file, content string) {
				if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			write(dir.file("kubeconfig"), string(content))
			if tc.before != "" {
				write(file, tc.before)
			}
			if _, err := writeCopy(dir, file, content); (err != nil) != tc.fails {
				t.Fatalf("writeCopy: %v", err)
			}
			if !tc.fails {
				if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
					t.Errorf("the copy is %v, %v; want mode 0600", info, err)
				}
			}
			if tc.meanwhile != "" {
				write(file, tc.meanwhile)
			}
			if err := removeCopy(dir.path); err != nil {
				t.Fatal(err)
			}
			if exists(file) != tc.afterwards {
				t.Errorf("the file is there at the end: %t, want %t", !tc.afterwards, tc.afterwards)
			}
		})
	}
}
