// Package named tests on a real control plane, with belay's real binaries under their
// shipped rights, that one unit of work has one object.
package named
