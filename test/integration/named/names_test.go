package named

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/client/spawn/names"
)

// generating has names made from the annotations "prefix" and "work".
func generating(s *v1alpha1.NamePolicySpec) {
	s.Generate = &v1alpha1.NameGeneration{
		Prefix: `object.metadata.annotations[?"prefix"].orValue("job")`,
		Key:    []string{`object.metadata.annotations["work"]`},
	}
}

// unnamed is a Job that the API server, or belay, is to name.
func unnamed(ns, generateName, work string, labels map[string]string) *batchv1.Job {
	j := job(ns, "", work, labels)
	j.GenerateName = generateName
	return j
}

func TestGeneratedNames(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	labels := policy(ctx, t, shared, "generating", generating)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)

	// N01: name and object name are empty in the review.
	j := create(ctx, t, shared.Client, unnamed(ns, "train-", "one", labels))
	if want := names.Of("job", 63, "one"); j.Name != want || j.GenerateName != "" {
		t.Errorf("named %q with generateName %q, want %q: the name that spawn.Name gives", j.Name, j.GenerateName, want)
	}
	// With neither name nor generateName, too: what the API server alone refuses.
	k := create(ctx, t, shared.Client, unnamed(ns, "", "two", labels))
	if k.Name == "" || k.Name == j.Name {
		t.Errorf("named %q", k.Name)
	}
	// Again, the same work: it is answered, not made a second time.
	s := raw(ctx, t, shared, unnamed(ns, "train-", "one", labels))
	answerIs(t, s, 409, "AlreadyExists", v1alpha1.CauseSameWork)
	if s.Details.Name != j.Name || s.Details.UID != j.UID || s.Details.Kind != "jobs" || s.Details.Group != "batch" {
		t.Errorf("details %+v", s.Details)
	}
	// N05: a name that the client chose is never changed.
	chosen := create(ctx, t, shared.Client, job(ns, "chosen", "one", labels))
	if chosen.Name != "chosen" {
		t.Errorf("renamed to %q", chosen.Name)
	}
	// N07: an unrelated object has the deterministic name.
	foreign := job(ns, names.Of("job", 63, "three"), "x", nil)
	create(ctx, t, shared.Client, foreign)
	s = raw(ctx, t, shared, unnamed(ns, "train-", "three", labels))
	answerIs(t, s, 409, "Conflict", v1alpha1.CauseOtherWork)
	says(t, s.Message, "carries no belay.dev/work")
}

// N06: the name is made in admission, and appears between belay's look and the
// storage: exactly one 201, and a plain AlreadyExists for the others.
func TestN06RacingGeneratedNames(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	labels := policy(ctx, t, shared, "n06", generating)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	answers := race(ctx, t, shared.Plane.Config(), func(int) *batchv1.Job { return unnamed(ns, "train-", "one", labels) })
	won := 0
	for _, a := range answers {
		switch {
		case a.code == 201:
			won++
		case a.code != 409 || a.status.Reason != metav1.StatusReasonAlreadyExists || strings.Contains(a.status.Message, "unique name"):
			t.Errorf("answered %d %s: %s", a.code, a.status.Reason, a.status.Message)
		}
	}
	if won != 1 {
		t.Errorf("%d were created", won)
	}
	answerIs(t, raw(ctx, t, shared, unnamed(ns, "train-", "one", labels)), 409, "AlreadyExists", v1alpha1.CauseSameWork)
}

