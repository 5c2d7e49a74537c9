// Package naming decides how objects are named and how a create is answered whose
// name is taken. Everything here is pure: what the cluster looks like comes in as
// facts, time is one of them, and what has to be found out or done before deciding
// again goes out as a wish.
package naming
