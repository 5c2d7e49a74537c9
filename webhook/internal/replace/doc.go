// Package replace deletes a finished object to make room for the next one, once, and
// lets the creates of one work pass at a time. Replicas of the webhook know nothing of
// each other; what they share is a Lease in belay's namespace, which only one of them
// can create.
package replace
