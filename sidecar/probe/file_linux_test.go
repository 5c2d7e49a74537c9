package probe_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/belay-dev/belay/sidecar/probe"
)

func TestFile(t *testing.T) {
	t.Parallel()
	past := time.Now().Add(-time.Hour).Truncate(time.Second)
	write := func(t *testing.T, path string, at time.Time) {
		t.Helper()
		if err := os.WriteFile(path, nil, 0); err != nil { // it is not opened
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	tests := map[string]struct {
		make   func(t *testing.T, path string)
		reason string
		// at is when it was so; the zero time: when it was probed.
		at time.Time
	}{
		"absent":                        {func(*testing.T, string) {}, probe.ReasonNoFile, time.Time{}},
		"written an hour ago":           {func(t *testing.T, path string) { write(t, path, past) }, probe.ReasonSucceeded, past},
		"written in times to come":      {func(t *testing.T, path string) { write(t, path, time.Now().Add(time.Hour)) }, probe.ReasonSucceeded, time.UnixMilli(1)},
		"written before there was Unix": {func(t *testing.T, path string) { write(t, path, time.Unix(-1, 0)) }, probe.ReasonSucceeded, time.Unix(-1, 0)},
		"a folder": {func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o755); err != nil {
				t.Fatal(err)
			}
		}, probe.ReasonNoFile, time.Time{}},
		"a link to a file": {func(t *testing.T, path string) {
			write(t, path+"-target", past)
			if err := os.Symlink(path+"-target", path); err != nil {
				t.Fatal(err)
			}
		}, probe.ReasonSucceeded, past},
		"a link to nowhere": {func(t *testing.T, path string) {
			if err := os.Symlink(path+"-target", path); err != nil {
				t.Fatal(err)
			}
		}, probe.ReasonNoFile, time.Time{}},
		"a link to itself": {func(t *testing.T, path string) {
			if err := os.Symlink(path, path); err != nil {
				t.Fatal(err)
			}
		}, probe.ReasonFailed, time.Time{}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "ready")
			tc.make(t, path)
			p := newProber(t, "file://"+path)
			if tc.at.IsZero() {
				want(t, p, tc.reason)
				return
			}
			if got := p.Probe(t.Context()); got.Reason != tc.reason || !got.OK || !got.At.Equal(tc.at) {
				t.Errorf("got %+v, want %s at %s", got, tc.reason, tc.at)
			}
		})
	}
}

// A line of the log is short, however long a path is.
func TestFileOfALongPath(t *testing.T) {
	t.Parallel()
	want(t, newProber(t, "file:///nowhere/"+strings.Repeat("ж/", 500)+"ready"), probe.ReasonNoFile)
}

// The main container may keep its folder to itself.
func TestFileInAFolderOfOthers(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	folder := filepath.Join(t.TempDir(), "closed")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	// The thread is another user from here on, and ends with this goroutine.
	runtime.LockOSThread()
	if err := syscall.Setfsuid(65532); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Setfsuid(0) }() // what cleans up runs on it, too
	want(t, newProber(t, "file://"+filepath.Join(folder, "ready")), probe.ReasonFailed)
}
