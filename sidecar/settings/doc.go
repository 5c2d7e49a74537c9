// Package settings is what injection tells belay-sidecar, by environment variables: one
// struct, one reader, one check. Injection writes them by the same names.
//
// Like the wire format it is append-only: a sidecar's image may be older or newer than
// the webhook that wrote its settings. Unknown variables are ignored, and each one has a
// default but those that say which pod it is.
package settings
