package stack

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
)

// AuditLog reads the requests in the API server's audit log, so far, that have a word in
// their line, such as a namespace; empty for all. Of each request it takes what E has fields
// for. The log is written a moment late.
func AuditLog[E any](s *Stack, word string) ([]E, error) {
	f, err := os.Open(filepath.Clean(s.Plane.AuditLog()))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var out []E
	lines := bufio.NewScanner(f)
	// A request with ten thousands of UIDs is one line.
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e E
		if !bytes.Contains(lines.Bytes(), []byte(word)) || json.Unmarshal(lines.Bytes(), &e) != nil {
			continue // another's, or the last line, half written
		}
		out = append(out, e)
	}
	return out, lines.Err()
}