// N02, N03, N04: names that fit, and from which all that is derived fits. The Job and
// StatefulSet controllers are the judges: they make the Pods.
func TestNamesThatAreDerivedFit(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	labels := policy(ctx, t, shared, "derived", func(s *v1alpha1.NamePolicySpec) {
		generating(s)
		s.Kinds = append(s.Kinds, v1alpha1.Kind{APIVersion: "apps/v1", Kind: "StatefulSet"}, v1alpha1.Kind{APIVersion: "v1", Kind: "Service"})
		s.WhenFinished, s.WaitForPods = v1alpha1.FinishedReject, new(false)
	})
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	for what, prefix := range map[string]string{
		"70 characters":            strings.Repeat("owner-name", 7),
		"a cut that falls on -":    strings.Repeat("a", 51) + "-x",
		"a cut that falls on .":    strings.Repeat("a", 51) + ".x",
		"253 characters":           strings.Repeat("abcdefghij.", 23),
		"only dashes":              "-----",
		"multibyte":                "日本語のジョブ",
		"upper case and spaces":    "My Job_1",
		"digits":                   "2026",
		"29 characters":            strings.Repeat("n", 29),
		"63 characters":            strings.Repeat("n", 63),
		"the same, but one at end": strings.Repeat("n", 62) + "m",
	} {
		j := run(unnamed(ns, "x-", what, labels))
		j.Annotations["prefix"] = prefix
		create(ctx, t, shared.Client, j)
		podsOf(ctx, t, what, ns, "batch.kubernetes.io/job-name="+j.Name)
	}

	indexed := run(unnamed(ns, "x-", "indexed", labels))
	mode, completions, parallelism := batchv1.IndexedCompletion, int32(100000), int32(1)
	indexed.Annotations["prefix"] = strings.Repeat("indexed-", 8)
	indexed.Spec.CompletionMode, indexed.Spec.Completions, indexed.Spec.Parallelism = &mode, &completions, &parallelism
	create(ctx, t, shared.Client, indexed)
	podsOf(ctx, t, "an indexed Job", ns, "batch.kubernetes.io/job-name="+indexed.Name)

	replicas := int32(1)
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, GenerateName: "x-", Labels: labels, Annotations: map[string]string{"work": "set", "prefix": strings.Repeat("s", 58)}},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"set": "s"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"set": "s"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/image"}}},
			},
		},
	}
	create(ctx, t, shared.Client, set)
	podsOf(ctx, t, "a StatefulSet", ns, "set=s")

	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, GenerateName: "x-", Labels: labels, Annotations: map[string]string{"work": "svc", "prefix": "9lives"}},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}
	create(ctx, t, shared.Client, svc) // a Service's name must begin with a letter
}

func podsOf(ctx context.Context, t *testing.T, what, ns, selector string) {
	t.Helper()
	eventually(ctx, t, "pods of "+what, func() error {
		list, err := shared.Kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err == nil && len(list.Items) == 0 {
			err = fmt.Errorf("there are none with %s", selector)
		}
		return err
	})
}

// N05, and bad input: a name is verified, never changed; an expression that gives no
// name, or costs too much, denies with the policy's name.
func TestVerify(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	verify := func(name, expression string) map[string]string {
		return policy(ctx, t, shared, name, func(s *v1alpha1.NamePolicySpec) { s.Verify = expression })
	}
	labels := verify("verify", `"job-" + object.metadata.annotations["work"]`)
	create(ctx, t, shared.Client, job(ns, "job-one", "one", labels))
	s := raw(ctx, t, shared, job(ns, "mine", "two", labels))
	answerIs(t, s, 422, "Invalid", v1alpha1.CauseWrongName)
	says(t, s.Message, `job "mine" must have the name "job-two"`, `policy "verify"`)
	// What the API server names has no name to verify.
	create(ctx, t, shared.Client, unnamed(ns, "other-", "two", labels))

	for name, c := range map[string]struct {
		expression string
		code       int32
		says       []string
	}{
		"upper-case": {`"Job_" + object.metadata.annotations["work"]`, 422, []string{`policy "upper-case" wants the name "Job_one"`, "RFC 1123 subdomain"}},
		"too-long":   {`"j" + [1,2,3,4,5,6,7].map(x, "0123456789").join("")`, 422, []string{`"j0123456789`, "at most 63 fit"}},
		"no-key":     {`object.metadata.annotations["nobody"]`, 403, []string{`policy "no-key"`, "no such key: nobody"}},
		"costly":     {`["0123456789"].map(a, object.metadata.annotations["big"].split("").map(b, object.metadata.annotations["big"].split("").filter(c, c == b).size()).size() > 0 ? "x" : "y").join("")`, 403, []string{`policy "costly"`, "costs more than the limit"}},
	} {
		l := verify(name, c.expression)
		j := job(ns, "a-"+name, "one", l)
		j.Annotations["big"] = strings.Repeat("x", 2000)
		s := raw(ctx, t, shared, j)
		if s.Code != c.code {
			t.Errorf("%s: answered %d: %s", name, s.Code, s.Message)
		}
		says(t, s.Message, c.says...)
	}

	// generated stands for the name that generate gives: who chooses the right one may.
	both := policy(ctx, t, shared, "generated", func(s *v1alpha1.NamePolicySpec) {
		generating(s)
		s.Verify = "generated"
	})
	create(ctx, t, shared.Client, job(ns, names.Of("job", 63, "one"), "one", both))
	answerIs(t, raw(ctx, t, shared, unnamed(ns, "x-", "one", both)), 409, "AlreadyExists", v1alpha1.CauseSameWork)
	answerIs(t, raw(ctx, t, shared, job(ns, "other", "one", both)), 422, "Invalid", v1alpha1.CauseWrongName)
}

