package recovery

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
)

// proof is a record, the Pods of its object, and what they prove.
type proof struct {
	changes []func(*Policy)
	record  []string
	pods    []Pod
	want    []string
}

func (c proof) policy() Policy { return policy(c.changes...) }

func from(source v1alpha1.EvidenceSource) []func(*Policy) {
	return []func(*Policy){func(p *Policy) { p.Source = source }}
}

// evidences has a row for every reason why a Pod is not ready again, the matrix of
// OpenSandbox's own tests, and each way in which a status was seen to mislead.
func evidences() map[string]proof {
	const (
		good = `pod "box-0" (uid u1) is ready again`
		also = `pod "box-1" (uid u2) is ready again`
	)
	about := func(what string, changes ...func(*corev1.Pod)) proof {
		return proof{record: []string{u1}, pods: []Pod{one(changes...)}, want: []string{`pod "box-0" (uid u1): ` + what}}
	}
	ready := func(changes ...func(*corev1.Pod)) proof {
		return proof{record: []string{u1}, pods: []Pod{one(changes...)}, want: []string{good}}
	}
	by := func(source v1alpha1.EvidenceSource, c proof) proof {
		c.changes = append(c.changes, from(source)...)
		return c
	}
	mainIs := func(name string, c proof) proof {
		c.changes = append(c.changes, func(p *Policy) { p.MainContainer = name })
		return c
	}
	const witness, both = v1alpha1.EvidenceWitness, v1alpha1.EvidenceBoth
	const message = "containerd://m1: answers"
	const isTrue, isFalse, isUnknown = corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown
	return map[string]proof{
		// Which Pod.
		"the same pod is ready again":          ready(),
		"two pods, in the order of the record": {record: []string{u2, u1}, pods: []Pod{one(), two()}, want: []string{also, good}},
		"S13: a replacement of the same name": {
			record: []string{u1}, pods: []Pod{podNamed("box-0", u2)},
			want: []string{`uid "u1": PodReplaced: that pod is gone; pod "box-0" (uid u2) is another one`},
		},
		"S08: replacements of both": {
			record: []string{u1, u2}, pods: []Pod{podNamed("box-0", u3)},
			want: []string{
				`uid "u1": PodReplaced: that pod is gone; pod "box-0" (uid u3) is another one`,
				`uid "u2": PodReplaced: that pod is gone; pod "box-0" (uid u3) is another one`,
			},
		},
		"a pod that is missing": {record: []string{u1}, want: []string{`uid "u1": PodGone: the object has no such pod`}},
		"a pod that is missing beside one that is recorded as well": {
			record: []string{u1, u2}, pods: []Pod{two()},
			want: []string{`uid "u1": PodGone: the object has no such pod`, also},
		},
		"a pod that is missing, and another one on its way out": {
			record: []string{u1}, pods: []Pod{two(deletingPod)},
			want: []string{`uid "u1": PodGone: the object has no such pod`},
		},
		"a pod that is missing, one on its way out, and its replacement": {
			record: []string{u1}, pods: []Pod{two(deletingPod), podNamed("box-0", u3)},
			want: []string{`uid "u1": PodReplaced: that pod is gone; pod "box-0" (uid u3) is another one`},
		},
		"an empty record proves nothing and has nothing to prove": {pods: []Pod{one(unready)}, want: nil},
		"an empty UID is no pod's": {
			record: []string{""}, pods: []Pod{podNamed("box-0", "")},
			want: []string{`uid "": PodGone: the object has no such pod`},
		},
		"an empty UID beside a pod that is ready": {
			record: []string{"", u1}, pods: []Pod{one()},
			want: []string{`uid "": PodGone: the object has no such pod`, good},
		},
		"a UID in other letters is another one": {
			record: []string{"U1"}, pods: []Pod{one()},
			want: []string{`uid "U1": PodReplaced: that pod is gone; pod "box-0" (uid u1) is another one`},
		},
		"S28: the mark is no pod's": {
			record: []string{u1, seal}, pods: []Pod{one()},
			want: []string{good, `uid "` + seal + `": Overflow: more pods failed than the record has room for`},
		},
		"S28: not even of a pod that had it for its UID": {
			record: []string{seal}, pods: []Pod{podNamed("box-0", seal)},
			want: []string{`uid "` + seal + `": Overflow: more pods failed than the record has room for`},
		},
		"S25: another pod fails": {
			record: []string{u1}, pods: []Pod{one(), two(looping)},
			want: []string{good, `pod "box-1" (uid u2): OtherPodFailing: it was not recorded, and is failing: container "main" waits: CrashLoopBackOff`},
		},
		"S25: another pod has failed": {
			record: []string{u1}, pods: []Pod{two(inPhase("Failed", "Evicted")), one()},
			want: []string{good, `pod "box-1" (uid u2): OtherPodFailing: it was not recorded, and is failing: phase Failed: Evicted`},
		},
		"another pod fails on its way out":                 {record: []string{u1}, pods: []Pod{one(), two(looping, deletingPod)}, want: []string{good}},
		"another pod that is not ready is none that fails": {record: []string{u1}, pods: []Pod{one(), two(unready)}, want: []string{good}},
		"partial recovery of two": {
			record: []string{u1, u2}, pods: []Pod{one(), two(looping)},
			want: []string{good, `pod "box-1" (uid u2): MainNotRunning: container "main" waits: CrashLoopBackOff`},
		},

		// The Pod as the kubelet tells of it.
		"S14: a pod that is being deleted, and is ready and running": about("PodDeleting: it is being deleted", deletingPod),
		"a pod that is pending":                            about(`PodNotRunning: its phase is "Pending"`, inPhase("Pending", "")),
		"S17: a pod that failed, and whose container runs": about(`PodNotRunning: its phase is "Failed"`, inPhase("Failed", "")),
		"a pod that is pending since an image cannot be pulled": about(`PodNotRunning: its phase is "Pending"; container "main" waits: ImagePullBackOff`,
			inPhase("Pending", ""), main(waiting("ImagePullBackOff"))),
		"a pod that is pending since a sidecar fails, and others wait for it": about(`PodNotRunning: its phase is "Pending"; sidecar "mesh" waits: CrashLoopBackOff`,
			inPhase("Pending", ""), main(waiting("PodInitializing")), nativeSidecar("mesh", waiting("CrashLoopBackOff"))),
		"a pod that is pending, and whose first container only waits for others": about(`PodNotRunning: its phase is "Pending"; container "proxy" waits: ErrImagePull`,
			inPhase("Pending", ""), main(waiting("PodInitializing")), container("proxy", waiting("ErrImagePull"))),
		"a pod that is pending since its containers are being created": about(`PodNotRunning: its phase is "Pending"`, inPhase("Pending", ""), main(waiting("ContainerCreating"))),
		"a pod that is pending for no reason":                          about(`PodNotRunning: its phase is "Pending"`, inPhase("Pending", ""), main(waiting(""))),
		"a pod that succeeded":                                         about(`PodNotRunning: its phase is "Succeeded"`, inPhase("Succeeded", "")),
		"a pod of which nobody knows":                                  about(`PodNotRunning: its phase is "Unknown"`, inPhase("Unknown", "")),
		"a pod without a phase":                                        about(`PodNotRunning: its phase is ""`, inPhase("", "")),
		"S16: an evicted pod without statuses":                         about(`PodNotRunning: its phase is "Failed"`, inPhase("Failed", "Evicted"), withoutStatuses),
		"S16: a running pod without statuses":                          about(`MainMissing: its status does not list container "main"`, withoutStatuses),
		"S16: a running pod with an empty list of statuses": about(`MainMissing: its status does not list container "main"`, func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{}
		}),
		"S16: a pod without any status": about(`PodNotRunning: its phase is ""`, func(p *corev1.Pod) { p.Status = corev1.PodStatus{} }),
		"a pod that is not ready":       about("PodNotReady: its condition Ready is not True", unready),
		"S18: a pod of which nobody knows whether it is ready": about("PodNotReady: its condition Ready is not True",
			condition(corev1.PodReady, isUnknown), inPhase("Running", "NodeLost")),
		"a pod without the condition Ready": about("PodNotReady: its condition Ready is not True", func(p *corev1.Pod) { p.Status.Conditions = nil }),
		"containers that are ready are not enough": about("PodNotReady: its condition Ready is not True",
			unready, condition(corev1.ContainersReady, isTrue)),
		"S15: a readiness gate that is false, although the pod is ready": about(`PodNotReady: its readiness gate "example.com/x" is not True`,
			gated("example.com/x"), condition("example.com/x", isFalse)),
		"S15: a readiness gate that nobody has told about": about(`PodNotReady: its readiness gate "example.com/x" is not True`, gated("example.com/x")),
		"S15: a readiness gate of which nobody knows": about(`PodNotReady: its readiness gate "example.com/x" is not True`,
			gated("example.com/x"), condition("example.com/x", isUnknown)),
		"S15: the second of two gates": about(`PodNotReady: its readiness gate "example.com/y" is not True`,
			gated("example.com/x", "example.com/y"), condition("example.com/x", isTrue), condition("example.com/y", isFalse)),
		"S15: the first of two gates": about(`PodNotReady: its readiness gate "example.com/x" is not True`, gated("example.com/x", "example.com/y")),
		"S15: gates that are true":    ready(gated("example.com/x", "example.com/y"), condition("example.com/x", isTrue), condition("example.com/y", isTrue)),

		// The main container.
		"main is not ready, although the pod is": about(`PodNotReady: container "main" is not ready`, func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].Ready = false
		}),
		"main has ended with an error":                    about(`MainNotRunning: container "main" ended with code 7`, main(ended(7))),
		"main has ended well":                             about(`MainNotRunning: container "main" ended with code 0`, main(ended(0))),
		"main has ended, and the pod is said to be ready": about(`MainNotRunning: container "main" ended with code 0`, main(ended(0)), condition(corev1.PodReady, isTrue)),
		"main waits":                 about(`MainNotRunning: container "main" waits: CrashLoopBackOff`, looping),
		"main waits, for no reason":  about(`MainNotRunning: container "main" waits: Waiting`, main(waiting(""))),
		"main is in no state at all": about(`MainNotRunning: container "main" waits: Waiting`, main(corev1.ContainerState{})),
		"main is in no state, and said to be ready": about(`MainNotRunning: container "main" waits: Waiting`, func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{}
		}),
		"the status has another container only": about(`MainMissing: its status does not list container "main"`, func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].Name = "proxy"
		}),
		"a pod without containers": about("MainMissing: it has no containers", func(p *corev1.Pod) {
			p.Spec.Containers, p.Status.ContainerStatuses = nil, nil
		}),
		"a pod with init containers only": about("MainMissing: it has no containers", nativeSidecar("mesh", running()), func(p *corev1.Pod) {
			p.Spec.Containers, p.Status.ContainerStatuses = nil, nil
		}),
		"S19: the status lists the sidecar first": ready(container("aa-proxy", running())),
		"S19: the status lists the sidecar first, and main waits": about(`MainNotRunning: container "main" waits: CrashLoopBackOff`,
			container("aa-proxy", running()), looping),
		"S19: an injector put its container first, and the policy names main": mainIs("main", ready(func(p *corev1.Pod) {
			p.Spec.Containers = append([]corev1.Container{{Name: "proxy"}}, p.Spec.Containers...)
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: "proxy", State: ended(0)})
		})),
		"S19: an injector put its container first, and nobody names main": about(`MainNotRunning: container "proxy" ended with code 0`, func(p *corev1.Pod) {
			p.Spec.Containers = append([]corev1.Container{{Name: "proxy"}}, p.Spec.Containers...)
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: "proxy", State: ended(0)})
		}),
		"S19: the annotation names the main container": about(`MainNotRunning: container "work" ended with code 3`,
			container("work", ended(3)), defaultContainer("work")),
		"S19: the annotation counts more than the policy": mainIs("main", about(`MainNotRunning: container "work" ended with code 3`,
			container("work", ended(3)), defaultContainer("work"))),
		"S19: the annotation names a container that is not there": about(`MainMissing: it has no container "work", which the annotation kubectl.kubernetes.io/default-container names`,
			defaultContainer("work")),
		"S19: the annotation names an init container": about(`MainMissing: it has no container "mesh", which the annotation kubectl.kubernetes.io/default-container names`,
			nativeSidecar("mesh", running()), defaultContainer("mesh")),
		"S19: the policy names a container that is not there": mainIs("work", about(`MainMissing: it has no container "work", which the policy's mainContainer names`)),
		"an empty annotation names nothing":                   ready(defaultContainer("")),
		"C15: an ephemeral container is never the main one": ready(func(p *corev1.Pod) {
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}}}
			p.Status.EphemeralContainerStatuses = []corev1.ContainerStatus{{Name: "debug", State: ended(1)}}
		}),
		"S21: restarts are not counted": ready(func(p *corev1.Pod) { p.Status.ContainerStatuses[0].RestartCount = 4 }),

		// Others of its containers, in words.
		"S20: a sidecar is what keeps the pod from being ready": about(`PodNotReady: its condition Ready is not True; sidecar "mesh" waits: ImagePullBackOff`,
			nativeSidecar("mesh", waiting("ImagePullBackOff")), unready),
		"S20: a sidecar runs and is not ready": about(`PodNotReady: its condition Ready is not True; sidecar "mesh" is not ready`,
			nativeSidecar("mesh", running()), unready, func(p *corev1.Pod) { p.Status.InitContainerStatuses[0].Ready = false }),
		"an init container that is done is not what keeps the pod": about("PodNotReady: its condition Ready is not True",
			initContainer("setup", ended(0)), unready, func(p *corev1.Pod) { p.Status.InitContainerStatuses[0].Ready = false }),
		"another container keeps the pod from being ready": about(`PodNotReady: its condition Ready is not True; container "proxy" waits: ErrImagePull`,
			container("proxy", waiting("ErrImagePull")), unready),
		"another container has ended": about(`PodNotReady: its condition Ready is not True; container "proxy" is not ready`,
			container("proxy", ended(1)), unready),
		"another container fails, although the pod is still said to be ready": about(`PodNotReady: container "proxy" waits: CrashLoopBackOff`,
			container("proxy", waiting("CrashLoopBackOff"))),
		"another container does not matter where the pod is ready": ready(container("proxy", ended(1))),

		// The sidecar's report.
		"by the kubelet, no report is wanted":                    ready(reported(isFalse, "containerd://m0: no", time.Hour)),
		"by the sidecar":                                         by(witness, ready(reported(isTrue, message, time.Second))),
		"by the sidecar, whatever the kubelet says":              by(witness, ready(reported(isTrue, message, time.Second), unready, gated("example.com/x"), func(p *corev1.Pod) { p.Status.ContainerStatuses[0].Ready = false })),
		"by the sidecar: none has reported":                      by(witness, about("ReportMissing: no sidecar has reported: it has no condition belay.dev/MainReady")),
		"by the sidecar: it says no":                             by(witness, about(`ReportNotReady: the sidecar reports that container "main" is not ready`, reported(isFalse, message, time.Second))),
		"by the sidecar: it does not know":                       by(witness, about(`ReportNotReady: the sidecar reports that container "main" is not ready`, reported(isUnknown, message, time.Second))),
		"S23: by the sidecar: about an earlier container":        by(witness, about("ReportStale: the last report is about an earlier container", reported(isTrue, "containerd://m0: answers", time.Second))),
		"S23: about a container whose ID begins like this one's": by(witness, about("ReportStale: the last report is about an earlier container", reported(isTrue, "containerd://m: answers", time.Second))),
		"S23: an ID that this one's begins with":                 by(witness, about("ReportStale: the last report is about an earlier container", reported(isTrue, "containerd://m11: answers", time.Second))),
		"by the sidecar: about no container":                     by(witness, about("ReportStale: the last report is about an earlier container", reported(isTrue, "containerd://m1", time.Second))),
		"by the sidecar: about nothing":                          by(witness, about("ReportStale: the last report is about an earlier container", reported(isTrue, "", time.Second))),
		"by the sidecar: about nothing, and the container has no ID yet": by(witness, about("ReportStale: the last report is about an earlier container",
			reported(isTrue, ": answers", time.Second), func(p *corev1.Pod) { p.Status.ContainerStatuses[0].ContainerID = "" })),
		"by the sidecar: what it says after the ID is its own":   by(witness, ready(reported(isTrue, "containerd://m1: a: b: c", time.Second))),
		"by the sidecar: too old":                                by(witness, about("ReportStale: the last report is from 2026-03-01T11:59:29Z, and must not be older than 30s", reported(isTrue, message, 31*time.Second))),
		"by the sidecar: just fresh":                             by(witness, ready(reported(isTrue, message, 30*time.Second))),
		"by the sidecar: too old by a hair":                      by(witness, about("ReportStale: the last report is from 2026-03-01T11:59:29Z, and must not be older than 30s", reported(isTrue, message, 30*time.Second+1))),
		"by the sidecar: another clock is ahead":                 by(witness, ready(reported(isTrue, message, -5*time.Second))),
		"by the sidecar: another clock is far ahead":             by(witness, about("ReportStale: the last report is from 2026-03-01T12:00:05Z, and must not be older than 30s", reported(isTrue, message, -5*time.Second-1))),
		"by the sidecar: at no time":                             by(witness, about("ReportStale: the last report is from 0001-01-01T00:00:00Z, and must not be older than 30s", reported(isTrue, message, 0), func(p *corev1.Pod) { p.Status.Conditions[1].LastProbeTime = metav1.Time{} })),
		"by the sidecar: an old no is stale, and no longer a no": by(witness, about("ReportStale: the last report is from 2026-03-01T11:00:00Z, and must not be older than 30s", reported(isFalse, message, time.Hour))),
		"by the sidecar: main has to run all the same":           by(witness, about(`MainNotRunning: container "main" waits: CrashLoopBackOff`, reported(isTrue, message, time.Second), looping)),
		"by the sidecar: no container may fail": by(witness, about(`PodNotReady: container "proxy" waits: CrashLoopBackOff`,
			reported(isTrue, message, time.Second), container("proxy", waiting("CrashLoopBackOff")))),
		"by the sidecar: the pod has to stay":     by(witness, about("PodDeleting: it is being deleted", reported(isTrue, message, time.Second), deletingPod)),
		"by the sidecar: the pod has to run":      by(witness, about(`PodNotRunning: its phase is "Unknown"`, reported(isTrue, message, time.Second), inPhase("Unknown", ""))),
		"by both":                                 by(both, ready(reported(isTrue, message, time.Second))),
		"by both: the kubelet says no":            by(both, about("PodNotReady: its condition Ready is not True", reported(isTrue, message, time.Second), unready)),
		"by both: a gate says no":                 by(both, about(`PodNotReady: its readiness gate "example.com/x" is not True`, reported(isTrue, message, time.Second), gated("example.com/x"))),
		"by both: the sidecar says no":            by(both, about(`ReportNotReady: the sidecar reports that container "main" is not ready`, reported(isFalse, message, time.Second))),
		"by both: no sidecar has reported":        by(both, about("ReportMissing: no sidecar has reported: it has no condition belay.dev/MainReady")),
		"by nobody that belay knows: the kubelet": by("", about("PodNotReady: its condition Ready is not True", unready)),
	}
}

