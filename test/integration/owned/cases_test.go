package owned

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/google/go-cmp/cmp"

	"github.com/belay-dev/belay/test/fixtures/otf"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

func configMap(ns, name, owner string, refs ...metav1.OwnerReference) *corev1.ConfigMap {
	c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, OwnerReferences: refs}}
	if owner != "" {
		c.Annotations = map[string]string{v1alpha1.OwnerAnnotation: owner}
	}
	return c
}

func refTo(j *batchv1.Job) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: j.Name, UID: j.UID}
}

func TestO01_AStaleUIDIsReplacedAndAForeignOneIsLeftWithAWarning(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	kube, w := warned(t, shared)
	j := job(ctx, t, kube, ns, "owner")
	stale := refTo(j)
	stale.UID = uuid.NewUUID()
	got, err := kube.CoreV1().ConfigMaps(ns).Create(ctx, configMap(ns, "copied", "batch/v1/Job/owner", stale), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]metav1.OwnerReference{refTo(j)}, got.OwnerReferences); diff != "" {
		t.Errorf("the stale reference (-want +got):\n%s", diff)
	}
	// Another object of the client's, which belay was not asked about: a Job of a
	// name that does not exist.
	foreign := metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: "elsewhere", UID: uuid.NewUUID()}
	got, err = kube.CoreV1().ConfigMaps(ns).Create(ctx, configMap(ns, "foreign", "batch/v1/Job/owner", foreign), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]metav1.OwnerReference{foreign, refTo(j)}, got.OwnerReferences); diff != "" {
		t.Errorf("the foreign reference (-want +got):\n%s", diff)
	}
	w.must(t, `owner reference job "elsewhere"`, "no such object")
}

func TestO02_AUIDIsNeverPairedWithAnotherKind(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	cron, err := shared.Kube.BatchV1().CronJobs(ns).Create(ctx, &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "x"},
		Spec:       batchv1.CronJobSpec{Schedule: "0 0 1 1 *", JobTemplate: batchv1.JobTemplateSpec{Spec: otf.Job(ns, "x", "x").Spec}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := shared.Kube.CoreV1().ConfigMaps(ns).Create(ctx, configMap(ns, "c", "batch/v1/Job/x"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a := anchorOf(ctx, t, shared, got) // the Job is not there yet
	if a.Spec.Owner.Kind != "Job" || got.OwnerReferences[0].UID == cron.UID {
		t.Errorf("owned by %+v", got.OwnerReferences)
	}
}

func TestO03_AnOwnerInAnotherNamespaceIsDenied(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns, other := namespace(ctx, t, shared, v1alpha1.ModeEnforce), namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	j := job(ctx, t, shared.Kube, other, "x")
	for _, annotation := range []string{"batch/v1/Job/" + other + "/x", other + "/Job/x"} {
		_, err := shared.Kube.CoreV1().ConfigMaps(ns).Create(ctx, configMap(ns, "c", annotation), metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "belay: ") {
			t.Errorf("%s: %v", annotation, err)
		}
	}
	_, err := shared.Kube.CoreV1().ConfigMaps(ns).Create(ctx, configMap(ns, "c", "batch/v1/Job/"+other+"/x"), metav1.CreateOptions{})
	status, ok := err.(apierrors.APIStatus)
	if !ok || status.Status().Details == nil || len(status.Status().Details.Causes) != 1 || status.Status().Details.Causes[0].Type != "belay.dev/OwnerInOtherNamespace" {
		t.Errorf("no machine-readable cause: %+v", err)
	}

	// A copied object that still has its references, under a policy that denies.
	labels := policy(ctx, t, shared, "copied", func(s *v1alpha1.OwnerPolicySpec) {
		s.Owner.Name, s.ClientReferences = `""`, v1alpha1.LintDeny
	})
	copied := secret(ns, "copied", labels)
	copied.OwnerReferences = []metav1.OwnerReference{refTo(j)}
	if _, err := shared.Kube.CoreV1().Secrets(ns).Create(ctx, copied, metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "no such object in namespace") {
		t.Errorf("a copied secret: %v", err)
	}
	// The own namespace may be named.
	own := job(ctx, t, shared.Kube, ns, "y")
	got, err := shared.Kube.CoreV1().ConfigMaps(ns).Create(ctx, configMap(ns, "c", "batch/v1/Job/"+ns+"/y"), metav1.CreateOptions{})
	if err != nil || len(got.OwnerReferences) != 1 || got.OwnerReferences[0].UID != own.UID {
		t.Errorf("the own namespace: %v", err)
	}
}

func TestO04_AClusterScopedDependentOfANamespacedOwnerIsDenied(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "test-o04", Annotations: map[string]string{v1alpha1.OwnerAnnotation: "batch/v1/Job/x"}}}
	err := shared.Client.Create(ctx, role)
	if err == nil {
		_ = shared.Client.Delete(ctx, role)
	}
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "cluster-scoped") {
		t.Errorf("got %v", err)
	}
	// The other way round is fine: a namespaced child of a cluster-scoped owner.
	reader := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "test-o04-reader", Labels: map[string]string{"rbac.belay.dev/aggregate-to-owner-reader": "true"}},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"storage.k8s.io"}, Resources: []string{"storageclasses"}, Verbs: reads}},
	}
	if err := shared.Client.Create(ctx, reader); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = shared.Client.Delete(testContext(t), reader) })
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	sc := storageClass("test-o04")
	if err := shared.Client.Create(ctx, sc); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = shared.Client.Delete(testContext(t), sc) })
	n := 0
	eventually(ctx, t, "the child belongs to the class", func() error {
		n++ // the right comes by aggregation, a moment later
		c, err := shared.Kube.CoreV1().ConfigMaps(ns).Create(ctx, configMap(ns, fmt.Sprintf("c-%d", n), "storage.k8s.io/v1/StorageClass/test-o04"), metav1.CreateOptions{})
		if err == nil && (len(c.OwnerReferences) != 1 || c.OwnerReferences[0].UID != sc.UID) {
			err = fmt.Errorf("owned by %+v", c.OwnerReferences)
		}
		return err
	})
}

