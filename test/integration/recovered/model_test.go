package recovered

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/integration/stack"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// The model is the table of the guard, written once more from what it promises and not from
// the code, for the API server to be compared with. Its rows, by what the phases mean (failed; alive:
// a recovered phase; replacing; between: any other, an absent or an unknown one):
//
//	a status that is removed          refused while the object is in a failure
//	any → failed                      what the write gives, else the Pods that fail now, beside
//	                                  what it was carrying, to which nothing is added once it
//	                                  is marked; nothing where the condition is terminal or it
//	                                  was replacing
//	failed → failed                   both records, joined; nothing where the failure is
//	                                  terminal or had no record
//	in a failure → alive              only on evidence for all that is recorded, and that the
//	                                  write records; cleared
//	in a failure → between            carried; marked where there is no record to carry
//	any → replacing                   cleared
//	not in a failure → alive          cleared
//	not in a failure → between        as it is
//
// An object is in a failure when its phase is failed, or when it is between and has a
// record.

// absentPhase is a status without a phase; noStatus is no status.
const (
	absentPhase = "-"
	noStatus    = "--"
)

// meaning is what a phase means.
type meaning int

const (
	between meaning = iota
	failing
	alive
	replacing
)

func meaningOf(phase string) meaning {
	switch phase {
	case "Failed":
		return failing
	case "Succeed", "Pending":
		return alive
	case "Resuming":
		return replacing
	}
	return between
}

// stored is what the model knows of an object's status. Records are symbols: "first" and
// "second" for the Pods' UIDs, "mark" for the UID of no Pod.
type stored struct {
	phase, record string
	terminal      bool
}

func (s stored) inFailure() bool {
	return meaningOf(s.phase) == failing || meaningOf(s.phase) == between && s.record != ""
}

// owing is what the model remembers beside it, which no write can make it forget.
type owing struct {
	// failed: it has failed, and neither recovered nor replaced its Pods since. pods are all
	// that were recorded since then; hopeless: nothing can be proven about them any more.
	failed, hopeless bool
	pods             string
}

// node is a place that a sequence of writes leads to.
type node struct {
	stored
	owing
}

// step is one write: the phase that it wants, the condition, and what it says of the record.
type step struct {
	phase    string
	terminal bool
	// record is a symbol, or one of these.
	record string
}

const (
	keeping  = "as it was"
	dropping = "dropped"
)

// world is what has become of the first Pod; the second is fit.
type world string

const (
	fit      world = "the pod is fit"
	crashing world = "the pod still fails"
	replaced world = "the pod was replaced"
)

// join is a record and what another adds to it.
func join(record, more string) string {
	all := strings.Fields(record)
	for _, uid := range strings.Fields(more) {
		if !slices.Contains(all, uid) {
			all = append(all, uid)
		}
	}
	// The mark is the last.
	if i := slices.Index(all, "mark"); i >= 0 {
		all = append(slices.Delete(all, i, i+1), "mark")
	}
	return strings.Join(all, " ")
}

// answer is what the model expects: the status, or the reason of a denial.
type answer struct {
	after  stored
	denied string
}

// expect is the table.
func (w world) expect(s stored, do step) answer {
	asked := stored{phase: do.phase, record: do.record, terminal: do.terminal}
	switch do.record {
	case keeping:
		asked.record = s.record
	case dropping:
		asked.record = ""
	}
	with := func(record string) answer { return answer{after: stored{asked.phase, record, asked.terminal}} }
	from, to := meaningOf(s.phase), meaningOf(do.phase)
	hopeless := s.terminal || do.terminal
	switch {
	case do.phase == noStatus && s.inFailure():
		return answer{denied: "StatusRemoved"}
	case do.phase == noStatus:
		return answer{after: stored{phase: noStatus}}
	case to == failing && from == failing:
		if hopeless || s.record == "" {
			return with("")
		}
		return with(join(s.record, asked.record))
	case to == failing:
		if do.terminal || from == replacing {
			return with("")
		}
		carried := ""
		if s.inFailure() {
			carried = s.record
		}
		// What a write only shows again is no news, and to what is marked none is needed.
		news := asked.record != s.record && join(carried, asked.record) != carried
		if w == crashing && !news && !strings.Contains(carried, "mark") {
			return with(join(carried, "first"))
		}
		if carried == "" && !news {
			return with("")
		}
		return with(join(carried, asked.record))
	case to == alive && s.inFailure():
		switch {
		case from == failing && hopeless:
			return answer{denied: "Terminal"}
		case s.record == "" || s.record == "mark":
			return answer{denied: "NoRecord"}
		case strings.Contains(s.record, "mark"):
			return answer{denied: "Overflow"}
		}
		if why := w.refutes(join(s.record, asked.record)); why != "" {
			return answer{denied: why}
		}
		return with("")
	case to == alive, to == replacing:
		return with("")
	case !s.inFailure():
		return with(asked.record)
	case from == failing && (hopeless || s.record == ""):
		return with("mark")
	}
	return with(join(s.record, asked.record))
}

