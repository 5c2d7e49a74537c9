package admission

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/client/spawn/names"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/naming"
)

// lenient is a policy whose expressions fail on no object: what the client calls work, if
// anything, says what work it is.
func lenient(generates bool) func(*v1alpha1.NamePolicySpec) {
	const work = `object.?metadata.?annotations[?"work"].orValue("")`
	return func(s *v1alpha1.NamePolicySpec) {
		s.Identity = []string{work}
		if generates {
			s.Generate = &v1alpha1.NameGeneration{Prefix: `"restore"`, Key: []string{work}}
		}
	}
}

// mutated is the outcome of the mutating phase for an object of any shape.
func mutated(t *testing.T, p *facts.NamePolicy, object string, changes ...func(*nameCall)) outcome {
	t.Helper()
	s := &nameStage{t: t, mode: v1alpha1.ModeEnforce}
	c := &nameCall{asked: asked{phase: phaseMutate, policyName: "restore", req: creatingJob(object, nameless)}, policy: p}
	// The API server fills in the request's name from the object's.
	c.req.Name = nameOfObject([]byte(object))
	for _, change := range changes {
		change(c)
	}
	h := s.handler()
	h.Modes = modeOfCall(c.mode)
	return h.answer(context.Background(), c)
}

// modeOfCall is the mode of all namespaces; enforce where it is empty.
type modeOfCall string

func (m modeOfCall) Mode(context.Context, string) (string, error) {
	if m == "" {
		return v1alpha1.ModeEnforce, nil
	}
	return string(m), nil
}

// nameOfObject is the name that an object says, as the last of its fields has it.
func nameOfObject(object []byte) string {
	var m struct {
		Metadata map[string]any `json:"metadata"`
	}
	if utiljson.Unmarshal(object, &m) != nil {
		return ""
	}
	name, _ := m.Metadata["name"].(string)
	return name
}

// decodedObject is an object with its numbers as they are written.
func decodedObject(t *testing.T, object []byte) map[string]any {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(string(object)))
	dec.UseNumber()
	var out map[string]any
	if err := dec.Decode(&out); err != nil {
		t.Fatalf("%v: %s", err, object)
	}
	return out
}

// checkMutated holds the outcome for one object to the rules. It reports whether there was
// a patch, so that a test sees that it proves something.
func checkMutated(t *testing.T, p *facts.NamePolicy, object string) bool {
	t.Helper()
	o := mutated(t, p, object)
	if o.reason == "" || o.message == "" {
		t.Fatalf("no answer to %s: %+v", object, o)
	}
	if len(o.patch) == 0 {
		return false
	}
	if !o.allowed {
		t.Fatalf("denied with a patch: %s\n%+v", object, o)
	}
	var ops []operation
	if err := json.Unmarshal(o.patch, &ops); err != nil {
		t.Fatal(err)
	}
	var typed namedObject
	if err := utiljson.Unmarshal([]byte(object), &typed); err != nil {
		t.Fatal(err)
	}
	carried := nameOfObject([]byte(object))
	names := 0
	for _, op := range ops {
		switch op.Path {
		case "/metadata/name":
			names++
			if carried != "" || typed.Metadata.Name != "" || op.Op != "add" {
				t.Fatalf("N05: %s is renamed by %s", object, o.patch)
			}
		case "/metadata/generateName", "/metadata/annotations", "/metadata/annotations/belay.dev~1work":
		default:
			t.Fatalf("%s touches %s", o.patch, op.Path)
		}
	}
	patch, err := jsonpatch.DecodePatch(o.patch)
	if err != nil {
		t.Fatal(err)
	}
	out, err := patch.Apply([]byte(object))
	if err != nil {
		t.Fatalf("%s does not apply to %s: %v", o.patch, object, err)
	}

	before, after := decodedObject(t, []byte(object)), decodedObject(t, out)
	metaBefore, _ := before["metadata"].(map[string]any)
	metaAfter, _ := after["metadata"].(map[string]any)
	hadGenerateName := typed.Metadata.GenerateName != ""
	if _, has := metaAfter["generateName"]; names > 0 && hadGenerateName && has {
		t.Fatalf("N06: the generateName stays: %s", out)
	}
	if names == 0 && !cmp.Equal(metaBefore["generateName"], metaAfter["generateName"]) {
		t.Fatalf("the generateName goes although nothing is named: %s", out)
	}
	annotations, _ := metaAfter["annotations"].(map[string]any)
	work, marked := annotations[v1alpha1.WorkAnnotation].(string)
	switch naming.Reason(o.reason) {
	case naming.ReasonMarked, naming.ReasonGenerated:
		if !marked || len(work) != 32 {
			t.Fatalf("not marked: %s", out)
		}
	case naming.ReasonServerNamed:
		if marked {
			t.Fatalf("marked, and not named: %s", out)
		}
	default:
		t.Fatalf("a patch for %s", o.reason)
	}
	// Nothing else has changed.
	for _, m := range []map[string]any{metaBefore, metaAfter} {
		delete(m, "name")
		delete(m, "generateName")
		a, _ := m["annotations"].(map[string]any)
		delete(a, v1alpha1.WorkAnnotation)
		if len(a) == 0 {
			delete(m, "annotations")
		}
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Fatalf("something else changed (-before +after)\n%s", diff)
	}
	// And once more: nothing is left to do.
	if again := mutated(t, p, string(out)); len(again.patch) > 0 || !again.allowed {
		t.Fatalf("not idempotent: %s\n%s\n%+v", object, out, again)
	}
	return true
}

// metadata is odd metadata, built of pieces that are drawn.
func metadata(r *rand.Rand) string {
	draw := func(list ...string) string { return list[r.IntN(len(list))] }
	names := []string{
		``, ``, `"name":"a"`, `"name":"a"`, `"name":""`, `"name":null`, `"name":7`, `"Name":"b"`, `"NAME":"b"`, `"n\u0061me":"a"`, `"name":"a","name":""`, `"name":"","name":"a"`, `"name":"a","name":null`,
		`"name":"` + strings.Repeat("n", 300) + `"`, `"name":"\u0000"`, `"name":"a/b~1"`,
	}
	generateNames := []string{``, ``, `"generateName":"x-"`, `"generateName":"x-"`, `"generateName":""`, `"generateName":null`, `"GenerateName":"y-"`, `"generateName":"x-","generateName":""`}
	annotations := []string{
		``, `"annotations":null`, `"annotations":{}`, `"annotations":{"work":"monday"}`, `"annotations":{"work":"monday"}`, `"annotations":{"belay.dev/work":"copied"}`, `"annotations":{"work":"monday","belay.dev/work":"` + monday + `"}`,
		`"annotations":{"belay.dev/work":""}`, `"annotations":{"belay.dev/work":null}`, `"annotations":{"belay.dev~1work":"x","belay.dev":{"work":1}}`, `"Annotations":{"work":"x"}`, `"annotations":[]`, `"annotations":"x"`,
		`"annotations":{"work":"monday"},"annotations":null`, `"annotations":{"work":"é日\n"}`, `"annotations":{"":""}`,
	}
	rest := []string{``, `"labels":{"a":"b"}`, `"namespace":"lab"`, `"ownerReferences":[{"uid":"u"}]`, `"x":12345678901234567`}
	var parts []string
	for _, p := range []string{draw(names...), draw(generateNames...), draw(annotations...), draw(rest...)} {
		if p != "" {
			parts = append(parts, p)
		}
	}
	r.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
	return "{" + strings.Join(parts, ",") + "}"
}

// TestN05_NoPatchRenames draws objects of every shape that metadata comes in.
func TestN05_NoPatchRenames(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 1))
	policies := []*facts.NamePolicy{namePolicy(t, lenient(true)), namePolicy(t, lenient(false))}
	patches := 0
	for i := range 6000 {
		object := `{"kind":"Job","metadata":` + metadata(r) + `,"spec":{"n":1}}`
		if r.IntN(20) == 0 {
			object = `{"metadata":` + metadata(r) + `,"metadata":` + metadata(r) + `}`
		}
		// Fields that are there twice: decoders differ, and whichever is right, belay must not
		// rename.
		if o := mutated(t, policies[i%2], object); nameOfObject([]byte(object)) != "" && strings.Contains(string(o.patch), `"/metadata/name"`) {
			t.Fatalf("%s is renamed by %s", object, o.patch)
		}
		// Once each, as the API server sends them.
		once, err := json.Marshal(decodedObject(t, []byte(object)))
		if err != nil {
			t.Fatal(err)
		}
		if checkMutated(t, policies[i%2], string(once)) {
			patches++
		}
	}
	if patches < 1000 {
		t.Errorf("only %d patches: this test proves too little", patches)
	}
}

// TestNothingIsPatchedElsewhere: not in warn mode, not in the validating phase, not for
// what is no create.
func TestNothingIsPatchedElsewhere(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(2, 2))
	policies := []*facts.NamePolicy{namePolicy(t, lenient(true)), namePolicy(t, lenient(false))}
	elsewhere := map[string]func(*nameCall){
		"warn mode":     func(c *nameCall) { c.mode = v1alpha1.ModeWarn },
		"an update":     func(c *nameCall) { c.req.Operation = admissionv1.Update },
		"a deletion":    func(c *nameCall) { c.req.Operation = admissionv1.Delete },
		"a connection":  func(c *nameCall) { c.req.Operation = admissionv1.Connect },
		"a subresource": func(c *nameCall) { c.req.SubResource = "status" },
		"kube-system":   func(c *nameCall) { c.req.Namespace = "kube-system" },
	}
	for i := range 1000 {
		object := `{"metadata":` + metadata(r) + `}`
		for name, change := range elsewhere {
			if o := mutated(t, policies[i%2], object, change); len(o.patch) > 0 || !o.allowed {
				t.Fatalf("%s: %s\n%+v", name, object, o)
			}
		}
	}
}

// FuzzNames takes objects of any shape: what belay does to them keeps the rules, and there
// is always an answer and never a panic.
func FuzzNames(f *testing.F) {
	for _, s := range []string{plainJob, markedJob, namelessJob, "null", "[]", `{}`, `{"metadata":{}}`, `{"metadata":{"name":"\u0000"}}`, `{"metadata":{"annotations":{"work":"` + strings.Repeat("x", 300) + `"},"generateName":"-"}}`, `{"metadata":{"generateName":"a"},"spec":{"completionMode":"Indexed","completions":1e300}}`} {
		f.Add([]byte(s), true)
		f.Add([]byte(s), false)
	}
	policies := map[bool]*facts.NamePolicy{true: namePolicy(f, lenient(true)), false: namePolicy(f, lenient(false))}
	f.Fuzz(func(t *testing.T, object []byte, generates bool) {
		if !json.Valid(object) {
			return
		}
		// One spelling of each key, as the API server sends it: what others make of two is
		// none of belay's business.
		var canonical any
		if json.Unmarshal(object, &canonical) != nil {
			return
		}
		whole, err := json.Marshal(canonical)
		if err != nil {
			return
		}
		checkMutated(t, policies[generates], string(whole))
		for _, phase := range []string{phaseMutate, phaseValidate} {
			s := &nameStage{t: t, mode: v1alpha1.ModeEnforce}
			c := &nameCall{asked: asked{phase: phase, policyName: "restore", req: creatingJob(string(object))}, policy: policies[generates]}
			h := s.handler()
			h.Modes = modeOfCall("")
			o := h.answer(context.Background(), c)
			if o.reason == ReasonInternal && phase == phaseValidate || o.reason == "" {
				t.Errorf("%s: %s on %s", phase, o.reason, object)
			}
			if !o.allowed {
				if code := respond(c.req, o).Result.Code; code < 400 {
					t.Errorf("N25: a denial with %d", code)
				}
			}
		}
	})
}

// FuzzExistingObjects has objects of any shape hold the name: there is an answer, never a
// panic, and what is deleted is marked, finished and not on its way out.
func FuzzExistingObjects(f *testing.F) {
	for _, s := range []string{
		`{}`, `null`, `{"metadata":null}`, `{"metadata":{"uid":"u","annotations":{"belay.dev/work":"w"}},"status":{"conditions":[{"type":"Failed","status":"True"}]}}`,
		`{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z","finalizers":["a"],"deletionGracePeriodSeconds":30}}`, `{"metadata":{"deletionTimestamp":"soon","annotations":[]}}`,
		`{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z","deletionGracePeriodSeconds":9223372036854775807}}`, `{"metadata":{"annotations":{"belay.dev/work":7}},"status":[]}`,
		`{"metadata":{"annotations":{"belay.dev/work":"` + monday + `","work":"monday"},"creationTimestamp":"2026-01-01T00:00:00Z"},"status":{"conditions":[{"type":"Complete","status":"True"}]}}`,
	} {
		f.Add([]byte(s), true, false)
		f.Add([]byte(s), false, true)
	}
	type flags struct{ adopt, serialize bool }
	policies := map[flags]*facts.NamePolicy{}
	for _, k := range []flags{{false, false}, {true, false}, {false, true}, {true, true}} {
		policies[k] = namePolicy(f, func(s *v1alpha1.NamePolicySpec) {
			s.AdoptUnmarked, s.Settle.Duration = k.adopt, time.Hour
			s.Hold = `existing.metadata.?labels["then"].orValue("") == "pending"`
			if k.serialize {
				s.Racing = v1alpha1.RacingSerialize
			}
		})
	}
	f.Fuzz(func(t *testing.T, object []byte, adopt, serialize bool) {
		var there map[string]any
		if !json.Valid(object) || utiljson.Unmarshal(object, &there) != nil || there == nil {
			return
		}
		s := &nameStage{t: t, mode: v1alpha1.ModeEnforce, pods: naming.PodsFact{State: fact.Absent}, right: naming.RightFact{State: fact.Known}}
		s.there = &unstructured.Unstructured{Object: there}
		before := s.there.DeepCopy()
		c := &nameCall{asked: asked{phase: phaseValidate, policyName: "restore", req: creatingJob(markedJob)}, policy: policies[flags{adopt, serialize}]}
		h := s.handler()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		o := h.answer(ctx, c)
		if o.reason == ReasonInternal || o.reason == "" {
			t.Fatalf("%s on %s", o.reason, object)
		}
		if o.allowed && len(s.replaced) == 0 {
			t.Errorf("admitted, and %s has the name", object)
		}
		if len(s.replaced) == 0 {
			return
		}
		if before.GetAnnotations()[v1alpha1.WorkAnnotation] == "" || before.GetDeletionTimestamp() != nil || !naming.PhaseOf("batch", "Job", before.Object).Finished || before.GetLabels()["then"] == "pending" {
			t.Errorf("%s is deleted", object)
		}
		if s.replaced[0].UID != before.GetUID() || s.replaced[0].ResourceVersion != before.GetResourceVersion() {
			t.Errorf("%s is deleted as %+v", object, s.replaced[0])
		}
	})
}

// TestNamePatch compares the bytes for decisions that the mutating phase makes.
func TestNamePatch(t *testing.T) {
	t.Parallel()
	generated := naming.Decision{SetName: "b", DropGenerateName: true, SetWork: "w"}
	for name, c := range map[string]struct {
		object string
		d      naming.Decision
		want   string
	}{
		"nothing to do":                   {`{"metadata":{"name":"a"}}`, naming.Decision{}, ""},
		"a name that is there stays":      {`{"metadata":{"name":"a","generateName":"x","annotations":{}}}`, generated, `[{"op":"add","path":"/metadata/annotations/belay.dev~1work","value":"w"}]`},
		"a mark that is there":            {`{"metadata":{"name":"a","annotations":{"belay.dev/work":"w"}}}`, naming.Decision{SetWork: "w"}, ""},
		"a mark that goes":                {`{"metadata":{"annotations":{"belay.dev/work":"w"}}}`, naming.Decision{DropWork: true}, `[{"op":"remove","path":"/metadata/annotations/belay.dev~1work"}]`},
		"a mark that is empty goes, too":  {`{"metadata":{"annotations":{"belay.dev/work":""}}}`, naming.Decision{DropWork: true}, `[{"op":"remove","path":"/metadata/annotations/belay.dev~1work"}]`},
		"a mark that is null goes, too":   {`{"metadata":{"annotations":{"belay.dev/work":null}}}`, naming.Decision{DropWork: true}, `[{"op":"remove","path":"/metadata/annotations/belay.dev~1work"}]`},
		"no mark, none to go":             {`{"metadata":{"annotations":{"a":"b"}}}`, naming.Decision{DropWork: true}, ""},
		"no annotations, none to go":      {`{"metadata":{}}`, naming.Decision{DropWork: true}, ""},
		"null annotations, none to go":    {`{"metadata":{"annotations":null}}`, naming.Decision{DropWork: true}, ""},
		"a mark under another spelling":   {`{"metadata":{"annotations":{"Belay.dev/work":"w"}}}`, naming.Decision{SetWork: "w"}, `[{"op":"add","path":"/metadata/annotations/belay.dev~1work","value":"w"}]`},
		"a name of another field is none": {`{"metadata":{"Name":"a","generateName":"x"}}`, generated, `[{"op":"add","path":"/metadata/name","value":"b"},{"op":"remove","path":"/metadata/generateName"},{"op":"add","path":"/metadata/annotations","value":{"belay.dev/work":"w"}}]`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var o namedObject
			if err := utiljson.Unmarshal([]byte(c.object), &o); err != nil {
				t.Fatal(err)
			}
			got, err := namePatch([]byte(c.object), o, c.d)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, string(got)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
	if want := names.Digest("monday"); monday != want {
		t.Error(want)
	}
}
