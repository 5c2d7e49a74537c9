package recovery

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/facts"
	rules "github.com/belay-dev/belay/webhook/internal/recovery"
)

func TestStripKeepsWhatDecisionsRead(t *testing.T) {
	t.Parallel()
	p := compiledPolicy(t)
	plain := rules.Object{Kind: "BatchSandbox", Name: "a"}
	with := func(change func(*rules.Object)) rules.Object {
		o := plain
		change(&o)
		return o
	}
	own := facts.PodQuery{Namespace: "lab", Selector: "app=box", Owner: "box-uid"}
	for name, c := range map[string]struct {
		status  string
		change  func(*unstructured.Unstructured)
		about   rules.Object
		want    rules.Status
		query   facts.PodQuery
		problem string
	}{
		"a failed one": {status: `{"phase":"Failed","failedPodUIDs":["u1"]}`, about: plain, want: rules.Status{Phase: "Failed", Record: rules.Record{Present: true, UIDs: []string{"u1"}}}, query: own},
		"no status":    {about: plain, want: rules.Status{Absent: true}, query: own},
		"a terminal one": {
			status: `{"phase":"Failed","conditions":[{"type":"ResumeFailed","status":"True"}]}`, about: plain, want: rules.Status{Phase: "Failed", Terminal: true}, query: own,
		},
		"one of another shape": {status: `{"phase":7}`, about: plain, want: rules.Status{Problem: ".status.phase is a number, and should be a string"}, query: own},
		"one that is being deleted": {
			change: func(u *unstructured.Unstructured) { now := metav1.Now(); u.SetDeletionTimestamp(&now) },
			about:  with(func(o *rules.Object) { o.Deleting = true }), want: rules.Status{Absent: true}, query: own,
		},
		"one that is allowed": {
			change: annotated(map[string]string{"belay.dev/allow-recovery": "true"}), about: with(func(o *rules.Object) { o.Allowed = true }), want: rules.Status{Absent: true}, query: own,
		},
		"one that is resumed": {
			change: func(u *unstructured.Unstructured) { u.Object["spec"] = map[string]any{"pause": false} },
			about:  with(func(o *rules.Object) { o.ResumeInFlight = true }), want: rules.Status{Absent: true}, query: own,
		},
		"one of a pool": {
			change: func(u *unstructured.Unstructured) {
				u.Object["spec"] = map[string]any{"poolRef": "p"}
				u.SetAnnotations(map[string]string{"pods": `["q","p"]`})
			}, about: plain, want: rules.Status{Absent: true}, query: facts.PodQuery{Namespace: "lab", Selector: "app=pool", Names: []string{"p", "q"}},
		},
		"one whose Pods cannot be told": {
			change: func(u *unstructured.Unstructured) {
				u.Object["spec"] = map[string]any{"poolRef": "p"}
				u.SetAnnotations(map[string]string{"pods": `x`})
			}, about: plain, want: rules.Status{Absent: true}, problem: "the annotation pods holds no list of names",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := sandbox(t, c.status)
			u.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: strings.Repeat("x", 1000)}})
			if c.change != nil {
				c.change(u)
			}
			got, ok := strip(t.Context(), p, u).(*object)
			if !ok {
				t.Fatalf("%T", got)
			}
			if c.problem == "" {
				if diff := cmp.Diff(c.query, got.query); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
			}
			if diff := cmp.Diff(c.about, got.about) + cmp.Diff(c.want, got.status); diff != "" || got.problem != c.problem {
				t.Errorf("%q (-want +got)\n%s", got.problem, diff)
			}
			if diff := cmp.Diff(metav1.ObjectMeta{Namespace: "lab", Name: "a", UID: "box-uid", ResourceVersion: "10", Generation: 1}, got.ObjectMeta); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if again := strip(t.Context(), p, got); again != got {
				t.Errorf("its own result: %v", again)
			}
		})
	}
	gone := cache.DeletedFinalStateUnknown{Key: "lab/a"}
	if got := strip(t.Context(), p, gone); got != gone {
		t.Errorf("%v", got)
	}
}

// resource is where sandboxes are served, and listKinds what the fake client lists.
var (
	resource  = schema.GroupVersionResource{Group: "sandbox.opensandbox.io", Version: "v1alpha1", Resource: "batchsandboxes"}
	listKinds = map[schema.GroupVersionResource]string{resource: "BatchSandboxList"}
)

