package recovery

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// TestFailing: by the reason for which a container waits, by what cannot be undone, and by
// nothing else.
func TestFailing(t *testing.T) {
	t.Parallel()
	restart := func(p corev1.ContainerRestartPolicy, rules ...corev1.ContainerRestartRule) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			c := &pod.Spec.Containers[0]
			c.RestartPolicyRules = rules
			if p != "" {
				c.RestartPolicy = &p
			}
		}
	}
	podPolicy := func(p corev1.RestartPolicy) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.Spec.RestartPolicy = p }
	}
	rule := corev1.ContainerRestartRule{Action: corev1.ContainerRestartRuleActionRestart}
	waitingOnly := func(p *Policy) { p.Detectors.Terminal = false }
	terminalOnly := func(p *Policy) { p.Detectors.WaitingReasons = nil }
	mainIs := func(name string) func(*Policy) { return func(p *Policy) { p.MainContainer = name } }
	// odd is a status as it was seen of evicted Pods.
	odd := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "ContainerStatusUnknown"}}
	type changes = []func(*corev1.Pod)
	for name, c := range map[string]struct {
		pod    changes
		policy []func(*Policy)
		want   string // empty: it does not fail
	}{
		"a pod that runs": {},

		// Reasons for which a container waits.
		"a container waits for a reason on the list": {pod: changes{looping}, want: `container "main" waits: CrashLoopBackOff`},
		"also without the other detector":            {pod: changes{looping}, policy: []func(*Policy){waitingOnly}, want: `container "main" waits: CrashLoopBackOff`},
		"not without this one":                       {pod: changes{looping}, policy: []func(*Policy){terminalOnly}},
		"for a reason that is not on it":             {pod: changes{main(waiting("ContainerCreating"))}},
		"for no reason":                              {pod: changes{main(waiting(""))}},
		"for no reason, and the list has what stands for it": {
			pod: changes{main(corev1.ContainerState{})}, policy: []func(*Policy){func(p *Policy) { p.Detectors.WaitingReasons = []string{""} }},
		},
		"a container that runs waits for nothing, also where the list has that": {
			policy: []func(*Policy){func(p *Policy) { p.Detectors.WaitingReasons = []string{""} }},
		},
		"a container that is not the main one": {pod: changes{container("proxy", waiting("ErrImagePull"))}, want: `container "proxy" waits: ErrImagePull`},
		"an init container, before containers": {
			pod: changes{looping, initContainer("setup", waiting("ImagePullBackOff"))}, want: `init container "setup" waits: ImagePullBackOff`,
		},
		"an init container that is restarted when it fails is no sidecar": {
			pod: changes{initContainer("setup", waiting("CrashLoopBackOff")), func(p *corev1.Pod) {
				p.Spec.InitContainers[0].RestartPolicy = new(corev1.ContainerRestartPolicyOnFailure)
			}},
			want: `init container "setup" waits: CrashLoopBackOff`,
		},
		"the first of two init containers": {
			pod:  changes{initContainer("a", waiting("ImagePullBackOff")), initContainer("b", waiting("CrashLoopBackOff"))},
			want: `init container "a" waits: ImagePullBackOff`,
		},
		"S20: a sidecar, while main waits for it": {
			pod: changes{nativeSidecar("mesh", waiting("ImagePullBackOff")), main(waiting("PodInitializing"))}, want: `sidecar "mesh" waits: ImagePullBackOff`,
		},
		"a container that the status does not list": {pod: changes{withoutStatuses}},
		"a status of a container that is not the pod's": {
			pod: changes{func(p *corev1.Pod) {
				p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: "ghost", State: waiting("CrashLoopBackOff")})
			}},
		},
		"an ephemeral container": {
			pod: changes{func(p *corev1.Pod) {
				p.Status.EphemeralContainerStatuses = []corev1.ContainerStatus{{Name: "debug", State: waiting("ImagePullBackOff")}}
			}},
		},
		"a container that runs, whatever it last was": {
			pod: changes{func(p *corev1.Pod) {
				p.Status.ContainerStatuses[0].LastTerminationState = ended(1)
			}},
		},
		"S21: restarts are not counted": {
			pod: changes{initContainer("setup", ended(0)), func(p *corev1.Pod) {
				p.Status.ContainerStatuses[0].RestartCount, p.Status.InitContainerStatuses[0].RestartCount = 5, 3
			}},
		},
		"a pod that is not ready": {pod: changes{unready}},
		"a pod that is pending":   {pod: changes{inPhase("Pending", ""), withoutStatuses}},

		// What cannot be undone.
		"the phase Failed":               {pod: changes{inPhase("Failed", "")}, want: "phase Failed"},
		"also without the list":          {pod: changes{inPhase("Failed", "")}, policy: []func(*Policy){terminalOnly}, want: "phase Failed"},
		"not without this detector":      {pod: changes{inPhase("Failed", "")}, policy: []func(*Policy){waitingOnly}},
		"the phase Succeeded":            {pod: changes{inPhase("Succeeded", ""), never, main(ended(0))}},
		"the phase Unknown":              {pod: changes{inPhase("Unknown", "")}},
		"S17: evicted, without statuses": {pod: changes{inPhase("Failed", "Evicted"), withoutStatuses}, want: "phase Failed: Evicted"},
		"S17: evicted, and a container's status is lost": {
			pod: changes{inPhase("Failed", ""), main(odd)}, want: `phase Failed: container "main" ended with code 137`,
		},
		"S17: failed once, although its container runs": {pod: changes{inPhase("Failed", "")}, want: "phase Failed"},
		"failed by an init container": {
			pod: changes{inPhase("Failed", ""), never, initContainer("setup", ended(2)), main(waiting("PodInitializing"))}, want: `phase Failed: init container "setup" ended with code 2`,
		},
		"failed, and the first that ended ended well": {
			pod: changes{inPhase("Failed", ""), never, initContainer("setup", ended(0)), main(ended(3))}, want: `phase Failed: container "main" ended with code 3`,
		},
		"failed, and none is to blame": {pod: changes{inPhase("Failed", ""), main(ended(0))}, want: "phase Failed"},
		"waiting counts before the phase": {
			pod: changes{inPhase("Failed", ""), looping}, want: `container "main" waits: CrashLoopBackOff`,
		},

		// A main container that has ended for good, in a Pod that runs.
		"restartPolicy Never":                     {pod: changes{never, main(ended(1))}, want: `container "main" ended with code 1 and is not restarted`},
		"restartPolicy Never, without the list":   {pod: changes{never, main(ended(1))}, policy: []func(*Policy){terminalOnly}, want: `container "main" ended with code 1 and is not restarted`},
		"restartPolicy Never, not detected":       {pod: changes{never, main(ended(1))}, policy: []func(*Policy){waitingOnly}},
		"restartPolicy Never, ended well":         {pod: changes{never, main(ended(0))}},
		"restartPolicy Never, and runs":           {pod: changes{never}},
		"restartPolicy Always":                    {pod: changes{main(ended(1))}},
		"restartPolicy OnFailure":                 {pod: changes{podPolicy(corev1.RestartPolicyOnFailure), main(ended(1))}},
		"the container's own Never":               {pod: changes{restart(corev1.ContainerRestartPolicyNever), main(ended(1))}, want: `container "main" ended with code 1 and is not restarted`},
		"the container's own Always":              {pod: changes{never, restart(corev1.ContainerRestartPolicyAlways), main(ended(1))}},
		"the container's own OnFailure":           {pod: changes{never, restart(corev1.ContainerRestartPolicyOnFailure), main(ended(1))}},
		"rules: it depends on how it ends":        {pod: changes{never, restart(corev1.ContainerRestartPolicyNever, rule), main(ended(1))}},
		"rules: the phase tells in the end":       {pod: changes{never, restart(corev1.ContainerRestartPolicyNever, rule), main(ended(1)), inPhase("Failed", "")}, want: `phase Failed: container "main" ended with code 1`},
		"rules without a policy of the container": {pod: changes{never, restart("", rule), main(ended(1))}},
		"another container has ended for good":    {pod: changes{never, container("proxy", ended(1))}},
		"another container, which the policy names": {
			pod: changes{never, container("proxy", ended(1))}, policy: []func(*Policy){mainIs("proxy")}, want: `container "proxy" ended with code 1 and is not restarted`,
		},
		"another container, which the annotation names": {
			pod: changes{never, container("proxy", ended(1)), defaultContainer("proxy")}, want: `container "proxy" ended with code 1 and is not restarted`,
		},
		"S19: the annotation names none of its containers": {pod: changes{never, main(ended(1)), defaultContainer("work")}},
		"an init container has ended for good":             {pod: changes{never, initContainer("setup", ended(1))}},
		"belay's own sidecar, which is no word on the others": {
			pod: changes{nativeSidecar(v1alpha1.SidecarName, waiting("ImagePullBackOff")), main(waiting("PodInitializing"))},
		},
		"belay's own sidecar, and another container": {
			pod: changes{nativeSidecar(v1alpha1.SidecarName, waiting("CrashLoopBackOff")), looping}, want: `container "main" waits: CrashLoopBackOff`,
		},
		"an init container that has the name of belay's sidecar": {
			pod: changes{initContainer(v1alpha1.SidecarName, waiting("ImagePullBackOff"))}, want: `init container "belay-sidecar" waits: ImagePullBackOff`,
		},
		"a sidecar has ended": {pod: changes{never, nativeSidecar("mesh", ended(1))}},

		// On its way out.
		"a pod that is being deleted waits":              {pod: changes{looping, deletingPod}},
		"a pod that is being deleted has failed":         {pod: changes{inPhase("Failed", ""), deletingPod}},
		"a pod that is being deleted has ended for good": {pod: changes{never, main(ended(1)), deletingPod}},
		"a pod without anything":                         {pod: changes{func(p *corev1.Pod) { *p = corev1.Pod{} }}},
		"a pod in phase Failed without anything else":    {pod: changes{func(p *corev1.Pod) { *p = corev1.Pod{Status: corev1.PodStatus{Phase: "Failed"}} }}, want: "phase Failed"},
		"a policy that detects nothing finds nothing":    {pod: changes{looping, inPhase("Failed", ""), never}, policy: []func(*Policy){waitingOnly, terminalOnly}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := policy(c.policy...)
			got, failing := p.Failing(one(c.pod...))
			if got != c.want || failing != (c.want != "") {
				t.Errorf("%q, %t; want %q", got, failing, c.want)
			}
		})
	}
}

