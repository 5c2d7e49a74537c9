// Package anchor binds, expires and releases Anchors.
//
//   - bind: the owner exists, so it becomes the Anchor's owner, once and for all;
//   - expire: it did not come in time, so the Anchor is deleted in the background
//     and the garbage collector takes the dependents;
//   - release: the owner was deleted with its dependents orphaned, so the Anchor
//     stays, with what it holds, and is never bound again.
//
// plan.go decides and is pure, reconciler.go reads and writes, owners.go watches
// for owners.
package anchor
