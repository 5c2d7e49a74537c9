// Package certs keeps belay's serving certificates: a CA of belay's own that is replaced
// without a lost call, or files that somebody else writes.
//
// The replicas of belay-webhook share the CA by a Secret and sign their certificates
// themselves (Source): one that is cut off from the API server goes on renewing. Whichever
// comes first makes the first CA. The leader of belay-controller replaces it (Rotation), in
// phases that Next decides on; each step is one conditional update of the Secret.
//
// All waits are bounded by the clock on the wall, looked at again and again: a timer that was
// set for the day of the renewal would not go off after a suspended machine wakes up.
package certs
