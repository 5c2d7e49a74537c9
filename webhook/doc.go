// Package webhook holds everything that runs in belay's own Deployments, and the
// library for authors of controllers.
//
// # Architecture
//
//	kubectl, controllers ──create──▶ kube-apiserver ──AdmissionReview──▶ belay-webhook
//	                                   ▲    ▲                              (N replicas, no state)
//	           policies, Anchors, registrations, Leases
//	                                   │    ├── reads owners, creates Anchors
//	                                   │    └── reads what has a name, deletes what is finished
//	                            belay-controller (one works at a time)
//
// A policy is accepted and registered by belay-controller: one webhook entry a
// policy, so that the API server does the matching. belay-webhook decides each
// create on its own. What joins the two is stored in the cluster: the spec in force,
// in a policy's status, and Anchors.
//
// # Owners
//
// An OwnerPolicy acts in the mutating phase: the object gets a reference to its owner,
// or to an Anchor that the owner will own. belay needs no right on the object. What
// such a policy denies is checked in the validating phase, too.
//
// # Names
//
// A NamePolicy has two entries. The mutating one is called once and comes after those
// of OwnerPolicies: it names an object that has no name, never renames, and writes the
// digest of the object's work into the annotation belay.dev/work, before webhooks that
// are called later change the object. The validating one compares that with what has
// the name, which it reads live: finished or not, the same work or other work.
//
// The decision about a taken name is made in rounds. It says what it wishes to know or
// to have done next (the Pods of a Job, the requester's right, a turn, the deletion),
// the handler does that and asks again, a bounded number of times. So what is not
// needed is not read, and the order of all conditions for a deletion stands in one
// pure function.
//
// Replicas know nothing of each other. Where only one of them may act they take turns
// by Leases in belay's namespace: for the one DELETE of a finished object, named after
// its UID and resourceVersion, and, under racing: Serialize, for creates of one work
// under a name. Whoever creates the Lease has the turn. It is never given back and
// runs out; belay-controller removes it later.
//
// # Packages and their direction
//
//	api/v1alpha1               types, conditions, reasons, causes; no behaviour
//	client/spawn/names         pure, standard library only: names, and digests of work
//	client/{spawn,failfast}    the library for others; of belay it imports the names only
//	internal/{fact,wording}    what is known of a fact; other people's text in messages
//	internal/owner             decisions about owners: pure, (request, facts, policy) → decision
//	internal/naming            decisions about names: the same, in rounds
//	internal/expr              CEL, compiled and bounded
//	internal/facts             reads the cluster within a deadline
//	internal/anchors           gets hold of an Anchor: the one write for owners
//	internal/replace           turns, and the one DELETE: the writes for names
//	internal/metrics           metrics with closed label sets
//	internal/admission         AdmissionReview ↔ decision: the one HTTP edge
//	internal/controller/...    plan.go decides and is pure, reconciler.go reads and writes
//	app                        flags, object graph, run: the one public door
//
// Each imports only what stands above it; test/deps holds it to that.
//
// A decision goes: decode, which policy (from the path), gather facts, decide, patch
// and respond, record. A fact that could not be found out is Unknown, the zero
// value, and has a stance in every rule. Nothing is deleted on an Unknown.
package webhook
