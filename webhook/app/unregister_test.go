package app

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// installed is a cluster with a registered belay, and Pods of its controller in these phases.
func installed(replicas int32, phases ...corev1.PodPhase) *fake.Clientset {
	called := metav1.ObjectMeta{Name: v1alpha1.ConfigurationName}
	kube := fake.NewClientset(
		&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: called},
		&admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: called},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "belay-system", Name: "belay-webhook-x", Labels: map[string]string{"app.kubernetes.io/name": "belay", "app.kubernetes.io/component": "webhook"}}, Status: corev1.PodStatus{Phase: corev1.PodRunning}},
	)
	for _, phase := range phases {
		err := kube.Tracker().Add(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "belay-system", Name: "belay-controller-" + strings.ToLower(string(phase)), Labels: map[string]string{"app.kubernetes.io/name": "belay", "app.kubernetes.io/component": "controller"}},
			Status:     corev1.PodStatus{Phase: phase},
		})
		if err != nil {
			panic(err)
		}
	}
	// The fake has no scales of its own.
	kube.PrependReactor("*", "deployments", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "scale" {
			return false, nil, nil
		}
		if update, ok := a.(clienttesting.UpdateAction); ok {
			scale := update.GetObject().(*autoscalingv1.Scale)
			replicas = scale.Spec.Replicas
		}
		return true, &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: replicas}}, nil
	})
	return kube
}

func registrationsOf(t *testing.T, kube *fake.Clientset) int {
	t.Helper()
	m, err := kube.AdmissionregistrationV1().MutatingWebhookConfigurations().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	v, err := kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return len(m.Items) + len(v.Items)
}

// TestUnregisterWaitsForWhatMayRegister: for each Pod of belay-controller that may still run, and
// for no other. One that has ended may stay for ever: no ReplicaSet deletes it.
func TestUnregisterWaitsForWhatMayRegister(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		phases []corev1.PodPhase
		left   string // empty where it goes on
	}{
		"no Pod":                           {nil, ""},
		"one that a node's shutdown ended": {[]corev1.PodPhase{corev1.PodFailed}, ""},
		"one that has ended well":          {[]corev1.PodPhase{corev1.PodSucceeded}, ""},
		"several that have ended":          {[]corev1.PodPhase{corev1.PodFailed, corev1.PodSucceeded}, ""},
		"one that runs":                    {[]corev1.PodPhase{corev1.PodRunning}, "1 Pods of belay-controller are left: belay-controller-running"},
		"one that may start yet":           {[]corev1.PodPhase{corev1.PodPending}, "1 Pods of belay-controller are left: belay-controller-pending"},
		"one whose node is lost":           {[]corev1.PodPhase{corev1.PodUnknown}, "1 Pods of belay-controller are left: belay-controller-unknown"},
		"one that runs beside one that has ended": {[]corev1.PodPhase{corev1.PodFailed, corev1.PodRunning},
			"1 Pods of belay-controller are left: belay-controller-running"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				kube := installed(2, c.phases...)
				start := time.Now()
				err := unregister(t.Context(), kube, "belay-system", logr.Discard())
				took := time.Since(start)
				if c.left == "" {
					if err != nil || took != 0 || registrationsOf(t, kube) != 0 {
						t.Errorf("after %s: %v, %d registrations", took, err, registrationsOf(t, kube))
					}
					return
				}
				if err == nil || !strings.Contains(err.Error(), c.left) || took != goneWithin || registrationsOf(t, kube) != 2 {
					t.Errorf("after %s: %v, %d registrations", took, err, registrationsOf(t, kube))
				}
			})
		})
	}
}

