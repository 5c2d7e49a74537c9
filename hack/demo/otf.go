package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/otf"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// scenario is one way for a spawn to go.
type scenario struct {
	name string
	// spawn does OTF's calls, and reports what OTF would see.
	spawn func(context.Context, otf.Executor) (otf.Result, error)
	// spawnFails says whether OTF sees an error at the end. It does so alike with and
	// without belay.
	spawnFails bool
	// leaks says whether the token Secret is left over without belay.
	leaks bool
	// check is a further promise about the objects with belay.
	check func(otf.Result) error
}

func scenarios() []scenario {
	plain := func(ctx context.Context, e otf.Executor) (otf.Result, error) { return e.Spawn(ctx, "job-Kx3", "t0ken") }
	return []scenario{
		{name: "nothing fails", spawn: plain},
		{
			name: "the third call (set the owner) is lost", leaks: true, spawnFails: true,
			spawn: func(ctx context.Context, e otf.Executor) (otf.Result, error) {
				e.AfterJob = func() error { return fmt.Errorf("%w: the third call never reached the API server", errLost) }
				return e.Spawn(ctx, "job-Lx4", "t0ken")
			},
		},
		{
			name: "the Job is refused, the Secret stays alone", leaks: true, spawnFails: true,
			spawn: func(ctx context.Context, e otf.Executor) (otf.Result, error) {
				e.BreakJob = true
				return e.Spawn(ctx, "job-Mx5", "t0ken")
			},
		},
		{
			name: "the third call as OTF does it: a PUT, kind \"job\"", spawn: plain,
			check: func(r otf.Result) error {
				refs := r.Updated.OwnerReferences
				if len(refs) != 1 || refs[0].Kind != "job" || refs[0].UID != r.Job.UID {
					return fmt.Errorf("after the PUT the owner references are %+v", refs)
				}
				return nil
			},
		},
	}
}

// refused is told last, since the plug-in changes what the API server lets OTF do.
func refused() scenario {
	return scenario{
		name: "the third call is refused (OpenShift's plug-in)", leaks: true, spawnFails: true,
		spawn: func(ctx context.Context, e otf.Executor) (otf.Result, error) {
			r, err := e.Spawn(ctx, "job-Nx6", "t0ken")
			if err != nil && !apierrors.IsForbidden(err) {
				return r, fmt.Errorf("not refused, but: %w", err)
			}
			return r, err
		},
	}
}

// outcome is what a scenario came to.
type outcome struct {
	scenario
	without, with side
}

// side is what one namespace showed.
type side struct {
	result otf.Result
	// owner of the Secret in the answer to its create.
	owner string
	// sawError is what OTF saw at the end.
	sawError error
	left     bool
	broken   error
}

// otfStory is OTF's: token Secrets that nobody collects.
type otfStory struct {
	pair
	s        *stack.Stack
	say      narrator
	deadline time.Duration
}

// tellOTF replays all scenarios, deletes the Jobs, and looks at what is left.
func tellOTF(ctx context.Context, s *stack.Stack, deadline time.Duration, say narrator) (table, pair, error) {
	say("OTF")
	p, err := newPair(ctx, s, "otf", otf.Grant)
	if err != nil {
		return table{}, p, err
	}
	st := &otfStory{pair: p, s: s, say: say, deadline: deadline}
	runs, err := st.tell(ctx)
	if err != nil {
		return table{}, p, err
	}
	t := table{
		title:   "OTF's three calls (Secret, Job, Secret's owner), after the Jobs were deleted. Preset otf.",
		columns: cells{"Secret created with", "token Secret"},
		sum:     fmt.Sprintf("Without belay %d of %d runs left a live token behind. With belay none did, and no call of OTF was denied by it.", leaks(runs), len(runs)),
	}
	for _, r := range runs {
		t.lines = append(t.lines, r.line())
	}
	return t, p, nil
}

