// Package webhook holds everything that runs in belay's own Deployments.
//
// # Architecture
//
//	kubectl, controllers ──create──▶ kube-apiserver ──AdmissionReview──▶ belay-webhook
//	                                   ▲    ▲                              (N replicas, no state)
//	           policies, Anchors, registrations
//	                                   │    └── reads owners, creates Anchors
//	                            belay-controller (one works at a time)
//
// A policy is accepted and registered by belay-controller: one webhook entry a
// policy, so that the API server does the matching. belay-webhook decides each
// create on its own. What joins the two is stored in the cluster: the spec in force,
// in a policy's status, and Anchors.
//
// # Packages and their direction
//
//	api/v1alpha1               types, conditions, reasons; no behaviour
//	internal/owner             the decisions: pure, (request, facts, policy) → decision
//	internal/expr              CEL, compiled and bounded
//	internal/facts             reads the cluster within a deadline
//	internal/anchors           gets hold of an Anchor: the one write of admission
//	internal/admission         AdmissionReview ↔ decision: the one HTTP edge
//	internal/controller/...    plan.go decides and is pure, reconciler.go reads and writes
//	internal/metrics           metrics with closed label sets
//	app                        flags, object graph, run: the one public door
//
// Each imports only what stands above it; test/deps holds it to that.
//
// A decision goes: decode, which policy (from the path), gather facts, decide, patch
// and respond, record. A fact that could not be found out is Unknown, the zero
// value, and has a stance in every rule.
package webhook