func TestEvidence(t *testing.T) {
	t.Parallel()
	for name, c := range evidences() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, v := range c.policy().Evidence(c.record, c.pods, now) {
				checkWording(t, v.String())
				if v.OK() != strings.HasSuffix(v.String(), " is ready again") || v.OK() != (v.Detail == "") {
					t.Errorf("%+v", v)
				}
				got = append(got, v.String())
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestEvidenceDecides: the guard and whoever asks for the evidence alone say the same, with
// the first refusal for its reason.
func TestEvidenceDecides(t *testing.T) {
	t.Parallel()
	for name, c := range evidences() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if len(c.record) == 0 || slices.Contains(c.record, seal) {
				return // there is no asking for evidence
			}
			in := write(status("Failed", c.record...), status("Succeed"), finally)
			in.Policy = c.policy()
			in.Pods = PodsFact{State: fact.Known, Pods: c.pods, Live: true}
			d := Decide(in)
			checkDecision(t, in, d)
			evidence := in.Policy.Evidence(c.record, c.pods, now)
			if diff := cmp.Diff(evidence, d.Evidence); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			want := ReasonRecovered
			for _, v := range slices.Backward(evidence) {
				if !v.OK() {
					want = v.Reason
				}
			}
			if d.Reason != want || d.Allowed != (want == ReasonRecovered) || d.Retry {
				t.Errorf("%s, want %s", outcome(d), want)
			}
		})
	}
}