func (st *otfStory) tell(ctx context.Context) ([]outcome, error) {
	var runs []outcome
	for _, sc := range scenarios() {
		r, err := st.act(ctx, sc)
		if err != nil {
			return nil, err
		}
		runs = append(runs, r)
	}
	st.say("restarting kube-apiserver with OwnerReferencesPermissionEnforcement, as on OpenShift")
	if err := st.s.Plane.Do(ctx, "restart kube-apiserver --enable-admission-plugins=OwnerReferencesPermissionEnforcement"); err != nil {
		return nil, err
	}
	if err := st.answering(ctx); err != nil {
		return nil, err
	}
	last, err := st.act(ctx, refused())
	if err != nil {
		return nil, err
	}
	runs = append(runs, last)
	return runs, st.collect(ctx, runs)
}

// answering waits until the API server calls belay again: after a restart it opens
// while its own caches still fill.
func (st *otfStory) answering(ctx context.Context) error {
	return until(ctx, time.Minute, "belay is called again", func(ctx context.Context) error {
		probe := otf.Secret(st.with, "probe", "probe", "none")
		got, err := st.s.Kube.CoreV1().Secrets(st.with).Create(ctx, probe, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		if err == nil {
			if derr := st.s.Kube.CoreV1().Secrets(st.with).Delete(ctx, "probe", metav1.DeleteOptions{}); derr != nil {
				return derr
			}
			if len(got.OwnerReferences) == 1 {
				return nil
			}
		}
		return errors.New("not yet")
	})
}

// act replays one scenario in both namespaces.
func (st *otfStory) act(ctx context.Context, sc scenario) (outcome, error) {
	st.say("%s", sc.name)
	r := outcome{scenario: sc}
	for ns, s := range map[string]*side{st.without: &r.without, st.with: &r.with} {
		cfg, err := st.s.Config(ctx, ns, otf.Account)
		if err != nil {
			return r, err
		}
		c, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return r, err
		}
		s.result, s.sawError = sc.spawn(ctx, otf.Executor{Client: c, Namespace: ns})
		if s.result.Secret == nil {
			return r, fmt.Errorf("%s: the Secret could not be created: %w", sc.name, s.sawError)
		}
		s.owner = ownerOf(s.result.Secret)
		if (s.sawError != nil) != sc.spawnFails {
			s.broken = fmt.Errorf("OTF saw %w", s.sawError)
		}
	}
	if r.with.broken == nil && sc.check != nil {
		r.with.broken = sc.check(r.with.result)
	}
	if r.with.broken == nil {
		r.with.broken = st.bound(ctx, r.with.result)
	}
	return r, nil
}

func ownerOf(s *corev1.Secret) string {
	if len(s.OwnerReferences) == 0 {
		return "nobody"
	}
	return s.OwnerReferences[0].Kind
}

// bound waits until the Anchor of a run belongs to its Job.
func (st *otfStory) bound(ctx context.Context, r otf.Result) error {
	if r.Job == nil {
		return nil
	}
	key := client.ObjectKey{Namespace: st.with}
	for _, ref := range r.Secret.OwnerReferences {
		if ref.Kind == "Anchor" {
			key.Name = ref.Name
		}
	}
	if key.Name == "" {
		return errors.New("the Secret has no anchor")
	}
	return until(ctx, 30*time.Second, "the anchor belongs to the Job", func(ctx context.Context) error {
		var a v1alpha1.Anchor
		if err := st.s.Client.Get(ctx, key, &a); err != nil {
			return err
		}
		if len(a.OwnerReferences) != 1 || a.OwnerReferences[0].UID != r.Job.UID {
			return fmt.Errorf("it belongs to %+v", a.OwnerReferences)
		}
		return nil
	})
}

