// Package deps holds the dependency walls of belay: which package may import
// which, each forbidden import with its reason, and what may stand at the top
// level of the repository. It has tests only.
//
// The directions, as in CONTRIBUTING.md:
//
//	wire, api ← decisions ← facts ← admission, controller, collector ← app ← cmd
//
// and sidecar never imports webhook.
package deps