// TestEveryReasonOfTheFixedList is reached by somebody's Pod or record: the list of the
// design's section 6, which denials, events and metrics share.
func TestEveryReasonOfTheFixedList(t *testing.T) {
	t.Parallel()
	have := map[Reason]bool{}
	for _, c := range evidences() {
		for _, v := range c.policy().Evidence(c.record, c.pods, now) {
			have[v.Reason] = true
		}
	}
	for _, r := range terminalToRecovered() {
		have[Decide(r.in).Reason] = true
	}
	list := []Reason{
		"PodGone", "PodReplaced", "PodDeleting", "PodNotRunning", "PodNotReady", "MainMissing", "MainNotRunning",
		"ReportMissing", "ReportStale", "ReportNotReady", "Overflow", "OtherPodFailing", "Terminal",
	}
	for _, r := range list {
		if !have[r] {
			t.Errorf("nothing is %s", r)
		}
		delete(have, r)
	}
	delete(have, "")
	for r := range have {
		t.Errorf("%s is not on the list", r)
	}
}

// TestTheOrderOfStatusesDoesNotMatter: the kubelet sorts them by name, and a condition may
// stand anywhere.
func TestTheOrderOfStatusesDoesNotMatter(t *testing.T) {
	t.Parallel()
	build := func(turn bool) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			container("zz", running())(p)
			container("aa", waiting("ErrImagePull"))(p)
			gated("example.com/x", "example.com/y")(p)
			condition("example.com/y", corev1.ConditionTrue)(p)
			condition("example.com/x", corev1.ConditionTrue)(p)
			reported(corev1.ConditionTrue, "containerd://m1: answers", time.Second)(p)
			if turn {
				slices.Reverse(p.Status.ContainerStatuses)
				slices.Reverse(p.Status.Conditions)
			}
		}
	}
	if diff := cmp.Diff(one(build(false)), one(build(true))); diff != "" {
		t.Error(diff)
	}
}

