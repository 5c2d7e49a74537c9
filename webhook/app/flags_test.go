package app

import (
	"testing"

	"github.com/belay-dev/belay/webhook/internal/certs"
)

// sane are flags that make sense.
func sane() *controllerOptions {
	return &controllerOptions{common: common{namespace: "belay-system", caSecret: "belay-ca", metricsAddr: "0", probeAddr: "0"}, webhookPort: 443, webhookService: "belay-webhook", webhookAccount: "a", controllerAccount: "b", replicasService: "c", lives: certs.Lives{CA: certs.DefaultCALife, Settle: certs.DefaultSettle}}
}

func TestFlagsOfTheControllerThatMakeNoSense(t *testing.T) {
	for name, change := range map[string]func(*controllerOptions){
		"port 0":           func(o *controllerOptions) { o.webhookPort = 0 },
		"port 70000":       func(o *controllerOptions) { o.webhookPort = 70000 },
		"an empty service": func(o *controllerOptions) { o.webhookService = "" },
		"inject-ca-from":   func(o *controllerOptions) { o.injectCAFrom = "belay-webhook" },
		"lease < renew": func(o *controllerOptions) {
			o.leaderElect, o.leaseDuration, o.renewDeadline, o.retryPeriod = true, 5, 10, 1
		},
		"a URL's fragment": func(o *controllerOptions) { o.webhookURL = "https://localhost:9443#x" },
	} {
		o := sane()
		change(o)
		if err := o.complete(); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