// TestUnregisterWaitsForOneThatIsTerminating until it is gone.
func TestUnregisterWaitsForOneThatIsTerminating(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		kube := installed(2, corev1.PodRunning)
		pods := kube.CoreV1().Pods("belay-system")
		p, err := pods.Get(t.Context(), "belay-controller-running", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p.DeletionTimestamp = new(metav1.Now())
		if _, err := pods.Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(30*time.Second, func() {
			if n := registrationsOf(t, kube); n != 2 {
				t.Errorf("%d registrations while it runs", n)
			}
			if err := pods.Delete(t.Context(), p.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
		start := time.Now()
		err = unregister(t.Context(), kube, "belay-system", logr.Discard())
		if took := time.Since(start); err != nil || took < 30*time.Second || took > 31*time.Second || registrationsOf(t, kube) != 0 {
			t.Errorf("after %s: %v", took, err)
		}
	})
}

// TestAnUnregisterThatFailsSaysWhatItLeft: from when belay-controller is scaled to zero on, by it
// or before.
func TestAnUnregisterThatFailsSaysWhatItLeft(t *testing.T) {
	t.Parallel()
	const left = "; belay-controller is left at zero replicas, so that policies are not registered, Anchors neither bound nor expired, and certificates not rotated: run this again, or bring it back with kubectl -n belay-system scale deployment belay-controller --replicas=2, or helm rollback"
	errNo := errors.New("no")
	refuse := func(verb, resource, subresource string, err error) func(*fake.Clientset) {
		return func(kube *fake.Clientset) {
			kube.PrependReactor(verb, resource, func(a clienttesting.Action) (bool, runtime.Object, error) {
				return a.GetSubresource() == subresource, nil, err
			})
		}
	}
	missing := apierrors.NewNotFound(appsv1.Resource("deployments"), controllerDeployment)
	for name, c := range map[string]struct {
		replicas int32
		refuse   []func(*fake.Clientset)
		want     string
		left     bool
	}{
		"its scale cannot be read":                 {2, []func(*fake.Clientset){refuse("get", "deployments", "scale", errNo)}, "reading the scale of belay-controller: no", false},
		"it cannot be scaled":                      {2, []func(*fake.Clientset){refuse("update", "deployments", "scale", errNo)}, "scaling belay-controller to zero: no", false},
		"its Pods cannot be listed":                {2, []func(*fake.Clientset){refuse("list", "pods", "", errNo)}, "waiting until nothing registers any more (context deadline exceeded): no", true},
		"a registration cannot be deleted":         {2, []func(*fake.Clientset){refuse("delete", "validatingwebhookconfigurations", "", errNo)}, "deleting the ValidatingWebhookConfiguration: no", true},
		"nor when it is tried again":               {0, []func(*fake.Clientset){refuse("delete", "validatingwebhookconfigurations", "", errNo)}, "deleting the ValidatingWebhookConfiguration: no", true},
		"ConfigMaps cannot be listed":              {2, []func(*fake.Clientset){refuse("list", "configmaps", "", errNo)}, "listing ConfigMaps belay-ca: no", true},
		"there is no Deployment, and no right":     {2, []func(*fake.Clientset){refuse("get", "deployments", "scale", missing), refuse("delete", "mutatingwebhookconfigurations", "", errNo)}, "deleting the MutatingWebhookConfiguration: no", false},
		"it is at zero, and its scale stays as is": {0, []func(*fake.Clientset){refuse("update", "deployments", "scale", errNo)}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				kube := installed(c.replicas)
				for _, refuse := range c.refuse {
					refuse(kube)
				}
				want := c.want
				if c.left {
					want += left
				}
				var got string
				if err := unregister(t.Context(), kube, "belay-system", logr.Discard()); err != nil {
					got = err.Error()
				}
				if got != want {
					t.Errorf("%q, want %q", got, want)
				}
			})
		})
	}
}

// TestUnregisterIsDoneWhenNothingIsThere.
func TestUnregisterIsDoneWhenNothingIsThere(t *testing.T) {
	t.Parallel()
	kube := fake.NewClientset()
	for range 2 {
		if err := unregister(t.Context(), kube, "belay-system", logr.Discard()); err != nil {
			t.Error(err)
		}
	}
	if slices.ContainsFunc(kube.Actions(), func(a clienttesting.Action) bool { return a.GetVerb() == "update" }) {
		t.Error("something was written")
	}
}