// refutes is the first reason why Pods are not all fit again; empty where they are.
func (w world) refutes(record string) string {
	first := slices.Contains(strings.Fields(record), "first")
	switch {
	case w == crashing && first:
		return "MainNotRunning"
	case w == crashing:
		return "OtherPodFailing"
	case w == replaced && first:
		return "PodReplaced"
	}
	return ""
}

// after is what the model remembers once a write is stored, and what is wrong with it.
func (w world) after(n node, do step, s stored) (owing, string) {
	o := n.owing
	switch meaningOf(do.phase) {
	case replacing:
		return owing{}, ""
	case alive:
		switch {
		case !o.failed:
		case o.hopeless:
			return o, "it recovers, and nothing could be proven"
		case o.pods == "":
			return o, "it recovers, and nothing was recorded"
		case w.refutes(o.pods) != "":
			return o, "it recovers without evidence"
		}
		if s.record != "" {
			return o, "it recovers with a record"
		}
		return owing{}, ""
	case failing:
		o.failed = true
		o.hopeless = o.hopeless || do.terminal || s.record == ""
	case between:
		o.failed = o.failed || s.record != ""
		if o.failed && s.record == "" {
			return o, "nobody would know that it had failed"
		}
	}
	o.hopeless = o.hopeless || strings.Contains(s.record, "mark")
	pods := strings.Fields(join(o.pods, strings.ReplaceAll(s.record, "mark", "")))
	slices.Sort(pods)
	o.pods = strings.Join(pods, " ")
	return o, ""
}

// starts are the failed objects that all sequences begin with.
func starts() []node {
	return []node{
		{stored{"Failed", "first", false}, owing{failed: true, pods: "first"}},
		{stored{"Failed", "", false}, owing{failed: true, hopeless: true}},
		{stored{"Failed", "", true}, owing{failed: true, hopeless: true}},
		// As it may have been stored before there was a guard.
		{stored{"Failed", "first", true}, owing{failed: true, hopeless: true, pods: "first"}},
	}
}

