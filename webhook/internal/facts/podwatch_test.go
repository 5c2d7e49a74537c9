package facts

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/recovery"
)

// TestAPodIsFoundByItsName, whichever labels it is watched for.
func TestAPodIsFoundByItsName(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reported := podWith("r", "pool", "pool-uid")
		reported.Status.Conditions = []corev1.PodCondition{{
			Type: v1alpha1.MainReadyCondition, Status: corev1.ConditionTrue, Reason: "ProbeSucceeded",
			Message: recovery.ReportMessage("containerd://m1", "it answers", recovery.Order{Reporter: "r", Sequence: 7, Since: 1000}),
		}}
		reported.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", ContainerID: "containerd://m1", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Unix(7, 0)}}}}
		elsewhere := podWith("a", "box", "")
		elsewhere.Namespace, elsewhere.UID = "other", "elsewhere"
		w := watchIn(t.Context(), t, fake.NewClientset(podWith("a", "box", "box-uid"), elsewhere, reported, podWith("x", "x", "")), "app=box", "app=pool")
		find := func(namespace, name, uid string) recovery.Pod {
			t.Helper()
			synctest.Wait()
			got, ok := w.Pod(namespace, name)
			if string(got.UID) != uid || ok != (uid != "") {
				t.Errorf("%s/%s: %t %+v, want %q", namespace, name, ok, got, uid)
			}
			return got
		}
		find("lab", "a", "uid-a")
		find("other", "a", "elsewhere")
		find("lab", "x", "") // nobody asked for its labels
		find("lab", "", "")
		find("", "a", "")
		find("lab", "other/a", "")
		// What a report is decided by is there.
		want := recovery.PodOf(reported)
		if diff := cmp.Diff(want, find("lab", "r", "uid-r")); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		// One that has gone, and come again as another.
		pods := w.client.CoreV1().Pods("lab")
		if err := pods.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		find("lab", "a", "")
		again := podWith("a", "box", "box-uid")
		again.UID = "anew"
		if _, err := pods.Create(t.Context(), again, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		find("lab", "a", "anew")
		w.Want([]string{"app=pool"})
		find("lab", "r", "uid-r")
		w.Want(nil)
		find("lab", "r", "")
	})
}

// TestAPodIsFoundWhateverElseIsNotKnownYet: one watch that gets nothing does not stand in the
// way of the others.
func TestAPodIsFoundWhateverElseIsNotKnownYet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(podWith("a", "box", ""))
		client.PrependReactor("list", "pods", func(a clienttesting.Action) (bool, apiruntime.Object, error) {
			return a.(clienttesting.ListActionImpl).ListOptions.LabelSelector == "app=pool", nil, apierrors.NewForbidden(podsResource, "", errors.New("no right"))
		})
		w := watchIn(t.Context(), t, client, "app=pool", "app=box")
		for range 20 { // in whichever order
			if got, ok := w.Pod("lab", "a"); !ok || got.UID != "uid-a" {
				t.Fatalf("%t %+v", ok, got)
			}
		}
	})
	w := NewPodWatch(fake.NewClientset(podWith("a", "box", "")), nil)
	w.Want([]string{"app=box"})
	if got, ok := w.Pod("lab", "a"); ok {
		t.Errorf("before it runs: %+v", got)
	}
}

// TestPodsAreFoundByManyAtOnce is for the race detector.
func TestPodsAreFoundByManyAtOnce(t *testing.T) {
	t.Parallel()
	w := NewPodWatch(fake.NewClientset(podWith("a", "box", ""), podWith("p", "pool", "")), nil)
	ctx, cancel := context.WithCancel(t.Context())
	var start, users sync.WaitGroup
	start.Go(func() { _ = w.Start(ctx) })
	for i := range 4 {
		users.Go(func() {
			for n := range 50 {
				if (n+i)%5 == 0 {
					w.Want([]string{"app=box", "app=pool"}[:1+n%2])
				}
				if got, ok := w.Pod("lab", "a"); ok && got.UID != "uid-a" {
					t.Errorf("%+v", got)
				}
			}
		})
	}
	users.Wait()
	cancel()
	start.Wait()
}
