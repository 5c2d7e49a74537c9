package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// tellWitness tells what is known of a Pod's main container: by the kubelet's word alone, and
// by that of a sidecar. Each Pod with belay has a real belay-sidecar process, with a token
// that is bound to it.
func tellWitness(ctx context.Context, s *stack.Stack, say narrator) (table, pair, error) {
	say("a Pod and its witness")
	p, err := newPair(ctx, s, "witness", func(context.Context, kubernetes.Interface, string) error { return nil })
	if err != nil {
		return table{}, p, err
	}
	both := sides[*witnessSide]{without: &witnessSide{s: s, ns: p.without}, with: &witnessSide{s: s, ns: p.with, witnessed: true}}
	defer both.without.end()
	defer both.with.end()
	acts := witnessActs()
	return table{
		title:   "A Pod whose node is slow to tell: what a controller can know of its main container. Annotation belay.dev/sidecar: inject.",
		columns: cells{"what the Pod says", "who says so"},
		lines:   perform(ctx, say, both, acts),
		sum: fmt.Sprintf("Without belay %d of %d went wrong: a status that lags was all there was.\n"+
			"With belay the sidecar says what is so, of the run that there is, and nobody can say it for another Pod.", wrongs(acts), len(acts)),
	}, p, nil
}

func witnessActs() []act[*witnessSide] {
	return []act[*witnessSide]{
		{
			name: "the main container is ready, its node has not said so yet", wrong: true,
			play:    becameReady,
			without: cells{"not ready, though it IS", "the kubelet, late"}, with: cells{"MainReady True", "the sidecar"},
		},
		{
			name: "it is not ready any more, its node has not said so yet", wrong: true,
			play:    becameUnready,
			without: cells{"ready, though it is NOT", "the kubelet, late"}, with: cells{"MainReady False", "the sidecar"},
		},
		{
			name: "it was started anew, and is ready; its node lags in this, too", wrong: true,
			play:    startedAnew,
			without: cells{"ready, of a run UNKNOWN", "the kubelet, late"}, with: cells{"MainReady True, of this run", "the sidecar"},
		},
		{
			name:    "the Pod is replaced; the old one's sidecar reports with its token",
			play:    replacedWitness,
			without: cells{"not ready", "the kubelet"}, with: cells{"no MainReady", "the old one is refused"},
		},
	}
}

// witnessSide is a Pod in one of the two namespaces.
type witnessSide struct {
	s         *stack.Stack
	ns        string
	witnessed bool

	main    stack.MainContainer
	pod     *corev1.Pod
	sidecar *stack.Sidecar
}

// end stops what was started.
func (w *witnessSide) end() {
	if w.sidecar != nil {
		_ = w.sidecar.Stop()
	}
	w.main.Stop()
}

const witnessPod = "app"

// create makes the Pod, which with belay asks for a sidecar.
func (w *witnessSide) create(ctx context.Context) error {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: witnessPod, Annotations: map[string]string{v1alpha1.SidecarAnnotation: v1alpha1.SidecarInject}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Image: "registry.example/app:1",
			ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt(w.main.Port)}}},
		}}},
	}
	if err := w.s.Client.Create(ctx, p); err != nil {
		return err
	}
	w.pod = p
	if has := stack.SidecarOf(p) != nil; has != w.witnessed {
		return fmt.Errorf("it has a sidecar: %t", has)
	}
	return nil
}

// kubelet writes what a kubelet has said of the n-th run, some time ago.
func (w *witnessSide) kubelet(ctx context.Context, n int, ready bool) error {
	return w.s.MainRuns(ctx, w.pod, n, ready, time.Second)
}

// live reads the Pod.
func (w *witnessSide) live(ctx context.Context) (ready bool, main *corev1.PodCondition, err error) {
	var p corev1.Pod
	if err := w.s.Client.Get(ctx, client.ObjectKey{Namespace: w.ns, Name: witnessPod}, &p); err != nil {
		return false, nil, err
	}
	for i := range p.Status.Conditions {
		switch c := &p.Status.Conditions[i]; c.Type {
		case corev1.PodReady:
			ready = c.Status == corev1.ConditionTrue
		case v1alpha1.MainReadyCondition:
			main = c
		}
	}
	return ready, main, nil
}

