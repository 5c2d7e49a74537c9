// Package wire is what belay-sidecar and belay's collector say to each other:
// one POST of a [Report], answered by an [Answer], both JSON.
//
// The format is append-only. Sidecars live as long as their pods, so a
// collector hears sidecars that are many releases older, and during a
// roll-back ones that are newer: fields are added, never renamed, retyped,
// removed or made required, and unknown ones are ignored. The golden files in
// testdata hold every form that was ever sent; they are added to and never
// edited.
//
// Everything is bounded, because the collector reads it from pods that it has
// no reason to trust.
package wire
