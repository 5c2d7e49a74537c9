// Package collector takes reports from belay-sidecars and turns them into the condition
// belay.dev/MainReady of their Pods.
//
// A report counts for the Pod that the caller's token is bound to, by UID, and for no
// other; that Pod must be there under that UID and not be about to go. What is written
// depends on the report, the Pod and nothing else: replicas of belay-webhook have no state
// that the others would need. Which of two reports is the later one is told by the
// condition itself, so each write is conditional on what was read.
//
// decide.go decides and is pure, tokens.go says who calls, server.go is the HTTP edge,
// writer.go reads and writes Pods.
package collector
