package apifacts

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	batchclient "k8s.io/client-go/kubernetes/typed/batch/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

const (
	// soon bounds what takes seconds on an idle machine.
	soon = time.Minute

	// hold is a finalizer that keeps an object until a test removes it.
	hold = "apifacts.belay.dev/hold"
)

// A fixture is a namespace of its own for a test and clients of an administrator.
type fixture struct {
	namespace string
	config    *rest.Config
	admin     *kubernetes.Clientset
	widgets   dynamic.ResourceInterface
	http      *http.Client // an administrator's without client-go's retries
}

// setUp makes a test parallel and gives it a namespace on a control plane.
func setUp(t *testing.T, s *sharedPlane) *fixture {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	t.Parallel()
	f := &fixture{config: s.start(t).Config()}
	f.config.WarningHandler = rest.NoWarnings{}
	var err error
	if f.admin, err = kubernetes.NewForConfig(f.config); err != nil {
		t.Fatal(err)
	}
	if f.http, err = rest.HTTPClientFor(f.config); err != nil {
		t.Fatal(err)
	}
	namespaces := f.admin.CoreV1().Namespaces()
	made, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "apifacts-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f.namespace = made.Name
	f.cleanup(t, func(ctx context.Context) error { return namespaces.Delete(ctx, made.Name, metav1.DeleteOptions{}) })
	widgets, err := dynamic.NewForConfig(f.config)
	if err != nil {
		t.Fatal(err)
	}
	f.widgets = widgets.Resource(widgetResource).Namespace(f.namespace)
	return f
}

// cleanup calls do after the test, when its own context has ended.
func (f *fixture) cleanup(t *testing.T, do func(context.Context) error) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), soon)
		defer cancel()
		if err := do(ctx); err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("cleaning up: %v", err)
		}
	})
}

func (f *fixture) configMaps() coreclient.ConfigMapInterface {
	return f.admin.CoreV1().ConfigMaps(f.namespace)
}
func (f *fixture) jobs() batchclient.JobInterface { return f.admin.BatchV1().Jobs(f.namespace) }

// createConfigMap creates a ConfigMap that has to succeed.
func (f *fixture) createConfigMap(t *testing.T, meta metav1.ObjectMeta) *corev1.ConfigMap {
	t.Helper()
	made, err := f.configMaps().Create(t.Context(), configMap(meta), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func configMap(meta metav1.ObjectMeta) *corev1.ConfigMap { return &corev1.ConfigMap{ObjectMeta: meta} }

// createJob creates a suspended Job that has to succeed.
func (f *fixture) createJob(t *testing.T, meta metav1.ObjectMeta) *batchv1.Job {
	t.Helper()
	made, err := f.jobs().Create(t.Context(), suspendedJob(meta), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// suspendedJob has no pods to run.
func suspendedJob(meta metav1.ObjectMeta) *batchv1.Job {
	suspend := true
	return &batchv1.Job{
		ObjectMeta: meta,
		Spec: batchv1.JobSpec{
			Suspend: &suspend,
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever,
				Containers:    []corev1.Container{{Name: "main", Image: "example.com/none"}},
			}},
		},
	}
}

func (f *fixture) configMapExists(name string) wait.ConditionWithContextFunc {
	return func(ctx context.Context) (bool, error) {
		_, err := f.configMaps().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	}
}

func not(condition wait.ConditionWithContextFunc) wait.ConditionWithContextFunc {
	return func(ctx context.Context) (bool, error) {
		met, err := condition(ctx)
		return !met && err == nil, err
	}
}

// send makes one request of an administrator and returns the whole answer.
func (f *fixture) send(t *testing.T, method, path, contentType string, body any) (*http.Response, []byte) {
	t.Helper()
	content, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, f.config.Host+path, bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", contentType)
	answer, err := f.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	content, err = io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer, content
}

// configMapPath is the path of a ConfigMap, or of all of them.
func (f *fixture) configMapPath(name string) string {
	return "/api/v1/namespaces/" + f.namespace + "/configmaps/" + name
}

func (f *fixture) widgetPath(name string) string {
	return "/apis/" + widgetResource.Group + "/" + widgetResource.Version + "/namespaces/" + f.namespace + "/" + widgetResource.Resource + "/" + name
}

// object is a JSON object.
type object = map[string]any

func configMapJSON(name string) object {
	return object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": name}}
}

func decode[T any](t *testing.T, content []byte) T {
	t.Helper()
	var out T
	if err := json.Unmarshal(content, &out); err != nil {
		t.Fatalf("reading %s: %v", content, err)
	}
	return out
}

// as returns a configuration for somebody else.
func (f *fixture) as(user string, groups ...string) *rest.Config {
	config := rest.CopyConfig(f.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	return config
}

// user returns a client of a user who may do nothing but this in the namespace.
func (f *fixture) user(t *testing.T, name string, rights ...rbacv1.PolicyRule) *kubernetes.Clientset {
	t.Helper()
	meta := metav1.ObjectMeta{Name: name}
	if _, err := f.admin.RbacV1().Roles(f.namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: rights}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.admin.RbacV1().RoleBindings(f.namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: meta,
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the rights of "+name+" are known", func(ctx context.Context) (bool, error) {
		last := rights[len(rights)-1]
		resource, subresource, _ := strings.Cut(last.Resources[0], "/")
		review, err := f.admin.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: name, ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: f.namespace, Verb: last.Verbs[0], Group: last.APIGroups[0], Resource: resource, Subresource: subresource,
			}},
		}, metav1.CreateOptions{})
		return err == nil && review.Status.Allowed, err
	})
	client, err := kubernetes.NewForConfig(f.as(name))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func eventually(t *testing.T, what string, condition wait.ConditionWithContextFunc) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, soon, true, condition); err != nil {
		t.Fatalf("waiting until %s: %v", what, err)
	}
}

