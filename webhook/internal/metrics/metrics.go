// Package metrics holds belay's own metrics. All label sets are closed.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Values of the label decision.
const (
	Allowed = "allowed"
	Denied  = "denied"
)

// Values of the label result of reports.
const (
	ReportAccepted = "accepted"
	ReportRefused  = "refused"
)

// Values of the label certificate, and of the label result of loads.
const (
	CertificateLeaf = "leaf"
	CertificateCA   = "ca"

	CertificateLoaded = "ok"
	CertificateFailed = "failed"
)

// Values of the label trust of entries.
const (
	EntryTrusted   = "trusted"
	EntryUntrusted = "untrusted"
)

var (
	// Decisions counts admission decisions.
	Decisions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "belay_admission_decisions_total",
		Help: "Admission decisions by webhook (owner, name, recovery, sidecar), phase (mutate, validate), mode (enforce, warn), decision (allowed, denied) and reason.",
	}, []string{"webhook", "phase", "mode", "decision", "reason"})

	// Duration is how long a review took from its last byte to the answer.
	Duration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "belay_admission_duration_seconds",
		Help:    "Time to answer one admission review, by webhook and phase.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
	}, []string{"webhook", "phase"})

	// Unreadable counts requests that were no admission reviews.
	Unreadable = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "belay_admission_unreadable_total",
		Help: "Requests that could not be answered as admission reviews, by HTTP status code.",
	}, []string{"code"})

	// Busy counts reviews that were put off.
	Busy = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "belay_admission_busy_total",
		Help: "Reviews that were answered with 503 and Retry-After since too many, or too large ones, were under way. The API server tries again within its time-out; where none of that helps, it is a failed call.",
	})

	// Panics counts panics that were turned into an answer.
	Panics = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "belay_admission_panics_total",
		Help: "Panics while answering admission reviews, by webhook, and (webhook collector) while taking reports. Each is a bug.",
	}, []string{"webhook"})

	// Anchors counts what became of Anchors.
	Anchors = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "belay_anchor_transitions_total",
		Help: "What became of Anchors, by reason: Bound, Released, OwnerOverdue, Expired, BindFailed, OwnerAmbiguous, OwnerLookupFailed.",
	}, []string{"reason"})

	// Recoveries counts what came of looking at failed objects.
	Recoveries = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "belay_recovery_looks_total",
		Help: "Looks of belay-controller at failed objects, by what came of them: Recovered, AllowedByAnnotation, the reason why not (PodGone, PodReplaced, PodDeleting, PodNotRunning, PodNotReady, MainMissing, MainNotRunning, ReportMissing, ReportStale, ReportNotReady, Overflow, OtherPodFailing, Terminal, NoRecord), Conflict, WriteRefused, or Contested (brought back again and again).",
	}, []string{"reason"})

	// WithoutSidecar counts Pods that hold up a recovery since they have no sidecar.
	WithoutSidecar = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "belay_recovery_pods_without_sidecar_total",
		Help: "Pods that a recovery waits for, and that have no sidecar which could report on them: they were created while belay was not asked (it was away and the failure policy is Ignore, or an API server did not know of the namespace's label yet), or they declined. Each is counted once while its object waits; its event is RecoveryWaits.",
	})

	// Reports counts what came of sidecars' reports.
	Reports = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "belay_reports_total",
		Help: "Reports of sidecars by result (accepted, refused) and reason. accepted: Written, Unchanged, Late, EarlierRun, NotRunning, Finished, PutOff. refused: NoToken, WrongAudience, UnboundToken, TokenExpired, TokenInvalid, OtherPod, NamespaceNotEnforced, PodGone, PodReplaced, PodDeleting, NoSuchContainer, Unreadable; and, to be sent again, TooManyReports, ReviewFailed, LookupFailed, InternalError.",
	}, []string{"result", "reason"})

	// ReportDuration is how long a report took from its head to the answer.
	ReportDuration = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "belay_report_duration_seconds",
		Help:    "Time to take one report of a sidecar, with the write of the condition where there is one.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
	})

	// ConditionsWritten counts writes of Pods' conditions.
	ConditionsWritten = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "belay_conditions_written_total",
		Help: "Writes of the condition belay.dev/MainReady.",
	})

	// RegistrationWrites counts writes of the webhook registrations.
	RegistrationWrites = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "belay_registration_writes_total",
		Help: "Writes of webhook configurations, by kind and result (ok, error, held): held is a repair that another writer undid before and that is put off.",
	}, []string{"kind", "result"})

	// RegistrationEntries are the entries by which the API server calls this replica.
	RegistrationEntries = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "belay_registration_entries",
		Help: "Entries of belay's own in the live webhook configurations, by whether the API server would trust this replica's serving certificate for them (trusted, untrusted). An untrusted one is one that the API server does not call: it refuses what the entry is about, or goes on without belay, as its failurePolicy says. Looked at when readiness is asked for, every 5 s at most.",
	}, []string{"trust"})

	// Ready is what the checks of readiness found.
	Ready = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "belay_ready",
		Help: "Whether a check of /readyz (live, draining, caches-synced, policies-compiled, listener, collector, certificate) has passed when it was asked for last, by whoever that was: 1 or 0. 0 as well where nobody has asked for a minute, such as a kubelet that does not reach the probes.",
	}, []string{"check"})

	// CertificateExpiry is when certificates expire.
	CertificateExpiry = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "belay_certificate_expiry_timestamp_seconds",
		Help: "When the serving certificate (leaf) expires, and the CA that belay manages itself (ca), in seconds since 1970.",
	}, []string{"certificate"})

	// CertificateRenewal is when certificates are due.
	CertificateRenewal = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "belay_certificate_renewal_timestamp_seconds",
		Help: "When the serving certificate (leaf) is due to be renewed, and the CA that belay manages itself (ca), in seconds since 1970: a third of its life before it expires. Of a certificate that others make that is an assumption, by its own dates.",
	}, []string{"certificate"})

	// CertificateLoads counts serving certificates that were made or read, or could not be.
	CertificateLoads = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "belay_certificate_loads_total",
		Help: "Serving certificates made or read, by result (ok, failed) and reason. ok: Renewed (signed by belay's own CA), Read (from --cert-dir). failed, and the former one is served on: Missing, Empty, Unreadable, Mismatched (the key is another certificate's), NotCA, LookupFailed, WriteFailed. What fails in the same way again and again is counted once.",
	}, []string{"result", "reason"})

	// CertificateFault is what is wrong with the certificate now; see SetCertificateFault.
	CertificateFault = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "belay_certificate_fault",
		Help: "1 as long as a certificate could not be made or read when it was looked at last, by the reason that belay_certificate_loads_total has counted as failed. There is no series while all is well.",
	}, []string{"reason"})

	// RotationPhase is the phase in which the CA's rotation is.
	RotationPhase = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "belay_ca_rotation_phase",
		Help: "1 for the phase in which the rotation of belay's CA is, 0 for the others: steady, add (the next CA is being trusted), serve (it signs, and the former one is still trusted). Of the controller that leads.",
	}, []string{"phase"})

	// RotationSteps counts the steps of rotations.
	RotationSteps = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "belay_ca_rotation_steps_total",
		Help: "Steps of rotations of belay's CA, by step (add, serve, drop, trust) and result (ok, error).",
	}, []string{"step", "result"})
)

// SetCertificateFault says why a certificate could not be made or read at the last look; empty
// where it could.
func SetCertificateFault(reason string) {
	CertificateFault.Reset()
	if reason != "" {
		CertificateFault.WithLabelValues(reason).Set(1)
	}
}

// MustRegister adds the metrics to the registry that the processes serve.
func MustRegister() {
	crmetrics.Registry.MustRegister(Decisions, Duration, Unreadable, Busy, Panics, Anchors, Recoveries, WithoutSidecar, Reports, ReportDuration, ConditionsWritten, RegistrationWrites, RegistrationEntries,
		Ready, CertificateExpiry, CertificateRenewal, CertificateLoads, CertificateFault, RotationPhase, RotationSteps)
}
