// Package recovery decides what a write to the status of a guarded object may do, and
// whether the Pods that failed are ready again. Everything here is pure: what the cluster
// looks like comes in as facts, time is one of them, and what has to be found out before
// deciding goes out as a wish.
//
// A decision is made from the stored object and from what is asked for, never from the
// verb or the patch: the API server shows neither. So the same write, tried again on a
// newer stored object, is decided anew, and a decision applied to its own result changes
// nothing.
package recovery
