// Package names makes the names and digests by which one unit of work has one
// object. It is pure and needs the standard library only, so that the webhook and
// the authors of controllers come to the same name. What it gives never changes:
// testdata/names.txt holds it.
package names
