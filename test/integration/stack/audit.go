package stack

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
)

// AuditLog reads the requests in the API server's audit log, so far, or in one after the
// other where there are several, that have a word in their line, such as a namespace; empty for all. Of each request it takes what E has fields
// for. The log is written a moment late.
func AuditLog[E any](s *Stack, word string) ([]E, error) {
	var out []E
	for _, server := range s.Plane.Servers() {
		requests, err := auditLog[E](server.AuditLog, word)
		if err != nil {
			return nil, err
		}
		out = append(out, requests...)
	}
	return out, nil
}

func auditLog[E any](path, word string) (out []E, err error) {
	f, err := os.Open(filepath.Clean(path))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
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
