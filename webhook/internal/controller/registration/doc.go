// Package registration accepts policies and keeps the API server's webhook
// configurations as the accepted policies want them.
//
// One entry per policy: the API server does the matching, so that an object that
// no policy names never costs a call, and the path of the entry tells the handler
// which policy applies. accept.go, desired.go and plan.go decide and are pure;
// reconciler.go reads and writes.
package registration
