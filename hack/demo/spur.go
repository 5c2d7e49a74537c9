package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/belay-dev/belay/test/fixtures/spur"
	"github.com/belay-dev/belay/test/integration/stack"
)

// Two nodes whose names come to one, where a Pod's name is made of them.
const (
	dotted = "node.a"
	dashed = "node-a"
)

// tellSpur tells of launches, which Spur believes to have succeeded whenever the
// answer is 409.
func tellSpur(ctx context.Context, s *stack.Stack, say narrator) (table, pair, error) {
	say("Spur")
	if err := installSpur(ctx, s); err != nil {
		return table{}, pair{}, err
	}
	say("preset spur is in force")
	p, err := newPair(ctx, s, "spur", spur.Grant)
	if err != nil {
		return table{}, p, err
	}
	// Spur looks for a job's id in all namespaces.
	both := sides[*spurSide]{without: &spurSide{s: s, ns: p.without, ids: 100}, with: &spurSide{s: s, ns: p.with, ids: 200}}
	acts := launches()
	return table{
		title:   "Pods that Spur's operator launches, which takes any 409 for success. Preset spur.",
		columns: cells{"Spur believes", "what runs"},
		lines:   perform(ctx, say, both, acts),
		sum:     fmt.Sprintf("Without belay %d of %d launches were lost, and Spur waits for them. With belay they run, or Spur knows that they do not.", wrongs(acts), len(acts)),
	}, p, nil
}

// installSpur brings Spur's own kind, its nodes, and the preset.
func installSpur(ctx context.Context, s *stack.Stack) error {
	if err := s.ApplyCRD(ctx, spur.CRD()); err != nil {
		return err
	}
	// The garbage collector of Pods takes those of nodes that do not exist.
	for _, n := range []string{dotted, dashed} {
		if _, err := s.Kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n}}, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating node %s: %w", n, err)
		}
	}
	return register(ctx, s, "spur", owners("spur"), names("spur"))
}

func launches() []act[*spurSide] {
	return []act[*spurSide]{
		{
			name: "a job's Pod has failed, and the job is launched again", wrong: true,
			play:    relaunch{id: 1, phase: corev1.PodFailed}.play,
			without: cells{"success", nothing}, with: cells{"success", "a new Pod"},
		},
		{
			name: "an earlier job with this id has left its Pod", wrong: true,
			play:    relaunch{id: 2, phase: corev1.PodSucceeded, later: true}.play,
			without: cells{"success", nothing}, with: cells{"success", "a new Pod"},
		},
		{
			name: "nodes node.a and node-a: two Pods, one name", wrong: true,
			play:    collide,
			without: cells{"success, success", "on node.a: the other is LOST"}, with: cells{"success, failure (422)", "on node.a"},
		},
		{
			name:    "the same launch again, while its Pod runs",
			play:    relaunch{id: 4, phase: corev1.PodRunning}.play,
			without: cells{"success", "the first Pod"}, with: cells{"success", "the first Pod"},
		},
		{
			name:    "an answer is lost, launched again when it is done",
			play:    relaunch{id: 5, phase: corev1.PodSucceeded, lost: true}.play,
			without: cells{"success", "one Pod, run once"}, with: cells{"success", "one Pod, run once"},
		},
	}
}

// relaunch is a second launch under one job id, on the same node.
type relaunch struct {
	id int
	// phase is what the first one's Pod has come to.
	phase corev1.PodPhase
	// lost says that the answer to the first did not arrive.
	lost bool
	// later says that the second is for a later SpurJob that has the same id, since Spur's
	// controller has lost its state and counts from 1 again. The deletes that the
	// operator sends when a SpurJob goes were lost.
	later bool
}