// TestObjectsAreWatchedByTheirLabelsAndFoundByTheirPods, by UID and by namespace.
func TestObjectsAreWatchedByTheirLabelsAndFoundByTheirPods(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		selector *metav1.LabelSelector
		asked    string
	}{
		"all of them":                         {nil, ""},
		"those of a label":                    {&metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}, "team=a"},
		"an empty selector asks for no label": {&metav1.LabelSelector{}, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			pooled := sandbox(t, "", func(u *unstructured.Unstructured) {
				u.SetName("b")
				u.SetUID("b-uid")
				u.Object["spec"] = map[string]any{"poolRef": "p"}
				u.SetAnnotations(map[string]string{"pods": `["p","q"]`})
			}, func(u *unstructured.Unstructured) { u.SetLabels(map[string]string{"team": "a"}) })
			labelled := sandbox(t, "", func(u *unstructured.Unstructured) { u.SetLabels(map[string]string{"team": "a"}) })
			client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), listKinds)
			for _, u := range []*unstructured.Unstructured{pooled, labelled} {
				// By its resource, which the fake client would guess wrong.
				if err := client.Tracker().Create(resource, u, "lab"); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			i := watchObjects(ctx, client, compiledPolicy(t, func(in *v1alpha1.AcceptedRecoveryPolicy) { in.Spec.Selector = c.selector }))
			done := make(chan struct{})
			go func() {
				defer close(done)
				i.RunWithContext(ctx)
			}()
			defer func() { cancel(); <-done }()
			synctest.Wait()
			for _, a := range client.Actions() {
				var got string
				switch a := a.(type) {
				case clienttesting.ListActionImpl:
					got = a.ListOptions.LabelSelector
				case clienttesting.WatchActionImpl:
					got = a.ListOptions.LabelSelector
				}
				if got != c.asked || a.GetNamespace() != "" {
					t.Errorf("%s: %s %q in %q", name, a.GetVerb(), got, a.GetNamespace())
				}
			}
			for _, q := range []struct {
				index, key string
				want       []string
			}{
				{byUID, "box-uid", []string{"a"}}, {byUID, "b-uid", []string{"b"}}, {byUID, "nobody", nil},
				{byPod, "lab/p", []string{"b"}}, {byPod, "lab/q", []string{"b"}}, {byPod, "other/p", nil}, {byPod, "lab/a-0", nil},
				{byNamespace, "lab", []string{"a", "b"}}, {byNamespace, "other", nil},
			} {
				found, err := i.GetIndexer().ByIndex(q.index, q.key)
				if err != nil {
					t.Fatal(err)
				}
				var names []string
				for _, obj := range found {
					if o, ok := obj.(*object); ok {
						names = append(names, o.Name)
					}
				}
				slices.Sort(names)
				if diff := cmp.Diff(q.want, names); diff != "" {
					t.Errorf("%s: %s %s (-want +got)\n%s", name, q.index, q.key, diff)
				}
			}
		})
	}
	if keys, err := index(func(*object) []string { return []string{"x"} })(sandbox(t, "")); keys != nil || err != nil {
		t.Errorf("%v %v", keys, err)
	}
}

func TestWhereBelayActs(t *testing.T) {
	t.Parallel()
	mode := func(value string, more ...string) map[string]string {
		out := map[string]string{v1alpha1.ModeLabel: value}
		for _, m := range more {
			k, v, _ := strings.Cut(m, "=")
			out[k] = v
		}
		return out
	}
	for name, c := range map[string]struct {
		namespace string
		labels    map[string]string
		selector  *metav1.LabelSelector
		want      string
	}{
		"enforce":                              {"lab", mode("enforce"), nil, "enforce"},
		"warn":                                 {"lab", mode("warn"), nil, "warn"},
		"no label":                             {"lab", nil, nil, ""},
		"another mode":                         {"lab", mode("audit"), nil, ""},
		"a mode in capitals":                   {"lab", mode("Enforce"), nil, ""},
		"belay's own":                          {"belay-system", mode("enforce"), nil, ""},
		"the system's":                         {"kube-system", mode("enforce"), nil, ""},
		"any that begins as the system's do":   {"kube-lab", mode("enforce"), nil, ""},
		"one that is called alike":             {"kubelab", mode("enforce"), nil, "enforce"},
		"one that the policy selects":          {"lab", mode("warn", "team=a"), &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}, "warn"},
		"one that the policy does not select":  {"lab", mode("enforce", "team=b"), &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}, ""},
		"one that a malformed selector is for": {"lab", mode("enforce"), &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := compiledPolicy(t, func(in *v1alpha1.AcceptedRecoveryPolicy) { in.Spec.NamespaceSelector = c.selector })
			ns := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: c.namespace, Labels: c.labels}}
			if got := acts(p, "belay-system", ns); got != c.want {
				t.Errorf("%q", got)
			}
		})
	}
}