// TestEverySequenceOfThreeWrites takes failed objects through all sequences of up to three
// writes. What is stored after each is compared with the model, and so is the reason of each
// denial; and what the model remembers beside says whether an object ever recovers without
// evidence. Since a write finds nothing but what is stored, a place that several sequences
// lead to is gone on from once: it is set there past the policy. Some sequences are made as
// they are.
//
// The writes from the first places are made by every verb, all others by one or the other in
// turn.
func TestEverySequenceOfThreeWrites(t *testing.T) {
	t.Parallel()
	ctx := stack.TestContext(t)
	plain := opensandbox.CRDOptions{Record: &opensandbox.Record{}}
	kinds := vary(ctx, t, "model", map[string]variation{
		"closed": {CRDOptions: plain},
		"open": {CRDOptions: plain, schema: func(crd *apiextensionsv1.CustomResourceDefinition) {
			changeStatus(crd, func(s *apiextensionsv1.JSONSchemaProps) {
				s.Properties["phase"] = apiextensionsv1.JSONSchemaProps{Type: "string"}
			})
		}},
	})
	for name, c := range map[string]struct {
		phases, records []string
		worlds          []world
		atLeast         int
	}{
		"closed": {[]string{"Failed", "Succeed", "Pending", "Pausing", "Resuming", absentPhase}, []string{keeping, dropping, "second"}, []world{fit, crashing, replaced}, 20},
		"open":   {[]string{"Failed", "Succeed", "", "Melting"}, []string{keeping, dropping}, []world{fit, replaced}, 8},
	} {
		steps := []step{{phase: noStatus}}
		for _, phase := range c.phases {
			for _, record := range c.records {
				steps = append(steps, step{phase, false, record}, step{phase, true, record})
			}
		}
		for _, w := range c.worlds {
			t.Run(name+", "+string(w), func(t *testing.T) {
				t.Parallel()
				m := &model{k: kinds[name].in(t), world: w, steps: steps, leads: map[node][]node{}}
				m.explore(ctx, t)
				sequences := 0
				for _, n := range starts() {
					sequences += m.sequences(n, 3)
				}
				stack.Report(t, "%s, %s: %d sequences of up to 3 writes over %d places; %d writes, of which %d denied; %d recoveries", name, w, sequences, len(m.leads), m.writes, m.denials, m.recoveries)
				if len(m.leads) < c.atLeast || m.denials < 50 || (w == fit && m.recoveries == 0) || (w == crashing && m.recoveries > 0) {
					t.Error("this test proves too little")
				}
				m.walk(ctx, t)
			})
		}
	}

	t.Run("a closed enumeration refuses other phases by itself", func(t *testing.T) {
		t.Parallel()
		k := kinds["closed"].in(t)
		k.box(ctx, "enum", 0, status("Failed", object{"failedPodUIDs": []string{u(1)}}))
		for _, verb := range verbs {
			for _, phase := range []string{"", "Melting"} {
				fields := status("", object{"phase": phase})
				if _, err := k.send(ctx, k.guarded, verb, "enum", fields); !apierrors.IsInvalid(err) {
					t.Errorf("%q by %s: %v", phase, verb, err)
				}
			}
		}
		if got := k.get(ctx, "enum"); phaseOf(got) != "Failed" || len(record(t, got)) != 1 {
			t.Errorf("status %v", statusOf(got))
		}
	})
}

// model explores one world.
type model struct {
	k     *kind
	world world
	steps []step

	mu sync.Mutex
	// leads are the places that the steps from a place lead to, in their order.
	leads                       map[node][]node
	writes, denials, recoveries int
}

// writers is how many objects are worked on at once in one world.
const writersEach = 3

// task is one write from a place.
type task struct {
	from node
	step int
	verb string
}

// explore makes every write in every place that up to two of them lead to.
func (m *model) explore(ctx context.Context, t *testing.T) {
	t.Helper()
	var objects []*subject
	for i := range writersEach {
		objects = append(objects, m.subject(ctx, fmt.Sprintf("explored-%d", i)))
	}
	todo := starts()
	for depth := 1; depth <= 3; depth++ {
		tasks := make(chan []task, len(todo)) // so that nobody waits for a writer that gave up
		var wg sync.WaitGroup
		for _, o := range objects {
			wg.Go(func() {
				for some := range tasks {
					for _, x := range some {
						m.make(ctx, o, x)
					}
				}
			})
		}
		for i, n := range todo {
			m.mu.Lock()
			m.leads[n] = make([]node, len(m.steps))
			m.mu.Unlock()
			var some []task
			for j := range m.steps {
				if depth > 1 {
					some = append(some, task{n, j, verbs[(i+j)%len(verbs)]})
					continue
				}
				for _, verb := range verbs {
					some = append(some, task{n, j, verb})
				}
			}
			tasks <- some
		}
		close(tasks)
		wg.Wait()
		if t.Failed() {
			return
		}
		var next []node
		for _, n := range todo {
			for _, to := range m.leads[n] {
				if _, known := m.leads[to]; !known && !slices.Contains(next, to) {
					next = append(next, to)
				}
			}
		}
		todo = next
	}
}

// sequences counts those of up to so many writes that begin at a place.
func (m *model) sequences(n node, writes int) int {
	if writes == 0 {
		return 0
	}
	sum := 0
	for _, to := range m.leads[n] {
		sum += 1 + m.sequences(to, writes-1)
	}
	return sum
}

