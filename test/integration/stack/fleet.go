package stack

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/belay-dev/belay/sidecar/channel"
	report "github.com/belay-dev/belay/sidecar/wire"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// Fleet are simulated sidecars, of one namespace: each speaks for a Pod of its own, with a
// token of its own, over TLS and by the wire format, as a real one does. They take no probes
// and have no process each, so that there can be many.
type Fleet struct {
	Namespace string
	// Collector is where reports go; empty for any replica that is ready.
	Collector string
	s         *Stack
	members   []*member
	trust     *tls.Config

	mu sync.Mutex
	// sent is when a report of a Pod was sent, and seen how long its condition took.
	sent map[string]time.Time
	seen []time.Duration
	// answered is how long answers took.
	answered []time.Duration
	failed   int
}

type member struct {
	pod      *corev1.Pod
	token    string
	sequence uint64
	state    report.State
	channel  *channel.Client
}

// fleetWorkers is how many members are made, or report, at a time.
const fleetWorkers = 24

// NewFleet makes so many Pods that run, and their sidecars.
func (s *Stack) NewFleet(ctx context.Context, namespace string, size int) (*Fleet, error) {
	f := &Fleet{Namespace: namespace, s: s, members: make([]*member, size), sent: map[string]time.Time{}}
	if err := f.trusts(ctx); err != nil {
		return nil, err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(fleetWorkers)
	for i := range size {
		g.Go(func() error {
			m, err := f.member(ctx, i)
			f.members[i] = m
			return err
		})
	}
	return f, g.Wait()
}

// trusts waits for the CA.
func (f *Fleet) trusts(ctx context.Context) error {
	for {
		cm, err := f.s.Kube.CoreV1().ConfigMaps(f.Namespace).Get(ctx, v1alpha1.CABundleName, metav1.GetOptions{})
		roots := x509.NewCertPool()
		if err == nil && roots.AppendCertsFromPEM([]byte(cm.Data[v1alpha1.CABundleKey])) {
			f.trust = &tls.Config{RootCAs: roots, ServerName: "localhost", MinVersion: tls.VersionTLS13}
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("waiting for the CA: %w", ctx.Err()), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (f *Fleet) member(ctx context.Context, i int) (*member, error) {
	pods := f.s.Kube.CoreV1().Pods(f.Namespace)
	p, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("fleet-%d", i), Annotations: map[string]string{v1alpha1.SidecarAnnotation: v1alpha1.SidecarInject}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.example/app:1"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	if SidecarOf(p) == nil {
		return nil, fmt.Errorf("pod %s got no sidecar", p.Name)
	}
	status, err := json.Marshal(map[string]any{"status": map[string]any{"phase": corev1.PodRunning, "containerStatuses": []corev1.ContainerStatus{{
		Name: "main", ContainerID: "containerd://" + string(p.UID), Image: "registry.example/app:1", ImageID: "x", Ready: true,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(time.Now().Add(-time.Minute))}},
	}}}})
	if err != nil {
		return nil, err
	}
	if _, err := pods.Patch(ctx, p.Name, types.StrategicMergePatchType, status, metav1.PatchOptions{}, "status"); err != nil {
		return nil, err
	}
	m := &member{pod: p, state: report.StateUnknown}
	if m.token, err = f.s.PodToken(ctx, p, v1alpha1.WitnessAudience, 3600); err != nil {
		return nil, err
	}
	m.channel, err = channel.New(channel.Config{TLS: func() (*tls.Config, error) { return f.trust, nil }})
	return m, err
}

// Watch follows the conditions of the fleet until the context ends.
func (f *Fleet) Watch(ctx context.Context) error {
	w, err := f.s.Kube.CoreV1().Pods(f.Namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	go func() {
		defer w.Stop()
		for e := range w.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok && e.Type == watch.Modified {
				f.changed(p, time.Now())
			}
		}
	}()
	return nil
}

func (f *Fleet) changed(p *corev1.Pod, at time.Time) {
	for _, c := range p.Status.Conditions {
		if c.Type != v1alpha1.MainReadyCondition {
			continue
		}
		_, rest, _ := strings.Cut(c.Message, " (report ")
		sequence, _, _ := strings.Cut(rest, " ")
		f.mu.Lock()
		key := p.Name + "/" + sequence
		if sent, ok := f.sent[key]; ok {
			delete(f.sent, key)
			f.seen = append(f.seen, at.Sub(sent))
		}
		f.mu.Unlock()
	}
}

// Report has a member report a state: another one than before is a change, the same a
// repetition.
func (f *Fleet) Report(ctx context.Context, i int, state report.State) error {
	m := f.members[i]
	change := state != m.state
	if change {
		m.sequence, m.state = m.sequence+1, state
	}
	now := time.Now()
	body, err := report.EncodeReport(report.Report{
		Namespace: f.Namespace, Pod: m.pod.Name, UID: string(m.pod.UID), Container: "main", State: state, Reason: "Simulated",
		Reporter: "fleet", Sequence: m.sequence, ObservedUnixMillis: now.UnixMilli(), ReporterSinceUnixMillis: 1,
	})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+cmp.Or(f.Collector, f.s.CollectorAddress())+report.Path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", report.ContentType)
	req.Header.Set("Authorization", "Bearer "+m.token)
	if change {
		f.mu.Lock()
		f.sent[fmt.Sprintf("%s/%d", m.pod.Name, m.sequence)] = now
		f.mu.Unlock()
	}
	a, err := m.channel.Do(req)
	m.channel.Rest() // as a sidecar does that reports once a minute
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answered = append(f.answered, time.Since(now))
	if err == nil && a.Status != http.StatusOK {
		err = fmt.Errorf("%d %s", a.Status, a.Body)
	}
	if err != nil {
		f.failed++
	}
	return err
}

// Round has members report, spread evenly over a time; state says what. It returns the first
// error.
func (f *Fleet) Round(ctx context.Context, over time.Duration, members []int, state func(int) report.State) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(fleetWorkers)
	began := time.Now()
	for n, i := range members {
		at := began.Add(over * time.Duration(n) / time.Duration(len(members)))
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), g.Wait())
		case <-time.After(time.Until(at)):
		}
		g.Go(func() error { return f.Report(ctx, i, state(i)) })
	}
	return g.Wait()
}

