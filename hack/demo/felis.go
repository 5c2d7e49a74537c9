package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/felis"
	"github.com/belay-dev/belay/test/integration/stack"
)

// tellFelis tells of restores: of older releases of Felis on the preset for them,
// then of newer ones on theirs. Both presets have one policy, so they come one after
// the other.
func tellFelis(ctx context.Context, s *stack.Stack, say narrator) ([]table, pair, error) {
	say("Felis")
	p, err := newPair(ctx, s, "felis", felis.Grant)
	if err != nil {
		return nil, p, err
	}
	both := sides[*felisSide]{without: &felisSide{s: s, ns: p.without}, with: &felisSide{s: s, ns: p.with}}
	var out []table
	for _, r := range []struct {
		preset, title, sum string
		acts               []act[*felisSide]
	}{
		{
			preset: "felis-restore-old", acts: olderFelis(),
			title: "Restores by older releases of Felis, which take any AlreadyExists for success. Preset felis-restore-old.",
			sum:   "Without belay %d of %d requests for a restore were swallowed and called a success. With belay none was.",
		},
		{
			preset: "felis-restore", acts: newerFelis(),
			title: "Restores by newer releases of Felis, which look at the Job that is there and replace it themselves. Preset felis-restore.",
			sum:   "Without belay %d of %d killed a restore that had just begun. With belay Felis' first create is answered at once, and it deletes nothing.",
		},
	} {
		if err := register(ctx, s, r.preset, names("felis-restore")); err != nil {
			return nil, p, err
		}
		say("preset %s is in force", r.preset)
		out = append(out, table{
			title: r.title, columns: cells{"Felis reports", "what runs"}, lines: perform(ctx, say, both, r.acts),
			sum: fmt.Sprintf(r.sum, wrongs(r.acts), len(r.acts)),
		})
	}
	return out, p, nil
}

// Archives to restore from.
const (
	monday  = "monday"
	tuesday = "tuesday"
)

func olderFelis() []act[*felisSide] {
	return []act[*felisSide]{
		{
			name: "a restore has failed, and is asked for again", wrong: true,
			play:    request{server: "older-failed", archive: monday, old: true, phase: corev1.PodFailed}.play,
			without: cells{"success", nothing}, with: cells{"success", "a new Job"},
		},
		{
			name: "another archive, while a restore runs", wrong: true,
			play:    request{server: "older-other", archive: tuesday, old: true}.play,
			without: cells{"success", "the first archive ONLY"}, with: cells{"an error: 409 Conflict", "the first Job"},
		},
		{
			name:    "the same archive again, while it runs",
			play:    request{server: "older-same", archive: monday, old: true}.play,
			without: cells{"success", "the first Job"}, with: cells{"success, UID known", "the first Job"},
		},
		{
			name:    "an answer is lost, asked again when it is done",
			play:    request{server: "older-lost", archive: monday, old: true, lost: true, phase: corev1.PodSucceeded}.play,
			without: cells{"success", "one Job, run once"}, with: cells{"success, UID known", "one Job, run once"},
		},
	}
}

func newerFelis() []act[*felisSide] {
	return []act[*felisSide]{
		{
			name:    "a restore has failed, and is asked for again",
			play:    request{server: "newer-failed", archive: monday, phase: corev1.PodFailed}.play,
			without: cells{"success; creates 2, deletes 1", "a new Job"}, with: cells{"success; creates 1, deletes 0", "a new Job"},
		},
		{
			name: "two at once find a failed restore", wrong: true,
			play:    race,
			without: cells{"success, success", "one: the other was KILLED"}, with: cells{"success, 409 in progress", "one, undisturbed"},
		},
		{
			name:    "another archive, while a restore runs",
			play:    request{server: "newer-other", archive: tuesday}.play,
			without: cells{"409 in progress; creates 1, deletes 0", "the first Job"}, with: cells{"409 in progress; creates 1, deletes 0", "the first Job"},
		},
	}
}

// request is a second request for a restore of a server, from an archive. The first
// was from Monday's.
type request struct {
	server, archive string
	// old says that Felis is an older release.
	old bool
	// lost says that the answer to the first request did not arrive.
	lost bool
	// phase is what the first one's Pod has come to; empty while it runs.
	phase corev1.PodPhase
}

func (r request) play(ctx context.Context, s *felisSide) (cells, error) {
	first, err := r.first(ctx, s)
	if err != nil {
		return cells{}, fmt.Errorf("the first restore: %w", err)
	}
	f, w, err := s.felis(ctx)
	if err != nil {
		return cells{}, err
	}
	_, err = r.ask(ctx, f, r.archive)
	c := cells{report(err)}
	switch {
	case !r.old:
		c[0] += fmt.Sprintf("; creates %d, deletes %d", f.Creates, f.Deletes)
	case err == nil && w.uid() == first.UID:
		c[0] += ", UID known"
	}
	live, lerr := s.live(ctx, r.server)
	switch {
	case lerr != nil:
		return cells{}, lerr
	case live.UID != first.UID:
		c[1] = "a new Job"
	case r.lost && isFinished(live):
		c[1] = "one Job, run once"
	case isFinished(live):
		c[1] = nothing
	case r.archive != monday && err == nil:
		c[1] = "the first archive ONLY"
	default:
		c[1] = "the first Job"
	}
	return c, nil
}