// TestPodOf: what is kept of a Pod.
func TestPodOf(t *testing.T) {
	t.Parallel()
	got := one(never, deletingPod, inPhase("Failed", "Evicted"), defaultContainer("main"), gated("example.com/x"),
		initContainer("setup", ended(2)), nativeSidecar("mesh", running()), container("proxy", waiting("ErrImagePull")),
		reported(corev1.ConditionTrue, "containerd://m1: answers", time.Second),
		func(p *corev1.Pod) {
			p.OwnerReferences = append(p.OwnerReferences, ref("a", false), ref("b", true))
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "unlisted"})
		})
	want := Pod{
		Name: "box-0", UID: u1, Controller: "b", Deleting: true, Phase: "Failed", Reason: "Evicted", Ready: true, Gate: "example.com/x", Default: "main",
		Containers: []Container{
			{Name: "setup", Init: true, NeverRestarted: true, Listed: true, Ended: true, ExitCode: 2},
			{Name: "mesh", Init: true, Sidecar: true, Listed: true, Ready: true, Running: true},
			{Name: "main", NeverRestarted: true, Listed: true, ID: "containerd://m1", Ready: true, Running: true},
			{Name: "proxy", NeverRestarted: true, Listed: true, ID: "containerd://proxy", Waiting: "ErrImagePull"},
			{Name: "unlisted", NeverRestarted: true},
		},
		Report: Report{Present: true, Status: corev1.ConditionTrue, Container: "containerd://m1", At: now.Add(-time.Second)},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := PodOf(&corev1.Pod{}); got.Controller != "" || got.Ready || got.Deleting || got.Report.Present || len(got.Containers) != 0 {
		t.Errorf("of nothing: %+v", got)
	}
	same := one()
	same.Controller = types.UID("")
	if diff := cmp.Diff(same, one()); diff != "" {
		t.Errorf("without an owner (-want +got)\n%s", diff)
	}
}

// TestEvidenceAtAnyTime: whatever the clock says, a report counts when it is fresh by it.
func TestEvidenceAtAnyTime(t *testing.T) {
	t.Parallel()
	p := policy(from(v1alpha1.EvidenceWitness)...)
	pod := one(reported(corev1.ConditionTrue, "containerd://m1: answers", 0))
	for name, at := range map[string]time.Time{
		"at no time":      {},
		"in the future":   now.AddDate(1000, 0, 0),
		"in the past":     now.AddDate(-1000, 0, 0),
		"by another zone": now.In(time.FixedZone("", 3600)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := p.Evidence([]string{u1}, []Pod{pod}, at)[0]; got.OK() != at.Equal(now) {
				t.Errorf("%+v", got)
			}
		})
	}
}
