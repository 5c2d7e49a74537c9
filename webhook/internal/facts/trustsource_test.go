package facts

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// bundling is an API server with nodes, and perhaps with ClusterTrustBundles.
type bundling struct {
	meta.RESTMapper
	*fake.Clientset

	mu      sync.Mutex
	served  []string // versions
	mapping error
	// nodes are kubelet versions, page by page; lists fail with failing, from that page on.
	nodes   [][]string
	failing error
	from    int
	asked   []string
}

func (b *bundling) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mapping != nil {
		return nil, b.mapping
	}
	for _, v := range b.served {
		if len(versions) == 1 && v == versions[0] && kind == (schema.GroupKind{Group: certificatesv1.GroupName, Kind: "ClusterTrustBundle"}) {
			return &meta.RESTMapping{}, nil
		}
	}
	return nil, &meta.NoKindMatchError{GroupKind: kind, SearchedVersions: versions}
}

func bundlingWith(nodes ...[]string) *bundling {
	b := &bundling{Clientset: fake.NewClientset(), served: []string{"v1"}, nodes: nodes}
	b.PrependReactor("list", "nodes", func(a clienttesting.Action) (bool, apiruntime.Object, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		o := a.(clienttesting.ListActionImpl).ListOptions
		b.asked = append(b.asked, fmt.Sprintf("%d from %q", o.Limit, o.Continue))
		page := 0
		if o.Continue != "" {
			if _, err := fmt.Sscan(o.Continue, &page); err != nil {
				return true, nil, err
			}
		}
		if b.failing != nil && page >= b.from {
			return true, nil, b.failing
		}
		list := &corev1.NodeList{}
		if page < len(b.nodes) {
			for _, v := range b.nodes[page] {
				list.Items = append(list.Items, corev1.Node{Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KubeletVersion: v}}})
			}
		}
		if page+1 < len(b.nodes) {
			list.ListMeta = metav1.ListMeta{Continue: fmt.Sprint(page + 1)}
		}
		return true, list, nil
	})
	return b
}

func TestBundlesAreUsable(t *testing.T) {
	t.Parallel()
	served := func(versions ...string) func(*bundling) { return func(b *bundling) { b.served = versions } }
	for name, c := range map[string]struct {
		nodes [][]string
		given func(*bundling)
		want  bool
		asked int
	}{
		"every kubelet knows them":             {nodes: [][]string{{"v1.37.0", "v1.37.4", "v1.38.1"}}, want: true, asked: 1},
		"one does not":                         {nodes: [][]string{{"v1.37.0", "v1.36.9", "v1.37.0"}}, asked: 1},
		"as distributions name them":           {nodes: [][]string{{"v1.37.0+k3s1", "v1.37.2-eks-1a2b3c4", "v1.38.0-gke.100"}}, want: true, asked: 1},
		"an old one of a distribution":         {nodes: [][]string{{"v1.36.9-gke.3700"}}, asked: 1},
		"a later major version":                {nodes: [][]string{{"v2.0.0"}}, want: true, asked: 1},
		"one that has not said yet":            {nodes: [][]string{{"v1.37.0", ""}}, asked: 1},
		"one that says nothing of use":         {nodes: [][]string{{"v1.37.0", "unknown"}}, asked: 1},
		"there is no node yet":                 {nodes: nil, asked: 1},
		"page by page":                         {nodes: [][]string{{"v1.37.0"}, {"v1.37.0"}, {"v1.37.1"}}, want: true, asked: 3},
		"the last one of many does not":        {nodes: [][]string{{"v1.37.0"}, {"v1.37.0"}, {"v1.33.0"}}, asked: 3},
		"the others are not read any more":     {nodes: [][]string{{"v1.33.0"}, {"v1.37.0"}}, asked: 1},
		"an empty page at the end":             {nodes: [][]string{{"v1.37.0"}, {}}, want: true, asked: 2},
		"an empty page":                        {nodes: [][]string{{}, {"v1.37.0"}}, want: true, asked: 2},
		"the API server does not serve them":   {nodes: [][]string{{"v1.37.0"}}, given: served()},
		"it serves them as a beta":             {nodes: [][]string{{"v1.37.0"}}, given: served("v1beta1")},
		"nobody can tell whether it does":      {nodes: [][]string{{"v1.37.0"}}, given: func(b *bundling) { b.mapping = errors.New("no answer") }},
		"the nodes cannot be read":             {nodes: [][]string{{"v1.37.0"}}, given: func(b *bundling) { b.failing = errors.New("no right") }, asked: 1},
		"the second page of nodes is too late": {nodes: [][]string{{"v1.37.0"}, {"v1.37.0"}}, given: func(b *bundling) { b.failing, b.from = errors.New("gone"), 1 }, asked: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := bundlingWith(c.nodes...)
				if c.given != nil {
					c.given(s)
				}
				b := &Bundles{Kube: s, Mapper: s}
				if b.Usable() {
					t.Error("usable before anybody has looked")
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- b.Start(ctx) }()
				synctest.Wait()
				if b.Usable() != c.want || len(s.asked) != c.asked {
					t.Errorf("%t after %q", b.Usable(), s.asked)
				}
				for _, q := range s.asked {
					if want := fmt.Sprintf("%d from", nodePage); q[:len(want)] != want {
						t.Errorf("asked for %s", q)
					}
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestBundlesAreLookedAtAgain: every ten minutes, and after trouble every ten seconds. What was
// found out counts until something else is.
func TestBundlesAreLookedAtAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := bundlingWith([]string{"v1.36.0"})
		b := &Bundles{Kube: s, Mapper: s}
		go func() { _ = b.Start(t.Context()) }()
		after := func(wait time.Duration, usable bool, looks int) {
			t.Helper()
			<-time.After(wait)
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			if b.Usable() != usable || len(s.asked) != looks {
				t.Errorf("usable %t after %d looks, want %t after %d", b.Usable(), len(s.asked), usable, looks)
			}
		}
		change := func(change func()) {
			s.mu.Lock()
			defer s.mu.Unlock()
			change()
		}
		after(0, false, 1)
		change(func() { s.nodes = [][]string{{"v1.37.0"}} })
		after(bundlesEvery-time.Second, false, 1)
		after(time.Second, true, 2)
		change(func() { s.failing = errors.New("no answer") })
		after(bundlesEvery, true, 3)
		after(bundlesRetry, true, 4)
		change(func() { s.failing, s.nodes = nil, [][]string{{"v1.37.0", "v1.33.0"}} })
		after(bundlesRetry, false, 5)
		after(bundlesEvery, false, 6)
		change(func() { s.nodes = [][]string{{"v1.37.0"}} })
		after(bundlesEvery, true, 7)
		change(func() { s.mapping = errors.New("no answer") })
		after(bundlesEvery, true, 7)
		change(func() { s.mapping = nil })
		after(bundlesRetry, true, 8)
		change(func() { s.served = nil })
		after(bundlesEvery, false, 8)
	})
}