// N09: what the CronJob controller names keeps its name, and a collision has what that
// controller looks for.
func TestN09CronJobs(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	labels := policy(ctx, t, shared, "cron", generating)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	cj := create(ctx, t, shared.Client, &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "cj"},
		Spec:       batchv1.CronJobSpec{Schedule: "0 0 31 2 *", JobTemplate: batchv1.JobTemplateSpec{Spec: job(ns, "", "w", nil).Spec}},
	})
	cfg := rest.CopyConfig(shared.Plane.Config())
	cfg.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:kube-system:cronjob-controller", Groups: []string{"system:serviceaccounts", "system:masters"}}
	of := func() *batchv1.Job {
		j := job(ns, "cj-29000000", "w", labels)
		j.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(cj, batchv1.SchemeGroupVersion.WithKind("CronJob"))}
		return j
	}
	first := create(ctx, t, once(t, cfg), of())
	if first.Name != "cj-29000000" {
		t.Errorf("renamed to %q", first.Name)
	}
	a := post(ctx, t, cfg, of())
	answerIs(t, a.status, 409, "AlreadyExists", v1alpha1.CauseSameWork)
	if d := a.status.Details; d.Name != "cj-29000000" || d.Kind != "jobs" || d.UID != first.UID {
		t.Errorf("details %+v", d)
	}
}

// N28: the Pods of a Job are not looked at, whatever the policy selects.
func TestN28PodsOfControllersAreLeftAlone(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	labels := policy(ctx, t, shared, "everything", func(s *v1alpha1.NamePolicySpec) {
		s.Selector = nil
		s.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: ns}}
	})
	j := create(ctx, t, shared.Client, run(job(ns, "a", "one", labels)))
	podsOf(ctx, t, "the Job", ns, "batch.kubernetes.io/job-name=a")
	list, err := shared.Kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list.Items {
		if _, marked := p.Annotations[v1alpha1.WorkAnnotation]; marked || !strings.HasPrefix(p.Name, "a-") {
			t.Errorf("pod %q is marked %v", p.Name, p.Annotations)
		}
	}
	if j.Annotations[v1alpha1.WorkAnnotation] == "" {
		t.Error("the Job is not marked")
	}
}

// N18: the policy's identity decides; with the owner's UID in it, the run of an owner
// that is gone is other work.
func TestN18TheOwnersUIDInTheIdentity(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	labels := policy(ctx, t, shared, "n18", func(s *v1alpha1.NamePolicySpec) {
		s.Identity = append(s.Identity, `object.metadata.?ownerReferences.orValue([]).map(r, r.uid)`)
	})
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	of := func(owner types.UID) *batchv1.Job {
		j := job(ns, "a", "one", labels)
		j.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: owner}}
		return j
	}
	owner := create(ctx, t, shared.Client, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "owner"}})
	create(ctx, t, shared.Client, of(owner.UID))
	answerIs(t, raw(ctx, t, shared, of(owner.UID)), 409, "AlreadyExists", v1alpha1.CauseSameWork)
	answerIs(t, raw(ctx, t, shared, of("11111111-2222-3333-4444-555555555555")), 409, "Conflict", v1alpha1.CauseOtherWork)
}

// N21: what is there is read live: two creates right after one another, many times.
func TestN21LiveReads(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	labels := policy(ctx, t, shared, "n21", nil)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			name := fmt.Sprintf("a-%d", i)
			j := job(ns, name, "one", labels)
			if err := shared.Client.Create(ctx, j); err != nil {
				t.Error(err)
				return
			}
			s := raw(ctx, t, shared, job(ns, name, "one", labels))
			answerIs(t, s, 409, "AlreadyExists", v1alpha1.CauseSameWork)
			if s.Details == nil || s.Details.UID != j.UID {
				t.Errorf("details %+v", s.Details)
			}
		})
	}
	wg.Wait()
}