// collect deletes the Jobs and waits for the garbage collector.
func (st *otfStory) collect(ctx context.Context, runs []outcome) error {
	st.say("deleting the Jobs, as their TTL would, and waiting for the garbage collector (and for the deadline of %s, for the Secret whose Job never came)", st.deadline)
	background := metav1.DeletePropagationBackground
	for _, ns := range []string{st.without, st.with} {
		if err := st.s.Kube.BatchV1().Jobs(ns).DeleteCollection(ctx, metav1.DeleteOptions{PropagationPolicy: &background}, metav1.ListOptions{}); err != nil {
			return fmt.Errorf("deleting the Jobs: %w", err)
		}
	}
	expected := map[string]int{st.with: 0, st.without: 0}
	for _, r := range runs {
		if r.leaks {
			expected[st.without]++
		}
	}
	for ns, n := range expected {
		// Not an error when it does not come to that: the table tells.
		_ = until(ctx, st.deadline+45*time.Second, "the garbage collector is done", func(ctx context.Context) error {
			left, err := st.left(ctx, ns)
			if err == nil && len(left) > n {
				err = fmt.Errorf("%d are left", len(left))
			}
			return err
		})
	}
	for ns, pick := range map[string]func(*outcome) *side{
		st.without: func(r *outcome) *side { return &r.without }, st.with: func(r *outcome) *side { return &r.with },
	} {
		left, err := st.left(ctx, ns)
		if err != nil {
			return err
		}
		for i := range runs {
			s := pick(&runs[i])
			s.left = left[s.result.Name]
		}
	}
	if err := st.noAnchors(ctx); err != nil {
		runs[len(runs)-1].with.broken = err
	}
	return nil
}

// noAnchors waits until belay has tidied up after itself: the Anchor of the probe
// expires like any other.
func (st *otfStory) noAnchors(ctx context.Context) error {
	return until(ctx, st.deadline+30*time.Second, "no anchor is left over", func(ctx context.Context) error {
		var anchors v1alpha1.AnchorList
		err := st.s.Client.List(ctx, &anchors, client.InNamespace(st.with))
		if err == nil && len(anchors.Items) > 0 {
			err = fmt.Errorf("%d are", len(anchors.Items))
		}
		return err
	})
}

// left are the names of the token Secrets that are still there.
func (st *otfStory) left(ctx context.Context, ns string) (map[string]bool, error) {
	list, err := st.s.Kube.CoreV1().Secrets(ns).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=otf"})
	if err != nil {
		return nil, fmt.Errorf("listing what is left: %w", err)
	}
	out := map[string]bool{}
	for _, s := range list.Items {
		if !strings.HasPrefix(s.Name, "probe") {
			out[s.Name] = true
		}
	}
	return out, nil
}

// line makes a line of it, held against what it must show, in both namespaces: a demo
// in which nothing leaks without belay shows nothing.
func (r outcome) line() line {
	l := line{name: r.name, without: cells{owner(r.without), fate(r.without)}, with: cells{owner(r.with), fate(r.with)}}
	switch {
	case r.with.broken != nil:
		l.broken = fmt.Errorf("with belay: %w", r.with.broken)
	case r.without.broken != nil:
		l.broken = fmt.Errorf("without belay: %w", r.without.broken)
	case r.with.owner != "Anchor":
		l.broken = fmt.Errorf("with belay the Secret was created with owner %s", r.with.owner)
	case r.without.owner != "nobody":
		l.broken = fmt.Errorf("without belay the Secret was created with owner %s", r.without.owner)
	case r.with.left:
		l.broken = errors.New("with belay the Secret is still there")
	case r.without.left != r.leaks:
		l.broken = fmt.Errorf("without belay the Secret is left over: %t, expected %t", r.without.left, r.leaks)
	}
	return l
}

func owner(s side) string {
	if s.owner == "nobody" {
		return "no owner"
	}
	return "an owner"
}

func fate(s side) string {
	if s.left {
		return "LEAKED"
	}
	return "collected"
}

func leaks(runs []outcome) int {
	n := 0
	for _, r := range runs {
		if r.without.left {
			n++
		}
	}
	return n
}
