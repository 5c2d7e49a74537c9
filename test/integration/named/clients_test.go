package named

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/belay-dev/belay/test/integration/plane"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// kubectl runs kubectl, as people do, and returns what it printed.
func kubectl(ctx context.Context, t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	binary, err := plane.Kubectl(ctx, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, binary, append([]string{"--kubeconfig=" + shared.Plane.Kubeconfig(), "--cache-dir=" + t.TempDir()}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	return out.String(), err
}

// manifest is an object as people write it.
func manifest(t *testing.T, j *batchv1.Job) string {
	t.Helper()
	j.SetGroupVersionKind(batchv1.SchemeGroupVersion.WithKind("Job"))
	raw, err := yaml.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// What clients see that know nothing of belay, where the name frees within ten
// seconds: plain success, after waits of their own making. The figures go to the report.
func TestClientsWaitByThemselves(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	labels := policy(ctx, t, shared, "clients", nil)
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)
	const frees = 4 * time.Second
	kube, cr := kubeOf(t, shared.Plane.Config()), once(t, shared.Plane.Config())
	for name, send := range map[string]func(*batchv1.Job) error{
		"client-go": func(j *batchv1.Job) error {
			_, err := kube.BatchV1().Jobs(ns).Create(ctx, j, metav1.CreateOptions{})
			return err
		},
		"controller-runtime": func(j *batchv1.Job) error { return cr.Create(ctx, j) },
		"kubectl-create": func(j *batchv1.Job) error {
			out, err := kubectl(ctx, t, manifest(t, j), "create", "-f", "-")
			if err == nil && !strings.Contains(out, "job.batch/kubectl-create created") {
				err = fmt.Errorf("it printed %q", out)
			}
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			old := held(ctx, t, ns, name, "one", labels)
			complete(ctx, t, old)
			start := time.Now()
			timer := time.AfterFunc(frees, func() { letGo(ctx, old) })
			defer timer.Stop()
			if err := send(job(ns, name, "two", labels)); err != nil {
				t.Fatalf("after %s: %v", time.Since(start).Round(time.Millisecond), err)
			}
			took := time.Since(start)
			if took < frees-100*time.Millisecond || liveUID(ctx, t, ns, name) == old.UID {
				t.Errorf("created after %s, before the name was free", took)
			}
			stack.Report(t, "named: a name that frees after %s: %s succeeds after %s", frees, name, took.Round(10*time.Millisecond))
		})
	}
	// A Job in the background frees its name at once: no wait at all.
	old := create(ctx, t, shared.Client, job(ns, "at-once", "one", labels))
	complete(ctx, t, old)
	start := time.Now()
	create(ctx, t, shared.Client, job(ns, "at-once", "two", labels))
	stack.Report(t, "named: a finished Job without finalizers: replaced and created in %s", time.Since(start).Round(time.Millisecond))
}

// N05, N26, N27, N29: kubectl.
func TestKubectl(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	labels := policy(ctx, t, shared, "kubectl", func(s *v1alpha1.NamePolicySpec) {
		generating(s)
		s.Verify = `object.metadata.name.startsWith("job-") ? object.metadata.name : "job-" + object.metadata.name`
	})
	ns := namespace(ctx, t, shared, v1alpha1.ModeEnforce)

	// N05: apply twice with a name of one's own: one object, of that name.
	m := manifest(t, job(ns, "job-applied", "one", labels))
	for i, want := range []string{"job.batch/job-applied created", "job.batch/job-applied unchanged"} {
		if out, err := kubectl(ctx, t, m, "apply", "-f", "-"); err != nil || !strings.Contains(out, want) {
			t.Errorf("apply %d: %v: %s", i, err, out)
		}
	}
	if out, err := kubectl(ctx, t, m, "apply", "--server-side", "--force-conflicts", "-f", "-"); err != nil || !strings.Contains(out, "serverside-applied") {
		t.Errorf("apply --server-side: %v: %s", err, out)
	}
	out, err := kubectl(ctx, t, manifest(t, job(ns, "applied", "one", labels)), "apply", "-f", "-")
	if err == nil || !strings.Contains(out, `job "applied" must have the name "job-applied"`) {
		t.Errorf("a wrong name: %v: %s", err, out)
	}
	list, err := shared.Kube.BatchV1().Jobs(ns).List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%d jobs, %v", len(list.Items), err)
	}

	// N27: diff works, of what is there and of what is not.
	if out, err := kubectl(ctx, t, m, "diff", "-f", "-"); err != nil {
		t.Errorf("diff: %v: %s", err, out)
	}
	var code *exec.ExitError
	out, err = kubectl(ctx, t, manifest(t, job(ns, "job-new", "one", labels)), "diff", "-f", "-")
	if !errors.As(err, &code) || code.ExitCode() != 1 || !strings.Contains(out, "+  name: job-new") {
		t.Errorf("diff of a new job: %v: %s", err, out)
	}

	// N26: a dry run on a finished name says what would happen, at once, and does nothing.
	complete(ctx, t, &list.Items[0])
	start := time.Now()
	out, err = kubectl(ctx, t, manifest(t, job(ns, "job-applied", "two", labels)), "create", "--dry-run=server", "-f", "-")
	if err == nil || !strings.Contains(out, "would be deleted and replaced; in a dry run nothing is deleted") {
		t.Errorf("a dry run: %v: %s", err, out)
	}
	if took := time.Since(start); took > 8*time.Second { // ten waits of a second would be a Retry-After
		t.Errorf("the dry run was tried again: it took %s", took)
	}
	if liveUID(ctx, t, ns, "job-applied") != list.Items[0].UID {
		t.Error("the dry run deleted the job")
	}
	eventuallyDeletes(ctx, t, ns, "job-applied", 0)
	events, err := shared.Kube.EventsV1().Events(ns).List(ctx, metav1.ListOptions{})
	if err != nil || len(events.Items) > 0 {
		t.Errorf("events of a dry run: %v, %v", events.Items, err)
	}

	// N29: deleting a collection is no business of belay's.
	if out, err := kubectl(ctx, t, "", "delete", "jobs", "-n", ns, "-l", "test=kubectl"); err != nil {
		t.Errorf("delete: %v: %s", err, out)
	}
	if err := mustBeNotFound(shared.Client.Get(ctx, client.ObjectKey{Namespace: ns, Name: "job-applied"}, &batchv1.Job{})); err != nil {
		t.Error(err)
	}
}