func (r relaunch) play(ctx context.Context, s *spurSide) (cells, error) {
	j, err := s.submit(ctx, r.id, "first")
	if err != nil {
		return cells{}, err
	}
	if r.lost {
		j.wire.loseNext()
	}
	l := j.launch(ctx, dashed)
	if err := lostAsMeant(r.lost, l.Err); err != nil {
		return cells{}, fmt.Errorf("the first launch: %w", err)
	}
	first, err := j.pod(ctx)
	if err != nil {
		return cells{}, err
	}
	if err := podIs(ctx, s.s.Kube, first, r.phase); err != nil {
		return cells{}, err
	}
	if r.later {
		if err := s.s.Client.Delete(ctx, j.object); err != nil {
			return cells{}, fmt.Errorf("deleting the first SpurJob: %w", err)
		}
		if j, err = s.submit(ctx, r.id, "later"); err != nil {
			return cells{}, err
		}
	}
	l = j.launch(ctx, dashed)
	live, err := j.pod(ctx)
	if err != nil {
		return cells{}, err
	}
	done := live.Status.Phase == corev1.PodSucceeded || live.Status.Phase == corev1.PodFailed
	runs := "the first Pod"
	switch {
	case live.UID != first.UID:
		runs = "a new Pod"
	case r.lost && done:
		runs = "one Pod, run once"
	case done:
		runs = nothing
	}
	return cells{believes(l), runs}, nil
}

// collide launches a job of two nodes on both.
func collide(ctx context.Context, s *spurSide) (cells, error) {
	j, err := s.submit(ctx, 3, "two-nodes")
	if err != nil {
		return cells{}, err
	}
	j.nodes = 2
	first := j.launch(ctx, dotted)
	if !first.Success {
		return cells{}, fmt.Errorf("the first launch: %w", first.Err)
	}
	second := j.launch(ctx, dashed)
	pod, err := j.pod(ctx)
	if err != nil {
		return cells{}, err
	}
	runs := "on " + pod.Spec.NodeName
	if second.Success {
		runs += ": the other is LOST"
	}
	return cells{believes(first) + ", " + believes(second), runs}, nil
}

// spurSide is Spur in one namespace.
type spurSide struct {
	s   *stack.Stack
	ns  string
	ids int // job ids start after this
}

// spurJob is a SpurJob that Spur has accepted.
type spurJob struct {
	side   *spurSide
	id     string
	object *unstructured.Unstructured
	agent  spur.Agent
	wire   *wire
	nodes  int
}

// submit makes a SpurJob, as a user does, and has the operator put the id on it that
// Spur's controller gave it.
func (s *spurSide) submit(ctx context.Context, id int, prefix string) (*spurJob, error) {
	cfg, w, err := connect(ctx, s.s, s.ns, spur.Account)
	if err != nil {
		return nil, err
	}
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%s-%d", prefix, s.ids+id)
	j := &spurJob{
		side: s, id: strconv.Itoa(s.ids + id), wire: w, nodes: 1,
		object: spur.Job(s.ns, name, ""), agent: spur.Agent{Client: kube, Dynamic: dyn},
	}
	if err := s.s.Client.Create(ctx, j.object); err != nil {
		return nil, fmt.Errorf("creating SpurJob %s: %w", name, err)
	}
	return j, j.agent.Adopt(ctx, s.ns, name, j.id)
}

func (j *spurJob) launch(ctx context.Context, node string) spur.Launched {
	return j.agent.Launch(ctx, j.id, node, j.nodes)
}

// pod is what has the name.
func (j *spurJob) pod(ctx context.Context) (*corev1.Pod, error) {
	return j.side.s.Kube.CoreV1().Pods(j.side.ns).Get(ctx, spur.PodName(j.id, dashed), metav1.GetOptions{})
}

// believes is what Spur's controller is told about a launch.
func believes(l spur.Launched) string {
	var s apierrors.APIStatus
	switch {
	case l.Success:
		return "success"
	case errors.As(l.Err, &s):
		return fmt.Sprintf("failure (%d)", s.Status().Code)
	}
	return "failure: " + l.Err.Error()
}
