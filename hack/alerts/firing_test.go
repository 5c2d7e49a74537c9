package alerts

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/template"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

const (
	// scrape is how often Prometheus asks, and evaluates; its default.
	scrape = time.Minute
	// minutesTold is how long a story is.
	minutesTold = 180
)

// healthy are series of a belay that works, as sampled reads them. A counter with labels is not
// there before it has counted.
var healthy = []string{
	`up{namespace="elsewhere", job="belay-webhook-replicas", pod="w-1"} 1x180`,
	`up{namespace="elsewhere", job="belay-webhook-replicas", pod="w-2"} 1x180`,
	`up{namespace="elsewhere", job="belay-controller-replicas", pod="c-1"} 1x180`,
	`up{namespace="elsewhere", job="belay-controller-replicas", pod="c-2"} 1x180`,
	`up{job="apiserver", instance="a-1"} 1x180`,
	`belay_ready{namespace="elsewhere", job="belay-webhook-replicas", pod="w-1", check="caches-synced"} 1x180`,
	`belay_ready{namespace="elsewhere", job="belay-webhook-replicas", pod="w-1", check="listener"} 1x180`,
	`belay_ready{namespace="elsewhere", job="belay-webhook-replicas", pod="w-2", check="caches-synced"} 1x180`,
	`belay_ready{namespace="elsewhere", job="belay-webhook-replicas", pod="w-2", check="listener"} 1x180`,
	`belay_ready{namespace="elsewhere", job="belay-controller-replicas", pod="c-1", check="caches-synced"} 1x180`,
	`belay_ready{namespace="elsewhere", job="belay-controller-replicas", pod="c-2", check="caches-synced"} 1x180`,
	`leader_election_master_status{namespace="elsewhere", job="belay-controller-replicas", pod="c-1", name="belay-controller"} 1x180`,
	`leader_election_master_status{namespace="elsewhere", job="belay-controller-replicas", pod="c-2", name="belay-controller"} 0x180`,
	// Somebody else's webhook is not reached.
	`apiserver_admission_webhook_rejection_count{name="a.example.com", type="admit", operation="CREATE", error_type="calling_webhook_error", rejection_code="503"} 0+60x180`,
	`apiserver_admission_webhook_fail_open_count{name="a.example.com", type="admit"} 0+60x180`,
	// belay was not reached long ago.
	`apiserver_admission_webhook_rejection_count{name="old.name.belay.dev", type="validating", operation="CREATE", error_type="calling_webhook_error", rejection_code="0"} 7x180`,
	`apiserver_admission_webhook_fail_open_count{name="old.owner.belay.dev", type="admit"} 7x180`,
	`belay_admission_busy_total{namespace="elsewhere", pod="w-1"} 7x180`,
	// belay denies what it is to deny.
	`apiserver_admission_webhook_rejection_count{name="jobs.name.belay.dev", type="validating", operation="CREATE", error_type="no_error", rejection_code="409"} 0+60x180`,
	`belay_admission_decisions_total{namespace="elsewhere", pod="w-1", webhook="owner", phase="mutate", mode="enforce", decision="allowed", reason="Owned"} 0+600x180`,
	`belay_admission_decisions_total{namespace="elsewhere", pod="w-1", webhook="owner", phase="mutate", mode="enforce", decision="allowed", reason="OwnerLookupFailed"} 0+1x180`,
	`belay_admission_duration_seconds_bucket{namespace="elsewhere", pod="w-1", webhook="owner", phase="mutate", le="0.5"} 0+600x180`,
	`belay_admission_duration_seconds_bucket{namespace="elsewhere", pod="w-1", webhook="owner", phase="mutate", le="1"} 0+600x180`,
	`belay_admission_duration_seconds_bucket{namespace="elsewhere", pod="w-1", webhook="owner", phase="mutate", le="2.5"} 0+600x180`,
	`belay_admission_duration_seconds_bucket{namespace="elsewhere", pod="w-1", webhook="owner", phase="mutate", le="+Inf"} 0+600x180`,
	`belay_registration_writes_total{namespace="elsewhere", pod="c-1", kind="MutatingWebhookConfiguration", result="ok"} 1+1x180`,
	`belay_registration_entries{namespace="elsewhere", pod="w-1", trust="trusted"} 4x180`,
	`belay_registration_entries{namespace="elsewhere", pod="w-1", trust="untrusted"} 0x180`,
	// A certificate of a week, renewed a minute after it is due, and a CA of a year.
	`belay_certificate_renewal_timestamp_seconds{namespace="elsewhere", pod="w-1", certificate="leaf"} 3600x61 406860x119`,
	`belay_certificate_expiry_timestamp_seconds{namespace="elsewhere", pod="w-1", certificate="leaf"} 205200x61 608460x119`,
	`belay_certificate_renewal_timestamp_seconds{namespace="elsewhere", pod="w-1", certificate="ca"} 20000000x180`,
	`belay_certificate_expiry_timestamp_seconds{namespace="elsewhere", pod="w-1", certificate="ca"} 30512000x180`,
	`belay_certificate_loads_total{namespace="elsewhere", pod="w-1", result="ok", reason="Renewed"} 1x60 2x120`,
	`belay_ca_rotation_phase{namespace="elsewhere", pod="c-1", phase="steady"} 0x20 1x160`,
	`belay_ca_rotation_phase{namespace="elsewhere", pod="c-1", phase="add"} 1x10 0x170`,
	`belay_ca_rotation_phase{namespace="elsewhere", pod="c-1", phase="serve"} 0x10 1x10 0x160`,
	`belay_reports_total{namespace="elsewhere", pod="w-1", result="accepted", reason="Written"} 0+600x180`,
	`belay_reports_total{namespace="elsewhere", pod="w-1", result="refused", reason="PodGone"} 0+600x180`,
	`belay_reports_total{namespace="elsewhere", pod="w-1", result="refused", reason="TooManyReports"} 0+1x180`,
}