func (r request) ask(ctx context.Context, f *felis.Felis, archive string) (*batchv1.Job, error) {
	if r.old {
		return f.RestorePlainly(ctx, r.server, archive)
	}
	return f.Restore(ctx, r.server, archive)
}

// first makes the first request, and brings the Job to where it should be.
func (r request) first(ctx context.Context, s *felisSide) (*batchv1.Job, error) {
	f, w, err := s.felis(ctx)
	if err != nil {
		return nil, err
	}
	if r.lost {
		w.loseNext()
	}
	_, err = r.ask(ctx, f, monday)
	if err := lostAsMeant(r.lost, err); err != nil {
		return nil, err
	}
	j, err := s.live(ctx, r.server)
	if err != nil || r.phase == "" {
		return j, err
	}
	return j, s.end(ctx, j, r.phase)
}

// race lets a second restore in between the first one's look at a failed Job and its
// delete, which names that Job but not its UID; or after the first, if that never
// deletes anything.
func race(ctx context.Context, s *felisSide) (cells, error) {
	const server = "newer-race"
	a, _, err := s.felis(ctx)
	if err != nil {
		return cells{}, err
	}
	b, _, err := s.felis(ctx)
	if err != nil {
		return cells{}, err
	}
	if _, err := (request{server: server, phase: corev1.PodFailed}).first(ctx, s); err != nil {
		return cells{}, fmt.Errorf("the first restore: %w", err)
	}
	var ours, theirs *batchv1.Job
	var aErr, bErr error
	asked := false
	second := func() {
		asked = true
		theirs, bErr = b.Restore(ctx, server, tuesday)
	}
	a.BeforeDelete = second
	ours, aErr = a.Restore(ctx, server, monday)
	if !asked {
		second()
	}
	runs := nothing
	live, err := s.live(ctx, server)
	switch {
	case err != nil:
		return cells{}, err
	case ours != nil && theirs != nil && live.UID == ours.UID:
		runs = "one: the other was KILLED"
	case (ours == nil) != (theirs == nil) && live.UID == cmp.Or(ours, theirs).UID:
		runs = "one, undisturbed"
	}
	return cells{report(aErr) + ", " + report(bErr), runs}, nil
}

// felisSide is Felis in one namespace.
type felisSide struct {
	s  *stack.Stack
	ns string
}

// felis is one replica of Felis' API, under its own rights.
func (s *felisSide) felis(ctx context.Context) (*felis.Felis, *wire, error) {
	cfg, w, err := connect(ctx, s.s, s.ns, felis.Account)
	if err != nil {
		return nil, nil, err
	}
	c, err := client.New(cfg, client.Options{Scheme: s.s.Client.Scheme(), Mapper: s.s.Client.RESTMapper()})
	if err != nil {
		return nil, nil, err
	}
	return &felis.Felis{Client: c, Namespace: s.ns}, w, nil
}

func (s *felisSide) live(ctx context.Context, server string) (*batchv1.Job, error) {
	return s.s.Kube.BatchV1().Jobs(s.ns).Get(ctx, felis.JobName(server), metav1.GetOptions{})
}

// end brings a Job to its end: the Pod that the Job controller makes for it gets a
// phase, and the Job controller draws its conclusion.
func (s *felisSide) end(ctx context.Context, j *batchv1.Job, phase corev1.PodPhase) error {
	err := until(ctx, time.Minute, "the Job has a Pod", func(ctx context.Context) error {
		pods, err := s.s.Kube.CoreV1().Pods(s.ns).List(ctx, metav1.ListOptions{LabelSelector: batchv1.ControllerUidLabel + "=" + string(j.UID)})
		switch {
		case err != nil:
			return err
		case len(pods.Items) == 0:
			return errors.New("not yet")
		}
		return podIs(ctx, s.s.Kube, &pods.Items[0], phase)
	})
	if err != nil {
		return err
	}
	return until(ctx, time.Minute, "the Job is finished", func(ctx context.Context) error {
		live, err := s.s.Kube.BatchV1().Jobs(s.ns).Get(ctx, j.Name, metav1.GetOptions{})
		if err == nil && !isFinished(live) {
			err = errors.New("not yet")
		}
		return err
	})
}

func isFinished(j *batchv1.Job) bool {
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}

// report is what Felis' API says to whoever asked for a restore.
func report(err error) string {
	switch {
	case err == nil, errors.Is(err, felis.ErrAlreadyRestoring):
		return "success"
	case errors.Is(err, felis.ErrOtherRestoreRunning):
		return "409 in progress"
	case apierrors.IsConflict(err):
		return "an error: 409 Conflict"
	}
	return "error: " + err.Error()
}
