package trust

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// world is what a Reconciler finds, and what it did.
type world struct {
	*Reconciler
	client client.Client
	events chan string
	writes []string
	// before is asked before each call; an error is its answer.
	before func(verb string, o client.Object) error
}

// newWorld has the objects, belay's namespace, and a registration with the CA; an empty CA is
// no registration. bundles says whether ClusterTrustBundles are served.
func newWorld(t *testing.T, ca string, bundles bool, objects ...client.Object) *world {
	t.Helper()
	s := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "belay-system", UID: "own"}})
	if ca != "" {
		objects = append(objects, &admissionregistrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ConfigurationName},
			Webhooks:   []admissionregistrationv1.MutatingWebhook{entry("annotation.belay.dev", ca)},
		})
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	if bundles {
		mapper.Add(certificatesv1.SchemeGroupVersion.WithKind("ClusterTrustBundle"), meta.RESTScopeRoot)
	}
	w := &world{events: make(chan string, 10), before: func(string, client.Object) error { return nil }}
	ask := func(verb string, o client.Object) error {
		if verb != "get" {
			kind := "ConfigMap"
			if _, ok := o.(*certificatesv1.ClusterTrustBundle); ok {
				kind = "ClusterTrustBundle"
			}
			w.writes = append(w.writes, strings.TrimSpace(verb+" "+kind+" "+o.GetNamespace()))
		}
		return w.before(verb, o)
	}
	store := fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).Build()
	w.client = store
	c := interceptor.NewClient(store, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if err := ask("get", o); err != nil {
				return err
			}
			return c.Get(ctx, key, o, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := ask("create", o); err != nil {
				return err
			}
			return c.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if err := ask("update", o); err != nil {
				return err
			}
			return c.Update(ctx, o, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			var d client.DeleteOptions
			d.ApplyOptions(opts)
			if p := d.Preconditions; p == nil || p.UID == nil || p.ResourceVersion == nil || *p.UID != o.GetUID() || *p.ResourceVersion != o.GetResourceVersion() {
				t.Errorf("deleted without the preconditions of what was seen: %+v", d.Preconditions)
			}
			if err := ask("delete", o); err != nil {
				return err
			}
			return c.Delete(ctx, o, opts...)
		},
	})
	w.Reconciler = &Reconciler{client: c, live: c, mapper: mapper, events: &events.FakeRecorder{Events: w.events, Verbose: true}, own: "belay-system"}
	return w
}

func labNamespace(mode string, change ...func(*corev1.Namespace)) *corev1.Namespace {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab"}}
	if mode != "" {
		ns.Labels = map[string]string{v1alpha1.ModeLabel: mode}
	}
	for _, c := range change {
		c(ns)
	}
	return ns
}

func terminating(ns *corev1.Namespace) {
	now := metav1.Now()
	ns.DeletionTimestamp, ns.Finalizers = &now, []string{"kubernetes"}
}

func (w *world) reconcile(t *testing.T, name string) (reconcile.Result, error) {
	t.Helper()
	return w.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
}

// told is the event that was written; empty for none.
func (w *world) told() string {
	select {
	case e := <-w.events:
		return e
	default:
		return ""
	}
}

