package health

import (
	"net/http"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/healthz"

	"github.com/belay-dev/belay/webhook/internal/metrics"
)

// forgotten is how long what a check has found is told when nobody asks any more: kubelets ask
// every two or five seconds, and are late on a node that is busy.
const forgotten = time.Minute

// measured makes checks tell the metrics what they find when they are asked. They are not asked for
// a scrape: what decides on calls is what the kubelet hears, and one that does not reach the probes,
// or has hung up before the answer, takes this replica for one that is not ready.
func measured(checks map[string]healthz.Checker) map[string]healthz.Checker {
	out := make(map[string]healthz.Checker, len(checks))
	for name, check := range checks {
		gauge := metrics.Ready.WithLabelValues(name)
		gauge.Set(0)
		forget := time.AfterFunc(forgotten, func() { gauge.Set(0) })
		out[name] = func(r *http.Request) error {
			err := check(r)
			forget.Reset(forgotten)
			if err == nil && r.Context().Err() == nil {
				gauge.Set(1)
			} else {
				gauge.Set(0)
			}
			return err
		}
	}
	return out
}
