// Package statuspatch writes a status by a merge patch that names every field that a
// controller owns, and no other. What is empty is sent as null, whatever omitempty
// says. It is for authors of controllers, needs belay neither installed nor known,
// and belay's recovery driver writes with it.
//
// # What goes wrong without it
//
// Each of the usual ways to write a status loses or keeps something that nobody sees:
//
//   - A merge patch made from a struct with omitempty cannot say "cleared". The key of
//     an empty list is absent, so the stored list stays, and the object is Running with
//     the pods that failed.
//   - A difference between what was read and what is wanted (client.MergeFrom) says
//     null only where what was read had a value. A cache that has not seen the value
//     yet hides it, the null is left out, and the value outlives the write.
//   - Server-side apply with omitempty removes only what the same manager applied.
//   - A PUT through a Go type that is older than the CRD drops the fields that the type
//     does not know, which are another controller's.
//
// # Use
//
//	desired := current.DeepCopy()
//	desired.Status.Phase = "Running"
//	desired.Status.FailedPodUIDs = nil
//	wrote, err := statuspatch.Options{}.Write(ctx, c.Status(), current, desired)
//
// sends, whatever the object in the cache or in the API server has,
//
//	{"status":{"failedPodUIDs":null,"phase":"Running","ready":3}}
//
// [Options.Make] makes the patch without sending it.
//
// # Fields
//
// Without Options.Fields a controller owns every field of its Go type's status, also
// those that it has not touched: they are sent as desired has them. That suits a
// controller that writes its status alone. One that shares it names its own fields,
// as dotted paths of JSON names below status:
//
//	statuspatch.Options{Fields: []string{"phase", "failedPodUIDs", "task.running"}}
//
// A path goes through structs, and through maps by their keys (those without a dot),
// not into lists. One that the Go type does not have is an error. Unstructured objects
// have no type, so they need Fields, and a path that is misspelt there is one more
// field that is sent; "status." does not belong in it.
//
// What is sent for a field is what encoding/json makes of it, with these additions:
//
//   - A field that is absent, for omitempty, omitzero, a nil pointer or whatever reason,
//     is null. Values that are not omitted are sent as they are: 0, "", [].
//   - A nested struct that is there has each of its fields named, and fields of it that
//     the Go type does not know stay. One that is absent is null, and then what others
//     have put into it goes as well; so name "task.running" and not "task" where task is
//     shared. Naming a field of an object that is not there leaves that object empty: {}.
//   - A map is merged by the API server, so keys that current has and desired has not are
//     null. Keys that current does not have cannot be named: see below. So it is with
//     whatever is an object in JSON and no struct in Go: unstructured values,
//     runtime.RawExtension, and all types that have their own MarshalJSON or MarshalText.
//   - A list is replaced, whole.
//
// The patch holds nothing else: not spec, and of metadata at most the resourceVersion.
// Labels or annotations that desired changes are not written.
//
// What a CRD requires must not be null. Such a field should have no omitempty in Go, and
// where the Go type is somebody else's, Options.Required sends its zero value instead.
//
// # Stale reads
//
// A patch without resourceVersion is written onto whatever is there. That is safe for
// what one controller alone decides: each field has then the value that it was given.
// It is not safe
//
//   - where the decision rests on the status itself ("it is still Failed, so ...");
//   - where a list or map has several writers, for one replaces the other's entries;
//   - where keys of a map have to go, for those that current does not have stay;
//   - where the object may have been deleted and made anew under the same name.
//
// Give Options.ResourceVersion there, and the API server refuses the patch with a
// conflict (409) unless current is what it has.
//
// A patch that changes nothing is not sent. That is judged by current as well, so a
// stale current can hide a write that is needed. The event that makes the cache fresh
// brings a reconcile, which finds the difference, unless a predicate keeps it away: that
// of generations does, as a status has none. Without such a reconcile read from the API
// server, or set Options.Always. An API server that is sent what it has stores nothing,
// so the price is a call, and those of its webhooks.
//
// # Conflicts
//
// Write does not retry. On apierrors.IsConflict read the object again, decide again,
// and write that; most controllers return the error and are called again. Never send
// the same status with a newer resourceVersion: that is no precondition at all.
// client-go repeats calls that were answered 429 or 5xx with Retry-After, so a conflict
// can be with one's own write whose answer was lost. Reading again tells.
//
// # Limits
//
// A Go type cannot tell an absent field from an empty one, so current as a Go type has
// ready: 0 where nothing is stored, and a desired 0 is not written until something else
// is. A merge patch cannot store a null: an element of a map that is null in JSON goes.
// The status must be a struct. Names follow encoding/json.
//
// The tests here apply patches as an API server does, by RFC 7386. Those against a real
// one are in test/integration/recovered.
package statuspatch
