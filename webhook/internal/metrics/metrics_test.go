package metrics

import (
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

// register runs once in a process, as the processes do it: -count repeats the tests.
var register = sync.OnceFunc(MustRegister)

// TestMetricsAreServed registers them as the processes do, and reads what a scrape
// would get. Names and labels are what dashboards and alerts are made of.
func TestMetricsAreServed(t *testing.T) {
	t.Parallel()
	register()
	Decisions.WithLabelValues("owner", "mutate", "enforce", Allowed, "Owned").Inc()
	Duration.WithLabelValues("owner", "mutate").Observe(0.01)
	Unreadable.WithLabelValues("400").Inc()
	Busy.Inc()
	Panics.WithLabelValues("owner").Inc()
	Anchors.WithLabelValues("Bound").Inc()
	Recoveries.WithLabelValues("Recovered").Inc()
	Reports.WithLabelValues(ReportAccepted, "Written").Inc()
	ReportDuration.Observe(0.01)
	ConditionsWritten.Inc()
	WithoutSidecar.Inc()
	RegistrationWrites.WithLabelValues("MutatingWebhookConfiguration", "ok").Inc()
	RegistrationEntries.WithLabelValues(EntryUntrusted).Set(1)
	Ready.WithLabelValues("listener").Set(1)
	CertificateExpiry.WithLabelValues(CertificateLeaf).Set(1)
	CertificateRenewal.WithLabelValues(CertificateLeaf).Set(1)
	CertificateLoads.WithLabelValues(CertificateFailed, "Mismatched").Inc()
	SetCertificateFault("Missing")
	SetCertificateFault("Mismatched")
	RotationPhase.WithLabelValues("steady").Set(1)
	RotationSteps.WithLabelValues("add", "ok").Inc()

	families, err := crmetrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "belay_") {
			continue
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		got[f.GetName()] = strings.Join(labels, " ")
		if f.GetHelp() == "" {
			t.Errorf("%s has no help", f.GetName())
		}
	}
	want := map[string]string{
		"belay_admission_decisions_total":             "decision mode phase reason webhook",
		"belay_admission_duration_seconds":            "phase webhook",
		"belay_admission_unreadable_total":            "code",
		"belay_admission_busy_total":                  "",
		"belay_admission_panics_total":                "webhook",
		"belay_anchor_transitions_total":              "reason",
		"belay_recovery_looks_total":                  "reason",
		"belay_reports_total":                         "reason result",
		"belay_report_duration_seconds":               "",
		"belay_conditions_written_total":              "",
		"belay_recovery_pods_without_sidecar_total":   "",
		"belay_registration_writes_total":             "kind result",
		"belay_registration_entries":                  "trust",
		"belay_ready":                                 "check",
		"belay_certificate_expiry_timestamp_seconds":  "certificate",
		"belay_certificate_renewal_timestamp_seconds": "certificate",
		"belay_certificate_fault":                     "reason",
		"belay_certificate_loads_total":               "reason result",
		"belay_ca_rotation_phase":                     "phase",
		"belay_ca_rotation_steps_total":               "result step",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
