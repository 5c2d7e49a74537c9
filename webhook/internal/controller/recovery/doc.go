// Package recovery brings back objects whose own controller never leaves a failed phase,
// when the Pods that failed are ready again. What the informers know decides when to look;
// whether an object has recovered is always decided on live reads, by the same rules as the
// webhook's. Nothing is kept that a restart loses, and nothing is polled: an object is looked
// at when it, one of its Pods or its namespace changes.
package recovery
