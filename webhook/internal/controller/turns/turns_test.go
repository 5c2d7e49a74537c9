package turns

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/belay-dev/belay/webhook/internal/replace"
)

var (
	noon   = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
)

// long is when a Lease of noon is removed.
const long = replace.TurnFor + keep

// lease is a turn that was taken at noon.
func lease(name string, change ...func(*coordinationv1.Lease)) *coordinationv1.Lease {
	at := metav1.NewMicroTime(noon)
	l := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "belay-system", Name: name, UID: types.UID("uid-of-" + name), CreationTimestamp: metav1.NewTime(noon.Add(-time.Hour)), Labels: map[string]string{replace.TurnLabel: "create"}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("w"), AcquireTime: &at},
	}
	for _, c := range change {
		c(l)
	}
	return l
}

// deletes is an API server in memory that notes what it is asked to delete.
type deletes struct {
	client.Client
	preconditions []metav1.Preconditions
	err           error
	listErr       error
	pages         int
}

func serve(t *testing.T, objects ...client.Object) *deletes {
	t.Helper()
	s := runtime.NewScheme()
	if err := coordinationv1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	d := &deletes{}
	d.Client = fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			var o client.DeleteOptions
			o.ApplyOptions(opts)
			if o.Preconditions != nil {
				d.preconditions = append(d.preconditions, *o.Preconditions)
			}
			if d.err != nil {
				return d.err
			}
			return c.Delete(ctx, obj, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			d.pages++
			if d.listErr != nil {
				return d.listErr
			}
			return c.List(ctx, list, opts...)
		},
	}).Build()
	return d
}

func (d *deletes) sweeper() *Sweeper {
	return &Sweeper{Reader: d, Writer: d, Namespace: "belay-system"}
}

// left are the names of the Leases that are there.
func (d *deletes) left(t *testing.T) []string {
	t.Helper()
	var list coordinationv1.LeaseList
	if err := d.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, l := range list.Items {
		out = append(out, l.Name)
	}
	slices.Sort(out)
	return out
}

func TestSweep(t *testing.T) {
	t.Parallel()
	unlabelled := func(l *coordinationv1.Lease) { l.Labels = map[string]string{"app.kubernetes.io/name": "belay"} }
	elsewhere := func(l *coordinationv1.Lease) { l.Namespace = "lab" }
	unheld := func(l *coordinationv1.Lease) { l.Spec = coordinationv1.LeaseSpec{} }
	fresh := func(l *coordinationv1.Lease) {
		unheld(l)
		l.CreationTimestamp = metav1.NewTime(noon)
	}
	for name, c := range map[string]struct {
		lease *coordinationv1.Lease
		after time.Duration
		gone  bool
	}{
		"a turn that counts":                             {lease("a"), replace.TurnFor - time.Second, false},
		"one that is over, and may be taken over":        {lease("a"), long, false},
		"one that is long over":                          {lease("a"), long + time.Second, true},
		"one of a clock that is ahead":                   {lease("a"), -time.Hour, false},
		"one that nobody has, made long ago":             {lease("a", unheld), long, true},
		"one that nobody has, made at noon":              {lease("a", fresh), long, false},
		"another Lease of belay's, such as the leader's": {lease("a", unlabelled), time.Hour, false},
		"another namespace's":                            {lease("a", elsewhere), time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := serve(t, c.lease)
			n, err := d.sweeper().Sweep(t.Context(), noon.Add(c.after))
			if err != nil || (n == 1) != c.gone || (len(d.left(t)) == 0) != c.gone {
				t.Errorf("%d removed, %v left: %v", n, d.left(t), err)
			}
		})
	}
}

