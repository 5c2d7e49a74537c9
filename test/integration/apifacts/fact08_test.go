package apifacts

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// other is a writer who gets in between; webhooks recognise it by its name.
const other = "other"

// Fact 8: one client PATCH can call the webhook many times, often with a stale
// oldObject.
//
// Here somebody else writes while the mutating webhook decides, three times.
func TestFact08_OnePatchCallsTheWebhookManyTimes(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		contentType types.PatchType
		body        string
	}{
		"a merge patch":           {types.MergePatchType, `{"data":{"mine":"yes"}}`},
		"a strategic merge patch": {types.StrategicMergePatchType, `{"data":{"mine":"yes"}}`},
		"a JSON patch":            {types.JSONPatchType, `[{"op":"add","path":"/data/mine","value":"yes"}]`},
		"an apply":                {types.ApplyPatchType, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one"},"data":{"mine":"yes"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t, usual)
			otherClient, err := kubernetes.NewForConfig(f.as(other, "system:masters"))
			if err != nil {
				t.Fatal(err)
			}
			write := func(value string) string {
				made, err := otherClient.CoreV1().ConfigMaps(f.namespace).Patch(t.Context(), "one", types.MergePatchType,
					[]byte(`{"data":{"others":"`+value+`"}}`), metav1.PatchOptions{FieldManager: other})
				if err != nil {
					t.Error(err)
					return ""
				}
				return made.ResourceVersion
			}
			f.createConfigMap(t, metav1.ObjectMeta{Name: "one"})
			versions := []string{write("0")} // after each write of the other

			var calls atomic.Int32
			var mu sync.Mutex
			mutating := f.mutating(t, hookSpec{on: onConfigMaps(update), answer: func(r *request) *response {
				if r.UserInfo.Username == other {
					return nil
				}
				if n := calls.Add(1); n <= 3 {
					version := write(fmt.Sprint(n))
					mu.Lock()
					defer mu.Unlock()
					versions = append(versions, version)
				}
				return nil
			}})
			validating := f.validating(t, hookSpec{on: onConfigMaps(update)})

			options := metav1.PatchOptions{FieldManager: "mine"}
			got, err := f.configMaps().Patch(t.Context(), "one", tc.contentType, []byte(tc.body), options)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(map[string]string{"mine": "yes", "others": "3"}, got.Data); diff != "" {
				t.Errorf("data (-want +got):\n%s", diff)
			}
			mu.Lock()
			defer mu.Unlock()
			// Of four calls, three were shown an old object that had gone when the
			// validating webhook was called, or storage was reached.
			for phase, h := range map[string]*hook{"mutating": mutating, "validating": validating} {
				if diff := cmp.Diff(versions, oldVersions(t, h)); diff != "" {
					t.Errorf("old resource versions that the %s webhook was shown (-want +got):\n%s", phase, diff)
				}
			}
		})
	}
}

// oldVersions returns the resource versions of the old objects that a webhook was
// shown, but for those of the other writer.
func oldVersions(t *testing.T, h *hook) []string {
	t.Helper()
	var out []string
	for _, r := range h.requests() {
		if r.UserInfo.Username != other {
			out = append(out, decode[metav1.PartialObjectMetadata](t, r.OldObject.Raw).ResourceVersion)
		}
	}
	return out
}

// Fact 8, without a webhook that provokes it: writers that race for an object.
func TestFact08_RacingPatchesCallTheWebhookMoreOftenThanTheyWrite(t *testing.T) {
	f := setUp(t, usual)
	f.createConfigMap(t, metav1.ObjectMeta{Name: "one"})
	const writers = 10
	// All are in the webhook, with the same old object, before one may write it.
	var arrived atomic.Int32
	complete := make(chan struct{})
	mutating := f.mutating(t, hookSpec{on: onConfigMaps(update), answer: func(*request) *response {
		if arrived.Add(1) == writers {
			close(complete)
		}
		select {
		case <-complete:
		case <-t.Context().Done():
		}
		return nil
	}})

	failed := make(chan error, writers)
	for i := range writers {
		go func() {
			_, err := f.configMaps().Patch(t.Context(), "one", types.MergePatchType, fmt.Appendf(nil, `{"data":{"key-%d":"yes"}}`, i), metav1.PatchOptions{})
			failed <- err
		}()
	}
	for range writers {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	got, err := f.configMaps().Get(t.Context(), "one", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Data) != writers {
		t.Errorf("data of %d writers are there; want %d", len(got.Data), writers)
	}
	versions := oldVersions(t, mutating)
	t.Logf("%d patches called the webhook %d times", writers, len(versions))
	// Of those that were shown the same old object, one could write it at most.
	if different := len(slices.Compact(slices.Sorted(slices.Values(versions)))); len(versions) < 2*writers-1 || different > len(versions)-writers+1 {
		t.Errorf("the webhook was called %d times with %d different old objects; want at least %d calls, %d of the same", len(versions), different, 2*writers-1, writers)
	}
}
