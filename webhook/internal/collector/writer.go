package collector

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/recovery"
)

// CachedPods knows Pods by name, from informers.
type CachedPods interface {
	// Pod finds a Pod; not ok where no informer has it.
	Pod(namespace, name string) (recovery.Pod, bool)
}

// Pods reads Pods, and writes their condition.
type Pods struct {
	Kube   kubernetes.Interface
	Cached CachedPods

	// places bounds what is in memory at a time: a Pod may have more than a megabyte, and comes
	// with the answer to each call, a write included.
	places chan struct{}
}

// maxPlaces is how many calls about Pods are under way at a time: at 3 ms each that is 5,000 a
// second.
const maxPlaces = 16

// place takes a place; the caller gives it back.
func (p Pods) place(ctx context.Context) (back func(), err error) {
	if p.places == nil {
		return func() {}, nil
	}
	select {
	case p.places <- struct{}{}:
		return func() { <-p.places }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// read reads a Pod: from the API server where live is asked for. version is the
// resourceVersion of what was read live.
func (p Pods) read(ctx context.Context, c Caller, live bool) (f PodFact, version string, err error) {
	if !live {
		if pod, ok := p.Cached.Pod(c.Namespace, c.Pod); ok {
			return PodFact{State: fact.Known, Pod: pod}, "", nil
		}
		return PodFact{}, "", nil
	}
	back, err := p.place(ctx)
	if err != nil {
		return PodFact{Live: true}, "", err
	}
	defer back()
	pod, err := p.Kube.CoreV1().Pods(c.Namespace).Get(ctx, c.Pod, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return PodFact{State: fact.Absent, Live: true}, "", nil
	case err != nil:
		return PodFact{Live: true}, "", err
	}
	return PodFact{State: fact.Known, Live: true, Pod: recovery.PodOf(pod)}, pod.ResourceVersion, nil
}

// condition is the condition as it is sent. What it does not say stays as it is.
type condition struct {
	Type               corev1.PodConditionType `json:"type"`
	Status             corev1.ConditionStatus  `json:"status"`
	Reason             string                  `json:"reason"`
	Message            string                  `json:"message"`
	LastProbeTime      metav1.Time             `json:"lastProbeTime"`
	LastTransitionTime *metav1.Time            `json:"lastTransitionTime,omitempty"`
}

// write writes the condition of the very Pod, as it was read: which of two reports is the
// later one was told by that.
func (p Pods) write(ctx context.Context, c Caller, version string, w Condition, now time.Time) error {
	at := metav1.NewTime(now)
	out := condition{Type: v1alpha1.MainReadyCondition, Status: w.Status, Reason: w.Reason, Message: w.Message, LastProbeTime: at}
	if w.Changed {
		out.LastTransitionTime = &at
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": c.UID, "resourceVersion": version},
		"status":   map[string]any{"conditions": []condition{out}},
	})
	if err != nil {
		return fmt.Errorf("encoding a condition: %w", err)
	}
	back, err := p.place(ctx)
	if err != nil {
		return err
	}
	defer back()
	_, err = p.Kube.CoreV1().Pods(c.Namespace).Patch(ctx, c.Pod, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