// TestALeaseIsRemovedAsItWasRead: one that was taken over since is somebody's turn.
func TestALeaseIsRemovedAsItWasRead(t *testing.T) {
	t.Parallel()
	d := serve(t, lease("a"))
	if n, err := d.sweeper().Sweep(t.Context(), noon.Add(time.Hour)); n != 1 || err != nil {
		t.Fatalf("%d %v", n, err)
	}
	uid, version := types.UID("uid-of-a"), "999"
	if diff := cmp.Diff([]metav1.Preconditions{{UID: &uid, ResourceVersion: &version}}, d.preconditions); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestWhatOthersDoMeanwhileIsNoError(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"it was removed":        {apierrors.NewNotFound(leases, "a"), false},
		"it was taken over":     {apierrors.NewConflict(leases, "a", errors.New("changed")), false},
		"belay may not":         {apierrors.NewForbidden(leases, "a", nil), true},
		"the server has failed": {apierrors.NewInternalError(errors.New("no")), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := serve(t, lease("a"), lease("b"))
			d.err = c.err
			n, err := d.sweeper().Sweep(t.Context(), noon.Add(time.Hour))
			if n != 0 || (err != nil) != c.want || len(d.preconditions) != 2 {
				t.Errorf("%d removed of %d: %v", n, len(d.preconditions), err)
			}
			if c.want && !errors.Is(err, c.err) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestAListThatFailsIsAnError(t *testing.T) {
	t.Parallel()
	d := serve(t, lease("a"))
	d.listErr = apierrors.NewForbidden(leases, "", nil)
	if n, err := d.sweeper().Sweep(t.Context(), noon.Add(time.Hour)); n != 0 || !apierrors.IsForbidden(err) {
		t.Errorf("%d %v", n, err)
	}
}

// paged gives one Lease a page.
type paged struct {
	client.Reader
	leases []*coordinationv1.Lease
	asked  []string
	failAt int
}

func (p *paged) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(opts)
	p.asked = append(p.asked, fmt.Sprintf("%s %s %d %q", o.Namespace, o.LabelSelector, o.Limit, o.Continue))
	if p.failAt > 0 && len(p.asked) == p.failAt {
		return apierrors.NewResourceExpired("the continue token is too old")
	}
	out, ok := list.(*coordinationv1.LeaseList)
	if !ok {
		return errors.New("another kind")
	}
	i := len(p.asked) - 1
	out.Items = []coordinationv1.Lease{*p.leases[i]}
	if out.Continue = fmt.Sprint(i + 1); i+1 == len(p.leases) {
		out.Continue = ""
	}
	return nil
}

func TestAllPagesAreSwept(t *testing.T) {
	t.Parallel()
	all := []*coordinationv1.Lease{lease("a"), lease("b"), lease("c")}
	d := serve(t, all[0].DeepCopy(), all[1].DeepCopy(), all[2].DeepCopy())
	for _, l := range all {
		l.ResourceVersion = "999"
	}
	p := &paged{leases: all}
	s := &Sweeper{Reader: p, Writer: d, Namespace: "belay-system"}
	if n, err := s.Sweep(t.Context(), noon.Add(time.Hour)); n != 3 || err != nil || len(d.left(t)) != 0 {
		t.Errorf("%d removed, %v left: %v", n, d.left(t), err)
	}
	if diff := cmp.Diff([]string{`belay-system belay.dev/turn 500 ""`, `belay-system belay.dev/turn 500 "1"`, `belay-system belay.dev/turn 500 "2"`}, p.asked); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestAPageThatFailsEndsTheSweep: what was removed before it is told.
func TestAPageThatFailsEndsTheSweep(t *testing.T) {
	t.Parallel()
	d := serve(t, lease("a"), lease("b"))
	p := &paged{leases: []*coordinationv1.Lease{lease("a", func(l *coordinationv1.Lease) { l.ResourceVersion = "999" }), lease("b")}, failAt: 2}
	s := &Sweeper{Reader: p, Writer: d, Namespace: "belay-system"}
	if n, err := s.Sweep(t.Context(), noon.Add(time.Hour)); n != 1 || !apierrors.IsResourceExpired(err) {
		t.Errorf("%d %v", n, err)
	}
}

// TestStartSweepsAtOnceAndEndsWithItsContext: what a process that died left behind does not
// wait for a minute.
func TestStartSweepsAtOnceAndEndsWithItsContext(t *testing.T) {
	t.Parallel()
	for name, listErr := range map[string]error{"all is well": nil, "nothing may be listed": apierrors.NewForbidden(leases, "", nil)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			logged := make(chan string, 10)
			ctx = logr.NewContext(ctx, funcr.New(func(_, args string) { logged <- args }, funcr.Options{}))
			d := serve(t, lease("a"))
			d.listErr = listErr
			removed := make(chan struct{})
			s := &Sweeper{Reader: d, Writer: notifying{d, removed}, Namespace: "belay-system"}
			ended := make(chan error, 1)
			go func() { ended <- s.Start(ctx) }()
			select {
			case <-removed:
			case line := <-logged:
				if listErr == nil {
					t.Errorf("logged %s", line)
				}
			case <-time.After(time.Minute):
				t.Error("nothing is swept")
			}
			cancel()
			select {
			case err := <-ended:
				if err != nil {
					t.Errorf("a sweep that failed ends the process: %v", err)
				}
			case <-time.After(time.Minute):
				t.Error("it goes on")
			}
			if !s.NeedLeaderElection() {
				t.Error("every replica sweeps")
			}
		})
	}
}

// notifying tells of the first deletion.
type notifying struct {
	client.Writer
	removed chan struct{}
}

func (n notifying) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	defer close(n.removed)
	return n.Writer.Delete(ctx, obj, opts...)
}