func TestANamespaceGetsTheCA(t *testing.T) {
	t.Parallel()
	ca, older := newCA(t, "new"), newCA(t, "old")
	foreignOne := configMap("theirs", func(cm *corev1.ConfigMap) { cm.Labels, cm.OwnerReferences = nil, nil })
	for name, c := range map[string]struct {
		ca      string
		objects []client.Object
		writes  []string
		want    *corev1.ConfigMap // nil for none
		event   string
	}{
		"opted in":                         {ca, []client.Object{labNamespace("enforce")}, []string{"create ConfigMap lab"}, configMap(ca), ""},
		"opted in, and it is there":        {ca, []client.Object{labNamespace("enforce"), configMap(ca)}, nil, configMap(ca), ""},
		"with an older one":                {ca, []client.Object{labNamespace("warn"), configMap(older)}, []string{"update ConfigMap lab"}, configMap(ca), ""},
		"a rotation":                       {older + ca, []client.Object{labNamespace("warn"), configMap(older)}, []string{"update ConfigMap lab"}, configMap(older + ca), ""},
		"an immutable older one":           {ca, []client.Object{labNamespace("warn"), configMap(older, immutable)}, []string{"delete ConfigMap lab"}, nil, ""},
		"no registration yet":              {"", []client.Object{labNamespace("enforce")}, nil, nil, ""},
		"no registration any more":         {"", []client.Object{labNamespace("enforce"), configMap(older)}, nil, configMap(older), ""},
		"opted out":                        {ca, []client.Object{labNamespace(""), configMap(ca)}, []string{"delete ConfigMap lab"}, nil, ""},
		"opted out, no registration":       {"", []client.Object{labNamespace(""), configMap(ca)}, []string{"delete ConfigMap lab"}, nil, ""},
		"never opted in":                   {ca, []client.Object{labNamespace("")}, nil, nil, ""},
		"being deleted":                    {ca, []client.Object{labNamespace("enforce", terminating)}, nil, nil, ""},
		"being deleted, and it is there":   {ca, []client.Object{labNamespace("enforce", terminating), configMap(older)}, nil, configMap(older), ""},
		"gone":                             {ca, nil, nil, nil, ""},
		"somebody else's":                  {ca, []client.Object{labNamespace("enforce"), foreignOne.DeepCopy()}, nil, foreignOne, "Warning NameTaken Trust sidecars in this namespace read belay's CA from a ConfigMap of this name"},
		"somebody else's, never opted in":  {ca, []client.Object{labNamespace(""), foreignOne.DeepCopy()}, nil, foreignOne, ""},
		"somebody else's, not known as CA": {"", []client.Object{labNamespace("enforce"), foreignOne.DeepCopy()}, nil, foreignOne, "Warning NameTaken Trust "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, c.ca, true, c.objects...)
			if result, err := w.reconcile(t, "lab"); err != nil || result != (reconcile.Result{}) {
				t.Errorf("%+v, %v", result, err)
			}
			if diff := cmp.Diff(c.writes, w.writes); diff != "" {
				t.Errorf("writes (-want +got)\n%s", diff)
			}
			var is corev1.ConfigMap
			err := w.client.Get(t.Context(), client.ObjectKey{Namespace: "lab", Name: v1alpha1.CABundleName}, &is)
			is.ResourceVersion = ""
			switch {
			case c.want == nil && !apierrors.IsNotFound(err):
				t.Errorf("%v %+v", err, is)
			case c.want != nil:
				if diff := cmp.Diff(c.want, &is); err != nil || diff != "" {
					t.Errorf("%v (-want +got)\n%s", err, diff)
				}
			}
			if e := w.told(); (e == "") != (c.event == "") || !strings.HasPrefix(e, c.event) {
				t.Errorf("event %q", e)
			}
			// Once more there is nothing to do.
			n := len(w.writes)
			if c.want == nil && len(c.writes) > 0 {
				return // an immutable one is made anew
			}
			if _, err := w.reconcile(t, "lab"); err != nil || len(w.writes) != n {
				t.Errorf("the second time: %v %q", err, w.writes)
			}
		})
	}
}

// TestAnImmutableOneIsMadeAnew: its deletion is an event.
func TestAnImmutableOneIsMadeAnew(t *testing.T) {
	t.Parallel()
	ca := newCA(t, "new")
	w := newWorld(t, ca, true, labNamespace("enforce"), configMap("old", immutable))
	for range 2 {
		if _, err := w.reconcile(t, "lab"); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"delete ConfigMap lab", "create ConfigMap lab"}, w.writes); diff != "" {
		t.Error(diff)
	}
}

func TestWritesThatFail(t *testing.T) {
	t.Parallel()
	maps := schema.GroupResource{Resource: "configmaps"}
	dying := apierrors.NewForbidden(maps, v1alpha1.CABundleName, errors.New("unable to create new content in namespace lab because it is being terminated"))
	dying.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, c := range map[string]struct {
		objects []client.Object
		verb    string
		err     error
		want    string // empty: the next event brings it back
	}{
		"it is there, and the cache has it not":  {nil, "create", apierrors.NewAlreadyExists(maps, v1alpha1.CABundleName), ""},
		"P04: the namespace has begun to go":     {nil, "create", dying, ""},
		"the namespace is gone":                  {nil, "create", apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "lab"), ""},
		"a create is forbidden":                  {nil, "create", apierrors.NewForbidden(maps, v1alpha1.CABundleName, errors.New("no")), "create ConfigMap lab/belay-ca: "},
		"the API server has trouble":             {nil, "create", errors.New("etcdserver: request timed out"), "create ConfigMap lab/belay-ca: "},
		"another wrote meanwhile":                {[]client.Object{configMap("old")}, "update", apierrors.NewConflict(maps, v1alpha1.CABundleName, nil), ""},
		"another deleted it meanwhile":           {[]client.Object{configMap("old")}, "update", apierrors.NewNotFound(maps, v1alpha1.CABundleName), ""},
		"a quota or a policy refuses the update": {[]client.Object{configMap("old")}, "update", apierrors.NewForbidden(maps, v1alpha1.CABundleName, errors.New("no")), "update ConfigMap lab/belay-ca: "},
		"the ConfigMaps cannot be read":          {nil, "get ConfigMap", errors.New("no cache"), "reading the ConfigMap: no cache"},
		"the registration cannot be read":        {nil, "get MutatingWebhookConfiguration", errors.New("no cache"), "reading the registration: no cache"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, newCA(t, "new"), true, append(c.objects, labNamespace("enforce"))...)
			w.before = func(verb string, o client.Object) error {
				switch o.(type) {
				case *corev1.ConfigMap:
					if verb == c.verb || verb+" ConfigMap" == c.verb {
						return c.err
					}
				case *admissionregistrationv1.MutatingWebhookConfiguration:
					if verb+" MutatingWebhookConfiguration" == c.verb {
						return c.err
					}
				}
				return nil
			}
			_, err := w.reconcile(t, "lab")
			if (err == nil) != (c.want == "") || err != nil && (!strings.HasPrefix(err.Error(), c.want) || !errors.Is(err, c.err)) {
				t.Error(err)
			}
			if e := w.told(); e != "" {
				t.Errorf("event %q", e)
			}
		})
	}
}

