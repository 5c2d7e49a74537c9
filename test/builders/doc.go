// Package builders makes objects for tests: MakeX().Y().Obj(). A builder starts
// from what the API server would store after defaulting, so that a test says only
// what it is about.
package builders
