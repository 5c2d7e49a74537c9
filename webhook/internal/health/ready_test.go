package health

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	"github.com/belay-dev/belay/webhook/internal/metrics"
)

// measures are what the metric says of checks. It is the process's: names are a test's own.
func measures(t *testing.T, names ...string) map[string]float64 {
	t.Helper()
	out := gauges(t, metrics.Ready)
	maps.DeleteFunc(out, func(name string, _ float64) bool { return !slices.Contains(names, name) })
	return out
}

func TestTheMetricSaysWhatACheckFoundLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const name = "measured"
		var found error
		gone, hangUp := context.WithCancel(t.Context())
		check := measured(map[string]healthz.Checker{name: func(r *http.Request) error {
			if r.Context() == gone {
				hangUp()
			}
			return found
		}})[name]
		is := func(want float64, when string) {
			t.Helper()
			if diff := cmp.Diff(map[string]float64{name: want}, measures(t, name)); diff != "" {
				t.Errorf("%s (-want +got)\n%s", when, diff)
			}
		}
		ask := func(ctx context.Context) {
			t.Helper()
			if err := check(probe().WithContext(ctx)); !errors.Is(err, found) {
				t.Errorf("the answer is another one: %v", err)
			}
		}
		is(0, "nobody has asked yet")
		ask(t.Context())
		is(1, "it passes")
		found = errors.New("no")
		ask(t.Context())
		is(0, "it fails")
		found = nil
		ask(t.Context())
		is(1, "it passes again")
		ask(gone)
		is(0, "who asked has hung up before the answer")
		for range 10 {
			ask(t.Context())
			<-time.After(forgotten - time.Second)
			is(1, "asked less than a minute ago")
		}
		<-time.After(2 * time.Second)
		is(0, "nobody asks any more")
		ask(t.Context())
		is(1, "asked again")
	})
}

func TestWhatDecidesOnReadinessIsMeasured(t *testing.T) {
	t.Parallel()
	never := &Flag{Missing: "never"}
	address := serve(t, "127.0.0.1:0",
		map[string]healthz.Checker{"one of the live ones": healthz.Ping},
		map[string]healthz.Checker{"one that passes": healthz.Ping, "one that fails": never.Check})
	for _, c := range []struct {
		path string
		want map[string]float64
	}{
		{"/livez", map[string]float64{"one that passes": 0, "one that fails": 0}},
		{"/readyz/one%20that%20fails", map[string]float64{"one that passes": 0, "one that fails": 0}},
		{"/readyz", map[string]float64{"one that passes": 1, "one that fails": 0}},
	} {
		get(t, "http://"+address+c.path)
		if diff := cmp.Diff(c.want, measures(t, "one of the live ones", "one that passes", "one that fails")); diff != "" {
			t.Errorf("%s (-want +got)\n%s", c.path, diff)
		}
	}
}
