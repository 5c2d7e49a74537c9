package apifacts

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// placeholder is a UID that no object has.
const placeholder types.UID = "00000000-0000-0000-0000-000000000000"

func ownedBy(apiVersion, kind, name string, uid types.UID) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: name, UID: uid}
}

// Fact 10: the garbage collector deletes an object whose owners' UIDs are all
// absent. A wrong, stale or placeholder UID is data loss, even if there is an owner
// of the name.
func TestFact10_ObjectWithoutAnyLiveOwnerIsCollected(t *testing.T) {
	t.Parallel()
	for name, owners := range map[string]func(live, stale, another types.UID) []metav1.OwnerReference{
		"a placeholder": func(_, _, _ types.UID) []metav1.OwnerReference {
			return []metav1.OwnerReference{ownedBy("v1", "ConfigMap", "owner", placeholder)}
		},
		"the UID of an earlier owner of the same name": func(_, stale, _ types.UID) []metav1.OwnerReference {
			return []metav1.OwnerReference{ownedBy("v1", "ConfigMap", "owner", stale)}
		},
		"the UID of another object that is live": func(_, _, another types.UID) []metav1.OwnerReference {
			return []metav1.OwnerReference{ownedBy("v1", "ConfigMap", "owner", another)}
		},
		"the live UID with the name of nobody": func(live, _, _ types.UID) []metav1.OwnerReference {
			return []metav1.OwnerReference{ownedBy("v1", "ConfigMap", "nobody", live)}
		},
		"several of them": func(_, stale, _ types.UID) []metav1.OwnerReference {
			return []metav1.OwnerReference{ownedBy("v1", "ConfigMap", "owner", placeholder), ownedBy("batch/v1", "Job", "owner", stale)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t, usual)
			stale := f.createConfigMap(t, metav1.ObjectMeta{Name: "owner"})
			if err := f.configMaps().Delete(t.Context(), "owner", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			live := f.createConfigMap(t, metav1.ObjectMeta{Name: "owner"})
			another := f.createConfigMap(t, metav1.ObjectMeta{Name: "another"})
			f.createConfigMap(t, metav1.ObjectMeta{Name: "dependent", OwnerReferences: owners(live.UID, stale.UID, another.UID)})
			eventually(t, "the dependent is collected", not(f.configMapExists("dependent")))
		})
	}
}

// Fact 10: of several owners one that is live is enough; the collector removes the
// references to the others.
func TestFact10_OneLiveOwnerIsEnough(t *testing.T) {
	f := setUp(t, usual)
	live := f.createConfigMap(t, metav1.ObjectMeta{Name: "owner"})
	good := ownedBy("v1", "ConfigMap", live.Name, live.UID)
	made := f.createConfigMap(t, metav1.ObjectMeta{Name: "dependent", OwnerReferences: []metav1.OwnerReference{
		ownedBy("v1", "ConfigMap", "gone", placeholder), good,
	}})
	var got []metav1.OwnerReference
	eventually(t, "the collector has dealt with the dependent", func(ctx context.Context) (bool, error) {
		now, err := f.configMaps().Get(ctx, "dependent", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		got = now.OwnerReferences
		return now.ResourceVersion != made.ResourceVersion, nil
	})
	if diff := cmp.Diff([]metav1.OwnerReference{good}, got); diff != "" {
		t.Errorf("owners (-want +got):\n%s", diff)
	}
}

// Fact 10: it accepts kinds in lower case: their dependent stays as long as the owner
// does, and no longer. So compare references by UID, never by kind.
func TestFact10_KindInLowerCaseIsAsGood(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		apiVersion, kind string
		owner            func(*fixture, *testing.T) (types.UID, func(context.Context, string, metav1.DeleteOptions) error)
	}{
		"job": {"batch/v1", "job", func(f *fixture, t *testing.T) (types.UID, func(context.Context, string, metav1.DeleteOptions) error) {
			return f.createJob(t, metav1.ObjectMeta{Name: "owner"}).UID, f.jobs().Delete
		}},
		"configmap": {"v1", "configmap", func(f *fixture, t *testing.T) (types.UID, func(context.Context, string, metav1.DeleteOptions) error) {
			return f.createConfigMap(t, metav1.ObjectMeta{Name: "owner"}).UID, f.configMaps().Delete
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t, usual)
			uid, deleteOwner := tc.owner(f, t)
			// The collector has dealt with the dependent when it has removed the
			// reference to nobody.
			made := f.createConfigMap(t, metav1.ObjectMeta{Name: "dependent", OwnerReferences: []metav1.OwnerReference{
				ownedBy(tc.apiVersion, tc.kind, "owner", uid), ownedBy("v1", "ConfigMap", "gone", placeholder),
			}})
			var owners []metav1.OwnerReference
			eventually(t, "the collector has dealt with the dependent", func(ctx context.Context) (bool, error) {
				now, err := f.configMaps().Get(ctx, "dependent", metav1.GetOptions{})
				if err != nil {
					return false, err
				}
				owners = now.OwnerReferences
				return now.ResourceVersion != made.ResourceVersion, nil
			})
			if diff := cmp.Diff([]metav1.OwnerReference{ownedBy(tc.apiVersion, tc.kind, "owner", uid)}, owners); diff != "" {
				t.Errorf("owners (-want +got):\n%s", diff)
			}

			if err := deleteOwner(t.Context(), "owner", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the dependent goes after its owner", not(f.configMapExists("dependent")))
		})
	}
}
