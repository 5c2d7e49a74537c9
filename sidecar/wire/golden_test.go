package wire_test

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/belay-dev/belay/sidecar/wire"
)

var update = flag.Bool("update", false, "write golden files that are missing; those that exist are never changed")

// formerlySent names golden files of forms that are sent no longer. Pods that
// run an old sidecar still send them, so they must be read for ever.
var formerlySent = []string{
	// Before ObservedUnixMillis.
	"report-v1-ready.json", "report-v1-not-ready.json", "report-v1-unknown.json",
}

// TestGolden holds the wire format to its files, which are append-only: when
// the form of a message changes, it gets a new file, and the name of the old
// one moves to formerlySent.
func TestGolden(t *testing.T) {
	t.Parallel()
	report := func(change func(*wire.Report)) string {
		r := valid()
		change(&r)
		return encoded(wire.EncodeReport(r))(t)
	}
	sent := map[string]string{
		"report-v1-observed-ready.json": report(func(r *wire.Report) { r.Instance = "" }),
		"report-v1-observed-not-ready.json": report(func(r *wire.Report) {
			r.State, r.Reason, r.Instance, r.Sequence = wire.StateNotReady, "ProbeFailed", "", 8
		}),
		"report-v1-observed-unknown.json": report(func(r *wire.Report) {
			r.State, r.Reason, r.Instance, r.Sequence = wire.StateUnknown, "NoProbe", "", 1
		}),
		"answer-v1-default.json": encoded(wire.EncodeAnswer(wire.Answer{}))(t),
		"answer-v1-short.json":   encoded(wire.EncodeAnswer(wire.AnswerWith("", time.Second)))(t),
		"answer-v1-outcome.json": encoded(wire.EncodeAnswer(wire.AnswerWith("NotRunning", time.Second)))(t),
	}

	known := map[string]bool{}
	for _, name := range formerlySent {
		known[name] = true
		checkReadable(t, name)
	}
	for name, message := range sent {
		known[name] = true
		path := filepath.Join("testdata", name)
		want, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) && *update {
			want, err = []byte(message), os.WriteFile(path, []byte(message), 0o600)
		}
		if err != nil {
			t.Errorf("%v (-update writes the file of a new message)", err)
			continue
		}
		if message != string(want) {
			t.Errorf("%s: what is sent has changed; others that run now may not understand it\n got %s\nwant %s", name, message, want)
		}
		checkReadable(t, name)
	}

	entries, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if !entry.IsDir() && !known[entry.Name()] { // folders hold fuzz inputs
			t.Errorf("%s belongs to no message", entry.Name())
		}
	}
}

func checkReadable(t *testing.T, name string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Error(err)
		return
	}
	if strings.HasPrefix(name, "answer-") {
		_, err = wire.DecodeAnswer(data)
	} else {
		_, err = wire.DecodeReport(data)
	}
	if err != nil {
		t.Errorf("%s can no longer be read: %v", name, err)
	}
}

// encoded is the text of a golden file: the message and the newline that
// editors want at the end.
func encoded(data []byte, err error) func(*testing.T) string {
	return func(t *testing.T) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return string(data) + "\n"
	}
}