func TestO05_O17_OtherReferencesStayAsTheyAre(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	j := job(ctx, t, shared.Kube, ns, "owner")
	yes := true
	set := configMap(ns, "set", "")
	set, err := shared.Kube.CoreV1().ConfigMaps(ns).Create(ctx, set, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	before := []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "ConfigMap", Name: "set", UID: set.UID, Controller: &yes, BlockOwnerDeletion: &yes},
		{APIVersion: "v1", Kind: "ConfigMap", Name: "second", UID: uuid.NewUUID()},
	}
	// Under a policy that wants to be the controller: there is one already.
	labels := policy(ctx, t, shared, "controlled", func(s *v1alpha1.OwnerPolicySpec) {
		s.Owner.Name, s.Controller = `"owner"`, true
	})
	s := secret(ns, "dependent", labels)
	s.OwnerReferences = before
	got := create(ctx, t, shared.Kube, s)
	want := append(append([]metav1.OwnerReference{}, before...), refTo(j))
	if diff := cmp.Diff(want, got.OwnerReferences); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// Without one, it is.
	got = create(ctx, t, shared.Kube, secret(ns, "free", labels))
	if len(got.OwnerReferences) != 1 || got.OwnerReferences[0].Controller == nil || !*got.OwnerReferences[0].Controller {
		t.Errorf("owned by %+v", got.OwnerReferences)
	}
	// O17, its second half: taking the annotation away changes nothing. References
	// are set on creation and never after (design, fact 9), so none is removed.
	c, err := shared.Kube.CoreV1().ConfigMaps(ns).Create(ctx, configMap(ns, "annotated", "batch/v1/Job/owner"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	after, err := shared.Kube.CoreV1().ConfigMaps(ns).Patch(ctx, "annotated", types.MergePatchType, []byte(`{"metadata":{"annotations":null}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(c.OwnerReferences, after.OwnerReferences); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestO06_TwoEntriesOfOnePairOfPoliciesAddOneReference(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	j := job(ctx, t, shared.Kube, ns, "run-1")
	// Policy and annotation name the same owner: the second call sees what the first
	// one did. And a reference that the client brought, with other flags, stays.
	labels := otf.Secret(ns, "", "job-1", "").Labels
	s := secret(ns, "run-1", labels)
	s.Annotations = map[string]string{v1alpha1.OwnerAnnotation: "batch/v1/Job/run-1"}
	got := create(ctx, t, shared.Kube, s)
	if diff := cmp.Diff([]metav1.OwnerReference{refTo(j)}, got.OwnerReferences); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	no := false
	brought := refTo(j)
	brought.BlockOwnerDeletion = &no
	c, err := shared.Kube.CoreV1().ConfigMaps(ns).Create(ctx, configMap(ns, "c", "batch/v1/Job/run-1", brought), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]metav1.OwnerReference{brought}, c.OwnerReferences); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestO10_ARestoredChildIsOwnedByTheRestoredOwner(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	child, err := shared.Kube.CoreV1().ConfigMaps(ns).Create(ctx, configMap(ns, "child", "batch/v1/Job/restored"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a := anchorOf(ctx, t, shared, child)
	waitBound(ctx, t, shared, a, job(ctx, t, shared.Kube, ns, "restored").UID)
}

func TestO11_LabelsAloneBindNothing(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	// An object made before belay was asked, with all of OTF's labels, and another
	// with a controller of somebody else's: nothing that belay does later touches them.
	plain := namespace(ctx, t, shared, "")
	stray := create(ctx, t, shared.Kube, otf.Secret(plain, "run-1", "job-1", "s3cret"))
	if len(stray.OwnerReferences) > 0 {
		t.Fatalf("a namespace that did not opt in: %+v", stray.OwnerReferences)
	}
	if _, err := shared.Kube.CoreV1().Namespaces().Patch(ctx, plain, types.MergePatchType, []byte(`{"metadata":{"labels":{"belay.dev/mode":"enforce"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	job(ctx, t, shared.Kube, plain, "run-1")
	// Time enough: a whole round of anchor and binding in the other namespace.
	s := create(ctx, t, shared.Kube, otf.Secret(ns, "run-1", "job-1", "s3cret"))
	waitBound(ctx, t, shared, anchorOf(ctx, t, shared, s), job(ctx, t, shared.Kube, ns, "run-1").UID)
	after, err := shared.Kube.CoreV1().Secrets(plain).Get(ctx, "run-1", metav1.GetOptions{})
	if err != nil || after.ResourceVersion != stray.ResourceVersion {
		t.Errorf("it was touched: %v", err)
	}
}

func TestO12_TheReferenceIsNeverAPlaceholder(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	c, err := shared.Kube.CoreV1().ConfigMaps(ns).Create(ctx, configMap(ns, "c", "batch/v1/Job/later"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	anchorOf(ctx, t, shared, c) // it exists, under the very UID

	// Where there can be no Anchor there is no reference: a cluster-scoped object.
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "test-o12", Annotations: map[string]string{v1alpha1.OwnerAnnotation: "storage.k8s.io/v1/StorageClass/does-not-exist"}}}
	kube, w := warned(t, shared)
	got, err := kube.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = shared.Client.Delete(testContext(t), role) })
	if len(got.OwnerReferences) > 0 {
		t.Errorf("owned by %+v", got.OwnerReferences)
	}
	w.must(t, "created without an owner reference")
}

func TestO15_ThousandsOfReferencesGetOneMore(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	j := job(ctx, t, shared.Kube, ns, "owner")
	kube, _ := warned(t, shared)
	for _, n := range []int{5000, 20000} {
		c := configMap(ns, fmt.Sprintf("big-%d", n), "batch/v1/Job/owner")
		bare := configMap(ns, fmt.Sprintf("bare-%d", n), "")
		for i := range n {
			r := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: fmt.Sprintf("o%d", i), UID: types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", i))}
			c.OwnerReferences = append(c.OwnerReferences, r)
		}
		bare.OwnerReferences = c.OwnerReferences
		_, bareErr := kube.CoreV1().ConfigMaps(ns).Create(ctx, bare, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		got, err := kube.CoreV1().ConfigMaps(ns).Create(ctx, c, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if (err == nil) != (bareErr == nil) {
			t.Fatalf("%d references: with belay %v, without %v", n, err, bareErr)
		}
		if err != nil {
			t.Logf("%d references: the API server itself says %v", n, err)
			continue
		}
		added := len(got.OwnerReferences) - n
		if added > 1 || added < 0 || (added == 1 && got.OwnerReferences[n].UID != j.UID) {
			t.Errorf("%d references became %d", n, len(got.OwnerReferences))
		}
		if diff := cmp.Diff(c.OwnerReferences, got.OwnerReferences[:n]); diff != "" {
			t.Errorf("the list was rewritten: %s", diff)
		}
	}
}

func TestO16_UpdatesAreNeverInTheWay(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	j := job(ctx, t, shared.Kube, ns, "owner")
	c := configMap(ns, "c", "batch/v1/Job/owner")
	c.Finalizers = []string{"example.com/hold"}
	if _, err := shared.Kube.CoreV1().ConfigMaps(ns).Create(ctx, c, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	foreground := metav1.DeletePropagationForeground
	if err := shared.Kube.CoreV1().ConfigMaps(ns).Delete(ctx, "c", metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		t.Fatal(err)
	}
	deleteJob(t, j, metav1.DeletePropagationBackground)
	if _, err := shared.Kube.CoreV1().ConfigMaps(ns).Patch(ctx, "c", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Errorf("removing the finalizers: %v", err)
	}
	eventually(ctx, t, "it is gone", func() error {
		_, err := shared.Kube.CoreV1().ConfigMaps(ns).Get(ctx, "c", metav1.GetOptions{})
		return mustBeNotFound(err)
	})
}

// A Pod is labelled and evicted although its owner is gone: its policy denies what it cannot
// resolve, and references to what does not exist, and is about its create alone.
func TestP21_APodWhoseOwnerIsGoneIsUpdatedAndEvicted(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	labels := policy(ctx, t, shared, "pods-of-the-gone", func(s *v1alpha1.OwnerPolicySpec) {
		s.Dependents, s.Owner.Name = []v1alpha1.Kind{{APIVersion: "v1", Kind: "Pod"}}, `"owner"`
		s.FailurePolicy, s.WhenUnresolved, s.ClientReferences = v1alpha1.FailureFail, v1alpha1.UnresolvedDeny, v1alpha1.LintDeny
	})
	kube, w := warned(t, shared)
	eventually(ctx, t, "a service account for Pods", func() error {
		_, err := kube.CoreV1().ServiceAccounts(ns).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	j, err := kube.BatchV1().Jobs(ns).Create(ctx, suspended(ns, "owner"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// A second owner keeps the garbage collector from taking the Pod.
	keeper, err := kube.CoreV1().ConfigMaps(ns).Create(ctx, configMap(ns, "keeper", ""), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	like := metav1.ObjectMeta{Name: "p", Namespace: ns, Labels: labels, Annotations: map[string]string{v1alpha1.OwnerAnnotation: "batch/v1/Job/owner"}}
	pod := &corev1.Pod{ObjectMeta: like, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.example/app:1"}}}}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "keeper", UID: keeper.UID}}
	created, err := kube.CoreV1().Pods(ns).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(append(pod.OwnerReferences, refTo(j)), created.OwnerReferences); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	deleteJob(t, j, metav1.DeletePropagationBackground)
	eventually(ctx, t, "the owner is gone", func() error {
		_, err := kube.BatchV1().Jobs(ns).Get(ctx, "owner", metav1.GetOptions{})
		return mustBeNotFound(err)
	})
	w.take()

	if _, err := kube.CoreV1().Pods(ns).Patch(ctx, "p", types.MergePatchType, []byte(`{"metadata":{"labels":{"team":"a"}}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("labelling it: %v", err)
	}
	// As kubectl drain does it; and with all on it that belay goes by.
	for _, e := range []*policyv1.Eviction{
		{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: ns}, DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}},
		{ObjectMeta: like},
	} {
		if err := kube.PolicyV1().Evictions(ns).Evict(ctx, e); err != nil {
			t.Errorf("evicting it: %v", err)
		}
	}
	eventually(ctx, t, "it is gone", func() error {
		_, err := kube.CoreV1().Pods(ns).Get(ctx, "p", metav1.GetOptions{})
		return mustBeNotFound(err)
	})
	if all := w.take(); len(all) > 0 {
		t.Errorf("warnings %q", all)
	}
	noAnchors(ctx, t, ns)
}

// Dry run: nothing is created, and the warning says what would be.
func TestDryRunCreatesNothing(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	kube, w := warned(t, shared)
	if _, err := kube.CoreV1().Secrets(ns).Create(ctx, otf.Secret(ns, "run-1", "job-1", "s3cret"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	w.must(t, `job "run-1" does not exist yet: secret "run-1" would be owned by an Anchor that waits for it`)
	noAnchors(ctx, t, ns)
}

// Mode warn: everything is admitted unchanged; the warning says what enforce would do.
func TestWarnModeTellsAndChangesNothing(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns := namespace(ctx, t, shared, v1alpha1.ModeWarn)
	kube, w := warned(t, shared)
	s := create(ctx, t, kube, otf.Secret(ns, "run-1", "job-1", "s3cret"))
	w.must(t, "would be owned by an Anchor")
	noAnchors(ctx, t, ns)
	j := job(ctx, t, kube, ns, "run-2")
	w.take()
	s2 := create(ctx, t, kube, otf.Secret(ns, "run-2", "job-2", "s3cret"))
	w.must(t, fmt.Sprintf("mode warn: would be owned by job %q (uid %s)", "run-2", j.UID))
	if len(s.OwnerReferences)+len(s2.OwnerReferences) > 0 {
		t.Error("changed")
	}
	if _, err := kube.CoreV1().ConfigMaps(ns).Create(ctx, configMap(ns, "c", "nonsense"), metav1.CreateOptions{}); err != nil {
		t.Errorf("denied: %v", err)
	}
	w.must(t, "mode warn: would be denied with 403", "belay.dev/owner")
}

func noAnchors(ctx context.Context, t *testing.T, ns string) {
	t.Helper()
	var all v1alpha1.AnchorList
	if err := shared.Client.List(ctx, &all, client.InNamespace(ns)); err != nil || len(all.Items) > 0 {
		t.Errorf("%d anchors, %v", len(all.Items), err)
	}
}

// The audit log tells what belay did, by webhook, without a token.
func TestTheAuditLogTells(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	create(ctx, t, shared.Kube, otf.Secret(ns, "audited", "job-1", "t0ken-in-no-log"))
	eventually(ctx, t, "the audit annotation", func() error {
		log := read(t, shared.Plane.AuditLog())
		for line := range strings.Lines(log) {
			var e struct {
				Annotations map[string]string `json:"annotations"`
				ObjectRef   struct{ Namespace, Name string }
				Verb        string
			}
			if json.Unmarshal([]byte(line), &e) != nil || e.ObjectRef.Namespace != ns || e.Verb != "create" || e.ObjectRef.Name != "audited" {
				continue
			}
			if e.Annotations["otf.owner.belay.dev/reason"] != "Anchored" || e.Annotations["otf.owner.belay.dev/decision"] != "allowed" {
				return fmt.Errorf("annotations %v", e.Annotations)
			}
			return nil
		}
		return fmt.Errorf("no entry")
	})
	for _, p := range append(shared.Webhooks(), shared.Controllers()...) {
		if strings.Contains(p.Tail(1<<20), "t0ken-in-no-log") {
			t.Errorf("%s logged the token", p.Name)
		}
	}
}

// Bad requests to the real process: each gets an answer that says what is wrong.
func TestP09_P10_P11_JunkIsRefusedOnTheHTTPLevel(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	hc := webhookClient(ctx, t, shared)
	base := fmt.Sprintf("https://localhost:%d", shared.Webhooks()[0].Port)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	ok := `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"CREATE","namespace":"` + ns + `","object":{"metadata":{}}}}`
	for name, c := range map[string]struct {
		method, path, contentType, body string
		code                            int
		part                            string
	}{
		"P09 an empty body":      {http.MethodPost, "/mutate/owner/otf", "application/json", "", 400, "empty"},
		"P09 plain text":         {http.MethodPost, "/mutate/owner/otf", "text/plain", ok, 400, "content type"},
		"P09 no uid":             {http.MethodPost, "/mutate/owner/otf", "application/json", strings.Replace(ok, `"uid":"u",`, "", 1), 400, "uid"},
		"P09 no request":         {http.MethodPost, "/mutate/owner/otf", "application/json", `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, 400, "no request"},
		"P09 no JSON":            {http.MethodPost, "/mutate/owner/otf", "application/json", "{", 400, "not an AdmissionReview"},
		"P10 v1beta1":            {http.MethodPost, "/mutate/owner/otf", "application/json", strings.Replace(ok, "/v1", "/v1beta1", 1), 400, "admission.k8s.io/v1"},
		"a GET":                  {http.MethodGet, "/mutate/owner/otf", "application/json", "", 405, "POST"},
		"an unknown policy":      {http.MethodPost, "/mutate/owner/nobody", "application/json", ok, 404, `"nobody"`},
		"an unknown path":        {http.MethodPost, "/mutate/nothing", "application/json", ok, 404, ""},
		"P11 fifty megabytes":    {http.MethodPost, "/mutate/owner/otf", "application/json", strings.Repeat("x", 50<<20), 413, "bytes"},
		"P09 a review as it is":  {http.MethodPost, "/mutate/owner/otf", "application/json", ok, 200, `"uid":"u"`},
		"P22 an object of null":  {http.MethodPost, "/mutate/owner/otf", "application/json", strings.Replace(ok, `{"metadata":{}}`, "null", 1), 200, `"code":400`},
		"P22 metadata of null":   {http.MethodPost, "/mutate/owner/otf", "application/json", strings.Replace(ok, `{"metadata":{}}`, `{"metadata":null}`, 1), 200, `"code":400`},
		"P22 metadata of a list": {http.MethodPost, "/mutate/owner/otf", "application/json", strings.Replace(ok, `{"metadata":{}}`, `{"metadata":[]}`, 1), 200, `"code":400`},
		"P22 deep nesting":       {http.MethodPost, "/mutate/owner/otf", "application/json", strings.Replace(ok, `{"metadata":{}}`, strings.Repeat(`{"a":`, 20000)+"1"+strings.Repeat("}", 20000), 1), 400, "not an AdmissionReview"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req, err := http.NewRequestWithContext(ctx, c.method, base+c.path+"?timeout=3s", strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", c.contentType)
			resp, err := hc.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != c.code || !strings.Contains(string(body), c.part) {
				t.Errorf("got %d %.300s, want %d with %q", resp.StatusCode, body, c.code, c.part)
			}
		})
	}
}

// webhookClient trusts belay's CA.
func webhookClient(ctx context.Context, t *testing.T, s *stack.Stack) *http.Client {
	t.Helper()
	ca, err := s.Kube.CoreV1().Secrets(stack.Namespace).Get(ctx, "belay-ca", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca.Data["ca.crt"])
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: time.Minute}
}

func TestP04_AnAnchorInADyingNamespaceIsDropped(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	held := configMap(ns, "held", "")
	held.Finalizers = []string{"example.com/hold"} // keeps the namespace terminating
	if _, err := shared.Kube.CoreV1().ConfigMaps(ns).Create(ctx, held, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s := create(ctx, t, shared.Kube, otf.Secret(ns, "run-1", "job-1", "s3cret"))
	a := anchorOf(ctx, t, shared, s)
	if err := shared.Kube.CoreV1().Namespaces().Delete(ctx, ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitGone(ctx, t, shared, s, a)
	_, err := shared.Kube.CoreV1().Secrets(ns).Create(ctx, otf.Secret(ns, "run-2", "job-1", "s3cret"), metav1.CreateOptions{})
	if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		t.Errorf("a create: %v", err)
	}
	if _, err := shared.Kube.CoreV1().ConfigMaps(ns).Patch(ctx, "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the namespace is gone", func() error {
		_, err := shared.Kube.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{})
		return mustBeNotFound(err)
	})
}

func TestP12_AnObjectAtTheStorageLimitIsStoredAsWithoutBelay(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns, plain := namespace(ctx, t, shared, v1alpha1.ModeEnforce), namespace(ctx, t, shared, "")
	kube, w := warned(t, shared)
	big := func(ns string, size int) *corev1.ConfigMap {
		c := configMap(ns, fmt.Sprintf("big-%d", size), "batch/v1/Job/later")
		// Annotations are limited to 256 KiB, the data to 1 MiB; together they come
		// near to etcd's limit of 1.5 MiB.
		for i := range 3 {
			c.Annotations[fmt.Sprintf("fill-%d", i)] = strings.Repeat("a", 80<<10)
		}
		c.Data = map[string]string{"a": strings.Repeat("x", 1<<20-10)}
		refs := (size - (1<<20 + 240<<10)) / 130
		for i := range refs {
			c.OwnerReferences = append(c.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: fmt.Sprintf("filler-%05d", i), UID: types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", i))})
		}
		return c
	}
	// From well below the limit to well above: belay makes no difference anywhere.
	for size := 1400 << 10; size <= 1600<<10; size += 25 << 10 {
		_, bare := kube.CoreV1().ConfigMaps(plain).Create(ctx, big(plain, size), metav1.CreateOptions{})
		_, with := kube.CoreV1().ConfigMaps(ns).Create(ctx, big(ns, size), metav1.CreateOptions{})
		if (bare == nil) != (with == nil) {
			t.Errorf("at %d bytes: without belay %v, with belay %v", size, bare, with)
		}
	}
	w.must(t, "too near the storage limit")
}

// At the very limit, which is found by trying: what is stored without belay is stored with it,
// also where the reference, of more than a hundred bytes, would be too much.
func TestP12_TwentyBytesBelowTheStorageLimit(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns, plain := namespace(ctx, t, shared, v1alpha1.ModeEnforce), namespace(ctx, t, shared, "") // of one length
	kube, w := warned(t, shared)
	j := job(ctx, t, kube, ns, "there")
	// A PodTemplate has arguments of any length, and nobody acts on it.
	try := func(ns, owner string, size int) (*corev1.PodTemplate, error) {
		p := &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Name: "big", Annotations: map[string]string{v1alpha1.OwnerAnnotation: "batch/v1/Job/" + owner}}}
		p.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "registry.example/app:1", Args: []string{strings.Repeat("x", size)}}}
		got, err := kube.CoreV1().PodTemplates(ns).Create(ctx, p, metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		return got, kube.CoreV1().PodTemplates(ns).Delete(ctx, "big", metav1.DeleteOptions{})
	}
	// A dry run would not do: it is etcd that refuses.
	limit, refused := 1400<<10, 1600<<10
	for limit+1 < refused {
		size := (limit + refused) / 2
		_, err := try(plain, "there", size)
		switch {
		case err == nil:
			limit = size
		case strings.Contains(err.Error(), "too large"):
			refused = size
		default:
			t.Fatal(err)
		}
	}
	for _, owner := range []string{"there", "later"} {
		for _, below := range []int{200, 20, 0} {
			w.take()
			got, err := try(ns, owner, limit-below)
			if err != nil {
				t.Errorf("%d bytes below the limit, the owner is %s: %v", below, owner, err)
				continue
			}
			if len(got.OwnerReferences) > 0 {
				t.Errorf("%d bytes below the limit, the owner is %s: owned by %+v", below, owner, got.OwnerReferences)
			}
			w.must(t, "too near the storage limit")
		}
	}
	noAnchors(ctx, t, ns)
	if _, err := try(ns, "there", limit+1); err == nil {
		t.Error("it is stored with belay only")
	}
	// Where there is room, it is owned.
	got, err := try(ns, "there", limit-20<<10)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]metav1.OwnerReference{refTo(j)}, got.OwnerReferences); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// What belay reads for its own needs is nobody's owner: else whoever names it learns
// a UID that they may not read.
func TestANamespaceIsNobodysOwner(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	for _, annotation := range []string{"v1/Namespace/kube-system", "belay.dev/v1alpha1/OwnerPolicy/otf"} {
		_, err := shared.Kube.CoreV1().ConfigMaps(ns).Create(ctx, configMap(ns, "c", annotation), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", annotation, err)
		}
	}
}

// A client's right reference to an owner that is being deleted stays as it is: the
// object goes with that owner, not with the next one of the name.
func TestO09_ARightReferenceToATerminatingOwnerStays(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	j := otf.Job(ns, "run-1", "job-1")
	j.Finalizers = []string{"example.com/hold"}
	j, err := shared.Kube.BatchV1().Jobs(ns).Create(ctx, j, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	deleteJob(t, j, metav1.DeletePropagationForeground)
	s := otf.Secret(ns, "run-1", "job-1", "s3cret")
	s.OwnerReferences = []metav1.OwnerReference{refTo(j)}
	got := create(ctx, t, shared.Kube, s)
	if diff := cmp.Diff(s.OwnerReferences, got.OwnerReferences); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := shared.Kube.BatchV1().Jobs(ns).Patch(ctx, "run-1", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}
