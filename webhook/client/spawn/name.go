package spawn

import "github.com/belay-dev/belay/webhook/client/spawn/names"

// Name is the name of a piece of work: a readable part of the prefix, a dash, and
// ten characters of a digest over prefix and key. It is a DNS label of at most 63
// bytes, so that a Job of that name can hand it on to its Pods as a label, and the
// same work has the same name in every process and after every restart.
//
// It is what a NamePolicy's generate gives for the same prefix and keys.
func Name(prefix string, key ...string) string {
	keys := make([]any, len(key))
	for i, k := range key {
		keys[i] = k
	}
	return names.Of(prefix, names.MaxLabel, keys...)
}
