// Package facts reads the cluster within a deadline and says what it could not
// read. It decides nothing: an owner that was not found is Absent, one that
// could not be looked up is Unknown with a cause, and what follows from either is
// the business of the decision packages.
package facts
