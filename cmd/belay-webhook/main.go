// Command belay-webhook: see --help.
package main

import (
	"os"

	"github.com/belay-dev/belay/webhook/app"
)

func main() {
	os.Exit(app.Main(app.NewWebhookCommand(), os.Args[1:], os.Stderr))
}
