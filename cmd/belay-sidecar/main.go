// Command belay-sidecar reports a pod's main container's readiness from inside the pod.
// Package app has the manual.
package main

import (
	"os"

	"github.com/belay-dev/belay/sidecar/app"
)

func main() { os.Exit(app.Main(os.Args[1:], os.Getenv, os.Stdout, os.Stderr)) }
