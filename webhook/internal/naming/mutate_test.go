package naming

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

type mutation struct {
	in   MutateInput
	want Decision
}

// mutations has a row for each thing that the mutating phase may do.
func mutations() map[string]mutation {
	in := func(changes ...func(*MutateInput)) MutateInput {
		in := MutateInput{
			Request: Request{Operation: "CREATE", Group: "batch", Kind: "Job", Name: "a", Work: Computed{Value: thisWork}},
			Policy:  Policy{Name: "restore", Generates: true, FailurePolicy: v1alpha1.FailureFail},
		}
		for _, change := range changes {
			change(&in)
		}
		return in
	}
	nameless := func(in *MutateInput) {
		in.Request.Name, in.Request.Unnamed, in.Request.HasGenerateName = "", true, true
		in.Generated = Computed{Value: "restore-abcdefghij"}
	}
	ofWork := func(c Computed) func(*MutateInput) {
		return func(in *MutateInput) { in.Request.Work = c }
	}
	generated := func(c Computed) func(*MutateInput) {
		return func(in *MutateInput) { in.Generated = c }
	}
	generating := func(yes bool) func(*MutateInput) {
		return func(in *MutateInput) { in.Policy.Generates = yes }
	}
	ignoring := func(in *MutateInput) { in.Policy.FailurePolicy = v1alpha1.FailureIgnore }
	const named = `a new job is named "restore-abcdefghij", with work aaaaaaaabbbbbbbbccccccccdddddddd`
	return map[string]mutation{
		"an update is never looked at": {
			in(func(in *MutateInput) { in.Request.Operation = "UPDATE" }),
			Decision{Allowed: true, Reason: ReasonNotCreate, Message: "only creates are looked at"},
		},
		"N05: a name that the request carries stays, and the object is marked": {
			in(generated(Computed{Value: "restore-abcdefghij"})),
			Decision{Allowed: true, Reason: ReasonMarked, SetWork: thisWork, Message: `job "a" is marked with work aaaaaaaabbbbbbbbccccccccdddddddd`},
		},
		"N05: nor does a generateName beside it change that": {
			in(generated(Computed{Value: "restore-abcdefghij"}), func(in *MutateInput) { in.Request.HasGenerateName = true }),
			Decision{Allowed: true, Reason: ReasonMarked, SetWork: thisWork},
		},
		"N01: an object with a generateName is named": {
			in(nameless), Decision{Allowed: true, Reason: ReasonGenerated, SetName: "restore-abcdefghij", DropGenerateName: true, SetWork: thisWork, Message: named},
		},
		"an object with neither is named": {
			in(nameless, func(in *MutateInput) { in.Request.HasGenerateName = false }),
			Decision{Allowed: true, Reason: ReasonGenerated, SetName: "restore-abcdefghij", SetWork: thisWork, Message: named},
		},
		"a policy that makes no names leaves that to the API server, without a copied mark": {
			in(nameless, generating(false)), Decision{Allowed: true, Reason: ReasonServerNamed, DropWork: true, Message: "the API server names the object"},
		},
		"a policy that makes no names marks": {
			in(generating(false)), Decision{Allowed: true, Reason: ReasonMarked, SetWork: thisWork},
		},
		// The request's path has a name, its body none: stored under the one, it would say
		// the other.
		"a name that the request carries elsewhere than in the object stays, too": {
			in(nameless, func(in *MutateInput) { in.Request.Unnamed = false }),
			Decision{Allowed: true, Reason: ReasonServerNamed, DropWork: true, Message: "the API server names the object"},
		},
		"the work cannot be told: an object without a mark would be foreign to its own retry": {
			in(ofWork(Computed{Problem: "spec.identity[0]: no such key: work"})),
			Decision{Answer: v1alpha1.AnswerForbidden, Reason: ReasonExpressionFailed, Message: `policy "restore": job "a": its work could not be computed: spec.identity[0]: no such key: work`},
		},
		"the work cannot be told, ignoring: a retry would fail again": {
			in(ignoring, ofWork(Computed{Problem: "spec.identity[0]: no such key: work"})),
			Decision{Answer: v1alpha1.AnswerForbidden, Reason: ReasonExpressionFailed},
		},
		"the work cannot be told in time": {
			in(ofWork(Computed{Problem: "spec.identity[0]: context deadline exceeded", Transient: true})),
			Decision{Answer: v1alpha1.AnswerServiceUnavailable, RetryAfterSeconds: 1, Reason: ReasonExpressionFailed},
		},
		"the work cannot be told in time, ignoring": {
			in(ignoring, nameless, ofWork(Computed{Problem: "spec.identity[0]: context deadline exceeded", Transient: true})),
			Decision{Allowed: true, Reason: ReasonExpressionFailed, DropWork: true, Warnings: []string{`admitted unchecked: policy "restore": a new job: its work could not be computed: spec.identity[0]: context deadline exceeded`}},
		},
		"the name cannot be made in time, ignoring: a copied mark does not stay": {
			in(ignoring, nameless, generated(Computed{Problem: "spec.generate.prefix: context deadline exceeded", Transient: true})),
			Decision{Allowed: true, Reason: ReasonExpressionFailed, DropWork: true, Warnings: []string{`admitted unchecked: policy "restore": a new job: its name could not be made: spec.generate.prefix: context deadline exceeded`}},
		},
		"the name cannot be made": {
			in(nameless, generated(Computed{Problem: "spec.generate.prefix: no such key:\nx"})),
			Decision{Answer: v1alpha1.AnswerForbidden, Reason: ReasonExpressionFailed, Message: `policy "restore": a new job: its name could not be made: spec.generate.prefix: no such key: x`},
		},
		"a kind that is not known is an object": {
			in(func(in *MutateInput) { in.Request.Kind = "" }),
			Decision{Allowed: true, Reason: ReasonMarked, SetWork: thisWork, Message: `object "a" is marked with work aaaaaaaabbbbbbbbccccccccdddddddd`},
		},
	}
}

func TestMutate(t *testing.T) {
	t.Parallel()
	for name, c := range mutations() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := Mutate(c.in)
			checkWording(t, got.Message)
			if c.want.Message == "" {
				got.Message = ""
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestN05_MutateNeverRenames goes through every kind of request.
func TestN05_MutateNeverRenames(t *testing.T) {
	t.Parallel()
	flags := []bool{false, true}
	for _, operation := range []string{"CREATE", "UPDATE", "DELETE", "CONNECT", ""} {
		for _, name := range []string{"", "a"} {
			for _, unnamed := range flags {
				for _, generateName := range flags {
					for _, generates := range flags {
						for _, value := range []string{"", "restore-abcdefghij"} {
							in := MutateInput{
								Request:   Request{Operation: operation, Name: name, Unnamed: unnamed, HasGenerateName: generateName, Work: Computed{Value: thisWork}},
								Policy:    Policy{Generates: generates},
								Generated: Computed{Value: value},
							}
							d := Mutate(in)
							if d.SetName != "" && (name != "" || !unnamed || !generates || operation != "CREATE") {
								t.Errorf("%+v is named %q", in, d.SetName)
							}
							if d.DropGenerateName && (d.SetName == "" && value != "" || !generateName) {
								t.Errorf("%+v loses its generateName", in)
							}
							if (d.SetWork != "" || d.DropWork) && operation != "CREATE" {
								t.Errorf("%+v is changed", in)
							}
							if d.SetWork != "" && d.DropWork || d.SetName != "" && d.SetWork == "" {
								t.Errorf("%+v is not marked: %+v", in, d)
							}
						}
					}
				}
			}
		}
	}
}
