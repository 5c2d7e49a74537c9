package registration

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel/environment"
)

// What belay accepts the API server must accept: else one policy's condition makes the
// write of the whole configuration fail, for all policies.
func TestConditionsThatTheAPIServerRefusesAreNotAccepted(t *testing.T) {
	compiler := plugincel.NewCompiler(environment.MustBaseEnvSet(version.MajorMinor(1, 33)))
	for _, e := range []string{
		"object.spec.enabled",                 // dyn, not bool
		"request.dryrun == true",              // no such field
		"request.user == 'alice'",             // no such field
		"request.object.metadata.name == 'x'", // no such field
		"request.userInfo.username == 1",      // types
	} {
		c := matchconditions.MatchCondition{Name: "x", Expression: e}
		theirs := compiler.CompileCELExpression(&c, plugincel.OptionalVariableDeclarations{HasAuthorizer: true}, environment.NewExpressions).Error
		ours := checkCondition("x", e)
		if theirs != nil && ours == nil {
			t.Errorf("%s: belay accepts it, the API server says: %v", e, theirs)
		}
	}
	e := "authorizer.requestResource.check('get').allowed()"
	c := matchconditions.MatchCondition{Name: "x", Expression: e}
	theirs := compiler.CompileCELExpression(&c, plugincel.OptionalVariableDeclarations{HasAuthorizer: true}, environment.NewExpressions).Error
	if ours := checkCondition("x", e); theirs == nil && ours != nil {
		t.Errorf("%s: the API server accepts it, belay says: %v", e, ours)
	}
}

// Another writer doubles one of our expressions in the place of another one.
func TestP01_ADoubledExpressionDoesNotHideAMissingOne(t *testing.T) {
	a, b := requirement("belay.dev/mode", "In", "enforce", "warn"), requirement("kubernetes.io/metadata.name", "NotIn", "kube-system")
	got := mergeSelector(selecting(nil, a, b), selecting(nil, a, a), selecting(nil, a, b))
	if !containsExpression(got.MatchExpressions, b) {
		t.Errorf("kube-system is in scope: %v", got.MatchExpressions)
	}
}

// A policy that is gone, with the record lost in the same moment, must not stay registered: its
// path answers 404, and with failurePolicy Fail nothing could be created.
func TestAnEntryOfOursWithoutRecordGoes(t *testing.T) {
	live, _ := plan(config{}, wanted("otf", "gone"), roots{}, now)
	live.applied = applied{}
	got, _ := plan(live, wanted("otf"), roots{}, now)
	if names := entryNames(got); len(names) != 1 {
		t.Errorf("%v", names)
	}
}
