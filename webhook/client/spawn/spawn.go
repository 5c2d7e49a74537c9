package spawn

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// budget is what a caller who was asked for work can be made to wait, and more
	// than an API server takes to come back from a restart or a change of leaders.
	budget = 2 * time.Minute
	// tryTimeout is that of failfast, so that a client without bounds has one.
	tryTimeout = 30 * time.Second
	// failedTimeout bounds the Failed hook. It has no caller who would wait longer.
	failedTimeout = 30 * time.Second
)

// backoff begins below the second or so that a change of etcd's leader takes, and is
// capped so that an API server that is back is noticed within seconds. The jitter
// keeps spawns that failed together from coming back together.
func backoff() wait.Backoff {
	return wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 6, Cap: 5 * time.Second}
}

// Options change how a spawn is done. The zero value is ready for use.
type Options struct {
	// Budget is how long steps are retried, all of them together. No try begins
	// after it, save the first one of each optional step. Default 2 minutes.
	Budget time.Duration
	// TryTimeout bounds one try: an API call, or what a Call does. Default 30 s.
	TryTimeout time.Duration
	// Backoff is the wait between tries; each step begins anew. Its Steps say how
	// often the wait grows, not how often is tried: the budget does. Default 200 ms,
	// doubled up to 5 s, each lengthened by up to half at random. A server that asks
	// for more with Retry-After gets it.
	Backoff wait.Backoff
	// Failed is called once before Do returns an error, so that a spawn that is given
	// up does not stay unseen: mark the work as failed where its owner looks. Its
	// context is alive for 30 s even if that of the spawn has ended, and has its
	// values. See Error.Ambiguous before cleaning up.
	Failed func(ctx context.Context, err error)

	clock clock
}

// clock lets tests take no time.
type clock struct {
	now   func() time.Time
	sleep func(ctx context.Context, d time.Duration) error
}

// Result is what there is to know about a spawn that succeeded, or about one that
// failed up to there.
type Result struct {
	// Tries is how many API calls were made. client-go may have made more: it repeats
	// a call by itself that was answered 429 or 5xx with Retry-After.
	Tries int
	// Recovered names the Create steps whose object was there already.
	Recovered []string
	// Warnings are the optional steps that were given up, and what is not known
	// about steps that are done.
	Warnings []*Warning
}

// Do is Options{}.Do.
func Do(ctx context.Context, c Client, steps ...Step) (Result, error) {
	return Options{}.Do(ctx, c, steps...)
}

// Do does the steps, one after the other, and retries each until it is done, it is
// refused, or the budget is spent. A retry is one API call, and no step that is done
// is done again. The error is an *Error, and Options.Failed has been called with it;
// the steps before the one that failed are done, and are not undone.
//
// After the point of no return there is no error any more: steps that fail are in
// Result.Warnings, and in the log of the context.
func (o Options) Do(ctx context.Context, c Client, steps ...Step) (Result, error) {
	s := spawn{options: o.withDefaults(), client: c}
	s.begun = s.options.clock.now()
	noReturn := false
	for _, step := range steps {
		err := s.step(ctx, step)
		switch {
		case err == nil:
			noReturn = noReturn || step.noReturnAfter
		case noReturn || step.optional:
			s.warn(ctx, &Warning{Step: err.Step, Tries: err.Tries, Err: err.Err})
		default:
			s.failed(ctx, err)
			return s.result, err
		}
	}
	return s.result, nil
}

func (o Options) withDefaults() Options {
	if o.Budget <= 0 {
		o.Budget = budget
	}
	if o.TryTimeout <= 0 {
		o.TryTimeout = tryTimeout
	}
	if o.Backoff == (wait.Backoff{}) {
		o.Backoff = backoff()
	}
	if o.clock.now == nil {
		o.clock = clock{now: time.Now, sleep: sleep}
	}
	return o
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// spawn is one Do under way.
type spawn struct {
	options Options
	client  Client
	begun   time.Time
	result  Result
}

// step does one step. It is retried here and not by starting over, which is how
// the steps before it stay done.
func (s *spawn) step(ctx context.Context, step Step) *Error {
	r := &running{Step: step, client: s.client}
	tries := 0
	giveUp := func(err error) *Error {
		return &Error{Step: r.title(), Tries: tries, Ambiguous: r.ambiguous, Err: err}
	}
	if err := r.prepare(); err != nil {
		return giveUp(err)
	}
	backoff := s.options.Backoff // a copy: Step changes it
	for {
		if ctx.Err() != nil {
			return giveUp(context.Cause(ctx))
		}
		answer := s.try(ctx, r)
		tries++
		v := r.decide(answer)
		switch v.outcome {
		case done:
			if v.recovered {
				r.adopt()
				s.result.Recovered = append(s.result.Recovered, r.title())
			}
			if v.err != nil {
				s.warn(ctx, &Warning{Step: r.title(), Tries: tries, Done: true, Err: v.err})
			}
			return nil
		case failed:
			return giveUp(v.err)
		}
		logr.FromContextOrDiscard(ctx).V(1).Info("step of a spawn is tried again", "step", r.title(), "tries", tries, "reason", v.err.Error())
		if v.now {
			continue
		}
		delay := max(backoff.Step(), v.wait)
		if s.options.clock.now().Add(delay).Sub(s.begun) > s.options.Budget {
			return giveUp(fmt.Errorf("%w: %w", ErrBudgetSpent, v.err))
		}
		if err := s.options.clock.sleep(ctx, delay); err != nil {
			return giveUp(fmt.Errorf("%w: %w", err, v.err))
		}
	}
}

func (s *spawn) try(ctx context.Context, r *running) answer {
	s.result.Tries++
	ctx, cancel := context.WithTimeout(ctx, s.options.TryTimeout)
	defer cancel()
	return r.try(ctx)
}

func (s *spawn) warn(ctx context.Context, w *Warning) {
	s.result.Warnings = append(s.result.Warnings, w)
	logr.FromContextOrDiscard(ctx).Error(w.Err, "spawned, but for this step", "step", w.Step, "tries", w.Tries, "done", w.Done)
}

func (s *spawn) failed(ctx context.Context, err error) {
	if s.options.Failed == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), failedTimeout)
	defer cancel()
	s.options.Failed(ctx, err)
}