// make makes one write and compares.
func (m *model) make(ctx context.Context, o *subject, x task) {
	o.set(ctx, x)
	to, what := o.write(ctx, m.world, x.from, m.steps[x.step], x.verb)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leads[x.from][x.step] = to
	m.count(x.from, to, m.steps[x.step])
	if what != "" {
		m.k.t.Errorf("from %+v by %s to %+v: %s", x.from, x.verb, m.steps[x.step], what)
	}
}

func (m *model) count(from, to node, do step) {
	m.writes++
	switch {
	case to == from && to.phase != do.phase:
		m.denials++
	case from.failed && meaningOf(to.phase) == alive:
		m.recoveries++
	}
}

// walk makes sequences as they are: what is stored, and whose its fields are, comes from the
// writes before.
func (m *model) walk(ctx context.Context, t *testing.T) {
	t.Helper()
	const walks = 30
	random := rand.New(rand.NewPCG(1, 2))
	o := m.subject(ctx, "walked")
	for range walks {
		n := starts()[random.IntN(len(starts()))]
		path := fmt.Sprintf("from %+v", n)
		o.set(ctx, task{from: n, verb: byApply})
		// An apply takes away what the same manager has put there before, and does not name.
		applies := random.IntN(3)
		for i := range 3 {
			verb := verbs[random.IntN(3)]
			if i == applies {
				verb = byApply
			}
			do := m.steps[random.IntN(len(m.steps))]
			path += fmt.Sprintf("\nby %s to %+v", verb, do)
			to, what := o.write(ctx, m.world, n, do, verb)
			if what != "" {
				t.Errorf("%s\n%s", path, what)
				return
			}
			n = to
		}
	}
}

// subject is an object that is written to.
type subject struct {
	k   *kind
	box string
	// real are the UIDs of the symbols.
	real map[string]string
	// last is the object as it is stored; applied, whether fields of it are an apply's.
	last    *unstructured.Unstructured
	applied bool
}

// subject makes an object with its Pods in a world.
func (m *model) subject(ctx context.Context, box string) *subject {
	box = named(box + string(m.world))
	pods := m.k.box(ctx, box, 2, nil)
	switch m.world {
	case crashing:
		must(m.k.t, opensandbox.Crash(ctx, shared.Client, pods[0], "CrashLoopBackOff"))
	case replaced:
		m.k.replace(ctx, pods[0])
	}
	return &subject{k: m.k, box: box, real: map[string]string{"first": string(pods[0].UID), "second": string(pods[1].UID), "mark": v1alpha1.NoPodUID}}
}

// set puts the object where a task begins, past the policy, unless it is there.
func (o *subject) set(ctx context.Context, x task) {
	if o.last != nil && o.read(o.last) == x.from.stored && (x.verb != byApply || !o.applied) {
		return
	}
	o.applied = false
	if x.from.phase == noStatus {
		var err error
		o.last, err = o.k.past.Patch(ctx, o.box, types.MergePatchType, []byte(`{"metadata":{"managedFields":[{}]},"status":null}`), metav1.PatchOptions{}, "status")
		must(o.k.t, err)
		return
	}
	s := status("", nil)
	if x.from.phase != absentPhase {
		s["phase"] = x.from.phase
	}
	if x.from.record != "" {
		s["failedPodUIDs"] = o.uids(x.from.record)
	}
	if x.from.terminal {
		s["conditions"] = resumeFailed()
	}
	o.last = o.k.set(ctx, o.box, s)
}

func (o *subject) uids(record string) []string {
	out := []string{}
	for _, symbol := range strings.Fields(record) {
		out = append(out, o.real[symbol])
	}
	return out
}

// read is what the model knows of an object.
func (o *subject) read(obj *unstructured.Unstructured) stored {
	s := statusOf(obj)
	if s == nil {
		return stored{phase: noStatus}
	}
	out := stored{phase: absentPhase}
	if phase, ok := s["phase"].(string); ok {
		out.phase = phase
	}
	var symbols []string
	for _, uid := range record(o.k.t, obj) {
		symbol := uid
		for s, real := range o.real {
			if real == uid {
				symbol = s
			}
		}
		symbols = append(symbols, symbol)
	}
	out.record = strings.Join(symbols, " ")
	conditions, _ := s["conditions"].([]any)
	for _, c := range conditions {
		c := c.(object)
		out.terminal = out.terminal || c["type"] == "ResumeFailed" && c["status"] == "True"
	}
	return out
}

// write makes a write where the object is, and says where it is then, and what is wrong.
func (o *subject) write(ctx context.Context, w world, n node, do step, verb string) (node, string) {
	if verb == byApply && (do.phase == absentPhase || do.phase == noStatus) {
		verb = byMerge // an apply cannot take away what others have put there
	}
	got, err := o.send(ctx, do, verb)
	want := w.expect(n.stored, do)
	var refused apierrors.APIStatus
	switch {
	case err == nil:
		o.last = got
	case !asStatus(err, &refused) || refused.Status().Code != 403 || refused.Status().Details == nil || len(refused.Status().Details.Causes) == 0:
		return n, err.Error()
	default:
		cause := strings.TrimPrefix(string(refused.Status().Details.Causes[0].Type), "belay.dev/")
		if cause != want.denied {
			return n, fmt.Sprintf("denied for %s, want %+v: %v", cause, want, err)
		}
		return n, ""
	}
	after := o.read(got)
	if want.denied != "" {
		return n, fmt.Sprintf("%+v; want it denied for %s", after, want.denied)
	}
	opts := cmp.AllowUnexported(stored{})
	if diff := cmp.Diff(want.after, after, opts); diff != "" {
		return n, "stored (-want +got):\n" + diff
	}
	owes, wrong := w.after(n, do, after)
	return node{after, owes}, wrong
}

// send sends a write. A PUT has the resourceVersion of what is stored, so that what a denied
// write had changed would be a conflict.
func (o *subject) send(ctx context.Context, do step, verb string) (*unstructured.Unstructured, error) {
	k := o.k
	now := statusOf(o.last)
	fields := object{}
	if verb == byPut || now == nil {
		fields = status("", nil)
	}
	_, there := now["failedPodUIDs"]
	_, phased := now["phase"]
	switch {
	case do.phase == noStatus:
		return o.remove(ctx, verb)
	case do.phase != absentPhase:
		fields["phase"] = do.phase
	case verb == byMerge:
		fields["phase"] = nil
	case verb == byJSON && phased:
		fields["phase"] = gone{}
	}
	fields["conditions"] = []any{}
	switch {
	case do.terminal:
		fields["conditions"] = resumeFailed()
	case verb == byApply:
		fields["conditions"] = []any{object{"type": "ResumeFailed", "status": "False"}}
	}
	switch {
	case do.record == keeping && verb == byPut && there:
		fields["failedPodUIDs"] = now["failedPodUIDs"]
	case do.record == keeping:
	case do.record != dropping:
		fields["failedPodUIDs"] = o.uids(do.record)
	// There are two ways of dropping, of which each comes up.
	case do.terminal || verb == byApply:
		fields["failedPodUIDs"] = []string{}
	case verb == byMerge:
		fields["failedPodUIDs"] = nil
	case verb == byJSON && there:
		fields["failedPodUIDs"] = gone{}
	}
	switch {
	case verb == byJSON && now == nil:
		return k.guarded.Patch(ctx, o.box, types.JSONPatchType, encoded(k.t, []object{{"op": "add", "path": "/status", "value": fields}}), metav1.PatchOptions{}, "status")
	case verb == byPut:
		next := o.last.DeepCopy()
		next.Object["status"] = fields
		return k.guarded.UpdateStatus(ctx, next, metav1.UpdateOptions{})
	case verb == byApply:
		o.applied = true
	}
	return k.send(ctx, k.guarded, verb, o.box, fields)
}

func (o *subject) remove(ctx context.Context, verb string) (*unstructured.Unstructured, error) {
	switch {
	case verb == byPut:
		next := o.last.DeepCopy()
		delete(next.Object, "status")
		return o.k.guarded.UpdateStatus(ctx, next, metav1.UpdateOptions{})
	case verb == byJSON && statusOf(o.last) != nil:
		return o.k.guarded.Patch(ctx, o.box, types.JSONPatchType, []byte(`[{"op":"remove","path":"/status"}]`), metav1.PatchOptions{}, "status")
	}
	return o.k.guarded.Patch(ctx, o.box, types.MergePatchType, []byte(`{"status":null}`), metav1.PatchOptions{}, "status")
}