// Figures are what was measured since the last call of it.
type Figures struct {
	// Reports that were answered, and those that were not accepted.
	Reports, Failed int
	// Answer is the time to an answer, Condition that from a report to the watch of its
	// condition: the median and the 99th percentile.
	AnswerP50, AnswerP99, ConditionP50, ConditionP99 time.Duration
	// Conditions were seen to change; Unseen were reported and not seen.
	Conditions, Unseen int
}

// Figures returns them, and begins anew.
func (f *Fleet) Figures() Figures {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := Figures{Reports: len(f.answered), Failed: f.failed, Conditions: len(f.seen), Unseen: len(f.sent)}
	out.AnswerP50, out.AnswerP99 = percentiles(f.answered)
	out.ConditionP50, out.ConditionP99 = percentiles(f.seen)
	f.answered, f.seen, f.failed = nil, nil, 0
	return out
}

func percentiles(d []time.Duration) (p50, p99 time.Duration) {
	if len(d) == 0 {
		return 0, 0
	}
	slices.Sort(d)
	return d[len(d)/2], d[len(d)*99/100]
}

// Unseen is an error while conditions that were reported are not seen yet.
func (f *Fleet) Unseen() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.sent) > 0 {
		return fmt.Errorf("%d conditions were not seen yet", len(f.sent))
	}
	return nil
}

// All are all members.
func (f *Fleet) All() []int {
	out := make([]int, len(f.members))
	for i := range out {
		out[i] = i
	}
	return out
}

// Close ends the connections.
func (f *Fleet) Close() {
	for _, m := range f.members {
		if m != nil {
			m.channel.Close()
		}
	}
}
