// Command belay-controller: see --help.
package main

import (
	"os"

	"github.com/belay-dev/belay/webhook/app"
)

func main() {
	os.Exit(app.Main(app.NewControllerCommand(), os.Args[1:], os.Stderr))
}
