// Package sidecar holds everything that ships into somebody else's pod: the
// belay-sidecar, which probes a pod's main container from inside the pod and
// reports its readiness to belay's collector, and the wire format and channel
// that it shares with the collector.
//
// # Rules
//
// Only the standard library, and nothing of belay outside this folder. The
// sidecar runs once per injected pod, so every dependency is paid ten
// thousand times in memory, in image size and in advisories to answer.
// test/deps asserts it.
//
// Sidecar trouble is never the pod's trouble: no code here may make a pod
// unready, keep a Job from completing, or grow without bound while the
// collector is away.
//
// # Packages
//
//   - wire: what goes over the line, a [Report] there and an [Answer] back, or
//     a refusal; all bounded and append-only.
//   - channel: how it goes over the line. An HTTP client that gives up on a
//     connection as soon as it fails, and a jittered back-off.
//   - settings: what injection tells a sidecar, by environment variables: one
//     struct, one reader, one check; and the text form of a probe.
//   - probe: asks the main container, by HTTP, HTTPS, TCP, gRPC's health
//     protocol or a ready file; with a connection of its own each time.
//   - app: the process. A pure step(state, event) says when to probe and what
//     to report, a loop does it; --once and --print-settings are for people.
//
// Each imports only what stands above it.
//
// [Report]: https://pkg.go.dev/github.com/belay-dev/belay/sidecar/wire#Report
// [Answer]: https://pkg.go.dev/github.com/belay-dev/belay/sidecar/wire#Answer
package sidecar