// says waits, with belay, until the witness says something of the n-th run.
func (w *witnessSide) says(ctx context.Context, status corev1.ConditionStatus, n int) error {
	return until(ctx, time.Minute, "the condition is "+string(status), func(ctx context.Context) error {
		_, main, err := w.live(ctx)
		if err != nil {
			return err
		}
		if main == nil || main.Status != status || !strings.HasPrefix(main.Message, stack.ContainerID(w.pod, n)+": ") {
			return fmt.Errorf("it is %+v", main)
		}
		return nil
	})
}

func becameReady(ctx context.Context, w *witnessSide) (cells, error) {
	w.main.Ready.Store(true)
	if err := errors.Join(w.main.Start(), w.create(ctx), w.kubelet(ctx, 1, false)); err != nil {
		return cells{}, err
	}
	if !w.witnessed {
		ready, _, err := w.live(ctx)
		if ready {
			err = errors.Join(err, errors.New("it says that it is ready"))
		}
		return cells{"not ready, though it IS", "the kubelet, late"}, err
	}
	err := until(ctx, time.Minute, "the CA is there", func(ctx context.Context) (err error) {
		w.sidecar, err = w.s.StartSidecar(ctx, w.pod)
		return err
	})
	if err != nil {
		return cells{}, err
	}
	return cells{"MainReady True", "the sidecar"}, w.says(ctx, corev1.ConditionTrue, 1)
}

func becameUnready(ctx context.Context, w *witnessSide) (cells, error) {
	if err := w.kubelet(ctx, 1, true); err != nil {
		return cells{}, err
	}
	w.main.Ready.Store(false)
	if !w.witnessed {
		ready, _, err := w.live(ctx)
		if !ready {
			err = errors.Join(err, errors.New("it says that it is not ready"))
		}
		return cells{"ready, though it is NOT", "the kubelet, late"}, err
	}
	return cells{"MainReady False", "the sidecar"}, w.says(ctx, corev1.ConditionFalse, 1)
}

func startedAnew(ctx context.Context, w *witnessSide) (cells, error) {
	w.main.Stop()
	w.main.Ready.Store(true)
	if err := errors.Join(w.main.Start(), w.kubelet(ctx, 2, true)); err != nil {
		return cells{}, err
	}
	if !w.witnessed {
		_, main, err := w.live(ctx)
		if main != nil {
			err = errors.Join(err, fmt.Errorf("it says %s", main.Message))
		}
		return cells{"ready, of a run UNKNOWN", "the kubelet, late"}, err
	}
	return cells{"MainReady True, of this run", "the sidecar"}, w.says(ctx, corev1.ConditionTrue, 2)
}

func replacedWitness(ctx context.Context, w *witnessSide) (cells, error) {
	if err := w.s.Client.Delete(ctx, w.pod.DeepCopy(), client.GracePeriodSeconds(0)); err != nil {
		return cells{}, err
	}
	if err := errors.Join(w.create(ctx), w.kubelet(ctx, 1, false)); err != nil {
		return cells{}, err
	}
	if !w.witnessed {
		ready, _, err := w.live(ctx)
		if ready {
			err = errors.Join(err, errors.New("it says that it is ready"))
		}
		return cells{"not ready", "the kubelet"}, err
	}
	// The sidecar of the Pod that is gone goes on, as on a node that was cut off.
	w.main.Ready.Store(false)
	why := ""
	err := until(ctx, time.Minute, "the old sidecar is refused", func(context.Context) error {
		log := w.sidecar.Tail(50)
		for _, reason := range []string{"PodReplaced", "TokenInvalid"} {
			if strings.Contains(log, reason) {
				// Who asks first, the collector itself or the API server by its token, depends on
				// how long the token is known.
				why = "the old one is refused"
				return nil
			}
		}
		return errors.New("its log does not say so")
	})
	if err != nil {
		return cells{}, err
	}
	_, main, err := w.live(ctx)
	if main != nil {
		return cells{"MainReady " + string(main.Status), why}, err
	}
	return cells{"no MainReady", why}, err
}
