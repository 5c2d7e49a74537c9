package apifacts

import (
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Fact 12: validating admission runs after schema validation, of what mutating
// webhooks made of the object.
func TestFact12_ValidatingAdmissionRunsAfterSchemaValidation(t *testing.T) {
	t.Parallel()
	wrongJob := object{
		"apiVersion": "batch/v1", "kind": "Job", "metadata": object{"name": "one"},
		"spec": object{"parallelism": -1, "template": object{"spec": object{
			"restartPolicy": "Never", "containers": []any{object{"name": "main", "image": "example.com/none"}},
		}}},
	}
	rightJob := object{
		"apiVersion": "batch/v1", "kind": "Job", "metadata": object{"name": "one"},
		"spec": object{"suspend": true, "template": wrongJob["spec"].(object)["template"]},
	}
	wrongWidget := widgetJSON("one")
	wrongWidget["spec"] = object{"size": "large"}
	type calls struct{ Mutating, Validating int }
	for name, tc := range map[string]struct {
		on   rule
		path func(*fixture) string
		body object
		by   *operation // what the mutating webhook does
		code int
		want calls
	}{
		"a Job that the client made wrong":      {on("batch", "v1", "jobs", create), jobsPath, wrongJob, nil, http.StatusUnprocessableEntity, calls{1, 0}},
		"a Job that a webhook made wrong":       {on("batch", "v1", "jobs", create), jobsPath, rightJob, &operation{"add", "/spec/parallelism", -1}, http.StatusUnprocessableEntity, calls{1, 0}},
		"a Job that a webhook made right":       {on("batch", "v1", "jobs", create), jobsPath, wrongJob, &operation{"replace", "/spec/parallelism", 1}, http.StatusCreated, calls{1, 1}},
		"a Job that is right":                   {on("batch", "v1", "jobs", create), jobsPath, rightJob, nil, http.StatusCreated, calls{1, 1}},
		"a resource that the client made wrong": {onWidgets(create), widgetsPath, wrongWidget, nil, http.StatusUnprocessableEntity, calls{1, 0}},
		"a resource that a webhook made wrong":  {onWidgets(create), widgetsPath, widgetJSON("one"), &operation{"replace", "/spec/size", "large"}, http.StatusUnprocessableEntity, calls{1, 0}},
		"a resource that a webhook made right":  {onWidgets(create), widgetsPath, wrongWidget, &operation{"replace", "/spec/size", 1}, http.StatusCreated, calls{1, 1}},
		"a resource that is right":              {onWidgets(create), widgetsPath, widgetJSON("one"), nil, http.StatusCreated, calls{1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t, usual)
			mutating := f.mutating(t, hookSpec{on: tc.on, answer: func(*request) *response {
				if tc.by == nil {
					return nil
				}
				return patch(*tc.by)
			}})
			validating := f.validating(t, hookSpec{on: tc.on})
			answer, body := f.send(t, http.MethodPost, tc.path(f), "application/json", tc.body)
			if answer.StatusCode != tc.code {
				t.Errorf("the answer is %d; want %d: %s", answer.StatusCode, tc.code, body)
			}
			if diff := cmp.Diff(tc.want, calls{len(mutating.requests()), len(validating.requests())}); diff != "" {
				t.Errorf("calls of the webhooks (-want +got):\n%s", diff)
			}
		})
	}
}

func jobsPath(f *fixture) string    { return "/apis/batch/v1/namespaces/" + f.namespace + "/jobs" }
func widgetsPath(f *fixture) string { return f.widgetPath("") }

// Fact 12: validating admission runs before storage.
func TestFact12_ValidatingAdmissionRunsBeforeStorage(t *testing.T) {
	f := setUp(t, usual)
	stored := make(chan string, 2) // what was in storage during each call
	f.validating(t, hookSpec{on: onConfigMaps(create, update), answer: func(r *request) *response {
		got, err := f.configMaps().Get(t.Context(), r.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			stored <- "nothing"
		case err != nil:
			stored <- err.Error()
		default:
			stored <- got.Data["key"]
		}
		return nil
	}})
	made, err := f.configMaps().Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Data: map[string]string{"key": "old"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Data["key"] = "new"
	if _, err := f.configMaps().Update(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"nothing", "old"}, []string{<-stored, <-stored}); diff != "" {
		t.Errorf("stored during CREATE and UPDATE (-want +got):\n%s", diff)
	}
}

// Fact 12: the only true mutual exclusion is the storage key. 60 racing creates of
// one name gave 1 × 201 and 59 × 409; a validating webhook is shown all of them.
func TestFact12_StorageKeyIsTheOnlyMutualExclusion(t *testing.T) {
	f := setUp(t, usual)
	const racers = 60
	// All are in the webhook before the first of them may go on to storage.
	var arrived atomic.Int32
	complete := make(chan struct{})
	validating := f.validating(t, hookSpec{on: onConfigMaps(create), answer: func(*request) *response {
		if arrived.Add(1) == racers {
			close(complete)
		}
		select {
		case <-complete:
		case <-t.Context().Done():
		}
		return nil
	}})

	codes := make(chan int32, racers)
	for range racers {
		go func() {
			_, err := f.configMaps().Create(t.Context(), configMap(metav1.ObjectMeta{Name: "one"}), metav1.CreateOptions{})
			codes <- code(err)
		}()
	}
	got := map[int32]int{}
	for range racers {
		got[<-codes]++
	}
	if diff := cmp.Diff(map[int32]int{http.StatusOK: 1, http.StatusConflict: racers - 1}, got); diff != "" {
		t.Errorf("codes, 200 being any success (-want +got):\n%s", diff)
	}
	if calls := len(validating.requests()); calls != racers {
		t.Errorf("the webhook was shown %d of %d", calls, racers)
	}
	all, err := f.configMaps().Get(t.Context(), "one", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	for _, uid := range uids(t, validating.requests()) {
		shown[string(uid)] = true
	}
	if len(shown) != racers || !shown[string(all.UID)] {
		t.Errorf("the webhook was shown %d different UIDs; want %d, that of the winner among them", len(shown), racers)
	}
}
