package stack

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// Report logs a figure, and adds it to the file in BELAY_TEST_REPORT, since go test
// shows the log of tests that pass only with -v.
func Report(t testing.TB, format string, args ...any) {
	t.Helper()
	line := fmt.Sprintf(format, args...)
	t.Log(line)
	path := os.Getenv("BELAY_TEST_REPORT")
	if path == "" {
		return
	}
	f, err := os.OpenFile(filepath.Clean(path), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := fmt.Fprintln(f, line); err != nil {
		t.Fatal(err)
	}
}
