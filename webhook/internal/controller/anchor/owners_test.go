package anchor

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

func metaOf(namespace, name string, labels map[string]string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels, UID: "some-uid"},
	}
}

// watching starts watches of Jobs over these objects, and waits until they are synced.
func watching(t *testing.T, kinds []v1alpha1.ResolvedResource, objects ...*metav1.PartialObjectMetadata) (*owners, func() []string) {
	t.Helper()
	s := fake.NewTestScheme()
	if err := metav1.AddMetaToScheme(s); err != nil {
		t.Fatal(err)
	}
	c := fake.NewSimpleMetadataClient(s)
	for _, o := range objects {
		if err := c.Tracker().Create(schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}, o, o.Namespace); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	var came []string
	ctx, cancel := context.WithCancel(t.Context())
	o := &owners{client: c, log: logr.Discard(), watches: watchMap{}, came: func(_ v1alpha1.ResolvedResource, m *metav1.PartialObjectMetadata) {
		mu.Lock()
		defer mu.Unlock()
		came = append(came, m.Namespace+"/"+m.Name)
	}}
	t.Cleanup(func() { cancel(); o.wg.Wait() })
	if err := o.want(ctx, kinds); err != nil {
		t.Fatal(err)
	}
	for _, w := range o.watches {
		if !cache.WaitForCacheSync(ctx.Done(), w.informer.HasSynced) {
			t.Fatal("not synced")
		}
	}
	return o, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Sorted(slices.Values(came))
	}
}

func TestMayExist(t *testing.T) {
	t.Parallel()
	gone := metaOf("lab", "gone", map[string]string{"spur.dev/id": "9"})
	gone.DeletionTimestamp = new(metav1.NewTime(created))
	o, _ := watching(t, []v1alpha1.ResolvedResource{builders.Jobs()},
		metaOf("lab", "run", map[string]string{"spur.dev/id": "7"}), metaOf("other", "walk", map[string]string{"spur.dev/id": "8"}), gone)
	byName := func(apiVersion, kind, name string) v1alpha1.AnchorOwner {
		return v1alpha1.AnchorOwner{APIVersion: apiVersion, Kind: kind, Name: name}
	}
	byLabel := func(v string) v1alpha1.AnchorOwner {
		return v1alpha1.AnchorOwner{APIVersion: "batch/v1", Kind: "Job", MatchLabels: map[string]string{"spur.dev/id": v}}
	}
	for name, c := range map[string]struct {
		owner           v1alpha1.AnchorOwner
		exists, watched bool
	}{
		"it is there":                         {byName("batch/v1", "Job", "run"), true, true},
		"it is there, in lower case":          {byName("batch/v1", "job", "run"), true, true},
		"it is there, in another version":     {byName("batch/v2", "Job", "run"), true, true},
		"it is not there":                     {byName("batch/v1", "Job", "crawl"), false, true},
		"it is in another namespace":          {byName("batch/v1", "Job", "walk"), false, true},
		"it is on its way out":                {byName("batch/v1", "Job", "gone"), false, true},
		"its kind is not watched":             {byName("batch/v1", "CronJob", "run"), true, false},
		"its kind is watched in other group":  {byName("v1", "Job", "run"), true, false},
		"its labels are there":                {byLabel("7"), true, true},
		"its labels are not there":            {byLabel("6"), false, true},
		"its labels are in another namespace": {byLabel("8"), false, true},
		"its labels are on their way out":     {byLabel("9"), false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			exists, watched := o.mayExist(waiting().For(c.owner).Obj())
			if exists != c.exists || watched != c.watched {
				t.Errorf("exists %t, watched %t", exists, watched)
			}
		})
	}
}

func TestAWatchThatIsNotSyncedKnowsNothing(t *testing.T) {
	t.Parallel()
	c := fake.NewSimpleMetadataClient(fake.NewTestScheme())
	gvr := schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}
	informer := metadatainformer.NewFilteredMetadataInformer(c, gvr, metav1.NamespaceAll, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}, nil).Informer()
	o := &owners{watches: watchMap{gvr: {resource: builders.Jobs(), informer: informer}}}
	if exists, watched := o.mayExist(waiting().Obj()); !exists || watched {
		t.Errorf("exists %t, watched %t", exists, watched)
	}
}

func TestOwnersThatComeAreToldOfAndThoseThatLeaveAreNot(t *testing.T) {
	t.Parallel()
	gone := metaOf("lab", "gone", nil)
	gone.DeletionTimestamp = new(metav1.NewTime(created))
	_, came := watching(t, []v1alpha1.ResolvedResource{builders.Jobs()}, metaOf("lab", "run", nil), gone, metaOf("lab", "walk", nil))
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for len(came()) < 2 {
		select {
		case <-deadline:
			t.Fatalf("told of %v", came())
		case <-tick.C:
		}
	}
	if diff := cmp.Diff([]string{"lab/run", "lab/walk"}, came()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestWantStopsWhatIsNotWantedAnyMore(t *testing.T) {
	t.Parallel()
	o, _ := watching(t, []v1alpha1.ResolvedResource{builders.Jobs()}, metaOf("lab", "run", nil))
	if err := o.want(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	o.wg.Wait() // returns: the watch has ended
	if exists, watched := o.mayExist(waiting().Obj()); !exists || watched {
		t.Errorf("exists %t, watched %t: what is not watched may always exist", exists, watched)
	}
}

func TestStripKeepsWhatBindingNeeds(t *testing.T) {
	t.Parallel()
	m := metaOf("lab", "run", map[string]string{"a": "b"})
	m.ResourceVersion, m.DeletionTimestamp = "7", new(metav1.NewTime(created))
	want := m.DeepCopy()
	m.Annotations = map[string]string{"big": "x"}
	m.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	got, err := strip(m)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