// code is the HTTP status that a client got: 0 when there was none, 200 for any
// success.
func code(err error) int32 {
	if err == nil {
		return http.StatusOK
	}
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		return 0
	}
	return status.Status().Code
}

// uids returns the UIDs of the objects that a webhook was shown.
func uids(t *testing.T, requests []request) []types.UID {
	t.Helper()
	var out []types.UID
	for _, r := range requests {
		out = append(out, decode[metav1.PartialObjectMetadata](t, r.Object.Raw).UID)
	}
	return out
}

// widgetResource is a custom resource of the tests.
var widgetResource = schema.GroupVersionResource{Group: "apifacts.belay.dev", Version: "v1", Resource: "widgets"}

// createWidgets creates the custom resource and waits until it is served.
func createWidgets(ctx context.Context, config *rest.Config) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	text := object{"type": "string"}
	number := object{"type": "integer"}
	definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	if _, err := definitions.Create(ctx, &unstructured.Unstructured{Object: object{
		"apiVersion": "apiextensions.k8s.io/v1",
		"kind":       "CustomResourceDefinition",
		"metadata":   object{"name": widgetResource.Resource + "." + widgetResource.Group},
		"spec": object{
			"group": widgetResource.Group,
			"scope": "Namespaced",
			"names": object{"plural": widgetResource.Resource, "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
			"versions": []any{object{
				"name": widgetResource.Version, "served": true, "storage": true,
				"subresources": object{"status": object{}},
				"schema": object{"openAPIV3Schema": object{
					"type": "object",
					"properties": object{
						"spec": object{"type": "object", "properties": object{"size": number}},
						"status": object{"type": "object", "properties": object{
							"phase":   text,
							"message": object{"type": "string", "nullable": true},
							"count":   number,
							"last":    object{"type": "object", "properties": object{"result": text}},
						}},
					},
				}},
			}},
		},
	}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, soon, true, func(ctx context.Context) (bool, error) {
		_, err := client.Resource(widgetResource).Namespace("default").List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
}

func widgetJSON(name string) object {
	return object{
		"apiVersion": widgetResource.GroupVersion().String(),
		"kind":       "Widget",
		"metadata":   object{"name": name},
		"spec":       object{"size": int64(1)},
	}
}

// createWidget creates a widget of size 1 with a status.
func (f *fixture) createWidget(t *testing.T, name string, status object) *unstructured.Unstructured {
	t.Helper()
	made, err := f.widgets.Create(t.Context(), &unstructured.Unstructured{Object: widgetJSON(name)}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Object["status"] = status
	if made, err = f.widgets.UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return made
}

// widget reads a widget.
func (f *fixture) widget(t *testing.T, name string) *unstructured.Unstructured {
	t.Helper()
	out, err := f.widgets.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
