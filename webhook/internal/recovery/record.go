package recovery

import (
	"slices"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// MaxRecord is how many UIDs a record holds: at 36 bytes each 100 are 4 KiB, far from what
// makes an object too large to be stored, and more Pods than anybody waits for one by one.
const MaxRecord = 100

// union is one record and what another adds to it, in that order, without duplicates: a
// list of type set with one twice is refused.
func union(first, then []string) []string {
	out := make([]string, 0, len(first)+len(then))
	seen := map[string]bool{}
	for _, list := range [][]string{first, then} {
		for _, uid := range list {
			if !seen[uid] {
				seen[uid] = true
				out = append(out, uid)
			}
		}
	}
	return out
}

// capped keeps a record within its limit. One that is longer keeps its beginning and gets
// the mark that forbids recovery: the Pods that were left out can never be checked.
func (p Policy) capped(record []string) []string {
	limit := MaxRecord
	if p.MaxItems > 0 {
		limit = min(limit, int(p.MaxItems))
	}
	uids := slices.DeleteFunc(slices.Clone(record), func(uid string) bool { return uid == v1alpha1.NoPodUID })
	marked := len(uids) < len(record)
	if len(uids) <= limit && !marked {
		return uids
	}
	// The mark takes a place of the schema's limit, not of belay's own.
	room := MaxRecord
	if p.MaxItems > 0 {
		room = min(room, int(p.MaxItems)-1)
	}
	return append(uids[:min(room, len(uids)):min(room, len(uids))], v1alpha1.NoPodUID)
}

// sealed reports whether a record says only that nothing was recorded.
func sealed(record []string) bool { return len(record) == 1 && record[0] == v1alpha1.NoPodUID }

// overflown reports whether Pods are missing from a record.
func overflown(record []string) bool {
	return len(record) > 1 && slices.Contains(record, v1alpha1.NoPodUID)
}

// covers reports whether a record has all of another.
func covers(record, of []string) bool {
	for _, uid := range of {
		if !slices.Contains(record, uid) {
			return false
		}
	}
	return true
}

// same reports whether two records have the same UIDs.
func same(a, b []string) bool { return covers(a, b) && covers(b, a) }
