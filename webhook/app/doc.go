// Package app builds belay's two processes from their flags and runs them. It is
// the one public door to the packages behind it: everything is put together here
// and nothing is decided here.
package app
