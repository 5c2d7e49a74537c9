// Package webhook holds everything that runs in belay's own Deployments, and the
// library for authors of controllers.
//
// # Architecture
//
//	kubectl, controllers ──create, ──▶ kube-apiserver ──AdmissionReview──▶ belay-webhook
//	                       status       ▲    ▲                             (N replicas, no state)
//	 policies, Anchors, registrations,  │    │
//	       Leases, CRDs, Pods, statuses │    ├── reads owners, creates Anchors
//	                                    │    ├── reads what has a name, deletes what is finished
//	                                    │    └── reads the Pods of what failed
//	                             belay-controller (one works at a time)
//
//	belay-sidecar, in Pods ──report, with the Pod's token──▶ belay-webhook's collector
//	                       ◀──when to report again──         ├── has the API server review the token
//	                                                         └── writes the Pod's condition
//
// A policy is accepted and registered by belay-controller: one webhook entry a
// policy, so that the API server does the matching. belay-webhook decides each
// write on its own. What joins the two is stored in the cluster: the spec in force,
// in a policy's status, Anchors, and the records in the statuses of guarded objects.
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
// # Recovery
//
// A RecoveryPolicy is held against the live CRD: without the status subresource and a
// field for the record in all versions it guards nothing. It has two entries, on UPDATE
// of the status, which the API server calls only where the stored object or the new one
// is failed or has a record.
//
// The guard is one pure function of the old and the new status, recovery.Decide, asked
// in both phases. The mutating phase edits the record and nothing else: UIDs of failing
// Pods go in, what a write drops is put back, and what means nothing any more goes out,
// by null, remove or [] as the schema has it. The validating phase sees the write as it
// will be stored: it asks for evidence before an object leaves its failure, and refuses
// a write whose record is not as the other phase left it. A decision that is applied to
// its own result changes nothing, so reinvocation, stale writers and retries need no
// care. Only the new status is taken from the request: metadata and spec that come with
// it are shown to webhooks, and then dropped.
//
// Evidence is pure as well: the Pods of the object and the time in, a verdict for each
// recorded UID out. Pods come from informers that select by label and keep a small value
// each; a decision that lets an object recover reads them live. What cannot be read is
// never taken for absent: it is 503 or, where an object fails under failurePolicy Ignore,
// a failure without a record.
//
// The driver in belay-controller brings objects back whose own controller does not. It
// looks when an object, one of its Pods or its namespace changes, on what its informers
// know and by the same function; when that holds for a second it decides again on live
// reads and sends one merge patch with resourceVersion. It is exempt from the guard. All
// that a restart loses is which objects it brought back in the last minute: a controller's
// write that was under way may undo that, and then it is done again.
//
// # Witness
//
// A Pod gets a sidecar in the mutating phase of its create, as a policy that goes by
// reports selects it or an annotation asks for it; these entries come last, and are called
// again when others change the Pod. The decision is pure, on the object as it was sent. The
// validating phase looks at what all others have left. Whatever keeps a Pod from a sidecar
// admits it without one; the one denial is for a sidecar that would keep it from starting.
//
// The collector is a server of its own, on a port of its own, in every replica. It has a
// token reviewed (and keeps the verdict), takes a report only for the token's own Pod, and
// decides by a pure function of the report, the Pod and the time. Pods come from the
// informers of Recovery; where something is to be written, the Pod is read live, and the
// write is conditional on its UID and resourceVersion. Which of two reports is the later
// one stands in the condition itself, so that replicas need know nothing of each other.
// The answer says when to report again: belay-webhook watches the guarded objects of such
// policies for that, and keeps the records of those that wait.
//
// What joins collector and recovery is that condition: its evidence is read from the
// Pod, like all other.
//
// belay-controller brings the CA to where sidecars find it, as the live registration has
// it: a ConfigMap in every namespace with a mode, and a ClusterTrustBundle where the API
// server serves them.
//
// # Certificates
//
// The replicas of belay-webhook share a CA by a Secret and sign their certificates themselves,
// from the pair in memory where the API server is away. Whichever comes first makes the CA. The
// leader of belay-controller replaces it, in phases that a pure function decides on: the next CA
// is trusted, then it signs, then the former one is dropped. What is waited for are facts: what
// the live registrations and the sidecars' bundles have, and what each replica, ready or not,
// shows in a handshake. Or the certificate is read from files that others write, such as
// cert-manager. Either way the last good one is served while the next one cannot be used.
//
// # Health
//
// A process has a core: loops that it cannot do without (manager, certificates, collector).
// When one of them ends without being asked to, the process ends with 70. Probes are answered
// on a listener of their own, for as long as the process runs. One of them verifies the
// serving certificate by the caBundle of the live registrations, as the API server would.
//
// On SIGTERM readiness fails at once, and calls are answered for a while: others have to hear
// of it. Callers are told to close their connections, those over HTTP/2 in the second half of
// that while, since all calls of an API server share one and would come back.
//
// # Packages and their direction
//
//	api/v1alpha1               types, conditions, reasons, causes; no behaviour
//	client/spawn/names         pure, standard library only: names, and digests of work
//	client/{spawn,statuspatch,failfast}
//	                           the library for others; of belay it imports the names only
//	internal/{fact,wording}    what is known of a fact; other people's text in messages
//	internal/owner             decisions about owners: pure, (request, facts, policy) → decision
//	internal/naming            decisions about names: the same, in rounds
//	internal/recovery          decisions about statuses, evidence: the same, in rounds
//	internal/inject            decisions about sidecars in Pods; imports sidecar/settings, and of
//	                           sidecar no more
//	internal/expr              CEL, compiled and bounded
//	internal/facts             reads the cluster within a deadline, watches Pods, and guarded
//	                           objects that wait for them
//	internal/anchors           gets hold of an Anchor: the one write for owners
//	internal/replace           turns, and the one DELETE: the writes for names
//	internal/metrics           metrics with closed label sets
//	internal/admission         AdmissionReview ↔ decision: the HTTP edge of admission
//	internal/collector         report ↔ decision: the HTTP edge of sidecars, tokens, and the
//	                           write of the condition; imports sidecar/wire
//	internal/controller/...    plan.go decides and is pure, reconciler.go (recovery:
//	                           driver.go) reads and writes; trust distributes the CA
//	internal/certs             serving certificates, the CA and its rotation
//	internal/health            the core's loops, the probes, the check of the certificate
//	app                        flags, object graph, run: the one public door
//
// Each imports only what stands above it; test/deps holds it to that.
//
// A decision goes: decode, which policy (from the path), gather facts, decide, patch
// and respond, record. A fact that could not be found out is Unknown, the zero
// value, and has a stance in every rule. Nothing is deleted on an Unknown.
package webhook
