package owned

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/test/fixtures/otf"
	"github.com/belay-dev/belay/test/integration/plane"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// TestAThousandSpawns creates 1,000 Secrets at once for 1,000 Jobs that come in a
// random order within a minute. Every Secret ends owned by the right UID, through
// its Anchor, and when the Jobs go nothing is left over.
func TestAThousandSpawns(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute and a half")
	}
	// 150 creates under way at once, by OTF's own service account: belay's calls would
	// wait behind the creates that wait for them, if the manifests gave belay no place of
	// its own (flowcontrol.yaml): without it 56 references were lost. With twice as many, two
	// cores that do something else beside are too slow for any webhook's time-out. An
	// administrator would not show any of this: its requests never queue.
	const n, creators = 1000, 150
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	defer cancel()
	s, err := stack.Start(ctx, stack.Options{Plane: plane.Options{Audit: true}, Presets: []string{"otf"}, Webhooks: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := s.WaitPolicy(ctx, "otf"); err != nil {
		t.Fatal(err)
	}
	ns, err := s.NewNamespace(ctx, "volume", v1alpha1.ModeEnforce)
	if err != nil {
		t.Fatal(err)
	}
	kube := executor(ctx, t, s, ns).Client
	before := apiCalls(t, s.Plane.AuditLog())

	start := time.Now()
	anchors := make([]string, n) // the anchor's UID of each run
	parallel(creators, n, func(i int) {
		sec, err := kube.CoreV1().Secrets(ns).Create(ctx, otf.Secret(ns, run(i), "job-1", "s3cret"), metav1.CreateOptions{})
		if err != nil {
			t.Errorf("secret %d: %v", i, err)
			return
		}
		if len(sec.OwnerReferences) != 1 || sec.OwnerReferences[0].Kind != "Anchor" {
			t.Errorf("secret %d is owned by %+v", i, sec.OwnerReferences)
			return
		}
		anchors[i] = string(sec.OwnerReferences[0].UID)
	})
	stack.Report(t, "%d secrets created and anchored in %s", n, time.Since(start).Round(time.Millisecond))

	order := rand.Perm(n)
	uids := make([]string, n)
	start = time.Now()
	parallel(creators, n, func(k int) {
		i := order[k]
		j, err := kube.BatchV1().Jobs(ns).Create(ctx, suspended(ns, run(i)), metav1.CreateOptions{})
		if err != nil {
			t.Errorf("job %d: %v", i, err)
			return
		}
		uids[i] = string(j.UID)
	})
	arrived := time.Since(start)
	if t.Failed() {
		return
	}
	eventually(ctx, t, "all anchors are bound", func() error {
		var all v1alpha1.AnchorList
		if err := s.Client.List(ctx, &all, client.InNamespace(ns)); err != nil {
			return err
		}
		if len(all.Items) != n {
			return fmt.Errorf("%d anchors", len(all.Items))
		}
		byUID := map[string]*v1alpha1.Anchor{}
		for i := range all.Items {
			byUID[string(all.Items[i].UID)] = &all.Items[i]
		}
		waiting := 0
		for i := range n {
			a := byUID[anchors[i]]
			switch {
			case a == nil:
				t.Fatalf("run %d has no anchor", i)
			case len(a.OwnerReferences) == 0:
				waiting++
			case len(a.OwnerReferences) != 1 || string(a.OwnerReferences[0].UID) != uids[i]:
				t.Fatalf("run %d belongs to %+v, want %s", i, a.OwnerReferences, uids[i])
			}
		}
		if waiting > 0 {
			return fmt.Errorf("%d still wait", waiting)
		}
		return nil
	})
	stack.Report(t, "%d jobs arrived in %s; the last anchor was bound %s after the last job", n, arrived.Round(time.Millisecond), (time.Since(start) - arrived).Round(time.Millisecond))

	after := apiCalls(t, s.Plane.AuditLog())
	for _, account := range []string{stack.WebhookAccount, stack.ControllerAccount} {
		sum := 0
		var parts []string
		for k, v := range after[account] {
			if d := v - before[account][k]; d > 0 {
				sum += d
				parts = append(parts, fmt.Sprintf("%s %d", k, d))
			}
		}
		slices.Sort(parts)
		stack.Report(t, "%s: %.2f API calls per spawn (%s)", account, float64(sum)/n, strings.Join(parts, ", "))
		if sum > 8*n {
			t.Errorf("%s made %d calls for %d spawns", account, sum, n)
		}
	}

	background := metav1.DeletePropagationBackground
	if err := s.Kube.BatchV1().Jobs(ns).DeleteCollection(ctx, metav1.DeleteOptions{PropagationPolicy: &background}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "no anchor and no secret is left", func() error {
		var all v1alpha1.AnchorList
		if err := s.Client.List(ctx, &all, client.InNamespace(ns)); err != nil {
			return err
		}
		secrets, err := s.Kube.CoreV1().Secrets(ns).List(ctx, metav1.ListOptions{})
		if err == nil && len(all.Items)+len(secrets.Items) > 0 {
			err = fmt.Errorf("%d anchors and %d secrets", len(all.Items), len(secrets.Items))
		}
		return err
	})
}

func run(i int) string { return fmt.Sprintf("run-%04d", i) }

// parallel calls f for 0 to n-1 from a number of goroutines, and waits.
func parallel(workers, n int, f func(int)) {
	next := make(chan int)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

// apiCalls counts the finished requests of belay's accounts in the audit log, by
// account and by verb and resource. Watches count once each.
func apiCalls(t *testing.T, path string) map[string]map[string]int {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	out := map[string]map[string]int{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		var e struct {
			Stage, Verb string
			User        struct{ Username string }
			ObjectRef   struct{ Resource, Subresource string }
		}
		if json.Unmarshal(sc.Bytes(), &e) != nil || e.Stage != "ResponseComplete" {
			continue
		}
		account, ours := strings.CutPrefix(e.User.Username, "system:serviceaccount:"+stack.Namespace+":")
		if !ours || e.ObjectRef.Resource == "leases" || e.Verb == "watch" {
			continue
		}
		if out[account] == nil {
			out[account] = map[string]int{}
		}
		what := e.Verb + " " + e.ObjectRef.Resource
		if e.ObjectRef.Subresource != "" {
			what += "/" + e.ObjectRef.Subresource
		}
		out[account][what]++
	}
	return out
}