// A story is what goes wrong, and which alerts tell it.
type story struct {
	// series take the place of those of healthy that have the same labels, or are added.
	series []string
	// away are names of metrics of healthy that are not there.
	away []string
	// fires are the summaries of what fires, each with when it does, in minutes.
	fires map[string]string
}

// TestEachAlertFiresWhenItIsTrueAndNotOtherwise evaluates all alerts as Prometheus does.
func TestEachAlertFiresWhenItIsTrueAndNotOtherwise(t *testing.T) {
	t.Parallel()
	stories := map[string]story{
		"all is well": {},
		"no replica of belay-webhook answers": {
			series: []string{
				`up{namespace="elsewhere", job="belay-webhook-replicas", pod="w-1"} 1x60 0x120`,
				`up{namespace="elsewhere", job="belay-webhook-replicas", pod="w-2"} 1x60 0x120`,
				`belay_ready{namespace="elsewhere", job="belay-webhook-replicas", pod="w-1", check="caches-synced"} 1x60 _x120`,
				`belay_ready{namespace="elsewhere", job="belay-webhook-replicas", pod="w-1", check="listener"} 1x60 _x120`,
				`belay_ready{namespace="elsewhere", job="belay-webhook-replicas", pod="w-2", check="caches-synced"} 1x60 _x120`,
				`belay_ready{namespace="elsewhere", job="belay-webhook-replicas", pod="w-2", check="listener"} 1x60 _x120`,
			},
			fires: map[string]string{
				"BelayWebhookDown: No replica of belay-webhook answers.":     "62-179",
				"BelayWebhookUnready: No replica of belay-webhook is ready.": "66-179",
				"BelayReplicaDown: Replica w-1 of belay does not answer.":    "70-179",
				"BelayReplicaDown: Replica w-2 of belay does not answer.":    "70-179",
			},
		},
		"there are no Pods of belay at all": {
			away: []string{"up", "belay_ready", "leader_election_master_status"},
			fires: map[string]string{
				"BelayWebhookDown: No replica of belay-webhook answers.":     "2-179",
				"BelayWebhookUnready: No replica of belay-webhook is ready.": "2-179",
				"BelayNoLeader: No replica of belay-controller works.":       "5-179",
			},
		},
		"all replicas answer, and none is ready": {
			series: []string{
				`belay_ready{namespace="elsewhere", job="belay-webhook-replicas", pod="w-1", check="listener"} 1x60 0x60 1x60`,
				`belay_ready{namespace="elsewhere", job="belay-webhook-replicas", pod="w-2", check="caches-synced"} 1x60 0x60 1x60`,
			},
			fires: map[string]string{
				"BelayWebhookUnready: No replica of belay-webhook is ready.": "62-119",
				"BelayReplicaUnready: Replica w-1 of belay is not ready.":    "70-119",
				"BelayReplicaUnready: Replica w-2 of belay is not ready.":    "70-119",
			},
		},
		"replicas come and go, and are never ready": {
			series: []string{
				`up{namespace="elsewhere", job="belay-webhook-replicas", pod="w-1"} 1x60` + strings.Repeat(" 0x2 1x1", 40),
				`up{namespace="elsewhere", job="belay-webhook-replicas", pod="w-2"} 1x60` + strings.Repeat(" 0x1 1x1 0x1", 40),
				`belay_ready{namespace="elsewhere", job="belay-webhook-replicas", pod="w-1", check="caches-synced"} 1x60` + strings.Repeat(" _x2 0x1", 40),
				`belay_ready{namespace="elsewhere", job="belay-webhook-replicas", pod="w-2", check="caches-synced"} 1x60` + strings.Repeat(" _x1 0x1 _x1", 40),
			},
			fires: map[string]string{
				"BelayWebhookUnready: No replica of belay-webhook is ready.": "64-179",
				"BelayReplicaUnready: Replica w-1 of belay is not ready.":    "72-179",
				"BelayReplicaUnready: Replica w-2 of belay is not ready.":    "71-179",
			},
		},
		"one replica is not ready for a while": {
			series: []string{`belay_ready{namespace="elsewhere", job="belay-controller-replicas", pod="c-2", check="caches-synced"} 1x60 0x30 1x90`},
			fires:  map[string]string{"BelayReplicaUnready: Replica c-2 of belay is not ready.": "70-89"},
		},
		"all replicas are not ready for a moment": {
			series: []string{
				`belay_ready{namespace="elsewhere", job="belay-webhook-replicas", pod="w-1", check="listener"} 1x60 0x2 1x118`,
				`belay_ready{namespace="elsewhere", job="belay-webhook-replicas", pod="w-2", check="listener"} 1x60 0x2 1x118`,
			},
		},
		"one replica is away for a while": {
			series: []string{`up{namespace="elsewhere", job="belay-controller-replicas", pod="c-2"} 1x60 0x30 1x90`},
			fires:  map[string]string{"BelayReplicaDown: Replica c-2 of belay does not answer.": "70-89"},
		},
		"nobody leads": {
			series: []string{`leader_election_master_status{namespace="elsewhere", job="belay-controller-replicas", pod="c-1", name="belay-controller"} 1x60 0x120`},
			fires:  map[string]string{"BelayNoLeader: No replica of belay-controller works.": "65-179"},
		},
		"API servers do not reach belay, and refuse": {
			series: []string{`apiserver_admission_webhook_rejection_count{name="otf.owner.belay.dev", type="admit", operation="CREATE", error_type="calling_webhook_error", rejection_code="503"} _x60 1+2x120`},
			fires:  map[string]string{"BelayCallsFail: API servers do not reach belay for otf.owner.belay.dev, and refuse what it is about.": "60-179"},
		},
		"one create in ten minutes is refused": {
			series: []string{`apiserver_admission_webhook_rejection_count{name="felis-restore.name.belay.dev", type="validating", operation="CREATE", error_type="calling_webhook_error", rejection_code="0"} _x60 1x10 2x10 3x10 4x10 5x10 6x70`},
			fires:  map[string]string{"BelayCallsFail: API servers do not reach belay for felis-restore.name.belay.dev, and refuse what it is about.": "60-123"},
		},
		"the first create ever is refused": {
			series: []string{`apiserver_admission_webhook_rejection_count{name="felis-restore.name.belay.dev", type="validating", operation="CREATE", error_type="calling_webhook_error", rejection_code="0"} _x60 1x120`},
			fires:  map[string]string{"BelayCallsFail: API servers do not reach belay for felis-restore.name.belay.dev, and refuse what it is about.": "60-74"},
		},
		"one create is refused by an API server that was started anew": {
			series: []string{`apiserver_admission_webhook_rejection_count{name="felis-restore.name.belay.dev", type="validating", operation="CREATE", error_type="calling_webhook_error", rejection_code="0"} 7x50 _x10 1x120`},
			fires:  map[string]string{"BelayCallsFail: API servers do not reach belay for felis-restore.name.belay.dev, and refuse what it is about.": "60-63"},
		},
		"Prometheus did not see the API server for half an hour": {
			series: []string{
				`up{job="apiserver", instance="a-1"} 1x60 0x30 1x90`,
				`apiserver_admission_webhook_rejection_count{name="old.name.belay.dev", type="validating", operation="CREATE", error_type="calling_webhook_error", rejection_code="0"} 7x60 _x30 7x90`,
				`apiserver_admission_webhook_fail_open_count{name="old.owner.belay.dev", type="admit"} 7x60 _x30 7x90`,
			},
		},
		"API servers do not reach belay, and go on": {
			series: []string{`apiserver_admission_webhook_fail_open_count{name="annotation.belay.dev", type="admit"} _x60 1+2x120`},
			fires:  map[string]string{"BelayPassedOver: API servers do not reach belay for annotation.belay.dev, and go on without it.": "60-179"},
		},
		"one create in ten minutes is passed over": {
			series: []string{`apiserver_admission_webhook_fail_open_count{name="otf.owner.belay.dev", type="admit"} _x60 1x10 2x10 3x10 4x10 5x10 6x70`},
			fires:  map[string]string{"BelayPassedOver: API servers do not reach belay for otf.owner.belay.dev, and go on without it.": "60-138"},
		},
		"the first create ever is passed over": {
			series: []string{`apiserver_admission_webhook_fail_open_count{name="otf.owner.belay.dev", type="admit"} _x60 1x120`},
			fires:  map[string]string{"BelayPassedOver: API servers do not reach belay for otf.owner.belay.dev, and go on without it.": "60-89"},
		},
		"a review is put off": {
			series: []string{`belay_admission_busy_total{namespace="elsewhere", pod="w-1"} 7x60 8x120`},
			fires:  map[string]string{"BelayBusy: w-1 puts reviews off: too many are under way, or too large ones.": "60-73"},
		},
		"reviews take two seconds": {
			series: []string{
				`belay_admission_duration_seconds_bucket{namespace="elsewhere", pod="w-1", webhook="owner", phase="mutate", le="0.5"} 0+600x60 36000+540x120`,
				`belay_admission_duration_seconds_bucket{namespace="elsewhere", pod="w-1", webhook="owner", phase="mutate", le="1"} 0+600x60 36000+540x120`,
			},
			fires: map[string]string{"BelaySlow: One of a hundred reviews (owner, mutate) takes more than a second.": "71-179"},
		},
		"look-ups fail": {
			series: []string{`belay_admission_decisions_total{namespace="elsewhere", pod="w-1", webhook="name", phase="validate", mode="enforce", decision="denied", reason="LookupFailed"} _x60 7+7x120`},
			fires:  map[string]string{"BelayCannotFindOut: belay cannot find out what it needs to decide (name, LookupFailed).": "71-179"},
		},
		"five creates in a minute, whose look-ups all fail for an hour": {
			series: []string{`belay_admission_decisions_total{namespace="elsewhere", pod="w-1", webhook="name", phase="validate", mode="enforce", decision="denied", reason="LookupFailed"} _x60 5+5x60 300x60`},
			fires:  map[string]string{"BelayCannotFindOut: belay cannot find out what it needs to decide (name, LookupFailed).": "71-127"},
		},
		"one look-up in a hundred fails, for an hour": {
			series: []string{`belay_admission_decisions_total{namespace="elsewhere", pod="w-1", webhook="owner", phase="mutate", mode="enforce", decision="allowed", reason="OwnerLookupFailed"} 0+1x60 60+7x60 480x60`},
			fires:  map[string]string{"BelayCannotFindOut: belay cannot find out what it needs to decide (owner, OwnerLookupFailed).": "78-121"},
		},
		"look-ups fail for a moment": {
			series: []string{
				`belay_admission_decisions_total{namespace="elsewhere", pod="w-1", webhook="name", phase="validate", mode="enforce", decision="allowed", reason="NameFree"} 0+5x180`,
				`belay_admission_decisions_total{namespace="elsewhere", pod="w-1", webhook="name", phase="validate", mode="enforce", decision="denied", reason="LookupFailed"} 1x60 31x120`,
			},
		},
		"of few look-ups some fail, and fewer than three in ten minutes": {
			series: []string{`belay_admission_decisions_total{namespace="elsewhere", pod="w-1", webhook="name", phase="validate", mode="enforce", decision="denied", reason="LookupFailed"} _x30 1x6 2x6 3x6 4x6 5x6 6x120`},
		},
		"one panic": {
			series: []string{`belay_admission_panics_total{namespace="elsewhere", pod="w-1", webhook="owner"} _x60 1x120`},
			fires:  map[string]string{"BelayPanics: belay-webhook has met a bug of its own (owner).": "60-119"},
		},
		"one more panic": {
			series: []string{`belay_admission_panics_total{namespace="elsewhere", pod="w-1", webhook="owner"} 1x100 2x80`},
			fires: map[string]string{
				// Of the one that was there from the beginning, nobody knows when it was.
				"BelayPanics: belay-webhook has met a bug of its own (owner).": "0-59, 100-158",
			},
		},
		"somebody fights for a registration": {
			series: []string{`belay_registration_writes_total{namespace="elsewhere", pod="c-1", kind="MutatingWebhookConfiguration", result="held"} _x60 1+1x120`},
			fires:  map[string]string{"BelayRegistrationContested: The MutatingWebhookConfiguration of belay cannot be kept as policies want it (held).": "81-179"},
		},
		"somebody changed a registration once": {
			series: []string{`belay_registration_writes_total{namespace="elsewhere", pod="c-1", kind="MutatingWebhookConfiguration", result="held"} 1x60 2x120`},
		},
		// With attempts that somebody slows down to one in sixteen minutes, and in seventeen.
		"the API server refuses a registration": {
			series: []string{`belay_registration_writes_total{namespace="elsewhere", pod="c-1", kind="MutatingWebhookConfiguration", result="error"} 1x10 15x3 16x5 17x11 18x17 19x16 20x17 21x17 22x16 23x17 24x51`},
			fires:  map[string]string{"BelayRegistrationContested: The MutatingWebhookConfiguration of belay cannot be kept as policies want it (error).": "30-147"},
		},
		"an entry trusts another CA": {
			series: []string{`belay_registration_entries{namespace="elsewhere", pod="w-1", trust="untrusted"} 0x60 2x60 0x60`},
			fires:  map[string]string{"BelayEntryUntrusted: The API server calls w-1 for some entries no more: their caBundle does not trust its certificate.": "70-123"},
		},
		"somebody undoes it time and again": {
			series: []string{`belay_registration_entries{namespace="elsewhere", pod="w-1", trust="untrusted"} 0x60 1x1 0x2 1x1 0x3 1x1 0x2 1x1 0x3 1x1 0x105`},
			fires:  map[string]string{"BelayEntryUntrusted: The API server calls w-1 for some entries no more: their caBundle does not trust its certificate.": "70-78"},
		},
		"an entry was put right at once": {
			series: []string{`belay_registration_entries{namespace="elsewhere", pod="w-1", trust="untrusted"} 0x60 1x1 0x119`},
		},
		"a certificate is not renewed": {
			series: []string{
				`belay_certificate_renewal_timestamp_seconds{namespace="elsewhere", pod="w-1", certificate="leaf"} -97200x180`,
				`belay_certificate_expiry_timestamp_seconds{namespace="elsewhere", pod="w-1", certificate="leaf"} 104400x180`,
			},
			fires: map[string]string{"BelayCertificateExpires: The certificate that w-1 serves expires soon, and should have been renewed.": "66-179"},
		},
		"a certificate of three days is renewed an hour too late": {
			series: []string{
				`belay_certificate_renewal_timestamp_seconds{namespace="elsewhere", pod="w-1", certificate="leaf"} -39600x120 180000x60`,
				`belay_certificate_expiry_timestamp_seconds{namespace="elsewhere", pod="w-1", certificate="leaf"} 46800x120 266400x60`,
			},
			fires: map[string]string{"BelayCertificateExpires: The certificate that w-1 serves expires soon, and should have been renewed.": "66-119"},
		},
		"certificates of three days are renewed": {
			series: []string{
				`belay_certificate_renewal_timestamp_seconds{namespace="elsewhere", pod="w-1", certificate="leaf"} 3600x61 176460x119`,
				`belay_certificate_expiry_timestamp_seconds{namespace="elsewhere", pod="w-1", certificate="leaf"} 90000x61 262860x119`,
			},
		},
		"certificates of an hour are renewed": {
			series: []string{
				`belay_certificate_renewal_timestamp_seconds{namespace="elsewhere", pod="w-1", certificate="leaf"} 2400x41 4860x41 7320x41 9780x41 12240x16`,
				`belay_certificate_expiry_timestamp_seconds{namespace="elsewhere", pod="w-1", certificate="leaf"} 3600x41 6060x41 8520x41 10980x41 13440x16`,
			},
		},
		"the CA is not replaced": {
			series: []string{
				`belay_certificate_renewal_timestamp_seconds{namespace="elsewhere", pod="w-1", certificate="ca"} -5252400x180`,
				`belay_certificate_expiry_timestamp_seconds{namespace="elsewhere", pod="w-1", certificate="ca"} 5259600x180`,
			},
			fires: map[string]string{"BelayCAExpires: The CA of w-1 has a sixth of its life left, and should have been replaced.": "76-179"},
		},
		"the CA is replaced too late": {
			series: []string{
				`belay_certificate_renewal_timestamp_seconds{namespace="elsewhere", pod="w-1", certificate="ca"} -5252400x120 20000000x60`,
				`belay_certificate_expiry_timestamp_seconds{namespace="elsewhere", pod="w-1", certificate="ca"} 5259600x120 30512000x60`,
			},
			fires: map[string]string{"BelayCAExpires: The CA of w-1 has a sixth of its life left, and should have been replaced.": "76-119"},
		},
		"a CA of somebody else's, of ninety days, is replaced": {
			series: []string{
				`belay_certificate_renewal_timestamp_seconds{namespace="elsewhere", pod="w-1", certificate="ca"} 3600x61 5187660x119`,
				`belay_certificate_expiry_timestamp_seconds{namespace="elsewhere", pod="w-1", certificate="ca"} 2595600x61 7779660x119`,
			},
		},
		"a certificate cannot be used": {
			series: []string{`belay_certificate_fault{namespace="elsewhere", pod="w-1", reason="Mismatched"} _x60 1x60 _x60`},
			fires:  map[string]string{"BelayCertificateUnusable: w-1 serves an old certificate, since the new one cannot be used (Mismatched).": "75-123"},
		},
		"a certificate cannot be used for a moment": {
			series: []string{`belay_certificate_fault{namespace="elsewhere", pod="w-1", reason="Missing"} _x60 1x5 _x115`},
		},
		"a rotation gets stuck": {
			series: []string{
				`belay_ca_rotation_phase{namespace="elsewhere", pod="c-1", phase="serve"} 0x10 1x170`,
				`belay_ca_rotation_phase{namespace="elsewhere", pod="c-1", phase="steady"} 0x180`,
			},
			fires: map[string]string{`BelayRotationStuck: The rotation of belay's CA stays in its phase "serve".`: "130-179"},
		},
		"another controller leads in the middle of a rotation that is stuck": {
			series: []string{
				`belay_ca_rotation_phase{namespace="elsewhere", pod="c-1", phase="serve"} 0x10 1x50 0x120`,
				`belay_ca_rotation_phase{namespace="elsewhere", pod="c-1", phase="steady"} 0x60 0x120`,
				`belay_ca_rotation_phase{namespace="elsewhere", pod="c-2", phase="serve"} _x60 1x120`,
			},
			fires: map[string]string{`BelayRotationStuck: The rotation of belay's CA stays in its phase "serve".`: "130-179"},
		},
		"sidecars are put off": {
			series: []string{`belay_reports_total{namespace="elsewhere", pod="w-2", result="refused", reason="TooManyReports"} _x60 60+60x120`},
			fires:  map[string]string{"BelayReportsFail: Reports of sidecars are put off (TooManyReports).": "72-179"},
		},
		"the sidecars of a quiet cluster are put off": {
			away: []string{"belay_reports_total"},
			series: []string{
				`belay_reports_total{namespace="elsewhere", pod="w-2", result="accepted", reason="Written"} 1+2x180`,
				`belay_reports_total{namespace="elsewhere", pod="w-2", result="refused", reason="ReviewFailed"} _x60 1+2x120`,
			},
			fires: map[string]string{"BelayReportsFail: Reports of sidecars are put off (ReviewFailed).": "71-179"},
		},
		"few of the sidecars of a quiet cluster are put off": {
			away: []string{"belay_reports_total"},
			series: []string{
				`belay_reports_total{namespace="elsewhere", pod="w-2", result="accepted", reason="Written"} 1+10x180`,
				`belay_reports_total{namespace="elsewhere", pod="w-2", result="refused", reason="ReviewFailed"} _x60 1+2x120`,
			},
		},
	}
	all := rules(t)
	told := map[string]bool{}
	for name, s := range stories {
		for summary := range s.fires {
			alert, _, _ := strings.Cut(summary, ":")
			told[alert] = true
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := s.fires
			if want == nil {
				want = map[string]string{}
			}
			if diff := cmp.Diff(want, fired(t, all, s)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	for alert := range all {
		if !told[alert] {
			t.Errorf("no story has %s fire", alert)
		}
	}
}

// fired are the summaries of the alerts that fire in a story, with the minutes in which they do.
func fired(t *testing.T, all map[string]rulefmt.Rule, s story) map[string]string {
	t.Helper()
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples: 1_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, EnableAtModifier: true, EnableNegativeOffset: true, Parser: language,
	})
	t.Cleanup(func() { _ = engine.Close() })
	data := database(t, s)
	minutes := map[string][]int{}
	for name, rule := range all {
		query, err := engine.NewRangeQuery(t.Context(), data, nil, rule.Expr, time.Unix(0, 0), time.Unix(0, 0).Add((minutesTold-1)*scrape), scrape)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		result := query.Exec(t.Context())
		matrix, err := result.Matrix()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, warning := range result.Warnings.AsErrors() {
			t.Errorf("%s: %v", name, warning)
		}
		for _, series := range matrix {
			var since, last int64 = -1, -1
			for _, sample := range series.Floats {
				if since < 0 || sample.T-last > scrape.Milliseconds() {
					since = sample.T
				}
				last = sample.T
				if sample.T-since < time.Duration(rule.For).Milliseconds() {
					continue
				}
				said := name + ": " + expanded(t, rule, series.Metric, sample)
				minutes[said] = append(minutes[said], int(sample.T/scrape.Milliseconds()))
			}
		}
		query.Close()
	}
	out := map[string]string{}
	for said, m := range minutes {
		slices.Sort(m)
		out[said] = spans(m)
	}
	return out
}

// spans are the intervals that sorted numbers make.
func spans(sorted []int) string {
	var out []string
	for i := 0; i < len(sorted); {
		j := i
		for j+1 < len(sorted) && sorted[j+1] <= sorted[j]+1 {
			j++
		}
		out = append(out, fmt.Sprintf("%d-%d", sorted[i], sorted[j]))
		i = j + 1
	}
	return strings.Join(out, ", ")
}

// expanded is the summary of an alert; its other annotations must be expandable, too.
func expanded(t *testing.T, rule rulefmt.Rule, metric labels.Labels, sample promql.FPoint) string {
	t.Helper()
	data := template.AlertTemplateData(metric.Map(), nil, "", promql.Sample{T: sample.T, F: sample.F, Metric: metric})
	said := map[string]string{}
	for _, texts := range []map[string]string{rule.Annotations, rule.Labels} {
		for name, text := range texts {
			// These are what an alert's templates may take for granted.
			text = `{{$labels := .Labels}}{{$externalLabels := .ExternalLabels}}{{$externalURL := .ExternalURL}}{{$value := .Value}}` + text
			e := template.NewTemplateExpander(t.Context(), text, name, data, model.Time(sample.T), nil, nil, nil)
			var err error
			if said[name], err = e.Expand(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	return said["summary"]
}

// database has the series of a story.
func database(t *testing.T, s story) storage.Queryable {
	t.Helper()
	all := map[string]storage.Series{}
	add := func(described string) {
		at := strings.LastIndex(described, "} ") + 1
		metric, err := language.ParseMetric(described[:at])
		if err != nil {
			t.Fatalf("%s: %v", described, err)
		}
		samples, err := sampled(described[at:])
		if err != nil {
			t.Fatalf("%s: %v", described, err)
		}
		all[metric.String()] = storage.NewListSeries(metric, samples)
	}
	for _, d := range healthy {
		add(d)
	}
	maps.DeleteFunc(all, func(_ string, series storage.Series) bool {
		return slices.Contains(s.away, series.Labels().Get(model.MetricNameLabel))
	})
	for _, d := range s.series {
		add(d)
	}
	return memory(all)
}

// sampled are the samples that a text describes, one a minute: "1x60 _x10 5+2x110" is 1 sixty
// times, none for ten minutes, and then 5, 7, 9 and so on.
func sampled(described string) (samples []chunks.Sample, err error) {
	minute := 0
	for word := range strings.FieldsSeq(described) {
		value, times, _ := strings.Cut(word, "x")
		n, err := strconv.Atoi(times)
		if err != nil {
			return nil, err
		}
		first, step, steps := strings.Cut(value, "+")
		var from, by float64
		if value != "_" {
			if from, err = strconv.ParseFloat(first, 64); err != nil {
				return nil, err
			}
		}
		if steps {
			if by, err = strconv.ParseFloat(step, 64); err != nil {
				return nil, err
			}
		}
		for i := range n {
			if value != "_" {
				samples = append(samples, sample{at: int64(minute) * scrape.Milliseconds(), value: from + float64(i)*by})
			}
			minute++
		}
	}
	if minute != minutesTold {
		return nil, fmt.Errorf("%d minutes, and a story has %d", minute, minutesTold)
	}
	return samples, nil
}

// sample is a number at a time, in milliseconds.
type sample struct {
	at    int64
	value float64
}

func (s sample) T() int64                      { return s.at }
func (s sample) ST() int64                     { return 0 }
func (s sample) F() float64                    { return s.value }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }

// memory is a storage of finished series.
type memory map[string]storage.Series

func (m memory) Querier(int64, int64) (storage.Querier, error) { return querier(m), nil }

type querier map[string]storage.Series

func (q querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	set := &seriesSet{at: -1}
	for _, key := range slices.Sorted(maps.Keys(q)) {
		has := q[key].Labels()
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(has.Get(m.Name)) }) {
			set.series = append(set.series, q[key])
		}
	}
	return set
}

func (querier) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (querier) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (querier) Close() error { return nil }

type seriesSet struct {
	series []storage.Series
	at     int
}

func (s *seriesSet) Next() bool                        { s.at++; return s.at < len(s.series) }
func (s *seriesSet) At() storage.Series                { return s.series[s.at] }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }
