package certs

import (
	"context"
	"crypto/x509"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/events"

	"github.com/belay-dev/belay/webhook/internal/metrics"
)

// ReasonRotation is the reason of events about rotations.
const ReasonRotation = "CARotation"

// Rotation replaces the CA. It is run by the controller that leads; a second one for a moment
// does no harm, since each step is a conditional update and is decided on what is there.
type Rotation struct {
	Secrets corev1client.SecretInterface
	Name    string
	Lives   Lives
	// Registered, Distributed and Served say who does not trust a CA, or serve a certificate of
	// it.
	Registered, Distributed, Served Lacks
	Events                          events.EventRecorder
	Log                             logr.Logger

	// What follows is the loop's own. held is by what it is about.
	held map[string]holding
	told string
	// fault is what went wrong at this look; empty for nothing.
	fault FaultReason
	// now is the clock on the wall, which tests set.
	now func() time.Time
}

// proofTimeout bounds finding out one thing about everybody.
const proofTimeout = 30 * time.Second

// Start rotates until the context ends.
func (r *Rotation) Start(ctx context.Context) error {
	return looking(ctx, r.Secrets, r.Name, r.look)
}

// look takes a step, where one is due, and returns when to look again.
func (r *Rotation) look(ctx context.Context) time.Duration {
	if r.now == nil {
		r.now = time.Now
	}
	every := r.Lives.Every()
	r.fault = ""
	defer func() { metrics.SetCertificateFault(string(r.fault)) }()
	secret, err := r.Secrets.Get(ctx, r.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		r.tell(Step{Steady, Wait, "there is no Secret; belay-webhook makes it"})
		return every
	}
	if err != nil {
		r.fail(LookupFail, "reading the Secret of the CA", err)
		return min(every, soon)
	}
	if foreign(secret) {
		r.tell(Step{Steady, Wait, "somebody else keeps the Secret, and replaces its CA"})
		return every
	}
	st, err := Parse(secret)
	if err != nil {
		r.fail(reasonOf(err), "the Secret of the CA cannot be used", err)
		return every
	}
	measure(metrics.CertificateCA, st.Signer.Cert, r.Lives.CA)
	step := Next(st, r.facts(ctx, st), r.Lives, r.now())
	r.tell(step)
	if step.Action == Wait {
		if step.Phase == Steady {
			return every
		}
		// While something is waited for, a tenth of the wait decides how exact it is.
		return min(every, max(r.Lives.Settle/10, 100*time.Millisecond))
	}
	if err := r.take(ctx, secret, st, step); err != nil {
		metrics.RotationSteps.WithLabelValues(string(step.Action), "error").Inc()
		if !apierrors.IsConflict(err) {
			r.fail(WriteFail, "writing the Secret of the CA", err)
		}
		return min(every, soon)
	}
	return 0
}

// take writes what a step makes of the Secret, if nobody has changed it since.
func (r *Rotation) take(ctx context.Context, secret *corev1.Secret, st *State, step Step) error {
	var made *Authority
	if step.Action == Add {
		var err error
		if made, err = NewAuthority(r.now(), r.Lives.CA, st.Signer); err != nil {
			return err
		}
	}
	if secret.Immutable != nil && *secret.Immutable {
		return errImmutable
	}
	after := st.after(step.Action, made)
	write := secret.DeepCopy()
	after.write(write)
	if _, err := r.Secrets.Update(ctx, write, metav1.UpdateOptions{}); err != nil {
		return err
	}
	metrics.RotationSteps.WithLabelValues(string(step.Action), "ok").Inc()
	now := phaseOf(after)
	r.Log.Info("CA rotation", "step", string(step.Action), "phase", string(now), "because", step.Because,
		"signer", Fingerprint(after.Signer.Cert), "expires", after.Signer.Cert.NotAfter.Format(time.RFC3339), "trusted", len(after.Trusted))
	r.event(secret, step.Action, "%s, since %s; phase %s, signed by %.16s, %d trusted", did[step.Action], step.Because, now, Fingerprint(after.Signer.Cert), len(after.Trusted))
	return nil
}

// did says a step in events.
var did = map[Action]string{
	Trust: "bundle completed", Add: "next CA made", Serve: "certificates are signed by the next CA", Drop: "former CA dropped",
}

// facts finds out what the phase depends on.
func (r *Rotation) facts(ctx context.Context, st *State) Facts {
	var f Facts
	held := map[string]holding{}
	switch phaseOf(st) {
	case Adding:
		f.Registered = r.proof(ctx, "registered", st.Next.Cert, r.Registered, held)
		f.Distributed = r.proof(ctx, "distributed", st.Next.Cert, r.Distributed, held)
	case Serving:
		f.Served = r.proof(ctx, "served", st.Signer.Cert, r.Served, held)
	}
	f.Lapsed = r.proof(ctx, "lapsed", st.Signer.Cert, lapsed(st, r.now()), held)
	r.held = held
	return f
}

// holding is for how long something has been so.
type holding struct {
	sum time.Duration
	// last is when it was seen to be so, if it was at the last look.
	last time.Time
}

// seen adds the time since the last look. A look that failed breaks nothing and adds nothing:
// what was not seen may not have been so.
func (h holding) seen(a Answer, at time.Time) holding {
	switch {
	case a == No:
		return holding{}
	case a == Unknown:
		return holding{sum: h.sum}
	case !h.last.IsZero():
		h.sum += at.Sub(h.last)
	}
	h.last = at
	return h
}

// proof asks everybody, and notes for how long all have been there.
func (r *Rotation) proof(ctx context.Context, what string, ca *x509.Certificate, ask Lacks, held map[string]holding) Proof {
	ctx, cancel := context.WithTimeout(ctx, proofTimeout)
	defer cancel()
	// The time of the monotonic clock: one on the wall that jumps ahead shortens no wait.
	at := time.Now()
	p := Proof{Answer: Yes}
	switch lacking, err := ask(ctx, ca); {
	case err != nil:
		p = Proof{Answer: Unknown, Missing: "it could not be found out: " + err.Error()}
	case len(lacking) > 0:
		p = Proof{Answer: No, Missing: few(lacking)}
	}
	key := what + Fingerprint(ca)
	held[key] = r.held[key].seen(p.Answer, at)
	if p.Answer == Yes {
		p.Held = held[key].sum
	}
	return p
}

// tell sets the metrics, and says what is waited for when that changes.
func (r *Rotation) tell(step Step) {
	for _, p := range phases {
		v := 0.0
		if p == step.Phase {
			v = 1
		}
		metrics.RotationPhase.WithLabelValues(string(p)).Set(v)
	}
	if step.Action != Wait {
		return
	}
	if what := string(step.Phase) + step.Because; what != r.told {
		r.told = what
		if step.Because != "" {
			r.Log.Info("CA rotation waits", "phase", string(step.Phase), "for", step.Because)
		}
	}
}

// fail counts and tells a failure, once as long as it stays the same.
func (r *Rotation) fail(reason FaultReason, message string, err error) {
	r.fault = reason
	if what := fmt.Sprint(message, err); what != r.told {
		r.told = what
		metrics.CertificateLoads.WithLabelValues(metrics.CertificateFailed, string(reason)).Inc()
		r.Log.Error(err, message, "secret", r.Name)
	}
}

// event tells a step on the Secret. Events of the same action are folded into the first one.
func (r *Rotation) event(secret *corev1.Secret, step Action, note string, args ...any) {
	if r.Events != nil {
		r.Events.Eventf(secret, nil, corev1.EventTypeNormal, ReasonRotation, actions[step], note, args...)
	}
}

// actions are the actions of events.
var actions = map[Action]string{Trust: "Trust", Add: "Add", Serve: "Serve", Drop: "Drop"}