// TestWhatFailsIsNotReadyAgain: no Pod is both, or an object would go back and forth
// between a failed phase and a recovered one. The kubelet's condition may lag behind the
// states of the containers.
func TestWhatFailsIsNotReadyAgain(t *testing.T) {
	t.Parallel()
	states := []corev1.ContainerState{running(), waiting("CrashLoopBackOff"), waiting("ContainerCreating"), waiting(""), ended(0), ended(1), {}}
	phases := []corev1.PodPhase{"Running", "Failed", "Pending", "Succeeded", "Unknown", ""}
	keep := func(*corev1.Pod) {}
	fail, ready := 0, 0
	for _, state := range states {
		for _, beside := range append([]corev1.ContainerState{}, states...) {
			for _, place := range []func(string, corev1.ContainerState) func(*corev1.Pod){container, nativeSidecar} {
				for _, phase := range phases {
					for _, restart := range []func(*corev1.Pod){keep, never} {
						for _, readiness := range []func(*corev1.Pod){keep, unready} {
							for _, deleting := range []func(*corev1.Pod){keep, deletingPod} {
								p, pod := policy(), one(place("beside", beside), main(state), condition(corev1.PodReady, corev1.ConditionTrue), inPhase(phase, ""), restart, readiness, deleting, func(p *corev1.Pod) {
									for i := range p.Status.ContainerStatuses {
										p.Status.ContainerStatuses[i].Ready = true
									}
								})
								why, failing := p.Failing(pod)
								good := p.Evidence([]string{u1}, []Pod{pod}, now)[0].OK()
								if failing && good {
									t.Fatalf("%s, and is ready: %+v", why, pod)
								}
								if failing {
									fail++
								}
								if good {
									ready++
								}
							}
						}
					}
				}
			}
		}
	}
	if fail < 100 || ready < 10 {
		t.Errorf("%d fail, %d are ready: this test proves too little", fail, ready)
	}
}