func TestOptedOutMeanwhile(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"another deleted it":        apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, v1alpha1.CABundleName),
		"another put its own there": apierrors.NewConflict(schema.GroupResource{Resource: "configmaps"}, v1alpha1.CABundleName, errors.New("uid")),
	} {
		w := newWorld(t, newCA(t, "new"), true, labNamespace(""), configMap("x"))
		w.before = func(verb string, _ client.Object) error {
			if verb == "delete" {
				return err
			}
			return nil
		}
		if _, err := w.reconcile(t, "lab"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheClusterTrustBundle(t *testing.T) {
	t.Parallel()
	ca, older := newCA(t, "new"), newCA(t, "old")
	bundle := func(content string, mine bool) *certificatesv1.ClusterTrustBundle {
		b := &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.CABundleName}, Spec: certificatesv1.ClusterTrustBundleSpec{TrustBundle: content}}
		if mine {
			b.Labels = map[string]string{"app.kubernetes.io/name": "belay", "app.kubernetes.io/component": "ca"}
			b.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Namespace", Name: "belay-system", UID: "own"}}
		}
		return b
	}
	for name, c := range map[string]struct {
		ca     string
		served bool
		is     *certificatesv1.ClusterTrustBundle
		writes []string
		want   *certificatesv1.ClusterTrustBundle
		event  bool
	}{
		"there is none":                      {ca, true, nil, []string{"create ClusterTrustBundle"}, bundle(ca, true), false},
		"as it should be":                    {ca, true, bundle(ca, true), nil, bundle(ca, true), false},
		"an older one":                       {ca, true, bundle(older, true), []string{"update ClusterTrustBundle"}, bundle(ca, true), false},
		"a rotation":                         {older + ca, true, bundle(older, true), []string{"update ClusterTrustBundle"}, bundle(older+ca, true), false},
		"somebody else's":                    {ca, true, bundle(older, false), nil, bundle(older, false), true},
		"somebody else's, with the right CA": {ca, true, bundle(ca, false), nil, bundle(ca, false), false},
		"the CA is not known":                {"", true, bundle(older, true), nil, bundle(older, true), false},
		"the CA is not known, and none":      {"", true, nil, nil, nil, false},
		"they are not served":                {ca, false, nil, nil, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var objects []client.Object
			if c.is != nil {
				objects = append(objects, c.is)
			}
			w := newWorld(t, c.ca, c.served, objects...)
			// It is not watched, hence looked at again, also where it is not served yet.
			if result, err := w.reconcile(t, ""); err != nil || result.RequeueAfter != recheck {
				t.Errorf("%+v, %v", result, err)
			}
			if diff := cmp.Diff(c.writes, w.writes); diff != "" {
				t.Errorf("writes (-want +got)\n%s", diff)
			}
			if e := w.told(); (e != "") != c.event || c.event && !strings.HasPrefix(e, "Warning NameTaken Trust ") {
				t.Errorf("event %q", e)
			}
			var is certificatesv1.ClusterTrustBundle
			err := w.client.Get(t.Context(), client.ObjectKey{Name: v1alpha1.CABundleName}, &is)
			is.ResourceVersion = ""
			switch {
			case c.want == nil && !apierrors.IsNotFound(err):
				t.Errorf("%v %+v", err, is)
			case c.want != nil:
				if diff := cmp.Diff(c.want, &is); err != nil || diff != "" {
					t.Errorf("%v (-want +got)\n%s", err, diff)
				}
			}
		})
	}
}

func TestTheClusterTrustBundleWhereWritesFail(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ verb, want string }{
		"reading":  {"get", "reading ClusterTrustBundle belay-ca: no"},
		"creating": {"create", "creating ClusterTrustBundle belay-ca: no"},
	} {
		w := newWorld(t, newCA(t, "new"), true)
		no := errors.New("no")
		w.before = func(verb string, o client.Object) error {
			if _, ok := o.(*certificatesv1.ClusterTrustBundle); ok && verb == c.verb {
				return no
			}
			return nil
		}
		if _, err := w.reconcile(t, ""); err == nil || err.Error() != c.want || !errors.Is(err, no) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestARegistrationIsAboutAllNamespacesAndTheBundle(t *testing.T) {
	t.Parallel()
	other := labNamespace("")
	other.Name = "other"
	w := newWorld(t, "", true, labNamespace("warn"), other)
	want := append(request(""), request("lab")...)
	if diff := cmp.Diff(want, w.all(t.Context(), nil)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
